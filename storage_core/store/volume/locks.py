"""The locks of the volumes: one owner at a time, among the threads of this process and among processes.

A mutex serialises the threads; `flock` on VOLUME/lock serialises processes, and the kernel lets go of it when the
owner dies. The file is opened anew for each session, so that a store deleted and made again under the same path is not
locked through a file that is gone. Waiting is bounded, and the error names the owner.
"""

import json
import logging
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from weakref import WeakSet

from storage_core.deadlines import together
from storage_core.errors import NoQuorumError, StoreBusyError
from storage_core.files import Files, Lock
from storage_core.forks import Stage, renew_in_children, without_fork
from storage_core.os_errors import CLOSED, FULL, raise_if_limit
from storage_core.paths import is_in_object_store

logger = logging.getLogger(__name__)
FILE_NAME = "lock"
BACKOFF_FIRST_S = 0.001
BACKOFF_MAX_S = 0.05

LET_GO_ATTEMPTS = 16  # interruptions that letting go survives

Mutex = threading.RLock  # released by its owner alone: once more does no harm
_mutexes: dict[str, Mutex] = {}


class _Opened:
    """The lock files that this process has open, acquired or not."""

    def __init__(self) -> None:
        self.locks: WeakSet[Lock] = WeakSet()

    def renew(self) -> None:
        _mutexes.clear()
        for lock in list(self.locks):
            lock.close()
        self.locks.clear()


_opened = _Opened()
renew_in_children(Stage.LOCKS, _opened)


def _mutex(path: Path) -> Mutex:
    with without_fork():
        return _mutexes.setdefault(str(path), threading.RLock())


@dataclass(frozen=True, slots=True)
class HeldLocks:
    """What a lock owner got: the volumes it has locked, and those that other processes have."""

    locked: frozenset[Path]
    busy: frozenset[Path]


@contextmanager
def hold(
    files: Files, volumes: Sequence[Path], needed: int, timeout_s: float, patience_s: float = 0.0
) -> Iterator[HeldLocks]:
    """Hold the locks of at least `needed` of the volumes; yield which.

    The volumes come in the order of their ids, the same in every process. Whoever gets too few lets go of all and tries
    again; for `patience_s` also while others have just some of them. Raises StoreBusyError after `timeout_s`, naming
    who has the store; OSError if the files are to blame.
    """
    now_s = time.monotonic()
    deadline, waits_until = now_s + timeout_s, now_s + patience_s
    mutexes = [_mutex(volume / FILE_NAME) for volume in volumes]
    # Those in object stores are written as they were read, or not at all: there is nothing to be locked.
    lockable = [volume for volume in volumes if not is_in_object_store(volume)]
    free = frozenset(volumes).difference(lockable)
    # What is to be let go of is noted before it is taken: Ctrl-C may come between any two steps.
    taken: list[Mutex] = []
    locks: dict[Path, Lock] = {}
    try:
        for mutex, volume in zip(mutexes, volumes, strict=True):
            taken.append(mutex)
            if not mutex.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
                taken.pop()
                raise StoreBusyError(
                    f"{volume}: another thread of this process has held the store for {timeout_s:g} s",
                    store=str(volume),
                )
        busy = _acquire(files, lockable, needed - len(free), (deadline, waits_until), timeout_s, locks)
        yield HeldLocks(free.union(locks), busy)
    finally:
        _let_go(locks, taken)


def _let_go(locks: dict[Path, Lock], taken: list[Mutex]) -> None:
    """Close the lock files and release the mutexes, whatever interrupts it; then let the interruption go on."""
    interruption: BaseException | None = None
    for _ in range(LET_GO_ATTEMPTS):
        try:
            while locks:
                volume, lock = next(iter(locks.items()))
                close_lock(lock)
                del locks[volume]
            while taken:
                try:
                    while True:  # also what an interruption of letting go has left before
                        taken[-1].release()
                except RuntimeError:  # it is not this thread's any more
                    taken.pop()
            break
        except BaseException as error:
            interruption = error
    if interruption is not None:
        raise interruption


def _acquire(
    files: Files,
    volumes: Sequence[Path],
    needed: int,
    until: tuple[float, float],
    timeout_s: float,
    locks: dict[Path, Lock],
) -> frozenset[Path]:
    """Fill `locks`; return the volumes that others have.

    `until`: when too few are an error, and until when those that others have are waited for.
    """
    deadline, waits_until = until
    pause_s = BACKOFF_FIRST_S
    while True:
        errors, busy = _try_all(files, volumes, locks)
        if len(locks) >= needed and (not busy or time.monotonic() >= waits_until):
            return frozenset(volume for volume, _ in busy)
        got = len(locks)
        _let_go(locks, [])
        if not busy and (len(volumes) == 1 or errors[0].errno in (*CLOSED, *FULL)):
            raise errors[0]
        if not busy:
            for error in errors:
                raise_if_limit(error)
            reasons = "; ".join(str(error) for error in errors)
            raise NoQuorumError(
                f"{got} volumes can be locked, {needed} are needed: {reasons}", available=got, needed=needed
            )
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            where, note = busy[0]
            raise StoreBusyError(
                f"{where}: {described(note)} has held the store for longer than {timeout_s:.3g} s", store=str(where)
            )
        time.sleep(min(left_s, pause_s * random.uniform(0.5, 1.5)))
        pause_s = min(pause_s * 2, BACKOFF_MAX_S)


def _try_all(
    files: Files, volumes: Sequence[Path], locks: dict[Path, Lock]
) -> tuple[list[OSError], list[tuple[Path, bytes]]]:
    """Fill `locks` with those that were free; return the errors of volumes that have none, and who holds the others."""
    errors: list[OSError] = []
    busy: list[tuple[Path, bytes]] = []
    for volume in volumes:
        try:
            lock = locks[volume] = open_lock(files, volume / FILE_NAME)
        except OSError as error:
            errors.append(error)
            continue
        try:
            note = together(files, volume / FILE_NAME, partial(_try, lock))
            if note is None:
                continue
            busy.append((volume, note))
        except OSError as error:
            errors.append(error)
        close_lock(lock)
        del locks[volume]
    return errors, busy


def _try(lock: Lock) -> bytes | None:
    """Acquire a lock and say who has it; return the note of another owner, None if it was free."""
    if not lock.try_acquire():
        return lock.read_note()
    try:
        lock.write_note(holders_note())
    except OSError as error:
        if error.errno not in FULL:
            raise
        logger.warning("%s", error)  # the note is for people; without an owner nobody could make room
    return None


def open_lock(files: Files, path: Path) -> Lock:
    """Return the lock on a file, not acquired yet, that forked children close before they do anything else."""
    with without_fork():
        lock = files.lock(path)
        _opened.locks.add(lock)
    return lock


def close_lock(lock: Lock) -> None:
    """Let go of what `open_lock` returned."""
    _opened.locks.discard(lock)
    lock.close()


def holders_note() -> bytes:
    """Return what a lock owner leaves in the locked file, for people: who and since when."""
    import socket  # readers, who write no note, do without it

    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": since}).encode()


def described(note: bytes) -> str:
    """Return a lock owner's note as text."""
    try:
        owner = json.loads(note)
        return f"process {owner['pid']} on {owner['host']} (since {owner['since']})"
    except (ValueError, KeyError, TypeError):
        return "another process"
