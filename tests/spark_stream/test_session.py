"""What a session of ours sets before the JVM starts; the notebooks and the demo run one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSourceReader

from pyspark_jstream import use_this_python
from spark_stream.jars import delta_jars
from spark_stream.session import JAVA_OPTIONS, PUSH_DOWN, local_settings

ROOT = Path(__file__).resolve().parents[2]


def test_workers_run_this_python_also_where_its_path_has_a_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    not_chosen(monkeypatch)
    python = environment(tmp_path / "my environment", "python3", "python")
    monkeypatch.setattr(sys, "executable", str(python.with_name("python")))
    use_this_python()
    assert os.environ["PYSPARK_PYTHON"] == "python3"  # which is what executors elsewhere run anyway
    assert shutil.which("python3") == str(python)


def test_a_python_that_is_not_the_python3_of_its_folder_goes_by_its_own_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    not_chosen(monkeypatch)
    python = environment(tmp_path, "python3.9")
    shutil.copy("/bin/sh", tmp_path / "python3")
    monkeypatch.setattr(sys, "executable", str(python))
    use_this_python()
    assert shutil.which(os.environ["PYSPARK_PYTHON"]) == str(python)


def test_spark_submit_has_chosen_the_python_of_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    not_chosen(monkeypatch)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    before = dict(os.environ)
    use_this_python()
    assert dict(os.environ) == before


def test_filters_are_pushed_by_default_where_spark_keeps_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PUSH_DOWN not in local_settings({})
    monkeypatch.setattr(DataSourceReader, "pushLimit", None, raising=False)
    assert local_settings({})[PUSH_DOWN] == "true"
    assert local_settings({PUSH_DOWN: "false"})[PUSH_DOWN] == "false"


def not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # so that it is put back
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("PATH", os.environ["PATH"])


def environment(folder: Path, *names: str) -> Path:
    """Return the first of these names for this Python in the folder."""
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).symlink_to(sys.executable)
    return folder / names[0]


@pytest.mark.parametrize("module", ["pyspark_jstream", "spark_stream.session"])
def test_importing_jstream_is_enough_for_the_workers_to_run_this_python(module: str, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    code = f"import os, shutil, {module}; print(shutil.which(os.environ['PYSPARK_PYTHON']))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=kept | {"PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert os.path.samefile(done.stdout.strip(), sys.executable), done.stderr
    assert Path(done.stdout.strip()).parent == Path(sys.executable).parent  # of the environment, not what it links to


def test_options_for_java_of_the_caller_stand_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    ours, theirs = local_settings({JAVA_OPTIONS: "-Da=b"}, delta=False)[JAVA_OPTIONS].split(" ")
    assert ours.startswith("-Dlog4j2.configurationFile=file:///") and theirs == "-Da=b"


def test_a_python_that_was_chosen_for_the_workers_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/somewhere/python")
    before = os.environ["PATH"]
    use_this_python()
    assert (os.environ["PYSPARK_PYTHON"], os.environ["PATH"]) == ("/somewhere/python", before)


def test_jars_count_only_if_delta_is_among_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JSTREAM_DELTA_JARS", str(tmp_path))
    (tmp_path / "other.jar").touch()
    assert delta_jars() == []
    (tmp_path / "delta-spark_4.2.jar").touch()
    assert [jar.name for jar in delta_jars()] == ["delta-spark_4.2.jar", "other.jar"]


SECRETS = {
    "spark.executorEnv.AWS_SECRET_ACCESS_KEY": "hush",
    "spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net": "hush",
    "spark.hadoop.fs.s3a.secret.key": "hush",
}


def test_secrets_are_settings_of_the_session_and_not_on_the_command_line_of_the_jvm() -> None:
    program = (
        "import json, pathlib, sys\n"
        "from spark_stream.session import session\n"
        "with session('secrets', json.loads(sys.argv[1]), delta=False) as made:\n"
        "    names = [path / 'cmdline' for path in pathlib.Path('/proc').glob('[0-9]*')]\n"
        "    lines = [name.read_bytes() for name in names if name.exists()]\n"
        "    jvm = [line for line in lines if b'/java\\0' in line and b'spark.app.name=secrets' in line]\n"
        "    assert jvm and not [line for line in jvm if b'hush' in line], jvm\n"
        "    for key in json.loads(sys.argv[1]):\n"
        "        print(made.sparkContext.getConf().get(key))\n"
    )
    command = [sys.executable, "-c", program, json.dumps(SECRETS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == ["hush"] * len(SECRETS), done.stderr
