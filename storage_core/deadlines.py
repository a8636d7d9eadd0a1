"""Files with deadlines: a volume that does not answer is an error of that volume, and stops nobody.

A call of the operating system cannot be given up, and nobody knows beforehand which one will hang (a network mount
whose server is gone, a dying disk). So each call is made by a thread of its volume, and the caller waits for a bounded
time:

    in time          the caller gets what the call returns or raises
    too late         OSError(ETIMEDOUT), which is treated like any other failed disk; the thread stays with its call
    slower           in an object store, a call of a round that a majority of the volumes has finished
                     (`VolumeCall.majority_suffices`): given up sooner, in the same way
    meanwhile        while a call of a volume is overdue, all others on that volume fail at once: no more threads get
                     stuck, of which a volume has a bounded number
    when it returns  the volume is used again as the rules of the store allow; what a late call opened is closed

What the machine has cached of a file cannot keep anybody waiting: the caller reads that itself, where Linux and the
file system tell (ext4, XFS, Btrfs), since handing a call over takes longer than most calls do.

**Locks.** A lock on such a volume is let go of only after every call there has returned: no write of ours can arrive
while another process believes to be alone. The threads are daemons: the process may end while they hang.
"""

import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from storage_core.files import File, Files, Lasting, Lock, OsFile, ReadingAhead
from storage_core.forks import Stage, renew_in_children
from storage_core.os_errors import UnreachableError
from storage_core.paths import is_in_object_store

logger = logging.getLogger(__name__)
T = TypeVar("T")
VARIABLE = "JSTREAM_VOLUME_TIMEOUT_S"
TIMEOUT_S = 30.0
IDLE_S = 5.0  # after which a thread without a call ends
THREAD_COUNT_MAX = 16  # calls of one volume at a time; those beyond wait for their turn, within their deadline
SPREAD_COUNT_MAX = 12  # of them, that share the work of one caller: the others are for everybody else
_INSIDE = ("meta", "streams", "reports", "owners")  # directories of a volume
_FILES = ("lock", "reserve", "probe", "probe.new")  # files of a volume, with those of these suffixes
_SUFFIXES = (".volume", ".creating", ".restoring", ".db", ".journal")
_ID_SIZE = 32  # hex digits


def timeout_of(environment: "os._Environ[str] | dict[str, str]" = os.environ) -> float:
    """Return for how many seconds a call on a volume may take. Raises ValueError for what is no such number."""
    text = environment.get(VARIABLE, "")
    try:
        seconds = float(text) if text else TIMEOUT_S
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise ValueError(f"{VARIABLE}: {text!r} is no number of seconds above 0")
    return seconds


@lru_cache(maxsize=4096)
def volume_of(path: Path) -> Path:
    """Return the directory of the volume that a path is in, as its layout tells: what hangs together."""
    parent = path.parent
    if parent.name in _INSIDE and (path.suffix or len(path.name) == _ID_SIZE):
        return parent.parent
    if parent.parent.name == "streams" and len(parent.name) == _ID_SIZE:
        return parent.parent.parent
    if path.name in (*_INSIDE, *_FILES) or path.suffix in _SUFFIXES:
        return parent
    return path


class _Call:
    """One call that a thread of a volume makes."""

    __slots__ = ("call", "done", "error", "heard", "is_over", "is_overdue", "result")

    def __init__(self, call: Callable[[], Any], heard: threading.Semaphore | None = None) -> None:
        """`heard`: released when the call has returned."""
        self.call, self.heard = call, heard
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()
        self.is_over = self.is_overdue = False


class _Worker(threading.Thread):
    """A thread of a volume, that makes one call after another."""

    def __init__(self, volume: "_Volume") -> None:
        super().__init__(name=f"jstream-io {volume.path}", daemon=True)
        self.volume = volume
        self.wake = threading.Lock()
        self.wake.acquire()
        self.call: _Call | None = None

    def run(self) -> None:
        while True:
            if not self.wake.acquire(timeout=IDLE_S):
                if self.volume.lets_go(self):
                    return
                self.wake.acquire()  # a call is on its way
            call = self.call
            assert call is not None
            self.call = None
            try:
                call.result = call.call()
            except BaseException as error:  # it is the caller's
                call.error = error
            self.volume.has_returned(self, call)
            del call


class _Volume:
    """The calls that are under way on one volume."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.renew()

    def renew(self) -> None:
        """A forked child has none of the threads; locks that were to be let go of later, it lets go of now."""
        deferred = getattr(self, "deferred", [])
        self.mutex = threading.Lock()
        self.has_room = threading.Condition(self.mutex)
        self.idle: list[_Worker] = []
        self.thread_count = 0
        self.overdue_count = 0
        self.deferred: list[Callable[[], None]] = []  # what waits until no call is overdue
        for call in deferred:
            call()

    def run(self, function: Callable[[], T], timeout_s: float) -> T:
        """Return what the function returns or raise what it raises, or OSError(ETIMEDOUT)."""
        return self.begin(function, timeout_s)()

    def begin(
        self, function: Callable[[], T], timeout_s: float, heard: threading.Semaphore | None = None
    ) -> "Callable[[], T] | Begun":
        """Hand the function to a thread; what is returned waits for it as `run` does, and has to be called.

        `heard`: released when the function has returned. Raises OSError(ETIMEDOUT) if the volume takes no call now.
        """
        current = threading.current_thread()
        if isinstance(current, _Worker) and current.volume is self:
            return function  # part of a longer call
        call = _Call(function, heard)
        worker = self._worker(timeout_s)
        if worker is None:
            return function
        worker.call = call
        worker.wake.release()
        return Begun(self, call, timeout_s)

    def _outcome(self, call: _Call, timeout_s: float, begun_s: float) -> Any:
        """Wait for a call that was handed over at a time of the monotonic clock."""
        try:
            is_done = call.done.acquire(timeout=max(0.0, begun_s + timeout_s - time.monotonic()))
        except BaseException:  # Ctrl-C: what is under way is waited for
            self._wait(call, timeout_s)
            raise
        if not is_done and self._gives_up(call):
            logger.warning("%s: a call has not returned for %g s; the volume is left out", self.path, timeout_s)
            raise self._timed_out(f"no answer for {timeout_s:g} s")
        if call.error is not None:
            raise call.error
        return call.result

    def spread(self, calls: "Sequence[Callable[[], T]]", timeout_s: float) -> "list[T | BaseException]":
        """Return what the calls return or raise, in order. The caller is a thread of this volume; free ones help it.

        Nobody is waited for who has not begun, so callers cannot wait for each other.
        """
        outcomes: list[T | BaseException] = [NotImplementedError()] * len(calls)
        left = deque(range(len(calls)))

        def work() -> None:
            while left:
                try:
                    number = left.popleft()
                except IndexError:  # another thread was faster
                    return
                outcomes[number] = outcome(calls[number])

        helping: list[_Call] = []
        while len(helping) + 1 < min(len(calls), SPREAD_COUNT_MAX):
            helper = self._worker(None)
            if helper is None:
                break
            helper.call = _Call(work)
            helping.append(helper.call)
            helper.wake.release()
        work()
        for call in helping:
            self._outcome(call, timeout_s, time.monotonic())
        return outcomes

    def _worker(self, timeout_s: float | None) -> _Worker | None:
        """Return a thread that has nothing to do; None if the process gets no more, as when it ends.

        `timeout_s`: for how long one is waited for; None: not at all, and nothing is raised.
        """
        with self.mutex:
            while True:
                if self.overdue_count:
                    if timeout_s is None:
                        return None
                    raise self._timed_out("an earlier call has not returned yet")
                if self.idle:
                    return self.idle.pop()
                if self.thread_count < THREAD_COUNT_MAX:
                    self.thread_count += 1
                    break
                if timeout_s is None:
                    return None
                if not self.has_room.wait(timeout_s):
                    raise self._timed_out(f"{self.thread_count} calls have not returned for {timeout_s:g} s")
        worker = _Worker(self)
        try:
            worker.start()
        except RuntimeError:
            with self.mutex:
                self.thread_count -= 1
            return None
        return worker

    def _wait(self, call: _Call, timeout_s: float) -> None:
        try:
            if not call.done.acquire(timeout=timeout_s):
                self._gives_up(call)
        except BaseException:  # once more: nobody waits
            self._gives_up(call)

    def _gives_up(self, call: _Call) -> bool:
        """Note that a call is overdue; False if it has returned just now."""
        with self.mutex:
            if call.is_over:
                return False
            call.is_overdue = True
            self.overdue_count += 1
            self.has_room.notify_all()
            return True

    def _timed_out(self, why: str) -> OSError:
        text = f"{os.strerror(errno.ETIMEDOUT)}: {why}"
        if is_in_object_store(self.path):
            return UnreachableError(errno.EHOSTUNREACH, text, str(self.path))
        return OSError(errno.ETIMEDOUT, text, str(self.path))

    def lets_go(self, worker: _Worker) -> bool:
        """Return whether a thread that has waited for long may end: nobody is about to give it a call."""
        with self.mutex:
            if worker not in self.idle:
                return False
            self.idle.remove(worker)
            self.thread_count -= 1
            return True

    def has_returned(self, worker: _Worker, call: _Call) -> None:
        """Hand the outcome over, or take it back where nobody waits for it."""
        deferred: list[Callable[[], None]] = []
        with self.mutex:
            call.is_over = True
            self.idle.append(worker)
            self.has_room.notify()
            if call.is_overdue:
                self.overdue_count -= 1
                if not self.overdue_count:
                    logger.warning("%s: its last call has returned", self.path)
                    deferred, self.deferred = self.deferred, []
        call.done.release()
        if call.heard is not None:
            call.heard.release()
        if call.is_overdue and hasattr(call.result, "close"):
            _quietly(call.result.close)
        for later in deferred:
            _quietly(later)

    def when_all_have_returned(self, call: Callable[[], None]) -> None:
        """Do it now, or when no call of this volume is overdue any more."""
        with self.mutex:
            if self.overdue_count:
                self.deferred.append(call)
                return
        call()


class Begun:
    """A call that a thread of a volume makes; to call this is to wait for it."""

    __slots__ = ("_call", "_timeout_s", "begun_s", "volume")

    def __init__(self, volume: _Volume, call: _Call, timeout_s: float) -> None:
        self.volume, self._call, self._timeout_s, self.begun_s = volume, call, timeout_s, time.monotonic()

    def __call__(self) -> Any:
        return self.volume._outcome(self._call, self._timeout_s, self.begun_s)

    @property
    def is_over(self) -> bool:
        return self._call.is_over

    @property
    def left_s(self) -> float:
        """Return for how long it may still be waited for."""
        return 0.0 if self._call.is_over else self.begun_s + self._timeout_s - time.monotonic()

    @property
    def has_failed(self) -> bool:
        return self._call.is_over and self._call.error is not None

    def give_up_at(self, end_s: float) -> None:
        """Wait no longer than up to a time of the monotonic clock."""
        self._timeout_s = min(self._timeout_s, end_s - self.begun_s)


def outcome(call: Callable[[], T]) -> "T | BaseException":
    """Return what a call returns or raises."""
    try:
        return call()
    except Exception as error:
        return error


def _quietly(call: Callable[[], None]) -> None:
    try:
        call()
    except OSError as error:
        logger.warning("%s", error)


class DeadlineFiles:
    """`Files` on which no call takes longer than a bounded time."""

    def __init__(self, inner: Files, timeout_s: float | None = None) -> None:
        self._inner, self._timeout_s = inner, timeout_s
        self._volumes: dict[Path, _Volume] = {}
        renew_in_children(Stage.FILES, self)

    def renew(self) -> None:
        for volume in self._volumes.values():
            volume.renew()

    @property
    def timeout_s(self) -> float:
        if self._timeout_s is None:
            self._timeout_s = timeout_of()
        return self._timeout_s

    def volume(self, path: Path) -> _Volume:
        root = volume_of(path)
        known = self._volumes.get(root)
        return known if known is not None else self._volumes.setdefault(root, _Volume(root))

    def run(self, path: Path, call: Callable[[], T]) -> T:
        return self.volume(path).run(call, self.timeout_s)

    def create(self, path: Path) -> "DeadlineFile":
        return DeadlineFile(self, path, self.run(path, partial(self._inner.create, path)))

    def open(self, path: Path, writable: bool = False, size: int | None = None) -> "DeadlineFile":
        return DeadlineFile(self, path, self.run(path, partial(self._inner.open, path, writable, size)))

    def unlink(self, path: Path) -> None:
        self.run(path, partial(self._inner.unlink, path))

    def replace(self, old: Path, new: Path) -> None:
        self.run(old, partial(self._inner.replace, old, new))

    def make_directory(self, path: Path) -> None:
        self.run(path, partial(self._inner.make_directory, path))

    def share_directory(self, path: Path, with_group: bool) -> None:
        self.run(path, partial(self._inner.share_directory, path, with_group))

    def remove_directory(self, path: Path) -> None:
        self.run(path, partial(self._inner.remove_directory, path))

    def list_directory(self, path: Path) -> list[str]:
        return self.run(path, partial(self._inner.list_directory, path))

    def list_tags(self, path: Path) -> dict[str, str]:
        return self.run(path, partial(self._inner.list_tags, path))

    def sync_directory(self, path: Path) -> None:
        self.run(path, partial(self._inner.sync_directory, path))

    def file_size(self, path: Path) -> int:
        return self.run(path, partial(self._inner.file_size, path))

    def file_sizes(self, path: Path) -> dict[str, int]:
        return self.run(path, partial(self._inner.file_sizes, path))

    def is_directory(self, path: Path) -> bool:
        return self.run(path, partial(self._inner.is_directory, path))

    def drop_cache(self, path: Path) -> None:
        self.run(path, partial(self._inner.drop_cache, path))

    def lock(self, path: Path) -> "DeadlineLock":
        return DeadlineLock(self, path, self.run(path, partial(self._inner.lock, path)))


class DeadlineFile:
    """An open file of `DeadlineFiles`."""

    __slots__ = ("_inner", "_timeout_s", "_volume", "opened_size", "path", "tag")

    def __init__(self, files: DeadlineFiles, path: Path, inner: File) -> None:
        self.path, self._inner, self.opened_size, self.tag = path, inner, inner.opened_size, inner.tag
        self._volume, self._timeout_s = files.volume(path), files.timeout_s

    def run(self, call: Callable[[], T]) -> T:
        return self._volume.run(call, self._timeout_s)

    def read_at(self, offset_bytes: int, size: int) -> bytes:
        return self._volume.run(partial(self._inner.read_at, offset_bytes, size), self._timeout_s)

    def read_into(self, offset_bytes: int, buffer: memoryview) -> int:
        inner = self._inner
        cached = inner.read_cached(offset_bytes, buffer) if isinstance(inner, OsFile) else 0
        if cached == len(buffer):
            return cached
        rest = partial(inner.read_into, offset_bytes + cached, buffer[cached:])
        return cached + self._volume.run(rest, self._timeout_s)

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        if isinstance(self._inner, ReadingAhead):
            self._inner.expect(ranges)

    def write_at(self, offset_bytes: int, data: bytes | memoryview) -> None:
        self._volume.run(partial(self._inner.write_at, offset_bytes, data), self._timeout_s)

    def truncate(self, size: int) -> None:
        self._volume.run(partial(self._inner.truncate, size), self._timeout_s)

    def sync(self) -> None:
        self._volume.run(self._inner.sync, self._timeout_s)

    def start_writing(self, offset_bytes: int, size: int) -> None:
        if isinstance(self._inner, OsFile):
            self._volume.run(partial(self._inner.start_writing, offset_bytes, size), self._timeout_s)

    def size(self) -> int:
        return self._volume.run(self._inner.size, self._timeout_s)

    def size_at_path(self) -> int | None:
        inner = self._inner
        return self._volume.run(inner.size_at_path, self._timeout_s) if isinstance(inner, Lasting) else None

    def close(self) -> None:
        self._volume.when_all_have_returned(self._inner.close)


class DeadlineLock:
    """A lock of `DeadlineFiles`: let go of when no call on its volume is under way any more."""

    __slots__ = ("__weakref__", "_inner", "_timeout_s", "_volume")

    def __init__(self, files: DeadlineFiles, path: Path, inner: Lock) -> None:
        self._inner, self._volume, self._timeout_s = inner, files.volume(path), files.timeout_s

    def try_acquire(self) -> bool:
        return self._volume.run(self._inner.try_acquire, self._timeout_s)

    def write_note(self, note: bytes) -> None:
        self._volume.run(partial(self._inner.write_note, note), self._timeout_s)

    def read_note(self) -> bytes:
        return self._volume.run(self._inner.read_note, self._timeout_s)

    def close(self) -> None:
        self._volume.when_all_have_returned(self._inner.close)


def together(files: Files, path: Path, call: Callable[[], T]) -> T:
    """Return what `call` returns; all that it does on this path's volume has one deadline, and one thread."""
    return files.run(path, call) if isinstance(files, DeadlineFiles) else call()


def on_file(file: File, call: Callable[[], T]) -> T:
    """Return what `call` returns; all that it does with the open file has one deadline, and one thread."""
    return file.run(call) if isinstance(file, DeadlineFile) else call()


def at_once(files: Files, path: Path, calls: "Sequence[Callable[[], T]]") -> "list[T | BaseException]":
    """Return what calls on this path's volume return or raise, in order; several are made at a time, within bounds.

    All of them have one deadline.
    """
    if not isinstance(files, DeadlineFiles) or len(calls) < 2:
        return [outcome(call) for call in calls]
    return files.run(path, partial(files.volume(path).spread, calls, files.timeout_s))


class VolumeCall(Generic[T]):
    """`together` as a value: work on one volume, which a round on several volumes hands straight to that one's thread.

    `Environment.parallel` begins all of them before it waits for any.
    """

    __slots__ = ("_call", "_files", "_path", "majority_suffices")

    def __init__(self, files: Files, path: Path, call: Callable[[], T], majority_suffices: bool = False) -> None:
        """`majority_suffices`: a majority of the volumes is enough for the round, so it waits for no slow one."""
        self._files, self._path, self._call = files, path, call
        self.majority_suffices = majority_suffices and is_in_object_store(path)

    def __call__(self) -> T:
        return together(self._files, self._path, self._call)

    @property
    def has_thread(self) -> bool:
        """Return whether the volume has threads of its own, so that `begin` does not wait for the work."""
        return isinstance(self._files, DeadlineFiles)

    @property
    def volume(self) -> Path:
        return volume_of(self._path)

    def begin(self, heard: threading.Semaphore | None = None) -> Callable[[], T] | Begun:
        """Hand the work over; what is returned waits for it, and has to be called. Raises OSError(ETIMEDOUT)."""
        assert isinstance(self._files, DeadlineFiles)
        return self._files.volume(self._path).begin(self._call, self._files.timeout_s, heard)
