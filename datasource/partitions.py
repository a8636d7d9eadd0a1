"""Partitions of a batch read: which slices of blocks one task reads, in order.

A block file is a partition of its own by default; blocks smaller than PACK_SIZE share one, so that many small appends
do not become many tasks. `minPartitions` and `maxRecordsPerPartition` split blocks, frames being the grain of reading.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

from pyspark.sql.datasource import InputPartition

PACK_SIZE = 16 * 1024 * 1024  # bytes of block files that share a partition: some 30 ms of reading


class Slice(Protocol):
    """Part of a block: `row_count` rows at most, `byte_size` bytes to read for them."""

    @property
    def row_count(self) -> int: ...

    @property
    def byte_size(self) -> int: ...

    def split(self, row_count_max: int) -> "Sequence[Slice]": ...


S = TypeVar("S", bound=Slice)


class SlicePartition(InputPartition):
    """Slices that one task reads, one after another; none in the only partition of an empty read."""

    def __init__(self, slices: tuple[Any, ...]) -> None:
        super().__init__(None)
        self.slices = slices


def pack(slices: Iterable[S], partitions_min: int | None = None, rows_max: int | None = None) -> list[list[S]]:
    """Return the slices, split where needed and in their order, as one list for each partition; at least one.

    There are `partitions_min` partitions or more, unless there are fewer rows, and none has more than `rows_max` rows.
    """
    listed = [one for one in slices if one.row_count]
    limit = _row_limit(listed, partitions_min, rows_max)
    partitions: list[list[S]] = []
    rows = size = 0
    for one in _split(listed, limit):
        fits = size + one.byte_size <= PACK_SIZE and (limit is None or rows + one.row_count <= limit)
        if partitions and fits:
            partitions[-1].append(one)
        else:
            partitions.append([one])
            rows = size = 0
        rows, size = rows + one.row_count, size + one.byte_size
    return partitions or [[]]


def _row_limit(slices: Sequence[S], partitions_min: int | None, rows_max: int | None) -> int | None:
    """Return how many rows a partition may have. Rounded down: then the partitions that result are enough."""
    limits = [] if rows_max is None else [rows_max]
    if partitions_min is not None:
        limits.append(max(1, sum(one.row_count for one in slices) // partitions_min))
    return min(limits, default=None)


def _split(slices: Iterable[S], limit: int | None) -> Iterable[S]:
    for one in slices:
        if limit is None or one.row_count <= limit:
            yield one
        else:
            yield from one.split(limit)  # type: ignore[misc]  # a slice splits into slices of its kind
