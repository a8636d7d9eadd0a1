"""What a store should hold, in dicts and lists, and what a real one is seen to hold.

The model knows nothing of blocks, logs or locks: a stream is a dict from sequence to message and a counter.
"""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field

from storage_core.store.store import Store
from storage_core.store.stream import Stream
from storage_core.subjects import matches

Headers = tuple[tuple[str, bytes | None], ...] | None
SEEN_COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")


@dataclass(frozen=True, slots=True)
class Row:
    """A message as it is written, and as it is seen again."""

    subject: str
    data: bytes | None
    headers: Headers = None
    msg_id: str | None = None  # written only
    timestamp_ns: int | None = None  # None: the store's time, which the model does not know

    def seen(self) -> "Row":
        return Row(self.subject, self.data, self.headers)

    @property
    def size(self) -> int:
        """Return the bytes of subject, headers and data."""
        headers = sum(len(key.encode()) + len(value or b"") for key, value in self.headers or ())
        return len(self.subject.encode()) + headers + len(self.data or b"")


@dataclass
class ModelStream:
    """One incarnation of a stream."""

    messages: dict[int, Row] = field(default_factory=dict)
    next_sequence: int = 1
    msg_ids: dict[str, int] = field(default_factory=dict)  # within the window
    batches: dict[tuple[str, str], range] = field(default_factory=dict)  # by (writer, batch)

    def append(self, rows: Iterable[Row]) -> range:
        first = self.next_sequence
        for row in rows:
            if row.msg_id is None or row.msg_id not in self.msg_ids:
                self.messages[self.next_sequence] = row.seen()
                if row.msg_id is not None:
                    self.msg_ids[row.msg_id] = self.next_sequence
            self.next_sequence += 1
        return range(first, self.next_sequence)

    def remove(self, sequences: Iterable[int]) -> int:
        return sum(self.messages.pop(sequence, None) is not None for sequence in sequences)

    def purge(self, subject: str | None = None, keep: int | None = None, up_to: int | None = None) -> int:
        meant = [
            sequence
            for sequence, row in sorted(self.messages.items())
            if (subject is None or matches(subject, row.subject)) and (up_to is None or sequence < up_to)
        ]
        return self.remove(meant[: max(0, len(meant) - (keep or 0))])

    def overwrite(self, rows: Iterable[Row]) -> range:
        self.messages.clear()
        return self.append(rows)

    def content(self) -> "Content":
        return Content(tuple(sorted(self.messages.items())), self.next_sequence - 1)


@dataclass(frozen=True, slots=True)
class Content:
    """What a stream shows: messages in order, and the highest sequence ever used."""

    messages: tuple[tuple[int, Row], ...]
    last_sequence: int

    def __str__(self) -> str:
        shown = ", ".join(f"{sequence}: {row.data!r}" for sequence, row in self.messages)
        return f"[{shown}] up to {self.last_sequence}"


@dataclass
class ModelStore:
    """The streams of a store by name."""

    streams: dict[str, ModelStream] = field(default_factory=dict)

    def copy(self) -> "ModelStore":
        return deepcopy(self)

    def content(self) -> dict[str, Content]:
        return {name: stream.content() for name, stream in sorted(self.streams.items())}


def seen_in_stream(stream: Stream) -> Content:
    """Return what a read of everything shows."""
    rows = stream.read(columns=SEEN_COLUMNS).read_all().to_pylist()
    messages = tuple((row["sequence"], _row(row)) for row in rows)
    return Content(messages, stream.last_sequence)


def _row(row: dict[str, object]) -> Row:
    pairs = row["headers"]
    headers = None if pairs is None else tuple((one["key"], one["value"]) for one in pairs)  # type: ignore[attr-defined]
    return Row(row["subject"], row["data"], headers)  # type: ignore[arg-type]


def seen_in_store(store: Store) -> dict[str, Content]:
    """Return what every stream shows, and check that counts, bytes and gaps say the same."""
    seen = {}
    for name in store.streams():
        stream = store.stream(name)
        seen[name] = content = seen_in_stream(stream)
        state = stream.state()
        shown = [sequence for sequence, _ in content.messages]
        assert shown == sorted(set(shown)), (name, shown)
        assert state.message_count == len(shown), (name, state.message_count, shown)
        assert state.data_size == sum(row.size for _, row in content.messages), (name, state.data_size)
        assert not shown or shown[0] == state.first_sequence, (name, state.first_sequence, shown)
        assert not shown or shown[-1] <= content.last_sequence, (name, content.last_sequence, shown)
    return seen
