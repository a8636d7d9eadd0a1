"""The content of a batch as one number: the same for the same messages, and for no others."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.schema import HEADERS_TYPE
from storage_core.store.writing.batch_content import combined, message_hashes, string_hashes
from storage_core.store.writing.messages import Acceptance, check_messages

NOW_NS = 1_700_000_000_000_000_000
SCHEMA = pa.schema(
    [
        ("subject", pa.string()),
        ("data", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("msg_id", pa.string()),
        ("timestamp_ns", pa.int64()),
    ]
)
Row = dict[str, Any]
TEXTS = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=140)
HEADERS = st.lists(st.tuples(TEXTS, st.none() | st.binary(max_size=70)), max_size=3)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "subject": TEXTS,
            "data": st.none() | st.binary(max_size=300),
            "headers": st.none() | HEADERS,
            "msg_id": st.none() | TEXTS,
            "timestamp_ns": st.none() | st.integers(0, 2**62),
        }
    ),
    max_size=12,
)


def content(*parts: list[Row], stream: str = "ORDERS", now_ns: int = NOW_NS) -> bytes:
    """Return the content of a batch whose tasks have these rows."""
    sums = []
    for rows in parts:
        batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
        messages = check_messages(batch, Acceptance(stream, (">",), -1, None), now_ns)
        sums.append((len(rows), int(message_hashes(messages, stream).sum())))
    return combined(sums)


@given(rows=ROWS, cut=st.integers(0, 12), random=st.randoms(use_true_random=False))
def test_order_and_division_do_not_matter(rows: list[Row], cut: int, random: Any) -> None:
    shuffled = random.sample(rows, len(rows))
    assert content(shuffled[:cut], [], shuffled[cut:], now_ns=NOW_NS + 1) == content(rows)


@given(rows=ROWS, other=ROWS)
def test_other_messages_are_other_content(rows: list[Row], other: list[Row]) -> None:
    def key(row: Row) -> str:
        return repr(sorted(row.items()))

    assert (content(rows) == content(other)) == (sorted(map(key, rows)) == sorted(map(key, other)))


ROW: Row = {"subject": "a.b", "data": b"x" * 100, "headers": [("k", b"v"), ("k", b"w")], "msg_id": "m"}


@pytest.mark.parametrize(
    "change",
    [
        {"subject": "a.c"},
        {"data": b"x" * 101},
        {"data": b"x" * 63},
        {"data": b""},
        {"data": None},
        {"headers": [("k", b"w"), ("k", b"v")]},
        {"headers": [("kv", b""), ("k", b"w")]},
        {"headers": [("k", b"v"), ("k", None)]},
        {"headers": []},
        {"headers": None},
        {"msg_id": None},
        {"msg_id": "n"},
        {"timestamp_ns": 0},
        {"timestamp_ns": NOW_NS},
    ],
    ids=str,
)
def test_each_field_counts(change: Row) -> None:
    assert content([ROW]) == content([dict(ROW)])
    assert content([ROW]) != content([ROW | change])
    assert content([ROW], stream="LOGS") != content([ROW])


def test_fields_belong_to_their_message() -> None:
    one, other = ROW, ROW | {"subject": "a.c", "data": b"y"}
    crossed = [one | {"data": b"y"}, other | {"data": one["data"]}]
    assert content([one, other]) != content(crossed)
    assert content([one, one]) != content([one])


@pytest.mark.parametrize("size", [1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 192, 193, 1000])
def test_each_bit_of_a_string_counts(size: int) -> None:
    text = bytes(np.random.default_rng(size).integers(0, 256, size, np.uint8))
    changed = {text}
    for bit in range(8 * size):
        flipped = bytearray(text)
        flipped[bit // 8] ^= 1 << bit % 8
        changed.add(bytes(flipped))
    hashes = string_hashes(pa.array(sorted(changed), pa.binary()))
    assert len(set(hashes.tolist())) == len(changed)


@pytest.mark.parametrize("digits", [2, 3])
@pytest.mark.parametrize("size", [24, 104, 230])
def test_numbers_at_any_places_of_a_text_are_told_apart(size: int, digits: int) -> None:
    """Texts that differ in a few digits, also in the last bytes of words, whose high bits a product would lose."""
    rng = np.random.default_rng(size * digits)
    places = np.unique(np.sort(rng.integers(0, size // 8, (300, digits)) * 8 + 7, axis=1), axis=0)
    texts = set()
    for row in places:
        for number in range(10**digits):
            text = bytearray(b"0" * size)
            for place, digit in zip(row, f"{number:0{digits}}", strict=True):
                text[place] = ord(digit)
            texts.add(bytes(text))
    assert len(np.unique(string_hashes(pa.array(sorted(texts), pa.binary())))) == len(texts)


@given(values=st.lists(st.none() | st.binary(max_size=200), max_size=30), first=st.integers(0, 30))
def test_a_string_has_one_hash_wherever_it_stands(values: list[bytes | None], first: int) -> None:
    whole = pa.array(values, pa.binary())
    alone = [string_hashes(pa.array([one], pa.binary()))[0] for one in values]
    assert string_hashes(whole).tolist() == alone
    assert string_hashes(whole.slice(first)).tolist() == alone[first:]


@pytest.mark.parametrize("make", [lambda count: b"z" * count, lambda count: b"%d" % count], ids=["long", "many"])
def test_strings_beyond_one_chunk_have_the_hashes_that_they_have_alone(make: Callable[[int], bytes]) -> None:
    values = [make(count) for count in (5, 700_000, 64, 3, 1_200_000, 0, 65)] + [b"%d" % one for one in range(5_000)]
    alone = [string_hashes(pa.array([one], pa.binary()))[0] for one in values]
    assert string_hashes(pa.array(values, pa.binary())).tolist() == alone
