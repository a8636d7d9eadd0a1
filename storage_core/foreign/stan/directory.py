"""Discovery of STAN channels below any directory: a store, a directory of stores, or one channel.

    ROOT/server.dat, ROOT/clients.dat, ROOT/CHANNEL/subs.dat, ROOT/CHANNEL/msgs.N.dat, ROOT/CHANNEL/msgs.N.idx

A directory with subs.dat or a slice is a channel, whatever lies beside it, so that a store without server.dat is
read too. Other names, and slices with `.bak` behind (they were handed to an archive script), are not looked at.

Source: nats-streaming-server, stores/filestore.go (`Recover`, `newFileMsgStore`, `recoverServerInfo`).
"""

import os
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from storage_core.errors import CorruptionError, NotAStoreError, StorageError
from storage_core.file_kinds import STAN_SERVER
from storage_core.files import OS_FILES, Files
from storage_core.foreign.stan.protobuf import decode_one
from storage_core.foreign.stan.record import FILE_HEADER_SIZE, HEADER, HEADER_SIZE, VERSION, checksum_name
from storage_core.foreign.tree import GLANCE_COUNT_MAX, GLANCE_DEPTH_MAX, directories, size_of
from storage_core.os_errors import raise_if_limit, raise_if_of_process

SERVER_FILE, CLIENTS_FILE, SUBSCRIPTIONS_FILE = "server.dat", "clients.dat", "subs.dat"
_SLICE = re.compile(r"msgs\.([0-9]{1,18})\.(dat|idx)", re.ASCII)


@dataclass(frozen=True, slots=True)
class SliceFile:
    """One slice of a channel. Its data file may be missing where only its index is left."""

    number: int
    path: str  # of the data file
    size: int  # bytes of the data file, 0 if it is missing

    @property
    def index_path(self) -> str:
        return str(Path(self.path).with_suffix(".idx"))


@dataclass(frozen=True, slots=True)
class ChannelDirectory:
    """One channel as it lies on disk."""

    path: str
    name: str
    slices: tuple[SliceFile, ...] = ()  # by number

    @property
    def account(self) -> str:
        """Return nothing: there are no accounts."""
        return ""

    @property
    def subscriptions_path(self) -> str:
        return str(Path(self.path) / SUBSCRIPTIONS_FILE)

    @property
    def root(self) -> str:
        """Return the directory of the store."""
        return str(Path(self.path).parent)


@dataclass(frozen=True, slots=True)
class ChannelListing:
    """What lies below some paths."""

    channels: tuple[ChannelDirectory, ...]  # by name and path
    roots: tuple[str, ...]  # directories of stores, also of those without channels


def find_channels(paths: Sequence[str | os.PathLike[str]], files: Files = OS_FILES) -> ChannelListing:
    """Return every channel at or below the paths.

    Raises NotAStoreError if a path is no directory, or none has a store in or below it.
    """
    channels: dict[str, ChannelDirectory] = {}
    roots: set[str] = set()
    empty: list[str | os.PathLike[str]] = []
    for path in paths:
        top = Path(os.path.realpath(path))
        if not files.is_directory(top):
            problem = "is a file; give the directory of its channel or store" if top.exists() else "does not exist"
            raise NotAStoreError(f"{path} {problem}")
        has_channels = False
        for place, names in directories(top, files, _is_above_channels):
            if _is_channel(names):
                channels.setdefault(os.path.realpath(place), _load(place, names, files))  # links may lead to it twice
                roots.add(str(place.parent))
            elif SERVER_FILE in names or CLIENTS_FILE in names:
                roots.add(str(place))
            else:
                continue
            has_channels = True
        if not has_channels:
            empty.append(path)
    if len(empty) == len(paths):
        raise NotAStoreError(
            f"{empty[0]} is no store of NATS Streaming: no {SERVER_FILE} and no channel "
            f"({SUBSCRIPTIONS_FILE}, msgs.N.dat) in it or below it"
        )
    listed = sorted(channels.values(), key=lambda channel: (channel.name, channel.path))
    return ChannelListing(tuple(listed), tuple(sorted(roots)))


def holds_channels(path: str | os.PathLike[str], files: Files = OS_FILES) -> bool:
    """Return whether a channel is seen at or below the path without looking far."""
    top = Path(os.path.realpath(path))
    try:
        if not files.is_directory(top):
            return False
        glance = directories(top, files, _is_above_channels, depth_max=GLANCE_DEPTH_MAX, count_max=GLANCE_COUNT_MAX)
        return any(_is_channel(names) for _, names in glance)
    except (StorageError, OSError) as error:
        raise_if_limit(error)
        return False


def read_cluster_id(root: str | Path, files: Files = OS_FILES) -> str:
    """Return the name of the cluster that a store belongs to.

    Raises NotAStoreError if there is no server.dat, CorruptionError if it is not what it should be.
    """
    path = Path(root) / SERVER_FILE
    try:
        file = files.open(Path(os.path.realpath(path)))
    except OSError as error:
        raise_if_of_process(error)
        raise NotAStoreError(f"{path} cannot be read: {error.strerror}") from error
    with closing(file):
        data = STAN_SERVER.read(file)
    payload = data[FILE_HEADER_SIZE + HEADER_SIZE :]
    if int.from_bytes(data[:FILE_HEADER_SIZE], "little") != VERSION or not payload:
        raise CorruptionError(f"{path}: {len(data)} bytes, expected version {VERSION} and one record")
    declared, crc = HEADER.unpack_from(data, FILE_HEADER_SIZE)
    if declared != len(payload) or checksum_name(memoryview(payload), crc) is None:
        raise CorruptionError(f"{path}: a record of {declared} bytes with checksum {crc:#010x} is not what it has")
    fields, readable = decode_one(payload)
    cluster = fields.get(1, b"")
    if not readable or not isinstance(cluster, bytes):
        raise CorruptionError(f"{path}: the record is not that of a server")
    return cluster.decode("utf-8", "backslashreplace")


def _is_above_channels(_place: Path, names: list[str]) -> bool:
    return not _is_channel(names)


def _is_channel(names: list[str]) -> bool:
    return SUBSCRIPTIONS_FILE in names or any(_SLICE.fullmatch(name) for name in names)


def _load(place: Path, names: list[str], files: Files) -> ChannelDirectory:
    matches = [match for name in names if (match := _SLICE.fullmatch(name))]
    numbers = sorted({(int(match[1]), match[1]) for match in matches})
    present = set(names)
    slices = []
    for number, text in numbers:
        path = place / f"msgs.{text}.dat"
        slices.append(SliceFile(number, str(path), size_of(path, files) if path.name in present else 0))
    return ChannelDirectory(str(place), place.name, tuple(slices))
