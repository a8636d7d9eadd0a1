"""What a store and its streams look like to people and scripts: JSON with the keys of the NATS JetStream API."""

import html
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from storage_core.metadata.state import StoreState, StreamState
from storage_core.store.index import VolumeIndex
from storage_core.store.volumes import Volume

if TYPE_CHECKING:
    from storage_core.store.store import Store

ZERO_TIME = "0001-01-01T00:00:00Z"  # what NATS shows for no time


def rfc3339(time_ns: int) -> str:
    """Return the time in UTC with nanoseconds, for example 2026-01-31T23:59:59.000000001Z."""
    seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{nanoseconds:09d}Z"


def store_info(state: StoreState, volumes: Sequence[Volume]) -> dict[str, Any]:
    """Return the shape of `store info --json`."""
    streams = state.streams.values()
    return {
        "store_id": state.store_id.hex(),
        "created": rfc3339(state.created_ns),
        "settings": {
            "graveyard_keep": state.settings.graveyard_keep,
            "snapshot_every": state.settings.snapshot_every,
        },
        "host": state.host,
        "volumes": [
            {
                "name": one.name,
                "instance": one.identity.instance_id.hex() if one.identity is not None else None,
                "path": str(one.path),
            }
            for one in volumes
        ],
        "streams": len(streams),
        "messages": sum(one.message_count for one in streams),
        "bytes": sum(one.data_size for one in streams),
    }


def stream_info(store: "Store", stream: StreamState) -> dict[str, Any]:
    """Return the shape of `stream info --json`."""
    first, last = stream.first_sequence, stream.next_sequence - 1
    return {
        "config": stream.config.to_json(),
        "created": rfc3339(stream.created_ns),
        "state": {
            "messages": stream.message_count,
            "bytes": stream.data_size,
            "first_seq": first if last else 0,
            "first_ts": _time_of(store, stream, first),
            "last_seq": last,
            "last_ts": _time_of(store, stream, _last_shown(stream)),
            "num_deleted": max(0, last + 1 - first - stream.message_count) if last else 0,
            "consumer_count": 0,
            "incarnation": stream.incarnation.hex(),
            "lost_ranges": [list(one) for one in stream.lost.ranges()],
        },
        "cluster": _replicas(store, stream),
    }


def _last_shown(stream: StreamState) -> int:
    last = stream.next_sequence - 1
    if stream.removed and int(stream.removed.ends[-1]) == stream.next_sequence:
        last = int(stream.removed.starts[-1]) - 1
    return last


def _time_of(store: "Store", stream: StreamState, sequence: int) -> str:
    from storage_core.errors import StorageError
    from storage_core.store import contents

    if not stream.floor <= sequence < stream.next_sequence or not stream.message_count:
        return ZERO_TIME
    try:
        found = next(contents.messages(store, stream, sequence, sequence + 1), None)
    except StorageError:
        return ZERO_TIME  # what is damaged is told by the replica's state, not by failing to show the rest
    return rfc3339(found.timestamp_ns) if found is not None else ZERO_TIME


def _replicas(store: "Store", stream: StreamState) -> dict[str, Any]:
    """Return the volumes of the placement with what their files say: names and sizes, and the last verification."""
    replicas = [_replica(store, stream, one) for one in store.volumes() if one.volume_id in stream.placement]
    return {"leader": replicas[0]["name"], "replicas": replicas}


def _replica(store: "Store", stream: StreamState, volume: Volume) -> dict[str, Any]:
    held = VolumeIndex(store.environment.files, volume.path).stream(stream.incarnation).blocks
    rows = stream.blocks.rows
    bad = [row for row in rows if not _looks_whole(held.get(bytes(row["block_id"])), int(row["file_size"]))]
    missing = sum(1 for row in bad if bytes(row["block_id"]) not in held)
    state = "current" if not bad else "missing" if missing == len(rows) else "damaged"
    oldest_ns = min((abs(held.get(bytes(row["block_id"]), (0, 0))[1]) for row in rows), default=0)
    return {
        "name": volume.name,
        "current": not bad,
        "lag": 0,
        "state": state,
        "damaged_blocks": len(bad),
        "last_scrub": rfc3339(oldest_ns) if oldest_ns else None,
        "path": str(volume.path),
    }


def _looks_whole(held: tuple[int, int] | None, file_size: int) -> bool:
    """Return whether the volume has the block in its full size, and the last verification found nothing wrong."""
    return held is not None and held[0] == file_size and held[1] >= 0


def stream_html(info: dict[str, Any]) -> str:
    """Return a stream as a small table for notebooks."""
    state, config = info["state"], info["config"]
    return _table(
        f"Stream {config['name']}",
        [
            ("Subjects", ", ".join(config["subjects"])),
            ("Messages", f"{state['messages']:,}"),
            ("Bytes", f"{state['bytes']:,}"),
            ("Sequences", f"{state['first_seq']:,} to {state['last_seq']:,}"),
            ("Replicas", ", ".join(one["state"] for one in info["cluster"]["replicas"])),
        ],
    )


def store_html(info: dict[str, Any]) -> str:
    """Return a store as a small table for notebooks."""
    return _table(
        "Store",
        [
            ("Volumes", ", ".join(one["path"] for one in info["volumes"])),
            ("Streams", f"{info['streams']:,}"),
            ("Messages", f"{info['messages']:,}"),
            ("Bytes", f"{info['bytes']:,}"),
        ],
    )


def _table(title: str, rows: list[tuple[str, str]]) -> str:
    body = "".join(f"<tr><th>{html.escape(key)}</th><td>{html.escape(value)}</td></tr>" for key, value in rows)
    return f"<table><caption>{html.escape(title)}</caption>{body}</table>"
