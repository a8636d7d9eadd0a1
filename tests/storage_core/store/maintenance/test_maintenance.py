"""Maintenance after an ack: the journal of placements ends up complete, whatever became of parts of it."""

from pathlib import Path

import pytest

from storage_core.files import OS_FILES
from storage_core.metadata.manifest import BLOCK_DTYPE
from storage_core.store.store import Store
from storage_core.store.volume.placement_journal import PlacementJournal


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


def test_a_journal_is_as_large_as_what_is_on_disk(volume: Path) -> None:
    """Every block is removed soon, and unlinked soon after that: what the journal says of it goes as well."""
    store = Store.create(volume, snapshot_every=8, deleted_block_retention="0s")
    stream = store.add_stream({"name": "S"})
    largest = 0
    for _ in range(200):
        stream.publish("S", b"x")
        stream.purge(keep=3)
        largest = max(largest, (volume / "placements.journal").stat().st_size)
    assert len(stream.state().blocks) == 3
    assert largest < 40 * (BLOCK_DTYPE.itemsize + 100)
    assert {1, 2, 3} & set(journaled(volume)) == set()
    live = {int(first) for first in stream.state().blocks.rows["first"]}
    assert live <= set(journaled(volume))


def test_blocks_that_wait_to_be_unlinked_stay_in_the_journal(volume: Path) -> None:
    """Their files are there still, and an adoption may need them in the place of a lost one that was made of them."""
    store = Store.create(volume, snapshot_every=4)
    stream = store.add_stream({"name": "S"})
    for _ in range(6):
        stream.publish("S", b"x")
    stream.purge(end=4)
    store.compact()
    for _ in range(8):
        stream.publish("S", b"x")
    assert set(range(1, 15)) <= set(journaled(volume))


def test_graves_of_which_the_journal_knows_nothing_are_left_out(volume: Path) -> None:
    store = Store.create(volume, snapshot_every=4)
    store.add_stream({"name": "S"})
    store.add_stream({"name": "GONE"})
    store.delete_stream("GONE")
    publish(volume, b"x")
    for _ in range(8):
        store.stream("S").publish("S", b"x")
    beginning = PlacementJournal(OS_FILES, volume).beginning()
    assert beginning is not None and beginning.index > 4
    assert sorted(set(journaled(volume))) == list(range(1, 10))


def test_a_process_that_begins_reads_no_more_than_what_came_since_the_snapshot(volume: Path) -> None:
    store = Store.create(volume, snapshot_every=16)
    stream = store.add_stream({"name": "S"})
    for _ in range(100):
        stream.publish("S", b"x")
    journal = PlacementJournal(OS_FILES, volume)
    beginning = journal.beginning()
    assert beginning is not None
    assert store.view().index - beginning.index <= 2 * 16
    assert sum(len(one.rows) for one in journal.read(beginning.end)) <= 2 * 16
    size = journal.path.stat().st_size
    publish(volume, b"x")
    assert journal.path.stat().st_size - size <= 2 * BLOCK_DTYPE.itemsize
    assert {int(first) for first in store.stream("S").state().blocks.rows["first"]} <= set(journaled(volume))


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
