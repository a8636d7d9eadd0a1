"""Frame table: what the footer says of every frame of a block, as columns.

Stored are kind, payload size, payload CRC, row count and time range; where a frame lies and which row it begins with
follow from those before it. Source: docs/formats/block.md, sections 4 and 5.
"""

from dataclasses import dataclass

import numpy as np

from storage_core.block.format import (
    ALIGNMENT,
    FRAME_COUNT_MAX,
    FRAME_HEADER_SIZE,
    FRAME_ROW_COUNT_MAX,
    HEADER_SIZE,
    KIND_MESSAGE_IDS,
    KIND_MESSAGES,
    PAYLOAD_SIZE_MAX,
    ROW_COUNT_MAX,
    FrameHeader,
)

MESSAGE_ID_SIZE = 20  # bytes of one entry in a frame of message ids: a hash and a row
_STORED = ("<u4", "<u4", "<u4", "<u4", "<i8", "<i8")
_ENTRY_SIZE = sum(np.dtype(kind).itemsize for kind in _STORED)


@dataclass(frozen=True, slots=True)
class FrameTable:
    """One entry a frame in each array, all int64."""

    kinds: np.ndarray
    payload_sizes: np.ndarray
    payload_crcs: np.ndarray
    row_counts: np.ndarray
    time_min_ns: np.ndarray
    time_max_ns: np.ndarray
    offsets: np.ndarray  # bytes, of the frame header in the file; one more entry: the end of the last frame
    first_rows: np.ndarray  # row in the block of the frame's first message; of message ids: that of their messages
    messages: np.ndarray  # positions of the frames of messages, ascending

    @classmethod
    def from_stored(cls, columns: list[np.ndarray]) -> "FrameTable":
        """Return the table of the six stored columns."""
        kinds, sizes, crcs, rows, time_min, time_max = (column.astype(np.int64) for column in columns)
        extents = -(-(sizes + FRAME_HEADER_SIZE) // ALIGNMENT) * ALIGNMENT
        offsets = HEADER_SIZE + np.concatenate(([0], np.cumsum(extents)))
        is_messages = kinds == KIND_MESSAGES
        message_rows = np.where(is_messages, rows, 0)
        before = np.cumsum(message_rows) - message_rows
        first_rows = np.where(is_messages, before, _shifted(before))
        messages = np.flatnonzero(is_messages)
        return cls(kinds, sizes, crcs, rows, time_min, time_max, offsets, first_rows, messages)

    @property
    def count(self) -> int:
        return len(self.kinds)

    @property
    def end_offset(self) -> int:
        return int(self.offsets[-1])

    @property
    def row_count(self) -> int:
        return int(self.row_counts[self.messages].sum())

    @property
    def msg_id_count(self) -> int:
        return int(self.row_counts.sum()) - self.row_count

    def header(self, position: int, block_id: bytes) -> FrameHeader:
        """Return the header that the frame must have, byte for byte."""
        return FrameHeader(
            int(self.payload_crcs[position]),
            int(self.payload_sizes[position]),
            int(self.row_counts[position]),
            int(self.first_rows[position]),
            int(self.kinds[position]),
            position,
            int(self.time_min_ns[position]),
            int(self.time_max_ns[position]),
            block_id,
        )

    def encode(self) -> bytes:
        columns = (
            self.kinds,
            self.payload_sizes,
            self.payload_crcs,
            self.row_counts,
            self.time_min_ns,
            self.time_max_ns,
        )
        return b"".join(column.astype(kind).tobytes() for column, kind in zip(columns, _STORED, strict=True))


def _shifted(values: np.ndarray) -> np.ndarray:
    """Return for each frame the value of the frame before it, 0 for the first one."""
    return np.concatenate((np.zeros(1, np.int64), values[:-1]))


def decode_frame_table(data: bytes) -> FrameTable:
    """Return the table; raises ValueError saying what is impossible in it."""
    count, remainder = divmod(len(data), _ENTRY_SIZE)
    if remainder or not 1 <= count <= FRAME_COUNT_MAX:
        raise ValueError(f"{len(data)} bytes are no entries of {_ENTRY_SIZE} bytes, 1 to {FRAME_COUNT_MAX} of them")
    columns, start = [], 0
    for kind in _STORED:
        columns.append(np.frombuffer(data, kind, count, start))
        start += count * np.dtype(kind).itemsize
    table = FrameTable.from_stored(columns)
    _check(table)
    return table


def _check(table: FrameTable) -> None:
    is_ids = table.kinds == KIND_MESSAGE_IDS
    after_ids = np.concatenate(([True], is_ids[:-1]))  # also: at the beginning, where no message ids belong
    possible = {
        "kinds": (table.kinds == KIND_MESSAGES) | (is_ids & ~after_ids),
        "payload sizes": (table.payload_sizes >= 1) & (table.payload_sizes <= PAYLOAD_SIZE_MAX),
        "row counts": (table.row_counts >= 1) & (table.row_counts <= FRAME_ROW_COUNT_MAX),
        "message ids": ~is_ids
        | (
            (table.payload_sizes == table.row_counts * MESSAGE_ID_SIZE)
            & (table.row_counts <= _shifted(table.row_counts))
            & (table.time_min_ns == 0)
            & (table.time_max_ns == 0)
        ),
        "time ranges": table.time_min_ns <= table.time_max_ns,
    }
    for what, good in possible.items():
        if not good.all():
            raise ValueError(f"impossible {what} in frame {int(np.flatnonzero(~good)[0])}")
    if table.row_count > ROW_COUNT_MAX:
        raise ValueError(f"{table.row_count} rows, at most {ROW_COUNT_MAX} are allowed")
