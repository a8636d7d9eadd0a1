"""What a session writes down about the volumes: which of them failed, and what is new about the others."""

from collections.abc import Mapping, Sequence

import msgspec

from storage_core.metadata.commands import ChangeVolumes, Event
from storage_core.metadata.state import StoreState
from storage_core.store.ensemble.decision import VolumeStatus
from storage_core.store.volume import losses
from storage_core.store.volume.state import VolumeState
from storage_core.store.volume.volumes import Volume


def volume_events(
    state: StoreState,
    decided: Mapping[bytes, VolumeStatus],
    statuses: Mapping[bytes, VolumeStatus],
    last: Mapping[str, str],
) -> tuple[Event, ...]:
    """Return what is new about the voters since the last event that spoke of each.

    `decided`: as everything that was read anew had them; `statuses`: as they are now; `last`: states by the events.
    """
    events = []
    for voter in state.voters:
        if voter.learner:
            continue  # of which the end of its change will tell
        name, status, now = voter.volume_id.hex(), decided.get(voter.volume_id), statuses[voter.volume_id]
        if status is not None and status.written and status.state not in (VolumeState.CURRENT, VolumeState.BEHIND):
            events.append(Event("repaired", "", "", name, status.state, VolumeState.CURRENT, status.reason))
            continue
        before = last.get(name, VolumeState.CURRENT)
        if now.state in (before, VolumeState.BEHIND):
            continue
        kind = "returned" if now.state == VolumeState.CURRENT else now.state
        events.append(Event(kind, "", "", name, before, now.state, now.reason))
    return tuple(events)


def retirement(state: StoreState, reasons: Mapping[bytes, str]) -> ChangeVolumes:
    """Return the command that retires these volumes: they count again after they were verified."""
    voters = tuple(
        msgspec.structs.replace(voter, retired=reasons[voter.volume_id]) if voter.volume_id in reasons else voter
        for voter in state.voters
    )
    events = tuple(
        Event("retired", volume=volume_id.hex(), before=VolumeState.CURRENT, after=VolumeState.RETIRED, reason=reason)
        for volume_id, reason in reasons.items()
    )
    return ChangeVolumes(voters, state.volume_change, events)


def of_older_copies(
    state: StoreState, statuses: Mapping[bytes, VolumeStatus], volumes: Sequence[Volume]
) -> ChangeVolumes | None:
    """Return the command that remembers the disks in whose places older copies of them are; None if none is.

    An older copy is caught up with the log, and then nothing but its blocks would tell: it lacks some that it had. In
    an object store many a volume is late that is whole, and to list its blocks takes requests: there the log has to say
    that it is older.
    """
    disks = state.former
    for volume in volumes:
        status = statuses.get(volume.volume_id)
        late = (VolumeState.ROLLED_BACK,) if volume.is_remote else (VolumeState.BEHIND, VolumeState.ROLLED_BACK)
        if status is None or status.state not in late:
            continue
        if status.written and losses.lacks_blocks(state, volume):
            disks = losses.with_former(disks, state, volume.volume_id, str(volume.path))
    return None if disks == state.former else ChangeVolumes(state.voters, state.volume_change, former=disks)
