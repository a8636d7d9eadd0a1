"""One seed of the simulated store: processes take turns on it, everything that can happen to disks and processes does.

plan           what the seed decides before it begins
operations     what processes do
incidents      what happens in the middle of it
volumes        what happens to the volumes, within what is promised to be survived
expectation    what the store may hold
invariants     what must hold after every step
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from unittest.mock import patch

from harness.faults import CHANGING, LOCKING, READING, Call, FaultyFiles
from harness.model import seen_in_store
from harness.processes import Machine
from harness.simulated_disk import Fate, ProcessEnded
from harness.whole.expectation import CANDIDATES_MAX, Expectation, Operation, Violation
from harness.whole.incidents import Incident
from harness.whole.invariants import Invariants
from harness.whole.operations import Operations
from harness.whole.plan import Plan, chosen
from harness.whole.volumes import Volumes

from storage_core.errors import CorruptionError, StorageError
from storage_core.store.store import Store
from storage_core.store.volume import locks

ATTEMPTS = 3  # to recover what is not known, after which only a repaired store will do


@dataclass
class Process:
    """One process of the machine; `store` is None until it opens one."""

    name: str
    files: FaultyFiles
    store: Store | None = None
    mutexes: dict[str, threading.Lock] = field(default_factory=dict)  # what a process has of its own of the locks


class World:
    """Made of a seed; `run` raises Violation, or whatever the store should not have raised."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None, plan: Plan | None = None) -> None:
        self.seed, self._trace = seed, trace
        self.plan = plan or Plan.of(Random(seed))
        self.random = Random(~seed)  # apart from what the plan is drawn with: a plan that is kept goes with any seed
        self.machine = Machine(seed, self.plan.volume_count)
        self.machine.disk.strands_names = self.plan.volume_count == 1
        self.volumes = Volumes(self.machine, self.random, self.plan.tolerated, self.note)
        self.expectation = Expectation()
        self.invariants = Invariants(self)
        self.operations = Operations(self)
        self.processes: list[Process] = []
        self.incident: Incident | None = None
        self._in_it: Process | None = None  # the process that the incident happens to
        self._running: Operation | None = None
        self._started = 0
        self.step_count = self.call_count = 0
        self.merged_count = 0  # runs of blocks
        self.is_undecided = False  # power was lost, and nobody has led since

    def note(self, text: str) -> None:
        if self._trace is not None:
            self._trace(text)

    # --- the run

    def run(self) -> None:
        before = logging.getLogger("storage_core").level
        logging.getLogger("storage_core").setLevel(logging.CRITICAL)
        try:
            self._run()
        finally:
            logging.getLogger("storage_core").setLevel(before)

    def _run(self) -> None:
        self.note(f"seed {self.seed}: {self.plan}")
        settings = {
            "snapshot_every": self.plan.snapshot_every,
            "deleted_block_retention": self.plan.deleted_block_retention,
        }
        self.machine.create(**settings)
        self.processes = [self._new_process() for _ in range(self.plan.process_count)]
        self.operations.begin()
        for number in range(self.plan.step_count):
            self.step_count += 1
            self._step(number)
            self.invariants.after_step()
            self.incident = None
        self._end()

    def _step(self, number: int) -> None:
        name = chosen(self.random, self.plan.operations)
        process = self.random.choice(self.processes)
        if self.volumes.blacked_out and self.random.random() < 0.4:
            self.note("the volumes are back")
            if self.volumes.end_black_out():
                self.restart_all()  # who saw too few of them does not know where the others have gone
        made = self.operations.make(name)
        if made is None:
            return
        if process not in self.processes:  # that was the one that ended
            process = self.random.choice(self.processes)
        self.note(f"{number:3d} {process.name}: {made.name}")
        if self.random.random() < self.plan.incident_share:
            kind = chosen(self.random, self.plan.incidents)
            self.incident = Incident(kind, int(self.random.expovariate(1 / self.plan.call_mean)))
        self.carry_out(process, made)
        if self.plan.volume_count == 1 and self.incident is not None and self.incident.kind in FAILED_CALLS:
            self.restart_all()  # whoever met the failed call writes no more; others go on
        if len(self.expectation.models) > 1 and (
            self.random.random() < self.plan.settle_share or len(self.expectation.models) > CANDIDATES_MAX
        ):
            self.recover()

    def carry_out(self, process: Process, operation: Operation) -> bool:
        """Do it, with what happens in it, and learn from how it ends; return whether it was acked."""
        nested, outer = self._running is not None, self._running
        operation.now_ns = self.machine.clock.now
        if not nested:
            self._running, self._in_it = operation, process
        try:
            try:
                with patch.object(locks, "_mutexes", process.mutexes):
                    result = operation.act(self.open(process))
            finally:
                if not nested:
                    self._running = self._in_it = None
        except (StorageError, ProcessEnded) as error:
            self._ended(process, operation, error, nested)
            return False
        finally:
            self._running = outer
        happened = self.incident is not None and self.incident.happened
        self.expectation.acked(operation, result, may_be_left=happened or bool(self.volumes.bad))
        self.is_undecided = self.is_undecided and nested
        return True

    def _ended(self, process: Process, operation: Operation, error: BaseException, nested: bool) -> None:
        incident = None if nested else self.incident
        if isinstance(error, StorageError) and self.expectation.refused(operation, error):
            return
        self.note(f"    {type(error).__name__}: {error}")
        self.expectation.unknown(operation, error)
        if not self._is_excused(error, incident, nested):
            raise Violation(
                f"{operation.name} was refused with {type(error).__name__}: {error}; volumes that are bad: "
                f"{self.volumes.describe()}"
            ) from error
        if isinstance(error, ProcessEnded):
            process.files.end()
            self._replace(process)
            if incident is not None and incident.power_lost:
                self.lose_power()

    def _is_excused(self, error: BaseException, incident: Incident | None, nested: bool) -> bool:
        """Return whether the operation may fail. One bad volume of several is no excuse: the quorum goes on."""
        alone = self.plan.volume_count == 1
        if incident is not None and incident.happened and incident.kind in EXCUSES[alone]:
            return True
        if nested and isinstance(error, StorageError) and not isinstance(error, CorruptionError):
            return True  # the other process holds some of the locks, and what is left may be too little
        return bool(self.volumes.blacked_out) or (alone and bool(self.volumes.full))

    # --- processes

    def open(self, process: Process) -> Store:
        if process.store is None:
            process.store = self.machine.open(process.files, paths=self.volumes.ways_in())
        return process.store

    def _new_process(self) -> Process:
        self._started += 1
        files = self.machine.files()
        process = Process(f"P{self._started}", files)
        files.counted = CHANGING + READING + LOCKING
        files.judge = lambda call: self._judge(process, call)
        return process

    def _replace(self, process: Process) -> None:
        self.processes[self.processes.index(process)] = self._new_process()

    def kill(self, process: Process) -> None:
        process.files.end()
        self._replace(process)

    def lose_power(self) -> None:
        self.is_undecided = True
        self.machine.disk.lose_power(Fate.draw(self.random))
        self.volumes.lose_power()
        for process in list(self.processes):
            self.kill(process)

    def repair_volumes(self) -> None:
        """Let an operator bring the volumes back; the programs open them anew where they did not know all."""
        if self.volumes.bring_back():
            self.restart_all()

    def restart_all(self) -> None:
        for process in list(self.processes):
            self.kill(process)

    def _judge(self, process: Process, call: Call) -> int:
        self.call_count += 1
        process.files.calls.clear()
        verdict = self.volumes.verdict(call)
        if not verdict and self.incident is not None and process is self._in_it:
            verdict = self.incident.meet(self, process, call)
        return verdict

    def interlude(self, waiting: Process) -> None:
        """Let another process do one thing while `waiting` is in the middle of another."""
        others = [one for one in self.processes if one is not waiting]
        other = self.random.choice(others) if others else self._new_process()
        operation = self.operations.make_interlude(self._running)
        if operation is not None:
            self.note(f"      {other.name}: {operation.name}")
            self.carry_out(other, operation)

    @property
    def running(self) -> Operation | None:
        return self._running

    # --- knowing

    def recover(self) -> None:
        """Hold the store once, and see what became of everything that was not acked."""
        if self.volumes.blacked_out:
            return
        if self.plan.volume_count == 1:
            self.volumes.full.clear()
        process = self.random.choice(self.processes)
        self.note(f"    {process.name} settles")
        store = self.open(process)
        with store.session():
            pass
        self.expectation.look(seen_in_store(store), None, is_final=True)

    def _end(self) -> None:
        self.note("the end")
        self.volumes.end_black_out()
        if self.plan.volume_count == 1:
            self.volumes.full.clear()
        self.recover()
        self.invariants.at_the_end()


FAILED_CALLS = ("EIO", "fsync", "read_EIO", "ENOSPC")
ALWAYS_EXCUSED = ("kill", "kill_halfway", "power", "other_process", "process_error")
EXCUSES = {True: (*ALWAYS_EXCUSED, *FAILED_CALLS), False: ALWAYS_EXCUSED}  # by whether there is one volume only
