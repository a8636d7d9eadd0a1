"""A mirror and its source side by side: every message of both, by sequence, in batches that are never kept."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.errors import DataLossError, RequirementError
from storage_core.live.ranges import Range, read_range
from storage_core.live.server import Servers, StreamInfo, stream_info
from storage_core.metadata.appends import MIRROR
from storage_core.metadata.commands import Event, RecordEvents
from storage_core.mirror import COLUMNS, CREATED
from storage_core.sequences import SequenceSet
from storage_core.store.store import Store
from storage_core.store.stream import Stream

_END = 2**63 - 1
_RANGES_SHOWN = 100


@dataclass
class MirrorComparison:
    """What a mirror and its source have. Sequences as ranges `[first, end)`."""

    stream: str
    source: str
    is_same_stream: bool  # of the same time of creation
    same: int = 0  # messages
    different: SequenceSet = field(default_factory=SequenceSet.empty)
    missing: SequenceSet = field(default_factory=SequenceSet.empty)  # here, though what comes behind is here
    deleted: SequenceSet = field(default_factory=SequenceSet.empty)  # at the source since they were mirrored
    lag: int = 0  # messages that are not mirrored yet

    @property
    def ok(self) -> bool:
        """Return whether the mirror holds what the source has, as far as it has come."""
        return self.is_same_stream and not self.different and not self.missing

    def to_json(self) -> dict[str, Any]:
        sets = {"different": self.different, "missing": self.missing, "deleted": self.deleted}
        return {
            "stream": self.stream,
            "source": self.source,
            "ok": self.ok,
            "same_stream": self.is_same_stream,
            "same": self.same,
            "lag": self.lag,
            **{name: len(sequences) for name, sequences in sets.items()},
            **{f"{name}_ranges": [list(run) for run in each.ranges_head(_RANGES_SHOWN)] for name, each in sets.items()},
        }


def compare_mirror(store: Store, servers: Servers, name: str) -> MirrorComparison:
    """Compare a mirror with its source, and write the outcome down as an event.

    Raises RequirementError for a stream that is no mirror, StreamNotFoundError, ServerError as servers answer.
    """
    stream = store.stream(name)
    source = stream.config.metadata.get(MIRROR)
    if source is None:
        raise RequirementError(f"stream {name!r} is no mirror: `jstream mirror` makes one")
    info = servers.retrying(lambda connection: stream_info(connection, source))
    outcome = _compared(stream, servers, info)
    verdict = "ok" if outcome.ok else "differs"
    counts = f"{outcome.same} messages are the same, {len(outcome.different)} different, {len(outcome.missing)} missing"
    behind = f"{len(outcome.deleted)} deleted at the source, {outcome.lag} not mirrored yet"
    reason = f"with stream {source!r}: {counts}, {behind}"
    with store.session() as session:
        session.propose(RecordEvents((Event("mirror_compared", name, after=verdict, reason=reason),)))
    return outcome


def _compared(stream: Stream, servers: Servers, info: StreamInfo) -> MirrorComparison:
    state = stream.state()
    outcome = MirrorComparison(stream.name, info.name, state.config.metadata.get(CREATED) == info.created)
    mirrored = iter(stream.read(columns=COLUMNS, on_data_loss="continue"))
    ours = _Side(mirrored)
    part = Range(info.name, info.created, info.first_sequence, info.next_sequence)
    theirs = _Side(messages.batch(info.name, COLUMNS) for messages in read_range(servers, part, _ignore))
    lag: list[np.ndarray] = []
    while ours.rows is not None or theirs.rows is not None:
        until = min(ours.last, theirs.last)
        ours_now, theirs_now = ours.take(until), theirs.take(until)
        own, theirs_at = (buffers.numbers(rows.column("sequence")) for rows in (ours_now, theirs_now))
        common, at_here, at_there = np.intersect1d(own, theirs_at, assume_unique=True, return_indices=True)
        left, right = (rows.take(buffers.of_numbers(at)) for rows, at in ((ours_now, at_here), (theirs_now, at_there)))
        differing = common[_differing(left, right)]
        outcome.same += len(common) - len(differing)
        outcome.different = outcome.different.union(SequenceSet.from_sequences(differing))
        outcome.deleted = outcome.deleted.union(SequenceSet.from_sequences(np.setdiff1d(own, theirs_at)))
        lacking = np.setdiff1d(theirs_at, own)
        lag.append(lacking[lacking >= state.next_sequence])
        outcome.missing = outcome.missing.union(SequenceSet.from_sequences(lacking[lacking < state.next_sequence]))
    outcome.lag = sum(map(len, lag))
    return outcome


def _ignore(error: DataLossError) -> None:
    """What the source removes while it is compared counts as deleted there."""


class _Side:
    """Batches of one side; `rows`: what was not compared yet of the newest one, None at the end."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows: pa.RecordBatch | None = None
        self._empty = pa.RecordBatch.from_arrays([pa.nulls(0, pa.int64())], names=["sequence"])
        self._advance()

    def _advance(self) -> None:
        self.rows = next((rows for rows in self._batches if len(rows)), None)

    @property
    def last(self) -> int:
        return _END if self.rows is None else int(self.rows.column("sequence")[-1].as_py())

    def take(self, until: int) -> pa.RecordBatch:
        """Return the rows up to that sequence, and go on behind them."""
        if self.rows is None:
            return self._empty
        count = int(np.searchsorted(buffers.numbers(self.rows.column("sequence")), until, side="right"))
        taken, self.rows = self.rows.slice(0, count), self.rows.slice(count)
        if not len(self.rows):
            self._advance()
        return taken


def _differing(left: pa.RecordBatch, right: pa.RecordBatch) -> np.ndarray:
    """Return which rows differ: a batch that is equal is looked at once, one that is not is halved."""
    count = len(left)
    mask = np.zeros(count, bool)
    pending = [(0, count)] if count else []
    while pending:
        first, end = pending.pop()
        ours, theirs = left.slice(first, end - first), right.slice(first, end - first)
        if ours.equals(theirs):
            continue
        if end - first == 1:
            mask[first] = _normal(ours) != _normal(theirs)
            continue
        middle = (first + end) // 2
        pending += [(first, middle), (middle, end)]
    return mask


def _normal(row: pa.RecordBatch) -> dict[str, Any]:
    """Return a row as it counts: no headers and empty ones are the same, and so are no data and none of its bytes."""
    (values,) = row.to_pylist()
    return {**values, "headers": values["headers"] or [], "data": values["data"] or b""}
