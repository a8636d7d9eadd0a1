"""Archives of `nats stream backup`, unpacked into what a server has on disk.

    backup.json      configuration and state of the stream, as the server described it
    stream.tar.s2    what the server sent, in chunks of S2: up to 2.14 a tar of meta.inf, msgs/N.blk and
                     obs/CONSUMER/..., from 2.15 on messages (message_archive.py)

Source: nats-server, server/filestore.go (`streamSnapshot`); natscli, `nats stream backup`.
"""

import io
import os
import shutil
import tarfile
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from storage_core.errors import CorruptionError
from storage_core.foreign.nats import message_archive
from storage_core.foreign.nats.directory import BACKUP_ARCHIVE, BACKUP_DESCRIPTION, is_backup
from storage_core.foreign.nats.meta import decode_config
from storage_core.foreign.nats.s2 import CHUNK_DATA_MAX, declared_size, decompress_stream

_STREAM = Path("jetstream") / "$G" / "streams" / "stream"  # the name of the stream is the one in its meta.inf
_DEPTH_MAX = 3
_HEADER_SIZE, _COMPRESSED, _STORED, _SKIPPABLE = 4, 0x00, 0x01, 0x80
_CRC_SIZE = 4
_PIECE_SIZE = 1 << 20


def unpacked(paths: Sequence[str], folder: Path) -> list[str]:
    """Return the paths, with what archives hold in their place; it lies in `folder`, the same each time.

    Raises CorruptionError naming the archive and what is wrong with it.
    """
    return [str(_unpack(Path(path), folder)) if is_backup(path) else path for path in paths]


def _unpack(path: Path, folder: Path) -> Path:
    archive = path / BACKUP_ARCHIVE
    stat = archive.stat()
    name = f"{os.path.realpath(archive)}\n{stat.st_size}\n{stat.st_mtime_ns}".encode()
    place = folder / blake2b(name, digest_size=16).hexdigest()
    if place.is_dir():
        return place
    partial = place.with_suffix(".part")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with archive.open("rb") as file:
            content = _S2File(file, archive)
            if content.read(len(message_archive.MAGIC)) == message_archive.MAGIC:
                message_archive.unpack(content.read, _description(path), partial / _STREAM, str(archive))
            else:
                file.seek(0)
                with tarfile.open(fileobj=_S2File(file, archive), mode="r|") as tar:
                    for member in tar:
                        _extract(tar, member, partial / _STREAM, archive)
    except tarfile.TarError as error:
        raise CorruptionError(f"{archive}: no tar in it: {error}", file=str(archive)) from error
    if not partial.is_dir():
        raise CorruptionError(f"{archive}: it is empty", file=str(archive))
    partial.rename(place)
    return place


def _description(path: Path) -> dict[str, Any]:
    try:
        return decode_config((path / BACKUP_DESCRIPTION).read_bytes(), "type", str(path / BACKUP_DESCRIPTION))
    except OSError as error:
        raise CorruptionError(
            f"{path / BACKUP_DESCRIPTION} cannot be read: {error}", file=str(path / BACKUP_DESCRIPTION)
        ) from error


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path, archive: Path) -> None:
    """Write a file of the archive below the place; its name is that of a stream's file, or it is refused."""
    parts = member.name.split("/")
    if (
        len(parts) > _DEPTH_MAX
        or not all(map(message_archive.PART.fullmatch, parts))
        or not (member.isfile() or member.isdir())
    ):
        raise CorruptionError(f"{archive}: {member.name!r} is no file of a stream", file=str(archive))
    content = tar.extractfile(member)
    if content is None:
        return
    target = place.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(content, file, _PIECE_SIZE)


class _S2File(io.RawIOBase):
    """The data in a file of S2 chunks, one chunk in memory. Damage is an error: no checksum of a message vouches."""

    def __init__(self, file: io.BufferedReader, path: Path) -> None:
        self._file, self._path, self._at = file, path, 0
        self._data = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        pieces, left = [], size if size >= 0 else 1 << 62
        while left and (self._data or self._next()):
            piece, self._data = self._data[:left], self._data[left:]
            pieces.append(bytes(piece))
            left -= len(piece)
        return b"".join(pieces)

    def _next(self) -> bool:
        """Decode the next chunk that has data; return whether there is one."""
        while header := self._file.read(_HEADER_SIZE):
            at, kind, size = self._at, header[0], int.from_bytes(header[1:], "little")
            body = self._file.read(size) if size <= CHUNK_DATA_MAX + CHUNK_DATA_MAX // 4 else b""
            if len(header) < _HEADER_SIZE or len(body) < size:
                self._refuse(at, f"the chunk of {size} bytes ends after {len(body)}")
            self._at += _HEADER_SIZE + size
            if kind in (_COMPRESSED, _STORED):
                self._data = memoryview(self._decoded(at, kind, header + body))
                if self._data:
                    return True
            elif kind < _SKIPPABLE:
                self._refuse(at, f"chunk of unknown type {kind:#04x}")
        return False

    def _decoded(self, at: int, kind: int, chunk: bytes) -> bytes:
        packed = chunk[_HEADER_SIZE + _CRC_SIZE :]
        size = len(packed) if kind == _STORED else declared_size(packed)[0]
        if size > CHUNK_DATA_MAX:
            self._refuse(at, f"chunk declares {size} bytes, the most is {CHUNK_DATA_MAX}")
        decoded = decompress_stream(memoryview(chunk), size)
        if decoded.damage:
            self._refuse(at, decoded.damage[0][1])
        return bytes(decoded.data)

    def _refuse(self, at: int, reason: str) -> None:
        raise CorruptionError(f"{self._path}: offset_bytes {at}: {reason}", file=str(self._path), offset_bytes=at)
