"""Scan of a block: every record whose checksum holds, and every stretch of bytes that is none.

The chain of sizes is followed once and all records on it are checked. Where that leaves a stretch without true
records (a checksum fails, or a damaged size led the chain astray), every byte of the stretch is tried as the start
of a record: the few places whose head is plausible are hashed, and those whose checksum holds are records again. So
one damaged record costs one record, wherever its damage is.

What an attacker could make of the search is bounded: a stretch made to look like records at every byte is given up
on, and the damage says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage_core.foreign.arrays import runs_by_size
from storage_core.foreign.budget import PLACE_COUNT_MAX, SearchBudget, together
from storage_core.foreign.nats.highwayhash import Key
from storage_core.foreign.nats.record import (
    HEAD_SIZE,
    SIZE_MASK,
    SIZE_MAX,
    SIZE_MIN,
    Records,
    headers_end_well,
    read_heads,
    verify_scattered,
    verify_together,
    walk,
)
from storage_core.sequences import SequenceSet

RECORD_COUNT_MAX = (64 << 20) // SIZE_MIN  # in a block: those of old servers have 64 MiB, of new ones 8 MiB
SEARCH_SPARE_MAX = 32 << 20  # bytes hashed in search of lost records beside the multiple of the block's size
BATCH_SIZE = 1 << 20  # bytes of candidates that are hashed together
SEARCH_STEP = 1 << 20  # bytes whose every place is looked at in one go
SEQUENCE_PLAUSIBLE = 1 << 48  # beyond this, and beyond twice the highest sequence seen, a number is noise


@dataclass(frozen=True, slots=True)
class RecordDamage:
    """Bytes `[offset_bytes, end_bytes)` of a block (as decompressed) that are no true record."""

    offset_bytes: int
    end_bytes: int
    reason: str
    after: int  # highest sequence of a true message before the damage, 0 if there is none
    before: int | None  # sequence of the first true message after it that is higher, None if there is none
    places: int = 1  # that it stands for


@dataclass(frozen=True, slots=True)
class BlockScan:
    """True records in the order of the block, and what lies between them."""

    records: Records
    damage: tuple[RecordDamage, ...]
    hides_end: bool = False  # it ends with a piece of it that lies at the wrong place, over what ended it before

    @property
    def messages(self) -> np.ndarray:
        """Return the positions of the messages that the block holds, ascending by sequence.

        A server writes them so. Where damage put a piece of the block at another place they are found out of order, or
        twice: then the first of each sequence counts, and none that an erased record says is gone.
        """
        records = self.records
        places = np.flatnonzero(~records.tombstones)
        sequences, erased = records.sequences[places], records.erased[places]
        if (sequences[1:] > sequences[:-1]).all():
            return np.asarray(places[~erased])
        erased_sequences = SequenceSet.from_sequences(sequences[erased & (sequences > 0)])
        stay = ~erased & ~erased_sequences.mask(sequences)
        first = np.unique(sequences[stay], return_index=True)[1]
        return np.asarray(places[stay][first])

    @property
    def tombstones(self) -> np.ndarray:
        """Return the sequences, of this block or an earlier one, that tombstones here name as removed."""
        return np.asarray(self.records.sequences[self.records.tombstones])


@dataclass(frozen=True, slots=True)
class _Chain:
    """The chain of sizes of a block, followed: what is on it and has the head of a record."""

    block: pa.Buffer
    records: Records
    is_whole: bool  # all that is looked at is on it
    read_size: int  # bytes of the block that are looked at

    @staticmethod
    def of(block: pa.Buffer) -> "_Chain":
        view = np.frombuffer(block, np.uint8)
        starts, chain_end = walk(view.data, 0, len(view))
        size = len(view)
        if len(starts) > RECORD_COUNT_MAX:
            size = chain_end = int(starts[RECORD_COUNT_MAX])
            starts = starts[:RECORD_COUNT_MAX].copy()
        records, possible = read_heads(view[:size], starts, size)
        is_whole = bool(possible.all()) and chain_end == size
        return _Chain(block, records.take(possible), is_whole, size)


def scan_block(block: pa.Buffer, key: Key) -> BlockScan:
    """Return all that is true in an uncompressed block; never raises for what it holds."""
    return scan_blocks([(block, key)])[0]


def scan_blocks(blocks: Sequence[tuple[pa.Buffer, Key]]) -> list[BlockScan]:
    """Return the same for several blocks, whose long messages are hashed side by side."""
    chains = [_Chain.of(block) for block, _ in blocks]
    keys = [key for _, key in blocks]
    asked = [(chain.block, chain.records, key) for chain, key in zip(chains, keys, strict=True)]
    return [_scan(*each) for each in zip(chains, keys, verify_together(asked), strict=True)]


def scan_unhashed(block: pa.Buffer) -> BlockScan | None:
    """Return what the heads say, whose sizes have to lead from the begin of the block to its end; None otherwise."""
    chain = _Chain.of(block)
    return BlockScan(chain.records, (), _hides_end(chain.records, ())) if chain.is_whole else None


def scan_sound_block(block: pa.Buffer) -> BlockScan:
    """Return what is in a block of which it is known that every record is true."""
    return BlockScan(_Chain.of(block).records, ())


def _scan(chain: _Chain, key: Key, good: np.ndarray) -> BlockScan:
    if good.all() and chain.is_whole:
        scan = BlockScan(chain.records, ())
    else:
        block = chain.block.slice(0, chain.read_size)
        scan = _fill_gaps(block, np.frombuffer(block, np.uint8), chain.records.take(good), key)
    hides_end = _hides_end(scan.records, scan.damage)
    hidden = _hidden(scan.records, scan.damage, chain.read_size if hides_end else None)
    hidden += _repeated_tombstones(scan.records)
    damage = tuple(sorted([*scan.damage, *hidden], key=lambda each: each.offset_bytes))
    scan = BlockScan(scan.records, damage, hides_end)
    if chain.read_size == chain.block.size:
        return scan
    reason = f"more than {RECORD_COUNT_MAX} records, which no server writes into a block; the rest is not read"
    highest = int(np.max(scan.records.sequences, initial=0))
    rest = RecordDamage(chain.read_size, chain.block.size, reason, highest, None)
    return BlockScan(scan.records, (*scan.damage, rest), scan.hides_end)


def _hidden(records: Records, damage: Sequence[RecordDamage], end: int | None) -> list[RecordDamage]:
    """Return what pieces of a block that lie over others may have covered: the numbers fall where one begins or ends.

    In such a block numbers that are left out prove no removal, and neither do those in front of the first one. `end`:
    where the block ends, if a piece ends it. What damage tells already is left out.
    """
    numbered = records.take(~records.tombstones & (records.sequences > 0))
    steps = np.diff(numbered.sequences, prepend=0)
    if not (steps <= 0).any():
        return []
    places = numbered.starts[steps != 1]
    neighbours = _Neighbours(records)
    reason = "the numbers of the records fall: a piece of the block lies at a wrong place, over what was there"
    hidden = [
        RecordDamage(place, place, reason, neighbours.after(place), neighbours.before(place))
        for place in places[:PLACE_COUNT_MAX].tolist()
    ]
    known = {(each.after, each.before) for each in damage}
    hidden = [each for each in hidden if (each.after, each.before) not in known]
    if len(places) > PLACE_COUNT_MAX:
        first, last = int(places[PLACE_COUNT_MAX]), int(places[-1])
        count = len(places) - PLACE_COUNT_MAX
        after, before = neighbours.after(first), neighbours.before(last)
        hidden.append(RecordDamage(first, last, together(count, reason), after, before, count))
    if end is not None and all(each.before is not None for each in [*damage, *hidden]):
        hidden.append(RecordDamage(end, end, reason, int(numbered.sequences.max()), None))
    return hidden


def _repeated_tombstones(records: Records) -> list[RecordDamage]:
    """Return where a tombstone of the block is there again, over what was there: a server writes each once."""
    tombstones = records.take(records.tombstones)
    heads = tombstones.hashed_heads()
    again = np.ones(len(tombstones), bool)
    again[np.unique(heads, axis=0, return_index=True)[1]] = False
    places = tombstones.starts[again]
    if not len(places):
        return []
    neighbours = _Neighbours(records)
    first, last = int(places[0]), int(places[-1])
    reason = together(len(places), "a tombstone is there twice: a piece of the block lies over what was there")
    after, before = neighbours.after(first), neighbours.before(last)
    return [RecordDamage(first, last, reason, after, before, len(places))]


def _hides_end(records: Records, damage: Sequence[RecordDamage]) -> bool:
    """Return whether numbers behind the last damage are not above all in front of them, as those a server writes.

    A piece that ends in front of the end is followed by another number than in its own place.
    """
    numbered = records.take(~records.tombstones & (records.sequences > 0))
    sequences = numbered.sequences
    repeats = np.flatnonzero(sequences[1:] <= np.maximum.accumulate(sequences)[:-1]) + 1
    last_damage = max((each.end_bytes for each in damage), default=0)
    if not len(repeats) or int(numbered.starts[repeats[-1]]) < last_damage:
        return False
    rest = sequences[repeats[-1] :]
    return len(rest) == 1 or int(rest[1]) == int(sequences[sequences > rest[0]].min())


def _fill_gaps(block: pa.Buffer, view: np.ndarray, chained: Records, key: Key) -> BlockScan:
    """Look for records in every stretch that the true ones on the chain leave, and name what is still none."""
    highest = int(np.max(chained.sequences, initial=0))
    search = _Search(block, view, key, max(SEQUENCE_PLAUSIBLE, 2 * highest))
    gaps = _gaps(chained, len(view))
    stretches = [search.stretch(first, end) for first, end in gaps[:PLACE_COUNT_MAX].tolist()]
    if len(gaps) > PLACE_COUNT_MAX:
        search.give_up_at(int(gaps[PLACE_COUNT_MAX, 0]))
    merged = _merge([chained, *stretches])
    gaps, neighbours = _gaps(merged, len(view)), _Neighbours(merged)
    damage = [_describe(view, neighbours, first, end, search) for first, end in gaps[:PLACE_COUNT_MAX].tolist()]
    rest = gaps[PLACE_COUNT_MAX:]
    if len(rest):
        first, end = int(rest[0, 0]), int(rest[-1, 1])
        reason = together(len(rest), _reason(view, *rest[0].tolist())) + search.said_of(end)
        after, before = neighbours.after(first), neighbours.before(end)
        damage.append(RecordDamage(first, end, reason, after, before, len(rest)))
    return BlockScan(merged, tuple(damage))


def _gaps(records: Records, size: int) -> np.ndarray:
    """Return what lies between records in `[0, size)`, rows of (first, end)."""
    edges = np.concatenate(([0], np.stack((records.starts, records.ends), axis=1).ravel(), [size])).reshape(-1, 2)
    return np.asarray(edges[edges[:, 0] < edges[:, 1]])


class _Neighbours:
    """The messages in front of a place in a block and behind it."""

    def __init__(self, records: Records) -> None:
        plain = ~records.tombstones
        self._starts = records.starts[plain]
        self._highest = np.maximum.accumulate(records.sequences[plain])

    def after(self, first: int) -> int:
        """Return the highest sequence in front of the offset, 0 if there is none."""
        at = int(np.searchsorted(self._starts, first))
        return max(0, int(self._highest[at - 1])) if at else 0

    def before(self, end: int) -> int | None:
        """Return the next sequence behind the offset that is higher than all in front of it, None if there is none.

        A server writes ascending numbers: lower ones are a piece of the block that lies at the wrong place, and hide
        what was there.
        """
        at = int(np.searchsorted(self._highest, self.after(end), "right"))
        return int(self._highest[at]) if at < len(self._highest) else None


def _merge(parts: list[Records]) -> Records:
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in Records.__slots__]
    merged = Records(*columns)
    return merged.take(np.argsort(merged.starts, kind="stable"))


class _Search:
    """The search for true records in the damaged stretches of one block, with its budget."""

    def __init__(self, block: pa.Buffer, view: np.ndarray, key: Key, sequence_max: int) -> None:
        self._block, self._view, self._key, self._sequence_max = block, view, key, sequence_max
        self._budget = SearchBudget(SEARCH_SPARE_MAX)
        self._budget.grant(len(view))
        self._given_up_at = len(view)  # places from here on were not all tried

    def give_up_at(self, offset_bytes: int) -> None:
        self._given_up_at = min(self._given_up_at, offset_bytes)

    def said_of(self, end: int) -> str:
        """Return what is to be said of damage up to `end`: whether the search came so far."""
        if end <= self._given_up_at:
            return ""
        return "; the search for records in it was given up, too much there looks like one"

    def stretch(self, first: int, end: int) -> Records:
        """Return the true records inside `[first, end)`; of two that overlap, the one that begins first."""
        taken, done = [self._candidates(first, first, end)], first
        for step in range(first, end - SIZE_MIN + 1, SEARCH_STEP):
            candidates = self._candidates(max(step, done), min(step + SEARCH_STEP, end - SIZE_MIN + 1), end)
            for run_first, run_end in runs_by_size(candidates.sizes, BATCH_SIZE):
                batch = candidates.take(slice(run_first, run_end))
                batch = batch.take(batch.starts >= done)  # a true record hides the places inside it
                longest = int(np.max(batch.sizes, initial=0))
                if not self._budget.spend(int(batch.sizes.sum()), len(batch), longest):
                    self.give_up_at(done)
                    return _merge(taken)
                true = batch.take(verify_scattered(self._block, batch, self._key))
                taken.append(true.take(_apart(true)))
                done = max(done, int(np.max(taken[-1].ends, initial=0)))
        return _merge(taken)

    def _candidates(self, first: int, stop: int, end: int) -> Records:
        """Return what begins in `[first, stop)` and has the head of a record that fits in front of `end`."""
        if first >= stop:
            return read_heads(self._view, np.empty(0, np.int64), end)[0]
        sizes = np.ndarray((stop - first,), "<u4", self._view.data, first, (1,)) & np.uint32(SIZE_MASK)
        fits = (sizes >= SIZE_MIN) & (sizes <= min(SIZE_MAX, end - first))
        starts = first + np.flatnonzero(fits).astype(np.int64)
        records, possible = read_heads(self._view, starts, end)
        records = records.take(possible)
        return records.take(self._plausible(records))

    def _plausible(self, records: Records) -> np.ndarray:
        """Return which heads look like one of the kinds of records, and not like noise."""
        sequences, bare = records.sequences, records.subject_sizes == 0
        smallest = (records.sizes == SIZE_MIN) & bare
        erased = bare & (records.header_sizes < 0) & (records.times_ns == 0)
        subjects = records.starts + HEAD_SIZE
        printable = (self._view[subjects] > 0x20) & (self._view[subjects + records.subject_sizes - 1] > 0x20)
        kind = np.where(records.tombstones, smallest, np.where(records.erased, smallest | erased, ~bare & printable))
        return np.asarray(kind & (records.times_ns >= 0) & (sequences > 0) & (sequences <= self._sequence_max))


def _apart(records: Records) -> np.ndarray:
    """Return which records to keep so that none overlap: each that begins where the ones kept before have ended."""
    chosen, done = np.zeros(len(records), bool), 0
    for position, (start, end) in enumerate(zip(records.starts.tolist(), records.ends.tolist(), strict=True)):
        if start >= done:
            chosen[position], done = True, end
    return chosen


def _describe(view: np.ndarray, neighbours: _Neighbours, first: int, end: int, search: _Search) -> RecordDamage:
    reason = _reason(view, first, end) + search.said_of(end)
    return RecordDamage(first, end, reason, neighbours.after(first), neighbours.before(end))


def _reason(view: np.ndarray, first: int, end: int) -> str:
    """Say what is wrong with the bytes at `first`, where a record should begin."""
    room = len(view) - first
    if room < SIZE_MIN:
        return f"the block ends {room} bytes into a record"
    head, possible = read_heads(view, np.array([first]), len(view))
    size, subject_size = int(head.sizes[0]), int(head.subject_sizes[0])
    if not view[first:end].any():
        return f"{end - first} zero bytes where a record should be"
    if not SIZE_MIN <= size <= SIZE_MAX:
        return f"the record declares {size} bytes, possible are {SIZE_MIN} to {SIZE_MAX}"
    if size > room:
        return f"the record declares {size} bytes, the block has {room} left"
    if not possible[0]:
        return f"subject ({subject_size} bytes) and headers do not fit into a record of {size} bytes"
    if not headers_end_well(view, head)[0]:
        return f"the headers ({int(head.header_sizes[0])} bytes) of the record do not end where their size says"
    return f"checksum mismatch in the record of {size} bytes that claims sequence {int(head.sequences[0])}"
