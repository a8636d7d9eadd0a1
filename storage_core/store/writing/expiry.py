"""Expiry of single messages: those with the header Nats-TTL go when their time is over, by the session's clock.

The metadata keep, of each block that may have some, when the first of them expires at the earliest. Only blocks of
which that is over are read, in whole columns; what goes is one explicit set, and what is kept of the block is moved on.
"""

from collections.abc import Sequence

import numpy as np

from storage_core import buffers
from storage_core.metadata.commands import Remove
from storage_core.metadata.config import SECOND_NS
from storage_core.metadata.manifest import EXPIRY_DTYPE
from storage_core.metadata.state import StoreState, StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.environment import Environment
from storage_core.store.reading.plan import ReadRequest, plan_stream
from storage_core.store.reading.reading import ReadOptions, read_slices
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing import instructions
from storage_core.store.writing.limits import Limits

BLOCKS_AT_ONCE_MAX = 64  # that are read within one session


def command(
    state: StoreState, stream: StreamState, volumes: Sequence[Volume], limits: Limits, now_ns: int
) -> Remove | None:
    """Return what removes messages whose time is over; None if there are none by what the metadata say.

    Raises DataLossError, UnavailableError if a block cannot be read.
    """
    if not len(stream.expiries) or stream.config.sealed:
        return None
    env, expiries = limits.env, stream.expiries.rows
    due = expiries[expiries["due_ns"] <= now_ns][:BLOCKS_AT_ONCE_MAX]
    if not len(due):
        return None
    expired, moved = [SequenceSet.empty()], np.zeros(len(due), EXPIRY_DTYPE)
    moved["first"] = due["first"]
    rows = stream.blocks.rows
    at = np.searchsorted(rows["first"], due["first"], side="right") - 1
    for place in np.unique(at).tolist():
        first = int(rows["first"][place])
        over, next_ns = _over(state, stream, first, first + int(rows["span"][place]), now_ns, volumes, env)
        expired.append(over)
        moved["due_ns"][np.flatnonzero(at == place)[0]] = next_ns  # merged blocks: once for all of them
    all_expired = SequenceSet.from_columns(
        np.concatenate([sequences.starts for sequences in expired]),
        np.concatenate([sequences.ends for sequences in expired]),
    )
    size = limits.size_of(state, stream, all_expired, volumes) if all_expired else 0
    return Remove(stream.incarnation, all_expired.encode(), size, reason="limits", expiries=moved.tobytes())


def _over(
    state: StoreState,
    stream: StreamState,
    first: int,
    end: int,
    now_ns: int,
    volumes: Sequence[Volume],
    env: Environment,
) -> tuple[SequenceSet, int]:
    """Return which messages of [first, end) are over, and when the next of the others is, 0 if none will be."""
    slices, _ = plan_stream(state, stream, volumes, ReadRequest((stream.name,), {stream.name: (first, end)}))
    over, next_ns = list[np.ndarray](), 0
    for batch in read_slices(slices, ReadOptions(("sequence", "timestamp_ns", "headers")), env=env):
        headers = batch.column("headers")
        if not instructions.may_have_any(headers):
            continue
        rows, values = instructions.values_of(headers, instructions.TTL)
        spans_ns, _ = instructions.ttls(values)  # malformed ones, of an import, are none
        rows, spans_ns = rows[spans_ns > 0], spans_ns[spans_ns > 0]
        if stream.config.max_msgs_per_subject != 1:  # as on a server: the marker is not to go before an older message
            spans_ns = np.maximum(spans_ns, stream.config.marker_ttl_s * SECOND_NS)
        ends_ns = buffers.numbers(batch.column("timestamp_ns"))[rows] + spans_ns
        over.append(buffers.numbers(batch.column("sequence"))[rows[ends_ns <= now_ns]])
        later = ends_ns[ends_ns > now_ns]
        next_ns = min(filter(None, (next_ns, int(later.min()) if len(later) else 0)), default=0)
    return SequenceSet.from_parts(over), next_ns
