"""What is wrong with a store, for monitoring systems: problems with a level, from metadata and sizes alone.

Levels are those of Nagios plugins. A warning is what needs somebody soon, since a copy, a disk or a consumer is not
what it should be; critical is what has stopped: nothing can be written, no copy of a stream is good, a consumer waits
for a decision, or a limit for "critical" is reached.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from spark_stream.disks import space_of
from storage_core import Store
from storage_core.comparison import labels_of
from storage_core.quantities import format_duration, parse_time_ns
from storage_core.store.consumers.lag import consumer_report

EVENTS_OF_PROBLEMS = (
    "damaged", "missing", "foreign", "rolled_back", "retired", "rejoined", "repaired", "drift", "lost",
    "consumer_failed", "consumer_unreadable", "consumer_exhausted", "consumer_skipped", "query_failed",
    "query_unreadable",
)  # fmt: skip
_S, _DAY_NS = 10**9, 86_400 * 10**9


class Level(IntEnum):
    OK = 0
    WARNING = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class Problem:
    level: Level
    subject: str  # `volume disk-2`, `stream ORDERS`, `consumer billing of stream ORDERS`, `store`
    text: str

    def to_json(self) -> dict[str, str]:
        return {"level": self.level.name.lower(), "subject": self.subject, "text": self.text}


@dataclass(frozen=True, slots=True)
class Limit:
    """From which value on there is a warning, and from which on it is critical; None: never."""

    warning: float | None = None
    critical: float | None = None

    def level(self, value: float) -> Level:
        if self.critical is not None and value >= self.critical:
            return Level.CRITICAL
        return Level.WARNING if self.warning is not None and value >= self.warning else Level.OK


@dataclass(frozen=True, slots=True)
class Limits:
    lag_messages: Limit = Limit()
    lag_age_ns: Limit = Limit()
    scrub_age_ns: Limit = Limit(14 * _DAY_NS)
    used_share: Limit = Limit(0.90, 0.95)  # of the disk that a volume is on
    events_since_ns: int | None = None  # since 1970; None: events are no problems


def problems_of(store: Store, limits: Limits) -> list[Problem]:
    """Return what is wrong, the worst first. Reads no block, takes no lock."""
    cluster, now_ns = store.cluster_info(), time.time_ns()
    paths = [str(volume["path"]) for volume in cluster["volumes"]]
    labels = {volume["name"]: label for volume, label in zip(cluster["volumes"], labels_of(paths), strict=True)}
    found = [
        *_of_volumes(cluster, labels, limits),
        *_of_streams(store, labels, limits, now_ns),
        *_of_consumers(store, limits),
        *_of_events(store, labels, limits),
    ]
    return sorted(found, key=lambda problem: -problem.level)


def _of_volumes(cluster: Mapping[str, Any], labels: Mapping[str, str], limits: Limits) -> Iterator[Problem]:
    if cluster["leader"] is None:
        text = f"nothing can be written: {cluster['voting']} of {cluster['voters']} volumes can vote"
        yield Problem(Level.CRITICAL, "store", f"{text}, {cluster['quorum']} are needed")
    for volume in cluster["volumes"]:
        subject = f"volume {labels[volume['name']]}"
        if not volume["current"]:
            reason = f": {volume['reason']}" if volume["reason"] else ""
            yield Problem(Level.WARNING, subject, f"is {volume['state']}{reason}; `jstream repair` mends it")
        space = space_of(str(volume["path"]))  # of a disk that is gone the state of the volume says so
        used = 1 - space.free / space.size if space is not None and space.size else 0.0
        if space is not None and (level := limits.used_share.level(used)):
            yield Problem(level, subject, f"its disk is {used:.0%} full, {space.free:,} bytes are free")


def _of_streams(store: Store, labels: Mapping[str, str], limits: Limits, now_ns: int) -> Iterator[Problem]:
    for info in store.report():
        subject, replicas = f"stream {info['config']['name']}", info["cluster"]["replicas"]
        bad = [replica for replica in replicas if not replica["current"]]
        if bad and len(bad) == len(replicas):
            states = ", ".join(f"{labels[replica['name']]} {replica['state']}" for replica in bad)
            yield Problem(Level.CRITICAL, subject, f"no copy is current: {states}; `jstream repair` mends it")
        if damaged := [replica for replica in replicas if replica["damaged_blocks"]]:
            counts = ", ".join(f"{replica['damaged_blocks']} on {labels[replica['name']]}" for replica in damaged)
            yield Problem(Level.WARNING, subject, f"damaged blocks: {counts}; `jstream repair` mends it")
        if not info["state"]["messages"]:
            continue
        # A copy that was never checked counts from when its stream was made.
        checked = min(parse_time_ns(replica["last_scrub"] or info["created"], "time") for replica in replicas)
        if level := limits.scrub_age_ns.level(now_ns - checked):
            age = format_duration((now_ns - checked) // _DAY_NS * _DAY_NS or (now_ns - checked) // _S * _S)
            yield Problem(level, subject, f"some copy was not checked for {age}; `jstream scrub` does it")


def _of_consumers(store: Store, limits: Limits) -> Iterator[Problem]:
    for info in consumer_report(store, settle=False):
        subject = f"consumer {info['name']} of stream {info['stream_name']}"
        if info["problem"]:
            yield Problem(Level.CRITICAL, subject, f"does not go on: {info['problem']}")
        lag, age_s = info["lag"]["messages"], info["lag"]["seconds"]
        if level := limits.lag_messages.level(lag):
            yield Problem(level, subject, f"is {lag:,} messages behind")
        if lag and (level := limits.lag_age_ns.level(age_s * _S)):
            yield Problem(level, subject, f"has a message waiting for {age_s:,.0f} s")


def _of_events(store: Store, labels: Mapping[str, str], limits: Limits) -> Iterator[Problem]:
    if limits.events_since_ns is None:
        return
    counts: Counter[tuple[str, str]] = Counter()
    last: dict[tuple[str, str], str] = {}
    for event in store.events():
        if event["kind"] in EVENTS_OF_PROBLEMS and parse_time_ns(event["time"], "time") >= limits.events_since_ns:
            named = {**event, "volume": labels.get(event["volume"], event["volume"])}
            about = " ".join(f"{name} {named[name]}" for name in ("stream", "consumer", "volume") if named[name])
            counts[about, event["kind"]] += 1
            last[about, event["kind"]] = event["time"]
    for (about, kind), count in counts.items():
        times = "once" if count == 1 else f"{count} times"
        yield Problem(Level.WARNING, about or "store", f"event {kind} {times}, last at {last[about, kind]}")
