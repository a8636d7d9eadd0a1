"""Retention by interest and work queues: what goes at the acknowledgement that allows it.

What no consumer needs any more is worked out here, by the session that acknowledged, appended or deleted a consumer,
and goes as one explicit set in the same round of fsyncs. Consumers keep what they are done with in the metadata, so a
removal that was too large for one entry, or did not come about, is made up for by maintenance.

Where consumers have filters, and interest decides, the blocks tell which messages they take; of a commit or an
acknowledgement only the messages that it is about are looked at.
"""

import logging

from storage_core import buffers
from storage_core.errors import StorageError
from storage_core.metadata import machine
from storage_core.metadata.commands import Remove
from storage_core.metadata.config import INTEREST, LIMITS
from storage_core.metadata.removals import RETENTION
from storage_core.metadata.retention import done_by_all
from storage_core.metadata.state import StoreState, StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.reading.plan import ReadRequest, plan_stream
from storage_core.store.reading.reading import ReadOptions, read_slices
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing.limits import Limits

logger = logging.getLogger(__name__)
RUNS_AT_ONCE_MAX = 1 << 18  # of the removed messages of one entry, which holds 8 MiB


def release(
    session: Session, incarnation: bytes, limits: Limits, env: Environment, among: SequenceSet | None = None
) -> int:
    """Remove what no consumer needs any more; return how many messages that were.

    `among`: only these are looked at; None: all. Where a block cannot be read now, that is left to maintenance.
    """
    stream = session.state.by_incarnation(incarnation)
    if stream is None:
        return 0
    try:
        sequences, size = unneeded(session.state, stream, session.volumes, limits, env, among)
    except (StorageError, OSError) as error:
        logger.warning("stream %r: messages that no consumer needs stay for now: %s", stream.name, error)
        return 0
    if not sequences:
        return 0
    result = session.propose(Remove(incarnation, sequences.encode(), size, reason=RETENTION))
    assert isinstance(result, machine.RemoveDone)
    return result.message_count


def unneeded(
    state: StoreState, stream: StreamState, volumes: tuple[Volume, ...], limits: Limits, env: Environment,
    among: SequenceSet | None = None,
) -> tuple[SequenceSet, int]:  # fmt: skip
    """Return what no consumer needs any more, as much as one entry takes, and its bytes; `among` as of `release`."""
    if stream.config.retention == LIMITS or stream.config.sealed or not stream.message_count:
        return SequenceSet.empty(), 0
    sequences = _unneeded(state, stream, volumes, env, among)
    return sequences, limits.size_of(state, stream, sequences, volumes) if sequences else 0


def _unneeded(
    state: StoreState, stream: StreamState, volumes: tuple[Volume, ...], env: Environment, among: SequenceSet | None
) -> SequenceSet:
    shown = stream.shown() if among is None else _shown(stream, among)
    done = done_by_all(stream, shown)
    for consumer in stream.consumers.values() if stream.config.retention == INTEREST else ():
        filters, open_ = consumer.config.filter_subjects, done.difference(consumer.done)
        if filters and open_:
            done = done.difference(_taken(state, stream, volumes, env, filters, open_))
    return SequenceSet(done.starts[:RUNS_AT_ONCE_MAX], done.ends[:RUNS_AT_ONCE_MAX])


def _shown(stream: StreamState, among: SequenceSet) -> SequenceSet:
    among = among.clip(stream.low_watermark, stream.next_sequence)
    return stream.removed.absent_among(among)


def _taken(
    state: StoreState,
    stream: StreamState,
    volumes: tuple[Volume, ...],
    env: Environment,
    filters: tuple[str, ...],
    sequences: SequenceSet,
) -> SequenceSet:
    """Return which of these messages the filters take, by their subjects."""
    bounds = {stream.name: sequences.bounds}
    slices, _ = plan_stream(state, stream, volumes, ReadRequest((stream.name,), bounds, subject_filters=filters))
    touched = [block for block in slices if sequences.count_in(block.first, block.end)]
    batches = read_slices(touched, ReadOptions(("sequence",), filters), env=env)
    parts = [buffers.numbers(batch.column("sequence")) for batch in batches]
    return SequenceSet.from_parts(parts).intersection(sequences)
