"""Scenarios 9, 13, 15, 20 and 27 on three volumes: calls that fail, replies that are lost, others who come.

A call that fails on one volume of three fails nothing else: the step in which it happens is done, and acked.
"""

import errno

import pytest
from harness.cases import Cases
from harness.damage import check_healed, without
from harness.faults import CHANGING, READING, Call, end_at
from harness.life import LOADED, STEPS, WRITER, to_table
from harness.model import seen_in_store
from harness.processes import SECOND_NS, Machine
from harness.scenes import moments, play, scene_starts, seen_after, shown_before
from harness.simulated_disk import NOTHING_KEPT, ProcessEnded

from storage_core.errors import StorageError, StoreBusyError
from storage_core.store.store import Store
from storage_core.store.volume import locks

VOLUMES = 3
STRIDE = 25
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EROFS": errno.EROFS}
WAYS = {"once": False, "for ever": True}
BETWEEN = (*CHANGING, "acquire")  # calls before which another process may come
LOADING = 4  # the step that appends a batch of a writer


def volume_of(machine: Machine, call: Call) -> int:
    return next(at for at, path in enumerate(machine.paths) if str(call.path).startswith(str(path)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", ERRORS)
def test_fault_09_a_call_on_one_volume_of_three_fails(error: str, way: str) -> None:
    cases = Cases(f"fault 09: {error} {way} on one volume of three")
    offset = list(ERRORS).index(error)
    for start, call in moments(offset, volume_count=VOLUMES, stride=STRIDE):
        if error == "ENOSPC" and call.operation not in ("create", "write", "make_directory"):
            continue
        with cases.case(f"scene {start}, {call}", f"{call.operation} of {call.file_kind}"):
            check_failed(start, call, ERRORS[error], WAYS[way])
    cases.finish()


def check_failed(start: int, moment: Call, error: int, for_ever: bool) -> None:
    machines: list[Machine] = []

    def judge(call: Call) -> int:
        if call.number == moment.number:
            return error
        return error if for_ever and call.number > moment.number and is_same_volume(machines[0], call, moment) else 0

    played = play(start, judge, volume_count=VOLUMES, on_machine=machines.append)
    assert played.error is None, f"one volume of three is an event, not an outage: {played.error!r}"
    assert seen_in_store(played.store) == shown_before(played.done)
    machine, volume = played.machine, machines[0].paths[volume_of(machines[0], moment)]
    machine.disk.evict_clean_pages()  # what a failed fsync left in the page cache only is not relied upon
    machine.disk.lose_power(NOTHING_KEPT)
    alone = without(machine, volume)
    others = [path for path in machine.paths if path != volume]
    assert seen_in_store(alone.open(paths=others)) == shown_before(played.done), "an ack was lost"
    assert seen_in_store(machine.open()) == shown_before(played.done)
    check_healed(machine, played.done)


def is_same_volume(machine: Machine, call: Call, other: Call) -> bool:
    return volume_of(machine, call) == volume_of(machine, other)


def test_fault_09_a_reading_call_on_one_volume_of_three_fails() -> None:
    cases = Cases("fault 09: a reading call fails on one volume of three")
    for position, start in enumerate(scene_starts()):
        calls = play(start, volume_count=VOLUMES, counted=READING).files.calls
        for moment in calls[position::61]:
            with cases.case(f"scene {start}, {moment}", f"{moment.operation} of {moment.file_kind}"):
                verdict = lambda call, number=moment.number: errno.EIO if call.number == number else 0  # noqa: E731
                played = play(start, verdict, volume_count=VOLUMES, counted=READING)
                assert played.error is None, repr(played.error)
                assert seen_in_store(played.machine.open()) == shown_before(played.done)
                played.machine.disk.lose_power(NOTHING_KEPT)
                check_healed(played.machine, played.done)
    cases.finish()


@pytest.mark.parametrize("volume_count", [1, 3])
def test_fault_13_a_reply_is_lost_and_the_same_batch_sent_again_is_stored_once(volume_count: int) -> None:
    """The writer is killed at every call of its append, or loses power; another process sends the same batch again."""
    cases = Cases(f"fault 13: a batch sent again, {volume_count} volumes")
    start = next(at for at in scene_starts() if at <= LOADING < at + 3)
    calls = play(start, volume_count=volume_count).files.calls
    for call in calls[:: 2 * volume_count]:
        for power in (False, True):
            with cases.case(f"{call}, {'power loss' if power else 'kill'}", "power loss" if power else "kill"):
                played = play(start, end_at(call.number), volume_count=volume_count)
                assert isinstance(played.error, ProcessEnded)
                if power:
                    played.machine.disk.lose_power()
                check_sent_again(played.machine, seen_after(played.machine, played.expected()), played.done)
    cases.finish()


def check_sent_again(machine: Machine, seen: object, done: int) -> None:
    store = machine.open()
    at = done + (seen != shown_before(done))
    for step in STEPS[at : LOADING + 1]:
        step.act(store)
    expected = shown_before(max(at, LOADING + 1))
    assert seen_in_store(store) == expected
    first = store.stream("orders").append(to_table(LOADED), WRITER)
    again = machine.open().stream("orders").append(to_table(LOADED), WRITER)
    assert first == again == range(6, 9)
    assert seen_in_store(store) == expected, "stored twice"


@pytest.mark.parametrize("seconds", [-10 * 365 * 86_400, -3_600, 10 * 365 * 86_400])
def test_fault_20_the_clock_jumps_between_any_two_steps(seconds: int) -> None:
    """Between processes, too: another process with another time takes every other step."""
    cases = Cases(f"fault 20: the clock jumps by {seconds} s")
    for at in range(1, len(STEPS), 3):
        machine = Machine(1, VOLUMES)
        with cases.case(f"before step {at}"):
            lived_with_jump(machine, at, seconds)
    cases.finish()


def lived_with_jump(machine: Machine, at: int, seconds: int) -> None:
    from harness.life import SETTINGS

    stores = [machine.create(**SETTINGS), machine.open()]
    numbers: dict[bytes, int] = {}
    for number, step in enumerate(STEPS[: at + 4]):
        if number == at:
            machine.clock.now += seconds * SECOND_NS
        if number in (3, 13) and abs(seconds) > 3_600:
            continue  # the same msg_id again, after its window; an abort, which a later time may have done already
        step.act(stores[number % 2])
        for stream in stores[number % 2].view().state.streams.values():
            assert stream.next_sequence >= numbers.get(stream.incarnation, 1), "the last sequence fell"
            numbers[stream.incarnation] = stream.next_sequence
    machine.disk.lose_power(NOTHING_KEPT)
    seen, last = seen_in_store(machine.open()), shown_before(min(at + 4, len(STEPS)))
    assert {name: content.messages[-1:] for name, content in seen.items()} == {
        name: content.messages[-1:] for name, content in last.items()
    } or abs(seconds) > 3_600


def test_fault_27_another_process_comes_in_the_middle_of_every_step_and_one_is_killed() -> None:
    """Two processes write at once. Whoever comes second is refused or waits; when the first is killed, it goes on."""
    cases = Cases("fault 27: another process in the middle")
    for start in scene_starts(1):
        calls = play(start, volume_count=VOLUMES, counted=BETWEEN).files.calls
        for moment in calls[::17]:
            with cases.case(f"scene {start}, {moment}", f"{moment.operation} of {moment.file_kind}"):
                check_two_at_once(start, moment)
    cases.finish()


def check_two_at_once(start: int, moment: Call) -> None:
    machines: list[Machine] = []
    made: list[str] = []

    def judge(call: Call) -> int:
        if call.number != moment.number:
            return 0
        mutexes, locks._mutexes = locks._mutexes, {}  # another process has its own
        try:
            other = machines[0].open()
            other.add_stream({"name": "other"})
            made.append("other")
            publish(other)
        except StoreBusyError:
            pass
        finally:
            locks._mutexes = mutexes
        return 0

    played = play(start, judge, volume_count=VOLUMES, counted=BETWEEN, on_machine=machines.append)
    assert played.error is None or isinstance(played.error, StoreBusyError), repr(played.error)
    survivor = played.machine.open()
    if "other" not in survivor.streams():
        assert not made, "what was acked to the other process is gone"
        survivor.add_stream({"name": "other"})
    publish(survivor)
    played.machine.disk.lose_power(NOTHING_KEPT)
    seen = seen_in_store(played.machine.open())
    sequences = [sequence for sequence, _ in seen.pop("other").messages]
    assert sequences == list(range(1, len(sequences) + 1)) and sequences
    assert seen in played.expected()


def publish(store: Store) -> None:
    try:
        store.stream("other").publish("other", b"of another process")
    except StorageError as error:
        if not isinstance(error, StoreBusyError):
            raise
