"""Changes that somebody asks for on a page, with `--allow-changes`: first the plan, then the question, then the work.

    plan    what a change would do, by the store as it is now, and the command that does the same
    task    a change that was asked for: one at a time, in a thread, with a store opened for writing

A form carries what the plan showed, not what was typed: a purge ends where the stream ended then, a reset goes to the
sequence that was shown, and a stream that was deleted and made again meanwhile is another one. Who asked stands in the
event log before anything is done; where nothing can be written until a repair is done, behind it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from json import dumps
from shlex import join
from typing import Any
from urllib.parse import urlencode

from spark_stream.check import problems_of
from spark_stream.look.terminal import counted, show_size
from spark_stream.plans import (
    edit_removes,
    place_in,
    purge_frees,
    purge_scope,
    reset_plan,
    seconds_until,
    show_value,
)
from spark_stream.repairs import repair_sentences, repair_verdict
from spark_stream.ui.model.health import LIMITS
from spark_stream.ui.query import Query
from spark_stream.ui.replays import replay_command
from spark_stream.ui.site import READ_ERRORS, Site
from storage_core import Store
from storage_core.errors import NotFoundError, StaleIncarnationError, StorageError
from storage_core.metadata.commands import Event, RecordEvents
from storage_core.metadata.config import StreamConfig
from storage_core.quantities import parse_duration_ns, parse_size, rfc3339
from storage_core.sequences import SequenceSet
from storage_core.store.volume.losses import ranges_text
from storage_core.subjects import is_literal

TASKS_KEPT = 50
ANNOUNCE_INTERVAL_S = 1.0  # so often viewers get a change's progress
NAME_SIZE_MAX = 100  # letters of who asks
PROBLEM_COUNT_MAX = 50  # of a plan
DATA_SHOWN_MAX = 200  # letters of a message to be
Progress = Callable[[int, int], None]


class Busy(ValueError):
    """Another change is being made."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a change would do."""

    kind: str
    title: str
    command: tuple[str, ...]  # arguments of `jstream` that do the same, but for --store
    facts: Sequence[tuple[str, object]]
    work: Callable[[Store, Progress], str]  # does it, and returns what came of it
    fields: Mapping[str, str] = field(default_factory=dict)  # that make the same plan again
    stream: str = ""
    consumer: str = ""
    typed: str = ""  # what has to be typed before it is done
    repairs: bool = False  # it may be what makes the store writable
    others: Sequence[tuple[str, str]] = ()  # what may be done instead, and the page that plans it
    missing: str = ""  # what has to be said before it can be done
    then: tuple[str, str] = ("", "")  # where to go once it is done: words and page

    def to_json(self, site: Site) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "title": self.title,
            "command": f"{join(('jstream', *self.command))} --store {site.command_store}",
            "facts": [[name, value] for name, value in self.facts],
            "fields": dict(self.fields),
            "stream": self.stream,
            "consumer": self.consumer,
            "typed": self.typed,
            "others": [[words, page] for words, page in self.others],
            "missing": self.missing,
            "then": list(self.then),
        }


# --- plans


def plan_of(site: Site, query: Query, kind: str) -> Plan:
    """Return the plan of a change. Raises NotFoundError, ValueError, and what reading raises."""
    if kind not in KINDS:
        raise NotFoundError(f"there is no change {kind[:40]!r}; there are {', '.join(KINDS)}")
    return KINDS[kind](site, query)


def _repair(site: Site, query: Query) -> Plan:
    streams, loss = _streams(site, query), query.choice("loss", ("", *CONSENTS))
    consent = CONSENTS.get(loss, "")
    if loss == "discard" and streams:
        raise ValueError("loss: what was lost is discarded in the whole store, not in one stream")
    scope = f"stream {streams[0]}" if streams else "all streams"
    facts: list[tuple[str, object]] = [("what is repaired", f"all copies of {scope}")]
    problems = [problem for problem in problems_of(site.scan(), LIMITS) if problem.command[:1] == ("repair",)]
    chosen = [problem for problem in problems if not streams or problem.about.stream in ("", streams[0])]
    facts += [("to be done", problem.sentence) for problem in chosen[:PROBLEM_COUNT_MAX]]
    if not chosen:
        facts.append(("to be done", "nothing is known to be wrong; copies are checked all the same"))
    facts += _losses(site, streams, loss)

    def work(store: Store, progress: Progress) -> str:
        report = store.repair(streams or None, progress, **{name: name == consent for name in CONSENTS.values()})
        sentences = " ".join(f"{sentence}." for sentence in repair_sentences(report, site.scan().labels))
        is_left = any(not damage["repaired"] for damage in report["damage"])
        start = "All is well" if report["ok"] else "Not all could be repaired" if is_left else "You have to decide"
        return f"{start}: {repair_verdict(report)}. {sentences}"

    flags = (f"--{consent.replace('_', '-')}",) if consent else ()
    return Plan(
        "repair",
        "Repair copies",
        ("repair", *flags, *streams),
        facts,
        work,
        _named(streams) | ({"loss": loss} if loss else {}),
        stream="".join(streams),
        typed="lost" if loss in ("accept", "discard") else "",
        repairs=True,
        others=tuple(
            (words, f"/change/repair?{urlencode(_named(streams) | {'loss': other})}")
            for other, words in (("accept", "accept the loss"), ("take-back", "take back what was lost"))
            if other != loss
        ),
    )


CONSENTS = {"accept": "accept_loss", "take-back": "take_back", "discard": "discard_lost"}


def _losses(site: Site, streams: tuple[str, ...], loss: str) -> Iterator[tuple[str, object]]:
    """Yield what becomes of messages that no volume at hand has, and of what was lost before."""
    scan, has_unread = site.scan(), False
    for stream in sorted(scan.state.streams.values(), key=lambda stream: stream.name):
        if streams and stream.name not in streams:
            continue
        for unread in scan.survey.unread(stream):
            has_unread, what = True, f"sequences {ranges_text(unread.sequences)} of stream {stream.name}"
            if not unread.places:
                yield "is declared lost", f"{what}: no volume has them"
            elif loss == "accept":
                yield "is declared lost", f"{what}, though they may be on {', '.join(map(str, unread.places))}"
            else:
                where = ", ".join(map(str, unread.places))
                yield "is left alone", f"{what}: they may be on {where}; bring that back first"
        sequences, _ = scan.survey.recoverable(stream)
        if sequences:
            becomes = {"take-back": "is served again", "discard": "is given up for good"}.get(loss, "waits for you")
            yield becomes, f"sequences {ranges_text(sequences)} of stream {stream.name}, which were lost"
    for messages in scan.state.set_aside:
        if streams and messages.stream not in streams:
            continue
        ranges = ranges_text(SequenceSet.decode(messages.sequences))
        what = f"sequences {ranges} of stream {messages.stream} of another copy of the store"
        if loss == "discard":
            yield "is given up for good", what
        else:
            yield "waits for you", f"{what}: `jstream export --set-aside {messages.stream} FILE` writes them to a file"
    if not has_unread:
        yield "messages that no volume has", "are declared lost and logged; as far as is known, there are none"


def _scrub(site: Site, query: Query) -> Plan:
    streams = _streams(site, query)
    replicas = [
        (info, replica)
        for info in site.scan().streams
        if not streams or info["config"]["name"] == streams[0]
        for replica in info["cluster"]["replicas"]
    ]
    blocks = sum(volume["blocks"] for volume in site.scan().cluster["volumes"])
    checked = [replica["last_scrub"] for info, replica in replicas if info["state"]["messages"]]
    facts = [
        ("what is read", f"all copies of {streams[0] if streams else 'all streams'}, from where the last scrub ended"),
        *([("copies of blocks in the store", f"{blocks:,}")] if not streams else []),
        ("checked last", min(checked) if checked and all(checked) else "some copy never was"),
        ("what is found", "is written down, and repaired by maintenance and by repair"),
    ]

    def work(store: Store, progress: Progress) -> str:
        report = store.scrub(progress=progress, streams=streams or None)
        verdict = "All is well" if report["ok"] else f"{counted(len(report['damage']), 'damaged place')} found"
        return f"{verdict}: {counted(report['checked_blocks'], 'block')} checked"

    return Plan("scrub", "Check copies", ("scrub", *streams), facts, work, _named(streams), stream="".join(streams))


def _maintain(site: Site, query: Query) -> Plan:
    cluster = site.scan().cluster
    waiting = sum(volume["disk_bytes"]["pending_delete"] for volume in cluster["volumes"])
    deletes = cluster["pending_deletes"]
    facts = [
        ("blocks that wait to be unlinked", f"{deletes['blocks']:,}, {show_size(waiting)} on all volumes"),
        ("the first may be unlinked from", deletes["freed_from"] or "none waits"),
        *(
            (f"volume {site.scan().labels[volume['name']]}", f"is {volume['state']}")
            for volume in cluster["volumes"]
            if not volume["current"]
        ),
        ("also", "reported damage, missing blocks, limits and ages, merging of small blocks, snapshots"),
    ]

    def work(store: Store, progress: Progress) -> str:
        store.maintain(lambda: site.is_stopping)
        away = [volume for volume in store.cluster_info()["volumes"] if volume["reason"]]
        return f"Done; {counted(len(away), 'volume')} could not be brought back" if away else "Done"

    return Plan("maintain", "Do maintenance", ("maintain",), facts, work, repairs=True)


def _reset(site: Site, query: Query) -> Plan:
    store, name, consumer = site.store(), query.text("stream"), query.text("consumer")
    stream = store.stream(name)
    place = query.text("to")
    to = place_in(stream, place, lambda: query.time_ns("to", store.environment.now_ns()) or 0) if place else None
    plan = reset_plan(store, stream, stream.consumer(consumer), to)
    target = int(plan["next_seq"])
    facts = [
        ("delivered up to", plan["delivered"]["stream_seq"]),
        ("acknowledged up to", plan["ack_floor"]["stream_seq"]),
        ("ack pending", plan["num_ack_pending"]),
        *([("is stopped", plan["problem"])] if plan["problem"] else []),
        ("continues with", target),
        ("done, and handed out again", plan["num_again"]),
        ("not done, and skipped", plan["num_skipped"]),
    ]
    incarnation = _same(query, stream.state().incarnation, name)

    def work(store: Store, progress: Progress) -> str:
        opened = store.stream(name)
        _check_same(incarnation, opened.state().incarnation, name)
        return f"It continues with {opened.consumer(consumer).reset(target)}"

    command = ("consumer", "reset", name, consumer, "--to", str(target), "--execute")
    fields = {"stream": name, "consumer": consumer, "to": str(target), "incarnation": incarnation}
    return Plan("consumer-reset", "Reset a consumer", command, facts, work, fields, name, consumer)


def _pause(site: Site, query: Query) -> Plan:
    store, name, consumer = site.store(), query.text("stream"), query.text("consumer")
    until = query.text("until", "1h")
    resumes = query.choice("resume", ("", "yes")) == "yes"
    info = store.stream(name).consumer(consumer).info()
    seconds = 0.0 if resumes else seconds_until(until)
    is_paused = f"for {info['pause_remaining'] / 1e9:,.0f} s" if info["paused"] else "no"
    effect = "messages are handed out again" if resumes else "nothing is handed out; acknowledgements still count"
    facts = [
        ("paused now", is_paused),
        ("pending", info["num_pending"]),
        ("then", effect),
        *([] if resumes else [("for", f"{seconds:,.0f} s")]),
    ]

    def work(store: Store, progress: Progress) -> str:
        opened = store.stream(name).consumer(consumer)
        if resumes:
            opened.resume()
            return "It hands out messages"
        opened.pause(seconds)
        return f"It is paused for {seconds:,.0f} s"

    verb = ("resume", name, consumer) if resumes else ("pause", name, consumer, until)
    fields = {"stream": name, "consumer": consumer, "until": until, "resume": "yes" if resumes else ""}
    title = "Resume a consumer" if resumes else "Pause a consumer"
    return Plan("consumer-pause", title, ("consumer", *verb), facts, work, fields, name, consumer)


def _purge(site: Site, query: Query) -> Plan:
    store, name = site.store(), query.text("stream")
    stream = store.stream(name)
    subject, keep = query.text("subject") or None, query.number("keep")
    state = stream.state()
    before_ns = query.time_ns("before", store.environment.now_ns())
    end = query.number("seq")
    if end is None and keep is None:
        end = state.next_sequence  # what comes from now on was not in the plan
    planned = stream.purge_plan(subject, keep, end, before_ns)
    facts = [
        ("what goes", purge_scope(subject, end, keep) + (f" of before {rfc3339(before_ns)}" if before_ns else "")),
        ("messages that go", f"{planned.message_count:,}"),
        ("messages that stay", f"{planned.left_count:,}"),
        *((f"not acknowledged by {consumer}", f"{count:,}") for consumer, count in planned.unread.items()),
        ("space", purge_frees(planned)),
    ]
    incarnation = _same(query, state.incarnation, name)

    def work(store: Store, progress: Progress) -> str:
        opened = store.stream(name)
        _check_same(incarnation, opened.state().incarnation, name)
        return f"Removed {counted(opened.purge(subject, keep, end, before_ns), 'message')}"

    options = {
        "--subject": subject,
        "--seq": end,
        "--keep": keep,
        "--before": rfc3339(before_ns) if before_ns is not None else None,
    }
    flags = [str(word) for name, value in options.items() if value is not None for word in (name, value)]
    fields = {name.removeprefix("--"): str(value) for name, value in options.items() if value is not None}
    fields |= {"stream": name, "incarnation": incarnation}
    return Plan("purge", "Purge messages", ("stream", "purge", name, *flags), facts, work, fields, name, typed=name)


def _publish(site: Site, query: Query) -> Plan:
    store, name = site.store(), query.text("stream")
    stream = store.stream(name)
    subjects = stream.config.subjects
    subject = query.text("subject") or (subjects[0] if subjects and is_literal(subjects[0]) else "")
    data, msg_id, header = query.text("data"), query.text("msg-id"), query.text("header")
    if subject and not is_literal(subject):
        raise ValueError(f"subject: {subject!r} is not a subject that a message can carry: no blanks, no wildcards")
    key, divider, value = (part.strip() for part in header.partition(":"))
    if header and not (key and divider):
        raise ValueError(f"header: {header!r} is not NAME: VALUE")
    facts = [
        ("subject", subject or "none yet"),
        ("data", f"{len(data.encode()):,} bytes: {data[:DATA_SHOWN_MAX]}"),
        *([("header", f"{key}: {value}")] if header else []),
        *([("msg_id", f"{msg_id}: nothing is stored if the stream knows it")] if msg_id else []),
    ]
    incarnation = _same(query, stream.state().incarnation, name)

    def work(store: Store, progress: Progress) -> str:
        opened = store.stream(name)
        _check_same(incarnation, opened.state().incarnation, name)
        headers = {key: value} if header else None
        stored = opened.publish(subject, data.encode(), headers=headers, msg_id=msg_id or None)
        return f"{'It was stored before' if stored.duplicate else 'Stored'} as message {stored.sequence}"

    flags = [word for option, text in (("--header", header), ("--msg-id", msg_id)) if text for word in (option, text)]
    command = ("pub", subject or "SUBJECT", data, "--stream", name, *flags)
    fields = {"stream": name, "subject": subject, "data": data, "header": header, "msg-id": msg_id}
    missing = "" if subject else f"subject: say which; stream {name} takes {', '.join(subjects)}"
    fields["incarnation"] = incarnation
    return Plan("publish", "Publish a message", command, facts, work, fields, name, missing=missing)


def _add(site: Site, query: Query) -> Plan:
    store, name, wanted = site.store(), query.text("name"), _settings(query)
    shown = StreamConfig.from_mapping({"name": name or "NAME", **wanted}).to_json()
    if any(stream.name == name for stream in store.view().state.streams.values()):
        raise ValueError(f"name: there is a stream {name} already")
    facts = [(key, show_value(key, value)) for key, value in shown.items() if name or key != "name"]

    def work(store: Store, progress: Progress) -> str:
        store.add_stream({"name": name, **wanted})
        return f"Stream {name} is there"

    command, missing = ("stream", "add", name or "NAME", *_options(wanted)), "" if name else "name: say what it is"
    return Plan("stream-add", "Add a stream", command, facts, work, {"name": name, **_given(query)}, missing=missing)


def _edit(site: Site, query: Query) -> Plan:
    name, wanted = query.text("stream"), _settings(query)
    stream = site.store().stream(name)
    before = stream.info()["config"]
    after = StreamConfig.from_mapping({**before, **wanted}).to_json()
    changes = {key: after[key] for key in wanted if before[key] != after[key]}
    removed = edit_removes(stream, wanted) if wanted else ""
    facts: list[tuple[str, object]] = [
        (key, f"{show_value(key, before.get(key))} -> {show_value(key, value)}") for key, value in changes.items()
    ]
    facts += [("is removed by the new limits", removed)] if removed else []
    incarnation = _same(query, stream.state().incarnation, name)
    was = query.text("was") or _digest(before)
    _check_as_planned(was, before, name)

    def work(store: Store, progress: Progress) -> str:
        opened = store.stream(name)
        _check_same(incarnation, opened.state().incarnation, name)
        _check_as_planned(was, opened.info()["config"], name)
        opened.edit(changes)
        return f"{counted(len(changes), 'setting')} of stream {name} changed"

    fields = {"stream": name, "incarnation": incarnation, "was": was, **_given(query)}
    command = ("stream", "edit", name, *_options(wanted))
    return Plan(
        "stream-edit", "Edit a stream", command, facts, work, fields, name, typed=name if removed else "",
        missing="" if changes else "fill in what is to change",
    )  # fmt: skip


def _digest(config: Mapping[str, Any]) -> str:
    return sha256(dumps(config, sort_keys=True).encode()).hexdigest()


def _check_as_planned(was: str, config: Mapping[str, Any], stream: str) -> None:
    if was != _digest(config):
        raise ValueError(f"nothing was done: the configuration of stream {stream} changed since the plan was made")


SETTINGS = {  # of a stream that pages set: key of the configuration, its option on the command line
    "subjects": ("subjects", "--subjects"),
    "description": ("description", "--description"),
    "copies": ("num_replicas", "--replicas"),
    "max-msgs": ("max_msgs", "--max-msgs"),
    "max-bytes": ("max_bytes", "--max-bytes"),
    "max-age": ("max_age", "--max-age"),
    "max-msgs-per-subject": ("max_msgs_per_subject", "--max-msgs-per-subject"),
}


def _given(query: Query) -> dict[str, str]:
    return {name: text for name in SETTINGS if (text := query.text(name))}


def _settings(query: Query) -> dict[str, Any]:
    """Return the keys of the configuration that the form says. Raises ValueError."""
    wanted: dict[str, Any] = {}
    for name, text in _given(query).items():
        key, _ = SETTINGS[name]
        if name == "subjects":
            wanted[key] = [subject.strip() for subject in text.split(",") if subject.strip()]
        elif name == "max-bytes":
            wanted[key] = -1 if text == "-1" else parse_size(text, name)
        elif name == "max-age":
            wanted[key] = 0 if text in ("0", "-1") else parse_duration_ns(text, name)
        elif name == "description":
            wanted[key] = text
        else:
            wanted[key] = -1 if text == "-1" else query.number(name)
    return wanted


def _options(wanted: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options of the command line that say the same."""
    options = dict(SETTINGS.values())
    words: list[str] = []
    for key, value in wanted.items():
        shown = ",".join(value) if isinstance(value, list) else show_value(key, value).strip('"')
        words += [options[key], value if key == "description" else shown]
    return tuple(words)


def _replay_plan(site: Site, query: Query) -> Plan:
    number = query.number("pipeline") or 0
    file = site.replays.file(number)
    facts = [
        ("pipeline", str(file)),
        ("what is done", "Spark is started, and parses the dead letters; nothing is changed"),
    ]

    def work(store: Store, progress: Progress) -> str:
        return site.replays.plan(number, store.environment.now_ns()).sentence()

    return Plan(
        "replay-plan",
        "Plan a replay",
        replay_command(file, "--dry-run"),
        facts,
        work,
        {"pipeline": str(number)},
        then=("see the plan", f"/change/replay?pipeline={number}"),
    )


def _replay(site: Site, query: Query) -> Plan:
    number = query.number("pipeline") or 0
    file, plan = site.replays.file(number), site.replays.planned(number)
    facts: list[tuple[str, object]] = [("pipeline", str(file))]
    missing = ""
    if plan is None:
        missing = "plan it first: how many dead letters parse now, and how many stay"
    else:
        facts += plan.facts()
        if not plan.count:
            missing = "no dead letter parses now: change the pipeline first"
        elif query.text("planned", plan.name) != plan.name:
            missing = "another plan was made meanwhile: look at it first"
    return Plan(
        "replay",
        "Replay dead letters",
        replay_command(file),
        facts,
        lambda store, progress: site.replays.replay(number),
        {"pipeline": str(number)} | ({"planned": plan.name} if plan is not None else {}),
        others=(("plan it" if plan is None else "plan again", f"/change/replay-plan?pipeline={number}"),),
        missing=missing,
        then=("see the pipeline", f"/pipelines/{number}"),
    )


KINDS: Mapping[str, Callable[[Site, Query], Plan]] = {
    "repair": _repair,
    "scrub": _scrub,
    "maintain": _maintain,
    "consumer-reset": _reset,
    "consumer-pause": _pause,
    "purge": _purge,
    "publish": _publish,
    "stream-add": _add,
    "stream-edit": _edit,
    "replay-plan": _replay_plan,
    "replay": _replay,
}

ASKED: Mapping[str, tuple[str, ...]] = {  # what a page asks for, beside the stream and consumer that it is about
    "repair": (),
    "scrub": (),
    "maintain": (),
    "consumer-reset": ("to",),
    "consumer-pause": ("until",),
    "purge": ("subject", "seq", "keep", "before"),
    "publish": ("subject", "data", "header", "msg-id"),
    "stream-add": ("name", *SETTINGS),
    "stream-edit": tuple(SETTINGS),
    "replay-plan": (),
    "replay": (),
}


def _streams(site: Site, query: Query) -> tuple[str, ...]:
    """Return the stream that a change is for, nothing for all. Raises NotFoundError."""
    name = query.text("stream")
    return (site.store().stream_state(name).name,) if name else ()


def _named(streams: tuple[str, ...]) -> dict[str, str]:
    return {"stream": streams[0]} if streams else {}


def _same(query: Query, incarnation: bytes, stream: str) -> str:
    """Return which lifetime of its name the stream is in, checked against that of a plan before."""
    planned = query.text("incarnation") or incarnation.hex()
    _check_same(planned, incarnation, stream)
    return planned


def _check_same(planned: str, incarnation: bytes, stream: str) -> None:
    if planned != incarnation.hex():
        raise StaleIncarnationError(
            f"stream {stream!r} was deleted and made again since the plan was made", stream=stream
        )


# --- tasks


@dataclass(slots=True)
class Task:
    """A change that was asked for."""

    number: int
    plan: Plan
    who: str
    began_ns: int
    state: str = "running"  # running, done, failed
    outcome: str = ""
    done: int = 0
    total: int = 0  # 0: not known
    took_s: float = 0.0

    def to_json(self, site: Site) -> dict[str, Any]:
        return {
            **self.plan.to_json(site),
            "number": self.number,
            "who": self.who,
            "began": rfc3339(self.began_ns),
            "state": self.state,
            "outcome": self.outcome,
            "done": self.done,
            "total": self.total,
            "seconds": round(self.took_s, 1),
        }


class Tasks:
    """What was asked of this process, one after the other."""

    def __init__(self, site: Site) -> None:
        self._site, self._lock = site, threading.Lock()
        self._kept: deque[Task] = deque(maxlen=TASKS_KEPT)
        self._count = 0

    def newest(self) -> list[Task]:
        return list(reversed(self._kept))

    def task(self, number: int) -> Task:
        """Raises NotFoundError."""
        known = next((task for task in list(self._kept) if task.number == number), None)
        if known is None:
            raise NotFoundError(f"this process knows no change {number}; the event log has those of before")
        return known

    def begin(self, plan: Plan, who: str) -> Task:
        """Do it in a thread. Raises Busy while another change is made."""
        with self._lock:
            running = next((task for task in self._kept if task.state == "running"), None)
            if running is not None:
                raise Busy(f"change {running.number} is being made ({running.plan.title}): wait for its end")
            self._count += 1
            task = Task(self._count, plan, who, time.time_ns())
            self._kept.append(task)
        threading.Thread(target=self._run, args=(task,), name=f"jstream-ui-change-{task.number}", daemon=True).start()
        return task

    def _run(self, task: Task) -> None:
        began = announced = time.monotonic()
        outcome, state = "It ended by an unforeseen error, which the log of `jstream ui` has", "failed"

        def progress(done: int, total: int) -> None:
            nonlocal announced
            now = time.monotonic()
            task.done, task.total, task.took_s = done, total, now - began
            if now - announced >= ANNOUNCE_INTERVAL_S:
                announced = now
                self._site.announce()

        try:
            with self._site.writable() as store:
                is_noted = _note(store, task, must=not task.plan.repairs)
                outcome = task.plan.work(store, progress)
                if not is_noted:
                    _note(store, task, must=False)
            state = "done"
        except READ_ERRORS as error:
            outcome = str(error)
        finally:
            task.took_s = time.monotonic() - began
            task.outcome, task.state = outcome, state
            self._site.announce()


def _note(store: Store, task: Task, must: bool) -> bool:
    """Write into the event log who asked for what; return whether that could be. Raises StorageError if it must."""
    plan = task.plan
    reason = f"{join(('jstream', *plan.command))}, asked for by {task.who} on a page"
    event = Event("asked", plan.stream, plan.consumer, reason=reason)
    try:
        store.together(lambda session: session.propose(RecordEvents((event,))))
    except StorageError:
        if must:
            raise
        return False
    return True


def who_of(name: str, address: str) -> str:
    """Return who asks, for the event log: the name that was typed, if any, and where from."""
    name = " ".join(name.split())
    if len(name) > NAME_SIZE_MAX or not name.isprintable():
        raise ValueError(f"who: a name is one line of at most {NAME_SIZE_MAX} letters")
    return f"{name} from {address}" if name else f"a user at {address}"
