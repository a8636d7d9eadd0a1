"""Which Java `make setup` chooses, and the wrapper that it puts around one that Spark's launcher can't start."""

import subprocess
from pathlib import Path

import java_home
import pytest

# Answers as `java -XshowSettings:properties -version` does, and refuses the launcher's module if it does not have it.
FAKE_JAVA = """#!/bin/sh
case "$1" in --add-modules=*) {module_check} ;; esac
echo '    java.home = {home}' >&2
echo '    java.specification.version = {version}' >&2
"""


def make_java(home: Path, version: str, has_module: bool = True) -> Path:
    """Make a home with a Java that says it is `version`, and return the home."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(FAKE_JAVA.format(home=home, version=version, module_check="true" if has_module else "exit 1"))
    java.chmod(0o755)
    return home


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    asked, other = make_java(tmp_path / "asked", "21"), make_java(tmp_path / "other", "17")
    environment = {"JAVA_HOME": str(asked), "PATH": str(other / "bin")}
    assert java_home.find_java_home(environment, places=()) == asked


def test_java_home_of_a_wrong_version_is_told_and_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, other = make_java(tmp_path / "asked", "11"), make_java(tmp_path / "other", "17")
    environment = {"JAVA_HOME": str(asked), "PATH": str(other / "bin")}
    assert java_home.find_java_home(environment, places=()) == other
    assert f"JAVA_HOME={asked} is not a Java 17 or 21" in capsys.readouterr().out


def test_usual_places_are_searched_when_the_path_has_no_java(tmp_path: Path) -> None:
    make_java(tmp_path / "jvm" / "java-11", "11")
    make_java(tmp_path / "jvm" / "java-25", "25")
    wanted = make_java(tmp_path / "jvm" / "with space 21", "21")
    assert java_home.find_java_home({"PATH": str(tmp_path)}, places=[f"{tmp_path}/jvm/*"]) == wanted


def test_java_without_the_launchers_module_does_not_count(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "21", has_module=False)
    assert java_home.find_java_home({"JAVA_HOME": str(home), "PATH": ""}, places=()) is None


@pytest.mark.parametrize("module", ["--add-modules=jdk.incubator.vector", "--add-modules jdk.incubator.vector"])
def test_wrapper_drops_the_launchers_module_and_nothing_else(tmp_path: Path, module: str) -> None:
    wrapper = tmp_path / "java"
    wrapper.write_text(java_home.wrapper_script(["printf", "<%s>", "-Done=a b"]))
    arguments = ["-cp", "a b:c'd", "", *module.split(), "--add-modules=java.sql", "Main", "$HOME *", "--add-modules"]
    done = subprocess.run(["sh", str(wrapper), *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "<-Done=a b><-cp><a b:c'd><><--add-modules=java.sql><Main><$HOME *><--add-modules>"
