"""Repair tasks: bad copies of blocks are replaced by good ones, what no volume has any more is declared lost.

A block of which no copy is left gives its place back to the blocks that it was merged from, if a volume still has them.

Blocks never change, so whoever finds a bad copy may do so without a lock; what is done about it is done under the locks
of the volumes, a bounded piece a session. One round of fsyncs writes down what was done.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from storage_core.errors import StorageError
from storage_core.metadata.commands import Command, DeclareLost, Event, RecordEvents, RecordHolders, TakeBack
from storage_core.metadata.manifest import encode_blocks, ids
from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import FULL
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.replicas.copies import CopyDefect, copy_block, look
from storage_core.store.replicas.damage_notes import DamageNotes
from storage_core.store.replicas.former_blocks import FormerBlocks, former_blocks
from storage_core.store.replicas.live_blocks import LiveBlock, live_blocks
from storage_core.store.volume import losses
from storage_core.store.volume.block_store import BlockStore
from storage_core.store.volume.placement import read_volumes
from storage_core.store.writing.mirrored_file import is_disk_failure

logger = logging.getLogger(__name__)
EVENTS_PER_VOLUME_MAX = 4  # a session and stream; more repaired copies than that make one event
HELD_PER_ENTRY_MAX = 4096  # block ids


@dataclass(frozen=True, slots=True)
class RepairTask:
    """A block, what is wrong with some of its copies, and which volumes have it whole without anyone knowing."""

    block: LiveBlock
    wrong: Mapping[bytes, Sequence[CopyDefect]]  # by volume
    proven: tuple[bytes, ...] = ()  # volumes whose copy was read and found whole


@dataclass(slots=True)
class Outcome:
    """What became of a repair task."""

    block: LiveBlock
    is_removed: bool = False  # removed meanwhile: nothing was done, and nothing has to be
    is_unmerged: bool = False  # gone everywhere: the blocks that it was merged from are in its place
    repaired: list[bytes] = field(default_factory=list)  # volumes
    left: dict[bytes, str] = field(default_factory=dict)  # volumes whose copy is as bad as before: why
    lost: SequenceSet = field(default_factory=SequenceSet.empty)  # declared lost
    unread: SequenceSet = field(default_factory=SequenceSet.empty)  # whole nowhere, and not declared lost
    places: tuple[str, ...] = ()  # where those may be


def still_live(state: StoreState, blocks: Iterable[LiveBlock]) -> dict[tuple[bytes, bytes], LiveBlock]:
    """Return those of the blocks that the manifest still names, by (incarnation, block id), as it names them now."""
    wanted: dict[bytes, list[bytes]] = defaultdict(list)
    for block in blocks:
        wanted[block.incarnation].append(block.block_id)
    live = {}
    for incarnation, block_ids in wanted.items():
        stream = state.by_incarnation(incarnation)
        if stream is not None:
            rows = stream.blocks.rows
            chosen = rows[np.isin(rows["block_id"], ids(block_ids))]
            live.update({(incarnation, block.block_id): block for block in live_blocks(state, stream, chosen)})
    return live


def carry_out(
    session: Session,
    tasks: Sequence[RepairTask],
    env: Environment,
    declare_lost: bool = False,
    accept_loss: bool = False,
) -> list[Outcome]:
    """Replace bad copies by good ones, and write that down; return what became of each.

    `declare_lost`: messages that nothing has any more are given up. Only somebody who asks for a repair may say so:
    until then readers are told what they miss. `accept_loss`: also those that may come back (losses.py).
    Raises what a session raises; copies that were made by then are good, and are found so the next time.
    """
    live = still_live(session.state, [task.block for task in tasks])
    repairing = _RepairSession(session, env, declare_lost, accept_loss)
    outcomes = []
    for task in tasks:
        block = live.get((task.block.incarnation, task.block.block_id))
        if block is None:
            repairing.note_removed(task)
            outcomes.append(Outcome(task.block, is_removed=True))
            continue
        stream = session.state.by_incarnation(block.incarnation)
        assert stream is not None
        outcomes.append(repairing.repair(stream, block, task))
    repairing.write_down()
    return outcomes


class _RepairSession:
    """What is done in one session, and what there is to write down of it."""

    def __init__(self, session: Session, env: Environment, declare_lost: bool, accept_loss: bool) -> None:
        self._session, self._env = session, env
        self._declare_lost, self._accept_loss = declare_lost, accept_loss
        self._held: dict[tuple[bytes, bytes], list[bytes]] = defaultdict(list)  # (incarnation, volume): blocks
        self._events: dict[tuple[str, bytes], list[Event]] = defaultdict(list)  # (stream, volume)
        self._lost: dict[bytes, SequenceSet] = {}  # by incarnation
        self._lost_size: Counter[bytes] = Counter()
        self._why_lost: dict[bytes, str] = {}
        self._unmerged: list[TakeBack] = []
        self._full: dict[bytes, str] = {}  # volumes without room: why
        self._notes = DamageNotes()
        self._made: set[tuple[bytes, bytes]] = set()  # (volume, incarnation) whose places are durable

    def repair(self, stream: StreamState, block: LiveBlock, task: RepairTask) -> Outcome:
        """Make new copies of one block wherever there is a bad one."""
        outcome = Outcome(block)
        sources = self._sources(stream, task)
        writable = {volume.volume_id: volume.blocks for volume in self._session.writable}
        lost, unread = SequenceSet.empty(), set[str]()
        for volume_id in stream.placement:
            wrong = task.wrong.get(volume_id)
            if not wrong:
                continue
            if volume_id not in writable or volume_id in self._full:
                outcome.left[volume_id] = self._full.get(volume_id, "the volume cannot be written now")
                continue
            try:
                self._make_place(block, volume_id, writable[volume_id])
                made = copy_block(block, sources, writable[volume_id], wrong)
            except (OSError, StorageError) as error:
                outcome.left[volume_id] = str(error)
                self._failed(volume_id, error)
                continue
            lost = lost.union(made.lost)
            unread.update(made.unread)
            if made.written and not made.lost:
                outcome.repaired.append(volume_id)
                self._note_repaired(block, volume_id, wrong, writable[volume_id])
            elif not made.lost:
                outcome.left[volume_id] = f"no copy has it whole: {wrong[0].reason}"
        for volume_id in (*outcome.repaired, *task.proven):
            if volume_id in block.held_by or volume_id not in stream.placement:
                continue
            if volume_id in outcome.repaired or self._is_durable(stream, block, volume_id, writable.get(volume_id)):
                self._held[block.incarnation, volume_id].append(block.block_id)
        if lost:
            self._lose(stream, block, lost, unread, outcome, task)
        for volume_id, wrong in task.wrong.items():
            if volume_id not in outcome.repaired and volume_id in stream.placement:
                self._note_left(block, volume_id, wrong, volume_id in block.held_by)
        return outcome

    def note_removed(self, task: RepairTask) -> None:
        """Note what was wrong with copies of a block that was removed or merged meanwhile."""
        for volume_id, wrong in task.wrong.items():
            self._note_left(task.block, volume_id, wrong, False)

    def _note_left(self, block: LiveBlock, volume_id: bytes, wrong: Sequence[CopyDefect], is_missed: bool) -> None:
        """Note a copy that is not repaired; one that is merely not there only if it `is_missed`."""
        if wrong and (is_missed or not wrong[0].is_missing):
            where = next(
                (
                    str(block.path_in(volume.blocks))
                    for volume in self._session.volumes
                    if volume.volume_id == volume_id
                ),
                "",
            )
            self._notes.note(block.stream, volume_id.hex(), f"{where}: {wrong[0].reason}")

    def _make_place(self, block: LiveBlock, volume_id: bytes, blocks: BlockStore) -> None:
        if (volume_id, block.written_as) not in self._made:
            blocks.make(block.written_as)
            self._made.add((volume_id, block.written_as))

    def _is_durable(self, stream: StreamState, block: LiveBlock, volume_id: bytes, blocks: BlockStore | None) -> bool:
        """Return whether a copy that nobody vouches for is whole on the disk itself, and make it so if it can be.

        What can be read may be in the page cache only, after an fsync that failed also for good.
        """
        if blocks is None:
            return False
        try:
            self._make_place(block, volume_id, blocks)
            blocks.sync_block(block.written_as, block.block_id)
        except OSError as error:
            self._failed(volume_id, error)
            return False
        return not look(block, blocks, stream, afresh=True)

    def _sources(self, stream: StreamState, task: RepairTask) -> list[BlockStore]:
        """Return the volumes to copy from: those that are not known to be bad first."""
        volumes = read_volumes(self._session.state, stream, self._session.volumes)
        return [volume.blocks for volume in sorted(volumes, key=lambda volume: volume.volume_id in task.wrong)]

    def _failed(self, volume_id: bytes, error: OSError | StorageError) -> None:
        logger.warning("a block could not be repaired: %s", error)
        if not isinstance(error, OSError):
            return
        if error.errno in FULL:
            self._full[volume_id] = str(error)
        elif is_disk_failure(error) and len(self._session.volumes) > 1:
            self._session.failed(volume_id, error)

    def _note_repaired(
        self, block: LiveBlock, volume_id: bytes, wrong: Sequence[CopyDefect], blocks: BlockStore
    ) -> None:
        is_behind = volume_id not in block.held_by and all(defect.is_missing for defect in wrong)
        before = "behind" if is_behind else "missing" if wrong[0].is_missing else "damaged"
        reason = "fetched from another volume" if is_behind else f"{block.path_in(blocks)}: {wrong[0].reason}"
        event = Event("repaired", block.stream, "", volume_id.hex(), before, "current", reason)
        self._events[block.stream, volume_id].append(event)

    def _lose(
        self, stream: StreamState, block: LiveBlock, lost: SequenceSet, unread: set[str], outcome: Outcome,
        task: RepairTask,
    ) -> None:  # fmt: skip
        """Declare messages lost that no copy at hand has, if nothing else may have them, or that was accepted."""
        state = self._session.state
        places = [str(place) for place in losses.places(state, stream, self._session.volumes, block.committed_ns)]
        places += sorted(unread)
        former = former_blocks(state, stream, self._session.volumes, block.first, block.end)
        uncovered = stream.shown(block.first, block.end).difference(former.sequences)
        is_given_up = self._declare_lost and (not places or self._accept_loss)
        if len(former.rows) and (not uncovered or (is_given_up and not uncovered.difference(lost))):
            self._unmerge(block, former, outcome, task)
            lost = uncovered
            if not lost:
                return
        elif len(former.rows):
            places.append(f"{', '.join(former.volumes)} (a part, in blocks that they were merged from)")
        if not self._declare_lost or (places and not self._accept_loss):
            outcome.unread, outcome.places = stream.removed.absent_among(lost), tuple(places)
            why = f"sequences {losses.ranges_text(lost)} are whole on no volume at hand; "
            why += f"they may be on {', '.join(places)}" if places else "a repair gives them up"
            for volume_id in task.wrong:
                outcome.left.setdefault(volume_id, why)
            return
        outcome.lost = lost
        shown = stream.removed.absent_among(lost.clip(stream.low_watermark, stream.next_sequence))
        self._lost[stream.incarnation] = self._lost.get(stream.incarnation, SequenceSet.empty()).union(lost)
        self._lost_size[stream.incarnation] += block.data_size * len(shown) // max(1, block.row_count)
        wrong = next((defects[0] for defects in task.wrong.values() if defects), None)
        why = wrong.reason if wrong is not None else "no copy is left"
        if places:
            why += f"; the loss was accepted, though they may be on {', '.join(places)}"
        self._why_lost.setdefault(stream.incarnation, why)

    def _unmerge(self, block: LiveBlock, former: FormerBlocks, outcome: Outcome, task: RepairTask) -> None:
        rows = encode_blocks(former.rows)
        self._unmerged.append(TakeBack(block.incarnation, SequenceSet.empty().encode(), 0, rows))
        outcome.is_unmerged = True
        outcome.left.clear()
        reason = f"block {block.block_id.hex()}: {len(former.rows)} blocks that it was merged from are in its place"
        for volume_id in task.wrong:
            event = Event("repaired", block.stream, "", volume_id.hex(), "missing", "current", reason)
            self._events[block.stream, volume_id].append(event)

    def write_down(self) -> None:
        """Say in the metadata what was lost, what volumes hold now, and what was repaired."""
        commands: list[Command] = [
            DeclareLost(incarnation, lost.encode(), self._lost_size[incarnation], self._why_lost[incarnation])
            for incarnation, lost in self._lost.items()
        ]
        for (incarnation, volume_id), blocks in self._held.items():
            for start in range(0, len(blocks), HELD_PER_ENTRY_MAX):
                part = b"".join(blocks[start : start + HELD_PER_ENTRY_MAX])
                commands.append(RecordHolders(incarnation, volume_id, part))
        commands += self._unmerged
        events = [event for repaired in self._events.values() for event in _summed_up(repaired)]
        events += self._notes.events()
        if events:
            commands.append(RecordEvents(tuple(events)))
        if commands:
            with self._session.group():
                for command in commands:
                    self._session.propose(command)


def _summed_up(events: list[Event]) -> list[Event]:
    """Return the events about one stream on one volume, as one if they are many."""
    if len(events) <= EVENTS_PER_VOLUME_MAX:
        return events
    first = events[0]
    before = next(state for state in ("damaged", "missing", "behind") if any(event.before == state for event in events))
    reason = f"{len(events)} blocks; the first: {first.reason}"
    return [Event(first.kind, first.stream, "", first.volume, before, first.after, reason)]
