"""Environments for stores on a simulated disk: files, a clock that only tests move, randomness from a seed."""

import random
from dataclasses import dataclass, field
from pathlib import Path

from harness.faults import FaultyFiles, Judge, let_everything_happen
from harness.simulated_disk import SimulatedDisk

from storage_core.store.environment import Environment
from storage_core.store.store import Store

SECOND_NS = 1_000_000_000
VOLUME = Path("/disk/volume")


@dataclass
class SimulatedClock:
    """Time that passes by a microsecond at each look, and by what a test adds."""

    now: int = 1_700_000_000 * SECOND_NS

    def __call__(self) -> int:
        self.now += 1_000
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += int(seconds * SECOND_NS)


@dataclass
class Machine:
    """One host: a disk, a clock, and processes that come and go."""

    seed: int
    disk: SimulatedDisk = field(init=False)
    clock: SimulatedClock = field(default_factory=SimulatedClock)

    def __post_init__(self) -> None:
        self.disk = SimulatedDisk(self.seed)
        self._random = random.Random(self.seed ^ 0x5EED)

    def copy(self) -> "Machine":
        """Return this machine as it is now, without its processes; whatever happens to one leaves the other alone."""
        copy = Machine(self.seed)
        copy.disk, copy.clock.now = self.disk.copy(), self.clock.now
        copy._random.setstate(self._random.getstate())
        return copy

    def files(self, judge: Judge = let_everything_happen) -> FaultyFiles:
        """Return the files of a new process."""
        return FaultyFiles(self.disk.process(), judge)

    def environment(self, files: FaultyFiles | None = None) -> Environment:
        return Environment(
            files=files if files is not None else self.files(),
            now_ns=self.clock,
            random_bytes=self._random.randbytes,
            lock_domain=lambda: "simulated host",
            sleep=self.clock.sleep,
        )

    def open(self, files: FaultyFiles | None = None, read_only: bool = False) -> Store:
        """Open the store in a new process, or in that of `files`."""
        return Store.open(VOLUME, read_only=read_only, lock_timeout_s=0.0, env=self.environment(files))
