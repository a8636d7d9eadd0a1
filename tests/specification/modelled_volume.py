"""One volume in the model of sessions: entries, segments, what reading them says, what fsync and power loss make of
them.

What was written is D on the disk, W in the page cache, or G: in the page cache but clean after a failed fsync, so that
a later fsync "succeeds" and does not write it. B is a record that is torn or damaged.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from entries import INDEX, PARENT, TERM

# --- what stands in a volume


class Rec(NamedTuple):
    kind: str  # E entry, V vote, S seal, B bad
    what: int  # entry; term; number of the next segment; 0
    who: int  # vote: the candidate
    at: str  # D, W, G


class Slot(NamedTuple):
    seen: tuple[int, int]  # (generation, entry) as it is read; (0, 0) never written, (-1, 0) torn
    disk: tuple[int, int]  # as it is on the disk
    at: str


class Segment(NamedTuple):
    number: int
    name: bool  # durable
    head: str  # D, W, G, or B: not readable
    slots: tuple[Slot, Slot]
    records: tuple[Rec, ...]


NEVER_WRITTEN = Slot((0, 0), (0, 0), "D")


# --- reading


class Read(NamedTuple):
    """What the files say."""

    tip: int
    commit: tuple[int, int]
    bad: int  # index; 0: none
    followed: bool
    term: int
    is_clean: bool  # the newest segment may be appended to, as far as it can be read
    is_proven: bool
    is_sealed: bool
    slots_whole: bool


def best_record(segments: tuple[Segment, ...]) -> tuple[int, int]:
    return max((slot.seen for one in segments for slot in one.slots if one.head != "B"), default=(0, 0))


def read(segments: tuple[Segment, ...]) -> Read:
    """Return what whoever reads all files finds."""
    entries: dict[int, int] = {}
    pending, term = False, 0
    for segment in segments:
        pending = pending or segment.head == "B"
        for record in segment.records:
            if record.kind == "B":
                pending = True
            elif record.kind == "V":
                term = max(term, record.what)
            elif record.kind == "E":
                pending = False
                _take(entries, record.what)
    tip = 0
    while PARENT[entries.get(INDEX[tip] + 1, 0)] == tip and INDEX[tip] + 1 in entries:
        tip = entries[INDEX[tip] + 1]
    followed = any(index > INDEX[tip] for index in entries)
    commit, newest = best_record(segments), segments[-1]
    return Read(
        tip=tip,
        commit=commit,
        bad=INDEX[tip] + 1 if followed or pending else 0,
        followed=followed,
        term=max(term, TERM[tip], TERM[commit[1]]),
        is_clean=newest.head != "B" and not (newest.records and newest.records[-1].kind == "B"),
        is_proven=len(segments) == 1 or any(one == ("S", newest.number, 0, one.at) for one in segments[-2].records),
        is_sealed=any(record.kind == "S" for record in newest.records),
        slots_whole=all(slot.seen[0] >= 0 for slot in newest.slots),
    )


def _take(entries: dict[int, int], entry: int) -> None:
    """An entry replaces those at and after its index; a second copy of one replaces nothing."""
    index = INDEX[entry]
    if entries.get(index) == entry:
        return
    goes_on = PARENT[entries.get(index + 1, 0)] == entry
    for later in [one for one in entries if one > index]:
        if not goes_on:
            del entries[later]
    entries[index] = entry


def term_of(record: Rec) -> int:
    return record.what if record.kind == "V" else TERM[record.what] if record.kind == "E" else 0


# --- fsync and power loss


def fsynced(segment: Segment, succeeds: bool) -> Segment:
    """What was dirty is durable; after a failure it is clean and not durable."""
    to = "D" if succeeds else "G"
    slots = tuple(
        Slot(one.seen, one.seen if succeeds else one.disk, to) if one.at == "W" else one for one in segment.slots
    )
    return segment._replace(
        head=to if segment.head == "W" else segment.head,
        slots=(slots[0], slots[1]),
        records=tuple(one._replace(at=to) if one.at == "W" else one for one in segment.records),
    )


def fates(segment: Segment) -> Iterator[Segment | None]:
    """What a power loss may leave of a segment. A seal, and what is before it, decides nothing: it is kept or torn."""
    if not segment.name:
        yield None  # the whole file may be gone
    heads = {"D": ["D"], "B": ["B"], "W": ["D", "B"], "G": ["B"]}[segment.head]
    slots = [_slot_fates(one) for one in segment.slots]
    records = [_record_fates(one) for one in segment.records]
    found = set()
    for head, one, two, *kept in itertools.product(heads, *slots, *records):
        whole = tuple(record for record in kept if record is not None)
        # Commit records behind a header that cannot be read are not looked for.
        pair = (one, two) if head != "B" else (NEVER_WRITTEN, NEVER_WRITTEN)
        found.add(Segment(segment.number, True, head, pair, whole))  # type: ignore[arg-type]
    yield from sorted(found)


def _slot_fates(slot: Slot) -> list[Slot]:
    if slot.at == "D":
        return [slot]
    old, torn = Slot(slot.disk, slot.disk, "D"), Slot((-1, 0), (-1, 0), "D")
    return [old, torn] + ([Slot(slot.seen, slot.seen, "D")] if slot.at == "W" else [])


def _record_fates(record: Rec) -> list[Rec | None]:
    if record.at == "D":
        return [record]
    return [None, Rec("B", 0, 0, "D")] + ([record._replace(at="D")] if record.at == "W" else [])
