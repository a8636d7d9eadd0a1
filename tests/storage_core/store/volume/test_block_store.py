"""The blocks of a volume: what a store of blocks does, whatever it is made of; run with every implementation."""

import re
from pathlib import Path

import pytest
from harness.simulated_disk import NOTHING_KEPT, SimulatedDisk

from storage_core.files import OS_FILES, Files
from storage_core.store.volume.block_store import BlockStore, block_id_of
from storage_core.store.volume.identity import STREAMS

ORDERS, CLICKS = b"orders' lifetime", b"clicks' lifetime"
FIRST, SECOND = b"the first block.", b"the second block"


@pytest.fixture(params=["files", "simulated disk"])
def files(request: pytest.FixtureRequest) -> Files:
    return OS_FILES if request.param == "files" else SimulatedDisk().process()


@pytest.fixture
def blocks(files: Files, tmp_path: Path) -> BlockStore:
    volume = tmp_path if files is OS_FILES else Path("/disk")
    files.make_directory(volume / STREAMS)
    return BlockStore(files, volume)


def put(blocks: BlockStore, files: Files, incarnation: bytes, block_id: bytes, content: bytes = b"content") -> None:
    file = files.create(blocks.path(incarnation, block_id))
    file.write_at(0, content)
    file.close()


def test_blocks_are_found_under_the_incarnation_that_they_were_written_as(blocks: BlockStore, files: Files) -> None:
    blocks.prepare([ORDERS, CLICKS])
    put(blocks, files, ORDERS, FIRST)
    put(blocks, files, ORDERS, SECOND)
    assert sorted(blocks.incarnations()) == sorted([ORDERS, CLICKS])
    assert sorted(blocks.ids(ORDERS)) == sorted([FIRST, SECOND])
    assert blocks.ids(CLICKS) == []
    with pytest.raises(FileNotFoundError):
        blocks.open(CLICKS, FIRST)
    file = blocks.open(ORDERS, FIRST)
    assert file.read_at(3, 4) == b"tent"
    file.close()


def test_preparing_again_keeps_what_is_there(blocks: BlockStore, files: Files) -> None:
    blocks.prepare([ORDERS])
    put(blocks, files, ORDERS, FIRST)
    blocks.prepare([ORDERS, CLICKS])
    assert blocks.ids(ORDERS) == [FIRST]


def test_where_nothing_was_prepared_there_are_no_blocks(blocks: BlockStore) -> None:
    assert (blocks.incarnations(), blocks.ids(ORDERS), blocks.strangers(ORDERS)) == ([], [], [])
    with pytest.raises(FileNotFoundError):
        blocks.delete(ORDERS, FIRST)


def test_a_block_that_was_deleted_is_gone_and_the_others_stay(blocks: BlockStore, files: Files) -> None:
    blocks.prepare([ORDERS])
    put(blocks, files, ORDERS, FIRST)
    put(blocks, files, ORDERS, SECOND)
    blocks.delete(ORDERS, FIRST)
    blocks.sync(ORDERS)
    assert blocks.ids(ORDERS) == [SECOND]


def test_an_incarnation_goes_with_its_blocks_and_not_with_what_is_somebody_elses(
    blocks: BlockStore, files: Files
) -> None:
    blocks.prepare([ORDERS, CLICKS])
    put(blocks, files, ORDERS, FIRST)
    put(blocks, files, CLICKS, SECOND)
    files.create(blocks.directory(CLICKS) / "notes.txt").close()
    assert blocks.strangers(CLICKS) == ["notes.txt"]
    blocks.remove(ORDERS)
    with pytest.raises(OSError, match=re.compile("not empty", re.IGNORECASE)):
        blocks.remove(CLICKS)
    blocks.sync_removals()
    assert blocks.incarnations() == [CLICKS]
    assert files.list_directory(blocks.directory(CLICKS)) == ["notes.txt"]


def test_what_was_prepared_survives_a_power_loss() -> None:
    disk = SimulatedDisk()
    files, volume = disk.process(), Path("/disk")
    files.make_directory(volume / STREAMS)
    files.sync_directory(volume)
    BlockStore(files, volume).prepare([ORDERS])
    disk.lose_power(NOTHING_KEPT)
    assert BlockStore(disk.process(), volume).incarnations() == [ORDERS]


@pytest.mark.parametrize(
    "name", ["", ".blk", "00.blk", "0" * 31 + "g.blk", "A" * 32 + ".blk", "0" * 32, " " * 32 + ".blk"]
)
def test_only_the_name_of_a_block_is_one(name: str) -> None:
    assert block_id_of(name) is None
    assert block_id_of(FIRST.hex() + ".blk") == FIRST
