"""Repair: everything brought back to current that can be, and what is lost declared so.

    volumes     those that take no part get their metadata anew (rejoin.py), and damaged metadata files are replaced
    blocks      every copy is read, bad ones are replaced (repair_tasks.py), what nothing has is declared lost; what may
                come back on a disk that is away is left alone, unless the loss was accepted (losses.py)
    lost ones   of which a copy came back are said, and taken back if that was asked for (take_back.py)
    the rest    damage reports of what is whole now go, leftovers of killed repairs go, index.db is written

It reads without a lock, and writes in sessions of bounded length, between which others write; so it may take as long as
it takes. Ended anywhere, the next one resumes with what is left.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from storage_core.errors import StorageError
from storage_core.metadata.commands import Event, NoOp, RecordEvents, SetAside
from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import raise_if_limit
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.metadata_client import MetadataClient, translated
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.recovery import rejoin, take_back
from storage_core.store.recovery.membership import resume_quietly
from storage_core.store.recovery.rejoin import VolumeToRejoin
from storage_core.store.recovery.take_back import Recoverable
from storage_core.store.replicas.damage_notes import DamageNotes
from storage_core.store.replicas.repair_tasks import Outcome, RepairTask, carry_out
from storage_core.store.replicas.verification import (
    Damage,
    Indexes,
    Progress,
    absent_volumes,
    block_damage,
    check_blocks,
    metadata_damage,
    save_indexes,
)
from storage_core.store.volume import reports
from storage_core.store.volume.identity import STREAMS
from storage_core.store.volume.state import VolumeState
from storage_core.store.volume.volumes import Volume

logger = logging.getLogger(__name__)
HURT = (VolumeState.DAMAGED, VolumeState.ROLLED_BACK)
WRITTEN_PER_SESSION_MAX = 64 << 20  # bytes of copies that are made in one session; one copy at least
REPAIR_TASKS_PER_SESSION_MAX = 1024  # also those that need no copy, only a note that they were found whole


@dataclass(slots=True)
class _Progress:
    """What a repair has found and done so far."""

    damage: list[Damage] = field(default_factory=list)
    volumes: list[dict[str, object]] = field(default_factory=list)
    lost: dict[str, SequenceSet] = field(default_factory=dict)  # by stream
    unread: dict[tuple[str, tuple[str, ...]], SequenceSet] = field(
        default_factory=dict
    )  # by stream, and where it may be
    taken_back: dict[str, SequenceSet] = field(default_factory=dict)  # by stream
    checked: int = 0
    whole: set[tuple[bytes, bytes, bytes]] = field(default_factory=set)  # (written as, block, volume): whole now
    repaired: set[tuple[bytes, bytes, bytes]] = field(default_factory=set)  # those of them that were not before


class Repair:
    """One repair of a store."""

    def __init__(
        self, metadata: MetadataClient, env: Environment, lock_timeout_s: float, accept_loss: bool = False
    ) -> None:
        """`accept_loss`: what no volume at hand has is declared lost, though a disk that is away may have it."""
        self._metadata, self._env, self._lock_timeout_s = metadata, env, lock_timeout_s
        self._accept_loss = accept_loss
        self._seen = _Progress()
        self._unmerged: set[str] = set()  # streams with blocks that came back in the place of others
        self._afresh: set[bytes] = set()  # volumes whose disk failed before: read past the page cache
        self._tasks: list[RepairTask] = []
        self._waiting_size = 0  # bytes of the copies that they ask for
        self._noted: dict[tuple[bytes, bytes], list[Damage]] = {}  # of those tasks, by (incarnation, block)

    def run(self, names: Sequence[str] | None, progress: Progress | None, takes_back: bool = False) -> dict[str, Any]:
        """Repair the volumes, then the blocks of these streams (None: all); return the report.

        `takes_back`: messages that were declared lost, and of which a copy came back, are served again. Raises
        NotFoundError, NoQuorumError, StoreBusyError, and what else a session raises.
        """
        self.volumes()
        why = resume_quietly(self._metadata, self._env, self._lock_timeout_s)
        if why:
            place = self._metadata.label
            self._seen.damage.append(Damage("", "", place, 0, 0, 0, f"a change of volumes cannot continue: {why}"))
        self._metadata_files()
        recoverable = take_back.look_for(self._metadata, self._env, self._lock_timeout_s, names)
        if takes_back and recoverable:
            self._seen.taken_back = take_back.carry_out(self._metadata, self._lock_timeout_s, recoverable)
            recoverable = []
        self.blocks(names, progress)
        if self._unmerged:
            self.blocks(sorted(self._unmerged), progress)
        self.sweep(names)
        if any(status.state in HURT for status in self._metadata.statuses(self._lock_timeout_s).values()):
            self.volumes()  # what shows only when a log is written
        take_back.tell(self._metadata, self._lock_timeout_s, recoverable)
        return self._report(recoverable, names)

    # --- volumes

    def volumes(self, ask: bool = True) -> None:
        """Let volumes that take no part rejoin; with `ask` not given only those that are known to be volumes.

        An empty or missing directory looks like a disk that is not mounted: only somebody who asks for a repair says
        that it is to be a volume from now on.
        """
        self._reread_only_volume()
        before = self._metadata.statuses(self._lock_timeout_s)
        self._metadata.cache.invalidate(volume_id for volume_id, status in before.items() if status.state in HURT)
        with self._metadata.session(
            self._lock_timeout_s, patience_s=self._lock_timeout_s, releases_space=True
        ) as session:
            for volume in session.writable:
                was = before.get(volume.volume_id)
                if was is not None and was.state in HURT:  # the session recovered it
                    self._note_volume(VolumeToRejoin(volume, was.state, was.reason), volume)
            missing = []
            for absent in rejoin.absent(session):
                if absent.is_only_busy(session):
                    logger.info("%s is used by another process, and is left to it", absent.volume.path)
                elif absent.state is VolumeState.MISSING and not absent.volume.is_blank:
                    missing.append(absent)
                elif ask or (absent.has_identity and absent.state != VolumeState.RETIRED):
                    self._rejoin(session, absent)
            if ask:
                self._stream_directories(session)
        if ask and missing:
            self._make_anew(missing)

    def _stream_directories(self, session: Session) -> None:
        """Make directories of streams that were lost with all that was in them: new blocks need them, too."""
        for volume in session.writable:
            try:
                self._env.files.make_directory(volume.path / STREAMS)
                rejoin.prepare_streams(session.state, volume)
                self._env.files.sync_directory(volume.path)
            except OSError as error:
                logger.warning("%s: directories of streams: %s", volume.path, error)

    def _make_anew(self, missing: Sequence[VolumeToRejoin]) -> None:
        """Make the directories of volumes that are gone, which only then can be locked, and let them rejoin."""
        made: dict[bytes, VolumeToRejoin] = {}
        settings = self._metadata.view(self._lock_timeout_s).state.settings
        for absent in missing:
            try:
                rejoin.make_directory(absent, settings, self._env)
                made[absent.volume.volume_id] = absent
            except StorageError as error:
                self._note_volume(absent, error)
        with self._metadata.session(self._lock_timeout_s, patience_s=self._lock_timeout_s) as session:
            for absent in rejoin.absent(session):
                before = made.get(absent.volume.volume_id)
                if before is not None:
                    self._rejoin(session, replace(absent, state=before.state, reason=before.reason))

    def _rejoin(self, session: Session, absent: VolumeToRejoin) -> None:
        cannot_be_read = absent.state is VolumeState.DAMAGED and absent.volume.identity is None
        if absent.state is VolumeState.RETIRED or cannot_be_read:
            self._afresh.add(absent.volume.volume_id)
        outcome: Volume | StorageError
        try:
            outcome = rejoin.rejoin(session, absent, self._env)
        except StorageError as error:
            logger.warning("%s does not rejoin: %s", absent.volume.path, error)
            outcome = error
        self._note_volume(absent, outcome)

    def _note_volume(self, absent: VolumeToRejoin, outcome: Volume | StorageError) -> None:
        self._seen.volumes.append(rejoin.describe(absent, outcome))
        why = f"the volume is {absent.state}: {absent.reason if isinstance(outcome, Volume) else outcome}"
        place = str(absent.volume.path)
        self._seen.damage.append(Damage("", absent.volume.name, place, 0, 0, 0, why, isinstance(outcome, Volume)))

    def _reread_only_volume(self) -> None:
        """Read the log of a store's only volume past the page cache after its I/O failed, and trust it again."""
        at_hand = self._metadata.volumes()
        if len(at_hand) > 1 or not self._metadata.cache.known.failed:
            return
        (only,) = at_hand
        log = only.log
        with translated(only.path):
            for path in log.files():
                self._env.files.drop_cache(path)
            log.read()
        self._afresh.add(only.volume_id)
        self._metadata.cache.reset_after_reread()

    # --- metadata files

    def _metadata_files(self) -> None:
        """Replace damaged metadata files: two snapshots later nothing refers to them, and they go."""
        with self._metadata.session(self._lock_timeout_s) as session:
            damaged = self._damaged_files(session)
            if not damaged:
                return
            for _ in range(2):
                session.propose(NoOp())
                session.snapshot()
            notes = DamageNotes()
            for damage in damaged:
                notes.note("", damage.volume, f"{damage.file}: {damage.reason}")
            notes.record(session)
            left = {(file.volume, file.file) for file in self._damaged_files(session)}
            done = sorted({file.volume for file in damaged} - {volume for volume, _ in left})
            if done:
                why = "damaged metadata files were replaced"
                session.propose(RecordEvents(tuple(Event("repaired", volume=volume, reason=why) for volume in done)))
        self._seen.damage.extend(
            replace(damage, repaired=(damage.volume, damage.file) not in left) for damage in damaged
        )

    def _damaged_files(self, session: Session) -> list[Damage]:
        return [damage for volume in session.writable for damage in metadata_damage(volume)]

    # --- blocks

    def blocks(self, names: Sequence[str] | None, progress: Progress | None) -> None:
        """Read all copies, and replace those that are bad, session by session."""
        state = self._metadata.view(self._lock_timeout_s).state
        streams = _named(state, names)
        at_hand = self._metadata.volumes()
        indexes = Indexes(at_hand, self._env)
        for checked in check_blocks(state, streams, at_hand, self._env, progress, self._afresh):
            indexes.note(checked)
            block, defects_by_volume = checked.block, checked.defects
            self._seen.checked += len(defects_by_volume)
            whole = tuple(volume_id for volume_id, wrong in defects_by_volume.items() if not wrong)
            self._seen.whole.update((block.written_as, block.block_id, volume_id) for volume_id in whole)
            wrong = {volume_id: defects for volume_id, defects in defects_by_volume.items() if defects}
            unheld = [volume_id for volume_id in whole if volume_id not in block.held_by]
            if wrong or unheld:
                self._noted[block.incarnation, block.block_id] = block_damage(checked, at_hand)
                self._tasks.append(RepairTask(block, wrong, whole))
                self._waiting_size += _cost(self._tasks[-1])
            if self._waiting_size >= WRITTEN_PER_SESSION_MAX or len(self._tasks) >= REPAIR_TASKS_PER_SESSION_MAX:
                self._repair_waiting(indexes)
        self._repair_waiting(indexes)
        with self._metadata.session(self._lock_timeout_s) as session:
            save_indexes(session, indexes.by_volume)

    def _repair_waiting(self, indexes: Indexes) -> None:
        while self._tasks:
            part = self._next_part()
            with self._metadata.session(self._lock_timeout_s) as session:
                for outcome in carry_out(session, part, self._env, True, self._accept_loss):
                    self._note(outcome, indexes)
        self._waiting_size = 0

    def _next_part(self) -> list[RepairTask]:
        part: list[RepairTask] = []
        size = 0
        while self._tasks and (not part or size < WRITTEN_PER_SESSION_MAX):
            task = self._tasks.pop(0)
            part.append(task)
            size += _cost(task)
        return part

    def _note(self, outcome: Outcome, indexes: Indexes) -> None:
        block = outcome.block
        noted = self._noted.pop((block.incarnation, block.block_id))
        if outcome.is_removed:
            return
        repaired = {volume_id.hex() for volume_id in outcome.repaired}
        left = {volume_id.hex(): why for volume_id, why in outcome.left.items()}
        if outcome.is_unmerged:
            self._unmerged.add(block.stream)
            repaired = {damage.volume for damage in noted}
        for damage in noted:
            why = f"{damage.reason}; {left[damage.volume]}" if damage.volume in left else damage.reason
            self._seen.damage.append(replace(damage, reason=why, repaired=damage.volume in repaired))
        for volume_id in outcome.repaired:
            indexes.verified(volume_id, block, True)
            self._seen.whole.add((block.written_as, block.block_id, volume_id))
            self._seen.repaired.add((block.written_as, block.block_id, volume_id))
        if outcome.lost:
            known = self._seen.lost.get(block.stream, SequenceSet.empty())
            self._seen.lost[block.stream] = known.union(outcome.lost)
        if outcome.unread:
            key = (block.stream, outcome.places)
            self._seen.unread[key] = self._seen.unread.get(key, SequenceSet.empty()).union(outcome.unread)

    # --- the end

    def sweep(self, names: Sequence[str] | None = None) -> None:
        """Take away what is over: damage reports, and files of repairs that were killed."""
        with self._metadata.session(self._lock_timeout_s) as session:
            close_reports(session, self._seen.whole, self._seen.repaired)
            for stream in _named(session.state, names):
                for volume in session.writable:
                    for incarnation in stream.incarnations:
                        try:
                            volume.blocks.sweep_replacements(incarnation)
                        except OSError as error:
                            logger.warning("%s: leftovers of repairs: %s", volume.path, error)

    def _report(self, recoverable: Sequence[Recoverable], names: Sequence[str] | None) -> dict[str, Any]:
        seen = self._seen
        view = self._metadata.view(self._lock_timeout_s)
        left = absent_volumes(view.state, self._metadata, self._lock_timeout_s)
        noted_volumes = {damage.volume for damage in seen.damage if not damage.stream}
        seen.damage.extend(damage for damage in left if damage.volume not in noted_volumes)
        set_aside = [messages for messages in view.state.set_aside if names is None or messages.stream in names]
        waits = bool(seen.unread or recoverable or set_aside)  # for a decision
        ok = not left and not waits and all(damage.repaired for damage in seen.damage)
        return {
            "ok": ok,
            "checked_blocks": seen.checked,
            "damage": [damage.to_json() for damage in seen.damage],
            "volumes": seen.volumes,
            "lost": _ranges(seen.lost),
            "unread": [
                {"stream": name, "first": first, "end": end, "may_be_on": list(places)}
                for (name, places), sequences in sorted(seen.unread.items())
                for first, end in sequences.ranges()
            ],
            "recoverable": [place for recoverable_block in recoverable for place in recoverable_block.to_json()],
            "taken_back": _ranges(seen.taken_back),
            "set_aside": [set_aside_json(messages) for messages in set_aside],
        }


def set_aside_json(messages: SetAside) -> dict[str, Any]:
    """Return messages of another copy of the store, whose log was set aside, as JSON has them."""
    sequences = SequenceSet.decode(messages.sequences)
    return {
        "stream": messages.stream,
        "volume": messages.volume_id.hex(),
        "directory": messages.directory,
        "messages": len(sequences),
        "ranges": [list(lost) for lost in sequences.ranges()],
    }


def _ranges(by_stream: Mapping[str, SequenceSet]) -> list[dict[str, Any]]:
    return [
        {"stream": name, "first": first, "end": end}
        for name, sequences in sorted(by_stream.items())
        for first, end in sequences.ranges()
    ]


def _named(state: StoreState, names: Sequence[str] | None) -> list[StreamState]:
    return [stream for stream in state.streams.values() if names is None or stream.name in names]


def _cost(task: RepairTask) -> int:
    """Return the bytes that are read or written for a task: bad copies, and those that nobody vouches for yet."""
    unheld = sum(volume_id not in task.block.held_by for volume_id in task.proven)
    return (len(task.wrong) + unheld) * task.block.file_size


def close_reports(
    session: Session,
    whole_copies: Iterable[tuple[bytes, bytes, bytes]],
    reported: Collection[tuple[bytes, ...]],
) -> None:
    """Remove the damage reports about copies that are whole now, or that nobody asks for any more.

    What they say becomes events, but for the copies that were `reported` already.
    """
    whole, notes = set(whole_copies), DamageNotes()
    live = {
        (stream.written_as(first), block_id): stream
        for stream in session.state.streams.values()
        for block_id, first in zip(
            stream.blocks.rows["block_id"].tolist(), stream.blocks.rows["first"].tolist(), strict=True
        )
    }
    for volume in session.writable:
        try:
            for file, report in volume.reports.read():
                stream = live.get((report.incarnation, report.block_id))
                is_wanted = stream is not None and report.volume_id in stream.placement
                copy = (report.incarnation, report.block_id, report.volume_id)
                if not is_wanted or copy in whole:
                    if copy not in reported and report.reason != reports.FILE_IS_MISSING:
                        notes.note_report(
                            stream.name if stream is not None else "",
                            report.volume_id.hex(),
                            f"block {report.block_id.hex()}: {report.reason}",
                        )
                    file.remove()
            for file in volume.reports.unreadable():
                file.remove()
        except OSError as error:
            raise_if_limit(error)
            logger.warning("%s: damage reports: %s", volume.path, error)
    notes.record(session)
