"""Backups: all of a store, or some of its streams, as of one index, in a directory of numbered files.

    1  the mark of an unfinished backup, durable
    2  each block: put together from whichever copies are whole, fsynced, named, and read again from the disk
    3  the manifest, durable: the state as of one index, and which file is which block
    4  the mark is taken away; only now is there a backup

What is in it is decided by one view at the beginning: blocks never change, and those that are removed meanwhile stay on
the volumes for deleted_block_retention. No lock of the store is held. An interrupted backup is resumed by making it
again: it is then one of that time, and blocks that are there and whole are not copied again.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from storage_core.block.format import HEADER_SIZE as BLOCK_HEADER_SIZE
from storage_core.block.format import decode_header
from storage_core.errors import (
    AlreadyExistsError,
    DataLossError,
    NotAStoreError,
    NotFoundError,
    StalePlanError,
    StorageError,
)
from storage_core.file_kinds import BACKUP_MARK
from storage_core.files import write_durably
from storage_core.metadata.manifest import ARCHIVE_DTYPE, PENDING_DELETE_DTYPE, Table
from storage_core.metadata.state import TRANSACTION_DTYPE, StoreState, Streams, StreamState, encode_state
from storage_core.os_errors import raise_if_of_process
from storage_core.paths import is_in_object_store
from storage_core.quantities import rfc3339
from storage_core.store.ensemble.metadata_client import translated
from storage_core.store.environment import Environment
from storage_core.store.ingest import backup_format as layout
from storage_core.store.ingest.backup_format import Backup, BackupBlocks, Manifest
from storage_core.store.ingest.progress import Progress
from storage_core.store.opened import OpenStore
from storage_core.store.replicas import copies
from storage_core.store.replicas.live_blocks import LiveBlock, live_blocks
from storage_core.store.volume import identity, locks, placement
from storage_core.store.volume.block_store import REPAIR_SUFFIX, BlockStore
from storage_core.suggestions import instead

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
                numbers, copied = _Work(store, path, state).fill(progress)
                made_ns, host, encoded = env.now_ns(), socket.gethostname(), encode_state(state)
                made = _finish(Manifest(made_ns, view.index, host, streams is None, numbers, encoded), path, env)
    return {**describe(made), "copied": copied}


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
    manifest, state = opened_backup.manifest, opened_backup.state
    streams = [stream_summary(stream) for stream in sorted(state.streams.values(), key=lambda stream: stream.name)]
    sizes = [int(stream.blocks.rows["file_size"].sum()) for stream in state.streams.values()]
    return {
        "directory": str(opened_backup.directory),
        "store_id": state.store_id.hex(),
        "time": rfc3339(manifest.made_ns),
        "index": manifest.index,
        "whole_store": manifest.is_whole,
        "blocks": len(opened_backup.numbers),
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
    if layout.UNFINISHED not in names:
        if layout.MANIFEST in names:
            raise AlreadyExistsError(f"{path} holds a backup already; a new one needs a directory of its own")
        if names:
            raise AlreadyExistsError(f"{path} is not empty and holds no backup: {', '.join(sorted(names)[:5])}")
        return
    begun = layout.decode_unfinished(_read(path / layout.UNFINISHED, BACKUP_MARK.size_max, env))
    if begun is None and names != {layout.UNFINISHED}:
        raise AlreadyExistsError(f"{path / layout.UNFINISHED} is damaged: remove {path}, or give another directory")
    if begun not in (None, store_id):
        assert begun is not None
        raise AlreadyExistsError(f"{path} holds an unfinished backup of another store, {begun.hex()}")
    strange = sorted(name for name in names if _is_strange(name))
    if strange:
        raise AlreadyExistsError(f"{path} holds an unfinished backup, and what is none of it: {', '.join(strange[:5])}")


def _is_strange(name: str) -> bool:
    stem, _, suffix = name.rpartition(".")
    number = layout.block_number(f"{stem}.blk" if suffix == REPAIR_SUFFIX[1:] else name)
    return number is None and name not in (layout.UNFINISHED, layout.MANIFEST)


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


def _read(path: Path, size_max: int, env: Environment) -> bytes:
    """Return what is in a file, at most one byte more than `size_max`."""
    with closing(env.files.open(path)) as file:
        return file.read_at(0, size_max + 1)


def write_file(path: Path, content: bytes, env: Environment) -> None:
    """Make a file, or one of that name anew, and make it durable, name and all."""
    write_durably(env.files, path, content, replaces=True)


# --- filling it


@dataclass(frozen=True, slots=True)
class _Planned:
    """A block, the stream it is of, and the volumes that may have it, best first."""

    stream: StreamState
    block: LiveBlock
    sources: tuple[BlockStore, ...]


class _Work:
    """Blocks being copied into a directory that is locked."""

    def __init__(self, store: OpenStore, path: Path, state: StoreState) -> None:
        self._store, self._path, self._state, self._env = store, path, state, store.environment
        self._numbers: dict[bytes, int] = {}  # by block id
        self._blocks = BackupBlocks(self._env.files, path, self._numbers)

    def fill(self, progress: Progress | None) -> tuple[bytes, int]:
        """Copy what is not there yet; return the numbers of all blocks, and how many were copied."""
        self._begin()
        numbers = self._found_before()
        planned = list(self._plan())
        rows = np.zeros(len(planned), layout.NUMBER_DTYPE)
        copied, taken, number = 0, set(numbers.values()), 0
        for at, plan in enumerate(planned):
            if progress is not None:
                progress(at, len(planned))
            block_id, former = plan.block.block_id, numbers.get(plan.block.block_id)
            if former is None:
                number = next(free for free in range(number + 1, layout.NUMBER_MAX + 1) if free not in taken)
            self._numbers[block_id] = number if former is None else former
            rows[at] = (block_id, self._numbers[block_id])
            if former is None or copies.look(plan.block, self._blocks, plan.stream):
                self._copy(plan.block, plan)
                copied += 1
        if progress is not None:
            progress(len(planned), len(planned))
        return rows.tobytes(), copied

    def _begin(self) -> None:
        """Make the mark durable. One that is there is not written again: without it nobody would know what this is."""
        path, encoded = self._path / layout.UNFINISHED, layout.encode_unfinished(self._state.store_id)
        if path.name not in self._env.files.list_directory(self._path):
            write_file(path, encoded, self._env)
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

    def _found_before(self) -> dict[bytes, int]:
        """Return the blocks of this backup that an earlier attempt named; what else it left is taken away."""
        wanted = {bytes(row) for stream in self._state.streams.values() for row in stream.blocks.rows["block_id"]}
        numbers: dict[bytes, int] = {}
        for name in sorted(self._env.files.list_directory(self._path)):
            number, path = layout.block_number(name), self._path / name
            block_id = _block_id(path, self._env) if number is not None else None
            if number is not None and block_id in wanted and block_id not in numbers:
                assert block_id is not None
                numbers[block_id] = number
            elif name not in (locks.FILE_NAME, layout.UNFINISHED):
                self._env.files.unlink(path)
        return numbers

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


def _block_id(path: Path, env: Environment) -> bytes | None:
    """Return which block a file says that it is."""
    try:
        return decode_header(_read(path, BLOCK_HEADER_SIZE, env)[:BLOCK_HEADER_SIZE], str(path)).identity.block_id
    except (StorageError, OSError) as error:
        raise_if_of_process(error)
        return None


def _finish(manifest: Manifest, path: Path, env: Environment) -> Backup:
    """Write the manifest and read it again; with the mark taken away there is a backup."""
    write_file(path / layout.MANIFEST, layout.encode_manifest(manifest), env)
    env.files.drop_cache(path / layout.MANIFEST)
    made = read_manifest(path, env)
    env.files.unlink(path / layout.UNFINISHED)
    env.files.sync_directory(path)
    env.files.unlink(path / locks.FILE_NAME)  # whoever waits for it finds a backup that is finished
    return made


# --- looking at one


def read_manifest(directory: Path, env: Environment) -> Backup:
    """Return what a directory's manifest says. Raises NotAStoreError, CorruptionError, UnsupportedVersionError."""
    path = directory / layout.MANIFEST
    with closing(env.files.open(path)) as file:
        size = layout.payload_size(file.read_at(0, layout.HEADER_SIZE), path)
        encoded = file.read_at(0, layout.HEADER_SIZE + size + 1)
    return layout.understood(layout.decode_manifest(encoded, path), path)


def open_backup(directory: PathLike, env: Environment) -> Backup:
    """Return the finished backup in a directory; its files are not looked at.

    Raises NotAStoreError (no backup, or an unfinished one), CorruptionError, UnsupportedVersionError.
    """
    path = absolute(directory)
    with translated(path):
        if not env.files.is_directory(path):
            raise NotAStoreError(f"{path} does not exist or is not a directory")
        names = env.files.list_directory(path)
        if layout.UNFINISHED in names:
            raise NotAStoreError(f"{path} holds an unfinished backup; repeat the command to resume it")
        if layout.MANIFEST not in names:
            problem = "is a volume of a store" if identity.FILE_NAME in names else f"has no {layout.MANIFEST}"
            raise NotAStoreError(f"{path} holds no backup: it {problem}")
        return read_manifest(path, env)


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
