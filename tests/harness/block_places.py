"""Where the file of a block lies on a volume of local disks, for tests that look at files or damage them."""

from pathlib import Path

from storage_core.files import OS_FILES
from storage_core.store.volume.block_store import BLOCK_SUFFIX, BlockStore


def block_directory(volume: Path, incarnation: bytes) -> Path:
    return BlockStore(OS_FILES, volume).directory(incarnation)


def block_path(directory: str, block_id: bytes) -> Path:
    return Path(directory) / (block_id.hex() + BLOCK_SUFFIX)
