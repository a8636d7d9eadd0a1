"""Block format 1: limits, and the fixed structures: file header, frame header, trailer. The footer is in footer.py.

    header     HEADER_SIZE bytes: who wrote it for what, and the codec
    frames     each FRAME_HEADER_SIZE bytes, payload, zeros up to a multiple of ALIGNMENT
    footer     msgpack
    trailer    TRAILER_SIZE bytes: where the footer is

Only the header is decoded from its bytes. Frame headers and the trailer follow from the footer, so readers encode what
should be there and compare. Source: docs/formats/block.md, which has the byte tables.
"""

import hashlib
from dataclasses import dataclass
from struct import Struct

from storage_core.block.damage import Defect
from storage_core.checksum import crc32c
from storage_core.errors import CorruptionError, TruncatedRecordError, UnsupportedVersionError
from storage_core.file_kinds import BLOCK

MAGIC = b"JSBLOCK\x00"
VERSION = 1
FRAME_MAGIC = b"JSFR"
TRAILER_MAGIC = b"JSBLKEND"

PROLOGUE = Struct("<8sI")  # magic, version; its CRC follows, in every version
HEADER = Struct("<8sII16s16s16s16sII36x")  # ... up to its CRC
FRAME_FIELDS = Struct("<IIIIIIqq16s")  # the frame header from byte 8 on
TRAILER_FIELDS = Struct("<III")
_CRC = Struct("<I")
HEADER_SIZE = HEADER.size + _CRC.size
FRAME_HEADER_SIZE = 4 + _CRC.size + FRAME_FIELDS.size
TRAILER_SIZE = TRAILER_FIELDS.size + _CRC.size + len(TRAILER_MAGIC)
assert (HEADER_SIZE, FRAME_HEADER_SIZE, TRAILER_SIZE) == (128, 64, 24)

ALIGNMENT = 64  # bytes; frames and footer begin on it
ID_SIZE = 16
DIGEST_SIZE = 16

# Limits. Each bounds what a damaged or forged length can make a reader do; docs/formats/block.md says why these.
BLOCK_SIZE_MAX = BLOCK.size_max
PAYLOAD_SIZE_MAX = 128 << 20
FRAME_SIZE_TARGET = 4 << 20
FRAME_ROW_COUNT_MAX = 65_536
MESSAGE_SIZE_MAX = 64 << 20
ROW_SIZE_MAX = 96 << 20
ROW_COUNT_MAX = 1 << 22
FRAME_COUNT_MAX = 65_536
FOOTER_SIZE_MAX = 80 << 20
SUMMARY_SUBJECT_COUNT_MAX = 64
SUMMARY_TEXT_SIZE_MAX = 4096

CODECS = {"none": 1, "lz4": 2, "zstd": 3}
_CODEC_NAMES = {number: name for name, number in CODECS.items()}
SCHEMA_ID = 1  # schema.FRAME_SCHEMA
KIND_MESSAGES = 1
KIND_MESSAGE_IDS = 2


@dataclass(frozen=True, slots=True)
class BlockIdentity:
    """Whose block this is: 16 random bytes each."""

    store_id: bytes
    incarnation: bytes
    block_id: bytes
    transaction_id: bytes


@dataclass(frozen=True, slots=True)
class BlockExpectation:
    """What the manifest says of a block; a file that disagrees is not that block."""

    store_id: bytes
    incarnation: bytes
    block_id: bytes
    digest: bytes
    file_size: int


@dataclass(frozen=True, slots=True)
class BlockSummary:
    """What the manifest keeps of a block: plain values, picklable."""

    block_id: bytes
    digest: bytes  # of the footer, which fixes everything else
    file_size: int
    row_count: int
    span: int  # relative sequences used, [0, span); == row_count unless there are holes
    data_size: int  # bytes of subjects, header keys and values, and data of all rows
    time_min_ns: int
    time_max_ns: int
    subjects: tuple[str, ...] | None  # sorted and distinct; None if there are more than the manifest should hold
    msg_id_count: int


@dataclass(frozen=True, slots=True)
class BlockHeader:
    identity: BlockIdentity
    codec: str  # a key of CODECS

    def encode(self) -> bytes:
        ids = self.identity
        names = (ids.store_id, ids.incarnation, ids.block_id, ids.transaction_id)
        assert all(len(name) == ID_SIZE for name in names), ids
        prologue = PROLOGUE.pack(MAGIC, VERSION)
        fields = HEADER.pack(MAGIC, VERSION, crc32c(prologue), *names, SCHEMA_ID, CODECS[self.codec])
        return fields + _CRC.pack(crc32c(fields))


@dataclass(frozen=True, slots=True)
class FrameHeader:
    payload_crc32c: int
    payload_size: int
    row_count: int
    first_row: int  # row in the block; of message ids: that of their messages
    kind: int
    position: int
    time_min_ns: int
    time_max_ns: int
    block_id: bytes

    def encode(self) -> bytes:
        assert 0 < self.payload_size <= PAYLOAD_SIZE_MAX, self
        assert 0 < self.row_count <= FRAME_ROW_COUNT_MAX, self
        fields = FRAME_FIELDS.pack(
            self.payload_crc32c,
            self.payload_size,
            self.row_count,
            self.first_row,
            self.kind,
            self.position,
            self.time_min_ns,
            self.time_max_ns,
            self.block_id,
        )
        return FRAME_MAGIC + _CRC.pack(crc32c(fields)) + fields


@dataclass(frozen=True, slots=True)
class Trailer:
    footer_offset: int
    footer_size: int
    footer_crc32c: int

    def encode(self) -> bytes:
        fields = TRAILER_FIELDS.pack(self.footer_offset, self.footer_size, self.footer_crc32c)
        return fields + _CRC.pack(crc32c(fields)) + TRAILER_MAGIC


def aligned(size: int) -> int:
    """Return `size` rounded up to the next multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def digest_of(footer: bytes | memoryview) -> bytes:
    """Return what the manifest keeps of a footer, and through it of the block."""
    return hashlib.blake2b(footer, digest_size=DIGEST_SIZE).digest()


def decode_header(data: bytes, file: str) -> BlockHeader:
    """Return the header in the first HEADER_SIZE bytes of a block; whether it is the right block is not asked here.

    Raises TruncatedRecordError if there are fewer bytes, UnsupportedVersionError if another version is stated and
    its checksum holds, CorruptionError for everything else.
    """
    if len(data) < HEADER_SIZE:
        raise TruncatedRecordError(Defect(file, 0, "header", f"{HEADER_SIZE} bytes", f"{len(data)} bytes"))
    magic, version, prologue_crc, *fields = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CorruptionError(Defect(file, 0, "magic", repr(MAGIC), repr(magic)))
    # The version is believed only with its own checksum: a flipped bit is damage, not a newer writer.
    _check_crc(file, 12, "prologue checksum", prologue_crc, data[: PROLOGUE.size])
    if version != VERSION:
        raise UnsupportedVersionError(Defect(file, 8, "block format version", str(VERSION), str(version)))
    (header_crc,) = _CRC.unpack_from(data, HEADER.size)
    _check_crc(file, HEADER.size, "header checksum", header_crc, data[: HEADER.size])
    *ids, schema_id, codec = fields
    if schema_id != SCHEMA_ID:
        raise CorruptionError(Defect(file, 80, "schema id", str(SCHEMA_ID), str(schema_id)))
    if codec not in _CODEC_NAMES:
        raise CorruptionError(Defect(file, 84, "codec", f"one of {sorted(_CODEC_NAMES)}", str(codec)))
    header = BlockHeader(BlockIdentity(*ids), _CODEC_NAMES[codec])
    if header.encode() != data[:HEADER_SIZE]:
        raise CorruptionError(Defect(file, 88, "reserved bytes", "zeros", data[88 : HEADER.size].hex()))
    return header


def decode_trailer(data: bytes, file_size: int, file: str) -> Trailer:
    """Return the trailer in the last TRAILER_SIZE bytes of a file; its places are inside the file.

    Raises TruncatedRecordError if the end is no trailer (the file was cut, or never finished), CorruptionError if it is
    a damaged one or does not fit the size of the file.
    """
    start = file_size - TRAILER_SIZE
    magic = data[-len(TRAILER_MAGIC) :]
    if len(data) != TRAILER_SIZE or magic != TRAILER_MAGIC:
        raise TruncatedRecordError(Defect(file, start + 16, "trailer magic", repr(TRAILER_MAGIC), repr(magic)))
    (trailer_crc,) = _CRC.unpack_from(data, TRAILER_FIELDS.size)
    _check_crc(file, start + TRAILER_FIELDS.size, "trailer checksum", trailer_crc, data[: TRAILER_FIELDS.size])
    trailer = Trailer(*TRAILER_FIELDS.unpack_from(data))
    if trailer.footer_offset < HEADER_SIZE or trailer.footer_offset + trailer.footer_size != start:
        stated = f"footer at {trailer.footer_offset} with {trailer.footer_size} bytes"
        raise CorruptionError(Defect(file, start, "trailer", f"a footer that ends at {start}", stated))
    if trailer.footer_size > FOOTER_SIZE_MAX:
        raise CorruptionError(
            Defect(file, start + 4, "footer size", f"at most {FOOTER_SIZE_MAX}", str(trailer.footer_size))
        )
    return trailer


def _check_crc(file: str, offset_bytes: int, what: str, stated: int, covered: bytes) -> None:
    actual = crc32c(covered)
    if actual != stated:
        raise CorruptionError(Defect(file, offset_bytes, what, f"{stated:#010x}", f"{actual:#010x}"))
