"""Whether this machine has what jstream needs, each finding with its remedy: `jstream doctor`."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from storage_core import Store
from storage_core.errors import StorageError
from storage_core.paths import is_in_object_store, resolve_paths

OK, NOTE, PROBLEM = "ok", "note", "problem"
PYTHONS, SPARKS = ((3, 10), (3, 13)), ("4.0.", "4.1.", "4.2.", "4.3.")
SPARK_PIN = "pyspark>=4.0,<4.4"
LOOK_TIMEOUT_S = 60
FREE_LEAST = 0.05  # of a disk; below, it is worth a note
# What Spark starts its Python processes with, in the order in which the driver goes by them.
PYTHON_VARIABLES = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
_LOOK = "import importlib.util as u, json, sys; print(json.dumps([sys.version_info[:2], bool(u.find_spec('{}'))]))"
_MODULE = "pyspark_jstream"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, and what to do if that is not as it should be."""

    check: str
    state: str
    text: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def examine(
    volumes: str, folders: Sequence[Path] = (), storage_options: Mapping[str, str] | None = None
) -> Iterator[Finding]:
    """Yield a finding for each thing that was looked at. `volumes`: of a store, empty for none.

    `folders`: where a store is to be made; what it would rely on is tried there.
    """
    yield _python()
    yield _workers()  # before anything imports pyspark_jstream, which sets what this looks at
    yield _packages()
    yield _spark()
    yield _java()
    yield _delta()
    yield _rescue()
    if volumes:
        yield from _store(volumes, storage_options)
    for folder in folders:
        yield _folder(folder)


def _python() -> Finding:
    version = sys.version_info[:2]
    text = f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}"
    if PYTHONS[0] <= version <= PYTHONS[1]:
        return Finding("python", OK, text)
    return Finding("python", NOTE, text, "jstream is tested with Python 3.10 to 3.13")


def _packages() -> Finding:
    from pyspark_jstream import packages

    try:
        packages.check_packages()
    except ImportError as error:
        return Finding("packages", PROBLEM, str(error), "rename what is in the way, or install jstream again")
    return Finding("packages", OK, f"jstream is at {packages.HOME}")


def _spark() -> Finding:
    try:
        import pyspark  # not by its metadata: spark-submit brings one without
    except ImportError:
        return Finding("spark", PROBLEM, "PySpark is not installed", f"pip install '{SPARK_PIN}'")
    version = pyspark.__version__
    home = os.environ.get("SPARK_HOME")
    if not version.startswith(SPARKS):
        return Finding("spark", PROBLEM, f"PySpark {version}", f"pip install '{SPARK_PIN}'")
    if home:
        remedy = f"unset SPARK_HOME, unless that is Spark {version}"
        return Finding("spark", NOTE, f"PySpark {version}; the JVM starts from SPARK_HOME={home}", remedy)
    return Finding("spark", OK, f"PySpark {version}")


def _java() -> Finding:
    from spark_stream.launching import find_java, java_problem

    java = find_java()
    if java is None or not java.is_suitable:
        return Finding("java", PROBLEM, java_problem(java), "install Java 17 or 21, and set JAVA_HOME to its folder")
    return Finding("java", OK, f"Java {java.version}, {java.path}")


def _workers() -> Finding:
    """Look at the Python that Spark's processes run: they look for data sources themselves."""
    name = next((name for name in PYTHON_VARIABLES if os.environ.get(name)), None)
    if name is None:
        return Finding("workers", OK, "Spark's processes run this Python where a program imports pyspark_jstream first")
    python = os.environ[name]
    path = os.path.abspath(python) if os.sep in python else python
    try:
        command = [path, "-c", _LOOK.format(_MODULE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_TIMEOUT_S, check=True, cwd="/")
        version, has_module = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Finding("workers", PROBLEM, f"{name}={python} does not run: {error}", f"unset {name}, or correct it")
    shown = f"{name}={python} is Python {'.'.join(map(str, version))}"
    if not has_module:
        return Finding("workers", PROBLEM, f"{shown}, without jstream", f"install jstream there, or unset {name}")
    if tuple(version) != sys.version_info[:2]:
        return Finding(
            "workers", PROBLEM, f"{shown}, and this is another one", f"unset {name}, or let both be the same"
        )
    return Finding("workers", OK, shown)


def _delta() -> Finding:
    from spark_stream import jars

    folder = os.environ.get(jars.DELTA_JARS_VARIABLE)
    wrong = jars.of_another_spark(sorted(Path(folder).glob("*.jar"))) if folder else ""
    if wrong:
        text = f"{jars.DELTA_JARS_VARIABLE}={folder}: {wrong} is not for Spark {jars.installed_spark()}"
        return Finding("delta", PROBLEM, text, "unset it, or fill another folder: `jstream etl fetch-jars DIR`")
    package = jars.delta_package()
    if package is None:
        remedy = f"for Delta tables: {jars.DELTA_PIN} and Spark {', '.join(jars.DELTA_SPARKS)}"
        return Finding("delta", NOTE, jars.no_delta(), remedy)
    if not jars.delta_jars():
        remedy = "a pipeline fetches them; without a network: `jstream etl fetch-jars DIR` where there is one"
        return Finding("delta", NOTE, f"{package}, whose JARs are not here yet", remedy)
    return Finding("delta", OK, package)


def _rescue() -> Finding:
    """Look for what compiles the checksum of JetStream's records, by running it."""
    from storage_core.foreign.nats.long_chains import COMPILED_TIMES, compiled

    if compiled() is None:
        text = f"numba is not installed; it lets long messages of JetStream be read {COMPILED_TIMES} times as fast"
        return Finding("rescue", NOTE, text, "for JetStream stores: pip install 'pyspark-jstream[rescue]'")
    return Finding("rescue", OK, "numba compiles the checksum of JetStream stores")


def _store(volumes: str, storage_options: Mapping[str, str] | None) -> Iterator[Finding]:
    try:
        store = Store.open(volumes, read_only=True, storage_options=storage_options)
    except (StorageError, OSError) as error:
        where = ", ".join(map(str, resolve_paths(volumes)))
        yield Finding(
            "store", PROBLEM, str(error), f"name a store's volumes, or make one: jstream store create {where}"
        )
        return
    with store:
        for volume in store.volumes():
            yield _volume(volume.path, volume.reason)


def _volume(path: Path, reason: str) -> Finding:
    if reason:
        return Finding("volume", PROBLEM, f"{path}: {reason}", "`jstream repair` brings it back from the others")
    if is_in_object_store(path):
        return Finding("volume", OK, f"{path} answers")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        owner, mode = path.stat().st_uid, f"{path.stat().st_mode & 0o7777:04o}"
        remedy = "work as its owner, or share it: docs/guide/operations.md, Who may use its files"
        text = f"{path} belongs to user {owner} with mode {mode}, and this is user {os.geteuid()}: it cannot be written"
        return Finding("volume", PROBLEM, text, remedy)
    usage = shutil.disk_usage(path)
    text = f"{path}: {usage.free / 2**30:.1f} GiB free"
    if usage.free < FREE_LEAST * usage.total:
        return Finding("volume", NOTE, text, "make room, or set limits: jstream stream edit --max-bytes")
    return Finding("volume", OK, text)


def _folder(folder: Path) -> Finding:
    from storage_core.store.environment import Environment
    from storage_core.store.volume.probe import try_out

    if not folder.is_dir():
        return Finding("folder", PROBLEM, f"{folder} is no folder", f"mkdir {folder}")
    env = Environment()
    try:
        kind = env.file_system(folder)
        try_out(folder, kind, env.files, env.locks_elsewhere)
    except (StorageError, OSError) as error:
        return Finding("folder", PROBLEM, str(error), "take another one, on a local disk if there is one")
    return Finding("folder", OK, f"{folder}: file system {kind} has locks, fsync and rename")
