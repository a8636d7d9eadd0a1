"""The streaming sink in a real session: a file source, whose batches are as many files as a test says."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

from pyspark_jstream import DefaultSource, register
from storage_core import Store
from storage_core.store.environment import REAL
from storage_core.store.writing.appends import WriterBatch
from storage_core.store.writing.staging import Stager

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark
Change = Callable[["DataFrame"], "DataFrame"]
TIMEOUT_S = 300


class Pipeline:
    """Files of numbers, and a query that stores them in ORDERS."""

    def __init__(self, spark: "SparkSession", store: Store, place: Path) -> None:
        self.spark, self.store, self.place = spark, store, place
        self.checkpoint = place / "checkpoint"
        self._count = 0
        (place / "files").mkdir()

    def put(self, first: int, end: int) -> None:
        """Add a file with the numbers [first, end)."""
        path = self.place / "files" / f"{self._count:03}.parquet"
        pq.write_table(pa.table({"number": pa.array(range(first, end), pa.int64())}), path)
        os.utime(path, (1_700_000_000 + self._count,) * 2)  # the source takes the oldest first
        self._count += 1

    def start(
        self,
        change: Change = lambda rows: rows.selectExpr("cast(number as string) as data"),
        files_a_batch: int = 1,
        mode: str = "append",
        provider: str = "jstream",
        trigger: dict[str, Any] | None = None,
        **options: str,
    ) -> "StreamingQuery":
        source = self.spark.readStream.schema("number long").option("maxFilesPerTrigger", str(files_a_batch))
        writer = change(source.parquet(str(self.place / "files"))).writeStream.format(provider).outputMode(mode)
        given = {"stream": "ORDERS", "subject": "orders.new", "checkpointLocation": str(self.checkpoint), **options}
        return writer.options(**given).trigger(**(trigger or {"availableNow": True})).start(self.store.paths[0])

    def run(self, *arguments: Any, **options: Any) -> "StreamingQuery":
        """Let the query store all that is there; raises what it fails with."""
        query = self.start(*arguments, **options)
        assert query.awaitTermination(TIMEOUT_S)
        return query

    def forget_commit(self, batch: int) -> None:
        """Take away what Spark wrote when the batch was done."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def data(self) -> list[str]:
        table = self.store.stream("ORDERS").read(columns=["data"]).read_all()
        return [one.decode() for one in table["data"].to_pylist()]

    def numbers(self) -> list[int]:
        return [int(one) for one in self.data()]


@pytest.fixture
def pipeline(spark: "SparkSession", store: Store, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, store, tmp_path)


def failing(place: Path) -> type:
    """Return the data source `failing`: jstream, whose commits fail before the file `before`, `after` is there."""
    folder = str(place)

    class Failing(DefaultSource):  # type: ignore[misc, valid-type]
        @classmethod
        def name(cls) -> str:
            return "failing"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            writer = super().streamWriter(schema, overwrite)
            commit = writer.commit

            def fail_once(when: str) -> None:
                path = os.path.join(folder, when)
                if not os.path.exists(path):
                    open(path, "x").close()
                    raise RuntimeError(f"the test fails the commit {when} its effect")

            def commit_and_fail(messages: Any, batch: int) -> None:
                fail_once("before")
                commit(messages, batch)
                fail_once("after")

            writer.commit = commit_and_fail
            return writer

    return Failing


def test_each_message_is_stored_once_through_restarts_and_lost_commits(pipeline: Pipeline) -> None:
    def change(rows: "DataFrame") -> "DataFrame":
        return rows.selectExpr("concat(spark_partition_id(), ':', number) as data")

    sizes = (30, 20, 25)
    for at, size in enumerate(sizes):
        pipeline.put(100 * at, 100 * at + size)
    pipeline.run(change, files_a_batch=2)
    pipeline.forget_commit(1)
    pipeline.put(300, 310)
    pipeline.run(change, files_a_batch=2)
    for batch in range(3):
        pipeline.forget_commit(batch)
    query = pipeline.run(change, files_a_batch=2)

    found = [(int(partition), int(number)) for partition, _, number in (one.partition(":") for one in pipeline.data())]
    assert sorted(number for _, number in found) == [
        number for at, size in enumerate((*sizes, 10)) for number in range(100 * at, 100 * at + size)
    ]
    batches = [found[:50], found[50:75], found[75:]]
    assert {partition for partition, _ in batches[0]} == {0, 1}, "the files were not read by two tasks"
    for batch in batches:
        assert batch == sorted(batch), "rows have not kept the order of their partition"
    (writer,) = pipeline.store.view().state.stream("ORDERS").writers
    assert writer == str(query.id)


def test_commit_that_fails_before_or_after_its_effect_is_repeated_after_a_restart(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    register(pipeline.spark)  # makes the session the one in which Spark looks data sources up
    pipeline.spark.dataSource.register(failing(tmp_path))
    pipeline.put(0, 10)
    with pytest.raises(StreamingQueryException, match="fails the commit before its effect"):
        pipeline.run(provider="failing")
    assert pipeline.numbers() == []
    assert not list(Path(pipeline.store.paths[0]).rglob("*.blk")), "the abort has left blocks"
    with pytest.raises(StreamingQueryException, match="fails the commit after its effect"):
        pipeline.run(provider="failing")
    assert pipeline.numbers() == list(range(10))
    pipeline.put(10, 20)
    pipeline.run()
    assert pipeline.numbers() == list(range(20))


def test_removed_checkpoint_of_a_named_writer_is_explained(pipeline: Pipeline) -> None:
    pipeline.put(0, 10)
    first = pipeline.run(writerId="etl")
    shutil.rmtree(pipeline.checkpoint)
    with pytest.raises(StreamingQueryException, match="Its checkpoint was removed") as caught:
        pipeline.run(writerId="etl")
    assert f"has written to stream 'ORDERS' as query {first.id}, up to batch 0" in str(caught.value)
    assert pipeline.numbers() == list(range(10))


def test_run_that_another_driver_superseded_stops_with_the_reason(pipeline: Pipeline, tmp_path: Path) -> None:
    def store_as_another_driver(batch: str) -> None:
        """Do what a second driver does that runs the query from a copy of its checkpoint."""
        transaction = pipeline.store.begin(["ORDERS"])
        stager = Stager(transaction, transaction.targets["ORDERS"], 0)
        stager.write(pa.record_batch({"subject": ["orders.new"] * 5, "data": [str(at) for at in range(10, 15)]}))
        writer = WriterBatch(str(query.id), batch, str(query.id), "another run")
        assert not pipeline.store.commit(transaction, stager.finish(), writer).already

    pipeline.put(0, 10)
    query = pipeline.start(trigger={"processingTime": "50 milliseconds"})
    query.processAllAvailable()
    store_as_another_driver("1")
    pipeline.put(10, 15)
    query.processAllAvailable()
    assert pipeline.numbers() == list(range(15))
    pipeline.put(15, 20)
    with pytest.raises(StreamingQueryException, match="another driver runs the same query") as caught:
        query.awaitTermination(TIMEOUT_S)
    assert f"run {query.runId} of writer {str(query.id)!r} was superseded by run another run" in str(caught.value)
    assert pipeline.numbers() == list(range(15))
    pipeline.run()
    assert pipeline.numbers() == list(range(20))


def test_a_query_on_another_host_writes_if_it_takes_the_store_over(pipeline: Pipeline) -> None:
    elsewhere = replace(REAL, lock_domain=lambda: "another machine")

    def messages() -> int:
        return pipeline.store.stream("ORDERS").state().message_count

    pipeline.put(0, 5)
    pipeline.run()
    Store.open(pipeline.store.paths, env=elsewhere, take_over=True)
    pipeline.put(5, 10)
    pipeline.put(10, 15)
    with pytest.raises(StreamingQueryException, match="OtherHostError.*takeOver"):
        pipeline.run()
    assert messages() == 5
    pipeline.run(takeOver="true")
    assert messages() == 15
    assert [event["kind"] for event in pipeline.store.events()].count("took_over") == 2


def test_driver_on_a_copy_of_the_checkpoint_is_refused_where_it_cuts_batches_elsewhere(pipeline: Pipeline) -> None:
    copy = pipeline.place / "copy"
    pipeline.put(0, 3)
    pipeline.run()
    copy.mkdir()
    shutil.copy(pipeline.checkpoint / "metadata", copy / "metadata")
    pipeline.put(3, 5)
    with pytest.raises(StreamingQueryException, match="from a copy of its checkpoint"):
        pipeline.run(files_a_batch=2, checkpointLocation=str(copy))
    pipeline.run()
    pipeline.put(5, 7)
    pipeline.run()
    assert pipeline.numbers() == list(range(7))


def test_a_batch_of_no_partitions_is_stored_under_its_number(pipeline: Pipeline) -> None:
    """Spark then has one task without rows write: the same batch with rows, of another driver, is refused."""
    pipeline.put(0, 3)
    nothing = pipeline.run(lambda rows: rows.where("1 = 0").selectExpr("cast(number as string) as data"))
    (writer,) = pipeline.store.stream_state("ORDERS").writers.values()
    assert (writer.query, writer.last_batch) == (nothing.id, 0)
    pipeline.forget_commit(0)
    with pytest.raises(StreamingQueryException, match="JSTREAM_FENCED"):
        pipeline.run()
    assert pipeline.numbers() == []


def test_complete_mode_keeps_the_newest_result_alone(pipeline: Pipeline) -> None:
    def totals(rows: "DataFrame") -> "DataFrame":
        return rows.groupBy("number").count().selectExpr("concat(number, ' x ', count) as data")

    pipeline.put(0, 3)
    pipeline.put(1, 3)
    query = pipeline.run(totals, mode="complete")
    assert sorted(pipeline.data()) == ["0 x 1", "1 x 2", "2 x 2"]
    assert query.lastProgress["batchId"] >= 1
    info = pipeline.store.stream("ORDERS").info()["state"]
    assert (info["messages"], info["first_seq"], info["last_seq"]) == (3, 4, 6)


def test_a_query_that_replaces_its_own_source_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    """As a sink before it has replaced anything; in foreachBatch, where Spark says less, before it does so again."""
    pipeline.put(0, 3)
    pipeline.run()
    path, spark = pipeline.store.paths[0], pipeline.spark
    messages = spark.readStream.format("jstream").options(stream="ORDER*", startingOffsets="earliest").load(path)

    def finish(writer: Any, name: str) -> None:
        query = writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start(path)
        query.awaitTermination(TIMEOUT_S)

    totals = messages.groupBy("data").count().selectExpr("'orders.total' as subject", "concat(data, ' x') as data")
    sink = totals.writeStream.format("jstream").option("stream", "ORDERS").outputMode("complete")
    with pytest.raises(StreamingQueryException, match="JSTREAM_REQUIREMENT.* 'ORDERS' would be replaced by query"):
        finish(sink, "complete")
    assert pipeline.numbers() == [0, 1, 2] and pipeline.store.events(kind="replaced") == []

    def overwrite(batch: "DataFrame", number: int) -> None:
        rows = batch.selectExpr("subject", "concat(data, '0') as data")
        rows.write.format("jstream").option("stream", "ORDERS").mode("overwrite").save(path)

    news = spark.readStream.format("jstream").options(stream="ORDER*", startingOffsets="latest").load(path)
    finish(news.writeStream.foreachBatch(overwrite), "news")
    assert pipeline.numbers() == [0, 1, 2], "Spark runs a first batch of nothing, and that replaces nothing"
    finish(messages.writeStream.foreachBatch(overwrite), "foreach")
    (event,) = pipeline.store.events(kind="replaced")
    assert (event["before"], event["after"][:6]) == ("3 messages, sequences 1 to 3", "query ")
    with pytest.raises(StreamingQueryException, match="JSTREAM_REQUIREMENT.* 'ORDERS' was replaced by query"):
        finish(messages.writeStream.foreachBatch(overwrite), "foreach")
    assert pipeline.numbers() == [0, 10, 20]


def test_msg_ids_are_stored_once_across_batches_and_writers(pipeline: Pipeline) -> None:
    def change(rows: "DataFrame") -> "DataFrame":
        return rows.selectExpr("cast(number as string) as data", "concat('id-', number) as msg_id")

    pipeline.put(0, 10)
    pipeline.put(5, 15)
    pipeline.run(change)
    assert pipeline.numbers() == list(range(15))
    again = pipeline.spark.range(12, 18, 1, 1).toDF("number")
    change(again).write.format("jstream").mode("append").options(stream="ORDERS", subject="orders.new").save(
        pipeline.store.paths[0]
    )
    assert pipeline.numbers() == list(range(18))
    stream = pipeline.store.view().state.stream("ORDERS")
    (writer,) = stream.writers.values()
    assert [writer.batches[batch].duplicate_count for batch in ("0", "1")] == [0, 5]
    assert stream.next_sequence == 1 + 10 + 10 + 6


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batchId": "7"}, "option 'batchId' is for batch writes only"),
        ({"mode": "update"}, "[Uu]pdate"),
        ({"stream": "ORDER"}, "no stream 'ORDER' in the store; did you mean 'ORDERS'"),
    ],
)
def test_wrong_streaming_writes_are_refused_by_name(pipeline: Pipeline, settings: dict[str, str], says: str) -> None:
    pipeline.put(0, 1)
    with pytest.raises(Exception, match=says):
        pipeline.run(**settings)
    assert pipeline.numbers() == []
