"""SharedMap against a dict: the same content after any changes, and what was shared stays as it was."""

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.metadata import shared_map
from storage_core.metadata.shared_map import LEAF_SIZE_MAX, SharedMap

KEYS = [f"key {n}" for n in range(8 * LEAF_SIZE_MAX)]


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), max_size=600), st.integers(0, 200))
def test_a_map_says_what_a_dict_says(changes: list[tuple[str, bool]], begun_with: int) -> None:
    plain = {key: object() for key in KEYS[:begun_with]}
    shared: SharedMap[str, object] = SharedMap(plain)
    versions = [(dict(plain), shared)]
    for key, is_put in changes:
        if is_put:
            plain[key] = object()
            shared = shared.with_item(key, plain[key])
        elif key in plain:
            del plain[key]
            shared = shared.without(key)
        versions.append((dict(plain), shared))
    for expected, version in (*versions[:: max(1, len(versions) // 7)], versions[-1]):
        assert (dict(version), len(version)) == (expected, len(expected))
        assert all(version.get(key) is expected.get(key) for key in KEYS)
        told = {key: (before, now) for key, before, now in shared.changes_since(version)}
        changed = {key for key in KEYS if expected.get(key) is not plain.get(key)}
        assert told == {key: (expected.get(key), plain.get(key)) for key in changed}


def test_keys_of_one_hash_are_told_apart() -> None:
    """Texts of pairs that collide collide as well, whatever the order: 64 of them, more than a leaf holds."""
    seen: dict[int, bytes] = {}
    for n in range(1_000_000):
        key = b"%06d" % n + bytes([n * 31 % 251, n * 17 % 241])
        other = seen.setdefault(crc32(key), key)
        if other != key:
            break
    pair = (other, key)
    keys = [b"".join(pair[n >> bit & 1] for bit in range(6)) for n in range(64)]
    assert {crc32(key) for key in keys} == {crc32(keys[0])}
    shared: SharedMap[bytes, int] = SharedMap()
    for n, key in enumerate(keys):
        shared = shared.with_item(key, n)
    assert [shared[key] for key in keys] == list(range(64))
    assert dict(shared.without(keys[5])) == {key: n for n, key in enumerate(keys) if n != 5}


def test_a_key_that_is_not_there_cannot_be_taken_away() -> None:
    with pytest.raises(KeyError):
        SharedMap({"a": 1}).without("b")


def test_a_change_shares_all_but_one_leaf() -> None:
    before = SharedMap({f"stream {n}": object() for n in range(20_000)})
    now = before.with_item("stream 7", object()).without("stream 8")
    assert sorted(key for key, _, _ in now.changes_since(before)) == ["stream 7", "stream 8"]
    leaves, others = (list(shared_map._leaves(one._root)) for one in (before, now))
    assert sum(leaf is not other for leaf, other in zip(leaves, others, strict=True)) == 2
