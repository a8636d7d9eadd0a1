"""Records of a stream that is being put together: what its directory is for, and how far an earlier run has come.

They lie beside the blocks, in the directory of the stream to be:

    VOLUME/streams/<incarnation>/import.part       what is being imported, and by which import
    VOLUME/streams/<incarnation>/00000001.part     what became of part 1 of another server's stream
    VOLUME/streams/<incarnation>/<block id>.part   what became of a block of another store

The records let a run that was interrupted be resumed. They prove nothing: whoever believes one looks at its blocks.
Format: docs/formats/import.md.
"""

import logging
from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Any

import msgspec
import numpy as np

from storage_core.block.format import digest_of
from storage_core.bounded import UNDECODABLE
from storage_core.checksum import crc32c
from storage_core.errors import CorruptRecordError, StorageError, UnsupportedVersionError
from storage_core.file_kinds import IMPORT_RECORD
from storage_core.foreign.slices import DAMAGE_COLUMNS
from storage_core.metadata.manifest import decode_blocks
from storage_core.os_errors import raise_if_of_process
from storage_core.sequences import SequenceSet
from storage_core.store.environment import Environment
from storage_core.store.volume.block_store import PART_SUFFIX, BlockStore, VolumeHandle
from storage_core.store.writing.mirrored_file import MirroredFile
from storage_core.store.writing.sink import BlockPlace

logger = logging.getLogger(__name__)
HEAD_FILE = f"import{PART_SUFFIX}"
MAGIC = b"JSTRMIMP"
FORMAT_VERSION = 1
DAMAGE_KEYS = {*DAMAGE_COLUMNS, "places", "left"}
_HEADER = Struct("<8sII16sI")  # magic, version, payload size, digest of the payload, CRC32C of the bytes before


class ImportHead(msgspec.Struct, frozen=True, tag="head"):
    """Which import fills a directory, and with what."""

    import_id: bytes  # the same when it is resumed
    source: bytes
    name: str
    placement: tuple[bytes, ...]


class PartRecord(msgspec.Struct, frozen=True, tag="part"):
    """What became of a part."""

    incarnation: bytes
    source: bytes
    number: int  # from 1, in order of sequence; 0: the part is the block `source` of another store
    rows: bytes  # as encode_blocks has them, with absolute `first`; holders are filled in at the end
    subjects: tuple[tuple[str, ...] | None, ...]  # of each block; None: its row says which, or its footer does
    holders: tuple[tuple[tuple[bytes, bytes], ...], ...]  # of each block: (volume, instance) that fsynced it
    present: bytes = b""  # encoded SequenceSet: messages that were read
    lost: bytes = b""  # encoded SequenceSet: those that the source had and that cannot be read
    read_count: int = 0
    damage: tuple[dict[str, Any], ...] = ()  # as damage_row returns them
    open: bytes = SequenceSet.empty().encode()  # of what nothing tells whether it was removed or is lost

    @property
    def file(self) -> str:
        """The name of the file that it lies in."""
        return part_file(self.number, self.source)

    def blocks(self) -> np.ndarray:
        """Return the rows of its blocks, as the manifest will have them but for their holders."""
        return decode_blocks(self.rows, "a part")


def part_file(number: int, source: bytes) -> str:
    return f"{f'{number:08d}' if number else source.hex()}{PART_SUFFIX}"


def holders_of(place: BlockPlace, file: MirroredFile) -> tuple[tuple[bytes, bytes], ...]:
    """Return the volumes that have a new block, each with its instance."""
    instances = {volume.volume_id: volume.instance_id for volume in place.volumes}
    return tuple((volume_id, instances[volume_id]) for volume_id in file.holders)


def encode_record(record: ImportHead | PartRecord) -> bytes:
    payload = msgspec.msgpack.encode(record)
    fields = _HEADER.pack(MAGIC, FORMAT_VERSION, len(payload), digest_of(payload), 0)[:-4]
    return fields + crc32c(fields).to_bytes(4, "little") + payload


def decode_record(data: bytes, name: str) -> ImportHead | PartRecord:
    """Return the record in a file. Raises CorruptRecordError, UnsupportedVersionError."""
    if len(data) < _HEADER.size:
        raise CorruptRecordError(name, 0, f"{len(data)} bytes are no record of an import")
    magic, version, size, digest, crc = _HEADER.unpack_from(data)
    if magic != MAGIC or crc32c(data[: _HEADER.size - 4]) != crc:
        raise CorruptRecordError(name, 0, "not the head of a record of an import")
    if version != FORMAT_VERSION:
        raise UnsupportedVersionError(f"{name} has version {version}; this program reads version {FORMAT_VERSION}")
    payload = data[_HEADER.size :]
    if size != len(payload) or digest_of(payload) != digest:
        raise CorruptRecordError(name, _HEADER.size, f"{len(payload)} bytes, expected {size} with another digest")
    try:
        record: ImportHead | PartRecord = msgspec.msgpack.decode(payload, type=ImportHead | PartRecord)
    except UNDECODABLE as error:
        raise CorruptRecordError(name, _HEADER.size, str(error)) from error
    if isinstance(record, PartRecord) and not all(set(row) == DAMAGE_KEYS for row in record.damage):
        raise CorruptRecordError(name, _HEADER.size, "damage with other columns than it has")
    return record


def read_record(blocks: BlockStore, incarnation: bytes, name: str) -> ImportHead | PartRecord | None:
    """Return a record; None if there is none that can be believed, or one of a newer program."""
    path = blocks.directory(incarnation) / name
    try:
        return decode_record(blocks.read_record(incarnation, name, IMPORT_RECORD), str(path))
    except FileNotFoundError:
        return None
    except (StorageError, OSError) as error:
        raise_if_of_process(error)
        logger.info("%s: %s", path, error)
        return None


def write_record(
    volumes: Sequence[VolumeHandle], incarnation: bytes, name: str, record: ImportHead | PartRecord, env: Environment
) -> None:
    """Write a record beside the blocks, durably. A failure is reported."""
    content = encode_record(record)
    calls = [partial(volume.blocks(env.files).put_record, incarnation, name, content) for volume in volumes]
    for outcome in env.parallel(calls):
        if isinstance(outcome, OSError):
            logger.warning("record of an import: %s", outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
