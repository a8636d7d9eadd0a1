"""index.db of a volume: which blocks it holds, and when each was last read, and how it was found.

    VOLUME/index.db      docs/formats/index-db.md

A cache. Missing, stale, ahead of the metadata or damaged, it is made again from the block files, and the counts come
out the same; only the times of the last verification are lost with it.
"""

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Annotated

import msgspec
import numpy as np

from storage_core.bounded import decode, pack
from storage_core.checksum import crc32c
from storage_core.errors import CorruptionError
from storage_core.file_kinds import VOLUME_INDEX
from storage_core.files import Files
from storage_core.os_errors import raise_if_limit, raise_if_of_process
from storage_core.paths import is_in_object_store
from storage_core.store.volume.block_store import BLOCK_SUFFIX, block_id_of

FILE_NAME = "index.db"
MAGIC = b"JSTRMIDX"
FORMAT_VERSION = 1
_Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_DECODER = msgspec.msgpack.Decoder(dict[bytes, list[tuple[bytes, _Number, _Number]]])
_CURSOR = b""  # in place of an incarnation: how far a scrub has come
_HEADER = Struct("<8sIIQ")  # magic, version, CRC32C of the payload, payload size


@dataclass(slots=True)
class StreamIndex:
    """Blocks of one incarnation on this volume: block id to (bytes, time of the last verification).

    The time is in ns, 0 if the block was never read since its size changed, and negative if it was found damaged then.
    """

    blocks: dict[bytes, tuple[int, int]] = field(default_factory=dict)


class VolumeIndex:
    """What index.db says, checked against the directory whenever a stream is asked for."""

    def __init__(self, files: Files, volume: Path) -> None:
        self._files, self._volume, self.path = files, volume, volume / FILE_NAME
        self._streams: dict[bytes, StreamIndex] = self._load()
        # Where the next scrub goes on: (incarnation, sequence); None: at the beginning.
        cursor = self._streams.pop(_CURSOR, StreamIndex()).blocks
        self.scrubbed_to = next(((incarnation, sequence) for incarnation, (sequence, _) in cursor.items()), None)
        self._read = dict(self._streams)  # what the file said
        self._noted: dict[bytes, set[bytes]] = {}  # blocks that were looked at since, by incarnation

    def stream(self, incarnation: bytes) -> StreamIndex:
        """Return the blocks that lie in the stream's directory now; names and sizes come from the files."""
        known = self._streams.get(incarnation, StreamIndex()).blocks
        blocks: dict[bytes, tuple[int, int]] = {}
        for name, size in self._sizes(incarnation).items():
            block_id = block_id_of(name)
            if block_id is None:
                continue
            was_size, verified_ns = known.get(block_id, (size, 0))
            blocks[block_id] = (size, verified_ns if was_size == size else 0)
        self._streams[incarnation] = StreamIndex(blocks)
        return self._streams[incarnation]

    def held(self, incarnation: bytes, block_ids: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return for each of these blocks, 16 bytes an id, its size now, and the time of its last verification.

        The size is -1 if it is not there. The same as `stream` says, for thousands of blocks whose ids are known.
        """
        count, text = len(block_ids) // 16, block_ids.hex()
        file_sizes = self._sizes(incarnation)
        names = (f"{text[at : at + 32]}{BLOCK_SUFFIX}" for at in range(0, len(text), 32))
        sizes = np.fromiter((file_sizes.get(name, -1) for name in names), np.int64, count)
        known = self._streams.get(incarnation, StreamIndex()).blocks
        if not known:
            return sizes, np.zeros(count, np.int64)
        entries = [known.get(block_ids[at : at + 16], (-1, 0)) for at in range(0, len(block_ids), 16)]
        was_sizes, verified_ns = np.array(entries, np.int64).reshape(-1, 2).T
        return sizes, np.where(was_sizes == sizes, verified_ns, 0)

    def _sizes(self, incarnation: bytes) -> dict[str, int]:
        try:
            return self._files.file_sizes(self._volume / "streams" / incarnation.hex())
        except OSError as error:  # missing, or the disk does not give it back: no block that could be counted on
            raise_if_of_process(error)
            return {}

    def verified(self, incarnation: bytes, block_id: bytes, size: int, time_ns: int, is_whole: bool) -> None:
        """Note that the block was read, and whether it was found whole."""
        blocks = self._streams.setdefault(incarnation, StreamIndex()).blocks
        blocks[block_id] = (size, time_ns if is_whole else -time_ns)
        self._noted.setdefault(incarnation, set()).add(block_id)

    def verified_ns(self, incarnation: bytes, block_id: bytes) -> int:
        """Return when the block was last read, 0 if it never was; negative: it was found damaged then."""
        return self._streams.get(incarnation, StreamIndex()).blocks.get(block_id, (0, 0))[1]

    def save(self, incarnations: set[bytes]) -> None:
        """Write the index of these streams, under the volume's lock; a reader of a half-written one makes it anew.

        Others may have written theirs since this one was read.
        """
        self._take_newer(self._load())
        cursor = {_CURSOR: [[*self.scrubbed_to, 0]]} if self.scrubbed_to is not None else {}
        streams = {
            incarnation: [[block_id, *values] for block_id, values in sorted(stream.blocks.items())]
            for incarnation, stream in sorted(self._streams.items())
            if incarnation in incarnations
        }
        payload = pack(cursor | streams)
        if len(payload) > VOLUME_INDEX.size_max - _HEADER.size:  # nobody would read it
            payload = pack(cursor)
        encoded = _HEADER.pack(MAGIC, FORMAT_VERSION, crc32c(payload), len(payload)) + payload
        try:
            file = self._files.open(self.path, writable=True)
        except FileNotFoundError:
            file = self._files.create(self.path)
        with closing(file):
            file.write_at(0, encoded)
            file.truncate(len(encoded))
            if is_in_object_store(self.path):  # before that nothing is there; a disk needs no fsync of a cache
                file.sync()

    def _take_newer(self, stored: dict[bytes, StreamIndex]) -> None:
        """Take over what others wrote meanwhile: of two looks at a block the newer one counts."""
        for incarnation, noted in self._noted.items():
            ours = self._streams.setdefault(incarnation, StreamIndex()).blocks
            known = stored.get(incarnation, StreamIndex()).blocks
            before = self._read.get(incarnation, StreamIndex()).blocks
            newer = {
                block_id: entry
                for block_id, entry in known.items()
                if entry != before.get(block_id)
                and (block_id not in noted or abs(entry[1]) > abs(ours.get(block_id, (0, 0))[1]))
            }
            has_unlisted = not newer.keys() <= ours.keys()
            ours.update(newer)
            if has_unlisted:  # new, or gone
                self.stream(incarnation)
        for incarnation in stored.keys() - self._noted.keys() - {_CURSOR}:
            self._streams[incarnation] = stored[incarnation]

    def _load(self) -> dict[bytes, StreamIndex]:
        try:
            file = self._files.open(self.path)
        except OSError as error:
            raise_if_limit(error)
            return {}
        try:
            size = file.size()
            if size > VOLUME_INDEX.size_max or file.read_at(0, len(MAGIC)) != MAGIC:
                return {}
            encoded = file.read_at(0, size)
        except OSError as error:
            raise_if_limit(error)
            return {}
        finally:
            file.close()
        if len(encoded) < _HEADER.size:
            return {}
        magic, version, crc, size = _HEADER.unpack_from(encoded)
        payload = encoded[_HEADER.size :]
        if (magic, version, size) != (MAGIC, FORMAT_VERSION, len(payload)) or crc32c(payload) != crc:
            return {}
        try:
            return {
                incarnation: StreamIndex({block_id: (size, time_ns) for block_id, size, time_ns in rows})
                for incarnation, rows in decode(_DECODER, payload, "index.db").items()
            }
        except CorruptionError:
            return {}
