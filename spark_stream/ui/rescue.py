"""Directories of broken nodes of NATS servers, which the command line named: scanned in a thread, copy by copy.

Nothing is written to them. Every byte of every copy is read, so a scan is begun by a button and not by looking; who
looks sees how far it is, and each stream's comparison as soon as it is there.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import join
from typing import Any

from spark_stream import rescue
from spark_stream.ui.query import Query
from spark_stream.ui.site import READ_ERRORS, Site
from storage_core.comparison import Drift, drifts_json
from storage_core.errors import NotFoundError

ANNOUNCE_INTERVAL_S = 1.0
CONFLICT_COUNT_MAX = 100  # of one stream that a page lists


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What a scan knows so far; each step makes a new one."""

    state: str = "not begun"  # running, done, failed
    layout: str = ""  # nats, stan
    streams: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # of servers that still write
    drifts: Mapping[str, Drift] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)  # why a stream could not be compared
    error: str = ""
    done: int = 0  # parts of the stream that is being read
    total: int = 0


class Rescue:
    """The scan of the directories; the newest is kept."""

    def __init__(self, directories: Sequence[Path], announce: Callable[[], None]) -> None:
        self.directories, self._announce = tuple(directories), announce
        self.result = ScanResult()
        self._beginning = threading.Lock()

    def begin(self) -> None:
        """Scan in a thread, unless a scan runs."""
        with self._beginning:
            if self.result.state == "running":
                return
            self.result = ScanResult("running")
        threading.Thread(target=self._run, name="jstream-ui-rescue", daemon=True).start()

    def _run(self) -> None:
        error = "the scan ended by an unforeseen error, which the log of `jstream ui` has"
        try:
            self._scan()
            error = ""
        except READ_ERRORS as caught:
            error = str(caught)
        finally:
            known = self.result
            self.result = ScanResult(
                "failed" if error else "done",
                known.layout,
                known.streams,
                known.warnings,
                known.drifts,
                known.problems,
                error,
            )
            self._announce()

    def _scan(self) -> None:
        source = rescue.open([str(directory) for directory in self.directories])
        streams, warnings = tuple(source.streams()), tuple(writer.describe() for writer in source.writers())
        drifts: dict[str, Drift] = {}
        problems: dict[str, str] = {}
        announced = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal announced
            now = time.monotonic()
            if done == 0 or now - announced >= ANNOUNCE_INTERVAL_S:
                announced = now
                self.result = ScanResult(
                    "running", source.layout, streams, warnings, dict(drifts), dict(problems), "", done, total
                )
                self._announce()

        for name in streams:
            progress(0, 0)
            try:
                drifts[name] = rescue.compare(source, name, progress)
            except READ_ERRORS as caught:
                problems[name] = str(caught)
        self.result = ScanResult("running", source.layout, streams, warnings, drifts, problems)

    def drift(self, stream: str) -> Drift:
        """Raises NotFoundError."""
        drift = self.result.drifts.get(stream)
        if drift is None:
            raise NotFoundError(f"no scan has compared stream {stream[:80]!r}")
        return drift


def rescue_page(site: Site, query: Query, scan: Rescue) -> dict[str, Any]:
    """Return what the scan knows of each stream."""
    result = scan.result
    reading = next((name for name in result.streams if name not in {*result.drifts, *result.problems}), None)
    streams = []
    for name in result.streams:
        drift, problem = result.drifts.get(name), result.problems.get(name)
        state = "failed" if problem else "waiting" if drift is None else "current" if drift.agrees else "different"
        streams.append(
            {
                "name": name,
                "state": "reading" if name == reading and result.state == "running" else state,
                "verdict": problem or (drift.verdict() if drift is not None else ""),
                "messages": drift.message_count if drift is not None else None,
                "copies": len(drift.copies) if drift is not None else None,
            }
        )
    layout = result.layout or "nats"
    return {
        "directories": [str(directory) for directory in scan.directories],
        "state": result.state,
        "error": result.error,
        "layout": result.layout,
        "warnings": list(result.warnings),
        "streams": streams,
        "compared": len(result.drifts),
        "done": result.done,
        "total": result.total,
        "command": join(["jstream", "drift", layout, *map(str, scan.directories)]),
    }


def rescue_stream_page(site: Site, query: Query, scan: Rescue, name: str) -> dict[str, Any]:
    """Return the comparison of one stream. Raises NotFoundError."""
    drift = scan.drift(name)
    words = ["jstream", "drift", scan.result.layout, *map(str, scan.directories), "--stream", name]
    return {
        "comparison": drift.to_json(),
        "agrees": drift.agrees,
        "verdict": drift.verdict(),
        "conflicts": [conflict.describe() for conflict in drift.conflicts[:CONFLICT_COUNT_MAX]],
        "conflicts_left_out": max(0, len(drift.conflicts) - CONFLICT_COUNT_MAX),
        "notes": list(drift.notes),
        "command": join(words),
    }


def comparison(scan: Rescue, stream: str | None) -> Mapping[str, Any]:
    """Return the shape of `jstream drift --json`, of one stream or of all that were compared. Raises NotFoundError."""
    return drifts_json(_chosen(scan, stream))


def picture(scan: Rescue, stream: str | None) -> str:
    """Return the pictures as one page that refers to nothing outside. Raises NotFoundError."""
    from spark_stream.pictures import replica_map_page

    return replica_map_page(_chosen(scan, stream))


def _chosen(scan: Rescue, stream: str | None) -> list[Drift]:
    return [scan.drift(stream)] if stream else list(scan.result.drifts.values())
