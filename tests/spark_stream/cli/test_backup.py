"""`jstream backup` and `restore`: a store to a directory and back, streams one by one, and what is refused."""

import json
import os
import re
from pathlib import Path

import pytest

from storage_core import Store
from storage_core.store.ingest.backup import backup

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "cli"


@pytest.fixture
def saved(orders: Store, tmp_path: Path) -> Path:
    """A backup of the store with ORDERS, and NOTES without messages."""
    orders.add_stream({"name": "NOTES"})
    backup(orders, tmp_path / "saved")
    return tmp_path / "saved"


def data_of(volumes: str, jstream, stream: str = "ORDERS") -> list[tuple[int, str]]:
    lines = jstream.done("--store", volumes, "stream", "view", stream, "--json").splitlines()
    return [(one["seq"], one["data"]) for one in map(json.loads, lines)]


def test_a_store_goes_to_a_directory_and_onto_three_volumes(jstream, orders, volume: Path, tmp_path: Path) -> None:
    outcome = jstream("backup", tmp_path / "saved")
    heading, row = outcome.out.splitlines()
    columns = ["name", "messages", "message bytes", "first", "last", "blocks", "replicas"]
    assert re.split("  +", heading.strip()) == columns
    assert row.split() == ["ORDERS", "4", "93", "B", "1", "6", "4", "1"]
    assert outcome.err.startswith(f"backed up to {tmp_path / 'saved'}, as of entry ")
    assert outcome.err.endswith("of the metadata log: 4 blocks, 4 copied now\n")
    new = [tmp_path / f"new-{number}" for number in range(3)]
    restored = jstream("restore", tmp_path / "saved", *new, "--force", with_store=False)
    assert (restored.code, restored.out) == (0, outcome.out)
    assert restored.err.startswith(f"restored from {tmp_path / 'saved'}, made at 2")
    assert data_of(str(new[1]), jstream) == data_of(str(volume), jstream)
    assert Store.open(new[0]).id == orders.id


def test_volumes_may_be_given_with_commas_and_relative(jstream, saved, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert jstream("restore", "saved", "a,b,c", "--force").code == 0
    assert {one.name for one in tmp_path.iterdir()} >= {"a", "b", "c"}


def test_fewer_volumes_than_replicas_are_told(jstream, tmp_path: Path) -> None:
    disks = [tmp_path / f"disk-{number}" for number in range(3)]
    with Store.create(disks) as store:
        store.add_stream({"name": "S"}).publish("S", b"x")
        backup(store, tmp_path / "saved")
    outcome = jstream("restore", tmp_path / "saved", tmp_path / "one", "--force")
    assert outcome.err.splitlines()[0] == "stream S has 1 of the 3 replicas it had: the store has no more volumes"


def test_a_stream_comes_back_into_its_store_or_beside_itself(jstream, orders, saved, volume: Path) -> None:
    before = data_of(str(volume), jstream)
    exists = jstream("restore", saved, "--stream", "ORDERS", "--force")
    assert exists.code == 1
    assert "stream 'ORDERS' exists: choose another name (--as), or delete this one first" in exists.err
    jstream.done(
        "restore", saved, "--stream", "ORDERS", "--as", "COPY", "--stream", "NOTES", "--as", "EMPTY", "--force"
    )
    assert data_of(str(volume), jstream, "COPY") == before
    jstream.done("stream", "rm", "ORDERS", "--force")
    jstream.done("restore", saved, "--stream", "ORDERS", "--store", volume, "--force")
    assert data_of(str(volume), jstream) == before
    assert json.loads(jstream.done("stream", "ls", "--json")) == ["COPY", "EMPTY", "NOTES", "ORDERS"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "restore onto what?"),
        (["new", "--stream", "ORDERS"], "name it by --store, and no VOLUME"),
        (["new", "--as", "COPY"], "--as, --store and --take-over are for --stream"),
        (["new", "--store", "other"], "--as, --store and --take-over are for --stream"),
        (["--stream", "ORDERS", "--stream", "NOTES", "--as", "COPY"], "--as: 1 name for 2 streams"),
        (["--stream", "ORDERS", "--stream", "ORDERS"], "--stream: ORDERS is given twice"),
        (["new"], "needs confirmation, and this is no terminal: pass --force"),
        (["--stream", "ORDERS"], "needs confirmation, and this is no terminal: pass --force"),
    ],
)
def test_words_that_make_no_sense_do_nothing(jstream, saved, tmp_path, monkeypatch, words, reason) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = jstream("restore", saved, *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert reason in outcome.err
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_done_is_one_line_and_exit_code_1(jstream, saved, volume: Path, tmp_path: Path) -> None:
    for words, reason in (
        (["backup", saved], "holds a backup already"),
        (["backup", volume / "inside"], "must not lie in the other"),
        (["backup", tmp_path / "other", "--stream", "ORDER"], "did you mean 'ORDERS'?"),
        (["restore", volume, tmp_path / "new", "--force"], "holds no backup: it is a volume of a store"),
        (["restore", saved, volume, "--force"], "holds a jstream store already"),
        (["restore", saved, "--stream", "ORDER", "--force"], "no stream 'ORDER' in the backup"),
    ):
        outcome = jstream(*words)
        assert outcome.code in (1, 2), outcome
        assert reason in outcome.err
        assert outcome.err.count("\n") == 1, outcome.err
    assert not (tmp_path / "new").exists()


def test_damage_of_the_backup_is_told_and_nothing_is_made(jstream, saved: Path, tmp_path: Path) -> None:
    path = next(saved.rglob("*.blk"))
    assert "all is well" in jstream("verify", "--backup", saved).err
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    outcome = jstream("restore", saved, tmp_path / "new", "--force")
    assert outcome.code == 1
    assert f"{path}: offset_bytes " in outcome.err
    assert not (tmp_path / "new").exists()
    verified = jstream("verify", "--backup", saved)
    assert verified.code == 1 and path.name in verified.out and "make another backup" in verified.err


def test_json_is_as_written_down(jstream, orders, tmp_path: Path) -> None:
    """JSTREAM_WRITE_GOLDEN=1 writes the files in tests/data/cli anew."""
    cases: dict[str, list[object]] = {
        "backup": ["backup", tmp_path / "saved", "--stream", "ORDERS"],
        "restore": ["restore", tmp_path / "saved", tmp_path / "new", "--force"],
        "restore-stream": ["restore", tmp_path / "saved", "--stream", "ORDERS", "--as", "COPY", "--force"],
    }
    for name, words in cases.items():
        found = jstream.normalised(jstream.done(*words, "--json").replace(str(tmp_path), "<tmp>"))
        path = GOLDEN / f"{name}.json"
        if os.environ.get("JSTREAM_WRITE_GOLDEN"):
            path.write_text(found)
        assert found == path.read_text(), name


def test_a_restore_that_was_interrupted_is_gone_on_with(jstream, saved: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    jstream.done("restore", saved, new, "--force")
    page = (new / "jstream.volume").read_bytes()
    (new / "jstream.restoring").write_bytes(page)
    outcome = jstream("restore", saved, new, "--force")
    assert (outcome.code, outcome.err.splitlines()[0]) == (0, "a restore that was interrupted has been finished")
    assert not (new / "jstream.restoring").exists()
