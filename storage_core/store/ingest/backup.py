"""Backups: all of a store, or some of its streams, as of one index, in a directory that looks like a volume.

It has blocks where a volume has them and the state in a snapshot of the metadata, but no identity and no log: it does
not vote, and no store opens it.

    BACKUP/jstream.backup                            the mark of a backup, of whose store it is
    BACKUP/jstream.unfinished                        the same mark while the backup is being made
    BACKUP/streams/<incarnation>/<block id>.blk      blocks, byte for byte
    BACKUP/meta/<index, 16 hex>.snap                 the state as of that index, written last

    1  the mark of an unfinished backup, durable
    2  each block: put together from whichever copies are whole, fsynced, named, and read again from the disk
    3  the snapshot, durable; an event in it says when and where the backup was made
    4  the mark gets its name; only now is there a backup

What is in it is decided by one view at the beginning: blocks never change, and those that are removed meanwhile stay on
the volumes for deleted_block_retention. No lock of the store is held. An interrupted backup is resumed by making it
again: it is then one of that time, and blocks that are there and whole are not copied again. Source:
docs/formats/volume.md, "Backups".
"""

import os
import socket
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import Any

import msgspec

from storage_core.checksum import CRC_SIZE, add_crc, crc32c, crc_is_good
from storage_core.errors import (
    AlreadyExistsError,
    CorruptionError,
    DataLossError,
    NotAStoreError,
    NotFoundError,
    RequirementError,
    StalePlanError,
    UnsupportedVersionError,
)
from storage_core.file_kinds import BACKUP_MARK
from storage_core.files import write_durably
from storage_core.metadata import events as event_history
from storage_core.metadata.commands import Event
from storage_core.metadata.invariants import check_state
from storage_core.metadata.manifest import ARCHIVE_DTYPE, PENDING_DELETE_DTYPE, Table
from storage_core.metadata.state import TRANSACTION_DTYPE, StoreState, Streams, StreamState, decode_state, encode_state
from storage_core.paths import is_in_object_store
from storage_core.quantities import rfc3339
from storage_core.raft.entry import EntryId
from storage_core.raft.log_format import PAGE_SIZE
from storage_core.raft.snapshot_format import STATE_SIZE_MAX, SnapshotBody, decode_body
from storage_core.store.ensemble.metadata_client import translated
from storage_core.store.ensemble.view import View
from storage_core.store.environment import Environment
from storage_core.store.ingest.progress import Progress
from storage_core.store.opened import OpenStore
from storage_core.store.replicas import copies
from storage_core.store.replicas.live_blocks import LiveBlock, live_blocks
from storage_core.store.replicas.verification import Damage
from storage_core.store.volume import identity, locks, log, placement
from storage_core.store.volume.block_store import BlockStore
from storage_core.store.volume.identity import BACKUP_FILE, STREAMS, UNFINISHED, VolumeIdentity
from storage_core.suggestions import instead

BACKED_UP, ALL_STREAMS = "backed_up", "all streams"
MAGIC = b"JSTRMBKP"
FORMAT_VERSION = 2  # 1 had a manifest of its own, and numbers for names of blocks
_PROLOGUE = Struct("<8sI")  # magic, version; its CRC follows, in every version
_MARK = Struct("<8sII16s")  # ... and the store's id; the CRC follows
_NOBODY = bytes(16)  # volume, instance and candidate of a snapshot that is of no volume
PathLike = str | os.PathLike[str]


def backup(
    store: OpenStore, directory: PathLike, streams: Sequence[str] | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Back up the store, or these streams, into a directory that is missing, empty or holds an unfinished backup.

    `progress` gets (blocks done, blocks in all). Returns what is in it. Raises NotFoundError (no such stream),
    AlreadyExistsError (something else is there, or a finished backup), DataLossError (a block of which no copy is
    whole: `repair` says what is lost), StalePlanError (it took longer than removed messages are kept), DiskFullError.
    """
    path, env = absolute(directory), store.environment
    for volume in store.volumes():
        check_apart(path, volume.path)
    view = store.view()
    state = _selected(store, view.state, streams)
    _check_empty_or_unfinished(path, state.store_id, env)
    with translated(path):
        _make_directory(path, state.settings.is_shared, env)
        with locks.hold(env.files, [path], 1, 0.0):
            _check_empty_or_unfinished(path, state.store_id, env)  # another process may have been faster
            with translated(f"{path}: the backup is unfinished, repeat the command to resume it"):
                copied = _BlockCopier(store, path, state).fill(progress)
                made_ns = env.now_ns()
                after = ALL_STREAMS if streams is None else f"{len(state.streams)} streams"
                event = Event(BACKED_UP, after=after, reason=f"on {socket.gethostname()}", time_ns=made_ns)
                state = replace(state, events=event_history.with_events(state.events, (event,), made_ns))
                made = _finish(path, view, state, env)
    return {**describe(made), "copied": copied}


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup as its snapshot has it; whether its blocks are whole is another question."""

    directory: Path
    index: int  # of the metadata log: everything up to it is in the backup, nothing after it
    state: StoreState  # whose last event is that of the backup

    @property
    def made_ns(self) -> int:
        return self.state.events[-1].time_ns

    @property
    def block_count(self) -> int:
        return sum(len(stream.blocks) for stream in self.state.streams.values())

    def blocks(self, env: Environment) -> BlockStore:
        return BlockStore(env.files, self.directory)


def stream_summary(state: StreamState) -> dict[str, Any]:
    """Return what a stream is, for the JSON of a backup and of what was restored of it."""
    return {
        "name": state.name,
        "incarnation": state.incarnation.hex(),
        "messages": state.message_count,
        "bytes": state.data_size,
        "first_seq": state.first_sequence if state.message_count else 0,
        "last_seq": state.next_sequence - 1,
        "blocks": len(state.blocks),
        "num_replicas": state.config.num_replicas,
    }


def describe(opened_backup: Backup) -> dict[str, Any]:
    """Return what there is to know about a backup, for JSON."""
    state = opened_backup.state
    streams = [stream_summary(stream) for stream in sorted(state.streams.values(), key=lambda stream: stream.name)]
    sizes = [int(stream.blocks.rows["file_size"].sum()) for stream in state.streams.values()]
    return {
        "directory": str(opened_backup.directory),
        "store_id": state.store_id.hex(),
        "time": rfc3339(opened_backup.made_ns),
        "index": opened_backup.index,
        "whole_store": state.events[-1].after == ALL_STREAMS,
        "blocks": opened_backup.block_count,
        "file_size": sum(sizes),
        "streams": streams,
    }


def absolute(directory: PathLike) -> Path:
    """Return where a backup is. Raises ValueError for what names no place on a disk."""
    text = os.fspath(directory)
    if not text or "\0" in text:
        raise ValueError(f"directory of a backup: {text!r} is no path")
    if is_in_object_store(text):
        raise ValueError(f"directory of a backup: {text!r} is in an object store; a backup is a directory of a disk")
    return Path(os.path.realpath(os.path.expanduser(text)))


def check_apart(directory: Path, volume: Path) -> None:
    """Raise ValueError if a backup and a volume lie one in the other: what takes one away would take both."""
    root = Path(os.path.realpath(volume))
    if directory == root or root in directory.parents or directory in root.parents:
        raise ValueError(f"a backup in {directory} and a volume in {root}: one must not lie in the other")


def _selected(store: OpenStore, state: StoreState, names: Sequence[str] | None) -> StoreState:
    """Return the state with these streams, and without what only the volumes of the store mean something to."""
    chosen = state.streams
    if names is not None:
        if not names:
            raise ValueError("streams: none is named; None means all of them")
        chosen = Streams({name.casefold(): store.stream_state(name, state) for name in names})
    deletes, transactions = Table.empty(PENDING_DELETE_DTYPE), Table.empty(TRANSACTION_DTYPE)
    return replace(
        state,
        streams=chosen,
        pending_deletes=deletes,
        replaced=deletes,
        archives=Table.empty(ARCHIVE_DTYPE),
        transactions=transactions,
        volume_change=None,
    )


# --- the directory


def _check_empty_or_unfinished(path: Path, store_id: bytes, env: Environment) -> None:
    """Raise AlreadyExistsError unless the directory is free for a backup of this store, or has been begun by one."""
    if not env.files.is_directory(path):
        return
    names = set(env.files.list_directory(path)) - {locks.FILE_NAME}
    if UNFINISHED not in names:
        if BACKUP_FILE in names:
            raise AlreadyExistsError(f"{path} holds a backup already; a new one needs a directory of its own")
        if names:
            raise AlreadyExistsError(f"{path} is not empty and holds no backup: {', '.join(sorted(names)[:5])}")
        return
    try:
        begun = read_mark(path / UNFINISHED, env)
    except CorruptionError:
        begun = None
    if begun is None and names != {UNFINISHED}:
        raise AlreadyExistsError(f"{path / UNFINISHED} is damaged: remove {path}, or give another directory")
    if begun not in (None, store_id):
        assert begun is not None
        raise AlreadyExistsError(f"{path} holds an unfinished backup of another store, {begun.hex()}")
    strange = sorted(names - {UNFINISHED, log.DIRECTORY, STREAMS})
    if strange:
        raise AlreadyExistsError(f"{path} holds an unfinished backup, and what is none of it: {', '.join(strange[:5])}")


def _make_directory(path: Path, is_shared: bool, env: Environment) -> None:
    if env.files.is_directory(path):
        return
    if not env.files.is_directory(path.parent):
        raise ValueError(f"directory of a backup: {path} cannot be made, {path.parent} is not a directory")
    try:
        env.files.make_directory(path)
        env.files.share_directory(path, is_shared)
    except FileExistsError as error:
        raise AlreadyExistsError(f"{path} exists and is not a directory") from error
    env.files.sync_directory(path.parent)


def encode_backup_mark(store_id: bytes) -> bytes:
    """Return the mark of a backup of this store."""
    crc = crc32c(_PROLOGUE.pack(MAGIC, FORMAT_VERSION))
    return add_crc(_MARK.pack(MAGIC, FORMAT_VERSION, crc, store_id))


def decode_backup_mark(encoded: bytes, path: Path) -> bytes:
    """Return the id of the store whose backup it is. Raises CorruptionError, UnsupportedVersionError."""
    whole = _MARK.size + CRC_SIZE
    if len(encoded) >= _MARK.size:
        magic, version, crc, store_id = _MARK.unpack_from(encoded)
        if magic == MAGIC and crc == crc32c(encoded[: _PROLOGUE.size]) and version != FORMAT_VERSION:
            raise UnsupportedVersionError(
                f"{path} has version {version}; this program reads version {FORMAT_VERSION}: back up the store again"
            )
        if magic == MAGIC and len(encoded) == whole and crc_is_good(encoded):
            return bytes(store_id)
    raise CorruptionError(f"{path} is no mark of a backup: {len(encoded)} bytes, {whole} with a checksum are expected")


def read_mark(path: Path, env: Environment) -> bytes:
    with closing(env.files.open(path)) as file:
        return decode_backup_mark(file.read_at(0, BACKUP_MARK.size_max), path)


# --- filling it


@dataclass(frozen=True, slots=True)
class _Planned:
    """A block, the stream it is of, and the volumes that may have it, best first."""

    stream: StreamState
    block: LiveBlock
    sources: tuple[BlockStore, ...]


class _BlockCopier:
    """Copies blocks into the directory of a backup, which is locked."""

    def __init__(self, store: OpenStore, path: Path, state: StoreState) -> None:
        self._store, self._path, self._state, self._env = store, path, state, store.environment
        self._blocks = BlockStore(self._env.files, path)

    def fill(self, progress: Progress | None) -> int:
        """Copy what is not there yet; return how many blocks were copied."""
        self._begin()
        planned = list(self._plan())
        present = self._present_before(planned)
        copied = 0
        for at, plan in enumerate(planned):
            if progress is not None:
                progress(at, len(planned))
            if plan.block.block_id not in present or copies.look(plan.block, self._blocks, plan.stream):
                self._copy(plan.block, plan)
                copied += 1
        if progress is not None:
            progress(len(planned), len(planned))
        return copied

    def _begin(self) -> None:
        """Make the mark durable. One that is there is not written again: without it nobody would know what this is."""
        path, encoded = self._path / UNFINISHED, encode_backup_mark(self._state.store_id)
        if path.name not in self._env.files.list_directory(self._path):
            write_durably(self._env.files, path, encoded, replaces=True)
            return
        with closing(self._env.files.open(path, writable=True)) as file:
            file.write_at(0, encoded)
            file.truncate(len(encoded))
            file.sync()
        self._env.files.sync_directory(self._path)

    def _plan(self) -> Iterator[_Planned]:
        volumes = self._store.volumes()
        for key in sorted(self._state.streams):
            stream = self._state.streams[key]
            readable = placement.read_volumes(self._state, stream, volumes)
            for block in live_blocks(self._state, stream):
                best_first = sorted(readable, key=lambda volume: volume.volume_id not in block.held_by)
                yield _Planned(stream, block, tuple(volume.blocks for volume in best_first))

    def _present_before(self, planned: Sequence[_Planned]) -> set[bytes]:
        """Return the blocks of this backup that an earlier attempt named; what else it left is taken away."""
        files, blocks = self._env.files, self._blocks
        for name in (log.DIRECTORY, STREAMS):
            files.make_directory(self._path / name)
        files.sync_directory(self._path)
        for name in files.list_directory(self._path / log.DIRECTORY):
            files.unlink(self._path / log.DIRECTORY / name)
        wanted: dict[bytes, set[bytes]] = defaultdict(set)
        for plan in planned:
            wanted[plan.block.written_as].add(plan.block.block_id)
        present: set[bytes] = set()
        for incarnation in blocks.incarnations():
            blocks.sweep_replacements(incarnation)
            if incarnation not in wanted:
                blocks.remove(incarnation)
                continue
            named = set(blocks.ids(incarnation))
            present |= named & wanted[incarnation]
            for block_id in named - wanted[incarnation]:
                blocks.delete(incarnation, block_id)
        blocks.prepare(wanted)
        return present

    def _copy(self, block: LiveBlock, planned: _Planned) -> None:
        """Put a block together in the backup, durably, and read it again from the disk."""
        made = copies.copy_block(block, planned.sources, self._blocks)
        wrong = copies.look(block, self._blocks, planned.stream, afresh=True) if made.written else []
        if made.written and not wrong:
            return
        if made.written:
            self._blocks.delete(block.written_as, block.block_id)
        where = f"stream {block.stream!r}: sequences {block.first} to {block.end - 1}"
        stream = self._store.view().state.by_incarnation(block.incarnation)
        if stream is None or block.block_id not in {bytes(row) for row in stream.blocks.rows["block_id"]}:
            raise StalePlanError(
                f"{where} were removed or merged while the backup was made, and their block is not kept any more; "
                "repeat the command to resume it"
            )
        reasons = "; ".join([*(problem.reason for problem in wrong), *made.unread]) or "no copy of the block is whole"
        raise DataLossError(
            f"{where} cannot be backed up: {reasons} (block {block.block_id.hex()}); `jstream repair` repairs what "
            "can be repaired and says what is lost, then make the backup again to resume it"
        )


def _finish(path: Path, view: View, state: StoreState, env: Environment) -> Backup:
    """Write the snapshot and read it again; when the mark has its name there is a backup."""
    encoded = encode_state(state)
    if len(encoded) > STATE_SIZE_MAX:
        raise RequirementError(f"the metadata has {len(encoded)} bytes, a snapshot takes {STATE_SIZE_MAX}")
    env.files.drop_cache(write_state(path, state.store_id, EntryId(view.index, view.term, view.chain), encoded, env))
    made = read_state(path, state.store_id, env)
    env.files.replace(path / UNFINISHED, path / BACKUP_FILE)
    env.files.sync_directory(path)
    env.files.unlink(path / locks.FILE_NAME)  # whoever waits for it finds a backup that is finished
    return made


def write_state(directory: Path, store_id: bytes, entry: EntryId, encoded: bytes, env: Environment) -> Path:
    """Write the snapshot of a backup, durably; return where it is. `encoded`: the state after `entry`."""
    volume_log = log.VolumeLog(env.files, directory, VolumeIdentity(store_id, _NOBODY, _NOBODY, 0))
    volume_log.write_snapshot(entry, bytes(8), SnapshotBody(msgspec.Raw(encoded), 0, _NOBODY, {}))
    return volume_log.snapshot_path(entry.index)


# --- looking at one


def read_state(directory: Path, store_id: bytes, env: Environment) -> Backup:
    """Return what a directory's snapshot says. Raises CorruptionError, UnsupportedVersionError.

    The digest says that the bytes are those of whoever wrote them, and not that it was this program: the state is
    checked as well.
    """
    path = directory / log.DIRECTORY
    names = env.files.list_directory(path)
    if len(names) != 1:
        raise CorruptionError(f"{path} has {len(names)} files, that of a backup has one snapshot")
    path /= names[0]
    try:
        with closing(env.files.open(path)) as file:
            header, payload = log.read_snapshot_file(file)
    except CorruptionError as error:
        raise CorruptionError(f"{path}: {error}") from error
    except UnsupportedVersionError as error:
        raise UnsupportedVersionError(f"{path}: {error}") from error
    if (header.store_id, header.volume_id, f"{header.index:016x}.snap") != (store_id, _NOBODY, path.name):
        raise CorruptionError(f"{path} is of another store, of a volume, or of another index than its name says")
    try:
        state = decode_state(bytes(decode_body(payload).state))
        check_state(state)
        if not state.events or state.events[-1].kind != BACKED_UP or state.store_id != store_id:
            raise CorruptionError("its last event is not that of a backup of this store")
    except CorruptionError as error:
        raise CorruptionError(f"{path}: offset_bytes {PAGE_SIZE}: the state in the payload: {error}") from error
    return Backup(directory, header.index, state)


def open_backup(directory: PathLike, env: Environment) -> Backup:
    """Return the finished backup in a directory; its files are not looked at.

    Raises NotAStoreError (no backup, or an unfinished one), CorruptionError, UnsupportedVersionError.
    """
    path = absolute(directory)
    with translated(path):
        if not env.files.is_directory(path):
            raise NotAStoreError(f"{path} does not exist or is not a directory")
        names = env.files.list_directory(path)
        if UNFINISHED in names:
            raise NotAStoreError(f"{path} holds an unfinished backup; repeat the command to resume it")
        if BACKUP_FILE not in names:
            problem = "is a volume of a store" if identity.FILE_NAME in names else f"has no {BACKUP_FILE}"
            raise NotAStoreError(f"{path} holds no backup: it {problem}")
        return read_state(path, read_mark(path / BACKUP_FILE, env), env)


def damage_of(
    opened_backup: Backup, streams: Sequence[StreamState], env: Environment
) -> Iterator[tuple[LiveBlock, list[Damage]]]:  # fmt: skip
    """Yield each block of these streams with what is wrong with it, read to the last bit.

    Whoever wrote the blocks may have written the snapshot, too, so it proves nothing about what is in them.
    """
    blocks = opened_backup.blocks(env)
    for stream in streams:
        for block, row in zip(live_blocks(opened_backup.state, stream), stream.blocks.rows, strict=True):
            yield block, [
                Damage(
                    stream.name, str(opened_backup.directory), str(block.path_in(blocks)), wrong.offset_bytes,
                    wrong.first, wrong.end, wrong.reason,
                )
                for wrong in copies.look(block, blocks, stream, row=row)
            ]  # fmt: skip


def verify_backup(
    directory: PathLike, env: Environment, progress: Progress | None = None, streams: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return {ok, checked_blocks, damage} of a backup, as `verify` of a store does. Raises as `open_backup` does."""
    opened_backup = open_backup(directory, env)
    every = sorted(stream.name for stream in opened_backup.state.streams.values())
    chosen = selected(opened_backup, every if streams is None else streams)
    total, damage = sum(len(stream.blocks) for stream in chosen), list[Damage]()
    for done, (_, wrong) in enumerate(damage_of(opened_backup, chosen, env), 1):
        damage += wrong
        if progress is not None:
            progress(done, total)
    return {"ok": not damage, "checked_blocks": total, "damage": [place.to_json() for place in damage]}


def selected(opened_backup: Backup, names: Sequence[str]) -> list[StreamState]:
    """Return these streams of a backup. Raises NotFoundError for one that is not in it."""
    chosen = []
    for name in names:
        stream = opened_backup.state.stream(name)
        if stream is None:
            names_there = sorted(stream.name for stream in opened_backup.state.streams.values())
            raise NotFoundError(
                f"no stream {name!r} in the backup {opened_backup.directory}{instead(name, names_there)}"
            )
        chosen.append(stream)
    return chosen
