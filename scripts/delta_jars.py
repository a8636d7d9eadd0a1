"""Delta's JARs in one folder of the project, so that no Spark session resolves them over the network again.

They come from Maven Central. JSTREAM_DELTA_JARS names a folder of JARs to use instead.
"""

from collections.abc import Mapping
from pathlib import Path

import maven_jars

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"  # the JARs of 4.4.1 are not there, although its wheel is
MAIN_JAR = "delta-spark_4.2_2.13-4.4.0.jar"


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
    """Fill `folder` with Delta and all that it needs. Return None, or in one line why that was not possible."""
    return maven_jars.fetch(python, java_home, folder, [PACKAGE], MAIN_JAR)
