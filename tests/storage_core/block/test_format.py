"""The fixed structures, field by field, against the byte tables of docs/formats/block.md."""

import copy
import pickle
import re
from pathlib import Path
from struct import pack_into, unpack_from
from typing import Any

import pytest
from crc32c import crc32c

from storage_core.block import bloom, hashing, payload, subject_summary
from storage_core.block import format as block_format
from storage_core.block.damage import Defect
from storage_core.block.format import (
    HEADER_SIZE,
    BlockHeader,
    BlockIdentity,
    FrameHeader,
    Trailer,
    aligned,
    decode_header,
    decode_trailer,
)
from storage_core.errors import CorruptionError, TruncatedRecordError, UnsupportedVersionError

IDENTITY = BlockIdentity(b"s" * 16, b"i" * 16, b"b" * 16, b"t" * 16)
DOCUMENT = Path(__file__).parents[3] / "docs" / "formats" / "block.md"


def reseal(header: bytearray) -> bytes:
    pack_into("<I", header, 12, crc32c(bytes(header[:12])))
    pack_into("<I", header, 124, crc32c(bytes(header[:124])))
    return bytes(header)


@pytest.mark.parametrize(("codec", "number"), [("none", 1), ("lz4", 2), ("zstd", 3)])
def test_header_fields_lie_where_the_document_says(codec: str, number: int) -> None:
    data = BlockHeader(IDENTITY, codec).encode()
    assert data[:12] == b"JSBLOCK\0" + (1).to_bytes(4, "little")
    assert unpack_from("<I", data, 12) == (crc32c(data[:12]),)
    assert data[16:80] == b"s" * 16 + b"i" * 16 + b"b" * 16 + b"t" * 16
    assert unpack_from("<II", data, 80) == (1, number)
    assert data[88:124] == bytes(36)
    assert unpack_from("<I", data, 124) == (crc32c(data[:124]),)
    assert decode_header(data, "f") == BlockHeader(IDENTITY, codec)


def test_frame_header_fields_lie_where_the_document_says() -> None:
    data = FrameHeader(9, 8, 7, 6, 1, 4, -3, 2, b"b" * 16).encode()
    assert data[:4] == b"JSFR"
    assert unpack_from("<I", data, 4) == (crc32c(data[8:]),)
    assert unpack_from("<IIIIIIqq", data, 8) == (9, 8, 7, 6, 1, 4, -3, 2)
    assert data[48:] == b"b" * 16


def test_trailer_fields_lie_where_the_document_says() -> None:
    data = Trailer(1000, 30, 5).encode()
    assert unpack_from("<III", data) == (1000, 30, 5)
    assert unpack_from("<I", data, 12) == (crc32c(data[:12]),)
    assert data[16:] == b"JSBLKEND"
    assert decode_trailer(data, 1054, "f") == Trailer(1000, 30, 5)


def test_version_is_believed_only_with_its_checksum() -> None:
    newer = bytearray(BlockHeader(IDENTITY, "none").encode())
    newer[8] = 2
    with pytest.raises(CorruptionError, match="prologue checksum"):
        decode_header(bytes(newer), "f")
    pack_into("<I", newer, 12, crc32c(bytes(newer[:12])))
    with pytest.raises(UnsupportedVersionError, match=r"f: offset_bytes 8: block format version: expected 1, found 2"):
        decode_header(bytes(newer), "f")


@pytest.mark.parametrize(
    ("place", "value", "what"),
    [(0, 0x41, "magic"), (80, 2, "schema id"), (84, 0, "codec"), (84, 4, "codec"), (90, 1, "reserved bytes")],
)
def test_impossible_header_with_right_checksums_is_refused(place: int, value: int, what: str) -> None:
    header = bytearray(BlockHeader(IDENTITY, "none").encode())
    header[place] = value
    with pytest.raises(CorruptionError, match=what):
        decode_header(reseal(header), "f")


def test_short_header_is_truncated() -> None:
    header = BlockHeader(IDENTITY, "none").encode()
    for size in range(HEADER_SIZE):
        with pytest.raises(TruncatedRecordError, match=f"found {size} bytes"):
            decode_header(header[:size], "f")


@pytest.mark.parametrize(
    ("trailer", "size"),
    [(Trailer(1000, 30, 5), 1055), (Trailer(1001, 30, 5), 1054), (Trailer(100, 930, 5), 1054)],
    ids=["file longer", "footer later", "footer inside the header"],
)
def test_trailer_that_does_not_fit_the_file_is_refused(trailer: Trailer, size: int) -> None:
    with pytest.raises(CorruptionError, match="trailer"):
        decode_trailer(trailer.encode(), size, "f")


def test_footer_beyond_its_limit_is_refused_before_it_is_read() -> None:
    size = block_format.FOOTER_SIZE_MAX + 1
    with pytest.raises(CorruptionError, match="footer size"):
        decode_trailer(Trailer(1000, size, 5).encode(), 1000 + size + 24, "f")


def test_aligned() -> None:
    assert [aligned(size) for size in (0, 1, 63, 64, 65)] == [0, 64, 64, 64, 128]


def test_errors_keep_their_numbers_through_pickling() -> None:
    defect = Defect("/a/b.blk", 12, "prologue checksum", "1", "2")
    error = CorruptionError(defect)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert again.args == (defect,)
        assert str(again) == "/a/b.blk: offset_bytes 12: prologue checksum: expected 1, found 2"


def test_limits_of_the_document_are_those_of_the_code() -> None:
    constants: dict[str, Any] = {}
    for module in (block_format, bloom, hashing, payload, subject_summary):
        constants |= vars(module)
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([0-9,]+)(?: (KiB|MiB|bytes))? \|", DOCUMENT.read_text(), re.MULTILINE)
    scales = {"KiB": 1 << 10, "MiB": 1 << 20}
    stated = {name: int(number.replace(",", "")) * scales.get(unit, 1) for name, number, unit in rows}
    assert len(stated) == 17
    assert stated == {name: constants[name] for name in stated}
