"""Majorities of voters.

Source: Raft paper, section 5.2.
"""


def majority(voter_count: int) -> int:
    """Return the fewest voters that may decide: any two sets of this size have one in common."""
    return voter_count // 2 + 1


def losses_survived(voter_count: int) -> int:
    """Return how many voters may be lost while the others still are a majority."""
    return max(0, voter_count - majority(voter_count))
