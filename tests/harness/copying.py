"""A streaming query that copies one stream into another, in a driver process of its own, with trouble on the way.

The driver restarts its query whenever that fails, until everything that was there is copied. Trouble is thrown in by
dice: tasks fail in mid-partition and are tried again, commits fail before or after their effect. Each leaves a mark, a
file in a folder, so that a test can say how often it happened. From outside come SIGKILL, at a moment that is known by
what lies on the disk, and the loss of what Spark wrote when batches were done.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from datasource.spark_versions import SAYS_LIMITS
from storage_core import Store

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT_S = 600  # a driver that has got nowhere in that time is stuck
LOOK_EVERY_S = 0.02

DRIVER = """
import json, os, random, signal, sys, uuid
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from datasource.spark_versions import SAYS_LIMITS
from pyspark_jstream import DefaultSource, acknowledge
from spark_stream.spark_home import workers_from_bytecode

given = json.loads(sys.argv[1])
MARKS = given["marks"]
dice = random.Random(given["seed"])

def mark(what):
    open(os.path.join(MARKS, f"{what}-{uuid.uuid4().hex}"), "x").close()

class Troubled(DefaultSource):
    @classmethod
    def name(cls):
        return "troubled"

    def streamWriter(self, schema, overwrite):
        writer = super().streamWriter(schema, overwrite)
        commit = writer.commit

        def troubled(messages, batch):
            chance = random.random()
            if chance < given["commit_trouble"]:
                mark("commit_before")
                raise RuntimeError("trouble before the commit")
            commit(messages, batch)
            if chance > 1 - given["commit_trouble"]:
                mark("commit_after")
                raise RuntimeError("trouble after the commit")

        writer.commit = troubled
        return writer

def fail_at_times(batches):
    attempt, chance = TaskContext.get().attemptNumber(), random.random()
    for batch in batches:
        yield batch
        if attempt < 2 and chance < given["task_trouble"]:
            mark("task")
            raise RuntimeError("trouble in a task")

settings = {"spark.master": "local[2,4]", **given["settings"]}
with workers_from_bytecode(settings):
    spark = SparkSession.builder.config(map=settings).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(Troubled)
acknowledge(spark)
trigger = {"availableNow": True} if SAYS_LIMITS else {"processingTime": "0 seconds"}  # else one batch takes everything
while True:
    rows = spark.readStream.format("jstream").options(**given["read"]).load(given["source"])
    messages = rows.select("subject", "data").mapInArrow(fail_at_times, "subject string, data binary")
    query = (
        messages.writeStream.format("troubled").options(**given["write"])
        .option("checkpointLocation", given["checkpoint"]).trigger(**trigger).start(given["sink"])
    )
    try:
        if SAYS_LIMITS:
            query.awaitTermination()
        else:
            query.processAllAvailable()
            query.stop()
        break
    except StreamingQueryException as error:
        if "trouble" not in str(error):
            raise
spark.stop()
"""


def dataset(store: Store, stream: str, count: int, appends: int) -> None:
    """Put numbered messages into the stream, in so many appends."""
    bounds = [count * at // appends for at in range(appends + 1)]
    for first, end in zip(bounds, bounds[1:], strict=False):
        data = [str(number).encode() for number in range(first, end)]
        store.stream(stream).append(
            pa.table({"subject": ["in.a"] * (end - first), "data": pa.array(data, pa.binary())})
        )


@dataclass
class Copying:
    """Copies the stream IN of one store to OUT of another. `seed` decides what is done to it from here."""

    source: Store
    sink: Store
    place: Path
    settings: dict[str, str]
    batch_size: int
    seed: int
    consumer: str | None = "copy"
    task_trouble: float = 0.15  # chance of an attempt to fail
    commit_trouble: float = 0.1  # chance of a commit to fail before its effect, and of one to fail after it
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        (self.place / "marks").mkdir()
        self.checkpoint = self.place / "checkpoint"

    def start(self) -> "subprocess.Popen[bytes]":
        """Start a driver."""
        given = {
            "source": self.source.paths[0],
            "sink": self.sink.paths[0],
            "checkpoint": str(self.checkpoint),
            "marks": str(self.place / "marks"),
            "settings": self.settings,
            "seed": self.dice.random(),
            "task_trouble": self.task_trouble,
            "commit_trouble": self.commit_trouble,
            "read": {
                "stream": "IN",
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(self.batch_size),
                "trigger": "availableNow" if SAYS_LIMITS else "processAllAvailable",
                "maxRecordsPerPartition": str(self.batch_size // 3),
                **({"consumer": self.consumer} if self.consumer else {}),
            },
            "write": {"stream": "OUT"},
        }
        script = self.place / "driver.py"
        script.write_text(DRIVER)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
        with open(self.place / "driver.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, str(script), json.dumps(given)],
                cwd=self.place, env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def log(self) -> str:
        return (self.place / "driver.log").read_text(errors="replace")[-3000:]

    def run_until_killed(self, goal: int) -> None:
        """Run a driver, and kill it at some moment after OUT has got `goal` messages; it may end before."""
        moments: dict[str, Callable[[], object]] = {
            "an append": lambda: self._stored(),
            "a block that waits for its commit": lambda: len(list(Path(self.sink.paths[0]).rglob("*.blk"))),
            "the plan of a batch": lambda: self._names("offsets"),
            "the end of a batch": lambda: self._names("commits"),
            "an acknowledgement": lambda: self.source.view().index,
        }
        moment = self.dice.choice(sorted(moments))
        process = self.start()
        try:
            self._wait(process, lambda: self._stored() >= goal)
            before = moments[moment]()
            self._wait(process, lambda: moments[moment]() != before)
            if process.poll() is None:
                self.done[f"killed after {moment}"] += 1
        finally:
            kill(process)

    def run_two_at_once(self, goal: int) -> None:
        """Run a driver, and after OUT has got `goal` messages another one on the same checkpoint, to the end of both.

        Whichever is in the other's way may fail.
        """
        first = self.start()
        try:
            self._wait(first, lambda: self._stored() >= goal)
            second = self.start()
            try:
                for process in (first, second):
                    process.wait(TIMEOUT_S)
                    self.done["driver ended well" if process.returncode == 0 else "driver failed"] += 1
            finally:
                kill(second)
        finally:
            kill(first)

    def run_to_the_end(self) -> None:
        """Run a driver until everything is copied."""
        process = self.start()
        try:
            self._wait(process, lambda: False)
        finally:
            kill(process)
        assert process.returncode == 0, self.log()

    def _wait(self, process: "subprocess.Popen[bytes]", is_done: Callable[[], bool]) -> None:
        """Wait until something is so, or the driver has ended well."""
        deadline = time.monotonic() + TIMEOUT_S
        while not is_done():
            if process.poll() is not None:
                assert process.returncode == 0, self.log()
                return
            assert time.monotonic() < deadline, f"the driver is stuck: {self.log()}"
            time.sleep(LOOK_EVERY_S)

    def _stored(self) -> int:
        state = self.sink.view().state.stream("OUT")
        assert state is not None
        return state.next_sequence - 1

    def _names(self, kind: str) -> frozenset[str]:
        try:
            return frozenset(name for name in os.listdir(self.checkpoint / kind) if name.isdigit())
        except FileNotFoundError:
            return frozenset()

    def forget_commits(self) -> None:
        """Take away what Spark wrote when the newest batch was done, or the newest few."""
        names = sorted(self._names("commits"), key=int)
        for name in names[len(names) - self.dice.choice((1, 1, 2, len(names))) :] if names else []:
            for path in (self.checkpoint / "commits" / name, self.checkpoint / "commits" / f".{name}.crc"):
                path.unlink(missing_ok=True)
            self.done["commit file deleted"] += 1

    def counts(self) -> dict[str, int]:
        """Return what happened, and how often."""
        marks = Counter(path.name.rpartition("-")[0] for path in (self.place / "marks").iterdir())
        return dict(sorted((self.done + marks).items()))


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a driver with its JVM, as a host that crashes does; its Python workers notice by themselves, later."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
