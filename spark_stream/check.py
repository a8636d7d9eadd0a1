"""What is wrong with a store and the pipelines that read it: for `jstream check`, pages, alerts and `cluster info`.

One fault is one problem: a volume that is away is not told again of each stream that has copies there, and messages
that no copy has are not told again of each volume that lacks them. A problem has a level, a sentence, and what to do.

Levels are those of Nagios plugins, and notes. Critical is what was lost or has stopped: messages that nobody has,
nothing can be written, a consumer waits for a decision, or a limit for "critical" is reached. A warning is what needs
somebody soon. A note is what people should know and nobody has to change.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from shlex import quote
from typing import Any

import numpy as np

from spark_stream.look.terminal import counted, show_span
from spark_stream.store_scan import Scan
from storage_core.metadata.events import KINDS, open_conditions
from storage_core.metadata.state import StreamState
from storage_core.quantities import parse_time_ns, rfc3339
from storage_core.sequences import SequenceSet
from storage_core.store.recovery import foreign
from storage_core.store.volume import losses
from storage_core.store.volume.state import VolumeState

STREAMS_NAMED = 3
_CLUSTER = ("cluster", "info")  # says which volumes are away, and why
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
    pipeline: str = ""

    def __str__(self) -> str:
        if self.pipeline:
            return f"pipeline {self.pipeline}"
        if self.consumer:
            return f"consumer {self.consumer} of stream {self.stream}"
        if self.stream:
            return f"stream {self.stream}"
        return f"volume {self.volume}" if self.volume else "store"


@dataclass(frozen=True, slots=True)
class Problem:
    kind: str  # one word for programs, from PROBLEM_KINDS
    level: Level
    about: About
    text: str  # continues `about`: "is missing"
    reason: str = ""
    advice: str = ""  # what to do, where it is more than the command
    command: tuple[str, ...] = ()  # arguments of `jstream` that repair it or say more, but for --store

    @property
    def sentence(self) -> str:
        return f"{self.about} {self.text}"


# The worst first, within a level.
PROBLEM_KINDS: Mapping[str, str] = {
    "messages_lost": "messages that were declared lost, and would still be in the stream",
    "messages_gone": "messages that no volume has, and that were not declared lost yet",
    "messages_away": "messages that only volumes which are away may have",
    "messages_back": "messages that were declared lost, and are there again",
    "messages_elsewhere": "messages that only another copy of the store has, or had",
    "not_writable": "too few volumes can vote",
    "unreadable": "the store cannot be read",
    "consumer_stopped": "a consumer that is stopped until you decide",
    "volume": "a volume that is not current, by its metadata",
    "copies_damaged": "a volume on which blocks are damaged or missing, of which others have good copies",
    "copies_behind": "a volume that has blocks to fetch",
    "pipeline_failed": "a pipeline whose last run failed, or that cannot be loaded",
    "pipeline_overdue": "a pipeline for which messages wait",
    "archive_failed": "an archive_command that fails",
    "disk_full": "a disk that fills",
    "consumer_behind": "a consumer behind by more messages than is allowed",
    "consumer_late": "a message that waits for a consumer for longer than is allowed",
    "not_checked": "a copy that was not checked for long",
    "events": "events of problems that may be over",
}
_RANKS = {kind: rank for rank, kind in enumerate(PROBLEM_KINDS)}
_OF_VOLUMES: Mapping[str, tuple[str, tuple[str, ...]]] = {  # what to do, by state
    "missing": ("{bring_back}; only if it is gone for good, repair rebuilds it", ("repair",)),
    "foreign": (
        "bring the right {medium} back, or give the volume another place: `jstream cluster volume replace`",
        _CLUSTER,
    ),
    "rolled_back": ("nothing: the next write brings it up to date", ("maintain",)),
    "behind": ("nothing: maintenance fetches what it missed", ("maintain",)),
    "retired": ("check the {medium}, then repair", ("repair",)),
    "damaged": ("", ("repair",)),
}


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
    pipeline_age_ns: Limit = Limit(_DAY_NS)  # since the last run of a pipeline for which messages wait
    events_since_ns: int | None = None  # since 1970; None: events are no problems
    losses_since_ns: int = 0  # losses that were declared before are known, and notes


def problems_of(scan: Scan, limits: Limits, pipelines: Sequence[Mapping[str, Any]] = ()) -> list[Problem]:
    """Return what is wrong, the worst first. `pipelines`: as `pipelines.status.short_status` has them."""
    problems = [
        *_of_losses(scan, limits),
        *_of_other_copies(scan),
        *_of_volumes(scan, limits),
        *_of_streams(scan, limits),
        *_of_consumers(scan, limits),
        *_of_pipelines(scan, limits, pipelines),
        *_of_events(scan, limits),
    ]
    return sorted(problems, key=lambda problem: (-problem.level, _RANKS[problem.kind]))


# --- messages


def _of_losses(scan: Scan, limits: Limits) -> Iterator[Problem]:
    """Yield what is lost, what no volume at hand has, and what came back of what was lost."""
    for stream in sorted(scan.state.streams.values(), key=lambda stream: stream.name):
        recoverable, holders = scan.survey.recoverable(stream)
        lost = stream.lost.clip(stream.low_watermark, stream.next_sequence).difference(recoverable)
        if lost:
            known = limits.losses_since_ns and limits.losses_since_ns > _last_loss_ns(scan, stream)
            text = f"has {_messages(lost)} lost for good"
            command = ("events", "--kind", "lost", "--stream", stream.name)
            level = Level.NOTE if known else Level.CRITICAL
            advice = "a backup may have them; `--losses-since` passes over what is known"
            yield Problem("messages_lost", level, _at(stream, lost), text, "No volume has them", advice, command)
        for unread in scan.survey.unread(stream):
            about, text = _at(stream, unread.sequences), f"has {_messages(unread.sequences)} on no volume at hand"
            if unread.places:
                advice = "bring that back first; no repair gives them up without --accept-loss"
                reason = f"they may be on {', '.join(map(str, unread.places))}"
                yield Problem("messages_away", Level.CRITICAL, about, text, reason, advice)
            else:
                advice = "nothing else may have them: a repair keeps what is whole, and declares the rest lost"
                yield Problem("messages_gone", Level.CRITICAL, about, text, "", advice, _repair(scan, stream.name))
        if recoverable:
            where = ", ".join(scan.labels.get(volume_id.hex(), volume_id.hex()) for volume_id in holders)
            about, text = _at(stream, recoverable), f"has {_messages(recoverable)} again that were declared lost"
            take_back = ("repair", "--take-back", stream.name)
            yield Problem("messages_back", Level.WARNING, about, text, f"they are on {where}", command=take_back)


def _of_other_copies(scan: Scan) -> Iterator[Problem]:
    """Yield what other copies of the store have, or had, that this one does not have."""
    for volume in scan.survey.volumes:
        label = scan.labels.get(volume.name, volume.name)
        is_foreign = scan.survey.status(volume.volume_id).state is VolumeState.FOREIGN
        for messages in foreign.messages_of(scan.state, volume) if is_foreign else ():
            text = f"has {_messages(SequenceSet.decode(messages.sequences))} that the store does not have"
            text, about = f"{text} on volume {label}", About(label, messages.stream)
            reason = "another copy of the store had them"
            advice = "a repair sets its log aside, and keeps their blocks for `jstream export --set-aside`"
            yield Problem("messages_elsewhere", Level.WARNING, about, text, reason, advice)
    for messages in scan.state.set_aside:
        label = scan.labels.get(messages.volume_id.hex(), messages.volume_id.hex())
        text = f"had {_messages(SequenceSet.decode(messages.sequences))} more in another copy of the store"
        reason = f"its log is in {label}/{messages.directory}; their blocks are kept"
        advice = f"`jstream export --set-aside {messages.stream} FILE` writes them to a file; then give them up"
        about, command = About(stream=messages.stream), ("repair", "--discard-lost")
        yield Problem("messages_elsewhere", Level.WARNING, about, text, reason, advice, command)


def _at(stream: StreamState, sequences: SequenceSet) -> About:
    return About(stream=stream.name, sequence=sequences.bounds[0])


def _messages(sequences: SequenceSet) -> str:
    """Return how many messages these are, and which: `10 messages (1 to 10)`."""
    count = len(sequences)
    return f"{count:,} message{'' if count == 1 else 's'} ({losses.ranges_text(sequences)})"


def _last_loss_ns(scan: Scan, stream: StreamState) -> int:
    """Return when messages of a stream were declared lost last; 0 if no event knows."""
    times = (event.time_ns for event in scan.state.events if (event.kind, event.stream) == ("lost", stream.name))
    return max(times, default=0)


# --- volumes


def _of_volumes(scan: Scan, limits: Limits) -> Iterator[Problem]:
    cluster = scan.cluster
    is_writable = cluster["leader"] is not None
    if not is_writable:
        text = f"cannot be written: {cluster['voting']} of {cluster['voters']} volumes can vote"
        text = f"{text}, {cluster['quorum']} are needed"
        advice = "bring a volume back; if none can be, `jstream repair --adopt` says what the others can do alone"
        yield Problem("not_writable", Level.CRITICAL, About(), text, "", advice, _CLUSTER)
    may_return = {
        place.volume_id
        for stream in scan.state.streams.values()
        for unread in scan.survey.unread(stream)
        for place in unread.places
    }
    for volume in scan.survey.volumes:
        about, status = About(volume=scan.labels[volume.name]), scan.survey.status(volume.volume_id)
        is_fault = status.state != VolumeState.CURRENT and (is_writable or not scan.survey.can_vote(volume.volume_id))
        if is_fault:
            advice, command = _OF_VOLUMES[status.state]
            if volume.volume_id in may_return:
                advice, command = "bring it back first: it may have messages that no other volume has", _CLUSTER
            elif not is_writable:
                advice, command = "bring it back", _CLUSTER
            advice = advice.format(bring_back=losses.bring_back(volume.path), medium=losses.medium(volume.path))
            text, reason = f"is {str(status.state).replace('_', ' ')}", status.reason or volume.reason or ""
            yield Problem("volume", Level.WARNING, about, text, reason, advice, command)
        elif is_writable:
            yield from _of_copies(scan, volume.volume_id, about)
        space = scan.spaces.get(volume.name)
        used = 1 - space.free / space.size if space is not None and space.size else 0.0
        if space is not None and (level := limits.used_share.level(used)):
            text = f"is on a disk that is {used:.0%} full, {space.free:,} bytes are free"
            yield Problem("disk_full", level, about, text, command=("maintain",))


def _of_copies(scan: Scan, volume_id: bytes, about: About) -> Iterator[Problem]:
    """Yield what is wrong with the blocks on a volume that takes part, but for those that are whole nowhere."""
    bad: Counter[str] = Counter()
    behind: Counter[str] = Counter()
    reasons = {}
    for stream in scan.state.streams.values():
        if volume_id not in stream.placement:
            continue
        copies = scan.survey.block_copies(stream, stream.placement.index(volume_id))
        lacking = ~copies.whole & scan.survey.whole_somewhere(stream)
        was_written = (copies.file_sizes >= 0) | copies.taken
        bad[stream.name] = int(np.count_nonzero(lacking & was_written))
        behind[stream.name] = int(np.count_nonzero(lacking & ~was_written))
        if (lacking & was_written).any() and not (copies.file_sizes >= 0).any():
            replica = next(replica for replica in scan.survey.replicas(stream) if replica.volume_id == volume_id)
            reasons[stream.name] = replica.reason
    for kind, counts, text, advice, verb in (
        ("copies_damaged", bad, "has {} damaged or missing", "", "repair"),
        ("copies_behind", behind, "has {} to fetch", "nothing: maintenance fetches them", "maintain"),
    ):
        counts = +counts
        if counts:
            what = text.format(f"{counted(sum(counts.values()), 'block')} of {_streams(sorted(counts))}")
            named = tuple(counts) if len(counts) == 1 and verb == "repair" else ()
            command = _repair(scan, *named) if verb == "repair" else (verb,)
            reason = "; ".join(reasons.values()) if kind == "copies_damaged" else ""
            yield Problem(kind, Level.WARNING, about, what, reason, advice, command)


def _streams(names: Sequence[str]) -> str:
    shown = ", ".join(names[:STREAMS_NAMED]) + (", ..." if len(names) > STREAMS_NAMED else "")
    return f"stream{'' if len(names) == 1 else 's'} {shown}"


def _repair(scan: Scan, *streams: str) -> tuple[str, ...]:
    """Return the repair of all streams or one. It is refused where too few volumes can vote: then what is missing."""
    return ("repair", *streams) if scan.cluster["leader"] is not None else _CLUSTER


# --- streams, consumers, pipelines


def _of_streams(scan: Scan, limits: Limits) -> Iterator[Problem]:
    for info in scan.streams:
        name, replicas = info["config"]["name"], info["cluster"]["replicas"]
        if info["state"]["messages"]:
            # A copy that was never checked counts from when its stream was made.
            checked = min(parse_time_ns(replica["last_scrub"] or info["created"], "time") for replica in replicas)
            age_ns = scan.time_ns - checked
            if level := limits.scrub_age_ns.level(age_ns):
                text = f"has a copy that was not checked for {show_span(age_ns / _S)}"
                yield Problem("not_checked", level, About(stream=name), text, command=("scrub", name))
    for event in open_conditions(scan.state.events, "archive_failed"):
        times = f" {counted(event.count, 'time')}" if event.count > 1 else ""
        text = f"has an archive_command that fails{times}, since {rfc3339(event.time_ns)}"
        advice = "blocks that go stay on disk until it succeeds"
        command = ("stream", "info", event.stream)
        if scan.state.stream(event.stream) is not None:
            yield Problem(
                "archive_failed", Level.WARNING, About(stream=event.stream), text, event.reason, advice, command
            )


def _of_consumers(scan: Scan, limits: Limits) -> Iterator[Problem]:
    for info in scan.consumers:
        stream, name = info["stream_name"], info["name"]
        about = About(stream=stream, consumer=name)
        if info["problem"]:
            command = ("consumer", "reset", stream, name)
            yield Problem("consumer_stopped", Level.CRITICAL, about, "is stopped", info["problem"], command=command)
        report = ("consumer", "info", stream, name)
        lag, age_s = info["lag"]["messages"], info["lag"]["seconds"]
        if level := limits.lag_messages.level(lag):
            text = f"is {counted(lag, 'message')} behind"
            yield Problem("consumer_behind", level, about, text, command=report)
        if lag and (level := limits.lag_age_ns.level(age_s * _S)):
            text = f"has a message waiting for {show_span(age_s)}"
            yield Problem("consumer_late", level, about, text, command=report)


def _of_pipelines(scan: Scan, limits: Limits, pipelines: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    for status in pipelines:
        about, command = About(pipeline=status["pipeline"]), ("etl", "status", status["file"])
        if status["error"]:
            yield Problem("pipeline_failed", Level.WARNING, about, "cannot be read", status["error"])
            continue
        run, lag = status["last_run"], status["lag"] or 0
        waiting = f"{counted(lag, 'message')} wait{'s' if lag == 1 else ''}" if lag else "no message waits"
        if run is not None and not run["ok"] and not status["running"]:
            text = f"failed in its last run, {run['started']}; {waiting}"
            yield Problem("pipeline_failed", Level.WARNING, about, text, run["error"] or "", "", command)
        elif lag and not status["running"]:
            ended_s = _ended_s(run) if run is not None else 0.0
            age_s = scan.time_ns / _S - ended_s
            if run is None:
                text = f"has never run; {waiting}"
                yield Problem("pipeline_overdue", Level.WARNING, about, text, command=command)
            elif level := limits.pipeline_age_ns.level(age_s * _S):
                text = f"has not run for {show_span(age_s)}; {waiting}"
                yield Problem("pipeline_overdue", level, about, text, command=command)


def _ended_s(run: Mapping[str, Any]) -> float:
    """Return when a run ended, in seconds since 1970."""
    started = datetime.fromisoformat(str(run["started"]).replace("Z", "+00:00"))
    return started.timestamp() + float(run["duration_s"])


def _of_events(scan: Scan, limits: Limits) -> Iterator[Problem]:
    if limits.events_since_ns is None:
        return
    counts: Counter[tuple[str, str, str, str]] = Counter()
    last: dict[tuple[str, str, str, str], int] = {}
    for event in scan.state.events:
        time_ns = event.last_ns or event.time_ns
        if event.kind in KINDS and KINDS[event.kind].is_problem and time_ns >= limits.events_since_ns:
            volume = scan.labels.get(event.volume, event.volume)
            key = (volume, event.stream, event.consumer, event.kind)
            counts[key] += event.count or 1
            last[key] = max(last.get(key, 0), time_ns)
    for key, count in counts.items():
        volume, stream, consumer, kind = key
        times = "once" if count == 1 else f"{count} times"
        where = f" on volume {volume}" if volume and stream else ""
        text = f"had event {kind} {times}{where}, last at {rfc3339(last[key])}"
        yield Problem("events", Level.WARNING, About(volume, stream, consumer), text, command=("events",))


def command_line(problem: Problem, store: str = "") -> str:
    """Return the command of a problem as a shell has it; empty if there is none."""
    if not problem.command:
        return ""
    return " ".join(map(quote, ("jstream", *problem.command))) + (f" --store {store}" if store else "")


def sentence_of(problem: Problem) -> str:
    """Return what is wrong with the thing that a problem is about, and what to do, for a line of its own."""
    text = f"{problem.text}: {problem.reason}" if problem.reason else problem.text
    advice = f"; {problem.advice}" if problem.advice else ""
    return f"{text}{advice}"
