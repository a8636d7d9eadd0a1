"""Keys and values in a stream, laid out as buckets of NATS are: an imported bucket is a bucket again.

A bucket is a stream `KV_<bucket>` with the subjects `$KV.<bucket>.>`. A key is the rest of a subject, its value is the
newest message, its revision that message's sequence. `KV-Operation: DEL` and `PURGE` are messages that end a key;
`max_msgs_per_subject` is the number of revisions that are kept.

Source: NATS architecture decision record 8, "JetStream based Key-Value Stores", and 48, "Per-key TTL".
"""

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core import buffers
from storage_core.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    KeyNotFoundError,
    NotFoundError,
    StaleIncarnationError,
)
from storage_core.quantities import parse_duration_ns, whole_number
from storage_core.store.contents import Message, messages
from storage_core.store.stream import Stream
from storage_core.store.writing import instructions
from storage_core.store.writing.instructions import TTL
from storage_core.store.writing.markers import KV_OPERATION
from storage_core.subjects import is_filter

if TYPE_CHECKING:
    from storage_core.store.opened import OpenStore

PUT, DELETE, PURGE = "PUT", "DEL", "PURGE"
MARKER_REASON = "Nats-Marker-Reason"  # on the markers that a stream itself writes in the place of what expired
HISTORY_MAX = 64  # revisions of a key
PREFIX = "KV_"
POLL_S = 0.05  # between two looks of `watch` at a stream that has not changed
BATCH_COUNT = 4096  # sequences that `watch` reads at a time
_SECOND_NS = 1_000_000_000
_BUCKET = re.compile("[A-Za-z0-9_-]{1,125}")
_KEY = re.compile(r"[-/_=.a-zA-Z0-9]+")


class KeyValueEntry(NamedTuple):
    """One revision of a key."""

    bucket: str
    key: str
    value: bytes | None
    revision: int
    created_ns: int  # since 1970, UTC
    operation: str  # PUT; DEL and PURGE ended the key


class KeyValue:
    """A bucket of keys and values. From `Store.key_value` or `Store.add_key_value`."""

    def __init__(self, store: "OpenStore", stream: Stream) -> None:
        self._store, self.stream = store, stream
        self.bucket = stream.name.removeprefix(PREFIX)
        self._prefix = f"$KV.{self.bucket}."

    def __repr__(self) -> str:
        return f"KeyValue({self.bucket!r} of {self._store!r})"

    # --- reading

    def get(self, key: str, revision: int | None = None) -> KeyValueEntry:
        """Return the newest revision of the key, or the one asked for.

        Raises KeyNotFoundError if there is none, or if it was deleted.
        """
        subject = self._subject(key)
        try:
            message = self.stream.last(subject) if revision is None else self.stream.get(revision)
        except NotFoundError as error:
            raise KeyNotFoundError(self.bucket, key, revision) from error
        entry = self._entry(message)
        if message.subject != subject or entry.operation != PUT:
            raise KeyNotFoundError(self.bucket, key, revision)
        return entry

    def keys(self, filter: str = ">") -> list[str]:
        """Return the keys that have a value, sorted; `filter` may have `*` and `>`, as a subject."""
        keys: list[str] = []
        columns = ["subject", "headers"]
        for batch in self.stream.last_per_subject(self._filter(filter), columns=columns):
            subjects = batch.column("subject").filter(_have_value(batch.column("headers")))
            keys += pc.utf8_slice_codeunits(subjects, len(self._prefix)).to_pylist()
        return sorted(keys)

    def history(self, key: str) -> list[KeyValueEntry]:
        """Return the revisions of the key that are kept, the oldest first, deletions among them.

        Raises KeyNotFoundError if there is none.
        """
        state = self.stream.state()
        subject = self._subject(key)
        entries = [
            self._entry(message)
            for message in messages(self._store, state, state.first_sequence, state.next_sequence, (subject,))
        ]
        if not entries:
            raise KeyNotFoundError(self.bucket, key)
        return entries

    def watch(
        self,
        keys: str = ">",
        include_history: bool = False,
        ignore_deletes: bool = False,
        updates_only: bool = False,
        timeout_s: float | None = None,
    ) -> Iterator[KeyValueEntry | None]:
        """Yield the newest revision of each key that the filter takes, then None once, then each change as it comes.

        `include_history`: all revisions that are kept, before None. `updates_only`: none of them. `timeout_s`: the
        iterator ends after so long without a change; None: it waits for ever. Raises StaleIncarnationError if the
        bucket is deleted, DataLossError where a change is lost.
        """
        subject_filter, state = self._filter(keys), self.stream.state()
        first, end = state.first_sequence, state.next_sequence
        if not updates_only:
            if include_history:
                kept = self.stream.read(first, end, ["sequence"], subject_filter)
            else:
                kept = self.stream.last_per_subject(subject_filter, end=end, columns=["sequence"])
            for entry in self._entries_of(kept.read_all()["sequence"].to_pylist(), subject_filter):
                if entry.operation == PUT or not ignore_deletes:
                    yield entry
        yield None
        yield from self._changes(end, subject_filter, ignore_deletes, timeout_s)

    def _entries_of(self, sequences: list[int], subject_filter: str) -> Iterator[KeyValueEntry]:
        """Yield the revisions of these ascending sequences, those that were replaced meanwhile left out."""
        wanted = set(sequences)
        for at in range(0, len(sequences), BATCH_COUNT):
            part = sequences[at : at + BATCH_COUNT]
            for message in messages(self._store, self.stream.state(), part[0], part[-1] + 1, (subject_filter,)):
                if message.sequence in wanted:
                    yield self._entry(message)

    def _changes(
        self, position: int, subject_filter: str, ignore_deletes: bool, timeout_s: float | None
    ) -> Iterator[KeyValueEntry]:
        waited_s, view = 0.0, self._store.known
        while timeout_s is None or waited_s < timeout_s:
            view = self._store.newer(view)
            state = view.state.by_incarnation(self.stream.incarnation)
            if state is None:
                raise StaleIncarnationError(f"bucket {self.bucket!r} was deleted", stream=self.stream.name)
            if state.next_sequence == position:
                self._store.environment.sleep(POLL_S)
                waited_s += POLL_S
                continue
            end = min(state.next_sequence, position + BATCH_COUNT)
            for message in messages(self._store, state, position, end, (subject_filter,), view):
                entry = self._entry(message)
                if entry.operation == PUT or not ignore_deletes:
                    waited_s = 0.0
                    yield entry
            position = end

    # --- writing

    def put(self, key: str, value: bytes | str, ttl: str | timedelta | None = None) -> int:
        """Set the key to a value; return the new revision. `ttl`: the key ends after so long, `90s` or a timedelta."""
        return self._publish(key, value, _headers(ttl=ttl))

    def create(self, key: str, value: bytes | str, ttl: str | timedelta | None = None) -> int:
        """Set a key that has no value, or was deleted; raises AlreadyExistsError if it has one."""
        try:
            return self._publish(key, value, _headers(ttl=ttl), 0)
        except ConditionFailedError as error:
            actual = error.actual
        try:
            if self._entry(self.stream.last(self._subject(key))).operation != PUT:
                return self._publish(key, value, _headers(ttl=ttl), int(actual or 0))
        except (ConditionFailedError, NotFoundError):
            pass  # another one was first
        raise AlreadyExistsError(f"key {key!r} of bucket {self.bucket!r} has a value, of revision {actual}")

    def update(self, key: str, value: bytes | str, revision: int, ttl: str | timedelta | None = None) -> int:
        """Set the key if this is its newest revision; raises ConditionFailedError with the actual one."""
        return self._publish(key, value, _headers(ttl=ttl), revision)

    def delete(self, key: str, revision: int | None = None) -> None:
        """End the key; older revisions stay in its history. `revision`: as for `update`."""
        self._publish(key, b"", _headers(DELETE), revision)

    def purge(self, key: str, revision: int | None = None, ttl: str | timedelta | None = None) -> None:
        """End the key and remove its older revisions. `ttl`: the marker goes after so long."""
        self._publish(key, b"", _headers(PURGE, ttl), revision)

    def status(self) -> dict[str, Any]:
        """Return bucket, values (messages, deletions among them), bytes, history, and ttl_ns (0: none)."""
        state = self.stream.state()
        return {
            "bucket": self.bucket,
            "values": state.message_count,
            "bytes": state.data_size,
            "history": state.config.max_msgs_per_subject,
            "ttl_ns": state.config.max_age,
        }

    def _publish(
        self, key: str, value: bytes | str, headers: list[tuple[str, bytes]], revision: int | None = None
    ) -> int:
        if not isinstance(value, bytes | str):
            raise ValueError(f"value of key {key!r}: {type(value).__name__} is neither bytes nor text")
        subject = self._subject(key)
        return self.stream.publish(subject, value, headers, expected_last_subject_sequence=revision).sequence

    def _subject(self, key: object) -> str:
        if not isinstance(key, str) or not _KEY.fullmatch(key) or key[0] == "." or key[-1] == "." or ".." in key:
            raise ValueError(
                f"key: {key!r} is not letters, digits and -/_=. without a dot at the beginning or end, or two in a row"
            )
        return self._prefix + key

    def _filter(self, keys: object) -> str:
        if not isinstance(keys, str) or not is_filter(self._prefix + keys):
            raise ValueError(f"keys: {keys!r} is neither a key nor a filter with * and >")
        return self._prefix + keys

    def _entry(self, message: Message) -> KeyValueEntry:
        key, operation = message.subject.removeprefix(self._prefix), PUT
        for name, value in message.headers or []:
            if name == KV_OPERATION:
                operation = (value or b"").decode(errors="replace")
            elif name == MARKER_REASON:
                operation = DELETE if value == b"Remove" else PURGE
        return KeyValueEntry(self.bucket, key, message.data, message.sequence, message.timestamp_ns, operation)


def _have_value(headers: pa.Array) -> pa.Array:
    """Return which of the messages are values, and do not end their key."""
    ends = np.zeros(len(headers), bool)
    for name in (KV_OPERATION, MARKER_REASON):
        rows, values = instructions.values_of(headers, name)
        ends[rows] |= buffers.mask(pc.fill_null(pc.not_equal(values, PUT.encode()), True))
    return buffers.of_bits(~ends)


def _headers(operation: str = PUT, ttl: str | timedelta | None = None) -> list[tuple[str, bytes]]:
    headers = []
    if operation != PUT:
        headers.append((KV_OPERATION, operation.encode()))
    if operation == PURGE:
        headers.append((instructions.ROLLUP, instructions.SUBJECT.encode()))
    if ttl is not None:
        text = f"{ttl.total_seconds():f}s" if isinstance(ttl, timedelta) else ttl
        if not isinstance(text, str):
            raise ValueError(f"ttl: {ttl!r} is neither text with a unit, such as 90s, nor a timedelta")
        seconds, rest = divmod(parse_duration_ns(text, "ttl"), _SECOND_NS)
        if rest or not seconds:
            raise ValueError(f"ttl: {ttl!r} is not whole seconds, 1s at least")
        headers.append((TTL, str(seconds).encode()))
    return headers


def stream_name(bucket: object) -> str:
    """Return the name of the bucket's stream; raises ValueError for what is no name of a bucket."""
    if not isinstance(bucket, str) or not _BUCKET.fullmatch(bucket):
        raise ValueError(f"bucket: {bucket!r} is not 1 to 125 letters, digits, - and _")
    return PREFIX + bucket


def stream_config(bucket: str, history: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a new bucket's stream, as a NATS client makes it; raises ValueError."""
    if not 1 <= (whole_number(history) or 0) <= HISTORY_MAX:
        raise ValueError(f"history: {history!r} is not 1 to {HISTORY_MAX} revisions")
    return {
        "name": stream_name(bucket),
        "subjects": [f"$KV.{bucket}.>"],
        "max_msgs_per_subject": history,
        "discard": "new",
        "deny_delete": True,
        "allow_rollup_hdrs": True,
        **settings,
    }
