"""What a node answers, and what it says is to be done."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from storage_core.raft.entry import Entry
from storage_core.raft.membership import Membership, NodeId
from storage_core.raft.messages import HardState, Message, Position, Snapshot
from storage_core.raft.progress import Progress
from storage_core.raft.reads import ReadResult
from storage_core.raft.state import NodeState


class Role(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Refused(Enum):
    """Why nothing was done. Nothing was appended either, so it is safe to ask again, or elsewhere."""

    NOT_LEADER = "this node does not lead; `leader` may know who does"
    STORAGE_FAILED = "the storage of this node failed"
    HANDING_OVER = "leadership is being handed over, or this node removed"
    TOO_MUCH_UNCOMMITTED = "too many bytes wait to be committed"
    CHANGE_PENDING = "another change of members, or the first entry of this term, is not applied yet"
    CHANGE_IMPOSSIBLE = "the change does not fit the members"
    NO_SUCH_VOTER = "leadership can only go to another voter"
    NOT_CAUGHT_UP = "the node is not verified, or lacks committed entries"


@dataclass(frozen=True, slots=True)
class Proposed:
    """Entries were appended; they are committed when `committed` shows them with this term, lost if with another."""

    first: int
    end: int
    term: int


@dataclass(frozen=True, slots=True)
class Ready:
    """What is to be done, in the order that the docstring of core.py states."""

    at_once: tuple[Message, ...]
    snapshot: Snapshot | None
    entries: tuple[Entry, ...]
    hard_state: HardState | None  # None: as before
    must_sync: bool  # more than the commit index changed
    messages: tuple[Message, ...]
    committed: tuple[Entry, ...]
    reads: tuple[ReadResult, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """For reports and tests; a copy."""

    id: NodeId
    role: Role
    term: int
    vote: NodeId | None
    leader: NodeId | None
    membership: Membership
    last: Position
    stable_index: int
    commit: int
    applied: int
    verified: bool
    failure: str | None
    progress: dict[NodeId, Progress]  # as leader, of all other members; live objects, not to be changed

    @classmethod
    def of(cls, state: NodeState, role: Role, progress: Mapping[NodeId, Progress]) -> "Status":
        return cls(
            id=state.id,
            role=role,
            term=state.term,
            vote=state.vote,
            leader=state.leader,
            membership=state.membership,
            last=state.log.last,
            stable_index=state.log.stable_index,
            commit=state.log.commit,
            applied=state.log.applied,
            verified=state.verified,
            failure=state.failure,
            progress=dict(progress),
        )
