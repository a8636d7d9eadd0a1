"""What a session writes down about the volumes: which of them failed, and what is new about the others."""

from collections.abc import Mapping

import msgspec

from storage_core.metadata.commands import ChangeVolumes, Event
from storage_core.metadata.state import StoreState
from storage_core.store.ensemble.decision import VolumeStatus
from storage_core.store.volume.state import VolumeState


def news_of(
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
