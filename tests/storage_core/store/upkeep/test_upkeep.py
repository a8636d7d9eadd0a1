"""Upkeep after an ack: the journal of placements ends up complete, whatever became of parts of it."""

from pathlib import Path

import pytest

from storage_core.files import OS_FILES
from storage_core.store.store import Store
from storage_core.store.volume.placements import PlacementJournal


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    return tmp_path / "volume"


def publish(volume: Path, message: bytes) -> None:
    """Append one message, as a process of its own."""
    Store.open(volume).stream("S").publish("S", message)


def journaled(volume: Path) -> list[int]:
    """Return the first sequence of each block that the journal knows, in file order."""
    return [int(row["first"]) for one in PlacementJournal(OS_FILES, volume).read() for row in one.rows]


def test_processes_in_turn_write_each_block_once(volume: Path) -> None:
    Store.create(volume).add_stream({"name": "S"})
    for _ in range(4):
        publish(volume, b"x")
    assert journaled(volume) == [1, 2, 3, 4]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_record_that_is_torn_is_written_again_wherever_it_stood(volume: Path, lost: int) -> None:
    """Un-fsynced records may reach the disk in any order: a whole one behind it does not vouch for a torn one."""
    Store.create(volume).add_stream({"name": "S"})
    for _ in range(3):
        publish(volume, b"x")
    journal = volume / "placements.journal"
    content = journal.read_bytes()
    at = [found for found in range(len(content)) if content.startswith(b"PLCE", found)][lost]
    journal.write_bytes(content[: at + 40] + bytes(8) + content[at + 48 :])
    assert lost + 1 not in journaled(volume)

    publish(volume, b"x")

    assert sorted(journaled(volume)) == [1, 2, 3, 4]


def test_a_journal_that_is_gone_is_begun_anew(volume: Path) -> None:
    Store.create(volume).add_stream({"name": "S"})
    publish(volume, b"x")
    (volume / "placements.journal").unlink()
    publish(volume, b"x")
    assert journaled(volume) == [1, 2]
