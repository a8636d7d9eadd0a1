"""What staged blocks add to a stream: which volumes have good copies of them, which messages are duplicates, and what
they take the place of.

A copy counts if the volume that fsynced it is still the same instance and not retired, and the file still is the block
(size, trailer, digest); of what this process fsynced itself no file is looked at again. The entry says which volumes
have good copies; the others are behind, and maintenance fetches it.
"""

import os
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from storage_core.block.format import BlockExpectation
from storage_core.block.reader import BlockReader
from storage_core.errors import RequirementError, StorageError
from storage_core.metadata.commands import AppendedBlocks, Event, RecordEvents
from storage_core.metadata.invariants import STREAM_SEQUENCE_MAX
from storage_core.metadata.manifest import BLOCK_DTYPE, encode_blocks, row_of
from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import raise_if_of_process
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.reading.plan import BlockSlice, CopyPlace
from storage_core.store.reading.reading import ask_block, measured
from storage_core.store.volume import placement
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing import conditions
from storage_core.store.writing.duplicates import MsgIdWindow, msg_ids
from storage_core.store.writing.instructions import Condition
from storage_core.store.writing.mirrored_file import BROKEN_DISK, is_disk_failure
from storage_core.store.writing.per_subject import SubjectIndex, Superseded
from storage_core.store.writing.staging import StagedBlock, WriteFailure, WriteTarget


def describe_append(
    session: Session,
    target: WriteTarget,
    blocks: list[StagedBlock],
    overwrite: bool,
    window: MsgIdWindow | None,
    subjects: SubjectIndex | None,
    env: Environment,
    is_own: bool,
    expected: Sequence[Condition] = (),
) -> tuple[AppendedBlocks, Superseded | None]:
    """Return what the append adds to one stream, after a look at the files, and what it takes the place of.

    `expected`: of the stream, beside what messages expect. Raises ConditionFailedError.
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
    expected = [*expected, *conditions.of_blocks(blocks)]
    copies = verified_holders(session, stream, blocks, env, is_own)
    for at, (block, held) in enumerate(zip(blocks, copies, strict=True)):
        summary = block.summary
        if block.sequences is not None:
            first = _place_of_kept(stream, block.sequences, first)
            kept = kept.union(block.sequences)
        holders = placement.holders_mask(stream, [volume.volume_id for volume in held])
        rows[at] = row_of(summary, first, summary.span, holders)
        if summary.subjects is not None:
            set_of[at] = sets.setdefault(summary.subjects, len(sets) + 1)
        if summary.msg_id_count or is_limited or expected:
            slices.append(_whole_block(state, stream, block, held, first))
        first += summary.span
    removed, size = SequenceSet.empty(), 0
    if window is not None and any(block.summary.msg_id_count for block in blocks) and stream.config.duplicate_window:
        hashes = np.concatenate([ask_block(piece, msg_ids, env) + _place_of(piece) for piece in slices])
        again = _again(hashes)
        if not overwrite:
            again |= window.seen(state, stream, session.volumes, hashes[:, :2], env)
        removed = SequenceSet.from_sequences(hashes[again, 2].astype(np.int64))
        size = _duplicate_size(removed, slices, env) if removed else 0
    if expected:
        assert subjects is not None, target.stream
        conditions.check(session, stream, expected, slices, removed, overwrite, subjects, env)
    holes = _holes(stream.next_sequence, kept) if kept else kept
    superseded = None
    if subjects is not None and is_limited:
        names = _subjects_of(blocks)
        superseded = subjects.superseded(session, stream, slices, removed, names, overwrite)
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
        expected_last_sequence=stream.next_sequence - 1 if expected else -1,
    )
    return part, superseded


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


def verified_holders(
    session: Session, stream: StreamState, blocks: Sequence[StagedBlock], env: Environment, is_own: bool = False
) -> list[list[Volume]]:
    """Return for each block the volumes of the placement that have a good copy of it, a majority at least.

    `is_own`: this process has made the blocks durable, so their files are not read again. That is safe while the volume
    is the same instance, whose log the session has read; a file that is deleted now could be deleted after the commit
    as well. Raises RequirementError, which names what is wrong with each copy, if there are fewer.
    """
    failing = session.failing  # what a disk took before it failed proves nothing
    usable = [
        volume
        for volume in session.volumes
        if volume.volume_id in stream.placement
        and placement.is_recorded(session.state, volume)
        and volume.volume_id not in failing
    ]
    store_id = session.state.store_id
    looks = [partial(_look, store_id, volume, blocks, is_own) for volume in usable]
    if is_own:  # no file is read
        outcomes: list[Any] = [look() for look in looks]
    else:
        outcomes = env.parallel([volume.blocks.on_volume(look) for volume, look in zip(usable, looks, strict=True)])
    held: list[list[Volume]] = [[] for _ in blocks]
    wrong: list[list[Exception | str]] = [[] for _ in blocks]
    for volume, reasons in zip(usable, outcomes, strict=True):
        if isinstance(reasons, BaseException):
            raise reasons
        for at, reason in enumerate(reasons):
            if not reason:
                held[at].append(volume)
                continue
            wrong[at].append(reason)
            if isinstance(reason, OSError) and is_disk_failure(reason):
                session.failed(volume.volume_id, reason)
    for at, block in enumerate(blocks):
        if len(held[at]) < placement.quorum(stream):
            for reason in wrong[at]:
                if isinstance(reason, Exception):
                    raise_if_of_process(reason)
            reasons = "; ".join(map(str, wrong[at])) or "the volumes that took it are retired, or were rebuilt since"
            raise RequirementError(
                f"stream {stream.name!r}: staged block {block.summary.block_id.hex()} is on {len(held[at])} of "
                f"{len(stream.placement)} volumes, {placement.quorum(stream)} are needed; nothing was committed: "
                f"{reasons}"
            )
    return held


def _look(store_id: bytes, volume: Volume, blocks: Sequence[StagedBlock], is_own: bool) -> list[Exception | str]:
    """Return for each block what is wrong with its copy on this volume; empty text: nothing."""
    reasons: list[Exception | str] = []
    for reason in volume.blocks.on_each([partial(_look_at, store_id, volume, block, is_own) for block in blocks]):
        if not isinstance(reason, str | StorageError | OSError):
            raise reason
        reasons.append(reason)
    return reasons


def _look_at(store_id: bytes, volume: Volume, block: StagedBlock, is_own: bool) -> str:
    """Return why a copy does not count; raise StorageError or OSError if the file is not this block."""
    assert volume.identity is not None
    incarnation, block_id = block.incarnation, block.summary.block_id
    if (volume.volume_id, volume.identity.instance_id) not in block.holders:
        return f"{volume.blocks.path(incarnation, block_id)} was not written"
    # What was put into an object store is there as a whole, and durable, or whoever put it was told that it is not.
    if is_own or volume.is_remote:
        return ""
    expected = BlockExpectation(store_id, incarnation, block_id, block.summary.digest, block.summary.file_size)
    with closing(volume.blocks.open(incarnation, block_id)) as file:
        BlockReader.open(file, expected)
    return ""


def _place_of(block: BlockSlice) -> np.ndarray:
    """Return what makes the sequences of a block those of the append, in the columns of `msg_ids`."""
    return np.array([0, 0, block.block_first], np.uint64)


def _again(hashes: np.ndarray) -> np.ndarray:
    """Return, for each row (two halves of a hash, relative sequence), whether an earlier one has the same hash."""
    order = np.lexsort((hashes[:, 2], hashes[:, 1], hashes[:, 0]))
    again = np.zeros(len(hashes), bool)
    again[order[1:]] = (hashes[order[1:], :2] == hashes[order[:-1], :2]).all(axis=1)
    return again


def _duplicate_size(removed: SequenceSet, blocks: Sequence[BlockSlice], env: Environment) -> int:
    """Return the message bytes of the duplicates, read from the staged blocks."""
    touched = [block for block in blocks if removed.count_in(block.first, block.end)]
    return int(sum(sizes.sum() for _, sizes in measured(touched, removed, env)))


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


def retire(session: Session, failures: Sequence[WriteFailure]) -> None:
    """Let the session know of disks that a task found broken: from here on nothing on them counts."""
    for failure in failures:
        if failure.errno in BROKEN_DISK:
            session.failed(failure.volume_id, OSError(failure.errno, os.strerror(failure.errno), failure.reason))


def tell_missed(session: Session, failures: Sequence[WriteFailure]) -> None:
    """Record which volumes begin to miss blocks though their disks are not broken."""
    reasons = {failure.volume_id: failure.reason for failure in failures if failure.errno not in BROKEN_DISK}
    if reasons:
        events = tuple(Event("behind", volume=volume_id.hex(), reason=reason) for volume_id, reason in reasons.items())
        session.propose(RecordEvents(events))
