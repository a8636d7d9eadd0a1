"""The data source on volumes in object stores, as Spark calls it and in a real session, with a server on loopback."""

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from harness.objects.server import SECRET, Faults, serving

from datasource.settings import ReadSettings, StreamReadSettings, WriteSettings
from datasource.spark_versions import ReadAllAvailable
from datasource.stream_reader import MessageStreamReader
from datasource.stream_source import StreamSource
from storage_core import Store
from storage_core.errors import StoreBusyError
from storage_core.schema import READ_SCHEMA

from .conftest import Driver, travel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = {"name": "ORDERS", "subjects": ["orders.>"]}

# A query: it reads one batch of at most 100 messages and begins with the next, so that the first one is acknowledged.
QUERY = """
import json, sys
from datasource.spark_versions import ReadMaxRows
from datasource.settings import StreamReadSettings
from datasource.stream_source import StreamSource
from storage_core.store.consumers import leases
leases.RENEW_S = 0.1
source = StreamSource(StreamReadSettings.parse(json.loads(sys.argv[1])))
start = source.initial()
for _ in range(2):
    start = source.latest(start, ReadMaxRows(100))
print(json.dumps(start), flush=True)
sys.stdin.read()
"""


def spelled(options: dict[str, str]) -> dict[str, str]:
    """Return settings of an object store as Spark's options."""
    return {f"storage.{key}": value for key, value in options.items()}


@pytest.fixture
def store(buckets: list[str], s3_options: dict[str, str]) -> Store:
    made = Store.create(buckets, storage_options=s3_options)
    made.add_stream(ORDERS)
    return made


@pytest.mark.parametrize("settings", [ReadSettings.parse, StreamReadSettings.parse, WriteSettings.parse_streaming])
def test_settings_of_an_object_store_are_kept_and_never_shown(settings: Any) -> None:
    given = {"path": "s3a://bucket/shop", "stream": "ORDERS", "storage.AWS_Secret_Access_Key": SECRET}
    parsed = settings(given)
    assert parsed.paths == ("s3://bucket/shop",)
    assert parsed.storage == {"aws_secret_access_key": SECRET}
    assert SECRET not in repr(parsed)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"path": "/data/shop", "storage.aws_region": "x"}, "option 'storage.aws_region' is for volumes in object"),
        ({"path": "az://shop", "storage.azure_storage_account_key": SECRET}, "AZURE_STORAGE_ACCOUNT_KEY in the env"),
        ({"path": "az://shop", "storage.azure_storage_sas_key": SECRET}, "Spark would show it"),
        ({"path": "gs://shop", "storage.google_service_account_key": SECRET}, "Spark would show it"),
        ({"path": "s3://bucket/shop", "storage.proxy_url": f"http://me:{SECRET}@proxy:3128"}, "Spark would show it"),
        ({"path": "s3://bucket/shop", "storage.": "x"}, "names no setting"),
        ({"path": "s3://bucket/shop", "layout": "nats"}, "layout=nats reads local folders"),
        ({"path": "hdfs://host/shop"}, "is not a local path"),
    ],
)
def test_settings_that_cannot_be_are_refused_without_their_values(options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        ReadSettings.parse({"stream": "ORDERS", **options})
    assert SECRET not in str(caught.value)


def test_rows_go_to_an_object_store_and_back_and_secrets_stay_nowhere(
    store: Store,
    buckets: list[str],
    s3_options: dict[str, str],
    s3_root: Path,
    orders: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    driver = Driver(buckets[1])
    options: dict[str, Any] = spelled(s3_options)
    driver.write(orders(300), orders(200, first=300), stream="ORDERS", writerId="loader", batchId="1", **options)
    driver.write(orders(300), orders(200, first=300), stream="ORDERS", writerId="loader", batchId="1", **options)
    table = driver.read(stream="ORDERS", **options)
    assert table["data"].to_pylist() == [f"order {number}".encode() for number in range(500)]
    _, partitions = driver.plan(stream="ORDERS", **options)
    said = [repr(partitions), repr(store), repr(store.stream("ORDERS")), repr(store.events()), *caplog.messages]
    assert SECRET not in "".join(said)
    kept = [path for bucket in buckets for path in (s3_root / bucket.split("/")[2]).rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if SECRET.encode() in path.read_bytes()]


def test_second_query_of_a_consumer_is_refused_until_the_first_is_killed(
    store: Store, buckets: list[str], s3_options: dict[str, str], orders: Any
) -> None:
    Driver(buckets[1]).write(orders(300), stream="ORDERS", **spelled(s3_options))
    given = {"path": buckets[0], "stream": "ORDERS", "consumer": "billing"} | spelled(s3_options)
    command = [sys.executable, "-c", QUERY, json.dumps(given)]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None
        assert json.loads(first.stdout.readline())["ORDERS"]["sequence"] == 201, "the second batch is under way"
        second = StreamSource(StreamReadSettings.parse(given))
        with pytest.raises(StoreBusyError) as refused:
            second.initial()
        assert (refused.value.stream, refused.value.consumer) == ("ORDERS", "billing")
        assert f"process {first.pid}" in str(refused.value)
    finally:
        first.kill()
        first.communicate()
    start = second.initial()
    assert start["ORDERS"]["sequence"] == 101, "behind the batch that was finished"
    end = second.latest(start, ReadAllAvailable())
    tasks = MessageStreamReader(StreamReadSettings.parse(given), pa.schema([READ_SCHEMA.field("sequence")]))
    batches = [batch for part in second.partitions(start, end) for batch in travel(tasks).read(part)]
    assert pa.Table.from_batches(batches)["sequence"].to_pylist() == list(range(101, 301))
    second.acknowledge(end)
    second.close()
    info = store.stream("ORDERS").consumer("billing").info()
    assert info["ack_floor"]["stream_seq"] == 300
    assert "consumer_taken_over" in [event["kind"] for event in info["events"]]


def test_idle_query_looks_once_a_second(
    store: Store, buckets: list[str], s3_root: Path, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults, now_s = Faults(), [0.0]
    asked: list[str] = []
    with serving(s3_root, faults) as options:
        given = {"path": buckets[0], "stream": "ORDERS", "startingOffsets": "earliest"} | spelled(options)
        source = StreamSource(StreamReadSettings.parse(given), lambda: now_s[0])

        def sleep(seconds: float) -> None:
            now_s[0] += seconds

        monkeypatch.setattr(source._store, "_env", replace(source._store.environment, sleep=sleep))
        start = source.initial()
        assert source.latest(start, ReadAllAvailable()) == start
        faults.judge = lambda verb, address: asked.append(verb) or ""  # type: ignore[func-returns-value]
        for _ in range(10):
            assert source.latest(start, ReadAllAvailable()) == start
            now_s[0] += 0.01
        assert 9 <= now_s[0] <= 11
        assert len(asked) <= 11 * 2 * len(buckets), "a listing and a record"
        Driver(buckets[1]).write(orders(300), stream="ORDERS", **spelled(options))
        assert source.latest(start, ReadAllAvailable()) != start


@pytest.mark.spark
def test_spark_reads_and_writes_a_bucket_in_batches_and_streaming(
    spark: "SparkSession", store: Store, buckets: list[str], s3_options: dict[str, str], tmp_path: Path
) -> None:
    def texts(frame: Any) -> list[str]:
        return [row.data.decode() for row in frame.orderBy("sequence").collect()]

    options = {**spelled(s3_options), "stream": "ORDERS"}
    rows = spark.range(100).selectExpr("concat('orders.', id % 3) AS subject", "CAST(id AS STRING) AS text")
    rows = rows.selectExpr("subject", "encode(text, 'utf-8') AS data")
    rows.write.format("jstream").options(**options).mode("append").save(buckets[0])
    frame = spark.read.format("jstream").options(**options).load(buckets[0])
    assert sorted(texts(frame), key=int) == [str(number) for number in range(100)]

    store.add_stream({"name": "COPY", "subjects": ["copies.>"]})
    checkpoint = tmp_path / "checkpoint"
    read = spark.readStream.format("jstream").options(**options, startingOffsets="earliest").load(buckets[0])
    copied = read.selectExpr("concat('copies.', sequence) AS subject", "data").writeStream.format("jstream")
    copied = copied.options(**{**options, "stream": "COPY"}).option("checkpointLocation", str(checkpoint))
    shown = [frame._jdf.queryExecution().toString(), frame._jdf.queryExecution().explainString(_extended(spark))]
    for expected in (100, 200):
        query = copied.trigger(availableNow=True).start(buckets[2])
        query.awaitTermination(120)
        assert query.exception() is None
        shown += [json.dumps(str(query.recentProgress)), query._jsq.toString()]
        assert store.stream("COPY").read().read_all().num_rows == expected
        rows.write.format("jstream").options(**options).mode("append").save(buckets[0])
    kept = b"".join(path.read_bytes() for path in checkpoint.rglob("*") if path.is_file())
    assert b"ORDERS" in kept and SECRET.encode() not in kept
    assert SECRET not in "".join(shown)


def _extended(spark: "SparkSession") -> Any:
    return spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("extended")
