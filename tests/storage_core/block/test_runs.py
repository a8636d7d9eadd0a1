"""Sequence runs against a plain list of sequences."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.block.runs import RunBuilder, decode_runs

ascending = st.lists(st.integers(0, 60), min_size=1, max_size=30, unique=True).map(sorted)


def build(sequences: list[int], cuts: list[int]) -> RunBuilder:
    """Feed the sequences in parts; a part that follows on without holes is given as a count."""
    builder = RunBuilder()
    edges = sorted({0, len(sequences), *(cut % (len(sequences) + 1) for cut in cuts)})
    for first, end in zip(edges, edges[1:], strict=False):
        part = sequences[first:end]
        if part == list(range(builder.span, builder.span + len(part))):
            builder.add_contiguous(len(part))
        else:
            builder.add(np.array(part))
    return builder


@given(ascending, st.lists(st.integers(0, 30), max_size=4), st.integers(0, 5))
def test_both_ways_equal_a_plain_list(sequences: list[int], cuts: list[int], base: int) -> None:
    runs = build(sequences, cuts).finish()
    assert runs.row_count == len(sequences)
    assert runs.span == sequences[-1] + 1
    for sequence in range(sequences[-1] + 3):
        assert runs.row_at(sequence) == sum(one < sequence for one in sequences)
    for first in range(len(sequences)):
        assert runs.sequence_at(first) == sequences[first]
        for end in range(first + 1, len(sequences) + 1):
            expected = [base + one for one in sequences[first:end]]
            assert runs.sequences(first, end, base).tolist() == expected


@given(ascending, st.lists(st.integers(0, 30), max_size=4))
def test_encoding_round_trips_and_runs_never_touch(sequences: list[int], cuts: list[int]) -> None:
    runs = build(sequences, cuts).finish()
    assert (runs.starts[1:] > runs.ends[:-1]).all()
    again = decode_runs(runs.encode())
    assert again.sequences(0, again.row_count).tolist() == sequences


def test_sequences_that_do_not_ascend_are_refused_and_change_nothing() -> None:
    builder = RunBuilder()
    builder.add(np.array([3, 4]))
    for wrong in ([4, 5], [0], [7, 7], [9, 8], [6, 8, 7]):
        with pytest.raises(ValueError, match="sequences: "):
            builder.add(np.array(wrong))
    builder.add_contiguous(1)
    assert list(builder.finish().sequences(0, 3)) == [3, 4, 5]


@pytest.mark.parametrize(
    "pairs",
    [[], [(0, 0)], [(2, 1)], [(-1, 2)], [(0, 2), (2, 3)], [(0, 3), (2, 4)], [(4, 5), (0, 1)]],
    ids=["none", "empty", "backwards", "below 0", "touching", "overlapping", "unsorted"],
)
def test_impossible_runs_are_refused(pairs: list[tuple[int, int]]) -> None:
    data = np.array([first for first, _ in pairs] + [end for _, end in pairs], "<i8").tobytes()
    with pytest.raises(ValueError, match="runs|pairs"):
        decode_runs(data)


def test_half_a_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="pairs"):
        decode_runs(bytes(24))
