"""Spark with processes that fail and are killed: each test runs a driver of its own.

A driver is a script that gets a store, and settings of the session as JSON. It is killed by what it writes: the rows
come from a Python function that kills at a chosen row, so nothing here waits for a moment to come.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.block_places import block_directory

from storage_core import Store

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parent.parent.parent

DRIVER = '''
import json, os, signal, sys
from pyspark import TaskContext
from pyspark.sql import SparkSession
from spark_stream.spark_home import workers_from_bytecode

store, settings = sys.argv[1], {"spark.master": sys.argv[2], **json.loads(sys.argv[3])}
with workers_from_bytecode(settings):
    spark = SparkSession.builder.config(map=settings).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
driver_pid, jvm_pid = os.getpid(), spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
MARK = sys.argv[4]

def numbers(count, tasks):
    frame = spark.range(0, count, 1, tasks)
    return frame.selectExpr("cast(id as string) as data", "concat('orders.', id % 3) as subject")

def write(frame, **options):
    frame.write.format("jstream").mode("append").option("stream", "ORDERS").options(**options).save(store)

def read(**options):
    return spark.read.format("jstream").option("stream", "ORDERS").options(**options).load(store)

def first_time():
    """Return whether this is the first to ask, over all processes: a retry must not fail again."""
    try:
        os.close(os.open(MARK, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False

def writers_of_this_host():
    """Return the pids of the other Python workers: with one task at a time, the one that writes its rows."""
    parent = os.getppid()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                fields = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(name))
    return found
'''


def drive(code: str, store: Store, settings: dict[str, str], mark: Path, master: str = "local[2]", **env: str) -> Any:
    """Run DRIVER and `code` in a process, in the folder of `mark`; return it when it has ended."""
    script = mark.with_suffix(".py")
    script.write_text(DRIVER + code)
    arguments = [sys.executable, str(script), store.paths[0], master, json.dumps(settings), str(mark)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]), **env}
    return subprocess.run(arguments, cwd=mark.parent, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture
def settings(spark_settings: dict[str, str]) -> dict[str, str]:
    """Without Delta: its JARs only make a driver slower to start."""
    return {name: value for name, value in spark_settings.items() if "delta" not in value and name != "spark.jars"}


def data_of(store: Store, stream: str = "ORDERS") -> list[int]:
    return [int(one) for one in store.stream(stream).read(columns=["data"]).read_all()["data"].to_pylist()]


def test_local_cluster_with_retries_and_speculation_stores_each_row_once(
    store: Store, settings: Any, tmp_path: Path
) -> None:
    code = """
def fail_once(batches):
    for batch in batches:
        yield batch
    if TaskContext.get().attemptNumber() == 0 and TaskContext.get().partitionId() % 2:
        raise RuntimeError("this attempt fails when its rows are written")

frame = numbers(40_000, 4)
write(frame.mapInArrow(fail_once, frame.schema))
print(read().where("cast(data as string) = cast(sequence - 1 as string)").count())
"""
    speculative = {
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.interval": "10ms",
    }
    done = drive(code, store, {**settings, **speculative}, tmp_path / "mark", "local-cluster[2,1,1024]")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "40000"
    assert data_of(store) == list(range(40_000))


def test_write_whose_worker_is_killed_is_retried_and_of_one_whose_driver_is_killed_nothing_is_left(
    store: Store, settings: Any, tmp_path: Path
) -> None:
    store.add_stream({"name": "LATER", "subjects": ["later"]})
    code = """
def kill_the_writer(batches):
    for number, batch in enumerate(batches):
        yield batch
        if number == 12 and first_time():
            for pid in writers_of_this_host():
                os.kill(pid, signal.SIGKILL)

def kill_the_driver(batches):
    for number, batch in enumerate(batches):
        yield batch
        if number == 12 and TaskContext.get().partitionId() == 1:
            os.kill(jvm_pid, signal.SIGKILL)
            os.kill(driver_pid, signal.SIGKILL)

frame = numbers(300_000, 2)
write(frame.mapInArrow(kill_the_writer, frame.schema))
print(os.path.exists(MARK), read().count(), flush=True)
frame = frame.selectExpr("data", "'later' AS subject")
write(frame.mapInArrow(kill_the_driver, frame.schema), stream="LATER")
"""
    done = drive(code, store, {**settings, "spark.task.maxFailures": "4"}, tmp_path / "mark", "local[1,4]")
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "True 300000"
    assert data_of(store) == list(range(300_000))
    written = block_directory(Path(store.paths[0]), store.stream_state("LATER").incarnation)
    assert list(written.glob("*.blk")), "the driver was killed before anything was written"
    with Store.open(store.paths[0]) as again:
        assert data_of(again, "LATER") == []
        again.stream("LATER").append(pa.table({"subject": ["later"], "data": ["7"]}))
        assert data_of(again, "LATER") == [7]


def test_register_says_what_to_do_when_workers_lack_the_package(store: Store, settings: Any, tmp_path: Path) -> None:
    lacking = tmp_path / "lacking"
    lacking.mkdir()
    (lacking / "pyspark_jstream.py").write_text("raise ModuleNotFoundError('No module named pyspark_jstream')")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{lacking}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    code = """
from pyspark_jstream import register
try:
    register(spark)
except RuntimeError as error:
    print(str(error).partition("Spark said")[0])
"""
    done = drive(
        code, store, settings, tmp_path / "mark", PYSPARK_PYTHON=str(python), PYSPARK_DRIVER_PYTHON=str(python)
    )
    assert done.returncode == 0, done.stderr[-3000:]
    says = done.stdout.splitlines()[-1]
    assert says.startswith("Spark's Python workers cannot use jstream"), says
    assert f"Set PYSPARK_PYTHON={sys.executable}" in says
