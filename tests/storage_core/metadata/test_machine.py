"""The metadata state machine: pure, and every command that is refused says why and changes nothing."""

from typing import Any

import msgspec
import pytest
from harness.metadata_history import INIT, ONE, OTHER, VOLUME, History, blocks, config, refusal, transaction
from harness.sequences import expand
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from storage_core import errors
from storage_core.metadata.commands import (
    Abort,
    AddConsumer,
    AddStream,
    Append,
    Command,
    DeclareLost,
    DeleteStream,
    EditStream,
    ForgetTransactions,
    NoOp,
    Remove,
    TakeOver,
    Unlinked,
)
from storage_core.metadata.consumer_config import ConsumerConfig
from storage_core.metadata.machine import AppendDone, Done, Refused, RemoveDone
from storage_core.metadata.shared_map import SharedMap
from storage_core.metadata.state import (
    ABORTED,
    BATCHES_KEPT,
    COMMITTED,
    STREAMING_BATCHES_KEPT,
    BatchResult,
    StreamState,
    WriterState,
)
from storage_core.metadata.subject_sets import SUBJECT_SET_COUNT_MAX
from storage_core.sequences import SequenceSet
from storage_core.store.writing.batch_content import CONTENT


@pytest.fixture
def one() -> History:
    """A store with the stream ORDERS."""
    return History(INIT, AddStream(ONE, config(), (VOLUME,)))


# --- the store


def test_init_makes_the_store_once() -> None:
    history = History(INIT)
    assert (history.state.store_id, history.state.voters, history.state.created_ns) == (b"S" * 16, INIT.voters, 10_001)
    assert refusal(history.apply(INIT)) == (errors.AlreadyExistsError, "the store has been initialised")


def test_a_noop_changes_nothing(one: History) -> None:
    before = one.state
    assert one.apply(NoOp()) == Done()
    assert one.state is before


def test_another_host_takes_over(one: History) -> None:
    one.apply(TakeOver("there", "other host"))
    assert (one.state.lock_domain, one.state.host) == ("there", "other host")
    event = one.state.events[-1]
    assert (event.kind, event.before, event.after) == ("took_over", INIT.host, "other host")


# --- streams


@pytest.mark.parametrize(
    ("name", "why"), [("ORDERS", "exists"), ("Orders", "differs from stream 'ORDERS' only in case")]
)
def test_a_name_is_taken_without_regard_to_case(one: History, name: str, why: str) -> None:
    error, reason = refusal(one.apply(AddStream(OTHER, config(name), (VOLUME,))))
    assert error is errors.AlreadyExistsError
    assert reason == f"stream {name!r} {why}"


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ({}, {"name": "OTHER"}, "a stream cannot be renamed to 'OTHER'"),
        ({}, {"num_replicas": 3}, "num_replicas is 1 and cannot be changed to 3"),
        ({"sealed": True}, {"sealed": False}, "sealed cannot be taken back"),
        ({"deny_delete": True}, {"deny_delete": False}, "deny_delete cannot be taken back"),
        ({"deny_purge": True}, {"deny_purge": False}, "deny_purge cannot be taken back"),
    ],
)
def test_what_cannot_be_edited(before: dict[str, Any], after: dict[str, Any], why: str) -> None:
    history = History(INIT, AddStream(ONE, config(**before), (VOLUME,)))
    error, reason = refusal(history.apply(EditStream(ONE, config(**after))))
    assert error is errors.RequirementError
    assert reason == f"stream 'ORDERS': {why}"


def test_an_edit_keeps_the_messages(one: History) -> None:
    one.apply(Append(transaction(1), (blocks(3),)))
    one.apply(EditStream(ONE, config(description="new", sealed=True)))
    assert (one.stream().config.description, one.stream().message_count) == ("new", 3)


@pytest.mark.parametrize(
    "command",
    [
        EditStream(OTHER, config()),
        DeleteStream(OTHER),
        Append(transaction(1), (blocks(1, incarnation=OTHER),)),
        Append(transaction(1), (blocks(1), blocks(1, incarnation=OTHER))),
        Remove(OTHER, SequenceSet.from_sequences([1]).encode(), 0),
    ],
    ids=["edit", "delete", "append", "append to two", "remove"],
)
def test_another_lifetime_of_a_name_is_refused(one: History, command: Command) -> None:
    assert refusal(one.apply(command))[0] is errors.StaleIncarnationError


def test_a_deleted_stream_goes_to_the_pending_deletes_and_its_name_begins_anew(one: History) -> None:
    one.apply(Append(transaction(1), (blocks(2, 3, seed=0),)))
    one.apply(DeleteStream(ONE))
    assert one.state.streams == {}
    deletes = [(bytes(row["incarnation"]), bytes(row["block_id"])) for row in one.state.pending_deletes.rows]
    assert deletes == [(ONE, bytes(8) + bytes(8)), (ONE, bytes(8) + (1).to_bytes(8, "big")), (ONE, bytes(16))]
    one.apply(AddStream(OTHER, config(), (VOLUME,)))
    assert (one.stream(OTHER).next_sequence, one.stream(OTHER).message_count) == (1, 0)


# --- appends


def test_an_append_numbers_its_blocks(one: History) -> None:
    assert one.apply(Append(transaction(1), (blocks(3, 2),))) == AppendDone({"ORDERS": BatchResult(1, 6, 0)}, False)
    assert one.apply(Append(transaction(2), (blocks(4),))) == AppendDone({"ORDERS": BatchResult(6, 10, 0)}, False)
    rows = one.stream().blocks.rows
    assert rows["first"].tolist() == [1, 4, 6]
    assert rows["committed_ns"].tolist() == [10_003, 10_003, 10_004]
    assert (one.stream().message_count, one.stream().data_size, one.stream().next_sequence) == (9, 90, 10)


def test_an_append_goes_to_all_its_streams_or_to_none(one: History) -> None:
    one.apply(AddStream(OTHER, config("OTHER", sealed=True), (VOLUME,)))
    both = Append(transaction(1), (blocks(1), blocks(1, incarnation=OTHER)))
    assert refusal(one.apply(both)) == (errors.RequirementError, "stream 'OTHER' is sealed")
    assert one.stream().message_count == 0
    assert one.state.outcome(transaction(1)) == 0


def test_duplicates_use_up_sequences_and_are_not_shown(one: History) -> None:
    one.apply(Append(transaction(1), (blocks(2),)))
    result = one.apply(Append(transaction(2), (blocks(4, hidden=[1, 3]),)))
    assert result == AppendDone({"ORDERS": BatchResult(3, 7, 2)}, False)
    assert list(one.stream().shown().ranges()) == [(1, 4), (5, 6)]
    assert (one.stream().message_count, one.stream().data_size) == (4, 40)


def test_overwrite_removes_what_was_there_in_the_same_step(one: History) -> None:
    one.apply(Append(transaction(1), (blocks(3, seed=1),)))
    one.apply(Append(transaction(2), (blocks(2, overwrite=True, seed=2),)))
    stream = one.stream()
    assert (stream.first_sequence, stream.next_sequence, stream.message_count, stream.data_size) == (4, 6, 2, 20)
    assert (len(one.state.pending_deletes), len(one.state.replaced)) == (0, 1)
    assert len(stream.blocks) == 1


def test_what_an_append_takes_the_place_of_goes_in_the_same_step() -> None:
    history = History(INIT, AddStream(ONE, config(max_msgs=3, discard="new"), (VOLUME,)))
    history.apply(Append(transaction(1), (blocks(2, seed=1),)))
    history.apply(AddConsumer(ONE, ConsumerConfig(name="reader"), 1))
    history.apply(Append(transaction(2), (blocks(3, seed=2, superseded=[1, 2, 4], superseded_size=30),)))
    stream = history.stream()
    assert (list(stream.shown().ranges()), stream.message_count, stream.data_size) == ([(3, 4), (5, 6)], 2, 20)
    assert (len(stream.blocks), len(history.state.pending_deletes)) == (1, 1)
    assert stream.consumers["reader"].skipped == 3
    before = history.state
    over = Append(transaction(3), (blocks(3, seed=3, superseded=[3], superseded_size=10),))
    assert refusal(history.apply(over))[0] is errors.LimitExceededError
    assert history.state is before


def test_overwrite_is_a_purge_and_is_denied_as_one() -> None:
    history = History(INIT, AddStream(ONE, config(deny_purge=True), (VOLUME,)))
    error, reason = refusal(history.apply(Append(transaction(1), (blocks(1, overwrite=True),))))
    assert (error, reason) == (errors.RequirementError, "stream 'ORDERS' denies purge, and so overwrite")


def test_histories_are_kept_run_length(one: History) -> None:
    for number in range(4):
        one.history = b"history%d" % (number // 2)
        one.apply(Append(transaction(number), (blocks(2),)))
    one.apply(Append(transaction(9), (blocks(),)))
    assert one.stream().histories == ((b"history0", 1), (b"history1", 5))


def test_subject_sets_are_shared_among_blocks(one: History) -> None:
    one.apply(Append(transaction(1), (blocks(1, 1, 1, subjects=[("a",), ("b",), ("a",)]),)))
    one.apply(Append(transaction(2), (blocks(1, 1, subjects=[("b",), ("a", "c")]),)))
    assert one.stream().subject_sets == (("a",), ("b",), ("a", "c"))
    assert one.stream().blocks.rows["subject_set"].tolist() == [1, 2, 1, 2, 3]


def test_beyond_so_many_subject_sets_blocks_are_not_summarised(one: History) -> None:
    many = [(f"s{number}",) for number in range(SUBJECT_SET_COUNT_MAX + 1)]
    one.apply(Append(transaction(1), (blocks(*[1] * len(many), subjects=many),)))
    assert one.stream().blocks.rows["subject_set"].tolist() == [*range(1, SUBJECT_SET_COUNT_MAX + 1), 0]


# --- transactions


def test_a_transaction_is_decided_once(one: History) -> None:
    one.apply(Append(transaction(1), (blocks(1),)))
    one.apply(Abort(transaction(2)))
    assert [one.state.outcome(transaction(number)) for number in (1, 2, 3)] == [COMMITTED, ABORTED, 0]
    assert refusal(one.apply(Append(transaction(1), (blocks(1),))))[0] is errors.AlreadyExistsError
    assert refusal(one.apply(Append(transaction(2), (blocks(1),))))[0] is errors.TransactionAbortedError
    assert refusal(one.apply(Abort(transaction(1))))[0] is errors.RequirementError
    assert one.apply(Abort(transaction(2))) == Done(), "an abort may be asked for again"
    assert len(one.state.transactions) == 2


def test_old_transactions_are_forgotten_and_refused(one: History) -> None:
    for number, made_ns in enumerate((1_000, 2_000, 3_000)):
        one.apply(Append(transaction(number, made_ns), (blocks(1),)))
    one.apply(ForgetTransactions(2_000))
    assert [one.state.outcome(transaction(0, 1_000)), one.state.outcome(transaction(1, 2_000))] == [0, COMMITTED]
    error, reason = refusal(one.apply(Append(transaction(9, 1_999), (blocks(1),))))
    assert error is errors.TransactionAbortedError
    assert "older than the store remembers" in reason
    assert isinstance(one.apply(Append(transaction(9, 2_000), (blocks(1),))), AppendDone)
    one.apply(ForgetTransactions(1_500))
    assert one.state.transaction_floor_ns == 2_000, "the low_watermark never falls"


# --- writers


def append(number: int, batch: str, query: str = "", run: str = "", size: int = 2) -> Append:
    return Append(transaction(number), (blocks(size, seed=number),), "writer", batch, query, run)


def holding(command: Append, message_count: int) -> Append:
    """Return the append of a batch with these many messages."""
    return msgspec.structs.replace(command, content=CONTENT.pack(message_count, 77 * message_count))


def test_a_writer_stores_each_batch_once(one: History) -> None:
    first = one.apply(append(1, "7"))
    assert one.apply(append(2, "7", size=5)) == AppendDone(first.appended, True)  # type: ignore[union-attr]
    assert one.stream().message_count == 2
    assert one.state.outcome(transaction(2)) == 0


def test_a_rerun_is_told_of_its_batch_although_its_run_is_fenced(one: History) -> None:
    one.apply(append(1, "0", "query", "run 1"))
    one.apply(append(2, "1", "query", "run 2"))
    again = one.apply(append(3, "0", "query", "run 1"))
    assert isinstance(again, AppendDone) and again.already
    error, reason = refusal(one.apply(append(4, "2", "query", "run 1")))
    assert error is errors.FencedError
    assert reason == "run run 1 of writer 'writer' was superseded by run run 2 in stream 'ORDERS'"


def test_a_batch_with_other_content_is_refused_whoever_sends_it(one: History) -> None:
    one.apply(holding(append(1, "7", "query", "run 1"), 2))
    for number, run in enumerate(("run 1", "run 2")):
        error, reason = refusal(one.apply(holding(append(2 + number, "7", "query", run), 5)))
        assert error is errors.FencedError
        assert "batch '7' of writer 'writer' is in stream 'ORDERS' with other content" in reason
        assert "stored are 2 messages, of which this stream has [1, 3), this time it has 5" in reason
    assert one.stream().writers["writer"].run == "run 1"
    assert one.stream().message_count == 2


def test_a_run_that_goes_on_from_a_stored_batch_fences_the_one_before(one: History) -> None:
    one.apply(holding(append(1, "0", "query", "run 1"), 2))
    again = one.apply(holding(append(2, "0", "query", "run 2"), 2))
    assert isinstance(again, AppendDone) and again.already
    assert (one.stream().writers["writer"].run, one.stream().writers["writer"].superseded) == ("run 2", ("run 1",))
    before = one.state
    one.apply(holding(append(3, "0", "query", "run 1"), 2))
    assert one.state is before, "a fenced run is told of its batch, and does not come back by that"
    assert refusal(one.apply(holding(append(4, "1", "query", "run 1"), 2)))[0] is errors.FencedError


def test_other_content_is_taken_as_stored_if_that_was_asked_for_and_nothing_came_after(one: History) -> None:
    one.apply(holding(append(1, "0", "query", "run 1"), 2))
    one.apply(holding(append(2, "1", "query", "run 1"), 2))
    asked = msgspec.structs.replace(holding(append(3, "1", "query", "run 2"), 5), any_content=True)
    done = one.apply(asked)
    assert isinstance(done, AppendDone) and done.already
    assert one.stream().writers["writer"].run == "run 2"
    error, reason = refusal(one.apply(msgspec.structs.replace(asked, batch="0")))
    assert (error, "batches up to 1 came after it" in reason) == (errors.FencedError, True)


def test_a_batch_too_old_to_be_remembered_is_stored_only_if_it_is_empty(one: History) -> None:
    for batch in range(STREAMING_BATCHES_KEPT + 1):
        one.apply(holding(append(batch, str(batch), "query", "run"), 2))
    error, reason = refusal(one.apply(holding(append(99, "0", "query", "run"), 2)))
    assert (error, "messages that are not remembered any more" in reason) == (errors.FencedError, True)
    empty = one.apply(holding(append(99, "0", "query", "run"), 0))
    assert isinstance(empty, AppendDone) and empty.already


def test_another_query_under_the_same_writer_is_refused(one: History) -> None:
    one.apply(append(1, "0", "query one", "run"))
    error, reason = refusal(one.apply(append(2, "0", "query two", "run")))
    assert error is errors.RequirementError
    assert "belongs to query one, this is query two" in reason
    assert "give it another writerId" in reason
    assert "belongs to query one, this is a batch job" in refusal(one.apply(append(3, "0")))[1]


def test_old_batches_of_a_streaming_writer_are_known_to_be_old(one: History) -> None:
    count = STREAMING_BATCHES_KEPT + 4
    for batch in range(count):
        one.apply(append(batch, str(batch), "query", "run"))
    assert len(one.stream().writers["writer"].batches) == STREAMING_BATCHES_KEPT
    oldest = one.apply(append(99, "0", "query", "run"))
    assert oldest == AppendDone({"ORDERS": BatchResult(0, 0, 0)}, True)
    newest = one.apply(append(99, str(count - 1), "query", "run"))
    assert newest == AppendDone({"ORDERS": BatchResult(2 * count - 1, 2 * count + 1, 0)}, True)


def test_batches_of_a_batch_writer_are_remembered_while_their_messages_are_there(one: History) -> None:
    count = 3 * STREAMING_BATCHES_KEPT
    for batch in range(count):
        one.apply(append(batch, f"day {batch}"))
    writer = one.stream().writers["writer"]
    assert [writer.find(f"day {batch}") for batch in range(count)] == [
        BatchResult(2 * batch + 1, 2 * batch + 3, 0) for batch in range(count)
    ]
    assert one.apply(append(count, "day 0")) == AppendDone({"ORDERS": BatchResult(1, 3, 0)}, True)


def test_batches_that_are_gone_are_remembered_up_to_a_bound() -> None:
    """Some messages stay, the others are removed at once: what is kept follows what is live, not what ever came."""
    count, live, largest = 5 * BATCHES_KEPT, 100, 0
    writer = WriterState("", "", (), SharedMap())
    for batch in range(count):
        writer = writer.with_batch(f"day {batch}", BatchResult(2 * batch, 2 * batch + 2, 0), 2 * (batch - live))
        largest = max(largest, len(writer.batches))
    assert largest <= 2 * (BATCHES_KEPT + live)
    assert all(writer.find(f"day {batch}") is not None for batch in range(count - BATCHES_KEPT, count))
    assert writer.find("day 0") is None


def test_an_old_batch_stays_while_one_message_of_it_is_there() -> None:
    count = 3 * BATCHES_KEPT
    writer = WriterState("", "", (), SharedMap())
    for batch in range(count):
        writer = writer.with_batch(f"day {batch}", BatchResult(2 * batch, 2 * batch + 2, 0), 2 * 50 + 1)
    assert [batch for batch in range(count) if writer.find(f"day {batch}") is None] == list(range(50))


# --- removal


def remove(*sequences: int, data_size: int = 0, low_watermark: int = 0, reason: str = "delete") -> Remove:
    return Remove(ONE, SequenceSet.from_sequences(sequences).encode(), data_size, low_watermark, reason)


def test_messages_are_removed_once(one: History) -> None:
    one.apply(Append(transaction(1), (blocks(5),)))
    assert one.apply(remove(2, 4, data_size=20)) == RemoveDone(2)
    assert one.apply(remove(2, 4, 5, data_size=10)) == RemoveDone(1)
    assert one.apply(remove(2, 77, 0)) == RemoveDone(0)
    assert (one.stream().message_count, one.stream().data_size) == (2, 20)
    assert list(one.stream().shown().ranges()) == [(1, 2), (3, 4)]


def test_a_block_with_nothing_left_is_buried(one: History) -> None:
    one.apply(Append(transaction(1), (blocks(2, 2, 2),)))
    one.apply(remove(3, 4, data_size=20))
    assert one.stream().blocks.rows["first"].tolist() == [1, 5]
    assert one.state.pending_deletes.rows["dropped_ns"].tolist() == [one.time_ns]


def test_a_floor_hides_everything_below(one: History) -> None:
    one.apply(Append(transaction(1), (blocks(2, 2, 2),)))
    one.apply(remove(4, data_size=10))
    assert one.apply(remove(low_watermark=4, data_size=30, reason="purge")) == RemoveDone(3)
    assert (one.stream().low_watermark, one.stream().first_sequence, one.stream().message_count) == (4, 5, 2)
    one.apply(remove(low_watermark=2))
    assert one.stream().low_watermark == 4, "a low_watermark never falls"
    one.apply(remove(low_watermark=1_000, data_size=20, reason="purge"))
    assert (one.stream().low_watermark, one.stream().next_sequence) == (7, 7), "nor rises above what was stored"
    assert len(one.stream().blocks) == 0


def test_a_block_that_a_floor_and_a_removal_empty_together_is_buried(one: History) -> None:
    one.apply(Append(transaction(1), (blocks(2),)))
    one.apply(remove(1, 2, low_watermark=2, data_size=20))
    assert len(one.stream().blocks) == 0


@pytest.mark.parametrize(
    ("keys", "reason", "why"),
    [
        ({"sealed": True}, "delete", "is sealed"),
        ({"sealed": True}, "purge", "is sealed"),
        ({"deny_delete": True}, "delete", "has deny_delete set"),
        ({"deny_purge": True}, "purge", "has deny_purge set"),
    ],
)
def test_removal_that_is_denied(keys: dict[str, Any], reason: str, why: str) -> None:
    history = History(INIT, AddStream(ONE, config(**keys), (VOLUME,)))
    assert refusal(history.apply(remove(1, reason=reason))) == (
        errors.RequirementError,
        f"stream 'ORDERS' {why}: nothing may be removed from it",
    )


@pytest.mark.parametrize(("keys", "reason"), [({"deny_delete": True}, "purge"), ({"deny_purge": True}, "delete")])
def test_each_denial_is_about_its_own_kind_of_removal(keys: dict[str, Any], reason: str) -> None:
    history = History(INIT, AddStream(ONE, config(**keys), (VOLUME,)))
    assert history.apply(remove(1, reason=reason)) == RemoveDone(0)


def test_unlinked_blocks_are_forgotten_one_by_one(one: History) -> None:
    one.apply(Append(transaction(1), (blocks(1, 1, 1),)))
    one.apply(remove(1, 2, 3, data_size=30))
    first, second, third = (
        bytes(row["incarnation"]) + bytes(row["block_id"]) for row in one.state.pending_deletes.rows
    )
    one.apply(Unlinked((second, OTHER + second[16:])))
    assert [bytes(row["block_id"]) for row in one.state.pending_deletes.rows] == [first[16:], third[16:]]
    one.apply(Unlinked(()))
    assert len(one.state.pending_deletes) == 2


def test_tables_that_readers_hold_are_not_changed(one: History) -> None:
    """Plans are made from an old state while commands go on."""
    one.apply(Append(transaction(0), (blocks(2, 2),)))
    held = one.stream()
    rows, before = held.blocks.rows, held.blocks.encode()
    for number in range(1, 40):
        one.apply(Append(transaction(number), (blocks(3, seed=number),)))
        one.apply(remove(number, data_size=10))
    one.apply(DeleteStream(ONE))
    assert rows.tobytes() == before
    assert held.blocks.encode() == before


# --- against a model


class Model(RuleBasedStateMachine):
    """Streams as dicts from sequence to message bytes; everything that the state counts is counted again."""

    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.history = History(INIT)
        self.live: dict[str, dict[int, int]] = {}
        self.next: dict[str, int] = {}
        self.low_watermark: dict[str, int] = {}
        self.lost: dict[str, set[int]] = {}
        self.incarnations: dict[str, bytes] = {}
        self.born_empty: set[tuple[bytes, int]] = set()
        self.count = 0

    def number(self) -> int:
        self.count += 1
        return self.count

    @rule(target=names, name=st.sampled_from(["A", "B", "c"]))
    def add(self, name: str) -> str:
        incarnation = self.number().to_bytes(16, "big")
        result = self.history.apply(AddStream(incarnation, config(name), (VOLUME,)))
        assert isinstance(result, Refused) == (name in self.live)
        if name not in self.live:
            self.live[name], self.next[name], self.low_watermark[name] = {}, 1, 1
            self.lost[name] = set()
            self.incarnations[name] = incarnation
        return name

    @rule(
        chosen=st.sets(st.sampled_from(["A", "B", "c"]), min_size=1),
        spans=st.lists(st.integers(1, 5), min_size=1, max_size=4),
        size=st.integers(0, 9),
        overwrite=st.booleans(),
        data=st.data(),
    )
    def append(self, chosen: set[str], spans: list[int], size: int, overwrite: bool, data: st.DataObject) -> None:
        targets = sorted(chosen & self.live.keys())
        if not targets:
            return
        total = sum(spans)
        hidden = data.draw(st.sets(st.integers(0, total - 1)))
        begins = {sum(spans[:at]) for at in range(len(spans))}  # a block has a row
        holes = data.draw(st.sets(st.integers(0, total - 1))) - hidden - begins
        self.history.history = data.draw(st.sampled_from([b"history1", b"history2"]))
        number = self.number()
        parts = tuple(
            blocks(
                *spans,
                incarnation=self.incarnations[name],
                size=size,
                hidden=sorted(hidden),
                holes=sorted(holes),
                overwrite=overwrite,
            )
            for name in targets
        )
        result = self.history.apply(Append(transaction(number), parts))
        assert isinstance(result, AppendDone)
        for name in targets:
            first = self.next[name]
            assert result.appended[name] == BatchResult(first, first + total, len(hidden))
            if overwrite:
                self.live[name], self.low_watermark[name] = {}, first
            shown = set(range(total)) - hidden - holes
            for at, span in enumerate(spans):
                begin = sum(spans[:at])
                if not shown & set(range(begin, begin + span)):
                    self.born_empty.add((self.incarnations[name], first + begin))
            self.live[name] |= {first + relative: size for relative in shown}
            self.next[name] = first + total

    @rule(name=names, data=st.data())
    def remove(self, name: str, data: st.DataObject) -> None:
        if name not in self.live:
            return
        live, end = self.live[name], self.next[name]
        sequences = data.draw(st.sets(st.integers(0, end + 2), max_size=12))
        low_watermark = data.draw(st.one_of(st.just(0), st.integers(1, end + 2)))
        gone = {one for one in live if one in sequences or one < low_watermark}
        removed = Remove(
            self.incarnations[name], SequenceSet.from_sequences(sorted(sequences)).encode(),
            sum(live[one] for one in gone), low_watermark, data.draw(st.sampled_from(["delete", "purge"])),
        )  # fmt: skip
        assert self.history.apply(removed) == RemoveDone(len(gone))
        self.live[name] = {one: size for one, size in live.items() if one not in gone}
        self.low_watermark[name] = max(self.low_watermark[name], min(low_watermark, end))

    @rule(name=names, data=st.data())
    def lose(self, name: str, data: st.DataObject) -> None:
        if name not in self.live:
            return
        live, end = self.live[name], self.next[name]
        sequences = data.draw(st.sets(st.integers(0, end + 2), max_size=12))
        gone = sequences & live.keys()
        lost = DeclareLost(
            self.incarnations[name],
            SequenceSet.from_sequences(sorted(sequences)).encode(),
            sum(live[one] for one in gone),
        )
        assert self.history.apply(lost) == RemoveDone(len(gone))
        self.live[name] = {one: size for one, size in live.items() if one not in gone}
        self.lost[name] |= gone

    @rule(name=names)
    def delete(self, name: str) -> None:
        result = self.history.apply(DeleteStream(self.incarnations[name]))
        assert isinstance(result, Refused) == (name not in self.live)
        self.live.pop(name, None)

    @precondition(lambda self: len(self.history.state.pending_deletes) > 0)
    @rule(data=st.data())
    def unlinked(self, data: st.DataObject) -> None:
        deletes = self.history.state.pending_deletes.rows
        chosen = data.draw(st.sets(st.integers(0, len(deletes) - 1)))
        keys = tuple(bytes(deletes[at]["incarnation"]) + bytes(deletes[at]["block_id"]) for at in sorted(chosen))
        self.history.apply(Unlinked(keys))
        assert len(self.history.state.pending_deletes) == len(deletes) - len(chosen)

    @invariant()
    def everything_counts_the_same(self) -> None:
        state = self.history.state
        assert sorted(one.name for one in state.streams.values()) == sorted(self.live)
        for name, live in self.live.items():
            stream = state.stream(name)
            assert stream is not None
            assert stream.message_count == len(live)
            assert stream.data_size == sum(live.values())
            assert stream.next_sequence == self.next[name]
            assert stream.low_watermark == self.low_watermark[name]
            assert set(expand(stream.shown())) == set(live)
            assert set(expand(stream.lost)) == {one for one in self.lost[name] if one >= stream.low_watermark}
            assert not stream.removed.absent_among(stream.lost)
            if live:
                assert stream.first_sequence <= min(live)
            self.check_blocks(stream, live)

    def check_blocks(self, stream: StreamState, live: dict[int, int]) -> None:
        rows = stream.blocks.rows
        ends = rows["first"] + rows["span"]
        assert (ends > stream.low_watermark).all(), "a block with nothing above the low watermark is dropped"
        assert (rows["first"][1:] >= ends[:-1]).all(), "sorted and disjoint"
        held = {one for first, end in zip(rows["first"], ends, strict=True) for one in range(first, end)}
        assert held >= set(live), "every message that is shown lies in a block"
        for first, end in zip(rows["first"], ends, strict=True):
            shows = any(one in live for one in range(first, end))
            # One that came with nothing to show, only duplicates, goes with the next removal.
            assert shows or (stream.incarnation, int(first)) in self.born_empty, (
                "a block with nothing to show is dropped"
            )
        assert [first for _, first in stream.histories] == sorted({first for _, first in stream.histories})


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=120, stateful_step_count=25, deadline=None)
