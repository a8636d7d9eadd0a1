"""Configuration of consumers: the defaults of a pull consumer, and what is refused says why."""

from typing import Any

import msgspec
import pytest

from storage_core.metadata.consumer_config import ConsumerConfig


def test_the_defaults_are_those_of_a_pull_consumer() -> None:
    config = ConsumerConfig.from_mapping({"name": "reader"})
    assert config.to_json() == {
        "name": "reader", "deliver_policy": "all", "opt_start_seq": 0, "opt_start_time": "", "ack_policy": "explicit",
        "ack_wait": 30_000_000_000, "max_deliver": -1, "max_ack_pending": 1000, "filter_subjects": [],
        "on_data_loss": "continue", "description": "", "metadata": {},
    }  # fmt: skip
    assert ConsumerConfig.from_mapping(config) == config
    assert ConsumerConfig.from_mapping(config.to_json()) == config


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"durable_name": "reader"}, {"name": "reader"}),
        ({"filter_subject": "a.>"}, {"filter_subjects": ("a.>",)}),
        ({"filter_subject": ""}, {"filter_subjects": ()}),
        ({"filter_subjects": "a, b.*"}, {"filter_subjects": ("a", "b.*")}),
        ({"ack_wait": "1m30s"}, {"ack_wait": 90_000_000_000}),
        ({"max_ack_pending": "7"}, {"max_ack_pending": 7}),
        ({"max_ack_pending": -1}, {"max_ack_pending": -1}),
        ({"replay_policy": "instant", "inactive_threshold": 0, "backoff": None}, {}),
    ],
)
def test_second_names_and_text_are_taken(given: dict[str, Any], expected: dict[str, Any]) -> None:
    config = ConsumerConfig.from_mapping({"name": "reader", **given})
    assert {key: getattr(config, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"name": "a b"}, "name of a consumer: 'a b' is not 1 to 128"),
        ({"durable_name": "other"}, "durable_name and name are the same"),
        ({"ack_wiat": "1s"}, "unknown key of a consumer: 'ack_wiat'; did you mean 'ack_wait'"),
        ({"ack_wait": "soon"}, "ack_wait: 'soon' is not a duration"),
        ({"ack_wait": 0}, "ack_wait: 0 leaves no time"),
        ({"ack_wait": 30}, "ack_wait: 30 is not 100ms and more; a number without a unit is nanoseconds: write it like"),
        ({"ack_wait": 30_000}, "ack_wait: 30000 is not 100ms and more; a number without a unit"),
        ({"ack_wait": "50ms"}, "ack_wait: 50ms is not 100ms and more"),
        ({"deliver": "all"}, "unknown key of a consumer: 'deliver'; did you mean 'max_deliver'"),
        ({"ack_policy": "explicitt"}, "explicit, none, all; did you mean 'explicit'"),
        ({"ack_policy": "some"}, "ack_policy: 'some' is not one of explicit, none, all"),
        ({"deliver_policy": "last_per_subject"}, "deliver_policy: 'last_per_subject' is not supported"),
        ({"deliver_policy": "newest"}, "deliver_policy: 'newest' is not one of all, last, new"),
        ({"deliver_policy": "by_start_sequence"}, "opt_start_seq: 0 is not a sequence"),
        ({"opt_start_seq": 3}, "opt_start_seq needs deliver_policy='by_start_sequence'"),
        ({"opt_start_time": "2026-01-01T00:00:00Z"}, "opt_start_time needs deliver_policy='by_start_time'"),
        ({"deliver_policy": "by_start_time", "opt_start_time": "noon"}, "opt_start_time: 'noon' is not a time"),
        ({"max_deliver": 0}, "max_deliver: 0 is not -1"),
        ({"max_ack_pending": -2}, r"max_ack_pending: -2 is not -1 \(no limit\) or 1 to 1000000"),
        ({"max_ack_pending": 1000001}, "max_ack_pending: 1000001 is not"),
        ({"max_ack_pending": 1.5}, "max_ack_pending: 1.5 is not a whole number"),
        ({"filter_subjects": ["a..b"]}, "filter_subjects: 'a..b' is not a filter"),
        ({"on_data_loss": "ignore"}, "on_data_loss: 'ignore' is not one of continue, fail"),
        ({"headers_only": True}, "headers_only: True is not supported"),
        ({"backoff": ["1s"]}, "backoff: .* is not supported"),
        ({"metadata": {"a": 1}}, "metadata: .* is not a mapping of text to text"),
        ({"description": "x" * 5000}, "description: 5000 bytes are too many, the most is 4096"),
    ],
)
def test_what_is_refused_says_which_key_and_what_is_taken(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ConsumerConfig.from_mapping({"name": "reader", **given})


def test_a_configuration_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ValueError, match="a dict or ConsumerConfig, not str"):
        ConsumerConfig.from_mapping("reader")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("1970-01-01 00:00:01", 1_000_000_000),
        ("1970-01-01T01:00:00.5+01:00", 500_000_000),
        ("1970-01-01T00:00:00.000000007Z", 7),
        ("1969-12-31T23:00:00-01:00", 0),
    ],
)
def test_times_are_read_with_their_zone_and_nanoseconds(text: str, expected: int) -> None:
    assert by_time(text).start_time_ns == expected


def by_time(text: str) -> ConsumerConfig:
    return ConsumerConfig.from_mapping({"name": "c", "deliver_policy": "by_start_time", "opt_start_time": text})


@pytest.mark.parametrize("text", ["", "2026-13-01T00:00:00Z", "2026-01", "2026-01-01T25:00:00Z", "now"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="opt_start_time"):
        by_time(text)


def test_a_configuration_comes_back_from_bytes() -> None:
    config = ConsumerConfig.from_mapping({"name": "reader", "filter_subjects": "a.>", "metadata": {"k": "v"}})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=ConsumerConfig) == config
