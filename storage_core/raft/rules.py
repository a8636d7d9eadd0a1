"""Raft's rules as functions of values: what a session decides by, whatever its voters are made of.

A voter is a volume: storage that holds a log, a vote and a snapshot. Nobody sends messages. A session reads the voters,
decides by these rules for all of them, makes that durable, and proposes; docs/raft.md says where each rule is used.

Every function that counts takes the voters and looks at nobody else: a learner, or a volume that was removed, cannot
count, because it is never asked about.

Source: Raft paper, sections 5.2 to 5.4; Ongaro's thesis, sections 4.1, 4.2 and 10.2.1.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from storage_core.raft.entry import EntryId

VoterId = bytes  # 16 bytes: the id of a volume


# --- majorities


def majority(voter_count: int) -> int:
    """Return the fewest voters that may decide: any two sets of this size have one in common."""
    return voter_count // 2 + 1


def losses_survived(voter_count: int) -> int:
    """Return how many voters may be lost while the others still are a majority."""
    return max(0, voter_count - majority(voter_count))


def is_quorum(voters: Collection[VoterId], present: Collection[VoterId]) -> bool:
    """Return whether a majority of the voters is among those `present`. Without voters nobody decides."""
    return bool(voters) and sum(voter in present for voter in voters) >= majority(len(voters))


# --- who leads


def rank(last: EntryId) -> tuple[int, int, bytes]:
    """Return the order of logs by their last entries: the highest term leads, then the highest index (5.4.1).

    Entries of one term and index are the same entry, so the hash chain decides nothing; it makes the order total.
    """
    return last.term, last.index, last.chain


def next_term(seen: Iterable[int]) -> int:
    """Return the term to campaign for: above every term that any volume speaks of, so none is voted in twice (5.2).

    Before an entry of that term is written, the vote for it is durable on a quorum; its first entry commits what the
    terms before have left (5.4.2).
    """
    return max(seen, default=0) + 1


def committed_index(voters: Collection[VoterId], ends: Mapping[VoterId, EntryId], term: int, commit: int) -> int:
    """Return up to where the log of the leader of `term` is committed; never less than `commit`, up to where it was.

    `ends`: the last entry that each volume has durably, as far as its word counts. Only an entry of the leader's own
    term commits by majority, and with it all before it: an older one may still be replaced though a majority has it
    (5.4.2, figure 8).
    """
    if not voters:
        return commit
    own = (ends[voter].index if voter in ends and ends[voter].term == term else 0 for voter in voters)
    return max(commit, sorted(own, reverse=True)[majority(len(voters)) - 1])


def proven_entry(voters: Collection[VoterId], ends: Mapping[VoterId, tuple[EntryId, int]]) -> EntryId | None:
    """Return the last entry that what is seen of the voters' logs proves to be committed, None if nothing does.

    `ends`: the last entry of each log that can be read, all of it durable, and the term in which the log was written
    last. An entry that a majority took from the leader of its own term is committed, whenever each of them took it. A
    copy that a later candidate brought along proves nothing (figure 8). What the only voter has is committed.
    """
    if len(voters) == 1:
        return next((ends[voter][0] for voter in voters if voter in ends), None)
    proven: list[EntryId] = []
    for term in {term for _, term in ends.values()}:
        own = [ends[voter][0] for voter in voters if voter in ends and ends[voter][1] == term == ends[voter][0].term]
        if len(own) >= majority(len(voters)):
            proven.append(sorted(own, key=rank, reverse=True)[majority(len(voters)) - 1])
    return max(proven, key=rank, default=None)


# --- changes of members


def why_not(before: Collection[VoterId], after: Collection[VoterId], is_recorded: bool) -> str:
    """Return why the voters may not change like this, empty if they may.

    They change by one at a time: then any majority before and any majority after have a voter in common, and no joint
    configuration is needed (thesis 4.1). An even number survives no more losses than one less, so it stands only within
    a change that is recorded (`is_recorded`) with where it leads to.
    """
    if len(set(before) ^ set(after)) > 1:
        return f"the voters change by one at a time, not from {len(before)} to {len(after)}"
    if not after:
        return "a store has at least one voter"
    if len(after) % 2 == 0 and not is_recorded:
        return f"{len(after)} voters: a store has an odd number of them"
    return ""


class StepKind(Enum):
    PROMOTE = "promote"  # a learner, which is in step with the others, becomes a voter
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Step:
    """One change of one member."""

    kind: StepKind
    member: VoterId
    is_last: bool  # the change that was recorded ends with it


def next_step(members: Mapping[VoterId, bool], added: Sequence[VoterId], removed: Sequence[VoterId]) -> Step | None:
    """Return the next step of a recorded change; None if it is at its end.

    `members`: whether each one is a learner. Those that are `added` are learners first (thesis 4.2.1). New voters come
    before old ones go: there are never fewer than the smaller of the two memberships has.
    """
    rising = [Step(StepKind.PROMOTE, voter, False) for voter in added if members.get(voter, False)]
    leaving = [Step(StepKind.REMOVE, voter, False) for voter in removed if voter in members]
    steps = [*rising, *leaving]
    if not steps:
        return None
    return Step(steps[0].kind, steps[0].member, len(steps) == 1)
