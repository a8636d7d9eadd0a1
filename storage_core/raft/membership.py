"""Who takes part in a Raft group: voters decide, learners only receive. One node is changed at a time.

A change that touches one voter leaves any majority before it and any majority after it with a node in common, so no
joint configuration is needed. Changes of learners touch no majority at all.

A group of an even number of voters survives no more losses than one of a voter less. So it stands only within a change
that is recorded with where it leads to, its target: of three to five, or of a voter for another one.

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


def change_between(before: Membership, after: Membership) -> MembershipChange | None:
    """Return the one change that leads from one to the other; None if there is none, or it takes several.

    Nobody becomes a voter who was not a learner before.
    """
    differing = [node for node in _nodes(before, after) if _standing(before, node) is not _standing(after, node)]
    if len(differing) != 1 or not after.voters:
        return None
    (node,) = differing
    kind = _KINDS.get((_standing(before, node), _standing(after, node)))
    return MembershipChange(kind, node) if kind else None


def change_count(before: Membership, after: Membership) -> int:
    """Return how many changes lead from one to the other, one at a time."""
    pairs = ((_standing(before, node), _standing(after, node)) for node in _nodes(before, after))
    return sum(2 if pair == (_Standing.NONE, _Standing.VOTER) else pair[0] is not pair[1] for pair in pairs)


def may_stay(membership: Membership) -> bool:
    """Return whether a group may be left like this: with an odd number of voters."""
    return len(membership.voters) % 2 == 1


def may_follow(before: Membership, after: Membership, target: Membership | None) -> bool:
    """Return whether a group that was recorded to be on its way to `target` may go from `before` to `after`.

    `target` is None while nothing is recorded: then only learners may come and go. Otherwise every change is to come
    nearer to it, by whatever way.
    """
    if change_between(before, after) is None:
        return False
    if target is None:
        return may_stay(after)
    return may_stay(target) and change_count(after, target) < change_count(before, target)


def next_change(membership: Membership, target: Membership) -> MembershipChange | None:
    """Return the next change on the way to `target`; None: it is reached. Of several nodes the first by id is taken.

    Learners come first. Then it alternates, so that there is never more than one voter above the larger of the two
    memberships, and none below the smaller one. Raises ValueError if the group may not stay at the target.
    """
    if not may_stay(target):
        raise ValueError(f"a group must be left with an odd number of voters, not with {len(target.voters)}")
    joining = [node for node in target.members if _standing(membership, node) is _Standing.NONE]
    if joining:
        return MembershipChange(ChangeKind.ADD_LEARNER, joining[0])
    rising = [node for node in target.voters if _standing(membership, node) is _Standing.LEARNER]
    leaving = [node for node in membership.voters if _standing(target, node) is not _Standing.VOTER]
    if rising and (len(membership.voters) <= len(target.voters) or not leaving):
        return MembershipChange(ChangeKind.PROMOTE, rising[0])
    if leaving:
        stays = _standing(target, leaving[0]) is _Standing.LEARNER
        return MembershipChange(ChangeKind.DEMOTE if stays else ChangeKind.REMOVE, leaving[0])
    dropped = [node for node in membership.learners if _standing(target, node) is _Standing.NONE]
    return MembershipChange(ChangeKind.REMOVE, dropped[0]) if dropped else None


class _Standing(Enum):
    """What a node is in one membership."""

    NONE = "none"
    LEARNER = "learner"
    VOTER = "voter"


_KINDS = {
    (_Standing.NONE, _Standing.LEARNER): ChangeKind.ADD_LEARNER,
    (_Standing.LEARNER, _Standing.VOTER): ChangeKind.PROMOTE,
    (_Standing.VOTER, _Standing.LEARNER): ChangeKind.DEMOTE,
    (_Standing.VOTER, _Standing.NONE): ChangeKind.REMOVE,
    (_Standing.LEARNER, _Standing.NONE): ChangeKind.REMOVE,
}


def _standing(membership: Membership, node: NodeId) -> _Standing:
    if node in membership.voters:
        return _Standing.VOTER
    return _Standing.LEARNER if node in membership.learners else _Standing.NONE


def _nodes(one: Membership, other: Membership) -> list[NodeId]:
    return sorted({*one.members, *other.members})
