"""What holds of every state: asked wherever one comes from bytes (a snapshot, a backup, metadata that is rebuilt).

A checksum says that bytes are as they were written, and nothing about who wrote them. Whoever plans, reads or applies
commands believes the state: spans place messages, counts become limits, names become text on a terminal. So a state
that no sequence of commands leads to is refused as a whole, before anything is served from it.

One look costs a few microseconds for each stream, and a few passes over the columns of its blocks.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from storage_core.block.format import (
    BLOCK_SIZE_MAX,
    HEADER_SIZE,
    ID_SIZE,
    ROW_COUNT_MAX,
    ROW_SIZE_MAX,
    SUMMARY_SUBJECT_COUNT_MAX,
    TRAILER_SIZE,
)
from storage_core.chunked_set import ChunkedSet
from storage_core.errors import CorruptionError
from storage_core.metadata.commands import Event, FormerVolume, SetAside, VolumeChange, Voter
from storage_core.metadata.config import StoreSettings, StreamConfig
from storage_core.metadata.consumer_config import ConsumerConfig
from storage_core.metadata.consumer_state import CONSUMER_EVENTS_KEPT, ConsumerState
from storage_core.metadata.events import EVENT_COUNT_MAX
from storage_core.metadata.manifest import BLOCK_DTYPE
from storage_core.metadata.state import (
    ABORTED,
    COMMITTED,
    FORMER_MAX,
    SET_ASIDE_MAX,
    TIME_MAX_NS,
    BatchResult,
    StoreState,
    StreamState,
    WriterState,
)
from storage_core.metadata.subject_sets import SUBJECT_SET_COUNT_MAX
from storage_core.raft.entry import HISTORY_SIZE
from storage_core.sequences import SequenceSet
from storage_core.subjects import SUBJECT_SIZE_MAX

REPLICA_COUNT_MAX = 5
VOLUME_COUNT_MAX = 16  # of a store, those that come and go included
PATH_SIZE_MAX = 4096  # bytes
NUMBER_MAX = 2**63 - 1
STREAM_SEQUENCE_MAX = 1 << 62  # no stream comes near it, and above it there is little room left to add
SIZE_MAX = 1 << 62  # bytes of messages in a stream: as above
BLOCK_DATA_SIZE_MAX = ROW_COUNT_MAX * ROW_SIZE_MAX  # bytes of messages in a block, before they are compressed
_TEXT_SHOWN = 64  # characters of a text that came, in a message
CONTENT_SIZES = (0, 16)
_SKIPPED = ("skipped", "skipped_reported", "skipped_reported_ns")


def check_state(state: StoreState) -> None:
    """Raise CorruptionError, saying where, what came and what was expected, for a state that no store can have."""
    check_id("the store's id", state.store_id, ID_SIZE if state.store_id or state.streams or state.voters else 0)
    check_number("created_ns", state.created_ns, 0)
    check_number("transaction_floor_ns", state.transaction_floor_ns, 0)
    check_settings(state.settings)
    check_voters(state.voters)
    check_distinct("volumes", [voter.volume_id for voter in state.voters])
    check_number("time_ns", state.time_ns, 0, TIME_MAX_NS)
    check_number("clock_ns", state.clock_ns, 0)
    check_volume_change(state.volume_change)
    check_former(state.former)
    check_set_aside(state.set_aside, SET_ASIDE_MAX)
    for name, writer in state.writers.items():
        _check_writer(name, writer, NUMBER_MAX)
    check_events("events", state.events, EVENT_COUNT_MAX)
    outcomes = state.transactions.rows["outcome"]
    if len(outcomes) and not np.isin(outcomes, (COMMITTED, ABORTED)).all():
        refuse("transactions", f"outcomes {COMMITTED} or {ABORTED}", sorted(set(outcomes.tolist()))[-1])
    with_blocks = [checked for checked in state.streams.values() if len(checked.blocks)]
    are_columns_good = True
    try:
        if with_blocks:
            _check_columns(*_columns_of(with_blocks))
    except (CorruptionError, OverflowError):  # its stream will say so, also of a sequence that no column takes
        are_columns_good = False
    for stream in state.streams.values():
        _check_stream(stream, are_columns_good)
    check_distinct("incarnations of streams", [checked.incarnation for checked in state.streams.values()])
    check_block_ids(state)


def check_block_ids(state: StoreState) -> None:
    """Raise CorruptionError if two live blocks of a store have one id."""
    ids = [stream.blocks.rows["block_id"] for stream in state.streams.values() if len(stream.blocks)]
    if ids:
        _check_distinct_ids("blocks", np.concatenate(ids))


def check_stream(stream: StreamState) -> None:
    """Raise CorruptionError for a stream that no sequence of commands leads to."""
    _check_stream(stream)
    _check_distinct_ids(f"stream {shown(stream.name)}: blocks", stream.blocks.rows["block_id"])


def _check_stream(stream: StreamState, are_columns_good: bool = False) -> None:
    """Check all but that no two blocks have the same id.

    `are_columns_good`: those of its blocks were looked at, with those of other streams in one go.
    """
    try:
        _check_parts(stream, are_columns_good)
    except CorruptionError as error:
        raise CorruptionError(f"stream {shown(stream.name)}: {error}") from error


def _check_parts(stream: StreamState, are_columns_good: bool) -> None:
    check_config(stream.config)
    check_id("incarnation", stream.incarnation)
    check_number("created_ns", stream.created_ns, 0)
    check_number("volumes of the placement", len(stream.placement), 0, VOLUME_COUNT_MAX)
    for volume_id in stream.placement:
        check_id("placement", volume_id)
    check_distinct("placement", stream.placement)
    check_number("next_sequence", stream.next_sequence, 1, STREAM_SEQUENCE_MAX)
    check_number("first sequence", stream.low_watermark, 1, stream.next_sequence)
    for name, sequences in (("removed sequences", stream.removed.whole()), ("lost sequences", stream.lost)):
        check_within(name, sequences, stream.low_watermark, stream.next_sequence)
    check_number("end of what readers have missed", stream.missed_end, 1, stream.next_sequence)
    removed_count = len(stream.removed)
    check_equal("message_count", stream.message_count, stream.next_sequence - stream.low_watermark - removed_count)
    check_number("data_size", stream.data_size, 0, SIZE_MAX)
    check_number("duplicate_count", stream.duplicate_count, 0)
    check_blocks(stream, are_columns_good)
    _check_lost_blocks(stream)
    _check_runs("histories", stream.histories, HISTORY_SIZE, stream.next_sequence)
    _check_runs("origins", stream.origins, ID_SIZE, stream.next_sequence + 1)
    check_subject_sets(stream.subject_sets)
    for name, writer in stream.writers.items():
        _check_writer(name, writer, stream.next_sequence)
    for key, consumer in stream.consumers.items():
        _check_consumer(key, consumer)


# --- blocks


def check_blocks(stream: StreamState, are_columns_good: bool = False) -> None:
    """Raise CorruptionError for blocks that are not those of the stream's sequences, counts and subject sets."""
    rows = stream.blocks.rows
    if len(rows):
        set_counts = None if are_columns_good else len(stream.subject_sets)
        volume_count = len(stream.placement)
        check_rows(rows, stream.low_watermark, stream.next_sequence, stream.removed, set_counts, volume_count)
    elif stream.message_count:
        refuse("blocks", f"those of {stream.message_count} messages", "none")


def _check_lost_blocks(stream: StreamState) -> None:
    rows = stream.lost_blocks.rows
    check_bare_rows("blocks of lost messages", rows, stream.next_sequence)
    without = ~stream.lost.touches(rows["first"], rows["first"] + rows["span"])
    if without.any():
        refuse("blocks of lost messages", "lost messages in each", f"none from {int(rows['first'][without][0])} on")


def check_bare_rows(label: str, rows: np.ndarray, end: int) -> None:
    """Raise CorruptionError unless the rows of blocks are in order below `end`, without holders and subject sets."""
    _check_columns(rows, end, 0, 0)
    if (rows["first"][1:] < (rows["first"] + rows["span"])[:-1]).any():
        refuse(label, "ascending sequences", "two that overlap, or are out of order")


def check_rows(
    rows: np.ndarray,
    low_watermark: int,
    end: int,
    removed: ChunkedSet,
    set_counts: int | np.ndarray | None,
    volume_count: int = VOLUME_COUNT_MAX,
) -> None:
    """Raise CorruptionError for rows of blocks, at least one, that do not hold the sequences of `[low_watermark, end)`.

    `removed`: those that they may lack. `set_counts`: subject sets that each may name; None: the columns are good.
    `volume_count`: of the volumes that may have them.
    """
    if set_counts is not None:
        _check_columns(rows, end, set_counts, volume_count)
    first, span, row_count = (np.ascontiguousarray(rows[name]) for name in ("first", "span", "row_count"))
    ends = first + span
    touching = np.flatnonzero(first[1:] < ends[:-1])
    if len(touching):
        at = int(touching[0])
        refuse(f"blocks {at} and {at + 1}", "ascending sequences", f"[{first[at]}, {ends[at]}) and {first[at + 1]}")
    if ends[0] <= low_watermark:
        refuse("block 0", f"an end above {low_watermark}", int(ends[0]))
    # Sequences that no block has, or that their block has no message of, are known as removed.
    heads, tails = np.concatenate((first, [end])), np.concatenate(([low_watermark], ends))
    between = heads > tails
    if between.any():
        uncovered = removed.absent_among(SequenceSet(tails[between], heads[between]))
        if uncovered:
            refuse("blocks", f"one with sequence {int(uncovered.starts[0])}, which is shown", "none")
    missing = span - row_count
    if missing.any():
        low = np.minimum(np.maximum(first, low_watermark), ends)
        whole = removed.whole()
        removed_counts = _count_below(whole, ends) - _count_below(whole, low) + (low - first)
        short = np.flatnonzero(missing > removed_counts)
        if len(short):
            at = int(short[0])
            refuse(
                f"row_count of block {at}",
                f"{int(ends[at] - first[at] - removed_counts[at])} or more",
                int(row_count[at]),
            )


def _count_below(sequences: SequenceSet, values: np.ndarray) -> np.ndarray:
    """Return how many sequences of the set lie below each value."""
    if not sequences:
        return np.zeros(len(values), np.int64)
    before = np.concatenate(([0], np.cumsum(sequences.ends - sequences.starts)))
    run = np.searchsorted(sequences.starts, values, side="left")
    over = sequences.ends[np.maximum(run - 1, 0)] - values
    return before[run] - np.where(run > 0, np.maximum(over, 0), 0)


# Columns that are looked at together, and what each value lies between: of ten thousand streams with few blocks, as of
# one append, a call of numpy costs more than the rows do. The first eight lie side by side in a row.
_COLUMNS = (
    "first", "span", "row_count", "file_size", "data_size", "time_min_ns", "time_max_ns", "committed_ns",
    "msg_id_count", "subject_set", "holders",
)  # fmt: skip
_SIDE_BY_SIDE = 8
_LOWEST = np.array([1, 1, 1, HEADER_SIZE + TRAILER_SIZE, 0, -NUMBER_MAX - 1, 0, 0, 0, 0, 0])
_HIGHEST = np.array([0, 0, 0, BLOCK_SIZE_MAX, BLOCK_DATA_SIZE_MAX, NUMBER_MAX, NUMBER_MAX, NUMBER_MAX, 0, 0, 0])
_ROWS_AT_ONCE = 1 << 15  # bounds the memory that this takes
_OFFSETS = [BLOCK_DTYPE.fields[name][1] for name in _COLUMNS]  # type: ignore[index]
assert np.diff(_OFFSETS[:_SIDE_BY_SIDE]).tolist() == [8] * (_SIDE_BY_SIDE - 1), _OFFSETS


def _columns_of(streams: Sequence[StreamState]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the blocks of streams, and of each block the next sequence, and how many subject sets and volumes its
    stream has.

    All streams in one go: with ten thousand of them, a few blocks each, that takes a fraction of one after another.
    """
    counts = [len(stream.blocks) for stream in streams]
    next_sequences = np.repeat(np.array([stream.next_sequence for stream in streams], np.int64), counts)
    set_counts = np.repeat(np.array([len(stream.subject_sets) for stream in streams], np.int64), counts)
    volume_counts = np.repeat(np.array([len(stream.placement) for stream in streams], np.int64), counts)
    return np.concatenate([stream.blocks.rows for stream in streams]), next_sequences, set_counts, volume_counts


def _check_columns(
    rows: np.ndarray, ends: int | np.ndarray, set_counts: int | np.ndarray, volume_counts: int | np.ndarray
) -> None:
    """Raise CorruptionError for a value out of bounds. `ends`: below which the sequences of each block are."""
    limits = ends, set_counts, volume_counts
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        values, low, high = _bounds(rows[part], *(of if isinstance(of, int) else of[part] for of in limits))
        bad = (values < low) | (values > high)
        if bad.any():
            column = int(bad.any(axis=0).argmax())
            at = int(bad[:, column].argmax())
            bounds = f"{low[at, column]} to {high[at, column]}"
            refuse(f"{_COLUMNS[column]} of block {start + at}", bounds, int(values[at, column]))


def _bounds(
    rows: np.ndarray, ends: int | np.ndarray, set_counts: int | np.ndarray, volume_counts: int | np.ndarray
) -> np.ndarray:
    """Return (values, lowest, highest) of the columns, each a row a block."""
    made = np.empty((3, len(rows), len(_COLUMNS)), np.int64)
    values, low, high = made
    rows = np.ascontiguousarray(rows)
    values[:, :_SIDE_BY_SIDE] = np.ndarray(
        (len(rows), _SIDE_BY_SIDE), "<i8", rows, _OFFSETS[0], strides=(rows.itemsize, 8)
    )
    values[:, 8], values[:, 9], values[:, 10] = rows["msg_id_count"], rows["subject_set"], rows["holders"]
    low[:], high[:] = _LOWEST, _HIGHEST
    high[:, 0] = ends
    high[:, 1] = high[:, 0] - values[:, 0]
    high[:, 0] -= 1
    np.minimum(values[:, 1], ROW_COUNT_MAX, out=high[:, 2])
    low[:, 6] = values[:, 5]
    high[:, 8], high[:, 9] = values[:, 2], set_counts
    high[:, 10] = np.left_shift(1, volume_counts) - 1
    return made


def _check_distinct_ids(label: str, ids: np.ndarray) -> None:
    halves = np.ascontiguousarray(ids).view("<u8").reshape(-1, 2)
    ordered = np.sort(halves[:, 0])  # ids are random: what has the same half is the same, or looked at again
    if (ordered[1:] == ordered[:-1]).any():
        distinct, counts = np.unique(halves, axis=0, return_counts=True)
        if len(distinct) < len(halves):
            refuse(label, "each id once", distinct[counts > 1][0].tobytes().hex() + " twice")


# --- the rest of a stream


def check_config(config: StreamConfig) -> None:
    check_number("num_replicas", config.num_replicas, 1, REPLICA_COUNT_MAX)
    # While a volume comes or goes it may be even; nobody can ask for that, and the rest is what can be asked for.
    asked = config if config.num_replicas % 2 else msgspec.structs.replace(config, num_replicas=1)
    check_number("duplicate_window", config.duplicate_window, 0)
    try:
        StreamConfig.from_mapping(asked)
    except ValueError as error:
        raise CorruptionError(f"configuration: {_cut(str(error))}") from error


def check_subject_sets(sets: Sequence[Sequence[str]], count_max: int = SUBJECT_SET_COUNT_MAX) -> None:
    check_number("subject sets", len(sets), 0, count_max)
    for subjects in sets:
        check_number("subjects of a set", len(subjects), 0, SUMMARY_SUBJECT_COUNT_MAX)
        if subjects:
            check_number("bytes of a subject", max(map(len, subjects)), 0, SUBJECT_SIZE_MAX)


def _check_runs(label: str, runs: Sequence[tuple[bytes, int]], id_size: int, end: int) -> None:
    before = 0
    for id_, sequence in runs:
        check_id(label, id_, id_size)
        check_number(label, sequence, before + 1, end - 1)
        before = sequence


def _check_writer(name: str, writer: WriterState, next_sequence: int) -> None:
    label = f"writer {shown(name)}"
    check_number(f"{label}: last_batch", writer.last_batch, -1)
    check_number(f"{label}: prune_at", writer.prune_at, 0)
    for batch, result in writer.batches.items():
        if not _is_result(result, next_sequence):
            refuse(f"{label}, batch {shown(batch)}", f"a range below {next_sequence}", _cut(repr(result)))


def _is_result(result: BatchResult, next_sequence: int) -> bool:
    in_order = 0 <= result.first <= result.end <= next_sequence
    return in_order and 0 <= result.duplicate_count <= NUMBER_MAX and len(result.content) in CONTENT_SIZES


def _check_consumer(key: str, consumer: ConsumerState) -> None:
    label = f"consumer {shown(consumer.name)}"
    check_equal(f"{label}: key", key, consumer.name.casefold())
    check_consumer_config(consumer.config)
    check_id(f"{label}: incarnation", consumer.incarnation)
    check_number(
        f"{label}: next_sequence", consumer.next_sequence, 1, STREAM_SEQUENCE_MAX
    )  # may be ahead of the stream
    _check_runs(f"{label}: history", consumer.history, HISTORY_SIZE, consumer.next_sequence)
    pending = consumer.pending.rows
    if len(pending):
        check_number(f"{label}: first message that waits", int(pending["first"][0]), 1)
        check_number(f"{label}: end of those that wait", int(pending["end"][-1]), 1, consumer.next_sequence)
        check_number(f"{label}: deliveries", int(pending["deliveries"].min()), 0)
    if consumer.missed:
        check_number(f"{label}: lost sequences that it missed", int(consumer.missed.starts[0]), 1)
    check_within(f"{label}: what it is done with", consumer.done, 1, consumer.next_sequence)
    if consumer.reported:
        check_number(f"{label}: lost sequences that were reported", int(consumer.reported.starts[0]), 1)
    check_events(f"{label}: events", consumer.events, CONSUMER_EVENTS_KEPT)
    check_number(f"{label}: start of its query", consumer.query_start.sequence, 0)
    for name in (
        "created_ns",
        "paused_until_ns",
        "generation",
        "clock_ns",
        "skipped",
        "skipped_reported",
        "skipped_reported_ns",
    ):
        check_number(f"{label}: {name}", getattr(consumer, name), 0)


def check_consumer_config(config: ConsumerConfig) -> None:
    try:
        ConsumerConfig.from_mapping(config)
    except ValueError as error:
        raise CorruptionError(f"consumer {shown(config.name)}: configuration: {_cut(str(error))}") from error


def check_settings(settings: StoreSettings) -> None:
    check_number("snapshot_every", settings.snapshot_every, 1)
    check_number("deleted_block_retention", settings.deleted_block_retention, 0)
    try:
        same = StoreSettings.from_mapping(settings.to_json()) == settings
    except (ValueError, TypeError):
        same = False
    if not same:
        refuse("settings of the store", "such as may be asked for", settings.to_json())


def check_events(label: str, events: Sequence[Event], count_max: int = NUMBER_MAX) -> None:
    check_number(label, len(events), 0, count_max)
    for event in events:
        for name in ("time_ns", "count", "last_ns"):
            check_number(f"{label}: {name}", getattr(event, name), 0)


def check_volume_change(change: VolumeChange | None) -> None:
    if change is None:
        return
    for volume_id in (*change.added, *change.removed):
        check_id("a volume that comes or goes", volume_id)
    check_number("start of the change of volumes", change.started_ns, 0)


def check_former(former: Sequence[FormerVolume]) -> None:
    check_number("former volumes", len(former), 0, FORMER_MAX)
    for volume in former:
        check_id("a former volume's id", volume.volume_id)
        check_id("a former volume's instance", volume.instance_id)
        check_number("bytes of a former volume's path", len(volume.path.encode(errors="replace")), 0, PATH_SIZE_MAX)
        check_number("when a former volume went", volume.gone_ns, 0)


def check_set_aside(set_aside: Sequence[SetAside], count_max: int) -> None:
    check_number("what was set aside", len(set_aside), 0, count_max)
    for messages in set_aside:
        check_id("the volume of what was set aside", messages.volume_id)
        check_id("the incarnation of what was set aside", messages.incarnation)
        check_within("what was set aside", SequenceSet.decode(messages.sequences), 1, STREAM_SEQUENCE_MAX)


def check_voters(voters: Sequence[Voter]) -> None:
    check_number("volumes", len(voters), 0, VOLUME_COUNT_MAX)
    for voter in voters:
        check_id("a volume's id", voter.volume_id)
        check_id("a volume's instance", voter.instance_id)
        check_number("bytes of a volume's path", len(voter.path.encode(errors="replace")), 0, PATH_SIZE_MAX)


# --- what was expected


def check_number(label: str, value: int, low: int, high: int = NUMBER_MAX) -> None:
    if not low <= value <= high:
        refuse(label, f"{low} to {high}", value)


def check_equal(label: str, value: object, expected: object) -> None:
    if value != expected:
        refuse(label, expected, value)


def check_id(label: str, value: bytes, size: int = ID_SIZE) -> None:
    if len(value) != size:
        refuse(label, f"{size} bytes", f"{len(value)} bytes")


def check_distinct(label: str, values: Sequence[bytes]) -> None:
    if len(set(values)) < len(values):
        twice = next(value for at, value in enumerate(values) if value in values[:at])
        refuse(label, "each once", f"{twice.hex()} twice")


def check_within(label: str, sequences: SequenceSet, first: int, end: int) -> None:
    if sequences and not (first <= int(sequences.starts[0]) and int(sequences.ends[-1]) <= end):
        refuse(label, f"within [{first}, {end})", f"[{int(sequences.starts[0])}, {int(sequences.ends[-1])})")


def refuse(label: str, expected: object, actual: object) -> None:
    raise CorruptionError(f"{label}: expected {_cut(str(expected))}, found {_cut(str(actual))}")


def shown(text: str) -> str:
    """Return a text that may be anything as one that can be shown."""
    return repr(text) if len(text) <= _TEXT_SHOWN else f"{text[:_TEXT_SHOWN]!r}... of {len(text)} characters"


def _cut(text: str) -> str:
    return text if len(text) <= 4 * _TEXT_SHOWN else f"{text[: 4 * _TEXT_SHOWN]}..."
