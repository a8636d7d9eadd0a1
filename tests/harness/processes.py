"""Environments for stores on a simulated disk: files, a clock that only tests move, randomness from a seed."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from harness.faults import FaultyFiles, Judge, end_at, let_everything_happen
from harness.objects.server import Buckets, Server
from harness.simulated_disk import ProcessEnded, SimulatedDisk

from storage_core.objects.files import ObjectFiles
from storage_core.objects.reached import AnyFiles
from storage_core.store.environment import Environment, one_after_another
from storage_core.store.store import Store
from storage_core.store.volume import object_probe

SECOND_NS = 1_000_000_000
VOLUME = Path("/disk/volume")
VOLUMES = tuple(Path(f"/disk/volume-{letter}") for letter in "abcde")


def volume_paths(count: int) -> tuple[Path, ...]:
    """Return where the volumes of a store of so many are."""
    return (VOLUME,) if count == 1 else VOLUMES[:count]


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
    """One host: a disk, a clock, and processes that come and go.

    A store's volumes are directories of the disk, or lie in buckets of this machine's own on a server (`server`).
    """

    seed: int
    volume_count: int = 1
    disk: SimulatedDisk = field(init=False)
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    buckets: Buckets | None = field(init=False, default=None)  # where its volumes are, instead of on its disk
    server: ClassVar[Server | None] = None  # of all machines that are made: see the conftest of the store

    def __post_init__(self) -> None:
        self.disk = SimulatedDisk(self.seed)
        if self.server is not None:
            self.buckets = Buckets(self.server, self.volume_count)
        self._random = random.Random(self.seed ^ 0x5EED)
        self._order = random.Random(self.seed ^ 0x0DE2)

    @property
    def paths(self) -> tuple[Path, ...]:
        if self.buckets is not None:
            return self.buckets.volumes
        return volume_paths(self.volume_count)

    def copy(self) -> "Machine":
        """Return this machine as it is now, without its processes; whatever happens to one leaves the other alone."""
        copy = Machine(self.seed, self.volume_count)
        copy.disk, copy.clock.now = self.disk.copy(), self.clock.now
        if self.buckets is not None and copy.buckets is not None:
            self.buckets.copy_to(copy.buckets)
        copy._random.setstate(self._random.getstate())
        copy._order.setstate(self._order.getstate())
        return copy

    def files(self, judge: Judge = let_everything_happen) -> FaultyFiles:
        """Return the files of a new process."""
        local = self.disk.process()
        if self.buckets is not None:
            return FaultyFiles(AnyFiles(local, ObjectFiles(self.buckets.connect)), judge)
        return FaultyFiles(local, judge)

    def environment(self, files: FaultyFiles | None = None) -> Environment:
        return Environment(
            files=files if files is not None else self.files(),
            now_ns=self.clock,
            random_bytes=self._random.randbytes,
            lock_domain=lambda: "simulated host",
            sleep=self.clock.sleep,
            parallel=self.in_some_order,
        )

    def in_some_order(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Carry out what may happen at once, one after another in an order that the seed decides."""
        order = list(range(len(calls)))
        self._order.shuffle(order)
        outcomes = one_after_another([calls[at] for at in order])
        return [outcomes[order.index(at)] for at in range(len(calls))]

    def open(
        self, files: FaultyFiles | None = None, read_only: bool = False, paths: Sequence[Path] | None = None
    ) -> Store:
        """Open the store, by all its volumes or those that are named, in a new process or in that of `files`."""
        named = list(self.paths if paths is None else paths)
        return Store.open(named, read_only=read_only, lock_timeout_s=0.0, env=self.environment(files))

    def ended_at_each_call(self, act: Callable[[Store], object]) -> Iterator["Machine"]:
        """Yield copies of this machine on which `act` was ended at its first call that changes something, its second,
        and so on; on the last of them it was not ended.
        """
        for number in count():
            trial = self.copy()
            try:
                act(trial.open(trial.files(end_at(number))))
            except ProcessEnded:
                yield trial
            else:
                yield trial
                return

    def create(self, **settings: Any) -> Store:
        """Make a store on all volumes."""
        with patch.object(object_probe, "PATIENCE_S", 0.0):  # what is simulated always lets one win
            return Store.create(list(self.paths), env=self.environment(), **settings)
