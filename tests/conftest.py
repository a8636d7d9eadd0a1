"""What all tests share: the environment that `make setup` recorded, Hypothesis profiles, a JVM, Delta, workers.

A JVM takes ten seconds until its first read, so tests of a process use the sessions `spark` and `delta_spark` of one.
Tests that kill a driver, or need another master, start a process of their own with `spark_settings`.

`make test` runs the whole in three processes of pytest-xdist, on one core in two. The tests of the data source that
share a JVM are one group, those of pipelines another; a worker is handed one of them first and whole, so that it starts
one JVM, and then takes of the rest, test by test, the long ones first.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))  # for tests/harness

from harness.cases import REPORTS  # noqa: E402

WORKER_COUNT_MAX = 3  # each may hold a JVM of 1 GB and as much of its own
USES_SHARED_JVM = re.compile(r"\b(delta_)?spark: ")  # a fixture among the arguments of a function
LONG = ("lives", "simulation", "specification")  # folders whose tests are handed out before all others
CLASSES = ROOT / ".venv" / f"spark-{version('pyspark')}.jsa"  # archived; made beside the first run of the whole
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Dspark.ui.enabled=false"
MEMORY, MEMORY_NEEDED = Path("/dev/shm"), 6 * 1024**3  # bytes
RECORDED_ENVIRONMENT = ROOT / ".venv" / "environment.sh"  # written by scripts/setup_environment.py
SESSION_CATALOG = "spark.sql.catalog.spark_catalog"
NO_DELTA = "Delta's JARs are not here: see what `make setup` says, or set JSTREAM_DELTA_JARS"


def set_environment() -> None:
    """Take over what `make setup` recorded, unless the caller has set it, and make Spark's workers use this Python."""
    if RECORDED_ENVIRONMENT.is_file():
        words = shlex.split(RECORDED_ENVIRONMENT.read_text(), comments=True)
        for name, value in (word.split("=", 1) for word in words if "=" in word):
            os.environ.setdefault(name, value)
    # By its name and the PATH: Spark finds no data source by look-up where this is a path with a space.
    folder, name = os.path.split(sys.executable)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = name
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Images of containers set this. Each of the thousand processes that tests start would compile all of jstream.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # A shell that runs the tests in the background has them ignore Ctrl-C, and so what they start would.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", jvm_options())
    # Stores are fsynced all the time, which takes no time in memory.
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_NEEDED:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def jvm_options() -> str:
    """Return what makes JVMs of tests start quickly and take little of two cores.

    They end before the code that the second compiler makes would pay for the making. With one compiler a JVM has room
    for 48 MB of code unless told otherwise, which all tests together fill: then it fails. Threads that collect garbage
    beside the others cost an eighth of all processor time, and nobody looks at Spark's pages.
    """
    if not CLASSES.is_file() or " " in str(CLASSES):
        return JVM_OPTIONS
    # What does not fit the archive is not taken from it, and nobody needs to hear of that.
    return f"{JVM_OPTIONS} -XX:SharedArchiveFile={CLASSES} -Xlog:disable -Xlog:all=error:stderr"


def set_hypothesis_profile() -> None:
    """`ci` finds the same on every run, so that a change is judged by what it changed; `soak` looks for news."""
    slow_is_fine = [HealthCheck.too_slow, HealthCheck.data_too_large]
    settings.register_profile(
        "ci", derandomize=True, print_blob=True, deadline=None, suppress_health_check=slow_is_fine
    )
    settings.register_profile(
        "soak", max_examples=5_000, print_blob=True, deadline=None, suppress_health_check=slow_is_fine
    )
    settings.load_profile("soak" if "JSTREAM_SOAK_SECONDS" in os.environ else "ci")


set_environment()
set_hypothesis_profile()


def find_delta_jars() -> list[Path]:
    """Return the JARs of the folder JSTREAM_DELTA_JARS, [] if Delta is not among them."""
    folder = os.environ.get("JSTREAM_DELTA_JARS")
    jars = sorted(Path(folder).glob("*.jar")) if folder else []
    return jars if any("delta-spark" in jar.name for jar in jars) else []


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many workers `-n auto` starts: none for a choice of tests, which is done before they would be up."""
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if not is_whole or config.option.keyword or config.option.lf or config.option.collectonly:
        return 0
    archive_classes(config)
    return min(WORKER_COUNT_MAX, len(os.sched_getaffinity(0)) + 1)  # for a sixth of the time one waits for others


def archive_classes(config: pytest.Config) -> None:
    """Begin to make the archive that JVMs start from, unless it is there or the caller has set how they start.

    JVMs that start before it is there, which takes a minute, start without. SPARK_SUBMIT_OPTS is split at spaces, so
    there is none in a path that has one.
    """
    is_asked_for = os.environ["SPARK_SUBMIT_OPTS"] == JVM_OPTIONS
    if CLASSES.is_file() or " " in str(CLASSES) or not CLASSES.parent.is_dir() or not is_asked_for:
        return
    command = [sys.executable, str(ROOT / "tests" / "harness" / "class_archive.py"), str(CLASSES)]
    making = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def end() -> None:
        try:
            _, errors = making.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            making.kill()
            _, errors = making.communicate()
        if making.returncode:
            print(f"JVMs started without an archive of classes: {errors[-2000:]}", file=sys.stderr)

    config.add_cleanup(end)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return what hands out tests: one by one, but together those of the shared JVM, and of a module's own fixture."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid.partition("::")[0]) or nodeid

    return Scheduler(config, log)


@cache
def group_of(module: str) -> str:
    """Return the group that the tests of a module belong to; empty if each goes where there is time."""
    path = ROOT / module
    text = path.read_text()
    beside = path.with_name("conftest.py")
    if beside.parent != ROOT / "tests" and beside.is_file():
        text += beside.read_text()
    if USES_SHARED_JVM.search(text):
        return f"jvm of {path.relative_to(ROOT / 'tests').parts[0]}"
    return module if 'scope="module"' in text else ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # of a worker; one process alone goes through the folders
        items.sort(key=lambda item: item.path.relative_to(ROOT / "tests").parts[0] not in LONG)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a worker hand on how many cases its tests tried."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["cases"] = list(REPORTS)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    REPORTS.extend(getattr(node, "workeroutput", {}).get("cases", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if REPORTS:
        terminalreporter.section("cases tried")
        for line in REPORTS:
            terminalreporter.write_line(line)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if os.environ.get("SPARK_SUBMIT_OPTS") == JVM_OPTIONS:
        os.environ["SPARK_SUBMIT_OPTS"] = jvm_options()  # from now on with the archive, if it is there
    if item.get_closest_marker("delta") is not None and not find_delta_jars():
        if os.environ.get("JSTREAM_REQUIRE_DELTA") == "1":
            pytest.fail(f"JSTREAM_REQUIRE_DELTA=1, but {NO_DELTA}", pytrace=False)
        pytest.skip(NO_DELTA)


@pytest.fixture(scope="session")
def s3_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an object store's server: each directory in it is a bucket."""
    return tmp_path_factory.mktemp("s3")


@pytest.fixture(scope="session")
def s3_options(s3_root: Path) -> Iterator[dict[str, str]]:
    """What a client needs to reach the server."""
    from harness.objects.server import serving

    with serving(s3_root) as options:
        yield options


@pytest.fixture
def buckets(s3_root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses of volumes in three buckets of this test's own, which are probed for a moment only."""
    from harness.objects.server import make_buckets

    from storage_core.store.volume import object_probe

    monkeypatch.setattr(object_probe, "PATIENCE_S", 0.0)
    return make_buckets(s3_root)


@pytest.fixture(scope="session")
def soak_seconds() -> float:
    """How long a test marked soak goes on, in seconds."""
    return float(os.environ.get("JSTREAM_SOAK_SECONDS", "60"))


@pytest.fixture(scope="session")
def delta_available() -> bool:
    """Whether `delta_spark` reads and writes Delta tables. A test that cannot do without is marked `delta`."""
    return bool(find_delta_jars())


@pytest.fixture(scope="session")
def spark_settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the configuration of `spark`, for tests that start a session in a process of their own, too."""
    place = tmp_path_factory.mktemp("spark")
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(place / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@pytest.fixture(scope="session")
def delta_settings() -> dict[str, str]:
    """Return what Delta needs besides `spark_settings`, {} if its JARs are not here."""
    jars = find_delta_jars()
    if not jars:
        return {}
    return {
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.jars": ",".join(str(jar) for jar in jars),
        SESSION_CATALOG: "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    }


@pytest.fixture(scope="session")
def delta_spark(
    spark_settings: dict[str, str], delta_settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator["SparkSession"]:
    """The session of the JVM that tests share: local[2], UTC, quiet, and Delta, for tests marked `delta`."""
    from pyspark.sql import SparkSession  # here, so that tests without Spark do not wait for its import

    from spark_stream.spark_home import workers_from_bytecode

    chosen = {"spark.master": "local[2]", "spark.app.name": "jstream tests"} | spark_settings | delta_settings
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("my cache")))
        with workers_from_bytecode(chosen):
            session = SparkSession.builder.config(map=chosen).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark(delta_spark: "SparkSession") -> "SparkSession":
    """The session that tests share: as `delta_spark`, but with Spark's own catalog. Put back settings that you change.

    Delta's catalog makes tables of the old kind of all tables that are not its own, and such a one over a Python data
    source cannot be read: "jstream is not a valid Spark SQL Data Source".
    """
    session = delta_spark.newSession()
    session.conf.unset(SESSION_CATALOG)
    return session


@pytest.fixture
def make_active() -> Callable[["SparkSession"], None]:
    """Makes a session the one that commands find, in the JVM and in PySpark, which keeps a note of its own."""

    def make(session: "SparkSession") -> None:
        session.createDataFrame([], "nothing INT")

    return make
