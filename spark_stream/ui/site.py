"""The store that is shown: opened for reading, looked at once a second for all viewers together.

A page asks for the newest scan. While somebody looks, a thread makes one every second, or as seldom as keeps scanning
below a tenth of one processor; without viewers nothing runs. A store that cannot be read now is opened anew the next
time: it may have been repaired, or be another one by then.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from spark_stream.store_scan import Scan, scan_of
from spark_stream.ui import mirrors
from spark_stream.ui.mirrors import MirrorLags
from spark_stream.ui.replays import Replays
from storage_core import Store
from storage_core.errors import StorageError

log = logging.getLogger("jstream")
INTERVAL_S = 1.0
SHARE_MAX = 0.1  # of one processor, for scans
FRESH_S = 0.5  # a scan counts for so long if the metadata did not move: viewers all ask when a scan is announced
CHEAP_S = 0.1  # of a processor: a scan that takes no more is made for a page that finds the newest one outdated
STALE_S = 15.0  # older than this it is shown to nobody: nobody has looked for a while
VIEWER_S = 15.0  # who asked for a page is a viewer for so long
HEARTBEAT_S = 10.0  # the newest scan is announced at least so often: ages grow also where nothing happens
PIPELINES_FRESH_S = 5.0  # each opens a store
HISTORY_COUNT = 720  # points of a consumer's lag
HISTORY_STEP_S = 5.0
READ_ERRORS = (StorageError, OSError, ValueError)


class Seen(NamedTuple):
    """Where a consumer was at a time."""

    time_s: float  # since 1970
    lag: int  # messages
    delivered: int
    ack_floor: int


class Site:
    """What all pages share. Used by many threads."""

    def __init__(
        self,
        paths: Sequence[str],
        fresh_s: float = FRESH_S,
        storage_options: Mapping[str, str] | None = None,
        allows_changes: bool = False,
        pipelines: Sequence[Path] = (),
        rescues: Sequence[Path] = (),
    ) -> None:
        """Open the store; with 0 for `fresh_s` each page looks anew. Raises what `Store.open` does."""
        self.allows_changes, self.pipelines, self.rescues = allows_changes, tuple(pipelines), tuple(rescues)
        self.paths, self._fresh_s, self._storage_options = tuple(paths), fresh_s, storage_options
        self.command_store = quote(",".join(self.paths))  # as command lines have it
        self._opening = threading.Lock()
        self._store: Store | None = self._open()
        self._scanning = threading.Lock()
        self._scan: Scan | None = None
        self._pipelines: tuple[float, list[dict[str, Any]]] = (-1e9, [])  # when they were looked at, and as what
        self.remembered: tuple[Scan, dict[str, Any]] | None = None  # a scan, and what health.py makes of it
        self.mirror_lags = MirrorLags(mirrors.FRESH_S * bool(fresh_s))
        self._scan_s = 0.0  # processor time that the last scan took
        self._scanned_at = self._announced_at = self._asked_at = -1e9
        self._error = ""
        self._number = 0
        self._seen: dict[tuple[str, str], deque[Seen]] = {}
        self._stopping = threading.Event()
        self.replays = Replays(self.pipelines, self.paths, storage_options or {}, self._stopping.is_set)
        self._viewers: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._thread = threading.Thread(target=self._run, name="jstream-ui-scan", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the scans, and what viewers listen to."""
        self._stopping.set()
        self._wake_viewers()

    # --- the store

    def store(self) -> Store:
        """Return the store, opened anew if it could not be read before. Raises what `Store.open` does."""
        with self._opening:
            if self._store is None:
                self._store = self._open()
            return self._store

    def _open(self) -> Store:
        return Store.open(list(self.paths), read_only=True, storage_options=self._storage_options)

    def writable(self) -> Store:
        """Return the store opened for one change. Raises what `Store.open` does."""
        assert self.allows_changes
        return Store.open(list(self.paths), storage_options=self._storage_options)

    def forget(self) -> None:
        """Open the store anew the next time: another one may lie there."""
        with self._opening:
            self._store = None

    def pipeline_statuses(self) -> list[dict[str, Any]]:
        """Return how each pipeline that was named stands, in short; looked at once in a while for all viewers."""
        looked_at, statuses = self._pipelines
        if self.pipelines and time.monotonic() - looked_at >= PIPELINES_FRESH_S * bool(self._fresh_s):
            from spark_stream.pipelines.status import short_status  # with Spark's Python: for those who have pipelines

            statuses = [short_status(file, ",".join(self.paths)) for file in self.pipelines]
            self._pipelines = time.monotonic(), statuses
        return statuses

    # --- scans

    def scan(self) -> Scan:
        """Return a look at the store that is new enough to be shown. Raises what reading raises."""
        self._asked_at = time.monotonic()
        scan = self._scan
        age_s = self._asked_at - self._scanned_at
        if scan is not None and self._fresh_s and age_s < STALE_S:
            index = self._index()
            if index is not None and self._scan_s > CHEAP_S:
                return scan  # the thread makes the next one
            if index == scan.survey.view.index and age_s < self._fresh_s:
                return scan
        return self.look()

    def _index(self) -> int | None:
        """Return where the metadata is; None if it cannot be read, or another store lies there now."""
        try:
            return self.store().view().index
        except READ_ERRORS:
            return None

    def look(self) -> Scan:
        """Look at the store now. Raises what reading raises."""
        with self._scanning:
            began = time.thread_time()
            try:
                scan = self._made(self.store())
            except READ_ERRORS:
                self.forget()
                try:  # another store may lie there by now
                    scan = self._made(self.store())
                except READ_ERRORS as error:
                    self.forget()
                    if str(error) != self._error:
                        self._number += 1
                    self._error, self._scan = str(error), None
                    raise
            self._error, self._scan = "", scan
            self._scanned_at = time.monotonic()
            self._scan_s = time.thread_time() - began
            return scan

    def _made(self, store: Store) -> Scan:
        scan = scan_of(store)
        self._remember(scan.consumers, scan.time_ns / 1e9)
        if self._scan is None or _differ(self._scan, scan):
            self._number += 1
        return replace(scan, number=self._number)

    def _remember(self, consumers: Sequence[Mapping[str, Any]], now_s: float) -> None:
        places = {
            (consumer["stream_name"], consumer["name"]): Seen(
                round(now_s, 1),
                consumer["lag"]["messages"],
                consumer["delivered"]["stream_seq"],
                consumer["ack_floor"]["stream_seq"],
            )
            for consumer in consumers
        }
        for key in self._seen.keys() - places.keys():
            del self._seen[key]
        for key, place in places.items():
            known = self._seen.setdefault(key, deque(maxlen=HISTORY_COUNT))
            if not known or now_s - known[-1].time_s >= HISTORY_STEP_S:
                known.append(place)

    def announce(self) -> None:
        """Let viewers look again: something was done from here."""
        self._number += 1
        self._wake_viewers()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def seen(self, stream: str, consumer: str) -> list[Seen]:
        """Return where this process saw a consumer; oldest first."""
        return list(self._seen.get((stream, consumer), ()))

    def _run(self) -> None:
        while not self._stopping.wait(max(INTERVAL_S, self._scan_s / SHARE_MAX)):
            now = time.monotonic()
            if not self._viewers and now - self._asked_at > VIEWER_S:
                continue
            number = self._number
            if now - self._scanned_at >= INTERVAL_S / 2:
                try:
                    self.look()
                except READ_ERRORS as error:
                    log.debug("the store cannot be read now: %s", error)
            if self._number != number or now - self._announced_at >= HEARTBEAT_S:
                self._announced_at = now
                self._wake_viewers()

    # --- viewers that wait for scans

    def _wake_viewers(self) -> None:
        for event, loop in list(self._viewers.items()):
            with suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(event.set)

    @property
    def viewer_count(self) -> int:
        return len(self._viewers)

    @contextmanager
    def viewer(self) -> Iterator[AsyncIterator[int]]:
        """Count one more viewer, and give the numbers of scans that it should look at again; they end with `stop`."""
        event = asyncio.Event()
        self._viewers[event] = asyncio.get_running_loop()
        try:
            yield self._changes(event)
        finally:
            del self._viewers[event]

    async def _changes(self, event: asyncio.Event) -> AsyncIterator[int]:
        while not self._stopping.is_set():
            yield self._number
            await event.wait()
            event.clear()


def _differ(before: Scan, scan: Scan) -> bool:
    """Return whether viewers would see something else, but for ages."""
    if before.survey.view.index != scan.survey.view.index:
        return True
    if before.cluster != scan.cluster or before.streams != scan.streams:
        return True
    return [*map(_without_age, before.consumers)] != [*map(_without_age, scan.consumers)]


def _without_age(consumer: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in consumer.items() if key not in ("lag", "pause_remaining")}
    return {**kept, "messages": consumer["lag"]["messages"]}
