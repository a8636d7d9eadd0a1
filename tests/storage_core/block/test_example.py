"""The example of docs/formats/block.md is the golden block, and its bytes say what the page says."""

import hashlib
import re
from pathlib import Path
from struct import unpack_from

import msgpack
from crc32c import crc32c

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "formats" / "block.md").read_text()


def example() -> bytes:
    """Put the file together from the page; lines of zeros are not on it."""
    section = DOCUMENT.split("## 11. Example")[1]
    data = bytearray()
    for place, line in re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+)$", section, re.MULTILINE):
        data += bytes(int(place, 16) - len(data)) + bytes.fromhex(line)
    return bytes(data)


def test_page_and_golden_file_are_the_same_bytes() -> None:
    assert example() == (ROOT / "tests" / "data" / "blocks" / "example.blk").read_bytes()


def test_bytes_say_what_the_page_says() -> None:
    data = example()
    assert (len(data), data[:8], unpack_from("<I", data, 8)) == (1301, b"JSBLOCK\0", (1,))
    assert unpack_from("<I", data, 12) == (crc32c(data[:12]),)
    assert unpack_from("<II", data, 80) == (1, 1)
    assert unpack_from("<I", data, 124) == (crc32c(data[:124]),)

    assert data[0x80:0x84] == b"JSFR"
    header_crc, payload_crc, size, rows, first_row, kind, position, low, high = unpack_from("<IIIIIIIqq", data, 0x84)
    assert (size, rows, first_row, kind, position) == (656, 2, 0, 1, 0)
    assert (low, high) == (1_795_262_400_000_000_001, 1_795_262_400_000_001_501)
    assert header_crc == crc32c(data[0x88:0xC0])
    assert payload_crc == crc32c(data[0xC0 : 0xC0 + 656])
    assert unpack_from("<Ii", data, 0xC0) == (0xFFFFFFFF, 472)
    assert not any(data[0xC0 + 656 : 0x380])

    assert unpack_from("<IIII", data, 0x38C) == (20, 1, 0, 2)
    assert unpack_from("<QQI", data, 0x3C0)[2] == 0

    offset, footer_size, footer_crc, trailer_crc = unpack_from("<IIII", data, len(data) - 24)
    footer = data[offset : offset + footer_size]
    assert (offset, footer_size, footer_crc) == (0x400, 0xFD, crc32c(footer))
    assert trailer_crc == crc32c(data[-24:-12])
    assert data[-8:] == b"JSBLKEND"
    sections = msgpack.unpackb(footer)
    assert list(sections) == re.findall(
        r"^\| `(\w+)` \| (?:that of|bytes|for|the|u32|u64|filter)", DOCUMENT, re.MULTILINE
    )
    assert unpack_from("<4q", sections["runs"]) == (0, 2, 1, 3)
    assert (sections["subjects"], sections["data_size"]) == (b"orders.euorders.us", 37)
    assert unpack_from("<2I", sections["subject_ends"]) == (9, 18)
    assert hashlib.blake2b(footer, digest_size=16).hexdigest() in DOCUMENT
