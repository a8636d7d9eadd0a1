"""What the tests of the block format share: files in memory, small blocks, and a writer that lies."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c

from storage_core.block import (
    BlockExpectation,
    BlockIdentity,
    BlockReader,
    BlockSummary,
    BlockWriter,
    FrameRequest,
    msg_id_hashes,
)
from storage_core.block.format import FRAME_HEADER_SIZE, HEADER_SIZE, TRAILER_SIZE, Trailer
from storage_core.block.frame_table import FrameTable
from storage_core.schema import FRAME_SCHEMA, HEADERS_TYPE


class MemoryFile:
    """A file in memory; `synced` says how many bytes were there at the last fsync, -1 before it."""

    def __init__(self, data: bytes | bytearray = b"") -> None:
        self.path = Path("/memory/block.blk")
        self.data = data if isinstance(data, bytearray) else bytearray(data)
        self.synced = -1
        self.reads: list[tuple[int, int]] = []

    def read_at(self, offset_bytes: int, size: int) -> bytes:
        self.reads.append((offset_bytes, size))
        return bytes(self.data[offset_bytes : offset_bytes + size])

    def read_into(self, offset_bytes: int, buffer: memoryview) -> int:
        self.reads.append((offset_bytes, len(buffer)))
        part = self.data[offset_bytes : offset_bytes + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def write_at(self, offset_bytes: int, data: bytes | memoryview) -> None:
        assert offset_bytes == len(self.data), "a block is written front to back"
        self.data += memoryview(data).cast("B")

    def truncate(self, size: int) -> None:
        del self.data[size:]

    def sync(self) -> None:
        self.synced = len(self.data)

    def size(self) -> int:
        return len(self.data)

    def close(self) -> None: ...


@dataclass(frozen=True)
class Sealed:
    """A block in memory and what its writer said of it."""

    data: bytes
    summary: BlockSummary
    identity: BlockIdentity

    @property
    def expected(self) -> BlockExpectation:
        ids = self.identity
        return BlockExpectation(
            ids.store_id, ids.incarnation, ids.block_id, self.summary.digest, self.summary.file_size
        )

    def reader(self, vouched: bool = True) -> BlockReader:
        return BlockReader.open(MemoryFile(self.data), self.expected if vouched else None)

    def rows(self, **request: Any) -> list[dict[str, Any]]:
        """Return what a read with this request gives, as plain values."""
        return [row for batch in self.reader().read(FrameRequest(**request)) for row in batch.to_pylist()]


class Blocks:
    """Makes batches and blocks."""

    identity = BlockIdentity(*(bytes([number]) * 16 for number in (1, 2, 3, 4)))

    def batch(
        self,
        count: int,
        start: int = 0,
        subjects: int = 3,
        data: Callable[[int], bytes | None] = lambda number: b"data %d" % number,
    ) -> pa.RecordBatch:
        """Return messages `start` to `start + count`: headers on every second one, data that tells them apart."""
        numbers = range(start, start + count)
        headers = [[{"key": "n", "value": b"%d" % number}] if number % 2 else None for number in numbers]
        columns = [
            pa.array([f"s.{number % subjects}" for number in numbers], pa.string()),
            pa.array([1_000_000_000_000_000_000 + number * 1000 for number in numbers], pa.int64()),
            pa.array(headers, HEADERS_TYPE),
            pa.array([data(number) for number in numbers], pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=FRAME_SCHEMA)

    def plain(self, count: int, start: int = 0, size: int = 100) -> pa.RecordBatch:
        """Return many messages fast, without headers: `size` bytes of data each."""
        offsets = np.arange(count + 1, dtype=np.int32) * size
        data = pa.BinaryArray.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(b"x" * size * count)]
        )
        columns = [
            pa.repeat(pa.scalar("plain.subject"), count),
            pa.array(np.arange(start, start + count)),
            pa.nulls(count, HEADERS_TYPE),
            data,
        ]
        return pa.RecordBatch.from_arrays(columns, schema=FRAME_SCHEMA)

    def seal(
        self,
        *batches: pa.RecordBatch,
        codec: str = "none",
        hashes: list[np.ndarray] | None = None,
        sequences: list[np.ndarray] | None = None,
        identity: BlockIdentity | None = None,
        frame_row_count: int = 65_536,
    ) -> Sealed:
        """Write the batches, each with its entry of the lists, as a block."""
        file, identity = MemoryFile(), identity or self.identity
        writer = BlockWriter(file, identity, codec, frame_row_count)
        for position, batch in enumerate(batches):
            writer.write(batch, hashes[position] if hashes else None, sequences[position] if sequences else None)
        summary = writer.finish()
        assert file.synced == len(file.data) == summary.file_size
        return Sealed(bytes(file.data), summary, identity)

    def with_everything(self, codec: str = "none") -> Sealed:
        """Return a small block with several frames, holes, headers, nulls and message ids."""
        batch = self.batch(8, data=lambda number: None if number == 2 else b"data %d" % number)
        hashes = msg_id_hashes(pa.array([None, "a", None, None, None, "b", "c", None]))
        sequences = np.array([0, 1, 2, 5, 6, 7, 8, 20])
        return self.seal(batch, codec=codec, hashes=[hashes], sequences=[sequences], frame_row_count=3)


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


@pytest.fixture(scope="session")
def blocks() -> Blocks:
    return Blocks()


@pytest.fixture(scope="session")
def memory_file() -> type[MemoryFile]:
    return MemoryFile


@pytest.fixture(scope="session")
def forger() -> type[Forger]:
    return Forger
