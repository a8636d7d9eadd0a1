"""What `verify` finds in the metadata's own files, beyond what a reader of them meets."""

import fcntl
import shutil
from pathlib import Path

import pytest

from storage_core import Store


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Return a volume with two snapshots and a log behind them."""
    path = tmp_path / "volume"
    store = Store.create(path, snapshot_every=8)
    stream = store.add_stream({"name": "S"})
    for number in range(20):
        stream.publish("S", b"%d" % number)
    assert len(snapshots(path)) == 2
    return path


def snapshots(volume: Path) -> list[Path]:
    return sorted((volume / "meta").glob("*.snap"))


def damage(volume: Path) -> list[tuple[str, str]]:
    report = Store.open(volume, read_only=True).verify()
    assert report["ok"] == (not report["damage"])
    return [(one["file"], one["reason"]) for one in report["damage"]]


@pytest.mark.parametrize("which", [0, 1], ids=["older", "newer"])
def test_a_damaged_snapshot_is_found_also_where_another_one_stands_in(volume: Path, which: int) -> None:
    """Found too late, when the other one is damaged, too, it would cost the whole store."""
    path = snapshots(volume)[which]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert [file for file, _ in damage(volume)] == [str(path)]
    assert Store.open(volume).stream("S").last_sequence == 20


def test_a_snapshot_whose_writer_was_killed_is_no_damage(volume: Path) -> None:
    """The log goes on without it. Once a segment goes on from one, it counts, and is damage if it is not whole."""
    *_, newest = snapshots(volume)
    half = newest.read_bytes()[:2048]
    later = int(newest.stem, 16) + 3
    (volume / "meta" / f"{later:016x}.snap").write_bytes(half)
    assert damage(volume) == []
    with Store.open(volume) as store:
        for _ in range(24):
            store.stream("S").publish("S", b"more")
    assert snapshots(volume)[-1].stem > f"{later:016x}" and damage(volume) == []
    snapshots(volume)[-1].write_bytes(half)
    assert [file for file, _ in damage(volume)] == [str(snapshots(volume)[-1])]


def test_metadata_that_is_older_than_its_volume_is_found(volume: Path, tmp_path: Path) -> None:
    """Whole in itself, it shows a shorter stream; only the journal of placements knows better."""
    shutil.copytree(volume / "meta", tmp_path / "older")
    for _ in range(3):
        Store.open(volume).stream("S").publish("S", b"more")
    assert damage(volume) == []
    shutil.rmtree(volume / "meta")
    shutil.copytree(tmp_path / "older", volume / "meta")
    [(file, reason)] = damage(volume)
    assert file == str(volume / "meta")
    assert reason.startswith("the metadata was rolled back: it ends at entry ")


def test_a_copy_of_a_whole_volume_was_not_rolled_back(volume: Path, tmp_path: Path) -> None:
    shutil.copytree(volume, tmp_path / "copy")
    Store.open(volume).stream("S").publish("S", b"more")
    assert damage(tmp_path / "copy") == []


def test_a_journal_that_is_gone_or_says_nothing_is_no_damage(volume: Path) -> None:
    (volume / "placements.journal").write_bytes(b"\x80nothing" * 100)
    assert damage(volume) == []
    (volume / "placements.journal").unlink()
    assert damage(volume) == []


def test_verification_answers_while_another_process_keeps_the_lock(volume: Path) -> None:
    """It reads without the lock, and what it notes in a cache is not worth waiting for; a test is never patient."""
    with (volume / "lock").open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with Store.open(volume, lock_timeout_s=10**6) as store:
            assert store.verify()["ok"]
