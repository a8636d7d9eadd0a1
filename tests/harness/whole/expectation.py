"""What a store may hold: one model, or several while the outcome of something is not known.

An operation that was not acked is there whole or not at all, so it leaves two models where there was one. Whatever is
seen later, of the content or in the result of another operation, decides between them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import Any

from harness.model import RULES, Content, ModelStore

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
        streams = {name: stream.copy() for name, stream in self.streams.items()}
        return Model(streams, dict(self.transactions), dict(self.lives))

    @property
    def has_rules(self) -> bool:
        """Return whether something goes that nobody removes."""
        return any(
            stream.max_msgs >= 0 or stream.due_ns or stream.max_age_ns or stream.retention != "limits"
            for stream in self.streams.values()
        )

    @property
    def has_times(self) -> bool:
        """Return whether messages go by their age, or leave markers, so that what is done before an append matters."""
        return any(stream.max_age_ns or stream.marker_ttl_s for stream in self.streams.values())

    def left_over(self) -> "list[Model]":
        """Return copies on which an operation leaves the part of some rules, or of all, to the next one."""
        chosen = _SOME_RULES_WITH_TIMES if self.has_times else _SOME_RULES
        made = [self.copy() for _ in chosen]
        for model, rules in zip(made, chosen, strict=True):
            for stream in model.streams.values():
                stream.skipped = frozenset(rules)
        return made

    def without_skipped(self) -> "Model":
        for stream in self.streams.values():
            stream.skipped = frozenset()
        return self

    def enforced(self, names: Iterable[str], now_ns: int) -> "list[Model]":
        """Return copies in which some of what is due by rules, or all of it, was done in these streams."""
        made = [self.copy()]
        for name in names:
            for rule in RULES if self.has_times else RULES[1:]:
                done = [model.copy() for model in made]
                for model in done:
                    model.streams[name].enforce(rule, now_ns)
                made += [model for model in done if model not in made]
        return made[1:]


_SOME_RULES = list(chain.from_iterable(combinations(RULES[1:], count) for count in range(1, len(RULES))))
_WITHOUT_MARKERS = [("marker", "expiry", "limit"), RULES]  # where one cannot be left, what is over waits
_SOME_RULES_WITH_TIMES = [
    (*rules, *when) for rules in (*_SOME_RULES, *_WITHOUT_MARKERS) for when in ((), ("afterwards",))
]


@dataclass
class Operation:
    """Something that is done to a store, and what it comes to in a model. `effect` returns the expected result."""

    name: str
    act: Callable[[Any], object]
    effect: Callable[[Model], object] = lambda model: None
    stream: str = ""  # the one that it changes
    compared: bool = True  # whether the result has to be the expected one
    enforces: bool = False  # it does what is due by rules, and nothing else
    now_ns: int = 0  # when it began
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
        left, before = self._left_over(operation), self._enforced(operation)
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
            if operation.enforces:
                after += before
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
        before += self._enforced(operation)
        for model in self.models:
            if not isinstance(operation.effect(model), Refusal):
                after.append(model)
        self._keep(after if operation.was_seen and after else before + after)

    def _left_over(self, operation: Operation) -> list[Model]:
        """Return what the operation leaves where it, or its end, does not come to what is over a limit."""
        tried = [left for model in self.models if model.has_rules for left in model.left_over()]
        return [model.without_skipped() for model in tried if not isinstance(operation.effect(model), Refusal)]

    def _enforced(self, operation: Operation) -> list[Model]:
        """Return what an operation that came no further than to what is due by rules leaves."""
        made = list[Model]()
        for model in self.models:
            is_of_all = operation.enforces or operation.stream == "*"
            names = [name for name in model.streams if is_of_all or name == operation.stream]
            made += model.enforced(names, operation.now_ns) if model.has_rules else []
        return made

    def look(self, shown: Shown, running: Operation | None, is_final: bool) -> None:
        """Something was seen. `is_final`: by a holder, for whom nothing is undecided."""
        right = [model for model in self.models if model.content() == shown]
        if is_final or not right or right[0] is not self.models[0]:
            if right:
                self._keep(right)
        if right:
            return
        if running is not None:
            if any(model.content() == shown for model in self._enforced(running)):
                return
            left = [left for model in self.models if model.has_rules for left in model.left_over()]
            for after in (*(model.copy() for model in self.models), *left):
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
