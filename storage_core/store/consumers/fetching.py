"""What one fetch of a consumer hands out: worked out from metadata, committed, then read.

A fetch first looks without a lock; not if this process knows that new messages wait, and none has to be read before:
then the session finds out what else has come. If there is something to do the fetch begins a session: the position is
reconciled with the stream, messages that are due again come first, then new ones, as many as may wait for their
acknowledgement. All of it is one entry or two in one round of fsyncs, and only after that the messages are read,
outside the locks: what was handed out is known before anybody sees it, so two processes never hand out the same message
within ack_wait.

What no copy can give now is lost only if that was declared; until then nothing passes over it. A consumer that goes on
past losses withholds such messages: they count as never handed out, wait in its state, and each fetch looks whether
they can be read; what comes behind them is handed out. A consumer that fails on loss reads before the session, hands
out what lies before the first of them, and stays there.

Read before the session are also fetches that could be larger than `max_bytes`, those of consumers with ack_policy
"none", for which nothing is handed out twice, and those of consumers from which something is withheld. The session then
checks that it hands out what was read. An error of the process is raised, and nothing is handed out.

With `filter_subjects` the metadata cannot say which messages are wanted. They are looked for before the session, which
then checks that the consumer still stands where it stood.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from storage_core.block.sizing import message_sizes
from storage_core.metadata.commands import Deliver, Event
from storage_core.metadata.config import LIMITS
from storage_core.metadata.consumer_state import ConsumerState
from storage_core.metadata.pending import pending_set
from storage_core.metadata.reconcile import FAIL
from storage_core.metadata.state import StreamState
from storage_core.schema import READ_SCHEMA
from storage_core.sequences import SEQUENCE_MAX, SequenceSet
from storage_core.store import contents
from storage_core.store.arguments import MESSAGE_COUNT_MAX
from storage_core.store.consumers.filtered import wanted_in
from storage_core.store.consumers.position import remedy
from storage_core.store.ensemble.view import View
from storage_core.store.opened import OpenStore
from storage_core.store.reading.plan import ReadRequest
from storage_core.store.reading.reading import REPORT, ReadDamage, ReadOptions, read_slices
from storage_core.store.volume.volumes import Volume

FETCH_SCHEMA = READ_SCHEMA.append(pa.field("delivery_count", pa.int64(), nullable=False))
CAPPED = b"jstream.capped"  # key of a fetched table's metadata: what kept more messages back
NOTHING = SequenceSet.empty()
PROBED_SLICES_MAX = 1024  # blocks that one look asks for messages that are due again
EVENT_REASONS_MAX = 5
FETCH_SIZE_MAX = 256 << 20  # message bytes of one fetch, unless it names another bound
APART = 65_536  # sequences: messages further apart are read one by one, and not with all that lies between


@dataclass(frozen=True, slots=True)
class FilterScan:
    """Messages that a consumer with a filter wants, found before the session."""

    start: int  # the consumer's next_sequence then
    end: int  # up to which it was looked
    sequences: SequenceSet
    withheld: SequenceSet = field(default_factory=SequenceSet.empty)  # may be wanted, cannot be read
    damage: tuple[ReadDamage, ...] = ()  # why


@dataclass(frozen=True, slots=True)
class RedeliveryScan:
    """What was found of messages that wait and are due again, before the session."""

    readable: SequenceSet = field(default_factory=SequenceSet.empty)
    unwanted: SequenceSet = field(default_factory=SequenceSet.empty)  # by the filter: they had been withheld


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one fetch hands out."""

    again: SequenceSet
    new: SequenceSet
    next_sequence: int
    dropped: SequenceSet  # not waited for any more
    exhausted: SequenceSet  # those of them that were handed out max_deliver times
    withheld: SequenceSet = field(default_factory=SequenceSet.empty)  # new ones that cannot be read
    is_clock_behind: bool = False  # deadlines have to be set by it
    is_capped: bool = False  # there are more, and max_ack_pending keeps them back

    @property
    def sequences(self) -> SequenceSet:
        return self.again.union(self.new)

    def is_nothing(self, consumer: ConsumerState) -> bool:
        is_there = self.next_sequence == consumer.next_sequence and not self.is_clock_behind
        return is_there and not self.again and not self.dropped


def due_again(stream: StreamState, consumer: ConsumerState, now_ns: int) -> SequenceSet:
    """Return the messages that wait and are to be handed out again; those that were withheld always are."""
    if consumer.paused_until_ns > now_ns or not consumer.pending:
        return NOTHING
    due = consumer.pending.due(now_ns)
    return pending_set(due[~_spent(due, consumer)]).difference(_removed_pending(stream, consumer))


def _spent(due: np.ndarray, consumer: ConsumerState) -> np.ndarray:
    """Return which of these rows were handed out as often as they may be."""
    count_max = consumer.config.max_deliver
    spent: np.ndarray = due["deliveries"] >= count_max if count_max > 0 else np.zeros(len(due), bool)
    return spent


def _removed_pending(stream: StreamState, consumer: ConsumerState) -> SequenceSet:
    """Return the messages that wait and are not shown any more."""
    pending, first, end = consumer.pending, consumer.pending.first_sequence, consumer.next_sequence
    if not pending:
        return NOTHING
    if len(pending) < stream.removed.count_in(first, end):
        waiting = pending_set(pending.rows)
        return waiting.clip(0, stream.low_watermark).union(stream.removed.within(waiting))
    return pending_set(pending.within(_hidden(stream, first, end)))


def plan_delivery(
    stream: StreamState,
    consumer: ConsumerState,
    now_ns: int,
    count_max: int,
    wanted: FilterScan | None = None,
    probe: RedeliveryScan | None = None,
    unread: SequenceSet = NOTHING,
) -> Delivery:
    """Return what a fetch of at most `count_max` messages hands out now.

    `probe`: which of those that are due again can be read, as it was found before; None: none is handed out again.
    `unread`: new ones that cannot be read, as far as that was tried.
    """
    config, pending, probe = consumer.config, consumer.pending, probe or RedeliveryScan()
    is_behind = consumer.is_clock_behind(now_ns)
    if consumer.paused_until_ns > now_ns:
        return Delivery(NOTHING, NOTHING, consumer.next_sequence, NOTHING, NOTHING, is_clock_behind=is_behind)
    due, withheld = pending.due(now_ns), pending.withheld()
    spent, removed = _spent(due, consumer), _removed_pending(stream, consumer)
    exhausted = pending_set(due[spent]).difference(removed)
    dropped = removed.union(exhausted).union(probe.unwanted.intersection(withheld))
    again = pending_set(due[~spent]).difference(removed).intersection(probe.readable)
    room_max = MESSAGE_COUNT_MAX
    if config.ack_policy != "none":
        waiting = pending.handed_out_count - len(dropped.difference(withheld))
        room_max = max(0, config.waiting_max - waiting)
        first_time = again.intersection(withheld)
        again = again.difference(first_time).union(first_time.head(room_max)).head(count_max)
        room_max -= len(again.intersection(withheld))
    again = again.head(count_max)
    room = min(count_max - len(again), room_max)
    first, end = max(consumer.next_sequence, stream.low_watermark), stream.next_sequence
    if wanted is None:
        ahead = stream.shown_head(first, room + 1 + len(unread))
    else:
        ahead, unread = stream.removed.absent_among(wanted.sequences.clip(first, end)), unread.union(wanted.withheld)
        end = wanted.end
    ahead = ahead.difference(unread)
    new = ahead.head(room)
    left = ahead.difference(new)
    # Past holes as well: what was never shown is not missed when the head of the stream is removed.
    next_sequence = int(left.starts[0]) if left else end
    unread = stream.removed.absent_among(unread.clip(first, next_sequence))
    if not new and not unread and (wanted is None or left):
        next_sequence = consumer.next_sequence
    is_capped = bool(left) and room_max < count_max - len(again)
    return Delivery(again, new, next_sequence, dropped, exhausted, unread, is_behind, is_capped)


def scan_redeliveries(
    store: OpenStore,
    view: View,
    stream: StreamState,
    consumer: ConsumerState,
    due: SequenceSet,
    count_max: int,
    start: int,
) -> tuple[RedeliveryScan, int]:
    """Return which of the messages that are due again can be read, until there are `count_max`, and where that ended.

    It begins at `start` and comes round. The blocks that it looks at are bounded in number: where many of them cannot
    be read, the next look goes on where this one ended.
    """
    parts, readable = list[np.ndarray](), 0
    damage: list[ReadDamage] = []
    looked: list[tuple[int, int]] = []
    for first, end in (*_stretches(due.clip(start, SEQUENCE_MAX)), *_stretches(due.clip(1, start))):
        request = ReadRequest((stream.name,), {stream.name: (first, end)})
        for block_slice in contents.slices(store, stream, request, view):
            options = ReadOptions(("sequence",), consumer.config.filter_subjects, on_data_loss=REPORT)
            for batch in read_slices([block_slice], options, damage.append, store.environment):
                sequences = batch.column("sequence").to_numpy()
                parts.append(sequences[due.mask(sequences)])
                readable += len(parts[-1])
            looked.append((block_slice.first, block_slice.end))
            if readable >= count_max or len(looked) >= PROBED_SLICES_MAX:
                return _probed(due, looked, parts, damage), block_slice.end
    return _probed(due, looked, parts, damage), 1


def _probed(
    due: SequenceSet, looked: list[tuple[int, int]], parts: list[np.ndarray], damage: list[ReadDamage]
) -> RedeliveryScan:
    readable = SequenceSet.from_parts(parts)
    seen = SequenceSet.from_ranges(looked).intersection(due)
    return RedeliveryScan(readable, seen.difference(readable).difference(_missed(damage)))


def _missed(damage: Sequence[ReadDamage]) -> SequenceSet:
    """Return what no copy gave."""
    return SequenceSet.from_ranges((loss.first, loss.end) for loss in damage if not loss.served)


def _hidden(stream: StreamState, first: int, end: int) -> SequenceSet:
    """Return the sequences in `[first, end)` that are not shown."""
    return SequenceSet.from_ranges([(first, min(stream.low_watermark, end))]).union(stream.removed.clip(first, end))


def scan_for_matches(
    store: OpenStore, view: View, stream: StreamState, consumer: ConsumerState, count_max: int
) -> FilterScan:
    """Return the next messages that the consumer's filter takes, at most `count_max`.

    If the consumer's policy is to fail, only those before the first that cannot be read.
    """
    start, end = consumer.next_sequence, stream.next_sequence
    damage: list[ReadDamage] = []
    parts: list[np.ndarray] = []
    count = 0
    for batch in _read(store, view, stream, consumer, start, end, ("sequence",), damage):
        parts.append(batch.column("sequence").to_numpy())
        count += batch.num_rows
        if count > count_max:
            break
    sequences = np.concatenate(parts)[: count_max + 1] if parts else np.empty(0, np.int64)
    if len(sequences) > count_max:
        sequences, end = sequences[:count_max], int(sequences[count_max])
    if damage and consumer.config.on_data_loss == FAIL:
        end = min(end, max(start, min(loss.first for loss in damage)))
        sequences = sequences[sequences < end]
    missed = stream.removed.absent_among(_missed(damage).clip(max(start, stream.low_watermark), end))
    return FilterScan(start, end, SequenceSet.from_sequences(sequences), missed, tuple(damage))


def done_by(store: OpenStore, stream: StreamState, consumer: ConsumerState, end: int) -> SequenceSet:
    """Return what the consumer is done with when a query has read everything below `end`; nothing if nobody asks.

    Of messages that cannot be read now it is not known whether a filter takes them: they stay.
    """
    if stream.config.retention == LIMITS:
        return NOTHING
    start = max(stream.low_watermark, min(consumer.next_sequence, consumer.pending.first_sequence))
    return wanted_in(store, stream, consumer, start, end)


def _read(
    store: OpenStore,
    view: View,
    stream: StreamState,
    consumer: ConsumerState,
    first: int,
    end: int,
    columns: tuple[str, ...],
    damage: list[ReadDamage],
    volumes: Sequence[Volume] = (),
) -> Iterator[pa.RecordBatch]:
    filters = consumer.config.filter_subjects
    request = ReadRequest((stream.name,), {stream.name: (first, end)}, subject_filters=filters)
    options = ReadOptions(columns, filters, on_data_loss=REPORT)

    def hear(loss: ReadDamage) -> None:
        if not loss.served:
            damage.append(loss)

    slices = contents.slices(store, stream, request, view, volumes)
    yield from read_slices(slices, options, hear, store.environment)


@dataclass(slots=True)
class DeliveredRows:
    """Messages to be handed out, as they were read."""

    table: pa.Table  # of READ_SCHEMA
    unreadable: SequenceSet  # those of them that no copy has
    damage: list[ReadDamage] = field(default_factory=list)
    is_cut: bool = False  # there are more, and their bytes keep them back

    @property
    def sequences(self) -> SequenceSet:
        return SequenceSet.from_sequences(self.table.column("sequence").to_numpy())

    def followed_by(self, more: "DeliveredRows") -> "DeliveredRows":
        """Return the rows of `more`, with the unreadable sequences and the damage of both; empty if nothing was left to
        read.
        """
        unreadable = self.unreadable.union(more.unreadable)
        return DeliveredRows(more.table, unreadable, [*self.damage, *more.damage], more.is_cut)

    def before(self, end: int) -> "DeliveredRows":
        """Return those before this sequence, with all that was found of damage."""
        count = int(np.searchsorted(self.table.column("sequence").to_numpy(), end))
        return DeliveredRows(self.table.slice(0, count), NOTHING, self.damage)


def read_rows(
    store: OpenStore,
    view: View,
    stream: StreamState,
    consumer: ConsumerState,
    sequences: SequenceSet,
    size_max: int | None = None,
    volumes: Sequence[Volume] = (),
) -> DeliveredRows:
    """Return these messages, and which of them cannot be read.

    `volumes`: as they were found a moment ago.
    `size_max`: message bytes beyond which nothing is taken; one message is, whatever its size.
    """
    damage: list[ReadDamage] = []
    batches: list[pa.RecordBatch] = []
    left, is_cut = size_max, False
    for batch in _batches(store, view, stream, consumer, sequences, damage, volumes):
        if left is None:
            batches.append(batch)
            continue
        sizes = np.cumsum(message_sizes(batch))
        fit = int(np.searchsorted(sizes, left, side="right"))
        is_cut, left = fit < batch.num_rows, left - int(sizes[-1])
        batches.append(batch.slice(0, fit if fit or batches else 1))
        if is_cut:
            break
    table = pa.Table.from_batches(batches, READ_SCHEMA)
    rows = DeliveredRows(table, NOTHING, damage, is_cut)
    return replace(rows, unreadable=sequences.difference(rows.sequences).intersection(_missed(damage)))


def _batches(
    store: OpenStore,
    view: View,
    stream: StreamState,
    consumer: ConsumerState,
    sequences: SequenceSet,
    damage: list[ReadDamage],
    volumes: Sequence[Volume],
) -> Iterator[pa.RecordBatch]:
    """Yield these messages as they are read, no batch empty."""
    for first, end in _stretches(sequences):
        columns = tuple(READ_SCHEMA.names)
        for batch in _read(store, view, stream, consumer, first, end, columns, damage, volumes):
            mask = sequences.mask(batch.column("sequence").to_numpy())
            if mask.any():
                yield batch if mask.all() else batch.filter(pa.array(mask))


def size_bound(stream: StreamState, sequences: SequenceSet) -> int:
    """Return how many message bytes these can have at most: those of all blocks that they lie in."""
    if not sequences:
        return 0
    rows = stream.blocks.rows[stream.blocks_in(*sequences.bounds)]
    return int(rows["data_size"][sequences.touches(rows["first"], rows["first"] + rows["span"])].sum())


def with_counts(table: pa.Table, consumer: ConsumerState, capped: str = "") -> pa.Table:
    """Return messages that were handed out with delivery_count; `consumer` is as it is after that.

    `capped`: what keeps more of them back.
    """
    counts = pa.array(_deliveries(consumer, table.column("sequence").to_numpy()), pa.int64())
    made = table.append_column(FETCH_SCHEMA.field("delivery_count"), counts)
    return made.replace_schema_metadata({CAPPED: capped.encode()}) if capped else made


def unreadable_reason(stream: StreamState, consumer: ConsumerState, sequence: int) -> str:
    """Return why a consumer that fails on loss stops before this sequence, and what somebody can do about it."""
    return (
        f"stream {stream.name!r}: sequence {sequence}, which comes next, cannot be read from any copy. "
        "Bring back what is away; `jstream repair` looks for it on every volume, and declares lost what nothing has; "
        f"after that {remedy(stream.name, consumer.name)}"
    )


def _stretches(sequences: SequenceSet) -> Iterator[tuple[int, int]]:
    """Yield ranges that hold all sequences, without long ones in between that hold none."""
    if not sequences:
        return
    breaks = np.flatnonzero(sequences.starts[1:] - sequences.ends[:-1] > APART)
    starts = sequences.starts[np.concatenate(([0], breaks + 1))]
    ends = sequences.ends[np.concatenate((breaks, [sequences.run_count - 1]))]
    yield from zip(starts.tolist(), ends.tolist(), strict=True)


def _deliveries(consumer: ConsumerState, sequences: np.ndarray) -> np.ndarray:
    """Return how often each of these was handed out."""
    rows = consumer.pending.within(SequenceSet.from_sequences(sequences))
    counts = np.ones(len(sequences), np.int64)
    if len(rows):
        at = np.maximum(np.searchsorted(rows["first"], sequences, side="right") - 1, 0)
        inside = (sequences >= rows["first"][at]) & (sequences < rows["end"][at])
        counts[inside] = rows["deliveries"][at][inside]
    return counts


def command_of(
    stream: StreamState, consumer: ConsumerState, made: Delivery, now_ns: int, damage: Sequence[ReadDamage]
) -> Deliver:
    """Return the command that hands this out. `damage`: why some of it is withheld."""
    events = []
    names = stream.name, consumer.name
    if made.exhausted:
        reason = f"handed out {consumer.config.max_deliver} times and never acknowledged: not handed out any more"
        events.append(Event("consumer_exhausted", *names, before=described(made.exhausted), reason=reason))
    if made.withheld and not consumer.pending.withheld_count:
        events.append(withheld_event(*names, made.withheld, damage))
    return Deliver(
        stream.incarnation,
        consumer.name,
        consumer.next_sequence,
        made.next_sequence,
        made.sequences.encode(),
        now_ns + consumer.config.ack_wait,
        made.dropped.encode() if made.dropped else b"",
        made.withheld.encode() if made.withheld else b"",
        tuple(events),
    )


def withheld_event(stream: str, consumer: str, withheld: SequenceSet, damage: Sequence[ReadDamage]) -> Event:
    """Return what is reported when a consumer begins to wait for messages that cannot be read."""
    why = "; ".join(str(loss) for loss in damage[:EVENT_REASONS_MAX])
    reason = f"they wait until a copy can be read, or until `jstream repair` declares them lost: {why}"
    return Event("consumer_unreadable", stream, consumer, before=described(withheld), reason=reason)


def described(sequences: SequenceSet) -> str:
    """Return a set of sequences for people."""
    shown = ", ".join(str(a) if b == a + 1 else f"{a} to {b - 1}" for a, b in sequences.ranges_head(5))
    return shown + (", ..." if sequences.run_count > 5 else "")
