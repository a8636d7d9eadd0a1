"""What a stream shows by its index: index.db, or the N.idx of every block, where they are current."""

from collections.abc import Sequence
from pathlib import Path

from storage_core.foreign.nats.block import BLOCK_SUFFIX, BlockFile
from storage_core.foreign.nats.directory import StreamDirectory
from storage_core.foreign.nats.extent import BlockState, Note, StreamState, part_of, shown_by, union_of
from storage_core.foreign.nats.holes import Hole, Span, find_holes, removes_silently
from storage_core.foreign.nats.index import OldBlockIndex, StreamIndex
from storage_core.foreign.nats.limits import Limits
from storage_core.foreign.nats.meta import INDEX_FILE
from storage_core.sequences import SequenceSet

OLD_INDEX_SUFFIX = ".idx"
SUBJECT_COUNT_MAX = 1024  # subjects that are given to readers; more are not checked against
SUBJECTS_SIZE_MAX = 32 << 10  # bytes of them


def from_index(index: StreamIndex, stream: StreamDirectory) -> StreamState:
    """Return what an index.db says. What contradicts it is damage: see `_emptied`."""
    present = {block.block_index: block for block in stream.blocks}
    states = []
    for block in sorted(index.blocks, key=lambda block: block.block_index):
        if not block.message_count:
            continue
        # A listed block without a file is kept: reading it tells what is lost.
        path = str(Path(stream.messages_path) / f"{block.block_index}{BLOCK_SUFFIX}")
        file = present.get(block.block_index) or BlockFile(block.block_index, path, 0)
        removed = block.removed.clip(block.first, block.end)
        states.append(BlockState(file, block.first, block.end, removed, block.message_count, True))
    count = sum(state.message_count for state in states)
    few = len(index.subjects) <= SUBJECT_COUNT_MAX and sum(map(len, index.subjects)) <= SUBJECTS_SIZE_MAX
    # A server that has miscounted its messages has miscounted their subjects, too, and may have left one out.
    subjects = tuple(sorted(index.subjects)) if few and count == index.message_count else None
    states = sorted([*states, *_emptied(index, stream, states)], key=lambda state: (state.first, state.end))
    states = [*_before(index, stream, states), *states]
    first = min(index.first, states[0].first) if states else index.first
    removed = SequenceSet.from_ranges([(1, index.last + 1)]).difference(shown_by(states))
    return StreamState(first, index.last, count, INDEX_FILE, tuple(states), subjects, removed, True)


def _emptied(index: StreamIndex, stream: StreamDirectory, states: Sequence[BlockState]) -> list[BlockState]:
    """Return parts for block files of 0 bytes in front of others, which the index lists without messages.

    No server leaves one: it goes to the next block when one is full, and removes one of which everything was removed.
    Some, when encryption was switched on, emptied a block and wrote an index of what was left. What the index does not
    place in other blocks, from its first sequence on, was in this one.
    """
    listed = {state.file.block_index for state in states}
    last = max((block.block_index for block in stream.blocks), default=0)
    parts = []
    for block in stream.blocks:
        if block.size or block.block_index in listed or block.block_index == last:
            continue
        first = max([index.first, *(state.end for state in states if state.file.block_index < block.block_index)])
        end = min((state.first for state in states if state.file.block_index > block.block_index), default=first)
        if first < end:
            reason = (
                f"the file is empty, others follow it, and {INDEX_FILE} says that the stream begins with "
                f"{index.first} and has [{first}, {end}) in no block"
            )
            parts.append(BlockState(block, first, end, SequenceSet.empty(), 0, False, reason))
    return parts


def _before(index: StreamIndex, stream: StreamDirectory, states: Sequence[BlockState]) -> list[BlockState]:
    """Return a part for what is in front of all blocks, if the index says that the stream begins there."""
    if not states or not 0 < index.first < states[0].first:
        return []
    first, end = index.first, states[0].first
    reason = f"{INDEX_FILE} says that the stream begins with {first}, and has [{first}, {end}) in no block"
    return [part_of(Hole(first, end, SequenceSet.empty(), 0, False, reason), stream.messages_path)]


def from_old_indexes(
    old: Sequence[OldBlockIndex], stream: StreamDirectory, gone_blocks: Sequence[BlockState]
) -> StreamState:
    """Return what the N.idx of all blocks say; `gone`: what such an index says of blocks that are not there."""
    states, notes = place_gone(gone_blocks, [(known.first, known.end) for known in old])
    begin = max(1, Limits.of(stream.config).first_sequence)
    spans = [Span(state.file.block_index, state.first, state.end) for state in states]
    for file, known in zip(stream.blocks, old, strict=True):
        first = begin if file.block_index == 1 else known.first
        spans.append(Span(file.block_index, first, known.end))
        count = known.end - known.first - len(known.removed)
        if count > 0:
            states.append(BlockState(file, known.first, known.end, known.removed, count, True))
    spans.sort(key=lambda span: span.block_index)
    last = max((span.end - 1 for span in spans), default=0)
    removed = union_of([known.removed for known in old])
    silent = removes_silently(stream.config, False)
    holes = find_holes(spans, removed, begin, last + 1, SequenceSet.empty(), silent)
    states = sorted([*states, *(part_of(hole, stream.messages_path) for hole in holes)], key=lambda state: state.first)
    total = sum(state.message_count for state in states)
    first = states[0].first if states else last + 1
    removed = SequenceSet.from_ranges([(1, last + 1)]).difference(shown_by(states))
    return StreamState(first, last, total, "N.idx", tuple(states), None, removed, False, tuple(notes))


def place_gone(
    gone_blocks: Sequence[BlockState], answered: Sequence[tuple[int, int]]
) -> tuple[list[BlockState], list[Note]]:
    """Return the parts whose blocks are gone and for which no block that is there answers; the others as notes."""
    known, parts, notes = SequenceSet.from_ranges(answered), list[BlockState](), list[Note]()
    for part in sorted(gone_blocks, key=lambda part: part.first):
        if known.count_in(part.first, part.end):
            reason = f"{Path(part.file.path).name} is gone, and its index lists [{part.first}, {part.end})"
            notes.append(Note(reason))
            continue
        known = known.union(SequenceSet.from_ranges([(part.first, part.end)]))
        parts.append(part)
    return parts, notes
