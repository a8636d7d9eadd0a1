"""Cuts batches of any size into frames, and joins small ones, with each row copied at most three times.

Batches below SMALL_ROW_COUNT rows are only collected; SMALL_ROW_COUNT of them become one part, and parts become a
frame. Two levels are enough, because a frame has at most SMALL_ROW_COUNT squared rows.
"""

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.block.format import FRAME_ROW_COUNT_MAX, FRAME_SIZE_TARGET
from storage_core.block.sizing import stored_ends

SMALL_ROW_COUNT = 256
assert SMALL_ROW_COUNT**2 >= FRAME_ROW_COUNT_MAX


class FrameAssembler:
    """Batches in, frames out, in order. Holds less than one frame and SMALL_ROW_COUNT small batches."""

    def __init__(self, frame_row_count: int = FRAME_ROW_COUNT_MAX) -> None:
        self._frame_row_count = frame_row_count
        self._small: list[pa.RecordBatch] = []
        self._small_size = 0
        self._parts: list[pa.RecordBatch] = []
        # Invariant: 0 <= _part_rows <= _frame_row_count; _part_size <= FRAME_SIZE_TARGET unless it is one row.
        self._part_rows = 0
        self._part_size = 0

    @property
    def size(self) -> int:
        """Return the stored bytes of the rows that are held (an estimate)."""
        return self._part_size + self._small_size

    def add(self, batch: pa.RecordBatch, size: int) -> list[pa.RecordBatch]:
        """Take a batch of at least one row and `size` bytes; return the frames that are now complete, often none."""
        if batch.num_rows < SMALL_ROW_COUNT:
            self._small.append(batch)
            self._small_size += size
            if len(self._small) < SMALL_ROW_COUNT and self._small_size < FRAME_SIZE_TARGET:
                return []
            return self._cut(self._take_small())
        frames = self._cut(self._take_small()) if self._small else []
        return frames + self._cut(batch)

    def finish(self) -> list[pa.RecordBatch]:
        """Return what is left."""
        frames = self._cut(self._take_small()) if self._small else []
        return frames + ([self._take_parts()] if self._parts else [])

    def _cut(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        ends = stored_ends(batch)
        frames: list[pa.RecordBatch] = []
        start, done = 0, 0  # rows of the batch, and their bytes, that are in parts
        while start < batch.num_rows:
            fits = int(np.searchsorted(ends, done + FRAME_SIZE_TARGET - self._part_size, side="right"))
            end = min(fits, start + self._frame_row_count - self._part_rows)
            if end == start and not self._parts:
                end = start + 1  # one row beyond the target is a frame of its own
            if end > start:
                self._parts.append(batch.slice(start, end - start))
                self._part_rows += end - start
                self._part_size += int(ends[end - 1]) - done
                start, done = end, int(ends[end - 1])
            if start < batch.num_rows:
                frames.append(self._take_parts())
        if frames and self._parts and done > 2 * FRAME_SIZE_TARGET:
            # The rest of a large batch is copied: a slice would keep all of it in memory.
            self._parts = [part.take(buffers.of_numbers(np.arange(part.num_rows))) for part in self._parts]
        return frames

    def _take_small(self) -> pa.RecordBatch:
        batch = pa.concat_batches(self._small)
        self._small, self._small_size = [], 0
        return batch

    def _take_parts(self) -> pa.RecordBatch:
        frame = self._parts[0] if len(self._parts) == 1 else pa.concat_batches(self._parts)
        self._parts, self._part_rows, self._part_size = [], 0, 0
        return frame
