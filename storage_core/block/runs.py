"""Sequence runs of a block: which relative sequence each row has.

Rows are numbered from 0 without holes; sequences may have holes (an imported stream lost messages before we got it).
`SequenceRuns` translates both ways with a binary search over the runs, and a block without holes is one run, for
which everything is arithmetic.
"""

import numpy as np


class SequenceRuns:
    """Relative sequences `[starts[i], ends[i])`: sorted, not empty, not touching, not below 0; at least one run."""

    __slots__ = ("starts", "ends", "_rows", "_is_dense")

    def __init__(self, starts: np.ndarray, ends: np.ndarray) -> None:
        self.starts, self.ends = starts, ends  # int64
        self._rows = np.concatenate(([0], np.cumsum(ends - starts)))  # row at which run i begins; last: row count
        self._is_dense = len(starts) == 1 and int(starts[0]) == 0  # no holes: the row is the sequence

    @property
    def row_count(self) -> int:
        return int(self._rows[-1])

    @property
    def span(self) -> int:
        """Return the end of the last run: relative sequences used are `[0, span)`."""
        return int(self.ends[-1])

    def row_at(self, sequence: int) -> int:
        """Return the first row whose sequence is not below `sequence`; the row count if there is none."""
        if self._is_dense:
            return min(max(0, sequence), self.span)
        run = int(np.searchsorted(self.ends, sequence, side="right"))
        if run == len(self.starts):
            return self.row_count
        return int(self._rows[run]) + max(0, sequence - int(self.starts[run]))

    def sequence_at(self, row: int) -> int:
        """Return the sequence of a row in `[0, row_count)`."""
        if self._is_dense:
            return row
        run = int(np.searchsorted(self._rows, row, side="right")) - 1
        return int(self.starts[run]) + row - int(self._rows[run])

    def sequences(self, first_row: int, end_row: int, base: int = 0) -> np.ndarray:
        """Return `base` + the sequence of each row in `[first_row, end_row)`, int64."""
        if self._is_dense:
            return np.arange(first_row + base, end_row + base, dtype=np.int64)
        first_run = int(np.searchsorted(self._rows, first_row, side="right")) - 1
        end_run = int(np.searchsorted(self._rows, end_row, side="left"))
        if end_run - first_run <= 1:
            shift = base + int(self.starts[first_run]) - int(self._rows[first_run])
            return np.arange(first_row + shift, end_row + shift, dtype=np.int64)
        shifts = self.starts[first_run:end_run] - self._rows[first_run:end_run] + base
        edges = np.clip(self._rows[first_run : end_run + 1], first_row, end_row)
        sequences = np.arange(first_row, end_row, dtype=np.int64)
        sequences += np.repeat(shifts, np.diff(edges))
        return sequences

    def encode(self) -> bytes:
        return self.starts.astype("<i8").tobytes() + self.ends.astype("<i8").tobytes()


def decode_runs(data: bytes) -> SequenceRuns:
    """Return the runs; raises ValueError saying what is wrong with them."""
    if not data or len(data) % 16:
        raise ValueError(f"{len(data)} bytes are no pairs of int64")
    both = np.frombuffer(data, "<i8").astype(np.int64, copy=False)
    starts, ends = both[: len(both) // 2], both[len(both) // 2 :]
    if starts[0] < 0 or (ends <= starts).any() or (starts[1:] <= ends[:-1]).any():
        raise ValueError("runs are empty, overlap, touch or begin below 0")
    return SequenceRuns(starts, ends)


class RunBuilder:
    """Gathers the sequences of a block that is being written."""

    def __init__(self) -> None:
        self.span = 0
        self._closed: list[tuple[np.ndarray, np.ndarray]] = []
        self._start = 0  # the run that may still grow is [_start, span)

    def add_contiguous(self, row_count: int) -> None:
        self.span += row_count

    def add(self, sequences: np.ndarray) -> None:
        """Add ascending relative sequences; raises ValueError if they are not, or not above those before."""
        if int(sequences[0]) < self.span:
            raise ValueError(f"sequences: {int(sequences[0])} comes after {self.span - 1}")
        breaks = np.flatnonzero(np.diff(sequences) != 1) + 1
        if (sequences[breaks] <= sequences[breaks - 1]).any():
            raise ValueError("sequences: not ascending")
        starts = sequences[np.concatenate(([0], breaks))]
        ends = sequences[np.concatenate((breaks - 1, [len(sequences) - 1]))] + 1
        if int(starts[0]) == self.span and self.span > self._start:
            starts[0] = self._start
        elif self.span > self._start:
            self._close(np.array([self._start]), np.array([self.span]))
        self._close(starts[:-1], ends[:-1])
        self._start, self.span = int(starts[-1]), int(ends[-1])

    def finish(self) -> SequenceRuns:
        self._close(np.array([self._start]), np.array([self.span]))
        starts, ends = zip(*self._closed, strict=True)
        return SequenceRuns(np.concatenate(starts), np.concatenate(ends))

    def _close(self, starts: np.ndarray, ends: np.ndarray) -> None:
        if len(starts):
            self._closed.append((starts, ends))
