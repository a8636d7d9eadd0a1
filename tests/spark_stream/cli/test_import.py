"""`jstream import nats|stan`: what is printed, exit codes, killed and run again, and what is refused."""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from harness.channels import write_channel

from storage_core import Store
from storage_core.foreign import ForeignStore, open_foreign, read_foreign_slice

DATA = Path(__file__).resolve().parents[2] / "data"
NATS, STAN = DATA / "nats", DATA / "stan"
COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")
KEY = "fixture-key-not-secret"
CONTINUE = ("--on-data-loss", "continue")


def test_streams_come_with_their_consumers_and_a_report_that_adds_up(trio) -> None:
    outcome = trio("import", "nats", NATS / "consumers" / "store")
    heading, row = outcome.out.splitlines()
    assert re.split("  +", heading.strip()) == [
        "name", "read", "messages", "message bytes", "holes", "lost", "open", "first", "last", "consumers",
        "replicas",
    ]  # fmt: skip
    assert row.split() == ["CONS", "60", "60", "3.9", "KiB", "0", "0", "0", "1", "60", "6", "3"]
    assert outcome.err == "imported 60 messages of 1 stream, 0 holes, 0 lost, 6 consumers; no damage is left\n"
    again = trio("import", "nats", NATS / "consumers" / "store")
    assert (again.code, again.out) == (0, outcome.out)
    assert again.err.startswith("stream CONS was imported before: nothing was stored now\n")
    info = json.loads(trio.done("consumer", "info", "CONS", "exact", "--json"))
    assert (info["delivered"]["stream_seq"], info["ack_floor"]["stream_seq"], info["num_ack_pending"]) == (13, 4, 6)


def test_damage_is_listed_and_makes_the_exit_code_one(jstream) -> None:
    outcome = jstream("import", "nats", NATS / "damaged-bitflip-index-kept" / "store", *CONTINUE, "--json")
    assert outcome.code == 1
    report = json.loads(outcome.out)
    (stream,), (damage,) = report["streams"], report["damage"]
    assert (stream["read"], stream["messages"], stream["lost"], stream["lost_ranges"]) == (124, 124, 1, [[48, 49]])
    assert (damage["first"], damage["end"], damage["left"]) == (48, 49, True)
    assert "checksum mismatch" in damage["reason"]
    table = jstream("import", "nats", NATS / "damaged-index-ahead" / "store", *CONTINUE)
    assert table.code == 1
    assert "the file is gone" in table.out
    assert "damage is left in 1 place" in table.err
    assert "is not carried over" not in table.err
    (name,) = json.loads(jstream.done("stream", "ls", "--json"))[-1:]
    assert json.loads(jstream.done("stream", "info", name, "--json"))["config"]["max_bytes"] == 100_000


def test_what_a_store_has_lost_of_streams_and_consumers_fails_an_import_of_the_rest(jstream, tmp_path: Path) -> None:
    shutil.copytree(NATS / "consumers" / "store", tmp_path / "store")
    (streams,) = (tmp_path / "store").rglob("streams")
    (streams / "LOST").mkdir()
    shutil.rmtree(streams / "CONS" / "obs")
    (streams / "CONS" / "obs").write_bytes(b"")
    outcome = jstream("import", "nats", tmp_path / "store")
    assert outcome.code == 1
    assert "which consumers there are is unknown: not a directory" in outcome.out
    assert "stream LOST was not imported: " in outcome.err
    assert outcome.err.endswith("0 consumers, 1 stream not imported; damage is left in 1 place\n")


def test_the_json_of_a_report_is_as_written_down(jstream) -> None:
    jstream.places[DATA] = "<data>"
    source = NATS / "damaged-bitflip-index-kept" / "store"
    found = jstream.normalised(jstream("import", "nats", source, *CONTINUE, "--json").out)
    if os.environ.get("JSTREAM_WRITE_GOLDEN"):
        (DATA / "cli" / "import.json").write_text(found)
    assert found == (DATA / "cli" / "import.json").read_text()


def test_a_channel_stops_at_the_first_bad_record_and_shows_it(jstream) -> None:
    source = STAN / "damaged-truncated-msgs" / "store"
    outcome = jstream("import", "stan", source)
    assert outcome.code == 1
    lines = outcome.err.splitlines()
    assert "the message with sequence 70 is lost" in lines[0]
    assert lines[1].startswith("  head     5b 00 00 00")
    assert any("it would have been message 70 on 'foo'" in line for line in lines)
    assert any("--truncate-bad-eof" in line for line in lines)
    assert lines[-1].startswith("error: [JSTREAM_DATA_LOSS] stopped at the first damage")
    assert json.loads(jstream.done("stream", "ls", "--json")) == []
    past = jstream("import", "stan", source, "--truncate-bad-eof", "--json")
    assert past.code == 1
    assert json.loads(jstream.done("stream", "ls", "--json")) == ["bar_2Ebaz", "foo", "leer"]
    again = jstream("import", "stan", source, "--truncate-bad-eof")
    assert (again.code, again.err.splitlines()[-1].rpartition("; ")[2]) == (1, "what was lost before stays lost")
    refused = jstream("import", "stan", source, "--truncate-bad-eof", "--stream", "foo", "--as", "other")
    assert refused.code == 1
    assert "refused twice in a row" in refused.err


def test_an_import_continues_past_what_no_option_reads(jstream, tmp_path: Path) -> None:
    shutil.copytree(STAN / "basic" / "store", tmp_path / "store")
    (tmp_path / "store" / "foo" / "msgs.2.dat").unlink()
    assert jstream("import", "stan", tmp_path / "store").code == 1
    outcome = jstream("import", "stan", tmp_path / "store", *CONTINUE, "--json")
    assert outcome.code == 1
    (foo,) = (one for one in json.loads(outcome.out)["streams"] if one["name"] == "foo")
    assert foo["last_seq"] == 70
    assert foo["messages"] + foo["lost"] == 70
    assert foo["lost"] > 0


@pytest.mark.parametrize("name", ["damaged-bitflip-index-kept", "damaged-bitflip-no-index", "damaged-index-ahead"])
def test_lost_messages_of_jetstream_stop_an_import_as_a_strict_read(jstream, name: str) -> None:
    """The second one lost a record whose number no index vouches for."""
    outcome = jstream("import", "nats", NATS / name / "store")
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1] == (
        "error: [JSTREAM_DATA_LOSS] stopped at the first damage: nothing of that stream was imported; "
        "--on-data-loss continue reads past everything that cannot be read"
    )
    assert json.loads(jstream.done("stream", "ls", "--json")) == []
    assert jstream("import", "nats", NATS / name / "store", *CONTINUE).code == 1
    assert len(json.loads(jstream.done("stream", "ls", "--json"))) == 1


def test_numbers_that_begin_again_stop_an_import_and_one_run_is_imported_past_them(jstream) -> None:
    source = DATA / "stan-field" / "numbers-restart" / "store"
    outcome = jstream("import", "stan", source)
    assert outcome.code == 1
    assert "24 records with sequences 1 to 24 and other content" in outcome.err
    outcome = jstream("import", "stan", source, *CONTINUE, "--json")
    assert outcome.code == 1
    report = json.loads(outcome.out)
    (logs,) = report["streams"]
    assert (logs["messages"], logs["lost"], logs["last_seq"]) == (61, 0, 61)
    assert ["other content" in row["reason"] for row in report["damage"] if row["left"]] == [True]
    with Store.open(jstream.volume) as store:
        rows = store.stream("logs").read(columns=("data",)).read_all().to_pylist()
    assert [row["data"] for row in rows] == [b"second run %d" % number for number in range(1, 62)]


def test_an_empty_subs_dat_is_in_the_report(jstream) -> None:
    outcome = jstream("import", "stan", DATA / "stan-field" / "subs-empty" / "store", "--json")
    assert outcome.code == 1
    (row,) = json.loads(outcome.out)["damage"]
    assert row["left"] and "the subscriptions of the channel are gone" in row["reason"]


def test_replicas_are_imported_as_one_and_what_another_copy_has_is_no_damage_that_is_left(trio, tmp_path) -> None:
    shutil.copytree(NATS / "r3-clean" / "store", tmp_path / "nodes")
    nodes = sorted((tmp_path / "nodes").iterdir())
    (name,) = open_foreign(nodes[0]).streams()
    block = next(nodes[1].rglob("*.blk"))
    block.write_bytes(block.read_bytes()[:-40])
    outcome = trio("import", "nats", *nodes, "--json")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert report["damage"]
    assert not any(row["left"] for row in report["damage"])
    with Store.open(trio.volume) as store:
        found = store.stream(name).read(columns=COLUMNS).read_all().to_pylist()
    assert found == rows_of(open_foreign(nodes[0]), name)


def test_damage_is_listed_node_by_node_and_once(trio, tmp_path: Path) -> None:
    shutil.copytree(NATS / "r3-clean" / "store", tmp_path / "nodes")
    nodes = sorted((tmp_path / "nodes").iterdir())
    next(nodes[1].rglob("*.blk")).unlink()
    next(nodes[0].rglob("*.blk")).write_bytes(b"")
    files = [line for line in trio.done("import", "nats", *nodes).splitlines() if line.startswith("damage in ")]
    assert [nodes.index(next(node for node in nodes if str(node) in line)) for line in files] == [0, 1]
    assert all(line.endswith(".blk") for line in files)


def test_names_of_other_servers_are_mapped_and_told(jstream) -> None:
    outcome = jstream("import", "stan", STAN / "basic" / "store", "--stream", "bar.baz")
    assert outcome.code == 0
    assert "stream bar.baz is called bar_2Ebaz here\n" in outcome.err
    jstream.done("import", "stan", STAN / "basic" / "store", "--stream", "bar.baz", "--as", "BARBAZ")
    config = json.loads(jstream.done("stream", "info", "BARBAZ", "--json"))["config"]
    assert (config["subjects"], config["metadata"]["jstream.name"]) == (["bar.baz"], "bar.baz")


def test_the_key_comes_from_a_file_or_the_environment_and_is_never_shown(
    jstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = NATS / "encrypted" / "store"
    outcome = jstream("import", "nats", source)
    assert outcome.code == 1
    assert "is encrypted" in outcome.err
    assert "--encryption-key" in outcome.err
    (tmp_path / "key").write_text(KEY + "\n")
    outcome = jstream("import", "nats", source, "--encryption-key", tmp_path / "key")
    assert outcome.code == 0
    assert KEY not in outcome.out + outcome.err
    monkeypatch.setenv("JSTREAM_ENCRYPTION_KEY", KEY)
    assert jstream("import", "nats", source).code == 0
    assert KEY not in jstream.done("events", "--json")
    (tmp_path / "key").write_bytes(b"")
    assert jstream("import", "nats", source, "--encryption-key", tmp_path / "key").code == 2


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["nats", "{empty}"], 1, "is no JetStream store"),
        (["stan", "{empty}"], 1, "is no store of NATS Streaming"),
        (["nats", "{empty}/nothing"], 1, "does not exist"),
        (["nats", "nats://127.0.0.1:4222"], 1, "nats://127.0.0.1:4222 is an address; jstream reads the files of a"),
        (["nats", "{block}"], 1, "is a file; give the directory of its stream or store"),
        (["nats", "{store}", "--stream", "CONZ"], 1, "did you mean 'CONS'"),
        (["nats", "{store}", "--as", "X"], 2, "--as: 1 name for 0 streams"),
        (["nats", "{store}", "--stream", "CONS", "--stream", "CONS"], 2, "CONS is given twice"),
        (["nats", "{store}", "--stream", "CONS", "--as", "a/b"], 2, "'a/b' is not 1 to 128"),
        (["nats", "{store}", "--replicas", "3"], 2, "3 need as many volumes; the store has 1"),
        (["nats", "{store}", "--stream", "CONS", "--as", "orders"], 1, "stream 'ORDERS' exists"),
        (["nats", "{store}", "--account", "ACME"], 1, "account 'ACME' has no streams"),
        (["nats", "{store}", "--truncate-bad-eof"], 2, "no such option"),
    ],
)
def test_what_cannot_be_imported_is_said_in_one_line(
    jstream, orders: Store, tmp_path: Path, words: list[str], code: int, reason: str
) -> None:
    (tmp_path / "empty").mkdir()
    block = shutil.copy(next((NATS / "consumers").rglob("*.blk")), tmp_path / "1.blk")
    places = {"empty": tmp_path / "empty", "block": block, "store": NATS / "consumers" / "store"}
    outcome = jstream("import", *(word.format(**places) for word in words))
    assert (outcome.code, len(outcome.err.splitlines())) == (code, 1), outcome
    assert reason in outcome.err
    assert orders.streams() == ["ORDERS"]


def test_an_import_that_was_killed_is_gone_on_with(trio, replicated: Store, tmp_path: Path) -> None:
    """SIGKILL when the first directories are there, then when some parts are; then to the end."""
    source = tmp_path / "store"
    copy_many(source)
    for part_count in (1, 12):
        with trio.start("import", "stan", source, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and len(list(trio.volume.rglob("0*.part"))) < part_count:
                pass
            process.kill()
        assert process.returncode == -signal.SIGKILL
        assert replicated.streams() == ["ORDERS"]
    written = len(list(trio.volume.rglob("0*.part")))
    assert written >= 12
    outcome = trio("import", "stan", source)
    assert outcome.code == 0
    assert len(replicated.streams()) == 41
    check_all(replicated, source)
    assert replicated.verify()["ok"]
    assert list(trio.volume.rglob("*.part")) == []


def copy_many(target: Path, count: int = 40) -> None:
    """Lay out a store with many channels."""
    origin = STAN / "basic" / "store"
    target.mkdir()
    for name in ("server.dat", "clients.dat"):
        shutil.copy(origin / name, target)
    for number in range(count):
        write_channel(target / f"channel-{number}")


def rows_of(source: ForeignStore, name: str) -> list[dict[str, Any]]:
    """Return what the reader reads of a stream."""
    return [
        row
        for part in source.plan(name)
        for batch in read_foreign_slice(part, COLUMNS, lambda _: None)
        for row in batch.to_pylist()
    ]


def check_all(store: Store, place: Path) -> None:
    source = open_foreign(place, "stan")
    for name in source.streams():
        assert store.stream(name).read(columns=COLUMNS).read_all().to_pylist() == rows_of(source, name)
