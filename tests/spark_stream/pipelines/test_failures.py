"""What an error comes down to, from the texts that Spark really gives."""

import pyspark
import pytest
from pyspark.errors import PySparkException

from spark_stream.pipelines.failures import code_of, explain
from storage_core.errors import DataLossError


class FromJvm(Exception):
    """As pyspark's captured exceptions: a stack beside the text, and a cause."""

    def __init__(self, text: str, stack: str = "", cause: Exception | None = None) -> None:
        super().__init__(text)
        self._stackTrace, self._cause = stack, cause


STREAM_FAILED = "[STREAM_FAILED] Query [id = 5f, runId = 6a] terminated with exception: {} SQLSTATE: XXKST"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            FromJvm(
                STREAM_FAILED.format("[TASK_WRITE_FAILED] Task failed while writing rows to file:/t."),
                cause=FromJvm(
                    "[TASK_WRITE_FAILED] Task failed while writing rows to file:/t. SQLSTATE: 58030",
                    "org.apache.spark.SparkException: [TASK_WRITE_FAILED] ...\n\tat x.y(Z.scala:1)\n"
                    "Caused by: org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] stream ORDERS, "
                    "sequence 4: payload is not JSON SQLSTATE: P0001\n\tat x.y(Z.scala:1)",
                ),
            ),
            "stream ORDERS, sequence 4: payload is not JSON",
        ),
        (
            FromJvm(
                "Error from python streaming data source: Traceback (most recent call last):\n"
                '  File "a.py", line 1, in f\n    raise X\nKeyError: 5\n\nDuring handling of the above exception, '
                "another exception occurred:\n\nTraceback (most recent call last):\n"
                '  File "b.py", line 2, in g\n    raise Y\n'
                "storage_core.errors.DataLossError: sequences 1 to 5 are lost\n\n\tat org.apache.spark.X(Y.scala:1)"
            ),
            "DataLossError: sequences 1 to 5 are lost",
        ),
        (
            FromJvm(STREAM_FAILED.format("[DELTA_SCHEMA_CHANGED] Detected a change")),
            "DELTA_SCHEMA_CHANGED: Detected a change",
        ),
        (
            FromJvm(
                "Job aborted", "x.SparkException: Job aborted\nCaused by: java.io.IOException: No space left on device"
            ),
            "IOException: No space left on device",
        ),
        (
            FromJvm(
                "Job aborted due to stage failure: Lost task 0.0 (TID 0): java.io.InvalidClassException: "
                "org.apache.spark.rdd.RDD; local class incompatible: stream classdesc serialVersionUID = 2156",
                "x.SparkException: Job aborted\nCaused by: java.io.IOException: unexpected exception type",
            ),
            f"the cluster runs another Spark than PySpark {pyspark.__version__} of this Python "
            "(InvalidClassException: org.apache.spark.rdd.RDD; local class incompatible)",
        ),
        (ValueError("the columns\n  do not fit"), "ValueError: the columns do not fit"),
    ],
)
def test_the_reason_is_the_one_at_the_bottom(error: Exception, told: str) -> None:
    assert explain(error) == told


LOST = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nstorage_core.errors.DataLossError: {}\n'


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataLossError("sequences 1 to 5 are lost"), "JSTREAM_DATA_LOSS"),
        (PySparkException(LOST.format("[JSTREAM_DATA_LOSS] sequences 1 to 5 are lost")), "JSTREAM_DATA_LOSS"),
        (
            PySparkException("[USER_RAISED_EXCEPTION] X: payload [JSTREAM_DATA_LOSS] 5 is not JSON SQLSTATE: P0001"),
            None,
        ),
        (PySparkException(LOST.format("a stream called [JSTREAM_DATA_LOSS] is lost")), None),
        (ValueError("DataLossError: [JSTREAM_DATA_LOSS] says a user's function"), None),
    ],
)
def test_the_code_is_that_of_an_error_of_the_store(error: Exception, code: str | None) -> None:
    assert code_of(error) == code
