"""Copying a stream from one store into another: with its sequences, times, holes and consumers, exactly once.

The two may be of different kinds, on disks and in object stores. It is done as a restore of a backup is
(restored_streams.py), with the blocks of a live store, and as an import it can be resumed: the directory says what is
copied into it, and each block that is durable has a record beside it. The same command, run again, writes what is
missing; messages that the source got meanwhile come along. What a copy was made from is in its metadata.

    VOLUME/streams/<incarnation>/import.part           the stream that is being copied
    VOLUME/streams/<incarnation>/<source block>.part   what became of one block

Format: docs/formats/import.md.
"""

from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np

from storage_core.errors import AlreadyExistsError, DataLossError, NotFoundError
from storage_core.files import File
from storage_core.metadata.commands import Event, PrepareStreams, RestoreStreams
from storage_core.metadata.config import check_name
from storage_core.metadata.manifest import decode_blocks, encode_blocks
from storage_core.metadata.state import StreamState, encode_stream
from storage_core.store.backups.backup import stream_summary
from storage_core.store.backups.restored_streams import PREPARED_NS, StreamRewriter, choose_placement, renamed
from storage_core.store.ensemble.metadata_client import translated
from storage_core.store.ensemble.session import Session
from storage_core.store.imports.assembly import leftovers, prepared_heads, sweep
from storage_core.store.imports.parts import HEAD_FILE, ImportHead, PartRecord, read_record, write_record
from storage_core.store.opened import OpenStore
from storage_core.store.replicas import copies
from storage_core.store.replicas.live_blocks import LiveBlock
from storage_core.store.volume import placement
from storage_core.store.volume.block_store import PART_SUFFIX
from storage_core.store.writing import appends
from storage_core.suggestions import instead

ORIGIN_KEY = "jstream.copy_of"  # of a stream's metadata: the store and the incarnation that it was copied from
Progress = Callable[[int, int], None]


def copy_stream(
    source: OpenStore, target: OpenStore, name: str, as_name: str = "", progress: Progress | None = None
) -> dict[str, Any]:
    """Copy a stream into another store; run again, resume, or say that it was done. Returns a report.

    `progress` hears (blocks done, blocks in all). Raises NotFoundError, AlreadyExistsError (the target has another
    stream of that name), DataLossError (a block of which no copy is whole: repair the source first), ValueError (a
    name), and what writing to a store raises; what was written until then is kept for a week, for the same copy.
    """
    return _Copying(source, target, name, as_name or name, progress or (lambda done, total: None)).run()


class _Copying:
    def __init__(self, source: OpenStore, target: OpenStore, name: str, as_name: str, progress: Progress) -> None:
        self._source, self._target, self._env = source, target, target.environment
        self._progress = progress
        self._state = source.view().state
        stream = self._state.stream(name)
        if stream is None:
            known = sorted(stream.name for stream in self._state.streams.values())
            raise NotFoundError(f"no stream {name!r} in {source.label}{instead(name, known)}")
        check_name(as_name, "as")
        self._stream, self._name = stream, as_name
        self._origin = f"{self._state.store_id.hex()}/{stream.incarnation.hex()}"
        self._digest = blake2b(f"{self._origin}/{as_name}".encode(), digest_size=16).digest()

    def run(self) -> dict[str, Any]:
        existing = self._target.view().state.stream(self._name)
        if existing is not None:
            return self._already(existing)
        with translated(self._target.label):
            with self._target.session() as session:
                target = self._prepared(session) or self._prepare(session)
                volumes = session.volumes
            store_id = session.state.store_id
            handles = placement.write_volumes(session.state, target, volumes)
            writing = StreamRewriter(self._state, self._open_whole, self._stream, target, handles, self._env)
            copied, total = 0, len(self._stream.blocks)
            for done, (block, row) in enumerate(writing.blocks()):
                self._progress(done, total)
                known = self._done_before(target, block)
                if known is not None:
                    writing.add(store_id, *known)
                    continue
                written = writing.write_block(store_id, block, row)
                if written is not None:
                    record = self._record(target, block, written.row, written.holders)
                    write_record(handles, target.incarnation, _file_of(block), record, self._env)
                    copied += 1
            self._progress(total, total)
            with self._target.session() as session:
                made = writing.finished(session)
                left = leftovers(session.writable, made)
                reason = f"from {self._source.label}"
                event = Event("copied", made.name, after=f"{made.message_count} messages", reason=reason)
                session.propose(RestoreStreams((encode_stream(made),), (event,)))
                sweep(left)
        return self._report(made, copied, False)

    def _already(self, existing: StreamState) -> dict[str, Any]:
        if existing.config.metadata.get(ORIGIN_KEY) != self._origin:
            raise AlreadyExistsError(
                f"stream {existing.name!r} exists in {self._target.label}, and is no copy of {self._stream.name!r} of "
                f"{self._source.label}: copy under another name (--as), or delete that one first"
            )
        if existing.next_sequence < self._stream.next_sequence:
            raise AlreadyExistsError(
                f"stream {existing.name!r} of {self._target.label} is a copy up to sequence "
                f"{existing.next_sequence - 1}, and the source has {self._stream.next_sequence - 1} by now: delete the "
                "copy, and copy again"
            )
        left = leftovers(self._target.volumes(), existing, records_only=True)
        if left:  # of a run that was killed when it was all but done
            with self._target.session():
                sweep(left)
        return self._report(existing, 0, True)

    def _report(self, made: StreamState, copied: int, already: bool) -> dict[str, Any]:
        consumers = sorted(consumer.name for consumer in made.consumers.values())
        return {
            **stream_summary(made), "copy_of": self._stream.name, "copied": copied, "already": already,
            "consumers": consumers,
        }  # fmt: skip

    # --- the directory

    def _prepared(self, session: Session) -> StreamState | None:
        """Return the stream to be, if an earlier run has begun with it."""
        for head, incarnation in prepared_heads(session.state, session.volumes, self._env):
            if head.source == self._digest and head.name == self._name:
                return self._stream_to_be(incarnation, head.placement)
        return None

    def _prepare(self, session: Session) -> StreamState:
        incarnation = self._env.new_id()
        session.propose(PrepareStreams((incarnation,), session.state.time_at(self._env.now_ns()) + PREPARED_NS))
        target = self._stream_to_be(incarnation, choose_placement(session, self._stream))
        appends.make_directories(session, incarnation, target.placement, self._env)
        head = ImportHead(self._env.new_id(), self._digest, self._name, target.placement)
        handles = placement.write_volumes(session.state, target, session.volumes)
        write_record(handles, incarnation, HEAD_FILE, head, self._env)
        return target

    def _stream_to_be(self, incarnation: bytes, placed: tuple[bytes, ...]) -> StreamState:
        made = renamed(self._stream, self._name, incarnation, placed)
        labels = {**made.config.metadata, ORIGIN_KEY: self._origin}
        return replace(made, config=msgspec.structs.replace(made.config, metadata=labels))

    # --- blocks

    def _open_whole(self, block: LiveBlock) -> File:
        """Open a copy of a block that is whole. Raises DataLossError."""
        wrong = []
        for volume in self._source.volumes():
            if volume.volume_id not in block.held_by or volume.identity is None:
                continue
            problems = copies.look(block, volume.blocks, self._stream)
            if not problems:
                return volume.blocks.open(block.written_as, block.block_id)
            wrong.append(f"{block.path_in(volume.blocks)}: {problems[0].reason}")
        raise DataLossError(
            f"stream {block.stream!r}: no copy of sequences {block.first} to {block.end - 1} is whole"
            f"{''.join(f'; {reason}' for reason in wrong)}. Repair the source (jstream repair), then copy again"
        )

    def _record(self, target: StreamState, block: LiveBlock, row: np.void, holders: tuple[bytes, ...]) -> PartRecord:
        instances = {volume.volume_id: volume.identity for volume in self._target.volumes()}
        held = tuple((at, identity.instance_id) for at in holders if (identity := instances.get(at)) is not None)
        return PartRecord(
            target.incarnation, block.block_id, 0, encode_blocks(np.array([row])), (None,), (held,), b"", b"", 0, ()
        )

    def _done_before(self, target: StreamState, block: LiveBlock) -> tuple[np.void, tuple[bytes, ...]] | None:
        """Return the row of a block that an earlier run has written, and who has it; it is looked at in the end."""
        volumes = {volume.volume_id: volume for volume in self._target.volumes() if volume.identity is not None}
        for volume_id in target.placement:
            volume = volumes.get(volume_id)
            record = read_record(volume.blocks, target.incarnation, _file_of(block)) if volume is not None else None
            if not isinstance(record, PartRecord) or record.source != block.block_id:
                continue
            (row,) = decode_blocks(record.rows, "a copy")
            holders = tuple(at for at, instance in record.holders[0] if _is(volumes.get(at), instance))
            if len(holders) >= placement.quorum(target):
                return row, holders
        return None


def _is(volume: Any, instance_id: bytes) -> bool:
    return volume is not None and volume.identity.instance_id == instance_id


def _file_of(block: LiveBlock) -> str:
    return f"{block.block_id.hex()}{PART_SUFFIX}"
