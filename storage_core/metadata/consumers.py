"""The commands about durable consumers, applied: `apply_to(stream, time, command) -> (stream, events, count)`.

Part of the state machine (machine.py), and pure like it: times and deadlines come with the commands.
"""

import numpy as np

from storage_core.errors import (
    AlreadyExistsError,
    FencedError,
    LimitExceededError,
    NotFoundError,
    RequirementError,
)
from storage_core.frozen import replace
from storage_core.metadata.commands import (
    Acknowledge,
    AddConsumer,
    ConsumerAdvance,
    ConsumerCommand,
    DeleteConsumer,
    Deliver,
    Event,
    MoveConsumer,
    PauseConsumer,
    TakeConsumer,
    timed,
)
from storage_core.metadata.consumer_state import CONSUMER_EVENTS_KEPT, ConsumerState
from storage_core.metadata.pending import PENDING_DTYPE, PendingMessages, pending_rows, pending_set
from storage_core.metadata.reconcile import Position, facts_of, position_at
from storage_core.metadata.retention import beginning, check_consumer, moved, with_done
from storage_core.metadata.shared_map import SharedMap
from storage_core.metadata.state import StreamState
from storage_core.sequences import SequenceSet

ACK, NAK, TERM, WITHHOLD = "ack", "nak", "term", "withhold"
ANY_GENERATION = -1  # of an advance that is said for whoever owns the consumer
_NO_ROWS = np.empty(0, PENDING_DTYPE)
Applied = tuple[StreamState, tuple[Event, ...], int]


def position_of(consumer: ConsumerState) -> Position:
    """Return the consumer's position as the rule of reconciliation takes it."""
    return Position(consumer.incarnation, consumer.next_sequence, consumer.history)


def anchored(stream: StreamState, consumer: ConsumerState, next_sequence: int) -> ConsumerState:
    """Return the consumer at this place of the stream as it is now."""
    at = position_at(facts_of(stream), next_sequence)
    return replace(consumer, incarnation=at.incarnation, next_sequence=at.next_sequence, history=at.history)


def restored(stream: StreamState) -> StreamState:
    """Return a stream out of a backup with its consumers at the places in it that they had."""
    moved = ((key, anchored(stream, consumer, consumer.next_sequence)) for key, consumer in stream.consumers.items())
    return replace(stream, consumers=SharedMap(moved))


def apply_to(stream: StreamState, time_ns: int, command: ConsumerCommand) -> Applied:
    """Return the stream after the command, the events that it brings, and how many messages it was about.

    Raises AlreadyExistsError, NotFoundError, RequirementError if it is refused.
    """
    if isinstance(command, AddConsumer):
        return _add(stream, time_ns, command)
    consumer = _named(stream, command.name)
    if isinstance(command, DeleteConsumer):
        return replace(stream, consumers=stream.consumers.without(command.name.casefold())), (), 0
    count = 0
    if isinstance(command, PauseConsumer):
        consumer = replace(consumer.by_clock(time_ns), paused_until_ns=max(0, command.until_ns))
    elif isinstance(command, Deliver):
        consumer, count = _deliver(stream, consumer.by_clock(time_ns), command)
    elif isinstance(command, Acknowledge):
        consumer, count = _acknowledge(stream, consumer.by_clock(time_ns), command)
    elif isinstance(command, MoveConsumer):
        consumer = _move(stream, consumer, command)
    elif isinstance(command, TakeConsumer):
        consumer = _take(stream, consumer, command)
    events = () if isinstance(command, PauseConsumer) else timed(command.events, time_ns)
    if events:
        consumer = replace(consumer, events=(*consumer.events, *events)[-CONSUMER_EVENTS_KEPT:])
    return stream.with_consumer(consumer), events, count


def _named(stream: StreamState, name: str) -> ConsumerState:
    consumer = stream.consumers.get(name.casefold())
    if consumer is None or consumer.name != name:
        raise NotFoundError(f"stream {stream.name!r} has no consumer {name!r} any more")
    return consumer


def advanced(stream: StreamState, command: ConsumerAdvance) -> StreamState:
    """Return the stream after a query has done everything below a sequence; its consumer never moves back.

    Raises NotFoundError, RequirementError; FencedError if another generation owns the consumer.
    """
    consumer = _named(stream, command.name)
    if command.generation not in (ANY_GENERATION, consumer.generation):
        raise FencedError(
            f"consumer {consumer.name!r} of stream {stream.name!r} was taken over by another query: its generation is "
            f"{consumer.generation}, this is {command.generation}",
            stream=stream.name,
            consumer=consumer.name,
        )
    _check_place(stream, consumer.name, command.next_sequence)
    done = SequenceSet.from_ranges([(1, command.next_sequence)])
    consumer = replace(consumer, pending=consumer.pending.put(done, _NO_ROWS))
    if command.done:
        consumer = with_done(stream, consumer, SequenceSet.decode(command.done).intersection(done))
    if command.next_sequence > consumer.next_sequence:
        consumer = anchored(stream, consumer, command.next_sequence)
    return stream.with_consumer(consumer)


def _add(stream: StreamState, time_ns: int, command: AddConsumer) -> Applied:
    name = command.config.name
    existing = stream.consumers.get(name.casefold())
    if existing is not None:
        how = "exists" if existing.name == name else f"differs from consumer {existing.name!r} only in case"
        raise AlreadyExistsError(f"consumer {name!r} of stream {stream.name!r} {how}")
    limit = stream.config.max_consumers
    if 0 <= limit <= len(stream.consumers):
        raise LimitExceededError(stream.name, "max_consumers", limit, len(stream.consumers), 1)
    _check_place(stream, name, command.next_sequence)
    check_consumer(stream, command.config)
    made = ConsumerState(command.config, time_ns, stream.incarnation, command.next_sequence, reported=stream.lost)
    made = replace(made, query_start=command.query_start or made.query_start)
    made = beginning(stream, anchored(stream, made, command.next_sequence))
    return stream.with_consumer(made), (), 0


def _check_place(stream: StreamState, name: str, next_sequence: int) -> None:
    if not 1 <= next_sequence <= stream.next_sequence:
        raise RequirementError(
            f"consumer {name!r}: sequence {next_sequence} is not 1 to {stream.next_sequence}, "
            f"where the next message of stream {stream.name!r} will be"
        )


def _deliver(stream: StreamState, consumer: ConsumerState, command: Deliver) -> tuple[ConsumerState, int]:
    if consumer.next_sequence != command.expected_next or consumer.incarnation != stream.incarnation:
        raise RequirementError(f"consumer {consumer.name!r} has moved in the meantime")
    if command.next_sequence < consumer.next_sequence:
        raise RequirementError(f"consumer {consumer.name!r}: a fetch does not move it back")
    _check_place(stream, consumer.name, command.next_sequence)
    handed_out = SequenceSet.decode(command.sequences)
    again = consumer.pending.within(handed_out)
    withheld = SequenceSet.decode(command.withheld) if command.withheld else SequenceSet.empty()
    new = handed_out.difference(pending_set(again))
    first_seen = new.union(withheld)
    if first_seen != first_seen.clip(consumer.next_sequence, command.next_sequence):
        raise RequirementError(f"consumer {consumer.name!r}: a fetch takes messages that were handed out before")
    dropped = SequenceSet.decode(command.dropped) if command.dropped else SequenceSet.empty()
    rows = [pending_rows(withheld, 0, 0)]
    if consumer.config.ack_policy != "none":
        again["deadline_ns"], again["deliveries"] = command.deadline_ns, again["deliveries"] + 1
        rows += [again, pending_rows(new, command.deadline_ns, 1)]
    pending = consumer.pending.put(handed_out.union(dropped).union(withheld), np.concatenate(rows))
    if pending.handed_out_count > max(consumer.config.waiting_max, consumer.pending.handed_out_count):
        raise RequirementError(
            f"consumer {consumer.name!r}: {pending.handed_out_count} messages would wait for their acknowledgement, "
            f"max_ack_pending is {consumer.config.waiting_max}"
        )
    consumer = replace(consumer, pending=pending)
    if consumer.config.ack_policy == "none":
        consumer = with_done(stream, consumer, handed_out)
    return anchored(stream, consumer, command.next_sequence), len(handed_out)


def _acknowledge(stream: StreamState, consumer: ConsumerState, command: Acknowledge) -> tuple[ConsumerState, int]:
    chosen = acknowledged(consumer, command.kind, SequenceSet.decode(command.sequences))
    meant = consumer.pending.within(chosen)
    count = int((meant["end"] - meant["first"]).sum())
    rows = _NO_ROWS
    if command.kind == NAK:
        meant["deadline_ns"] = command.deadline_ns
        rows = meant
    elif command.kind == WITHHOLD:
        meant["deadline_ns"], meant["deliveries"] = 0, np.maximum(meant["deliveries"] - 1, 0)
        more = SequenceSet.empty()
        if consumer.config.ack_policy == "none":  # of what was handed out nothing waits
            more = chosen.clip(1, consumer.next_sequence).difference(pending_set(meant))
        rows = np.concatenate((meant, pending_rows(more, 0, 0)))
    if command.kind in (ACK, TERM):
        consumer = with_done(stream, consumer, pending_set(meant))
    elif command.kind == WITHHOLD and consumer.done:
        consumer = replace(consumer, done=consumer.done.difference(chosen))
    return replace(consumer, pending=consumer.pending.put(chosen, rows)), count


def acknowledged(consumer: ConsumerState, kind: str, sequences: SequenceSet) -> SequenceSet:
    """Return which sequences an acknowledgement of these is about: with ack_policy=all, all below as well.

    What was withheld can be given up, and not be acknowledged.
    """
    if kind == ACK and consumer.config.ack_policy == "all" and sequences:
        sequences = SequenceSet.from_ranges([(1, int(sequences.ends[-1]))])
    if kind in (ACK, NAK) and consumer.pending.withheld_count:
        sequences = sequences.difference(consumer.pending.withheld())
    return sequences


def _move(stream: StreamState, consumer: ConsumerState, command: MoveConsumer) -> ConsumerState:
    _check_place(stream, consumer.name, command.next_sequence)
    kept = SequenceSet.from_ranges([(stream.first_sequence, min(command.pending_end, command.next_sequence))])
    pending = PendingMessages.of(consumer.pending.within(kept))
    waits_to = min(command.pending_end, command.next_sequence)
    missed = consumer.missed.difference(SequenceSet.from_ranges([(waits_to, command.next_sequence)]))
    made = replace(consumer, query_start=command.query_start or consumer.query_start, missed=missed)
    made = replace(anchored(stream, made, command.next_sequence), pending=pending, reported=stream.lost)
    return moved(stream, consumer, made)


def _take(stream: StreamState, consumer: ConsumerState, command: TakeConsumer) -> ConsumerState:
    if command.generation != consumer.generation + 1:
        raise RequirementError(
            f"consumer {consumer.name!r} of stream {stream.name!r} is of generation {consumer.generation}, the next "
            f"one is not {command.generation}: another reader has taken it over in the meantime"
        )
    return replace(consumer, generation=command.generation)
