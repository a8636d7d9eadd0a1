"""Sizes of messages in a batch, from Arrow's offsets alone: nothing here looks at one message at a time.

Two measures. The *message size* is what limits and statistics count: bytes of the subject, of header keys and values,
and of the data. The *stored size* adds what Arrow needs around them, and is what frames are cut by; bytes that lie
under a null count for it, because Arrow writes them too.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core import buffers

ROW_OVERHEAD_SIZE = 24  # bytes a row: timestamp, offsets of subject, headers and data, validity
HEADER_OVERHEAD_SIZE = 12  # bytes a header: offsets of key and value, validity


def message_size(batch: pa.RecordBatch) -> int:
    """Return the message bytes of all rows (columns as schema.FRAME_SCHEMA)."""
    subject, _, headers, data = batch.columns
    size = _values_size(subject) + _values_size(data)
    if headers.null_count < len(headers):
        key, value = headers.flatten().flatten()
        size += _values_size(key) + _values_size(value)
    return size


def message_sizes(batch: pa.RecordBatch) -> np.ndarray:
    """Return the message bytes of each row, int64 (columns subject, headers and data as in schema.FRAME_SCHEMA)."""
    subject, headers, data = (batch.column(name) for name in ("subject", "headers", "data"))
    sizes: np.ndarray = _lengths(subject) + _lengths(data)
    if headers.null_count < len(headers):
        key, value = headers.flatten().flatten()
        ends = np.concatenate(([0], np.cumsum(_lengths(key) + _lengths(value))))
        rows = np.concatenate(([0], np.cumsum(_lengths(headers))))
        sizes += np.diff(ends[rows])
    return sizes


def stored_ends(batch: pa.RecordBatch) -> np.ndarray:
    """Return, row by row, the stored bytes of the batch up to and including that row, int64 (an estimate)."""
    subject, _, headers, data = batch.columns
    count = batch.num_rows
    ends = np.arange(1, count + 1, dtype=np.int64) * ROW_OVERHEAD_SIZE
    for column in (subject, data):
        offsets = _offsets(column)
        ends += offsets[1:]
        ends -= offsets[0]
    if headers.null_count < count:
        rows = _offsets(headers)
        key, value = headers.values.field(0), headers.values.field(1)
        sizes = _offsets(key).astype(np.int64) + _offsets(value)
        sizes += np.arange(len(sizes)) * HEADER_OVERHEAD_SIZE
        ends += sizes[rows[1:]] - sizes[rows[0]]
    return ends


def compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with a headers column without any value in its smallest form.

    `pa.nulls` gives children with long buffers behind them, which Arrow would write out with every frame.
    """
    headers, count = batch.column(2), batch.num_rows
    if headers.null_count < count:
        return batch
    validity, offsets = pa.py_buffer(bytes(-(-count // 8))), pa.py_buffer(bytes(4 * (count + 1)))
    empty = pa.nulls(0, headers.type.value_type)
    nulls = pa.Array.from_buffers(headers.type, count, [validity, offsets], count, children=[empty])
    return batch.set_column(2, batch.schema.field(2), nulls)


def _offsets(column: pa.Array) -> np.ndarray:
    """Return the offsets of a string, binary or list column: one more than it has rows, int32."""
    if not len(column):
        return np.zeros(1, np.int32)
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)


def _values_size(column: pa.Array) -> int:
    if column.null_count:
        return pc.sum(pc.binary_length(column), min_count=0).as_py()  # type: ignore[no-any-return]
    offsets = _offsets(column)
    return int(offsets[-1]) - int(offsets[0])


def _lengths(column: pa.Array) -> np.ndarray:
    lengths = np.diff(_offsets(column)).astype(np.int64)
    if column.null_count:
        lengths[buffers.nulls(column)] = 0
    return lengths
