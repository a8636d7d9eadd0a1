"""Turns: the time for which one process holds a store, and what it may do with it.

A session holds the locks of a majority of the volumes at least. It reads what others left on every volume that can be
read, decides what counts (decision.py), makes that durable, and proposes commands; each is on the disks of a majority
before `propose` returns. One process hosts all voters: no messages, one state machine, a log a volume.

What a session finds, and what it does (docs/locks-and-stability.md has the table with every row):

- nobody led since this process did: its term and state still hold; one round of fsyncs a command;
- others led, all they wrote is committed on every volume: their entries are applied, a vote opens a new term;
- anything else: what may be in the page cache only is rewritten into new segments, volumes that are behind catch up,
  votes are fsynced, and an entry of the new term commits it all;
- too little is left to be sure: nothing is written.
"""

import logging
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from storage_core.errors import (
    CorruptionError,
    DiskFullError,
    NoQuorumError,
    OtherHostError,
    OutcomeUnknownError,
    RequirementError,
    StorageError,
    VolumeFailedError,
)
from storage_core.file_kinds import LOG_SEGMENT
from storage_core.metadata import machine
from storage_core.metadata.commands import (
    Acknowledge,
    ChangeVolumes,
    Command,
    DeleteConsumer,
    DeleteStream,
    Envelope,
    Event,
    NoOp,
    RecordEvents,
    Remove,
    TakeOver,
    Unlinked,
    Voter,
    encode_envelope,
)
from storage_core.metadata.state import StoreState, encode_state
from storage_core.os_errors import CLOSED, FULL, GONE, is_of_process, of_process, raise_if_limit
from storage_core.raft.entry import HISTORY_SIZE, CommitRecord, Entry, EntryId, Vote, make_entry
from storage_core.raft.log_format import PAYLOAD_SIZE_MAX
from storage_core.raft.rules import committed_index, is_quorum, next_term
from storage_core.raft.snapshot_format import STATE_SIZE_MAX, SnapshotBody
from storage_core.store.ensemble import decision as rules
from storage_core.store.ensemble.decision import Decision, Finding, decide, newest
from storage_core.store.ensemble.known import Leadership, Memory
from storage_core.store.ensemble.logs import Lead
from storage_core.store.ensemble.view import View, applied, moved_on, trail_of
from storage_core.store.environment import Environment
from storage_core.store.volume import lock_domain, probe, reserve
from storage_core.store.volume.locks import Held
from storage_core.store.volume.log import SEGMENT_SIZE_MAX, SyncError, VolumeLog
from storage_core.store.volume.log_contents import Position
from storage_core.store.volume.state import VolumeState
from storage_core.store.volume.volumes import Volume, label

logger = logging.getLogger(__name__)
SNAPSHOT_BLOCKS_PER_ENTRY = 1024  # a large manifest is written less often, so that each entry costs a bounded part
# What may use the reserves of full volumes: there is less to keep after it, so it comes to an end. Not what makes no
# room and may come again and again, until none is left for a removal: AdvanceConsumers, a writer's Abort.
FREEING = (Remove, DeleteStream, DeleteConsumer, Unlinked)
LOG_SIZE_FREEING_MAX = LOG_SEGMENT.size_max - (16 << 20)  # bytes of a segment; room for what padding and seals take
LOG_SIZE_MAX = LOG_SIZE_FREEING_MAX - PAYLOAD_SIZE_MAX  # room for what removes
ACKNOWLEDGE_LEAVES = reserve.SIZE // 2  # bytes of a reserve: acknowledgements may use no more of what removals need


@dataclass(frozen=True, slots=True)
class Standing:
    """What a volume's metadata is like."""

    state: VolumeState
    reason: str
    index: int  # where its log ends


@dataclass(frozen=True, slots=True)
class _Applied:
    """A command as the next entry of the log, and what it comes to."""

    envelope: Envelope
    before: StoreState
    state: StoreState  # after it
    result: machine.Result

    @property
    def changes_nothing(self) -> bool:
        """Return whether no entry is needed: it is refused, or was stored before and fences nobody."""
        if isinstance(self.result, machine.AppendDone) and self.result.already:
            return self.state is self.before
        return isinstance(self.result, machine.Refused)

    def outcome(self) -> machine.Outcome:
        """Return the result; raises what the command is refused with."""
        if isinstance(self.result, machine.Refused):
            self.result.raise_()
        return self.result


@dataclass(frozen=True, slots=True)
class Record:
    """All that a session goes by. Swapped whole: what could not be written is taken back by the record before it.

    Invariant: `voting` are voters of the view's state, and members.
    """

    view: View
    members: tuple[bytes, ...]  # volumes that entries are written to, in the order of the voters
    voting: frozenset[bytes]  # those of them that count
    retiring: Mapping[bytes, str] = field(default_factory=dict)  # volumes that failed, and why
    staged: tuple[Entry, ...] = ()  # made, applied to the view, and not written yet
    frees: bool = False  # what is staged makes room: it may use the reserves
    leaves: int = 0  # and has to leave so many bytes of each

    def without(self, volume_id: bytes) -> "Record":
        """Return the record of a session that writes this volume no more."""
        members = tuple(member for member in self.members if member != volume_id)
        return replace(self, members=members, voting=self.voting - {volume_id})

    def back_to(self, before: "Record") -> "Record":
        """Return what was before, but for volumes that were left out since: who counts is decided by its voters."""
        members = tuple(member for member in before.members if member in self.members)
        return replace(before, members=members, voting=before.voting.intersection(members), retiring=self.retiring)


class Relock(Exception):
    """The log speaks of volumes that this session has not locked: begin again with all of them."""


class Session:
    """One holder's time with the store. Made by `Metadata.session`."""

    def __init__(self, memory: Memory, volumes: Sequence[Volume], held: Held) -> None:
        self._memory, self._env, self._held = memory, memory.env, held
        self.volumes, self.locked, self.busy = tuple(volumes), held.locked, held.busy
        self._logs = {volume.volume_id: volume.log for volume in volumes}
        self._findings: Mapping[bytes, Finding] = {}
        self._decision: Decision | None = None
        self._wrote = False  # a command in this session
        self._grouping = False
        self._now: Record
        self._written: Record  # before the first of the entries that are staged

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
        return tuple(one for one in self.volumes if one.volume_id in self._now.members)

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

    def standing(self, volume_id: bytes) -> Standing:
        """Return what this session found the volume's metadata to be, brought up to date by what it wrote since."""
        if volume_id in self._now.members and self.view.durable.get(volume_id) == self.view.index:
            return Standing(VolumeState.CURRENT, "", self.view.index)
        one, voter = self._findings.get(volume_id), self.state.voter(volume_id)
        if one is not None and one.state == VolumeState.FOREIGN:
            return Standing(one.state, one.reason, one.index)
        if voter is not None and voter.retired:  # perhaps since all was read
            return Standing(VolumeState.RETIRED, voter.retired, self.view.durable.get(volume_id, 0))
        if one is None:
            return self._standing_without_finding(volume_id)
        return Standing(one.state if one.state != VolumeState.CURRENT else VolumeState.BEHIND, one.reason, one.index)

    def _standing_without_finding(self, volume_id: bytes) -> Standing:
        """Return the same of a volume of which this process has never read everything."""
        volume = next((one for one in self.volumes if one.volume_id == volume_id), None)
        if volume is None:
            return Standing(VolumeState.MISSING, "no volume of this store", 0)
        state = volume.state if volume.identity is None else VolumeState.BEHIND
        return Standing(state, volume.reason, self.view.durable.get(volume_id, 0))

    def lead(self) -> Leadership:
        """Return this process's leadership; one that has not led yet opens a term. The last entry is then its own."""
        if self._memory.known.leadership is None:
            self.propose(NoOp())
        assert self._memory.known.leadership is not None
        return self._memory.known.leadership

    def _name(self, volume_id: bytes) -> str:
        return next((str(one.path) for one in self.volumes if one.volume_id == volume_id), volume_id.hex())

    def _see(self, **changes: Any) -> None:
        """Go by this view from here on."""
        self._now = replace(self._now, view=replace(self._now.view, **changes))

    def _voting_ids(self) -> list[bytes]:
        return _voters_of(self.state)

    # --- the beginning: all contents, what counts

    def begin(self, take_over: bool, frees: bool = False) -> None:
        """Read all contents and make what counts durable and committed; `frees`: from the reserves if need be."""
        known = self._memory.known.view
        if known is None or not self._catch_up(known):
            self._memory.forget()
            self._decision = self._adopt()
        moved = self._move(take_over)  # refused before anything is written
        if self._decision is not None and not self._decision.is_settled:
            self._settle(self._decision, frees)
        self._now = replace(self._now, retiring={**self._unretired(), **self._now.retiring})
        if moved is not None:
            self.propose(moved, frees)

    def _unretired(self) -> dict[bytes, str]:
        """Return volumes that failed in this process before, which nobody could write down then."""
        failed = self._memory.known.failed
        keys = [(one.volume_id, one.instance_id) for one in self.state.voters if not one.retired]
        return {key[0]: failed[key] for key in keys if key in failed}

    def _move(self, take_over: bool) -> TakeOver | None:
        """Return what moves the store here; None if it is written from here already.

        Raises OtherHostError, VolumeFailedError (a file system on which no store can be).
        """
        moved = move(self.state, self.volumes, self.label, self._env, take_over)
        if moved is not None:
            for path in self.locked:
                probe.check(path, self._env)
        return moved

    def _usable(self, voters: Sequence[Voter]) -> list[bytes]:
        """Return the volumes that take part: there, of the recorded instance, not retired, not failed before."""
        at_hand = {one.volume_id: one for one in self.volumes}
        found = []
        for voter in voters:
            one = at_hand.get(voter.volume_id)
            if one is None or one.identity is None or one.identity.instance_id != voter.instance_id:
                continue
            if not voter.retired and (voter.volume_id, voter.instance_id) not in self._memory.known.failed:
                found.append(voter.volume_id)
        return found

    def _catch_up(self, known: View) -> bool:
        """Move on from `known` by the records behind it; False if that is not all there is to know.

        It is all if every volume that takes part did so at the last look, is locked, ends clean, and has a commit
        record that names its last entry. Without any record of others the term of this process still holds.
        """
        if not {one.volume_id for one in known.state.voters} <= {one.volume_id for one in self.volumes}:
            return False  # some came with the last change, and have not been looked for yet
        usable = self._usable(known.state.voters)
        paths = {one.volume_id: one.path for one in self.volumes}
        voting = {one.volume_id for one in known.state.voters if not one.learner}
        if set(known.positions) != set(usable) or any(paths[one] not in self.locked for one in usable):
            return False
        if not is_quorum(voting, usable):
            return False
        view, positions, read = known, {}, False
        for volume_id in usable:
            log = self._logs[volume_id]
            try:
                commit, clean, tail = log.look(known.positions[volume_id])
            except (StorageError, OSError) as error:
                raise_if_limit(error)
                return False
            if commit is None or not clean or tail is None or not tail.is_clean:
                return False
            positions[volume_id], read = tail.position, read or bool(tail.records)
            entries = [one for one in tail.records if isinstance(one, Entry)]
            if volume_id == usable[0]:
                moved = _moved_on(view, entries)
                if moved is None:
                    return False
                view = replace(moved, commit=commit)
            if commit != view.commit or (view.index, view.chain) != (commit.index, commit.chain):
                return False
            if entries and (entries[-1].index, entries[-1].chain) != (commit.index, commit.chain):
                return False
            terms = [view.term_seen, commit.term, *(one.term for one in tail.records)]
            view = replace(view, term_seen=max(terms))
        if {one.volume_id for one in view.state.voters} != {one.volume_id for one in known.state.voters}:
            return False
        # What others wrote may also lie before the known positions: this process has read since it led.
        if read or dict(known.positions) != self._memory.known.led_to:
            self._memory.forget()
        durable = {**view.durable, **dict.fromkeys(usable, view.index)}
        view = replace(view, positions=positions, durable=durable)
        self._now = Record(view, tuple(usable), frozenset(usable).intersection(_voters_of(view.state)))
        self._findings = self._memory.known.findings
        self._memory.keep(view)
        return True

    def _adopt(self) -> Decision:
        """Read everything anew; return what was decided. The view is that of the log to lead with."""
        found = [self._memory.found(one, self._held) for one in self.volumes]
        lead = newest(found)
        voters = self._memory.state_of(lead).voters if lead is not None else ()
        if not {one.volume_id for one in voters} <= {one.volume_id for one in self.volumes}:
            raise Relock(voters)
        # A log of which not even the first entry is whole names no voters: then it is one of what was found.
        voters = voters or tuple(Voter(one.volume_id, one.instance_id, one.name) for one in found)
        decision = decide(found, voters)
        state = self._memory.state_of(decision.lead)
        if _voting(state.voters) != _voting(voters) and state.voters:
            # The members by the log that leads count; those by the newest one had to agree to it as well.
            decision = decide(found, state.voters)
            state = self._memory.state_of(decision.lead)
        self._check_known(decision.lead)
        index, term, chain = decision.lead.tip
        contents = {one.volume_id: one.contents for one in found if one.contents is not None}
        members = [volume_id for volume_id, one in decision.findings.items() if one.written]
        snapshot = decision.lead.snapshot
        durable = dict(decision.durable)
        durable.update({one: index for one in members if decision.findings[one].in_step})
        view = View(
            state=state,
            index=index,
            term=term,
            chain=chain,
            commit=decision.commit,
            positions={one: contents[one].position for one in members if decision.findings[one].in_step},
            term_seen=max(decision.term_seen, self._memory.known.term_seen),
            snapshot_index=snapshot.index if snapshot is not None else 0,
            durable=durable,
            snapshot_streams=self._memory.snapshot_streams_of(decision.lead),
            trail=trail_of(decision.lead),
        )
        self._now = Record(view, tuple(members), frozenset(decision.voting))
        self._findings = decision.findings
        self._memory.decided(decision.findings, rules.foreign_of(found, decision))
        if decision.is_settled:
            self._memory.keep(view)
        return decision

    def _check_known(self, lead: Lead) -> None:
        """Raise CorruptionError if the volumes hold less than this process has seen to be committed."""
        known = self._memory.known.view
        if known is None or (known.index <= lead.tip.index and lead.agrees(known.index, known.chain)):
            return
        raise CorruptionError(
            f"{self.label}: the metadata log ends at entry {lead.tip.index} or is another one, and this process has "
            f"seen entry {known.index} of it committed: volumes were rolled back or exchanged. Nothing has been "
            "changed; to use the store as it is now, open it anew"
        )

    def _settle(self, decision: Decision, frees: bool) -> None:
        """Rewrite what may be in the page cache only, bring volumes up to the log that leads, and commit it."""
        leadership = self._new_leadership(decision.term_seen)
        body = self._snapshot_body(decision.lead, leadership)

        def prepare(volume_id: bytes) -> Callable[[], Position]:
            finding, log = decision.findings[volume_id], self._logs[volume_id]
            if finding.in_step:
                return lambda: log.append(self.view.positions[volume_id], [leadership.vote])
            return lambda: _rewrite(log, finding, decision, leadership.vote, body)

        positions = self._on_members(prepare, "segment", frees)
        durable = {**self.view.durable, **dict.fromkeys(positions, self.view.index)}
        self._see(positions=positions, term_seen=leadership.term, durable=durable)
        self._memory.lead(leadership)
        self._write(self._apply(NoOp(), leadership), frees)
        for one in self.writable:
            if not decision.findings[one.volume_id].in_step:
                self._make_directories(one)

    def _make_directories(self, volume: Volume) -> None:
        """Make the directories of streams that were added while the volume was away, so that it takes new blocks."""
        streams = [stream for stream in self.state.streams.values() if volume.volume_id in stream.placement]
        try:
            volume.blocks.prepare(stream.incarnation for stream in streams)
        except OSError as error:
            logger.warning("%s: directories of streams: %s", volume.path, error)

    def _snapshot_body(self, lead: Lead, leadership: Leadership) -> SnapshotBody | None:
        if lead.snapshot_body is None:
            return None
        vote = leadership.vote
        return SnapshotBody(
            lead.snapshot_body.state, vote.term, vote.candidate, dict(self.view.durable), lead.snapshot_body.trail
        )

    # --- proposing

    def propose(self, command: Command, frees: bool = False) -> machine.Outcome:
        """Return the command's result: it is committed, durable on a majority, if it changes anything.

        `frees`: the caller makes room with it, so it may use the reserves of full volumes, as those in FREEING may;
        acknowledgements, by which work is finished, may use a part of them.
        Raises what it is refused with, DiskFullError, VolumeFailedError or NoQuorumError if nothing was stored,
        OutcomeUnknownError if that cannot be told.
        """
        is_ack = isinstance(command, Acknowledge)
        frees = frees or is_ack or isinstance(command, FREEING)
        leaves = max(self._now.leaves if self._now.staged else 0, ACKNOWLEDGE_LEAVES if is_ack else 0)
        self._now = replace(self._now, leaves=leaves)
        leadership = self._memory.known.leadership or self._new_leadership(self.view.term_seen)
        change = self._apply(command, leadership)
        if change.changes_nothing:
            return change.outcome()
        if self._memory.known.leadership is None:
            self._campaign(leadership, frees)
        self._stage(change, frees)
        if not self._grouping:
            self._flush()
            self._wrote = True
            self._retire()
        return change.outcome()

    @contextmanager
    def group(self) -> Iterator[None]:
        """Write the commands that are proposed within as one: one round of fsyncs for all of them.

        Their results hold when this ends. If it raises, none of them was acked.
        """
        self._grouping = True
        try:
            yield
        except BaseException:
            self._take_back()
            raise
        finally:
            self._grouping = False
        if self._now.staged:
            self._flush()
            self._wrote = True
            self._retire()

    def admit(self, volume: Volume, position: Position, command: ChangeVolumes) -> None:
        """Propose the entry that takes in a volume, whose log was made to end where the others end.

        It is written together with the others from that entry on, and counts once the others have committed it. The
        caller holds its lock. Raises as `propose` does.
        """
        volume_id = volume.volume_id
        known = {one.volume_id: one for one in self.volumes} | {volume_id: volume}
        order = [one.volume_id for one in command.voters]
        self.volumes = tuple(sorted(known.values(), key=lambda one: _place_in(order, one.volume_id)))
        self._logs[volume_id] = volume.log
        members = sorted({*self._now.members, volume_id}, key=lambda one: _place_in(order, one))
        self._now = replace(self._now, members=tuple(members))
        self._see(
            positions={**self.view.positions, volume_id: position},
            durable={**self.view.durable, volume_id: self.view.index},
        )
        self.propose(command)
        if volume_id in self._now.members and volume_id in self._voting_ids():
            self._now = replace(self._now, voting=self._now.voting | {volume_id})

    def check(self, command: Command) -> machine.Outcome:
        """Return what the command would come to, or raise what it would be refused with; nothing is written."""
        return self._apply(command, self._new_leadership(self.view.term_seen)).outcome()

    def _apply(self, command: Command, leadership: Leadership) -> _Applied:
        """Return what the command comes to as the next entry of this leadership. The state machine is pure, and a
        command is applied once: the next table of a manifest shares the buffer of the one before only once.
        """
        current = {one.volume_id for one in self.state.voters}
        durable = {one: index for one, index in self.view.durable.items() if one in current}
        envelope = Envelope(self._env.now_ns(), command, durable)
        place = machine.Place(self.view.index + 1, leadership.history)
        return _Applied(envelope, self.state, *machine.apply(self.state, place, envelope))

    def _new_leadership(self, term_seen: int) -> Leadership:
        return Leadership(next_term([term_seen]), self._env.random_bytes(HISTORY_SIZE), self._env.new_id())

    def _campaign(self, leadership: Leadership, frees: bool = False) -> None:
        """Open a new term: the vote is durable on a majority before any entry of the term is written."""
        at = self.view.positions
        positions = self._on_members(
            lambda one: lambda: self._logs[one].append(at[one], [leadership.vote]), "vote", frees
        )
        self._see(positions=positions, term_seen=leadership.term)
        self._memory.lead(leadership)

    def _write(self, change: _Applied, frees: bool = False) -> None:
        self._stage(change, frees)
        self._flush()

    def _stage(self, change: _Applied, frees: bool) -> None:
        """Make a command the next entry, and the state that after it; nothing is written yet."""
        leadership, record = self._memory.known.leadership, self._now
        assert leadership is not None
        before = record.view
        payload = encode_envelope(change.envelope)
        if len(payload) > PAYLOAD_SIZE_MAX:
            raise RequirementError(
                f"{self.label}: a change of {len(payload)} bytes is too large for one entry of the metadata log, which "
                f"has {PAYLOAD_SIZE_MAX} at most; nothing was stored: do it in several parts"
            )
        log_size = max((one.offset_bytes for one in before.positions.values()), default=0)
        log_size += len(payload) + sum(len(entry.payload) for entry in record.staged)
        if log_size > (LOG_SIZE_FREEING_MAX if frees else LOG_SIZE_MAX):
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
            promoted = {one.volume_id for one in before.state.voters if one.learner}.intersection(record.members)
            voting = (voting | promoted).intersection(_voters_of(change.state))
        self._now = replace(
            record,
            view=moved_on(before, change.state, entry),
            voting=voting,
            staged=(*record.staged, entry),
            frees=frees and (record.frees or not record.staged),
        )

    def _flush(self) -> None:
        """Append the staged entries to every member, fsync them, and move the commit records."""
        record, before = self._now, self._written.view
        entries, at, last = record.staged, before.positions, record.staged[-1]
        try:
            positions = self._on_members(
                lambda one: lambda: self._logs[one].append(at[one], entries), "entry", record.frees
            )
        except BaseException:
            self._take_back()
            raise
        generation = before.commit.generation + 1 if before.commit is not None else 1
        ends = dict.fromkeys(self._now.voting.intersection(positions), last.id)
        known = before.commit.index if before.commit is not None else 0
        assert committed_index(self._voting_ids(), ends, last.term, known) == last.index, (ends, last.id)
        commit = CommitRecord(generation, last.term, last.index, last.chain, tuple(positions))
        durable = {**before.durable, **dict.fromkeys(positions, last.index)}
        self._now = replace(self._now, staged=())
        self._see(commit=commit, positions=positions, durable=durable)
        moved = [self._write_commit_record(one, commit) for one in positions]
        if not all(moved):
            self._memory.forget()
        if not any(moved):  # the command is done; without its record the next session settles it again
            self._see(commit=before.commit)
        self._memory.led(self.view)

    def _take_back(self) -> None:
        """Forget entries that were not written."""
        if self._now.staged:
            self._now = self._now.back_to(self._written)

    def _write_commit_record(self, volume_id: bytes, commit: CommitRecord) -> bool:
        """Move the commit record of a volume whose log up to there was fsynced; return whether that went well."""
        try:
            self._logs[volume_id].write_commit_record(self.view.positions[volume_id].segment, commit)
        except OSError as error:
            logger.warning("%s: the commit record could not be written: %s", self._name(volume_id), error)
            self._leave_out(volume_id, error)
            return False
        return True

    def _on_members(
        self, call: Callable[[bytes], Callable[[], Position]], what: str, frees: bool = False
    ) -> dict[bytes, Position]:
        """Do one piece of I/O on all members at once; return where each log ends now, by volume.

        `frees`: a member without room gets some from its reserve. A member that fails is left out from here on. Raises
        if a majority of the voters did not succeed: what was stored then, and whether, is for the error to say.
        """
        members = list(self._now.members)
        try:
            outcomes = self._env.parallel([self._with_room(one, call(one)) if frees else call(one) for one in members])
        except BaseException:
            self._memory.forget()
            raise
        positions: dict[bytes, Position] = {}
        errors: dict[bytes, OSError | StorageError] = {}
        for volume_id, outcome in zip(members, outcomes, strict=True):
            if isinstance(outcome, Position):
                positions[volume_id] = outcome
            elif isinstance(outcome, OSError) or (isinstance(outcome, StorageError) and len(members) > 1):
                errors[volume_id] = outcome
            else:
                self._memory.forget()
                raise outcome
        voting = self._voting_ids()
        reached = self._now.voting.intersection(positions)
        for volume_id, error in errors.items():
            # A file that was new has been taken away again; on the only volume the next attempt may do better.
            forgiven = len(voting) == 1 and what in ("segment", "snapshot")
            self._leave_out(volume_id, error, forgiven)
        if is_quorum(voting, reached):
            return positions
        self._memory.forget()
        raise self._failure(positions, errors, what, len(voting), frees)

    def _with_room(self, volume_id: bytes, call: Callable[[], Position]) -> Callable[[], Position]:
        """Return the call, done again while there is no room for it and the volume has a reserve to give up."""
        path = next(one.path for one in self.volumes if one.volume_id == volume_id)
        spare = reserve.Reserve(self._env.files, path)

        def with_room() -> Position:
            while True:
                try:
                    return call()
                except SyncError:  # which is never tried again
                    raise
                except OSError as error:
                    if error.errno not in FULL or not spare.give_up(self._now.leaves):
                        raise

        return with_room

    def _leave_out(self, volume_id: bytes, error: OSError | StorageError, forgiven: bool = False) -> None:
        """Write no more to a volume in this session; after a failed I/O not before it was verified again."""
        logger.warning("%s: %s", self._name(volume_id), error)
        self._now = self._now.without(volume_id)
        if _is_failure(error) and not forgiven:
            reason = f"fsync failed: {error}" if isinstance(error, SyncError) else f"I/O failed: {error}"
            instance_id = next((one.instance_id for one in self.state.voters if one.volume_id == volume_id), b"")
            self._memory.distrust(volume_id, instance_id, reason)
            self._now = replace(self._now, retiring={**self._now.retiring, volume_id: reason})

    def failed(self, volume_id: bytes, error: OSError) -> None:
        """Hear that an I/O of the caller failed on a volume: it is written no more, and retired at the session's end.

        Also one that takes no part in this session: what was written to it before the failure proves nothing.
        """
        voter = self.state.voter(volume_id)
        if voter is None or voter.retired:
            return
        self._leave_out(volume_id, error)
        self._see(positions={one: at for one, at in self.view.positions.items() if one != volume_id})

    def _failure(
        self,
        reached: Mapping[bytes, Position],
        errors: Mapping[bytes, OSError | StorageError],
        what: str,
        voters: int,
        frees: bool,
    ) -> StorageError | OSError:
        """Return what to raise when a majority was not reached: nothing stored, or outcome unknown."""
        label = self.label
        told = "; ".join(f"{self._name(one)}: {error}" for one, error in errors.items())
        if what == "entry" and (reached or any(isinstance(error, SyncError) for error in errors.values())):
            return OutcomeUnknownError(
                f"{label}: writing a log entry failed ({told}); whether it was stored is not known"
            )
        failures = [error for error in errors.values() if isinstance(error, OSError)]
        if any(error.errno in FULL for error in failures):
            used_up = "; the reserve for removals is used up: make room by other means" if frees else ""
            if self._now.leaves:
                used_up = "; what acknowledgements may use of the reserve is used up: remove messages first"
            return DiskFullError(f"{label}: {told}; nothing was stored{used_up}")
        closed = next((error for error in failures if error.errno in CLOSED), None)
        if closed is not None:
            return closed
        ours = next((error for error in failures if is_of_process(error)), None)
        if ours is not None:
            return of_process(ours, label)
        if voters == 1:
            return VolumeFailedError(f"{label}: writing a log {what} failed with {told}; nothing was stored")
        return NoQuorumError(
            f"{label}: a log {what} reached {len(reached)} of {voters} volumes ({told}); nothing was stored",
            available=len(reached),
            needed=voters // 2 + 1,
        )

    def end(self) -> None:
        """Do what is left to be done before the locks are let go of. What was done before stays done if this fails."""
        self._retire()
        if not self._wrote or self._memory.known.leadership is None:
            return
        events = self._changes()
        if events:
            self._say(RecordEvents(events), self._memory.known.leadership)

    def _changes(self) -> tuple[Event, ...]:
        """Return what is new about the volumes since the last event that spoke of each."""
        last = self._memory.last_states(self.state)
        events = []
        for one in self.state.voters:
            if one.learner:
                continue  # of which the end of its change will tell
            found = self._decision.findings.get(one.volume_id) if self._decision is not None else None
            if found is not None and found.written and found.state not in (VolumeState.CURRENT, VolumeState.BEHIND):
                events.append(
                    Event("repaired", "", "", one.volume_id.hex(), found.state, VolumeState.CURRENT, found.reason)
                )
                continue
            standing, before = self.standing(one.volume_id), last.get(one.volume_id.hex(), VolumeState.CURRENT)
            if standing.state in (before, VolumeState.BEHIND):
                continue
            kind = "returned" if standing.state == VolumeState.CURRENT else standing.state
            events.append(Event(kind, "", "", one.volume_id.hex(), before, standing.state, standing.reason))
        return tuple(events)

    def _retire(self) -> None:
        """Say on the others that a volume has failed: it counts again after it was verified."""
        retiring = self._now.retiring
        if not retiring or not is_quorum(self._voting_ids(), self._now.voting):
            return
        self._now = replace(self._now, retiring={})
        voters = tuple(
            msgspec.structs.replace(one, retired=retiring[one.volume_id]) if one.volume_id in retiring else one
            for one in self.state.voters
        )
        events = tuple(
            Event(
                "retired", volume=volume_id.hex(), before=VolumeState.CURRENT, after=VolumeState.RETIRED, reason=reason
            )
            for volume_id, reason in retiring.items()
        )
        leadership = self._memory.known.leadership or self._new_leadership(self.view.term_seen)
        self._say(ChangeVolumes(voters, self.state.volume_change, events), leadership)

    def _say(self, command: Command, leadership: Leadership) -> None:
        """Write a command of our own after that of the caller: what was acked stays acked if this one fails."""
        try:
            if self._memory.known.leadership is None:
                self._campaign(leadership)
            change = self._apply(command, leadership)
            if not change.changes_nothing:
                self._write(change)
        except Exception as error:
            logger.warning("%s: %s could not be written: %s", self.label, type(command).__name__, error)

    # --- snapshots

    def snapshot_if_due(self) -> bool:
        """Take a snapshot if enough entries came since the last one, or a segment is large; return whether."""
        every = max(self.state.settings.snapshot_every, self.state.streams.block_count // SNAPSHOT_BLOCKS_PER_ENTRY)
        due = self.view.index - self.view.snapshot_index >= every
        large = any(one.offset_bytes >= SEGMENT_SIZE_MAX for one in self.view.positions.values())
        return (due or large) and self.snapshot()

    def snapshot(self) -> bool:
        """Write (state, applied index, term, configuration) in one step, go on in new segments, drop old files."""
        view, leadership = self.view, self._memory.known.leadership
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

        def write(volume_id: bytes) -> Callable[[], Position]:
            log = self._logs[volume_id]
            return lambda: log.take_snapshot(tip, leadership.history, body, view.commit)

        positions = self._on_members(write, "snapshot")
        streams = view.state.streams
        self._see(positions=positions, snapshot_index=view.index, snapshot_streams=streams)
        self._memory.led(self.view)
        for volume_id in positions:
            try:
                self._logs[volume_id].compact()
            except (StorageError, OSError) as error:
                if len(self.volumes) == 1:
                    raise
                self._leave_out(volume_id, error)
        self._retire()
        return True


def move(
    state: StoreState, volumes: Sequence[Volume], label: str, env: Environment, take_over: bool = False
) -> TakeOver | None:
    """Return what moves the store to this host; None if it is written from here already.

    Raises OtherHostError if that takes a decision, and `take_over` does not say that it was made.
    """
    domain = env.lock_domain()
    if lock_domain.is_same(state.lock_domain, domain):
        return None
    present = [one.path for one in volumes if one.identity is not None]
    domain = lock_domain.of_volumes(domain, present, env.file_system)
    is_restarted = lock_domain.is_next_boot(state.lock_domain, domain)
    if not is_restarted and not take_over:
        raise OtherHostError(label, state.host, socket.gethostname())
    return TakeOver(domain, socket.gethostname(), "the host was restarted" if is_restarted else "")


def _rewrite(log: VolumeLog, finding: Finding, decision: Decision, vote: Vote, body: SnapshotBody | None) -> Position:
    """Bring one volume up to the log that leads, but for what is known to be durable and right there."""
    lead, snapshot = decision.lead, None
    base = lead.at(finding.keep)
    if base is None:
        assert lead.snapshot is not None and body is not None, (finding, lead.base)
        base, snapshot = lead.base, (lead.snapshot.history, body)
    entries = lead.entries[base.index - lead.base.index :]
    return log.rewrite(base, [vote, *entries], decision.commit, snapshot, finding.drop_record)


def _place_in(order: Sequence[bytes], volume_id: bytes) -> int:
    return order.index(volume_id) if volume_id in order else len(order)


def _moved_on(view: View, entries: Sequence[Entry]) -> View | None:
    """Return the view after these entries; None if they do not go on from it."""
    for entry in entries:
        if entry.index <= view.index:
            continue
        if not entry.follows(view.chain):
            return None
        view = moved_on(view, applied(view.state, entry), entry)
    return view


def _is_failure(error: OSError | StorageError) -> bool:
    """Return whether an error means that the volume cannot be trusted: not that it is full or closed to us, that its
    file is not there (it went away, or has lost it, which the next session sees), nor what is of this process.
    """
    if isinstance(error, SyncError):
        return True
    return isinstance(error, OSError) and error.errno not in (*FULL, *CLOSED, *GONE) and not is_of_process(error)


def _voters_of(state: StoreState) -> list[bytes]:
    return [voter.volume_id for voter in state.voters if not voter.learner]


def _voting(voters: Sequence[Voter]) -> set[tuple[bytes, bytes, bool]]:
    return {(one.volume_id, one.instance_id, bool(one.retired)) for one in voters if not one.learner}
