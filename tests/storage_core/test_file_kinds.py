"""Every file that is read whole has a bound: nothing of a larger one is read, and the error says what came."""

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_core import file_kinds
from storage_core.errors import CorruptionError, StorageError
from storage_core.file_kinds import FileKind
from storage_core.files import OS_FILES
from storage_core.foreign.nats.block import read_block, read_file
from storage_core.foreign.stan.directory import read_cluster_id
from storage_core.store.ingest.records import read_record
from storage_core.store.store import Store
from storage_core.store.volume.block_store import BlockStore
from storage_core.store.volume.index import FILE_NAME, VolumeIndex

INCARNATION = b"its incarnation."
KINDS = [one for one in vars(file_kinds).values() if isinstance(one, FileKind)]
TERABYTE = 1 << 40
MEMORY_MAX = 400 << 20  # bytes that reading one of them may take


def make_sparse(path: Path, size: int = TERABYTE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        os.truncate(file.fileno(), size)
    return path


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_of_a_file_that_is_too_large_nothing_is_read(kind: FileKind, tmp_path: Path) -> None:
    path = make_sparse(tmp_path / "file", kind.size_max + 1)
    with OS_FILES.open(path) as file, pytest.raises(CorruptionError) as caught:
        kind.read(file)
    assert f"{path} has {kind.size_max + 1} bytes, a {kind.name} has at most {kind.size_max}" in str(caught.value)


@pytest.mark.parametrize("size", [0, 1, 64])
def test_a_file_that_fits_is_read_whole(size: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(size)))
    with OS_FILES.open(path) as file:
        assert file_kinds.NATS_SUM.read(file) == bytes(range(size))


def refused(read: Callable[[], object]) -> None:
    with pytest.raises(CorruptionError, match=f"{TERABYTE} bytes"):
        read()


def read_sparse_record(blocks: BlockStore) -> object:
    blocks.directory(INCARNATION).mkdir(parents=True)
    make_sparse(blocks.directory(INCARNATION) / "1.part")
    return read_record(blocks, INCARNATION, "1.part")


READERS: dict[str, Callable[[Path], object]] = {
    "log segment": lambda at: _open(at, "*.log"),
    "volume's index": lambda at: VolumeIndex(OS_FILES, make_sparse(at / FILE_NAME).parent).scrubbed_to,
    "record of an import": lambda at: read_sparse_record(BlockStore(OS_FILES, at)),
    "meta.inf": lambda at: refused(lambda: read_file(make_sparse(at / "meta.inf"), file_kinds.NATS_META)),
    "NATS block": lambda at: read_block(make_sparse(at / "1.blk")).damage[0][0],
    "server.dat": lambda at: refused(lambda: read_cluster_id(make_sparse(at / "server.dat").parent)),
}


def _open(at: Path, pattern: str) -> None:
    Store.create(at / "volume").close()
    (segment,) = (at / "volume" / "meta").glob(pattern)
    make_sparse(segment)
    with pytest.raises(StorageError):
        Store.open(at / "volume")


@pytest.mark.parametrize("what", READERS)
def test_a_sparse_terabyte_costs_no_memory(what: str, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = READERS[what](tmp_path)
    assert outcome in (None, file_kinds.NATS_BLOCK.size_max)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY_MAX
