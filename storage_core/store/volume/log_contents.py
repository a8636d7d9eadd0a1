"""LogContents: what the metadata files of one volume say, put together without judgement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from storage_core.errors import (
    CorruptRecordError,
)
from storage_core.raft import log_format
from storage_core.raft.entry import START, CommitRecord, Entry, EntryId, Vote
from storage_core.raft.log_format import PAGE_SIZE, Record
from storage_core.raft.object_log_format import LogRecord
from storage_core.raft.snapshot_format import SnapshotBody, SnapshotHeader

# In an object store: what objects hold with its tag, or why it cannot be read.
Answer = tuple[bytes, str] | BaseException
Fetched = Mapping[Path, Answer]
NONE_FETCHED: Fetched = MappingProxyType({})


class Recent(NamedTuple):
    """The entries that the newest record of a log in an object store bears: its own, and those of records before it."""

    first_number: int  # of the first of these records
    base: EntryId  # the last entry before them
    entries: tuple[Entry, ...]

    @property
    def tip(self) -> EntryId:
        return self.entries[-1].id if self.entries else self.base

    def up_to(self, tip: EntryId) -> tuple[Entry, ...] | None:
        """Return the entries up to `tip`; None if it is not among them."""
        count = tip.index - self.base.index
        if not 0 <= count <= len(self.entries):
            return None
        return self.entries[:count] if tip == (self.entries[count - 1].id if count else self.base) else None


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Where the next batch goes."""

    segment: int  # 0: there is none yet; in an object store the number of the last record
    offset_bytes: int
    witness: str = ""  # in an object store: the snapshot that has to be there still (object_log.py)
    recent: Recent | None = field(default=None, compare=False, repr=False)  # there too: what the next record repeats


@dataclass(frozen=True, slots=True)
class FirstDamage:
    """The first log position that is missing, torn or damaged."""

    index: int
    where: str  # file and offset_bytes, for people
    followed: bool  # whole entries of higher positions stand after it


@dataclass(slots=True)
class Tail:
    """Records after a position of the newest segment."""

    records: list[Record]
    position: LogPosition  # after the last of them
    is_clean: bool  # nothing torn, damaged or unfinished stands there


@dataclass(frozen=True, slots=True)
class TailRead:
    """What stands at the end of a log that is whole, and goes on from where it was known to end."""

    commit: CommitRecord
    records: Sequence[Record]  # after the position that was known
    position: LogPosition  # after the last of them


class LogEnd(NamedTuple):
    """Where a log ends that everybody sees as it is: in an object store."""

    tip: EntryId
    term: int  # in which its last record was written: the entries before it are of who led then, or brought along


class CommitMark(NamedTuple):
    """What a log says of what is committed."""

    commit: CommitRecord | None
    is_whole: bool  # every place was readable where that may stand
    end: LogEnd | None = None  # None: what is visible may not be durable, and counts for nothing
    path: Path | None = None  # in an object store: of the record that says so, which never changes
    behind: "NewRecords | None" = None  # in an object store: what came along


@dataclass(frozen=True, slots=True)
class NewRecords:
    """What stands in a log behind a position that was known."""

    start: LogPosition
    tail: Tail
    newest: LogRecord | None  # None: nothing does


@dataclass(slots=True)
class LogContents:
    """Everything that one volume's files say, without judgement."""

    snapshot: SnapshotHeader | None = None
    snapshot_body: SnapshotBody | None = None
    entries: list[Entry] = field(default_factory=list)  # after the snapshot, on one chain, without a gap
    votes: list[Vote] = field(default_factory=list)
    commit: CommitRecord | None = None  # the best readable one
    bad: FirstDamage | None = None
    position: LogPosition = LogPosition(0, 0)
    tail_is_clean: bool = True  # a batch may be appended at `position`
    slots_are_whole: bool = True  # of the newest segment: its commit records are readable or were never written
    marks_are_lost: bool = False  # both are damaged: a power loss hurts one of them at most
    entries_by_index: dict[int, Entry] = field(default_factory=dict)  # all whole entries, on a chain or not
    damage: list[str] = field(default_factory=list)  # for people: files that are not whole
    end: LogEnd | None = None  # in an object store: where it ends, and in which term
    newest: Path | None = None  # in an object store: the record that it ends with
    records: Mapping[Path, tuple[bytes, str]] = field(default_factory=dict)  # there too: as they were fetched

    @property
    def tip(self) -> EntryId:
        """Return the last entry on the chain."""
        if self.entries:
            return self.entries[-1].id
        return self.snapshot.entry if self.snapshot is not None else START

    @property
    def term(self) -> int:
        """Return the highest term that any record speaks of, also one that no chain leads to."""
        entries = max((entry.term for entry in self.entries_by_index.values()), default=0)
        votes = max((vote.term for vote in self.votes), default=0)
        return max(self.tip.term, entries, votes, self.commit.term if self.commit else 0)


class CollectedEntries:
    """Entries by index, in the order of the files: an entry replaces those at and after its index.

    A second copy of the same entry replaces nothing: it may be all that a killed process rewrote.
    """

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.last = 0  # Invariant: the highest index of the entries, 0 for none
        self.pending: str | None = None  # where a bad record stands after which no entry has come
        self.last_bad = ""
        self.tail: list[str] = []  # where bad records stand after which nothing has come in their segment

    def take_trailing_damage(self) -> list[str]:
        """Return the bad records of the tail, which turned out to be none."""
        missed, self.tail = self.tail, []
        return missed

    def take_trailing_damage_before(self, base_index: int) -> list[str]:
        """Return the same where the log went on after `base_index`; a torn tail that was set aside is no damage."""
        missed = self.take_trailing_damage()
        return missed if base_index > max(self.entries, default=0) else []

    def begin(self, base_index: int, base_chain: bytes) -> None:
        """Forget a log that does not lead to where a durable segment begins: a snapshot took its place."""
        base = self.entries.get(base_index)
        if base is not None and base.chain != base_chain:
            self.entries.clear()
            self.last, self.pending = 0, None

    def add(self, entry: Entry) -> None:
        self.pending = None
        if self.entries.get(entry.index) == entry:
            return
        follower = self.entries.get(entry.index + 1)
        if entry.index < self.last and (follower is None or not follower.follows(entry.chain)):
            for later in [index for index in self.entries if index > entry.index]:
                del self.entries[later]
        self.entries[entry.index] = entry
        self.last = max(self.entries) if entry.index < self.last else entry.index

    def mark_damaged(self, where: str) -> None:
        self.pending = self.last_bad = where


def link(collected: CollectedEntries, contents: LogContents) -> None:
    """Put the entries after the snapshot on one chain, and say where it breaks."""
    index, _, chain = contents.tip
    entries = contents.entries_by_index = collected.entries
    if index in entries and entries[index].chain != chain:
        # Or a process was killed while it put a snapshot in the place of entries that were never committed.
        contents.bad = FirstDamage(index, f"snapshot at index {index} is not of this log: the hash chains differ", True)
        return
    if entries and min(entries) > index + 1:
        where = f"the log begins at index {min(entries)} and the newest whole snapshot ends at {index}"
        contents.bad = FirstDamage(index + 1, f"{where}: entries are missing", followed=True)
        return
    while (index + 1) in entries and entries[index + 1].follows(chain):
        index += 1
        contents.entries.append(entries[index])
        chain = entries[index].chain
    followed = any(later > index for later in entries)
    if followed or collected.pending is not None:
        where = collected.pending or collected.last_bad or f"entry {index + 1}"
        contents.bad = FirstDamage(index + 1, where, followed)


def is_damaged_slot(page: bytes) -> bool:
    """Return whether a slot that is there as a whole holds neither a commit record nor nothing."""
    try:
        log_format.decode_commit_record(page)
    except CorruptRecordError:
        return len(page) == PAGE_SIZE
    return False


def best_commit_record(pages: Sequence[bytes]) -> tuple[CommitRecord | None, bool]:
    best: CommitRecord | None = None
    whole = True
    for page in pages:
        try:
            record = log_format.decode_commit_record(page)
        except CorruptRecordError:
            whole = False
            continue
        if record is not None and (best is None or record.generation > best.generation):
            best = record
    return best, whole
