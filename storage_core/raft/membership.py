"""Who takes part in a Raft group: voters decide, learners only receive. One node is changed at a time.

A change that touches one voter leaves any majority before it and any majority after it with a node in common, so no
joint configuration is needed. Changes of learners touch no majority at all.

Source: Ongaro's thesis, sections 4.1 and 4.2.
"""

from dataclasses import dataclass
from enum import Enum

NodeId = bytes  # 16 bytes in a store: the volume instance; a node that lost its disk comes back under another one


@dataclass(frozen=True, slots=True)
class Membership:
    """Build it with `Membership.of`. Both tuples are sorted, so equal memberships are equal values."""

    voters: tuple[NodeId, ...] = ()
    learners: tuple[NodeId, ...] = ()

    def __post_init__(self) -> None:
        assert list(self.voters) == sorted(set(self.voters)), self
        assert list(self.learners) == sorted(set(self.learners)), self
        assert not set(self.voters) & set(self.learners), self

    @classmethod
    def of(cls, voters: tuple[NodeId, ...] | list[NodeId], learners: tuple[NodeId, ...] = ()) -> "Membership":
        return cls(tuple(sorted(voters)), tuple(sorted(learners)))

    @property
    def members(self) -> tuple[NodeId, ...]:
        """Voters and learners, sorted."""
        return tuple(sorted(self.voters + self.learners))

    def voter_distance(self, other: "Membership") -> int:
        """Return how many nodes are voters in one of the two only."""
        return len(set(self.voters) ^ set(other.voters))


class ChangeKind(Enum):
    ADD_LEARNER = "add learner"
    PROMOTE = "promote"  # learner to voter
    DEMOTE = "demote"  # voter to learner
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class MembershipChange:
    kind: ChangeKind
    node: NodeId

    def applied_to(self, membership: Membership) -> Membership:
        """Return the membership after this change. Raises ValueError if there is nothing to change, or nobody left."""
        voters, learners = set(membership.voters), set(membership.learners)
        if self.kind is ChangeKind.ADD_LEARNER:
            self._require(self.node not in voters | learners, "is a member already")
            learners.add(self.node)
        elif self.kind is ChangeKind.PROMOTE:
            self._require(self.node in learners, "is no learner")
            learners.remove(self.node)
            voters.add(self.node)
        elif self.kind is ChangeKind.DEMOTE:
            self._require(self.node in voters, "is no voter")
            voters.remove(self.node)
            learners.add(self.node)
        else:
            self._require(self.node in voters | learners, "is no member")
            voters.discard(self.node)
            learners.discard(self.node)
        self._require(bool(voters), "is the last voter")
        return Membership(tuple(sorted(voters)), tuple(sorted(learners)))

    def _require(self, condition: bool, problem: str) -> None:
        if not condition:
            raise ValueError(f"cannot {self.kind.value} {self.node.hex()}: it {problem}")
