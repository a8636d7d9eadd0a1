"""Scrub: all copies read from end to end, a portion at a time, so that damage is found before it is met.

The order is that of (incarnation, sequence), all volumes of a stream's placement side by side. How far it has come
stands in index.db of each volume, a cache: without it the scrub begins anew. The metadata files are looked at when it
begins. What is found is written down as events, and reports are left for maintenance and repair; nothing is repaired
here.
"""

import logging
from collections.abc import Sequence
from typing import Any

from storage_core.errors import StorageError
from storage_core.metadata.commands import Event, RecordEvents
from storage_core.metadata.state import StoreState, StreamState
from storage_core.quantities import whole_number
from storage_core.store.ensemble.metadata_client import MetadataClient
from storage_core.store.environment import Environment
from storage_core.store.replicas import mismatch
from storage_core.store.replicas.damage_notes import DamageNotes
from storage_core.store.replicas.verification import (
    CHUNK_SIZE_MAX,
    Checked,
    Damage,
    Indexes,
    Progress,
    absent_volumes,
    bad_copies,
    block_damage,
    check_blocks,
    damage_beside_writers,
    leave_reports,
    save_indexes,
    still_wrong,
)
from storage_core.store.volume.volumes import Volume

logger = logging.getLogger(__name__)
Cursor = tuple[bytes, int]  # incarnation, sequence
BEGINNING: Cursor = (b"", 0)


class Scrub:
    """One portion of a scrub."""

    def __init__(self, metadata: MetadataClient, env: Environment, lock_timeout_s: float, read_only: bool) -> None:
        self._metadata, self._env = metadata, env
        self._lock_timeout_s, self._read_only = lock_timeout_s, read_only
        self._damage: list[Damage] = []
        self._bad: list[Checked] = []
        self._notes = DamageNotes()
        self._checked = 0

    def run(
        self,
        progress: Progress | None,
        limit_bytes: int | None,
        rate_bytes_per_s: int | None,
        names: Sequence[str] | None,
    ) -> dict[str, Any]:
        """Read from where the last portion ended; return {ok, checked_blocks, damage, done}.

        With `names` the portion is all of these streams, and the place where the next one goes on stays what it was.
        Raises ValueError for a limit or rate that is not positive.
        """
        for name, value in (("limit_bytes", limit_bytes), ("rate_bytes_per_s", rate_bytes_per_s)):
            if value is not None and (whole_number(value) or 0) <= 0:
                raise ValueError(f"{name}: {value!r} is not a number of bytes above 0; leave it out for no limit")
        state = self._metadata.view(self._lock_timeout_s).state
        at_hand = self._metadata.volumes()
        indexes = Indexes(at_hand, self._env)
        streams = sorted(
            (stream for stream in state.streams.values() if names is None or stream.name in names),
            key=lambda stream: stream.incarnation,
        )
        start = _cursor(indexes) if names is None else BEGINNING
        if start == BEGINNING:
            self._look_at_metadata(state, at_hand)
        end = self._read(state, streams, at_hand, indexes, start, limit_bytes, rate_bytes_per_s, progress)
        self._bad = still_wrong(self._metadata.view(self._lock_timeout_s).state, self._bad, at_hand)
        for checked in self._bad:
            self._damage.extend(block_damage(checked, at_hand, state))
        if names is None:
            for index in indexes.by_volume.values():
                index.scrubbed_to = end
        if not self._read_only:
            self._write_down(streams, indexes, is_whole_pass=end is None and names is None)
        return {
            "ok": not self._damage,
            "checked_blocks": self._checked,
            "damage": [damage.to_json() for damage in self._damage],
            "done": end is None,
        }

    def _look_at_metadata(self, state: StoreState, at_hand: Sequence[Volume]) -> None:
        self._damage.extend(absent_volumes(state, self._metadata, self._lock_timeout_s))
        for volume in at_hand:
            if volume.identity is not None:
                file_damage = damage_beside_writers(self._metadata, volume, self._env, self._lock_timeout_s)
                self._damage.extend(file_damage)
                for damage in file_damage:
                    self._notes.note("", damage.volume, f"{damage.file}: {damage.reason}")

    def _read(
        self,
        state: StoreState,
        streams: Sequence[StreamState],
        at_hand: Sequence[Volume],
        indexes: Indexes,
        start: Cursor,
        limit_bytes: int | None,
        rate_bytes_per_s: int | None,
        progress: Progress | None,
    ) -> Cursor | None:
        """Read copies from `start` on; return where the next portion goes on, None if the end was reached."""
        begun_ns, read_size = self._env.now_ns(), 0
        ahead = CHUNK_SIZE_MAX if limit_bytes is None else min(CHUNK_SIZE_MAX, limit_bytes // max(1, len(at_hand)))
        for block in check_blocks(state, streams, at_hand, self._env, progress, start=start, ahead_size_max=ahead):
            if limit_bytes is not None and read_size >= limit_bytes:
                return (block.block.incarnation, block.block.first)
            indexes.note(block)
            self._checked += len(block.defects)
            read_size += block.block.file_size * len(block.defects)
            if any(block.defects.values()):
                self._bad.append(block)
            if rate_bytes_per_s is not None:
                due_s = read_size / rate_bytes_per_s
                passed_s = (self._env.now_ns() - begun_ns) / 1_000_000_000
                if 0 <= passed_s < due_s:
                    self._env.sleep(due_s - passed_s)
        return None

    def _write_down(self, streams: Sequence[StreamState], indexes: Indexes, is_whole_pass: bool) -> None:
        """Leave reports and events of what was found; where that cannot be done the answer is the same."""
        try:
            with self._metadata.session(self._lock_timeout_s) as session:
                state = session.state  # what was removed or repaired meanwhile is no drift
                drifts = [
                    mismatch.compare(state, stream, volume)
                    for stream in filter(None, (state.by_incarnation(stream.incarnation) for stream in streams))
                    for volume in session.writable
                ]
                mismatch.record(session, [drifted for drifted in drifts if drifted is not None], self._env)
                bad = still_wrong(state, self._bad, session.volumes)
                leave_reports(bad, session.writable)
                for checked, volume_id, wrong in bad_copies(bad):
                    if not wrong.is_missing:
                        defect = f"block {checked.block.block_id.hex()}: {wrong.reason}"
                        self._notes.note(checked.block.stream, volume_id.hex(), defect)
                events = list(self._notes.events())
                if is_whole_pass:
                    events.append(Event("scrub", reason=f"all copies were read; damaged: {len(self._damage)}"))
                if events:
                    session.propose(RecordEvents(tuple(events)))
                save_indexes(session, indexes.by_volume)
        except StorageError as error:
            logger.warning("what a scrub found could not be written down: %s", error)


def _cursor(indexes: Indexes) -> Cursor:
    """Return where to go on: with the volume that is least far, from the beginning if one does not know."""
    places = [index.scrubbed_to or BEGINNING for index in indexes.by_volume.values()]
    return min(places, default=BEGINNING)
