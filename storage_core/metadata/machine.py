"""The metadata state machine: `apply(state, entry place, envelope) -> (state, result)`.

Pure: no clock, no new ids, no I/O, no order that depends on hashing. A command that cannot be carried out gives a
`Refused` result and leaves the state as it was, on every replica alike.

What is refused and why stands in one place a command; the holder tries a command here before it proposes it, so a
refused one costs no write.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from storage_core import errors
from storage_core.metadata import subject_sets
from storage_core.metadata.commands import (
    Abort,
    Acknowledge,
    AddConsumer,
    AddStream,
    Adopt,
    AdvanceConsumers,
    Append,
    AppendedBlocks,
    Bury,
    ChangePlacement,
    ChangeVolumes,
    DeclareLost,
    DeleteConsumer,
    DeleteStream,
    Deliver,
    EditStream,
    Envelope,
    Event,
    ForgetTransactions,
    Init,
    MergeBlocks,
    MoveConsumer,
    NoOp,
    PauseConsumer,
    PrepareStreams,
    RecordEvents,
    RecordHolders,
    Remove,
    RestoreStreams,
    TakeConsumer,
    TakeOver,
    TellConsumer,
    Voter,
)
from storage_core.metadata.consumers import ConsumerCommand, advanced, apply_to, restored
from storage_core.metadata.manifest import BLOCK_DTYPE, GRAVE_DTYPE, Table, ids
from storage_core.metadata.merging import apply_to as merged
from storage_core.metadata.state import (
    ABORTED,
    COMMITTED,
    EVENT_COUNT_MAX,
    STREAMING_BATCHES_KEPT,
    TRANSACTION_DTYPE,
    BatchResult,
    StoreState,
    StreamState,
    WriterState,
    decode_state,
    decode_stream,
)
from storage_core.sequences import SequenceSet

SUPERSEDED_RUNS_KEPT = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Where an entry stands in the log."""

    index: int
    history: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """The command was not carried out. `error` is a class of storage_core.errors."""

    error: type[errors.StorageError]
    reason: str

    def raise_(self) -> None:
        raise self.error(self.reason)


@dataclass(frozen=True, slots=True)
class Done:
    """The command was carried out and has nothing more to say."""


@dataclass(frozen=True, slots=True)
class AppendDone:
    """Result of an append, by stream name."""

    appended: dict[str, BatchResult]
    already: bool  # this (writer, batch) was stored before; nothing has changed


@dataclass(frozen=True, slots=True)
class RemoveDone:
    message_count: int  # messages that were shown before and are not now


@dataclass(frozen=True, slots=True)
class ConsumerDone:
    message_count: int  # messages that were handed out, or were waiting and that the acknowledgement was about


Result = Refused | Done | AppendDone | RemoveDone | ConsumerDone


def apply(state: StoreState, place: Place, envelope: Envelope) -> tuple[StoreState, Result]:
    """Return the state after the command, and what it came to."""
    try:
        return _HANDLERS[type(envelope.command)](state, place, envelope.time_ns, envelope.command)
    except _Refusal as refusal:
        return state, Refused(*refusal.args)


class _Refusal(Exception):
    """Leaves a handler early; never leaves this module."""


def _refuse(error: type[errors.StorageError], reason: str) -> None:
    raise _Refusal(error, reason)


# --- the store ------------------------------------------------------------------------------------------------------


def _init(state: StoreState, place: Place, time_ns: int, command: Init) -> tuple[StoreState, Result]:
    if state.store_id:
        _refuse(errors.AlreadyExistsError, "the store has been initialised")
    made = StoreState(
        store_id=command.store_id,
        created_ns=time_ns,
        settings=command.settings,
        voters=command.voters,
        lock_domain=command.lock_domain,
        host=command.host,
    )
    return made, Done()


def _noop(state: StoreState, place: Place, time_ns: int, command: NoOp) -> tuple[StoreState, Result]:
    return state, Done()


def _take_over(state: StoreState, place: Place, time_ns: int, command: TakeOver) -> tuple[StoreState, Result]:
    event = Event("took_over", before=state.host, after=command.host)
    taken = replace(state, lock_domain=command.lock_domain, host=command.host)
    return _with_events(taken, (event,), time_ns), Done()


def _adopt(state: StoreState, place: Place, time_ns: int, command: Adopt) -> tuple[StoreState, Result]:
    if state.store_id:
        _refuse(errors.AlreadyExistsError, "the store has been initialised")
    return decode_state(command.state), Done()


def _change_volumes(state: StoreState, place: Place, time_ns: int, command: ChangeVolumes) -> tuple[StoreState, Result]:
    before, after = _voting(state.voters), _voting(command.voters)
    if len({one.volume_id for one in command.voters}) < len(command.voters):
        _refuse(errors.RequirementError, "a volume stands twice in the list of volumes")
    if len(before ^ after) > 1:
        _refuse(errors.RequirementError, f"the voters change by one at a time, not from {len(before)} to {len(after)}")
    if not after:
        _refuse(errors.RequirementError, "a store has at least one voter")
    if len(after) % 2 == 0 and command.change is None:
        _refuse(errors.RequirementError, f"{len(after)} voters: a store has an odd number of them")
    kept = {one.volume_id for one in command.voters}
    for stream in state.streams.values():
        if not kept.issuperset(stream.placement):
            _refuse(errors.RequirementError, f"stream {stream.name!r} keeps blocks on a volume that would be removed")
    changed = replace(state, voters=command.voters, volume_change=command.change)
    instances = {one.volume_id: one.instance_id for one in state.voters}
    for voter in command.voters:
        if instances.get(voter.volume_id, voter.instance_id) != voter.instance_id:
            # What another instance took proves nothing: its blocks count again as each is found whole.
            for stream in list(changed.streams.values()):
                if voter.volume_id in stream.placement:
                    changed = changed.with_stream(_without_holder(stream, voter.volume_id))
    return _with_events(changed, command.events, time_ns), Done()


def _without_holder(stream: StreamState, volume_id: bytes) -> StreamState:
    rows = stream.blocks.rows.copy()
    rows["holders"] &= ~(np.uint32(1) << np.uint32(stream.placement.index(volume_id)))
    return replace(stream, blocks=Table.of(rows))


def _voting(voters: tuple[Voter, ...]) -> set[bytes]:
    return {one.volume_id for one in voters if not one.learner}


def _record_events(state: StoreState, place: Place, time_ns: int, command: RecordEvents) -> tuple[StoreState, Result]:
    return _with_events(state, command.events, time_ns), Done()


def _with_events(state: StoreState, events: tuple[Event, ...], time_ns: int) -> StoreState:
    timed = tuple(msgspec.structs.replace(one, time_ns=one.time_ns or time_ns) for one in events)
    return replace(state, events=(*state.events, *timed)[-EVENT_COUNT_MAX:]) if timed else state


# --- streams --------------------------------------------------------------------------------------------------------


def _add_stream(state: StoreState, place: Place, time_ns: int, command: AddStream) -> tuple[StoreState, Result]:
    _check_name_is_free(state, command.config.name)
    stream = StreamState(command.config, command.incarnation, time_ns, command.placement)
    return state.with_stream(stream), Done()


def _check_name_is_free(state: StoreState, name: str) -> None:
    there = state.streams.get(name.casefold())
    if there is not None:
        how = "exists" if there.name == name else f"differs from stream {there.name!r} only in case"
        _refuse(errors.AlreadyExistsError, f"stream {name!r} {how}")


def _edit_stream(state: StoreState, place: Place, time_ns: int, command: EditStream) -> tuple[StoreState, Result]:
    stream = _live(state, command.incarnation)
    old, new = stream.config, command.config
    if new.name != old.name:
        _refuse(errors.RequirementError, f"stream {old.name!r}: a stream cannot be renamed to {new.name!r}")
    if new.num_replicas != old.num_replicas:
        reason = f"num_replicas is {old.num_replicas} and cannot be changed to {new.num_replicas}"
        _refuse(errors.RequirementError, f"stream {old.name!r}: {reason}")
    for flag in ("sealed", "deny_delete", "deny_purge"):
        if getattr(old, flag) and not getattr(new, flag):
            _refuse(errors.RequirementError, f"stream {old.name!r}: {flag} cannot be taken back")
    return state.with_stream(replace(stream, config=new)), Done()


def _delete_stream(state: StoreState, place: Place, time_ns: int, command: DeleteStream) -> tuple[StoreState, Result]:
    stream = _live(state, command.incarnation)
    streams = {key: one for key, one in state.streams.items() if one.incarnation != command.incarnation}
    graveyard = _buried(state.graveyard, stream, stream.blocks.rows, time_ns)
    # The directory outlives its blocks: a row with no block id asks upkeep to remove it at the end.
    directory = np.zeros(len(stream.incarnations), GRAVE_DTYPE)
    directory["incarnation"], directory["dropped_ns"] = ids(stream.incarnations), time_ns
    return replace(state, streams=streams, graveyard=graveyard.append(directory)), Done()


def _prepare_streams(
    state: StoreState, place: Place, time_ns: int, command: PrepareStreams
) -> tuple[StoreState, Result]:
    if any(state.by_incarnation(one) is not None for one in command.incarnations):
        _refuse(errors.AlreadyExistsError, "a stream is prepared under an incarnation that there is")
    graves = np.zeros(len(command.incarnations), GRAVE_DTYPE)
    graves["incarnation"], graves["dropped_ns"] = ids(command.incarnations), command.until_ns
    return replace(state, graveyard=state.graveyard.append(graves)), Done()


def _restore_streams(
    state: StoreState, place: Place, time_ns: int, command: RestoreStreams
) -> tuple[StoreState, Result]:
    for encoded in command.streams:
        stream = decode_stream(encoded)
        _check_name_is_free(state, stream.name)
        if state.by_incarnation(stream.incarnation) is not None:
            _refuse(errors.AlreadyExistsError, f"stream {stream.name!r}: its incarnation is another stream's")
        if not stream.placement or any(state.voter(one) is None for one in stream.placement):
            _refuse(errors.RequirementError, f"stream {stream.name!r}: its placement names volumes that there are not")
        graves = state.graveyard.rows
        prepared = (graves["incarnation"] == np.void(stream.incarnation)) & (graves["block_id"] == np.void(bytes(16)))
        if not prepared.any():
            _refuse(errors.RequirementError, f"stream {stream.name!r}: its blocks were buried before it was restored")
        histories = ((place.history, 1),) if stream.next_sequence > 1 else ()
        stream = restored(replace(stream, created_ns=time_ns, histories=histories))
        state = replace(state, graveyard=state.graveyard.keep(~prepared)).with_stream(stream)
    return _with_events(state, command.events, time_ns), Done()


def _change_placement(
    state: StoreState, place: Place, time_ns: int, command: ChangePlacement
) -> tuple[StoreState, Result]:
    stream = _live(state, command.incarnation)
    if not command.placement:
        _refuse(errors.RequirementError, f"stream {stream.name!r}: its blocks are kept on at least one volume")
    unknown = [one.hex() for one in command.placement if state.voter(one) is None]
    if unknown or len(set(command.placement)) != len(command.placement):
        _refuse(errors.RequirementError, f"stream {stream.name!r}: {unknown or 'a volume given twice'} is no placement")
    # Bit i of a row's holders speaks of volume i of the placement: it moves with the volume.
    rows = stream.blocks.rows.copy()
    holders = np.zeros(len(rows), rows["holders"].dtype)
    for position, volume_id in enumerate(command.placement):
        if volume_id in stream.placement:
            held = (rows["holders"] >> np.uint32(stream.placement.index(volume_id))) & np.uint32(1)
            holders |= held << np.uint32(position)
    rows["holders"] = holders
    config = msgspec.structs.replace(stream.config, num_replicas=len(command.placement))
    stream = replace(stream, placement=command.placement, config=config, blocks=Table.of(rows))
    return _with_events(state.with_stream(stream), command.events, time_ns), Done()


def _record_holders(state: StoreState, place: Place, time_ns: int, command: RecordHolders) -> tuple[StoreState, Result]:
    stream = _live(state, command.incarnation)
    if command.volume_id not in stream.placement:
        reason = f"stream {stream.name!r} keeps no blocks on volume {command.volume_id.hex()}"
        _refuse(errors.RequirementError, reason)
    rows = stream.blocks.rows.copy()
    held = np.isin(rows["block_id"], np.frombuffer(command.blocks, "V16"))
    rows["holders"][held] |= np.uint32(1) << np.uint32(stream.placement.index(command.volume_id))
    stream = replace(stream, blocks=Table.of(rows))
    return _with_events(state.with_stream(stream), command.events, time_ns), Done()


def _live(state: StoreState, incarnation: bytes) -> StreamState:
    stream = state.by_incarnation(incarnation)
    if stream is None:
        _refuse(errors.StaleIncarnationError, "the stream was deleted, or deleted and made again, in the meantime")
    assert stream is not None
    return stream


def _buried(graveyard: Table, stream: StreamState, blocks: np.ndarray, time_ns: int) -> Table:
    graves = np.zeros(len(blocks), GRAVE_DTYPE)
    graves["incarnation"] = np.void(stream.incarnation)
    for incarnation, end in reversed(stream.origins):
        graves["incarnation"][blocks["first"] < end] = np.void(incarnation)
    graves["block_id"], graves["dropped_ns"] = blocks["block_id"], time_ns
    return graveyard.append(graves)


# --- messages -------------------------------------------------------------------------------------------------------


def _append(state: StoreState, place: Place, time_ns: int, command: Append) -> tuple[StoreState, Result]:
    targets = [_live(state, part.incarnation) for part in command.streams]
    already = _stored_before(targets, command)
    if already is not None:
        return state, AppendDone(already, True)
    _check_transaction(state, command.transaction)
    appended = {}
    for stream, part in zip(targets, command.streams, strict=True):
        if stream.config.sealed:
            _refuse(errors.RequirementError, f"stream {stream.name!r} is sealed")
        if part.overwrite:
            if stream.config.deny_purge:
                _refuse(errors.RequirementError, f"stream {stream.name!r} denies purge, and so overwrite")
            end = stream.next_sequence
            state, stream = _drop_below(state, stream, end, time_ns, stream.message_count, stream.data_size)
            stream = replace(stream, overwritten_ns=time_ns)
        stream, result = _with_blocks(stream, part, place, time_ns)
        if command.writer:
            writer = _with_batch(stream.writers.get(command.writer), command, result)
            stream = replace(stream, writers={**stream.writers, command.writer: writer})
        state = state.with_stream(stream)
        appended[stream.name] = result
    return _decided(state, place, command.transaction, COMMITTED), AppendDone(appended, False)


def _stored_before(targets: list[StreamState], command: Append) -> dict[str, BatchResult] | None:
    """Return what this (writer, batch) got before, None if it is new; refuses fenced runs and foreign queries."""
    if not command.writer:
        return None
    found = {}
    for stream in targets:
        writer = stream.writers.get(command.writer)
        if writer is None:
            continue
        if writer.query != command.query:
            theirs, ours = writer.query or "a batch job", command.query or "a batch job"
            _refuse(
                errors.RequirementError,
                f"writer {command.writer!r} of stream {stream.name!r} belongs to {theirs}, this is {ours}; "
                "a new checkpoint starts a new query, whose batch numbers begin again: give it another writerId",
            )
        result = writer.find(command.batch)
        if result is not None:
            found[stream.name] = result
    unknown = [stream.name for stream in targets if stream.name not in found]
    if found and unknown:
        _refuse(
            errors.RequirementError,
            f"batch {command.batch!r} of writer {command.writer!r} was stored before, without stream {unknown[0]!r}: "
            "the same batch must hold the same messages; give other messages another batch",
        )
    if found:
        return found
    for stream in targets:
        writer = stream.writers.get(command.writer)
        if writer is not None and command.run in writer.superseded:
            _refuse(
                errors.FencedError,
                f"run {command.run} of writer {command.writer!r} was superseded by run {writer.run} "
                f"in stream {stream.name!r}",
            )
    return None


def _check_transaction(state: StoreState, transaction: bytes) -> None:
    outcome = state.outcome(transaction)
    if outcome == ABORTED:
        _refuse(errors.TransactionAbortedError, f"transaction {transaction.hex()} was aborted")
    if outcome == COMMITTED:
        _refuse(errors.AlreadyExistsError, f"transaction {transaction.hex()} was committed before")
    if int.from_bytes(transaction[:8], "big") < state.transaction_floor_ns:
        reason = f"transaction {transaction.hex()} is older than the store remembers; start a new one"
        _refuse(errors.TransactionAbortedError, reason)


def _with_blocks(
    stream: StreamState, part: AppendedBlocks, place: Place, time_ns: int
) -> tuple[StreamState, BatchResult]:
    """Return the stream with the blocks at its end, and the range they got."""
    first = stream.next_sequence
    rows = np.frombuffer(part.rows, BLOCK_DTYPE).copy()
    rows["first"] += first
    rows["committed_ns"] = time_ns
    end = int(rows["first"][-1] + rows["span"][-1]) if len(rows) else first
    sets, remap = subject_sets.merged(stream.subject_sets, part.subject_sets)
    rows["subject_set"] = remap[np.frombuffer(part.subject_set_of, "<i4")]
    removed = stream.removed
    if part.duplicates:
        relative = SequenceSet.decode(part.duplicates)
        removed = removed.union(SequenceSet(relative.starts + first, relative.ends + first))
    histories = stream.histories
    if end > first and (not histories or histories[-1][0] != place.history):
        histories = (*histories, (place.history, first))
    grown = replace(
        stream,
        next_sequence=end,
        blocks=stream.blocks.append(rows),
        removed=removed,
        message_count=stream.message_count + int(rows["row_count"].sum()) - part.duplicate_count,
        data_size=stream.data_size + int(rows["data_size"].sum()) - part.duplicate_size,
        histories=histories,
        subject_sets=sets,
    )
    return grown, BatchResult(first, end, part.duplicate_count)


def _with_batch(writer: WriterState | None, command: Append, result: BatchResult) -> WriterState:
    """Return the writer's record with this batch; an unseen run id supersedes the one before."""
    if writer is None:
        writer = WriterState(command.query, command.run, (), {})
    superseded = writer.superseded
    if command.run != writer.run:
        superseded = (*superseded, writer.run)[-SUPERSEDED_RUNS_KEPT:]
    batches = {**writer.batches, command.batch: result}
    last_batch = writer.last_batch
    if command.query and command.batch.isdigit():
        last_batch = max(last_batch, int(command.batch))
        for oldest in list(batches)[:-STREAMING_BATCHES_KEPT]:
            del batches[oldest]
    return WriterState(command.query, command.run, superseded, batches, last_batch)


def _decided(state: StoreState, place: Place, transaction: bytes, outcome: int) -> StoreState:
    row = np.zeros(1, TRANSACTION_DTYPE)
    row["id"], row["outcome"], row["index"] = np.void(transaction), outcome, place.index
    return replace(state, transactions=state.transactions.append(row))


def _abort(state: StoreState, place: Place, time_ns: int, command: Abort) -> tuple[StoreState, Result]:
    outcome = state.outcome(command.transaction)
    if outcome == COMMITTED:
        _refuse(errors.RequirementError, f"transaction {command.transaction.hex()} is committed and stays")
    if outcome == ABORTED:
        return state, Done()
    return _decided(state, place, command.transaction, ABORTED), Done()


def _remove(state: StoreState, place: Place, time_ns: int, command: Remove) -> tuple[StoreState, Result]:
    stream = _live(state, command.incarnation)
    denied = "deny_delete" if command.reason == "delete" else "deny_purge"
    if stream.config.sealed or getattr(stream.config, denied):
        why = "is sealed" if stream.config.sealed else f"has {denied} set"
        _refuse(errors.RequirementError, f"stream {stream.name!r} {why}: nothing may be removed from it")
    chosen = SequenceSet.decode(command.sequences).clip(stream.floor, stream.next_sequence)
    gone = chosen.difference(stream.removed)
    floor = min(max(command.floor, stream.floor), stream.next_sequence)
    stream = replace(stream, removed=stream.removed.union(gone))
    below = len(SequenceSet.from_ranges([(stream.floor, floor)]).difference(stream.removed))
    count = len(gone) + below
    state, stream = _drop_below(state, stream, floor, time_ns, count, command.data_size)
    return state.with_stream(stream), RemoveDone(count)


def _drop_below(
    state: StoreState, stream: StreamState, floor: int, time_ns: int, message_count: int, data_size: int
) -> tuple[StoreState, StreamState]:
    """Raise the floor, bury blocks with nothing left to show, and take the counts down."""
    removed = stream.removed.clip(floor, stream.next_sequence)
    rows = stream.blocks.rows
    ends = rows["first"] + rows["span"]
    blocks, dead_head = stream.blocks, int(np.searchsorted(ends, floor, side="right"))
    graveyard = state.graveyard
    if dead_head:
        graveyard = _buried(graveyard, stream, rows[:dead_head], time_ns)
        blocks = blocks.drop_head(dead_head)
    if removed:
        rows = blocks.rows
        first_left = np.maximum(rows["first"], floor)  # removed sequences below the floor are not remembered
        run = np.searchsorted(removed.starts, first_left, side="right") - 1
        empty = (run >= 0) & (removed.ends[np.maximum(run, 0)] >= rows["first"] + rows["span"])
        if empty.any():
            graveyard = _buried(graveyard, stream, rows[empty], time_ns)
            blocks = blocks.keep(~empty)
    stream = replace(
        stream,
        floor=floor,
        blocks=blocks,
        removed=removed,
        lost=stream.lost.clip(floor, stream.next_sequence),
        message_count=stream.message_count - message_count,
        data_size=max(0, stream.data_size - data_size),
    )
    return replace(state, graveyard=graveyard), stream


def _declare_lost(state: StoreState, place: Place, time_ns: int, command: DeclareLost) -> tuple[StoreState, Result]:
    stream = _live(state, command.incarnation)
    gone = SequenceSet.decode(command.sequences).clip(stream.floor, stream.next_sequence).difference(stream.removed)
    if not gone:
        return state, RemoveDone(0)
    count = len(gone)
    stream = replace(stream, removed=stream.removed.union(gone), lost=stream.lost.union(gone))
    state, stream = _drop_below(state, stream, stream.floor, time_ns, count, command.data_size)
    ranges = ", ".join(f"{first} to {end - 1}" for first, end in gone.ranges_head(5))
    event = Event("lost", stream.name, after=f"{count} messages: {ranges}", reason=command.reason)
    return _with_events(state.with_stream(stream), (event,), time_ns), RemoveDone(count)


# --- consumers ------------------------------------------------------------------------------------------------------


def _consumer(state: StoreState, place: Place, time_ns: int, command: ConsumerCommand) -> tuple[StoreState, Result]:
    stream = _live(state, command.incarnation)
    try:
        stream, events, count = apply_to(stream, time_ns, command)
    except errors.StorageError as error:
        return state, Refused(type(error), str(error))
    return _with_events(state.with_stream(stream), events, time_ns), ConsumerDone(count)


def _advance(state: StoreState, place: Place, time_ns: int, command: AdvanceConsumers) -> tuple[StoreState, Result]:
    moved = state
    for one in command.advances:
        try:
            moved = moved.with_stream(advanced(_live(moved, one.incarnation), one))
        except errors.StorageError as error:
            return state, Refused(type(error), str(error))
    return moved, Done()


# --- upkeep ---------------------------------------------------------------------------------------------------------


def _merge_blocks(state: StoreState, place: Place, time_ns: int, command: MergeBlocks) -> tuple[StoreState, Result]:
    before = _live(state, command.incarnation)
    _check_transaction(state, command.transaction)
    try:
        stream, gone = merged(before, time_ns, command)
    except errors.StorageError as error:
        return state, Refused(type(error), str(error))
    state = replace(state.with_stream(stream), replaced=_buried(state.replaced, before, gone, time_ns))
    return _decided(state, place, command.transaction, COMMITTED), Done()


def _bury(state: StoreState, place: Place, time_ns: int, command: Bury) -> tuple[StoreState, Result]:
    gone = np.frombuffer(b"".join(command.blocks), "V32")
    graveyard, replaced = (one.keep(~np.isin(_pairs(one.rows), gone)) for one in (state.graveyard, state.replaced))
    return replace(state, graveyard=graveyard, replaced=replaced), Done()


def _pairs(graves: np.ndarray) -> np.ndarray:
    """Return (incarnation, block id) of each grave as one 32-byte key."""
    packed = np.empty(len(graves), np.dtype([("incarnation", "V16"), ("block_id", "V16")]))
    packed["incarnation"], packed["block_id"] = graves["incarnation"], graves["block_id"]
    return packed.view("V32")


def _forget_transactions(
    state: StoreState, place: Place, time_ns: int, command: ForgetTransactions
) -> tuple[StoreState, Result]:
    rows = state.transactions.rows
    ids = np.frombuffer(np.ascontiguousarray(rows["id"]).tobytes(), ">u8").reshape(-1, 2)[:, 0]
    kept = state.transactions.keep(ids >= command.before_ns)
    floor = max(state.transaction_floor_ns, command.before_ns)
    return replace(state, transactions=kept, transaction_floor_ns=floor), Done()


_HANDLERS: dict[type, Callable[[StoreState, Place, int, Any], tuple[StoreState, Result]]] = {
    Init: _init,
    Adopt: _adopt,
    ChangeVolumes: _change_volumes,
    RecordEvents: _record_events,
    RecordHolders: _record_holders,
    MergeBlocks: _merge_blocks,
    ChangePlacement: _change_placement,
    DeclareLost: _declare_lost,
    NoOp: _noop,
    TakeOver: _take_over,
    AddStream: _add_stream,
    EditStream: _edit_stream,
    DeleteStream: _delete_stream,
    PrepareStreams: _prepare_streams,
    RestoreStreams: _restore_streams,
    Append: _append,
    Abort: _abort,
    Remove: _remove,
    Bury: _bury,
    ForgetTransactions: _forget_transactions,
    AddConsumer: _consumer,
    DeleteConsumer: _consumer,
    PauseConsumer: _consumer,
    Deliver: _consumer,
    Acknowledge: _consumer,
    MoveConsumer: _consumer,
    TellConsumer: _consumer,
    TakeConsumer: _consumer,
    AdvanceConsumers: _advance,
}
