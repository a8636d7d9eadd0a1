"""Scenarios 7, 8, 11, 15, 18 and 21: volumes that are away, come back as others, or do not agree.

Each fault is met at every step of the life, which has streams deleted, made again, purged and overwritten.
"""

from collections.abc import Callable
from itertools import combinations

import pytest
from harness.cases import Cases
from harness.damage import blank, check_healed, check_survived, files_of, open_by, refused, without
from harness.life import SETTINGS, STEPS
from harness.model import seen_in_store
from harness.processes import Machine
from harness.scenes import machine_before, shown_before
from harness.simulated_disk import NOTHING_KEPT

from storage_core.errors import NoQuorumError, StorageError
from storage_core.store.store import Store

AT = range(3, len(STEPS) - 1, 3)  # steps of the life at which a volume goes, or comes back


def away_from(first: int, volume: int, volume_count: int = 3, step_count: int = 4) -> tuple[Machine, int]:
    """Return a machine on which a volume missed the steps from `first` on and is back, and how many are done."""
    machine = machine_before(first, volume_count)
    path, end = machine.paths[volume], min(len(STEPS) - 1, first + step_count)
    taken = machine.disk.take_away(path)
    store = machine.open(paths=[one for one in machine.paths if one != path])
    for step in STEPS[first:end]:
        step.act(store)
    assert seen_in_store(store) == shown_before(end)
    machine.disk.put_back(path, taken)
    return machine, end


def test_fault_07_a_volume_comes_back_blank() -> None:
    cases = Cases("fault 07: a volume comes back blank")
    for step in AT:
        for volume in range(3):
            machine = machine_before(step, 3)
            with cases.case(f"volume {volume} before step {step}"):
                blank(machine, machine.paths[volume])
                check_survived(machine, step, machine.paths[volume])
    cases.finish()


def test_fault_07_a_volume_comes_back_older() -> None:
    """As it was some steps ago, from a backup of the disk or a snapshot of the machine."""
    cases = Cases("fault 07: a volume comes back older")
    for step in AT:
        for back in (1, 2, 5, step):
            volume = (step + back) % 3
            machine = machine_before(step, 3)
            older = machine_before(max(0, step - back), 3).disk.image_below(machine.paths[volume])
            with cases.case(f"volume {volume} before step {step}, {back} steps older", f"{back} steps"):
                machine.disk.put_back(machine.paths[volume], older)
                check_survived(machine, step, machine.paths[volume])
    cases.finish()


def test_fault_07_two_volumes_of_five_come_back_blank_and_older() -> None:
    cases = Cases("fault 07: two volumes of five")
    for step in AT:
        machine = machine_before(step, 5)
        older = machine_before(step - 3, 5).disk.image_below(machine.paths[step % 5])
        with cases.case(f"before step {step}"):
            machine.disk.put_back(machine.paths[step % 5], older)
            blank(machine, machine.paths[(step + 2) % 5])
            assert seen_in_store(machine.open()) == shown_before(step)
            STEPS[step].act(machine.open())
            machine.disk.lose_power(NOTHING_KEPT)
            assert seen_in_store(machine.open()) == shown_before(step + 1)
            check_healed(machine, step + 1)
    cases.finish()


def test_fault_07_a_disk_of_another_store_is_not_mixed_in() -> None:
    cases = Cases("fault 07: a disk of another store")
    for step in AT:
        volume = step % 3
        machine, other = machine_before(step, 3), Machine(99, 3)
        other.create(**SETTINGS)
        machine.disk.put_back(machine.paths[volume], other.disk.image_below(machine.paths[volume]))
        named = tuple(path for path in machine.paths if path != machine.paths[volume])
        with cases.case(f"volume {volume} before step {step}"):
            before = [bytes(inode.content) for _, inode in machine.disk.files(machine.paths[volume])]
            assert seen_in_store(open_by(machine, *named)) == shown_before(step)
            STEPS[step].act(open_by(machine, *named))
            assert seen_in_store(open_by(machine, *named)) == shown_before(step + 1)
            assert [bytes(inode.content) for _, inode in machine.disk.files(machine.paths[volume])] == before
    cases.finish()


def test_fault_07_volumes_that_changed_their_places_are_known_by_identity() -> None:
    cases = Cases("fault 07: volumes in other places")
    for step in AT:
        for first, second in combinations(range(3), 2):
            machine = machine_before(step, 3)
            disk, paths = machine.disk, machine.paths
            with cases.case(f"{first} and {second} before step {step}"):
                taken = disk.take_away(paths[first])
                disk.put_back(paths[first], disk.take_away(paths[second]))
                disk.put_back(paths[second], taken)
                check_survived(machine, step, paths[first])
    cases.finish()


# --- replicas that do not agree ---------------------------------------------------------------------------------------


def drop_first_blocks(machine: Machine, volume: int) -> int:
    """Take the older half of each stream's blocks from one volume, leaving its metadata as it is; return how many."""
    state, gone = machine.open().view().state, 0
    for stream in state.streams.values():
        rows = stream.blocks.rows
        for row in rows[: max(1, len(rows) // 2)] if len(rows) else []:
            name = f"{bytes(row['block_id']).hex()}.blk"
            path = machine.paths[volume] / "streams" / stream.incarnation.hex() / name
            machine.disk.remove(path)
            gone += 1
    return gone


def test_fault_08_a_replica_lost_its_older_messages_while_its_metadata_stayed() -> None:
    """The drift of nats-server #5576: equal last sequences, and one replica without its older messages."""
    cases = Cases("fault 08: older messages gone on one replica")
    for step in AT:
        for volume in range(3):
            machine = machine_before(step, 3)
            gone = drop_first_blocks(machine, volume)
            if not gone:
                continue
            with cases.case(f"volume {volume} before step {step}: {gone} blocks"):
                found = machine.open().verify()
                assert not found["ok"], "nothing was found"
                named = {one["volume"] for one in found["damage"]}
                assert len(named) == 1, named
                check_survived(machine, step, machine.paths[volume])
    cases.finish()


def test_fault_08_a_replica_has_other_bytes_under_the_same_names() -> None:
    cases = Cases("fault 08: other content on one replica")
    for step in AT:
        machine = machine_before(step, 3)
        volume = machine.paths[step % 3]
        blocks = [path for _, path in files_of(machine, volume, ("block",))]
        for one, other in zip(blocks, blocks[1:], strict=False):
            hurt = machine.copy()
            with cases.case(f"{one.name} has the content of {other.name} before step {step}"):
                hurt.disk.overwrite(one, bytes(machine.disk.inode(other).content))
                assert not hurt.open().verify()["ok"]
                check_survived(hurt, step, volume)
    cases.finish()


# --- away -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("volume", range(3))
def test_fault_18_a_stream_is_deleted_and_made_again_while_a_volume_is_away(volume: int) -> None:
    """Also purged, overwritten and snapshotted: wherever it went, it catches up and nothing of two lives is mixed."""
    cases = Cases(f"fault 18: volume {volume} was away")
    absences = [(first, step_count) for step_count in (1, 4, 10) for first in range(1, len(STEPS) - 5, 2)]
    for first, step_count in absences[volume::3]:  # each volume takes a third of them
        machine, done = away_from(first, volume, step_count=step_count)
        with cases.case(f"{step_count} steps from {first}", f"{step_count} steps"):
            check_survived(machine, done, machine.paths[volume])
    cases.finish()


def test_fault_18_its_peers_were_wiped_and_rebuilt_while_a_volume_was_away() -> None:
    """The one that was away holds another store's life: it is not mixed with what its peers hold now."""
    cases = Cases("fault 18: the peers were made anew")
    for step in AT:
        machine = machine_before(step, 3)
        with cases.case(f"before step {step}"):
            for path in machine.paths[1:]:
                machine.disk.take_away(path)
            anew = Store.create(list(machine.paths[1:]) + [machine.paths[0].parent / "new"], env=machine.environment())
            anew.add_stream({"name": "orders"}).publish("orders", b"of the new life")
            new = machine.open(paths=machine.paths[1:])
            assert [row.data for _, row in seen_in_store(new)["orders"].messages] == [b"of the new life"]
            before = {path: bytes(inode.content) for path, inode in machine.disk.files(machine.paths[0])}
            most = machine.open()  # most of the paths belong to the new store: the other one is a wrong disk
            assert [row.data for _, row in seen_in_store(most)["orders"].messages] == [b"of the new life"]
            assert {path: bytes(inode.content) for path, inode in machine.disk.files(machine.paths[0])} == before
    cases.finish()


# --- too few ----------------------------------------------------------------------------------------------------------


Losing = Callable[[Machine, int], None]
WAYS_TO_LOSE: dict[str, Losing] = {
    "gone": lambda machine, volume: machine.disk.take_away(machine.paths[volume]) and None,
    "blank": lambda machine, volume: blank(machine, machine.paths[volume]),
}


@pytest.mark.parametrize("way", WAYS_TO_LOSE)
@pytest.mark.parametrize("volume_count", [3, 5])
def test_fault_21_without_a_quorum_what_is_committed_is_read_and_nothing_is_written(
    way: str, volume_count: int
) -> None:
    cases = Cases(f"fault 21: a majority of {volume_count} volumes is {way}")
    for step in AT:
        for lost in list(combinations(range(volume_count), volume_count // 2 + 1))[:: volume_count - 2]:
            machine = machine_before(step, volume_count)
            for volume in lost:
                WAYS_TO_LOSE[way](machine, volume)
            left = [path for at, path in enumerate(machine.paths) if at not in lost]
            with cases.case(f"volumes {lost} before step {step}"):
                before = {path: bytes(inode.content) for path, inode in machine.disk.files() if path.name != "lock"}
                assert seen_in_store(machine.open(paths=left)) == shown_before(step)
                assert isinstance(refused(machine, *left), NoQuorumError)
                after = {path: bytes(inode.content) for path, inode in machine.disk.files() if path.name != "lock"}
                assert after == before, "something was written"
    cases.finish()


@pytest.mark.parametrize("volume_count", [3, 5])
def test_fault_15_every_shape_of_what_can_be_reached(volume_count: int) -> None:
    """A majority goes on, a minority refuses; when all are back, they agree without a hand."""
    cases = Cases(f"fault 15: every set of {volume_count} volumes")
    for size in range(1, volume_count):
        for reached in combinations(range(volume_count), size):
            step = AT[(size + sum(reached)) % len(AT)]
            with cases.case(f"only {reached} before step {step}", f"{size} of {volume_count}"):
                check_reached(machine_before(step, volume_count), step, reached)
    cases.finish()


def check_reached(machine: Machine, step: int, reached: tuple[int, ...]) -> None:
    away = [path for at, path in enumerate(machine.paths) if at not in reached]
    taken = {path: machine.disk.take_away(path) for path in away}
    here = [path for path in machine.paths if path not in away]
    done = step
    if len(reached) > len(machine.paths) // 2:
        store = machine.open(paths=here)
        for one in STEPS[step : step + 2]:
            one.act(store)
        done = min(step + 2, len(STEPS))
    else:
        assert isinstance(refused(machine, *here), NoQuorumError)
    machine.disk.lose_power(NOTHING_KEPT)
    for path, node in taken.items():
        machine.disk.put_back(path, node)
    store = machine.open()
    assert seen_in_store(store) == shown_before(done)
    with store.session():
        pass
    machine.disk.lose_power(NOTHING_KEPT)
    for path in machine.paths[: len(machine.paths) // 2]:
        assert shown_metadata(without(machine, path)) == shown_metadata(machine), "the metadata did not catch up"
    check_healed(machine, done)


def shown_metadata(machine: Machine) -> dict[str, int]:
    store = machine.open(paths=[path for path in machine.paths if machine_has(machine, path)])
    return {name: store.stream(name).last_sequence for name in store.streams()}


def machine_has(machine: Machine, path: object) -> bool:
    return any(str(one).startswith(f"{path}/") for one, _ in machine.disk.files())


def test_fault_11_a_gap_between_snapshot_and_log_is_refused_or_caught_up() -> None:
    """Segments of the middle, or the snapshots, are gone on one volume (caught up) or on all (refused)."""
    cases = Cases("fault 11: a gap between snapshot and log")
    for step in AT:
        for count in (1, 3):
            for kind in ("snapshot", "segment"):
                machine = machine_before(step, 3)
                for volume in machine.paths[:count]:
                    chosen = [path for _, path in files_of(machine, volume, (kind,))]
                    for path in chosen[: max(1, len(chosen) - 1)] if kind == "segment" else chosen:
                        machine.disk.remove(path)
                with cases.case(f"{kind}s gone on {count} before step {step}", f"{kind} on {count}"):
                    if count == 1:
                        check_survived(machine, step, machine.paths[0])
                    else:
                        check_gap(machine, step)
    cases.finish()


def check_gap(machine: Machine, step: int) -> None:
    try:
        store = machine.open()
        with store.session():
            pass
    except StorageError:
        return
    assert seen_in_store(store) == shown_before(step), "replayed into a shift"
