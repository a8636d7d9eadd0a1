"""Where a batch of rows goes. Each sink stores a batch once, however often it is handed over under one identity.

Delta keeps the identity in its own log (txnAppId, txnVersion), in the same commit as the rows; jstream keeps it in the
commit of the append (writerId, batchId). The console forgets.
"""

import json
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from datasource.places import open_store
from spark_stream.pipelines.config import CONSOLE, DELTA, JSTREAM, UPSERT, DeadLetters, Pipeline, Sink
from spark_stream.pipelines.payload import DATA, REASON
from storage_core.store.writing.appends import WriterBatch

TXN_APP_ID = "spark.databricks.delta.write.txnAppId"
TXN_VERSION = "spark.databricks.delta.write.txnVersion"
LOCK_TIMEOUT_S = 60.0
COLLECTED_COUNT_MAX = 10_000  # dead letters of a batch that come to the driver; what is more is written by tasks
COLLECTED_SIZE_MAX = 64 * 1024 * 1024  # bytes of their payloads
RFC_3339 = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
HEADER_PREFIX = "Jstream-"  # of the headers that a dead letter has besides its own


@dataclass(frozen=True, slots=True)
class Identity:
    """Who hands a batch over, and which one it is: the same for the same rows, whenever they come again."""

    app: str
    number: int  # grows from batch to batch of one `app`

    def of_dead_letters(self) -> "Identity":
        return Identity(f"{self.app}/dead-letters", self.number)


def write_rows(rows: DataFrame, pipeline: Pipeline, identity: Identity) -> None:
    """Store a batch of transformed rows in the pipeline's sink."""
    sink = pipeline.sink
    if sink.kind == CONSOLE:
        _print(rows, sink, identity)
    elif sink.kind == JSTREAM:
        append_to_stream(rows, sink.volumes, sink.stream, sink.subject, identity, sink.options)
    elif sink.kind == DELTA and sink.mode == UPSERT:
        upsert(rows, sink, identity)
    else:
        assert sink.kind == DELTA, sink
        append_to_delta(rows, sink, identity)


def append_to_delta(rows: DataFrame, sink: Sink, identity: Identity) -> None:
    """Append to a Delta table, which is made if it is not there."""
    writer = rows.write.format("delta").mode("append").options(**sink.options)
    writer = writer.option("txnAppId", identity.app).option("txnVersion", identity.number)
    if sink.partitions:
        writer = writer.partitionBy(*sink.partitions)
    if sink.path:
        writer.save(sink.path)
    else:
        make_table(rows, sink)
        writer.saveAsTable(sink.table)


def make_table(rows: DataFrame, sink: Sink) -> None:
    """Make the Delta table, empty and with the columns of `rows`, unless it is there."""
    writer = rows.limit(0).write.format("delta").mode("ignore")
    if sink.partitions:
        writer = writer.partitionBy(*sink.partitions)
    if sink.path:
        writer.save(sink.path)
    else:
        writer.saveAsTable(sink.table)


def upsert(rows: DataFrame, sink: Sink, identity: Identity) -> None:
    """Bring a Delta table up to the newest row of each key: the one with the highest `order_by`, here or there.

    A row that is older than the table's is left out, so it does not matter in which order batches and backfills come.
    """
    spark = rows.sparkSession
    make_table(rows, sink)
    newest(rows, sink).createOrReplaceTempView("jstream_upsert")
    target = f"delta.{_quoted(sink.path)}" if sink.path else sink.table
    same = " AND ".join(f"there.{_quoted(name)} <=> here.{_quoted(name)}" for name in sink.keys)
    order = _quoted(sink.order_by)
    spark.conf.set(TXN_APP_ID, identity.app)
    spark.conf.set(TXN_VERSION, str(identity.number))
    try:
        spark.sql(
            f"MERGE INTO {target} AS there USING jstream_upsert AS here ON {same} "
            f"WHEN MATCHED AND (there.{order} IS NULL OR here.{order} >= there.{order}) THEN UPDATE SET * "
            "WHEN NOT MATCHED THEN INSERT *"
        ).collect()
    finally:
        spark.conf.unset(TXN_APP_ID)
        spark.conf.unset(TXN_VERSION)
        spark.catalog.dropTempView("jstream_upsert")


def newest(rows: DataFrame, sink: Sink) -> DataFrame:
    """Return one row for each key, the newest; whoever evaluates a row whose key is null fails."""
    columns = [_checked_key(name) if _is_key(name, sink) else F.col(_quoted(name)) for name in rows.columns]
    checked = rows.select(*columns)
    keys = [F.col(_quoted(name)) for name in sink.keys]
    # Rows that tie are taken by their content, so that a batch that comes again gives the same.
    ranked = Window.partitionBy(*keys).orderBy(
        F.col(_quoted(sink.order_by)).desc_nulls_last(), F.xxhash64(*[F.col(_quoted(one)) for one in rows.columns])
    )
    return checked.withColumn("__rank", F.row_number().over(ranked)).where("__rank = 1").drop("__rank")


def _is_key(name: str, sink: Sink) -> bool:
    return name.lower() in [key.lower() for key in sink.keys]


def _checked_key(name: str) -> Column:
    value = F.col(_quoted(name))
    told = (
        f"sink.key: {name} is null in a row: leave such rows out in the transformation, or say NOT NULL in the schema"
    )
    return F.when(value.isNotNull(), value).otherwise(F.raise_error(F.lit(told))).alias(name)


def append_to_stream(
    rows: DataFrame, volumes: list[str], stream: str, subject: str, identity: Identity, options: dict[str, str]
) -> None:
    """Append to a stream, or to the one that the column `stream` names."""
    writer = rows.write.format("jstream").mode("append").options(**options)
    writer = writer.option("writerId", identity.app).option("batchId", str(identity.number))
    if stream:
        writer = writer.option("stream", stream)
    if subject:
        writer = writer.option("subject", subject)
    writer.save(_paths(volumes))


def write_dead_letters(bad: DataFrame, pipeline: Pipeline, identity: Identity) -> int:
    """Append messages that could not be parsed to their own stream: as they came, with headers that say why.

    Returns how many. Few of them, as there mostly are, are appended from here: a job of Spark's would start several
    processes for them. The identity is the same either way.
    """
    letters = pipeline.dead_letters
    assert letters is not None, pipeline.name
    identity = identity.of_dead_letters()
    measured = bad.agg(F.count(F.lit(1)), F.sum(F.length(DATA))).first()
    assert measured is not None
    count, size = measured[0], measured[1] or 0
    if not count:
        return 0
    made = dead_letters(bad, pipeline.name)
    if count > COLLECTED_COUNT_MAX or size > COLLECTED_SIZE_MAX:
        append_to_stream(made, letters.volumes, letters.stream, letters.subject, identity, {})
        return int(count)
    if letters.subject:
        made = made.withColumn("subject", F.lit(letters.subject))
    with open_store(letters.volumes, LOCK_TIMEOUT_S) as store:
        store.stream(letters.stream).append(made.toArrow(), WriterBatch(identity.app, str(identity.number)))
    return int(count)


def dead_letters(bad: DataFrame, name: str) -> DataFrame:
    """Return the messages as dead letters: `headers` and `data`."""
    told: list[tuple[str, Column]] = [
        ("Reason", F.col(REASON)),
        ("Stream", F.col("stream")),
        ("Sequence", F.col("sequence").cast("string")),
        ("Subject", F.col("subject")),
        ("Timestamp", F.date_format(F.to_utc_timestamp("timestamp", F.current_timezone()), RFC_3339)),
        ("Pipeline", F.lit(name)),
    ]
    added = [
        F.struct(F.lit(f"{HEADER_PREFIX}{key}").alias("key"), value.cast("binary").alias("value"))
        for key, value in told
    ]
    own = F.coalesce(F.col("headers"), F.array().cast(bad.schema["headers"].dataType))
    ordered = bad.orderBy("stream", "sequence")
    return ordered.select(F.concat(own, F.array(*added)).alias("headers"), F.col(DATA).alias("data"))


def check_dead_letters(letters: DeadLetters, subjects: tuple[str, ...]) -> str:
    """Return why dead letters cannot go to a stream that takes `subjects`; empty if they can."""
    from storage_core.subjects import is_literal, matches

    taken = ", ".join(subjects)
    if letters.subject:
        fits = any(matches(one, letters.subject) for one in subjects)
        return "" if fits else f"dead_letters.subject: stream {letters.stream} takes {taken}, not {letters.subject}"
    if len(subjects) == 1 and is_literal(subjects[0]):
        return ""
    return f"dead_letters.subject is missing: stream {letters.stream} takes {taken}, so there must be one"


def _print(rows: DataFrame, sink: Sink, identity: Identity) -> None:
    from spark_stream.cli.render import print_table

    shown = rows.limit(sink.rows).collect()
    print_table(rows.columns, [list(row) for row in shown], f"batch {identity.number}")


def _paths(volumes: list[str]) -> str:
    return json.dumps(volumes)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def has_delta(spark: SparkSession) -> bool:
    """Return whether the session has Delta's classes."""
    try:
        spark._jvm.java.lang.Class.forName(  # type: ignore[union-attr]
            "io.delta.sql.DeltaSparkSessionExtension",
            False,
            spark._jvm.Thread.currentThread().getContextClassLoader(),  # type: ignore[union-attr]
        )
    except Exception:  # Py4J wraps whatever the JVM throws
        return False
    return True
