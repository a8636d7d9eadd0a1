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
from storage_core.files import OS_FILES, Files
from storage_core.foreign.nats.block import BLOCK_SUFFIX, KEY_SUFFIX, BlockFile
from storage_core.foreign.nats.encryption import Seed
from storage_core.foreign.nats.meta import DEFAULT_ACCOUNT, META_FILE, META_KEY_FILE, ServerKey, load_meta
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
MESSAGES_DIRECTORY, PURGED_DIRECTORY = "msgs", "__new_msgs__"
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
    problem: StorageError | None = None  # why it cannot be read
    encrypted: bool = False


def find_streams(
    paths: Sequence[str | os.PathLike[str]], files: Files = OS_FILES, encryption_key: str | None = None
) -> list[StreamDirectory]:
    """Return every stream at or below the paths, by account, name and path. `encryption_key` is the server's.

    Raises NotAStoreError if a path is no directory, or none has a stream in or below it.
    """
    streams: dict[str, StreamDirectory] = {}
    empty: list[str | os.PathLike[str]] = []
    for path in paths:
        root = Path(os.path.realpath(path))
        if not files.is_directory(root):
            problem = "is a file; give the directory of its stream or store" if root.exists() else "does not exist"
            raise NotAStoreError(f"{path} {problem}")
        found_places = _stream_paths(root, files, DEPTH_MAX, DIRECTORY_COUNT_MAX)
        here = {os.path.realpath(place): _load(place, encryption_key, files) for place in found_places}
        streams = {**here, **streams}  # one that links lead to twice is one
        if not here:
            empty.append(path)
    if not streams:
        raise NotAStoreError(f"{empty[0]} is no JetStream store: no stream (meta.inf with msgs/) in it or below it")
    return sorted(streams.values(), key=lambda stream: (stream.account, stream.name, stream.path))


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
    messages = place / MESSAGES_DIRECTORY
    if MESSAGES_DIRECTORY not in names or not files.is_directory(messages):
        return False
    return any(name.endswith(BLOCK_SUFFIX) for name in files.list_directory(messages.resolve()))


def _load(place: Path, encryption_key: str | None, files: Files) -> StreamDirectory:
    account = place.parent.parent.name if place.parent.name == STREAMS_DIRECTORY else ""
    if not files.is_directory(place):
        return StreamDirectory(str(place), account, place.name, problem=CorruptionError(f"{place} is no directory"))
    key = None if encryption_key is None else ServerKey(encryption_key, account or DEFAULT_ACCOUNT)
    names: list[str] = []
    try:
        names = files.list_directory(place.resolve())
        messages = _messages_path(place, files)
        block_files = _blocks(messages, key, files)

        def blocks(name: str) -> tuple[BlockFile, ...]:
            if key is None:
                return block_files
            return tuple(replace(block, key=key.derive(f"{name}:{block.block_index}")) for block in block_files)

        meta = load_meta(place, names, key, blocks, files)
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
    )


def _messages_path(place: Path, files: Files) -> Path:
    purged = place / PURGED_DIRECTORY
    new_names = files.list_directory(purged.resolve()) if files.is_directory(purged) else []
    if any(name.endswith(BLOCK_SUFFIX) for name in new_names):
        return purged  # a purge that was interrupted after its new block was made: the server goes on from there
    if not files.is_directory(place / MESSAGES_DIRECTORY):
        raise CorruptionError(f"{place} has no directory {MESSAGES_DIRECTORY}")
    return place / MESSAGES_DIRECTORY


def _blocks(messages: Path, key: ServerKey | None, files: Files) -> tuple[BlockFile, ...]:
    blocks = []
    for name in files.list_directory(messages.resolve()):
        stem, suffix = os.path.splitext(name)
        if not (stem.isascii() and stem.isdecimal()):
            continue
        path = messages / name
        if suffix == KEY_SUFFIX and key is None:
            raise UnsupportedVersionError(
                f"{messages.parent} is encrypted ({name} lies beside its block): the key in the server's configuration "
                "reads it, with option encryptionKey"
            )
        if suffix == BLOCK_SUFFIX:
            blocks.append(BlockFile(int(stem), str(path), size_of(path, files)))
    return tuple(sorted(blocks, key=lambda block: block.block_index))
