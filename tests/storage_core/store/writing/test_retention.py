"""Retention by interest and work queues: what goes with which acknowledgement, and what nobody has missed."""

import random
from typing import Any

import pytest
from harness.processes import SECOND_NS, Machine
from mutants.store.retention_mutants import MUTANTS, made

from storage_core.errors import RequirementError, StorageError
from storage_core.metadata.commands import Remove
from storage_core.metadata.state import encode_state
from storage_core.sequences import SequenceSet
from storage_core.store.consumers.query import QueryReader, QueryStart, onward
from storage_core.store.stream import Stream
from storage_core.store.writing import retention as store_retention

STEPS = 60
HOUR_NS = 3_600 * SECOND_NS


def stream_of(machine: Machine, **config: Any) -> Stream:
    return machine.create().add_stream({"name": "S", "subjects": ["s.>"], "max_age": "100h", **config})


def put(stream: Stream, *subjects: str) -> None:
    stream.append([{"subject": f"s.{one}", "data": b"x"} for one in subjects])


def left(stream: Stream) -> list[int]:
    sequences: list[int] = stream.read(columns=["sequence"]).read_all().column("sequence").to_pylist()
    return sequences


def test_what_an_edit_would_remove_is_said_before_it_does() -> None:
    stream = stream_of(Machine(9), retention="limits")
    store, edit = stream._store, {"name": "S", "retention": "interest", "max_msgs": 3}
    stream.add_consumer({"name": "all"})
    stream.add_consumer({"name": "b", "filter_subject": "s.b"})
    put(stream, "a", "b", "a", "a", "b", "a", "a")
    stream.consumer("all").fetch(4, 0)
    stream.consumer("all").ack([1, 2, 3])
    over = stream.excess(edit)
    assert over is not None
    assert (over.done_count, over.done_size, over.message_count, over.low_watermark) == (2, 8, 2, 5)
    before = stream.state()
    store.edit_stream(edit)
    after = stream.state()
    assert left(stream) == [5, 6, 7]
    assert before.message_count - after.message_count == over.done_count + over.message_count
    assert before.data_size - after.data_size == over.done_size + over.data_size
    assert stream.excess({"name": "S", "retention": "interest"}) is None


def lived(seed: int, kind: str) -> None:
    """Append, fetch and settle at random, in two processes whose clocks differ; compare with two plain sets."""
    choose, machine = random.Random(seed), Machine(seed, 3)
    stream = stream_of(machine, retention=kind)
    filters = {"a": ["s.a"], "b": ["s.b"]} if kind == "workqueue" else {"a": ["s.a"], "all": []}
    for name, one in filters.items():
        stream.add_consumer({"name": name, "filter_subjects": one, "ack_wait": "9h"})
    other = Machine(seed + 1, 3)
    other.disk, other.clock.now = machine.disk, machine.clock.now + 2 * HOUR_NS
    there = other.open().stream("S")
    subjects: dict[int, str] = {}
    needs: dict[str, set[int]] = {name: set() for name in filters}
    handed: dict[str, set[int]] = {name: set() for name in filters}
    for step in range(STEPS):
        here = choose.choice((stream, there))
        name = choose.choice(sorted(filters))
        what = choose.choice(("put", "fetch", "ack", "ack", "nak"))
        if what == "put":
            new = choose.choices("abc", k=choose.randint(1, 4))
            first = here.state().next_sequence
            put(here, *new)
            for sequence, subject in enumerate(new, first):
                subjects[sequence] = subject
                for wanting in filters:
                    if wanting in ("all", subject):
                        needs[wanting].add(sequence)
        elif what == "fetch":
            got = here.consumer(name).fetch(choose.randint(1, 4), 0).column("sequence").to_pylist()
            handed[name] |= set(got)
        elif handed[name]:
            some = set(choose.sample(sorted(handed[name]), choose.randint(1, len(handed[name]))))
            handed[name] -= some
            if what == "ack":
                here.consumer(name).ack(sorted(some))
                needs[name] -= some
            else:
                here.consumer(name).nak(sorted(some))
        waiting = set().union(*needs.values())
        nobodys = {one for one, subject in subjects.items() if subject == "c"} if kind == "workqueue" else set()
        assert left(here) == sorted(waiting | nobodys), (seed, step, what)
        assert here.state().data_size == 4 * len(waiting | nobodys)
    stream._store.maintain()
    assert left(stream) == sorted(waiting | nobodys), seed
    one, two = machine.open().view().state, other.open().view().state
    assert encode_state(one) == encode_state(two), "two processes apply the same entries to another state"
    for name in filters:
        info = stream.consumer(name).info()
        assert (info["num_skipped"], info["events"]) == (0, []), "what was acknowledged is told as missed"


@pytest.mark.parametrize("kind", ["workqueue", "interest"])
@pytest.mark.parametrize("seed", range(4))
def test_a_message_stays_until_everybody_has_acknowledged_it(seed: int, kind: str) -> None:
    lived(seed, kind)


def lived_all() -> None:
    for seed in range(4):
        for kind in ("interest", "workqueue"):
            lived(seed, kind)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_planted_mistakes_are_noticed(mutant: str) -> None:
    with made(mutant), pytest.raises((AssertionError, StorageError)):
        lived_all()


@pytest.mark.buckets
def test_nothing_that_a_consumer_needs_goes_whoever_asks() -> None:
    machine = Machine(1)
    stream = stream_of(machine, retention="interest")
    consumer = stream.add_consumer({"name": "c"})
    put(stream, "a", "a")
    consumer.ack(consumer.fetch(1, 0).column("sequence"))
    wrong = Remove(stream.incarnation, SequenceSet.from_sequences([2]).encode(), 4, reason="retention")
    with machine.open().session() as session, pytest.raises(RequirementError):
        session.propose(wrong)
    assert left(stream) == [2]


def test_a_consumer_behind_what_others_acknowledged_has_missed_nothing() -> None:
    machine = Machine(2)
    stream = stream_of(machine, retention="workqueue")
    a, b = (stream.add_consumer({"name": one, "filter_subjects": f"s.{one}", "on_data_loss": "fail"}) for one in "ab")
    put(stream, "a", "a", "b", "a")
    a.ack(a.fetch(9, 0).column("sequence"))
    assert (left(stream), stream.first_sequence) == ([3], 3)
    assert b.fetch(9, 0).column("sequence").to_pylist() == [3]
    put(stream, "b")
    stream.purge(end=6)
    assert (b.info()["num_skipped"], a.info()["num_skipped"]) == (2, 0)  # a limit or a purge is missed all the same


def test_streaming_queries_are_consumers_too() -> None:
    machine = Machine(3)
    store = machine.create()
    for name, kind in (("QUEUE", "workqueue"), ("BOTH", "interest")):
        stream = store.add_stream({"name": name, "subjects": [f"{name}.>"], "retention": kind})
        reader = QueryReader(store, "etl")
        at = reader.begin({name: QueryStart(1)})[name]
        second = stream.add_consumer({"name": "second"}) if kind == "interest" else None
        stream.append([{"subject": f"{name}.a", "data": b"x"}] * 6)
        reader.acknowledge({name: onward(store.stream_state(name), at, 4).position})
        if second is not None:
            assert left(stream) == [1, 2, 3, 4, 5, 6]
            second.ack(second.fetch(2, 0).column("sequence"))
            assert left(stream) == [3, 4, 5, 6]
            second.pause(60)
            reader.acknowledge({name: onward(store.stream_state(name), at, 7).position})
            assert left(stream) == [3, 4, 5, 6]  # paused is not gone
            second.delete()
            assert left(stream) == []
        else:
            assert left(stream) == [4, 5, 6]
            assert reader.reconcile({name: onward(store.stream_state(name), at, 4)}, "fail", "")[name] is not None
        reader.close()


def test_a_large_removal_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_retention, "RUNS_AT_ONCE_MAX", 2)
    machine = Machine(4)
    stream = stream_of(machine, retention="workqueue")
    consumer = stream.add_consumer({"name": "c"})
    put(stream, *"aaaaaaaaaa")
    consumer.fetch(10, 0)
    consumer.ack([1, 3, 5, 7, 9])
    assert left(stream) == [2, 4, 5, 6, 7, 8, 9, 10]
    machine.open().maintain()
    assert left(stream) == [2, 4, 6, 8, 10]


def test_a_consumer_that_comes_later_gets_what_is_left_and_what_was_given_up_on_stays() -> None:
    machine = Machine(5)
    queue = stream_of(machine, retention="workqueue")
    first = queue.add_consumer({"name": "first", "max_deliver": 1, "ack_wait": "1s"})
    put(queue, *"aaa")
    first.fetch(2, 0)
    first.ack(1)
    machine.clock.now += 2 * SECOND_NS
    first.fetch(1, 0)
    machine.open().maintain()
    assert left(queue) == [2, 3]
    first.delete()
    assert left(queue) == [2, 3]
    assert queue.add_consumer({"name": "later"}).fetch(9, 0).column("sequence").to_pylist() == [2, 3]
