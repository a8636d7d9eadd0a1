"""A look at whether a file system does what a store builds on, before one is made there or moved to this host.

File systems of one kernel do. What a network or a program in user space (FUSE) stands behind may not: locks that other
processes do not see, files that cannot be written in the middle, fsync that is not there, a rename that replaces
nothing. Nobody finds that out by reading a store, so it is tried, with a second process for the lock.

What cannot be tried: whether fsync reaches a disk, and whether a lock holds on another host as well. A store does not
need the second, since one host writes it (lock_domain.py).
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from storage_core.errors import UnsuitableFileSystemError
from storage_core.files import Files
from storage_core.os_errors import FULL, raise_if_of_process
from storage_core.paths import is_in_object_store
from storage_core.store.environment import Environment
from storage_core.store.lock_domain import LOCAL
from storage_core.store.volume import object_probe

FIRST, SECOND = NAMES = ("probe", "probe.new")  # left there only where the process was killed meanwhile
PAGE = 4096


def check(directory: Path, env: Environment) -> None:
    """Raise UnsuitableFileSystemError naming what a store in this directory could not rely on.

    What one kernel has to itself is not tried. The caller holds the directory's lock.
    """
    if is_in_object_store(directory):
        object_probe.check(directory, env)
        return
    kind = env.file_system(directory)
    if kind not in LOCAL:
        try_out(directory, kind, env.files, env.locks_elsewhere)


def try_out(directory: Path, kind: str, files: Files, locks_elsewhere: Callable[[Path], bool]) -> None:
    """Try everything in the directory, which is left as it was. OSError if the disk is full."""
    step = _Steps(directory, kind)
    _remove(directory, files)
    try:
        _try_files(directory, files, step)
        _try_lock(directory / FIRST, files, locks_elsewhere, step)
    finally:
        _remove(directory, files)


class _Steps:
    """Turns what goes wrong into the error that names it."""

    def __init__(self, directory: Path, kind: str) -> None:
        self._directory, self._kind = directory, kind

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise
            raise_if_of_process(error)
            raise self.refusal(step, str(error.strerror or error)) from error

    def refusal(self, step: str, outcome: str) -> UnsuitableFileSystemError:
        return UnsuitableFileSystemError(str(self._directory), self._kind, step, outcome)


def _try_files(directory: Path, files: Files, step: "_Steps") -> None:
    first, second = directory / FIRST, directory / SECOND
    with step("creating a file"):
        file = files.create(first)
    with closing(file):
        with step("writing in the middle of a file"):
            file.write_at(0, b"a" * 2 * PAGE)
            file.write_at(PAGE, b"b" * PAGE)
            file.write_at(0, b"c" * PAGE)
            file.truncate(PAGE + 1)
        with step("fsync of a file"):
            file.sync()
    with step("reading what was written"):
        if _content(first, files) != b"c" * PAGE + b"b":
            raise step.refusal("reading what was written", "it is something else")
    with step("creating a file that exists (O_EXCL)"):
        try:
            files.create(first).close()
        except FileExistsError:
            pass
        else:
            raise step.refusal("creating a file that exists (O_EXCL)", "it was created once more")
    with step("creating a file"):
        file = files.create(second)
    with closing(file):
        with step("fsync of a file"):
            file.write_at(0, b"d")
            file.sync()
    with step("renaming a file over another one"):
        files.replace(second, first)
    with step("fsync of a directory"):
        files.sync_directory(directory)
    with step("renaming a file over another one"):
        names = files.list_directory(directory)
        if _content(first, files) != b"d" or FIRST not in names or SECOND in names:
            raise step.refusal("renaming a file over another one", "the old one is still there")


def _try_lock(path: Path, files: Files, locks_elsewhere: Callable[[Path], bool], step: "_Steps") -> None:
    action = "locking a file (flock)"
    with step(action):
        lock = files.lock(path)
    with closing(lock):
        with step(action):
            if not lock.try_acquire():
                raise step.refusal(action, "no process has the lock, and it cannot be taken")
            if locks_elsewhere(path):
                raise step.refusal(action, "two processes had the lock at once")
    with step(action):
        if not locks_elsewhere(path):
            raise step.refusal(action, "the lock was let go of, and another process did not get it")


def _content(path: Path, files: Files) -> bytes:
    with closing(files.open(path)) as file:
        return file.read_at(0, 2 * PAGE)


def _remove(directory: Path, files: Files) -> None:
    for name in NAMES:
        with contextlib.suppress(OSError):
            files.unlink(directory / name)
