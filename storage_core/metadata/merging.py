"""Merging, applied: a run of neighbouring blocks of a stream becomes one block with the same messages.

Part of the state machine (machine.py), and pure like it. What was read and written for it was read and written before,
perhaps long before and without a lock; so here it is checked against the state as it is now that the new block says the
same as those that it replaces. A refused merge changes nothing: the old blocks stay.

What cannot happen: a message that is shown goes (rows that the new block lacks must be known as removed), a sequence
changes (the run begins and ends where it did), a `msg_id` that counts is forgotten.
"""

import numpy as np

from storage_core.errors import RequirementError
from storage_core.frozen import replace
from storage_core.metadata import subject_sets
from storage_core.metadata.commands import MergeBlocks
from storage_core.metadata.manifest import Table, decode_blocks
from storage_core.metadata.state import StreamState
from storage_core.metadata.subject_sets import SUBJECT_SET_COUNT_MAX
from storage_core.sequences import SequenceSet


def apply_to(stream: StreamState, time_ns: int, command: MergeBlocks) -> tuple[StreamState, np.ndarray]:
    """Return the stream with the new block, and the rows of those that it replaces.

    Raises RequirementError if the stream has changed in between so that the new block is not the same any more.
    """
    rows = stream.blocks.rows
    row = decode_blocks(command.row, "row").copy()
    start = int(np.searchsorted(rows["first"], row["first"][0]))
    end = start + len(command.blocks) // 16
    before = rows[start:end]
    label = f"stream {stream.name!r}: blocks from sequence {int(row['first'][0])} on"
    if len(before) < 2 or before["block_id"].tobytes() != command.blocks:
        raise RequirementError(f"{label} cannot be merged: they are not all live any more")
    _check(stream, before, row[0], SequenceSet.decode(command.dropped) if command.dropped else None, label)
    counted = (before["msg_id_count"] > 0) & (before["committed_ns"] >= time_ns - stream.config.duplicate_window)
    if counted.any():
        raise RequirementError(f"{label} cannot be merged yet: msg_ids count until the duplicate window has passed")
    with_ids = before[before["msg_id_count"] > 0]  # they count no more, and not again because of their neighbours
    row["committed_ns"] = (with_ids if len(with_ids) else before)["committed_ns"].max()
    row["subject_set"] = 0
    made = np.concatenate((rows[:start], row, rows[end:]))
    sets = stream.subject_sets
    if len(sets) > SUBJECT_SET_COUNT_MAX // 2:
        sets, made["subject_set"] = subject_sets.without_unused(sets, made)
    if command.subjects is not None:
        sets, places = subject_sets.merged(sets, (command.subjects,))
        made["subject_set"][start] = places[1]
    return replace(stream, blocks=Table.of(made), subject_sets=sets), before


def _check(stream: StreamState, before: np.ndarray, row: np.void, dropped: SequenceSet | None, label: str) -> None:
    """Raise RequirementError unless the new block has everything that is shown of the others, where they had it."""
    first, end = int(before["first"][0]), int(before["first"][-1] + before["span"][-1])
    if (int(row["first"]), int(row["first"] + row["span"])) != (first, end):
        raise RequirementError(f"{label} end at {end}, the merged one at {int(row['first'] + row['span'])}")
    if stream.written_as(first) != stream.written_as(end - 1):
        raise RequirementError(f"{label} cannot be merged: they were written for two incarnations of the stream")
    if len(stream.lost_blocks_in(first, end)):
        raise RequirementError(f"{label} cannot be merged: messages that are lost there may come back")
    removed = dropped if dropped is not None else SequenceSet.empty()
    shown = stream.shown(first, end)
    if removed.intersection(shown):
        raise RequirementError(f"{label} cannot be merged: the new block lacks messages that are shown")
    count = int(before["row_count"].sum()) - len(removed)
    if int(row["row_count"]) != count:
        raise RequirementError(f"{label} hold {count} messages without those removed, not {int(row['row_count'])}")
    if count < len(shown):
        raise RequirementError(f"{label} show {len(shown)} messages, and the new block has {count}")
