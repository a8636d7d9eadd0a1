"""Damage notes: what was found wrong on a volume is an event of it, whatever became of the copy since.

People decide by these events whether to replace a disk. A copy that was found bad may be gone a moment later:
repaired, merged with its neighbours, removed. So whoever finds something records it without waiting for a repair: one
event a time for each stream and volume. What readers reported of copies that are whole or gone by now is counted.
"""

import logging
from collections import defaultdict

from storage_core.errors import StorageError
from storage_core.metadata.commands import Event, RecordEvents
from storage_core.store.ensemble.session import Session

logger = logging.getLogger(__name__)


class DamageNotes:
    """What was found wrong, by stream (empty: metadata) and volume."""

    def __init__(self) -> None:
        self._defects: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._reports: dict[tuple[str, str], list[str]] = defaultdict(list)

    def note(self, stream: str, volume: str, defect: str) -> None:
        """Note a bad copy, or a bad metadata file, of a volume (its id in hex); `defect` names the file."""
        self._defects[stream, volume].append(defect)

    def note_report(self, stream: str, volume: str, report: str) -> None:
        """Note what a reader reported of a copy that is whole by now, or gone."""
        self._reports[stream, volume].append(report)

    def events(self) -> tuple[Event, ...]:
        """Return one event for each stream and volume, and one more if readers reported something."""
        events = []
        for (stream, volume), defects in self._defects.items():
            count = "" if len(defects) == 1 else f"{len(defects)} {'blocks' if stream else 'files'}; the first: "
            before, after = ("current", "damaged") if stream else ("", "")  # the volume as a whole is not damaged by it
            events.append(Event("damaged", stream, "", volume, before, after, f"{count}{defects[0]}"))
        for (stream, volume), reports in self._reports.items():
            events.append(Event("damaged", stream, "", volume, reason=reports[0], count=len(reports)))
        return tuple(events)

    def record(self, session: Session) -> None:
        """Record the events; where that fails, what was found is reported by its caller all the same."""
        events = self.events()
        if not events:
            return
        try:
            session.propose(RecordEvents(events))
        except (StorageError, OSError) as error:
            logger.warning("%s: what was found could not be written down: %s", session.label, error)
