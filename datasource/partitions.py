"""Partitions of a read: which slices of blocks one task reads, in order.

A block file is a partition of its own by default; small ones share one, up to PACK_SIZE and PACK_ROW_COUNT, so that
many small appends do not become many tasks. `minPartitions` and `maxRecordsPerPartition` split blocks, frames being the
grain of reading.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from pyspark.sql.datasource import InputPartition

from storage_core.store.reading.slices import BlockSlices

PACK_SIZE = 16 * 1024 * 1024  # bytes of block files that share a partition: some 30 ms of reading
# Their rows, some 0.15 s: compressed, many of them have few bytes, and one large task more keeps the others waiting.
PACK_ROW_COUNT = 1 << 19


class Slice(Protocol):
    """Part of a block: `row_count` rows at most, `byte_size` bytes to read for them."""

    @property
    def row_count(self) -> int: ...

    @property
    def byte_size(self) -> int: ...

    def split(self, row_count_max: int) -> "Sequence[Slice]": ...


S = TypeVar("S", bound=Slice)


class SlicePartition(InputPartition):
    """Slices that one task reads, one after another; none in the only partition of an empty read.

    `subjects`: subject filters of streams that have their own. `replaced_by`: ids of the streaming queries that have
    replaced the content of streams, by stream.
    """

    def __init__(self, slices: Sequence[Any], subjects: Mapping[str, tuple[str, ...]] | None = None) -> None:
        super().__init__(None)
        self.slices, self.subjects = slices, dict(subjects or {})
        self.replaced_by: Mapping[str, str] = {}


def pack(slices: Iterable[S], partitions_min: int | None = None, rows_max: int | None = None) -> list[list[S]]:
    """Return the slices, split where needed and in their order, as one list for each partition; at least one.

    There are `partitions_min` partitions or more, unless there are fewer rows, and none has more than `rows_max` rows.
    """
    listed = [piece for piece in slices if piece.row_count]
    limit = _row_limit(sum(slice_.row_count for slice_ in listed), partitions_min, rows_max)
    cut = [slice_ for slice_ in _split(listed, limit) if slice_.row_count]
    row_counts = np.array([slice_.row_count for slice_ in cut], np.int64)
    byte_sizes = np.array([slice_.byte_size for slice_ in cut], np.int64)
    edges = _edges(row_counts, byte_sizes, limit)
    return [cut[start:end] for start, end in zip(edges, edges[1:], strict=False)] or [[]]


def pack_blocks(
    slices: BlockSlices, partitions_min: int | None = None, rows_max: int | None = None
) -> list[BlockSlices]:
    """Return the same for slices in columns: no object is made for a slice, nor sent for one."""
    listed = slices.with_rows()
    limit = _row_limit(int(listed.row_counts.sum()), partitions_min, rows_max)
    cut = listed if limit is None else listed.split(limit).with_rows()
    edges = _edges(cut.row_counts, cut.byte_sizes, limit)
    return [cut[start:end] for start, end in zip(edges, edges[1:], strict=False)] or [cut]


def _row_limit(row_count: int, partitions_min: int | None, rows_max: int | None) -> int | None:
    """Return how many rows a partition may have. Rounded down: then the partitions that result are enough."""
    limits = [] if rows_max is None else [rows_max]
    if partitions_min is not None:
        limits.append(max(1, row_count // partitions_min))
    return min(limits, default=None)


def _edges(row_counts: np.ndarray, byte_sizes: np.ndarray, limit: int | None) -> list[int]:
    """Return where partitions begin, and where the last one ends: each takes as many slices as fit, one at least."""
    rows, sizes = np.cumsum(row_counts), np.cumsum(byte_sizes)
    rows_max = PACK_ROW_COUNT if limit is None else limit
    edges = [0]
    while (start := edges[-1]) < len(rows):
        before_rows, before_size = (int(rows[start - 1]), int(sizes[start - 1])) if start else (0, 0)
        end = int(np.searchsorted(sizes, before_size + PACK_SIZE, side="right"))
        end = min(end, int(np.searchsorted(rows, before_rows + rows_max, side="right")))
        edges.append(max(end, start + 1))
    return edges


def _split(slices: Iterable[S], limit: int | None) -> Iterable[S]:
    for piece in slices:
        if limit is None or piece.row_count <= limit:
            yield piece
        else:
            yield from piece.split(limit)  # type: ignore[misc]  # a slice splits into slices of its kind
