"""How far consumers are behind their streams, in messages and in time: the table that operators look at.

Whatever the metadata has is taken from there. Only two things have to be read, and once: the time of one message a
consumer, where the bounds of its block do not say it, and with filter_subjects which messages are wanted at all.
"""

from collections.abc import Sequence
from typing import Any

from storage_core.errors import NotFoundError, StaleIncarnationError
from storage_core.metadata.consumer_state import ConsumerState
from storage_core.metadata.state import StoreState, StreamState
from storage_core.quantities import rfc3339
from storage_core.store import describe
from storage_core.store.consumers.position import first_wanted, info_of
from storage_core.store.opened import OpenStore


def consumer_report(
    store: OpenStore, streams: Sequence[str] | None = None, state: StoreState | None = None
) -> list[dict[str, Any]]:
    """Return the consumers of these streams (None: all) as `Consumer.info` has them, and what they are behind by.

    What is added is `lag`: `messages` (there and not acknowledged), `oldest_seq` and `oldest_ts` (the first of them),
    and `seconds` since then. `state`: where to look for consumers, by default the newest one. Nothing is written.
    """
    state = state or store.view().state
    chosen = describe.by_name(state) if streams is None else [store.stream_state(name, state) for name in streams]
    reports = []
    for stream in chosen:
        for consumer in sorted(stream.consumers.values(), key=lambda consumer: consumer.name):
            try:
                reports.append(_reported(store, stream, consumer))
            except (NotFoundError, StaleIncarnationError):
                continue  # deleted since we looked
    return reports


def _reported(store: OpenStore, stream: StreamState, state: ConsumerState) -> dict[str, Any]:
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
    return {**info, "lag": lag}


def oldest_open(store: OpenStore, stream: StreamState, consumer: ConsumerState) -> int | None:
    """Return the sequence of the oldest message that waits for its acknowledgement or was never handed out."""
    shown = stream.shown()
    waiting = consumer.outstanding().intersection(shown)
    if waiting:
        return int(waiting.starts[0])
    return first_wanted(store, stream, consumer)


def time_of(store: OpenStore, stream: StreamState, sequence: int) -> int | None:
    """Return the time of a message in nanoseconds since 1970; of one that cannot be read, when its block begins.

    None if no block has it.
    """
    rows = stream.blocks.rows
    near = stream.blocks_in(sequence, sequence + 1)
    if near.start == near.stop:
        return None
    at = near.start
    bounds = int(rows["time_min_ns"][at]), int(rows["time_max_ns"][at])
    if bounds[0] == bounds[1]:
        return bounds[0]
    from storage_core.store.consumers.filtered import time_read

    time_ns = time_read(store, stream, at, sequence)
    return bounds[0] if time_ns is None else time_ns
