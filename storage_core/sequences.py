"""SequenceSet: an immutable set of sequences, kept as sorted disjoint runs in two int64 arrays.

Removed messages, lost ranges and the sequences inside a block are such sets. They are small when removals come in
runs, and their encoded form (docs/formats/sequence-set.md) is deflated, so that a set of a million scattered
sequences is about a bitmap's size. Set operations are vectorised, and only runs where both sets lie are looked at; the
others are shared or copied.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from storage_core.deflated import deflate, inflate
from storage_core.errors import CorruptionError
from storage_core.quantities import whole_number

SEQUENCE_MAX = 2**63 - 2  # the end of the last run, one above it, has to be an int64


def check_sequence(name: str, value: object) -> int:
    """Return a sequence as an int; raises ValueError for anything else. Negative ones do not count from the end."""
    sequence = whole_number(value)
    if sequence is None or not 1 <= sequence <= SEQUENCE_MAX:
        came = value if sequence is None else sequence
        raise ValueError(f"{name}: {came!r} is not a sequence; sequences are whole numbers from 1 to {SEQUENCE_MAX}")
    return sequence


class SequenceSet:
    """Sequences in `[starts[i], ends[i])`; runs are sorted, not empty and do not touch."""

    __slots__ = ("starts", "ends")

    def __init__(self, starts: np.ndarray, ends: np.ndarray) -> None:
        self.starts, self.ends = starts, ends

    @classmethod
    def empty(cls) -> "SequenceSet":
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def from_ranges(cls, ranges: Iterable[tuple[int, int]]) -> "SequenceSet":
        """Return the union of half-open ranges, in any order, overlapping or not."""
        table = np.array([(first, end) for first, end in ranges if end > first], np.int64).reshape(-1, 2)
        return _normal(table[:, 0], table[:, 1])

    @classmethod
    def from_columns(cls, starts: np.ndarray, ends: np.ndarray) -> "SequenceSet":
        """Return the union of half-open ranges given as columns, none of them empty, in any order, touching or not."""
        return _normal(np.asarray(starts, np.int64), np.asarray(ends, np.int64))

    @classmethod
    def from_sequences(cls, sequences: Iterable[int] | np.ndarray) -> "SequenceSet":
        """Return the set of these sequences, in any order, repeated or not. Raises ValueError above SEQUENCE_MAX."""
        listed = sequences if isinstance(sequences, np.ndarray) else list(sequences)
        try:
            values = np.asarray(listed, np.int64)
        except OverflowError as error:
            raise ValueError(f"sequences above {SEQUENCE_MAX} cannot be in a set") from error
        if not len(values):
            return cls.empty()
        values = distinct(values)
        if values[-1] > SEQUENCE_MAX:
            raise ValueError(f"sequence {values[-1]} cannot be in a set, which ends at {SEQUENCE_MAX}")
        breaks = np.flatnonzero(np.diff(values) != 1) + 1
        starts = values[np.concatenate(([0], breaks))]
        ends = values[np.concatenate((breaks - 1, [len(values) - 1]))] + 1
        return cls(starts, ends)

    @classmethod
    def from_parts(cls, parts: Iterable[np.ndarray]) -> "SequenceSet":
        """Return the set of the sequences of several arrays, or of none."""
        return cls.from_sequences(np.concatenate([np.empty(0, np.int64), *parts]))

    # --- questions

    def __len__(self) -> int:
        """Return the number of sequences (not of runs)."""
        return int((self.ends - self.starts).sum())

    def __bool__(self) -> bool:
        return len(self.starts) > 0

    def __contains__(self, sequence: int) -> bool:
        at = int(np.searchsorted(self.starts, sequence, side="right")) - 1
        return at >= 0 and sequence < int(self.ends[at])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SequenceSet):
            return NotImplemented
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.ends, other.ends)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"[{first}, {end})" for first, end in self.ranges_head(5))
        return f"SequenceSet({len(self)} in {len(self.starts)} runs: {shown}{', ...' if len(self.starts) > 5 else ''})"

    @property
    def run_count(self) -> int:
        return len(self.starts)

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the range from the first sequence to behind the last one; there must be some."""
        return int(self.starts[0]), int(self.ends[-1])

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the half-open runs in order."""
        return zip(self.starts.tolist(), self.ends.tolist(), strict=True)

    def ranges_head(self, count: int) -> list[tuple[int, int]]:
        return list(zip(self.starts[:count].tolist(), self.ends[:count].tolist(), strict=True))

    def mask(self, sequences: np.ndarray) -> np.ndarray:
        """Return, element by element, whether the sequence is in the set."""
        at = np.searchsorted(self.starts, sequences, side="right") - 1
        if not len(self.starts):
            return np.zeros(len(sequences), bool)
        return (at >= 0) & (sequences < self.ends[np.maximum(at, 0)])

    def touches(self, firsts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return, range by range, whether sequences of the set lie in `[first, end)`, which is not empty."""
        after: np.ndarray = np.searchsorted(self.starts, ends, side="left")
        return np.searchsorted(self.ends, firsts, side="right") < after

    def count_in(self, first: int, end: int) -> int:
        """Return how many sequences of the set lie in `[first, end)`."""
        return len(self.clip(first, end))

    # --- operations

    def clip(self, first: int, end: int) -> "SequenceSet":
        """Return the part inside `[first, end)`."""
        lo = int(np.searchsorted(self.ends, first, side="right"))
        hi = int(np.searchsorted(self.starts, end, side="left"))
        if lo >= hi or first >= end:
            return SequenceSet.empty()
        starts, ends = self.starts[lo:hi], self.ends[lo:hi]  # shared, but where a run is cut
        if starts[0] < first:
            starts = np.concatenate(([first], starts[1:]))
        if ends[-1] > end:
            ends = np.concatenate((ends[:-1], [end]))
        return SequenceSet(starts, ends)

    def head(self, count: int) -> "SequenceSet":
        """Return the lowest `count` sequences, all of them if there are fewer."""
        if count <= 0 or not self:
            return SequenceSet.empty()
        upto = np.cumsum(self.ends[:count] - self.starts[:count])  # so many runs have enough, if all do
        last = int(np.searchsorted(upto, count))
        if last == len(upto):
            return self
        ends = self.ends[: last + 1].copy()
        ends[last] -= upto[last] - count
        return SequenceSet(self.starts[: last + 1], ends)

    def tail(self, count: int) -> "SequenceSet":
        """Return the highest `count` sequences, all of them if there are fewer."""
        if count <= 0 or not self:
            return SequenceSet.empty()
        upto = np.cumsum((self.ends - self.starts)[: -count - 1 : -1])
        last = int(np.searchsorted(upto, count))
        if last == len(upto):
            return self
        starts = self.starts[-last - 1 :].copy()
        starts[0] += upto[last] - count
        return SequenceSet(starts, self.ends[-last - 1 :])

    def union(self, other: "SequenceSet") -> "SequenceSet":
        if not other:
            return self
        if not self:
            return other
        if len(self.starts) < len(other.starts):
            return other.union(self)
        lo = int(np.searchsorted(self.ends, other.starts[0], side="left"))
        hi = max(lo, int(np.searchsorted(self.starts, other.ends[-1], side="right")))
        starts = np.concatenate((self.starts[lo:hi], other.starts))
        return self._replaced(lo, hi, _normal(starts, np.concatenate((self.ends[lo:hi], other.ends))))

    def difference(self, other: "SequenceSet") -> "SequenceSet":
        """Return the sequences that are here and not in `other`."""
        if not self:
            return self
        other = other.clip(*self.bounds)
        if not other:
            return self
        lo = int(np.searchsorted(self.ends, other.starts[0], side="right"))
        hi = int(np.searchsorted(self.starts, other.ends[-1], side="left"))
        if hi <= lo:
            return self
        if hi - lo > 1:
            left = SequenceSet(self.starts[lo:hi], self.ends[lo:hi]).intersection(other.complement())
        else:  # what lies between the runs of the other one
            other = other.clip(int(self.starts[lo]), int(self.ends[lo]))
            starts = np.concatenate((self.starts[lo:hi], other.ends))
            ends = np.concatenate((other.starts, self.ends[lo:hi]))
            keep = ends > starts
            left = SequenceSet(starts[keep], ends[keep])
        return self._replaced(lo, hi, left)

    def _replaced(self, lo: int, hi: int, middle: "SequenceSet") -> "SequenceSet":
        """Return the set with other runs in place of runs `[lo, hi)`: as a rule few, in the middle of many."""
        if lo == 0 and hi == len(self.starts):
            return middle
        return SequenceSet(
            np.concatenate((self.starts[:lo], middle.starts, self.starts[hi:])),
            np.concatenate((self.ends[:lo], middle.ends, self.ends[hi:])),
        )

    def intersection(self, other: "SequenceSet") -> "SequenceSet":
        if not self or not other:
            return SequenceSet.empty()
        if len(self.starts) < len(other.starts):
            return other.intersection(self)
        # Each run of the smaller set meets some neighbouring runs of the larger one: [lo, hi).
        lo = np.searchsorted(self.ends, other.starts, side="right")
        counts = np.maximum(np.searchsorted(self.starts, other.ends, side="left") - lo, 0)
        at = np.repeat(lo - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        starts = np.maximum(self.starts[at], np.repeat(other.starts, counts))
        return SequenceSet(starts, np.minimum(self.ends[at], np.repeat(other.ends, counts)))

    def complement(self) -> "SequenceSet":
        """Return every int64 sequence that is not in the set."""
        low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
        starts = np.concatenate(([low], self.ends))
        ends = np.concatenate((self.starts, [high]))
        keep = ends > starts
        return SequenceSet(starts[keep], ends[keep])

    # --- bytes

    def encode(self) -> bytes:
        """Return run count (u32), then deflated int64 pairs: distance to the last end, length."""
        gaps = self.starts - np.concatenate(([0], self.ends[:-1])) if self else self.starts
        pairs = np.stack((gaps, self.ends - self.starts), axis=1).astype("<i8") if self else self.starts
        return deflate(len(self.starts), pairs.tobytes())

    @classmethod
    def decode(cls, encoded: bytes | memoryview) -> "SequenceSet":
        """Return the set; raises CorruptionError if the bytes are not one. Never inflates beyond what it declares."""
        run_count, raw = inflate(encoded, 16, "sequence set")
        pairs = np.frombuffer(raw, "<i8").reshape(-1, 2)
        if run_count and ((pairs[:, 1] <= 0).any() or (pairs[1:, 0] <= 0).any()):
            raise CorruptionError("sequence set has runs that are empty, overlap or touch")
        ends = np.cumsum(pairs.sum(axis=1))
        if run_count and ((ends <= 0).any() or (np.diff(ends) <= 0).any() or pairs[0, 0] < 0):
            raise CorruptionError("sequence set overflows")
        return cls((ends - pairs[:, 1]).astype(np.int64), ends.astype(np.int64))


def distinct(values: np.ndarray) -> np.ndarray:
    """Return the values ascending, each once; `np.unique` hashes integers, which takes twenty times as long."""
    if (values[1:] > values[:-1]).all():
        return values
    ordered = np.sort(values, axis=None)
    changes: np.ndarray = ordered[1:] != ordered[:-1]
    return np.concatenate((ordered[:1], ordered[1:][changes]))


def _normal(starts: np.ndarray, ends: np.ndarray) -> SequenceSet:
    """Return the union of non-empty runs given in any order."""
    if not len(starts):
        return SequenceSet.empty()
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    heads = np.concatenate(([True], starts[1:] > reach[:-1]))
    lasts = np.concatenate((np.flatnonzero(heads)[1:] - 1, [len(starts) - 1]))
    return SequenceSet(starts[heads], reach[lasts])
