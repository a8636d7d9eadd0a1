"""The copies of one stream on the volumes of a store, held against what the manifest says: what `jstream drift` shows.

Every byte of every copy is read. The manifest fixes each block by the digest of its footer, so nothing has to be voted
on: a copy has a message whole, or it does not.
"""

import hashlib
from collections.abc import Sequence

from storage_core.block.reader import BlockReader
from storage_core.comparison import CopyDrift, Drift, RunsBuilder, State
from storage_core.errors import StorageError
from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import raise_if_of_process
from storage_core.paths import labels_of
from storage_core.sequences import SequenceSet
from storage_core.store.environment import Environment
from storage_core.store.replicas.copies import STRUCTURE, CopyDefect
from storage_core.store.replicas.live_blocks import LiveBlock
from storage_core.store.replicas.verification import Progress, check_blocks, counts
from storage_core.store.volume.volumes import Volume

LAYOUT = "jstream"


def compare(
    state: StoreState, stream: StreamState, volumes: Sequence[Volume], env: Environment, progress: Progress | None
) -> Drift:
    """Return the copies of a stream side by side, in the order of its placement. Nothing is written or repaired.

    `progress` hears (copies of blocks done, copies in all).
    """
    by_id = {volume.volume_id: volume for volume in volumes}
    present = {volume_id: by_id[volume_id] for volume_id in stream.placement if volume_id in by_id}
    counted = [volume for volume in present.values() if counts(state, volume)]
    shown = stream.shown()
    copies = {volume.volume_id: _Copy(volume) for volume in counted}
    together = RunsBuilder()
    for checked in check_blocks(state, [stream], counted, env, progress):
        inside = shown.clip(checked.block.first, checked.block.end)
        lost = inside
        for volume_id, wrong in checked.defects.items():
            lost = lost.intersection(copies[volume_id].add(checked.block, inside, wrong))
        together.add_set(inside.difference(lost), State.THERE)
        together.add_set(lost, State.MISSING)
    names = [str(present[each].path) if each in present else each.hex() for each in stream.placement]
    drifts = [
        copies[volume_id].drift(label, stream)
        if volume_id in copies
        else _absent(present.get(volume_id), label, path, shown)
        for volume_id, label, path in zip(stream.placement, labels_of(names), names, strict=True)
    ]
    return Drift(stream.name, LAYOUT, tuple(drifts), together.build())


class _Copy:
    """What has been seen of one copy, block after block."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._runs, self._digest = RunsBuilder(), hashlib.blake2b(digest_size=16)
        self._harmless: list[str] = []  # damage that touches no message

    def add(self, block: LiveBlock, shown: SequenceSet, defects: list[CopyDefect]) -> SequenceSet:
        """Note what the copy has of a block; return the messages of it that the copy has not whole."""
        wrong = SequenceSet.empty()
        for defect in defects:
            state = self._state(block, defect)
            # Of two that overlap the first counts: what is wrong with the block as a whole comes alone.
            touched = shown.clip(defect.first, defect.end).difference(wrong)
            self._runs.add_set(touched, state)
            wrong = wrong.union(touched)
            if defect.end <= defect.first:
                self._harmless.append(f"{block.path_in(self._volume.blocks)}: {defect.reason}")
        whole = shown.difference(wrong)
        self._runs.add_set(whole, State.THERE)
        for run in whole.ranges():
            self._digest.update(block.expected.digest + b"%d-%d," % run)
        return wrong

    def _state(self, block: LiveBlock, wrong: CopyDefect) -> State:
        if wrong.is_missing:
            return State.MISSING
        is_other = wrong.frame == STRUCTURE and _is_whole(block, self._volume)
        return State.DIFFERENT if is_other else State.DAMAGED

    def drift(self, label: str, stream: StreamState) -> CopyDrift:
        runs = self._runs.build()
        has = runs.sequences(State.THERE)
        return CopyDrift(
            label=label,
            path=str(self._volume.path),
            runs=runs,
            first=int(has.starts[0]) if has else stream.first_sequence,
            last=int(has.ends[-1]) - 1 if has else stream.first_sequence - 1,
            digest=self._digest.hexdigest(),
            problem="; ".join(self._harmless[:3]),
        )


def _is_whole(block: LiveBlock, volume: Volume) -> bool:
    """Return whether the file is a block in itself, if not the one that it should be."""
    try:
        file = volume.blocks.open(block.written_as, block.block_id)
    except OSError as error:
        raise_if_of_process(error)
        return False
    try:
        return not list(BlockReader.open(file).verify())
    except (StorageError, OSError) as error:
        raise_if_of_process(error)
        return False
    finally:
        file.close()


def _absent(volume: Volume | None, label: str, path: str, shown: SequenceSet) -> CopyDrift:
    """Return the copy on a volume that does not count now."""
    runs = RunsBuilder()
    runs.add_set(shown, State.MISSING)
    reason = "is none of the store" if volume is None else volume.reason or "does not count until it is repaired"
    return CopyDrift(label, path, runs.build(), None, None, "", f"the volume {reason}" if volume is None else reason)
