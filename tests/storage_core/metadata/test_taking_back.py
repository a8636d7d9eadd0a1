"""Messages that were declared lost and are taken back: shown again under their numbers, and no consumer misses them."""

import numpy as np
import pytest
from harness.metadata_history import INIT, ONE, History, blocks, config, transaction

from storage_core.metadata.commands import (
    Acknowledge,
    AddConsumer,
    AddStream,
    Append,
    ChangeVolumes,
    DeclareLost,
    Deliver,
    DiscardLost,
    FormerVolume,
    MergeBlocks,
    MoveConsumer,
    QueryStart,
    Remove,
    SetAside,
    TakeBack,
)
from storage_core.metadata.consumer_config import ConsumerConfig
from storage_core.metadata.consumer_state import ConsumerState
from storage_core.metadata.invariants import check_state
from storage_core.metadata.machine import Refused, RemoveDone
from storage_core.metadata.manifest import encode_blocks
from storage_core.metadata.state import encode_state
from storage_core.sequences import SequenceSet

VOLUME = INIT.voters[0].volume_id


def some(*sequences: int) -> bytes:
    return SequenceSet.from_sequences(sequences).encode()


@pytest.fixture
def history() -> History:
    """Return a store with a stream of four blocks: 1 to 3, 4 to 6, 7 to 9, 10 to 12."""
    return History(INIT, AddStream(ONE, config(), (VOLUME,)), Append(transaction(1), (blocks(3, 3, 3, 3),)))


def waiting(history: History, name: str = "c") -> dict[int, int]:
    """Return how often each message that waits for a consumer was handed out."""
    rows = history.stream().consumers[name].pending.rows
    return {sequence: int(row["deliveries"]) for row in rows for sequence in range(row["first"], row["end"])}


def consumer(history: History, name: str = "c") -> ConsumerState:
    return history.stream().consumers[name]


def test_what_is_taken_back_is_as_it_was(history: History) -> None:
    before = history.stream()
    ids = before.blocks.rows["block_id"].tobytes()
    history.apply(DeclareLost(ONE, some(4, 5, 6, 8), 40, "no copy is left"))
    assert history.stream().blocks.rows["first"].tolist() == [1, 7, 10]
    assert history.stream().lost_blocks.rows["first"].tolist() == [4, 7]
    assert len(history.state.pending_deletes) == 0, "the file of the block stays: a whole copy may come back"
    check_state(history.state)
    assert history.apply(TakeBack(ONE, some(5, 8, 9, 99), 20)) == RemoveDone(2)
    check_state(history.state)
    assert list(history.stream().lost.ranges()) == [(4, 5), (6, 7)]
    assert history.apply(TakeBack(ONE, some(4, 6), 20)) == RemoveDone(2)
    check_state(history.state)
    after = history.stream()
    assert after.blocks.rows["block_id"].tobytes() == ids
    assert (after.message_count, after.data_size) == (before.message_count, before.data_size)
    assert (after.removed, list(after.lost.ranges()), len(after.lost_blocks)) == (before.removed, [], 0)
    assert history.state.events[-1].after == "2 messages: 4 to 4, 6 to 6"
    encoded = encode_state(history.state)
    assert history.apply(TakeBack(ONE, some(4), 10)) == RemoveDone(0), "once"
    assert encode_state(history.state) == encoded


def test_a_removal_that_passes_over_what_is_lost_lets_its_blocks_go(history: History) -> None:
    history.apply(DeclareLost(ONE, some(1, 2, 3, 5), 40))
    history.apply(Remove(ONE, some(), 30, low_watermark=5, reason="purge"))
    assert history.stream().lost_blocks.rows["first"].tolist() == [4]
    history.apply(Remove(ONE, some(), 30, low_watermark=7, reason="purge"))
    assert len(history.stream().lost_blocks) == 0
    assert len(history.state.pending_deletes) == 2, "each once"
    assert history.apply(TakeBack(ONE, some(1, 5), 20)) == RemoveDone(0)
    check_state(history.state)


def test_a_block_whose_other_messages_are_removed_stays_for_the_lost_one(history: History) -> None:
    history.apply(DeclareLost(ONE, some(5), 10))
    history.apply(Remove(ONE, some(4, 6), 20))
    assert history.stream().blocks.rows["first"].tolist() == [1, 7, 10]
    assert len(history.state.pending_deletes) == 0
    history.apply(TakeBack(ONE, some(5), 10))
    assert list(history.stream().shown().ranges()) == [(1, 4), (5, 6), (7, 13)]
    check_state(history.state)


def test_no_run_of_blocks_is_merged_over_what_may_come_back(history: History) -> None:
    history.apply(DeclareLost(ONE, some(4, 5, 6), 30))
    rows = history.stream().blocks.rows[:2]
    row = rows[:1].copy()
    row["span"], row["row_count"], row["data_size"] = 9, 6, 60
    result = history.apply(MergeBlocks(transaction(9), ONE, rows["block_id"].tobytes(), encode_blocks(row)))
    assert isinstance(result, Refused) and "may come back" in result.reason


def test_a_consumer_that_has_not_come_to_them_gets_them_in_their_place(history: History) -> None:
    history.apply(AddConsumer(ONE, ConsumerConfig(name="c"), 1))
    history.apply(DeclareLost(ONE, some(5, 6), 20))
    assert consumer(history).skipped == 2
    history.apply(TakeBack(ONE, some(5, 6), 20))
    assert (consumer(history).skipped, waiting(history), consumer(history).events[1:]) == (0, {}, ())


def test_a_consumer_that_was_moved_past_them_is_handed_them_next(history: History) -> None:
    history.apply(AddConsumer(ONE, ConsumerConfig(name="c"), 1))
    history.apply(Deliver(ONE, "c", 1, 6, some(1, 2, 3, 4, 5), 900))
    history.apply(Acknowledge(ONE, "c", "ack", some(4)))
    history.apply(DeclareLost(ONE, some(4, 5, 6), 30))
    history.apply(Deliver(ONE, "c", 6, 10, some(7, 8, 9), 900))
    assert consumer(history).skipped == 2
    history.apply(TakeBack(ONE, some(4, 5, 6), 30))
    assert {sequence: count for sequence, count in waiting(history).items() if 4 <= sequence < 7} == {5: 0, 6: 0}
    assert consumer(history).skipped == 0, "4 was acknowledged before"
    event = consumer(history).events[-1]
    assert (event.kind, event.after) == ("taken_back", "5 to 6")
    assert history.state.events[-1] == event


def test_a_query_goes_on_and_its_consumer_says_what_it_has_passed(history: History) -> None:
    history.apply(AddConsumer(ONE, ConsumerConfig(name="c"), 4, QueryStart(4, "startingOffsets=4")))
    history.apply(DeclareLost(ONE, some(4, 5), 20))
    history.apply(MoveConsumer(ONE, "c", 5, 5))
    history.apply(TakeBack(ONE, some(4, 5), 20))
    assert (consumer(history).skipped, waiting(history)) == (1, {}), "5 comes, 4 was passed"
    assert "reset the consumer to 4" in consumer(history).events[-1].reason


def test_a_reset_forgets_what_was_missed_before_its_place(history: History) -> None:
    history.apply(AddConsumer(ONE, ConsumerConfig(name="c"), 1))
    history.apply(DeclareLost(ONE, some(2, 8), 20))
    history.apply(MoveConsumer(ONE, "c", 7, 0))
    history.apply(TakeBack(ONE, some(2, 8), 20))
    assert (waiting(history), consumer(history).skipped) == ({}, 1)


def test_what_is_lost_again_is_told_again(history: History) -> None:
    history.apply(DeclareLost(ONE, some(2), 10))
    history.apply(AddConsumer(ONE, ConsumerConfig(name="c"), 1))
    assert consumer(history).reported
    history.apply(TakeBack(ONE, some(2), 10))
    assert not consumer(history).reported


def test_what_is_discarded_is_waited_for_no_more(history: History) -> None:
    former = FormerVolume(VOLUME, b"K" * 16, "/disk", 40)
    foreign = SetAside(VOLUME, "meta-1", "GONE", b"G" * 16, some(1, 2))
    history.apply(ChangeVolumes(history.state.voters, None, (), (former,), (foreign,)))
    history.apply(DeclareLost(ONE, some(4, 5, 6, 8), 40))
    history.apply(DiscardLost())
    assert (history.state.former, history.state.set_aside, len(history.stream().lost_blocks)) == ((), (), 0)
    deletes = [(bytes(row["incarnation"]), any(bytes(row["block_id"]))) for row in history.state.pending_deletes.rows]
    assert deletes == [(ONE, True), (b"G" * 16, False)], "the block that lost all, and the stream of the other copy"
    assert list(history.stream().lost.ranges()) == [(4, 7), (8, 9)]
    assert [event.kind for event in history.state.events[-3:]] == ["discarded"] * 3
    assert history.apply(TakeBack(ONE, some(4), 10)) == RemoveDone(0)
    check_state(history.state)


@pytest.fixture
def merged(history: History) -> tuple[History, np.ndarray]:
    """Return the stream after its first two blocks were merged, and their rows without holders."""
    rows = history.stream().blocks.rows[:2].copy()
    row = rows[:1].copy()
    row["block_id"], row["span"], row["row_count"], row["data_size"] = np.void(b"m" * 16), 6, 6, 60
    merge = MergeBlocks(transaction(9), ONE, rows["block_id"].tobytes(), encode_blocks(row))
    assert not isinstance(history.apply(merge), Refused)
    rows["holders"] = rows["subject_set"] = 0
    return history, rows


def test_blocks_that_others_were_merged_from_take_their_place(merged: tuple[History, np.ndarray]) -> None:
    history, rows = merged
    before = history.stream()
    assert history.apply(TakeBack(ONE, some(), 0, encode_blocks(rows))) == RemoveDone(0)
    assert history.stream().blocks.rows["first"].tolist() == [1, 4, 7, 10]
    assert [bytes(row) for row in history.state.replaced.rows["block_id"]] == [b"m" * 16], "and they wait no longer"
    assert list(history.stream().shown().ranges()) == list(before.shown().ranges())
    check_state(history.state)


def test_they_are_refused_where_they_lack_what_is_shown(merged: tuple[History, np.ndarray]) -> None:
    history, rows = merged
    encoded = encode_state(history.state)
    result = history.apply(TakeBack(ONE, some(), 0, encode_blocks(rows[:1])))
    assert isinstance(result, Refused) and "3 messages that are shown, from sequence 4 on" in result.reason
    assert encode_state(history.state) == encoded


def test_a_merged_block_that_comes_back_takes_the_place_of_what_came_before_it(
    merged: tuple[History, np.ndarray],
) -> None:
    history, rows = merged
    history.apply(DeclareLost(ONE, some(1, 2, 3, 4, 5, 6), 60))
    history.apply(TakeBack(ONE, some(1, 2, 3), 30, encode_blocks(rows[:1])))
    assert (history.stream().blocks.rows["first"].tolist(), list(history.stream().lost.ranges())) == (
        [1, 7, 10],
        [(4, 7)],
    )
    check_state(history.state)
    assert history.apply(TakeBack(ONE, some(4, 5, 6), 30)) == RemoveDone(3)
    assert history.stream().blocks.rows["span"].tolist() == [6, 3, 3]
    check_state(history.state)
