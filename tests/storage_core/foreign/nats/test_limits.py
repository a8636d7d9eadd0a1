"""Limits applied again, beside a slow version that removes message by message."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.foreign.nats.limits import Limits

Row = tuple[int, int, int, int]  # sequence, size, time, subject


def slow(limits: Limits, rows: list[Row]) -> list[int]:
    rows = [row for row in rows if row[0] >= limits.first_sequence]
    while limits.max_msgs and len(rows) > limits.max_msgs:
        rows = rows[1:]
    while limits.max_bytes and sum(row[1] for row in rows) > limits.max_bytes:
        rows = rows[1:]
    return [
        row[0]
        for at, row in enumerate(rows)
        if not limits.max_msgs_per_subject
        or sum(later[3] == row[3] for later in rows[at + 1 :]) < limits.max_msgs_per_subject
    ]


@given(
    rows=st.lists(st.tuples(st.integers(1, 3), st.integers(30, 90), st.integers(0, 4)), max_size=40),
    limits=st.builds(
        Limits,
        st.integers(0, 12),
        st.sampled_from([0, 100, 1000]),
        st.just(0),
        st.integers(0, 3),
        st.integers(0, 20),
    ),
)
def test_vectorised_limits_agree_with_removing_one_by_one(rows: list[tuple[int, int, int]], limits: Limits) -> None:
    sequences = np.cumsum([gap for gap, _, _ in rows], dtype=np.int64)
    sizes, subjects = (np.array([row[place] for row in rows], np.int64) for place in (1, 2))
    keep = limits.keep(sequences, sizes, np.zeros(len(rows), np.int64), subjects)
    listed = [(int(sequence), row[1], 0, row[2]) for sequence, row in zip(sequences, rows, strict=True)]
    assert sequences[keep].tolist() == slow(limits, listed)


def test_age_is_measured_against_the_newest_message() -> None:
    times = np.array([10, 89, 90, 95, 100], np.int64)
    ones = np.arange(1, 6)
    assert Limits(0, 0, 10, 0, 0).keep(ones, ones, times, ones).tolist() == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, Limits(0, 0, 0, 0, 0)),
        ({"max_msgs": -1, "max_bytes": -1, "max_msgs_per_subject": -1, "max_age": 0}, Limits(0, 0, 0, 0, 0)),
        ({"max_msgs": 5, "max_bytes": 7, "max_age": 9, "first_seq": 3}, Limits(5, 7, 9, 0, 3)),
        ({"max_msgs": 5, "discard": "new", "max_msgs_per_subject": 1}, Limits(0, 0, 0, 1, 0)),
        ({"max_age": 9, "subject_delete_marker_ttl": 1}, Limits(0, 0, 0, 0, 0)),
        ({"max_msgs": "many"}, Limits(0, 0, 0, 0, 0)),
    ],
)
def test_limits_are_those_of_meta_inf(config: dict[str, Any], expected: Limits) -> None:
    assert Limits.of(config) == expected
