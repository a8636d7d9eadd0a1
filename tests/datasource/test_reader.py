"""Batch reads, driven as Spark drives them: planned once, pickled, read partition by partition."""

import itertools
import logging
import operator
import sys
import types
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader

from datasource import source
from datasource.reader import FilteringMessageReader, MessageReader, select_streams
from datasource.shape import Shape
from datasource.spark_versions import (
    SPARK,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from storage_core import Store
from storage_core.errors import DataLossError, NotAStoreError, NotFoundError, StalePlanError
from storage_core.schema import READ_SCHEMA, read_schema

Make = Callable[..., pa.Table]


@pytest.mark.buckets
def test_reads_all_columns_in_order(store: Store, driver: Any, orders: Make) -> None:
    store.stream("ORDERS").append(orders(10))
    table = driver.read(stream="ORDERS")
    assert table.schema.equals(READ_SCHEMA)
    assert table["sequence"].to_pylist() == list(range(1, 11))
    assert table["data"].to_pylist() == [f"order {number}".encode() for number in range(10)]
    assert set(table["stream"].to_pylist()) == {"ORDERS"}


@pytest.mark.parametrize("count", [1, 2])
def test_every_choice_of_columns_is_what_it_is_among_all(count: int, store: Store, driver: Any, orders: Make) -> None:
    store.stream("ORDERS").append(orders(5))
    names = [*READ_SCHEMA.names, "timestamp_ns"]
    whole = driver.read(read_schema(names), stream="ORDERS")
    for chosen in itertools.permutations(names, count):
        assert driver.read(read_schema(chosen), stream="ORDERS").equals(whole.select(chosen))


def test_timestamp_is_cut_to_microseconds_of_timestamp_ns(store: Store, driver: Any) -> None:
    given = [1_795_262_400_123_456_789, 999, -1]
    store.stream("ORDERS").append(pa.table({"subject": ["orders.a"] * 3, "data": [b""] * 3, "timestamp_ns": given}))
    table = driver.read(read_schema(["timestamp", "timestamp_ns"]), stream="ORDERS")
    assert table["timestamp_ns"].to_pylist() == given
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [one // 1000 for one in given]


def test_empty_stream_has_one_partition_without_rows(driver: Any) -> None:
    reader, partitions = driver.plan(stream="ORDERS")
    assert len(partitions) == 1
    assert list(reader.read(partitions[0])) == []


def test_ranges_are_half_open(store: Store, driver: Any, orders: Make) -> None:
    store.stream("ORDERS").append(orders(10))
    assert driver.sequences(stream="ORDERS", startingOffsets='{"ORDERS": 3}', endingOffsets='{"ORDERS": 6}') == [
        3,
        4,
        5,
    ]


def test_range_by_time_starts_at_the_first_message_that_is_not_before(store: Store, driver: Any) -> None:
    times = [datetime(2026, 11, 21, 12, minute, tzinfo=timezone.utc) for minute in range(6)]
    store.stream("ORDERS").append(pa.table({"subject": ["orders.a"] * 6, "data": [b""] * 6, "timestamp": times}))
    found = driver.sequences(
        stream="ORDERS", startingTimestamp="2026-11-21T12:01:30", endingTimestamp="2026-11-21T12:04Z"
    )
    assert found == [3, 4]


def test_list_and_glob_of_streams(store: Store, driver: Any, orders: Make) -> None:
    store.stream("ORDERS").append(orders(2))
    store.stream("ORDERS_EU").append(orders(3, prefix="eu."))
    store.stream("LOGS").append(pa.table({"data": [b"line"]}))
    assert driver.sequences(stream="ORDERS*") == [1, 2, 1, 2, 3]
    assert driver.sequences(stream="LOGS,ORDERS") == [1, 1, 2]
    assert driver.read(stream="*").num_rows == 6


def test_subject_option_filters(store: Store, driver: Any, orders: Make) -> None:
    store.stream("ORDERS").append(orders(9))
    assert driver.sequences(stream="ORDERS", subject="orders.1.*") == [2, 5, 8]


def test_removed_messages_are_not_shown(store: Store, driver: Any, orders: Make) -> None:
    store.stream("ORDERS").append(orders(5))
    store.stream("ORDERS").remove([2, 5])
    assert driver.sequences(stream="ORDERS") == [1, 3, 4]


def test_splits_and_packs_partitions(store: Store, driver: Any, orders: Make) -> None:
    for first in range(0, 40, 10):
        store.stream("ORDERS").append(orders(10, first))
    assert len(driver.plan(stream="ORDERS")[1]) == 1
    for options in ({"minPartitions": 7}, {"maxRecordsPerPartition": 6}):
        reader, partitions = driver.plan(stream="ORDERS", **options)
        assert len(partitions) >= 7
        sizes = [sum(batch.num_rows for batch in reader.read(one)) for one in partitions]
        assert sum(sizes) == 40
        assert max(sizes) <= 6
        assert driver.sequences(stream="ORDERS", **options) == list(range(1, 41))


@pytest.mark.parametrize("limit", ["max_msgs", "max_msgs_per_subject", "max_bytes", None])
def test_dataframe_that_lives_long_repeats_exactly(limit: str | None, store: Store, driver: Any, orders: Make) -> None:
    """Whatever took the messages in the meantime: they are kept for as long as deleted_block_retention says."""
    stream = store.stream("ORDERS")
    stream.append(orders(10))
    reader, partitions = driver.plan(stream="ORDERS")
    stream.append(orders(10, 10))
    if limit is None:
        stream.remove([3, 4])
        stream.purge()
    else:
        store.edit_stream({"name": "ORDERS", limit: {"max_bytes": 100}.get(limit, 1)})
        assert stream.state().message_count < 10
    rows = [batch.column("sequence").to_pylist() for one in partitions for batch in reader.read(one)]
    assert [sequence for batch in rows for sequence in batch] == list(range(1, 11))


def test_dataframe_that_lives_too_long_says_so(store: Store, driver: Any, orders: Make) -> None:
    store.stream("ORDERS").append(orders(10))
    reader, partitions = driver.plan(stream="ORDERS")
    store.delete_stream("ORDERS")
    for file in Path(driver.path).rglob("*.blk"):
        file.unlink()
    with pytest.raises(StalePlanError) as stale:
        list(reader.read(partitions[0]))
    assert (stale.value.stream, stale.value.first, stale.value.end) == ("ORDERS", 1, 11)
    places = ("DataFrame", "temporary view", "cached table", "static side of a streaming join")
    assert [place for place in places if place not in str(stale.value)] == []


def flip_a_byte_of_data(driver: Any, text: bytes) -> None:
    for file in Path(driver.path).rglob("*.blk"):
        content = bytearray(file.read_bytes())
        at = content.find(text)
        if at >= 0:
            content[at] ^= 1
            file.write_bytes(content)
            return
    raise AssertionError("no block holds it")


def test_damage_is_not_served_and_named(store: Store, driver: Any, orders: Make) -> None:
    store.stream("ORDERS").append(orders(5))
    flip_a_byte_of_data(driver, b"order 3")
    with pytest.raises(DataLossError, match=r"stream 'ORDERS': sequences 1 to 5 .*\.blk, offset_bytes \d+"):
        driver.read(stream="ORDERS")


def test_read_goes_on_past_damage_when_told_and_logs_it(
    store: Store, driver: Any, orders: Make, caplog: pytest.LogCaptureFixture
) -> None:
    store.stream("ORDERS").append(orders(5))
    store.stream("ORDERS").append(orders(5, 5))
    flip_a_byte_of_data(driver, b"order 3")
    with caplog.at_level(logging.WARNING, "jstream"):
        assert driver.read(stream="ORDERS", failOnDataLoss="false")["sequence"].to_pylist() == [6, 7, 8, 9, 10]
    assert "failOnDataLoss=false, the read continues: stream 'ORDERS': sequences 1 to 5" in caplog.text


@pytest.mark.parametrize("fail", ["true", "false"])
def test_executor_that_does_not_see_the_store_says_so(
    fail: str, store: Store, driver: Any, orders: Make, tmp_path: Path
) -> None:
    store.stream("ORDERS").append(orders(5))
    reader, partitions = driver.plan(stream="ORDERS", failOnDataLoss=fail)
    Path(driver.path).rename(tmp_path / "not mounted here")
    with pytest.raises(NotFoundError, match="my store cannot be seen on .*every executor must see the store"):
        list(reader.read(partitions[0]))


def test_unknown_stream_is_refused_with_the_nearest(driver: Any) -> None:
    with pytest.raises(NotFoundError, match="no stream 'ORDER' in the store; did you mean 'ORDERS'"):
        driver.read(stream="ORDER")
    with pytest.raises(NotFoundError, match="no stream matches 'X\\*' in the store; there are LOGS, ORDERS, ORDERS_EU"):
        driver.read(stream="X*")


def test_what_is_no_store_is_refused(driver: Any, tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="nowhere"):
        driver.read(stream="ORDERS", path=str(tmp_path / "nowhere"))
    with pytest.raises(NotAStoreError, match="no jstream store.*jstream store create PATH"):
        driver.read(stream="ORDERS", path=str(tmp_path))


def test_store_of_a_nats_server_is_refused_with_the_option_that_reads_it(driver: Any, orders: Make) -> None:
    nats = Path(__file__).parent.parent / "data" / "nats-orders" / "store" / "n1"
    for place in (nats, nats / "jetstream" / "$G" / "streams" / "ORDERS"):
        with pytest.raises(NotAStoreError, match="no jstream store.*option layout=nats reads it"):
            driver.read(stream="ORDERS", path=str(place))
        with pytest.raises(NotAStoreError, match="no jstream store.*option layout=nats reads it"):
            driver.writer(orders(1).schema, stream="ORDERS", path=str(place))


def test_path_may_hold_blanks_commas_and_links(tmp_path: Path, driver: Any, orders: Make) -> None:
    place = tmp_path / "a, b"
    with Store.create(place) as made:
        made.add_stream({"name": "S", "subjects": ["orders.>"]}).append(orders(2))
    (tmp_path / "link").symlink_to(place)
    assert driver.sequences(path=None, paths=f'["{place}"]', stream="S") == [1, 2]
    assert driver.sequences(path=f'["{place}"]', stream="S") == [1, 2]
    assert driver.sequences(path=str(tmp_path / "link"), stream="S") == [1, 2]


@pytest.mark.parametrize("layout", ["jstream", "nats"])
def test_path_with_a_comma_that_was_split_is_refused_with_the_way_to_give_it(
    layout: str, tmp_path: Path, driver: Any
) -> None:
    (tmp_path / "a, b").mkdir()
    with pytest.raises(NotAStoreError, match=r"of 2 paths; commas separate them: .*load\('\[\"/a,b\"\]'\)"):
        driver.read(path=str(tmp_path / "a, b"), stream="S", layout=layout)


# --- push-down


COMPARES: dict[type, Callable[[int, int], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


@pytest.fixture
def pushing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this look like the process in which a Spark pushes filters that keeps them apart."""
    if SPARK < (4, 1):
        pytest.skip("Spark 4.0 has no filters for Python sources")
    monkeypatch.setitem(sys.modules, source.PUSHDOWN_WORKER, types.ModuleType(source.PUSHDOWN_WORKER))
    monkeypatch.setattr(DataSourceReader, "pushLimit", lambda reader, limit: False, raising=False)


@pytest.mark.usefixtures("pushing")
def test_reader_has_push_down_only_where_spark_pushes(driver: Any) -> None:
    assert isinstance(driver.plan(stream="ORDERS")[0], FilteringMessageReader)


@pytest.mark.usefixtures("pushing")
def test_spark_that_mixes_up_the_filters_of_two_scans_gets_no_push_down(
    driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(DataSourceReader, "pushLimit")
    assert type(driver.plan(stream="ORDERS")[0]) is MessageReader


@pytest.mark.usefixtures("pushing")
def test_pushed_filters_choose_times_up_to_the_last_nanosecond(store: Store, driver: Any, orders: Make) -> None:
    times = pa.array([0, 2**63 - 2, 2**63 - 1], pa.int64())
    store.stream("ORDERS").append(orders(3).append_column("timestamp_ns", times))
    for value in times.to_pylist():
        for kind in (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual):
            table = driver.read(filters=[kind(("timestamp_ns",), value)], stream="ORDERS")
            assert table["sequence"].to_pylist() == [
                sequence for sequence, time in enumerate(times.to_pylist(), 1) if COMPARES[kind](time, value)
            ], (kind, value)


def test_reader_has_no_push_down_elsewhere(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, source.PUSHDOWN_WORKER, raising=False)
    assert type(driver.plan(stream="ORDERS")[0]) is MessageReader


@pytest.mark.usefixtures("pushing")
def test_pushed_filters_narrow_plan_and_rows(store: Store, driver: Any, orders: Make) -> None:
    times = [datetime(2026, 11, 21, 12, minute, tzinfo=timezone.utc) for minute in range(20)]
    store.stream("ORDERS").append(orders(10).append_column("timestamp", pa.array(times[:10])))
    store.stream("ORDERS").append(orders(10, 10).append_column("timestamp", pa.array(times[10:])))
    store.stream("ORDERS_EU").append(orders(10, prefix="eu."))

    def rows(*filters: Any) -> list[tuple[str, int]]:
        table = driver.read(filters=filters, stream="ORDERS*")
        return list(zip(table["stream"].to_pylist(), table["sequence"].to_pylist(), strict=True))

    assert rows(EqualTo(("stream",), "ORDERS_EU"), LessThan(("sequence",), 3)) == [("ORDERS_EU", 1), ("ORDERS_EU", 2)]
    assert rows(GreaterThanOrEqual(("timestamp",), times[18]), EqualTo(("stream",), "ORDERS")) == [
        ("ORDERS", 19),
        ("ORDERS", 20),
    ]
    assert rows(StringStartsWith(("subject",), "eu."), EqualTo(("sequence",), 5)) == [("ORDERS_EU", 5)]
    assert rows(In(("subject",), ("orders.1.new", "eu.1.new")), LessThan(("sequence",), 4)) == [
        ("ORDERS", 2),
        ("ORDERS_EU", 2),
    ]
    assert rows(IsNull(("sequence",))) == []
    assert rows(EqualTo(("stream",), "NONE")) == []


@pytest.mark.usefixtures("pushing")
@pytest.mark.buckets
def test_pushed_filters_prune_blocks(store: Store, driver: Any, orders: Make) -> None:
    for first in range(0, 50, 10):
        store.stream("ORDERS").append(orders(10, first))
    _, partitions = driver.plan(filters=[EqualTo(("sequence",), 25)], stream="ORDERS")
    assert [(one.first, one.end) for one in partitions[0].slices] == [(25, 26)]


# --- parts


def test_select_streams_in_order_without_repeats() -> None:
    assert select_streams(["B", "A", "AB"], ["A*", "B", "A"]) == ["A", "AB", "B"]


def test_conform_refuses_what_spark_would_misread() -> None:
    schema = pa.schema([pa.field("data", pa.binary())])
    good = pa.RecordBatch.from_pydict({"data": [b"x"]}, schema=schema)
    assert Shape(schema, False).conform(good) is good
    with pytest.raises(TypeError, match="was declared"):
        Shape(schema, False).conform(pa.RecordBatch.from_pydict({"data": ["x"]}))
    strict = pa.schema([pa.field("data", pa.binary(), nullable=False)])
    assert Shape(strict, False).conform(good).schema.equals(strict)
    with pytest.raises(TypeError, match="nulls in column 'data'"):
        Shape(strict, False).conform(pa.RecordBatch.from_pydict({"data": [None]}, schema=schema))


# --- durable consumers say where a batch read starts


@pytest.mark.buckets
def test_batch_read_starts_where_the_consumer_stands_and_does_not_move_it(
    store: Store, driver: Any, orders: Make
) -> None:
    store.stream("ORDERS").append(orders(10))
    etl = store.stream("ORDERS").add_consumer({"name": "etl"})
    etl.ack(etl.fetch(4).column("sequence"))
    for _ in range(2):
        assert driver.sequences(stream="ORDERS", consumer="etl") == list(range(5, 11))
    ended = {"startingOffsets": "consumer", "endingOffsets": '{"ORDERS": 7}'}
    assert driver.sequences(stream="ORDERS", consumer="etl", **ended) == [5, 6]
    assert driver.sequences(stream="ORDERS", consumer="etl", startingOffsets='{"ORDERS": 2}') == list(range(2, 11))
    assert etl.info()["delivered"]["stream_seq"] == 4


def test_first_batch_read_as_a_consumer_makes_it_at_the_first_message(store: Store, driver: Any, orders: Make) -> None:
    store.stream("ORDERS").append(orders(3))
    assert driver.sequences(stream="ORDERS", consumer="new") == [1, 2, 3]
    assert store.stream("ORDERS").consumer("new").info()["num_pending"] == 3


@pytest.mark.parametrize(
    ("starting", "first"),
    [
        ({"startingOffsets": '{"ORDERS": 3}'}, 3),
        ({"startingOffsets": "{}"}, 1),
        ({"startingTimestamp": "2099-01-01"}, 4),
        ({"startingOffsets": "earliest"}, 1),
    ],
)
def test_first_batch_read_as_a_consumer_makes_it_where_the_starting_options_say(
    store: Store, driver: Any, orders: Make, starting: dict[str, str], first: int
) -> None:
    store.stream("ORDERS").append(orders(3))
    for _ in range(2):
        assert driver.sequences(stream="ORDERS", consumer="new", **starting) == list(range(first, 4))
    assert driver.sequences(stream="ORDERS", consumer="new") == list(range(first, 4))
    assert driver.sequences(stream="ORDERS", consumer="new", startingOffsets='{"ORDERS": 2}') == [2, 3]
    assert store.stream("ORDERS").consumer("new").info()["ack_floor"]["stream_seq"] == first - 1


def test_batch_read_as_a_consumer_with_filters_reads_what_they_take(store: Store, driver: Any, orders: Make) -> None:
    orders_stream, logs = (
        store.stream("ORDERS"),
        store.add_stream({"name": "NOTES", "subjects": ["orders.>"]}, allow_overlap=True),
    )
    subjects = [f"orders.{number % 3}" for number in range(1, 10)]
    for stream in (orders_stream, logs):
        stream.append(pa.table({"subject": subjects, "data": subjects}))
    orders_stream.add_consumer({"name": "etl", "filter_subjects": ["orders.1", "orders.2"]})
    assert driver.sequences(stream="ORDERS", consumer="etl") == [1, 2, 4, 5, 7, 8]
    assert driver.sequences(stream="ORDERS", consumer="etl", subject="orders.1") == [1, 4, 7]
    assert driver.sequences(stream="ORDERS", consumer="etl", subject="orders.0") == []
    assert driver.sequences(stream="ORDERS", consumer="etl", startingOffsets='{"ORDERS": 5}') == [5, 7, 8]
    both = driver.sequences(stream="ORDERS,NOTES", consumer="etl")
    assert sorted(both) == sorted([*range(1, 10), 1, 2, 4, 5, 7, 8])


def test_batch_read_as_a_consumer_tells_what_it_has_lost(store: Store, driver: Any, orders: Make) -> None:
    store.stream("ORDERS").append(orders(10))
    store.stream("ORDERS").add_consumer({"name": "etl"})
    etl = store.stream("ORDERS").consumer("etl")
    store.stream("ORDERS").purge(end=6)
    with pytest.raises(
        DataLossError, match="consumer 'etl': .*sequences 1 to 5 were removed.*consumer reset ORDERS etl"
    ):
        driver.sequences(stream="ORDERS", consumer="etl")
    assert driver.sequences(stream="ORDERS", consumer="etl", failOnDataLoss="false") == [6, 7, 8, 9, 10]
    assert etl.info()["num_pending"] == 5
