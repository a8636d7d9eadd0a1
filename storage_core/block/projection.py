"""From a decoded frame to the batch that was asked for: range, filters, and the columns that frames do not store.

A range of rows is a slice, which costs nothing. Masks are made only for frames that a subject filter, a time range or
a set of removed sequences cuts through.
"""

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.block.footer import Footer
from storage_core.block.request import FrameRequest, FrameSelection
from storage_core.schema import FRAME_SCHEMA, TIMESTAMP_TYPE, read_schema
from storage_core.sequences import SequenceSet
from storage_core.subject_columns import match_mask

_FIELDS = {name: position for position, name in enumerate(FRAME_SCHEMA.names)}
_STORED_IN = {"subject": "subject", "timestamp": "timestamp_ns", "timestamp_ns": "timestamp_ns"} | {
    "headers": "headers",
    "data": "data",
}


class Projection:
    """One read's way from frames to batches. Everything about a frame is asked for by its position in the table."""

    def __init__(self, footer: Footer, request: FrameRequest, selection: FrameSelection) -> None:
        self._footer, self._request, self._selection = footer, request, selection
        self._schema = read_schema(request.columns)
        self._stored = {_FIELDS[_STORED_IN[name]] for name in request.columns if name in _STORED_IN}
        self._stream: pa.Array | None = None

    def sequences(self, position: int) -> tuple[int, int]:
        """Return the absolute sequences `[first, end)` of the whole frame, holes included."""
        first_row = int(self._footer.frames.first_rows[position])
        return self._span(first_row, first_row + int(self._footer.frames.row_counts[position]))

    def fields(self, position: int, whole_subjects: bool) -> list[int]:
        """Return the columns of schema.FRAME_SCHEMA to decode, ascending; at least one."""
        fields = set(self._stored)
        if not whole_subjects:
            fields.add(_FIELDS["subject"])
        if not fields or self._cuts_time(position):
            fields.add(_FIELDS["timestamp_ns"])
        return sorted(fields)

    def is_removed(self, position: int) -> bool:
        """Return whether no row of the frame that is in range is left to be shown."""
        if self._request.removed is None:
            return False
        first, end = self._span(*self._rows(position))
        removed = self._request.removed.clip(first, end)
        return removed.run_count == 1 and int(removed.starts[0]) <= first and int(removed.ends[0]) >= end

    def apply(self, frame: pa.RecordBatch, position: int, whole_subjects: bool) -> pa.RecordBatch:
        """Return the rows of the frame that were asked for, as schema.read_schema(columns); maybe none."""
        first_row, end_row = self._rows(position)
        skip = first_row - int(self._footer.frames.first_rows[position])
        if end_row - first_row < frame.num_rows:
            frame = frame.slice(skip, end_row - first_row)
        removed = self._removed(first_row, end_row)
        sequences: np.ndarray | None = None
        if removed is not None or "sequence" in self._request.columns:
            sequences = self._footer.runs.sequences(first_row, end_row, self._request.first_sequence)
        mask = self._mask(frame, position, whole_subjects, removed, sequences)
        if mask is not None and not mask.all():
            frame = frame.filter(buffers.of_bits(mask))
            sequences = None if sequences is None else sequences[mask]
        return self._columns(frame, sequences)

    # --- which rows

    def _rows(self, position: int) -> tuple[int, int]:
        """Return the rows of the block that are in the frame and in range."""
        start = int(self._footer.frames.first_rows[position])
        end = start + int(self._footer.frames.row_counts[position])
        return max(start, self._selection.first_row), min(end, self._selection.end_row)

    def _span(self, first_row: int, end_row: int) -> tuple[int, int]:
        runs, base = self._footer.runs, self._request.first_sequence
        return base + runs.sequence_at(first_row), base + runs.sequence_at(end_row - 1) + 1

    def _removed(self, first_row: int, end_row: int) -> SequenceSet | None:
        """Return the removed sequences among these rows of the block, None if there are none."""
        if self._request.removed is None:
            return None
        return self._request.removed.clip(*self._span(first_row, end_row)) or None

    def _cuts_time(self, position: int) -> bool:
        frames, request = self._footer.frames, self._request
        return (request.time_first_ns is not None and request.time_first_ns > int(frames.time_min_ns[position])) or (
            request.time_end_ns is not None and request.time_end_ns <= int(frames.time_max_ns[position])
        )

    def _mask(
        self,
        frame: pa.RecordBatch,
        position: int,
        whole_subjects: bool,
        removed: SequenceSet | None,
        sequences: np.ndarray | None,
    ) -> np.ndarray | None:
        """Return which rows of the slice pass, None for all."""
        request = self._request
        masks: list[np.ndarray] = []
        if not whole_subjects:
            taken = match_mask(request.subject_filters, frame.column("subject"))
            masks.append(buffers.mask(taken))
        if self._cuts_time(position):
            times = buffers.numbers(frame.column("timestamp_ns"))
            if request.time_first_ns is not None:
                masks.append(times >= request.time_first_ns)
            if request.time_end_ns is not None:
                masks.append(times < request.time_end_ns)
        if removed is not None and sequences is not None:
            masks.append(~removed.mask(sequences))
        return np.logical_and.reduce(masks) if masks else None

    # --- which columns

    def _columns(self, frame: pa.RecordBatch, sequences: np.ndarray | None) -> pa.RecordBatch:
        arrays: list[pa.Array] = []
        for name in self._request.columns:
            if name == "stream":
                arrays.append(self._stream_column(frame.num_rows))
            elif name == "sequence":
                assert sequences is not None
                arrays.append(buffers.of_numbers(sequences))
            elif name == "timestamp":
                # Rounded towards the past, also before 1970.
                times_us = buffers.numbers(frame.column("timestamp_ns")) // 1000
                arrays.append(buffers.of_numbers(times_us, TIMESTAMP_TYPE))
            else:
                arrays.append(frame.column(name))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _stream_column(self, row_count: int) -> pa.Array:
        """Return the stream's name for each row; one array serves all frames of the read."""
        if self._stream is None:
            rows = int(self._footer.frames.row_counts[self._selection.positions].max())
            self._stream = buffers.repeated(self._request.stream, rows)
        return self._stream.slice(0, row_count)
