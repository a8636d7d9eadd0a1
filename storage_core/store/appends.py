"""The commit of an append: staged blocks become part of their streams, in one entry of the metadata log.

begin      a transaction id and, for each stream, where its blocks go; nothing is written
(tasks)    blocks are written and fsynced through a Stager
commit     asks whether this (writer, batch) is there already, checks the blocks, names them
abort      asks whether the transaction is committed; if not, fences it, then sweeps its blocks
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage_core.block.format import BlockExpectation
from storage_core.block.reader import BlockReader
from storage_core.errors import CorruptionError, NotFoundError, RequirementError, StorageError
from storage_core.files import Files
from storage_core.metadata import machine
from storage_core.metadata.commands import Abort, Append, AppendedBlocks
from storage_core.metadata.manifest import BLOCK_DTYPE
from storage_core.metadata.state import ABORTED, COMMITTED, StoreState, StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.duplicates import MsgIdWindow, msg_ids
from storage_core.store.environment import Environment
from storage_core.store.identity import VolumeIdentity
from storage_core.store.orphans import transaction_of
from storage_core.store.plan import BlockSlice, block_directory
from storage_core.store.reading import measured
from storage_core.store.staging import (
    BlockDirectory,
    StagedBlock,
    Transaction,
    WriteTarget,
    block_id_of,
    block_path,
)
from storage_core.store.turn import Turn

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriterBatch:
    """Identity of an append for exactly-once: a writer stores each batch once."""

    writer: str
    batch: str
    query: str = ""  # Spark's query id; empty for batch jobs
    run: str = ""  # Spark's run id: a newer run fences older ones


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


def begin(
    state: StoreState, volume: Path, identity: VolumeIdentity, streams: Iterable[str], env: Environment
) -> Transaction:
    """Return a new transaction over these streams, which exist."""
    targets = {}
    for name in streams:
        stream = state.stream(name)
        assert stream is not None, name
        directory = block_directory(volume, stream.incarnation)
        targets[name] = WriteTarget(
            stream=name,
            incarnation=stream.incarnation,
            subjects=stream.config.subjects,
            max_msg_size=stream.config.max_msg_size,
            compression=stream.config.compression,
            block_max_msgs=stream.config.block_max_msgs,
            block_max_bytes=stream.config.block_max_bytes,
            directories=(BlockDirectory(identity.volume_id, identity.instance_id, str(directory)),),
        )
    # Never older than the store remembers: the clock may have been ahead when that was decided.
    made_ns = max(env.now_ns(), state.transaction_floor_ns)
    made = made_ns.to_bytes(8, "big") + env.random_bytes(8)
    return Transaction(made, state.store_id, targets)


def commit(
    turn: Turn,
    volume: Path,
    transaction: Transaction,
    staged: Sequence[StagedBlock],
    writer: WriterBatch | None,
    overwrite: Sequence[str],
    window: MsgIdWindow,
    env: Environment,
) -> CommitResult:
    """Name the staged blocks; see Store.commit."""
    _check_staged(transaction, staged)
    by_stream: dict[str, list[StagedBlock]] = {name: [] for name in transaction.targets}
    for block in sorted(staged, key=lambda one: (one.partition, one.position)):
        by_stream[block.stream].append(block)
    chosen = {
        name: blocks
        for name, blocks in by_stream.items()
        if blocks or name in overwrite or (writer is not None and len(by_stream) == 1)
    }
    if not chosen:
        return CommitResult({}, False)
    # Asked before the blocks are looked at: those of a batch that is stored, or of an aborted transaction, may be gone.
    nothing = [
        AppendedBlocks(transaction.targets[name].incarnation, b"", (), b"", overwrite=name in overwrite)
        for name in chosen
    ]
    result = turn.check(_append(transaction, nothing, writer))
    assert isinstance(result, machine.AppendDone)
    if not result.already:
        parts = [
            _part(turn.state, transaction.targets[name], blocks, name in overwrite, volume, window, env)
            for name, blocks in chosen.items()
        ]
        result = turn.propose(_append(transaction, parts, writer))
    if isinstance(result, machine.Refused):
        result.raise_()
    assert isinstance(result, machine.AppendDone)
    if result.already:
        _forget_staged(turn, volume, transaction, env)
    appended = {name: Appended(one.first, one.end, one.duplicate_count) for name, one in result.appended.items()}
    return CommitResult(appended, result.already)


def _append(transaction: Transaction, parts: Sequence[AppendedBlocks], writer: WriterBatch | None) -> Append:
    identity = writer or WriterBatch("", "")
    return Append(transaction.id, tuple(parts), identity.writer, identity.batch, identity.query, identity.run)


def _forget_staged(turn: Turn, volume: Path, transaction: Transaction, env: Environment) -> None:
    """Sweep what was staged for a batch that is stored already, unless it is this very transaction that stored it."""
    try:
        abort(turn, volume, transaction, env)
    except StorageError as error:
        logger.warning("%s: blocks of transaction %s are left there: %s", volume, transaction.id.hex(), error)


def whole_block(store_id: bytes, target: WriteTarget, directory: Path, block: StagedBlock, first: int) -> BlockSlice:
    """Return a staged block as a slice, its relative 0 at sequence `first`."""
    summary = block.summary
    return BlockSlice(
        stream=target.stream,
        store_id=store_id,
        incarnation=target.incarnation,
        block_id=summary.block_id,
        digest=summary.digest,
        file_size=summary.file_size,
        paths=(str(block_path(str(directory), summary.block_id)),),
        block_first=first,
        first=first,
        end=first + summary.span,
        removed=b"",
        row_count=summary.row_count,
        byte_size=summary.file_size,
    )


def _check_staged(transaction: Transaction, staged: Sequence[StagedBlock]) -> None:
    for block in staged:
        target = transaction.targets.get(block.stream)
        if target is None or target.incarnation != block.incarnation or block.transaction_id != transaction.id:
            raise RequirementError(f"block {block.summary.block_id.hex()} was not staged for this transaction")


def _part(
    state: StoreState,
    target: WriteTarget,
    blocks: list[StagedBlock],
    overwrite: bool,
    volume: Path,
    window: MsgIdWindow,
    env: Environment,
) -> AppendedBlocks:
    """Return what the append adds to one stream, after a look at the files."""
    rows = np.zeros(len(blocks), BLOCK_DTYPE)
    sets: dict[tuple[str, ...], int] = {}
    set_of = np.zeros(len(blocks), "<i4")
    hashes: list[np.ndarray] = []
    slices: list[BlockSlice] = []
    first, directory = 0, block_directory(volume, target.incarnation)
    for at, block in enumerate(blocks):
        summary = block.summary
        rows[at] = (
            summary.block_id, summary.digest, first, summary.span, summary.row_count, summary.file_size,
            summary.data_size, summary.time_min_ns, summary.time_max_ns, 0, summary.msg_id_count, 0, 1,
        )  # fmt: skip
        if summary.subjects is not None:
            set_of[at] = sets.setdefault(summary.subjects, len(sets) + 1)
        found = _check_block(env.files, state.store_id, target, directory, block)
        if found is not None:
            hashes.append(found + np.array([0, 0, first], np.uint64))
            slices.append(whole_block(state.store_id, target, directory, block, first))
        first += summary.span
    stream = state.by_incarnation(target.incarnation)
    removed, count, size = SequenceSet.empty(), 0, 0
    if hashes and stream is not None:
        earlier = None if overwrite else window
        removed = _duplicates(np.concatenate(hashes), stream, earlier, directory, env)
        count = len(removed)
        size = _duplicate_size(removed, slices, env) if count else 0
    return AppendedBlocks(
        incarnation=target.incarnation,
        rows=rows.tobytes(),
        subject_sets=tuple(sets),
        subject_set_of=set_of.tobytes(),
        duplicates=removed.encode() if removed else b"",
        duplicate_count=count,
        duplicate_size=size,
        overwrite=overwrite,
    )


def _check_block(
    files: Files, store_id: bytes, target: WriteTarget, directory: Path, block: StagedBlock
) -> np.ndarray | None:
    """Check that the block (size, trailer, digest) still is where the task put it.

    Return the hashes of its msg_ids as (n, 3) uint64, hash and relative sequence, None if it has none.
    """
    path = block_path(str(directory), block.summary.block_id)
    try:
        file = files.open(path)
    except FileNotFoundError as error:
        raise NotFoundError(f"stream {target.stream!r}: staged block {path} is gone; nothing was committed") from error
    try:
        expected = BlockExpectation(
            store_id, target.incarnation, block.summary.block_id, block.summary.digest, block.summary.file_size
        )
        reader = BlockReader.open(file, expected)
        return msg_ids(reader) if block.summary.msg_id_count else None
    except StorageError as error:
        reason = f"stream {target.stream!r}: a staged block is damaged, nothing was committed: {error}"
        raise CorruptionError(reason) from error
    finally:
        file.close()


def _duplicates(
    found: np.ndarray, stream: StreamState, window: MsgIdWindow | None, directory: Path, env: Environment
) -> SequenceSet:
    """Return the relative sequences whose msg_id came before, in the window or in this very append."""
    if stream.config.duplicate_window == 0:
        return SequenceSet.empty()
    earlier = window.hashes(stream, directory, env) if window is not None else np.empty((0, 2), np.uint64)
    high = np.concatenate((earlier[:, 0], found[:, 0]))
    low = np.concatenate((earlier[:, 1], found[:, 1]))
    relative = np.concatenate((np.full(len(earlier), -1), found[:, 2].astype(np.int64)))
    order = np.lexsort((relative, low, high))
    high, low, relative = high[order], low[order], relative[order]
    again = (high[1:] == high[:-1]) & (low[1:] == low[:-1]) & (relative[1:] >= 0)
    return SequenceSet.from_sequences(relative[1:][again])


def _duplicate_size(removed: SequenceSet, blocks: Sequence[BlockSlice], env: Environment) -> int:
    """Return the message bytes of the duplicates, read from the staged blocks."""
    touched = [one for one in blocks if removed.count_in(one.first, one.end)]
    return int(sum(sizes.sum() for _, sizes in measured(touched, removed, env)))


def abort(turn: Turn, volume: Path, transaction: Transaction, env: Environment) -> bool:
    """Fence the transaction and sweep its blocks; False, and nothing touched, if it had been committed."""
    outcome = turn.state.outcome(transaction.id)
    if outcome == COMMITTED:
        return False
    if outcome != ABORTED:
        result = turn.propose(Abort(transaction.id))
        if isinstance(result, machine.Refused):
            result.raise_()
    for target in transaction.targets.values():
        _sweep(volume, target, transaction.id, turn.state, env.files)
    return True


def _sweep(volume: Path, target: WriteTarget, transaction_id: bytes, state: StoreState, files: Files) -> None:
    """Unlink the blocks of an aborted transaction. Only the block's own header says whose it is."""
    directory = block_directory(volume, target.incarnation)
    stream = state.by_incarnation(target.incarnation)
    named = {bytes(one) for one in stream.blocks.rows["block_id"]} if stream is not None else set()
    try:
        names = files.list_directory(directory)
    except FileNotFoundError:
        return
    for name in names:
        path = directory / name
        block_id = block_id_of(name)
        if block_id is None or block_id in named:
            continue
        if transaction_of(path, files) == transaction_id:
            files.unlink(path)
