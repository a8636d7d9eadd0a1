"""Journal of placements of one volume: which block got which sequences in which stream, for the day without metadata.

    VOLUME/placements.journal      docs/formats/placements.md

Written after the ack, fsynced off the ack path; nothing but an explicit `repair --adopt` reads it for its content.
Records stand on 8-byte boundaries, each with a magic, so that a torn or damaged one costs itself only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import numpy as np
from crc32c import crc32c

from storage_core.bounded import pack, unpack
from storage_core.errors import CorruptionError, UnsupportedVersionError
from storage_core.files import File, Files
from storage_core.metadata.manifest import BLOCK_DTYPE

FILE_NAME = "placements.journal"
MAGIC = b"JSTRMPLC"
FORMAT_VERSION = 1
RECORD_MAGIC = b"PLCE"
ROWS_PER_RECORD_MAX = 4096
RECORD_SIZE_MAX = ROWS_PER_RECORD_MAX * BLOCK_DTYPE.itemsize + 4096  # bytes of payload
_HEADER = Struct("<8sII")  # magic, version, CRC32C of the twelve bytes before
_RECORD = Struct("<4sIIIQ")  # magic, CRC32C of what follows, payload size, 0, log index


@dataclass(frozen=True, slots=True)
class Placement:
    """One record: blocks that were added to one stream."""

    index: int  # of the metadata log when the record was written: not below that of the entry
    incarnation: bytes
    stream: str
    rows: np.ndarray  # BLOCK_DTYPE


class PlacementJournal:
    """The journal of one volume; written under its lock."""

    def __init__(self, files: Files, volume: Path) -> None:
        self._files, self.path = files, volume / FILE_NAME

    def append(self, placements: list[Placement]) -> None:
        """Write records at the end; a missing journal is begun. Raises UnsupportedVersionError."""
        if not placements:
            return
        file = self._open()
        try:
            at = -(-file.size() // 8) * 8
            file.write_at(at, b"".join(_encode(one) for one in placements))
        finally:
            file.close()

    def sync(self) -> None:
        """Make the journal durable, its name included."""
        file = self._open()
        try:
            file.sync()
        finally:
            file.close()
        self._files.sync_directory(self.path.parent)

    def read(self) -> Iterator[Placement]:
        """Yield every whole record, in the order in which they were written, also behind a damaged header.

        Raises UnsupportedVersionError.
        """
        try:
            file = self._files.open(self.path)
        except FileNotFoundError:
            return
        try:
            data = file.read_at(0, file.size())
        finally:
            file.close()
        _check_version(data[: _HEADER.size], self.path)
        yield from _scan(data, 0)

    def _open(self) -> File:
        try:
            file = self._files.open(self.path, writable=True)
        except FileNotFoundError:
            file = self._files.create(self.path)
        try:
            header = file.read_at(0, _HEADER.size)
            _check_version(header, self.path)
            if len(header) < _HEADER.size:
                file.write_at(0, _header(FORMAT_VERSION))
        except BaseException:
            file.close()
            raise
        return file


def _header(version: int) -> bytes:
    fields = _HEADER.pack(MAGIC, version, 0)[:-4]
    return fields + crc32c(fields).to_bytes(4, "little")


def _check_version(header: bytes, path: Path) -> None:
    """Raise UnsupportedVersionError for a whole header of another version; a damaged one says nothing."""
    if len(header) < _HEADER.size:
        return
    magic, version, crc = _HEADER.unpack(header)
    if magic == MAGIC and crc == crc32c(header[:-4]) and version != FORMAT_VERSION:
        raise UnsupportedVersionError(f"{path} has version {version}; this program reads version {FORMAT_VERSION}")


def _encode(placement: Placement) -> bytes:
    encoded = b""
    for start in range(0, len(placement.rows), ROWS_PER_RECORD_MAX):
        rows = placement.rows[start : start + ROWS_PER_RECORD_MAX]
        payload = pack([placement.incarnation, placement.stream, rows.tobytes()])
        body = _RECORD.pack(RECORD_MAGIC, 0, len(payload), 0, placement.index)[8:] + payload
        encoded += RECORD_MAGIC + crc32c(body).to_bytes(4, "little") + body + bytes(-len(body) % 8)
    return encoded


def _scan(data: bytes, start: int) -> Iterator[Placement]:
    at = data.find(RECORD_MAGIC, start)
    while at >= 0:
        record, end = _decode(data, at)
        if record is not None:
            yield record
        at = data.find(RECORD_MAGIC, end)


def _decode(data: bytes, at: int) -> tuple[Placement | None, int]:
    """Return the record at `at` if one stands there whole, and where to look on."""
    if len(data) - at < _RECORD.size:
        return None, at + 1
    _, crc, size, _, index = _RECORD.unpack_from(data, at)
    end = at + _RECORD.size + size
    if size > RECORD_SIZE_MAX or end > len(data) or crc32c(data[at + 8 : end]) != crc:
        return None, at + 1
    try:
        incarnation, stream, rows = unpack(data[at + _RECORD.size : end], RECORD_SIZE_MAX, "placement")
        return Placement(index, incarnation, stream, np.frombuffer(rows, BLOCK_DTYPE)), end
    except (CorruptionError, ValueError, TypeError):
        return None, at + 1
