"""Arrow columns made of buffers, and buffers of columns.

pyarrow looks for pandas, and imports it where it is installed, when it makes an array or a scalar of Python's or
numpy's values, and when it makes numpy's arrays: 0.2 to 0.4 s of processor time in a new process of Spark's. None of
these functions does.
"""

from collections.abc import Collection

import numpy as np
import pyarrow as pa

# pyarrow's own way from a type to numpy's, `to_pandas_dtype`, looks for pandas as well, up to pyarrow 25.
_KINDS = {pa.from_numpy_dtype(kind): np.dtype(kind) for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")}


def of_numbers(values: np.ndarray, kind: pa.DataType | None = None) -> pa.Array:
    """Return numbers without nulls as a column of that type, else of their own; the memory is shared."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind or pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def of_bits(mask: np.ndarray) -> pa.BooleanArray:
    """Return an array of bool as a column."""
    bits = pa.py_buffer(np.packbits(mask, bitorder="little"))
    return pa.BooleanArray.from_buffers(pa.bool_(), len(mask), [None, bits])


def of_texts(texts: Collection[str]) -> pa.StringArray:
    return of_bytes([text.encode() for text in texts]).view(pa.string())


def of_bytes(values: Collection[bytes]) -> pa.BinaryArray:
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=ends[1:])
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


def repeated(text: str, row_count: int) -> pa.StringArray:
    """Return a column that has the same text in each row."""
    encoded = text.encode()
    ends = np.arange(row_count + 1, dtype=np.int32) * np.int32(len(encoded))
    return pa.StringArray.from_buffers(row_count, pa.py_buffer(ends), pa.py_buffer(encoded * row_count))


def constant(value: bool | int | str, kind: pa.DataType) -> pa.Scalar:
    """Return a value of a type of numbers, texts or truth, for Arrow's functions."""
    if isinstance(value, str):
        return of_texts([value]).cast(kind)[0]
    return (of_bits if isinstance(value, bool) else of_numbers)(np.array([value])).cast(kind)[0]


def numbers(column: pa.Array) -> np.ndarray:
    """Return a view of a column of whole numbers; what it holds where the column is null is undefined."""
    kind = _KINDS[column.type]
    if not len(column):
        return np.empty(0, kind)
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * kind.itemsize)


def mask(column: pa.BooleanArray) -> np.ndarray:
    """Return a column of bool without nulls as an array."""
    return _bits(column.buffers()[1], column) if len(column) else np.empty(0, bool)


def nulls(column: pa.Array) -> np.ndarray:
    """Return which rows are null, as an array of bool. Not for a column of the type null."""
    validity = column.buffers()[0] if column.null_count else None
    return np.zeros(len(column), bool) if validity is None else ~_bits(validity, column)


def _bits(buffer: pa.Buffer, column: pa.Array) -> np.ndarray:
    end = column.offset + len(column)
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8), count=end, bitorder="little")
    return bits[column.offset :].view(bool)
