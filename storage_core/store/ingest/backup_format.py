"""A backup on disk: the manifest, the numbered files, and the mark of one that is not finished.

    BACKUP/jstream.backup        the manifest, written last: without it there is no backup
    BACKUP/00000001.blk ...      blocks, byte for byte; the manifest says which is which
    BACKUP/jstream.unfinished    a backup that is being made, or was interrupted

Codecs alone; backup.py and restore.py do the work. Source: docs/formats/backup.md.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import msgspec
import numpy as np

from storage_core.bounded import decode
from storage_core.checksum import CRC_SIZE, add_crc, crc32c, crc_is_good
from storage_core.errors import CorruptionError, NotAStoreError, UnsupportedVersionError
from storage_core.file_kinds import BACKUP_MANIFEST
from storage_core.files import Files
from storage_core.metadata.invariants import check_state
from storage_core.metadata.state import StoreState, decode_state
from storage_core.store.volume.block_store import BlockStore

MANIFEST, UNFINISHED = "jstream.backup", "jstream.unfinished"
MAGIC, UNFINISHED_MAGIC = b"JSTRMBKP", b"JSTRMBKU"
FORMAT_VERSION = 1
PROLOGUE = Struct("<8sI")  # magic, version; its CRC follows, in every version
HEADER = Struct("<8sIIQ16s")  # ... size and digest of the payload
HEADER_SIZE = HEADER.size + CRC_SIZE
DIGEST_SIZE = 16
PAYLOAD_SIZE_MAX = BACKUP_MANIFEST.size_max - HEADER_SIZE  # bytes
NUMBER_DTYPE = np.dtype([("block_id", "V16"), ("number", "<u4")])
NUMBER_MAX = 99_999_999
assert HEADER_SIZE == 44


class Manifest(msgspec.Struct, frozen=True):
    """What a backup is of, and where in it each block lies."""

    made_ns: int
    index: int  # of the metadata log: everything up to it is in the backup, nothing after it
    host: str
    is_whole: bool  # of all streams of the store, not of some
    numbers: bytes  # NUMBER_DTYPE, in the order of the state's streams and blocks
    state: bytes  # as encode_state wrote it, without deletes


_DECODER = msgspec.msgpack.Decoder(Manifest)


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup as its manifest has it; whether its files are whole is another question."""

    directory: Path
    manifest: Manifest
    state: StoreState
    numbers: dict[bytes, int]  # by block id

    def files(self, files: Files) -> "BackupBlocks":
        return BackupBlocks(files, self.directory, self.numbers)


class BackupBlocks(BlockStore):
    """The blocks in the directory of a backup, which have numbers for names."""

    def __init__(self, files: Files, directory: Path, numbers: Mapping[bytes, int]) -> None:
        """`numbers`: by block id; those that come later may be added to it."""
        super().__init__(files, directory)
        self._directory, self._numbers = directory, numbers

    def directory(self, incarnation: bytes) -> Path:
        return self._directory

    def path(self, incarnation: bytes, block_id: bytes) -> Path:
        return self._directory / block_name(self._numbers[block_id])


def block_name(number: int) -> str:
    assert 1 <= number <= NUMBER_MAX, number
    return f"{number:08}.blk"


def block_number(name: str) -> int | None:
    """Return the number that a file is named by, None if it is no block's name."""
    stem, dot, suffix = name.partition(".")
    if dot + suffix != ".blk" or len(stem) != 8 or not stem.isascii() or not stem.isdigit() or not int(stem):
        return None
    return int(stem)


# --- the manifest


def encode_manifest(manifest: Manifest) -> bytes:
    payload = msgspec.msgpack.encode(manifest)
    prologue = PROLOGUE.pack(MAGIC, FORMAT_VERSION)
    header = HEADER.pack(MAGIC, FORMAT_VERSION, crc32c(prologue), len(payload), _digest(payload))
    return add_crc(header) + payload


def payload_size(header: bytes, path: Path) -> int:
    """Return how many bytes follow the header of a manifest, whose every bit is looked at.

    Raises NotAStoreError, CorruptionError or UnsupportedVersionError, naming the file.
    """
    if header[: len(MAGIC)] != MAGIC:
        raise NotAStoreError(f"{path} is no manifest of a backup: it begins with {header[:8]!r}")
    if len(header) < HEADER_SIZE:
        raise CorruptionError(f"{path} was cut to {len(header)} bytes")
    _, version, prologue_crc, size, _ = HEADER.unpack_from(header)
    if prologue_crc != crc32c(header[: PROLOGUE.size]):
        raise CorruptionError(f"{path}: offset_bytes 12: bad checksum over magic and version")
    if version != FORMAT_VERSION:
        raise UnsupportedVersionError(f"{path} has version {version}; this program reads version {FORMAT_VERSION}")
    if not crc_is_good(header[:HEADER_SIZE]):
        raise CorruptionError(f"{path}: offset_bytes {HEADER.size}: bad checksum over the header")
    if size > PAYLOAD_SIZE_MAX:
        raise CorruptionError(f"{path} declares {size} bytes, at most {PAYLOAD_SIZE_MAX} are allowed")
    return int(size)


def decode_manifest(encoded: bytes, path: Path) -> Manifest:
    """Return the manifest in a whole file.

    Raises NotAStoreError, CorruptionError or UnsupportedVersionError, naming the file.
    """
    size, payload = payload_size(encoded[:HEADER_SIZE], path), encoded[HEADER_SIZE:]
    if len(payload) != size:
        raise CorruptionError(f"{path}: {len(payload)} bytes of payload, {size} expected")
    if _digest(payload) != HEADER.unpack_from(encoded)[4]:
        raise CorruptionError(
            f"{path}: offset_bytes {HEADER_SIZE}: the payload has another digest than the header says"
        )
    return decode(_DECODER, payload, f"{path}: offset_bytes {HEADER_SIZE}: the payload of a manifest")


def understood(manifest: Manifest, path: Path) -> Backup:
    """Return the backup that a manifest describes.

    Raises CorruptionError if its parts contradict each other, or are of a store that there cannot be: the digest says
    that the bytes are those of whoever wrote them, and not that it was this program.
    """
    try:
        state = decode_state(manifest.state)
        check_state(state)
    except CorruptionError as error:
        raise CorruptionError(f"{path}: offset_bytes {HEADER_SIZE}: the state in the payload: {error}") from error
    if len(manifest.numbers) % NUMBER_DTYPE.itemsize:
        raise CorruptionError(f"{path}: {len(manifest.numbers)} bytes of numbers")
    rows = np.frombuffer(manifest.numbers, NUMBER_DTYPE)
    numbers = dict(zip(rows["block_id"].tolist(), rows["number"].tolist(), strict=True))
    live = {bytes(row) for stream in state.streams.values() for row in stream.blocks.rows["block_id"]}
    named = set(numbers.values())
    if set(numbers) != live or not len(named) == len(rows) == len(numbers):
        raise CorruptionError(f"{path}: {len(rows)} numbers for {len(live)} blocks, or one of them twice")
    if named and not (1 <= min(named) and max(named) <= NUMBER_MAX):
        raise CorruptionError(f"{path}: a file cannot have number {min(named)} or {max(named)}")
    return Backup(path.parent, manifest, state, numbers)


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=DIGEST_SIZE).digest()


# --- the mark

_UNFINISHED = Struct("<8sI16s")  # magic, version, store id; the CRC follows


def encode_unfinished(store_id: bytes) -> bytes:
    return add_crc(_UNFINISHED.pack(UNFINISHED_MAGIC, FORMAT_VERSION, store_id))


def decode_unfinished(encoded: bytes) -> bytes | None:
    """Return the id of the store whose backup was begun; None if the mark was cut off or is damaged."""
    if len(encoded) != _UNFINISHED.size + CRC_SIZE or not crc_is_good(encoded):
        return None
    magic, version, store_id = _UNFINISHED.unpack_from(encoded)
    return bytes(store_id) if (magic, version) == (UNFINISHED_MAGIC, FORMAT_VERSION) else None
