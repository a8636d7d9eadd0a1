"""Power is lost at every fourth I/O step of the scripted life, at the others in `make soak`; un-synced data is dropped,
torn, kept and re-ordered.

P1: what was acked is there byte for byte, in order; a step that was not acked is there whole or not at all.
P2: nothing is shown that was not written, and verify finds no damage. P3: sequences are those of the model, which
never uses one twice. What a reader has seen counts like what was acked, though it may have been in the page cache
only: visible is not durable.

A case is (scene, call, how often): it seeds the fate of everything un-synced, and is printed when it fails.
"""

import random
import time

import pytest
from harness.cases import Cases
from harness.faults import Call, end_at
from harness.model import seen_in_store
from harness.processes import Machine
from harness.scenes import QUARTERS, check_shown_and_whole, go_on, moments, play, seen_after
from harness.simulated_disk import NOTHING_KEPT, ProcessEnded

FATES = 2  # of each moment; the first is that nothing un-synced is kept


def seed_of(*parts: object) -> int:
    return random.Random(repr(parts)).getrandbits(32)


def lose_power(machine: Machine, *case: object) -> None:
    machine.disk.random.seed(seed_of(*case))
    machine.disk.lose_power()


@QUARTERS
def test_p1_p2_p3_after_power_loss_at_every_step(quarter: int) -> None:
    cases = Cases("power loss at every fourth step")
    for start, call in moments(stride=4, first=quarter):
        for fate in range(FATES):
            with cases.case(f"scene {start}, {call}, fate {fate}"):
                check_power_loss(start, call, fate)
    cases.finish()


def check_power_loss(start: int, call: Call, fate: int) -> None:
    played = play(start, end_at(call.number))
    if fate == 0:
        played.machine.disk.lose_power(NOTHING_KEPT)
    else:
        lose_power(played.machine, start, call.number, fate)
    seen = seen_after(played.machine, played.expected())
    done = go_on(played.machine, seen, played, 1)
    lose_power(played.machine, start, call.number, fate, "again")
    check_shown_and_whole(played.machine, done)


@pytest.mark.soak
def test_power_loss_at_every_step_with_many_fates(soak_seconds: float) -> None:
    cases, end, fate = Cases("power loss at every step, soak"), time.monotonic() + soak_seconds, FATES
    while time.monotonic() < end:
        for start, call in moments(fate % 3):
            with cases.case(f"scene {start}, {call}, fate {fate}"):
                check_power_loss(start, call, fate)
        fate += 1
    cases.finish()


@QUARTERS
def test_what_a_reader_saw_of_a_killed_process_outlives_a_power_loss(quarter: int) -> None:
    """The process is killed; another one only looks, and with that makes the step visible; then power is lost."""
    cases = Cases("killed, looked at, power loss")
    for start, call in moments(1, stride=4, first=quarter):
        with cases.case(f"scene {start}, {call}"):
            played = play(start, end_at(call.number))
            seen = seen_after(played.machine, played.expected())
            lose_power(played.machine, start, call.number, "looked")
            assert seen_after(played.machine, [seen]) == seen
            done = go_on(played.machine, seen, played, 1)
            check_shown_and_whole(played.machine, done)
    cases.finish()


@QUARTERS
def test_what_another_process_committed_on_top_of_a_killed_one_outlives_a_power_loss(quarter: int) -> None:
    """What the killed process left in the page cache only is under the commit of the other one."""
    cases = Cases("killed, gone on by another process, power loss")
    for start, call in moments(2, stride=4, first=quarter + 1):
        with cases.case(f"scene {start}, {call}"):
            played = play(start, end_at(call.number))
            seen = seen_after(played.machine, played.expected())
            done = go_on(played.machine, seen, played, 1)
            lose_power(played.machine, start, call.number, "committed")
            check_shown_and_whole(played.machine, done)
    cases.finish()


@QUARTERS
def test_power_is_lost_again_at_every_step_of_the_recovery(quarter: int) -> None:
    cases = Cases("power loss at every step of the recovery from one")
    for start, call in moments(stride=4, first=quarter):
        with cases.case(f"scene {start}, {call}"):
            check_recovery(start, call)
    cases.finish()


def check_recovery(start: int, call: Call) -> None:
    """Interrupt the recovery at its first step, then at its second, and so on until it is not interrupted any more."""
    played = play(start, end_at(call.number))
    lose_power(played.machine, start, call.number, "first")
    expected = played.expected()
    for step in range(1000):
        files = played.machine.files(end_at(step))
        try:
            seen = seen_in_store(played.machine.open(files))
        except ProcessEnded:
            lose_power(played.machine, start, call.number, step)
            continue
        assert seen in expected, seen
        expected = [seen]  # it was seen, so it stays
        if len(files.calls) <= step:
            break
    done = go_on(played.machine, seen, played, 1)
    check_shown_and_whole(played.machine, done)
