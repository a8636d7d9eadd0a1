"""Where the blocks of a stream lie: on which volumes, and how many of them decide.

A stream's placement lists the volumes that keep its blocks; bit i of a block's `holders` speaks of volume i of that
list. Worked out from metadata and from the volumes as they were found: nothing is opened here.
"""

from collections.abc import Iterable, Sequence

from storage_core.errors import NoQuorumError
from storage_core.metadata.commands import ids_of_voters
from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import too_few
from storage_core.raft.rules import majority
from storage_core.store.volume.block_store import VolumeHandle
from storage_core.store.volume.state import VolumeState
from storage_core.store.volume.volumes import Volume


def quorum(stream: StreamState) -> int:
    """Return the fewest volumes of the placement that must have a block before it is acked."""
    return majority(len(stream.placement))


def holders_mask(stream: StreamState, volume_ids: Iterable[bytes]) -> int:
    """Return what the manifest says of a block that these volumes have; volumes outside the placement do not count."""
    have = set(volume_ids)
    return sum(1 << position for position, volume_id in enumerate(stream.placement) if volume_id in have)


def holders(stream: StreamState, mask: int) -> tuple[bytes, ...]:
    """Return the volumes of which the manifest says that they took a block."""
    return tuple(volume_id for position, volume_id in enumerate(stream.placement) if mask >> position & 1)


def is_recorded(state: StoreState, volume: Volume) -> bool:
    """Return whether this is the very instance that the metadata knows, and one that counts: not retired, no learner.

    What was written to another instance of a volume, or before it was retired, proves nothing.
    """
    voter = state.voter(volume.volume_id)
    if voter is None or voter.learner or voter.retired or volume.identity is None:
        return False
    return volume.identity.instance_id == voter.instance_id


def write_volumes(state: StoreState, stream: StreamState, volumes: Sequence[Volume]) -> tuple[VolumeHandle, ...]:
    """Return where new blocks of the stream go, in the order of its placement.

    Raises NoQuorumError, which names each volume that is of no use, if they are fewer than a majority of the placement;
    ProcessError if this process lacks the rights.
    """
    at_hand = {volume.volume_id: volume for volume in volumes}
    made, missing = [], []
    for volume_id in stream.placement:
        volume = at_hand.get(volume_id)
        if volume is not None and volume.identity is not None and is_recorded(state, volume):
            made.append(VolumeHandle(volume_id, volume.identity.instance_id, str(volume.path)))
        else:
            missing.append(_why_not(state, volume_id, volume))
    if len(made) < quorum(stream):
        error = NoQuorumError(
            f"stream {stream.name!r}: {len(made)} of its {len(stream.placement)} volumes can be written, "
            f"{quorum(stream)} are needed: {'; '.join(missing)}",
            stream=stream.name,
            available=len(made),
            needed=quorum(stream),
        )
        raise too_few(error, [at_hand[volume_id].refusal for volume_id in stream.placement if volume_id in at_hand])
    return tuple(made)


def _why_not(state: StoreState, volume_id: bytes, volume: Volume | None) -> str:
    """Return in words why a volume of a placement takes no blocks now."""
    voter = state.voter(volume_id)
    where = str(volume.path) if volume is not None else f"volume {volume_id.hex()}"
    if volume is None or voter is None:
        return f"{where} is not among the volumes of the store"
    if volume.identity is None:
        return volume.reason or f"{where} is {volume.state}"
    if voter.retired:
        return f"{where} is retired: {voter.retired}"
    if voter.learner:
        return f"{where} has not caught up yet"
    return f"{where} was rebuilt and has not been verified since"


def read_volumes(state: StoreState, stream: StreamState, volumes: Sequence[Volume]) -> tuple[Volume, ...]:
    """Return the volumes on which blocks of the stream may be found, the best ones first.

    These are the volumes of the placement that count, in its order, then those that the placement may have been moved
    away from, and at last volumes with a doubtful identity: a block is served only if its digest is right, whatever
    volume it lies on.
    """

    def rank(volume: Volume) -> tuple[bool, bool, int]:
        placed = volume.volume_id in stream.placement
        position = stream.placement.index(volume.volume_id) if placed else len(stream.placement)
        return not is_recorded(state, volume), not placed, position

    readable = [volume for volume in volumes if volume.is_present or volume.state is not VolumeState.MISSING]
    return tuple(sorted(readable, key=rank))


def possible_replicas(wanted: int, volume_count: int) -> int:
    """Return how many replicas a stream gets: as many as are wanted, or as there are volumes, and an odd number."""
    count = min(wanted, volume_count)
    return count - (1 - count % 2)


def choose(state: StoreState, volumes: Sequence[Volume], replica_count: int) -> tuple[bytes, ...]:
    """Return the volumes for a new stream: those that are of use now, and of them the ones that keep the fewest bytes.

    A volume that is down is taken where there is no other: it gets its blocks when it is repaired. Raises ValueError
    if the store has fewer volumes, NoQuorumError if fewer than a majority of those chosen are of use, ProcessError if
    that is for want of rights.
    """
    voters = ids_of_voters(state.voters)
    if replica_count > len(voters):
        raise ValueError(f"num_replicas: {replica_count} replicas need as many volumes; the store has {len(voters)}")
    usable = {volume.volume_id for volume in volumes if is_recorded(state, volume)}
    kept = state.streams.kept_sizes()
    # Stable: in the order of the voters.
    best = sorted(voters, key=lambda volume_id: (volume_id not in usable, kept.get(volume_id, 0)))[:replica_count]
    if len(usable.intersection(best)) < majority(replica_count):
        error = NoQuorumError(
            f"num_replicas: of {replica_count} replicas {majority(replica_count)} must be on volumes that can be "
            f"written now; the store has {len(usable)} of those; repair the others first",
            available=len(usable.intersection(best)),
            needed=majority(replica_count),
        )
        raise too_few(error, [volume.refusal for volume in volumes if volume.volume_id in voters])
    return tuple(voter for voter in voters if voter in best)
