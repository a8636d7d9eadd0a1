"""`jstream verify`: everything is read, damage is listed, and the exit code says it."""

import json
import shutil
from pathlib import Path

import pytest
from harness.block_places import flip

from storage_core import Store
from storage_core.store.reading.plan import ReadRequest


def block_of(store: Store, sequence: int) -> Path:
    """Return the file that holds a message of ORDERS."""
    (found,) = store.plan(ReadRequest(("ORDERS",), {"ORDERS": (sequence, sequence + 1)})).slices
    return Path(found.paths[0])


def test_a_whole_store_is_said_to_be_whole(jstream, orders) -> None:
    outcome = jstream("verify")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "4 copies of blocks checked: all is well\n")
    assert json.loads(jstream.done("verify", "--json")) == {"ok": True, "checked_blocks": 4, "damage": []}


def test_a_flipped_bit_is_listed_with_its_place_and_fails(jstream, orders) -> None:
    flip(block_of(orders, 4), 300)
    outcome = jstream("verify")
    assert outcome.code == 1
    heading, row = outcome.out.splitlines()
    assert heading.split() == ["stream", "volume", "file", "offset_bytes", "first", "end", "reason"]
    assert row.startswith("ORDERS  ")
    assert f" {block_of(orders, 4).relative_to(jstream.volume.parent)} " in row
    assert (
        outcome.err
        == "4 copies of blocks checked; bad or missing: 1 copy of a block; `jstream repair` brings copies and volumes "
        "back from good ones\n"
    )


def test_a_missing_block_is_damage(jstream, orders) -> None:
    block_of(orders, 4).unlink()
    outcome = jstream("verify", "--json")
    found = json.loads(outcome.out)
    assert (outcome.code, found["ok"], len(found["damage"])) == (1, False, 1)


def test_only_the_streams_that_are_named_are_checked(jstream, orders) -> None:
    orders.add_stream({"name": "OTHER"}).publish("OTHER", b"x")
    flip(block_of(orders, 4), 300)
    assert jstream("verify", "OTHER").code == 0
    assert jstream("verify", "ORDERS", "OTHER").code == 1
    assert jstream("verify", "NONE").code == 1


def test_damage_can_be_gone_past_and_is_told(jstream, orders) -> None:
    flip(block_of(orders, 4), 300)
    outcome = jstream("stream", "view", "ORDERS", "--json")
    assert outcome.code == 1
    assert "cannot be read" in outcome.err
    skipping = jstream("stream", "view", "ORDERS", "--json", "--on-data-loss", "continue")
    assert skipping.code == 0
    assert [json.loads(line)["seq"] for line in skipping.out.splitlines()] == [1, 5, 6]
    assert skipping.err.startswith("skipped: stream 'ORDERS': sequences 4 to 4")


def test_metadata_that_is_gone_is_an_error_and_not_an_empty_store(jstream, orders) -> None:
    for path in sorted(jstream.volume.rglob("*")):
        if path.is_file() and "streams" not in path.relative_to(jstream.volume).parts:
            path.write_bytes(b"")
    for verb in (["verify"], ["stream", "ls"], ["pub", "orders.new", "x"]):
        outcome = jstream(*verb)
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err.startswith("error: ")


@pytest.mark.parametrize("words", [["stream", "ls"], ["stream", "view", "ORDERS"], ["stream", "info", "ORDERS"]])
def test_reading_verbs_leave_the_store_as_it_was(jstream, orders, words: list[str]) -> None:
    before = {path: path.read_bytes() for path in jstream.volume.rglob("*") if path.is_file()}
    jstream.done(*words)
    assert {path: path.read_bytes() for path in jstream.volume.rglob("*") if path.is_file()} == before


def test_damage_that_costs_no_message_has_no_sequences_in_the_table(trio) -> None:
    shutil.rmtree(Path(trio.volume).parent / "disk-2")
    outcome = trio("verify")
    assert outcome.code == 1
    row = outcome.out.splitlines()[1].split()
    assert row[:2] == ["-", "disk-2"] and row[4:6] == ["-", "-"]
    (damage,) = json.loads(trio("verify", "--json").out)["damage"]
    assert (damage["first"], damage["end"]) == (0, 0)
