"""Rows published to a stream of running servers, in chunks that are sent again after a fault.

What keeps a row that is sent twice from being stored twice depends on the mode:

    none     nothing
    msgid    each row has an id, in the header Nats-Msg-Id: the stream's duplicate window knows those of the last while
    atomic   each chunk is stored whole or not at all; its first row has an id, which stands for the chunk
    marker   each chunk is stored whole or not at all, together with a message that says how far the writer has come,
             under a subject of the writer's own. It is stored only if the last one there is the one that was read, so
             that of two writers one is refused, however much later it comes

A chunk of `atomic` and `marker` is an atomic batch of the server (ADR-50): 1,000 messages at most, which the last one
commits.
"""

import base64
import hashlib
import json
import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core import buffers
from storage_core.errors import (
    FencedError,
    InvalidMessageError,
    NotFoundError,
    RequirementError,
    ServerAwayError,
    ServerError,
    StreamNotFoundError,
)
from storage_core.live.connection import Connection
from storage_core.live.server import Retries, Servers, StreamInfo
from storage_core.subjects import matches

log = logging.getLogger("jstream")

ATOMIC_COUNT = 1_000  # messages of an atomic batch
WINDOW_COUNT = 4_000  # messages that wait for their acknowledgements
CHUNK_SIZE = 8 << 20  # bytes
ATOMIC_SINCE = (2, 12, 1)  # since when a duplicate within a batch rejects the batch
_DUPLICATE_IN_BATCH, _WRONG_SEQUENCE, _WRONG_SUBJECT_SEQUENCE = 10201, 10071, 10164
_CONTROLS = r"(?i)^(nats-msg-id|nats-expected-.*|nats-batch-.*)$"  # what rows that were read must not bring along


class Mode(Enum):
    """What keeps rows from being stored twice."""

    NONE = "none"
    MSGID = "msgid"
    ATOMIC = "atomic"
    MARKER = "marker"


@dataclass(frozen=True, slots=True)
class Target:
    """A stream, and how it is written."""

    stream: str
    mode: Mode
    marker_subject: str = ""  # beginning of the subjects of markers


@dataclass(frozen=True, slots=True)
class WriterPart:
    """Whose rows they are. The same part of the same batch brings the same rows in the same order."""

    writer: str
    batch: int
    part: int

    def id(self, number: int) -> str:
        return f"{self.writer}/{self.batch}/{self.part}/{number}"


@dataclass
class Published:
    """What became of rows."""

    stored: int = 0
    duplicates: int = 0  # that the stream had already


def choose(
    info: StreamInfo, version: tuple[int, ...], wanted: Mode | None, marker_subject: str | None, may_mark: bool
) -> Target:
    """Return how a stream is written: by the mode that is wanted, else by the safest that server and stream have.

    `may_mark`: the writer has an identity that lasts. Raises RequirementError for a stream or server that cannot.
    """
    config = info.config
    for key, what in _REFUSED.items():
        if config.get(key):
            raise RequirementError(f"stream {info.name!r} {what} ({key}): it cannot be written")
    marks = marker_subject or _marker_subject(config.get("subjects") or ())
    lacking = ""
    if version < ATOMIC_SINCE:
        lacking = f"the server is {'.'.join(map(str, version))}, atomic batches need 2.12.1"
    elif not config.get("allow_atomic"):
        lacking = "the stream's allow_atomic is off (`nats stream edit --allow-batch`)"
    no_marks = lacking or ("" if marks else "none of its subjects ends with '>': give the option markerSubject")
    if wanted in (Mode.ATOMIC, Mode.MARKER):
        reason = no_marks if wanted is Mode.MARKER else lacking
        if reason:
            raise RequirementError(f"exactlyOnce={wanted.value} for stream {info.name!r}: {reason}")
    mode = wanted or (Mode.MARKER if may_mark and not no_marks else Mode.MSGID)
    if mode is Mode.MARKER and not any(matches(subject, f"{marks}.a.0") for subject in config.get("subjects") or ()):
        raise RequirementError(f"markerSubject: stream {info.name!r} takes no subject {marks}.WRITER.PARTITION")
    return Target(info.name, mode, marks if mode is Mode.MARKER else "")


_REFUSED = {
    "mirror": "is a mirror of another one",
    "sealed": "is sealed",
    "allow_msg_counter": "counts, so that each message changes a number",
    "allow_msg_schedules": "schedules messages by their headers",
}


def _marker_subject(subjects: list[str] | tuple[str, ...]) -> str:
    """Return a subject of the stream's under which nobody else is likely to write, empty if it has no room for one."""
    prefixes = [subject[:-1] for subject in subjects if subject.endswith(".>") and "*" not in subject]
    return f"{min(prefixes, key=len)}jstream.marker" if prefixes else ""


class Publisher:
    """Publishes rows of one part of a batch. For one thread; use it with `with`."""

    def __init__(self, servers: Servers, target: Target, part: WriterPart) -> None:
        self._target, self._part = target, part
        self._retries = Retries(servers)
        self._connection: Connection | None = None
        self._row_count = self._chunk = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._marker: _Marker | None = None
        self._waiting: list[pa.RecordBatch] = []
        self.published = Published()

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def write(self, batch: pa.RecordBatch, msg_ids: pa.Array) -> None:
        """Publish checked rows: columns subject, headers and data, and their own ids; a null is none.

        Raises InvalidMessageError for a row that no message can hold, FencedError if another writer has gone on,
        RequirementError if the rows are others than those that are stored as this part, ServerError as servers refuse.
        """
        self._waiting.append(batch.append_column("msg_id", msg_ids))
        self._publish_whole(is_last=False)

    def finish(self) -> Published:
        """Publish what waits for a whole chunk, and return what became of all rows."""
        self._publish_whole(is_last=True)
        marker, part = self._marker, self._part
        if marker is not None and marker.batch == part.batch and marker.chunk >= self._chunk:
            raise self._others()
        return self.published

    def _publish_whole(self, is_last: bool) -> None:
        """Publish chunks, whose edges follow from the rows alone, not from the batches that they come in."""
        if not self._waiting:
            return
        rows = pa.concat_batches(self._waiting)
        sizes = np.zeros(rows.num_rows + 1, np.int64)
        np.cumsum(buffers.numbers(pc.fill_null(pc.binary_length(rows.column("data")), 0)), out=sizes[1:])
        start = 0
        while start < rows.num_rows:
            end = int(np.searchsorted(sizes, sizes[start] + CHUNK_SIZE, side="right")) - 1
            end = max(start + 1, min(end, start + self._chunk_count))
            if end >= rows.num_rows and not is_last:
                break
            self._retrying(rows.slice(start, end - start))
            self._row_count, self._chunk, start = self._row_count + end - start, self._chunk + 1, end
        self._waiting = [rows.slice(start)] if start < rows.num_rows else []

    @property
    def _chunk_count(self) -> int:
        """Messages of a chunk at most; a marker takes the place of one."""
        mode = self._target.mode
        return {Mode.ATOMIC: ATOMIC_COUNT, Mode.MARKER: ATOMIC_COUNT - 1}.get(mode, WINDOW_COUNT)

    def _retrying(self, rows: pa.RecordBatch) -> None:
        while True:
            try:
                if self._connection is None:
                    self._connection = self._retries.connect()
                    self._marker = None
                self._publish(self._connection, rows)
                self._retries.progressed()
                return
            except ServerError as error:
                self._close()
                self._retries.failed(error)
                log.warning("stream %s: rows are sent again after: %s", self._target.stream, error)

    def _publish(self, connection: Connection, rows: pa.RecordBatch) -> None:
        mode, ids = self._target.mode, rows.column("msg_id")
        own_ids = ids.null_count < len(ids)
        ids = ids if own_ids else None
        made = Rows.of(rows, self._row_count, connection.payload_size_max)
        if mode is Mode.NONE:
            self._window(connection, made, ids)
        elif mode is Mode.MSGID:
            made_ids = self._made_ids(rows.num_rows)
            self._window(connection, made, made_ids if ids is None else pc.coalesce(ids, made_ids))
        elif mode is Mode.ATOMIC:
            first = None if own_ids else _at(made.count, 0, self._part.id(self._chunk))
            try:
                _commit(connection, self._target.stream, made, ids if own_ids else first)
                self.published.stored += made.count
            except ServerError as error:
                if error.error_code != _DUPLICATE_IN_BATCH:
                    raise
                self._duplicate(connection, made, ids)
        else:
            self._marked(connection, made, ids)

    def _made_ids(self, count: int) -> pa.Array:
        numbers = buffers.of_numbers(np.arange(self._row_count, self._row_count + count))
        prefix = constant(self._part.id(0).removesuffix("0"))
        return pc.binary_join_element_wise(prefix, _numbers(numbers), constant("")).cast(pa.string())

    def _duplicate(self, connection: Connection, made: "Rows", ids: pa.Array | None) -> None:
        """Go by a chunk that was rejected for an id: it is stored, or one of its rows is, and the others are not."""
        if ids is None:
            self.published.duplicates += made.count
        else:
            self._window(connection, made, ids)

    # --- one by one

    def _window(self, connection: Connection, made: "Rows", ids: pa.Array | None) -> None:
        reply = f"{connection.inbox}.{secrets.token_hex(4)}"
        connection.send(made.frames({"Nats-Msg-Id": ids}, constant(reply)))
        acked = duplicates = 0
        while acked < made.count:
            received = connection.receive(connection.silence_s)
            if received is None:
                raise ServerAwayError(f"stream {self._target.stream}: {made.count - acked} messages were not acked")
            for subject, status, payload in connection.replies(*received):
                if subject == reply:
                    duplicates += _acked(status.code, payload, self._target.stream)
                    acked += 1
        self.published.stored += acked - duplicates
        self.published.duplicates += duplicates

    # --- markers

    def _marked(self, connection: Connection, made: "Rows", ids: pa.Array | None) -> None:
        part, subject = self._part, self._subject_of_marker()
        digest = self._digest.copy()
        digest.update(made.frames())
        marker = self._marker or _read_marker(connection, self._target.stream, subject)
        if marker.batch > part.batch or (marker.batch == part.batch and marker.chunk >= self._chunk):
            self._check_stored(marker, digest.hexdigest())
            self.published.duplicates += made.count
        else:
            self._check_next(marker)
            body = json.dumps(
                {
                    "writer": part.writer,
                    "batch": part.batch,
                    "part": part.part,
                    "chunk": self._chunk,
                    "digest": digest.hexdigest(),
                }
            ).encode()
            expected = marker.sequence
            try:
                sequence = _commit(connection, self._target.stream, made, ids, (subject, expected, body))
                self.published.stored += made.count
            except ServerError as error:
                if error.error_code == _DUPLICATE_IN_BATCH and ids is not None:
                    self._window(connection, made, ids)
                    sequence = _commit(connection, self._target.stream, None, None, (subject, expected, body))
                elif error.error_code in (_WRONG_SEQUENCE, _WRONG_SUBJECT_SEQUENCE):
                    raise FencedError(
                        f"stream {self._target.stream!r}: another task or driver has written as {part.writer!r}, part "
                        f"{part.part}, since this one began: {error}",
                        stream=self._target.stream,
                    ) from error
                else:
                    raise
            marker = _Marker(sequence, part.batch, self._chunk, digest.hexdigest())
        self._marker, self._digest = marker, digest

    def _subject_of_marker(self) -> str:
        writer = hashlib.blake2b(self._part.writer.encode(), digest_size=8).hexdigest()
        return f"{self._target.marker_subject}.{writer}.{self._part.part}"

    def _check_stored(self, marker: "_Marker", digest: str) -> None:
        """Raise RequirementError if the chunk is stored with other rows, where that can be told."""
        if (marker.batch, marker.chunk) == (self._part.batch, self._chunk) and marker.digest != digest:
            raise self._others()

    def _others(self) -> RequirementError:
        return RequirementError(
            f"stream {self._target.stream!r} has other rows as batch {self._part.batch}, part {self._part.part} of "
            f"writer {self._part.writer!r}: a batch that comes again must bring the same rows in the same order. "
            "Order them, or give them ids by a column msg_id"
        )

    def _check_next(self, marker: "_Marker") -> None:
        follows = marker.batch < self._part.batch and self._chunk == 0
        if not follows and (marker.batch, marker.chunk) != (self._part.batch, self._chunk - 1):
            raise FencedError(
                f"stream {self._target.stream!r}: the marker of writer {self._part.writer!r} is at batch "
                f"{marker.batch}, chunk {marker.chunk}, and cannot be followed by batch {self._part.batch}, chunk "
                f"{self._chunk}: it was removed, or another driver writes",
                stream=self._target.stream,
            )


@dataclass(frozen=True, slots=True)
class _Marker:
    """How far a writer has come: everything up to that chunk of that batch is stored."""

    sequence: int  # in the stream; 0: there is none
    batch: int
    chunk: int
    digest: str  # of the rows of the batch so far


def _read_marker(connection: Connection, stream: str, subject: str) -> _Marker:
    try:
        message = connection.request("STREAM.MSG.GET", stream, body={"last_by_subj": subject})["message"]
    except StreamNotFoundError:
        raise
    except NotFoundError:
        return _Marker(0, -1, -1, "")
    try:
        body = json.loads(base64.b64decode(message["data"]))
        return _Marker(int(message["seq"]), int(body["batch"]), int(body["chunk"]), str(body["digest"]))
    except (KeyError, TypeError, ValueError) as error:
        raise RequirementError(
            f"stream {stream!r}: message {message.get('seq')} with subject {subject!r} is no marker of a writer: "
            "give another markerSubject"
        ) from error


def _acked(code: int, payload: bytes, stream: str) -> bool:
    """Return whether a message was a duplicate; raises ServerError if it was refused."""
    if code:
        raise ServerAwayError(
            f"stream {stream!r}: no server takes the message ({code})", stream=stream, error_code=code
        )
    answer: dict[str, Any] = json.loads(payload)
    if answer.get("stream", stream) != stream:
        raise RequirementError(f"stream {answer['stream']!r} has taken a message that was meant for {stream!r}")
    if error := answer.get("error"):
        number = error.get("err_code")
        text = f"stream {stream!r} refused a message: {error.get('description')} ({number})"
        raise ServerError(text, stream=stream, error_code=number)
    return bool(answer.get("duplicate"))


# --- rows as frames


def constant(text: str) -> pa.Scalar:
    """Return a text for all rows."""
    return buffers.of_bytes([text.encode()])[0]


def _at(count: int, row: int, text: str) -> pa.Array:
    """Return a column that has a text in one row, and is null in all others."""
    mask = np.arange(count) == row
    return pc.if_else(buffers.of_bits(mask), constant(text), pa.scalar(None, pa.binary()))


def _joined(*parts: pa.Array | pa.Scalar) -> pa.Array:
    """Return the parts of each row one behind the other; a null is nothing."""
    return pc.binary_join_element_wise(*parts, constant(""), null_handling="skip")


def _numbers(values: pa.Array) -> pa.Array:
    return values.cast(pa.string()).cast(pa.binary())


_KEY = r"^[!-9;-~]+$"  # printable ASCII without blanks and colons


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as they are put into frames, all columns binary."""

    subjects: pa.Array
    lines: pa.Array  # of the headers; null where there are none
    data: pa.Array

    @property
    def count(self) -> int:
        return len(self.subjects)

    @classmethod
    def of(cls, rows: pa.RecordBatch, first_row: int, size_max: int) -> "Rows":
        """Return rows of columns subject, headers and data; a null of data is published as no bytes.

        Raises InvalidMessageError for headers that a message cannot have, and for more bytes than a server takes.
        """
        lines = _header_lines(rows.column("headers"), first_row)
        data = pc.fill_null(rows.column("data"), constant(""))
        sizes = pc.add(pc.fill_null(pc.binary_length(lines), 0), pc.binary_length(data))
        large = np.flatnonzero(buffers.numbers(sizes) > size_max - _ADDED_SIZE_MAX)
        if len(large):
            row = int(large[0])
            raise InvalidMessageError(
                f"row {first_row + row}: {sizes[row].as_py()} bytes of headers and data, the server takes {size_max}, "
                f"of which {_ADDED_SIZE_MAX} are kept free for its own headers",
                row=first_row + row,
            )
        return cls(rows.column("subject").cast(pa.binary()), lines, data)

    def frames(
        self, headers: dict[str, pa.Array | pa.Scalar | None] | None = None, reply: pa.Array | pa.Scalar | None = None
    ) -> bytes:
        """Return what is sent: PUB, or HPUB where a row has headers. `headers` are put behind its own; null is none."""
        added = [
            pc.binary_join_element_wise(constant(f"{name}: "), values.cast(pa.binary()), constant("\r\n"), constant(""))
            for name, values in (headers or {}).items()
            if values is not None
        ]
        lines = _joined(self.lines, *added) if added else self.lines
        whole = pc.if_else(
            pc.greater(pc.fill_null(pc.binary_length(lines), 0), 0),
            _joined(constant("NATS/1.0\r\n"), lines, constant("\r\n")),
            pa.scalar(None, pa.binary()),
        )
        if reply is not None:
            reply = pc.binary_join_element_wise(reply, constant(" "), constant(""))
        size, header_size = pc.binary_length(self.data), pc.binary_length(whole)
        place = [self.subjects, constant(" "), *([] if reply is None else [reply])]
        plain = _joined(constant("PUB "), *place, _numbers(size), constant("\r\n"), self.data, constant("\r\n"))
        sizes = (_numbers(header_size), constant(" "), _numbers(pc.add(size, header_size)), constant("\r\n"))
        with_headers = _joined(constant("HPUB "), *place, *sizes, whole, self.data, constant("\r\n"))
        frames = pc.if_else(pc.is_valid(whole), with_headers, plain)
        return b"".join(_bytes_of(frames))


_ADDED_SIZE_MAX = 1_024  # bytes of the headers that are added to a row's


def _bytes_of(column: pa.BinaryArray) -> Iterator[memoryview]:
    ends = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    yield memoryview(column.buffers()[2])[ends[0] : ends[-1]]


def _header_lines(headers: pa.ListArray, first_row: int) -> pa.Array:
    """Return the lines of each row's headers, null where it has none; a null value is an empty one."""
    if headers.null_count == len(headers):
        return pa.nulls(len(headers), pa.binary())
    pairs = headers.flatten()
    keys, values = pairs.field("key").cast(pa.string()), pc.fill_null(pairs.field("value"), constant(""))
    rows = pc.list_parent_indices(headers)
    wrong = pc.or_(pc.invert(pc.match_substring_regex(keys, _KEY)), pc.match_substring_regex(values, r"[\r\n]"))
    if pc.any(wrong).as_py():
        at = int(np.flatnonzero(buffers.mask(wrong))[0])
        row = first_row + int(rows[at].as_py())
        raise InvalidMessageError(
            f"row {row}: header {keys[at].as_py()!r}: keys are printable ASCII without blanks and colons, values have "
            "no line breaks",
            row=row,
        )
    kept = pc.invert(pc.match_substring_regex(keys, _CONTROLS))
    pairs, rows = pairs.filter(kept), buffers.numbers(rows.filter(kept))
    lines = _joined(
        pairs.field("key").cast(pa.binary()),
        constant(": "),
        pc.fill_null(pairs.field("value"), constant("")),
        constant("\r\n"),
    )
    offsets = np.searchsorted(rows, np.arange(len(headers) + 1)).astype(np.int32)
    of_rows = pa.ListArray.from_arrays(buffers.of_numbers(offsets), lines)
    joined = pc.binary_join(of_rows, constant(""))
    return pc.if_else(buffers.of_bits(np.diff(offsets) > 0), joined, pa.scalar(None, pa.binary()))


# --- atomic batches


def _commit(
    connection: Connection,
    stream: str,
    made: Rows | None,
    ids: pa.Array | None,
    marker: tuple[str, int, bytes] | None = None,
) -> int:
    """Store rows, and the marker behind them, whole or not at all; return the last sequence.

    `marker`: subject, the sequence of the last one there, and data. Raises ServerError as the server refuses.
    """
    batch, reply = secrets.token_hex(11), f"{connection.inbox}.{secrets.token_hex(4)}"
    count = 0 if made is None else made.count
    wire = []
    if made is not None:
        numbers = _numbers(buffers.of_numbers(np.arange(1, count + 1)))
        headers = {
            "Nats-Batch-Id": constant(batch),
            "Nats-Batch-Sequence": numbers,
            "Nats-Msg-Id": ids,
            "Nats-Batch-Commit": None if marker else _at(count, count - 1, "1"),
        }
        wire.append(made.frames(headers, None if marker else _at(count, count - 1, reply)))
    if marker is not None:
        subject, last, data = marker
        lines = f"Nats-Expected-Last-Subject-Sequence: {last}\r\n"
        if made is not None:
            lines += f"Nats-Batch-Id: {batch}\r\nNats-Batch-Sequence: {count + 1}\r\nNats-Batch-Commit: 1\r\n"
        head = f"NATS/1.0\r\n{lines}\r\n".encode()
        wire.append(f"HPUB {subject} {reply} {len(head)} {len(head) + len(data)}\r\n".encode() + head + data + b"\r\n")
    connection.send(b"".join(wire))
    received = connection.receive(connection.silence_s)
    if received is None:
        raise ServerAwayError(f"stream {stream!r}: an atomic batch was not acknowledged", stream=stream)
    for subject, status, payload in connection.replies(*received):
        if subject == reply:
            _acked(status.code, payload, stream)
            return int(json.loads(payload)["seq"])
    raise ServerAwayError(f"stream {stream!r}: something else came in place of an acknowledgement", stream=stream)
