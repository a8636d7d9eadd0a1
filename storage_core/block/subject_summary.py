"""Which subjects a block has: listed with counts, and frame by frame where they are few; else a bloom filter."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.block import bloom
from storage_core.subject_columns import match_mask
from storage_core.subjects import is_literal

SUBJECT_COUNT_MAX = 8192
SUBJECT_TEXT_SIZE_MAX = 512 << 10  # bytes
FRAME_SUBJECT_COUNT_MAX = 64  # bits of a word


@dataclass(frozen=True, slots=True)
class SubjectSummary:
    names: pa.StringArray  # distinct, sorted bytewise; empty if there is a bloom filter
    counts: np.ndarray  # uint32, parallel to names: rows that have the subject
    frame_bits: np.ndarray  # uint64 for each frame of messages: bit i is subject i; empty with more than 64 subjects
    bloom: bytes  # empty if the subjects are listed

    @property
    def is_exact(self) -> bool:
        return not self.bloom

    def count_by_subject(self) -> dict[str, int] | None:
        """Return how many rows each subject has; None if subjects are not listed."""
        return None if self.bloom else dict(zip(self.names.to_pylist(), self.counts.tolist(), strict=True))

    def match_frames(self, subject_filters: tuple[str, ...], frame_count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return two masks over the frames of messages: may hold rows that a filter takes; holds only such rows."""
        every, no = np.ones(frame_count, bool), np.zeros(frame_count, bool)
        if not subject_filters:
            return every, every
        if self.bloom:
            literal = all(is_literal(subject_filter) for subject_filter in subject_filters)
            absent = literal and not any(
                bloom.might_contain(self.bloom, subject_filter) for subject_filter in subject_filters
            )
            return (no if absent else every), no
        taken = buffers.mask(match_mask(subject_filters, self.names))
        if not taken.any() or taken.all():
            return (every, every) if taken.any() else (no, no)
        if not len(self.frame_bits):
            return every, no
        wanted = np.bitwise_or.reduce(np.uint64(1) << np.flatnonzero(taken).astype(np.uint64))
        return self.frame_bits & wanted != 0, self.frame_bits & ~wanted == 0


class SubjectCounter:
    """Gathers the subjects of a block that is being written, one frame at a time."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._text_size = 0
        self._frame_subjects: list[list[str]] | None = []  # None: more subjects than bits
        self._bloom: bloom.BloomBuilder | None = None  # takes over from _counts

    def add_frame(self, subjects: pa.StringArray) -> None:
        """Count the subjects of the next frame (without nulls)."""
        distinct = subjects.value_counts()
        if self._bloom is not None:
            self._bloom.add(distinct.field(0))
            return
        names = distinct.field(0).to_pylist()
        known = self._counts
        for name, count in zip(names, distinct.field(1).to_pylist(), strict=True):
            if name in known:
                known[name] += count
            else:
                known[name] = count
                self._text_size += len(name.encode())
        if len(known) > FRAME_SUBJECT_COUNT_MAX:
            self._frame_subjects = None
        elif self._frame_subjects is not None:
            self._frame_subjects.append(names)
        if len(known) > SUBJECT_COUNT_MAX or self._text_size > SUBJECT_TEXT_SIZE_MAX:
            self._bloom = bloom.BloomBuilder()
            self._bloom.add(buffers.of_texts(known))
            self._counts = {}

    def finish(self) -> SubjectSummary:
        names = sorted(self._counts)  # by code point, which is bytewise in UTF-8
        counts = np.array([self._counts[name] for name in names], np.uint32)
        bits = np.empty(0, np.uint64)
        if self._frame_subjects is not None:
            bit_of = {name: 1 << bit for bit, name in enumerate(names)}
            bits = np.array([sum(bit_of[name] for name in frame) for frame in self._frame_subjects], np.uint64)
        encoded = self._bloom.encode() if self._bloom is not None else b""
        return SubjectSummary(buffers.of_texts(names), counts, bits, encoded)
