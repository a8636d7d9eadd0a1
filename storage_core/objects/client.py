"""What volumes ask of an object store: nine calls, each with a deadline, that fail as calls on files do.

    create       store under a name that nothing has; FileExistsError: something may be there, the caller reads it
    put          store under a name, whatever is there
    begin_put    the same of what is large, in parts while it is being made; it is there when it is finished
    get          the beginning of an object, how large it is, and its tag
    get_ranges   some ranges of it
    size         how large it is
    names        the names that begin with a prefix, in order, with their sizes and tags
    children     the names directly below one, of objects and of folders
    delete       remove one; one that is not there is fine

A tag (ETag) tells the content of an object from every other one under its name; empty where the store has none.

Missing objects are FileNotFoundError. Rights and credentials are PermissionError: an error of this process, whatever
lies there. All else, from a refused connection to a 503, is UnreachableError (os_errors.py): no damage and no loss.
Calls that change nothing when they are repeated are retried until their deadline, with growing, jittered pauses. A
creation is never repeated here: its answer may have been lost, and then the object that is there is the caller's own,
as only the caller can tell.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

CALL_TIMEOUT_S = 10.0  # seconds for one call, its repetitions included: less than a volume has (deadlines.py)
PART_SIZE = 8 << 20  # bytes of one part of a large object: of 10,000 at most
PARTS_AT_ONCE = 2  # of one object


class Upload(Protocol):
    """An object that is put in parts. Nobody sees it before it is finished; one that never is does not count."""

    def write(self, data: bytes | memoryview) -> None:
        """Add bytes, which may be on their way when it returns."""
        ...

    def finish(self) -> None:
        """Make the object, durable on return."""
        ...


class ObjectStore(Protocol):
    """One bucket of an object store. Safe to use from several threads, not from a forked child of its process."""

    @property
    def uri(self) -> str:
        """Its address, without credentials: for messages and for the metadata."""
        ...

    def create(self, name: str, data: bytes) -> None:
        """Store an object if its name is free; it is durable on return. Raises FileExistsError if it may not be."""
        ...

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Store an object whatever is there; it is durable on return."""
        ...

    def begin_put(self, name: str) -> Upload:
        """Begin to store an object in parts, whatever is there."""
        ...

    def get(self, name: str, size: int) -> tuple[bytes, int, str]:
        """Return up to `size` first bytes of an object, how many it has, and its tag. Raises FileNotFoundError."""
        ...

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes of each range [start, end). Raises FileNotFoundError, OSError if one is served short."""
        ...

    def size(self, name: str) -> int:
        """Return the bytes of an object. Raises FileNotFoundError."""
        ...

    def names(self, prefix: str, count_max: int | None = None) -> Iterator[tuple[str, int, str]]:
        """Yield name, size and tag of each object whose name begins with `prefix`, in order; at most `count_max`."""
        ...

    def children(self, prefix: str) -> list[str]:
        """Return the names of the objects and folders directly below `prefix`, which ends with a slash or is empty."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is fine."""
        ...
