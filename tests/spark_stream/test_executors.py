"""`jstream doctor --spark`: what executors say of themselves, and what is made of it."""

import json
import os
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from spark_stream.doctor import OK, PROBLEM
from spark_stream.executors import PACKAGES, identities, judge, make_task
from storage_core import Store


@pytest.fixture
def volume(tmp_path: Path) -> str:
    Store.create(tmp_path / "disk-1").close()
    return str(tmp_path / "disk-1")


def report_of(folders: list[str], known: dict[str, str]) -> dict[str, Any]:
    return json.loads(make_task(folders, known)(0))


def problems(report: dict[str, Any], folders: list[str], began: float = 0, ended: float = 1e12) -> list[str]:
    assert report["host"]
    return [finding.text for finding in judge([report], folders, began, ended) if finding.state != OK]


def test_an_executor_that_has_everything_is_well_and_its_volume_is_left_as_it_was(volume: str) -> None:
    before = sorted(os.listdir(volume))
    report = report_of([volume], identities([volume]))
    assert report["packages"] == {name: version(name) for name in ("pyspark", *PACKAGES)}
    assert report["folders"] == {volume: {"there": True, "same": True, "writable": True, "problem": ""}}
    assert problems(report, [volume]) == []
    assert sorted(os.listdir(volume)) == before


def test_each_difference_from_the_driver_is_a_finding_with_a_remedy(volume: str) -> None:
    good = report_of([volume], identities([volume]))
    for change, said in [
        ({"python": "3.9.1"}, "Python 3.9.1"),
        ({"packages": {**good["packages"], "pyspark-jstream": ""}}, "pyspark-jstream is not installed"),
        ({"packages": {**good["packages"], "pyarrow": "1.0"}}, "pyarrow 1.0, the driver has"),
        ({"folders": {volume: {**good["folders"][volume], "there": False}}}, f"{volume} is not there"),
        ({"folders": {volume: {**good["folders"][volume], "same": False}}}, "not the volume that the driver sees"),
        ({"folders": {volume: {**good["folders"][volume], "writable": False}}}, "may not be written by user"),
        ({"folders": {volume: {**good["folders"][volume], "problem": "no flock"}}}, "no flock"),
    ]:
        (finding,) = [found for found in judge([{**good, **change}], [volume], 0, 1e12) if found.state != OK]
        assert (finding.state, said in finding.text, bool(finding.remedy)) == (PROBLEM, True, True), finding


def test_a_clock_counts_from_what_the_driver_saw() -> None:
    now = time.time()
    report = report_of([], {})
    assert problems(report, [], now - 5, now + 5) == []
    assert "30 s ahead" in problems({**report, "time": now + 30}, [], now - 5, now)[0]
    assert "30 s behind" in problems({**report, "time": now - 30}, [], now, now + 5)[0]


def test_what_is_there_on_the_executor_is_looked_at(volume: str, tmp_path: Path) -> None:
    known = identities([volume])
    shutil.rmtree(volume)
    assert problems(report_of([volume], known), [volume])[0].endswith(f"{volume} is not there")
    Store.create(volume).close()  # another store at the same path
    assert "is not the volume that the driver sees" in problems(report_of([volume], known), [volume])[0]


def test_executors_that_say_the_same_share_a_line() -> None:
    report = report_of([], {})
    (finding,) = judge([{**report, "host": "a"}, {**report, "host": "b"}], [], 0, 1e12)
    assert finding.text.startswith("a, b (2 executors): Python ")


@pytest.mark.spark
def test_every_executor_of_a_cluster_has_a_task(volume: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spark_stream.cli", "--store", volume, "doctor", "--spark", "--json"]
    command += ["--conf", "spark.master=local-cluster[2,1,1024]", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[1:])}
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    (executors,) = [finding for finding in json.loads(done.stdout) if finding["check"] == "executor"]
    assert executors["state"] == OK
    assert "(2 executors)" in executors["text"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk-1"]
