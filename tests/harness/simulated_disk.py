"""A disk in memory that behaves as badly as disks may: what was not synced can be lost, torn and re-ordered.

    machine      SimulatedDisk: one tree of files and directories, each with what processes see (the page cache)
                 and what the platter has
    process      SimulatedFiles: the `Files` of one process of that machine; it can be killed
    power loss   ends all processes; what was synced stays, of the rest each page and each name meets its own fate
    volume       a directory whose disk is its own: it can lose power alone, be taken away, put back, or swapped

Rules, as strict as POSIX allows:

- A write is seen by all processes at once and is durable after `sync` of that file. Until then each page may be on
  the platter as it is, as it was after any earlier write, as it was before, or torn between two of these.
- A name is durable after `sync_directory` of its directory; syncing the file does nothing for its name. Un-synced
  names are kept or lost one by one, in no order. So is the size of a file: pages kept without it are cut off, the
  size kept without pages reads as zeros.
- A sync that fails leaves its pages stranded: clean, so that a later sync skips them, and not durable.
  `evict_clean_pages` makes the cache forget them, as memory pressure would.
- A rename is one step: after a power loss the file has its new name only, or the name is as it was.
- A killed process leaves the page cache as it is and loses its locks.

Everything random comes from one seed.
"""

import errno
import os
import random
from functools import lru_cache
from pathlib import Path

from harness.simulated_nodes import (
    ALL_KEPT,
    NOTHING_KEPT,
    PAGE_SIZE,
    SECTOR_SIZE,
    Fate,
    Node,
    SimulatedDirectory,
    SimulatedInode,
)

from storage_core.files import NOTE_SIZE

__all__ = [
    "ALL_KEPT",
    "NOTHING_KEPT",
    "PAGE_SIZE",
    "SECTOR_SIZE",
    "Fate",
    "ProcessEnded",
    "SimulatedDirectory",
    "SimulatedDisk",
    "SimulatedFiles",
    "SimulatedInode",
]


class ProcessEnded(BaseException):
    """The simulated process is no more: nothing that it asks for happens. Not an Exception, so nothing handles it."""


@lru_cache(maxsize=4096)
def _parts(path: str, mount_point: str) -> tuple[str, ...] | None:
    """Return the names below the mount point, None if the path lies elsewhere."""
    if path != mount_point and not path.startswith(mount_point + "/"):
        return None
    return tuple(part for part in path[len(mount_point) :].split("/") if part)


class SimulatedDisk:
    """The disk of one machine, with a mount point that is there and durable from the start."""

    def __init__(self, seed: int = 0, mount_point: str = "/disk", capacity_bytes: int | None = None) -> None:
        self.random = random.Random(seed)
        self.capacity_bytes = capacity_bytes  # of all files together; None: no bound
        self.strands_names = True  # by a failed sync of a directory; False: a later one still makes them durable
        self._mount_point, self._mounted = Path(mount_point), mount_point
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

    def lose_power_below(self, path: Path, fate: Fate | None = None) -> None:
        """The same for the volume in this directory alone: processes go on, and its locks are gone."""
        self.directory(path).lose_power(fate if fate is not None else Fate.draw(self.random), self.random)

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
        copy.strands_names = self.strands_names
        copy._root = self._root.copy({})
        return copy

    def image_below(self, path: Path) -> SimulatedDirectory:
        """Return a copy of what is durable of a volume now."""
        return self.directory(path).copy_platter()

    def take_away(self, path: Path) -> SimulatedDirectory:
        """Remove the directory of a volume, durably, and return it as it is: `put_back` undoes it."""
        taken, parent = self.directory(path), self.directory(path.parent)
        del parent.names[path.name]
        parent.platter.pop(path.name, None)
        parent.dirty.pop(path.name, None)
        return taken

    def put_back(self, path: Path, node: SimulatedDirectory) -> None:
        """Let this directory stand at `path`, durably, whatever was there: what was taken away, or an older image."""
        parent = self.directory(path.parent)
        parent.names[path.name] = parent.platter[path.name] = node
        parent.dirty.pop(path.name, None)

    def files(self, below: Path | None = None) -> list[tuple[Path, SimulatedInode]]:
        """Return every file that processes see, sorted by path."""
        found: list[tuple[Path, SimulatedInode]] = []
        waiting: list[tuple[Path, Node]] = [(below or self._mount_point, self.node(below or self._mount_point))]
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
        self.inode(path).flip_bit(bit)

    def cut(self, path: Path, size: int) -> None:
        """Shorten a file to `size` bytes, on the platter and in the cache."""
        self.overwrite(path, self.inode(path).content[:size])

    def remove(self, path: Path) -> None:
        """Remove a file or a directory with all in it, durably."""
        directory = self.directory(path.parent)
        directory.names.pop(path.name)
        directory.platter.pop(path.name, None)
        directory.dirty.pop(path.name, None)

    def overwrite(self, path: Path, content: bytes) -> None:
        """Put durable content in a file, made if it is missing."""
        directory = self.directory(path.parent)
        inode = SimulatedInode(content)
        directory.names[path.name] = directory.platter[path.name] = inode

    # --- paths

    def node(self, path: Path) -> Node:
        parts = _parts(str(path), self._mounted)
        if parts is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        node: Node = self._root
        try:
            for part in parts:
                node = node.names[part]  # type: ignore[union-attr]  # a file has none
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
        except AttributeError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
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

    tag = ""

    def __init__(self, process: "SimulatedFiles", path: Path, inode: SimulatedInode, writable: bool) -> None:
        self.path, self._process, self._writable = path, process, writable
        self._inode: SimulatedInode | None = inode
        self.opened_size = len(inode.content)

    def read_at(self, offset_bytes: int, size: int) -> bytes:
        return self._open().content[offset_bytes : offset_bytes + size]

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

    def size_at_path(self) -> int | None:
        own = self._open()
        try:
            there = self._process.disk.inode(self.path)
        except OSError:
            return None
        return len(there.content) if there is own else None

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
        self._inode.write(0, note.ljust(NOTE_SIZE))

    def read_note(self) -> bytes:
        self._process.check_alive()
        return self._inode.content[:NOTE_SIZE].rstrip(b" ")

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

    def open(self, path: Path, writable: bool = False, size: int | None = None) -> SimulatedFile:
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

    def replace(self, old: Path, new: Path) -> None:
        directory, target = self._directory(old.parent), self._directory(new.parent)
        node = self.disk.node(old)
        if isinstance(node, SimulatedDirectory) or isinstance(target.names.get(new.name), SimulatedDirectory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(new))
        if directory is target:
            directory.rename(old.name, new.name)
        else:  # after a power loss it may be in either of the two, in both, or in none
            target.put(new.name, node)
            directory.put(old.name, None)

    def make_directory(self, path: Path) -> None:
        directory = self._directory(path.parent)
        there = directory.names.get(path.name)
        if isinstance(there, SimulatedInode):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        if there is None:
            directory.put(path.name, SimulatedDirectory())

    def share_directory(self, path: Path, with_group: bool) -> None:
        self._directory(path)  # there; one user has it all

    def remove_directory(self, path: Path) -> None:
        if self._directory(path).names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        self.disk.directory(path.parent).put(path.name, None)

    def list_directory(self, path: Path) -> list[str]:
        names = list(self._directory(path).names)
        self.disk.random.shuffle(names)  # the order of a listing means nothing
        return names

    def list_tags(self, path: Path) -> dict[str, str]:
        return dict.fromkeys(self.list_directory(path), "")

    def sync_directory(self, path: Path) -> None:
        self._directory(path).sync()

    def strand_directory(self, path: Path) -> None:
        """What a sync of a directory that fails does to its names."""
        if self.disk.strands_names:
            self._directory(path).strand()

    def file_size(self, path: Path) -> int:
        self.check_alive()
        return len(self.disk.inode(path).content)

    def file_sizes(self, path: Path) -> dict[str, int]:
        there = self._directory(path).names
        return {name: len(one.content) for name, one in there.items() if isinstance(one, SimulatedInode)}

    def is_directory(self, path: Path) -> bool:
        self.check_alive()
        try:
            return isinstance(self.disk.node(path), SimulatedDirectory)
        except OSError:
            return False

    def drop_cache(self, path: Path) -> None:
        self.check_alive()
        self.disk.inode(path).evict()

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
