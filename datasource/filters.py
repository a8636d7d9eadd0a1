"""Spark's pushed filters as constraints on stream, sequence, time and subject.

A constraint is *exact* when it lets through exactly the rows that the filter lets through: then Spark need not look
again. Any other filter stays with Spark, used here to leave out rows that it could not let through (an upper bound), or
not used at all. These columns are never null, in any layout.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from datasource.schema import NEVER_NULL
from datasource.spark_versions import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from storage_core.subjects import is_literal

SUBJECT_COUNT_MAX = 64  # more alternatives cost more to match in storage than in Spark
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
INT64_MIN, INT64_END = -(2**63), 2**63
_RANGES = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@dataclass(frozen=True)
class Constraints:
    """What rows must satisfy, all of it. Ranges are half open; `subjects` and `streams`: one of them, None: any."""

    first: int = INT64_MIN
    end: int = INT64_END
    time_first_ns: int = INT64_MIN
    time_end_ns: int = INT64_END
    streams: frozenset[str] | None = None
    stream_prefixes: tuple[str, ...] = ()
    subjects: tuple[str, ...] | None = None
    nothing: bool = False  # no row can satisfy them

    def takes_stream(self, name: str) -> bool:
        named = self.streams is None or name in self.streams
        return named and all(name.startswith(prefix) for prefix in self.stream_prefixes)

    @property
    def impossible(self) -> bool:
        empty = self.first >= self.end or self.time_first_ns >= self.time_end_ns
        return self.nothing or empty or self.streams == frozenset() or self.subjects == ()


@dataclass
class Pushed:
    """The constraints of a read, and the filters that are left to Spark."""

    constraints: Constraints = field(default_factory=Constraints)
    left: list[Filter] = field(default_factory=list)

    def add(self, predicate: Filter) -> None:
        narrowed = _narrow(self.constraints, predicate)
        if narrowed is None:
            self.left.append(predicate)
            return
        self.constraints, exact = narrowed
        if not exact:
            self.left.append(predicate)


def push(filters: Iterable[Filter], subject: str | None) -> Pushed:
    """Return the constraints of the option `subject` and of `filters`, and the filters left to Spark."""
    pushed = Pushed(Constraints(subjects=None if subject is None else (subject,)))
    for predicate in filters:
        pushed.add(predicate)
    return pushed


Narrowed = tuple[Constraints, bool]  # the constraints with one more filter, and whether they are exact


def _narrow(constraints: Constraints, predicate: Filter) -> Narrowed | None:
    """Return None for a filter that is of no use here."""
    path: tuple[str, ...] = getattr(predicate, "attribute", ())
    if len(path) != 1 or path[0] not in NEVER_NULL:
        return None
    if isinstance(predicate, IsNotNull):
        return constraints, True
    if isinstance(predicate, IsNull):
        return replace(constraints, nothing=True), True
    narrow = {
        "sequence": _narrow_sequence,
        "timestamp": _narrow_timestamp,
        "timestamp_ns": _narrow_timestamp_ns,
        "stream": _narrow_stream,
        "subject": _narrow_subject,
    }[path[0]]
    return narrow(constraints, predicate)


def _narrow_sequence(constraints: Constraints, predicate: Filter) -> Narrowed | None:
    sequences = _whole_range(predicate)
    if sequences is None:
        return None
    first, end, exact = sequences
    return replace(constraints, first=max(constraints.first, first), end=min(constraints.end, end)), exact


def _narrow_timestamp_ns(constraints: Constraints, predicate: Filter) -> Narrowed | None:
    times = _whole_range(predicate)
    return None if times is None else _narrow_time(constraints, *times)


def _narrow_timestamp(constraints: Constraints, predicate: Filter) -> Narrowed | None:
    """The column shows whole microseconds, cut off: a microsecond is the thousand nanoseconds from it on."""
    times = _range(predicate, _microseconds)
    if times is None:
        return None
    first, end, exact = times
    return _narrow_time(constraints, max(first * 1_000, INT64_MIN), min(end * 1_000, INT64_END), exact)


def _narrow_time(constraints: Constraints, first_ns: int, end_ns: int, exact: bool) -> Narrowed:
    first_ns, end_ns = max(constraints.time_first_ns, first_ns), min(constraints.time_end_ns, end_ns)
    return replace(constraints, time_first_ns=first_ns, time_end_ns=end_ns), exact


def _whole_range(predicate: Filter) -> tuple[int, int, bool] | None:
    return _range(predicate, lambda value: value if type(value) is int else None)


def _range(predicate: Filter, convert: Callable[[Any], int | None]) -> tuple[int, int, bool] | None:
    """Return `[first, end)` of whole numbers that the filter lets through, and whether it lets all of them through."""
    if isinstance(predicate, In):
        values = [convert(value) for value in predicate.value if value is not None]
        if any(value is None for value in values):
            return None
        whole = [value for value in values if value is not None]
        return (min(whole), max(whole) + 1, len(set(whole)) == 1) if whole else (0, 0, True)
    if isinstance(predicate, EqualNullSafe) and predicate.value is None:
        return 0, 0, True
    if not isinstance(predicate, _RANGES):
        return None
    value = convert(predicate.value)
    if value is None:
        return None
    if isinstance(predicate, EqualTo | EqualNullSafe):
        return value, value + 1, True
    if isinstance(predicate, GreaterThan | GreaterThanOrEqual):
        return value + isinstance(predicate, GreaterThan), INT64_END, True
    return INT64_MIN, value + isinstance(predicate, LessThanOrEqual), True


def _microseconds(value: Any) -> int | None:
    """Return microseconds since 1970; a time without a zone says nothing here."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MICROSECOND


def _texts(predicate: Filter) -> list[str] | None:
    """Return the strings that an equality or IN allows (NULL matches none of them); None for any other filter."""
    if isinstance(predicate, In):
        values = [value for value in predicate.value if value is not None]
    elif isinstance(predicate, EqualNullSafe) and predicate.value is None:
        values = []
    elif isinstance(predicate, EqualTo | EqualNullSafe):
        values = [predicate.value]
    else:
        return None
    return values if all(type(value) is str for value in values) else None


def _narrow_stream(constraints: Constraints, predicate: Filter) -> Narrowed | None:
    if isinstance(predicate, StringStartsWith) and type(predicate.value) is str:
        return replace(constraints, stream_prefixes=(*constraints.stream_prefixes, predicate.value)), True
    names = _texts(predicate)
    if names is None:
        return None
    known = frozenset(names) if constraints.streams is None else constraints.streams & frozenset(names)
    return replace(constraints, streams=known), True


def _narrow_subject(constraints: Constraints, predicate: Filter) -> Narrowed | None:
    if isinstance(predicate, StringStartsWith) and type(predicate.value) is str:
        # Whole tokens make a filter: what begins with `a.b.` is `a.b.>`. Of `a.b` only the part up to the dot is of
        # use, and `ab` alone is of none.
        tokens, dot, rest = predicate.value.rpartition(".")
        if not dot or not is_literal(tokens):
            return None
        return _only_subjects(constraints, [f"{tokens}.>"], exact=not rest)
    subjects = _texts(predicate)
    if subjects is None or len(subjects) > SUBJECT_COUNT_MAX:
        return None
    return _only_subjects(constraints, [subject for subject in subjects if is_literal(subject)], exact=True)


def _only_subjects(constraints: Constraints, subjects: list[str], exact: bool) -> Narrowed | None:
    if constraints.subjects is None:
        return replace(constraints, subjects=tuple(dict.fromkeys(subjects))), exact
    both = [intersection(have, want) for have in constraints.subjects for want in subjects]
    kept = tuple(dict.fromkeys(subject_filter for subject_filter in both if subject_filter is not None))
    return replace(constraints, subjects=kept), exact


def intersection(subject_filter: str, other: str) -> str | None:
    """Return the subject filter that takes what both filters take; None if no subject is taken by both."""
    left, right = subject_filter.split("."), other.split(".")
    tokens: list[str] = []
    for position in range(min(len(left), len(right))):
        a, b = left[position], right[position]
        if a == ">":
            return ".".join([*tokens, *right[position:]])
        if b == ">":
            return ".".join([*tokens, *left[position:]])
        if a != b and "*" not in (a, b):
            return None
        tokens.append(b if a == "*" else a)
    return ".".join(tokens) if len(left) == len(right) else None


def common_filters(left: str | None, others: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return subject filters that take what `left` and any of `others` take; () takes all, None: nothing is taken."""
    if left is None or not others:
        return others if left is None else (left,)
    both = [intersection(left, other) for other in others]
    return tuple(dict.fromkeys(kept for kept in both if kept is not None)) or None


def filters_of_both(left: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return subject filters that take what any of `left` and any of `others` take, as `common_filters` does."""
    if not left:
        return others
    both = [kept for subject_filter in left for kept in common_filters(subject_filter, others) or ()]
    return tuple(dict.fromkeys(both)) or None
