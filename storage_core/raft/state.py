"""What a node is, whatever its role: settings, identity, term and vote, membership, log, and what it has to say."""

from collections.abc import Callable
from dataclasses import dataclass, field

from storage_core.raft.log import RaftLog
from storage_core.raft.membership import Membership, MembershipChange, NodeId
from storage_core.raft.messages import HardState, Message

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """Ticks are the caller's; sizes are payload bytes. One entry may always go, however large it is."""

    election_ticks: int = 10  # silence of a leader before anyone campaigns; up to twice that with jitter
    heartbeat_ticks: int = 1
    append_size_max: int = 1 * MIB  # of one message
    inflight_count_max: int = 64  # unanswered messages to one follower
    inflight_size_max: int = 16 * MIB
    uncommitted_size_max: int = 128 * MIB  # proposals above this are refused until some are committed
    apply_size_max: int = 64 * MIB  # of the committed entries in one Ready

    def __post_init__(self) -> None:
        if not 1 <= self.heartbeat_ticks < self.election_ticks:
            raise ValueError(f"heartbeat_ticks {self.heartbeat_ticks} must be in [1, {self.election_ticks})")
        for name in ("append_size_max", "inflight_count_max", "inflight_size_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class TermOpening:
    """What the shell gives to each term that a node leads."""

    history: bytes  # HISTORY_SIZE bytes that no other leader session has; every entry of the term carries them
    payload: bytes  # of the term's first entry, which changes nothing


@dataclass(frozen=True, slots=True)
class Host:
    """What the shell decides for a node, and knows of entries."""

    jitter: Callable[[int], int]  # bound -> number in [0, bound); spreads elections
    open_term: Callable[[int], TermOpening]  # term -> opening; called once when the node begins to lead
    # payload -> the change of members in it. Called for every entry, so it looks at a tag and decodes the rest of only
    # those few; and always with the same answer.
    change_of: Callable[[bytes], MembershipChange | None]


@dataclass(slots=True)
class NodeState:
    """Invariant: term never falls; within a term the vote is given once."""

    id: NodeId
    settings: Settings
    log: RaftLog
    term: int
    vote: NodeId | None
    verified: bool  # the log and the vote are known to be what they were
    leader: NodeId | None = None
    failure: str | None = None  # why this node says and does nothing any more
    at_once: list[Message] = field(default_factory=list)  # promise nothing about this node's own storage
    after_persist: list[Message] = field(default_factory=list)

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.log.commit)

    @property
    def membership(self) -> Membership:
        return self.log.members.newest

    @property
    def is_voter(self) -> bool:
        return self.id in self.membership.voters

    @property
    def may_campaign(self) -> bool:
        """A learner has no say, and a node that may have forgotten its promises must not ask for any.

        A voter that an uncommitted change removes may campaign: the others may need its log to commit that change.
        """
        return self.verified and self.log.members.may_be_voter(self.id) and self.log.incoming is None

    def enter_term(self, term: int) -> None:
        assert term > self.term, (term, self.term)
        self.term, self.vote = term, None
