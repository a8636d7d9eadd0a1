"""What a node answers to its shell: results, order, bounds, and silence after a failure."""

from dataclasses import replace

import pytest
from harness.raft.machine import encode_change
from harness.raft.solo import Solo, entries_of, position_in

from storage_core.errors import CorruptionError
from storage_core.raft.membership import ChangeKind, MembershipChange
from storage_core.raft.messages import (
    ORIGIN,
    AppendRequest,
    AppendResponse,
    CampaignRequest,
    HardState,
    HeartbeatRequest,
    Message,
    VoteRequest,
    VoteResponse,
)
from storage_core.raft.outcomes import Proposed, Refused, Role
from storage_core.raft.state import Settings

REMOVE_C = encode_change(MembershipChange(ChangeKind.REMOVE, b"c"))


def leader(**options: object) -> Solo:
    solo = Solo(1, **options)  # type: ignore[arg-type]
    solo.lead()
    solo.hear(*(solo.accepted(node, 2) for node in solo.node.membership.voters if node != b"a"))
    assert solo.node.commit == 2
    return solo


# --- proposals


def test_proposals_get_their_place_and_are_sent_at_once() -> None:
    solo = leader()
    assert solo.node.propose([b"x", b"y"]) == Proposed(3, 5, 2)
    ready = solo.node.ready()
    assert [entry.payload for entry in ready.entries] == [b"x", b"y"]
    assert {type(message) for message in ready.at_once} == {AppendRequest}
    assert ready.must_sync and not ready.messages and not ready.committed


def test_entries_of_a_term_carry_its_history() -> None:
    solo = leader()
    solo.node.propose([b"x"])
    solo.do()
    assert [entry.history for entry in solo.storage.entries(2, 4, 1 << 20)] == [b"00000002"] * 2


def test_a_proposal_where_nobody_leads_is_refused_and_says_who_does() -> None:
    solo = Solo(1)
    assert solo.node.propose([b"x"]) is Refused.NOT_LEADER and solo.node.leader is None
    solo.hear(HeartbeatRequest(b"b", b"a", 1, 0, 0))
    assert solo.node.propose([b"x"]) is Refused.NOT_LEADER and solo.node.leader == b"b"
    assert solo.node.propose_membership(REMOVE_C) is Refused.NOT_LEADER
    assert solo.node.read_index(b"r") is Refused.NOT_LEADER
    assert solo.node.transfer_leadership(b"c") is Refused.NOT_LEADER
    solo.do()
    assert solo.terms == [1]


def test_proposals_are_refused_when_too_much_is_uncommitted_and_taken_again_later() -> None:
    solo = leader(settings=Settings(uncommitted_size_max=10))
    assert isinstance(solo.node.propose([b"larger than the bound"]), Proposed), "an empty backlog takes anything"
    assert solo.node.propose([b"x"]) is Refused.TOO_MUCH_UNCOMMITTED
    assert solo.node.propose_membership(REMOVE_C) is Refused.TOO_MUCH_UNCOMMITTED
    solo.do()
    solo.hear(solo.accepted(b"b", 3))
    assert isinstance(solo.node.propose([b"x", b"y"]), Proposed)


def test_a_change_of_members_cannot_be_proposed_as_something_else() -> None:
    with pytest.raises(AssertionError):
        leader().node.propose([REMOVE_C])


def test_a_change_of_members_waits_until_the_one_before_is_applied() -> None:
    solo = leader(voters="abcd")
    assert solo.node.propose_membership(REMOVE_C) == Proposed(3, 4, 2)
    another = encode_change(MembershipChange(ChangeKind.REMOVE, b"d"))
    assert solo.node.propose_membership(another) is Refused.CHANGE_PENDING
    solo.do()
    solo.node.step(solo.accepted(b"b", 3))  # two of the three that are left
    assert solo.node.commit == 3
    assert solo.node.propose_membership(another) is Refused.CHANGE_PENDING, "committed, not applied"
    solo.do()
    assert isinstance(solo.node.propose_membership(another), Proposed)


def test_a_change_of_members_waits_for_an_entry_of_the_leaders_own_term() -> None:
    solo = Solo(1)
    solo.lead()
    assert solo.node.propose_membership(REMOVE_C) is Refused.CHANGE_PENDING
    solo.hear(solo.accepted(b"b", 2))
    assert isinstance(solo.node.propose_membership(REMOVE_C), Proposed)


# --- bounds


def test_one_message_carries_no_more_than_its_bound_and_at_least_one_entry() -> None:
    solo = leader(settings=Settings(append_size_max=3))
    solo.node.propose([b"aa", b"b", b"cccccc", b"d"])
    said = solo.do() + solo.hear(solo.accepted(b"b", 4))
    sent = [message.entries for message in said if isinstance(message, AppendRequest) and message.to == b"b"]
    assert [[entry.payload for entry in entries] for entries in sent if entries] == [[b"aa", b"b"], [b"cccccc"], [b"d"]]


def test_unanswered_messages_are_bounded() -> None:
    solo = leader(settings=Settings(append_size_max=1, inflight_count_max=2))
    sent: list[Message] = []
    for number in range(5):
        solo.node.propose([b"%d" % number])
        sent += solo.do()
    appended = [message for message in sent if isinstance(message, AppendRequest) and message.to == b"b"]
    assert [entry.payload for message in appended for entry in message.entries] == [b"0", b"1"]


def test_what_is_applied_at_once_is_bounded() -> None:
    solo = Solo(1, 1, 1, settings=Settings(apply_size_max=2), hard_state=HardState(1, None, 3))
    assert [entry.index for entry in solo.node.ready().committed] == [1, 2]
    solo.node.advance()
    assert [entry.index for entry in solo.node.ready().committed] == [3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_ticks": 0},
        {"heartbeat_ticks": 10},
        {"append_size_max": 0},
        {"inflight_count_max": 0},
        {"inflight_size_max": 0},
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Settings(**wrong)


# --- order


def test_each_ready_is_handed_out_once_and_confirmed_once() -> None:
    solo = Solo(1)
    solo.node.campaign(forced=True)
    assert solo.node.has_ready()
    solo.node.ready()
    assert not solo.node.has_ready()
    with pytest.raises(AssertionError):
        solo.node.ready()
    solo.node.advance()
    with pytest.raises(AssertionError):
        solo.node.advance()


def test_only_what_promises_nothing_is_said_before_persisting() -> None:
    """Votes, requests for them, and acknowledgements wait; what a leader sends does not."""
    solo = Solo(1)
    solo.node.step(VoteRequest(b"b", b"a", 2, position_in((1,), 1), 0))
    solo.node.step(AppendRequest(b"b", b"a", 2, position_in((1,), 1), tuple(entries_of(1, 2)[1:]), 0))
    ready = solo.node.ready()
    assert ready.at_once == () and ready.must_sync
    assert [type(message) for message in ready.messages] == [VoteResponse, AppendResponse]
    assert ready.hard_state == HardState(2, b"b", 0)


def test_a_commit_index_alone_need_not_be_synced() -> None:
    solo = Solo(1, 1)
    solo.hear(solo.append(1, position_in((1, 1), 2), []))
    solo.node.step(HeartbeatRequest(b"b", b"a", 1, 2, 0))
    ready = solo.node.ready()
    assert ready.hard_state == HardState(1, None, 2) and not ready.must_sync


def test_while_it_persists_a_node_hears_and_the_answers_come_with_the_next_ready() -> None:
    solo = Solo(1)
    solo.node.step(solo.append(1, position_in((1,), 1), entries_of(1, 1)[1:]))
    first = solo.node.ready()
    solo.node.step(solo.append(1, position_in((1, 1), 2), entries_of(1, 1, 1)[2:]))
    solo.storage.append(first.entries)
    solo.node.advance()
    second = solo.node.ready()
    assert [entry.index for entry in first.entries] == [2]
    assert [entry.index for entry in second.entries] == [3]
    assert [message.index for message in second.messages if isinstance(message, AppendResponse)] == [3]


# --- failures


def test_a_node_whose_storage_failed_says_nothing_for_ever() -> None:
    solo = leader()
    solo.node.propose([b"x"])
    solo.node.ready()
    solo.node.storage_failed("fsync failed")
    solo.node.advance()
    assert not solo.node.has_ready() and solo.node.failure == "fsync failed"
    for _ in range(100):
        solo.node.tick()
    said = solo.hear(
        VoteRequest(b"b", b"a", 9, position_in((1, 2, 2), 3), 0, forced=True),
        HeartbeatRequest(b"b", b"a", 9, 9, 0),
        CampaignRequest(b"b", b"a", 9),
    )
    assert said == [] and solo.node.role is Role.FOLLOWER
    assert not solo.node.campaign(forced=True)
    assert solo.node.propose([b"y"]) is Refused.STORAGE_FAILED
    assert solo.node.read_index(b"r") is Refused.STORAGE_FAILED


@pytest.mark.parametrize("member", ["verified voter", "not verified", "learner", "stranger"])
def test_who_may_campaign_and_vote(member: str) -> None:
    voters, learners = {"learner": ("bc", "a"), "stranger": ("bc", "")}.get(member, ("abc", ""))
    solo = Solo(1, voters=voters, learners=learners, verified=member != "not verified")
    may = member == "verified voter"
    last = position_in((1, 1), 2)
    for pre in (True, False):
        (said,) = solo.hear(VoteRequest(b"b", b"a", 2, last, 0, pre=pre))
        assert isinstance(said, VoteResponse) and said.granted is may
    assert solo.node.campaign(forced=True) is may
    solo.hear(CampaignRequest(b"b", b"a", 5))
    assert (solo.node.role is Role.CANDIDATE) is may


def test_a_learner_votes_for_whoever_knows_of_its_promotion() -> None:
    solo = Solo(1, voters="bc", learners="a")
    (said,) = solo.hear(VoteRequest(b"b", b"a", 2, position_in((1, 1), 2), members_index=2))
    assert isinstance(said, VoteResponse) and said.granted


def test_losing_trust_ends_leadership() -> None:
    solo = leader()
    solo.node.set_verified(False)
    assert solo.node.role is Role.FOLLOWER and not solo.node.campaign(forced=True)
    solo.node.set_verified(True)
    assert solo.node.campaign(forced=True)


def test_a_log_that_contradicts_the_leaders_is_not_used_any_more() -> None:
    solo = Solo(1, 1)
    other = replace(position_in((1, 1), 2), chain=b"another history.")
    assert solo.hear(solo.append(1, other, [])) == []
    assert solo.node.failure is not None and "entry 2 of term 1" in solo.node.failure


# --- messages that are not what they should be


def test_entries_that_do_not_follow_each_other_are_refused_before_anything_happens() -> None:
    solo = Solo(1)
    good = entries_of(1, 1, 1)
    gap = AppendRequest(b"b", b"a", 7, ORIGIN, (good[0], good[2]), 0)
    swapped = AppendRequest(b"b", b"a", 7, ORIGIN, (good[0], replace(good[1], payload=b"forged")), 0)
    later = AppendRequest(b"b", b"a", 7, ORIGIN, tuple(entries_of(8)), 0)
    backwards = AppendRequest(b"b", b"a", 7, position_in((2,), 1), tuple(entries_of(1, after=position_in((2,), 1))), 0)
    for message in (gap, swapped, later, backwards):
        with pytest.raises(CorruptionError):
            solo.node.step(message)
    assert (solo.node.term, solo.terms) == (1, [1]) and not solo.node.has_ready()


def test_an_acknowledgement_of_what_was_never_sent_is_refused() -> None:
    solo = leader()
    with pytest.raises(CorruptionError, match="never sent"):
        solo.node.step(solo.accepted(b"b", 99))
    assert solo.node.commit == 2


def test_a_message_for_somebody_else_is_refused() -> None:
    with pytest.raises(ValueError, match="came to"):
        Solo(1).node.step(HeartbeatRequest(b"b", b"z", 1, 0, 0))
