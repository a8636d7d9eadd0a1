"""The main job: from the broken nodes of a JetStream cluster to a table, through a replicated stream that loses disks.

Every number that is printed was computed in this run.
"""

import gzip
import hashlib
import json
import shutil
import struct
import time
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_stream.demo.page import page
from spark_stream.demo.report import Batch, Report
from spark_stream.pipelines.beginnings import Beginnings
from spark_stream.pipelines.config import Pipeline, load_pipeline
from spark_stream.pipelines.run import Progress, Run, Stop, prepare
from spark_stream.pipelines.state import PipelineState
from spark_stream.session import delta_jars, local_session
from storage_core import Store
from storage_core.foreign import open_foreign
from storage_core.foreign.side_by_side import compare as compare_foreign
from storage_core.store.imports.importing import ImportRequest, import_streams
from storage_core.store.replicas.side_by_side import compare

STREAM, LETTERS, CONSUMER = "ORDERS", "ORDERS_DEAD", "warehouse"
NODES = ("n1", "n2", "n3")
DISKS = ("disk-1", "disk-2", "disk-3")
NEW_ORDERS = 25
TITLE = "From a broken JetStream cluster to a table"


def run(source: Path, output: Path) -> bool:
    """Do the whole job, print what happens and leave it as a page; return whether all counts add up."""
    began = time.monotonic()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    report = Report()
    spark = local_session("jstream demo", output / "warehouse")
    try:
        Job(spark, source, output, report).run()
    finally:
        spark.stop()
    report.summary()
    (output / "report.html").write_text(page(report, TITLE))
    report.console.print(
        f"{time.monotonic() - began:.0f} s; the report as a page: {output / 'report.html'}", markup=False
    )
    return report.ok


class Job:
    """The steps, one after another."""

    def __init__(self, spark: SparkSession, source: Path, output: Path, report: Report) -> None:
        self.spark, self.output, self.report = spark, output, report
        self.nodes = [source / "store" / name for name in NODES]
        self.disks = [output / "store" / name for name in DISKS]
        with gzip.open(source / "expected.jsonl.gz", "rt") as lines:
            self.expected: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.kind = "delta" if delta_jars() else "parquet"

    def run(self) -> None:
        self.look_at_the_nodes()
        self.rescue()
        self.consume()
        self.repair()
        self.consume_again()
        self.look_at_the_table()

    # --- the nodes of the cluster

    def look_at_the_nodes(self) -> None:
        self.report.step("What three nodes of a NATS JetStream cluster left behind")
        drift = compare_foreign(open_foreign(self.nodes), STREAM)
        self.report.show_copies("The nodes, sequence by sequence, and what a read of all three gives", drift)
        for one in drift.conflicts:
            self.report.say(one.describe())
        messages = self.spark.read.format("jstream").option("layout", "nats").option("stream", STREAM)
        columns = messages.schema("sequence long, subject string, timestamp_ns long, data binary")
        rows = columns.load([str(node) for node in self.nodes]).collect()
        self.report.count("read by Spark from the three nodes together", len(rows), len(self.expected))
        found = digest((row.sequence, row.subject, row.timestamp_ns, bytes(row.data)) for row in rows)
        self.report.check(
            f"sequence, subject, time and data are those that a client got before the damage ({found[:16]})",
            found == self.expected_digest(),
            "they differ",
        )

    def expected_digest(self) -> str:
        return digest((one["seq"], one["subject"], one["time_ns"], one["data"].encode()) for one in self.expected)

    # --- into a store of our own

    def rescue(self) -> None:
        self.report.step("Rescued into a stream of our own, on three volumes")
        self.disks[0].parent.mkdir()
        with Store.create(self.disks) as store:
            (one,) = import_streams(store, open_foreign(self.nodes), ImportRequest(streams=(STREAM,)))["streams"]
            count, content = self.read_own(store)
            self.report.count("in the stream", count, len(self.expected))
            self.report.check(
                f"content and sequences are the same ({content[:16]})", content == self.expected_digest(), "they differ"
            )
            import_streams(store, open_foreign(self.nodes), ImportRequest(streams=(STREAM,)))
            self.report.count("in the stream after a second import", self.read_own(store)[0], len(self.expected))
            self.report.say(f"consumer {', '.join(one['consumers'])} came along: {self.where_billing_is(store)}")
            self.report.show_copies("The three volumes after the import", compare(store, STREAM))
            store.add_stream({"name": LETTERS})
            bad = store.stream(STREAM).publish("orders.created.eu-west", b"this is no JSON")
        self.report.say(f"a message that is no JSON was published: sequence {bad.sequence:,}")

    def where_billing_is(self, store: Store) -> str:
        info = store.stream(STREAM).consumer("billing").info()
        return f"delivered up to {info['delivered']['stream_seq']:,}, {info['num_pending']:,} pending"

    def read_own(self, store: Store) -> tuple[int, str]:
        columns = ["sequence", "subject", "timestamp_ns", "data"]
        rows = store.stream(STREAM).read(columns=columns).read_all().to_pylist()
        return len(rows), digest((row["sequence"], row["subject"], row["timestamp_ns"], row["data"]) for row in rows)

    # --- the pipeline, while disks go

    def pipeline(self) -> Pipeline:
        """Return the pipeline, out of its file in the output folder."""
        file = self.output / "orders.toml"
        if not file.exists():
            text = resources.files("spark_stream.demo").joinpath("orders.toml").read_text()
            file.write_text(text.replace('kind = "delta"', f'kind = "{self.kind}"'))
        return load_pipeline(file)

    def run_pipeline(self, number: int) -> dict[str, Any]:
        pipeline = self.pipeline()
        state = PipelineState(pipeline.checkpoint)
        began = time.monotonic()

        def watch(progress: Progress) -> None:
            lag = sum(progress.lag.values())
            elapsed_s = time.monotonic() - began
            self.report.batches.append(Batch(number, progress.rows_in, progress.rows_per_s, lag, elapsed_s))
            if len(self.report.batches) == 1:
                self.lose_disks()

        with state.lock("the demo"):
            Beginnings(state, pipeline).check(new_checkpoint=False)
            summary = Run(prepare(pipeline, self.spark), state, pipeline.trigger.mode).execute(Stop(), watch)
        return summary.to_json()

    def consume(self) -> None:
        kind = self.kind.capitalize()
        self.report.step(
            f"Through a durable consumer into a {kind} table, while one volume is lost and another damaged"
        )
        if self.kind == "parquet":
            self.report.say("Delta's JARs are not here (make setup says why), so it is a Parquet table")
        done = self.run_pipeline(1)
        shown = [one for one in self.report.batches if one.run == 1]
        self.report.say(f"{len(shown)} micro-batches, {done['duration_s']:.0f} s, {self.events()} so far")
        self.report.count("read by the pipeline", done["rows_in"], len(self.expected) + 1)
        self.report.count("dead letters, with reason and sequence", done["rows_dead"], 1)
        self.report.count("rows in the table", self.table().count(), len(self.expected))
        with Store.open(self.disks) as store:
            letter = store.stream(LETTERS).read().read_all().to_pylist()[-1]
        headers = {one["key"]: one["value"].decode() for one in letter["headers"]}
        self.report.say("the dead letter: " + ", ".join(f"{name} {value}" for name, value in headers.items())[:150])
        self.show_consumer("after the first run", 0)

    def lose_disks(self) -> None:
        """Lose one volume and damage another, while the query goes on."""
        block = max((self.disks[0] / "streams").rglob("*.blk"), key=lambda path: path.stat().st_size)
        flip(block, block.stat().st_size // 3)
        shutil.rmtree(self.disks[1])
        self.report.say("while the query runs: disk-2 is deleted with all that is on it, and one byte of disk-1 flips")
        with Store.open(self.disks, read_only=True) as store:
            self.report.show_copies("The volumes while the pipeline runs", compare(store, STREAM))

    def events(self) -> str:
        with Store.open(self.disks, read_only=True) as store:
            count = len(store.events())
        return f"{count} event{'' if count == 1 else 's'}"

    def show_consumer(self, when: str, expected_pending: int) -> None:
        with Store.open(self.disks) as store:
            info = store.stream(STREAM).consumer(CONSUMER).info()
        numbers = {
            "delivered": info["delivered"]["stream_seq"],
            "ack floor": info["ack_floor"]["stream_seq"],
            "ack pending": info["num_ack_pending"],
            "pending": info["num_pending"],
        }
        self.report.show_consumer(when, numbers)
        self.report.check(f"pending is {expected_pending}", info["num_pending"] == expected_pending, str(numbers))

    # --- repair, and once more

    def repair(self) -> None:
        self.report.step("Repaired from the copies that are good")
        with Store.open(self.disks) as store:
            done = store.repair()
            self.report.check("repair left nothing bad", done["ok"], str(done)[:300])
            for event in store.events()[-4:]:
                self.report.say(
                    f"event: {event['kind']} {event['before']} -> {event['after']}: {event['reason']}"[:150]
                )
            drift = compare(store, STREAM)
            self.report.show_copies("The volumes after the repair", drift)
            replicas = store.stream(STREAM).info()["cluster"]["replicas"]
        states, digests = {one["state"] for one in replicas}, {one["digest"] for one in replicas}
        equal = states == {"current"} and len(digests) == 1 and drift.agrees
        self.report.check("all copies are current, with equal digests", equal, str(states))

    def consume_again(self) -> None:
        self.report.step(f"{NEW_ORDERS} new orders, and the pipeline again")
        with Store.open(self.disks) as store:
            for number in range(NEW_ORDERS):
                order = {"order_id": f"N-{number}", "event": "created", "amount": 10.0 + number, "currency": "EUR"}
                store.stream(STREAM).publish("orders.created.eu-west", json.dumps(order).encode())
        self.show_consumer("before the second run", NEW_ORDERS)
        done = self.run_pipeline(2)
        self.report.count("read by the second run", done["rows_in"], NEW_ORDERS)
        self.show_consumer("after the second run", 0)
        rows = self.table()
        self.report.count("rows in the table after the second run", rows.count(), len(self.expected) + NEW_ORDERS)
        sequences = rows.select("sequence").distinct().count()
        self.report.count("different sequences among them: nothing twice", sequences, rows.count())

    # --- the table

    def table(self) -> DataFrame:
        return self.spark.read.format(self.kind).load(str(self.output / "table"))

    def look_at_the_table(self) -> None:
        self.report.step(f"What the {self.kind.capitalize()} table says")
        self.table().createOrReplaceTempView("orders")
        paid = self.spark.sql(
            "SELECT region, currency, count(DISTINCT order_id) AS orders, sum(amount) AS amount "
            "FROM orders WHERE event = 'paid' GROUP BY region, currency ORDER BY region, currency"
        ).collect()
        for row in paid:
            self.report.say(
                f"{row['region']:<10} {row['orders']:>6,} orders paid {row['amount']:>16,.2f} {row['currency']}"
            )
        expected = sum(json.loads(one["data"])["event"] == "paid" for one in self.expected)
        found = self.spark.sql("SELECT count(*) AS n FROM orders WHERE event = 'paid'").collect()[0]["n"]
        self.report.count("payments in the table", found, expected)


def digest(rows: Iterable[tuple[int, str, int, bytes]]) -> str:
    """Return a hash, in hex, over sequence, subject, time and data of messages, whatever their order."""
    made = hashlib.sha256()
    for sequence, subject, time_ns, data in sorted(rows):
        head = struct.pack("<qqii", sequence, time_ns, len(subject.encode()), len(data))
        made.update(head + subject.encode() + data)
    return made.hexdigest()


def flip(path: Path, offset_bytes: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset_bytes)
        byte = file.read(1)[0]
        file.seek(offset_bytes)
        file.write(bytes([byte ^ 0x40]))
