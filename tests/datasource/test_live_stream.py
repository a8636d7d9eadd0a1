"""Streaming queries over a running server: limits, joins, what happens to streams, and a driver that is killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from harness.live_server import LiveServer, create_stream, fill, live_server, numbered
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from datasource.spark_versions import SAYS_LIMITS
from storage_core.live.server import consumers


@pytest.fixture
def server(tmp_path: Path) -> Any:
    with live_server(tmp_path / "server") as server:
        yield server


def query(spark: SparkSession, server: LiveServer, folder: Path, **options: Any) -> StreamingQuery:
    """Start a query that stores what is there, and wait for its end."""
    read = spark.readStream.format("jstream").option("startingOffsets", "earliest").options(**{"stream": "A"} | options)
    write = read.load(server.url).select("stream", "sequence", "data").writeStream
    started = write.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    running = started.start(str(folder / "out"), format="parquet")
    running.awaitTermination()
    return running


def stored(spark: SparkSession, folder: Path, stream: str = "A") -> list[int]:
    rows = spark.read.parquet(str(folder / "out")).where(f"stream = '{stream}'").select("sequence").collect()
    return sorted(row.sequence for row in rows)


def test_query_goes_by_limits_and_through_all_that_happens_to_a_stream(
    spark: SparkSession, server: LiveServer, tmp_path: Path
) -> None:
    with server.connect() as connection:
        create_stream(connection, "A")
        fill(connection, "A", numbered("A", 1_000))
    first = query(spark, server, tmp_path, stream="*", maxOffsetsPerTrigger=400, trigger="availableNow", consumer="etl")
    counts = [progress["numInputRows"] for progress in first.recentProgress if progress["numInputRows"]]
    assert counts == ([400, 400, 200] if SAYS_LIMITS else [1_000])
    assert stored(spark, tmp_path) == list(range(1, 1_001))
    with server.connect() as connection:
        (shown,) = consumers(connection, "A")
        assert (shown["name"], shown["num_pending"]) == ("etl", 0 if SAYS_LIMITS else 1_000)
        connection.request("CONSUMER.DELETE", "A", "etl")
        create_stream(connection, "B")  # joins
        fill(connection, "B", numbered("B", 10))
    server.stop()
    shutil.copytree(server.store, tmp_path / "older")
    server.start()
    with server.connect() as connection:
        fill(connection, "A", numbered("A", 100))
    query(spark, server, tmp_path, stream="*")
    assert stored(spark, tmp_path) == list(range(1, 1_101))
    assert stored(spark, tmp_path, "B") == list(range(1, 11))

    # The server comes back with an older copy, and grows over the end of what was read.
    server.stop()
    shutil.rmtree(server.store)
    shutil.copytree(tmp_path / "older", server.store)
    server.start()
    with server.connect() as connection:
        fill(connection, "A", numbered("A", 150))
    with pytest.raises(Exception, match="JSTREAM_DATA_LOSS.*lost its end, and other messages have those sequences"):
        query(spark, server, tmp_path, stream="*")
    query(spark, server, tmp_path, stream="*", failOnDataLoss="false")
    assert stored(spark, tmp_path) == sorted([*range(1, 1_101), *range(1_001, 1_151)])

    with server.connect() as connection:
        fill(connection, "A", numbered("A", 50))
        connection.request("STREAM.PURGE", "A", body={"seq": 1_161})
    with pytest.raises(Exception, match="JSTREAM_DATA_LOSS.*sequences 1151 to 1160 were removed"):
        query(spark, server, tmp_path, stream="*")
    query(spark, server, tmp_path, stream="*", failOnDataLoss="false")
    assert stored(spark, tmp_path)[-40:] == list(range(1_161, 1_201))

    with server.connect() as connection:
        connection.request("STREAM.DELETE", "A")
        create_stream(connection, "A")
        fill(connection, "A", numbered("A", 5))
    with pytest.raises(Exception, match="JSTREAM_DATA_LOSS.*made again"):
        query(spark, server, tmp_path, stream="*")
    query(spark, server, tmp_path, stream="*", failOnDataLoss="false")
    assert stored(spark, tmp_path).count(5) == 2


SESSION = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from conftest import set_environment
set_environment()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
"""
QUERY = """
count = 0
def store(batch, number):
    global count
    batch.write.mode("overwrite").parquet({out!r} + "/" + str(number))
    count += 1
    if count == {kill_at}:
        os.killpg(0, signal.SIGKILL)
read = spark.readStream.format("jstream").option("stream", "A").option("startingOffsets", "earliest")
read = read.option("maxOffsetsPerTrigger", 1000).option("trigger", "availableNow").load({url!r})
write = read.writeStream.option("checkpointLocation", {checkpoint!r}).trigger(availableNow=True)
write.foreachBatch(store).start().awaitTermination()
"""


def test_query_whose_driver_is_killed_ends_equal_to_the_stream(
    spark: SparkSession, server: LiveServer, tmp_path: Path
) -> None:
    with server.connect() as connection:
        create_stream(connection, "A")
        fill(connection, "A", numbered("A", 6_000))
    paths = {"out": str(tmp_path / "out"), "checkpoint": str(tmp_path / "checkpoint"), "url": server.url}
    killed = (SESSION + QUERY).format(tests=str(Path(__file__).parents[1]), kill_at=2 if SAYS_LIMITS else 1, **paths)
    done = subprocess.run([sys.executable, "-c", killed], start_new_session=True, check=False)
    assert done.returncode == -signal.SIGKILL
    exec(QUERY.format(kill_at=0, **paths), {"spark": spark})
    rows = spark.read.parquet(*map(str, sorted((tmp_path / "out").iterdir()))).select("sequence", "data").collect()
    assert sorted(row.sequence for row in rows) == list(range(1, 6_001))
    assert {row.sequence: bytes(row.data) for row in rows}[77] == b"message 76"
    newest = max((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    assert json.loads(newest.read_text().splitlines()[-1])["A"]["sequence"] == 6_001


FOLLOWER = """
import sys
sys.path.insert(0, {tests!r})
from conftest import set_environment
set_environment()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
def store(batch, number):
    batch.write.mode("overwrite").parquet({out!r} + "/" + str(number))
    print("batch", number, flush=True)
read = spark.readStream.format("jstream").option("stream", "A").option("startingOffsets", "earliest")
read = read.option("maxOffsetsPerTrigger", 2000).option("trigger", "processingTime").load({url!r})
write = read.writeStream.option("checkpointLocation", {checkpoint!r})
write = write.trigger(availableNow=True) if sys.argv[1:] else write
write.foreachBatch(store).start().awaitTermination()
"""


@pytest.mark.soak
def test_query_that_is_killed_or_stopped_ten_times_ends_equal_to_the_stream(
    spark: SparkSession, server: LiveServer, tmp_path: Path
) -> None:
    with server.connect() as connection:
        create_stream(connection, "A")
        last = fill(connection, "A", numbered("A", 5_000))
    paths = {"out": str(tmp_path / "out"), "checkpoint": str(tmp_path / "checkpoint"), "url": server.url}
    script = FOLLOWER.format(tests=str(Path(__file__).parents[1]), **paths)
    for number in range(10):
        command = [sys.executable, "-c", script]
        with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            with server.connect() as connection:
                last = fill(connection, "A", numbered("A", 5_000, last))
            process.stdout.readline()
            if number % 2:  # the server is silent for longer than it may, then all of the query is stopped
                server.send(signal.SIGSTOP)
                time.sleep(12)
                server.send(signal.SIGCONT)
                process.stdout.readline()
                os.killpg(process.pid, signal.SIGSTOP)
                time.sleep(1)
                os.killpg(process.pid, signal.SIGCONT)
            os.killpg(process.pid, signal.SIGKILL)
    subprocess.run([sys.executable, "-c", script, "to the end"], start_new_session=True, check=True)
    rows = spark.read.parquet(*map(str, sorted((tmp_path / "out").iterdir()))).select("sequence", "data").collect()
    assert sorted((row.sequence, bytes(row.data)) for row in rows) == [
        (number + 1, b"message %d" % number) for number in range(last)
    ]
    print(f"10 kills and stops, {len(rows)} messages equal")
