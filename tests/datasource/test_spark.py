"""The data source in a real session, as users call it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from datasource.spark_versions import SPARK, keeps_filters_apart
from pyspark_jstream import register
from storage_core import Store
from storage_core.metadata.commands import Event, RecordEvents

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
Make = Callable[..., pa.Table]


@pytest.fixture
def read(spark: "SparkSession", store: Store, storage: dict[str, str]) -> Callable[..., "DataFrame"]:
    def load(stream: str | None = "ORDERS", schema: str | None = None, **options: Any) -> "DataFrame":
        reader = spark.read.format("jstream").options(**storage, **options)
        reader = reader if stream is None else reader.option("stream", stream)
        return (reader if schema is None else reader.schema(schema)).load(store.paths[0])

    return load


@pytest.fixture
def write(store: Store, storage: dict[str, str]) -> Callable[..., None]:
    def save(frame: "DataFrame", mode: str = "append", **options: Any) -> None:
        frame.write.format("jstream").mode(mode).options(**storage, **options).save(store.paths[0])

    return save


@contextmanager
def setting(spark: "SparkSession", name: str, value: str) -> Iterator[None]:
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)


def numbers(spark: "SparkSession", count: int, tasks: int = 2, first: int = 0) -> "DataFrame":
    return spark.range(first, first + count, 1, tasks).selectExpr(
        "cast(id as string) as data", "concat('orders.', id % 3) as subject"
    )


def test_million_messages_of_eight_tasks_come_back_in_order(spark: Any, read: Any, write: Any, store: Store) -> None:
    before = store.view().index
    write(numbers(spark, 1_000_000, 8), stream="ORDERS")
    assert store.view().index == before + 1
    found = read().selectExpr(
        "count(*)", "min(sequence)", "max(sequence)",
        "count_if(cast(data as string) <> cast(sequence - 1 as string))",
        "count_if(subject <> concat('orders.', (sequence - 1) % 3))",
        "count_if(stream <> 'ORDERS' or headers is not null or timestamp is null)",
    )  # fmt: skip
    assert tuple(found.first()) == (1_000_000, 1, 1_000_000, 0, 0, 0)
    assert [row.sequence for row in read(schema="sequence long").take(5)] == [1, 2, 3, 4, 5]
    assert read(schema="sequence long", minPartitions=16).rdd.getNumPartitions() >= 16


def test_columns_have_the_documented_types(read: Any) -> None:
    assert read().schema.simpleString() == (
        "struct<stream:string,sequence:bigint,subject:string,timestamp:timestamp,"
        "headers:array<struct<key:string,value:binary>>,data:binary>"
    )


def test_user_schema_picks_columns(read: Any, store: Store, orders: Make) -> None:
    store.stream("ORDERS").append(orders(4))
    rows = read(schema="timestamp_ns long, data binary, sequence long not null").collect()
    assert [(bytes(row.data), row.sequence) for row in rows] == [(f"order {at}".encode(), at + 1) for at in range(4)]
    assert rows[0].timestamp_ns > 0


def test_the_option_picks_columns(read: Any, store: Store, orders: Make) -> None:
    store.stream("ORDERS").append(orders(4))
    picked = read(columns="data, sequence")
    assert picked.schema.simpleString() == "struct<data:binary,sequence:bigint>"
    rows = picked.where("sequence > 2").collect()
    assert [(bytes(row.data), row.sequence) for row in rows] == [(b"order 2", 3), (b"order 3", 4)]
    with pytest.raises(Exception, match="option 'columns': unknown column 'dat'; did you mean 'data'"):
        read(columns="dat").collect()


def test_data_is_text_in_a_schema_that_says_so(spark: Any, read: Any, store: Store) -> None:
    data = pa.array(["größer".encode(), None, b"\xff", b"4"], pa.binary())
    store.stream("ORDERS").append(pa.table({"subject": ["orders.a"] * 4, "data": data}))
    rows = read(schema="data string, sequence long", invalidUtf8="null").collect()
    assert [tuple(row) for row in rows] == [("größer", 1), (None, 2), (None, 3), ("4", 4)]
    with pytest.raises(Exception, match="JSTREAM_INVALID_MESSAGE.*stream 'ORDERS', sequence 3"):
        read(schema="data string").collect()
    stream = spark.readStream.format("jstream").schema("data string").options(stream="ORDERS", invalidUtf8="null")
    query = stream.option("startingOffsets", "earliest").load(store.paths[0]).writeStream.format("memory")
    query.queryName("texts").trigger(availableNow=True).start().awaitTermination()
    assert [row.data for row in spark.sql("SELECT data FROM texts").collect()] == ["größer", None, None, "4"]


def test_ranges_and_globs(read: Any, store: Store, orders: Make) -> None:
    store.stream("ORDERS").append(orders(10))
    store.stream("ORDERS_EU").append(orders(3, prefix="eu."))
    found = read("ORDERS*", startingOffsets='{"ORDERS": 8}', endingOffsets='{"ORDERS_EU": 3}')
    assert sorted((row.stream, row.sequence) for row in found.collect()) == [
        ("ORDERS", 8), ("ORDERS", 9), ("ORDERS", 10), ("ORDERS_EU", 1), ("ORDERS_EU", 2),
    ]  # fmt: skip


def test_volumes_come_by_option_and_as_a_list(spark: Any, store: Store, orders: Make) -> None:
    store.stream("ORDERS").append(orders(2))
    reader = spark.read.format("jstream").option("stream", "ORDERS")
    assert reader.load([store.paths[0]]).count() == 2
    assert spark.read.format("jstream").options(stream="ORDERS", path=store.paths[0]).load().count() == 2


@pytest.mark.buckets
def test_rows_are_routed_by_their_stream(spark: Any, read: Any, write: Any) -> None:
    frame = spark.createDataFrame(
        [("ORDERS", "orders.a", b"1"), ("LOGS", None, b"2"), ("ORDERS", "orders.b", b"3")],
        "stream string, subject string, data binary",
    )
    write(frame.coalesce(1))
    assert [bytes(row.data) for row in read("ORDERS").collect()] == [b"1", b"3"]
    assert [row.subject for row in read("LOGS").collect()] == ["logs.line"]


def test_overwrite_replaces_and_append_adds(spark: Any, read: Any, write: Any) -> None:
    write(numbers(spark, 10), stream="ORDERS")
    write(numbers(spark, 3, first=50), mode="overwrite", stream="ORDERS")
    write(numbers(spark, 1, first=60), stream="ORDERS")
    assert [bytes(row.data) for row in read().orderBy("sequence").collect()] == [b"50", b"51", b"52", b"60"]


@pytest.mark.buckets
def test_rerun_of_a_named_batch_stores_nothing(spark: Any, read: Any, write: Any) -> None:
    for _ in range(2):
        write(numbers(spark, 10), stream="ORDERS", writerId="etl", batchId="7")
    assert read().count() == 10


def test_what_was_read_is_written_with_headers_in_any_session_zone(
    spark: Any, read: Any, write: Any, store: Store
) -> None:
    when = datetime(2026, 11, 21, 23, 30, 0, 5, tzinfo=timezone.utc)
    headers = [[{"key": "trace", "value": b"1"}, {"key": "trace", "value": None}], None]
    with setting(spark, "spark.sql.session.timeZone", "America/New_York"):
        frame = spark.createDataFrame(
            [("orders.a", headers[0], when, b"x"), ("orders.b", headers[1], when, None)],
            "subject string not null, headers array<struct<key:string,value:binary>>, timestamp timestamp, data binary",
        )
        write(frame.coalesce(1), stream="ORDERS")
        write(read(), stream="ORDERS")
    table = store.stream("ORDERS").read().read_all()
    assert table["headers"].to_pylist() == headers * 2
    assert table["timestamp"].to_pylist() == [when] * 4
    assert table["data"].to_pylist() == [b"x", None] * 2


def test_column_of_null_stands_for_no_column(spark: Any, read: Any, write: Any) -> None:
    write(spark.sql("select 'x' as data, 'orders.a' as subject, null as headers, null as msg_id"), stream="ORDERS")
    assert read().first().headers is None


def test_two_writers_at_once_are_two_whole_appends(spark: Any, read: Any, write: Any) -> None:
    failures: list[BaseException] = []

    def work(first: int) -> None:
        try:
            register(spark)
            write(numbers(spark, 5_000, 4, first), stream="ORDERS")
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=work, args=(first,)) for first in (0, 1_000_000)]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    assert not failures
    data = [int(row.data) for row in read().orderBy("sequence").collect()]
    early, late = list(range(5_000)), list(range(1_000_000, 1_005_000))
    assert data in (early + late, late + early)


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_filters_give_the_same_rows_with_and_without_push_down(
    enabled: str, spark: Any, read: Any, store: Store, orders: Make
) -> None:
    times = [datetime(2026, 11, 21, 12, 0, second, second, tzinfo=timezone.utc) for second in range(30)]
    store.stream("ORDERS").append(orders(30).append_column("timestamp", pa.array(times)))
    store.stream("ORDERS_EU").append(orders(30, prefix="eu.").append_column("timestamp", pa.array(times)))
    cases = {
        "stream = 'ORDERS' and sequence between 3 and 5": [3, 4, 5],
        "stream = 'ORDERS' and sequence in (2, 9)": [2, 9],
        "subject like 'eu.1.%' and sequence < 6": [2, 5],
        "subject like 'order%' and sequence = 7": [7],
        "subject in ('eu.1.new', 'nothing') and sequence <= 5": [2, 5],
        "stream like 'ORDERS_%' and timestamp >= timestamp'2026-11-21 12:00:28.000028+00:00'": [29, 30],
        "stream = 'ORDERS' and timestamp < '2026-11-21T12:00:01.000001Z'": [1],
        "stream = 'ORDERS' and timestamp = '2026-11-21T12:00:01.000001Z'": [2],
        "stream is null": [],
        "stream <=> 'ORDERS' and not (sequence > 2)": [1, 2],
        "data = cast('order 4' as binary) and stream = 'ORDERS'": [5],
        "sequence > 28 and stream <> 'ORDERS'": [29, 30],
    }
    with setting(spark, "spark.sql.python.filterPushdown.enabled", enabled):
        for condition, wanted in cases.items():
            rows = read("ORDERS*").where(condition).select("sequence").collect()
            assert sorted(row.sequence for row in rows) == wanted, condition
        plan = read("ORDERS*").where("sequence > 3")._jdf.queryExecution().executedPlan().toString()
    assert ("Filter (" in plan) == (enabled == "false" or not keeps_filters_apart()), plan


def test_times_that_python_does_not_know_are_compared_unless_spark_is_to_push_filters(
    spark: Any, read: Any, store: Store, orders: Make
) -> None:
    """Spark makes a datetime of them, before it asks a data source."""
    store.stream("ORDERS").append(orders(3))
    conditions = {"timestamp >= timestamp'-0001-01-01 00:00:00'": 3, "timestamp > timestamp'+10000-01-01 00:00:00'": 0}
    for condition, count in conditions.items():
        with setting(spark, "spark.sql.python.filterPushdown.enabled", "false"):
            assert read("ORDERS").where(condition).count() == count
        if SPARK >= (4, 1):  # 4.0 pushes none
            with (
                setting(spark, "spark.sql.python.filterPushdown.enabled", "true"),
                pytest.raises(Exception, match="OverflowError|year"),
            ):
                read("ORDERS").where(condition).count()


def test_modes_that_spark_refuses_fail_on_an_empty_stream_too(spark: Any, store: Store) -> None:
    frame = numbers(spark, 3)
    for mode in (None, "error", "ignore"):
        writer = frame.write.format("jstream").option("stream", "ORDERS")
        with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE|SaveMode"):
            (writer if mode is None else writer.mode(mode)).save(store.paths[0])
    assert store.stream("ORDERS").info()["state"]["messages"] == 0


def test_dataframe_repeats_while_the_stream_changes(spark: Any, read: Any, write: Any, store: Store) -> None:
    write(numbers(spark, 100), stream="ORDERS")
    frame = read()
    assert frame.count() == 100
    store.stream("ORDERS").purge()
    write(numbers(spark, 7), stream="ORDERS")
    assert frame.count() == (100 if SPARK >= (4, 1) else 7)
    assert read().count() == 7


def test_tables_of_streams_and_events(read: Any, store: Store, orders: Make) -> None:
    store.stream("ORDERS").append(orders(5))
    with store.session() as session:
        session.propose(RecordEvents((Event("scrub", reason="a test"),)))
    rows = read(None, table="streams").where("messages > 0").select("stream", "messages", "subjects").collect()
    assert [tuple(row) for row in rows] == [("ORDERS", 5, ["orders.>"])]
    replicas = read(None, table="streams").selectExpr("stream", "inline(replicas)").where("current").collect()
    assert {row.stream for row in replicas} == set(store.streams())
    assert [(row.kind, row.volume, row.reason) for row in read(None, table="events").collect()] == [
        ("scrub", None, "a test")
    ]


def test_the_last_message_of_each_subject_is_chosen_before_filters_apply(
    spark: Any, read: Any, store: Store, orders: Make
) -> None:
    store.stream("ORDERS").append(orders(7))  # orders.0.new to orders.2.new in turn
    with setting(spark, "spark.sql.python.filterPushdown.enabled", "true"):
        last = read(table="last")
        assert sorted(row.sequence for row in last.select("sequence").collect()) == [5, 6, 7]
        assert [row.subject for row in last.where("sequence < 6").collect()] == ["orders.1.new"]
        store.stream("ORDERS").append(orders(1))
        assert sorted(row.sequence for row in last.collect()) == ([5, 6, 7] if SPARK >= (4, 1) else [5, 6, 8])


def test_foreign_store_is_read_in_place(spark: Any) -> None:
    place = Path(__file__).resolve().parent.parent / "data" / "nats" / "plain-multiblock" / "store"
    frame = spark.read.format("jstream").options(stream="*", layout="nats").load(str(place))
    assert frame.count() == frame.selectExpr("max(sequence)").first()[0] > 0


# --- SQL


def test_temporary_view_keeps_its_options(spark: Any, store: Store, orders: Make) -> None:
    store.stream("ORDERS").append(orders(3))
    spark.sql(f"create temporary view v_orders using jstream options (path '{store.paths[0]}', stream 'ORDERS')")
    try:
        assert spark.sql("select count(*) from v_orders").first()[0] == 3
    finally:
        spark.catalog.dropTempView("v_orders")


def test_view_of_a_table_is_planned_at_each_use_and_a_view_of_the_source_only_once(
    spark: Any, store: Store, orders: Make
) -> None:
    store.stream("ORDERS").append(orders(3))
    options = f"(path '{store.paths[0]}', stream 'ORDERS')"
    spark.sql("create table t_orders using jstream")
    try:
        spark.sql(f"create temporary view v_source using jstream options {options}")
        spark.sql(f"create temporary view v_table as select * from t_orders with {options}")
        for view in ("v_source", "v_table"):
            spark.sql(f"cache table {view}")
            assert spark.sql(f"select count(*) from {view}").first()[0] == 3
        store.stream("ORDERS").append(orders(1))
        spark.sql("uncache table v_source")
        counts = [spark.sql(f"select count(*) from {view}").first()[0] for view in ("v_source", "v_table")]
        assert counts == [3 if SPARK >= (4, 1) else 4, 4]
    finally:
        spark.catalog.dropTempView("v_source")
        spark.catalog.dropTempView("v_table")
        spark.sql("drop table t_orders")


def test_table_takes_its_options_with_each_use(spark: Any, store: Store, orders: Make) -> None:
    store.stream("ORDERS").append(orders(3))
    spark.sql("create table t_orders using jstream")
    try:
        found = spark.sql(f"select count(*) from t_orders with (path='{store.paths[0]}', stream='ORDERS')")
        assert found.first()[0] == 3
        assert spark.read.options(path=store.paths[0], stream="ORDERS").table("t_orders").count() == 3
        with pytest.raises(Exception, match="option 'path' is missing"):
            spark.sql("select * from t_orders").collect()
    finally:
        spark.sql("drop table t_orders")


def test_table_with_options_is_refused_when_it_is_made(spark: Any, store: Store) -> None:
    with pytest.raises(Exception, match="Spark drops them whenever the table is used"):
        spark.sql(f"create table t_wrong using jstream options (path '{store.paths[0]}', stream 'ORDERS')")


# --- refusals reach the user with their words


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stream": "ORDER"}, "did you mean 'ORDERS'"),
        ({"stream": "ORDERS", "startingOfset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"subscribe": "ORDERS"}, r"OptionError: \[JSTREAM_OPTION\] unknown option 'subscribe'.*did you mean 'stream'"),
        ({"stream": "ORDERS", "maxOffsetsPerTrigger": "5"}, "is for streaming reads only"),
        ({"stream": "ORDERS", "consumer": "e t l"}, "option 'consumer': 'e t l' is not 1 to 128 of the characters"),
        ({"stream": "ORDERS", "writerId": "x"}, "'writerId' is for batch writes and streaming writes only"),
        ({"stream": "ORDERS", "startingOffsets": '{"ORDERS": 99}'}, "sequence 99 is beyond the end of stream 'ORDERS'"),
    ],
)
def test_wrong_reads_are_refused(options: dict[str, str], says: str, spark: Any, store: Store) -> None:
    with pytest.raises(Exception, match=says):
        spark.read.format("jstream").options(**options).load(store.paths[0]).collect()


def test_row_that_is_not_taken_fails_the_whole_write(spark: Any, read: Any, write: Any) -> None:
    frame = numbers(spark, 1000, 4).selectExpr("data", "if(data = '900', 'other.x', subject) as subject")
    with pytest.raises(Exception, match="subject 'other.x' is not taken; the stream takes orders.>"):
        write(frame, stream="ORDERS")
    assert read().count() == 0


def test_wrong_writes_are_refused(spark: Any, write: Any) -> None:
    with pytest.raises(Exception, match="unknown column 'id'"):
        write(spark.range(3), stream="ORDERS")
    with pytest.raises(Exception, match="Append.*or.*Overwrite"):
        write(numbers(spark, 3), mode="error", stream="ORDERS")


def test_register_by_hand(spark: Any, read: Any) -> None:
    register(spark)
    assert read().count() == 0
