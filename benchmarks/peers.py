"""`python -m benchmarks.peers`: writing, batch reading and streaming beside Delta and Kafka with a real broker.

The same rows, in turns, in one run, after a round of warm-up. Each round begins with another contender, because whoever
writes first gets memory for the page cache anew. A streaming read is one `Trigger.AvailableNow` batch into
`noop`, from a new checkpoint; a streaming write is one such batch from Parquet files, and is compared with a batch
append of the same files. Kafka is one broker with as many partitions as Spark has cores, one replica, no fsync; it is
left out where its JARs were not fetched (scripts/kafka_jars.py). A Python source of ready batches is beside them, in
batches and as a stream, and a Python sink that keeps nothing: what Spark itself takes for so many rows.

A micro-batch is timed by Spark's own `triggerExecution`, the median of many small ones after the first.
"""

import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, DataFrameReader
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from benchmarks import kafka
from benchmarks.ceiling import DiscardSink, MemorySource
from benchmarks.spark_batch import (
    Ratio,
    Run,
    jstream_write,
    orders,
    report,
    run_from_command_line,
    start_session,
)
from datasource.scan import scan
from storage_core import Store

Work = Callable[[], None]
MESSAGES = 4_000_000
PARTITIONS = 2
TRIGGERS, WARM_UP, TRIGGER_MESSAGES = 40, 10, 1_000
RATIOS: tuple[Ratio, ...] = (
    ("streaming read / batch read", "stream read jstream", "read jstream", 0.9),
    ("streaming read / one of ready batches", "stream read jstream", "stream read ready batches", 0.95),
    ("of ready batches: streaming read / batch read", "stream read ready batches", "read ready batches", None),
    ("streaming read / Delta's", "stream read jstream", "stream read delta", 1.7),
    ("streaming read / Kafka's", "stream read jstream", "stream read kafka", 1.8),
    ("streaming write / batch append", "stream write jstream", "write jstream", 0.9),
    ("a warm micro-batch / one of Parquet files", "trigger jstream", "trigger parquet", 0.83),
    ("bulk read by scan / batch read", "scan jstream", "read jstream", 1.2),
    ("batch read / Delta's", "read jstream", "read delta", 1.1),
    ("batch read / Kafka's", "read jstream", "read kafka", None),
    ("append R1 / Delta's", "write jstream", "write delta", 1.1),
    ("append R3 / Delta's", "write jstream R3", "write delta", 0.95),
    ("append R1 / a sink that keeps nothing", "write jstream", "write nothing", None),
    ("a sink that keeps nothing / Delta's append", "write nothing", "write delta", None),
    ("append R1 / Kafka's sink", "write jstream", "write kafka", None),
    ("append R3 / Kafka's sink", "write jstream R3", "write kafka", None),
)
SIZE_RATIOS = (("stored bytes / Delta's", "jstream", "delta", 0.7),)


class Peers:
    """The contenders, and where each keeps the rows."""

    def __init__(self, run: Run, address: str | None) -> None:
        self.run, self.spark, self.address = run, run.spark, address
        self.kinds = ["jstream", *(["delta"] if run.delta else []), *(["kafka"] if address else [])]
        self.store = str(run.place / "store")
        self.store_r3 = ",".join(str(run.place / f"r3-{number}") for number in range(3))
        for place in (self.store, self.store_r3):
            Store.create(place, deleted_block_retention="0s").close()  # or every write would have to get memory anew
        orders(self.spark, run.messages).write.parquet(str(run.place / "rows"))
        self.rows = self.spark.read.parquet(str(run.place / "rows"))
        for ceiling in (MemorySource, DiscardSink):
            self.spark.dataSource.register(ceiling)
        self.make_stream(self.store, "ORDERS")
        self.write("jstream", "ORDERS")
        run.stored_bytes["jstream"] = _size(Path(self.store))
        if run.delta:  # for reading: all columns that a read of ours has
            self.write("delta", "APPENDED")
            run.stored_bytes["delta"] = _size(run.place / "delta-APPENDED")
            shutil.rmtree(run.place / "delta-APPENDED")
            whole = self.load(self.spark.read, "jstream")
            whole.write.format("delta").save(str(run.place / "delta-ORDERS"))
        if address:
            self.write("kafka", "ORDERS")

    def make_stream(self, place: str, name: str) -> None:
        with Store.open(place) as store:
            store.add_stream({"name": name, "subjects": ["orders.>"]})

    def forget_rounds(self) -> None:
        """Delete what rounds wrote, at once."""
        for place in (self.store, self.store_r3):
            with Store.open(place) as store:
                for name in store.streams():
                    if name != "ORDERS":
                        store.delete_stream(name)
                store.maintain()

    def time_in_turn(self, works: dict[str, Work], number: int, counted: bool) -> None:
        """Time each of them, beginning with another one in each round."""
        names = list(works)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            self.run.time(name, counted, works[name])

    # --- writing

    def write(self, kind: str, name: str) -> None:
        if kind == "jstream":
            jstream_write(self.rows, name, self.store)
        elif kind == "delta":
            self.rows.write.format("delta").save(str(self.run.place / f"delta-{name}"))
        elif kind == "nothing":
            self.rows.write.format("discard").mode("append").save()
        else:
            keyed = self.rows.selectExpr("subject AS key", "data AS value").write.format("kafka")
            keyed.option("kafka.bootstrap.servers", self.address).option("topic", name).save()

    def write_round(self, number: int, counted: bool) -> None:
        name = f"ROUND{number}"
        self.make_stream(self.store, name)
        self.make_stream(self.store_r3, name)
        self.make_stream(self.store, f"{name}-STREAMED")
        works: dict[str, Work] = {f"write {kind}": partial(self.write, kind, name) for kind in (*self.kinds, "nothing")}
        works["write jstream R3"] = partial(jstream_write, self.rows, name, self.store_r3)
        works["stream write jstream"] = partial(self.stream_write, f"{name}-STREAMED")
        self.time_in_turn(works, number, counted)
        shutil.rmtree(self.run.place / f"delta-{name}", ignore_errors=True)
        self.forget_rounds()

    def stream_write(self, stream: str) -> None:
        rows = self.spark.readStream.schema(self.rows.schema).parquet(str(self.run.place / "rows"))
        self.finish(rows, "jstream", path=self.store, stream=stream)

    # --- reading

    def load(self, reader: DataFrameReader | DataStreamReader, kind: str) -> DataFrame:
        if kind == "jstream":
            chosen = reader.format("jstream").options(stream="ORDERS", startingOffsets="earliest")
            return chosen.load(self.store)
        if kind == "ready batches":
            return reader.format("ready_batches").options(rows=self.run.messages, partitions=8, data_size=93).load()
        if kind == "delta":
            return reader.format("delta").load(str(self.run.place / "delta-ORDERS"))
        chosen = reader.format("kafka").options(subscribe="ORDERS", startingOffsets="earliest")
        return chosen.option("kafka.bootstrap.servers", self.address).load()

    def read_round(self, number: int, counted: bool) -> None:
        works: dict[str, Work] = {}
        for kind in (*self.kinds, "ready batches"):
            works |= {f"read {kind}": partial(self.drain, kind), f"stream read {kind}": partial(self.stream, kind)}
        self.time_in_turn({**works, "scan jstream": self.scan}, number, counted)

    def drain(self, kind: str) -> None:
        self.load(self.spark.read, kind).write.format("noop").mode("overwrite").save()

    def scan(self) -> None:
        scan(self.spark, self.store, "ORDERS").write.format("noop").mode("overwrite").save()

    def stream(self, kind: str) -> None:
        self.finish(self.load(self.spark.readStream, kind), "noop")

    # --- small batches

    def trigger_round(self, counted: bool) -> None:
        """Time warm micro-batches of the same few messages: ours, cut out of blocks, and a Parquet file each."""
        place, total = self.run.place / "small", TRIGGERS * TRIGGER_MESSAGES
        if not place.exists():
            small = self.spark.read.parquet(str(self.run.place / "rows")).limit(total).repartition(TRIGGERS)
            small.write.parquet(str(place))
            self.make_stream(self.store, "SMALL")
            jstream_write(small, "SMALL", self.store)
        ours = self.spark.readStream.format("jstream").options(stream="SMALL", startingOffsets="earliest")
        theirs = self.spark.readStream.schema(self.rows.schema).option("maxFilesPerTrigger", 1)
        frames = {
            "jstream": ours.option("maxOffsetsPerTrigger", TRIGGER_MESSAGES).load(self.store),
            "parquet": theirs.parquet(str(place)),
        }
        for kind, frame in frames.items():
            query = self.finish(frame, "noop")
            durations = [
                progress.durationMs["triggerExecution"] for progress in query.recentProgress if progress.numInputRows
            ]
            assert len(durations) >= TRIGGERS - 1, f"{kind}: {len(durations)} micro-batches"
            if counted:
                median_s = statistics.median(durations[WARM_UP:]) / 1_000
                self.run.seconds.setdefault(f"trigger {kind}", []).append(median_s)
                self.run.cpu_seconds.setdefault(f"trigger {kind}", []).append(median_s)

    def finish(self, frame: DataFrame, sink: str, **options: str) -> StreamingQuery:
        checkpoint = tempfile.mkdtemp(dir=self.run.place)
        writer = frame.writeStream.format(sink).options(checkpointLocation=checkpoint, **options)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        shutil.rmtree(checkpoint, ignore_errors=True)
        return query


def _size(folder: Path) -> int:
    """Return the bytes of all files below the folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main(messages: int, rounds: int) -> int:
    """Run everything, print the ratios and write them to benchmarks/results; returns an exit code."""
    jars = kafka.connector_jars()
    if not jars:
        print("Kafka is left out: its JARs are not here (python scripts/kafka_jars.py fetches them)")
    with tempfile.TemporaryDirectory(prefix="jstream-bench-") as folder, ExitStack() as stack:
        place = Path(folder)
        address = stack.enter_context(kafka.broker(place / "kafka", PARTITIONS)) if jars else None
        spark, delta = start_session(place, more_jars=jars)
        stack.callback(spark.stop)
        run = Run(messages, rounds, spark, place, delta)
        peers = Peers(run, address)
        for number in range(rounds + 1):
            peers.write_round(number, number > 0)
            peers.read_round(number, number > 0)
            print(f"round {number} of {rounds} done" + ("" if number else " (warm-up, not counted)"), flush=True)
        for number in range(2):
            peers.trigger_round(number > 0)
    command = f"python -m benchmarks.peers --messages {messages} --rounds {rounds}"
    report(run, RATIOS, "peers", command, SIZE_RATIOS)
    return 0


if __name__ == "__main__":
    sys.exit(run_from_command_line("peers", __doc__, main, MESSAGES, "how many to write and read"))
