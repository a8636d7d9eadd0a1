"""A streaming query of a test's session: run, stopped, run again, with the rows of each of its batches."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasource.spark_versions import SAYS_LIMITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

Row = tuple[str, int]
TIMEOUT_S = 240
NOT_STARTED = "Python worker failed to connect back"  # Spark gives the process of a source ten seconds to start
LAUNCHES_MAX = 8  # a busy machine may need more than that
AVAILABLE_NOW = {"availableNow": True}


@dataclass
class Query:
    """A query over one checkpoint, and the rows of each of its batches, as often as they were delivered."""

    spark: "SparkSession"
    path: str
    checkpoint: Path
    options: dict[str, Any]
    batches: dict[int, list[list[Row]]] = field(default_factory=dict)
    running: "StreamingQuery | None" = None
    launch: Callable[[], Any] = lambda: None
    each: Callable[["DataFrame", int], None] = lambda frame, number: None

    def start(self, trigger: dict[str, Any] | None = AVAILABLE_NOW, **changed: Any) -> "Query":
        if not SAYS_LIMITS:  # then users say which trigger the query has
            has_interval = trigger is None or "processingTime" in trigger
            changed = {"trigger": "processingTime" if has_interval else "availableNow", **changed}
        options = {name: one for name, one in {**self.options, **changed}.items() if one is not None}
        frame = self.spark.readStream.format("jstream").options(**options).load(self.path)
        writer = frame.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self.checkpoint))
        self.batches = {}
        self.launch = (writer if trigger is None else writer.trigger(**trigger)).start
        self.running = self.launch()
        return self

    def _patiently(self, call: Callable[["StreamingQuery"], Any]) -> Any:
        """Return what `call` returns of the query, which is launched again if its source could not start in time."""
        for launches_left in reversed(range(LAUNCHES_MAX)):
            try:
                return call(self.running)
            except Exception as error:
                if NOT_STARTED not in str(error) or not launches_left:
                    raise
            self.running = self.launch()
        raise AssertionError

    def _keep(self, frame: "DataFrame", number: int) -> None:
        rows = [(row.stream, row.sequence) for row in frame.select("stream", "sequence").collect()]
        self.batches.setdefault(number, []).append(rows)
        self.each(frame, number)

    def wait(self) -> "Query":
        """Wait for the end; raises what the query failed with."""
        assert self._patiently(lambda running: running.awaitTermination(TIMEOUT_S))
        return self

    def caught_up(self) -> "Query":
        self._patiently(lambda running: running.processAllAvailable())
        return self

    def stop(self) -> "Query":
        assert self.running is not None
        self.running.stop()
        return self

    def run(self, **changed: Any) -> list[int]:
        """Return the sequences of ORDERS that a run delivers until nothing is left."""
        return self.start(**changed).wait().sequences()

    def sequences(self, stream: str = "ORDERS") -> list[int]:
        runs = [rows for number in sorted(self.batches) for rows in self.batches[number]]
        return [sequence for rows in runs for name, sequence in rows if name == stream]

    def counts(self) -> list[int]:
        return [len(rows) for number in sorted(self.batches) for rows in self.batches[number] if rows]

    def files(self, kind: str) -> list[Path]:
        """Return the files of `offsets` or `commits`, oldest first."""
        return sorted(
            (one for one in (self.checkpoint / kind).iterdir() if one.name.isdigit()), key=lambda o: int(o.name)
        )

    def forget_commit(self) -> None:
        """Take away the commit of the last batch, as if the driver had died before it."""
        remove(self.files("commits")[-1])


def remove(file: Path) -> None:
    file.unlink()
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
