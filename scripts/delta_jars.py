"""Delta's JARs in one folder of the project, so that no Spark session resolves them over the network again.

`jstream etl fetch-jars` brings them from Maven Central. JSTREAM_DELTA_JARS names a folder of JARs to use instead.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

REASON_SIZE_MAX = 200  # characters
PINNED = re.compile(r'"delta-spark==([\d.]+)"')


def given_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder that JSTREAM_DELTA_JARS names, if it does. Raises ValueError if Delta is not in it."""
    value = environment.get("JSTREAM_DELTA_JARS")
    if not value:
        return None
    folder = Path(value).absolute()
    if not any(folder.glob("*delta-spark*.jar")):
        raise ValueError(f"JSTREAM_DELTA_JARS={value}: no delta-spark*.jar in that folder")
    return folder


def has_delta(folder: Path, project: str) -> bool:
    """Return whether the folder has the JARs of the version that the text of pyproject.toml pins."""
    pinned = PINNED.search(project)
    return pinned is not None and any(folder.glob(f"delta-spark_*-{pinned[1]}.jar"))


def fetch(python: Path, java_home: Path, folder: Path) -> str | None:
    """Fill `folder` with Delta and all that it needs. Return None, or in one line why that was not possible."""
    command = [str(python), "-m", "spark_stream.cli", "etl", "fetch-jars", str(folder)]
    environment = {**os.environ, "JAVA_HOME": str(java_home)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return last.removeprefix("error: ")[:REASON_SIZE_MAX]
