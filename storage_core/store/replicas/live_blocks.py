"""Blocks that the manifest names, as values, and which volumes it says lack them. Nothing is read for it."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage_core.block.format import BlockExpectation
from storage_core.metadata.state import StoreState, StreamState
from storage_core.store.volume.block_store import BlockStore
from storage_core.store.volume.placement import holders


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """A block that the manifest names."""

    stream: str
    incarnation: bytes  # of the stream now
    written_as: bytes  # the incarnation whose directory it lies in
    first: int
    end: int  # sequences [first, end)
    row_count: int
    data_size: int  # message bytes
    committed_ns: int  # time of the entry that named it
    held_by: tuple[bytes, ...]  # volumes of which the manifest says that they have it
    expected: BlockExpectation

    @property
    def block_id(self) -> bytes:
        return self.expected.block_id

    @property
    def file_size(self) -> int:
        return self.expected.file_size

    def path_in(self, blocks: BlockStore) -> Path:
        """Return where a volume has it, for people."""
        return blocks.path(self.written_as, self.block_id)


def live_blocks(state: StoreState, stream: StreamState, rows: np.ndarray | None = None) -> list[LiveBlock]:
    """Return the blocks of these rows of the manifest; None: all."""
    rows = stream.blocks.rows if rows is None else rows
    names = ("block_id", "digest", "first", "span", "row_count", "file_size", "data_size", "committed_ns", "holders")
    blocks = []
    for block_id, digest, first, span, row_count, file_size, data_size, committed_ns, mask in zip(
        *(rows[name].tolist() for name in names), strict=True
    ):
        written_as = stream.written_as(first)
        expected = BlockExpectation(state.store_id, written_as, block_id, digest, file_size)
        blocks.append(
            LiveBlock(
                stream.name, stream.incarnation, written_as, first, first + span, row_count, data_size, committed_ns,
                holders(stream, mask), expected,
            )
        )  # fmt: skip
    return blocks


def expected_of(store_id: bytes, written_as: bytes, row: np.void) -> BlockExpectation:
    """Return what a row of a manifest says of the file of its block."""
    return BlockExpectation(store_id, written_as, bytes(row["block_id"]), bytes(row["digest"]), int(row["file_size"]))


def new_block(store_id: bytes, stream: StreamState, row: np.void, held_by: tuple[bytes, ...]) -> LiveBlock:
    """Return a block of this row that the stream will have, which was written as its own incarnation."""
    first = int(row["first"])
    return LiveBlock(
        stream.name, stream.incarnation, stream.incarnation, first, first + int(row["span"]), int(row["row_count"]),
        int(row["data_size"]), int(row["committed_ns"]), held_by, expected_of(store_id, stream.incarnation, row),
    )  # fmt: skip


def missing_copies(stream: StreamState, volume_ids: Iterable[bytes]) -> dict[bytes, np.ndarray]:
    """Return, by volume, the positions of the rows of the manifest that say that it does not have the block."""
    rows, wanted = stream.blocks.rows, set(volume_ids)
    missing = {}
    for position, volume_id in enumerate(stream.placement):
        if volume_id in wanted:
            at = np.flatnonzero((rows["holders"] >> np.uint32(position)) & np.uint32(1) == 0)
            if len(at):
                missing[volume_id] = at
    return missing
