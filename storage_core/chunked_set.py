"""ChunkedSet: an immutable set of sequences of which a change costs what it touches, however large the set is.

A work queue, a limit for each subject and a TTL remove messages one by one, anywhere in a stream. In one SequenceSet of
a million runs each of these would copy all runs. Here the runs lie in chunks that successors share: a chunk has the
runs that begin in one window of CHUNK_SPAN sequences, however far they reach. So a change copies one chunk, as a rule,
and a long run is one run in one chunk. Which chunks there are follows from the set alone: equal sets have equal chunks,
on every replica, whatever came before.

Encoded it is the list of its chunks (docs/formats/snapshot.md), each encoded once, until it changes.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from storage_core.errors import CorruptionError
from storage_core.sequences import SequenceSet

CHUNK_SPAN_BITS = 15
CHUNK_SPAN = 1 << CHUNK_SPAN_BITS  # sequences: a chunk has half as many runs at most, 256 KiB


class _Chunk:
    """Runs that begin in one window, at least one."""

    __slots__ = ("_encoded", "runs")

    def __init__(self, runs: SequenceSet, encoded: bytes = b"") -> None:
        self.runs, self._encoded = runs, encoded

    def encode(self) -> bytes:
        if not self._encoded:
            self._encoded = self.runs.encode()
        return self._encoded


class ChunkedSet:
    """A value: a change makes another one. What concerns few sequences is a SequenceSet."""

    __slots__ = ("_chunks", "_counts", "_ends", "_firsts")

    def __init__(self, chunks: Sequence[_Chunk], firsts: np.ndarray, ends: np.ndarray, counts: np.ndarray) -> None:
        """Columns by chunk: start of the first run, end of the last one, sequences."""
        self._chunks, self._firsts, self._ends, self._counts = chunks, firsts, ends, counts

    @classmethod
    def empty(cls) -> "ChunkedSet":
        return _EMPTY

    @classmethod
    def of(cls, sequences: SequenceSet) -> "ChunkedSet":
        return cls._of_chunks(list(_cut(sequences)))

    @classmethod
    def _of_chunks(cls, chunks: Sequence[_Chunk]) -> "ChunkedSet":
        firsts = np.array([chunk.runs.starts[0] for chunk in chunks], np.int64)
        ends = np.array([chunk.runs.ends[-1] for chunk in chunks], np.int64)
        return cls(chunks, firsts, ends, np.array([len(chunk.runs) for chunk in chunks], np.int64))

    # --- questions

    def __len__(self) -> int:
        """Return the number of sequences."""
        return int(self._counts.sum())

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __contains__(self, sequence: int) -> bool:
        at = int(np.searchsorted(self._firsts, sequence, side="right")) - 1
        return at >= 0 and sequence in self._chunks[at].runs

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChunkedSet):
            return NotImplemented
        return len(self._chunks) == len(other._chunks) and all(
            chunk is two or chunk.runs == two.runs for chunk, two in zip(self._chunks, other._chunks, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ChunkedSet({self.whole()!r})"

    @property
    def first_run(self) -> tuple[int, int]:
        """Return the first run, half open; the set is not empty."""
        runs = self._chunks[0].runs
        return int(runs.starts[0]), int(runs.ends[0])

    @property
    def last_run(self) -> tuple[int, int]:
        """Return the last run, half open; the set is not empty."""
        runs = self._chunks[-1].runs
        return int(runs.starts[-1]), int(runs.ends[-1])

    def whole(self) -> SequenceSet:
        """Return the set as one; costs what it holds."""
        return _joined(self._chunks)

    def clip(self, first: int, end: int) -> SequenceSet:
        """Return the part inside `[first, end)`."""
        lo, hi = self._places(first, end)
        return _joined(self._chunks[lo:hi]).clip(first, end)

    def count_in(self, first: int, end: int) -> int:
        """Return how many sequences of the set lie in `[first, end)`."""
        lo, hi = self._places(first, end)
        if hi - lo <= 2:
            return sum(chunk.runs.count_in(first, end) for chunk in self._chunks[lo:hi])
        edges = (self._chunks[lo], self._chunks[hi - 1])
        return int(self._counts[lo + 1 : hi - 1].sum()) + sum(edge.runs.count_in(first, end) for edge in edges)

    def within(self, sequences: SequenceSet) -> SequenceSet:
        """Return those of the sequences that are in the set."""
        return sequences.intersection(_joined(list(self._touched(sequences))))

    def absent_among(self, sequences: SequenceSet) -> SequenceSet:
        """Return those of the sequences that are not in the set."""
        return sequences.difference(self.within(sequences))

    def run_ends(self, sequences: np.ndarray) -> np.ndarray:
        """Return for each sequence, ascending, where the run ends that it is in; itself if it is in none."""
        ends = sequences.copy()
        places = np.searchsorted(self._firsts, sequences, side="right") - 1
        breaks = np.flatnonzero(np.diff(places)) + 1
        for start, stop in zip((0, *breaks.tolist()), (*breaks.tolist(), len(places)), strict=True):
            if start < stop and places[start] >= 0:
                runs = self._chunks[places[start]].runs
                at = np.searchsorted(runs.starts, sequences[start:stop], side="right") - 1
                ends[start:stop] = np.maximum(sequences[start:stop], runs.ends[at])
        return ends

    def _places(self, first: int, end: int) -> tuple[int, int]:
        """Return which chunks have runs in `[first, end)`."""
        lo = int(np.searchsorted(self._ends, first, side="right"))
        return lo, max(lo, int(np.searchsorted(self._firsts, end, side="left")))

    def _touched(self, sequences: SequenceSet) -> Iterator[_Chunk]:
        """Yield the chunks that may have some of the sequences, in order."""
        lo = np.searchsorted(self._ends, sequences.starts, side="right")
        hi = np.searchsorted(self._firsts, sequences.ends, side="left")
        has_chunks = hi > lo
        for start, stop in SequenceSet.from_columns(lo[has_chunks], hi[has_chunks]).ranges():
            yield from self._chunks[start:stop]

    # --- operations

    def union(self, sequences: SequenceSet) -> "ChunkedSet":
        """Return the set with these sequences, too. Chunks that they neither lie in nor touch are shared."""
        if not sequences:
            return self
        if not self._chunks:
            return ChunkedSet.of(sequences)
        # A run may reach into its window from the chunk before, and become one with a run that begins at its end.
        lo = np.searchsorted(self._ends, sequences.starts, side="left")
        lo = np.minimum(lo, np.searchsorted(_windows(self._firsts), _windows(sequences.starts), side="left"))
        hi = np.searchsorted(_windows(self._firsts), _windows(sequences.ends), side="right")
        heads = np.flatnonzero(np.concatenate(([True], lo[1:] > np.maximum.accumulate(hi)[:-1])))
        chunks: list[_Chunk] = []
        columns: list[tuple[np.ndarray, ...]] = []
        at = 0
        for start, stop in zip(heads.tolist(), (*heads[1:].tolist(), len(lo)), strict=True):
            first, end = int(lo[start]), int(hi[start:stop].max())
            group = SequenceSet(sequences.starts[start:stop], sequences.ends[start:stop])
            made = ChunkedSet.of(_joined(self._chunks[first:end]).union(group))
            chunks += (*self._chunks[at:first], *made._chunks)
            columns += (self._columns(at, first), made._columns(0, len(made._chunks)))
            at = end
        chunks += self._chunks[at:]
        columns.append(self._columns(at, len(self._chunks)))
        return ChunkedSet(chunks, *map(np.concatenate, zip(*columns, strict=True)))

    def since(self, first: int) -> "ChunkedSet":
        """Return the part at and above `first`."""
        if not self._chunks or self._firsts[0] >= first:
            return self
        lo = int(np.searchsorted(self._ends, first, side="right"))
        # The chunk that is cut may begin in the next one's window now, so both are cut anew.
        hi = min(lo + 2, len(self._chunks))
        head = ChunkedSet.of(_joined(self._chunks[lo:hi]).clip(first, int(self._ends[-1])))
        columns = head._columns(0, len(head._chunks)), self._columns(hi, len(self._chunks))
        return ChunkedSet([*head._chunks, *self._chunks[hi:]], *map(np.concatenate, zip(*columns, strict=True)))

    def _columns(self, lo: int, hi: int) -> tuple[np.ndarray, ...]:
        return self._firsts[lo:hi], self._ends[lo:hi], self._counts[lo:hi]

    # --- bytes

    def encode(self) -> tuple[bytes, ...]:
        """Return the chunks in order, each as SequenceSet encodes it."""
        return tuple(chunk.encode() for chunk in self._chunks)

    @classmethod
    def decode(cls, encoded: Sequence[bytes]) -> "ChunkedSet":
        """Return the set; raises CorruptionError if these are not its chunks."""
        chunks = [_Chunk(SequenceSet.decode(data), data) for data in encoded]
        if not all(chunk.runs for chunk in chunks):
            raise CorruptionError("a chunk of a sequence set has no runs")
        made = cls._of_chunks(chunks)
        windows = _windows(made._firsts)
        lasts = _windows(np.array([chunk.runs.starts[-1] for chunk in chunks], np.int64))
        if (
            (windows != lasts).any()
            or (windows[1:] <= windows[:-1]).any()
            or (made._firsts[1:] <= made._ends[:-1]).any()
        ):
            raise CorruptionError("chunks of a sequence set overlap, touch, or have runs of other windows")
        return made


def _windows(sequences: np.ndarray) -> np.ndarray:
    windows: np.ndarray = sequences >> CHUNK_SPAN_BITS
    return windows


def _cut(sequences: SequenceSet) -> Iterator[_Chunk]:
    """Yield the chunks of a set. Each has memory of its own, so that none keeps that of all."""
    if not sequences:
        return
    breaks = (np.flatnonzero(np.diff(_windows(sequences.starts))) + 1).tolist()
    if not breaks:
        yield _Chunk(sequences)
        return
    for start, stop in zip((0, *breaks), (*breaks, sequences.run_count), strict=True):
        yield _Chunk(SequenceSet(sequences.starts[start:stop].copy(), sequences.ends[start:stop].copy()))


def _joined(chunks: Sequence[_Chunk]) -> SequenceSet:
    if len(chunks) < 2:
        return chunks[0].runs if chunks else SequenceSet.empty()
    return SequenceSet(
        np.concatenate([chunk.runs.starts for chunk in chunks]), np.concatenate([chunk.runs.ends for chunk in chunks])
    )


_EMPTY = ChunkedSet.of(SequenceSet.empty())
