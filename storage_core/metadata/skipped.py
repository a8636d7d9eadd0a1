"""Messages that are taken away from consumers: removed, overwritten or lost before they were acknowledged.

They count as skipped, and never as acknowledged. What a removal takes is known when it is applied, so the count is
exact at any time: of messages that wait for their acknowledgement, and of those that the consumer has not come to. With
`filter_subjects` the latter are those in blocks that may hold a wanted subject, as far as the manifest says which
subjects a block has: nothing is read here.

A consumer's events tell of it when its count has doubled since they last did, or an hour later.

What was declared lost may be taken back. A consumer that had missed it is given what it was moved past: it waits as
messages do that no copy could be read of, and the next fetch hands it out. A query goes forward alone: its consumer's
event says what it has passed.
"""

import numpy as np

from storage_core.frozen import replace
from storage_core.metadata.commands import Event
from storage_core.metadata.config import LIMITS
from storage_core.metadata.consumer_state import CONSUMER_EVENTS_KEPT, ConsumerState
from storage_core.metadata.pending import PENDING_DTYPE, pending_rows, pending_set
from storage_core.metadata.retention import without
from storage_core.metadata.state import StreamState
from storage_core.metadata.subject_sets import rows_that_may_match
from storage_core.sequences import SequenceSet

REPORTED_EVERY_NS = 3_600 * 1_000_000_000
RANGES_SHOWN = 5
_NO_ROWS = np.empty(0, PENDING_DTYPE)


def taken_away(
    stream: StreamState, removed: SequenceSet, time_ns: int, why: str, may_come_back: bool = False
) -> tuple[StreamState, tuple[Event, ...]]:
    """Return the stream with what its consumers miss when these messages go, which it still shows; and the events.

    `may_come_back`: each remembers what it missed.
    """
    events: list[Event] = []
    stream = without(stream, removed)
    if removed and stream.config.retention != LIMITS:
        stream = replace(stream, missed_end=max(stream.missed_end, int(removed.ends[-1])))
    # By name: a map's order depends on how it came about, and the events are part of the state.
    for _, consumer in sorted(stream.consumers.items()) if removed else ():
        if consumer.incarnation not in stream.incarnations:
            continue  # its place is in another lifetime of the name
        ahead = removed.clip(consumer.next_sequence, stream.next_sequence)
        waiting = pending_set(consumer.pending.within(removed))
        missed = waiting.union(_wanted(stream, consumer, ahead))
        if not missed:
            continue
        pending = consumer.pending.put(waiting, _NO_ROWS) if waiting else consumer.pending
        consumer = replace(consumer, pending=pending, skipped=consumer.skipped + len(missed))
        if may_come_back:
            still_lost = consumer.missed.clip(stream.low_watermark, stream.next_sequence)
            consumer = replace(consumer, missed=still_lost.union(missed))
        if (
            consumer.skipped >= 2 * consumer.skipped_reported
            or abs(time_ns - consumer.skipped_reported_ns) >= REPORTED_EVERY_NS
        ):
            event = _event(stream, consumer, missed, time_ns, why)
            kept = (*consumer.events, event)[-CONSUMER_EVENTS_KEPT:]
            consumer = replace(consumer, events=kept, skipped_reported=consumer.skipped, skipped_reported_ns=time_ns)
            events.append(event)
        stream = stream.with_consumer(consumer)
    return stream, tuple(events)


def given_back(stream: StreamState, taken: SequenceSet, time_ns: int) -> tuple[StreamState, tuple[Event, ...]]:
    """Return the stream whose consumers know that these lost messages are there again; and the events."""
    events: list[Event] = []
    for _, consumer in sorted(stream.consumers.items()):
        missed = consumer.missed.intersection(taken)
        is_query = consumer.query_start.sequence > 0
        behind = missed.clip(1, consumer.next_sequence)
        pending = consumer.pending
        if not is_query and behind:
            pending = pending.put(behind, pending_rows(behind, 0, 0))
        delivered = missed.difference(behind) if is_query else missed
        consumer = replace(
            consumer,
            pending=pending,
            missed=consumer.missed.difference(taken),
            reported=consumer.reported.difference(taken),
            skipped=max(0, consumer.skipped - len(delivered)),
        )
        if behind:
            then = "the next fetch hands them out"
            if is_query:
                first = int(behind.starts[0])
                then = f"the query has passed them: read them by their sequences, or reset the consumer to {first}"
            reason = f"{len(behind)} messages that were lost are there again, behind its position; {then}"
            event = Event(
                "taken_back", stream.name, consumer.name, after=_shown(behind), reason=reason, time_ns=time_ns
            )
            consumer = replace(consumer, events=(*consumer.events, event)[-CONSUMER_EVENTS_KEPT:])
            events.append(event)
        stream = stream.with_consumer(consumer)
    return stream, tuple(events)


def _shown(sequences: SequenceSet) -> str:
    ranges = ", ".join(str(a) if b == a + 1 else f"{a} to {b - 1}" for a, b in sequences.ranges_head(RANGES_SHOWN))
    return f"{ranges}{', ...' if sequences.run_count > RANGES_SHOWN else ''}"


def _event(stream: StreamState, consumer: ConsumerState, missed: SequenceSet, time_ns: int, why: str) -> Event:
    reason = f"{len(missed)} messages were {why} before they were acknowledged; {consumer.skipped} in all"
    return Event("consumer_skipped", stream.name, consumer.name, before=_shown(missed), reason=reason, time_ns=time_ns)


def _wanted(stream: StreamState, consumer: ConsumerState, sequences: SequenceSet) -> SequenceSet:
    """Return those of the sequences that the consumer's filter may take, by the subjects that the manifest knows."""
    filters = consumer.config.filter_subjects
    if not filters or not sequences:
        return sequences
    rows = stream.blocks.rows[stream.blocks_in(*sequences.bounds)]
    rows = rows[rows_that_may_match(filters, stream.subject_sets, rows)]
    return sequences.intersection(SequenceSet.from_columns(rows["first"], rows["first"] + rows["span"]))
