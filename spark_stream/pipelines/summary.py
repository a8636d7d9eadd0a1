"""What a run did: counted batch by batch, as one JSON line."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

from spark_stream.pipelines.state import now_text
from storage_core import notebook


@dataclass(slots=True)
class Summary:
    """The counts of one run. `first` and `end`: for each stream the sequences [first, end) that it took."""

    pipeline: str
    mode: str
    rows_in: int = 0
    rows_out: int = 0
    rows_dead: int = 0
    rows_late: int = 0  # left out by the watermark, as Spark counts them: rows of one group in a task are one
    batches: int = 0
    first: dict[str, int] = field(default_factory=dict)
    end: dict[str, int] = field(default_factory=dict)
    ok: bool = False
    error: str = ""
    skipped: bool = False  # because another run has the checkpoint
    stopped: str = ""  # the signal that ended the run before everything was read
    query: str = ""
    started: str = field(default_factory=now_text)
    duration_s: float = 0.0
    _began_s: float = field(default_factory=time.monotonic)

    def add_batch(self, rows_in: int, rows_out: int, rows_dead: int, rows_late: int = 0) -> None:
        self.rows_in += rows_in
        self.rows_out += rows_out
        self.rows_dead += rows_dead
        self.rows_late += rows_late
        self.batches += 1

    def cover(self, first: dict[str, int], end: dict[str, int]) -> None:
        """Note the sequences [first, end) of one batch, stream by stream."""
        for stream, sequence in end.items():
            self.first.setdefault(stream, first.get(stream, sequence))
            self.end[stream] = sequence

    def finish(self, ok: bool, error: str = "", stopped: str = "") -> None:
        self.ok, self.error, self.stopped = ok, error, stopped
        self.duration_s = round(time.monotonic() - self._began_s, 3)

    def skip(self) -> None:
        """Note that another run is at work, and that this is as it should be."""
        self.finish(True)
        self.skipped = True

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "mode": self.mode,
            "ok": self.ok,
            "skipped": self.skipped,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "rows_dead": self.rows_dead,
            "rows_late": self.rows_late,
            "batches": self.batches,
            "from": self.first,
            "to": self.end,
            "started": self.started,
            "duration_s": self.duration_s,
            "query": self.query or None,
            "stopped": self.stopped or None,
            "error": self.error or None,
        }

    def _repr_html_(self) -> str:
        outcome = "skipped: another run is at work" if self.skipped else "done" if self.ok else f"failed: {self.error}"
        took = [f"{stream}: {self.first[stream]:,} to {end - 1:,}" for stream, end in self.end.items()]
        return notebook.facts(
            f"Run of {self.pipeline}",
            [
                ("Outcome", notebook.marked("current" if self.ok else "damaged", outcome)),
                *([("Stopped", self.stopped)] if self.stopped else []),
                ("Rows in", f"{self.rows_in:,}"),
                ("Rows out", f"{self.rows_out:,}"),
                ("Rows to dead letters", f"{self.rows_dead:,}"),
                *([("Rows too late", f"{self.rows_late:,}")] if self.rows_late else []),
                ("Sequences", took or "none"),
                ("Batches", f"{self.batches:,}"),
                ("Duration", f"{self.duration_s:,.1f} s"),
            ],
        )

    def line(self) -> str:
        return json.dumps(self.to_json()) + "\n"
