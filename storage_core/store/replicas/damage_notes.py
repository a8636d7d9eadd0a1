"""Damage notes: what was found wrong on a volume is an event of it, whatever became of the copy since.

People decide by these events whether to replace a disk. A copy that was found bad may be gone a moment later:
repaired, merged with its neighbours, removed. So whoever finds something says so without waiting for a repair. One
event a time for each stream and volume; what the newest event about them says already is not said again.
"""

import logging
from collections import defaultdict

from storage_core.errors import StorageError
from storage_core.metadata.commands import Event, RecordEvents
from storage_core.metadata.state import StoreState
from storage_core.store.ensemble.session import Session

logger = logging.getLogger(__name__)


class DamageNotes:
    """What was found wrong, by stream (empty: metadata) and volume."""

    def __init__(self) -> None:
        self._defects: dict[tuple[str, str], list[str]] = defaultdict(list)

    def note(self, stream: str, volume: str, defect: str) -> None:
        """Note a bad copy, or a bad metadata file, of a volume (its id in hex); `defect` names the file."""
        self._defects[stream, volume].append(defect)

    def events(self, state: StoreState) -> tuple[Event, ...]:
        """Return one event for each stream and volume, but for those that say nothing new."""
        events = []
        for (stream, volume), defects in self._defects.items():
            count = "" if len(defects) == 1 else f"{len(defects)} {'blocks' if stream else 'files'}; the first: "
            before, after = ("current", "damaged") if stream else ("", "")  # the volume as a whole is not damaged by it
            event = Event("damaged", stream, "", volume, before, after, f"{count}{defects[0]}")
            if not is_reported(state, event):
                events.append(event)
        return tuple(events)

    def tell(self, session: Session) -> None:
        """Write the events; where that fails, what was found is reported by its caller all the same."""
        events = self.events(session.state)
        if not events:
            return
        try:
            session.propose(RecordEvents(events))
        except (StorageError, OSError) as error:
            logger.warning("%s: what was found could not be written down: %s", session.label, error)


def is_reported(state: StoreState, event: Event) -> bool:
    """Return whether the last event about the same copies says the same."""
    for last in reversed(state.events):
        if (last.stream, last.volume) == (event.stream, event.volume):
            return (last.kind, last.reason) == (event.kind, event.reason)
    return False
