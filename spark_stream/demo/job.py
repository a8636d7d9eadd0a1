"""The main job: read a JetStream store, append it to a replicated stream, survive damage and loss, end in a table.

Every number that is printed was computed in this run.
"""

import gzip
import json
import shutil
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_stream.demo.report import Report
from spark_stream.session import delta_jars, local_session
from storage_core import Store

STREAM = "ORDERS"
CONTENT = ("subject", "timestamp", "headers", "data")  # what must be the same in both stores
ORDER_COLUMNS = "order_id STRING, customer_id STRING, amount DOUBLE, currency STRING, event STRING, time TIMESTAMP"


def run(source: Path, output: Path) -> bool:
    """Do the whole job and print what happens; return whether all counts add up."""
    began = time.monotonic()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    report = Report()
    spark = local_session("jstream demo", output / "warehouse")
    try:
        messages = read_jetstream(spark, source, report)
        volumes = [output / "store" / name for name in ("disk-1", "disk-2", "disk-3")]
        append(spark, messages, volumes, report)
        damage(spark, volumes, report)
        lose(spark, volumes, report)
        to_table(spark, volumes, report)
    finally:
        spark.stop()
    report.summary()
    report.console.print(f"{time.monotonic() - began:.0f} s; store and table are in {output}", markup=False)
    return report.ok


def read_jetstream(spark: SparkSession, source: Path, report: Report) -> DataFrame:
    """Return the messages of the JetStream store, compared with what a client of its server got."""
    report.step("1. A JetStream store, written by a real nats-server, read in place by Spark")
    messages = spark.read.format("jstream").option("layout", "nats").load(str(source / "store"))
    by_subject = messages.groupBy(F.substring_index("subject", ".", 2).alias("kind")).count().orderBy("kind").collect()
    with gzip.open(source / "expected.jsonl.gz", "rt") as lines:
        expected = [json.loads(line) for line in lines]
    files = sorted((source / "store").rglob("*.blk"))
    report.say(
        f"{len(files)} block files, {sum(file.stat().st_size for file in files):,} bytes, every checksum verified"
    )
    for row in by_subject:
        report.say(f"{row['kind']:<18} {row['count']:>7,}")
    sequences = {row["sequence"] for row in messages.select("sequence").collect()}
    report.count("read from the JetStream store", messages.count(), len(expected))
    report.check(
        "the sequences are those that a client of the server got",
        sequences == {message["seq"] for message in expected},
        "they differ",
    )
    return messages


def append(spark: SparkSession, messages: DataFrame, volumes: list[Path], report: Report) -> None:
    """Append the messages to a stream of our own, twice under one identity, and compare content."""
    report.step(
        "2. Appended to a stream of our own on three volumes: one atomic append, fsynced on a majority at least"
    )
    volumes[0].parent.mkdir()
    with Store.create(volumes) as store:
        store.add_stream({"name": STREAM, "subjects": ["orders.>"], "compression": "zstd", "block_max_msgs": 500})
    rows = messages.select(*CONTENT, "sequence").repartitionByRange(2, "sequence").sortWithinPartitions("sequence")
    writer = rows.write.format("jstream").option("stream", STREAM).mode("append")
    writer = writer.option("writerId", "demo").option("batchId", "jetstream-2026")
    any_volume = str(volumes[0])
    writer.save(any_volume)
    count = messages.count()
    report.count("in the stream", read_stream(spark, volumes).count(), count)
    writer.save(any_volume)
    report.count("in the stream after the same append again", read_stream(spark, volumes).count(), count)
    theirs, ours = content_hash(messages), content_hash(read_stream(spark, volumes))
    report.check(f"content hash {ours:#018x}, the same in both stores", theirs == ours, f"JetStream has {theirs:#018x}")
    show_replicas(volumes, report)


def read_stream(spark: SparkSession, volumes: list[Path]) -> DataFrame:
    return spark.read.format("jstream").option("stream", STREAM).load([str(one) for one in volumes])


def show_replicas(volumes: list[Path], report: Report) -> list[dict[str, Any]]:
    """Print what each volume's copy of the stream is like; return it."""
    with Store.open(volumes) as store:
        replicas: list[dict[str, Any]] = store.stream(STREAM).info()["cluster"]["replicas"]
    for one in replicas:
        where, content = Path(one["path"]).name, one["digest"][:16]
        report.say(f"{where}  {one['state']:<12} {one['damaged_blocks']} damaged  content {content}")
    return replicas


def repair(volumes: list[Path], report: Report) -> None:
    """Repair the store: afterwards all copies are current, and the same."""
    with Store.open(volumes) as store:
        done = store.repair()
        report.check("repair left nothing bad", done["ok"], str(done)[:300])
        for event in store.events()[-3:]:
            report.say(f"event: {event['kind']} {event['before']} -> {event['after']}: {event['reason']}"[:150])
    replicas = show_replicas(volumes, report)
    states, digests = {one["state"] for one in replicas}, {one["digest"] for one in replicas}
    report.check("all copies are current, with equal digests", states == {"current"} and len(digests) == 1, str(states))


def content_hash(messages: DataFrame) -> int:
    """Return a hash over subject, time, headers and data of all messages, whatever their order."""
    row = messages.select(F.xxhash64(*CONTENT).cast("decimal(38,0)").alias("hash")).agg(F.sum("hash")).first()
    assert row is not None
    return int(row[0]) & 0xFFFFFFFFFFFFFFFF


def damage(spark: SparkSession, volumes: list[Path], report: Report) -> None:
    """Flip one byte of a block on one volume: everything is read all the same, and the copy is repaired."""
    report.step("3. One byte of a block flipped on disk-1")
    before, count = content_hash(read_stream(spark, volumes)), read_stream(spark, volumes).count()
    block = max((volumes[0] / "streams").rglob("*.blk"), key=lambda path: path.stat().st_size)
    flip(block, block.stat().st_size // 3)
    with Store.open(volumes) as store:  # before anybody reads it: what a reader meets, the store repairs by itself
        found = store.verify()["damage"]
    report.check(f"verify found {len(found)} damaged place", len(found) == 1, "of one flipped byte")
    for one in found:
        report.say(f"sequences {one['first']} to {one['end'] - 1}, {Path(one['file']).name}: {one['reason']}"[:150])
    report.count("in the stream, with one copy damaged", read_stream(spark, volumes).count(), count)
    after = content_hash(read_stream(spark, volumes))
    report.check("every message is what it was", after == before, f"content hash {after:#018x}")
    repair(volumes, report)


def lose(spark: SparkSession, volumes: list[Path], report: Report) -> None:
    """Lose a volume altogether: reading and writing go on, and it is built again from the others."""
    report.step("4. disk-2 lost, with all that was on it")
    before, count = content_hash(read_stream(spark, volumes)), read_stream(spark, volumes).count()
    shutil.rmtree(volumes[1])
    report.count("in the stream, with one volume lost", read_stream(spark, volumes).count(), count)
    after = content_hash(read_stream(spark, volumes))
    report.check("every message is what it was", after == before, f"content hash {after:#018x}")
    with Store.open(volumes) as store:
        store.add_stream({"name": "AUDIT", "num_replicas": 3}).publish("AUDIT", b"written while disk-2 was lost")
    show_replicas(volumes, report)
    repair(volumes, report)
    report.count("in the stream, read from disk-2 and disk-3 alone", _without(spark, volumes, 0), count)


def _without(spark: SparkSession, volumes: list[Path], lost: int) -> int:
    """Return how many messages are read while a volume is away."""
    aside = volumes[lost].with_suffix(".away")
    volumes[lost].rename(aside)
    try:
        return read_stream(spark, volumes).count()
    finally:
        aside.rename(volumes[lost])


def flip(path: Path, offset_bytes: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset_bytes)
        byte = file.read(1)[0]
        file.seek(offset_bytes)
        file.write(bytes([byte ^ 0x40]))


def to_table(spark: SparkSession, volumes: list[Path], report: Report) -> None:
    """Parse the orders with Spark SQL into a table, and read the table back."""
    kind = "delta" if delta_jars() else "parquet"
    report.step(f"5. Into a {kind.capitalize()} table with Spark SQL")
    if kind == "parquet":
        report.say("Delta's JARs are not here (make setup says why), so this is a Parquet table")
    stream = read_stream(spark, volumes)
    stream.createOrReplaceTempView("messages")
    spark.sql("DROP TABLE IF EXISTS orders")
    spark.sql(
        f"""
        CREATE TABLE orders USING {kind} AS
        SELECT sequence, timestamp AS stored, split(subject, '[.]')[2] AS region, body.*
        FROM (SELECT *, from_json(cast(data AS string), '{ORDER_COLUMNS}') AS body FROM messages)
        """
    )
    table = spark.table("orders")
    report.count("rows in the table", table.count(), stream.count())
    parsed = table.where("order_id IS NOT NULL").count()
    report.count("rows whose JSON was understood", parsed, table.count())
    by_region = spark.sql(
        "SELECT region, currency, count(DISTINCT order_id) AS orders, sum(amount) AS amount "
        "FROM orders WHERE event = 'paid' GROUP BY region, currency ORDER BY region, currency"
    ).collect()
    for row in by_region:
        report.say(f"{row['region']:<10} {row['orders']:>6,} orders paid {row['amount']:>16,.2f} {row['currency']}")
