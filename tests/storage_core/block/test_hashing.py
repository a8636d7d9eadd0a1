"""The vectorised hash against published vectors and against the algorithm written out for one string."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.block.hashing import HASHED_SIZE_MAX, msg_id_hashes
from storage_core.errors import InvalidMessageError

MASK = (1 << 64) - 1


def rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & MASK


def finish(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ value >> 33


def slow_hash(text: str) -> tuple[int, int]:
    """MurmurHash3 x64 128 of one string, as the reference has it: blocks, then a tail."""
    c1, c2, data, h1, h2 = 0x87C37B91114253D5, 0x4CF5AD432745937F, text.encode(), 0, 0
    whole = len(data) // 16 * 16
    for start in range(0, whole, 16):
        k1, k2 = (int.from_bytes(data[start + at : start + at + 8], "little") for at in (0, 8))
        h1 ^= rotate(k1 * c1 & MASK, 31) * c2 & MASK
        h1 = ((rotate(h1, 27) + h2) * 5 + 0x52DCE729) & MASK
        h2 ^= rotate(k2 * c2 & MASK, 33) * c1 & MASK
        h2 = ((rotate(h2, 31) + h1) * 5 + 0x38495AB5) & MASK
    tail = data[whole:]
    if len(tail) > 8:
        h2 ^= rotate(int.from_bytes(tail[8:], "little") * c2 & MASK, 33) * c1 & MASK
    if tail:
        h1 ^= rotate(int.from_bytes(tail[:8], "little") * c1 & MASK, 31) * c2 & MASK
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) & MASK
    h2 = (h2 + h1) & MASK
    h1, h2 = finish(h1), finish(h2)
    h1 = (h1 + h2) & MASK
    return h1, (h2 + h1) & MASK


def hash_all(texts: list[str | None]) -> list[tuple[int, int]]:
    return [(int(h1), int(h2)) for h1, h2 in msg_id_hashes(pa.array(texts, pa.string()))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello", "cbd8a7b341bd9b025b1e906a48ae1d19"),
        ("hello, world", "342fac623a5ebc8e4cdcbc079642414d"),
        ("The quick brown fox jumps over the lazy dog", "e34bbc7bbc071b6c7a433ca9c49a9347"),
    ],
)
def test_published_vectors(text: str, expected: str) -> None:
    ((h1, h2),) = hash_all([text])
    assert f"{h1:016x}{h2:016x}" == expected


@given(st.lists(st.none() | st.text(max_size=70), max_size=40))
def test_equals_the_algorithm_written_out_for_one_string(texts: list[str | None]) -> None:
    assert hash_all(texts) == [slow_hash(text) if text else (0, 0) for text in texts]


def test_null_and_empty_are_no_id() -> None:
    assert hash_all([None, "", "a"]) == [(0, 0), (0, 0), slow_hash("a")]
    assert hash_all([]) == []
    assert hash_all([None, None]) == [(0, 0), (0, 0)]


def test_slice_and_text_under_a_null_do_not_matter() -> None:
    texts = ["front", "hidden", "x" * 33, "back"]
    validity, offsets, data = pa.array(texts).buffers()
    hidden = pa.StringArray.from_buffers(4, offsets, data, pa.py_buffer(b"\x0d"))
    assert hidden.to_pylist() == ["front", None, "x" * 33, "back"]
    found = [tuple(map(int, pair)) for pair in msg_id_hashes(hidden.slice(1, 2))]
    assert found == [(0, 0), slow_hash("x" * 33)]
    assert validity is None


def test_more_rows_than_one_chunk() -> None:
    texts = [f"id-{number}" * (number % 4) for number in range(20_000)]
    hashes = hash_all(list(texts))
    for number in (0, 1, 8190, 8191, 8192, 8193, 16_384, 19_999):
        assert hashes[number] == (slow_hash(texts[number]) if texts[number] else (0, 0))


def test_id_beyond_the_bound_is_refused_by_row() -> None:
    assert hash_all(["x" * HASHED_SIZE_MAX]) == [slow_hash("x" * HASHED_SIZE_MAX)]
    with pytest.raises(InvalidMessageError, match="row 1: 4097 bytes"):
        hash_all(["a", "x" * (HASHED_SIZE_MAX + 1)])
