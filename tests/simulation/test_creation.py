"""The creation of a store is interrupted at every call: a volume is whole, or it is none.

Until `Store.create` returns nothing was acked, so the directory may hold an empty store or no store, but nothing that
opens and is damaged; and the same creation can be run again, without a step in between.
"""

import errno
from contextlib import suppress

import pytest
from harness.cases import Cases
from harness.faults import Call, FaultyFiles, end_at, fail_at
from harness.life import SETTINGS, create, to_table
from harness.model import Row, seen_in_store
from harness.processes import VOLUME, Machine
from harness.simulated_disk import ProcessEnded

from storage_core.errors import AlreadyExistsError, CorruptionError, NotAStoreError, StorageError, StoreBusyError
from storage_core.store.store import Store

FATES = 12
IDENTITY, MARK = "jstream.volume", "jstream.creating"


def calls_of_creation(volume_count: int = 1) -> list[Call]:
    machine = Machine(2, volume_count)
    files = machine.files()
    create_on(machine, files)
    return files.calls


def create_on(machine: Machine, files: FaultyFiles | None = None) -> Store:
    return Store.create(machine.paths, env=machine.environment(files), **SETTINGS)


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


@pytest.mark.parametrize(("volume_count", "fates"), [(1, FATES), (3, 3)])
def test_a_creation_that_was_killed_can_be_run_again(volume_count: int, fates: int) -> None:
    cases = Cases(f"killed, or power lost, while a store is made on {volume_count} volumes")
    for call in calls_of_creation(volume_count):
        for fate in range(fates + 1):
            with cases.case(f"{call}, fate {fate}"):
                machine = Machine(fate, volume_count)
                with pytest.raises(ProcessEnded):
                    create_on(machine, machine.files(end_at(call.number)))
                if fate:
                    machine.disk.lose_power()
                with suppress(AlreadyExistsError):  # it was killed at the very last step: then there is a store
                    create_on(machine)
                assert check_whole_or_none(machine)
                for path in machine.paths:
                    assert MARK not in machine.disk.directory(path).names
                    left = machine.open(paths=[path])
                    assert len(left.volumes()) == volume_count
    cases.finish()


@pytest.mark.parametrize("place", [".", "meta", "streams"])
def test_what_a_creation_has_not_written_is_never_taken_away(place: str) -> None:
    cases = Cases(f"a file of somebody's in {place} of a creation that was killed")
    for call in calls_of_creation():
        with cases.case(str(call)):
            machine = Machine(3)
            with pytest.raises(ProcessEnded):
                create_on(machine, machine.files(end_at(call.number)))
            try:
                names = machine.disk.directory(VOLUME / place).names
            except FileNotFoundError:
                continue
            if IDENTITY in machine.disk.directory(VOLUME).names and not is_torn(machine):
                continue
            before = {path for path, _ in machine.disk.files(VOLUME)}
            machine.disk.overwrite(VOLUME / place / "letter.txt", b"dear")
            with pytest.raises(AlreadyExistsError, match=r"is not empty: .*letter\.txt"):
                create_on(machine)
            assert "letter.txt" in names
            assert before <= {path for path, _ in machine.disk.files(VOLUME)}
    cases.finish()


def test_an_unfinished_creation_is_finished_with_its_own_volumes_and_settings_alone() -> None:
    calls = [one for one in calls_of_creation(3) if one.operation == "create" and one.file_kind == "identity"]
    machine = Machine(5, 3)
    with pytest.raises(ProcessEnded):
        create_on(machine, machine.files(end_at(calls[1].number)))  # one volume has its identity
    with pytest.raises(NotAStoreError, match="create it on the same volumes again"):
        machine.open(paths=[machine.paths[2]])
    for paths, settings in ((machine.paths[:1], SETTINGS), (machine.paths, {"snapshot_every": 7})):
        with pytest.raises(AlreadyExistsError):
            Store.create(paths, env=machine.environment(), **settings)


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
