"""`jstream demo`: a folder to play in, in which each command that it prints can be typed."""

import shlex
import shutil
from pathlib import Path

import pytest


def test_the_commands_that_it_prints_work_in_the_folder(
    jstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = jstream("demo", tmp_path / "a place")
    assert made.code == 0
    assert "6011 messages of stream ORDERS, 0 lost" in made.err
    first, drift, report, repair, run = [shlex.split(line, comments=True) for line in made.out.split("\n") if line]
    assert first == ["cd", str(tmp_path / "a place")]
    monkeypatch.chdir(first[1])
    compared = jstream(*drift[1:], with_store=False)
    assert (compared.code, compared.out.count("differs")) == (1, 3)
    assert "3 current" in jstream(*report[1:], with_store=False).out
    assert repair == ["rm", "-r", "store/disk-2;", "jstream", "repair"]
    shutil.rmtree("store/disk-2")
    assert jstream("repair", with_store=False).code == 0
    assert "3 current" in jstream(*report[1:], with_store=False).out
    assert run == ["jstream", "etl", "run", "orders.toml"]
    assert jstream("etl", "check", "orders.toml", "--quick", with_store=False).code == 0


def test_a_folder_that_holds_something_stays_as_it_is(jstream, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear reader")
    for place in (tmp_path / "mine", tmp_path / "mine" / "letter.txt"):
        outcome = jstream("demo", place)
        assert outcome.code == 1
        assert str(place) in outcome.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]
