"""The disk of one simulated node: what was written is lost in a crash, from some point on, unless it was synced."""

import copy
from dataclasses import replace
from random import Random

from storage_core.raft.entry import Entry
from storage_core.raft.memory_storage import MemoryStorage
from storage_core.raft.messages import HardState, Position, Snapshot
from storage_core.raft.outcomes import Ready


class NodeDisk:
    """`storage` and `hard_state` are what the node sees; the durable ones are what a crash leaves."""

    def __init__(self, snapshot: Snapshot | None, keeps_commit: bool) -> None:
        self._durable = MemoryStorage(snapshot)
        self._durable_hard_state = HardState()
        self._keeps_commit = keeps_commit  # False: the commit index is forgotten in every crash, as it may be
        self._unsynced: list[Snapshot | Entry | HardState | tuple[Snapshot, int]] = []
        self.storage, self.hard_state = copy.deepcopy(self._durable), HardState()

    def write(self, ready: Ready) -> None:
        """Write what a Ready says, in its order. Nothing of it is durable yet."""
        if ready.snapshot is not None:
            self.storage.install(ready.snapshot)
            self._unsynced.append(ready.snapshot)
        self.storage.append(ready.entries)
        self._unsynced += ready.entries
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
            self._unsynced.append(ready.hard_state if self._keeps_commit else replace(ready.hard_state, commit=0))

    def compact(self, snapshot: Snapshot, keep_count: int) -> None:
        """Store the applier's own snapshot, and shorten the log."""
        self.storage.compact(snapshot, keep_count)
        self._unsynced.append((snapshot, keep_count))

    def sync(self) -> None:
        self._make_durable(len(self._unsynced))

    def fail_to_sync(self, random: Random) -> None:
        """Keep some of what was written, and forget the rest, though it can still be read: visible is not durable."""
        self._make_durable(random.randint(0, len(self._unsynced)))

    def crash(self, random: Random) -> None:
        """Lose some of what was not synced: a disk keeps it up to any point."""
        self._make_durable(random.randint(0, len(self._unsynced)))
        self.lose_unsynced()

    def lose_unsynced(self) -> None:
        self._unsynced = []
        self.storage, self.hard_state = copy.deepcopy(self._durable), self._durable_hard_state

    def _goes_on_with(self, entry: Entry) -> bool:
        """Return whether the entry follows what is durable; it does not if a failed sync lost what was before it."""
        base, last = self._durable.base().index, self._durable.last().index
        return base < entry.index <= last + 1 and entry.follows(self._durable.position(entry.index - 1).chain)

    def has_durably(self, entry: Entry) -> bool:
        base, last = self._durable.base().index, self._durable.last().index
        return base <= entry.index <= last and self._durable.position(entry.index) == Position.of(entry)

    def durable_entries(self) -> list[Entry]:
        first, end = self._durable.base().index + 1, self._durable.last().index + 1
        return list(self._durable.entries(first, end, 1 << 60)) if first < end else []

    def durable_snapshot(self) -> Snapshot | None:
        return self._durable.snapshot()

    def _make_durable(self, count: int) -> None:
        for write in self._unsynced[:count]:
            if isinstance(write, Entry):
                if self._goes_on_with(write):
                    self._durable.append([write])
            elif isinstance(write, Snapshot):
                self._durable.install(write)
            elif isinstance(write, HardState):
                self._durable_hard_state = write
            else:
                self._durable.compact(*write)
        self._unsynced = []
