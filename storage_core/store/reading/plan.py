"""Planning a read: from metadata alone to a list of slices, each one block and what to take from it.

A plan is made of plain values that travel to executors. It repeats exactly for as long as removed messages are kept
(deleted_block_retention): a slice carries the removals as of the plan, and blocks are never changed.

A slice names every volume on which its block may lie, those that the manifest says took it first. Which of them comes
first differs from block to block, so that a read uses all disks. Slices share these lists, and paths are put together
when they are used. All of it is done in columns: 100,000 blocks take some 30 ms, on three volumes as on one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from storage_core.chunked_set import ChunkedSet
from storage_core.metadata.state import StoreState, StreamState
from storage_core.metadata.subject_sets import rows_that_may_match
from storage_core.sequences import SequenceSet
from storage_core.store.reading.slices import SLICE_DTYPE, BlockSlices, StreamOfSlices, shown_counts
from storage_core.store.reading.slices import BlockSlice as BlockSlice
from storage_core.store.reading.slices import CopyPlace as CopyPlace
from storage_core.store.volume import losses, placement
from storage_core.store.volume.volumes import Volume


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What to read; ranges are half open, None is open."""

    streams: tuple[str, ...]
    ranges: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    time_first_ns: int | None = None
    time_end_ns: int | None = None
    subject_filters: tuple[str, ...] = ()  # any of them; empty: all


@dataclass(frozen=True, slots=True)
class StreamRange:
    """What a plan covers of one stream."""

    stream: str
    incarnation: bytes
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class ReadPlan:
    slices: BlockSlices  # by stream as asked, then by sequence
    ranges: tuple[StreamRange, ...]
    index: int  # of the metadata that it was made from


def plan_stream(
    state: StoreState, stream: StreamState, volumes: Sequence[Volume], request: ReadRequest
) -> tuple[BlockSlices, StreamRange]:
    """Return the slices of one stream, and the range they cover."""
    asked_first, asked_end = request.ranges.get(stream.name, (None, None))
    first = max(stream.low_watermark, asked_first if asked_first is not None else stream.low_watermark)
    end = min(stream.next_sequence, asked_end if asked_end is not None else stream.next_sequence)
    covered = StreamRange(stream.name, stream.incarnation, first, max(first, end))
    rows = stream.blocks.rows[stream.blocks_in(first, end)]
    if first >= end or not len(rows):
        return BlockSlices.empty(), covered
    keep = _may_match(rows, stream, request)
    rows = rows if keep.all() else rows[keep]
    return _slices(state, stream, rows, volumes, first, end), covered


def whole_blocks(state: StoreState, stream: StreamState, rows: np.ndarray, volumes: Sequence[Volume]) -> BlockSlices:
    """Return the blocks of these rows of the manifest as slices, one a row, whatever of them was removed."""
    return _slices(state, replace(stream, removed=ChunkedSet.empty()), rows, volumes, 0, stream.next_sequence)


def _slices(
    state: StoreState, stream: StreamState, rows: np.ndarray, volumes: Sequence[Volume], first: int, end: int
) -> BlockSlices:
    """Return one slice a row."""
    made = np.zeros(len(rows), SLICE_DTYPE)
    for name in ("block_id", "digest", "file_size"):
        made[name] = rows[name]
    firsts, spans = rows["first"], rows["span"]
    made["block_first"] = firsts
    made["first"] = starts = np.maximum(firsts, first)
    made["end"] = stops = np.minimum(firsts + spans, end)
    removed = stream.removed.clip(int(starts[0]), int(stops[-1])) if len(rows) else SequenceSet.empty()
    made["row_count"] = shown_counts(starts, stops, removed)
    made["byte_size"] = np.maximum(1, rows["file_size"] * (stops - starts) // np.maximum(1, spans))
    if stream.origins:
        made["written_as"] = np.searchsorted([upto for _, upto in stream.origins], firsts, side="right")
    copies, made["copies"] = _copies(state, stream, rows, volumes)
    oldest_ns = int(rows["committed_ns"].min()) if len(rows) and state.former else 0
    disks = tuple(map(str, losses.former(state, stream, oldest_ns))) if state.former else ()
    if disks:
        gone_ns = max(disk.gone_ns for disk in state.former)
        made["may_return"] = rows["committed_ns"] <= gone_ns
    shared = StreamOfSlices(
        stream.name, state.store_id, stream.incarnation, tuple(stream.incarnations), copies, removed, disks
    )
    return BlockSlices(made, (shared,))


def _copies(
    state: StoreState, stream: StreamState, rows: np.ndarray, volumes: Sequence[Volume]
) -> tuple[tuple[tuple[CopyPlace, ...], ...], np.ndarray]:
    """Return the lists of where blocks may lie, and for each row which of them is its own."""
    readable = [(volume.volume_id, str(volume.path)) for volume in placement.read_volumes(state, stream, volumes)]
    # Volumes that are not there come last, for the error to name: to be met they need not be tried block by block.
    missing = [(volume.volume_id, str(volume.path)) for volume in volumes if volume.volume_id not in dict(readable)]
    counted = {volume.volume_id for volume in volumes if placement.is_recorded(state, volume)}
    count = max(1, len(stream.placement))
    last_bytes = np.ascontiguousarray(rows["block_id"]).view("u1").reshape(-1, rows["block_id"].itemsize)[:, -1]
    keys = rows["holders"].astype(np.int64) * count + last_bytes % count
    made = []
    # Keys are small: looked up in a table they need no sort.
    distinct = np.flatnonzero(np.bincount(keys)) if len(keys) else keys
    places_of = np.zeros(int(distinct[-1]) + 1 if len(distinct) else 0, np.int64)
    places_of[distinct] = np.arange(len(distinct))
    which = places_of[keys]
    for key in distinct.tolist():
        held = placement.holders(stream, key // count)
        places = [CopyPlace(*volume, volume[0] in held) for volume in readable]
        first = [place for place in places if place.expected and place.volume_id in counted]
        rest = [place for place in places if place not in first]
        at = key % count % len(first) if first else 0
        last = [CopyPlace(*volume, volume[0] in held) for volume in missing if volume[0] in stream.placement]
        made.append((*first[at:], *first[:at], *rest, *last))
    return tuple(made), which


def _may_match(rows: np.ndarray, stream: StreamState, request: ReadRequest) -> np.ndarray:
    keep = rows["row_count"] > 0
    if request.time_first_ns is not None:
        keep &= rows["time_max_ns"] >= request.time_first_ns
    if request.time_end_ns is not None:
        keep &= rows["time_min_ns"] < request.time_end_ns
    if request.subject_filters:
        keep &= rows_that_may_match(request.subject_filters, stream.subject_sets, rows)
    return keep
