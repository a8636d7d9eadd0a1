"""What a stream shows: for each block the sequences that a client of the server would get.

Three sources, the first that applies:
- index.db, if it is whole and still ends with what ends the last block: it knows every removed message.
- The N.idx of every block (servers up to 2.9), under the same condition.
- The blocks themselves: every record is read and checked, tombstones remove messages in all blocks, and what an index
  that is older than the blocks says was removed stays so; then the limits are applied again. Deleted messages that a
  server up to 2.9 left no trace of but in a lost N.idx show again, and so do those whose tombstones are gone with
  their block where there is no index.

Source: nats-server, server/filestore.go (`recoverFullState`, `recoverMsgs`, `recoverMsgBlock`).
"""

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.checksum import crc32c
from storage_core.errors import CorruptionError, StorageError, UnsupportedVersionError
from storage_core.file_kinds import NATS_INDEX, NATS_OLD_INDEX
from storage_core.files import OS_FILES, Files
from storage_core.foreign.arrays import runs_by_size
from storage_core.foreign.nats.block import (
    BLOCK_SUFFIX,
    KEY_SUFFIX,
    BlockContent,
    BlockFile,
    last_bytes,
    read_block,
    read_file,
)
from storage_core.foreign.nats.columns import raw_headers, subjects_of
from storage_core.foreign.nats.directory import StreamDirectory
from storage_core.foreign.nats.index import (
    SEQUENCE_END,
    OldBlockIndex,
    StreamIndex,
    decode_index,
    decode_old_block_index,
)
from storage_core.foreign.nats.limits import Limits
from storage_core.foreign.nats.long_chains import side_by_side_size
from storage_core.foreign.nats.meta import INDEX_FILE
from storage_core.foreign.nats.record import HASH_SIZE, Records, block_key
from storage_core.foreign.nats.scan import BlockScan, scan_blocks
from storage_core.foreign.nats.ttl import parse_ttls
from storage_core.os_errors import raise_if_of_process
from storage_core.sequences import SequenceSet

OLD_INDEX_SUFFIX = ".idx"
SUBJECT_COUNT_MAX = 1024  # subjects that are given to readers; more are not checked against
SUBJECTS_SIZE_MAX = 32 << 10  # bytes of them
SURE_VERSION_MIN = 2  # of index.db, from 2.11 on: its removals hold also when it is older than the blocks
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class BlockState:
    """The part of a stream that one block answers for: sequences in `[first, end)` without `removed`."""

    file: BlockFile
    first: int
    end: int
    removed: SequenceSet
    message_count: int
    known: bool  # an index vouches that the block holds every sequence of the part
    sound_crc32c: int | None = None  # of its uncompressed content, if that was read, and every record in it is true


@dataclass(frozen=True, slots=True)
class Note:
    """What is wrong with an index, or what nobody can tell without one."""

    reason: str
    doubt: tuple[int, int] | None = None  # sequences [first, end) of which it is not known what became


@dataclass(frozen=True, slots=True)
class StreamState:
    first: int  # sequence of the first message; last + 1 if there is none
    last: int  # highest sequence ever used, as far as it is known
    message_count: int
    source: str  # what the state was read from
    blocks: tuple[BlockState, ...]
    subjects: tuple[str, ...] | None  # all subjects of shown messages, if an index lists them and they are few
    removed: SequenceSet  # sequences that had a message, or were skipped, and are known to have been removed since
    indexed: bool  # there is an index.db, which tells how far the stream went when it was written
    notes: tuple[Note, ...] = ()


def load_state(stream: StreamDirectory, files: Files = OS_FILES) -> StreamState:
    """Return what the stream shows. Reads every block if there is no current index. Raises the stream's problem."""
    if stream.problem is not None:
        raise stream.problem
    notes: list[Note] = []
    index = _load_index(stream, notes, files)
    if index is not None and _is_current(index, stream, files):
        return _from_index(index, stream)
    old = [_load_old_index(block, notes, files) for block in stream.blocks]
    current = [
        known
        for known, block in zip(old, stream.blocks, strict=True)
        if known and _ends_with(block, known.last_hash, files)
    ]
    whole = old and len(current) == len(old)
    state = _from_old_indexes(current, stream) if whole else _from_blocks(stream, index, old, files)
    if index is None:
        state = _with_missing(state, _missing_blocks(stream, notes, files), notes)
        notes += _unexplained(stream, state)
    elif state.source == "blocks":
        notes += _missing_since(index, stream, state)
    return replace(state, notes=tuple(notes))


def _missing_blocks(stream: StreamDirectory, notes: list[Note], files: Files) -> list[BlockState]:
    """Return parts for the N.idx without a block: the server removes both together, so its messages are lost.

    A key without its block tells the same of an encrypted one, but not which messages it held.
    """
    present = {block.block_index for block in stream.blocks}
    try:
        names = files.list_directory(Path(stream.messages_path).resolve())
    except OSError as error:
        raise_if_of_process(error)
        return []
    parts = []
    for name in names:
        stem, dot, suffix = name.partition(".")
        if not re.fullmatch("[0-9]{1,18}", stem) or int(stem) in present:
            continue
        if dot + suffix == KEY_SUFFIX:
            reason = f"{name} is there without {stem}{BLOCK_SUFFIX}: what the block held is gone, messages and removals"
            notes.append(Note(reason))
        if dot + suffix != OLD_INDEX_SUFFIX:
            continue
        file = BlockFile(int(stem), str(Path(stream.messages_path) / f"{stem}.blk"), 0)
        index = _load_old_index(file, notes, files)
        count = index.end - index.first - len(index.removed) if index is not None else 0
        if index is not None and count > 0:
            parts.append(BlockState(file, index.first, index.end, index.removed, count, True))
    return parts


def _with_missing(state: StreamState, missing: Sequence[BlockState], notes: list[Note]) -> StreamState:
    """Return the state with the parts whose blocks are gone; those that others answer for go to `notes`."""
    blocks, answered, end = (
        list(state.blocks),
        SequenceSet.from_ranges((block.first, block.end) for block in state.blocks),
        0,
    )
    for block in sorted(missing, key=lambda block: block.first):
        if block.first < end or answered.count_in(block.first, block.end):
            notes.append(
                Note(f"{Path(block.file.path).name} is gone, and its index lists [{block.first}, {block.end})")
            )
            continue
        blocks.append(block)
        end = block.end
    if len(blocks) == len(state.blocks):
        return state
    blocks.sort(key=lambda block: block.first)
    return replace(
        state,
        blocks=tuple(blocks),
        first=blocks[0].first,
        last=max(state.last, *(block.end - 1 for block in blocks if block.known)),
        message_count=sum(block.message_count for block in blocks),
    )


def _load_index(stream: StreamDirectory, notes: list[Note], files: Files) -> StreamIndex | None:
    """Return the index of the stream; None if there is none, or none that can be believed, which goes to `notes`."""
    path = Path(stream.messages_path) / INDEX_FILE
    try:
        return decode_index(read_file(path, NATS_INDEX, files), stream.name, str(path), stream.seed)
    except FileNotFoundError:
        return None  # it is a cache: the blocks tell as well
    except (OSError, CorruptionError, UnsupportedVersionError) as error:
        raise_if_of_process(error)
        notes.append(_not_believed(path, error))
        return None


def _not_believed(path: Path, error: Exception) -> Note:
    reason = str(error).replace(str(path), path.name)
    return Note(f"{reason}: the blocks are read without it, and do not tell of blocks that are gone")


def _unexplained(stream: StreamDirectory, state: StreamState) -> list[Note]:
    """Return which numbers are missing with nothing to say why: removed, or lost with a block that is gone.

    What a purge or a limit removed ends right before the first message, with a tombstone or by the limit. A tombstone
    further below is that of one deleted message, and says nothing of its neighbours.
    """
    expected = max(1, Limits.of(stream.config).first_sequence)
    notes = []
    if state.message_count and state.first > expected and not state.removed.count_in(state.first - 1, state.first):
        reason = (
            f"the first message is {state.first}, and no index tells what became of "
            f"[{expected}, {state.first}): removed, or lost with a block that is gone"
        )
        notes.append(Note(reason, (expected, state.first)))
    numbers = [block.block_index for block in stream.blocks]
    gaps = [(number + 1, two) for number, two in zip(numbers, numbers[1:], strict=False) if two > number + 1]
    if gaps:
        reason = (
            f"{_block_names(SequenceSet.from_ranges(gaps))} not there, and no index tells whether messages were lost "
            "with them, or removals, so that what was removed shows again"
        )
        begin = max((block.end for block in state.blocks if block.file.block_index < gaps[0][0]), default=expected)
        end = min(
            (block.first for block in state.blocks if block.file.block_index >= gaps[-1][1]), default=SEQUENCE_END
        )
        notes.append(Note(reason, (begin, max(begin, end))))
    return notes


def _missing_since(index: StreamIndex, stream: StreamDirectory, state: StreamState) -> list[Note]:
    """Return what an index that is older than the blocks says of blocks that are gone, with no trace of a removal.

    What lay above all that is there is lost, and reported as that.
    """
    present = {block.block_index for block in stream.blocks}
    missing = [block for block in index.blocks if block.block_index not in present and block.message_count]
    if not missing:
        return []
    notes = []
    names = _block_names(SequenceSet.from_sequences([block.block_index for block in missing]))
    listed = _union(
        [SequenceSet.from_ranges([(block.first, block.end)]).difference(block.removed) for block in missing]
    )
    listed = listed.difference(_shown_by(state)).difference(state.removed)
    if state.removed.count_in(state.first - 1, state.first):
        listed = listed.clip(state.first, SEQUENCE_END)  # a purge came after the index
    if listed:
        first, end = listed.bounds
        reason = (
            f"{names} not there, and {INDEX_FILE}, which is older than the blocks, lists {len(listed)} messages of "
            f"[{first}, {end}) there: removed since, or lost with their blocks"
        )
        notes.append(Note(reason, (first, end)))
    if index.version < SURE_VERSION_MIN:
        notes.append(Note(f"{names} not there: what was noted as removed there may show again"))
    return notes


def _block_names(numbers: SequenceSet) -> str:
    ranges = numbers.ranges_head(8)
    names = [f"{first}.blk" if end == first + 1 else f"{first}.blk to {end - 1}.blk" for first, end in ranges]
    return ", ".join(names) + (" and others" if numbers.run_count > len(ranges) else "")


def _is_current(index: StreamIndex, stream: StreamDirectory, files: Files) -> bool:
    """Return whether nothing was written to the blocks since the index was.

    The server also wants its totals to be the sums over its blocks. Releases of 2.10 miscount now and then, at a purge
    inside a block; what their clients get follows the blocks, so that is not asked here.
    """
    listed = {block.block_index for block in index.blocks}
    present = {block.block_index: block for block in stream.blocks}
    if index.last_block != max(listed, default=0) or index.last_block != max(present, default=0):
        return False
    return not listed or _ends_with(present[index.last_block], index.last_hash, files)


def _ends_with(block: BlockFile, last_hash: bytes, files: Files) -> bool:
    if block.size < HASH_SIZE:
        return not any(last_hash)
    try:
        return last_bytes(block, files) == last_hash
    except (OSError, StorageError) as error:
        raise_if_of_process(error)
        return False


def _from_index(index: StreamIndex, stream: StreamDirectory) -> StreamState:
    present = {block.block_index: block for block in stream.blocks}
    states = []
    for block in sorted(index.blocks, key=lambda block: block.block_index):
        if not block.message_count:
            continue
        # A listed block without a file is kept: reading it tells what is lost.
        path = str(Path(stream.messages_path) / f"{block.block_index}.blk")
        file = present.get(block.block_index) or BlockFile(block.block_index, path, 0)
        removed = block.removed.clip(block.first, block.end)
        states.append(BlockState(file, block.first, block.end, removed, block.message_count, True))
    count = sum(state.message_count for state in states)
    few = len(index.subjects) <= SUBJECT_COUNT_MAX and sum(map(len, index.subjects)) <= SUBJECTS_SIZE_MAX
    # A server that has miscounted its messages has miscounted their subjects, too, and may have left one out.
    subjects = tuple(sorted(index.subjects)) if few and count == index.message_count else None
    state = StreamState(index.first, index.last, count, INDEX_FILE, tuple(states), subjects, SequenceSet.empty(), True)
    return replace(state, removed=SequenceSet.from_ranges([(1, index.last + 1)]).difference(_shown_by(state)))


def _load_old_index(block: BlockFile, notes: list[Note], files: Files) -> OldBlockIndex | None:
    path = Path(block.path).with_suffix(OLD_INDEX_SUFFIX)
    try:
        return decode_old_block_index(read_file(path, NATS_OLD_INDEX, files), str(path))
    except FileNotFoundError:
        return None
    except (OSError, CorruptionError) as error:
        raise_if_of_process(error)
        notes.append(_not_believed(path, error))
        return None


def _from_old_indexes(old: Sequence[OldBlockIndex], stream: StreamDirectory) -> StreamState:
    states = []
    for file, index in zip(stream.blocks, old, strict=True):
        count = index.end - index.first - len(index.removed)
        if count > 0:
            states.append(BlockState(file, index.first, index.end, index.removed, count, True))
    last = max((known.end - 1 for known in old), default=0)
    total = sum(state.message_count for state in states)
    spans = [(file.block_index, known.first, known.end) for file, known in zip(stream.blocks, old, strict=True)]
    removed = _union([known.removed for known in old]).union(_gaps(spans))
    first = states[0].first if states else last + 1
    return StreamState(first, last, total, "N.idx", tuple(states), None, removed, False)


def _shown_by(state: StreamState) -> SequenceSet:
    return _union(
        [SequenceSet.from_ranges([(block.first, block.end)]).difference(block.removed) for block in state.blocks]
    )


def _union(sets: Sequence[SequenceSet]) -> SequenceSet:
    if not sets:
        return SequenceSet.empty()
    return SequenceSet.from_columns(
        np.concatenate([part.starts for part in sets]), np.concatenate([part.ends for part in sets])
    )


def _gaps(spans: Sequence[tuple[int, int, int]]) -> SequenceSet:
    """Return what lies between blocks, given as (number, first, end), that follow each other: it was removed.

    Where the file of a number is gone, nobody knows: the server unlinks a block of which all was removed.
    """
    before = [(0, 1, 1), *spans[:-1]] if spans else []
    follows = [(earlier, two) for earlier, two in zip(before, spans, strict=True) if two[0] == earlier[0] + 1]
    return SequenceSet.from_ranges((earlier[2], two[1]) for earlier, two in follows)


# --- without an index -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Read:
    """What is kept of a block that was read: its messages and what it says about others."""

    file: BlockFile
    messages: Records
    subjects: pa.StringArray | None
    ttls_ns: np.ndarray | None
    tombstones: np.ndarray
    highest: int  # sequence, of messages, erased and skipped records and tombstones
    damaged: bool
    sound_crc32c: int | None


def _from_blocks(
    stream: StreamDirectory, index: StreamIndex | None, old: Sequence[OldBlockIndex | None], files: Files
) -> StreamState:
    limits = Limits.of(stream.config)
    last_index = max((file.block_index for file in stream.blocks), default=0)
    read = [
        block
        for first, end in runs_by_size(np.array([file.size for file in stream.blocks], np.int64), side_by_side_size())
        for block in _read_blocks(stream, stream.blocks[first:end], limits, last_index, files)
    ]
    removed = SequenceSet.from_sequences(np.concatenate([_NONE, *(block.tombstones for block in read)]))
    if index is not None:
        removed = removed.union(_removed_before(index, stream, read))
    for stale, block in zip(old, read, strict=True):
        if stale is not None:  # what it removed stays removed
            own_first = int(np.min(block.messages.sequences, initial=stale.first))
            removed = removed.union(stale.removed).union(SequenceSet.from_ranges([(own_first, stale.first)]))
    shown = _shown(read, removed, limits)
    highest = max((block.highest for block in read), default=0)
    lost = _lost_at_end(stream, index, highest, {block.file.block_index for block in read if block.damaged})
    states = _spans(read, shown, removed, min((block.first for block in lost), default=SEQUENCE_END))
    if any(state.end == SEQUENCE_END for state in states):
        highest += 1  # a damaged end of the stream held one more message at least, or may have
    last = max(highest, index.last if index else 0)
    states += lost
    count = sum(len(sequences) for sequences in shown)
    first = next((int(sequences[0]) for sequences in shown if len(sequences)), last + 1)
    all_removed = _all_removed(read, shown, removed)
    return StreamState(first, last, count, "blocks", tuple(states), None, all_removed, index is not None)


def _removed_before(index: StreamIndex, stream: StreamDirectory, read: Sequence["_Read"]) -> SequenceSet:
    """Return what an index that is older than the blocks says was removed, but for messages that came after it.

    A follower that was cut back uses sequences again. Releases of 2.10 note messages as removed that are not.
    """
    if index.version < SURE_VERSION_MIN:
        return SequenceSet.empty()
    newer = [block.messages.sequences[block.messages.times_ns > index.last_time_ns] for block in read]
    return _from_index(index, stream).removed.difference(SequenceSet.from_sequences(np.concatenate([_NONE, *newer])))


def _all_removed(read: Sequence["_Read"], shown: Sequence[np.ndarray], removed: SequenceSet) -> SequenceSet:
    """Return what the blocks say was removed: by a tombstone, by a limit, and what a whole block has no record of."""
    removed_sets, spans = [removed], []
    for block, sequences in zip(read, shown, strict=True):
        own = SequenceSet.from_sequences(block.messages.sequences)
        removed_sets.append(own.difference(SequenceSet.from_sequences(sequences)))
        if own and not block.damaged:
            first, end = own.bounds
            removed_sets.append(SequenceSet.from_ranges([(first, end)]).difference(own))
            spans.append((block.file.block_index, first, end))
    return _union(removed_sets).union(_gaps(spans))


def _read_blocks(
    stream: StreamDirectory, block_files: Sequence[BlockFile], limits: Limits, last_index: int, files: Files
) -> list[_Read]:
    """Return what is in some blocks, whose long messages are hashed side by side."""
    contents = []
    for file in block_files:
        try:
            content = read_block(file.path, files, file.key)
        except (OSError, StorageError) as error:  # reported when the block is read for its messages
            raise_if_of_process(error)
            content = BlockContent(pa.py_buffer(b""), False, [(0, str(error))])
        if not content.data.size and file.block_index != last_index:
            # The server makes an empty file when it begins a block. It goes on to the next one when that is full.
            content = replace(content, damage=[*content.damage, (0, "the file is empty")])
        contents.append(content)
    keyed = [
        (content.data, block_key(stream.name, file.block_index))
        for content, file in zip(contents, block_files, strict=True)
    ]
    return [
        _read_of(file, content, scan, limits)
        for file, content, scan in zip(block_files, contents, scan_blocks(keyed), strict=True)
    ]


def _read_of(file: BlockFile, content: BlockContent, scan: BlockScan, limits: Limits) -> _Read:
    data, messages = content.data, scan.records.take(scan.messages)
    damaged = bool(content.damage or scan.damage)
    return _Read(
        file,
        messages,
        subjects_of(data, messages) if limits.max_msgs_per_subject else None,
        parse_ttls(raw_headers(data, messages), messages.header_sizes >= 0) if limits.per_message_ttl else None,
        scan.tombstones,
        int(np.max(scan.records.sequences, initial=0)),
        damaged,
        None if damaged else crc32c(data),
    )


def _shown(read: Sequence[_Read], removed: SequenceSet, limits: Limits) -> list[np.ndarray]:
    """Return, block by block, the sequences that stay: not removed, not in an earlier block, within the limits."""
    masks, highest = [], 0
    for block in read:
        sequences = block.messages.sequences
        masks.append((sequences > highest) & ~removed.mask(sequences))
        highest = max(highest, int(np.max(sequences, initial=0)))
    if not read:
        return []
    parts = [block.messages.take(mask) for block, mask in zip(read, masks, strict=True)]
    codes = np.zeros(sum(map(len, parts)), np.int64)
    if limits.max_msgs_per_subject:
        subjects = [
            block.subjects.filter(buffers.of_bits(mask))
            for block, mask in zip(read, masks, strict=True)
            if block.subjects
        ]
        codes = buffers.numbers(pa.concat_arrays(subjects).dictionary_encode().indices) if subjects else codes
    ttls = [block.ttls_ns[mask] for block, mask in zip(read, masks, strict=True) if block.ttls_ns is not None]
    keep = limits.keep(
        np.concatenate([part.sequences for part in parts]),
        np.concatenate([part.sizes for part in parts]),
        np.concatenate([part.times_ns for part in parts]),
        codes,
        np.concatenate(ttls) if ttls else None,
    )
    cuts = np.cumsum([len(part) for part in parts])[:-1]
    return [part.sequences[mask] for part, mask in zip(parts, np.split(keep, cuts), strict=True)]


def _spans(
    read: Sequence[_Read], shown: Sequence[np.ndarray], removed: SequenceSet, end_of_all: int
) -> list[BlockState]:
    """Return the parts. A damaged block answers for everything between its neighbours: it may have held that."""
    states: list[BlockState] = []
    end_before = 1
    for at, (block, sequences) in enumerate(zip(read, shown, strict=True)):
        own = block.messages.sequences
        if block.damaged:
            after = [int(later.messages.sequences[0]) for later in read[at + 1 :] if len(later.messages)]
            first, end = end_before, after[0] if after else end_of_all
        elif len(sequences):
            first, end = int(sequences[0]), int(sequences[-1]) + 1
        else:
            first = end = end_before
        if first < end:
            hidden = SequenceSet.from_sequences(own).difference(SequenceSet.from_sequences(sequences))
            hidden = hidden.union(removed).clip(first, end)
            states.append(BlockState(block.file, first, end, hidden, len(sequences), False, block.sound_crc32c))
        end_before = max(end_before, int(np.max(own, initial=0)) + 1)
    return states


def _lost_at_end(
    stream: StreamDirectory, index: StreamIndex | None, highest: int, damaged: Container[int]
) -> list[BlockState]:
    """Return parts for what an old index lists above every sequence of the blocks: numbers never fall, so it is lost.

    A file is gone, or was cut between two records. Damaged blocks answer for their own end.
    """
    if index is None:
        return []
    lost = []
    for block in _from_index(index, stream).blocks:
        first = max(block.first, highest + 1)
        if first < block.end and block.file.block_index not in damaged:
            removed = block.removed.clip(first, block.end)
            count = block.end - first - len(removed)
            lost.append(replace(block, first=first, removed=removed, message_count=count))
    return [block for block in lost if block.message_count]
