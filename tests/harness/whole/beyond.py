"""More faults than are tolerated, on copies of the machine: then an error is right, and a wrong answer never.

quorum lost      a majority of the volumes is blank or gone: nothing is written; what is read is right
metadata hurt    a majority of the logs, or all, have a bit flipped, are cut or lose a file: right, or an error
blocks hurt      every copy of a block is damaged: its messages are lost with an error, never other ones shown
"""

from pathlib import Path
from typing import TYPE_CHECKING

from harness.model import seen_in_stream
from harness.processes import Machine
from harness.simulated_disk import SimulatedDirectory
from harness.whole.expectation import Violation, describe

from storage_core.errors import StorageError
from storage_core.sequences import SequenceSet
from storage_core.store.store import Store

if TYPE_CHECKING:
    from harness.whole.world import World


class Beyond:
    """Each check takes a copy of the machine as it is now."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.count = 0

    def check(self) -> None:
        """Do what a seed has time for."""
        machine = self._world.machine.copy
        self._hurt_metadata(machine(), self._world.volumes.paths)
        if self._world.plan.volume_count > 1:
            majority = self._world.plan.tolerated + 1
            volumes = self._world.volumes
            self._hurt_metadata(machine(), self._world.random.sample(volumes.paths, majority))
            good = volumes.paths[self._world.random.choice(volumes.good)]
            others = [path for path in volumes.paths if path != good]
            self._lose_quorum(machine(), self._world.random.sample(others, majority))
        self._hurt_blocks(machine())

    def _lose_quorum(self, machine: Machine, paths: list[Path]) -> None:
        self.count += 1
        for path in paths:
            machine.disk.put_back(path, SimulatedDirectory())
        left = [path for path in machine.paths if path not in paths]
        self._right_or_refused(machine, left, "a majority of the volumes is blank")
        try:
            store = machine.open(paths=left)
            store.add_stream({"name": "beyond"})
        except StorageError:
            return
        raise Violation("a stream was added while a majority of the volumes is blank")

    def _hurt_metadata(self, machine: Machine, paths: list[Path]) -> None:
        """Do the same to the newest file of one kind on each of these volumes."""
        self.count += 1
        random = self._world.random
        how = random.choice(("flip", "flip", "cut", "remove"))
        suffix = random.choice((".log", ".log", ".snap"))
        newest = {}
        for path in paths:
            files = [pair for pair in machine.disk.files() if pair[0].parent == path / "meta"]
            found = [one for one, inode in files if one.suffix == suffix and inode.content]
            if found:
                newest[path] = found[-1]
        share = random.random()
        for file in newest.values():
            size = len(machine.disk.inode(file).content)
            if how == "flip":
                machine.disk.flip_bit(file, int(share * size * 8))
            elif how == "cut":
                machine.disk.cut(file, int(share * size))
            else:
                machine.disk.remove(file)
        what = f"{how} {share:.2f} of {', '.join(str(one) for one in newest.values())}"
        self._world.note(f"    beyond: {what}")
        self._right_or_refused(machine, list(machine.paths), what, recover=True)

    def _hurt_blocks(self, machine: Machine) -> None:
        """Damage every copy of one block in the same place."""
        self.count += 1
        random, copies = self._world.random, {}
        for path, inode in machine.disk.files():
            if path.suffix == ".blk" and inode.content:
                copies.setdefault(path.name, []).append(path)
        if not copies:
            return
        share = random.random()
        chosen = copies[random.choice(sorted(copies))]
        for path in chosen:
            machine.disk.flip_bit(path, int(share * len(machine.disk.inode(path).content) * 8))
        self._right_or_refused(machine, list(machine.paths), f"bit {share:.2f} of {chosen[0].name} flipped everywhere")

    def _right_or_refused(self, machine: Machine, paths: list[Path], incident: str, recover: bool = False) -> None:
        """The store shows what it should, or says that it cannot."""
        try:
            store = machine.open(paths=self._ways_in(paths))
            if recover:
                with store.session():
                    pass
            shown = {name: seen_in_stream(store.stream(name)) for name in store.streams()}
        except StorageError:
            return
        if not self._world.expectation.allows(shown, lost=lost_in(store)):
            raise Violation(f"{incident}: no error, and the store shows {describe(shown)}")

    def _ways_in(self, paths: list[Path]) -> list[Path]:
        return [path for path in paths if not self._world.volumes.is_foreign(path)]


def lost_in(store: Store) -> dict[str, SequenceSet]:
    """Return which sequences the store itself has declared lost, by stream."""
    return {one.name: one.lost for one in store.view().state.streams.values() if one.lost}
