"""JARs from Maven Central in one folder, through Spark's own resolver, and those of Delta among them.

No Maven is needed. Mirrors and proxies are those of Spark: `spark.jars.ivySettings` or `spark.jars.repositories` in
spark-defaults.conf of SPARK_CONF_DIR, SPARK_SUBMIT_OPTS for Java's properties.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

DELTA_JARS_VARIABLE = "JSTREAM_DELTA_JARS"
SCALA = "2.13"  # of every PySpark since 4.0
DELTA_PIN = "delta-spark==4.4.0"  # the newest that has JARs on Maven Central
DELTA_SPARKS = ("4.0", "4.1", "4.2")  # for which it has some
FETCH_TIMEOUT_S = 900
CONNECT_TIMEOUT_MS = 15_000
READ_TIMEOUT_MS = 60_000
REASON_SIZE_MAX = 200  # characters
# In the order of how much a line that holds one of them says about a failure.
_TELLING = (
    "Server access error",
    "Host ",
    "unresolved dependency",
    "UNRESOLVED DEPENDENCY",
    "download failed",
    "Exception",
    "rror",
)

_OF_SPARK = re.compile(r"delta-spark_(\d+\.\d+)_")
_OF_JAVA = re.compile(r'^Exception in thread "\S+" (?:[\w.$]+: )?')


class JarsError(Exception):
    """JARs are missing and cannot be fetched; the text says which, why, and what to do."""


def delta_package() -> str | None:
    """Return the Maven coordinates that fit the installed delta-spark and PySpark, None if `no_delta` says why."""
    if no_delta():
        return None
    delta = version("delta-spark")
    of_spark = f"_{installed_spark()}" if int(delta.split(".")[1]) else ""  # Delta 4.0 is for Spark 4.0 alone
    return f"io.delta:delta-spark{of_spark}_{SCALA}:{delta}"


def no_delta() -> str:
    """Return why there are no JARs of Delta for what is installed; empty if there are."""
    try:
        delta = version("delta-spark")
    except PackageNotFoundError:
        return f"the package delta-spark is not installed: pip install {DELTA_PIN}"
    spark = installed_spark()
    if spark not in (DELTA_SPARKS if int(delta.split(".")[1]) else ("4.0",)):
        return f"Delta {delta} has no JARs for Spark {spark}: {DELTA_PIN} has some for Spark {', '.join(DELTA_SPARKS)}"
    return ""


def installed_spark() -> str:
    """Return major and minor version of the installed PySpark; empty if none is, as under spark-submit."""
    try:
        return ".".join(version("pyspark").split(".")[:2])
    except PackageNotFoundError:
        return ""


def jar_name(package: str) -> str:
    """Return the file name of `group:artifact:version`, as Maven has it."""
    _, artifact, number = package.split(":")
    return f"{artifact}-{number}.jar"


def delta_jars() -> list[Path]:
    """Return Delta's JARs: of the folder JSTREAM_DELTA_JARS, else those fetched before for this version; else none."""
    named_folder = os.environ.get(DELTA_JARS_VARIABLE)
    package = delta_package()
    folder = Path(named_folder) if named_folder else delta_cache(package) if package else None
    jars = sorted(folder.glob("*.jar")) if folder is not None else []
    return jars if any(jar.name.startswith("delta-spark") for jar in jars) and not of_another_spark(jars) else []


def of_another_spark(jars: Sequence[Path]) -> str:
    """Return the name of a JAR of Delta that is for another Spark than the installed one; empty if none is."""
    spark = installed_spark()
    named = [(jar.name, made_for[1]) for jar in jars if (made_for := _OF_SPARK.match(jar.name))]
    return next((name for name, made_for in named if spark and made_for != spark), "")


def delta_cache(package: str) -> Path:
    """Return the folder in the user's cache for the JARs of a version of Delta."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "jstream", "jars", jar_name(package).removesuffix(".jar"))


def names_delta(settings: Mapping[str, str]) -> bool:
    """Return whether these settings of Spark bring Delta along by themselves."""
    return any("delta-spark" in settings.get(name, "") for name in ("spark.jars.packages", "spark.jars"))


def require_delta_jars(settings: Mapping[str, str], report: Callable[[str], None] = lambda text: None) -> None:
    """Fetch Delta's JARs into the user's cache if a session with these settings would have none. Raises JarsError."""
    if names_delta(settings) or delta_jars():
        return
    named_folder = os.environ.get(DELTA_JARS_VARIABLE)
    if named_folder:
        wrong = of_another_spark(sorted(Path(named_folder).glob("*.jar")))
        reason = f"{wrong} is not for Spark {installed_spark()}" if wrong else "no delta-spark*.jar is there"
        raise JarsError(f"{DELTA_JARS_VARIABLE}={named_folder}: {reason}; `jstream etl fetch-jars` fills a folder")
    package = delta_package()
    if package is None:
        raise JarsError(no_delta())
    report(f"fetching Delta's JARs, once ({package})")
    fetch_delta(package, delta_cache(package))


def fetch_delta(package: str, folder: Path) -> None:
    """Fill `folder` with Delta's JARs. Raises JarsError."""
    reason = fetch(folder, [package], jar_name(package))
    if reason is not None:
        raise JarsError(
            f"Delta's JARs ({package}) cannot be fetched: {reason}. Without a network: run `jstream etl fetch-jars "
            f"DIR` on a machine that has one, copy DIR here, and set {DELTA_JARS_VARIABLE}=DIR"
        )


def fetch(folder: Path, packages: Sequence[str], needed: str, excluded: Sequence[str] = ()) -> str | None:
    """Put the packages, and all that they need, into `folder`; return None, or in one line why that was not possible.

    `needed` is a JAR without which it counts as not possible. It comes last: a folder that has it is complete. Nothing
    else in the folder is touched.
    """
    folder = folder.absolute()  # Ivy takes no other
    if folder.exists() and not folder.is_dir():
        return f"{folder} is not a directory"
    folder.parent.mkdir(parents=True, exist_ok=True)
    cache = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    words = ["--packages", ",".join(packages)]
    words += ["--exclude-packages", ",".join(excluded)] if excluded else []
    try:
        reason = _resolve(words, cache / "first", needed)
        if reason is not None:
            # A package whose POM is in ~/.m2 is looked up nowhere else, though Maven fetches some POMs without JARs.
            reason = _resolve(words, cache / "second", needed, f"-Duser.home={os.devnull}")
        if reason is not None:
            return reason
        jars = {_as_in_maven(jar.name): jar for jar in cache.glob("*/jars/*.jar")}
        folder.mkdir(exist_ok=True)
        for name in sorted(jars, key=lambda name: name == needed):
            os.replace(jars[name], folder / name)
        return None
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def _resolve(words: Sequence[str], ivy: Path, needed: str, *options: str) -> str | None:
    """Let Spark bring packages into `ivy`/jars; return None, or in one line why `needed` is not there."""
    ivy.mkdir()
    (ivy / "nothing.py").write_text("")
    command = [str(_spark_submit()), "--master", "local[1]", "--conf", f"spark.jars.ivy={ivy}", *words]
    try:
        done = subprocess.run(
            [*command, str(ivy / "nothing.py")],
            env=_environment(*options),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end after {FETCH_TIMEOUT_S} s"
    is_fetched = any(_as_in_maven(jar.name) == needed for jar in (ivy / "jars").glob("*.jar"))
    return None if done.returncode == 0 and is_fetched else failure_reason(done.stdout)


def _as_in_maven(name: str) -> str:
    """Return `ARTIFACT-VERSION.jar` of `GROUP_ARTIFACT-VERSION.jar`; only artifacts have further underscores."""
    return name.partition("_")[2]


def _spark_submit() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "bin" / "spark-submit"


def _environment(*more: str) -> dict[str, str]:
    options = [
        os.environ.get("SPARK_SUBMIT_OPTS", ""),  # a proxy, say
        f"-Dsun.net.client.defaultConnectTimeout={CONNECT_TIMEOUT_MS}",
        f"-Dsun.net.client.defaultReadTimeout={READ_TIMEOUT_MS}",
        *more,
    ]
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": " ".join(options),
    }


def failure_reason(output: str) -> str:
    """Return the line of Spark's output that says most about the failure."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for word in _TELLING:
        for line in lines:
            if word in line:
                return _OF_JAVA.sub("", line).strip(": ")[:REASON_SIZE_MAX]
    return lines[-1][:REASON_SIZE_MAX] if lines else "Spark said nothing"
