"""What a stream shows, block by block, and what is missing from it: values only."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from storage_core.foreign.nats.block import BLOCK_SUFFIX, BlockFile
from storage_core.foreign.nats.holes import Hole
from storage_core.sequences import SequenceSet

SENT_COUNT_MAX = 1 << 20  # sequences behind the last one that a consumer is believed to have been sent


@dataclass(frozen=True, slots=True)
class BlockState:
    """The part of a stream that one block answers for: sequences in `[first, end)` without `removed`."""

    file: BlockFile
    first: int
    end: int
    removed: SequenceSet
    message_count: int
    known: bool  # an index vouches that the block holds every sequence of the part
    missing: str = ""  # why no file has the part; "": `file` has it
    open: bool = False  # nothing tells whether what is missing was removed or is lost
    sound_crc32c: int | None = None  # of its uncompressed content, if that was read, and every record in it is true


@dataclass(frozen=True, slots=True)
class Note:
    """What is wrong with an index, or what nobody can tell without one."""

    reason: str
    unclear: bool = False  # messages that were removed may show again


@dataclass(frozen=True, slots=True)
class StreamState:
    first: int  # sequence of the first message, or of the first one that is lost or open; last + 1 if there is none
    last: int  # highest sequence ever used, as far as it is known
    message_count: int
    source: str  # what the state was read from
    blocks: tuple[BlockState, ...]
    subjects: tuple[str, ...] | None  # all subjects of shown messages, if an index lists them and they are few
    removed: SequenceSet  # sequences that had a message, or were skipped, and are known to have been removed since
    indexed: bool  # there is an index.db, which tells how far the stream went when it was written
    notes: tuple[Note, ...] = ()
    vouched_end: int = 0  # one above the last sequence that an index tells of
    forgets_below: int = 0  # removals of messages below this sequence may be lost, so that they show again


def with_sent(state: StreamState, sent: int, messages_path: str, is_silent: bool) -> StreamState:
    """Return the state of a stream of which a consumer was sent the sequence `sent`: it has gone so far at least.

    The file that says so has no checksum: what is far ahead is not believed, and told with the consumer alone.
    """
    if not state.last < sent <= state.last + SENT_COUNT_MAX:
        return state
    first = state.last + 1
    reason = f"a consumer was sent sequence {sent}, and no block has it or anything behind {state.last}"
    last_block = max((block.file.block_index for block in state.blocks), default=0)
    hole = Hole(first, sent + 1, SequenceSet.empty(), last_block + 1, is_silent, reason)
    part = part_of(hole, messages_path)
    return replace(state, first=min(state.first, first), last=sent, blocks=(*state.blocks, part))


def part_of(hole: Hole, messages_path: str) -> BlockState:
    """Return a hole as a part: of a block that is not there, so that reading it tells what is lost."""
    file = BlockFile(hole.block_index, f"{messages_path}/{hole.block_index}{BLOCK_SUFFIX}", 0)
    return BlockState(file, hole.first, hole.end, hole.removed, 0, False, hole.reason, hole.open)


def shown_by(blocks: Iterable[BlockState]) -> SequenceSet:
    """Return the sequences that the parts answer for."""
    return union_of([SequenceSet.from_ranges([(each.first, each.end)]).difference(each.removed) for each in blocks])


def union_of(sets: Sequence[SequenceSet]) -> SequenceSet:
    if not sets:
        return SequenceSet.empty()
    return SequenceSet.from_columns(
        np.concatenate([part.starts for part in sets]), np.concatenate([part.ends for part in sets])
    )
