"""The file interface: every byte that storage_core reads or writes passes through a `Files`.

`OsFiles` is the real one. Tests put wrappers and simulations in its place (a write that fails, an fsync that lies, a
power loss that drops what was not synced), so production code has no switches for faults.

Rules that hold everywhere: files inside a volume are regular files opened with O_NOFOLLOW; nothing is made visible by
renaming, but a repaired copy takes the name of the bad one; `sync_directory` follows the creation or removal of a name
that must survive. Errors of the operating system come out as OSError: os_errors.py says what they mean.

Files and directories are made for their owner alone, 0600 and 0700; in a directory that is shared with its group (its
mode has 02770) for that group, too, 0660 and 02770, whatever the umask. So the mode of a volume's directory says it for
everything that any process makes below it; `share_directory` sets it.
"""

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Protocol, runtime_checkable

logger = logging.getLogger(__name__)
FILE_MODE = 0o600
PAGE_SIZE = 4096  # bytes; of the page cache
NOTE_SIZE = 512  # bytes that a lock's note takes, filled up with spaces: it covers the one before as a whole
DIRECTORY_MODE = 0o700
GROUP_FILE, GROUP_DIRECTORY = 0o660, 0o2770  # setgid: what is made in it gets its group, whoever makes it


class File(Protocol):
    """One open file. Offsets are given with every call: there is no position to share."""

    path: Path
    opened_size: int  # bytes that it had when it was opened
    tag: str  # in an object store what tells its content from others under the name, as `Files.list_tags` has it

    def read_at(self, offset_bytes: int, size: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""
        ...

    def read_into(self, offset_bytes: int, buffer: memoryview) -> int:
        """Fill `buffer` from the file; return the number of bytes read, fewer only at the end of the file."""
        ...

    def write_at(self, offset_bytes: int, data: bytes | memoryview) -> None:
        """Write all of `data`."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make the file's content durable (fdatasync). A failure is final: it is never tried again."""
        ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Lock(Protocol):
    """An exclusive lock on one file, shared by the threads of a process through the mutex of its owner."""

    def try_acquire(self) -> bool: ...

    def write_note(self, note: bytes) -> None:
        """Leave a note for others in the locked file: who holds it, in at most NOTE_SIZE bytes of text."""
        ...

    def read_note(self) -> bytes:
        """Return the note of whoever held the lock last."""
        ...

    def close(self) -> None:
        """Let go of the lock, if it was acquired, and of the file."""
        ...


@runtime_checkable
class ReadingAhead(Protocol):
    """An open file that takes long to answer, and fetches what it knows will be read."""

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Say which ranges [start, end) will be read into buffers, in order; others may be read all the same."""
        ...


@runtime_checkable
class Lasting(Protocol):
    """An open file that can be kept for a while in which other processes use its path."""

    def size_at_path(self) -> int | None:
        """Return its size now; None if its path leads to another file or to none, or another path leads to it, too."""
        ...


class Files(Protocol):
    """A file system, or what a test makes of one."""

    def create(self, path: Path) -> File:
        """Create and open a new file for reading and writing; FileExistsError if the name is taken."""
        ...

    def open(self, path: Path, writable: bool = False, size: int | None = None) -> File:
        """Open a regular file that exists; a link, directory, FIFO or device is refused with OSError.

        For writing, a file with several hard links is refused as well: it is somebody else's, too. `size`: the bytes
        that it should have, where they are known: a small object comes with its opening.
        """
        ...

    def unlink(self, path: Path) -> None: ...

    def replace(self, old: Path, new: Path) -> None:
        """Give the file at `old` the name `new`, in one step, whatever had it. For repaired copies alone."""
        ...

    def make_directory(self, path: Path) -> None:
        """Create one directory; one that exists already is fine."""
        ...

    def share_directory(self, path: Path, with_group: bool) -> None:
        """Let the group of a directory use it, and what will be made in it, or keep it out.

        Files that lie in it follow where they are this user's; directories do not. OSError if that may not be set.
        """
        ...

    def remove_directory(self, path: Path) -> None: ...

    def list_directory(self, path: Path) -> list[str]:
        """Return the names in a directory, in no order; a link to one is refused with OSError."""
        ...

    def list_tags(self, path: Path) -> dict[str, str]:
        """Return the names in a directory, and what tells the content of each from others; nothing on disks."""
        ...

    def sync_directory(self, path: Path) -> None: ...

    def file_size(self, path: Path) -> int:
        """Return the size in bytes of a regular file; FileNotFoundError if there is none."""
        ...

    def file_sizes(self, path: Path) -> dict[str, int]:
        """Return the names and sizes in bytes of the regular files in a directory.

        What else is there is left out, and what does not say how large it is.
        """
        ...

    def is_directory(self, path: Path) -> bool: ...

    def drop_cache(self, path: Path) -> None:
        """Ask the machine to forget what it caches of a file, so that the next read is one of the disk.

        What was written and not synced stays cached. Does nothing where the operating system cannot be asked.
        """
        ...

    def lock(self, path: Path) -> Lock:
        """Return an exclusive lock, not yet acquired, on a file that is created if it is missing."""
        ...


class OsFile:
    """A file of the operating system."""

    __slots__ = ("opened_size", "path", "_descriptor", "_inode")
    tag = ""

    def __init__(self, path: Path, descriptor: int, size: int = 0) -> None:
        self.path, self._descriptor, self.opened_size = path, descriptor, size
        self._inode: tuple[int, int] | None = None  # device and number, once somebody asks

    def __del__(self) -> None:  # of a file that was kept open and is not needed any more
        with suppress(AttributeError, OSError):
            self.close()

    def read_at(self, offset_bytes: int, size: int) -> bytes:
        parts, want = [], size
        while want > 0:
            part = os.pread(self._descriptor, want, offset_bytes + size - want)
            if not part:
                break
            parts.append(part)
            want -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, offset_bytes: int, buffer: memoryview) -> int:
        done = 0
        while done < len(buffer):
            count = os.preadv(self._descriptor, [buffer[done:]], offset_bytes + done)
            if not count:
                break
            done += count
        return done

    def read_cached(self, offset_bytes: int, buffer: memoryview) -> int:
        """Fill `buffer` from its beginning as far as the machine has the file cached; return the number of bytes.

        Waits for no disk and no server. 0 where the operating system or the file system cannot be asked so.
        """
        if not _READS_CACHED:
            return 0
        try:
            return os.preadv(self._descriptor, [buffer], offset_bytes, _READS_CACHED)
        except OSError:  # nothing is cached, or what is wrong with the file shows when it is read
            return 0

    def write_at(self, offset_bytes: int, data: bytes | memoryview) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            count = os.pwrite(self._descriptor, rest, offset_bytes)
            if not count:
                raise OSError(errno.EIO, "nothing was written", str(self.path))
            offset_bytes, rest = offset_bytes + count, rest[count:]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        _sync(self._descriptor)

    def start_writing(self, offset_bytes: int, size: int) -> None:
        """Have the disk begin to write a range that is complete; returns at once, and makes nothing durable.

        A later `sync` waits for less. Does nothing where the operating system cannot be asked. Raises OSError if the
        disk refuses what it was given.
        """
        sync_file_range = _find_sync_file_range()
        if sync_file_range is None:
            return
        if sync_file_range(self._descriptor, offset_bytes, size, _SYNC_FILE_RANGE_WRITE):
            import ctypes

            code = ctypes.get_errno()
            if code not in (errno.ENOSYS, errno.EINVAL, errno.ESPIPE):  # file systems that do not know how
                raise OSError(code, os.strerror(code), str(self.path))

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def size_at_path(self) -> int | None:
        try:
            status = os.lstat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if self._inode is None:
            own = os.fstat(self._descriptor)
            self._inode = own.st_dev, own.st_ino
        is_same = (status.st_dev, status.st_ino) == self._inode and status.st_nlink == 1
        return status.st_size if is_same else None

    def next_data(self, offset_bytes: int) -> int:
        """Return where the next bytes begin that the file holds, from `offset_bytes` on; its size if there are none.

        What lies between is zero bytes. Where the file system does not tell, `offset_bytes` itself. Raises OSError.
        """
        try:
            return os.lseek(self._descriptor, offset_bytes, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return self.size()
            if error.errno in (errno.EINVAL, errno.ENOTSUP):
                return offset_bytes
            raise

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "OsFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OsLock:
    """`flock` on a file: the kernel lets go when the last descriptor closes, also when the process is killed.

    A POSIX record lock would be dropped by any close of the file in the process; a forked child would keep a flock
    alive after its parent was killed, so whoever owns this closes it in forked children.
    """

    __slots__ = ("__weakref__", "_file")

    def __init__(self, path: Path) -> None:
        # Closed at once with its number forgotten, whatever interrupts the caller; and when nobody refers to it.
        try:
            self._file = FileIO(_open(path, os.O_RDWR)[0], "r+")
        except FileNotFoundError:
            self._file = FileIO(_open(path, os.O_RDWR | os.O_CREAT)[0], "r+")

    def try_acquire(self) -> bool:
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def write_note(self, note: bytes) -> None:
        os.pwrite(self._file.fileno(), note.ljust(NOTE_SIZE), 0)

    def read_note(self) -> bytes:
        return os.pread(self._file.fileno(), NOTE_SIZE, 0).rstrip(b" ")

    def close(self) -> None:
        self._file.close()


class OsFiles:
    """The file system of this machine."""

    def create(self, path: Path) -> OsFile:
        return OsFile(path, *_open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))

    def open(self, path: Path, writable: bool = False, size: int | None = None) -> OsFile:
        return OsFile(path, *_open(path, os.O_RDWR if writable else os.O_RDONLY))

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def replace(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def make_directory(self, path: Path) -> None:
        is_shared = _is_shared(path.parent)
        try:
            os.mkdir(path, GROUP_DIRECTORY & 0o777 if is_shared else DIRECTORY_MODE)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise
            return
        if is_shared and not _is_shared(path):  # the umask
            os.chmod(path, GROUP_DIRECTORY)

    def share_directory(self, path: Path, with_group: bool) -> None:
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        if with_group == (mode & GROUP_DIRECTORY == GROUP_DIRECTORY):
            return
        os.chmod(path, mode | GROUP_DIRECTORY if with_group else mode & ~0o2070)
        if with_group and not _is_shared(path):
            raise PermissionError(errno.EPERM, "this user is not in the group of the directory", str(path))
        for name in self.list_directory(path):
            status = os.lstat(path / name)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                os.chmod(path / name, GROUP_FILE if with_group else FILE_MODE)

    def remove_directory(self, path: Path) -> None:
        os.rmdir(path)

    def list_tags(self, path: Path) -> dict[str, str]:
        return dict.fromkeys(self.list_directory(path), "")

    def list_directory(self, path: Path) -> list[str]:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _sync(descriptor, os.fsync)
        finally:
            os.close(descriptor)

    def file_size(self, path: Path) -> int:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return status.st_size

    def file_sizes(self, path: Path) -> dict[str, int]:
        sizes = {}
        for name in self.list_directory(path):
            try:
                status = os.lstat(f"{path}/{name}")  # text: a Path takes longer to make than a file to be looked at
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                sizes[name] = status.st_size
        return sizes

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def drop_cache(self, path: Path) -> None:
        if not hasattr(os, "posix_fadvise"):
            return
        descriptor, _ = _open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> OsLock:
        return OsLock(path)


_READS_CACHED: int = getattr(os, "RWF_NOWAIT", 0)  # Linux
_SYNC_FILE_RANGE_WRITE = 2  # Source: linux/fs.h


@cache
def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Return sync_file_range of the C library, which Python does not have; None where there is none (Linux has it)."""
    import ctypes

    try:
        function = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)  # macOS, whose fsync leaves it in the disk's cache
_DATA_SYNC = getattr(os, "fdatasync", os.fsync)  # macOS has none


def _sync(descriptor: int, sync: Callable[[int], None] = _DATA_SYNC) -> None:
    """Make what was written durable, the cache of the disk included."""
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_SYNC)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):  # file systems that do not know it
                raise
    sync(descriptor)


def _open(path: Path, flags: int) -> tuple[int, int]:
    """Return the descriptor of a regular file, and how many bytes it has."""
    # O_NONBLOCK: opening a FIFO must not hang; it has no effect on regular files, which is all that gets through.
    mode = GROUP_FILE if flags & os.O_CREAT and _is_shared(path.parent) else FILE_MODE
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    if flags & os.O_EXCL and mode == FILE_MODE:
        return descriptor, 0  # it was made just now
    status, refused = os.fstat(descriptor), None
    if not stat.S_ISREG(status.st_mode):
        refused = OSError(errno.EINVAL, "not a regular file", str(path))
    elif flags & os.O_RDWR and status.st_nlink > 1:
        refused = OSError(errno.EMLINK, f"has {status.st_nlink} hard links, so writing would change others", str(path))
    if refused is not None:
        os.close(descriptor)
        raise refused
    if mode == GROUP_FILE and status.st_mode & GROUP_FILE != GROUP_FILE and status.st_uid == os.geteuid():
        os.fchmod(descriptor, GROUP_FILE)  # the umask
    return descriptor, status.st_size


def _is_shared(directory: Path) -> bool:
    """Return whether what is made in a directory is for its group, too."""
    try:
        return os.stat(directory).st_mode & GROUP_DIRECTORY == GROUP_DIRECTORY
    except OSError:
        return False


OS_FILES = OsFiles()


def write_durably(
    files: Files,
    path: Path,
    *parts: bytes,
    replaces: bool = False,
    sync: Callable[[File], None] = lambda file: file.sync(),
) -> None:
    """Make a new file of these parts that no power loss takes back, name and all. Raises OSError; then there is none.

    `replaces`: what is left under that name by an attempt that was killed is removed first.
    """
    try:
        _write_new(files, path, parts, sync)
    except FileExistsError:
        if not replaces:
            raise
        files.unlink(path)
        _write_new(files, path, parts, sync)


def _write_new(files: Files, path: Path, parts: Sequence[bytes], sync: Callable[[File], None]) -> None:
    file = files.create(path)
    try:
        with closing(file):
            offset_bytes = 0
            for part in parts:
                file.write_at(offset_bytes, part)
                offset_bytes += len(part)
            sync(file)
        files.sync_directory(path.parent)
    except FileExistsError:  # in an object store a name turns out to be taken only here: it is not ours
        raise
    except OSError:
        try:
            files.unlink(path)
        except OSError as error:  # nobody was told of it, so nothing in it counts
            logger.warning("%s could not be removed: %s", path, error)
        raise
