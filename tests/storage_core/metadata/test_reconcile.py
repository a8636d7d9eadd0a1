"""The rule of reconciliation against the table of docs/reconcile.md, and the stories that it was made for."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.metadata.config import StreamConfig
from storage_core.metadata.events import says_the_same
from storage_core.metadata.reconcile import (
    CONTINUE,
    FAIL,
    HISTORY_RUNS_KEPT,
    Action,
    Decision,
    Position,
    StreamFacts,
    answers,
    decide,
    decide_without_stream,
    position_at,
)
from storage_core.metadata.removals import runs_needed
from storage_core.metadata.state import StreamState
from storage_core.sequences import SequenceSet

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reconcile.md"
QUESTIONS: dict[str, tuple[str, ...]] = {
    "incarnation": ("same", "continued", "another"),
    "history": ("shared", "parted", "unknown"),
    "place": ("within", "behind", "ahead"),
    "lost": ("nothing", "new"),
    "policy": (CONTINUE, FAIL),
}
Case = dict[str, str]
NOTHING = SequenceSet.empty()
OURS, BEFORE, FOREIGN = b"incarnation-ours", b"incarnation-past", b"incarnation-else"
CONFIG = StreamConfig(name="ORDERS", subjects=("ORDERS",))
REMEDY = "`jstream consumer reset ORDERS READER --execute` goes on"


def rows() -> list[tuple[dict[str, set[str]], str]]:
    """Return the rows of the table: the answers that each takes, and what is done."""
    lines = DOCUMENT.read_text().splitlines()
    found = []
    for line in lines[lines.index(f"| row | {' | '.join(QUESTIONS)} | what is done |") + 2 :]:
        if not line.startswith("|"):
            break
        _, *cells, does = (cell.strip() for cell in line.strip("|").split("|"))
        taken = {
            name: set(QUESTIONS[name]) if not cell else set(cell.split(", "))
            for name, cell in zip(QUESTIONS, cells, strict=True)
        }
        assert all(taken[name] <= set(QUESTIONS[name]) for name in QUESTIONS), line
        found.append((taken, does))
    return found


def cases() -> Iterator[Case]:
    for chosen in itertools.product(*QUESTIONS.values()):
        yield dict(zip(QUESTIONS, chosen, strict=True))


def row_of(case: Case) -> str:
    matching = [does for taken, does in rows() if all(case[name] in taken[name] for name in QUESTIONS)]
    assert len(matching) == 1, f"{case} matches {len(matching)} rows"
    return matching[0]


def facts(
    next_sequence: int, histories: tuple[tuple[bytes, int], ...], first: int = 1, lost: SequenceSet = NOTHING
) -> StreamFacts:
    return StreamFacts("ORDERS", OURS, first, next_sequence, histories, ((BEFORE, 50),), lost)


def build(case: Case) -> tuple[Position, StreamFacts]:
    """Return a position and a stream that give the answers of the case."""
    incarnation = {"same": OURS, "continued": BEFORE, "another": FOREIGN}[case["incarnation"]]
    lost = SequenceSet.from_ranges([(20, 30)]) if case["lost"] == "new" else NOTHING
    next_sequence, first = {"within": (61, 1), "behind": (61, 80), "ahead": (120, 1)}[case["place"]]
    runs = {
        "shared": ((b"history1", 1), (b"history2", 31)),
        "parted": ((b"history1", 1), (b"history3", 31)),
        "unknown": ((b"history8", 1), (b"history9", 31)),
    }[case["history"]]
    return Position(incarnation, next_sequence, runs), facts(100, ((b"history1", 1), (b"history2", 31)), first, lost)


# --- the table


def test_every_case_matches_exactly_one_row_and_is_decided_as_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    used = set()
    for case in cases():
        position, stream = build(case)
        assert answers(position, stream, NOTHING, case["policy"]) == case
        does = row_of(case)
        used.add(does)
        made = decide(position, stream, NOTHING, case["policy"], REMEDY)
        assert made.action.value == does.split(":")[0], case
        assert made.must_be_reported == (does != "go on"), case
        if made.action is Action.FAIL:
            assert made.next_sequence == position.next_sequence
            assert made.reason.endswith(REMEDY)
        elif made.action is not Action.GO_ON:
            assert stream.first_sequence <= made.next_sequence <= stream.next_sequence
    assert used == {does for _, does in rows()}, "every row is used"
    with capsys.disabled():
        print(f"\nreconciliation: {len(list(cases()))} cases, {len(rows())} rows", end="")


@pytest.mark.parametrize("policy", [CONTINUE, FAIL])
def test_what_was_told_is_not_told_again(policy: str) -> None:
    lost = SequenceSet.from_ranges([(3, 9)])
    stream = facts(20, ((b"history1", 1),), lost=lost)
    position = position_at(stream, 15)
    assert decide(position, stream, NOTHING, policy).must_be_reported
    assert decide(position, stream, lost, policy) == Decision(Action.GO_ON, 15)


# --- against a slow model: streams as lists of (history, number) that are put back and grow again


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[bytes], list[list[bytes]]]:
    """Return the history of each message at the time of the position, and what the stream became of it since."""
    number = itertools.count()
    sessions = st.lists(st.integers(1, 4), max_size=6)

    def grow(messages: list[bytes]) -> list[bytes]:
        for count in draw(sessions):
            session = b"session%d" % next(number)
            messages = messages + [session] * count
        return messages

    then = grow([])
    now = [then]
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            now.append(now[-1][: draw(st.integers(0, len(now[-1])))])
        now.append(grow(now[-1]))
    return then, now


def runs_of(messages: list[bytes]) -> tuple[tuple[bytes, int], ...]:
    found: list[tuple[bytes, int]] = []
    for sequence, history in enumerate(messages, 1):
        if not found or found[-1][0] != history:
            found.append((history, sequence))
    return tuple(found)


@given(lives(), st.data())
def test_nothing_is_skipped_and_what_is_shared_is_not_read_again(
    life: tuple[list[bytes], list[list[bytes]]], data: st.DataObject
) -> None:
    then, now = life
    read = data.draw(st.integers(0, len(then)))
    position = position_at(facts(len(then) + 1, runs_of(then)), read + 1)
    messages = now[-1]
    made = decide(position, facts(len(messages) + 1, runs_of(messages)), NOTHING, CONTINUE)
    # Slow: compare message by message. A session's messages are told apart by their place in it.
    shared = 0
    while shared < min(read, len(messages)) and then[shared] == messages[shared]:
        shared += 1
    assert made.next_sequence - 1 <= shared, "a message of the stream would be skipped"
    if shared or not read:
        assert made.next_sequence - 1 == shared, "a message would be read twice"
    assert made.must_be_reported == (shared < read)


def test_a_copy_that_is_older_than_all_remembered_runs_is_read_from_its_first_message() -> None:
    sessions = tuple((b"session%d" % number, 10 * number + 1) for number in range(HISTORY_RUNS_KEPT + 2))
    stream = facts(10 * len(sessions) + 1, sessions)
    position = position_at(stream, stream.next_sequence)
    assert len(position.history) == HISTORY_RUNS_KEPT
    older = facts(200, (*sessions[:1], (b"another!", 11)))
    made = decide(position, older, NOTHING, CONTINUE)
    assert (made.action, made.next_sequence) == (Action.TO_FIRST, 1)


# --- the stuck consumer: 1,844 messages delivered and acknowledged, then all of them are gone

BEFORE_LOSS = facts(1845, ((b"history1", 1),))
AT_THE_END = position_at(BEFORE_LOSS, 1845)


def test_all_messages_lost_and_metadata_kept_then_100_new_ones_arrive_at_once() -> None:
    lost = SequenceSet.from_ranges([(1, 1845)])
    stream = replace(facts(1945, ((b"history1", 1), (b"history2", 1845)), first=1845), lost=lost)
    made = decide(AT_THE_END, stream, NOTHING, CONTINUE)
    assert (made.action, made.next_sequence) == (Action.GO_ON, 1845)
    assert "sequences 1 to 1844 are lost (1844 messages), all of them read before" in made.reason
    assert decide(position_at(stream, 1945), stream, lost, CONTINUE) == Decision(Action.GO_ON, 1945)


def test_all_messages_lost_and_metadata_kept_fails_by_policy_naming_them_and_the_remedy() -> None:
    lost = SequenceSet.from_ranges([(1, 1845)])
    stream = facts(1945, ((b"history1", 1), (b"history2", 1845)), first=1845, lost=lost)
    made = decide(AT_THE_END, stream, NOTHING, FAIL, REMEDY)
    assert (made.action, made.next_sequence) == (Action.FAIL, 1845)
    assert "1 to 1844" in made.reason and made.reason.endswith(REMEDY)


def test_metadata_lost_and_stream_made_again_then_100_new_ones_are_delivered_from_the_first() -> None:
    stream = StreamFacts("ORDERS", FOREIGN, 1, 101, ((b"history9", 1),), (), NOTHING)
    made = decide(AT_THE_END, stream, NOTHING, CONTINUE)
    assert (made.action, made.next_sequence) == (Action.FOLLOW, 1)
    assert decide(AT_THE_END, stream, NOTHING, FAIL).action is Action.FAIL


def test_metadata_lost_and_adopted_goes_on_with_the_100_new_ones() -> None:
    stream = StreamFacts("ORDERS", FOREIGN, 1, 1945, ((b"history9", 1),), ((OURS, 1845),), NOTHING)
    made = decide(AT_THE_END, stream, NOTHING, CONTINUE)
    assert (made.action, made.next_sequence) == (Action.FOLLOW, 1845)
    assert "rebuilt" in made.reason


def test_metadata_lost_and_adopted_without_the_newest_blocks_goes_on_where_the_rebuilt_part_ends() -> None:
    stream = StreamFacts("ORDERS", FOREIGN, 1, 1600, ((b"history9", 1),), ((OURS, 1500),), NOTHING)
    made = decide(AT_THE_END, stream, NOTHING, CONTINUE)
    assert (made.action, made.next_sequence) == (Action.FOLLOW, 1500)
    assert "sequences 1500 to 1844" in made.reason


def test_an_older_copy_put_back_moves_the_position_back_to_its_end() -> None:
    made = decide(AT_THE_END, facts(1001, ((b"history1", 1),)), NOTHING, CONTINUE)
    assert (made.action, made.next_sequence) == (Action.TO_END, 1001)
    assert "sequences 1001 to 1844" in made.reason


def test_an_older_copy_put_back_that_has_grown_but_not_to_the_old_position_skips_nothing() -> None:
    made = decide(AT_THE_END, facts(1101, ((b"history1", 1), (b"history2", 1001))), NOTHING, CONTINUE)
    assert (made.action, made.next_sequence) == (Action.TO_END, 1001)


def test_an_older_copy_put_back_that_has_grown_past_the_old_position_is_recognised() -> None:
    grown = facts(2101, ((b"history1", 1), (b"history2", 1001)))
    made = decide(AT_THE_END, grown, NOTHING, CONTINUE)
    assert (made.action, made.next_sequence) == (Action.TO_END, 1001)
    assert "sequences 1001 to 1844" in made.reason and "other messages have their numbers" in made.reason
    assert decide(AT_THE_END, grown, NOTHING, FAIL, REMEDY).action is Action.FAIL


def test_an_empty_store_in_the_place_of_the_old_one_under_its_ids_is_read_from_its_first_message() -> None:
    made = decide(AT_THE_END, facts(101, ((b"history2", 1),)), NOTHING, CONTINUE)
    assert (made.action, made.next_sequence) == (Action.TO_FIRST, 1)


def test_a_purged_head_is_told_to_a_reader_that_had_not_come_there() -> None:
    stream = facts(1845, ((b"history1", 1),), first=1000)
    made = decide(position_at(stream, 500), stream, NOTHING, CONTINUE)
    assert (made.action, made.next_sequence) == (Action.TO_FIRST, 1000)
    assert "sequences 500 to 999 were removed or lost" in made.reason
    assert decide(position_at(stream, 1000), stream, NOTHING, CONTINUE) == Decision(Action.GO_ON, 1000)


def test_a_stream_that_is_gone_is_left_or_fails() -> None:
    left = decide_without_stream(AT_THE_END, "ORDERS", CONTINUE)
    assert (left.action, left.must_be_reported) == (Action.LEAVE, True)
    assert (
        f"was deleted since it was read up to sequence 1844: everything of its incarnation {OURS.hex()}" in left.reason
    )
    assert decide_without_stream(AT_THE_END, "ORDERS", FAIL).action is Action.FAIL


def test_a_reason_is_the_same_when_the_stream_has_only_grown() -> None:
    def reason(end: int, shared: int = 1001) -> str:
        runs = ((b"history1", 1), (b"history2", shared))
        return decide(AT_THE_END, facts(end, runs), NOTHING, CONTINUE).reason

    assert reason(1101) != reason(2101) and says_the_same(reason(1101), reason(2101))
    empty, filled = (decide(AT_THE_END, facts(end, ((b"history2", 1),)), NOTHING, CONTINUE).reason for end in (1, 101))
    assert "it holds no messages" in empty and says_the_same(empty, filled)
    assert not says_the_same(reason(1101), reason(1101, shared=1002))


# --- a stream that keeps no more runs than its messages need


@given(st.data())
def test_runs_before_the_first_message_are_not_missed(data: st.DataObject) -> None:
    """A stream that keeps all runs and one that has cut them send every reader to the same place.

    A stream is written in runs; readers take positions; the stream may be put back to an older copy and grow again;
    its head is removed, and runs go as `Remove` lets them go.
    """
    count = data.draw(st.integers(1, 24))
    cuts = sorted(data.draw(st.sets(st.integers(2, 60), min_size=count - 1, max_size=count - 1)))
    line = tuple((b"old%05d" % n, first) for n, first in enumerate((1, *cuts)))
    end = data.draw(st.integers(line[-1][1] + 1, 70))
    position = position_at(facts(end, line), data.draw(st.integers(1, end)))
    if data.draw(st.booleans()):
        kept = data.draw(st.integers(2, end))
        regrown = sorted(data.draw(st.sets(st.integers(kept + 1, 90), max_size=6)))
        line = tuple(run for run in line if run[1] < kept)
        line += tuple((b"new%05d" % n, first) for n, first in enumerate((kept, *regrown)[: len(regrown)]))
        end = regrown[-1] if regrown else kept
    first = data.draw(st.integers(1, end))
    stream = StreamState(CONFIG, OURS, 0, (), low_watermark=first, next_sequence=end, histories=line)
    cut = runs_needed(stream)
    assert len(cut) <= HISTORY_RUNS_KEPT + sum(run[1] >= first for run in line)
    for place in range(first, end + 1):
        assert position_at(facts(end, cut, first), place) == position_at(facts(end, line, first), place)
    whole, short = (decide(position, facts(end, runs, first), NOTHING, CONTINUE) for runs in (line, cut))
    assert (short.next_sequence, short.must_be_reported) == (whole.next_sequence, whole.must_be_reported)
    if position.next_sequence >= first and whole.action is not Action.TO_END:
        assert short == whole


def test_a_reader_behind_all_runs_that_are_kept_is_told_what_was_removed() -> None:
    """Not that the stream was put back to an older copy: nothing says so."""
    position = Position(OURS, 10, ((b"history1", 1),))
    stream = facts(100, ((b"history3", 60),), first=70)
    found = decide(position, stream, NOTHING, CONTINUE)
    assert (found.action, found.next_sequence) == (Action.TO_FIRST, 70)
    assert (
        found.reason
        == "stream 'ORDERS': sequences 10 to 69 were removed or lost before they were read; it holds 70 to 99"
    )
