"""Writes to a running server by Spark: columns, modes, and a query whose last batch comes again."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.live_server import LiveServer, create_stream, fill, live_server, numbered
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from storage_core.live.server import stream_info


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(tmp_path_factory.mktemp("nats") / "server") as server:
        with server.connect() as connection:
            for name in ("IN", "OUT", "COPY"):
                create_stream(connection, name, allow_atomic=True)
            create_stream(connection, "PLAIN", subjects=["plain"])
            fill(connection, "IN", numbered("IN", 3_000))
        yield server


def count(server: LiveServer, stream: str) -> int:
    with server.connect() as connection:
        return stream_info(connection, stream).message_count


def read(spark: SparkSession, server: LiveServer, stream: str) -> DataFrame:
    return spark.read.format("jstream").option("stream", stream).load(server.url)


def test_frames_are_written_as_they_are_read(spark: SparkSession, server: LiveServer) -> None:
    rows = read(spark, server, "IN").select(
        "sequence", F.regexp_replace("subject", "^IN", "OUT").alias("subject"), "data"
    )
    write = rows.write.format("jstream").mode("append").option("stream", "OUT")
    write.option("writerId", "etl").option("batchId", "7").save(server.url)
    write.option("writerId", "etl").option("batchId", "7").save(server.url)  # again: nothing is stored twice
    copied = read(spark, server, "OUT").where("subject NOT LIKE '%.marker.%'")
    assert copied.select("subject", "data").exceptAll(rows.select("subject", "data")).count() == 0
    assert copied.count() == 3_000
    texts = spark.createDataFrame([("one", "a"), ("two", "b"), ("one", "a")], "data STRING, msg_id STRING")
    texts.coalesce(1).write.format("jstream").mode("append").option("stream", "PLAIN").save(server.url)
    assert [bytes(row.data) for row in read(spark, server, "PLAIN").orderBy("sequence").collect()] == [b"one", b"two"]


@pytest.mark.parametrize(
    ("options", "mode", "says"),
    [
        ({"stream": "OUT"}, "overwrite", "overwrite"),
        ({}, "append", "'stream' is missing"),
        ({"stream": "OUT", "exactlyOnce": "twice"}, "append", "exactlyonce.*marker, atomic, msgid, none"),
        ({"stream": "PLAIN", "exactlyOnce": "marker"}, "append", "allow_atomic"),
        ({"stream": "OUT"}, "append", "no subject"),
        ({"stream": "OUT", "subject": "IN.x"}, "append", "takes OUT.>, not 'IN.x'"),
        ({"stream": "NONE", "subject": "x"}, "append", "no stream 'NONE'"),
        ({"stream": "OUT", "subject": "OUT.x", "compression": "lz4"}, "append", "'compression' is for stores"),
        ({"stream": "OUT", "subject": "OUT.x", "expectedLastSequence": "0"}, "append", "'expectedLastSequence' is for"),
    ],
)
def test_writes_that_cannot_be_are_refused_before_a_task_runs(
    spark: SparkSession, server: LiveServer, options: dict[str, str], mode: str, says: str
) -> None:
    before = count(server, "OUT")
    with pytest.raises(Exception, match=f"(?i){says}"):
        spark.range(1).select(F.lit("x").alias("data")).write.format("jstream").mode(mode).options(**options).save(
            server.url
        )
    assert count(server, "OUT") == before


def test_batch_of_a_query_that_comes_again_is_stored_once(
    spark: SparkSession, server: LiveServer, tmp_path: Path
) -> None:
    def run() -> None:
        rows = spark.readStream.format("jstream").option("stream", "IN").option("startingOffsets", "earliest")
        rows = rows.option("maxOffsetsPerTrigger", 1_000).option("trigger", "availableNow").load(server.url)
        renamed = rows.withColumn("subject", F.regexp_replace("subject", "^IN", "COPY")).drop("stream")
        write = renamed.writeStream.format("jstream").option("stream", "COPY").trigger(availableNow=True)
        write.option("checkpointLocation", str(tmp_path / "checkpoint")).start(server.url).awaitTermination()

    run()
    first = count(server, "COPY")
    assert first > 3_000  # a marker for each part of each batch
    newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    shutil.move(newest, tmp_path / "taken")  # as if the driver had died before it wrote it
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    run()
    assert count(server, "COPY") == first
    assert read(spark, server, "COPY").where("subject NOT LIKE '%.marker.%'").count() == 3_000
