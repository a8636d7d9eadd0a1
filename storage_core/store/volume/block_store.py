"""The blocks of one volume: each is made once, from front to back, durable when it is closed, and never changed.

A block lies under the incarnation of its stream that it was written as, and has the same name on every volume. What
lies there is known by its name alone: whose it is says its own header, whether it counts says the manifest.

    VOLUME/streams/<incarnation, 32 hex>/<block id, 32 hex>.blk
"""

import errno
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from storage_core.block.format import HEADER_SIZE, BlockIdentity, decode_header
from storage_core.deadlines import VolumeCall, at_once, outcome
from storage_core.file_kinds import FileKind
from storage_core.files import File, Files, write_durably
from storage_core.paths import is_in_object_store, place
from storage_core.store.volume.identity import STREAMS

logger = logging.getLogger(__name__)
T = TypeVar("T")
BLOCK_SUFFIX = ".blk"
PART_SUFFIX = ".part"  # records of an import, beside its blocks: ingest/records.py
REPAIR_SUFFIX = ".repair"  # a copy that is about to take the place of a bad one


class BlockStore:
    """The blocks on one volume. Every call may raise OSError."""

    def __init__(self, files: Files, volume: Path) -> None:
        self._files, self._root = files, volume / STREAMS

    # --- names

    def directory(self, incarnation: bytes) -> Path:
        return self._root / incarnation.hex()

    def path(self, incarnation: bytes, block_id: bytes) -> Path:
        """Return where the block is, for people and for what reads it."""
        return self.directory(incarnation) / (block_id.hex() + BLOCK_SUFFIX)

    # --- streams

    def incarnations(self) -> list[bytes]:
        """Return the incarnations that blocks may lie under; none if there is no place for any."""
        return [bytes.fromhex(name) for name in self._list(self._root) if _is_hex(name)]

    def prepare(self, incarnations: Iterable[bytes]) -> None:
        """Make it possible, durably, that blocks are created under these; what is there already is looked at only."""
        directories = [self.directory(incarnation) for incarnation in incarnations]
        if len(directories) == 1:  # a listing would cost all streams of the store
            missing = [directory for directory in directories if not self._files.is_directory(directory)]
        else:
            present = set(self._files.list_directory(self._root))
            missing = [directory for directory in directories if directory.name not in present]
        for directory in missing:
            self._files.make_directory(directory)
        self._files.sync_directory(self._root)

    def make(self, incarnation: bytes) -> None:
        """Make the place of a stream's blocks, and what it lies in, durably, if somebody took it away.

        One that is there may have been made by a process that was killed before its name was durable.
        """
        directory = self.directory(incarnation)
        for path in (directory.parent, directory):
            self._files.make_directory(path)
            self._files.sync_directory(path.parent)

    def remove(self, incarnation: bytes) -> None:
        """Remove all that was written under an incarnation. `sync_removals` makes that durable.

        What is neither a block nor a record of an import is not ours: then the directory stays. Raises OSError.
        """
        directory = self.directory(incarnation)
        for name in self._files.list_directory(directory):
            if block_id_of(name) is not None or name.endswith(PART_SUFFIX):
                self._files.unlink(directory / name)
        self._files.remove_directory(directory)

    def sync_removals(self) -> None:
        """Make removed incarnations stay removed after a power loss."""
        self._files.sync_directory(self._root)

    # --- blocks

    def ids(self, incarnation: bytes) -> list[bytes]:
        """Return the ids of the blocks under an incarnation; none if there is no place for it."""
        return [block_id for name in self._names(incarnation) if (block_id := block_id_of(name)) is not None]

    def strangers(self, incarnation: bytes) -> list[str]:
        """Return the names of what lies there and is no block."""
        return [name for name in self._names(incarnation) if block_id_of(name) is None]

    def _names(self, incarnation: bytes) -> list[str]:
        return self._list(self.directory(incarnation))

    def _list(self, directory: Path) -> list[str]:
        try:
            return self._files.list_directory(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def sizes(self, incarnation: bytes) -> dict[bytes, int]:
        """Return the file sizes of the blocks under an incarnation, in bytes. Raises FileNotFoundError."""
        sizes = self._files.file_sizes(self.directory(incarnation))
        return {block_id: size for name, size in sizes.items() if (block_id := block_id_of(name)) is not None}

    def on_each(self, calls: Sequence[Callable[[], T]]) -> list[T | BaseException]:
        """Return what calls for single blocks return or raise: one by one, or several at once in an object store."""
        return at_once(self._files, self._root, calls) if is_in_object_store(self._root) else list(map(outcome, calls))

    def size(self, incarnation: bytes, block_id: bytes) -> int:
        """Return the file size of a block, in bytes. Raises FileNotFoundError."""
        return self._files.file_size(self.path(incarnation, block_id))

    def create(self, incarnation: bytes, block_id: bytes) -> File:
        """Return a new block, to be written from front to back; `sync` makes its name durable."""
        return self._files.create(self.path(incarnation, block_id))

    def open(self, incarnation: bytes, block_id: bytes, afresh: bool = False, size: int | None = None) -> File:
        """Return the block for reading by ranges. Raises FileNotFoundError.

        `afresh`: from the disk, past caches. `size`: the bytes that the manifest says it has.
        """
        path = self.path(incarnation, block_id)
        if afresh:
            self._files.drop_cache(path)
        return self._files.open(path, size=size)

    def identity(self, incarnation: bytes, block_id: bytes) -> BlockIdentity:
        """Return what the block's own header says of it. Raises FileNotFoundError, CorruptionError."""
        with closing(self.open(incarnation, block_id)) as file:
            return decode_header(file.read_at(0, HEADER_SIZE), str(file.path)).identity

    def delete(self, incarnation: bytes, block_id: bytes) -> None:
        """Remove a block; `sync` makes that durable. Raises FileNotFoundError."""
        self._files.unlink(self.path(incarnation, block_id))

    def discard(self, incarnation: bytes, block_id: bytes) -> None:
        """Remove a block that nobody was told of, if it is there; what stays harms nobody, and is swept later."""
        _discard(self._files, self.path(incarnation, block_id))

    def sync(self, incarnation: bytes) -> None:
        """Make the names of blocks under an incarnation durable: those that came, and that those are gone that went."""
        self._files.sync_directory(self.directory(incarnation))

    def sync_block(self, incarnation: bytes, block_id: bytes) -> None:
        """Make a block durable that was found, and of which nobody knows whether it is, name and all."""
        self.make(incarnation)
        with closing(self._files.open(self.path(incarnation, block_id), writable=True)) as file:
            file.sync()
        self.sync(incarnation)

    def on_volume(self, call: Callable[[], T], majority_suffices: bool = False) -> VolumeCall[T]:
        """Return the call as work on this volume: all that it does here has one deadline, and one thread.

        `majority_suffices`: a majority of the volumes is enough.
        """
        return VolumeCall(self._files, self._root, call, majority_suffices)

    # --- repair

    def replacement(self, incarnation: bytes, block_id: bytes) -> "Replacement":
        """Return where a new copy of a block is written that takes the place of a bad or missing one."""
        path = self.path(incarnation, block_id)
        if self._files.is_directory(path):
            raise IsADirectoryError(errno.EISDIR, "a directory lies there: move it away and repair again", str(path))
        if not self._files.is_directory(path.parent):
            self.make(incarnation)
        return Replacement(self._files, path)

    def sweep_replacements(self, incarnation: bytes) -> int:
        """Remove the replacements that a killed session left; return how many there were. Under the volume's lock."""
        ours = [
            name
            for name in self.strangers(incarnation)
            if name.endswith(REPAIR_SUFFIX) and block_id_of(name[: -len(REPAIR_SUFFIX)] + BLOCK_SUFFIX) is not None
        ]
        for name in ours:
            self._files.unlink(self.directory(incarnation) / name)
        return len(ours)

    # --- records of an import, which lie beside its blocks

    def records(self, incarnation: bytes) -> list[str]:
        """Return the names of the records under an incarnation."""
        return [name for name in self.strangers(incarnation) if name.endswith(PART_SUFFIX)]

    def put_record(self, incarnation: bytes, name: str, content: bytes) -> None:
        """Write a record durably, instead of one of this name."""
        write_durably(self._files, self.directory(incarnation) / name, content, replaces=True)

    def read_record(self, incarnation: bytes, name: str, kind: FileKind) -> bytes:
        """Return what is in a record. Raises FileNotFoundError, CorruptionError if it is too large for its kind."""
        with closing(self._files.open(self.directory(incarnation) / name)) as file:
            return kind.read(file)

    def discard_record(self, incarnation: bytes, name: str) -> None:
        """Remove a record, if it is there; one that stays is swept later."""
        _discard(self._files, self.directory(incarnation) / name)


class Replacement:
    """A new copy of a block beside the one that it replaces. Every call may raise OSError."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files, self._path, self.path = files, path, path.with_suffix(REPAIR_SUFFIX)

    def create(self) -> File:
        with suppress(FileNotFoundError):
            self._files.unlink(self.path)  # what a killed session left
        return self._files.create(self.path)

    def open(self) -> File:
        return self._files.open(self.path)

    def put(self) -> None:
        """Give it the block's name. It is durable after `BlockStore.sync`."""
        self._files.replace(self.path, self._path)

    def discard(self) -> None:
        """Take it away, if it is there; no name but its own leads to it."""
        _discard(self._files, self.path)


@dataclass(frozen=True, slots=True)
class VolumeHandle:
    """A volume as tasks in other processes get it: enough to reach its blocks. A plain value."""

    volume_id: bytes
    instance_id: bytes
    uri: str  # of local disks: an absolute path, the same on every executor

    def blocks(self, files: Files) -> BlockStore:
        return blocks_at(files, self.uri)


def blocks_at(files: Files, uri: str) -> BlockStore:
    """Return the blocks of the volume at a URI; of local disks that is an absolute path."""
    return BlockStore(files, place(uri))


def _discard(files: Files, path: Path) -> None:
    try:
        files.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("%s could not be removed: %s", path, error)


def block_id_of(name: str) -> bytes | None:
    """Return the block id that a file is named by, None if it is no block's name."""
    stem = name[: -len(BLOCK_SUFFIX)]
    return bytes.fromhex(stem) if name.endswith(BLOCK_SUFFIX) and _is_hex(stem) else None


def _is_hex(name: str) -> bool:
    """Return whether a name is that of an id: 32 digits in lower case."""
    return len(name) == 32 and not set(name) - set("0123456789abcdef")
