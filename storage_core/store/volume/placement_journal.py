"""Journal of placements of one volume: which block got which sequences in which stream, for the day without metadata.

    VOLUME/placements.journal      docs/formats/placements.md

Written after the ack, fsynced off the ack path; nothing but an explicit `repair --adopt` reads it for its content. It
begins with all blocks that were live at a snapshot of the metadata, or waited to be unlinked, and is written anew with
each; so it is as large as what is on disk, and a process that has not written it yet looks at what came after the
snapshot alone.
Records stand on 8-byte boundaries, each with a magic, so that a torn or damaged one costs itself only.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import Struct

import numpy as np

from storage_core.bounded import pack, unpack
from storage_core.checksum import crc32c
from storage_core.deadlines import together
from storage_core.errors import CorruptionError, UnsupportedVersionError
from storage_core.files import File, Files, Lasting
from storage_core.metadata.config import check_name
from storage_core.metadata.invariants import check_id
from storage_core.metadata.manifest import BLOCK_DTYPE, decode_blocks, encode_blocks

FILE_NAME = "placements.journal"
MAGIC = b"JSTRMPLC"
FORMAT_VERSION = 1
RECORD_MAGIC = b"PLCE"
ROWS_PER_RECORD_MAX = 4096
RECORD_SIZE_MAX = ROWS_PER_RECORD_MAX * BLOCK_DTYPE.itemsize + 4096  # bytes of payload
PIECE_SIZE = 4 << 20  # bytes of the journal that are read together
# Bytes without a record, however they came about: one write adds less than an entry of the log holds. Behind it nothing
# is looked for, so that a file of a terabyte of nothing costs no more than this.
STRETCH_SIZE_MAX = 128 << 20
TRY_SIZE_MIN = 4096  # bytes that a look at what begins like a record counts for
NEW_FILE_NAME = FILE_NAME + ".new"  # of a journal that is about to take the place of the one there
_HEADER = Struct("<8sIIQQ")  # magic, version, CRC32C of the rest, log index and end of the blocks it begins with
_RECORD = Struct("<4sIIIQ")  # magic, CRC32C of what follows, payload size, 0, log index


@dataclass(frozen=True, slots=True)
class Placement:
    """One record: blocks that were added to one stream."""

    index: int  # of the metadata log when the record was written: not below that of the entry
    incarnation: bytes
    stream: str
    rows: np.ndarray  # BLOCK_DTYPE


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first part of a journal: all blocks that were live after an entry, durable."""

    index: int
    end: int  # offset in bytes


class PlacementJournal:
    """The journal of one volume; written under its lock."""

    def __init__(self, files: Files, volume: Path) -> None:
        self._files, self.path = files, volume / FILE_NAME
        self._file: File | None = None  # that the last record was appended to

    def write(self, index: int, placements: Iterable[Placement]) -> None:
        """Put a journal of all live blocks as of an entry in the place of what is there, durably."""
        new = self.path.with_name(NEW_FILE_NAME)
        try:
            file = self._files.create(new)
        except FileExistsError:  # of somebody who was killed
            self._files.unlink(new)
            file = self._files.create(new)
        with closing(file):
            end, buffer = _HEADER.size, bytearray()
            for placement in placements:
                for record in _records(placement):
                    buffer += record
                    if len(buffer) >= RECORD_SIZE_MAX:
                        file.write_at(end, bytes(buffer))
                        end, buffer = end + len(buffer), bytearray()
            file.write_at(end, bytes(buffer))
            end += len(buffer)
            file.write_at(0, _header(FORMAT_VERSION, index, end))
            file.sync()
        self._files.replace(new, self.path)
        self._files.sync_directory(self.path.parent)

    def beginning(self) -> Beginning | None:
        """Return what the journal begins with; None if that cannot be known. Raises UnsupportedVersionError."""
        try:
            file = self._files.open(self.path)
        except FileNotFoundError:
            return None
        with closing(file):
            header = file.read_at(0, _HEADER.size)
            _check_version(header, self.path)
            if len(header) < _HEADER.size:
                return None
            _, version, _, index, end = _HEADER.unpack(header)
            is_whole = header == _header(version, index, end) and _HEADER.size <= end <= file.size()
            return Beginning(index, end) if is_whole else None

    def append(self, placements: list[Placement], is_checked: bool = False) -> None:
        """Write records at the end; a missing journal is begun, with no blocks. Raises UnsupportedVersionError.

        `is_checked`: this process has read or written the beginning of the journal before.
        """
        if not placements:
            return
        content = b"".join(_encode(placement) for placement in placements)
        together(self._files, self.path, partial(self._append, content, is_checked))

    def _append(self, content: bytes, is_checked: bool) -> None:
        file, self._file = self._file, None
        size = (file.size_at_path() or 0) if is_checked and isinstance(file, Lasting) else 0
        if file is not None and size < _HEADER.size:
            file.close()
            file = None
        if file is None:
            file = self._open(is_checked)
            size = max(file.opened_size, _HEADER.size)
        try:
            file.write_at(-(-size // 8) * 8, content)
        except BaseException:
            file.close()
            raise
        self._file = file

    def close(self) -> None:
        """Close the file that records were appended to."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def read(self, start: int = 0) -> Iterator[Placement]:
        """Yield every whole record from `start` on, in the order in which they were written.

        A damaged header is passed over, and so is damage between records. Raises UnsupportedVersionError, and
        CorruptionError where more lies there than any damage explains: the file is not read on from there.
        """
        try:
            file = self._files.open(self.path)
        except FileNotFoundError:
            return
        with closing(file):
            _check_version(file.read_at(0, _HEADER.size), self.path)
            yield from self._scan(file, start)

    def _scan(self, file: File, start: int) -> Iterator[Placement]:
        """Yield the whole records of an open journal, a piece of it at a time."""
        position = known_end = start  # known_end: of the last whole record
        is_last, tried_size = False, 0  # tried_size: bytes since then whose checksum was asked for in vain
        while not is_last:
            data = file.read_at(position, PIECE_SIZE + _RECORD.size + RECORD_SIZE_MAX)
            is_last = len(data) < PIECE_SIZE + _RECORD.size + RECORD_SIZE_MAX
            stop, end = len(data) if is_last else PIECE_SIZE, 0
            at = data.find(RECORD_MAGIC)
            while 0 <= at < stop:
                record, end = _decode(data, at)
                if record is not None:
                    known_end, tried_size = position + end, 0
                    yield record
                else:
                    tried_size += min(TRY_SIZE_MIN + _size_at(data, at), RECORD_SIZE_MAX)
                    self._check_stretch(known_end, position + at, tried_size)
                at = data.find(RECORD_MAGIC, end)
            position += max(stop, end)
            self._check_stretch(known_end, position, tried_size)

    def _check_stretch(self, known_end: int, position: int, tried_size: int) -> None:
        if position - known_end > STRETCH_SIZE_MAX or tried_size > STRETCH_SIZE_MAX:
            raise CorruptionError(
                f"{self.path}: offset_bytes {known_end}: expected a record within {STRETCH_SIZE_MAX} bytes, "
                "found none; the journal is not read on from there"
            )

    def _open(self, is_checked: bool) -> File:
        try:
            file = self._files.open(self.path, writable=True)
        except FileNotFoundError:
            file = self._files.create(self.path)
        if is_checked and file.opened_size >= _HEADER.size:
            return file
        try:
            header = file.read_at(0, _HEADER.size)
            _check_version(header, self.path)
            if len(header) < _HEADER.size:
                file.write_at(0, _header(FORMAT_VERSION, 0, _HEADER.size))
        except BaseException:
            file.close()
            raise
        return file


def _header(version: int, index: int, end: int) -> bytes:
    crc = crc32c(_HEADER.pack(MAGIC, version, 0, index, end))
    return _HEADER.pack(MAGIC, version, crc, index, end)


def _check_version(header: bytes, path: Path) -> None:
    """Raise UnsupportedVersionError for a whole header of another version; a damaged one says nothing."""
    if len(header) < _HEADER.size:
        return
    magic, version, _, index, end = _HEADER.unpack(header)
    if magic == MAGIC and header == _header(version, index, end) and version != FORMAT_VERSION:
        raise UnsupportedVersionError(f"{path} has version {version}; this program reads version {FORMAT_VERSION}")


def _encode(placement: Placement) -> bytes:
    return b"".join(_records(placement))


def _records(placement: Placement) -> Iterator[bytes]:
    for start in range(0, len(placement.rows), ROWS_PER_RECORD_MAX):
        rows = placement.rows[start : start + ROWS_PER_RECORD_MAX]
        payload = pack([placement.incarnation, placement.stream, encode_blocks(rows)])
        body = _RECORD.pack(RECORD_MAGIC, 0, len(payload), 0, placement.index)[8:] + payload
        yield RECORD_MAGIC + crc32c(body).to_bytes(4, "little") + body + bytes(-len(body) % 8)


def _size_at(data: bytes, at: int) -> int:
    """Return how large a record that begins at `at` says that it is; 0 if the bytes end before."""
    return int(_RECORD.unpack_from(data, at)[2]) if len(data) - at >= _RECORD.size else 0


def _decode(data: bytes, at: int) -> tuple[Placement | None, int]:
    """Return the record at `at` if one stands there whole, and where to look on."""
    if len(data) - at < _RECORD.size:
        return None, at + 1
    _, crc, size, _, index = _RECORD.unpack_from(data, at)
    end = at + _RECORD.size + size
    if size > RECORD_SIZE_MAX or end > len(data) or crc32c(data[at + 8 : end]) != crc:
        return None, at + 1
    try:
        incarnation, stream, encoded = unpack(data[at + _RECORD.size : end], RECORD_SIZE_MAX, "placement")
        check_id("incarnation", incarnation)
        check_name(stream, "name of a stream")
        return Placement(index, incarnation, stream, decode_blocks(encoded, "a placement")), end
    except (CorruptionError, ValueError, TypeError):
        return None, at + 1
