"""Discovery of JetStream streams below any directory of a server: its store, an account, or one stream.

    STORE/jetstream/ACCOUNT/streams/STREAM/meta.inf, meta.sum, msgs/N.blk, msgs/index.db

The name of a stream is the one in meta.inf (see meta.py), for a directory may have been renamed. A stream that cannot
be read is still found; its `problem` is raised when it is asked for.

Source: nats-server, server/jetstream.go (`EnableJetStream`) and server/filestore.go (`recoverMsgs`,
`recoverPartialPurge`, `writeStreamMeta`).
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from storage_core.errors import CorruptionError, NotAStoreError, StorageError, UnsupportedVersionError
from storage_core.file_kinds import NATS_KEY
from storage_core.files import OS_FILES, Files
from storage_core.foreign.nats.block import BLOCK_SUFFIX, KEY_SUFFIX, BlockFile, begins_plain, read_file
from storage_core.foreign.nats.encryption import Seed, open_key_file
from storage_core.foreign.nats.meta import DEFAULT_ACCOUNT, META_FILE, META_KEY_FILE, ServerKey, load_meta
from storage_core.foreign.nats.record import block_key
from storage_core.foreign.tree import (
    DEPTH_MAX,
    DIRECTORY_COUNT_MAX,
    GLANCE_COUNT_MAX,
    GLANCE_DEPTH_MAX,
    directories,
    size_of,
)
from storage_core.os_errors import raise_if_limit, raise_if_of_process

SERVER_DIRECTORY, STREAMS_DIRECTORY = "jetstream", "streams"
MESSAGES_DIRECTORY = "msgs"
PURGED_DIRECTORY, NEW_DIRECTORY = "__msgs__", "__new_msgs__"  # during a purge: what there was, and what will be
BACKUP_DESCRIPTION, BACKUP_ARCHIVE = "backup.json", "stream.tar.s2"
TOMBSTONE_SIZE = 30  # bytes of the block that a purge leaves
_RAFT_DIRECTORY = "_js_"  # Raft logs are stores too, but of no messages


@dataclass(frozen=True, slots=True)
class StreamDirectory:
    """One stream as it lies on disk."""

    path: str
    account: str  # "" if the path does not tell
    name: str
    config: dict[str, Any] = field(default_factory=dict)  # as in meta.inf
    messages_path: str = ""
    blocks: tuple[BlockFile, ...] = ()  # by index
    notes: tuple[str, ...] = ()  # what is wrong with its configuration, which then counts as unknown
    seed: Seed | None = field(default=None, repr=False)  # opens index.db if the stream is encrypted
    server_key: ServerKey | None = field(default=None, repr=False)
    begun_purge: str = ""  # the block that a purge would have left, which was not finished; its messages are all there
    is_purged: bool = False  # its messages are those of a purge that was not finished
    problem: StorageError | None = None  # why it cannot be read
    encrypted: bool = False


def find_streams(
    paths: Sequence[str | os.PathLike[str]], files: Files = OS_FILES, encryption_key: str | Sequence[str] | None = None
) -> list[StreamDirectory]:
    """Return every stream at or below the paths, by account, name and path. `encryption_key` is the server's, or
    several: the one of now, and former ones; a text of several lines is several, too.

    Raises NotAStoreError if a path is no directory, or none has a stream in or below it.
    """
    texts = [encryption_key] if isinstance(encryption_key, str) else encryption_key or ()
    keys = tuple(line for text in texts for line in text.splitlines() if line)
    streams: dict[str, StreamDirectory] = {}
    empty: list[str | os.PathLike[str]] = []
    for path in paths:
        root = Path(os.path.realpath(path))
        if not files.is_directory(root):
            problem = "is a file; give the directory of its stream or store" if root.exists() else "does not exist"
            raise NotAStoreError(f"{path} {problem}")
        found_places = _stream_paths(root, files, DEPTH_MAX, DIRECTORY_COUNT_MAX)
        here = {os.path.realpath(place): _load(place, keys, files) for place in found_places}
        streams = {**here, **streams}  # one that links lead to twice is one
        if not here:
            empty.append(path)
    if not streams:
        if is_backup(empty[0]):
            raise NotAStoreError(f"{empty[0]} is what `nats stream backup` wrote: `jstream import nats` takes it")
        raise NotAStoreError(f"{empty[0]} is no JetStream store: no stream (meta.inf with msgs/) in it or below it")
    return sorted(streams.values(), key=lambda stream: (stream.account, stream.name, stream.path))


def is_backup(path: str | os.PathLike[str]) -> bool:
    """Return whether a directory holds a backup of a stream: see backup_archive.py."""
    return all((Path(path) / name).is_file() for name in (BACKUP_DESCRIPTION, BACKUP_ARCHIVE))


def holds_streams(path: str | os.PathLike[str], files: Files = OS_FILES) -> bool:
    """Return whether a stream, readable or not, is seen at or below the path without looking far."""
    root = Path(os.path.realpath(path))
    try:
        return files.is_directory(root) and any(_stream_paths(root, files, GLANCE_DEPTH_MAX, GLANCE_COUNT_MAX))
    except (StorageError, OSError) as error:
        raise_if_limit(error)
        return False


def _stream_paths(root: Path, files: Files, depth_max: int, count_max: int) -> Iterator[Path]:
    """Yield the directories of streams, down to `depth_max`, and what lies where a server has them and is none.

    Raises NotAStoreError after `count_max` directories.
    """

    def is_above_streams(place: Path, names: list[str]) -> bool:
        return not _is_stream(place, names, files)

    for place, names in directories(root, files, is_above_streams, _is_never_searched, depth_max, count_max):
        if _is_stream(place, names, files) or _is_among_streams(place):
            yield place
        elif _is_among_streams(place / "one"):
            others = (place / name for name in names if not _is_never_searched(name))
            yield from (path for path in others if not files.is_directory(path))


def _is_among_streams(place: Path) -> bool:
    """Return whether it lies where a server has its streams, and nothing else: jetstream/ACCOUNT/streams/STREAM."""
    above = place.parent
    return above.name == STREAMS_DIRECTORY and above.parent.parent.name == SERVER_DIRECTORY


def _is_never_searched(name: str) -> bool:
    return name == _RAFT_DIRECTORY or name.startswith(".")  # a name with a dot in front is left over from a deletion


def _is_stream(place: Path, names: list[str], files: Files) -> bool:
    if META_FILE in names:
        return True
    return any(name in names and _holds_blocks(place / name, files) for name in (MESSAGES_DIRECTORY, PURGED_DIRECTORY))


def _load(place: Path, keys: tuple[str, ...], files: Files) -> StreamDirectory:
    account = place.parent.parent.name if place.parent.name == STREAMS_DIRECTORY else ""
    if not files.is_directory(place):
        return StreamDirectory(str(place), account, place.name, problem=CorruptionError(f"{place} is no directory"))
    key = ServerKey(keys, account or DEFAULT_ACCOUNT) if keys else None
    names: list[str] = []
    try:
        names = files.list_directory(place.resolve())
        messages = _messages_path(place, files)
        block_files, begun = _blocks(messages, files)

        def blocks(name: str) -> tuple[BlockFile, ...]:
            if key is None:
                return block_files
            derived = [key.derive(f"{name}:{block.block_index}") for block in block_files]
            opening = (_opening(block, some, files) for block, some in zip(block_files, derived, strict=True))
            return tuple(replace(block, key=own) for block, own in zip(block_files, opening, strict=True))

        meta = load_meta(place, names, key, blocks, files)
        if key is None:
            _check_plain(meta.name, block_files, files)
    except (StorageError, OSError) as error:
        raise_if_of_process(error)
        problem = error if isinstance(error, StorageError) else CorruptionError(f"{place}: {error}")
        return StreamDirectory(str(place), account, place.name, problem=problem, encrypted=META_KEY_FILE in names)
    return StreamDirectory(
        str(place),
        account,
        meta.name,
        meta.config,
        str(messages),
        blocks(meta.name),
        meta.notes,
        meta.seed,
        key,
        encrypted=META_KEY_FILE in names,
        begun_purge=begun,
        is_purged=messages.name == PURGED_DIRECTORY,
    )


def _messages_path(place: Path, files: Files) -> Path:
    """Return where the blocks lie. A purge puts them aside, and a new block in their place; it may have been killed."""
    if _holds_blocks(place / NEW_DIRECTORY, files):
        return place / NEW_DIRECTORY  # the server goes on from there
    messages = place / MESSAGES_DIRECTORY
    if not _holds_blocks(messages, files) and _holds_blocks(place / PURGED_DIRECTORY, files):
        return place / PURGED_DIRECTORY
    if not files.is_directory(messages):
        raise CorruptionError(f"{place} has no directory {MESSAGES_DIRECTORY}")
    return messages


def _holds_blocks(folder: Path, files: Files) -> bool:
    return files.is_directory(folder) and any(
        name.endswith(BLOCK_SUFFIX) for name in files.list_directory(folder.resolve())
    )


def _blocks(messages: Path, files: Files) -> tuple[tuple[BlockFile, ...], str]:
    """Return the block files, and the name of the one that belongs to a purge which was begun; "" if none does."""
    blocks = []
    for name in files.list_directory(messages.resolve()):
        stem, suffix = os.path.splitext(name)
        if suffix == BLOCK_SUFFIX and stem.isascii() and stem.isdecimal():
            blocks.append(BlockFile(int(stem), str(messages / name), size_of(messages / name, files)))
    blocks.sort(key=lambda block: block.block_index)
    is_begun = messages.name == MESSAGES_DIRECTORY and files.is_directory(messages.with_name(NEW_DIRECTORY))
    if is_begun and len(blocks) > 1 and blocks[-1].size == TOMBSTONE_SIZE:
        return tuple(blocks[:-1]), Path(blocks[-1].path).name
    return tuple(blocks), ""


def _opening(block: BlockFile, keys: Sequence[bytes], files: Files) -> bytes:
    """Return the key that opens the key file of a block, the first one if none does, or there is none."""
    path = Path(block.path).with_suffix(KEY_SUFFIX)
    for key in keys if len(keys) > 1 else ():
        try:
            open_key_file((key,), read_file(path, NATS_KEY, files), str(path))
        except (OSError, CorruptionError) as error:
            raise_if_of_process(error)
        else:
            return key
    return keys[0]


def _check_plain(stream: str, blocks: Sequence[BlockFile], files: Files) -> None:
    """Raise UnsupportedVersionError if a block is encrypted: its key lies beside it, and it is not plain."""
    for block in blocks:
        path = Path(block.path)
        if not block.size or path.with_suffix(KEY_SUFFIX).name not in files.list_directory(path.parent.resolve()):
            continue
        if not begins_plain(block, block_key(stream, block.block_index), files):
            raise UnsupportedVersionError(
                f"{path.parent.parent} is encrypted ({path.stem}{KEY_SUFFIX} lies beside its block): the key in the "
                "server's configuration reads it, with option encryptionKey"
            )
