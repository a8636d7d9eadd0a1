"""The Spark session of our programs: the one that exists, that of spark-submit, or a quiet one on this machine.

Of a setting that is given several times the first counts: what the caller passes, spark-defaults.conf in
SPARK_CONF_DIR, what is said here. Under spark-submit only its own settings and the caller's count.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.sql import SparkSession

from datasource.spark_versions import keeps_filters_apart
from pyspark_jstream.workers import use_this_python
from spark_stream.jars import delta_jars, names_delta
from spark_stream.jvm_errors import JVM_IS_GONE
from spark_stream.spark_home import workers_from_bytecode

CONF_DIR_VARIABLE = "SPARK_CONF_DIR"
# Set by spark-submit for the Python that it starts; and by users of Spark Connect. The server's settings count then.
ELSEWHERE_VARIABLES = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")
LOG_SETTINGS = Path(__file__).resolve().parent / "templates" / "log4j2.properties"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"

_DEFAULTS = {
    "spark.master": "local[*]",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_DELTA = {
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
}


def session(name: str = "jstream", settings: Mapping[str, str] | None = None, delta: bool = True) -> SparkSession:
    """Return a Spark session that reads and writes jstream; the caller stops it.

    Without spark-submit it runs on all cores of this machine, in UTC, and logs nothing: what fails is raised. With
    SPARK_CONF_DIR set, the settings and the logging of that folder count. `delta`: also Delta, if its JARs are here
    (`jstream etl fetch-jars`). A session that exists is returned with those `settings` that can still be set. Raises
    SparkNotStartedError.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        _set(active, settings or {})
        return active
    use_this_python()
    chosen = dict(settings or {}) if is_elsewhere() else local_settings(settings or {}, delta)
    builder = SparkSession.builder.appName(name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    if "SPARK_REMOTE" in os.environ:  # there may be no JVM here, nor what starts one
        return builder.getOrCreate()
    from spark_stream.launching import start_jvm

    with workers_from_bytecode(chosen):
        start_jvm({"spark.app.name": name, **chosen}, show_start=CONF_DIR_VARIABLE in os.environ)
        made = builder.getOrCreate()
    if not is_elsewhere() and CONF_DIR_VARIABLE not in os.environ:
        _silence(made)
    return made


def is_elsewhere() -> bool:
    """Return whether whoever started us has chosen the Spark and its settings."""
    return any(name in os.environ for name in ELSEWHERE_VARIABLES)


@contextmanager
def borrowed_or_made(
    name: str, settings: Mapping[str, str] | None = None, delta: bool = True
) -> Iterator[SparkSession]:
    """Yield the session that exists, with these settings until the block ends; else make one and stop it then."""
    active = SparkSession.getActiveSession()
    if active is not None:
        with _settings_in(active, settings or {}):
            yield active
        return
    made = session(name, settings, delta)
    try:
        yield made
    finally:
        with suppress(*JVM_IS_GONE):  # whatever ended it was reported
            made.stop()


def local_settings(settings: Mapping[str, str], delta: bool = True) -> dict[str, str]:
    """Return the settings of a session on this machine, without those that spark-defaults.conf has."""
    chosen, present = dict(_DEFAULTS), conf_defaults()
    if keeps_filters_apart():
        chosen[PUSH_DOWN] = "true"
    if delta:
        merged = {**present, **settings}
        is_named = names_delta(merged)
        jars = [] if is_named else delta_jars()
        if jars:
            others = [merged["spark.jars"]] if "spark.jars" in merged else []
            settings = {**settings, "spark.jars": ",".join([*map(str, jars), *others])}
        if is_named or jars:
            chosen |= _DELTA
    if "spark.driver.host" not in present and "SPARK_LOCAL_IP" not in os.environ:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    if os.environ.get("SPARK_LOCAL_IP") == "127.0.0.1":
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    chosen = {name: value for name, value in chosen.items() if name not in present} | dict(settings)
    if CONF_DIR_VARIABLE not in os.environ:
        logging = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
        chosen[JAVA_OPTIONS] = " ".join(filter(None, (logging, chosen.get(JAVA_OPTIONS))))  # the last one counts
    return chosen


def conf_defaults() -> dict[str, str]:
    """Return the settings of spark-defaults.conf of SPARK_CONF_DIR; empty if there is none."""
    folder = os.environ.get(CONF_DIR_VARIABLE)
    path = Path(folder) / "spark-defaults.conf" if folder else None
    if path is None or not path.is_file():
        return {}
    lines = (line.strip() for line in path.read_text().splitlines())
    pairs = (re.split(r"[\s=:]+", line, maxsplit=1) for line in lines if line and line[0] not in "#!")
    return {pair[0]: pair[1] if len(pair) == 2 else "" for pair in pairs}


def _silence(session: SparkSession) -> None:
    """Session Spark's log off: what fails is raised. Also the loggers that LOG_SETTINGS gives another level."""
    log4j = session._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    log4j.core.config.Configurator.setAllLevels("", log4j.Level.OFF)


@contextmanager
def _settings_in(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Let a session that is somebody else's have these settings until the block ends, those that can still be set."""
    before = _set(session, settings)
    try:
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, earlier)


def _set(session: SparkSession, settings: Mapping[str, str]) -> dict[str, str | None]:
    """Set what can still be set; return what it was before."""
    chosen = {name: value for name, value in settings.items() if session.conf.isModifiable(name)}
    before: dict[str, str | None] = {name: session.conf.get(name, None) for name in chosen}
    for name, value in chosen.items():
        session.conf.set(name, value)
    return before
