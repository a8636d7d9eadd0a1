"""Whether each executor of a Spark application has what jstream needs: one task on each, `jstream doctor --spark`."""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from spark_stream.doctor import NOTE, OK, PROBLEM, Finding
from spark_stream.pipelines.failures import SPARK_ERRORS, in_words
from spark_stream.session import session
from storage_core.store.volume.identity import FILE_NAME

CHECK = "executor"
ROUND_COUNT_MAX = 3  # of tasks, until each executor had one
TASKS_PER_SLOT = 2
CLOCK_TOLERANCE_S = 1.0
PACKAGES = ("pyarrow", "pyspark-jstream")  # pyspark itself comes from Spark where there is no installation of it
GUIDE = "docs/guide/where-it-runs.md"
# Without these executors could start after the first tasks have ended.
SETTINGS = {"spark.scheduler.minRegisteredResourcesRatio": "1.0", "spark.task.maxFailures": "1"}


def examine_executors(folders: Sequence[Path], settings: dict[str, str]) -> Iterator[Finding]:
    """Yield what the executors say of themselves and of the folders, the same of several as one finding.

    `folders`: volumes of a store, or directories that will be. `settings`: of the Spark session, such as its master.
    """
    try:
        spark = session("jstream doctor", {**SETTINGS, **settings}, delta=False)
    except Exception as error:  # whatever Spark's start fails with is what was to be found out
        remedy = f"correct the settings (--conf, SPARK_CONF_DIR); a cluster has to run Spark {pyspark.__version__}, too"
        yield Finding("spark", PROBLEM, f"no session: {in_words(error)}", remedy)
        return
    try:
        yield from _examine(spark, [str(folder.resolve()) for folder in folders])
    finally:
        spark.stop()


def _examine(spark: SparkSession, folders: list[str]) -> Iterator[Finding]:
    expected = _executor_count(spark)
    reports: dict[tuple[str, int], dict[str, Any]] = {}
    began = time.time()
    try:
        for _ in range(ROUND_COUNT_MAX):
            reports |= {(report["host"], report["process"]): report for report in _ask(spark, folders)}
            if len(reports) >= expected:
                break
    except SPARK_ERRORS as error:
        remedy = f"give the executors Spark and Python of the driver's versions, with jstream installed: {GUIDE}"
        yield Finding(CHECK, PROBLEM, f"no task could run: {in_words(error)}", remedy)
        return
    yield from judge(list(reports.values()), folders, began, time.time())
    if len(reports) < expected:
        text = f"{len(reports)} of {expected} executors had a task"
        yield Finding(CHECK, NOTE, text, "run it again, with nothing else running in the application")


def _executor_count(spark: SparkSession) -> int:
    """Return how many executors there are; 0 where Spark Connect does not show it."""
    try:
        context = spark.sparkContext
    except PySparkException:
        return 0
    managers: int = context._jsc.sc().getExecutorMemoryStatus().size()
    return max(managers - 1, 1)  # the driver is among them; with local[N] it is the only one


def _ask(spark: SparkSession, folders: list[str]) -> list[dict[str, Any]]:
    try:
        slots = spark.sparkContext.defaultParallelism
    except PySparkException:
        slots = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    tasks = spark.range(0, TASKS_PER_SLOT * slots, 1, TASKS_PER_SLOT * slots)
    task = udf(make_task(folders, identities(folders)), "string", useArrow=False)  # Arrow's kinds want pandas there
    return [json.loads(row.report) for row in tasks.select(task("id").alias("report")).collect()]


def identities(folders: Iterable[str]) -> dict[str, str]:
    """Return a digest of each volume's identity, as this host reads it; none for a folder that is no volume."""
    files = {folder: Path(folder) / FILE_NAME for folder in folders}
    return {folder: hashlib.sha256(file.read_bytes()).hexdigest() for folder, file in files.items() if file.is_file()}


def make_task(folders: Sequence[str], known: dict[str, str]) -> Callable[[int], str]:
    """Return what a task runs: it returns a JSON report of its executor.

    Sent by value, and it imports nothing of ours but where that may fail: an executor without jstream reports, too.
    """
    packages = PACKAGES
    file_name = FILE_NAME

    def look(_: int) -> str:
        import getpass
        import hashlib
        import json
        import os
        import shutil
        import socket
        import sys
        import tempfile
        import time
        from importlib.metadata import PackageNotFoundError, version
        from pathlib import Path

        import pyspark

        def version_of(package: str) -> str:
            try:
                return version(package)
            except PackageNotFoundError:
                return ""

        def try_folder(folder: str) -> str:
            """Return what goes wrong in the folder; empty if nothing does."""
            place = Path(tempfile.mkdtemp(prefix="doctor-", dir=folder))
            try:
                from storage_core.store.environment import Environment
                from storage_core.store.volume.probe import try_out

                env = Environment()
                try_out(place, env.file_system(place), env.files, env.locks_elsewhere)
            except ImportError:
                return ""  # reported as a missing package
            except Exception as error:
                return str(error)
            finally:
                shutil.rmtree(place, ignore_errors=True)
            return ""

        def look_at(folder: str) -> dict[str, Any]:
            path = Path(folder) / file_name
            is_there = Path(folder).is_dir()
            is_same = True
            if folder in known:
                try:
                    is_same = hashlib.sha256(path.read_bytes()).hexdigest() == known[folder]
                except OSError:
                    is_same = False
            is_writable = is_there and os.access(folder, os.R_OK | os.W_OK | os.X_OK)
            problem = try_folder(folder) if is_writable and is_same else ""
            return {"there": is_there, "same": is_same, "writable": is_writable, "problem": problem}

        try:
            user = getpass.getuser()
        except (KeyError, OSError):
            user = "-"
        report = {
            "host": socket.gethostname(),
            "process": os.getppid(),  # Spark's daemon: one for each executor
            "user": f"{user} ({os.geteuid()})",
            "python": ".".join(map(str, sys.version_info[:3])),
            "path": sys.executable,
            "packages": {"pyspark": pyspark.__version__, **{name: version_of(name) for name in packages}},
            "time": time.time(),
            "folders": {folder: look_at(folder) for folder in folders},
        }
        return json.dumps(report)

    return look


def judge(reports: list[dict[str, Any]], folders: Sequence[str], began: float, ended: float) -> Iterator[Finding]:
    """Yield findings of the reports; those that several executors share once, with the hosts."""
    shared: dict[tuple[str, str, str], list[str]] = {}
    for report in reports:
        problems = list(_problems(report, folders, began, ended))
        versions = ", ".join(f"{name} {version or '-'}" for name, version in report["packages"].items())
        text = f"Python {report['python']} ({report['path']}), {versions}, user {report['user']}"
        for finding in [Finding(CHECK, OK, text), *problems]:
            shared.setdefault((finding.state, finding.text, finding.remedy), []).append(report["host"])
    for (state, text, remedy), hosts in shared.items():
        names = ", ".join(sorted(set(hosts)))
        count = f" ({len(hosts)} executors)" if len(hosts) > 1 else ""
        yield Finding(CHECK, state, f"{names}{count}: {text}", remedy)


def _problems(report: dict[str, Any], folders: Sequence[str], began: float, ended: float) -> Iterator[Finding]:
    ours = {"pyspark": pyspark.__version__, **{name: version(name) for name in PACKAGES}}
    for name, here in ours.items():
        installed = report["packages"][name]
        if not installed:
            yield Finding(CHECK, PROBLEM, f"{name} is not installed", f"install it there, or send it along: {GUIDE}")
        elif installed != here:
            yield Finding(CHECK, PROBLEM, f"{name} {installed}, the driver has {here}", f"install the same: {GUIDE}")
    if report["python"].split(".")[:2] != [str(part) for part in sys.version_info[:2]]:
        here = ".".join(map(str, sys.version_info[:3]))
        yield Finding(CHECK, PROBLEM, f"Python {report['python']}, the driver has {here}", f"run the same: {GUIDE}")
    off_s = report["time"] - (ended if report["time"] > ended else began)
    if not began <= report["time"] <= ended and abs(off_s) > CLOCK_TOLERANCE_S:
        text = f"its clock is {abs(off_s):.0f} s {'ahead of' if off_s > 0 else 'behind'} the driver's"
        yield Finding(CHECK, NOTE, text, "synchronise the clocks (NTP): each writer stamps its messages itself")
    for folder in folders:
        yield from _folder_problems(folder, report["folders"][folder], report["user"])


def _folder_problems(folder: str, seen: dict[str, Any], user: str) -> Iterator[Finding]:
    if not seen["there"]:
        yield Finding(CHECK, PROBLEM, f"{folder} is not there", "mount it there at the same path as on the driver")
    elif not seen["same"]:
        yield Finding(
            CHECK, PROBLEM, f"{folder} is not the volume that the driver sees", "mount the driver's disk at this path"
        )
    elif not seen["writable"]:
        text = f"{folder} may not be written by user {user}"
        remedy = "run executors as its owner, or share it: docs/guide/operations.md, Who may use its files"
        yield Finding(CHECK, PROBLEM, text, remedy)
    elif seen["problem"]:
        yield Finding(CHECK, PROBLEM, seen["problem"], "use a file system that has these: " + GUIDE)
