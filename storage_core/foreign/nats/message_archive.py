"""Backups of servers from 2.15 on, which hold messages, laid out as the files that a server restores them to.

    NATSARC1, then entries without anything between them:

    field        type     meaning
    name size    uvarint  bytes of the name
    time         varint   zigzag, ns since 1970 UTC
    number       uvarint  sequence of a message; 0: the entry is a file
    headers size uvarint  bytes of the headers, 0 without any
    data size    uvarint  bytes of the payload
    name         bytes    subject of the message, or name of the file
    headers, data

The files come first: `state.json` (that of the stream), `consumers/NAME` (configuration and state, as JSON). Messages
ascend; a sequence that none has was removed. Five zeros are the end.

Times between 1971 and 2116 take nine bytes, of which eight have their highest bit: where nine bytes look so, an entry
may begin. Each says where the next one would be, and the entries are the chain from the first one on.

Source: what servers 2.15.1 send; streams with and without consumers, of files and of memory.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.errors import CorruptionError
from storage_core.foreign.arrays import chain, elements, gather
from storage_core.foreign.nats.block import BLOCK_SUFFIX
from storage_core.foreign.nats.consumers import CONSUMERS_DIRECTORY, STATE_FILE, ConsumerState, encode_state
from storage_core.foreign.nats.cursor import UVARINT_SIZE_MAX, Cursor
from storage_core.foreign.nats.directory import MESSAGES_DIRECTORY
from storage_core.foreign.nats.meta import META_FILE, META_SUM_FILE, checksum_text
from storage_core.foreign.nats.record import ERASED_BIT, NUMBER_MASK, SIZE_MAX, block_key, encode_records

MAGIC = b"NATSARC1"
PART = re.compile(r"[A-Za-z0-9_$#~=+,@%-][A-Za-z0-9_.$#~=+,@%-]{0,254}")  # of a path in a backup
PIECE_SIZE = 4 << 20  # bytes that are decoded together and become one block; more where a message is longer
_STATE, _CONSUMERS = "state.json", "consumers/"
_SIZES_MAX = 5 * UVARINT_SIZE_MAX  # bytes in front of a name
_TIME_SIZE = 9
_HIGH_BITS, _LOW_BITS = np.uint64(0x8080808080808080), np.uint64(0x7F)
_LOOK_SIZE = 256 << 10  # bytes that are looked at together for times: a fraction of a cache


def unpack(read: Callable[[int], bytes], description: dict[str, Any], place: Path, name: str) -> None:
    """Write the stream of an archive to the directory `place`; `read` returns bytes from behind MAGIC on.

    Raises CorruptionError, which names the archive `name`.
    """
    config = description.get("config")
    if not isinstance(config, dict) or not isinstance(config.get("name"), str):
        raise _bad(name, "the description beside it has no configuration of a stream")
    stream = _Directory(place, config, name)
    last = None
    for entries in _entries(read, name):
        if isinstance(entries, _Messages):
            stream.add_messages(entries)
        elif entries.name == _STATE:
            last = _whole_number(entries.content(name), "last_seq", name)
        elif entries.name.startswith(_CONSUMERS):
            stream.add_consumer(entries.name.removeprefix(_CONSUMERS), entries.content(name))
        else:
            raise _bad(name, f"{entries.name!r} is no file of a backup")
    if last is None:
        raise _bad(name, f"it has no {_STATE}")
    stream.finish(last)


def _bad(archive: str, reason: str) -> CorruptionError:
    return CorruptionError(f"{archive}: {reason}", file=archive)


def _whole_number(content: dict[str, Any], key: str, archive: str) -> int:
    value = content.get(key)
    if type(value) is not int or not 0 <= value <= NUMBER_MASK:
        raise _bad(archive, f"{key} is {value!r}, expected a whole number")
    return value


# --- entries


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    data: bytes

    def content(self, archive: str) -> dict[str, Any]:
        try:
            content = json.loads(self.data)
        except (ValueError, RecursionError) as error:
            raise _bad(archive, f"{self.name} is no JSON: {error}") from error
        if not isinstance(content, dict):
            raise _bad(archive, f"{self.name} is no JSON object")
        return content


@dataclass(frozen=True, slots=True)
class _Messages:
    """Messages of a piece, ascending. Places are offsets into it."""

    piece: np.ndarray
    times_ns: np.ndarray
    sequences: np.ndarray
    subject_starts: np.ndarray
    header_starts: np.ndarray
    data_starts: np.ndarray
    ends: np.ndarray


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry; its fields are the columns of `_Messages`, in their order."""

    time_ns: int
    number: int
    name_start: int
    header_start: int
    data_start: int
    end: int

    def row(self) -> np.ndarray:
        places = self.name_start, self.header_start, self.data_start, self.end
        return np.array([self.time_ns, self.number, *places], np.int64)[:, None]


def _entries(read: Callable[[int], bytes], archive: str) -> "Iterator[_File | _Messages]":
    """Yield files and messages in their order, up to the mark of the end."""
    piece, wanted, before = b"", PIECE_SIZE, 0
    while more := read(wanted - len(piece)):
        piece += more
        cursor, at = Cursor(piece, archive), 0
        while (entry := _entry_at(cursor, at)) is not None:
            if entry.number:
                messages = _messages(cursor, at)
                before = _check_ascending(messages.sequences, before, archive)
                yield messages
                at = int(messages.ends[-1])
            elif entry.end > entry.name_start:
                name = piece[entry.name_start : entry.header_start].decode("utf-8", "backslashreplace")
                yield _File(name, piece[entry.data_start : entry.end])
                at = entry.end
            elif entry.end < len(piece) or read(1):
                raise _bad(archive, "bytes are left behind the mark of its end")
            else:
                return
        piece = piece[at:]
        wanted = max(PIECE_SIZE, 2 * len(piece))
    raise _bad(archive, "it ends without the mark of its end")


def _check_ascending(sequences: np.ndarray, before: int, archive: str) -> int:
    """Return the last sequence."""
    falling = np.flatnonzero(np.diff(sequences, prepend=before) <= 0)
    if len(falling):
        at = falling[0]
        raise _bad(archive, f"sequence {sequences[at]} comes behind {sequences[at - 1] if at else before}")
    return int(sequences[-1])


def _entry_at(cursor: Cursor, at: int) -> _Entry | None:
    """Return the entry that begins there; None if it is not whole."""
    sizes = cursor.data[at : at + _SIZES_MAX]
    if len(sizes) < _SIZES_MAX and sum(byte < 0x80 for byte in sizes) < 5:
        return None
    cursor.at = at
    name_size, time_ns = cursor.uvarint(), cursor.varint()
    number, header_size, data_size = cursor.uvarint(), cursor.uvarint(), cursor.uvarint()
    size = name_size + header_size + data_size
    if size > SIZE_MAX or number > NUMBER_MASK:
        raise _bad(cursor.name, f"an entry with number {number} and {size} bytes, the most is {SIZE_MAX} bytes")
    start = cursor.at
    if start + size > len(cursor.data):
        return None
    header_start = start + name_size
    return _Entry(time_ns, number, start, header_start, header_start + header_size, start + size)


def _messages(cursor: Cursor, at: int) -> _Messages:
    """Return the whole messages from `at` on; one at least begins there."""
    piece = np.frombuffer(cursor.data, np.uint8)
    starts, columns = _likely_messages(piece)
    successors = np.searchsorted(starts, columns[-1])
    is_start = np.append(starts, -1)[successors] == columns[-1]
    successors[~is_start] = len(starts)
    parts = []
    while True:
        row = int(np.searchsorted(starts, at))
        if row < len(starts) and starts[row] == at:
            parts.append(columns[:, row + chain(successors[row:] - row)])
        else:  # of another time, or with a long subject
            entry = _entry_at(cursor, at)
            if entry is None or not entry.number:
                return _Messages(piece, *np.concatenate(parts, axis=1))
            parts.append(entry.row())
        at = int(parts[-1][-1, -1])


def _likely_messages(piece: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where messages may begin, ascending, and the columns of `_Messages` of each: whole, and possible.

    The size of a subject takes one byte, or two; a byte of the message in front may look like the first of two.
    """
    words = elements(piece, "<u8")
    parts = [
        np.flatnonzero((words[first : first + _LOOK_SIZE] & _HIGH_BITS) == _HIGH_BITS) + first
        for first in range(0, len(words), _LOOK_SIZE)
    ]
    times = np.concatenate(parts) if parts else np.empty(0, np.int64)
    times = times[(times >= 1) & (times + _TIME_SIZE < len(piece))]
    times = times[(piece[times - 1] < 0x80) & (piece[times + _TIME_SIZE - 1] < 0x80)]
    longer = times[piece[np.maximum(times - 2, 0)] >= 0x80]
    starts = np.concatenate((times - 1, longer - 2))
    name_sizes = np.concatenate(
        (piece[times - 1], (piece[longer - 2] & 0x7F) + (piece[longer - 1].astype(np.int64) << 7))
    )
    times = np.concatenate((times, longer))
    order = np.argsort(starts, kind="stable")
    starts, times, name_sizes = starts[order], times[order], name_sizes[order]
    coded = piece[times + _TIME_SIZE - 1].astype(np.uint64) << np.uint64(56)
    for byte in range(_TIME_SIZE - 1):
        coded |= (words[times] >> np.uint64(8 * byte) & _LOW_BITS) << np.uint64(7 * byte)
    times_ns = (coded >> np.uint64(1)).astype(np.int64) ^ -(coded & np.uint64(1)).astype(np.int64)
    numbers, ends = _uvarints(piece, times + _TIME_SIZE)
    header_sizes, ends = _uvarints(piece, ends)
    data_sizes, ends = _uvarints(piece, ends)
    is_possible = (numbers >= 1) & (header_sizes >= 0) & (data_sizes >= 0)
    is_possible &= name_sizes + np.minimum(header_sizes, SIZE_MAX) + np.minimum(data_sizes, SIZE_MAX) <= SIZE_MAX
    header_starts = ends + name_sizes
    data_starts = header_starts + header_sizes
    columns = np.stack((times_ns, numbers, ends, header_starts, data_starts, data_starts + data_sizes))
    is_possible &= columns[-1] <= len(piece)
    return starts[is_possible], columns[:, is_possible]


def _uvarints(piece: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the integers at the places, -1 for one that cannot be, and where they end."""
    values, ends, rows = np.zeros(len(places), np.int64), places.copy(), np.arange(len(places))
    for shift in range(0, 63, 7):
        bytes_here = piece.take(ends[rows], mode="clip").astype(np.int64)
        values[rows] |= (bytes_here & 0x7F) << shift
        ends[rows] += 1
        rows = rows[bytes_here >= 0x80]
        if not len(rows):
            break
    values[rows] = -1
    return values, ends


# --- what is written


class _Directory:
    """The directory of a stream, as a server has it, without an index: its blocks tell what it shows."""

    def __init__(self, place: Path, config: dict[str, Any], archive: str) -> None:
        self._place, self._name, self._archive = place, str(config["name"]), archive
        self._next_sequence, self._block_count = 1, 0
        (place / MESSAGES_DIRECTORY).mkdir(parents=True)
        self._write_meta(place, config, self._name)

    def _write_meta(self, place: Path, config: dict[str, Any], identity: str) -> None:
        content = json.dumps(config).encode()
        (place / META_FILE).write_bytes(content)
        (place / META_SUM_FILE).write_text(checksum_text(content, identity))

    def add_messages(self, messages: _Messages) -> None:
        block = pa.py_buffer(messages.piece)
        subjects = gather(block, messages.subject_starts, messages.header_starts - messages.subject_starts)
        bodies = gather(block, messages.header_starts, messages.ends - messages.header_starts)
        header_sizes = messages.data_starts - messages.header_starts
        self._write_block(
            int(messages.sequences[0]), messages.sequences, messages.times_ns, subjects, header_sizes, bodies
        )
        self._next_sequence = int(messages.sequences[-1]) + 1

    def finish(self, last: int) -> None:
        """Write down that the stream has used sequences up to the last one."""
        if last >= self._next_sequence or not self._block_count:
            none, empty = np.empty(0, np.int64), buffers.of_bytes(())
            self._write_block(last + 1, none, none, empty, none, empty)

    def _write_block(
        self, first: int, sequences: np.ndarray, times_ns: np.ndarray, subjects: pa.BinaryArray,
        header_sizes: np.ndarray, bodies: pa.BinaryArray,
    ) -> None:  # fmt: skip
        """Write a block of messages from `first` on; a skipped number stands for those that were removed before."""
        self._block_count += 1
        key = block_key(self._name, self._block_count)
        with (self._place / MESSAGES_DIRECTORY / f"{self._block_count}{BLOCK_SUFFIX}").open("wb") as file:
            if first > self._next_sequence:
                skipped, zero, nothing = (
                    np.array([first - 1 | ERASED_BIT], np.uint64),
                    np.zeros(1, np.int64),
                    buffers.of_bytes([b""]),
                )
                file.write(encode_records(skipped, zero, nothing, zero, nothing, key))
            if len(sequences):
                file.write(encode_records(sequences.astype(np.uint64), times_ns, subjects, header_sizes, bodies, key))

    def add_consumer(self, name: str, content: dict[str, Any]) -> None:
        config, state = content.get("config"), content.get("state")
        if not PART.fullmatch(name) or not isinstance(config, dict):
            raise _bad(self._archive, f"{_CONSUMERS}{name} is no consumer")
        place = self._place / CONSUMERS_DIRECTORY / name
        place.mkdir(parents=True)
        self._write_meta(place, {**config, "Name": name}, f"{self._name}/{name}")
        if state is not None:
            (place / STATE_FILE).write_bytes(encode_state(_consumer_state(state, name, self._archive)))


def _consumer_state(state: Any, name: str, archive: str) -> ConsumerState:
    """Return the state of a consumer as JSON has it: sequences of messages are names of fields there."""
    try:
        delivered, floor = (
            (int(pair["consumer_seq"]), int(pair["stream_seq"])) for pair in (state["delivered"], state["ack_floor"])
        )
        pending = [
            (int(sequence), int(sent["Sequence"]), int(sent["Timestamp"]) // 10**9)
            for sequence, sent in (state.get("pending") or {}).items()
        ]
        redelivered = [(int(sequence), int(times)) for sequence, times in (state.get("redelivered") or {}).items()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _bad(archive, f"{_CONSUMERS}{name}: no state of a consumer: {error!r}") from error
    return ConsumerState(delivered, floor, tuple(sorted(pending)), tuple(sorted(redelivered)))
