"""Fetch Delta's JARs into one folder of the project, so that no Spark session resolves them over the network again.

They come from Maven Central through Spark's own resolver. JSTREAM_DELTA_JARS names a folder of JARs to use instead.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"  # the JARs of 4.4.1 are not there, although its wheel is
MAIN_JAR = "delta-spark_4.2_2.13-4.4.0.jar"
FETCH_TIMEOUT_S = 900
CONNECT_TIMEOUT_MS = 15_000
READ_TIMEOUT_MS = 60_000
REASON_SIZE_MAX = 200  # characters


def given_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder that JSTREAM_DELTA_JARS names, if it does. Raises ValueError if Delta is not in it."""
    value = environment.get("JSTREAM_DELTA_JARS")
    if not value:
        return None
    folder = Path(value).absolute()
    if not any(folder.glob("*delta-spark*.jar")):
        raise ValueError(f"JSTREAM_DELTA_JARS={value}: no delta-spark*.jar in that folder")
    return folder


def has_delta(folder: Path) -> bool:
    return (folder / MAIN_JAR).is_file()


def fetch(python: Path, java_home: Path, folder: Path) -> str | None:
    """Fill `folder` with Delta and all that it needs. Return None, or in one line why that was not possible.

    The folder appears whole or not at all: Ivy downloads into a cache beside it, which becomes the folder at the end.
    """
    cache = folder.with_name(folder.name + ".part")
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(parents=True)
    (cache / "nothing.py").write_text("")
    command = [*_spark_submit(python), "--master", "local[1]", "--conf", f"spark.jars.ivy={cache}"]
    command += ["--packages", PACKAGE, str(cache / "nothing.py")]
    try:
        done = subprocess.run(
            command,
            env=_environment(python, java_home),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
        for jar in (cache / "jars").glob("*.jar"):  # called GROUP_ARTIFACT-VERSION.jar by Spark, and as in Maven by us
            jar.rename(jar.with_name(jar.name.partition("_")[2]))
        if done.returncode != 0 or not has_delta(cache / "jars"):
            return failure_reason(done.stdout)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(cache / "jars", folder)
        return None
    except subprocess.TimeoutExpired:
        return f"no end after {FETCH_TIMEOUT_S} s"
    finally:
        shutil.rmtree(cache, ignore_errors=True)


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
