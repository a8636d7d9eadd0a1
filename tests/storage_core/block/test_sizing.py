"""Sizes taken from offsets against sizes taken message by message."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from storage_core.block.sizing import (
    HEADER_OVERHEAD_SIZE,
    ROW_OVERHEAD_SIZE,
    compact,
    message_size,
    message_sizes,
    stored_ends,
)
from storage_core.schema import FRAME_SCHEMA, HEADERS_TYPE

binary = st.binary(max_size=9)
header = st.fixed_dictionaries({"key": st.text(max_size=4), "value": st.none() | binary})
message = st.fixed_dictionaries(
    {
        "subject": st.text("ab.\u20ac", min_size=1, max_size=5),
        "timestamp_ns": st.integers(-5, 5),
        "headers": st.none() | st.lists(header, max_size=3),
        "data": st.none() | binary,
    }
)


def size_of(one: dict[str, Any]) -> int:
    headers = sum(len(each["key"].encode()) + len(each["value"] or b"") for each in one["headers"] or [])
    return len(one["subject"].encode()) + headers + len(one["data"] or b"")


@given(st.lists(message, min_size=1, max_size=12), st.integers(0, 4), st.integers(0, 4))
def test_sizes_equal_a_count_message_by_message(messages: list[dict[str, Any]], front: int, back: int) -> None:
    whole = pa.RecordBatch.from_pylist(messages, schema=FRAME_SCHEMA)
    first, end = min(front, len(messages) - 1), max(len(messages) - back, min(front, len(messages) - 1) + 1)
    batch, taken = whole.slice(first, end - first), messages[first:end]
    sizes = [size_of(one) for one in taken]
    assert message_size(batch) == sum(sizes)
    assert message_sizes(batch).tolist() == sizes
    overhead = [ROW_OVERHEAD_SIZE + HEADER_OVERHEAD_SIZE * len(one["headers"] or []) for one in taken]
    assert stored_ends(batch).tolist() == np.cumsum(np.add(sizes, overhead)).tolist()


def test_bytes_under_a_null_are_stored_but_are_no_message_bytes() -> None:
    data = pa.array([b"seen", b"hidden"])
    masked = pa.BinaryArray.from_buffers(data.type, 2, [pa.py_buffer(b"\x01"), *data.buffers()[1:]])
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["s", "s"]), pa.array([1, 2]), pa.nulls(2, HEADERS_TYPE), masked], schema=FRAME_SCHEMA
    )
    assert batch.column(3).to_pylist() == [b"seen", None]
    assert message_sizes(batch).tolist() == [5, 1]
    assert message_size(batch) == 6
    assert int(stored_ends(batch)[-1]) == 2 * ROW_OVERHEAD_SIZE + 2 + 10


def test_compact_keeps_a_column_without_headers_small() -> None:
    nulls = pa.nulls(10_000, HEADERS_TYPE)
    columns = [pa.array(["s"] * 10_000), pa.array(range(10_000)), nulls, pa.nulls(10_000, pa.binary())]
    batch = pa.RecordBatch.from_arrays(columns, schema=FRAME_SCHEMA)
    one = compact(batch.slice(5_000, 1))
    assert one.equals(batch.slice(5_000, 1))
    assert one.serialize().size < 1_000
    assert pc.all(pc.is_null(compact(batch).column(2))).as_py()


def test_compact_leaves_headers_alone() -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"subject": "s", "timestamp_ns": 1, "headers": [{"key": "k", "value": b"v"}], "data": b""}],
        schema=FRAME_SCHEMA,
    )
    assert compact(batch) is batch
