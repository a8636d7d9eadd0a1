"""What a channel holds: for each slice the sequences that it answers for.

A slice answers for everything from its first message up to the first of the next slice by number, since sequences rise
without holes. An index that lists as many messages as lie between its first and its last one, and fits both ends of the
file, tells what a slice holds; else the slice is read. One that begins out of order with the others is not of this
channel: of it counts what fits between its neighbours, which is none of it as a rule. Where the end of the file is
damaged and no index tells how far the channel went, the last part has no end.

Where numbers begin again, or slices overlap, repeats.py says which records are served, and what the others are. A copy
of records at an end of a channel may lie where others were, and so may a slice where those in front of it are missing
and have no room: then nothing tells how far the channel went.

Messages that the server's limits have removed stay in a slice until all of it is dropped, and nothing in the store
marks them: they are read.

Source: nats-streaming-server, stores/filestore.go (`recoverOneMsgFile`, `ensureLastMsgAndIndexMatch`).
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage_core.files import OS_FILES, Files
from storage_core.foreign.stan.directory import ChannelDirectory, SliceFile
from storage_core.foreign.stan.index import IndexEntry, count_entries, first_and_last, rest
from storage_core.foreign.stan.messages import SEQUENCE, place_sequences, strangers
from storage_core.foreign.stan.protobuf import decode_one
from storage_core.foreign.stan.reading import SEQUENCE_END, refuse_encrypted
from storage_core.foreign.stan.record import (
    FILE_HEADER_SIZE,
    HEADER,
    HEADER_SIZE,
    MESSAGES,
    PAYLOAD_SIZE_MIN,
    SEQUENCE_MAX,
    SUBJECT,
    checksum_name,
    walk,
)
from storage_core.foreign.stan.repeats import Choice, Told, compare, read_numbers
from storage_core.foreign.stan.scan import Cause, Window, scan_file
from storage_core.os_errors import raise_if_of_process
from storage_core.sequences import SequenceSet

RECORD_SIZE_MIN = HEADER_SIZE + 2 + 2 + 10  # bytes, and the subject: sequence, subject, time since 1972
SAMPLE_SIZE = 64 << 10  # bytes from the beginning of a slice that are looked at for encryption


@dataclass(frozen=True, slots=True)
class SliceState:
    """The part of a channel that one slice answers for: the sequences in `[first, end)`."""

    file: SliceFile
    first: int
    end: int  # SEQUENCE_END: not known
    row_count: int
    bounds: tuple[int, int]  # the same, but that the last slice of a channel goes on without end
    left_out: SequenceSet  # offset_bytes of true records that are not served, since others are
    told_repeats: tuple[Told, ...]  # about them, and about slices beside it that are left out

    @property
    def known(self) -> bool:
        return self.end < SEQUENCE_END


@dataclass(frozen=True, slots=True)
class ChannelState:
    first: int  # sequence of the first message; last + 1 if there is none
    last: int  # highest sequence ever used, as far as it is known
    slices: tuple[SliceState, ...]  # by sequence
    notes: tuple[str, ...] = ()  # what nobody can tell, and slices that are left out

    @property
    def removed(self) -> SequenceSet:
        """Return nothing: a slice that the server's limits dropped leaves no trace, and might as well be lost."""
        return SequenceSet.empty()


@dataclass(frozen=True, slots=True)
class _Extent:
    """The sequences of a slice's records."""

    lowest: int
    highest: int
    rises: bool  # each is above the one in front
    first: int  # of those that are served, as far as other slices allow it
    last: int
    tail_damaged: bool  # behind the last of them


@dataclass(frozen=True, slots=True)
class _Summary:
    """A slice that was read from end to end."""

    first: int  # 0: no message was found
    last: int
    count: int
    front_count: int  # of messages that the damage in front of the first one may have cost at most, 0: none is there
    tail_damaged: bool  # behind the last one


def load_channel(channel: ChannelDirectory, files: Files = OS_FILES) -> ChannelState:
    """Return what the channel holds. Reads whole slices only where damage leaves no other way.

    Raises UnsupportedVersionError if it is encrypted.
    """
    for file in {channel.slices[0], channel.slices[-1]} if channel.slices else ():
        _refuse_encrypted(channel, file, files)
    looks: list[_Look] = []
    for file in channel.slices:
        look = _Look(channel.name, file, files)
        look.find_first(looks[-1] if looks else None, file is channel.slices[-1])
        if look.first:
            looks.append(look)
    if not looks and channel.slices and channel.slices[-1].number > 1:
        # The server begins a slice when the one in front has messages.
        looks.append(_Look(channel.name, channel.slices[-1], files, first=1))
    if not looks:
        return ChannelState(1, 0, ())
    looks, dropped = _in_order(looks)
    choices = _choices(channel.name, looks, dropped, files)
    told_repeats = _told_repeats(looks, choices)
    # Of a slice that serves nothing, what it held is lost, and told as that when it is read.
    left_out = {look: choice.left_out for look, choice in choices if choice.served.any()}
    oldest = min(looks + dropped, key=lambda look: look.file.number)
    has_lower = any(look.extent.lowest < min(look.extent.highest + 1, looks[0].first) for look in looks + dropped)
    is_other = oldest in dropped or has_lower or _is_tight(looks[:2]) or _is_repeated(oldest, choices, at_end=False)
    begin = 1 if is_other else min(looks[0].first, looks[0].listed_first)
    if begin < looks[0].first:
        looks.insert(0, _Look(channel.name, oldest.file, files, first=begin, out_of_order=True))
    firsts = [look.first for look in looks]
    slices = [
        SliceState(
            look.file,
            look.first,
            end,
            0 if look.out_of_order else end - look.first,
            (look.first, end),
            left_out.get(look, SequenceSet.empty()),
            tuple(told_repeats.get(look, ())),
        )
        for look, end in zip(looks[:-1], firsts[1:], strict=True)
    ]
    notes = [
        f"{Path(look.file.path).name} begins with message {look.begins}, out of order with the slices beside it: left "
        "out"
        for look in dropped
    ]
    told_at_end = told_repeats.get(looks[-1], [])
    end = looks[-1].end()
    # A damaged end held one more message at least.
    last = end - 1 if end < SEQUENCE_END else max(looks[-1].summary.last, firsts[-1] - 1) + 1
    count = end - firsts[-1] if end < SEQUENCE_END else looks[-1].summary.count
    newest = max(looks + dropped, key=lambda look: look.file.number)
    if end < SEQUENCE_END and (doubt := _doubt_of_end(channel, looks, newest, choices)):
        missing = looks[-1].extent.last + 1
        told_at_end = [*told_at_end, Told(newest.file.path, 0, newest.file.size, missing, SEQUENCE_END, doubt, True)]
        last, end = end, SEQUENCE_END
    bounds, hidden = (firsts[-1], SEQUENCE_END), left_out.get(looks[-1], SequenceSet.empty())
    slices.append(SliceState(looks[-1].file, firsts[-1], end, count, bounds, hidden, tuple(told_at_end)))
    if firsts[0] > 1:
        notes.insert(
            0,
            f"{Path(looks[0].file.path).name} begins with message {firsts[0]}, and nothing tells what became of "
            f"[1, {firsts[0]}): removed by limits, or lost with a slice that is gone or another one's",
        )
    return ChannelState(firsts[0], last, tuple(slices), tuple(notes))


def _choices(channel: str, looks: list["_Look"], dropped: list["_Look"], files: Files) -> list[tuple["_Look", Choice]]:
    """Return which records are served of the slices that repeat sequences, of themselves or of others."""
    ends = [look.first for look in looks[1:]] + [SEQUENCE_END]
    windows = [*zip(looks, ends, strict=True), *((look, 0) for look in dropped)]
    suspects = []
    for look, end in windows:
        extent = look.extent
        if not extent.rises or not end:
            suspects.append((extent.lowest, extent.highest + 1))
        else:
            suspects += [(extent.lowest, look.first), (max(end, extent.lowest), extent.highest + 1)]
    suspected = SequenceSet.from_ranges(suspects)
    if not suspected:
        return []
    concerned = [
        (look, end)
        for look, end in windows
        if not look.extent.rises or suspected.count_in(min(look.first, look.extent.lowest), look.extent.highest + 1)
    ]
    choices: list[tuple[_Look, Choice]] = []
    for look, end in concerned:
        try:
            numbered = read_numbers(channel, look.file, files, with_digests=True)
        except OSError as error:  # reported when the slice is read for its messages
            raise_if_of_process(error)
            continue
        served = numbered.chosen() & (numbered.sequences >= look.first) & (numbered.sequences < end)
        choices.append((look, Choice(numbered, served, end)))
    return choices


def _told_repeats(looks: list["_Look"], choices: list[tuple["_Look", Choice]]) -> dict["_Look", list[Told]]:
    """Return what is to be told of records that are not served, by the slice that tells it."""
    told_places: dict[_Look, list[Told]] = {}
    if not choices:
        return told_places
    for (look, _), places in zip(choices, compare([choice for _, choice in choices]), strict=True):
        told_places.setdefault(look if look in looks else looks[0], []).extend(places)
    return told_places


def _doubt_of_end(
    channel: ChannelDirectory, looks: list["_Look"], newest: "_Look", choices: list[tuple["_Look", Choice]]
) -> str:
    """Return why messages are missing behind the last one of a channel although its last records are true; "" if
    nothing says so."""
    end = looks[-1].end()
    listed, behind = looks[-1].listed, looks[-1].behind_listed
    if any(behind) and listed >= looks[-1].extent.last > 0 or behind and listed > looks[-1].extent.last:
        return "its index is damaged at its end, and listed more messages"
    if listed > looks[-1].extent.last:
        return ""  # that it is lost is told where the slice is read
    if end == looks[-1].first:
        return "the slice holds no message, but a server begins a slice with one"
    if channel.slices[-1].number > newest.file.number + 1:
        return f"{Path(channel.slices[-1].path).name} comes behind it, so that slices between them had messages"
    pairs = zip(looks, looks[1:], strict=False)
    tight = next((second for first, second in pairs if _is_tight([first, second])), None)
    if looks[0].first < looks[0].file.number and not looks[0].out_of_order:
        tight = looks[0]
    if tight is not None:
        return (
            f"{Path(tight.file.path).name} begins with message {tight.first}, and slices in front of it had messages, "
            "for which there is no room: it holds theirs, so that its own, or those of a slice behind it, are gone"
        )
    if _is_repeated(newest, choices, at_end=True):
        return (
            "its last records are copies of others in the channel: they may lie where other messages were, and nothing "
            "tells how many those were"
        )
    return ""


def _is_tight(pair: list["_Look"]) -> bool:
    """Return whether slices between two others, by number, have no sequences, although each had messages."""
    if len(pair) < 2 or pair[1].file.number == pair[0].file.number + 1:
        return False
    last = pair[0].first if pair[0].out_of_order else max(pair[0].last, pair[0].first)
    return pair[1].first - last < pair[1].file.number - pair[0].file.number


def _is_repeated(look: "_Look", choices: list[tuple["_Look", Choice]], at_end: bool) -> bool:
    """Return whether the content of the first or the last records of a slice, up to a number that does not follow,
    comes a second time in the channel: the server wrote it to one place, and had something else at the other."""
    own = dict(choices).get(look)
    if own is None or not len(own.slice_.sequences):
        return False
    breaks = np.concatenate(([0], np.flatnonzero(np.diff(own.slice_.sequences) != 1) + 1, [len(own.served)]))
    run = slice(breaks[-2], breaks[-1]) if at_end else slice(breaks[0], breaks[1])
    contents, counts = np.unique(np.concatenate([choice.slice_.digests for _, choice in choices]), return_counts=True)
    return bool(np.isin(own.slice_.digests[run], contents[counts > 1]).any())


def _in_order(looks: list["_Look"]) -> tuple[list["_Look"], list["_Look"]]:
    """Return the slices by number with firsts that rise, and those that are left out for it.

    Those that rise stay as they are, as many as can. Another one answers for what is free between its neighbours.
    """
    for look in looks:
        look.choose_run()
    firsts = [look.first for look in looks]
    if all(first < two for first, two in zip(firsts, firsts[1:], strict=False)):
        return looks, []
    rising = _longest_rise(firsts, [look.file.size for look in looks])
    behind = [SEQUENCE_END] * len(looks)  # the first of the next slice that stays
    for at in range(len(looks) - 1, 0, -1):
        behind[at - 1] = firsts[at] if at in rising else behind[at]
    kept: list[_Look] = []
    dropped = []
    for at, look in enumerate(looks):
        if at not in rising:
            look.begins = look.first
            look.out_of_order = True
            look.first = kept[-1].last + 1 if kept else 1
            if look.first >= behind[at] or (kept and kept[-1].out_of_order):
                dropped.append(look)
                continue
        kept.append(look)
    return kept, dropped


def _longest_rise(firsts: Sequence[int], weights: Sequence[int]) -> set[int]:
    """Return the positions of as many numbers as rise strictly; of several such, those with the greatest weight."""
    ranks = {first: rank for rank, first in enumerate(sorted(set(firsts)), 1)}
    best: list[tuple[int, int, int]] = [(0, 0, -1)] * (len(ranks) + 1)  # Fenwick tree: count, weight, position
    before = [-1] * len(firsts)
    top = (0, 0, -1)
    for at, (first, weight) in enumerate(zip(firsts, weights, strict=True)):
        lower, rank = (0, 0, -1), ranks[first] - 1
        while rank:
            lower, rank = max(lower, best[rank]), rank & (rank - 1)
        before[at] = lower[2]
        mine, rank = (lower[0] + 1, lower[1] + weight, at), ranks[first]
        top = max(top, mine)
        while rank <= len(ranks):
            best[rank], rank = max(best[rank], mine), rank + (rank & -rank)
    chosen, at = set(), top[2]
    while at >= 0:
        chosen.add(at)
        at = before[at]
    return chosen


def _refuse_encrypted(channel: ChannelDirectory, file: SliceFile, files: Files) -> None:
    try:
        for window in scan_file(file.path, MESSAGES, channel.name, SAMPLE_SIZE, files):
            refuse_encrypted(channel.name, file.path, window)
    except OSError as error:
        raise_if_of_process(error)
        return  # reported when the slice is read for its messages


class _Look:
    """What is learnt about one slice, with as little reading as its state allows."""

    def __init__(self, channel: str, file: SliceFile, files: Files, first: int = 0, out_of_order: bool = False) -> None:
        self.file, self.first = file, first  # first: sequence it answers for from; 0: it holds nothing
        self.out_of_order = out_of_order  # what it holds is not of this place in the channel
        self.begins = 0  # sequence of its first message, of one out of order
        self._channel, self._files = channel, files
        self._summary: _Summary | None = None
        self._entries: tuple[IndexEntry, IndexEntry] | None = None
        self._entries_read = False
        self._extent: _Extent | None = None

    @property
    def extent(self) -> "_Extent":
        """Return which sequences the slice holds; reads it unless its index tells."""
        if self._extent is None:
            self._extent = self._find_extent()
        return self._extent

    def _find_extent(self) -> "_Extent":
        entries = self.entries
        if entries is not None and entries[0].offset_bytes == FILE_HEADER_SIZE and self._ends_with(entries):
            first, last = entries[0].sequence, entries[1].sequence
            if count_entries(self.file.index_path, self._files) == last + 1 - first:
                return _Extent(first, last, True, first, last, False)
        try:
            numbered = read_numbers(self._channel, self.file, self._files)
        except OSError as error:  # reported when the slice is read for its messages
            raise_if_of_process(error)
            return _Extent(self.first, self.first - 1, True, self.first, self.first - 1, True)
        if not len(numbered.sequences):
            return _Extent(self.first, self.first - 1, True, self.first, self.first - 1, bool(numbered.damaged_to))
        chosen = np.flatnonzero(numbered.chosen())
        own, end = numbered.sequences, int(numbered.ends[chosen[-1]])
        return _Extent(
            lowest=int(own.min()),
            highest=int(own.max()),
            rises=numbered.is_rising,
            first=int(own[chosen[0]]),
            last=int(own[chosen[-1]]),
            tail_damaged=numbered.damaged_to > end,
        )

    def choose_run(self) -> None:
        """Let the slice answer for the run that is served of it, where its numbers begin again."""
        if not self.extent.rises:
            is_true = bool(self._sequence_at(FILE_HEADER_SIZE))  # else damage goes back in front of the run
            self.first = self.extent.first if is_true else min(self.first, self.extent.first)

    @property
    def summary(self) -> _Summary:
        if self._summary is None:
            self._summary = _summarise(self._channel, self.file, self._files)
        return self._summary

    @property
    def entries(self) -> tuple[IndexEntry, IndexEntry] | None:
        if not self._entries_read:
            self._entries, self._entries_read = first_and_last(self.file.index_path, self._files), True
        return self._entries

    def find_first(self, before: "_Look | None", is_last: bool) -> None:
        self.first = self._sequence_at(FILE_HEADER_SIZE)
        if self.first:
            return
        if self.entries is not None and self.entries[0].offset_bytes == FILE_HEADER_SIZE:
            self.first = self.entries[0].sequence
        elif self.summary.first and not self.summary.front_count:
            self.first = self.summary.first
        elif self.summary.first or self.summary.tail_damaged or not is_last:
            # Only the last slice may have been begun without a message; one that another follows had some. Damage at
            # the beginning goes back to where the slice in front ends.
            missing = max(1, self.summary.first - self.summary.front_count)
            self.first = before.last + 1 if before else 1 if self.file.number == 1 else missing
            self.first = min(self.first, self.summary.first or self.first)

    @property
    def last(self) -> int:
        """Return the highest sequence that the slice holds, or that its index lists."""
        listed = self.listed
        return listed if listed and self._ends_with(self.entries) else max(listed, self.summary.last, self.first - 1)

    @property
    def listed(self) -> int:
        """Return the highest sequence that the index lists, 0 if it lists none."""
        return self.entries[1].sequence if self.entries is not None else 0

    @property
    def listed_first(self) -> int:
        """Return the sequence with which the file began when its index was written, its first one if none tells."""
        is_listed = self.entries is not None and self.entries[0].offset_bytes == FILE_HEADER_SIZE
        return self.entries[0].sequence if self.entries is not None and is_listed else self.first

    def end(self) -> int:
        """Return the end of the channel if this is its last slice, SEQUENCE_END if nothing tells it."""
        if not self.extent.rises and not self.out_of_order:
            return SEQUENCE_END if self.extent.tail_damaged else max(self.extent.last, self.listed) + 1
        last, summary = self.last, self._summary
        if self.out_of_order:
            return SEQUENCE_END
        if summary is not None and summary.tail_damaged and last == max(summary.last, self.first - 1):
            return SEQUENCE_END
        return last + 1

    @property
    def behind_listed(self) -> bytes:
        """Return what is in the index behind the last message that it lists."""
        return rest(self.file.index_path, self._files) if self.entries is not None else b""

    def _ends_with(self, entries: tuple[IndexEntry, IndexEntry] | None) -> bool:
        """Return whether the last entry of the index is the last record of the data file."""
        if entries is None:
            return False
        entry = entries[1]
        ends = entry.offset_bytes + HEADER_SIZE + entry.payload_size
        return ends == self.file.size and self._sequence_at(entry.offset_bytes) == entry.sequence

    def _sequence_at(self, offset_bytes: int) -> int:
        """Return the sequence of the record that begins there, 0 if none does whose checksum holds."""
        try:
            file = self._files.open(Path(os.path.realpath(self.file.path)))
        except OSError as error:
            raise_if_of_process(error)
            return 0
        try:
            head = file.read_at(offset_bytes, HEADER_SIZE)
            if len(head) < HEADER_SIZE:
                return 0
            size, crc = HEADER.unpack(head)
            left = self.file.size - offset_bytes - HEADER_SIZE
            if not PAYLOAD_SIZE_MIN <= size <= min(MESSAGES.payload_size_max, left):
                return 0
            payload = file.read_at(offset_bytes + HEADER_SIZE, size)
        except OSError as error:
            raise_if_of_process(error)
            return 0
        finally:
            file.close()
        if checksum_name(memoryview(payload), crc) is None:
            return 0
        fields, readable = decode_one(payload)
        sequence = fields.get(SEQUENCE, 0)
        readable &= fields.get(SUBJECT, b"") == self._channel.encode("utf-8", "surrogateescape")
        return sequence if readable and isinstance(sequence, int) and sequence <= SEQUENCE_MAX else 0


def _summarise(channel: str, file: SliceFile, files: Files) -> _Summary:
    first, last, count, front_count = 0, 0, 0, 0
    front = tail = False
    is_whole = True  # the last record: behind a damaged one zero bytes may be the rest of it, or of others
    try:
        for window in scan_file(file.path, MESSAGES, channel, file.size, files):
            strange = strangers(window.records, (1, SEQUENCE_END))
            sequences = place_sequences(window.records, last or None, tail, strange)
            placed = np.flatnonzero(sequences)
            if not first:
                placed = placed[_unvouched_count(window.records.good[placed], placed, sequences[placed]) :]
            marks = [stretch for stretch in window.stretches if stretch.cause is not Cause.HARMLESS]
            if len(placed):
                is_whole = bool(window.records.good[placed[-1]])
            places = [stretch.offset_bytes for stretch in marks if stretch.cause is not Cause.PADDING or not is_whole]
            if len(placed):
                begin = window.offset_bytes + int(window.records.heads[placed[0]])
                end = window.offset_bytes + int(window.records.ends[placed[-1]])
                if not first:
                    # Zero bytes are padding at the end alone.
                    front |= placed[0] > 0 or any(stretch.offset_bytes < begin for stretch in marks)
                    front_count = _room(channel, window, begin) if front else 0
                first, last = first or int(sequences[placed[0]]), int(sequences[placed[-1]])
                count += len(placed)
                tail = placed[-1] + 1 < len(sequences) or any(at >= end for at in places)
            else:
                tail = tail or bool(len(sequences)) or bool(places)
                front |= bool(len(sequences)) or bool(marks)
    except OSError as error:
        raise_if_of_process(error)
        tail = True
    return _Summary(first, last, count, front_count, bool(tail))


def _room(channel: str, window: Window, end: int) -> int:
    """Return how many messages the bytes of a slice up to `end` may have held at most: as many as the sizes there say
    if these lead up to it, else as many as there is room for."""
    if window.offset_bytes == FILE_HEADER_SIZE:
        starts, _, stop = walk(memoryview(window.buffer), 0, end - window.offset_bytes, MESSAGES)
        if stop == end - window.offset_bytes:
            return len(starts)
    return max(1, (end - FILE_HEADER_SIZE) // (RECORD_SIZE_MIN + len(channel.encode("utf-8", "surrogateescape"))))


def _unvouched_count(good: np.ndarray, rows: np.ndarray, sequences: np.ndarray) -> int:
    """Return how many records at the beginning have numbers that nothing vouches for: neither the checksum of the
    record does, nor the number of a neighbour, so that damage may have made the number."""
    follows = (np.diff(rows) == 1) & (np.diff(sequences) == 1)
    vouched = good.copy()
    vouched[1:] |= follows
    vouched[:-1] |= follows
    return int(np.argmax(vouched)) if vouched.any() else len(rows)
