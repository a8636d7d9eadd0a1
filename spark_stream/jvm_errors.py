"""Errors of Spark's JVM. A client of Spark Connect may have none, nor py4j, which talks to one."""

from pyspark.errors import PySparkRuntimeError

JVM_IS_GONE: tuple[type[Exception], ...] = (ConnectionError,)
OF_JAVA: tuple[type[Exception], ...] = ()  # raised there
try:
    from py4j.protocol import Py4JError, Py4JJavaError
except ModuleNotFoundError:
    pass
else:
    JVM_IS_GONE = (Py4JError, ConnectionError)
    OF_JAVA = (Py4JJavaError,)


class SparkNotStartedError(PySparkRuntimeError):
    """Spark's JVM did not start; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"Spark's JVM did not start: {reason}", "JAVA_GATEWAY_EXITED")
        self.reason = reason
