"""Arrays over the bytes of a foreign file: ranges gathered, texts, and runs of a bounded size."""

import numpy as np
import pyarrow as pa

from storage_core import buffers

BATCH_SIZE = 3 << 20  # bytes of records in a batch
BATCH_ROW_COUNT = 65_536


def gather(block: pa.Buffer, starts: np.ndarray, sizes: np.ndarray) -> pa.BinaryArray:
    """Return the byte ranges of a block as one array. Ranges must be free of overlap.

    The ranges and what lies between them are laid over the block as one array without a copy, of which Arrow then
    takes every second element: a memcpy a range.
    """
    if not len(starts):
        return buffers.of_bytes(())
    if (starts[1:] < starts[:-1]).any():  # out of order after damage: gathered in order, then put as asked
        order = np.argsort(starts, kind="stable")
        return gather(block, starts[order], sizes[order]).take(buffers.of_numbers(np.argsort(order, kind="stable")))
    offsets = np.empty(2 * len(starts) + 1, np.int32)
    offsets[0:-1:2], offsets[1::2] = starts, starts + sizes
    offsets[-1] = offsets[-2]
    laid = pa.Array.from_buffers(pa.binary(), 2 * len(starts), [None, pa.py_buffer(offsets), block])
    return laid.take(buffers.of_numbers(np.arange(0, 2 * len(starts), 2, dtype=np.int64)))


def elements(block: np.ndarray, dtype: str) -> np.ndarray:
    """Return a view whose element i is read from byte i on, so that any unaligned place can be indexed."""
    size = np.dtype(dtype).itemsize
    return np.ndarray((max(len(block) - size + 1, 0),), dtype, block.data, 0, (1,))


def runs_by_size(sizes: np.ndarray, size_max: int) -> list[tuple[int, int]]:
    """Cut `range(len(sizes))` into runs of at most `size_max` bytes, each of at least one element."""
    totals = np.cumsum(sizes)
    runs, first, done = [], 0, 0
    while first < len(sizes):
        end = max(first + 1, int(np.searchsorted(totals, done + size_max, side="right")))
        runs.append((first, end))
        first, done = end, int(totals[end - 1])
    return runs


def chain(successors: np.ndarray) -> np.ndarray:
    """Return the rows that follow from the first one, in order; a successor beyond the last row ends the chain.

    Once the n-th successor of each row is known, n more rows follow from n at once.
    """
    count = len(successors)
    if not count:
        return successors
    rows, jumps = np.zeros(1, np.int64), np.append(successors, count)
    while rows[-1] < count:
        rows = np.concatenate((rows, jumps[rows]))
        jumps = jumps[jumps]
    return np.asarray(rows[: np.searchsorted(rows, count)])


def to_strings(raw: pa.BinaryArray) -> pa.StringArray:
    """Return the bytes as strings; what is no UTF-8 (servers let it pass) shows as `\\xNN`."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return buffers.of_texts([each.decode("utf-8", "backslashreplace") for each in raw.to_pylist()])


def to_batch(arrays: list[pa.Array], schema: pa.Schema, row_count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else rows_alone(row_count)


def rows_alone(count: int) -> pa.RecordBatch:
    """Return rows without columns: a count needs no more."""
    return pa.RecordBatch.from_struct_array(pa.nulls(count, pa.struct([])).fill_null({}))
