"""What a reader has not read of a stream, counted from metadata: messages, bytes, blocks, and where so many end.

A reader of limited batches asks where its next one ends. All of it is done over the columns of the manifest and the
runs of removed sequences: nothing here touches one message, and no block is opened. Bytes within a block are in
proportion to its messages, since the manifest has one sum for each block.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from storage_core.metadata.state import StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.reading.slices import shown_counts


@dataclass(frozen=True)
class UnreadRange:
    """Sequences `[first, end)` of a stream that a reader has not read; only those that are shown count."""

    stream: StreamState
    first: int
    end: int

    @cached_property
    def _removed(self) -> SequenceSet:
        return self.stream.removed.clip(self._from, self.end)

    @property
    def _from(self) -> int:
        return min(self.end, max(self.first, self.stream.low_watermark))

    @cached_property
    def message_count(self) -> int:
        """Return how many messages are shown."""
        return self.end - self._from - len(self._removed)

    @cached_property
    def _blocks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return of each block that has messages for the reader: first sequence in it, message count, bytes."""
        rows = self.stream.blocks.rows[self.stream.blocks_in(self._from, self.end)]
        firsts = np.maximum(rows["first"], self._from)
        counts = shown_counts(firsts, np.minimum(rows["first"] + rows["span"], self.end), self._removed)
        sizes = rows["data_size"] * counts // np.maximum(1, rows["row_count"])
        keep = counts > 0
        return firsts[keep], counts[keep], sizes[keep]

    @property
    def block_count(self) -> int:
        return len(self._blocks[0])

    @property
    def byte_count(self) -> int:
        """Return the bytes of subjects, headers and data, about."""
        return int(self._blocks[2].sum())

    def end_of_messages(self, count: int) -> int:
        """Return where the first `count` messages end; `end` if there are no more than that."""
        if count >= self.message_count:
            return self.end
        gaps = self._removed.ends - self._removed.starts
        removed_counts = np.concatenate(([0], np.cumsum(gaps)))  # removed sequences before each run
        shown = self._removed.starts - self._from - removed_counts[:-1]  # messages before each run
        return self._from + count + int(removed_counts[int(np.searchsorted(shown, count, side="left"))])

    def end_of_bytes(self, size: int) -> int:
        """Return where so many bytes end, cut within a block where need be; at least one message is before it."""
        _, counts, sizes = self._blocks
        upto = np.cumsum(sizes)
        at = int(np.searchsorted(upto, size, side="right"))
        if at == len(upto):
            return self.end
        over = size - (int(upto[at - 1]) if at else 0)
        part = int(counts[at]) * over // max(1, int(sizes[at]))
        return self.end_of_messages(max(1, int(counts[:at].sum()) + part))

    def end_of_blocks(self, count: int) -> int:
        """Return where the first `count` blocks end, of which the first may have been read in part."""
        firsts, _, _ = self._blocks
        return self.end if count >= len(firsts) else int(firsts[count])
