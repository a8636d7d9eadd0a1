"""Metadata files of one volume: log segments with commit records, and snapshots.

This module reads and writes them. What the files say is log_contents.py; what it means (torn tail or damage, who may
vote) is decided in ensemble/decision.py and session.py.

    meta/<segment number, 16 hex>.log      docs/formats/log.md
    meta/<index, 16 hex>.snap              docs/formats/snapshot.md
"""

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from storage_core.deadlines import together
from storage_core.errors import (
    CorruptionError,
    CorruptRecordError,
    StorageError,
    TruncatedRecordError,
    UnsupportedVersionError,
)
from storage_core.file_kinds import LOG_SEGMENT
from storage_core.files import File, Files, Lasting, write_durably
from storage_core.os_errors import raise_if_of_process
from storage_core.raft import log_format, snapshot_format
from storage_core.raft.entry import START, CommitRecord, EntryId, Seal, Vote
from storage_core.raft.log_format import BATCHES_OFFSET, PAGE_SIZE, BadRecord, Record, SegmentHeader
from storage_core.raft.snapshot_format import SnapshotBody, SnapshotHeader
from storage_core.store.volume.identity import VolumeIdentity
from storage_core.store.volume.log_contents import (
    NONE_FETCHED,
    CollectedEntries,
    CommitMark,
    Fetched,
    LogContents,
    LogPosition,
    Tail,
    TailRead,
    best_commit_record,
    is_damaged_slot,
    link,
)

logger = logging.getLogger(__name__)
DIRECTORY = "meta"
SEGMENT_SIZE_MAX = 8 * 1024 * 1024  # bytes after which the next batch opens a new segment
SEGMENT_NUMBER_MAX = (1 << 64) - 1
_NUMBER = re.compile(r"[0-9a-f]{16}")


class SyncError(OSError):
    """An fsync failed: what was written can be read, and may or may not be on the disk."""


class VolumeLog:
    """The metadata files below one volume, as its register."""

    def __init__(self, files: Files, volume: Path, identity: VolumeIdentity) -> None:
        self._files, self._identity = files, identity
        self.directory = volume / DIRECTORY
        self._is_kept = False  # whether the segment that is written stays open
        self._open_segment: tuple[int, File] | None = None
        self._size: int | None = None  # of that one when this session first used it; None: it has not yet

    def is_of(self, directory: Path, identity: VolumeIdentity) -> bool:
        """Return whether this is the log of that instance of a volume."""
        return (self.directory, self._identity) == (directory, identity)

    def keep_open(self) -> "VolumeLog":
        """Let the segment that is written stay open until `close`: for a session, nobody else writes it meanwhile."""
        self._is_kept = True
        return self

    def rest(self) -> None:
        """Let others write until the next session: what stays open is looked at before it is used again."""
        self._size = None

    def close(self) -> None:
        """Close what was kept open, and keep nothing from here on."""
        self._is_kept, self._size = False, None
        kept, self._open_segment = self._open_segment, None
        if kept is not None:
            kept[1].close()

    # --- names

    def segments(self) -> list[int]:
        """Return the numbers of the segment files, ascending."""
        return self._numbers(".log")

    def snapshots(self) -> list[int]:
        """Return the indexes of the snapshot files, ascending."""
        return self._numbers(".snap")

    def _numbers(self, suffix: str) -> list[int]:
        numbers = []
        for name in self._files.list_directory(self.directory):
            stem = name[: -len(suffix)]
            if name.endswith(suffix) and _NUMBER.fullmatch(stem):
                numbers.append(int(stem, 16))
        return sorted(numbers)

    def _is_newest(self, number: int) -> bool:
        """Return whether no segment comes after this one: their numbers have no gap, and the oldest goes first."""
        try:
            self._files.file_size(self.segment_path(number + 1))
        except FileNotFoundError:
            return True
        return False

    def segment_path(self, number: int) -> Path:
        return self.directory / f"{number:016x}.log"

    def snapshot_path(self, index: int) -> Path:
        return self.directory / f"{index:016x}.snap"

    # --- reading

    def read_mark(self, before: CommitMark | None = None, position: LogPosition | None = None) -> CommitMark:
        """Return the best readable commit record, and whether every slot that was looked at is whole.

        It is read anew whatever it was before. Costs one listing and one small read: a new segment carries the record
        on, so only the newest segment that has any is asked.
        """
        newest = position.segment if position is not None else 0
        return CommitMark(*together(self._files, self.directory, partial(self._read_commit_record, newest)))

    def _read_commit_record(self, newest: int = 0) -> tuple[CommitRecord | None, bool]:
        """`newest`: the segment that was the newest at the last look; if it still is, nothing is listed."""
        if newest and self._is_newest(newest):
            try:
                with self._open(self.segment_path(newest)) as file:
                    best, whole = self._commit_record_in(file.read_at(0, BATCHES_OFFSET), newest)
            except (CorruptRecordError, TruncatedRecordError, FileNotFoundError):
                best = None
            if best is not None:
                return best, whole
        clean, numbers = True, self.segments()
        for at in range(len(numbers) - 1, -1, -1):
            number = numbers[at]
            with self._open(self.segment_path(number)) as file:
                head = file.read_at(0, BATCHES_OFFSET)
            try:
                best, whole = self._commit_record_in(head, number)
            except (CorruptRecordError, TruncatedRecordError):
                # One that is being begun, or was by a process that was killed, has no record that counts.
                clean = clean and at > 0 and not self._leads_to(numbers[at - 1], number)
                continue
            clean = clean and whole
            if best is not None:
                return best, clean
        return None, clean

    def read(
        self, for_state: bool = False, listing: Mapping[str, str] | None = None, before: Fetched = NONE_FETCHED
    ) -> LogContents:
        """Return everything that the files say. Nothing is written, cut or removed.

        `for_state`: segments whose entries the snapshot has all taken in are left out; for a reader, who wants the
        newest state and judges nobody. Raises UnsupportedVersionError, and CorruptionError for a file of another store
        or volume.
        """
        contents = LogContents()
        self._read_snapshots(contents)
        after = contents.snapshot.index if for_state and contents.snapshot is not None else 0
        link(self._read_segments(contents, after), contents)
        return contents

    def read_snapshot(self) -> LogContents | None:
        """Return what the newest whole snapshot says, whatever the segments are like; None if there is none."""
        contents = LogContents()
        try:
            self._read_snapshots(contents)
        except (StorageError, OSError) as error:
            raise_if_of_process(error)
            return None
        return contents if contents.snapshot is not None else None

    def read_entries(self, after: int) -> LogContents:
        """Return the entries above index `after`, and some below, without a look at whether they are a chain.

        For a reader that has the state from another volume, and wants to know how far this one goes.
        """
        contents = LogContents()
        self._check_versions()
        contents.entries_by_index = self._read_segments(contents, after).entries
        if contents.entries_by_index:
            contents.entries = [contents.entries_by_index[max(contents.entries_by_index)]]
        return contents

    def _check_versions(self) -> None:
        """Raise UnsupportedVersionError if a snapshot was written by a newer program."""
        for index in self.snapshots():
            with self._open(self.snapshot_path(index)) as file:
                try:
                    snapshot_format.decode(file.read_at(0, PAGE_SIZE))
                except CorruptionError:
                    continue  # a damaged one says nothing

    def _read_segments(self, contents: LogContents, after: int = 0) -> CollectedEntries:
        """Return what the segments hold; those may be left out in which no entry above index `after` stands."""
        collected = CollectedEntries()
        numbers = self.segments()
        if not numbers:
            raise CorruptionError(f"{self.directory} holds no log segment: the metadata log is missing")
        if after:
            numbers = self._segments_after(numbers, after)
        seal: Seal | None = None
        for at, number in enumerate(numbers):
            # Its predecessor is sealed only after a segment is durable, name and all; the first one was there before
            # the volume was, or before its predecessor was removed.
            durable = at == 0 or (seal is not None and seal.next_segment == number)
            seal = self._read_segment(number, collected, contents, number == numbers[-1], durable)
        return collected

    def _segments_after(self, numbers: list[int], index: int) -> list[int]:
        """Return the newest segments, beginning with one that is known to be durable and to begin at or below `index`.

        All of them if there is none.
        """
        for at in range(len(numbers) - 1, 0, -1):
            base_index = self._base_index(numbers[at])
            if base_index is not None and base_index <= index and self._leads_to(numbers[at - 1], numbers[at]):
                return numbers[at:]
        return numbers

    def _leads_to(self, number: int, following: int) -> bool:
        """Return whether the last record of a segment is a seal that names the following one."""
        with self._open(self.segment_path(number)) as file:
            last_page = max(BATCHES_OFFSET, (file.size() - 1) // PAGE_SIZE * PAGE_SIZE)
            page = file.read_at(last_page, PAGE_SIZE)
        records = [record for record, _ in log_format.scan(memoryview(page), last_page)]
        return bool(records) and isinstance(records[-1], Seal) and records[-1].next_segment == following

    def read_tail(self, position: LogPosition) -> Tail | None:
        """Return the records after `position`; None if a full reading is called for."""
        return together(self._files, self.directory, partial(self._read_tail, position))

    def ends_at(self, position: LogPosition) -> bool:
        """Return whether nothing was written after `position`."""
        return self.read_tail(position) == Tail([], position, True)

    def look(self, position: LogPosition, commit: CommitRecord | None = None) -> TailRead | None:
        """Return what has changed since the log ended at `position`; None if a full reading is called for.

        For a session, under the volume's lock. The header of the segment says whose it is, so the volume that was here
        is here still if it names this instance. Raises CorruptionError if it is another one's.
        """
        if not self._is_newest(position.segment):
            return None
        with self._segment(position.segment) as file:
            head = file.read_at(0, BATCHES_OFFSET)
            size = self._size if self._size is not None else file.opened_size
            tail = _tail_of(file, size, position)
        header = log_format.decode_segment_header(head[:PAGE_SIZE])
        self._check_header(header, position.segment)
        if header.instance_id != self._identity.instance_id:
            raise CorruptionError(f"{self.segment_path(position.segment)} belongs to another instance of the volume")
        commit, is_whole = best_commit_record(
            [head[at : at + PAGE_SIZE] for at in range(PAGE_SIZE, BATCHES_OFFSET, PAGE_SIZE)]
        )
        if commit is None or not is_whole or tail is None or not tail.is_clean:
            return None
        if any(isinstance(record, Seal) for record in tail.records):  # the segment after it was lost
            return None
        return TailRead(commit, tail.records, tail.position)

    def _commit_record_in(self, head: bytes, number: int) -> tuple[CommitRecord | None, bool]:
        """Return the best commit record in the first pages of a segment, and whether every slot there is whole.

        Raises CorruptRecordError or TruncatedRecordError if the segment's header is no whole one.
        """
        pages = [head[at : at + PAGE_SIZE] for at in range(0, BATCHES_OFFSET, PAGE_SIZE)]
        self._check_header(log_format.decode_segment_header(pages[0]), number)
        return best_commit_record(pages[1:])

    def _read_tail(self, position: LogPosition) -> Tail | None:
        if not self._is_newest(position.segment):
            return None
        try:
            with self._open(self.segment_path(position.segment)) as file:
                return _tail_of(file, file.opened_size, position)
        except FileNotFoundError:
            return None

    def _read_snapshots(self, contents: LogContents) -> None:
        for index in reversed(self.snapshots()):
            path = self.snapshot_path(index)
            try:
                with self._open(path) as file:
                    header, payload = read_snapshot_file(file)
            except CorruptionError as error:
                contents.damage.append(f"{path}: {error}")
                continue
            ours = (header.store_id, header.volume_id) == (self._identity.store_id, self._identity.volume_id)
            if not ours or header.index != index:
                contents.damage.append(f"{path}: belongs to another store, volume or index")
                continue
            contents.snapshot, contents.snapshot_body = header, snapshot_format.decode_body(payload)
            contents.votes.append(contents.snapshot_body.vote)
            return

    def _read_segment(
        self, number: int, collected: CollectedEntries, contents: LogContents, newest: bool, durable: bool
    ) -> Seal | None:
        """Add what the segment says to the contents; return its seal.

        `durable`: the segment was made durable before anything that came later. If not, nothing in it has counted yet
        and its name may not last, so it is not appended to.
        """
        path = self.segment_path(number)
        with self._open(path) as file:
            data = memoryview(LOG_SEGMENT.read(file))
        size = len(data)
        if newest and durable and size < BATCHES_OFFSET + PAGE_SIZE:
            raise CorruptionError(f"{path} was cut to {size} bytes: it was begun with more. Nothing has been changed")
        clean = durable and size % PAGE_SIZE == 0
        try:
            header = log_format.decode_segment_header(bytes(data[:PAGE_SIZE]))
            self._check_header(header, number)
            contents.damage.extend(collected.take_trailing_damage_before(header.base_index))
            if durable:
                collected.begin(header.base_index, header.base_chain)
        except (CorruptRecordError, TruncatedRecordError):
            clean = False
            if durable:  # else it was torn by a power loss while a process began it
                contents.damage.append(f"{path}: the segment header is damaged")
            collected.mark_damaged(f"{path}: offset_bytes 0")
        pages = [bytes(data[PAGE_SIZE * slot : PAGE_SIZE * (slot + 1)]) for slot in (1, 2)]
        best, whole = best_commit_record(pages)
        if newest and not whole:  # those of older segments were carried on
            contents.damage.append(f"{path}: a commit record is torn or damaged")
            contents.slots_are_whole = False
            contents.marks_are_lost = best is None and all(is_damaged_slot(page) for page in pages)
        if best is not None and (contents.commit is None or best.generation > contents.commit.generation):
            contents.commit = best
        end_bytes, seal = BATCHES_OFFSET, None
        for record, batch_end in log_format.scan(data[BATCHES_OFFSET:], BATCHES_OFFSET):
            if isinstance(record, BadRecord):
                clean = False
                where = f"{path}: offset_bytes {record.offset_bytes}: {record.reason}"
                collected.mark_damaged(where)
                collected.tail.append(where)
            elif isinstance(record, Seal):
                seal = record
            else:
                end_bytes = batch_end
                contents.damage.extend(collected.take_trailing_damage())
                if isinstance(record, Vote):
                    contents.votes.append(record)
                else:
                    collected.add(record)
        if newest and seal is not None:
            raise CorruptionError(f"{path} goes on in {self.segment_path(seal.next_segment).name}, which is missing")
        if newest:
            contents.damage.extend(collected.take_trailing_damage())
            contents.position, contents.tail_is_clean = LogPosition(number, end_bytes), clean and size == end_bytes
        return seal

    def _check_header(self, header: SegmentHeader, number: int) -> None:
        ours = (header.store_id, header.volume_id) == (self._identity.store_id, self._identity.volume_id)
        if not ours or header.number != number:
            path = self.segment_path(number)
            raise CorruptionError(f"{path} belongs to another store or volume, or was renamed from {header.number}")

    # --- writing, under the volume's lock

    def append(
        self,
        position: LogPosition,
        records: Sequence[Record],
        after: EntryId = START,
        commit: CommitRecord | None = None,
    ) -> LogPosition:
        """Write one batch at `position` and fsync it; return the position after it.

        `after`: the last entry before it; `commit`: what is known to be committed. Both stand elsewhere here.
        """
        return together(self._files, self.directory, partial(self._append, position, records))

    def _append(self, position: LogPosition, records: Sequence[Record]) -> LogPosition:
        batch = log_format.encode_batch(list(records), position.offset_bytes)
        with self._segment(position.segment) as file:
            try:
                file.write_at(position.offset_bytes, batch)
            except OSError:
                # What got there may be a whole record already: only without it is nothing stored.
                try:
                    file.truncate(position.offset_bytes)
                except OSError as error:
                    raise SyncError(*error.args) from error
                raise
            _sync(file)
        return LogPosition(position.segment, position.offset_bytes + len(batch))

    def begin(
        self,
        records: Sequence[Record],
        snapshot: tuple[EntryId, bytes, SnapshotBody] | None,
        commit: CommitRecord | None = None,
    ) -> LogPosition:
        """Write the beginning of a log where there is none; return where it goes on.

        `snapshot`: last entry, history and content of the one that it begins with.
        """
        if snapshot is None:
            return self.start_segment(START, commit, records)
        self.write_snapshot(*snapshot)
        return self.start_segment(snapshot[0], commit, records)

    def start_segment(self, base: EntryId, commit: CommitRecord | None, records: Sequence[Record]) -> LogPosition:
        """Write a new segment with these records and make it durable, name and all; return the position after them.

        `base`: the last entry before the first one of the segment. Older segments stay; the one
        before is sealed, so that the loss of the new one would be noticed.
        """
        before = self.segments()[-1:]
        number = before[0] + 1 if before else 1
        if number > SEGMENT_NUMBER_MAX:
            raise CorruptionError(f"{self.segment_path(before[0])} has a number that no segment can come after")
        header = SegmentHeader(
            self._identity.store_id, self._identity.volume_id, self._identity.instance_id, number, *base
        )
        slots = bytearray(PAGE_SIZE * log_format.SLOT_COUNT)
        if commit is not None:
            at = log_format.slot_offset(commit.generation) - PAGE_SIZE
            slots[at : at + PAGE_SIZE] = log_format.encode_commit_record(commit)
        batch = log_format.encode_batch(list(records), BATCHES_OFFSET)
        path = self.segment_path(number)
        write_durably(self._files, path, header.encode() + bytes(slots) + batch, sync=_sync)
        for old in before:
            self._seal(old, Seal(base.term, number))
        return LogPosition(number, BATCHES_OFFSET + len(batch))

    def _seal(self, number: int, seal: Seal) -> None:
        """Say at the end of a segment, whatever stands there, that the log goes on in the next one."""
        try:
            with self._open(self.segment_path(number), writable=True) as file:
                at = max(BATCHES_OFFSET, -(-file.size() // PAGE_SIZE) * PAGE_SIZE)
                file.write_at(at, log_format.encode_batch([seal], at))
        except OSError as error:
            # The new segment is durable and counts without it; only its loss would go unnoticed.
            logger.warning("%s could not be sealed: %s", self.segment_path(number), error)

    def write_commit_record(self, position: LogPosition, record: CommitRecord) -> None:
        """Write the commit record, after the log up to its index was fsynced; the next fsync makes it durable."""
        together(self._files, self.directory, partial(self._write_commit_record, position.segment, record))

    def _write_commit_record(self, segment: int, record: CommitRecord) -> None:
        with self._segment(segment) as file:
            file.write_at(log_format.slot_offset(record.generation), log_format.encode_commit_record(record))

    def remove_commit_records(self) -> None:
        """Take all commit records away, durably: what they vouch for is about to be repaired."""
        for number in self.segments():
            with self._open(self.segment_path(number), writable=True) as file:
                if file.size() > PAGE_SIZE:
                    file.write_at(PAGE_SIZE, bytes(PAGE_SIZE * log_format.SLOT_COUNT))
                    _sync(file)

    def remove_older(self, segment: int, snapshot: int) -> None:
        """Remove every segment and snapshot but these, which are durable and say all there is to say."""
        for number in self.segments():
            if number != segment:
                self._files.unlink(self.segment_path(number))
        for index in self.snapshots():
            if index != snapshot:
                self._files.unlink(self.snapshot_path(index))
        self._files.sync_directory(self.directory)

    def write_snapshot(self, tip: EntryId, history: bytes, body: SnapshotBody) -> None:
        """Write a snapshot of the state after entry `tip`, which has this history id, and make it durable."""
        index, term, chain = tip
        payload = snapshot_format.encode_body(body)
        digest = snapshot_format.payload_digest(payload)
        identity = self._identity
        header = SnapshotHeader(
            identity.store_id, identity.volume_id, identity.instance_id, index, term, chain, history,
            len(payload), digest,
        )  # fmt: skip
        path = self.snapshot_path(index)
        # One that is there was left by a process that was killed while writing it: the name says nothing.
        write_durably(self._files, path, snapshot_format.encode(header), payload, replaces=True)

    def take_snapshot(
        self, position: LogPosition, tip: EntryId, history: bytes, body: SnapshotBody, commit: CommitRecord | None
    ) -> LogPosition:
        """Put a snapshot of the state after entry `tip` beside the log, and go on in a new segment with its vote.

        `position`: where the log ends. Return where it goes on. What the snapshot takes the place of goes with
        `compact`.
        """
        self.write_snapshot(tip, history, body)
        return self.start_segment(tip, commit, [body.vote])

    def rewrite(
        self,
        position: LogPosition,
        base: EntryId,
        records: Sequence[Record],
        commit: CommitRecord | None,
        snapshot: tuple[bytes, SnapshotBody] | None = None,
        drops_record: bool = False,
    ) -> LogPosition:
        """Go on after `base` in a new segment that holds all that is not known to be durable and right here.

        `position`: where the log ended when it was read.
        `snapshot`: history and content of the one that takes the place of everything up to `base`, where that is not
        here. `drops_record`: the commit record vouches for what is about to be repaired, so it goes first. Return where
        the log goes on.
        """
        if drops_record:
            self.remove_commit_records()
        if snapshot is not None:
            self.write_snapshot(base, *snapshot)
        own = self.read_mark().commit
        carried = commit if commit is not None and own == commit and not drops_record else None
        position = self.start_segment(base, carried, records)
        if carried is None and commit is not None:  # only now is the log durable up to there
            self.write_commit_record(position, commit)
        if snapshot is not None:
            self.remove_older(position.segment, base.index)
        return position

    def compact(self) -> None:
        """Remove snapshots but the two newest, and segments before the one in which the log since the older begins."""
        valid = [index for index in self.snapshots() if self.snapshot_is_whole(index)]
        if len(valid) < 2:
            return
        keep_from = valid[-2]
        for index in self.snapshots():
            # One between the two that is not whole was torn by a power loss while a process wrote it.
            if index < valid[-1] and index != keep_from:
                self._files.unlink(self.snapshot_path(index))
        numbers = self.segments()
        bases = [self._base_index(number) for number in numbers]
        # What follows a segment's base stands in it and in later ones, whatever became of those before.
        begun = [number for number, base in zip(numbers, bases, strict=True) if base is not None and base <= keep_from]
        for number in numbers:
            if begun and number < begun[-1]:
                self._files.unlink(self.segment_path(number))
        self._files.sync_directory(self.directory)

    def _base_index(self, number: int) -> int | None:
        with self._open(self.segment_path(number)) as file:
            try:
                return log_format.decode_segment_header(file.read_at(0, PAGE_SIZE)).base_index
            except StorageError:
                return None

    def files(self) -> list[Path]:
        """Return the files that the log is read from."""
        return [*map(self.segment_path, self.segments()), *map(self.snapshot_path, self.snapshots())]

    def damaged_snapshots(self, passed_over: Collection[str]) -> list[tuple[str, str]]:
        """Return (file, reason) for snapshots that are not whole: also the older one, which may be needed."""
        damaged = []
        for index in self.snapshots():
            path = str(self.snapshot_path(index))
            try:
                if path not in passed_over and not self.snapshot_is_whole(index):
                    damaged.append((path, "the snapshot is damaged"))
            except FileNotFoundError:
                continue  # a newer one has taken its place meanwhile
        return damaged

    def unfinished_snapshots(self) -> set[str]:
        """Return the files of snapshots that are cut or whole, and that no segment goes on from: nothing needs them.

        Whoever wrote one was killed, and the log goes on without it; the next one takes its place.
        """
        last = max((base for number in self.segments() if (base := self._base_index(number)) is not None), default=0)
        unfinished = set()
        for index in self.snapshots():
            path = self.snapshot_path(index)
            try:
                with self._open(path) as file:
                    is_another = snapshot_format.decode(file.read_at(0, PAGE_SIZE)).index != index
            except CorruptionError:
                is_another = False
            if index > last and not is_another:
                unfinished.add(str(path))
        return unfinished

    def snapshot_is_whole(self, index: int) -> bool:
        """Return whether every byte of the snapshot is as it was written."""
        try:
            with self._open(self.snapshot_path(index)) as file:
                header, _ = read_snapshot_file(file)
        except UnsupportedVersionError:
            raise
        except StorageError:
            return False
        return header.index == index

    def _open(self, path: Path, writable: bool = False) -> "closing[File]":
        return closing(self._files.open(path, writable))

    @contextmanager
    def _segment(self, number: int) -> Iterator[File]:
        """Open a segment for writing, unless it is open; it stays so where that was asked for."""
        kept = self._open_segment
        if kept is not None and kept[0] == number:
            if self._size is None and isinstance(kept[1], Lasting):
                self._size = kept[1].size_at_path()
            if self._size is not None:
                yield kept[1]
                return
        file = self._files.open(self.segment_path(number), writable=True)
        if self._is_kept:
            if kept is not None:
                kept[1].close()
            self._open_segment, self._size = (number, file), file.opened_size
            yield file
            return
        with closing(file):
            yield file


def read_snapshot_file(file: File) -> tuple[SnapshotHeader, bytes]:
    """Return the header and the payload of a snapshot. Raises CorruptionError, UnsupportedVersionError.

    Nothing is read of a payload that is not as long as the header says.
    """
    header = snapshot_format.decode(file.read_at(0, PAGE_SIZE))
    size = file.size() - PAGE_SIZE
    if size != header.payload_size:
        raise CorruptionError(f"the payload has {size} bytes, the header says {header.payload_size}")
    payload = file.read_at(PAGE_SIZE, size)
    if snapshot_format.payload_digest(payload) != header.payload_digest:
        raise CorruptionError(f"{len(payload)} bytes of payload do not match their digest")
    return header, payload


def _tail_of(file: File, size: int, position: LogPosition) -> Tail | None:
    """Return the records after `position` in a segment of `size` bytes; None if it ends before."""
    if size == position.offset_bytes:
        return Tail([], position, True)
    if size < position.offset_bytes or size > LOG_SEGMENT.size_max:
        return None
    data = file.read_at(position.offset_bytes, size - position.offset_bytes)
    tail = Tail([], position, size % PAGE_SIZE == 0)
    for record, batch_end in log_format.scan(memoryview(data), position.offset_bytes):
        if isinstance(record, BadRecord):
            tail.is_clean = False
            break
        tail.records.append(record)
        tail.position = LogPosition(position.segment, batch_end)
    tail.is_clean = tail.is_clean and tail.position.offset_bytes == size
    return tail


def _sync(file: File) -> None:
    try:
        file.sync()
    except OSError as error:
        raise SyncError(*error.args) from error
