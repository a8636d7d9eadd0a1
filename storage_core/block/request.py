"""What a reader is asked for, and which frames of a block can hold it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from storage_core.block.damage import FrameDamage
from storage_core.block.footer import Footer
from storage_core.schema import READ_SCHEMA, read_schema
from storage_core.sequences import SequenceSet
from storage_core.subjects import is_filter


@dataclass(frozen=True)
class FrameRequest:
    """A read of one block. Ranges are half open; None is unbounded."""

    columns: tuple[str, ...] = tuple(READ_SCHEMA.names)  # names of schema.READ_FIELDS, at least one
    stream: str = ""  # value of the column `stream`
    first_sequence: int = 1  # sequence of the block's relative 0, from the commit
    first: int | None = None  # sequences
    end: int | None = None
    time_first_ns: int | None = None
    time_end_ns: int | None = None
    subject_filters: tuple[str, ...] = ()  # any of them; none: every subject
    removed: SequenceSet | None = None  # sequences that are not shown
    verify: bool = True  # check payload CRCs; False: validate what Arrow decoded instead
    on_damage: Callable[[FrameDamage], None] | None = None  # None: raise; else report, leave the frame out, go on

    def check(self) -> None:
        """Raise ValueError naming what cannot be asked for."""
        if not self.columns:
            raise ValueError("columns: at least one is needed")
        read_schema(self.columns)
        for subject_filter in self.subject_filters:
            if not is_filter(subject_filter):
                raise ValueError(
                    f"subject filter {subject_filter!r}: tokens joined by dots, * for one of them, > for the rest"
                )


@dataclass(frozen=True, slots=True)
class FrameSelection:
    """Frames of messages that may hold what was asked for, and the rows of the block that are in range."""

    positions: list[int]  # in the frame table, ascending
    whole_subjects: list[bool]  # parallel: every row passes the subject filters
    first_row: int
    end_row: int


def select_frames(footer: Footer, request: FrameRequest) -> FrameSelection:
    """Return the frames that the footer cannot rule out."""
    base, span = request.first_sequence, footer.span
    first = 0 if request.first is None else min(max(request.first - base, 0), span)
    end = span if request.end is None else min(max(request.end - base, 0), span)
    first_row, end_row = footer.runs.row_at(first), footer.runs.row_at(end)
    frames = footer.frames
    messages = frames.messages
    starts = frames.first_rows[messages]
    may, whole = footer.subjects.match_frames(request.subject_filters, len(messages))
    may = may & (first_row < end_row) & (starts < end_row) & (starts + frames.row_counts[messages] > first_row)
    if request.time_first_ns is not None:
        may &= frames.time_max_ns[messages] >= request.time_first_ns
    if request.time_end_ns is not None:
        may &= frames.time_min_ns[messages] < request.time_end_ns
    return FrameSelection(messages[may].tolist(), np.asarray(whole)[may].tolist(), first_row, end_row)
