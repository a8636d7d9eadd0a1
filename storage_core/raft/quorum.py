"""Majorities of voters: what is committed, who won, whether enough are there.

Every function takes the voters first and looks at nobody else: an answer of a learner, or of a node that was
removed, cannot count because it is never asked about.

They are numbers and sets only, for whoever decides by Raft's rules, with the core or without it.

Source: Raft paper, sections 5.2 to 5.4.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from storage_core.raft.membership import NodeId


class VoteResult(Enum):
    OPEN = "open"
    WON = "won"
    LOST = "lost"


def majority(voter_count: int) -> int:
    """Return the fewest voters that may decide: any two sets of this size have one in common."""
    return voter_count // 2 + 1


def losses_survived(voter_count: int) -> int:
    """Return how many voters may be lost while the others still are a majority."""
    return max(0, voter_count - majority(voter_count))


def agreed_number(voters: Sequence[NodeId], acknowledged: Mapping[NodeId, int]) -> int:
    """Return the highest number that a majority of the voters has acknowledged; 0 if there is none, or no voter.

    The numbers are indexes of persisted entries, or numbers of read rounds; a voter that is missing stands at 0.
    """
    if not voters:
        return 0
    numbers = sorted((acknowledged.get(voter, 0) for voter in voters), reverse=True)
    return numbers[majority(len(voters)) - 1]


def committed_index(voters: Sequence[NodeId], durable: Mapping[NodeId, int], commit: int, term_first: int) -> int:
    """Return up to where a leader may call its log committed; never less than `commit`, which is up to where it did.

    `durable` says up to where each node has the leader's log on disk, as far as its word counts. `term_first` is the
    index of the first entry of the leader's own term. Entries before that may be replaced though a majority has them
    (figure 8), so they are committed only together with one of its own.
    """
    agreed = agreed_number(voters, durable)
    return agreed if agreed >= term_first and agreed > commit else commit


def count_votes(voters: Sequence[NodeId], votes: Mapping[NodeId, bool]) -> VoteResult:
    """Return whether a campaign is won, lost, or still open. Without voters it is lost."""
    granted = sum(votes.get(voter) is True for voter in voters)
    refused = sum(votes.get(voter) is False for voter in voters)
    if granted >= majority(len(voters)):
        return VoteResult.WON
    if not voters or len(voters) - refused < majority(len(voters)):
        return VoteResult.LOST
    return VoteResult.OPEN


def is_quorum(voters: Sequence[NodeId], present: Collection[NodeId]) -> bool:
    """Return whether a majority of the voters is among those `present`."""
    return bool(voters) and sum(voter in present for voter in voters) >= majority(len(voters))
