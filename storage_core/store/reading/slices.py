"""Slices: which part of which block a read takes, one by one or as the columns of a plan.

A plan of 100,000 blocks is one numpy table: to count it, to cut it into partitions and to send those to executors, no
object is made for a block. A `BlockSlice` comes into being when somebody asks for one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np

from storage_core.files import OS_FILES, Files
from storage_core.sequences import SequenceSet
from storage_core.store.volume.block_store import BlockStore, blocks_at
from storage_core.store.volume.reports import Reports, reports_at

SLICE_DTYPE = np.dtype(
    [
        ("block_id", "V16"),
        ("digest", "V16"),
        ("file_size", "<i8"),  # bytes
        ("block_first", "<i8"),
        ("first", "<i8"),
        ("end", "<i8"),
        ("row_count", "<i8"),
        ("byte_size", "<i8"),
        ("stream", "<u4"),  # position in BlockSlices.streams
        ("written_as", "<u4"),  # position in the stream's incarnations
        ("copies", "<u4"),  # position in the stream's copies
        ("may_return", "u1"),  # the stream's former disks may have it
    ]
)
MADE_AT_ONCE = 256  # slices made for an iteration before the first of them is asked for


@dataclass(frozen=True, slots=True)
class CopyPlace:
    """A volume on which blocks may lie."""

    volume_id: bytes
    uri: str  # of the volume; of local disks an absolute path, the same on every executor
    expected: bool  # the manifest says that it took the block: a copy that is not there is lost

    def blocks(self, files: Files) -> BlockStore:
        return blocks_at(files, self.uri)

    def reports(self, files: Files) -> Reports:
        return reports_at(files, self.uri)


@dataclass(frozen=True, slots=True)
class BlockSlice:
    """Sequences `[first, end)` of one block."""

    stream: str
    store_id: bytes
    incarnation: bytes
    written_as: bytes  # incarnation under which the block was written: in its header, and the name of its directory
    block_id: bytes
    digest: bytes
    file_size: int  # bytes
    copies: tuple[CopyPlace, ...]  # best first; shared by the slices of a plan
    block_first: int  # sequence of the block's relative 0
    first: int
    end: int
    removed: bytes  # encoded SequenceSet of [first, end) that is not shown; empty: nothing
    row_count: int  # at most: removals and holes are taken off, filters are not
    byte_size: int  # bytes to read, in proportion
    former: tuple[str, ...] = ()  # disks that are no volumes any more and may have the block, for people

    @property
    def paths(self) -> tuple[str, ...]:
        """Return where the block's copies are, one path for each of `copies`."""
        return tuple(str(copy.blocks(OS_FILES).path(self.written_as, self.block_id)) for copy in self.copies)

    def split(self, row_count_max: int) -> "list[BlockSlice]":
        """Return slices of at most `row_count_max` sequences that make up this one."""
        span = self.end - self.first
        if span <= row_count_max:
            return [self]
        removed = SequenceSet.decode(self.removed) if self.removed else SequenceSet.empty()
        parts = []
        for first in range(self.first, self.end, row_count_max):
            end = min(first + row_count_max, self.end)
            inside = removed.clip(first, end)
            rows, size = end - first - len(inside), self.byte_size * (end - first) // span
            parts.append(
                replace(
                    self, first=first, end=end, removed=inside.encode() if inside else b"", row_count=rows,
                    byte_size=size,
                )
            )  # fmt: skip
        return parts


@dataclass(frozen=True, slots=True)
class StreamOfSlices:
    """What the slices of one stream share."""

    name: str
    store_id: bytes
    incarnation: bytes
    incarnations: tuple[bytes, ...]  # that blocks were written as
    copies: tuple[tuple[CopyPlace, ...], ...]
    removed: SequenceSet  # of all slices
    former: tuple[str, ...] = ()  # disks that were volumes and may come back, for people

    def plain(self, rows: np.ndarray) -> tuple[tuple[Any, ...], np.ndarray]:
        """Return what these rows need of it as plain values, and where in that each row's copies are."""
        used, positions = np.unique(rows["copies"], return_inverse=True)
        copies = [[(copy.volume_id, copy.uri, copy.expected) for copy in self.copies[at]] for at in used.tolist()]
        removed = self.removed
        if removed:
            removed = removed.clip(int(rows["first"].min()), int(rows["end"].max()))
        encoded = removed.encode() if removed else b""
        plain = (self.name, self.store_id, self.incarnation, self.incarnations, copies, encoded, self.former)
        return plain, positions

    @classmethod
    def of_plain(cls, plain: tuple[Any, ...]) -> "StreamOfSlices":
        name, store_id, incarnation, incarnations, copies, encoded, former = plain
        places = tuple(tuple(CopyPlace(*place) for place in listed) for listed in copies)
        removed = SequenceSet.decode(encoded) if encoded else SequenceSet.empty()
        return cls(name, store_id, incarnation, incarnations, places, removed, former)


class BlockSlices(Sequence[BlockSlice]):
    """Slices by stream as asked, then by sequence. A value; pickles small, also a part of it."""

    __slots__ = ("rows", "streams")

    def __init__(self, rows: np.ndarray, streams: tuple[StreamOfSlices, ...]) -> None:
        """`rows`: of SLICE_DTYPE, never written again; those of one stream side by side."""
        self.rows, self.streams = rows, streams

    @classmethod
    def empty(cls) -> "BlockSlices":
        return cls(np.empty(0, SLICE_DTYPE), ())

    @classmethod
    def concatenate(cls, parts: "Iterable[BlockSlices]") -> "BlockSlices":
        """Return the slices of all parts, one after another."""
        listed = [part for part in parts if len(part)]
        if len(listed) < 2:
            return listed[0] if listed else cls.empty()
        rows = np.concatenate([slices.rows for slices in listed])
        before = np.cumsum([0, *(len(slices.streams) for slices in listed[:-1])])
        rows["stream"] += np.repeat(before, [len(slices) for slices in listed]).astype(np.uint32)
        return cls(rows, tuple(stream for slices in listed for stream in slices.streams))

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> BlockSlice: ...

    @overload
    def __getitem__(self, at: slice) -> "BlockSlices": ...

    def __getitem__(self, at: int | slice) -> "BlockSlice | BlockSlices":
        return BlockSlices(self.rows[at], self.streams) if isinstance(at, slice) else self._made(self.rows[at].item())

    def __iter__(self) -> Iterator[BlockSlice]:
        for start in range(0, len(self.rows), MADE_AT_ONCE):
            yield from map(self._made, self.rows[start : start + MADE_AT_ONCE].tolist())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockSlices):
            return NotImplemented
        return len(self) == len(other) and all(slice_ == two for slice_, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"BlockSlices({len(self)} of {', '.join(stream.name for stream in self.streams) or 'no stream'})"

    def __reduce__(self) -> tuple[Any, ...]:
        rows, streams = self.rows.copy(), []
        used, positions = np.unique(rows["stream"], return_inverse=True)
        for position, at in enumerate(used.tolist()):
            ours = positions == position
            plain, rows["copies"][ours] = self.streams[at].plain(rows[ours])
            streams.append(plain)
        rows["stream"] = positions
        return _unpickled, (rows.tobytes(), streams)

    def _made(self, row: tuple[Any, ...]) -> BlockSlice:
        """Return the slice of a row."""
        block_id, digest, file_size, block_first, first, end, row_count, byte_size, *places = row
        at, written_as, copies, may_return = places
        stream = self.streams[at]
        removed = stream.removed.clip(first, end) if stream.removed else stream.removed
        return BlockSlice(
            stream.name, stream.store_id, stream.incarnation, stream.incarnations[written_as], block_id, digest,
            file_size, stream.copies[copies], block_first, first, end, removed.encode() if removed else b"", row_count,
            byte_size, stream.former if may_return else (),
        )  # fmt: skip

    # --- as columns

    @property
    def row_counts(self) -> np.ndarray:
        """Return how many rows each slice has at most; shape (slices,), int64."""
        return self.rows["row_count"]

    @property
    def byte_sizes(self) -> np.ndarray:
        """Return the bytes to read for each slice; shape (slices,), int64."""
        return self.rows["byte_size"]

    def with_rows(self) -> "BlockSlices":
        """Return those of the slices that have rows."""
        keep = self.row_counts > 0
        return self if keep.all() else BlockSlices(self.rows[keep], self.streams)

    def split(self, row_count_max: int) -> "BlockSlices":
        """Return slices that make up these, those of more rows cut into parts of at most `row_count_max` sequences."""
        before = self.rows
        spans = before["end"] - before["first"]
        counts = np.where(before["row_count"] > row_count_max, -(-spans // row_count_max), 1)
        if (counts == 1).all():
            return self
        rows = np.repeat(before, counts)
        is_part = np.repeat(counts > 1, counts)
        number = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)  # of the part within its slice
        first = rows["first"] + number * row_count_max
        rows["first"] = np.where(is_part, first, rows["first"])
        rows["end"] = np.where(is_part, np.minimum(first + row_count_max, rows["end"]), rows["end"])
        sizes = rows["byte_size"] * (rows["end"] - rows["first"]) // np.maximum(1, np.repeat(spans, counts))
        rows["byte_size"] = np.where(is_part, sizes, rows["byte_size"])
        for at, stream in enumerate(self.streams):
            ours = rows["stream"] == at
            shown = shown_counts(rows["first"][ours], rows["end"][ours], stream.removed)
            rows["row_count"][ours] = np.where(is_part[ours], shown, rows["row_count"][ours])
        return BlockSlices(rows, self.streams)


def _unpickled(rows: bytes, streams: Iterable[tuple[Any, ...]]) -> BlockSlices:
    return BlockSlices(np.frombuffer(rows, SLICE_DTYPE), tuple(map(StreamOfSlices.of_plain, streams)))


def shown_counts(firsts: np.ndarray, ends: np.ndarray, removed: SequenceSet) -> np.ndarray:
    """Return, range by range, how many sequences of `[first, end)` are not in `removed`."""
    lengths: np.ndarray = ends - firsts
    if not removed:
        return lengths
    before = np.concatenate(([0], np.cumsum(removed.ends - removed.starts)))  # removed ones before each run

    def below(sequences: np.ndarray) -> np.ndarray:
        at = np.searchsorted(removed.starts, sequences, side="left")
        over = removed.ends[np.maximum(at - 1, 0)] - sequences  # of the last run that begins below
        counts: np.ndarray = before[at] - np.where(at > 0, np.maximum(over, 0), 0)
        return counts

    shown: np.ndarray = lengths - (below(ends) - below(firsts))
    return shown
