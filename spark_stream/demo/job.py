"""The main job: read a JetStream store, append it to a stream, survive a flipped byte, end in a table.

Every number that is printed was computed in this run.
"""

import gzip
import json
import shutil
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_stream.demo.report import Report
from spark_stream.session import delta_jars, local_session
from storage_core import Store
from storage_core.store.plan import ReadRequest

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
        volume = output / "store"
        append(spark, messages, volume, report)
        damage(spark, volume, report)
        to_table(spark, volume, report)
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


def append(spark: SparkSession, messages: DataFrame, volume: Path, report: Report) -> None:
    """Append the messages to a stream of our own, twice under one identity, and compare content."""
    report.step("2. Appended to a stream of our own: one atomic append, fsynced")
    with Store.create(volume) as store:
        store.add_stream({"name": STREAM, "subjects": ["orders.>"], "compression": "zstd", "block_max_msgs": 500})
    rows = messages.select(*CONTENT, "sequence").repartitionByRange(2, "sequence").sortWithinPartitions("sequence")
    writer = rows.write.format("jstream").option("stream", STREAM).mode("append")
    writer = writer.option("writerId", "demo").option("batchId", "jetstream-2026")
    writer.save(str(volume))
    count = messages.count()
    report.count("in the stream", read_stream(spark, volume).count(), count)
    writer.save(str(volume))
    report.count("in the stream after the same append again", read_stream(spark, volume).count(), count)
    theirs, ours = content_hash(messages), content_hash(read_stream(spark, volume))
    report.check(f"content hash {ours:#018x}, the same in both stores", theirs == ours, f"JetStream has {theirs:#018x}")


def read_stream(spark: SparkSession, volume: Path, **options: str) -> DataFrame:
    return spark.read.format("jstream").option("stream", STREAM).options(**options).load(str(volume))


def content_hash(messages: DataFrame) -> int:
    """Return a hash over subject, time, headers and data of all messages, whatever their order."""
    row = messages.select(F.xxhash64(*CONTENT).cast("decimal(38,0)").alias("hash")).agg(F.sum("hash")).first()
    assert row is not None
    return int(row[0]) & 0xFFFFFFFFFFFFFFFF


def damage(spark: SparkSession, volume: Path, report: Report) -> None:
    """Flip one byte of a block: it is found, not served, and nothing else suffers."""
    report.step("3. One byte of a block file flipped")
    intact = read_stream(spark, volume).count()
    with Store.open(volume) as store:
        largest = max(store.plan(ReadRequest((STREAM,))).slices, key=lambda one: one.file_size)
    block, offset_bytes = Path(largest.paths[0]), largest.file_size // 3
    flip(block, offset_bytes)
    try:
        with Store.open(volume) as store:
            found = store.verify()
        lost = sum(one["end"] - one["first"] for one in found["damage"])
        report.check(f"verify found {len(found['damage'])} damaged place", not found["ok"], "verify found nothing")
        for one in found["damage"]:
            report.say(f"sequences {one['first']} to {one['end'] - 1}, {Path(one['file']).name}: {one['reason']}"[:160])
        try:
            read_stream(spark, volume).write.format("noop").mode("overwrite").save()
            report.check("a read stops with an error", False, "Spark read the damaged block")
        except Exception as error:
            named = "DataLossError" in str(error)
            report.check("a read stops with DataLossError, which names the sequences", named, str(error)[:300])
        rest = read_stream(spark, volume, failOnDataLoss="false").count()
        report.count("served with failOnDataLoss=false", rest, intact - lost)
    finally:
        flip(block, offset_bytes)
    with Store.open(volume) as store:
        report.check("the byte put back, verify finds nothing", store.verify()["ok"], "verify still finds damage")


def flip(path: Path, offset_bytes: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset_bytes)
        byte = file.read(1)[0]
        file.seek(offset_bytes)
        file.write(bytes([byte ^ 0x40]))


def to_table(spark: SparkSession, volume: Path, report: Report) -> None:
    """Parse the orders with Spark SQL into a table, and read the table back."""
    kind = "delta" if delta_jars() else "parquet"
    report.step(f"4. Into a {kind.capitalize()} table with Spark SQL")
    if kind == "parquet":
        report.say("Delta's JARs are not here (make setup says why), so this is a Parquet table")
    stream = read_stream(spark, volume)
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
