"""Taking back: lost messages of which a volume has a copy again are served under their numbers.

The metadata remembers the blocks that lost messages were in (`StreamState.lost_blocks`), and nobody unlinks their
files. A copy that came back with a disk is read from end to end here: what is whole in it on any volume can be taken
back; so can what is whole in blocks that it was merged from (former_blocks.py). One entry makes the blocks live again;
the repair that goes on from there copies them to the other volumes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from storage_core.chunked_set import ChunkedSet
from storage_core.metadata.commands import DiscardLost, Event, RecordEvents, TakeBack
from storage_core.metadata.manifest import Table, encode_blocks
from storage_core.metadata.state import StoreState, StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.metadata_client import MetadataClient
from storage_core.store.environment import Environment
from storage_core.store.replicas.copies import look
from storage_core.store.replicas.former_blocks import former_blocks
from storage_core.store.replicas.live_blocks import LiveBlock, live_blocks
from storage_core.store.volume.losses import ranges_text
from storage_core.store.volume.placement import read_volumes
from storage_core.store.volume.volumes import Volume


@dataclass(frozen=True, slots=True)
class Recoverable:
    """Lost messages of one block that were read from a copy just now."""

    block: LiveBlock
    sequences: SequenceSet
    volumes: tuple[str, ...]  # in hex
    rows: bytes = b""  # of the blocks that it was merged from, if they have them

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"stream": self.block.stream, "first": first, "end": end, "volumes": list(self.volumes)}
            for first, end in self.sequences.ranges()
        ]


def look_for(
    metadata: MetadataClient, env: Environment, lock_timeout_s: float, names: Sequence[str] | None
) -> list[Recoverable]:
    """Return the lost messages of these streams (None: of all) that a volume at hand has. Reads what was lost alone."""
    state = metadata.view(lock_timeout_s).state
    volumes = metadata.volumes()
    return [
        listed
        for stream in state.streams.values()
        if len(stream.lost_blocks) and (names is None or stream.name in names)
        for listed in _of_stream(state, stream, volumes)
    ]


def _of_stream(state: StoreState, stream: StreamState, volumes: Sequence[Volume]) -> list[Recoverable]:
    rows = stream.lost_blocks.rows
    # As if nothing had been lost: what a copy lacks is then missed.
    unlost = ChunkedSet.of(stream.removed.whole().difference(stream.lost))
    whole = replace(stream, removed=unlost, lost=SequenceSet.empty(), lost_blocks=Table.of(rows[:0]))
    listed = []
    for block in live_blocks(state, stream, rows):
        lost = stream.lost.clip(block.first, block.end)
        sequences, holders = SequenceSet.empty(), []
        for volume in read_volumes(state, stream, volumes):
            defects = look(block, volume.blocks, whole)
            readable = lost.difference(SequenceSet.from_ranges([(defect.first, defect.end) for defect in defects]))
            if readable:
                sequences = sequences.union(readable)
                holders.append(volume.name)
        if sequences:
            listed.append(Recoverable(block, sequences, tuple(holders)))
        else:
            listed += _of_former(state, stream, volumes, block)
    return listed


def _of_former(
    state: StoreState, stream: StreamState, volumes: Sequence[Volume], block: LiveBlock
) -> list[Recoverable]:
    former = former_blocks(state, stream, volumes, block.first, block.end)
    lost = stream.lost.intersection(former.sequences)
    if not lost or stream.shown(block.first, block.end).difference(former.sequences):
        return []
    return [Recoverable(block, lost, former.volumes, encode_blocks(former.rows))]


def carry_out(
    metadata: MetadataClient, lock_timeout_s: float, recoverable: Sequence[Recoverable]
) -> dict[str, SequenceSet]:
    """Make these messages live again; return them by stream. Raises LimitExceededError, and what a session raises."""
    taken: dict[str, SequenceSet] = {}
    with metadata.session(lock_timeout_s) as session, session.group():
        for listed in recoverable:
            block = listed.block
            data_size = block.data_size * len(listed.sequences) // max(1, block.row_count)
            session.propose(TakeBack(block.incarnation, listed.sequences.encode(), data_size, listed.rows))
            taken[block.stream] = taken.get(block.stream, SequenceSet.empty()).union(listed.sequences)
    return taken


def tell(metadata: MetadataClient, lock_timeout_s: float, recoverable: Sequence[Recoverable]) -> None:
    """Write down that copies of lost messages came back."""
    by_stream: dict[str, SequenceSet] = {}
    for listed in recoverable:
        by_stream[listed.block.stream] = by_stream.get(listed.block.stream, SequenceSet.empty()).union(listed.sequences)
    if not by_stream:
        return
    reason = "a copy of what was declared lost came back; `jstream repair --take-back` serves it again"
    events = tuple(
        Event("recoverable", name, after=f"{len(sequences)} messages: {ranges_text(sequences)}", reason=reason)
        for name, sequences in by_stream.items()
    )
    with metadata.session(lock_timeout_s) as session:
        session.propose(RecordEvents(events))


def discard(metadata: MetadataClient, lock_timeout_s: float) -> None:
    """Give up for good what was declared lost or set aside, and every disk that might come back."""
    with metadata.session(lock_timeout_s) as session:
        session.propose(DiscardLost())
