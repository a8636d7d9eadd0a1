"""Headers: the vectorised parser against one that reads line by line."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_core.foreign.arrays import to_strings
from storage_core.foreign.nats.headers import parse_headers
from storage_core.schema import HEADERS_TYPE

Pairs = list[tuple[str, bytes | None]]

lines = st.lists(
    st.one_of(
        st.builds(
            lambda key, blank, value, tail: key + b":" + blank + value + tail,
            st.binary(min_size=1, max_size=8).filter(lambda key: not set(key) & set(b":\r\n") and key.isascii()),
            st.sampled_from([b" ", b"", b"\t", b"  ", b" " * 9]),
            st.binary(max_size=12).filter(lambda value: not set(value) & set(b"\r\n")),
            st.sampled_from([b"", b" ", b"\t\t", b" " * 7]),
        ),
        st.sampled_from([b"no colon", b":", b": only a value", b"a:b:c", b"NATS/1.0", b"NA", b"TS", b" "]),
    ),
    max_size=6,
)
blocks = st.builds(
    lambda status, inner, end: status + b"".join(line + b"\r\n" for line in inner) + end,
    st.sampled_from([b"NATS/1.0\r\n", b"NATS/1.0 503 none\r\n", b""]),
    lines,
    st.sampled_from([b"\r\n", b"", b"cut off", b"\r", b"\n", b"NA"]),
)


def slow(raw: bytes) -> Pairs:
    pairs: Pairs = []
    for at, line in enumerate(raw.split(b"\r\n")):
        if not line or (at == 0 and line.startswith(b"NATS")):
            continue
        key, colon, value = line.partition(b":")
        name = key.strip(b" \t").decode("utf-8", "backslashreplace")
        pairs.append((name, value.strip(b" \t") if colon else None))
    return pairs


def parsed(raw: list[bytes | None]) -> list[Pairs | None]:
    present = np.array([one is not None for one in raw], bool)
    given_raw = pa.array([one for one in raw if one is not None], pa.binary())
    result = parse_headers(given_raw, present)
    result.validate(full=True)
    assert result.type == HEADERS_TYPE
    return [
        None if row is None else [(pair["key"], pair["value"]) for pair in row]  #
        for row in result.to_pylist()
    ]


@given(raw=st.lists(st.one_of(st.none(), blocks), max_size=12))
@example(raw=[b""])
@example(raw=[b"", None, b""])
@example(raw=[b"NA", b"TS/1.0\r\nA: x\r\n"])
@settings(max_examples=300, deadline=None)
def test_parser_agrees_with_reading_line_by_line(raw: list[bytes | None]) -> None:
    assert parsed(raw) == [None if one is None else slow(one) for one in raw]


def test_repeated_keys_and_empty_values_stay() -> None:
    raw = b"NATS/1.0\r\nA: 1\r\nA: 2\r\nB:\r\n\r\n"
    assert parsed([raw]) == [[("A", b"1"), ("A", b"2"), ("B", b"")]]


def test_no_headers_is_null_and_empty_headers_are_an_empty_list() -> None:
    assert parsed([None, b"NATS/1.0\r\n\r\n", b""]) == [None, [], []]


def test_values_keep_bytes_that_are_no_utf8_and_keys_show_them() -> None:
    assert parsed([b"NATS/1.0\r\n\xffk: \xfe\r\n\r\n"]) == [[("\\xffk", b"\xfe")]]


def test_a_line_break_across_two_messages_is_none() -> None:
    assert parsed([b"NATS/1.0\r\nA: x\r", b"\nB: y\r\n"]) == [[("A", b"x\r")], [("\nB", b"y")]]


@pytest.mark.parametrize("raw", [[], [b"ok", b"\xc3\xa9"], [b"\xc3"]])
def test_strings_are_decoded(raw: list[bytes]) -> None:
    expected = [one.decode("utf-8", "backslashreplace") for one in raw]
    assert to_strings(pa.array(raw, pa.binary())).to_pylist() == expected


def test_headers_before_a_slice_are_none_of_it() -> None:
    raw = pa.array([b"NATS/1.0\r\nA: 1\r\n\r\n", b"NATS/1.0\r\nB: 2\r\n", b"C: 3"], pa.binary())
    sliced = parse_headers(raw[1:2], np.ones(1, bool))
    assert sliced.to_pylist() == [[{"key": "B", "value": b"2"}]]
