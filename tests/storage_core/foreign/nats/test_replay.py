"""Records and tombstones replayed in order, against a slow second version that keeps a list."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage_core.foreign.nats.limits import Limits
from storage_core.foreign.nats.replay import Log, Replayed, replay
from storage_core.foreign.nats.ttl import NO_ROLLUP, ROLLUP_ALL, ROLLUP_SUBJECT

SIZE = 50
# What happened: a message on one of three subjects, with what it rolls up, or the removal of an earlier one.
STORES = st.tuples(st.just("store"), st.integers(0, 2), st.sampled_from([NO_ROLLUP] * 6 + [ROLLUP_SUBJECT, ROLLUP_ALL]))
REMOVALS = st.tuples(st.just("remove"), st.integers(1, 30), st.just(0))
HISTORIES = st.lists(st.one_of(STORES, STORES, REMOVALS), max_size=30)
LIMITS = st.builds(
    Limits,
    max_msgs=st.sampled_from([0, 0, 1, 3, 8]),
    max_bytes=st.sampled_from([0, 0, 2 * SIZE, 5 * SIZE]),
    max_age_ns=st.just(0),
    max_msgs_per_subject=st.sampled_from([0, 1, 2, 4]),
    first_sequence=st.sampled_from([0, 0, 3]),
    rolls_up=st.booleans(),
)
History = list[tuple[str, int, int]]


def replayed(history: History, limits: Limits) -> tuple[Replayed, list[int]]:
    stores = [(place, what) for place, what in enumerate(history) if what[0] == "store"]
    removals = [(place, what[1]) for place, what in enumerate(history) if what[0] == "remove"]
    count = len(stores)
    sequences = np.arange(1, count + 1)
    log = Log(
        sequences=sequences,
        sizes=np.full(count, SIZE, np.int64),
        times_ns=sequences * 1000,
        places=np.array([place for place, _ in stores], np.int64),
        subjects=np.array([what[1] for _, what in stores], np.int64),
        ttls_ns=None,
        rollups=np.array([what[2] for _, what in stores], np.int8) if limits.rolls_up else None,
        removals=np.array([sequence for _, sequence in removals], np.int64),
        removal_places=np.array([place for place, _ in removals], np.int64),
    )
    outcome = replay(log, limits)
    return outcome, sequences[outcome.keep].tolist()


def obvious(history: History, limits: Limits) -> list[int]:
    live: list[tuple[int, int]] = []  # (sequence, subject)
    sequence = 0
    for what, value, rollup in history:
        if what == "remove":
            if value <= sequence:  # a server writes no tombstone of what is not there yet
                live = [each for each in live if each[0] != value]
            continue
        sequence += 1
        if sequence < limits.first_sequence:
            continue
        if limits.rolls_up and rollup != NO_ROLLUP:
            live = [each for each in live if rollup == ROLLUP_SUBJECT and each[1] != value]
        live.append((sequence, value))
        while limits.max_msgs_per_subject and sum(each[1] == value for each in live) > limits.max_msgs_per_subject:
            live.remove(next(each for each in live if each[1] == value))
        while limits.max_msgs and len(live) > limits.max_msgs:
            live.pop(0)
        while limits.max_bytes and len(live) * SIZE > limits.max_bytes:
            live.pop(0)
    return [each[0] for each in live]


def possible(history: History) -> History:
    """Return the history without removals of messages that are stored later."""
    stored, kept = 0, []
    for what in history:
        stored += what[0] == "store"
        if what[0] == "store" or what[1] <= stored:
            kept.append(what)
    return kept


@given(HISTORIES, LIMITS)
def test_what_is_left_is_what_a_list_would_have(history: History, limits: Limits) -> None:
    history = possible(history)
    outcome, kept = replayed(history, limits)
    assert kept == obvious(history, limits)
    assert not outcome.floor or all(sequence >= outcome.floor for sequence in kept)


def test_a_value_that_a_removed_marker_had_replaced_does_not_come_back() -> None:
    limits = Limits(0, 0, 0, max_msgs_per_subject=1, first_sequence=0, rolls_up=True)
    history = [("store", 0, 0), ("store", 1, 0), ("store", 0, ROLLUP_SUBJECT), ("remove", 3, 0)]
    assert replayed(history, limits)[1] == [2]


def test_a_record_that_damage_put_in_front_of_lower_ones_is_not_replaced_by_them() -> None:
    """Place 0 holds a copy of message 4; the own place of that is gone."""
    log = Log(
        sequences=np.array([1, 2, 3, 4, 5]),
        sizes=np.full(5, SIZE, np.int64),
        times_ns=np.arange(5) * 1000,
        places=np.array([100, 150, 200, 0, 50]),
        subjects=np.array([0, 1, 1, 1, 0]),
        ttls_ns=None,
        rollups=None,
        removals=np.array([5]),
        removal_places=np.array([80]),
    )
    outcome = replay(log, Limits(0, 0, 0, max_msgs_per_subject=1, first_sequence=0))
    assert log.sequences[outcome.keep].tolist() == [4]


def test_a_full_stream_proves_that_all_below_it_went() -> None:
    limits = Limits(3, 0, 0, 0, 0)
    outcome, kept = replayed([("store", 0, 0)] * 5, limits)
    assert (kept, outcome.floor) == ([3, 4, 5], 3)
    outcome, kept = replayed([("store", 0, 0)] * 5 + [("remove", 5, 0)], limits)
    assert (kept, outcome.floor) == ([3, 4], 3)
    assert replayed([("store", 0, 0)] * 2, limits)[0].floor == 0
