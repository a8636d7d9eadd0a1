"""Rounds: one piece of I/O on the logs of several volumes at once, each of which may fail on its own."""

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from storage_core.deadlines import VolumeCall
from storage_core.errors import (
    DiskFullError,
    NoQuorumError,
    OutcomeUnknownError,
    StorageError,
    SupersededError,
    VolumeFailedError,
)
from storage_core.os_errors import CLOSED, FULL, GONE, UnreachableError, is_of_process, of_process
from storage_core.raft.rules import majority
from storage_core.store.environment import Environment
from storage_core.store.volume.log import SyncError
from storage_core.store.volume.log_contents import LogPosition
from storage_core.store.volume.register import Register
from storage_core.store.volume.volumes import Volume

T = TypeVar("T")
Work = Callable[[Register], T]  # on one log


@dataclass(frozen=True, slots=True)
class ReserveAllowance:
    """What a round may use of the reserves of full volumes."""

    reserve_min: int = 0  # bytes of each that stay


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """What became of writing the same to several logs."""

    kind: str  # entry, vote, segment, snapshot
    positions: Mapping[bytes, LogPosition]  # where the logs end on which it went well
    errors: Mapping[bytes, OSError | StorageError]  # of the others


class Logs:
    """The logs of a session's volumes. The segments that are written stay open.

    After a session in which all went well they do so for the next one of this process, which looks whether they are
    still the files that it would open. Of a volume on which a call failed nothing is kept.
    """

    def __init__(self, env: Environment, volumes: Iterable[Volume], kept: MutableMapping[bytes, Register]) -> None:
        """`kept`: logs of the last session, by volume; what is kept of this one is left there."""
        self._env, self._kept = env, kept
        self._failed: set[bytes] = set()
        self._volumes: dict[bytes, Volume] = {}
        self._logs: dict[bytes, Register] = {}
        self.drew_on_reserves = False  # of full volumes, so they have to be filled again
        for volume in volumes:
            self.add(volume)

    def add(self, volume: Volume) -> None:
        self._volumes[volume.volume_id] = volume
        log, kept = volume.log, self._kept.pop(volume.volume_id, None)
        if kept is not None and volume.identity is not None and kept.is_of(log.directory, volume.identity):
            log = kept
        elif kept is not None:
            kept.close()
        self._logs[volume.volume_id] = log.keep_open()

    def __getitem__(self, volume_id: bytes) -> Register:
        return self._logs[volume_id]

    def close(self, keeps: bool = False) -> None:
        """Close the logs; `keeps`: but those on which nothing has failed."""
        for volume_id, log in self._logs.items():
            if keeps and volume_id not in self._failed:
                log.rest()
                self._kept[volume_id] = log
            else:
                log.close()

    def name(self, volume_id: bytes) -> str:
        """Return where a volume is, for messages."""
        volume = self._volumes.get(volume_id)
        return str(volume.path) if volume is not None else volume_id.hex()

    def on_each(
        self, works: Mapping[bytes, Work[T]], allowance: ReserveAllowance | None = None
    ) -> dict[bytes, T | BaseException]:
        """Do the work on all of these logs at once; return what it returned or raised, by volume.

        `allowance`: a volume that is full gets some from its reserve.
        """
        calls = []
        for volume_id, work in works.items():
            log = self._logs[volume_id]
            call = partial(work, log)
            if allowance is not None:
                call = partial(self._with_reserve, volume_id, call, allowance)
            calls.append(VolumeCall(self._env.files, log.directory, call, majority_suffices=True))
        outcomes = dict(zip(works, self._env.parallel(calls), strict=True))
        self._failed.update(key for key, outcome in outcomes.items() if isinstance(outcome, BaseException))
        return outcomes

    def _with_reserve(self, volume_id: bytes, call: Callable[[], T], allowance: ReserveAllowance) -> T:
        """Do the call again while there is no room for it and the volume has a reserve to give up."""
        spare = self._volumes[volume_id].reserve
        while True:
            try:
                return call()
            except SyncError:  # which is never tried again
                raise
            except OSError as error:
                if error.errno not in FULL or not spare.give_up(allowance.reserve_min):
                    raise
                self.drew_on_reserves = True

    def write(
        self, kind: str, works: Mapping[bytes, Work[LogPosition]], allowance: ReserveAllowance | None
    ) -> WriteOutcome:
        """Write to all of these logs. Raises what is no error of a single volume."""
        positions: dict[bytes, LogPosition] = {}
        errors: dict[bytes, OSError | StorageError] = {}
        for volume_id, outcome in self.on_each(works, allowance).items():
            if isinstance(outcome, LogPosition):
                positions[volume_id] = outcome
            elif isinstance(outcome, OSError) or (isinstance(outcome, StorageError) and len(works) > 1):
                errors[volume_id] = outcome
            else:
                raise outcome
        return WriteOutcome(kind, positions, errors)

    def failure(
        self, written: WriteOutcome, voter_count: int, allowance: ReserveAllowance | None
    ) -> StorageError | OSError:
        """Return what to raise when a majority was not reached: nothing stored, or outcome unknown."""
        label = ", ".join(str(volume.path) for volume in self._volumes.values())
        reasons = "; ".join(f"{self.name(volume_id)}: {error}" for volume_id, error in written.errors.items())
        was_synced = any(isinstance(error, SyncError | UnreachableError) for error in written.errors.values())
        if written.kind == "entry" and (written.positions or was_synced):
            return OutcomeUnknownError(
                f"{label}: writing a log entry failed ({reasons}); whether it was stored is not known"
            )
        if any(isinstance(error, SupersededError) for error in written.errors.values()):
            return SupersededError(f"{label}: another process has led since ({reasons}); nothing was stored")
        failures = [error for error in written.errors.values() if isinstance(error, OSError)]
        if any(error.errno in FULL for error in failures):
            used_up = "; the reserve for removals is used up: make room by other means" if allowance is not None else ""
            if allowance is not None and allowance.reserve_min:
                used_up = "; what acknowledgements may use of the reserve is used up: remove messages first"
            return DiskFullError(f"{label}: {reasons}; nothing was stored{used_up}")
        return _process_wide_error(failures, label) or self._no_quorum(written, voter_count, label, reasons)

    def _no_quorum(self, written: WriteOutcome, voter_count: int, label: str, reasons: str) -> StorageError:
        if voter_count == 1 and not any(isinstance(error, UnreachableError) for error in written.errors.values()):
            return VolumeFailedError(f"{label}: writing a log {written.kind} failed with {reasons}; nothing was stored")
        return NoQuorumError(
            f"{label}: a log {written.kind} reached {len(written.positions)} of {voter_count} volumes ({reasons}); "
            "nothing was stored",
            available=len(written.positions),
            needed=majority(voter_count),
        )


def _process_wide_error(failures: Sequence[OSError], label: str) -> StorageError | OSError | None:
    """Return the error of a volume that is closed to us, or of this process, if there is one."""
    closed = next((error for error in failures if error.errno in CLOSED), None)
    if closed is not None:
        return closed
    ours = next((error for error in failures if is_of_process(error)), None)
    return of_process(ours, label) if ours is not None else None


def is_failure(error: OSError | StorageError) -> bool:
    """Return whether an error means that the volume cannot be trusted: not that it is full or closed to us, that its
    file is not there (it went away, or has lost it, which the next session sees), that an object store gives no answer,
    nor what is of this process.
    """
    if isinstance(error, SyncError | UnreachableError):
        return isinstance(error, SyncError)
    return isinstance(error, OSError) and error.errno not in (*FULL, *CLOSED, *GONE) and not is_of_process(error)
