"""The streaming source as Spark 4.0 and 4.1 call it, which say neither where a batch begins nor how much it may take.

`EarlyQuery` makes the calls of a run in the order in which Spark 4.0.5 and 4.1.4 were seen to make them, each run with
a new reader, and with the offsets as text in a log, as the checkpoint has them.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema

from datasource import settings, source
from datasource.stream_reader import EarlyStreamReader
from storage_core import Store
from storage_core.errors import DataLossError
from storage_core.schema import READ_SCHEMA

SCHEMA = pa.schema([READ_SCHEMA.field("sequence")])
EARLIEST = {"startingOffsets": "earliest"}


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (settings, source):
        monkeypatch.setattr(module, "SAYS_LIMITS", False)


@dataclass
class EarlyQuery:
    """A query with its checkpoint: `offsets` as they were logged, of which the first `commits` batches are finished."""

    store: Store
    options: dict[str, str]
    offsets: list[str] = field(default_factory=list)
    commits: int = 0

    def reader(self, **changed: str) -> Any:
        texts = {"path": self.store.paths[0], "stream": "ORDERS", **self.options, **changed}
        return source.stream_reader(CaseInsensitiveDict(texts), from_arrow_schema(SCHEMA))

    def run(self, available_now: bool = False, killed_in: int | None = None, **changed: str) -> list[list[int]]:
        """Return the sequences of each batch; the driver dies in `killed_in`, when its offsets are logged."""
        reader = self.reader(**changed)
        assert isinstance(reader, EarlyStreamReader)
        try:
            batches = []
            for batch in self.batches(reader, killed_in):
                batches.append(batch)
                if available_now:
                    break
            return batches
        finally:
            reader.stop()

    def batches(self, reader: Any, killed_in: int | None) -> Iterator[list[int]]:
        if self.offsets:
            newest = json.loads(self.offsets[-1])
            assert reader.partitions(newest, newest) == []
        if len(self.offsets) > self.commits:
            yield self._read(reader, self._start(reader), json.loads(self.offsets[-1]))
        while True:
            end = reader.latestOffset()
            start = json.loads(self.offsets[-1]) if self.offsets else reader.initialOffset()
            if end == start:
                return
            self.offsets.append(json.dumps(end))
            if len(self.offsets) - 1 == killed_in:
                return
            if self.commits:
                reader.commit(start)
            yield self._read(reader, self._start(reader), end)

    def run_on_newer_spark(self, is_finished: bool) -> list[int]:
        """Return the sequences of the next batch, as Spark from 4.2 on asks for them; the driver dies behind it."""
        with pytest.MonkeyPatch.context() as patch:
            for module in (settings, source):
                patch.setattr(module, "SAYS_LIMITS", True)
            reader = self.reader()
        try:
            start = json.loads(self.offsets[-1])
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            self.offsets.append(json.dumps(end))
            reader.commit(start)
            rows = self._read(reader, start, end)
        finally:
            reader.stop()
        self.commits -= not is_finished
        return rows

    def _start(self, reader: Any) -> Any:
        return json.loads(self.offsets[self.commits - 1]) if self.commits else reader.initialOffset()

    def _read(self, reader: Any, start: Any, end: Any) -> list[int]:
        parts = reader.partitions(start, end)
        rows = [row for part in parts for batch in reader.read(part) for row in batch["sequence"].to_pylist()]
        self.commits += 1
        return rows


def publish(store: Store, count: int) -> None:
    for _ in range(count):
        store.stream("ORDERS").publish("orders.new", b"x")


def ack_floor(store: Store) -> int:
    floor: int = store.stream("ORDERS").consumer("etl").info()["ack_floor"]["stream_seq"]
    return floor


def test_limits_count_from_where_the_last_batch_ended(store: Store) -> None:
    query = EarlyQuery(store, EARLIEST | {"maxOffsetsPerTrigger": "4", "trigger": "processingTime"})
    publish(store, 10)
    assert query.run() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    publish(store, 5)
    assert query.run() == [[11, 12, 13, 14], [15]]
    assert query.run() == []


def test_available_now_is_one_batch_without_limits(store: Store) -> None:
    query = EarlyQuery(store, EARLIEST | {"maxOffsetsPerTrigger": "4", "trigger": "availableNow"})
    publish(store, 10)
    assert query.run(available_now=True) == [list(range(1, 11))]
    publish(store, 3)
    assert query.run(available_now=True) == [[11, 12, 13]]


def test_process_all_available_goes_by_limits_up_to_what_was_there_at_the_start(store: Store) -> None:
    query = EarlyQuery(store, EARLIEST | {"maxOffsetsPerTrigger": "4", "trigger": "processAllAvailable"})
    publish(store, 6)
    reader = query.reader()
    try:
        batches = query.batches(reader, None)
        first = next(batches)
        publish(store, 5)
        assert [first, *batches] == [[1, 2, 3, 4], [5, 6]]
    finally:
        reader.stop()
    assert query.run() == [[7, 8, 9, 10], [11]]


@pytest.mark.parametrize("killed_in", [0, 1])
def test_batch_that_was_not_finished_is_repeated_and_the_query_goes_on_behind_it(store: Store, killed_in: int) -> None:
    query = EarlyQuery(store, EARLIEST | {"maxOffsetsPerTrigger": "4", "trigger": "processingTime"})
    publish(store, 10)
    before = query.run(killed_in=killed_in)
    publish(store, 2)
    after = query.run()
    assert before + after == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]


def test_checkpoint_moves_to_a_newer_spark_and_back(store: Store) -> None:
    query = EarlyQuery(store, EARLIEST | {"consumer": "etl"})
    publish(store, 3)
    assert query.run() == [[1, 2, 3]]
    for first, is_finished in ((4, True), (7, False)):
        publish(store, 2)
        assert query.run_on_newer_spark(is_finished) == [first, first + 1]
        publish(store, 1)
        assert query.run() == [[first, first + 1]][is_finished:] + [[first + 2]]
    assert ack_floor(store) == 9
    publish(store, 1)
    assert query.run_on_newer_spark(is_finished=True) == [10]


def test_query_that_starts_at_the_end_reads_what_comes_after_its_start(store: Store) -> None:
    publish(store, 3)
    query = EarlyQuery(store, {})
    reader = query.reader()
    try:
        assert reader.latestOffset() == reader.initialOffset()
        publish(store, 2)
        ends = [reader.latestOffset() for _ in range(3)]
        assert ends[0] == reader.initialOffset()  # asked again at once, as by a report: it is not finished
        assert ends[1]["ORDERS"]["sequence"] == 6
    finally:
        reader.stop()


def test_consumer_is_acknowledged_behind_each_batch_and_stays_where_it_is_at_a_restart(store: Store) -> None:
    options = EARLIEST | {"consumer": "etl", "maxOffsetsPerTrigger": "4", "trigger": "processingTime"}
    query = EarlyQuery(store, options)
    publish(store, 10)
    query.run()
    assert ack_floor(store) == 10
    publish(store, 4)
    assert query.run() == [[11, 12, 13, 14]]
    assert ack_floor(store) == 14
    fresh = EarlyQuery(store, {"consumer": "etl"})
    publish(store, 1)
    assert fresh.run() == [[15]]


def test_order_of_the_wrapper_is_refused_before_anything_is_moved(store: Store) -> None:
    query = EarlyQuery(store, EARLIEST | {"consumer": "etl"})
    publish(store, 10)
    query.run(available_now=True)
    publish(store, 1)
    query.run(available_now=True)
    assert ack_floor(store) == 10
    publish(store, 4)
    reader, newest = query.reader(startingOffsets="latest"), json.loads(query.offsets[-1])
    try:
        reader.latestOffset()
        with pytest.raises(RuntimeError, match="triggerAvailableNowWrapper.enabled=false"):
            reader.partitions(newest, newest)
    finally:
        reader.stop()
    assert ack_floor(store) == 10
    assert query.run(available_now=True) == [[12, 13, 14, 15]]


def test_first_run_in_the_order_of_the_wrapper_reads_each_message_once(store: Store) -> None:
    publish(store, 3)
    reader = EarlyQuery(store, EARLIEST | {"consumer": "etl"}).reader()
    try:
        target, initial = reader.latestOffset(), reader.initialOffset()
        publish(store, 2)
        assert reader.latestOffset() == target  # Spark's report, before the batch is planned: it is not finished
        assert ack_floor(store) == 0
        assert len(reader.partitions(initial, target)) == 1
        assert reader.latestOffset() != target
        assert ack_floor(store) == 3
    finally:
        reader.stop()


def test_an_error_of_a_running_query_shows_its_code(store: Store) -> None:
    publish(store, 3)
    query = EarlyQuery(store, EARLIEST)
    query.run()
    store.delete_stream("ORDERS")
    store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    with pytest.raises(DataLossError, match=r"^\[JSTREAM_DATA_LOSS\] .* was deleted and made again"):
        query.run()


def test_limit_without_a_trigger_is_refused_by_name(store: Store) -> None:
    reader = source.stream_reader(
        CaseInsensitiveDict({"path": store.paths[0], "stream": "ORDERS", "maxBytesPerTrigger": "10"}),
        from_arrow_schema(SCHEMA),
    )
    with pytest.raises(ValueError, match="option 'trigger' is missing: a limit per trigger is for"):
        reader.latestOffset()
