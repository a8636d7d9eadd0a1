"""A node's log as the core sees it: what storage holds, and after that what is not known to be persisted yet.

    base          stable                        last
    |  in storage  |  unstable, in memory here   |
            applied <= commit

A snapshot that came from a leader is held back in the same way until it is installed; meanwhile it stands for
everything in storage. Storage is only read here. The shell writes it, between `ready` and `advance` of the node.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from storage_core.errors import CorruptionError
from storage_core.raft.entry import Entry
from storage_core.raft.membership import Membership, MembershipChange
from storage_core.raft.memberships import Memberships
from storage_core.raft.messages import Position, Snapshot


class LogStorage(Protocol):
    """The persisted log. Entries stand without a gap from behind `base()` to `last()`."""

    def base(self) -> Position:
        """Return the position before the first entry: ORIGIN, or where the log was compacted."""

    def last(self) -> Position:
        """Return the position of the last entry; the base if there is none."""

    def position(self, index: int) -> Position:
        """Return what stands at `index`, which is in [base, last]."""

    def entries(self, first: int, end: int, size_max: int) -> Sequence[Entry]:
        """Return entries of [first, end), from the first on and at least one, up to `size_max` payload bytes."""

    def snapshot(self) -> Snapshot | None:
        """Return the newest snapshot, at or after the base; None: not to be had at the moment."""


SCAN_SIZE = 16 * 1024 * 1024  # payload bytes that are read at once when a node starts


@dataclass(frozen=True, slots=True)
class Refusal:
    """Entries do not fit: `before` is not here. No entry above the hint can be the leader's."""

    hint: Position


@dataclass(frozen=True, slots=True)
class Contradiction:
    """What Raft says cannot be: this log or the sender's is not what it was."""

    reason: str


class RaftLog:
    """Invariant: base <= applied <= commit <= last, and applied <= stable <= last."""

    def __init__(
        self,
        storage: LogStorage,
        commit: int,
        applied: int,
        membership: Membership,
        change_of: Callable[[bytes], MembershipChange | None],
    ) -> None:
        """`membership` is that after the entry at `applied`.

        Raises CorruptionError if storage does not reach from `applied` to `commit`.
        """
        base, last, snapshot = storage.base(), storage.last(), storage.snapshot()
        if not base.index <= applied <= last.index:
            raise CorruptionError(f"applied up to {applied}, but the log is of [{base.index}, {last.index}]")
        if commit > last.index:
            raise CorruptionError(f"entries up to {commit} are committed, but the log ends at {last.index}")
        if base.index > 0 and (snapshot is None or snapshot.position.index < base.index):
            raise CorruptionError(f"the log begins after {base.index}, and no snapshot reaches that far")
        self._storage = storage
        self.commit = max(commit, applied)
        self.applied = applied
        self._unstable: list[Entry] = []
        self._stable = last  # of what is in storage and will stay there
        self.incoming: Snapshot | None = None  # from a leader, not installed yet
        self.members = Memberships(applied, membership, change_of)
        first = applied + 1
        while first <= last.index:
            entries = storage.entries(first, last.index + 1, SCAN_SIZE)
            self.members.append(entries)
            first = entries[-1].index + 1

    @property
    def base_index(self) -> int:
        return self.incoming.position.index if self.incoming else self._storage.base().index

    @property
    def stable_index(self) -> int:
        """The last index that is persisted; 0 while a snapshot is to be installed."""
        return 0 if self.incoming else self._stable.index

    @property
    def last(self) -> Position:
        return Position.of(self._unstable[-1]) if self._unstable else self._stable

    def position(self, index: int) -> Position | None:
        """Return what stands at `index`; None if it is compacted away or beyond the end."""
        if index > self._stable.index:
            offset = index - self._stable.index - 1
            return Position.of(self._unstable[offset]) if offset < len(self._unstable) else None
        if index == self._stable.index:
            return self._stable
        return self._storage.position(index) if index >= self.base_index else None

    def has(self, position: Position) -> bool:
        return self.position(position.index) == position

    def _known(self, index: int) -> Position:
        position = self.position(index)
        assert position is not None, (index, self.base_index, self.last)
        return position

    def highest_of_term(self, index: int, term: int, floor: int) -> Position:
        """Return the last position in [floor, index] whose term is at most `term`; if there is none, that at `floor`.

        Where two logs part, this skips all entries of a term in one exchange (Raft paper, end of section 5.3).
        """
        for candidate in range(min(index, self.last.index), floor, -1):
            position = self._known(candidate)
            if position.term <= term:
                return position
        return self._known(floor)

    def entries(self, first: int, size_max: int) -> tuple[Entry, ...]:
        """Return the entries from `first` on, at least one if there is one, up to `size_max` payload bytes."""
        assert first > self.base_index, (first, self.base_index)
        stable_end = self._stable.index + 1
        found: list[Entry] = []
        if first < stable_end and not self.incoming:
            found += self._storage.entries(first, stable_end, size_max)
        if not found or found[-1].index + 1 == stable_end:
            size = sum(len(entry.payload) for entry in found)
            for entry in self._unstable[max(0, first - stable_end) :]:
                size += len(entry.payload)
                if found and size > size_max:
                    break
                found.append(entry)
        return tuple(found)

    def newest_snapshot(self) -> Snapshot | None:
        return None if self.incoming else self._storage.snapshot()

    def append(self, entry: Entry) -> None:
        """Add an entry of the node's own, as leader."""
        assert entry.index == self.last.index + 1 and entry.follows(self.last.chain), entry
        self.members.append([entry])
        self._unstable.append(entry)

    def accept(self, before: Position, entries: Sequence[Entry]) -> int | Refusal | Contradiction:
        """Make the log agree with a leader's; return the index up to which it does then.

        Entries that are here already stay, whatever stands after them: the message may be an old one.
        """
        if before.index < self.base_index:
            base = self._known(self.base_index)
            entries = [entry for entry in entries if entry.index > base.index]
            if not entries:
                return base.index
            if not entries[0].follows(base.chain):
                return Contradiction(f"entry {entries[0].index} does not follow the committed entry {base.index}")
            before = base
        here = self.position(before.index)
        if here is None or here.term != before.term:
            if before.index <= self.commit:
                return Contradiction(f"entry {before.index} is committed, but a leader has another one")
            return Refusal(self.highest_of_term(before.index, before.term, min(self.commit, before.index)))
        if here.chain != before.chain:
            return Contradiction(f"entry {before.index} of term {before.term} is not the leader's")
        for number, entry in enumerate(entries):
            here = self.position(entry.index)
            if here is None or here.term != entry.term:
                return self._replace(entries[number:])
            if here.chain != entry.chain:
                return Contradiction(f"entry {entry.index} of term {entry.term} is not the leader's")
        return entries[-1].index if entries else before.index

    def _replace(self, entries: Sequence[Entry]) -> int | Contradiction:
        first = entries[0].index
        if first <= self.commit:
            return Contradiction(f"a leader replaces entry {first}, which is committed")
        if not self.members.replace(entries):
            return Contradiction(f"a change of members from entry {first} on does not fit the members")
        if first <= self._stable.index:
            self._stable, self._unstable = self._known(first - 1), []
        del self._unstable[first - self._stable.index - 1 :]
        self._unstable += entries
        return entries[-1].index

    def commit_to(self, index: int) -> bool:
        """Raise the commit index; return whether it rose."""
        assert index <= self.last.index, (index, self.last)
        rises = index > self.commit
        self.commit = max(self.commit, index)
        self.members.forget_before(self.commit)
        return rises

    def restore(self, snapshot: Snapshot) -> None:
        """Begin anew from a leader's snapshot."""
        assert snapshot.position.index > self.commit, (snapshot.position, self.commit)
        self.incoming = snapshot
        self._stable, self._unstable = snapshot.position, []
        self.commit = snapshot.position.index
        self.members.restart(snapshot.position.index, snapshot.membership)

    # --- between ready and advance

    def unstable(self) -> tuple[Entry, ...]:
        return tuple(self._unstable)

    @property
    def can_apply(self) -> bool:
        return self.applied < min(self.commit, self.stable_index)

    def to_apply(self, size_max: int) -> tuple[Entry, ...]:
        """Return committed entries that are persisted here and not applied, up to `size_max` payload bytes."""
        if not self.can_apply:
            return ()
        return tuple(self._storage.entries(self.applied + 1, min(self.commit, self.stable_index) + 1, size_max))

    def persisted(self, snapshot: Snapshot | None, last: Position | None) -> None:
        """Note that storage holds `snapshot` and entries up to `last`, unless they were replaced since."""
        if snapshot is not None:
            assert snapshot.position.index > self.applied, (snapshot.position, self.applied)
            self.applied_to(snapshot.position.index)
            if snapshot == self.incoming:
                self.incoming = None
        if last is not None and last.index > self._stable.index and self.has(last) and not self.incoming:
            del self._unstable[: last.index - self._stable.index]
            self._stable = last

    def applied_to(self, index: int) -> None:
        assert self.applied <= index <= self.commit, (self.applied, index, self.commit)
        self.applied = index
