"""Removing messages: which sequences a request means, and how many bytes go.

What is removed is always one explicit set, worked out here from a state and the blocks, then committed. If the stream
changed in between, it is worked out again under the lock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storage_core import buffers
from storage_core.metadata import machine
from storage_core.metadata.commands import Envelope, Remove
from storage_core.metadata.state import StoreState, StreamState
from storage_core.raft.entry import HISTORY_SIZE
from storage_core.sequences import SequenceSet
from storage_core.store.environment import Environment
from storage_core.store.reading.plan import ReadRequest, plan_stream
from storage_core.store.reading.reading import ReadOptions, read_slices
from storage_core.store.reading.slices import BlockSlice, BlockSlices
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing.limits import Limits


@dataclass(frozen=True, slots=True)
class Removal:
    """A request to remove messages."""

    sequences: SequenceSet | None = None  # these; else what the fields below say
    subject: str | None = None  # only messages that this filter takes
    keep: int | None = None  # but not the newest `keep` of them
    end: int | None = None  # only sequences below this one
    before_ns: int | None = None  # only messages whose time lies before this one

    @property
    def reason(self) -> str:
        return "purge" if self.sequences is None else "delete"


@dataclass(frozen=True, slots=True)
class RemovalPlan:
    """What a removal would do now."""

    message_count: int
    data_size: int  # message bytes of these
    left_count: int  # messages that stay
    unread: dict[str, int]  # by consumer: messages that it has not acknowledged, and would miss
    block_count: int  # that would have nothing left to show: their files go
    disk_size: int  # bytes of these files, all copies
    freed_ns: int  # before then maintenance does not unlink them
    waits_for_archive: bool  # and not before archive_command has had them


def command(
    state: StoreState,
    stream: StreamState,
    removal: Removal,
    volumes: Sequence[Volume],
    limits: Limits,
    env: Environment,
) -> Remove:
    """Return the command that removes what is meant, by the state that is given."""
    chosen, low_watermark = _chosen(state, stream, removal, volumes, env)
    removed = stream.removed.absent_among(chosen.clip(stream.low_watermark, stream.next_sequence))
    size = limits.size_of(state, stream, removed, volumes) if removed else 0
    inside = chosen if low_watermark == 0 else chosen.clip(low_watermark, stream.next_sequence)
    return Remove(stream.incarnation, inside.encode(), size, low_watermark, removal.reason)


def plan(
    state: StoreState, stream: StreamState, removal: Removal, volumes: Sequence[Volume], env: Environment
) -> RemovalPlan:
    """Return what a removal would do now; raises what it would be refused with.

    Its command is applied to a copy of the state, so the plan is what happens.
    """
    made, now_ns = command(state, stream, removal, volumes, Limits(env), env), env.now_ns()
    after, result = machine.apply(state, machine.Place(0, bytes(HISTORY_SIZE)), Envelope(now_ns, made))
    if isinstance(result, machine.Refused):
        result.raise_()
    left = after.by_incarnation(stream.incarnation)
    assert left is not None and isinstance(result, machine.RemoveDone)
    rows = stream.blocks.rows
    rows = rows[~np.isin(rows["first"], left.blocks.rows["first"])]
    skipped = {name: consumer.skipped - stream.consumers[name].skipped for name, consumer in left.consumers.items()}
    return RemovalPlan(
        message_count=result.message_count,
        data_size=made.data_size,
        left_count=left.message_count,
        unread={left.consumers[name].name: count for name, count in sorted(skipped.items()) if count},
        block_count=len(rows),
        disk_size=sum(int(row["file_size"]) * int(row["holders"]).bit_count() for row in rows),
        freed_ns=after.time_ns + state.settings.deleted_block_retention,
        waits_for_archive=bool(stream.config.archive_command),
    )


def _chosen(
    state: StoreState, stream: StreamState, removal: Removal, volumes: Sequence[Volume], env: Environment
) -> tuple[SequenceSet, int]:
    """Return the sequences that are meant, and the low_watermark that says the same, 0 if none does."""
    if removal.sequences is not None:
        return removal.sequences, 0
    limit = min(removal.end, stream.next_sequence) if removal.end is not None else stream.next_sequence
    filters = (removal.subject,) if removal.subject not in (None, ">") else ()
    if filters or removal.before_ns is not None:
        bounds: dict[str, Any] = {"subject_filters": filters, "time_end_ns": removal.before_ns}
        request = ReadRequest((stream.name,), {stream.name: (None, limit)}, **bounds)
        slices, _ = plan_stream(state, stream, volumes, request)
        options = ReadOptions(("sequence",), **bounds)
        chosen, unread = _without_reading(stream, removal, slices, limit)
        parts = [buffers.numbers(batch.column("sequence")) for batch in read_slices(unread, options, env=env)]
        chosen = chosen.union(SequenceSet.from_parts(parts))
        return chosen.head(len(chosen) - removal.keep) if removal.keep else chosen, 0
    shown = stream.shown(end=limit)
    if removal.keep and shown:
        limit = int(shown.tail(removal.keep).starts[0])
    return shown.clip(stream.low_watermark, limit), max(limit, stream.low_watermark)


def _without_reading(
    stream: StreamState, removal: Removal, slices: BlockSlices, limit: int
) -> tuple[SequenceSet, Sequence[BlockSlice]]:
    """Return what goes of blocks that are older as a whole, and the slices that have to be read for the rest."""
    if removal.before_ns is None or removal.subject not in (None, ">"):
        return SequenceSet.empty(), slices
    rows = stream.blocks.rows
    rows = rows[(rows["time_max_ns"] < removal.before_ns) & (rows["first"] < limit)]
    whole = SequenceSet.from_columns(rows["first"], rows["first"] + rows["span"]).intersection(stream.shown())
    return whole.clip(stream.low_watermark, limit), [piece for piece in slices if piece.first not in whole]
