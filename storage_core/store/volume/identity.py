"""Identity of a volume: one page that says which store, volume and volume instance a directory is.

It is the last file that the creation of a store writes, so a directory without it is no volume. A volume that is
rebuilt or blank gets a new instance and with it a new file. It also says how many volumes the store has and where they
were, for whoever finds this one with its metadata lost: nothing else goes by that.

Source: docs/formats/volume.md.
"""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from struct import Struct

from storage_core.checksum import add_crc, crc_is_good
from storage_core.deadlines import together
from storage_core.errors import (
    CorruptionError,
    NotAStoreError,
    UnsupportedVersionError,
)
from storage_core.file_kinds import IDENTITY
from storage_core.files import Files
from storage_core.os_errors import of_volume, raise_if_of_process
from storage_core.paths import is_in_object_store, place

FILE_NAME = "jstream.volume"
# Marks, beside no identity: a page for each volume to be, its own first.
RESTORING = "jstream.restoring"  # a backup is being restored here, or that was interrupted
CREATING = "jstream.creating"  # a store is being made here, or that was interrupted
STREAMS = "streams"  # the directory of the blocks
BACKUP_FILE, UNFINISHED = "jstream.backup", "jstream.unfinished"  # the mark of a backup; of one that is being made
OWNERS = "owners"  # the directory of who has which consumer, and who watches over the store
MAGIC = b"JSTRMVOL"
FORMAT_VERSION = 1
PAGE_SIZE = IDENTITY.size_max  # bytes
_FIELDS = Struct("<8sHHI16s16s16sQHH")
_SEPARATOR = b"\0"
_PATHS_SIZE_MAX = PAGE_SIZE - _FIELDS.size - 4  # bytes; the checksum comes last


@dataclass(frozen=True, slots=True)
class VolumeIdentity:
    store_id: bytes
    volume_id: bytes
    instance_id: bytes  # new whenever the volume is made blank or rebuilt
    created_ns: int
    volume_count: int = 0  # of the store when this was written; 0: not known
    paths: tuple[str, ...] = ()  # of all of them, from this directory on; none: not known

    def encode(self) -> bytes:
        paths = _SEPARATOR.join(os.fsencode(path) for path in self.paths)
        fields = _FIELDS.pack(
            MAGIC, FORMAT_VERSION, 0, PAGE_SIZE, self.store_id, self.volume_id, self.instance_id, self.created_ns,
            self.volume_count, len(paths),
        )  # fmt: skip
        return add_crc(fields + paths, PAGE_SIZE)

    def among(self, path: Path, places: Sequence[Path]) -> "VolumeIdentity":
        """Return the identity of a volume at `path` that says where all volumes of its store are."""
        if is_in_object_store(path):
            paths = tuple(str(place) for place in places)
        else:
            paths = tuple(os.path.relpath(os.path.abspath(place), os.path.abspath(path)) for place in places)
        is_short = sum(len(os.fsencode(place)) + 1 for place in paths) <= _PATHS_SIZE_MAX
        return replace(self, volume_count=len(places), paths=paths if is_short else ())

    def places(self, path: Path) -> list[Path]:
        """Return where the volumes of the store were, if this one is at `path`."""
        if is_in_object_store(path):
            return [place(text) for text in self.paths]
        return [Path(os.path.normpath(path / text)) for text in self.paths]


def decode_identity(page: bytes, path: Path) -> VolumeIdentity:
    """Return the identity; raises NotAStoreError, CorruptionError, UnsupportedVersionError naming the file."""
    if page[: len(MAGIC)] != MAGIC:
        raise NotAStoreError(f"{path} is not the identity of a jstream volume: it begins with {page[:8]!r}")
    if len(page) != PAGE_SIZE or not crc_is_good(page):
        raise CorruptionError(f"{path} is damaged: {len(page)} bytes, bad checksum")
    _, version, _, _, store_id, volume_id, instance_id, created_ns, count, size = _FIELDS.unpack_from(page)
    if version != FORMAT_VERSION:
        raise UnsupportedVersionError(f"{path} has version {version}; this program reads version {FORMAT_VERSION}")
    if size > _PATHS_SIZE_MAX:
        raise CorruptionError(f"{path} is damaged: {size} bytes of paths, at most {_PATHS_SIZE_MAX} fit")
    listed = page[_FIELDS.size : _FIELDS.size + size]
    paths = tuple(os.fsdecode(text) for text in listed.split(_SEPARATOR)) if listed else ()
    return VolumeIdentity(store_id, volume_id, instance_id, created_ns, count, paths)


def encode_mark(identities: Sequence[VolumeIdentity]) -> bytes:
    """Return the mark of a volume that is being made, whose own identity comes first."""
    return b"".join(identity.encode() for identity in identities)


def decode_mark(pages: bytes, path: Path) -> tuple[VolumeIdentity, ...]:
    """Return the identities in a mark; raises as `decode_identity` does. One that was cut off may have fewer."""
    return tuple(decode_identity(pages[at : at + PAGE_SIZE], path) for at in range(0, len(pages), PAGE_SIZE))


def check_no_backup(files: Files, directory: Path) -> None:
    """Raise NotAStoreError if a directory of a disk holds a backup, which has blocks as a volume has them."""
    marks = () if is_in_object_store(directory) else (BACKUP_FILE, UNFINISHED)
    if any(_is_file(files, directory / mark) for mark in marks):
        raise NotAStoreError(f"{directory} holds a backup, not a volume: `jstream restore` makes a store of it")


def read_identity(files: Files, directory: Path) -> VolumeIdentity:
    """Return the identity of the volume in `directory`.

    Raises NotAStoreError if there is none, CorruptionError, UnsupportedVersionError, VolumeFailedError, ProcessError.
    """
    try:
        return together(files, directory / FILE_NAME, partial(_read_identity, files, directory))
    except OSError as error:
        raise_if_of_process(error, directory)
        raise of_volume(error, f"{directory} cannot be read: {error}") from error


def _read_identity(files: Files, directory: Path) -> VolumeIdentity:
    path = directory / FILE_NAME
    try:
        file = files.open(path)
    except (FileNotFoundError, NotADirectoryError):
        if not files.is_directory(directory):
            problem = "does not exist or is not a directory"
            if is_in_object_store(directory):
                problem = "holds nothing, or its bucket is not there (jstream store create makes a store in a bucket)"
            raise NotAStoreError(f"{directory} {problem}") from None
        if _is_file(files, directory / RESTORING):
            remedy = "restore onto the same volumes again"
            if is_in_object_store(directory):
                remedy = "if no restore runs there, remove everything below it and restore again"
            raise NotAStoreError(f"{directory} holds a restore that was not finished: {remedy}") from None
        if _is_file(files, directory / CREATING):
            raise NotAStoreError(
                f"{directory} holds a store whose creation was not finished: create it on the same volumes again"
            ) from None
        check_no_backup(files, directory)
        remedy = "jstream store create PATH makes one"
        if files.is_directory(directory / STREAMS):
            remedy = f"but {STREAMS}/ of one, in which nothing is: name another volume, or empty the directory"
            if files.list_directory(directory / STREAMS):
                rebuild = (
                    "restore a backup" if is_in_object_store(directory) else "`jstream repair --adopt` rebuilds it"
                )
                remedy = f"but {STREAMS}/ of one: name another volume; with none left, {rebuild}"
        raise NotAStoreError(f"{directory} holds no jstream store: there is no {FILE_NAME} in it ({remedy})") from None
    except OSError as error:
        raise_if_of_process(error, path)
        if error.errno in (errno.ELOOP, errno.EINVAL, errno.EISDIR):  # a link, a directory, a FIFO
            raise NotAStoreError(f"{path} is not a file of a volume: {error.strerror}") from error
        raise of_volume(error, f"{path} cannot be opened: {error}") from error
    try:
        return decode_identity(file.read_at(0, PAGE_SIZE + 1), path)
    except OSError as error:
        raise_if_of_process(error, path)
        raise of_volume(error, f"{path} cannot be read: {error}") from error
    finally:
        file.close()


def _is_file(files: Files, path: Path) -> bool:
    try:
        files.file_size(path)
    except OSError:
        return False
    return True
