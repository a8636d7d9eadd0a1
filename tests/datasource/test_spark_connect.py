"""A Spark Connect server with the data source, and conf/spark-pipeline.yml: servers and clients are processes."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as dataset
import pyspark
import pytest

from datasource.spark_versions import SPARK
from spark_stream.spark_home import workers_from_bytecode
from storage_core import Store

pytestmark = pytest.mark.spark
PATIENCE_S = 300.0
ROOT = Path(__file__).resolve().parents[2]
PYSPARK = Path(pyspark.__file__).parent

# What a user's program does with a session of the server; prints what it found, a JSON document.
CLIENT = """
import json, sys, time
from pyspark.sql import SparkSession
from pyspark_jstream import Store, acknowledge, register, scan

remote, store, place = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
register(spark)
acknowledge(spark)
found = {"session": type(spark).__module__}

def reader(how, **options):
    return how.format("jstream").options(**{"stream": "ORDERS", **options}).load(store)

orders = [("orders.new", "bicycle"), ("orders.paid", "lamp"), ("orders.new", "bell")]
rows = spark.createDataFrame(orders, "subject string, data string").coalesce(1)
rows.write.format("jstream").option("stream", "ORDERS").mode("append").save(store)
found["read"] = [(row.sequence, bytes(row.data).decode()) for row in reader(spark.read, subject="orders.new").collect()]
found["scan"] = [row.sequence for row in scan(spark, store, "ORDERS", subject="orders.new").collect()]

def copy():
    messages = reader(spark.readStream, consumer="copying").selectExpr("'copy.order' AS subject", "data")
    query = messages.writeStream.format("jstream").option("stream", "COPY")
    query = query.option("checkpointLocation", f"{place}/copy")
    query.trigger(availableNow=True).start(store).awaitTermination()

copy()
copy()

def store_once(batch, number):
    rows = batch.selectExpr("'each.order' AS subject", "data")
    options = {"stream": "EACH", "writerId": "each", "batchId": str(number)}
    for again in range(2):
        rows.write.format("jstream").options(**options).mode("append").save(store)

query = reader(spark.readStream, consumer="each").writeStream.foreachBatch(store_once)
query = query.option("checkpointLocation", f"{place}/each").trigger(processingTime="1 hour").start()
deadline = time.monotonic() + 200
with Store.open(store) as opened:
    stream = opened.stream("ORDERS")
    while time.monotonic() < deadline and query.isActive:
        if "each" in stream.consumers() and stream.consumer("each").info()["ack_floor"]["stream_seq"] == 3:
            found["acknowledged while the query waits"] = query.isActive
            break
        time.sleep(0.1)
found["failure"] = str(query.exception() or "")
query.stop()

try:
    reader(spark.read, stream="ORDRES").collect()
except Exception as error:
    found["told"] = "did you mean 'ORDERS'" in str(error)
print("FOUND", json.dumps(found))
spark.stop()  # without it the thread that listens for `acknowledge` keeps the process for two minutes
"""


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("connect") / "warehouse"


@pytest.fixture(scope="module")
def server(warehouse: Path) -> Iterator[str]:
    """A Spark Connect server; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.local.dir": str(warehouse.with_name("local")),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(warehouse),
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    service = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    log = warehouse.with_name("server.log")
    with log.open("wb") as out, workers_from_bytecode({"spark.master": "local[2]"}):
        process = subprocess.Popen(
            [str(PYSPARK / "bin" / "spark-submit"), "--master", "local[2]", *words, *service],
            cwd=warehouse.parent, env={**os.environ, "SPARK_CONF_DIR": str(ROOT / "conf")},
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        wait_until_it_listens(port, process, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


def wait_until_it_listens(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


def test_source_and_sink_work_through_a_spark_connect_server(server: str, warehouse: Path, tmp_path: Path) -> None:
    store = tmp_path / "shop"
    with Store.create(store) as made:
        for name in ("ORDERS", "COPY", "EACH"):
            made.add_stream({"name": name, "subjects": [f"{'orders' if name == 'ORDERS' else name.lower()}.>"]})
    command = [sys.executable, "-c", CLIENT, server, str(store), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    found = [line.removeprefix("FOUND ") for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert found, done.stderr[-3000:] + warehouse.with_name("server.log").read_text()[-3000:]
    assert json.loads(found[0]) == {
        "session": "pyspark.sql.connect.session",
        "scan": [1, 3],
        "read": [[1, "bicycle"], [3, "bell"]],
        "acknowledged while the query waits": True,
        "failure": "",
        "told": True,
    }
    with Store.open(store, read_only=True) as kept:
        for name in ("COPY", "EACH"):
            table = kept.stream(name).read(columns=["data"]).read_all()
            assert table.column("data").to_pylist() == [b"bicycle", b"lamp", b"bell"], name
        info = kept.stream("ORDERS").consumer("copying").info()
        assert (info["ack_floor"]["stream_seq"], info["num_pending"]) == (3, 0)


class Declared:
    """conf/spark-pipeline.yml with a state of its own, over a store with orders."""

    def __init__(self, place: Path, command: list[str], **environment: str) -> None:
        self.place, self.command, self.environment = (
            place,
            [*command, "run", "--spec", "conf/spark-pipeline.yml"],
            environment,
        )
        shutil.copytree(ROOT / "conf", place / "conf", ignore=shutil.ignore_patterns("__pycache__"))
        spec = place / "conf" / "spark-pipeline.yml"
        state = (place / "state").as_uri()
        spec.write_text(spec.read_text().replace("file:///var/tmp/jstream/pipelines/orders", state))
        self.stream = Store.create(place / "shop").add_stream({"name": "ORDERS", "subjects": ["orders.>"]})

    def publish(self, number: int, region: str) -> None:
        data = b'{"order_id": "o%d", "event": "paid", "amount": 10.5, "currency": "EUR"}' % number
        self.stream.publish(f"orders.paid.{region}", data)

    def run(self) -> None:
        store, conf = str(self.place / "shop"), str(self.place / "conf")
        environment = {**os.environ, "JSTREAM_STORE": store, "PYTHONPATH": str(ROOT), "SPARK_CONF_DIR": conf}
        done = subprocess.run(
            self.command, cwd=self.place, env={**environment, **self.environment},
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        assert "Run is COMPLETED" in done.stdout + done.stderr

    def reads_what_is_new(self, warehouse: Path) -> None:
        def stored(table: str) -> list[dict[str, object]]:
            return dataset.dataset(warehouse / table, format="parquet").to_table().to_pylist()

        for number in range(3):
            self.publish(number, "eu")
        self.stream.publish("orders.paid.eu", b"not an order")
        self.run()
        assert sorted(row["sequence"] for row in stored("orders")) == [1, 2, 3]
        self.publish(9, "us")
        self.run()
        assert sorted(row["sequence"] for row in stored("orders")) == [1, 2, 3, 5]
        paid = {(row["region"], row["currency"]): row["orders"] for row in stored("paid_by_region")}
        assert paid == {("eu", "EUR"): 3, ("us", "EUR"): 1}


@pytest.mark.skipif(SPARK < (4, 1), reason="Spark 4.0 has no Declarative Pipelines")
def test_a_declarative_pipeline_reads_what_is_new_each_time_it_is_run(
    server: str, warehouse: Path, tmp_path: Path
) -> None:
    command = [sys.executable, str(PYSPARK / "pipelines" / "cli.py")]
    Declared(tmp_path, command, SPARK_REMOTE=server).reads_what_is_new(warehouse)


@pytest.mark.soak
@pytest.mark.skipif(SPARK < (4, 1), reason="Spark 4.0 has no Declarative Pipelines")
def test_a_declarative_pipeline_is_run_as_the_guide_says(tmp_path: Path) -> None:
    """By Spark's own command, which starts four JVMs, with a catalogue that outlives them."""
    arguments = "--conf spark.sql.catalogImplementation=hive pyspark-shell"
    declared = Declared(tmp_path, [str(PYSPARK / "bin" / "spark-pipelines")], PYSPARK_SUBMIT_ARGS=arguments)
    declared.reads_what_is_new(tmp_path / "spark-warehouse")
