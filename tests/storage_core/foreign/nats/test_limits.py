"""Limits applied again, beside a slow version that removes message by message."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.foreign.nats.limits import Limits
from storage_core.foreign.nats.ttl import NEVER, TTL_NS_MAX, parse_ttls

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


def test_messages_whose_time_to_live_was_over_are_gone_and_never_beats_age() -> None:
    times, ones = np.array([10, 20, 30, 40, 100], np.int64), np.arange(1, 6)
    ttls = np.array([0, 80, 71, NEVER, 1], np.int64)
    assert Limits(0, 0, 0, 0, 0, True).keep(ones, ones, times, ones, ttls).tolist() == [True, False, True, True, True]
    assert Limits(0, 0, 75, 0, 0, True).keep(ones, ones, times, ones, ttls).tolist() == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("text", "ttl_s"),
    [
        ("3600", 3600),
        ("1h", 3600),
        ("1h30m1.5s", 5401.5),
        ("1500ms", 1.5),
        ("never", -1e-9),
        ("999ms", 0),
        ("0", 0),
        ("-5", 0),
        ("", 0),
        ("soon", 0),
        ("1h soon", 0),
        ("9" * 18, TTL_NS_MAX / 1e9),
    ],
)
def test_time_to_live_is_read_from_headers(text: str, ttl_s: float) -> None:
    raw = [
        b"NATS/1.0\r\nA: b\r\nNats-TTL: %s\r\nC: d\r\n\r\n" % text.encode(),
        b"NATS/1.0\r\nX-Nats-TTL: 1h\r\n\r\n",
        b"\xff",
    ]
    ttls = parse_ttls(pa.array(raw, pa.binary()), np.array([True, False, True, True]))
    assert ttls.tolist() == [pytest.approx(ttl_s * 1e9, abs=1), 0, 0, 0]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, Limits(0, 0, 0, 0, 0)),
        ({"max_msgs": -1, "max_bytes": -1, "max_msgs_per_subject": -1, "max_age": 0}, Limits(0, 0, 0, 0, 0)),
        ({"max_msgs": 5, "max_bytes": 7, "max_age": 9, "first_seq": 3}, Limits(5, 7, 9, 0, 3)),
        ({"max_msgs": 5, "discard": "new", "max_msgs_per_subject": 1}, Limits(0, 0, 0, 1, 0)),
        ({"max_age": 9, "subject_delete_marker_ttl": 1}, Limits(0, 0, 0, 0, 0)),
        ({"max_msgs": "many"}, Limits(0, 0, 0, 0, 0)),
        ({"max_msgs": 1 << 70, "allow_msg_ttl": True}, Limits(0, 0, 0, 0, 0, True)),
    ],
)
def test_limits_are_those_of_meta_inf(config: dict[str, Any], expected: Limits) -> None:
    assert Limits.of(config) == expected
