"""A local Spark session for the programs of jstream: this Python in the workers, UTC, quiet, Delta if it is here."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

DELTA_JARS_VARIABLE = "JSTREAM_DELTA_JARS"
CONF_DIR_VARIABLE = "SPARK_CONF_DIR"
LOG_SETTINGS = Path(__file__).resolve().parent / "templates" / "log4j2.properties"


def delta_jars() -> list[Path]:
    """Return the JARs in the folder that JSTREAM_DELTA_JARS names; none if Delta is not among them."""
    folder = os.environ.get(DELTA_JARS_VARIABLE)
    jars = sorted(Path(folder).glob("*.jar")) if folder else []
    return jars if any(jar.name.startswith("delta-spark") for jar in jars) else []


def use_this_python() -> None:
    """Let Spark's workers run this Python, unless PYSPARK_PYTHON names one.

    Otherwise they run the first python3 on the path: outside an activated environment that one has no jstream, and the
    failure reads DATA_SOURCE_NOT_FOUND. It does as well where the path of this Python has a space: so it is named, and
    its folder comes first on the path.
    """
    if "PYSPARK_PYTHON" not in os.environ:
        folder, name = os.path.split(sys.executable)
        os.environ["PATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PATH"))))
        os.environ["PYSPARK_PYTHON"] = name


def local_session(name: str, warehouse: Path, java_options: Sequence[str] = ()) -> SparkSession:
    """Return a session on two cores of this machine whose tables lie in `warehouse`; the caller stops it."""
    use_this_python()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    chosen: dict[str, bool | float | int | str | None] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if CONF_DIR_VARIABLE not in os.environ:
        java_options = (*java_options, f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}")
    if java_options:
        chosen["spark.driver.extraJavaOptions"] = " ".join(java_options)
    jars = delta_jars()
    if jars:
        chosen |= {
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.jars": ",".join(str(jar) for jar in jars),
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        }
    session = SparkSession.builder.master("local[2]").appName(name).config(map=chosen).getOrCreate()
    session.sparkContext.setLogLevel("OFF")  # what fails is told by the exception
    return session
