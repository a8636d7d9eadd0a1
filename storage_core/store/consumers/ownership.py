"""Who reads as a durable consumer: one live query. An OS lock says so, and ends with the process that holds it.

In object stores a lease says so (leases.py), whose number is the consumer's generation. The metadata gets the next
generation first, whether the former owner has let go, is gone or lives, and the lease of that one is created then, by
nobody else: who finds that somebody else was faster, gives way.

A query owns a consumer by `flock` on one file of each volume, for as long as it runs: a majority of the volumes that
are there, and if somebody else has any of them it is his. The kernel lets go when the process dies, so a restart after
SIGKILL is no second query; one that is just dying is waited for. A second live query is refused, naming the first, or
takes the consumer over: then the metadata gets the consumer's next generation, the new owner locks under that one, and
what the former says under its own is refused.

A file is named by a digest of who is owned: stream incarnation, consumer, when that was made, generation. None of it
comes back, so a name is never used for anything else, and `sweep` may unlink what the metadata no longer speaks of.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path

from storage_core.errors import FencedError, LeaseLostError, StoreBusyError
from storage_core.files import PAGE_SIZE, Lock
from storage_core.forks import Stage, renew_in_children
from storage_core.metadata.commands import Event, TakeConsumer
from storage_core.metadata.consumer_state import ConsumerState
from storage_core.metadata.state import StreamState
from storage_core.raft.rules import majority
from storage_core.store.consumers import leases
from storage_core.store.consumers.leases import EXPIRES_S, LeaseName, Leases, OtherOwner
from storage_core.store.ensemble.metadata_client import translated
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.opened import OpenStore
from storage_core.store.volume import locks
from storage_core.store.volume.identity import OWNERS
from storage_core.store.volume.volumes import Volume

logger = logging.getLogger(__name__)
# In it, and never unlinked: locked by the one process that watches over the store, that runs archive commands.
WATCH_FILE, ARCHIVE_FILE = "maintain", "archive"
DYING_WAIT_S = 5.0  # for an owner that was killed and whose process is not gone yet
PAUSE_S = 0.05  # between two looks at it
_DIGEST = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class ConsumerLock:
    """What is owned: one consumer of one stream, as long as no other query takes it over."""

    incarnation: bytes  # of the stream
    consumer: str
    created_ns: int  # of the consumer: one that was deleted and made again is another
    generation: int

    @property
    def file_name(self) -> str:
        """Of its lock on a disk."""
        return _digest(b"%b %d" % (self._said, self.generation))

    @property
    def purpose(self) -> str:
        """Of its leases."""
        return _digest(self._said)

    @property
    def lease(self) -> LeaseName:
        return LeaseName(self.purpose, self.generation)

    @property
    def _said(self) -> bytes:
        return b"%b %b %d" % (self.incarnation, self.consumer.encode(), self.created_ns)


@dataclass(frozen=True, slots=True)
class _Former:
    """Who has a lock that is to be taken over."""

    consumer_lock: ConsumerLock
    owner: str
    is_dead: bool  # it gives no sign of life


def _digest(said: bytes) -> str:
    return blake2b(said, digest_size=16).hexdigest()


def consumer_lock_of(stream: StreamState, consumer: ConsumerState) -> ConsumerLock:
    return ConsumerLock(stream.incarnation, consumer.name, consumer.created_ns, consumer.generation)


def owner_of(store: OpenStore, stream: StreamState, consumer: ConsumerState) -> str:
    """Return which process reads, or was the last to read, as this consumer; empty if none is known. Takes no lock."""
    consumer_lock, files = consumer_lock_of(stream, consumer), store.environment.files
    for volume in store.volumes():
        try:
            if volume.is_remote:
                owner = leases.owner_on(volume, files, consumer_lock.lease)
                if owner is not None:
                    return str(owner)
                continue
            with closing(files.open(volume.path / OWNERS / consumer_lock.file_name)) as file:
                return locks.described(file.read_at(0, PAGE_SIZE))
        except OSError:  # no query has had it there, or the volume cannot be read: another one may know
            continue
    return ""


class Ownership:
    """The consumers that a query owns. For one thread at a time; a forked child owns nothing."""

    def __init__(self, store: OpenStore, take_over: bool) -> None:
        self._store, self._take_over = store, take_over
        volumes = store.volumes()
        is_remote = any(volume.is_remote for volume in volumes)
        self._leases = Leases(volumes, store.environment, store.lock_timeout_s) if is_remote else None
        self.renew()
        renew_in_children(Stage.STORES, self)

    def renew(self) -> None:
        """Own nothing: a forked child is another process, and its locks are closed already."""
        self._owned: dict[tuple[bytes, str, int], ConsumerLock] = {}  # by all of it but the generation
        self._locks: dict[ConsumerLock, list[Lock]] = {}
        if self._leases is not None:
            self._leases.forget()

    def close(self) -> None:
        """Let go of everything."""
        self._release(lock for acquired in self._locks.values() for lock in acquired)
        if self._leases is not None:
            self._leases.close()
        self.renew()

    def generation(self, stream: StreamState, consumer: ConsumerState) -> int:
        """Return the generation under which the consumer, as the session that goes on finds it, is owned.

        One that was deleted and made again since is owned anew. Raises FencedError if another query has taken it over,
        StoreBusyError.
        """
        if not self._check(consumer_lock_of(stream, consumer), stream, consumer):
            self.own_new(stream, consumer)
        return consumer.generation

    def _check(self, consumer_lock: ConsumerLock, stream: StreamState, consumer: ConsumerState) -> bool:
        """Return whether the lock is owned; raises FencedError if it was, and another query has the next one."""
        held = self._owned.get(_key(consumer_lock))
        is_lost = held is not None and self._leases is not None and self._leases.has_lost(held.purpose)
        if held is not None and (held != consumer_lock or is_lost):
            by = next((event.after for event in reversed(consumer.events) if event.kind == "consumer_taken_over"), "")
            raise FencedError(
                f"consumer {consumer.name!r} of stream {stream.name!r} was taken over by another query"
                f"{f', {by}' if by else ''}; this one has to end",
                stream=stream.name,
                consumer=consumer.name,
            )
        return held is not None

    def own(self, consumers: Iterable[tuple[StreamState, ConsumerState]]) -> bool:
        """Own these consumers, in this order; return whether the metadata has changed.

        Raises StoreBusyError naming the live query that has one, FencedError, and what writing raises.
        """
        taken_from: dict[tuple[bytes, str], _Former] = {}
        consumer_locks = [(consumer_lock_of(stream, consumer), stream, consumer) for stream, consumer in consumers]
        consumer_locks = [wanted for wanted in consumer_locks if not self._check(*wanted)]
        if self._leases is not None and len(consumer_locks) > 1:
            with translated(self._store.label):
                self._leases.observe(consumer_lock.lease for consumer_lock, _, _ in consumer_locks)
        for consumer_lock, stream, consumer in consumer_locks:
            owner, is_dead = self._lock_or_wait(consumer_lock)
            if owner and not (self._take_over or is_dead):
                raise _busy(stream, consumer, owner)
            if owner or self._leases is not None:
                taken_from[stream.incarnation, consumer.name] = _Former(consumer_lock, owner, is_dead)
        if not taken_from:
            return False
        if self._leases is None:
            self._store.together(lambda session: self._take(session, taken_from))
        else:
            for stream, consumer in self._store.together(lambda session: self._take(session, taken_from)):
                self.own_new(stream, consumer)
        return True

    def own_new(self, stream: StreamState, consumer: ConsumerState) -> ConsumerLock:
        """Own a consumer that was made in the session that goes on; raises StoreBusyError."""
        consumer_lock = consumer_lock_of(stream, consumer)
        owner = self._lock(consumer_lock)
        if owner:
            raise _busy(stream, consumer, owner)
        return consumer_lock

    def disown(self, consumer_lock: ConsumerLock) -> None:
        """Let go of what was owned for a change of the metadata that did not come about."""
        self._owned.pop(_key(consumer_lock), None)
        self._release(self._locks.pop(consumer_lock, ()))
        if self._leases is not None:
            self._leases.give_back(consumer_lock.purpose)

    def _take(
        self, session: Session, taken_from: Mapping[tuple[bytes, str], _Former]
    ) -> list[tuple[StreamState, ConsumerState]]:
        """Own the next generation of these consumers: locked first, so that nobody else finds it free.

        A lease is not: return the consumers whose next one is to be created when this is committed. Of several that
        wait for one, the first has it; the others find it taken. Raises StoreBusyError.
        """
        taken: list[tuple[StreamState, ConsumerState]] = []
        for (incarnation, name), former in taken_from.items():
            stream = session.state.by_incarnation(incarnation)
            consumer = stream.consumers.get(name.casefold()) if stream is not None else None
            if stream is None or consumer is None:  # deleted in the meantime
                continue
            consumer_lock = consumer_lock_of(stream, consumer)
            if self._leases is not None and consumer_lock != former.consumer_lock:
                held = self._leases.look(consumer_lock.lease)
                raise _busy(stream, consumer, str(held) if held is not None else "one that has just begun")
            consumer_lock = replace(consumer_lock, generation=consumer_lock.generation + 1)
            if self._leases is None:
                if busy := self._lock(consumer_lock):
                    raise _busy(stream, consumer, busy)
                session.if_taken_back(partial(self.disown, consumer_lock))
            reason = "another query reads as it from now on, as option consumerTakeover says"
            if former.is_dead:
                reason = f"another query reads as it from now on: it gave no sign of life for {EXPIRES_S:g} s, or ended"
            by = locks.described(locks.holders_note())
            events: tuple[Event, ...] = ()
            if former.owner:
                events = (Event("consumer_taken_over", stream.name, name, "", former.owner, by, reason),)
                logger.warning("consumer %s of stream %s is taken over from %s", name, stream.name, former.owner)
            session.propose(TakeConsumer(incarnation, name, consumer_lock.generation, events))
            taken.append((stream, replace(consumer, generation=consumer_lock.generation)))
        return taken

    # --- locks

    def _lock_or_wait(self, consumer_lock: ConsumerLock) -> tuple[str, bool]:
        """Lock the files of a consumer lock; return who has them, if they are not let go of within DYING_WAIT_S.

        Of a lease, which is not acquired here: who has it, and whether the owner is gone.
        """
        if self._leases is not None:
            with translated(self._store.label):
                if self._take_over:
                    held, is_dead = self._leases.look(consumer_lock.lease), False
                else:
                    held, is_dead = self._leases.look_or_wait(consumer_lock.lease)
            return str(held) if held is not None else "", is_dead
        waited, wait_s = 0.0, min(DYING_WAIT_S, self._store.lock_timeout_s)
        while True:
            owner = self._lock(consumer_lock)
            if not owner or self._take_over or waited >= wait_s:
                return owner, False
            self._store.environment.sleep(PAUSE_S)
            waited += PAUSE_S

    def _lock(self, consumer_lock: ConsumerLock) -> str:
        """Lock the files of a consumer lock on the volumes that are there; return who has one of them, else nothing."""
        if self._leases is not None:
            with translated(self._store.label):
                held = self._leases.acquire(consumer_lock.lease)
            if held is None:
                self._owned[_key(consumer_lock)] = consumer_lock
            return str(held) if held is not None else ""
        acquired: list[Lock] = []
        try:
            with translated(self._store.label):
                owner = _lock_on_each(self._store, consumer_lock.file_name, acquired)
        except BaseException:
            self._release(acquired)
            raise
        if owner:
            self._release(acquired)
            return owner
        self._locks[consumer_lock] = acquired
        self._owned[_key(consumer_lock)] = consumer_lock
        return ""

    @staticmethod
    def _release(acquired: Iterable[Lock]) -> None:
        for lock in acquired:
            locks.close_lock(lock)


@contextmanager
def alone(store: OpenStore, purpose: str) -> Iterator[OtherOwner]:
    """Be the one process that owns a purpose of the store, until the block ends or the process does.

    Yields what tells who else owns it: to be asked at once, and before each step, since a lease is lost by a process
    that was stopped for longer than EXPIRES_S. Raises what writing raises.
    """
    volumes = store.volumes()
    if any(volume.is_remote for volume in volumes):
        with leases.alone(volumes, store.environment, purpose, store.lock_timeout_s) as other_owner:
            yield other_owner
        return
    acquired: list[Lock] = []
    try:
        with translated(store.label):
            owner = _lock_on_each(store, purpose, acquired)
        yield lambda: owner
    finally:
        for lock in acquired:
            locks.close_lock(lock)


@contextmanager
def watching(store: OpenStore) -> Iterator[Callable[[], None]]:
    """Be the one process that watches over the store. Raises StoreBusyError naming the other one.

    Yields a check that raises LeaseLostError when another process has taken over.
    """
    with alone(store, WATCH_FILE) as other_owner:

        def check(error: type[StoreBusyError] = LeaseLostError) -> None:
            owner = other_owner()
            if owner:
                raise error(
                    f"{store.label}: another `jstream maintain --watch` does its maintenance: {owner}",
                    store=store.label,
                )

        check(StoreBusyError)
        yield check


def _lock_on_each(store: OpenStore, file_name: str, acquired: list[Lock]) -> str:
    """Lock a file on each volume that is there, filling `acquired`; return who has one of them, else nothing."""
    volumes = sorted((volume for volume in store.volumes() if volume.identity is not None), key=_id)
    files, errors = store.environment.files, []
    for volume in volumes:
        try:
            files.make_directory(volume.path / OWNERS)
            lock = locks.open_lock(files, volume.path / OWNERS / file_name)
            acquired.append(lock)
            if not lock.try_acquire():
                return locks.described(lock.read_note())
        except OSError as error:
            errors.append(error)
            continue
        _leave_note(lock)
    if errors and len(volumes) - len(errors) < majority(len(volumes)):
        raise errors[0]
    return ""


def _id(volume: Volume) -> bytes:
    return volume.volume_id


def _key(consumer_lock: ConsumerLock) -> tuple[bytes, str, int]:
    return consumer_lock.incarnation, consumer_lock.consumer, consumer_lock.created_ns


def _leave_note(lock: Lock) -> None:
    try:
        lock.write_note(locks.holders_note())
    except OSError as error:  # a full disk: the note is for people
        logger.info("the owner of a lock leaves no note: %s", error)


def _busy(stream: StreamState, consumer: ConsumerState, owner: str) -> StoreBusyError:
    return StoreBusyError(
        f"consumer {consumer.name!r} of stream {stream.name!r} belongs to a live query: {owner}; two queries on one "
        "consumer would share its position: end the other query, or give this one another consumer (also if one "
        "query reads twice by this consumer), or take it over with option consumerTakeover=true",
        stream=stream.name,
        consumer=consumer.name,
    )


# --- maintenance


def sweep(session: Session, env: Environment) -> None:
    """Unlink the files of consumer locks that nobody can have any more. Under the store's lock."""
    live = {
        consumer_lock_of(stream, consumer)
        for stream in session.state.streams.values()
        for consumer in stream.consumers.values()
    }
    generations = {consumer_lock.purpose: consumer_lock.generation for consumer_lock in live}
    file_names = {consumer_lock.file_name for consumer_lock in live}
    for volume in session.writable:
        directory = volume.path / OWNERS
        try:
            if volume.is_remote:
                consumers = [name for name in leases.names_on(volume, env.files) if _DIGEST.fullmatch(name.purpose)]
                # A generation that this session does not know yet may be another session's by now.
                former = [name for name in consumers if name.number < generations.get(name.purpose, name.number + 1)]
                leases.sweep([volume], env, former)
                continue
            for name in set(env.files.list_directory(directory)) - file_names:
                if _DIGEST.fullmatch(name):
                    _unlink_free(env, directory / name)
        except FileNotFoundError:  # no query has had a consumer here
            continue
        except OSError as error:
            logger.warning("%s: locks of former owners: %s", directory, error)


def _unlink_free(env: Environment, path: Path) -> None:
    """Unlink a lock file that nobody holds."""
    lock = locks.open_lock(env.files, path)
    try:
        if lock.try_acquire():
            env.files.unlink(path)
    finally:
        locks.close_lock(lock)
