"""Metadata log of one volume in an object store: numbered records, each created once by who has read all before it.

    meta/<instance, 32 hex>-<number, 16 hex>.rec        docs/formats/object-log.md: a vote, or entries, appended at once
    meta/<instance>-<number>-<id, 32 hex>.snap          docs/formats/snapshot.md: the state after record <number>
    meta/<instance>-<number>-<id>.base                  the same, named by that record: it takes the place of what was

Who appends has read up to record n and creates n + 1, which succeeds once. So a volume is a voter that is asked and
answers in one step, whoever else writes at the same time: no locks. What it says is durable as soon as it can be read.

**The witness.** Records are removed when two snapshots are newer. A writer that slept meanwhile could create the number
again that was removed, and believe it. So what was created, or not found, counts only if the snapshot that the writer
goes by, its witness, is there *afterwards*: the names of snapshots are never used again, and they are removed before
the records that they make superfluous (`compact`).

**Repeated entries.** A record bears what the records before it say as well, back to the newest snapshot and up to
`RECENT_SIZE_MAX`, and its number says from which record on. So a reader fetches the newest record, and those before it
only as far as it does not reach: opening costs a listing, a snapshot and a record, however many commands there are.

**Tags.** Records that were listed are those of the log if the witness is read after the listing; and what is read of
them is what was listed if it bears the same tag. So a log is read in two rounds: the listing, then snapshot and records
at once. Where a store's tags differ, or are not there, the witness is looked at once more after the records. A record
that was read before and is listed with its tag is not fetched again; the snapshot always is, as the witness.
"""

import errno
import logging
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from storage_core.deadlines import at_once
from storage_core.errors import (
    CorruptionError,
    StorageError,
    SupersededError,
    TruncatedRecordError,
    UnsupportedVersionError,
    VolumeAwayError,
)
from storage_core.file_kinds import LOG_SEGMENT, SNAPSHOT, FileKind
from storage_core.files import Files
from storage_core.os_errors import UnreachableError
from storage_core.raft import object_log_format, snapshot_format
from storage_core.raft.entry import START, CommitRecord, Entry, EntryId, Vote
from storage_core.raft.log_format import PAGE_SIZE, Record
from storage_core.raft.object_log_format import NO_ID, LogRecord
from storage_core.raft.snapshot_format import SnapshotBody, SnapshotHeader
from storage_core.store.volume.identity import VolumeIdentity
from storage_core.store.volume.log_contents import (
    NONE_FETCHED,
    Answer,
    CommitMark,
    Fetched,
    FirstDamage,
    LogContents,
    LogEnd,
    LogPosition,
    NewRecords,
    Recent,
    Tail,
    TailRead,
)

logger = logging.getLogger(__name__)
DIRECTORY = "meta"
RECENT_SIZE_MAX = 256 << 10  # bytes of payload that a record repeats; one request costs as much up to about there
READ_ATTEMPTS = 8  # of who meets records being removed
NOTHING = b"JSTRMNIL"  # content of the first witness: the log begins with record 1
Listing = Mapping[str, str]  # names in the directory of a log, and their tags
_NAME = re.compile(r"([0-9a-f]{32})-([0-9a-f]{16})(?:-([0-9a-f]{32}))?\.(rec|snap|base)")


class ObjectLog:
    """The metadata objects of one volume, as its register."""

    def __init__(self, files: Files, volume: Path, identity: VolumeIdentity) -> None:
        self._files, self._identity = files, identity
        self.directory = volume / DIRECTORY

    def is_of(self, directory: Path, identity: VolumeIdentity) -> bool:
        """Return whether this is the log of that instance of a volume."""
        return (self.directory, self._identity) == (directory, identity)

    def keep_open(self) -> "ObjectLog":
        return self

    def rest(self) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""

    # --- names

    def _names(self) -> "_Names":
        if self._identity.instance_id == NO_ID:
            raise VolumeAwayError(f"{self.directory}: the identity of the volume, which names its log, cannot be read")
        return _Names(self._files.list_tags(self.directory), self._identity.instance_id.hex())

    def _snapshot_name(self, number: int, snapshot_id: bytes, kind: str) -> str:
        return f"{self._identity.instance_id.hex()}-{number:016x}-{snapshot_id.hex()}.{kind}"

    def _record_path(self, number: int) -> Path:
        return self.directory / f"{self._identity.instance_id.hex()}-{number:016x}.rec"

    # --- reading

    def read(
        self, for_state: bool = False, listing: Listing | None = None, before: Fetched = NONE_FETCHED
    ) -> LogContents:
        """Return everything that counts: the newest whole snapshot, and the records after it.

        `listing`: what lay here a moment ago (`listing_of`): the log is read as it was then. `before`: records that an
        earlier reading has; those still listed with their tags are not fetched again. Raises CorruptionError if there
        is no log, UnsupportedVersionError, UnreachableError (an OSError).
        """
        names = _Names(listing, self._identity.instance_id.hex()) if listing is not None else None
        if names is not None and not names.snapshots:
            names = None  # it may have been made anew meanwhile
        for attempt in range(READ_ATTEMPTS):
            contents = self._read(names or self._names(), before, is_last=attempt == READ_ATTEMPTS - 1)
            names = None
            if contents is not None:
                return contents
        raise UnreachableError(errno.EHOSTUNREACH, "records were removed while they were read", str(self.directory))

    def _read(self, names: "_Names", before: Fetched, is_last: bool) -> LogContents | None:
        """Return the same, None if what is being read was removed meanwhile."""
        if not names.snapshots and names.records and not is_last:
            return None  # it was listed while others came and went: a listing need not be of one moment
        if not names.snapshots:
            hint = ", and there is that of a volume on disks: copying its files does not move a store"
            why = f"{self.directory} holds no snapshot: the metadata log is missing"
            raise CorruptionError(f"{why}{hint if names.has_segments else ''}")
        contents = LogContents()
        witness = None
        newest = names.snapshots[0]
        kinds = {self.directory / newest: SNAPSHOT}
        kinds |= {self._record_path(number): LOG_SEGMENT for number in names.records[-1:] if number > _number(newest)}
        kept = {path: answer for path, answer in before.items() if names.agree_with({path: answer})}
        answers, _ = self._fetch({path: kind for path, kind in kinds.items() if path not in kept})
        fetched = {**kept, **answers}
        try:
            for name in names.snapshots:
                if self._begin(name, contents, fetched):
                    witness = name
                    break
            if witness is None:
                raise CorruptionError(f"{self.directory}: no snapshot is whole: {'; '.join(contents.damage)}")
            first = _number(witness) + 1
            numbers = [number for number in names.records if number >= first]
            if numbers != list(range(first, first + len(numbers))) and not is_last:
                return None  # or they were listed while they came
            records = self._needed(names, first, fetched)
            fold = _Fold(contents)
            for record in records:
                if isinstance(record, str):
                    fold.hurt(record)
                else:
                    self._take(record, fold)
        except FileNotFoundError:
            return None
        last = numbers[-1] if numbers else first - 1
        recent = _recent(records[-1]) if records else Recent(first, contents.tip, ())
        position = LogPosition(last, _size(contents.entries), witness, recent)
        contents.newest = self._record_path(position.segment)
        fold.end(position)
        if not contents.damage:  # or it may have come about on the way
            contents.records = {
                path: answer
                for path, answer in fetched.items()
                if path.suffix == ".rec" and not isinstance(answer, BaseException)
            }
        return contents if names.agree_with(fetched) or self._is_there(witness) else None

    def _needed(self, names: "_Names", first: int, fetched: dict[Path, Answer]) -> list[LogRecord | str]:
        """Return the records that say all that those from number `first` on say, ascending, and add them to `fetched`.

        A record that is needed, and is missing or damaged, is the reason for that. Raises OSError.
        """
        listed = set(names.records)
        needed: list[LogRecord | str] = []
        number = names.records[-1] if names.records else 0
        while number >= first:
            path, reaches = self._record_path(number), number
            if number not in listed:
                needed.append(f"{path} is missing")
            else:
                if path not in fetched:
                    fetched[path] = self._content(path, LOG_SEGMENT)
                try:
                    needed.append(record := self._record(number, fetched))
                    reaches = record.first_number
                except UnsupportedVersionError:
                    raise
                except (CorruptionError, TruncatedRecordError) as error:
                    needed.append(f"{path}: {error}")
            number = reaches - 1
        return needed[::-1]

    def _fetch(
        self, kinds: Mapping[Path, FileKind], looks: Sequence[Callable[[], bool]] = ()
    ) -> tuple[Fetched, list[bool | BaseException]]:
        """Return what these objects hold, and what the looks come to, all at once."""
        reads = [partial(self._content, path, kind) for path, kind in kinds.items()]
        outcomes: list[Any] = at_once(self._files, self.directory, [*looks, *reads])
        return dict(zip(kinds, outcomes[len(looks) :], strict=True)), outcomes[: len(looks)]

    def _content(self, path: Path, kind: FileKind) -> tuple[bytes, str]:
        """Return what an object holds, and its tag."""
        with closing(self._files.open(path)) as file:
            return kind.read(file), file.tag

    def _fetched(self, path: Path, kind: FileKind, fetched: Fetched) -> bytes:
        """Return what an object holds, as it was fetched, or else is now."""
        answer = fetched.get(path)
        if isinstance(answer, BaseException):
            raise answer
        return (answer if answer is not None else self._content(path, kind))[0]

    def _take(self, record: LogRecord, fold: "_Fold") -> None:
        """Add a record to what was read; without the snapshot that it names it breaks the chain."""
        try:
            start = self._base(record) if record.snapshot_id != NO_ID else None
        except UnsupportedVersionError:
            raise
        except (CorruptionError, TruncatedRecordError) as error:
            fold.hurt(f"{self._record_path(record.number)}: {error}")
        else:
            fold.take(record, start)

    def _record(self, number: int, fetched: Fetched = NONE_FETCHED) -> LogRecord:
        path = self._record_path(number)
        data = self._fetched(path, LOG_SEGMENT, fetched)
        record = object_log_format.decode(data, path)
        ours = (record.store_id, record.volume_id, record.number)
        if ours != (self._identity.store_id, self._identity.volume_id, number):
            raise CorruptionError(f"{path} belongs to another store or volume, or was renamed from {record.number}")
        return record

    def _begin(self, name: str, contents: LogContents, fetched: Fetched = NONE_FETCHED) -> bool:
        """Read a snapshot into the contents; return whether it is whole."""
        try:
            snapshot = self._snapshot(self.directory / name, fetched)
        except UnsupportedVersionError:
            raise
        except CorruptionError as error:
            contents.damage.append(f"{self.directory / name}: {error}")
            return False
        if snapshot is not None:
            contents.snapshot, contents.snapshot_body = snapshot
            contents.votes.append(contents.snapshot_body.vote)
            contents.commit = _commit_of(contents.snapshot)
        return True

    def _base(self, record: LogRecord) -> tuple[SnapshotHeader, SnapshotBody]:
        path = self.directory / self._snapshot_name(record.number, record.snapshot_id, "base")
        try:
            snapshot = self._snapshot(path)
        except FileNotFoundError as error:
            raise CorruptionError(f"{path} is missing") from error
        if snapshot is None or snapshot[0].entry != record.base:
            raise CorruptionError(f"{path} is not what record {record.number} goes by")
        return snapshot

    def _snapshot(self, path: Path, fetched: Fetched = NONE_FETCHED) -> tuple[SnapshotHeader, SnapshotBody] | None:
        """Return a snapshot; None for the one that says that there was nothing before record 1."""
        data = self._fetched(path, SNAPSHOT, fetched)
        if data == NOTHING:
            return None
        header = snapshot_format.decode(data[:PAGE_SIZE])
        if (header.store_id, header.volume_id) != (self._identity.store_id, self._identity.volume_id):
            raise CorruptionError("belongs to another store or volume")
        payload = data[PAGE_SIZE:]
        if snapshot_format.payload_digest(payload) != header.payload_digest:
            raise CorruptionError(f"{len(payload)} bytes of payload do not match their digest")
        return header, snapshot_format.decode_body(payload)

    def read_snapshot(self) -> LogContents | None:
        """Return what the newest whole snapshot says, whatever the records are like; None if there is none."""
        contents = LogContents()
        for name in self._names().snapshots:
            if self._begin(name, contents):
                break
        return contents if contents.snapshot is not None else None

    def read_entries(self, after: int) -> LogContents:
        """Return all entries above index `after`, and some below."""
        return self.read()

    def read_mark(self, before: CommitMark | None = None, position: LogPosition | None = None) -> CommitMark:
        """Return what the newest record says: what was committed before it, and where the log ends.

        `before`: what was said the last time. A record never changes, so one that is still the newest is not read.
        `position`: up to where the log is known; what stands behind it comes along, if it is known so easily.
        """
        for attempt in range(READ_ATTEMPTS):
            names = self._names()
            # A record without any snapshot is what a writer put that did not know yet that the bucket was emptied.
            if not (names.records and names.snapshots):
                if (names.records or names.snapshots) and attempt < READ_ATTEMPTS - 1:
                    continue  # or they were listed while others came and went
                missing = "snapshot" if names.records else "record"
                raise CorruptionError(f"{self.directory} holds no {missing}: the metadata log is missing")
            path = self._record_path(names.records[-1])
            if before is not None and before.path == path:
                return before
            try:
                behind = self._behind(names, position) if position is not None else None
                record = behind.newest if behind is not None else None
                if record is None:
                    record = self._record(names.records[-1])
            except FileNotFoundError:
                continue
            except TruncatedRecordError as error:
                raise CorruptionError(str(error)) from error
            return CommitMark(record.commit, True, LogEnd(record.tip, record.vote.term), path, behind)
        raise UnreachableError(errno.EHOSTUNREACH, "records were removed while they were read", str(self.directory))

    def read_tail(self, position: LogPosition) -> Tail | None:
        """Return the records after `position`; None if a full reading is called for."""
        try:
            behind = self._behind(self._names(), position)
        except FileNotFoundError:
            return None
        return behind.tail if behind is not None else None

    def look(self, position: LogPosition, commit: CommitRecord | None = None) -> TailRead | None:
        """Return what has changed since the log ended at `position`; None if a full reading is called for.

        `commit`: what is known to be committed, where nobody has written since.
        """
        tail = self.read_tail(position)
        if tail is None or commit is None or tail.records:
            return None
        return TailRead(commit, tail.records, tail.position)

    def ends_at(self, position: LogPosition) -> bool:
        """Return whether nothing was written after `position`, by one listing."""
        names = self._names()
        return position.witness in names.snapshots and names.records[-1:] == [position.segment]

    def _behind(self, names: "_Names", position: LogPosition) -> NewRecords | None:
        if position.witness not in names.snapshots or position.segment not in names.records:
            return None  # it was cut, or is as it was before
        numbers = [number for number in names.records if number > position.segment]
        if numbers != list(range(position.segment + 1, position.segment + 1 + len(numbers))):
            return None
        # Before the record, where calls are made one after another: its tag says that this is enough.
        looks = [partial(self._is_there, position.witness)]
        paths = {self._record_path(number): LOG_SEGMENT for number in numbers[-1:]}
        answers, (is_there,) = self._fetch(paths, looks)
        if isinstance(is_there, BaseException):
            raise is_there
        fetched = dict(answers)
        records = [
            record for record in self._needed(names, position.segment + 1, fetched) if isinstance(record, LogRecord)
        ]
        if sum(record.number - record.first_number + 1 for record in records) < len(numbers):
            return None
        if any(record.snapshot_id != NO_ID for record in records):
            return None
        if not is_there or not (names.agree_with(fetched) or self._is_there(position.witness)):
            return None
        if not records:
            return NewRecords(position, Tail([], position, True), None)
        entries: list[Entry] = []
        for record in records:
            entries = [entry for entry in entries if entry.index <= record.base.index] + list(record.entries)
        newest = records[-1]
        known_index = position.recent.tip.index if position.recent is not None else 0
        size = position.offset_bytes + _size([entry for entry in entries if entry.index > known_index])
        end = LogPosition(newest.number, size, position.witness, _recent(newest))
        votes = [record.vote for record in records]
        return NewRecords(position, Tail([*votes, *entries], end, True), newest)

    def _is_there(self, witness: str) -> bool:
        try:
            self._files.file_size(self.directory / witness)
        except FileNotFoundError:
            return False
        return True

    # --- writing

    def begin(
        self,
        records: Sequence[Record],
        snapshot: tuple[EntryId, bytes, SnapshotBody] | None,
        commit: CommitRecord | None = None,
    ) -> LogPosition:
        """Write the beginning of a log where there is none: its first witness and record 1. Return where it goes on.

        `snapshot`: last entry, history and content of the one that it begins with.
        """
        content = NOTHING if snapshot is None else self._encoded(*snapshot)
        position = LogPosition(0, 0, self._put_snapshot(0, content, "snap"))
        base = snapshot[0] if snapshot is not None else START
        return self._put(position, base, records, commit)

    def append(
        self,
        position: LogPosition,
        records: Sequence[Record],
        after: EntryId = START,
        commit: CommitRecord | None = None,
    ) -> LogPosition:
        """Create the record that comes after `position`; return the position after it.

        `after`: the last entry of the log; `commit`: what is known to be committed. Raises SupersededError if somebody
        else has created that record, UnreachableError if nobody knows what became of it.
        """
        return self._put(position, after, records, commit)

    def rewrite(
        self,
        position: LogPosition,
        base: EntryId,
        records: Sequence[Record],
        commit: CommitRecord | None,
        snapshot: tuple[bytes, SnapshotBody] | None = None,
        drops_record: bool = False,
    ) -> LogPosition:
        """Go on after `base` with these records, whatever stands behind it, as `append` does.

        `snapshot`: history and content of the one that takes the place of everything up to `base`.
        """
        if snapshot is None:
            return self._put(position, base, records, commit)
        name = self._put_snapshot(position.segment + 1, self._encoded(base, *snapshot), "base")
        return self._put(position, base, records, commit, _id_of(name))

    def write_commit_record(self, position: LogPosition, record: CommitRecord) -> None:
        """Do nothing: the next record carries the commit record. Until then readers count the volumes that have the
        entry.
        """

    def take_snapshot(
        self, position: LogPosition, tip: EntryId, history: bytes, body: SnapshotBody, commit: CommitRecord | None
    ) -> LogPosition:
        """Put a snapshot of the state after entry `tip`, with which the log ends at `position`, beside it.

        It is the new witness if the one before is still there. Return where the log goes on.
        """
        witness = self._put_snapshot(position.segment, self._encoded(tip, history, body), "snap")
        self._check(position.witness)
        return LogPosition(position.segment, 0, witness, Recent(position.segment + 1, tip, ()))

    def files(self) -> list[Path]:
        """Return what is cached of the log on this machine: nothing."""
        return []

    def unfinished_snapshots(self) -> set[str]:
        """An object is there as a whole or not at all."""
        return set()

    def damaged_snapshots(self, passed_over: Collection[str]) -> list[tuple[str, str]]:
        """Return (object, reason) for snapshots that are not whole."""
        contents = LogContents()
        for name in self._names().snapshots:
            try:
                self._begin(name, contents)
            except FileNotFoundError:
                continue
        damage = [(where, reason) for where, _, reason in (text.partition(": ") for text in contents.damage)]
        return [(where, reason) for where, reason in damage if where not in passed_over]

    def compact(self) -> None:
        """Remove snapshots but those of the two newest numbers, and then the records before the older of these.

        A snapshot that comes late, from a writer that slept, may appear below while others are removed: they are gone
        for certain once a listing shows none.
        """
        names = self._names()
        numbers = sorted({_number(name) for name in names.snapshots})
        if len(numbers) < 2:
            return
        keep_from = numbers[-2]
        while below := [name for name in names.snapshots if _number(name) < keep_from]:
            for name in below:
                self._files.unlink(self.directory / name)
            names = self._names()
        for number in names.records:
            if number <= keep_from:
                self._files.unlink(self._record_path(number))
        for name in names.bases:
            if _number(name) <= keep_from:
                self._files.unlink(self.directory / name)

    def _put(
        self,
        position: LogPosition,
        base: EntryId,
        records: Sequence[Record],
        commit: CommitRecord | None,
        snapshot_id: bytes = NO_ID,
    ) -> LogPosition:
        number = position.segment + 1
        entries = tuple(record for record in records if isinstance(record, Entry))
        votes = [record for record in records if isinstance(record, Vote)]
        vote = votes[-1] if votes else Vote(entries[-1].term, NO_ID)
        recent = _repeated(position, base, entries) if snapshot_id == NO_ID else Recent(number, base, entries)
        identity = self._identity
        record = LogRecord(
            identity.store_id, identity.volume_id, identity.instance_id, number, new_id(), vote, recent.base,
            snapshot_id, commit, recent.entries, recent.first_number,
        )  # fmt: skip
        is_taken: FileExistsError | None = None
        try:
            self._create(self._record_path(number), record.encode())
        except FileExistsError as error:
            is_taken = error
        try:
            if is_taken is not None:
                self._check_own(record, is_taken)
            self._check(position.witness)
        except PermissionError as error:  # to look: it may be stored
            raise UnreachableError(error.errno, error.strerror, error.filename) from error
        before = position.offset_bytes if snapshot_id == NO_ID else 0
        return LogPosition(number, before + _size(entries), position.witness, _recent(record))

    def _create(self, path: Path, data: bytes) -> None:
        with closing(self._files.create(path)) as file:
            file.write_at(0, data)
            file.sync()

    def _check_own(self, record: LogRecord, error: OSError) -> None:
        """Return if the record that is there is this one, which was put more than once on the way."""
        try:
            stored = self._record(record.number)
        except FileNotFoundError:
            # Refused without a reason that can be seen: two were being created at once, or it is removed already.
            path = str(self._record_path(record.number))
            raise UnreachableError(errno.EHOSTUNREACH, "it was refused, and is not there", path) from error
        except UnsupportedVersionError:
            raise
        except StorageError:
            stored = None
        if stored is None or stored.put_id != record.put_id:
            raise SupersededError(f"{self._record_path(record.number)} was written by another process") from error

    def _check(self, witness: str) -> None:
        """Raise UnreachableError if the log was compacted meanwhile, so that the last call proves nothing."""
        if not self._is_there(witness):
            path = str(self.directory / witness)
            raise UnreachableError(errno.EHOSTUNREACH, "the log has gone on, and its beginning was removed", path)

    def _put_snapshot(self, number: int, content: bytes, kind: str) -> str:
        name = self._snapshot_name(number, new_id(), kind)
        try:
            self._create(self.directory / name, content)  # once: a name that went must not come back
        except FileExistsError:  # carried out twice on the way: nobody else knows the name
            return name
        return name

    def _encoded(self, tip: EntryId, history: bytes, body: SnapshotBody) -> bytes:
        payload = snapshot_format.encode_body(body)
        identity = self._identity
        header = SnapshotHeader(
            identity.store_id, identity.volume_id, identity.instance_id, *tip, history, len(payload),
            snapshot_format.payload_digest(payload),
        )  # fmt: skip
        return snapshot_format.encode(header) + payload


def listing_of(files: Files, volume: Path) -> Listing:
    """Return what lies in the directory of a volume's log. Raises OSError."""
    return files.list_tags(volume / DIRECTORY)


class _Fold:
    """Puts records, one after another, together to what the log says."""

    def __init__(self, contents: LogContents) -> None:
        self._contents = contents
        self._orphans: dict[int, Entry] = {}  # after a gap
        self._hurt = ""  # where the chain broke

    def take(self, record: LogRecord, start: tuple[SnapshotHeader, SnapshotBody] | None) -> None:
        contents = self._contents
        contents.votes.append(record.vote)
        if record.commit is not None and (contents.commit is None or record.commit.index > contents.commit.index):
            contents.commit = record.commit
        if start is not None:
            contents.snapshot, contents.snapshot_body = start
            contents.entries, self._hurt = [], ""
            self._orphans.clear()
        base, entries = record.base, record.entries
        begun = contents.snapshot.entry if contents.snapshot is not None else START
        if base.index < begun.index <= record.tip.index:
            # Written by somebody who did not know of the snapshot yet: what it covers leads to it.
            place = begun.index - base.index
            base, entries = entries[place - 1].id, entries[place:]
        if self._at(base.index) != base:
            self.hurt(f"record {record.number} goes on after entry {base.index}, which is not here")
            self._orphans.update((entry.index, entry) for entry in entries)
            return
        del contents.entries[base.index - begun.index :]
        contents.entries.extend(entries)
        self._hurt = ""  # who wrote it had read, or made good, what was lost before
        self._orphans.clear()

    def _at(self, index: int) -> EntryId | None:
        contents = self._contents
        begun = contents.snapshot.entry if contents.snapshot is not None else START
        place = index - begun.index
        if place == 0:
            return begun
        return contents.entries[place - 1].id if 0 < place <= len(contents.entries) else None

    def hurt(self, where: str) -> None:
        self._contents.damage.append(where)
        self._hurt = self._hurt or where

    def end(self, position: LogPosition) -> None:
        contents = self._contents
        contents.entries_by_index = {entry.index: entry for entry in contents.entries} | self._orphans
        contents.position = position
        if self._hurt:  # never a torn tail: an object is there as a whole, or not at all
            contents.bad = FirstDamage(contents.tip.index + 1, self._hurt, followed=True)
        else:
            contents.end = LogEnd(contents.tip, contents.votes[-1].term if contents.votes else 0)


class _Names:
    """What lies in the directory of a log of this instance of the volume: others began their own."""

    def __init__(self, listing: Listing, instance: str) -> None:
        self._listing = listing
        self.records: list[int] = []  # ascending
        self.snapshots: list[str] = []  # the newest first
        self.bases: list[str] = []
        self.has_segments = any(name.endswith(".log") for name in listing)  # of a log on disks (log.py)
        for name in listing:
            parsed = _NAME.fullmatch(name)
            if parsed is None or parsed[1] != instance:
                continue
            if parsed[4] == "rec" and parsed[3] is None:
                self.records.append(int(parsed[2], 16))
            elif parsed[3] is not None:
                (self.snapshots if parsed[4] == "snap" else self.bases).append(name)
        self.records.sort()
        self.snapshots.sort(reverse=True)

    def agree_with(self, fetched: Fetched) -> bool:
        """Return whether all that was fetched is what was listed, as its tags tell."""
        return all(
            not isinstance(answer, BaseException) and answer[1] != "" and answer[1] == self._listing.get(path.name)
            for path, answer in fetched.items()
        )


def _recent(record: LogRecord | str) -> Recent | None:
    """Return what the record after this one may repeat; nothing of a damaged one, or one that names a snapshot."""
    if isinstance(record, str) or record.snapshot_id != NO_ID:
        return None
    return Recent(record.first_number, record.base, record.entries)


def _repeated(position: LogPosition, base: EntryId, entries: tuple[Entry, ...]) -> Recent:
    """Return what the record after `position` bears: what the one there does, up to `base`, and new entries."""
    recent = position.recent
    kept = recent.up_to(base) if recent is not None else None
    if recent is None or kept is None or _size(kept) > RECENT_SIZE_MAX:
        return Recent(position.segment + 1, base, entries)
    return Recent(recent.first_number, recent.base, kept + entries)


def _size(entries: Sequence[Entry]) -> int:
    return sum(len(entry.payload) for entry in entries)


def new_id() -> bytes:
    """Return 16 random bytes: of one put, or of the name of a snapshot."""
    return os.urandom(16)


def _number(name: str) -> int:
    return int(name[33:49], 16)


def _id_of(name: str) -> bytes:
    return bytes.fromhex(name[50:82])


def _commit_of(snapshot: SnapshotHeader) -> CommitRecord:
    """Return what a snapshot says is committed: it is taken of nothing else."""
    return CommitRecord(snapshot.index, snapshot.term, snapshot.index, snapshot.chain)
