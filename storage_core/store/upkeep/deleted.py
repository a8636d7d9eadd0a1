"""Directories of deleted streams on volumes that were away when their files were unlinked.

The metadata forgets a deleted stream once its files are gone from the volumes that are there. One that comes back later
has them still. A directory that belongs to no stream, is in no grave, and holds only blocks that were written for it in
transactions known to be decided, is such a one: they were committed to a stream that a committed entry deleted, or were
given up. If one block of it cannot be told, the whole directory stays: after an adoption it may be what was left alone.
"""

import logging
from pathlib import Path

from storage_core.block.format import HEADER_SIZE, decode_header
from storage_core.errors import StorageError
from storage_core.store.ensemble.turn import Turn
from storage_core.store.environment import Environment
from storage_core.store.volume.identity import STREAMS
from storage_core.store.volume.placement import block_id_of
from storage_core.store.writing.mirrored_file import says_broken

logger = logging.getLogger(__name__)


def sweep(turn: Turn, env: Environment) -> int:
    """Remove the directories of deleted streams; return how many. Under the store's lock."""
    state = turn.state
    known = {incarnation for one in state.streams.values() for incarnation in one.incarnations}
    known.update(bytes(one) for one in state.graves["incarnation"])
    names = {incarnation.hex() for incarnation in known}
    swept = 0
    for volume in turn.writable:
        root = volume.path / STREAMS
        try:
            for name in env.files.list_directory(root):
                if len(name) == 32 and name not in names and env.files.is_directory(root / name):
                    swept += _sweep(turn, root / name, env)
            if swept:
                env.files.sync_directory(root)
        except OSError as error:
            logger.warning("%s: directories of deleted streams: %s", volume.path, error)
            if says_broken(error):
                turn.failed(volume.volume_id, error)
    return swept


def _sweep(turn: Turn, directory: Path, env: Environment) -> bool:
    names = env.files.list_directory(directory)
    if not names:  # nothing in it says whose it is
        return False
    if any(block_id_of(name) is None or not _is_decided(turn, directory / name, env) for name in names):
        return False
    for name in names:
        env.files.unlink(directory / name)
    env.files.remove_directory(directory)
    return True


def _is_decided(turn: Turn, path: Path, env: Environment) -> bool:
    """Return whether the block was written for this directory, and what became of its transaction is known."""
    try:
        file = env.files.open(path)
        try:
            written = decode_header(file.read_at(0, HEADER_SIZE), str(path)).identity
        finally:
            file.close()
    except StorageError:
        return False
    is_of_here = (written.store_id, written.incarnation.hex()) == (turn.state.store_id, path.parent.name)
    return is_of_here and turn.state.outcome(written.transaction_id) != 0
