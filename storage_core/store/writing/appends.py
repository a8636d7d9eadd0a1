"""The commit of an append: staged blocks become part of their streams, in one entry of the metadata log.

begin      a transaction id and, for each stream, where its blocks go; nothing is written
(tasks)    blocks are written and fsynced through a Stager, each on a majority of its stream's placement
commit     asks whether this (writer, batch) is there already, checks the copies of the blocks, names the blocks
abort      asks whether the transaction is committed; if not, fences it, then sweeps its blocks

A copy counts if the volume that fsynced it is still the same instance and not retired, and the file still is the block
(size, trailer, digest). The entry says which volumes have good copies; the others are behind, and maintenance fetches
it.
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.block.format import BlockExpectation
from storage_core.block.reader import BlockReader
from storage_core.errors import DiskFullError, LimitExceededError, RequirementError, StorageError
from storage_core.metadata import machine
from storage_core.metadata.commands import Abort, Append, AppendedBlocks, Event, RecordEvents, Remove
from storage_core.metadata.config import StreamConfig
from storage_core.metadata.invariants import STREAM_SEQUENCE_MAX
from storage_core.metadata.manifest import BLOCK_DTYPE, encode_blocks
from storage_core.metadata.state import ABORTED, COMMITTED, StoreState, StreamState
from storage_core.os_errors import raise_if_of_process
from storage_core.raft.rules import majority
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.reading.plan import BlockSlice, CopyPlace
from storage_core.store.reading.reading import ask_block, measured
from storage_core.store.volume import placement
from storage_core.store.volume.block_store import BlockStore
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing import expiry, markers, per_subject, rollups
from storage_core.store.writing.content import combined
from storage_core.store.writing.duplicates import MsgIdWindow, msg_ids
from storage_core.store.writing.limits import Limits, may_go
from storage_core.store.writing.mirrored_file import BROKEN_DISK, decisive, says_broken
from storage_core.store.writing.orphans import transaction_of
from storage_core.store.writing.per_subject import SubjectIndex, Superseded
from storage_core.store.writing.retention import release
from storage_core.store.writing.staging import StagedBlock, Stager, Transaction, WriteFailure, WriteTarget

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriterBatch:
    """Identity of an append for exactly-once: a writer stores each batch once."""

    writer: str
    batch: str
    query: str = ""  # Spark's query id; empty for batch jobs
    run: str = ""  # Spark's run id: a newer run fences older ones
    any_content: bool = False  # sent again with other messages, what was stored first counts; else it is refused


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append got in one stream: sequences [first, end)."""

    first: int
    end: int
    duplicate_count: int  # rows among them that are not shown: their msg_id was seen within the window


@dataclass(frozen=True, slots=True)
class CommitResult:
    appended: dict[str, Appended]
    already: bool  # this (writer, batch) was stored before; this time nothing was


def make_directories(session: Session, incarnation: bytes, chosen: Sequence[bytes], env: Environment) -> None:
    """Make the directories of a new stream on those of its volumes that can be written, durably, before it exists.

    Raises OSError if that was possible on less than a majority; the others get theirs when they are repaired.
    """
    volumes = [one for one in session.writable if one.volume_id in chosen]

    def make(volume: Volume) -> None:
        volume.blocks.prepare([incarnation])

    outcomes = env.parallel([partial(make, one) for one in volumes])
    failures = []
    for volume, outcome in zip(volumes, outcomes, strict=True):
        if isinstance(outcome, OSError):
            failures.append(outcome)
            if says_broken(outcome):
                session.failed(volume.volume_id, outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
    if len(volumes) - len(failures) < majority(len(chosen)):
        raise decisive(failures)


def begin(state: StoreState, volumes: Sequence[Volume], streams: Iterable[str], env: Environment) -> Transaction:
    """Return a new transaction over these streams, which exist.

    Raises NoQuorumError if a stream has too few volumes that can be written.
    """
    targets = {}
    for name in streams:
        stream = state.stream(name)
        assert stream is not None, name
        targets[name] = WriteTarget(
            stream=name,
            incarnation=stream.incarnation,
            subjects=stream.config.subjects,
            max_msg_size=_message_size_max(stream.config),
            compression=stream.config.compression,
            block_max_msgs=stream.config.block_max_msgs,
            block_max_bytes=stream.config.block_max_bytes,
            volumes=placement.write_volumes(state, stream, volumes),
            replica_count=len(stream.placement),
            **_instructions(stream.config),
        )
    # Never older than the store remembers: the clock may have been ahead when that was decided.
    made_ns = max(env.now_ns(), state.transaction_floor_ns)
    made = made_ns.to_bytes(8, "big") + env.random_bytes(8)
    open_files_max = state.settings.to_json()["open_files_max"]
    return Transaction(made, state.store_id, targets, open_files_max=open_files_max)


def _instructions(config: StreamConfig) -> dict[str, Any]:
    """Return which headers the stream goes by, as a target has it."""
    return {"allow_rollup": config.allow_rollup_hdrs, "allow_ttl": config.allow_msg_ttl, "max_age": config.max_age}


def _message_size_max(config: StreamConfig) -> int:
    """Return the bytes of the largest message that the stream can hold; -1 if it has no limit of its own."""
    return min((one for one in (config.max_msg_size, config.max_bytes) if one >= 0), default=-1)


class OutdatedTransaction(Exception):
    """A transaction was begun by what a process knew, and that is not so any more: nothing was stored, begin anew."""


def _check_target(session: Session, target: WriteTarget) -> None:
    """Raise OutdatedTransaction if the stream takes other messages by now, or keeps them elsewhere.

    Which of its volumes have the blocks is asked of every transaction, so it is not asked here.
    """
    stream = session.state.by_incarnation(target.incarnation)
    if stream is None or stream.name != target.stream:
        raise OutdatedTransaction
    takes = (stream.config.subjects, _message_size_max(stream.config), len(stream.placement))
    used = {volume.volume_id for volume in target.volumes}
    is_same = all(getattr(target, name) == value for name, value in _instructions(stream.config).items())
    if (
        not is_same
        or takes != (target.subjects, target.max_msg_size, target.replica_count)
        or not used <= set(stream.placement)
    ):
        raise OutdatedTransaction


def commit(
    session: Session,
    transaction: Transaction,
    staged: Sequence[StagedBlock],
    writer: WriterBatch | None,
    overwrite: Sequence[str],
    window: MsgIdWindow,
    limits: Limits,
    subjects: SubjectIndex,
    env: Environment,
) -> CommitResult:
    """Name the staged blocks; see Store.commit."""
    if transaction.is_local:
        for target in transaction.targets.values():
            _check_target(session, target)
    _check_staged(transaction, staged)
    by_stream: dict[str, list[StagedBlock]] = {name: [] for name in transaction.targets}
    for block in sorted(staged, key=lambda one: (one.partition, one.position)):
        by_stream[block.stream].append(block)
    chosen = {
        name: blocks
        for name, blocks in by_stream.items()
        if blocks or name in overwrite or (writer is not None and len(by_stream) == 1)
    }
    if not chosen and (writer is None or not transaction.is_routed):
        return CommitResult({}, False)
    # Asked before the blocks are looked at: those of a batch that is stored, or of an aborted transaction, may be gone.
    nothing = [
        AppendedBlocks(transaction.targets[name].incarnation, b"", (), b"", overwrite=name in overwrite)
        for name in chosen
    ]
    content = _content(staged) if writer is not None else b""
    result = session.check(_append(transaction, nothing, writer, content))
    assert isinstance(result, machine.AppendDone)
    failures = [failure for blocks in chosen.values() for block in blocks for failure in block.failures]
    if result.already:  # durably told: this run fences the one before it
        session.propose(_append(transaction, nothing, writer, content))
    else:
        retire(session, failures)
        for name in chosen:  # what is too old makes room, where there is none for anything new
            enforce(session, transaction.targets[name].incarnation, limits, subjects)
        parts = [
            _part(
                session, transaction.targets[name], blocks, name in overwrite, window, subjects, env,
                transaction.is_local,
            )
            for name, blocks in chosen.items()
        ]  # fmt: skip
        result = session.propose(_append(transaction, [part for part, _ in parts], writer, content))
        assert isinstance(result, machine.AppendDone)
        for name, (_, superseded) in zip(chosen, parts, strict=True):
            incarnation, got = transaction.targets[name].incarnation, result.appended[name]
            limits.remember(session.state, incarnation, chosen[name], got.first)
            if superseded is not None:
                stream = session.state.by_incarnation(incarnation)
                assert stream is not None, name  # appended to just now
                subjects.appended(stream, superseded.new, got.first, got.end)
    assert isinstance(result, machine.AppendDone)
    for name in {block.stream for block in staged if block.has_rollup} & result.appended.keys():
        got = result.appended[name]
        _roll_up(session, transaction.targets[name].incarnation, range(got.first, got.end), limits, env)
    for name, got in result.appended.items() if not result.already else ():
        new = SequenceSet.from_ranges([(got.first, got.end)])
        release(session, transaction.targets[name].incarnation, limits, env, new)
    for name in chosen:
        enforce(session, transaction.targets[name].incarnation, limits, subjects)
    if result.already:
        assert writer is not None
        _tell_again(session, writer, content, result)
        _forget_staged(session, transaction, env)
    else:
        _tell(session, failures)
    appended = {name: Appended(one.first, one.end, one.duplicate_count) for name, one in result.appended.items()}
    return CommitResult(appended, result.already)


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
    is_timed = len(stream.expiries) or (stream.config.max_age and may_go(stream))
    now_ns = limits.env.now_ns() if is_timed else 0  # one look, for all that time takes and what it leaves
    try:
        count = _leave_markers(session, stream, limits, subjects, now_ns)
    except (StorageError, OSError) as error:  # what goes without its marker would never get it
        logger.warning("stream %r: what is over its limits stays for now: %s", stream.name, error)
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
            logger.warning("stream %r: what is over its limits stays for now: %s", stream.name, error)
            continue
        if command is not None:
            result = session.propose(command)
            assert isinstance(result, machine.RemoveDone)
            count += result.message_count
    return count


def _leave_markers(session: Session, stream: StreamState, limits: Limits, subjects: SubjectIndex, now_ns: int) -> int:
    """Put delete markers in the place of messages that time takes; return how many messages went for them.

    Where a limit leaves no room for markers the messages go without: the limit is there to hold.
    """
    if not stream.config.subject_delete_marker_ttl or stream.config.sealed:
        return 0
    taken = markers.due(session.state, stream, session.volumes, limits, subjects, now_ns)
    for start in range(0, len(taken), markers.MARKERS_AT_ONCE_MAX):
        part = taken.slice(start, markers.MARKERS_AT_ONCE_MAX)
        try:
            _append_markers(session, stream.incarnation, part, limits, now_ns)
        except LimitExceededError as error:
            reason = f"{len(taken) - start} messages go without a delete marker: {error}"
            session.propose(RecordEvents((Event("markers_left_out", stream.name, reason=reason),)))
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
        gone = SequenceSet.from_sequences(buffers.numbers(taken["sequence"].combine_chunks()))
        blocks, _ = _part(session, target, staged, False, None, None, env, True)
        size = limits.size_of(session.state, stream, gone, session.volumes)
        blocks = msgspec.structs.replace(blocks, superseded=gone.encode(), superseded_size=size)
        command = Append(transaction.id, (blocks,))
        result = session.check(command)
        assert isinstance(result, machine.AppendDone)
    except BaseException:
        stager.discard()  # nobody was told of them
        raise
    session.propose(command)
    got = result.appended[stream.name]
    release(session, incarnation, limits, env, SequenceSet.from_ranges([(got.first, got.end)]))
    _tell(session, failures)


def _roll_up(session: Session, incarnation: bytes, new: range, limits: Limits, env: Environment) -> None:
    """Remove what new messages take the place of; raises if what is there cannot be read: the append is refused."""
    stream = session.state.by_incarnation(incarnation)
    assert stream is not None, incarnation  # appended to just now
    command = rollups.command(session.state, stream, new, session.volumes, limits, env)
    if command is not None:
        session.propose(command)


def _append(
    transaction: Transaction, parts: Sequence[AppendedBlocks], writer: WriterBatch | None, content: bytes
) -> Append:
    batch = writer or WriterBatch("", "")
    is_routed = transaction.is_routed and bool(batch.writer)
    return Append(
        transaction.id,
        tuple(parts),
        batch.writer,
        batch.batch,
        batch.query,
        batch.run,
        content,
        batch.any_content,
        is_routed,
    )


def _content(staged: Sequence[StagedBlock]) -> bytes:
    """Return what the whole batch holds; raises RequirementError if a task did not hash its messages."""
    for block in staged:
        if block.hash_sum is None:
            raise RequirementError(
                f"stream {block.stream!r}: block {block.summary.block_id.hex()} was staged for no writer, so its "
                "content is not known; stage the batch of a writer with hashes"
            )
    return combined((block.summary.row_count, block.hash_sum or 0) for block in staged)


def retire(session: Session, failures: Sequence[WriteFailure]) -> None:
    """Let the session know of disks that a task found broken: from here on nothing on them counts."""
    for failure in failures:
        if failure.errno in BROKEN_DISK:
            session.failed(failure.volume_id, OSError(failure.errno, os.strerror(failure.errno), failure.reason))


def _tell(session: Session, failures: Sequence[WriteFailure]) -> None:
    """Write down which volumes missed blocks though their disks are not broken; the append is done, come what may."""
    reasons = {failure.volume_id: failure.reason for failure in failures if failure.errno not in BROKEN_DISK}
    if not reasons:
        return
    try:
        session.propose(
            RecordEvents(tuple(Event("behind", volume=one.hex(), reason=reason) for one, reason in reasons.items()))
        )
    except Exception as error:
        logger.warning("volumes missed blocks, and that could not be written down: %s: %s", reasons, error)


def _tell_again(session: Session, writer: WriterBatch, content: bytes, result: machine.AppendDone) -> None:
    """Write down that a batch was sent again and not stored, once: whoever sent it may have meant another one."""
    stored = [
        session.state.streams[name.casefold()].writers[writer.writer].find(writer.batch) for name in result.appended
    ]
    is_same = all(one is None or one.content in (b"", content) for one in stored)
    what = "nothing was stored this time" if is_same else "with other content; what was stored first counts"
    reason = f"batch {writer.batch!r} of writer {writer.writer!r} came again: {what}"
    stream = next(iter(result.appended)) if len(result.appended) == 1 else ""
    if any(
        (event.kind, event.stream, event.reason) == ("batch_again", stream, reason) for event in session.state.events
    ):
        return
    try:
        session.propose(RecordEvents((Event("batch_again", stream, reason=reason),)))
    except Exception as error:  # the batch is stored: that is the answer
        logger.warning("%s; that could not be written down: %s", reason, error)


def _forget_staged(session: Session, transaction: Transaction, env: Environment) -> None:
    """Sweep what was staged for a batch that is stored already, unless it is this very transaction that stored it."""
    try:
        abort(session, transaction, env)
    except Exception as error:  # the batch is stored: that is the answer
        logger.warning("blocks of transaction %s are left where they are: %s", transaction.id.hex(), error)


def _check_staged(transaction: Transaction, staged: Sequence[StagedBlock]) -> None:
    for block in staged:
        target = transaction.targets.get(block.stream)
        if target is None or target.incarnation != block.incarnation or block.transaction_id != transaction.id:
            raise RequirementError(f"block {block.summary.block_id.hex()} was not staged for this transaction")


def _part(
    session: Session,
    target: WriteTarget,
    blocks: list[StagedBlock],
    overwrite: bool,
    window: MsgIdWindow | None,
    subjects: SubjectIndex | None,
    env: Environment,
    is_own: bool,
) -> tuple[AppendedBlocks, Superseded | None]:
    """Return what the append adds to one stream, after a look at the files, and what it takes the place of.

    `window`, `subjects`: None for messages of our own, which are neither duplicates nor too many of their subject.
    """
    state, stream = session.state, session.state.by_incarnation(target.incarnation)
    assert stream is not None, target.stream  # the command was checked
    rows = np.zeros(len(blocks), BLOCK_DTYPE)
    sets: dict[tuple[str, ...], int] = {}
    set_of = np.zeros(len(blocks), "<i4")
    slices: list[BlockSlice] = []
    first, is_limited = 0, subjects is not None and stream.config.max_msgs_per_subject >= 0
    kept = SequenceSet.empty()  # sequences that messages have from before
    copies = good_copies(session, stream, blocks, env, is_own)
    for at, (block, held) in enumerate(zip(blocks, copies, strict=True)):
        summary = block.summary
        if block.sequences is not None:
            first = _place_of_kept(stream, block.sequences, first)
            kept = kept.union(block.sequences)
        rows[at] = (
            summary.block_id, summary.digest, first, summary.span, summary.row_count, summary.file_size,
            summary.data_size, summary.time_min_ns, summary.time_max_ns, 0, summary.msg_id_count, 0,
            placement.holders_mask(stream, [volume.volume_id for volume in held]),
        )  # fmt: skip
        if summary.subjects is not None:
            set_of[at] = sets.setdefault(summary.subjects, len(sets) + 1)
        if summary.msg_id_count or is_limited:
            slices.append(_whole_block(state, stream, block, held, first))
        first += summary.span
    removed, size = SequenceSet.empty(), 0
    if window is not None and any(block.summary.msg_id_count for block in blocks) and stream.config.duplicate_window:
        found = np.concatenate([ask_block(one, msg_ids, env) + _place_of(one) for one in slices])
        again = _again(found)
        if not overwrite:
            again |= window.seen(state, stream, session.volumes, found[:, :2], env)
        removed = SequenceSet.from_sequences(found[again, 2].astype(np.int64))
        size = _duplicate_size(removed, slices, env) if removed else 0
    holes = _holes(stream.next_sequence, kept) if kept else kept
    superseded = None
    if subjects is not None:
        subjects.check(stream)
    if subjects is not None and is_limited:
        names = _subjects_of(blocks)
        superseded = subjects.superseded(state, stream, session.volumes, slices, removed, names, overwrite)
    part = AppendedBlocks(
        incarnation=target.incarnation,
        rows=encode_blocks(rows),
        subject_sets=tuple(sets),
        subject_set_of=set_of.tobytes(),
        duplicates=removed.union(holes).encode() if removed or holes else b"",
        duplicate_count=len(removed),
        duplicate_size=size,
        overwrite=overwrite,
        expires=_expires(blocks),
        superseded=superseded.sequences.encode() if superseded and superseded.sequences else b"",
        superseded_size=superseded.data_size if superseded else 0,
    )
    return part, superseded


def _place_of_kept(stream: StreamState, sequences: SequenceSet, end: int) -> int:
    """Return where in an append a block begins whose messages keep these sequences; `end`: of what comes before it.

    Raises RequirementError if the stream has given them already, or has none so high.
    """
    first, last = int(sequences.starts[0]), int(sequences.ends[-1]) - 1
    next_sequence = stream.next_sequence + end
    if first < next_sequence or last >= STREAM_SEQUENCE_MAX:
        raise RequirementError(
            f"stream {stream.name!r}: messages cannot keep their sequences {first} to {last}: free are "
            f"{next_sequence} to {STREAM_SEQUENCE_MAX - 1}; take a new stream, and blocks in the order of their "
            "sequences. Nothing was stored"
        )
    return first - stream.next_sequence


def _holes(next_sequence: int, kept: SequenceSet) -> SequenceSet:
    """Return the sequences that a stream skips when it takes these, relative to the next one that it would give."""
    holes = SequenceSet.from_ranges([(next_sequence, int(kept.ends[-1]))]).difference(kept)
    return SequenceSet(holes.starts - next_sequence, holes.ends - next_sequence)


def _subjects_of(blocks: Sequence[StagedBlock]) -> list[str] | None:
    """Return the subjects of the blocks' messages; None where a block has more than it lists."""
    listed = [block.summary.subjects for block in blocks]
    known = [names for names in listed if names is not None]
    return sorted({name for names in known for name in names}) if len(known) == len(listed) else None


def _expires(blocks: Sequence[StagedBlock]) -> bytes:
    """Return when the first message of each block expires; nothing if none does."""
    due_ns = np.array([block.expires_ns for block in blocks], "<i8")
    return due_ns.tobytes() if due_ns.any() else b""


def _whole_block(
    state: StoreState, stream: StreamState, block: StagedBlock, held: Sequence[Volume], first: int
) -> BlockSlice:
    """Return a staged block as a slice, its relative 0 at sequence `first`."""
    summary = block.summary
    return BlockSlice(
        stream=stream.name,
        store_id=state.store_id,
        incarnation=stream.incarnation,
        written_as=stream.incarnation,
        block_id=summary.block_id,
        digest=summary.digest,
        file_size=summary.file_size,
        copies=tuple(CopyPlace(volume.volume_id, str(volume.path), True) for volume in held),
        block_first=first,
        first=first,
        end=first + summary.span,
        removed=b"",
        row_count=summary.row_count,
        byte_size=summary.file_size,
    )


def good_copies(
    session: Session, stream: StreamState, blocks: Sequence[StagedBlock], env: Environment, is_own: bool = False
) -> list[list[Volume]]:
    """Return for each block the volumes of the placement that have a good copy of it, a majority at least.

    Of blocks that this process has just made durable (`is_own`) only their being there is looked at; in an object
    store not even that.
    Raises RequirementError, which names what is wrong with each copy, if there are fewer.
    """
    failing = session.failing  # what a disk took before it failed proves nothing
    usable = [
        one
        for one in session.volumes
        if one.volume_id in stream.placement
        and placement.is_recorded(session.state, one)
        and one.volume_id not in failing
    ]
    store_id = session.state.store_id
    looks = [one.blocks.on_volume(partial(_look, store_id, one, blocks, is_own)) for one in usable]
    held: list[list[Volume]] = [[] for _ in blocks]
    wrong: list[list[Exception | str]] = [[] for _ in blocks]
    for volume, found in zip(usable, env.parallel(looks), strict=True):
        if isinstance(found, BaseException):
            raise found
        for at, reason in enumerate(found):
            if not reason:
                held[at].append(volume)
                continue
            wrong[at].append(reason)
            if isinstance(reason, OSError) and says_broken(reason):
                session.failed(volume.volume_id, reason)
    for at, block in enumerate(blocks):
        if len(held[at]) < placement.quorum(stream):
            for reason in wrong[at]:
                if isinstance(reason, Exception):
                    raise_if_of_process(reason)
            reasons = "; ".join(map(str, wrong[at])) or "the volumes that took it are retired, or were made anew since"
            raise RequirementError(
                f"stream {stream.name!r}: staged block {block.summary.block_id.hex()} is on {len(held[at])} of "
                f"{len(stream.placement)} volumes, {placement.quorum(stream)} are needed; nothing was committed: "
                f"{reasons}"
            )
    return held


def _look(store_id: bytes, volume: Volume, blocks: Sequence[StagedBlock], is_own: bool) -> list[Exception | str]:
    """Return for each block what is wrong with its copy on this volume; empty text: nothing."""
    found: list[Exception | str] = []
    for reason in volume.blocks.on_each([partial(_look_at, store_id, volume, block, is_own) for block in blocks]):
        if not isinstance(reason, str | StorageError | OSError):
            raise reason
        found.append(reason)
    return found


def _look_at(store_id: bytes, volume: Volume, block: StagedBlock, is_own: bool) -> str:
    assert volume.identity is not None
    incarnation, block_id = block.incarnation, block.summary.block_id
    if (volume.volume_id, volume.identity.instance_id) not in block.holders:
        return f"{volume.blocks.path(incarnation, block_id)} was not written"
    if volume.is_remote:  # what was put is there as a whole, and durable, or whoever put it was told that it is not
        return ""
    expected = BlockExpectation(store_id, incarnation, block_id, block.summary.digest, block.summary.file_size)
    size = volume.blocks.size(incarnation, block_id) if is_own else None
    if size != block.summary.file_size:
        _check(volume.blocks, expected)
    return ""


def _check(blocks: BlockStore, expected: BlockExpectation) -> None:
    """Raise StorageError or OSError if a file is not this block, as its size, trailer and footer tell."""
    file = blocks.open(expected.incarnation, expected.block_id)
    try:
        BlockReader.open(file, expected)
    finally:
        file.close()


def _place_of(block: BlockSlice) -> np.ndarray:
    """Return what makes the sequences of a block those of the append, in the columns of `msg_ids`."""
    return np.array([0, 0, block.block_first], np.uint64)


def _again(found: np.ndarray) -> np.ndarray:
    """Return, for each row (two halves of a hash, relative sequence), whether an earlier one has the same hash."""
    order = np.lexsort((found[:, 2], found[:, 1], found[:, 0]))
    again = np.zeros(len(found), bool)
    again[order[1:]] = (found[order[1:], :2] == found[order[:-1], :2]).all(axis=1)
    return again


def _duplicate_size(removed: SequenceSet, blocks: Sequence[BlockSlice], env: Environment) -> int:
    """Return the message bytes of the duplicates, read from the staged blocks."""
    touched = [block for block in blocks if removed.count_in(block.first, block.end)]
    return int(sum(sizes.sum() for _, sizes in measured(touched, removed, env)))


def abort(session: Session, transaction: Transaction, env: Environment) -> bool:
    """Fence the transaction and sweep its blocks; False, and nothing touched, if it had been committed.

    On a full disk they are swept without a fence if that is safe: an entry that names them would stand in some log,
    and all have been read. A commit that comes late finds the blocks gone, and is refused.
    """
    outcome = session.state.outcome(transaction.id)
    if outcome == COMMITTED:
        return False
    writable, is_whole = session.writable, session.is_whole
    if outcome != ABORTED:
        try:
            session.propose(Abort(transaction.id))
        except DiskFullError:
            if not is_whole:
                raise
    for volume in writable:
        try:
            for target in transaction.targets.values():
                _sweep(volume.blocks, target, transaction.id, session.state)
        except OSError as error:  # fenced it is; what is left there is an orphan
            logger.warning("%s: blocks of transaction %s: %s", volume.path, transaction.id.hex(), error)
            if says_broken(error):
                session.failed(volume.volume_id, error)
    return True


def _sweep(blocks: BlockStore, target: WriteTarget, transaction_id: bytes, state: StoreState) -> None:
    """Unlink the blocks of an aborted transaction. Only the block's own header says whose it is."""
    stream = state.by_incarnation(target.incarnation)
    named = {bytes(row) for row in stream.blocks.rows["block_id"]} if stream is not None else set()
    for block_id in blocks.ids(target.incarnation):
        if block_id not in named and transaction_of(blocks, target.incarnation, block_id) == transaction_id:
            blocks.delete(target.incarnation, block_id)
