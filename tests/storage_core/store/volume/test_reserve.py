"""The reserve of a volume: as large as there is room for, given up in pieces, never a reason to fail."""

import errno
from pathlib import Path

import pytest
from harness.faults import FaultyFiles
from harness.simulated_disk import SimulatedDisk

from storage_core.files import OS_FILES
from storage_core.store.volume.reserve import PIECE_SIZE, SIZE, Reserve


def test_it_is_filled_given_up_piece_by_piece_and_filled_again(tmp_path: Path) -> None:
    reserve = Reserve(OS_FILES, tmp_path)
    assert not reserve.give_up()
    for _ in range(2):
        reserve.fill()
        status = reserve.path.stat()
        assert (status.st_size, status.st_blocks * 512 >= SIZE) == (SIZE, True), "it takes real room"
        sizes = []
        while reserve.give_up():
            sizes.append(reserve.path.stat().st_size)
        assert sizes == list(range(SIZE - PIECE_SIZE, -1, -PIECE_SIZE))


def test_a_full_one_is_not_written_again(tmp_path: Path) -> None:
    Reserve(OS_FILES, tmp_path).fill()
    files = FaultyFiles(OS_FILES)
    Reserve(files, tmp_path).fill()
    assert files.calls == []


@pytest.mark.parametrize("left", range(1, SIZE, 3 * PIECE_SIZE // 2))
def test_it_takes_the_pieces_that_there_is_room_for(left: int) -> None:
    disk = SimulatedDisk(capacity_bytes=left)
    files = disk.process()
    reserve = Reserve(files, Path("/disk"))
    reserve.fill()
    assert files.file_size(reserve.path) == left // PIECE_SIZE * PIECE_SIZE
    disk.capacity_bytes = None
    reserve.fill()
    assert files.file_size(reserve.path) == SIZE


def test_a_failing_disk_is_told_when_it_is_filled_and_gives_up_nothing(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    reserve = Reserve(files, tmp_path)
    reserve.fill()
    assert reserve.give_up()
    files.judge = lambda call: errno.EIO if call.operation == "sync" else 0
    assert not reserve.give_up()
    with pytest.raises(OSError, match="Input/output"):
        reserve.fill()


def test_a_link_of_that_name_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"not ours")
    (tmp_path / "reserve").symlink_to(other)
    reserve = Reserve(OS_FILES, tmp_path)
    assert not reserve.give_up()
    with pytest.raises(OSError):
        reserve.fill()
    assert other.read_bytes() == b"not ours"
