"""The Spark session of a pipeline, with the settings of its file."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from spark_stream.pipelines.config import DELTA, Pipeline
from spark_stream.pipelines.errors import DefinitionError
from spark_stream.session import borrowed_or_made


@contextmanager
def pipeline_session(pipeline: Pipeline) -> Iterator[SparkSession]:
    """Yield a session; stop it at the end if it was made here."""
    is_ours = SparkSession.getActiveSession() is None
    delta = pipeline.sink.kind == DELTA
    with (
        borrowed_or_made(f"jstream etl {pipeline.name}", pipeline.spark, delta) as session,
        _no_plans_in_the_log(),
    ):
        if is_ours:
            check_catalogue(session, pipeline)
        yield session


def check_catalogue(session: SparkSession, pipeline: Pipeline) -> None:
    """Raise DefinitionError if the sink's table would be forgotten with this session, and its files be in the way."""
    table = pipeline.sink.table
    elsewhere = table.count(".") > 1 or session.conf.get("spark.sql.defaultCatalog") != "spark_catalog"
    forgets = session.conf.get("spark.sql.catalogImplementation") == "in-memory"
    if table and forgets and (table.startswith("spark_catalog.") or not elsewhere):
        raise DefinitionError(
            pipeline.file,
            "sink.table",
            f"{table!r} would be forgotten when this run ends, and the next one find its files in the way: give path; "
            'or have "spark.sql.catalogImplementation" = "hive" and "spark.sql.warehouse.dir" below [spark]',
        )


@contextmanager
def _no_plans_in_the_log() -> Iterator[None]:
    """Keep PySpark from writing an error of the analysis to stderr, with its whole stack, besides raising it."""
    logs = [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("DataFrame", "SQL")]
    before = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    try:
        yield
    finally:
        for log, earlier in zip(logs, before, strict=True):
            log.disabled = earlier
