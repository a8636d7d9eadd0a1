"""Delta tables: a batch of rows appended or merged once, and whether rows fit a table that is there.

A batch's identity is kept in the table's own log (txnAppId, txnVersion), in the same commit as its rows.
"""

import re

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_stream.pipelines.config import APPEND, COMPLETE, UPSERT, Sink
from spark_stream.pipelines.identity import Identity

TXN_APP_ID = "spark.databricks.delta.write.txnAppId"
TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_NO_HASH = re.compile(r"\bmap<|\bvariant\b")  # in a type: Spark makes no hash of it
_SEQUENCE = "sequence"  # the column of the envelope, which orders rows of one `order_by`


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


def table_schema(spark: SparkSession, sink: Sink) -> StructType | None:
    """Return the columns of the sink's table as it is now, None if there is none."""
    if sink.table:
        return spark.table(sink.table).schema if spark.catalog.tableExists(sink.table) else None
    tables = spark._jvm.io.delta.tables.DeltaTable  # type: ignore[union-attr]
    if not tables.isDeltaTable(spark._jsparkSession, sink.path):
        return None
    return spark.read.format("delta").load(sink.path).schema


def misfit(spark: SparkSession, sink: Sink, rows: StructType) -> str:
    """Return why such rows do not go into the table as it is; empty if they do, or it is still to be made.

    Delta's streaming sink would cast them, its MERGE leave new columns out, and an append refuse them in a run.
    """
    schema = None if sink.evolves else table_schema(spark, sink)
    if schema is None:
        return ""
    kinds = {field.name.lower(): field.dataType.simpleString() for field in schema.fields}
    for field in rows.fields:
        kind, name = kinds.get(field.name.lower()), field.dataType.simpleString()
        if kind is None:
            return f"{field.name!r} is no column of the table; with [sink.options] mergeSchema = true it becomes one"
        if kind.lower() != name.lower():
            return f"column {field.name!r} is {name}, and {kind} in the table: cast it in the transformation"
    lacking = [name for name in schema.names if name.lower() not in {column.lower() for column in rows.names}]
    if lacking and sink.mode == UPSERT:
        return (
            f"column {lacking[0]!r} of the table does not come out of the transformation; with [sink.options] "
            "mergeSchema = true it stays as it is"
        )
    return ""


def append_to_delta(rows: DataFrame, sink: Sink, identity: Identity) -> None:
    """Append to a Delta table, which is made if it is not there.

    The identity is the one of Delta's own sink, so that a pipeline may be changed from one to the other between any
    two runs.
    """
    writer = rows.write.format("delta").mode("append").options(**sink.options)
    writer = writer.option("txnAppId", identity.query or identity.app).option("txnVersion", identity.number)
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
    Results of aggregates, one of each key, take the place of those of earlier batches; with COMPLETE the table holds
    nothing else.
    """
    spark = rows.sparkSession
    make_table(rows, sink)
    schema = table_schema(spark, sink)
    assert schema is not None, sink
    clauses = "WHEN MATCHED THEN UPDATE SET *"
    if sink.output_mode == APPEND:
        by_sequence = _by_sequence(rows, sink) and _SEQUENCE in schema.names
        clauses = f"WHEN MATCHED AND ({_is_newer(quoted(sink.order_by), by_sequence)}) THEN UPDATE SET *"
        rows = newest(rows, sink)
    clauses += " WHEN NOT MATCHED THEN INSERT *"
    clauses += " WHEN NOT MATCHED BY SOURCE THEN DELETE" if sink.output_mode == COMPLETE else ""
    rows.createOrReplaceTempView("jstream_upsert")
    target = f"delta.{quoted(sink.path)}" if sink.path else sink.table
    same = " AND ".join(f"there.{quoted(name)} <=> here.{quoted(name)}" for name in sink.keys)
    evolution = "WITH SCHEMA EVOLUTION " if sink.evolves else ""
    spark.conf.set(TXN_APP_ID, identity.app)
    spark.conf.set(TXN_VERSION, str(identity.number))
    try:
        spark.sql(f"MERGE {evolution}INTO {target} AS there USING jstream_upsert AS here ON {same} {clauses}").collect()
    finally:
        spark.conf.unset(TXN_APP_ID)
        spark.conf.unset(TXN_VERSION)
        spark.catalog.dropTempView("jstream_upsert")


def _is_newer(order: str, by_sequence: bool) -> str:
    """Return the condition under which the row `here` replaces the row `there`."""
    if not by_sequence:
        return f"there.{order} IS NULL OR here.{order} >= there.{order}"
    later = f"there.{_SEQUENCE} IS NULL OR here.{_SEQUENCE} >= there.{_SEQUENCE}"
    return (
        f"(there.{order} IS NULL AND here.{order} IS NOT NULL) OR here.{order} > there.{order} "
        f"OR (here.{order} <=> there.{order} AND ({later}))"
    )


def _by_sequence(rows: DataFrame, sink: Sink) -> bool:
    """Return whether the sequence of its message decides between rows that are equal in `order_by`."""
    return (_SEQUENCE, "bigint") in rows.dtypes and sink.order_by.lower() != _SEQUENCE


def newest(rows: DataFrame, sink: Sink) -> DataFrame:
    """Return one row for each key, the newest; whoever evaluates a row whose key is null fails."""
    columns = [_checked_key(name) if _is_key(name, sink) else F.col(quoted(name)) for name in rows.columns]
    checked = rows.select(*columns)
    keys = [F.col(quoted(name)) for name in sink.keys]
    order = [F.col(quoted(sink.order_by)).desc_nulls_last()]
    if _by_sequence(rows, sink):
        order.append(F.col(_SEQUENCE).desc_nulls_last())
    # Rows that tie even so are taken by their content, so that a batch that comes again gives the same.
    content = [F.col(quoted(name)) for name, kind in rows.dtypes if not _NO_HASH.search(kind)]
    ranked = Window.partitionBy(*keys).orderBy(*order, F.xxhash64(*content))
    return checked.withColumn("__rank", F.row_number().over(ranked)).where("__rank = 1").drop("__rank")


def _is_key(name: str, sink: Sink) -> bool:
    return name.lower() in [key.lower() for key in sink.keys]


def _checked_key(name: str) -> Column:
    value = F.col(quoted(name))
    reason = (
        f"sink.key: {name} is null in a row: leave such rows out in the transformation, or say NOT NULL in the schema"
    )
    return F.when(value.isNotNull(), value).otherwise(F.raise_error(F.lit(reason))).alias(name)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
