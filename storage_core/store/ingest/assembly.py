"""One assembler for streams that come from elsewhere: another server, another store, a backup.

A stream appears complete or not at all. Its directory is prepared first; parts of the source become blocks, with a
record beside them if the source can be read again; one entry brings the stream with everything in it.

    prepare_streams, heads    the directories say which import fills them
    parts                     in any order, in any process; those that an earlier run has written are left as they are
    restore_streams           the streams are there, with everything; before it nobody sees anything of them

What was written is read again on every volume that counts for it before the manifest names it. Format of what lies in
the directories until then: docs/formats/import.md.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from storage_core.block.reader import BlockReader
from storage_core.errors import (
    AlreadyExistsError,
    NoQuorumError,
    OutcomeUnknownError,
    RequirementError,
    StorageError,
)
from storage_core.metadata.commands import Event, PrepareStreams, RestoreStreams, ids_of_voters
from storage_core.metadata.manifest import BLOCK_DTYPE
from storage_core.metadata.state import StoreState, StreamState, encode_stream, kept_of
from storage_core.metadata.store_changes import over_totals
from storage_core.os_errors import raise_if_of_process
from storage_core.raft.log_format import PAYLOAD_SIZE_MAX as ENTRY_SIZE_MAX
from storage_core.store.ensemble.metadata_client import translated
from storage_core.store.ensemble.session import Session
from storage_core.store.ingest import preparation
from storage_core.store.ingest.preparation import PREPARED_NS, PreparedDirectory
from storage_core.store.ingest.progress import ProgressCounter
from storage_core.store.ingest.records import HEAD_FILE, ImportHead, PartRecord, read_record, write_record
from storage_core.store.opened import OpenStore
from storage_core.store.replicas import copies
from storage_core.store.replicas.live_blocks import LiveBlock, new_block
from storage_core.store.volume import placement
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing import appends
from storage_core.store.writing.sink import BlockPlace

logger = logging.getLogger(__name__)
STREAMS_SIZE_MAX = ENTRY_SIZE_MAX - (64 << 10)  # bytes of streams that come into a store: they go into one entry


class Part(Protocol):
    """A run of messages of a source, which becomes blocks as a whole."""

    @property
    def file(self) -> str: ...  # that its record lies in
    @property
    def source(self) -> bytes: ...  # that its record names
    @property
    def step_count(self) -> int: ...  # of the progress


P = TypeVar("P", bound=Part)
P_co = TypeVar("P_co", bound=Part, covariant=True)
RunParts = Callable[[Sequence[P], Callable[[int], None]], Iterable[PartRecord]]


@dataclass(frozen=True, slots=True)
class Assembled:
    """A stream that is ready to be there, or has come."""

    stream: StreamState
    events: tuple[Event, ...] = ()
    notes: tuple[str, ...] = ()
    records: tuple[PartRecord, ...] = ()
    written_count: int = 0  # blocks that this run wrote


class StreamSource(Protocol[P_co]):
    """A stream that comes from elsewhere."""

    @property
    def name(self) -> str: ...  # here
    @property
    def digest(self) -> bytes: ...  # of all that decides what its blocks hold: who has the same resumes it
    @property
    def num_replicas(self) -> int: ...  # if there are as many volumes

    def stream(self, incarnation: bytes, placed: tuple[bytes, ...]) -> StreamState:
        """Return the stream as it will be, without blocks."""

    def parts(self, place: BlockPlace) -> Sequence[P_co]:
        """Return the parts, to be written to a place, in order of sequence."""

    def assembled(
        self, stream: StreamState, rows: np.ndarray, records: Sequence[PartRecord], import_id: bytes, now_ns: int
    ) -> Assembled:
        """Return the stream with everything; `rows`: of the manifest, which the records of its parts name."""


@dataclass(frozen=True, slots=True)
class ImportJob(Generic[P]):
    """A stream that is being put together."""

    source: StreamSource[P]
    stream: StreamState  # as it will be, without blocks
    place: BlockPlace
    parts: Sequence[P]

    def blocks(self, record: PartRecord) -> list[LiveBlock]:
        return [
            new_block(self.place.store_id, self.stream, row, tuple(volume_id for volume_id, _ in held))
            for row, held in zip(record.blocks(), record.holders, strict=True)
        ]


class Assembler(Generic[P]):
    """Puts streams of one kind of source together in a store.

    `run` writes parts, wherever it likes to, and says how many steps are done. `resumes`: the parts leave records, so
    that the same import is resumed after an error or a kill; without it an error removes all that was written.
    `rereads`: all blocks are read to the last bit before they count, and not only those of an earlier run.
    """

    def __init__(
        self, store: OpenStore, run: RunParts[P], progress: ProgressCounter, resumes: bool = True, rereads: bool = False
    ) -> None:
        self._store, self._env, self._run, self._progress = store, store.environment, run, progress
        self._resumes, self._rereads = resumes, rereads
        self.import_id = b""  # of the import that is resumed, or a new one

    def assemble(self, sources: Sequence[StreamSource[P]]) -> list[Assembled]:
        """Bring these streams: all of them, or none. Raises as `prepare` and `fill` do."""
        with translated(self._store.label):
            prepared = self.find_prepared(self._store.view().state, sources) if self._resumes else {}
            return self.fill(self.prepare(sources, prepared))

    def find_prepared(
        self, state: StoreState, sources: Sequence[StreamSource[P]]
    ) -> Mapping[bytes, PreparedDirectory]:  # fmt: skip
        """Return the directories that an earlier run has begun to fill, by the digests of the sources."""
        prepared = preparation.find_prepared(self._store, state, {source.digest: source.name for source in sources})
        self.import_id = (
            self.import_id
            or next((directory.head.import_id for directory in prepared.values()), b"")
            or self._env.new_id()
        )
        return prepared

    def prepare(
        self, sources: Sequence[StreamSource[P]], prepared: Mapping[bytes, PreparedDirectory]
    ) -> list[ImportJob[P]]:  # fmt: skip
        """Return the work on these streams, after their directories were made and say what they are for.

        Raises AlreadyExistsError, LimitExceededError (the store has no room for them), NoQuorumError.
        """
        jobs = []
        with self._store.session() as session:
            for source in sources:
                check_free(session.state, source.name)
            directories = [
                prepared.get(source.digest)
                or PreparedDirectory(
                    ImportHead(self.import_id, source.digest, source.name, _choose(session, source)), self._env.new_id()
                )
                for source in sources
            ]
            streams = [
                source.stream(directory.incarnation, directory.head.placement)
                for source, directory in zip(sources, directories, strict=True)
            ]
            consumers = sum(len(stream.consumers) for stream in streams)
            check_room(session.state, streams, {"max_streams": len(streams), "max_consumers": consumers})
            new = [directory.incarnation for directory in directories if directory.head.source not in prepared]
            if new:
                session.propose(PrepareStreams(tuple(new), session.state.time_at(self._env.now_ns()) + PREPARED_NS))
            for source, directory, stream in zip(sources, directories, streams, strict=True):
                appends.make_directories(session, stream.incarnation, stream.placement, self._env)
                place = self._place(session, stream)
                if self._resumes:
                    write_record(place.volumes, stream.incarnation, HEAD_FILE, directory.head, self._env)
                jobs.append(ImportJob(source, stream, place, source.parts(place)))
        return jobs

    def _place(self, session: Session, stream: StreamState) -> BlockPlace:
        config = stream.config
        return BlockPlace(
            volumes=placement.write_volumes(session.state, stream, session.volumes),
            needed=placement.quorum(stream),
            codec=config.compression,
            store_id=session.state.store_id,
            incarnation=stream.incarnation,
            transaction_id=self._env.now_ns().to_bytes(8, "big") + self._env.random_bytes(8),
            block_max_msgs=config.block_max_msgs,
            block_max_bytes=config.block_max_bytes,
        )

    def fill(self, jobs: Sequence[ImportJob[P]]) -> list[Assembled]:
        """Write what is missing, and bring the streams with one entry.

        Raises what `run` does, LimitExceededError, NoQuorumError (a block is on too few volumes by now).
        """
        try:
            records = {job.stream.incarnation: self._written_before(job) if self._resumes else {} for job in jobs}
            resumed = {incarnation: set(done) for incarnation, done in records.items()}
            self._write(jobs, records)
            with self._store.session() as session:
                made = [
                    self._assembled(session, job, records[job.stream.incarnation], resumed[job.stream.incarnation])
                    for job in jobs
                ]
                left = [each for done in made for each in preparation.leftovers(session.writable, done.stream)]
                session.propose(_command(made))
                preparation.sweep(left)
        except OutcomeUnknownError:
            raise  # the streams may be there: their blocks stay
        except (Exception, KeyboardInterrupt):
            if not self._resumes:  # and so no other process has to do with these directories
                for job in jobs:
                    preparation.remove_directory(job.place.volumes, job.stream.incarnation, self._env)
            raise
        return made

    def _write(self, jobs: Sequence[ImportJob[P]], records: Mapping[bytes, dict[str, PartRecord]]) -> None:
        """Write the parts that have no record; add theirs."""
        missing: list[P] = []
        for job in jobs:
            done = records[job.stream.incarnation]
            missing += [part for part in job.parts if part.file not in done]
            self._progress.step(sum(part.step_count for part in job.parts if part.file in done))
        sizes = {incarnation: sum(map(_size_of, done.values())) for incarnation, done in records.items()}
        state = self._store.view().state
        for record in self._run(missing, self._progress.step):
            records[record.incarnation][record.file] = record
            sizes[record.incarnation] += _size_of(record)
            check_room(state, [replace(job.stream, data_size=sizes[job.stream.incarnation]) for job in jobs], {})

    def _assembled(
        self, session: Session, job: ImportJob[P], by_file: Mapping[str, PartRecord], resumed: set[str]
    ) -> Assembled:  # fmt: skip
        records = tuple(by_file[part.file] for part in job.parts)
        rows = np.concatenate([np.empty(0, BLOCK_DTYPE), *(record.blocks() for record in records)])
        usable = [
            volume
            for volume in session.writable
            if volume.volume_id in job.stream.placement and placement.is_recorded(session.state, volume)
        ]
        for at, (block, volume_ids) in enumerate(self._holders(job, records, usable, self._rereads)):
            if len(volume_ids) < job.place.needed:
                then = "the same command, run again, resumes" if self._resumes else "nothing was stored"
                raise NoQuorumError(
                    f"stream {job.stream.name!r}: block {block.block_id.hex()} is whole on {len(volume_ids)} of "
                    f"{len(job.stream.placement)} volumes, {job.place.needed} are needed; {then}"
                )
            rows["holders"][at] = placement.holders_mask(job.stream, volume_ids)
        assembled = job.source.assembled(job.stream, rows, records, self.import_id, self._env.now_ns())
        written_count = sum(len(record.holders) for record in records if record.file not in resumed)
        return replace(assembled, records=records, written_count=written_count)

    # --- copies of blocks

    def _written_before(self, job: ImportJob[P]) -> dict[str, PartRecord]:
        """Return the parts that an earlier run has written: a record says so, and a quorum has every block, whole."""
        sources = {part.file: part.source for part in job.parts}
        records: dict[str, PartRecord] = {}
        incarnation, volumes = job.stream.incarnation, self._store.volumes()
        for left in preparation.leftovers(volumes, job.stream, records_only=True):
            for name in sources.keys() & set(left.records) - records.keys():
                record = read_record(left.blocks, incarnation, name)
                if isinstance(record, PartRecord) and (record.file, record.source) == (name, sources[name]):
                    if record.incarnation == incarnation and self._is_whole(job, record, volumes):
                        records[name] = record
        return records

    def _is_whole(self, job: ImportJob[P], record: PartRecord, volumes: Sequence[Volume]) -> bool:
        usable = [volume for volume in volumes if volume.volume_id in job.stream.placement]
        holders = self._holders(job, [record], usable, rereads=True)
        return all(len(volume_ids) >= job.place.needed for _, volume_ids in holders)

    def _holders(
        self, job: ImportJob[P], records: Sequence[PartRecord], volumes: Sequence[Volume], rereads: bool
    ) -> list[tuple[LiveBlock, list[bytes]]]:  # fmt: skip
        """Return the blocks of these records, each with the volumes that fsynced it and have it still."""
        blocks = [block for record in records for block in job.blocks(record)]
        holders: list[list[bytes]] = [[] for _ in blocks]
        synced = [held for record in records for held in record.holders]

        def positions(volume: Volume) -> list[int]:
            return [
                at
                for at, (block, held) in enumerate(zip(blocks, synced, strict=True))
                if volume.identity is not None
                and (volume.volume_id, volume.identity.instance_id) in held
                and (not copies.look(block, volume.blocks, job.stream) if rereads else _opens(block, volume))
            ]

        outcomes = self._env.parallel([partial(positions, volume) for volume in volumes])
        for volume, outcome in zip(volumes, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            for at in outcome:
                holders[at].append(volume.volume_id)
        return list(zip(blocks, holders, strict=True))


def _opens(block: LiveBlock, volume: Volume) -> bool:
    """Return whether a volume has a block: header, footer and digest."""
    try:
        with closing(volume.blocks.open(block.written_as, block.block_id)) as file:
            BlockReader.open(file, block.expected)
    except (StorageError, OSError) as error:
        raise_if_of_process(error)
        logger.warning("%s: %s", volume.path, error)
        return False
    return True


def _choose(session: Session, source: StreamSource[Any]) -> tuple[bytes, ...]:
    """Return the volumes for as many replicas as the source asks for, or as there can be."""
    count = placement.possible_replicas(source.num_replicas, len(ids_of_voters(session.state.voters)))
    return placement.choose(session.state, session.writable, count)


def check_free(state: StoreState, name: str) -> None:
    """Raise AlreadyExistsError if the store has a stream of that name."""
    existing = state.streams.get(name.casefold())
    if existing is not None:
        raise AlreadyExistsError(
            f"stream {existing.name!r} exists: choose another name (--as), or delete this one first"
        )


def check_room(state: StoreState, streams: Sequence[StreamState], more: Mapping[str, int]) -> None:
    """Raise LimitExceededError if the store's totals have no room for what is known of these streams, and for more."""
    kept = [kept_of(stream) for stream in streams]
    sizes = {"max_msgs": sum(count for count, _ in kept), "max_bytes": sum(size for _, size in kept)}
    error = over_totals(state, {**sizes, **more})
    if error is not None:
        raise error


def _size_of(record: PartRecord) -> int:
    return int(record.blocks()["data_size"].sum())


def _command(made: Sequence[Assembled]) -> RestoreStreams:
    encoded = tuple(encode_stream(assembled.stream) for assembled in made)
    size = sum(map(len, encoded))
    if size > STREAMS_SIZE_MAX:
        raise RequirementError(
            f"the streams have {size} bytes of metadata, one entry takes {STREAMS_SIZE_MAX}; name some, by --stream"
        )
    return RestoreStreams(encoded, tuple(event for assembled in made for event in assembled.events))
