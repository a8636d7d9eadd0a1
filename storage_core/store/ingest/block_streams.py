"""Streams whose blocks are our own, of another store or of a backup, as sources of the assembler.

A stream that comes in is a new incarnation, also under its old name: the old one may still wait to be unlinked, and
blocks carry who they were written for. So each block is written anew; sequences, holes, times, headers and msg_ids stay
what they were, and what was removed is in the blocks still, and not shown, as it was.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import msgspec
import numpy as np
import pyarrow as pa

from storage_core.block.damage import FrameDamage
from storage_core.block.format import BlockIdentity
from storage_core.block.reader import BlockReader
from storage_core.block.request import FrameRequest
from storage_core.errors import CorruptionError
from storage_core.files import File
from storage_core.metadata.commands import Event
from storage_core.metadata.manifest import Table, encode_blocks
from storage_core.metadata.state import StoreState, StreamState
from storage_core.schema import FRAME_SCHEMA
from storage_core.sequences import SequenceSet
from storage_core.store.environment import Environment
from storage_core.store.ingest.assembly import Assembled
from storage_core.store.ingest.records import PartRecord, holders_of, part_file, write_record
from storage_core.store.replicas.live_blocks import LiveBlock, live_blocks
from storage_core.store.writing.sink import BlockPlace, one_block

_COLUMNS = ("sequence", *FRAME_SCHEMA.names)


@dataclass(frozen=True, slots=True)
class BlockStream:
    """A stream as it was, and what it is to be called."""

    state: StoreState  # of the store that it is of
    original: StreamState
    name: str
    open_block: Callable[[LiveBlock], File]
    event_kind: str
    reason: str
    labels: Mapping[str, str] = field(default_factory=dict)  # that the metadata of the configuration gets

    @property
    def digest(self) -> bytes:
        origin = f"{self.state.store_id.hex()}/{self.original.incarnation.hex()}/{self.name}"
        return blake2b(origin.encode(), digest_size=16).digest()

    @property
    def num_replicas(self) -> int:
        return self.original.config.num_replicas

    def stream(self, incarnation: bytes, placed: tuple[bytes, ...]) -> StreamState:
        original, config = self.original, self.original.config
        labels = {**config.metadata, **self.labels}
        return replace(
            original,
            config=msgspec.structs.replace(config, name=self.name, num_replicas=len(placed), metadata=labels),
            incarnation=incarnation,
            placement=placed,
            blocks=Table.of(original.blocks.rows[:0]),
            histories=(),
            origins=(),
            lost_blocks=Table.of(original.lost_blocks.rows[:0]),  # whose copies are of another incarnation
            writers=original.writers if self.name == original.name else {},  # nobody has written to a copy
        )

    def parts(self, place: BlockPlace) -> list["BlockPart"]:
        rows = self.original.blocks.rows
        blocks = live_blocks(self.state, self.original)
        return [BlockPart(self, place, block, row) for block, row in zip(blocks, rows, strict=True)]

    def assembled(
        self, stream: StreamState, rows: np.ndarray, records: Sequence[PartRecord], import_id: bytes, now_ns: int
    ) -> Assembled:
        event = Event(
            self.event_kind, self.name, after=f"{stream.message_count} messages", reason=self.reason
        )  # fmt: skip
        return Assembled(replace(stream, blocks=Table.of(rows)), (event,))


@dataclass(frozen=True, slots=True)
class BlockPart:
    """One block of such a stream."""

    of: BlockStream
    place: BlockPlace
    block: LiveBlock
    row: np.void  # of the manifest
    step_count = 1

    @property
    def file(self) -> str:
        return part_file(0, self.source)

    @property
    def source(self) -> bytes:
        return self.block.block_id

    def write(self, env: Environment) -> PartRecord:
        """Write the block anew, durably, without frames of which nothing is left; no block if nothing is left at all.

        Raises OSError if too few volumes take it.
        """
        block, place = self.block, self.place
        identity = BlockIdentity(place.store_id, place.incarnation, env.new_id(), place.transaction_id)
        record = PartRecord(place.incarnation, self.source, 0, b"", (), ())
        with closing(self.of.open_block(block)) as source:
            reader = BlockReader.open(source, block.expected)
            with one_block(place.volumes, identity, place.needed, reader.codec, env) as (writer, file):
                hashed, hashes = _msg_ids(reader)
                for batch in reader.read(self._request()):
                    relative = batch.column("sequence").to_numpy() - block.first
                    frame = pa.RecordBatch.from_arrays(
                        [batch.column(name) for name in FRAME_SCHEMA.names], schema=FRAME_SCHEMA
                    )
                    writer.write(frame, _hashes_of(relative, hashed, hashes), relative)
                if not writer.row_count:
                    file.discard()
                    return record
                summary = writer.finish()
        row = self.row.copy()  # where and when the block was, with what is in it now
        row["block_id"], row["digest"] = np.void(summary.block_id), np.void(summary.digest)
        for name in ("span", "row_count", "file_size", "data_size", "time_min_ns", "time_max_ns", "msg_id_count"):
            row[name] = getattr(summary, name)
        rows = encode_blocks(np.array([row]))
        return msgspec.structs.replace(record, rows=rows, subjects=(None,), holders=(holders_of(place, file),))

    def _request(self) -> FrameRequest:
        removed, low_watermark = self.of.original.removed, self.of.original.low_watermark

        def check(damage: FrameDamage) -> None:
            shown = SequenceSet.from_ranges([(max(damage.first, low_watermark), max(damage.end, low_watermark))])
            if damage.row_count and removed.absent_among(shown):
                raise CorruptionError(f"{damage.file} was changed meanwhile: {damage.reason}")

        return FrameRequest(columns=_COLUMNS, first_sequence=self.block.first, on_damage=check)


def write_blocks(
    parts: Sequence[BlockPart], step: Callable[[int], None], env: Environment, leaves_records: bool
) -> Iterator[PartRecord]:
    """Write blocks, one after the other; yield what became of each."""
    for part in parts:
        record = part.write(env)
        if leaves_records:
            write_record(part.place.volumes, record.incarnation, record.file, record, env)
        yield record
        step(part.step_count)


def _msg_ids(reader: BlockReader) -> tuple[np.ndarray, np.ndarray]:
    """Return the relative sequences of the messages that have a msg_id, ascending, and its hashes, (n, 2) uint64."""
    parts = list(reader.message_ids())
    if not parts:
        return np.empty(0, np.int64), np.empty((0, 2), np.uint64)
    return np.concatenate([part.sequences for part in parts]), np.concatenate([part.hashes for part in parts])


def _hashes_of(relative: np.ndarray, hashed: np.ndarray, hashes: np.ndarray) -> np.ndarray | None:
    """Return the hashes of these rows, zeros for rows without a msg_id; None if no message of the block has one."""
    if not len(hashed):
        return None
    at = np.minimum(np.searchsorted(hashed, relative), len(hashed) - 1)
    row_hashes = hashes[at]
    row_hashes[hashed[at] != relative] = 0
    return row_hashes
