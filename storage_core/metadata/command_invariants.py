"""What holds of every command, asked of each before it is applied: of one that is proposed, and of one that is read.

A checksum says that an entry is as it was written, and nothing about who wrote it. What a state does not allow (a
position that is out of range, a stream that is gone) the handlers refuse, since it may come from a caller. What no
program of ours can have written is corruption: ids of another size, rows that are none, numbers below zero or beyond
their columns, counts that contradict the rows. Both together keep the invariants of a state (invariants.py): after a
command that came through, they hold if they held before. Only ids of blocks are looked at when a log has been replayed,
all at once.

A program whose command is refused here stops before it has written anything.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from storage_core.block.format import ID_SIZE
from storage_core.chunked_set import ChunkedSet
from storage_core.errors import CorruptionError
from storage_core.metadata import commands
from storage_core.metadata.commands import Envelope
from storage_core.metadata.consumers import ACK, NAK, TERM, WITHHOLD
from storage_core.metadata.invariants import (
    CONTENT_SIZES,
    NUMBER_MAX,
    REPLICA_COUNT_MAX,
    SIZE_MAX,
    STREAM_SEQUENCE_MAX,
    VOLUME_COUNT_MAX,
    check_bare_rows,
    check_config,
    check_consumer_config,
    check_distinct,
    check_equal,
    check_events,
    check_former,
    check_id,
    check_number,
    check_rows,
    check_set_aside,
    check_settings,
    check_subject_sets,
    check_volume_change,
    check_voters,
    check_within,
    refuse,
)
from storage_core.metadata.manifest import BLOCK_DTYPE, EXPIRY_DTYPE, decode_blocks
from storage_core.metadata.removals import REASONS
from storage_core.metadata.state import SET_ASIDE_MAX, StoreState
from storage_core.sequences import SequenceSet

_KINDS = (ACK, NAK, TERM, WITHHOLD)  # of acknowledgements


def check_command(state: StoreState, envelope: Envelope, are_appends_good: bool = False) -> None:
    """Raise CorruptionError, saying what came and what was expected, for a command that no program of ours writes.

    `are_appends_good`: what an append brings passed `check_appended`, with what others bring in one go.
    """
    check_number("time_ns", envelope.time_ns, 0)
    command = envelope.command
    if (events := getattr(command, "events", None)) is not None:
        check_events("events", events)
    if (incarnation := getattr(command, "incarnation", None)) is not None:
        check_id("incarnation", incarnation)
    _CHECKS[type(command)](state, command)
    if isinstance(command, commands.Append) and not are_appends_good:
        check_appended(command.streams)


def are_appends_good(envelopes: Iterable[Envelope]) -> bool:
    """Return whether all that appends among these commands bring is such as our programs write.

    If not, `check_command` says of each command by itself whether it is, and what is wrong.
    """
    parts = [
        part
        for envelope in envelopes
        if isinstance(envelope.command, commands.Append)
        for part in envelope.command.streams
    ]
    try:
        check_appended(parts)
    except (CorruptionError, OverflowError):
        return False
    return True


def _nothing(state: StoreState, command: object) -> None:
    """Nothing in it but texts, and what every command has."""


# --- the store


def _init(state: StoreState, command: commands.Init) -> None:
    check_id("the store's id", command.store_id)
    check_settings(command.settings)
    check_voters(command.voters)
    check_distinct("volumes", [voter.volume_id for voter in command.voters])


def _change_volumes(state: StoreState, command: commands.ChangeVolumes) -> None:
    check_voters(command.voters)
    check_volume_change(command.change)
    check_former(command.former or ())
    check_set_aside(command.set_aside, SET_ASIDE_MAX)


def _edit_store(state: StoreState, command: commands.EditStore) -> None:
    check_settings(command.settings)


def _forget_transactions(state: StoreState, command: commands.ForgetTransactions) -> None:
    check_number("before_ns", command.before_ns, 0)


# --- streams


def _add_stream(state: StoreState, command: commands.AddStream) -> None:
    if state.by_incarnation(command.incarnation) is not None:
        refuse("incarnation of a new stream", "one that no stream has", command.incarnation.hex())
    check_config(command.config)
    _check_ids("placement", command.placement, VOLUME_COUNT_MAX)
    check_distinct("placement", command.placement)


def _edit_stream(state: StoreState, command: commands.EditStream) -> None:
    check_config(command.config)


def _change_placement(state: StoreState, command: commands.ChangePlacement) -> None:
    _check_ids("placement", command.placement, REPLICA_COUNT_MAX)


def _prepare_streams(state: StoreState, command: commands.PrepareStreams) -> None:
    _check_ids("incarnations", command.incarnations)
    check_number("until_ns", command.until_ns, 0)


def _record_holders(state: StoreState, command: commands.RecordHolders) -> None:
    check_id("volume", command.volume_id)
    _check_rows("blocks", command.blocks, ID_SIZE)


# --- blocks


def _append(state: StoreState, command: commands.Append) -> None:
    """Of an append as a whole, and that the numbers of its streams have room for what it brings."""
    check_id("transaction", command.transaction)
    if len(command.content) not in CONTENT_SIZES:
        refuse("content", f"{CONTENT_SIZES[-1]} bytes or none", f"{len(command.content)} bytes")
    if len(command.streams) != 1:
        check_distinct("streams of an append", [part.incarnation for part in command.streams])
    for part in command.streams:
        check_id("incarnation", part.incarnation)
        stream = state.by_incarnation(part.incarnation)
        rows = decode_blocks(part.rows, "rows")
        if stream is not None and len(rows):
            last, length = int(rows["first"][-1]), int(rows["span"][-1])
            check_number("first", last, 0, STREAM_SEQUENCE_MAX - stream.next_sequence)
            check_number("span", length, 1, STREAM_SEQUENCE_MAX - stream.next_sequence - last)
            check_number("data_size", int(rows["data_size"].sum()), 0, SIZE_MAX - stream.data_size)
            check_number("holders", int(rows["holders"].max()), 0, (1 << len(stream.placement)) - 1)


def check_appended(parts: Sequence[commands.AppendedBlocks]) -> None:
    """Raise CorruptionError unless what appends bring to streams holds by itself, whatever their states are.

    That is what holds of the blocks of a stream, of one that begins with them. All parts are looked at in one go, as if
    each went on where the one before it ended: for those of a log together that takes a fraction of one after another.
    A log may be refused by that only for what the parts come to together, so whoever asks for many asks for each then.
    """
    tables: list[np.ndarray] = []
    starts, shown_counts = [1], list[int]()
    gone_starts: list[np.ndarray] = []
    gone_ends: list[np.ndarray] = []
    for part in parts:
        rows, start, span = decode_blocks(part.rows, "rows"), starts[-1], 0
        if part.expires:
            check_equal("bytes of expires", len(part.expires), 8 * len(rows))
        check_equal("bytes of subject_set_of", len(part.subject_set_of), 4 * len(rows))
        check_subject_sets(part.subject_sets, len(rows))
        if len(rows):
            last, length = int(rows["first"][-1]), int(rows["span"][-1])
            check_number("first", last, 0, STREAM_SEQUENCE_MAX - start)
            check_number("span", length, 1, STREAM_SEQUENCE_MAX - start - last)
            span = last + length
        shown_counts.append(span)
        if part.duplicates:
            duplicates = SequenceSet.decode(part.duplicates)
            check_within("duplicates", duplicates, 0, span)
            shown_counts[-1] -= len(duplicates)
            gone_starts.append(duplicates.starts + start)
            gone_ends.append(duplicates.ends + start)
        tables.append(rows)
        starts.append(start + span)
    counts = [len(table) for table in tables]
    places = np.cumsum([0, *counts])
    rows = np.empty(places[-1], BLOCK_DTYPE)
    for table, place, end in zip(tables, places[:-1], places[1:], strict=True):
        rows[place:end] = table  # numpy.concatenate would compare all fields of each two
    if len(rows):
        rows["first"] += np.repeat(np.array(starts[:-1]), counts)
        rows["committed_ns"] = 0
        rows["subject_set"] = np.frombuffer(b"".join([part.subject_set_of for part in parts]), "<i4")
        duplicate_columns = [np.concatenate([*columns, np.empty(0, np.int64)]) for columns in (gone_starts, gone_ends)]
        set_counts = np.repeat(np.array([len(part.subject_sets) for part in parts]), counts)
        check_rows(rows, 1, starts[-1], ChunkedSet.of(SequenceSet.from_columns(*duplicate_columns)), set_counts)
    sums = [np.concatenate(([0], rows[name].cumsum()))[places] for name in ("row_count", "data_size")]
    row_counts, data_sizes = (np.diff(ends).tolist() for ends in sums)
    for part, row_count, data_size, shown_count in zip(parts, row_counts, data_sizes, shown_counts, strict=True):
        check_equal("duplicate_count", part.duplicate_count, row_count - shown_count)
        check_number("duplicate_size", part.duplicate_size, 0, data_size)
        check_number("expected_last_sequence", part.expected_last_sequence, -1, STREAM_SEQUENCE_MAX)
        check_number("superseded_size", part.superseded_size, 0)


def _abort(state: StoreState, command: commands.Abort) -> None:
    check_id("transaction", command.transaction)


def _merge_blocks(state: StoreState, command: commands.MergeBlocks) -> None:
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
    removed = SequenceSet.from_ranges([(first, first + span)])  # what it may lack is compared with what it replaces
    stream = state.by_incarnation(command.incarnation)
    volume_count = len(stream.placement) if stream is not None else VOLUME_COUNT_MAX
    check_rows(row, first, first + span, ChunkedSet.of(removed), 0, volume_count)
    if command.subjects is not None:
        check_subject_sets((command.subjects,))


def _remove(state: StoreState, command: commands.Remove) -> None:
    check_number("data_size", command.data_size, 0)
    check_number("low_watermark", command.low_watermark, 0)
    _check_rows("expiries", command.expiries, EXPIRY_DTYPE.itemsize)
    if command.reason not in REASONS:
        refuse("reason", ", ".join(REASONS), command.reason)


def _declare_lost(state: StoreState, command: commands.DeclareLost) -> None:
    check_number("data_size", command.data_size, 0)


def _take_back(state: StoreState, command: commands.TakeBack) -> None:
    stream = state.by_incarnation(command.incarnation)
    check_number("data_size", command.data_size, 0, SIZE_MAX - (stream.data_size if stream is not None else 0))
    check_bare_rows("blocks that others were merged from", decode_blocks(command.rows, "rows"), STREAM_SEQUENCE_MAX)


def _unlinked(state: StoreState, command: commands.Unlinked) -> None:
    for block in command.blocks:
        check_id("an unlinked block", block, 2 * ID_SIZE)


# --- consumers


def _add_consumer(state: StoreState, command: commands.AddConsumer) -> None:
    check_consumer_config(command.config)
    _check_start(command)


def _move_consumer(state: StoreState, command: commands.MoveConsumer) -> None:
    check_number("pending_end", command.pending_end, 0)
    _check_start(command)


def _check_start(command: commands.AddConsumer | commands.MoveConsumer) -> None:
    if command.query_start is not None:
        check_number("start of a query", command.query_start.sequence, 0)


def _pause_consumer(state: StoreState, command: commands.PauseConsumer) -> None:
    check_number("until_ns", command.until_ns, 0)


def _deliver(state: StoreState, command: commands.Deliver) -> None:
    check_number("deadline_ns", command.deadline_ns, 0)
    if command.withheld:
        both = SequenceSet.decode(command.sequences).intersection(SequenceSet.decode(command.withheld))
        if both:
            refuse("withheld", "messages that are not handed out", int(both.starts[0]))


def _acknowledge(state: StoreState, command: commands.Acknowledge) -> None:
    check_number("deadline_ns", command.deadline_ns, 0)
    if command.kind not in _KINDS:
        refuse("kind", ", ".join(_KINDS), command.kind)


def _take_consumer(state: StoreState, command: commands.TakeConsumer) -> None:
    check_number("generation", command.generation, 0)


def _advance_consumers(state: StoreState, command: commands.AdvanceConsumers) -> None:
    for advance in command.advances:
        check_id("incarnation", advance.incarnation)


# --- values


def _check_ids(label: str, ids: Sequence[bytes], count_max: int = NUMBER_MAX) -> None:
    check_number(label, len(ids), 0, count_max)
    for identifier in ids:
        check_id(label, identifier)


def _check_rows(label: str, rows: bytes, row_size: int) -> None:
    if len(rows) % row_size:
        refuse(f"bytes of {label}", f"a multiple of {row_size}", len(rows))


_CHECKS: dict[type, Callable[[StoreState, Any], None]] = {
    commands.Init: _init,
    commands.ChangeVolumes: _change_volumes,
    commands.EditStore: _edit_store,
    commands.ForgetTransactions: _forget_transactions,
    commands.AddStream: _add_stream,
    commands.EditStream: _edit_stream,
    commands.ChangePlacement: _change_placement,
    commands.PrepareStreams: _prepare_streams,
    commands.RecordHolders: _record_holders,
    commands.Append: _append,
    commands.Abort: _abort,
    commands.MergeBlocks: _merge_blocks,
    commands.Remove: _remove,
    commands.DeclareLost: _declare_lost,
    commands.TakeBack: _take_back,
    commands.Unlinked: _unlinked,
    commands.AddConsumer: _add_consumer,
    commands.MoveConsumer: _move_consumer,
    commands.PauseConsumer: _pause_consumer,
    commands.Deliver: _deliver,
    commands.Acknowledge: _acknowledge,
    commands.TakeConsumer: _take_consumer,
    commands.AdvanceConsumers: _advance_consumers,
    **dict.fromkeys(
        (
            commands.NoOp,
            commands.TakeOver,
            commands.RecordEvents,
            commands.DiscardLost,
            commands.DeleteStream,
            commands.DeleteConsumer,
            commands.RecordConsumerEvents,
        ),
        _nothing,
    ),
    commands.RestoreStreams: _nothing,  # whose handler asks for the invariants of each stream
}
