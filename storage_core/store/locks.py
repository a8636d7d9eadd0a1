"""The lock of a volume: one holder at a time, among the threads of this process and among processes.

A mutex serialises the threads; `flock` on VOLUME/lock serialises processes, and the kernel lets go of it when the
holder dies. The file is opened anew for each turn, so that a store deleted and made again under the same path is not
locked through a file that is gone. Waiting is bounded, and the error names the holder.
"""

import json
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage_core.errors import StoreBusyError
from storage_core.files import Files, Lock

FILE_NAME = "lock"
BACKOFF_FIRST_S = 0.001
BACKOFF_MAX_S = 0.05

_mutexes: dict[str, threading.Lock] = {}
_opened: set[Lock] = set()  # every lock file that this process has open, acquired or not
_registry = threading.Lock()  # guards both; nobody forks while a lock file is opened


def _mutex(path: Path) -> threading.Lock:
    with _registry:
        return _mutexes.setdefault(str(path), threading.Lock())


def _before_fork() -> None:
    _registry.acquire()


def _after_fork_in_parent() -> None:
    _registry.release()


def _after_fork_in_child() -> None:
    """A forked child owns no lock: it closes what it inherited, or the flock would outlive its holder."""
    global _registry
    _registry = threading.Lock()
    _mutexes.clear()
    for lock in list(_opened):
        lock.close()
    _opened.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


@contextmanager
def hold(files: Files, volume: Path, timeout_s: float) -> Iterator[None]:
    """Hold the volume's lock; raises StoreBusyError after `timeout_s`, naming who has it."""
    path = volume / FILE_NAME
    deadline = time.monotonic() + timeout_s
    mutex = _mutex(path)
    if not mutex.acquire(timeout=max(timeout_s, 0.0)):
        raise StoreBusyError(f"{volume}: another thread of this process has held the store for {timeout_s:g} s")
    lock: Lock | None = None
    try:
        lock = _acquire(files, path, deadline, timeout_s)
        yield
    finally:
        if lock is not None:
            _close(lock)
        mutex.release()


def _acquire(files: Files, path: Path, deadline: float, timeout_s: float) -> Lock:
    pause_s = BACKOFF_FIRST_S
    while True:
        with _registry:
            lock = files.lock(path)
            _opened.add(lock)
        try:
            if lock.try_acquire():
                lock.write_note(_note())
                return lock
            note = lock.read_note()
        except BaseException:
            _close(lock)
            raise
        _close(lock)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise StoreBusyError(f"{path.parent}: {_describe(note)} has held the store for longer than {timeout_s:g} s")
        time.sleep(min(left_s, pause_s * random.uniform(0.5, 1.5)))
        pause_s = min(pause_s * 2, BACKOFF_MAX_S)


def _close(lock: Lock) -> None:
    _opened.discard(lock)
    lock.close()


def _note() -> bytes:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": since}).encode()


def _describe(note: bytes) -> str:
    try:
        holder = json.loads(note)
        return f"process {holder['pid']} on {holder['host']} (since {holder['since']})"
    except (ValueError, KeyError, TypeError):
        return "another process"
