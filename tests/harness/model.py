"""What a store should hold, in dicts and lists, and what a real one is seen to hold.

The model knows nothing of blocks, logs or locks: a stream is a dict from sequence to message and a counter.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import pyarrow as pa

from storage_core.sequences import SequenceSet
from storage_core.store.store import Store
from storage_core.store.stream import Stream
from storage_core.subjects import matches

Headers = tuple[tuple[str, bytes | None], ...] | None
SEEN_COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")
RULES = ("marker", "expiry", "retention", "limit")  # what may be left for later, in the order in which it is done
TTL = "Nats-TTL"
MARKER = "Nats-Marker-Reason"
TIME = "time"  # a header that repeats the time of its message, if that was given


@dataclass(frozen=True, slots=True)
class Row:
    """A message as it is written, and as it is seen again."""

    subject: str
    data: bytes | None
    headers: Headers = None
    msg_id: str | None = None  # written only
    timestamp_ns: int | None = None  # written only; None: the store's time

    def seen(self) -> "Row":
        return replace(self, msg_id=None, timestamp_ns=None)

    @property
    def size(self) -> int:
        """Return the bytes of subject, headers and data."""
        headers = sum(len(key.encode()) + len(value or b"") for key, value in self.headers or ())
        return len(self.subject.encode()) + headers + len(self.data or b"")

    @property
    def ttl_ns(self) -> int:
        """Return for how long the message stays, as its header says in whole seconds; 0: it does not say."""
        return sum(int((value or b"0s")[:-1]) for key, value in self.headers or () if key == TTL) * 10**9


@dataclass
class ModelStream:
    """One incarnation of a stream."""

    messages: dict[int, Row] = field(default_factory=dict)
    next_sequence: int = 1
    duplicate_window_ns: int = 3600 * 10**9
    msg_ids: dict[str, tuple[int, int]] = field(default_factory=dict)  # sequence and time of the commit
    batches: dict[tuple[str, str], Any] = field(default_factory=dict)  # by (writer, batch)
    consumers: dict[str, "ModelConsumer"] = field(default_factory=dict)
    max_msgs: int = -1
    max_msgs_per_subject: int = -1
    retention: str = "limits"
    max_age_ns: int = 0
    marker_ttl_s: int = 0
    times_ns: dict[int, int] = field(default_factory=dict)  # of messages, where there is a max_age
    due_ns: dict[int, int] = field(default_factory=dict)  # of messages whose time will be over
    skipped: frozenset[str] = frozenset()  # rules whose part stays for now; `afterwards`: only behind an append

    def copy(self) -> "ModelStream":
        made = copy(self)
        made.messages, made.msg_ids, made.batches = dict(self.messages), dict(self.msg_ids), dict(self.batches)
        made.times_ns, made.due_ns = dict(self.times_ns), dict(self.due_ns)
        made.consumers = {name: consumer.copy() for name, consumer in self.consumers.items()}
        return made

    def append(self, rows: Iterable[Row], now_ns: int = 0, written_ns: int | None = None) -> range:
        """`written_ns`: time of the rows; None: now."""
        self._enforce_first(now_ns)
        written_ns = now_ns if written_ns is None else written_ns
        first, seen_now = self.next_sequence, dict[str, int]()
        for row in rows:
            if row.msg_id is None or not (row.msg_id in seen_now or self.is_duplicate(row.msg_id, now_ns)):
                self.messages[self.next_sequence] = row.seen()
                self._note_times(self.next_sequence, written_ns, row.ttl_ns)
                if row.msg_id is not None:
                    seen_now[row.msg_id] = self.next_sequence
            self.next_sequence += 1
        self.msg_ids.update({msg_id: (sequence, now_ns) for msg_id, sequence in seen_now.items()})
        self.enforce_limit_of_subjects()
        appended = range(first, self.next_sequence)
        self.release(appended)
        self.enforce_times_and_limits(now_ns, self.skipped)
        return appended

    def _note_times(self, sequence: int, time_ns: int, ttl_ns: int) -> None:
        if self.max_age_ns:
            self.times_ns[sequence] = time_ns
        if ttl_ns:
            kept_ns = self.marker_ttl_s * 10**9 if self.max_msgs_per_subject != 1 else 0  # not before a marker
            self.due_ns[sequence] = time_ns + max(ttl_ns, kept_ns)

    def _enforce_first(self, now_ns: int) -> None:
        self.enforce_times_and_limits(now_ns, frozenset() if "afterwards" in self.skipped else self.skipped)

    def enforce_times_and_limits(self, now_ns: int, skipped: frozenset[str] = frozenset()) -> None:
        for rule in ("marker", "expiry", "limit"):
            if rule not in skipped:
                self.enforce(rule, now_ns)

    def enforce_limit_of_subjects(self) -> None:
        for subject in {row.subject for row in self.messages.values()} if self.max_msgs_per_subject >= 0 else ():
            self.purge(subject, keep=self.max_msgs_per_subject)

    def enforce(self, rule: str, now_ns: int) -> None:
        """Do what is due by a rule of the whole stream."""
        over = len(self.messages) - self.max_msgs
        if rule == "retention":
            self.release(list(self.messages))
        elif rule == "marker":
            self._leave_markers(now_ns)
        elif rule == "expiry":
            self.remove(self._expired(now_ns))
        else:
            self.remove(sorted(self.messages)[:over] if self.max_msgs >= 0 and over > 0 else [])
            self.remove(self._old(now_ns))

    def _expired(self, now_ns: int) -> set[int]:
        return {sequence for sequence, due_ns in self.due_ns.items() if due_ns <= now_ns} & self.messages.keys()

    def _old(self, now_ns: int) -> set[int]:
        """Return the messages that are over max_age: from the beginning, up to the first that is not."""
        is_old = lambda sequence: self.times_ns[sequence] <= now_ns - self.max_age_ns  # noqa: E731
        return set(takewhile(is_old, sorted(self.messages))) if self.max_age_ns else set()

    def is_over(self, sequence: int, now_ns: int) -> bool:
        return sequence in self._expired(now_ns) | self._old(now_ns)

    def _leave_markers(self, now_ns: int) -> None:
        """Put a marker in the place of the last message of each subject of which time takes all."""
        first, over = self.next_sequence, self._expired(now_ns) | self._old(now_ns) if self.marker_ttl_s else set()
        for sequence in sorted(over):
            row = self.messages[sequence]
            same = [at for at, other in self.messages.items() if other.subject == row.subject and at < first]
            if sequence != max(same) or not over.issuperset(same) or MARKER in dict(row.headers or ()):
                continue
            minutes, seconds = divmod(self.marker_ttl_s, 60)
            headers = ((MARKER, b"MaxAge"), (TTL, b"%dm%ds" % (minutes, seconds)), ("Nats-Rollup", b"sub"))
            del self.messages[sequence]
            self.messages[self.next_sequence] = Row(row.subject, b"", headers)
            self._note_times(self.next_sequence, now_ns, self.marker_ttl_s * 10**9)
            self.next_sequence += 1
        self.release(range(first, self.next_sequence))

    def release(self, sequences: Iterable[int]) -> None:
        """Remove those of these messages that no consumer needs, if that is what the stream goes by."""
        decides = {"interest": all, "workqueue": any}.get(self.retention)
        if decides is not None and "retention" not in self.skipped:
            consumers = self.consumers.values()
            self.remove([one for one in sequences if decides(one in consumer.done for consumer in consumers)])

    def is_duplicate(self, msg_id: str, now_ns: int) -> bool:
        return msg_id in self.msg_ids and self.msg_ids[msg_id][1] >= now_ns - self.duplicate_window_ns

    def remove(self, sequences: Iterable[int]) -> int:
        return sum(self.messages.pop(sequence, None) is not None for sequence in sequences)

    def purge(self, subject: str | None = None, keep: int | None = None, end: int | None = None) -> int:
        meant = [
            sequence
            for sequence, row in sorted(self.messages.items())
            if (subject is None or matches(subject, row.subject)) and (end is None or sequence < end)
        ]
        return self.remove(meant[: max(0, len(meant) - (keep or 0))])

    def overwrite(self, rows: Iterable[Row], now_ns: int = 0, written_ns: int | None = None) -> range:
        self._enforce_first(now_ns)  # delete markers of it use up sequences
        self.messages.clear()
        self.msg_ids.clear()
        return self.append(rows, now_ns, written_ns)

    def matching(self, first: int | None, end: int | None, subject: str | None) -> list[tuple[int, Row]]:
        """Return the messages of [first, end) that the filter takes, in order."""
        return [
            (sequence, row)
            for sequence, row in sorted(self.messages.items())
            if (first is None or sequence >= first)
            and (end is None or sequence < end)
            and (subject is None or matches(subject, row.subject))
        ]

    def fetch(self, consumer: str, count: int) -> list[tuple[int, Row]]:
        """Hand out what was asked for again, then what is new."""
        reader = self.consumers[consumer]
        again = sorted(reader.due & self.messages.keys())[:count]
        new = [one for one in sorted(self.messages) if one >= reader.next_sequence][: count - len(again)]
        reader.due.difference_update(again)
        reader.waiting.update(new)
        reader.next_sequence = new[-1] + 1 if new else reader.next_sequence
        return [(one, self.messages[one]) for one in sorted([*again, *new])]

    def content(self) -> "Content":
        shown = tuple(sorted(self.messages.items()))
        consumers = [
            consumer_seen(name, one.next_sequence, one.waiting, [at for at, _ in shown], self.next_sequence)
            for name, one in sorted(self.consumers.items())
        ]
        return Content(shown, self.next_sequence - 1, tuple(consumers))


@dataclass
class ModelConsumer:
    """A durable consumer that wants every message acknowledged, and waits without end."""

    next_sequence: int = 1
    waiting: set[int] = field(default_factory=set)  # handed out and not acknowledged
    due: set[int] = field(default_factory=set)  # those of them that were asked for again
    done: set[int] = field(default_factory=set)  # acknowledged

    def copy(self) -> "ModelConsumer":
        return ModelConsumer(self.next_sequence, set(self.waiting), set(self.due), set(self.done))


ConsumerSeen = tuple[str, int, tuple[int, ...]]


def consumer_seen(name: str, next_sequence: int, waiting: Iterable[int], shown: list[int], end: int) -> ConsumerSeen:
    """Return where a consumer stands: its next message and those that wait, of the messages that are there."""
    there = set(shown)
    return name, next((one for one in shown if one >= next_sequence), end), tuple(sorted(there & set(waiting)))


@dataclass(frozen=True, slots=True)
class Content:
    """What a stream shows: messages in order, and the highest sequence ever used."""

    messages: tuple[tuple[int, Row], ...]
    last_sequence: int
    consumers: tuple[ConsumerSeen, ...] = ()

    def __str__(self) -> str:
        shown = ", ".join(f"{sequence}: {row.data!r}" for sequence, row in self.messages)
        consumers = "".join(f", {name} at {at} waiting for {list(waiting)}" for name, at, waiting in self.consumers)
        return f"[{shown}] up to {self.last_sequence}{consumers}"


@dataclass
class ModelStore:
    """The streams of a store by name."""

    streams: dict[str, ModelStream] = field(default_factory=dict)

    def content(self) -> dict[str, Content]:
        return {name: stream.content() for name, stream in sorted(self.streams.items())}


def rows_of(table: pa.Table, with_times: bool) -> list[tuple[int, Row]]:
    """Return what was read of SEEN_COLUMNS, with the timestamps or without."""
    return [
        (
            row["sequence"],
            Row(
                row["subject"],
                row["data"],
                None if row["headers"] is None else tuple((one["key"], one["value"]) for one in row["headers"]),
                timestamp_ns=row["timestamp_ns"] if with_times else None,
            ),
        )
        for row in table.to_pylist()
    ]


def seen_in_stream(stream: Stream, with_times: bool = False) -> Content:
    """Return what a read of everything shows."""
    table = stream.read(columns=SEEN_COLUMNS).read_all()
    for row in rows_of(table, with_times=True):
        given = dict(row[1].headers or ()).get(TIME)
        assert given is None or row[1].timestamp_ns == int(given), (stream.name, row)
    return Content(tuple(rows_of(table, with_times)), stream.last_sequence)


def seen_in_store(store: Store, with_times: bool = False) -> dict[str, Content]:
    """Return what every stream shows, and check that counts and bytes say the same."""
    seen = {}
    for name in store.streams():
        stream = store.stream(name)
        seen[name] = content = seen_in_stream(stream, with_times)
        state = stream.state()
        shown = [sequence for sequence, _ in content.messages]
        consumers = [
            consumer_seen(
                consumer.name, consumer.next_sequence, _members(consumer.outstanding()), shown, state.next_sequence
            )
            for consumer in sorted(state.consumers.values(), key=lambda consumer: consumer.name)
        ]
        seen[name] = replace(content, consumers=tuple(consumers))
        assert shown == sorted(set(shown)), (name, shown)
        assert state.message_count == len(shown), (name, state.message_count, shown)
        assert state.data_size == sum(row.size for _, row in content.messages), (name, state.data_size)
        assert not shown or shown[0] == state.first_sequence, (name, state.first_sequence, shown)
        assert not shown or shown[-1] <= content.last_sequence, (name, content.last_sequence, shown)
    return seen


def _members(sequences: SequenceSet) -> list[int]:
    return [one for first, end in sequences.ranges() for one in range(first, end)]
