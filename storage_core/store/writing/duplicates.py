"""The duplicate window: which msg_ids a stream has seen lately, by the time of the entries that brought them.

The hashes lie in the blocks themselves. A msg_id counts for as long as the window lasts, whether its message is still
shown or not: work that was done and removed shall not be taken in again by a publisher that tries once more. Blocks
whose messages are all gone lie in the graveyard, whose rows do not say when the block was committed; its header says
when its append began, and their msg_ids count from then on. What this does not cover:

- a block that was unlinked before the window ended (`graveyard_keep` shorter than `duplicate_window`), or of which no
  copy in the graveyard is whole: its msg_ids are forgotten;
- an overwrite forgets all that it replaces;
- a duplicate is a sighting, too: the window begins again with each one.

What was read once is remembered by block for as long as it is of use.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from storage_core.block.reader import BlockReader
from storage_core.errors import CorruptionError, StorageError
from storage_core.metadata.state import StoreState, StreamState
from storage_core.store.environment import Environment
from storage_core.store.reading.plan import whole_blocks
from storage_core.store.reading.reading import ask_block
from storage_core.store.volume import placement
from storage_core.store.volume.placement import block_path
from storage_core.store.volume.volumes import Volume

logger = logging.getLogger(__name__)
_NO_BLOCK = bytes(16)  # a grave of a directory
_NOTHING = np.empty((0, 2), np.uint64)


def msg_ids(reader: BlockReader) -> np.ndarray:
    """Return (n, 3) uint64: the two halves of each msg_id's hash, and its relative sequence.

    Raises CorruptFrameError, OSError.
    """
    parts = [np.column_stack((one.hashes, one.sequences.astype(np.uint64))) for one in reader.message_ids()]
    return np.concatenate([np.empty((0, 3), np.uint64), *parts])


class MsgIdWindow:
    """Hashes of recent msg_ids, by block. One for a store; used under its lock."""

    def __init__(self) -> None:
        self._known: dict[bytes, dict[bytes, tuple[int, np.ndarray]]] = {}  # by incarnation, by block: begun, hashes

    def hashes(self, state: StoreState, stream: StreamState, volumes: Sequence[Volume], env: Environment) -> np.ndarray:
        """Return (n, 2) uint64 hashes of the msg_ids that count now.

        Raises DataLossError if no copy of a live block of the window can be read: then duplicates cannot be told.
        """
        since_ns = env.now_ns() - stream.config.duplicate_window
        before, known = self._known.get(stream.incarnation, {}), dict[bytes, tuple[int, np.ndarray]]()
        counted = []
        rows = stream.blocks.rows
        rows = rows[(rows["committed_ns"] >= since_ns) & (rows["msg_id_count"] > 0)]
        for one in whole_blocks(state, stream, rows, volumes):
            found = before.get(one.block_id)
            known[one.block_id] = found if found is not None else ask_block(one, _begun_and_hashes, env)
            counted.append(known[one.block_id][1])
        for incarnation, block_id in _graves(state, stream, since_ns):
            found = before.get(block_id)
            if found is None:
                found = _ask_grave(state, stream, incarnation, block_id, volumes, env)
            known[block_id] = found
            if found[0] >= since_ns:
                counted.append(found[1])
        self._known[stream.incarnation] = known
        return np.concatenate([_NOTHING, *counted])


def _begun_and_hashes(reader: BlockReader) -> tuple[int, np.ndarray]:
    """Return when the block's transaction was made, in ns, and the hashes of its msg_ids."""
    return int.from_bytes(reader.identity.transaction_id[:8], "big"), msg_ids(reader)[:, :2]


def _graves(state: StoreState, stream: StreamState, since_ns: int) -> list[tuple[bytes, bytes]]:
    """Return (incarnation, block id) of the blocks that were removed within the window, and not overwritten."""
    graves = state.graveyard.rows
    recent = graves[(graves["dropped_ns"] >= since_ns) & (graves["dropped_ns"] > stream.overwritten_ns)]
    pairs = zip(recent["incarnation"].tolist(), recent["block_id"].tolist(), strict=True)
    return [pair for pair in pairs if pair[0] in stream.incarnations and pair[1] != _NO_BLOCK]


def _ask_grave(
    state: StoreState,
    stream: StreamState,
    incarnation: bytes,
    block_id: bytes,
    volumes: Sequence[Volume],
    env: Environment,
) -> tuple[int, np.ndarray]:
    """Return what a removed block says, from the first copy that is whole; (0, nothing) if none is left.

    The manifest has forgotten its digest: header and footer vouch for each other, and the header says whose it is.
    """
    for _, root in placement.read_directories(state, stream, volumes):
        path = block_path(str(placement.block_directory(Path(root), incarnation)), block_id)
        try:
            file = env.files.open(path)
            try:
                reader = BlockReader.open(file)
                identity = reader.identity
                if (identity.store_id, identity.incarnation, identity.block_id) != (
                    state.store_id, incarnation, block_id,
                ):  # fmt: skip
                    raise CorruptionError(f"{path} is another block: {identity}")
                return _begun_and_hashes(reader)
            finally:
                file.close()
        except FileNotFoundError:
            continue
        except (StorageError, OSError) as error:
            logger.warning("the msg_ids of a removed block cannot be read there: %s", error)
    return 0, _NOTHING
