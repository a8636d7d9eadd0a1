"""Seeded lives of drivers that run one streaming query, each with its own checkpoint: copies, older ones, crashes.

The writers are the real ones, driven as Spark drives them: made for the tasks, and anew for the commit in the process
that does nothing else. What each commit must come to follows from what was stored before, and is checked.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema

from datasource import source
from datasource.spark_versions import ReadAllAvailable
from datasource.stream_writer import BATCH_ID, QUERY_ID, RUN_ID
from storage_core import Store
from storage_core.errors import FencedError, RequirementError

SINK_WORKER = "pyspark.sql.worker.python_streaming_sink_runner"
BATCH_COUNT_MAX = 12  # fewer than a store remembers
QUERY = "the query"


@dataclass
class Checkpoint:
    ends: list[int] = field(default_factory=list)  # of batches that were planned
    finished: int = 0

    def copy(self) -> "Checkpoint":
        return Checkpoint(list(self.ends), self.finished)


@dataclass
class Driver:
    checkpoint: Checkpoint
    run: str


class Life:
    """A store with the stream S, and what has to be in it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.store = Store.create(folder / "store")
        self.store.add_stream({"name": "S"})
        self.row_count = 0  # of the source
        self.batches: list[list[int]] = []  # as stored
        self.current, self.fenced = "", set[str]()
        self.run_count = 0
        self.drivers = [self.driver(Checkpoint())]
        self.kept = [Checkpoint()]  # older copies

    def driver(self, checkpoint: Checkpoint) -> Driver:
        self.run_count += 1
        return Driver(checkpoint, f"run {self.run_count}")

    # --- one batch

    def writer(self, driver: Driver, **options: str) -> Any:
        given = CaseInsensitiveDict({"path": self.store.paths[0], "stream": "S", **options})
        return source.stream_writer(given, from_arrow_schema(pa.schema([("data", pa.string())])), False)

    def stage(self, driver: Driver, number: int, rows: list[int]) -> list[Any]:
        """Return what the tasks say that these rows were divided among, in any order."""
        rows = self.random.sample(rows, len(rows))
        writer, messages, cut = self.writer(driver), [], self.random.randrange(len(rows) + 1)
        for partition, part in enumerate((rows[:cut], rows[cut:])):
            with in_task(partition, {QUERY_ID: QUERY, BATCH_ID: str(number), RUN_ID: driver.run}):
                batch = pa.record_batch({"data": [str(row) for row in part]}, pa.schema([("data", pa.string())]))
                messages.append(writer.write(iter([batch])))
        return messages

    def batch(self, driver: Driver) -> None:
        checkpoint = driver.checkpoint
        number = checkpoint.finished
        begin = checkpoint.ends[number - 1] if number else 0
        if len(checkpoint.ends) == number:
            if begin == self.row_count or number == BATCH_COUNT_MAX:
                return
            checkpoint.ends.append(self.random.randint(begin + 1, self.row_count))
        rows = list(range(begin, checkpoint.ends[number]))
        if number < len(self.batches) and self.random.random() < 0.1:
            rows = [row + 10_000 for row in rows]  # a transformation that gives other rows each time
        messages = self.stage(driver, number, rows)
        dies = self.random.random()
        if dies < 0.1:
            self.restart(driver)
        elif dies < 0.2:
            self.abort(driver, messages, number)
            self.restart(driver)
        elif self.commit(driver, messages, number, rows):
            if dies < 0.4:  # before Spark's own note of it
                self.restart(driver)
            else:
                checkpoint.finished += 1
        else:
            self.abort(driver, messages, number)
            self.drivers.remove(driver)
            best = max(
                (driver.checkpoint for driver in self.drivers),
                key=lambda checkpoint: checkpoint.finished,
                default=Checkpoint(),
            )
            self.drivers.append(self.driver(best.copy()))

    def commit(self, driver: Driver, messages: list[Any], number: int, rows: list[int]) -> bool:
        """Return whether the batch is stored, which it has to be exactly if the model says so."""
        if number < len(self.batches):
            is_right = self.batches[number] == rows
        else:
            is_right = driver.run not in self.fenced
        try:
            with in_sink_worker():
                self.writer(driver).commit(messages, number)
        except FencedError:
            assert not is_right, f"{driver.run}: batch {number}, {rows}, was refused"
            return False
        assert is_right, f"{driver.run}: batch {number}, {rows}, was not refused"
        if number == len(self.batches):
            self.batches.append(rows)
        if driver.run not in self.fenced and driver.run != self.current:
            self.fenced.add(self.current)
            self.current = driver.run
        return True

    def abort(self, driver: Driver, messages: list[Any], number: int) -> None:
        with in_sink_worker():
            self.writer(driver).abort(messages, number)

    def restart(self, driver: Driver) -> None:
        self.drivers[self.drivers.index(driver)] = self.driver(driver.checkpoint)

    # --- its course

    def live(self, step_count: int = 30) -> None:
        for _ in range(step_count):
            self.row_count += self.random.randrange(4)
            what = self.random.random()
            if what < 0.15 and len(self.drivers) < 3:
                self.drivers.append(self.driver(self.random.choice(self.drivers).checkpoint.copy()))
            elif what < 0.25:
                self.kept.append(self.random.choice(self.drivers).checkpoint.copy())
            elif what < 0.3 and len(self.drivers) < 3:
                self.drivers.append(self.driver(self.random.choice(self.kept).copy()))
            else:
                self.batch(self.random.choice(self.drivers))
            self.check()
        self.end()

    def check(self) -> None:
        table = self.store.stream("S").read(columns=["data"]).read_all()
        stored = sorted(int(one) for one in table["data"].to_pylist())
        assert stored == sorted(row for batch in self.batches for row in batch)
        assert stored == list(range(len(stored))), "messages of the source are missing, or are there twice"

    def end(self) -> None:
        """Two batches are not one; whatever a failed batch left is swept though its stream, or the store, is gone."""
        driver, number = self.driver(self.drivers[0].checkpoint), len(self.batches)
        first, second = self.stage(driver, number, [7]), self.stage(driver, number, [8])
        later = [replace(one, batch_id=str(number + 1)) for one in first]
        for mixed in ([*first, *second], [first[0], later[1]], later):
            with pytest.raises(RequirementError), in_sink_worker():
                self.writer(driver).commit(mixed, number)
        path = Path(self.store.paths[0])
        path.rename(path.with_name("away"))
        self.abort(driver, first, number)
        path.with_name("away").rename(path)
        self.store.delete_stream("S")
        before = blocks(path)
        self.abort(driver, first, number)
        self.abort(driver, second, number)
        assert len(before - blocks(path)) == 2, "blocks of batches that were given up are left"


@contextmanager
def in_task(partition: int, properties: dict[str, str]) -> Iterator[None]:
    """Be in the task of this partition, which Spark tells these properties."""
    context = TaskContext()
    context._partitionId, context._localProperties = partition, properties
    TaskContext._setTaskContext(context)
    try:
        yield
    finally:
        TaskContext._taskContext = None


@contextmanager
def in_sink_worker() -> Iterator[None]:
    """Be the process in which Spark commits and aborts batches."""
    with patch.dict(sys.modules, {SINK_WORKER: ModuleType(SINK_WORKER)}):
        yield


def blocks(path: Path) -> set[Path]:
    return set(path.rglob("*.blk"))


def replaces_one_stream_or_says_why(folder: Path) -> None:
    """Overwrite with rows that name their streams: none of them may keep what it had."""
    store = Store.create(folder / "replaced")
    for name in ("A", "B"):
        store.add_stream({"name": name})
    schema = pa.schema([("stream", pa.string()), ("data", pa.string())])
    options = CaseInsensitiveDict({"path": store.paths[0]})
    for make in (source.writer, source.stream_writer):
        with pytest.raises(ValueError, match="option 'stream' is missing"):
            make(options, from_arrow_schema(schema), True)


def rows_between(reader: Any, start: Any, end: Any) -> list[bytes]:
    """Read a batch as its tasks do; the reader is stopped after it."""
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    reader.stop()
    return [value for batch in batches for value in batch.column("data").to_pylist()]


def replays_the_range_of_its_plan(folder: Path) -> None:
    """More messages come before a batch is repeated, in a process that begins by itself somewhere else."""
    store = Store.create(folder / "replayed")
    stream = store.add_stream({"name": "S", "subjects": ["s"]})
    stream.append([{"subject": "s", "data": b"0"}])
    options = CaseInsensitiveDict({"path": store.paths[0], "stream": "S", "startingOffsets": "latest"})
    schema = from_arrow_schema(pa.schema([("data", pa.binary())]))
    reader = source.stream_reader(options, schema)
    start = reader.initialOffset()
    stream.append([{"subject": "s", "data": data} for data in (b"1", b"2")])
    end = reader.latestOffset(start, ReadAllAvailable())
    assert rows_between(reader, start, end) == [b"1", b"2"]
    stream.append([{"subject": "s", "data": b"3"}])
    reader = source.stream_reader(options, schema)
    later = reader.initialOffset()
    assert rows_between(reader, later, end) == [b"1", b"2"], "Spark asks for the beginning anew"
    reader = source.stream_reader(options, schema)
    assert rows_between(reader, end, reader.latestOffset(end, ReadAllAvailable())) == [b"3"]


def replays_by_the_filters_of_its_plan(folder: Path) -> None:
    """A consumer is removed and made again with other filters before a batch is repeated."""
    store = Store.create(folder / "filtered")
    stream = store.add_stream({"name": "S", "subjects": ["s.*"]})
    stream.append(pa.table({"subject": ["s.a", "s.b", "s.a"], "data": ["1", "2", "3"]}))
    stream.add_consumer({"name": "etl", "filter_subjects": ["s.a"]})
    options = CaseInsensitiveDict({"path": store.paths[0], "stream": "S", "consumer": "etl"})
    schema = from_arrow_schema(pa.schema([("data", pa.binary())]))

    reader = source.stream_reader(options, schema)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert rows_between(reader, start, end) == [b"1", b"3"]
    stream.consumer("etl").delete()
    stream.add_consumer({"name": "etl", "filter_subjects": ["s.b"]})
    assert rows_between(source.stream_reader(options, schema), start, end) == [b"1", b"3"]
