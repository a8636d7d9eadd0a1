"""The log between storage and core: against a list, and while what it handed out is being persisted."""

import pytest
from harness.raft.machine import decode_change, encode_change
from harness.raft.solo import entries_of, position_in
from hypothesis import assume, given
from hypothesis import strategies as st

from storage_core.errors import CorruptionError
from storage_core.raft.entry import Entry, make_entry
from storage_core.raft.log import Contradiction, RaftLog, Refusal
from storage_core.raft.membership import ChangeKind, Membership, MembershipChange
from storage_core.raft.memory_storage import MemoryStorage
from storage_core.raft.messages import ORIGIN, Position, Snapshot

MEMBERS = Membership.of([b"a", b"b", b"c"])
ascending_terms = st.lists(st.integers(0, 2), max_size=7).map(
    lambda steps: tuple(1 + sum(steps[: number + 1]) for number in range(len(steps)))
)


def log_of(*terms: int, commit: int = 0, applied: int = 0) -> RaftLog:
    return RaftLog(MemoryStorage(None, entries_of(*terms)), commit, applied, MEMBERS, decode_change)


def terms_of(log: RaftLog) -> list[int]:
    positions = (log.position(index) for index in range(log.base_index + 1, log.last.index + 1))
    return [position.term for position in positions if position is not None]


def agreement(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return up to where two logs are the same."""
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return same


@given(ascending_terms, ascending_terms, st.integers(0, 7), st.integers(0, 7), st.integers(0, 7), st.booleans())
def test_accepting_entries_does_what_the_paper_says_to_a_list(
    own: tuple[int, ...], leader: tuple[int, ...], before: int, count: int, commit: int, compacted: bool
) -> None:
    common = agreement(own, leader)
    # No two leaders have a term in common, so logs that parted have no entry of one index and term again.
    assume(all(one != other for one, other in zip(own[common:], leader[common:], strict=False)))
    before, commit = min(before, len(leader)), min(commit, common)
    sent = leader[before : before + count]
    log = log_of(*own, commit=commit)
    if compacted and commit:
        storage = MemoryStorage(None, entries_of(*own))
        storage.compact(Snapshot(position_in(own, commit), MEMBERS, b""))
        log = RaftLog(storage, commit, commit, MEMBERS, decode_change)

    outcome = log.accept(position_in(leader, before), entries_of(*leader)[before : before + count])

    if before > common:
        assert isinstance(outcome, Refusal)
        assert min(commit, before) <= outcome.hint.index <= before
        assert outcome.hint.index >= common, "the hint skips nothing that may agree"
        expected = own
    else:
        end = before + len(sent)
        assert outcome == max(end, commit if compacted else 0)
        expected = own if end <= common else leader[:end]
    assert terms_of(log) == list(expected[commit if compacted else 0 :])


def test_entries_that_are_replaced_while_they_are_persisted_are_not_taken_for_persisted() -> None:
    log = log_of(1)
    log.accept(position_in((1,), 1), entries_of(1, 2, 2)[1:])
    handed = log.unstable()
    log.accept(position_in((1,), 1), entries_of(1, 3, 3)[1:])
    log.persisted(None, Position.of(handed[-1]))
    assert log.stable_index == 1
    assert [entry.term for entry in log.unstable()] == [3, 3]


def test_entries_that_came_while_others_were_persisted_are_handed_out_next() -> None:
    log = log_of(1)
    log.accept(position_in((1,), 1), entries_of(1, 2)[1:])
    handed = log.unstable()
    log.accept(position_in((1, 2), 2), entries_of(1, 2, 2)[2:])
    log.persisted(None, Position.of(handed[-1]))
    assert log.stable_index == 2
    assert [entry.index for entry in log.unstable()] == [3]


def test_replacing_what_is_in_storage_makes_it_unstable_again() -> None:
    log = log_of(1, 2, 2)
    assert log.accept(position_in((1,), 1), entries_of(1, 3)[1:]) == 2
    assert log.stable_index == 1
    assert [entry.term for entry in log.unstable()] == [3]


def test_nothing_is_applied_before_it_is_persisted_and_committed() -> None:
    log = log_of(1, 1)
    log.accept(position_in((1, 1), 2), entries_of(1, 1, 1)[2:])
    log.commit_to(3)
    assert [entry.index for entry in log.to_apply(1 << 20)] == [1, 2]
    assert [entry.index for entry in log.to_apply(1)] == [1], "at least one, however small the bound"
    log.applied_to(2)
    assert not log.can_apply and log.to_apply(1 << 20) == ()


@pytest.mark.parametrize("size_max", [0, 1, 2, 3, 4, 100])
@pytest.mark.parametrize("first", [1, 2, 3, 4, 5])
def test_entries_come_from_storage_and_memory_up_to_a_size_and_at_least_one(first: int, size_max: int) -> None:
    log = log_of(1, 1)
    log.accept(position_in((1, 1), 2), entries_of(1, 1, 1, 1)[2:])
    found = [entry.index for entry in log.entries(first, size_max)]
    assert found == list(range(first, 5))[: max(1, size_max)]


def test_a_snapshot_stands_for_everything_until_it_is_installed() -> None:
    log = log_of(1, 1)
    log.accept(position_in((1, 1), 2), entries_of(1, 1, 2)[2:])
    position = position_in((1, 1, 3, 3, 3), 5)
    snapshot = Snapshot(position, Membership.of([b"a"]), b"state")
    log.restore(snapshot)
    assert (log.last, log.commit, log.stable_index, log.base_index) == (position, 5, 0, 5)
    assert (log.unstable(), log.to_apply(1), log.newest_snapshot()) == ((), (), None)
    assert log.members.newest == Membership.of([b"a"])
    log.accept(position, entries_of(4, after=position))
    log.persisted(snapshot, Position.of(log.unstable()[-1]))
    assert (log.applied, log.stable_index, log.incoming) == (5, 6, None)


def test_a_second_snapshot_that_comes_while_the_first_is_installed_is_not_taken_for_installed() -> None:
    log = log_of(1)
    terms = (1, 1, 3, 3, 3)
    first, second = (Snapshot(position_in(terms, index), MEMBERS, b"") for index in (3, 5))
    log.restore(first)
    log.restore(second)
    log.persisted(first, None)
    assert (log.applied, log.incoming) == (3, second)
    log.persisted(second, None)
    assert (log.applied, log.incoming, log.stable_index) == (5, None, 5)


# --- what cannot be, is said


def test_a_committed_entry_is_not_replaced() -> None:
    log = log_of(1, 1, commit=2)
    outcome = log.accept(position_in((1,), 1), entries_of(1, 2)[1:])
    assert isinstance(outcome, Contradiction) and "committed" in outcome.reason
    assert terms_of(log) == [1, 1]
    assert isinstance(log.accept(position_in((2, 2), 2), []), Contradiction)


def test_two_entries_of_one_index_and_term_are_noticed() -> None:
    other = make_entry(ORIGIN.chain, 1, 1, b"another.", b"x")
    log = log_of(1, 1)
    assert isinstance(log.accept(ORIGIN, [other]), Contradiction)
    assert isinstance(log.accept(Position.of(other), []), Contradiction)
    assert terms_of(log) == [1, 1]


def test_entries_that_do_not_follow_what_was_compacted_are_noticed() -> None:
    storage = MemoryStorage(None, entries_of(1, 1))
    storage.compact(Snapshot(position_in((1, 1), 2), MEMBERS, b""))
    log = RaftLog(storage, 2, 2, MEMBERS, decode_change)
    assert isinstance(log.accept(ORIGIN, entries_of(1, 2, 2)), Contradiction)
    assert log.accept(ORIGIN, entries_of(1, 1)) == 2, "all of it is in the snapshot"
    assert log.accept(ORIGIN, entries_of(1, 1, 2)) == 3


@pytest.mark.parametrize(
    ("commit", "applied", "compact_at", "forget_snapshot", "problem"),
    [
        (4, 0, 0, False, "entries up to 4 are committed, but the log ends at 3"),
        (3, 4, 0, False, r"applied up to 4, but the log is of \[0, 3\]"),
        (3, 1, 2, False, r"applied up to 1, but the log is of \[2, 3\]"),
        (3, 2, 2, True, "the log begins after 2, and no snapshot reaches that far"),
    ],
)
def test_a_log_that_does_not_reach_from_the_applied_to_the_committed_entry_is_refused(
    commit: int, applied: int, compact_at: int, forget_snapshot: bool, problem: str
) -> None:
    """P6: a gap between snapshot, log and what is committed is damage, and never replayed into a shift."""
    storage = MemoryStorage(None, entries_of(1, 1, 1))
    if compact_at:
        storage.compact(Snapshot(position_in((1, 1, 1), compact_at), MEMBERS, b""))
    if forget_snapshot:
        storage.snapshot = lambda: None  # type: ignore[method-assign]
    with pytest.raises(CorruptionError, match=problem):
        RaftLog(storage, commit, applied, MEMBERS, decode_change)


def test_memory_storage_refuses_what_does_not_follow() -> None:
    storage = MemoryStorage(None, entries_of(1, 1))
    with pytest.raises(CorruptionError):
        storage.append([make_entry(bytes(16), 3, 2, b"history.", b"")])
    with pytest.raises(CorruptionError, match="does not fit"):
        storage.compact(Snapshot(position_in((1, 2), 2), MEMBERS, b""))


# --- members


def change_at(log: RaftLog, term: int, kind: ChangeKind, node: bytes) -> Entry:
    payload = encode_change(MembershipChange(kind, node))
    return make_entry(log.last.chain, log.last.index + 1, term, b"%08d" % term, payload)


def test_members_change_with_the_entry_and_back_when_it_is_replaced() -> None:
    log = log_of(1, 1, commit=1)
    before = log.last
    change = change_at(log, 2, ChangeKind.REMOVE, b"c")
    log.accept(before, [change])
    assert (log.members.newest, log.members.newest_index) == (Membership.of([b"a", b"b"]), 3)
    assert log.members.may_be_voter(b"c"), "the change may never be committed"
    log.accept(before, entries_of(3, after=before))
    assert log.members.newest == MEMBERS
    assert not log.members.may_be_voter(b"d")


def test_members_before_a_committed_change_count_no_more() -> None:
    log = log_of(1, 1, commit=1)
    log.accept(log.last, [change_at(log, 2, ChangeKind.REMOVE, b"c")])
    log.commit_to(3)
    assert not log.members.may_be_voter(b"c")


def test_members_are_known_again_after_a_restart_from_the_log_alone() -> None:
    log = log_of(1)
    entries = [*entries_of(1), change_at(log, 2, ChangeKind.ADD_LEARNER, b"d")]
    again = RaftLog(MemoryStorage(None, entries), 0, 0, MEMBERS, decode_change)
    assert again.members.newest == Membership.of([b"a", b"b", b"c"], (b"d",))


def test_a_change_that_does_not_fit_the_members_is_noticed() -> None:
    log = log_of(1)
    outcome = log.accept(log.last, [change_at(log, 2, ChangeKind.PROMOTE, b"nobody")])
    assert isinstance(outcome, Contradiction)
    assert (terms_of(log), log.members.newest) == ([1], MEMBERS)
