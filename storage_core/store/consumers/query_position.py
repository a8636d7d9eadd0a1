"""Where a query stands in a stream: what the offset in its checkpoint says, and how it comes about."""

from dataclasses import dataclass, field

import numpy as np

from storage_core.metadata.consumer_state import ConsumerState
from storage_core.metadata.consumers import position_of
from storage_core.metadata.reconcile import CONTINUE, Action, Position, answers, facts_of, position_at
from storage_core.metadata.state import StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.consumers.position import decision_of

LOST_RANGES_KEPT = 8  # of what was reported to a query: its offset is text in a log, once a batch


@dataclass(frozen=True, slots=True)
class QueryPosition:
    """Where a query stands in one stream: what the offset in its checkpoint says."""

    position: Position
    reported: SequenceSet = field(default_factory=SequenceSet.empty)  # at most LOST_RANGES_KEPT


def onward(stream: StreamState, start: QueryPosition, sequence: int) -> QueryPosition:
    """Return the position of a query that stood at `start`, reconciled, and has read everything below `sequence` since.

    `stream` is as the batch was planned. What is recorded as lost since `start` was reconciled is still to be reported.
    """
    assert start.position.next_sequence <= sequence <= stream.next_sequence, (start.position, sequence)
    return QueryPosition(position_at(facts_of(stream), sequence), start.reported)


def reported_kept(lost: SequenceSet, next_sequence: int) -> SequenceSet:
    """Return the losses that a position remembers: all of them, in at most LOST_RANGES_KEPT ranges.

    Neighbours are joined until it fits; first those with the fewest messages between them that are still to be read:
    a later loss there would be reported to nobody.
    """
    gap_first, gap_end = lost.ends[:-1], lost.starts[1:]
    unread = np.maximum(gap_end - np.maximum(gap_first, next_sequence), 0)
    kept = np.sort(np.lexsort((gap_end - gap_first, unread))[-(LOST_RANGES_KEPT - 1) :])
    return SequenceSet(lost.starts[np.append([0], kept + 1)], lost.ends[np.append(kept, [-1])]) if lost else lost


def beginning(stream: StreamState, sequence: int) -> QueryPosition:
    """Return the position of a query that begins at `sequence` now: whatever is lost by now is nothing to tell."""
    return QueryPosition(position_at(facts_of(stream), sequence), reported_kept(stream.lost, sequence))


def place_of(stream: StreamState, consumer: ConsumerState) -> Position:
    """Return where a query of this consumer starts: at the first pending message, or at the consumer's position.

    If the stream has become another one since, that is the consumer's own position, by which reconciliation recognises
    the stream.
    """
    waiting = waiting_of(stream, consumer)
    if not waiting or decision_of(stream, consumer, CONTINUE).action is not Action.GO_ON:
        return position_of(consumer)
    return position_at(facts_of(stream), int(waiting.starts[0]))


def waiting_of(stream: StreamState, consumer: ConsumerState) -> SequenceSet:
    """Return the messages that are there and were handed out before the consumer's place, and not acknowledged."""
    if consumer.incarnation not in stream.incarnations:
        return SequenceSet.empty()
    return consumer.outstanding().intersection(stream.shown())


def is_on_history(stream: StreamState, position: Position) -> bool:
    """Return whether everything below the position was read from this stream as it is."""
    case = answers(position, facts_of(stream), stream.lost, CONTINUE)
    return (case["incarnation"], case["history"]) == ("same", "shared") and case["place"] != "ahead"
