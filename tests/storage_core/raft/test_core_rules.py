"""The rules of the Raft paper, figure 2 and its sections, as tables: what a node does on what it is told."""

from itertools import product

import pytest
from harness.raft.solo import Solo, entries_of, position_in

from storage_core.errors import CorruptionError
from storage_core.raft.election import best_log, is_as_good
from storage_core.raft.messages import (
    ORIGIN,
    AppendRequest,
    AppendResponse,
    HardState,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    TermNotice,
    VoteRequest,
    VoteResponse,
)
from storage_core.raft.outcomes import Role
from storage_core.raft.state import Settings

# --- 5.1: terms


NEWER = [
    VoteRequest(b"b", b"a", 9, ORIGIN, 0, forced=True),
    VoteResponse(b"b", b"a", 9, False),
    AppendRequest(b"b", b"a", 9, ORIGIN, (), 0),
    AppendResponse(b"b", b"a", 9, 0, True),
    HeartbeatRequest(b"b", b"a", 9, 0, 0),
    HeartbeatResponse(b"b", b"a", 9, 0, True),
    TermNotice(b"b", b"a", 9),
]


@pytest.mark.parametrize("message", NEWER, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE, Role.LEADER])
def test_a_newer_term_makes_a_follower_of_everybody(role: Role, message: Message) -> None:
    solo = Solo(1)
    if role is Role.LEADER:
        solo.lead()
    elif role is Role.CANDIDATE:
        solo.node.campaign(forced=True)
        solo.do()
    assert solo.node.role is role

    solo.hear(message)

    assert (solo.node.role, solo.node.term) == (Role.FOLLOWER, 9)
    assert solo.hard_state.term == 9
    assert solo.node.leader == (b"b" if isinstance(message, AppendRequest | HeartbeatRequest) else None)


def test_the_terms_of_campaigns_that_are_only_thought_of_move_nobody() -> None:
    solo = Solo(1)
    said = solo.hear(VoteRequest(b"b", b"a", 9, position_in((1,), 1), 0, pre=True))
    assert said == [VoteResponse(b"a", b"b", 9, True, pre=True)]
    assert solo.node.term == 1


@pytest.mark.parametrize(
    ("message", "answers"),
    [
        (VoteRequest(b"b", b"a", 2, ORIGIN, 0), [VoteResponse(b"a", b"b", 5, False)]),
        (VoteRequest(b"b", b"a", 2, ORIGIN, 0, pre=True), [VoteResponse(b"a", b"b", 5, False, pre=True)]),
        (AppendRequest(b"b", b"a", 2, ORIGIN, (), 0), [TermNotice(b"a", b"b", 5)]),
        (HeartbeatRequest(b"b", b"a", 2, 0, 0), [TermNotice(b"a", b"b", 5)]),
        (VoteResponse(b"b", b"a", 2, True), []),
        (AppendResponse(b"b", b"a", 2, 0, True), []),
        (HeartbeatResponse(b"b", b"a", 2, 0, True), []),
        (TermNotice(b"b", b"a", 2), []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_older_term_is_told_so_if_it_asked(message: Message, answers: list[Message]) -> None:
    solo = Solo(5)
    assert solo.hear(message) == answers
    assert (solo.node.role, solo.node.term) == (Role.FOLLOWER, 5)


# --- 5.2: elections


def test_nobody_campaigns_before_the_time_is_up_and_everybody_does_then() -> None:
    solo = Solo(1, settings=Settings(election_ticks=7))
    for _ in range(6):
        solo.node.tick()
    assert solo.do() == []
    solo.node.tick()
    assert [type(message) for message in solo.do()] == [VoteRequest, VoteRequest]


def test_hearing_from_the_leader_or_giving_a_vote_starts_the_time_anew() -> None:
    for message in (HeartbeatRequest(b"b", b"a", 1, 0, 0), VoteRequest(b"b", b"a", 2, position_in((1,), 1), 0)):
        solo = Solo(1, settings=Settings(election_ticks=7))
        for _ in range(6):
            solo.node.tick()
        solo.hear(message)
        for _ in range(6):
            solo.node.tick()
        assert solo.do() == []


@pytest.mark.parametrize(
    ("voters", "granted", "refused", "role"),
    [
        ("abc", "", "", Role.CANDIDATE),
        ("abc", "b", "", Role.LEADER),
        ("abc", "", "b", Role.CANDIDATE),
        ("abc", "", "bc", Role.FOLLOWER),
        ("abc", "z", "", Role.CANDIDATE),  # a stranger's vote
        ("abcd", "b", "", Role.CANDIDATE),
        ("abcd", "bc", "", Role.LEADER),
        ("abcd", "", "bc", Role.FOLLOWER),  # two of four are left
        ("abcde", "bc", "de", Role.LEADER),
        ("abcde", "b", "cde", Role.FOLLOWER),
    ],
)
def test_a_majority_of_votes_decides(voters: str, granted: str, refused: str, role: Role) -> None:
    solo = Solo(1, voters=voters)
    solo.node.campaign(forced=True)
    solo.do()
    for voter in granted + refused:
        solo.node.step(VoteResponse(voter.encode(), b"a", 2, voter in granted))
    assert solo.node.role is role


def test_a_vote_counts_once_however_often_it_arrives() -> None:
    solo = Solo(1, voters="abcde")
    solo.node.campaign(forced=True)
    solo.do()
    for _ in range(3):
        solo.node.step(VoteResponse(b"b", b"a", 2, True))
    solo.node.step(VoteResponse(b"b", b"a", 2, False))
    assert solo.node.role is Role.CANDIDATE


def test_the_own_vote_counts_when_it_is_persisted() -> None:
    solo = Solo(1)
    solo.node.campaign(forced=True)
    solo.node.ready()
    solo.node.step(VoteResponse(b"b", b"a", 2, True))
    assert solo.node.role is Role.CANDIDATE
    solo.node.advance()
    assert solo.node.role is Role.LEADER


def test_a_candidate_yields_to_a_leader_of_its_own_term() -> None:
    solo = Solo(1)
    solo.node.campaign(forced=True)
    solo.do()
    solo.hear(HeartbeatRequest(b"b", b"a", 2, 0, 0))
    assert (solo.node.role, solo.node.leader, solo.node.term) == (Role.FOLLOWER, b"b", 2)


@pytest.mark.parametrize(
    ("vote", "request_term", "request_sender", "granted"),
    [
        (None, 2, b"b", True),
        (b"b", 2, b"b", True),  # asked again
        (b"c", 2, b"b", False),
        (b"c", 3, b"b", True),  # another term, another vote
        (b"session-of-a-process", 2, b"b", False),  # given to somebody whom nobody remembers
    ],
)
def test_a_vote_is_given_once_in_a_term(
    vote: bytes | None, request_term: int, request_sender: bytes, granted: bool
) -> None:
    solo = Solo(1, hard_state=HardState(2, vote, 0))
    said = solo.hear(VoteRequest(request_sender, b"a", request_term, position_in((1,), 1), 0))
    assert said == [VoteResponse(b"a", request_sender, request_term, granted)]
    assert solo.hard_state.vote == (request_sender if granted else vote)


def test_entries_that_came_without_their_term_do_not_bring_an_old_vote_into_it() -> None:
    """A crash may keep the entries of a Ready and lose its hard state."""
    solo = Solo(1, 4, hard_state=HardState(1, b"c", 0))
    assert solo.node.status().vote is None and solo.node.term == 4
    said = solo.hear(VoteRequest(b"b", b"a", 4, position_in((1, 4), 2), 0))
    assert said == [VoteResponse(b"a", b"b", 4, True)]
    assert solo.hard_state == HardState(4, b"b", 0)


# --- 5.4.1: whose log is as good


@pytest.mark.parametrize(
    ("candidate", "voter", "expected"),
    [
        ((1,), (1,), True),
        ((1, 1), (1,), True),
        ((1,), (1, 1), False),
        ((2,), (1, 1, 1), True),  # the later term wins, however short the log
        ((1, 1, 1), (2,), False),
        ((), (1,), False),
        ((1,), (), True),
        ((), (), True),
    ],
)
def test_the_log_that_ends_in_the_later_term_or_else_is_longer_is_as_good(
    candidate: tuple[int, ...], voter: tuple[int, ...], expected: bool
) -> None:
    last, own_last = position_in(candidate, len(candidate)), position_in(voter, len(voter))
    assert is_as_good(last, own_last) is expected
    solo = Solo(*voter, hard_state=HardState(5))
    for pre in (True, False):
        said = solo.hear(VoteRequest(b"b", b"a", 6, last, 0, pre=pre))
        assert [message.granted for message in said if isinstance(message, VoteResponse)] == [expected]


def test_the_best_log_is_as_good_as_any_and_of_equal_ones_it_is_the_first_nodes() -> None:
    logs = [(), (1,), (1, 1), (1, 1, 2), (1, 3), (2,)]
    for one, two, three in product(logs, repeat=3):
        lasts = {
            b"c": position_in(one, len(one)),
            b"a": position_in(two, len(two)),
            b"b": position_in(three, len(three)),
        }
        as_good_as_all = [node for node in lasts if all(is_as_good(lasts[node], other) for other in lasts.values())]
        assert best_log(lasts) == min(as_good_as_all)


def test_two_entries_of_one_index_and_term_are_no_logs_to_choose_from() -> None:
    one, two = position_in((1, 2), 2), position_in((2, 2), 2)
    assert best_log({b"a": position_in((3,), 1), b"b": one, b"c": two}) == b"a"
    with pytest.raises(CorruptionError, match="end at entry 2 of term 2"):
        best_log({b"b": one, b"c": two})


# --- 5.3: appending


@pytest.mark.parametrize(
    ("own", "before", "sent", "accepted_to", "hint", "log_after"),
    [
        ((), 0, (1, 1), 2, None, [1, 1]),
        ((1,), 1, (1, 2), 3, None, [1, 1, 2]),
        ((1,), 1, (), 1, None, [1]),
        ((1,), 2, (2,), None, (1, 1), [1]),  # an entry is missing
        ((1, 2), 2, (3,), None, (1, 1), [1, 2]),  # another entry stands there; the leader's is of term 1
        ((1, 2, 2), 1, (3,), 2, None, [1, 3]),  # what conflicts is replaced, and all after it
        ((1, 1, 1), 1, (1,), 2, None, [1, 1, 1]),  # a late message: nothing after it is touched
        ((1, 1, 2), 0, (1, 1), 2, None, [1, 1, 2]),
        ((1, 1, 2), 0, (1, 1, 3, 3), 4, None, [1, 1, 3, 3]),
        ((1, 2, 2, 2), 4, (4,), None, (1, 1), [1, 2, 2, 2]),  # one exchange skips all of term 2
    ],
)
def test_entries_are_taken_if_the_one_before_them_is_there(
    own: tuple[int, ...],
    before: int,
    sent: tuple[int, ...],
    accepted_to: int | None,
    hint: tuple[int, int] | None,
    log_after: list[int],
) -> None:
    leader = (1,) * before + sent
    entries = entries_of(*leader)[before:]
    solo = Solo(*own, hard_state=HardState(9))
    (said,) = solo.hear(solo.append(9, position_in(leader, before), entries))
    assert isinstance(said, AppendResponse)
    assert said.accepted is (accepted_to is not None)
    assert said.index == (before if accepted_to is None else accepted_to)
    if hint is not None:
        assert (said.hint_term, said.hint_index) == hint
    assert solo.terms == log_after
    assert [entry.term for entry in solo.storage.entries(1, len(log_after) + 1, 1 << 30)] == log_after


@pytest.mark.parametrize(
    ("own", "before", "sent", "leader_commit", "commit"),
    [
        ((1, 1, 1), 3, (), 2, 2),
        ((1, 1, 1), 3, (), 9, 3),  # no further than what is known to be the leader's
        ((1, 1, 1), 1, (1,), 3, 2),  # entry 3 may be another one than the leader's
        ((1,), 1, (1, 1), 9, 3),
        ((1, 1), 3, (1,), 3, 0),  # refused
    ],
)
def test_a_follower_commits_what_it_has_compared_and_the_leader_has_committed(
    own: tuple[int, ...], before: int, sent: tuple[int, ...], leader_commit: int, commit: int
) -> None:
    leader = (1,) * before + sent
    solo = Solo(*own, hard_state=HardState(2))
    solo.hear(solo.append(2, position_in(leader, before), entries_of(*leader)[before:], leader_commit))
    assert solo.node.commit == commit
    assert [entry.index for entry in solo.applied] == list(range(1, commit + 1))


def test_a_heartbeat_commits_no_further_than_what_was_compared_in_this_term() -> None:
    solo = Solo(1, 1, 1, hard_state=HardState(2))
    solo.hear(HeartbeatRequest(b"b", b"a", 2, 3, 0))
    assert solo.node.commit == 0
    solo.hear(solo.append(2, position_in((1, 1, 1), 2), []))
    solo.hear(HeartbeatRequest(b"b", b"a", 2, 3, 0))
    assert solo.node.commit == 2
    solo.hear(HeartbeatRequest(b"c", b"a", 3, 3, 0))
    assert solo.node.commit == 2, "the next leader's log is another one"


FIGURE_7 = {
    "a: lacks the last entry": (1, 1, 1, 4, 4, 5, 5, 6, 6),
    "b: lacks many": (1, 1, 1, 4),
    "c: has one more of the last term": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    "d: has entries of a term of its own": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    "e: lacks some, has others": (1, 1, 1, 4, 4, 4, 4),
    "f: missed three terms, led two": (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
}


@pytest.mark.parametrize("terms", FIGURE_7.values(), ids=FIGURE_7)
def test_figure_7_whatever_a_follower_has_becomes_the_leaders_log(terms: tuple[int, ...]) -> None:
    leader = Solo(1, 1, 1, 4, 4, 5, 5, 6, 6, 6, hard_state=HardState(7))
    follower = Solo(*terms, node_id=b"b", hard_state=HardState(7))
    said, exchanges = leader.lead(), 0
    while messages := [message for message in said if message.to == b"b"]:
        exchanges += 1
        said = leader.hear(*follower.hear(*messages))
    assert follower.terms == leader.terms == [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 8]
    assert follower.node.status().last == leader.node.status().last
    assert exchanges <= 1 + len(set(terms)), "one exchange skips a whole term"


# --- 5.4.2: what a leader may commit


@pytest.mark.parametrize(
    ("own", "acknowledged", "commit"),
    [
        ((1, 2), {}, 0),
        ((1, 2), {b"b": 3}, 3),
        ((1, 2), {b"b": 2, b"c": 2}, 0),  # all have it, and it is of an earlier term
        ((1, 2), {b"b": 2, b"c": 3}, 3),
        ((1, 2), {b"z": 3}, 0),  # no member
    ],
)
def test_a_leader_commits_entries_of_its_own_term_and_with_them_all_before(
    own: tuple[int, ...], acknowledged: dict[bytes, int], commit: int
) -> None:
    solo = Solo(*own)
    solo.lead()  # its first entry is the third
    solo.hear(*(solo.accepted(node, index) for node, index in acknowledged.items()))
    assert solo.node.commit == commit
    assert [entry.index for entry in solo.applied] == list(range(1, commit + 1))


def test_a_leader_never_touches_entries_of_its_own_log() -> None:
    solo = Solo(1, 2, 2)
    solo.lead()
    assert solo.terms == [1, 2, 2, 3]
    assert solo.node.status().last.index == 4


# --- 8: reads


def test_a_read_is_confirmed_by_a_majority_that_answers_after_it_was_asked_for() -> None:
    solo = Solo(1, voters="abcde")
    solo.lead()
    solo.hear(solo.accepted(b"b", 2), solo.accepted(b"c", 2))
    solo.node.read_index(b"first")
    solo.node.read_index(b"second")
    solo.hear(solo.heard(b"b", 1), solo.heard(b"b", 1), solo.heard(b"learner", 2), solo.heard(b"c", 2, verified=False))
    assert solo.reads == []
    solo.hear(solo.heard(b"d", 1))
    assert [(read.request, read.index) for read in solo.reads] == [(b"first", 2)]
    solo.hear(solo.heard(b"e", 2), solo.heard(b"d", 2))
    assert [(read.request, read.index) for read in solo.reads] == [(b"first", 2), (b"second", 2)]
