"""Replica mismatch: a volume that does not have the blocks of which the manifest says that it does.

Names and sizes tell without reading: of the first and last blocks when a store is opened, of all when it is scrubbed or
maintained. What is found is written down as an event, and reports are left for maintenance; nothing is repaired here,
and nothing of it is served, because a read goes by digest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from storage_core.metadata.commands import Event, RecordEvents
from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import UnreachableError, is_of_process, raise_if_limit
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.replicas.live_blocks import LiveBlock, live_blocks, missing_copies
from storage_core.store.volume import reports
from storage_core.store.volume.placement import is_recorded
from storage_core.store.volume.reports import Report
from storage_core.store.volume.volumes import Volume

COMPARED_AT_OPEN_MAX = 256  # copies


@dataclass(frozen=True, slots=True)
class ReplicaMismatch:
    """Copies that the manifest says a volume has, and that are not there in their full size."""

    stream: str
    volume: Volume
    blocks: tuple[LiveBlock, ...]  # in the order of the stream
    sizes: tuple[int, ...]  # of each, -1 if it is not there
    compared: int  # copies that were looked at

    def event(self) -> Event:
        first, last = self.blocks[0], self.blocks[-1]
        absent = sum(size < 0 for size in self.sizes)
        counts = f"of {self.compared} blocks compared {absent} missing, {len(self.blocks) - absent} of another size"
        reason = f"{counts}; between sequences {first.first} and {last.end - 1}"
        after = "missing" if absent == self.compared else "damaged"
        return Event("drift", self.stream, "", self.volume.name, "current", after, reason)


def compare(
    state: StoreState, stream: StreamState, volume: Volume, count_max: int | None = None
) -> ReplicaMismatch | None:
    """Compare names and sizes of the blocks that a volume should have; None if all are as they should be.

    `count_max`: the first and the last blocks only, half and half, looked at one by one.
    """
    if volume.volume_id not in stream.placement or not is_recorded(state, volume):
        return None
    rows = stream.blocks.rows
    position = np.uint32(stream.placement.index(volume.volume_id))
    held = np.flatnonzero((rows["holders"] >> position) & np.uint32(1))
    if count_max is not None and len(held) > count_max:
        held = np.concatenate((held[: count_max // 2], held[len(held) - count_max // 2 :]))
    blocks = live_blocks(state, stream, rows[held])
    sizes = _sizes_one_by_one(blocks, volume) if count_max is not None else _sizes_at_once(blocks, volume)
    differing = [(block, size) for block, size in zip(blocks, sizes, strict=True) if size != block.file_size]
    if not differing:
        return None
    differing_blocks, found_sizes = zip(*differing, strict=True)
    return ReplicaMismatch(stream.name, volume, differing_blocks, found_sizes, len(blocks))


def _sizes_one_by_one(blocks: Sequence[LiveBlock], volume: Volume) -> list[int]:
    sizes = []
    calls = [partial(volume.blocks.size, block.written_as, block.block_id) for block in blocks]
    for block, size in zip(blocks, volume.blocks.on_each(calls), strict=True):
        if isinstance(size, int):
            sizes.append(size)
            continue
        if not isinstance(size, OSError):
            raise size
        raise_if_limit(size)
        sizes.append(block.file_size if _is_unknown(size) else -1)
    return sizes


def _is_unknown(error: OSError) -> bool:
    """Return whether nobody can tell: what may not be looked at, or gives no answer now, is no drift."""
    return is_of_process(error) or isinstance(error, UnreachableError)


def _sizes_at_once(blocks: Sequence[LiveBlock], volume: Volume) -> list[int]:
    sizes: dict[bytes, dict[bytes, int]] = {}
    for incarnation in {block.written_as for block in blocks}:
        try:
            sizes[incarnation] = volume.blocks.sizes(incarnation)
        except OSError as error:
            raise_if_limit(error)
            if _is_unknown(error):
                return [block.file_size for block in blocks]
            sizes[incarnation] = {}
    return [sizes[block.written_as].get(block.block_id, -1) for block in blocks]


def record(session: Session, drifts: Sequence[ReplicaMismatch], env: Environment) -> None:
    """Record drift, and leave reports of the copies, so that they are repaired.

    Raises what a session raises.
    """
    for drift in drifts:
        others = [volume.reports for volume in session.writable if volume.volume_id != drift.volume.volume_id]
        for block, size in zip(drift.blocks[: reports.REPORT_COUNT_MAX], drift.sizes, strict=False):
            reason = "the file is missing" if size < 0 else f"file size: expected {block.file_size}, found {size}"
            left = Report(
                block.written_as,
                block.block_id,
                drift.volume.volume_id,
                block.first,
                block.end,
                0,
                reason,
                env.now_ns(),
            )
            reports.leave(others, left)
    if drifts:
        session.propose(RecordEvents(tuple(drift.event() for drift in drifts)))


def look_at_open(state: StoreState, volumes: Sequence[Volume], env: Environment) -> tuple[bool, list[ReplicaMismatch]]:
    """Return, after a short look without a lock, whether copies need repair, and drift that shows in names and sizes.

    How long it takes does not depend on how many blocks there are: it looks at the first and last ones of streams.
    """
    if len(volumes) < 2:
        return False, []
    counted = {volume.volume_id: volume for volume in volumes if is_recorded(state, volume)}
    due = any(_has_reports(volume, env) for volume in counted.values())
    due = due or any(missing_copies(stream, counted) for stream in state.streams.values())
    drifts, left = [], COMPARED_AT_OPEN_MAX
    for stream in state.streams.values():
        for volume_id in stream.placement:
            if left < 2 or volume_id not in counted:
                continue
            drift = compare(state, stream, counted[volume_id], left if left < 64 else max(32, left // 4))
            left -= min(len(stream.blocks), max(32, left // 4))
            if drift is not None:
                drifts.append(drift)
    return due, drifts


def _has_reports(volume: Volume, env: Environment) -> bool:
    try:
        return bool(env.files.list_directory(volume.path / reports.DIRECTORY))
    except OSError:
        return False


def everywhere(session: Session) -> list[ReplicaMismatch]:
    """Return the drift of all streams on all volumes that can be written, from the names and sizes of all blocks."""
    state = session.state
    drifts = [compare(state, stream, volume) for stream in state.streams.values() for volume in session.writable]
    return [drift for drift in drifts if drift is not None]
