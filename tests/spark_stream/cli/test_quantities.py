"""Durations, sizes and times as they are typed."""

import pytest

from spark_stream.cli.failures import WrongUsage
from spark_stream.cli.quantities import (
    parse_duration_option,
    parse_pairs,
    parse_since_ns,
    parse_size,
)

NOW_NS = 1_800_000_000_000_000_000


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [("0", 0), ("500ms", 500_000_000), ("90s", 90_000_000_000), ("1h30m", 5_400_000_000_000), ("1.5s", 1_500_000_000)],
)
def test_a_duration_is_read_with_its_units(text: str, nanoseconds: int) -> None:
    assert parse_duration_option(text, "--dupe-window") == nanoseconds


def test_a_bare_number_is_no_duration_because_its_unit_would_be_a_guess() -> None:
    with pytest.raises(ValueError, match="--dupe-window: '120' has no unit"):
        parse_duration_option("120", "--dupe-window")


@pytest.mark.parametrize(
    ("text", "size"),
    [("-1", -1), ("0", 0), ("1024", 1024), ("64KB", 65536), ("64k", 65536), ("1MiB", 1 << 20), ("1.5g", 3 << 29)],
)
def test_a_size_is_read_with_its_unit(text: str, size: int) -> None:
    assert parse_size(text, "--max-msg-size") == size


@pytest.mark.parametrize("text", ["", "big", "1x", "-2", "1 1"])
def test_what_is_no_size_is_refused_by_option(text: str) -> None:
    with pytest.raises(ValueError, match="--max-msg-size"):
        parse_size(text, "--max-msg-size")


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("90s", NOW_NS - 90_000_000_000),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01", 1_000_000_000),
        ("1970-01-01 00:01", 60_000_000_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("2262-04-11T23:47:16.854775807Z", 2**63 - 1),
        ("1969-12-31T23:59:59.9Z", -100_000_000),
    ],
)
def test_a_time_is_a_duration_before_now_or_iso_8601_to_the_nanosecond(text: str, time_ns: int) -> None:
    assert parse_since_ns(text, "--since", NOW_NS) == time_ns


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "2026-11-21T25:00:00Z", "120", ""])
def test_what_is_no_time_is_refused_by_option(text: str) -> None:
    with pytest.raises((WrongUsage, ValueError), match="--since"):
        parse_since_ns(text, "--since", NOW_NS)


def test_a_value_may_hold_the_separator_again() -> None:
    assert parse_pairs(["Time: 12:30", "a:"], ":", "--header") == [("Time", "12:30"), ("a", "")]


@pytest.mark.parametrize("text", ["novalue", ":x", " :x"])
def test_a_pair_without_a_key_is_refused_by_option(text: str) -> None:
    with pytest.raises(WrongUsage, match="--header"):
        parse_pairs([text], ":", "--header")
