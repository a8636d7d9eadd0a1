"""Records of STAN's files: where they begin, what their heads say, whether their checksum holds.

A file is the version (u32, 1), then records one after another (integers little-endian):

    offset  size  field    type  meaning
    0       4     size     u32   bytes of the payload; in subs.dat and clients.dat bits 31..24 are the record's type
    4       4     crc      u32   CRC-32 of the payload, of the polynomial that the server was given
    8       n     payload        one protobuf message

The checksum covers neither size nor type. A head of eight zero bytes says that the rest of the file is padding.

Source: nats-streaming-server, stores/filestore.go (`writeRecord`, `readRecord`, `checkFileVersion`).
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from struct import Struct

import numpy as np

from storage_core.checksum import crc32c
from storage_core.foreign.arrays import elements
from storage_core.foreign.stan.protobuf import BYTES, VARINT, Field, decode_fields

FILE_HEADER_SIZE = 4
VERSION = 1
HEADER = Struct("<II")
HEADER_SIZE = HEADER.size
PAYLOAD_SIZE_MIN = 2  # bytes: every payload begins with a field that is not empty
SUBJECT = 2  # number of the field
SEQUENCE_MAX = (1 << 62) - 1  # no stream comes near it; what is above is damage
Checksum = Callable[[memoryview], int]
POLYNOMIALS: Mapping[str, Checksum] = {"IEEE": zlib.crc32, "Castagnoli": crc32c}  # the server's default first

_MESSAGE = {1: VARINT, 2: BYTES, 3: BYTES, 4: BYTES, 5: VARINT, 6: VARINT, 7: VARINT, 10: VARINT}
_SUBSCRIPTION = {1: VARINT, 2: BYTES, 3: BYTES, 4: BYTES, 5: BYTES, 6: VARINT, 7: VARINT, 8: BYTES}
_SUBSCRIPTION |= {9: VARINT, 10: VARINT, 11: VARINT}
_CLIENT = {1: BYTES, 2: BYTES, 3: BYTES, 4: VARINT, 5: VARINT, 6: VARINT}
_UPDATE = {1: VARINT, 2: VARINT}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of file. `types` gives for each type of record its name and the wire types of its fields."""

    name: str
    types: Mapping[int, tuple[str, Mapping[int, int]]]  # without types in the file: 0 alone
    typed: bool
    size_mask: int
    payload_size_max: int  # bytes
    first_tag: int  # first byte of every payload
    kept: tuple[int, ...]  # fields that are decoded
    sequences: Mapping[int, int]  # by type: which of them is a sequence


MESSAGES = Kind(
    "message",
    {0: ("message", _MESSAGE)},
    typed=False,
    size_mask=0xFFFFFFFF,
    payload_size_max=(64 << 20) + (1 << 16),  # a server takes messages of 64 MiB at most
    first_tag=1 << 3 | VARINT,
    kept=(1, 2, 4, 5),
    sequences={0: 1},
)
SUBSCRIPTIONS = Kind(
    "subscription",
    {
        1: ("new subscription", _SUBSCRIPTION),
        2: ("subscription replaced", _SUBSCRIPTION),
        3: ("subscription removed", {1: VARINT}),
        4: ("message acknowledged", _UPDATE),
        5: ("message sent", _UPDATE),
    },
    typed=True,
    size_mask=0xFFFFFF,
    payload_size_max=0xFFFFFF,
    first_tag=1 << 3 | VARINT,
    kept=(1, 2, 9),
    sequences={1: 9, 2: 9, 4: 2, 5: 2},
)


@dataclass(frozen=True, slots=True)
class Records:
    """Payloads of records as parallel arrays, in the order of the file; offsets in bytes of what was read of it."""

    starts: np.ndarray  # int64, of the payload: the head is HEADER_SIZE in front
    ends: np.ndarray
    types: np.ndarray  # uint8
    good: np.ndarray  # the checksum holds
    readable: np.ndarray  # the payload is a message of its type
    own: np.ndarray  # it does not name another channel
    fields: Mapping[int, Field] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def heads(self) -> np.ndarray:
        return np.asarray(self.starts - HEADER_SIZE)

    def take(self, which: np.ndarray | slice) -> "Records":
        return Records(
            self.starts[which],
            self.ends[which],
            self.types[which],
            self.good[which],
            self.readable[which],
            self.own[which],
            {number: column.take(which) for number, column in self.fields.items()},
        )


def merge(parts: list[Records]) -> Records:
    """Return the records of all parts, in the order of the file."""
    parts = [part for part in parts if len(part)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    starts, ends, types, good, readable, own = (
        np.concatenate([getattr(part, name) for part in parts]) for name in Records.__slots__[:-1]
    )
    fields = {
        number: Field(
            np.concatenate([part.fields[number].values for part in parts]),
            np.concatenate([part.fields[number].starts for part in parts]),
        )
        for number in parts[0].fields
    }
    merged = Records(starts, ends, types, good, readable, own, fields)
    return merged.take(np.argsort(merged.starts, kind="stable"))


def walk(view: memoryview, first: int, end: int, kind: Kind) -> tuple[np.ndarray, np.ndarray, int]:
    """Follow the chain of sizes in `view[first:end]`; return starts and ends of payloads, and where the chain stops.

    It stops at `end`, or at a head whose record is not wholly before `end` or cannot be. Nothing else is checked.
    This and the checksums are what takes Python once a record, about 0.3 us each; all else takes arrays.
    """
    heads: list[int] = []
    append, unpack = heads.append, Struct("<I").unpack_from
    mask, size_max, at, last = kind.size_mask, kind.payload_size_max, first, end - HEADER_SIZE
    while at <= last:
        size = unpack(view, at)[0] & mask
        at_next = at + HEADER_SIZE + size
        if at_next > end or not PAYLOAD_SIZE_MIN <= size <= size_max:
            break
        append(at)
        at = at_next
    edges = np.array([*heads, at], np.int64)
    return edges[:-1] + HEADER_SIZE, edges[1:].copy(), at


def check(
    view: np.ndarray, starts: np.ndarray, ends: np.ndarray, kind: Kind, prefer: str, subject: bytes = b""
) -> tuple[Records, str]:
    """Return the records with what their checksums and payloads say, and the polynomial that most of them have.

    `subject` is the channel that messages have to name. Those that fail with the preferred polynomial are tried with
    the others: a server's option may have changed.
    """
    good = np.zeros(len(starts), bool)
    counts: dict[str, int] = {}
    order = [prefer, *(name for name in POLYNOMIALS if name != prefer)]
    for name in order:
        rows = np.flatnonzero(~good)
        if not len(rows):
            break
        true = _checksums_hold(view, starts[rows], ends[rows], POLYNOMIALS[name])
        good[rows[true]] = True
        counts[name] = int(true.sum())
    types = view[starts - 5] if kind.typed else np.zeros(len(starts), np.uint8)
    fields, readable = _decode(view, starts, ends, types, kind)
    best = max(counts, key=lambda name: counts[name], default=prefer)
    own = np.ones(len(starts), bool) if kind.typed else _equal(view, fields[SUBJECT], subject)
    return Records(starts, ends, types, good, readable, own, fields), best


def checksum_name(payload: memoryview, crc: int) -> str | None:
    """Return the polynomial with which the payload has this checksum, None if it has it with none."""
    return next((name for name, checksum in POLYNOMIALS.items() if checksum(payload) == crc), None)


def _checksums_hold(view: np.ndarray, starts: np.ndarray, ends: np.ndarray, checksum: Checksum) -> np.ndarray:
    bytes_of = view.data
    checksums = [checksum(bytes_of[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.asarray(np.array(checksums, np.uint32) == elements(view, "<u4")[starts - 4])


def _equal(view: np.ndarray, texts: Field, wanted: bytes) -> np.ndarray:
    """Return which of the texts are this one, eight bytes of all of them at a time."""
    equal = texts.values == np.uint64(len(wanted))
    words, starts = elements(view, "<u8"), texts.starts if equal.all() else np.where(equal, texts.starts, 0)
    if len(wanted) < 8:
        mask = np.uint64((1 << 8 * len(wanted)) - 1)
        return np.asarray(equal & (words[starts] & mask == np.uint64(int.from_bytes(wanted, "little"))))
    for at in (*range(0, len(wanted) - 8, 8), len(wanted) - 8):
        equal &= words[starts + at] == np.uint64(int.from_bytes(wanted[at : at + 8], "little"))
    return np.asarray(equal)


def _decode(
    view: np.ndarray, starts: np.ndarray, ends: np.ndarray, types: np.ndarray, kind: Kind
) -> tuple[dict[int, Field], np.ndarray]:
    if not kind.typed:
        fields, readable = decode_fields(view, starts, ends, kind.types[0][1], kind.kept)
        sequences = fields[kind.sequences[0]].values
        return fields, readable & (sequences >= 1) & (sequences <= SEQUENCE_MAX)
    fields = {number: Field(np.zeros(len(starts), np.uint64), ends.copy()) for number in kind.kept}
    readable = np.zeros(len(starts), bool)
    for code, (_, wire_types) in kind.types.items():
        rows = np.flatnonzero(types == code)
        if not len(rows):
            continue
        some, readable[rows] = decode_fields(view, starts[rows], ends[rows], wire_types, kind.kept)
        if code in kind.sequences:
            readable[rows] &= some[kind.sequences[code]].values <= SEQUENCE_MAX
        for number, column in some.items():
            fields[number].values[rows], fields[number].starts[rows] = column.values, column.starts
    return fields, readable
