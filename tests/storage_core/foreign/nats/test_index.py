"""index.db, N.idx and the sets inside: real files, each byte damaged, counts that lie."""

from collections.abc import Callable
from struct import pack
from typing import Any

import pytest
from harness.sequences import expand
from hypothesis import example, given
from hypothesis import strategies as st

from storage_core.errors import CorruptionError, UnsupportedVersionError
from storage_core.foreign.nats.cursor import Cursor
from storage_core.foreign.nats.index import (
    BLOCK_IDX_MAGIC,
    INDEX_MAGIC,
    SEQUENCE_END,
    decode_index,
    decode_old_block_index,
    decode_set,
    highwayhash_of,
)

VERSIONS = {"old-2-10-25": 1, "old-2-11-11": 2, "old-2-12-8": 3, "old-2-14-6": 4, "plain-multiblock": 4}


def index_bytes(case: Any) -> bytes:
    (path,) = case.store.rglob("index.db")
    return bytes(path.read_bytes())


def signed(body: bytes, stream: str) -> bytes:
    return body + pack("<Q", highwayhash_of(body, stream))


@pytest.mark.parametrize(("name", "version"), VERSIONS.items())
def test_index_of_every_version_agrees_with_the_server(case: Callable[[str], Any], name: str, version: int) -> None:
    one = case(name)
    index = decode_index(index_bytes(one), one.stream, "index.db")
    assert index.version == version
    shown = {"messages": index.message_count, "first_seq": index.first, "last_seq": index.last}
    assert shown == one.state
    assert sum(block.message_count for block in index.blocks) == index.message_count
    expected = one.expected()
    assert set(index.subjects) == {row["subject"] for row in expected}
    visible = [
        sequence
        for block in index.blocks
        for sequence in range(block.first, block.end)
        if sequence not in block.removed
    ]
    assert visible == [row["sequence"] for row in expected]


def test_every_flipped_bit_and_every_truncation_of_an_index_is_found(case: Callable[[str], Any]) -> None:
    one = case("consumers")
    good = index_bytes(one)
    for bit in range(len(good) * 8):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode_index(bytes(damaged), one.stream, "index.db")
    for size in range(len(good)):
        with pytest.raises(CorruptionError):
            decode_index(good[:size], one.stream, "index.db")


def test_signed_nonsense_is_corrupt_and_bounded(case: Callable[[str], Any]) -> None:
    one = case("deletes-erase")
    body = index_bytes(one)[:-8]
    outcomes = set()
    for place in range(2, len(body)):
        for value in (0, 0x7F, 0xFF):
            forged = signed(body[:place] + bytes([value]) + body[place + 1 :], one.stream)
            try:
                decode_index(forged, one.stream, "index.db")
                outcomes.add("read")
            except CorruptionError:
                outcomes.add("corrupt")
    assert outcomes == {"read", "corrupt"}  # counts and times can change unseen; sizes and sets cannot


def test_an_index_that_reaches_beyond_all_sequences_is_corrupt() -> None:
    def forged(first: int, last: int) -> bytes:
        counts = b"".join(map(uvarint, [0, 0, first, 0, last, 0, 0, 0, 0]))
        return signed(bytes([INDEX_MAGIC, 4]) + counts + bytes(8), "S")

    assert decode_index(forged(5, SEQUENCE_END - 1), "S", "index.db").last == SEQUENCE_END - 1
    for first, last in ((0, SEQUENCE_END), ((1 << 64) - 1, 0)):
        with pytest.raises(CorruptionError, match="the stream reaches from"):
            decode_index(forged(first, last), "S", "index.db")


def test_a_newer_version_is_left_alone(case: Callable[[str], Any]) -> None:
    body = bytearray(index_bytes(case("consumers"))[:-8])
    body[1] = 5
    with pytest.raises(UnsupportedVersionError, match="version 5, known are 1 to 4"):
        decode_index(signed(bytes(body), "CONS"), "CONS", "index.db")


def test_an_index_of_another_stream_is_not_taken(case: Callable[[str], Any]) -> None:
    with pytest.raises(CorruptionError, match="checksum"):
        decode_index(index_bytes(case("consumers")), "OTHER", "index.db")


def test_old_block_indexes_list_what_was_removed(case: Callable[[str], Any]) -> None:
    one = case("old-2-9-10")
    paths = sorted(one.store.rglob("*.idx"))
    indexes = [decode_old_block_index(path.read_bytes(), path.name) for path in paths]
    visible = [n for index in indexes for n in range(index.first, index.end) if n not in index.removed]
    assert visible == [row["sequence"] for row in one.expected()]


def test_an_old_block_index_that_contradicts_itself_is_corrupt(case: Callable[[str], Any]) -> None:
    (path, *_) = sorted(case("old-2-9-10").store.rglob("*.idx"))
    good = path.read_bytes()
    with pytest.raises(CorruptionError, match="do not add up"):
        decode_old_block_index(good[:2] + bytes([good[2] ^ 1]) + good[3:], "1.idx")
    for size in range(len(good)):
        with pytest.raises(CorruptionError):
            decode_old_block_index(good[:size], "1.idx")


def uvarint(value: int) -> bytes:
    digits = [value >> shift & 0x7F for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes([*(digit | 0x80 for digit in digits[:-1]), digits[-1]])


edges = st.sampled_from([1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
numbers = st.one_of(st.integers(0, 5), edges, edges.map(lambda value: value - 1))


@given(
    version=st.sampled_from([1, 2]),
    fields=st.lists(numbers, min_size=6, max_size=6),
    removed=st.lists(numbers, max_size=4),
    declared=st.integers(0, 4),
    rest=st.binary(max_size=20),
)
@example(version=1, fields=[0] * 6, removed=[0, 1 << 63], declared=2, rest=b"")
def test_an_old_block_index_of_any_numbers_is_read_or_corrupt(
    version: int, fields: list[int], removed: list[int], declared: int, rest: bytes
) -> None:
    forged = bytes([BLOCK_IDX_MAGIC, version]) + b"".join(map(uvarint, [*fields, declared])) + bytes(8)
    try:
        one = decode_old_block_index(forged + b"".join(map(uvarint, removed)) + rest, "1.idx")
    except CorruptionError:
        return
    assert one.end - one.first - len(one.removed) == fields[0]
    assert max(one.first, one.end) <= SEQUENCE_END


def node(base: int, *bits: int, words: int = 32) -> bytes:
    bitmap = bytearray(words * 8)
    for bit in bits:
        bitmap[bit // 8] |= 1 << bit % 8
    return pack("<Q", base) + bytes(bitmap) + pack("<H", 1)


@pytest.mark.parametrize(("version", "words"), [(1, 64), (2, 32)])
def test_sets_are_unions_of_bitmaps_in_any_order(version: int, words: int) -> None:
    encoded = bytes([22, version]) + pack("<II", 2, 4)
    encoded += node(4096, 0, 1, 2047, words=words) + node(0, 5, words=words)
    assert expand(decode_set(Cursor(encoded, "set"))) == [5, 4096, 4097, 6143]


def test_a_set_that_declares_more_than_there_is_allocates_nothing() -> None:
    with pytest.raises(CorruptionError, match="bytes wanted"):
        decode_set(Cursor(bytes([22, 2]) + pack("<II", 0xFFFFFFFF, 1), "set"))
    with pytest.raises(CorruptionError, match="holds 1"):
        decode_set(Cursor(bytes([22, 2]) + pack("<II", 1, 2) + node(0, 5), "set"))


def test_integers_longer_than_64_bits_are_corrupt() -> None:
    assert Cursor(b"\xff" * 9 + b"\x01", "n").uvarint() == (1 << 64) - 1
    assert Cursor(b"\x01", "n").varint() == -1
    for raw in (b"\xff" * 9 + b"\x02", b"\xff" * 12, b"\x80"):
        with pytest.raises(CorruptionError):
            Cursor(raw, "n").uvarint()
