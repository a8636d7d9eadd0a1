"""Scenarios 3, 4, 5, 17, 19 and 22: every file of a volume flipped, cut, gone, or of an unknown version.

On a minority nothing of it is seen and the store goes on; on a majority it says clearly what it cannot do.
"""

from pathlib import Path
from unittest.mock import patch

import pytest
from harness.cases import Cases
from harness.damage import CUTS, FLIPS, Damage, check_healed, check_survived, files_of, refused
from harness.faults import file_kind
from harness.life import STEPS
from harness.model import Content, seen_in_store, seen_in_stream
from harness.processes import Machine
from harness.scenes import machine_before, shown_before
from harness.simulated_disk import PAGE_SIZE

from storage_core.errors import DataLossError, StorageError, UnsupportedVersionError
from storage_core.raft import log_format, snapshot_format
from storage_core.store.stream import Stream
from storage_core.store.volume import identity

STEP = 16  # of the life: two streams, removed messages, snapshots, a writer's batch
METADATA = ("identity", "segment", "snapshot")


def damaged(damage: Damage, number: int, volume: int, volume_count: int = 3) -> tuple[Machine, str]:
    """Return a machine on which the file of that number is damaged on one volume, and what kind of file it is."""
    machine = machine_before(STEP, volume_count)
    kind, path = list(files_of(machine, machine.paths[volume]))[number]
    damage.apply(machine.disk, path)
    return machine, f"{kind} {path.name}"


def file_count(volume: int = 0) -> int:
    machine = machine_before(STEP, 3)
    return len(list(files_of(machine, machine.paths[volume])))


@pytest.mark.parametrize("volume", range(3))
def test_fault_03_a_flipped_bit_on_one_volume_of_three(volume: int) -> None:
    cases = Cases(f"fault 03: a bit flipped on volume {volume} of three")
    for number in range(file_count(volume)):
        for damage in FLIPS[volume::3]:
            machine, what = damaged(damage, number, volume)
            with cases.case(f"{what}, {damage.name}", what.split()[0]):
                check_survived(machine, STEP, machine.paths[volume])
    cases.finish()


def test_fault_03_flipped_bits_on_two_volumes_of_five() -> None:
    """Each in another file, or both in the same."""
    cases = Cases("fault 03: bits flipped on two volumes of five")
    for number in range(file_count()):
        for other in (number, (number + 5) % file_count()):
            machine, what = damaged(FLIPS[number % len(FLIPS)], number, 0, 5)
            files = list(files_of(machine, machine.paths[3]))
            FLIPS[other % len(FLIPS)].apply(machine.disk, files[other % len(files)][1])
            with cases.case(f"{what} and {files[other % len(files)][1]}", what.split()[0]):
                assert seen_in_store(machine.open()) == shown_before(STEP)
                store = machine.open()
                STEPS[STEP].act(store)
                assert seen_in_store(machine.open()) == shown_before(STEP + 1)
                check_healed(machine, STEP + 1)
    cases.finish()


def test_fault_04_a_file_cut_or_gone_on_one_volume_of_three() -> None:
    cases = Cases("fault 04: a file cut or gone")
    for volume in range(3):
        for number in range(volume, file_count(volume), 2):
            for damage in CUTS:
                machine, what = damaged(damage, number, volume)
                with cases.case(f"{what} on volume {volume}, {damage.name}", f"{what.split()[0]} {damage.name}"):
                    check_survived(machine, STEP, machine.paths[volume])
    cases.finish()


@pytest.mark.parametrize("name", ["meta", "streams", "streams/*"])
def test_fault_04_a_folder_gone_on_one_volume_of_three(name: str) -> None:
    cases = Cases(f"fault 04: the folder {name} gone")
    for volume in range(3):
        machine = machine_before(STEP, 3)
        path = machine.paths[volume]
        folders = [path / name]
        if name.endswith("*"):
            folders = sorted(path / "streams" / one for one in machine.disk.directory(path / "streams").names)
        for folder in folders:
            with cases.case(f"{folder}"):
                hurt = machine.copy()
                hurt.disk.remove(folder)
                check_survived(hurt, STEP, path)
    cases.finish()


def test_fault_05_metadata_damaged_on_a_majority_stops_clearly_and_changes_nothing() -> None:
    """The same files on two volumes of three, and on all: what is shown is right, or there is an error."""
    cases = Cases("fault 05: metadata damaged on a majority")
    for count in (2, 3):
        for number, damage in enumerate((*FLIPS, *CUTS)):
            for kind in METADATA:
                machine = machine_before(STEP, 3)
                for path in machine.paths[:count]:
                    chosen = list(files_of(machine, path, (kind,)))
                    damage.apply(machine.disk, chosen[number % len(chosen)][1])
                with cases.case(f"{kind}, {damage.name}, on {count}", f"{kind} on {count}"):
                    before = blocks_of(machine)
                    check_right_or_refused(machine)
                    assert blocks_of(machine) == before, "blocks were removed"
    cases.finish()


def blocks_of(machine: Machine) -> list[str]:
    return [str(path) for path, _ in machine.disk.files() if file_kind(path) == "block"]


def check_right_or_refused(machine: Machine) -> None:
    try:
        store = machine.open()
        with store.session():
            pass
    except StorageError:
        return
    assert seen_in_store(store) == shown_before(STEP)


@pytest.mark.parametrize("volume_count", [1, 3])
def test_fault_17_a_block_damaged_everywhere_is_lost_once_and_named(volume_count: int) -> None:
    cases = Cases(f"fault 17: a block damaged on all of {volume_count}")
    machine = machine_before(STEP, volume_count)
    names = sorted({path.name for _, path in files_of(machine, machine.paths[0], ("block",))})
    for name in names:
        for damage in (*FLIPS[3:14:5], *CUTS):
            hurt = machine.copy()
            for path, _ in hurt.disk.files():
                if path.name == name:
                    damage.apply(hurt.disk, path)
            with cases.case(f"{name}, {damage.name}", damage.name):
                check_lost(hurt)
    cases.finish()


def check_lost(machine: Machine) -> None:
    """What is left is read, what is lost is named, and no number of it is used again."""
    store, shown = machine.open(), shown_before(STEP)
    lost = sum(is_lost_in(store.stream(name), before) for name, before in shown.items())
    assert lost <= 1
    for name, before in shown.items():
        stream = store.stream(name)
        assert stream.last_sequence == before.last_sequence
        assert stream.publish("orders.eu" if name == "orders" else name, b"next").sequence == before.last_sequence + 1


def is_lost_in(stream: Stream, before: Content) -> bool:
    try:
        assert seen_in_stream(stream) == before
        return False
    except DataLossError:
        told: list[object] = []
        read = stream.read(columns=["sequence", "data"], on_data_loss="continue", report=told.append).read_all()
    left = dict(zip(read.column("sequence").to_pylist(), read.column("data").to_pylist(), strict=True))
    assert told and len(left) < len(before.messages)
    assert left.items() <= {sequence: row.data for sequence, row in before.messages}.items()
    return True


def test_fault_19_an_index_that_is_stale_ahead_corrupt_or_missing_is_rebuilt() -> None:
    cases = Cases("fault 19: index.db")
    last = len(STEPS)
    for volume in range(3):
        path = machine_before(STEP, 3).paths[volume] / "index.db"
        earlier, later = machine_before(STEP, 3), machine_before(last, 3)
        assert later.open().verify()["ok"]
        stale, ahead = bytes(earlier.disk.inode(path).content), bytes(later.disk.inode(path).content)
        for step, machine, other in ((STEP, earlier, ahead), (last, later, stale)):
            expected = machine.open().verify()["checked_blocks"]
            changed = [("missing", None), ("stale or ahead", other), ("empty", b""), ("garbage", bytes(range(256)) * 4)]
            for name, content in changed:
                with cases.case(f"{name} on volume {volume} after step {step}", name):
                    hurt = machine.copy()
                    hurt.disk.remove(path) if content is None else hurt.disk.overwrite(path, content)
                    assert seen_in_store(hurt.open()) == shown_before(step)
                    found = hurt.open().verify()
                    assert found["ok"] and found["checked_blocks"] == expected
    cases.finish()


@pytest.mark.parametrize("kind", METADATA)
def test_fault_22_a_file_of_an_unknown_version_is_refused_and_not_guessed(kind: str) -> None:
    """A newer program was at work on one volume of three, or on the only one: its checksums are right."""
    cases = Cases(f"fault 22: {kind} of an unknown version")
    for volume_count in (1, 3):
        for volume in range(volume_count):
            machine = machine_before(STEP, volume_count)
            _, path = list(files_of(machine, machine.paths[volume], (kind,)))[-1]
            with cases.case(str(path)):
                before = bytes(machine.disk.inode(path).content)
                machine.disk.overwrite(path, of_a_newer_program(kind, before))
                assert isinstance(refused(machine), UnsupportedVersionError)
                machine.disk.overwrite(path, before)
                assert seen_in_store(machine.open()) == shown_before(STEP), "something was changed"
    cases.finish()


def of_a_newer_program(kind: str, content: bytes) -> bytes:
    page, rest = content[:PAGE_SIZE], content[PAGE_SIZE:]
    if kind == "identity":
        found = identity.decode_identity(page, Path("of the test"))
        with patch.object(identity, "FORMAT_VERSION", 2):
            return found.encode()
    if kind == "segment":
        header = log_format.decode_segment_header(page)
        with patch.object(log_format, "FORMAT_VERSION", 2):
            return header.encode() + rest
    snapshot = snapshot_format.decode(page)
    with patch.object(snapshot_format, "FORMAT_VERSION", 2):
        return snapshot_format.encode(snapshot).ljust(PAGE_SIZE, b"\0") + rest
