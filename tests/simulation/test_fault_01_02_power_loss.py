"""Scenarios 1, 2 and 10 on three volumes: power lost and processes killed at every kind of I/O step.

Scenario 1 and 10 with one volume are test_power_loss.py and test_kills.py, which take more steps.
"""

from harness.cases import Cases
from harness.damage import check_healed, without
from harness.faults import Call, end_at
from harness.model import seen_in_store
from harness.scenes import QUARTERS, check_shown_and_whole, go_on, moments, play, seen_after, shown_before
from harness.simulated_disk import NOTHING_KEPT, ProcessEnded

VOLUMES = 3
STRIDE = 24  # every 24th call of the life; each test takes others, and those between them in `make soak`


@QUARTERS
def test_fault_01_power_loss_of_all_volumes_at_any_step(quarter: int) -> None:
    cases = Cases("fault 01: power loss of three volumes")
    for start, call in moments(volume_count=VOLUMES, stride=STRIDE, first=quarter * STRIDE // 4):
        with cases.case(f"scene {start}, {call}", f"{call.operation} of {call.file_kind}"):
            played = play(start, end_at(call.number), volume_count=VOLUMES)
            played.machine.disk.random.seed(start * 10_000 + call.number)
            played.machine.disk.lose_power(NOTHING_KEPT if call.number % 2 else None)
            seen = seen_after(played.machine, played.expected())
            done = go_on(played.machine, seen, played, 1)
            played.machine.disk.lose_power()
            check_shown_and_whole(played.machine, done)
    cases.finish()


@QUARTERS
def test_fault_02_power_loss_of_one_volume_while_the_process_goes_on(quarter: int) -> None:
    """Its un-synced data is gone in the middle of a step; nothing acked is lost, and there are no two histories."""
    cases = Cases("fault 02: one volume loses power under a living process")
    for start, call in moments(1, volume_count=VOLUMES, stride=STRIDE, first=quarter * STRIDE // 4):
        with cases.case(f"scene {start}, {call}", f"{call.operation} of {call.file_kind}"):
            check_one_volume_loses_power(start, call)
    cases.finish()


def check_one_volume_loses_power(start: int, moment: Call) -> None:
    machines = []

    def judge(call: Call) -> int:
        if call.number == moment.number:
            victim = machines[0].paths[call.number % VOLUMES]
            machines[0].disk.lose_power_below(victim, NOTHING_KEPT)
        return 0

    played = play(start, judge, volume_count=VOLUMES, on_machine=machines.append)
    assert played.error is None, "one volume of three is an event, not an outage"
    assert seen_in_store(played.store) == shown_before(played.done)
    played.machine.disk.lose_power(NOTHING_KEPT)
    others = [path for path in played.machine.paths if path != played.machine.paths[moment.number % VOLUMES]]
    alone = without(played.machine, played.machine.paths[moment.number % VOLUMES])
    assert seen_in_store(alone.open(paths=others)) == shown_before(played.done)
    check_healed(played.machine, played.done)


@QUARTERS
def test_fault_10_kill_at_any_step_with_three_volumes(quarter: int) -> None:
    cases = Cases("fault 10: killed, three volumes")
    for start, call in moments(2, volume_count=VOLUMES, stride=STRIDE, first=quarter * STRIDE // 4):
        with cases.case(f"scene {start}, {call}", f"{call.operation} of {call.file_kind}"):
            played = play(start, end_at(call.number, call.operation == "write"), volume_count=VOLUMES)
            assert isinstance(played.error, ProcessEnded)
            seen = seen_after(played.machine, played.expected())
            check_shown_and_whole(played.machine, go_on(played.machine, seen, played, 2))
    cases.finish()
