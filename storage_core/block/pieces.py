"""Neighbouring parts of a file, read in pieces: several small ones in one call, a large one by itself.

Plain reading of whole files is what a check of all their bytes is measured by. So a piece is looked at where it was
read, while the processor has it in its cache, and the memory that is read into is used again: fresh memory costs about
as much as what is read into it.
"""

import numpy as np

from storage_core.block.format import FRAME_SIZE_TARGET

PIECE_SIZE = FRAME_SIZE_TARGET + (1 << 20)  # bytes; a part that is larger is a piece of its own


class ReadMemory:
    """Room for one piece, for one reader at a time."""

    def __init__(self) -> None:
        self._room = bytearray()

    def room(self, size: int) -> memoryview:
        """Return room of this size; what it held is gone."""
        if len(self._room) < size:
            self._room = bytearray(max(size, PIECE_SIZE))
        return memoryview(self._room)[:size]

    def drop(self) -> None:
        """Use it no more: a call that is overdue may yet write there."""
        self._room = bytearray()


def pieces(offsets: np.ndarray) -> list[tuple[int, int]]:
    """Return which of the parts `[offsets[i], offsets[i + 1])` are read together, [first, end)."""
    made, first, bounds = [], 0, offsets.tolist()
    for at in range(2, len(bounds)):
        if bounds[at] - bounds[first] > PIECE_SIZE:
            made.append((first, at - 1))
            first = at - 1
    return [*made, (first, len(bounds) - 1)] if len(bounds) > 1 else []
