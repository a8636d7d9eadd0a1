"""The blocks of one volume: each is made once, from front to back, durable when it is closed, and never changed.

A block lies under the incarnation of its stream that it was written as, and has the same name on every volume. What
lies there is known by its name alone: whose it is says its own header, whether it counts says the manifest.

    VOLUME/streams/<incarnation, 32 hex>/<block id, 32 hex>.blk
"""

from collections.abc import Iterable
from pathlib import Path

from storage_core.files import File, Files
from storage_core.store.volume.identity import STREAMS

BLOCK_SUFFIX = ".blk"
PART_SUFFIX = ".part"  # records of an import, beside its blocks: imports/parts.py


class BlockStore:
    """The blocks on one volume of local disks. Every call may raise OSError."""

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
        """Return the incarnations that blocks may lie under."""
        return [bytes.fromhex(name) for name in self._files.list_directory(self._root) if _is_hex(name)]

    def prepare(self, incarnations: Iterable[bytes]) -> None:
        """Make it possible, durably, that blocks are created under these; what is there already is looked at only."""
        there = set(self._files.list_directory(self._root))
        for incarnation in incarnations:
            if incarnation.hex() not in there:
                self._files.make_directory(self.directory(incarnation))
        self._files.sync_directory(self._root)

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
        try:
            return self._files.list_directory(self.directory(incarnation))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def open(self, incarnation: bytes, block_id: bytes) -> File:
        """Return the block for reading by ranges. Raises FileNotFoundError."""
        return self._files.open(self.path(incarnation, block_id))

    def delete(self, incarnation: bytes, block_id: bytes) -> None:
        """Remove a block; `sync` makes that durable. Raises FileNotFoundError."""
        self._files.unlink(self.path(incarnation, block_id))

    def sync(self, incarnation: bytes) -> None:
        """Make the names of blocks under an incarnation durable: those that came, and that those are gone that went."""
        self._files.sync_directory(self.directory(incarnation))


def block_id_of(name: str) -> bytes | None:
    """Return the block id that a file is named by, None if it is no block's name."""
    stem = name[: -len(BLOCK_SUFFIX)]
    return bytes.fromhex(stem) if name.endswith(BLOCK_SUFFIX) and _is_hex(stem) else None


def _is_hex(name: str) -> bool:
    """Return whether a name is that of an id: 32 digits in lower case."""
    return len(name) == 32 and not set(name) - set("0123456789abcdef")
