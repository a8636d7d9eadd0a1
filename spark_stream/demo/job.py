"""The main job: from the broken nodes of a JetStream cluster to a table, through a replicated stream that loses disks.

Every number that is printed was computed in this run.
"""

import gzip
import hashlib
import json
import shutil
import struct
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from shlex import quote
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

from spark_stream import rescue
from spark_stream.demo import folder
from spark_stream.demo.folder import LETTERS, STREAM
from spark_stream.demo.page import page
from spark_stream.demo.report import Batch, Report
from spark_stream.jars import delta_jars
from spark_stream.pipelines.api import run_pipeline
from spark_stream.pipelines.run import Progress
from spark_stream.session import JAVA_OPTIONS, session
from storage_core import Store
from storage_core.comparison import State
from storage_core.store.stream import Stream

CONSUMER = "warehouse"
NEW_ORDERS = 25
TITLE = "From a broken JetStream cluster to a table"
COMPILES_QUICKLY = "-XX:TieredStopAtLevel=1"  # rather than well: whatever runs here runs once
BILLING = "billing"  # a consumer of the cluster
AS_BEFORE = "as many as a client got before the damage"
OWN_COPIES = f"jstream drift --stream {STREAM}"
COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")
Message = tuple[int, str, int, tuple[tuple[str, bytes], ...], bytes]  # as COLUMNS


def run(source: Path, output: Path) -> bool:
    """Do the whole job, print what happens and leave it as a page; return whether all counts add up."""
    began = time.monotonic()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    report = Report()
    spark = session(
        "jstream demo", {"spark.sql.warehouse.dir": str(output / "warehouse"), JAVA_OPTIONS: COMPILES_QUICKLY}
    )
    try:
        Job(spark, source, output, report).run()
    finally:
        spark.stop()
    report.made = made_with(time.monotonic() - began)
    (output / "report.html").write_text(page(report, TITLE))
    report.summary()
    (output / "report.txt").write_text(report.console.export_text().lstrip())
    report.console.print(f"The same as a page: {output / 'report.html'}", markup=False)
    report.console.print(f"Nodes, store, pipeline and table are in {output}, to play with", markup=False)
    pages = f"jstream ui --store {quote(str(folder.volumes(output)[0]))}"
    report.console.print(f"Look at the store in a browser: {pages}", markup=False)
    return report.ok


class Job:
    """The steps, one after another."""

    def __init__(self, spark: SparkSession, source: Path, output: Path, report: Report) -> None:
        self.spark, self.output, self.report = spark, output, report
        shutil.copytree(source / "store", output / "nodes")
        self.nodes, self.disks = folder.nodes(output), folder.volumes(output)
        with gzip.open(source / "expected.jsonl.gz", "rt") as lines:
            self.expected: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.kind = "delta" if delta_jars() else "parquet"
        folder.write_settings(output, self.kind)
        self.bad = 0  # sequence of the message that is no JSON

    def run(self) -> None:
        self.look_at_the_nodes()
        self.rescue()
        self.consume()
        self.repair()
        self.consume_again()
        self.look_at_the_table()
        self.summarise()

    # --- the nodes of the cluster

    def look_at_the_nodes(self) -> None:
        self.report.step("What three nodes of a NATS JetStream cluster left behind")
        self.report.say(f"order events of a shop; a client had read all {len(self.expected):,} before the nodes broke")
        drift = rescue.compare(rescue.open(self.nodes), STREAM)
        nodes = " ".join(f"nodes/{name}" for name in folder.NODES)
        self.report.show_copies(
            "The nodes, sequence by sequence, and what a read of all three gives", drift, f"jstream drift nats {nodes}"
        )
        for conflict in drift.conflicts:
            self.report.say(conflict.describe())
        self.report.say("Spark reads the three nodes as one; what it reads from another copy it logs, line by line")
        messages = self.spark.read.format("jstream").option("layout", "nats").option("stream", STREAM)
        columns = messages.schema(
            "sequence long, subject string, timestamp_ns long, headers array<struct<key:string,value:binary>>, "
            "data binary"
        )
        rows = columns.load([str(node) for node in self.nodes]).collect()
        self.report.count("read by Spark from the three nodes together", len(rows), len(self.expected), AS_BEFORE)
        self.check_content([row.asDict(recursive=True) for row in rows])

    def check_content(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Hold messages against what the client got."""
        sha256 = digest(
            (row["sequence"], row["subject"], row["timestamp_ns"], headers_of(row), bytes(row["data"])) for row in rows
        )
        self.report.check(
            f"sequence, subject, time, headers and data of each are what the client got (SHA-256 {sha256[:12]}...)",
            sha256 == digest(map(as_the_client_got_it, self.expected)),
            "they differ",
        )

    # --- into a store of our own

    def rescue(self) -> None:
        self.report.step("Rescued into a stream of our own, on three volumes")
        self.disks[0].parent.mkdir()
        with Store.create(self.disks) as store:
            stream = self.import_nodes(store)
            self.report.count("in the stream", stream.read().read_all().num_rows, len(self.expected), AS_BEFORE)
            self.check_content(stream.read(columns=list(COLUMNS)).read_all().to_pylist())
            again = self.import_nodes(store).read().read_all().num_rows
            self.report.count("in the stream after a second import", again, len(self.expected), "nothing comes twice")
            self.check_billing(stream.consumer(BILLING).info())
            self.report.show_copies("The three volumes after the import", rescue.compare(store, STREAM), OWN_COPIES)
            store.add_stream({"name": LETTERS})
            self.bad = stream.publish("orders.created.eu-west", b"this is no JSON").sequence
        self.report.say(f"a message that is no JSON was published: sequence {self.bad:,}")

    def check_billing(self, info: Mapping[str, Any]) -> None:
        """Hold the cluster's consumer, whose filter takes payments, against the messages."""
        delivered, pending = info["delivered"]["stream_seq"], info["num_pending"]
        paid = sum(
            message["seq"] > delivered and message["subject"].startswith("orders.paid.") for message in self.expected
        )
        self.report.check(
            f"the cluster's consumer {BILLING} came along: it stands at {delivered:,}, and {pending:,} payments follow",
            pending == paid,
            f"{paid:,} do",
        )

    def import_nodes(self, store: Store) -> Stream:
        rescue.import_streams(store, rescue.open(self.nodes), streams=STREAM)
        return store.stream(STREAM)

    # --- the pipeline, while disks go

    def run_pipeline(self, loses_disks: bool = False) -> dict[str, Any]:
        began = time.monotonic()

        def watch(progress: Progress) -> None:
            batches, elapsed_s = self.report.now.batches, time.monotonic() - began
            batches.append(Batch(progress.rows_in, progress.rows_per_s, sum(progress.lag.values()), elapsed_s))
            if loses_disks and len(batches) == 1:
                self.lose_disks()
                self.report.now.marks.append((elapsed_s, "disk-2 is deleted,\none byte of disk-1 flips"))

        return run_pipeline(self.output / folder.PIPELINE, watch=watch).to_json()

    def consume(self) -> None:
        kind = self.kind.capitalize()
        self.report.step(
            f"Through a durable consumer into a {kind} table, while one volume is lost and another damaged"
        )
        if self.kind == "parquet":
            self.report.say("Delta's JARs are not here (make setup says why), so it is a Parquet table")
        done = self.run_pipeline(loses_disks=True)
        self.report.say(f"{len(self.report.now.batches)} micro-batches, {done['duration_s']:.0f} s")
        self.report.count(
            "read by the pipeline", done["rows_in"], len(self.expected) + 1, "all of these, and the one that is no JSON"
        )
        self.report.count("dead letters", done["rows_dead"], 1, "the one that is no JSON")
        self.report.count(
            "rows in the table", self.table().count(), len(self.expected), "what was read without the dead letter"
        )
        with Store.open(self.disks) as store:
            letter = store.stream(LETTERS).read().read_all().to_pylist()[-1]
        headers = {key: value.decode() for key, value in headers_of(letter)}
        self.report.check(
            f"the dead letter says why and where: {headers['Jstream-Reason']}, sequence {headers['Jstream-Sequence']}",
            headers["Jstream-Sequence"] == str(self.bad),
            f"it was sequence {self.bad}",
        )
        self.show_consumer({"after the first run": self.consumer(0)})

    def lose_disks(self) -> None:
        """Lose one volume and damage another, while the query goes on."""
        block = max((self.disks[0] / "streams").rglob("*.blk"), key=lambda path: path.stat().st_size)
        flip(block, block.stat().st_size // 3)
        shutil.rmtree(self.disks[1])
        with Store.open(self.disks, read_only=True) as store:
            drift = rescue.compare(store, STREAM)
        damaged = drift.copies[0].count(State.DAMAGED)
        self.report.say(
            "while the query runs disk-2 is deleted with all that is on it, and one byte of disk-1 flips: a frame "
            f"fails its checksum, and none of its {damaged:,} messages is served from there"
        )
        self.report.show_copies("The volumes while the pipeline runs", drift, OWN_COPIES)

    def consumer(self, expected_pending: int) -> dict[str, int]:
        """Return where the pipeline's consumer stands, and check how many messages are to come."""
        with Store.open(self.disks) as store:
            info = store.stream(STREAM).consumer(CONSUMER).info()
        self.report.check(
            f"the consumer's lag, seen from outside: {info['num_pending']:,}",
            info["num_pending"] == expected_pending,
            f"must be {expected_pending:,}",
        )
        return {
            "delivered": info["delivered"]["stream_seq"],
            "ack floor": info["ack_floor"]["stream_seq"],
            "ack pending": info["num_ack_pending"],
            "pending": info["num_pending"],
        }

    def show_consumer(self, seen: Mapping[str, Mapping[str, int]]) -> None:
        (first, *_) = seen.values()
        rows = [(when, *(f"{value:,}" for value in numbers.values())) for when, numbers in seen.items()]
        self.report.show_table((f"consumer {CONSUMER}", *first), rows)

    # --- repair, and once more

    def repair(self) -> None:
        self.report.step("Repaired from the copies that are good")
        with Store.open(self.disks) as store:
            done = store.repair()
            self.report.check("the repair left nothing bad", done["ok"], str(done)[:300])
            names = {volume["name"]: Path(volume["path"]).name for volume in store.cluster_info()["volumes"]}
            events = [event for event in store.events() if event["volume"]]
            event_counts = Counter(
                (names[event["volume"]], event["kind"], event["before"], event["after"]) for event in events
            )
            for (name, kind, before, after), count in event_counts.items():
                times = "" if count == 1 else f", {count} times"
                self.report.say(f"event {kind}: {name}, from {before} to {after}{times}")
            drift = rescue.compare(store, STREAM)
            self.report.show_copies("The volumes after the repair", drift, OWN_COPIES)
            replicas = store.stream(STREAM).info()["cluster"]["replicas"]
        states, digests = {replica["state"] for replica in replicas}, {replica["digest"] for replica in replicas}
        equal = states == {"current"} and len(digests) == 1 and drift.agrees
        self.report.check("all copies are current, with equal digests", equal, str(states))

    def consume_again(self) -> None:
        self.report.step(f"{NEW_ORDERS} new orders, and the pipeline again")
        with Store.open(self.disks) as store:
            for number in range(NEW_ORDERS):
                order = {"order_id": f"N-{number}", "event": "created", "amount": 10.0 + number, "currency": "EUR"}
                store.stream(STREAM).publish("orders.created.eu-west", json.dumps(order).encode())
        before = self.consumer(NEW_ORDERS)
        done = self.run_pipeline()
        self.report.count("read by the second run", done["rows_in"], NEW_ORDERS, "only what is new")
        self.show_consumer({"before the second run": before, "after it": self.consumer(0)})
        rows, expected = self.table(), len(self.expected) + NEW_ORDERS
        self.report.count("rows in the table after the second run", rows.count(), expected, "those of both runs")
        sequences = rows.select("sequence").distinct().count()
        self.report.count("different sequences among them", sequences, expected, "nothing is there twice")

    # --- the table

    def table(self) -> DataFrame:
        return self.spark.read.format(self.kind).load(str(self.output / "table"))

    def look_at_the_table(self) -> None:
        self.report.step(f"What the {self.kind.capitalize()} table says")
        self.table().createOrReplaceTempView("orders")
        paid = self.spark.sql(
            "SELECT region, currency, count(*) AS payments, sum(CAST(amount AS DECIMAL(18, 2))) AS amount "
            "FROM orders WHERE event = 'paid' GROUP BY region, currency ORDER BY region, currency"
        ).collect()
        rows = [(row["region"], f"{row['payments']:,}", f"{row['amount']:,.2f}", row["currency"]) for row in paid]
        self.report.show_table(("paid orders of region", "payments", "amount", "currency"), rows)
        bodies = [(message["subject"].split(".")[2], json.loads(message["data"])) for message in self.expected]
        expected: Counter[tuple[str, str]] = Counter()
        for region, body in bodies:
            if body["event"] == "paid":
                expected[region, body["currency"]] += round(100 * body["amount"])
        self.report.count(
            "payments in the table",
            sum(row["payments"] for row in paid),
            sum(body["event"] == "paid" for _, body in bodies),
            "those among what the client got",
        )
        self.report.check(
            "the amounts are those of what the client got, to the hundredth",
            {(row["region"], row["currency"]): int(100 * row["amount"]) for row in paid} == expected,
            str(dict(expected)),
        )

    def summarise(self) -> None:
        """Say what the page begins with, by the numbers of this run."""
        with Store.open(self.disks, read_only=True) as store:
            recovered = store.stream(STREAM).read(end=self.bad).read_all().num_rows
        self.report.begin_page(
            f"Three broken nodes of a NATS cluster held the orders of a shop, and none of them had all. "
            f"{recovered:,} of {len(self.expected):,} messages were recovered, which SHA-256 confirms, and went into a "
            f"{self.kind.capitalize()} table while one disk was deleted and another one damaged.",
            [
                (f"{100 * recovered / len(self.expected):g} %", "of the messages recovered"),
                (f"{len(self.expected) - recovered:,}", "messages lost"),
                (f"{self.table().count():,}", "rows in the table, none twice"),
            ],
        )


def made_with(duration_s: float) -> str:
    """Return when and with what the report was made."""
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return f"Made in {duration_s:.0f} s with Spark {pyspark.__version__}, {when}."


def headers_of(message: Mapping[str, Any]) -> tuple[tuple[str, bytes], ...]:
    return tuple((header["key"], bytes(header["value"])) for header in message["headers"] or ())


def as_the_client_got_it(message: Mapping[str, Any]) -> Message:
    headers = tuple((key, value.encode()) for key, value in message["headers"])
    return message["seq"], message["subject"], message["time_ns"], headers, message["data"].encode()


def digest(messages: Iterable[Message]) -> str:
    """Return a hash, in hex, over all of messages, whatever their order."""
    made = hashlib.sha256()
    for sequence, subject, time_ns, headers, data in sorted(messages):
        parts = [subject.encode(), data, *(part for key, value in headers for part in (key.encode(), value))]
        made.update(struct.pack("<qqi", sequence, time_ns, len(parts)))
        for part in parts:
            made.update(struct.pack("<i", len(part)) + part)
    return made.hexdigest()


def flip(path: Path, offset_bytes: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset_bytes)
        byte = file.read(1)[0]
        file.seek(offset_bytes)
        file.write(bytes([byte ^ 0x40]))
