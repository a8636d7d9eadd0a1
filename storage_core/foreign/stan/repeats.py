"""Sequences that a channel has more than once: which record is served, and how the others differ from it.

A server gives numbers that rise by one, inside a slice and across slices. Where they begin again, files were put
together or copied, or the server lost its state. Then one rising run of records is served, and the others are compared
with it by content: a record that says the same is a copy and harmless, one that says something else is told as loss.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from storage_core.files import Files
from storage_core.foreign.budget import PLACE_COUNT_MAX
from storage_core.foreign.stan.directory import SliceFile
from storage_core.foreign.stan.messages import SEQUENCE, content_digests
from storage_core.foreign.stan.record import MESSAGES, SEQUENCE_MAX
from storage_core.foreign.stan.scan import Cause, scan_file
from storage_core.sequences import SequenceSet

RUN_COUNT_MAX = 100_000  # runs of a slice that are chosen among; of more, the first record of a sequence is served
_COSTLESS = (Cause.HARMLESS, Cause.PADDING)
_COPY, _OTHER, _ALONE = 0, 1, 2  # kinds of records that are not served, against those that are


@dataclass(frozen=True, slots=True)
class Told:
    """Records of a slice that are not served although they are true."""

    path: str
    offset_bytes: int
    end_bytes: int
    first: int  # their sequences lie in [first, end)
    end: int
    reason: str
    costs: bool  # what they say is not served by another record
    places: int = 1


@dataclass(frozen=True, slots=True)
class Numbered:
    """True records of the channel in a slice as parallel arrays, in the order of the file."""

    file: SliceFile
    sequences: np.ndarray  # int64
    heads: np.ndarray  # int64, offset_bytes in the file
    ends: np.ndarray
    digests: np.ndarray  # uint64, of the content; empty if it was not asked for
    damaged_to: int  # offset_bytes where the last damage ends, 0 if there is none

    @property
    def is_rising(self) -> bool:
        return bool((self.sequences[1:] > self.sequences[:-1]).all())

    def chosen(self) -> np.ndarray:
        """Return which records to serve: one a sequence, rising, as many as can be."""
        starts = np.concatenate(([0], np.flatnonzero(np.diff(self.sequences) != 1) + 1))
        ends = np.append(starts[1:], len(self.sequences))
        chosen = np.zeros(len(self.sequences), bool)
        if len(starts) > RUN_COUNT_MAX:
            highest = np.maximum.accumulate(np.concatenate(([0], self.sequences[:-1])))
            return np.asarray(self.sequences > highest)
        firsts, lasts = self.sequences[starts].tolist(), self.sequences[ends - 1].tolist()
        kept = _longest_chain(firsts, lasts)
        free_from, next_kept = 1, iter([firsts[run] for run in sorted(kept)] + [SEQUENCE_MAX + 1])
        free_to = next(next_kept)
        for run, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            own = self.sequences[start:end]
            if run in kept:
                free_to = next(next_kept)
                chosen[start:end] = True
                free_from = lasts[run] + 1
                continue
            fits = (own >= free_from) & (own < free_to)
            chosen[start:end] = fits
            free_from = max(free_from, int(own[fits][-1]) + 1) if fits.any() else free_from
        return chosen


def read_numbers(channel: str, file: SliceFile, files: Files, with_digests: bool = False) -> Numbered:
    """Return the true records of a channel in a slice. Raises OSError."""
    none = np.empty(0, np.int64)
    parts: list[tuple[np.ndarray, ...]] = [(none, none, none, none.astype(np.uint64))]
    damaged_to = 0
    for window in scan_file(file.path, MESSAGES, channel, file.size, files):
        records = window.records
        true = records.take(records.good & records.own)
        bad = [stretch.end_bytes for stretch in window.stretches if stretch.cause not in _COSTLESS]
        bad += (window.offset_bytes + records.ends[~records.good]).tolist()[-1:]
        damaged_to = max([damaged_to, *bad])
        sequences = true.fields[SEQUENCE].values.astype(np.int64)
        digests = content_digests(window.buffer, true, sequences) if with_digests else parts[0][3]
        parts.append((sequences, window.offset_bytes + true.heads, window.offset_bytes + true.ends, digests))
    sequences, heads, ends, contents = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Numbered(file, sequences, heads, ends, contents, damaged_to)


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a slice is served."""

    slice_: Numbered
    served: np.ndarray  # which records
    end: int  # from this sequence on the next slice serves; 0: it serves nothing

    @property
    def left_out(self) -> SequenceSet:
        """Return the offset_bytes of the records that are not served."""
        rows = ~self.served
        return SequenceSet.from_columns(self.slice_.heads[rows], self.slice_.ends[rows])


def compare(choices: Sequence[Choice]) -> Iterator[list[Told]]:
    """Yield for each slice what is to be told of its records that are not served."""
    sequences = np.concatenate([choice.slice_.sequences[choice.served] for choice in choices])
    digests = np.concatenate([choice.slice_.digests[choice.served] for choice in choices])
    order = np.argsort(sequences, kind="stable")
    sequences, digests = sequences[order], digests[order]
    seen = np.empty((0, 2), np.uint64)  # sequences and digests of records that were told
    for choice in choices:
        rows = np.flatnonzero(~choice.served)
        own, content = choice.slice_.sequences[rows], choice.slice_.digests[rows]
        kinds = _kinds(own, content, sequences, digests)
        pairs = np.stack((own.astype(np.uint64), content), axis=1)
        firsts = np.unique(np.concatenate((seen, pairs)), axis=0, return_index=True)[1] - len(seen)
        is_first = np.zeros(len(rows), bool)
        is_first[firsts[firsts >= 0]] = True
        kinds[~is_first] = _COPY  # of several that say the same, the first is told
        seen = np.concatenate((seen, pairs[kinds != _COPY]))
        yield _told(choice, rows, kinds) if len(rows) else []


def _kinds(own: np.ndarray, content: np.ndarray, sequences: np.ndarray, digests: np.ndarray) -> np.ndarray:
    """Return what records are against those that are served, which are sorted by sequence."""
    kinds = np.full(len(own), _ALONE)
    if len(sequences):
        place = np.minimum(np.searchsorted(sequences, own), len(sequences) - 1)
        has = sequences[place] == own
        kinds[has] = np.where(digests[place] == content, _COPY, _OTHER)[has]
    return kinds


def _told(choice: Choice, rows: np.ndarray, kinds: np.ndarray) -> list[Told]:
    """Return the rows as places, those together that follow each other and are of one kind."""
    own = choice.slice_.sequences[rows]
    apart = (np.diff(kinds) != 0) | (np.diff(rows) != 1) | (np.diff(own) != 1)
    starts = np.concatenate(([0], np.flatnonzero(apart) + 1))
    places = list(zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True))
    told_places = [_place(choice, rows[start:end], int(kinds[start]), 1) for start, end in places[:PLACE_COUNT_MAX]]
    if len(places) > PLACE_COUNT_MAX:
        start = places[PLACE_COUNT_MAX][0]
        told_places.append(_place(choice, rows[start:], int(kinds[start:].max()), len(places) - PLACE_COUNT_MAX))
    return told_places


def _place(choice: Choice, rows: np.ndarray, kind: int, places: int) -> Told:
    slice_, own = choice.slice_, choice.slice_.sequences[rows]
    first, last, overlaps = int(own.min()), int(own.max()), 0 < choice.end <= int(own.min())
    numbers = f"sequence {first}" if first == last else f"sequences {first} to {last}"
    if overlaps:
        numbers += f" (the file continues to sequence {last}, but the next one begins with {choice.end})"
    count = "1 record" if len(rows) == 1 else f"{len(rows)} records"
    reason = {
        _COPY: f"{count} with {numbers}: the same content as another record of that number"
        + (", so one of the files is a copy, or of another store" if overlaps else ""),
        _OTHER: f"{count} with {numbers} and other content than the records that are served "
        "under these numbers: they are not served",
        _ALONE: f"{count} with {numbers}, which no place in the channel has: they are not served",
    }[kind]
    start, stop = int(slice_.heads[rows].min()), int(slice_.ends[rows].max())
    return Told(slice_.file.path, start, stop, first, last + 1, reason, overlaps or kind != _COPY, places)


def _longest_chain(firsts: Sequence[int], lasts: Sequence[int]) -> set[int]:
    """Return the positions of runs that rise from one to the next and have as many records together as can be."""
    ranks = {last: rank for rank, last in enumerate(sorted(set(lasts)), 1)}
    marks = np.array(sorted(set(lasts)))
    below = np.searchsorted(marks, firsts).tolist()  # how many marks lie below each first
    best: list[tuple[int, int]] = [(0, 0)] * (len(ranks) + 1)  # Fenwick tree: records, and -1 - position
    before = [-1] * len(firsts)
    top = (0, 0)
    for at, (first, last) in enumerate(zip(firsts, lasts, strict=True)):
        lower, rank = (0, 0), below[at]
        while rank:
            lower, rank = max(lower, best[rank]), rank & (rank - 1)
        before[at] = -1 - lower[1]
        mine, rank = (lower[0] + last + 1 - first, -1 - at), ranks[last]
        top = max(top, mine)
        while rank <= len(ranks):
            best[rank], rank = max(best[rank], mine), rank + (rank & -rank)
    chosen, at = set(), -1 - top[1]
    while at >= 0:
        chosen.add(at)
        at = before[at]
    return chosen
