"""Backups and restores that end at any call of the file interface, by the end of the process, a power loss or an error.

A backup is then none and says so, and is finished by making it again. A restore is then none, or whole, and is finished
by restoring onto the same directories again; after an error they are as empty as before.
"""

import errno
from pathlib import Path

import pytest
from harness.backups import BACKUP, NEW, files_below, is_backup, reopened, restored, small
from harness.cases import Cases
from harness.faults import end_at, fail_at, share_of
from harness.model import Content, seen_in_store
from harness.processes import Machine
from harness.simulated_disk import NOTHING_KEPT, ProcessEnded

from storage_core.errors import AlreadyExistsError, DiskFullError, NotAStoreError, StorageError
from storage_core.store.ingest.backup import backup
from storage_core.store.store import Store
from storage_core.store.volume import identity

ENDS = ("killed", "killed halfway", "power lost", "nothing kept")
ERRORS = (errno.ENOSPC, errno.EIO)


def seen_in(machine: Machine) -> dict[str, Content]:
    return seen_in_store(machine.open(), with_times=True)


@pytest.mark.parametrize("what", ENDS)
def test_a_backup_that_ends_at_any_call_is_none_or_whole_and_goes_on(what: str) -> None:
    machine = small()
    seen = seen_in(machine)

    probe = machine.copy()
    files = probe.files()
    backup(probe.open(files), BACKUP)
    (marked_until,) = [one for one in files.calls if one.operation == "replace" and identity.BACKUP_FILE in str(one)]
    cases = Cases(f"backup: {what} at each call")
    for call in share_of(files.calls, what, ENDS):
        if what == "killed halfway" and call.operation != "write":
            continue  # is the same as killed
        with cases.case(str(call), call.operation):
            one = machine.copy()
            ending = one.files()
            ending.judge = end_at(call.number, halfway=what == "killed halfway")
            with pytest.raises(ProcessEnded):
                backup(one.open(ending), BACKUP)
            if what in ("power lost", "nothing kept"):
                one.disk.lose_power(NOTHING_KEPT if what == "nothing kept" else None)
            if not is_backup(one):
                backup(one.open(), BACKUP)
            else:  # the mark was gone; after a power loss it may be back
                assert call.number > marked_until.number
            assert seen_in_store(restored(one), with_times=True) == seen
            suffixes = sorted(path.suffix for path in files_below(one, BACKUP) if path.name != "lock")
            assert suffixes == [".backup", ".blk", ".blk", ".snap"]
    cases.finish()


@pytest.mark.parametrize("what", ENDS)
@pytest.mark.parametrize("count", [1, 3])
def test_a_restore_that_ends_at_any_call_is_none_or_whole_and_goes_on(what: str, count: int) -> None:
    machine = small(count)
    seen = seen_in(machine)
    backup(machine.open(), BACKUP)
    probe = machine.copy()
    files = probe.files()
    restored(probe, count, files)
    cases = Cases(f"restore onto {count} volumes: {what} at each call")
    finished = 0
    for call in share_of(files.calls, what, ENDS):
        if what == "killed halfway" and call.operation != "write":
            continue  # is the same as killed
        with cases.case(str(call), call.operation):
            one = machine.copy()
            ending = one.files()
            ending.judge = end_at(call.number, halfway=what == "killed halfway")
            with pytest.raises(ProcessEnded):
                restored(one, count, ending)
            if what in ("power lost", "nothing kept"):
                one.disk.lose_power(NOTHING_KEPT if what == "nothing kept" else None)
            try:
                store = restored(one, count)
            except AlreadyExistsError:  # every identity was there, and every mark gone
                store = reopened(one, count)
                finished += 1
            assert seen_in_store(store, with_times=True) == seen
            assert store.verify()["ok"]
            for volume in NEW[:count]:
                assert identity.RESTORING not in one.files().list_directory(volume)
    assert finished < cases.count / 2
    assert finished or what == "killed halfway"
    cases.finish()


def test_a_volume_of_an_unfinished_restore_is_no_place_for_another_store() -> None:
    machine = small()
    backup(machine.open(), BACKUP)
    one = machine.copy()
    files = one.files()
    files.judge = lambda call: -1 if call.file_kind == "block" and call.operation == "replace" else 0
    with pytest.raises(ProcessEnded):
        restored(one, 3, files)
    with pytest.raises(AlreadyExistsError, match="a restore that was not finished"):
        Store.create(NEW[0], env=one.environment())
    with pytest.raises(NotAStoreError, match="a restore that was not finished"):
        Store.open(NEW[0], env=one.environment())


@pytest.mark.parametrize("error", ERRORS, ids=["full", "broken"])
def test_a_restore_that_fails_at_any_call_leaves_the_volumes_empty(error: int) -> None:
    machine = small(3)
    seen = seen_in(machine)
    backup(machine.open(), BACKUP)
    probe = machine.copy()
    files = probe.files()
    restored(probe, 3, files)
    cases = Cases(f"restore: {errno.errorcode[error]} at each call")
    for call in share_of(files.calls, error, ERRORS):
        with cases.case(str(call), call.operation):
            one = machine.copy()
            failing = one.files()
            failing.judge = fail_at(call.number, error)
            store, refused = None, None
            try:
                store = restored(one, 3, failing)
            except StorageError as caught:
                refused = caught
            if store is None:
                assert isinstance(refused, DiskFullError) == (error == errno.ENOSPC), refused
                left = [path.name for volume in NEW[:3] for path in files_below_or_none(one, volume)]
                assert set(left) <= {"lock"}, (refused, left)
                store = restored(one, 3)
            assert seen_in_store(store, with_times=True) == seen
    cases.finish()


def files_below_or_none(machine: Machine, root: Path) -> list[Path]:
    return list(files_below(machine, root)) if machine.files().is_directory(root) else []


@pytest.mark.parametrize("error", ERRORS, ids=["full", "broken"])
def test_a_backup_that_fails_at_any_call_is_unfinished_and_goes_on(error: int) -> None:
    machine = small()
    seen = seen_in(machine)
    probe = machine.copy()
    files = probe.files()
    backup(probe.open(files), BACKUP)
    cases = Cases(f"backup: {errno.errorcode[error]} at each call")
    for call in files.calls:
        with cases.case(str(call), call.operation):
            one = machine.copy()
            failing = one.files()
            failing.judge = fail_at(call.number, error)
            with pytest.raises(StorageError) as refused:
                backup(one.open(failing), BACKUP)
            assert isinstance(refused.value, DiskFullError) == (error == errno.ENOSPC), refused.value
            if not is_backup(one):
                backup(one.open(), BACKUP)
            assert seen_in_store(restored(one), with_times=True) == seen
    cases.finish()


def test_an_interrupt_leaves_a_backup_and_a_restore_to_be_gone_on_with() -> None:
    machine = small(3)
    seen = seen_in(machine)

    def interrupt(done: int, total: int) -> None:
        if done == total - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup(machine.open(), BACKUP, progress=interrupt)
    assert not is_backup(machine)
    assert backup(machine.open(), BACKUP)["copied"] == 1
    with pytest.raises(KeyboardInterrupt):
        Store.restore(BACKUP, list(NEW[:3]), progress=interrupt, env=machine.environment())
    assert all(identity.RESTORING in machine.files().list_directory(volume) for volume in NEW[:3])
    assert seen_in_store(restored(machine, 3), with_times=True) == seen
