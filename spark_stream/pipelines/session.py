"""The Spark session of a pipeline: the one that spark-submit made, else one on this machine.

What counts, the first that says something: the file's [spark], spark-defaults.conf in SPARK_CONF_DIR, what is said
here. Under spark-submit, or where a session runs already, only its own settings count, and those of [spark] that can
still be set.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from spark_stream.pipelines.config import DELTA, Pipeline
from spark_stream.pipelines.toml import DefinitionError
from spark_stream.session import CONF_DIR_VARIABLE, LOG_SETTINGS, delta_jars, use_this_python

SUBMITTED_VARIABLE = "PYSPARK_GATEWAY_PORT"  # set by spark-submit for the Python that it starts

_DEFAULTS = {
    "spark.master": "local[*]",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


@contextmanager
def pipeline_session(pipeline: Pipeline) -> Iterator[SparkSession]:
    """Yield a session; stop it at the end if it was made here."""
    active = SparkSession.getActiveSession()
    if active is not None:
        with _settings_in(active, pipeline.spark), _no_plans_in_the_log():
            yield active
        return
    builder = SparkSession.builder.appName(f"jstream etl {pipeline.name}")
    submitted = SUBMITTED_VARIABLE in os.environ
    settings = dict(pipeline.spark) if submitted else local_settings(pipeline)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    if not submitted and CONF_DIR_VARIABLE not in os.environ:
        _silence(session)
    try:
        check_catalogue(session, pipeline)
        with _no_plans_in_the_log():
            yield session
    finally:
        with suppress(Py4JError, ConnectionError):  # of a JVM that is gone; why it is was told
            session.stop()


def _silence(session: SparkSession) -> None:
    """Turn Spark's log off: what fails is told once, by us. Also the loggers that LOG_SETTINGS gives another level."""
    log4j = session._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    log4j.core.config.Configurator.setAllLevels("", log4j.Level.OFF)


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


@contextmanager
def _settings_in(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Let a session that is somebody else's have these settings until the block ends, those that can still be set."""
    chosen = {name: value for name, value in settings.items() if session.conf.isModifiable(name)}
    before: dict[str, str | None] = {name: session.conf.get(name, None) for name in chosen}
    for name, value in chosen.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, earlier)


def local_settings(pipeline: Pipeline) -> dict[str, str]:
    """Return the settings of a session on this machine, without those that spark-defaults.conf has."""
    use_this_python()
    settings = dict(_DEFAULTS)
    jars = delta_jars()
    if jars and pipeline.sink.kind == DELTA:
        settings |= {"spark.jars": ",".join(map(str, jars)), **_DELTA}
    present = names_in_defaults()
    if "spark.driver.host" not in present and "SPARK_LOCAL_IP" not in os.environ:
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    if CONF_DIR_VARIABLE not in os.environ:
        settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
    return {name: value for name, value in settings.items() if name not in present} | pipeline.spark


def names_in_defaults() -> set[str]:
    """Return which settings spark-defaults.conf of SPARK_CONF_DIR has; empty if there is none."""
    folder = os.environ.get(CONF_DIR_VARIABLE)
    path = Path(folder) / "spark-defaults.conf" if folder else None
    if path is None or not path.is_file():
        return set()
    lines = (line.strip() for line in path.read_text().splitlines())
    return {re.split(r"[\s=:]", line, maxsplit=1)[0] for line in lines if line and line[0] not in "#!"}
