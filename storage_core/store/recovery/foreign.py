"""What the log of another copy of the store has that this one does not: it was acknowledged there, and is not here.

Two copies of a store have the same messages up to where they parted. From there on each leader wrote under a history id
of its own, so a sequence is the same message in both if its history is, or if both name the same block.
"""

import logging
from itertools import pairwise

import numpy as np

from storage_core.errors import StorageError, UnsupportedVersionError
from storage_core.metadata.commands import SetAside
from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import raise_if_limit
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.decision import VolumeLogRead, best_chain
from storage_core.store.ensemble.view import replay
from storage_core.store.volume.volumes import Volume

logger = logging.getLogger(__name__)


def messages_of(state: StoreState, volume: Volume) -> list[SetAside]:
    """Return the messages that a volume's own log has, and the store does not; none if the log cannot be read."""
    if volume.identity is None:
        return []
    try:
        contents = volume.log.read()
        lead = best_chain([VolumeLogRead(volume.volume_id, str(volume.path), volume.identity.instance_id, contents)])
        theirs = replay(lead) if lead is not None else StoreState()
    except UnsupportedVersionError:
        raise
    except (StorageError, OSError) as error:
        raise_if_limit(error, volume.path)
        logger.warning("%s: what its log has more cannot be told: %s", volume.path, error)
        return []
    if theirs.store_id != state.store_id:
        return []
    held = []
    for stream in sorted(theirs.streams.values(), key=lambda stream: stream.name):
        sequences = _more(_counterpart(state, stream), stream)
        if sequences:
            held.append(SetAside(volume.volume_id, "", stream.name, stream.incarnation, sequences.encode()))
    return held


def _counterpart(state: StoreState, theirs: StreamState) -> StreamState | None:
    """Return the stream of the store that has an incarnation in common with theirs."""
    common = set(theirs.incarnations)
    return next((stream for stream in state.streams.values() if common.intersection(stream.incarnations)), None)


def _more(ours: StreamState | None, theirs: StreamState) -> SequenceSet:
    shown = theirs.shown()
    if ours is None:
        return shown
    same = theirs.blocks.rows[np.isin(theirs.blocks.rows["block_id"], ours.blocks.rows["block_id"])]
    shown = shown.difference(SequenceSet.from_columns(same["first"], same["first"] + same["span"]))
    return shown.difference(_of_one_history(ours, theirs)).clip(_known_first(ours), theirs.next_sequence)


def _known_first(stream: StreamState) -> int:
    """Return the sequence below which all is removed, and its history forgotten."""
    return min(stream.first_sequence, stream.histories[0][1] if stream.histories else stream.first_sequence)


def _of_one_history(ours: StreamState, theirs: StreamState) -> SequenceSet:
    """Return the sequences that the same leader gave to messages of both."""
    common = []
    for history, first, end in _runs(theirs):
        for our_history, our_first, our_end in _runs(ours):
            if history == our_history and max(first, our_first) < min(end, our_end):
                common.append((max(first, our_first), min(end, our_end)))
    return SequenceSet.from_ranges(sorted(common))


def _runs(stream: StreamState) -> list[tuple[bytes, int, int]]:
    """Return (history id, first sequence, end) of each leader's messages; nothing for a stream never written to."""
    firsts = [*stream.histories, (b"", stream.next_sequence)]
    return [(history, first, end) for (history, first), (_, end) in pairwise(firsts)]
