"""What a store may hold: one model, or several while the outcome of something is not known.

An operation that was not acked is there whole or not at all, so it leaves two models where there was one. Whatever is
seen later, of the content or in the result of another operation, decides between them.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from harness.model import Content, ModelStore

from storage_core.errors import DiskFullError, ReadOnlyError, StorageError, StoreBusyError
from storage_core.sequences import SequenceSet

CANDIDATES_MAX = 16
NOTHING_STORED = (DiskFullError, ReadOnlyError, StoreBusyError)  # each says that nothing was stored
Shown = dict[str, Content]


class Violation(AssertionError):
    """Something that must hold does not."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The result of an operation that must be refused."""

    errors: tuple[type[StorageError], ...]


@dataclass
class Model(ModelStore):
    """One possibility of what a store holds."""

    transactions: dict[bytes, str] = field(default_factory=dict)  # outcomes: committed, aborted
    lives: dict[str, int] = field(default_factory=dict)  # how often each name was made

    def copy(self) -> "Model":
        return deepcopy(self)

    def left_over(self) -> "Model":
        """Return a copy on which an operation leaves what it brings over a limit to the next one."""
        made = self.copy()
        for stream in made.streams.values():
            stream.is_left_over = True
        return made

    def settled(self) -> "Model":
        for stream in self.streams.values():
            stream.is_left_over = False
        return self


@dataclass
class Operation:
    """Something that is done to a store, and what it comes to in a model. `effect` returns the expected result."""

    name: str
    act: Callable[[Any], object]
    effect: Callable[[Model], object] = lambda model: None
    stream: str = ""  # the one that it changes
    compared: bool = True  # whether the result has to be the expected one
    was_seen: bool = False  # somebody has seen what it leaves, before it was acked


class Expectation:
    """All models that agree with what was seen so far."""

    def __init__(self) -> None:
        self.models = [Model()]
        self.limited_count = 0  # operations that had to remove what was over a limit

    def acked(self, operation: Operation, result: object, may_be_left: bool = False) -> None:
        """The operation returned: it is done, and a model that expected another result is wrong.

        `may_be_left`: what is over a limit may not have been read then, and goes with a later operation.
        """
        after, wrong = [], []
        left = self._left_over(operation)
        for model in self.models:
            expected = operation.effect(model)
            if isinstance(expected, Refusal):
                wrong.append(f"to be refused with {expected.errors[0].__name__}")
            elif operation.compared and expected != result:
                wrong.append(expected)
            else:
                after.append(model)
        self.limited_count += any(model not in after for model in left)
        if may_be_left and after:
            after += left
        if not after:
            raise Violation(f"{operation.name}: returned {result!r}, expected was {wrong!r}")
        self._keep(after)

    def refused(self, operation: Operation, error: StorageError) -> bool:
        """Return whether a model has the operation refused like this. The others are not wrong for that: who asks
        without a lock may be told of what was before.
        """
        for model in self.models:
            expected = operation.effect(model.copy())
            if isinstance(expected, Refusal) and isinstance(error, expected.errors):
                return True
        return False

    def unknown(self, operation: Operation, error: BaseException) -> None:
        """The operation ended early: it is done or not."""
        if isinstance(error, NOTHING_STORED) and not operation.was_seen:
            return
        before, after = [model.copy() for model in self.models], self._left_over(operation)
        for model in self.models:
            if not isinstance(operation.effect(model), Refusal):
                after.append(model)
        self._keep(after if operation.was_seen and after else before + after)

    def _left_over(self, operation: Operation) -> list[Model]:
        """Return what the operation leaves where it, or its end, does not come to what is over a limit."""
        if all(stream.max_msgs < 0 for model in self.models for stream in model.streams.values()):
            return []
        tried = [model.left_over() for model in self.models]
        return [model.settled() for model in tried if not isinstance(operation.effect(model), Refusal)]

    def look(self, shown: Shown, running: Operation | None, is_final: bool) -> None:
        """Something was seen. `is_final`: by a holder, for whom nothing is undecided."""
        right = [model for model in self.models if model.content() == shown]
        if is_final or not right or right[0] is not self.models[0]:
            if right:
                self._keep(right)
        if right:
            return
        if running is not None:
            for after in (*(model.copy() for model in self.models), *(model.left_over() for model in self.models)):
                if not isinstance(running.effect(after), Refusal) and after.content() == shown:
                    running.was_seen = True
                    return
        raise Violation(f"the store shows {describe(shown)}\nand not {' nor '.join(map(describe, self._contents()))}")

    def allows(self, shown: Shown, lost: Mapping[str, SequenceSet] | None = None) -> bool:
        """Return whether a store may show this, having declared `lost` what no volume has; nothing is learned."""
        bare = _without(shown, {})
        return any(_without(content, lost or {}) == bare for content in self._contents())

    def _contents(self) -> list[Shown]:
        return [model.content() for model in self.models]

    def _keep(self, models: list[Model]) -> None:
        kept: list[Model] = []
        for model in models:
            if model not in kept:
                kept.append(model)
        self.models = kept


def _without(content: Shown, lost: Mapping[str, SequenceSet]) -> Shown:
    """Return which messages are shown when these sequences are not."""
    left = {}
    for name, one in content.items():
        gone = lost.get(name)
        messages = one.messages
        if gone is not None:
            messages = tuple(pair for pair in messages if not gone.count_in(pair[0], pair[0] + 1))
        left[name] = Content(messages, one.last_sequence)
    return left


def describe(shown: Shown) -> str:
    return "{" + "; ".join(f"{name}: {content}" for name, content in shown.items()) + "}"
