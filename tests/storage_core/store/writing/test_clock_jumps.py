"""Clocks that are set forward and back: what expires, what counts as a duplicate, and when space comes back."""

import pytest
from harness.processes import SECOND_NS, Machine

from storage_core.metadata.state import TIME_MAX_NS, StoreState

HOUR_NS = 3_600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
YEARS_NS = 3_650 * DAY_NS


@pytest.mark.parametrize("jumps", [(-5 * HOUR_NS, 5 * HOUR_NS), (-5 * HOUR_NS,), (YEARS_NS, -YEARS_NS)])
def test_a_jump_costs_no_message_no_duplicate_and_no_space(jumps: tuple[int, ...]) -> None:
    machine = Machine(1)
    store = machine.create(deleted_block_retention="1h")
    work = store.add_stream({"name": "WORK", "subjects": ["w"], "duplicate_window": "2m"})
    aged = store.add_stream({"name": "AGED", "subjects": ["a"], "max_age": "1h"})
    for at, jump in enumerate(jumps):
        machine.clock.now += jump
        machine.clock.now += 10 * SECOND_NS
        work.publish("w", "job", msg_id=f"id {at}")
        machine.clock.now += 10 * SECOND_NS
        assert work.publish("w", "job", msg_id=f"id {at}").duplicate
    aged.publish("a", "young")
    store.maintain()
    assert work.publish("w", "job", msg_id=f"id {len(jumps) - 1}").duplicate
    assert aged.state().message_count == 1
    machine.clock.now += 60 * SECOND_NS
    machine.open().maintain()
    assert aged.state().message_count == 1  # it is a minute old, whatever the clock has shown before
    machine.clock.now += 200 * SECOND_NS
    assert not work.publish("w", "job", msg_id=f"id {len(jumps) - 1}").duplicate  # the window goes on by the new clock
    work.purge()
    assert len(store.view().state.deletes)
    machine.clock.now += 2 * HOUR_NS
    machine.open().maintain()
    assert (aged.state().message_count, len(store.view().state.deletes)) == (0, 1)  # what has just expired waits


def test_a_clock_that_was_set_right_again_does_not_end_the_window() -> None:
    machine = Machine(2)
    work = machine.create().add_stream({"name": "WORK", "subjects": ["w"], "duplicate_window": "2m"})
    work.publish("w", "earlier")
    machine.clock.now -= HOUR_NS
    work.publish("w", "job", msg_id="1")
    machine.clock.now += HOUR_NS + 10 * SECOND_NS
    assert work.publish("w", "job", msg_id="1").duplicate


@pytest.mark.buckets
def test_times_of_entries_never_fall_and_pass_as_fast_as_clocks() -> None:
    state = StoreState(time_ns=1_000, clock_ns=1_000)
    assert [state.time_at(clock) for clock in (1_500, 1_000, 400)] == [1_500, 1_001, 1_001]
    behind = StoreState(time_ns=1_000, clock_ns=400)
    assert [behind.time_at(clock) for clock in (450, 400, 10, 1_200)] == [1_050, 1_001, 1_001, 1_200]
    assert StoreState(time_ns=TIME_MAX_NS, clock_ns=0).time_at(5) == TIME_MAX_NS
