"""An imported stream, put together from the parts that were written of it.

What the parts hold is what the stream holds: holes are what no part has, and lost is what the source had, as far as it
tells, and no part could read. The last sequence is that of the source, also where its last messages are gone.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from storage_core.block.reader import BlockReader
from storage_core.chunked_set import ChunkedSet
from storage_core.errors import NoQuorumError, StorageError
from storage_core.foreign import ForeignDamage, ForeignSlice
from storage_core.foreign.consumers import ForeignConsumer
from storage_core.metadata.commands import Event
from storage_core.metadata.config import StreamConfig
from storage_core.metadata.manifest import BLOCK_DTYPE, Table, decode_blocks
from storage_core.metadata.shared_map import SharedMap
from storage_core.metadata.state import BatchResult, StoreState, StreamState, WriterState
from storage_core.metadata.subject_sets import SUBJECT_SET_COUNT_MAX
from storage_core.os_errors import raise_if_of_process
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.imports.config import with_consumers
from storage_core.store.imports.parts import (
    HEAD_FILE,
    ImportHead,
    ImportTarget,
    PartRecord,
    PartTask,
    read_record,
    readable,
)
from storage_core.store.replicas import copies
from storage_core.store.replicas.live_blocks import LiveBlock, new_block
from storage_core.store.volume import placement
from storage_core.store.volume.block_store import BlockStore
from storage_core.store.volume.volumes import Volume

logger = logging.getLogger(__name__)
WRITER = "jstream import"  # whose batch of the stream remembers what was imported
TIME_LEFT_MIN_NS = 24 * 3_600 * 1_000_000_000  # a directory that is due sooner is not resumed
Holders = tuple[tuple[bytes, bytes], ...]  # (volume, instance) that fsynced a block


@dataclass(frozen=True, slots=True)
class PlannedStream:
    """One stream of the source, as it will be here."""

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
    source: bytes  # digest of all that decides what the blocks hold

    @property
    def name(self) -> str:
        return self.config.name


@dataclass(frozen=True, slots=True)
class ImportJob:
    """A stream that is imported now."""

    planned: PlannedStream
    stream: StreamState  # as it will be, without blocks
    target: ImportTarget
    tasks: tuple[PartTask, ...]


@dataclass(frozen=True, slots=True)
class Assembled:
    """A stream that is ready to be there."""

    stream: StreamState
    records: tuple[PartRecord, ...]
    events: tuple[Event, ...]
    notes: tuple[str, ...]


def assemble(
    session: Session, work: ImportJob, parts: Mapping[int, PartRecord], import_id: bytes, env: Environment
) -> Assembled:  # fmt: skip
    """Return the stream with everything in it; `parts`: its parts by number.

    Raises NoQuorumError if one of its blocks is on too few volumes by now.
    """
    records = tuple(parts[task.number] for task in work.tasks)
    present, lost = SequenceSet.empty(), SequenceSet.empty()
    for record in records:
        present = present.union(SequenceSet.decode(record.present))
        lost = lost.union(SequenceSet.decode(record.lost))
    first, end = (max(1, bound) for bound in work.planned.bounds)  # a server counts an empty stream from 0
    if present:
        first, end = min(first, int(present.starts[0])), max(end, int(present.ends[-1]))
    rows, subject_sets = _rows(records)
    good = _holders(session, work, records, env)
    rows["holders"] = [placement.holders_mask(work.stream, holder_ids) for holder_ids in good]
    batches = SharedMap({work.planned.source.hex(): BatchResult(first, end, 0)})
    stream = replace(
        work.stream,
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
    done = with_consumers(stream, work.planned.consumers, env.now_ns())
    reason = f"{work.planned.layout} stream {work.planned.foreign!r} of {', '.join(work.planned.paths)}"
    after = f"{len(present)} messages, {len(stream.lost)} lost"
    event = Event("imported", stream.name, after=after, reason=readable(f"{reason}; import {import_id.hex()}"))
    return Assembled(done.stream, records, (event, *done.events), (*work.planned.notes, *done.notes))


def _rows(records: Sequence[PartRecord]) -> tuple[np.ndarray, tuple[tuple[str, ...], ...]]:
    """Return all rows of the manifest, and the sets of subjects that they name."""
    empty = np.empty(0, BLOCK_DTYPE)
    rows = np.concatenate([empty, *(decode_blocks(record.rows, "a part") for record in records)])
    sets: dict[tuple[str, ...], int] = {}
    for at, subjects in enumerate(subject for record in records for subject in record.subjects):
        if subjects is None or (subjects not in sets and len(sets) == SUBJECT_SET_COUNT_MAX):
            continue
        rows["subject_set"][at] = sets.setdefault(subjects, len(sets) + 1)
    return rows, tuple(sets)


# --- copies of blocks


def is_whole(work: ImportJob, record: PartRecord, volumes: Sequence[Volume], env: Environment) -> bool:
    """Return whether a quorum has every block of a part that was written earlier, to the last bit."""
    placed = [volume for volume in volumes if volume.volume_id in work.stream.placement]
    for block, held in zip(_blocks(work, record), record.holders, strict=True):
        looks = [
            partial(copies.look, block, volume.blocks, work.stream)
            for volume in placed
            if volume.identity is not None and (volume.volume_id, volume.identity.instance_id) in held
        ]
        if sum(look == [] for look in env.parallel(looks)) < work.target.place.needed:
            return False
    return True


def _holders(session: Session, work: ImportJob, records: Sequence[PartRecord], env: Environment) -> list[list[bytes]]:
    """Return for each block the volumes that have it, by a look at each, a quorum at least."""
    blocks = [block for record in records for block in _blocks(work, record)]
    held = [holder for record in records for holder in record.holders]
    usable = [
        volume
        for volume in session.writable
        if volume.volume_id in work.stream.placement and placement.is_recorded(session.state, volume)
    ]
    good: list[list[bytes]] = [[] for _ in blocks]
    looks = [partial(_opens, volume, blocks, held) for volume in usable]
    for volume, outcome in zip(usable, env.parallel(looks), strict=True):
        if isinstance(outcome, BaseException):
            raise outcome
        for at in outcome:
            good[at].append(volume.volume_id)
    for block, holder_ids in zip(blocks, good, strict=True):
        needed = work.target.place.needed
        if len(holder_ids) < needed:
            raise NoQuorumError(
                f"stream {work.stream.name!r}: block {block.block_id.hex()} is whole on {len(holder_ids)} of "
                f"{len(work.stream.placement)} volumes, {needed} are needed; the same import, run again, "
                "resumes"
            )
    return good


def _opens(volume: Volume, blocks: Sequence[LiveBlock], held: Sequence[Holders]) -> list[int]:
    """Return the positions of the blocks that a volume has fsynced and still has: header, footer and digest."""
    assert volume.identity is not None
    positions = []
    for at, (block, holders) in enumerate(zip(blocks, held, strict=True)):
        if (volume.volume_id, volume.identity.instance_id) not in holders:
            continue
        try:
            with closing(volume.blocks.open(block.written_as, block.block_id)) as file:
                BlockReader.open(file, block.expected)
        except (StorageError, OSError) as error:
            raise_if_of_process(error)
            logger.warning("%s: %s", volume.path, error)
        else:
            positions.append(at)
    return positions


def _blocks(work: ImportJob, record: PartRecord) -> list[LiveBlock]:
    return [
        new_block(work.target.place.store_id, work.stream, row, tuple(volume_id for volume_id, _ in held))
        for row, held in zip(decode_blocks(record.rows, "a part"), record.holders, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What lies under a stream's incarnation on one volume and is nobody's."""

    blocks: BlockStore
    incarnation: bytes
    block_ids: Sequence[bytes]
    records: Sequence[str]  # names


def prepared_heads(
    state: StoreState, volumes: Iterable[Volume], env: Environment
) -> Iterator[tuple[ImportHead, bytes]]:
    """Yield the directories that are being filled, with what for; those that are due soon are left out."""
    deletes, looked_at = state.pending_deletes.rows, list(volumes)
    alive = (deletes["block_id"] == np.void(bytes(16))) & (
        deletes["dropped_ns"] > state.time_at(env.now_ns()) + TIME_LEFT_MIN_NS
    )
    for incarnation in map(bytes, deletes["incarnation"][alive]):
        heads = (read_record(volume.blocks, incarnation, HEAD_FILE) for volume in looked_at)
        head = next((head for head in heads if isinstance(head, ImportHead)), None)
        if head is not None and all(state.voter(volume_id) for volume_id in head.placement):
            yield head, incarnation


def leftovers(volumes: Iterable[Volume], stream: StreamState, records_only: bool = False) -> list[Leftovers]:
    """Return what lies under the incarnation of a stream to be and will be nobody's: records, and unnamed blocks.

    Asked before the stream is there: afterwards others may have staged blocks that nothing names yet, and only the
    records are known to be nobody's. What cannot be read is left out.
    """
    named = {bytes(row) for row in stream.blocks.rows["block_id"]}
    listed = []
    for volume in volumes:
        blocks, incarnation = volume.blocks, stream.incarnation
        try:
            records = blocks.records(incarnation)
            block_ids = (
                [] if records_only else [block_id for block_id in blocks.ids(incarnation) if block_id not in named]
            )
        except OSError as error:
            raise_if_of_process(error)
            logger.info("%s: %s", blocks.directory(incarnation), error)
            continue
        if records or block_ids:
            listed.append(Leftovers(blocks, incarnation, block_ids, records))
    return listed


def sweep(listed: Sequence[Leftovers]) -> None:
    """Remove leftovers; what fails is swept by maintenance later."""
    for left in listed:
        for block_id in left.block_ids:
            left.blocks.discard(left.incarnation, block_id)
        for name in left.records:
            left.blocks.discard_record(left.incarnation, name)
        try:
            left.blocks.sync(left.incarnation)
        except OSError as error:
            logger.warning("%s: %s", left.blocks.directory(left.incarnation), error)
