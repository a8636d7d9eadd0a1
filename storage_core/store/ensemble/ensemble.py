"""The metadata of a store as one process knows it: all volumes read as one truth, and turns to change it.

Readers take no lock: they follow the commit records. What they cannot tell from those they look up in a session, under
the locks of the volumes (session.py). Nothing above this module knows how many volumes there are, or where they are.
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from storage_core import access
from storage_core.errors import (
    CorruptionError,
    DiskFullError,
    NoQuorumError,
    NotAStoreError,
    ReadOnlyError,
    StorageError,
    StoreBusyError,
    SupersededError,
    UnsupportedVersionError,
    VolumeFailedError,
)
from storage_core.metadata.commands import Voter
from storage_core.os_errors import CLOSED, FULL, raise_if_limit, raise_if_of_process
from storage_core.raft.entry import CommitRecord, Entry, EntryId
from storage_core.raft.rules import is_quorum, majority, proven_entry
from storage_core.raft.snapshot_format import longer_trail, trail_chain
from storage_core.store.ensemble.decision import Contended, Finding, Found, examine, foreign_of, newest, split_text
from storage_core.store.ensemble.known import Memory, on_each, unless_raised
from storage_core.store.ensemble.logs import Lead, Pool
from storage_core.store.ensemble.session import LookAgain, Session
from storage_core.store.ensemble.settling import Relock
from storage_core.store.ensemble.view import View, all_applied, trail_of
from storage_core.store.environment import Environment
from storage_core.store.volume import locks, volumes
from storage_core.store.volume.log_contents import End, LogContents, Mark
from storage_core.store.volume.state import VolumeState
from storage_core.store.volume.volumes import Volume

logger = logging.getLogger(__name__)
READ_ATTEMPTS = 5  # of a reader that meets files being replaced
COMMIT_ATTEMPTS = 20  # looks of a reader that waits for a commit record to follow entries that it sees
COMMIT_PAUSE_S = 0.005  # between two of them
UNPROVEN_PAUSE_S = 0.05  # of a reader between two leaders
CONTENDED_PAUSE_S = 0.02
SUPERSEDED_PAUSE_MAX_S = 2.0  # who lost to another leader waits for longer each time


class _Doubt(Exception):
    """Entries stand above the commit record, and nobody moves it on."""


class _Unproven(Exception):
    """Entries stand above what is proven to be committed, and may be: whoever leads is about to say so."""


class Metadata:
    """The metadata of a store, as this process knows it. Safe to use from several threads."""

    def __init__(
        self, env: Environment, known: Sequence[Volume], paths: Sequence[Path] = (), read_only: bool = False
    ) -> None:
        """`known`: volumes of the store, those that were found at `paths`, which the user gave."""
        self.env, self._paths, self._read_only = env, tuple(paths) or tuple(volume.path for volume in known), read_only
        self._volumes = tuple(known)
        self.store_id = next(volume.identity.store_id for volume in known if volume.identity is not None)
        self._voters: tuple[Voter, ...] = ()  # that `_volumes` is complete for
        self._undecided: View | None = None  # what a commit record says while newer entries may count
        self._marks: dict[bytes, Mark] = {}  # what each volume said last
        self._asked_last = 0  # of the volumes, by `may_have_news`
        self.memory = Memory(env)
        self.renew()
        locks.renew_in_children(self)

    def renew(self) -> None:
        """Lead nothing, and hold nothing: a forked child is another process."""
        self.memory.renew()
        self._reading = threading.Lock()

    @classmethod
    def at(cls, env: Environment, paths: Sequence[Path], read_only: bool = False) -> "Metadata":
        """Return the metadata of the store that these paths lead to.

        Raises NotAStoreError, CorruptionError, UnsupportedVersionError, ValueError (a volume at two paths).
        """
        return cls(env, volumes.given(env.files, paths), paths, read_only)

    @property
    def label(self) -> str:
        """The store, for messages."""
        return volumes.label(self._volumes)

    @property
    def known_volumes(self) -> tuple[Volume, ...]:
        """Every volume as it was when this process last looked."""
        return self._volumes

    def volumes_for_reading(self) -> tuple[Volume, ...]:
        """Return every volume for who has just asked for the newest state, and goes on to the next if one is away.

        In an object store they are as they were at the last look: the metadata was read by their identities.
        """
        is_known = self._is_remote and all(volume.identity is not None for volume in self._volumes)
        return self._volumes if is_known else self.volumes()

    def volumes(self) -> tuple[Volume, ...]:
        """Return every volume of the store in the order of its voters, looked at just now."""
        files = self.env.files
        looks = on_each(
            self.env, self._volumes, lambda volume: volumes.look(files, volume.path, volume.volume_id, self.store_id)
        )
        self._volumes = tuple(unless_raised(looks))
        if any(volume.state is VolumeState.FOREIGN for volume in self._volumes) and self._voters:
            self._look_elsewhere()
        return self._volumes

    def _look_elsewhere(self) -> None:
        """Look for volumes that are not where they are expected at the paths that the user gave."""
        files = self.env.files
        places = {volume.path: volume for volume in self._volumes if volume.identity is not None}
        elsewhere = [path for path in self._paths if path not in places]
        try:
            found = volumes.given(files, elsewhere) if elsewhere else []
        except (StorageError, ValueError):
            return
        ours = [volume for volume in found if volume.identity is not None and volume.identity.store_id == self.store_id]
        known = {place.volume_id for place in places.values()}
        more = [volume for volume in ours if volume.volume_id not in known]
        known |= {volume.volume_id for volume in more}
        if more and known.isdisjoint(voter.volume_id for voter in self._voters):
            raise NotAStoreError(
                f"{', '.join(str(volume.path) for volume in more)}: the store there has other volumes than the one "
                "that this process opened. It was restored or made anew: open it again, or restart the query or job"
            )
        if more:
            self._volumes = tuple(volumes.complete(files, [*places.values(), *more], self._voters, self._paths))

    def _complete(self, voters: Sequence[Voter]) -> bool:
        """Take in the volumes that the log speaks of; return whether there are any that were not known."""
        before = {volume.volume_id for volume in self._volumes}
        files = self.env.files  # looked at anew: another volume may lie by now where one was found before
        looks = on_each(
            self.env, self._volumes, lambda volume: volumes.look(files, volume.path, volume.volume_id, self.store_id)
        )
        known = [volume for volume in unless_raised(looks) if volume.identity is not None]
        if not known:
            raise self._nothing_left(self._volumes)
        self._volumes = tuple(volumes.complete(self.env.files, known, voters, self._paths))
        self._voters = tuple(voters)
        return not {volume.volume_id for volume in self._volumes} <= before

    def _lockable(self, at_hand: Sequence[Volume]) -> list[Path]:
        """Return the volumes that can be locked, in the order of their ids. Raises NoQuorumError if none is there."""
        there = [volume for volume in at_hand if volume.is_there]
        if not there:
            raise self._nothing_left(at_hand)
        return [volume.path for volume in sorted(there, key=lambda volume: volume.volume_id)]

    def _nothing_left(self, at_hand: Sequence[Volume]) -> NoQuorumError:
        reasons = "; ".join(volume.reason for volume in at_hand)
        return NoQuorumError(f"none of the store's volumes is there any more ({reasons}). Bring them back")

    # --- reading

    def view(self, lock_timeout_s: float) -> View:
        """Return the newest committed state that commit records vouch for. Takes no lock unless in doubt."""
        error: StorageError | OSError | None = None
        proven: CommitRecord | None = None  # while more may be committed
        with self._reading:
            for _ in range(READ_ATTEMPTS):
                try:
                    view = self._follow_commit_record()
                except _Doubt:
                    break
                except _Unproven as doubt:
                    (proven,) = doubt.args
                    self.env.sleep(UNPROVEN_PAUSE_S)
                    continue
                except (UnsupportedVersionError, NotAStoreError):
                    raise
                except (StorageError, OSError) as caught:  # also a file that was there when the names were listed
                    raise_if_limit(caught, self.label)
                    error = caught
                    continue
                if view is not None:
                    return view
        if not self._read_only:
            try:
                with self.session(
                    lock_timeout_s
                ) as session:  # nothing moves under the lock: what is missing is missing
                    return session.view
            except (ReadOnlyError, StoreBusyError, DiskFullError, NoQuorumError):
                if self._undecided is None:
                    raise
        if self._undecided is None and proven is not None:
            with self._reading:
                self._undecided, _ = self._read_up_to(proven, first=False, clean=True)
        if self._undecided is None:
            if error is not None:
                raise_if_of_process(error, self.label)
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise VolumeFailedError(f"{self.label} cannot be read: {error}") from error
            reason = error if error is not None else "it was never written, or is lost"
            raise CorruptionError(f"{self.label}: no whole commit record to read by: {reason}") from error
        logger.warning("%s: read as its commit record says; what came after it cannot be decided here", self.label)
        self.memory.keep(self._undecided)
        return self._undecided

    def _follow_commit_record(self) -> View | None:
        """Return the view that the commit record names; None if that is not certain without the lock."""
        self._undecided = None
        known, seen = self.memory.known.view, None
        if known is None and not self._voters:
            seen = self._learn_voters()
        at, commit, clean, agreed = self._best_commit_record(seen)
        if known is not None and commit is not None and clean and self._is_commit_of(known, commit):
            if known.state.voters != self._voters:  # changed in a session of this process
                self._complete(known.state.voters)
            return known
        if commit is None or (known is not None and commit.index < known.index):
            self._undecided = known
            return None
        if not clean and not self._read_only:
            # Too few volumes to be sure: what they record in going on from what is known is better than that.
            self._undecided = (self._advance(known, at, commit) or known) if known is not None else None
            if known is None and len(self._volumes) > 1:  # it may be all that is left
                self._undecided, _ = self._read_up_to(commit, False, clean, seen)
            return None
        # What one volume alone records may be that of a copy of the store.
        view = self._advance(known, at, commit) if known is not None and agreed else None
        is_held = view is not None
        if view is None:
            view, is_held = self._read_up_to(commit, known is None, clean, seen)
            if known is not None and not _goes_on_from(view, known):
                self._undecided = known
                return None
        if view.state.voters != self._voters and self._complete(view.state.voters):
            return self._follow_commit_record()
        if not is_held:
            self._undecided = view
            return None
        self.memory.keep(view)
        return view

    def _is_commit_of(self, known: View, commit: CommitRecord) -> bool:
        """Return whether a commit record names what is known. In an object store it is often counted, not written."""
        if self._is_remote:
            return commit.entry == EntryId(known.index, known.term, known.chain)
        return commit == known.commit

    def may_have_news(self, known: View) -> bool:
        """Return whether more may be committed than that, by one small request to one volume in turn.

        For who asks again soon: what only other volumes have so far is found out when these are asked.
        """
        volumes = [volume for volume in self._volumes if volume.identity is not None]
        if not self._is_remote or not volumes:
            return True
        self._asked_last = (self._asked_last + 1) % len(volumes)
        try:
            end = self._mark(volumes[self._asked_last]).end
        except (StorageError, OSError):  # it is away: `view` knows what that means
            return True
        return end is None or end.tip != EntryId(known.index, known.term, known.chain)

    def _mark(self, volume: Volume) -> Mark:
        mark = self._marks[volume.volume_id] = volume.log.read_mark(self._marks.get(volume.volume_id))
        return mark

    def _learn_voters(self) -> list[Found]:
        """Find the other volumes by what those that were given say; return what was read.

        That is the log of the volume with the highest commit record; if it leads nowhere, or if the others have
        another one, all are asked. In object stores all are asked at once: that takes as long as to ask one.
        """
        if self._is_remote:
            return self._learn_voters_from_all()
        at, commit, _, _ = self._best_commit_record()
        found = [self.memory.found(at, for_state=True)]
        if not found[0].contents or found[0].contents.bad is not None or not self._all_record(commit):
            found = self.memory.found_on(self._volumes)
        lead = newest(found)
        voters = self.memory.state_of(lead).voters if lead is not None else ()
        if len(voters) > 1 or len(self._volumes) > 1:
            self._complete(voters or [Voter(volume.volume_id, bytes(16), ".") for volume in self._volumes])
        self._voters = voters
        return found

    @property
    def _is_remote(self) -> bool:
        return any(volume.is_remote for volume in self._volumes)

    def _learn_voters_from_all(self) -> list[Found]:
        """Raises why the logs cannot be read, if none can: without voters nobody knows what a majority has."""
        found = self.memory.found_on(self._volumes)
        lead = newest(found)
        error = next((log.error for log in found if log.error is not None), None)
        if lead is None and error is not None:
            raise error
        voters = self.memory.state_of(lead).voters if lead is not None else ()
        if len(voters) > 1 or len(self._volumes) > 1:
            self._complete(voters or [Voter(volume.volume_id, bytes(16), ".") for volume in self._volumes])
        self._voters = voters
        read = {log.volume_id: log for log in found}
        others = [volume for volume in self._volumes if volume.volume_id not in read]
        read |= {log.volume_id: log for log in self.memory.found_on(others)}
        return [read[volume.volume_id] for volume in self._volumes]

    def _are_all(self, seen: list[Found] | None) -> bool:
        """Return whether what was read are the logs of all volumes, whole, each of which says where it ends."""
        logs = {log.volume_id: log.contents for log in seen or ()}
        whole = [volume_id for volume_id, log in logs.items() if log is not None and log.bad is None and log.end]
        return bool(whole) and whole == [volume.volume_id for volume in self._volumes]

    def _all_record(self, commit: CommitRecord | None) -> bool:
        """Return whether no volume that can be read has another commit record."""
        for volume in self._volumes:
            try:
                if volume.log.read_mark().commit != commit:
                    return False
            except (StorageError, OSError):
                continue
        return True

    def _best_commit_record(self, seen: list[Found] | None = None) -> tuple[Volume, CommitRecord | None, bool, bool]:
        """Return the highest commit record, where it stands, whether enough of all are whole to go by it, and whether
        a majority has this very one.

        `seen`: what was read a moment ago, if it was.
        """
        best: tuple[Volume, CommitRecord | None] = (self._volumes[0], None)
        errors: list[StorageError | OSError] = []
        clean_count = 0
        records: list[CommitRecord | None] = []
        ends: dict[bytes, End] = {}
        learners = {voter.volume_id for voter in self._voters if voter.learner}
        if any(one.is_remote and one.identity is None for one in self._volumes):
            self.volumes()  # it may have given no answer for a moment
        marks: list[Mark | BaseException]
        if seen is not None and self._are_all(seen):
            marks = [Mark(log.commit, True, log.end) for found in seen if (log := found.contents) is not None]
        else:
            marks = on_each(self.env, self._volumes, self._mark)
        for volume, mark in zip(self._volumes, marks, strict=True):
            if isinstance(mark, (StorageError, OSError)):
                raise_if_limit(mark, volume.path)
                errors.append(mark)
                continue
            if isinstance(mark, BaseException):
                raise mark
            commit, clean, end, _ = mark
            if (
                commit is not None
                and self.memory.known.foreign.get(volume.volume_id) == commit
                and len(self._volumes) > 1
            ):
                errors.append(CorruptionError(f"{volume.path} is of another copy of the store"))
                continue
            if end is not None and volume.volume_id not in learners:
                ends[volume.volume_id] = end
            clean_count += clean and volume.volume_id not in learners
            records.append(commit if volume.volume_id not in learners else None)
            if commit is not None and (best[1] is None or commit.index > best[1].index):
                best = (volume, commit)
        if len(errors) == len(self._volumes):
            raise errors[0]
        needed = majority(len(self._volumes) - len(learners))
        if ends and self._voters:
            return (*self._counted(best, ends), clean_count >= needed, True)
        return (*best, clean_count >= needed, records.count(best[1]) >= needed)

    def _counted(
        self, best: tuple[Volume, CommitRecord | None], ends: Mapping[bytes, End]
    ) -> tuple[Volume, CommitRecord | None]:
        """Return up to where the log is committed by what all say, and a volume that has it.

        Raises _Unproven if an entry above may be committed: so many have it, or cannot be asked.
        """
        voters = [voter.volume_id for voter in self._voters if not voter.learner]
        proven = proven_entry(voters, ends)
        volume, commit = best
        if proven is not None and (commit is None or proven.index > commit.index):
            commit = CommitRecord(proven.index, proven.term, proven.index, proven.chain)
            volume = next(one for one in self._volumes if one.volume_id in ends and ends[one.volume_id].tip == proven)
        above = sum(end.tip.index > (commit.index if commit is not None else 0) for end in ends.values())
        if len(voters) > 1 and above and above + len(voters) - len(ends) >= majority(len(voters)):
            self._undecided = self.memory.known.view
            raise _Unproven(commit)
        return volume, commit

    def _advance(self, known: View, at: Volume, commit: CommitRecord) -> View | None:
        """Return `known` moved on to `commit` by the records behind it on one volume; None if they lead elsewhere."""
        start = known.positions.get(at.volume_id)
        tail = at.log.read_tail(start) if start is not None else None
        if start is None or tail is None:
            return None
        index, chain, trail = known.index, known.chain, known.trail
        all_used = tail.is_clean
        entries: list[Entry] = []
        for record in tail.records:
            if not isinstance(record, Entry) or record.index <= index:
                continue
            if record.index > commit.index or not record.follows(chain):
                all_used = False
                break
            entries.append(record)
            index, chain = record.index, record.chain
            trail = longer_trail(trail, chain)
        if (index, chain) != (commit.index, commit.chain):
            return None
        state = all_applied(known.state, entries)
        positions = {**known.positions, at.volume_id: tail.position if all_used else start}
        term_seen = max([known.term_seen, commit.term, *(record.term for record in tail.records)])
        return replace(
            known, state=state, index=index, term=commit.term, chain=chain, commit=commit, positions=positions,
            term_seen=term_seen, trail=trail,
        )  # fmt: skip

    def _read_up_to(
        self, commit: CommitRecord, first: bool, clean: bool, seen: list[Found] | None = None
    ) -> tuple[View, bool]:
        """Return the state at a commit record, from all contents, and whether a majority holds its entry.

        A majority holds it before anybody writes such a record, so the logs, read after it, show that; but one log was
        read before what another one has, and a volume of another copy of the store is known only by what both say.
        `seen`: what was read a moment ago, if it was. Raises CorruptionError if nothing leads there.
        """
        are_all = self._are_all(seen)
        if seen is None:
            found = self.memory.found_on(self.volumes())
        else:
            found = seen if are_all else self._seen_beside(seen)
        if (seen is None or are_all) and len(found) > 1:
            found, commit = self._ours(found, commit)
        contents = {one.volume_id: one.contents for one in found if one.contents is not None}
        pool = Pool(contents.values())
        place = pool.place_of(commit)
        if place is None and seen is not None:
            return self._read_up_to(commit, first, clean)
        above = max((log.snapshot.index for log in contents.values() if log.snapshot is not None), default=0)
        if place is None and above <= commit.index:
            for one in contents.values():
                if one.bad is not None:
                    raise CorruptionError(f"{one.bad.where}: a bad record, and the log does not lead past it")
            raise CorruptionError(f"the metadata log does not lead to its commit record at entry {commit.index}")
        if len(self._volumes) == 1:
            (only,) = contents.values()
            if only.bad is not None and only.bad.followed:
                raise CorruptionError(f"{only.bad.where}: a bad record, and entries stand after it")
        # A snapshot above the commit record was taken of committed entries, and the record lost in a power loss.
        lead = pool.lead_to(place) if place is not None else _at_snapshot(pool, contents.values(), above)
        if seen is not None and not are_all and not self._is_of_majority(lead, contents):
            return self._read_up_to(commit, first, clean)
        index, term, chain = lead.tip
        view = View(
            state=self.memory.state_of(lead),
            index=index,
            term=term,
            chain=chain,
            commit=commit,
            positions={
                volume_id: log.position
                for volume_id, log in contents.items()
                if log.tip == lead.tip and log.tail_is_clean
            },
            term_seen=max(log.term for log in contents.values()),
            snapshot_index=lead.base.index,
            durable=pool.statements,
            snapshot_streams=self.memory.snapshot_streams_of(lead),
            trail=trail_of(lead),
        )
        tip = max(pool.tip_of(log).index for log in contents.values())
        if first and not self._is_being_written(tip, max(index, commit.index)):
            if not clean:
                raise CorruptionError(
                    f"a commit record is torn or damaged, and entries stand above {commit.index}, which the one "
                    "before it names; opening the store for writing settles which of them count"
                )
            self._undecided = view
            raise _Doubt
        voting = [voter.volume_id for voter in view.state.voters if not voter.learner]
        logs = {volume_id: pool.lead_to(pool.tip_of(log)) for volume_id, log in contents.items()}
        return view, is_quorum(voting, [volume_id for volume_id, log in logs.items() if log.agrees(index, chain)])

    def _is_of_majority(self, lead: Lead, contents: Mapping[bytes, LogContents]) -> bool:
        """Return whether the commit records of a majority name the end of the log, and none an entry elsewhere.

        One that is further below says nothing of what stands above it.
        """
        records = {volume_id: log.commit for volume_id, log in contents.items() if log.commit is not None}
        if any(
            record.index <= lead.tip.index and not lead.agrees(record.index, record.chain)
            for record in records.values()
        ):
            return False
        voting = [voter.volume_id for voter in self.memory.state_of(lead).voters if not voter.learner]
        agreeing = [
            key
            for key, record in records.items()
            if key in voting and (record.index, record.chain) == (lead.tip.index, lead.tip.chain)
        ]
        return is_quorum(voting, agreeing)

    def _ours(self, found: list[Found], commit: CommitRecord) -> tuple[list[Found], CommitRecord]:
        """Return those of the volumes that are not of another copy of the store, and their highest commit record.

        Raises NoQuorumError if nobody can tell which copy counts, CorruptionError if ours has no commit record.
        """
        lead = newest(found)
        if lead is None:
            return found, commit
        voters = self.memory.state_of(lead).voters or self._voters
        decision = examine(found, voters)
        foreign = foreign_of(found, decision)
        if foreign:  # or the others were read before it, and are being written
            found = [one if one.volume_id in foreign else self._found_again(one) for one in found]
            decision = examine(found, voters)
        if decision.split:
            raise NoQuorumError(split_text(decision))
        foreign = foreign_of(found, decision)
        self.memory.set_aside(foreign)
        if not foreign:
            return found, commit
        if decision.commit is None:
            raise CorruptionError(decision.findings[next(iter(foreign))].reason)
        return [one for one in found if one.volume_id not in foreign], decision.commit

    def _found_again(self, before: Found) -> Found:
        volume = next((one for one in self._volumes if one.volume_id == before.volume_id), None)
        return self.memory.found(volume) if volume is not None else before

    def _seen_beside(self, seen: list[Found]) -> list[Found]:
        """Return what was read a moment ago, and of the other volumes how far their logs go."""
        there = {one.volume_id for one in seen}
        contents = [one.contents for one in seen if one.contents is not None]
        after = min((log.snapshot.index if log.snapshot is not None else 0 for log in contents), default=0)
        found = list(seen)
        for volume in self._volumes:
            if volume.volume_id not in there and volume.identity is not None:
                try:
                    entries = volume.log.read_entries(after)
                except UnsupportedVersionError:
                    raise
                except (StorageError, OSError) as error:  # what it held, if anything, is for a session to find out
                    raise_if_limit(error, volume.path)
                    continue
                found.append(Found(volume.volume_id, str(volume.path), volume.identity.instance_id, entries))
        return found

    def _is_being_written(self, tip: int, committed: int) -> bool:
        """Return whether the entries above the commit record are a session in progress; without any, nothing is
        doubtful.

        After a power loss acked entries may stand above it, and nobody moves it on. Only a process that has just
        begun to read can meet that; whoever has read before was alive all the time.
        """
        for _ in range(COMMIT_ATTEMPTS):
            if tip <= committed:
                return True
            self.env.sleep(COMMIT_PAUSE_S)
            try:
                _, commit, _, _ = self._best_commit_record()
            except _Unproven:
                continue
            committed = commit.index if commit is not None else committed
        return tip <= committed

    def standings(self, lock_timeout_s: float) -> dict[bytes, Finding]:
        """Return what the metadata of each volume is like, without a lock if that can be.

        Logs are read one after another: a volume that is being written meanwhile may seem to be behind, damaged, or to
        have been rolled back. So what is not current is looked at again, until its log has stood still, at last under
        the locks. One that keeps growing is written by a holder, who writes those alone that are in step.
        """
        result: dict[bytes, Finding] = {}
        moving: set[bytes] = set()
        for _ in range(READ_ATTEMPTS):
            before, view = result, self.view(lock_timeout_s)
            result = dict(examine([self.memory.found(volume) for volume in self.volumes()], view.state.voters).findings)
            moving = {
                volume_id
                for volume_id, finding in result.items()
                if finding.state
                in (VolumeState.BEHIND, VolumeState.ROLLED_BACK, VolumeState.DAMAGED, VolumeState.FOREIGN)
                and finding != before.get(volume_id)
            }
            if not moving:
                return result
        if not self._read_only:
            try:
                return self._standings_under_locks(lock_timeout_s)
            except (StorageError, OSError) as error:
                logger.info("%s: its volumes were looked at without a lock: %s", self.label, error)
        grown = [one for one in moving if one in before and 0 < before[one].index < result[one].index]
        return {**result, **{one: Finding(VolumeState.CURRENT, "", index=result[one].index) for one in grown}}

    def _standings_under_locks(self, lock_timeout_s: float) -> dict[bytes, Finding]:
        """Return the same while nobody writes. Raises StoreBusyError, NoQuorumError, OSError."""
        at_hand = self.volumes()
        paths = self._lockable(at_hand)
        with locks.hold(self.env.files, paths, len(paths), lock_timeout_s):
            return dict(examine([self.memory.found(volume) for volume in at_hand], self._voters).findings)

    def hold(self, volume: Volume, lock_timeout_s: float) -> AbstractContextManager[locks.Held]:
        """Hold the lock of one volume: its metadata stands still. Raises ReadOnlyError, StoreBusyError, OSError."""
        if self._read_only:
            raise ReadOnlyError(f"{self.label} was opened for reading only", store=self.label)
        return locks.hold(self.env.files, [volume.path], 1, lock_timeout_s)

    # --- turns

    @contextmanager
    def session(
        self,
        lock_timeout_s: float,
        take_over: bool = False,
        patience_s: float = 0.0,
        frees: bool = False,
        may_assume: bool = False,
    ) -> Iterator[Session]:
        """Hold the store: everything read, everything that counts made durable.

        `patience_s`: how long to wait for volumes that others have locked when a majority is enough to go on.
        `frees`: the session is taken to make room, so what it has to write first may use the reserves of full volumes.
        `may_assume`: all that is done in it is done in a group (`Session`).
        Raises StoreBusyError, CorruptionError, NoQuorumError, VolumeFailedError, ReadOnlyError, DiskFullError.
        """
        if self._read_only:
            raise ReadOnlyError(f"{self.label} was opened for reading only", store=self.label)
        if not self._voters:
            with self._reading, translated(self.label):
                self._learn_voters()
        deadline = time.monotonic() + lock_timeout_s
        is_fresh, pause_s = False, CONTENDED_PAUSE_S
        with translated(self.label):
            while True:
                # As they were: the session looks at the logs, which say whose they are, and finds out if they changed.
                is_fresh = (
                    is_fresh
                    or self.memory.known.view is None
                    or any(volume.identity is None for volume in self._volumes)
                )
                at_hand = self.volumes() if is_fresh else self._volumes
                with ExitStack() as stack:
                    try:
                        held = stack.enter_context(self._locks_of(at_hand, deadline, patience_s))
                    except (NoQuorumError, OSError):
                        if is_fresh:
                            raise
                        is_fresh = True
                        continue
                    session = Session(self.memory, at_hand, held, is_fresh, may_assume)
                    stack.callback(session.close)
                    try:
                        session.begin(take_over, frees)
                    except LookAgain:
                        is_fresh = True
                        continue
                    except Relock as relock:
                        self._complete(relock.args[0])
                        is_fresh = True
                        continue
                    except (Contended, SupersededError) as contention:
                        if isinstance(contention, SupersededError):
                            pause_s = min(2 * pause_s, SUPERSEDED_PAUSE_MAX_S)
                        if time.monotonic() >= deadline:
                            raise StoreBusyError(
                                f"{self.label}: other processes have held some of the volumes for {lock_timeout_s:g} s",
                                store=self.label,
                            ) from None
                    else:
                        if session.state.voters != self._voters:
                            self._complete(session.state.voters)
                        yield session
                        session.end()
                        return
                self.env.sleep(pause_s * (0.5 + self.env.random_bytes(1)[0] / 256))

    def _locks_of(
        self, at_hand: Sequence[Volume], deadline: float, patience_s: float
    ) -> AbstractContextManager[locks.Held]:
        """Hold the locks of the volumes that are there, of a majority at least."""
        lockable = self._lockable(at_hand)
        learners = sum(voter.learner for voter in self._voters)
        needed = min(majority(len(at_hand) - learners), max(1, len(lockable)))
        left_s = max(0.0, deadline - time.monotonic())
        return locks.hold(self.env.files, lockable, needed, left_s, min(patience_s, left_s))


def _goes_on_from(view: View, known: View) -> bool:
    """Return whether nothing that is known is missing in the view."""
    there = trail_chain(view.trail, view.index, known.index)
    return view.index >= known.index and there in (known.chain, None)


def _at_snapshot(pool: Pool, contents: Iterable[LogContents], index: int) -> Lead:
    """Return the log that ends with the snapshot at `index`."""
    header = next(log.snapshot for log in contents if log.snapshot is not None and log.snapshot.index == index)
    return pool.lead_to(header.entry)


@contextmanager
def translated(label: object) -> Iterator[None]:
    """Errors of the operating system become ours at this edge."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFullError(f"{label}: {error.strerror}") from error
        if error.errno in CLOSED:
            told = access.in_words(error, writing=True)
            raise ReadOnlyError(f"{label} cannot be written: {told} ({error.filename})") from error
        raise_if_of_process(error, label)
        raise VolumeFailedError(f"{label}: {error}") from error
