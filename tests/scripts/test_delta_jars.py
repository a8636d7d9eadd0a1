"""Delta's JARs: a folder of the user's own."""

from pathlib import Path

import delta_jars
import pytest


def test_no_folder_is_given_when_the_variable_is_absent_or_empty() -> None:
    assert delta_jars.given_folder({}) is None
    assert delta_jars.given_folder({"JSTREAM_DELTA_JARS": ""}) is None


def test_given_folder_is_taken_when_delta_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    assert delta_jars.given_folder({"JSTREAM_DELTA_JARS": str(tmp_path)}) == tmp_path


def test_given_folder_without_delta_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "other.jar").touch()
    with pytest.raises(ValueError, match="JSTREAM_DELTA_JARS=.*: no delta-spark"):
        delta_jars.given_folder({"JSTREAM_DELTA_JARS": str(tmp_path)})


def test_the_jars_are_those_of_the_version_that_the_project_pins(tmp_path: Path) -> None:
    project = (delta_jars_root() / "pyproject.toml").read_text()
    pinned = delta_jars.PINNED.search(project)
    assert pinned is not None
    (tmp_path / "delta-spark_4.2_2.13-1.0.0.jar").touch()
    assert not delta_jars.has_delta(tmp_path, project)
    (tmp_path / f"delta-spark_4.2_2.13-{pinned[1]}.jar").touch()
    assert delta_jars.has_delta(tmp_path, project)


def delta_jars_root() -> Path:
    return Path(delta_jars.__file__).resolve().parents[1]
