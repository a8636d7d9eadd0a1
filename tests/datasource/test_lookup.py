"""What Spark's look-up finds, each time in a fresh interpreter: lazy, and never in the way of others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in `folder`, whose packages go before ours, as those of a notebook's folder do."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)


def run(code: str, folder: Path) -> str:
    done = python(code, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_nothing_and_store_loads_no_spark(tmp_path: Path) -> None:
    code = """
import sys, pyspark_jstream
print([name for name in ("pyspark", "pyarrow", "storage_core", "datasource") if name in sys.modules])
from pyspark_jstream import Store
print(Store.__module__, "pyspark" in sys.modules)
"""
    assert run(code, tmp_path).splitlines() == ["[]", "storage_core.store.store False"]


def test_source_is_found_as_spark_looks_for_it(tmp_path: Path) -> None:
    code = """
import pickle, sys
from pyspark.sql.datasource import DataSource
import pyspark_jstream as module
assert hasattr(module, "DefaultSource") and issubclass(module.DefaultSource, DataSource)
assert pickle.loads(pickle.dumps(module.DefaultSource)) is module.DefaultSource
print(module.DefaultSource.name(), "datasource" in sys.modules)
"""
    assert run(code, tmp_path) == "jstream False"


@pytest.mark.parametrize("name", ["datasource", "storage_core", "spark_stream"])
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_name_that_somebody_else_uses_is_found_but_not_run(name: str, kind: str, tmp_path: Path) -> None:
    if kind == "folder":
        (tmp_path / name).mkdir()
        intruder = tmp_path / name / "__init__.py"
    else:
        intruder = tmp_path / f"{name}.py"
    intruder.write_text("raise SystemExit('the intruder ran')")
    code = """
import pyspark_jstream
source = pyspark_jstream.DefaultSource({"path": "/nowhere", "stream": "S"})
for use in (source.schema, lambda: pyspark_jstream.Store, lambda: pyspark_jstream.register):
    try:
        use()
    except ImportError as error:
        print(error)
"""
    lines = run(code, tmp_path).splitlines()
    assert len(lines) == 3
    place = intruder.parent if kind == "folder" else intruder
    for line in lines:
        assert line.startswith(
            f"{place} is in the way: it takes the name of jstream's own package {name!r} at {ROOT / name}"
        )
        assert "Rename it" in line


def test_folder_that_is_no_package_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "datasource").mkdir()
    (tmp_path / "datasource" / "notes.txt").write_text("mine")
    assert run("from pyspark_jstream import Store, register; print(Store.__name__)", tmp_path) == "Store"


def test_our_source_under_a_link_is_ours(tmp_path: Path) -> None:
    for name in ("pyspark_jstream", "datasource", "storage_core", "spark_stream"):
        (tmp_path / name).symlink_to(ROOT / name)
    assert run("from pyspark_jstream import Store; print(Store.__name__)", tmp_path) == "Store"


def test_unknown_name_is_an_attribute_error(tmp_path: Path) -> None:
    assert run("import pyspark_jstream; print(hasattr(pyspark_jstream, 'nothing'))", tmp_path) == "False"


@pytest.mark.parametrize(("version", "says"), [("3.5.9", "PySpark 3.5.9"), (None, "no PySpark")])
def test_spark_that_has_no_python_sources_is_named_and_the_store_works(
    version: str | None, says: str, tmp_path: Path
) -> None:
    """A PySpark of 3.5, of which nothing but the version and the lack is asked, and none at all."""
    (tmp_path / "pyspark").mkdir()
    text = f"__version__ = {version!r}" if version else "raise ModuleNotFoundError('none', name='pyspark')"
    (tmp_path / "pyspark" / "__init__.py").write_text(text)
    for name in ("scan", "register", "session", "run_pipeline", "acknowledge", "DefaultSource"):
        done = python(f"import pyspark_jstream as j; j.Store; j.{name}", tmp_path)
        last = done.stderr.strip().splitlines()[-1]
        assert last == (
            f"ImportError: {name} of jstream needs Spark 4.0 to 4.3, and this Python has {says}. "
            "Store works without Spark"
        )


def test_spark_that_came_later_is_named() -> None:
    script = "import pyspark; pyspark.__version__ = '4.4.0.dev1'; import pyspark_jstream as j; j.Store; j.{}"
    done = python(script.format("scan"), ROOT)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "ImportError: scan of jstream needs Spark 4.0 to 4.3, and this Python has PySpark 4.4.0.dev1"
    )
    done = python(script.format("DefaultSource(options={}).schema()"), ROOT)
    assert "ImportError: jstream needs Spark 4.0 to 4.3, and this Python has PySpark 4.4.0.dev1" in done.stderr
