"""What operators ask of a store that takes several of the packages here: to verify everything, and to maintain it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from storage_core.errors import StorageError
from storage_core.store.consumers import ownership
from storage_core.store.consumers.claims import alone
from storage_core.store.maintenance import deleted
from storage_core.store.maintenance.archives import Archiving
from storage_core.store.maintenance.compaction import Compaction
from storage_core.store.maintenance.merging import MAINTAINING
from storage_core.store.opened import OpenStore
from storage_core.store.recovery import membership
from storage_core.store.recovery.repair import Repair
from storage_core.store.replicas import mismatch, verification
from storage_core.store.replicas.verification import Progress
from storage_core.store.volume.index import VolumeIndex
from storage_core.store.writing import orphans

logger = logging.getLogger(__name__)
INDEX_WAIT_S = 1.0  # for the lock, to write what was verified into a cache: nobody's answer waits longer for that


def verify(store: OpenStore, progress: Progress | None, streams: Sequence[str] | None) -> dict[str, Any]:
    state = store.view().state
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
            damage.record(session)
    except StorageError as error:
        logger.info("%s: what was verified was not written down: %s", store.label, error)
        damage.leave_reports(store.volumes())


def maintain(store: OpenStore, is_stopped: Callable[[], bool], check: Callable[[], None]) -> None:
    """Do all maintenance that is due, one kind after another; others get their turn in between.

    `is_stopped` is asked between two pieces; what is left then is due the next time. `check` is called before each.
    """
    env, timeout_s = store.environment, store.lock_timeout_s
    repairing = Repair(store.metadata, env, timeout_s)

    def compare() -> None:
        membership.resume_quietly(store.metadata, env, timeout_s)
        with store.metadata.session(timeout_s) as session:
            mismatch.record(session, mismatch.everywhere(session), env)

    def repair_reported() -> None:
        more = True
        while more and not is_stopped():
            with store.metadata.session(timeout_s) as session:
                more = store.maintenance.repair(session)

    def archive() -> None:
        if not len(store.view().state.archives):
            return
        with alone(ownership.claims_of(store), ownership.ARCHIVE) as other_owner:
            Archiving(store.metadata, env, timeout_s, store.maintenance.archived).run(is_stopped, other_owner)

    def sweep() -> None:
        repairing.sweep()
        with store.metadata.session(timeout_s) as session:
            orphans.sweep(session, env)
            deleted.sweep(session)
            ownership.sweep(session, env)
            store.maintenance.after(session, everything=True)

    pieces: tuple[Callable[[], object], ...] = (
        partial(repairing.volumes, ask=False), compare, repair_reported, store.enforce_limits,
        partial(Compaction(store.metadata, env, timeout_s, MAINTAINING).run, None), archive, sweep,
    )  # fmt: skip
    for piece in pieces:
        if is_stopped():
            return
        check()
        piece()
