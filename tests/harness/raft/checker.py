"""The invariants of Raft, checked from outside over all simulated nodes after every event.

election safety        a term has at most one leader
log matching           an entry of the same index and term is the same, and so is everything before it
leader completeness    a leader has every entry that was committed in an earlier term
state-machine safety   what is committed, or applied, at an index is the same everywhere, also after a snapshot
quorum durability      an entry is committed when a majority of the voters has it on disk, and may be trusted
order                  every node applies index after index, each once, and nothing that is not committed
one change at a time   no log has two changes of members that are not committed
linearizable reads     a read shows everything that was acked, or shown, before it was asked for
"""

from dataclasses import dataclass, field

from harness.raft.machine import MachineState, changes_members

from storage_core.raft import quorum
from storage_core.raft.core import Node
from storage_core.raft.entry import Entry
from storage_core.raft.membership import NodeId
from storage_core.raft.messages import ORIGIN, Snapshot
from storage_core.raft.outcomes import Role


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(frozen=True, slots=True)
class Committed:
    chain: bytes
    term: int  # of the leader that committed it, which may be later than the entry's own


@dataclass
class Checker:
    leaders: dict[int, NodeId] = field(default_factory=dict)
    chains: dict[tuple[int, int], bytes] = field(default_factory=dict)  # of (index, term)
    committed: list[Committed] = field(default_factory=lambda: [Committed(ORIGIN.chain, 0)])  # by index
    states: dict[int, MachineState] = field(default_factory=dict)  # after applying an index
    holders: dict[tuple[int, bytes], dict[NodeId, None]] = field(default_factory=dict)  # of (index, chain), durably
    installed: dict[NodeId, int] = field(default_factory=dict)  # index of the newest snapshot it installed durably
    changes: dict[NodeId, list[int]] = field(default_factory=dict)  # indexes in its log
    acked: int = 0  # index that a completed write or read has shown to somebody
    read_count: int = 0
    seen_commit: dict[NodeId, int] = field(default_factory=dict)

    def require(self, condition: bool, *what: object) -> None:
        if not condition:
            raise Violation(" ".join(map(str, what)))

    def forget(self, node: NodeId) -> None:
        """The node was restarted: what it knew is what it persisted."""
        self.seen_commit.pop(node, None)
        self.changes.pop(node, None)

    def appended(self, node: NodeId, entries: list[Entry] | tuple[Entry, ...]) -> None:
        """A node put entries into its log, in place of all from the first one on."""
        if not entries:
            return
        for entry in entries:
            chain = self.chains.setdefault((entry.index, entry.term), entry.chain)
            self.require(chain == entry.chain, "log matching: two entries at", entry.index, "of term", entry.term)
        kept = [index for index in self.changes.get(node, []) if index < entries[0].index]
        kept += [entry.index for entry in entries if changes_members(entry)]
        self.changes[node] = kept
        open_changes = [index for index in kept if index >= len(self.committed)]
        self.require(len(open_changes) < 2, "one change at a time:", node, "has", open_changes)

    def persisted(self, node: NodeId, entries: list[Entry] | tuple[Entry, ...], snapshot: Snapshot | None) -> None:
        """A trusted node has these on disk."""
        for entry in entries:
            self.holders.setdefault((entry.index, entry.chain), {})[node] = None
        if snapshot is not None:
            self.installed[node] = max(self.installed.get(node, 0), snapshot.position.index)

    def check(self, node: Node) -> None:
        """Look at a node to which something happened."""
        if node.role is Role.LEADER and self.leaders.get(node.term) != node.id:
            first = self.leaders.setdefault(node.term, node.id)
            self.require(first == node.id, "election safety:", first, "and", node.id, "lead term", node.term)
            self._check_completeness(node)
        seen = self.seen_commit.get(node.id, 0)
        if node.commit > seen:
            self._check_commit(node, seen)
            self.seen_commit[node.id] = node.commit

    def _check_completeness(self, node: Node) -> None:
        for index in range(len(self.committed) - 1, 0, -1):
            if self.committed[index].term >= node.term:
                continue
            position = node.position(index)
            if position is None and index < node.commit:
                return
            found = position is not None and position.chain == self.committed[index].chain
            self.require(found, "leader completeness: leader", node.id, "of term", node.term, "lacks", index)
            return

    def _check_commit(self, node: Node, seen: int) -> None:
        for index in range(seen + 1, node.commit + 1):
            position = node.position(index)
            if position is None:  # below a snapshot; the machine's state is compared when it is installed
                self.require(index < len(self.committed), "state-machine safety:", index, "was never committed")
            elif index < len(self.committed):
                same = position.chain == self.committed[index].chain
                self.require(same, "state-machine safety:", node.id, "commits another entry at", index)
            else:
                leads = self.leaders.get(node.term) == node.id  # it may have stepped down with this very commit
                self.require(leads, "state-machine safety:", node.id, "commits", index, "without a leader")
                voters, holders = node.membership.voters, self.holders.get((index, position.chain), {})
                trusted = [voter for voter in voters if voter in holders or self.installed.get(voter, 0) >= index]
                enough = quorum.is_quorum(voters, trusted)
                self.require(enough, "quorum durability:", node.id, "commits", index, "on", trusted, "of", voters)
                self.committed.append(Committed(position.chain, node.term))

    def applied(self, node: NodeId, before: MachineState, entry: Entry, after: MachineState) -> None:
        index = entry.index
        self.require(
            index == before.position.index + 1, "order:", node, "applies", index, "after", before.position.index
        )
        known = index < len(self.committed) and self.committed[index].chain == entry.chain
        self.require(known, "order:", node, "applies", index, "which is not committed")
        self._same_state(node, after)

    def restored(self, node: NodeId, state: MachineState) -> None:
        index = state.position.index
        known = index < len(self.committed) and self.committed[index].chain == state.position.chain
        self.require(known, "state-machine safety: snapshot of", node, "at", index, "is not of committed entries")
        if index:
            self._same_state(node, state)

    def _same_state(self, node: NodeId, state: MachineState) -> None:
        first = self.states.setdefault(state.position.index, state)
        self.require(first == state, "state-machine safety:", node, "has another state at", state.position.index)

    def acknowledged(self, index: int) -> None:
        self.acked = max(self.acked, index)

    def read(self, node: NodeId, shown: int, required: int) -> None:
        self.require(shown >= required, "linearizable reads:", node, "shows", shown, "but", required, "had been shown")
        self.read_count += 1
        self.acknowledged(shown)
