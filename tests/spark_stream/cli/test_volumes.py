"""`jstream cluster step-down` and `cluster volume`: which volumes a store has."""

import json
import shutil
from pathlib import Path

import pytest

from storage_core import Store


def info_of(trio) -> dict:
    return json.loads(trio.done("cluster", "info", "--json"))


def states_of(trio) -> list[str]:
    return [volume["state"] for volume in info_of(trio)["volumes"]]


def test_stepping_down_begins_a_new_term(trio, replicated) -> None:
    before = info_of(trio)
    outcome = trio("cluster", "step-down")
    assert outcome.code == 0
    after = info_of(trio)
    assert after["term"] > before["term"]
    assert f"in term {after['term']}" in outcome.err
    assert trio.done("pub", "orders.new", "x") == "ORDERS 5\n"


def test_a_volume_is_replaced_and_the_new_one_is_current(trio, replicated, volumes, tmp_path: Path) -> None:
    shutil.rmtree(volumes[1])
    old = info_of(trio)["volumes"][1]["name"]
    outcome = trio("cluster", "volume", "replace", old[:8], tmp_path / "new")
    assert outcome.code == 0, outcome
    assert outcome.err.startswith(f"volume {volumes[1].name} was replaced by {tmp_path / 'new'}\n")
    assert old not in outcome.out
    info = info_of(trio)
    assert {volume["path"] for volume in info["volumes"]} == {str(volumes[0]), str(volumes[2]), str(tmp_path / "new")}
    assert [volume["state"] for volume in info["volumes"]] == ["current"] * 3
    assert trio.done("stream", "view", "ORDERS", "--raw").count("body") == 4
    assert "volume_replaced" in trio.done("events")


def test_volumes_are_added_and_removed_two_at_a_time(trio, replicated, volumes, tmp_path: Path) -> None:
    new = [tmp_path / "disk-4", tmp_path / "disk-5"]
    outcome = trio("cluster", "volume", "add", *new)
    assert outcome.code == 0, outcome
    info = info_of(trio)
    assert (info["voters"], info["quorum"], info["change"]) == (5, 3, None)
    assert [volume["path"] for volume in info["volumes"]] == [str(path) for path in [*volumes, *new]]
    assert trio.done("stream", "add", "WIDE")
    assert json.loads(trio.done("stream", "info", "WIDE", "--json"))["config"]["num_replicas"] == 5
    trio.done("stream", "rm", "WIDE", "--force")
    outcome = trio("cluster", "volume", "remove", new[0], info["volumes"][4]["name"], "--force", "--json")
    assert (outcome.code, outcome.err) == (0, "2 volumes removed\n")
    assert [volume["path"] for volume in json.loads(outcome.out)["volumes"]] == list(map(str, volumes))
    assert (info_of(trio)["voters"], states_of(trio)) == (3, ["current"] * 3)
    assert trio.done("stream", "view", "ORDERS", "--raw").count("body") == 4


@pytest.mark.parametrize(
    ("verb", "given"),
    [
        ("add", ["new"]),
        ("add", ["new", "disk-1"]),
        ("add", ["new", "new"]),
        ("add", ["new", "new/below"]),
        ("remove", ["disk-1"]),
        ("remove", ["disk-1", "disk-1"]),
        ("remove", ["disk-1", "disk-2", "disk-3"]),
        ("replace", ["disk-1", "disk-2"]),
        ("replace", ["disk-1", "disk-1"]),
    ],
)
def test_a_change_of_volumes_that_makes_no_sense_is_refused_and_changes_nothing(
    trio, replicated, volumes, tmp_path: Path, verb: str, given: list[str]
) -> None:
    force = ["--force"] if verb == "remove" else []
    outcome = trio("cluster", "volume", verb, *(tmp_path / name for name in given), *force)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "new").exists()
    assert (info_of(trio)["change"], states_of(trio)) == (None, ["current"] * 3)


def test_volumes_that_a_stream_needs_are_not_removed(trio, replicated, volumes) -> None:
    outcome = trio("cluster", "volume", "remove", volumes[1], volumes[2], "--force")
    assert outcome.code == 1
    assert "ORDERS" in outcome.err
    assert (info_of(trio)["voters"], states_of(trio)) == (3, ["current"] * 3)


def test_a_directory_that_holds_something_becomes_no_volume(trio, replicated, volumes, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear reader")
    for words in (["add", tmp_path / "mine", tmp_path / "new"], ["replace", volumes[0], tmp_path / "mine"]):
        outcome = trio("cluster", "volume", *words)
        assert outcome.code == 1
        assert str(tmp_path / "mine") in outcome.err
        assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]
    assert (info_of(trio)["voters"], states_of(trio)) == (3, ["current"] * 3)


def test_a_volume_that_was_removed_has_no_voice_when_it_is_back(trio, replicated, volumes, tmp_path: Path) -> None:
    new = [tmp_path / "disk-4", tmp_path / "disk-5"]
    trio.done("cluster", "volume", "add", *new)
    for path in new:
        shutil.copytree(path, path.with_suffix(".older"))
    trio.done("cluster", "volume", "remove", *new, "--force")
    trio.done("pub", "orders.new", "later")
    for path in new:
        shutil.rmtree(path, ignore_errors=True)
        path.with_suffix(".older").rename(path)
    before = {path: path.read_bytes() for root in new for path in root.rglob("*.log")}
    assert trio.done("stream", "get", "ORDERS", 5, "--raw", "--store", f"{new[0]},{volumes[0]}") == "later\n"
    assert trio.done("stream", "get", "ORDERS", 5, "--raw", "--store", new[0]) == "later\n"
    assert trio.done("pub", "orders.new", "last", "--store", f"{new[0]},{new[1]},{volumes[2]}") == "ORDERS 6\n"
    info = info_of(trio)
    assert (info["voters"], [volume["path"] for volume in info["volumes"]]) == (3, list(map(str, volumes)))
    assert {path: path.read_bytes() for path in before} == before
    for path in volumes[1:]:
        shutil.rmtree(path)  # two of three: those that were removed do not make up for them
    outcome = trio("pub", "orders.new", "none", "--store", f"{volumes[0]},{new[0]},{new[1]}")
    assert (outcome.code, outcome.out) == (1, "")


def test_volumes_are_called_by_what_sets_their_paths_apart(jstream, tmp_path: Path) -> None:
    """`/mnt/a/jstream` and `/mnt/b/jstream` are `a` and `b` in tables and messages, and as words of a command."""
    paths = [tmp_path / disk / "jstream" for disk in ("a", "b", "c")]
    Store.create(paths).close()
    where = ("--store", paths[0])
    jstream.done("stream", "add", "ORDERS", *where)
    shutil.rmtree(paths[1])
    assert jstream("stream", "ls", *where).err.startswith("warning: volume b is missing: ")
    for words in (("cluster", "info"), ("stream", "info", "ORDERS")):
        assert [line.split()[0] for line in jstream.done(*words, *where).splitlines()[-3:]] == ["a", "b", "c"]
    (tmp_path / "d").mkdir()
    replaced = jstream("cluster", "volume", "replace", "b", tmp_path / "d" / "jstream", *where)
    assert (replaced.code, replaced.err.split(" was ")[0]) == (0, "volume b")


def test_damage_and_events_call_volumes_as_tables_do(trio, replicated, volumes) -> None:
    shutil.rmtree(volumes[2])
    repaired = trio("repair")
    assert (repaired.code, "disk-3" in repaired.out.split()) == (0, True)
    shown = trio.done("events")
    assert "disk-3" in shown.split()
    assert not any(volume.name in repaired.out + shown for volume in replicated.volumes())
