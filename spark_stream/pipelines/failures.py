"""What went wrong in a query, in the words of whoever noticed it first, without the stacks of both languages."""

import re
from collections.abc import Iterator

import pyspark
from pyspark.errors import PySparkException

from spark_stream.jvm_errors import JVM_IS_GONE, OF_JAVA, SparkNotStartedError
from storage_core.errors import StorageError

_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
# A look-ahead, because one condition's text may hold another's.
_CONDITION = re.compile(r"(?=\[([A-Z][A-Z0-9_.]+)\] (.*?)(?: SQLSTATE: \w+)?$)", re.MULTILINE)
_CAUSED = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+): (.+)$", re.MULTILINE)
_ANOTHER_SPARK = re.compile(r"InvalidClassException: (org\.apache\.spark\.[\w.$]+); local class incompatible")
_OF_PYTHON = re.compile(r"(?:\w+\.)*(\w+): (.*)")
_CODED = re.compile(r"\w+: \[(JSTREAM_[A-Z_]+)\] ")  # as datasource/edge.py lets errors of the store show theirs
_WRAPPERS = (
    "FAILED_EXECUTE_UDF",
    "FOREACH_BATCH_USER_FUNCTION_ERROR",
    "PYTHON_DATA_SOURCE_ERROR",
    "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR",
    "STREAM_FAILED",
    "TASK_WRITE_FAILED",
)
LENGTH_MAX = 2000


SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException, *JVM_IS_GONE)


def in_words(error: BaseException) -> str:
    """Return what an error comes down to: one of Spark's by its reason, any other by what it says."""
    if not isinstance(error, SPARK_ERRORS):
        return str(error) or type(error).__name__
    if isinstance(error, SparkNotStartedError):
        return f"Spark's JVM did not start: {error.reason}"
    if isinstance(error, (PySparkException, *OF_JAVA)):
        return explain(error)
    return f"Spark's JVM does not answer any more: it was killed, or ran out of memory ({explain(error)})"


def code_of(error: BaseException) -> str | None:
    """Return the code of the store's error that an error comes down to, None if that is none of the store's.

    Of an error that leaves a process of Spark's nothing is left but its text.
    """
    if isinstance(error, StorageError):
        return error.code
    coded = _CODED.match(in_words(error)) if isinstance(error, SPARK_ERRORS) else None
    return coded[1] if coded else None


def explain(error: BaseException) -> str:
    """Return the reason at the bottom of an error that Spark has wrapped, often several times.

    In this order: classes of two versions of Spark, what the plan itself raised (`raise_error`), what Python raised,
    Spark's own condition, the deepest cause of the JVM, the error as it is.
    """
    text = "\n".join(_texts(error))
    foreign = _ANOTHER_SPARK.search(text)
    if foreign:
        return f"the cluster runs another Spark than PySpark {pyspark.__version__} of this Python ({foreign[0]})"
    raised = _RAISED.search(text)
    if raised:
        return raised[1].strip()[:LENGTH_MAX]
    reasons = [*_of_tracebacks(text)]
    if not reasons:
        reasons = [
            condition for condition in _CONDITION.findall(text) if condition[0] not in _WRAPPERS
        ] or _CAUSED.findall(text)
    if reasons:
        return f"{reasons[-1][0]}: {reasons[-1][1].strip()}"[:LENGTH_MAX]
    lines = [line.strip() for line in str(error).partition("JVM stacktrace:")[0].splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])}"[:LENGTH_MAX]


def _texts(error: BaseException) -> Iterator[str]:
    """Yield the text of an error and of its causes; those that come from the JVM bring their stack along."""
    seen: list[object] = []
    now: object = error
    while now is not None and now not in seen and len(seen) < 20:
        seen.append(now)
        yield str(now)
        yield str(getattr(now, "_stackTrace", None) or "")
        now = getattr(now, "_cause", None) or getattr(now, "__cause__", None)


def _of_tracebacks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the error, and what it says, at the end of each Python traceback in the text."""
    for part in text.split("Traceback (most recent call last):")[1:]:
        ends = (line for line in part.splitlines()[1:] if line and not line[0].isspace())
        end = _OF_PYTHON.fullmatch(next(ends, ""))
        if end and not end[1].startswith("Py4J"):
            yield end[1], end[2]
