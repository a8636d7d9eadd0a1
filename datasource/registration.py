"""`register(spark)`: for sessions, and threads, in which Spark does not find the data source by itself."""

import sys
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from datasource.settings import NO_PATH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOUND_BY_SPARK = "DATA_SOURCE_ALREADY_EXISTS"  # Spark 4.0 refuses to replace a data source that it finds by itself
_SEEN_BY_WORKERS = NO_PATH.split(":")[0]


def register(spark: "SparkSession") -> None:
    """Register the data source `jstream` in the session, and see that Spark's Python workers can use it.

    Call it in each thread of your own that writes, too: Spark looks data sources up in the thread's active session,
    which threads started by Python do not have. Raises RuntimeError, with what to do, if the workers cannot import the
    package: they run what PYSPARK_PYTHON says, by default the `python3` on the PATH.
    """
    from pyspark_jstream.source import DefaultSource

    _make_active(spark)
    try:
        spark.dataSource.register(DefaultSource)
    except AnalysisException as error:
        if error.getCondition() != FOUND_BY_SPARK:
            raise
    try:
        spark.read.format("jstream").load()  # asks a worker, which refuses a read without a path
    except Exception as error:
        if _SEEN_BY_WORKERS in str(error):
            return
        raise RuntimeError(
            "Spark's Python workers cannot use jstream: they need the package pyspark-jstream as this Python has it. "
            f"Set PYSPARK_PYTHON={sys.executable} before the session is made, or install the package for the Python "
            f"that they run. Spark said: {error}"
        ) from error


def _make_active(spark: "SparkSession") -> None:
    """Make the session the active one of this thread; a Spark Connect session has no such thing."""
    session: Any = getattr(spark, "_jsparkSession", None)
    if session is not None:
        jvm: Any = spark.sparkContext._jvm
        jvm.SparkSession.setActiveSession(session)
