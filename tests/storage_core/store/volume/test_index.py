"""index.db: a cache of what a volume holds and of what was last found, believed over nothing."""

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from crc32c import crc32c

from storage_core.file_kinds import FileKind
from storage_core.files import OS_FILES
from storage_core.store.volume import index as index_module
from storage_core.store.volume.index import _HEADER, FILE_NAME, FORMAT_VERSION, MAGIC, VolumeIndex

STREAM = b"INCARNATION-----"
IDS = [b"BLOCK-%010d" % number for number in range(6)]


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A volume on which blocks 0 to 4 lie, of 100 to 104 bytes; index.db says that 0 is whole and 1 is damaged."""
    directory = tmp_path / "streams" / STREAM.hex()
    directory.mkdir(parents=True)
    for number, block_id in enumerate(IDS[:5]):
        (directory / f"{block_id.hex()}.blk").write_bytes(bytes(100 + number))
    (directory / "notes.txt").write_text("mine")
    index = VolumeIndex(OS_FILES, tmp_path)
    index.verified(STREAM, IDS[0], 100, 7, is_whole=True)
    index.verified(STREAM, IDS[1], 101, 8, is_whole=False)
    index.save({STREAM})
    return tmp_path


def block(volume: Path, number: int) -> Path:
    return volume / "streams" / STREAM.hex() / f"{IDS[number].hex()}.blk"


def both(volume: Path) -> list[tuple[int, int]]:
    """Return (size, time) of all blocks, as both ways to ask say it."""
    listed = VolumeIndex(OS_FILES, volume).stream(STREAM).blocks
    sizes, verified_ns = VolumeIndex(OS_FILES, volume).held(STREAM, b"".join(IDS))
    found = list(zip(sizes.tolist(), verified_ns.tolist(), strict=True))
    assert found == [listed.get(one, (-1, 0)) for one in IDS]
    assert (sizes.dtype, verified_ns.dtype) == (np.int64, np.int64)
    return found


def test_blocks_have_the_sizes_of_their_files_and_what_was_last_found(volume: Path) -> None:
    assert both(volume) == [(100, 7), (101, -8), (102, 0), (103, 0), (104, 0), (-1, 0)]


def test_what_was_found_of_a_block_of_another_size_is_forgotten(volume: Path) -> None:
    os.truncate(block(volume, 0), 50)
    block(volume, 1).unlink()
    assert both(volume)[:2] == [(50, 0), (-1, 0)]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\xff"),
    ],
)
def test_without_a_whole_index_the_counts_are_the_same(volume: Path, spoil: Callable[[Path], object]) -> None:
    spoil(volume / FILE_NAME)
    assert both(volume) == [(100, 0), (101, 0), (102, 0), (103, 0), (104, 0), (-1, 0)]


def test_a_stream_without_a_directory_and_no_blocks_at_all_are_nothing(volume: Path) -> None:
    index = VolumeIndex(OS_FILES, volume)
    assert index.stream(b"ANOTHER---------").blocks == {}
    assert index.held(b"ANOTHER---------", IDS[0])[0].tolist() == [-1]
    assert [len(one) for one in index.held(STREAM, b"")] == [0, 0]


@pytest.mark.parametrize("number", [1 << 63, (1 << 64) - 1])
def test_an_index_with_numbers_that_no_file_has_is_made_anew(volume: Path, number: int) -> None:
    content = msgspec.msgpack.encode({STREAM: [[IDS[0], 100, number]]})
    (volume / FILE_NAME).write_bytes(_HEADER.pack(MAGIC, FORMAT_VERSION, crc32c(content), len(content)) + content)
    assert both(volume) == [(100, 0), (101, 0), (102, 0), (103, 0), (104, 0), (-1, 0)]


@pytest.mark.parametrize(
    "content",
    [b"\xdd" + (10 << 20).to_bytes(4, "big") + b"\x90" * (10 << 20), b"\x81\xc4\x01x" + b"\x91" * 5_000_000 + b"\xc0"],
    ids=["ten million empty arrays", "nested five million deep"],
)
def test_an_index_of_something_else_is_made_anew_and_takes_no_memory(volume: Path, content: bytes) -> None:
    (volume / FILE_NAME).write_bytes(_HEADER.pack(MAGIC, FORMAT_VERSION, crc32c(content), len(content)) + content)
    tracemalloc.start()
    index = VolumeIndex(OS_FILES, volume)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert set(index.stream(STREAM).blocks.values()) == {(100 + number, 0) for number in range(5)}
    assert peak < 100 << 20


def test_of_an_index_that_is_larger_than_any_nothing_is_read(volume: Path) -> None:
    os.truncate(volume / FILE_NAME, 1 << 40)
    assert {time for _, time in VolumeIndex(OS_FILES, volume).stream(STREAM).blocks.values()} == {0}


def test_of_more_blocks_than_fit_only_the_place_of_the_scrub_is_kept(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "VOLUME_INDEX", FileKind("volume's index", 100))
    index = VolumeIndex(OS_FILES, volume)
    index.scrubbed_to = (STREAM, 7)
    index.verified(STREAM, IDS[2], 102, 9, is_whole=True)
    index.save({STREAM})
    assert (volume / FILE_NAME).stat().st_size <= 100
    assert VolumeIndex(OS_FILES, volume).scrubbed_to == (STREAM, 7)
    assert both(volume) == [(100, 0), (101, 0), (102, 0), (103, 0), (104, 0), (-1, 0)]


def test_of_two_processes_that_looked_the_newer_look_counts(volume: Path) -> None:
    """Whichever writes last; what neither looked at stays."""
    scrub, repair = VolumeIndex(OS_FILES, volume), VolumeIndex(OS_FILES, volume)
    for index in (scrub, repair):
        index.stream(STREAM)
    scrub.verified(STREAM, IDS[2], 102, 20, is_whole=False)
    scrub.verified(STREAM, IDS[3], 103, 20, is_whole=False)
    repair.verified(STREAM, IDS[2], 102, 30, is_whole=True)
    repair.verified(STREAM, IDS[3], 103, 10, is_whole=True)
    repair.verified(STREAM, IDS[4], 104, 30, is_whole=True)
    for writers in ((scrub, repair), (repair, scrub)):
        for index in writers:
            index.save({STREAM})
        assert both(volume) == [(100, 7), (101, -8), (102, 30), (103, -20), (104, 30), (-1, 0)]
