"""`jstream doctor`: each thing that is not as it should be is found, with its remedy."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from storage_core.foreign.nats import long_chains


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a Java 17, and nobody's choice of Python or Spark."""
    java(tmp_path / "java", "17.0.13", "17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def java(home: Path, version: str, release: str) -> None:
    told = f"java.version = {version}\\njava.specification.version = {release}\\n"
    program(home / "bin" / "java", f"printf '{told}' >&2")


def findings(jstream, *words: object, code: int) -> dict[str, dict]:
    """Return what is found, by what was looked at."""
    outcome = jstream("doctor", "--json", *words)
    assert outcome.code == code, outcome
    return {finding["check"]: finding for finding in json.loads(outcome.out)}


def test_a_machine_that_has_everything_is_well(jstream, tmp_path: Path) -> None:
    found = findings(jstream, tmp_path, code=0)
    assert list(found) == ["python", "workers", "packages", "spark", "java", "delta", "rescue", "volume", "folder"]
    assert {finding["state"] for check, finding in found.items() if check not in ("delta", "volume")} == {"ok"}
    assert "17.0.13" in found["java"]["text"]
    assert str(jstream.volume) in found["volume"]["text"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["java", "volume"]  # what was tried left nothing


def test_what_reads_jetstream_faster_is_named_where_it_is_missing(jstream, monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings(jstream, code=0)["rescue"]["state"] == "ok"
    long_chains.compiled.cache_clear()
    monkeypatch.setattr(long_chains, "COMPILED_MODULE", "no_such_module")
    try:
        rescue = findings(jstream, code=0)["rescue"]
    finally:
        long_chains.compiled.cache_clear()
    assert rescue["state"] == "note" and "pyspark-jstream[rescue]" in rescue["remedy"]


def test_people_get_a_line_each_and_the_remedy_below(jstream, tmp_path: Path) -> None:
    java(tmp_path / "java", "11.0.2", "11")
    outcome = jstream("doctor")
    assert outcome.code == 1
    at = next(at for at, line in enumerate(outcome.out.splitlines()) if line.startswith("problem  java"))
    assert "Java 11.0.2" in outcome.out.splitlines()[at]
    assert outcome.out.splitlines()[at + 1].split()[:3] == ["->", "install", "Java"]


def test_no_java_is_a_problem(jstream, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "java")
    assert findings(jstream, code=1)["java"]["state"] == "problem"


@pytest.mark.parametrize("variable", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
@pytest.mark.parametrize(
    ("says", "state", "told"),
    [
        (f"[[{sys.version_info[0]}, {sys.version_info[1]}], true]", "ok", ""),
        (f"[[{sys.version_info[0]}, {sys.version_info[1]}], false]", "problem", "without jstream"),
        ("[[3, 1], true]", "problem", "this is another one"),
        ("hello", "problem", "does not run"),
    ],
)
def test_another_python_for_sparks_processes_is_looked_at(
    jstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, says: str, state: str, told: str
) -> None:
    program(tmp_path / "python", f"echo '{says}'")
    monkeypatch.setenv(variable, str(tmp_path / "python"))
    found = findings(jstream, code=state != "ok")["workers"]
    assert (found["state"], found["text"].startswith(f"{variable}=")) == (state, True)
    assert told in found["text"]


def test_a_relative_python_is_one_from_here(jstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "env" / "python", f"echo '[[{sys.version_info[0]}, {sys.version_info[1]}], true]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", "./env/python")
    assert findings(jstream, code=0)["workers"]["state"] == "ok"


def test_this_python_sees_jstream(jstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    assert findings(jstream, code=0)["workers"]["state"] == "ok"


def test_a_lost_volume_is_a_problem(trio, volumes) -> None:
    shutil.rmtree(volumes[1])
    outcome = trio("doctor", "--json")
    states = [one["state"] for one in json.loads(outcome.out) if one["check"] == "volume"]
    assert (outcome.code, [state == "problem" for state in states]) == (1, [False, True, False])


def test_what_is_no_store_and_no_folder_is_a_problem(jstream, tmp_path: Path) -> None:
    found = findings(jstream, "--store", tmp_path / "nowhere", tmp_path / "neither", code=1)
    assert (found["store"]["state"], found["folder"]["state"]) == ("problem", "problem")
    assert "jstream store create" in found["store"]["remedy"]


def test_without_a_store_the_machine_is_looked_at(jstream) -> None:
    outcome = jstream("doctor", "--json", with_store=False)
    assert outcome.code == 0
    assert {"volume", "store"}.isdisjoint(one["check"] for one in json.loads(outcome.out))
