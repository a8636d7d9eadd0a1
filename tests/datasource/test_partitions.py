"""Partitions: nothing is lost or read twice, and the bounds that were asked for hold."""

import pickle
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from datasource.partitions import PACK_SIZE, SlicePartition, pack


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
