"""Leases: rights that expire, of volumes in object stores, where there are no locks.

    owners/<purpose>-<number>.lease     JSON: who has it (`Owner`), and a sign that is another one each time it is put

What a consumer, the maintenance of a store, its archive commands and a pipeline have is one purpose each, and each
owner has a higher number than the one before. The highest number owns the purpose; whoever sees a higher one than its
own has lost it, and ends. A lease is never taken away from its owner, who may only have slept, and no name is used
again: so a deletion or a put that arrives late hits nobody else's.

    renew       put the leases on a volume, then list it: a higher number is a loss, and a lease that is missing is
                created again only where there is no higher one. A thread for each volume does it every RENEW_S; who is
                about to act does it first (`other_owner`), since a process that was stopped and goes on knows nothing
    acquire     look, create on each volume in the order of their ids, then list: a higher number wins
    claim       the newest owner has ended, or all its signs have been the same for EXPIRES_S: acquire the next number,
                look again. An owner that woke up before it saw that number has put a new sign, and is waited for until
                it ends. Only then the former leases are swept. Who seizes a purpose waits for nobody
    close       put the mark that the lease is over, so that its number is not used again. A lost lease is deleted: a
                put that was under way may have brought it back after the sweep

An owner puts its sign before it looks for a higher number, and a successor creates the higher number before it looks
at the sign: one of them sees the other. Clocks of hosts are never compared: an observer counts by a clock of its own
that does not go back. An owner that stops between looking and acting is not kept from acting by any of this. What is
behind the lease refuses it then: a consumer's generation, the metadata's term, the identity of a pipeline's batch.
"""

import logging
import os
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import msgspec

from storage_core.errors import CorruptionError, RequirementError
from storage_core.file_kinds import LEASE
from storage_core.files import Files
from storage_core.objects.client import CALL_TIMEOUT_S
from storage_core.raft.rules import majority
from storage_core.store.consumers.claims import Claim
from storage_core.store.ensemble.metadata_client import translated
from storage_core.store.ensemble.process_cache import on_each
from storage_core.store.environment import Environment
from storage_core.store.volume.identity import OWNERS, VolumeIdentity
from storage_core.store.volume.volumes import Volume, label

logger = logging.getLogger(__name__)
T = TypeVar("T")
SUFFIX = ".lease"
_FILE_NAME = re.compile(r"([^/]+)-([0-9]{1,18})\.lease")
RENEW_S = 10.0  # between two puts of a lease
EXPIRES_S = 30.0  # without a new sign, as its observer counts them
LOOK_S = 1.0  # between two looks of who waits
_ENDED = ("Z", "X")  # states of a process that only waits for its parent to ask


@dataclass(frozen=True, slots=True)
class LeaseName:
    """The name of one lease; of one purpose each owner has a higher number."""

    purpose: str
    number: int

    def __str__(self) -> str:
        return f"{self.purpose}-{self.number}"


class Owner(msgspec.Struct, frozen=True):
    """Who has a lease, as its object says."""

    owner: str  # random: of one `Leases`
    sign: str  # random: of one put
    host: str
    pid: int
    since: str
    machine: str = ""  # boot of a kernel, and namespace of the pid within it; empty: nobody can tell
    started: str = ""  # when the process was, by the kernel: a pid is used again
    is_over: bool = False  # it was given back, and is left so that its name is not used again

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (since {self.since})"


_UNKNOWN = Owner("", "", "another host", 0, "an unknown time")


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A lease that somebody else has."""

    owner: Owner
    signs: Mapping[bytes, str]  # by volume
    machine: str  # of the observer
    silent_s: float = 0.0  # for which it was observed without a new sign, where that is too short to tell

    def __str__(self) -> str:
        if not self.silent_s:
            return str(self.owner)
        return f"{self.owner}, silent for {self.silent_s:g} s: it counts as ended after {EXPIRES_S:g} s"

    def has_ended(self) -> bool:
        """Return whether it was given back, or its owner was a process of this machine, and is none any more."""
        return (
            self.owner.is_over or bool(self.machine) and self.owner.machine == self.machine and _has_ended(self.owner)
        )

    def is_renewed_since(self, before: "LeaseInfo") -> bool:
        """Return whether somebody has put it since it was looked at before."""
        return any(before.signs.get(volume_id, sign) != sign for volume_id, sign in self.signs.items())


@dataclass(eq=False)
class _Names:
    """What the threads of one `Leases` share with it, and all that they keep alive."""

    mine: dict[str, int] = field(default_factory=dict)  # by purpose the number
    lost: dict[str, str] = field(default_factory=dict)  # by purpose who has it instead
    stopped: threading.Event = field(default_factory=threading.Event)


class Leases:
    """The leases that one process has of some volumes. For one thread at a time; a forked child has none of them.

    Nobody has to close it: when it is forgotten, its leases are not renewed any more.
    """

    def __init__(self, volumes: Iterable[Volume], env: Environment, wait_s: float) -> None:
        """`wait_s`: for how long an owner is waited for that may have ended."""
        self._wait_s = wait_s
        present = (volume for volume in volumes if volume.identity is not None)
        self._volumes = sorted(present, key=lambda volume: volume.volume_id)
        self._env = env
        self.forget()

    def forget(self) -> None:
        """Have nothing: as a forked child, in which no thread goes on."""
        self._owner_id = self._env.new_id().hex()
        self._since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._machine = _machine(self._env)
        self._names = _Names()
        encoded = partial(_encode, self._owner_id, self._since, self._machine)
        self.renewals = [
            Renewal(self._env.files, volume, self._names, self._owner_id, encoded) for volume in self._volumes
        ]
        self._threads: list[threading.Thread] = []
        self._observed: dict[LeaseName, tuple[LeaseInfo | None, float]] = {}  # what they were like, and when
        weakref.finalize(self, self._names.stopped.set)

    # --- one lease

    def acquire(self, name: LeaseName) -> LeaseInfo | None:
        """Create a lease that nobody has; return None, or who has it or a higher number of its purpose.

        Raises OSError if too few volumes answer.
        """
        until_s = self._env.monotonic() + self._wait_s
        while True:
            held = self.look(name)
            if held is not None:
                return held
            if self._create_on_each(name):
                newest = self._numbers(name.purpose)[-1:]
                if newest <= [name.number]:
                    self._start()
                    return None
                self._release([name.purpose])
                return self.look(LeaseName(name.purpose, newest[0])) or LeaseInfo(_UNKNOWN, {}, "")
            held = self.look(name)
            if held is not None:
                return held
            if self._env.monotonic() >= until_s:  # others come and go
                return LeaseInfo(_UNKNOWN, {}, "")
            self._env.sleep(LOOK_S)

    def _create_on_each(self, name: LeaseName) -> bool:
        """Create a lease on a majority; return whether it is ours on all that answer, else nothing is left of it."""
        self._names.mine[name.purpose] = name.number
        self._names.lost.pop(name.purpose, None)
        is_ours = False
        errors: list[OSError] = []
        try:
            for volume in self._volumes:
                try:
                    if not _create(self._env.files, _path(volume, name), self._encoded()):
                        break
                except OSError as error:
                    errors.append(error)  # it may be there all the same, and then it is renewed
            else:
                self._check_count(errors)
                is_ours = True
        finally:
            if not is_ours:
                self._release([name.purpose])
        return is_ours

    def claim(self, names: Iterable[str], seize: bool = False) -> dict[str, Claim]:
        """Own these purposes under their next numbers, once their newest owners are gone, or at once by `seize`."""
        purposes = list(names)
        with translated(label(self._volumes)):
            if len(purposes) > 1 and not seize:
                self._observe(purposes)
            return {purpose: self._succeed(purpose, seize) for purpose in purposes}

    def _succeed(self, purpose: str, seize: bool) -> Claim:
        numbers = self._numbers(purpose)
        number, held, is_gone = 0, None, True
        if numbers:
            number = numbers[-1]
            newest = LeaseName(purpose, number)
            held, is_gone = (self.look(newest), True) if seize else self._look_or_wait(newest)
        while held is None or is_gone:
            former, number = held, number + 1
            held = self.acquire(LeaseName(purpose, number))
            if held is None:
                if not seize:
                    held = self._wait_until_ended(LeaseName(purpose, number - 1), former)
                if held is not None:
                    self._release([purpose])
                    break
                sweep(self._volumes, self._env, [LeaseName(purpose, before) for before in numbers])
                return Claim(True, str(former.owner) if former is not None and not former.owner.is_over else "")
            is_gone = held.has_ended()
        return Claim(False, str(held))

    def _wait_until_ended(self, name: LeaseName, silent: LeaseInfo | None) -> LeaseInfo | None:
        """Wait for a silent owner that has woken up: it ends when it sees the next number. Return it if it does not."""
        until_s = self._env.monotonic() + self._wait_s
        held = self.look(name)
        is_gone = held is None or silent is None or not held.is_renewed_since(silent)
        while held is not None and not is_gone:
            if self._env.monotonic() >= until_s:
                return held
            held, is_gone = self._look_or_wait(name)
        return None

    def look(self, name: LeaseName) -> LeaseInfo | None:
        """Return who else has a lease, on any of the volumes. Raises OSError if too few of them answer."""
        owners: dict[bytes, Owner] = {}
        for volume, owner in self._answers(lambda volume: read(self._env.files, _path(volume, name))):
            if owner is not None and owner.owner != self._owner_id:
                owners[volume.volume_id] = owner
        if not owners:
            return None
        signs = {volume_id: owner.sign for volume_id, owner in owners.items()}
        return LeaseInfo(min(owners.values(), key=lambda owner: owner.is_over), signs, self._machine)

    def _look_or_wait(self, name: LeaseName) -> tuple[LeaseInfo | None, bool]:
        """Do the same, but wait until the owner is known to live or to be gone; return whether it is gone."""
        held = self.look(name)
        until_s = self._env.monotonic() + self._wait_s
        first, begun_s = self._observed.pop(name, (held, self._env.monotonic()))
        while held is not None:
            if held.has_ended():
                return held, True
            if first is not None and held.is_renewed_since(first):
                return held, False
            now_s = self._env.monotonic()
            if now_s - begun_s >= EXPIRES_S:
                return held, True
            if now_s >= until_s:
                return replace(held, silent_s=now_s - begun_s), False
            self._env.sleep(min(LOOK_S, until_s - now_s))
            held = self.look(name)
        return None, False

    def _observe(self, purposes: Iterable[str]) -> None:
        """Begin to watch several purposes at once, so that they are not waited for one after another."""
        for purpose in purposes:
            for number in self._numbers(purpose)[-1:]:
                name = LeaseName(purpose, number)
                held = self.look(name)
                if held is not None:
                    self._observed[name] = held, self._env.monotonic()

    def other_owner(self, name: str) -> str:
        """Renew all leases; return who else owns this purpose by now, nothing if this process does."""
        renewals = {renewal.volume.volume_id: renewal for renewal in self.renewals}
        with translated(label(self._volumes)):
            self._answers(lambda volume: renewals[volume.volume_id].renew())
        return self._names.lost.get(name, "")

    def close(self) -> None:
        """Give everything back. Never raises: what cannot be given back expires."""
        self._names.stopped.set()
        for thread in self._threads:
            thread.join(CALL_TIMEOUT_S)  # a put that is under way would bring the lease back
        self._release(list(self._names.mine))
        self.forget()

    def _answers(self, call: Callable[[Volume], T]) -> list[tuple[Volume, T]]:
        """Return what the call returns for each volume that answers. Raises OSError if too few do."""
        answers: list[tuple[Volume, T]] = []
        errors: list[OSError] = []
        for volume, outcome in zip(self._volumes, on_each(self._env, self._volumes, call), strict=True):
            if isinstance(outcome, OSError):
                errors.append(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                answers.append((volume, outcome))
        self._check_count(errors)
        return answers

    def _check_count(self, errors: list[OSError]) -> None:
        if errors and len(self._volumes) - len(errors) < majority(len(self._volumes)):
            raise errors[0]

    def _numbers(self, purpose: str) -> list[int]:
        """Return the numbers of the leases of a purpose, ascending. Raises OSError if too few volumes answer."""
        listings = self._answers(lambda volume: names_on(volume, self._env.files))
        names = {name for _, listing in listings for name in listing if name.purpose == purpose}
        return sorted(name.number for name in names)

    def _encoded(self, is_over: bool = False) -> bytes:
        return _encode(self._owner_id, self._since, self._machine, is_over)

    def _release(self, purposes: list[str]) -> None:
        mark = self._encoded(is_over=True)
        marks = {
            LeaseName(purpose, self._names.mine.pop(purpose)): None if purpose in self._names.lost else mark
            for purpose in purposes
        }
        release = partial(_release, self._env.files, self._owner_id, marks)
        for outcome in on_each(self._env, self._volumes, release):
            if isinstance(outcome, BaseException):
                logger.info("a lease is left to expire: %s", outcome)

    # --- all of them, again and again

    def _start(self) -> None:
        if not self._threads:
            self._threads = [
                threading.Thread(target=work.run, name="jstream-lease", daemon=True) for work in self.renewals
            ]
            for thread in self._threads:
                thread.start()


class Renewal:
    """Puts the leases of one `Leases` on one volume again. A volume that gives no answer holds up no other one."""

    def __init__(self, files: Files, volume: Volume, names: _Names, owner_id: str, encoded: "partial[bytes]") -> None:
        self._files, self.volume, self._names = files, volume, names
        self._owner_id, self._encoded = owner_id, encoded

    def run(self) -> None:
        while not self._names.stopped.wait(RENEW_S):
            try:
                self.renew()
            except Exception as error:  # the next time, before it expires
                logger.info("%s: a lease is not renewed: %s", self.volume.path, error)

    def renew(self) -> None:
        """Put the leases that this process owns, then find those that it has lost. Raises OSError."""
        missing: list[LeaseName] = []
        mine = [LeaseName(*item) for item in sorted(self._names.mine.items()) if item[0] not in self._names.lost]
        for name in mine:
            if self._names.stopped.is_set():
                return
            try:
                self._put(name)
            except FileNotFoundError:  # a successor has removed it, or somebody who should not have
                missing.append(name)
        newest = _newest(names_on(self.volume, self._files)) if mine else {}
        for name in mine:
            number = newest.get(name.purpose, 0)
            if number > name.number:
                self._lose(name, read(self._files, _path(self.volume, LeaseName(name.purpose, number))))
            elif name in missing and not self._names.stopped.is_set():
                path = _path(self.volume, name)
                if not _create(self._files, path, self._encoded()):
                    self._lose(name, read(self._files, path))

    def _put(self, name: LeaseName) -> None:
        with closing(self._files.open(_path(self.volume, name), writable=True)) as file:
            owner = _decode(LEASE.read(file))
            if owner is not None and owner.owner != self._owner_id and not owner.is_over:
                self._lose(name, owner)
                return
            file.write_at(0, self._encoded())
            file.sync()

    def _lose(self, name: LeaseName, owner: Owner | None) -> None:
        if self._names.mine.get(name.purpose) == name.number and name.purpose not in self._names.lost:
            self._names.lost[name.purpose] = str(owner or _UNKNOWN)
            logger.warning("%s: the lease %s is lost to %s", self.volume.path, name, owner or _UNKNOWN)


# --- objects


def read(files: Files, path: Path) -> Owner | None:
    """Return who has a lease on one volume; None if nobody has. One that cannot be understood is anybody's."""
    try:
        with closing(files.open(path)) as file:
            data = LEASE.read(file)
    except FileNotFoundError:
        return None
    except CorruptionError:
        data = b""
    return _decode(data) or msgspec.structs.replace(_UNKNOWN, sign=data[:64].hex())


def names_on(volume: Volume, files: Files) -> list[LeaseName]:
    """Return the names of the leases on a volume. Raises OSError."""
    names = (_FILE_NAME.fullmatch(name) for name in files.list_directory(volume.path / OWNERS))
    return [LeaseName(name[1], int(name[2])) for name in names if name]


def _newest(names: Iterable[LeaseName]) -> dict[str, int]:
    """Return the highest number of each purpose."""
    return {name.purpose: name.number for name in sorted(names, key=lambda name: name.number)}


def place_beside(folder: Path, env: Environment) -> Volume:
    """Return a folder of an object store as the one volume of leases that are of no store."""
    identity = VolumeIdentity(bytes(16), bytes(16), bytes(16), 0)
    return Volume(identity.volume_id, folder, identity, files=env.files)


def last_owner(volume: Volume, env: Environment, purpose: str) -> str:
    """Return who owns a purpose on a volume, as far as one look tells; nothing if nobody does. Raises OSError."""
    number = _newest(names_on(volume, env.files)).get(purpose)
    owner = read(env.files, _path(volume, LeaseName(purpose, number))) if number is not None else None
    is_gone = owner is None or LeaseInfo(owner, {}, _machine(env)).has_ended()
    return "" if is_gone else str(owner)


def sweep(volumes: Iterable[Volume], env: Environment, names: Iterable[LeaseName]) -> None:
    """Delete leases that mean nothing any more."""
    for volume in volumes:
        for name in names:
            try:
                env.files.unlink(_path(volume, name))
            except OSError as error:
                logger.info("%s: a lease is left: %s", volume.path, error)


def _path(volume: Volume, name: LeaseName) -> Path:
    return volume.path / OWNERS / f"{name}{SUFFIX}"


def _create(files: Files, path: Path, data: bytes) -> bool:
    """Create a lease; return whether the one that is there is ours: a creation may have been carried out twice."""
    try:
        with closing(files.create(path)) as file:
            file.write_at(0, data)
            file.sync()
    except FileExistsError:
        existing, ours = read(files, path), _decode(data)
        return existing is not None and ours is not None and existing.owner == ours.owner
    return True


def _release(files: Files, owner_id: str, marks: Mapping[LeaseName, bytes | None], volume: Volume) -> None:
    """Delete leases of this owner on one volume, or put the mark that they are over in their place."""
    for name, mark in marks.items():
        path = _path(volume, name)
        owner = read(files, path)
        if owner is None or owner.owner != owner_id:
            continue
        if mark is None:
            files.unlink(path)
            continue
        with closing(files.open(path, writable=True)) as file:
            file.write_at(0, mark)
            file.sync()


def _encode(owner_id: str, since: str, machine: str, is_over: bool = False) -> bytes:
    pid = os.getpid()
    sign, started = os.urandom(16).hex(), _stat(pid)[1]
    owner = Owner(owner_id, sign, socket.gethostname(), pid, since, machine, started, is_over)
    return msgspec.json.encode(owner)


def _decode(data: bytes) -> Owner | None:
    try:
        return msgspec.json.decode(data, type=Owner)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


# --- processes of this machine


def _machine(env: Environment) -> str:
    """Return within what a pid means one process: a boot of a kernel and a namespace of pids; empty if unknown."""
    try:
        return f"{env.lock_domain().partition('/')[0]} {_pid_namespace()}"
    except (RequirementError, OSError):
        return ""


@cache
def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def _has_ended(owner: Owner) -> bool:
    state, started = _stat(owner.pid)
    if state:
        return state in _ENDED or started != owner.started
    try:
        os.kill(owner.pid, 0)  # sends nothing
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # another user's, which is hidden here
        pass
    return False


def _stat(pid: int) -> tuple[str, str]:
    """Return the state of a process, and when it was started, as the kernel counts; empty if that cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        # Source: proc_pid_stat(5). After the name in parentheses come field 3, the state, and later 22, the start.
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""
