"""Pushed filters: never a row too few, and an exact constraint never a row too many."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
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
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from datasource.filters import Constraints, intersection, push
from storage_core.subjects import matches

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def shows(row: dict[str, Any], one: Filter) -> bool:
    """Return whether Spark would show the row: the slow and obvious reading of a filter."""
    if isinstance(one, Not):
        return not shows(row, one.child)
    value = row[one.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(one, IsNull):
        return value is None
    if isinstance(one, IsNotNull):
        return value is not None
    want: Any = one.value  # type: ignore[attr-defined]
    if isinstance(one, In):
        return value in [each for each in want if each is not None]
    if want is None:
        return False
    tests = {
        EqualTo: lambda: value == want,
        EqualNullSafe: lambda: value == want,
        GreaterThan: lambda: value > want,
        GreaterThanOrEqual: lambda: value >= want,
        LessThan: lambda: value < want,
        LessThanOrEqual: lambda: value <= want,
        StringStartsWith: lambda: value.startswith(want),
        StringEndsWith: lambda: value.endswith(want),
        StringContains: lambda: want in value,
    }
    return bool(tests[type(one)]())


def passes(row: dict[str, Any], constraints: Constraints) -> bool:
    """Return whether storage would yield the row."""
    return (
        not constraints.impossible
        and constraints.first <= row["sequence"] < constraints.end
        and constraints.time_first_ns <= row["timestamp_ns"] < constraints.time_end_ns
        and constraints.takes_stream(row["stream"])
        and (constraints.subjects is None or any(matches(one, row["subject"]) for one in constraints.subjects))
    )


SUBJECTS = ["a", "a.b", "a.b.c", "a.bc", "ab.c", "b", "b.b.b", "a.b.c.d"]
STREAMS = ["A", "AB", "B"]
ENDS = [-(2**63), -(2**63) + 1, 2**63 - 2, 2**63 - 1]  # of the times that a message can have, in nanoseconds
TIMES = [EPOCH + timedelta(microseconds=at) for at in (0, 1, 2, 3, *(end // 1000 for end in ENDS))]
TIMES += [datetime.min.replace(tzinfo=timezone.utc), datetime.max.replace(tzinfo=timezone.utc)]


def row_of(sequence: int, nanoseconds: int, subject: str, stream: str) -> dict[str, Any]:
    shown = EPOCH + timedelta(microseconds=nanoseconds // 1000)
    return {
        "sequence": sequence,
        "timestamp_ns": nanoseconds,
        "timestamp": shown,
        "subject": subject,
        "stream": stream,
    }


nanoseconds = st.integers(0, 3500) | st.sampled_from(ENDS)
rows = st.builds(row_of, st.integers(1, 6), nanoseconds, st.sampled_from(SUBJECTS), st.sampled_from(STREAMS))
texts = st.sampled_from([*SUBJECTS, *STREAMS, "a.", "a.b.", "", ".", "*", "a.*", "a.*.", "x y", "ü"])


def comparisons(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
    path = st.just((name,))
    kinds = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
    return st.one_of(
        *[st.builds(kind, path, values | st.none()) for kind in kinds],
        st.builds(In, path, st.lists(values | st.none(), min_size=1, max_size=4).map(tuple)),
        st.builds(IsNull, path),
        st.builds(IsNotNull, path),
    )


def strings(name: str) -> st.SearchStrategy[Filter]:
    path = st.just((name,))
    kinds = [StringStartsWith, StringEndsWith, StringContains]
    return st.one_of(comparisons(name, texts), *[st.builds(kind, path, texts) for kind in kinds])


plain = st.one_of(
    comparisons("sequence", st.integers(0, 7)),
    comparisons("timestamp_ns", st.integers(-1, 4000) | st.sampled_from(ENDS)),
    comparisons("timestamp", st.sampled_from(TIMES)),
    strings("subject"),
    strings("stream"),
)


def ordered(one: Filter) -> bool:
    return not isinstance(one, Not) or getattr(one.child, "value", 0) is not None


filters = st.one_of(plain, st.builds(Not, plain).filter(ordered))


@given(rows, st.lists(filters, max_size=4), st.sampled_from([None, "a.>", "a.*", ">", "b"]))
def test_constraints_and_the_filters_left_show_exactly_what_the_filters_show(
    row: dict[str, Any], pushed_filters: list[Filter], subject: str | None
) -> None:
    pushed = push(pushed_filters, subject)
    assert all(any(left is one for one in pushed_filters) for left in pushed.left)
    wanted = all(shows(row, one) for one in pushed_filters) and (subject is None or matches(subject, row["subject"]))
    assert (passes(row, pushed.constraints) and all(shows(row, one) for one in pushed.left)) == wanted


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("sequence",), 5),
        GreaterThan(("sequence",), 5),
        LessThanOrEqual(("timestamp",), TIMES[1]),
        EqualTo(("subject",), "orders.new"),
        In(("subject",), ("a", "b")),
        StringStartsWith(("subject",), "orders."),
        In(("stream",), ("A", "B")),
        StringStartsWith(("stream",), "OR"),
        IsNotNull(("sequence",)),
    ],
)
def test_filters_that_storage_decides_are_exact(one: Filter) -> None:
    assert push([one], None).left == []


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("data",), b"x"),
        EqualTo(("sequence",), 5.0),
        EqualTo(("sequence",), True),
        EqualTo(("sequence",), None),
        GreaterThan(("timestamp",), datetime(2026, 1, 1)),
        EqualTo(("headers", "key"), "x"),
        IsNotNull(("data",)),
        Not(EqualTo(("sequence",), 5)),
        StringContains(("subject",), "a"),
        StringStartsWith(("subject",), "ord"),
        GreaterThan(("subject",), "a"),
        In(("subject",), tuple(f"s{at}" for at in range(1000))),
    ],
)
def test_filters_of_no_use_stay_with_spark_and_change_nothing(one: Filter) -> None:
    pushed = push([one], None)
    assert pushed.left == [one]
    assert pushed.constraints == Constraints()


@pytest.mark.parametrize(
    "one",
    [StringStartsWith(("subject",), "orders.ne"), In(("sequence",), (1, 9))],
)
def test_filters_that_are_partly_usable_narrow_the_read_and_stay_with_spark(one: Filter) -> None:
    pushed = push([one], None)
    assert pushed.left == [one]
    assert pushed.constraints != Constraints()


def test_bounds_beyond_64_bits_do_not_wrap() -> None:
    far = EPOCH + timedelta(days=365 * 1000)
    assert push([GreaterThan(("timestamp",), far)], None).constraints.impossible
    assert push([LessThan(("timestamp",), far)], None).constraints == Constraints()
    assert push([GreaterThan(("sequence",), 2**63 - 1)], None).constraints.impossible
    assert push([LessThanOrEqual(("sequence",), 2**63 - 1)], None).constraints == Constraints()


subject_filters = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3).flatmap(
    lambda tokens: st.sampled_from([".".join(tokens), ".".join([*tokens, ">"]), ">"])
)


@given(subject_filters, subject_filters, st.lists(st.sampled_from("ab"), min_size=1, max_size=5).map(".".join))
def test_intersection_takes_what_both_filters_take(one: str, other: str, subject: str) -> None:
    both = intersection(one, other)
    assert (both is not None and matches(both, subject)) == (matches(one, subject) and matches(other, subject))


def test_constraints_start_without_any() -> None:
    assert not Constraints().impossible
    assert replace(Constraints(), streams=frozenset()).impossible
