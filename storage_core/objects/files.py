"""Objects as files: what the store does with files on disks, done with the objects below a prefix.

A file is written from front to back and is there, whole and durable, when `sync` returns, if its name was free; before
that it is nowhere. So `create` finds out late that a name is taken: FileExistsError comes from `sync`. It is never
changed afterwards. Directories are nothing but parts of names: they need not be made, and are there while something
lies in them. Locks there are none, since nothing here needs one.
"""

import errno
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NoReturn

from storage_core.files import Lock
from storage_core.forks import Stage, renew_in_children
from storage_core.objects.client import PART_SIZE, ObjectStore, Upload
from storage_core.objects.reading_ahead import ReadAhead
from storage_core.paths import ObjectPath, place

FIRST_READ_SIZE = 256 << 10  # bytes that come with opening an object: small ones are there at once
# Bytes of an object that comes whole: with opening it if its size is known, else with the first look behind what came
# with that. A frame and its footer have room in it.
SMALL_SIZE = 5 << 20
WHOLE_READ_SIZE = 64 << 20  # the same of metadata, of which everything is read


# Names of these kinds are random, and used once: nothing can be there but this very object, put once more on the way.
UNIQUE_SUFFIXES = (".blk", ".repair")
# Of small objects that are put again as a whole: what they say is not metadata.
REWRITTEN_SUFFIXES = (".lease", ".db")
WHOLE_SUFFIXES = (".rec", ".snap", ".base")


class NewObject:
    """An object that is being written; nobody sees it before `sync`."""

    opened_size, tag = 0, ""

    def __init__(self, store: ObjectStore, path: Path, name: str, replaces: bool = False) -> None:
        """`replaces`: whatever has the name."""
        self._store, self.path, self._name = store, path, name
        self._is_put = replaces or path.suffix in UNIQUE_SUFFIXES  # rather than created
        self._parts: list[bytes] = []  # that are not on their way
        self._upload: Upload | None = None  # of what is large, and used once
        self._size, self._is_stored = 0, False

    def read_at(self, offset_bytes: int, size: int) -> bytes:
        if self._upload is not None:
            _refuse("an object that is put in parts is read when it is there", self.path)
        return b"".join(self._parts)[offset_bytes : offset_bytes + size]

    def read_into(self, offset_bytes: int, buffer: memoryview) -> int:
        data = self.read_at(offset_bytes, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write_at(self, offset_bytes: int, data: bytes | memoryview) -> None:
        if offset_bytes != self._size or self._is_stored:
            _refuse("an object is written from front to back, once", self.path)
        self._size += len(data)
        if self._upload is None and self._size > PART_SIZE and self._is_put:
            self._upload = self._store.begin_put(self._name)
            for part in self._parts:
                self._upload.write(part)
            self._parts = []
        if self._upload is not None:
            self._upload.write(memoryview(data).cast("B"))
        else:
            self._parts.append(bytes(data))

    def truncate(self, size: int) -> None:
        if size != self._size:
            _refuse("an object is not cut", self.path)

    def sync(self) -> None:
        if self._is_stored:
            return
        if self._upload is not None:
            self._upload.finish()
        else:
            self._parts = [b"".join(self._parts)]
            (self._store.put if self._is_put else self._store.create)(self._name, self._parts[0])
        self._is_stored = True

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        """One that was not synced comes to nothing: of its parts none is seen."""
        self._parts, self._upload = [], None


class OpenObject:
    """An object that is read, or put again as a whole."""

    def __init__(self, store: ObjectStore, path: Path, name: str, size: int | None) -> None:
        """`size`: the bytes that it should have; None: nobody knows."""
        self._store, self.path, self._name = store, path, name
        first_size = WHOLE_READ_SIZE if path.suffix in WHOLE_SUFFIXES else FIRST_READ_SIZE
        if size is not None and size <= SMALL_SIZE:
            first_size = max(size, first_size)
        self._head, self.opened_size, self.tag = store.get(name, first_size)
        self._is_changed = False
        self._ahead: ReadAhead | None = None

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        wanted = [(start, end) for start, end in ranges if end > len(self._head)]
        self._ahead = ReadAhead(wanted, self._fetch) if wanted and self.opened_size > SMALL_SIZE else None

    def _fetch(self, start: int, end: int) -> memoryview:
        return self._store.get_ranges(self._name, [(start, end)])[0]

    def read_at(self, offset_bytes: int, size: int) -> bytes:
        return bytes(self._read(offset_bytes, min(offset_bytes + size, self.opened_size)))

    def _read(self, start: int, end: int) -> memoryview:
        if start >= end:
            return memoryview(b"")
        if end > len(self._head) and self.opened_size <= SMALL_SIZE:
            self._head += bytes(self._fetch(len(self._head), self.opened_size))
        return memoryview(self._head)[start:end] if end <= len(self._head) else self._fetch(start, end)

    def read_into(self, offset_bytes: int, buffer: memoryview) -> int:
        end = min(offset_bytes + len(buffer), self.opened_size)
        data: memoryview | None = None
        if self._ahead is not None and offset_bytes < end and end > len(self._head):
            data = self._ahead.read(offset_bytes, end)
        if data is None:
            data = self._read(offset_bytes, end)
        buffer[: len(data)] = data
        return len(data)

    def write_at(self, offset_bytes: int, data: bytes | memoryview) -> None:
        if self.path.suffix not in REWRITTEN_SUFFIXES or offset_bytes:
            _refuse("an object is not changed", self.path)
        self._head, self.opened_size, self._is_changed = bytes(data), len(data), True

    def truncate(self, size: int) -> None:
        if size != self.opened_size:
            _refuse("an object is not cut", self.path)

    def sync(self) -> None:
        """Put what was written; what can be read is durable."""
        if self._is_changed:
            self._store.put(self._name, self._head)
            self._is_changed = False

    def size(self) -> int:
        return self.opened_size

    def close(self) -> None:
        self._head = b""
        if self._ahead is not None:
            self._ahead.close()


class ObjectFiles:
    """The objects of any number of buckets. `connect` makes the client of one; it is made where it is used first."""

    def __init__(self, connect: Callable[[str], ObjectStore]) -> None:
        self._connect = connect
        self._stores: dict[str, ObjectStore] = {}
        renew_in_children(Stage.FILES, self)

    def renew(self) -> None:
        """A client is never inherited: a child makes its own."""
        self._stores.clear()

    def _at(self, path: Path) -> tuple[ObjectStore, str]:
        address = place(path)
        assert isinstance(address, ObjectPath), path
        store = self._stores.get(address.bucket)
        if store is None:
            store = self._stores[address.bucket] = self._connect(address.bucket)
        return store, address.key

    def create(self, path: Path) -> NewObject:
        store, name = self._at(path)
        return NewObject(store, path, name)

    def open(self, path: Path, writable: bool = False, size: int | None = None) -> OpenObject:
        store, name = self._at(path)
        return OpenObject(store, path, name, size)

    def unlink(self, path: Path) -> None:
        store, name = self._at(path)
        store.delete(name)

    def replace(self, old: Path, new: Path) -> None:
        """The same content is put under the other name."""
        store, name = self._at(old)
        of_new, new_name = self._at(new)
        with closing(self.open(old)) as source, closing(NewObject(of_new, new, new_name, replaces=True)) as copy:
            for start in range(0, source.opened_size, PART_SIZE):
                copy.write_at(start, source.read_at(start, PART_SIZE))
            copy.sync()
        store.delete(name)

    def make_directory(self, path: Path) -> None:
        """Nothing has to be done."""

    def share_directory(self, path: Path, with_group: bool) -> None:
        """Who may use a bucket is said where it is kept."""

    def remove_directory(self, path: Path) -> None:
        """It goes with what lies in it."""

    def list_directory(self, path: Path) -> list[str]:
        store, name = self._at(path)
        prefix = f"{name}/" if name else ""
        return store.children(prefix)

    def list_tags(self, path: Path) -> dict[str, str]:
        return {name: tag for name, _, tag in self._below(path)}

    def sync_directory(self, path: Path) -> None:
        """A name is durable with its object."""

    def file_size(self, path: Path) -> int:
        store, name = self._at(path)
        return store.size(name)

    def file_sizes(self, path: Path) -> dict[str, int]:
        return {name: size for name, size, _ in self._below(path)}

    def _below(self, path: Path) -> list[tuple[str, int, str]]:
        store, name = self._at(path)
        prefix = f"{name}/" if name else ""
        listed = [(key[len(prefix) :], size, tag) for key, size, tag in store.names(prefix)]
        return [(child, size, tag) for child, size, tag in listed if "/" not in child]

    def is_directory(self, path: Path) -> bool:
        store, name = self._at(path)
        try:
            return next(store.names(f"{name}/" if name else "", 1), None) is not None
        except FileNotFoundError:  # not even the bucket is there
            return False

    def drop_cache(self, path: Path) -> None:
        """Nothing is cached."""

    def lock(self, path: Path) -> Lock:
        _refuse("there are no locks in an object store", path)


def _refuse(why: str, path: Path) -> NoReturn:
    raise OSError(errno.ENOTSUP, why, str(path))
