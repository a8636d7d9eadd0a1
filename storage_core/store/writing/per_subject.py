"""Limits of single subjects: the newest messages of each are kept, or no more of them are taken, as the stream says.

What an append takes the place of is worked out by its session and travels in its entry. So a stream is at its limit at
any time, also after a crash, replicas decide nothing, and what goes makes room for what comes (`discard` new).

The blocks say which messages a subject has. A process that appends once, to few subjects, reads the frames that may
hold these. One that comes again, or with many subjects, reads all subjects once and goes on from there: an index has
each message by the hash of its subject, and forgets those that are not shown any more once they are half of it. Two
subjects are the same if 128 bits of them are, as for message ids.

What no copy of a block gives back is passed over: a subject may keep more than its limit, and never less. Where the
limit refuses new messages, the append fails instead.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from storage_core import buffers
from storage_core.block.format import ROW_COUNT_MAX
from storage_core.block.hashing import msg_id_hashes
from storage_core.errors import DataLossError, LimitExceededError, StorageError, UnavailableError
from storage_core.metadata.commands import Remove
from storage_core.metadata.reconcile import FAIL
from storage_core.metadata.state import StoreState, StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.reading.plan import ReadRequest, plan_stream
from storage_core.store.reading.reading import REPORT, ReadDamage, ReadOptions, read_slices
from storage_core.store.reading.slices import BlockSlice
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing.duplicates import SortedRuns
from storage_core.store.writing.limits import Excess, message_sizes_of

logger = logging.getLogger(__name__)
FILTERS_MAX = 256  # subjects that a read is narrowed by
INDEXED_COUNT_MAX = 1 << 23  # messages of all indexes, 40 bytes each; the newest index is kept in any case
PRUNE_AT_MIN = 65_536  # messages of an index from which on those that are not shown any more are forgotten
_ROW_DTYPE = np.dtype([("sequence", "<i8"), ("size", "<i8")])


@dataclass(frozen=True, slots=True)
class SubjectRows:
    """Messages, ascending by sequence: hash of the subject (n, 2), sequence, bytes of the message."""

    hashes: np.ndarray
    sequences: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.sequences)

    @classmethod
    def joined(cls, parts: Iterable["SubjectRows"]) -> "SubjectRows":
        """Return the rows of all parts, which come in order."""
        parts = [_NO_ROWS, *parts]
        return cls(
            np.concatenate([part.hashes for part in parts]),
            np.concatenate([part.sequences for part in parts]),
            np.concatenate([part.sizes for part in parts]),
        )

    def chosen(self, which: np.ndarray) -> "SubjectRows":
        """Return the rows of a mask, or at these places."""
        return SubjectRows(self.hashes[which], self.sequences[which], self.sizes[which])

    def newer_counts(self) -> np.ndarray:
        """Return for each row how many of the same subject come after it."""
        order, is_last = _grouped(self.hashes)
        places = np.arange(len(self))
        ends = np.flatnonzero(is_last)[np.cumsum(is_last) - is_last]
        counts = np.empty(len(self), np.int64)
        counts[order] = ends - places
        return counts


_NO_ROWS = SubjectRows(np.empty((0, 2), np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class Superseded:
    """What an append takes the place of, and what it brings."""

    sequences: SequenceSet
    data_size: int
    new: SubjectRows


def excess(
    state: StoreState, stream: StreamState, volumes: Sequence[Volume], env: Environment
) -> tuple[SequenceSet, int]:
    """Return which of all messages are over the limit of their subject, and their bytes; reads all subjects.

    From the newest block backwards: memory follows what is kept, and the size of a block.
    """
    limit = stream.config.max_msgs_per_subject
    if limit < 0 or stream.config.sealed or not stream.message_count:
        return SequenceSet.empty(), 0
    blocks, _ = plan_stream(state, stream, volumes, ReadRequest((stream.name,)))
    kept, waiting, waiting_count = _NO_ROWS, list[SubjectRows](), 0
    over, size = list[np.ndarray](), 0
    for place in range(len(blocks) - 1, -1, -1):
        rows = SubjectRows.joined(_Reading(stream, env).rows(blocks[place : place + 1]))
        waiting, waiting_count = [rows, *waiting], waiting_count + len(rows)
        if place and waiting_count <= len(kept):  # each row is sorted twice on the whole
            continue
        kept = SubjectRows.joined([*waiting, kept])
        is_over = kept.newer_counts() >= limit
        over.append(kept.sequences[is_over])
        size += int(kept.sizes[is_over].sum())
        kept, waiting, waiting_count = kept.chosen(~is_over), [], 0
    return SequenceSet.from_parts(over), size


def added(over: Excess | None, stream: StreamState, sequences: SequenceSet, size: int) -> Excess | None:
    """Return what is over limits of the whole stream together with these messages of single subjects."""
    over = over or Excess(stream.low_watermark, 0, 0)
    count = over.message_count + len(sequences)
    return Excess(over.low_watermark, count, over.data_size + size, sequences) if count else None


def command(state: StoreState, stream: StreamState, volumes: Sequence[Volume], env: Environment) -> Remove | None:
    """Return what removes all that is over the limit of its subject; None if nothing is."""
    sequences, size = excess(state, stream, volumes, env)
    return Remove(stream.incarnation, sequences.encode(), size, reason="limits") if sequences else None


@dataclass(frozen=True, slots=True)
class AppendedSubjects:
    """Messages that a round appends to a stream as [first, end): what its index learns once they are committed."""

    index: "SubjectIndex"
    incarnation: bytes
    first: int
    end: int
    rows: SubjectRows

    def __call__(self) -> None:
        self.index.learn(self)


class SubjectIndex:
    """Which committed messages the subjects of streams have. One for a store; used under its lock."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._streams: dict[bytes, _StreamIndex | None] = {}  # by incarnation, latest used last; None: asked once

    def superseded(
        self,
        session: Session,
        stream: StreamState,
        staged: Sequence[BlockSlice],
        duplicates: SequenceSet,
        names: Sequence[str] | None,
        overwrite: bool,
    ) -> Superseded:
        """Return what an append of these blocks takes the place of, in the stream and among its own messages.

        `staged` and `duplicates`, which are not shown, begin at sequence 0. `names`: the subjects, where they are few
        and known. Raises LimitExceededError if the stream refuses the append by its limit, DataLossError,
        UnavailableError.
        """
        config = stream.config
        new = SubjectRows.joined(_Reading(stream, self._env, FAIL).rows(staged))
        new = new.chosen(~duplicates.mask(new.sequences)) if duplicates else new
        base = stream.next_sequence
        new = SubjectRows(new.hashes, new.sequences + base, new.sizes)
        on_data_loss = FAIL if config.discard_new_per_subject else REPORT
        older = _NO_ROWS
        if len(new) and not overwrite:
            older = SubjectRows.joined(self._older(session, stream, new.hashes, names, on_data_loss))
        both = SubjectRows.joined([older, new])
        is_over = both.newer_counts() >= config.max_msgs_per_subject
        over = both.chosen(is_over)
        if len(over) and config.discard_new_per_subject:
            raise self._refusal(stream, staged, older, new, over.hashes[0])
        return Superseded(SequenceSet.from_sequences(over.sequences), int(over.sizes.sum()), new)

    def counts(
        self, session: Session, stream: StreamState, hashes: np.ndarray, names: Sequence[str] | None
    ) -> np.ndarray:
        """Return how many messages of each of these distinct subjects the stream shows; `names`: as `superseded`.

        Raises DataLossError, UnavailableError.
        """
        wanted, counts = SortedRuns(), np.zeros(len(hashes), np.int64)
        wanted.add(hashes, np.arange(len(hashes)))
        for rows in self._older(session, stream, hashes, names, FAIL):
            counts += np.bincount(wanted.find(rows.hashes)[1], minlength=len(hashes))
        return counts

    def last(
        self, session: Session, stream: StreamState, hashes: np.ndarray, names: Sequence[str] | None
    ) -> np.ndarray:
        """Return the last sequence of each of these distinct subjects that the stream shows, 0 for none.

        `names`: as `superseded`. Raises DataLossError, UnavailableError.
        """
        wanted, last = SortedRuns(), np.zeros(len(hashes), np.int64)
        wanted.add(hashes, np.arange(len(hashes)))
        for rows in self._older(session, stream, hashes, names, FAIL):
            which, at = wanted.find(rows.hashes)
            np.maximum.at(last, at, rows.sequences[which])
        return last

    def learn(self, appended: "AppendedSubjects") -> None:
        """Take in what was committed; an index that ends elsewhere reads it from the blocks when it is asked."""
        index = self._streams.get(appended.incarnation)
        if index is not None and index.end == appended.first:
            index.add(appended.rows, appended.end)

    def _refusal(
        self, stream: StreamState, staged: Sequence[BlockSlice], older: SubjectRows, new: SubjectRows, hash_: np.ndarray
    ) -> LimitExceededError:
        present, added = ((rows.hashes == hash_).all(axis=1) for rows in (older, new))
        sequence = int(new.sequences[added][0]) - stream.next_sequence
        subject = None
        for batch in read_slices(staged, ReadOptions(("sequence", "subject")), env=self._env):
            at = np.flatnonzero(buffers.numbers(batch.column("sequence")) == sequence)
            if len(at):
                subject = batch.column("subject")[int(at[0])].as_py()
                break
        limit = stream.config.max_msgs_per_subject
        counts = int(present.sum()), int(added.sum())
        return LimitExceededError(stream.name, "max_msgs_per_subject", limit, *counts, subject)

    def _older(
        self, session: Session, stream: StreamState, hashes: np.ndarray, names: Sequence[str] | None, on_data_loss: str
    ) -> Iterator[SubjectRows]:
        """Yield the messages of these subjects that the stream shows.

        The index has committed messages alone. Those that are staged come from the appends that the session knows.
        """
        order, is_last = _grouped(hashes)
        distinct = hashes[order[is_last]]
        wanted = SortedRuns()
        wanted.add(distinct, 0)
        reading = _Reading(stream, self._env, on_data_loss)
        is_first = stream.incarnation not in self._streams
        index = self._streams.pop(stream.incarnation, None)
        filters = tuple(names) if names is not None and len(names) <= FILTERS_MAX else ()
        if stream.message_count > INDEXED_COUNT_MAX or (is_first and filters and stream.message_count):
            self._streams[stream.incarnation] = None
            for rows in reading.of_stream(session.state, stream, session.volumes, (None, None), filters):
                yield rows.chosen(np.unique(wanted.find(rows.hashes)[0]))
            return
        committed = session.committed.by_incarnation(stream.incarnation)
        index, end = index or _StreamIndex(), 1
        if committed is not None:  # else it is made in this very round
            end = committed.next_sequence
            if index.end < end:
                for rows in reading.of_stream(session.committed, committed, session.volumes, (index.end, end)):
                    index.add(rows, end)
                index.end = end
            index.prune(committed)
            if reading.is_complete:
                self._keep(session.committed, stream.incarnation, index)
        yield index.shown_of(stream, distinct)
        for rows in self._staged(session, stream, end, reading):
            rows = rows.chosen(np.unique(wanted.find(rows.hashes)[0]))
            yield rows.chosen(_are_shown(stream, rows.sequences))

    def _staged(self, session: Session, stream: StreamState, end: int, reading: "_Reading") -> Iterator[SubjectRows]:
        """Yield the messages of the stream from `end` on, which are not committed yet."""
        for update in session.cache_updates:
            if isinstance(update, AppendedSubjects) and update.incarnation == stream.incarnation:
                yield from reading.of_stream(session.state, stream, session.volumes, (end, update.first))
                yield update.rows
                end = update.end
        yield from reading.of_stream(session.state, stream, session.volumes, (end, stream.next_sequence))

    def _keep(self, state: StoreState, incarnation: bytes, index: "_StreamIndex") -> None:
        self._streams[incarnation] = index
        for incarnation in [key for key in self._streams if state.by_incarnation(key) is None]:
            del self._streams[incarnation]
        total = sum(kept.row_count for kept in self._streams.values() if kept is not None)
        for incarnation, old in list(self._streams.items())[:-1]:
            if total > INDEXED_COUNT_MAX and old is not None:
                del self._streams[incarnation]
                total -= old.row_count


class _StreamIndex:
    """The messages of one stream below a sequence by their subjects; some may not be shown any more."""

    def __init__(self) -> None:
        self._runs = SortedRuns()  # by hash: places in the table
        self._table = np.empty(0, _ROW_DTYPE)  # ascending by sequence; room behind `row_count`
        self.row_count = 0
        self.end = 1  # what is below it is in here
        self._prune_at = PRUNE_AT_MIN

    def add(self, rows: SubjectRows, end: int) -> None:
        start, stop = self.row_count, self.row_count + len(rows)
        if stop > len(self._table):
            table = np.empty(max(stop, 2 * start), _ROW_DTYPE)
            table[:start] = self._table[:start]
            self._table = table
        self._table["sequence"][start:stop], self._table["size"][start:stop] = rows.sequences, rows.sizes
        self._runs.add(rows.hashes, np.arange(start, stop))
        self.row_count, self.end = stop, end

    def prune(self, stream: StreamState) -> None:
        """Forget messages that are not shown any more, now and then."""
        if self.row_count < self._prune_at:
            return
        places = np.flatnonzero(_are_shown(stream, self._table["sequence"][: self.row_count]))
        self._table = self._table[places]
        self._runs.keep(places)
        self.row_count = len(places)
        self._prune_at = max(PRUNE_AT_MIN, 2 * self.row_count)

    def shown_of(self, stream: StreamState, hashes: np.ndarray) -> SubjectRows:
        """Return the messages of these distinct subjects that the stream shows."""
        which, places = self._runs.find(hashes)
        order = np.argsort(places)
        which, entries = which[order], self._table[places[order]]
        rows = SubjectRows(hashes[which], entries["sequence"], entries["size"])
        return rows.chosen(_are_shown(stream, rows.sequences))


class _Reading:
    """Reads subjects and sizes of blocks, and knows whether everything was there."""

    def __init__(self, stream: StreamState, env: Environment, on_data_loss: str = REPORT) -> None:
        self._stream, self._env, self._on_data_loss = stream.name, env, on_data_loss
        self.is_complete = True

    def of_stream(
        self,
        state: StoreState,
        stream: StreamState,
        volumes: Sequence[Volume],
        bounds: tuple[int | None, int | None],
        filters: tuple[str, ...] = (),
    ) -> Iterator[SubjectRows]:
        """Yield the messages [first, end) of a stream that the filters take."""
        first, end = bounds
        if first is not None and end is not None and first >= end:
            return
        request = ReadRequest((stream.name,), {stream.name: bounds}, subject_filters=filters)
        yield from self.rows(plan_stream(state, stream, volumes, request)[0], filters)

    def rows(self, blocks: Iterable[BlockSlice], filters: tuple[str, ...] = ()) -> Iterator[SubjectRows]:
        options = ReadOptions(("sequence", "subject"), filters, on_data_loss=self._on_data_loss)
        for block in blocks:
            sizes = None
            try:
                for batch in read_slices([block], options, self._hear, self._env):
                    if sizes is None:
                        sizes = message_sizes_of(block, ROW_COUNT_MAX, self._env)
                    sequences = buffers.numbers(batch.column("sequence"))
                    yield SubjectRows(msg_id_hashes(batch.column("subject")), sequences, sizes.of(sequences))
            except (DataLossError, UnavailableError) as error:
                if self._on_data_loss == FAIL:
                    raise
                self._miss(error)

    def _hear(self, damage: ReadDamage) -> None:
        if not damage.served:
            self._miss(damage)

    def _miss(self, reason: StorageError | ReadDamage) -> None:
        self.is_complete = False
        logger.warning("stream %r: subjects may keep more messages than their limit: %s", self._stream, reason)


def _grouped(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the order in which equal hashes are neighbours, as they came, and which are the last of their kind."""
    high, low = hashes[:, 0], hashes[:, 1]
    order = np.argsort(high, kind="stable")
    is_same = np.diff(high[order]) == 0
    if (np.diff(low[order])[is_same] != 0).any():  # one half tells nearly all sets of subjects apart, in half the time
        order = np.lexsort((low, high))
        is_same = (np.diff(high[order]) == 0) & (np.diff(low[order]) == 0)
    return order, np.append(~is_same, len(order) > 0)[: len(order)]


def _are_shown(stream: StreamState, sequences: np.ndarray) -> np.ndarray:
    """Return which of these ascending sequences the stream shows; each was given to a message."""
    shown: np.ndarray = (sequences >= stream.low_watermark) & (stream.removed.run_ends(sequences) == sequences)
    return shown
