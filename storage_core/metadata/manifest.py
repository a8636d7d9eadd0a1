"""The manifest of a stream: its live blocks in order, one row a block, in one numpy table.

Tables are values: `append` returns a new one and the old one stays what it was, so readers keep theirs without a
lock. An append at the end of the newest table shares its buffer, which makes a stream's life of n appends cost O(n).
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any

import numpy as np

from storage_core.block.format import BlockSummary
from storage_core.errors import CorruptionError, UnsupportedVersionError

ROW_VERSION = 1  # of BLOCK_DTYPE
BLOCK_DTYPE = np.dtype(
    [
        ("block_id", "V16"),
        ("digest", "V16"),  # of the footer, which covers the frames
        ("first", "<i8"),  # sequence of relative 0
        ("span", "<i8"),  # sequences used: [first, first + span)
        ("row_count", "<i8"),
        ("file_size", "<i8"),  # bytes
        ("data_size", "<i8"),  # bytes of subjects, headers and data
        ("time_min_ns", "<i8"),
        ("time_max_ns", "<i8"),
        ("committed_ns", "<i8"),  # time in the entry that named the block
        ("msg_id_count", "<i4"),
        ("subject_set", "<i4"),  # which of the stream's subject sets; 0: not summarised, ask the footer
        ("holders", "<u4"),  # bit i: volume i of the placement took the block
    ]
)
EXPIRY_DTYPE = np.dtype(
    [
        ("first", "<i8"),  # a sequence of the block that messages with a TTL are in
        ("due_ns", "<i8"),  # the first of them expires then at the earliest
    ]
)
PENDING_DELETE_DTYPE = np.dtype(
    [
        ("incarnation", "V16"),
        ("block_id", "V16"),
        ("dropped_ns", "<i8"),  # time in the entry that removed it; the file is unlinked deleted_block_retention later
    ]
)
ARCHIVE_DTYPE = np.dtype(
    [
        ("incarnation", "V16"),
        ("block_id", "V16"),
        ("stream", "V16"),  # incarnation of the stream that it went from
        ("first", "<i8"),  # the sequences that it had: [first, end)
        ("end", "<i8"),
    ]
)
_ROW_HEADER = Struct("<H")  # version of the rows that follow
ROW_COUNT_MAX = 20_000_000  # bounds what a damaged snapshot can make us allocate


def row_of(summary: BlockSummary, first: int, span: int, holders: int = 0, committed_ns: int = 0) -> tuple[Any, ...]:
    """Return a new block as a row of BLOCK_DTYPE; of its subjects nothing is said yet."""
    return (
        summary.block_id, summary.digest, first, span, summary.row_count, summary.file_size, summary.data_size,
        summary.time_min_ns, summary.time_max_ns, committed_ns, summary.msg_id_count, 0, holders,
    )  # fmt: skip


class Table:
    """Rows `[start, stop)` of a growing buffer. Rows below `stop` are never written again."""

    __slots__ = ("_buffer", "_start", "_stop", "_used")

    def __init__(self, buffer: np.ndarray, start: int, stop: int, used: list[int]) -> None:
        self._buffer, self._start, self._stop = buffer, start, stop
        self._used = used  # one cell, shared by all tables on this buffer: rows written so far

    @classmethod
    def of(cls, rows: np.ndarray) -> "Table":
        return cls(rows, 0, len(rows), [len(rows)])

    @classmethod
    def empty(cls, dtype: np.dtype) -> "Table":
        return cls.of(np.empty(0, dtype))

    @property
    def rows(self) -> np.ndarray:
        """Return the rows as a read-only view."""
        view = self._buffer[self._start : self._stop]
        view.flags.writeable = False
        return view

    def __len__(self) -> int:
        return self._stop - self._start

    def append(self, rows: np.ndarray) -> "Table":
        """Return a table with these rows at its end."""
        if not len(rows):
            return self
        stop = self._stop + len(rows)
        if self._used[0] == self._stop and stop <= len(self._buffer):
            self._buffer[self._stop : stop] = rows
            self._used[0] = stop
            return Table(self._buffer, self._start, stop, self._used)
        count = len(self)
        grown = np.empty(max(16, 2 * (count + len(rows))), self._buffer.dtype)
        grown[:count] = self.rows
        grown[count : count + len(rows)] = rows
        return Table(grown, 0, count + len(rows), [count + len(rows)])

    def appended_since(self, before: "Table") -> np.ndarray | None:
        """Return the rows that came at the end since `before`; None if more has changed, or that cannot be seen."""
        if before._buffer is not self._buffer or before._start > self._start or before._stop > self._stop:
            return None
        rows = self._buffer[max(before._stop, self._start) : self._stop]
        rows.flags.writeable = False
        return rows

    def drop_head(self, count: int) -> "Table":
        """Return a table without its first `count` rows."""
        assert 0 <= count <= len(self), (count, len(self))
        return Table(self._buffer, self._start + count, self._stop, self._used)

    def keep(self, mask: np.ndarray) -> "Table":
        """Return a table with the rows where `mask` is true."""
        return Table.of(self.rows[mask])

    def encode(self) -> bytes:
        return self.rows.tobytes()


def decode_table(encoded: bytes, dtype: np.dtype, label: str) -> Table:
    """Return the table; raises CorruptionError if the bytes are no whole number of rows."""
    if len(encoded) % dtype.itemsize or len(encoded) > ROW_COUNT_MAX * dtype.itemsize:
        raise CorruptionError(f"{label} has {len(encoded)} bytes, which are no rows of {dtype.itemsize}")
    return Table.of(np.frombuffer(encoded, dtype))


def encode_blocks(rows: np.ndarray) -> bytes:
    """Return rows of BLOCK_DTYPE behind their version: as commands, snapshots, the journal and imports have them.

    No rows are no bytes.
    """
    return _ROW_HEADER.pack(ROW_VERSION) + rows.tobytes() if len(rows) else b""


def decode_blocks(encoded: bytes, label: str) -> np.ndarray:
    """Return the rows, read-only. Raises CorruptionError, UnsupportedVersionError.

    A later version adds fields at the end, and says what they are in rows of this one.
    """
    if not encoded:
        return np.empty(0, BLOCK_DTYPE)
    if len(encoded) < _ROW_HEADER.size:
        raise CorruptionError(f"{label} has {len(encoded)} bytes, which do not say of which version they are")
    (version,) = _ROW_HEADER.unpack_from(encoded)
    if version > ROW_VERSION:
        raise UnsupportedVersionError(f"{label} has rows of version {version}, this program reads {ROW_VERSION}")
    if version != ROW_VERSION:
        raise CorruptionError(f"{label} has rows of version {version}, which there is not")
    return decode_table(encoded[_ROW_HEADER.size :], BLOCK_DTYPE, label).rows


def ids(values: Sequence[bytes]) -> np.ndarray:
    """Return 16-byte ids as a column."""
    return np.frombuffer(b"".join(values), "V16")


def id_numbers(column: np.ndarray) -> np.ndarray:
    """Return a column of ids, which are random, as numbers: numpy compares whole ids one by one."""
    return column.copy().view("<u8")[::2]


def equals_any(column: np.ndarray, wanted: Iterable[bytes]) -> np.ndarray:
    """Return, row by row, whether a column of 16-byte ids has one of these few."""
    halves = column.copy().view("<u8").reshape(-1, 2)  # numpy compares whole ids one by one
    equal = np.zeros(len(column), bool)
    for block_id in wanted:
        equal |= (halves == np.frombuffer(block_id, "<u8")).all(axis=1)
    return equal


def pairs(rows: np.ndarray) -> np.ndarray:
    """Return (incarnation, block id) of each row as one key of 32 bytes."""
    packed = np.empty(len(rows), np.dtype([("incarnation", "V16"), ("block_id", "V16")]))
    packed["incarnation"], packed["block_id"] = rows["incarnation"], rows["block_id"]
    return packed.view("V32")
