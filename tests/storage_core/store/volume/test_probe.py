"""What a file system must do before a store is made on it: real ones do, and each thing that one lacks is named."""

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from storage_core.errors import DiskFullError, UnsuitableFileSystemError
from storage_core.files import OsFile, OsFiles, OsLock
from storage_core.store.environment import REAL, Environment
from storage_core.store.store import Store
from storage_core.store.volume import probe


@pytest.fixture(params=["tmp_path", "/dev/shm"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on a disk, and one in memory."""
    if request.param == "tmp_path":
        yield tmp_path
        return
    with TemporaryDirectory(dir=request.param) as name:
        yield Path(name)


def test_a_real_file_system_passes_and_is_left_as_it_was(directory: Path) -> None:
    probe.try_out(directory, "anything", REAL.files, REAL.locks_elsewhere)
    assert list(directory.iterdir()) == []


def test_what_a_killed_probe_left_is_no_obstacle(directory: Path) -> None:
    for name in probe.NAMES:
        (directory / name).write_bytes(b"left")
    Store.create(directory, env=on_network(OsFiles())).close()
    assert not any((directory / name).exists() for name in probe.NAMES)


class NoSync(OsFiles):
    def create(self, path: Path) -> OsFile:
        class File(OsFile):
            def sync(self) -> None:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        file = super().create(path)
        return File(path, os.dup(file._descriptor))


class NoDirectorySync(OsFiles):
    def sync_directory(self, path: Path) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


class CreatesTwice(OsFiles):
    def create(self, path: Path) -> OsFile:
        path.unlink(missing_ok=True)
        return super().create(path)


class RenamesNothing(OsFiles):
    def replace(self, old: Path, new: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


class CopiesInsteadOfRenaming(OsFiles):
    def replace(self, old: Path, new: Path) -> None:
        new.write_bytes(old.read_bytes())


class AppendsOnly(OsFiles):
    def create(self, path: Path) -> OsFile:
        class File(OsFile):
            def write_at(self, offset_bytes: int, data: bytes | memoryview) -> None:
                if offset_bytes < self.size():
                    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
                super().write_at(offset_bytes, data)

        file = super().create(path)
        return File(path, os.dup(file._descriptor))


class NoLocks(OsFiles):
    def lock(self, path: Path) -> OsLock:
        class Refused(OsLock):
            def try_acquire(self) -> bool:
                raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        return Refused(path)


class LocksThatNobodySees(OsFiles):
    def lock(self, path: Path) -> OsLock:
        class Hidden(OsLock):
            def try_acquire(self) -> bool:
                return True

        return Hidden(path)


def on_network(files: OsFiles) -> Environment:
    return replace(REAL, files=files, file_system=lambda _: "fuse.test")


LACKING = [
    (NoSync, "fsync of a file"),
    (NoDirectorySync, "fsync of a directory"),
    (CreatesTwice, "O_EXCL"),
    (RenamesNothing, "renaming"),
    (CopiesInsteadOfRenaming, "renaming"),
    (AppendsOnly, "in the middle"),
    (LocksThatNobodySees, "flock"),
]


@pytest.mark.parametrize(("files", "what"), LACKING, ids=[kind.__name__ for kind, _ in LACKING])
def test_no_store_is_made_where_something_is_missing(tmp_path: Path, files: type[OsFiles], what: str) -> None:
    with pytest.raises(UnsuitableFileSystemError) as caught:
        Store.create(tmp_path / "volume", env=on_network(files()))
    assert what in caught.value.what
    assert (caught.value.path, caught.value.file_system) == (str(tmp_path / "volume"), "fuse.test")
    left = {one.name for one in (tmp_path / "volume").iterdir()} - {"lock"}
    assert left == set()
    Store.create(tmp_path / "volume").close()  # and the next attempt finds nothing in its way


def test_a_file_system_without_locks_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsuitableFileSystemError) as caught:
        probe.try_out(tmp_path, "fuse.test", NoLocks(), REAL.locks_elsewhere)
    assert "flock" in caught.value.what


def test_a_lock_that_is_never_free_is_named(tmp_path: Path) -> None:
    env = replace(on_network(OsFiles()), locks_elsewhere=lambda _: False)
    with pytest.raises(UnsuitableFileSystemError) as caught:
        Store.create(tmp_path / "volume", env=env)
    assert "flock" in caught.value.what


def test_a_store_that_moves_here_is_tried_before_anything_is_written(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    Store.create(volume, env=replace(REAL, lock_domain=lambda: "another machine")).close()
    before = {path: path.read_bytes() for path in volume.rglob("*") if path.is_file() and path.name != "lock"}
    with pytest.raises(UnsuitableFileSystemError):
        Store.open(volume, env=on_network(LocksThatNobodySees()), take_over=True)
    assert before == {path: path.read_bytes() for path in volume.rglob("*") if path.is_file() and path.name != "lock"}


def test_a_volume_that_is_added_on_a_mount_is_tried_before_the_change_is_recorded(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    Store.create(paths).close()
    store = Store.open(paths, env=on_network(LocksThatNobodySees()))
    with pytest.raises(UnsuitableFileSystemError):
        store.replace_volume(store.volumes()[2].name, str(tmp_path / "d"))
    assert [Path(path) for path in store.paths] == paths


def test_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    class Full(OsFiles):
        def create(self, path: Path) -> OsFile:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(DiskFullError):
        Store.create(tmp_path / "volume", env=on_network(Full()))
