"""Slices in columns: the same as slices one by one, whatever is asked of them, and small when they travel."""

import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from harness.copies import Scattered
from hypothesis import given
from hypothesis import strategies as st

from storage_core.chunked_set import ChunkedSet
from storage_core.metadata.config import StreamConfig
from storage_core.metadata.manifest import BLOCK_DTYPE, Table
from storage_core.sequences import SequenceSet
from storage_core.store.reading.plan import ReadRequest, plan_stream
from storage_core.store.reading.slices import BlockSlices, shown_counts

ROWS_PER_BLOCK = 10


def planned(scattered: Scattered, block_count: int, removed: SequenceSet, name: str = "S") -> BlockSlices:
    """Return the plan of a stream of so many blocks; they have no files."""
    made = np.zeros(block_count, BLOCK_DTYPE)
    dice = np.random.default_rng(1)
    for column in ("block_id", "digest"):
        made[column] = np.frombuffer(dice.bytes(16 * block_count), "V16")
    made["first"] = np.arange(block_count) * ROWS_PER_BLOCK + 1
    made["span"] = made["row_count"] = ROWS_PER_BLOCK
    made["file_size"], made["holders"] = 1000, 0b111
    gone = ChunkedSet.of(removed)
    scattered.change(blocks=Table.of(made), next_sequence=block_count * ROWS_PER_BLOCK + 1, removed=gone)
    config = StreamConfig.from_mapping({**scattered.stream.config.to_json(), "name": name})
    stream = replace(scattered.stream, config=config)
    return plan_stream(scattered.state, stream, scattered.volumes, ReadRequest((name,)))[0]


@pytest.fixture(scope="module")
def scattered(tmp_path_factory: pytest.TempPathFactory) -> Scattered:
    return Scattered.make(tmp_path_factory.mktemp("volumes"), 3)


ranges = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 25)), max_size=6)


@given(ranges, st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=8))
def test_shown_counts_are_those_of_a_slow_count(removals: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    removed = SequenceSet.from_ranges((first, first + count) for first, count in removals)
    bounds = [(min(one), max(one)) for one in asked]
    expected = [sum(sequence not in removed for sequence in range(first, end)) for first, end in bounds]
    firsts, ends = np.array(bounds, np.int64).T
    assert shown_counts(firsts, ends, removed).tolist() == expected


@given(ranges, st.integers(1, 12))
def test_split_in_columns_is_that_of_each_slice(
    scattered: Scattered, removals: list[tuple[int, int]], rows_max: int
) -> None:
    removed = SequenceSet.from_ranges((first, first + count) for first, count in removals)
    slices = planned(scattered, 10, removed)
    expected = [
        part for one in slices for part in (one.split(rows_max) if one.row_count > rows_max else [one])
    ]  # fmt: skip
    assert list(slices.split(rows_max)) == expected
    assert slices.split(rows_max).row_counts.tolist() == [one.row_count for one in expected]
    assert list(slices.split(rows_max).with_rows()) == [one for one in expected if one.row_count]


@given(ranges, st.integers(0, 20), st.integers(0, 20))
def test_part_of_a_plan_travels_by_pickle(
    scattered: Scattered, removals: list[tuple[int, int]], start: int, count: int
) -> None:
    removed = SequenceSet.from_ranges((first, first + count) for first, count in removals)
    both = [planned(scattered, 10, removed), planned(scattered, 8, SequenceSet.empty(), "OTHER")]
    slices = BlockSlices.concatenate(both)
    assert list(slices) == [*both[0], *both[1]]
    part = slices[start : start + count]
    arrived = pickle.loads(pickle.dumps(part))
    assert arrived == part
    assert list(pickle.loads(pickle.dumps(slices[::-1]))) == list(slices)[::-1]
    assert list(arrived) == list(slices)[start : start + count]
    assert [one.stream for one in arrived] == ["S" if at < 10 else "OTHER" for at in range(18)][start : start + count]


def test_slices_are_a_sequence(scattered: Scattered) -> None:
    slices = planned(scattered, 700, SequenceSet.empty())
    listed = list(slices)
    assert len(slices) == len(listed) == 700
    assert (slices[3], slices[-1]) == (listed[3], listed[-1])
    assert list(reversed(slices))[:2] == [listed[-1], listed[-2]]
    assert list(slices[::7]) == listed[::7]
    assert listed[5] in slices
    assert slices != slices[1:]
    assert not BlockSlices.empty() and list(BlockSlices.concatenate([])) == []
    with pytest.raises(IndexError):
        slices[700]


def test_one_block_travels_in_little_whatever_it_was_planned_with(scattered: Scattered) -> None:
    removed = SequenceSet.from_sequences(range(1, 100_000, 3))
    slices = planned(scattered, 10_000, removed)
    assert len(pickle.dumps(slices[5000:5001])) < 1500


def test_plan_makes_no_object_for_a_block(tmp_path: Path) -> None:
    scattered = Scattered.make(tmp_path, 3)
    planned(scattered, 100_000, SequenceSet.empty())  # leaves the blocks in the state
    tracemalloc.start()
    try:
        before = len(tracemalloc.take_snapshot().traces)
        slices = plan_stream(scattered.state, scattered.stream, scattered.volumes, ReadRequest(("S",)))[0]
        made = len(tracemalloc.take_snapshot().traces) - before
    finally:
        tracemalloc.stop()
    assert len(slices) == 100_000
    assert made < 5000
