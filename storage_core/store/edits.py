"""Changes of a stream's configuration, with what they move and remove."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from storage_core.metadata.commands import EditStream
from storage_core.metadata.state import StoreState, StreamState
from storage_core.metadata.stream_changes import with_config
from storage_core.store.ensemble.session import Session
from storage_core.store.opened import OpenStore
from storage_core.store.recovery.membership import Membership
from storage_core.store.writing import per_subject, retention
from storage_core.store.writing.limits import Excess, Limits

PER_SUBJECT = "max_msgs_per_subject"


def edit(store: OpenStore, known: StreamState, changes: Mapping[str, Any], allow_overlap: bool) -> None:
    """Change these keys of a stream's configuration, in one step with what that removes."""

    def job(session: Session) -> None:
        stream = session.state.by_incarnation(known.incarnation)
        config = (stream or known).config.with_changes(changes)
        session.propose(EditStream(known.incarnation, config, allow_overlap))
        store.release(session, known.incarnation)
        store.enforce(session, known.incarnation, all_subjects=PER_SUBJECT in changes)

    replica_count = known.config.with_changes(changes).num_replicas
    if replica_count == known.config.num_replicas:
        with store.session() as session, session.group():
            job(session)
    else:
        membership = Membership(store.metadata, store.environment, store.lock_timeout_s)
        membership.change_replicas(known.incarnation, replica_count, job)


def excess(store: OpenStore, state: StoreState, stream: StreamState, changes: Mapping[str, Any]) -> Excess | None:
    """Return what `edit` with these keys would remove from the stream now; None for nothing."""
    volumes, env = store.volumes(), store.environment
    limits = Limits(env)
    edited = with_config(stream, stream.config.with_changes(changes))
    unneeded, unneeded_size = retention.unneeded(state, edited, volumes, limits, env)
    remaining = edited
    if unneeded:
        remaining = replace(
            edited,
            removed=edited.removed.union(unneeded),
            message_count=edited.message_count - len(unneeded),
            data_size=edited.data_size - unneeded_size,
        )
    over = limits.excess(state, remaining, volumes)
    if PER_SUBJECT in changes:
        shown = replace(remaining, low_watermark=over.low_watermark) if over is not None else remaining
        over = per_subject.added(over, remaining, *per_subject.excess(state, shown, volumes, env))
    if unneeded:
        over = replace(over or Excess(stream.low_watermark, 0, 0), done_count=len(unneeded), done_size=unneeded_size)
    return over
