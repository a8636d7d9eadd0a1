"""Parts of another server's stream: runs of its block files, each read and written as blocks by one task.

A part is done when its blocks are durable and its record (records.py) lies beside them.
"""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.block.sizing import message_sizes
from storage_core.errors import DataLossError, NotFoundError, StorageError
from storage_core.files import OS_FILES, Files
from storage_core.foreign import ForeignDamage, ForeignSlice, OpenedPart, open_foreign_slices
from storage_core.foreign.budget import fold_damage
from storage_core.foreign.losses import Claims, claims, losses
from storage_core.foreign.union import UnionSlice
from storage_core.metadata.manifest import BLOCK_DTYPE, encode_blocks, row_of
from storage_core.metadata.reconcile import FAIL
from storage_core.os_errors import raise_if_of_process
from storage_core.schema import FRAME_SCHEMA
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.metadata_client import translated
from storage_core.store.environment import REAL, Environment
from storage_core.store.ingest.records import PartRecord, holders_of, part_file, write_record
from storage_core.store.ingest.server_config import readable
from storage_core.store.writing.sink import BlockPlace, BlockSink, SealedBlock

COLUMNS = ("sequence", *FRAME_SCHEMA.names)


@dataclass(frozen=True, slots=True)
class ImportTarget:
    """A stream to be, as a task needs it. Plain values: Spark sends it to its tasks."""

    name: str
    place: BlockPlace
    source: bytes  # digest of what is imported
    on_data_loss: str  # FAIL: the first damage that costs messages, and that no option allows, ends the import


@dataclass(frozen=True, slots=True)
class PartTask:
    """One part of one stream."""

    target: ImportTarget
    number: int  # from 1, in order of sequence
    slices: tuple[ForeignSlice, ...]

    @property
    def file(self) -> str:
        return part_file(self.number, self.source)

    @property
    def source(self) -> bytes:
        return self.target.source

    @property
    def step_count(self) -> int:
        return len(self.slices)


def damage_row(damage: ForeignDamage) -> dict[str, Any]:
    """Return damage as a row of DAMAGE_COLUMNS, with how many places it is, and whether anything of it is left here."""
    row = {key: readable(value) if isinstance(value, str) else value for key, value in damage.row().items()}
    is_note = damage.first is None and not damage.end_bytes and not damage.elsewhere
    return {**row, "places": damage.places, "left": damage.costs or damage.served or damage.disputed or is_note}


# --- writing a part


def write_part(
    task: PartTask,
    env: Environment = REAL,
    source_files: Files = OS_FILES,
    on_slice: Callable[[], None] | None = None,
) -> PartRecord:
    """Read the slices of a part and write their messages as blocks, durably; return what became of it.

    With an error nothing of the part is left behind. Raises DataLossError at damage that the import does not
    skip, DiskFullError, ReadOnlyError, VolumeFailedError, StorageError (the source cannot be read).
    """
    target = task.target
    reading = PartReading(target.on_data_loss)
    with translated(f"stream {target.name!r}"):
        blocks = BlockSink(target.place, env)
        try:
            for part in open_foreign_slices(task.slices, source_files):
                for batch in reading.read(part, source_files):
                    frame = _frame(batch)
                    blocks.write(frame, message_sizes(frame), buffers.numbers(batch.column("sequence")))
                if on_slice is not None:
                    on_slice()
            blocks.seal()
            record = _record(task, blocks.sealed, reading, env.now_ns())
            write_record(target.place.volumes, target.place.incarnation, record.file, record, env)
        except BaseException:
            blocks.discard()
            raise
    return record


class PartReading:
    """What was read of a part, and what was found wrong with it."""

    def __init__(self, on_data_loss: str) -> None:
        self._on_data_loss = on_data_loss
        self._seen: list[np.ndarray] = []
        self._missed: list[tuple[Claims, SequenceSet]] = []  # (what damage claims, removed) slice by slice
        self._slice: ForeignSlice | None = None
        self.damage: list[ForeignDamage] = []
        self.read_count = 0

    def read(self, opened: OpenedPart, files: Files) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a slice, columns COLUMNS. Raises as write_part does."""
        part, reported = opened.part, list[ForeignDamage]()

        def on_damage(damage: ForeignDamage) -> None:
            reported.append(damage)
            if damage.costs and not damage.allowed and self._on_data_loss == FAIL:
                raise DataLossError(damage.explain())

        _check_seen(part, files)
        try:
            for batch in opened.read(COLUMNS, on_damage):
                self._seen.append(buffers.numbers(batch.column("sequence")))
                self.read_count += batch.num_rows
                yield batch
        except OSError as error:
            raise_if_of_process(error)
            if error.filename is not None and not str(error.filename).startswith(str(part.path)):
                raise
            raise StorageError(f"{part.path} cannot be read: {error.strerror or error}") from error
        claimed = claims(reported, part.first, part.end, lambda _: part.end)
        self._missed.append((claimed, SequenceSet.decode(part.removed)))
        self.damage += reported

    def present(self) -> SequenceSet:
        return SequenceSet.from_sequences(np.concatenate(self._seen)) if self._seen else SequenceSet.empty()

    def record(self, incarnation: bytes, source: bytes, number: int) -> PartRecord:
        """Return what became of the part, without blocks."""
        present = self.present()
        lost = unexplained = SequenceSet.empty()
        for claimed, removed in self._missed:
            missed = losses([claimed], present, removed)
            lost, unexplained = lost.union(missed.lost), unexplained.union(missed.open)
        return PartRecord(
            incarnation=incarnation,
            source=source,
            number=number,
            rows=b"",
            subjects=(),
            holders=(),
            present=present.encode(),
            lost=lost.encode(),
            open=unexplained.difference(lost).encode(),
            read_count=self.read_count,
            damage=tuple(damage_row(damage) for damage in fold_damage(self.damage)),
        )


def _check_seen(part: ForeignSlice, files: Files) -> None:
    """Raise NotFoundError if the source cannot be seen from here, which would look as if all of it were lost."""
    copies = [copy.path for copy in part.copies if not copy.problem] if isinstance(part, UnionSlice) else []
    for place in copies or [os.path.dirname(part.path)]:
        if not files.is_directory(Path(place)):
            raise NotFoundError(
                f"{place} cannot be seen on {socket.gethostname()}: it was there when the import was planned; every "
                "executor must see it at the same path"
            )


def _frame(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch.column(name) for name in FRAME_SCHEMA.names], schema=FRAME_SCHEMA)


def _record(task: PartTask, blocks: Sequence[SealedBlock], reading: PartReading, now_ns: int) -> PartRecord:
    rows = np.zeros(len(blocks), BLOCK_DTYPE)
    for at, block in enumerate(blocks):
        rows[at] = row_of(block.summary, block.first, block.summary.span, committed_ns=now_ns)
    return msgspec.structs.replace(
        reading.record(task.target.place.incarnation, task.source, task.number),
        rows=encode_blocks(rows),
        subjects=tuple(block.summary.subjects for block in blocks),
        holders=tuple(holders_of(task.target.place, block.file) for block in blocks),
    )
