"""Commands that bring blocks: appends and merges, each a transaction with one outcome."""

import numpy as np

from storage_core import errors
from storage_core.frozen import replace
from storage_core.metadata import subject_sets
from storage_core.metadata.commands import Abort, Append, AppendedBlocks, Event, MergeBlocks
from storage_core.metadata.config import NEW
from storage_core.metadata.manifest import EXPIRY_DTYPE, decode_blocks, equals_any
from storage_core.metadata.merging import apply_to as merged
from storage_core.metadata.removals import REASONS, drop_below
from storage_core.metadata.results import AppendDone, Done, Place, Refused, Result, refuse, refuse_with
from storage_core.metadata.shared_map import SharedMap
from storage_core.metadata.skipped import taken_away
from storage_core.metadata.state import (
    ABORTED,
    COMMITTED,
    TRANSACTION_DTYPE,
    BatchResult,
    StoreState,
    StreamState,
    WriterState,
    batch_number,
)
from storage_core.metadata.store_changes import with_events
from storage_core.metadata.stream_changes import add_pending_deletes, live
from storage_core.sequences import SEQUENCE_MAX, SequenceSet

SUPERSEDED_RUNS_KEPT = 64
NO_MESSAGES = bytes(16)  # the content of a batch without any
STORE = "the store"
MIRROR = "jstream.mirror"  # in the metadata of a stream: which stream of running servers it mirrors
MIRROR_WRITER = "jstream mirror"
REPLACED, REPLACED_AGAIN, OF_QUERY = "replaced", "replaced_again", "query "  # events of overwrites, and who made them


def append(state: StoreState, place: Place, time_ns: int, command: Append) -> tuple[StoreState, Result]:
    targets = [live(state, part.incarnation) for part in command.streams]
    already = _stored_before(state, targets, command)
    if already is not None:
        return _superseding(state, targets, command), AppendDone(already, True)
    check_transaction(state, command.transaction)
    appended = {}
    for stream, part in zip(targets, command.streams, strict=True):
        if stream.config.sealed:
            refuse(errors.RequirementError, f"stream {stream.name!r} is sealed")
        source = stream.config.metadata.get(MIRROR)
        if source is not None and command.writer != MIRROR_WRITER:
            reason = (
                f"stream {stream.name!r} mirrors stream {source!r} of running servers: only `jstream mirror` writes it"
            )
            refuse(errors.RequirementError, reason)
        expected, last = part.expected_last_sequence, stream.next_sequence - 1
        if expected not in (-1, last):
            refuse_with(errors.ConditionFailedError(stream.name, "last_sequence", expected, last))
        if part.overwrite:
            if stream.config.deny_purge:
                refuse(errors.RequirementError, f"stream {stream.name!r} denies purge, and so overwrite")
            end = stream.next_sequence
            overwritten = stream.shown()
            state = _with_replacement(state, stream, overwritten, command, time_ns)
            stream, events = taken_away(stream, overwritten, time_ns, "overwritten")
            state = with_events(state, events, time_ns)
            state, stream = drop_below(state, stream, end, time_ns, overwritten, stream.data_size)
            state = _without_msg_ids(state, stream)
        present = stream
        stream, dead, result = _with_blocks(stream, part, place, time_ns)
        if part.superseded:
            state, stream = _without_superseded(state, stream, part, time_ns)
        _check_limits(present, stream)
        if len(dead):
            state = replace(state, pending_deletes=add_pending_deletes(state.pending_deletes, stream, dead, time_ns))
        if command.writer:
            result = BatchResult(result.first, result.end, result.duplicate_count, command.content)
            writer = _with_batch(stream.writers.get(command.writer), command, result, stream.first_sequence)
            stream = replace(stream, writers={**stream.writers, command.writer: writer})
        state = state.with_stream(stream)
        appended[stream.name] = result
    if command.is_routed:
        stored = BatchResult(place.index, place.index, 0, command.content)  # by the index the oldest are known
        writer = _with_batch(state.writers.get(command.writer), command, stored, SEQUENCE_MAX)
        state = replace(state, writers={**state.writers, command.writer: writer})
    return decided(state, place, command.transaction, COMMITTED), AppendDone(appended, False)


def _with_replacement(
    state: StoreState, stream: StreamState, overwritten: SequenceSet, command: Append, time_ns: int
) -> StoreState:
    """Return the state with an event that says who has replaced which messages of a stream.

    A query that replaces its former result does so with each batch: these are counted.
    """
    if not overwritten:
        return state
    first, end = overwritten.bounds
    if command.query:
        who = f"{OF_QUERY}{command.query}"
    else:
        who = f"writer {command.writer}" if command.writer else "a batch write"
    writer = stream.writers.get(command.writer)
    results = writer.batches.values() if writer is not None else ()
    if any(result.first <= first and end <= result.end for result in results):
        event = Event(REPLACED_AGAIN, stream.name, before="its own result", after=who, count=1)
    else:
        before = f"{len(overwritten)} messages, sequences {first} to {end - 1}"
        event = Event(REPLACED, stream.name, before=before, after=who)
    return with_events(state, (event,), time_ns)


def replacing_queries(state: StoreState) -> dict[str, str]:
    """Return, for each stream whose messages a query was the last to replace, the query's id."""
    replaced = {event.stream: event.after for event in state.events if event.kind in (REPLACED, REPLACED_AGAIN)}
    return {name: who.removeprefix(OF_QUERY) for name, who in replaced.items() if who.startswith(OF_QUERY)}


def _without_superseded(
    state: StoreState, stream: StreamState, part: AppendedBlocks, time_ns: int
) -> tuple[StoreState, StreamState]:
    """Return both without what the limits of subjects take; consumers that had not acknowledged it have missed it."""
    superseded = SequenceSet.decode(part.superseded).clip(stream.low_watermark, stream.next_sequence)
    newly_removed = stream.removed.absent_among(superseded)
    _, why = REASONS["limits"]
    stream, events = taken_away(stream, newly_removed, time_ns, why)
    stream = replace(stream, removed=stream.removed.union(newly_removed))
    state = with_events(state, events, time_ns)
    return drop_below(state, stream, stream.low_watermark, time_ns, newly_removed, part.superseded_size)


def _check_limits(before: StreamState, after: StreamState) -> None:
    """Refuse what a stream that keeps its old messages has no room for; others make room in a command of its own."""
    config = after.config
    if config.discard != NEW:
        return
    for limit, present, now in (
        ("max_msgs", before.message_count, after.message_count),
        ("max_bytes", before.data_size, after.data_size),
    ):
        value = getattr(config, limit)
        if 0 <= value < now and now > present:
            refuse_with(errors.LimitExceededError(after.name, limit, value, present, now - present))


def _without_msg_ids(state: StoreState, stream: StreamState) -> StoreState:
    """Return the state after an overwrite of the stream: the msg_ids of everything before count no more."""
    deletes = state.pending_deletes.rows
    overwritten = equals_any(deletes["incarnation"], stream.incarnations)
    if not overwritten.any():
        return state
    return replace(
        state,
        pending_deletes=state.pending_deletes.keep(~overwritten),
        replaced=state.replaced.append(deletes[overwritten]),
    )


def _stored_before(state: StoreState, targets: list[StreamState], command: Append) -> dict[str, BatchResult] | None:
    """Return what this (writer, batch) got before, None if it is new.

    Refuses fenced runs, foreign queries, and other content under the number of a batch that is stored.
    """
    if not command.writer:
        return None
    is_stored = False
    if command.is_routed:
        result = _known_batch(STORE, state.writers.get(command.writer), command)
        is_stored = result is not None
    known = {}
    for stream in targets:
        result = _known_batch(f"stream {stream.name!r}", stream.writers.get(command.writer), command)
        if result is not None:
            known[stream.name] = result
    unknown = [stream.name for stream in targets if stream.name not in known]
    if (known or is_stored) and unknown and not (command.any_content and not known):
        refuse(
            errors.RequirementError,
            f"batch {command.batch!r} of writer {command.writer!r} was stored before, without stream {unknown[0]!r}: "
            "the same batch must hold the same messages; give other messages another batch",
        )
    if known or is_stored:
        return known
    if command.is_routed:
        _check_run(STORE, state.writers.get(command.writer), command)
    for stream in targets:
        _check_run(f"stream {stream.name!r}", stream.writers.get(command.writer), command)
    return None


def _known_batch(where: str, writer: WriterState | None, command: Append) -> BatchResult | None:
    """Return what the batch got there before; refuses a foreign query, and other content."""
    if writer is None:
        return None
    if writer.query != command.query:
        theirs, ours = writer.query or "a batch job", command.query or "a batch job"
        refuse(
            errors.RequirementError,
            f"writer {command.writer!r} of {where} belongs to {theirs}, this is {ours}; "
            "a new checkpoint starts a new query, whose batch numbers begin again: give it another writerId",
        )
    result = writer.find(command.batch)
    if result is not None:
        _check_content(where, writer, result, command)
    return result


def _check_run(where: str, writer: WriterState | None, command: Append) -> None:
    if writer is not None and command.run in writer.superseded:
        refuse(
            errors.FencedError,
            f"run {command.run} of writer {command.writer!r} was superseded by run {writer.run} in {where}",
        )


def _check_content(where: str, writer: WriterState, result: BatchResult, command: Append) -> None:
    """Refuse a batch that holds something else than what is stored under its number."""
    if result.content == command.content or command.content == NO_MESSAGES and not result.content:
        return
    later = bool(writer.query) and 0 <= batch_number(command.batch) < writer.last_batch
    if command.any_content and not later:
        return
    if result.content:
        stored = f"{_count(result.content)} messages"
        if where != STORE:
            stored += f", of which this stream has [{result.first}, {result.end})"
    else:
        stored = "messages that are not remembered any more"
    after = f"; batches up to {writer.last_batch} came after it" if later else ""
    refuse(
        errors.FencedError,
        f"batch {command.batch!r} of writer {command.writer!r} is in {where} with other content: stored are "
        f"{stored}, this time it has {_count(command.content)}{after}",
    )


def _count(content: bytes) -> int:
    return int.from_bytes(content[:8], "little")


def _superseding(state: StoreState, targets: list[StreamState], command: Append) -> StoreState:
    """Return the state in which the run of this command, which goes on from here, fences the one before it."""
    for stream in targets:
        writer = stream.writers.get(command.writer)
        if writer is not None and _supersedes(command, writer):
            writer = _of_run(writer, command.run)
            state = state.with_stream(replace(stream, writers={**stream.writers, command.writer: writer}))
    writer = state.writers.get(command.writer) if command.is_routed else None
    if writer is not None and _supersedes(command, writer):
        state = replace(state, writers={**state.writers, command.writer: _of_run(writer, command.run)})
    return state


def _supersedes(command: Append, writer: WriterState) -> bool:
    return command.run != writer.run and command.run not in writer.superseded


def _of_run(writer: WriterState, run: str) -> WriterState:
    """Return the writer's record, now of this run; if that was not the run before, the other one is superseded."""
    if run == writer.run:
        return writer
    superseded = (*writer.superseded, writer.run)[-SUPERSEDED_RUNS_KEPT:]
    return replace(writer, run=run, superseded=superseded)


def check_transaction(state: StoreState, transaction: bytes) -> None:
    outcome = state.outcome(transaction)
    if outcome == ABORTED:
        refuse(errors.TransactionAbortedError, f"transaction {transaction.hex()} was aborted")
    if outcome == COMMITTED:
        refuse(errors.AlreadyExistsError, f"transaction {transaction.hex()} was committed before")
    if int.from_bytes(transaction[:8], "big") < state.transaction_floor_ns:
        reason = f"transaction {transaction.hex()} is older than the store remembers; start a new one"
        refuse(errors.TransactionAbortedError, reason)


def _with_blocks(
    stream: StreamState, part: AppendedBlocks, place: Place, time_ns: int
) -> tuple[StreamState, np.ndarray, BatchResult]:
    """Return the stream with the blocks at its end, the rows of those of which all are duplicates, and the range."""
    first = stream.next_sequence
    rows = decode_blocks(part.rows, "rows").copy()
    rows["first"] += first
    rows["committed_ns"] = time_ns
    end = int(rows["first"][-1] + rows["span"][-1]) if len(rows) else first
    sets, remap = subject_sets.merged(stream.subject_sets, part.subject_sets)
    rows["subject_set"] = remap[np.frombuffer(part.subject_set_of, "<i4")]
    removed, kept, dead = stream.removed, rows, rows[:0]
    if part.duplicates:
        relative = SequenceSet.decode(part.duplicates)
        duplicates = SequenceSet(relative.starts + first, relative.ends + first)
        run = np.searchsorted(duplicates.starts, rows["first"], side="right") - 1
        is_dead = (run >= 0) & (duplicates.ends[np.maximum(run, 0)] >= rows["first"] + rows["span"])
        removed, kept, dead = removed.union(duplicates), rows[~is_dead], rows[is_dead]
    histories = stream.histories
    if end > first and (not histories or histories[-1][0] != place.history):
        histories = (*histories, (place.history, first))
    expiries = stream.expiries
    if part.expires:
        due = np.zeros(len(rows), EXPIRY_DTYPE)
        due["first"], due["due_ns"] = rows["first"], np.frombuffer(part.expires, "<i8")
        due = due[np.isin(due["first"], kept["first"])]
        expiries = expiries.append(due[due["due_ns"] > 0])
    grown = replace(
        stream,
        expiries=expiries,
        next_sequence=end,
        blocks=stream.blocks.append(kept),
        removed=removed,
        message_count=stream.message_count + int(rows["row_count"].sum()) - part.duplicate_count,
        data_size=stream.data_size + int(rows["data_size"].sum()) - part.duplicate_size,
        duplicate_count=stream.duplicate_count + part.duplicate_count,
        histories=histories,
        subject_sets=sets,
    )
    return grown, dead, BatchResult(first, end, part.duplicate_count)


def _with_batch(writer: WriterState | None, command: Append, result: BatchResult, first_sequence: int) -> WriterState:
    """Return the writer's record with this batch; an unseen run id supersedes the one before."""
    writer = writer or WriterState(command.query, command.run, (), SharedMap())
    return _of_run(writer, command.run).with_batch(command.batch, result, first_sequence)


def decided(state: StoreState, place: Place, transaction: bytes, outcome: int) -> StoreState:
    row = np.zeros(1, TRANSACTION_DTYPE)
    row["id"], row["outcome"], row["index"] = np.void(transaction), outcome, place.index
    return replace(state, transactions=state.transactions.append(row))


def abort(state: StoreState, place: Place, time_ns: int, command: Abort) -> tuple[StoreState, Result]:
    outcome = state.outcome(command.transaction)
    if outcome == COMMITTED:
        refuse(errors.RequirementError, f"transaction {command.transaction.hex()} is committed and stays")
    if outcome == ABORTED:
        return state, Done()
    return decided(state, place, command.transaction, ABORTED), Done()


def merge_blocks(state: StoreState, place: Place, time_ns: int, command: MergeBlocks) -> tuple[StoreState, Result]:
    before = live(state, command.incarnation)
    check_transaction(state, command.transaction)
    try:
        stream, replaced = merged(before, time_ns, command)
    except errors.StorageError as error:
        return state, Refused(type(error), str(error))
    state = replace(state.with_stream(stream), replaced=add_pending_deletes(state.replaced, before, replaced, time_ns))
    return decided(state, place, command.transaction, COMMITTED), Done()
