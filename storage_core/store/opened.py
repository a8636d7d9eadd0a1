"""A store that is open: its metadata, its volumes, sessions, plans and appends, for all that is built on them.

Everything below one `OpenStore` may be used from several threads; several processes may open the same volumes. Users
have a `Store`, which adds streams as objects, and what operators ask for.

What reads or writes messages is imported when it is called: a process that asks for metadata alone starts without it,
and without Arrow.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from storage_core.errors import (
    DiskFullError,
    NoQuorumError,
    NotFoundError,
    ProcessError,
    ReadOnlyError,
    StorageError,
    StoreBusyError,
    StoreClosedError,
    StreamNotFoundError,
)
from storage_core.metadata.config import LIMITS
from storage_core.metadata.state import StoreState, StreamState
from storage_core.store.ensemble.groups import CommitGroups
from storage_core.store.ensemble.host_check import check_host
from storage_core.store.ensemble.metadata_client import MetadataClient
from storage_core.store.ensemble.session import Session
from storage_core.store.ensemble.view import View
from storage_core.store.environment import Environment
from storage_core.store.replicas import mismatch
from storage_core.store.volume.volumes import Volume

if TYPE_CHECKING:
    from storage_core.metadata.commands import Remove
    from storage_core.sequences import SequenceSet
    from storage_core.store.maintenance.maintenance import Maintenance
    from storage_core.store.reading.plan import ReadPlan, ReadRequest
    from storage_core.store.replicas.replicas import Survey
    from storage_core.store.writing.appends import CommitResult, WriterBatch
    from storage_core.store.writing.duplicates import MsgIdWindow
    from storage_core.store.writing.instructions import Condition
    from storage_core.store.writing.limits import Limits
    from storage_core.store.writing.per_subject import SubjectIndex
    from storage_core.store.writing.removal import Removal
    from storage_core.store.writing.staging import StagedBlock, Stager, Transaction

logger = logging.getLogger(__name__)
T = TypeVar("T")
LOCK_TIMEOUT_S = 60.0


class OpenStore:
    """What streams, consumers, reports and repairs need of a store."""

    def __init__(self, metadata: MetadataClient, env: Environment, read_only: bool, lock_timeout_s: float) -> None:
        self._metadata, self._env, self.lock_timeout_s = metadata, env, lock_timeout_s
        self._is_closed = False
        self._commits = CommitGroups(partial(self.session, optimistic=True))
        self.read_only = read_only

    # --- who and where

    @property
    def metadata(self) -> MetadataClient:
        """The store's metadata, through which every operation goes. Raises StoreClosedError after `close`."""
        self.check_open()
        return self._metadata

    def check_open(self) -> None:
        """Raise StoreClosedError after `close`."""
        if self._is_closed:
            raise StoreClosedError(self._metadata.label)

    @property
    def id(self) -> bytes:
        """The store's id, 16 bytes."""
        return self.metadata.store_id

    @property
    def paths(self) -> list[str]:
        """Absolute paths of the volumes, in the order of the store's voters, as this process last found them."""
        return [str(volume.path) for volume in self.metadata.known_volumes]

    def volumes(self) -> tuple[Volume, ...]:
        """Return every volume of the store, in the order of its voters, as it is found now."""
        return self.metadata.volumes()

    def volumes_for_reading(self) -> tuple[Volume, ...]:
        """Return the same for a caller that has a new view and reads from other volumes where one is away."""
        return self.metadata.volumes_for_reading()

    @property
    def label(self) -> str:
        """The store's volumes, for messages."""
        return self.metadata.label

    @property
    def environment(self) -> Environment:
        return self._env

    def view(self) -> View:
        """Return the newest committed state, and the index of the metadata log that it stands at. Looks at the volumes.

        An operation looks once and passes the view on. Where nothing has changed, a look costs a listing and a few
        small reads; in object stores, requests.
        """
        return self.metadata.view(self.lock_timeout_s)

    def newer(self, view: View) -> View:
        """Return the newest view, this one if nothing was committed since. For a caller that asks again soon: in object
        stores one small request asks one volume, another each time.
        """
        return self.view() if self.metadata.may_have_advanced(view) else view

    @property
    def known(self) -> View:
        """The newest view that this process has, at least what its own last write left. Asks no volume but once."""
        return self.metadata.cache.known.view or self.view()

    def check_host(self) -> None:
        """Raise OtherHostError if another host writes the store; takes no lock, and writes nothing."""
        check_host(self.view().state, self.volumes(), self.label, self._env)

    def __repr__(self) -> str:
        closed = "closed Store" if self._is_closed else "Store"
        return f"{closed}({', '.join(str(volume.path) for volume in self._metadata.known_volumes)})"

    # --- streams

    def streams(self) -> list[str]:
        """Return the names of the streams, sorted."""
        return sorted(stream.name for stream in self.view().state.streams.values())

    def stream_state(self, name: str, state: StoreState | None = None) -> StreamState:
        """Return the state of the stream of that name; raises NotFoundError naming the nearest name."""
        if not isinstance(name, str):
            raise ValueError(f"name of a stream: {name!r} is not text")
        state = state or self.view().state
        stream = state.stream(name)
        if stream is None:
            raise StreamNotFoundError(name, self.label, (known.name for known in state.streams.values()))
        return stream

    def enforce_limits(self) -> int:
        """Remove from every stream what is over its limits, and what nobody needs any more, also of those that nobody
        writes; return how many messages that were."""
        from storage_core.store.writing.limits import has_removal_limit

        count = 0
        for stream in self.view().state.streams.values():
            if stream.config.retention != LIMITS:
                count += self._release_all(stream.incarnation)
            if has_removal_limit(stream) or len(stream.expiries):
                with self.session(releases_space=True) as session:
                    count += self.enforce(session, stream.incarnation)
        return count

    def _release_all(self, incarnation: bytes) -> int:
        count, more = 0, 1
        while more:
            with self.session(releases_space=True) as session:
                more = self.release(session, incarnation)
            count += more
        return count

    def enforce(self, session: Session, incarnation: bytes, all_subjects: bool = False) -> int:
        """Remove what the stream has over its limits; return how many messages that were. As `enforcement.enforce`."""
        from storage_core.store.writing import enforcement

        return enforcement.enforce(session, incarnation, self._limits, self._subjects, all_subjects)

    def release(self, session: Session, incarnation: bytes, among: "SequenceSet | None" = None) -> int:
        """Remove what no consumer of the stream needs any more; return how many messages that were.

        `among`: only these are looked at; None: all.
        """
        from storage_core.store.writing.retention import release

        return release(session, incarnation, self._limits, self._env, among)

    def removal(self, session: Session, stream: StreamState, request: "Removal") -> "Remove":
        """Return the command that removes what is meant."""
        from storage_core.store.writing import removal

        return removal.command(session.state, stream, request, session.volumes, self._limits, self._env)

    def plan(self, request: "ReadRequest", view: View | None = None, volumes: Sequence[Volume] = ()) -> "ReadPlan":
        """Return what a read has to fetch, from metadata alone. Takes no lock.

        `view`, `volumes`: what the caller's operation has looked at.
        """
        from storage_core.store.reading.plan import ReadPlan, plan_stream
        from storage_core.store.reading.slices import BlockSlices

        view = view or self.view()
        volumes = volumes or self.volumes_for_reading()
        slices, ranges = [], []
        for name in request.streams:
            stream = self.stream_state(name, view.state)
            block_slices, covered = plan_stream(view.state, stream, volumes, request)
            slices.append(block_slices)
            ranges.append(covered)
        return ReadPlan(BlockSlices.concatenate(slices), tuple(ranges), view.index)

    def survey(self) -> "Survey":
        """Look at all volumes once, for questions about any number of streams."""
        from storage_core.store.replicas.replicas import Survey

        return Survey(self.metadata, self._env, self.lock_timeout_s)

    # --- appends: begin, write through Stagers, then commit or abort

    def begin(self, streams: Iterable[str] | None = None, view: View | None = None) -> "Transaction":
        """Return a new transaction over these streams, None for all; it can be sent to other processes.

        `view`: begin by this view, without a look at the volumes, if it has the streams and enough volumes are known.
        For blocks that this process makes itself: the commit checks whether the view still holds, and raises
        OutdatedTransaction if it does not.
        Raises NotFoundError, ReadOnlyError, NoQuorumError if a stream has too few volumes that can be written.
        """
        if self.read_only:
            raise ReadOnlyError(f"{self.label} was opened for reading only", store=self.label)
        names = names_of(streams)
        known = self.metadata.known_volumes
        if view is not None and all(volume.identity is not None for volume in known):
            try:
                return replace(self._transaction(view.state, known, names), is_from_cache=True)
            except (NotFoundError, NoQuorumError, ProcessError):
                pass  # a look finds out whether that is so
        return self._transaction(self.view().state, self.volumes(), names)

    def _transaction(self, state: StoreState, volumes: Sequence[Volume], names: Sequence[str] | None) -> "Transaction":
        from storage_core.store.writing import transactions

        chosen = [stream.name for stream in state.streams.values()] if names is None else names
        for name in chosen:
            self.stream_state(name, state)
        return replace(transactions.begin(state, volumes, chosen, self._env), is_routed=names is None)

    def commit(
        self,
        transaction: "Transaction",
        staged: "Sequence[StagedBlock]",
        writer: "WriterBatch | None" = None,
        overwrite: Sequence[str] = (),
        query: str = "",
        if_refused: Callable[[], None] | None = None,
        expected: "Sequence[Condition]" = (),
    ) -> "CommitResult":
        """Make the staged blocks part of their streams: all of them, durably, when this returns.

        `overwrite`: streams whose messages so far are removed in the same step, with an event that names the writer's
        query, or, without a writer, `query`. `if_refused`: done before this raises, if the append was refused before
        anything was written: nobody will ever name the blocks. A (writer, batch) that was committed before gives the
        same result again and stores nothing. Raises TransactionAbortedError, FencedError, RequirementError (a block is
        not on a majority of its stream's placement any more), StaleIncarnationError, ConditionFailedError;
        OutcomeUnknownError if the disks failed in between.
        `expected`: of the one stream that is appended to, beside what headers of messages expect.
        """
        from storage_core.store.writing import appends

        return self._commits.run(
            lambda session: appends.commit(
                session, transaction, staged, writer, overwrite, query,
                self._window, self._limits, self._subjects, self._env, expected,
            ),
            if_refused,
        )  # fmt: skip

    def store_all(
        self,
        transaction: "Transaction",
        stagers: "Sequence[Stager]",
        write: Callable[[], None],
        writer: "WriterBatch | None" = None,
        expected: "Sequence[Condition]" = (),
    ) -> "CommitResult":
        """Run `write`, which feeds the transaction's stagers, then commit their blocks; if either fails, delete the
        blocks.

        If the outcome of the commit cannot be determined, the blocks stay for the sweep of orphans.
        """
        from storage_core.store.writing.transactions import OutdatedTransaction

        def discard() -> None:
            for stager in stagers:
                stager.discard()

        try:
            write()
            staged = [block for stager in stagers for block in stager.finish()]
        except BaseException:
            discard()
            raise
        try:
            return self.commit(transaction, staged, writer, if_refused=discard, expected=expected)
        except (StoreBusyError, DiskFullError, NoQuorumError, OutdatedTransaction):
            # Nothing was stored, and asking would meet the same once more.
            discard()
            raise
        except BaseException as error:
            if not all(stager.is_discarded for stager in stagers):
                try:
                    self.abort(transaction)
                except Exception as second:
                    error.__context__ = second
            raise

    def abort(self, transaction: "Transaction") -> bool:
        """Give the transaction up and sweep its blocks; False, and nothing is touched, if it was committed."""
        from storage_core.store.writing import transactions

        with self.session() as session:
            return transactions.abort(session, transaction)

    @cached_property
    def _window(self) -> "MsgIdWindow":
        from storage_core.store.writing.duplicates import MsgIdWindow

        return MsgIdWindow()

    @cached_property
    def _limits(self) -> "Limits":
        from storage_core.store.writing.limits import Limits

        return Limits(self._env)

    @cached_property
    def _subjects(self) -> "SubjectIndex":
        from storage_core.store.writing.per_subject import SubjectIndex

        return SubjectIndex(self._env)

    # --- sessions

    @contextmanager
    def session(
        self, view: View | None = None, *, releases_space: bool = False, optimistic: bool = False
    ) -> Iterator[Session]:
        """Open a session as `MetadataClient.session` does; before it releases its locks, do one bounded round of
        maintenance.
        """
        with self.metadata.session(
            self.lock_timeout_s, releases_space=releases_space, optimistic=optimistic, view=view
        ) as session:
            yield session
            self.maintenance.after(session)

    @cached_property
    def maintenance(self) -> "Maintenance":
        """The bounded maintenance of this store, for whoever holds it."""
        from storage_core.store.maintenance.maintenance import Maintenance

        return Maintenance(self._env)

    def maintain_if_due(self, state: StoreState) -> None:
        """Do the maintenance of a writable open if a short look says that some is due: bounded, never waiting for the
        store."""
        due, drifts = mismatch.look_at_open(state, self.metadata.known_volumes, self._env)
        if not due and not drifts:
            return
        try:
            with self.metadata.session(0.0) as session:
                if due:
                    self.maintenance.after(session)
                    _, drifts = mismatch.look_at_open(session.state, session.volumes, self._env)
                mismatch.record(session, drifts, self._env)
        except StorageError as error:
            logger.info("%s: maintenance is left for later: %s", self.label, error)

    def together(self, call: Callable[[Session], T], view: View | None = None) -> T:
        """Return what `call` returns, done in a session that threads may share: one round of fsyncs for all of it.

        `view`: what the caller has looked at a moment ago. In object stores the session begins there.
        """
        return self._commits.run(call, view=view)


def names_of(names: object, argument: str = "streams") -> list[str] | None:
    """Return names as a list, None for all; text is one name. Raises ValueError for what are no names."""
    if names is None:
        return None
    listed: list[Any] = [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    for name in listed:
        if not isinstance(name, str):
            raise ValueError(f"{argument}: {names!r} is neither a name nor a list of names")
    return listed
