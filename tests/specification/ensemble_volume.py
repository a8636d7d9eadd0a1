"""One of three volumes in the model of the ensemble: its records, what reading them says, what faults make of them.

A record was written and is `D`urable on the disk, in the page cache only (`W`), or there and clean after a failed fsync
(`G`): everybody can read it, and a later fsync "succeeds" without writing it.

Segments are left out. That a holder rewrites a record into a new segment, and keeps the old one until the new one is
durable, shows as: what was `G` is `W` again, what was durable stays so.
"""

import itertools
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from entries import INDEX, PARENT, TERM


class Record(NamedTuple):
    kind: str  # E entry, V vote, B torn or damaged: neither kind nor content can be told
    what: int  # entry; term; 0
    who: int  # vote: the candidate
    at: str  # D, W, G


class Block(NamedTuple):
    name: str
    at: str


class Volume(NamedTuple):
    is_there: bool  # can be reached
    instance: int  # another one after it was made blank
    standing: str  # member; blank or retired: neither votes nor counts until it was caught up and verified
    holder: int  # process that has its lock; -1: none
    records: tuple[Record, ...]
    commit: int  # entry that its commit record names as it is read; 0: none was written; -1: it cannot be read
    commit_on_disk: int
    named: tuple[int, ...]  # volumes on which that entry was fsynced when the commit record was written, as it is read
    named_on_disk: tuple[int, ...]
    blocks: tuple[Block, ...]
    images: tuple["Image", ...]  # what it was after earlier fsyncs, oldest first, for the fault that puts one back
    is_fork: bool = False  # it is of a copy of the store that was written on by itself; nobody is told


class Image(NamedTuple):
    records: tuple[Record, ...]
    commit: int
    named: tuple[int, ...]
    blocks: tuple[Block, ...]


class Found(NamedTuple):
    """What the records of one volume say."""

    entries: tuple[int, ...]  # entry at index i + 1; 0 where no whole one stands
    bad: int  # index of the first that is missing, torn or damaged; 0: none
    term: int  # highest that it speaks of
    candidates: frozenset[int]  # who were voted for in it


BAD = Record("B", 0, 0, "D")


# --- reading


@cache
def read(records: tuple[Record, ...]) -> Found:
    entries: list[int] = []
    pending, term, candidates = False, 0, set()
    for record in records:
        if record.kind == "B":
            pending = True
            continue
        spoken_of = record.what if record.kind == "V" else TERM[record.what]
        if spoken_of > term:
            term, candidates = spoken_of, set()
        if record.kind == "E":
            pending = False
            _take(entries, record.what)
        elif spoken_of == term:
            candidates.add(record.who)
    missing = entries.index(0) + 1 if 0 in entries else 0
    bad = missing or (len(entries) + 1 if pending else 0)
    return Found(tuple(entries), bad, term, frozenset(candidates))


def _take(entries: list[int], entry: int) -> None:
    """An entry replaces those at and after its index; a copy of one that stands there, or is missing, replaces none."""
    index = INDEX[entry]
    if index <= len(entries):
        there, after = entries[index - 1], entries[index] if index < len(entries) else 0
        if there == entry:
            return
        if there == 0 and (after == 0 or PARENT[after] == entry):
            entries[index - 1] = entry
            return
    del entries[index - 1 :]
    entries += [0] * (index - 1 - len(entries))
    if index > 1 and entries[-1] != PARENT[entry]:
        entries[-1] = 0
    entries.append(entry)


def durable_log(volume: Volume) -> Found:
    """Return what could be read of the volume if the power went off and everything that is not durable was torn."""
    return read(tuple(one if one.at == "D" else BAD for one in volume.records))


# --- fsync and power loss


def fsynced(volume: Volume, image_count: int) -> Volume:
    """What was dirty is durable, the commit record too; what was durable before is one of the last images."""
    records = tuple(one._replace(at="D") if one.at == "W" else one for one in volume.records)
    blocks = tuple(Block(one.name, "D") if one.at == "W" else one for one in volume.blocks)
    images = volume.images
    if image_count and records != volume.records:
        image = Image(
            tuple(one for one in volume.records if one.at == "D"),
            volume.commit_on_disk,
            volume.named_on_disk,
            tuple(one for one in volume.blocks if one.at == "D"),
        )
        images = (*images, image)[-image_count:]
    volume = volume._replace(commit_on_disk=volume.commit, named_on_disk=volume.named)
    return volume._replace(records=records, blocks=blocks, images=images)


def failed_fsync(volume: Volume) -> Volume:
    """What was dirty is clean, and not durable. Whether the commit record is, is open until the power goes."""
    records = tuple(one._replace(at="G") if one.at == "W" else one for one in volume.records)
    blocks = tuple(Block(one.name, "G") if one.at == "W" else one for one in volume.blocks)
    return volume._replace(records=records, blocks=blocks)


@cache
def fates(volume: Volume, two_slots: bool) -> tuple[tuple[str, str, Volume], ...]:
    """What a power loss may leave: each record that is not durable was written, or not, or in part.

    Records before one that was written are unreadable if they were not; behind the last one there may be a torn one.
    Each fate is told: what became of the records, what of the commit record, and the volume.
    """
    found = []
    blocks = tuple(one for one in volume.blocks if one.at == "D")
    for told, records in _record_fates(volume.records):
        for how, commit, named in _commit_fates(volume, two_slots):
            left = recorded(volume, commit, named)._replace(records=records, blocks=blocks, holder=-1)
            found.append((told, how, left))
    return tuple(found)


def _record_fates(records: tuple[Record, ...]) -> Iterator[tuple[str, tuple[Record, ...]]]:
    open_ones = [at for at, one in enumerate(records) if one.at != "D"]
    choices = [(True, False) if records[at].at == "W" else (False,) for at in open_ones]
    for kept in itertools.product(*choices):
        lost = {at for at, is_kept in zip(open_ones, kept, strict=True) if not is_kept}
        whole = [at for at in range(len(records)) if at not in lost]
        end = whole[-1] + 1 if whole else 0
        left = tuple(BAD if at in lost else records[at]._replace(at="D") for at in range(end))
        told = "".join("k" if is_kept else "l" for is_kept in kept)  # kept, lost
        yield told, left
        if end < len(records):
            yield f"{told} torn", (*left, BAD)


def _commit_fates(volume: Volume, two_slots: bool) -> list[tuple[str, int, tuple[int, ...]]]:
    if volume.commit == volume.commit_on_disk:
        return [("", volume.commit, volume.named)]
    old = ("old record", volume.commit_on_disk, volume.named_on_disk)
    new = ("new record", volume.commit, volume.named)
    return [old, new] if two_slots else [old, new, ("torn record", -1, ())]


def recorded(volume: Volume, commit: int, named: tuple[int, ...] = ()) -> Volume:
    """Return the volume with this commit record, durably."""
    return volume._replace(commit=commit, commit_on_disk=commit, named=named, named_on_disk=named)
