"""What is wrong with a store, worst first, and the command that repairs it: for `jstream check` and for the pages.

Levels are those of Nagios plugins, and notes. Critical is what has stopped: nothing can be written, no copy of a stream
is good, a consumer waits for a decision, or a limit for "critical" is reached. A warning is what needs somebody soon,
since a copy, a disk or a consumer is not what it should be. A note is what people should know and nobody can change.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from spark_stream.store_scan import Scan
from storage_core.metadata.events import KINDS
from storage_core.quantities import format_duration, parse_time_ns
from storage_core.sequences import SequenceSet
from storage_core.store.describe import event_json
from storage_core.store.recovery import foreign
from storage_core.store.volume import losses
from storage_core.store.volume.state import VolumeState

ADOPT = ("repair", "--adopt")  # prints a plan of what the volumes that are left can do alone
_S, _DAY_NS = 10**9, 86_400 * 10**9


class Level(IntEnum):
    OK = 0
    NOTE = 1
    WARNING = 2
    CRITICAL = 3


@dataclass(frozen=True, slots=True)
class About:
    """What a problem is of. Nothing set: the whole store."""

    volume: str = ""  # what people call it
    stream: str = ""
    consumer: str = ""  # of that stream
    sequence: int = 0  # of that stream, where the problem begins

    def __str__(self) -> str:
        if self.consumer:
            return f"consumer {self.consumer} of stream {self.stream}"
        if self.stream:
            return f"stream {self.stream}"
        return f"volume {self.volume}" if self.volume else "store"


@dataclass(frozen=True, slots=True)
class Problem:
    level: Level
    about: About
    text: str  # goes on from `about`: "is missing"
    reason: str = ""
    command: tuple[str, ...] = ()  # arguments of `jstream` that repair it, but for --store

    @property
    def sentence(self) -> str:
        return f"{self.about} {self.text}"


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


def problems_of(scan: Scan, limits: Limits) -> list[Problem]:
    """Return what is wrong, the worst first."""
    problems = [
        *_of_volumes(scan, limits),
        *_of_streams(scan, limits),
        *_of_losses(scan),
        *_of_consumers(scan, limits),
        *_of_events(scan, limits),
    ]
    return sorted(problems, key=lambda problem: -problem.level)


def _of_volumes(scan: Scan, limits: Limits) -> Iterator[Problem]:
    cluster, repair = scan.cluster, _repair(scan)
    if cluster["leader"] is None:
        text = f"cannot be written: {cluster['voting']} of {cluster['voters']} volumes can vote"
        yield Problem(Level.CRITICAL, About(), f"{text}, {cluster['quorum']} are needed: bring one back", "", repair)
    for volume in cluster["volumes"]:
        about, space = About(volume=scan.labels[volume["name"]]), scan.spaces.get(volume["name"])
        if not volume["current"]:
            text = f"is {str(volume['state']).replace('_', ' ')}"
            reason = volume["reason"] or ""
            if volume["state"] == VolumeState.MISSING:
                reason += f"; {losses.bring_back(volume['path'])}; if it is gone for good, a repair makes it anew"
            yield Problem(Level.WARNING, about, text, reason, repair)
        used = 1 - space.free / space.size if space is not None and space.size else 0.0
        if space is not None and (level := limits.used_share.level(used)):
            text = f"is on a disk that is {used:.0%} full, {space.free:,} bytes are free"
            yield Problem(level, about, text, "", ("maintain",))


def _repair(scan: Scan, *streams: str) -> tuple[str, ...]:
    """Return the repair of all streams or one. It is refused where too few volumes can vote: then the way out."""
    return ("repair", *streams) if scan.cluster["leader"] is not None else ADOPT


def _of_streams(scan: Scan, limits: Limits) -> Iterator[Problem]:
    for info in scan.streams:
        name, replicas = info["config"]["name"], info["cluster"]["replicas"]
        about, repair = About(stream=name), _repair(scan, name)
        bad = [replica for replica in replicas if not replica["current"]]
        if bad and len(bad) == len(replicas):
            states = ", ".join(f"{replica['label']} {replica['state']}" for replica in bad)
            yield Problem(Level.CRITICAL, about, f"has no current copy: {states}", "", repair)
        if damaged := [replica for replica in replicas if replica["damaged_blocks"]]:
            counts = ", ".join(f"{replica['damaged_blocks']} on {replica['label']}" for replica in damaged)
            yield Problem(Level.WARNING, about, f"has damaged blocks: {counts}", "", repair)
        if ranges := info["state"]["lost_ranges"]:
            count = sum(end - first for first, end in ranges)
            text = f"has {count:,} {'sequence that is' if count == 1 else 'sequences that are'} lost for good"
            yield Problem(Level.NOTE, About(stream=name, sequence=ranges[0][0]), text, "No volume has them.")
        if not info["state"]["messages"]:
            continue
        # A copy that was never checked counts from when its stream was made.
        checked = min(parse_time_ns(replica["last_scrub"] or info["created"], "time") for replica in replicas)
        age_ns = scan.time_ns - checked
        if level := limits.scrub_age_ns.level(age_ns):
            age = format_duration(age_ns // _DAY_NS * _DAY_NS or age_ns // _S * _S)
            yield Problem(level, about, f"has a copy that was not checked for {age}", "", ("scrub", name))


def _of_losses(scan: Scan) -> Iterator[Problem]:
    """Yield what no volume at hand has, what came back of what was lost, and what another copy of the store had."""
    for stream in sorted(scan.state.streams.values(), key=lambda stream: stream.name):
        about = About(stream=stream.name)
        for unread in scan.survey.unread(stream):
            where = ", ".join(map(str, unread.places))
            text = f"has {_messages(unread.sequences)} on no volume at hand"
            if where:
                reason = (
                    f"They may be on {where}: bring that back first; no repair gives them up without --accept-loss."
                )
                yield Problem(Level.CRITICAL, about, text, reason)
            else:
                reason = "Nothing else may have them: a repair declares them lost."
                yield Problem(Level.CRITICAL, about, text, reason, _repair(scan, stream.name))
        sequences, holders = scan.survey.recoverable(stream)
        if sequences:
            where = ", ".join(scan.labels.get(volume_id.hex(), volume_id.hex()) for volume_id in holders)
            text = f"has {_messages(sequences)} again that were declared lost"
            yield Problem(Level.WARNING, about, text, f"They are on {where}.", ("repair", "--take-back", stream.name))
    for volume in scan.survey.volumes:
        label = scan.labels.get(volume.name, volume.name)
        is_foreign = scan.survey.status(volume.volume_id).state is VolumeState.FOREIGN
        for messages in foreign.messages_of(scan.state, volume) if is_foreign else ():
            text = f"has {_messages(SequenceSet.decode(messages.sequences))} that the store does not have"
            reason = "Another copy of the store had them; a repair sets its log aside, and keeps their blocks."
            yield Problem(Level.WARNING, About(label, messages.stream), f"{text} on volume {label}", reason)
    for messages in scan.state.set_aside:
        label = scan.labels.get(messages.volume_id.hex(), messages.volume_id.hex())
        text = f"had {_messages(SequenceSet.decode(messages.sequences))} more in another copy of the store"
        reason = f"Its log is in {label}/{messages.directory}; their blocks are kept."
        yield Problem(Level.WARNING, About(stream=messages.stream), text, reason, ("repair", "--discard-lost"))


def _messages(sequences: SequenceSet) -> str:
    count = len(sequences)
    return f"{count:,} message{'' if count == 1 else 's'} ({losses.ranges_text(sequences)})"


def _of_consumers(scan: Scan, limits: Limits) -> Iterator[Problem]:
    for info in scan.consumers:
        stream, name = info["stream_name"], info["name"]
        about = About(stream=stream, consumer=name)
        if info["problem"]:
            yield Problem(Level.CRITICAL, about, "does not go on", info["problem"], ("consumer", "reset", stream, name))
        lag, age_s = info["lag"]["messages"], info["lag"]["seconds"]
        if level := limits.lag_messages.level(lag):
            yield Problem(level, about, f"is {lag:,} messages behind")
        if lag and (level := limits.lag_age_ns.level(age_s * _S)):
            yield Problem(level, about, f"has a message waiting for {age_s:,.0f} s")


def _of_events(scan: Scan, limits: Limits) -> Iterator[Problem]:
    if limits.events_since_ns is None:
        return
    counts: Counter[tuple[str, str, str, str]] = Counter()
    last: dict[tuple[str, str, str, str], str] = {}
    for event in scan.state.events:
        is_problem = event.kind in KINDS and KINDS[event.kind].is_problem
        if is_problem and event.time_ns >= limits.events_since_ns:
            volume = scan.labels.get(event.volume, event.volume)
            key = (volume, event.stream, event.consumer, event.kind)
            counts[key] += 1
            last[key] = event_json(event)["time"]
    for key, count in counts.items():
        volume, stream, consumer, kind = key
        times = "once" if count == 1 else f"{count} times"
        where = f" on volume {volume}" if volume and stream else ""
        about = About(volume, stream, consumer)
        yield Problem(Level.WARNING, about, f"had event {kind} {times}{where}, last at {last[key]}", "", ("events",))
