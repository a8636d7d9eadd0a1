"""Former blocks: those that a block was merged from, where a disk still has them.

A merge leaves its blocks where they were until they are unlinked, and a disk that was away has them for longer. So a
block that is gone everywhere costs nothing as long as they are there. The metadata has forgotten which sequences they
had; the journals of placements on the same volumes have not. Buckets have none, and nothing comes back from there.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storage_core.errors import StorageError
from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import raise_if_limit
from storage_core.sequences import SequenceSet
from storage_core.store.replicas.live_blocks import LiveBlock, live_blocks
from storage_core.store.volume.placement import read_volumes
from storage_core.store.volume.volumes import Volume

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FormerBlocks:
    """Blocks, disjoint and ascending, each of which was read whole on one of the volumes just now."""

    rows: np.ndarray  # BLOCK_DTYPE, without holders and subject sets
    volumes: tuple[str, ...]  # in hex

    @property
    def sequences(self) -> SequenceSet:
        return SequenceSet.from_columns(self.rows["first"], self.rows["first"] + self.rows["span"])


def journaled(stream: StreamState, volumes: Sequence[Volume], first: int, end: int) -> np.ndarray:
    """Return the rows of former blocks within `[first, end)` of which journals speak, the widest first."""
    known = {bytes(row) for table in (stream.blocks, stream.lost_blocks) for row in table.rows["block_id"]}
    rows: dict[bytes, np.void] = {}
    for volume in volumes if not any(volume.is_remote for volume in volumes) else ():
        try:
            for record in volume.journal.read():
                ends = record.rows["first"] + record.rows["span"]
                is_near = (record.rows["first"] >= first) & (ends <= end) & (ends > stream.low_watermark)
                near = record.rows[is_near]
                for row in near if record.incarnation == stream.incarnation else ():
                    if bytes(row["block_id"]) not in known:
                        rows.setdefault(bytes(row["block_id"]), row)
        except (StorageError, OSError) as error:
            raise_if_limit(error, volume.path)
            logger.warning("%s: the journal of placements cannot be read: %s", volume.path, error)
    listed = np.array(list(rows.values()), stream.blocks.rows.dtype)
    listed["holders"] = listed["subject_set"] = 0
    return listed[np.lexsort((listed["first"], -listed["span"]))]


def former_blocks(
    state: StoreState, stream: StreamState, volumes: Sequence[Volume], first: int, end: int
) -> FormerBlocks:
    """Return what there is of the blocks that those of `[first, end)` were merged from."""
    volumes = read_volumes(state, stream, volumes)
    chosen, holders, covered = [], set[str](), SequenceSet.empty()
    listed = journaled(stream, volumes, first, end)
    for at, block in enumerate(live_blocks(state, stream, listed)):
        if covered.touches(listed["first"][at : at + 1], listed["first"][at : at + 1] + listed["span"][at : at + 1])[0]:
            continue
        whole = [volume.name for volume in volumes if _is_whole(block, volume, stream, listed[at])]
        if whole:
            chosen.append(at)
            holders.update(whole)
            covered = covered.union(SequenceSet.from_ranges([(block.first, block.end)]))
    rows = listed[chosen]
    return FormerBlocks(rows[np.argsort(rows["first"])], tuple(sorted(holders)))


def _is_whole(block: LiveBlock, volume: Volume, stream: StreamState, row: np.void) -> bool:
    from storage_core.store.replicas.copies import look  # it loads Arrow, and what journals say needs none

    return not look(block, volume.blocks, stream, row=row)
