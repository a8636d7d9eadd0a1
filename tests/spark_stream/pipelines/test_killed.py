"""Pipelines as processes of their own: killed at any moment, run twice at once, stopped politely, started by Spark."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

import spark_stream.etl

pytestmark = [pytest.mark.spark, pytest.mark.delta, pytest.mark.timeout(1800)]

ROOT = Path(spark_stream.etl.__file__).resolve().parent.parent
PATIENCE_S = 400.0
WHOM = ("python", "all of it")
SETTINGS = '[spark]\n"spark.master" = "local[2]"\n"spark.sql.shuffle.partitions" = 1\n'
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def fill(etl: Any, count: int) -> None:
    """Store `count` orders in one append; each hundredth is no JSON."""
    data = [b"nonsense" if at % 100 == 99 else b'{"id": "o%d", "amount": %d}' % (at % 7, at) for at in range(count)]
    etl.store.stream("ORDERS").append(pa.table({"subject": ["orders.new"] * count, "data": data}))


def start(etl: Any, *words: str, by_spark_submit: bool = False) -> "subprocess.Popen[str]":
    """Start `jstream etl run` in a process group of its own."""
    if by_spark_submit:
        jars = ",".join(map(str, Path(os.environ["JSTREAM_DELTA_JARS"]).glob("*.jar")))
        submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit")]
        settings = [word for pair in DELTA.items() for word in ("--conf", "=".join(pair))]
        command = [*submit, "--master", "local[2]", "--jars", jars, *settings, spark_stream.etl.__file__]
    else:
        command = [sys.executable, "-m", "spark_stream.cli", "etl"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*command, "run", str(etl.file), *words],
        env=environment, cwd=etl.folder, start_new_session=True, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for_batch(etl: Any, process: "subprocess.Popen[str]", number: int) -> None:
    """Wait until Spark has planned this batch, or the run has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and not (etl.folder / "checkpoint" / "offsets" / str(number)).exists():
        assert time.monotonic() < deadline, "no batch has begun"
        time.sleep(0.05)


def planned(etl: Any) -> int:
    folder = etl.folder / "checkpoint" / "offsets"
    return max((int(one.name) for one in folder.iterdir() if one.name.isdigit()), default=-1) if folder.exists() else -1


def kill_at_random(etl: Any, dice: random.Random, whom: str, **how: Any) -> str:
    """Run the pipeline until some moment after it has begun a batch, and kill it: Python alone, or its JVM as well."""
    process = start(etl, **how)
    try:
        wait_for_batch(etl, process, planned(etl) + 1)
        time.sleep(dice.uniform(0, 2.0))
        if process.poll() is not None:
            return f"ended with {process.returncode} before it was killed"
        os.kill(process.pid, signal.SIGKILL) if whom == "python" else os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
        return f"{whom} killed in batch {planned(etl)}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)


def check(etl: Any, spark: SparkSession, count: int) -> None:
    """The table has each good message once, and the dead letters each bad one."""
    table = spark.read.format("delta").load(etl.table)
    found = sorted(row["sequence"] for row in table.select("sequence").collect())
    assert found == [at + 1 for at in range(count) if at % 100 != 99]
    letters = [int(headers["Jstream-Sequence"]) for _, headers in etl.letters()]
    assert sorted(letters) == [at + 1 for at in range(count) if at % 100 == 99]


def run_through_kills(etl: Any, spark: SparkSession, count: int, kills: int, seed: int) -> None:
    etl.define(f'kind = "delta"\npath = "{etl.table}"\n', 'consumer = "warehouse"\nmax_messages = 100', letters=True)
    etl.file.write_text(etl.file.read_text() + SETTINGS)
    fill(etl, count)
    dice = random.Random(seed)
    kills_made = [kill_at_random(etl, dice, WHOM[number % 2], by_spark_submit=number == 0) for number in range(kills)]
    print(f"seed {seed}: {'; '.join(kills_made)}")
    summary = etl.run()
    assert summary["to"] == {"ORDERS": count + 1} or not summary["batches"]
    check(etl, spark, count)
    info = etl.store.stream("ORDERS").consumer("warehouse").info()
    assert (info["num_pending"], info["ack_floor"]["stream_seq"]) == (0, count)


def test_the_table_equals_the_stream_though_the_pipeline_was_killed_twice(delta_etl, delta_spark: SparkSession) -> None:
    run_through_kills(delta_etl, delta_spark, 400, 2, 20261121)


@pytest.mark.soak
def test_the_table_equals_the_stream_through_ten_kills(delta_etl, delta_spark: SparkSession) -> None:
    run_through_kills(delta_etl, delta_spark, 3_000, 10, random.randrange(2**32))


@pytest.mark.soak
def test_sums_of_windows_are_those_of_the_stream_through_six_kills(delta_etl, delta_spark: SparkSession) -> None:
    etl, count, seed = delta_etl, 2_000, random.randrange(2**32)
    sink = 'kind = "delta"\npath = "table"\nmode = "upsert"\noutput_mode = "update"\nkey = ["start", "id"]\n'
    etl.define(sink, 'consumer = "warehouse"\nmax_messages = 100', letters=True)
    windows = "FROM messages GROUP BY window(timestamp_seconds(amount), '10 minutes'), id"
    query = f"SELECT window.start AS start, id, count(*) AS n, sum(amount) AS amount {windows}"
    etl.file.write_text(etl.file.read_text().replace("SELECT sequence, id, amount FROM messages", query) + SETTINGS)
    fill(etl, count)
    dice = random.Random(seed)
    kills_made = [kill_at_random(etl, dice, WHOM[number % 2]) for number in range(6)]
    print(f"seed {seed}: {'; '.join(kills_made)}")
    etl.run()
    sums: dict[tuple[int, str], tuple[int, int]] = {}
    for at in range(count):
        if at % 100 != 99:
            n, amount = sums.get((at // 600, f"o{at % 7}"), (0, 0))
            sums[at // 600, f"o{at % 7}"] = n + 1, amount + at
    table = delta_spark.read.format("delta").load(etl.table)
    table = table.selectExpr("unix_timestamp(start) AS start", "id", "n", "amount")
    stored = {(row["start"] // 600, row["id"]): (row["n"], row["amount"]) for row in table.collect()}
    assert (stored, table.count()) == (sums, len(sums))
    letters = [int(headers["Jstream-Sequence"]) for _, headers in etl.letters()]
    assert sorted(letters) == [at + 1 for at in range(count) if at % 100 == 99]


def test_a_run_that_goes_on_keeps_a_second_one_out_and_stops_between_batches(
    delta_etl, delta_spark: SparkSession
) -> None:
    etl = delta_etl
    etl.define(f'kind = "delta"\npath = "{etl.table}"\n', letters=True)
    etl.file.write_text(etl.file.read_text() + SETTINGS)
    fill(etl, 150)
    process = start(etl, "--continuous")
    try:
        wait_for_batch(etl, process, 0)
        assert f"is held by etl run, process {process.pid} on" in etl.fail()
        fill(etl, 50)
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None and etl.status()["streams"][0]["lag"]:
            assert time.monotonic() < deadline, etl.status()
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, err
    summary = etl.summary(out)
    assert summary["ok"] and summary["stopped"] == "SIGTERM" and summary["rows_in"] == 200
    numbers = [at + 1 for first, count in ((0, 150), (150, 50)) for at in range(first, first + count)]
    table = delta_spark.read.format("delta").load(etl.table)
    assert sorted(row["sequence"] for row in table.collect()) == [one for one in numbers if one != 100]
    assert len(etl.letters()) == 1
