"""A wrapper of the file interface in which chosen calls fail, or end the process.

    counting     every call is numbered; `calls` keeps (operation, what kind of file, number) for those that matter
    failing      a verdict of an errno makes the call fail: a write may have got half of its bytes to the file, and a
                 failed sync leaves what it should have synced stranded, if the files below can do that
    ending       a verdict of END raises ProcessEnded there and at every call after it

The wrapper stands over any `Files`: a simulated disk, or the real one.
"""

import errno
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from harness.simulated_disk import SECTOR_SIZE, ProcessEnded

from storage_core.files import File, Files, Lasting, Lock

T = TypeVar("T")
CHANGING = (
    "create", "write", "truncate", "sync", "unlink", "replace", "make_directory", "remove_directory", "sync_directory",
)  # fmt: skip
READING = ("open", "read", "size", "list", "is_directory")
LOCKING = ("lock", "acquire", "note")
END = -1  # verdict: the process ends before the call
END_HALFWAY = -2  # verdict: a write got half of its bytes to the file, then the process ends


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the file interface."""

    number: int  # among the calls that are counted, from 0
    operation: str
    path: Path

    @property
    def file_kind(self) -> str:
        return file_kind(self.path)

    def __str__(self) -> str:
        return f"call {self.number}: {self.operation} of {self.file_kind} {self.path}"


def file_kind(path: Path) -> str:
    """Return what a path inside a volume is."""
    kinds = {
        ".log": "segment", ".snap": "snapshot", ".blk": "block", ".volume": "identity", ".journal": "journal",
        ".repair": "repaired copy", ".report": "damage report",
    }  # fmt: skip
    if path.suffix in kinds:
        return kinds[path.suffix]
    if path.name in ("index.db", "lock"):
        return path.name.removesuffix(".db")
    if path.name in ("meta", "streams", "reports"):
        return f"directory {path.name}"
    return "directory of a stream" if path.parent.name == "streams" else "directory of the volume"


Judge = Callable[[Call], int]  # 0: let it happen; an errno; END; END_HALFWAY


def let_everything_happen(_: Call) -> int:
    return 0


def fail_at(number: int, error: int, forever: bool = False) -> Judge:
    """Fail the counted call of this number, and if `forever` all those after it."""
    return lambda call: error if call.number == number or (forever and call.number > number) else 0


def end_at(number: int, halfway: bool = False) -> Judge:
    """End the process at the counted call of this number."""
    return lambda call: (END_HALFWAY if halfway else END) if call.number == number else 0


def share_of(calls: Sequence[T], test: object, of: Sequence[object]) -> Sequence[T]:
    """Return the share of the calls that falls to `test`: tests of all of them, side by side, take each call once.

    Each call meets one of them; which call meets which other one is what the simulator draws.
    """
    return calls[of.index(test) :: len(of)]


@dataclass
class FaultyFiles:
    """`Files` over others, with a judge over every counted call."""

    inner: Files
    judge: Judge = let_everything_happen
    counted: tuple[str, ...] = CHANGING
    calls: list[Call] = field(default_factory=list)
    ended: bool = False
    is_armed: bool = True  # while it is not, calls pass uncounted

    def counts(self) -> Counter[tuple[str, str]]:
        """Return how often each (operation, kind of file) was called."""
        return Counter((call.operation, call.file_kind) for call in self.calls)

    def create(self, path: Path) -> "FaultyFile":
        self.admit("create", path)
        return FaultyFile(self, self.inner.create(path))

    def open(self, path: Path, writable: bool = False, size: int | None = None) -> "FaultyFile":
        self.admit("open", path)
        return FaultyFile(self, self.inner.open(path, writable, size))

    def unlink(self, path: Path) -> None:
        self.admit("unlink", path)
        self.inner.unlink(path)

    def replace(self, old: Path, new: Path) -> None:
        self.admit("replace", new)
        self.inner.replace(old, new)

    def make_directory(self, path: Path) -> None:
        self.admit("make_directory", path)
        self.inner.make_directory(path)

    def share_directory(self, path: Path, with_group: bool) -> None:
        self.inner.share_directory(path, with_group)

    def remove_directory(self, path: Path) -> None:
        self.admit("remove_directory", path)
        self.inner.remove_directory(path)

    def list_directory(self, path: Path) -> list[str]:
        self.admit("list", path)
        return self.inner.list_directory(path)

    def list_tags(self, path: Path) -> dict[str, str]:
        self.admit("list", path)
        return self.inner.list_tags(path)

    def sync_directory(self, path: Path) -> None:
        self.admit("sync_directory", path, lambda: _strand(self.inner, "strand_directory", path))
        self.inner.sync_directory(path)

    def file_size(self, path: Path) -> int:
        self.admit("size", path)
        return self.inner.file_size(path)

    def file_sizes(self, path: Path) -> dict[str, int]:
        sizes = {}
        for name in self.list_directory(path):
            try:
                sizes[name] = self.file_size(path / name)
            except OSError:
                continue
        return sizes

    def is_directory(self, path: Path) -> bool:
        self.admit("is_directory", path)
        return self.inner.is_directory(path)

    def drop_cache(self, path: Path) -> None:
        self.inner.drop_cache(path)

    def lock(self, path: Path) -> "FaultyLock":
        self.admit("lock", path)
        return FaultyLock(self, path, self.inner.lock(path))

    def admit(
        self,
        operation: str,
        path: Path,
        on_failure: Callable[[], None] = lambda: None,
        on_half: Callable[[], None] = lambda: None,
    ) -> None:
        """Count the call and carry out the verdict on it; return if the call shall happen."""
        if self.ended:
            raise ProcessEnded
        if not self.is_armed or operation not in self.counted:
            return
        call = Call(len(self.calls), operation, path)
        self.calls.append(call)
        verdict = self.judge(call)
        if verdict in (END, END_HALFWAY):
            if verdict == END_HALFWAY:
                on_half()
            self.end()
            raise ProcessEnded
        if verdict:
            on_failure()
            raise OSError(verdict, os.strerror(verdict), str(path))

    def end(self) -> None:
        """End the process: locks are let go of, all further calls raise ProcessEnded."""
        self.ended = True
        _strand(self.inner, "kill")


class FaultyFile:
    def __init__(self, files: FaultyFiles, inner: File) -> None:
        self.path, self._files, self._inner = inner.path, files, inner
        self.opened_size, self.tag = inner.opened_size, inner.tag

    def read_at(self, offset_bytes: int, size: int) -> bytes:
        self._files.admit("read", self.path)
        return self._inner.read_at(offset_bytes, size)

    def read_into(self, offset_bytes: int, buffer: memoryview) -> int:
        self._files.admit("read", self.path)
        return self._inner.read_into(offset_bytes, buffer)

    def write_at(self, offset_bytes: int, data: bytes | memoryview) -> None:
        def half() -> None:
            self._inner.write_at(offset_bytes, bytes(data)[: len(data) // 2 // SECTOR_SIZE * SECTOR_SIZE])

        self._files.admit("write", self.path, on_failure=half, on_half=half)
        self._inner.write_at(offset_bytes, data)

    def truncate(self, size: int) -> None:
        self._files.admit("truncate", self.path)
        self._inner.truncate(size)

    def sync(self) -> None:
        self._files.admit("sync", self.path, on_failure=lambda: _strand(self._inner, "strand"))
        self._inner.sync()

    def size(self) -> int:
        self._files.admit("size", self.path)
        return self._inner.size()

    def size_at_path(self) -> int | None:
        self._files.admit("size", self.path)
        return self._inner.size_at_path() if isinstance(self._inner, Lasting) else None

    def close(self) -> None:
        self._inner.close()


class FaultyLock:
    def __init__(self, files: FaultyFiles, path: Path, inner: Lock) -> None:
        self._path, self._files, self._inner = path, files, inner

    def try_acquire(self) -> bool:
        self._files.admit("acquire", self._path)
        return self._inner.try_acquire()

    def write_note(self, note: bytes) -> None:
        self._files.admit("note", self._path)
        self._inner.write_note(note)

    def read_note(self) -> bytes:
        self._files.admit("note", self._path)
        return self._inner.read_note()

    def close(self) -> None:
        self._inner.close()


def _strand(target: object, method: str, *arguments: object) -> None:
    """Call a method that only simulated files have."""
    found = getattr(target, method, None)
    if found is not None:
        found(*arguments)


ERRNOS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
