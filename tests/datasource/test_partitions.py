"""Partitions: nothing is lost or read twice, and the bounds that were asked for hold."""

import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasource.partitions import PACK_ROW_COUNT, PACK_SIZE, SlicePartition, pack, pack_blocks
from storage_core.sequences import SequenceSet
from storage_core.store.reading.slices import SLICE_DTYPE, BlockSlices, StreamOfSlices, shown_counts


@dataclass(frozen=True)
class Part:
    """A slice as `pack` sees it: rows [first, end) and a size in proportion."""

    first: int
    end: int
    byte_size: int

    @property
    def row_count(self) -> int:
        return self.end - self.first

    def split(self, row_count_max: int) -> "list[Part]":
        return [
            replace(self, first=first, end=min(first + row_count_max, self.end))
            for first in range(self.first, self.end, row_count_max)
        ]


def parts(row_counts: list[int], row_size: int = 100) -> list[Part]:
    made, first = [], 0
    for count in row_counts:
        made.append(Part(first, first + count, count * row_size))
        first += count
    return made


def test_large_blocks_are_partitions_of_their_own() -> None:
    blocks = [Part(at * 10, at * 10 + 10, PACK_SIZE) for at in range(4)]
    assert pack(blocks) == [[block] for block in blocks]


def test_small_blocks_share_partitions_in_order() -> None:
    blocks = [Part(at, at + 1, PACK_SIZE // 4) for at in range(10)]
    packed = pack(blocks)
    assert [len(one) for one in packed] == [4, 4, 2]
    assert [block for one in packed for block in one] == blocks


def test_blocks_of_few_bytes_and_many_rows_share_a_partition_up_to_so_many_rows() -> None:
    blocks = parts([PACK_ROW_COUNT // 2] * 4 + [PACK_ROW_COUNT + 1, 1], row_size=1)
    assert pack(blocks) == [blocks[:2], blocks[2:4], [blocks[4]], [blocks[5]]]


def test_small_block_does_not_ride_with_a_large_one() -> None:
    large, small = Part(0, 10, PACK_SIZE * 4), Part(10, 11, 10)
    assert pack([large, small]) == [[large], [small]]


def test_empty_read_has_one_partition() -> None:
    assert pack([]) == [[]]
    assert pack([], 8, 10) == [[]]


def test_one_block_is_split_to_reach_the_minimum() -> None:
    packed = pack(parts([100]), partitions_min=8)
    assert len(packed) >= 8
    assert sum(one.row_count for partition in packed for one in partition) == 100


def test_partition_travels_by_pickle() -> None:
    partition = SlicePartition((Part(0, 1, 1),))
    assert pickle.loads(pickle.dumps(partition)).slices == partition.slices


@given(
    st.lists(st.integers(0, 50), max_size=12),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 60),
)
def test_partitions_cover_every_row_once_within_the_bounds(
    row_counts: list[int], partitions_min: int | None, rows_max: int | None
) -> None:
    packed = pack(parts(row_counts), partitions_min, rows_max)
    rows = [row for partition in packed for one in partition for row in range(one.first, one.end)]
    assert rows == list(range(sum(row_counts)))
    if partitions_min is not None and rows:
        assert len(packed) >= min(partitions_min, len(rows))
    if rows_max is not None:
        assert all(sum(one.row_count for one in partition) <= rows_max for partition in packed)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.sampled_from([100, PACK_SIZE // 3, PACK_SIZE])), max_size=12),
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)), max_size=4),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 60),
)
def test_blocks_in_columns_are_packed_like_slices_one_by_one(
    blocks: list[tuple[int, int]], removals: list[tuple[int, int]], partitions_min: int | None, rows_max: int | None
) -> None:
    removed = SequenceSet.from_ranges((first, first + count) for first, count in removals)
    rows = np.zeros(len(blocks), SLICE_DTYPE)
    rows["end"] = np.cumsum([span for span, _ in blocks])
    rows["first"] = rows["end"] - [span for span, _ in blocks]
    rows["row_count"] = shown_counts(rows["first"], rows["end"], removed)
    rows["byte_size"] = [size for _, size in blocks]
    slices = BlockSlices(rows, (StreamOfSlices("S", b"", b"", (b"",), ((),), removed),))
    packed = pack_blocks(slices, partitions_min, rows_max)
    assert [list(one) for one in packed] == pack(slices, partitions_min, rows_max)


def test_a_hundred_thousand_small_blocks_travel_in_little() -> None:
    rows = np.zeros(100_000, SLICE_DTYPE)
    rows["first"], rows["end"], rows["row_count"] = np.arange(100_000), np.arange(100_000) + 1, 1
    rows["byte_size"] = 8192
    slices = BlockSlices(rows, (StreamOfSlices("S", bytes(16), bytes(16), (bytes(16),), ((),), SequenceSet.empty()),))
    packed = pack_blocks(slices)
    assert len(packed) == pytest.approx(100_000 * 8192 / PACK_SIZE, abs=1)
    assert sum(len(pickle.dumps(SlicePartition(one))) for one in packed) < 110 * 100_000
