"""What nodes of a Raft group say to each other, and the values that their storage keeps. Immutable, no behaviour.

Messages may be lost, repeated, delayed and re-ordered. They must not be altered, and must reach only the node that
they name: whoever carries them over a network adds checksums and identities.
"""

from dataclasses import dataclass

from storage_core.raft.entry import CHAIN_START, Entry
from storage_core.raft.membership import Membership, NodeId


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a log and what stands there: logs with the same chain at an index are the same up to it."""

    index: int
    term: int
    chain: bytes

    @classmethod
    def of(cls, entry: Entry) -> "Position":
        return cls(entry.index, entry.term, entry.chain)


ORIGIN = Position(0, 0, CHAIN_START)  # before the first entry


@dataclass(frozen=True, slots=True)
class HardState:
    """What a node must not forget; of the commit index it may forget the latest, and learns it again."""

    term: int = 0
    vote: NodeId | None = None  # whom it voted for in this term
    commit: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after exactly the entry at `position`, which takes the place of the log up to there."""

    position: Position
    membership: Membership  # after that entry, too
    data: bytes  # the state, or what the shell needs to find it; the core does not look at it


@dataclass(frozen=True, slots=True)
class VoteRequest:
    sender: NodeId
    to: NodeId
    term: int  # in which the sender wants to lead; if `pre`, it has not entered it yet
    last: Position  # end of the sender's log
    members_index: int  # the entry by which the receiver is a voter
    pre: bool = False  # only asks whether it would get the vote
    forced: bool = False  # a leader handed over to the sender: not refused for its sake


@dataclass(frozen=True, slots=True)
class VoteResponse:
    sender: NodeId
    to: NodeId
    term: int  # a granted pre-vote has the term that was asked for, everything else the sender's
    granted: bool
    pre: bool = False


@dataclass(frozen=True, slots=True)
class AppendRequest:
    sender: NodeId
    to: NodeId
    term: int
    before: Position  # of the entry in front of `entries`; the receiver must have it
    entries: tuple[Entry, ...]
    commit: int


@dataclass(frozen=True, slots=True)
class AppendResponse:
    sender: NodeId
    to: NodeId
    term: int
    index: int  # accepted: the sender's log is the leader's up to here, persisted; refused: `before` of the request
    verified: bool  # False: the sender may have forgotten what it once promised, and does not count
    accepted: bool = True
    hint_index: int = 0  # refused: no entry above this one can be the leader's
    hint_term: int = 0  # and this is the term it has there


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    sender: NodeId
    to: NodeId
    term: int
    commit: int
    read_round: int  # the receiver's answer counts for this round of reads and all before


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    sender: NodeId
    to: NodeId
    term: int
    read_round: int
    verified: bool


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    sender: NodeId
    to: NodeId
    term: int
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class CampaignRequest:
    """The leader hands over: the receiver is to campaign at once."""

    sender: NodeId
    to: NodeId
    term: int


@dataclass(frozen=True, slots=True)
class TermNotice:
    """Answer to a leader of an older term: there is a newer one."""

    sender: NodeId
    to: NodeId
    term: int


FromLeader = AppendRequest | HeartbeatRequest | SnapshotRequest
Message = VoteRequest | VoteResponse | FromLeader | AppendResponse | HeartbeatResponse | CampaignRequest | TermNotice
