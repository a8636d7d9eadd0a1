"""How far consumers are behind their streams, in messages and in time: the table that operators look at.

Whatever the metadata has is taken from there. Only two things have to be read, and once: the time of one message a
consumer, where the bounds of its block do not say it, and with filter_subjects which messages are wanted at all.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from storage_core import buffers
from storage_core.errors import NotFoundError, StaleIncarnationError, StorageError
from storage_core.metadata.consumer_state import ConsumerState
from storage_core.metadata.state import StoreState, StreamState
from storage_core.quantities import rfc3339
from storage_core.sequences import SequenceSet
from storage_core.store import contents, describe
from storage_core.store.consumers.consumer import Consumer, info_of
from storage_core.store.consumers.fetching import decision_of, first_wanted
from storage_core.store.consumers.remembered import Remembered
from storage_core.store.opened import OpenStore
from storage_core.store.reading.plan import ReadRequest
from storage_core.store.reading.reading import REPORT, ReadOptions, read_slices

_TIMES: Remembered[tuple[bytes, int], int] = Remembered(65_536)  # of messages, by their block's digest and place in it


def consumer_report(
    store: OpenStore, streams: Sequence[str] | None = None, settle: bool = True, state: StoreState | None = None
) -> list[dict[str, Any]]:
    """Return the consumers of these streams (None: all) as `Consumer.info` has them, and what they are behind by.

    What is added: `problem`, why the consumer cannot go on as it stands, or None; and `lag` with `messages` (there and
    not acknowledged), `oldest_seq` and `oldest_ts` (the first of them), and `seconds` since then. `settle`: positions
    are reconciled with their streams first, as every open does; without it nothing is written. `state`: where to look
    for consumers, by default the newest one.
    """
    state = state or store.state()
    chosen = describe.by_name(state) if streams is None else [store.stream_state(name, state) for name in streams]
    found = []
    for stream in chosen:
        for consumer in sorted(stream.consumers.values(), key=lambda one: one.name):
            try:
                found.append(_reported(store, stream, consumer, settle))
            except (NotFoundError, StaleIncarnationError):
                continue  # deleted since we looked
    return found


def _reported(store: OpenStore, stream: StreamState, state: ConsumerState, settle: bool) -> dict[str, Any]:
    if settle:
        consumer = Consumer(store, stream.incarnation, stream.name, state.name)
        consumer.look()
        state = consumer.state()
    info = info_of(store, stream, state)
    sequence = oldest_open(store, stream, state)
    since_ns = time_of(store, stream, sequence) if sequence is not None else None
    now_ns = store.environment.now_ns()
    lag = {
        "messages": info["num_pending"] + info["num_ack_pending"],
        "oldest_seq": sequence,
        "oldest_ts": rfc3339(since_ns) if since_ns is not None else None,
        "seconds": max(0, now_ns - since_ns) / 1e9 if since_ns is not None else 0.0,
    }
    return {**info, "problem": decision_of(stream, state).reason or None, "lag": lag}


def oldest_open(store: OpenStore, stream: StreamState, consumer: ConsumerState) -> int | None:
    """Return the sequence of the oldest message that waits for its acknowledgement or was never handed out."""
    shown = stream.shown()
    waiting = consumer.outstanding().intersection(shown)
    if waiting:
        return int(waiting.starts[0])
    return first_wanted(store, stream, consumer)


def wanted(store: OpenStore, stream: StreamState, consumer: ConsumerState, first: int) -> SequenceSet:
    """Return the sequences from `first` on of all messages that are there and that the consumer's filter takes."""
    if not consumer.config.filter_subjects:
        return stream.shown().clip(first, stream.next_sequence)
    parts = [np.empty(0, np.int64), *_taken(store, stream, consumer, first)]
    return SequenceSet.from_sequences(np.concatenate(parts))


def _taken(store: OpenStore, stream: StreamState, consumer: ConsumerState, first: int) -> Iterator[np.ndarray]:
    """Yield the sequences from `first` on that the filter takes, a frame at a time; what no copy has is left out."""
    filters = consumer.config.filter_subjects
    request = ReadRequest((stream.name,), {stream.name: (first, stream.next_sequence)}, subject_filters=filters)
    options = ReadOptions(("sequence",), filters, on_loss=REPORT)
    for batch in read_slices(contents.slices(store, stream, request), options, env=store.environment):
        yield buffers.numbers(batch.column("sequence"))


def time_of(store: OpenStore, stream: StreamState, sequence: int) -> int | None:
    """Return the time of a message in nanoseconds since 1970; of one that cannot be read, when its block begins.

    None if no block has it.
    """
    rows = stream.blocks.rows
    at = int(np.searchsorted(rows["first"], sequence, side="right")) - 1
    if at < 0 or sequence >= rows["first"][at] + rows["span"][at]:
        return None
    bounds = int(rows["time_min_ns"][at]), int(rows["time_max_ns"][at])
    if bounds[0] == bounds[1]:
        return bounds[0]
    key = bytes(rows["digest"][at]), sequence - int(rows["first"][at])
    known = _TIMES.get(key)
    if known is not None:
        return known
    request = ReadRequest((stream.name,), {stream.name: (sequence, sequence + 1)})
    options = ReadOptions(("timestamp_ns",), on_loss=REPORT)
    try:
        for batch in read_slices(contents.slices(store, stream, request), options, env=store.environment):
            if batch.num_rows:
                return _TIMES.put(key, int(batch.column("timestamp_ns")[0].as_py()))
    except StorageError:
        return bounds[0]  # damage is told by reads and by verify, not by failing to show the rest
    return bounds[0]
