"""Content of a JetStream block file: read, decrypted if there is a key to it, and handed on uncompressed.

A compressed file is `cmp`, the algorithm (u8: 0 none, 1 S2), the uncompressed size as uvarint, the S2 stream of all
but the last 8 bytes, and those 8 bytes as they are.

Source: nats-server, server/filestore.go (`MarshalMetadata`, `Compress`, `Decompress`).
"""

import os
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct

import numpy as np
import pyarrow as pa

from storage_core.errors import CorruptionError, UnsupportedVersionError
from storage_core.file_kinds import NATS_BLOCK, NATS_KEY, FileKind
from storage_core.files import OS_FILES, Files
from storage_core.foreign.nats.cursor import Cursor
from storage_core.foreign.nats.encryption import open_key_file
from storage_core.foreign.nats.highwayhash import Key
from storage_core.foreign.nats.record import HASH_SIZE, SIZE_MASK, SIZE_MIN, read_heads, verify
from storage_core.foreign.nats.s2 import decompress_stream
from storage_core.os_errors import raise_if_of_process

BLOCK_SIZE_MAX = NATS_BLOCK.size_max
COMPRESSED_MAGIC = b"cmp"
BLOCK_SUFFIX, KEY_SUFFIX = ".blk", ".key"
_SIZE = Struct("<I")
_ALGORITHM_NONE, _ALGORITHM_S2 = 0, 1


@dataclass(frozen=True, slots=True)
class BlockFile:
    block_index: int
    path: str
    size: int  # bytes
    key: bytes = field(default=b"", repr=False)  # opens the key file beside it, if there is one


@dataclass(frozen=True, slots=True)
class BlockContent:
    """The uncompressed bytes of a block."""

    data: pa.Buffer
    compressed: bool
    damage: list[tuple[int, str]] = field(default_factory=list)  # (offset_bytes in the file, reason)


def read_file(path: str | Path, kind: FileKind, files: Files = OS_FILES) -> bytes:
    """Return a small file of a foreign store, opened for reading only; links are followed.

    Raises OSError, CorruptionError for one that is larger than its kind can be, of which nothing is read.
    """
    with closing(files.open(Path(os.path.realpath(path)))) as file:
        return kind.read(file)


def _read_head(path: str | Path, size_max: int, files: Files) -> pa.Buffer:
    """Return the first `size_max` bytes of a block file."""
    with closing(files.open(Path(os.path.realpath(path)))) as file:
        buffer = pa.allocate_buffer(min(file.size(), size_max))
        count = file.read_into(0, memoryview(buffer).cast("B"))
    return buffer.slice(0, count)


def read_block(
    path: str | Path, files: Files = OS_FILES, key: bytes = b"", record_key: Key | None = None
) -> BlockContent:
    """Return what a block file holds. Damage to compression is reported in it, not raised.

    `key` opens the key file beside the block; without a key file the block is plain. So it is where the checksum of
    its first record, under `record_key`, holds: a server that was killed had not encrypted it yet. Raises OSError, or
    CorruptionError / UnsupportedVersionError if it is compressed in a way that is not known or its key does not open.
    """
    content = _read_head(path, BLOCK_SIZE_MAX + 1, files)
    if content.size > BLOCK_SIZE_MAX:
        reason = f"the file is longer than any block can be ({BLOCK_SIZE_MAX} bytes); the rest is not read"
        content, damage = content.slice(0, BLOCK_SIZE_MAX), [(BLOCK_SIZE_MAX, reason)]
    else:
        damage = []
    if key and not is_plain(content, record_key):
        content = _decrypt(content, Path(path).with_suffix(KEY_SUFFIX), key, files)
    if not is_compressed(content):
        return BlockContent(content, False, damage)
    return _decompress(content, str(path), damage)


def is_plain(content: pa.Buffer, record_key: Key | None) -> bool:
    """Return whether a block is not encrypted: it is compressed, or begins with a true record."""
    if is_compressed(content):
        return True
    if record_key is None or content.size < SIZE_MIN:
        return False
    head, possible = read_heads(np.frombuffer(content, np.uint8), np.zeros(1, np.int64), content.size)
    return bool(possible[0]) and bool(verify(content, head, record_key)[0])


def begins_plain(block: BlockFile, record_key: Key, files: Files = OS_FILES) -> bool:
    """Return whether a block file is not encrypted. What cannot be read is: the reading of it tells why."""
    try:
        return is_plain(_read_head(block.path, BLOCK_SIZE_MAX, files), record_key)
    except OSError as error:
        raise_if_of_process(error)
        return True


def last_bytes(block: BlockFile, files: Files = OS_FILES, record_key: Key | None = None) -> bytes:
    """Return the last 8 bytes of a block file, decrypted; fewer if it is shorter. Raises as read_block does."""
    first = max(0, block.size - HASH_SIZE)
    if block.key:
        plain = _read_head(block.path, BLOCK_SIZE_MAX, files)
        if not is_plain(plain, record_key):
            plain = _decrypt(plain, Path(block.path).with_suffix(KEY_SUFFIX), block.key, files)
        return bytes(plain[max(0, plain.size - HASH_SIZE) :])
    with closing(files.open(Path(os.path.realpath(block.path)))) as file:
        return file.read_at(first, HASH_SIZE)


def first_size(block: BlockFile, files: Files = OS_FILES) -> int:
    """Return the size of the first record of a plain block; 0 if that cannot be told."""
    try:
        with closing(files.open(Path(os.path.realpath(block.path)))) as file:
            head = file.read_at(0, _SIZE.size)
    except OSError as error:
        raise_if_of_process(error)
        return 0
    if len(head) < _SIZE.size or head.startswith(COMPRESSED_MAGIC):
        return 0
    size = int(_SIZE.unpack(head)[0]) & SIZE_MASK
    return size if size <= block.size else 0


def _decrypt(content: pa.Buffer, key_path: Path, key: bytes, files: Files) -> pa.Buffer:
    try:
        wrapped = read_file(key_path, NATS_KEY, files)
    except FileNotFoundError:
        return content  # written before the server had a key
    return pa.py_buffer(open_key_file((key,), wrapped, str(key_path)).decrypt_block(memoryview(content)))


def is_compressed(content: pa.Buffer) -> bool:
    return bytes(content[: len(COMPRESSED_MAGIC)]) == COMPRESSED_MAGIC


def _decompress(content: pa.Buffer, name: str, damage: list[tuple[int, str]]) -> BlockContent:
    cursor = Cursor(bytes(content[:32]), name, len(COMPRESSED_MAGIC))
    algorithm, size = cursor.byte(), cursor.uvarint()
    if algorithm not in (_ALGORITHM_NONE, _ALGORITHM_S2):
        raise UnsupportedVersionError(f"{name}: compressed with algorithm {algorithm}, known is {_ALGORITHM_S2} (S2)")
    if not HASH_SIZE <= size <= BLOCK_SIZE_MAX or content.size < cursor.at + HASH_SIZE:
        raise CorruptionError(f"{name}: declares {size} uncompressed bytes, possible are 8 to {BLOCK_SIZE_MAX}")
    if algorithm == _ALGORITHM_NONE:
        return BlockContent(content.slice(cursor.at), True, damage)
    end = content.size - HASH_SIZE
    packed = memoryview(content).cast("B")
    out = decompress_stream(packed[cursor.at : end], size - HASH_SIZE)
    out.data += packed[end:]
    return BlockContent(pa.py_buffer(out.data), True, damage + [(cursor.at + at, why) for at, why in out.damage])
