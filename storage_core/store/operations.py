"""What operators ask of a store: checking, repair, maintenance, other volumes. Each is a method of `Store`, too.

Store imports this module when one of them is called, since it stands on most of the packages here.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from storage_core.comparison import Drift
from storage_core.errors import ReadOnlyError, StorageError
from storage_core.metadata.state import StreamState
from storage_core.store.consumers import ownership
from storage_core.store.maintenance import deleted
from storage_core.store.maintenance.archives import Archiving
from storage_core.store.maintenance.compaction import Compaction
from storage_core.store.maintenance.merging import COMPACTING, MAINTAINING, MergePolicy
from storage_core.store.opened import OpenStore
from storage_core.store.recovery import membership
from storage_core.store.recovery.membership import Membership
from storage_core.store.recovery.repair import Repair
from storage_core.store.replicas import mismatch, side_by_side, verification
from storage_core.store.replicas.scrub import Scrub
from storage_core.store.replicas.verification import Progress
from storage_core.store.volume.index import VolumeIndex
from storage_core.store.writing import orphans

logger = logging.getLogger(__name__)
INDEX_WAIT_S = 1.0  # for the lock, to write what was verified into a cache: nobody's answer waits longer for that


def verify(store: OpenStore, progress: Progress | None, streams: Sequence[str] | None) -> dict[str, Any]:
    state = store.state()
    chosen = [store.stream_state(name, state) for name in (store.streams() if streams is None else streams)]
    report, indexes, damage = verification.verify(
        state, chosen, store.metadata, store.environment, progress, store.lock_timeout_s
    )
    if not store.read_only:
        _write_down(store, indexes, damage)
    return report


def _write_down(store: OpenStore, indexes: Mapping[bytes, VolumeIndex], damage: verification.VerifiedDamage) -> None:
    """Write what was verified into index.db, a cache, and what was found into the metadata, as events.

    Where the store cannot be written the answer is the same. While it is busy reports are left, of which the next
    session makes events.
    """
    wait_s = store.lock_timeout_s if damage else min(store.lock_timeout_s, INDEX_WAIT_S)
    try:
        with store.metadata.session(wait_s) as session:
            verification.save_indexes(session, indexes)
            damage.tell(session)
    except StorageError as error:
        logger.info("%s: what was verified was not written down: %s", store.label, error)
        damage.leave_reports(store.volumes())


def compare(store: OpenStore, stream: str, progress: Progress | None) -> Drift:
    state = store.state()
    return side_by_side.compare(state, store.stream_state(stream, state), store.volumes(), store.environment, progress)


def repair(store: OpenStore, progress: Progress | None, streams: Sequence[str] | None) -> dict[str, Any]:
    _check_names(store, streams)
    return Repair(store.metadata, store.environment, store.lock_timeout_s).run(streams, progress)


def scrub(
    store: OpenStore,
    progress: Progress | None,
    limit_bytes: int | None,
    rate_bytes_per_s: int | None,
    streams: Sequence[str] | None,
) -> dict[str, Any]:
    _check_names(store, streams)
    scrubbing = Scrub(store.metadata, store.environment, store.lock_timeout_s, store.read_only)
    return scrubbing.run(progress, limit_bytes, rate_bytes_per_s, streams)


def compact(store: OpenStore, streams: Sequence[str] | None, progress: Progress | None) -> dict[str, Any]:
    _check_names(store, streams)
    return compaction(store, COMPACTING).run(streams, progress)


def compaction(store: OpenStore, policy: MergePolicy) -> Compaction:
    if store.read_only:
        raise ReadOnlyError(f"{store.label} was opened for reading only", store=store.label)
    return Compaction(store.metadata, store.environment, store.lock_timeout_s, policy)


def maintain(store: OpenStore, is_stopped: Callable[[], bool]) -> None:
    """Do all maintenance that is due, one kind after another; others get their turn in between.

    `is_stopped` is asked between two pieces; what is left then is due the next time.
    """
    env, timeout_s = store.environment, store.lock_timeout_s
    repairing = Repair(store.metadata, env, timeout_s)

    def compare() -> None:
        membership.resume_quietly(store.metadata, env, timeout_s)
        with store.metadata.session(timeout_s) as session:
            mismatch.tell(session, mismatch.everywhere(session, env), env)

    def repair_reported() -> None:
        more = True
        while more and not is_stopped():
            with store.metadata.session(timeout_s) as session:
                more = store.maintenance.repair(session)

    def archive() -> None:
        if not len(store.state().archives):
            return
        with ownership.alone(store, ownership.ARCHIVE_FILE) as owner:
            if not owner:  # else that one runs the commands
                Archiving(store.metadata, env, timeout_s, store.maintenance.archived).run(is_stopped)

    def sweep() -> None:
        repairing.sweep()
        with store.metadata.session(timeout_s) as session:
            orphans.sweep(session, env)
            deleted.sweep(session, env)
            ownership.sweep(session, env)
            store.maintenance.after(session, everything=True)

    pieces: tuple[Callable[[], object], ...] = (
        partial(repairing.volumes, ask=False), compare, repair_reported, store.enforce_limits,
        partial(compaction(store, MAINTAINING).run, None), archive, sweep,
    )  # fmt: skip
    for piece in pieces:
        if is_stopped():
            return
        piece()


def membership_of(store: OpenStore) -> Membership:
    """Return what adds, removes and replaces volumes."""
    return Membership(store.metadata, store.environment, store.lock_timeout_s)


def change_replicas(store: OpenStore, stream: StreamState, replicas: int) -> None:
    """Copy the stream's blocks to more volumes, or let some of them go."""
    membership.change_replicas(store.metadata, store.environment, store.lock_timeout_s, stream.incarnation, replicas)


def _check_names(store: OpenStore, streams: Sequence[str] | None) -> None:
    for name in streams or ():
        store.stream_state(name)
