"""Spark's JVM, started so that what its launcher says is there when it fails, and out of the way when it does not.

PySpark lets the launcher write to the terminal, and knows only that it ended. Here it writes into a pipe: what comes
before the JVM is up is kept for an error, and what comes later goes to stderr as it would have.
"""

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from spark_stream.jars import failure_reason
from spark_stream.jvm_errors import SparkNotStartedError

JAVA_VERSIONS = ("17", "21")  # that Spark 4 runs on
JAVA_TIMEOUT_S = 60
KEPT_SIZE_MAX = 64 << 10  # bytes of the launcher's words
LAST_LINES = 5
LAST_WORDS_S = 5.0  # that a launcher which has ended gets for what is still in the pipe
_SECRET = re.compile("secret|password|token|credential|access[._]?key|account[._]key|[._]sas[._]", re.IGNORECASE)
_CONNECT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYSPARK_GATEWAY_PORT")


@dataclass(frozen=True, slots=True)
class Java:
    """The `java` that Spark's launcher would run. `version` is empty if it does not run."""

    path: str
    version: str  # such as 17.0.13
    release: str  # such as 17

    @property
    def is_suitable(self) -> bool:
        return self.release in JAVA_VERSIONS


def start_jvm(settings: Mapping[str, str], show_start: bool) -> None:
    """Start Spark's JVM unless this process has one, or Spark runs elsewhere. Raises SparkNotStartedError.

    `show_start`: also what its launcher says goes to stderr. Secrets are left to the session: what the JVM is started
    with, other users of the machine can see.
    """
    mode = settings.get("spark.api.mode", os.environ.get("SPARK_API_MODE", "")).lower()
    connects = mode == "connect" or "spark.remote" in settings or any(name in os.environ for name in _CONNECT_VARIABLES)
    if connects or SparkContext._gateway is not None:
        return
    reading, writing = os.pipe()
    words = _Words(reading)
    words.start()
    conf = SparkConf(loadDefaults=False).setAll(
        [(key, value) for key, value in settings.items() if not _SECRET.search(key)]
    )
    try:
        gateway = launch_gateway(conf, {"stderr": writing})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        os.close(writing)
        writing = -1
        words.join(LAST_WORDS_S)
        reason = why_not_started(words.kept(), settings)
        raise SparkNotStartedError(reason) from error
    finally:
        if writing >= 0:
            os.close(writing)
    words.forward(show_start)
    SparkContext._ensure_initialized(gateway=gateway)


def why_not_started(said: str, settings: Mapping[str, str]) -> str:
    """Return why the launcher ended: no Java or the wrong one; else what it said last."""
    java = find_java()
    if java is None or not java.is_suitable:
        return java_problem(java)
    telling = failure_reason(said)
    if settings.get("spark.jars.packages") and any(
        word in telling for word in ("depend", "download", "Server", "Host ")
    ):
        return f"a package of spark.jars.packages could not be fetched: {telling}"
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith(("\tat ", "\t..."))]
    last = lines[-LAST_LINES:]
    shown = " | ".join([telling, *last] if telling not in last and lines else last)
    return f"its launcher ended (Java {java.version} of {java.path}), and said last: {shown or 'nothing on stderr'}"


def java_problem(java: Java | None) -> str:
    """Return what is wrong with the Java that Spark would run."""
    home = os.environ.get("JAVA_HOME")
    needs = "it needs Java 17 or 21, on the PATH or in JAVA_HOME"
    if java is None:
        return f"{needs}; " + (f"JAVA_HOME={home} has no bin/java" if home else "no java was found")
    if not java.version:
        return f"{needs}; {java.path} does not run"
    return f"{needs}; {java.path} is Java {java.version}"


def find_java() -> Java | None:
    """Return the Java that Spark's launcher runs: that of JAVA_HOME if it is set, else the first on the PATH."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if path is None:
        return None
    try:
        command = [path, "-XshowSettings:properties", "-version"]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=JAVA_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return Java(path, "", "")
    pairs = (line.partition(" = ") for line in done.stderr.splitlines())
    properties = {name.strip(): value.strip() for name, _, value in pairs}
    return Java(path, properties.get("java.version", ""), properties.get("java.specification.version", ""))


class _Words(threading.Thread):
    """Reads what the launcher, and then the JVM, write to stderr."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(name="words of Spark's JVM", daemon=True)
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._kept = bytearray()
        self._forwards = False

    def run(self) -> None:
        with open(self._descriptor, "rb", buffering=0) as pipe:
            while chunk := pipe.read(1 << 16):
                with self._lock:
                    if self._forwards:
                        _to_stderr(chunk)
                    else:
                        self._kept = (self._kept + chunk)[-KEPT_SIZE_MAX:]

    def kept(self) -> str:
        with self._lock:
            return self._kept.decode(errors="replace")

    def forward(self, with_kept: bool) -> None:
        """Let what comes from here on go to stderr; with what came until now, or without."""
        with self._lock:
            if with_kept:
                _to_stderr(bytes(self._kept))
            self._kept.clear()
            self._forwards = True


def _to_stderr(data: bytes) -> None:
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(2, rest) :]
    except OSError:
        pass  # closed: nobody listens, and the JVM goes on
