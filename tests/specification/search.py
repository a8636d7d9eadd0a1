"""Trying a model: everything within its bounds, breadth first; or a walk at random, as long as one likes."""

import gc
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Violation(Exception):
    """A property does not hold; the name of the property is the only argument."""


class Model(Protocol):
    """A step yields (label, next state), and raises Violation where a property does not hold."""

    doing: str  # the step that is being tried

    def initial(self) -> Any: ...

    def steps(self, state: Any) -> Iterator[tuple[str, Any]]: ...

    def check(self, state: Any) -> Any:
        """Return the state with what was promised brought up to date; Violation if a promise is broken already."""


@dataclass(frozen=True)
class Outcome:
    states: int
    violation: str  # "" for none
    trace: tuple[str, ...]  # labels of a way to it; of a search: a shortest one


def exhaust(model: Model, states_max: int, beginning: Sequence[str] = ()) -> Outcome:
    """Try everything that may follow the beginning, breadth first; stop at the first violation."""
    was_enabled = gc.isenabled()
    gc.disable()  # hundreds of thousands of tuples without a cycle among them: a third of the time
    try:
        return _exhaust(model, follow(model, beginning)[-1], states_max)
    finally:
        if was_enabled:
            gc.enable()


def _exhaust(model: Model, start: Any, states_max: int) -> Outcome:
    parents: dict[Any, tuple[Any, str] | None] = {start: None}
    level = [start]
    while level:
        following = []
        for state in level:
            model.doing = ""
            try:
                for label, reached in model.steps(state):
                    model.doing = label
                    after = model.check(reached)
                    if after not in parents:
                        parents[after] = (state, label)
                        following.append(after)
            except Violation as violation:
                return Outcome(len(parents), str(violation), (*_trace(parents, state), model.doing))
            assert len(parents) <= states_max, f"more than {states_max} states: give a smaller budget"
        level = following
    return Outcome(len(parents), "", ())


def _trace(parents: dict[Any, tuple[Any, str] | None], state: Any) -> tuple[str, ...]:
    labels: list[str] = []
    while (step := parents[state]) is not None:
        state = step[0]
        labels.append(step[1])
    return tuple(reversed(labels))


def follow(model: Model, labels: Sequence[str]) -> list[Any]:
    """Return the states on the way that these labels tell; a label may be cut short where it is the only such."""
    states = [model.check(model.initial())]
    for wanted in labels:
        possible = dict(model.steps(states[-1]))
        fitting = [wanted] if wanted in possible else [label for label in possible if label.startswith(wanted)]
        assert len(fitting) == 1, f"{wanted!r} is not one of the steps from here: {sorted(possible)}"
        states.append(model.check(possible[fitting[0]]))
    return states


def walk(model: Model, seed: int, step_count: int, length_max: int, faults: Sequence[str]) -> Outcome:
    """Go at random, and begin again now and then; steps with one of the words in `faults` in them are rarer."""
    choose, taken = random.Random(seed), 0
    while taken < step_count:
        state, labels, often = model.check(model.initial()), [], choose.choice((0.02, 0.05, 0.1, 0.2))
        try:
            for _ in range(length_max):
                model.doing = ""
                possible = list(model.steps(state))
                if not possible:
                    break
                wild = [one for one in possible if any(word in one[0] for word in faults)]
                calm = [one for one in possible if one not in wild]
                label, reached = choose.choice(wild if wild and (not calm or choose.random() < often) else calm)
                taken += 1
                labels.append(label)
                model.doing = ""
                state = model.check(reached)
        except Violation as violation:
            return Outcome(taken, str(violation), (*labels, model.doing) if model.doing else tuple(labels))
    return Outcome(taken, "", ())
