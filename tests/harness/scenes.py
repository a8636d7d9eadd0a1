"""Scenes of the scripted life: a few steps, done by one process, somewhere in which a fault falls.

The life is lived once; before each step the whole machine is copied, so that a scene begins where it begins and not
at the creation of the store. A scene is several steps long, because a process that goes on remembers: that it leads,
where the log ends, what it wrote to the journal.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import pytest
from harness.faults import CHANGING, Call, FaultyFiles, Judge, let_everything_happen
from harness.life import SETTINGS, SNAPSHOT_EVERY, STEPS, contents
from harness.model import Content, seen_in_store
from harness.processes import Machine
from harness.simulated_disk import ProcessEnded

from storage_core.errors import StorageError
from storage_core.metadata.state import encode_state
from storage_core.store.store import Store

SCENE_LENGTH = 3
# Of the calls of the life: `make soak` takes the other three.
QUARTERS = pytest.mark.parametrize("quarter", [0, *(pytest.param(one, marks=pytest.mark.soak) for one in (1, 2, 3))])
TORN_RECORD = "a commit record is torn"
WITNESSED = {"name": "witnessed"}
Seen = dict[str, Content]


@lru_cache(maxsize=3)
def _lived(volume_count: int) -> tuple[list[Machine], list[Seen]]:
    """Return the machine before each step, and what the store shows then; the last of each: after all steps."""
    machine, machines, shown = Machine(1, volume_count), [], contents()
    store = machine.create(**SETTINGS)
    for number, step in enumerate(STEPS):
        machines.append(machine.copy())
        step.act(store)
        assert seen_in_store(store) == shown[number + 1], step.name
    return [*machines, machine.copy()], shown


def machine_before(step: int, volume_count: int = 1) -> Machine:
    return _lived(volume_count)[0][step].copy()


def shown_before(step: int) -> Seen:
    """Return what a store shows when `step` steps have been done."""
    return contents()[step]


@dataclass
class Played:
    """A scene that was played, up to its end or to the fault."""

    machine: Machine
    files: FaultyFiles
    store: Store
    done: int  # steps of the life that are done: the acked ones
    error: BaseException | None  # what ended the scene early
    witness: Store | None = None  # of another process, which has read the store before the scene

    def expected(self) -> list[Seen]:
        """Return what may be shown now: an un-acked step is there whole or not at all."""
        return (
            [shown_before(self.done)] if self.error is None else [shown_before(self.done), shown_before(self.done + 1)]
        )


def scene_starts(offset: int = 0) -> range:
    return range(offset, len(STEPS), SCENE_LENGTH)


def play(
    start: int,
    judge: Judge = let_everything_happen,
    witness: bool = False,
    counted: tuple[str, ...] = CHANGING,
    volume_count: int = 1,
    on_machine: Callable[[Machine], None] = lambda machine: None,
) -> Played:
    """Play the scene that begins with step `start`; only errors of the hierarchy, and ends of the process, pass.

    `witness`: another process has led before the scene, and is there after it. `counted`: operations that the judge
    is asked about.
    """
    machine = machine_before(start, volume_count)
    on_machine(machine)
    other = None
    if witness:
        other = machine.open()
        other.add_stream(WITNESSED)
        other.delete_stream(WITNESSED["name"])
    files = machine.files()
    done, error, store = start, None, machine.open(files)
    files.counted, files.judge, files.calls = counted, judge, []
    try:
        for step in STEPS[start : start + SCENE_LENGTH]:
            step.act(store)
            done += 1
    except (StorageError, ProcessEnded) as caught:
        error = caught
    return Played(machine, files, store, done, error, other)


def calls_of(start: int, volume_count: int = 1) -> list[Call]:
    """Return the changing calls that the scene makes if nothing goes wrong."""
    return play(start, volume_count=volume_count).files.calls


def moments(offset: int = 0, volume_count: int = 1, stride: int = 1, first: int = 0) -> Iterator[tuple[int, Call]]:
    """Yield (start of the scene, call) for every changing call of the life, or from `first` every `stride`-th."""
    number = -first
    for start in scene_starts(offset):
        for call in calls_of(start, volume_count):
            if number % stride == 0:
                yield start, call
            number += 1


def go_on(machine: Machine, seen: Seen, played: Played, step_count: int, store: Store | None = None) -> int:
    """Do what was not done, and some steps more, in a new process or through `store`; return how many are done then.

    `seen` returns whether the step that the fault fell into is done.
    """
    done = played.done + (played.error is not None and seen != shown_before(played.done))
    store = store or machine.open()
    for step in STEPS[done : done + step_count]:
        step.act(store)
        done += 1
    return done


def seen_after(machine: Machine, expected: list[Seen]) -> Seen:
    """Return what a new process sees, which is among the expected; opening once more changes nothing."""
    store = machine.open()
    seen = seen_in_store(store)
    assert seen in expected, {name: str(content) for name, content in seen.items()}
    again = machine.open()
    assert encode_state(again.view().state) == encode_state(store.view().state), "opening twice is not the same as once"
    return seen


def check_shown_and_whole(machine: Machine, done: int) -> None:
    """Check that the store shows what `done` steps make, and that it finds no damage in itself.

    A snapshot that was being written may be torn, and is reported until the next two have taken its place; so may a
    commit record of one volume of several, until the next session.
    """
    store = machine.open()
    assert seen_in_store(store) == shown_before(done)
    damage = store.verify()["damage"]
    assert all(one["file"].endswith(".snap") or one["reason"].startswith(TORN_RECORD) for one in damage), damage
    if damage:
        for number in range(2 * SNAPSHOT_EVERY):
            store.add_stream({"name": f"more-{number}"})
        assert store.verify()["ok"], damage
