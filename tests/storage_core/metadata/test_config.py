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
        "duplicate_window": 120_000_000_000,
        "compression": "zstd",
        "deny_delete": False,
        "deny_purge": False,
        "sealed": False,
        "description": "",
        "metadata": {},
        "block_max_msgs": 4_000_000,
        "block_max_bytes": 64 * 1024 * 1024,
    }


@given(
    st.fixed_dictionaries(
        {"name": st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True)},
        optional={
            "subjects": st.lists(st.sampled_from(["a", "a.*", "b.>", "c.d.e"]), min_size=1, unique=True),
            "num_replicas": st.sampled_from([1, 3, 5]),
            "max_msg_size": st.one_of(st.just(-1), st.integers(1, 1 << 20)),
            "duplicate_window": st.integers(0, 10**15),
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
        ("duplicate_window", "soon", "duplicate_window"),
        ("sealed", "yes", "sealed: 'yes' is not true or false"),
        ("description", "x" * 4097, "description: 4097 bytes are too many, the most is 4096"),
        ("metadata", {"a": 1}, "metadata: {'a': 1} is not a mapping of text to text"),
        ("metadata", {"a": "x" * 200_000}, "metadata: 200001 bytes are too many, the most is 131072"),
        ("block_max_msgs", 0, "block_max_msgs: 0 is not 1 to"),
        ("block_max_bytes", 1 << 40, "block_max_bytes"),
        ("subjcts", ["a"], "unknown key of a stream: 'subjcts'; did you mean 'subjects'?"),
        ("colour", "red", "unknown key of a stream: 'colour'; taken are name, subjects, num_replicas"),
    ],
)
def test_what_is_refused(key: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError) as raised:
        StreamConfig.from_mapping({**NAME, key: value})
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("key", "harmless", "asked"),
    [
        ("retention", "limits", "workqueue"),
        ("discard", "old", "new"),
        ("max_msgs", -1, 100),
        ("max_bytes", -1, 1 << 30),
        ("max_age", 0, 60_000_000_000),
        ("max_msgs_per_subject", -1, 1),
        ("allow_rollup_hdrs", False, True),
        ("allow_msg_ttl", False, True),
        ("block_max_age", 0, 1),
        ("archive_command", "", "gzip"),
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


@pytest.mark.parametrize("text", ["7", "-1"])
def test_numbers_may_come_as_text(text: str) -> None:
    assert StreamConfig.from_mapping({**NAME, "max_msg_size": text}).max_msg_size == int(text)


def test_store_settings() -> None:
    assert StoreSettings.from_mapping({}) == StoreSettings(deleted_file_retention=24 * 3600 * 10**9, snapshot_every=128)
    assert StoreSettings.from_mapping({"deleted_file_retention": "1h"}).deleted_file_retention == 3600 * 10**9
    for keys, said in (
        ({"snapshot_every": 0}, "snapshot_every: 0 is not 1 to 100000 entries"),
        ({"snapshot_evry": 5}, "unknown setting: 'snapshot_evry'; did you mean 'snapshot_every'?"),
        ({"open_files_max": 5}, "open_files_max: 5 is not supported by this version of jstream"),
    ):
        with pytest.raises(ValueError) as raised:
            StoreSettings.from_mapping(keys)
        assert said in str(raised.value)
