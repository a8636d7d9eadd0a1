"""What a stream has over its limits is removed: by time, by size and number, by subject; markers where they are due."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import msgspec
import pyarrow as pa

from storage_core import buffers
from storage_core.errors import LimitExceededError, StorageError
from storage_core.metadata import machine
from storage_core.metadata.commands import Append, Event, RecordEvents, Remove
from storage_core.metadata.state import StoreState, StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.session import Session
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing import expiry, markers, per_subject
from storage_core.store.writing.limits import Limits, has_removal_limit
from storage_core.store.writing.per_subject import SubjectIndex
from storage_core.store.writing.retention import release
from storage_core.store.writing.staged_blocks import describe_append, retire, tell_missed
from storage_core.store.writing.staging import Stager
from storage_core.store.writing.transactions import begin

logger = logging.getLogger(__name__)


def enforce(
    session: Session, incarnation: bytes, limits: Limits, subjects: SubjectIndex, all_subjects: bool = False
) -> int:
    """Remove what the stream has over its limits; return how many messages that were.

    `all_subjects`: also over those of single subjects, which every append keeps to. Where the block at the edge cannot
    be read now, that is left to whoever writes next: the limits are there for room, and what is stored stays stored.
    """
    stream = session.state.by_incarnation(incarnation)
    if stream is None:
        return 0
    is_timed = len(stream.expiries) or (stream.config.max_age and has_removal_limit(stream))
    now_ns = limits.env.now_ns() if is_timed else 0  # one look, for all that time takes and what it leaves
    try:
        count = _leave_markers(session, stream, limits, subjects, now_ns)
    except (StorageError, OSError) as error:  # what goes without its marker would never get it
        _say_what_stays(stream, error)
        return 0
    questions: list[Callable[[StoreState, StreamState, Sequence[Volume]], Remove | None]] = [
        partial(expiry.command, limits=limits, now_ns=now_ns),
        partial(limits.command, now_ns=now_ns),
    ]
    if all_subjects:
        questions.append(partial(per_subject.command, env=limits.env))
    for ask in questions:
        stream = session.state.by_incarnation(incarnation)
        assert stream is not None, incarnation
        try:
            command = ask(session.state, stream, session.volumes)
        except (StorageError, OSError) as error:
            _say_what_stays(stream, error)
            continue
        if command is not None:
            result = session.propose(command)
            assert isinstance(result, machine.RemoveDone)
            count += result.message_count
    return count


def _say_what_stays(stream: StreamState, error: Exception) -> None:
    logger.warning("stream %r: what is over its limits stays for now: %s", stream.name, error)


def _leave_markers(session: Session, stream: StreamState, limits: Limits, subjects: SubjectIndex, now_ns: int) -> int:
    """Put delete markers in the place of messages that time takes; return how many messages went for them.

    Where a limit leaves no room for markers the messages go without: the limit is there to hold.
    """
    if not stream.config.subject_delete_marker_ttl or stream.config.sealed:
        return 0
    taken = markers.due(session, stream, limits, subjects, now_ns)
    for start in range(0, len(taken), markers.MARKERS_AT_ONCE_MAX):
        part = taken.slice(start, markers.MARKERS_AT_ONCE_MAX)
        try:
            _append_markers(session, stream.incarnation, part, limits, now_ns)
        except LimitExceededError as error:
            reason = f"{len(taken) - start} messages go without a delete marker: {error}"
            session.propose(RecordEvents((Event("markers_left_out", stream.name, reason=reason, count=1),)))
            return start
    return len(taken)


def _append_markers(session: Session, incarnation: bytes, taken: pa.Table, limits: Limits, now_ns: int) -> None:
    """Append markers and remove what they take the place of, in one entry; raises what a session raises."""
    stream, env = session.state.by_incarnation(incarnation), limits.env
    assert stream is not None, incarnation
    transaction = begin(session.state, session.volumes, [stream.name], env)
    target = replace(  # the stream has taken these subjects, and may not by now
        transaction.targets[stream.name], subjects=(">",), max_msg_size=-1, allow_rollup=True, allow_ttl=True
    )
    stager = Stager(transaction, target, 0, env=env, hashed=False)
    try:
        stager.write(markers.messages(stream.config, taken["subject"], now_ns))
        staged = stager.finish()
        failures = [failure for block in staged for failure in block.failures]
        retire(session, failures)
        superseded = SequenceSet.from_sequences(buffers.numbers(taken["sequence"].combine_chunks()))
        blocks, _ = describe_append(session, target, staged, False, None, None, env, True)
        size = limits.size_of(session.state, stream, superseded, session.volumes)
        blocks = msgspec.structs.replace(blocks, superseded=superseded.encode(), superseded_size=size)
        command = Append(transaction.id, (blocks,))
        result = session.check(command)
        assert isinstance(result, machine.AppendDone)
    except BaseException:
        stager.discard()  # nobody was told of them
        raise
    session.if_taken_back(stager.discard)
    session.propose(command)
    got = result.appended[stream.name]
    release(session, incarnation, limits, env, SequenceSet.from_ranges([(got.first, got.end)]))
    session.follow_up(partial(tell_missed, session, failures))
