"""The wheel as a stranger meets it: what is in it, and whether Spark finds `jstream` from it in an empty directory."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import venv
import zipfile
from pathlib import Path

import distribution
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = {"pyspark_jstream", "datasource", "storage_core", "spark_stream"}
PROCESS_TIMEOUT_S = 300

MAKE_STORE = """
from pyspark_jstream import Store

with Store.create("volume") as store:
    stream = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    for number in range(3):
        stream.publish("orders.new", b"order %d" % number)
"""

READ_BY_LOOK_UP = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]")
for name, value in zip(sys.argv[1::2], sys.argv[2::2]):
    builder = builder.config(name, value)
rows = builder.getOrCreate().read.format("jstream").option("stream", "ORDERS").load("volume").collect()
print(sorted((row.sequence, row.subject, bytes(row.data)) for row in rows))
"""


def run(python: Path, *arguments: str, folder: Path, active: bool = True) -> subprocess.CompletedProcess[str]:
    """Run `python` in `folder`. Not `active`: as an editor, cron or a notebook does, in nobody's environment."""
    kept = environment(python, active)
    command = [str(python), *arguments]
    return subprocess.run(
        command, cwd=folder, env=kept, capture_output=True, text=True, timeout=PROCESS_TIMEOUT_S, check=False
    )


def environment(python: Path, active: bool = True) -> dict[str, str]:
    """Return this environment with no PYTHONPATH, so that nothing is found but what is installed or lies there."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")}
    if active:
        kept["PATH"] = f"{python.parent}{os.pathsep}{kept['PATH']}"
        kept["PYSPARK_PYTHON"] = kept["PYSPARK_DRIVER_PYTHON"] = python.name
    else:
        kept = {name: value for name, value in kept.items() if name not in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
        folders = kept["PATH"].split(os.pathsep)
        kept["PATH"] = os.pathsep.join(folder for folder in folders if folder != os.path.dirname(sys.executable))
    return kept


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, text=True, timeout=PROCESS_TIMEOUT_S)
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a new environment that holds the wheel, and sees what this one has installed.

    A .pth file adds the other packages after the wheel is in: then pip does not meet the development installation, and
    the .pth files in there, which lead to the repository, are not read.
    """
    place = tmp_path_factory.mktemp("environment with space")
    venv.create(place, symlinks=True, with_pip=False)
    interpreter = place / "bin" / "python"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(interpreter),
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
    ]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True, text=True, timeout=PROCESS_TIMEOUT_S)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "zz_dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return interpreter


def test_wheel_installs_exactly_the_four_names(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == INSTALLED | {"pyspark_jstream-0.1.0.dist-info"}
    licenses = {"LICENSE", "spark_stream/ui/static/htmx.LICENSE"}
    assert {f"pyspark_jstream-0.1.0.dist-info/licenses/{name}" for name in licenses} <= set(names)
    assert {f"{package}/py.typed" for package in INSTALLED} <= set(names)
    templates = [path for path in (ROOT / "conf").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {f"spark_stream/templates/{path.relative_to(ROOT / 'conf')}" for path in templates}
    assert {name for name in names if name.startswith("spark_stream/templates/")} == expected
    assert {"storage_core/look.css", "spark_stream/look/templates/page.html"} <= set(names)
    assert not [name for name in names if name.endswith((".pyc", ".blk")) or "/tests/" in name]


def test_sdist_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(tmp_path)]
    subprocess.run([*build, "--target", "sdist"], cwd=ROOT, check=True, capture_output=True, timeout=PROCESS_TIMEOUT_S)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as members:
        members.extractall(tmp_path, members=[one for one in members if one.isfile() and ".." not in one.name])
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    subprocess.run(
        [*build, "--target", "wheel"], cwd=unpacked, check=True, capture_output=True, timeout=PROCESS_TIMEOUT_S
    )
    (again,) = tmp_path.glob("*.whl")
    assert again.read_bytes() == wheel.read_bytes()


def test_components_are_those_of_an_installation_and_valid() -> None:
    text = distribution.list_components()
    assert text == distribution.list_components()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    scopes = {component["name"]: component["scope"] for component in json.loads(text)["components"]}
    assert {scopes[name] for name in ("htmx.org", "pyspark", "py4j", "pyarrow", "msgspec")} == {"required"}
    assert {scopes[name] for name in ("obstore", "polars", "delta-spark")} == {"optional"}
    assert not {"pytest", "ruff", "pyspark-jstream"} & set(scopes)


def test_wheel_carries_every_module_of_the_packages(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in sorted(INSTALLED):
        modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py")}
        assert modules <= names


def test_command_of_the_wheel_tells_its_version(python: Path, tmp_path: Path) -> None:
    done = run(python, "-m", "spark_stream.cli", "--version", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0.1.0" in done.stdout


def test_command_of_the_wheel_makes_the_folder_of_the_demo(python: Path, tmp_path: Path) -> None:
    done = run(python, "-m", "spark_stream.cli", "demo", "play", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    read = run(python, "-m", "spark_stream.cli", "stream", "ls", "--names", folder=tmp_path / "play")
    assert read.stdout == "ORDERS\nORDERS_DEAD\n", read.stderr


def test_pages_of_the_wheel_come_with_all_that_they_name(python: Path, tmp_path: Path) -> None:
    assert run(python, "-c", MAKE_STORE, folder=tmp_path).returncode == 0
    command = [str(python), "-m", "spark_stream.cli", "ui", "--port", "0", "--store", "volume"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(python), stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            found = re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline())
            assert found is not None
            seen = crawl(found[0])
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=PROCESS_TIMEOUT_S)
    assert {"/static/ui.css", "/static/ui.js", "/static/htmx.min.js", "/static/icon.svg"} <= seen
    assert {"/streams/ORDERS/messages", "/volumes", "/consumers", "/events"} <= seen


def crawl(address: str) -> set[str]:
    """Return the paths that are reached from `/` by links and what pages load; each must be there."""
    seen, found = {"/"}, ["/"]
    while found:
        with urllib.request.urlopen(address + found.pop(), timeout=PROCESS_TIMEOUT_S) as answer:
            text = answer.read().decode() if answer.headers.get_content_type() == "text/html" else ""
        paths = set(re.findall(r"""(?:href|src)="(/[^"?#]*)""", text)) - seen
        seen |= paths
        found += paths
    return seen


def test_storage_core_imported_alone_leaves_spark_out(python: Path, tmp_path: Path) -> None:
    code = "import sys, storage_core; storage_core.Store; print({'pyspark', 'py4j'} & set(sys.modules))"
    done = run(python, "-c", code, folder=tmp_path)
    assert done.stdout == "set()\n", done.stderr


def test_store_of_pyspark_jstream_leaves_spark_out(python: Path, tmp_path: Path) -> None:
    code = "import sys; from pyspark_jstream import Store; print('pyspark' in sys.modules)"
    done = run(python, "-c", code, folder=tmp_path)
    assert done.stdout == "False\n", done.stderr


def test_this_environment_offers_pyspark_jstream_to_the_look_up(tmp_path: Path) -> None:
    """An editable installation, too, must be found as a top-level module: Spark goes by pkgutil."""
    code = "import pkgutil; print('pyspark_jstream' in [module.name for module in pkgutil.iter_modules()])"
    done = run(Path(sys.executable), "-c", code, folder=tmp_path)
    assert done.stdout == "True\n", done.stderr


def read_by_look_up(
    python: Path, folder: Path, settings: dict[str, str], script: str = READ_BY_LOOK_UP, active: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run the reading script in `folder`, from outside it: Python puts a script's own folder on its path."""
    file = folder.with_name("read.py")
    file.write_text(script)
    return run(python, str(file), *itertools.chain(*settings.items()), folder=folder, active=active)


@pytest.mark.spark
def test_spark_finds_the_wheel_by_look_up_in_an_environment_that_is_not_active(
    python: Path, tmp_path: Path, spark_settings: dict[str, str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    made = run(python, "-c", MAKE_STORE, folder=empty)
    assert made.returncode == 0, made.stderr
    script = "import pyspark_jstream\n" + READ_BY_LOOK_UP
    done = read_by_look_up(python, empty, spark_settings, script, active=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert str([(number + 1, "orders.new", b"order %d" % number) for number in range(3)]) in done.stdout


@pytest.mark.spark
def test_spark_names_a_users_folder_called_datasource_where_the_format_is_used(
    python: Path, tmp_path: Path, spark_settings: dict[str, str]
) -> None:
    intruder = tmp_path / "work" / "datasource"
    intruder.mkdir(parents=True)
    (intruder / "__init__.py").write_text("")
    done = read_by_look_up(python, intruder.parent, spark_settings)
    assert done.returncode != 0
    assert f"{intruder} is in the way" in done.stderr


def test_a_users_folder_called_datasource_is_named_as_the_intruder(python: Path, tmp_path: Path) -> None:
    intruder = tmp_path / "datasource"
    intruder.mkdir()
    (intruder / "__init__.py").write_text("")
    done = run(python, "-c", "from pyspark_jstream import register", folder=tmp_path)
    assert done.returncode == 1
    assert "ImportError" in done.stderr
    assert str(intruder) in done.stderr


def test_a_users_module_called_storage_core_is_named_as_the_intruder(python: Path, tmp_path: Path) -> None:
    intruder = tmp_path / "storage_core.py"
    intruder.write_text("")
    done = run(python, "-c", "from pyspark_jstream import Store", folder=tmp_path)
    assert done.returncode == 1
    assert str(intruder) in done.stderr
