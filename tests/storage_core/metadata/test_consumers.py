"""Commands about durable consumers: against a dict that says of each message what is known, and the refusals."""

from dataclasses import replace
from typing import Any

import pytest
from harness.metadata_history import INIT, ONE, OTHER, VOLUME, History, blocks, config, refusal, transaction
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from storage_core import errors
from storage_core.metadata.commands import (
    Acknowledge,
    AddConsumer,
    AddStream,
    AdvanceConsumers,
    Append,
    Command,
    ConsumerAdvance,
    DeclareLost,
    DeleteConsumer,
    DeleteStream,
    Deliver,
    Event,
    MoveConsumer,
    PauseConsumer,
    PrepareStreams,
    QueryStart,
    RecordConsumerEvents,
    RestoreStreams,
    TakeConsumer,
)
from storage_core.metadata.consumer_config import ConsumerConfig
from storage_core.metadata.consumer_state import CONSUMER_EVENTS_KEPT, ConsumerState
from storage_core.metadata.machine import ConsumerDone
from storage_core.metadata.state import encode_stream
from storage_core.sequences import SequenceSet

NAME = "reader"


def made(count: int = 20, **keys: Any) -> History:
    """Return a store with one stream of so many messages, and a consumer at its beginning."""
    added = AddConsumer(ONE, ConsumerConfig(name=NAME, **keys), 1)
    return History(INIT, AddStream(ONE, config(), (VOLUME,)), Append(transaction(1), (blocks(count),)), added)


def consumer(history: History) -> ConsumerState:
    return history.stream().consumers[NAME]


def deliver(first: int, end: int, *sequences: int, deadline_ns: int = 50, dropped: tuple[int, ...] = ()) -> Deliver:
    chosen = SequenceSet.from_sequences(sequences or range(first, end))
    gone = SequenceSet.from_sequences(dropped).encode() if dropped else b""
    return Deliver(ONE, NAME, first, end, chosen.encode(), deadline_ns, gone)


def advance(to: int, generation: int = 0, incarnation: bytes = ONE) -> AdvanceConsumers:
    return AdvanceConsumers((ConsumerAdvance(incarnation, NAME, to, generation),))


def acknowledge(kind: str, *sequences: int, deadline_ns: int = 0) -> Acknowledge:
    return Acknowledge(ONE, NAME, kind, SequenceSet.from_sequences(sequences).encode(), deadline_ns)


def waiting(history: History) -> dict[int, tuple[int, int]]:
    """Return (deadline, deliveries) of each message that waits."""
    return {
        sequence: (int(row["deadline_ns"]), int(row["deliveries"]))
        for row in consumer(history).pending.rows
        for sequence in range(int(row["first"]), int(row["end"]))
    }


# --- one step each


def test_what_was_handed_out_together_is_one_row() -> None:
    history = made()
    assert history.apply(deliver(1, 6)) == ConsumerDone(5)
    assert history.apply(deliver(6, 11)) == ConsumerDone(5)
    assert len(consumer(history).pending) == 1
    history.apply(deliver(11, 16, deadline_ns=60))
    assert len(consumer(history).pending) == 2
    assert (consumer(history).next_sequence, consumer(history).history) == (16, ((b"history1", 1),))


def test_acknowledging_a_hundred_thousand_messages_leaves_one_row_or_two() -> None:
    history = made(100_000, max_ack_pending=100_000)
    history.apply(deliver(1, 100_001))
    assert history.apply(acknowledge("ack", *range(10_000, 60_000))) == ConsumerDone(50_000)
    assert len(consumer(history).pending) == 2
    assert history.apply(acknowledge("ack", *range(1, 100_001))) == ConsumerDone(50_000)
    assert len(consumer(history).pending) == 0


def test_with_ack_policy_all_everything_below_is_acknowledged_too() -> None:
    history = made(ack_policy="all")
    history.apply(deliver(1, 11))
    assert history.apply(acknowledge("ack", 7)) == ConsumerDone(7)
    assert set(waiting(history)) == {8, 9, 10}


def test_with_ack_policy_none_nothing_waits() -> None:
    history = made(ack_policy="none")
    assert history.apply(deliver(1, 11)) == ConsumerDone(10)
    assert waiting(history) == {}


def test_a_consumer_is_told_of_losses_from_its_beginning_on_and_when_it_moves() -> None:
    history = made()
    lost = SequenceSet.from_ranges([(3, 6)])
    history.apply(DeclareLost(ONE, lost.encode(), 30, "disk"))
    assert not consumer(history).reported
    history.apply(AddConsumer(ONE, ConsumerConfig(name="later"), 1))
    assert history.stream().consumers["later"].reported == lost
    history.apply(MoveConsumer(ONE, NAME, 1, 0))
    assert consumer(history).reported == lost


def test_moving_back_keeps_what_waits_below() -> None:
    history = made()
    history.apply(deliver(1, 16))
    history.apply(MoveConsumer(ONE, NAME, 11, 11, (Event("consumer_reconciled", "ORDERS", NAME, reason="why"),)))
    assert consumer(history).next_sequence == 11
    assert set(waiting(history)) == set(range(1, 11))
    assert [(one.kind, one.time_ns) for one in consumer(history).events] == [("consumer_reconciled", history.time_ns)]
    assert history.state.events[-1] == consumer(history).events[-1]


def test_a_query_moves_its_consumer_up_and_never_back() -> None:
    history = made()
    history.apply(deliver(1, 6))
    history.apply(advance(4))
    assert (consumer(history).next_sequence, set(waiting(history))) == (6, {4, 5})
    history.apply(advance(11))
    assert (consumer(history).next_sequence, waiting(history)) == (11, {})
    assert consumer(history).history == ((b"history1", 1),)
    history.apply(advance(8))
    assert consumer(history).next_sequence == 11


def test_a_query_moves_its_consumers_of_all_streams_or_none() -> None:
    history = made()
    history.apply(AddStream(OTHER, config("OTHER"), (VOLUME,)))
    history.apply(AddConsumer(OTHER, ConsumerConfig(name=NAME), 1))
    parts = (*advance(11).advances, *advance(2, incarnation=OTHER).advances)
    assert refusal(history.apply(AdvanceConsumers(parts)))[0] is errors.RequirementError
    assert consumer(history).next_sequence == 1
    history.apply(Append(transaction(2), (blocks(5, incarnation=OTHER),)))
    history.apply(AdvanceConsumers(parts))
    assert (consumer(history).next_sequence, history.stream(OTHER).consumers[NAME].next_sequence) == (11, 2)


def test_the_generation_of_an_owner_fences_the_one_before() -> None:
    history = made()
    taken = Event("consumer_taken_over", "ORDERS", NAME, "", "process 1", "process 2", "why")
    history.apply(TakeConsumer(ONE, NAME, 1, (taken,)))
    assert (consumer(history).generation, consumer(history).events[-1].after) == (1, "process 2")
    assert refusal(history.apply(advance(5)))[0] is errors.FencedError
    history.apply(advance(5, 1))
    history.apply(advance(7, -1))  # on behalf of whoever owns it
    assert consumer(history).next_sequence == 7
    assert refusal(history.apply(TakeConsumer(ONE, NAME, 1)))[0] is errors.RequirementError


def test_where_a_query_began_is_kept_until_another_one_begins() -> None:
    history = made()
    assert consumer(history).query_start == QueryStart(0, "")
    history.apply(MoveConsumer(ONE, NAME, 5, 0, (), QueryStart(5, "startingOffsets=latest")))
    history.apply(MoveConsumer(ONE, NAME, 7, 0))
    assert consumer(history).query_start == QueryStart(5, "startingOffsets=latest")
    history.apply(AddConsumer(ONE, ConsumerConfig(name="etl"), 3, QueryStart(3)))
    assert history.stream().consumers["etl"].query_start == QueryStart(3, "")


def test_events_of_a_consumer_are_bounded() -> None:
    history = made()
    for number in range(CONSUMER_EVENTS_KEPT + 3):
        history.apply(RecordConsumerEvents(ONE, NAME, (Event("consumer_failed", "ORDERS", NAME, reason=str(number)),)))
    assert [one.reason for one in consumer(history).events] == [str(3 + at) for at in range(CONSUMER_EVENTS_KEPT)]


def test_pausing_and_deleting() -> None:
    history = made()
    history.apply(PauseConsumer(ONE, NAME, 77))
    assert consumer(history).paused_until_ns == 77
    history.apply(PauseConsumer(ONE, NAME, 0))
    assert consumer(history).paused_until_ns == 0
    history.apply(DeleteConsumer(ONE, NAME))
    assert history.stream().consumers == {}


def test_consumers_go_with_their_stream() -> None:
    history = made()
    history.apply(DeleteStream(ONE))
    assert refusal(history.apply(deliver(1, 5)))[0] is errors.StaleIncarnationError


def test_consumers_of_a_restored_stream_stand_where_they_stood() -> None:
    history = made()
    history.apply(deliver(1, 6))
    copy = replace(history.stream(), incarnation=b"N" * 16)
    history.apply(DeleteStream(ONE))
    history.apply(PrepareStreams((b"N" * 16,), 10**9))
    history.history = b"history2"
    history.apply(RestoreStreams((encode_stream(copy),)))
    found = history.stream(b"N" * 16).consumers[NAME]
    assert (found.incarnation, found.next_sequence, found.history) == (b"N" * 16, 6, ((b"history2", 1),))
    assert list(found.outstanding().ranges()) == [(1, 6)]


@pytest.mark.parametrize(
    ("command", "error", "why"),
    [
        (AddConsumer(ONE, ConsumerConfig(name=NAME), 1), errors.AlreadyExistsError, "consumer 'reader' .* exists"),
        (AddConsumer(ONE, ConsumerConfig(name="Reader"), 1), errors.AlreadyExistsError, "only in case"),
        (AddConsumer(ONE, ConsumerConfig(name="x"), 22), errors.RequirementError, "22 is not 1 to 21"),
        (DeleteConsumer(ONE, "Reader"), errors.NotFoundError, "no consumer 'Reader'"),
        (deliver(2, 4), errors.RequirementError, "has moved in the meantime"),
        (deliver(1, 30), errors.RequirementError, "30 is not 1 to 21"),
        (deliver(1, 3, 5), errors.RequirementError, "handed out before"),
        (deliver(1, 12), errors.RequirementError, "11 messages would wait .* max_ack_pending is 10"),
        (MoveConsumer(ONE, NAME, 0, 0), errors.RequirementError, "0 is not 1 to 21"),
        (MoveConsumer(ONE, NAME, 22, 0), errors.RequirementError, "22 is not 1 to 21"),
        (advance(22), errors.RequirementError, "22 is not 1 to 21"),
        (advance(0), errors.RequirementError, "0 is not 1 to 21"),
        (advance(5, 1), errors.FencedError, "its generation is 0, this is 1"),
        (advance(5, incarnation=OTHER), errors.StaleIncarnationError, "deleted, or deleted and made again"),
        (AdvanceConsumers((ConsumerAdvance(ONE, "x", 5),)), errors.NotFoundError, "no consumer 'x'"),
        (TakeConsumer(ONE, NAME, 2), errors.RequirementError, "generation 0, the next one is not 2"),
        (TakeConsumer(ONE, "x", 1), errors.NotFoundError, "no consumer 'x'"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_is_refused(command: Command, error: type[errors.StorageError], why: str) -> None:
    found, reason = refusal(made(max_ack_pending=10).apply(command))
    assert found is error
    with pytest.raises(error, match=why):
        raise error(reason)


# --- any number of steps, against a dict


class ConsumerMachine(RuleBasedStateMachine):
    """`model` says of each message that waits when it is due and how often it was handed out."""

    @initialize(policy=st.sampled_from(["explicit", "all"]))
    def start(self, policy: str) -> None:
        self.policy, self.history = policy, made(60, ack_policy=policy, max_ack_pending=25)
        self.model: dict[int, tuple[int, int]] = {}
        self.next = 1

    @rule(count=st.integers(0, 8), holes=st.integers(0, 3), again=st.sets(st.integers(1, 60)), at=st.integers(0, 5))
    def fetch(self, count: int, holes: int, again: set[int], at: int) -> None:
        redelivered = set(sorted(again & set(self.model))[:5])
        dropped = set(sorted((again & set(self.model)) - redelivered)[:1])
        room = 25 - len(self.model)
        end = min(61, self.next + holes + min(count, room))
        new = set(range(self.next + holes, end))
        self.history.apply(
            Deliver(
                ONE,
                NAME,
                self.next,
                max(self.next, end),
                SequenceSet.from_sequences(redelivered | new).encode(),
                at,
                SequenceSet.from_sequences(dropped).encode(),
            )  # fmt: skip
        )
        for one in redelivered:
            self.model[one] = (at, self.model[one][1] + 1)
        for one in new:
            self.model[one] = (at, 1)
        for one in dropped:
            del self.model[one]
        self.next = max(self.next, end)

    @rule(
        kind=st.sampled_from(["ack", "nak", "term"]),
        chosen=st.sets(st.integers(1, 60), min_size=1),
        at=st.integers(0, 5),
    )
    def settle(self, kind: str, chosen: set[int], at: int) -> None:
        result = self.history.apply(acknowledge(kind, *chosen, deadline_ns=at))
        if kind == "ack" and self.policy == "all":
            chosen = set(range(1, max(chosen) + 1))
        meant = chosen & set(self.model)
        assert result == ConsumerDone(len(meant))
        for one in meant:
            if kind == "nak":
                self.model[one] = (at, self.model[one][1])
            else:
                del self.model[one]

    @rule(to=st.integers(1, 61), keep=st.booleans())
    def move(self, to: int, keep: bool) -> None:
        self.history.apply(MoveConsumer(ONE, NAME, to, to if keep else 0))
        self.model = {one: value for one, value in self.model.items() if keep and one < to}
        self.next = to

    @rule(to=st.integers(1, 61), former=st.booleans())
    def advance(self, to: int, former: bool) -> None:
        generation = consumer(self.history).generation
        result = self.history.apply(advance(to, generation - 1 if former and generation else generation))
        if former and generation:
            assert refusal(result)[0] is errors.FencedError
            return
        self.model = {one: value for one, value in self.model.items() if one >= to}
        self.next = max(self.next, to)

    @rule()
    def take_over(self) -> None:
        self.history.apply(TakeConsumer(ONE, NAME, consumer(self.history).generation + 1))

    @invariant()
    def it_is_what_the_model_says(self) -> None:
        found = consumer(self.history)
        assert waiting(self.history) == self.model
        assert found.next_sequence == self.next
        rows = found.pending.rows
        assert (rows["first"] < rows["end"]).all() and (rows["first"][1:] >= rows["end"][:-1]).all()


ConsumerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestConsumers = ConsumerMachine.TestCase
