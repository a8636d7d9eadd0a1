"""Sessions: the time for which one process holds a store, and what it may do with it.

A session holds the locks of a majority of the volumes at least. It reads what others left on every volume that can be
read, decides what counts (decision.py), makes that durable, and proposes commands; each is on the disks of a majority
before `propose` returns. One process hosts all voters: no messages, one state machine, a log a volume.

What a session finds, and what it does (docs/locks-and-stability.md has the table with every row):

- nobody led since this process did: its term and state still hold; one look at each log, and one round of fsyncs a
  command; in object stores a process that has just read the view goes by it without another look;
- others led, all they wrote is committed on every volume: their entries are applied, a vote opens a new term;
- anything else: what may be in the page cache only is rewritten into new segments, volumes that are behind catch up,
  votes are fsynced, and an entry of the new term commits it all;
- too little is left to be sure: nothing is written.

The procedure is here: read, decide, make durable, propose. Its state is session_state.py; catch_up.py advances the
cached view; log_recovery.py decides about volumes that were read in full; parallel_io.py does I/O on several logs at
once; volume_events.py says what is recorded of the volumes, host_check.py which host writes.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from storage_core.errors import CorruptionError, RequirementError, StorageError, SupersededError
from storage_core.file_kinds import LOG_SEGMENT
from storage_core.metadata import machine
from storage_core.metadata.commands import (
    Acknowledge,
    ChangeVolumes,
    Command,
    DeleteConsumer,
    DeleteStream,
    Envelope,
    NoOp,
    RecordEvents,
    Remove,
    TakeConsumer,
    TakeOver,
    Unlinked,
    Voter,
    encode_envelope,
    ids_of_voters,
)
from storage_core.metadata.state import StoreState, encode_state
from storage_core.os_errors import UnreachableError, raise_if_limit
from storage_core.raft.entry import HISTORY_SIZE, CommitRecord, EntryId, make_entry
from storage_core.raft.log_format import PAYLOAD_SIZE_MAX
from storage_core.raft.log_format import Record as LogRecord
from storage_core.raft.rules import committed_index, is_quorum, next_term
from storage_core.raft.snapshot_format import STATE_SIZE_MAX, SnapshotBody
from storage_core.store.ensemble.catch_up import advance_view
from storage_core.store.ensemble.decision import NOT_A_VOLUME, LogDecision, VolumeStatus, foreign_of
from storage_core.store.ensemble.host_check import check_host
from storage_core.store.ensemble.log_recovery import decide_by, rewrite, snapshot_body, view_of
from storage_core.store.ensemble.merged_log import LogChain
from storage_core.store.ensemble.parallel_io import Logs, ReserveAllowance, Work, is_failure
from storage_core.store.ensemble.process_cache import Leadership, ProcessCache
from storage_core.store.ensemble.session_state import Proposal, SessionState
from storage_core.store.ensemble.view import View, with_entry
from storage_core.store.ensemble.volume_events import of_older_copies, retirement, volume_events
from storage_core.store.volume import probe, reserve
from storage_core.store.volume.locks import HeldLocks
from storage_core.store.volume.log import SEGMENT_SIZE_MAX, SyncError
from storage_core.store.volume.log_contents import LogPosition, TailRead
from storage_core.store.volume.state import VolumeState
from storage_core.store.volume.volumes import Volume, label

logger = logging.getLogger(__name__)
# A large state is written less often, so that each entry costs a bounded part of it.
SNAPSHOT_BLOCKS_PER_ENTRY = 1024
SNAPSHOT_RECORDS_PER_ENTRY = 4  # streams and consumers
# What may use the reserves of full volumes: there is less to keep after it, so it comes to an end. Not what makes no
# room and may come again and again, until none is left for a removal: AdvanceConsumers, a writer's Abort.
FREEING = (Remove, DeleteStream, DeleteConsumer, Unlinked)
LOG_SIZE_FREEING_MAX = LOG_SEGMENT.size_max - (16 << 20)  # bytes of a segment; room for what padding and seals take
LOG_SIZE_MAX = LOG_SIZE_FREEING_MAX - PAYLOAD_SIZE_MAX  # room for what removes
ACKNOWLEDGE_LEAVES = reserve.SIZE // 2  # bytes of a reserve: acknowledgements may use no more of what removals need


class RescanRequired(Exception):
    """Something is not as it was when this process last looked at the volumes: begin again after another look."""


class _TakenBack(Exception):
    """A job was only tried out."""


class Session:
    """The time in which one process leads and may write metadata. Made by `Metadata.session`."""

    def __init__(
        self,
        cache: ProcessCache,
        volumes: Sequence[Volume],
        held: HeldLocks,
        is_fresh: bool = True,
        optimistic: bool = False,
        looked_at: View | None = None,
    ) -> None:
        """`is_fresh`: the volumes were read just now; otherwise they are as this process last read them.

        `optimistic`: the session writes in groups only. In object stores it then does not read the logs if this process
        led last, or if the caller has just read the view `looked_at`: a write that does not follow the end of a log is
        refused there. On disks it changes nothing.
        """
        self._cache, self._env, self._held = cache, cache.env, held
        self.volumes, self.locked, self.busy = tuple(volumes), held.locked, held.busy
        self._is_fresh, self._optimistic, self._looked_at = is_fresh, optimistic, looked_at
        self._is_unconfirmed = False  # that nobody has led since: what is written next will tell
        self._logs = Logs(self._env, volumes, cache.logs)
        self._is_over = False  # in order
        self._statuses: Mapping[bytes, VolumeStatus] = {}
        self._decision: LogDecision | None = None
        self._wrote = False  # a command in this session
        self._grouping = False
        self._now: SessionState
        self._written: SessionState  # before the first of the entries that are staged

    # --- what there is

    @property
    def view(self) -> View:
        return self._now.view

    @property
    def state(self) -> StoreState:
        return self._now.view.state

    @property
    def label(self) -> str:
        """The store's volumes, for messages."""
        return label(self.volumes)

    @property
    def writable(self) -> tuple[Volume, ...]:
        """The volumes that may be written in this session: locked, of the recorded instance, without a failed I/O."""
        return tuple(volume for volume in self.volumes if volume.volume_id in self._now.members)

    @property
    def failing(self) -> frozenset[bytes]:
        """The volumes that failed in this session, or are known to have failed, and are about to be retired."""
        return frozenset(self._now.retiring)

    @property
    def is_whole(self) -> bool:
        """Return whether every volume's log was read and ends with what is committed: no other entry is anywhere."""
        durable = self.view.durable
        return all(
            voter.volume_id in self._now.members and durable.get(voter.volume_id) == self.view.index
            for voter in self.state.voters
        )

    @property
    def leadership(self) -> Leadership | None:
        """This process's leadership; None if it does not lead, or leads no more since something failed."""
        return self._cache.known.leadership

    @property
    def drew_on_reserves(self) -> bool:
        """Return whether full volumes gave up some of their reserves, which have to be filled again."""
        return self._logs.drew_on_reserves

    def status(self, volume_id: bytes) -> VolumeStatus:
        """Return what this session found the volume's metadata to be, brought up to date by what it wrote since."""
        durable = self.view.durable.get(volume_id, 0)
        if volume_id in self._now.members and durable == self.view.index:
            return VolumeStatus(VolumeState.CURRENT, "", index=durable)
        status, voter = self._statuses.get(volume_id), self.state.voter(volume_id)
        if status is not None and status.state == VolumeState.FOREIGN:
            return status
        if voter is not None and voter.retired:  # perhaps since all was read
            return VolumeStatus(VolumeState.RETIRED, voter.retired, index=durable)
        if status is not None:
            return replace(status, state=VolumeState.BEHIND) if status.state == VolumeState.CURRENT else status
        # This process has never read everything.
        volume = next((volume for volume in self.volumes if volume.volume_id == volume_id), None)
        if volume is None:
            return NOT_A_VOLUME
        state = volume.state if volume.identity is None else VolumeState.BEHIND
        return VolumeStatus(state, volume.reason, index=durable)

    def ensure_leadership(self) -> Leadership:
        """Return this process's leadership; one that has not led yet opens a term. The last entry is then its own."""
        if self._cache.known.leadership is None:
            self.propose(NoOp())
        assert self._cache.known.leadership is not None
        return self._cache.known.leadership

    def close(self) -> None:
        """Close the files of the logs, before the locks are let go of; after a session without a failure they stay."""
        self._logs.close(keeps=self._is_over)

    def _update_view(self, **changes: Any) -> None:
        """Go by this view from here on."""
        self._now = replace(self._now, view=replace(self._now.view, **changes))

    def _voting_ids(self) -> list[bytes]:
        return ids_of_voters(self.state.voters)

    # --- the beginning: all contents, what counts

    def begin(self, take_over: bool, releases_space: bool = False) -> None:
        """Read all contents, and make what counts durable and committed.

        `releases_space`: what has to be written may use the reserves.
        """
        known = self._cache.known.view
        if known is None or not self._catch_up(known):
            if not self._is_fresh:
                raise RescanRequired
            self._cache.forget()
            self._decision = self._load_all()
        moved = self._check_host(take_over)  # refused before anything is written
        if self._decision is not None and not self._decision.is_recovered:
            self._recover(self._decision, releases_space)
        self._now = replace(self._now, retiring={**self._unretired(), **self._now.retiring})
        if moved is not None:
            self.propose(moved, releases_space)

    def _unretired(self) -> dict[bytes, str]:
        """Return volumes that failed in this process before, which nobody could write down then."""
        failed = self._cache.known.failed
        keys = [(voter.volume_id, voter.instance_id) for voter in self.state.voters if not voter.retired]
        return {key[0]: failed[key] for key in keys if key in failed}

    def _check_host(self, take_over: bool) -> TakeOver | None:
        """Return what moves the store here; None if it is written from here already.

        Raises OtherHostError, VolumeFailedError (a file system on which no store can be).
        """
        moved = check_host(self.state, self.volumes, self.label, self._env, take_over)
        if moved is not None:
            for path in self.locked:
                probe.check(path, self._env)
        return moved

    def _usable(self, voters: Sequence[Voter]) -> list[bytes]:
        """Return the volumes that take part: there, of the recorded instance, not retired, not failed before."""
        identities = {volume.volume_id: volume.identity for volume in self.volumes}
        usable = []
        for voter in voters:
            identity = identities.get(voter.volume_id)
            if identity is None or identity.instance_id != voter.instance_id:
                continue
            if not voter.retired and (voter.volume_id, voter.instance_id) not in self._cache.known.failed:
                usable.append(voter.volume_id)
        return usable

    def _catch_up(self, known: View) -> bool:
        """Move on from `known` by the records behind it; False if that is not all there is to know.

        It is all if every volume that takes part did so at the last look, is locked, ends clean, and has a commit
        record that names its last entry. Without any record of others the term of this process still holds.
        """
        voters = {voter.volume_id for voter in known.state.voters}
        if not voters <= {volume.volume_id for volume in self.volumes}:
            return False  # some came with the last change, and have not been looked for yet
        usable = self._usable(known.state.voters)
        locked = {volume.volume_id for volume in self.volumes if volume.path in self.locked}
        if set(known.positions) != set(usable) or not locked.issuperset(usable):
            return False
        if not is_quorum(ids_of_voters(known.state.voters), usable):
            return False
        if self._optimistic and self._is_refused_if_outdated(known, usable):
            assert known.commit is not None
            looks: dict[bytes, TailRead] | None = {
                volume_id: TailRead(known.commit, [], known.positions[volume_id]) for volume_id in usable
            }
            self._is_unconfirmed = True
        else:
            looks = self._looks(known, usable)
        if looks is None:
            return False
        view = advance_view(known, list(looks.values()))
        if view is None or {voter.volume_id for voter in view.state.voters} != voters:
            return False
        positions = {volume_id: look.position for volume_id, look in looks.items()}
        has_read = any(look.records for look in looks.values())
        # What others wrote may also lie before the known positions: this process has read since it led.
        if has_read or dict(known.positions) != self._cache.known.last_written_ends:
            self._cache.forget()
        durable = {**view.durable, **dict.fromkeys(usable, view.index)}
        view = replace(view, positions=positions, durable=durable)
        self._now = SessionState(view, tuple(usable), frozenset(usable).intersection(ids_of_voters(view.state.voters)))
        self._statuses = self._cache.known.statuses
        self._cache.keep(view)
        return True

    def _is_refused_if_outdated(self, known: View, usable: Sequence[bytes]) -> bool:
        """Return whether it is enough that the next write is refused where the logs do not end with this view.

        So it is in object stores, where a record is created once. It saves a look to a process that led last, as far as
        it knows, or has just read this view.
        """
        return (
            (self._cache.leads or known is self._looked_at)
            and known.commit is not None
            and known.commit.index == known.index
            and all(volume.is_remote for volume in self.volumes if volume.volume_id in usable)
        )

    def _looks(self, known: View, volume_ids: Sequence[bytes]) -> dict[bytes, TailRead] | None:
        """Return what stands behind a view on each volume; None if a full reading is called for."""
        looks: dict[bytes, TailRead] = {}
        works = {volume_id: _looking(known.positions[volume_id], known.commit) for volume_id in volume_ids}
        for volume_id, look in self._logs.on_each(works).items():
            if look is None:
                return None
            if isinstance(look, (StorageError, OSError)):
                raise_if_limit(look)
                return None
            if isinstance(look, BaseException):
                raise look
            looks[volume_id] = look
        return looks

    def _load_all(self) -> LogDecision:
        """Read everything anew; return what was decided. The view is that of the log to lead with."""
        volumes = self._cache.read_all(self.volumes, self._held)
        decision = decide_by(volumes, self._cache)
        self._check_known(decision.chosen_log)
        view = view_of(decision, volumes, self._cache)
        members = tuple(volume_id for volume_id, status in decision.statuses.items() if status.written)
        self._now = SessionState(view, members, frozenset(decision.voting))
        self._statuses = decision.statuses
        self._cache.decided(decision.statuses, foreign_of(volumes, decision))
        if decision.is_recovered:
            self._cache.keep(view)
        return decision

    def _check_known(self, chosen: LogChain) -> None:
        """Raise CorruptionError if the volumes hold less than this process has seen to be committed."""
        known = self._cache.known.view
        if known is None or (known.index <= chosen.tip.index and chosen.agrees(known.index, known.chain)):
            return
        raise CorruptionError(
            f"{self.label}: the metadata log ends at entry {chosen.tip.index} or is another one, and this process has "
            f"seen entry {known.index} of it committed: volumes were rolled back or exchanged. Nothing has been "
            "changed; to use the store as it is now, open it again"
        )

    def _recover(self, decision: LogDecision, releases_space: bool) -> None:
        """Rewrite what may be in the page cache only, bring volumes up to the log that leads, and commit it."""
        leadership = self._new_leadership(decision.term_seen)
        body = snapshot_body(decision.chosen_log, leadership.vote, self.view.durable)

        def prepare(volume_id: bytes) -> Work[LogPosition]:
            status = decision.statuses[volume_id]
            if status.up_to_date:
                return _appending(self.view, volume_id, [leadership.vote])
            return partial(rewrite, status=status, decision=decision, vote=leadership.vote, body=body)

        positions = self._on_members(prepare, "segment", self._allowance(releases_space))
        durable = {**self.view.durable, **dict.fromkeys(positions, self.view.index)}
        self._update_view(positions=positions, term_seen=leadership.term, durable=durable)
        self._cache.start_term(leadership)
        opening = of_older_copies(self.state, decision.statuses, self.volumes) or NoOp()
        self._write(self._apply(opening, leadership), leadership, releases_space)
        for volume in self.writable:
            if not decision.statuses[volume.volume_id].up_to_date:
                self._make_directories(volume)

    def _make_directories(self, volume: Volume) -> None:
        """Make the directories of streams that were added while the volume was away, so that it takes new blocks."""
        streams = [stream for stream in self.state.streams.values() if volume.volume_id in stream.placement]
        try:
            volume.blocks.prepare(stream.incarnation for stream in streams)
        except OSError as error:
            logger.warning("%s: directories of streams: %s", volume.path, error)

    # --- proposing

    def propose(self, command: Command, releases_space: bool = False) -> machine.Outcome:
        """Return the command's result: it is committed, durable on a majority, if it changes anything.

        `releases_space`: the caller makes room with it, so it may use the reserves of full volumes, as those in FREEING
        may; acknowledgements, by which work is finished, may use a part of them.
        Raises what it is refused with, DiskFullError, VolumeFailedError or NoQuorumError if nothing was stored,
        OutcomeUnknownError if that cannot be known.
        """
        is_ack = isinstance(command, (Acknowledge, TakeConsumer))
        releases_space = releases_space or is_ack or isinstance(command, FREEING)
        leadership = self._leadership()
        change = self._apply(command, leadership)
        if change.changes_nothing:
            return change.outcome()
        self._stage(change, leadership, releases_space, ACKNOWLEDGE_LEAVES if is_ack else 0)
        if not self._grouping:
            self._flush()
            self._wrote = True
            self._retire()
        return change.outcome()

    @contextmanager
    def group(self) -> Iterator[None]:
        """Write the commands that are proposed inside together: one round of syncs for all of them.

        Their results hold when this ends. If the block raises, nothing is written. If the write raises, no command
        counts as committed; after OutcomeUnknownError they may be stored all the same.
        """
        self._grouping = True
        try:
            with self.savepoint():
                yield
        finally:
            self._grouping = False
        if self._now.staged:
            self._flush()
            self._wrote = True
            self._retire()
        elif self._is_unconfirmed:
            self._confirm()
        self._is_unconfirmed = False
        follow_ups = self._now.follow_ups
        self._now = replace(self._now, follow_ups=())
        for work in follow_ups:
            self._follow_up(work)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Take back what is proposed within a group's block if the block raises: entries, caches' updates and all."""
        assert self._grouping, "what is written at once cannot be taken back"
        before = self._now
        try:
            yield
        except BaseException:
            undo_steps = self._now.undo_steps[len(before.undo_steps) :]
            self._now = self._now.back_to(before)
            self._undo(undo_steps)
            raise

    def try_out(self, job: Callable[[], object]) -> None:
        """Raise what a job raises in a group; whatever it proposes is taken back."""
        try:
            with self.group():
                job()
                raise _TakenBack
        except _TakenBack:
            return

    def _undo(self, steps: Sequence[Callable[[], None]]) -> None:
        for undo in reversed(steps):
            try:
                undo()
            except (StorageError, OSError) as error:
                logger.warning("%s: what a change that was taken back has left stays: %s", self.label, error)

    def when_committed(self, update: Callable[[], None]) -> None:
        """Update a cache once what is staged is committed, at once if nothing is; never if it is taken back."""
        if self._now.staged:
            self._now = replace(self._now, cache_updates=(*self._now.cache_updates, update))
        else:
            update()

    def if_taken_back(self, undo: Callable[[], None]) -> None:
        """Do this if what is staged is taken back, and nothing of it is anywhere."""
        if self._grouping:
            self._now = replace(self._now, undo_steps=(*self._now.undo_steps, undo))

    def follow_up(self, work: Callable[[], object]) -> None:
        """Do this after the group's round, if that succeeds: what is done stays done if this fails, which is logged."""
        if self._grouping:
            self._now = replace(self._now, follow_ups=(*self._now.follow_ups, work))
        else:
            self._follow_up(work)

    def _follow_up(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            logger.warning("%s: what was to follow a commit was not done: %s", self.label, error)

    @property
    def cache_updates(self) -> tuple[Callable[[], None], ...]:
        """What caches do not know yet of what is staged, in its order."""
        return self._now.cache_updates

    @property
    def committed(self) -> StoreState:
        """The state without what is staged: nothing takes it back."""
        return (self._written if self._now.staged else self._now).view.state

    def _confirm(self) -> None:
        """Raise SupersededError if others have led since this process did: what was found out here may not hold."""
        if self._looks(self.view, list(self.view.positions)) is None:
            self._cache.forget()
            raise SupersededError(f"{self.label}: another process has led since; nothing was stored")

    def admit(self, volume: Volume, position: LogPosition, command: ChangeVolumes) -> None:
        """Propose the entry that takes in a volume, whose log was made to end where the others end.

        It is written together with the others from that entry on, and counts once the others have committed it. The
        caller holds its lock. Raises as `propose` does.
        """
        volume_id = volume.volume_id
        known = {member.volume_id: member for member in self.volumes} | {volume_id: volume}
        order = [voter.volume_id for voter in command.voters]
        self.volumes = tuple(sorted(known.values(), key=lambda member: _place_in(order, member.volume_id)))
        self._logs.add(volume)
        members = sorted({*self._now.members, volume_id}, key=lambda member: _place_in(order, member))
        self._now = replace(self._now, members=tuple(members))
        self._update_view(
            positions={**self.view.positions, volume_id: position},
            durable={**self.view.durable, volume_id: self.view.index},
        )
        self.propose(command)
        if volume_id in self._now.members and volume_id in self._voting_ids():
            self._now = replace(self._now, voting=self._now.voting | {volume_id})

    def check(self, command: Command) -> machine.Outcome:
        """Return what the command would come to, or raise what it would be refused with; nothing is written."""
        return self._apply(command, self._new_leadership(self.view.term_seen)).outcome()

    def _apply(self, command: Command, leadership: Leadership) -> Proposal:
        """Return what the command comes to as the next entry of this leadership. The state machine is pure, and a
        command is applied once: the next table of a manifest shares the buffer of the one before only once.
        """
        current = {voter.volume_id for voter in self.state.voters}
        durable = {volume_id: index for volume_id, index in self.view.durable.items() if volume_id in current}
        envelope = Envelope(self._env.now_ns(), command, durable)
        place = machine.Place(self.view.index + 1, leadership.history)
        return Proposal(envelope, self.state, *machine.apply(self.state, place, envelope))

    def _leadership(self) -> Leadership:
        """Return this process's leadership; if it leads no more, that for which it campaigns next."""
        candidacy = self._now.candidacy if self._now.staged else None
        return candidacy or self._cache.known.leadership or self._new_leadership(self.view.term_seen)

    def _new_leadership(self, term_seen: int) -> Leadership:
        return Leadership(next_term([term_seen]), self._env.random_bytes(HISTORY_SIZE), self._env.new_id())

    def _campaign(self, leadership: Leadership, releases_space: bool, reserve_min: int) -> None:
        """Open a new term: the vote is durable on a majority before any entry of the term is written."""
        view = self.view
        positions = self._on_members(
            lambda volume_id: _appending(view, volume_id, [leadership.vote]),
            "vote",
            ReserveAllowance(reserve_min) if releases_space else None,
        )
        self._update_view(positions=positions, term_seen=leadership.term)
        self._cache.start_term(leadership)

    def _write(self, change: Proposal, leadership: Leadership, releases_space: bool = False) -> None:
        self._stage(change, leadership, releases_space)
        self._flush()

    def _stage(self, change: Proposal, leadership: Leadership, releases_space: bool, reserve_min: int = 0) -> None:
        """Make a command the next entry, and the state that after it; nothing is written yet, not even a vote."""
        record = self._now
        before = record.view
        payload = encode_envelope(change.envelope)
        if len(payload) > PAYLOAD_SIZE_MAX:
            raise RequirementError(
                f"{self.label}: a change of {len(payload)} bytes is too large for one entry of the metadata log, which "
                f"has {PAYLOAD_SIZE_MAX} at most; nothing was stored: do it in several parts"
            )
        log_size = max((position.offset_bytes for position in before.positions.values()), default=0)
        log_size += len(payload) + sum(len(entry.payload) for entry in record.staged)
        if log_size > (LOG_SIZE_FREEING_MAX if releases_space else LOG_SIZE_MAX):
            raise RequirementError(
                f"{self.label}: the metadata log would grow to {log_size} bytes without a snapshot in between; nothing "
                "was stored: remove streams, merge small blocks, or commit less at once"
            )
        entry = make_entry(before.chain, before.index + 1, leadership.term, leadership.history, payload)
        if not record.staged:
            self._written = record
        voting = record.voting
        if change.state.voters is not before.state.voters:
            # Such an entry is decided by the voters that it names. A learner that is written to is in step.
            learners = {voter.volume_id for voter in before.state.voters if voter.learner}
            promoted = learners.intersection(record.members)
            voting = (voting | promoted).intersection(ids_of_voters(change.state.voters))
        self._now = replace(
            record,
            view=with_entry(before, change.state, entry),
            voting=voting,
            staged=(*record.staged, entry),
            releases_space=releases_space and (record.releases_space or not record.staged),
            reserve_min=max(reserve_min, record.reserve_min if record.staged else 0),
            candidacy=leadership,
        )

    def _flush(self) -> None:
        """Append the staged entries to every member, fsync them, and move the commit records.

        Then, and nowhere else, caches learn what was staged.
        """
        try:
            if self._cache.known.leadership is None:
                self._open_term()
            record, before = self._now, self._written.view
            entries, last = record.staged, record.staged[-1]
            positions = self._on_members(
                lambda volume_id: _appending(before, volume_id, entries),
                "entry",
                self._allowance(record.releases_space),
            )
        except BaseException as error:
            undo_steps = self._now.undo_steps
            self._take_back()
            if isinstance(error, SupersededError):  # nothing was stored
                self._undo(undo_steps)
            raise
        generation = before.commit.generation + 1 if before.commit is not None else 1
        ends = dict.fromkeys(self._now.voting.intersection(positions), last.id)
        known = before.commit.index if before.commit is not None else 0
        assert committed_index(self._voting_ids(), ends, last.term, known) == last.index, (ends, last.id)
        commit = CommitRecord(generation, last.term, last.index, last.chain, tuple(positions))
        durable = {**before.durable, **dict.fromkeys(positions, last.index)}
        cache_updates = self._now.cache_updates
        self._now = replace(self._now, staged=(), candidacy=None, cache_updates=(), undo_steps=())
        self._update_view(commit=commit, positions=positions, durable=durable)
        moved = self._write_commit_records(positions, commit)
        if not all(moved):
            self._cache.forget()
        if not any(moved):  # the command is done; without its record the next session recovers it again
            self._update_view(commit=before.commit)
        self._cache.record_write(self.view)
        for update in cache_updates:
            try:
                update()
            except Exception:  # the entries are committed; the cache finds out that it lags
                logger.exception("%s: a cache was not updated", self.label)

    def _open_term(self) -> None:
        """Make the vote durable under which the staged entries are made: it comes before the first of them."""
        staged = self._now
        assert staged.candidacy is not None
        self._now = staged.back_to(self._written)
        self._campaign(staged.candidacy, staged.releases_space, staged.reserve_min)
        self._written = self._now
        self._now = staged.on_top_of(self._written)

    def _take_back(self) -> None:
        """Forget entries that were not written."""
        if self._now.staged:
            self._now = self._now.back_to(self._written)

    def _write_commit_records(self, positions: Mapping[bytes, LogPosition], commit: CommitRecord) -> list[bool]:
        """Move the commit records of volumes whose logs up to there were fsynced; return whether each went well."""
        works = {volume_id: _recording(at, commit) for volume_id, at in positions.items()}
        outcomes = self._logs.on_each(works)
        for volume_id, outcome in outcomes.items():
            if isinstance(outcome, OSError):
                logger.warning("%s: the commit record could not be written: %s", self._logs.name(volume_id), outcome)
                self._leave_out(volume_id, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
        return [outcome is None for outcome in outcomes.values()]

    def _on_members(
        self, work: Callable[[bytes], Work[LogPosition]], kind: str, allowance: ReserveAllowance | None
    ) -> dict[bytes, LogPosition]:
        """Do one piece of I/O on the logs of all members at once; return where each ends now, by volume.

        A member that fails is left out from here on. Raises if a majority of the voters did not succeed: what was
        stored then, and whether, is for the error to say.
        """
        try:
            written = self._logs.write(kind, {member: work(member) for member in self._now.members}, allowance)
        except BaseException:
            self._cache.forget()
            raise
        voting = self._voting_ids()
        reached = self._now.voting.intersection(written.positions)
        for volume_id, error in written.errors.items():
            # A file that was new has been taken away again; on the only volume the next attempt may do better.
            is_forgiven = len(voting) == 1 and kind in ("segment", "snapshot")
            self._leave_out(volume_id, error, is_forgiven)
        if is_quorum(voting, reached):
            return dict(written.positions)
        self._cache.forget()
        raise self._logs.failure(written, len(voting), allowance)

    def _allowance(self, releases_space: bool) -> ReserveAllowance | None:
        """Return what may be used of the reserves by what frees room."""
        return ReserveAllowance(self._now.reserve_min) if releases_space else None

    def _leave_out(self, volume_id: bytes, error: OSError | StorageError, is_forgiven: bool = False) -> None:
        """Write no more to a volume in this session; after a failed I/O not before it was verified again."""
        logger.warning("%s: %s", self._logs.name(volume_id), error)
        self._now = self._now.without(volume_id)
        if is_failure(error) and not is_forgiven:
            reason = f"fsync failed: {error}" if isinstance(error, SyncError) else f"I/O failed: {error}"
            voter = self.state.voter(volume_id)
            instance_id = voter.instance_id if voter is not None else b""
            self._cache.mark_failed(volume_id, instance_id, reason)
            self._now = replace(self._now, retiring={**self._now.retiring, volume_id: reason})

    def failed(self, volume_id: bytes, error: OSError) -> None:
        """Record that an I/O of the caller failed on a volume: the session writes it no more, and retires it at its
        end.

        That holds for a volume without part in this session, too: writes before the failure prove nothing.
        """
        voter = self.state.voter(volume_id)
        if voter is None or voter.retired:
            return
        self._leave_out(volume_id, error)
        self._update_view(positions={member: at for member, at in self.view.positions.items() if member != volume_id})

    def end(self) -> None:
        """Do what is left to be done before the locks are let go of. What was done before stays done if this fails."""
        self._retire()
        if self._wrote and self._cache.known.leadership is not None:
            self._record_volume_events(self._cache.known.leadership)
        self._is_over = True

    def _record_volume_events(self, leadership: Leadership) -> None:
        """Write down what has become of the volumes since the last event of each."""
        decided = self._decision.statuses if self._decision is not None else {}
        statuses = {voter.volume_id: self.status(voter.volume_id) for voter in self.state.voters}
        events = volume_events(self.state, decided, statuses, self._cache.last_states(self.state))
        if events:
            self._propose_best_effort(RecordEvents(events), leadership)

    def _retire(self) -> None:
        """Say on the others that a volume has failed: it counts again after it was verified."""
        retiring = self._now.retiring
        if not retiring or not is_quorum(self._voting_ids(), self._now.voting):
            return
        self._now = replace(self._now, retiring={})
        self._propose_best_effort(retirement(self.state, retiring), self._leadership())

    def _propose_best_effort(self, command: Command, leadership: Leadership) -> None:
        """Write a command of our own after that of the caller: what was acked stays acked if this one fails."""
        try:
            change = self._apply(command, leadership)
            if not change.changes_nothing:
                self._write(change, leadership)
        except Exception as error:
            logger.warning("%s: %s could not be written: %s", self.label, type(command).__name__, error)

    # --- snapshots

    def snapshot_if_due(self) -> bool:
        """Take a snapshot if enough entries came since the last one, or a segment is large; return whether."""
        streams = self.state.streams
        every = max(
            self.state.settings.snapshot_every,
            streams.block_count // SNAPSHOT_BLOCKS_PER_ENTRY,
            (len(streams) + streams.consumer_count) // SNAPSHOT_RECORDS_PER_ENTRY,
        )
        due = self.view.index - self.view.snapshot_index >= every
        large = any(position.offset_bytes >= SEGMENT_SIZE_MAX for position in self.view.positions.values())
        return (due or large) and self.snapshot()

    def snapshot(self) -> bool:
        """Write (state, applied index, term, configuration) in one step, go on in new segments, drop old files."""
        view, leadership = self.view, self._cache.known.leadership
        if leadership is None or view.commit is None or view.index == view.snapshot_index:
            return False
        tip, vote = EntryId(view.index, view.term, view.chain), leadership.vote
        state = encode_state(view.state)
        if len(state) > STATE_SIZE_MAX:
            logger.error(
                "%s: the metadata has %d bytes, a snapshot takes %d: merge small blocks or remove streams",
                self.label, len(state), STATE_SIZE_MAX,
            )  # fmt: skip
            return False
        body = SnapshotBody(msgspec.Raw(state), vote.term, vote.candidate, dict(view.durable), view.trail)

        def write(volume_id: bytes) -> Work[LogPosition]:
            at = view.positions[volume_id]
            return lambda log: log.take_snapshot(at, tip, leadership.history, body, view.commit)

        positions = self._on_members(write, "snapshot", None)
        streams = view.state.streams
        self._update_view(positions=positions, snapshot_index=view.index, snapshot_streams=streams)
        self._cache.record_write(self.view)
        for volume_id in positions:
            try:
                self._logs[volume_id].compact()
            except UnreachableError as error:  # what is left there is in nobody's way
                logger.warning("%s: old records could not be removed: %s", self._logs.name(volume_id), error)
            except (StorageError, OSError) as error:
                if len(self.volumes) == 1:
                    raise
                self._leave_out(volume_id, error)
        self._retire()
        return True


def _appending(view: View, volume_id: bytes, records: Sequence[LogRecord]) -> Work[LogPosition]:
    """Return what appends records to a volume's log that ends with this view."""
    at, tip = view.positions[volume_id], EntryId(view.index, view.term, view.chain)
    return lambda log: log.append(at, records, tip, view.commit)


def _looking(position: LogPosition, commit: CommitRecord | None) -> Work[TailRead | None]:
    return lambda log: log.look(position, commit)


def _recording(position: LogPosition, commit: CommitRecord) -> Work[None]:
    return lambda log: log.write_commit_record(position, commit)


def _place_in(order: Sequence[bytes], volume_id: bytes) -> int:
    return order.index(volume_id) if volume_id in order else len(order)
