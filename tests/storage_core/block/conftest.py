"""What the tests of the block format share: files in memory, small blocks, and a writer that lies."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness.forged_blocks import Forger

from storage_core.block.format import BlockExpectation, BlockIdentity, BlockSummary
from storage_core.block.hashing import msg_id_hashes
from storage_core.block.reader import BlockReader
from storage_core.block.request import FrameRequest
from storage_core.block.writer import BlockWriter
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


@pytest.fixture(scope="session")
def blocks() -> Blocks:
    return Blocks()


@pytest.fixture(scope="session")
def memory_file() -> type[MemoryFile]:
    return MemoryFile


@pytest.fixture(scope="session")
def forger() -> type[Forger]:
    return Forger
