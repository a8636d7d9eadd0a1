"""The truth about copies: for every stream and volume whether its copy is current, and if not, why.

A copy is current only if the metadata log of its volume is at the commit index, and every live block of the stream is
there by name and size with none of them known to be damaged: from the last read of it (index.db), or from a reader's
report. The last sequence alone proves nothing. Two copies have the same digest exactly if the same blocks are whole.

    state        what it means for one stream on one volume
    current      as above
    behind       the log ends early, or blocks are not there that were never written there
    damaged      the volume's metadata, or a block that it took, is damaged or gone
    missing      the volume is not there; or it is, and not one block that it took, or this user may not look
    foreign      another volume, another instance of it, or one of another copy of the store is in its place
    rolled_back  its log ends before what was durable there: an older copy was put back
    retired      it failed, and counts again when it was verified
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from storage_core.errors import ProcessError
from storage_core.metadata.commands import ids_of_voters
from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import raise_if_limit
from storage_core.raft.rules import majority
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.decision import NOT_A_VOLUME, VolumeStatus
from storage_core.store.ensemble.metadata_client import MetadataClient
from storage_core.store.ensemble.view import View
from storage_core.store.environment import Environment
from storage_core.store.replicas.former_blocks import journaled
from storage_core.store.volume import log, losses, reports
from storage_core.store.volume.losses import Unread
from storage_core.store.volume.state import VolumeState
from storage_core.store.volume.volumes import Volume

STATES = tuple(VolumeState)
_WORST_FIRST = (
    VolumeState.FOREIGN,
    VolumeState.ROLLED_BACK,
    VolumeState.RETIRED,
    VolumeState.MISSING,
    VolumeState.DAMAGED,
    VolumeState.BEHIND,
    VolumeState.CURRENT,
)
_CAN_VOTE = (VolumeState.CURRENT, VolumeState.BEHIND)
_Copy = tuple[bytes, bytes]  # incarnation, block id


@dataclass(frozen=True, slots=True)
class Replica:
    """The copy of one stream on one volume of its placement."""

    volume_id: bytes
    path: Path
    state: VolumeState
    applied: int  # entry at which the volume's metadata log ends
    lag: int  # entries that it is behind the commit index
    block_count: int  # live blocks that are whole there by name and size, and not known to be damaged
    size: int  # bytes of them
    damaged_blocks: int  # live blocks that it took and has not whole; 0 if the volume itself is not there
    missing_blocks: int  # live blocks that are not there: gone, or never written there
    last_scrub_ns: int  # when the block that waits longest was read as a whole; 0: one of them never was
    digest: str  # hex, over the whole blocks
    reason: str  # why it is not current, for people; empty if it is

    @property
    def name(self) -> str:
        return self.volume_id.hex()

    @property
    def current(self) -> bool:
        return self.state == VolumeState.CURRENT


@dataclass(frozen=True, slots=True)
class BlockCopies:
    """The copies of a stream's live blocks on one volume, a row per block in the order of the manifest."""

    file_sizes: np.ndarray  # int64, bytes; -1: it is not there
    verified_ns: np.ndarray  # int64; 0: it was never read; negative: it was found damaged then
    whole: np.ndarray  # bool: there in full size, and not known to be damaged
    taken: np.ndarray  # bool: it was written there once

    @property
    def states(self) -> list[VolumeState]:
        """Return the state of each copy, by itself: what its volume is like is another question."""
        bad = np.where(self.file_sizes >= 0, 2, np.where(self.taken, 1, 3))
        names = (VolumeState.CURRENT, VolumeState.MISSING, VolumeState.DAMAGED, VolumeState.BEHIND)
        return [names[at] for at in np.where(self.whole, 0, bad).tolist()]


class Survey:
    """One look at all volumes of a store: made once, and asked about any number of its streams."""

    def __init__(self, metadata: MetadataClient, env: Environment, lock_timeout_s: float) -> None:
        self._env = env
        self.view: View = metadata.view(lock_timeout_s)
        self.statuses: Mapping[bytes, VolumeStatus] = _decided(metadata.statuses(lock_timeout_s), self.view.state)
        voters = {voter.volume_id for voter in self.view.state.voters}
        self.volumes: tuple[Volume, ...] = tuple(volume for volume in metadata.volumes() if volume.volume_id in voters)
        self._at = {volume.volume_id: volume for volume in self.volumes}
        self._indexes = {volume.volume_id: volume.read_index() for volume in self.volumes if volume.is_present}
        self._reported = self._reports()
        self._replicas: dict[bytes, tuple[StreamState, list[Replica]]] = {}  # that were asked for, by incarnation
        self._refused: dict[tuple[bytes, bytes], str] = {}  # by volume and incarnation: why its blocks are not seen

    def status(self, volume_id: bytes) -> VolumeStatus:
        """Return what the metadata of a volume is like."""
        return self.statuses.get(volume_id, NOT_A_VOLUME)

    def lag(self, volume_id: bytes) -> int:
        """Return how many entries a volume's log is behind the commit index."""
        status = self.status(volume_id)
        return 0 if status.state == VolumeState.CURRENT else max(0, self.view.index - status.index)

    def leader(self, volume_ids: Iterable[bytes]) -> bytes | None:
        """Return the first of these volumes that may vote, None if there is none.

        One process hosts all voters: leading means no more here.
        """
        return next(
            (volume_id for volume_id in volume_ids if self.status(volume_id).state == VolumeState.CURRENT), None
        )

    def can_vote(self, volume_id: bytes) -> bool:
        """Return whether this volume's vote would count now: it is there, and its metadata can be trusted."""
        return self.status(volume_id).state in _CAN_VOTE

    def pending_delete_size(self, volume_id: bytes) -> int:
        """Return the bytes of files on a volume whose blocks were removed or merged, and are not unlinked yet."""
        deletes = self.view.state.deletes
        ids: dict[bytes, bytearray] = {}
        for incarnation, block_id in zip(deletes["incarnation"].tolist(), deletes["block_id"].tolist(), strict=True):
            ids.setdefault(bytes(incarnation), bytearray()).extend(bytes(block_id))
        sizes = (self._look(volume_id, incarnation, bytes(blocks))[0] for incarnation, blocks in ids.items())
        return sum(int(held[held > 0].sum()) for held in sizes)

    def metadata_size(self, volume_id: bytes) -> int:
        """Return the bytes of the metadata log on a volume and of what belongs to it."""
        volume = self._at.get(volume_id)
        try:
            return sum(volume.files.file_sizes(volume.path / log.DIRECTORY).values()) if volume is not None else 0
        except OSError as error:
            raise_if_limit(error)
            return 0  # the state of the volume says what is wrong there

    def replicas(self, stream: StreamState) -> list[Replica]:
        """Return the copies of a stream in the order of its placement; looked at once, however often it is asked."""
        known, replicas = self._replicas.get(stream.incarnation, (None, []))
        if known is not stream:
            replicas = [
                self._replica(stream, position, volume_id) for position, volume_id in enumerate(stream.placement)
            ]
            self._replicas[stream.incarnation] = stream, replicas
        return list(replicas)

    def _reports(self) -> dict[bytes, dict[_Copy, int]]:
        """Return, by volume, which copies readers reported, and when last."""
        reported: dict[bytes, dict[_Copy, int]] = {}
        for volume in self.volumes:
            try:
                left = volume.reports.read() if volume.is_present else []
            except OSError as error:
                raise_if_limit(error)
                continue  # a volume that cannot be read has its own state
            for _, report in left:
                if report.reason == reports.FILE_IS_MISSING:
                    continue  # the listing says whether it is; the whole volume may have been away
                copies = reported.setdefault(report.volume_id, {})
                copy = (report.incarnation, report.block_id)
                copies[copy] = max(copies.get(copy, 0), report.time_ns)
        return reported

    def _replica(self, stream: StreamState, position: int, volume_id: bytes) -> Replica:
        status, volume = self.status(volume_id), self._at.get(volume_id)
        rows = stream.blocks.rows
        copies = self.block_copies(stream, position)
        present, whole, took, verified_ns = copies.file_sizes >= 0, copies.whole, copies.taken, copies.verified_ns
        state, reason = status.state, status.reason
        damaged, absent = int(np.count_nonzero((present | took) & ~whole)), int(np.count_nonzero(~present))
        if state in (VolumeState.MISSING, VolumeState.FOREIGN):
            damaged = 0
        refusals = [self._refused.get((volume_id, incarnation), "") for incarnation in stream.incarnations]
        if state in (VolumeState.CURRENT, VolumeState.BEHIND):
            if any(refusals):
                state, reason, damaged = VolumeState.MISSING, next(filter(None, refusals)), 0
            elif took.any() and not present.any():
                state, reason = VolumeState.MISSING, f"none of its {len(rows)} blocks is there"
            elif damaged:
                state, reason = VolumeState.DAMAGED, f"{_blocks(damaged)} of {len(rows)} damaged or gone"
            elif absent and state == VolumeState.CURRENT:
                state, reason = VolumeState.BEHIND, f"{_blocks(absent)} of {len(rows)} not written there yet"
        return Replica(
            volume_id=volume_id,
            path=volume.path if volume is not None else Path(),
            state=state,
            applied=status.index,
            lag=self.lag(volume_id),
            block_count=int(np.count_nonzero(whole)),
            size=int(rows["file_size"][whole].sum()),
            damaged_blocks=damaged,
            missing_blocks=absent,
            last_scrub_ns=int(np.abs(verified_ns).min()) if len(rows) and not absent else 0,
            digest=_digest(rows[whole]),
            reason=reason,
        )

    def whole_somewhere(self, stream: StreamState) -> np.ndarray:
        """Return for each live block whether a volume at hand has a copy that is whole as far as is known."""
        copies = [self.block_copies(stream, position).whole for position in range(len(stream.placement))]
        whole: np.ndarray = np.logical_or.reduce([np.zeros(len(stream.blocks), bool), *copies])
        return whole

    def block_copies(self, stream: StreamState, position: int) -> BlockCopies:
        """Return the copies of the stream's blocks on the volume at this position of its placement."""
        rows = stream.blocks.rows
        sizes, verified_ns = self._held(stream, stream.placement[position])
        whole = (sizes == rows["file_size"]) & (verified_ns >= 0)
        return BlockCopies(sizes, verified_ns, whole, (rows["holders"] >> np.uint32(position)) & np.uint32(1) == 1)

    def unread(self, stream: StreamState) -> list[Unread]:
        """Return what of a stream no volume at hand has, and where it may be; nothing is read for it."""
        if any(replica.block_count == len(stream.blocks) for replica in self.replicas(stream)):
            return []
        whole = [self.block_copies(stream, position).whole for position in range(len(stream.placement))]
        return losses.unread(self.view.state, stream, self.volumes, whole)

    def recoverable(self, stream: StreamState) -> tuple[SequenceSet, list[bytes]]:
        """Return the messages that were declared lost and seem to be there again, and the volumes that have them.

        By names and sizes, and what was read last: of blocks that lost all they had. A repair reads them.
        """
        rows = stream.lost_blocks.rows
        rows = rows[~np.isin(rows["block_id"], stream.blocks.rows["block_id"])] if len(rows) else rows
        ends = rows["first"] + rows["span"]
        former = [journaled(stream, self.volumes, first, end) for first, end in zip(rows["first"], ends, strict=True)]
        rows = np.concatenate((rows, *former))
        sequences, holders = SequenceSet.empty(), []
        for volume in self.volumes if len(rows) else ():
            on_disk = np.zeros(len(rows), bool)
            for incarnation in stream.incarnations:
                sizes, verified_ns = self._look(volume.volume_id, incarnation, rows["block_id"].tobytes())
                on_disk |= (sizes == rows["file_size"]) & (verified_ns >= 0)
            if on_disk.any():
                kept = SequenceSet.from_columns(rows["first"][on_disk], (rows["first"] + rows["span"])[on_disk])
                sequences = sequences.union(kept.intersection(stream.lost))
                holders.append(volume.volume_id)
        return sequences, holders

    def _held(self, stream: StreamState, volume_id: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return for each live block its size on a volume, -1 if it is not there, and when it was read last.

        The time is 0 if it never was, and negative if the block is known to be damaged.
        """
        rows = stream.blocks.rows
        sizes, verified_ns = np.full(len(rows), -1, np.int64), np.zeros(len(rows), np.int64)
        ids, begin = rows["block_id"].tobytes(), 0
        reported = self._reported.get(volume_id, {})
        ends = [*(int(np.searchsorted(rows["first"], end)) for _, end in stream.origins), len(rows)]
        for incarnation, end in zip(stream.incarnations, ends, strict=True):
            if begin == end:
                continue
            sizes[begin:end], verified_ns[begin:end] = self._look(volume_id, incarnation, ids[16 * begin : 16 * end])
            if any(reported_as == incarnation for reported_as, _ in reported):
                for at in range(begin, end):
                    told_ns = reported.get((incarnation, ids[16 * at : 16 * at + 16]), 0)
                    if told_ns > verified_ns[at] >= 0:  # a copy that was read as a whole since is whole
                        verified_ns[at] = -told_ns
            begin = end
        return sizes, verified_ns

    def _look(self, volume_id: bytes, incarnation: bytes, block_ids: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return what `VolumeIndex.held` says of a volume; no block is there where this user may not look.

        Raises ProcessError if this process has run into a limit.
        """
        index, count = self._indexes.get(volume_id), len(block_ids) // 16
        if index is not None:
            try:
                return index.held(incarnation, block_ids)
            except ProcessError as error:
                raise_if_limit(error)
                self._refused[volume_id, incarnation] = str(error)
        return np.full(count, -1, np.int64), np.zeros(count, np.int64)


def _decided(statuses: Mapping[bytes, VolumeStatus], state: StoreState) -> Mapping[bytes, VolumeStatus]:
    """Return the statuses; without a majority nobody can tell what was committed, and no volume counts as current."""
    voters = ids_of_voters(state.voters)
    count = sum(statuses.get(volume_id, NOT_A_VOLUME).state in _CAN_VOTE for volume_id in voters)
    if count >= majority(len(voters)):
        return statuses
    reason = f"{count} of {len(voters)} volumes can vote, {majority(len(voters))} are needed to tell what was committed"
    return {
        volume_id: replace(status, state=VolumeState.BEHIND, reason=reason)
        if status.state == VolumeState.CURRENT
        else status
        for volume_id, status in statuses.items()
    }


def worst(states: Iterable[VolumeState]) -> VolumeState:
    """Return the state that says most about what has to be done; current if there is none."""
    return min(states, key=_WORST_FIRST.index, default=VolumeState.CURRENT)


def _blocks(count: int) -> str:
    return f"{count} block" if count == 1 else f"{count} blocks"


def _digest(rows: np.ndarray) -> str:
    """Return a digest over what blocks hold and where in the stream they stand; equal rows give equal ones."""
    content = hashlib.blake2b(digest_size=16)
    for column in ("block_id", "digest", "first", "span"):
        content.update(np.ascontiguousarray(rows[column]).tobytes())
    return content.hexdigest()
