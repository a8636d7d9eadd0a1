"""`jstream check`: what a monitoring system gets, line by line, with its exit code."""

import json
import re
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from spark_stream.pipelines.state import PipelineState
from spark_stream.pipelines.summary import Summary
from storage_core import Store
from storage_core.metadata.commands import Event, RecordEvents

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
    assert lines(outcome.out) == [("WARNING", "volume disk-1")]
    assert "has 1 block of stream ORDERS damaged or missing; run `jstream repair ORDERS`" in outcome.out
    shutil.rmtree(volumes[1])
    problems = json.loads(trio(*ALL_IS_WELL, "--json").out)["problems"]
    assert [(problem["subject"], problem["kind"], problem["command"]) for problem in problems] == [
        ("volume disk-2", "volume", "jstream repair"),
        ("volume disk-1", "copies_damaged", "jstream repair ORDERS"),
    ]
    shutil.rmtree(volumes[2])
    outcome = trio(*ALL_IS_WELL)
    assert outcome.code == 2
    assert lines(outcome.out)[:2] == [("CRITICAL", "stream ORDERS"), ("CRITICAL", "store")]  # a block is bad on disk-1
    assert "1 of 3 volumes can vote, 2 are needed; bring a volume back" in outcome.out
    assert "run `jstream repair" not in outcome.out
    assert trio("repair").code == 1 and "run `jstream repair`" not in outcome.out
    for words in ("stream", "ls"), ("verify",):
        said = trio(*words).err
        assert "`jstream repair --adopt` says what the others can do alone" in said and "from good ones" not in said
    shutil.rmtree(volumes[0])
    outcome = trio(*ALL_IS_WELL)
    assert (outcome.code, lines(outcome.out)) == (2, [("CRITICAL", "store")])


def drop_block(volumes: list[Path], block: Path) -> None:
    for volume in volumes:
        (volume / block.relative_to(block.parents[2])).unlink()


def test_lost_messages_are_critical_and_on_top_until_somebody_has_dealt_with_them(
    trio, replicated, volumes: list[Path], blocks_on
) -> None:
    replicated.stream("ORDERS").add_consumer({"name": "goes-on"})
    replicated.stream("ORDERS").add_consumer({"name": "strict", "on_data_loss": "fail"})
    drop_block(volumes, blocks_on(volumes[0])[1])
    outcome = trio(*ALL_IS_WELL)
    assert (outcome.code, lines(outcome.out)) == (2, [("CRITICAL", "stream ORDERS")])
    assert "has 1 message (2) on no volume at hand; " in outcome.out
    assert trio("repair").code == 1
    outcome = trio(*ALL_IS_WELL)
    subjects = [("CRITICAL", "stream ORDERS"), ("CRITICAL", "consumer strict of stream ORDERS")]
    assert (outcome.code, lines(outcome.out)) == (2, subjects), "the other consumer goes on by itself"
    assert "has 1 message (2) lost for good" in outcome.out
    assert trio("consumer", "reset", "ORDERS", "strict", "--execute").code == 0
    assert trio(*ALL_IS_WELL).code == 2
    assert trio(*ALL_IS_WELL, "--losses-since", "2200-01-01").out == "OK: 3 volumes, 1 stream\n"
    assert trio(*ALL_IS_WELL, "--losses-since", "1h").code == 2
    replicated.stream("ORDERS").consumer("strict").delete()
    replicated.stream("ORDERS").purge(end=3)
    assert trio(*ALL_IS_WELL).code == 0


def test_messages_that_a_volume_may_bring_back_are_one_fault_and_repair_is_not_its_advice(
    trio, replicated, volumes: list[Path], blocks_on
) -> None:
    drop_block([volumes[0], volumes[2]], blocks_on(volumes[0])[1])
    away = volumes[1].rename(volumes[1].with_name("away"))
    for command in ALL_IS_WELL, ("cluster", "info"):
        outcome = trio(*command)
        said = (outcome.out if command == ALL_IS_WELL else outcome.err).splitlines()
        assert len(said) == 2, said
        assert f"1 message (2) on no volume at hand: they may be on {volumes[1]} (the volume is missing)" in said[0]
        assert "bring that back first" in said[0]
        assert "disk-2" in said[1] and "is missing" in said[1] and "bring it back first" in said[1]
        assert "jstream repair" not in outcome.out + outcome.err
    assert trio(*ALL_IS_WELL).code == 2
    away.rename(volumes[1])
    assert lines(trio(*ALL_IS_WELL).out) == [("WARNING", "volume disk-1"), ("WARNING", "volume disk-3")]


def test_a_bad_disk_is_one_line_however_many_streams_have_blocks_on_it(
    trio, replicated, volumes: list[Path], blocks_on
) -> None:
    replicated.add_stream({"name": "LOGS"}).publish("LOGS", b"line")
    for block in (volumes[2] / "streams").glob("*/*.blk"):
        block.unlink()
    outcome = trio(*ALL_IS_WELL)
    assert lines(outcome.out) == [("WARNING", "volume disk-3")]
    assert "has 5 blocks of streams LOGS, ORDERS damaged or missing" in outcome.out


def test_an_archive_command_that_fails_is_told_until_it_succeeds(jstream, orders: Store) -> None:
    event = Event("archive_failed", "ORDERS", reason="block 12: /bin/ship ended with code 3", count=1)
    for _ in range(3):
        with orders.session() as session:
            session.propose(RecordEvents((event,)))
    outcome = jstream(*ALL_IS_WELL)
    assert (outcome.code, lines(outcome.out)) == (1, [("WARNING", "stream ORDERS")])
    assert "has an archive_command that fails 3 times, since 2" in outcome.out
    with orders.session() as session:
        session.propose(RecordEvents((Event("archived", "ORDERS"),)))
    assert jstream(*ALL_IS_WELL).code == 0


def test_pipelines_that_failed_or_are_overdue_are_told(jstream, orders: Store, tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(
        """
checkpoint = "state/orders"
[source]
stream = "ORDERS"
[payload]
format = "bytes"
[sink]
kind = "parquet"
path = "out"
"""
    )

    def check(*options: str) -> tuple[int, str]:
        outcome = jstream(*ALL_IS_WELL, "--pipeline", file, *options)
        return outcome.code, outcome.out

    assert check() == (
        1,
        f"WARNING: pipeline orders: has never run; 4 messages wait; run `jstream etl status {file}`\n",
    )
    state = PipelineState(str(tmp_path / "state/orders"))
    for is_ok in (False, True):
        summary = Summary("orders", "available-now")
        summary.started = "2026-01-01T00:00:00.000000Z"
        summary.finish(ok=is_ok, error="" if is_ok else "the sink is full")
        summary.duration_s = 5.0
        state.add_run(summary.to_json())
        code, said = check()
        assert code == 1
        if is_ok:
            assert re.search(r"pipeline orders: has not run for \d+ d(?: \d+ h)?; 4 messages wait", said)
        else:
            assert "failed in its last run, 2026-01-01T00:00:00.000000Z; 4 messages wait: the sink is full" in said
    assert check("--pipeline-age", "50000d") == (0, "OK: 1 volume, 1 stream\n")
    assert check("--pipeline-age", "1d,2d")[0] == 2
    file.write_text("[source")
    assert check()[1].startswith("WARNING: pipeline orders: cannot be read: ")


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
    stream = orders.add_stream({"name": "OLD"})
    sent = datetime.now(timezone.utc) - timedelta(hours=25, minutes=1)
    stream.append([{"subject": "OLD", "data": b"", "timestamp": sent}])
    stream.add_consumer({"name": "late"})
    said = jstream(*ALL_IS_WELL, "--lag-age", "1d").out
    assert "consumer late of stream OLD: has a message waiting for 1 d 1 h; " in said


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
