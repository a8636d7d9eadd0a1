"""MirroredFile: the disks are told early what is complete, page by page, and each byte once."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from storage_core.files import OS_FILES, PAGE_SIZE, OsFile, OsFiles
from storage_core.store.environment import REAL
from storage_core.store.volume.block_store import VolumeHandle
from storage_core.store.writing.mirrored_file import STARTED_SIZE_MIN, MirroredFile

INCARNATION = b"its incarnation."


class ListeningFile(OsFile):
    """Keeps what it was told to begin with; the first one of volume b refuses."""

    __slots__ = ("told", "refuses")

    def __init__(self, path: Path, descriptor: int, refuses: bool) -> None:
        super().__init__(path, descriptor)
        self.told: list[tuple[int, int]] = []
        self.refuses = refuses

    def start_writing(self, offset_bytes: int, size: int) -> None:
        assert offset_bytes + size <= self.size()
        self.told.append((offset_bytes, size))
        if self.refuses:
            raise OSError(errno.EIO, "the disk refuses")
        super().start_writing(offset_bytes, size)


class ListeningFiles(OsFiles):
    def __init__(self, refusing: str = "") -> None:
        self.made: list[ListeningFile] = []
        self.refusing = refusing

    def create(self, path: Path) -> ListeningFile:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.made.append(ListeningFile(path, descriptor, path.parents[2].name == self.refusing))
        return self.made[-1]


def mirrored(place: Path, files: ListeningFiles) -> MirroredFile:
    volumes = [VolumeHandle(name.encode(), bytes(16), str(place / name)) for name in ("a", "b", "c")]
    for volume in volumes:
        volume.blocks(files).directory(INCARNATION).mkdir(parents=True, exist_ok=True)
    return MirroredFile(volumes, INCARNATION, b"the only block..", 2, replace(REAL, files=files))


def test_disks_begin_with_whole_pages_once_and_in_order(tmp_path: Path) -> None:
    files = ListeningFiles()
    file = mirrored(tmp_path, files)
    pieces = [os.urandom(size) for size in (100, 3 << 20, 77, 6 << 20, 1 << 20, 9 << 20, 5000)]
    at = 0
    for piece in pieces:
        file.write_at(at, piece)
        at += len(piece)
    file.sync()
    for one in files.made:
        ends = [0, *(offset + size for offset, size in one.told)]
        assert [offset for offset, _ in one.told] == ends[:-1]
        assert all(end % PAGE_SIZE == 0 for end in ends)
        assert all(size >= STARTED_SIZE_MIN for _, size in one.told)
        assert len(one.told) == 2
        assert one.path.read_bytes() == b"".join(pieces)
    file.close()


def test_a_disk_that_refuses_to_begin_is_left_out(tmp_path: Path) -> None:
    files = ListeningFiles(refusing="b")
    file = mirrored(tmp_path, files)
    file.write_at(0, bytes(STARTED_SIZE_MIN))
    file.write_at(STARTED_SIZE_MIN, b"more")
    file.sync()
    assert file.holders == (b"a", b"c")
    assert file.failures[b"b"].errno == errno.EIO
    assert not list((tmp_path / "b").rglob("*.blk"))
    file.close()


def test_beginning_changes_nothing_in_the_file(tmp_path: Path) -> None:
    with OS_FILES.create(tmp_path / "file") as file:
        file.write_at(0, b"x" * 10_000)
        file.start_writing(0, 8192)
        file.start_writing(8192, 0)
        file.sync()
        assert file.read_at(0, 20_000) == b"x" * 10_000
    with pytest.raises(OSError):
        file.start_writing(0, 8192)
