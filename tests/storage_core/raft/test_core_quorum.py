"""Majorities against a second, slow and obvious version; and that any two deciding sets have a voter in common."""

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.raft import quorum
from storage_core.raft.membership import ChangeKind, Membership, MembershipChange
from storage_core.raft.quorum import VoteResult

NODES = [b"a", b"b", b"c", b"d", b"e"]
voter_lists = st.integers(0, 5).map(lambda count: NODES[:count])


def subsets(nodes: list[bytes]) -> list[set[bytes]]:
    return [set(each) for each in chain.from_iterable(combinations(nodes, count) for count in range(len(nodes) + 1))]


@given(voter_lists, st.dictionaries(st.sampled_from([*NODES, b"learner"]), st.integers(0, 9)))
def test_a_number_is_agreed_if_more_than_half_of_the_voters_have_reached_it(
    voters: list[bytes], acknowledged: dict[bytes, int]
) -> None:
    reached = [n for n in range(10) if 2 * sum(acknowledged.get(v, 0) >= n for v in voters) > len(voters)]
    assert quorum.agreed_number(voters, acknowledged) == max(reached, default=0)


@given(
    voter_lists,
    st.dictionaries(st.sampled_from([*NODES, b"learner"]), st.integers(0, 9)),
    st.lists(st.integers(1, 4), max_size=9).map(sorted),
    st.integers(0, 3),
    st.integers(0, 9),
)
def test_what_a_majority_has_is_committed_by_an_entry_of_the_leaders_own_term(
    voters: list[bytes], durable: dict[bytes, int], older_terms: list[int], own_count: int, commit: int
) -> None:
    """Against the words of the paper: an N above commit, of the current term, that more than half of the voters have"""
    own_term = 5
    terms = older_terms + [own_term] * own_count  # of entries 1, 2, ...
    commit, durable = min(commit, len(terms)), {node: min(index, len(terms)) for node, index in durable.items()}
    expected = commit
    for index, term in enumerate(terms, start=1):
        holders = [voter for voter in voters if durable.get(voter, 0) >= index]
        if index > commit and term == own_term and 2 * len(holders) > len(voters):
            expected = index
    assert quorum.committed_index(voters, durable, commit, term_first=len(older_terms) + 1) == expected


@pytest.mark.parametrize("count", range(1, 10))
def test_as_many_voters_may_be_lost_as_leave_a_quorum(count: int) -> None:
    voters = [b"%d" % number for number in range(count)]
    lost = max(n for n in range(count + 1) if quorum.is_quorum(voters, voters[n:]))
    assert quorum.losses_survived(count) == lost


@given(voter_lists, st.dictionaries(st.sampled_from([*NODES, b"learner"]), st.booleans()))
def test_a_campaign_is_won_or_lost_as_soon_as_the_missing_votes_cannot_change_it(
    voters: list[bytes], votes: dict[bytes, bool]
) -> None:
    missing = [voter for voter in voters if voter not in votes]
    outcomes = {2 * sum(votes.get(voter, voter in late) for voter in voters) > len(voters) for late in subsets(missing)}
    expected = VoteResult.OPEN if len(outcomes) == 2 else VoteResult.WON if outcomes == {True} else VoteResult.LOST
    assert quorum.count_votes(voters, votes) is expected


@pytest.mark.parametrize("count", range(6))
def test_a_quorum_is_more_than_half_of_the_voters(count: int) -> None:
    voters = NODES[:count]
    for present in subsets([*voters, b"learner"]):
        assert quorum.is_quorum(voters, present) == (2 * len(present - {b"learner"}) > count)


@pytest.mark.parametrize("voter_count", range(1, 6))
def test_majorities_before_and_after_one_change_have_a_voter_in_common(voter_count: int) -> None:
    """What makes joint configurations unnecessary (thesis, figure 4.3), for every change and every two majorities."""
    before, cases = Membership.of(NODES[:voter_count], (b"x",)), 0
    for kind in ChangeKind:
        for node in [*before.voters, b"x", b"y"]:
            try:
                after = MembershipChange(kind, node).applied_to(before)
            except ValueError:
                continue
            assert after.voter_distance(before) <= 1
            for one in subsets(list(before.voters)):
                for other in subsets(list(after.voters)):
                    if quorum.is_quorum(before.voters, one) and quorum.is_quorum(after.voters, other):
                        cases += 1
                        assert one & other, (before, after, one, other)
    assert cases > 0


@pytest.mark.parametrize(
    ("kind", "node", "problem"),
    [
        (ChangeKind.ADD_LEARNER, b"a", "is a member already"),
        (ChangeKind.ADD_LEARNER, b"l", "is a member already"),
        (ChangeKind.PROMOTE, b"a", "is no learner"),
        (ChangeKind.PROMOTE, b"z", "is no learner"),
        (ChangeKind.DEMOTE, b"l", "is no voter"),
        (ChangeKind.REMOVE, b"z", "is no member"),
        (ChangeKind.REMOVE, b"a", "is the last voter"),
        (ChangeKind.DEMOTE, b"a", "is the last voter"),
    ],
)
def test_a_change_that_changes_nothing_or_leaves_nobody_is_refused(kind: ChangeKind, node: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        MembershipChange(kind, node).applied_to(Membership.of([b"a"], (b"l",)))


def test_changes_lead_from_one_membership_to_the_next() -> None:
    membership = Membership.of([b"b", b"a"])
    for kind, node, voters, learners in (
        (ChangeKind.ADD_LEARNER, b"c", (b"a", b"b"), (b"c",)),
        (ChangeKind.PROMOTE, b"c", (b"a", b"b", b"c"), ()),
        (ChangeKind.DEMOTE, b"a", (b"b", b"c"), (b"a",)),
        (ChangeKind.REMOVE, b"a", (b"b", b"c"), ()),
    ):
        membership = MembershipChange(kind, node).applied_to(membership)
        assert membership == Membership(voters, learners)
    assert membership.members == (b"b", b"c")
