"""Protocol Buffers, as far as STAN's files need it: the same few fields of many messages in one go, or one message.

All messages of a window advance together, field by field: what the first field of each is, then the second, and so
on. Messages of one kind mostly have the same fields in the same order, so this is a handful of numpy calls a field.

Source: protobuf.dev, "Encoding". As Go does, unknown fields are passed over and of a field given twice the last counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from storage_core.foreign.arrays import elements

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4 (groups) are in no message of STAN
PADDING = 16  # bytes that must follow the last message in an array, so that a word can be read at every place
FIELD_COUNT_MAX = 64  # fields of one message; STAN's have at most 11
_SKIPPED = {FIXED64: 8, FIXED32: 4}  # bytes after the tag
_BAD = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Field:
    """One field of many messages, as parallel arrays. Absent: the value is 0, the start is the end of the message."""

    values: np.ndarray  # uint64; of BYTES their count
    starts: np.ndarray  # int64, offset of the bytes; of a number meaningless

    def take(self, which: np.ndarray | slice) -> "Field":
        return Field(self.values[which], self.starts[which])


def decode_fields(
    view: np.ndarray, starts: np.ndarray, ends: np.ndarray, wire_types: Mapping[int, int], kept: tuple[int, ...]
) -> tuple[dict[int, Field], np.ndarray]:
    """Return the `kept` fields of the messages at `view[starts:ends]`, and which messages could be read to their end.

    `view` is uint8 with PADDING bytes behind the last message. `wire_types` are those of the known fields, whose
    numbers are below 16; one that comes as another type makes its message unreadable.
    """
    fields = {number: Field(np.zeros(len(starts), np.uint64), ends.copy()) for number in kept}
    at, active = starts.copy(), np.flatnonzero(starts < ends)
    for _ in range(FIELD_COUNT_MAX):
        if not len(active):
            break
        tags = view[at[active]]
        present = np.flatnonzero(np.bincount(tags, minlength=256)).tolist()
        for tag in present:
            rows = active if len(present) == 1 else active[tags == tag]
            at[rows] = _read_field(view, tag, rows, at[rows], ends[rows], wire_types, fields)
        active = active[at[active] < ends[active]]
    return fields, at == ends


def read_uvarints(view: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the variable-length integers at `at` (uint64), and the places behind them (_BAD: more than 64 bits)."""
    words = elements(view, "<u8")[at]
    stops = ~words & np.uint64(0x8080808080808080)
    lowest = stops & (~stops + np.uint64(1))  # the top bit of the byte that ends the integer; 0: not within 8 bytes
    value = words & (lowest | (lowest - np.uint64(1))) & np.uint64(0x7F7F7F7F7F7F7F7F)
    for shift, low in ((1, 0x007F007F007F007F), (2, 0x00003FFF00003FFF), (4, 0x000000000FFFFFFF)):
        # Neighbours of 7, 14, 28 bits move together.
        value = (value & np.uint64(low)) | ((value & ~np.uint64(low)) >> np.uint64(shift))
    sizes = np.frexp(lowest.astype(np.float64))[1].astype(np.int64) >> 3
    long = np.flatnonzero(lowest == 0)
    if not len(long):
        return value, at + sizes
    places = at[long]
    ninth, tenth = view[places + 8].astype(np.uint64), view[places + 9].astype(np.uint64)
    more = ninth >= 0x80
    value[long] |= (ninth & np.uint64(0x7F)) << np.uint64(56)
    value[long] |= np.where(more, tenth << np.uint64(63), np.uint64(0))
    after = at + sizes
    after[long] = np.where(more, np.where(tenth > 1, _BAD, places + 10), places + 9)
    return value, after


def decode_one(payload: bytes) -> tuple[dict[int, int | bytes], bool]:
    """Return the fields of one message by number, and whether it could be read to its end: for rare records, and
    for saying what a damaged one would have been. Never raises."""
    fields: dict[int, int | bytes] = {}
    at = 0
    for _ in range(FIELD_COUNT_MAX):
        if at >= len(payload):
            break
        tag, at = _uvarint(payload, at)
        number, wire_type = tag >> 3, tag & 7
        if at < 0 or not number:
            return fields, False
        if wire_type in _SKIPPED:
            at += _SKIPPED[wire_type]
            continue
        value, at = _uvarint(payload, at) if wire_type in (VARINT, BYTES) else (0, -1)
        if at < 0:
            return fields, False
        if wire_type == VARINT:
            fields[number] = value
            continue
        fields[number] = payload[at : at + value]
        at += value
    return fields, at == len(payload)


def _read_field(
    view: np.ndarray,
    tag: int,
    rows: np.ndarray,
    at: np.ndarray,
    ends: np.ndarray,
    wire_types: Mapping[int, int],
    fields: dict[int, Field],
) -> np.ndarray:
    """Read the field that begins with `tag` in all `rows`; return where the next one begins, _BAD if none can."""
    if tag >= 0x80:
        return _skip_unknown(view, at, ends)
    number, wire_type = tag >> 3, tag & 7
    if not number or wire_types.get(number, wire_type) != wire_type:
        return np.full(len(at), _BAD)
    if wire_type in _SKIPPED:
        return _within(at + 1 + _SKIPPED[wire_type], ends)
    if wire_type not in (VARINT, BYTES):
        return np.full(len(at), _BAD)
    values, after = read_uvarints(view, at + 1)
    after = _within(after, ends)
    starts = after
    if wire_type == BYTES:
        after = _skip_bytes(after, values, ends)
    if number in fields:
        good = after != _BAD
        kept = rows if good.all() else rows[good]
        fields[number].values[kept] = values if good.all() else values[good]
        fields[number].starts[kept] = starts if good.all() else starts[good]
    return after


def _skip_unknown(view: np.ndarray, at: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Pass over fields with a tag of several bytes: their numbers are above those that STAN has."""
    keys, at = read_uvarints(view, at)
    at = _within(at, ends)
    inside = np.where(at < ends, at, 0)
    values, after = read_uvarints(view, inside)
    after = np.where(at < ends, _within(after, ends), _BAD)
    wire_types = keys & np.uint64(7)
    after = np.select(
        [wire_types == VARINT, wire_types == BYTES, wire_types == FIXED64, wire_types == FIXED32],
        [after, _skip_bytes(after, values, ends), _within(at + 8, ends), _within(at + 4, ends)],
        _BAD,
    )
    return np.where((at == _BAD) | (keys < 128), _BAD, after)


def _skip_bytes(after: np.ndarray, sizes: np.ndarray, ends: np.ndarray) -> np.ndarray:
    room = np.maximum(ends - after, 0)
    fits = (after != _BAD) & (sizes <= room.astype(np.uint64))
    return np.where(fits, after + np.where(fits, sizes, 0).astype(np.int64), _BAD)


def _within(after: np.ndarray, ends: np.ndarray) -> np.ndarray:
    # A sum with _BAD has wrapped below zero.
    return np.where((after <= ends) & (after >= 0), after, _BAD)


def _uvarint(data: bytes, at: int) -> tuple[int, int]:
    """Return the integer at `at` and the place behind it, -1 if it does not end or has more than 64 bits."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            return value, -1
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at if not value >> 64 else -1
    return value, -1
