"""Option values: what is taken, and that a refusal names the option and what came."""

import os

import pytest

from datasource.values import (
    parse_choice,
    parse_count,
    parse_duration_s,
    parse_flag,
    parse_names,
    parse_object,
    parse_paths,
    parse_time_ns,
)

NOON_NS = 1_795_262_400_000_000_000  # 2026-11-21T12:00:00Z


@pytest.mark.parametrize(
    ("value", "nanoseconds"),
    [
        ("2026-11-21T12:00:00Z", NOON_NS),
        ("2026-11-21 12:00:00", NOON_NS),
        ("2026-11-21T12:00", NOON_NS),
        ("2026-11-21T13:00:00+01:00", NOON_NS),
        ("2026-11-21T07:00:00-05", NOON_NS),
        ("2026-11-21T07:00:00-0500", NOON_NS),
        ("2026-11-21T12:00:00.000000001Z", NOON_NS + 1),
        ("2026-11-21T12:00:00.5Z", NOON_NS + 500_000_000),
        ("2026-11-21", NOON_NS - 12 * 3600 * 10**9),
        ("1795262400000", NOON_NS),
        (1795262400000, NOON_NS),
        ("1969-12-31T23:59:59.999999999Z", -1),
    ],
)
def test_time_is_iso_8601_or_milliseconds(value: object, nanoseconds: int) -> None:
    assert parse_time_ns("startingTimestamp", value) == nanoseconds


@pytest.mark.parametrize(
    "value", ["", "yesterday", "2026-13-01", "12:00", True, 1.5, None, "2026-11-21T25:00:00", "1e9"]
)
def test_what_is_no_time_is_refused_by_option_and_value(value: object) -> None:
    with pytest.raises(ValueError, match="option 'startingTimestamp': .* is not a time"):
        parse_time_ns("startingTimestamp", value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60s", 60),
        ("500 ms", 0.5),
        ("2m", 120),
        ("1H", 3600),
        ("0", 0),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1.5s", 1.5),
        ("2min", 120),
        ("1d", 86_400),
        ("1 day", 86_400),
        ("10 Minutes", 600),
    ],
)
def test_duration_takes_a_unit(text: str, seconds: float) -> None:
    assert parse_duration_s("lockTimeout", text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1 fortnight", "days", "60", "1h30", "30m1", "m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="option 'lockTimeout'"):
        parse_duration_s("lockTimeout", text)


@pytest.mark.parametrize("text", ["0", "-3", "many", "", "1.0", "99999999999999999999", "٣"])
def test_count_is_a_whole_number_from_one(text: str) -> None:
    with pytest.raises(ValueError, match="option 'minPartitions'.*whole number from 1"):
        parse_count("minPartitions", text)


def test_flag_and_choice_ignore_case_and_name_what_is_near() -> None:
    assert parse_flag("failOnDataLoss", " TRUE ") is True
    with pytest.raises(ValueError, match="'yes' is neither true nor false"):
        parse_flag("failOnDataLoss", "yes")
    assert parse_choice("table", "Streams", ("messages", "streams")) == "streams"
    with pytest.raises(ValueError, match="did you mean 'messages'"):
        parse_choice("table", "mesages", ("messages", "streams"))


def test_names_are_split_trimmed_and_kept_once() -> None:
    assert parse_names("stream", "A, B ,A") == ("A", "B")
    with pytest.raises(ValueError, match="empty name"):
        parse_names("stream", "A,,B")


@pytest.mark.parametrize("text", ["['A', 'B_*']", '["A", "B_*"]', "('A', 'B_*')", " ['A','B_*', 'A'] "])
def test_names_may_come_as_the_list_that_spark_made_text_of(text: str) -> None:
    assert parse_names("stream", text) == ("A", "B_*")


@pytest.mark.parametrize("text", ["[AB]*", "[1]", "[]", "[A, 'B'", "(" * 500])
def test_what_only_begins_like_a_list_is_names_and_globs(text: str) -> None:
    assert parse_names("stream", text) == tuple(part.strip() for part in text.split(","))


@pytest.mark.parametrize("text", ["[1]", "{", '"a"', '{"A": 1, "A": 2}'])
def test_what_is_no_json_object_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="option 'startingOffsets'.*ORDERS"):
        parse_object("startingOffsets", text, '{"ORDERS": 1}')


def test_paths_are_split_at_commas_unless_they_come_as_a_list() -> None:
    assert parse_paths("path", "/a, /b c") == ("/a", "/b c")
    assert parse_paths("path", '["/a,b","/c"]') == ("/a,b", "/c")
    assert parse_paths("path", "['/a,b']") == ("/a,b",)
    assert parse_paths("path", "/[a],/b") == ("/[a]", "/b")


def test_relative_paths_are_resolved_where_they_are_read() -> None:
    assert parse_paths("path", "store/../store/v1") == (os.path.abspath("store/v1"),)


def test_file_urls_are_paths_and_other_schemes_are_refused() -> None:
    assert parse_paths("path", "file:/a b") == parse_paths("path", "file:///a b") == ("/a b",)
    with pytest.raises(ValueError, match="hdfs://host/x.*not a local path"):
        parse_paths("path", "hdfs://host/x")
    assert parse_paths("path", "s3a://bucket/x") == ("s3://bucket/x",)


@pytest.mark.parametrize("text", ["", "/a,,/b", "[]", '["/a",""]', "/a\0b"])
def test_empty_and_impossible_paths_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="option 'path'"):
        parse_paths("path", text)
