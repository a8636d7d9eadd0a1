"""When messages came, from the bounds of times that the manifest has of every block: a store's past, without a reader.

Within a block messages are taken to have come evenly. Blocks that were merged have wide bounds, so what is long ago is
smoother than it was.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from storage_core.metadata.state import StreamState
from storage_core.quantities import rfc3339

BUCKET_COUNT = 60
POINT_COUNT = 60
MINUTE_S = 60
PART_BLOCK_COUNT = 8192  # blocks that are looked at together, which bounds memory
SPANS_S = {"10m": 600, "1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000}
SPANS = ("", *SPANS_S, "all")


def arrivals(streams: Iterable[StreamState], now_ns: int, span: str = "") -> dict[str, Any]:
    """Return how many messages came in each of BUCKET_COUNT equal parts of the time up to now.

    `span`: a key of SPANS_S, "all" for all there is, "" for the shortest that holds all there is.
    """
    parts = [stream.blocks.rows for stream in streams if len(stream.blocks)]
    names = ("time_min_ns", "time_max_ns", "row_count")
    begins, ends, counts = (np.concatenate([[0][:0], *(rows[name] for rows in parts)]) for name in names)
    oldest_ns = int(begins.min()) if len(begins) else now_ns
    age_s = max(1.0, (now_ns - oldest_ns) / 1e9)
    if not span:
        span = next((name for name, seconds in SPANS_S.items() if seconds >= age_s), "all")
    span_s = SPANS_S.get(span) or age_s * 1.02
    first_ns = now_ns - int(span_s * 1e9)
    edges = np.linspace(first_ns, now_ns, BUCKET_COUNT + 1)
    came = np.diff(_came_before(edges, begins, ends, counts)) if len(begins) else np.zeros(BUCKET_COUNT)
    return {
        "span": span,
        "from": rfc3339(first_ns),
        "to": rfc3339(now_ns),
        "seconds_per_bucket": span_s / BUCKET_COUNT,
        "counts": [round(float(count), 1) for count in came],
    }


def rate(streams: Iterable[StreamState], now_ns: int, what: str = "row_count") -> float:
    """Return messages per second over the last minute, or another column of blocks: `data_size`, `file_size`."""
    total = 0.0
    edges = np.array([now_ns - MINUTE_S * 1e9, float(now_ns)])
    for stream in streams:
        rows = stream.blocks.rows[-256:]
        if len(rows) and int(rows["time_max_ns"][-1]) > edges[0]:
            before, now = _came_before(edges, rows["time_min_ns"], rows["time_max_ns"], rows[what])
            total += float(now - before)
    return total / MINUTE_S


def seconds_to_full(stream: StreamState, now_ns: int) -> float | None:
    """Return when a stream reaches its limit of messages or bytes at the pace of the last minute, None if never."""
    config, ways = stream.config, []
    for limit, held, column in (
        (config.max_msgs, stream.message_count, "row_count"),
        (config.max_bytes, stream.data_size, "data_size"),
    ):
        pace = rate([stream], now_ns, column) if limit > held else 0.0
        if pace:
            ways.append((limit - held) / pace)
    return min(ways, default=None)


def seconds_to_catch_up(seen: Sequence[tuple[float, int]]) -> float | None:
    """Return when a consumer has no lag at its pace of the last five minutes, None if its lag does not fall.

    `seen`: time in seconds, and lag, oldest first.
    """
    if not seen or not seen[-1][1]:
        return None
    recent = [place for place in seen if place[0] >= seen[-1][0] - 5 * MINUTE_S]
    (first_s, before), (last_s, lag) = recent[0], recent[-1]
    return lag * (last_s - first_s) / (before - lag) if before > lag else None


def _came_before(edges: np.ndarray, begins: np.ndarray, ends: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return, for each edge, how many messages came before it."""
    spans = np.maximum(1, ends - begins).astype(np.float64)
    came = np.zeros(len(edges))
    for at in range(0, len(begins), PART_BLOCK_COUNT):
        part = slice(at, at + PART_BLOCK_COUNT)
        came += np.clip((edges[:, None] - begins[part]) / spans[part], 0.0, 1.0) @ counts[part].astype(np.float64)
    return came


def positions_over_time(stream: StreamState, first_ns: int, now_ns: int) -> list[tuple[int, int]]:
    """Return (time in ns, last sequence by then) at even times: how far the stream was."""
    rows = stream.blocks.rows
    edges = np.linspace(first_ns, now_ns, POINT_COUNT)
    if not len(rows):
        return [(int(edge), stream.next_sequence - 1) for edge in edges]
    ends = np.maximum.accumulate(rows["time_max_ns"])
    begins = np.maximum.accumulate(rows["time_min_ns"])
    points = []
    for edge in edges.tolist():
        at = int(np.searchsorted(ends, edge, side="right"))  # these blocks had come as wholes
        last = int(rows["first"][at - 1] + rows["span"][at - 1] - 1) if at else int(rows["first"][0]) - 1
        if at < len(rows) and begins[at] < edge:
            part = (edge - begins[at]) / max(1, ends[at] - begins[at])
            last = int(rows["first"][at] + part * (rows["span"][at] - 1))
        points.append((int(edge), last))
    return points
