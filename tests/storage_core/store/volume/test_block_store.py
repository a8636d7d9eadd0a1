"""The blocks of a volume: what a store of blocks does, whatever it is made of; run with every implementation."""

import pickle
import re
from pathlib import Path

import pytest
from harness.simulated_disk import NOTHING_KEPT, SimulatedDisk

from storage_core.errors import CorruptionError
from storage_core.file_kinds import IMPORT_RECORD, FileKind
from storage_core.files import OS_FILES, Files
from storage_core.store.volume.block_store import BlockStore, VolumeHandle, block_id_of
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


def put(blocks: BlockStore, incarnation: bytes, block_id: bytes, content: bytes = b"content") -> None:
    file = blocks.create(incarnation, block_id)
    file.write_at(0, content)
    file.close()


def test_blocks_are_found_under_the_incarnation_that_they_were_written_as(blocks: BlockStore, files: Files) -> None:
    blocks.prepare([ORDERS, CLICKS])
    put(blocks, ORDERS, FIRST)
    put(blocks, ORDERS, SECOND)
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
    put(blocks, ORDERS, FIRST)
    blocks.prepare([ORDERS, CLICKS])
    assert blocks.ids(ORDERS) == [FIRST]


def test_where_nothing_was_prepared_there_are_no_blocks(blocks: BlockStore, files: Files) -> None:
    assert (blocks.incarnations(), blocks.ids(ORDERS), blocks.strangers(ORDERS)) == ([], [], [])
    with pytest.raises(FileNotFoundError):
        blocks.delete(ORDERS, FIRST)
    files.remove_directory(blocks.directory(ORDERS).parent)
    assert (blocks.incarnations(), blocks.ids(ORDERS)) == ([], [])


def test_a_block_that_was_deleted_is_gone_and_the_others_stay(blocks: BlockStore, files: Files) -> None:
    blocks.prepare([ORDERS])
    put(blocks, ORDERS, FIRST)
    put(blocks, ORDERS, SECOND)
    blocks.delete(ORDERS, FIRST)
    blocks.sync(ORDERS)
    assert blocks.ids(ORDERS) == [SECOND]


def test_an_incarnation_goes_with_its_blocks_and_not_with_what_is_somebody_elses(
    blocks: BlockStore, files: Files
) -> None:
    blocks.prepare([ORDERS, CLICKS])
    put(blocks, ORDERS, FIRST)
    put(blocks, CLICKS, SECOND)
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


def content(blocks: BlockStore, incarnation: bytes, block_id: bytes) -> bytes:
    file = blocks.open(incarnation, block_id, afresh=True)
    try:
        return file.read_at(0, 100)
    finally:
        file.close()


def test_a_block_is_made_once(blocks: BlockStore) -> None:
    blocks.prepare([ORDERS])
    put(blocks, ORDERS, FIRST)
    with pytest.raises(FileExistsError):
        blocks.create(ORDERS, FIRST)
    assert content(blocks, ORDERS, FIRST) == b"content"


def test_blocks_tell_their_sizes_alone_and_all_at_once(blocks: BlockStore) -> None:
    blocks.prepare([ORDERS])
    put(blocks, ORDERS, FIRST, b"1")
    put(blocks, ORDERS, SECOND, b"22")
    blocks.replacement(ORDERS, FIRST).create().close()
    assert blocks.sizes(ORDERS) == {FIRST: 1, SECOND: 2}
    assert blocks.size(ORDERS, SECOND) == 2
    for missing in (lambda: blocks.size(CLICKS, FIRST), lambda: blocks.sizes(CLICKS)):
        with pytest.raises(FileNotFoundError):
            missing()


def test_a_discarded_block_may_be_gone_already(blocks: BlockStore) -> None:
    blocks.prepare([ORDERS])
    put(blocks, ORDERS, FIRST)
    blocks.discard(ORDERS, FIRST)
    blocks.discard(ORDERS, FIRST)
    assert blocks.ids(ORDERS) == []


def test_a_replacement_takes_the_place_of_a_block_when_it_is_put(blocks: BlockStore) -> None:
    blocks.prepare([ORDERS])
    put(blocks, ORDERS, FIRST, b"bad")
    replacement = blocks.replacement(ORDERS, FIRST)
    for text in (b"half", b"whole"):  # what an attempt that was killed has left is in nobody's way
        file = replacement.create()
        file.write_at(0, text)
        file.close()
    assert replacement.open().read_at(0, 100) == b"whole"
    assert content(blocks, ORDERS, FIRST) == b"bad"
    assert blocks.ids(ORDERS) == [FIRST]
    replacement.put()
    blocks.sync(ORDERS)
    assert content(blocks, ORDERS, FIRST) == b"whole"
    assert blocks.strangers(ORDERS) == []


def test_a_replacement_makes_the_place_that_somebody_took_away(blocks: BlockStore) -> None:
    replacement = blocks.replacement(ORDERS, FIRST)
    replacement.create().close()
    replacement.put()
    assert blocks.ids(ORDERS) == [FIRST]


def test_replacements_that_were_left_are_swept_and_nothing_else_is(blocks: BlockStore, files: Files) -> None:
    blocks.prepare([ORDERS])
    put(blocks, ORDERS, FIRST)
    blocks.put_record(ORDERS, "import.part", b"a record")
    for block_id in (FIRST, SECOND):
        blocks.replacement(ORDERS, block_id).create().close()
    files.create(blocks.directory(ORDERS) / "notes.repair").close()
    assert blocks.sweep_replacements(ORDERS) == 2
    assert blocks.sweep_replacements(CLICKS) == 0
    assert blocks.ids(ORDERS) == [FIRST]
    assert sorted(blocks.strangers(ORDERS)) == ["import.part", "notes.repair"]


def test_records_lie_beside_blocks_and_are_replaced_whole(blocks: BlockStore) -> None:
    blocks.prepare([ORDERS])
    put(blocks, ORDERS, FIRST)
    for text in (b"a long record", b"short"):
        blocks.put_record(ORDERS, "import.part", text)
    assert blocks.records(ORDERS) == ["import.part"]
    assert blocks.read_record(ORDERS, "import.part", IMPORT_RECORD) == b"short"
    with pytest.raises(CorruptionError):
        blocks.read_record(ORDERS, "import.part", FileKind("tiny record", 2))
    blocks.discard_record(ORDERS, "import.part")
    blocks.discard_record(ORDERS, "import.part")
    assert (blocks.records(ORDERS), blocks.ids(ORDERS)) == ([], [FIRST])
    with pytest.raises(FileNotFoundError):
        blocks.read_record(ORDERS, "import.part", IMPORT_RECORD)


@pytest.mark.parametrize("is_synced", [True, False])
def test_a_block_that_was_found_outlives_a_power_loss_once_it_is_synced(is_synced: bool) -> None:
    disk = SimulatedDisk()
    files, volume = disk.process(), Path("/disk")
    files.make_directory(volume / STREAMS)
    files.sync_directory(volume)
    blocks = BlockStore(files, volume)
    files.make_directory(blocks.directory(ORDERS))
    put(blocks, ORDERS, FIRST)
    if is_synced:
        blocks.sync_block(ORDERS, FIRST)
    disk.lose_power(NOTHING_KEPT)
    assert BlockStore(disk.process(), volume).ids(ORDERS) == ([FIRST] if is_synced else [])


def test_a_task_in_another_process_reaches_the_blocks_by_a_plain_value(tmp_path: Path) -> None:
    blocks = BlockStore(OS_FILES, tmp_path)
    blocks.make(ORDERS)
    put(blocks, ORDERS, FIRST)
    handle = pickle.loads(pickle.dumps(VolumeHandle(b"volume", b"instance", str(tmp_path))))
    assert handle.blocks(OS_FILES).ids(ORDERS) == [FIRST]


@pytest.mark.parametrize(
    "name", ["", ".blk", "00.blk", "0" * 31 + "g.blk", "A" * 32 + ".blk", "0" * 32, " " * 32 + ".blk"]
)
def test_only_the_name_of_a_block_is_one(name: str) -> None:
    assert block_id_of(name) is None
    assert block_id_of(FIRST.hex() + ".blk") == FIRST
