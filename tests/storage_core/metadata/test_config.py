"""Configuration: what is taken, what is refused, and that the error names the key, what came and what is taken."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.metadata.config import StoreSettings, StreamConfig

NAME = {"name": "ORDERS"}


def test_defaults() -> None:
    config = StreamConfig.from_mapping(NAME)
    assert config.to_json() == {
        "name": "ORDERS",
        "subjects": ["ORDERS"],
        "num_replicas": 1,
        "max_msg_size": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "max_consumers": -1,
        "retention": "limits",
        "discard": "old",
        "discard_new_per_subject": False,
        "duplicate_window": 120_000_000_000,
        "compression": "zstd",
        "deny_delete": False,
        "deny_purge": False,
        "allow_rollup_hdrs": False,
        "allow_msg_ttl": False,
        "sealed": False,
        "subject_delete_marker_ttl": 0,
        "description": "",
        "metadata": {},
        "block_max_msgs": 4_000_000,
        "block_max_bytes": 64 * 1024 * 1024,
        "block_max_age": 0,
        "archive_command": [],
    }


def test_sizes_may_be_text_with_a_unit() -> None:
    config = StreamConfig.from_mapping(
        {"name": "A", "max_bytes": "10GB", "max_msg_size": "1MB", "block_max_bytes": "512k"}
    )
    assert (config.max_bytes, config.max_msg_size, config.block_max_bytes) == (10 << 30, 1 << 20, 512 << 10)
    assert StreamConfig.from_mapping({"name": "A", "max_bytes": "-1"}).max_bytes == -1
    assert StoreSettings.from_mapping({"max_bytes": "1TB"}).max_bytes == 1 << 40


@given(
    st.fixed_dictionaries(
        {"name": st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True)},
        optional={
            "subjects": st.lists(st.sampled_from(["a", "a.*", "b.>", "c.d.e"]), min_size=1, unique=True),
            "num_replicas": st.sampled_from([1, 3, 5]),
            "max_msg_size": st.one_of(st.just(-1), st.integers(1, 1 << 20)),
            "max_msgs": st.one_of(st.just(-1), st.integers(1, 1 << 62)),
            "max_bytes": st.one_of(st.just(-1), st.integers(1 << 20, 1 << 62)),
            "max_age": st.one_of(st.just(0), st.integers(10**15, 1 << 62)),
            "max_consumers": st.one_of(st.just(-1), st.integers(1, 100)),
            "retention": st.sampled_from(["limits", "interest", "workqueue"]),
            "discard": st.sampled_from(["old", "new"]),
            "block_max_age": st.one_of(st.just(0), st.integers(10**9, 1 << 62)),
            "archive_command": st.lists(st.sampled_from(["/bin/cp", "/bin/a b", "/bin/'x"]), max_size=3),
            "duplicate_window": st.one_of(st.just(0), st.integers(10**8, 10**15)),
            "compression": st.sampled_from(["none", "lz4", "zstd"]),
            "deny_delete": st.booleans(),
            "sealed": st.booleans(),
            "description": st.text(max_size=20),
            "metadata": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
            "block_max_msgs": st.integers(1, 4_000_000),
            "block_max_bytes": st.integers(1, 1 << 31),
        },
    )
)
def test_a_configuration_comes_back_from_json(keys: dict[str, Any]) -> None:
    config = StreamConfig.from_mapping(keys)
    assert StreamConfig.from_mapping(config.to_json()) == config
    assert StreamConfig.from_mapping(config) == config
    shown = config.to_json()
    assert {key: shown[key] for key in keys} == keys


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("name", "a b", "name of a stream: 'a b' is not 1 to 128 of the characters"),
        ("name", "../x", "'../x'"),
        ("name", "x" * 129, "is not 1 to 128"),
        ("name", "a\0", "is not 1 to 128"),
        ("name", None, "name of a stream: None"),
        ("subjects", "a..b", "subjects: 'a..b' is not a subject"),
        ("subjects", ["a", "a"], "names one twice"),
        ("subjects", 5, "subjects: 5 is not a list"),
        ("num_replicas", 2, "num_replicas: 2 is not 1, 3 or 5"),
        ("num_replicas", "many", "num_replicas: 'many' is not a whole number"),
        ("num_replicas", True, "num_replicas: True is not a whole number"),
        ("compression", "snappy", "compression: 'snappy' is not one of none, lz4, zstd"),
        ("max_msg_size", 0, "max_msg_size: 0 is not -1 (no limit) or 1 to"),
        ("max_msgs", -2, "max_msgs: -2 is not -1 (no limit) or 1 to"),
        ("max_msgs", 1 << 63, "max_msgs: 9223372036854775808 is not -1"),
        ("max_msgs", "many", "max_msgs: 'many' is not a whole number"),
        ("max_bytes", -5, "max_bytes: -5 is not -1 (no limit) or 1 to"),
        ("max_bytes", 1.5, "max_bytes: 1.5 is not a whole number"),
        ("max_bytes", "10 XB", "max_bytes: '10 XB' is not a number of bytes"),
        ("max_consumers", -2, "max_consumers: -2 is not -1"),
        ("max_age", "1h30", "max_age: '1h30' is not a duration"),
        ("max_age", -1, "max_age: -1 is not a duration"),
        ("max_age", "99999999d", "max_age: '99999999d' is too long; the longest duration is"),
        ("max_age", "99ms", "max_age: 99ms is not 0 (no limit) or 100ms and more"),
        ("discard", "oldest", "discard: 'oldest' is not one of old, new; did you mean 'old'?"),
        (
            "max_age",
            3600,
            "max_age: 3600 is not 0 (no limit) or 100ms and more; a number without a unit is nanoseconds",
        ),
        ("duplicate_window", "soon", "duplicate_window"),
        ("duplicate_window", 120, "duplicate_window: 120 is not 0 (no window) or 100ms and more; a number without"),
        (
            "subject_delete_marker_ttl",
            60,
            "subject_delete_marker_ttl: 60 is not 0 (no markers) or 1s and more; a number",
        ),
        ("block_max_age", 86_400, "block_max_age: 86400 is not 0 (any) or 1s and more; a number without a unit"),
        ("sealed", "yes", "sealed: 'yes' is not true or false"),
        ("description", "x" * 4097, "description: 4097 bytes are too many, the most is 4096"),
        ("metadata", {"a": 1}, "metadata: {'a': 1} is not a mapping of text to text"),
        ("metadata", {"a": "x" * 200_000}, "metadata: 200001 bytes are too many, the most is 131072"),
        ("block_max_msgs", 0, "block_max_msgs: 0 is not 1 to"),
        ("block_max_bytes", 1 << 40, "block_max_bytes"),
        ("block_max_age", "1ms", "block_max_age: 1ms is not 0 (any) or 1s and more"),
        ("block_max_age", "daily", "block_max_age: 'daily' is not a duration"),
        ("archive_command", "gzip", "archive_command: 'gzip' is not the absolute path of a program"),
        ("archive_command", ["/bin/cp", 1], "archive_command: ['/bin/cp', 1] is not a list of words"),
        ("archive_command", "/bin/sh -c 'x", 'archive_command: "/bin/sh -c \'x" cannot be split into words'),
        ("archive_command", ["/bin/" + "x" * 5000], "archive_command: at most 4096 bytes"),
        ("retention", "work", "retention: 'work' is not one of limits, interest, workqueue"),
        ("subjcts", ["a"], "unknown key of a stream: 'subjcts'; did you mean 'subjects'?"),
        ("colour", "red", "unknown key of a stream: 'colour'; valid ones are name, subjects, num_replicas"),
    ],
)
def test_what_is_refused(key: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError) as raised:
        StreamConfig.from_mapping({**NAME, key: value})
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("key", "harmless", "asked"),
    [
        ("no_ack", False, True),
        ("first_seq", 1, 100),
        ("mirror", None, "OTHER"),
        ("sources", [], "OTHER"),
        ("placement", None, "rack-1"),
        ("republish", None, "copy"),
        ("subject_transform", None, "other"),
        ("mirror_direct", False, True),
        ("allow_msg_schedules", False, True),
    ],
)
def test_keys_that_do_nothing_yet_are_refused_by_name_unless_they_change_nothing(
    key: str, harmless: Any, asked: Any
) -> None:
    assert StreamConfig.from_mapping({**NAME, key: harmless}) == StreamConfig.from_mapping(NAME)
    with pytest.raises(ValueError, match=f"^{key}: {asked!r} is not supported by this version of jstream"):
        StreamConfig.from_mapping({**NAME, key: asked})


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"max_bytes": 100, "max_msg_size": 101}, "max_msg_size: 101 bytes are more than max_bytes, 100"),
        ({"max_msgs_per_subject": 1, "discard_new_per_subject": True}, "discard_new_per_subject: it needs discard new"),
        ({"discard": "new", "discard_new_per_subject": True}, "discard_new_per_subject: it needs discard new"),
        ({"max_age": "1m", "duplicate_window": "2m"}, "duplicate_window: 2m is longer than max_age, 1m"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as raised:
        StreamConfig.from_mapping({**NAME, **keys})
    assert str(raised.value).startswith(said)


def test_no_limit_has_two_spellings_and_the_duplicate_window_follows_a_short_max_age() -> None:
    keys = ("max_msgs", "max_bytes", "max_msgs_per_subject", "max_consumers", "max_age")
    none = StreamConfig.from_mapping({**NAME, **dict.fromkeys(keys, 0)})
    assert none == StreamConfig.from_mapping(NAME)
    assert StreamConfig.from_mapping({**NAME, "max_age": "1m"}).duplicate_window == 60_000_000_000
    assert StreamConfig.from_mapping({**NAME, "max_age": "1h"}).duplicate_window == 120_000_000_000


@pytest.mark.parametrize("text", ["7", "-1"])
def test_numbers_may_come_as_text(text: str) -> None:
    assert StreamConfig.from_mapping({**NAME, "max_msg_size": text}).max_msg_size == int(text)


def test_store_settings() -> None:
    assert StoreSettings.from_mapping({}) == StoreSettings(
        deleted_block_retention=24 * 3600 * 10**9, snapshot_every=128
    )
    assert StoreSettings.from_mapping({"deleted_block_retention": "1h"}).deleted_block_retention == 3600 * 10**9
    for keys, said in (
        ({"snapshot_every": 0}, "snapshot_every: 0 is not 1 to 100000 entries"),
        ({"snapshot_evry": 5}, "unknown setting: 'snapshot_evry'; did you mean 'snapshot_every'?"),
        ({"open_files_max": "few"}, "open_files_max: 'few' is not a whole number"),
        ({"max_bytes": -2}, "max_bytes: -2 is not -1 (no limit) or 1 to"),
        ({"stream_defaults": {"a.b": {}}}, "stream_defaults: 'a.b' is no name with * for any characters"),
        ({"stream_defaults": {"*": {"max_age": "old"}}}, "stream_defaults '*': max_age: 'old' is not a duration"),
        ({"stream_defaults": {"*": {"subjects": "a"}}}, "stream_defaults '*': subjects is each stream's own"),
        ({"stream_defaults": ["*"]}, "stream_defaults: ['*'] is not a mapping"),
    ):
        with pytest.raises(ValueError) as raised:
            StoreSettings.from_mapping(keys)
        assert said in str(raised.value)
