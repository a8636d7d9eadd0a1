"""What a stream shows where no index is current: every block read, its records and tombstones replayed in order."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.checksum import crc32c
from storage_core.errors import StorageError
from storage_core.files import Files
from storage_core.foreign.arrays import runs_by_size
from storage_core.foreign.nats.block import BlockContent, BlockFile, read_block
from storage_core.foreign.nats.columns import raw_headers, subjects_of
from storage_core.foreign.nats.directory import StreamDirectory
from storage_core.foreign.nats.extent import BlockState, Note, StreamState, part_of, shown_by, union_of
from storage_core.foreign.nats.holes import Span, block_names, find_holes, removes_silently
from storage_core.foreign.nats.index import SEQUENCE_END, OldBlockIndex, StreamIndex
from storage_core.foreign.nats.indexed import OLD_INDEX_SUFFIX, from_index, place_gone
from storage_core.foreign.nats.limits import Limits
from storage_core.foreign.nats.long_chains import side_by_side_size
from storage_core.foreign.nats.record import SIZE_MIN, Records, block_key, may_be_messages, read_heads
from storage_core.foreign.nats.replay import Log, replay
from storage_core.foreign.nats.scan import BlockScan, scan_blocks
from storage_core.foreign.nats.ttl import parse_rollups, parse_ttls
from storage_core.os_errors import raise_if_of_process
from storage_core.sequences import SequenceSet

SURE_VERSION_MIN = 2  # of index.db, from 2.11 on: its removals hold also when it is older than the blocks
_BLOCK_BITS = 40  # of a place in the log: the offset in a block, below the position of the block
_NONE = np.empty(0, np.int64)
_NO_RECORDS = Records(_NONE, _NONE, _NONE.astype(np.uint64), _NONE, _NONE, _NONE)


@dataclass(frozen=True, slots=True)
class _Read:
    """What is kept of a block that was read: its messages and what it says about others."""

    file: BlockFile
    messages: Records
    subjects: pa.StringArray | None
    ttls_ns: np.ndarray | None
    rollups: np.ndarray | None
    tombstones: np.ndarray  # sequences, in the order of the block
    tombstone_starts: np.ndarray
    numbers: tuple[int, int] | None  # lowest and highest of messages, erased and skipped records
    highest: int  # sequence, of all records
    begins_with: tuple[bool, int]  # the first record: whether it is a tombstone, and its number
    skipped_to: bool  # the first number is a skipped one, which stands for those in front of it as well
    damaged: bool
    damaged_front: bool  # in front of every number
    damaged_end: bool  # behind every number: more messages may have been there
    forgets_below: int | None  # see StreamState; None: all messages of this block and of earlier ones
    torn: int  # the highest sequence that a record behind every number claims, 0 if none does
    sound_crc32c: int | None  # see BlockState


def from_blocks(
    stream: StreamDirectory,
    index: StreamIndex | None,
    old: Sequence[OldBlockIndex | None],
    gone_blocks: Sequence[BlockState],
    files: Files,
) -> StreamState:
    """Return what the blocks say, with an index that is older than they are, and N.idx, as far as those hold.

    `gone`: what N.idx say of blocks that are not there.
    """
    limits = Limits.of(stream.config)
    last_index = max((file.block_index for file in stream.blocks), default=0)
    read = [
        block
        for first, end in runs_by_size(np.array([file.size for file in stream.blocks], np.int64), side_by_side_size())
        for block in _read_blocks(stream, stream.blocks[first:end], limits, last_index, files)
    ]
    known = from_index(index, stream) if index is not None else None
    removed = _removed_before(index, known, read) if index is not None and known is not None else SequenceSet.empty()
    for stale, block in zip(old, read, strict=True):
        if stale is not None:  # what it removed stays removed
            own_first = int(np.min(block.messages.sequences, initial=stale.first))
            removed = removed.union(stale.removed).union(SequenceSet.from_ranges([(own_first, stale.first)]))
    shown, floor = _shown(read, removed, limits)
    removed = removed.union(SequenceSet.from_sequences(np.concatenate([_NONE, *(each.tombstones for each in read)])))
    highest = max((block.highest for block in read), default=0)
    damaged = {block.file.block_index for block in read if block.damaged and block.damaged_end}
    lost = _lost_at_end(known, highest, damaged) if known is not None else []
    parts, notes = place_gone([*gone_blocks, *_cut(old, read)], [block.numbers for block in read if block.numbers])
    begin = max(1, limits.first_sequence)
    states = _spans(read, shown, removed, begin, min((block.first for block in lost), default=SEQUENCE_END))
    torn = max((block.torn for block in read), default=0)
    if any(state.end == SEQUENCE_END for state in states):
        # A damaged end of the stream held one more message at least, or may have, beside those that were removed.
        behind = SequenceSet.from_ranges([(highest + 1, SEQUENCE_END)]).difference(removed)
        highest = max(behind.bounds[0], torn)
    vouched = max([index.last + 1 if index else 0, *(stale.end for stale in old if stale is not None)])
    last = max([highest, vouched - 1, *(part.end - 1 for part in parts)])
    proven = union_of([removed, *(_hidden(block, some) for block, some in zip(read, shown, strict=True))])
    proven = proven.union(SequenceSet.from_ranges([(1, max(floor, _purged_below(stream, read, shown)))]))
    listed = SequenceSet.empty()
    if index is not None and known is not None:
        listed = shown_by(known.blocks)
        proven = proven.union(SequenceSet.from_ranges([(1, index.last + 1)]).difference(listed))
    silent = removes_silently(stream.config, _is_near(limits, read, shown))
    covered = [*states, *lost, *parts]
    holes = find_holes(_accounted(read, covered, begin), proven, begin, last + 1, listed, silent)
    notes += _lost_removals(read, [*(hole.block_index for hole in holes), *(part.file.block_index for part in parts)])
    covered += [part_of(hole, stream.messages_path) for hole in holes]
    covered.sort(key=lambda state: (state.first, state.end))
    count = sum(len(sequences) for sequences in shown)
    first = covered[0].first if covered else last + 1
    forgets_below = max([_forgets_below(read, last + 1), *(hole.end for hole in holes), *(part.end for part in lost)])
    if any(note.unclear for note in notes):
        forgets_below = last + 1
    all_removed = SequenceSet.from_ranges([(1, last + 1)]).difference(shown_by(covered))
    is_indexed = index is not None and not lost
    state = StreamState(first, last, count, "blocks", tuple(covered), None, all_removed, is_indexed, tuple(notes))
    return replace(state, vouched_end=vouched, forgets_below=forgets_below)


def _removed_before(index: StreamIndex, known: StreamState, read: Sequence[_Read]) -> SequenceSet:
    """Return what an index that is older than the blocks says was removed, but for messages that came after it.

    A follower that was cut back uses sequences again. Releases of 2.10 note messages as removed that are not.
    """
    if index.version < SURE_VERSION_MIN:
        return SequenceSet.empty()
    newer = [block.messages.sequences[block.messages.times_ns > index.last_time_ns] for block in read]
    return known.removed.difference(SequenceSet.from_sequences(np.concatenate([_NONE, *newer])))


def _cut(old: Sequence[OldBlockIndex | None], read: Sequence[_Read]) -> list[BlockState]:
    """Return what the N.idx of blocks list behind the last record: the file was cut between two records."""
    parts = []
    for stale, block in zip(old, read, strict=True):
        first = max(block.highest + 1, stale.first) if stale is not None else 0
        if stale is not None and first < stale.end and not block.damaged_end:
            removed = stale.removed.clip(first, stale.end)
            reason = f"its N{OLD_INDEX_SUFFIX} lists [{first}, {stale.end}), and the file ends in front of them"
            count = stale.end - first - len(removed)
            parts.append(BlockState(block.file, first, stale.end, removed, count, True, reason))
    return [part for part in parts if part.message_count]


def _forgets_below(read: Sequence[_Read], end: int) -> int:
    """Return below which sequence removals may be lost by damage: a tombstone follows the message that it removes."""
    below = 0
    for at, block in enumerate(read):
        after = next((later.numbers[0] for later in read[at + 1 :] if later.numbers), end)
        below = max(below, after if block.forgets_below is None else block.forgets_below)
    return below


def _hidden(block: _Read, shown: np.ndarray) -> SequenceSet:
    """Return which messages of a block do not show: a tombstone or a limit removed them."""
    return SequenceSet.from_sequences(block.messages.sequences).difference(SequenceSet.from_sequences(shown))


def _read_blocks(
    stream: StreamDirectory, block_files: Sequence[BlockFile], limits: Limits, last_index: int, files: Files
) -> list[_Read]:
    """Return what is in some blocks, whose long messages are hashed side by side."""
    contents = []
    keys = [block_key(stream.name, file.block_index) for file in block_files]
    for file, key in zip(block_files, keys, strict=True):
        try:
            content = read_block(file.path, files, file.key, key)
        except (OSError, StorageError) as error:  # reported when the block is read for its messages
            raise_if_of_process(error)
            content = BlockContent(pa.py_buffer(b""), False, [(0, str(error))])
        is_begun = file.block_index == last_index and (last_index == 1 or len(stream.blocks) > 1)
        if not content.data.size and not is_begun:
            # The server makes an empty file when it begins a block, behind one that is full.
            content = replace(content, damage=[*content.damage, (0, "the file is empty")])
        contents.append(content)
    scans = scan_blocks([(content.data, key) for content, key in zip(contents, keys, strict=True)])
    return [
        _read_of(file, content, scan, limits) for file, content, scan in zip(block_files, contents, scans, strict=True)
    ]


def _read_of(file: BlockFile, content: BlockContent, scan: BlockScan, limits: Limits) -> _Read:
    is_unknown = bool(content.damage)
    messages, records = scan.records.take(scan.messages), scan.records
    numbered = records.take(~records.tombstones & (records.sequences > 0))
    # Behind the highest number only a piece from another place can follow, which hides what was there.
    low, high = (int(numbered.starts.min()), _end_of_highest(numbered)) if len(numbered) else (0, 0)
    bearing = [damage for damage in scan.damage if may_be_messages(content.data, damage.offset_bytes, damage.end_bytes)]
    front = is_unknown or any(damage.offset_bytes <= low or not len(numbered) for damage in bearing)
    end = is_unknown or any(damage.end_bytes >= high for damage in bearing)
    highest = int(np.max(records.sequences, initial=0))
    befores = [each.before for each in scan.damage]
    has_headers = messages.header_sizes >= 0
    headers = raw_headers(content.data, messages) if limits.per_message_ttl or limits.rolls_up else None
    return _Read(
        file=file,
        messages=messages,
        subjects=subjects_of(content.data, messages) if limits.max_msgs_per_subject or limits.rolls_up else None,
        ttls_ns=parse_ttls(headers, has_headers) if limits.per_message_ttl else None,
        rollups=parse_rollups(headers, has_headers) if limits.rolls_up else None,
        tombstones=scan.tombstones,
        tombstone_starts=records.starts[records.tombstones],
        numbers=(int(numbered.sequences.min()), int(numbered.sequences.max())) if len(numbered) else None,
        highest=highest,
        begins_with=(bool(records.tombstones[0]), int(records.sequences[0])) if len(records) else (False, 0),
        skipped_to=len(numbered) > 0 and bool(numbered.erased[0]) and int(numbered.sizes[0]) == SIZE_MIN,
        damaged=is_unknown or bool(scan.damage),
        damaged_front=front,
        damaged_end=end,
        forgets_below=None if is_unknown or None in befores else max((each or 0 for each in befores), default=0),
        torn=_torn(content.data, scan, high, highest),
        sound_crc32c=None if is_unknown or scan.damage else crc32c(content.data),
    )


def _end_of_highest(numbered: Records) -> int:
    return int(numbered.ends[np.argmax(numbered.sequences)])


def _heads(block: pa.Buffer, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Return size and number that a record would have which begins there."""
    head, _ = read_heads(np.frombuffer(block, np.uint8), np.array([start]), block.size)
    return head.sizes, head.sequences


def _torn(block: pa.Buffer, scan: BlockScan, high: int, highest: int) -> int:
    """Return the highest sequence that the head of a damaged record behind every number claims, as far as it can be."""
    torn = 0
    for damage in scan.damage:
        room = damage.end_bytes - damage.offset_bytes
        if damage.offset_bytes < high or block.size - damage.offset_bytes < SIZE_MIN:
            continue
        _, (number,) = _heads(block, damage.offset_bytes)
        if highest < number <= highest + max(1, room // SIZE_MIN):
            torn = max(torn, int(number))
    return torn


def _shown(read: Sequence[_Read], removed: SequenceSet, limits: Limits) -> tuple[list[np.ndarray], int]:
    """Return, block by block, the sequences that stay, and a sequence below which a limit left none.

    What stays is in no earlier block, not removed, and within the limits.
    """
    masks, highest = [], 0
    for block in read:
        sequences = block.messages.sequences
        masks.append((sequences > highest) & ~removed.mask(sequences))
        highest = max(highest, int(np.max(sequences, initial=0)))
    if not read:
        return [], 0
    parts = [block.messages.take(mask) for block, mask in zip(read, masks, strict=True)]
    codes = np.zeros(sum(map(len, parts)), np.int64)
    if limits.max_msgs_per_subject or limits.rolls_up:
        subjects = [
            block.subjects.filter(buffers.of_bits(mask))
            for block, mask in zip(read, masks, strict=True)
            if block.subjects is not None
        ]
        codes = buffers.numbers(pa.concat_arrays(subjects).dictionary_encode().indices) if subjects else codes
    bases = [position << _BLOCK_BITS for position in range(len(read))]
    ttls = [block.ttls_ns[mask] for block, mask in zip(read, masks, strict=True) if block.ttls_ns is not None]
    rollups = [block.rollups[mask] for block, mask in zip(read, masks, strict=True) if block.rollups is not None]
    log = Log(
        sequences=np.concatenate([part.sequences for part in parts]),
        sizes=np.concatenate([part.sizes for part in parts]),
        times_ns=np.concatenate([part.times_ns for part in parts]),
        places=np.concatenate([base + part.starts for base, part in zip(bases, parts, strict=True)]),
        subjects=codes,
        ttls_ns=np.concatenate(ttls) if ttls else None,
        rollups=np.concatenate(rollups) if rollups else None,
        removals=np.concatenate([block.tombstones for block in read]),
        removal_places=np.concatenate([base + block.tombstone_starts for base, block in zip(bases, read, strict=True)]),
    )
    replayed = replay(log, limits)
    cuts = np.cumsum([len(part) for part in parts])[:-1]
    shown = [part.sequences[mask] for part, mask in zip(parts, np.split(replayed.keep, cuts), strict=True)]
    return shown, replayed.floor


def _spans(
    read: Sequence[_Read], shown: Sequence[np.ndarray], removed: SequenceSet, begin: int, end_of_all: int
) -> list[BlockState]:
    """Return the parts. Where a block is damaged at an end, it answers up to its neighbour: it may have held that."""
    states: list[BlockState] = []
    end_before = begin
    for at, (block, sequences) in enumerate(zip(read, shown, strict=True)):
        own = block.messages.sequences
        if block.damaged:
            first = end_before if block.damaged_front or not block.numbers else max(end_before, block.numbers[0])
            after = [later.numbers[0] for later in read[at + 1 :] if later.numbers]
            next_first = after[0] if after else end_of_all
            end = next_first if block.damaged_end or not block.numbers else block.numbers[1] + 1
        elif len(sequences):
            first, end = int(sequences[0]), int(sequences[-1]) + 1
        else:
            first = end = end_before
        if first < end:
            hidden = SequenceSet.from_sequences(own).difference(SequenceSet.from_sequences(sequences))
            hidden = hidden.union(removed).clip(first, end)
            part = BlockState(block.file, first, end, hidden, len(sequences), False)
            states.append(replace(part, sound_crc32c=block.sound_crc32c))
        end_before = max(end_before, block.numbers[1] + 1 if block.numbers else 0)
    return states


def _accounted(read: Sequence[_Read], covered: Sequence[BlockState], begin: int) -> list[Span]:
    """Return the numbers that each block accounts for, and those of the parts."""
    spans = {state.file.block_index: Span(state.file.block_index, state.first, state.end) for state in covered}
    for block in read:
        number = block.file.block_index
        span = spans.get(number, Span(number, 0, 0))
        if block.numbers:
            low, high = block.numbers
            first = min(low, span.first) if span.end else low
            span = Span(number, 0 if block.skipped_to else first, max(high + 1, span.end))
        if number == 1 and not block.damaged_front:
            span = replace(span, first=min(begin, span.first))  # the server counts blocks from 1: it had the first
        spans[number] = span
    return [spans[number] for number in sorted(spans)]


def _purged_below(stream: StreamDirectory, read: Sequence[_Read], shown: Sequence[np.ndarray]) -> int:
    """Return the sequence below which all were purged, as the tombstones say that a purge leaves; 0 if none did.

    A purge of everything leaves a block that begins with a tombstone of the last number. A purge up to a sequence
    removes the blocks in front of it, and writes the tombstones of the rest of its block one after the other. One
    tombstone alone may be of a message that was deleted: then it says nothing of those in front.
    """
    numbered = next((block for block in read if block.numbers), None)
    if read and read[0].begins_with[0]:
        last = read[0].begins_with[1]
        if numbered is None or numbered.numbers is None or numbered.numbers[0] == last + 1:
            return last + 1
    first = next((int(sequences[0]) for sequences in shown if len(sequences)), None)
    if numbered is None or first is None or stream.config.get("retention", "limits") != "limits":
        return 0
    leading = numbered.messages.sequences
    leading = leading[leading < first]
    tombstones = np.concatenate([block.tombstones for block in read])
    starts = np.flatnonzero(tombstones == leading[0]) if len(leading) > 1 else _NONE
    if not len(starts):
        return 0
    run = tombstones[starts[0] : starts[0] + len(leading)]
    return first if np.array_equal(run, leading) else 0


def _is_near(limits: Limits, read: Sequence[_Read], shown: Sequence[np.ndarray]) -> bool:
    count = sum(map(len, shown))
    sizes = [block.messages.sizes for block in read]
    kept = [
        block.messages.sizes[np.isin(block.messages.sequences, some)] for block, some in zip(read, shown, strict=True)
    ]
    size, kept_size = (int(sum(part.sum() for part in parts)) for parts in (sizes, kept))
    tombstones = sum(len(block.tombstones) for block in read)
    largest = max((int(part.max(initial=0)) for part in sizes), default=0)
    return limits.is_near(count, kept_size, tombstones, size - kept_size + tombstones * largest, largest)


def _lost_removals(read: Sequence[_Read], told_removals: Sequence[int]) -> list[Note]:
    """Return which blocks are gone between others without a number that is missing: they held removals, or nothing."""
    numbers = [block.file.block_index for block in read]
    gaps = [
        (low + 1, high)
        for low, high in zip(numbers, numbers[1:], strict=False)
        if high > low + 1 and not any(low < each < high for each in told_removals)
    ]
    if not gaps:
        return []
    names = block_names(SequenceSet.from_ranges(gaps))
    reason = f"{names} not there, and no index tells whether removals were lost with them"
    return [Note(f"{reason}: what was removed may show again", True)]


def _lost_at_end(known: StreamState, highest: int, damaged: Container[int]) -> list[BlockState]:
    """Return parts for what an old index lists above every sequence of the blocks: numbers never fall, so it is lost.

    A file is gone, or was cut between two records. Damaged blocks answer for their own end.
    """
    lost = []
    for block in known.blocks:
        first = max(block.first, highest + 1)
        if first < block.end and block.file.block_index not in damaged:
            removed = block.removed.clip(first, block.end)
            count = block.end - first - len(removed)
            lost.append(replace(block, first=first, removed=removed, message_count=count))
    return [block for block in lost if block.message_count]
