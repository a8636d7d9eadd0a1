"""`scan`: the rows, checks, errors and partitions of `spark.read.format("jstream")`, by another way into Spark."""

import os
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_jstream import scan
from storage_core import Store
from storage_core.errors import DataLossError, NotAStoreError, StreamNotFoundError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
Make = Callable[..., pa.Table]
START = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


@pytest.fixture
def read(spark: "SparkSession", store: Store) -> Callable[..., "DataFrame"]:
    """The same as a data source."""

    def load(schema: str | None = None, **options: Any) -> "DataFrame":
        reader = spark.read.format("jstream").options(**options)
        return (reader if schema is None else reader.schema(schema)).load(store.paths[0])

    return load


@pytest.fixture
def filled(store: Store, orders: Make) -> Store:
    """Two streams of messages a second apart; three blocks of one, with headers in the second."""
    for first in (0, 4, 8):
        batch = orders(4, first)
        times = pa.array([START + timedelta(seconds=first + row, microseconds=row) for row in range(4)])
        batch = batch.append_column("timestamp", times)
        if first == 4:
            kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            headers = [[("trace", b"1"), ("trace", None)], [], None, [("id", b"")]]
            batch = batch.append_column("headers", pa.array(headers, kind))
        store.stream("ORDERS").append(batch)
    store.stream("ORDERS_EU").append(orders(3, prefix="eu."))
    return store


CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"stream": "ORDERS"}, {}),
    ({"stream": ["ORDERS", "ORDERS_EU"]}, {"stream": "ORDERS,ORDERS_EU"}),
    ({"stream": "ORDERS*", "columns": ["sequence", "stream"]}, {"columns": "sequence,stream"}),
    ({"stream": "ORDERS", "columns": "data, timestamp_ns"}, {}),
    ({"stream": "ORDERS", "schema": "data string, sequence bigint not null"}, {}),
    (
        {"stream": "ORDERS", "start": 5, "end": np.int64(10)},
        {"startingOffsets": '{"ORDERS": 5}', "endingOffsets": '{"ORDERS": 10}'},
    ),
    ({"stream": "*", "start": {"ORDERS": np.int64(11)}}, {"startingOffsets": '{"ORDERS": 11}'}),
    ({"stream": "ORDERS", "start": "earliest", "end": "latest"}, {"startingOffsets": "earliest"}),
    (
        {"stream": "ORDERS", "start": START + timedelta(seconds=3), "end": datetime(2026, 11, 21, 12, 0, 9)},
        {"startingTimestamp": "2026-11-21T12:00:03Z", "endingTimestamp": "2026-11-21T12:00:09Z"},
    ),
    ({"stream": "ORDERS", "subject": "orders.1.*", "minPartitions": 3}, {}),
    ({"stream": "ORDERS", "maxRecordsPerPartition": 1, "failOnDataLoss": False}, {}),
    ({"table": "streams"}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "instead"), CASES, ids=lambda given: ",".join(given))
def test_rows_types_and_partitions_are_those_of_the_data_source(
    arguments: dict[str, Any], instead: dict[str, Any], spark: Any, read: Any, filled: Store
) -> None:
    ours = scan(spark, filled.paths[0], **arguments)
    options = {name: value for name, value in arguments.items() if name not in ("start", "end")} | instead
    theirs = read(**options)
    assert ours.schema == theirs.schema
    assert ours.rdd.getNumPartitions() == theirs.rdd.getNumPartitions()
    wanted = theirs.collect()
    assert wanted
    assert ours.collect() == wanted


def test_scan_of_nothing_has_no_rows(spark: Any, store: Store) -> None:
    empty = scan(spark, store.paths[0], "ORDERS")
    assert empty.columns == ["stream", "sequence", "subject", "timestamp", "headers", "data"]
    assert empty.collect() == []


def test_paths_come_as_they_do_for_a_store(spark: Any, filled: Store) -> None:
    path = filled.paths[0]
    for given in (path, Path(path), [path], (Path(path),)):
        assert scan(spark, given, "ORDERS", "sequence").count() == 12


def test_scan_repeats_while_the_stream_changes(spark: Any, filled: Store, orders: Make) -> None:
    frame = scan(spark, filled.paths[0], "ORDERS", "sequence")
    filled.stream("ORDERS").purge()
    filled.stream("ORDERS").append(orders(2))
    assert [row.sequence for row in frame.collect()] == list(range(1, 13))
    assert [row.sequence for row in frame.coalesce(1).collect()] == list(range(1, 13))
    assert frame.where("sequence > 10").count() == 2
    assert frame.limit(3).count() == 3


def test_estimated_size_grows_with_the_messages(spark: Any, store: Store, orders: Make) -> None:
    """Else a join would broadcast a scan, however large it is."""

    def size_of(frame: "DataFrame") -> int:
        return int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())

    store.stream("ORDERS").append(orders(100))
    store.stream("ORDERS_EU").append(orders(20_000, prefix="eu."))
    store.stream("LOGS").append(pa.table({"data": [os.urandom(100_000)]}))
    sizes = {name: size_of(scan(spark, store.paths[0], name)) for name in ("ORDERS", "ORDERS_EU", "LOGS")}
    assert sizes["ORDERS_EU"] == 200 * sizes["ORDERS"] >= 20_000 * 50
    assert sizes["LOGS"] > 80_000


def test_what_spark_never_sees_is_raised_as_it_is(spark: Any, store: Store, tmp_path: Path) -> None:
    with pytest.raises(StreamNotFoundError, match="did you mean 'ORDERS'"):
        scan(spark, store.paths[0], "ORDER")
    with pytest.raises(NotAStoreError):
        scan(spark, tmp_path / "nowhere", "ORDERS")
    with pytest.raises(DataLossError, match="sequence 99 is beyond the end of stream 'ORDERS'"):
        scan(spark, store.paths[0], "ORDERS", start=99)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"stream": None}, "option 'stream' is missing"),
        ({"columns": "dat"}, "option 'columns': unknown column 'dat'; did you mean 'data'"),
        ({"schema": "data bigint"}, "schema: column 'data' is bigint"),
        ({"schema": "data string", "columns": "subject"}, "give one of the two"),
        ({"start": "soon"}, "option 'startingOffsets': 'soon'"),
        ({"start": 3, "stream": "*"}, "say it stream by stream"),
        ({"stream": 5}, "stream: 5 is neither a name nor a list of names"),
        ({"columns": 5}, "columns: 5 is neither a name nor a list of names"),
        ({"start": 0}, "from 1 on"),
        ({"start": 3, "startingOffsets": "earliest"}, "option 'startingOffsets' is given twice"),
        ({"startingOfset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"maxOffsetsPerTrigger": 5}, "is for streaming reads only"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], says: str, spark: Any, store: Store) -> None:
    with pytest.raises(ValueError, match=says):
        scan(spark, store.paths[0], **{"stream": "ORDERS", **arguments})


def test_damage_reaches_the_user_with_its_place_by_both_ways(spark: Any, read: Any, store: Store, orders: Make) -> None:
    store.stream("ORDERS").append(orders(5))
    (block,) = Path(store.paths[0]).rglob("*.blk")
    content = bytearray(block.read_bytes())
    content[content.find(b"order 3")] ^= 1
    block.write_bytes(content)
    says = rf"DataLossError: \[JSTREAM_DATA_LOSS\] stream 'ORDERS': sequences 1 to 5.*{block.name}"
    for way in (partial(scan, spark, store.paths[0]), read):
        with pytest.raises(Exception, match=says):
            way(stream="ORDERS").collect()
        assert way(stream="ORDERS", failOnDataLoss=False).count() == 0


def test_session_zone_does_not_move_times(spark: Any, filled: Store) -> None:
    elsewhere = spark.newSession()
    elsewhere.conf.set("spark.sql.session.timeZone", "America/New_York")
    frame = scan(elsewhere, filled.paths[0], "ORDERS", "timestamp").selectExpr("unix_micros(timestamp) AS at")
    assert [row.at for row in frame.take(1)] == [int(START.timestamp()) * 1_000_000]
