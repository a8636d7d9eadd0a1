"""Orphans: staged blocks that no entry names and none ever will.

Tasks that outlive their job's abort, losing attempts and killed drivers leave blocks behind. What becomes of a block
is decided by its transaction, which its header names: one that is decided names no more blocks, and one that has been
open for longer than a transaction is remembered is aborted first, by an entry, so that it cannot be committed later.
"""

import logging
from pathlib import Path

from storage_core.block.format import HEADER_SIZE, decode_header
from storage_core.errors import StorageError
from storage_core.files import Files
from storage_core.metadata.commands import Abort
from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import raise_if_of_process
from storage_core.store.ensemble.turn import Turn
from storage_core.store.environment import Environment
from storage_core.store.volume.placement import block_directory, block_id_of
from storage_core.store.writing.mirrored_file import says_broken

logger = logging.getLogger(__name__)
MERGE_MARK = b"MERG"  # behind the time in the transactions of merges: what they wrote is never an append's
TRANSACTION_OPEN_NS = 24 * 3_600 * 1_000_000_000  # after which an undecided transaction is given up


def sweep(turn: Turn, env: Environment) -> int:
    """Unlink the orphans of every stream on every volume; return how many files there were. Under the store's lock."""
    swept = 0
    for volume in turn.writable:
        try:
            swept += sum(_sweep(turn, volume.path, stream, env) for stream in list(turn.state.streams.values()))
        except OSError as error:
            logger.warning("%s: orphans: %s", volume.path, error)
            if says_broken(error):
                turn.failed(volume.volume_id, error)
    return swept


def _sweep(turn: Turn, volume: Path, stream: StreamState, env: Environment) -> int:
    swept = 0
    for incarnation in dict.fromkeys(stream.incarnations):
        directory = block_directory(volume, incarnation)
        # Of an incarnation that the stream continues, what was not adopted is nobody's to remove: merges came later.
        merges_only = incarnation != stream.incarnation
        found = [
            path
            for path in _unnamed(turn.state, stream, directory, env.files)
            if _is_orphan(turn, path, merges_only, env)
        ]
        for path in found:
            env.files.unlink(path)
        if found:
            env.files.sync_directory(directory)
        swept += len(found)
    return swept


def _unnamed(state: StoreState, stream: StreamState, directory: Path, files: Files) -> list[Path]:
    """Return the block files that neither the manifest nor a grave names."""
    graves = state.graves
    named = {bytes(one) for one in (*stream.blocks.rows["block_id"], *graves["block_id"])}
    try:
        names = files.list_directory(directory)
    except FileNotFoundError:
        return []
    blocks = [(name, block_id_of(name)) for name in names]
    return [directory / name for name, block_id in blocks if block_id is not None and block_id not in named]


def _is_orphan(turn: Turn, path: Path, merges_only: bool, env: Environment) -> bool:
    """Return whether the block's transaction is decided; gives up one that has been open for too long."""
    transaction = transaction_of(path, env.files)
    if transaction is None or (merges_only and transaction[8:12] != MERGE_MARK):
        return False  # not even a header: nobody can say whose it is
    made_ns = int.from_bytes(transaction[:8], "big")
    if turn.state.outcome(transaction) or made_ns < turn.state.transaction_floor_ns:
        return True
    if made_ns >= env.now_ns() - TRANSACTION_OPEN_NS:
        return False
    turn.propose(Abort(transaction), frees=True)  # its block goes at once
    return True


def transaction_of(path: Path, files: Files) -> bytes | None:
    """Return the transaction that a block file's own header names, None if it has no whole one."""
    try:
        file = files.open(path)
    except OSError as error:
        raise_if_of_process(error)
        return None
    try:
        return decode_header(file.read_at(0, HEADER_SIZE), str(path)).identity.transaction_id
    except (StorageError, OSError) as error:
        raise_if_of_process(error)
        return None
    finally:
        file.close()
