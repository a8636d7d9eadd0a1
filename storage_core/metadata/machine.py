"""The metadata state machine: `apply(state, entry place, envelope) -> (state, result)`.

Pure: no clock, no new ids, no I/O, no order that depends on hashing. A command that cannot be carried out gives a
`Refused` result and leaves the state as it was, on every replica alike.

What is refused and why stands in one place a command; a session tries a command here before it proposes it, so a
refused one costs no write.
"""

from collections.abc import Callable
from typing import Any, get_args

import msgspec

from storage_core import errors
from storage_core.frozen import replace
from storage_core.metadata import appends, commands, removals, store_changes, stream_changes
from storage_core.metadata.command_invariants import check_command
from storage_core.metadata.commands import ConsumerCommand, Envelope
from storage_core.metadata.consumers import advanced, apply_to
from storage_core.metadata.events import new_events
from storage_core.metadata.results import (
    AppendDone,
    ConsumerDone,
    Done,
    Outcome,
    Place,
    Refusal,
    Refused,
    RemoveDone,
    Result,
)
from storage_core.metadata.state import StoreState

__all__ = ["AppendDone", "ConsumerDone", "Done", "Outcome", "Place", "Refused", "RemoveDone", "Result", "apply"]


def apply(
    state: StoreState, place: Place, envelope: Envelope, are_appends_good: bool = False
) -> tuple[StoreState, Result]:
    """Return the state after the command, and what it came to.

    `are_appends_good`: as `check_command` has it. Raises CorruptionError for a command that no program of ours writes.
    """
    check_command(state, envelope, are_appends_good)
    kind, clock_ns = type(envelope.command), envelope.time_ns
    time_ns = state.time_at(clock_ns)
    try:
        made, result = _HANDLERS[kind](state, place, clock_ns if kind in _BY_CLOCK else time_ns, envelope.command)
        if made.streams is not state.streams:
            store_changes.check_totals(state, made)
    except Refusal as refusal:
        return state, Refused(*refusal.args)
    return (made if made is state else replace(made, time_ns=time_ns, clock_ns=clock_ns)), result


def _consumer(state: StoreState, place: Place, time_ns: int, command: ConsumerCommand) -> tuple[StoreState, Result]:
    stream = stream_changes.live(state, command.incarnation)
    if events := getattr(command, "events", ()):
        command = msgspec.structs.replace(command, events=new_events(state.events, events))
    try:
        stream, events, count = apply_to(stream, time_ns, command)
    except errors.StorageError as error:
        return state, Refused.of(error)
    return store_changes.with_events(state.with_stream(stream), events, time_ns), ConsumerDone(count)


def _advance(
    state: StoreState, place: Place, time_ns: int, command: commands.AdvanceConsumers
) -> tuple[StoreState, Result]:
    moved = state
    for advance in command.advances:
        try:
            moved = moved.with_stream(advanced(stream_changes.live(moved, advance.incarnation), advance))
        except errors.StorageError as error:
            return state, Refused(type(error), str(error))
    return moved, Done()


_HANDLERS: dict[type, Callable[[StoreState, Place, int, Any], tuple[StoreState, Result]]] = {
    commands.Init: store_changes.init,
    commands.ChangeVolumes: store_changes.change_volumes,
    commands.EditStore: store_changes.edit_store,
    commands.RecordEvents: store_changes.record_events,
    commands.RecordHolders: stream_changes.record_holders,
    commands.MergeBlocks: appends.merge_blocks,
    commands.ChangePlacement: stream_changes.change_placement,
    commands.DeclareLost: removals.declare_lost,
    commands.TakeBack: removals.take_back,
    commands.DiscardLost: removals.discard_lost,
    commands.NoOp: store_changes.noop,
    commands.TakeOver: store_changes.take_over,
    commands.AddStream: stream_changes.add_stream,
    commands.EditStream: stream_changes.edit_stream,
    commands.DeleteStream: stream_changes.delete_stream,
    commands.PrepareStreams: stream_changes.prepare_streams,
    commands.RestoreStreams: stream_changes.restore_streams,
    commands.Append: appends.append,
    commands.Abort: appends.abort,
    commands.Remove: removals.remove,
    commands.Unlinked: removals.unlinked,
    commands.ForgetTransactions: store_changes.forget_transactions,
    **dict.fromkeys(get_args(ConsumerCommand), _consumer),
    commands.AdvanceConsumers: _advance,
}
# Events say what the clock showed. Deadlines go by it, too: they are moved when it was set back (consumer_state.py).
_BY_CLOCK = frozenset(
    kind for kind, handler in _HANDLERS.items() if handler is _consumer or kind is commands.RecordEvents
)
