"""Retention by what consumers have done: what of a stream nobody needs any more, as far as metadata says.

limits     messages stay until a limit, or somebody, removes them
interest   a message stays until every consumer that wants it has acknowledged it; one that none wants goes at once
workqueue  a message stays until the consumer that wants it has acknowledged it; one that none wants waits for one

Consumers of the latter two keep which messages they are done with and that are still there (`ConsumerState.done`). A
message that was handed out too often is not waited for any more, and is not done: it stays, as in JetStream.
"""

from storage_core.errors import RequirementError
from storage_core.frozen import replace
from storage_core.metadata.config import INTEREST, LIMITS, WORKQUEUE
from storage_core.metadata.consumer_config import ConsumerConfig
from storage_core.metadata.consumer_state import ConsumerState
from storage_core.metadata.pending import pending_set
from storage_core.metadata.state import StreamState
from storage_core.sequences import SequenceSet
from storage_core.subjects import filters_overlap


def check_consumer(stream: StreamState, config: ConsumerConfig) -> None:
    """Raise RequirementError for a consumer that a work queue cannot have beside those that it has."""
    if stream.config.retention != WORKQUEUE:
        return
    label = f"stream {stream.name!r} is a work queue: consumer {config.name!r}"
    if config.ack_policy != "explicit":
        raise RequirementError(f"{label} has ack_policy {config.ack_policy!r}; it needs 'explicit'")
    if config.deliver_policy != "all":
        raise RequirementError(f"{label} has deliver_policy {config.deliver_policy!r}; it needs 'all'")
    for _, existing in sorted(stream.consumers.items()):
        ours, theirs = config.filter_subjects or (">",), existing.config.filter_subjects or (">",)
        both = [
            (subject_filter, its) for subject_filter in ours for its in theirs if filters_overlap(subject_filter, its)
        ]
        if both:
            raise RequirementError(
                f"{label} would take {both[0][0]!r}, and consumer {existing.name!r} has {both[0][1]!r}: "
                "filter_subjects of the consumers of a work queue do not overlap"
            )


def check_change(old: str, new: str, name: str) -> None:
    """Raise RequirementError unless a stream can change its retention so, as in JetStream."""
    if old != new and WORKQUEUE in (old, new):
        raise RequirementError(f"stream {name!r}: retention cannot be changed from {old!r} to {new!r}")


def with_done(stream: StreamState, consumer: ConsumerState, sequences: SequenceSet) -> ConsumerState:
    """Return the consumer after it is done with these messages, as far as they are still there."""
    if stream.config.retention == LIMITS or not sequences:
        return consumer
    present = stream.removed.absent_among(sequences.clip(stream.low_watermark, stream.next_sequence))
    return replace(consumer, done=consumer.done.union(present))


def beginning(stream: StreamState, consumer: ConsumerState) -> ConsumerState:
    """Return the consumer where retention by interest begins to ask it: it needs what waits, and what comes."""
    if stream.config.retention != INTEREST:
        return replace(consumer, done=SequenceSet.empty())
    before = SequenceSet.from_ranges([(stream.low_watermark, consumer.next_sequence)])
    return with_done(stream, consumer, before.difference(pending_set(consumer.pending.rows)))


def moved(stream: StreamState, before: ConsumerState, after: ConsumerState) -> ConsumerState:
    """Return a consumer that was moved: what lies before its new place is done where interest decides.

    A work queue keeps what was passed over: nobody has done it.
    """
    if stream.config.retention == LIMITS or before.incarnation not in stream.incarnations:
        return replace(after, done=SequenceSet.empty())
    done = before.done.clip(1, after.next_sequence)
    if stream.config.retention == INTEREST:
        return beginning(stream, replace(after, done=done))
    return replace(after, done=done.difference(pending_set(after.pending.rows)))


def without(stream: StreamState, removed: SequenceSet) -> StreamState:
    """Return the stream whose consumers have forgotten that they are done with messages that are gone."""
    for _, consumer in stream.consumers.items():
        if consumer.done:
            done = consumer.done.difference(removed)
            if done is not consumer.done:
                stream = stream.with_consumer(replace(consumer, done=done))
    return stream


def done_by_all(stream: StreamState, sequences: SequenceSet) -> SequenceSet:
    """Return which of these messages no consumer needs; of those with filters more may not need them.

    A consumer without a filter needs what it is not done with. One with filters may: its blocks tell.
    """
    if stream.config.retention == WORKQUEUE:
        done = SequenceSet.empty()
        for consumer in stream.consumers.values():
            done = done.union(consumer.done)
        return sequences.intersection(done)
    for consumer in stream.consumers.values():
        if not consumer.config.filter_subjects:
            sequences = sequences.intersection(consumer.done)
        elif consumer.pending:
            sequences = sequences.difference(pending_set(consumer.pending.rows))
    return sequences
