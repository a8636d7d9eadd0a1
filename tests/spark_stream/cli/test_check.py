"""`jstream check`: what a monitoring system gets, line by line, with its exit code."""

import json
import shutil
from pathlib import Path

import pytest

from storage_core import Store

ALL_IS_WELL = ("check", "--free", "0%")  # whatever the disk of these tests is like


def lines(text: str) -> list[tuple[str, ...]]:
    """Return level and subject of each line."""
    return [tuple(line.split(": ")[:2]) for line in text.splitlines()]


def test_a_store_that_is_well_is_one_line(trio, replicated) -> None:
    outcome = trio(*ALL_IS_WELL, "--events-since", "7d", "--lag", "1", "--lag-age", "1s,1h")
    assert (outcome.code, outcome.out, outcome.err) == (0, "OK: 3 volumes, 1 stream\n", "")
    assert json.loads(trio.done(*ALL_IS_WELL, "--json")) == {"level": "ok", "problems": []}


def test_a_lost_volume_and_a_damaged_copy_are_warnings_and_too_few_volumes_are_critical(
    trio, replicated, volumes: list[Path], blocks_on
) -> None:
    block = blocks_on(volumes[0])[0]
    data = bytearray(block.read_bytes())
    data[300] ^= 1
    block.write_bytes(data)
    assert trio("verify").code == 1
    outcome = trio(*ALL_IS_WELL)
    assert outcome.code == 1
    assert lines(outcome.out) == [("WARNING", "volume disk-1"), ("WARNING", "stream ORDERS")]
    assert "damaged blocks: 1 on disk-1" in outcome.out
    shutil.rmtree(volumes[1])
    problems = json.loads(trio(*ALL_IS_WELL, "--json").out)["problems"]
    assert [(problem["subject"], problem["command"]) for problem in problems] == [
        ("volume disk-1", "jstream repair"),
        ("volume disk-2", "jstream repair"),
        ("stream ORDERS", "jstream repair ORDERS"),
    ]
    shutil.rmtree(volumes[2])
    outcome = trio(*ALL_IS_WELL)
    assert outcome.code == 2
    assert lines(outcome.out)[0] == ("CRITICAL", "store")
    assert "1 of 3 volumes can vote, 2 are needed: bring one back; run `jstream repair --adopt`" in outcome.out
    assert trio("repair").code == 1 and "run `jstream repair`" not in outcome.out
    for words in ("stream", "ls"), ("verify",):
        said = trio(*words).err
        assert "`jstream repair --adopt` says what the others can do alone" in said and "from good ones" not in said
    shutil.rmtree(volumes[0])
    outcome = trio(*ALL_IS_WELL)
    assert (outcome.code, lines(outcome.out)) == (2, [("CRITICAL", "store")])


def test_events_of_what_is_well_again_are_told_for_as_long_as_was_asked(trio, replicated, volumes: list[Path]) -> None:
    shutil.rmtree(volumes[1])
    assert trio("repair").code == 0
    assert trio(*ALL_IS_WELL).code == 0
    outcome = trio(*ALL_IS_WELL, "--events-since", "1h")
    subjects = [("WARNING", "volume disk-2"), ("WARNING", "stream ORDERS")]  # all of it, and its copies
    assert (outcome.code, lines(outcome.out)) == (1, subjects)
    assert "event repaired 4 times on volume disk-2, last at 2" in outcome.out
    assert "event rejoined once, last at 2" in outcome.out
    assert trio(*ALL_IS_WELL, "--events-since", "2200-01-01").code == 0


def test_lag_counts_by_messages_and_by_age(jstream, orders: Store) -> None:
    orders.stream("ORDERS").add_consumer({"name": "billing"})
    waiting = orders.stream("ORDERS").state().message_count
    for option, code in (
        (str(waiting + 1), 0),
        (str(waiting), 1),
        (f"1,{waiting + 1}", 1),
        (f"1,{waiting}", 2),
    ):
        outcome = jstream(*ALL_IS_WELL, "--lag", option)
        assert outcome.code == code, option
        assert ("consumer billing of stream ORDERS: is" in outcome.out) is (code > 0)
    assert jstream(*ALL_IS_WELL, "--lag-age", "0,1000d").code == 1
    orders.stream("ORDERS").consumer("billing").fetch(waiting)
    assert jstream(*ALL_IS_WELL, "--lag-age", "1000d").code == 0


def test_copies_that_nobody_checks_and_disks_that_fill_are_told(jstream, orders: Store) -> None:
    outcome = jstream(*ALL_IS_WELL, "--scrub-age", "0,1000d")
    assert (outcome.code, lines(outcome.out)) == (1, [("WARNING", "stream ORDERS")])
    assert jstream(*ALL_IS_WELL, "--scrub-age", "0,0").code == 2
    outcome = jstream("check", "--free", "100%")
    assert (outcome.code, len(outcome.out.splitlines())) == (1, 1)
    assert "bytes are free" in outcome.out
    assert jstream("check", "--free", "100%,100%").code == 2


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--lag", "0"),
        ("--lag", "many"),
        ("--lag", "1,2,3"),
        ("--lag", "20,10"),
        ("--lag-age", "15"),
        ("--scrub-age", "1d,"),
        ("--free", "10"),
        ("--free", "101%"),
        ("--free", "5%,10%"),
        ("--events-since", "yesterday"),
    ],
)
def test_limits_that_make_no_sense_are_refused(jstream, orders: Store, option: str, value: str) -> None:
    outcome = jstream("check", option, value)
    assert (outcome.code, outcome.out) == (2, "")
    assert option in outcome.err


def test_what_is_no_store_is_critical_and_nothing_is_locked(jstream, orders: Store, tmp_path: Path) -> None:
    outcome = jstream("check", "--store", tmp_path / "nothing", with_store=False)
    assert (outcome.code, lines(outcome.out)) == (2, [("CRITICAL", "store")])
    before = sorted((path, path.stat().st_mtime_ns) for path in jstream.volume.rglob("*"))
    assert jstream(*ALL_IS_WELL).code == 0
    assert sorted((path, path.stat().st_mtime_ns) for path in jstream.volume.rglob("*")) == before
