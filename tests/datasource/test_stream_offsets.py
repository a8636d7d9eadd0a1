"""Offsets of a streaming query: what is written is read again, and whatever else comes is named."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasource.stream_offsets import StreamOffset, decode, encode
from storage_core.errors import UnsupportedVersionError
from storage_core.metadata.reconcile import Position
from storage_core.sequences import SequenceSet
from storage_core.store.consumers.query_position import QueryPosition

GOLDEN = (
    '{"ORDERS": {"begin": 7, "history": [["0123456789abcdef", 1], ["fedcba9876543210", 900]], '
    '"incarnation": "000102030405060708090a0b0c0d0e0f", "lost": [[1, 1845]], "sequence": 1945, '
    '"store": "ffffffffffffffffffffffffffffffff", "version": 1}}'
)


@st.composite
def stream_offsets(draw: st.DrawFn) -> StreamOffset:
    sequence = draw(st.integers(1, 2**63 - 1))
    firsts = sorted(draw(st.sets(st.integers(1, max(1, sequence - 1)), max_size=8 if sequence > 1 else 0)))
    history = tuple((draw(st.binary(min_size=8, max_size=8)), first) for first in firsts)
    edges = sorted(draw(st.sets(st.integers(1, 2**62), max_size=16)))
    lost = SequenceSet.from_ranges(list(zip(edges[::2], edges[1::2], strict=False)))
    position = Position(draw(st.binary(min_size=16, max_size=16)), sequence, history)
    begin = draw(st.none() | st.integers(1, sequence))
    consumer = draw(st.none() | st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True))
    filters = tuple(draw(st.lists(st.sampled_from([">", "orders.*", "orders.eu.>", "\u00e9.a"]), max_size=3)))
    store_id = draw(st.binary(min_size=16, max_size=16))
    count = draw(st.none() | st.integers(0, sequence))
    return StreamOffset(store_id, QueryPosition(position, lost), begin, consumer, filters, count)


@given(st.dictionaries(st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True), stream_offsets(), max_size=3))
def test_offsets_come_back_from_the_text_that_spark_keeps(offsets: dict[str, StreamOffset]) -> None:
    text = json.dumps(encode(offsets))
    assert decode(json.loads(text)) == offsets
    assert text == json.dumps(json.loads(text), sort_keys=True)
    assert json.dumps(encode(decode(json.loads(text)))) == text


def test_text_of_an_offset() -> None:
    assert json.dumps(encode(decode(json.loads(GOLDEN)))) == GOLDEN


def test_first_batch_knows_where_it_began_with_the_history_below() -> None:
    one = decode(json.loads(GOLDEN))["ORDERS"]
    begin = one.first_of_batch()
    assert begin is not None
    assert begin.position == Position(one.at.position.incarnation, 7, one.at.position.history[:1])
    assert begin.reported == SequenceSet.from_ranges([(1, 1845)])


def test_query_of_no_stream_yet_has_an_empty_offset() -> None:
    assert decode({}) == {}
    assert encode({}) == {}


CASES: list[tuple[dict[str, Any], str]] = [
    ({"sequence": 0}, "'sequence' of stream 'ORDERS' is 0, expected a whole number from 1 on"),
    ({"sequence": -5}, "'sequence' .* is -5"),
    ({"sequence": "1945"}, "'sequence' .* is \"1945\""),
    ({"sequence": 1945.0}, "'sequence' .* is 1945.0"),
    ({"sequence": True}, "'sequence' .* is true"),
    ({"sequence": 2**63}, "'sequence' .* is 9223372036854775808"),
    ({"sequence": 10}, r"'history' of stream 'ORDERS' is .* ascending, below 10"),
    ({"begin": 1946}, "'begin' of stream 'ORDERS' is 1946, expected a whole number from 1 to 'sequence', 1945"),
    ({"begin": None}, "'begin' of stream 'ORDERS' is null"),
    ({"incarnation": "00"}, "'incarnation' .* is \"00\", expected 32 hexadecimal digits"),
    ({"incarnation": "0001020304050607 8090a0b0c0d0e0f"}, "'incarnation'"),
    ({"incarnation": None}, "'incarnation' .* is null"),
    ({"store": "F" * 32}, "'store' .* expected 32 hexadecimal digits"),
    ({"history": "none"}, "'history' .* is \"none\""),
    ({"history": [["0123456789abcdef"]]}, "'history'"),
    ({"history": [["0123456789abcde", 1]]}, "'history' .* expected 16 hexadecimal digits"),
    ({"history": [["0123456789abcdef", 5], ["0123456789abcdef", 5]]}, "'history' .* ascending"),
    ({"history": [["0123456789abcdef", at] for at in range(1, 10)]}, "'history' .* at most 8 runs"),
    ({"lost": {}}, r"'lost' of stream 'ORDERS' is {}"),
    ({"lost": [[5, 5]]}, "'lost'"),
    ({"lost": [[5, 8], [8, 9]]}, "'lost' .* ascending and apart"),
    ({"lost": [[0, 8]]}, "'lost'"),
    ({"lost": [[at, at + 1] for at in range(1, 19, 2)]}, "'lost' .* at most 8 ranges"),
    ({"version": 0}, "'version' of stream 'ORDERS' is 0, expected 1"),
    ({"version": "1"}, "'version'"),
    ({"consumer": "a b"}, "'consumer' of stream 'ORDERS' is \"a b\", expected the name of a consumer"),
    ({"consumer": None}, "'consumer' .* is null"),
    ({"filters": []}, r"'filters' of stream 'ORDERS' is \[\], expected a list of subject filters"),
    ({"filters": ["a..b"]}, "'filters'"),
    ({"filters": "orders.>"}, "'filters'"),
    ({"filters": [7]}, "'filters'"),
    ({"count": 1946}, "'count' of stream 'ORDERS' is 1946, expected a whole number from 0 to 'sequence', 1945"),
    ({"count": -1}, "'count'"),
    ({"count": None}, "'count' .* is null"),
    ({"index": 3}, r"stream 'ORDERS' is \[\"index\"\], expected no other fields"),
]


@pytest.mark.parametrize(("changes", "says"), CASES, ids=[json.dumps(changes)[:40] for changes, _ in CASES])
def test_edited_offset_is_refused_by_field_with_the_checkpoint_as_its_place(changes: dict[str, Any], says: str) -> None:
    offset = json.loads(GOLDEN)
    offset["ORDERS"].update(changes)
    with pytest.raises(ValueError, match=says) as caught:
        decode(offset)
    assert "newest file in the folder 'offsets' of the checkpoint" in str(caught.value)


@pytest.mark.parametrize("key", ["history", "incarnation", "lost", "sequence", "store", "version"])
def test_offset_without_a_field_is_refused(key: str) -> None:
    offset = json.loads(GOLDEN)
    del offset["ORDERS"][key]
    with pytest.raises(ValueError, match=f"'?{key}'?"):
        decode(offset)


@pytest.mark.parametrize("offset", [None, 7, "latest", [], {"ORDERS": 7}, {"ORDERS": None}, {"partition-1": {"0": 5}}])
def test_offset_of_another_source_is_refused(offset: object) -> None:
    with pytest.raises(ValueError, match="is not one that jstream wrote"):
        decode(copy.deepcopy(offset))


def test_offset_of_a_newer_version_names_both_versions() -> None:
    offset = json.loads(GOLDEN)
    offset["ORDERS"].update(version=2, extra={})
    with pytest.raises(UnsupportedVersionError, match="stream 'ORDERS' has version 2, this program reads 1"):
        decode(offset)
