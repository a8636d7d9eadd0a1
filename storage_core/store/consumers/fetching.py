"""What one fetch of a consumer hands out: worked out from metadata, committed, then read.

A fetch first looks without a lock. If there is something to do it takes a turn: the position is reconciled with the
stream, messages that are due again come first, then new ones, as many as may wait for their acknowledgement. All of it
is one entry or two in one round of fsyncs, and only after that the messages are read, outside the locks: what was
handed out is known before anybody sees it, so two processes never hand out the same message within ack_wait.

A consumer that fails on loss reads them before the turn as well: what no copy has is not handed out, so it stops right
before that, and stays there. The turn then checks that it hands out what was read.

With `filter_subjects` the metadata cannot say which messages are wanted. They are looked for before the turn, which
then checks that the consumer still stands where it stood.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from storage_core.metadata.commands import Deliver, Event
from storage_core.metadata.consumer_state import ConsumerState
from storage_core.metadata.consumers import position_of
from storage_core.metadata.pending import pending_set
from storage_core.metadata.reconcile import FAIL, Decision, decide, facts_of
from storage_core.metadata.state import StreamState
from storage_core.schema import READ_SCHEMA
from storage_core.sequences import SequenceSet
from storage_core.store import contents
from storage_core.store.reading.plan import ReadRequest
from storage_core.store.reading.reading import ReadDamage, ReadOptions, read_slices

if TYPE_CHECKING:
    from storage_core.store.store import Store

FETCH_SCHEMA = READ_SCHEMA.append(pa.field("delivery_count", pa.int64(), nullable=False))
APART = 65_536  # sequences: messages further apart are read one by one, and not with all that lies between


def decision_of(stream: StreamState, consumer: ConsumerState, policy: str | None = None) -> Decision:
    """Return what reconciliation says of the consumer, by its own policy unless another one is named."""
    policy = policy or consumer.config.on_data_loss
    return decide(position_of(consumer), facts_of(stream), consumer.told, policy, remedy(stream.name, consumer.name))


def remedy(stream: str, consumer: str) -> str:
    """Return what somebody can do about a consumer that fails."""
    return (
        f"`jstream consumer reset {stream} {consumer} --execute`, or `consumer.reset()` in Python, goes on from there; "
        "with on_data_loss='continue' a consumer goes on by itself"
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """Messages that a consumer with a filter wants, found before the turn."""

    start: int  # the consumer's next_sequence then
    end: int  # up to which it was looked
    sequences: SequenceSet
    damage: tuple[ReadDamage, ...] = ()  # what could not be looked at


@dataclass(frozen=True, slots=True)
class Handout:
    """What one fetch hands out."""

    again: SequenceSet
    new: SequenceSet
    next_sequence: int
    dropped: SequenceSet  # not waited for any more
    exhausted: SequenceSet  # those of them that were handed out max_deliver times
    is_clock_behind: bool = False  # deadlines have to be set by it

    @property
    def sequences(self) -> SequenceSet:
        return self.again.union(self.new)

    def is_nothing(self, consumer: ConsumerState) -> bool:
        is_there = self.next_sequence == consumer.next_sequence and not self.is_clock_behind
        return is_there and not self.again and not self.dropped


def work_out(
    stream: StreamState, consumer: ConsumerState, now_ns: int, count_max: int, wanted: Wanted | None = None
) -> Handout:
    """Return what a fetch of at most `count_max` messages hands out now."""
    config, pending = consumer.config, consumer.pending
    nothing = SequenceSet.empty()
    if consumer.paused_until_ns > now_ns:
        is_behind = consumer.is_clock_behind(now_ns)
        return Handout(nothing, nothing, consumer.next_sequence, nothing, nothing, is_behind)
    due = pending.due(now_ns)
    spent = due["deliveries"] >= config.max_deliver if config.max_deliver > 0 else np.zeros(len(due), bool)
    gone = pending_set(pending.within(_hidden(stream, pending.first_sequence, consumer.next_sequence)))
    exhausted = pending_set(due[spent]).difference(gone)
    dropped = gone.union(exhausted)
    again = pending_set(due[~spent]).difference(gone).head(count_max)
    room = count_max - len(again)
    if config.ack_policy != "none":
        room = min(room, config.waiting_max - pending.message_count + len(dropped))
    ahead = _shown_from(stream, consumer.next_sequence)
    end = stream.next_sequence
    if wanted is not None:
        ahead, end = ahead.intersection(wanted.sequences), wanted.end
    new = ahead.head(room)
    left = ahead.difference(new)
    # Past holes as well: what was never shown is not missed when the head of the stream is removed.
    next_sequence = int(left.starts[0]) if left else end
    if not new and (wanted is None or left):
        next_sequence = consumer.next_sequence
    return Handout(again, new, next_sequence, dropped, exhausted, consumer.is_clock_behind(now_ns))


def _hidden(stream: StreamState, first: int, end: int) -> SequenceSet:
    """Return the sequences in `[first, end)` that are not shown."""
    return SequenceSet.from_ranges([(first, min(stream.floor, end))]).union(stream.removed.clip(first, end))


def _shown_from(stream: StreamState, first: int) -> SequenceSet:
    """Return the sequences at and above `first` that are shown."""
    first, end = max(first, stream.floor), stream.next_sequence
    return SequenceSet.from_ranges([(first, end)]).difference(stream.removed.clip(first, end))


def look_for(store: "Store", stream: StreamState, consumer: ConsumerState, count_max: int) -> Wanted:
    """Return the next messages that the consumer's filter takes, at most `count_max`.

    If the consumer's policy is to fail, only those before the first that cannot be looked at.
    """
    start, end = consumer.next_sequence, stream.next_sequence
    damage: list[ReadDamage] = []
    parts: list[np.ndarray] = []
    found = 0
    for batch in _read(store, stream, consumer, start, end, ("sequence",), damage):
        parts.append(batch.column("sequence").to_numpy())
        found += batch.num_rows
        if found > count_max:
            break
    sequences = np.concatenate(parts)[: count_max + 1] if parts else np.empty(0, np.int64)
    if len(sequences) > count_max:
        sequences, end = sequences[:count_max], int(sequences[count_max])
    if damage and consumer.config.on_data_loss == FAIL:
        end = min(end, max(start, min(one.first for one in damage)))
        sequences = sequences[sequences < end]
    return Wanted(start, end, SequenceSet.from_sequences(sequences), tuple(damage))


def count_wanted(store: "Store", stream: StreamState, consumer: ConsumerState) -> int:
    """Return how many messages there are that were never handed out; with a filter they are counted by reading."""
    start, end = max(consumer.next_sequence, stream.floor), stream.next_sequence
    if not consumer.config.filter_subjects:
        return max(0, end - start) - stream.removed.count_in(start, end)
    request = ReadRequest((stream.name,), {stream.name: (start, end)}, subject_filters=consumer.config.filter_subjects)
    options = ReadOptions(("sequence",), consumer.config.filter_subjects, on_loss="skip")
    batches = read_slices(contents.slices(store, stream, request), options, env=store.environment)
    return sum(batch.num_rows for batch in batches)


def _read(
    store: "Store",
    stream: StreamState,
    consumer: ConsumerState,
    first: int,
    end: int,
    columns: tuple[str, ...],
    damage: list[ReadDamage],
) -> Iterator[pa.RecordBatch]:
    filters = consumer.config.filter_subjects
    request = ReadRequest((stream.name,), {stream.name: (first, end)}, subject_filters=filters)
    options = ReadOptions(columns, filters, on_loss="skip")

    def hear(one: ReadDamage) -> None:
        if not one.served:
            damage.append(one)

    yield from read_slices(contents.slices(store, stream, request), options, hear, store.environment)


@dataclass(slots=True)
class Rows:
    """Messages to be handed out, as they were read."""

    table: pa.Table  # of READ_SCHEMA
    unreadable: SequenceSet  # those of them that no copy has
    damage: list[ReadDamage] = field(default_factory=list)


def read_rows(store: "Store", stream: StreamState, consumer: ConsumerState, sequences: SequenceSet) -> Rows:
    """Return these messages, and which of them cannot be read."""
    damage: list[ReadDamage] = []
    batches = []
    for first, end in _stretches(sequences):
        for batch in _read(store, stream, consumer, first, end, tuple(READ_SCHEMA.names), damage):
            mask = sequences.mask(batch.column("sequence").to_numpy())
            batches.append(batch if mask.all() else batch.filter(pa.array(mask)))
    table = pa.Table.from_batches(batches, READ_SCHEMA)
    lost = SequenceSet.from_ranges([(one.first, one.end) for one in damage])
    have = SequenceSet.from_sequences(table.column("sequence").to_numpy())
    return Rows(table, sequences.difference(have).intersection(lost), damage)


def with_counts(table: pa.Table, consumer: ConsumerState) -> pa.Table:
    """Return messages that were handed out with delivery_count; `consumer` is as it is after that."""
    counts = pa.array(_deliveries(consumer, table.column("sequence").to_numpy()), pa.int64())
    return table.append_column(FETCH_SCHEMA.field("delivery_count"), counts)


def unreadable_reason(stream: StreamState, consumer: ConsumerState, sequence: int) -> str:
    """Return why a consumer that fails on loss stops before this sequence, and what somebody can do about it."""
    return (
        f"stream {stream.name!r}: sequence {sequence}, which comes next, cannot be read from any copy. "
        "`jstream repair` looks for it on every volume, and declares lost what none has; after that "
        f"{remedy(stream.name, consumer.name)}"
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
    stream: StreamState, consumer: ConsumerState, made: Handout, now_ns: int, wanted: Wanted | None
) -> Deliver:
    """Return the command that hands this out."""
    events = []
    names = stream.name, consumer.name
    if made.exhausted:
        reason = f"handed out {consumer.config.max_deliver} times and never acknowledged: not handed out any more"
        events.append(Event("consumer_exhausted", *names, before=described(made.exhausted), reason=reason))
    passed = [one for one in wanted.damage if one.first < made.next_sequence] if wanted is not None else []
    for one in passed:  # what lies beyond is met again
        events.append(Event("consumer_unreadable", *names, before=f"{one.first} to {one.end - 1}", reason=str(one)))
    return Deliver(
        stream.incarnation,
        consumer.name,
        consumer.next_sequence,
        made.next_sequence,
        made.sequences.encode(),
        now_ns + consumer.config.ack_wait,
        made.dropped.encode() if made.dropped else b"",
        tuple(events),
    )


def described(sequences: SequenceSet) -> str:
    """Return a set of sequences for people."""
    shown = ", ".join(str(a) if b == a + 1 else f"{a} to {b - 1}" for a, b in sequences.ranges_head(5))
    return shown + (", ..." if sequences.run_count > 5 else "")
