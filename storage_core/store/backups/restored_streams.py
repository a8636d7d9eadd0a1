"""Restoring streams of a backup into a store that there is, beside what it has.

A restored stream is a new incarnation, also under its old name: the old one may still wait to be unlinked, and blocks
carry who they were written for. So its blocks are written anew; sequences, holes, times, headers and msg_ids stay what
they were, and what was removed is in the blocks still, and not shown, as it was. Two entries frame the work:

    prepare_streams    the new directories are pending deletes of a later time: then what a killed restore left goes
    restore_streams    the streams are there, with everything; before it nobody sees anything of them
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from storage_core.block.damage import FrameDamage
from storage_core.block.format import BlockIdentity, BlockSummary
from storage_core.block.reader import BlockReader
from storage_core.block.request import FrameRequest
from storage_core.errors import (
    AlreadyExistsError,
    CorruptionError,
    NoQuorumError,
    OutcomeUnknownError,
    RequirementError,
)
from storage_core.files import File
from storage_core.metadata.commands import Event, PrepareStreams, RestoreStreams, ids_of_voters
from storage_core.metadata.config import NAME_PATTERN
from storage_core.metadata.manifest import Table
from storage_core.metadata.state import StoreState, StreamState, encode_stream
from storage_core.quantities import rfc3339
from storage_core.raft.log_format import PAYLOAD_SIZE_MAX as ENTRY_SIZE_MAX
from storage_core.schema import FRAME_SCHEMA
from storage_core.sequences import SequenceSet
from storage_core.store.backups.backup import PathLike, Progress, open_backup, selected, stream_summary
from storage_core.store.backups.backup_format import Backup
from storage_core.store.backups.restore import ProgressCounter, check_files
from storage_core.store.ensemble.metadata_client import translated
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.opened import OpenStore
from storage_core.store.replicas import copies
from storage_core.store.replicas.live_blocks import LiveBlock, live_blocks, new_block
from storage_core.store.volume import placement
from storage_core.store.volume.block_store import VolumeHandle
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing import appends
from storage_core.store.writing.mirrored_file import MirroredFile
from storage_core.store.writing.sink import one_block

logger = logging.getLogger(__name__)
STREAMS_SIZE_MAX = ENTRY_SIZE_MAX - (64 << 10)  # bytes of streams that come into a store: they go into one entry
PREPARED_NS = 7 * 24 * 3_600 * 1_000_000_000  # for so long a restore may take; what it left is unlinked after it
_COLUMNS = ("sequence", *FRAME_SCHEMA.names)


def restore_streams(
    store: OpenStore,
    directory: PathLike,
    streams: Sequence[str] | None = None,
    as_names: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Restore streams of a backup, None for all, into the store: all of them, or none.

    `as_names`: what to call them, by the name in the backup. `progress` hears (blocks done, blocks in all). Returns
    what was restored. Raises NotFoundError, AlreadyExistsError, ValueError (a name), CorruptionError (the backup is
    damaged), NoQuorumError, DiskFullError, OutcomeUnknownError; unless it is the last, the store is as before.
    """
    env, backup = store.environment, open_backup(directory, store.environment)
    chosen = selected(
        backup, sorted(stream.name for stream in backup.state.streams.values()) if streams is None else streams
    )
    names = _names(chosen, as_names or {})
    _check_free(store.view().state, names)
    counter = ProgressCounter(progress, 2 * sum(len(stream.blocks) for stream in chosen))
    check_files(backup, chosen, counter, env)
    with translated(store.label):
        with store.session() as session:
            targets = _prepare(session, chosen, names, env)
            volumes = session.volumes
        backed_up = backup.files(env.files)

        def open_block(block: LiveBlock) -> File:
            return backed_up.open(block.written_as, block.block_id)

        writings = [
            StreamRewriter(
                backup.state, open_block, stream, target, placement.write_volumes(session.state, target, volumes), env
            )
            for stream, target in zip(chosen, targets, strict=True)
        ]
        try:
            for writing in writings:
                writing.write(session.state.store_id, counter)
            with store.session() as session:
                made = [writing.finished(session) for writing in writings]
                session.propose(_command(backup, made))
        except OutcomeUnknownError:
            raise  # the streams may be there: their blocks stay
        except (Exception, KeyboardInterrupt):
            for writing in writings:
                writing.discard()
            raise
    return _report(store, backup, chosen, names)


def _names(chosen: Sequence[StreamState], as_names: Mapping[str, str]) -> list[str]:
    """Return what each stream is to be called. Raises ValueError."""
    strange = sorted(set(as_names) - {stream.name for stream in chosen})
    if strange:
        raise ValueError(f"as_names: {strange[0]!r} is not among the streams that are restored")
    names = [as_names.get(stream.name, stream.name) for stream in chosen]
    for name in names:
        if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
            raise ValueError(f"as_names: {name!r} is no name of a stream; valid names are 1 to 128 of A-Z a-z 0-9 _ -")
    if len({name.casefold() for name in names}) < len(names):
        raise ValueError(f"as_names: two streams cannot have one name: {', '.join(names)}")
    return names


def _check_free(state: StoreState, names: Sequence[str]) -> None:
    for name in names:
        existing = state.streams.get(name.casefold())
        if existing is not None:
            raise AlreadyExistsError(
                f"stream {existing.name!r} exists: restore it under another name (--as), or delete this one first"
            )


def _prepare(
    session: Session, chosen: Sequence[StreamState], names: Sequence[str], env: Environment
) -> list[StreamState]:
    """Return the streams to be, without blocks, after their directories were made and will not be there for ever."""
    _check_free(session.state, names)
    incarnations = tuple(env.new_id() for _ in chosen)
    session.propose(PrepareStreams(incarnations, session.state.time_at(env.now_ns()) + PREPARED_NS))
    targets = []
    for stream, name, incarnation in zip(chosen, names, incarnations, strict=True):
        placed = choose_placement(session, stream)
        appends.make_directories(session, incarnation, placed, env)
        targets.append(renamed(stream, name, incarnation, placed))
    return targets


def choose_placement(session: Session, stream: StreamState) -> tuple[bytes, ...]:
    """Return the volumes for as many replicas as the stream had, or as there can be."""
    count = min(stream.config.num_replicas, len(ids_of_voters(session.state.voters)))
    return placement.choose(session.state, session.writable, count - (1 - count % 2))


def renamed(stream: StreamState, name: str, incarnation: bytes, placed: tuple[bytes, ...]) -> StreamState:
    """Return the stream as it is to be, still with the blocks that it had."""
    return replace(
        stream,
        config=msgspec.structs.replace(stream.config, name=name, num_replicas=len(placed)),
        incarnation=incarnation,
        placement=placed,
        histories=(),
        origins=(),
        lost_blocks=Table.of(stream.lost_blocks.rows[:0]),  # whose copies are of another incarnation
        writers=stream.writers if name == stream.name else {},  # nobody has written to a copy
    )


def _command(backup: Backup, made: Sequence[StreamState]) -> RestoreStreams:
    reason = f"from {backup.directory}, made at {rfc3339(backup.manifest.made_ns)} at index {backup.manifest.index}"
    events = tuple(
        Event("restored", stream.name, after=f"{stream.message_count} messages", reason=reason) for stream in made
    )  # fmt: skip
    command = RestoreStreams(tuple(encode_stream(stream) for stream in made), events)
    size = sum(len(stream) for stream in command.streams)
    if size > STREAMS_SIZE_MAX:
        raise RequirementError(
            f"the streams have {size} bytes of metadata, one entry takes {STREAMS_SIZE_MAX}; restore some"
        )
    return command


def _report(store: OpenStore, backup: Backup, chosen: Sequence[StreamState], names: Sequence[str]) -> dict[str, Any]:
    state = store.view().state
    streams = []
    for before, name in zip(chosen, names, strict=True):
        stream = state.stream(name)
        if stream is None:  # deleted again since
            continue
        streams.append(
            {
                "name": stream.name,
                "restored_from": before.name,
                **stream_summary(stream),
                "num_replicas_before": before.config.num_replicas,
            }
        )
    return {
        "directory": str(backup.directory),
        "store_id": state.store_id.hex(),
        "time": rfc3339(backup.manifest.made_ns),
        "index": backup.manifest.index,
        "streams": streams,
    }


# --- blocks under a new identity


@dataclass(frozen=True, slots=True)
class Written:
    """A block of the stream to be."""

    block: LiveBlock
    row: np.void  # one of BLOCK_DTYPE, without holders
    holders: tuple[bytes, ...]  # volumes that have it, fsynced
    file: MirroredFile | None  # None: an earlier run has written it


class StreamRewriter:
    """One stream being written anew, from blocks that `open_block` finds: those of a backup, or of another store."""

    def __init__(
        self, state: StoreState, open_block: Callable[[LiveBlock], File], stream: StreamState, target: StreamState,
        volumes: Sequence[VolumeHandle], env: Environment,
    ) -> None:  # fmt: skip
        """`state`: of the store that `stream` is of."""
        self._state, self._open_block, self._stream, self._target = state, open_block, stream, target
        self._env = env
        self._volumes = list(volumes)
        self._written: list[Written] = []
        self._transaction = env.now_ns().to_bytes(8, "big") + env.random_bytes(8)

    def write(self, store_id: bytes, progress: ProgressCounter) -> None:
        """Write every block, and make it durable. Raises OSError if too few volumes take one."""
        for block, row in self.blocks():
            self.write_block(store_id, block, row)
            progress.step()

    def blocks(self) -> Iterator[tuple[LiveBlock, np.void]]:
        """Yield what there is to write: blocks of the stream as it was, with their rows of the manifest."""
        yield from zip(live_blocks(self._state, self._stream), self._stream.blocks.rows, strict=True)

    def write_block(self, store_id: bytes, block: LiveBlock, row: np.void) -> Written | None:
        """Write one block, durably; None if nothing is left of it. Raises OSError if too few volumes take it."""
        identity = BlockIdentity(store_id, self._target.incarnation, self._env.new_id(), self._transaction)
        written = self._rewrite(block, identity, row)
        if written is not None:
            self._written.append(written)
        return written

    def add(self, store_id: bytes, row: np.void, holders: tuple[bytes, ...]) -> None:
        """Count a block in that an earlier run has written: `row` as the manifest will have it."""
        self._written.append(Written(new_block(store_id, self._target, row, holders), row, holders, None))

    def _rewrite(self, block: LiveBlock, identity: BlockIdentity, row: np.void) -> Written | None:
        """Write one block, without frames of which nothing is left; None if nothing is left at all."""
        with closing(self._open_block(block)) as source:
            reader = BlockReader.open(source, block.expected)
            needed = placement.quorum(self._target)
            with one_block(self._volumes, identity, needed, reader.codec, self._env) as (writer, file):
                hashed, hashes = _msg_ids(reader)
                for batch in reader.read(self._request(block)):
                    relative = batch.column("sequence").to_numpy() - block.first
                    frame = pa.RecordBatch.from_arrays(
                        [batch.column(name) for name in FRAME_SCHEMA.names], schema=FRAME_SCHEMA
                    )
                    writer.write(frame, _hashes_of(relative, hashed, hashes), relative)
                if not writer.row_count:
                    file.discard()
                    return None
                summary = writer.finish()
        return self._as_written(summary, identity, row, file)

    def _request(self, block: LiveBlock) -> FrameRequest:
        removed, low_watermark = self._stream.removed, self._stream.low_watermark

        def hear(damage: FrameDamage) -> None:
            shown = SequenceSet.from_ranges([(max(damage.first, low_watermark), max(damage.end, low_watermark))])
            if damage.row_count and removed.absent_among(shown):
                raise CorruptionError(f"{damage.file} was changed meanwhile: {damage.reason}")

        return FrameRequest(columns=_COLUMNS, first_sequence=block.first, on_damage=hear)

    def _as_written(self, summary: BlockSummary, identity: BlockIdentity, row: np.void, file: MirroredFile) -> Written:
        """Return the block as the manifest will have it: where and when it was, with what is in it now."""
        made = row.copy()
        made["block_id"], made["digest"] = np.void(summary.block_id), np.void(summary.digest)
        for name in ("span", "row_count", "file_size", "data_size", "time_min_ns", "time_max_ns", "msg_id_count"):
            made[name] = getattr(summary, name)
        return Written(new_block(identity.store_id, self._target, made, file.holders), made, file.holders, file)

    def finished(self, session: Session) -> StreamState:
        """Return the stream with all its blocks, each read again on every volume that counts for it.

        Raises NoQuorumError if there are fewer of these than a majority of the placement.
        """
        target, synced = self._target, {volume.volume_id: volume.instance_id for volume in self._volumes}
        usable = [
            volume
            for volume in session.writable
            if placement.is_recorded(session.state, volume)
            and volume.identity is not None
            and synced.get(volume.volume_id) == volume.identity.instance_id
        ]
        looks = self._env.parallel([partial(self._good, volume) for volume in usable])
        good: dict[bytes, set[bytes]] = {}
        for volume, outcome in zip(usable, looks, strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            good[volume.volume_id] = outcome
        rows = np.array([written.row for written in self._written], target.blocks.rows.dtype)
        for at, written in enumerate(self._written):
            holders = [volume_id for volume_id, blocks in good.items() if written.block.block_id in blocks]
            if len(holders) < placement.quorum(target):
                raise NoQuorumError(
                    f"stream {target.name!r}: block {written.block.block_id.hex()} is whole on {len(holders)} of "
                    f"{len(target.placement)} volumes, {placement.quorum(target)} are needed; nothing was restored"
                )
            rows[at]["holders"] = placement.holders_mask(target, holders)
        return replace(target, blocks=Table.of(rows))

    def _good(self, volume: Volume) -> set[bytes]:
        """Return the blocks that a volume has whole, to the last bit."""
        return {
            written.block.block_id
            for written in self._written
            if volume.volume_id in written.holders and not copies.look(written.block, volume.blocks, self._target)
        }

    def discard(self) -> None:
        """Take everything back: no entry names it."""
        for written in self._written:
            if written.file is not None:
                written.file.discard()
        for volume in self._volumes:
            try:
                volume.blocks(self._env.files).remove(self._target.incarnation)
            except OSError as error:
                logger.info("%s: %s", volume.uri, os.strerror(error.errno or 0))


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
