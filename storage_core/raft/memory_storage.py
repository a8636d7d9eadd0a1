"""The log of one node in memory, as the core reads it. Whoever persists it writes here what a Ready says as well."""

from collections.abc import Sequence

from storage_core.errors import CorruptionError
from storage_core.raft.entry import Entry
from storage_core.raft.messages import ORIGIN, Position, Snapshot


class MemoryStorage:
    """Invariant: entries follow each other from the base on; a base above ORIGIN is covered by the snapshot."""

    def __init__(self, snapshot: Snapshot | None = None, entries: Sequence[Entry] = ()) -> None:
        self._base = snapshot.position if snapshot else ORIGIN
        self._snapshot = snapshot
        self._entries: list[Entry] = []
        self.append(entries)

    def base(self) -> Position:
        return self._base

    def last(self) -> Position:
        return Position.of(self._entries[-1]) if self._entries else self._base

    def position(self, index: int) -> Position:
        if index == self._base.index:
            return self._base
        return Position.of(self._entries[self._place(index)])

    def entries(self, first: int, end: int, size_max: int) -> Sequence[Entry]:
        found: list[Entry] = []
        size = 0
        for entry in self._entries[self._place(first) : self._place(end)]:
            size += len(entry.payload)
            if found and size > size_max:
                break
            found.append(entry)
        return found

    def snapshot(self) -> Snapshot | None:
        return self._snapshot

    def append(self, entries: Sequence[Entry]) -> None:
        """Put entries in place of everything from the first one's index on.

        Raises CorruptionError if they do not follow what is in front of them.
        """
        if not entries:
            return
        del self._entries[self._place(entries[0].index) :]
        for entry in entries:
            before = self.last()
            if entry.index != before.index + 1 or not entry.follows(before.chain):
                raise CorruptionError(f"entry {entry.index} does not follow the log, which ends at {before.index}")
            self._entries.append(entry)

    def install(self, snapshot: Snapshot) -> None:
        """Put a leader's snapshot in place of everything."""
        self._base, self._snapshot, self._entries = snapshot.position, snapshot, []

    def compact(self, snapshot: Snapshot, keep_count: int = 0) -> None:
        """Keep a snapshot of this node's own applier, and of the entries up to it the last `keep_count`.

        Raises CorruptionError if the snapshot is not aligned with the log.
        """
        index, first, last = snapshot.position.index, self._base.index, self.last().index
        if not first <= index <= last or self.position(index) != snapshot.position:
            raise CorruptionError(f"a snapshot at {index} does not fit a log of [{first}, {last}]")
        self._snapshot = snapshot
        base = self.position(max(self._base.index, index - keep_count))
        del self._entries[: base.index - self._base.index]
        self._base = base

    def _place(self, index: int) -> int:
        assert self._base.index < index <= self._base.index + len(self._entries) + 1, (index, self._base)
        return index - self._base.index - 1
