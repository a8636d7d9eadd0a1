"""Payload of a frame of messages: one record batch as an encapsulated Arrow IPC message.

Arrow's decoder is fast and trusting: it takes buffer places and uncompressed sizes from the flatbuffer in front of
the body. So that flatbuffer is read here first, with bounds, and must describe a record batch of schema.FRAME_SCHEMA
whose buffers follow one another inside the body and do not grow beyond PAYLOAD_SIZE_MAX. What this does not prove
(offsets inside the buffers, UTF-8) is proved by the digest of the manifest or by a full validation: the reader knows.

    offset  size  field
    0       4     continuation      0xFFFFFFFF
    4       4     metadata_size     i32, a multiple of 8
    8       ...   metadata          flatbuffer: Message { version, header: RecordBatch, bodyLength }
            ...   body              buffers, each on a multiple of 8

Source: Arrow columnar format 1.5, "Encapsulated message format"; Message.fbs; flatbuffers internals.
"""

from struct import Struct
from struct import error as StructError

import numpy as np
import pyarrow as pa

from storage_core.block.format import ALIGNMENT, FRAME_HEADER_SIZE, PAYLOAD_SIZE_MAX, aligned
from storage_core.schema import FRAME_SCHEMA

METADATA_SIZE_MAX = 4096
COMPRESSED_FROM_SIZE = 4096  # bytes; 17 buffers cost 0.1 ms, and a file takes whole pages of the disk
SHRUNK_TO_MAX = 15 / 16  # of the uncompressed size
_PREAMBLE = Struct("<Ii")
_I64 = Struct("<q")
_NODE = Struct("<qq")  # length, null count; a buffer looks the same: offset, length
_CONTINUATION = 0xFFFFFFFF
_VERSION_V5 = 4
_HEADER_RECORD_BATCH = 3
_ARROW_CODECS = {0: "lz4", 1: "zstd"}
_NODE_COUNT = 7  # four columns, and below headers: the struct, its key, its value
_BUFFER_COUNT = 17
_ROOT_NODES = (0, 1, 2, 6)
_NOT_NULL_NODES = (0, 1)  # subject and timestamp_ns
_HEADERS_NODE, _DATA_NODE = 2, 6
_SUBJECT_OFFSETS, _DATA_VALIDITY, _DATA_OFFSETS = 1, 14, 15  # positions of buffers

# In front of a payload in memory is what makes it an Arrow stream, so that it is decoded where it was read.
_SCHEMA_MESSAGE = FRAME_SCHEMA.serialize().to_pybytes()
LEAD_SIZE = aligned(max(len(_SCHEMA_MESSAGE), FRAME_HEADER_SIZE))
assert LEAD_SIZE % ALIGNMENT == 0


def encode_payload(batch: pa.RecordBatch, codec: str) -> pa.Buffer:
    """Return the batch (columns as schema.FRAME_SCHEMA) as the payload of a frame.

    It is left uncompressed where little is saved by it: each reader would pay for unpacking it.
    """
    size = pa.ipc.get_record_batch_size(batch)
    if codec == "none" or size < COMPRESSED_FROM_SIZE:
        return batch.serialize()
    packed = compressed_payload(batch, codec)
    return packed if packed.size <= size * SHRUNK_TO_MAX else batch.serialize()


def compressed_payload(batch: pa.RecordBatch, codec: str) -> pa.Buffer:
    """Return the same, compressed whatever comes of it."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    with pa.ipc.new_stream(sink, FRAME_SCHEMA, options=options) as stream:
        stream.write_batch(batch)
    written = sink.getvalue()
    # Between the schema message in front and the end-of-stream mark behind (8 bytes) lies the record batch.
    return written.slice(len(_SCHEMA_MESSAGE), written.size - len(_SCHEMA_MESSAGE) - _PREAMBLE.size)


def decode_payload(buffer: pa.Buffer, fields: list[int]) -> pa.RecordBatch:
    """Return the columns `fields` (ascending positions in FRAME_SCHEMA) of the payload from LEAD_SIZE on.

    The first LEAD_SIZE bytes of the buffer, which must be writable, are overwritten. Columns point into the buffer
    unless they were compressed. Only for payloads that passed `check_payload`. Raises pa.ArrowInvalid or OSError
    (a compressed buffer that is damaged).
    """
    start = LEAD_SIZE - len(_SCHEMA_MESSAGE)
    memoryview(buffer).cast("B")[start:LEAD_SIZE] = _SCHEMA_MESSAGE
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    with pa.ipc.open_stream(pa.BufferReader(buffer.slice(start)), options=options) as stream:
        return stream.read_next_batch()


def decode_sizes(payload: memoryview, row_count: int) -> np.ndarray | None:
    """Return the message bytes of each row, int32, as `sizing.message_sizes` does; None if a row has headers.

    Only offsets are unpacked, not what they lead to. Only for payloads that passed `check_payload` and whose offsets
    are known to be good. Raises ValueError or OSError (a compressed buffer that is damaged).
    """
    body_start, record = _record_batch(payload)
    nodes, places = record.pairs(1), record.pairs(2)
    if nodes[_HEADERS_NODE][1] < row_count:
        return None
    compression = record.table(3)
    codec = None if compression is None else pa.Codec(_ARROW_CODECS[compression.scalar(0, "<b")])

    def unpacked(position: int, size: int) -> np.ndarray:
        offset, stored_size = places[position]
        buffer = payload[body_start + offset : body_start + offset + stored_size]
        if codec is not None:
            (stated,) = _I64.unpack_from(buffer)
            buffer = buffer[_I64.size :]
            if stated != -1:
                buffer = memoryview(codec.decompress(buffer, decompressed_size=stated))
        if len(buffer) < size:
            raise ValueError(f"Arrow buffer {position} has {len(buffer)} bytes, {size} are needed")
        return np.frombuffer(buffer[:size], np.uint8)

    def lengths(position: int) -> np.ndarray:
        values: np.ndarray = np.diff(unpacked(position, 4 * (row_count + 1)).view("<i4"))
        return values

    in_data = lengths(_DATA_OFFSETS)
    if nodes[_DATA_NODE][1]:
        is_there = np.unpackbits(unpacked(_DATA_VALIDITY, -(-row_count // 8)), count=row_count, bitorder="little")
        in_data *= is_there
    sizes: np.ndarray = lengths(_SUBJECT_OFFSETS) + in_data
    return sizes


def check_payload(payload: memoryview, row_count: int, codec: str) -> None:
    """Check everything that Arrow will believe when it places and decompresses the buffers of the payload.

    Raises ValueError saying what is impossible.
    """
    try:
        _check(payload, row_count, codec)
    except StructError as error:
        raise ValueError(f"Arrow metadata points outside of itself: {error}") from error


def _record_batch(payload: memoryview) -> tuple[int, "_Table"]:
    """Return where the body begins, and what the metadata says of the record batch in it."""
    continuation, metadata_size = _PREAMBLE.unpack_from(payload)
    if continuation != _CONTINUATION or not 0 < metadata_size <= METADATA_SIZE_MAX or metadata_size % 8:
        raise ValueError(f"no Arrow message: {continuation:#x}, metadata of {metadata_size} bytes")
    body_start = _PREAMBLE.size + metadata_size
    body_size = len(payload) - body_start
    message = _Table.root(bytes(payload[_PREAMBLE.size : body_start]))
    if message.scalar(0, "<h") != _VERSION_V5 or message.scalar(1, "<B") != _HEADER_RECORD_BATCH:
        raise ValueError("no Arrow record batch of version V5")
    if message.scalar(3, "<q") != body_size:
        raise ValueError(f"Arrow body of {message.scalar(3, '<q')} bytes, the payload has {body_size}")
    record = message.table(2)
    if record is None:
        raise ValueError("Arrow message without a header")
    return body_start, record


def _check(payload: memoryview, row_count: int, codec: str) -> None:
    body_start, record = _record_batch(payload)
    if record.scalar(0, "<q") != row_count:
        raise ValueError(f"{record.scalar(0, '<q')} rows, the frame has {row_count}")
    _check_nodes(record.pairs(1), row_count)
    compression = record.table(3)
    stated = "none" if compression is None else _ARROW_CODECS.get(compression.scalar(0, "<b"), "unknown")
    if stated not in (codec, "none") or (compression is not None and compression.scalar(1, "<b") != 0):
        raise ValueError(f"Arrow buffers are compressed with {stated}, the block with {codec}")
    _check_buffers(record.pairs(2), payload[body_start:], compressed=compression is not None)


def _check_nodes(nodes: list[tuple[int, int]], row_count: int) -> None:
    if len(nodes) != _NODE_COUNT:
        raise ValueError(f"{len(nodes)} Arrow field nodes, the schema has {_NODE_COUNT}")
    for position, (length, null_count) in enumerate(nodes):
        if not 0 <= null_count <= length <= PAYLOAD_SIZE_MAX:
            raise ValueError(f"Arrow field node {position} has {length} values, {null_count} of them null")
        if position in _ROOT_NODES and length != row_count:
            raise ValueError(f"Arrow field node {position} has {length} values in {row_count} rows")
        if position in _NOT_NULL_NODES and null_count:
            raise ValueError(f"{null_count} nulls in {FRAME_SCHEMA.field(position).name}")


def _check_buffers(buffers: list[tuple[int, int]], body: memoryview, compressed: bool) -> None:
    if len(buffers) != _BUFFER_COUNT:
        raise ValueError(f"{len(buffers)} Arrow buffers, the schema has {_BUFFER_COUNT}")
    end, raw_size = 0, 0
    for position, (offset, size) in enumerate(buffers):
        if size < 0 or offset < end or offset % 8 or offset + size > len(body):
            raise ValueError(f"Arrow buffer {position} lies at [{offset}, {offset + size}) of {len(body)} bytes")
        end = offset + size
        if compressed and size:
            (stated,) = _I64.unpack_from(body[offset:end])
            if not -1 <= stated <= PAYLOAD_SIZE_MAX:
                raise ValueError(f"Arrow buffer {position} declares {stated} bytes")
            raw_size += size if stated == -1 else stated
    if raw_size > PAYLOAD_SIZE_MAX:
        raise ValueError(f"Arrow buffers declare {raw_size} bytes, at most {PAYLOAD_SIZE_MAX} are allowed")


class _Table:
    """A table in a flatbuffer. Every access is bounded: struct.error or ValueError if it leaves the bytes."""

    __slots__ = ("_data", "_at", "_vtable", "_vtable_size")

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._vtable = at - self._unpack("<i", at)
        self._vtable_size = self._unpack("<H", self._vtable)

    @classmethod
    def root(cls, data: bytes) -> "_Table":
        return cls(data, Struct("<I").unpack_from(data)[0])

    def scalar(self, slot: int, kind: str) -> int:
        """Return a number; a field that is absent has the default 0."""
        at = self._field(slot)
        return self._unpack(kind, at) if at else 0

    def table(self, slot: int) -> "_Table | None":
        at = self._field(slot)
        return _Table(self._data, at + self._unpack("<I", at)) if at else None

    def pairs(self, slot: int) -> list[tuple[int, int]]:
        """Return a vector of structs of two i64."""
        at = self._field(slot)
        if not at:
            return []
        start = at + self._unpack("<I", at)
        count = self._unpack("<I", start)
        end = start + 4 + count * _NODE.size
        if end > len(self._data):
            raise ValueError(f"Arrow metadata has a vector of {count} pairs in {len(self._data)} bytes")
        return list(_NODE.iter_unpack(self._data[start + 4 : end]))

    def _field(self, slot: int) -> int:
        entry = 4 + 2 * slot
        if entry + 2 > self._vtable_size:
            return 0
        place = self._unpack("<H", self._vtable + entry)
        return self._at + place if place else 0

    def _unpack(self, kind: str, at: int) -> int:
        if at < 0:
            raise ValueError("Arrow metadata points in front of itself")
        value: int = Struct(kind).unpack_from(self._data, at)[0]
        return value
