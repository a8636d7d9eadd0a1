"""One behaviour for every implementation of the file interface: real, with deadlines, simulated, the faulty wrapper."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.faults import FaultyFiles
from harness.simulated_disk import NOTHING_KEPT, SimulatedDisk

from storage_core.deadlines import DeadlineFiles
from storage_core.files import OS_FILES, Files, write_durably

Place = tuple[Files, Path]


def _real(folder: Path) -> Place:
    return OS_FILES, folder


def _with_deadlines(folder: Path) -> Place:
    return DeadlineFiles(OS_FILES), folder


def _simulated(_: Path) -> Place:
    return SimulatedDisk().process(), Path("/disk")


def _wrapped(folder: Path) -> Place:
    return FaultyFiles(OS_FILES), folder


@pytest.fixture(params=[_real, _with_deadlines, _simulated, _wrapped], ids=["os", "deadlines", "simulated", "wrapper"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made: Callable[[Path], Place] = request.param
    return made(tmp_path)


def _write(files: Files, path: Path, content: bytes) -> None:
    file = files.create(path)
    file.write_at(0, content)
    file.close()


def _read(files: Files, path: Path) -> bytes:
    file = files.open(path)
    try:
        return file.read_at(0, file.size() + 1)
    finally:
        file.close()


def test_what_is_written_is_read_by_others(place: Place) -> None:
    files, folder = place
    file = files.create(folder / "a")
    assert file.path == folder / "a" and file.size() == 0
    file.write_at(0, b"hello world")
    file.write_at(6, memoryview(b"there"))
    assert _read(files, folder / "a") == b"hello there"
    file.sync()
    file.close()
    assert files.file_size(folder / "a") == 11


def test_reads_end_where_the_file_does(place: Place) -> None:
    files, folder = place
    _write(files, folder / "a", b"0123456789")
    file = files.open(folder / "a")
    assert file.read_at(8, 5) == b"89"
    assert file.read_at(10, 5) == b"" and file.read_at(99, 5) == b""
    buffer = bytearray(b"......")
    assert file.read_into(7, memoryview(buffer)) == 3
    assert bytes(buffer) == b"789..."
    assert file.read_into(20, memoryview(buffer)) == 0


def test_a_read_gives_the_same_whether_its_bytes_are_cached_or_not(place: Place) -> None:
    files, folder = place
    content = os.urandom(3_000_001)
    _write(files, folder / "a", content)
    file = files.open(folder / "a")
    for offset, size in [(0, 3_000_001), (4095, 2), (1_000_000, 1_500_000), (2_999_999, 50)]:
        buffer = bytearray(size)
        for drops in (False, True):
            if drops:
                file.sync()
                files.drop_cache(folder / "a")
            count = file.read_into(offset, memoryview(buffer))
            assert bytes(buffer[:count]) == content[offset : offset + size]
    file.close()


def test_a_gap_reads_as_zeros(place: Place) -> None:
    files, folder = place
    file = files.create(folder / "a")
    file.write_at(5000, b"end")
    assert file.read_at(0, 6000) == bytes(5000) + b"end"
    file.truncate(4998)
    assert file.size() == 4998
    file.truncate(5002)
    assert file.read_at(4990, 99) == bytes(12)


def test_a_name_that_is_taken_is_not_created_again(place: Place) -> None:
    files, folder = place
    _write(files, folder / "a", b"first")
    with pytest.raises(FileExistsError):
        files.create(folder / "a")
    assert _read(files, folder / "a") == b"first"


@pytest.mark.parametrize(
    "call", ["open", "unlink", "file_size", "list_directory", "remove_directory", "sync_directory"]
)
def test_what_is_missing_is_said_to_be(place: Place, call: str) -> None:
    files, folder = place
    with pytest.raises(FileNotFoundError):
        getattr(files, call)(folder / "missing")
    with pytest.raises(FileNotFoundError):
        getattr(files, call)(folder / "missing" / "below")


def test_nothing_is_made_in_a_directory_that_is_missing(place: Place) -> None:
    files, folder = place
    for call in (files.create, files.make_directory, files.lock):
        with pytest.raises(FileNotFoundError):
            call(folder / "missing" / "a")


def test_an_open_file_outlives_its_name(place: Place) -> None:
    files, folder = place
    _write(files, folder / "a", b"old")
    file = files.open(folder / "a")
    files.unlink(folder / "a")
    _write(files, folder / "a", b"new")
    assert file.read_at(0, 9) == b"old"
    assert _read(files, folder / "a") == b"new"


def test_a_file_opened_for_reading_is_not_written(place: Place) -> None:
    files, folder = place
    _write(files, folder / "a", b"old")
    file = files.open(folder / "a")
    with pytest.raises(OSError):
        file.write_at(0, b"new")
    with pytest.raises(OSError):
        file.truncate(0)
    writable = files.open(folder / "a", writable=True)
    writable.write_at(0, b"new")
    assert file.read_at(0, 9) == b"new"


def test_a_closed_file_is_closed_twice_and_not_used(place: Place) -> None:
    files, folder = place
    file = files.create(folder / "a")
    file.close()
    file.close()
    with pytest.raises(OSError):
        file.read_at(0, 1)
    with pytest.raises(OSError):
        file.size()


def test_directories_are_made_listed_and_removed(place: Place) -> None:
    files, folder = place
    files.make_directory(folder / "d")
    files.make_directory(folder / "d")
    assert files.is_directory(folder / "d") and not files.is_directory(folder / "e")
    _write(files, folder / "d" / "a", b"")
    _write(files, folder / "d" / "b", b"")
    assert sorted(files.list_directory(folder / "d")) == ["a", "b"]
    files.sync_directory(folder / "d")
    with pytest.raises(OSError) as raised:
        files.remove_directory(folder / "d")
    assert raised.value.errno == errno.ENOTEMPTY
    files.unlink(folder / "d" / "a")
    files.unlink(folder / "d" / "b")
    files.remove_directory(folder / "d")
    assert files.list_directory(folder) == []


def test_sizes_are_those_of_the_files_in_a_directory_and_of_nothing_else(place: Place) -> None:
    files, folder = place
    directory = folder / "some"
    files.make_directory(directory)
    files.make_directory(directory / "below")
    _write(files, directory / "empty", b"")
    _write(files, directory / "full", b"12345")
    assert files.file_sizes(directory) == {"empty": 0, "full": 5}
    with pytest.raises(FileNotFoundError):
        files.file_sizes(folder / "none")


def test_a_directory_is_no_file_and_a_file_no_directory(place: Place) -> None:
    files, folder = place
    files.make_directory(folder / "d")
    _write(files, folder / "a", b"")
    assert not files.is_directory(folder / "a")
    for call in (
        lambda: files.open(folder / "d"),
        lambda: files.open(folder / "d", writable=True),
        lambda: files.create(folder / "d"),
        lambda: files.unlink(folder / "d"),
        lambda: files.file_size(folder / "d"),
        lambda: files.lock(folder / "d"),
        lambda: files.list_directory(folder / "a"),
        lambda: files.make_directory(folder / "a"),
        lambda: files.remove_directory(folder / "a"),
        lambda: files.sync_directory(folder / "a"),
        lambda: files.open(folder / "a" / "below"),
    ):
        with pytest.raises(OSError):
            call()


def test_a_lock_is_held_once_also_within_one_process(place: Place) -> None:
    files, folder = place
    first, second = files.lock(folder / "lock"), files.lock(folder / "lock")
    assert first.try_acquire() and first.try_acquire()
    assert not second.try_acquire()
    first.write_note(b"a long note")
    first.write_note(b"mine")
    assert second.read_note() == b"mine"
    second.close()
    first.close()
    third = files.lock(folder / "lock")
    assert third.try_acquire()
    assert third.read_note() == b"mine"
    third.close()
    third.close()


def test_a_lock_on_a_name_made_anew_is_another_lock(place: Place) -> None:
    files, folder = place
    old = files.lock(folder / "lock")
    assert old.try_acquire()
    files.unlink(folder / "lock")
    new = files.lock(folder / "lock")
    assert new.try_acquire()
    old.close()
    assert not files.lock(folder / "lock").try_acquire()


# --- what only the real one can do wrong ---------------------------------------------------------------------------


def test_modes_are_the_owner_s_alone(tmp_path: Path) -> None:
    _write(OS_FILES, tmp_path / "a", b"")
    OS_FILES.make_directory(tmp_path / "d")
    OS_FILES.lock(tmp_path / "lock").close()
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["symlink", "dangling symlink", "FIFO", "directory link"])
def test_what_is_no_regular_file_is_refused_and_nothing_hangs(tmp_path: Path, kind: str) -> None:
    victim, planted = tmp_path / "victim", tmp_path / "planted"
    victim.write_bytes(b"precious")
    if kind == "symlink":
        planted.symlink_to(victim)
    elif kind == "dangling symlink":
        planted.symlink_to(tmp_path / "nothing")
    elif kind == "directory link":
        planted.symlink_to(tmp_path)
    else:
        os.mkfifo(planted)
    for call in (
        lambda: OS_FILES.open(planted),
        lambda: OS_FILES.open(planted, writable=True),
        lambda: OS_FILES.create(planted),
        lambda: OS_FILES.file_size(planted),
        lambda: OS_FILES.lock(planted),
        lambda: OS_FILES.make_directory(planted),
        lambda: OS_FILES.remove_directory(planted),
    ):
        with pytest.raises(OSError):
            call()
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "nothing").exists()


def test_a_file_with_several_hard_links_is_read_and_not_written(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    os.link(tmp_path / "victim", tmp_path / "planted")
    assert _read(OS_FILES, tmp_path / "planted") == b"precious"
    with pytest.raises(OSError, match="2 hard links"):
        OS_FILES.open(tmp_path / "planted", writable=True)
    with pytest.raises(OSError, match="2 hard links"):
        OS_FILES.lock(tmp_path / "planted")


def test_a_link_to_a_directory_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        OS_FILES.list_directory(tmp_path / "link")
    assert OS_FILES.list_directory(tmp_path / "elsewhere") == []


@pytest.mark.parametrize(
    ("error", "is_final"), [(0, False), (errno.ENOTSUP, False), (errno.EINVAL, False), (errno.EIO, True)]
)
def test_where_the_full_sync_exists_it_is_what_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, is_final: bool
) -> None:
    """As on macOS, which these tests do not run on: its command, and what its kernel may answer."""
    from storage_core import files

    asked: list[int] = []

    def answer(_: int, command: int) -> None:
        asked.append(command)
        if error:
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr(files, "_FULL_SYNC", 51)
    monkeypatch.setattr(files.fcntl, "fcntl", answer)
    file = OS_FILES.create(tmp_path / "a")
    for sync in (file.sync, lambda: OS_FILES.sync_directory(tmp_path)):
        if is_final:
            with pytest.raises(OSError, match=os.strerror(error)):
                sync()
        else:
            sync()
    assert asked == [51, 51]
    file.close()


def test_what_is_made_follows_the_directory_it_is_made_in_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        OS_FILES.make_directory(tmp_path / "d")
        OS_FILES.create(tmp_path / "d" / "early").close()
        OS_FILES.share_directory(tmp_path / "d", True)
        OS_FILES.make_directory(tmp_path / "d" / "below")
        OS_FILES.create(tmp_path / "d" / "below" / "a").close()
        OS_FILES.lock(tmp_path / "d" / "lock").close()
        shared = [one.stat().st_mode & 0o7777 for one in sorted((tmp_path / "d").rglob("*"))]
        OS_FILES.share_directory(tmp_path / "d", False)
        OS_FILES.create(tmp_path / "d" / "late").close()
        private = {name: (tmp_path / "d" / name).stat().st_mode & 0o7777 for name in ("", "early", "late", "lock")}
    finally:
        os.umask(before)
    assert shared == [0o2770, 0o660, 0o660, 0o660]  # below, below/a, early, lock
    assert private == {"": 0o700, "early": 0o600, "late": 0o600, "lock": 0o600}


@pytest.mark.parametrize("operation", ["write", "sync", "sync_directory"])
def test_of_a_durable_file_that_could_not_be_made_nothing_is_left(operation: str) -> None:
    files = FaultyFiles(SimulatedDisk().process())
    files.judge = lambda call: errno.EIO if call.operation == operation else 0
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        write_durably(files, Path("/disk/file"), b"content")
    assert files.list_directory(Path("/disk")) == []


def test_a_durable_file_is_there_after_a_power_loss_with_all_its_parts() -> None:
    disk = SimulatedDisk()
    write_durably(disk.process(), Path("/disk/file"), b"head", b"and the rest")
    disk.lose_power(NOTHING_KEPT)
    file = disk.process().open(Path("/disk/file"))
    assert file.read_at(0, 100) == b"headand the rest"


def test_a_durable_file_takes_the_place_of_a_killed_attempt_only_if_that_is_said() -> None:
    files, path = SimulatedDisk().process(), Path("/disk/file")
    _write(files, path, b"half of an attempt")
    with pytest.raises(FileExistsError):
        write_durably(files, path, b"content")
    assert files.open(path).read_at(0, 100) == b"half of an attempt"
    write_durably(files, path, b"content", replaces=True)
    assert files.open(path).read_at(0, 100) == b"content"
