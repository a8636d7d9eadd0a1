"""The duplicate window: which msg_ids a stream has seen lately, by the time of the entries that brought them.

The hashes lie in the blocks themselves. What was read once is remembered by block for as long as it is in a window.
"""

from pathlib import Path

import numpy as np

from storage_core.block.format import BlockExpectation
from storage_core.block.reader import BlockReader
from storage_core.metadata.state import StreamState
from storage_core.store.environment import Environment
from storage_core.store.staging import block_path


def msg_ids(reader: BlockReader) -> np.ndarray:
    """Return (n, 3) uint64: the two halves of each msg_id's hash, and its relative sequence.

    Raises CorruptFrameError, OSError.
    """
    parts = [np.column_stack((one.hashes, one.sequences.astype(np.uint64))) for one in reader.message_ids()]
    return np.concatenate([np.empty((0, 3), np.uint64), *parts])


class MsgIdWindow:
    """Hashes of recent msg_ids, by block. One for a store; used under its lock."""

    def __init__(self, store_id: bytes) -> None:
        self._store_id = store_id
        self._known: dict[bytes, dict[bytes, np.ndarray]] = {}  # by incarnation, by block

    def hashes(self, stream: StreamState, directory: Path, env: Environment) -> np.ndarray:
        """Return (n, 2) uint64 hashes of the msg_ids committed within the stream's duplicate_window.

        Raises CorruptionError or OSError if a block of the window cannot be read: then duplicates cannot be told.
        """
        rows = stream.blocks.rows
        recent = rows["committed_ns"] >= env.now_ns() - stream.config.duplicate_window
        wanted = rows[recent & (rows["msg_id_count"] > 0)]
        before, known = self._known.get(stream.incarnation, {}), {}
        for row in wanted:
            block_id = bytes(row["block_id"])
            found = before.get(block_id)
            known[block_id] = found if found is not None else self._load(stream, row, directory, env)
        self._known[stream.incarnation] = known
        return np.concatenate([np.empty((0, 2), np.uint64), *known.values()])

    def _load(self, stream: StreamState, row: np.void, directory: Path, env: Environment) -> np.ndarray:
        block_id = bytes(row["block_id"])
        file = env.files.open(block_path(str(directory), block_id))
        try:
            expected = BlockExpectation(
                self._store_id, stream.incarnation, block_id, bytes(row["digest"]), int(row["file_size"])
            )
            return msg_ids(BlockReader.open(file, expected))[:, :2]
        finally:
            file.close()
