"""What a store and its streams look like to people and scripts: JSON with the keys of the NATS JetStream API."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from storage_core.errors import StorageError
from storage_core.metadata.commands import Event, ids_of_voters
from storage_core.metadata.events import KINDS
from storage_core.metadata.state import StoreState, StreamState
from storage_core.quantities import rfc3339, whole_number
from storage_core.raft.rules import majority
from storage_core.store.opened import OpenStore
from storage_core.store.volume.volumes import Volume
from storage_core.suggestions import instead

if TYPE_CHECKING:
    from storage_core.store.replicas.replicas import Replica, Survey

ZERO_TIME = "0001-01-01T00:00:00Z"  # what NATS shows for no time


# --- the store and its volumes


def store_info(state: StoreState, volumes: Sequence[Volume]) -> dict[str, Any]:
    """Return the shape of `store info --json`."""
    streams = state.streams.values()
    return {
        "store_id": state.store_id.hex(),
        "created": rfc3339(state.created_ns),
        "settings": state.settings.to_json(),
        "host": state.host,
        "volumes": [
            {
                "name": volume.name,
                "instance": volume.identity.instance_id.hex() if volume.identity is not None else None,
                "path": str(volume.path),
            }
            for volume in volumes
            if state.voter(volume.volume_id) is not None
        ],
        "streams": len(streams),
        "messages": sum(stream.message_count for stream in streams),
        "bytes": sum(stream.data_size for stream in streams),
    }


def cluster_info(survey: "Survey") -> dict[str, Any]:
    """Return the shape of `cluster info --json`: each volume with its metadata and all copies on it taken together."""
    view = survey.view
    copies: dict[bytes, list[tuple[str, Replica]]] = {}
    for stream in view.state.streams.values():
        for replica in survey.replicas(stream):
            copies.setdefault(replica.volume_id, []).append((stream.name, replica))
    voters = ids_of_voters(view.state.voters)
    return {
        "name": view.state.store_id.hex(),
        "leader": _name(survey.leader(voters)),
        "term": view.term,
        "index": view.index,
        "generation": view.commit.generation if view.commit is not None else None,
        "voters": len(voters),
        "voting": sum(survey.can_vote(volume_id) for volume_id in voters),
        "quorum": majority(len(voters)),
        "volumes": [_volume(survey, volume, copies.get(volume.volume_id, [])) for volume in survey.volumes],
        "pending_deletes": _pending_deletes(view.state),
        "change": _change(view.state),
    }


def _volume(survey: "Survey", volume: Volume, copies: "Sequence[tuple[str, Replica]]") -> dict[str, Any]:
    from storage_core.store.replicas.replicas import worst

    status, voter = survey.status(volume.volume_id), survey.view.state.voter(volume.volume_id)
    state = worst([status.state, *(replica.state for _, replica in copies)])
    reason = status.reason or "; ".join(
        f"stream {name}: {replica.reason}" for name, replica in copies if replica.reason
    )
    scrubbed_ns = min((replica.last_scrub_ns for _, replica in copies if replica.block_count), default=0)
    return {
        "name": volume.name,
        "instance": volume.identity.instance_id.hex() if volume.identity is not None else None,
        "path": str(volume.path),
        "state": str(state),
        "reason": reason or None,
        "current": state == "current",
        "lag": survey.lag(volume.volume_id),
        "applied": status.index,
        "voter": voter is not None and not voter.learner,
        "learner": voter is not None and voter.learner,
        "retired": voter is not None and bool(voter.retired),
        "blocks": sum(replica.block_count for _, replica in copies),
        "bytes": sum(replica.size for _, replica in copies),
        "disk_bytes": {
            "live": sum(replica.size for _, replica in copies),
            "pending_delete": survey.pending_delete_size(volume.volume_id),
            "metadata": survey.metadata_size(volume.volume_id),
        },
        "damaged_blocks": sum(replica.damaged_blocks for _, replica in copies),
        "last_scrub": rfc3339(scrubbed_ns) if scrubbed_ns else None,
    }


def _name(volume_id: bytes | None) -> str | None:
    return None if volume_id is None else volume_id.hex()


def _pending_deletes(state: StoreState) -> dict[str, Any]:
    """Return how many blocks wait to be unlinked, and when maintenance may free the first of them, and all."""
    deletes, retention_ns = state.deletes, state.settings.deleted_block_retention
    deletes = deletes[deletes["block_id"] != np.void(bytes(16))]  # an empty id stands for a directory
    dropped_ns = deletes["dropped_ns"]
    return {
        "blocks": len(deletes),
        "freed_from": rfc3339(int(dropped_ns.min()) + retention_ns) if len(deletes) else None,
        "freed_by": rfc3339(int(dropped_ns.max()) + retention_ns) if len(deletes) else None,
    }


def _change(state: StoreState) -> dict[str, Any] | None:
    change = state.volume_change
    if change is None:
        return None
    return {
        "kind": change.kind,
        "added": [volume_id.hex() for volume_id in change.added],
        "removed": [volume_id.hex() for volume_id in change.removed],
        "started": rfc3339(change.started_ns),
    }


# --- streams


def stream_info(store: OpenStore, stream: StreamState, survey: "Survey | None" = None) -> dict[str, Any]:
    """Return the shape of `stream info --json`. Reads the first and last message if metadata has not their times."""
    times = (_time_of(store, stream, stream.first_sequence), _time_of(store, stream, _last_shown(stream)))
    return {**stream_summary(stream, times), "cluster": stream_cluster(survey or store.survey(), stream)}


def stream_report(store: OpenStore, names: Sequence[str] | None, exact_times: bool) -> list[dict[str, Any]]:
    """Return streams in the shape of `stream info --json`; None: all of them, by name."""
    survey = store.survey()
    state = survey.view.state
    streams = by_name(state) if names is None else [store.stream_state(name, state) for name in names]
    if exact_times:
        return [stream_info(store, stream, survey) for stream in streams]
    return [{**stream_summary(stream), "cluster": stream_cluster(survey, stream)} for stream in streams]


def stream_summary(stream: StreamState, times: tuple[str, str] | None = None) -> dict[str, Any]:
    """Return `stream info --json` without its cluster, from metadata alone.

    `times`: of the first and last message; by default the bounds of the first and the last block stand for them.
    """
    first, last = stream.first_sequence, stream.next_sequence - 1
    first_ts, last_ts = times or _block_times(stream)
    return {
        "config": stream.config.to_json(),
        "created": rfc3339(stream.created_ns),
        "state": {
            "messages": stream.message_count,
            "bytes": stream.data_size,
            "first_seq": first if last else 0,
            "first_ts": first_ts,
            "last_seq": last,
            "last_ts": last_ts,
            "num_duplicates": stream.duplicate_count,
            "num_deleted": max(0, last + 1 - first - stream.message_count) if last else 0,
            "consumer_count": len(stream.consumers),
            "incarnation": stream.incarnation.hex(),
            "lost_ranges": [list(lost) for lost in stream.lost.ranges()],
        },
    }


def by_name(state: StoreState) -> list[StreamState]:
    return sorted(state.streams.values(), key=lambda stream: stream.name)


def _block_times(stream: StreamState) -> tuple[str, str]:
    rows = stream.blocks.rows
    if not stream.message_count or not len(rows):
        return ZERO_TIME, ZERO_TIME
    return rfc3339(int(rows["time_min_ns"][0])), rfc3339(int(rows["time_max_ns"][-1]))


def _last_shown(stream: StreamState) -> int:
    last = stream.next_sequence - 1
    if stream.removed and stream.removed.last_run[1] == stream.next_sequence:
        last = stream.removed.last_run[0] - 1
    return last


def _time_of(store: OpenStore, stream: StreamState, sequence: int) -> str:
    if not stream.low_watermark <= sequence < stream.next_sequence or not stream.message_count:
        return ZERO_TIME
    rows = stream.blocks.rows[stream.blocks_in(sequence, sequence + 1)]
    if len(rows) and rows["time_min_ns"][0] == rows["time_max_ns"][0]:
        return rfc3339(int(rows["time_min_ns"][0]))
    from storage_core.store.contents import messages  # what is known without reading is shown without Arrow

    try:
        message = next(messages(store, stream, sequence, sequence + 1), None)
    except StorageError:
        return ZERO_TIME  # what is damaged is shown by the replica's state, not by failing to show the rest
    return rfc3339(message.timestamp_ns) if message is not None else ZERO_TIME


def stream_cluster(survey: "Survey", stream: StreamState) -> dict[str, Any]:
    """Return the volumes of the placement, the leader too."""
    return {
        "leader": _name(survey.leader(stream.placement)),
        "replicas": [
            {
                "name": replica.name,
                "current": replica.current,
                "lag": replica.lag,
                "state": str(replica.state),
                "reason": replica.reason or None,
                "damaged_blocks": replica.damaged_blocks,
                "missing_blocks": replica.missing_blocks,
                "disk_bytes": replica.size,
                "last_scrub": rfc3339(replica.last_scrub_ns) if replica.last_scrub_ns else None,
                "path": str(replica.path),
                "digest": replica.digest,
                "applied": replica.applied,
            }
            for replica in survey.replicas(stream)
        ],
    }


# --- events


def events(
    state: StoreState, limit: int | None = None, stream: str | None = None, kind: str | None = None
) -> list[dict[str, Any]]:
    """Return what happened, oldest first: the newest `limit` events of this stream and kind, None for all.

    Raises ValueError for a kind that there is not, and for a limit below 0.
    """
    if limit is not None and (whole_number(limit) is None or limit < 0):
        raise ValueError(f"limit: {limit!r} is no number of events")
    if kind is not None:
        kinds = kinds_in(state)
        if kind not in kinds:
            hint = instead(str(kind), kinds)
            raise ValueError(f"kind: {kind!r} is no kind of event{hint}")
    chosen = [event for event in state.events if stream in (None, event.stream) and kind in (None, event.kind)]
    return [
        event_json(event) for event in (chosen if limit is None else chosen[len(chosen) - min(limit, len(chosen)) :])
    ]


def kinds_in(state: StoreState) -> list[str]:
    """Return the kinds that events may be of, and those that this program does not know, by name."""
    return sorted({*KINDS, *(event.kind for event in state.events)})


def event_json(event: Event) -> dict[str, Any]:
    """Return the shape of one element of `events --json`."""
    names = ("kind", "stream", "consumer", "volume", "before", "after", "reason")
    return {
        "time": rfc3339(event.time_ns),
        **{name: str(getattr(event, name)) or None for name in names},
        "count": event.count or None,
        "last_time": rfc3339(event.last_ns) if event.last_ns else None,
    }
