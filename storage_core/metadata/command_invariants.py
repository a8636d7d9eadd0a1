"""What holds of every command, asked of each before it is applied: of one that is proposed, and of one that is read.

A checksum says that an entry is as it was written, and nothing about who wrote it. What a state does not allow (a
position that is out of range, a stream that is gone) the handlers refuse, since it may come from a caller. What no
program of ours can have written is corruption: ids of another size, rows that are none, numbers below zero or beyond
their columns, counts that contradict the rows. Both together keep the invariants of a state (invariants.py): after a
command that came through, they hold if they held before. Only ids of blocks are looked at when a log has been replayed,
all at once.

A program whose command is refused here stops before it has written anything.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from storage_core.block.format import ID_SIZE
from storage_core.chunked_set import ChunkedSet
from storage_core.metadata.commands import (
    Abort,
    Acknowledge,
    AddConsumer,
    AddStream,
    AdvanceConsumers,
    Append,
    AppendedBlocks,
    ChangePlacement,
    ChangeVolumes,
    DeclareLost,
    DeleteConsumer,
    DeleteStream,
    Deliver,
    EditStore,
    EditStream,
    Envelope,
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
    Unlinked,
)
from storage_core.metadata.consumers import ACK, NAK, TERM, WITHHOLD
from storage_core.metadata.invariants import (
    CONTENT_SIZES,
    NUMBER_MAX,
    REPLICA_COUNT_MAX,
    SIZE_MAX,
    STREAM_SEQUENCE_MAX,
    VOLUME_COUNT_MAX,
    check_blocks,
    check_config,
    check_consumer_config,
    check_distinct,
    check_equal,
    check_events,
    check_id,
    check_number,
    check_settings,
    check_subject_sets,
    check_volume_change,
    check_voters,
    check_within,
    refuse,
)
from storage_core.metadata.manifest import EXPIRY_DTYPE, Table, decode_blocks
from storage_core.metadata.removals import REASONS
from storage_core.metadata.state import StoreState, StreamState
from storage_core.sequences import SequenceSet

_KINDS = (ACK, NAK, TERM, WITHHOLD)  # of acknowledgements


def check_command(state: StoreState, envelope: Envelope) -> None:
    """Raise CorruptionError, saying what came and what was expected, for a command that no program of ours writes."""
    check_number("time_ns", envelope.time_ns, 0)
    command = envelope.command
    if (events := getattr(command, "events", None)) is not None:
        check_events("events", events)
    if (incarnation := getattr(command, "incarnation", None)) is not None:
        check_id("incarnation", incarnation)
    _CHECKS[type(command)](state, command)


def _nothing(state: StoreState, command: object) -> None:
    """Nothing in it but texts, and what every command has."""


# --- the store


def _init(state: StoreState, command: Init) -> None:
    check_id("the store's id", command.store_id)
    check_settings(command.settings)
    check_voters(command.voters)
    check_distinct("volumes", [voter.volume_id for voter in command.voters])


def _change_volumes(state: StoreState, command: ChangeVolumes) -> None:
    check_voters(command.voters)
    check_volume_change(command.change)


def _edit_store(state: StoreState, command: EditStore) -> None:
    check_settings(command.settings)


def _forget_transactions(state: StoreState, command: ForgetTransactions) -> None:
    check_number("before_ns", command.before_ns, 0)


# --- streams


def _add_stream(state: StoreState, command: AddStream) -> None:
    if state.by_incarnation(command.incarnation) is not None:
        refuse("incarnation of a new stream", "one that no stream has", command.incarnation.hex())
    check_config(command.config)
    _check_ids("placement", command.placement, VOLUME_COUNT_MAX)
    check_distinct("placement", command.placement)


def _edit_stream(state: StoreState, command: EditStream) -> None:
    check_config(command.config)


def _change_placement(state: StoreState, command: ChangePlacement) -> None:
    _check_ids("placement", command.placement, REPLICA_COUNT_MAX)


def _prepare_streams(state: StoreState, command: PrepareStreams) -> None:
    _check_ids("incarnations", command.incarnations)
    check_number("until_ns", command.until_ns, 0)


def _record_holders(state: StoreState, command: RecordHolders) -> None:
    check_id("volume", command.volume_id)
    _check_rows("blocks", command.blocks, ID_SIZE)


# --- blocks


def _append(state: StoreState, command: Append) -> None:
    check_id("transaction", command.transaction)
    if len(command.content) not in CONTENT_SIZES:
        refuse("content", f"{CONTENT_SIZES[-1]} bytes or none", f"{len(command.content)} bytes")
    if len(command.streams) != 1:
        check_distinct("streams of an append", [part.incarnation for part in command.streams])
    for part in command.streams:
        check_id("incarnation", part.incarnation)
        stream = state.by_incarnation(part.incarnation)
        if stream is not None:
            _check_appended(stream, part)


def _check_appended(stream: StreamState, part: AppendedBlocks) -> None:
    """What holds of the blocks of a stream holds of those that one append brings, from their first sequence on."""
    rows = decode_blocks(part.rows, "rows").copy()
    if part.expires:
        check_equal("bytes of expires", len(part.expires), 8 * len(rows))
    check_equal("bytes of subject_set_of", len(part.subject_set_of), 4 * len(rows))
    check_subject_sets(part.subject_sets, len(rows))
    duplicates = SequenceSet.decode(part.duplicates) if part.duplicates else SequenceSet.empty()
    first, span = stream.next_sequence, 0
    if len(rows):
        last = int(rows["first"][-1])
        check_number("first", last, 0, STREAM_SEQUENCE_MAX - first)
        check_number("span", int(rows["span"][-1]), 1, STREAM_SEQUENCE_MAX - first - last)
        span = last + int(rows["span"][-1])
    check_within("duplicates", duplicates, 0, span)
    rows["first"] += first
    rows["committed_ns"], rows["subject_set"] = 0, np.frombuffer(part.subject_set_of, "<i4")
    shown_count = span - len(duplicates)
    check_blocks(
        replace(
            stream,
            low_watermark=first,
            next_sequence=first + span,
            blocks=Table.of(rows),
            removed=ChunkedSet.of(SequenceSet(duplicates.starts + first, duplicates.ends + first)),
            message_count=shown_count,
            subject_sets=part.subject_sets,
        )
    )
    data_size = int(rows["data_size"].sum())  # rows that one payload has room for do not overflow
    check_equal("duplicate_count", part.duplicate_count, int(rows["row_count"].sum()) - shown_count)
    check_number("duplicate_size", part.duplicate_size, 0, data_size)
    check_number("data_size", data_size, 0, SIZE_MAX - stream.data_size)


def _abort(state: StoreState, command: Abort) -> None:
    check_id("transaction", command.transaction)


def _merge_blocks(state: StoreState, command: MergeBlocks) -> None:
    check_id("transaction", command.transaction)
    _check_rows("blocks", command.blocks, ID_SIZE)
    row = decode_blocks(command.row, "row").copy()
    check_equal("rows of row", len(row), 1)
    first, span = int(row["first"][0]), int(row["span"][0])
    check_number("first", first, 1, STREAM_SEQUENCE_MAX)
    check_number("span", span, 1, STREAM_SEQUENCE_MAX - first)
    dropped = SequenceSet.decode(command.dropped) if command.dropped else SequenceSet.empty()
    check_within("dropped", dropped, first, first + span)
    row["committed_ns"] = row["subject_set"] = 0
    stream = state.by_incarnation(command.incarnation)
    if stream is not None:  # what it may lack is compared with the blocks that it replaces
        removed = ChunkedSet.of(SequenceSet.from_ranges([(first, first + span)]))
        blocks = Table.of(row)
        check_blocks(replace(stream, low_watermark=first, next_sequence=first + span, blocks=blocks, removed=removed))
    if command.subjects is not None:
        check_subject_sets((command.subjects,))


def _remove(state: StoreState, command: Remove) -> None:
    check_number("data_size", command.data_size, 0)
    check_number("low_watermark", command.low_watermark, 0)
    _check_rows("expiries", command.expiries, EXPIRY_DTYPE.itemsize)
    if command.reason not in REASONS:
        refuse("reason", ", ".join(REASONS), command.reason)


def _declare_lost(state: StoreState, command: DeclareLost) -> None:
    check_number("data_size", command.data_size, 0)


def _unlinked(state: StoreState, command: Unlinked) -> None:
    for block in command.blocks:
        check_id("an unlinked block", block, 2 * ID_SIZE)


# --- consumers


def _add_consumer(state: StoreState, command: AddConsumer) -> None:
    check_consumer_config(command.config)
    _check_start(command)


def _move_consumer(state: StoreState, command: MoveConsumer) -> None:
    check_number("pending_end", command.pending_end, 0)
    _check_start(command)


def _check_start(command: AddConsumer | MoveConsumer) -> None:
    if command.query_start is not None:
        check_number("start of a query", command.query_start.sequence, 0)


def _pause_consumer(state: StoreState, command: PauseConsumer) -> None:
    check_number("until_ns", command.until_ns, 0)


def _deliver(state: StoreState, command: Deliver) -> None:
    check_number("deadline_ns", command.deadline_ns, 0)
    if command.withheld:
        both = SequenceSet.decode(command.sequences).intersection(SequenceSet.decode(command.withheld))
        if both:
            refuse("withheld", "messages that are not handed out", int(both.starts[0]))


def _acknowledge(state: StoreState, command: Acknowledge) -> None:
    check_number("deadline_ns", command.deadline_ns, 0)
    if command.kind not in _KINDS:
        refuse("kind", ", ".join(_KINDS), command.kind)


def _take_consumer(state: StoreState, command: TakeConsumer) -> None:
    check_number("generation", command.generation, 0)


def _advance_consumers(state: StoreState, command: AdvanceConsumers) -> None:
    for advance in command.advances:
        check_id("incarnation", advance.incarnation)


# --- values


def _check_ids(what: str, ids: Sequence[bytes], count_max: int = NUMBER_MAX) -> None:
    check_number(what, len(ids), 0, count_max)
    for one in ids:
        check_id(what, one)


def _check_rows(what: str, rows: bytes, row_size: int) -> None:
    if len(rows) % row_size:
        refuse(f"bytes of {what}", f"a multiple of {row_size}", len(rows))


_CHECKS: dict[type, Callable[[StoreState, Any], None]] = {
    Init: _init,
    ChangeVolumes: _change_volumes,
    EditStore: _edit_store,
    ForgetTransactions: _forget_transactions,
    AddStream: _add_stream,
    EditStream: _edit_stream,
    ChangePlacement: _change_placement,
    PrepareStreams: _prepare_streams,
    RecordHolders: _record_holders,
    Append: _append,
    Abort: _abort,
    MergeBlocks: _merge_blocks,
    Remove: _remove,
    DeclareLost: _declare_lost,
    Unlinked: _unlinked,
    AddConsumer: _add_consumer,
    MoveConsumer: _move_consumer,
    PauseConsumer: _pause_consumer,
    Deliver: _deliver,
    Acknowledge: _acknowledge,
    TakeConsumer: _take_consumer,
    AdvanceConsumers: _advance_consumers,
    **dict.fromkeys((NoOp, TakeOver, RecordEvents, DeleteStream, DeleteConsumer, TellConsumer), _nothing),
    RestoreStreams: _nothing,  # whose handler asks for the invariants of each stream
}
