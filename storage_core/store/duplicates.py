"""The duplicate window: which msg_ids a stream has seen lately, by the time of the entries that brought them.

The hashes lie in the blocks themselves. What was read once is remembered by block for as long as it is in a window.
"""

from collections.abc import Sequence

import numpy as np

from storage_core.block.reader import BlockReader
from storage_core.metadata.state import StoreState, StreamState
from storage_core.store.environment import Environment
from storage_core.store.plan import whole_blocks
from storage_core.store.reading import ask_block
from storage_core.store.volumes import Volume


def msg_ids(reader: BlockReader) -> np.ndarray:
    """Return (n, 3) uint64: the two halves of each msg_id's hash, and its relative sequence.

    Raises CorruptFrameError, OSError.
    """
    parts = [np.column_stack((one.hashes, one.sequences.astype(np.uint64))) for one in reader.message_ids()]
    return np.concatenate([np.empty((0, 3), np.uint64), *parts])


class MsgIdWindow:
    """Hashes of recent msg_ids, by block. One for a store; used under its lock."""

    def __init__(self) -> None:
        self._known: dict[bytes, dict[bytes, np.ndarray]] = {}  # by incarnation, by block

    def hashes(self, state: StoreState, stream: StreamState, volumes: Sequence[Volume], env: Environment) -> np.ndarray:
        """Return (n, 2) uint64 hashes of the msg_ids committed within the stream's duplicate_window.

        Raises DataLossError if no copy of a block of the window can be read: then duplicates cannot be told.
        """
        rows = stream.blocks.rows
        recent = rows["committed_ns"] >= env.now_ns() - stream.config.duplicate_window
        before, known = self._known.get(stream.incarnation, {}), {}
        for one in whole_blocks(state, stream, rows[recent & (rows["msg_id_count"] > 0)], volumes):
            found = before.get(one.block_id)
            known[one.block_id] = found if found is not None else ask_block(one, msg_ids, env)[:, :2]
        self._known[stream.incarnation] = known
        return np.concatenate([np.empty((0, 2), np.uint64), *known.values()])
