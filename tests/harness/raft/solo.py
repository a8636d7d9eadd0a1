"""One node alone, whose messages are collected instead of carried: for rules that say what a node does on a message."""

from harness.raft.machine import decode_change

from storage_core.raft.core import Node
from storage_core.raft.entry import Entry, make_entry
from storage_core.raft.membership import Membership
from storage_core.raft.memory_storage import MemoryStorage
from storage_core.raft.messages import (
    ORIGIN,
    AppendRequest,
    AppendResponse,
    HardState,
    HeartbeatResponse,
    Message,
    Position,
    VoteRequest,
    VoteResponse,
)
from storage_core.raft.outcomes import Role
from storage_core.raft.reads import ReadResult
from storage_core.raft.state import Host, Settings, TermOpening

PAYLOAD = b"x"


def entries_of(*terms: int, after: Position = ORIGIN) -> list[Entry]:
    """Return a log with entries of these terms. Logs whose terms begin alike have the same entries there."""
    entries: list[Entry] = []
    for term in terms:
        before = Position.of(entries[-1]) if entries else after
        entries.append(make_entry(before.chain, before.index + 1, term, b"%08d" % term, PAYLOAD))
    return entries


def position_in(terms: tuple[int, ...], index: int) -> Position:
    """Return the position at `index` of a log with entries of these terms."""
    return Position.of(entries_of(*terms[:index])[-1]) if index else ORIGIN


class Solo:
    def __init__(
        self,
        *terms: int,
        node_id: bytes = b"a",
        voters: str = "abc",
        learners: str = "",
        hard_state: HardState | None = None,
        settings: Settings | None = None,
        verified: bool = True,
    ) -> None:
        """The node's log has entries of these terms; its term is the last of them unless `hard_state` says so."""
        self.storage = MemoryStorage(None, entries_of(*terms))
        membership = Membership.of([b"%c" % v for v in voters.encode()], tuple(b"%c" % v for v in learners.encode()))
        hard_state = hard_state or HardState(terms[-1] if terms else 0)
        host = Host(lambda bound: 0, lambda term: TermOpening(b"%08d" % term, b"open"), decode_change)
        self.node = Node(node_id, self.storage, hard_state, 0, membership, settings or Settings(), host, verified)
        self.hard_state = hard_state
        self.applied: list[Entry] = []
        self.reads: list[ReadResult] = []

    def do(self) -> list[Message]:
        """Do what is ready until nothing is left, and return everything said."""
        said: list[Message] = []
        while self.node.has_ready():
            ready = self.node.ready()
            said += ready.at_once
            if ready.snapshot is not None:
                self.storage.install(ready.snapshot)
            self.storage.append(ready.entries)
            self.hard_state = ready.hard_state or self.hard_state
            said += ready.messages
            self.applied += ready.committed
            self.reads += ready.reads
            self.node.advance()
        return said

    def hear(self, *messages: Message) -> list[Message]:
        for message in messages:
            self.node.step(message)
        return self.do()

    def lead(self) -> list[Message]:
        """Make it a leader, with votes of everybody, and return what it says then."""
        self.node.campaign(forced=True)
        requests = [message for message in self.do() if isinstance(message, VoteRequest)]
        said = self.hear(*(VoteResponse(each.to, each.sender, each.term, True) for each in requests))
        assert self.node.role is Role.LEADER
        return said

    @property
    def terms(self) -> list[int]:
        """The terms of the entries in its log, persisted or not."""
        positions = (self.node.position(index) for index in range(1, self.node.status().last.index + 1))
        return [position.term for position in positions if position is not None]

    # --- what others say to it

    def append(self, term: int, before: Position, entries: list[Entry], commit: int = 0) -> AppendRequest:
        return AppendRequest(b"b", self.node.id, term, before, tuple(entries), commit)

    def accepted(self, sender: bytes, index: int, verified: bool = True) -> AppendResponse:
        return AppendResponse(sender, self.node.id, self.node.term, index, verified)

    def heard(self, sender: bytes, read_round: int, verified: bool = True) -> HeartbeatResponse:
        return HeartbeatResponse(sender, self.node.id, self.node.term, read_round, verified)
