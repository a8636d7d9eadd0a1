"""What to do with the volumes of a store as a session finds them: one pure decision, made from all logs at once.

Judged is everything that the metadata files of every volume that can be read say (log.py). The decision names the log
to lead with, who votes, and what each volume needs before it may count. Nothing here reads or writes.

The rules, with the reasons in docs/locks-and-stability.md:

- A log that ends below what any entry or snapshot says of it was rolled back: its volume does not vote.
- A bad record of which another volume has a whole copy is repaired from it, and the volume votes.
- A bad record above all marks, with nothing after it, without a copy, while no more than f voters cannot be read, is a
  torn tail: it is set aside, and the volume votes. Any other bad record is damage, and its volume does not vote.
- The log to lead with is the best (term, index) of all that can be read, also of volumes that do not vote. It must
  hold every commit record that can be read.
- A volume whose committed entries are on another branch than the majority is one of another copy of the store: it
  does not vote, and nothing that it says counts (branches.py). Without a majority on one branch nobody decides.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_core.errors import CorruptionError, NoQuorumError, ProcessError, StorageError
from storage_core.metadata.commands import Voter, ids_of_voters
from storage_core.os_errors import too_few
from storage_core.paths import is_in_object_store
from storage_core.raft.entry import START, CommitRecord, EntryId
from storage_core.raft.rules import is_quorum, losses_survived, majority, proven_entry, rank
from storage_core.store.ensemble import branches
from storage_core.store.ensemble.branches import BranchComparison, VolumeBranch
from storage_core.store.ensemble.merged_log import LogChain, MergedLog, Node
from storage_core.store.volume.identity import VolumeIdentity
from storage_core.store.volume.log_contents import LogContents, LogPosition
from storage_core.store.volume.state import VolumeState

_UNCHANGED = "Nothing has been changed; restore the volume from a copy"


def remedy(where: str, identities: Mapping[Path, VolumeIdentity] | None = None) -> str:
    """Return what to do about metadata that is lost; `where`: a volume, or several.

    `identities`: of the volumes that were named. If the store has more, those come first: they may be alive, and then
    this one is made anew from them.
    """
    named = identities or {}
    count = max((identity.volume_count for identity in named.values()), default=0)
    if count <= len(named):
        return f"Without a copy of the volume, {_rebuild(where)}"
    places = {str(place) for path, identity in named.items() for place in identity.places(path) if place not in named}
    at = f", last at {', '.join(sorted(places))}" if places else ""
    return (
        f"The store has {count} volumes{at}: name the others as well, and `jstream repair` rebuilds this one from "
        f"them. Only if most of them are gone for good, {_rebuild(where)}"
    )


def _rebuild(where: str) -> str:
    if is_in_object_store(where):  # of the metadata that is lost there, no journal tells
        return "restore a backup: `jstream restore`"
    return "`jstream repair --adopt` rebuilds the metadata from what is left"


@dataclass(frozen=True, slots=True)
class VolumeLogRead:
    """One volume as a session found it."""

    volume_id: bytes
    name: str  # where it is, for people
    instance_id: bytes = b""
    contents: LogContents | None = None  # None: its log says nothing
    state: VolumeState = VolumeState.MISSING  # without contents: why, MISSING, DAMAGED or FOREIGN
    reason: str = ""
    locked: bool = True  # by this session; else it was only looked at
    busy: bool = False  # another process has its lock
    error: StorageError | None = None  # what reading its log ended in
    identity: VolumeIdentity | None = None  # for advice: of the volumes that were named it may be the only one


@dataclass(frozen=True, slots=True)
class VolumeStatus:
    """What a volume's metadata is like, and what was decided about it."""

    state: VolumeState
    reason: str  # for people; empty if it is current
    votes: bool = False
    written: bool = False  # entries are written to it: it votes, or catches up
    up_to_date: bool = False  # it ends where the log that leads ends, all of it durable: it needs no new segment
    keep_up_to: int = 0  # otherwise: its entries up to here stay, later ones are written anew
    clear_commit_record: bool = False  # its commit record vouches for what is repaired: that goes first
    index: int = 0  # where its own log ends
    end: LogPosition = LogPosition(0, 0)  # the same as a place in its files


NOT_A_VOLUME = VolumeStatus(VolumeState.MISSING, "no volume of this store")


@dataclass(frozen=True, slots=True)
class LogDecision:
    chosen_log: LogChain
    commit: CommitRecord | None  # the highest that can be read
    term_seen: int  # the highest that anything speaks of
    durable: Mapping[bytes, int]  # by volume: the highest index that anything says to be durable there
    statuses: Mapping[bytes, VolumeStatus]
    above: str | None = None  # what was committed that the log to lead with does not hold
    split: str = ""  # why nobody can tell which branch of the log counts: who stands where

    @property
    def voting(self) -> list[bytes]:
        return [volume_id for volume_id, status in self.statuses.items() if status.votes]

    @property
    def is_recovered(self) -> bool:
        """Return whether nothing has to be written before the log may be gone on with."""
        return all(status.up_to_date for status in self.statuses.values() if status.written)


class LockContention(Exception):
    """Too few may vote, and one that could is locked by another process: let go, and try again."""


@dataclass(slots=True)
class _Judged:
    """A volume before it is known which log leads."""

    volume: VolumeLogRead
    contents: LogContents
    tip: EntryId
    bad: int = 0  # first position that is not whole; 0: none
    vote: bool = True
    written: bool = True
    state: VolumeState = VolumeState.CURRENT
    reason: str = ""


def decide(volumes: Sequence[VolumeLogRead], voters: Sequence[Voter]) -> LogDecision:
    """Return what to do, with the volumes in the order of `voters`.

    Raises NoQuorumError if too few volumes may vote, or copies of the store went separate ways and none has a majority,
    ProcessError if volumes refuse this process and enough would vote otherwise, CorruptionError if a commit record is
    above every log that can be read, or if the only volume is damaged; LockContention.
    """
    decision = examine(volumes, voters)
    if decision.split:
        if any(volume.contents is not None and volume.busy for volume in volumes):
            raise LockContention
        raise NoQuorumError(split_text(decision))
    _check_votes(decision, ids_of_voters(voters), volumes)
    if decision.above is not None:
        raise CorruptionError(decision.above)
    return decision


def examine(volumes: Sequence[VolumeLogRead], voters: Sequence[Voter]) -> LogDecision:
    """Return the same without a judgement on whether it is enough to go on with."""
    voting_ids = ids_of_voters(voters)
    at_hand = {volume.volume_id: volume for volume in volumes}
    statuses: dict[bytes, VolumeStatus] = {}
    read: dict[bytes, VolumeLogRead] = {}
    for voter in voters:
        volume = at_hand.get(
            voter.volume_id, VolumeLogRead(voter.volume_id, voter.path, reason="the volume was not found")
        )
        problem = _excluded(volume, voter)
        # What a retired volume holds counts, its vote does not.
        if problem is None or problem.state is VolumeState.RETIRED:
            read[voter.volume_id] = volume
        if problem is not None:
            statuses[voter.volume_id] = problem
    contents_of = {volume_id: volume.contents for volume_id, volume in read.items() if volume.contents is not None}
    pool = MergedLog(contents_of.values())
    comparison = _compare_branches(read, pool, voting_ids, majority(len(voting_ids)))
    for volume_id, why in comparison.foreign.items():
        statuses[volume_id] = _foreign(why, contents_of[volume_id])
    contents = {volume_id: log for volume_id, log in contents_of.items() if volume_id not in comparison.foreign}
    if comparison.foreign:
        pool = MergedLog(contents.values())
    unreadable = sum(volume_id not in contents for volume_id in voting_ids)
    rules = _Rules(contents, pool, unreadable <= losses_survived(len(voting_ids)), voting_ids)
    judged = [rules.judge(read[volume_id]) for volume_id in contents]
    for verdict in judged:
        may = verdict.volume.locked and verdict.volume.volume_id not in statuses
        verdict.vote = verdict.vote and may and verdict.volume.volume_id in voting_ids
        verdict.written = verdict.written and may
    chosen_log = _best((verdict.tip for verdict in judged), pool, comparison.held)
    for verdict in judged:
        statuses.setdefault(verdict.volume.volume_id, _status(verdict, chosen_log, is_split=bool(comparison.split)))
    term = max((log.term for log in contents.values()), default=0)
    ordered = {voter.volume_id: statuses[voter.volume_id] for voter in voters}
    return LogDecision(
        chosen_log, rules.commit, term, pool.statements, ordered, _above(judged, chosen_log), comparison.split
    )


def best_chain(volumes: Sequence[VolumeLogRead]) -> LogChain | None:
    """Return the log to learn from who the voters are: the best of the branch on which most volumes stand, if there is
    more than one. None if nothing can be read.
    """
    read = {volume.volume_id: volume for volume in volumes if volume.contents is not None}
    contents = {volume_id: volume.contents for volume_id, volume in read.items() if volume.contents is not None}
    if not contents:
        return None
    pool = MergedLog(contents.values())
    comparison = _compare_branches(read, pool, list(contents), majority(len(volumes)))
    return _best(
        (pool.tip_of(log) for key, log in contents.items() if key not in comparison.foreign), pool, comparison.held
    )


def split_text(decision: LogDecision) -> str:
    """Return what to say where no branch has a majority."""
    return (
        f"volumes of different copies of the store: {decision.split}. Nothing has been changed. Take away the volumes "
        "that are of the other copy, or bring those back that are missing"
    )


def foreign_of(volumes: Sequence[VolumeLogRead], decision: LogDecision) -> dict[bytes, CommitRecord | None]:
    """Return the volumes that are of another copy of the store, or another instance, with their commit records."""
    return {
        volume.volume_id: volume.contents.commit
        for volume in volumes
        if volume.contents is not None
        and volume.volume_id in decision.statuses
        and decision.statuses[volume.volume_id].state == VolumeState.FOREIGN
    }


def _compare_branches(
    read: Mapping[bytes, VolumeLogRead], pool: MergedLog, voting: Collection[bytes], needed: int
) -> BranchComparison:
    """Return which volumes are of another copy of the store."""
    branches_of_volumes = []
    for volume_id, volume in read.items():
        if volume.contents is None:
            continue
        snapshot, commit = volume.contents.snapshot, volume.contents.commit
        marks: list[tuple[Node, LogChain | None]] = []
        if snapshot is not None:
            marks.append(((snapshot.index, snapshot.chain), pool.chain_ending_at(snapshot.entry)))
        if commit is not None:
            place = pool.place_of(commit)
            marks.append(((commit.index, commit.chain), pool.chain_ending_at(place) if place is not None else None))
        log = pool.chain_ending_at(pool.tip_of(volume.contents))
        end = volume.contents.bad.index - 1 if volume.contents.bad is not None else _end(volume.contents)
        branches_of_volumes.append(
            VolumeBranch(volume_id, volume.name, log, tuple(marks), end, _stated(volume.contents))
        )
    return branches.compare(branches_of_volumes, voting, needed)


def _stated(contents: LogContents) -> Mapping[bytes, int]:
    """Return what one volume says of all: its entries up to what came before them, its commit record with the last."""
    commit, stated = contents.commit, MergedLog([contents]).statements
    named = {volume_id: max(stated.get(volume_id, 0), commit.index) for volume_id in commit.fsynced} if commit else {}
    return {**stated, **named}


def _end(contents: LogContents) -> int:
    """Return the last entry that a volume has, on a whole chain or not."""
    return max([contents.tip.index, *contents.entries_by_index])


def _best(tips: Iterable[EntryId], pool: MergedLog, held: Sequence[Node]) -> LogChain:
    """Return the best log that holds these entries; below its snapshot that is taken for granted."""
    logs = [pool.chain_ending_at(tip) for tip in sorted(set(tips), key=rank, reverse=True)]
    return next(
        (log for log in logs if all(log.agrees(*node) for node in held)),
        logs[0] if logs else LogChain(START, None, None, ()),
    )


def _foreign(why: str, contents: LogContents) -> VolumeStatus:
    return VolumeStatus(VolumeState.FOREIGN, why, index=contents.tip.index)


def _excluded(volume: VolumeLogRead, voter: Voter) -> VolumeStatus | None:
    """Return why a volume is no part of this session at all, None if it is."""
    if volume.contents is None:
        return VolumeStatus(volume.state, volume.reason)
    index = volume.contents.tip.index
    if volume.instance_id != voter.instance_id:
        reason = (
            f"{volume.name} is instance {volume.instance_id.hex()[:8]} of the volume, not {voter.instance_id.hex()[:8]}"
        )
        return VolumeStatus(VolumeState.FOREIGN, reason, index=index)
    if voter.retired:
        return VolumeStatus(VolumeState.RETIRED, voter.retired, index=index)
    return None


class _Rules:
    """What all logs together say about each volume."""

    def __init__(
        self, contents: Mapping[bytes, LogContents], pool: MergedLog, may_cut: bool, voting: Collection[bytes]
    ) -> None:
        self._contents, self._pool, self._may_cut = contents, pool, may_cut
        records = [log.commit for log in contents.values() if log.commit is not None]
        self.commit = max(records, key=lambda record: (record.index, record.generation), default=None)
        ends = {volume_id: log.end for volume_id, log in contents.items() if log.end is not None}
        proven = proven_entry(voting, ends)
        if proven is not None and (self.commit is None or proven.index > self.commit.index):
            self.commit = CommitRecord(proven.index, proven.term, proven.index, proven.chain)

    def judge(self, volume: VolumeLogRead) -> _Judged:
        """Return whether a volume may vote as far as its own log, the marks and the others' copies go."""
        contents = self._contents[volume.volume_id]
        judged = _Judged(volume, contents, self._pool.tip_of(contents))
        end = _end(contents)
        said = self._pool.statements.get(volume.volume_id, 0)
        snapshot_index = contents.snapshot.index if contents.snapshot is not None else 0
        # Entry 1 was durable before the volume had its identity.
        marks = max(1, snapshot_index, said, self.commit.index if self.commit is not None else 0)
        if end < said:
            judged.vote, judged.state = False, VolumeState.ROLLED_BACK
            judged.reason = f"{volume.name}: the log ends at entry {end}, and entries up to {said} were durable there"
        own, followed = contents.commit, False
        if contents.bad is not None:
            judged.bad, followed = contents.bad.index, contents.bad.followed
            problem = f"the metadata log is damaged at entry {judged.bad} ({contents.bad.where})"
        elif contents.tip.index < max(1, own.index if own is not None else 0):
            judged.bad = contents.tip.index + 1
            problem = f"the metadata log ends at entry {contents.tip.index}: it was cut or rolled back"
        if not judged.bad:
            return judged
        if self._has_copy(volume.volume_id, judged.bad):
            if judged.bad <= marks or followed:
                judged.state, judged.reason = (
                    VolumeState.DAMAGED,
                    f"{volume.name}: {problem}; another volume has a whole copy",
                )
            return judged
        if judged.bad <= marks or followed:
            judged.reason = f"{volume.name}: {problem}; entries up to {marks} were committed. {_UNCHANGED}"
        elif contents.marks_are_lost:
            judged.reason = (
                f"{volume.name}: {problem}, and so are the commit records, which tell what counts. {_UNCHANGED}"
            )
        elif not self._may_cut:
            judged.reason = f"{volume.name}: {problem}, and too few other volumes can be read to tell what it was"
        else:
            return judged  # a torn tail
        judged.vote = judged.written = False
        judged.state = VolumeState.DAMAGED
        return judged

    def _has_copy(self, volume_id: bytes, index: int) -> bool:
        """Return whether another volume has a whole entry at `index`, or a snapshot that covers it."""
        others = [log for other_id, log in self._contents.items() if other_id != volume_id]
        if any(log.snapshot is not None and log.snapshot.index >= index for log in others):
            return True
        return any(self._pool.holds(log.entries_by_index.get(index)) for log in others)


def _status(judged: _Judged, chosen_log: LogChain, is_split: bool) -> VolumeStatus:
    index, commit, snapshot = judged.contents.tip.index, judged.contents.commit, judged.contents.snapshot
    for mark in (snapshot, commit):
        if (
            is_split
            and mark is not None
            and mark.index <= chosen_log.tip.index
            and not chosen_log.agrees(mark.index, mark.chain)
        ):
            return _foreign(branches.foreign_reason(judged.volume.name, mark.index, 2), judged.contents)
    up_to_date = (
        not judged.bad
        and judged.contents.tip == chosen_log.tip
        and commit is not None
        and (commit.index, commit.chain) == (chosen_log.tip.index, chosen_log.tip.chain)
        and judged.contents.tail_is_clean
        and judged.contents.slots_are_whole
    )
    state, reason = judged.state, judged.reason
    if state == VolumeState.CURRENT and judged.contents.tip.index < chosen_log.tip.index:
        state = VolumeState.BEHIND
        reason = f"{judged.volume.name}: the log ends at entry {index}, that which leads at {chosen_log.tip.index}"
    clear_commit_record = bool(judged.bad) and commit is not None and judged.bad <= commit.index
    keep_up_to = _kept(judged, chosen_log)
    if judged.bad:
        keep_up_to = min(keep_up_to, judged.bad - 1)
    return VolumeStatus(
        state,
        reason,
        judged.vote,
        judged.written,
        up_to_date,
        keep_up_to,
        clear_commit_record,
        index,
        judged.contents.position,
    )


def _kept(judged: _Judged, chosen_log: LogChain) -> int:
    """Return up to where the volume's own log is durable and the same as the one that leads."""
    contents = judged.contents
    base = contents.snapshot.index if contents.snapshot is not None else 0
    durable = base
    if contents.commit is not None and base <= contents.commit.index <= contents.tip.index:
        durable = contents.commit.index
    while durable > base:
        entry = contents.entries[durable - base - 1]
        if chosen_log.agrees(entry.index, entry.chain) and entry.index <= chosen_log.tip.index:
            break
        durable -= 1
    return durable


def _check_votes(decision: LogDecision, voting_ids: Sequence[bytes], volumes: Sequence[VolumeLogRead]) -> None:
    if is_quorum(voting_ids, decision.voting):
        return
    needed = majority(len(voting_ids))
    if any(volume.contents is not None and volume.busy for volume in volumes):
        raise LockContention
    where = volumes[0].name if volumes else ""
    if len(voting_ids) == 1:
        identities = {Path(volume.name): volume.identity for volume in volumes if volume.identity is not None}
        for volume in volumes:
            if volume.volume_id == voting_ids[0] and volume.error is not None:
                if type(volume.error) is CorruptionError:
                    raise CorruptionError(
                        f"{volume.error}. {remedy(volume.name, identities)}", **volume.error.fields
                    ) from volume.error
                raise volume.error
        raise CorruptionError(f"{decision.statuses[voting_ids[0]].reason}. {remedy(where, identities)}")
    others = [decision.statuses[volume_id] for volume_id in voting_ids if not decision.statuses[volume_id].votes]
    reasons = "; ".join(f"{status.state}: {status.reason}" for status in others)
    sound = (VolumeState.CURRENT, VolumeState.BEHIND, VolumeState.ROLLED_BACK, VolumeState.RETIRED)
    whole = [volume_id for volume_id in voting_ids if decision.statuses[volume_id].state in sound]
    if len(whole) >= needed:  # nothing has to be made anew of them
        advice = "Bring a volume back; take away one that is of another copy of the store"
    else:
        advice = f"Bring a volume back; if they are gone for good, {_rebuild(where)}"
    error = NoQuorumError(
        f"{len(decision.voting)} of {len(voting_ids)} volumes can vote, {needed} are needed ({reasons}). Nothing has "
        f"been changed. {advice}",
        available=len(decision.voting),
        needed=needed,
    )
    errors = {volume.volume_id: volume.error for volume in volumes}
    missing = [errors.get(volume_id) for volume_id in voting_ids if not decision.statuses[volume_id].votes]
    raise too_few(error, [why for why in missing if isinstance(why, ProcessError)])


def _above(judged: Sequence[_Judged], chosen_log: LogChain) -> str | None:
    for verdict in judged:
        commit = verdict.contents.commit
        if commit is None or chosen_log.agrees(commit.index, commit.chain):
            continue
        return (
            f"{verdict.volume.name}: the metadata log ends at entry {chosen_log.tip.index} without entry "
            f"{commit.index}, and entries up to there were committed: it was cut or rolled back. {_UNCHANGED}"
        )
    return None
