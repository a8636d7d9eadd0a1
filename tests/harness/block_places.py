"""Where the files of blocks lie, for tests that look at them or damage them."""

from pathlib import Path

from storage_core.files import OS_FILES
from storage_core.paths import place
from storage_core.store.store import Store
from storage_core.store.volume.block_store import BLOCK_SUFFIX, BlockStore


def block_directory(volume: Path, incarnation: bytes) -> Path:
    return BlockStore(OS_FILES, volume).directory(incarnation)


def block_path(directory: str, block_id: bytes) -> Path:
    return Path(directory) / (block_id.hex() + BLOCK_SUFFIX)


def block_files(volume: Path) -> list[Path]:
    """Return the block files of all streams on a volume, in the order of their paths."""
    return sorted((volume / "streams").glob(f"*/*{BLOCK_SUFFIX}"))


def block_count(store: Store) -> int:
    """Return how many block files there are on its volumes, wherever these are."""
    files, count = store.environment.files, 0
    for streams in (place(path) / "streams" for path in store.paths):
        for name in files.list_directory(streams) if files.is_directory(streams) else ():
            count += sum(block.endswith(BLOCK_SUFFIX) for block in files.list_directory(streams / name))
    return count


def flip(path: Path, offset_bytes: int = 300) -> None:
    """Turn over one bit of a file. Byte 300 of a block file is in its first frame."""
    content = bytearray(path.read_bytes())
    content[offset_bytes] ^= 1
    path.write_bytes(content)
