"""A process is killed at every fourth I/O step of the scripted life, at the others in `make soak`; the page cache
stays, and another process goes on.

Scenario 10: opening shows the store as it was before the step or after it, and opening twice is the same as once.
Scenario 27: the lock of a killed holder is free at once.
"""

from harness.cases import Cases
from harness.faults import Call, end_at
from harness.model import seen_in_store
from harness.scenes import QUARTERS, check_shown_and_whole, go_on, moments, play, seen_after, shown_before
from harness.simulated_disk import ProcessEnded


@QUARTERS
def test_another_process_goes_on_after_a_kill_at_every_step(quarter: int) -> None:
    cases = Cases("killed at every fourth step")
    for start, call in moments(stride=4, first=quarter):
        for halfway in (False, True) if call.operation == "write" else (False,):
            where = "in the middle of" if halfway else "before"
            with cases.case(
                f"scene {start}, {where} {call}", "halfway through a write" if halfway else "before a call"
            ):
                check_kill(start, call, halfway)
    cases.finish()


def check_kill(start: int, call: Call, halfway: bool) -> None:
    played = play(start, end_at(call.number, halfway))
    assert isinstance(played.error, ProcessEnded)
    seen = seen_after(played.machine, played.expected())
    done = go_on(played.machine, seen, played, 2)
    check_shown_and_whole(played.machine, done)


@QUARTERS
def test_a_process_that_was_there_before_goes_on_after_a_kill_at_every_step(quarter: int) -> None:
    """It remembers where the log ended, and must not believe it."""
    cases = Cases("killed at every fourth step beside a process that goes on")
    for start, call in moments(1, stride=4, first=quarter):
        with cases.case(f"scene {start}, {call}"):
            check_survivor(start, call)
    cases.finish()


def check_survivor(start: int, call: Call) -> None:
    played = play(start, end_at(call.number), witness=True)
    assert played.witness is not None
    looked = seen_in_store(played.witness)  # takes no lock: what stands above the commit record is not decided yet
    played.witness.maintain()
    seen = seen_in_store(played.witness)
    assert looked in played.expected() and seen in played.expected()
    assert looked == shown_before(played.done) or seen == looked, "the view went back"
    done = go_on(played.machine, seen, played, 2, played.witness)
    check_shown_and_whole(played.machine, done)
