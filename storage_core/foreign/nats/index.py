"""State files of a JetStream stream: index.db for all blocks (2.10 and later), N.idx for one (up to 2.9).

They hold what the records alone cannot tell: which messages were removed by limits. The server writes them now and
then, so they are evidence about the blocks as they were, true only while `last_hash` still ends the last block.

    index.db: magic 11, version 1 to 4, then uvarints (varints for times): messages, bytes, first sequence,
    first time, last sequence, last time; subjects (size, bytes, messages, first block, last block); blocks (index,
    bytes, first sequence, first time, last sequence, last time, removed count, set of removed); index of the last
    block, its last 8 bytes; HighwayHash-64 of everything before, under the key of the stream's name.

Source: nats-server, server/filestore.go (`_writeFullState`, `recoverFullState`, `readIndexInfo`) and
server/avl/seqset.go (`Encode`).
"""

from dataclasses import dataclass

import numpy as np

from storage_core.errors import CorruptionError, UnsupportedVersionError
from storage_core.foreign.nats.cursor import Cursor
from storage_core.foreign.nats.encryption import Seed
from storage_core.foreign.nats.highwayhash import highwayhash64
from storage_core.foreign.nats.record import ERASED_BIT, HASH_SIZE, identity_key
from storage_core.sequences import SequenceSet

INDEX_MAGIC, INDEX_VERSION_MAX = 11, 4
INDEX_SIZE_MIN = 32  # bytes; the server takes nothing smaller
SET_MAGIC = 22
BLOCK_IDX_MAGIC = 22
SEQUENCE_END = 1 << 62  # sequences above cannot be written into a record
_WORDS_BY_VERSION = {1: 64, 2: 32}


@dataclass(frozen=True, slots=True)
class IndexBlock:
    """What the server remembered of one block. No messages: `end <= first`."""

    block_index: int
    size: int  # bytes of the visible messages' records
    first: int
    end: int  # one above the last sequence
    removed: SequenceSet  # inside [first, end)

    @property
    def message_count(self) -> int:
        return max(0, self.end - self.first - self.removed.count_in(self.first, self.end))


@dataclass(frozen=True, slots=True)
class StreamIndex:
    """What the server remembered of a stream."""

    version: int
    message_count: int
    size: int
    first: int
    last: int
    last_time_ns: int  # when the last message came; 0 if there never was one
    subjects: tuple[str, ...]
    blocks: tuple[IndexBlock, ...]
    last_block: int
    last_hash: bytes  # the last 8 bytes of that block's file when the index was written


@dataclass(frozen=True, slots=True)
class OldBlockIndex:
    """What a server up to 2.9 remembered of one block, in N.idx."""

    size: int  # see IndexBlock
    first: int
    end: int
    removed: SequenceSet
    last_hash: bytes


def highwayhash_of(data: bytes, identity: str) -> int:
    """Return the checksum of a whole state file under the key of a name."""
    whole = np.frombuffer(data, np.uint8)
    return int(highwayhash64(whole, np.zeros(1, np.int64), np.array([len(data)]), identity_key(identity))[0])


def index_checksum_holds(data: bytes, stream: str) -> bool:
    """Return whether the checksum of an index.db, encrypted or not, holds under the name of a stream."""
    stored = int.from_bytes(data[-HASH_SIZE:], "little")
    return len(data) >= INDEX_SIZE_MIN and highwayhash_of(data[:-HASH_SIZE], stream) == stored


def decode_index(data: bytes, stream: str, name: str, seed: Seed | None = None) -> StreamIndex:
    """Return the content of an index.db; `name` is what errors call it, `seed` opens it if it is encrypted.

    Raises CorruptionError if its checksum fails or its content is impossible, UnsupportedVersionError if a newer
    server wrote it.
    """
    if len(data) < INDEX_SIZE_MIN:
        raise CorruptionError(f"{name}: {len(data)} bytes are too few, the least is {INDEX_SIZE_MIN}")
    body, stored = data[:-HASH_SIZE], int.from_bytes(data[-HASH_SIZE:], "little")
    actual = highwayhash_of(body, stream)
    if actual != stored:
        raise CorruptionError(f"{name}: checksum is {stored:016x}, the content has {actual:016x}")
    if seed is not None:
        body = seed.open_box(body, name)
    cursor = Cursor(body, name)
    magic, version = cursor.byte(), cursor.byte()
    if magic != INDEX_MAGIC:
        raise CorruptionError(f"{name}: begins with {magic}, not {INDEX_MAGIC}")
    if not 1 <= version <= INDEX_VERSION_MAX:
        raise UnsupportedVersionError(f"{name}: version {version}, known are 1 to {INDEX_VERSION_MAX}")
    message_count, size, first = cursor.uvarint(), cursor.uvarint(), cursor.uvarint()
    cursor.varint()  # first time
    last, last_time_ns = cursor.uvarint(), cursor.varint()
    subjects = tuple(_subject(cursor, version) for _ in range(_count(cursor, 4)))
    blocks = tuple(_block(cursor, version) for _ in range(_count(cursor, 7)))
    last_block, last_hash = cursor.uvarint(), cursor.take(HASH_SIZE)
    if cursor.at != len(body):
        raise CorruptionError(f"{name}: {len(body) - cursor.at} bytes are left over")
    if max(first, last) >= SEQUENCE_END:
        raise CorruptionError(f"{name}: the stream reaches from {first} to {last}")
    return StreamIndex(version, message_count, size, first, last, last_time_ns, subjects, blocks, last_block, last_hash)


def decode_old_block_index(data: bytes, name: str) -> OldBlockIndex:
    """Return the content of an N.idx, which has no checksum; raises CorruptionError if it contradicts itself."""
    cursor = Cursor(data, name)
    magic, version = cursor.byte(), cursor.byte()
    if magic != BLOCK_IDX_MAGIC or version not in (1, 2):
        raise CorruptionError(f"{name}: begins with {magic}, {version}, not {BLOCK_IDX_MAGIC}, 1 or 2")
    message_count, size, first = cursor.uvarint(), cursor.uvarint(), cursor.uvarint() & ~ERASED_BIT
    cursor.varint()  # first time
    last = cursor.uvarint() & ~ERASED_BIT
    cursor.varint()  # last time
    removed_count, last_hash = cursor.uvarint(), cursor.take(HASH_SIZE)
    removed = SequenceSet.empty()
    if removed_count and version == 1:
        if removed_count > len(data):
            raise CorruptionError(f"{name}: {removed_count} removed messages in a file of {len(data)} bytes")
        listed = cursor.uvarints(removed_count)
        if int(listed.max()) >= SEQUENCE_END - first:
            raise CorruptionError(f"{name}: lists a removed message {listed.max()} above {first}, past all sequences")
        removed = SequenceSet.from_sequences(listed.astype(np.int64) + first)
    elif removed_count:
        removed = decode_set(cursor)
    if message_count != last - first + 1 - len(removed) or max(first, last) >= SEQUENCE_END:
        raise CorruptionError(
            f"{name}: {message_count} messages from {first} to {last} with {len(removed)} removed do not add up"
        )
    return OldBlockIndex(size, first, last + 1, removed, last_hash)


def decode_set(cursor: Cursor) -> SequenceSet:
    """Return the set of sequences at the cursor: nodes of a tree, each a bitmap; their order does not matter."""
    magic, version = cursor.byte(), cursor.byte()
    if magic != SET_MAGIC or version not in _WORDS_BY_VERSION:
        raise CorruptionError(f"{cursor.name}: set of sequences begins with {magic}, {version}")
    node_count, sequence_count = (int.from_bytes(cursor.take(4), "little") for _ in range(2))
    node = np.dtype([("base", "<u8"), ("bits", "u1", 8 * _WORDS_BY_VERSION[version]), ("height", "<u2")])
    nodes = np.frombuffer(cursor.take(node_count * node.itemsize), node)
    if node_count and int(nodes["base"].max()) >= SEQUENCE_END:
        raise CorruptionError(f"{cursor.name}: set of sequences reaches {int(nodes['base'].max())}")
    # Runs, not sequences: a dense set of a MiB would be a hundred times as large.
    bits = np.pad(np.unpackbits(np.ascontiguousarray(nodes["bits"]), axis=1, bitorder="little"), ((0, 0), (1, 1)))
    edges = np.diff(bits.view(np.int8), axis=1)
    bases = nodes["base"].astype(np.int64)
    starts, ends = ((bases[rows] + places) for rows, places in (np.nonzero(edges == 1), np.nonzero(edges == -1)))
    count = int((ends - starts).sum())
    if count != sequence_count:
        raise CorruptionError(f"{cursor.name}: set of {sequence_count} sequences holds {count}")
    return SequenceSet.from_columns(starts, ends)


def _count(cursor: Cursor, size_min: int) -> int:
    """Return a count of things of at least `size_min` bytes each, which must fit into what is left."""
    count = cursor.uvarint()
    if count * size_min > len(cursor.data) - cursor.at:
        raise CorruptionError(f"{cursor.name}: declares {count} entries at offset_bytes {cursor.at}, too many")
    return count


def _subject(cursor: Cursor, version: int) -> str:
    subject = cursor.take(cursor.uvarint())
    message_count = cursor.uvarint()
    cursor.uvarint()  # first block
    if version >= 4 or message_count > 1:
        cursor.uvarint()  # last block
    return subject.decode("utf-8", "backslashreplace")


def _block(cursor: Cursor, version: int) -> IndexBlock:
    block_index, size, first = cursor.uvarint(), cursor.uvarint(), cursor.uvarint()
    cursor.varint()  # first time, relative to the stream's
    last = cursor.uvarint()
    cursor.varint()  # last time
    removed_count = cursor.uvarint()
    if version >= 2:
        cursor.uvarint()  # messages with a time to live
    if version >= 3:
        cursor.uvarint()  # messages with a schedule
    removed = decode_set(cursor) if removed_count else SequenceSet.empty()
    if max(first, last) >= SEQUENCE_END:
        raise CorruptionError(f"{cursor.name}: block {block_index} reaches from {first} to {last}")
    if len(removed) != removed_count:
        raise CorruptionError(f"{cursor.name}: block {block_index} has {len(removed)} removed, not {removed_count}")
    return IndexBlock(block_index, size, first, last + 1, removed)
