"""A chunked set is a SequenceSet in chunks, and which chunks follows from the set alone."""

import numpy as np
import pytest
from harness.sequences import expand
from hypothesis import given
from hypothesis import strategies as st

from storage_core.chunked_set import CHUNK_SPAN, ChunkedSet
from storage_core.errors import CorruptionError
from storage_core.sequences import SequenceSet

PLACES = st.one_of(
    st.integers(0, 6 * CHUNK_SPAN),
    st.builds(lambda at, off: at * CHUNK_SPAN + off, st.integers(1, 6), st.integers(-2, 2)),
)
LENGTHS = st.sampled_from([1, 1, 2, CHUNK_SPAN - 1, CHUNK_SPAN, CHUNK_SPAN + 1, 3 * CHUNK_SPAN])
SETS = st.lists(st.tuples(PLACES, LENGTHS), max_size=8).map(
    lambda runs: SequenceSet.from_ranges((first, first + length) for first, length in runs)
)


@given(st.lists(st.tuples(SETS, st.one_of(st.none(), PLACES)), max_size=8), SETS, st.tuples(PLACES, PLACES))
def test_a_chunked_set_says_what_the_set_says(
    steps: list[tuple[SequenceSet, int | None]], asked: SequenceSet, bounds: tuple[int, int]
) -> None:
    chunked, plain = ChunkedSet.empty(), SequenceSet.empty()
    for added, since in steps:
        chunked, plain = chunked.union(added), plain.union(added)
        if since is not None:
            chunked, plain = chunked.since(since), plain.clip(since, 1 << 40)
        assert chunked.whole() == plain and chunked == ChunkedSet.of(plain)
    first, end = sorted(bounds)
    assert (len(chunked), bool(chunked)) == (len(plain), bool(plain))
    assert chunked.clip(first, end) == plain.clip(first, end)
    assert chunked.count_in(first, end) == plain.count_in(first, end)
    assert chunked.within(asked) == plain.intersection(asked)
    assert chunked.absent_among(asked) == asked.difference(plain)
    ends = chunked.run_ends(asked.starts)
    for sequence, run_end in zip(asked.starts.tolist(), ends.tolist(), strict=True):
        assert (sequence in chunked) == (sequence in plain) == (run_end > sequence)
        assert run_end == next((b for a, b in plain.ranges() if a <= sequence < b), sequence)
    if plain:
        assert chunked.first_run == next(plain.ranges()) and chunked.last_run == list(plain.ranges())[-1]
    assert ChunkedSet.decode(chunked.encode()) == chunked


def test_one_more_among_a_million_copies_one_chunk_and_encodes_one() -> None:
    many = ChunkedSet.of(SequenceSet.from_sequences(np.arange(0, 2_000_000, 2)))
    encoded = many.encode()
    more = many.union(SequenceSet.from_ranges([(1_000_001, 1_000_002)]))
    kept = {id(one) for one in many._chunks}
    assert [id(one) in kept for one in more._chunks].count(False) == 1
    assert sum(one is not two for one, two in zip(more.encode(), encoded, strict=True)) == 1


def chunks(*parts: SequenceSet) -> list[bytes]:
    return [one.encode() for one in parts]


def some(*ranges: tuple[int, int]) -> SequenceSet:
    return SequenceSet.from_ranges(ranges)


@pytest.mark.parametrize(
    "encoded",
    [
        chunks(SequenceSet.empty()),
        chunks(some((1, 2), (CHUNK_SPAN, CHUNK_SPAN + 1))),  # runs of two windows in one chunk
        chunks(some((1, 2)), some((3, 4))),  # two chunks of one window
        chunks(some((CHUNK_SPAN, CHUNK_SPAN + 1)), some((1, 2))),
        chunks(some((1, CHUNK_SPAN + 5)), some((CHUNK_SPAN + 5, CHUNK_SPAN + 6))),  # they touch
        chunks(some((1, CHUNK_SPAN + 5)), some((CHUNK_SPAN + 4, CHUNK_SPAN + 6))),
        [b"", *chunks(some((1, 2)))],
    ],
)
def test_what_are_not_the_chunks_of_a_set_is_refused(encoded: list[bytes]) -> None:
    with pytest.raises(CorruptionError):
        ChunkedSet.decode(encoded)


def test_members_of_a_run_that_reaches_over_windows() -> None:
    one = ChunkedSet.of(some((CHUNK_SPAN - 2, 2 * CHUNK_SPAN + 2)))
    assert expand(one.clip(2 * CHUNK_SPAN, 3 * CHUNK_SPAN)) == [2 * CHUNK_SPAN, 2 * CHUNK_SPAN + 1]
