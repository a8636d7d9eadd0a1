"""Verification: every copy of every block read and checked from end to end, and the metadata files with them."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from storage_core.block.pieces import ReadMemory
from storage_core.errors import ProcessError, StorageError
from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import is_away, raise_if_of_process
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.metadata_client import MetadataClient
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.replicas.copies import CopyDefect, look
from storage_core.store.replicas.damage_notes import DamageNotes
from storage_core.store.replicas.live_blocks import LiveBlock, live_blocks
from storage_core.store.replicas.repair_tasks import still_live
from storage_core.store.volume import losses, reports
from storage_core.store.volume.index import VolumeIndex
from storage_core.store.volume.placement import is_recorded
from storage_core.store.volume.placement_journal import PlacementJournal
from storage_core.store.volume.register import Register
from storage_core.store.volume.reports import Report
from storage_core.store.volume.state import VolumeState
from storage_core.store.volume.volumes import Volume

logger = logging.getLogger(__name__)
CHUNK_SIZE_MAX = 64 << 20  # bytes of blocks that are looked at before anything is said about them
CHUNK_COUNT_MAX = 64
LOOKS_WITHOUT_LOCK = 4  # more, at metadata that seems damaged and cannot be locked
LOOK_PAUSE_S = 0.01
Progress = Callable[[int, int], None]  # hears (copies done, copies in all)


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that verification found. Sequences [first, end) are touched; 0, 0 for metadata."""

    stream: str
    volume: str
    file: str
    offset_bytes: int
    first: int
    end: int
    reason: str
    repaired: bool = False

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Checked:
    """A block with what is wrong with its copies on the volumes that were looked at."""

    block: LiveBlock
    defects: Mapping[bytes, list[CopyDefect]]  # by volume; empty list: the copy is whole
    looked_ns: int  # before the first of them was read: what is newer knows better


def verify(
    state: StoreState,
    streams: Sequence[StreamState],
    metadata: MetadataClient,
    env: Environment,
    progress: Progress | None,
    lock_timeout_s: float,
) -> tuple[dict[str, Any], dict[bytes, VolumeIndex], "VerifiedDamage"]:
    """Return {ok, checked_blocks, damage}, the indexes of the volumes, to be saved, and what was found, to be reported.

    Every byte of every copy of every block and of the metadata that counts was read; nothing was written. What others
    wrote or removed meanwhile is no damage.
    """
    volumes = metadata.volumes()
    damage = absent_volumes(state, metadata, lock_timeout_s)
    noted = {absent.volume for absent in damage}
    bad_files: list[Damage] = []
    for volume in volumes:
        if volume.identity is not None:
            bad_files.extend(damage_beside_writers(metadata, volume, env, lock_timeout_s))
        elif volume.name not in noted:  # it could be read a moment ago, and now nothing of it is looked at
            damage.append(
                Damage("", volume.name, str(volume.path), 0, 0, 0, f"the volume is {volume.state}: {volume.reason}")
            )
    indexes = Indexes(volumes, env)
    count = 0
    bad: list[Checked] = []
    for checked in check_blocks(state, streams, volumes, env, progress):
        indexes.note(checked)
        count += len(checked.defects)
        if any(checked.defects.values()):
            bad.append(checked)
    state = metadata.view(lock_timeout_s).state
    bad = still_wrong(state, bad, volumes)
    damage.extend(bad_files)
    for checked in bad:
        damage.extend(block_damage(checked, volumes, state))
    report = {"ok": not damage, "checked_blocks": count, "damage": [place.to_json() for place in damage]}
    return report, indexes.by_volume, VerifiedDamage(state, bad_files, bad)


@dataclass(frozen=True, slots=True)
class VerifiedDamage:
    """What somebody who only looked has found: it is reported, and left for repair."""

    state: StoreState  # by which it is wrong
    bad_files: Sequence[Damage]  # of the metadata
    bad_blocks: Sequence[Checked]

    def __bool__(self) -> bool:
        return bool(self.bad_files or self.bad_blocks)

    def record(self, session: Session) -> None:
        """Write it down as events of the volumes."""
        notes = DamageNotes()
        for damage in self.bad_files:
            notes.note("", damage.volume, f"{damage.file}: {damage.reason}")
        for checked, volume_id, wrong in bad_copies(still_wrong(session.state, self.bad_blocks, session.volumes)):
            block = checked.block
            notes.note(block.stream, volume_id.hex(), f"block {block.block_id.hex()}: {wrong.reason}")
        notes.record(session)

    def leave_reports(self, volumes: Sequence[Volume]) -> None:
        """Leave word of bad copies for the next lock owner."""
        leave_reports(still_wrong(self.state, self.bad_blocks, volumes), volumes)


def leave_reports(bad: Sequence[Checked], volumes: Sequence[Volume]) -> None:
    """Leave a report of each bad copy on the first of the other volumes that takes it."""
    for checked, volume_id, wrong in bad_copies(bad):
        others = [volume.reports for volume in volumes if volume.volume_id != volume_id and volume.identity is not None]
        block = checked.block
        report = Report(
            block.written_as, block.block_id, volume_id, wrong.first, wrong.end, wrong.offset_bytes, wrong.reason,
            checked.looked_ns,
        )  # fmt: skip
        reports.leave(others, report)


def bad_copies(bad: Sequence[Checked]) -> Iterator[tuple[Checked, bytes, CopyDefect]]:
    """Yield each bad copy, with what is wrong first; one that is merely not there yet, or away, is not bad."""
    for checked in bad:
        for volume_id, defects in checked.defects.items():
            is_behind = bool(defects) and defects[0].is_missing and volume_id not in checked.block.held_by
            if defects and not is_behind and not is_away(defects[0].error):
                yield checked, volume_id, defects[0]


def absent_volumes(state: StoreState, metadata: MetadataClient, lock_timeout_s: float) -> list[Damage]:
    """Return the volumes that take no part in the store, or hold what is not its present, as damage."""
    statuses = metadata.statuses(lock_timeout_s)
    damage = []
    for volume in metadata.volumes():
        status = statuses.get(volume.volume_id)
        if status is None or status.state in (VolumeState.CURRENT, VolumeState.BEHIND):
            continue
        is_other = status.state in (VolumeState.FOREIGN, VolumeState.ROLLED_BACK)
        if is_other or volume.identity is None or not is_recorded(state, volume):
            reason = f"the volume is {status.state}: {status.reason or volume.reason}"
            damage.append(Damage("", volume.name, str(volume.path), 0, 0, 0, reason))
    return damage


# --- blocks


def check_blocks(
    state: StoreState,
    streams: Sequence[StreamState],
    volumes: Sequence[Volume],
    env: Environment,
    progress: Progress | None = None,
    afresh: Collection[bytes] = (),
    start: tuple[bytes, int] = (b"", 0),
    ahead_size_max: int = CHUNK_SIZE_MAX,
) -> Iterator[Checked]:
    """Read all copies of all blocks on the volumes that count, several volumes at once; yield block by block.

    `afresh`: volumes that are read past the page cache. `start`: (incarnation, sequence) before which all is passed
    over; the streams are in the order of their incarnations then. A block of which no copy counts is yielded as well.
    `ahead_size_max`: bytes of blocks that are read before the first of them is yielded; one block at least.
    """
    counted = {volume.volume_id: volume for volume in volumes if counts(state, volume)}
    placed = [[counted[volume_id] for volume_id in stream.placement if volume_id in counted] for stream in streams]
    total = sum(
        len(stream.blocks) * len(stream_volumes) for stream, stream_volumes in zip(streams, placed, strict=True)
    )
    done = 0
    memories = {volume_id: ReadMemory() for volume_id in counted}
    for stream, stream_volumes in zip(streams, placed, strict=True):
        rows = stream.blocks.rows
        if stream.incarnation <= start[0]:
            passed = len(rows) if stream.incarnation < start[0] else int(np.searchsorted(rows["first"], start[1]))
            rows, done = rows[passed:], done + passed * len(stream_volumes)
        for chunk in _chunks(live_blocks(state, stream, rows), ahead_size_max):
            calls = [
                partial(_look_at, chunk, volume, stream, volume.volume_id in afresh, memories[volume.volume_id])
                for volume in stream_volumes
            ]
            looked_ns = env.now_ns()
            results = env.parallel(calls)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            for at, block in enumerate(chunk):
                defects = {volume.volume_id: wrong[at] for volume, wrong in zip(stream_volumes, results, strict=True)}
                yield Checked(block, defects, looked_ns)
                done += len(stream_volumes)
                if progress is not None:
                    progress(done, total)


def counts(state: StoreState, volume: Volume) -> bool:
    """Return whether copies on the volume are part of the store: also on one that is about to become a voter."""
    voter = state.voter(volume.volume_id)
    if voter is None or volume.identity is None or voter.retired:
        return False
    return volume.identity.instance_id == voter.instance_id


def still_wrong(state: StoreState, checked: Sequence[Checked], volumes: Sequence[Volume]) -> list[Checked]:
    """Return what is wrong now, by a newer state and by the volumes themselves; nothing is read again but names.

    A copy that was removed, merged, moved or put back meanwhile is not missing. Damage that was read stays damage,
    whatever became of the copy since, unless another one was made in its place.
    """
    live = still_live(state, [each.block for each in checked])
    at_hand = {volume.volume_id: volume for volume in volumes if volume.identity is not None}
    newer = _Newer(at_hand)
    left = []
    for each in checked:
        stream = state.by_incarnation(each.block.incarnation)
        block = live.get((each.block.incarnation, each.block.block_id))
        placed = stream.placement if stream is not None and block is not None else ()
        defects = {
            volume_id: []
            if wrong and block is not None and newer.is_whole(each, volume_id, wrong, block)
            else [defect for defect in wrong if volume_id in placed or not defect.is_missing]
            for volume_id, wrong in each.defects.items()
        }
        left.append(replace(each, defects=defects))
    return [each for each in left if any(each.defects.values())]


class _Newer:
    """What is known of copies that were found bad a while ago: somebody may have put good ones in their place."""

    def __init__(self, at_hand: Mapping[bytes, Volume]) -> None:
        self._at_hand = at_hand
        self._indexes: dict[bytes, VolumeIndex] = {}
        self._sizes: dict[tuple[bytes, bytes], dict[bytes, int]] = {}  # by volume and incarnation

    def is_whole(self, checked: Checked, volume_id: bytes, wrong: Sequence[CopyDefect], block: LiveBlock) -> bool:
        """Return whether a copy was made since; `block` is what a newer state says of it."""
        if volume_id in block.held_by and volume_id not in checked.block.held_by:
            return True
        volume = self._at_hand.get(volume_id)
        if volume is None:
            return False
        if wrong[0].is_missing:
            return self._size(volume, block) == block.file_size
        index = self._indexes.get(volume_id)
        if index is None:
            index = self._indexes[volume_id] = volume.read_index()
        return index.verified_ns(block.written_as, block.block_id) > checked.looked_ns

    def _size(self, volume: Volume, block: LiveBlock) -> int:
        key = (volume.volume_id, block.written_as)
        if key not in self._sizes:
            try:
                self._sizes[key] = volume.blocks.sizes(block.written_as)
            except OSError as error:
                raise_if_of_process(error)
                self._sizes[key] = {}
        return self._sizes[key].get(block.block_id, -1)


def _chunks(blocks: Sequence[LiveBlock], size_max: int) -> Iterator[list[LiveBlock]]:
    chunk: list[LiveBlock] = []
    size = 0
    for block in blocks:
        if chunk and (size + block.file_size > size_max or len(chunk) >= CHUNK_COUNT_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(block)
        size += block.file_size
    if chunk:
        yield chunk


def _look_at(
    blocks: Sequence[LiveBlock], volume: Volume, stream: StreamState, afresh: bool, memory: ReadMemory
) -> list[list[CopyDefect]]:
    return [look(block, volume.blocks, stream, afresh, memory=memory) for block in blocks]


def block_damage(checked: Checked, volumes: Sequence[Volume], state: StoreState | None = None) -> list[Damage]:
    """Return what is wrong with the copies of a block, for people; by `state` also whether messages may be lost."""
    stores = {volume.volume_id: volume.blocks for volume in volumes}
    also = _whole_nowhere(checked, volumes, state) if state is not None else ""
    return [
        Damage(
            checked.block.stream, volume_id.hex(), str(checked.block.path_in(stores[volume_id])), wrong.offset_bytes,
            wrong.first, wrong.end, f"{wrong.reason}{also}",
        )
        for volume_id, defects in checked.defects.items()
        for wrong in defects
    ]  # fmt: skip


def _whole_nowhere(checked: Checked, volumes: Sequence[Volume], state: StoreState) -> str:
    """Return what to say of messages of a block that no copy has whole; nothing if there are none."""
    stream = state.by_incarnation(checked.block.incarnation)
    if stream is None:
        return ""
    nowhere = stream.shown(checked.block.first, checked.block.end)
    for defects in checked.defects.values():
        nowhere = nowhere.intersection(SequenceSet.from_ranges([(wrong.first, wrong.end) for wrong in defects]))
    return losses.sentence(state, stream, volumes, nowhere, checked.block.committed_ns) if nowhere else ""


class Indexes:
    """What index.db of each volume says, brought up to date by what is found."""

    def __init__(self, volumes: Sequence[Volume], env: Environment) -> None:
        self._env = env
        self.by_volume = {volume.volume_id: volume.read_index() for volume in volumes if volume.identity is not None}
        self._held: dict[tuple[bytes, bytes], dict[bytes, tuple[int, int]]] = {}

    def note(self, checked: Checked) -> None:
        """Note when the copies of a block were read, and whether each was whole; nothing of those that were not."""
        for volume_id, defects in checked.defects.items():
            if not (defects and (defects[0].is_missing or is_away(defects[0].error))):
                self.verified(volume_id, checked.block, not defects, checked.looked_ns)

    def verified(self, volume_id: bytes, block: LiveBlock, is_whole: bool, time_ns: int | None = None) -> None:
        """Note whether a copy was whole at `time_ns`, or is now."""
        index = self.by_volume.get(volume_id)
        if index is None:
            return
        key = (volume_id, block.written_as)
        if key not in self._held:
            self._held[key] = index.stream(block.written_as).blocks
        size = block.file_size if is_whole else self._held[key].get(block.block_id, (-1, 0))[0]
        if size >= 0:
            time_ns = self._env.now_ns() if time_ns is None else time_ns
            index.verified(block.written_as, block.block_id, size, time_ns, is_whole)


def save_indexes(session: Session, indexes: Mapping[bytes, VolumeIndex]) -> None:
    """Write what was verified into index.db of the volumes, a cache: a failure to write is reported, not raised."""
    known = {incarnation for stream in session.state.streams.values() for incarnation in stream.incarnations}
    for volume in session.writable:
        if volume.volume_id in indexes:
            try:
                indexes[volume.volume_id].save(known)
            except (OSError, ProcessError) as error:
                logger.info("%s: index.db was not written: %s", volume.path, error)


# --- metadata


def damage_beside_writers(
    metadata: MetadataClient, volume: Volume, env: Environment, lock_timeout_s: float
) -> list[Damage]:
    """Return what is wrong with the metadata files of one volume that others may be writing.

    They are read without a lock; what seems wrong may be work in progress, so it is looked at again under the volume's
    lock. Where that cannot be had, it is what is found every time.
    """
    damage = metadata_damage(volume)
    if not damage:
        return []
    try:
        with metadata.hold(volume, lock_timeout_s):
            return metadata_damage(volume)
    except (StorageError, OSError) as error:
        logger.info("%s was looked at without its lock: %s", volume.path, error)
    for _ in range(LOOKS_WITHOUT_LOCK):
        env.sleep(LOOK_PAUSE_S)
        again = set(metadata_damage(volume))
        damage = [damage for damage in damage if damage in again]
    return damage


def metadata_damage(volume: Volume) -> list[Damage]:
    """Return what is wrong with the metadata files of one volume, which nobody writes meanwhile."""
    defects = _metadata_damage(volume.log, volume.journal)
    return [Damage("", volume.name, where, 0, 0, 0, reason) for where, reason in defects]


def _metadata_damage(log: Register, journal: PlacementJournal) -> list[tuple[str, str]]:
    """Return (file, reason) for what is wrong with the metadata's own files."""
    journaled, defects = _journaled(journal)  # before the log is read, which has all that was journaled by then
    try:
        contents = log.read()
        unfinished = log.unfinished_snapshots()
        log_defects = [(where, reason) for where, _, reason in (text.partition(": ") for text in contents.damage)]
        defects.extend((where, reason) for where, reason in log_defects if where not in unfinished)
        defects.extend(log.damaged_snapshots({where for where, _ in defects} | unfinished))
        if contents.bad is not None and not defects:  # a page of zeros is no bad record: it looks as if never written
            defects.append(
                (str(log.directory), f"the log is damaged at entry {contents.bad.index}: {contents.bad.where}")
            )
    except (StorageError, OSError) as error:
        raise_if_of_process(error)
        return [*defects, (str(log.directory), str(error))]
    commit, tip = contents.commit, contents.tip
    if commit is not None and commit.index > tip.index and not defects:  # whole pages of zeros, or none, at its end
        ends = f"it ends at entry {tip.index}, and entry {commit.index} was committed by what it says itself"
        defects.append((str(log.directory), f"the log was cut or rolled back: {ends}"))
    if journaled > tip.index:
        ends = f"it ends at entry {tip.index}, and the journal of placements has blocks of entry {journaled}"
        defects.append((str(log.directory), f"the metadata was rolled back: {ends}"))
    return defects


def _journaled(journal: PlacementJournal) -> tuple[int, list[tuple[str, str]]]:
    """Return the newest entry that the journal of placements speaks of, and what is wrong with the journal.

    It is written after the log is durable, and never before: metadata that ends sooner is older than the volume.
    """
    try:
        return max((placement.index for placement in journal.read()), default=0), []
    except (StorageError, OSError) as error:
        raise_if_of_process(error)
        return 0, [(str(journal.path), str(error))]
