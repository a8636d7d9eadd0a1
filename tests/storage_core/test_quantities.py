"""Durations, sizes and times: one meaning of each text, wherever it is written."""

from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasource.values import parse_duration_s
from spark_stream.cli.quantities import parse_duration_option
from storage_core.metadata.config import StoreSettings, StreamConfig
from storage_core.metadata.consumer_config import ConsumerConfig
from storage_core.quantities import (
    DURATION_NS_MAX,
    SIZE_MAX,
    format_duration,
    parse_duration_ns,
    parse_size,
    parse_time_ns,
)

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
READERS: dict[str, Callable[[str], float]] = {  # in nanoseconds
    "configuration of a stream": lambda text: (
        StreamConfig.from_mapping({"name": "S", "duplicate_window": text}).duplicate_window
    ),
    "configuration of a consumer": lambda text: ConsumerConfig.from_mapping({"name": "c", "ack_wait": text}).ack_wait,
    "settings of a store": lambda text: (
        StoreSettings.from_mapping({"deleted_block_retention": text}).deleted_block_retention
    ),
    "option of the data source": lambda text: parse_duration_s("lockTimeout", text) * 1e9,
    "command line": lambda text: parse_duration_option(text, "--wait"),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_duration_means_the_same_everywhere(read: Callable[[str], float]) -> None:
    for text in ("90s", "1m30s", "1.5m", "1.5 min", "1M 30S", "1 minute 30 Seconds", "90000ms"):
        assert read(text) == 90_000_000_000
    with pytest.raises(ValueError, match="'90' has no unit"):
        read("90")
    with pytest.raises(ValueError, match="'soon' is not a duration"):
        read("soon")


@given(st.integers(0, DURATION_NS_MAX))
def test_a_duration_is_read_as_it_is_shown(nanoseconds: int) -> None:
    assert parse_duration_ns(format_duration(nanoseconds), "x") == nanoseconds
    assert parse_duration_ns(nanoseconds, "x") == nanoseconds  # as JSON of NATS has it


@pytest.mark.parametrize(
    "value", ["", "s", "-1s", "1 week", "1 dayss", "1h30", "1e3s", "٣s", "1s,2s", None, True, 1.5, -1, [1]]
)
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="^x: "):
        parse_duration_ns(value, "x")


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), (str(SIZE_MAX), SIZE_MAX), ("64KiB", 1 << 16), ("1.5 g", 3 << 29)]
)
def test_a_size_is_exact_up_to_the_largest(text: str, size: int) -> None:
    assert parse_size(text, "x") == size


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1.5B", "1e3", "9223372036854775808", "9t9", "٣", "99999999999g"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="^x: "):
        parse_size(text, "x")


@given(st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)), st.integers(-23 * 60 - 59, 23 * 60 + 59))
def test_a_time_is_read_as_python_writes_it(moment: datetime, offset_min: int) -> None:
    local = moment.replace(tzinfo=timezone(timedelta(minutes=offset_min)))
    expected_ns = (local - EPOCH) // timedelta(microseconds=1) * 1_000
    assert parse_time_ns(local.isoformat(), "x") == expected_ns
    assert parse_time_ns(moment.isoformat(), "x") == expected_ns + offset_min * 60_000_000_000


@pytest.mark.parametrize("text", ["", "noon", "2026-13-01", "2026-11-21T24:00", "2026-11-21T12:00+24:00", 5, None])
def test_what_is_no_time_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="^x: .* is not a time"):
        parse_time_ns(text, "x")
