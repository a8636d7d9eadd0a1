"""`python -m benchmarks.spark_batch`: batch reading and appending, side by side with what else Spark could do.

Every contender runs once in each round, so that a busy moment of the machine falls on all of them; the first round
warms up and is not counted. Read ratios of medians, not absolute numbers. Beside elapsed time stands the processor time
of Spark and its Python workers, which suffers less when the machine has other work.
"""

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.ceiling import DiscardSink, MemorySource
from benchmarks.figures import write_figures
from pyspark_jstream import use_this_python
from spark_stream.session import local_settings
from spark_stream.spark_home import workers_from_bytecode
from storage_core import Store

ROOT = Path(__file__).resolve().parent.parent
DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
WRITE_TASKS = 8
MESSAGES = 2_000_000
ROUNDS = 3

Ratio = tuple[str, str, str, float | None]
SizeRatio = tuple[str, str, str, float]  # of bytes that are stored, and at most what
# name of the ratio: contender, the one it is compared with, what the project wants (None: for information)
RATIOS: tuple[Ratio, ...] = (
    ("batch read, all columns / source of ready batches", "read jstream", "read ready batches", 0.9),
    ("batch read, all columns / Parquet", "read jstream", "read parquet", None),
    ("batch read, all columns / Delta", "read jstream", "read delta", None),
    ("batch read, two columns / all columns", "read jstream two columns", "read jstream", None),
    ("append R1 / sink that throws away", "write jstream", "write discard", 0.85),
    ("append R1 / Parquet", "write jstream", "write parquet", None),
    ("append R1 / Delta", "write jstream", "write delta", 1.1),
)


@dataclass
class Run:
    """One benchmark: the contenders in order, and what each took in each counted round."""

    messages: int
    rounds: int
    spark: SparkSession
    place: Path
    delta: bool
    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu_seconds: dict[str, list[float]] = field(default_factory=dict)
    stored_bytes: dict[str, int] = field(default_factory=dict)  # of the same rows

    def time(self, name: str, counted: bool, work: Callable[[], None]) -> None:
        start, cpu_start = time.perf_counter(), cpu_seconds()
        work()
        if counted:
            self.seconds.setdefault(name, []).append(time.perf_counter() - start)
            self.cpu_seconds.setdefault(name, []).append(cpu_seconds() - cpu_start)


def cpu_seconds() -> float:
    """Return the processor seconds of this process and all its descendants so far: the JVM, its Python workers."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(int(text) for text in fields[11:15])  # own, and of children that have ended
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks.get(pid, 0) for pid in ours) / os.sysconf("SC_CLK_TCK")


def main(messages: int, rounds: int) -> int:
    """Run everything, print the ratios and write them to benchmarks/results; returns an exit code."""
    with tempfile.TemporaryDirectory(prefix="jstream-bench-") as folder:
        spark, delta = start_session(Path(folder))
        try:
            run = Run(messages, rounds, spark, Path(folder), delta)
            compare(run)
        finally:
            spark.stop()
    report(run, RATIOS, "spark_batch", f"python -m benchmarks.spark_batch --messages {messages} --rounds {rounds}")
    return 0


def start_session(place: Path, with_delta: bool = True, more_jars: Sequence[Path] = ()) -> tuple[SparkSession, bool]:
    """Return a session of two cores, and whether it has Delta: from JSTREAM_DELTA_JARS, else from Maven Central."""
    use_this_python()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    others = {"spark.jars": ",".join(map(str, more_jars))} if more_jars else {}
    if not with_delta:
        return build_session(place, others), False
    delta = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    jars = sorted(Path(os.environ.get("JSTREAM_DELTA_JARS", "/nowhere")).glob("*.jar"))
    if jars:
        others = {"spark.jars": ",".join(map(str, [*jars, *more_jars]))}
    else:
        delta |= {"spark.jars.packages": DELTA_PACKAGE}
    try:
        return build_session(place, delta | others), True
    except Exception as error:
        print(f"Delta is left out: {str(error).splitlines()[0]}")
        return build_session(place, others), False


def build_session(place: Path, more: dict[str, str]) -> SparkSession:
    settings = {
        "spark.master": "local[2]",
        "spark.app.name": "jstream benchmark",
        "spark.driver.memory": "6g",
        "spark.local.dir": str(place / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **more,
    }
    settings = {**local_settings({}, delta=False), **settings}  # as sessions of ours are, for every contender
    with workers_from_bytecode(settings):
        session = SparkSession.builder.config(map=dict(settings)).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def orders(spark: SparkSession, messages: int) -> DataFrame:
    """Return `messages` rows to write: JSON of about 100 bytes and one of 16 subjects, made anew by each write.

    There is no column `headers`: Spark 4.2 hands an array column of nulls to Python in a time that grows with the
    square of the batch, which would be all that is measured.
    """
    data = """concat('{"order":', id, ',"customer":"', lpad(cast(id % 99991 as string), 6, '0'),
        '","amount":', (id * 7919) % 100000, ',"currency":"EUR","token":"', hex(id * 2654435761), '"}')"""
    frame = spark.range(0, messages, 1, WRITE_TASKS).selectExpr(
        "concat('orders.region', id % 16, '.created') as subject",
        f"cast({data} as binary) as data",
    )
    size = frame.selectExpr("avg(length(data))").first()
    print(f"{messages} messages of {size[0]:.0f} bytes of data on average" if size else "no messages")
    return frame


def compare(run: Run) -> None:
    run.spark.dataSource.register(MemorySource)
    run.spark.dataSource.register(DiscardSink)
    frame = orders(run.spark, run.messages)
    # Streams of earlier rounds go at once, or every write would have to get memory for the page cache anew.
    with Store.create(str(run.place / "store"), deleted_block_retention="0s") as store:
        store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    jstream_write(frame, "ORDERS", str(run.place / "store"))
    readable = {name: prepare(run, name) for name in ("parquet", *(["delta"] if run.delta else []))}
    for round_number in range(run.rounds + 1):
        counted = round_number > 0
        write_round(run, frame, round_number, counted)
        read_round(run, readable, counted)
        print(f"round {round_number} of {run.rounds} done" + ("" if counted else " (warm-up, not counted)"))


def jstream_read(run: Run, columns: str | None = None) -> DataFrame:
    reader = run.spark.read.format("jstream").option("stream", "ORDERS")
    return (reader.schema(columns) if columns else reader).load(str(run.place / "store"))


def jstream_write(frame: DataFrame, stream: str, place: str) -> None:
    frame.write.format("jstream").mode("append").option("stream", stream).save(place)


def prepare(run: Run, kind: str) -> DataFrame:
    """Store what jstream reads, all columns, in another format; return it for reading."""
    place = str(run.place / f"read-{kind}")
    jstream_read(run).write.format(kind).save(place)
    return run.spark.read.format(kind).load(place)


def write_round(run: Run, frame: DataFrame, round_number: int, counted: bool) -> None:
    stream = f"ROUND{round_number}"
    store_path = str(run.place / "store")
    with Store.open(store_path) as store:
        store.add_stream({"name": stream, "subjects": ["orders.>"]})
    run.time("write discard", counted, lambda: frame.write.format("discard").mode("append").save())
    run.time("write jstream", counted, lambda: jstream_write(frame, stream, store_path))
    for kind in ("parquet", *(["delta"] if run.delta else [])):
        place = run.place / f"write-{kind}"
        run.time(f"write {kind}", counted, lambda: frame.write.format(kind).save(str(place)))  # noqa: B023
        shutil.rmtree(place)
    with Store.open(store_path) as store:
        store.delete_stream(stream)
        store.maintain()


def read_round(run: Run, readable: dict[str, DataFrame], counted: bool) -> None:
    def drain(frame: DataFrame) -> Callable[[], None]:
        return lambda: frame.write.format("noop").mode("overwrite").save()

    tasks = jstream_read(run).rdd.getNumPartitions()  # of another DataFrame: the one that is timed has yet to plan
    memory = run.spark.read.format("ready_batches").options(rows=run.messages, partitions=tasks).load()
    run.time("read ready batches", counted, drain(memory))
    run.time("read jstream", counted, drain(jstream_read(run)))
    run.time("read jstream two columns", counted, drain(jstream_read(run, "sequence long, subject string")))
    for kind, frame in readable.items():
        run.time(f"read {kind}", counted, drain(frame))


def report(
    run: Run, wanted_ratios: Sequence[Ratio], part: str, command: str, size_ratios: Sequence[SizeRatio] = ()
) -> None:
    """Print the medians and ratios, and write them to the results of `part`."""
    rates = {name: run.messages / statistics.median(times) for name, times in run.seconds.items()}
    cpu = {name: statistics.median(times) for name, times in run.cpu_seconds.items()}
    print(f"\n{'median of ' + str(run.rounds) + ' rounds':<28}{'messages/s':>14}{'seconds':>10}{'CPU s':>10}")
    for name, rate in rates.items():
        print(f"{name:<28}{rate:>14,.0f}{run.messages / rate:>10.2f}{cpu[name]:>10.2f}")
    ratios: list[dict[str, Any]] = []
    print(f"\n{'ratio':<52}{'is':>8}{'by CPU':>8}{'wanted':>10}")
    for name, ours, theirs, wanted in wanted_ratios:
        if ours in rates and theirs in rates:
            ratio, by_cpu = rates[ours] / rates[theirs], cpu[theirs] / cpu[ours]
            ratios.append({"name": name, "ratio": round(ratio, 3), "by_cpu": round(by_cpu, 3), "wanted": wanted})
            print(f"{name:<52}{ratio:>8.2f}{by_cpu:>8.2f}{'' if wanted is None else f'>= {wanted}':>10}")
    for name, ours, theirs, at_most in size_ratios:
        if ours in run.stored_bytes and theirs in run.stored_bytes:
            ratio = round(run.stored_bytes[ours] / run.stored_bytes[theirs], 3)
            ratios.append({"name": name, "ratio": ratio, "by_cpu": ratio, "at_most": at_most})
            print(f"{name:<52}{ratio:>8.2f}{'':>8}{f'<= {at_most}':>10}")
    result = {
        "messages": run.messages,
        "machine": {"processors": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "spark": run.spark.version,
        "messages_per_s": {name: round(rate) for name, rate in rates.items()},
        "seconds": {name: [round(elapsed_s, 3) for elapsed_s in times] for name, times in run.seconds.items()},
        "cpu_seconds": {name: [round(cpu_s, 2) for cpu_s in times] for name, times in run.cpu_seconds.items()},
        "stored_bytes": run.stored_bytes,
        "ratios": ratios,
    }
    print(f"\nwritten to {write_figures(part, command, result)}")


def run_from_command_line(
    part: str, text: str | None, work: Callable[[int, int], int], messages: int, about: str
) -> int:
    """Run `work(messages, rounds)` of one part with what the command line says; returns an exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{part}", description=text)
    parser.add_argument("--messages", type=int, default=messages, help=f"{about} ({messages})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"counted rounds after one of warm-up ({ROUNDS})")
    arguments = parser.parse_args()
    return work(arguments.messages, arguments.rounds)


if __name__ == "__main__":
    sys.exit(run_from_command_line("spark_batch", __doc__, main, MESSAGES, "how many to write and read"))
