"""What Arrow would believe and must not be told: each impossible metadata is refused before Arrow sees it."""

import os
from collections.abc import Callable
from struct import pack_into, unpack_from
from typing import Any

import pyarrow as pa
import pytest

from storage_core.block.format import PAYLOAD_SIZE_MAX
from storage_core.block.payload import (
    LEAD_SIZE,
    check_payload,
    compressed_payload,
    decode_payload,
    decode_sizes,
    encode_payload,
)
from storage_core.block.sizing import message_sizes
from storage_core.schema import FRAME_SCHEMA

CODECS = ("none", "lz4", "zstd")


def in_memory(payload: bytes) -> pa.Buffer:
    buffer = pa.allocate_buffer(LEAD_SIZE + len(payload))
    memoryview(buffer).cast("B")[LEAD_SIZE:] = payload
    return buffer


def place_of(payload: bytes, what: str) -> int:
    """Return where the first node or buffer of the record batch lies, found by its count and first value."""
    count = {"nodes": 7, "buffers": 17}[what]
    body_start = 8 + unpack_from("<i", payload, 4)[0]
    for at in range(8, body_start - count * 16, 4):
        if unpack_from("<I", payload, at) == (count,):
            first, second = unpack_from("<qq", payload, at + 4)
            if (first, second) == ((0, 0) if what == "buffers" else (6, 0)):
                return at + 4
    raise AssertionError(f"no {what} in the metadata")


def encoded(batch: pa.RecordBatch, codec: str) -> pa.Buffer:
    """Return the payload, compressed however few rows it has."""
    return encode_payload(batch, codec) if codec == "none" else compressed_payload(batch, codec)


@pytest.fixture(scope="module")
def payload(blocks: Any) -> Callable[[str], bytearray]:
    return lambda codec: bytearray(encoded(blocks.batch(6), codec).to_pybytes())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("fields", [[0, 1, 2, 3], [1], [0, 3], [2]], ids=str)
def test_columns_that_are_asked_for_come_back(blocks: Any, codec: str, fields: list[int]) -> None:
    batch = blocks.batch(6)
    payload = encoded(batch, codec).to_pybytes()
    check_payload(memoryview(payload), 6, codec)
    found = decode_payload(in_memory(payload), fields)
    assert found.equals(batch.select(fields))


def test_uncompressed_columns_point_into_the_buffer_that_was_read(blocks: Any) -> None:
    buffer = in_memory(encode_payload(blocks.batch(6), "none").to_pybytes())
    found = decode_payload(buffer, [3])
    data = found.column(0).buffers()[2]
    assert buffer.address <= data.address < buffer.address + buffer.size


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("row", "value"), [(0, 5), (0, 2**40), (0, -1), (3, -1), (3, 2**40), (5, PAYLOAD_SIZE_MAX + 1)]
)
def test_impossible_node_is_refused(payload: Callable[[str], bytearray], codec: str, row: int, value: int) -> None:
    forged = payload(codec)
    pack_into("<q", forged, place_of(forged, "nodes") + 16 * row, value)
    with pytest.raises(ValueError, match="Arrow field node"):
        check_payload(memoryview(forged), 6, codec)


def test_nulls_in_subject_and_time_are_refused(payload: Callable[[str], bytearray]) -> None:
    for column, name in ((0, "subject"), (1, "timestamp_ns")):
        forged = payload("none")
        pack_into("<q", forged, place_of(forged, "nodes") + 16 * column + 8, 1)
        with pytest.raises(ValueError, match=f"1 nulls in {name}"):
            check_payload(memoryview(forged), 6, "none")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("buffer", [1, 4, 16])
@pytest.mark.parametrize(("field", "value"), [(0, -8), (0, 2**40), (0, 2**63 - 8), (0, 4), (8, -1), (8, 2**62)])
def test_impossible_buffer_is_refused(
    payload: Callable[[str], bytearray], codec: str, buffer: int, field: int, value: int
) -> None:
    forged = payload(codec)
    pack_into("<q", forged, place_of(forged, "buffers") + 16 * buffer + field, value)
    with pytest.raises(ValueError, match="Arrow buffer"):
        check_payload(memoryview(forged), 6, codec)


def test_buffers_that_share_bytes_are_refused(payload: Callable[[str], bytearray]) -> None:
    forged = payload("none")
    at = place_of(forged, "buffers")
    forged[at + 32 : at + 48] = forged[at + 16 : at + 32]
    with pytest.raises(ValueError, match="Arrow buffer 2"):
        check_payload(memoryview(forged), 6, "none")


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("declared", [PAYLOAD_SIZE_MAX + 1, 2**63 - 1, -2])
def test_declared_size_is_bounded_before_anything_is_decompressed(
    payload: Callable[[str], bytearray], codec: str, declared: int
) -> None:
    forged = payload(codec)
    body = 8 + unpack_from("<i", forged, 4)[0]
    (offset, size) = unpack_from("<qq", forged, place_of(forged, "buffers") + 16)
    assert size > 8
    pack_into("<q", forged, body + offset, declared)
    with pytest.raises(ValueError, match=f"declares {declared} bytes"):
        check_payload(memoryview(forged), 6, codec)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_sum_of_declared_sizes_is_bounded(payload: Callable[[str], bytearray], codec: str) -> None:
    forged = payload(codec)
    body, table = 8 + unpack_from("<i", forged, 4)[0], place_of(forged, "buffers")
    for buffer in range(17):
        (offset, size) = unpack_from("<qq", forged, table + 16 * buffer)
        if size:
            pack_into("<q", forged, body + offset, PAYLOAD_SIZE_MAX // 2)
    with pytest.raises(ValueError, match=f"at most {PAYLOAD_SIZE_MAX} are allowed"):
        check_payload(memoryview(forged), 6, codec)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_payload_that_compression_does_not_shrink_is_left_as_it_is(codec: str) -> None:
    def batch(data: bytes, count: int) -> pa.RecordBatch:
        row = {"subject": "s", "timestamp_ns": 1}
        return pa.RecordBatch.from_pylist([row | {"data": data}] * count, schema=FRAME_SCHEMA)

    for left in (batch(b"x" * 100, 5), batch(os.urandom(300_000), 1)):
        payload = encode_payload(left, codec)
        assert payload.equals(encode_payload(left, "none"))
        check_payload(memoryview(payload), left.num_rows, codec)
        assert decode_payload(in_memory(payload.to_pybytes()), [0, 1, 2, 3]).equals(left)
    assert encode_payload(batch(b"x" * 100, 500), codec).size < 6_000


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_payload_of_another_codec_is_refused(payload: Callable[[str], bytearray], codec: str) -> None:
    for other in set(CODECS) - {codec}:
        with pytest.raises(ValueError, match=f"compressed with {codec}, the block with {other}"):
            check_payload(memoryview(payload(codec)), 6, other)


def test_rows_other_than_the_frame_says_are_refused(payload: Callable[[str], bytearray]) -> None:
    with pytest.raises(ValueError, match="6 rows, the frame has 7"):
        check_payload(memoryview(payload("none")), 7, "none")


def test_message_of_another_kind_is_refused(blocks: Any) -> None:
    schema = blocks.batch(1).schema.serialize().to_pybytes()
    with pytest.raises(ValueError, match="no Arrow record batch"):
        check_payload(memoryview(schema), 1, "none")


def test_record_batch_of_another_schema_is_refused() -> None:
    other = pa.RecordBatch.from_pydict({"a": [1, 2]}).serialize().to_pybytes()
    with pytest.raises(ValueError, match="1 Arrow field nodes"):
        check_payload(memoryview(other), 2, "none")


def test_every_cut_is_refused(payload: Callable[[str], bytearray]) -> None:
    whole = payload("none")
    for size in range(len(whole)):
        with pytest.raises(ValueError, match="Arrow"):
            check_payload(memoryview(whole[:size]), 6, "none")


@pytest.mark.parametrize("codec", CODECS)
def test_sizes_are_those_of_the_messages(codec: str) -> None:
    rows = [{"subject": "s" * (at % 5 + 1), "timestamp_ns": at, "data": b"\x00" * at or None} for at in range(40)]
    batch = pa.RecordBatch.from_pylist(rows, schema=FRAME_SCHEMA)
    payload = memoryview(encoded(batch, codec).to_pybytes())
    check_payload(payload, len(rows), codec)
    sizes = decode_sizes(payload, len(rows))
    assert sizes is not None and sizes.tolist() == message_sizes(batch).tolist() == [
        at % 5 + 1 + at for at in range(40)
    ]


def test_bytes_under_a_null_are_not_counted() -> None:
    data = pa.array([b"abc", b"de", b"f"])
    data = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(bytes([0b101])), *data.buffers()[1:]], 1)
    columns = [
        pa.array(["s"] * 3),
        pa.array([0] * 3, pa.int64()),
        pa.nulls(3, FRAME_SCHEMA.field("headers").type),
        data,
    ]
    payload = memoryview(encoded(pa.RecordBatch.from_arrays(columns, schema=FRAME_SCHEMA), "none").to_pybytes())
    sizes = decode_sizes(payload, 3)
    assert sizes is not None and sizes.tolist() == [4, 1, 2]


def test_messages_with_headers_are_measured_by_reading_them(blocks: Any) -> None:
    batch = blocks.batch(6)
    assert batch.column("headers").null_count < 6
    assert decode_sizes(memoryview(encoded(batch, "zstd").to_pybytes()), 6) is None
