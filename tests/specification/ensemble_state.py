"""States of the model of the ensemble, and what it may be asked to endure."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from ensemble_rules import NOT_WRITTEN, Task
from ensemble_volume import Volume
from entries import LOG, WHAT

N, QUORUM = 3, 2


@dataclass(frozen=True)
class Budget:
    """How often each thing may happen."""

    jobs: tuple[str, ...] = ("a", "b")  # by process: each letter is an append; "-a" aborts that of a: "c,-a"
    turns: int = 3
    kills: int = 0
    interrupts: int = 0
    power_losses: int = 0
    failed_fsyncs: int = 0
    volume_faults: int = 0  # of one volume at a time
    images: int = 2  # of a volume that may be put back
    absences: int = 0  # volumes that are out of sight for a while, while all others are in sight
    one_by_one: bool = False  # try-locks are steps of their own
    blocks: bool = False  # tasks write blocks before the append
    heal_every: int = 0  # every so many states: do all faults heal?


class Left(NamedTuple):
    """What of the budget is left."""

    turns: int
    kills: int
    interrupts: int
    power_losses: int
    failed_fsyncs: int
    volume_faults: int
    absences: int


# Where a process stands with one volume within a session.
NONE, WRITTEN, READY = 0, 1, 2  # nothing yet; prepared; that is fsynced
SENT, STORED = 3, 4  # the entry is written; that is fsynced
FAILED, OUT = -1, -2  # an I/O error in this session; it never took part


class Process(NamedTuple):
    at: str  # idle, locking, reading, writing, recording
    jobs: tuple[str, ...]  # left to do
    term: int  # that it leads, between sessions as well; 0: none
    synced: tuple[int, ...]  # by volume: the log that it knows to be durable there, by its own fsync
    attempt: int
    asked: int  # volumes that it has tried to lock
    stages: tuple[int, ...]
    tasks: tuple[Task, ...]
    election: bool  # it writes a vote first
    tip: int  # that it leads with
    new: int  # entry that it is writing; 0: not yet
    recorded: frozenset[int]  # volumes that have its commit record
    took: tuple[tuple[int, int], ...]  # (volume, instance) that took the block of its next job


class State(NamedTuple):
    volumes: tuple[Volume, ...]
    processes: tuple[Process, ...]
    faulty: int  # the volume that is, or may be, faulty; -1: none
    promised: int  # the longest log that was acknowledged, or that a reader could see
    left: Left


def at_rest(jobs: tuple[str, ...], attempt: int) -> Process:
    """Return a process that knows nothing."""
    nothing = (NOT_WRITTEN,) * N
    return Process("idle", jobs, 0, (0,) * N, attempt, 0, (OUT,) * N, nothing, False, 0, 0, frozenset(), ())


def put(items: tuple[Any, ...], place: int, item: Any) -> tuple[Any, ...]:
    return (*items[:place], item, *items[place + 1 :])


def effective(entry: int) -> tuple[list[str], set[str]]:
    """Return what the state machine makes of a log: appends in order, and transactions that were aborted in time."""
    stored: list[str] = []
    aborted: set[str] = set()
    for what in (WHAT[one].split("#")[0] for one in LOG[entry]):
        if what.startswith("-"):
            if what[1:] not in stored:
                aborted.add(what[1:])
        elif what != "noop" and what not in aborted:
            stored.append(what)
    return stored, aborted


def down(state: State) -> set[int]:
    """Return the volumes that nobody can count on just now: more of them than f may be an outage."""
    gone = {at for at, one in enumerate(state.volumes) if not one.is_there or one.standing != "member"}
    return gone | ({state.faulty} - {-1})


# --- states with one thing changed


def with_process(state: State, number: int, process: Process) -> State:
    return state._replace(processes=put(state.processes, number, process))


def with_volume(state: State, at: int, volume: Volume) -> State:
    return state._replace(volumes=put(state.volumes, at, volume))


def spend(state: State, what: str) -> State:
    return state._replace(left=state.left._replace(**{what: getattr(state.left, what) - 1}))


def unlocked(state: State, number: int) -> State:
    """Return the state in which this process holds no lock."""
    return state._replace(
        volumes=tuple(one._replace(holder=-1) if one.holder == number else one for one in state.volumes)
    )
