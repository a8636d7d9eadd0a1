"""The versions of Spark that jstream is tried with: `make test-spark VERSION=4.0`, and rows of the guide's table.

    .venv/bin/python scripts/spark_matrix.py 4.0 [ARGUMENTS]   run the tests that differ, or those that are named
    .venv/bin/python scripts/spark_matrix.py                   print the rows for docs/guide/where-it-runs.md

Each version has an environment of its own, build/spark/VERSION, with Delta and its JARs where there are some.
"""

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = (
    "tests/datasource",
    "tests/spark_stream/pipelines",
    "tests/spark_stream/test_jars.py",
    "tests/spark_stream/test_monitoring.py",
)
DELTA = "delta-spark==4.4.0"


@dataclass(frozen=True)
class Pair:
    """What is installed together. `delta` is installed without what it asks for: it asks for pyspark<=4.2.0."""

    pyspark: str
    delta: str | None


PAIRS = {
    "4.0": Pair("4.0.5", DELTA),
    "4.1": Pair("4.1.4", DELTA),
    "4.2": Pair("4.2.0", DELTA),
    "4.3": Pair("4.3.0", None),
}


def main(arguments: list[str]) -> None:
    if not arguments:
        print("\n".join(rows()))
        return
    version, *rest = arguments
    if version not in PAIRS:
        sys.exit(f"VERSION={version}: the versions of Spark that jstream is tried with are {', '.join(PAIRS)}")
    folder = ROOT / "build" / "spark" / version
    make(folder, PAIRS[version])
    command = [str(folder / "bin" / "python"), "-m", "pytest", "-n", "0", *(rest or TESTS)]
    sys.exit(subprocess.run(command, cwd=ROOT, env=environment(folder, PAIRS[version]), check=False).returncode)


def rows() -> list[str]:
    """Return the rows of the guide's table that say what is tried."""
    return [
        "| tried with PySpark | " + " | ".join(pair.pyspark for pair in PAIRS.values()) + " |",
        "| Delta | "
        + " | ".join((pair.delta or "no JARs").removeprefix("delta-spark==") for pair in PAIRS.values())
        + " |",
    ]


def make(folder: Path, pair: Pair) -> None:
    """Make the environment, unless that was done for this pair and this pyproject.toml."""
    python, stamp = folder / "bin" / "python", folder / "packages.stamp"
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest() + f" {pair}\n"
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    print(f"Installing PySpark {pair.pyspark} and what tests need into {folder.relative_to(ROOT)}", flush=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--editable", ".[dev,nats]", f"pyspark[connect]=={pair.pyspark}"], cwd=ROOT, check=True)
    if pair.delta is not None:
        subprocess.run([*pip, "--no-deps", pair.delta, "importlib_metadata", "zipp"], check=True)
        jars = [str(python), "-m", "spark_stream.cli", "etl", "fetch-jars", str(folder / "delta-jars")]
        subprocess.run(jars, cwd=ROOT, env=environment(folder, pair), check=True)
    stamp.write_text(wanted)


def environment(folder: Path, pair: Pair) -> dict[str, str]:
    """Return the environment of this process with the JARs of this Spark."""
    jars = str(folder / "delta-jars") if pair.delta is not None else ""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    return {**kept, "JSTREAM_DELTA_JARS": jars}


if __name__ == "__main__":
    main(sys.argv[1:])
