"""`register(spark)`: for sessions in which Spark has not found the data source by itself."""

import sys
from typing import TYPE_CHECKING

from datasource.settings import NO_PATH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SEEN_BY_WORKERS = NO_PATH.split(":")[0]


def register(spark: "SparkSession") -> None:
    """Register the data source `jstream` in the session, and see that Spark's Python workers can use it.

    Raises RuntimeError, with what to do, if the workers cannot import the package: they run another Python than this
    process if PYSPARK_PYTHON says so, or by default the `python3` on the PATH.
    """
    from pyspark_jstream import DefaultSource

    spark.dataSource.register(DefaultSource)
    try:
        spark.read.format("jstream").load()  # asks a worker, which refuses a read without a path
    except Exception as error:
        if _SEEN_BY_WORKERS in str(error):
            return
        raise RuntimeError(
            "Spark's Python workers cannot use jstream: they need the package pyspark-jstream as this Python has it. "
            f"Set PYSPARK_PYTHON={sys.executable} before the session is made, or install the package for the Python "
            f"that they run, or ship it with --py-files. Spark said: {error}"
        ) from error
