"""What is wrong with a store, worst first, and the command that mends it: the sentence on top of every page."""

from collections.abc import Mapping
from datetime import datetime, timezone
from shlex import quote
from typing import Any

from spark_stream.ui.site import Scan, Site

CRITICAL, WARNING, NOTE = "critical", "warning", "note"
_LEVELS = (CRITICAL, WARNING, NOTE)
DISK_FULL_SHARE = 0.9


def problems(site: Site, scan: Scan) -> list[dict[str, Any]]:
    """Return what has to be done: `level`, `what`, `why`, the `command` that does it, and the `page` that shows it."""
    found = [*_of_quorum(scan), *_of_volumes(scan), *_of_streams(scan), *_of_consumers(scan), *_of_disks(scan)]
    for one in found:
        if one["command"]:
            one["command"] = f"jstream {one['command']} --store {site.command_store}"
    return sorted(found, key=lambda one: _LEVELS.index(one["level"]))


def _problem(level: str, what: str, why: str | None, command: str, page: str) -> dict[str, Any]:
    return {"level": level, "what": what, "why": why or "", "command": command, "page": page}


def _of_quorum(scan: Scan) -> list[dict[str, Any]]:
    cluster = scan.cluster
    if cluster["voting"] >= cluster["quorum"]:
        return []
    what = f"{cluster['voting']} of {cluster['voters']} volumes can vote, {cluster['quorum']} are needed to write"
    return [_problem(CRITICAL, what, "Nothing can be written until a majority is back.", "repair", "/volumes")]


def _of_volumes(scan: Scan) -> list[dict[str, Any]]:
    found = []
    for one in scan.cluster["volumes"]:
        if one["state"] in ("current", "behind"):
            continue
        what = f"volume {scan.labels[one['name']]} is {one['state'].replace('_', ' ')}"
        found.append(_problem(WARNING, what, one["reason"], "repair", "/volumes"))
    return found


def _of_streams(scan: Scan) -> list[dict[str, Any]]:
    found = []
    for stream in scan.streams:
        name, lost = stream["config"]["name"], sum(end - first for first, end in stream["state"]["lost_ranges"])
        damaged = sum(copy["damaged_blocks"] for copy in stream["cluster"]["replicas"])
        if damaged:
            what = f"stream {name}: {_counted(damaged, 'damaged copy', 'damaged copies')} of blocks"
            found.append(_problem(WARNING, what, "", f"repair {quote(name)}", f"/streams/{name}/copies"))
        if lost:
            what = f"stream {name}: {_counted(lost, 'message')} lost for good"
            page = f"/streams/{name}/messages?at={stream['state']['lost_ranges'][0][0]}"
            found.append(_problem(NOTE, what, "No volume has them.", "", page))
    return found


def _of_consumers(scan: Scan) -> list[dict[str, Any]]:
    found = []
    for consumer in scan.consumers:
        if consumer["problem"]:
            stream, name = consumer["stream_name"], consumer["name"]
            command = f"consumer reset {quote(stream)} {quote(name)}"
            what = f"consumer {name} of stream {stream} does not go on"
            found.append(_problem(WARNING, what, consumer["problem"], command, f"/streams/{stream}/consumers/{name}"))
    return found


def _of_disks(scan: Scan) -> list[dict[str, Any]]:
    found = []
    for name, disk in scan.disks.items():
        if disk.free is not None and disk.total and disk.free < (1 - DISK_FULL_SHARE) * disk.total:
            share = 100 * (1 - disk.free / disk.total)
            what = f"the disk of volume {scan.labels.get(name, name)} is {share:.0f} % full"
            found.append(_problem(WARNING, what, "", "maintain", "/volumes"))
    return found


def health(site: Site, scan: Scan) -> dict[str, Any]:
    """Return `state` (ok, note, warning, critical), one `sentence`, and the `problems`."""
    listed = problems(site, scan)
    volumes = scan.cluster["volumes"]
    current = sum(volume["state"] == "current" for volume in volumes)
    lag = max((consumer["lag"]["messages"] for consumer in scan.consumers), default=0)
    state = listed[0]["level"] if listed else "ok"
    word = {"ok": "Healthy", NOTE: "Healthy", WARNING: "Needs attention", CRITICAL: "Broken"}[state]
    scrubbed = [volume["last_scrub"] for volume in volumes]
    scrub = f"last scrub {age_text(min(scrubbed), scan.time_ns)}" if all(scrubbed) else "never scrubbed as a whole"
    sentence = f"{word}: {current} of {len(volumes)} volumes current, worst lag {lag:,}, {scrub}"
    return {"state": state, "sentence": sentence, "problems": listed}


def age_text(time_text: str, now_ns: int) -> str:
    """Return how long ago a time in RFC 3339 was, for people."""
    then = datetime.fromisoformat(time_text[:19]).replace(tzinfo=timezone.utc).timestamp()
    return f"{span_text(now_ns / 1e9 - then)} ago"


def span_text(seconds: float) -> str:
    """Return a span of time in its largest unit."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def _counted(count: int, singular: str, plural: str = "") -> str:
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def worst_lag(scan: Scan) -> Mapping[str, Any] | None:
    """Return the consumer that is furthest behind in messages, None if there is none."""
    return max(scan.consumers, key=lambda one: (one["lag"]["messages"], one["lag"]["seconds"]), default=None)
