"""Pages about the store as a whole: overview, streams, consumers, volumes, events."""

from collections.abc import Mapping
from typing import Any

from spark_stream.store_scan import Scan
from spark_stream.ui.mirrors import mirror_of
from spark_stream.ui.model.health import health, worst_lag
from spark_stream.ui.model.rates import (
    SPANS,
    arrivals,
    positions_over_time,
    rate,
    seconds_to_catch_up,
    seconds_to_full,
)
from spark_stream.ui.model.settings import settings_of
from spark_stream.ui.query import Query
from spark_stream.ui.site import Site
from storage_core.errors import ConsumerNotFoundError
from storage_core.metadata.appends import MIRROR
from storage_core.metadata.state import StreamState
from storage_core.metadata.stream_changes import overlaps
from storage_core.quantities import parse_time_ns, rfc3339
from storage_core.store.consumers.ownership import owner_of
from storage_core.store.describe import event_json, events, kinds_in

STREAM_PAGE_COUNT = 100
CONSUMER_PAGE_COUNT = 200
EVENT_PAGE_COUNT = 200
NEWEST_EVENT_COUNT = 12
INCIDENT_GAP_S = 900  # events of one volume or consumer that are no further apart are one incident


def overview(site: Site, query: Query) -> dict[str, Any]:
    """Return the store at a glance."""
    scan = site.scan()
    state = scan.survey.view.state
    streams = list(state.streams.values())
    worst = worst_lag(scan)
    return {
        "store_id": state.store_id.hex(),
        "paths": [volume["path"] for volume in scan.cluster["volumes"]],
        "host": state.host,
        "index": scan.survey.view.index,
        "time": rfc3339(scan.time_ns),
        "health": health(site, scan),
        "streams": len(streams),
        "consumers": len(scan.consumers),
        "pipelines": _pipelines(site),
        "messages": sum(stream.message_count for stream in streams),
        "messages_per_second": round(rate(streams, scan.time_ns), 2),
        "bytes_per_second": round(rate(streams, scan.time_ns, "data_size")),
        "seconds_to_full": _seconds_to_full(scan),
        "bytes": sum(stream.data_size for stream in streams),
        "bytes_live": sum(volume["disk_bytes"]["live"] for volume in scan.cluster["volumes"]),
        "bytes_on_disk": sum(sum(volume["disk_bytes"].values()) for volume in scan.cluster["volumes"]),
        "bytes_to_be_freed": sum(volume["disk_bytes"]["pending_delete"] for volume in scan.cluster["volumes"]),
        "bytes_free": min((space.free for space in scan.spaces.values()), default=None),
        "worst_lag": None if worst is None else _short(worst),
        "arrivals": arrivals(streams, scan.time_ns, query.choice("span", SPANS)),
        "volumes": [_volume(scan, volume) for volume in scan.cluster["volumes"]],
        "events": [_shown_event(event_json(event), scan) for event in reversed(state.events[-NEWEST_EVENT_COUNT:])],
        "command": f"jstream cluster info --store {site.command_store}",
    }


def _seconds_to_full(scan: Scan) -> float | None:
    """Return when the first disk is full at the pace of the last minute, None if nothing comes in."""
    paces = dict.fromkeys(scan.spaces, 0.0)
    for stream in scan.survey.view.state.streams.values():
        pace = rate([stream], scan.time_ns, "file_size")
        for volume_id in stream.placement:
            if volume_id.hex() in paces:
                paces[volume_id.hex()] += pace
    return min((scan.spaces[name].free / pace for name, pace in paces.items() if pace), default=None)


def _pipelines(site: Site) -> dict[str, int] | None:
    """Return how many pipelines there are, run now and failed in their last run; None if none was named."""
    statuses = site.pipeline_statuses()
    if not statuses:
        return None
    runs = [status["last_run"] for status in statuses if not status["error"] and not status["running"]]
    failed = sum(run is not None and not run["ok"] for run in runs) + sum(bool(status["error"]) for status in statuses)
    running = sum(not status["error"] and bool(status["running"]) for status in statuses)
    waiting = sum(status.get("lag") or 0 for status in statuses)
    return {"count": len(statuses), "running": running, "failed": failed, "waiting": waiting}


def streams_page(site: Site, query: Query) -> dict[str, Any]:
    """Return streams whose names or subjects hold a text, a page of them."""
    scan = site.scan()
    wanted, start = query.text("search").casefold(), query.number("start", 0) or 0
    chosen = [
        described
        for described in scan.streams
        if wanted in described["config"]["name"].casefold()
        or any(wanted in text for text in described["config"]["subjects"])
    ]
    state = scan.survey.view.state
    lags: dict[str, int] = {}
    for consumer in scan.consumers:
        lags[consumer["stream_name"]] = max(lags.get(consumer["stream_name"], 0), consumer["lag"]["messages"])
    listed = []
    for described in chosen[start : start + STREAM_PAGE_COUNT]:
        stream = state.stream(described["config"]["name"])
        assert stream is not None
        listed.append(
            {**_stream(described, stream, scan), "worst_lag": lags.get(stream.name), "consumers": len(stream.consumers)}
        )
    return {
        "streams": listed,
        **_place_in(len(chosen), start, STREAM_PAGE_COUNT),
        "search": query.text("search"),
        "command": f"jstream stream report --store {site.command_store}",
    }


def _place_in(count: int, start: int, page_count: int) -> dict[str, Any]:
    """Return where a page stands in a list, and where its neighbours begin."""
    return {
        "count": count,
        "start": start,
        "next": start + page_count if start + page_count < count else None,
        "previous": max(0, start - page_count) if start else None,
    }


def _stream(info: Mapping[str, Any], stream: StreamState, scan: Scan) -> dict[str, Any]:
    rows = stream.blocks.rows
    return {
        "name": stream.name,
        "subjects": info["config"]["subjects"],
        "mirrors": info["config"]["metadata"].get(MIRROR),
        **info["state"],
        "lost": sum(end - first for first, end in info["state"]["lost_ranges"]),
        "bytes_on_disk": int(rows["file_size"].sum()) * len(stream.placement),
        "blocks": len(rows),
        "replicas": info["cluster"]["replicas"],
        "messages_per_second": round(rate([stream], scan.time_ns), 2),
        "bytes_per_second": round(rate([stream], scan.time_ns, "data_size")),
        "seconds_to_full": seconds_to_full(stream, scan.time_ns),
        "arrivals": arrivals([stream], scan.time_ns),
    }


def stream_head(site: Site, scan: Scan, stream: StreamState) -> dict[str, Any]:
    """Return what every page of one stream begins with."""
    mirror = mirror_of(site.mirror_lags, scan, stream)
    for described in scan.streams:
        if described["config"]["name"] == stream.name:
            more = {"config": described["config"], "created": described["created"], "mirror": mirror}
            return {**_stream(described, stream, scan), **more}
    return {"name": stream.name, "subjects": list(stream.config.subjects), "replicas": [], "mirror": mirror}


def configuration(site: Site, query: Query, name: str) -> dict[str, Any]:
    """Return a stream's configuration."""
    stream, scan = site.store().stream_state(name), site.scan()
    others = overlaps(scan.survey.view.state, name, stream.config.subjects)
    return {
        "stream": stream_head(site, scan, stream),
        "config": stream.config.to_json(),
        "overlaps": [overlap._asdict() for overlap in others],
        "settings": settings_of(stream.config.to_json()),
        "command": f"jstream stream info {name} --store {site.command_store}",
    }


# --- consumers


def _short(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of consumers."""
    kept = ("stream_name", "name", "num_ack_pending", "num_redelivered", "num_pending", "num_skipped", "paused", "lag")
    state = "stopped" if info["problem"] else "paused" if info["paused"] else "ok"
    return {
        **{key: info[key] for key in kept},
        "delivered": info["delivered"]["stream_seq"],
        "ack_floor": info["ack_floor"]["stream_seq"],
        "state": state,
        "problem": info["problem"],
    }


def _with_bounds(row: dict[str, Any], scan: Scan) -> dict[str, Any]:
    stream = scan.survey.view.state.stream(row["stream_name"])
    if stream is not None:
        row["first_seq"], row["last_seq"] = stream.first_sequence, stream.next_sequence - 1
    return row


def consumers_page(site: Site, query: Query) -> dict[str, Any]:
    """Return all consumers, those that are furthest behind first; or those of one stream."""
    scan = site.scan()
    wanted, start = query.text("search").casefold(), query.number("start", 0) or 0
    rows = [
        consumer
        for consumer in scan.consumers
        if wanted in consumer["name"].casefold() or wanted in consumer["stream_name"].casefold()
    ]
    rows = sorted(rows, key=lambda consumer: (consumer["problem"] is None, -consumer["lag"]["messages"]))
    return {
        "consumers": [_with_bounds(_short(row), scan) for row in rows[start : start + CONSUMER_PAGE_COUNT]],
        **_place_in(len(rows), start, CONSUMER_PAGE_COUNT),
        "search": query.text("search"),
        "command": f"jstream consumer report --store {site.command_store}",
    }


def consumer_page(site: Site, query: Query, name: str, consumer: str) -> dict[str, Any]:
    """Return one consumer: where it stands, how it came there."""
    scan = site.scan()
    stream = site.store().stream_state(name)
    info = next(
        (
            described
            for described in scan.consumers
            if (described["stream_name"], described["name"]) == (stream.name, consumer)
        ),
        None,
    )
    if info is None:
        raise ConsumerNotFoundError(name, consumer, (existing.name for existing in stream.consumers.values()))
    row = _with_bounds(_short(info), scan)
    arrived = arrivals([stream], scan.time_ns, query.choice("span", SPANS))
    span_ns = int(arrived["seconds_per_bucket"] * len(arrived["counts"]) * 1e9)
    points = positions_over_time(stream, scan.time_ns - span_ns, scan.time_ns)
    seen = site.seen(stream.name, consumer)
    return {
        "stream": stream_head(site, scan, stream),
        "consumer": row,
        "config": info["config"],
        "settings": settings_of(info["config"]),
        "query": owner_of(site.store(), stream, stream.consumers[consumer.casefold()]) or None,
        "unreadable_ranges": info["unreadable_ranges"],
        "events": [{**event, "page": None} for event in reversed(info["events"][-50:])],
        "positions": [[rfc3339(time_ns), last] for time_ns, last in points],
        "seen": [list(place) for place in seen],
        "seconds_to_catch_up": seconds_to_catch_up([(place.time_s, place.lag) for place in seen]),
        "span": arrived["span"],
        "span_s": [(scan.time_ns - span_ns) / 1e9, scan.time_ns / 1e9],
        "command": f"jstream consumer info {name} {consumer} --store {site.command_store}",
    }


# --- volumes


def _volume(scan: Scan, info: Mapping[str, Any]) -> dict[str, Any]:
    space = scan.spaces.get(info["name"])
    return {
        **info,
        "label": scan.labels[info["name"]],
        "leader": info["name"] == scan.cluster["leader"],
        "bytes_on_disk": sum(info["disk_bytes"].values()),
        "bytes_to_be_freed": info["disk_bytes"]["pending_delete"],
        "bytes_free": space.free if space is not None else None,
        "bytes_total": space.size if space is not None else None,
    }


def volumes_page(site: Site, query: Query) -> dict[str, Any]:
    """Return the volumes, their metadata and their disks."""
    scan = site.scan()
    kept = ("term", "index", "generation", "voters", "voting", "quorum", "change")
    return {
        "volumes": [_volume(scan, volume) for volume in scan.cluster["volumes"]],
        **{key: scan.cluster[key] for key in kept},
        "health": health(site, scan),
        "command": f"jstream cluster info --store {site.command_store}",
    }


# --- events


def _shown_event(event: dict[str, Any], scan: Scan) -> dict[str, Any]:
    volume = event["volume"]
    return {**event, "volume_label": scan.labels.get(volume, volume[:8]) if volume else None}


def events_page(site: Site, query: Query) -> dict[str, Any]:
    """Return the newest events of a kind or a stream, gathered into incidents, newest first."""
    scan = site.scan()
    state = scan.survey.view.state
    kind, stream = query.text("kind"), query.text("stream")
    before = query.number("before")
    listed = events(state, None, stream or None, kind or None)
    end = len(listed) if before is None else min(before, len(listed))
    chosen = [_shown_event(event, scan) for event in listed[max(0, end - EVENT_PAGE_COUNT) : end]]
    return {
        "incidents": _incidents(chosen),
        "count": len(listed),
        "older": end - EVENT_PAGE_COUNT if end > EVENT_PAGE_COUNT else None,
        "kind": kind,
        "stream": stream,
        "kinds": kinds_in(state),
        "command": f"jstream events --store {site.command_store}",
    }


def _incidents(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events of one volume, stream or consumer that follow each other closely as one incident, newest first."""
    open_incidents: dict[tuple[Any, ...], dict[str, Any]] = {}
    made = []
    for event in listed:
        key = (event["consumer"], event["stream"]) if event["consumer"] else (None, event["volume"] or event["stream"])
        time_ns = parse_time_ns(event["time"], "time")
        known = open_incidents.get(key)
        if known is None or time_ns - known["_last_ns"] > INCIDENT_GAP_S * 1_000_000_000:
            about = (
                f"consumer {event['consumer']} of {event['stream']}"
                if event["consumer"]
                else f"volume {event['volume_label']}"
                if event["volume"]
                else f"stream {event['stream']}"
                if event["stream"]
                else "store"
            )
            known = {"about": about, "begin": event["time"], "events": []}
            open_incidents[key] = known
            made.append(known)
        known["_last_ns"] = time_ns
        known["end"] = event["time"]
        known["events"].append(event)
    for known in made:
        known.pop("_last_ns")
    return sorted(made, key=lambda incident: incident["end"], reverse=True)
