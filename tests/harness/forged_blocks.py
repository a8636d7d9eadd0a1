"""Blocks as a hostile writer makes them: changed, with all checksums right again."""

from struct import Struct
from typing import Any

import msgpack
import numpy as np
from crc32c import crc32c

from storage_core.block.format import FRAME_HEADER_SIZE, HEADER_SIZE, TRAILER_SIZE, Trailer
from storage_core.block.frame_table import FrameTable


class Forger:
    """Rewrites a block so that all checksums are right again, as a hostile writer would."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        footer_offset, footer_size, _ = Struct("<III").unpack_from(data, len(data) - TRAILER_SIZE)
        self.sections: dict[str, Any] = msgpack.unpackb(data[footer_offset : footer_offset + footer_size])
        self.block_id = bytes(data[48:64])
        count = len(self.sections["frames"]) // 32
        self.columns = [
            np.frombuffer(self.sections["frames"], kind, count, start * count).copy()
            for kind, start in (("<u4", 0), ("<u4", 4), ("<u4", 8), ("<u4", 12), ("<i8", 16), ("<i8", 24))
        ]
        self.payloads = []
        for offset, size in zip(self.table.offsets.tolist(), self.columns[1].tolist(), strict=False):
            start = offset + FRAME_HEADER_SIZE
            self.payloads.append(bytearray(data[start : start + size]))

    @property
    def table(self) -> FrameTable:
        return FrameTable.from_stored(self.columns)

    def seal(self, footer: bytes | None = None) -> bytes:
        """Return the block with its payloads, columns and sections as they are now; `footer` replaces the last two."""
        for position, payload in enumerate(self.payloads):
            self.columns[1][position], self.columns[2][position] = len(payload), crc32c(payload)
        table = self.table
        out = bytearray(self.data[:HEADER_SIZE])
        for position, payload in enumerate(self.payloads):
            header = table.header(position, self.block_id).encode() if payload else bytes(64)
            frame = header + payload
            out += frame + bytes(-len(frame) % 64)
        if footer is None:
            self.sections["frames"] = table.encode()
            footer = msgpack.packb(self.sections)
        return bytes(out + footer + Trailer(len(out), len(footer), crc32c(footer)).encode())
