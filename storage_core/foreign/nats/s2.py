"""Decoder of the S2 streams in which JetStream keeps compressed blocks and backups.

A stream is chunks: type (u8), size (u24), body. 0xFF is the identifier `S2sTwO`; 0x00 (compressed) and 0x01 (stored)
begin with a masked CRC-32C of the uncompressed data; 0x80 to 0xFE may be passed over. A compressed body is the
uncompressed size as uvarint, then Snappy's tags with one extension: a copy with a one-byte offset of 0 repeats the
offset of the copy before. Chunks without that extension are plain Snappy, which Arrow decodes; the others are decoded
here, at about 15 MB/s of output.

Chunks do not depend on each other and the messages inside carry checksums of their own, so damage is not the end:
what a damaged chunk still yields is kept in its place and reported, and its messages are judged one by one.

Source: the format description of github.com/klauspost/compress/s2; the Snappy format and framing descriptions.
"""

from dataclasses import dataclass, field

import pyarrow as pa

from storage_core.checksum import crc32c
from storage_core.errors import CorruptionError
from storage_core.foreign.nats.cursor import Cursor

IDENTIFIER = b"S2sTwO"
CHUNK_DATA_MAX = 4 << 20  # bytes of uncompressed data in a chunk, the most that S2 allows
CHUNK_COUNT_MAX = 4096  # in a stream: the server's have a MiB each
TAG_COUNT_MAX = 2 << 20  # in a stream, of chunks that Arrow does not decode: a second or two. 8 MiB have fewer
DAMAGE_COUNT_MAX = 64  # places that are reported
_COMPRESSED, _STORED, _SKIPPABLE, _IDENTIFIER = 0x00, 0x01, 0x80, 0xFF
_CRC_SIZE = 4
_SNAPPY = pa.Codec("snappy")
_REPEAT_SIZES = {5: (1, 8), 6: (2, 260), 7: (3, 65540)}  # length code: (further bytes, what is added to them)


@dataclass(slots=True)
class Decompressed:
    """What a stream held, and where it was not as it should be."""

    data: bytearray
    damage: list[tuple[int, str]] = field(default_factory=list)  # (offset_bytes in the stream, reason)
    tags_left: int = TAG_COUNT_MAX


def decompress_stream(stream: memoryview, size: int) -> Decompressed:
    """Return the `size` bytes that the stream declares to hold; whatever is missing is zeros and reported.

    A stream that no server can have written is given up: what is left of it is reported as one piece.
    """
    out, at, chunk_count = Decompressed(bytearray()), 0, 0
    while at < len(stream):
        chunk_count += 1
        if chunk_count > CHUNK_COUNT_MAX or len(out.damage) >= DAMAGE_COUNT_MAX or out.tags_left <= 0:
            out.damage.append((at, f"given up with {len(stream) - at} bytes left: this is no stream of a server"))
            break
        kind, chunk_size = stream[at], int.from_bytes(stream[at + 1 : at + 4], "little")
        body = stream[at + 4 : at + 4 + chunk_size]
        if not chunk_size:
            out.damage.append((at, f"chunk of type {kind:#04x} and no length; {len(stream) - at} bytes are not read"))
            break
        if len(body) < chunk_size or at + 4 > len(stream):
            out.damage.append((at, f"chunk of {chunk_size} bytes, the stream has {len(stream) - at - 4} left"))
        if kind in (_COMPRESSED, _STORED):
            _add_chunk(out, at, kind, body, size)
        elif kind == _IDENTIFIER and bytes(body) != IDENTIFIER:
            out.damage.append((at, f"identifier {bytes(body[:8])!r} where {IDENTIFIER!r} should be"))
        elif kind < _SKIPPABLE:
            out.damage.append((at, f"chunk of unknown type {kind:#04x}"))
        at += 4 + chunk_size
    if len(out.data) != size:
        out.damage.append((len(stream), f"{len(out.data)} bytes decompressed, {size} declared"))
        out.data.extend(bytes(size - len(out.data)))
    return out


def _add_chunk(out: Decompressed, at: int, kind: int, body: memoryview, size: int) -> None:
    crc, packed = int.from_bytes(body[:_CRC_SIZE], "little"), bytes(body[_CRC_SIZE:])
    room = min(CHUNK_DATA_MAX, size - len(out.data))
    if kind == _STORED:
        data, problem = packed[:room], "" if len(packed) <= room else f"{len(packed)} bytes stored, room for {room}"
    else:
        data, problem = _decode_tolerantly(packed, room, out)
    if not problem and _masked_crc(data) != crc:
        problem = f"CRC-32C is {crc:08x}, the content has {_masked_crc(data):08x}"
    if problem:
        out.damage.append((at, problem))
    out.data += data


def _masked_crc(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _decode_tolerantly(packed: bytes, room: int, out: Decompressed) -> tuple[bytes, str]:
    """Return the data of a compressed chunk, padded with zeros after the first error, and what that was."""
    try:
        size, begin = declared_size(packed)
    except CorruptionError as error:
        return b"", str(error)
    if size > room:
        return b"", f"chunk declares {size} bytes, at most {room} can follow"
    try:
        return _SNAPPY.decompress(packed, decompressed_size=size, asbytes=True), ""
    except (OSError, pa.ArrowException):
        data, problem, tag_count = _decode_tags(packed, begin, size, out.tags_left)
        out.tags_left -= tag_count
    return bytes(data) + bytes(size - len(data)), problem


def declared_size(packed: bytes) -> tuple[int, int]:
    """Return the uncompressed size that a chunk's body begins with, and where its tags begin."""
    cursor = Cursor(packed, "S2 chunk")
    return cursor.uvarint(), cursor.at


def _decode_tags(packed: bytes, at: int, size: int, count_max: int) -> tuple[bytearray, str, int]:
    """Run up to `count_max` tags of a body; return what they gave, what was wrong with the one after, and how many."""
    out, end, offset = bytearray(), len(packed), 0
    from_bytes, count = int.from_bytes, 0
    while at < end:
        count += 1
        if count > count_max:
            return out, f"more than {TAG_COUNT_MAX} tags", count
        tag = packed[at]
        low, code = tag & 3, tag >> 2
        if low == 0:  # literal: bytes follow
            extra = max(0, code - 59)
            length = 1 + (from_bytes(packed[at + 1 : at + 1 + extra], "little") if extra else code)
            at += 1 + extra
            if at + length > end or len(out) + length > size:
                return out, f"literal of {length} bytes at byte {at} of the chunk does not fit", count
            out += packed[at : at + length]
            at += length
            continue
        if low == 1:
            new, length, at = code >> 3 << 8 | (packed[at + 1] if at + 1 < end else 0), 4 + (code & 7), at + 2
            if new:
                offset = new
            elif code & 7 in _REPEAT_SIZES:
                extra, base = _REPEAT_SIZES[code & 7]
                length, at = from_bytes(packed[at : at + extra], "little") + base, at + extra
        else:
            width = 2 if low == 2 else 4
            offset, length, at = from_bytes(packed[at + 1 : at + 1 + width], "little"), 1 + code, at + 1 + width
        have = len(out)
        if not 0 < offset <= have or have + length > size or at > end:
            return out, f"copy of {length} bytes from {offset} back at byte {at} of the chunk does not fit", count
        if length <= offset:
            out += out[have - offset : have - offset + length]
        else:
            out += (out[have - offset :] * (length // offset + 1))[:length]
    return out, "" if len(out) == size else f"chunk ends after {len(out)} of {size} bytes", count
