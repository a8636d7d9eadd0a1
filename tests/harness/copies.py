"""A stream whose blocks lie on several plain directories: everything but the metadata log is the real thing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from harness.block_places import block_directory

from storage_core.block.format import BlockIdentity, BlockSummary
from storage_core.block.writer import BlockWriter
from storage_core.files import OS_FILES
from storage_core.metadata.commands import Voter
from storage_core.metadata.config import StreamConfig
from storage_core.metadata.manifest import BLOCK_DTYPE
from storage_core.metadata.state import StoreState, StreamState
from storage_core.schema import FRAME_SCHEMA, HEADERS_TYPE
from storage_core.store.environment import REAL, one_after_another
from storage_core.store.reading.plan import ReadRequest, plan_stream
from storage_core.store.reading.slices import BlockSlices
from storage_core.store.volume.identity import FILE_NAME, VolumeIdentity
from storage_core.store.volume.volumes import Volume

STORE_ID = b"STORE-ID--------"
INCARNATION = b"INCARNATION-----"
ONE_BY_ONE = replace(REAL, parallel=one_after_another)  # the same calls in the same order, every time


@dataclass
class Scattered:
    """A state with one stream, `S`, and its volumes."""

    volumes: list[Volume]
    state: StoreState

    @classmethod
    def make(cls, root: Path, volume_count: int = 3, placed: Sequence[int] | None = None) -> "Scattered":
        """Return a stream on the volumes of these numbers, all of them by default; their directories are made."""
        volumes = []
        for number in range(volume_count):
            path = root / f"volume-{number}"
            block_directory(path, INCARNATION).mkdir(parents=True)
            identity = VolumeIdentity(STORE_ID, b"VOLUME-%09d" % number, b"INSTANCE-%07d" % number, 1)
            (path / FILE_NAME).write_bytes(identity.encode())
            volumes.append(Volume(identity.volume_id, path, identity, files=OS_FILES))
        voters = tuple(Voter(one.volume_id, one.identity.instance_id, ".") for one in volumes if one.identity)
        numbers = range(volume_count) if placed is None else placed
        placement = tuple(volumes[number].volume_id for number in numbers)
        config = StreamConfig.from_mapping({"name": "S", "subjects": ["s.>"], "num_replicas": len(placement)})
        stream = StreamState(config, INCARNATION, 1, placement)
        return cls(volumes, StoreState(store_id=STORE_ID, voters=voters).with_stream(stream))

    @property
    def stream(self) -> StreamState:
        found = self.state.stream("S")
        assert found is not None
        return found

    def change(self, **changes: object) -> None:
        """Change fields of the stream's state."""
        self.state = self.state.with_stream(replace(self.stream, **changes))  # type: ignore[arg-type]

    def directory(self, number: int) -> Path:
        return block_directory(self.volumes[number].path, INCARNATION)

    def files(self, number: int) -> list[Path]:
        """Return the block files on a volume, by name."""
        return sorted(self.directory(number).iterdir())

    def add_block(
        self,
        row_count: int,
        frame_row_count: int,
        holes: Sequence[int] = (),
        holders: Sequence[int] | None = None,
        later_ns: int = 0,
    ) -> BlockSummary:
        """Put a block at the end of the stream, in small frames, on these volumes (default: on the whole placement).

        `holes`: relative sequences that the block leaves out; `later_ns`: added to the times of its messages.
        """
        stream = self.stream
        taken = np.setdiff1d(np.arange(row_count + len(holes)), np.array(holes, np.int64))[:row_count]
        block_id = b"BLOCK-%010d" % len(stream.blocks)
        summary = None
        placed = [number for number, one in enumerate(self.volumes) if one.volume_id in stream.placement]
        for number in placed if holders is None else holders:
            path = self.directory(number) / f"{block_id.hex()}.blk"
            with OS_FILES.create(path) as file:
                identity = BlockIdentity(STORE_ID, INCARNATION, block_id, bytes(16))
                writer = BlockWriter(file, identity, frame_row_count=frame_row_count)
                writer.write(rows(stream.next_sequence + taken, later_ns), sequences=taken)
                summary = writer.finish()
        assert summary is not None
        mask = sum(1 << placed.index(number) for number in (placed if holders is None else holders))
        row = np.zeros(1, BLOCK_DTYPE)
        row[0] = (
            summary.block_id, summary.digest, stream.next_sequence, summary.span, summary.row_count, summary.file_size,
            summary.data_size, summary.time_min_ns, summary.time_max_ns, 0, 0, 0, mask,
        )  # fmt: skip
        self.change(blocks=stream.blocks.append(row), next_sequence=stream.next_sequence + summary.span)
        return summary

    def slices(self, first: int | None = None, end: int | None = None) -> BlockSlices:
        """Return the plan of a read of [first, end)."""
        request = ReadRequest(("S",), {"S": (first, end)})
        return plan_stream(self.state, self.stream, self.volumes, request)[0]


def rows(sequences: np.ndarray, later_ns: int = 0) -> pa.RecordBatch:
    """Return a message for each sequence: what it says follows from its number."""
    count = len(sequences)
    columns = [
        pa.array([f"s.{sequence % 3}" for sequence in sequences.tolist()]),
        pa.array(sequences.astype(np.int64) * 1000 + later_ns),
        pa.nulls(count, HEADERS_TYPE),
        pa.array([b"message %d" % sequence for sequence in sequences.tolist()], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FRAME_SCHEMA)


def write_columns(first: int, count: int, data_size: int = 20) -> pa.RecordBatch:
    """Return messages in columns to write."""
    data = [(b"message %d " % number).ljust(data_size, b".") for number in range(first, first + count)]
    return pa.record_batch({"subject": ["s.0"] * count, "data": pa.array(data, pa.binary())})
