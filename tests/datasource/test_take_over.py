"""A driver that moves: what it may write from another host, and that nobody goes on where it came from.

The other host is an environment with a lock domain of its own, which takes the store over; this process is then the
one that is refused.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema

from datasource import source
from datasource.settings import ReadSettings
from datasource.stream_writer import BATCH_ID, QUERY_ID, RUN_ID
from storage_core import Store
from storage_core.errors import DataLossError, OtherHostError
from storage_core.schema import READ_SCHEMA
from storage_core.store.environment import REAL

from .conftest import Driver, travel
from .test_stream_writer import task

Make = Callable[..., pa.Table]
ELSEWHERE = replace(REAL, lock_domain=lambda: "another machine")
SEQUENCE = pa.schema([READ_SCHEMA.field("stream"), READ_SCHEMA.field("sequence")])


@pytest.fixture
def move_away(store: Store) -> Callable[[], None]:
    """Return what lets another host write the store."""

    def move() -> None:
        Store.open(store.paths, env=ELSEWHERE, take_over=True).close()

    return move


def count(store: Store) -> int:
    return store.stream("ORDERS").state().message_count


def moves(store: Store) -> int:
    return sum(event["kind"] == "took_over" for event in store.events())


# --- batches


def test_a_batch_write_takes_the_store_over_if_it_is_told_to(
    store: Store, driver: Driver, orders: Make, move_away: Any
) -> None:
    move_away()
    with pytest.raises(OtherHostError) as caught:
        driver.write(orders(3), stream="ORDERS")
    assert "takeOver" in str(caught.value)
    assert count(store) == 0
    driver.write(orders(3), stream="ORDERS", takeOver=True)
    driver.write(orders(3), stream="ORDERS")
    assert (count(store), moves(store)) == (6, 2)


def test_a_batch_write_that_was_taken_over_from_does_not_take_the_store_back(
    store: Store, driver: Driver, orders: Make, move_away: Any
) -> None:
    writer = driver.writer(orders(0).schema, stream="ORDERS", takeOver=True)
    message = travel(writer).write(iter(orders(3).to_batches()))
    move_away()
    with pytest.raises(OtherHostError):
        travel(writer).commit([message])
    assert (count(store), moves(store)) == (0, 1)


def test_a_batch_read_makes_its_consumer_from_another_host_if_it_is_told_to(
    store: Store, driver: Driver, orders: Make, move_away: Any
) -> None:
    driver.write(orders(3), stream="ORDERS")
    move_away()
    assert driver.sequences(stream="ORDERS") == [1, 2, 3]
    with pytest.raises(OtherHostError):
        driver.sequences(stream="ORDERS", consumer="etl")
    assert driver.sequences(stream="ORDERS", consumer="etl", takeOver=True) == [1, 2, 3]
    assert store.stream("ORDERS").consumers() == ["etl"]


def test_a_read_that_writes_nothing_takes_nothing_over() -> None:
    with pytest.raises(ValueError, match="takeOver"):
        ReadSettings.parse({"path": "/x", "stream": "S", "takeOver": "true"})


# --- streaming writes


class Run:
    """One run of a streaming write, a writer for the tasks of each batch and one for its commit."""

    def __init__(self, driver: Driver, run: str, **options: Any) -> None:
        self._driver, self._run, self._options = driver, run, {"stream": "ORDERS", **options}

    def store(self, batch: int, rows: pa.Table) -> None:
        make = self._driver.options(self._options)
        properties = {QUERY_ID: "6f9619ff-8b86-d011-b42d-00c04fc964ff", BATCH_ID: str(batch), RUN_ID: self._run}
        with task(0, properties):
            writer = source.stream_writer(make, from_arrow_schema(rows.schema), False)
            message = travel(travel(writer).write(iter(rows.to_batches())))
        source.stream_writer(make, from_arrow_schema(rows.schema), False).commit([message], batch)


def test_a_streaming_write_takes_the_store_over_with_its_first_batch_and_never_again(
    store: Store, driver: Driver, orders: Make, move_away: Any
) -> None:
    Run(driver, "run-1").store(0, orders(2))
    move_away()
    with pytest.raises(OtherHostError):
        Run(driver, "run-2").store(1, orders(2, 2))
    second = Run(driver, "run-2", takeOver=True)
    second.store(1, orders(2, 2))
    second.store(2, orders(2, 4))
    assert (count(store), moves(store)) == (6, 2)
    move_away()
    with pytest.raises(OtherHostError):
        second.store(3, orders(2, 6))
    assert (count(store), moves(store)) == (6, 3)


# --- streaming reads


class Reads:
    """One run of a streaming read as a consumer, as Spark calls it."""

    def __init__(self, driver: Driver, **options: Any) -> None:
        given = {"path": driver.path, "stream": "ORDERS", "consumer": "etl", **options}
        texts = CaseInsensitiveDict({name: str(value) for name, value in given.items()})
        self.reader = source.stream_reader(texts, from_arrow_schema(SEQUENCE))
        self.at: Any = None

    def batch(self) -> list[int]:
        """Read what is there, and finish the batch before."""
        start = self.at or self.reader.initialOffset()
        self.at = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        parts = self.reader.partitions(start, self.at)
        return [row for one in parts for rows in self.reader.read(one) for row in rows["sequence"].to_pylist()]


def ack_floor(store: Store) -> int:
    low_watermark: int = store.stream("ORDERS").consumer("etl").info()["ack_floor"]["stream_seq"]
    return low_watermark


def test_a_query_reads_as_a_consumer_on_another_host_only_where_it_can_acknowledge(
    store: Store, driver: Driver, orders: Make, move_away: Any
) -> None:
    driver.write(orders(3), stream="ORDERS")
    first = Reads(driver)
    assert first.batch() == [1, 2, 3]
    move_away()
    with pytest.raises(OtherHostError):  # also where the consumer is there already, and nothing is to be made
        Reads(driver).batch()
    there = Store.open(store.paths, env=ELSEWHERE)
    assert ack_floor(there) == 0
    first.reader.stop()

    second = Reads(driver, takeOver=True)
    assert second.batch() == [1, 2, 3]
    driver.write(orders(1, 3), stream="ORDERS")
    assert second.batch() == [4]
    assert ack_floor(store) == 3


def test_a_query_that_was_taken_over_from_fails_with_its_next_acknowledgement(
    store: Store, driver: Driver, orders: Make, move_away: Any
) -> None:
    driver.write(orders(3), stream="ORDERS")
    query = Reads(driver, takeOver=True)
    assert query.batch() == [1, 2, 3]
    move_away()
    Store.open(store.paths, env=ELSEWHERE).stream("ORDERS").publish("orders.1.new", b"theirs")
    with pytest.raises(OtherHostError):
        query.batch()
    assert moves(store) == 1


def test_a_query_without_a_consumer_reads_on_any_host(
    store: Store, driver: Driver, orders: Make, move_away: Any
) -> None:
    driver.write(orders(3), stream="ORDERS")
    move_away()
    options = CaseInsensitiveDict({"path": driver.path, "stream": "ORDERS", "startingOffsets": "earliest"})
    reader = source.stream_reader(options, from_arrow_schema(SEQUENCE))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert [rows["sequence"].to_pylist() for one in reader.partitions(start, end) for rows in reader.read(one)] == [
        [1, 2, 3]
    ]
    reader.stop()


@pytest.mark.parametrize("consumer", [None, "etl"])
def test_a_loss_is_named_on_a_host_that_may_not_write(
    store: Store, driver: Driver, orders: Make, move_away: Any, consumer: str | None
) -> None:
    driver.write(orders(3), stream="ORDERS")
    given = {"path": driver.path, "stream": "ORDERS", "startingOffsets": "earliest", "consumer": consumer}
    options = {name: value for name, value in given.items() if value is not None}
    reader = source.stream_reader(CaseInsensitiveDict(options), from_arrow_schema(SEQUENCE))
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    driver.write(orders(5, 3), stream="ORDERS")
    store.stream("ORDERS").purge(end=7)
    move_away()
    with pytest.raises(DataLossError) as caught:
        reader.latestOffset(start, reader.getDefaultReadLimit())
    assert "sequences 4 to 6" in str(caught.value)
    assert "take" not in str(caught.value)
    reader.stop()


def test_a_query_that_skips_losses_reads_on_where_it_may_not_write(
    store: Store, driver: Driver, orders: Make, move_away: Any
) -> None:
    driver.write(orders(3), stream="ORDERS")
    options = {"path": driver.path, "stream": "ORDERS", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    reader = source.stream_reader(CaseInsensitiveDict(options), from_arrow_schema(SEQUENCE))
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    driver.write(orders(5, 3), stream="ORDERS")
    store.stream("ORDERS").purge(end=7)
    move_away()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    parts = reader.partitions(start, end)
    assert [rows["sequence"].to_pylist() for one in parts for rows in reader.read(one)] == [[7, 8]]
    reader.stop()
