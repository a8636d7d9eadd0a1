"""Columns made of the messages that a consumer delivers, and of those that a direct get answers with.

The place of a delivered message stands in its reply subject, which is read from the right; what stands to its left is
compared in every row, so that nothing foreign is ever taken for a message of the stream:

    MSG <subject> <sid> $JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<deliveries>.<stream sequence>.
        <consumer sequence>.<nanoseconds>.<pending> <size>

A direct get answers with the same in headers that the server adds behind those of the message.

Source: ADR-15 and ADR-31 of nats-architecture-and-design.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core import buffers
from storage_core.errors import ProtocolError
from storage_core.foreign.arrays import elements, gather, to_strings
from storage_core.foreign.nats.headers import parse_headers
from storage_core.live.wire import Frames, numbers_before, starts_before
from storage_core.schema import HEADERS_TYPE, READ_FIELDS, TIMESTAMP_TYPE

_STATUS = b"NATS/1.0 "
_SHOWN_SIZE = 300  # bytes of a line in an error


@dataclass(frozen=True, slots=True)
class Status:
    """An answer that is no message, such as 404 or 409."""

    code: int
    text: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of a stream, ascending."""

    sequences: np.ndarray
    times_ns: np.ndarray
    subjects: pa.BinaryArray
    headers: pa.ListArray
    data: pa.BinaryArray
    pending: int  # that come behind the last of them

    def __len__(self) -> int:
        return len(self.sequences)

    def slice(self, first: int, end: int) -> "Messages":
        """Return the messages of the sequences `[first, end)`."""
        start, stop = (int(np.searchsorted(self.sequences, bound)) for bound in (first, end))
        if start == 0 and stop == len(self):
            return self
        subjects, headers, data = (part.slice(start, stop - start) for part in (self.subjects, self.headers, self.data))
        return Messages(self.sequences[start:stop], self.times_ns[start:stop], subjects, headers, data, self.pending)

    def where(self, mask: np.ndarray) -> "Messages":
        """Return the messages where the mask is set."""
        if mask.all():
            return self
        bits = buffers.of_bits(mask)
        subjects, headers, data = (part.filter(bits) for part in (self.subjects, self.headers, self.data))
        return Messages(self.sequences[mask], self.times_ns[mask], subjects, headers, data, self.pending)

    def batch(self, stream: str, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Return the named columns, as READ_FIELDS."""
        made = {
            "stream": lambda: buffers.repeated(stream, len(self)),
            "sequence": lambda: buffers.of_numbers(self.sequences),
            "subject": lambda: to_strings(self.subjects),
            "timestamp": lambda: buffers.of_numbers(self.times_ns // 1_000, TIMESTAMP_TYPE),
            "timestamp_ns": lambda: buffers.of_numbers(self.times_ns),
            "headers": lambda: self.headers,
            "data": lambda: self.data,
        }
        schema = pa.schema([READ_FIELDS[name] for name in columns])
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.nulls(len(self), pa.struct([])).fill_null({}))
        return pa.RecordBatch.from_arrays([made[name]() for name in columns], schema=schema)


class Deliveries:
    """What one consumer delivers to one subscription."""

    def __init__(self, inbox: str, sid: int, stream: str, consumer: str) -> None:
        """`inbox`: the subject that is subscribed to; statuses come on it."""
        self._inbox, self._sid = inbox.encode(), b" %d " % sid
        self._name = f"{stream}.{consumer}.1".encode()
        self._expected = b"".join((self._sid, b"$JS.ACK.", self._name))

    def take(self, block: np.ndarray, frames: Frames) -> tuple[Messages, list[Status]]:
        """Return the messages among the frames, which are all for this subscription, and the statuses.

        Raises ProtocolError for a frame that is neither.
        """
        sizes, ends = numbers_before(block, frames.line_ends)
        header_ends = frames.line_ends + 2
        with_headers = np.flatnonzero(frames.has_headers)
        header_sizes, ends[with_headers] = numbers_before(block, ends[with_headers] - 1)
        header_ends[with_headers] += header_sizes
        pending_ends = ends - 1
        pending_starts = starts_before(block, pending_ends)
        times_ns, ends = numbers_before(block, pending_starts - 1)
        order_ends = ends - 1
        order_starts = starts_before(block, order_ends)
        sequences, ends = numbers_before(block, order_starts - 1)
        is_message = (times_ns >= 0) & (sequences >= 0) & (header_ends <= frames.payload_ends)
        is_message &= (pending_starts < pending_ends) & (order_starts < order_ends)
        subject_ends = self._subject_ends(block, ends - 1, frames.starts, is_message)
        rows: slice | np.ndarray = slice(None)
        statuses = []
        if not is_message.all():
            rows = np.flatnonzero(is_message)
            for at in np.flatnonzero(~is_message):
                statuses.append(self._status(block, frames, int(at), int(header_ends[at])))
            with_headers = rows[frames.has_headers[rows]]
        _check_ascending(sequences[rows])
        buffer = pa.py_buffer(block)
        starts, header_starts = frames.starts[rows] + 4 + frames.has_headers[rows], frames.line_ends + 2
        raw = gather(buffer, header_starts[with_headers], (header_ends - header_starts)[with_headers])
        messages = Messages(
            sequences[rows],
            times_ns[rows],
            gather(buffer, starts, subject_ends[rows] - starts),
            parse_headers(raw, frames.has_headers[rows]),
            gather(buffer, header_ends[rows], (frames.payload_ends - header_ends)[rows]),
            int(numbers_before(block, pending_ends[rows][-1:])[0][0]) if is_message.any() else 0,
        )
        return messages, statuses

    def _subject_ends(
        self, block: np.ndarray, ends: np.ndarray, starts: np.ndarray, is_message: np.ndarray
    ) -> np.ndarray:
        """Return where the subjects end; clears `is_message` where what stands between is not as expected."""
        (rows,) = np.nonzero(is_message)
        if len(rows) and not _stand_before(block, ends[rows[:1]], self._expected)[0]:
            self._learn(block[starts[rows[0]] : ends[rows[0]]].tobytes())
        is_message[rows] = _stand_before(block, ends[rows], self._expected)
        subject_ends: np.ndarray = ends - len(self._expected)
        is_message &= subject_ends > starts
        return subject_ends

    def _learn(self, line: bytes) -> None:
        """Take a reply that names domain and account besides, as servers can be told to send it."""
        _, _, reply = line.rpartition(b" ")
        tokens = reply.split(b".")
        if len(tokens) == 7 and reply.startswith(b"$JS.ACK.") and b".".join(tokens[4:]) == self._name:
            self._expected = self._sid + reply

    def _status(self, block: np.ndarray, frames: Frames, at: int, header_end: int) -> Status:
        start, line_end = int(frames.starts[at]), int(frames.line_ends[at])
        line = block[start : min(line_end, start + _SHOWN_SIZE)].tobytes()
        raw = block[line_end + 2 : header_end].tobytes()
        if not line.startswith(b"".join((b"HMSG ", self._inbox, self._sid))) or not raw.startswith(_STATUS):
            raise ProtocolError(f"a message that was not asked for: {line!r} instead of {self._expected!r}")
        return status_of(raw)


def status_of(raw: bytes) -> Status:
    """Return what the first line of headers says; code 0: they are those of a message."""
    first, *lines = raw.decode("utf-8", "replace").split("\r\n")
    _, _, text = first.partition(" ")
    code, _, words = text.partition(" ")
    pairs = (line.partition(":") for line in lines if line)
    headers = {key: value.strip() for key, _, value in pairs}
    return Status(int(code) if code.isdecimal() else 0, words, headers)


def _stand_before(block: np.ndarray, ends: np.ndarray, text: bytes) -> np.ndarray:
    """Return whether the text stands before each place; eight bytes at a time, the last of them twice if need be."""
    assert len(text) >= 8, text
    words, is_there = elements(block, "<u8"), ends >= len(text)
    for at in {*range(0, len(text) - 7, 8), len(text) - 8}:
        word = np.frombuffer(text, "<u8", 1, at)[0]
        is_there &= words[np.maximum(ends - len(text) + at, 0)] == word
    return is_there


def _check_ascending(sequences: np.ndarray) -> None:
    if len(sequences) > 1 and (np.diff(sequences) <= 0).any():
        at = int(np.argmax(np.diff(sequences) <= 0))
        raise ProtocolError(f"sequence {sequences[at + 1]} came behind {sequences[at]}")


# --- direct get

_ADDED = ("Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp")  # to a message, in this order
_ADDED_TO_BATCHES = ("Nats-Num-Pending", "Nats-Last-Sequence")


def direct_messages(block: np.ndarray, frames: Frames, stream: str) -> Messages:
    """Return the messages that answer a direct get of a batch; all frames have headers without a status.

    Raises ProtocolError if what the server adds is not there, or is of another stream.
    """
    sizes, ends = numbers_before(block, frames.line_ends)
    header_sizes, _ = numbers_before(block, ends - 1)
    header_starts, count = frames.line_ends + 2, len(frames)
    header_ends = header_starts + header_sizes
    buffer = pa.py_buffer(block)
    pairs = parse_headers(gather(buffer, header_starts, header_sizes), np.ones(count, bool))
    edges = np.frombuffer(pairs.buffers()[1], np.int32, count + 1, pairs.offset * 4)
    keys, values = pairs.values.field("key"), pairs.values.field("value")
    added = {name: np.full(count, -1, np.int64) for name in (*_ADDED, *_ADDED_TO_BATCHES)}
    kept = np.ones(len(keys), bool)
    names = np.array(keys.to_pylist(), object)
    for back in range(1, len(added) + 1):  # the last headers are the server's, whatever those of the message are called
        rows = np.flatnonzero(edges[1:] - back >= edges[:-1])
        places = edges[1:][rows] - back
        for name, place in added.items():
            ours = (names[places] == name) & (place[rows] < 0)
            place[rows[ours]] = places[ours]
            kept[places[ours]] = False
    lacking = [name for name in _ADDED if (added[name] < 0).any()]
    if lacking:
        raise ProtocolError(f"the answer to a direct get of stream {stream!r} lacks the header {lacking[0]}")

    def column(name: str) -> pa.BinaryArray:
        return values.take(buffers.of_numbers(added[name]))

    others = set(column("Nats-Stream").to_pylist()) - {stream.encode()}
    if others:
        raise ProtocolError(f"the answer to a direct get of stream {stream!r} is of stream {min(others)!r}")
    times = column("Nats-Time-Stamp").cast(pa.string()).cast(pa.timestamp("ns", "UTC")).cast(pa.int64())
    sequences = buffers.numbers(column("Nats-Sequence").cast(pa.string()).cast(pa.int64()))
    _check_ascending(sequences)
    left = np.concatenate(([0], np.cumsum(kept)))[edges].astype(np.int32)
    empty = np.diff(left) == 0
    mask = buffers.of_bits(empty) if empty.any() else None
    headers = pa.ListArray.from_arrays(
        buffers.of_numbers(left), pairs.values.filter(buffers.of_bits(kept)), type=HEADERS_TYPE, mask=mask
    )
    pending = pc.fill_null(column("Nats-Num-Pending").cast(pa.string()).cast(pa.int64()), 0)
    return Messages(
        sequences,
        buffers.numbers(times),
        column("Nats-Subject"),
        headers,
        gather(buffer, header_ends, frames.payload_ends - header_ends),
        int(pending[-1].as_py()) if count else 0,
    )
