"""What the metadata log says is true: the state that commands act on.

A state is a value. `machine.apply` makes the next one and leaves the old one alone, so a reader may keep the state it
planned with, and a session may try a command before it proposes it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from storage_core.bounded import decode
from storage_core.chunked_set import ChunkedSet
from storage_core.errors import CorruptionError, UnsupportedVersionError
from storage_core.frozen import replace
from storage_core.metadata.commands import Event, FormerVolume, SetAside, VolumeChange, Voter
from storage_core.metadata.config import OLD, StoreSettings, StreamConfig
from storage_core.metadata.consumer_state import ConsumerRecord, ConsumerState, consumer_of, consumer_record
from storage_core.metadata.manifest import (
    ARCHIVE_DTYPE,
    BLOCK_DTYPE,
    EXPIRY_DTYPE,
    PENDING_DELETE_DTYPE,
    Table,
    decode_blocks,
    decode_table,
    encode_blocks,
)
from storage_core.metadata.shared_map import SharedMap
from storage_core.sequences import SEQUENCE_MAX, SequenceSet

STATE_VERSION = 1
TRANSACTION_DTYPE = np.dtype([("id", "V16"), ("outcome", "u1"), ("index", "<i8")])
COMMITTED, ABORTED = 1, 2  # outcomes; zero stays invalid
STREAMING_BATCHES_KEPT = 16  # results of a streaming writer that a replay may ask for; Spark replays the last one
BATCHES_KEPT = 4096  # newest batches of a batch writer that are remembered though none of their messages is left
FORMER_MAX = 256  # newest disks that are waited for
SET_ASIDE_MAX = 1024  # newest places of messages of other copies of the store
TIME_MAX_NS = 2**63 - 1  # times are int64
BATCH_DIGITS_MAX = 18  # of a batch's number, which is an i64


class BatchResult(msgspec.Struct, frozen=True, array_like=True):
    """What an append of a named writer got in one stream."""

    first: int
    end: int
    duplicate_count: int
    content: bytes = b""  # of the whole batch, all its streams, as in Append; empty: not known


def batch_number(batch: str) -> int:
    """Return the number that a streaming batch is named by; -1 for a name that is none."""
    is_number = len(batch) <= BATCH_DIGITS_MAX and batch.isascii() and batch.isdigit()
    return int(batch) if is_number else -1


@dataclass(frozen=True, slots=True)
class WriterState:
    """One exactly-once writer of a stream, and its batches.

    A streaming writer numbers its batches, so the highest number says of any other whether it was stored. The batches
    of other writers are named as their owners like. Such a batch is remembered for as long as one of its messages is
    in the stream, and then until BATCHES_KEPT newer ones have come: what is kept follows what is live.
    """

    query: str  # Spark's query id; empty for batch writers
    run: str  # the run that may write; older ones are fenced
    superseded: tuple[str, ...]  # runs that may not write any more, newest last
    batches: SharedMap[str, BatchResult]
    last_batch: int = -1  # streaming: highest batch id stored
    prune_at: int = 2 * BATCHES_KEPT  # so many batches are kept before the next look for those that are gone

    def find(self, batch: str) -> BatchResult | None:
        """Return what this batch got; a range of nothing for a streaming batch too old to be remembered."""
        if batch in self.batches:
            return self.batches[batch]
        if self.query and 0 <= batch_number(batch) <= self.last_batch:
            return BatchResult(0, 0, 0)
        return None

    def with_batch(self, batch: str, result: BatchResult, first_sequence: int) -> "WriterState":
        """Return the writer with one more batch. `first_sequence`: the first message that is in the stream now."""
        batches, last_batch, prune_at = self.batches.with_item(batch, result), self.last_batch, self.prune_at
        if self.query and batch_number(batch) >= 0:
            last_batch = max(last_batch, batch_number(batch))
            if len(batches) > STREAMING_BATCHES_KEPT:
                batches = batches.without(min(batches, key=lambda name: (batch_number(name), name)))
        elif len(batches) >= prune_at:  # seldom enough that a batch costs the same, however many there are
            newest = sorted(((stored.end, name) for name, stored in batches.items()), reverse=True)
            kept = {name for at, (end, name) in enumerate(newest) if at < BATCHES_KEPT or end > first_sequence}
            batches = SharedMap((name, batches[name]) for name in sorted(kept))
            prune_at = 2 * len(batches)
        return replace(self, batches=batches, last_batch=last_batch, prune_at=prune_at)


@dataclass(frozen=True, slots=True)
class StreamState:
    """One incarnation of a stream."""

    config: StreamConfig
    incarnation: bytes
    created_ns: int
    placement: tuple[bytes, ...]
    low_watermark: int = 1  # nothing below it is shown, whatever the blocks hold
    next_sequence: int = 1  # never falls
    # Invariant: sorted, disjoint, end > low_watermark
    blocks: Table = field(default_factory=lambda: Table.empty(BLOCK_DTYPE))
    removed: ChunkedSet = field(default_factory=ChunkedSet.empty)  # Invariant: within [low_watermark, next_sequence)
    lost: SequenceSet = field(default_factory=SequenceSet.empty)  # Invariant: removed as well
    # Blocks that lost messages were in, also those that still have others. Their files stay: a copy may come back.
    # Invariant: sorted, disjoint, each has lost messages; no holders, no subject sets.
    lost_blocks: Table = field(default_factory=lambda: Table.empty(BLOCK_DTYPE))
    message_count: int = 0  # messages that a read of everything yields
    data_size: int = 0  # bytes of their subjects, headers and data
    duplicate_count: int = 0  # messages that were not stored once more: their msg_id was seen within the window
    histories: tuple[tuple[bytes, int], ...] = ()  # (history id, first sequence of it), run-length
    subject_sets: tuple[tuple[str, ...], ...] = ()  # block row's subject_set - 1 is a position in here
    origins: tuple[tuple[bytes, int], ...] = ()  # incarnations it continues: (whose blocks, end of their sequences)
    writers: Mapping[str, WriterState] = field(default_factory=dict)
    consumers: SharedMap[str, ConsumerState] = field(default_factory=SharedMap)  # by case-folded name
    expiries: Table = field(default_factory=lambda: Table.empty(EXPIRY_DTYPE))  # of blocks with TTLs, by first
    missed_end: int = 1  # if retention is not limits: readers below it may have missed what went otherwise

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def first_sequence(self) -> int:
        """Return the sequence of the first message that is shown; next_sequence if there is none."""
        if self.removed and self.removed.first_run[0] == self.low_watermark:
            return self.removed.first_run[1]
        return self.low_watermark

    def shown(self, first: int = 0, end: int = SEQUENCE_MAX) -> SequenceSet:
        """Return the sequences of the messages of `[first, end)` that are shown, of all unless a range is named."""
        first, end = max(first, self.low_watermark), min(end, self.next_sequence)
        return SequenceSet.from_ranges([(first, end)]).difference(self.removed.clip(first, end))

    def shown_head(self, first: int, count: int) -> SequenceSet:
        """Return the first `count` messages at and above `first` that are shown; does not look behind them."""
        first, span = max(first, self.low_watermark), max(count, 1)
        while True:
            end = min(first + span, self.next_sequence)
            if end == self.next_sequence or end - first - self.removed.count_in(first, end) >= count:
                return self.shown(first, end).head(count)
            span *= 2

    def with_consumer(self, consumer: ConsumerState) -> "StreamState":
        return replace(self, consumers=self.consumers.with_item(consumer.name.casefold(), consumer))

    def block_at(self, sequence: int) -> int:
        """Return the position of the block that holds this sequence, or of the next one if none does."""
        rows = self.blocks.rows
        firsts = rows["first"]
        at = bisect_right(firsts, sequence) - 1
        return at + 1 if at < 0 or int(firsts[at] + rows["span"][at]) <= sequence else at

    def blocks_in(self, first: int, end: int) -> slice:
        """Return the positions of the blocks that hold sequences of `[first, end)`."""
        start = self.block_at(first)
        return slice(start, max(start, bisect_left(self.blocks.rows["first"], end)))

    def lost_blocks_in(self, first: int, end: int) -> np.ndarray:
        """Return the rows of the blocks of lost messages that hold sequences of `[first, end)`."""
        rows = self.lost_blocks.rows
        near: np.ndarray = rows[(rows["first"] < end) & (rows["first"] + rows["span"] > first)]
        return near

    def written_as(self, sequence: int) -> bytes:
        """Return the incarnation in whose directory, and under whose name, the block of this sequence was written."""
        for incarnation, end in self.origins:
            if sequence < end:
                return incarnation
        return self.incarnation

    @property
    def incarnations(self) -> tuple[bytes, ...]:
        """Every incarnation whose directory may hold blocks of this stream."""
        return (*(incarnation for incarnation, _ in self.origins), self.incarnation)


def kept_of(stream: StreamState) -> tuple[int, int]:
    """Return how many messages and bytes the stream keeps once its own limits have taken what is over them."""
    config, message_count, data_size = stream.config, stream.message_count, stream.data_size
    if config.discard == OLD and config.max_msgs >= 0:
        message_count = min(message_count, config.max_msgs)
    if config.discard == OLD and config.max_bytes >= 0:
        data_size = min(data_size, config.max_bytes)
    return message_count, data_size


class Streams(Mapping[str, StreamState]):
    """The streams of a store by case-folded name, and by incarnation. A value: a change makes another one."""

    __slots__ = (
        "_by_name", "_kept", "_names", "_tokens", "block_count", "consumer_count", "data_size", "message_count",
    )  # fmt: skip
    block_count: int  # of all streams
    consumer_count: int
    message_count: int  # that each keeps: what is over its own limits goes in the next entry, and is not counted
    data_size: int

    def __init__(self, streams: Mapping[str, StreamState] | None = None) -> None:
        self._by_name = SharedMap[str, StreamState](streams or {})
        self._names = SharedMap[bytes, str]((stream.incarnation, key) for key, stream in self._by_name.items())
        self._kept: tuple[Streams | None, dict[bytes, int]] = (None, {})  # what kept_sizes said, and of which streams
        # What _by_first_token said, and of which streams: their map alone, which leads to no older ones.
        self._tokens = (SharedMap[str, StreamState](), SharedMap[str, frozenset[str]]())
        self.block_count = sum(len(stream.blocks) for stream in self._by_name.values())
        self.consumer_count = sum(len(stream.consumers) for stream in self._by_name.values())
        kept = [kept_of(stream) for stream in self._by_name.values()]
        self.message_count, self.data_size = sum(count for count, _ in kept), sum(size for _, size in kept)

    def _moved_on(
        self,
        by_name: SharedMap[str, StreamState],
        names: SharedMap[bytes, str],
        before: StreamState | None,
        now: StreamState | None,
    ) -> "Streams":
        made = Streams.__new__(Streams)
        made._by_name, made._names, made._kept, made._tokens = by_name, names, self._kept, self._tokens
        made.block_count, made.consumer_count = self.block_count, self.consumer_count
        made.message_count, made.data_size = self.message_count, self.data_size
        for stream, sign in ((before, -1), (now, 1)):
            if stream is not None:
                message_count, data_size = kept_of(stream)
                made.message_count += sign * message_count
                made.data_size += sign * data_size
                made.block_count += sign * len(stream.blocks)
                made.consumer_count += sign * len(stream.consumers)
        return made

    def __getitem__(self, key: str) -> StreamState:
        return self._by_name[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return f"Streams({list(self._by_name)})"

    @property
    def names(self) -> SharedMap[bytes, str]:
        """Case-folded name by incarnation; the same object for as long as no stream comes or goes."""
        return self._names

    def by_incarnation(self, incarnation: bytes) -> StreamState | None:
        return self._by_name[self._names[incarnation]] if incarnation in self._names else None

    def with_stream(self, stream: StreamState) -> "Streams":
        key = stream.name.casefold()
        before, names = self._by_name.get(key), self._names
        if before is None or before.incarnation != stream.incarnation:
            names = names.without(before.incarnation) if before is not None else names
            names = names.with_item(stream.incarnation, key)
        return self._moved_on(self._by_name.with_item(key, stream), names, before, stream)

    def without(self, stream: StreamState) -> "Streams":
        by_name, names = self._by_name.without(stream.name.casefold()), self._names.without(stream.incarnation)
        return self._moved_on(by_name, names, stream, None)

    def changes_since(self, before: "Streams") -> Iterator[tuple[StreamState | None, StreamState | None]]:
        """Yield (stream before, stream now) of each that is not the same; costs those that have changed."""
        for _, former, now in self._by_name.changes_since(before._by_name):
            yield former, now

    def kept_sizes(self) -> Mapping[bytes, int]:
        """Return how many bytes of blocks each volume keeps; costs the streams that changed since this was asked."""
        asked, sizes = self._kept
        sizes = dict(sizes)
        for former, now in self.changes_since(asked if asked is not None else Streams()):
            for stream, sign in ((former, -1), (now, 1)):
                if stream is not None:
                    size = sign * int(stream.blocks.rows["file_size"].sum())
                    for volume_id in stream.placement:
                        sizes[volume_id] = sizes.get(volume_id, 0) + size
        self._kept = (self, sizes)
        return sizes

    def that_may_take(self, subject: str) -> Iterable[StreamState]:
        """Return the streams that have a subject whose first token is that of this one, or a wildcard on either side.

        Costs those streams, and the ones that changed since this was asked.
        """
        token = _first_token(subject)
        if token == _ANY_TOKEN:
            return self.values()
        by_token = self._by_first_token()
        return [self._by_name[key] for key in by_token.get(token, _NONE) | by_token.get(_ANY_TOKEN, _NONE)]

    def _by_first_token(self) -> SharedMap[str, frozenset[str]]:
        """Return the case-folded names of streams by the first tokens of their subjects."""
        asked, by_token = self._tokens
        for key, former, now in self._by_name.changes_since(asked):
            before, after = _first_tokens(former), _first_tokens(now)
            for token in before ^ after:
                keys = by_token.get(token, _NONE) ^ {key}
                by_token = by_token.with_item(token, keys) if keys else by_token.without(token)
        self._tokens = (self._by_name, by_token)
        return by_token


_ANY_TOKEN = "*"
_NONE: frozenset[str] = frozenset()


def _first_tokens(stream: StreamState | None) -> set[str]:
    return {_first_token(subject) for subject in stream.config.subjects} if stream is not None else set()


def _first_token(subject: str) -> str:
    token = subject.partition(".")[0]
    return _ANY_TOKEN if token == ">" else token


@dataclass(frozen=True, slots=True)
class StoreState:
    """Everything below one store."""

    store_id: bytes = b""
    created_ns: int = 0
    settings: StoreSettings = field(default_factory=StoreSettings)
    voters: tuple[Voter, ...] = ()
    lock_domain: str = ""
    host: str = ""
    streams: Streams = field(default_factory=Streams)
    pending_deletes: Table = field(default_factory=lambda: Table.empty(PENDING_DELETE_DTYPE))
    transactions: Table = field(default_factory=lambda: Table.empty(TRANSACTION_DTYPE))
    transaction_floor_ns: int = 0  # transactions made before it are refused
    volume_change: VolumeChange | None = None  # in progress
    former: tuple[FormerVolume, ...] = ()  # disks that may come back with blocks
    set_aside: tuple[SetAside, ...] = ()  # messages of other copies of the store that lie on volumes of this one
    events: tuple[Event, ...] = ()  # oldest first, the newest EVENT_COUNT_MAX
    # As the pending_deletes, of blocks whose msg_ids count no more: merged ones have them now, or an overwrite took
    # them.
    replaced: Table = field(default_factory=lambda: Table.empty(PENDING_DELETE_DTYPE))
    # Blocks among the pending_deletes that their stream's archive_command is to be run for before they are unlinked.
    archives: Table = field(default_factory=lambda: Table.empty(ARCHIVE_DTYPE))
    # Of appends whose rows name their streams: what each batch held in all, whatever streams it had rows for.
    writers: Mapping[str, WriterState] = field(default_factory=dict)
    time_ns: int = 0  # of the last entry; never falls
    clock_ns: int = 0  # the clock that entry was made by

    def time_at(self, clock_ns: int) -> int:
        """Return the time of an entry that is made when the leader's clock shows this.

        Times never fall, and pass as fast as clocks do: behind a clock that was set back, time goes on from where it
        was until the clock has caught up. Else what was removed or taken in before would stay young until then.
        """
        if clock_ns > self.time_ns:
            return clock_ns
        return min(TIME_MAX_NS, self.time_ns + max(1, clock_ns - self.clock_ns))

    def within(self, times_ns: np.ndarray, span_ns: int, clock_ns: int) -> np.ndarray:
        """Return which of these times of entries lie less than a span back, when the leader's clock shows `clock_ns`.

        A clock that was ahead for a while has moved the time of entries on for good: what came before that is as old as
        the clock says, if that is younger.
        """
        recent: np.ndarray = times_ns >= self.time_at(clock_ns) - span_ns
        return recent | ((times_ns >= clock_ns - span_ns) & (times_ns <= clock_ns))

    @property
    def deletes(self) -> np.ndarray:
        """Return every block that waits to be unlinked, PENDING_DELETE_DTYPE: removed ones, then those that were
        merged."""
        return np.concatenate((self.pending_deletes.rows, self.replaced.rows))

    def voter(self, volume_id: bytes) -> Voter | None:
        """Return what is known of a volume of the store, None if it is none of its volumes."""
        return next((voter for voter in self.voters if voter.volume_id == volume_id), None)

    def stream(self, name: str) -> StreamState | None:
        stream = self.streams.get(name.casefold())
        return stream if stream is not None and stream.name == name else None

    def by_incarnation(self, incarnation: bytes) -> StreamState | None:
        return self.streams.by_incarnation(incarnation)

    def with_stream(self, stream: StreamState) -> "StoreState":
        return replace(self, streams=self.streams.with_stream(stream))

    def outcome(self, transaction: bytes) -> int:
        """Return COMMITTED, ABORTED, or 0 if the transaction is not known."""
        rows = self.transactions.rows
        # Compared by halves: numpy compares whole ids one by one.
        halves = np.ndarray((len(rows), 2), "<u8", rows, strides=(rows.itemsize, 8))
        wanted = np.frombuffer(transaction, "<u8")
        equal = halves[:, 1] == wanted[1]
        if not equal.any():
            return 0
        at = np.flatnonzero(equal & (halves[:, 0] == wanted[0]))
        return int(rows["outcome"][at[-1]]) if len(at) else 0


# --- snapshots ------------------------------------------------------------------------------------------------------


class _WriterRecord(msgspec.Struct, frozen=True):
    query: str
    run: str
    superseded: tuple[str, ...]
    batches: dict[str, BatchResult]
    last_batch: int = -1
    prune_at: int = 2 * BATCHES_KEPT


class _StreamRecord(msgspec.Struct, frozen=True):
    config: StreamConfig
    incarnation: bytes
    created_ns: int
    placement: tuple[bytes, ...]
    low_watermark: int
    next_sequence: int
    blocks: bytes
    removed: tuple[bytes, ...]
    lost: bytes
    message_count: int
    data_size: int
    histories: tuple[tuple[bytes, int], ...]
    subject_sets: tuple[tuple[str, ...], ...]
    writers: dict[str, _WriterRecord]
    origins: tuple[tuple[bytes, int], ...] = ()
    duplicate_count: int = 0
    consumers: tuple[ConsumerRecord, ...] = ()
    expiries: bytes = b""
    missed_end: int = 1
    lost_blocks: bytes = b""


class _StateRecord(msgspec.Struct, frozen=True):
    version: int
    store_id: bytes
    created_ns: int
    settings: StoreSettings
    voters: tuple[Voter, ...]
    lock_domain: str
    host: str
    streams: tuple[_StreamRecord, ...]
    pending_deletes: bytes
    transactions: bytes
    transaction_floor_ns: int
    volume_change: VolumeChange | None = None
    events: tuple[Event, ...] = ()
    replaced: bytes = b""
    writers: dict[str, _WriterRecord] = {}
    time_ns: int = 0
    clock_ns: int = 0
    archives: bytes = b""
    former: tuple[FormerVolume, ...] = ()
    set_aside: tuple[SetAside, ...] = ()


_DECODER = msgspec.msgpack.Decoder(_StateRecord)
_STREAM_DECODER = msgspec.msgpack.Decoder(_StreamRecord)


def encode_stream(stream: StreamState) -> bytes:
    """Return one stream of a state as msgpack."""
    return msgspec.msgpack.encode(_stream_record(stream))


def decode_stream(encoded: bytes) -> StreamState:
    """Return the stream that `encode_stream` wrote; raises CorruptionError."""
    return _stream(decode(_STREAM_DECODER, encoded, "a stream"))


def _stream_record(state: StreamState) -> _StreamRecord:
    values = {name: getattr(state, name) for name in _StreamRecord.__struct_fields__}
    values.update(
        blocks=encode_blocks(state.blocks.rows),
        removed=state.removed.encode(),
        expiries=state.expiries.encode(),
        lost=state.lost.encode(),
        lost_blocks=encode_blocks(state.lost_blocks.rows),
        writers=_writer_records(state.writers),
        consumers=tuple(consumer_record(state.consumers[key]) for key in sorted(state.consumers)),
    )
    return _StreamRecord(**values)


def _writer_records(writers: Mapping[str, WriterState]) -> dict[str, _WriterRecord]:
    return {name: _writer_record(writers[name]) for name in sorted(writers)}


def _writer_record(writer: WriterState) -> _WriterRecord:
    values = {name: getattr(writer, name) for name in _WriterRecord.__struct_fields__}
    values["batches"] = {name: writer.batches[name] for name in sorted(writer.batches)}
    return _WriterRecord(**values)


def _writer(record: _WriterRecord) -> WriterState:
    values = {name: getattr(record, name) for name in _WriterRecord.__struct_fields__}
    values["batches"] = SharedMap(record.batches)
    return WriterState(**values)


def _stream(record: _StreamRecord) -> StreamState:
    values = {name: getattr(record, name) for name in _StreamRecord.__struct_fields__}
    values.update(
        blocks=Table.of(decode_blocks(record.blocks, "manifest")),
        removed=ChunkedSet.decode(record.removed),
        expiries=decode_table(record.expiries, EXPIRY_DTYPE, "expiries"),
        lost=SequenceSet.decode(record.lost),
        lost_blocks=Table.of(decode_blocks(record.lost_blocks, "blocks of lost messages")),
        writers={name: _writer(writer) for name, writer in record.writers.items()},
        consumers=SharedMap((consumer.config.name.casefold(), consumer_of(consumer)) for consumer in record.consumers),
    )
    return StreamState(**values)


def encode_state(state: StoreState) -> bytes:
    """Return the state as msgpack; equal states give equal bytes."""
    streams = tuple(_stream_record(state.streams[key]) for key in sorted(state.streams))
    values = {name: getattr(state, name) for name in _StateRecord.__struct_fields__ if name != "version"}
    values.update(
        version=STATE_VERSION,
        streams=streams,
        pending_deletes=state.pending_deletes.encode(),
        replaced=state.replaced.encode(),
        archives=state.archives.encode(),
        transactions=state.transactions.encode(),
        writers=_writer_records(state.writers),
    )
    return msgspec.msgpack.encode(_StateRecord(**values))


def decode_state(encoded: bytes | msgspec.Raw) -> StoreState:
    """Return the state that `encode_state` wrote; raises CorruptionError, UnsupportedVersionError."""
    record = decode(_DECODER, encoded, "a state")
    if record.version != STATE_VERSION:
        raise UnsupportedVersionError(f"state of version {record.version}, this program reads {STATE_VERSION}")
    streams = {stream.config.name.casefold(): _stream(stream) for stream in record.streams}
    if len(streams) < len(record.streams):
        raise CorruptionError(f"a state of {len(record.streams)} streams with {len(streams)} names")
    values = {name: getattr(record, name) for name in _StateRecord.__struct_fields__ if name != "version"}
    values.update(
        streams=Streams(streams),
        pending_deletes=decode_table(record.pending_deletes, PENDING_DELETE_DTYPE, "pending_deletes"),
        replaced=decode_table(record.replaced, PENDING_DELETE_DTYPE, "replaced"),
        archives=decode_table(record.archives, ARCHIVE_DTYPE, "archives"),
        transactions=decode_table(record.transactions, TRANSACTION_DTYPE, "transactions"),
        writers={name: _writer(writer) for name, writer in record.writers.items()},
    )
    return StoreState(**values)
