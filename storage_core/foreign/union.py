"""Several copies of one stream, read as one: planned in ranges of sequences, each range read by its copies' vote.

A range is what one block file of the fullest copy answers for, with all that other copies have in it; so work is
spread as finely as for one copy, and memory is bounded by a few blocks. A range is gone through twice: once for the
digests of all messages of all copies (24 bytes each are kept), which vote.py decides on, and once for the messages that
are served, mostly from one copy. What copies differ in is reported as damage that costs nothing, unless it does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.comparison import State
from storage_core.errors import DataLossError, StorageError
from storage_core.files import OS_FILES, Files
from storage_core.foreign.arrays import BATCH_SIZE, rows_alone
from storage_core.foreign.budget import PLACE_COUNT_MAX, together
from storage_core.foreign.digests import Digests, join
from storage_core.foreign.losses import Losses, claims
from storage_core.foreign.slices import ForeignDamage, ForeignSlice, note_damage
from storage_core.foreign.vote import SEQUENCE_END, Ballot, Vote, conflicts, vote
from storage_core.os_errors import raise_if_of_process
from storage_core.sequences import SequenceSet

RANGE_SIZE_MAX = 32 << 20  # bytes of one copy's block files that a range takes in, beside one block at each end
NOWHERE = -2  # instead of the last sequence of a copy that has none in a range

OnDamage = Callable[[ForeignDamage], None]
ReadSlice = Callable[[ForeignSlice, Sequence[str], OnDamage, Files], Iterator[pa.RecordBatch]]
DigestSlice = Callable[[ForeignSlice, OnDamage, Files], Iterator[Digests]]


@dataclass(frozen=True, slots=True)
class StreamCopy:
    """One copy of a stream, as it is planned with."""

    label: str  # short, and no other copy's
    path: str
    slices: tuple[ForeignSlice, ...]  # ascending by first sequence, without filters
    removed: SequenceSet  # it says that they were removed
    problem: str = ""  # why it cannot be read; it then has no slices
    sure_from: int = 0  # see vote.Ballot
    vouched_end: int = 0  # an index of it says that the stream went up to here at least

    @property
    def row_count(self) -> int:
        return sum(slice_.row_count for slice_ in self.slices)


@dataclass(frozen=True, slots=True)
class CopyPart:
    """What one copy has of a range."""

    label: str
    path: str
    slices: tuple[ForeignSlice, ...]
    removed: bytes  # SequenceSet.encode()
    problem: str
    sure_from: int
    vouched_end: int


@dataclass(frozen=True, slots=True)
class UnionSlice(ForeignSlice):
    """Sequences `[first, end)` of a stream with several copies. `path` and the like are those of the fullest copy.

    `removed` is what no copy has, and `row_count` what the fullest copy has: both as far as is known before reading.
    """

    copies: tuple[CopyPart, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """What one block file has of a range."""

    source: ForeignSlice  # clipped to the range
    digests: Digests
    damage: tuple[ForeignDamage, ...]


@dataclass(frozen=True, slots=True)
class Examined:
    """A range after its first reading: the vote, what every copy has, and all that is to be reported."""

    outcome: Vote
    ballots: tuple[Ballot, ...]  # by copy
    looks: tuple[tuple[Look, ...], ...]  # by copy and block file
    damage: tuple[ForeignDamage, ...]


# --- planning


def plan_union(copies: Sequence[StreamCopy]) -> list[UnionSlice]:
    """Return the ranges to read for copies of one stream, ascending; none if no copy has a block."""
    fullest = max(copies, key=lambda copy: copy.row_count)
    edges = _edges(copies, fullest)
    firsts = [np.array([part.first for part in copy.slices], np.int64) for copy in copies]
    reach = [np.maximum.accumulate(np.array([part.end for part in copy.slices], np.int64)) for copy in copies]
    slices = []
    for first, end in zip(edges, edges[1:], strict=False):
        bounds = [
            (int(np.searchsorted(ends, first, side="right")), int(np.searchsorted(begins, end)))
            for begins, ends in zip(firsts, reach, strict=True)
        ]
        near = [replace(copy, slices=copy.slices[low:high]) for copy, (low, high) in zip(copies, bounds, strict=True)]
        parts = tuple(_part(copy, first, end) for copy in near)
        if any(part.slices for part in parts):
            leading = parts[copies.index(fullest)].slices or next(part.slices for part in parts if part.slices)
            slices.append(_union_slice(leading[0], parts, first, end))
    return slices


def clip(part: UnionSlice, first: int, end: int) -> UnionSlice:
    """Return the part of a range within `[first, end)`, which must not be empty."""
    kept = tuple(_part(_whole(copy), first, end) for copy in part.copies)
    return _union_slice(part, kept, max(part.first, first), min(part.end, end))


def _whole(part: CopyPart) -> StreamCopy:
    return StreamCopy(
        part.label,
        part.path,
        part.slices,
        SequenceSet.decode(part.removed),
        part.problem,
        part.sure_from,
        part.vouched_end,
    )


def _edges(copies: Sequence[StreamCopy], fullest: StreamCopy) -> list[int]:
    """Return where ranges begin, and where the last one ends."""
    slices = [part for copy in copies for part in copy.slices]
    if not slices:
        return []
    edges = {min(part.first for part in slices), max(part.end for part in slices)}
    edges.update(part.first for part in fullest.slices)
    marks = np.array(sorted(edges))
    for copy in copies:
        size, before = 0, -1
        for part in copy.slices:
            inside = int(np.searchsorted(marks, part.first, side="right"))
            size = part.file_size if inside != before else size + part.file_size
            if size > RANGE_SIZE_MAX:
                edges.add(part.first)
                size = part.file_size
            before = inside
    return sorted(edges)


def _part(copy: StreamCopy, first: int, end: int) -> CopyPart:
    inside = tuple(part for part in copy.slices if part.first < end and part.end > first)
    removed = copy.removed.clip(first, end).encode()
    return CopyPart(copy.label, copy.path, inside, removed, copy.problem, copy.sure_from, copy.vouched_end)


def _union_slice(leading: ForeignSlice, parts: tuple[CopyPart, ...], first: int, end: int) -> UnionSlice:
    rows, shown = [0], []
    byte_size = 0
    for copy in parts:
        row_count = 0
        for part in copy.slices:
            low, high = max(part.first, first), min(part.end, end)
            mine = SequenceSet.from_ranges([(low, high)]).difference(SequenceSet.decode(part.removed))
            shown.append(mine)
            count = min(len(mine), part.row_count)
            row_count += count
            byte_size += part.byte_size * count // max(1, part.row_count)
        rows.append(row_count)
    anywhere = SequenceSet.from_ranges(run for run_set in shown for run in run_set.ranges())
    return UnionSlice(
        layout=leading.layout,
        account=leading.account,
        stream=leading.stream,
        path=leading.path,
        block_index=leading.block_index,
        file_size=leading.file_size,
        first=first,
        end=end,
        removed=SequenceSet.from_ranges([(first, end)]).difference(anywhere).encode(),
        known=all(part.known for copy in parts for part in copy.slices),
        row_count=max(rows),
        byte_size=byte_size,
        time_first_ns=leading.time_first_ns,
        time_end_ns=leading.time_end_ns,
        subject_filters=leading.subject_filters,
        truncate_bad_eof=leading.truncate_bad_eof,
        no_crc=leading.no_crc,
        copies=parts,
    )


# --- the first reading: what every copy has


def examine(part: UnionSlice, digest_slice: DigestSlice, files: Files = OS_FILES) -> Examined:
    """Return what the copies have in the range, and what comes of their vote. Never raises for what they hold."""
    looks = [[_look(part, each, digest_slice, files) for each in copy.slices] for copy in part.copies]
    outcome, ballots = _count(part, looks)
    lost = outcome.losses.lost
    if part.no_crc and lost:  # what fails its checksum has no vote, but it is better than nothing
        looks = [[_with_suspects(look, lost, digest_slice, files) for look in some] for some in looks]
        outcome, ballots = _count(part, looks)
    return Examined(outcome, ballots, tuple(map(tuple, looks)), tuple(_damage_of(part, outcome, looks)))


def _look(part: UnionSlice, each: ForeignSlice, digest_slice: DigestSlice, files: Files) -> Look:
    clipped = replace(each, first=max(each.first, part.first), end=min(each.end, part.end), no_crc=False)
    damage: list[ForeignDamage] = []
    try:
        return Look(clipped, join(list(digest_slice(clipped, damage.append, files))), tuple(damage))
    except (StorageError, OSError) as error:
        raise_if_of_process(error)
        whole = note_damage(each.layout, each.account, each.stream, each.path, str(error))
        whole = replace(whole, end_bytes=each.file_size, first=clipped.first, end=clipped.end)
        return Look(clipped, join([]), (whole,))


def _with_suspects(look: Look, wanted: SequenceSet, digest_slice: DigestSlice, files: Files) -> Look:
    """Return what one block file has, with the wanted messages among those whose checksum fails."""
    if not look.damage:
        return look
    damage: list[ForeignDamage] = []
    source = replace(look.source, no_crc=True)
    try:
        suspects = join(list(digest_slice(source, damage.append, files)))
    except (StorageError, OSError) as error:
        raise_if_of_process(error)
        return look
    chosen = np.flatnonzero(wanted.mask(suspects.sequences))
    if not len(chosen):
        return look
    more = Digests(suspects.sequences[chosen], suspects.times_ns[chosen], suspects.digests[chosen])
    both = join([look.digests, more])
    return Look(source, both, tuple(damage))


def _count(part: UnionSlice, looks: list[list[Look]]) -> tuple[Vote, tuple[Ballot, ...]]:
    shown = [join([look.digests for look in some]) for some in looks]
    damage = [[each for look in some for each in look.damage] for some in looks]
    ends = _Ends(part, shown, damage)
    ballots = tuple(_ballot(part, at, shown[at], damage[at], ends) for at in range(len(looks)))
    return vote(ballots), ballots


class _Ends:
    """How far copies go in a range: what bounds damage of which nobody knows how far it goes."""

    def __init__(self, part: UnionSlice, shown: Sequence[Digests], damage: Sequence[Sequence[ForeignDamage]]) -> None:
        self._part = part
        self._lasts = [int(digests.sequences[-1]) if len(digests) else NOWHERE for digests in shown]
        self._torn = [any(each.first is not None and each.end is None for each in some) for some in damage]

    def of(self, copy: int, damage: ForeignDamage) -> int:
        """Return where the sequences end that a damage of one copy, without an end of its own, may have cost."""
        assert damage.first is not None, damage
        others = [at for at in range(len(self._lasts)) if at != copy and self._part.copies[at].sure_from < SEQUENCE_END]
        end = max(damage.first, *(self._lasts[at] + 1 for at in others), 0)
        vouched_end = min(self._part.copies[copy].vouched_end, self._part.end)
        if vouched_end > damage.first and vouched_end >= end:
            return vouched_end
        whole = sum(self._lasts[at] != NOWHERE and not self._torn[at] for at in others)
        return end if _are_most(whole, len(self._lasts)) else self._part.end


def is_torn_behind(copies: Sequence[StreamCopy], ends: Mapping[str, int]) -> bool:
    """Return whether a copy may have had messages behind the last one of all copies, since its own end is damaged.

    `ends` are those of readable copies by path; a damaged end counts as a message there already.
    """
    end = max(ends.values())
    own = [copy for copy in copies if copy.sure_from < SEQUENCE_END]
    torn = {copy.path for copy in own if any(part.end >= SEQUENCE_END for part in copy.slices)}
    whole = sum(bool(copy.slices) and copy.path not in torn for copy in own)
    is_open = any(copy.path in torn and copy.vouched_end < end for copy in own)
    is_counted = {path for path, own_end in ends.items() if own_end == end} <= torn
    return is_open and not is_counted and not _are_most(whole, len(copies))


def _are_most(whole_count: int, copy_count: int) -> bool:
    """Return whether nothing was stored behind the ends of the whole copies that a cluster would have acknowledged."""
    return 2 * whole_count > copy_count


def _ballot(part: UnionSlice, at: int, shown: Digests, damage: Sequence[ForeignDamage], ends: _Ends) -> Ballot:
    copy = part.copies[at]
    claimed = claims(damage, part.first, part.end, lambda each: ends.of(at, each))
    if copy.problem:
        claimed = replace(claimed, damaged=SequenceSet.from_ranges([(part.first, part.end)]))
    return Ballot(
        label=copy.label,
        shown=shown,
        removed=SequenceSet.decode(copy.removed),
        claims=claimed,
        sure_from=copy.sure_from,
        readable=not copy.problem,
    )


# --- what is reported


def _damage_of(part: UnionSlice, outcome: Vote, looks: list[list[Look]]) -> Iterator[ForeignDamage]:
    labels = [copy.label for copy in part.copies]
    heard = [[each for look in some for each in look.damage] for some in looks]
    former = [at for at, copy in enumerate(part.copies) if copy.sure_from == SEQUENCE_END]
    borrowed = SequenceSet.from_sequences(outcome.sequences[np.isin(outcome.served_by, former)])
    clean = sum(
        not damage and not copy.problem and copy.sure_from <= part.first
        for damage, copy in zip(heard, part.copies, strict=True)
    )
    for label, damage in zip(labels, heard, strict=True):
        for defect in damage:
            yield from _decided(defect, outcome.losses, label, clean > 0, borrowed)
    listed, more = conflicts(outcome, labels)
    for conflict in listed:
        minority = _minority(conflict.versions, conflict.served)
        path = next(copy.path for copy in part.copies if copy.label == minority)
        yield _difference(part, path, conflict.first, conflict.end, conflict.describe(), not conflict.is_decided)
    if len(more):
        first, end = int(more[0, 0]), int(more[-1, 1])
        reason = together(len(more), f"copies have different content of messages from {first} to {end - 1}")
        unsettled = bool(outcome.unsettled[(outcome.sequences >= first) & (outcome.sequences < end)].any())
        yield replace(_difference(part, part.path, first, end, reason, unsettled), places=len(more))
    for at, copy in enumerate(part.copies):
        missing = (outcome.states[:, at] == State.MISSING) & (outcome.versions[:, at] != -2)
        if copy.problem:
            missing |= outcome.states[:, at] == State.DAMAGED
        why = f"{copy.label} cannot be read ({copy.problem})" if copy.problem else f"{copy.label} does not have them"
        lacking = SequenceSet.from_sequences(outcome.sequences[missing])
        ranges = [(first, end, 1) for first, end in lacking.ranges_head(PLACE_COUNT_MAX)]
        if lacking.run_count > PLACE_COUNT_MAX:
            first, end = int(lacking.starts[PLACE_COUNT_MAX]), int(lacking.ends[-1])
            ranges.append((first, end, lacking.run_count - PLACE_COUNT_MAX))
        for first, end, places in ranges:
            which = f"sequence {first}" if end == first + 1 else f"sequences {first} to {end - 1}"
            reason = together(places, f"{which}: {why}, other copies do")
            lack = _difference(part, copy.path, first, end, reason, disputed=False)
            yield replace(lack, gone=True, places=places)


def _decided(
    damage: ForeignDamage, left: Losses, label: str, others_are_clean: bool, borrowed: SequenceSet
) -> Iterator[ForeignDamage]:
    """Yield damage to one copy as it is for all of them together: one for each run of sequences that it costs.

    `borrowed` are read from copies that no longer belong to the stream: they may have been removed since.
    """
    if damage.first is None or damage.served:
        yield replace(damage, unclear=damage.unclear and not others_are_clean)
        return
    end = SEQUENCE_END if damage.end is None else damage.end
    costs = (left.lost.union(left.open) if damage.open else left.lost).clip(damage.first, end)
    for first, stop in costs.ranges_head(PLACE_COUNT_MAX):
        has_no_end = damage.end is None and stop >= SEQUENCE_END
        count = None if has_no_end else stop - first
        yield replace(damage, first=first, end=None if has_no_end else stop, lost_count=count)
    if costs.run_count > PLACE_COUNT_MAX:
        first, stop = int(costs.starts[PLACE_COUNT_MAX]), int(costs.ends[-1])
        more = costs.run_count - PLACE_COUNT_MAX
        has_no_end = damage.end is None and stop >= SEQUENCE_END
        reason = together(more, damage.reason)
        yield replace(
            damage, first=first, end=None if has_no_end else stop, lost_count=None, reason=reason, places=more
        )
    unclear = borrowed.count_in(damage.first, end) > 0
    if costs and not unclear:
        return
    which = f"sequence {damage.first}" if damage.end == damage.first + 1 else f"sequences from {damage.first} on"
    if damage.end is not None and damage.end > damage.first + 1:
        which = f"sequences {damage.first} to {damage.end - 1}"
    what = "not" if damage.gone else "damaged"
    reason = f"{which} {what} in {label}, read from other copies where there were any: {damage.reason}"
    if unclear:
        reason = f"{reason}; only a copy that no longer belongs to the stream has them, or some: they may be removed"
    yield replace(damage, elsewhere=True, open=False, unclear=unclear, reason=reason)


def _minority(versions: tuple[tuple[str, ...], ...], served: int | None) -> str:
    return next((version[0] for at, version in enumerate(versions) if at != served), versions[0][0])


def _difference(part: UnionSlice, path: str, first: int, end: int, reason: str, disputed: bool) -> ForeignDamage:
    note = note_damage(part.layout, part.account, part.stream, path, reason)
    return replace(note, first=first, end=end, elsewhere=not disputed, disputed=disputed)


# --- the second reading: what is served


def read_union(
    part: UnionSlice,
    columns: Sequence[str],
    on_damage: OnDamage | None,
    files: Files,
    read_slice: ReadSlice,
    digest_slice: DigestSlice,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range as its copies have them together, in schema.read_schema(columns), ascending.

    What copies differ in goes to `on_damage`. Without it, what costs messages raises DataLossError: sequences that no
    copy has whole, or that copies have differently without a majority.
    """
    examined = examine(part, digest_slice, files)
    if on_damage is None:
        costly = [damage for damage in examined.damage if damage.costs and not damage.allowed]
        if costly:
            more = f" ({len(costly) - 1} more damaged places in this part)" if len(costly) > 1 else ""
            raise DataLossError(f"{costly[0].explain()}{more}")
    else:
        for damage in examined.damage:
            on_damage(damage)
    sources = _sources(part, examined)
    if not columns and not any(map(_is_filtered, sources)):  # a count: it is known by now
        yield from (rows_alone(source.row_count) for source in sources)
    elif len(sources) == 1:
        yield from _read(sources[0], columns, files, read_slice)
    elif sources:
        yield from _merged(sources, columns, files, read_slice)


def _sources(part: UnionSlice, examined: Examined) -> list[ForeignSlice]:
    """Return the slices to read what is served from, each with all else in `removed`."""
    outcome = examined.outcome
    sources = []
    for at, looks in enumerate(examined.looks):
        wanted = SequenceSet.from_sequences(outcome.sequences[outcome.served_by == at])
        for look in looks:
            mine = wanted.intersection(SequenceSet.from_sequences(look.digests.sequences)) if wanted else wanted
            if not mine:
                continue
            wanted = wanted.difference(mine)
            first, end = mine.bounds
            sources.append(
                replace(
                    look.source,
                    first=first,
                    end=end,
                    removed=SequenceSet.from_ranges([(first, end)]).difference(mine).encode(),
                    row_count=len(mine),
                    time_first_ns=part.time_first_ns,
                    time_end_ns=part.time_end_ns,
                    subject_filters=part.subject_filters,
                )
            )
    return sources


def _read(
    source: ForeignSlice, columns: Sequence[str], files: Files, read_slice: ReadSlice
) -> Iterator[pa.RecordBatch]:
    count = 0
    for batch in read_slice(source, columns, lambda _: None, files):
        count += batch.num_rows
        yield batch
    if count != source.row_count and not _is_filtered(source):
        raise DataLossError(
            f"stream {source.stream!r}: {source.path} changed while it was read: {count} of {source.row_count} "
            "messages were found again"
        )


def _is_filtered(source: ForeignSlice) -> bool:
    return source.time_first_ns is not None or source.time_end_ns is not None or bool(source.subject_filters)


def _merged(
    sources: Sequence[ForeignSlice], columns: Sequence[str], files: Files, read_slice: ReadSlice
) -> Iterator[pa.RecordBatch]:
    """Yield what several block files have of a range in the order of sequences. They are held together in memory."""
    asked = [*columns, *(() if "sequence" in columns else ("sequence",))]
    batches = [batch for source in sources for batch in _read(source, asked, files, read_slice) if batch.num_rows]
    if not batches:
        return
    sequences = np.concatenate([buffers.numbers(batch.column("sequence")) for batch in batches])
    order = buffers.of_numbers(np.argsort(sequences, kind="stable"))
    table = pa.Table.from_batches(batches).take(order).combine_chunks()
    row_count = max(1, table.num_rows * BATCH_SIZE // max(BATCH_SIZE, table.nbytes))
    for batch in table.to_batches(max_chunksize=row_count):
        yield batch if "sequence" in columns else batch.select(list(columns))
