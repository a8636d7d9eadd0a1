"""A disk in memory that behaves as badly as disks may: what was not synced can be lost, torn and re-ordered.

    machine      SimulatedDisk: one tree of files and directories, each with what processes see (the page cache)
                 and what the platter has
    process      SimulatedFiles: the `Files` of one process of that machine; it can be killed
    power loss   ends all processes; what was synced stays, of the rest each page and each name meets its own fate

Rules, as strict as POSIX allows:

- A write is seen by all processes at once and is durable after `sync` of that file. Until then each page may be on
  the platter as it is, as it was after any earlier write, as it was before, or torn between two of these.
- A name is durable after `sync_directory` of its directory; syncing the file does nothing for its name. Un-synced
  names are kept or lost one by one, in no order. So is the size of a file: pages kept without it are cut off, the
  size kept without pages reads as zeros.
- A sync that fails leaves its pages stranded: clean, so that a later sync passes over them, and not durable.
  `evict_clean_pages` makes the cache forget them, as memory pressure would.
- A killed process leaves the page cache as it is and loses its locks.

Everything random comes from one seed.
"""

import errno
import os
import random
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

PAGE_SIZE = 4096
SECTOR_SIZE = 512
VERSIONS_KEPT_MAX = 4  # of an un-synced page, from which its fate chooses


class ProcessEnded(BaseException):
    """The simulated process is no more: nothing that it asks for happens. Not an Exception, so nothing handles it."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What a power loss does to what was not synced. Chances are between 0 and 1."""

    page_kept: float = 0.5  # a page is on the platter in some newer version
    page_torn: float = 0.3  # and then only some of its sectors are
    name_kept: float = 0.5  # the creation or removal of a name happened
    sector_size: int = SECTOR_SIZE  # a multiple of 512: within it a write is whole or not there

    @staticmethod
    def draw(random_source: random.Random) -> "Fate":
        """Return a fate: the extremes come as often as mixtures of everything."""
        return Fate(
            page_kept=random_source.choice((0.0, 0.2, 0.5, 0.8, 1.0)),
            page_torn=random_source.choice((0.0, 0.0, 0.3, 1.0)),
            name_kept=random_source.choice((0.0, 0.5, 0.5, 1.0)),
            sector_size=random_source.choice((SECTOR_SIZE, PAGE_SIZE)),
        )


NOTHING_KEPT = Fate(page_kept=0.0, name_kept=0.0)
ALL_KEPT = Fate(page_kept=1.0, page_torn=0.0, name_kept=1.0)


class SimulatedInode:
    """A regular file: what processes read, and what the platter has."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.platter = bytearray()
        self.dirty: dict[int, list[bytes]] = {}  # page number: its versions since it was durable, oldest first
        self.stranded: dict[int, list[bytes]] = {}  # the same of pages whose sync failed
        self.sizes: list[int] = []  # sizes since the last sync that worked, oldest first
        self.lock: SimulatedLock | None = None

    def write(self, offset_bytes: int, data: bytes) -> None:
        end = offset_bytes + len(data)
        if end > len(self.content):
            self.resize(end)
        self.content[offset_bytes:end] = data
        self._touch(offset_bytes // PAGE_SIZE, -(-end // PAGE_SIZE))

    def resize(self, size: int) -> None:
        before = len(self.content)
        if size < before:
            del self.content[size:]
            for pages in (self.dirty, self.stranded):
                for number in [one for one in pages if one * PAGE_SIZE >= size]:
                    del pages[number]
            self._touch(size // PAGE_SIZE, -(-size // PAGE_SIZE))
        else:
            self.content.extend(bytes(size - before))
        self.sizes = [*self.sizes, size][-VERSIONS_KEPT_MAX:]

    def _touch(self, first: int, end: int) -> None:
        for number in range(first, end):
            versions = self.dirty.setdefault(number, self.stranded.pop(number, []))
            versions.append(bytes(self.content[number * PAGE_SIZE : (number + 1) * PAGE_SIZE]))
            del versions[:-VERSIONS_KEPT_MAX]

    def sync(self) -> None:
        for number in self.dirty:
            self._put(number, bytes(self.content[number * PAGE_SIZE : (number + 1) * PAGE_SIZE]))
        self._fit(len(self.content))
        self.dirty, self.sizes = {}, []

    def strand(self) -> None:
        """Fail to sync: what was dirty counts as clean."""
        self.stranded.update(self.dirty)
        self.dirty = {}

    def evict(self) -> None:
        """Forget the cached copies of stranded pages: from now on they read as the platter has them."""
        for number in self.stranded:
            start = number * PAGE_SIZE
            size = min(PAGE_SIZE, len(self.content) - start)
            if size > 0:
                page = bytes(self.platter[start : start + size])
                self.content[start : start + size] = page + bytes(size - len(page))
        self.stranded = {}

    def lose_power(self, fate: Fate, random_source: random.Random) -> None:
        for number, versions in sorted({**self.stranded, **self.dirty}.items()):
            if random_source.random() < fate.page_kept:
                self._put(number, self._settled(number, versions, fate, random_source))
        sizes = [len(self.platter), *self.sizes]
        if self.sizes:
            # A size that is not synced goes with the pages more often than not.
            self._fit(sizes[-1] if random_source.random() < fate.page_kept else random_source.choice(sizes))
        self.dirty, self.stranded, self.sizes, self.lock = {}, {}, [], None
        self.content = bytearray(self.platter)

    def _settled(self, number: int, versions: list[bytes], fate: Fate, random_source: random.Random) -> bytes:
        newest = versions[-1] if random_source.random() < 0.7 else random_source.choice(versions)
        if random_source.random() >= fate.page_torn:
            return newest
        start = number * PAGE_SIZE
        older = random_source.choice([bytes(self.platter[start : start + PAGE_SIZE]), *versions])
        older = older[: len(newest)] + bytes(max(0, len(newest) - len(older)))
        return b"".join(
            (newest if random_source.random() < 0.5 else older)[at : at + fate.sector_size]
            for at in range(0, len(newest), fate.sector_size)
        )

    def _put(self, number: int, page: bytes) -> None:
        start = number * PAGE_SIZE
        if len(self.platter) < start + len(page):
            self.platter.extend(bytes(start + len(page) - len(self.platter)))
        self.platter[start : start + len(page)] = page

    def _fit(self, size: int) -> None:
        del self.platter[size:]
        self.platter.extend(bytes(size - len(self.platter)))

    def copy_platter(self) -> "SimulatedInode":
        copy = SimulatedInode()
        copy.platter, copy.content = bytearray(self.platter), bytearray(self.platter)
        return copy

    def copy(self, copies: "Copies") -> "SimulatedInode":
        copy = SimulatedInode()
        copy.content, copy.platter, copy.sizes = bytearray(self.content), bytearray(self.platter), list(self.sizes)
        copy.dirty = {number: list(versions) for number, versions in self.dirty.items()}
        copy.stranded = {number: list(versions) for number, versions in self.stranded.items()}
        return copy


@dataclass(slots=True)
class SimulatedDirectory:
    """A directory: the names that processes see, and those that are durable."""

    names: dict[str, "Node"] = field(default_factory=dict)
    platter: dict[str, "Node"] = field(default_factory=dict)
    dirty: dict[str, list["Node | None"]] = field(default_factory=dict)  # what a name stood for since it was durable
    stranded: dict[str, list["Node | None"]] = field(default_factory=dict)

    def put(self, name: str, node: "Node | None") -> None:
        if node is None:
            del self.names[name]
        else:
            self.names[name] = node
        self.dirty.setdefault(name, self.stranded.pop(name, [])).append(node)

    def sync(self) -> None:
        for name in self.dirty:
            _assign(self.platter, name, self.names.get(name))
        self.dirty = {}

    def strand(self) -> None:
        self.stranded.update(self.dirty)
        self.dirty = {}

    def lose_power(self, fate: Fate, random_source: random.Random) -> None:
        for name, versions in sorted({**self.stranded, **self.dirty}.items()):
            if random_source.random() < fate.name_kept:
                _assign(
                    self.platter, name, versions[-1] if random_source.random() < 0.8 else random_source.choice(versions)
                )
        self.dirty, self.stranded, self.names = {}, {}, dict(self.platter)
        for _, node in sorted(self.names.items()):
            node.lose_power(fate, random_source)

    def copy_platter(self) -> "SimulatedDirectory":
        copied = {name: node.copy_platter() for name, node in self.platter.items()}
        return SimulatedDirectory(dict(copied), dict(copied))

    def copy(self, copies: "Copies") -> "SimulatedDirectory":
        return SimulatedDirectory(
            {name: _copied(node, copies) for name, node in self.names.items()},
            {name: _copied(node, copies) for name, node in self.platter.items()},
            {name: [node and _copied(node, copies) for node in versions] for name, versions in self.dirty.items()},
            {name: [node and _copied(node, copies) for node in versions] for name, versions in self.stranded.items()},
        )


Node = SimulatedInode | SimulatedDirectory
Copies = dict[int, Node]  # by id of the original: a node that stands in two places is copied once


def _copied(node: Node, copies: Copies) -> Node:
    if id(node) not in copies:
        copies[id(node)] = node.copy(copies)
    return copies[id(node)]


@lru_cache(maxsize=4096)
def _parts(path: str, mount_point: str) -> tuple[str, ...] | None:
    """Return the names below the mount point, None if the path lies elsewhere."""
    if path != mount_point and not path.startswith(mount_point + "/"):
        return None
    return tuple(part for part in path[len(mount_point) :].split("/") if part)


def _assign(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


class SimulatedDisk:
    """The disk of one machine, with a mount point that is there and durable from the start."""

    def __init__(self, seed: int = 0, mount_point: str = "/disk", capacity_bytes: int | None = None) -> None:
        self.random = random.Random(seed)
        self.capacity_bytes = capacity_bytes  # of all files together; None: no bound
        self._mount_point = Path(mount_point)
        self._root = SimulatedDirectory()
        self._processes: list[SimulatedFiles] = []

    def process(self) -> "SimulatedFiles":
        """Return the files as a new process of this machine sees them."""
        made = SimulatedFiles(self)
        self._processes.append(made)
        return made

    def lose_power(self, fate: Fate | None = None) -> None:
        """End all processes and keep what was synced; the rest as fate (drawn, if none is given) has it."""
        for process in self._processes:
            process.kill()
        self._processes = []
        self._root.lose_power(fate if fate is not None else Fate.draw(self.random), self.random)

    def evict_clean_pages(self) -> None:
        """Drop what is cached of pages whose sync failed."""
        for _, inode in self.files():
            inode.evict()

    def image(self) -> SimulatedDirectory:
        """Return a copy of what is durable now."""
        return self._root.copy_platter()

    def restore(self, image: SimulatedDirectory) -> None:
        """Put an image in the place of everything, as a backup or an older disk would; all processes end."""
        for process in self._processes:
            process.kill()
        self._processes = []
        self._root = image.copy_platter()

    def copy(self) -> "SimulatedDisk":
        """Return this disk as it is now, un-synced data and all, with no process and no lock on it."""
        copy = SimulatedDisk(0, str(self._mount_point), self.capacity_bytes)
        copy.random.setstate(self.random.getstate())
        copy._root = self._root.copy({})
        return copy

    def files(self) -> list[tuple[Path, SimulatedInode]]:
        """Return every file that processes see, sorted by path."""
        found: list[tuple[Path, SimulatedInode]] = []
        waiting: list[tuple[Path, Node]] = [(self._mount_point, self._root)]
        while waiting:
            path, node = waiting.pop()
            if isinstance(node, SimulatedInode):
                found.append((path, node))
            else:
                waiting.extend((path / name, child) for name, child in node.names.items())
        return sorted(found, key=lambda pair: pair[0])

    def used_bytes(self) -> int:
        return sum(len(inode.content) for _, inode in self.files())

    def flip_bit(self, path: Path, bit: int) -> None:
        """Turn one bit of a file over, on the platter and in the cache."""
        inode = self.inode(path)
        for bytes_ in (inode.content, inode.platter):
            bytes_[bit // 8] ^= 1 << bit % 8

    def overwrite(self, path: Path, content: bytes) -> None:
        """Put durable content in a file, made if it is missing."""
        directory = self.directory(path.parent)
        inode = SimulatedInode()
        inode.content, inode.platter = bytearray(content), bytearray(content)
        directory.names[path.name] = directory.platter[path.name] = inode

    # --- paths

    def node(self, path: Path) -> Node:
        parts = _parts(str(path), str(self._mount_point))
        if parts is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        node: Node = self._root
        for part in parts:
            if not isinstance(node, SimulatedDirectory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            if part not in node.names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            node = node.names[part]
        return node

    def directory(self, path: Path) -> SimulatedDirectory:
        node = self.node(path)
        if not isinstance(node, SimulatedDirectory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return node

    def inode(self, path: Path) -> SimulatedInode:
        node = self.node(path)
        if not isinstance(node, SimulatedInode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return node


class SimulatedFile:
    """One open file of one process."""

    def __init__(self, process: "SimulatedFiles", path: Path, inode: SimulatedInode, writable: bool) -> None:
        self.path, self._process, self._writable = path, process, writable
        self._inode: SimulatedInode | None = inode

    def read_at(self, offset_bytes: int, size: int) -> bytes:
        return bytes(self._open().content[offset_bytes : offset_bytes + size])

    def read_into(self, offset_bytes: int, buffer: memoryview) -> int:
        found = self._open().content[offset_bytes : offset_bytes + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def write_at(self, offset_bytes: int, data: bytes | memoryview) -> None:
        inode, content = self._changing(), bytes(data)
        room = self._process.room(len(inode.content))
        if offset_bytes + len(content) > room:
            inode.write(offset_bytes, content[: max(0, room - offset_bytes)])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        if content:
            inode.write(offset_bytes, content)

    def truncate(self, size: int) -> None:
        self._changing().resize(size)

    def sync(self) -> None:
        self._open().sync()

    def strand(self) -> None:
        """What a sync that fails does to the pages."""
        self._open().strand()

    def size(self) -> int:
        return len(self._open().content)

    def close(self) -> None:
        self._inode = None

    def _open(self) -> SimulatedInode:
        self._process.check_alive()
        if self._inode is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))
        return self._inode

    def _changing(self) -> SimulatedInode:
        inode = self._open()
        if not self._writable:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))
        return inode


class SimulatedLock:
    """flock on a file, among the processes of the machine and among the opens of one process."""

    def __init__(self, process: "SimulatedFiles", inode: SimulatedInode) -> None:
        self._process, self._inode = process, inode

    def try_acquire(self) -> bool:
        self._process.check_alive()
        if self._inode.lock not in (None, self):
            return False
        self._inode.lock = self
        return True

    def write_note(self, note: bytes) -> None:
        self._process.check_alive()
        self._inode.write(0, note)
        self._inode.resize(len(note))

    def read_note(self) -> bytes:
        self._process.check_alive()
        return bytes(self._inode.content[:4096])

    def close(self) -> None:
        if self._inode.lock is self:
            self._inode.lock = None
        self._process.locks.discard(self)


class SimulatedFiles:
    """`Files` of one process on a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.locks: set[SimulatedLock] = set()
        self._is_alive = True

    def kill(self) -> None:
        """End the process: the kernel lets go of its locks; whatever it asks for from now on raises ProcessEnded."""
        self._is_alive = False
        for lock in list(self.locks):
            lock.close()

    def check_alive(self) -> None:
        if not self._is_alive:
            raise ProcessEnded

    def room(self, size: int) -> int:
        """Return how many bytes a file that has `size` of them may grow to."""
        if self.disk.capacity_bytes is None:
            return 1 << 62
        return size + max(0, self.disk.capacity_bytes - self.disk.used_bytes())

    def create(self, path: Path) -> SimulatedFile:
        directory = self._directory(path.parent)
        if path.name in directory.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        inode = SimulatedInode()
        directory.put(path.name, inode)
        return SimulatedFile(self, path, inode, True)

    def open(self, path: Path, writable: bool = False) -> SimulatedFile:
        self.check_alive()
        node = self.disk.node(path)
        if isinstance(node, SimulatedDirectory) and writable:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return SimulatedFile(self, path, self.disk.inode(path), writable)

    def unlink(self, path: Path) -> None:
        directory = self._directory(path.parent)
        if isinstance(self.disk.node(path), SimulatedDirectory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        directory.put(path.name, None)

    def make_directory(self, path: Path) -> None:
        directory = self._directory(path.parent)
        there = directory.names.get(path.name)
        if isinstance(there, SimulatedInode):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        if there is None:
            directory.put(path.name, SimulatedDirectory())

    def remove_directory(self, path: Path) -> None:
        if self._directory(path).names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        self.disk.directory(path.parent).put(path.name, None)

    def list_directory(self, path: Path) -> list[str]:
        names = list(self._directory(path).names)
        self.disk.random.shuffle(names)  # the order of a listing means nothing
        return names

    def sync_directory(self, path: Path) -> None:
        self._directory(path).sync()

    def strand_directory(self, path: Path) -> None:
        """What a sync of a directory that fails does to its names."""
        self._directory(path).strand()

    def file_size(self, path: Path) -> int:
        self.check_alive()
        return len(self.disk.inode(path).content)

    def is_directory(self, path: Path) -> bool:
        self.check_alive()
        try:
            return isinstance(self.disk.node(path), SimulatedDirectory)
        except OSError:
            return False

    def lock(self, path: Path) -> SimulatedLock:
        directory = self._directory(path.parent)
        if path.name not in directory.names:
            directory.put(path.name, SimulatedInode())
        made = SimulatedLock(self, self.disk.inode(path))
        self.locks.add(made)
        return made

    def _directory(self, path: Path) -> SimulatedDirectory:
        self.check_alive()
        return self.disk.directory(path)
