"""Claims: a name that one live process has at a time, as a consumer, the maintenance of a store, its archive commands.

On disks a claim is `flock` on the file of that name in `owners` of each volume, which the kernel ends with the process.
In object stores it is a lease (leases.py). Either keeps the peace and protects nothing: what a former claimant still
does is refused by what the name stands for, as by the generation of a consumer.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from storage_core.files import PAGE_SIZE, Files, Lock
from storage_core.raft.rules import majority
from storage_core.store.ensemble.metadata_client import translated
from storage_core.store.environment import Environment
from storage_core.store.volume import locks
from storage_core.store.volume.identity import OWNERS
from storage_core.store.volume.volumes import Volume, label

logger = logging.getLogger(__name__)
PAUSE_S = 0.05  # between two looks at a claimant that may be dying

OtherOwner = Callable[[], str]  # who has by now what this process claimed; empty: this process


@dataclass(frozen=True, slots=True)
class Claim:
    """What became of an attempt to claim a name."""

    is_ours: bool
    owner: str = ""  # who has the name instead, or from whom it was taken


class Claims(Protocol):
    """The names that one process has. For one thread at a time; a forked child has to forget them."""

    def claim(self, names: Iterable[str], seize: bool = False) -> dict[str, Claim]:
        """Claim these names, and wait while it is not known whether their claimants live.

        `seize`: take them from live claimants. Raises what reading a store raises.
        """
        ...

    def other_owner(self, name: str) -> str:
        """Return who has a name by now that this process claimed; nothing if this process has it."""
        ...

    def forget(self) -> None:
        """Have nothing, as a forked child."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


@contextmanager
def alone(claims: Claims, name: str) -> Iterator[OtherOwner]:
    """Have a name until the block ends, or until another process has it.

    Yields what returns that process: to be called at once, and before each step. Raises what reading a store raises.
    """
    with closing(claims):
        claim = claims.claim([name])[name]
        yield lambda: claims.other_owner(name) if claim.is_ours else claim.owner


class LockClaims:
    """Claims by locks on disks: all volumes that are there, and at least a majority."""

    def __init__(self, volumes: Iterable[Volume], env: Environment, wait_s: float) -> None:
        """`wait_s`: for how long a claimant is waited for that was killed, and may not be gone yet."""
        present = (volume for volume in volumes if volume.identity is not None)
        self._volumes = sorted(present, key=lambda volume: volume.volume_id)
        self._env, self._wait_s = env, wait_s
        self.forget()

    def forget(self) -> None:
        self._locks: list[Lock] = []  # a forked child's are closed already

    def claim(self, names: Iterable[str], seize: bool = False) -> dict[str, Claim]:
        with translated(label(self._volumes)):
            return {name: self._claim(name, seize) for name in names}

    def other_owner(self, name: str) -> str:
        return ""

    def close(self) -> None:
        _close(self._locks)
        self.forget()

    def _claim(self, name: str, seize: bool) -> Claim:
        owner, waited_s = self._lock(name), 0.0
        while owner and not seize and waited_s < self._wait_s:
            self._env.sleep(PAUSE_S)
            owner, waited_s = self._lock(name), waited_s + PAUSE_S
        if not owner or not seize:
            return Claim(not owner, owner)
        for volume in self._volumes:  # the former claimant keeps its lock on a file that has no name
            try:
                self._env.files.unlink(volume.path / OWNERS / name)
            except OSError as error:
                logger.info("%s: the lock %s is not replaced: %s", volume.path, name, error)
        successor = self._lock(name)
        return Claim(not successor, successor or owner)

    def _lock(self, name: str) -> str:
        """Lock the files of a name on the volumes; return who has one of them, else nothing."""
        acquired: list[Lock] = []
        try:
            owner = self._lock_on_each(name, acquired)
        except BaseException:
            _close(acquired)
            raise
        if owner:
            _close(acquired)
        else:
            self._locks += acquired
        return owner

    def _lock_on_each(self, name: str, acquired: list[Lock]) -> str:
        files, errors = self._env.files, []
        for volume in self._volumes:
            try:
                files.make_directory(volume.path / OWNERS)
                lock = locks.open_lock(files, volume.path / OWNERS / name)
                acquired.append(lock)
                if not lock.try_acquire():
                    return locks.described(lock.read_note())
            except OSError as error:
                errors.append(error)
                continue
            _leave_note(lock)
        if errors and len(self._volumes) - len(errors) < majority(len(self._volumes)):
            raise errors[0]
        return ""


def _close(acquired: Iterable[Lock]) -> None:
    for lock in acquired:
        locks.close_lock(lock)


def _leave_note(lock: Lock) -> None:
    try:
        lock.write_note(locks.holders_note())
    except OSError as error:  # a full disk: the note is for people
        logger.info("the owner of a lock leaves no note: %s", error)


def last_owner(volume: Volume, files: Files, name: str) -> str:
    """Return who has a name on a volume of a disk, or had it last. Raises OSError if nobody had."""
    with closing(files.open(volume.path / OWNERS / name)) as file:
        return locks.described(file.read_at(0, PAGE_SIZE))


def unlink_free(files: Files, path: Path) -> None:
    """Unlink a lock file that nobody holds."""
    lock = locks.open_lock(files, path)
    try:
        if lock.try_acquire():
            files.unlink(path)
    finally:
        locks.close_lock(lock)
