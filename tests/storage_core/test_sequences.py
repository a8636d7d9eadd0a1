"""Sequence sets against Python's own sets, and their encoding (docs/formats/sequence-set.md)."""

import random
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from harness.sequences import expand
from hypothesis import given
from hypothesis import strategies as st

from storage_core.deflated import ROW_COUNT_MAX
from storage_core.errors import CorruptionError
from storage_core.sequences import SEQUENCE_MAX, SequenceSet

DOCUMENT = Path(__file__).parents[2] / "docs" / "formats" / "sequence-set.md"

numbers = st.sets(st.integers(0, 40), max_size=30)
ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 45)), max_size=8)


def make(members: set[int]) -> SequenceSet:
    return SequenceSet.from_sequences(members)


def members_of(found: SequenceSet) -> set[int]:
    """Return the members, having checked that the runs are in their normal form."""
    assert (found.starts < found.ends).all()
    assert (found.starts[1:] > found.ends[:-1]).all(), "runs are sorted and do not touch"
    listed = expand(found)
    assert len(listed) == len(found) == len(set(listed))
    return set(listed)


@given(ranges)
def test_union_of_ranges_in_any_order(given_ranges: list[tuple[int, int]]) -> None:
    expected = {one for first, end in given_ranges for one in range(first, end)}
    assert members_of(SequenceSet.from_ranges(given_ranges)) == expected


@given(st.lists(st.integers(0, 40), max_size=30))
def test_sequences_in_any_order_and_repeated(listed: list[int]) -> None:
    found = SequenceSet.from_sequences(listed)
    assert members_of(found) == set(listed)
    assert SequenceSet.from_sequences(np.array(listed, np.int64)) == found
    assert SequenceSet.from_ranges((one, one + 1) for one in listed) == found
    assert bool(found) == bool(listed)


@pytest.mark.parametrize("beyond", [SEQUENCE_MAX + 1, SEQUENCE_MAX + 2, 2**64])
def test_sequence_whose_run_could_not_end_is_refused(beyond: int) -> None:
    assert SEQUENCE_MAX in SequenceSet.from_sequences([1, SEQUENCE_MAX])
    with pytest.raises(ValueError, match=f"{SEQUENCE_MAX}"):
        SequenceSet.from_sequences([1, beyond])


@given(numbers, numbers)
def test_operations_are_those_of_sets(one: set[int], other: set[int]) -> None:
    left, right = make(one), make(other)
    assert members_of(left.union(right)) == one | other
    assert members_of(left.intersection(right)) == one & other
    assert members_of(left.difference(right)) == one - other
    assert (left == right) == (one == other)


def test_operations_on_every_pair_of_small_sets() -> None:
    subsets = [{member for member in range(7) if bits >> member & 1} for bits in range(1 << 7)]
    sets = [make(one) for one in subsets]
    for one, left in zip(subsets, sets, strict=True):
        for other, right in zip(subsets, sets, strict=True):
            for found, wanted in (
                (left.union(right), one | other),
                (left.intersection(right), one & other),
                (left.difference(right), one - other),
            ):
                assert found == sets[sum(1 << member for member in wanted)], (one, other)


@given(numbers, st.integers(-3, 45), st.integers(-3, 45))
def test_questions_about_members_and_ranges(one: set[int], first: int, end: int) -> None:
    found = make(one)
    inside = {member for member in one if first <= member < end}
    assert members_of(found.clip(first, end)) == inside
    assert found.count_in(first, end) == len(inside)
    assert first >= end or found.touches(np.array([first]), np.array([end])).tolist() == [bool(inside)]
    assert (first in found) == (first in one)
    asked = np.arange(-2, 44)
    assert found.mask(asked).tolist() == [member in one for member in asked.tolist()]
    assert [member for start, stop in found.ranges() for member in range(start, stop)] == sorted(one)
    assert found.ranges_head(2) == list(found.ranges())[:2]
    assert found.run_count == len(list(found.ranges()))


@given(numbers)
def test_complement_has_everything_else(one: set[int]) -> None:
    rest = make(one).complement()
    assert all((member in rest) != (member in one) for member in range(-2, 44))
    assert members_of(rest.complement().clip(0, 45)) == one


@given(numbers, st.sampled_from([0, 1, 10**12, 2**62]))
def test_encoding_round_trips(one: set[int], base: int) -> None:
    found = make({base + member for member in one})
    assert SequenceSet.decode(found.encode()) == found
    assert SequenceSet.decode(memoryview(found.encode())) == found


def test_largest_sequences_round_trip() -> None:
    high = 2**63 - 1
    found = SequenceSet.from_ranges([(0, 1), (5, high)])
    assert SequenceSet.decode(found.encode()) == found
    assert len(found) == high - 4


def test_million_scattered_sequences_are_about_a_bitmap() -> None:
    dice = np.random.default_rng(1)
    scattered = SequenceSet.from_sequences(np.flatnonzero(dice.random(2_000_000) < 0.5))
    assert len(scattered.encode()) < 4 * 2_000_000 / 8
    assert len(SequenceSet.from_ranges([(1, 10**15)]).encode()) < 40


def test_example_of_the_document_decodes() -> None:
    (line,) = re.findall(r"^((?:[0-9a-f]{2} +)+[0-9a-f]{2})$", DOCUMENT.read_text(), re.MULTILINE)
    assert members_of(SequenceSet.decode(bytes.fromhex(line))) == {3, 4, 5, 10}


def encoded(count: int, *pairs: int, level: int = 1) -> bytes:
    return count.to_bytes(4, "little") + zlib.compress(np.array(pairs, "<i8").tobytes(), level)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "0 bytes is too short"),
        (b"\1\0\0", "3 bytes is too short"),
        ((ROW_COUNT_MAX + 1).to_bytes(4, "little"), "at most"),
        (encoded(1), "inflates to 0 bytes"),
        (encoded(2, 1, 1), "inflates to 16 bytes"),
        (encoded(1, 1, 1, 1, 1), "inflates to 17 bytes"),
        (encoded(1, 1, 1)[:-1], "inflates to"),
        (encoded(1, 1, 1)[:4] + b"no zlib stream", "does not inflate"),
        (encoded(1, 1, 0), "empty, overlap or touch"),
        (encoded(1, 1, -1), "empty, overlap or touch"),
        (encoded(2, 1, 1, 0, 1), "empty, overlap or touch"),
        (encoded(2, 1, 5, -2, 1), "empty, overlap or touch"),
        (encoded(1, -1, 5), "overflows"),
        (encoded(1, 2**63 - 1, 2**63 - 1), "overflows"),
        (encoded(2, 1, 2**63 - 2, 1, 1), "overflows"),
    ],
)
def test_impossible_encoding_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(CorruptionError, match=text):
        SequenceSet.decode(data)


def test_bomb_inflates_no_further_than_declared() -> None:
    bomb = (1).to_bytes(4, "little") + zlib.compress(bytes(100_000_000), 9)
    with pytest.raises(CorruptionError, match="inflates to 17 bytes"):
        SequenceSet.decode(bomb)


def test_every_cut_and_every_flipped_bit_gives_the_set_or_an_error() -> None:
    expected = SequenceSet.from_sequences(range(0, 400, 3))
    whole, same = expected.encode(), 0
    for size in range(len(whole)):
        with pytest.raises(CorruptionError):
            SequenceSet.decode(whole[:size])
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        try:
            assert SequenceSet.decode(bytes(flipped)) == expected, bit
        except CorruptionError:
            continue
        same += 1
    print(f"{len(whole)} cuts, {len(whole) * 8} flipped bits, {same} of them change nothing")
    assert same < len(whole) * 8 // 4


def test_random_bytes_give_a_set_or_an_error() -> None:
    dice = random.Random(1)
    for _ in range(500):
        pairs = [dice.choice((0, 1, -1, dice.randrange(-(2**63), 2**63))) for _ in range(2 * dice.randrange(4))]
        try:
            members = SequenceSet.decode(encoded(len(pairs) // 2, *pairs))
        except CorruptionError:
            continue
        assert (members.starts >= 0).all()
        assert (members.starts < members.ends).all()
        assert (members.starts[1:] > members.ends[:-1]).all()


def test_sets_are_not_hashable_and_show_themselves_briefly() -> None:
    found = SequenceSet.from_sequences(range(0, 40, 2))
    with pytest.raises(TypeError):
        hash(found)
    assert repr(found) == "SequenceSet(20 in 20 runs: [0, 1), [2, 3), [4, 5), [6, 7), [8, 9), ...)"
    assert found != {0, 2}


@given(st.sets(st.integers(1, 60)), st.integers(-1, 70))
def test_the_head_is_the_lowest_sequences_and_the_tail_the_highest(sequences: set[int], count: int) -> None:
    head = SequenceSet.from_sequences(sequences).head(count)
    assert head == SequenceSet.from_sequences(sorted(sequences)[: max(0, count)])
    tail = SequenceSet.from_sequences(sequences).tail(count)
    assert tail == SequenceSet.from_sequences(sorted(sequences)[-count:] if count > 0 else ())


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), max_size=8))
def test_columns_of_ranges_may_overlap_and_touch(ranges: list[tuple[int, int]]) -> None:
    starts, ends = np.array([at for at, _ in ranges], np.int64), np.array([at + size for at, size in ranges], np.int64)
    expected = {one for at, size in ranges for one in range(at, at + size)}
    assert SequenceSet.from_columns(starts, ends) == SequenceSet.from_sequences(expected)
