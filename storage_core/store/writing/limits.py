"""Limits of a stream: which of its oldest messages are to go, by count, bytes and age.

Limits that discard old messages take them from the stream's beginning, so what goes is everything below one sequence:
the low watermark of a Remove, worked out here once, by the session, and committed. Replicas apply that and decide
nothing. It is proposed in the same round of fsyncs as the append that went over the limit.

Blocks that go as a whole are known from the manifest. The block that the new low watermark lies in is read once and
kept as three columns, so that a stream at its limit does not read it again at each append.

max_msgs, max_bytes   the newest messages that fit are kept. With `discard` new nothing goes: appends are refused
max_age               messages go from the first one on, up to the first that is young enough: as in JetStream, one with
                      a time in the future keeps those behind it
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storage_core import buffers
from storage_core.block.sizing import message_sizes
from storage_core.metadata.commands import Remove
from storage_core.metadata.config import OLD
from storage_core.metadata.state import StoreState, StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.environment import Environment
from storage_core.store.reading.plan import ReadRequest, plan_stream
from storage_core.store.reading.reading import ReadOptions, read_slices
from storage_core.store.volume.volumes import Volume

KEPT_SIZE_MAX = 64 << 20  # bytes of columns of blocks at the edge, of all streams; the newest one is kept in any case
_NOTHING = SequenceSet.empty().encode()


@dataclass(frozen=True, slots=True)
class Excess:
    """What a stream has over its limits: all its messages below a sequence."""

    low_watermark: int
    message_count: int
    data_size: int


@dataclass(frozen=True, slots=True)
class _Columns:
    """The messages of one block that were shown when it was read: those that were removed since are among them."""

    sequences: np.ndarray
    times_ns: np.ndarray
    sizes: np.ndarray
    sizes_below: np.ndarray  # sum of the sizes before each, and of all at the end

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in (self.sequences, self.times_ns, self.sizes, self.sizes_below))


class Limits:
    """Works out what is over the limits. One for a store; used under its lock, or for one question without it."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._kept: dict[bytes, tuple[bytes, _Columns]] = {}  # by incarnation: block id, columns; latest used last

    def command(self, state: StoreState, stream: StreamState, volumes: Sequence[Volume]) -> Remove | None:
        """Return what brings the stream back under its limits; None if it is.

        Raises DataLossError, UnavailableError if the block at the edge cannot be read.
        """
        excess = self.excess(state, stream, volumes)
        if excess is None:
            return None
        return Remove(stream.incarnation, _NOTHING, excess.data_size, excess.low_watermark, "limits")

    def excess(self, state: StoreState, stream: StreamState, volumes: Sequence[Volume]) -> Excess | None:
        """Return what the stream has over the limits of its configuration; None if nothing. Raises as `command`."""
        config = stream.config
        if not may_go(stream):
            return None
        asked = _Asked(self, state, stream, volumes)
        low_watermark = stream.low_watermark
        if config.discard == OLD:
            if 0 <= config.max_msgs < stream.message_count:
                low_watermark = max(low_watermark, _start_of_newest(stream, config.max_msgs))
            if 0 <= config.max_bytes < stream.data_size:
                low_watermark = max(low_watermark, asked.end_of_bytes(stream.data_size - config.max_bytes))
        if config.max_age:
            low_watermark = max(low_watermark, asked.end_of_old(self._env.now_ns() - config.max_age))
        if low_watermark <= stream.first_sequence:
            return None
        count = low_watermark - stream.low_watermark - stream.removed.count_in(stream.low_watermark, low_watermark)
        everything = count == stream.message_count
        return Excess(low_watermark, count, stream.data_size if everything else asked.size_below(low_watermark))

    def columns(self, state: StoreState, stream: StreamState, row: np.ndarray, volumes: Sequence[Volume]) -> _Columns:
        """Return the messages of the block of this row of the manifest."""
        block_id = bytes(row["block_id"][0])
        kept = self._kept.pop(stream.incarnation, None)
        if kept is None or kept[0] != block_id:
            kept = block_id, _read(state, stream, row, volumes, self._env)
        self._kept[stream.incarnation] = kept
        size = sum(columns.nbytes for _, columns in self._kept.values())
        for incarnation in list(self._kept)[:-1]:
            if size <= KEPT_SIZE_MAX:
                break
            size -= self._kept.pop(incarnation)[1].nbytes
        return kept[1]


class _Asked:
    """Questions about the beginning of one state of a stream."""

    def __init__(self, limits: Limits, state: StoreState, stream: StreamState, volumes: Sequence[Volume]) -> None:
        self._limits, self._state, self._stream, self._volumes = limits, state, stream, volumes
        self._rows = stream.blocks.rows
        self._ends = self._rows["first"] + self._rows["span"]

    def end_of_bytes(self, size: int) -> int:
        """Return the sequence below which the oldest messages of at least so many bytes are."""
        before = 0
        for at in range(len(self._rows)):
            block_size = self._shown_size(at)
            if before + block_size == size:
                return int(self._ends[at])
            if before + block_size > size:
                sequences, sizes_below = self._shown(at)
                count = int(np.searchsorted(sizes_below, size - before, side="left"))
                return int(sequences[max(count, 1) - 1]) + 1
            before += block_size
        return self._stream.next_sequence

    def end_of_old(self, until_ns: int) -> int:
        """Return the sequence of the first message that is younger than that."""
        for at in np.flatnonzero(self._rows["time_max_ns"] > until_ns).tolist():
            if self._rows["time_min_ns"][at] > until_ns:
                return int(self._rows["first"][at])
            columns = self._columns(at)
            young = np.flatnonzero(self._is_shown(at, columns) & (columns.times_ns > until_ns))
            if len(young):
                return int(columns.sequences[young[0]])
        return self._stream.next_sequence

    def size_below(self, sequence: int) -> int:
        """Return the bytes of the messages that are shown below the sequence."""
        whole = int(np.searchsorted(self._ends, sequence, side="right"))
        total = sum(self._shown_size(at) for at in range(whole))
        if whole < len(self._rows) and int(self._rows["first"][whole]) < sequence:
            sequences, sizes_below = self._shown(whole)
            total += int(sizes_below[np.searchsorted(sequences, sequence, side="left")])
        return total

    def _shown_size(self, at: int) -> int:
        """Return the bytes of the messages of a block that are shown; one that is shown whole is not read."""
        row = self._rows[at]
        first, end = int(row["first"]), int(self._ends[at])
        removed = self._stream.removed.count_in(first, end)
        if first >= self._stream.low_watermark and removed == end - first - int(row["row_count"]):
            return int(row["data_size"])
        return int(self._shown(at)[1][-1])

    def _shown(self, at: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sequences of a block that are shown, and the bytes below each of them and in all."""
        columns = self._columns(at)
        start = int(np.searchsorted(columns.sequences, self._stream.low_watermark, side="left"))
        if not self._stream.removed.count_in(int(self._rows["first"][at]), int(self._ends[at])):
            return columns.sequences[start:], columns.sizes_below[start:] - columns.sizes_below[start]
        shown = self._is_shown(at, columns)
        return columns.sequences[shown], np.concatenate(([0], np.cumsum(columns.sizes[shown])))

    def _is_shown(self, at: int, columns: _Columns) -> np.ndarray:
        removed = self._stream.removed.clip(int(self._rows["first"][at]), int(self._ends[at]))
        shown: np.ndarray = (columns.sequences >= self._stream.low_watermark) & ~removed.mask(columns.sequences)
        return shown

    def _columns(self, at: int) -> _Columns:
        return self._limits.columns(self._state, self._stream, self._rows[at : at + 1], self._volumes)


def may_go(stream: StreamState) -> bool:
    """Return whether some limit may take messages of the stream."""
    config = stream.config
    is_limited = bool(config.max_age) or (config.discard == OLD and (config.max_msgs >= 0 or config.max_bytes >= 0))
    return is_limited and not config.sealed and stream.message_count > 0


def _start_of_newest(stream: StreamState, count: int) -> int:
    """Return the sequence from which on the newest `count` messages are; there are more than that."""
    over = stream.message_count - count
    if not stream.removed:
        return stream.low_watermark + over
    shown = stream.shown()
    return int(shown.head(over).ends[-1])


def _read(
    state: StoreState, stream: StreamState, row: np.ndarray, volumes: Sequence[Volume], env: Environment
) -> _Columns:
    first = int(row["first"][0])
    request = ReadRequest((stream.name,), {stream.name: (first, first + int(row["span"][0]))})
    slices, _ = plan_stream(state, stream, volumes, request)
    options = ReadOptions(("sequence", "timestamp_ns", "subject", "headers", "data"))
    parts = [
        (*(buffers.numbers(batch.column(name)) for name in ("sequence", "timestamp_ns")), message_sizes(batch))
        for batch in read_slices(slices, options, env=env)
    ]
    sequences, times_ns, sizes = (
        np.concatenate([np.empty(0, np.int64), *(part[column] for part in parts)]) for column in range(3)
    )
    return _Columns(sequences, times_ns, sizes, np.concatenate(([0], np.cumsum(sizes))))
