"""Merging: runs of small neighbouring blocks become one block with the same messages under the same sequences.

    plan        which runs are worth it, by the manifest alone (`MergePolicy`)
    carry out   the run is read, checksums and all, and written as one block on the volumes of the placement, each copy
                fsynced, name and all; without any lock, in whatever process
    commit      under the locks: if the run is still what it was, one entry names the new block instead

Until the commit nobody knows of the new block; if it never comes, the block is an orphan of a transaction of its own.
After it readers of older plans go on with the old blocks, which are kept as removed ones are.

**What a byte costs.** Blocks have levels by their size, each 16 times the one below. A run is merged that has 16 blocks
of its highest level, so what comes of it is of a higher level: each message is written once a level, of which there are
five, and what is left are at most 15 blocks of each level between two large ones. `compact` merges what there is.

A block of which no copy can be read whole ends a run: it waits for its repair. Blocks whose `msg_id`s still count wait
until they do not, since the window goes by the time at which a block was committed.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.block.format import BlockIdentity
from storage_core.block.reader import BlockReader
from storage_core.block.request import FrameRequest
from storage_core.errors import (
    DataLossError,
    RequirementError,
    StaleIncarnationError,
    StorageError,
    UnavailableError,
)
from storage_core.metadata.commands import MergeBlocks
from storage_core.metadata.manifest import BLOCK_DTYPE, encode_blocks, row_of
from storage_core.metadata.merging import apply_to
from storage_core.metadata.state import COMMITTED, StoreState, StreamState
from storage_core.os_errors import raise_if_of_process
from storage_core.raft.rules import majority
from storage_core.schema import FRAME_SCHEMA
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import REAL, Environment
from storage_core.store.reading.plan import whole_blocks
from storage_core.store.reading.reading import ask_block
from storage_core.store.reading.slices import BlockSlice, BlockSlices
from storage_core.store.volume import placement
from storage_core.store.volume.block_store import VolumeHandle
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing.duplicates import msg_ids
from storage_core.store.writing.orphans import MERGE_MARK
from storage_core.store.writing.sink import one_block
from storage_core.store.writing.staged_blocks import retire, verified_holders
from storage_core.store.writing.staging import StagedBlock, WriteFailure

logger = logging.getLogger(__name__)
FAN_IN = 16  # blocks of one level that make one of a higher level
FULL_ENOUGH = 0.75  # of what a stream allows a block: fewer than FAN_IN that make one so full are merged as well
LEVEL_SIZES = tuple(1024 * FAN_IN**level for level in range(5))  # bytes at which levels 1 to 5 begin
ROW_SIZE = 32  # bytes that a message counts for besides its own
_COLUMNS = ("sequence", *FRAME_SCHEMA.names)


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """What is worth merging, and how much of it at once."""

    fan_in: int  # blocks of one level; 2 takes what there is, whatever its level
    block_count_max: int  # of one run
    size_max: int  # bytes of one run, of its files or of what they unpack to: what reading and writing it costs
    looked_at_max: int  # blocks of a stream, the newest, that runs are looked for among


IN_A_SESSION = MergePolicy(FAN_IN, 64, 8 << 20, 16_384)  # some 50 ms: an append waits for it now and then
MAINTAINING = MergePolicy(FAN_IN, 4096, 1 << 30, 1 << 62)
COMPACTING = MergePolicy(2, 4096, 1 << 30, 1 << 62)


class UnreadableBlockError(DataLossError):
    """A block of a run cannot be read whole from any copy; the second argument is its id."""


@dataclass(frozen=True, slots=True)
class MergeTask:
    """A run of blocks to be merged. A plain value: tasks in other processes carry it out."""

    stream: str
    incarnation: bytes
    transaction_id: bytes
    slices: BlockSlices  # the blocks of the run, whole
    first: int
    end: int
    low_watermark: int  # rows below it are dropped
    removed: bytes  # encoded SequenceSet: rows that are dropped; empty: none
    codec: str
    volumes: tuple[VolumeHandle, ...]  # that take blocks now
    replica_count: int
    size: int  # bytes of the files of one copy


@dataclass(frozen=True, slots=True)
class StagedMerge:
    """A durable block that waits to take the place of a run."""

    task: MergeTask
    block: StagedBlock
    dropped: bytes  # encoded SequenceSet: rows of the run that it has not; empty: none


# --- planning


def due(
    stream: StreamState, policy: MergePolicy, now_ns: int, barred: Collection[bytes] = ()
) -> Iterator[tuple[int, int]]:
    """Yield runs `[start, end)` of rows of the manifest that are worth merging, low levels first; no two overlap.

    `barred`: ids of blocks that are left alone.
    """
    skipped = max(0, len(stream.blocks) - policy.looked_at_max)
    rows = stream.blocks.rows[skipped:]
    if len(rows) < 2:
        return
    config, takes_all = stream.config, policy.fan_in == 2
    fullness = np.maximum(rows["data_size"] / config.block_max_bytes, rows["row_count"] / config.block_max_msgs)
    may = fullness < (1.0 if takes_all else 0.5)  # so that a message comes into a block that is half full only once
    may &= (rows["msg_id_count"] == 0) | (rows["committed_ns"] < now_ns - config.duplicate_window)
    sizes = np.maximum(rows["file_size"], rows["data_size"])
    may &= sizes <= policy.size_max
    if len(stream.lost_blocks):
        may &= ~np.isin(rows["block_id"], stream.lost_blocks.rows["block_id"])
    if barred:
        may &= ~np.array([bytes(row) in barred for row in rows["block_id"]])
    levels = np.searchsorted(LEVEL_SIZES, rows["data_size"] + ROW_SIZE * rows["row_count"], side="right")
    parts = _parts(stream, rows)
    if config.block_max_age:  # blocks that came in different spans stay apart
        parts = np.unique(np.stack((parts, rows["committed_ns"] // config.block_max_age)), axis=1, return_inverse=True)[
            1
        ]
    ends = np.cumsum(sizes)
    reach = np.searchsorted(ends, ends - sizes + policy.size_max, side="right")  # where a run that begins here may end
    is_filled = _sums(np.where(may, fullness, 0.0), reach) > FULL_ENOUGH - 1e-6
    for level in (len(LEVEL_SIZES),) if takes_all else range(len(LEVEL_SIZES) + 1):
        # Most appends find nothing to merge: a stretch is cut, run by run, only if one of its runs can be worth it.
        can_begin = is_filled | takes_all | (_sums(levels == level, reach) >= policy.fan_in)
        for first, last in _stretches(may & (levels <= level), parts):
            if not can_begin[first:last].any():
                continue
            for run in _cut(stream, rows, first, last, policy):
                ours = int((levels[run.start : run.stop] == level).sum())
                if takes_all or ours >= policy.fan_in or float(fullness[run.start : run.stop].sum()) >= FULL_ENOUGH:
                    may[run.start : run.stop] = False
                    yield run.start + skipped, run.stop + skipped


def _sums(values: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return, for each position, the sum of the values from there up to its end."""
    sums: np.ndarray = np.concatenate(([0], np.cumsum(values)))
    return np.asarray(sums[ends] - sums[:-1])


def _parts(stream: StreamState, rows: np.ndarray) -> np.ndarray:
    """Return a number for each block; those of one were written for one incarnation, with nothing lost between."""
    ends = [end for _, end in stream.origins]
    parts = np.searchsorted(ends, rows["first"], side="right") if ends else np.zeros(len(rows), np.int64)
    lost = stream.lost_blocks.rows
    if len(lost):  # what is lost may be taken back, so no run goes over it
        parts = parts + (len(ends) + 1) * np.searchsorted(lost["first"], rows["first"], side="right")
    return parts


def _stretches(mask: np.ndarray, parts: np.ndarray) -> list[tuple[int, int]]:
    """Return the runs of true of at least two, none of which goes over from one part, a number, to another."""
    keys = np.where(mask, parts, -1)
    edges = np.concatenate(([0], np.flatnonzero(np.diff(keys)) + 1, [len(keys)]))
    return [(a, b) for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True) if b - a > 1 and mask[a]]


def _cut(stream: StreamState, rows: np.ndarray, start: int, end: int, policy: MergePolicy) -> Iterator[range]:
    """Yield a stretch in runs of at least two blocks that fit one, as many as fit."""
    limits = (
        (np.cumsum(rows["row_count"][start:end]), stream.config.block_max_msgs),
        (np.cumsum(rows["data_size"][start:end]), stream.config.block_max_bytes),
        (np.cumsum(np.maximum(rows["file_size"], rows["data_size"])[start:end]), policy.size_max),
    )
    at, length = 0, end - start
    while at < length:
        upto = min(length, at + policy.block_count_max)
        for sums, limit in limits:
            before = int(sums[at - 1]) if at else 0
            upto = min(upto, int(np.searchsorted(sums, before + limit, side="right")))
        if upto - at > 1:
            yield range(start + at, start + upto)
        at = max(upto, at + 1)


def task_of(
    state: StoreState, stream: StreamState, start: int, end: int, volumes: Sequence[Volume], env: Environment
) -> MergeTask:
    """Return the task of merging these rows of the manifest. Raises NoQuorumError if too few volumes take blocks."""
    rows = stream.blocks.rows[start:end]
    first, last = int(rows["first"][0]), int(rows["first"][-1] + rows["span"][-1])
    removed = stream.removed.clip(first, last)
    made_ns = max(env.now_ns(), state.transaction_floor_ns)
    return MergeTask(
        stream=stream.name,
        incarnation=stream.incarnation,
        transaction_id=made_ns.to_bytes(8, "big") + MERGE_MARK + env.random_bytes(4),
        slices=whole_blocks(state, stream, rows, volumes),
        first=first,
        end=last,
        low_watermark=stream.low_watermark,
        removed=removed.encode() if removed else b"",
        codec=stream.config.compression,
        volumes=placement.write_volumes(state, stream, volumes),
        replica_count=len(stream.placement),
        size=int(rows["file_size"].sum()),
    )


# --- carrying out


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one block: batches of FRAME_SCHEMA with their sequences and msg_id hashes, and what was left out."""

    batches: list[tuple[pa.RecordBatch, np.ndarray, np.ndarray | None]]
    dropped: np.ndarray  # sequences


def carry_out(task: MergeTask, env: Environment = REAL) -> StagedMerge:
    """Write the block that is to take the place of the run, durably on a majority of the placement.

    Raises UnreadableBlockError (no copy of a block is whole, or it is not there any more), RequirementError (the
    volumes do not take it). Then nothing is left of it.
    """
    made = task.slices[0]
    identity = BlockIdentity(made.store_id, made.written_as, env.new_id(), task.transaction_id)
    dropped: list[np.ndarray] = []
    try:
        for volume in task.volumes:  # some came to the stream after what is merged was written
            volume.blocks(env.files).prepare([made.written_as])
        with one_block(task.volumes, identity, majority(task.replica_count), task.codec, env) as (writer, file):
            for block_slice in task.slices:
                part = _read(block_slice, task, env)
                dropped.append(part.dropped)
                for batch, sequences, hashes in part.batches:
                    writer.write(batch, hashes, sequences - task.first)
            summary = writer.finish()
    except OSError as error:
        raise_if_of_process(error)
        raise RequirementError(f"stream {task.stream!r}: its blocks were not merged: {error}") from error
    failures = tuple(
        WriteFailure(volume_id, failure.errno or 0, str(failure)) for volume_id, failure in file.failures.items()
    )
    held = [handle for handle in task.volumes if handle.volume_id in file.holders]
    holders = tuple((handle.volume_id, handle.instance_id) for handle in held)
    block = StagedBlock(task.stream, made.written_as, task.transaction_id, 0, 0, summary, holders, failures)
    removed = SequenceSet.from_sequences(np.concatenate(dropped))
    return StagedMerge(task, block, removed.encode() if removed else b"")


def _read(block_slice: BlockSlice, task: MergeTask, env: Environment) -> _Part:
    """Return the rows of a block that are not removed, from the first copy that has all of them whole."""
    removed = SequenceSet.decode(task.removed) if task.removed else SequenceSet.empty()
    removed = removed.clip(block_slice.first, block_slice.end)

    def ask(reader: BlockReader) -> _Part:
        request = FrameRequest(_COLUMNS, "", block_slice.block_first, first=task.low_watermark, removed=removed or None)
        ids = msg_ids(reader)
        known = ids[:, 2].astype(np.int64) + block_slice.block_first
        batches, kept = [], [np.empty(0, np.int64)]
        for rows in reader.read(request):
            sequences = buffers.numbers(rows.column(0))
            batch = pa.RecordBatch.from_arrays(rows.columns[1:], schema=FRAME_SCHEMA)
            batches.append((batch, sequences, _hashes(sequences, known, ids)))
            kept.append(sequences)
        present = reader.footer.runs.sequences(0, reader.footer.row_count, block_slice.block_first)
        return _Part(batches, np.setdiff1d(present, np.concatenate(kept), assume_unique=True))

    try:
        return ask_block(block_slice, ask, env)
    except (DataLossError, UnavailableError) as error:
        raise UnreadableBlockError(str(error), block_slice.block_id) from error


def _hashes(sequences: np.ndarray, known: np.ndarray, ids: np.ndarray) -> np.ndarray | None:
    """Return the msg_id hashes of these rows, (rows, 2); None if none of them has one."""
    chosen = np.isin(known, sequences)
    if not chosen.any():
        return None
    hashes = np.zeros((len(sequences), 2), np.uint64)
    hashes[np.searchsorted(sequences, known[chosen])] = ids[chosen, :2]
    return hashes


# --- committing


def commit(session: Session, staged: StagedMerge, env: Environment = REAL) -> None:
    """Put the block in the place of its run; if that was done before, nothing more.

    Raises RequirementError or StaleIncarnationError if the stream has changed in between; then the block is taken away
    again. Raises what a session raises.
    """
    if session.state.outcome(staged.task.transaction_id) == COMMITTED:
        return
    stream = session.state.by_incarnation(staged.task.incarnation)
    try:
        if stream is None:
            raise StaleIncarnationError(f"stream {staged.task.stream!r} was deleted while its blocks were merged")
        apply_to(
            stream, session.state.time_at(env.now_ns()), _command(stream, staged, [])
        )  # before anything is looked at
        retire(session, staged.block.failures)
        (held,) = verified_holders(session, stream, [staged.block], env)
        command = _command(stream, staged, [volume.volume_id for volume in held])
        session.check(command)
    except StorageError:
        if not _is_named(session.state, staged.block.summary.block_id):
            discard(staged, env)
        raise
    session.propose(command)


def is_live(state: StoreState, block_id: bytes) -> bool:
    """Return whether a stream's manifest names the block."""
    wanted = np.void(block_id)
    return any(bool((stream.blocks.rows["block_id"] == wanted).any()) for stream in state.streams.values())


def _is_named(state: StoreState, block_id: bytes) -> bool:
    """Return whether the metadata speaks of the block: it was committed, and so long ago that this is forgotten."""
    return is_live(state, block_id) or bool((state.deletes["block_id"] == np.void(block_id)).any())


def _command(stream: StreamState, staged: StagedMerge, held: Sequence[bytes]) -> MergeBlocks:
    task, summary = staged.task, staged.block.summary
    row = np.zeros(1, BLOCK_DTYPE)
    row[0] = row_of(summary, task.first, task.end - task.first, placement.holders_mask(stream, held))
    blocks = np.ascontiguousarray(task.slices.rows["block_id"]).tobytes()
    return MergeBlocks(
        task.transaction_id, task.incarnation, blocks, encode_blocks(row), summary.subjects, staged.dropped
    )


def discard(staged: StagedMerge, env: Environment = REAL) -> None:
    """Take a block away that nobody was told of."""
    for volume in staged.task.volumes:
        if any(volume.volume_id == volume_id for volume_id, _ in staged.block.holders):
            volume.blocks(env.files).discard(staged.block.incarnation, staged.block.summary.block_id)
