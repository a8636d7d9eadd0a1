"""Known mistakes of stores on object stores: each takes away one rule of docs/formats/object-log.md, section 4 or 5.

Where an implementation known to the public had the mistake, the line says so.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from harness.mutants import Replacement, maker_of
from harness.objects.store import Client

from storage_core.errors import NoQuorumError, SupersededError, VolumeFailedError
from storage_core.metadata.commands import NoOp, encode_envelope
from storage_core.os_errors import UnreachableError
from storage_core.raft import rules
from storage_core.raft.entry import START, EntryId, make_entry
from storage_core.raft.object_log_format import LogRecord
from storage_core.store.ensemble import commit_reader, decision, parallel_io, session
from storage_core.store.ensemble.log_recovery import snapshot_body
from storage_core.store.ensemble.merged_log import LogChain
from storage_core.store.ensemble.session import Session
from storage_core.store.volume import identity, object_log
from storage_core.store.volume.log_contents import LogPosition
from storage_core.store.volume.object_log import ObjectLog


def believes_in_records_without_their_witness() -> list[Replacement]:
    """SlateDB #352: a writer that slept creates a number again that was removed, and acks."""
    return [(ObjectLog, "_check", lambda self, witness: None)]


def looks_at_the_witness_before_it_creates() -> list[Replacement]:
    put = ObjectLog._put

    def mutant(self: ObjectLog, position: LogPosition, *args: Any) -> LogPosition:
        self._check(position.witness)
        check, self._check = self._check, lambda witness: None  # type: ignore[method-assign]
        try:
            return put(self, position, *args)
        finally:
            self._check = check  # type: ignore[method-assign]

    return [(ObjectLog, "_put", mutant)]


def believes_in_records_whatever_their_tags() -> list[Replacement]:
    """What is read is taken for what was listed, without a look at the witness afterwards."""
    return [(object_log._Names, "agree_with", lambda self, fetched: True)]


def looks_at_the_witness_before_it_lists() -> list[Replacement]:
    behind = ObjectLog._behind

    def mutant(self: ObjectLog, names: Any, position: LogPosition) -> Any:
        self._is_there = lambda witness: True  # type: ignore[method-assign]
        try:
            return behind(self, names, position)
        finally:
            del self._is_there

    return [(ObjectLog, "_behind", mutant)]


def adopts_a_snapshot_that_came_late() -> list[Replacement]:
    """The new witness is believed without a look at the one before."""
    take = ObjectLog.take_snapshot

    def mutant(self: ObjectLog, *args: Any) -> LogPosition:
        self._check = lambda witness: None  # type: ignore[method-assign]
        try:
            return take(self, *args)
        finally:
            del self._check

    return [(ObjectLog, "take_snapshot", mutant)]


def removes_records_before_snapshots() -> list[Replacement]:
    def compact(self: ObjectLog) -> None:
        names = self._names()
        numbers = sorted({object_log._number(name) for name in names.snapshots})
        if len(numbers) < 2:
            return
        for number in names.records:
            if number <= numbers[-2]:
                self._files.unlink(self._record_path(number))
        for name in names.snapshots:
            if object_log._number(name) < numbers[-2]:
                self._files.unlink(self.directory / name)

    return [(ObjectLog, "compact", compact)]


def removes_records_that_the_newest_snapshot_covers() -> list[Replacement]:
    """Also those of the tail: nothing tells where the log ends."""

    def compact(self: ObjectLog) -> None:
        names = self._names()
        newest = object_log._number(names.snapshots[0])
        for name in names.snapshots[1:]:
            self._files.unlink(self.directory / name)
        for number in names.records:
            if number <= newest:
                self._files.unlink(self._record_path(number))

    return [(ObjectLog, "compact", compact)]


def overwrites_records() -> list[Replacement]:
    """Delta on S3 without a lock (delta#1410): puts have no condition."""
    return [(Client, "create", Client.put)]


def takes_a_refusal_for_its_own_success() -> list[Replacement]:
    def check_own(self: ObjectLog, record: Any, error: OSError) -> None:
        there = self._record(record.number)
        if there.vote.term != record.vote.term:
            raise SupersededError("another process leads")

    return [(ObjectLog, "_check_own", check_own)]


def takes_its_own_success_for_a_refusal() -> list[Replacement]:
    """SlateDB #766: a put that was tried twice comes back as refused."""

    def check_own(self: ObjectLog, record: Any, error: OSError) -> None:
        raise SupersededError("another process leads")

    return [(ObjectLog, "_check_own", check_own)]


def takes_no_answer_for_nothing_stored() -> list[Replacement]:
    def failure(self: Any, written: Any, voter_count: int, room: Any) -> Any:
        return NoQuorumError("nothing was stored", available=len(written.positions), needed=voter_count)

    return [(parallel_io.Logs, "failure", failure)]


def counts_a_volume_that_gave_no_answer() -> list[Replacement]:
    """And goes on where that ends now: what was put may land later, or never."""
    write = parallel_io.Logs.write

    def mutant(self: Any, what: str, works: Any, room: Any) -> Any:
        written = write(self, what, works, room)
        for volume_id, error in list(written.errors.items()):
            if not isinstance(error, UnreachableError):
                continue
            names = self._logs[volume_id]._names()
            if names.records and names.snapshots:
                written.errors.pop(volume_id)
                written.positions[volume_id] = LogPosition(names.records[-1], 0, names.snapshots[0])
        return written

    return [(parallel_io.Logs, "write", mutant)]


def votes_and_writes_in_one_put() -> list[Replacement]:
    """The first entry of a term stands in the record that votes for it."""

    def recover(self: Session, decided: Any, frees: bool) -> None:
        leadership = self._new_leadership(decided.term_seen)
        body = snapshot_body(decided.chosen_log, leadership.vote, self.view.durable)
        change = self._apply(NoOp(), leadership)
        tip = decided.chosen_log.tip
        entry = make_entry(
            tip.chain, tip.index + 1, leadership.term, leadership.history, encode_envelope(change.envelope)
        )

        def prepare(volume_id: bytes) -> Any:
            status = decided.statuses[volume_id]
            base, snapshot = decided.chosen_log.at(status.keep_up_to), None
            if base is None:
                base, snapshot = decided.chosen_log.base, (decided.chosen_log.snapshot.history, body)
            entries = decided.chosen_log.entries[base.index - decided.chosen_log.base.index :]
            return lambda log: log.rewrite(
                status.end, base, [leadership.vote, *entries, entry], decided.commit, snapshot
            )

        positions = self._on_members(prepare, "entry", None)
        self._update_view(
            positions=positions, term_seen=leadership.term, commit=decided.commit,
            durable={**self.view.durable, **dict.fromkeys(positions, entry.index)},
        )  # fmt: skip
        self._now = session.replace(self._now, view=session.with_entry(self.view, change.state, entry))
        self._cache.start_term(leadership)
        self._cache.record_write(self.view)

    return [(Session, "_recover", recover)]


def writes_without_a_vote() -> list[Replacement]:
    """A new leader takes the next term for itself without asking for votes first."""

    def recover(self: Session, decided: Any, frees: bool) -> None:
        leadership = self._new_leadership(decided.term_seen - 1)

        def prepare(volume_id: bytes) -> Any:
            status = decided.statuses[volume_id]
            return partial(lambda log, end: end, end=status.end)

        if any(status.index != decided.chosen_log.tip.index for status in decided.statuses.values() if status.written):
            original(self, decided, frees)
            return
        positions = self._on_members(prepare, "segment", None)
        self._update_view(positions=positions, term_seen=leadership.term)
        self._cache.start_term(leadership)
        self._write(self._apply(NoOp(), leadership), leadership, frees)

    original = Session._recover
    return [(Session, "_recover", recover)]


def leads_with_the_first_log() -> list[Replacement]:
    def best(tips: Any, pool: Any, held: Any) -> LogChain:
        return pool.chain_ending_at(next(iter(tips), START))

    return [(decision, "_best", best)]


def is_content_with_one_volume() -> list[Replacement]:
    return [(rules, "majority", lambda count: 1)]


def reads_what_a_later_candidate_brought_along() -> list[Replacement]:
    """An entry counts that stands on a majority, whoever put it there (figure 8)."""

    def proven_entry(voters: Collection[bytes], ends: Mapping[bytes, tuple[EntryId, int]]) -> EntryId | None:
        tips: Sequence[EntryId] = sorted((ends[one][0] for one in voters if one in ends), key=rules.rank, reverse=True)
        needed = rules.majority(len(voters))
        return tips[needed - 1] if len(tips) >= needed else None

    return [(commit_reader, "proven_entry", proven_entry)]


def readers_do_not_wait_between_two_leaders() -> list[Replacement]:
    """What cannot be proven is taken for not committed."""

    def counted(self: Any, best: Any, ends: Any) -> Any:
        sleep = commit_reader.CommitUncertain
        try:
            return original(self, best, ends)
        except sleep:
            return best

    original = commit_reader.CommitReader._counted
    return [(commit_reader.CommitReader, "_counted", counted)]


def takes_a_record_that_leads_to_a_snapshot_for_damage() -> list[Replacement]:
    """Its writer did not know of the snapshot yet, and is another one than who took it."""
    take = object_log._Fold.take

    def mutant(self: Any, record: LogRecord, start: Any) -> None:
        snapshot = self._contents.snapshot if start is None else start[0]
        if snapshot is not None and record.base.index < snapshot.entry.index:
            self.hurt(f"record {record.number} goes on below the snapshot")
        else:
            take(self, record, start)

    return [(object_log._Fold, "take", mutant)]


def takes_an_identity_without_an_answer_for_none() -> list[Replacement]:
    return [(identity, "of_volume", lambda error, text: VolumeFailedError(text))]


MUTANTS = {
    mutant.__name__: mutant
    for mutant in (
        believes_in_records_without_their_witness,
        looks_at_the_witness_before_it_creates,
        believes_in_records_whatever_their_tags,
        looks_at_the_witness_before_it_lists,
        adopts_a_snapshot_that_came_late,
        removes_records_before_snapshots,
        removes_records_that_the_newest_snapshot_covers,
        overwrites_records,
        takes_a_refusal_for_its_own_success,
        takes_its_own_success_for_a_refusal,
        takes_no_answer_for_nothing_stored,
        counts_a_volume_that_gave_no_answer,
        votes_and_writes_in_one_put,
        writes_without_a_vote,
        leads_with_the_first_log,
        is_content_with_one_volume,
        reads_what_a_later_candidate_brought_along,
        readers_do_not_wait_between_two_leaders,
        takes_a_record_that_leads_to_a_snapshot_for_damage,
        takes_an_identity_without_an_answer_for_none,
    )
}
made = maker_of(MUTANTS)
