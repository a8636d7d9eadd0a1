"""Stream: the face of one stream towards Python. It names one incarnation: a stream made again is another one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from storage_core.appended import AppendedRange
from storage_core.errors import (
    InvalidMessageError,
    NotFoundError,
    StaleIncarnationError,
)
from storage_core.metadata import machine
from storage_core.metadata.commands import DeleteStream
from storage_core.metadata.config import StreamConfig, given_keys
from storage_core.metadata.consumer_config import ConsumerConfig
from storage_core.metadata.state import StoreState, StreamState
from storage_core.quantities import check_flag, whole_number
from storage_core.sequences import SEQUENCE_MAX, check_sequence
from storage_core.store import contents
from storage_core.store.arguments import Sequences, check_count, check_filter, sequence_set
from storage_core.store.consumers.consumer import Consumer
from storage_core.store.ensemble.view import View
from storage_core.store.opened import OpenStore
from storage_core.store.snapshot import ReadableStream
from storage_core.store.writing import incoming, removal
from storage_core.store.writing.appends import Appended, WriterBatch
from storage_core.store.writing.instructions import LAST_MSG_ID, LAST_SEQUENCE, LAST_SUBJECT_SEQUENCE, Condition
from storage_core.store.writing.removal import Removal, RemovalPlan
from storage_core.store.writing.staging import Stager, Transaction
from storage_core.store.writing.transactions import OutdatedTransaction

if TYPE_CHECKING:
    from storage_core.store.writing.limits import Excess

HeaderValue = bytes | str | None
Headers = Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]]  # pairs may repeat a key


class Published(NamedTuple):
    """Result of a publish: the sequence of the message; of a duplicate, that of the first message with its msg_id."""

    sequence: int
    duplicate: bool


class Stream(ReadableStream):
    """A named, numbered log of messages, as it is at each call. From `Store.stream` or `Store.add_stream`."""

    def __init__(self, store: OpenStore, incarnation: bytes, name: str) -> None:
        self._store, self.incarnation, self.name = store, incarnation, name

    def _look(self) -> tuple[View, StreamState]:
        """Return the newest view, and the stream in it."""
        view = self._store.view()
        return view, self._in(view.state)

    def _in(self, state: StoreState) -> StreamState:
        stream = state.by_incarnation(self.incarnation)
        if stream is None:
            raise self._stale()
        return stream

    def _stale(self) -> StaleIncarnationError:
        return StaleIncarnationError(f"stream {self.name!r} was deleted, or deleted and made again", stream=self.name)

    # --- as this process last read the store: when it opened the stream, or wrote to it, at the latest

    @property
    def config(self) -> StreamConfig:
        """The configuration, as this `Store` last read it. Looks at no volume; `state()` and `info()` look."""
        return self._in(self._store.known.state).config

    @property
    def first_sequence(self) -> int:
        """Sequence of the first message, last_sequence + 1 for none; as this `Store` last read it."""
        return self._in(self._store.known.state).first_sequence

    @property
    def last_sequence(self) -> int:
        """The highest sequence ever used, 0 for none; as this `Store` last read it."""
        return self._in(self._store.known.state).next_sequence - 1

    def __repr__(self) -> str:
        return f"Stream({self.name!r} of {self._store!r})"

    # --- the stream itself

    def edit(
        self, config: StreamConfig | Mapping[str, Any] | None = None, *, allow_overlap: bool = False, **keys: Any
    ) -> None:
        """Change the configuration: `edit(max_msgs=9)`, or a dict. Keys that are not given stay as they are.

        With another num_replicas its blocks are copied to other volumes first, or those on some volumes count no more.
        Messages over a limit that is lower now are removed in the same step; `excess` says before how many. If any of
        it is refused, nothing is changed. `allow_overlap`: other streams may take its new subjects. Raises ValueError
        naming the key, SubjectsOverlapError.
        """
        from storage_core.store import edits

        check_flag("allow_overlap", allow_overlap)
        edits.edit(self._store, self.state(), self._changes(config, keys), allow_overlap)

    def excess(self, config: StreamConfig | Mapping[str, Any] | None = None, **keys: Any) -> "Excess | None":
        """Return what `edit` with these keys would remove from the stream now; None for nothing."""
        from storage_core.store import edits

        state = self._store.view().state
        return edits.excess(self._store, state, self._in(state), self._changes(config, keys))

    def _changes(self, config: StreamConfig | Mapping[str, Any] | None, keys: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys that are given. Raises ValueError for another stream's name."""
        changes = given_keys(StreamConfig, config, keys)
        if changes.pop("name", self.name) != self.name:
            raise ValueError(f"name: a stream keeps its name, {self.name!r}")
        return changes

    def delete(self) -> None:
        """Delete the stream and its messages. A stream made later under its name is another incarnation."""
        with self._store.session(releases_space=True) as session:
            session.propose(DeleteStream(self._in(session.state).incarnation))

    # --- writing

    def append(
        self, table: incoming.Given, writer: WriterBatch | None = None, expected_last_sequence: int | None = None
    ) -> AppendedRange:
        """Append messages in write columns, atomically and durably; return the range of sequences they got.

        The range has `stored` and `duplicates`, the numbers of messages that the stream took and that it had already.

        Takes a table of pyarrow, pandas, polars or DuckDB (anything with `__arrow_c_stream__`), an iterable of tables
        that may be larger than memory, or an iterable of dicts, a message each.
        A `msg_id` that was seen within the stream's duplicate_window uses up a sequence and is not shown.
        `expected_last_sequence`: the append is refused unless this is the stream's last sequence, 0 for none. Messages
        may say in headers what they expect, as for a nats-server (`Nats-Expected-Last-Sequence` and others).
        Raises ConditionFailedError for either, ValueError for a schema and InvalidMessageError for a message that is
        not taken,
        StaleIncarnationError if the stream was deleted, also if another one has its name now.
        """
        got = self._append(table, writer, _expected(expected_last_sequence))
        duplicates = got.duplicate_count if got is not None else 0
        sequences = self._range(got)
        return AppendedRange(sequences, len(sequences) - duplicates, duplicates)

    def restore(self, batches: Iterable[pa.RecordBatch], writer: WriterBatch) -> range:
        """Append messages that were stored before; return the range of sequences that the stream has them in.

        Their headers tell the stream nothing any more. With a column `sequence` they keep their sequences: those that
        come before them, and that the stream has not given, are holes. Raises what `append` raises, and
        RequirementError if the stream has given such a sequence already.
        """
        return self._range(self._append_in(self._begun(), batches, writer, restores=True))

    def _range(self, got: Appended | None) -> range:
        """Return the sequences of what was appended; for nothing, the empty range at the end of the stream."""
        if got is not None:
            return range(got.first, got.end)
        next_sequence = self.state().next_sequence
        return range(next_sequence, next_sequence)

    def _append(
        self, table: incoming.Given, writer: WriterBatch | None = None, expected: Sequence[Condition] = ()
    ) -> Appended | None:
        """Return what `append` got; None if there was nothing to store."""
        # What this process knows mostly still holds, and the commit checks it; a table can then be stored once more.
        if isinstance(table, (pa.Table, pa.RecordBatch)):
            try:
                return self._append_in(self._begun(self._store.known), table, writer, expected)
            except (OutdatedTransaction, InvalidMessageError, NotFoundError):
                pass
        return self._append_in(self._begun(), table, writer, expected)

    def _begun(self, view: View | None = None) -> Transaction:
        try:
            transaction = self._store.begin([self.name], view)
        except NotFoundError as error:
            raise self._stale() from error
        if transaction.targets[self.name].incarnation != self.incarnation:
            raise self._stale()
        return transaction

    def _append_in(
        self, transaction: Transaction, table: incoming.Given, writer: WriterBatch | None,
        expected: Sequence[Condition] = (), restores: bool = False,
    ) -> Appended | None:  # fmt: skip
        target, hashed = transaction.targets[self.name], writer is not None
        stager = Stager(transaction, target, 0, env=self._store.environment, hashed=hashed, restores=restores)

        def write() -> None:
            for batch in incoming.batches(self.name, table):
                stager.write(batch)

        return self._store.store_all(transaction, [stager], write, writer, expected).appended.get(self.name)

    def publish(
        self,
        subject: str,
        data: bytes | str | None,
        headers: Headers | None = None,
        msg_id: str | None = None,
        expected_last_sequence: int | None = None,
        expected_last_subject_sequence: int | None = None,
        expected_last_msg_id: str | None = None,
    ) -> Published:
        """Append one message durably and return its sequence, or that of the first message with its msg_id.

        `headers`: a dict, or pairs where a key repeats; values are text or bytes.
        A duplicate of a message that was removed since has a sequence of its own, at which nothing is shown.
        `expected_...`: what the last message of the stream, or of the subject, has to be; 0 is for none. Else this
        raises ConditionFailedError with the actual value, and nothing is stored.
        """
        expected = _expected(expected_last_sequence, expected_last_subject_sequence, expected_last_msg_id, subject)
        message = {"subject": subject, "data": data, "headers": headers, "msg_id": msg_id}
        fields = {name: value for name, value in message.items() if value is not None or name in ("subject", "data")}
        got = self._append(incoming.batch_of_rows(self.name, [fields]), expected=expected)
        assert got is not None  # one row
        if msg_id is None or not got.duplicate_count:
            return Published(got.first, False)
        # Where that cannot be read now, an error is right: nothing was stored, and the same msg_id may be sent again.
        first = contents.find_msg_id(self._store, *self._look(), msg_id)
        return Published(first if first is not None else got.first, True)

    # --- durable consumers

    def add_consumer(self, config: ConsumerConfig | Mapping[str, Any] | None = None, **keys: Any) -> Consumer:
        """Make a durable consumer; by default it begins with the first message and wants each one acknowledged.

        The configuration comes as an object, a dict, or by its keys: `add_consumer(name="billing")`.
        Raises AlreadyExistsError, ValueError naming the key of the configuration.
        """
        return Consumer.add(self._store, self.state(), ConsumerConfig.from_mapping(config, keys))

    def consumer(self, name: str) -> Consumer:
        """Return the consumer, its position reconciled with the stream; raises NotFoundError naming the nearest."""
        consumer = Consumer(self._store, self.incarnation, self.name, name)
        consumer.look()
        return consumer

    # --- removing

    def remove(self, sequences: Sequences) -> int:
        """Remove these messages; return how many of them were there. They are shown no more at once.

        Takes a table or message that was read, or sequences: one, a range, a column, any iterable.
        """
        return self._remove(Removal(sequences=sequence_set(sequences, self.name)))

    def purge(
        self,
        subject: str | None = None,
        keep: int | None = None,
        end: int | None = None,
        before_ns: int | None = None,
    ) -> int:
        """Remove all messages, or those that the filter takes, below sequence `end`, but not the newest `keep`.

        `before_ns`: only messages whose time lies before it, in nanoseconds since 1970. Return how many were removed.
        `keep` and `end` exclude each other, as they do in NATS.
        """
        return self._remove(_purge(subject, keep, end, before_ns))

    def purge_plan(
        self,
        subject: str | None = None,
        keep: int | None = None,
        end: int | None = None,
        before_ns: int | None = None,
    ) -> RemovalPlan:
        """Return what a purge would do now; raises what it would be refused with. Takes no lock."""
        store, request = self._store, _purge(subject, keep, end, before_ns)
        state = store.view().state
        return removal.plan(state, self._in(state), request, store.volumes(), store.environment)

    def _remove(self, request: Removal) -> int:
        store = self._store
        with store.session(releases_space=True) as session:
            result = session.propose(store.removal(session, self._in(session.state), request))
        assert isinstance(result, machine.RemoveDone)
        return result.message_count


def _purge(subject: str | None, keep: int | None, end: int | None, before_ns: int | None) -> Removal:
    """Return what a purge removes. Raises ValueError."""
    if keep is not None and end is not None:
        raise ValueError("purge: give keep or end, not both")
    return Removal(
        subject=None if subject is None else check_filter(subject),
        keep=None if keep is None else check_count("keep", keep),
        end=None if end is None else check_sequence("end", end),
        before_ns=None if before_ns is None else check_count("before_ns", before_ns),
    )


def _expected(
    last_sequence: int | None,
    last_subject_sequence: int | None = None,
    last_msg_id: str | None = None,
    subject: str = "",
) -> list[Condition]:
    """Return what an append expects; raises ValueError for what is no sequence, or no msg_id."""
    conditions = []
    for kind, sequence, filtered in (
        (LAST_SUBJECT_SEQUENCE, last_subject_sequence, subject),
        (LAST_SEQUENCE, last_sequence, ""),
    ):
        if sequence is None:
            continue
        number = whole_number(sequence)
        if number is None or not 0 <= number <= SEQUENCE_MAX:
            raise ValueError(f"expected_{kind}: {sequence!r} is neither a sequence nor 0, which stands for none")
        conditions.append(Condition(0, kind, number, filtered))
    if last_msg_id is not None:
        if not isinstance(last_msg_id, str) or not last_msg_id:
            raise ValueError(f"expected_{LAST_MSG_ID}: {last_msg_id!r} is not a msg_id")
        conditions.append(Condition(0, LAST_MSG_ID, last_msg_id))
    return conditions
