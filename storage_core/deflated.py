"""Rows behind their count, deflated: row_count (u32), then a zlib stream of so many rows of a known size."""

import zlib
from struct import Struct

from storage_core.errors import CorruptionError

_HEADER = Struct("<I")
ROW_COUNT_MAX = 1 << 24  # bounds what a damaged count can make us allocate


def deflate(row_count: int, rows: bytes) -> bytes:
    return _HEADER.pack(row_count) + zlib.compress(rows, 1)


def inflate(encoded: bytes | memoryview, row_size: int, label: str) -> tuple[int, bytes]:
    """Return the row count and the rows; raises CorruptionError. Never inflates beyond what the count declares."""
    if len(encoded) < _HEADER.size:
        raise CorruptionError(f"{label} of {len(encoded)} bytes is too short")
    (row_count,) = _HEADER.unpack_from(encoded)
    if row_count > ROW_COUNT_MAX:
        raise CorruptionError(f"{label} declares {row_count} rows, at most {ROW_COUNT_MAX} are allowed")
    stream = zlib.decompressobj()
    try:
        rows = stream.decompress(bytes(encoded[_HEADER.size :]), row_count * row_size + 1)
    except zlib.error as error:
        raise CorruptionError(f"{label} does not inflate: {error}") from error
    if len(rows) != row_count * row_size or not stream.eof or stream.unused_data:
        raise CorruptionError(f"{label} of {row_count} rows inflates to {len(rows)} bytes")
    return row_count, rows
