"""Scan of a file of STAN: window by window, every record whose checksum holds and every stretch of bytes that is none.

The chain of sizes is followed and all records on it are checked. Where that leaves a stretch without true records:

1. Every byte of it is tried as the head of a record; what has a plausible head and a true checksum is a record again.
2. What is then still left between two true records is tried as one record whose size is wrong: the checksum does not
   cover the size, so a payload that it fits is whole.
3. What is on the chain and can be read, but has a wrong checksum, is a suspect: told apart, served on request only.

So a damaged record costs itself at most. Memory is bounded by the window, which grows from 16 to 80 MiB where a long
record or damage asks for it, whatever a size declares; the search by a budget, and the damage says when it ran out.
"""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage_core.files import OS_FILES, File, Files, OsFile
from storage_core.foreign.arrays import elements
from storage_core.foreign.budget import PLACE_COUNT_MAX, SearchBudget
from storage_core.foreign.stan.protobuf import PADDING, read_uvarints
from storage_core.foreign.stan.record import (
    FILE_HEADER_SIZE,
    HEADER,
    HEADER_SIZE,
    PAYLOAD_SIZE_MIN,
    POLYNOMIALS,
    SEQUENCE_MAX,
    VERSION,
    Kind,
    Records,
    check,
    checksum_name,
    merge,
    walk,
)

WINDOW_SIZE = 16 << 20  # bytes
SEARCH_STEP = 1 << 20  # bytes whose every place is looked at in one go
SEARCH_SPARE_MAX = 256 << 20  # bytes hashed in search of lost records beside the multiple of the file's size
SHOWN_SIZE = 8 + 64  # bytes of a bad record that are kept to be shown
_SUBJECT_TAG = 0x12


class Cause(Enum):
    """What a stretch is; the options that read past it depend on it."""

    BAD = "bad record"
    END = "unexpected end"
    PADDING = "zero bytes"
    MISSING = "missing"  # no bytes at all
    FOREIGN = "foreign"  # a true record, but not of this channel or not of this place in it
    HARMLESS = "harmless"  # what is wrong is reported, and cost nothing


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes `[offset_bytes, end_bytes)` of a file that are no true record."""

    offset_bytes: int
    end_bytes: int
    cause: Cause
    reason: str  # of one of them, if it stands for several places
    shown: bytes  # the first of them
    continued: bool = False  # of the stretch in front of it, which ended with its window
    places: int = 1  # that it stands for
    holds_records: bool = False  # true ones of the channel, whose numbers do not fit between those of its neighbours


def join(stretches: list[Stretch]) -> list[Stretch]:
    """Return the stretches, in the order of the file, with those that were cut by windows whole again."""
    joined: list[Stretch] = []
    for stretch in stretches:
        if not stretch.continued or not joined:
            joined.append(stretch)
            continue
        before = joined.pop()
        said = stretch if before.cause is Cause.PADDING else before
        holds = before.holds_records or stretch.holds_records
        whole = replace(said, offset_bytes=before.offset_bytes, end_bytes=stretch.end_bytes, continued=False)
        joined.append(replace(whole, holds_records=holds))
    return joined


_WORST = (Cause.HARMLESS, Cause.PADDING, Cause.END, Cause.MISSING, Cause.BAD, Cause.FOREIGN)


def fold(stretches: list[Stretch], count_max: int = PLACE_COUNT_MAX) -> list[Stretch]:
    """Return the first stretches as they are, and those after them as one, which is what the worst of them is."""
    rest = stretches[count_max:]
    if len(rest) < 2:
        return stretches
    worst = max(rest, key=lambda stretch: _WORST.index(stretch.cause))
    first, end = min(stretch.offset_bytes for stretch in rest), max(stretch.end_bytes for stretch in rest)
    places = sum(stretch.places for stretch in rest)
    folded = replace(worst, offset_bytes=first, end_bytes=end, shown=b"", continued=rest[0].continued, places=places)
    return [*stretches[:count_max], replace(folded, holds_records=any(stretch.holds_records for stretch in rest))]


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a file. Offsets in `records` count from `offset_bytes` of the file, those of stretches from its start."""

    offset_bytes: int
    buffer: pa.Buffer
    records: Records  # true ones (good), and suspects among them, in the order of the file
    stretches: tuple[Stretch, ...]

    def suspect(self, first: int, end: int) -> Stretch:
        """Return the suspects `records[first:end]`, which follow each other, as a stretch."""
        start = int(self.records.starts[first]) - HEADER_SIZE
        stop = int(self.records.ends[end - 1])
        shown = bytes(self.buffer[start : min(stop, start + SHOWN_SIZE)])
        record = memoryview(self.buffer)[start : int(self.records.ends[first])]
        reason = _checksum_reason(record)
        if end - first > 1:
            reason += f", and so on for {end - first} records"
        base = self.offset_bytes
        return Stretch(base + start, base + stop, Cause.BAD, reason, shown)


def scan_file(
    path: str | Path, kind: Kind, subject: str = "", size_max: int | None = None, files: Files = OS_FILES
) -> Iterator[Window]:
    """Yield the windows of a file, read up to `size_max` bytes. Never raises for what the file holds.

    `subject` is the channel's: a message that is found by search has to carry it. Raises OSError.
    """
    with closing(files.open(Path(os.path.realpath(path)))) as file:
        end = file.size() if size_max is None else min(size_max, file.size())
        yield from _Scan(file, kind, subject.encode("utf-8", "surrogateescape"), end).windows()


class _Scan:
    """One pass over a file, with what is carried from window to window."""

    def __init__(self, file: File, kind: Kind, subject: bytes, end: int) -> None:
        self._file, self._kind, self._subject, self._end = file, kind, subject, end
        self._polynomial = "IEEE"
        self._last_sequence = 0  # of the true messages so far
        self._is_blank = False  # up to here: the version is not that of a file
        self._cut_at = -1  # where the window before ended inside a stretch, offset_bytes in the file
        self._budget, self._budgeted = SearchBudget(SEARCH_SPARE_MAX), 0  # and up to where it was given
        self._record_size_max = kind.payload_size_max + HEADER_SIZE

    def windows(self) -> Iterator[Window]:
        at, size_max = FILE_HEADER_SIZE, WINDOW_SIZE
        version = self._version()
        if version is not None:
            yield Window(0, pa.py_buffer(b""), _none(self._kind), (version,))
        while at < self._end:
            data = self._file.next_data(at) if isinstance(self._file, OsFile) else at
            if data - at > WINDOW_SIZE:  # a sparse file: what it does not hold need not be read
                end = self._end if data >= self._end else data - HEADER_SIZE  # a head may begin with zero bytes
                yield self._hole(at, end)
                at = end
                continue
            size = min(size_max, self._end - at)
            buffer = pa.allocate_buffer(size + PADDING)
            view = np.frombuffer(buffer, np.uint8)
            count = self._file.read_into(at, view.data[:size])
            if count < size:  # the file was cut meanwhile
                self._end, size = at + count, count
            view[size:] = 0
            window, done = self._scan(buffer, view, at, size)
            if not done and at + size < self._end:
                size_max = self._record_size_max + WINDOW_SIZE
                continue
            yield window
            at, size_max = at + done, WINDOW_SIZE

    def _hole(self, first: int, end: int) -> Window:
        """Return a window of zero bytes that the file does not even hold."""
        cause, reason = self._zeros(first, end)
        stretch = Stretch(first, end, cause, reason, b"", continued=first == self._cut_at)
        self._cut_at = end
        return Window(first, pa.py_buffer(b""), _none(self._kind), (stretch,))

    def _zeros(self, first: int, end: int) -> tuple[Cause, str]:
        """Return what zero bytes are: room at the end of a file, or all that is left of it, which servers refuse."""
        if self._is_blank and first in (FILE_HEADER_SIZE, self._cut_at):
            return Cause.BAD, f"{end - first} zero bytes where a file has its version, and then a record"
        return Cause.PADDING, f"{end - first} zero bytes where a record should be"

    def _version(self) -> Stretch | None:
        if not self._end:
            return None  # as the server makes it before it writes the version
        head = self._file.read_at(0, FILE_HEADER_SIZE)
        version = int.from_bytes(head, "little")
        if len(head) < FILE_HEADER_SIZE or self._end < FILE_HEADER_SIZE:
            reason = f"the file ends {min(len(head), self._end)} bytes into its version"
            return Stretch(0, self._end, Cause.END, reason, head)
        if version == VERSION:
            return None
        self._is_blank = True
        # There is no other version; what follows proves itself by its checksums.
        cause = Cause.HARMLESS if self._end > FILE_HEADER_SIZE else Cause.BAD
        return Stretch(0, FILE_HEADER_SIZE, cause, f"version {version} instead of {VERSION}", head)

    def _scan(self, buffer: pa.Buffer, view: np.ndarray, base: int, size: int) -> tuple[Window, int]:
        """Return the window, and how many bytes of it are done: the next one begins there."""
        last = base + size == self._end
        self._budget.grant(max(0, base + size - max(base, self._budgeted)))
        self._budgeted = max(self._budgeted, base + size)
        starts, ends, stop = walk(view.data, 0, size, self._kind)
        records, self._polynomial = check(view, starts, ends, self._kind, self._polynomial, self._subject)
        true = records.good & records.readable
        limit = size
        # The chain goes on behind the window if it led up to a possible head.
        if not last and bool(records.readable[-1:].all()) and self._may_go_on(view, stop, size, self._end - base):
            limit = stop
        if true.all() and stop == limit:
            window = Window(base, buffer, records, ())
        else:
            window, limit = self._decide(buffer, view, base, limit, size, records, true)
        if not self._kind.typed:
            sequences = window.records.fields[1].values[window.records.good & window.records.own]
            self._last_sequence = max(self._last_sequence, int(np.max(sequences, initial=0)))
        return window, limit

    def _may_go_on(self, view: np.ndarray, at: int, size: int, size_max: int) -> bool:
        if size - at < HEADER_SIZE:
            return True
        payload = HEADER.unpack_from(view.data, at)[0] & self._kind.size_mask
        if not PAYLOAD_SIZE_MIN <= payload <= self._kind.payload_size_max:
            return False
        return bool(size < at + HEADER_SIZE + payload <= size_max)

    def _decide(
        self, buffer: pa.Buffer, view: np.ndarray, base: int, limit: int, size: int, chain: Records, true: np.ndarray
    ) -> tuple[Window, int]:
        """Find in `[0, limit)` what the chain does not tell; return the window and where the next one begins."""
        chained = chain.take(true)
        searched = self._search(view, _gaps(chained, limit))
        belong = self._belong(searched, chained)
        known = merge([chained, searched.take(belong)])
        strays = searched.take(~belong & searched.own & searched.readable)
        end_of_file = limit if base + limit == self._end else None
        if end_of_file is None and limit == size:
            limit = self._cut(view, known, size)
        resized = self._resize(view, _gaps(known, limit))
        known = merge([known, resized])
        stretches = [
            _resized(view, base, start, end)
            for start, end in zip(resized.heads.tolist(), resized.ends.tolist(), strict=True)
        ]
        suspects = chain.take(~true & chain.readable & (chain.ends <= limit))
        known = merge([known, suspects.take(_apart(suspects, known))])
        known = merge([known, self._span(view, base, _gaps(known, limit), limit)])
        gaps = _gaps(known, limit)
        stretches += [self._stretch(view, base, first, end, strays) for first, end in gaps[:PLACE_COUNT_MAX]]
        if len(gaps) > PLACE_COUNT_MAX:
            stretches.append(_rest(base, gaps[PLACE_COUNT_MAX:]))
        if limit:
            self._cut_at = base + limit if end_of_file is None and gaps and gaps[-1][1] == limit else -1
        return Window(base, buffer, known, tuple(sorted(stretches, key=lambda stretch: stretch.offset_bytes))), limit

    def _cut(self, view: np.ndarray, known: Records, size: int) -> int:
        """Return where the next window begins if the chain does not reach the end of this one.

        A true record may begin in this window and end behind it, so what is undecided at the end is looked at again.
        """
        undecided = int(known.ends[-1]) if len(known) else 0
        if size - undecided > HEADER_SIZE and not view[undecided:size].any():
            return size - HEADER_SIZE  # no record begins with zero bytes only
        return max(undecided, size - self._record_size_max)

    # --- records that are not on the chain ---------------------------------------------------------------------------

    def _search(self, view: np.ndarray, gaps: list[tuple[int, int]]) -> Records:
        """Return the true records inside the gaps; of two that overlap, the one that begins first."""
        places: list[tuple[int, int]] = []
        for first, end in gaps[:PLACE_COUNT_MAX]:
            done = first
            for step in range(first, end - HEADER_SIZE, SEARCH_STEP):
                for start, stop in self._candidates(view, max(step, done), min(step + SEARCH_STEP, end), end):
                    if start < done or self._budget.is_spent:
                        continue
                    self._budget.spend(stop - start)
                    if _holds(view, start, stop):
                        places.append((start + HEADER_SIZE, stop))
                        done = stop
        return self._check(view, places)

    def _candidates(self, view: np.ndarray, first: int, stop: int, end: int) -> list[tuple[int, int]]:
        """Return the places in `[first, stop)` with the head of a record that fits in front of `end`, and its end."""
        kind = self._kind
        tags = view[first + HEADER_SIZE : min(stop + HEADER_SIZE, end)]
        starts = first + np.flatnonzero(tags == kind.first_tag).astype(np.int64)
        heads = elements(view, "<u4")[starts]
        ends = starts + HEADER_SIZE + (heads & np.uint32(kind.size_mask)).astype(np.int64)
        sizes = ends - starts - HEADER_SIZE
        fits = (sizes >= PAYLOAD_SIZE_MIN) & (sizes <= kind.payload_size_max) & (ends <= end)
        if kind.typed:
            fits &= np.isin(heads >> np.uint32(24), list(kind.types))
        starts, ends = starts[fits], ends[fits]
        if not kind.typed and len(starts):  # the sequence, then the subject
            _, after = read_uvarints(view, starts + HEADER_SIZE + 1)
            plausible = view[np.minimum(after, len(view) - 1)] == _SUBJECT_TAG
            starts, ends = starts[plausible], ends[plausible]
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    def _belong(self, records: Records, chained: Records) -> np.ndarray:
        """Return which found records are of this channel, and between their neighbours by sequence: the data of a
        message may hold whole records, too."""
        keep = records.readable & records.own
        if self._kind.typed or not len(records):
            return np.asarray(keep)
        chained = chained.take(chained.own)
        sequences = chained.fields[1].values.astype(np.int64)
        after = np.searchsorted(chained.starts, records.starts)
        low = np.concatenate(([self._last_sequence], np.maximum.accumulate(sequences)))[after]
        high = np.concatenate((sequences, [SEQUENCE_MAX + 1]))[after]
        own = records.fields[1].values.astype(np.int64)
        keep &= (own > low) & (own < high)
        highest = np.maximum.accumulate(np.where(keep, own, 0))
        return np.asarray(keep & (own > np.concatenate(([0], highest[:-1]))))

    def _resize(self, view: np.ndarray, gaps: list[tuple[int, int]]) -> Records:
        """Return the gaps that are one record each, their checksum holds for all of it, whatever size they declare."""
        places = [(first + HEADER_SIZE, end) for first, end in gaps[:PLACE_COUNT_MAX] if self._fits(first, end)]
        records = self._check(view, [(start, end) for start, end in places if _holds(view, start - HEADER_SIZE, end)])
        return records.take(records.good & records.readable)

    def _span(self, view: np.ndarray, base: int, gaps: list[tuple[int, int]], limit: int) -> Records:
        """Return the gaps that can be read as one record each, suspects; not what the file or a window cuts off."""
        whole = [(first, end) for first, end in gaps if end != limit and base + first != self._cut_at]
        records = self._check(view, [(first + HEADER_SIZE, end) for first, end in whole if self._fits(first, end)])
        return records.take(records.readable & records.own)

    def _fits(self, first: int, end: int) -> bool:
        return PAYLOAD_SIZE_MIN <= end - first - HEADER_SIZE <= self._kind.payload_size_max

    def _check(self, view: np.ndarray, places: list[tuple[int, int]]) -> Records:
        edges = np.array(places, np.int64).reshape(-1, 2)
        starts, ends = edges[:, 0].copy(), edges[:, 1].copy()
        return check(view, starts, ends, self._kind, self._polynomial, self._subject)[0]

    # --- what is left ------------------------------------------------------------------------------------------------

    def _stretch(self, view: np.ndarray, base: int, first: int, end: int, strays: Records) -> Stretch:
        shown = view[first : min(end, first + SHOWN_SIZE)].tobytes()
        cause, reason = self._reason(view, base, first, end)
        if self._budget.is_spent:
            reason += "; the search for records was given up, too much there looks like one"
        holds = not self._kind.typed and bool(((strays.heads >= first) & (strays.ends <= end)).any())
        goes_on = base + first == self._cut_at
        return Stretch(base + first, base + end, cause, reason, shown, continued=goes_on, holds_records=holds)

    def _reason(self, view: np.ndarray, base: int, first: int, end: int) -> tuple[Cause, str]:
        left = self._end - base - first
        if not view[first:end].any():
            return self._zeros(base + first, base + end)
        if left < HEADER_SIZE:
            return Cause.END, f"the file ends {left} bytes into the head of a record"
        head, _ = HEADER.unpack_from(view.data, first)
        size, code = head & self._kind.size_mask, head >> 24
        if HEADER_SIZE + size > left:
            # With true records behind it this is damage; who reads on will see.
            return Cause.END, f"the record declares {size} bytes, the file has {left - HEADER_SIZE} left"
        if not PAYLOAD_SIZE_MIN <= size <= self._kind.payload_size_max:
            possible = f"possible are {PAYLOAD_SIZE_MIN} to {self._kind.payload_size_max}"
            return Cause.BAD, f"the record declares {size} bytes, {possible}"
        if self._kind.typed and code not in self._kind.types:
            return Cause.BAD, f"the record has type {code}, known are {', '.join(map(str, self._kind.types))}"
        if first + HEADER_SIZE + size > end:
            return Cause.BAD, f"the record declares {size} bytes, {end - first - HEADER_SIZE} are in front of the next"
        return Cause.BAD, _checksum_reason(view.data[first : first + HEADER_SIZE + size])


def _checksum_reason(record: memoryview) -> str:
    crc = HEADER.unpack_from(record)[1]
    payload = record[HEADER_SIZE:]
    if checksum_name(payload, crc) is not None:
        return "the checksum holds, but the payload is no message that can be read"
    actual = " and ".join(f"{checksum(payload):#010x} ({name})" for name, checksum in POLYNOMIALS.items())
    return f"checksum mismatch: the record has {crc:#010x}, its {len(payload)} bytes give {actual}"


def _rest(base: int, gaps: list[tuple[int, int]]) -> Stretch:
    """Return gaps together that are not reported one by one; whether there are records in them was not looked at."""
    first, end = gaps[0][0], gaps[-1][1]
    reason = "bytes that are no record, and in which none was searched for"
    return Stretch(base + first, base + end, Cause.BAD, reason, b"", places=len(gaps))


def _holds(view: np.ndarray, start: int, end: int) -> bool:
    """Return whether the checksum in the head at `start` is that of the bytes behind it up to `end`."""
    return checksum_name(view.data[start + HEADER_SIZE : end], HEADER.unpack_from(view.data, start)[1]) is not None


def _resized(view: np.ndarray, base: int, start: int, end: int) -> Stretch:
    size = HEADER.unpack_from(view.data, start)[0]
    reason = f"the size in the head is {size:#x}, but the checksum holds for {end - start - HEADER_SIZE} bytes"
    shown = view[start : min(end, start + SHOWN_SIZE)].tobytes()
    return Stretch(base + start, base + end, Cause.HARMLESS, reason, shown)


def _gaps(records: Records, end: int) -> list[tuple[int, int]]:
    edges = np.concatenate(([0], np.stack((records.heads, records.ends), axis=1).ravel(), [end])).reshape(-1, 2)
    return [(first, stop) for first, stop in edges[edges[:, 0] < edges[:, 1]].tolist()]


def _apart(some: Records, known: Records) -> np.ndarray:
    """Return which of `some` lie wholly between two of `known`."""
    before = np.searchsorted(known.starts, some.starts)
    ends = np.concatenate(([0], known.ends))[before]
    heads = np.concatenate((known.heads, [np.iinfo(np.int64).max]))[before]
    return np.asarray((some.heads >= ends) & (some.ends <= heads))


def _none(kind: Kind) -> Records:
    none = np.empty(0, np.int64)
    return check(np.zeros(PADDING, np.uint8), none, none, kind, "IEEE")[0]
