"""Rollups: a message with the header Nats-Rollup takes the place of all before it, of its subject or of all.

What goes is worked out by the session of the append, and removed in its round of fsyncs. An append that was stored and
is sent again does it again: what was removed already is not there any more.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core import buffers
from storage_core.metadata.commands import Remove
from storage_core.metadata.removals import ROLLUP
from storage_core.metadata.state import StoreState, StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.environment import Environment
from storage_core.store.reading.plan import ReadRequest, plan_stream
from storage_core.store.reading.reading import ReadOptions, read_slices
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing import instructions
from storage_core.store.writing.limits import Limits

FILTERS_MAX = 256  # literal subjects that a read is narrowed by; of more all messages are looked at


def command(
    state: StoreState, stream: StreamState, new: range, volumes: Sequence[Volume], limits: Limits, env: Environment
) -> Remove | None:
    """Return what the rollups among these messages remove; None if that is nothing.

    Raises DataLossError, UnavailableError if a block cannot be read.
    """
    low_watermark, ends = _asked(state, stream, new, volumes, env)
    low_watermark = max(low_watermark, stream.low_watermark)
    removed = stream.shown(stream.low_watermark, low_watermark)
    if ends:
        removed = removed.union(_superseded(state, stream, low_watermark, ends, volumes, env))
    if not removed:
        return None
    size = limits.size_of(state, stream, removed, volumes)
    return Remove(stream.incarnation, removed.encode(), size, low_watermark, ROLLUP)


def _asked(
    state: StoreState, stream: StreamState, new: range, volumes: Sequence[Volume], env: Environment
) -> tuple[int, Mapping[str, int]]:
    """Return the last sequence that is to be the first of the stream, and the same of single subjects."""
    everything, ends = 0, dict[str, int]()
    request = ReadRequest((stream.name,), {stream.name: (new.start, new.stop)})
    slices, _ = plan_stream(state, stream, volumes, request)
    for batch in read_slices(slices, ReadOptions(("sequence", "subject", "headers")), env=env):
        headers = batch.column("headers")
        if not instructions.may_have_any(headers):
            continue
        rows, values = instructions.values_of(headers, instructions.ROLLUP)
        is_all, _ = instructions.rollups(values)
        sequences = buffers.numbers(batch.column("sequence"))[rows]
        if is_all.any():
            everything = int(sequences[is_all][-1])
        subjects = batch.column("subject").take(buffers.of_numbers(rows[~is_all].astype(np.int64)))
        ends.update(zip(subjects.to_pylist(), sequences[~is_all].tolist(), strict=True))
    return everything, ends


def _superseded(
    state: StoreState,
    stream: StreamState,
    first: int,
    ends: Mapping[str, int],
    volumes: Sequence[Volume],
    env: Environment,
) -> SequenceSet:
    """Return the messages from `first` on that lie before the rollup of their subject."""
    names = sorted(ends)
    filters = tuple(names) if len(names) <= FILTERS_MAX else ()
    request = ReadRequest((stream.name,), {stream.name: (first, max(ends.values()))}, subject_filters=filters)
    slices, _ = plan_stream(state, stream, volumes, request)
    known, until = buffers.of_texts(names), np.array([*(ends[name] for name in names), 0])
    parts: list[np.ndarray] = []
    for batch in read_slices(slices, ReadOptions(("sequence", "subject"), filters), env=env):
        at: pa.Array = pc.index_in(batch.column("subject"), known)
        places = buffers.numbers(at.fill_null(buffers.constant(len(names), pa.int32())))
        sequences = buffers.numbers(batch.column("sequence"))
        parts.append(sequences[sequences < until[places]])
    return SequenceSet.from_parts(parts)
