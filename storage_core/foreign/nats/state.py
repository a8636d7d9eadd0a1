"""What a stream shows: for each block the sequences that a client of the server would get.

Three sources, the first that applies:
- index.db, if it is whole and tells of all in the last block: it knows every removed message.
- The N.idx of every block (servers up to 2.9), under the same condition.
- The blocks themselves: every record is read and checked, tombstones remove messages in all blocks, and what an index
  that is older than the blocks says was removed stays so; records and tombstones are replayed in their order with the
  limits. Deleted messages that a server up to 2.9 left no trace of but in a lost N.idx show again, and so do those
  whose tombstones are gone with their block where there is no index; notes say so.

What no block accounts for is a part of the state like a block (see holes.py): reading it tells that it is lost.

Source: nats-server, server/filestore.go (`recoverFullState`, `recoverMsgs`, `recoverMsgBlock`).
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage_core.errors import CorruptionError, StorageError, UnsupportedVersionError
from storage_core.file_kinds import NATS_INDEX, NATS_OLD_INDEX
from storage_core.files import OS_FILES, Files
from storage_core.foreign.nats.block import BLOCK_SUFFIX, KEY_SUFFIX, BlockFile, last_bytes, read_block, read_file
from storage_core.foreign.nats.directory import StreamDirectory
from storage_core.foreign.nats.extent import BlockState, Note, StreamState
from storage_core.foreign.nats.holes import block_names
from storage_core.foreign.nats.index import (
    IndexBlock,
    OldBlockIndex,
    StreamIndex,
    decode_index,
    decode_old_block_index,
)
from storage_core.foreign.nats.indexed import OLD_INDEX_SUFFIX, from_index, from_old_indexes
from storage_core.foreign.nats.meta import INDEX_FILE
from storage_core.foreign.nats.rebuilding import SURE_VERSION_MIN, from_blocks
from storage_core.foreign.nats.record import HASH_SIZE, block_key, claimed
from storage_core.foreign.nats.scan import BlockScan, scan_block, scan_unhashed
from storage_core.os_errors import raise_if_of_process
from storage_core.sequences import SequenceSet


def load_state(stream: StreamDirectory, files: Files = OS_FILES) -> StreamState:
    """Return what the stream shows. Reads every block if there is no current index. Raises the stream's problem."""
    if stream.problem is not None:
        raise stream.problem
    notes: list[Note] = []
    index = _load_index(stream, notes, files)
    if index is not None and _is_current(index, stream, files):
        return replace(from_index(index, stream), notes=tuple(notes))
    old = [_load_old_index(block, notes, files) for block in stream.blocks]
    current = [
        known
        for known, block in zip(old, stream.blocks, strict=True)
        if known and _covers(known, known.last_hash, block, stream.name, files)
    ]
    gone_blocks = _missing_blocks(stream, notes, files) if index is None else []
    if old and len(current) == len(old):
        state = from_old_indexes(current, stream, gone_blocks)
    else:
        state = from_blocks(stream, index, old, gone_blocks, files)
        notes += _forgotten_removals(stream, index, old)
    return replace(state, notes=(*notes, *state.notes))


def _forgotten_removals(
    stream: StreamDirectory, index: StreamIndex | None, old: Sequence[OldBlockIndex | None]
) -> list[Note]:
    """Return which removals left no trace that is there: those of servers that wrote no tombstones."""
    present = {block.block_index for block in stream.blocks}
    if index is not None:
        gone_blocks = [
            block.block_index for block in index.blocks if block.block_index not in present and block.message_count
        ]
        if not gone_blocks or index.version >= SURE_VERSION_MIN:
            return []
        names = block_names(SequenceSet.from_sequences(gone_blocks))
        return [Note(f"{names} not there: what was noted as removed there may show again", True)]
    config = stream.config
    if "retention" not in config or "compression" in config or all(old) or not present:
        return []
    reason = f"a server up to 2.9 made the stream, and N{OLD_INDEX_SUFFIX} is not there for every block"
    return [Note(f"{reason}: what it noted as removed there may show again", True)]


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
            notes.append(Note(reason, True))
        if dot + suffix != OLD_INDEX_SUFFIX:
            continue
        file = BlockFile(int(stem), str(Path(stream.messages_path) / f"{stem}.blk"), 0)
        index = _load_old_index(file, notes, files)
        count = index.end - index.first - len(index.removed) if index is not None else 0
        if index is not None and count > 0:
            parts.append(BlockState(file, index.first, index.end, index.removed, count, True))
    return parts


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


def _is_current(index: StreamIndex, stream: StreamDirectory, files: Files) -> bool:
    """Return whether nothing was written to the blocks since the index was.

    The server also wants its totals to be the sums over its blocks. Releases of 2.10 miscount now and then, at a purge
    inside a block; what their clients get follows the blocks, so that is not asked here.
    """
    listed = {block.block_index: block for block in index.blocks}
    present = {block.block_index: block for block in stream.blocks}
    if index.last_block != max(listed, default=0) or index.last_block != max(present, default=0):
        return False
    if not listed:
        return True
    return _covers(listed[index.last_block], index.last_hash, present[index.last_block], stream.name, files)


def _covers(known: IndexBlock | OldBlockIndex, last_hash: bytes, block: BlockFile, stream: str, files: Files) -> bool:
    """Return whether an index whose block ended with a hash tells of all that is in the block.

    Damage may have put an earlier piece of the block at its end, and the hash with it.
    """
    if not _ends_with(block, stream, last_hash, files):
        return False
    if block.size == known.size:
        return True
    key = block_key(stream, block.block_index)
    try:
        content = read_block(block.path, files, block.key, key)
    except (OSError, StorageError) as error:  # reported when the block is read for its messages
        raise_if_of_process(error)
        return True
    if content.damage or content.data.size == known.size:
        return True
    unhashed = scan_unhashed(content.data)
    if unhashed is not None and _tells_of_all(known, unhashed, content.data):
        return True
    return _tells_of_all(known, scan_block(content.data, key), content.data)


def _tells_of_all(known: IndexBlock | OldBlockIndex, scan: BlockScan, block: pa.Buffer) -> bool:
    """Return whether an index tells of all that a block has and had: no number is above its last one, and damage cost
    messages that the index lists, or claims to be records below its end.

    Other damage is where bytes were put over the end of the block, of which the index does not know.
    """
    end = max(known.first, known.end)
    numbers = scan.records.sequences[~scan.records.tombstones]
    listed = SequenceSet.from_ranges([(known.first, end)]).difference(known.removed)
    missing = listed.difference(SequenceSet.from_sequences(numbers[numbers > 0]))
    for damage in scan.damage:
        if missing.count_in(damage.after + 1, end if damage.before is None else damage.before):
            continue
        records = claimed(block, damage.offset_bytes, damage.end_bytes)
        if records is None or (records.sequences[~records.tombstones] >= end).any():
            return False
    return not scan.hides_end and int(np.max(numbers, initial=0)) < end


def _ends_with(block: BlockFile, stream: str, last_hash: bytes, files: Files) -> bool:
    if block.size < HASH_SIZE:
        return not any(last_hash)
    try:
        return last_bytes(block, files, block_key(stream, block.block_index)) == last_hash
    except (OSError, StorageError) as error:
        raise_if_of_process(error)
        return False


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
