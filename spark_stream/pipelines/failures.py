"""What went wrong in a query, in the words of whoever noticed it first, without the stack of both languages."""

import re

_PYTHON = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)): (.*)$", re.MULTILINE)
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_CONDITION = re.compile(r"\[([A-Z][A-Z_.]+)\] (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_WRAPPERS = (
    "STREAM_FAILED",
    "PYTHON_DATA_SOURCE_ERROR",
    "FOREACH_BATCH_USER_FUNCTION_ERROR",
    "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR",
)
LENGTH_MAX = 2000


class RunFailedError(Exception):
    """A run of a pipeline failed; the text says why."""


def explain(error: BaseException) -> str:
    """Return the reason at the bottom of an error that Spark has wrapped, some of it several times."""
    text = str(error)
    raised = _RAISED.search(text)
    if raised:
        return raised[1].strip()[:LENGTH_MAX]
    told = [found for found in _PYTHON.findall(text) if not found[0].startswith(("Py4J", "PythonException"))]
    if told:
        return f"{told[-1][0]}: {told[-1][1].strip()}"[:LENGTH_MAX]
    conditions = [found for found in _CONDITION.findall(text) if found[0] not in _WRAPPERS]
    if conditions:
        return f"{conditions[-1][0]}: {conditions[-1][1].strip()}"[:LENGTH_MAX]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])}"[:LENGTH_MAX]
