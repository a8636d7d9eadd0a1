"""Where the rows of a new block go: to several volumes at once, each of which may fail on its own.

Appends, imports, merges and restores all write through this module. A block is durable, name and all, on every volume
that is among its holders; with fewer of these than `needed` it fails, and nothing is left of it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage_core.block.format import BLOCK_SIZE_MAX, FRAME_ROW_COUNT_MAX, BlockIdentity, BlockSummary
from storage_core.block.writer import BlockWriter
from storage_core.store.environment import Environment
from storage_core.store.volume.block_store import VolumeHandle
from storage_core.store.writing.mirrored_file import MirroredFile

FILE_SIZE_TARGET_MAX = BLOCK_SIZE_MAX // 2  # bytes; tiny headers take many times their message bytes in a file


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Where blocks of one stream are written, and how large they become."""

    volumes: Sequence[VolumeHandle]  # that take blocks now, in the order of the placement
    needed: int  # the fewest volumes that must have a block
    codec: str
    store_id: bytes
    incarnation: bytes
    transaction_id: bytes
    block_max_msgs: int
    block_max_bytes: int  # of messages


@dataclass(frozen=True, slots=True)
class SealedBlock:
    """A block that is whole and durable."""

    summary: BlockSummary
    first: int  # sequence of its first row; 0 if rows have none yet
    hash_sum: int  # over the hashes of its rows; 0 without
    file: MirroredFile
    sizes: np.ndarray | None  # message bytes of each row, if they are kept


class BlockSink:
    """Writes rows as blocks, one after the other. Not thread-safe; `seal` or `discard` ends it."""

    def __init__(self, place: BlockPlace, env: Environment, keeps_sizes: bool = False) -> None:
        self._place, self._env, self._keeps_sizes = place, env, keeps_sizes
        self._sizes: list[np.ndarray] = []  # of the block that is being written
        self.sealed: list[SealedBlock] = []
        self._file: MirroredFile | None = None
        self._writer: BlockWriter | None = None
        self._first = self._rows = self._bytes = self._hash_sum = 0  # of the block that is being written

    @property
    def is_open(self) -> bool:
        """Return whether the block that is being written has open files, one on each volume."""
        return self._file is not None and self._file.is_made

    @property
    def held_size(self) -> int:
        """Return the bytes of rows in memory, that no file has yet."""
        return self._writer.held_size if self._writer is not None else 0

    @property
    def failures(self) -> dict[bytes, OSError]:
        """Return the volumes that did not take the block that is being written, and why."""
        return self._file.failures if self._file is not None else {}

    def write(
        self,
        frame: pa.RecordBatch,
        sizes: np.ndarray,
        sequences: np.ndarray | None = None,
        msg_ids: np.ndarray | None = None,
        hashes: np.ndarray | None = None,
    ) -> None:
        """Write rows, columns as FRAME_SCHEMA, with the message bytes, sequence, msg_id hashes and hash of each.

        Raises OSError if too few volumes take them.
        """
        start, ends = 0, np.cumsum(sizes, dtype=np.int64)  # summed once: a frame may become thousands of blocks
        while start < frame.num_rows:
            room = self._place.block_max_bytes - self._bytes + (int(ends[start - 1]) if start else 0)
            fit = int(np.searchsorted(ends, room, side="right")) - start
            fit = min(fit, self._place.block_max_msgs - self._rows, FRAME_ROW_COUNT_MAX)
            if fit == 0 and self._rows:
                self.seal()
                continue
            rows = slice(start, start + max(fit, 1))
            if self._writer is None:
                self._open(int(sequences[start]) if sequences is not None else 0)
            assert self._writer is not None
            self._writer.write(
                frame.slice(rows.start, rows.stop - rows.start),
                msg_id_hashes=msg_ids[rows] if msg_ids is not None else None,
                sequences=sequences[rows] - self._first if sequences is not None else None,
            )
            self._rows += rows.stop - rows.start
            self._bytes += int(sizes[rows].sum())
            if self._keeps_sizes:
                self._sizes.append(sizes[rows])
            self._hash_sum += int(hashes[rows].sum()) if hashes is not None else 0
            start = rows.stop
            if self._writer.size >= FILE_SIZE_TARGET_MAX:
                self.seal()

    def _open(self, first: int) -> None:
        place, block_id = self._place, self._env.new_id()
        identity = BlockIdentity(place.store_id, place.incarnation, block_id, place.transaction_id)
        self._file = MirroredFile(place.volumes, place.incarnation, block_id, place.needed, self._env)
        self._writer = BlockWriter(self._file, identity, place.codec)
        self._first, self._rows, self._bytes, self._hash_sum, self._sizes = first, 0, 0, 0, []

    def seal(self) -> None:
        """End the block that is being written, if there is one: what follows goes to another. Raises OSError."""
        if self._writer is None:
            return
        assert self._file is not None
        summary = self._writer.finish()
        self._file.close()
        sizes = np.concatenate(self._sizes) if self._sizes else None
        self.sealed.append(SealedBlock(summary, self._first, self._hash_sum, self._file, sizes))
        self._file = self._writer = None
        self._rows = self._bytes = 0

    def discard(self) -> None:
        """Take back all that was written: nobody was told of these blocks."""
        if self._file is not None:
            self._file.discard()
        self._file = self._writer = None
        for block in self.sealed:
            block.file.discard()
        self.sealed = []


@contextmanager
def one_block(
    volumes: Sequence[VolumeHandle], identity: BlockIdentity, needed: int, codec: str, env: Environment
) -> Iterator[tuple[BlockWriter, MirroredFile]]:
    """Yield what writes one block; after an error nothing is left of it. Raises OSError if too few volumes take it."""
    file = MirroredFile(volumes, identity.incarnation, identity.block_id, needed, env)
    try:
        yield BlockWriter(file, identity, codec), file
    except BaseException:
        file.discard()
        raise
    file.close()
