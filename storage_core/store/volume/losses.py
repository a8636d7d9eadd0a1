"""Losses: where messages may still be that no copy at hand has. Repair, reads, checks and pages all ask here.

    lost            every volume that keeps the stream takes part, and every disk that was one of them before is known
                    to be gone: nothing that could have the messages was left out, nor has a volume the blocks that
                    theirs was merged from (former_blocks.py): those take its place
    may come back   a volume is away, or does not take part; or a disk had the block, and another one is in its place

What is lost `repair` declares so. What may come back it leaves alone, until somebody accepts the loss.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from storage_core.metadata.commands import FormerVolume
from storage_core.metadata.state import FORMER_MAX, StoreState, StreamState
from storage_core.os_errors import raise_if_limit
from storage_core.paths import is_in_object_store
from storage_core.quantities import rfc3339
from storage_core.sequences import SequenceSet
from storage_core.store.volume.placement import is_recorded
from storage_core.store.volume.volumes import Volume

COME_BACK = (
    "that is no loss yet: bring back what is away, then read again. If it is gone for good, `jstream repair "
    "--accept-loss` gives the messages up"
)


def medium(path: object) -> str:
    """Return what a volume is on: a disk or a bucket."""
    return "bucket" if is_in_object_store(str(path)) else "disk"


def bring_back(path: object) -> str:
    """Return what brings a volume back."""
    return "make its bucket answer again" if medium(path) == "bucket" else "mount the disk"


@dataclass(frozen=True, slots=True)
class LossPlace:
    """A disk that may have messages, and cannot be asked now."""

    volume_id: bytes
    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path} ({self.why})"


def places(state: StoreState, stream: StreamState, volumes: Sequence[Volume], committed_ns: int) -> list[LossPlace]:
    """Return where a block of this stream may be that no copy at hand has. `committed_ns`: as its row says."""
    return [*away(state, stream, volumes), *former(state, stream, committed_ns)]


def away(state: StoreState, stream: StreamState, volumes: Sequence[Volume]) -> Iterator[LossPlace]:
    """Yield the volumes of the placement that take no part now, whatever they have."""
    at_hand = {volume.volume_id: volume for volume in volumes}
    for volume_id in stream.placement:
        volume, voter = at_hand.get(volume_id), state.voter(volume_id)
        if volume is not None and voter is not None and (voter.learner or is_recorded(state, volume)):
            continue
        path = str(volume.path) if volume is not None else f"volume {volume_id.hex()}"
        if volume is not None and volume.identity is None:
            why = f"the volume is {volume.state}"
        else:
            why = "the volume is retired" if voter is not None and voter.retired else "the volume takes no part"
        yield LossPlace(volume_id, path, why)


def former(state: StoreState, stream: StreamState, committed_ns: int) -> Iterator[LossPlace]:
    """Yield the disks that were volumes of the placement when a block was committed, and may come back."""
    for disk in state.former:
        is_placed = disk.volume_id in stream.placement or state.voter(disk.volume_id) is None
        if is_placed and committed_ns <= disk.gone_ns:
            until = f"{rfc3339(disk.gone_ns)[:19]}Z, and was replaced"
            reason = f"the {medium(disk.path)} that was a volume there until {until}"
            yield LossPlace(disk.volume_id, disk.path, reason)


def sentence(
    state: StoreState, stream: StreamState, volumes: Sequence[Volume], sequences: SequenceSet, committed_ns: int
) -> str:
    """Return what goes on behind what is wrong with copies, if none at hand has these sequences whole."""
    where = ", ".join(str(place) for place in places(state, stream, volumes, committed_ns))
    given_up = "a repair declares them lost, but for what it has in blocks that these were merged from"
    then = f"they may be on {where}" if where else given_up
    return f"; no volume at hand has sequences {ranges_text(sequences)} whole: {then}"


def with_former(
    disks: tuple[FormerVolume, ...], state: StoreState, volume_id: bytes, path: str
) -> tuple[FormerVolume, ...]:
    """Return the disks that may come back, with the one that was this volume until now."""
    voter = state.voter(volume_id)
    assert voter is not None
    others = [disk for disk in disks if (disk.volume_id, disk.instance_id) != (volume_id, voter.instance_id)]
    return (*others, FormerVolume(volume_id, voter.instance_id, path, state.time_ns))[-FORMER_MAX:]


def lacks_blocks(state: StoreState, volume: Volume, until_ns: int | None = None) -> bool:
    """Return whether a directory has not all the blocks that the metadata says the volume took; by their names.

    `until_ns`: all blocks of its streams that were committed up to then, whoever took them. What cannot be listed is
    not there as far as anybody knows. Raises ProcessError if this process has run into a limit.
    """
    for stream in state.streams.values():
        if volume.volume_id not in stream.placement or not len(stream.blocks):
            continue
        rows = stream.blocks.rows
        if until_ns is None:
            bit = np.uint32(stream.placement.index(volume.volume_id))
            wanted = (rows["holders"] >> bit) & np.uint32(1) == 1
        else:
            wanted = rows["committed_ns"] <= until_ns
        try:
            present = {block_id for incarnation in stream.incarnations for block_id in volume.blocks.ids(incarnation)}
        except OSError as error:
            raise_if_limit(error, volume.path)
            return True
        if not present or not present.issuperset(map(bytes, rows["block_id"][wanted])):
            return True
    return False


@dataclass(frozen=True, slots=True)
class Unread:
    """Messages that no copy at hand has, by names, sizes and what was read last; nothing is read for it."""

    sequences: SequenceSet
    places: tuple[LossPlace, ...]  # where they may be; none: a repair declares them lost


def unread(
    state: StoreState, stream: StreamState, volumes: Sequence[Volume], whole: Sequence[np.ndarray]
) -> list[Unread]:
    """Return what of a stream no copy has, one for all that may be in the same places.

    `whole`: by volume, for each row of the manifest, whether the copy there is whole as far as is known.
    """
    rows = stream.blocks.rows
    is_gone = ~np.logical_or.reduce([np.zeros(len(rows), bool), *whole])
    by_places: dict[tuple[LossPlace, ...], SequenceSet] = {}
    for row in rows[is_gone]:
        shown = stream.shown(int(row["first"]), int(row["first"] + row["span"]))
        if shown:
            where = tuple(places(state, stream, volumes, int(row["committed_ns"])))
            by_places[where] = by_places.get(where, SequenceSet.empty()).union(shown)
    return [Unread(sequences, where) for where, sequences in by_places.items()]


def ranges_text(sequences: SequenceSet, count_max: int = 5) -> str:
    """Return the sequences for people: `1 to 5, 9`."""
    shown = ", ".join(
        str(first) if end == first + 1 else f"{first} to {end - 1}" for first, end in sequences.ranges_head(count_max)
    )
    more = sequences.run_count - count_max
    return f"{shown} and {more} more ranges" if more > 0 else shown
