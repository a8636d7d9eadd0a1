"""The vote of copies on what each sequence holds, against a slow and obvious second version."""

import itertools
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage_core.comparison import Rule, State
from storage_core.foreign.digests import Digests, join, mixed
from storage_core.foreign.losses import Claims
from storage_core.foreign.vote import _RULES, NOBODY, Ballot, Vote, conflicts, vote
from storage_core.sequences import SequenceSet

COUNT = 6  # sequences
# What a copy says of one sequence: a content (digest, time), that it was removed, damaged, gone, open, or nothing.
SAYINGS = st.sampled_from(
    [("has", 1, 1), ("has", 2, 1), ("has", 3, 2), ("removed",), ("damaged",), ("gone",), ("open",), ("",)]
)
COPIES = st.lists(st.lists(SAYINGS, min_size=COUNT, max_size=COUNT), min_size=1, max_size=5)
Sayings = list[tuple[object, ...]]


def ballot(label: str, sayings: Sayings, sure_from: int = 0) -> Ballot:
    has = [(at + 1, one) for at, one in enumerate(sayings) if one[0] == "has"]

    def said(word: str) -> SequenceSet:
        return SequenceSet.from_sequences([at + 1 for at, one in enumerate(sayings) if one[0] == word])

    shown = Digests(
        np.array([at for at, _ in has], np.int64),
        np.array([one[2] for _, one in has], np.int64),
        np.array([one[1] for _, one in has], np.uint64),
    )
    return Ballot(
        label, shown, said("removed"), Claims(said("damaged"), said("gone"), said("open")), sure_from=sure_from
    )


def count(copies: list[Sayings]) -> Vote:
    return vote([ballot(f"n{at}", one) for at, one in enumerate(copies)])


def expected(sayings: Sayings) -> tuple[object, str]:
    """Return (digest, rule) of what is to be served, (None, REMOVED) or (None, "lost", "open" or "")."""
    held = [one[1:] for one in sayings if one[0] == "has"]
    removed = sum(one[0] == "removed" for one in sayings)
    if not held:
        words = {one[0] for one in sayings}
        return None, "" if removed else "lost" if words & {"damaged", "gone"} else "open" if "open" in words else ""
    if removed > len(held):
        return None, Rule.REMOVED
    votes = Counter(held)
    most = max(votes.values())
    best = [one for one, number in votes.items() if number == most]
    digest = max(best, key=lambda one: (one[1], one[0]))[0]
    if 2 * most > len(held):
        silent = sum(one[0] in ("damaged", "gone", "open") for one in sayings)
        kept = Rule.UNSURE if removed + silent > len(held) else Rule.KEPT
        return digest, kept if removed else Rule.MAJORITY
    return digest, Rule.LATEST if len(best) > 1 else Rule.MOST


@given(COPIES)
def test_the_outcome_is_that_of_the_obvious_count(copies: list[Sayings]) -> None:
    outcome = count(copies)
    rows = {int(sequence): row for row, sequence in enumerate(outcome.sequences)}
    for at in range(COUNT):
        sayings = [one[at] for one in copies]
        digest, rule = expected(sayings)
        row = rows.get(at + 1)
        assert (at + 1 in outcome.losses.lost) == (rule == "lost")
        assert (at + 1 in outcome.losses.open) == (rule == "open")
        if row is None:
            assert rule in ("lost", "open", "")
            continue
        assert _RULES[outcome.rules[row]] == rule
        server = int(outcome.served_by[row])
        assert (server == NOBODY) == (digest is None)
        assert digest is None or sayings[server][:2] == ("has", digest)
        assert bool(outcome.unsettled[row]) == (rule in (Rule.LATEST, Rule.MOST, Rule.UNSURE))
        for copy, saying in enumerate(sayings):
            state = int(outcome.states[row, copy])
            if saying[0] == "has":
                right = saying[1] == digest and rule not in (Rule.LATEST, Rule.MOST, Rule.UNSURE)
                assert state == (State.THERE if right else State.DIFFERENT)
            elif digest is None:
                assert state == 0
            else:
                assert state == (State.DAMAGED if saying[0] == "damaged" else State.MISSING)


@given(COPIES)
def test_the_order_of_copies_changes_nothing(copies: list[Sayings]) -> None:
    def served(order: tuple[Sayings, ...]) -> list[object]:
        outcome = count(list(order))
        choice = zip(outcome.sequences.tolist(), outcome.served_by.tolist(), strict=True)
        return [(at, order[by][at - 1] if by != NOBODY else None) for at, by in choice]

    first, *others = itertools.islice(itertools.permutations(copies), 6)
    assert all(served(one) == served(first) for one in others)


@given(COPIES)
def test_conflicts_are_the_sequences_of_which_copies_say_different_things(copies: list[Sayings]) -> None:
    labels = [f"n{at}" for at in range(len(copies))]
    found, more = conflicts(count(copies), labels)
    assert not len(more)
    told = {at: one for one in found for at in range(one.first, one.end)}
    for at in range(COUNT):
        sayings = [one[at] for one in copies]
        contents = {one[1] for one in sayings if one[0] == "has"}
        removed = tuple(label for label, one in zip(labels, sayings, strict=True) if one[0] == "removed")
        assert (at + 1 in told) == (len(contents) > 1 or bool(contents and removed))
        if at + 1 in told:
            conflict = told[at + 1]
            sides = {
                tuple(label for label, one in zip(labels, sayings, strict=True) if one[:2] == ("has", content))
                for content in contents
            }
            assert (set(conflict.versions), conflict.removed) == (sides, removed)
            assert conflict.rule == expected(sayings)[1]
    assert all(one.end <= two.first for one, two in zip(found, found[1:], strict=False))


def test_a_copy_that_cannot_be_read_proves_no_loss() -> None:
    nothing = SequenceSet.empty()
    claims = Claims(SequenceSet.from_ranges([(1, 9)]), nothing, nothing)
    unreadable = Ballot("n1", join([]), nothing, claims, readable=False)
    outcome = vote([unreadable, ballot("n2", [("has", 1, 1)])])
    assert not outcome.losses.lost
    assert outcome.states.tolist() == [[State.DAMAGED, State.THERE]]


def test_copies_that_may_have_lost_a_removal_do_not_outvote_the_one_that_has_it() -> None:
    copies = [ballot(name, [("has", 1, 1)], sure_from=2) for name in ("n1", "n2")]
    assert vote([*copies, ballot("n3", [("removed",)])]).served_by.tolist() == [NOBODY]
    assert vote([*copies, ballot("n3", [("gone",)])]).served_by.tolist() == [0]
    assert vote([ballot("n1", [("has", 1, 1)]), copies[1], ballot("n3", [("removed",)])]).served_by.tolist() == [0]


def test_digests_of_two_parts_are_joined_in_order_and_the_first_counts() -> None:
    one = Digests(np.array([5, 6]), np.array([1, 1]), np.array([50, 60], np.uint64))
    two = Digests(np.array([2, 6]), np.array([1, 1]), np.array([20, 61], np.uint64))
    found = join([one, two])
    assert found.sequences.tolist() == [2, 5, 6]
    assert found.digests.tolist() == [20, 50, 60]
    assert len(join([])) == 0


def test_mixed_values_tell_hashes_apart_and_their_order_too() -> None:
    hashes = np.zeros(10_000, np.uint64)
    values = np.arange(-5_000, 5_000)
    assert len(np.unique(mixed(hashes, values))) == 10_000
    a, b = np.array([7], np.int64), np.array([8], np.int64)
    assert mixed(mixed(hashes[:1], a), b) != mixed(mixed(hashes[:1], b), a)
