"""What a session of ours sets before the JVM starts; the notebooks and the demo run one."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from spark_stream.session import delta_jars, use_this_python


def test_workers_run_this_python_also_where_its_path_has_a_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "my environment" / "python3"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # so that it is put back
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("PATH", os.environ["PATH"])
    use_this_python()
    named = os.environ["PYSPARK_PYTHON"]
    assert " " not in named
    assert shutil.which(named) == str(python)


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
