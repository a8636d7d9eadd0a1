"""Queries with joins, state and merges: cases in which users of other sources reported wrong rows."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.streaming_query import Query

from datasource.spark_versions import SPARK
from storage_core import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
MINUTE_NS = 60 * 10**9
Read = Callable[..., "DataFrame"]
Each = Callable[["DataFrame", int], None]
Run = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def read(spark: "SparkSession", store: Store) -> Read:
    """Reads a stream from its first message, in a query whose trigger has an interval."""

    def load(stream: str = "ORDERS", **options: Any) -> "DataFrame":
        given = {"stream": stream, "startingOffsets": "earliest", "trigger": "processingTime", **options}
        return spark.readStream.format("jstream").options(**given).load(store.paths[0])

    return load


@pytest.fixture
def run(spark: "SparkSession", tmp_path: Path) -> Run:
    """Runs a query until nothing is left, also no batch that only moves a watermark, and returns its rows, sorted.

    All runs of a test have one checkpoint.
    """

    def go_on(frame: "DataFrame", each: Each = lambda frame, number: None, **options: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []

        def work(batch: "DataFrame", number: int) -> None:
            rows.extend(map(tuple, batch.collect()))
            each(batch, number)

        writer = frame.writeStream.foreachBatch(work).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = Query(spark, "", tmp_path, {}, launch=writer.options(**options).start)
        query.running = query.launch()
        try:
            query.caught_up()
        finally:
            query.stop()
        return sorted(rows)

    return go_on


def put(store: Store, stream: str, *at_minutes: int) -> None:
    """Append a message of each minute, whose data is the minute."""
    subject = {"ORDERS": "orders.new", "ORDERS_EU": "eu.new"}[stream]
    rows = [{"subject": subject, "data": b"%d" % at, "timestamp_ns": at * MINUTE_NS} for at in at_minutes]
    store.stream(stream).append(rows)


# --- joins


def test_a_stream_joined_with_itself_gives_each_pair_once(read: Read, run: Run, store: Store) -> None:
    def pairs(first: int, end: int) -> list[tuple[int, int]]:
        """Return the pairs of sequences with the same remainder, of which the higher one is new."""
        sequences = range(1, end)
        candidates = ((left, right) for left in sequences for right in sequences if left % 3 == right % 3)
        return [pair for pair in candidates if max(pair) >= first]

    messages = read(maxOffsetsPerTrigger=4).selectExpr("sequence", "sequence % 3 AS rest")
    other = messages.selectExpr("sequence AS other", "rest")
    joined = messages.join(other, "rest").select("sequence", "other")
    put(store, "ORDERS", *range(10))
    assert run(joined) == pairs(1, 11)
    put(store, "ORDERS", *range(10, 13))
    assert run(joined) == pairs(11, 14)


def test_an_outer_join_gives_what_has_no_match_once_and_nothing_again_after_a_restart(
    read: Read, run: Run, store: Store
) -> None:
    orders = read().selectExpr("sequence", "timestamp AS ordered").withWatermark("ordered", "1 minute")
    paid = read("ORDERS_EU").selectExpr("sequence AS paid", "timestamp AS at").withWatermark("at", "1 minute")
    joined = orders.join(paid, paid["at"] == orders["ordered"], "left_outer").selectExpr(
        "sequence", "coalesce(paid, 0)"
    )
    put(store, "ORDERS", *range(1, 12))
    put(store, "ORDERS_EU", *range(2, 11, 2))
    matched = [(at, at // 2) for at in range(2, 11, 2)]
    unmatched = [(at, 0) for at in range(1, 10, 2)]  # the watermark stands at minute 9
    assert run(joined) == sorted(matched + unmatched)
    assert run(joined) == []
    put(store, "ORDERS", 60)
    put(store, "ORDERS_EU", 60)
    assert run(joined) == [(11, 0), (12, 6)]


# --- the same message from two reads


def test_duplicates_of_two_reads_go_also_when_they_come_batches_apart(read: Read, run: Run, store: Store) -> None:
    both = read(maxOffsetsPerTrigger=8).union(read(maxOffsetsPerTrigger=3)).selectExpr("sequence", "timestamp")
    once = both.withWatermark("timestamp", "1 hour").dropDuplicatesWithinWatermark(["sequence"]).select("sequence")
    put(store, "ORDERS", *range(1, 16))
    assert run(once) == [(at,) for at in range(1, 16)]
    put(store, "ORDERS", *range(16, 21))
    assert run(once) == [(at,) for at in range(16, 21)]


def test_a_query_that_reads_twice_by_one_consumer_is_told_so(read: Read, run: Run, store: Store) -> None:
    put(store, "ORDERS", 1)
    with pytest.raises(Exception, match=r"(?s)consumer 'etl' of stream 'ORDERS'.*also if one query reads twice by"):
        run(read(consumer="etl").union(read(consumer="etl")))


# --- tables beside a stream


def test_a_static_side_is_as_old_as_its_first_use_and_one_that_is_loaded_in_the_batch_is_new(
    spark: Any, read: Read, run: Run, store: Store
) -> None:
    """Each batch changes the table that the stream is joined with; the third also unlinks what the first one read."""
    store.edit_stream({"name": "ORDERS_EU", "max_msgs_per_subject": 1})
    store.stream("ORDERS_EU").publish("eu.name", b"0")

    def names() -> "DataFrame":
        reader = spark.read.format("jstream").options(stream="ORDERS_EU", table="last")
        return reader.load(store.paths[0]).selectExpr("cast(data AS string) AS name")

    loaded = []

    def change(frame: "DataFrame", number: int) -> None:
        loaded.extend(row.name for row in names().collect())
        store.stream("ORDERS_EU").publish("eu.name", b"%d" % (number + 1))
        if number == 2:
            store.edit(deleted_block_retention="0s")
            store.maintain()

    joined = read(maxOffsetsPerTrigger=2).crossJoin(names()).select("sequence", "name")
    put(store, "ORDERS", *range(6))
    plans_once = SPARK >= (4, 1)
    assert run(joined, change) == [(at + 1, "0" if plans_once else str(at // 2)) for at in range(6)]
    assert loaded == ["0", "1", "2"]
    put(store, "ORDERS", 6)
    if plans_once:
        with pytest.raises(Exception, match="(?s)JSTREAM_STALE_PLAN.*load a DataFrame again"):
            run(joined)
    assert run(read(maxOffsetsPerTrigger=2).crossJoin(names()).select("sequence", "name")) == [(7, "3")]


@pytest.mark.delta
def test_a_merge_that_is_repeated_leaves_each_change_once_in_the_change_feed(
    delta_spark: Any, run: Run, store: Store, tmp_path: Path
) -> None:
    """The query fails behind its second merge, and the changes of the table are rows of a stream at the end."""
    table = f"delta.`{tmp_path / 'table'}`"
    columns = "USING delta TBLPROPERTIES (delta.enableChangeDataFeed=true)"
    delta_spark.sql(f"CREATE TABLE {table} (id STRING, sequence LONG) {columns}")
    fails_at = {1}

    def merge(frame: "DataFrame", number: int) -> None:
        frame.createOrReplaceTempView("batch")
        frame.sparkSession.sql(f"""
            MERGE INTO {table} AS t USING (SELECT id, max(sequence) AS sequence FROM batch GROUP BY id) AS b
            ON t.id = b.id WHEN MATCHED AND t.sequence < b.sequence THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *
        """)
        if number in fails_at:
            fails_at.clear()
            raise RuntimeError("the batch failed")

    reader = delta_spark.readStream.format("jstream").options(stream="ORDERS", startingOffsets="earliest")
    messages = reader.options(maxOffsetsPerTrigger=4, trigger="processingTime").load(store.paths[0])
    messages = messages.selectExpr("concat('o', sequence % 3) AS id", "sequence")
    put(store, "ORDERS", *range(12))
    with pytest.raises(Exception, match="the batch failed"):
        run(messages, merge)
    assert len(run(messages, merge)) == 8  # batch 1 once more, and batch 2
    feed = delta_spark.readStream.format("delta").options(readChangeFeed="true", startingVersion=0)
    changes = feed.load(str(tmp_path / "table")).where("_change_type <> 'update_preimage'")
    writer = changes.selectExpr("'eu.change' AS subject", "cast(sequence AS string) AS data").writeStream
    writer = writer.format("jstream").options(stream="ORDERS_EU", checkpointLocation=str(tmp_path / "of changes"))
    for _ in range(2):  # the second run has nothing to store
        writer.trigger(availableNow=True).start(store.paths[0]).awaitTermination()
    published = store.stream("ORDERS_EU").read(columns=["data"]).read_all()["data"].to_pylist()
    assert sorted(map(int, published)) == [2, 3, 4, 6, 7, 8, 10, 11, 12]  # the newest of each id in each batch


# --- how Spark notes its progress, and what it stores


def test_progress_that_is_noted_late_loses_nothing_of_a_work_queue(
    read: Read, run: Run, store: Store, tmp_path: Path
) -> None:
    """Spark notes the first batch only. Messages that the query has acknowledged are gone, and do not come again."""
    late = {
        "asyncProgressTrackingEnabled": "true", "asyncProgressTrackingCheckpointIntervalMs": "3600000",
        "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
    }  # fmt: skip
    store.add_stream({"name": "QUEUE", "subjects": ["queue"], "retention": "workqueue"})
    store.stream("QUEUE").append([{"subject": "queue", "data": b"x"}] * 10)
    messages = read("QUEUE", consumer="etl", maxOffsetsPerTrigger=3).select("sequence")
    assert run(messages, **late) == [(at,) for at in range(1, 11)]
    assert [file.name for file in (tmp_path / "checkpoint" / "offsets").iterdir() if file.name.isdigit()] == ["0"]
    store.stream("QUEUE").append([{"subject": "queue", "data": b"x"}] * 5)
    assert run(messages, **late) == [(at,) for at in range(11, 16)]


def test_counts_in_complete_mode_are_the_newest_ones_alone(
    spark: Any, read: Read, store: Store, tmp_path: Path
) -> None:
    counts = read(maxOffsetsPerTrigger=4).groupBy("subject").count()
    writer = counts.selectExpr("'eu.n' AS subject", "cast(count AS string) AS data").writeStream.format("jstream")
    writer = writer.options(stream="ORDERS_EU", checkpointLocation=str(tmp_path / "checkpoint")).outputMode("complete")
    provider = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(provider, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    try:
        for count in (10, 15):
            put(store, "ORDERS", *range(count - store.stream_state("ORDERS").message_count))
            query = Query(spark, "", tmp_path, {}, launch=lambda: writer.start(store.paths[0]))
            query.running = query.launch()
            query.caught_up().stop()
            assert store.stream("ORDERS_EU").read(columns=["data"]).read_all()["data"].to_pylist() == [b"%d" % count]
    finally:
        spark.conf.unset(provider)
