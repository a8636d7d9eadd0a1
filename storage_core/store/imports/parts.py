"""Parts of an import: runs of another server's block files, each read and written as blocks by one task.

A part is done when its blocks are durable and a record of it lies beside them, in the directory of the stream to be:

    VOLUME/streams/<incarnation>/import.part       what is being imported, and by which import
    VOLUME/streams/<incarnation>/00000001.part     what became of part 1

The records let an import that was interrupted go on. They prove nothing: whoever believes one looks at its blocks.
Format: docs/formats/import.md.
"""

import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.block.format import digest_of
from storage_core.block.sizing import message_sizes
from storage_core.bounded import UNDECODABLE
from storage_core.checksum import crc32c
from storage_core.errors import (
    CorruptRecordError,
    DataLossError,
    NotFoundError,
    StorageError,
    UnsupportedVersionError,
)
from storage_core.file_kinds import IMPORT_RECORD
from storage_core.files import OS_FILES, Files
from storage_core.foreign import ForeignDamage, ForeignSlice, OpenedPart, open_foreign_slices
from storage_core.foreign.budget import fold_damage
from storage_core.foreign.losses import Claims, Losses, claims, losses
from storage_core.foreign.slices import DAMAGE_COLUMNS
from storage_core.foreign.union import UnionSlice
from storage_core.metadata.manifest import BLOCK_DTYPE, encode_blocks, row_of
from storage_core.metadata.reconcile import FAIL
from storage_core.os_errors import raise_if_of_process
from storage_core.schema import FRAME_SCHEMA
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.metadata_client import translated
from storage_core.store.environment import REAL, Environment
from storage_core.store.volume.block_store import PART_SUFFIX, BlockStore, VolumeHandle
from storage_core.store.writing.sink import BlockPlace, BlockSink, SealedBlock

logger = logging.getLogger(__name__)
HEAD_FILE = f"import{PART_SUFFIX}"
MAGIC = b"JSTRMIMP"
FORMAT_VERSION = 1
DAMAGE_KEYS = {*DAMAGE_COLUMNS, "places", "left"}
COLUMNS = ("sequence", *FRAME_SCHEMA.names)
_HEADER = Struct("<8sII16sI")  # magic, version, payload size, digest of the payload, CRC32C of the bytes before


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


class ImportHead(msgspec.Struct, frozen=True, tag="head"):
    """Which import fills a directory, and with what."""

    import_id: bytes  # the same when it is gone on with
    source: bytes
    name: str
    placement: tuple[bytes, ...]


class PartRecord(msgspec.Struct, frozen=True, tag="part"):
    """What became of a part."""

    incarnation: bytes
    source: bytes
    number: int
    rows: bytes  # as encode_blocks has them, with absolute `first`; holders and subject_set are filled in at the end
    subjects: tuple[tuple[str, ...] | None, ...]  # of each block; None: its footer has to be asked
    holders: tuple[tuple[tuple[bytes, bytes], ...], ...]  # of each block: (volume, instance) that fsynced it
    present: bytes  # encoded SequenceSet: messages that were read
    lost: bytes  # encoded SequenceSet: those that the source had and that cannot be read
    read_count: int
    damage: tuple[dict[str, Any], ...]  # as damage_row returns them
    open: bytes = SequenceSet.empty().encode()  # of what nothing tells whether it was removed or is lost


def readable(text: str) -> str:
    """Return the text with what no UTF-8 can say (names of files hold any bytes) escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


# --- records


def part_file(number: int) -> str:
    return f"{number:08d}{PART_SUFFIX}"


def encode_record(record: ImportHead | PartRecord) -> bytes:
    payload = msgspec.msgpack.encode(record)
    fields = _HEADER.pack(MAGIC, FORMAT_VERSION, len(payload), digest_of(payload), 0)[:-4]
    return fields + crc32c(fields).to_bytes(4, "little") + payload


def decode_record(data: bytes, name: str) -> ImportHead | PartRecord:
    """Return the record in a file. Raises CorruptRecordError, UnsupportedVersionError."""
    if len(data) < _HEADER.size:
        raise CorruptRecordError(name, 0, f"{len(data)} bytes are no record of an import")
    magic, version, size, digest, crc = _HEADER.unpack_from(data)
    if magic != MAGIC or crc32c(data[: _HEADER.size - 4]) != crc:
        raise CorruptRecordError(name, 0, "not the head of a record of an import")
    if version != FORMAT_VERSION:
        raise UnsupportedVersionError(f"{name} has version {version}; this program reads version {FORMAT_VERSION}")
    payload = data[_HEADER.size :]
    if size != len(payload) or digest_of(payload) != digest:
        raise CorruptRecordError(name, _HEADER.size, f"{len(payload)} bytes, expected {size} with another digest")
    try:
        record: ImportHead | PartRecord = msgspec.msgpack.decode(payload, type=ImportHead | PartRecord)
    except UNDECODABLE as error:
        raise CorruptRecordError(name, _HEADER.size, str(error)) from error
    if isinstance(record, PartRecord) and not all(set(row) == DAMAGE_KEYS for row in record.damage):
        raise CorruptRecordError(name, _HEADER.size, "damage with other columns than it has")
    return record


def read_record(blocks: BlockStore, incarnation: bytes, name: str) -> ImportHead | PartRecord | None:
    """Return a record; None if there is none that can be believed, or one of a newer program."""
    path = blocks.directory(incarnation) / name
    try:
        return decode_record(blocks.read_record(incarnation, name, IMPORT_RECORD), str(path))
    except FileNotFoundError:
        return None
    except (StorageError, OSError) as error:
        raise_if_of_process(error)
        logger.info("%s: %s", path, error)
        return None


def write_record(
    volumes: Sequence[VolumeHandle], incarnation: bytes, name: str, record: ImportHead | PartRecord, env: Environment
) -> None:
    """Write a record beside the blocks, durably. A failure is reported."""
    content = encode_record(record)
    calls = [partial(volume.blocks(env.files).put_record, incarnation, name, content) for volume in volumes]
    for outcome in env.parallel(calls):
        if isinstance(outcome, OSError):
            logger.warning("record of an import: %s", outcome)
        elif isinstance(outcome, BaseException):
            raise outcome


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

    With an error nothing of the part is left behind. Raises DataLossError at damage that the import does not go on
    past, DiskFullError, ReadOnlyError, VolumeFailedError, StorageError (the source cannot be read).
    """
    target = task.target
    reading = _Reading(target.on_data_loss)
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
            write_record(target.place.volumes, target.place.incarnation, part_file(task.number), record, env)
        except BaseException:
            blocks.discard()
            raise
    return record


class _Reading:
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

        def hear(damage: ForeignDamage) -> None:
            reported.append(damage)
            if damage.costs and not damage.allowed and self._on_data_loss == FAIL:
                raise DataLossError(damage.explain())

        _check_seen(part, files)
        try:
            for batch in opened.read(COLUMNS, hear):
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

    def losses(self) -> Losses:
        """Return what the source had and what was not read, and what nothing tells of."""
        present = self.present()
        lost = unexplained = SequenceSet.empty()
        for claimed, removed in self._missed:
            part = losses([claimed], present, removed)
            lost, unexplained = lost.union(part.lost), unexplained.union(part.open)
        return Losses(lost, unexplained.difference(lost))


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


def _record(task: PartTask, blocks: Sequence[SealedBlock], reading: _Reading, now_ns: int) -> PartRecord:
    rows = np.zeros(len(blocks), BLOCK_DTYPE)
    for at, block in enumerate(blocks):
        rows[at] = row_of(block.summary, block.first, block.summary.span, committed_ns=now_ns)
    instances = {volume.volume_id: volume.instance_id for volume in task.target.place.volumes}
    left = reading.losses()
    return PartRecord(
        incarnation=task.target.place.incarnation,
        source=task.target.source,
        number=task.number,
        rows=encode_blocks(rows),
        subjects=tuple(block.summary.subjects for block in blocks),
        holders=tuple(tuple((held, instances[held]) for held in block.file.holders) for block in blocks),
        present=reading.present().encode(),
        lost=left.lost.encode(),
        open=left.open.encode(),
        read_count=reading.read_count,
        damage=tuple(damage_row(damage) for damage in fold_damage(reading.damage)),
    )
