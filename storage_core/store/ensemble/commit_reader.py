"""Reading the metadata without a lock: which entry is committed, by the commit records, and the state at it.

What cannot be known from those is raised as a doubt; a session decides it under the locks (session.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from storage_core.errors import (
    CorruptionError,
    NoQuorumError,
    StorageError,
    UnsupportedVersionError,
)
from storage_core.metadata.commands import Voter, ids_of_voters
from storage_core.os_errors import raise_if_limit
from storage_core.raft.entry import CommitRecord, Entry, EntryId
from storage_core.raft.rules import is_quorum, majority, proven_entry
from storage_core.raft.snapshot_format import longer_trail, trail_chain
from storage_core.store.ensemble.decision import VolumeLogRead, best_chain, examine, foreign_of, split_text
from storage_core.store.ensemble.merged_log import LogChain, MergedLog
from storage_core.store.ensemble.process_cache import ProcessCache, on_each
from storage_core.store.ensemble.view import View, all_applied, trail_of
from storage_core.store.ensemble.volume_set import VolumeSet
from storage_core.store.environment import Environment
from storage_core.store.volume.log_contents import CommitMark, LogContents, LogEnd, Tail
from storage_core.store.volume.object_log import Listing
from storage_core.store.volume.volumes import Volume

COMMIT_ATTEMPTS = 20  # looks of a reader that waits for a commit record to follow entries that it sees
COMMIT_PAUSE_S = 0.005  # between two of them


class UncommittedTail(Exception):
    """Entries stand above the commit record, and nobody moves it on."""


class CommitUncertain(Exception):
    """Entries stand above what is proven to be committed, and may be: whoever leads is about to say so."""


class CommitReader:
    """Follows the commit records of a store's volumes. Takes no lock; one thread at a time."""

    def __init__(self, env: Environment, volume_set: VolumeSet, cache: ProcessCache, read_only: bool) -> None:
        self._env, self._volumes, self._cache, self._read_only = env, volume_set, cache, read_only
        self.undecided: View | None = None  # what a commit record says while newer entries may count
        self._marks: dict[bytes, CommitMark] = {}  # what each volume said last
        self._asked_last = 0  # of the volumes, by `may_have_advanced`
        self.listings: dict[bytes, Listing] = {}  # what lay in logs when this call began, by volume: good for one look

    def follow(self) -> View | None:
        """Return the view that the commit record names; None if that is not certain without the lock."""
        self.undecided = None
        known, seen, is_asked = self._cache.known.view, None, False
        if known is None and not self._volumes.voters:
            before = {volume.volume_id for volume in self._volumes.known}
            seen = self.learn_voters()
            is_asked = before == {volume.volume_id for volume in self._volumes.known}
        at, commit, clean, agreed = self._best_commit_record(seen, is_asked)
        if known is not None and commit is not None and clean and self._is_commit_of(known, commit):
            if known.state.voters != self._volumes.voters:  # changed in a session of this process
                self._volumes.complete(known.state.voters)
            return known
        if commit is None or (known is not None and commit.index < known.index):
            self.undecided = known
            return None
        if not clean and not self._read_only:
            # Too few volumes to be sure: what they record in going on from what is known is better than that.
            self.undecided = (self._advance(known, at, commit) or known) if known is not None else None
            if known is None and len(self._volumes.known) > 1:  # it may be all that is left
                self.undecided, _ = self.read_up_to(commit, False, clean, seen)
            return None
        # What one volume alone records may be that of a copy of the store.
        view = self._advance(known, at, commit) if known is not None and agreed else None
        is_held = view is not None
        if view is None:
            view, is_held = self.read_up_to(commit, known is None, clean, seen)
            if known is not None and not _goes_on_from(view, known):
                self.undecided = known
                return None
        if view.state.voters != self._volumes.voters and self._volumes.complete(view.state.voters):
            return self.follow()
        if not is_held:
            self.undecided = view
            return None
        self._cache.keep(view)
        return view

    def learn_voters(self) -> list[VolumeLogRead]:
        """Find the other volumes by what those that were given say; return what was read.

        That is the log of the volume with the highest commit record; if it leads nowhere, or if the others have
        another one, all are asked. In object stores all are asked at once: that takes as long as to ask one.
        """
        if self._volumes.is_remote:
            return self._learn_voters_from_all()
        at, commit, _, _ = self._best_commit_record()
        logs = [self._cache.read(at, for_state=True)]
        if not logs[0].contents or logs[0].contents.bad is not None or not self._all_record(commit):
            logs = self._cache.read_all(self._volumes.known)
        self._take_voters(best_chain(logs))
        return logs

    def _learn_voters_from_all(self) -> list[VolumeLogRead]:
        """Raises why the logs cannot be read, if none can: without voters nobody knows what a majority has."""
        listings, self.listings = self.listings, {}
        logs = self._cache.read_all(self._volumes.known, listings=listings)
        best = best_chain(logs)
        error = next((log.error for log in logs if log.error is not None), None)
        if best is None and error is not None:
            raise error
        self._take_voters(best)
        read = {log.volume_id: log for log in logs}
        others = [volume for volume in self._volumes.known if volume.volume_id not in read]
        read |= {log.volume_id: log for log in self._cache.read_all(others)}
        return [read[volume.volume_id] for volume in self._volumes.known]

    def _take_voters(self, log: LogChain | None) -> None:
        """Go by the voters that the log which leads names."""
        voters = self._cache.state_of(log).voters if log is not None else ()
        if len(voters) > 1 or len(self._volumes.known) > 1:
            self._volumes.complete(
                voters or [Voter(volume.volume_id, bytes(16), ".") for volume in self._volumes.known],
                afresh=False,  # their identities were read just now
            )
        self._volumes.voters = voters

    def _are_all(self, seen: list[VolumeLogRead] | None) -> bool:
        """Return whether what was read are the logs of all volumes, whole, each of which says where it ends."""
        logs = {log.volume_id: log.contents for log in seen or ()}
        whole = [volume_id for volume_id, log in logs.items() if log is not None and log.bad is None and log.end]
        return bool(whole) and whole == [volume.volume_id for volume in self._volumes.known]

    def _all_record(self, commit: CommitRecord | None) -> bool:
        """Return whether no volume that could be read a moment ago has another commit record."""
        marks = [self._marks.get(volume.volume_id) for volume in self._volumes.known]
        return all(mark is None or mark.commit == commit for mark in marks)

    def _best_commit_record(
        self, seen: list[VolumeLogRead] | None = None, is_asked: bool = False
    ) -> tuple[Volume, CommitRecord | None, bool, bool]:
        """Return the highest commit record, where it stands, whether enough of all are whole to go by it, and whether
        a majority has this very one.

        `seen`: what was read a moment ago, if it was; `is_asked`: what they answered to that counts.
        """
        best: tuple[Volume, CommitRecord | None] = (self._volumes.known[0], None)
        errors: list[StorageError | OSError] = []
        clean_count = 0
        records: list[CommitRecord | None] = []
        ends: dict[bytes, LogEnd] = {}
        learners = {voter.volume_id for voter in self._volumes.voters if voter.learner}
        if any(volume.is_remote and volume.identity is None for volume in self._volumes.known):
            self._volumes.look()  # it may have given no answer for a moment
        marks: list[CommitMark | BaseException]
        if seen is not None and self._are_all(seen):
            logs = {read.volume_id: read.contents for read in seen if read.contents is not None}
            self._marks |= {key: CommitMark(log.commit, True, log.end, log.newest) for key, log in logs.items()}
            marks = [self._marks[volume.volume_id] for volume in self._volumes.known]
        else:
            asked = self._marks if is_asked else {}
            marks = on_each(
                self._env,
                self._volumes.known,
                lambda volume: asked.get(volume.volume_id) or self._mark(volume),
                majority_suffices=True,
            )
        for volume, mark in zip(self._volumes.known, marks, strict=True):
            if isinstance(mark, (StorageError, OSError)):
                raise_if_limit(mark, volume.path)
                errors.append(mark)
                continue
            if isinstance(mark, BaseException):
                raise mark
            commit, clean, end = mark[:3]
            if (
                commit is not None
                and self._cache.known.foreign.get(volume.volume_id) == commit
                and len(self._volumes.known) > 1
            ):
                errors.append(CorruptionError(f"{volume.path} is of another copy of the store"))
                continue
            if end is not None and volume.volume_id not in learners:
                ends[volume.volume_id] = end
            clean_count += clean and volume.volume_id not in learners
            records.append(commit if volume.volume_id not in learners else None)
            if commit is not None and (best[1] is None or commit.index > best[1].index):
                best = (volume, commit)
        if len(errors) == len(self._volumes.known):
            raise errors[0]
        needed = majority(len(self._volumes.known) - len(learners))
        if ends and self._volumes.voters:
            return (*self._counted(best, ends), clean_count >= needed, True)
        return (*best, clean_count >= needed, records.count(best[1]) >= needed)

    def _counted(
        self, best: tuple[Volume, CommitRecord | None], ends: Mapping[bytes, LogEnd]
    ) -> tuple[Volume, CommitRecord | None]:
        """Return up to where the log is committed by what all say, and a volume that has it.

        Raises CommitUncertain if an entry above may be committed: so many have it, or cannot be asked.
        """
        voters = ids_of_voters(self._volumes.voters)
        proven = proven_entry(voters, ends)
        volume, commit = best
        if proven is not None and (commit is None or proven.index > commit.index):
            commit = CommitRecord(proven.index, proven.term, proven.index, proven.chain)
            volume = next(
                volume
                for volume in self._volumes.known
                if volume.volume_id in ends and ends[volume.volume_id].tip == proven
            )
        above = sum(end.tip.index > (commit.index if commit is not None else 0) for end in ends.values())
        if len(voters) > 1 and above and above + len(voters) - len(ends) >= majority(len(voters)):
            self.undecided = self._cache.known.view
            raise CommitUncertain(commit)
        return volume, commit

    def _advance(self, known: View, at: Volume, commit: CommitRecord) -> View | None:
        """Return `known` moved on to `commit` by the records behind it on one volume; None if they lead elsewhere."""
        start, mark = known.positions.get(at.volume_id), self._marks.get(at.volume_id)
        if mark is not None and mark.behind is not None and mark.behind.start == start:
            tail: Tail | None = mark.behind.tail
        else:
            tail = at.log.read_tail(start) if start is not None else None
        if start is None or tail is None:
            return None
        followed = _followed(known, tail, commit)
        if followed is None:
            return None
        entries, all_used = followed
        tails = {at.volume_id: (tail, all_used)}
        for volume_id, mark in self._marks.items():  # where the others' logs end, so that nobody reads that again
            behind = mark.behind
            if volume_id not in tails and behind is not None and behind.start == known.positions.get(volume_id):
                followed = _followed(known, behind.tail, commit)
                if followed is not None:
                    tails[volume_id] = (behind.tail, followed[1])
        trail = known.trail
        for entry in entries:
            trail = longer_trail(trail, entry.chain)
        positions = {volume_id: used.position for volume_id, (used, all_used) in tails.items() if all_used}
        if not self._volumes.is_remote:  # there each log has a commit record, which tells whether it lags
            positions = {**known.positions, **positions}
        terms = [record.term for used, _ in tails.values() for record in used.records]
        return replace(
            known, state=all_applied(known.state, entries), index=commit.index, term=commit.term, chain=commit.chain,
            commit=commit, positions=positions,
            term_seen=max([known.term_seen, commit.term, *terms]), trail=trail,
        )  # fmt: skip

    def read_up_to(
        self, commit: CommitRecord, first: bool, clean: bool, seen: list[VolumeLogRead] | None = None
    ) -> tuple[View, bool]:
        """Return the state at a commit record, from all contents, and whether a majority holds its entry.

        A majority holds it before anybody writes such a record, so the logs, read after it, show that; but one log was
        read before what another one has, and a volume of another copy of the store is known only by what both say.
        `seen`: what was read a moment ago, if it was. Raises CorruptionError if nothing leads there.
        """
        are_all = self._are_all(seen)
        if seen is None:
            logs = self._cache.read_all(self._volumes.look())
        else:
            logs = seen if are_all else self._seen_beside(seen)
        if (seen is None or are_all) and len(logs) > 1:
            logs, commit = self._ours(logs, commit)
        contents = {log.volume_id: log.contents for log in logs if log.contents is not None}
        pool = MergedLog(contents.values())
        place = pool.place_of(commit)
        if place is None and seen is not None:
            return self.read_up_to(commit, first, clean)
        above = max((log.snapshot.index for log in contents.values() if log.snapshot is not None), default=0)
        if place is None and above <= commit.index:
            for log in contents.values():
                if log.bad is not None:
                    raise CorruptionError(f"{log.bad.where}: a bad record, and the log does not lead past it")
            raise CorruptionError(f"the metadata log does not lead to its commit record at entry {commit.index}")
        if len(self._volumes.known) == 1:
            (only,) = contents.values()
            if only.bad is not None and only.bad.followed:
                raise CorruptionError(f"{only.bad.where}: a bad record, and entries stand after it")
        # A snapshot above the commit record was taken of committed entries, and the record lost in a power loss.
        lead = pool.chain_ending_at(place) if place is not None else _at_snapshot(pool, contents.values(), above)
        if seen is not None and not are_all and not self._is_of_majority(lead, contents):
            return self.read_up_to(commit, first, clean)
        index, term, chain = lead.tip
        view = View(
            state=self._cache.state_of(lead),
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
            snapshot_streams=self._cache.snapshot_streams_of(lead),
            trail=trail_of(lead),
        )
        tip = max(pool.tip_of(log).index for log in contents.values())
        if first and not self._is_being_written(tip, max(index, commit.index)):
            if not clean:
                raise CorruptionError(
                    f"a commit record is torn or damaged, and entries stand above {commit.index}, which the one "
                    "before it names; opening the store for writing decides which of them count"
                )
            self.undecided = view
            raise UncommittedTail
        voters = ids_of_voters(view.state.voters)
        leads = {volume_id: pool.chain_ending_at(pool.tip_of(log)) for volume_id, log in contents.items()}
        return view, is_quorum(voters, [volume_id for volume_id, lead in leads.items() if lead.agrees(index, chain)])

    def _is_of_majority(self, lead: LogChain, contents: Mapping[bytes, LogContents]) -> bool:
        """Return whether the commit records of a majority name the end of the log, and none an entry elsewhere.

        One that is further below says nothing of what stands above it.
        """
        records = {volume_id: log.commit for volume_id, log in contents.items() if log.commit is not None}
        if any(
            record.index <= lead.tip.index and not lead.agrees(record.index, record.chain)
            for record in records.values()
        ):
            return False
        voters = ids_of_voters(self._cache.state_of(lead).voters)
        agreeing = [
            key
            for key, record in records.items()
            if key in voters and (record.index, record.chain) == (lead.tip.index, lead.tip.chain)
        ]
        return is_quorum(voters, agreeing)

    def _ours(self, logs: list[VolumeLogRead], commit: CommitRecord) -> tuple[list[VolumeLogRead], CommitRecord]:
        """Return those of the volumes that are not of another copy of the store, and their highest commit record.

        Raises NoQuorumError if nobody can tell which copy counts, CorruptionError if ours has no commit record.
        """
        lead = best_chain(logs)
        if lead is None:
            return logs, commit
        voters = self._cache.state_of(lead).voters or self._volumes.voters
        decision = examine(logs, voters)
        foreign = foreign_of(logs, decision)
        if foreign:  # or the others were read before it, and are being written
            logs = [log if log.volume_id in foreign else self._read_again(log) for log in logs]
            decision = examine(logs, voters)
        if decision.split:
            raise NoQuorumError(split_text(decision))
        foreign = foreign_of(logs, decision)
        self._cache.set_aside(foreign)
        if not foreign:
            return logs, commit
        if decision.commit is None:
            raise CorruptionError(decision.statuses[next(iter(foreign))].reason)
        return [log for log in logs if log.volume_id not in foreign], decision.commit

    def _read_again(self, before: VolumeLogRead) -> VolumeLogRead:
        volume = next((volume for volume in self._volumes.known if volume.volume_id == before.volume_id), None)
        return self._cache.read(volume) if volume is not None else before

    def _seen_beside(self, seen: list[VolumeLogRead]) -> list[VolumeLogRead]:
        """Return what was read a moment ago, and of the other volumes how far their logs go."""
        seen_ids = {log.volume_id for log in seen}
        contents = [log.contents for log in seen if log.contents is not None]
        after = min((log.snapshot.index if log.snapshot is not None else 0 for log in contents), default=0)
        logs = list(seen)
        for volume in self._volumes.known:
            if volume.volume_id not in seen_ids and volume.identity is not None:
                try:
                    entries = volume.log.read_entries(after)
                except UnsupportedVersionError:
                    raise
                except (StorageError, OSError) as error:  # what it held, if anything, is for a session to find out
                    raise_if_limit(error, volume.path)
                    continue
                logs.append(VolumeLogRead(volume.volume_id, str(volume.path), volume.identity.instance_id, entries))
        return logs

    def _is_being_written(self, tip: int, committed: int) -> bool:
        """Return whether the entries above the commit record are a session in progress; without any, nothing is
        doubtful.

        After a power loss acked entries may stand above it, and nobody moves it on. Only a process that has just
        begun to read can meet that; whoever has read before was alive all the time.
        """
        for _ in range(COMMIT_ATTEMPTS):
            if tip <= committed:
                return True
            self._env.sleep(COMMIT_PAUSE_S)
            try:
                _, commit, _, _ = self._best_commit_record()
            except CommitUncertain:
                continue
            committed = commit.index if commit is not None else committed
        return tip <= committed

    def _is_commit_of(self, known: View, commit: CommitRecord) -> bool:
        """Return whether a commit record names what is known. In an object store it is often counted, not written."""
        if self._volumes.is_remote:
            return commit.entry == EntryId(known.index, known.term, known.chain)
        return commit == known.commit

    def may_have_advanced(self, known: View) -> bool:
        """Return whether more may be committed than that, by one small request to one volume in turn.

        For a caller that asks again soon: what only other volumes have so far is found when they are asked.
        """
        volumes = [volume for volume in self._volumes.known if volume.identity is not None]
        if not self._volumes.is_remote or not volumes:
            return True
        self._asked_last = (self._asked_last + 1) % len(volumes)
        volume = volumes[self._asked_last]
        position = known.positions.get(volume.volume_id)
        try:
            return position is None or not volume.log.ends_at(position)
        except (StorageError, OSError):  # it is away: `view` knows what that means
            return True

    def _mark(self, volume: Volume) -> CommitMark:
        known = self._cache.known.view
        position = known.positions.get(volume.volume_id) if known is not None else None
        mark = self._marks[volume.volume_id] = volume.log.read_mark(self._marks.get(volume.volume_id), position)
        return mark


def _followed(known: View, tail: Tail, commit: CommitRecord) -> tuple[list[Entry], bool] | None:
    """Return the entries of a tail that lead from what is known to a commit record, and whether it ends there.

    None if they do not lead there.
    """
    index, chain, all_used = known.index, known.chain, tail.is_clean
    entries: list[Entry] = []
    for record in tail.records:
        if not isinstance(record, Entry) or record.index <= index:
            continue
        if record.index > commit.index or not record.follows(chain):
            all_used = False
            break
        entries.append(record)
        index, chain = record.index, record.chain
    return (entries, all_used) if (index, chain) == (commit.index, commit.chain) else None


def _goes_on_from(view: View, known: View) -> bool:
    """Return whether nothing that is known is missing in the view."""
    chain = trail_chain(view.trail, view.index, known.index)
    return view.index >= known.index and chain in (known.chain, None)


def _at_snapshot(pool: MergedLog, contents: Iterable[LogContents], index: int) -> LogChain:
    """Return the log that ends with the snapshot at `index`."""
    header = next(log.snapshot for log in contents if log.snapshot is not None and log.snapshot.index == index)
    return pool.chain_ending_at(header.entry)
