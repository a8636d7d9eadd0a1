"""Streams of another server as sources of the assembler.

What the parts hold is what the stream holds: holes are what no part has, and lost is what the source had, as far as it
tells, and no part could read. The last sequence is that of the source, also where its last messages are gone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from storage_core.chunked_set import ChunkedSet
from storage_core.foreign import ForeignDamage, ForeignSlice
from storage_core.foreign.consumers import ForeignConsumer
from storage_core.metadata.commands import Event
from storage_core.metadata.config import StreamConfig
from storage_core.metadata.manifest import Table
from storage_core.metadata.shared_map import SharedMap
from storage_core.metadata.state import BatchResult, StreamState, WriterState
from storage_core.metadata.subject_sets import SUBJECT_SET_COUNT_MAX
from storage_core.sequences import SequenceSet
from storage_core.store.ingest.assembly import Assembled
from storage_core.store.ingest.records import PartRecord
from storage_core.store.ingest.server_config import readable, with_consumers
from storage_core.store.ingest.server_parts import ImportTarget, PartTask
from storage_core.store.writing.sink import BlockPlace

WRITER = "jstream import"  # whose batch of the stream remembers what was imported
PART_SIZE = 64 << 20  # bytes of block files in one part, unless a single one is larger
PART_FILE_COUNT_MAX = 256  # block files in one part


@dataclass(frozen=True, slots=True)
class ServerStream:
    """One stream of another server, as it will be here."""

    foreign: str
    layout: str
    account: str
    paths: tuple[str, ...]
    config: StreamConfig
    slices: tuple[ForeignSlice, ...]
    bounds: tuple[int, int]  # first sequence, and one above the last that was used
    consumers: tuple[ForeignConsumer, ...]
    damage: tuple[ForeignDamage, ...]  # beside the messages
    notes: tuple[str, ...]  # what is not carried over
    digest: bytes  # of all that decides what the blocks hold
    on_data_loss: str

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def num_replicas(self) -> int:
        return self.config.num_replicas

    def stream(self, incarnation: bytes, placed: tuple[bytes, ...]) -> StreamState:
        return StreamState(self.config, incarnation, 0, placed)

    def parts(self, place: BlockPlace) -> list[PartTask]:
        target = ImportTarget(self.name, place, self.digest, self.on_data_loss)
        return [PartTask(target, number, slices) for number, slices in enumerate(_gathered(self.slices), 1)]

    def assembled(
        self, stream: StreamState, rows: np.ndarray, records: Sequence[PartRecord], import_id: bytes, now_ns: int
    ) -> Assembled:
        present, lost = SequenceSet.empty(), SequenceSet.empty()
        for record in records:
            present = present.union(SequenceSet.decode(record.present))
            lost = lost.union(SequenceSet.decode(record.lost))
        first, end = (max(1, bound) for bound in self.bounds)  # a server counts an empty stream from 0
        if present:
            first, end = min(first, int(present.starts[0])), max(end, int(present.ends[-1]))
        subject_sets = _name_subjects(rows, records)
        batches = SharedMap({self.digest.hex(): BatchResult(first, end, 0)})
        stream = replace(
            stream,
            low_watermark=first,
            next_sequence=end,
            blocks=Table.of(rows),
            removed=ChunkedSet.of(SequenceSet.from_ranges([(first, end)]).difference(present)),
            lost=lost.clip(first, end),
            message_count=len(present),
            data_size=int(rows["data_size"].sum()),
            subject_sets=subject_sets,
            writers={WRITER: WriterState("", import_id.hex(), (), batches)},
        )
        done = with_consumers(stream, self.consumers, now_ns)
        reason = f"{self.layout} stream {self.foreign!r} of {', '.join(self.paths)}; import {import_id.hex()}"
        after = f"{len(present)} messages, {len(stream.lost)} lost"
        event = Event("imported", stream.name, after=after, reason=readable(reason))
        return Assembled(done.stream, (event, *done.events), (*self.notes, *done.notes))


def _gathered(slices: Sequence[ForeignSlice]) -> Iterator[tuple[ForeignSlice, ...]]:
    """Yield neighbouring slices up to PART_SIZE together."""
    gathered, size = list[ForeignSlice](), 0
    for part in slices:
        if gathered and (size + part.byte_size > PART_SIZE or len(gathered) == PART_FILE_COUNT_MAX):
            yield tuple(gathered)
            gathered, size = [], 0
        gathered.append(part)
        size += part.byte_size
    if gathered:
        yield tuple(gathered)


def _name_subjects(rows: np.ndarray, records: Sequence[PartRecord]) -> tuple[tuple[str, ...], ...]:
    """Return the sets of subjects of all blocks, and let their rows name them."""
    sets: dict[tuple[str, ...], int] = {}
    for at, subjects in enumerate(subject for record in records for subject in record.subjects):
        if subjects is not None and (subjects in sets or len(sets) < SUBJECT_SET_COUNT_MAX):
            rows["subject_set"][at] = sets.setdefault(subjects, len(sets) + 1)
    return tuple(sets)
