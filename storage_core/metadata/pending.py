"""Pending messages of a consumer: handed out, and not acknowledged yet.

Withheld ones are among them, with no deliveries: a fetch has come to them and no copy of them can be read now. Nobody
has declared them lost, so they wait until one can be read, and the consumer goes on behind them.

One row for neighbouring sequences that were handed out equally often and are due at the same time; rows are sorted and
disjoint, and neighbours that say the same are one row. Half a million messages may wait in as many rows, so the rows
lie in chunks that successors share: an acknowledgement replaces the chunks that it touches and their neighbours, and
costs the same whatever waits elsewhere. Where chunks begin and end depends on what came before, the rows do not.

    row_count    u32
    columns      deflated: gap to the end of the row before (i64 a row), messages (i64), change of the deadline from
                 the row before (i64, wrapping), deliveries (i32)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from storage_core.deflated import deflate, inflate
from storage_core.errors import CorruptionError
from storage_core.sequences import SEQUENCE_MAX, SequenceSet, distinct

PENDING_DTYPE = np.dtype(
    [
        ("first", "<i8"),
        ("end", "<i8"),
        ("deadline_ns", "<i8"),  # from then on they are handed out again
        ("deliveries", "<i4"),  # times that they were handed out; 0: withheld
    ]
)
CHUNK_ROWS_MAX = 512


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows, at least one, and what they come to."""

    rows: np.ndarray
    first: int
    end: int
    message_count: int
    withheld_count: int  # of these
    deadline_ns: int  # the first of them

    @classmethod
    def of(cls, rows: np.ndarray) -> "_Chunk":
        rows.flags.writeable = False
        first, end = rows["first"], rows["end"]
        lengths = end - first
        withheld_count = int(lengths[rows["deliveries"] == 0].sum())
        return cls(
            rows, int(first[0]), int(end[-1]), int(lengths.sum()), withheld_count, int(rows["deadline_ns"].min())
        )


class PendingMessages:
    """Messages that wait for their acknowledgement. A value: a change makes another one."""

    __slots__ = ("_chunks", "_ends", "_firsts", "message_count", "withheld_count")
    message_count: int
    withheld_count: int  # of these

    def __init__(self, chunks: Sequence[_Chunk] = ()) -> None:
        self._chunks = tuple(chunks)
        self._firsts = np.array([chunk.first for chunk in chunks], np.int64)
        self._ends = np.array([chunk.end for chunk in chunks], np.int64)
        self.message_count = sum([chunk.message_count for chunk in chunks])
        self.withheld_count = sum([chunk.withheld_count for chunk in chunks])

    @classmethod
    def of(cls, *tables: np.ndarray) -> "PendingMessages":
        """Return disjoint rows, in any order, as pending messages."""
        return cls(list(_chunks_of(_joined(np.concatenate(tables)))))

    def __len__(self) -> int:
        """Return the number of rows (not of messages)."""
        return sum(len(chunk.rows) for chunk in self._chunks)

    def __bool__(self) -> bool:
        return bool(self._chunks)

    @property
    def first_sequence(self) -> int:
        """Return the first message that waits; SEQUENCE_MAX if none does."""
        return int(self._firsts[0]) if self._chunks else SEQUENCE_MAX

    @property
    def rows(self) -> np.ndarray:
        """Return all rows, PENDING_DTYPE; costs what waits."""
        return np.concatenate([np.empty(0, PENDING_DTYPE), *(chunk.rows for chunk in self._chunks)])

    def within(self, sequences: SequenceSet) -> np.ndarray:
        """Return the parts of the rows whose sequences are in the set."""
        touched = [self._chunks[at].rows for at in self._touched(sequences)]
        return _within(np.concatenate([np.empty(0, PENDING_DTYPE), *touched]), sequences)

    @property
    def handed_out_count(self) -> int:
        return self.message_count - self.withheld_count

    def withheld(self) -> SequenceSet:
        """Return the messages that are withheld."""
        chunks = [chunk.rows[chunk.rows["deliveries"] == 0] for chunk in self._chunks if chunk.withheld_count]
        return pending_set(np.concatenate([np.empty(0, PENDING_DTYPE), *chunks]))

    def due(self, now_ns: int) -> np.ndarray:
        """Return the rows whose deadline has come."""
        chunks = [chunk.rows for chunk in self._chunks if chunk.deadline_ns <= now_ns]
        rows = np.concatenate([np.empty(0, PENDING_DTYPE), *chunks])
        return rows[rows["deadline_ns"] <= now_ns]

    def put(self, sequences: SequenceSet, rows: np.ndarray) -> "PendingMessages":
        """Return a copy in which `rows`, disjoint and of `sequences`, replace all that is pending among these."""
        if not sequences:
            return self
        if not self._chunks:
            return PendingMessages.of(rows)
        touched = self._touched(sequences)
        near = distinct(np.concatenate((touched - 1, touched, touched + 1)))  # neighbours: rows may become one
        near = near[(near >= 0) & (near < len(self._chunks))]
        before = np.concatenate([self._chunks[at].rows for at in near])
        made = _joined(np.concatenate((_within(before, sequences.complement()), rows)))
        chunks: list[_Chunk] = []
        at = start = 0
        for group in np.split(near, np.flatnonzero(np.diff(near) > 1) + 1):
            chunks += self._chunks[at : group[0]]
            at = int(group[-1]) + 1
            # What lies before the next chunk that stays belongs here.
            end = int(np.searchsorted(made["first"], self._firsts[at])) if at < len(self._chunks) else len(made)
            chunks += _chunks_of(made[start:end])
            start = end
        return PendingMessages([*chunks, *self._chunks[at:]])

    def _touched(self, sequences: SequenceSet) -> np.ndarray:
        """Return the positions of the chunks in which sequences of the set are, or would be."""
        if not self._chunks:
            return np.empty(0, np.int64)
        low = np.searchsorted(self._ends, sequences.starts, side="right")
        high = np.searchsorted(self._firsts, sequences.ends, side="left")
        low = np.minimum(low, len(self._chunks) - 1)  # behind all: the last one takes it
        counts = np.maximum(high - low, 1)
        runs = np.repeat(low - (np.cumsum(counts) - counts), counts)
        return distinct(runs + np.arange(len(runs)))

    def moved(self, back_ns: int) -> "PendingMessages":
        """Return the same messages, due so much earlier."""
        rows = self.rows
        rows["deadline_ns"] -= back_ns
        return PendingMessages.of(rows)

    def encode(self) -> bytes:
        rows = self.rows
        gaps = rows["first"] - np.concatenate(([0], rows["end"][:-1])) if len(rows) else rows["first"]
        changes = np.diff(rows["deadline_ns"], prepend=np.int64(0))
        columns = (gaps, rows["end"] - rows["first"], changes, rows["deliveries"])
        return deflate(len(rows), b"".join(column.tobytes() for column in columns))


def decode_pending(encoded: bytes) -> PendingMessages:
    """Return the messages; raises CorruptionError. Never inflates beyond what the bytes declare."""
    row_count, raw = inflate(encoded, PENDING_DTYPE.itemsize, "table of pending messages")
    gaps, lengths, changes = np.frombuffer(raw[: 24 * row_count], "<i8").reshape(3, row_count)
    rows = np.empty(row_count, PENDING_DTYPE)
    rows["end"] = np.cumsum(gaps + lengths)
    rows["first"] = rows["end"] - lengths
    rows["deadline_ns"], rows["deliveries"] = np.cumsum(changes), np.frombuffer(raw[24 * row_count :], "<i4")
    ends = np.concatenate(([0], rows["end"]))
    if (lengths <= 0).any() or (gaps < 0).any() or (np.diff(ends) <= 0).any():
        raise CorruptionError("pending messages are not in order")
    return PendingMessages.of(rows)


def pending_rows(sequences: SequenceSet, deadline_ns: int, deliveries: int) -> np.ndarray:
    """Return the rows of messages that were handed out together."""
    rows = np.zeros(sequences.run_count, PENDING_DTYPE)
    rows["first"], rows["end"] = sequences.starts, sequences.ends
    rows["deadline_ns"], rows["deliveries"] = deadline_ns, deliveries
    return rows


def pending_set(rows: np.ndarray) -> SequenceSet:
    return SequenceSet.from_columns(rows["first"], rows["end"])


def _within(rows: np.ndarray, sequences: SequenceSet) -> np.ndarray:
    low = np.searchsorted(sequences.ends, rows["first"], side="right")
    high = np.searchsorted(sequences.starts, rows["end"], side="left")
    counts = np.maximum(high - low, 0)
    which = np.repeat(np.arange(len(rows)), counts)
    run = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts) + low[which]
    parts: np.ndarray = rows[which]
    parts["first"] = np.maximum(parts["first"], sequences.starts[run])
    parts["end"] = np.minimum(parts["end"], sequences.ends[run])
    return parts


def _joined(rows: np.ndarray) -> np.ndarray:
    """Return disjoint rows sorted; neighbours that say the same are one row."""
    rows = rows[np.argsort(rows["first"], kind="stable")]
    if len(rows) > 1:
        same = rows["first"][1:] == rows["end"][:-1]
        for name in ("deadline_ns", "deliveries"):
            same &= rows[name][1:] == rows[name][:-1]
        heads = np.flatnonzero(np.concatenate(([True], ~same)))
        ends = rows["end"][np.concatenate((heads[1:] - 1, [len(rows) - 1]))]
        rows = rows[heads]
        rows["end"] = ends
    return rows


def _chunks_of(rows: np.ndarray) -> Iterator[_Chunk]:
    if len(rows):
        for part in np.array_split(rows, -(-len(rows) // CHUNK_ROWS_MAX)):
            yield _Chunk.of(part.copy())
