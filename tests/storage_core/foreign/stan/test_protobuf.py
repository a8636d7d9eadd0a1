"""The vectorised decoder against one that reads a byte at a time."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.foreign.stan.protobuf import BYTES, PADDING, VARINT, decode_fields, decode_one, read_uvarints

WIRE_TYPES = {1: VARINT, 2: BYTES, 4: BYTES, 5: VARINT}
KEPT = (1, 2, 4, 5)


def laid(messages: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    edges = np.cumsum([0, *map(len, messages)]).astype(np.int64)
    return np.frombuffer(b"".join(messages) + bytes(PADDING), np.uint8), edges[:-1], edges[1:]


def decoded(messages: list[bytes]) -> list[dict[int, int | bytes] | None]:
    view, starts, ends = laid(messages)
    fields, good = decode_fields(view, starts, ends, WIRE_TYPES, KEPT)
    rows: list[dict[int, int | bytes] | None] = []
    for row in range(len(messages)):
        found: dict[int, int | bytes] = {}
        for number, one in fields.items():
            value, start = int(one.values[row]), int(one.starts[row])
            found[number] = value if WIRE_TYPES[number] == VARINT else view[start : start + value].tobytes()
        rows.append(found if good[row] else None)
    return rows


def expected(message: bytes) -> dict[int, int | bytes]:
    fields, _ = decode_one(message)
    return {number: fields.get(number, 0 if WIRE_TYPES[number] == VARINT else b"") for number in KEPT}


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_integers_of_every_length_are_read(writer: Any, values: list[int]) -> None:
    view, starts, ends = laid([writer.uvarint(value) for value in values])
    found, after = read_uvarints(view, starts)
    assert found.tolist() == values
    assert after.tolist() == ends.tolist()


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(), st.binary(), st.integers(0, 2**63)), min_size=1))
def test_messages_are_read_whatever_fields_they_leave_out(
    writer: Any, rows: list[tuple[int, bytes, bytes, int]]
) -> None:
    messages = [writer.proto(f1=a, f2=b, f4=c, f5=d) for a, b, c, d in rows]
    assert decoded(messages) == [{1: a, 2: b, 4: c, 5: d} for a, b, c, d in rows]


def test_unknown_fields_are_passed_over_and_the_last_of_two_counts(writer: Any) -> None:
    known = writer.proto(f1=7, f2="foo")
    unknown = writer.proto(f3="reply", f9=300, f20=9, f1000="long") + b"\x65" + bytes(4) + b"\x69" + bytes(8)
    far = writer.uvarint(16 << 3 | 1) + bytes(8) + writer.uvarint(17 << 3 | 5) + bytes(4)
    assert decoded([unknown + known, known + far, known + writer.proto(f1=8)]) == [
        {1: 7, 2: b"foo", 4: b"", 5: 0},
        {1: 7, 2: b"foo", 4: b"", 5: 0},
        {1: 8, 2: b"foo", 4: b"", 5: 0},
    ]


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a\x01x",  # a number that comes as bytes
        b"\x10\x05",  # bytes that come as a number
        b"\x00\x01",  # field 0
        b"\x0b\x0c",  # a group
        b"\x08",  # ends after its tag
        b"\x08\xff",  # ends inside a number
        b"\x08" + b"\xff" * 10 + b"\x01",  # more than 64 bits
        b"\x08" + b"\xff" * 9 + b"\x02",
        b"\x12\x05abcd",  # declares one byte more than there is
        b"\x12\xff\xff\xff\xff\x0f",  # 2^32 - 1 bytes
        b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # 2^63 - 1
        b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # 2^64 - 1
        b"\x6d\x01\x02\x03",  # three bytes of four
        b"\x82\x02\x7f",  # an unknown field that is too long
        b"\x88\x00\x01",  # a tag in more bytes than it needs
    ],
)
def test_unreadable_messages_are_told_and_hurt_no_neighbour(writer: Any, message: bytes) -> None:
    good = writer.proto(f1=1, f2="foo", f4="bar", f5=9)
    view, starts, ends = laid([good, message, good])
    _, readable = decode_fields(view, starts, ends, WIRE_TYPES, KEPT)
    assert readable.tolist() == [True, False, True]
    assert decoded([good, message, good])[::2] == [expected(good)] * 2


def test_endless_fields_are_given_up_on() -> None:
    assert decoded([b"\x08\x01" * 1000]) == [None]


def test_random_damage_reads_as_byte_by_byte(writer: Any) -> None:
    seeded = random.Random("protobuf")
    base = writer.proto(f1=300, f2="foo", f4="hello", f5=1_795_225_426_594_126_338)
    messages = []
    for _ in range(4_000):
        message = bytearray(base)
        for _ in range(seeded.randrange(3)):
            message[seeded.randrange(len(message))] = seeded.randrange(256)
        messages.append(bytes(message[: seeded.randrange(1, len(message) + 20)]))
    found = decoded(messages)
    for message, row in zip(messages, found, strict=True):
        assert row is None or (decode_one(message)[1] and row == expected(message))
    assert sum(row is not None for row in found) > 500
