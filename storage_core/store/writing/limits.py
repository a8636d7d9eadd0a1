"""Limits of a stream: which of its oldest messages are to go, by count, bytes and age.

Limits that discard old messages take them from the stream's beginning, so what goes is everything below one sequence:
the low watermark of a Remove, worked out here once, by the session, and committed. Replicas apply that and decide
nothing. It is proposed in the same round of fsyncs as the append that went over the limit.

Blocks that go as a whole are known from the manifest. Of the block that the new low watermark lies in, and of blocks
that single messages are removed from, sizes or times are read once and kept, so that a stream at its limit, or a work
queue, does not read them again at each append or acknowledgement. Those of larger blocks that this process writes
itself are kept from the start.

max_msgs, max_bytes   the newest messages that fit are kept. With `discard` new nothing goes: appends are refused
max_age               messages go from the first one on, up to the first that is young enough: as in JetStream, one with
                      a time in the future keeps those behind it
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from storage_core import buffers
from storage_core.block.format import ROW_COUNT_MAX
from storage_core.block.runs import SequenceRuns
from storage_core.errors import DataLossError, UnavailableError
from storage_core.metadata.commands import Remove
from storage_core.metadata.config import LIMITS, OLD
from storage_core.metadata.state import StoreState, StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.environment import Environment
from storage_core.store.reading.plan import whole_blocks
from storage_core.store.reading.reading import ReadOptions, ask_block, measured, read_slices
from storage_core.store.reading.slices import BlockSlice, shown_counts
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing.staging import StagedBlock

KEPT_SIZE_MAX = 64 << 20  # bytes of columns of blocks, of all streams; the newest one is kept in any case
KEPT_COUNT_MAX = 1024
REMEMBERED_ROWS_MIN = 1024  # smaller blocks are merged soon
_NOTHING = SequenceSet.empty().encode()
_NONE = np.empty(0, np.int64)
_ROWS_AT_ONCE = 4096
_BLOCKS_AT_ONCE = 64
_RUNS_ONE_BY_ONE = 256
_BLOCKS_KEPT_OF_ONE = 8  # a removal that touches more reads them one after another and keeps nothing


@dataclass(frozen=True, slots=True)
class Excess:
    """What a stream has over its limits: all its messages below a sequence, and single ones behind it."""

    low_watermark: int
    message_count: int
    data_size: int
    sequences: SequenceSet = field(default_factory=SequenceSet.empty)  # over the limits of their subjects
    done_count: int = 0  # besides: messages that retention keeps for nobody
    done_size: int = 0


@dataclass(frozen=True, slots=True)
class _Column:
    """One number of each message of a block, whatever of them is shown; or of the first ones."""

    sequences: SequenceSet
    values: np.ndarray  # parallel to the sequences in ascending order
    is_whole: bool = True

    def of(self, sequences: np.ndarray) -> np.ndarray:
        """Return the numbers of these messages, which are all in the column."""
        starts, ends = self.sequences.starts, self.sequences.ends
        run = np.searchsorted(starts, sequences, side="right") - 1
        numbers: np.ndarray = self.values[(np.cumsum(ends - starts) - ends)[run] + sequences]
        return numbers

    @property
    def nbytes(self) -> int:
        return self.sequences.starts.nbytes + self.sequences.ends.nbytes + self.values.nbytes


class Limits:
    """Works out what is over the limits. One for a store; used under its lock, or for one question without it."""

    def __init__(self, env: Environment) -> None:
        self.env = self._env = env
        self._kept: dict[tuple[bytes, int, _Measure], _Column] = {}  # by block and its first sequence; latest used last
        self._kept_size = 0
        self._written: dict[tuple[bytes, int], tuple[bytes, _Column]] = {}  # by block and first sequence: stream, sizes
        self._written_size = 0

    def remember(self, state: StoreState, incarnation: bytes, blocks: Sequence[StagedBlock], first: int) -> None:
        """Keep the message bytes of blocks that this process has committed from `first` on, if they may be asked for.

        Where there is no room, those before them are kept: they are at the edge sooner.
        """
        stream = state.by_incarnation(incarnation)
        for block in blocks:
            sizes, start = block.sizes, first
            first += block.summary.span
            if sizes is None or len(sizes) < REMEMBERED_ROWS_MIN or stream is None or not _asks_for_sizes(stream):
                continue
            assert len(sizes) == block.summary.span, (len(sizes), block.summary.span)
            sizes = sizes.astype(np.min_scalar_type(sizes.max()))
            if self._has_no_room(sizes):
                self._forget_gone(state)
            if not self._has_no_room(sizes):
                column = _Column(SequenceSet.from_ranges([(start, first)]), sizes)
                self._written[block.summary.block_id, start] = incarnation, column
                self._written_size += column.nbytes

    def _has_no_room(self, sizes: np.ndarray) -> bool:
        return len(self._written) >= KEPT_COUNT_MAX or self._written_size + sizes.nbytes > KEPT_SIZE_MAX

    def _forget_gone(self, state: StoreState) -> None:
        """Forget blocks of which nothing is there any more."""
        for key, (incarnation, column) in list(self._written.items()):
            stream = state.by_incarnation(incarnation)
            if stream is None or int(column.sequences.ends[-1]) <= stream.first_sequence:
                del self._written[key]
                self._written_size -= column.nbytes

    def command(
        self, state: StoreState, stream: StreamState, volumes: Sequence[Volume], now_ns: int | None = None
    ) -> Remove | None:
        """Return what brings the stream back under its limits; None if it is. Without `now_ns` it is now.

        Raises DataLossError, UnavailableError if the block at the edge cannot be read.
        """
        excess = self.excess(state, stream, volumes, now_ns)
        if excess is None:
            return None
        return Remove(stream.incarnation, _NOTHING, excess.data_size, excess.low_watermark, "limits")

    def excess(
        self, state: StoreState, stream: StreamState, volumes: Sequence[Volume], now_ns: int | None = None
    ) -> Excess | None:
        """Return what the stream has over the limits of its configuration; None if nothing. Raises as `command`."""
        config = stream.config
        if not has_removal_limit(stream):
            return None
        asked = _HeadScan(self, state, stream, volumes)
        low_watermark = stream.low_watermark
        if config.discard == OLD:
            if 0 <= config.max_msgs < stream.message_count:
                low_watermark = max(low_watermark, _start_of_newest(stream, config.max_msgs))
            if 0 <= config.max_bytes < stream.data_size:
                low_watermark = max(low_watermark, asked.end_of_bytes(stream.data_size - config.max_bytes))
        if config.max_age:
            until_ns = (self._env.now_ns() if now_ns is None else now_ns) - config.max_age
            low_watermark = max(low_watermark, asked.end_of_old(until_ns))
        if low_watermark <= stream.first_sequence:
            return None
        count = low_watermark - stream.low_watermark - stream.removed.count_in(stream.low_watermark, low_watermark)
        everything = count == stream.message_count
        return Excess(low_watermark, count, stream.data_size if everything else asked.size_below(low_watermark))

    def old(self, state: StoreState, stream: StreamState, volumes: Sequence[Volume], now_ns: int) -> SequenceSet:
        """Return the messages that are over `max_age`. Raises as `command`."""
        if not stream.config.max_age or not has_removal_limit(stream):
            return SequenceSet.empty()
        end = _HeadScan(self, state, stream, volumes).end_of_old(now_ns - stream.config.max_age)
        return stream.shown(stream.low_watermark, end)

    def column(
        self,
        measure: "_Measure",
        state: StoreState,
        stream: StreamState,
        row: np.ndarray,
        volumes: Sequence[Volume],
        row_count: int = ROW_COUNT_MAX,
    ) -> _Column:
        """Return what `measure` makes of the block of this row of the manifest, of its first `row_count` rows at least.

        The first time no more is read than that. Who comes back for more gets all, once.
        """
        key = bytes(row["block_id"][0]), int(row["first"][0]), measure
        if measure is message_sizes_of and key[:2] in self._written:
            return self._written[key[:2]][1]
        column = self._kept.pop(key, None)
        if column is None or not (column.is_whole or len(column.values) >= row_count):
            if column is not None:
                self._kept_size, row_count = self._kept_size - column.nbytes, ROW_COUNT_MAX
            (whole,) = whole_blocks(state, stream, row, volumes)
            column = measure(whole, row_count, self._env)
            self._kept_size += column.nbytes
        self._kept[key] = column
        while len(self._kept) > 1 and (self._kept_size > KEPT_SIZE_MAX or len(self._kept) > KEPT_COUNT_MAX):
            self._kept_size -= self._kept.pop(next(iter(self._kept))).nbytes
        return column

    def size_of(self, state: StoreState, stream: StreamState, removed: SequenceSet, volumes: Sequence[Volume]) -> int:
        """Return the message bytes of these messages, which are shown. Blocks that go as a whole are not read.

        Raises as `command`.
        """
        if len(removed) == stream.message_count:
            return stream.data_size
        near = stream.blocks_in(*removed.bounds)
        rows = stream.blocks.rows[near]
        firsts, ends = rows["first"], rows["first"] + rows["span"]
        touched = np.flatnonzero(removed.touches(firsts, ends))
        gone_counts = (ends - firsts)[touched] - shown_counts(firsts[touched], ends[touched], removed)
        is_whole = gone_counts == rows["row_count"][touched]
        total = int(rows["data_size"][touched[is_whole]].sum())
        partial = touched[~is_whole]
        if len(partial) > _BLOCKS_KEPT_OF_ONE:
            slices = whole_blocks(state, stream, rows[partial], volumes)
            return total + sum(int(sizes.sum()) for _, sizes in measured(slices, removed, self._env))
        for at in partial.tolist():
            column = self.column(message_sizes_of, state, stream, rows[at : at + 1], volumes)
            rows_of, part = (
                SequenceRuns(column.sequences.starts, column.sequences.ends),
                removed.clip(firsts[at], ends[at]),
            )
            if part.run_count > _RUNS_ONE_BY_ONE:
                mask = part.mask(rows_of.sequences(0, rows_of.row_count))
                total += int(column.values[mask].sum(dtype=np.int64))
                continue
            for first, end in part.ranges():
                total += int(column.values[rows_of.row_at(first) : rows_of.row_at(end)].sum(dtype=np.int64))
        return total


class _HeadScan:
    """Questions about the beginning of one state of a stream."""

    def __init__(self, limits: Limits, state: StoreState, stream: StreamState, volumes: Sequence[Volume]) -> None:
        self._limits, self._state, self._stream, self._volumes = limits, state, stream, volumes
        self._rows = rows = stream.blocks.rows
        self._ends = rows["first"] + rows["span"]
        self._unmeasured: list[int] = []  # blocks that are shown in part, of those that were looked at; ascending
        # Bytes that are shown of all blocks before each, and of all, as far as they were looked at; those of
        # unmeasured blocks are not counted yet.
        self._below = np.zeros(1, np.int64)
        if len(rows) and not stream.removed.count_in(int(self._ends[0]), stream.next_sequence):
            # As a rule: at most the first one, in which the low watermark lies, is not shown whole.
            sizes = rows["data_size"].copy()
            sizes[0] = stream.data_size - sizes[1:].sum()
            self._below = np.concatenate(([0], np.cumsum(sizes)))

    def end_of_bytes(self, size: int) -> int:
        """Return the sequence below which the oldest messages of at least so many bytes are."""
        while True:
            if self._unmeasured and self._below[self._unmeasured[0]] < size:
                self._measure()
            elif self._below[-1] < size and len(self._below) <= len(self._rows):
                self._look_on()
            else:
                break
        at = int(np.searchsorted(self._below, size, side="left")) - 1
        if at == len(self._rows):
            return self._stream.next_sequence
        if self._below[at + 1] == size:
            return int(self._ends[at])
        wanted, row = size - int(self._below[at]), self._rows[at]
        # As many rows as have so many bytes, if they are about as large as the others; else all.
        about = int(1.1 * wanted * row["row_count"] / max(1, row["data_size"])) + 1 + self._hidden_rows(at)
        sequences, sizes = self._shown(message_sizes_of, at, about)
        if int(sizes.sum(dtype=np.int64)) < wanted:
            sequences, sizes = self._shown(message_sizes_of, at)
        return sequences.sequence_at(_row_that_reaches(sizes, wanted)) + 1

    def end_of_old(self, until_ns: int) -> int:
        """Return the sequence of the first message that is younger than that."""
        for at in np.flatnonzero(self._rows["time_max_ns"] > until_ns).tolist():
            if self._rows["time_min_ns"][at] > until_ns:
                return int(self._rows["first"][at])
            sequences, times_ns = self._shown(times_of, at)
            young = np.flatnonzero(times_ns > until_ns)
            if len(young):
                return sequences.sequence_at(int(young[0]))
        return self._stream.next_sequence

    def size_below(self, sequence: int) -> int:
        """Return the bytes of the messages that are shown below the sequence."""
        whole = int(np.searchsorted(self._ends, sequence, side="right"))
        while len(self._below) <= whole:
            self._look_on()
        while self._unmeasured and self._unmeasured[0] < whole:
            self._measure()
        total = int(self._below[whole])
        if whole < len(self._rows) and int(self._rows["first"][whole]) < sequence:
            sequences, sizes = self._shown(message_sizes_of, whole, sequence - int(self._rows["first"][whole]))
            total += int(sizes[: sequences.row_at(sequence)].sum(dtype=np.int64))
        return total

    def _look_on(self) -> None:
        """Look at the next blocks, as many as before: removals behind the edge cost nothing."""
        start = len(self._below) - 1
        part = slice(start, max(_BLOCKS_AT_ONCE, 2 * start))
        rows, ends = self._rows[part], self._ends[part]
        firsts = np.maximum(rows["first"], self._stream.low_watermark)
        removed = self._stream.removed.clip(int(firsts[0]), int(ends[-1]))
        is_whole = shown_counts(firsts, ends, removed) == rows["row_count"]
        self._unmeasured += (start + np.flatnonzero(~is_whole)).tolist()
        below = self._below[-1] + np.cumsum(np.where(is_whole, rows["data_size"], 0))
        self._below = np.concatenate((self._below, below))

    def _measure(self) -> None:
        """Count the bytes that are shown of the first block that was not measured yet."""
        at = self._unmeasured.pop(0)
        self._below[at + 1 :] += self._shown(message_sizes_of, at)[1].sum(dtype=np.int64)

    def _hidden_rows(self, at: int) -> int:
        """Return how many rows of a block are not shown, at most."""
        first, end = int(self._rows["first"][at]), int(self._ends[at])
        return max(0, self._stream.low_watermark - first) + self._stream.removed.count_in(first, end)

    def _shown(self, measure: "_Measure", at: int, row_count: int = ROW_COUNT_MAX) -> tuple[SequenceRuns, np.ndarray]:
        """Return the sequences of a block that are shown, and their numbers; of the first `row_count` rows at least."""
        row = self._rows[at : at + 1]
        column = self._limits.column(measure, self._state, self._stream, row, self._volumes, row_count)
        end, rows = int(self._ends[at]), SequenceRuns(column.sequences.starts, column.sequences.ends)
        start = rows.row_at(self._stream.low_watermark)
        shown, values = column.sequences.clip(self._stream.low_watermark, end), column.values[start:]
        removed = self._stream.removed.clip(int(self._rows["first"][at]), end)
        if removed and len(values):
            shown = shown.difference(removed)
            values = values[~removed.mask(rows.sequences(start, rows.row_count))]
        return SequenceRuns(shown.starts, shown.ends), values


def _asks_for_sizes(stream: StreamState) -> bool:
    """Return whether messages of the stream may go one day whose sizes are to be known."""
    return stream.config.retention != LIMITS or has_removal_limit(stream)


def has_removal_limit(stream: StreamState) -> bool:
    """Return whether some limit may take messages of the stream."""
    config = stream.config
    is_limited = bool(config.max_age) or (config.discard == OLD and (config.max_msgs >= 0 or config.max_bytes >= 0))
    return is_limited and not config.sealed and stream.message_count > 0


def _start_of_newest(stream: StreamState, count: int) -> int:
    """Return the sequence from which on the newest `count` messages are; there are more than that."""
    return int(stream.shown_head(stream.low_watermark, stream.message_count - count).ends[-1])


def message_sizes_of(block: BlockSlice, row_count: int, env: Environment) -> _Column:
    """Return the message bytes of each row of a block, of the first `row_count` at least."""
    try:
        known = ask_block(block, lambda reader: reader.message_sizes(row_count), env)
    except (DataLossError, UnavailableError):
        known = None  # perhaps it was merged just now: reading it follows, or says what is wrong
    if known is None:
        return _joined(measured([block], None, env))
    runs, sizes = known
    sequences = SequenceSet(runs.starts + block.block_first, runs.ends + block.block_first)
    is_whole = len(sizes) == runs.row_count
    return _Column(sequences if is_whole else sequences.head(len(sizes)), sizes, is_whole)


def times_of(block: BlockSlice, row_count: int, env: Environment) -> _Column:
    """Return the time of each row of a whole block, in nanoseconds."""
    batches = read_slices([block], ReadOptions(("sequence", "timestamp_ns")), env=env)
    return _joined(tuple(buffers.numbers(column) for column in batch.columns) for batch in batches)


def _joined(parts: Iterable[tuple[np.ndarray, ...]]) -> _Column:
    sequences, values = zip((_NONE, _NONE), *parts, strict=True)
    return _Column(SequenceSet.from_sequences(np.concatenate(sequences)), np.concatenate(values))


def _row_that_reaches(sizes: np.ndarray, size: int) -> int:
    """Return the first row up to and with which there are so many bytes.

    Summed in pieces: new memory is what a sum costs.
    """
    below = 0
    for row in range(0, len(sizes), _ROWS_AT_ONCE):
        ends = below + np.cumsum(sizes[row : row + _ROWS_AT_ONCE], dtype=np.int64)
        if ends[-1] >= size:
            return row + int(np.searchsorted(ends, size, side="left"))
        below = int(ends[-1])
    return len(sizes) - 1


_Measure = Callable[[BlockSlice, int, Environment], _Column]
