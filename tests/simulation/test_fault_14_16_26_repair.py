"""Scenarios 6, 14, 16, 26 and 28: catch-up and changes of volumes that are interrupted, and histories.

The process is killed, or power is lost, at every so many-th call of a repair or of a change of volumes.
"""

from collections.abc import Callable

import pytest
from harness.cases import Cases
from harness.damage import blank, check_healed, without
from harness.faults import FaultyFiles, end_at
from harness.life import STEPS
from harness.model import seen_in_store
from harness.processes import VOLUMES, Machine
from harness.replicas import replica_states
from harness.scenes import machine_before, shown_before
from harness.simulated_disk import NOTHING_KEPT, ProcessEnded

from storage_core.errors import StorageError
from storage_core.store.store import Store

STEP = 16
POINTS = 14  # moments of one repair at which it is interrupted
ATTEMPTS_MAX = 40

Hurt = Callable[[Machine], None]


def _away(machine: Machine) -> None:
    """Let volume b miss what the others do next, and be back."""
    taken = machine.disk.take_away(machine.paths[1])
    store = machine.open(paths=[path for path in machine.paths if path != machine.paths[1]])
    store.stream("orders").publish("orders.eu", b"while it was away")
    machine.disk.put_back(machine.paths[1], taken)


def _flipped(machine: Machine) -> None:
    for path, _ in machine.disk.files(machine.paths[1]):
        if path.suffix == ".blk":
            machine.disk.flip_bit(path, 4000)


HURTS: dict[str, Hurt] = {
    "blank": lambda machine: blank(machine, machine.paths[1]),
    "gone": lambda machine: machine.disk.take_away(machine.paths[1]) and None,
    "without its log": lambda machine: machine.disk.remove(machine.paths[1] / "meta"),
    "with flipped blocks": _flipped,
    "behind": _away,
}


def hurt_machine(name: str) -> tuple[Machine, object]:
    """Return a machine with a bad volume, and what the store shows."""
    machine = machine_before(STEP, 3)
    HURTS[name](machine)
    return machine, seen_in_store(machine.copy().open())


def repair(machine: Machine, files: FaultyFiles | None = None) -> FaultyFiles:
    """Repair in a new process; return its files, which have counted the calls."""
    files = files or machine.files()
    try:
        report = machine.open(files).repair()
        assert report["ok"], report
    except ProcessEnded:
        assert files.ended
    return files


@pytest.mark.parametrize("name", HURTS)
def test_fault_14_a_catch_up_that_is_interrupted_is_not_counted_and_goes_on(name: str) -> None:
    cases = Cases(f"fault 14: catch-up of a volume that is {name}, interrupted")
    machine, shown = hurt_machine(name)
    calls = repair(machine.copy()).calls
    for number in range(0, len(calls), max(1, len(calls) // POINTS)):
        for power in (False, True):
            with cases.case(f"{calls[number]}, {'power loss' if power else 'kill'}", "power loss" if power else "kill"):
                hurt = machine.copy()
                repair(hurt, hurt.files(end_at(number)))
                if power:
                    hurt.disk.lose_power(NOTHING_KEPT)
                check_not_counted(hurt, shown)
                repair(hurt)
                check_equal(hurt, shown)
    cases.finish()


def check_not_counted(machine: Machine, shown: object) -> None:
    """Everything is shown; the volume is called current only if it holds all that the others hold."""
    store = machine.open()
    assert seen_in_store(store) == shown
    others = without(machine, machine.paths[1])
    assert seen_in_store(others.open(paths=[machine.paths[0], machine.paths[2]])) == shown
    states = [replica_states(store, stream) for stream in store.view().state.streams.values()]
    if all(one.current for replicas in states for one in replicas):
        machine = machine.copy()
        machine.disk.lose_power(NOTHING_KEPT)
        alone = without(machine, machine.paths[0])
        assert seen_in_store(alone.open(paths=machine.paths[1:])) == shown, "called current, and it is not"


def check_equal(machine: Machine, shown: object) -> None:
    store = machine.open()
    for stream in store.view().state.streams.values():
        states = replica_states(store, stream)
        assert all(one.current for one in states), states
        assert len({one.digest for one in states}) <= 1
    machine.disk.lose_power(NOTHING_KEPT)
    for gone in machine.paths:
        left = [path for path in machine.paths if path != gone]
        assert seen_in_store(without(machine, gone).open(paths=left)) == shown


@pytest.mark.parametrize("name", HURTS)
def test_fault_26_a_repair_that_is_killed_again_and_again_comes_to_an_end(name: str) -> None:
    """Each attempt gets a bounded number of calls; whatever is repaired stays repaired."""
    cases = Cases(f"fault 26: a volume that is {name}, repaired in pieces")
    machine, shown = hurt_machine(name)
    whole = len(repair(machine.copy()).calls)
    for share in (0.8, 0.6):
        hurt = machine.copy()
        with cases.case(f"attempts of {share} of the calls that a repair takes"):
            for attempt in range(ATTEMPTS_MAX):
                files = hurt.files(end_at(max(60, int(whole * share))))
                repair(hurt, files)
                if not files.ended:
                    break
                if attempt % 3 == 0:
                    hurt.disk.lose_power(NOTHING_KEPT)
                assert seen_in_store(hurt.open()) == shown
            assert not files.ended, "it never came to an end"
            check_equal(hurt, shown)
    cases.finish()


# --- changes of volumes -----------------------------------------------------------------------------------------------

Change = Callable[[Store], None]
NEW = VOLUMES[3:5]


def _added(store: Store) -> None:
    store.add_volumes([str(path) for path in NEW])


def _replaced(store: Store) -> None:
    volume = next((one for one in store.volumes() if one.path == VOLUMES[1]), None)
    if volume is not None:
        store.replace_volume(volume.name, str(NEW[0]))


CHANGES: dict[str, tuple[Change, tuple[int, ...]]] = {  # what is done, and which places hold a majority afterwards
    "added": (_added, (0, 1, 2, 3, 4)),
    "replaced": (_replaced, (0, 2, 3)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_fault_16_a_change_of_volumes_is_interrupted_and_done_again(name: str) -> None:
    cases = Cases(f"fault 16: volumes {name}, interrupted")
    change, after = CHANGES[name]
    machine, shown = machine_before(STEP, 3), shown_before(STEP)
    counting = machine.copy()
    files = counting.files()
    change(counting.open(files))
    for number in range(0, len(files.calls), max(1, len(files.calls) // POINTS)):
        for power in (False, True):
            with cases.case(f"{files.calls[number]}", "power loss" if power else "kill"):
                hurt = machine.copy()
                with pytest.raises(ProcessEnded):
                    change(hurt.open(hurt.files(end_at(number))))
                if power:
                    hurt.disk.lose_power(NOTHING_KEPT)
                check_changed(hurt, change, after, shown)
    cases.finish()


def check_changed(machine: Machine, change: Change, after: tuple[int, ...], shown: object) -> None:
    """Wherever it stopped the store goes on; the same again brings it to its end."""
    store = machine.open()
    assert seen_in_store(store) == shown
    store.stream("orders").publish("orders.eu", b"in between")
    store = machine.open()
    try:
        change(store)
    except StorageError:  # it is under way: whoever repairs goes on with it
        store.repair()
    except ValueError:
        assert store.view().state.volume_change is None  # it was done already
    store = machine.open()
    store.repair()
    places = {one.path for one in store.volumes()}
    assert places == {VOLUMES[at] for at in after}, places
    assert store.view().state.volume_change is None
    everything = seen_in_store(store)
    assert len(everything["orders"].messages) == len(shown["orders"].messages) + 1  # type: ignore[index]
    machine.disk.lose_power(NOTHING_KEPT)
    assert seen_in_store(machine.open(paths=[VOLUMES[at] for at in after])) == everything


def test_fault_16_a_volume_that_was_removed_comes_back_and_is_not_one_of_them() -> None:
    cases = Cases("fault 16: a removed volume returns")
    for step in range(3, len(STEPS) - 1, 4):
        machine = machine_before(step, 3)
        with cases.case(f"before step {step}"):
            older = machine.disk.image_below(VOLUMES[1])
            _replaced(machine.open())
            left = [VOLUMES[0], VOLUMES[2], NEW[0]]
            STEPS[step].act(machine.open(paths=left))
            machine.disk.put_back(VOLUMES[1], older)
            store = machine.open(paths=left)
            assert seen_in_store(store) == shown_before(step + 1)
            assert VOLUMES[1] not in {one.path for one in store.volumes()}
            before = [bytes(inode.content) for _, inode in machine.disk.files(VOLUMES[1])]
            STEPS[step + 1].act(store) if step + 1 < len(STEPS) else None
            assert [bytes(inode.content) for _, inode in machine.disk.files(VOLUMES[1])] == before, "it was written"
    cases.finish()


# --- histories --------------------------------------------------------------------------------------------------------


def test_fault_06_numbers_of_an_older_copy_that_grew_again_have_another_history() -> None:
    """All volumes are put back to an older copy, and the stream grows past where it was: positions tell them apart."""
    cases = Cases("fault 06: an older copy grows past the position")
    for volume_count in (1, 3):
        for back in (1, 3, 6):
            machine = machine_before(STEP, volume_count)
            with cases.case(f"{back} steps back on {volume_count}"):
                older = machine_before(STEP - back, volume_count)
                before = machine.open().stream("orders").state()
                store = older.open()
                grown = store.stream("orders")
                while grown.last_sequence < before.next_sequence:
                    grown.publish("orders.eu", b"of the other history")
                after = grown.state()
                assert after.incarnation == before.incarnation
                first = machine_before(STEP - back, volume_count).open().stream("orders").last_sequence + 1
                if first < before.next_sequence:
                    assert history_at(before.histories, first) != history_at(after.histories, first)
                assert history_at(before.histories, 1) == history_at(after.histories, 1)
    cases.finish()


def history_at(histories: tuple[tuple[bytes, int], ...], sequence: int) -> bytes:
    return [history for history, first in histories if first <= sequence][-1]


def test_a_repaired_life_goes_on_as_if_nothing_had_been() -> None:
    """After every step another volume is made blank and repaired: the whole life, and all replicas equal at its end."""
    machine = machine_before(0, 3)
    for number, step in enumerate(STEPS):
        blank(machine, machine.paths[number % 3])
        store = machine.open()
        assert store.repair()["ok"]
        step.act(store)
        assert seen_in_store(machine.open()) == shown_before(number + 1), step.name
    check_healed(machine, len(STEPS))
