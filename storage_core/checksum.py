"""Bytes that end with a checksum of their own: headers, pages, marks, small records.

    offset    size  field    type  meaning (integers little-endian)
    0         n     content
    end - 4   4     crc32c   u32   CRC-32C of all before it

What the content begins with (magic, version), and what a reader does where the checksum is bad, is for each format.
"""

from struct import Struct

from crc32c import crc32c

_CRC = Struct("<I")
CRC_SIZE = _CRC.size


def add_crc(content: bytes, size: int = 0) -> bytes:
    """Return the content and its checksum; `size`: with zeros between them, so many bytes in all."""
    content += bytes(max(0, size - CRC_SIZE - len(content)))
    return content + _CRC.pack(crc32c(content))


def crc_is_good(data: bytes) -> bool:
    """Return whether the last four bytes are the checksum of all before them."""
    return len(data) >= CRC_SIZE and bool(_CRC.unpack(data[-CRC_SIZE:])[0] == crc32c(data[:-CRC_SIZE]))
