"""What one process knows of a store from one session to the next: a record that is never changed, only swapped whole.

Threads that read and the one that holds the store swap it side by side, so each change is one step, and a view is never
replaced by a lower one. A forked child leads nothing; what was committed stays known.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from storage_core.deadlines import VolumeCall
from storage_core.errors import StorageError, UnsupportedVersionError, VolumeAwayError, VolumeFailedError
from storage_core.metadata.commands import Event
from storage_core.metadata.state import StoreState, Streams
from storage_core.os_errors import UnreachableError, is_of_process, of_process, raise_if_limit
from storage_core.raft.entry import CommitRecord, EntryId, Vote
from storage_core.store.ensemble.decision import VolumeLogRead, VolumeStatus
from storage_core.store.ensemble.merged_log import LogChain
from storage_core.store.ensemble.view import View, first_state, replay
from storage_core.store.environment import Environment, one_after_another
from storage_core.store.volume.locks import HeldLocks
from storage_core.store.volume.log_contents import NONE_FETCHED, Fetched, LogPosition
from storage_core.store.volume.object_log import DIRECTORY, Listing
from storage_core.store.volume.register import Register
from storage_core.store.volume.state import VolumeState
from storage_core.store.volume.volumes import Volume

T = TypeVar("T")
RECORDS_KEPT_SIZE_MAX = 4 << 20  # bytes of a log in an object store, of which each record takes a request to fetch
NO_LISTINGS: Mapping[bytes, Listing] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Leadership:
    """This process leads, as long as nothing but its own records stands in the logs."""

    term: int
    history: bytes
    candidate: bytes

    @property
    def vote(self) -> Vote:
        return Vote(self.term, self.candidate)


@dataclass(frozen=True, slots=True)
class CachedState:
    """All that a process knows of a store between sessions."""

    view: View | None = None  # committed
    leadership: Leadership | None = None  # None: the next command opens a new term
    last_written_ends: Mapping[bytes, LogPosition] = field(
        default_factory=dict
    )  # ends of the logs when it last wrote as leader
    failed: Mapping[tuple[bytes, bytes], str] = field(default_factory=dict)  # (volume, instance) not written: why
    statuses: Mapping[bytes, VolumeStatus] = field(default_factory=dict)  # of the last session that read everything
    foreign: Mapping[bytes, CommitRecord | None] = field(default_factory=dict)  # of another copy: what they record

    @property
    def term_seen(self) -> int:
        """The highest term that this process has heard of."""
        return self.view.term_seen if self.view is not None else 0


class ProcessCache:
    """Keeps the CachedState of a store, and reads volumes by it. Safe to use from several threads."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.known = CachedState()
        self._last_states: tuple[tuple[Event, ...], Mapping[str, str]] = ((), {})  # last states, of these events
        self._replayed: tuple[EntryId, StoreState, Streams] | None = None  # the last log, its end and its beginning
        self._records: dict[bytes, Fetched] = {}  # by volume in an object store: of its log, as last read
        self.logs: dict[bytes, Register] = {}  # by volume: of the last session, with the segment that it wrote
        self.renew()

    def renew(self) -> None:
        """Lead nothing, and keep no file: a forked child is another process."""
        self._swapping = threading.Lock()
        self.logs.clear()
        self.forget()

    def close(self) -> None:
        """Close the files that are kept from one session to the next."""
        while self.logs:
            self.logs.popitem()[1].close()

    # --- the record

    def _swap(self, **changes: Any) -> None:
        with self._swapping:
            self.known = replace(self.known, **changes)

    def keep(self, view: View) -> None:
        """Go by this committed view from now on; one that is lower than what is known changes nothing."""
        with self._swapping:
            if self.known.view is None or view.index >= self.known.view.index:
                self.known = replace(self.known, view=view)

    def start_term(self, leadership: Leadership) -> None:
        """Remember this leadership, whose vote is durable on a majority."""
        self._swap(leadership=leadership)

    @property
    def leads(self) -> bool:
        """Whether this process leads, and has read nothing that others wrote since."""
        known = self.known
        return (
            known.leadership is not None
            and known.view is not None
            and dict(known.view.positions) == known.last_written_ends
        )

    def record_write(self, view: View) -> None:
        """Remember this committed view, and that this process wrote the ends of its logs as leader."""
        self._swap(last_written_ends=dict(view.positions))
        self.keep(view)

    def forget(self) -> None:
        """After a failure: what was believed of the logs' ends is believed no more, and the term is given up."""
        self._swap(leadership=None)

    def decided(self, statuses: Mapping[bytes, VolumeStatus], foreign: Mapping[bytes, CommitRecord | None]) -> None:
        """Remember what reading everything came to."""
        self._swap(statuses=statuses, foreign=foreign)

    def set_aside(self, foreign: Mapping[bytes, CommitRecord | None]) -> None:
        """Remember which volumes are of another copy of the store."""
        self._swap(foreign=foreign)

    def mark_failed(self, volume_id: bytes, instance_id: bytes, reason: str) -> None:
        """Write this instance of a volume no more."""
        with self._swapping:
            self.known = replace(self.known, failed={**self.known.failed, (volume_id, instance_id): reason})

    def invalidate(self, volume_ids: Iterable[bytes]) -> None:
        """Have the next session read everything: there is damage before the ends of these volumes' logs."""
        left = set(volume_ids)
        for volume_id in left:
            self._records.pop(volume_id, None)
        with self._swapping:
            view = self.known.view
            if left and view is not None:
                positions = {volume_id: at for volume_id, at in view.positions.items() if volume_id not in left}
                self.known = replace(self.known, view=replace(view, positions=positions))

    def reset_after_reread(self) -> None:
        """After the disk was read anew: volumes that failed in this process go on from what is found there."""
        self._records.clear()
        self._swap(failed={}, leadership=None, view=None)

    # --- volumes and logs

    def read_all(
        self, volumes: Sequence[Volume], held: HeldLocks | None = None, listings: Mapping[bytes, Listing] = NO_LISTINGS
    ) -> list[VolumeLogRead]:
        """Return volumes with all that their logs say, as `read` does; what this process has read is not read again."""

        def read(volume: Volume) -> VolumeLogRead:
            before = self._records.get(volume.volume_id, NONE_FETCHED)
            log = self.read(volume, held, listing=listings.get(volume.volume_id), before=before)
            if log.contents is not None:
                size = sum(len(data) for data, _ in log.contents.records.values())
                self._records[volume.volume_id] = log.contents.records if size <= RECORDS_KEPT_SIZE_MAX else {}
            return log

        answers = on_each(self.env, volumes, read, majority_suffices=True)
        for at, (volume, answer) in enumerate(zip(volumes, answers, strict=True)):
            if isinstance(answer, UnreachableError):
                answers[at] = _without_answer(self._before_reading(volume, held), answer)
        return unless_raised(answers)

    def read(
        self,
        volume: Volume,
        held: HeldLocks | None = None,
        for_state: bool = False,
        listing: Listing | None = None,
        before: Fetched = NONE_FETCHED,
    ) -> VolumeLogRead:
        """Return a volume with all that its log says, as a session that holds these locks finds it.

        `for_state`: only with what leads to its newest state. `listing`: what lay there a moment ago, if that is known.
        `before`: records that were read before.
        """
        seen = self._before_reading(volume, held)
        if volume.identity is None:
            return replace(seen, state=volume.state, reason=volume.reason, error=volume.refusal)
        why = self.known.failed.get((volume.volume_id, volume.identity.instance_id))
        if why is not None:
            failed = VolumeFailedError(f"{volume.path} is no longer written: {why}; check it, and open the store")
            return replace(seen, state=VolumeState.RETIRED, reason=why, error=failed)
        try:
            return replace(seen, contents=volume.log.read(for_state, listing, before))
        except UnsupportedVersionError:
            raise
        except (StorageError, OSError) as caught:
            raise_if_limit(caught, volume.path)
            if isinstance(caught, UnreachableError):
                return _without_answer(seen, caught)
            if is_of_process(caught):  # rights, or a mount that was changed: this volume cannot be asked, no more
                ours = of_process(caught, volume.path)
                return replace(seen, state=VolumeState.MISSING, reason=str(ours), error=ours)
            if isinstance(caught, StorageError):
                error = caught
            else:
                error = VolumeFailedError(f"{volume.path} cannot be read: {caught}")
        return replace(seen, state=VolumeState.DAMAGED, reason=str(error), error=error)

    def _before_reading(self, volume: Volume, held: HeldLocks | None) -> VolumeLogRead:
        """Return what is known of a volume before its log is read."""
        locked, busy = (volume.path in held.locked, volume.path in held.busy) if held is not None else (True, False)
        instance_id = volume.identity.instance_id if volume.identity is not None else b""
        return VolumeLogRead(
            volume.volume_id, str(volume.path), instance_id, locked=locked, busy=busy, identity=volume.identity
        )

    def state_of(self, log: LogChain) -> StoreState:
        """Return the state at the end of a log; the last answer is remembered."""
        return self._replay(log)[1]

    def snapshot_streams_of(self, log: LogChain) -> Streams:
        """Return the streams as of the snapshot that a log begins with."""
        return self._replay(log)[2]

    def _replay(self, log: LogChain) -> tuple[EntryId, StoreState, Streams]:
        known = self._replayed  # other threads put theirs in its place
        if known is None or known[0] != log.tip:
            begun = first_state(log)
            known = self._replayed = (log.tip, replay(log, begun), begun.streams)
        return known

    def last_states(self, state: StoreState) -> Mapping[str, str]:
        """Return, by volume, the state that the last event which spoke of it as a whole left it in."""
        events, known = self._last_states
        if events is not state.events:
            known = {
                event.volume: event.after for event in state.events if event.volume and not event.stream and event.after
            }
            self._last_states = (state.events, known)
        return known


def _without_answer(seen: VolumeLogRead, why: UnreachableError) -> VolumeLogRead:
    away = VolumeAwayError(f"{seen.name} gives no answer: {why}")
    return replace(seen, state=VolumeState.MISSING, reason=str(away), error=away)


def on_each(
    env: Environment, volumes: Sequence[Volume], call: Callable[[Volume], T], majority_suffices: bool = False
) -> list[T | BaseException]:
    """Return what the call returns or raises for each volume: side by side where it takes a round trip.

    `majority_suffices`: a majority is enough, and who is much slower is not waited for: UnreachableError.
    """
    works = [partial(call, volume) for volume in volumes]
    if not any(volume.is_remote for volume in volumes):
        return one_after_another(works)
    places = [volume.path / DIRECTORY for volume in volumes]
    return env.parallel([VolumeCall(env.files, *at, majority_suffices) for at in zip(places, works, strict=True)])


def unless_raised(outcomes: Sequence[T | BaseException]) -> list[T]:
    """Return the outcomes; raises the first that is an error."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return list(outcomes)  # type: ignore[arg-type]
