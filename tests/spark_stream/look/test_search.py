"""Which messages a filter of header, field and text chooses, beside a plain walk over each message."""

import json
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.look.search import MessageFilter
from spark_stream.look.values import field_of, parsed
from storage_core.schema import HEADERS_TYPE

NAMES = st.sampled_from(["id", "customer", "é", 'q"', "a\\b", "0"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-50, 50),
    st.floats(allow_nan=False),
    st.sampled_from(["42", "é", '"', "/", ""]),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=5
)


@st.composite
def payloads(draw: st.DrawFn) -> bytes | None:
    value = draw(st.dictionaries(NAMES, VALUES, max_size=3) | VALUES)
    how = draw(st.sampled_from(["compact", "escaped", "spaced", "utf-16", "msgpack", "bytes", "null"]))
    if how == "msgpack":
        return bytes(msgpack.packb(value))
    if how in ("bytes", "null"):
        return draw(st.binary(max_size=8)) if how == "bytes" else None
    text = json.dumps(value, ensure_ascii=how == "escaped", separators=(",", ":") if how == "compact" else None)
    return text.encode("utf-16" if how == "utf-16" else "utf-8")


def batch(data: list[bytes | None], headers: list[Any] | None = None) -> pa.RecordBatch:
    rows = headers if headers is not None else [None] * len(data)
    numbers = pa.array(range(1, len(data) + 1), pa.int64())
    return pa.RecordBatch.from_arrays(
        [numbers, pa.array(rows, HEADERS_TYPE), pa.array(data, pa.binary())], ["sequence", "headers", "data"]
    )


def chosen(wanted: MessageFilter, rows: pa.RecordBatch) -> list[int]:
    return wanted.chosen(rows).column("sequence").to_pylist()


def has_field(data: bytes | None, path: str, value: str | None) -> bool:
    held = field_of(parsed(data), path)
    return held is not None and (
        value is None or value in (str(held), str(held).lower() if held in (True, False) else "")
    )


@given(st.lists(payloads(), max_size=8), st.lists(NAMES, min_size=1, max_size=2), st.data())
def test_a_field_is_found_in_whatever_way_it_is_written(
    data: list[bytes | None], names: list[str], drawn: st.DataObject
) -> None:
    path = ".".join(names)
    there = [str(held) for held in (field_of(parsed(one), path) for one in data) if held is not None]
    value = drawn.draw(st.sampled_from([None, "42", "true", "1.0", *there]))
    value = None if value is None else value.strip()
    wanted = MessageFilter(field=(path, value))
    expected = [number for number, one in enumerate(data, 1) if has_field(one, path, value)]
    assert chosen(wanted, batch(data)) == expected


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("paid", [1]),
        ("^o", [2]),
        ("(?i)PAID", [1, 4]),
        ("[äö]r", [3]),
        ("^.ä", [3]),
        (r"\d{3}", [2]),
        ("", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_text_is_found_by_its_letters(pattern: str, found: list[int]) -> None:
    data = [b"is paid", b"order 123", "Bär".encode(), b"Paid\xff", None, b""]
    assert chosen(MessageFilter.of(grep=pattern), batch(data)) == found


def test_a_pattern_that_others_backtrack_over_ends() -> None:
    assert chosen(MessageFilter.of(grep="(a+)+$"), batch([b"a" * 50_000 + b"b", b"a"])) == [2]


@pytest.mark.parametrize("pattern", ["(", "a{3,1}", "(?=x)", r"\1", "(a{1000}){1000}"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="grep: .* is no regular expression of RE2: ") as refused:
        MessageFilter.of(grep=pattern)
    assert repr(pattern) in str(refused.value)


@pytest.mark.parametrize(
    ("header", "found"), [("trace", [1, 2, 4]), ("Trace: abc", [1]), ("TRACE:", [2, 4]), ("other", []), ("É:1", [5])]
)
def test_a_header_is_found_by_its_name_in_any_case(header: str, found: list[int]) -> None:
    pairs = [[("x", b"1"), ("Trace", b"abc")], [("trace", b"")], None, [("TRACE", None)], [("é", b"1")], []]
    rows = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in pairs]
    assert chosen(MessageFilter.of(header=header), batch([b"x"] * len(rows), rows)) == found


def test_all_that_is_asked_for_has_to_hold() -> None:
    data = [b'{"id":1,"text":"yes"}', b'{"id":1,"text":"no"}', b'{"id":2,"text":"yes"}']
    rows = batch(data, [[{"key": "T", "value": b"1"}]] * 3)
    assert chosen(MessageFilter.of(header="T:1", field="id=1", grep="yes"), rows) == [1]
    assert chosen(MessageFilter.of(header="T:2", field="id=1", grep="yes"), rows) == []
