"""Changes of members against a second, slow version: a walk over all memberships of four nodes."""

from collections import deque
from itertools import product

import pytest

from storage_core.raft.membership import (
    ChangeKind,
    Membership,
    MembershipChange,
    change_between,
    change_count,
    may_follow,
    may_stay,
    next_change,
)

NODES = (b"a", b"b", b"c", b"d")


def all_memberships() -> list[Membership]:
    found = []
    for standings in product("-lv", repeat=len(NODES)):
        placed = list(zip(NODES, standings, strict=True))
        voters = tuple(node for node, standing in placed if standing == "v")
        if voters:
            found.append(Membership(voters, tuple(node for node, standing in placed if standing == "l")))
    return found


def changes_from(before: Membership) -> dict[Membership, MembershipChange]:
    """Return what every change that there is leads to."""
    found = {}
    for kind, node in product(ChangeKind, NODES):
        change = MembershipChange(kind, node)
        try:
            found[change.applied_to(before)] = change
        except ValueError:
            continue
    return found


MEMBERSHIPS = all_memberships()
STEPS = {before: changes_from(before) for before in MEMBERSHIPS}


def distances_from(before: Membership) -> dict[Membership, int]:
    distances, waiting = {before: 0}, deque([before])
    while waiting:
        here = waiting.popleft()
        for after in STEPS[here]:
            if after not in distances:
                distances[after] = distances[here] + 1
                waiting.append(after)
    return distances


DISTANCES = {before: distances_from(before) for before in MEMBERSHIPS}


def test_one_change_is_what_some_change_leads_to() -> None:
    for before, after in product(MEMBERSHIPS, repeat=2):
        assert change_between(before, after) == STEPS[before].get(after)


def test_nobody_is_left_by_no_change() -> None:
    assert change_between(Membership.of([b"a"]), Membership()) is None
    assert change_between(Membership.of([b"a"]), Membership((), (b"a",))) is None


def test_changes_are_counted_along_the_shortest_way() -> None:
    for before, after in product(MEMBERSHIPS, repeat=2):
        assert change_count(before, after) == DISTANCES[before][after], (before, after)


def test_without_a_recorded_change_only_learners_come_and_go() -> None:
    for before, after in product([each for each in MEMBERSHIPS if may_stay(each)], MEMBERSHIPS):
        expected = after in STEPS[before] and after.voters == before.voters
        assert may_follow(before, after, None) is expected, (before, after)


def test_within_a_recorded_change_every_step_comes_nearer_to_where_it_leads() -> None:
    for before, target in product(MEMBERSHIPS, repeat=2):
        for after in MEMBERSHIPS:
            nearer = after in STEPS[before] and DISTANCES[after][target] < DISTANCES[before][target]
            expected = nearer and len(target.voters) in (1, 3)
            assert may_follow(before, after, target) is expected, (before, after, target)


def test_the_next_change_leads_to_the_target_by_the_shortest_way_and_never_with_too_few_voters() -> None:
    cases = 0
    for start, target in product(MEMBERSHIPS, [each for each in MEMBERSHIPS if may_stay(each)]):
        here, sizes = start, []
        while (change := next_change(here, target)) is not None:
            after = change.applied_to(here)
            assert may_follow(here, after, target), (start, target, here, change)
            here = after
            sizes.append(len(here.voters))
            cases += 1
        assert here == target
        assert len(sizes) == DISTANCES[start][target]
        fewest = min(len(start.voters), len(target.voters))
        most = max(len(start.voters), len(target.voters) + 1)
        assert all(fewest <= size <= most for size in sizes), (start, target, sizes)
    assert cases > 5_000


def test_a_replaced_voter_goes_when_the_new_one_votes() -> None:
    here, target, kinds = Membership.of([b"a", b"b", b"c"]), Membership.of([b"a", b"b", b"d"]), []
    while (change := next_change(here, target)) is not None:
        here = change.applied_to(here)
        kinds.append(f"{change.kind.value} {change.node.decode()}")
    assert kinds == ["add learner d", "promote d", "remove c"]


@pytest.mark.parametrize("target", [Membership.of([b"a", b"b"]), Membership.of(NODES)])
def test_no_change_leads_to_an_even_number_of_voters(target: Membership) -> None:
    with pytest.raises(ValueError, match="odd number of voters"):
        next_change(Membership.of([b"a", b"b", b"c"]), target)
