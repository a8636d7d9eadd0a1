"""Who reads as a durable consumer: one live query, which claims the consumer's name, and raises its generation.

A query claims the name of its consumer in each stream (claims.py) for as long as it runs, and then commits the next
generation of each of these consumers. What a former query still says under its own generation is refused, whether that
query has ended, sleeps, or was taken over: the generation protects the position. The claim keeps the peace: a second
live query is refused, and the error names the first, unless it takes the consumer over.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b

from storage_core.errors import FencedError, LeaseLostError, StoreBusyError
from storage_core.forks import Stage, renew_in_children
from storage_core.metadata.commands import Event, TakeConsumer
from storage_core.metadata.consumer_state import ConsumerState
from storage_core.metadata.state import StreamState
from storage_core.store.consumers import claims, leases
from storage_core.store.consumers.claims import Claims, LockClaims, alone
from storage_core.store.consumers.leases import EXPIRES_S, Leases
from storage_core.store.ensemble.session import Session
from storage_core.store.ensemble.view import View
from storage_core.store.environment import Environment
from storage_core.store.opened import OpenStore
from storage_core.store.volume import locks
from storage_core.store.volume.identity import OWNERS

logger = logging.getLogger(__name__)
WATCH, ARCHIVE = "maintain", "archive"  # names of who watches over the store, and of who runs archive commands
DYING_WAIT_S = 5.0  # for an owner that was killed and whose process is not gone yet
_DIGEST = re.compile("[0-9a-f]{32}")


def claims_of(store: OpenStore, dying_wait_s: float = 0.0) -> Claims:
    """Return the claims of this process on names of the store.

    `dying_wait_s`: for how long a claimant is waited for whose lock the kernel may be about to release.
    """
    volumes = store.volumes()
    if any(volume.is_remote for volume in volumes):
        return Leases(volumes, store.environment, store.lock_timeout_s)
    return LockClaims(volumes, store.environment, min(dying_wait_s, store.lock_timeout_s))


@contextmanager
def watching(store: OpenStore) -> Iterator[Callable[[], None]]:
    """Be the one process that watches over the store. Raises StoreBusyError naming the other one.

    Yields a check that raises LeaseLostError when another process has taken over.
    """
    with alone(claims_of(store), WATCH) as other_owner:

        def check(error: type[StoreBusyError] = LeaseLostError) -> None:
            owner = other_owner()
            if owner:
                raise error(
                    f"{store.label}: another `jstream maintain --watch` does its maintenance: {owner}",
                    store=store.label,
                )

        check(StoreBusyError)
        yield check


def _name_of(stream: StreamState, consumer: str) -> str:
    """Return the name that the owner of a consumer claims: a digest, which fits into a file's name."""
    return blake2b(b"%b %b" % (stream.incarnation, consumer.casefold().encode()), digest_size=16).hexdigest()


def owner_of(store: OpenStore, stream: StreamState, consumer: ConsumerState) -> str:
    """Return which process reads, or was the last to read, as this consumer; empty if none is known. Takes no lock."""
    name, env = _name_of(stream, consumer.name), store.environment
    for volume in store.volumes():
        try:
            if volume.is_remote:
                owner = leases.last_owner(volume, env, name)
            else:
                owner = claims.last_owner(volume, env.files, name)
        except OSError:  # no query has had it there, or the volume cannot be read: another one may know
            continue
        if owner:
            return owner
    return ""


class Ownership:
    """The consumers that a query owns. For one thread at a time; a forked child owns nothing."""

    def __init__(self, store: OpenStore, consumer: str, take_over: bool) -> None:
        self._store, self._consumer, self._take_over = store, consumer, take_over
        self._claims = claims_of(store, DYING_WAIT_S)
        self.renew()
        renew_in_children(Stage.STORES, self)

    def renew(self) -> None:
        """Own nothing: a forked child is another process."""
        self._former: dict[str, str] = {}  # by the name that is claimed, from whom it was taken
        self._generations: dict[tuple[bytes, int], int] = {}  # by stream and creation of the consumer
        self._claims.forget()

    def close(self) -> None:
        """Let go of everything."""
        self._claims.close()
        self.renew()

    def own(self, streams: Iterable[str], view: View) -> View:
        """Own the consumer of each of these streams, also where it is not made yet; return the newest view.

        Raises StoreBusyError naming the live query that has one, FencedError if another query has taken one over, and
        what writing raises.
        """
        names = sorted(streams)
        for stream, consumer in self._found(names, view):
            if consumer is not None:
                self._check(stream, consumer)
        claimed = {_name_of(stream, self._consumer): stream for stream, _ in self._found(names, view)}
        claimed = {name: stream for name, stream in claimed.items() if name not in self._former}
        if claimed:
            for name, claim in self._claims.claim(claimed, self._take_over).items():
                if not claim.is_ours:
                    raise _busy(claimed[name].name, self._consumer, claim.owner)
                self._former[name] = claim.owner
            view = self._store.view()  # a former owner may have written until now
        not_taken = [
            (stream, consumer)
            for stream, consumer in self._found(names, view)
            if consumer is not None and not self._check(stream, consumer)
        ]
        if not_taken:
            self._store.together(lambda session: self._take_all(session, not_taken), view)
            view = self._store.known
        return view

    def generation(self, session: Session, stream: StreamState, consumer: ConsumerState) -> int:
        """Return the generation under which the consumer, as the session has it, is owned.

        A consumer that was deleted and made again since is taken anew. Raises FencedError.
        """
        if not self._check(stream, consumer):
            self._take(session, stream, consumer)
        return self._generations[_key(stream, consumer)]

    def own_new(self, session: Session, stream: StreamState, consumer: ConsumerState) -> None:
        """Own a consumer that this session has made."""
        self._remember(session, stream, consumer, consumer.generation)

    def _found(self, names: Iterable[str], view: View) -> list[tuple[StreamState, ConsumerState | None]]:
        streams = [stream for name in names if (stream := view.state.stream(name)) is not None]
        return [(stream, stream.consumers.get(self._consumer.casefold())) for stream in streams]

    def _check(self, stream: StreamState, consumer: ConsumerState) -> bool:
        """Return whether the consumer is owned; raises FencedError if it was, and has another generation now."""
        generation = self._generations.get(_key(stream, consumer))
        if generation not in (None, consumer.generation):
            by = next((event.after for event in reversed(consumer.events) if event.kind == "consumer_taken_over"), "")
            raise FencedError(
                f"consumer {consumer.name!r} of stream {stream.name!r} was taken over by another query"
                f"{f', {by}' if by else ''}; this one has to end",
                stream=stream.name,
                consumer=consumer.name,
            )
        return generation is not None

    def _take_all(self, session: Session, consumers: Iterable[tuple[StreamState, ConsumerState]]) -> None:
        for seen_stream, seen in consumers:
            stream = session.state.by_incarnation(seen_stream.incarnation)
            consumer = stream.consumers.get(self._consumer.casefold()) if stream is not None else None
            if stream is None or consumer is None:  # deleted in the meantime
                continue
            if consumer.created_ns == seen.created_ns and consumer.generation != seen.generation:
                self._generations[_key(stream, consumer)] = seen.generation  # it was lost before it was taken
                self._check(stream, consumer)
            self._take(session, stream, consumer)

    def _take(self, session: Session, stream: StreamState, consumer: ConsumerState) -> None:
        """Commit the next generation: whoever had the consumer is fenced."""
        name = _name_of(stream, consumer.name)
        former = self._former.get(name, "")
        events: tuple[Event, ...] = ()
        if former:
            self._former[name] = ""
            session.if_taken_back(lambda: self._former.update({name: former}))
            reason = "another query reads as it from now on"
            if self._take_over:
                reason += ", as option consumerTakeover says"
            else:
                reason += f": it gave no sign of life for {EXPIRES_S:g} s, or ended"
            by = locks.described(locks.holders_note())
            events = (Event("consumer_taken_over", stream.name, consumer.name, "", former, by, reason),)
            logger.warning("consumer %s of stream %s is taken over from %s", consumer.name, stream.name, former)
        session.propose(TakeConsumer(stream.incarnation, consumer.name, consumer.generation + 1, events))
        self._remember(session, stream, consumer, consumer.generation + 1)

    def _remember(self, session: Session, stream: StreamState, consumer: ConsumerState, generation: int) -> None:
        key = _key(stream, consumer)
        self._generations[key] = generation

        def forget() -> None:
            self._generations.pop(key, None)

        session.if_taken_back(forget)


def _key(stream: StreamState, consumer: ConsumerState) -> tuple[bytes, int]:
    return stream.incarnation, consumer.created_ns


def _busy(stream: str, consumer: str, owner: str) -> StoreBusyError:
    return StoreBusyError(
        f"consumer {consumer!r} of stream {stream!r} belongs to a live query: {owner}; two queries on one consumer "
        "would share its position: end the other query, or give this one another consumer (also if one query reads "
        "twice by this consumer), or take it over with option consumerTakeover=true",
        stream=stream,
        consumer=consumer,
    )


def sweep(session: Session, env: Environment) -> None:
    """Unlink what is left of claims on consumers that are gone. Under the store's lock."""
    live = {
        _name_of(stream, consumer.name)
        for stream in session.state.streams.values()
        for consumer in stream.consumers.values()
    }
    for volume in session.writable:
        directory = volume.path / OWNERS
        try:
            if volume.is_remote:
                names = [name for name in leases.names_on(volume, env.files) if _DIGEST.fullmatch(name.purpose)]
                leases.sweep([volume], env, [name for name in names if name.purpose not in live])
                continue
            for name in set(env.files.list_directory(directory)) - live:
                if _DIGEST.fullmatch(name):
                    claims.unlink_free(env.files, directory / name)
        except FileNotFoundError:  # no query has had a consumer here
            continue
        except OSError as error:
            logger.warning("%s: locks of former owners: %s", directory, error)
