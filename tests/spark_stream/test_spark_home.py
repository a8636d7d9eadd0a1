"""Spark's Python processes start from bytecode, where they find the same PySpark without Spark's archive of it."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from spark_stream.spark_home import linked_home, workers_from_bytecode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(pyspark.__file__).resolve().parent
LOCAL = {"spark.master": "local[2]"}
MAKE = "import sys; sys.stdin.read(); from spark_stream.spark_home import linked_home; print(linked_home())"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache, which is not there yet; nobody has chosen a Spark."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return tmp_path / "my cache" / "jstream"


def run(code: str, *arguments: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, input="", capture_output=True, text=True)


def chosen_home(settings: dict[str, str]) -> str | None:
    with workers_from_bytecode(settings):
        return os.environ.get("SPARK_HOME")


def installation() -> dict[str, int]:
    """When each entry of the installed package last got or lost one of its own, or was written."""
    entries = (PACKAGE, *(path for path in PACKAGE.iterdir() if path.name != "__pycache__"))
    return {path.name: os.lstat(path).st_mtime_ns for path in entries}


def test_the_folder_links_to_the_installation_without_its_archives(cache: Path) -> None:
    before = installation()
    home = linked_home()
    assert installation() == before  # site-packages may be read-only
    assert home is not None and home.parent == cache
    assert {path.name for path in home.iterdir()} >= {"bin", "jars"}
    assert all(path.is_symlink() and path.resolve() == PACKAGE / path.name for path in home.iterdir())
    assert (PACKAGE / "python" / "lib" / "pyspark.zip").is_file() and not (home / "python").exists()
    assert pyspark.__version__ in home.name
    made = os.lstat(home)
    assert linked_home() == home
    assert (os.lstat(home).st_ino, os.lstat(home).st_mtime_ns) == (made.st_ino, made.st_mtime_ns)


def test_processes_that_make_the_folder_at_once_use_the_same(cache: Path) -> None:
    command = [sys.executable, "-c", MAKE]
    makers = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.close()
        maker.stdin = None
    made = {maker.communicate(timeout=120)[0].strip() for maker in makers}
    assert made == {str(linked_home())}
    assert [str(path) for path in cache.iterdir()] == list(made)


@pytest.mark.parametrize("what", ["a file", "another link", "an archive", "a link less", "others may write"])
def test_a_folder_that_is_not_as_it_was_made_is_not_used(cache: Path, what: str) -> None:
    home = linked_home()
    assert home is not None
    if what == "a file":
        for path in home.iterdir():
            path.unlink()
        home.rmdir()
        home.write_text("")
    elif what == "others may write":
        home.chmod(0o777)
    elif what == "an archive":
        (home / "python").symlink_to(PACKAGE / "python")
    else:
        (home / "jars").unlink()
        if what == "another link":
            (home / "jars").symlink_to(cache)
    before = sorted(home.parent.rglob("*"))
    assert linked_home() is None
    assert chosen_home(LOCAL) is None
    assert sorted(home.parent.rglob("*")) == before


def test_a_cache_that_cannot_be_made_is_done_without(cache: Path) -> None:
    cache.parent.write_text("a file where the folder would be")
    assert linked_home() is None
    assert chosen_home(LOCAL) is None


@pytest.fixture
def tarball(tmp_path: Path) -> Path:
    """PySpark as a tarball of Spark has it: its home is two folders above."""
    package = tmp_path / "spark-4.2.0" / "python" / "pyspark"
    package.mkdir(parents=True)
    for name in ("__init__.py", "version.py"):
        (package / name).write_text("__version__ = '4.2.0'")
    (package.parents[1] / "jars").mkdir()
    return package.parent


def test_a_spark_from_a_tarball_is_left_alone(cache: Path, tarball: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(tarball)}
    done = run(MAKE, env=environment)
    assert done.stdout == "None\n", done
    assert not cache.exists()


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[4,2]"])
def test_the_folder_is_the_spark_home_of_a_session_on_this_machine_and_of_nothing_else(
    cache: Path, master: str
) -> None:
    assert chosen_home({"spark.master": master}) == str(linked_home())
    assert "SPARK_HOME" not in os.environ


def test_a_session_that_is_not_made_leaves_no_spark_home(cache: Path) -> None:
    def fail() -> None:
        with workers_from_bytecode(LOCAL):
            raise ConnectionError("no session")

    with pytest.raises(ConnectionError):
        fail()
    assert "SPARK_HOME" not in os.environ


@pytest.mark.parametrize(
    "settings",
    [{}, {"spark.master": "spark://host:7077"}, {"spark.master": "local-cluster[2,1,1024]"}, {"spark.master": "yarn"},
     {**LOCAL, "spark.pyspark.python": "/opt/python"}],
)  # fmt: skip
def test_sessions_elsewhere_and_with_another_python_are_left_alone(cache: Path, settings: dict[str, str]) -> None:
    assert chosen_home(settings) is None


@pytest.mark.parametrize("name", ["SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"])
def test_what_the_user_has_chosen_counts(cache: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "/bin/sh")
    assert chosen_home(LOCAL) == (os.environ["SPARK_HOME"] if name == "SPARK_HOME" else None)
    assert os.environ[name] == "/bin/sh"


def test_a_pyspark_that_new_processes_would_not_find_is_left_alone(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "pyspark").symlink_to(PACKAGE)
    done = run(
        "import os, sys; sys.path.insert(0, sys.argv[1]); import pyspark; assert sys.argv[1] in pyspark.__file__\n"
        "from spark_stream.spark_home import workers_from_bytecode\n"
        "with workers_from_bytecode({'spark.master': 'local'}): print(os.environ.get('SPARK_HOME'))",
        str(tmp_path),
    )
    assert done.stdout == "None\n", done


def test_the_line_for_images_puts_bytecode_into_the_archive(tmp_path: Path) -> None:
    home = tmp_path / "my spark"
    archive = home / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("pyspark/__init__.py", "")
        file.writestr("pyspark/sql/__init__.py", "where = __file__")
    (line,) = re.findall(r"`(cd [^`]*zipfile -c[^`]*)`", (ROOT / "docs" / "guide" / "where-it-runs.md").read_text())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "SPARK_HOME": str(home), "TMPDIR": str(tmp_path)}
    subprocess.run(["bash", "-c", line], env=environment, check=True)
    assert sorted(zipfile.ZipFile(archive).namelist()) == [
        "pyspark/", "pyspark/__init__.py", "pyspark/__init__.pyc",
        "pyspark/sql/", "pyspark/sql/__init__.py", "pyspark/sql/__init__.pyc",
    ]  # fmt: skip
    found = run("import pyspark, pyspark.sql; print(pyspark.__file__)", env={**environment, "PYTHONPATH": str(archive)})
    assert found.stdout.strip() == str(archive / "pyspark" / "__init__.pyc"), found


@pytest.fixture
def whereabouts(spark: "SparkSession") -> str:
    """The name of a data source whose rows say where each of Spark's processes has its modules of PySpark from."""
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        InputPartition,
    )

    def here() -> str:
        import sys

        files = {name: str(getattr(module, "__file__", "")) for name, module in sys.modules.items()}
        names = {name.partition(".")[0] for name, file in files.items() if ".zip" in file}
        return ",".join(sorted(names)) or "none"

    class Rows:
        def partitions(self, start: Any = None, end: Any = None) -> list[InputPartition]:
            return [InputPartition(here())]

        def read(self, partition: InputPartition) -> Iterator[tuple[str, str]]:
            yield partition.value, here()

    class BatchRows(Rows, DataSourceReader):
        pass

    class StreamRows(Rows, DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"at": 0}

        def latestOffset(self) -> dict[str, int]:
            return {"at": 1}

    class Whereabouts(DataSource):
        @classmethod
        def name(cls) -> str:
            return "whereabouts"

        def schema(self) -> str:
            return "planning string, task string"

        def reader(self, schema: Any) -> BatchRows:
            return BatchRows()

        def streamReader(self, schema: Any) -> StreamRows:
            return StreamRows()

    spark.dataSource.register(Whereabouts)
    return "whereabouts"


@pytest.mark.spark
def test_no_process_of_spark_takes_pyspark_from_an_archive(
    spark: "SparkSession", whereabouts: str, tmp_path: Path
) -> None:
    assert [tuple(row) for row in spark.read.format(whereabouts).load().collect()] == [("none", "none")]
    query = (
        spark.readStream.format(whereabouts).load().writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).option("path", str(tmp_path / "rows"))
        .trigger(once=True).start()
    )  # fmt: skip
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert {tuple(row) for row in rows} == {("none", "none")}
