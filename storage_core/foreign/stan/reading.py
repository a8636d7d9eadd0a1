"""Reading one slice of a channel, where the messages are wanted: on an executor.

The contract is the server's own, with nothing removed from the source: by default the first bad record ends the
reading; `truncate_bad_eof` reads past an unexpected end, `no_crc` past bad checksums, and each row that is read so is
reported as damage. Since sequences rise by one without holes, whatever is missing in a part is lost.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.errors import DataLossError, UnsupportedVersionError
from storage_core.files import OS_FILES, Files
from storage_core.foreign.arrays import BATCH_ROW_COUNT, BATCH_SIZE, runs_by_size
from storage_core.foreign.budget import PLACE_COUNT_MAX, together
from storage_core.foreign.digests import Digests
from storage_core.foreign.slices import ForeignDamage, ForeignSlice
from storage_core.foreign.stan.messages import (
    SEQUENCE,
    build_batch,
    content_digests,
    encrypted_at,
    place_sequences,
    strangers,
    subjects_of,
    times_of,
)
from storage_core.foreign.stan.record import MESSAGES, Records
from storage_core.foreign.stan.report import show
from storage_core.foreign.stan.scan import Cause, Stretch, Window, fold, join, scan_file
from storage_core.os_errors import raise_if_of_process
from storage_core.schema import read_schema
from storage_core.sequences import SequenceSet
from storage_core.subject_columns import match_mask

NAME_SIZE_MAX = 64  # characters of another channel's name that are reported
SEQUENCE_END = (1 << 63) - 1  # end of a part of which nobody knows how far it went


def read_slice(
    part: ForeignSlice,
    columns: Sequence[str],
    on_damage: Callable[[ForeignDamage], None] | None = None,
    files: Files = OS_FILES,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a part in schema.read_schema(columns), ascending by sequence.

    Damage goes to `on_damage`. Without it, damage that cost messages raises DataLossError, unless an option of the
    part allows it; batches of earlier windows of the file (16 MiB each) were yielded by then. Raises
    UnsupportedVersionError for encrypted messages.
    """
    read_schema(tuple(columns))
    for window, all_rows, all_sequences in _shown(part, on_damage, files):
        rows, sequences = _filtered(part, window.buffer, all_rows, all_sequences)
        sizes = np.maximum(rows.ends - rows.starts, BATCH_SIZE // BATCH_ROW_COUNT)
        for first, end in runs_by_size(sizes, BATCH_SIZE):
            run = slice(first, end)
            yield build_batch(part.stream, window.buffer, rows.take(run), sequences[run], columns)


def digest_slice(
    part: ForeignSlice, on_damage: Callable[[ForeignDamage], None], files: Files = OS_FILES
) -> Iterator[Digests]:
    """Yield digests of the messages of a part, whatever its filters. Damage goes to `on_damage`."""
    for window, rows, sequences in _shown(part, on_damage, files):
        yield Digests(sequences, times_of(rows), content_digests(window.buffer, rows, sequences))


def _shown(
    part: ForeignSlice, on_damage: Callable[[ForeignDamage], None] | None, files: Files
) -> Iterator[tuple[Window, Records, np.ndarray]]:
    """Yield the windows of the file with the messages of the part in them, and their sequences."""
    account = _Account(part, on_damage)
    account.tell_known()
    for window in _windows(part, account, files):
        refuse_encrypted(part.stream, part.path, window)
        yield (window, *account.take(window))
    account.finish()


def _windows(part: ForeignSlice, account: "_Account", files: Files) -> Iterator[Window]:
    """Yield the windows of the file, up to where it can be read."""
    windows = scan_file(part.path, MESSAGES, part.stream, part.file_size, files)
    while True:
        try:
            window = next(windows, None)
        except OSError as error:
            raise_if_of_process(error)
            is_missing = isinstance(error, FileNotFoundError)
            account.unreadable("the file is gone" if is_missing else f"the file cannot be read: {error.strerror}")
            return
        if window is None:
            return
        yield window


def refuse_encrypted(stream: str, path: str, window: Window) -> None:
    """Raise UnsupportedVersionError if the server encrypted messages in the window."""
    at = encrypted_at(window.buffer, window.records)
    if at is not None:
        start = window.offset_bytes + int(window.records.heads[at])
        raise UnsupportedVersionError(
            f"channel {stream!r}: its messages are encrypted (first in {path} at offset_bytes {start}): encrypted "
            "channels cannot be read"
        )


def _filtered(
    part: ForeignSlice, buffer: pa.Buffer, rows: Records, sequences: np.ndarray
) -> tuple[Records, np.ndarray]:
    keep = np.ones(len(rows), bool)
    if part.time_first_ns is not None:
        keep &= times_of(rows) >= part.time_first_ns
    if part.time_end_ns is not None:
        keep &= times_of(rows) < part.time_end_ns
    if part.subject_filters and len(rows):
        keep &= buffers.mask(match_mask(part.subject_filters, subjects_of(buffer, rows)))
    return (rows, sequences) if keep.all() else (rows.take(keep), sequences[keep])


class _Account:
    """What of a part was read, what is missing, and which damage it is put down to."""

    def __init__(self, part: ForeignSlice, on_damage: Callable[[ForeignDamage], None] | None) -> None:
        self._part, self._on_damage = part, on_damage
        self._placed: int | None = None  # sequence of the last record in the file that has one
        self._apart = False  # bytes that are no record came after it
        self._shown = part.first - 1  # highest sequence that was served, or lies before the part
        self._pending: list[Stretch] = []  # stretches after the last served record
        self._beyond = 0  # highest sequence of this channel at or above what the file answers for
        self._read_bytes = 0  # of the file
        self._left_out = SequenceSet.decode(part.left_out) if part.left_out else SequenceSet.empty()

    def tell_known(self) -> None:
        """Tell what was found when the part was planned."""
        for at, damage in self._part.told:
            if self._part.first <= at < self._part.end:
                self._tell_damage(damage)

    def take(self, window: Window) -> tuple[Records, np.ndarray]:
        """Return the messages of the window to serve, with their sequences; tell the damage in front of them."""
        records, part = window.records, self._part
        stretches_end = max((stretch.end_bytes for stretch in window.stretches), default=0)
        records_end = window.offset_bytes + int(np.max(records.ends, initial=0))
        self._read_bytes = max(self._read_bytes, records_end, stretches_end)
        left_out = self._left_out.mask(window.offset_bytes + records.heads)
        strange = strangers(records, part.bounds) & ~left_out
        if strange.any():
            numbers = records.fields[SEQUENCE].values[strange & records.own]
            self._beyond = max(self._beyond, *numbers[numbers >= part.bounds[1]].tolist(), 0)
        sequences = place_sequences(records, self._placed, self._apart, strange | left_out)
        self._note_places(window, sequences)
        shown = (sequences > 0) & (records.good | part.no_crc)
        hidden = _hidden(window, shown | left_out, strange, part)
        here = sorted([*window.stretches, *hidden], key=lambda stretch: stretch.offset_bytes)
        stretches = fold(join([*self._pending, *here]))
        rows = np.flatnonzero(shown)
        self._tell_all(window, stretches, rows, sequences[rows])
        rows = rows[(sequences[rows] >= part.first) & (sequences[rows] < part.end)]
        return records.take(rows), sequences[rows]

    def unreadable(self, reason: str) -> None:
        self._pending.append(Stretch(self._read_bytes, self._part.file_size, Cause.MISSING, reason, b""))

    def finish(self) -> None:
        """Tell the damage at the end of the file, and what is missing of the part."""
        part, low = self._part, self._shown + 1
        if self._beyond and self._placed is not None and part.end == part.bounds[1]:
            self._tell_overlap(part.end, self._beyond + 1)
        trouble = any(stretch.cause not in (Cause.PADDING, Cause.HARMLESS) for stretch in self._pending)
        if part.end < SEQUENCE_END:
            self._tell(self._pending, low, part.end, part.file_size, "the file ends here, later messages are expected")
        elif trouble:
            self._tell(self._pending, low, SEQUENCE_END, part.file_size, "")
        else:
            self._tell(self._pending, low, low, part.file_size, "")

    def _tell_overlap(self, first: int, end: int) -> None:
        """Tell that the next file begins with sequences that this one has, too: the server never writes them twice."""
        reason = (
            f"the file continues to sequence {end - 1}, but the next one begins with {first}: one of them is "
            "not of this store, or is a copy"
        )
        stretch = Stretch(self._part.file_size, self._part.file_size, Cause.FOREIGN, reason, b"")
        self._report(stretch, first, end, None, served=False, allowed=False, disputed=True)

    def _note_places(self, window: Window, sequences: np.ndarray) -> None:
        placed = np.flatnonzero(sequences)
        if len(placed):
            self._placed, self._apart = int(sequences[placed[-1]]), False
            end = window.offset_bytes + int(window.records.ends[placed[-1]])
        else:
            end = window.offset_bytes
        unplaced = int(placed[-1]) + 1 < len(sequences) if len(placed) else bool(len(sequences))
        self._apart |= unplaced or any(stretch.end_bytes > end for stretch in window.stretches)

    def _tell_all(self, window: Window, stretches: list[Stretch], rows: np.ndarray, sequences: np.ndarray) -> None:
        """Tell what lies in front of each served row, and the suspects among the rows; keep the rest for later."""
        heads = window.offset_bytes + window.records.heads[rows]
        lows = np.concatenate(([self._shown], sequences[:-1])) + 1
        lows, highs = np.maximum(lows, self._part.first), np.minimum(sequences, self._part.end)
        groups: dict[int, list[Stretch]] = {row: [] for row in np.flatnonzero(lows < highs).tolist()}
        places = np.searchsorted(heads, [stretch.offset_bytes for stretch in stretches], side="right").tolist()
        for place, stretch in zip(places, stretches, strict=True):
            groups.setdefault(place, []).append(stretch)
        self._pending = groups.pop(len(rows), [])
        suspects = deque(_served(window, rows, sequences, self._part))
        rows_told = sorted(groups)
        for row in rows_told[:PLACE_COUNT_MAX]:
            while suspects and suspects[0][0].offset_bytes < heads[row]:
                self._tell_served(*suspects.popleft())
            reason = f"the record has sequence {int(sequences[row])}, but none is in front of it"
            self._tell(groups[row], int(lows[row]), int(highs[row]), int(heads[row]), reason, inside=True)
        if len(rows_told) > PLACE_COUNT_MAX:
            rest = np.array(rows_told[PLACE_COUNT_MAX:])
            self._tell_together([groups[row] for row in rest.tolist()], lows[rest], highs[rest], heads[rest])
        for served in suspects:
            self._tell_served(*served)
        if len(sequences):
            self._shown = max(self._shown, int(sequences[-1]))

    def _tell_served(self, stretch: Stretch, first: int, end: int) -> None:
        self._report(stretch, first, end, end - first, served=True, allowed=True)

    def _tell(self, stretches: list[Stretch], low: int, high: int, at: int, reason: str, inside: bool = False) -> None:
        """Tell stretches without a served row between them; `[low, high)` is what is missing there.

        Any of several stretches may have cost it, so each is reported with all. `inside`: a row comes after them.
        """
        blamed = [stretch for stretch in stretches if stretch.cause is not Cause.HARMLESS] if low < high else []
        if low < high and not blamed:
            blamed = [Stretch(at, at, Cause.MISSING if inside else Cause.END, reason, b"")]
        count = high - low if len(blamed) == 1 and high < SEQUENCE_END else None
        for stretch in blamed:
            goes_on = inside and stretch.cause in (Cause.END, Cause.PADDING)
            reported = replace(stretch, cause=Cause.BAD) if goes_on else stretch
            self._report(reported, low, high, count, served=False, allowed=self._allows(reported.cause))
        for stretch in stretches:
            if stretch not in blamed and (inside or stretch.cause is not Cause.PADDING):
                self._report(stretch, None, None, None, served=False, allowed=True)

    def _tell_together(
        self, groups: Sequence[Sequence[Stretch]], lows: np.ndarray, highs: np.ndarray, heads: np.ndarray
    ) -> None:
        """Tell what lies in front of many served rows as one place: stretches, and what is missing there."""
        stretches = [
            replace(stretch, cause=Cause.BAD) if stretch.cause in (Cause.END, Cause.PADDING) else stretch
            for group in groups
            for stretch in group
        ]
        missing = np.flatnonzero(lows < highs)
        blamed = sum(stretch.places for stretch in stretches if stretch.cause is not Cause.HARMLESS)
        if len(missing) > blamed:
            first, last = int(missing[0]), int(missing[-1])
            reason = f"the record has sequence {int(highs[first])}, but none is in front of it"
            start, end = int(heads[first]), int(heads[last])
            stretches.append(Stretch(start, end, Cause.MISSING, reason, b"", places=len(missing) - blamed))
        (stretch,) = fold(stretches, 0)
        harmless = not len(missing) or stretch.cause is Cause.HARMLESS
        allowed = harmless or all(self._allows(each.cause) for each in stretches if each.cause is not Cause.HARMLESS)
        if harmless:
            self._report(stretch, None, None, None, served=False, allowed=True)
            return
        low, high = int(lows[missing[0]]), int(highs[missing[-1]])
        self._report(stretch, low, high, int((highs - lows)[missing].sum()), served=False, allowed=allowed)

    def _allows(self, cause: Cause) -> bool:
        if cause is Cause.BAD:
            return self._part.no_crc
        return self._part.truncate_bad_eof and cause not in (Cause.MISSING, Cause.FOREIGN)

    def _report(
        self,
        stretch: Stretch,
        first: int | None,
        end: int | None,
        count: int | None,
        served: bool,
        allowed: bool,
        disputed: bool = False,
    ) -> None:
        part, reason, unclear = self._part, stretch.reason, first is None and stretch.holds_records
        if unclear:  # what is served may be of another run than the messages around it
            reason += "; true records lie in it whose numbers are those of others, and they are not served"
        damage = ForeignDamage(
            layout=part.layout,
            account=part.account,
            stream=part.stream,
            file=part.path,
            offset_bytes=stretch.offset_bytes,
            end_bytes=stretch.end_bytes,
            first=first,
            end=None if end == SEQUENCE_END else end,
            lost_count=None if served else count,
            reason=together(stretch.places, reason),
            unclear=unclear,
            served=served,
            allowed=allowed and not unclear,
            disputed=disputed or unclear,
            record=show(MESSAGES, stretch),
            places=stretch.places,
        )
        self._tell_damage(damage)

    def _tell_damage(self, damage: ForeignDamage) -> None:
        if self._on_damage is not None:
            self._on_damage(damage)
        elif damage.costs and not damage.allowed:
            raise DataLossError(damage.explain())


def _hidden(window: Window, shown: np.ndarray, strange: np.ndarray, part: ForeignSlice) -> list[Stretch]:
    """Return the records that are not served as stretches, those together that follow each other."""
    hidden = np.flatnonzero(~shown)
    if not len(hidden):
        return []
    records = window.records
    follows = (hidden[1:] == hidden[:-1] + 1) & (records.heads[hidden[1:]] == records.ends[hidden[:-1]])
    kinds = records.good + 2 * strange + 4 * (strange & records.own)
    follows &= kinds[hidden[1:]] == kinds[hidden[:-1]]
    stretches = []
    runs, rest = _runs(follows)
    for first, end in [(int(hidden[first]), int(hidden[end - 1]) + 1) for first, end in runs]:
        stretch = window.suspect(first, end)
        if strange[first]:
            stretch = replace(stretch, cause=Cause.FOREIGN, reason=_strange_reason(window, first, end, part))
        elif records.good[first]:  # not there when the part was planned, when such records are compared
            reason = "the sequence is not above that of the record in front: the file has changed"
            stretch = replace(stretch, cause=Cause.FOREIGN, reason=reason)
        stretches.append(stretch)
    if rest:  # as what the worst of them is
        left = hidden[rest[0][0] :]
        cause = Cause.FOREIGN if records.good[left].any() else Cause.BAD
        stretch = window.suspect(int(left[0]), int(left[-1]) + 1)
        reason = "records that have no place here, that fail their checksum, or that come twice"
        stretches.append(replace(stretch, cause=cause, reason=reason, shown=b"", places=len(rest)))
    return stretches


def _runs(follows: np.ndarray) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the runs `[first, end)` of elements that follow each other: the first ones, and the others."""
    starts = np.concatenate(([0], np.flatnonzero(~follows) + 1))
    runs = list(zip(starts.tolist(), [*starts[1:].tolist(), len(follows) + 1], strict=True))
    return runs[:PLACE_COUNT_MAX], runs[PLACE_COUNT_MAX:]


def _strange_reason(window: Window, first: int, end: int, part: ForeignSlice) -> str:
    records = window.records
    if records.own[first]:
        numbers = records.fields[SEQUENCE].values[first:end]
        low, high = part.bounds
        between = f"[{low}, {high})" if high < SEQUENCE_END else f"from {low} on"
        return f"sequences {int(numbers.min())} to {int(numbers.max())} have no place in this file, which has {between}"
    name = subjects_of(window.buffer, records.take(slice(first, first + 1)))[0].as_py()[:NAME_SIZE_MAX]
    return f"{end - first} messages from here on are of channel {name!r}, not of this one"


def _served(
    window: Window, rows: np.ndarray, sequences: np.ndarray, part: ForeignSlice
) -> list[tuple[Stretch, int, int]]:
    """Return the suspects among the served rows with their sequences `[first, end)`, neighbours together."""
    records = window.records
    which = np.flatnonzero(~records.good[rows] & (sequences >= part.first) & (sequences < part.end))
    if not len(which):
        return []
    follows = (rows[which[1:]] == rows[which[:-1]] + 1) & (sequences[which[1:]] == sequences[which[:-1]] + 1)
    follows &= records.heads[rows[which[1:]]] == records.ends[rows[which[:-1]]]
    runs, rest = _runs(follows)
    if rest:
        runs.append((rest[0][0], rest[-1][1]))
    suspects = []
    for at, (first, end) in enumerate(runs):
        low, high = int(which[first]), int(which[end - 1])
        stretch = window.suspect(int(rows[low]), int(rows[high]) + 1)
        if at == PLACE_COUNT_MAX:
            stretch = replace(
                stretch, reason="records that fail their checksum, and true ones between", places=len(rest)
            )
        suspects.append((stretch, int(sequences[low]), int(sequences[high]) + 1))
    return suspects
