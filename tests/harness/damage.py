"""Damage to the files of a volume: what may happen to one file, and what must be so afterwards.

files_of         the files of a volume that say something, by kind
DAMAGES          what is done to one of them
check_survived   with a good majority left nothing of it is seen, and the store goes on
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.faults import file_kind
from harness.life import STEPS
from harness.model import seen_in_store
from harness.processes import Machine
from harness.replicas import replica_states
from harness.scenes import shown_before
from harness.simulated_disk import NOTHING_KEPT, PAGE_SIZE, SimulatedDirectory, SimulatedDisk

from storage_core.errors import StorageError
from storage_core.store.store import Store

KINDS = ("identity", "segment", "snapshot", "block", "journal", "index")


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that happens to one file."""

    name: str
    apply: Callable[[SimulatedDisk, Path], None]


def _flip(share: float) -> Callable[[SimulatedDisk, Path], None]:
    return lambda disk, path: disk.flip_bit(path, int(share * (len(disk.inode(path).content) * 8 - 1)))


def _cut(share: float, unit: int = 1) -> Callable[[SimulatedDisk, Path], None]:
    def apply(disk: SimulatedDisk, path: Path) -> None:
        size = len(disk.inode(path).content)
        disk.cut(path, min(size - 1, int(share * size) // unit * unit))

    return apply


FLIPS = tuple(Damage(f"a bit flipped at {share:.3f}", _flip(share)) for share in (at / 16 for at in range(17)))
CUTS = (
    Damage("cut to nothing", _cut(0.0)),
    Damage("cut in the middle", _cut(0.5)),
    Damage("cut on a page boundary", _cut(0.7, PAGE_SIZE)),
    Damage("cut by one byte", _cut(1.0)),
    Damage("gone", lambda disk, path: disk.remove(path)),
)


def files_of(machine: Machine, volume: Path, kinds: tuple[str, ...] = KINDS) -> Iterator[tuple[str, Path]]:
    """Yield (kind, path) of the files that are not empty."""
    for path, inode in machine.disk.files(volume):
        if file_kind(path) in kinds and inode.content:
            yield file_kind(path), path


def without(machine: Machine, *volumes: Path) -> Machine:
    """Return a copy of the machine in which these volumes are gone."""
    copy = machine.copy()
    for volume in volumes:
        if volume.name in copy.disk.directory(volume.parent).names:
            copy.disk.take_away(volume)
    return copy


def open_by(machine: Machine, *volumes: Path) -> Store:
    """Open the store by the paths of these volumes, or by all."""
    return machine.open(paths=volumes or machine.paths)


def check_survived(machine: Machine, step: int, bad: Path, named: tuple[Path, ...] = ()) -> None:
    """Check that a store of which one volume is bad shows everything, takes the next step, and keeps it.

    `step`: how many steps of the life are done. Afterwards the volume is repaired, and all are the same again.
    """
    assert seen_in_store(open_by(machine, *named)) == shown_before(step), "something else is shown"
    store = open_by(machine, *named)
    STEPS[step].act(store)
    assert seen_in_store(store) == shown_before(step + 1)
    machine.disk.lose_power(NOTHING_KEPT)
    alone = without(machine, bad)
    assert seen_in_store(open_by(alone, *(path for path in alone.paths if path != bad))) == shown_before(step + 1)
    check_healed(machine, step + 1, named)


def check_healed(machine: Machine, done: int, named: tuple[Path, ...] = ()) -> None:
    """Repair the store; then every replica is current, all are equal, and any majority of them is enough."""
    store = open_by(machine, *named)
    report = store.repair()
    assert report["ok"], report
    for stream in store.view().state.streams.values():
        states = replica_states(store, stream)
        assert all(one.current for one in states), states
        assert len({one.digest for one in states}) <= 1, states
    assert seen_in_store(store) == shown_before(done)
    machine.disk.lose_power(NOTHING_KEPT)
    for first in range(len(machine.paths)):
        gone = {machine.paths[(first + at) % len(machine.paths)] for at in range(len(machine.paths) // 2)}
        left = [path for path in machine.paths if path not in gone]
        assert seen_in_store(without(machine, *gone).open(paths=left)) == shown_before(done), f"without {gone}"


def blank(machine: Machine, volume: Path) -> None:
    machine.disk.put_back(volume, SimulatedDirectory())


def refused(machine: Machine, *named: Path) -> StorageError:
    """Return the error that a session on the store ends in."""
    try:
        with open_by(machine, *named).session():
            pass
    except StorageError as error:
        return error
    raise AssertionError("the store was not refused")
