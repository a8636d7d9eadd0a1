"""Fetch JARs from Maven Central into one folder, through Spark's own resolver: no Maven is needed."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

FETCH_TIMEOUT_S = 900
CONNECT_TIMEOUT_MS = 15_000
READ_TIMEOUT_MS = 60_000
REASON_SIZE_MAX = 200  # characters


def fetch(
    python: Path,
    java_home: Path,
    folder: Path,
    packages: Sequence[str],
    needed: str,
    excluded: Sequence[str] = (),
) -> str | None:
    """Fill `folder` with the packages and all that they need. Return None, or in one line why that was not possible.

    `needed` is a JAR without which it counts as not possible. The folder appears whole or not at all: Ivy downloads
    into a cache beside it, which becomes the folder at the end.
    """
    cache = folder.with_name(folder.name + ".part")
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(parents=True)
    (cache / "nothing.py").write_text("")
    command = [*_spark_submit(python), "--master", "local[1]", "--conf", f"spark.jars.ivy={cache}"]
    command += ["--packages", ",".join(packages)]
    command += ["--exclude-packages", ",".join(excluded)] if excluded else []
    try:
        done = subprocess.run(
            [*command, str(cache / "nothing.py")],
            env=_environment(python, java_home),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
        for jar in (cache / "jars").glob("*.jar"):  # called GROUP_ARTIFACT-VERSION.jar by Spark, and as in Maven by us
            jar.rename(jar.with_name(_as_in_maven(jar.name)))
        if done.returncode != 0 or not (cache / "jars" / needed).is_file():
            return failure_reason(done.stdout)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(cache / "jars", folder)
        return None
    except subprocess.TimeoutExpired:
        return f"no end after {FETCH_TIMEOUT_S} s"
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def _as_in_maven(name: str) -> str:
    """Return `ARTIFACT-VERSION.jar` of `GROUP_ARTIFACT-VERSION.jar`; only artifacts have further underscores."""
    return name.partition("_")[2]


def _spark_submit(python: Path) -> list[str]:
    ask = "import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)"
    home = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    return [str(Path(home) / "bin" / "spark-submit")]


def _environment(python: Path, java_home: Path) -> dict[str, str]:
    options = [
        os.environ.get("SPARK_SUBMIT_OPTS", ""),  # a proxy, say
        f"-Dsun.net.client.defaultConnectTimeout={CONNECT_TIMEOUT_MS}",
        f"-Dsun.net.client.defaultReadTimeout={READ_TIMEOUT_MS}",
    ]
    return {
        **os.environ,
        "JAVA_HOME": str(java_home),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": " ".join(options),
    }


def failure_reason(output: str) -> str:
    """Return the line of Spark's output that says most about the failure."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for word in ("Server access error", "Host ", "UNRESOLVED DEPENDENCY", "Exception", "rror"):
        for line in lines:
            if word in line:
                return line[:REASON_SIZE_MAX]
    return lines[-1][:REASON_SIZE_MAX] if lines else "Spark said nothing"
