"""Directories of deleted streams on volumes that were away when their files were unlinked.

The metadata forgets a deleted stream once its files are gone from the volumes that are there. One that comes back later
has them still. A directory that belongs to no stream, is in no delete, and holds only blocks that were written for it
in transactions known to be decided, is such a one: they were committed to a stream that a committed entry deleted, or
were given up. If one block of it cannot be known, the whole directory stays: after an adoption it may be what was left
alone.
"""

import logging

from storage_core.errors import StorageError
from storage_core.store.ensemble.session import Session
from storage_core.store.volume.block_store import BlockStore
from storage_core.store.writing.mirrored_file import is_disk_failure

logger = logging.getLogger(__name__)


def sweep(session: Session) -> None:
    """Remove the directories of deleted streams. Under the store's lock."""
    state = session.state
    known = {incarnation for stream in state.streams.values() for incarnation in stream.incarnations}
    known.update(bytes(delete) for delete in state.deletes["incarnation"])
    known.update(messages.incarnation for messages in state.set_aside)  # of another copy of the store
    for volume in session.writable:
        try:
            unknown = [incarnation for incarnation in volume.blocks.incarnations() if incarnation not in known]
            removed = [_sweep(session, volume.blocks, incarnation) for incarnation in unknown]
            if any(removed):
                volume.blocks.sync_removals()
        except OSError as error:
            logger.warning("%s: directories of deleted streams: %s", volume.path, error)
            if is_disk_failure(error):
                session.failed(volume.volume_id, error)


def _sweep(session: Session, blocks: BlockStore, incarnation: bytes) -> bool:
    block_ids = blocks.ids(incarnation)
    if not block_ids:  # nothing in it says whose it is
        return False
    if blocks.strangers(incarnation) or not all(
        _is_decided(session, blocks, incarnation, block_id) for block_id in block_ids
    ):
        return False
    blocks.remove(incarnation)
    return True


def _is_decided(session: Session, blocks: BlockStore, incarnation: bytes, block_id: bytes) -> bool:
    """Return whether the block was written for this incarnation, and what became of its transaction is known."""
    try:
        written = blocks.identity(incarnation, block_id)
    except StorageError:
        return False
    is_of_here = (written.store_id, written.incarnation) == (session.state.store_id, incarnation)
    return is_of_here and session.state.outcome(written.transaction_id) != 0
