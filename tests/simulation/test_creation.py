"""The creation of a store is interrupted at every call: a volume is whole, or it is none.

Until `Store.create` returns nothing was acked, so the directory may hold an empty store or no store, but nothing that
opens and is damaged; the message about what is left says what it is, and an emptied directory can be used.
"""

import errno

import pytest
from harness.cases import Cases
from harness.faults import Call, end_at, fail_at
from harness.life import create, to_table
from harness.model import Row, seen_in_store
from harness.processes import VOLUME, Machine
from harness.simulated_disk import ProcessEnded, SimulatedDirectory

from storage_core.errors import AlreadyExistsError, CorruptionError, NotAStoreError, StorageError, StoreBusyError

FATES = 12
IDENTITY = "jstream.volume"


def calls_of_creation() -> list[Call]:
    machine = Machine(2)
    files = machine.files()
    create(machine.environment(files))
    return files.calls


def check_whole_or_none(machine: Machine) -> bool:
    """Check that there is an empty store that takes messages, or none; return whether there is one."""
    try:
        store = machine.open()
    except NotAStoreError:
        return False
    assert seen_in_store(store) == {}
    assert store.verify()["ok"]
    assert list(store.add_stream({"name": "notes"}).append(to_table([Row("notes", b"n1")]))) == [1]
    return True


def is_torn(machine: Machine) -> bool:
    """Return whether the identity is there and damaged, which is said of it."""
    try:
        machine.open()
    except CorruptionError as error:
        return IDENTITY in str(error)
    except NotAStoreError:
        return False
    return False


def make_room(machine: Machine) -> None:
    """Do what the message says where something is left: empty the directory."""
    is_there = VOLUME.name in machine.disk.directory(VOLUME.parent).names
    names = set(machine.disk.directory(VOLUME).names) - {"lock"} if is_there else set()
    if names:
        with pytest.raises(AlreadyExistsError, match="holds a jstream store" if IDENTITY in names else "is not empty"):
            create(machine.environment())
        machine.disk.directory(VOLUME.parent).put(VOLUME.name, SimulatedDirectory())


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_failed_call_leaves_a_whole_volume_or_none(error: str) -> None:
    cases = Cases(f"a call of the creation fails with {error}")
    for call in calls_of_creation():
        with cases.case(str(call)):
            machine = Machine(3)
            with pytest.raises(StorageError):
                create(machine.environment(machine.files(fail_at(call.number, getattr(errno, error)))))
            if not check_whole_or_none(machine):
                create(machine.environment())  # nothing is in its way
                assert check_whole_or_none(machine)
    cases.finish()


def test_a_power_loss_leaves_a_whole_volume_or_none() -> None:
    cases = Cases("power loss while a store is made")
    for call in calls_of_creation():
        for fate in range(FATES):
            with cases.case(f"{call}, fate {fate}"):
                machine = Machine(fate)
                with pytest.raises(ProcessEnded):
                    create(machine.environment(machine.files(end_at(call.number))))
                machine.disk.lose_power()
                if is_torn(machine) or not check_whole_or_none(machine):
                    make_room(machine)
                    create(machine.environment())
                    assert check_whole_or_none(machine)
    cases.finish()


def test_a_store_that_was_made_outlives_a_power_loss() -> None:
    cases = Cases("power loss after a store was made")
    for fate in range(20):
        with cases.case(f"fate {fate}"):
            machine = Machine(fate)
            create(machine.environment())
            machine.disk.lose_power()
            assert check_whole_or_none(machine)
    cases.finish()


def test_of_two_processes_that_make_a_store_in_one_place_one_is_refused() -> None:
    machine = Machine(4)
    first = machine.files()
    first.make_directory(VOLUME)
    lock = first.lock(VOLUME / "lock")
    assert lock.try_acquire()
    with pytest.raises(StoreBusyError):
        create(machine.environment())
    lock.close()
    create(machine.environment())
    with pytest.raises(AlreadyExistsError, match="holds a jstream store"):
        create(machine.environment())
    assert check_whole_or_none(machine)
