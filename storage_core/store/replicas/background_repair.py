"""Background repair: what maintenance does about copies, a bounded piece a session.

Two things say without a scan that a copy needs looking at: a damage report that a reader left, and a missing bit in the
manifest of a volume that was away or failed when a block was written. The copy itself is then read: one that is whole
is noted as such, any other is made anew.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from storage_core.metadata.state import StoreState, StreamState
from storage_core.store.ensemble.due_streams import DueStreams
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.replicas.copies import CopyDefect, look
from storage_core.store.replicas.damage_notes import DamageNotes
from storage_core.store.replicas.live_blocks import LiveBlock, live_blocks, missing_copies
from storage_core.store.replicas.repair_tasks import Outcome, RepairTask, carry_out
from storage_core.store.replicas.verification import Indexes, save_indexes
from storage_core.store.volume import reports
from storage_core.store.volume.reports import Report, ReportFile
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing.mirrored_file import is_disk_failure

logger = logging.getLogger(__name__)
COPIES_PER_SESSION_MAX = 8
LOOKED_AT_ONCE = 32  # copies that a volume lacks
LOOKED_AT_PER_SESSION_MAX = 1024  # with those that are not tried again yet
READ_PER_SESSION_MAX = 64 << 20  # bytes of copies that are looked at or made
LOOK_EVERY_NS = 1_000_000_000  # between two looks for damage reports
BACK_OFF_NS = 30 * 1_000_000_000  # before a copy that could not be repaired is tried again
_Copy = tuple[bytes, bytes, bytes]  # (written as, block, volume)


@dataclass(slots=True)
class _Budget:
    """What may be read and written in one session; the first copy may be as large as it is."""

    copies_left: int = COPIES_PER_SESSION_MAX
    size_left: int = READ_PER_SESSION_MAX

    def takes(self, block: LiveBlock) -> bool:
        """Return whether there is room for another copy of this size, and take it."""
        if self.copies_left <= 0 or (block.file_size > self.size_left and self.size_left < READ_PER_SESSION_MAX):
            return False
        self.copies_left -= 1
        self.size_left -= block.file_size
        return True


@dataclass(slots=True)
class _Candidate:
    """A block with the copies of it that need a look."""

    block: LiveBlock
    volumes: list[Volume] = field(default_factory=list)


class BackgroundRepair:
    """The copies that need a look, as far as this process knows. One for a store; used under its locks."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._looked_ns: int | None = None  # when reports were looked for last
        self._due, self._here = DueStreams(), frozenset[bytes]()  # streams that may lack copies on these volumes
        self._backed_off: dict[_Copy, int] = {}  # copies that could not be repaired: since when

    def run(self, session: Session, everything: bool = False) -> bool:
        """Look at some copies that need it and repair them; return whether there may be more to do.

        `everything`: look for reports now. Raises what a session raises.
        """
        budget, candidates = _Budget(), dict[tuple[bytes, bytes], _Candidate]()
        report_files = self._reports(session, everything)
        notes = DamageNotes()
        self._add_reported(session, report_files, budget, candidates, notes)
        self._add_missing(session, budget, candidates)
        if not candidates:
            notes.record(session)
            return False
        tasks = [self._examine(session, candidate) for candidate in candidates.values()]
        _note_recovered(tasks, report_files, notes)
        notes.record(session)
        outcomes = carry_out(session, tasks, self._env)
        self._note_whole(session, tasks, outcomes, report_files)
        for outcome in outcomes:
            self._close_reports(outcome, report_files)
        return budget.copies_left <= 0 or budget.size_left <= 0

    # --- reports

    def _reports(self, session: Session, everything: bool) -> list[tuple[ReportFile, Report]]:
        """Return the reports on all volumes, if it is time for a look."""
        now = self._env.now_ns()
        if not everything and self._looked_ns is not None and abs(now - self._looked_ns) < LOOK_EVERY_NS:
            return []
        self._looked_ns = now
        return [file for volume in session.writable for file in _left_on(volume)]

    def _add_reported(
        self,
        session: Session,
        report_files: list[tuple[ReportFile, Report]],
        budget: _Budget,
        candidates: dict[tuple[bytes, bytes], _Candidate],
        notes: DamageNotes,
    ) -> None:
        """Take up the copies that reports name; reports about what is not there any more are noted and removed."""
        writable = {volume.volume_id: volume for volume in session.writable}
        for file, report in report_files:
            stream = _written_as(session.state, report.incarnation)
            block = _find(session.state, stream, report.block_id) if stream is not None else None
            if stream is None or block is None or report.volume_id not in stream.placement:
                if report.reason != reports.FILE_IS_MISSING:  # which it may have been because it was removed
                    notes.note_report(stream.name if stream is not None else "", report.volume_id.hex(), _said(report))
                _remove(file)
            elif report.volume_id in writable and not self._backs_off((*_key(block), report.volume_id)):
                _add(candidates, block, writable[report.volume_id], budget)

    # --- missing bits

    def _add_missing(
        self, session: Session, budget: _Budget, candidates: dict[tuple[bytes, bytes], _Candidate]
    ) -> None:
        """Take up copies that the manifest says a volume does not have, as many as there is room for."""
        writable = {volume.volume_id: volume for volume in session.writable}
        if self._here != frozenset(writable):
            self._here = frozenset(writable)
            self._due.restart()
        for stream in self._due.among(session.state.streams):
            missing = missing_copies(stream, writable)
            if not missing:
                self._due.done(stream)
            for volume_id, at in missing.items():
                self._add_some(session, stream, at, writable[volume_id], budget, candidates)
                if budget.copies_left <= 0:
                    return

    def _add_some(
        self, session: Session, stream: StreamState, at: np.ndarray, volume: Volume, budget: _Budget,
        candidates: dict[tuple[bytes, bytes], _Candidate],
    ) -> None:  # fmt: skip
        """Take up copies that a volume lacks; those that could not be repaired a moment ago do not stand in the way."""
        for start in range(0, min(len(at), LOOKED_AT_PER_SESSION_MAX), LOOKED_AT_ONCE):
            for block in live_blocks(session.state, stream, stream.blocks.rows[at[start : start + LOOKED_AT_ONCE]]):
                if budget.copies_left <= 0:
                    return
                if not self._backs_off((*_key(block), volume.volume_id)):
                    _add(candidates, block, volume, budget)
            if len(candidates) >= COPIES_PER_SESSION_MAX:
                return

    # --- one by one

    def _examine(self, session: Session, candidate: _Candidate) -> RepairTask:
        """Read the copies; one on a disk that does not give it back retires its volume, if there are others."""
        stream = session.state.by_incarnation(candidate.block.incarnation)
        assert stream is not None
        wrong: dict[bytes, Sequence[CopyDefect]] = {}
        proven = []
        for volume in candidate.volumes:
            defects = look(candidate.block, volume.blocks, stream)
            errors = [defect.error for defect in defects if defect.error is not None]
            broken = next((error for error in errors if is_disk_failure(error)), None)
            if broken is not None and len(session.volumes) > 1:
                session.failed(volume.volume_id, broken)
            if defects:
                wrong[volume.volume_id] = defects
            else:
                proven.append(volume.volume_id)
        return RepairTask(candidate.block, wrong, tuple(proven))

    def _note_whole(
        self,
        session: Session,
        tasks: Sequence[RepairTask],
        outcomes: Sequence[Outcome],
        report_files: list[tuple[ReportFile, Report]],
    ) -> None:
        """Note in index.db that reported copies are whole now: what found them damaged may have written that there."""
        whole = {
            (*_key(outcome.block), volume_id): outcome.block for outcome in outcomes for volume_id in outcome.repaired
        }
        whole |= {(*_key(task.block), volume_id): task.block for task in tasks for volume_id in task.proven}
        named = {(report.incarnation, report.block_id, report.volume_id) for _, report in report_files}
        reported = named & whole.keys()
        if not reported:
            return
        volumes = {volume_id for *_, volume_id in reported}
        indexes = Indexes([volume for volume in session.writable if volume.volume_id in volumes], self._env)
        for copy in reported:
            indexes.verified(copy[2], whole[copy], True)
        save_indexes(session, indexes.by_volume)

    def _close_reports(self, outcome: Outcome, report_files: list[tuple[ReportFile, Report]]) -> None:
        """Remove the reports about copies that are whole now, or gone; do not try the others again for a while."""
        left = {(*_key(outcome.block), volume_id) for volume_id in outcome.left}
        for copy in left:
            self._backed_off[copy] = self._env.now_ns()
        for file, report in report_files:
            copy = (report.incarnation, report.block_id, report.volume_id)
            if copy[:2] == _key(outcome.block) and copy not in left:
                _remove(file)

    def _backs_off(self, copy: _Copy) -> bool:
        since = self._backed_off.get(copy)
        if since is None:
            return False
        if abs(self._env.now_ns() - since) < BACK_OFF_NS:
            return True
        del self._backed_off[copy]
        return False


def _note_recovered(
    tasks: Sequence[RepairTask], report_files: Sequence[tuple[ReportFile, Report]], notes: DamageNotes
) -> None:
    """Note what reports say of copies that read whole now: it was found once, and a disk that errs at times is bad."""
    whole = {(*_key(task.block), volume_id): task.block for task in tasks for volume_id in task.proven}
    for _, report in report_files:
        block = whole.get((report.incarnation, report.block_id, report.volume_id))
        if block is not None and report.reason != reports.FILE_IS_MISSING:
            notes.note_report(block.stream, report.volume_id.hex(), f"{_said(report)}; it reads whole now")


def _said(report: Report) -> str:
    return f"block {report.block_id.hex()}: {report.reason}"


def _key(block: LiveBlock) -> tuple[bytes, bytes]:
    return (block.written_as, block.block_id)


def _add(candidates: dict[tuple[bytes, bytes], _Candidate], block: LiveBlock, volume: Volume, budget: _Budget) -> None:
    candidate = candidates.get(_key(block))
    if candidate is not None and volume in candidate.volumes:
        return
    if budget.takes(block):
        candidates.setdefault(_key(block), _Candidate(block)).volumes.append(volume)


def _remove(file: ReportFile) -> None:
    try:
        file.remove()
    except OSError as error:
        logger.warning("%s could not be removed: %s", file.path, error)


def _left_on(volume: Volume) -> list[tuple[ReportFile, Report]]:
    try:
        return volume.reports.read()
    except OSError as error:
        logger.warning("%s: damage reports: %s", volume.path, error)
        return []


def _written_as(state: StoreState, incarnation: bytes) -> StreamState | None:
    return next((stream for stream in state.streams.values() if incarnation in stream.incarnations), None)


def _find(state: StoreState, stream: StreamState, block_id: bytes) -> LiveBlock | None:
    rows = stream.blocks.rows
    blocks = live_blocks(state, stream, rows[rows["block_id"] == np.void(block_id)])
    return blocks[0] if blocks else None
