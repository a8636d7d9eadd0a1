"""Commands about the store as a whole: its first entry, its volumes, events, transactions that are forgotten."""

from collections.abc import Mapping

import numpy as np

from storage_core import errors
from storage_core.frozen import replace
from storage_core.metadata import events as event_history
from storage_core.metadata.commands import (
    ChangeVolumes,
    EditStore,
    Event,
    ForgetTransactions,
    Init,
    NoOp,
    RecordEvents,
    TakeOver,
    ids_of_voters,
)
from storage_core.metadata.manifest import Table
from storage_core.metadata.results import Done, Place, Result, refuse, refuse_with
from storage_core.metadata.state import SET_ASIDE_MAX, StoreState, Streams, StreamState
from storage_core.raft import rules


def init(state: StoreState, place: Place, time_ns: int, command: Init) -> tuple[StoreState, Result]:
    if state.store_id:
        refuse(errors.AlreadyExistsError, "the store has been initialised")
    made = StoreState(
        store_id=command.store_id,
        created_ns=time_ns,
        settings=command.settings,
        voters=command.voters,
        lock_domain=command.lock_domain,
        host=command.host,
    )
    return made, Done()


def noop(state: StoreState, place: Place, time_ns: int, command: NoOp) -> tuple[StoreState, Result]:
    return state, Done()


def take_over(state: StoreState, place: Place, time_ns: int, command: TakeOver) -> tuple[StoreState, Result]:
    event = Event("took_over", before=state.host, after=command.host, reason=command.reason)
    taken = replace(state, lock_domain=command.lock_domain, host=command.host)
    return with_events(taken, (event,), time_ns), Done()


def change_volumes(state: StoreState, place: Place, time_ns: int, command: ChangeVolumes) -> tuple[StoreState, Result]:
    before, after = set(ids_of_voters(state.voters)), set(ids_of_voters(command.voters))
    if len({member.volume_id for member in command.voters}) < len(command.voters):
        refuse(errors.RequirementError, "the list of volumes names a volume twice")
    reason = rules.why_not(before, after, is_recorded=command.change is not None)
    if reason:
        refuse(errors.RequirementError, reason)
    kept = {member.volume_id for member in command.voters}
    for stream in state.streams.values():
        if not kept.issuperset(stream.placement):
            refuse(errors.RequirementError, f"stream {stream.name!r} keeps blocks on a volume that would be removed")
    changed = replace(
        state,
        voters=command.voters,
        volume_change=command.change,
        former=state.former if command.former is None else command.former,
        set_aside=(*state.set_aside, *command.set_aside)[-SET_ASIDE_MAX:],
    )
    instances = {member.volume_id: member.instance_id for member in state.voters}
    for voter in command.voters:
        if instances.get(voter.volume_id, voter.instance_id) != voter.instance_id:
            # What another instance took proves nothing: its blocks count again as each is found whole.
            for stream in list(changed.streams.values()):
                if voter.volume_id in stream.placement:
                    changed = changed.with_stream(_without_holder(stream, voter.volume_id))
    return with_events(changed, command.events, time_ns), Done()


def _without_holder(stream: StreamState, volume_id: bytes) -> StreamState:
    rows = stream.blocks.rows.copy()
    rows["holders"] &= ~(np.uint32(1) << np.uint32(stream.placement.index(volume_id)))
    return replace(stream, blocks=Table.of(rows))


def edit_store(state: StoreState, place: Place, time_ns: int, command: EditStore) -> tuple[StoreState, Result]:
    if command.settings.is_shared != state.settings.is_shared:
        refuse(errors.RequirementError, "permissions are those of files and directories, and are chosen once")
    return replace(state, settings=command.settings), Done()


def check_totals(before: StoreState, after: StoreState) -> None:
    """Refuse what takes the store over a limit of all its streams together; what is over it already may shrink."""
    now = totals_of(after.streams)
    error = over_totals(before, {limit: now[limit] - count for limit, count in totals_of(before.streams).items()})
    if error is not None:
        refuse_with(error)


def totals_of(streams: Streams) -> dict[str, int]:
    """Return what the limits of a store count, by their names."""
    return {
        "max_streams": len(streams),
        "max_consumers": streams.consumer_count,
        "max_msgs": streams.message_count,
        "max_bytes": streams.data_size,
    }


def over_totals(state: StoreState, more: Mapping[str, int]) -> errors.LimitExceededError | None:
    """Return why the store has no room for more of what its limits count; None if it has."""
    for limit, present in totals_of(state.streams).items():
        value, added = getattr(state.settings, limit), more.get(limit, 0)
        if isinstance(value, int) and added > 0 and present + added > value:
            return errors.LimitExceededError("", limit, value, present, added)
    return None


def record_events(state: StoreState, place: Place, time_ns: int, command: RecordEvents) -> tuple[StoreState, Result]:
    return with_events(state, command.events, time_ns), Done()


def with_events(state: StoreState, events: tuple[Event, ...], time_ns: int) -> StoreState:
    known = event_history.with_events(state.events, events, time_ns)
    return state if known is state.events else replace(state, events=known)


def forget_transactions(
    state: StoreState, place: Place, time_ns: int, command: ForgetTransactions
) -> tuple[StoreState, Result]:
    rows = state.transactions.rows
    ids = np.frombuffer(np.ascontiguousarray(rows["id"]).tobytes(), ">u8").reshape(-1, 2)[:, 0]
    kept = state.transactions.keep(ids >= command.before_ns)
    floor_ns = max(state.transaction_floor_ns, command.before_ns)
    return replace(state, transactions=kept, transaction_floor_ns=floor_ns), Done()
