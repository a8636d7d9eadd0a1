"""Who the members of a group are by one node's log. The newest change in it counts, whether committed or not.

That makes the members a matter of the log alone: a node that has forgotten what was committed still knows them, and
when a leader replaces the end of a log, the members that it named go with it.

Source: Ongaro's thesis, section 4.1.
"""

from collections.abc import Callable, Sequence

from storage_core.raft.entry import Entry
from storage_core.raft.membership import Membership, MembershipChange, NodeId


class Memberships:
    """Invariant: indexes ascend; only the first may be committed, and it is known what preceded all others."""

    def __init__(
        self, index: int, membership: Membership, change_of: Callable[[bytes], MembershipChange | None]
    ) -> None:
        """`membership` is that after the entry at `index`."""
        self._change_of = change_of
        self._known: list[tuple[int, Membership]] = [(index, membership)]

    @property
    def newest(self) -> Membership:
        return self._known[-1][1]

    @property
    def newest_index(self) -> int:
        """The entry that the newest membership is known from: its change, or where this node's knowledge began."""
        return self._known[-1][0]

    def may_be_voter(self, node: NodeId) -> bool:
        """Return whether the node is a voter by the newest membership, or by one that may still turn out to count."""
        return any(node in membership.voters for _, membership in self._known)

    def append(self, entries: Sequence[Entry]) -> None:
        """Follow entries at the end of the log. Raises ValueError if a change does not fit."""
        for entry in entries:
            change = self._change_of(entry.payload)
            if change is not None:
                self._known.append((entry.index, change.applied_to(self.newest)))

    def replace(self, entries: Sequence[Entry]) -> bool:
        """Follow entries that take the place of all from the first one's index on; False: a change does not fit."""
        before = self._known
        self._known = [known for known in before if known[0] < entries[0].index]
        try:
            self.append(entries)
        except ValueError:
            self._known = before
            return False
        return True

    def restart(self, index: int, membership: Membership) -> None:
        self._known = [(index, membership)]

    def forget_before(self, commit: int) -> None:
        """Forget what came before the newest committed membership: it cannot count again."""
        while len(self._known) > 1 and self._known[1][0] <= commit:
            del self._known[0]
