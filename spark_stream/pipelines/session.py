"""The Spark session of a pipeline, with the settings of its file."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from spark_stream.jars import JarsError, require_delta_jars
from spark_stream.pipelines.config import DELTA, Pipeline
from spark_stream.pipelines.errors import DefinitionError, RunFailedError
from spark_stream.session import CONF_DIR_VARIABLE, borrowed_or_made, conf_defaults, is_elsewhere


@contextmanager
def pipeline_session(pipeline: Pipeline, report: Callable[[str], None] = lambda text: None) -> Iterator[SparkSession]:
    """Yield a session; stop it at the end if it was made here. `report` hears what is done before Spark starts.

    Raises RunFailedError if Delta's JARs are needed and cannot be had.
    """
    if SparkSession.getActiveSession() is not None or is_elsewhere():
        with _session(pipeline) as session:
            yield session
        return
    with conf_beside(pipeline.file):
        if pipeline.sink.kind == DELTA:
            try:
                require_delta_jars(conf_defaults() | pipeline.spark, report)
            except JarsError as error:
                raise RunFailedError(f"{pipeline.file}: sink.kind: {error}") from error
        report("starting Spark")
        with _session(pipeline) as session:
            yield session


@contextmanager
def _session(pipeline: Pipeline) -> Iterator[SparkSession]:
    is_ours = SparkSession.getActiveSession() is None
    delta = pipeline.sink.kind == DELTA
    with (
        borrowed_or_made(f"jstream etl {pipeline.name}", pipeline.spark, delta) as session,
        _no_plans_in_the_log(),
    ):
        if is_ours:
            check_catalogue(session, pipeline)
        yield session


def conf_folder(file: Path) -> Path | None:
    """Return the folder with Spark's settings for a pipeline: SPARK_CONF_DIR, else the file's, else the one above."""
    conf_dir = os.environ.get(CONF_DIR_VARIABLE)
    if conf_dir:
        return Path(conf_dir)
    folder = file.absolute().parent
    return next((path for path in (folder, folder.parent) if (path / "spark-defaults.conf").is_file()), None)


@contextmanager
def conf_beside(file: Path) -> Iterator[None]:
    """Let a session made within the block have the settings of the folder that `conf_folder` finds."""
    folder = conf_folder(file)
    if folder is None or CONF_DIR_VARIABLE in os.environ:
        yield
        return
    os.environ[CONF_DIR_VARIABLE] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(CONF_DIR_VARIABLE, None)


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
