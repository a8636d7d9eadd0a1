"""Commands that take messages or their blocks away: removed, lost, unlinked; and that which takes lost ones back.

Messages that are declared lost may be on a disk that comes back. So the blocks that they were in are remembered, and
their files stay, until the messages are taken back, a later removal passes over them, or somebody discards them.
"""

from bisect import bisect_left

import numpy as np

from storage_core import errors
from storage_core.chunked_set import ChunkedSet
from storage_core.frozen import replace
from storage_core.metadata.commands import DeclareLost, DiscardLost, Event, Remove, TakeBack, Unlinked
from storage_core.metadata.config import LIMITS
from storage_core.metadata.consumers import anchored
from storage_core.metadata.manifest import (
    ARCHIVE_DTYPE,
    BLOCK_DTYPE,
    EXPIRY_DTYPE,
    PENDING_DELETE_DTYPE,
    Table,
    decode_blocks,
    pairs,
)
from storage_core.metadata.reconcile import HISTORY_RUNS_KEPT
from storage_core.metadata.results import Done, Place, RemoveDone, Result, refuse
from storage_core.metadata.retention import done_by_all, without
from storage_core.metadata.skipped import given_back, taken_away
from storage_core.metadata.state import StoreState, StreamState
from storage_core.metadata.store_changes import with_events
from storage_core.metadata.stream_changes import add_pending_deletes, live
from storage_core.sequences import SequenceSet

RETENTION = "retention"  # no consumer needs them any more: none misses anything
ROLLUP = "rollup"  # a later message takes their place
# What a stream's configuration denies it by, and what is reported to consumers that miss the messages.
REASONS = {
    "delete": ("deny_delete", "removed"),
    "purge": ("deny_purge", "purged"),
    "limits": ("", "removed by a limit"),
    ROLLUP: ("", "rolled up"),
    RETENTION: ("", ""),
}


def remove(state: StoreState, place: Place, time_ns: int, command: Remove) -> tuple[StoreState, Result]:
    stream = live(state, command.incarnation)
    denied, why = REASONS[command.reason]
    if stream.config.sealed or (denied and getattr(stream.config, denied)):
        why = "is sealed" if stream.config.sealed else f"has {denied} set"
        refuse(errors.RequirementError, f"stream {stream.name!r} {why}: nothing may be removed from it")
    chosen = SequenceSet.decode(command.sequences).clip(stream.low_watermark, stream.next_sequence)
    low_watermark = min(max(command.low_watermark, stream.low_watermark), stream.next_sequence)
    newly_removed = stream.removed.absent_among(chosen).union(stream.shown(stream.low_watermark, low_watermark))
    events: tuple[Event, ...] = ()
    first = stream.first_sequence
    if command.reason == RETENTION:
        needed = newly_removed.difference(done_by_all(stream, newly_removed))
        if needed or stream.config.retention == LIMITS:
            which = int(needed.starts[0]) if needed else "none"
            refuse(errors.RequirementError, f"stream {stream.name!r}: a consumer needs {which} of what is to go")
        stream = without(stream, newly_removed)
    else:
        stream, events = taken_away(stream, newly_removed, time_ns, why)
    stream = replace(stream, removed=stream.removed.union(newly_removed))
    state, stream = drop_below(state, stream, low_watermark, time_ns, newly_removed, command.data_size)
    if command.reason == RETENTION:
        stream = _following(stream, first)
    if command.expiries:
        stream = _with_expiries(stream, np.frombuffer(command.expiries, EXPIRY_DTYPE))
    return with_events(state.with_stream(stream), events, time_ns), RemoveDone(len(newly_removed))


def _with_expiries(stream: StreamState, looked_at: np.ndarray) -> StreamState:
    """Return the stream that goes by what was found of blocks of which something was due."""
    before = stream.expiries.rows
    kept = before[~np.isin(before["first"], looked_at["first"])]
    rows = np.concatenate((kept, looked_at[looked_at["due_ns"] > 0]))
    return _without_dropped_blocks(replace(stream, expiries=Table.of(rows[np.argsort(rows["first"], kind="stable")])))


def _without_dropped_blocks(stream: StreamState) -> StreamState:
    """Return the stream without expiries of blocks that are not there any more."""
    if not len(stream.expiries):
        return stream
    rows, firsts = stream.blocks.rows, stream.expiries.rows["first"]
    at = np.searchsorted(rows["first"], firsts, side="right") - 1
    is_there = at >= 0
    if len(rows):
        is_there &= firsts < (rows["first"] + rows["span"])[np.maximum(at, 0)]
    return stream if is_there.all() else replace(stream, expiries=stream.expiries.keep(is_there))


def _following(stream: StreamState, first: int) -> StreamState:
    """Return the stream with the consumers that stood before its first message at it: they wanted none of these.

    `first`: its first message before. A consumer that was behind that one has missed something.
    """
    for _, consumer in stream.consumers.items():
        if first <= consumer.next_sequence < stream.first_sequence and consumer.incarnation == stream.incarnation:
            stream = stream.with_consumer(anchored(stream, consumer, stream.first_sequence))
    return stream


def drop_below(
    state: StoreState, stream: StreamState, low_watermark: int, time_ns: int, newly_removed: SequenceSet, data_size: int
) -> tuple[StoreState, StreamState]:
    """Raise the low watermark, drop blocks with nothing left to show, and take the counts down.

    `newly_removed`: what was shown before, and is among the removed or below the low watermark now.
    """
    removed = stream.removed.since(low_watermark)
    blocks, dead_head = stream.blocks, stream.block_at(low_watermark)
    lost = stream.lost.clip(low_watermark, stream.next_sequence)
    lost_blocks, passed = _with_lost(stream, lost)
    if dead_head:
        state = with_dropped(state, stream, blocks.rows[:dead_head], time_ns)
        blocks = blocks.drop_head(dead_head)
    empty = _emptied(stream, removed, low_watermark, newly_removed) - dead_head
    empty = empty[empty >= 0]
    if len(empty):
        emptied = blocks.rows[empty]
        state = with_dropped(state, stream, emptied[~_are_in(emptied, lost_blocks.rows)], time_ns)
        keep = np.ones(len(blocks), bool)
        keep[empty] = False
        blocks = blocks.keep(keep)
    state = with_dropped(state, stream, passed[~_are_in(passed, stream.blocks.rows)], time_ns)
    stream = replace(
        stream,
        low_watermark=low_watermark,
        blocks=blocks,
        removed=removed,
        lost=lost,
        lost_blocks=lost_blocks,
        message_count=stream.message_count - len(newly_removed),
        data_size=max(0, stream.data_size - data_size),
    )
    if dead_head or len(empty):
        stream = _without_dropped_blocks(stream)
    return state, replace(stream, histories=runs_needed(stream))


def _with_lost(stream: StreamState, lost: SequenceSet) -> tuple[Table, np.ndarray]:
    """Return the blocks of lost messages that have some of these, and the rows of the others."""
    rows = stream.lost_blocks.rows
    if not len(rows):
        return stream.lost_blocks, rows
    has_lost = lost.touches(rows["first"], rows["first"] + rows["span"])
    return (stream.lost_blocks if has_lost.all() else stream.lost_blocks.keep(has_lost)), rows[~has_lost]


def _are_in(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return, row by row, whether another table has the same block."""
    if not len(rows) or not len(others):
        return np.zeros(len(rows), bool)
    return np.isin(rows["block_id"], others["block_id"])


def with_dropped(state: StoreState, stream: StreamState, blocks: np.ndarray, time_ns: int) -> StoreState:
    """Return the state in which these blocks of the manifest wait to be archived, if they are to be, and unlinked."""
    if not len(blocks):
        return state
    dropped = add_pending_deletes(Table.empty(PENDING_DELETE_DTYPE), stream, blocks, time_ns).rows
    state = replace(state, pending_deletes=state.pending_deletes.append(dropped))
    if not stream.config.archive_command:
        return state
    archives = np.zeros(len(blocks), ARCHIVE_DTYPE)
    for name in ("incarnation", "block_id"):
        archives[name] = dropped[name]
    archives["stream"] = np.void(stream.incarnation)
    archives["first"], archives["end"] = blocks["first"], blocks["first"] + blocks["span"]
    return replace(state, archives=state.archives.append(archives))


def _emptied(stream: StreamState, removed: ChunkedSet, low_watermark: int, newly_removed: SequenceSet) -> np.ndarray:
    """Return the positions of the blocks that have none of their messages left, now that these are gone."""
    if not newly_removed:
        return np.empty(0, np.int64)
    near = stream.blocks_in(*newly_removed.bounds)
    rows = stream.blocks.rows[near]
    firsts, ends = rows["first"], rows["first"] + rows["span"]
    has_gone = newly_removed.touches(firsts, ends)
    # Removed sequences below the low watermark are not remembered.
    left = np.maximum(firsts[has_gone], low_watermark)
    positions: np.ndarray = near.start + np.flatnonzero(has_gone)[removed.run_ends(left) >= ends[has_gone]]
    return positions


def runs_needed(stream: StreamState) -> tuple[tuple[bytes, int], ...]:
    """Return the histories without the runs that no position asks for or brings.

    A reader at or behind the first message brings the run of the message before its place, and those before that one.
    A reader that is further back goes to the first message, whatever it has read (reconcile.py).
    """
    runs, first = stream.histories, stream.first_sequence
    if len(stream.lost_blocks):  # its messages may be the first ones again
        first = min(first, int(stream.lost_blocks.rows["first"][0]))
    before_first = bisect_left(runs, first, key=lambda run: run[1])
    return runs[max(0, before_first - HISTORY_RUNS_KEPT) :]


def declare_lost(state: StoreState, place: Place, time_ns: int, command: DeclareLost) -> tuple[StoreState, Result]:
    stream = live(state, command.incarnation)
    newly_lost = stream.removed.absent_among(
        SequenceSet.decode(command.sequences).clip(stream.low_watermark, stream.next_sequence)
    )
    if not newly_lost:
        return state, RemoveDone(0)
    count = len(newly_lost)
    stream, events = taken_away(stream, newly_lost, time_ns, "declared lost", may_come_back=True)
    stream = _remembering_blocks(stream, newly_lost)
    stream = replace(stream, removed=stream.removed.union(newly_lost), lost=stream.lost.union(newly_lost))
    state, stream = drop_below(state, stream, stream.low_watermark, time_ns, newly_lost, command.data_size)
    event = Event("lost", stream.name, after=_counted(newly_lost), reason=command.reason)
    return with_events(state.with_stream(stream), (event, *events), time_ns), RemoveDone(count)


def _counted(sequences: SequenceSet) -> str:
    ranges = ", ".join(f"{first} to {end - 1}" for first, end in sequences.ranges_head(5))
    return f"{len(sequences)} messages: {ranges}"


def _remembering_blocks(stream: StreamState, lost: SequenceSet) -> StreamState:
    """Return the stream that knows which blocks the lost messages were in."""
    near = stream.blocks.rows[stream.blocks_in(*lost.bounds)]
    rows = near[lost.touches(near["first"], near["first"] + near["span"])]
    rows = rows[~_are_in(rows, stream.lost_blocks.rows)].copy()
    rows["holders"] = rows["subject_set"] = 0  # which change, and would have to be kept up to date
    rows = np.concatenate((stream.lost_blocks.rows, rows))
    return replace(stream, lost_blocks=Table.of(rows[np.argsort(rows["first"], kind="stable")]))


def take_back(state: StoreState, place: Place, time_ns: int, command: TakeBack) -> tuple[StoreState, Result]:
    stream = live(state, command.incarnation)
    former = decode_blocks(command.rows, "rows")
    rows = former if len(former) else stream.lost_blocks.rows
    known = SequenceSet.from_columns(rows["first"], rows["first"] + rows["span"])
    taken = SequenceSet.decode(command.sequences).intersection(known.intersection(stream.lost))
    returned = former if len(former) else rows[taken.touches(rows["first"], rows["first"] + rows["span"])]
    returned = returned[~_are_in(returned, stream.blocks.rows)]
    if not taken and not len(returned):
        return state, RemoveDone(0)
    replaced = _replaced(stream, returned)
    expiries = stream.expiries
    if len(returned) and stream.config.allow_msg_ttl:  # which of their messages have one, their blocks tell
        due = np.zeros(len(returned), EXPIRY_DTYPE)
        due["first"], due["due_ns"] = returned["first"], time_ns
        due = np.concatenate((expiries.rows[~np.isin(expiries.rows["first"], due["first"])], due))
        expiries = Table.of(due[np.argsort(due["first"], kind="stable")])
    blocks = np.concatenate((stream.blocks.rows[~_are_in(stream.blocks.rows, replaced)], returned))
    lost = stream.lost.difference(taken)
    lost_blocks = _with_lost(stream, lost)[0]
    before = stream
    stream = replace(
        stream,
        blocks=Table.of(blocks[np.argsort(blocks["first"], kind="stable")]),
        removed=ChunkedSet.of(stream.removed.whole().difference(taken)),
        lost=lost,
        lost_blocks=lost_blocks,
        message_count=stream.message_count + len(taken),
        data_size=stream.data_size + command.data_size,
        expiries=expiries,
    )
    over = np.concatenate((replaced, before.lost_blocks.rows))
    over = over[~_are_in(over, stream.blocks.rows) & ~_are_in(over, lost_blocks.rows)]
    state = _kept(state, returned)
    state = replace(state, replaced=add_pending_deletes(state.replaced, before, over, time_ns))
    if not taken:
        return state.with_stream(stream), RemoveDone(0)
    stream, events = given_back(stream, taken, time_ns)
    event = Event("taken_back", stream.name, after=_counted(taken), reason="a copy of what was declared lost came back")
    return with_events(state.with_stream(stream), (event, *events), time_ns), RemoveDone(len(taken))


def _replaced(stream: StreamState, returned: np.ndarray) -> np.ndarray:
    """Return the live blocks whose place these take: one that these were merged into, or those that one of these was
    merged from. Refuses them unless they have all that is shown."""
    rows = stream.blocks.rows
    ends = returned["first"] + returned["span"]
    covered = SequenceSet.from_columns(returned["first"], ends)
    replaced: np.ndarray = rows[covered.touches(rows["first"], rows["first"] + rows["span"])]
    for first, span in replaced[["first", "span"]].tolist():
        missing = stream.shown(first, first + span).difference(covered)
        if missing:
            refuse(
                errors.RequirementError,
                f"stream {stream.name!r}: blocks that come back lack {len(missing)} messages that are shown, from "
                f"sequence {int(missing.starts[0])} on",
            )
    return replaced


def _kept(state: StoreState, blocks: np.ndarray) -> StoreState:
    """Return the state in which none of these blocks waits to be unlinked."""
    pending_deletes, replaced, archives = (
        table.keep(~_are_in(table.rows, blocks)) if len(table) else table
        for table in (state.pending_deletes, state.replaced, state.archives)
    )
    return replace(state, pending_deletes=pending_deletes, replaced=replaced, archives=archives)


def discard_lost(state: StoreState, place: Place, time_ns: int, command: DiscardLost) -> tuple[StoreState, Result]:
    events = []
    for stream in list(state.streams.values()):
        rows = stream.lost_blocks.rows
        if len(rows):
            state = with_dropped(state, stream, rows[~_are_in(rows, stream.blocks.rows)], time_ns)
            bare = replace(stream, lost_blocks=Table.empty(BLOCK_DTYPE))
            state = state.with_stream(replace(bare, histories=runs_needed(bare)))
            events.append(Event("discarded", stream.name, reason=f"{len(rows)} blocks of messages that were lost"))
    for set_aside in state.set_aside:
        after = _counted(SequenceSet.decode(set_aside.sequences))
        reason = f"another copy of the store had them; its metadata is in {set_aside.directory}"
        events.append(Event("discarded", set_aside.stream, "", set_aside.volume_id.hex(), after=after, reason=reason))
    known = {incarnation for stream in state.streams.values() for incarnation in stream.incarnations}
    foreign = sorted({set_aside.incarnation for set_aside in state.set_aside} - known)
    directories = np.zeros(len(foreign), PENDING_DELETE_DTYPE)
    for at, incarnation in enumerate(foreign):
        directories[at]["incarnation"], directories[at]["dropped_ns"] = np.void(incarnation), time_ns
    state = replace(state, pending_deletes=state.pending_deletes.append(directories))
    for former in state.former:
        reason = f"instance {former.instance_id.hex()} of the volume, last at {former.path}, is not waited for any more"
        events.append(Event("discarded", volume=former.volume_id.hex(), reason=reason))
    if not events:
        return state, Done()
    return with_events(replace(state, former=(), set_aside=()), tuple(events), time_ns), Done()


def unlinked(state: StoreState, place: Place, time_ns: int, command: Unlinked) -> tuple[StoreState, Result]:
    unlinked_ids = np.frombuffer(b"".join(command.blocks), "V32")
    pending_deletes, replaced, archives = (
        table.keep(~np.isin(pairs(table.rows), unlinked_ids)) if len(table) else table
        for table in (state.pending_deletes, state.replaced, state.archives)
    )
    return replace(state, pending_deletes=pending_deletes, replaced=replaced, archives=archives), Done()
