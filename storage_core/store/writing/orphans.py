"""Orphans: staged blocks that no entry names and none ever will.

Tasks that outlive their job's abort, losing attempts and killed drivers leave blocks behind. What becomes of a block
is decided by its transaction, which its header names: one that is decided names no more blocks, and one that has been
open for longer than a transaction is remembered is aborted first, by an entry, so that it cannot be committed later.
Blocks of lost messages are named. Where messages of another copy of the store lie, whose log was set aside, nothing
of their stream is an orphan until they are discarded; nor is anything where messages are lost, or a block is on no
volume: the blocks that it was merged from may be there.
"""

import logging
from collections.abc import Iterable

from storage_core.errors import StorageError
from storage_core.metadata.commands import Abort
from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import raise_if_of_process
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.volume.block_store import BlockStore
from storage_core.store.writing.mirrored_file import is_disk_failure

logger = logging.getLogger(__name__)
MERGE_MARK = b"MERG"  # behind the time in the transactions of merges: what they wrote is never an append's
TRANSACTION_OPEN_NS = 24 * 3_600 * 1_000_000_000  # after which an undecided transaction is given up


def sweep(session: Session, env: Environment) -> None:
    """Unlink the orphans of every stream on every volume. Under the store's lock."""
    lacking = {stream.incarnation for stream in session.state.streams.values() if _lacks_blocks(session, stream)}
    for volume in session.writable:
        try:
            aside = {each.incarnation for each in session.state.set_aside if each.volume_id == volume.volume_id}
            for stream in list(session.state.streams.values()):
                if stream.incarnation not in lacking and not aside.intersection(stream.incarnations):
                    _sweep(session, volume.blocks, stream, env)
        except OSError as error:
            logger.warning("%s: orphans: %s", volume.path, error)
            if is_disk_failure(error):
                session.failed(volume.volume_id, error)


def _lacks_blocks(session: Session, stream: StreamState) -> bool:
    """Return whether a block may be gone from all volumes: by names, or since one cannot be read."""
    wanted = set(map(bytes, stream.blocks.rows["block_id"]))
    for volume in session.writable:
        try:
            for incarnation in stream.incarnations:
                wanted.difference_update(volume.blocks.ids(incarnation))
        except OSError as error:
            raise_if_of_process(error)
    return bool(wanted) or len(stream.lost_blocks) > 0


def _sweep(session: Session, blocks: BlockStore, stream: StreamState, env: Environment) -> None:
    for incarnation in dict.fromkeys(stream.incarnations):
        # Of an incarnation that the stream continues, what was not adopted is nobody's to remove: merges came later.
        merges_only = incarnation != stream.incarnation
        orphans = [
            block_id
            for block_id in _unnamed(session.state, stream, blocks.ids(incarnation))
            if _is_orphan(session, transaction_of(blocks, incarnation, block_id), merges_only, env)
        ]
        for block_id in orphans:
            blocks.delete(incarnation, block_id)
        if orphans:
            blocks.sync(incarnation)


def _unnamed(state: StoreState, stream: StreamState, block_ids: Iterable[bytes]) -> list[bytes]:
    """Return those of the blocks that neither the manifest nor a delete names."""
    tables = (stream.blocks.rows, stream.lost_blocks.rows, state.deletes)
    named = {bytes(row) for rows in tables for row in rows["block_id"]}
    return [block_id for block_id in block_ids if block_id not in named]


def _is_orphan(session: Session, transaction: bytes | None, merges_only: bool, env: Environment) -> bool:
    """Return whether the transaction of a block is decided; gives up one that has been open for too long."""
    if transaction is None or (merges_only and transaction[8:12] != MERGE_MARK):
        return False  # not even a header: nobody can say whose it is
    made_ns = int.from_bytes(transaction[:8], "big")
    if session.state.outcome(transaction) or made_ns < session.state.transaction_floor_ns:
        return True
    if made_ns >= env.now_ns() - TRANSACTION_OPEN_NS:
        return False
    session.propose(Abort(transaction), releases_space=True)  # its block goes at once
    return True


def transaction_of(blocks: BlockStore, incarnation: bytes, block_id: bytes) -> bytes | None:
    """Return the transaction that a block's own header names, None if it has no whole one."""
    try:
        return blocks.identity(incarnation, block_id).transaction_id
    except (StorageError, OSError) as error:
        raise_if_of_process(error)
        return None
