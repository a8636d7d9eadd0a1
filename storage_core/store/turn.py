"""Turns: how the processes of one host read and write the metadata of a store, one after another.

A turn holds the volume's lock. It reads what others left, decides what counts, and proposes commands; each is on
disk before `propose` returns. Readers take no lock: they follow the commit record.

What a turn finds, and what it does (docs/locks-and-stability.md has the table with every row):

- nobody led since this process did: its term and state still hold; one fsync a command;
- others led, all they wrote is committed: their entries are applied, a vote opens a new term;
- entries above the commit record: they may be in the page cache only, so they are rewritten into a new segment and
  fsynced before they count, and a no-op of the new term commits them;
- a bad record above everything that could have been acked: a torn tail; the segment is left as it is and a new one
  is started;
- a bad record anywhere else, a log that ends below its commit record, a chain that does not fit: damage. Nothing is
  written.

One volume, so one voter: its fsync is the quorum.
"""

import errno
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from storage_core.errors import (
    CorruptionError,
    DiskFullError,
    OutcomeUnknownError,
    ReadOnlyError,
    StorageError,
    StoreBusyError,
    VolumeFailedError,
)
from storage_core.metadata import machine
from storage_core.metadata.commands import Command, Envelope, NoOp, TakeOver, decode_envelope, encode_envelope
from storage_core.metadata.state import StoreState, decode_state, encode_state
from storage_core.raft.entry import HISTORY_SIZE, CommitRecord, Entry, Vote, make_entry
from storage_core.raft.snapshot_format import SnapshotBody
from storage_core.store import locks
from storage_core.store.environment import Environment
from storage_core.store.identity import VolumeIdentity
from storage_core.store.log import SEGMENT_SIZE_MAX, Evidence, Position, SyncError, VolumeLog

logger = logging.getLogger(__name__)
READ_ATTEMPTS = 5  # of a reader that meets files being replaced
COMMIT_ATTEMPTS = 20  # looks of a reader that waits for a commit record to follow entries that it sees
COMMIT_PAUSE_S = 0.005  # between two of them


@dataclass(frozen=True, slots=True)
class View:
    """Committed state, and where in the log it stands."""

    state: StoreState
    index: int
    term: int
    chain: bytes
    commit: CommitRecord | None  # None: committed by what a snapshot says
    position: Position  # records at and after it have not been looked at
    term_seen: int  # highest term that anything before the position speaks of, votes included
    snapshot_index: int  # of the newest snapshot


@dataclass(frozen=True, slots=True)
class _Leadership:
    """This process leads, as long as nothing but its own records stands in the log."""

    term: int
    history: bytes
    candidate: bytes


class _Doubt(Exception):
    """Entries stand above the commit record, and nobody moves it on."""


class Metadata:
    """The metadata of a store, as this process knows it. Safe to use from several threads."""

    def __init__(self, env: Environment, volume: Path, identity: VolumeIdentity, read_only: bool = False) -> None:
        self._env, self._volume, self._read_only = env, volume, read_only
        self.identity = identity
        self.log = VolumeLog(env.files, volume, identity)
        self._view: View | None = None  # replaced as a whole, never by a lower one
        self._undecided: View | None = None  # what a commit record says while newer entries may count
        self._leadership: _Leadership | None = None
        self._led_to = Position(0, 0)  # the end of the log when this process last wrote as its leader
        self._failed: str | None = None  # why this process writes no more
        self._reading = threading.Lock()

    # --- reading

    def view(self, lock_timeout_s: float) -> View:
        """Return the newest committed state that a commit record vouches for. Takes no lock unless in doubt."""
        error: StorageError | OSError | None = None
        with self._reading:
            for _ in range(READ_ATTEMPTS):
                try:
                    view = self._follow_commit_record()
                except _Doubt:
                    break
                except (CorruptionError, OSError) as caught:  # also a file that was there when the names were listed
                    error = caught
                    continue
                if view is not None:
                    return view
        if not self._read_only:
            try:
                with self.turn(lock_timeout_s) as turn:  # nothing moves under the lock: what is missing is missing
                    return turn.view
            except (ReadOnlyError, StoreBusyError, DiskFullError):
                if self._undecided is None:
                    raise
        if self._undecided is None:
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise VolumeFailedError(f"{self._volume} cannot be read: {error}") from error
            reason = error if error is not None else "it was never written, or is lost"
            raise CorruptionError(f"{self._volume}: no whole commit record to read by: {reason}") from error
        logger.warning("%s: read as its commit record says; what came after it cannot be decided here", self._volume)
        self._view = self._undecided
        return self._undecided

    def _follow_commit_record(self) -> View | None:
        """Return the view that the commit record names; None if that is not certain without the lock."""
        self._undecided = None
        commit, clean = self.log.read_commit_record()
        known = self._view
        if known is not None and commit == known.commit and clean:
            return known
        if commit is None or not (clean or self._read_only) or (known is not None and commit.index < known.index):
            self._undecided = known
            return None
        view = self._advance(known, commit) if known is not None else None
        if view is None:
            evidence = self.log.read()
            view = _replay(evidence, commit)
            if evidence.bad is not None and evidence.bad.followed:
                raise CorruptionError(f"{evidence.bad.where}: a bad record, and entries stand after it")
            if known is None and not self._is_being_written(evidence.tip[0], commit.index):
                if not clean:
                    raise CorruptionError(
                        f"a commit record is torn or damaged, and entries stand above {commit.index}, which the one "
                        "before it names; opening the store for writing settles which of them count"
                    )
                self._undecided = view
                raise _Doubt
        self._view = view
        return view

    def _is_being_written(self, tip: int, committed: int) -> bool:
        """Return whether the entries above the commit record are a turn in progress; without any, nothing is doubtful.

        After a power loss acked entries may stand above it, and nobody moves it on. Only a process that has just
        begun to read can meet that; whoever has read before was alive all the time.
        """
        for _ in range(COMMIT_ATTEMPTS):
            if tip <= committed:
                return True
            self._env.sleep(COMMIT_PAUSE_S)
            commit, _ = self.log.read_commit_record()
            committed = commit.index if commit is not None else committed
        return tip <= committed

    def _advance(self, known: View, commit: CommitRecord) -> View | None:
        """Return `known` moved on to `commit` by the records behind it; None if that does not lead there."""
        tail = self.log.read_tail(known.position)
        if tail is None:
            return None
        state, index, chain, all_used = known.state, known.index, known.chain, tail.is_clean
        for record in tail.records:
            if not isinstance(record, Entry) or record.index <= index:
                continue
            if record.index > commit.index or not record.follows(chain):
                all_used = False
                break
            state, index, chain = _applied(state, record), record.index, record.chain
        if (index, chain) != (commit.index, commit.chain):
            return None
        position = tail.position if all_used else known.position
        term_seen = max([known.term_seen, commit.term, *(record.term for record in tail.records)])
        return View(state, index, commit.term, chain, commit, position, term_seen, known.snapshot_index)

    # --- turns

    @contextmanager
    def turn(self, lock_timeout_s: float, take_over: bool = False) -> Iterator["Turn"]:
        """Hold the store: everything read, everything that counts made durable.

        Raises StoreBusyError, CorruptionError, VolumeFailedError, ReadOnlyError, DiskFullError.
        """
        if self._read_only:
            raise ReadOnlyError(f"{self._volume} was opened for reading only")
        if self._failed is not None:
            raise VolumeFailedError(f"{self._volume} is not written any more: {self._failed}; check it, then open anew")
        with translated(self._volume), locks.hold(self._env.files, self._volume, lock_timeout_s):
            turn = Turn(self)
            turn.begin(take_over)
            yield turn

    def _forget(self) -> None:
        """After a failure: what was believed of the log's end is believed no more, and the term is given up."""
        self._leadership = None

    def _keep(self, view: View) -> None:
        self._view = view


@dataclass(frozen=True, slots=True)
class _Applied:
    """A command as the next entry of the log, and what it comes to."""

    envelope: Envelope
    state: StoreState  # after it
    result: machine.Result

    @property
    def changes_nothing(self) -> bool:
        """Return whether no entry is needed: it is refused, or was stored before."""
        return isinstance(self.result, machine.Refused) or (
            isinstance(self.result, machine.AppendDone) and self.result.already
        )


class Turn:
    """One holder's time with the store. Made by `Metadata.turn`."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._log, self._env = metadata.log, metadata._env
        self.view: View

    @property
    def state(self) -> StoreState:
        return self.view.state

    def begin(self, take_over: bool) -> None:
        """Read all evidence and make what counts durable and committed."""
        known = self._metadata._view
        unsettled: Evidence | None = None
        if known is None or not self._catch_up(known):
            self._metadata._forget()
            unsettled = self._adopt()
        domain = self._env.lock_domain()
        is_foreign = self.state.lock_domain != domain
        if is_foreign and not take_over:  # before anything is written
            raise StoreBusyError(
                f"{self._metadata._volume}: the store is written from host {self.state.host!r}, this is "
                f"{socket.gethostname()!r}; if that host is down for good, or this is a copy, use --take-over"
            )
        if unsettled is not None:
            self._settle(unsettled)
        if is_foreign:
            self.propose(TakeOver(domain, socket.gethostname()))

    def _catch_up(self, known: View) -> bool:
        """Move on from `known` by the records behind it; False if that is not all there is to know.

        It is all if the log's end is clean and everything in it is committed. Without any record of others the term
        of this process still holds.
        """
        commit, clean = self._log.read_commit_record()
        tail = self._log.read_tail(known.position)
        if commit is None or not clean or tail is None or not tail.is_clean:
            return False
        view = replace(known, commit=commit, position=tail.position)
        for record in tail.records:
            if isinstance(record, Entry) and record.index > view.index:
                if not record.follows(view.chain):
                    return False
                state = _applied(view.state, record)
                view = replace(view, state=state, index=record.index, term=record.term, chain=record.chain)
        if (view.index, view.chain) != (commit.index, commit.chain):
            return False
        # What others wrote may also lie before `known.position`: this process has read since it led.
        if tail.records or known.position != self._metadata._led_to:
            self._metadata._forget()
        term_seen = max([known.term_seen, commit.term, *(record.term for record in tail.records)])
        self.view = replace(view, term_seen=term_seen)
        self._metadata._keep(self.view)
        return True

    def _adopt(self) -> Evidence | None:
        """Read everything anew; return the evidence if something has to be settled before it counts."""
        evidence = self._log.read()
        _judge(evidence, self._metadata._volume)
        self.view = _replay(evidence, None)
        above = evidence.commit is None or evidence.tip[0] > evidence.commit.index
        if above or not evidence.tail_is_clean or not evidence.slots_are_whole:
            return evidence
        self._metadata._keep(self.view)
        return None

    def _settle(self, evidence: Evidence) -> None:
        """Rewrite what may be in the page cache only into a new segment, and commit it in a term of our own."""
        commit, start = evidence.commit, 0
        base = evidence.snapshot.index if evidence.snapshot is not None else 0
        if commit is not None and commit.index >= base:
            start = commit.index - base
        uncommitted = evidence.entries[start:]
        before = replace_tail(evidence, start)
        leadership = self._new_leadership(evidence.term + 1)
        vote = Vote(leadership.term, leadership.candidate)
        position = self._log.start_segment(before, commit, [vote, *uncommitted])
        self.view = replace(self.view, position=position, term_seen=leadership.term)
        self._metadata._leadership = leadership
        self._write(self._apply(NoOp(), leadership))

    def propose(self, command: Command) -> machine.Result:
        """Return the command's result; unless it was refused, it is committed and durable.

        Raises DiskFullError if nothing was stored, OutcomeUnknownError if that cannot be told.
        """
        leadership = self._metadata._leadership or self._new_leadership(self.view.term_seen + 1)
        applied = self._apply(command, leadership)
        if applied.changes_nothing:
            return applied.result
        if self._metadata._leadership is None:
            self._campaign(leadership)
        self._write(applied)
        return applied.result

    def check(self, command: Command) -> machine.Result:
        """Return what the command would come to, or raise what it would be refused with; nothing is written."""
        result = self._apply(command, self._new_leadership(self.view.term_seen + 1)).result
        if isinstance(result, machine.Refused):
            result.raise_()
        return result

    def _apply(self, command: Command, leadership: _Leadership) -> "_Applied":
        """Return what the command comes to as the next entry of this leadership. The state machine is pure, and a
        command is applied once: the next table of a manifest shares the buffer of the one before only once.
        """
        envelope = Envelope(self._env.now_ns(), command, {self._metadata.identity.volume_id: self.view.index})
        place = machine.Place(self.view.index + 1, leadership.history)
        return _Applied(envelope, *machine.apply(self.state, place, envelope))

    def _campaign(self, leadership: _Leadership) -> None:
        """Open a new term: the vote is durable before any entry of the term is written."""
        with self._guarded("vote"):
            position = self._log.append(self.view.position, [Vote(leadership.term, leadership.candidate)])
        self.view = replace(self.view, position=position, term_seen=leadership.term)
        self._metadata._leadership = leadership

    def _new_leadership(self, term: int) -> _Leadership:
        return _Leadership(term, self._env.random_bytes(HISTORY_SIZE), self._env.new_id())

    def _write(self, applied: "_Applied") -> None:
        """Append one entry, fsync it, and move the commit record."""
        leadership, before = self._metadata._leadership, self.view
        assert leadership is not None
        payload = encode_envelope(applied.envelope)
        entry = make_entry(before.chain, before.index + 1, leadership.term, leadership.history, payload)
        with self._guarded("entry"):
            position = self._log.append(before.position, [entry])
        generation = before.commit.generation + 1 if before.commit is not None else 1
        commit = CommitRecord(generation, entry.term, entry.index, entry.chain)
        self.view = View(
            applied.state, entry.index, entry.term, entry.chain, commit, position, before.term_seen,
            before.snapshot_index,
        )  # fmt: skip
        try:
            self._log.write_commit_record(position.segment, commit)
        except OSError as error:
            # The entry is durable, so the command is done. Without its record the next turn settles it again.
            logger.warning("%s: the commit record could not be written: %s", self._metadata._volume, error)
            self._metadata._forget()
            self.view = replace(self.view, commit=before.commit)
        self._metadata._led_to = self.view.position
        self._metadata._keep(self.view)

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Say of a failed write what is known: nothing stored, or outcome unknown and volume not to be trusted."""
        try:
            yield
        except SyncError as error:
            self._metadata._forget()
            self._metadata._failed = f"fsync of a log {what} failed with {error}"
            raise OutcomeUnknownError(
                f"{self._metadata._volume}: {self._metadata._failed}; whether it was stored is not known"
            ) from error
        except OSError as error:
            self._metadata._forget()
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFullError(f"{self._metadata._volume}: {error.strerror}; nothing was stored") from error
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            failed = f"writing a log {what} failed with {error}"
            self._metadata._failed = failed
            raise VolumeFailedError(f"{self._metadata._volume}: {failed}; nothing was stored") from error
        except BaseException:
            self._metadata._forget()
            raise

    # --- snapshots

    def snapshot_if_due(self) -> bool:
        """Take a snapshot if enough entries came since the last one, or the segment is large; return whether."""
        due = self.view.index - self.view.snapshot_index >= self.state.settings.snapshot_every
        return (due or self.view.position.offset_bytes >= SEGMENT_SIZE_MAX) and self.snapshot()

    def snapshot(self) -> bool:
        """Write (state, applied index, term, configuration) in one step, go on in a new segment, drop old files."""
        view = self.view
        leadership = self._metadata._leadership
        if leadership is None or view.commit is None or view.index == view.snapshot_index:
            return False
        tip = (view.index, view.term, view.chain)
        vote = Vote(leadership.term, leadership.candidate)
        durable = {self._metadata.identity.volume_id: view.index}
        body = SnapshotBody(msgspec.Raw(encode_state(view.state)), vote.term, vote.candidate, durable)
        self._log.write_snapshot(tip, leadership.history, body)
        position = self._log.start_segment(tip, view.commit, [vote])
        self.view = replace(view, position=position, snapshot_index=view.index)
        self._metadata._led_to = position
        self._metadata._keep(self.view)
        self._log.compact()
        return True


def replace_tail(evidence: Evidence, start: int) -> tuple[int, int, bytes]:
    """Return (index, term, chain) of the log before `evidence.entries[start]`."""
    return replace(evidence, entries=evidence.entries[:start]).tip


def _judge(evidence: Evidence, volume: Path) -> None:
    """Raise CorruptionError unless the log may be led with: nothing that could have been acked is missing."""
    index = evidence.tip[0]
    snapshot_index = evidence.snapshot.index if evidence.snapshot is not None else 0
    # Entry 1 was durable before the volume had its identity.
    marked = max(1, snapshot_index, evidence.commit.index if evidence.commit is not None else 0)
    bad = evidence.bad
    if bad is not None and (bad.index <= marked or bad.followed):
        raise CorruptionError(
            f"{volume}: the metadata log is damaged at entry {bad.index} ({bad.where}); entries up to {marked} were "
            "committed. Nothing has been changed; restore the volume from a copy"
        )
    if index < marked:
        raise CorruptionError(
            f"{volume}: the metadata log ends at entry {index}, but entries up to {marked} were committed: it was "
            "cut or rolled back. Nothing has been changed; restore the volume from a copy"
        )
    if evidence.commit is not None and evidence.commit.index >= snapshot_index:
        _, _, chain = replace_tail(evidence, evidence.commit.index - snapshot_index)
        if chain != evidence.commit.chain:
            raise CorruptionError(
                f"{volume}: entry {evidence.commit.index} of the metadata log is not the one that was committed "
                "(the hash chains differ). Nothing has been changed; restore the volume from a copy"
            )


def _replay(evidence: Evidence, limit: CommitRecord | None) -> View:
    """Return the state after the entries, all of them or up to a commit record.

    Raises CorruptionError if the entries do not lead to the commit record.
    """
    snapshot_index = evidence.snapshot.index if evidence.snapshot is not None else 0
    state = decode_state(evidence.snapshot_body.state) if evidence.snapshot_body is not None else StoreState()
    entries, position = evidence.entries, evidence.position
    if limit is not None:
        # A snapshot above the commit record was taken of committed entries, and the record lost in a power loss.
        count = max(0, limit.index - snapshot_index)
        if len(entries) > count:
            entries = entries[:count]
            position = Position(0, 0)  # more stands there than was applied: the next refresh reads in full
        elif not evidence.tail_is_clean:
            position = Position(0, 0)
    for entry in entries:
        state = _applied(state, entry)
    index, term, chain = replace(evidence, entries=entries).tip
    commit = limit if limit is not None else evidence.commit
    if limit is not None and limit.index >= snapshot_index and (index, chain) != (limit.index, limit.chain):
        raise CorruptionError(f"the metadata log does not lead to its commit record at entry {limit.index}")
    return View(state, index, term, chain, commit, position, evidence.term, snapshot_index)


def _applied(state: StoreState, entry: Entry) -> StoreState:
    """Return the state after a committed entry; a refused command leaves it as it was."""
    return machine.apply(state, machine.Place(entry.index, entry.history), decode_envelope(entry.payload))[0]


@contextmanager
def translated(volume: Path) -> Iterator[None]:
    """Errors of the operating system become ours at this edge."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(f"{volume}: {error.strerror}") from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise ReadOnlyError(f"{volume} cannot be written: {error.strerror} ({error.filename})") from error
        raise VolumeFailedError(f"{volume}: {error}") from error
