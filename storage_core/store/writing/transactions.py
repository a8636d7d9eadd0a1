"""Transactions of appends: what tasks need to write blocks, and what becomes of those that are not committed.

begin      a transaction id and, for each stream, where its blocks go; nothing is written
abort      asks whether the transaction is committed; if not, fences it, then sweeps its blocks
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from storage_core.errors import DiskFullError, RequirementError
from storage_core.metadata.commands import Abort
from storage_core.metadata.config import StreamConfig
from storage_core.metadata.state import ABORTED, COMMITTED, StoreState
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.volume import placement
from storage_core.store.volume.block_store import BlockStore
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing.mirrored_file import is_disk_failure
from storage_core.store.writing.orphans import transaction_of
from storage_core.store.writing.staging import StagedBlock, Transaction, WriteTarget

logger = logging.getLogger(__name__)


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
    return min((limit for limit in (config.max_msg_size, config.max_bytes) if limit >= 0), default=-1)


class OutdatedTransaction(Exception):
    """The view that a transaction began with is outdated. Nothing was stored; begin another transaction."""


def check_target(session: Session, target: WriteTarget) -> None:
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


def check_staged(transaction: Transaction, staged: Sequence[StagedBlock]) -> None:
    for block in staged:
        target = transaction.targets.get(block.stream)
        if target is None or target.incarnation != block.incarnation or block.transaction_id != transaction.id:
            raise RequirementError(f"block {block.summary.block_id.hex()} was not staged for this transaction")


def abort(session: Session, transaction: Transaction) -> bool:
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
            if is_disk_failure(error):
                session.failed(volume.volume_id, error)
    return True


def _sweep(blocks: BlockStore, target: WriteTarget, transaction_id: bytes, state: StoreState) -> None:
    """Unlink the blocks of an aborted transaction. Only the block's own header says whose it is."""
    stream = state.by_incarnation(target.incarnation)
    named = {bytes(row) for row in stream.blocks.rows["block_id"]} if stream is not None else set()
    for block_id in blocks.ids(target.incarnation):
        if block_id not in named and transaction_of(blocks, target.incarnation, block_id) == transaction_id:
            blocks.delete(target.incarnation, block_id)
