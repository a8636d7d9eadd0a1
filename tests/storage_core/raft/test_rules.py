"""Raft's rules against second, slow and obvious versions; and a model of sessions that go by nothing but the rules."""

import random
from itertools import chain, combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.raft import rules
from storage_core.raft.entry import CHAIN_START, EntryId
from storage_core.raft.rules import StepKind

NODES = [b"a", b"b", b"c", b"d", b"e"]
voter_lists = st.integers(0, 5).map(lambda count: NODES[:count])


def subsets(nodes: list[bytes]) -> list[set[bytes]]:
    return [set(each) for each in chain.from_iterable(combinations(nodes, count) for count in range(len(nodes) + 1))]


@pytest.mark.parametrize("count", range(6))
def test_a_quorum_is_more_than_half_of_the_voters(count: int) -> None:
    voters = NODES[:count]
    for present in subsets([*voters, b"learner"]):
        assert rules.is_quorum(voters, present) == (2 * len(present - {b"learner"}) > count)


@pytest.mark.parametrize("count", range(1, 10))
def test_as_many_voters_may_be_lost_as_leave_a_quorum(count: int) -> None:
    voters = [b"%d" % number for number in range(count)]
    lost = max(n for n in range(count + 1) if rules.is_quorum(voters, voters[n:]))
    assert rules.losses_survived(count) == lost


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
    commit = min(commit, len(terms))
    ends = {
        node: EntryId(end, terms[end - 1] if end else 0, b"")
        for node, end in ((n, min(i, len(terms))) for n, i in durable.items())
    }
    expected = commit
    for index, term in enumerate(terms, start=1):
        holders = [voter for voter in voters if voter in ends and ends[voter].index >= index]
        if index > commit and term == own_term and 2 * len(holders) > len(voters):
            expected = index
    assert rules.committed_index(voters, ends, own_term, commit) == expected


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1))
def test_the_log_that_leads_ends_in_the_highest_term_and_of_those_is_the_longest(ends: list[tuple[int, int]]) -> None:
    best = max((EntryId(index, term, b"") for index, term in ends), key=rules.rank)
    for index, term in ends:
        assert term < best.term or (term == best.term and index <= best.index)


@given(st.lists(st.integers(0, 9)))
def test_a_new_term_is_one_that_nobody_speaks_of(seen: list[int]) -> None:
    assert rules.next_term(seen) not in seen
    assert all(rules.next_term(seen) > term for term in seen)


# --- changes of members


@pytest.mark.parametrize("before", [set(nodes) for nodes in subsets(NODES) if nodes])
def test_majorities_before_and_after_an_allowed_change_have_a_voter_in_common(before: set[bytes]) -> None:
    """What makes joint configurations unnecessary (thesis, figure 4.3), for every change and every two majorities."""
    allowed = [after for after in subsets(NODES) if not rules.why_not(before, after, is_recorded=True)]
    assert {1, -1} >= {len(after) - len(before) for after in allowed if after != before}
    for after in allowed:
        for one, other in product(subsets(sorted(before)), subsets(sorted(after))):
            if rules.is_quorum(before, one) and rules.is_quorum(after, other):
                assert one & other, (before, after, one, other)


def test_an_even_number_of_voters_stands_only_within_a_recorded_change() -> None:
    for after in subsets(NODES):
        before = after ^ {b"a"}
        assert bool(rules.why_not(before, after, is_recorded=False)) == (len(after) % 2 == 0)
        assert bool(rules.why_not(before, after, is_recorded=True)) == (not after)


@pytest.mark.parametrize("voters", [NODES[:1], NODES[:3], NODES[:5]])
@pytest.mark.parametrize(("added", "removed"), [(0, 2), (2, 0), (1, 1), (1, 0), (0, 0)])
def test_the_steps_of_a_change_lead_to_its_end_whoever_takes_them(
    voters: list[bytes], added: int, removed: int
) -> None:
    if removed >= len(voters) + added:
        return
    joining, leaving = [b"x", b"y"][:added], voters[:removed]
    members = {**dict.fromkeys(voters, False), **dict.fromkeys(joining, True)}
    sizes, is_last = [len(voters)], False
    while (step := rules.next_step(members, joining, leaving)) is not None:
        assert not is_last, "nothing follows the last step"
        before = {one for one, is_learner in members.items() if not is_learner}
        if step.kind is StepKind.PROMOTE:
            assert members[step.member], "only a learner becomes a voter"
            members[step.member] = False
        else:
            del members[step.member]
        after = {one for one, is_learner in members.items() if not is_learner}
        assert rules.why_not(before, after, is_recorded=True) == ""
        sizes, is_last = [*sizes, len(after)], step.is_last
    assert is_last == bool(added or removed)
    assert set(members) == {*voters, *joining} - set(leaving) and not any(members.values())
    assert min(sizes) >= min(sizes[0], sizes[-1])


# --- sessions


class Sessions:
    """Volumes as logs of (term, what), and sessions that reach some of them, go by the rules, and end at any step."""

    def __init__(self, seed: int, count: int) -> None:
        self.random, self.voters = random.Random(seed), NODES[:count]
        self.logs: dict[bytes, list[tuple[int, str]]] = {one: [] for one in self.voters}
        self.votes = dict.fromkeys(self.voters, 0)
        self.acked: list[tuple[int, str]] = []  # up to the highest index that a session called committed
        self.ack_count = self.overwritten_count = 0

    def end_of(self, log: list[tuple[int, str]]) -> EntryId:
        return EntryId(len(log), log[-1][0], repr(log).encode()) if log else EntryId(0, 0, CHAIN_START)

    def session(self, number: int) -> None:
        reached = [one for one in self.voters if self.random.random() < 0.8]
        if not rules.is_quorum(self.voters, reached):
            return
        term = rules.next_term(
            [*(self.votes[one] for one in reached), *(e[0] for one in reached for e in self.logs[one])]
        )
        log = list(max((self.logs[one] for one in reached), key=lambda log: rules.rank(self.end_of(log))))
        voted = [one for one in reached if self.random.random() < 0.9]
        self.votes.update(dict.fromkeys(voted, term))
        if not rules.is_quorum(self.voters, voted):
            return
        for command in range(self.random.randrange(4)):
            if command:  # at first the others are brought up to the log that leads
                log.append((term, f"{number}.{command}"))
            written = [one for one in voted if self.random.random() < 0.8]
            for one in written:
                self.overwritten_count += self.logs[one] != log[: len(self.logs[one])]
                self.logs[one] = list(log)
            ends = {one: self.end_of(self.logs[one]) for one in voted}
            committed = rules.committed_index(self.voters, ends, term, 0)
            if committed:
                assert committed == len(log) or len(written) * 2 <= len(self.voters)
                assert log[: len(self.acked)] == self.acked[: len(log)], "what was acked is in every later leader's log"
                self.acked, self.ack_count = max(self.acked, log[:committed], key=len), self.ack_count + 1
            if self.random.random() < 0.3:
                return  # killed


def play(seeds: range, count: int) -> tuple[int, int]:
    """Return how often entries were acked, and replaced by a later leader's."""
    acked = overwritten = 0
    for seed in seeds:
        model = Sessions(seed, count)
        for number in range(40):
            model.session(number)
        acked, overwritten = acked + model.ack_count, overwritten + model.overwritten_count
    return acked, overwritten


@pytest.mark.parametrize("count", [1, 3, 5])
def test_sessions_that_go_by_the_rules_never_lose_what_one_of_them_acked(count: int) -> None:
    acked, overwritten = play(range(200), count)
    assert acked > 1000
    assert count == 1 or overwritten > 10, "sessions did replace what others left uncommitted"


@pytest.mark.parametrize("rule", ["committed_index", "rank", "next_term", "majority"])
def test_without_one_of_the_rules_the_same_sessions_lose_something(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_any_term(voters: list[bytes], ends: dict[bytes, EntryId], term: int, commit: int) -> int:
        return sorted((ends[one].index if one in ends else 0 for one in voters), reverse=True)[len(voters) // 2]

    broken = {
        "committed_index": by_any_term,
        "rank": lambda last: last.index,
        "next_term": lambda seen: max(max(seen, default=0), 1),
        "majority": lambda count: count // 2,
    }
    monkeypatch.setattr(rules, rule, broken[rule])
    with pytest.raises(AssertionError, match="what was acked"):
        play(range(400), count=4 if rule == "majority" else 3)
