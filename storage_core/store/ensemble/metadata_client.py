"""The metadata of a store as one process knows it: all volumes read as one truth, and sessions to change it.

Readers take no lock: they follow the commit records (commit_reader.py). What they cannot tell from those they look up
in a session, under the locks of the volumes (session.py). Nothing above this module knows how many volumes there are,
or where they are (volume_set.py).
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from storage_core import access
from storage_core.deadlines import VolumeCall
from storage_core.errors import (
    CorruptionError,
    DiskFullError,
    NoQuorumError,
    NotAStoreError,
    ProcessError,
    ReadOnlyError,
    StorageError,
    StoreBusyError,
    SupersededError,
    UnsupportedVersionError,
    VolumeAwayError,
    VolumeFailedError,
)
from storage_core.forks import Stage, renew_in_children
from storage_core.os_errors import CLOSED, FULL, UnreachableError, of_volume, raise_if_limit, raise_if_of_process
from storage_core.paths import is_in_object_store
from storage_core.raft.entry import CommitRecord
from storage_core.raft.rules import majority
from storage_core.store.ensemble.commit_reader import CommitReader, CommitUncertain, UncommittedTail
from storage_core.store.ensemble.decision import LockContention, VolumeStatus, examine, remedy
from storage_core.store.ensemble.log_recovery import MembershipChanged
from storage_core.store.ensemble.process_cache import ProcessCache
from storage_core.store.ensemble.session import RescanRequired, Session
from storage_core.store.ensemble.view import View
from storage_core.store.ensemble.volume_set import VolumeSet
from storage_core.store.environment import Environment
from storage_core.store.volume import locks, volumes
from storage_core.store.volume.identity import read_identity
from storage_core.store.volume.object_log import DIRECTORY, listing_of
from storage_core.store.volume.state import VolumeState
from storage_core.store.volume.volumes import Volume

logger = logging.getLogger(__name__)
READ_ATTEMPTS = 5  # of a reader that meets files being replaced
UNPROVEN_PAUSE_S = 0.05  # of a reader between two leaders
CONTENDED_PAUSE_S = 0.02
SUPERSEDED_PAUSE_MAX_S = 2.0  # who lost to another leader waits for longer each time


class MetadataClient:
    """The metadata of a store, as this process knows it. Safe to use from several threads."""

    def __init__(
        self,
        env: Environment,
        known: Sequence[Volume],
        paths: Sequence[Path] = (),
        read_only: bool = False,
        recovers: bool = False,
    ) -> None:
        """`known`: volumes of the store, those that were found at `paths`, which the user gave.

        `recovers`: a reader that is in doubt which entries are committed may lead once to find out.
        """
        self.env, self._read_only = env, read_only
        self._may_lead = recovers or not read_only  # to recover what a crash left; nothing else
        self._volumes = VolumeSet(env, known, paths)
        self.cache = ProcessCache(env)
        self._reader = CommitReader(env, self._volumes, self.cache, not self._may_lead)
        self.renew()
        renew_in_children(Stage.STORES, self)

    def renew(self) -> None:
        """Lead nothing, and hold nothing: a forked child is another process."""
        self.cache.renew()
        self._reading = threading.Lock()

    @classmethod
    def at(
        cls,
        env: Environment,
        paths: Sequence[Path],
        read_only: bool = False,
        for_view: bool = False,
        recovers: bool = False,
    ) -> "MetadataClient":
        """Return the metadata of the store that these paths lead to.

        `for_view`: the caller asks for the `view` at once; in object stores that begins here. Raises NotAStoreError,
        CorruptionError, UnsupportedVersionError, ValueError (a volume at two paths).
        """
        if not any(is_in_object_store(path) for path in paths):
            return cls(env, volumes.volumes_at(env.files, paths), paths, read_only, recovers)
        works: list[Callable[[], Any]] = [partial(read_identity, env.files, path) for path in paths]
        if for_view:
            works += [partial(listing_of, env.files, path) for path in paths]
        # Who is much slower than most is not waited for.
        places = [path / DIRECTORY for path in paths] * (2 if for_view else 1)
        calls = [VolumeCall(env.files, *at, True) for at in zip(places, works, strict=True)]
        outcomes: list[Any] = env.parallel(calls)
        metadata = cls(env, volumes.volumes_at(env.files, paths, outcomes[: len(paths)]), paths, read_only, recovers)
        listings = dict(zip(paths, outcomes[len(paths) :], strict=False))
        metadata._reader.listings = {
            volume.volume_id: listings[volume.path]
            for volume in metadata.known_volumes
            if isinstance(listings.get(volume.path), dict)
        }
        return metadata

    @property
    def label(self) -> str:
        """The store, for messages."""
        return self._volumes.label

    @property
    def store_id(self) -> bytes:
        return self._volumes.store_id

    @property
    def known_volumes(self) -> tuple[Volume, ...]:
        """Every volume as it was when this process last looked."""
        return self._volumes.known

    def volumes(self) -> tuple[Volume, ...]:
        """Return every volume of the store in the order of its voters, looked at just now."""
        return self._volumes.look()

    def volumes_for_reading(self) -> tuple[Volume, ...]:
        """Return every volume for who has just asked for the newest state, and goes on to the next if one is away."""
        return self._volumes.for_reading()

    def _remedy(self) -> str:
        """Return what to do about metadata that is lost."""
        known = self._volumes.known
        identities = {volume.path: volume.identity for volume in known if volume.identity is not None}
        return remedy(self.label, identities)

    # --- reading

    def may_have_advanced(self, known: View) -> bool:
        """Return whether more may be committed than that; in an object store one small request to one volume."""
        return self._reader.may_have_advanced(known)

    def view(self, lock_timeout_s: float) -> View:
        """Return the newest committed state that commit records vouch for. Takes no lock unless in doubt."""
        error: StorageError | OSError | None = None
        proven: CommitRecord | None = None  # while more may be committed
        with self._reading:
            for _ in range(READ_ATTEMPTS):
                try:
                    view = self._reader.follow()
                except UncommittedTail:
                    break
                except CommitUncertain as doubt:
                    (proven,) = doubt.args
                    self.env.sleep(UNPROVEN_PAUSE_S)
                    continue
                except (UnsupportedVersionError, NotAStoreError):
                    raise
                except (StorageError, OSError) as caught:  # also a file that was there when the names were listed
                    raise_if_limit(caught, self.label)
                    error = caught
                    if isinstance(caught, UnreachableError | VolumeAwayError):  # it was asked again and again
                        break
                    continue
                if view is not None:
                    return view
        if self._may_lead:
            try:
                with self._session(
                    lock_timeout_s
                ) as session:  # nothing moves under the lock: what is missing is missing
                    return session.view
            except (ReadOnlyError, StoreBusyError, DiskFullError, NoQuorumError, ProcessError) as caught:
                raise_if_limit(caught, self.label)
                if self._reader.undecided is None:
                    raise
        if self._reader.undecided is None and proven is not None:
            with self._reading:
                self._reader.undecided, _ = self._reader.read_up_to(proven, first=False, clean=True)
        if self._reader.undecided is None:
            if error is not None:
                raise_if_of_process(error, self.label)
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise of_volume(error, f"{self.label} cannot be read: {error}") from error
            reason = error if error is not None else "it was never written, or is lost"
            raise CorruptionError(
                f"{self.label}: no whole commit record to read by: {reason}. {self._remedy()}"
            ) from error
        logger.warning("%s: read as last known to be committed; newer messages may exist", self.label)
        self.cache.keep(self._reader.undecided)
        return self._reader.undecided

    def statuses(self, lock_timeout_s: float) -> dict[bytes, VolumeStatus]:
        """Return what the metadata of each volume is like, without a lock if that can be.

        Logs are read one after another: a volume that is being written meanwhile may seem to be behind, damaged, or to
        have been rolled back. So what is not current is looked at again, until its log has stood still, at last under
        the locks. One that keeps growing is written by a session, which writes those alone that are in step.
        """
        result: dict[bytes, VolumeStatus] = {}
        moving: set[bytes] = set()
        for _ in range(READ_ATTEMPTS):
            before, view = result, self.view(lock_timeout_s)
            result = dict(
                examine([self.cache.read(volume) for volume in self._volumes.look()], view.state.voters).statuses
            )
            moving = {
                volume_id
                for volume_id, status in result.items()
                if status.state
                in (VolumeState.BEHIND, VolumeState.ROLLED_BACK, VolumeState.DAMAGED, VolumeState.FOREIGN)
                and status != before.get(volume_id)
            }
            if not moving:
                return result
        if self._may_lead:
            try:
                return self._statuses_under_locks(lock_timeout_s)
            except (StorageError, OSError) as error:
                logger.info("%s: its volumes were looked at without a lock: %s", self.label, error)
        grown = [key for key in moving if key in before and 0 < before[key].index < result[key].index]
        return {**result, **{key: VolumeStatus(VolumeState.CURRENT, "", index=result[key].index) for key in grown}}

    def _statuses_under_locks(self, lock_timeout_s: float) -> dict[bytes, VolumeStatus]:
        """Return the same while nobody writes. Raises StoreBusyError, NoQuorumError, OSError."""
        at_hand = self._volumes.look()
        paths = self._volumes.lockable(at_hand)
        with locks.hold(self.env.files, paths, len(paths), lock_timeout_s):
            return dict(examine([self.cache.read(volume) for volume in at_hand], self._volumes.voters).statuses)

    def hold(self, volume: Volume, lock_timeout_s: float) -> AbstractContextManager[locks.HeldLocks]:
        """Hold the lock of one volume: its metadata stands still. Raises ReadOnlyError, StoreBusyError, OSError."""
        self._check_writable()
        return locks.hold(self.env.files, [volume.path], 1, lock_timeout_s)

    @contextmanager
    def session(
        self,
        lock_timeout_s: float,
        take_over: bool = False,
        patience_s: float = 0.0,
        releases_space: bool = False,
        optimistic: bool = False,
        view: View | None = None,
    ) -> Iterator[Session]:
        """Hold the store: everything read, everything that counts made durable.

        `patience_s`: how long to wait for volumes that others have locked when a majority is enough to go on.
        `releases_space`: the session makes room, so what it has to write first may use the reserves of full volumes.
        `optimistic`: all that is done in it is done in a group (`Session`). `view`: what the caller has looked at a
        moment ago.
        Raises StoreBusyError, CorruptionError, NoQuorumError, VolumeFailedError, ReadOnlyError, DiskFullError.
        """
        self._check_writable()
        with self._session(lock_timeout_s, take_over, patience_s, releases_space, optimistic, view) as session:
            yield session

    def _check_writable(self) -> None:
        if self._read_only:
            raise ReadOnlyError(f"{self.label} was opened for reading only", store=self.label)

    @contextmanager
    def _session(
        self,
        lock_timeout_s: float,
        take_over: bool = False,
        patience_s: float = 0.0,
        releases_space: bool = False,
        optimistic: bool = False,
        view: View | None = None,
    ) -> Iterator[Session]:
        if not self._volumes.voters:
            with self._reading, translated(self.label):
                try:
                    self._reader.learn_voters()
                except FileNotFoundError as error:  # the volume is there
                    reason = f"{error.filename} is missing: the metadata log was there. {self._remedy()}"
                    raise VolumeFailedError(f"{self.label}: {reason}") from error
                except CorruptionError as error:
                    if type(error) is not CorruptionError:
                        raise
                    raise CorruptionError(f"{error}. {self._remedy()}", **error.fields) from error
        deadline = self.env.monotonic() + lock_timeout_s
        is_fresh, pause_s = False, CONTENDED_PAUSE_S
        with translated(self.label):
            while True:
                # As they were: the session looks at the logs, which say whose they are, and finds out if they changed.
                is_fresh = (
                    is_fresh
                    or self.cache.known.view is None
                    or any(volume.identity is None for volume in self._volumes.known)
                )
                if optimistic and not is_fresh and self._volumes.is_remote and not self.cache.leads:
                    view = view if view is not None and view is self.cache.known.view else self._followed()
                at_hand = self._volumes.look() if is_fresh else self._volumes.known
                with ExitStack() as stack:
                    try:
                        held = stack.enter_context(self._locks_of(at_hand, deadline, patience_s))
                    except (NoQuorumError, ProcessError, OSError):
                        if is_fresh:
                            raise
                        is_fresh = True
                        continue
                    session = Session(self.cache, at_hand, held, is_fresh, optimistic, view)
                    view = None
                    stack.callback(session.close)
                    try:
                        session.begin(take_over, releases_space)
                    except RescanRequired:
                        is_fresh = True
                        continue
                    except MembershipChanged as relock:
                        self._volumes.complete(relock.args[0])
                        is_fresh = True
                        continue
                    except (LockContention, SupersededError) as contention:
                        if isinstance(contention, SupersededError):
                            pause_s = min(2 * pause_s, SUPERSEDED_PAUSE_MAX_S)
                        if self.env.monotonic() >= deadline:
                            raise StoreBusyError(
                                f"{self.label}: other processes have held some of the volumes for {lock_timeout_s:g} s",
                                store=self.label,
                            ) from None
                    else:
                        if session.state.voters != self._volumes.voters:
                            self._volumes.complete(session.state.voters)
                        yield session
                        session.end()
                        return
                self.env.sleep(pause_s * (0.5 + self.env.random_bytes(1)[0] / 256))

    def _followed(self) -> View | None:
        """Return the newest view as a reader finds it; None where it takes a session to find out."""
        with self._reading:
            try:
                return self._reader.follow()
            except (UncommittedTail, CommitUncertain, StorageError, OSError):
                return None

    def _locks_of(
        self, at_hand: Sequence[Volume], deadline: float, patience_s: float
    ) -> AbstractContextManager[locks.HeldLocks]:
        """Hold the locks of the volumes that are there, of a majority at least."""
        lockable = self._volumes.lockable(at_hand)
        learners = sum(voter.learner for voter in self._volumes.voters)
        needed = min(majority(len(at_hand) - learners), max(1, len(lockable)))
        left_s = max(0.0, deadline - self.env.monotonic())
        return locks.hold(self.env.files, lockable, needed, left_s, min(patience_s, left_s))


@contextmanager
def translated(label: object) -> Iterator[None]:
    """Errors of the operating system become ours at this edge."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFullError(f"{label}: {error.strerror}") from error
        if error.errno in CLOSED:
            reason = access.in_words(error, writing=True)
            raise ReadOnlyError(f"{label} cannot be written: {reason} ({error.filename})") from error
        raise_if_of_process(error, label)
        raise of_volume(error, f"{label}: {error}") from error
