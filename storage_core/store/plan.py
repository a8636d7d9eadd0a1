"""Planning a read: from metadata alone to a list of slices, each one block and what to take from it.

A plan is made of plain values that travel to executors. It repeats exactly for as long as removed messages are kept
(graveyard_keep): a slice carries the removals as of the plan, and blocks are never changed.

A slice names every volume on which its block may lie, those that the manifest says took it first. Which of them comes
first differs from block to block, so that a read uses all disks. Slices share these lists, and paths are put together
when they are used: 100,000 blocks on three volumes are planned, pickled and packed as fast as on one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from storage_core.errors import StaleIncarnationError
from storage_core.metadata.state import StoreState, StreamState
from storage_core.sequences import SequenceSet
from storage_core.store import placement
from storage_core.store.placement import block_directory as block_directory
from storage_core.store.staging import block_path
from storage_core.store.volumes import Volume
from storage_core.subjects import is_literal, matches


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What to read; ranges are half open, None is open."""

    streams: tuple[str, ...]
    ranges: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    time_first_ns: int | None = None
    time_end_ns: int | None = None
    subject_filters: tuple[str, ...] = ()  # any of them; empty: all


@dataclass(frozen=True, slots=True)
class CopyPlace:
    """A volume on which blocks may lie."""

    volume_id: bytes
    volume: str  # absolute path; the same on every executor
    expected: bool  # the manifest says that it took the block: a copy that is not there is lost


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

    @property
    def paths(self) -> tuple[str, ...]:
        """Return where the block's copies are, one path for each of `copies`."""
        return tuple(str(self.path_on(one)) for one in self.copies)

    def path_on(self, copy: CopyPlace) -> Path:
        return block_path(str(block_directory(Path(copy.volume), self.written_as)), self.block_id)

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
class StreamRange:
    """What a plan covers of one stream."""

    stream: str
    incarnation: bytes
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class ReadPlan:
    slices: tuple[BlockSlice, ...]  # by stream as asked, then by sequence
    ranges: tuple[StreamRange, ...]
    index: int  # of the metadata that it was made from


def plan_stream(
    state: StoreState, stream: StreamState, volumes: Sequence[Volume], request: ReadRequest
) -> tuple[list[BlockSlice], StreamRange]:
    """Return the slices of one stream, and the range they cover."""
    asked_first, asked_end = request.ranges.get(stream.name, (None, None))
    first = max(stream.floor, asked_first if asked_first is not None else stream.floor)
    end = min(stream.next_sequence, asked_end if asked_end is not None else stream.next_sequence)
    covered = StreamRange(stream.name, stream.incarnation, first, max(first, end))
    rows = stream.blocks.rows
    lo = int(np.searchsorted(rows["first"] + rows["span"], first, side="right"))
    hi = int(np.searchsorted(rows["first"], end, side="left"))
    if hi <= lo:
        return [], covered
    rows = rows[lo:hi]
    rows = rows[_may_match(rows, stream, request)]
    return _slices(state, stream, rows, volumes, first, end), covered


def whole_blocks(
    state: StoreState, stream: StreamState, rows: np.ndarray, volumes: Sequence[Volume]
) -> list[BlockSlice]:
    """Return the blocks of these rows of the manifest as slices, one a row, whatever of them was removed."""
    return _slices(state, replace(stream, removed=SequenceSet.empty()), rows, volumes, 0, stream.next_sequence)


def _slices(
    state: StoreState, stream: StreamState, rows: np.ndarray, volumes: Sequence[Volume], first: int, end: int
) -> list[BlockSlice]:
    """Return one slice a row; columns become Python values once, not row by row."""
    starts = np.maximum(rows["first"], first)
    stops = np.minimum(rows["first"] + rows["span"], end)
    removals = _removals(starts, stops, stream.removed)
    shares = np.maximum(1, rows["file_size"] * (stops - starts) // np.maximum(1, rows["span"]))
    columns = (rows["block_id"], rows["digest"], rows["file_size"], rows["first"], starts, stops, shares)
    origins = np.searchsorted([upto for _, upto in stream.origins], rows["first"], side="right")
    incarnations = stream.incarnations
    written_as = [incarnations[at] for at in origins.tolist()]
    return [
        BlockSlice(
            stream=stream.name,
            store_id=state.store_id,
            incarnation=stream.incarnation,
            written_as=written,
            block_id=block_id,
            digest=digest,
            file_size=file_size,
            copies=copies,
            block_first=block_first,
            first=start,
            end=stop,
            removed=removed.encode() if removed else b"",
            row_count=stop - start - (len(removed) if removed else 0),
            byte_size=share,
        )
        for block_id, digest, file_size, block_first, start, stop, share, removed, written, copies in zip(
            *(column.tolist() for column in columns),
            removals,
            written_as,
            _copies(state, stream, rows, volumes),
            strict=True,
        )
    ]


def _copies(
    state: StoreState, stream: StreamState, rows: np.ndarray, volumes: Sequence[Volume]
) -> list[tuple[CopyPlace, ...]]:
    """Return for each row where its block may lie; rows with the same volumes in the same order share one tuple."""
    readable = [(volume_id, str(path)) for volume_id, path in placement.read_directories(state, stream, volumes)]
    # Volumes that are not there come last, for the error to name: to be met they need not be tried block by block.
    missing = [(one.volume_id, str(one.path)) for one in volumes if one.volume_id not in dict(readable)]
    counted = {one.volume_id for one in volumes if placement.is_recorded(state, one)}
    count = max(1, len(stream.placement))
    turns = rows["block_id"].copy().view("u1").reshape(-1, rows["block_id"].itemsize)[:, -1] % count
    keys = rows["holders"].astype(np.int64) * count + turns
    made = {}
    for key in np.unique(keys).tolist():
        held = placement.holders(stream, key // count)
        places = [CopyPlace(*one, one[0] in held) for one in readable]
        first = [one for one in places if one.expected and one.volume_id in counted]
        rest = [one for one in places if one not in first]
        at = key % count % len(first) if first else 0
        last = [CopyPlace(*one, True) for one in missing if one[0] in held]
        made[key] = (*first[at:], *first[:at], *rest, *last)
    return [made[key] for key in keys.tolist()]


def _may_match(rows: np.ndarray, stream: StreamState, request: ReadRequest) -> np.ndarray:
    keep = rows["row_count"] > 0
    if request.time_first_ns is not None:
        keep &= rows["time_max_ns"] >= request.time_first_ns
    if request.time_end_ns is not None:
        keep &= rows["time_min_ns"] < request.time_end_ns
    if request.subject_filters:
        taken = [True]  # set 0: not summarised
        for subjects in stream.subject_sets:
            taken.append(_any_match(request.subject_filters, subjects))
        keep &= np.array(taken)[rows["subject_set"]]
    return keep


def _any_match(filters: tuple[str, ...], subjects: tuple[str, ...]) -> bool:
    have = set(subjects)
    return any(
        one in have if is_literal(one) else any(matches(one, subject) for subject in subjects) for one in filters
    )


def _removals(starts: np.ndarray, stops: np.ndarray, removed: SequenceSet) -> list[SequenceSet | None]:
    """Return, block by block, what of it is removed; the set is only cut where it meets the block."""
    lo = np.searchsorted(removed.ends, starts, side="right")
    hi = np.searchsorted(removed.starts, stops, side="left")
    cuts: list[SequenceSet | None] = [None] * len(starts)
    for at in np.flatnonzero(hi > lo).tolist():
        cuts[at] = removed.clip(int(starts[at]), int(stops[at]))
    return cuts


def check_unchanged(state: StoreState, ranges: tuple[StreamRange, ...]) -> None:
    """Raise StaleIncarnationError if a stream that a plan covers was deleted, or deleted and made again."""
    for one in ranges:
        if state.by_incarnation(one.incarnation) is None:
            raise StaleIncarnationError(f"stream {one.stream!r} was deleted, or deleted and made again")
