"""Leases: rights that expire, of volumes in object stores, where there are no locks.

    owners/<name>.lease     JSON: who has it (`Owner`), and a sign that is another one each time it is put

Whoever wants a lease looks at it on all volumes, and creates it on each, in the order of their ids, if it is nowhere. A
thread for each volume puts it again every RENEW_S; `close` deletes it. Clocks of hosts are never compared: who sees all
signs unchanged for EXPIRES_S, by a clock of its own that does not go back, takes the owner for gone; at once if that is
a process of this very machine which has ended.

A lease is never taken away from its owner, who may only have slept, and no name is used again: the next owner creates
another one. So a deletion or a put that arrives late hits nobody else's. A lease alone protects nothing. It keeps the
peace, and the number behind it, the fencing token, refuses the former owner.
"""

import contextlib
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import msgspec

from storage_core.errors import CorruptionError, RequirementError
from storage_core.file_kinds import LEASE
from storage_core.files import Files
from storage_core.objects.client import CALL_TIMEOUT_S
from storage_core.raft.rules import majority
from storage_core.store.ensemble.ensemble import translated
from storage_core.store.ensemble.known import on_each
from storage_core.store.environment import Environment
from storage_core.store.volume.identity import OWNERS, VolumeIdentity
from storage_core.store.volume.volumes import Volume, label

logger = logging.getLogger(__name__)
SUFFIX = ".lease"
RENEW_S = 10.0  # between two puts of a lease
EXPIRES_S = 30.0  # without a new sign, as its observer counts them
LOOK_S = 1.0  # between two looks of who waits
_ENDED = ("Z", "X")  # states of a process that only waits for its parent to ask


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


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that somebody else has."""

    owner: Owner
    signs: Mapping[bytes, str]  # by volume
    machine: str  # of the observer

    def has_ended(self) -> bool:
        """Return whether it was given back, or its owner was a process of this machine, and is none any more."""
        return (
            self.owner.is_over or bool(self.machine) and self.owner.machine == self.machine and _has_ended(self.owner)
        )

    def is_renewed_since(self, before: "Held") -> bool:
        """Return whether somebody has put it since it was looked at before."""
        return any(before.signs.get(volume_id, sign) != sign for volume_id, sign in self.signs.items())


@dataclass(eq=False)
class _Names:
    """What the threads of one `Leases` share with it, and all that they keep alive."""

    mine: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)  # somebody else has these, under the same name
    stopped: threading.Event = field(default_factory=threading.Event)


class Leases:
    """The leases that one process has for one purpose. For one thread at a time; a forked child has none of them.

    Nobody has to close it: when it is forgotten, its leases are not renewed any more.
    """

    def __init__(self, volumes: Iterable[Volume], env: Environment, are_left: bool = False) -> None:
        """`are_left`: what is given back stays, marked as over; for names of which nothing else keeps count."""
        self._are_left = are_left
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
        self._observed: dict[str, tuple[Held | None, float]] = {}  # what they were like, and when
        weakref.finalize(self, self._names.stopped.set)

    # --- one lease

    def acquire(self, name: str) -> Held | None:
        """Create a lease that nobody has; return None, or who has it. Raises OSError if too few volumes answer."""
        held = self.look(name)
        if held is not None:
            return held
        self._names.mine.add(name)
        errors: list[OSError] = []
        try:
            for volume in self._volumes:
                try:
                    if not self._create(volume, name):
                        held = self.look(name)
                        break
                except OSError as error:
                    errors.append(error)  # it may be there all the same, and then it is renewed
            else:
                self._check_count(errors)
                self._start()
                return None
        except BaseException:
            self._release([name])
            raise
        self._release([name])
        return held or self.acquire(name)  # it was deleted meanwhile

    def look(self, name: str) -> Held | None:
        """Return who else has a lease, on any of the volumes. Raises OSError if too few of them answer."""
        owners: dict[bytes, Owner] = {}
        errors: list[OSError] = []
        looks = on_each(self._env, self._volumes, lambda volume: read(self._env.files, _path(volume, name)))
        for volume, outcome in zip(self._volumes, looks, strict=True):
            if isinstance(outcome, OSError):
                errors.append(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            elif outcome is not None and outcome.owner != self._owner_id:
                owners[volume.volume_id] = outcome
        self._check_count(errors)
        if not owners:
            return None
        signs = {volume_id: owner.sign for volume_id, owner in owners.items()}
        return Held(min(owners.values(), key=lambda owner: owner.is_over), signs, self._machine)

    def look_or_wait(self, name: str) -> tuple[Held | None, bool]:
        """Do the same, but wait until the owner is known to live or to be gone; return whether it is gone."""
        held = self.look(name)
        first, begun_s = self._observed.pop(name, (held, self._env.monotonic()))
        while held is not None:
            if held.has_ended():
                return held, True
            if first is not None and held.is_renewed_since(first):
                return held, False
            if self._env.monotonic() - begun_s >= EXPIRES_S:
                return held, True
            self._env.sleep(LOOK_S)
            held = self.look(name)
        return None, False

    def observe(self, names: Iterable[str]) -> None:
        """Begin to watch several leases at once, so that they are not waited for one after another."""
        for name in names:
            held = self.look(name)
            if held is not None:
                self._observed[name] = held, self._env.monotonic()

    def has_lost(self, name: str) -> bool:
        """Return whether somebody else has a lease of ours: somebody has removed it, and then it was free."""
        return name in self._names.lost

    def close(self) -> None:
        """Give everything back. Never raises: what cannot be given back expires."""
        self._names.stopped.set()
        for thread in self._threads:
            thread.join(CALL_TIMEOUT_S)  # a put that is under way would bring the lease back
        self._release(list(self._names.mine))
        self.forget()

    def _check_count(self, errors: list[OSError]) -> None:
        if errors and len(self._volumes) - len(errors) < majority(len(self._volumes)):
            raise errors[0]

    def _create(self, volume: Volume, name: str) -> bool:
        """Create a lease on one volume; return whether it is ours."""
        return _create(self._env.files, _path(volume, name), self._encoded())

    def _encoded(self, is_over: bool = False) -> bytes:
        return _encode(self._owner_id, self._since, self._machine, is_over)

    def _release(self, names: list[str]) -> None:
        self._names.mine.difference_update(names)
        mark = self._encoded(is_over=True) if self._are_left else None
        release = partial(_release, self._env.files, self._owner_id, names, mark)
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
        self._files, self._volume, self._names = files, volume, names
        self._owner_id, self._encoded = owner_id, encoded

    def run(self) -> None:
        while not self._names.stopped.wait(RENEW_S):
            try:
                self.renew()
            except Exception as error:  # the next time, before it expires
                logger.info("%s: a lease is not renewed: %s", self._volume.path, error)

    def renew(self) -> None:
        for name in sorted(self._names.mine):
            if self._names.stopped.is_set():
                return
            path = _path(self._volume, name)
            try:
                is_ours = self._put(path)
            except FileNotFoundError:  # somebody has removed it
                is_ours = _create(self._files, path, self._encoded())
            if not is_ours and name in self._names.mine and name not in self._names.lost:
                self._names.lost.add(name)
                logger.warning("%s is another process's by now, though it was this one's", path)

    def _put(self, path: Path) -> bool:
        with closing(self._files.open(path, writable=True)) as file:
            owner = _decode(LEASE.read(file))
            if owner is not None and owner.owner != self._owner_id and not owner.is_over:
                return False
            file.write_at(0, self._encoded())
            file.sync()
        return True


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
    return _decode(data) or Owner("", data[:64].hex(), "another host", 0, "an unknown time")


def _numbers(volumes: Iterable[Volume], env: Environment, purpose: str) -> list[int]:
    """Return the numbers of the leases `<purpose>-<number>` on these volumes, ascending."""
    prefix, numbers = f"{purpose}-", set()
    for outcome in on_each(env, list(volumes), lambda volume: env.files.list_directory(volume.path / OWNERS)):
        for name in () if isinstance(outcome, BaseException) else outcome:
            text = name.removeprefix(prefix).removesuffix(SUFFIX)
            if name == f"{prefix}{text}{SUFFIX}" and text.isdecimal() and text.isascii():
                numbers.add(int(text))
    return sorted(numbers)


@contextlib.contextmanager
def alone(volumes: Iterable[Volume], env: Environment, purpose: str) -> Iterator[str]:
    """Have the lease of a purpose of the store until the block ends. Yields nothing, or who has it.

    Each owner has the next number; the newest stays, so that no number comes twice.
    """
    at_hand = list(volumes)
    with closing(Leases(at_hand, env, are_left=True)) as leases:
        with translated(label(at_hand)):
            numbers = _numbers(at_hand, env, purpose)
            number, held, is_gone = 0, None, True
            if numbers:
                number = numbers[-1]
                held, is_gone = leases.look_or_wait(f"{purpose}-{number}")
            while held is None or is_gone:
                number += 1
                held = leases.acquire(f"{purpose}-{number}")
                if held is None:
                    sweep(at_hand, env, [f"{purpose}-{former}" for former in numbers])
                    break
                is_gone = held.has_ended()
        yield str(held.owner) if held is not None else ""


def place_beside(folder: Path, env: Environment) -> Volume:
    """Return a folder of an object store as the one volume of leases that are of no store."""
    identity = VolumeIdentity(bytes(16), bytes(16), bytes(16), 0)
    return Volume(identity.volume_id, folder, identity, files=env.files)


def last_owner(volume: Volume, env: Environment, purpose: str) -> str:
    """Return who has the newest lease of a purpose on a volume, as far as one look tells; nothing if nobody has."""
    numbers = _numbers([volume], env, purpose)
    owner = read(env.files, _path(volume, f"{purpose}-{numbers[-1]}")) if numbers else None
    is_gone = owner is None or Held(owner, {}, _machine(env)).has_ended()
    return "" if is_gone else str(owner)


def sweep(volumes: Iterable[Volume], env: Environment, names: Iterable[str]) -> None:
    """Delete leases that mean nothing any more."""
    for volume in volumes:
        for name in names:
            try:
                env.files.unlink(_path(volume, name))
            except OSError as error:
                logger.info("%s: a lease is left: %s", volume.path, error)


def owner_on(volume: Volume, files: Files, name: str) -> Owner | None:
    """Return who has a lease on one volume; None if nobody has. Raises OSError."""
    return read(files, _path(volume, name))


def _path(volume: Volume, name: str) -> Path:
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


def _release(files: Files, owner_id: str, names: list[str], mark: bytes | None, volume: Volume) -> None:
    """Delete leases of this owner on one volume, or put the mark that they are over in their place."""
    for name in names:
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
