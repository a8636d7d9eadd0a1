"""S2: streams made tag by tag beside a model of what they mean, real ones, and damaged ones."""

import random
from struct import pack
from typing import Any

import crc32c
import pyarrow as pa
import pytest

from storage_core.errors import CorruptionError, UnsupportedVersionError
from storage_core.foreign.nats.block import read_block
from storage_core.foreign.nats.record import block_key
from storage_core.foreign.nats.s2 import IDENTIFIER, decompress_stream
from storage_core.foreign.nats.scan import scan_block


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def masked(data: bytes) -> bytes:
    crc = crc32c.crc32c(data)
    return pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def chunk(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + len(body).to_bytes(3, "little") + body


def compressed(tags: bytes, data: bytes) -> bytes:
    return chunk(0xFF, IDENTIFIER) + chunk(0, masked(data) + uvarint(len(data)) + tags)


class Maker:
    """Writes tags and, beside them, the data that they stand for."""

    def __init__(self, seed: int) -> None:
        self.random, self.tags, self.data, self.offset = random.Random(seed), bytearray(), bytearray(), 0

    def literal(self, size: int) -> None:
        piece = self.random.randbytes(size)
        if size <= 60:
            self.tags.append((size - 1) << 2)
        else:
            extra = ((size - 1).bit_length() + 7) // 8
            self.tags += bytes([(59 + extra) << 2]) + (size - 1).to_bytes(extra, "little")
        self.tags += piece
        self.data += piece

    def copy(self, offset: int, length: int, width: int) -> None:
        if width == 1:
            self.tags += bytes([1 | (length - 4) << 2 | offset >> 8 << 5, offset & 0xFF])
        else:
            self.tags += bytes([(2 if width == 2 else 3) | (length - 1) << 2]) + offset.to_bytes(width, "little")
        self.offset = offset
        self._repeat(length)

    def repeat(self, length: int) -> None:
        if length <= 8:
            self.tags += bytes([1 | (length - 4) << 2, 0])
        elif length < 260:
            self.tags += bytes([1 | 5 << 2, 0, length - 8])
        elif length < 65540:
            self.tags += bytes([1 | 6 << 2, 0]) + (length - 260).to_bytes(2, "little")
        else:
            self.tags += bytes([1 | 7 << 2, 0]) + (length - 65540).to_bytes(3, "little")
        self._repeat(length)

    def _repeat(self, length: int) -> None:
        for _ in range(length):
            self.data.append(self.data[-self.offset])


def made(seed: int, repeats: bool) -> tuple[bytes, bytes]:
    maker = Maker(seed)
    maker.literal(maker.random.randrange(1, 90))
    for _ in range(40):
        kind = maker.random.randrange(5)
        have = len(maker.data)
        if kind == 0:
            maker.literal(maker.random.choice([1, 60, 61, 300, 70_000]))
        elif kind == 1:
            maker.copy(maker.random.randrange(1, min(have, 2047) + 1), maker.random.randrange(4, 12), 1)
        elif kind in (2, 3):
            width = maker.random.choice([2, 4])
            limit = min(have, (1 << 16) - 1 if width == 2 else have)
            maker.copy(maker.random.randrange(1, limit + 1), maker.random.randrange(1, 65), width)
        elif repeats and maker.offset:
            maker.repeat(maker.random.choice([4, 8, 9, 259, 260, 3000, 65_539, 65_540, 66_000]))
    return bytes(maker.tags), bytes(maker.data)


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_tags_mean_what_the_model_says(seed: int, repeats: bool) -> None:
    tags, data = made(seed, repeats)
    out = decompress_stream(memoryview(compressed(tags, data)), len(data))
    assert not out.damage
    assert out.data == data


def test_stored_and_skippable_chunks_are_taken_and_passed_over() -> None:
    stream = chunk(0xFF, IDENTIFIER) + chunk(0xFE, b"padding") + chunk(1, masked(b"hello") + b"hello")
    out = decompress_stream(memoryview(stream + chunk(1, masked(b"!") + b"!")), 6)
    assert (bytes(out.data), out.damage) == (b"hello!", [])


def test_every_flipped_bit_and_truncation_ends_with_the_declared_size() -> None:
    maker = Maker(1)
    maker.literal(20)
    maker.copy(7, 9, 1)
    maker.repeat(30)
    stream, data = compressed(bytes(maker.tags), bytes(maker.data)), bytes(maker.data)
    for bit in range(len(stream) * 8):
        damaged = bytearray(stream)
        damaged[bit // 8] ^= 1 << bit % 8
        out = decompress_stream(memoryview(bytes(damaged)), len(data))
        assert len(out.data) == len(data)
        assert bytes(out.data) == data or out.damage, bit
    for size in range(len(stream)):
        out = decompress_stream(memoryview(stream[:size]), len(data))
        assert len(out.data) == len(data)
        assert out.damage


def test_a_bomb_is_stopped_by_the_declared_size() -> None:
    maker = Maker(1)
    maker.literal(1)
    maker.copy(1, 4, 1)
    for _ in range(200):
        maker.tags += bytes([1 | 7 << 2, 0]) + (0xFFFFFF).to_bytes(3, "little")
    body = uvarint(4 << 20) + bytes(maker.tags)
    out = decompress_stream(memoryview(chunk(0xFF, IDENTIFIER) + chunk(0, bytes(4) + body)), 1000)
    assert len(out.data) == 1000
    assert "at most 1000 can follow" in out.damage[0][1]


def test_real_compressed_block_has_only_true_records(case: Any) -> None:
    (path,) = case("s2-compressed").store.rglob("1.blk")
    content = read_block(path)
    assert content.compressed
    assert not content.damage
    scan = scan_block(content.data, block_key("COMP", 1))
    assert len(scan.records) > 80
    assert not scan.damage


def test_a_flipped_bit_in_a_compressed_block_costs_only_the_messages_that_it_reaches(case: Any) -> None:
    (path,) = case("damaged-s2-bitflip-index-kept").store.rglob("1.blk")
    content = read_block(path)
    assert "CRC-32C" in content.damage[0][1]
    assert len(scan_block(content.data, block_key("COMP", 1)).records) == 91  # of 96; the server gives none


@pytest.mark.parametrize(
    ("head", "error", "text"),
    [
        (b"cmp\x02" + uvarint(100), UnsupportedVersionError, "algorithm 2"),
        (b"cmp\x01" + uvarint(1 << 40), CorruptionError, "declares 1099511627776"),
        (b"cmp\x01" + uvarint(3), CorruptionError, "declares 3"),
        (b"cmp\x01" + b"\xff" * 20, CorruptionError, "64 bits"),
    ],
)
def test_impossible_compression_heads_are_refused(tmp_path: Any, head: bytes, error: type, text: str) -> None:
    path = tmp_path / "1.blk"
    path.write_bytes(head + bytes(20))
    with pytest.raises(error, match=text):
        read_block(path)


def test_snappy_of_another_hand_is_read() -> None:
    data = b"orders.created " * 500
    packed = pa.Codec("snappy").compress(data, asbytes=True)
    stream = chunk(0xFF, IDENTIFIER) + chunk(0, masked(data) + packed)
    assert decompress_stream(memoryview(stream), len(data)).data == data
