"""What the footer says of the messages, compared with the messages: for blocks that nobody of ours has vouched for.

A digest proves that a block is the one that the manifest names. Whoever writes the manifest, too, may name a block
whose footer lies: readers plan by it, skip frames by its subjects and times, and count by it.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.block.footer import Footer
from storage_core.block.sizing import message_size
from storage_core.block.subject_summary import SubjectCounter


class FooterCheck:
    """Takes the frames of messages in order, each valid Arrow of schema.FRAME_SCHEMA, and then says what is wrong."""

    def __init__(self, footer: Footer) -> None:
        self._footer = footer
        self._subjects, self._data_size = SubjectCounter(), 0

    def add(self, position: int, batch: pa.RecordBatch) -> None:
        """Take a frame. Raises ValueError saying what in it is not as the frame table says, or is no message."""
        frames = self._footer.frames
        stated = int(frames.time_min_ns[position]), int(frames.time_max_ns[position])
        times = pc.min_max(batch.column(1)).as_py()
        if (times["min"], times["max"]) != stated:
            raise ValueError(f"times from {times['min']} to {times['max']}, the footer has {stated[0]} to {stated[1]}")
        headers = batch.column(2)
        if headers.null_count < len(headers):
            pairs = headers.flatten()
            if pairs.null_count or pairs.field("key").null_count:
                raise ValueError("a header without a key")
        self._subjects.add_frame(batch.column(0))
        self._data_size += message_size(batch)

    def finish(self) -> str:
        """Return what the footer says of all messages and is not so; empty if all is."""
        stated, counted = self._footer.subjects, self._subjects.finish()
        if self._data_size != self._footer.data_size:
            return f"data_size: expected {self._data_size}, found {self._footer.data_size}"
        same = stated.names.equals(counted.names) and stated.bloom == counted.bloom
        if not (same and np.array_equal(stated.counts, counted.counts)):
            return f"subjects: expected {len(counted.names)} with their counts, found {len(stated.names)} that differ"
        if not np.array_equal(stated.frame_bits, counted.frame_bits):
            return "frame_subjects: they are not those of the frames"
        return ""
