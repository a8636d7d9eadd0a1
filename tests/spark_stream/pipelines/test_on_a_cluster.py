"""A cluster on a store in buckets: what reads, writes and plans are processes of their own, and drivers are killed.

The driver is a script. It reads as a consumer and writes a copy of the stream, then it runs a pipeline into another
one. It is killed with its JVM by a task, at a given message, in the middle of a batch.
Spark waits 10 s for a Python worker, which no setting changes; a driver that ends for that is started again.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.objects.server import SECRET

from storage_core import Store

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[3]
MESSAGE_COUNT = 2_000
WORKER_IS_LATE, LATE_COUNT_MAX = "Python worker failed to connect back", 5
PIPELINE = """
checkpoint = "checkpoint"
[source]
store = {volumes}
stream = "ORDERS"
consumer = "etl"
[transform]
sql = "SELECT concat('rows.', sequence) AS subject, data FROM messages"
[sink]
kind = "jstream"
stream = "ROWS"
"""
DRIVER = """
import json, os, signal, sys
from pyspark.sql import SparkSession
from pyspark_jstream import acknowledge, run_pipeline
from spark_stream.spark_home import workers_from_bytecode

store, folder, settings, kill_at = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
with workers_from_bytecode(settings):
    spark = SparkSession.builder.config(map=settings).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
acknowledge(spark)
driver = [os.getpid(), spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()]

def kill_the_driver(batches):
    for batch in batches:
        if kill_at and max(batch["sequence"].to_pylist(), default=0) >= kill_at:
            for pid in driver:
                os.kill(pid, signal.SIGKILL)
        yield batch

read = spark.readStream.format("jstream").option("stream", "ORDERS").option("consumer", "copier")
read = read.option("maxOffsetsPerTrigger", "150").option("trigger", "availableNow").load(store)
rows = read.selectExpr("sequence", "concat('copies.', sequence) AS subject", "data")
rows = rows.mapInArrow(kill_the_driver, rows.schema)
write = rows.writeStream.format("jstream").option("stream", "COPY").option("checkpointLocation", folder + "/copy")
write.trigger(availableNow=True).start(store).awaitTermination()
print(run_pipeline(folder + "/orders.toml").to_json()["rows_in"])
spark.stop()
"""


@pytest.fixture
def store(buckets: list[str], s3_options: dict[str, str]) -> Store:
    made = Store.create(buckets, storage_options=s3_options)
    for name in ("ORDERS", "COPY", "ROWS"):
        made.add_stream({"name": name, "subjects": [{"COPY": "copies.>"}.get(name, f"{name.lower()}.>")]})
    return made


def drive(
    store: Store, folder: Path, settings: dict[str, str], options: dict[str, str], kill_at: int
) -> tuple[int, str, str]:
    """Run the driver until it ends or is killed, and nothing of it is left; return its exit code and outputs."""
    script = folder / "driver.py"
    script.write_text(DRIVER)
    (folder / "orders.toml").write_text(PIPELINE.format(volumes=json.dumps(store.paths)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    environment |= {key.upper(): value for key, value in options.items()}
    command = [sys.executable, str(script), store.paths[0], str(folder), json.dumps(settings), str(kill_at)]
    out, err = folder / "out.txt", folder / "err.txt"  # no pipes: executors outlive their driver for a while
    with out.open("w") as to_out, err.open("w") as to_err:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=to_out, stderr=to_err, start_new_session=True
        )
    try:
        process.wait(timeout=600)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    return process.returncode, out.read_text(), err.read_text()


@pytest.mark.soak
def test_cluster_copies_a_stream_once_though_ten_drivers_are_killed(
    store: Store, spark_settings: dict[str, str], s3_options: dict[str, str], tmp_path: Path
) -> None:
    store.stream("ORDERS").append(
        [{"subject": "orders.new", "data": b"%d" % number} for number in range(MESSAGE_COUNT)]
    )
    settings = {name: value for name, value in spark_settings.items() if "delta" not in value and name != "spark.jars"}
    settings["spark.master"] = "local-cluster[2,1,1024]"
    expected = [*((kill_at, -signal.SIGKILL) for kill_at in range(90, MESSAGE_COUNT - 400, 150)), (0, 0)]
    late_count, out = 0, ""
    for kill_at, expected_code in expected:
        while True:
            code, out, err = drive(store, tmp_path, settings, s3_options, kill_at)
            if code == expected_code:
                break
            late_count += 1
            assert WORKER_IS_LATE in err and late_count <= LATE_COUNT_MAX, err[-3000:]
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert not kept, "outputs, checkpoints and records"
    assert out.split()[-1] == str(MESSAGE_COUNT)
    for name in ("COPY", "ROWS"):
        table = store.stream(name).read(columns=["data"]).read_all()
        assert sorted(map(int, table["data"].to_pylist())) == list(range(MESSAGE_COUNT)), name
    for consumer in ("copier", "etl"):
        info = store.stream("ORDERS").consumer(consumer).info()
        assert (info["ack_floor"]["stream_seq"], info["num_pending"]) == (MESSAGE_COUNT, 0), consumer
