"""Segment of the metadata log: a header page, two commit-record pages, then batches of records.

    page 0          segment header           4,096 bytes, CRC32C in the last four
    page 1, 2       commit record, slots     4,096 bytes each, CRC32C in the last four; all zero = never written
    from page 3     batches                  each begins on a page boundary and is padded with zeros to one

A batch is what one append wrote: records one after another, each 8-byte aligned. A torn write can therefore hurt
only the batch that was being written. Record, integers little-endian:

    offset  size  field         type  meaning
    0       4     crc32c        u32   CRC-32C of byte 4 up to the end of the payload
    4       4     payload_size  u32   bytes, at most PAYLOAD_SIZE_MAX
    8       4     kind          u32   1 entry, 2 vote, 3 seal (the log goes on in another segment)
    12      4     record_number u32   place within its batch, from 0
    16      8     offset_bytes  u64   place of this record in its segment file
    24      8     index         u64   entry: position in the log, from 1; vote: 0; seal: number of the next segment
    32      8     term          u64
    40      8     history       8 B   entry: history id of the leader session; vote: zeros
    48      16    chain         16 B  entry: hash chain; vote: the candidate
    64            payload             entry: encoded envelope; vote: empty

Source: docs/formats/log.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct

from storage_core.checksum import add_crc, crc32c, crc_is_good
from storage_core.errors import CorruptRecordError, TruncatedRecordError, UnsupportedVersionError
from storage_core.raft.entry import CHAIN_SIZE, HISTORY_SIZE, POSITION_MAX, CommitRecord, Entry, Seal, Vote

PAGE_SIZE = 4096  # also the alignment of batches: at least the sector of any disk that tears writes
FORMAT_VERSION = 1
SEGMENT_MAGIC = b"JSTRMLOG"
COMMIT_MAGIC = b"JSTRMCMT"
SLOT_COUNT = 2
BATCHES_OFFSET = PAGE_SIZE * (1 + SLOT_COUNT)
PAYLOAD_SIZE_MAX = 64 * 1024 * 1024  # bytes; an append of 300,000 blocks fits

_CRC = Struct("<I")
_HEADER = Struct(
    "<8sHHI16s16s16sQQQ16s"
)  # magic, version, 0, page size, store, volume, instance, number, index, term, chain
_COMMIT = Struct("<8sHHIQQQ16s4036s")  # magic, version, 0, count of fsynced, generation, term, index, chain, fsynced
_ID_SIZE = 16
FSYNCED_COUNT_MAX = 4036 // _ID_SIZE  # volumes that a commit record has room for
_RECORD = Struct("<IIIIQQQ8s16s")
assert _RECORD.size == 64

KIND_ENTRY = 1
KIND_VOTE = 2
KIND_SEAL = 3
Record = Entry | Vote | Seal


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    store_id: bytes
    volume_id: bytes
    instance_id: bytes
    number: int  # from 1; later segments have higher numbers
    base_index: int  # the log position after which this segment was started; 0 = at the beginning
    base_term: int
    base_chain: bytes

    def encode(self) -> bytes:
        fields = _HEADER.pack(
            SEGMENT_MAGIC, FORMAT_VERSION, 0, PAGE_SIZE, self.store_id, self.volume_id, self.instance_id, self.number,
            self.base_index, self.base_term, self.base_chain,
        )  # fmt: skip
        return add_crc(fields, PAGE_SIZE)


def decode_segment_header(page: bytes) -> SegmentHeader:
    """Return the header in a segment's first page.

    Raises TruncatedRecordError if there is less than a page, UnsupportedVersionError, CorruptRecordError.
    """
    if len(page) < PAGE_SIZE:
        raise TruncatedRecordError("segment header", 0, PAGE_SIZE, len(page))
    magic, version, _, page_size, store, volume, instance, number, index, term, chain = _HEADER.unpack_from(page)
    if magic != SEGMENT_MAGIC or not crc_is_good(page[:PAGE_SIZE]):
        raise CorruptRecordError("segment header", 0, "bad magic or checksum")
    if version != FORMAT_VERSION or page_size != PAGE_SIZE:
        raise UnsupportedVersionError(f"log segment of version {version}, this program reads {FORMAT_VERSION}")
    _check_positions("segment header", number, index, term)
    return SegmentHeader(store, volume, instance, number, index, term, chain)


def encode_commit_record(record: CommitRecord) -> bytes:
    count = len(record.fsynced)
    assert count <= FSYNCED_COUNT_MAX, count
    place = (record.generation, record.term, record.index, record.chain)
    return add_crc(_COMMIT.pack(COMMIT_MAGIC, FORMAT_VERSION, 0, count, *place, b"".join(record.fsynced)), PAGE_SIZE)


def decode_commit_record(page: bytes) -> CommitRecord | None:
    """Return the record in a slot, None if the slot was never written.

    Raises CorruptRecordError if it is torn or damaged (a record being written just now looks the same).
    """
    if len(page) < PAGE_SIZE:
        raise CorruptRecordError("commit record", 0, f"the file ends after {len(page)} of {PAGE_SIZE} bytes")
    if not any(page):
        return None
    if not crc_is_good(page[:PAGE_SIZE]):
        raise CorruptRecordError("commit record", 0, "bad checksum")
    magic, version, _, count, generation, term, index, chain, fsynced = _COMMIT.unpack_from(page)
    if magic != COMMIT_MAGIC or version != FORMAT_VERSION:
        raise UnsupportedVersionError(f"commit record of version {version}, this program reads {FORMAT_VERSION}")
    if count > FSYNCED_COUNT_MAX:
        raise CorruptRecordError("commit record", 0, f"names {count} volumes, at most {FSYNCED_COUNT_MAX} have room")
    _check_positions("commit record", generation, term, index)
    ids = tuple(fsynced[at : at + _ID_SIZE] for at in range(0, count * _ID_SIZE, _ID_SIZE))
    return CommitRecord(generation, term, index, chain, ids)


def _check_positions(label: str, *positions: int) -> None:
    if max(positions) > POSITION_MAX:
        raise CorruptRecordError(label, 0, f"position {max(positions)}, at most {POSITION_MAX} are allowed")


def slot_offset(generation: int) -> int:
    """Return where the commit record of this generation goes: never over the one before it."""
    return PAGE_SIZE * (1 + generation % SLOT_COUNT)


def encode_batch(records: list[Record], offset_bytes: int) -> bytes:
    """Return the bytes of one batch, a whole number of pages, to be written at `offset_bytes`."""
    assert records and offset_bytes % PAGE_SIZE == 0, (len(records), offset_bytes)
    encoded = encode_records(records, offset_bytes)
    return encoded + bytes(-len(encoded) % PAGE_SIZE)


def encode_records(records: Sequence[Record], offset_bytes: int) -> bytes:
    """Return the bytes of records one after another, as they stand at `offset_bytes`."""
    parts, size = [], 0
    for number, record in enumerate(records):
        encoded = _encode_record(record, number, offset_bytes + size)
        parts.append(encoded)
        size += len(encoded)
    return b"".join(parts)


def _encode_record(record: Record, number: int, offset_bytes: int) -> bytes:
    if isinstance(record, Entry):
        kind, index, history, chain, payload = KIND_ENTRY, record.index, record.history, record.chain, record.payload
    elif isinstance(record, Vote):
        kind, index, history, chain, payload = KIND_VOTE, 0, bytes(HISTORY_SIZE), record.candidate, b""
    else:
        kind, index, history = KIND_SEAL, record.next_segment, bytes(HISTORY_SIZE)
        chain, payload = bytes(CHAIN_SIZE), b""
    assert len(payload) <= PAYLOAD_SIZE_MAX and len(chain) == CHAIN_SIZE and len(history) == HISTORY_SIZE
    header = _RECORD.pack(0, len(payload), kind, number, offset_bytes, index, record.term, history, chain)
    body = header[_CRC.size :] + payload
    return _CRC.pack(crc32c(body)) + body + bytes(-len(payload) % 8)


@dataclass(frozen=True, slots=True)
class BadRecord:
    """Bytes where a record should be and none is: torn, damaged, or not yet written."""

    offset_bytes: int
    reason: str


def scan(data: memoryview, start_bytes: int) -> Iterator[tuple[Record | BadRecord, int]]:
    """Yield each record in `data`, which begins at `start_bytes` of its file, and the page boundary after its batch.

    `start_bytes` is a page boundary. Zeros end a batch. Whatever is neither zeros nor a record comes out as one
    BadRecord, and the scan goes on at the next page boundary on which a record stands.
    """
    at, in_batch = 0, 0
    while at < len(data):
        # Not a byte further than the page: the next batch may begin right behind it.
        if not any(data[at : min(at + _RECORD.size, _next_page(at))]):
            at, in_batch = _next_page(at), 0
            continue
        try:
            record, size = _decode_record(data, at, start_bytes + at, in_batch)
        except (CorruptRecordError, TruncatedRecordError) as error:
            yield BadRecord(start_bytes + at, str(error.args[2])), start_bytes + _next_page(at)
            at, in_batch = _next_record_page(data, at, start_bytes), 0
            continue
        yield record, start_bytes + _round_up(at + size)
        at, in_batch = at + size, in_batch + 1
        if at % PAGE_SIZE == 0:
            # A batch may end, or go on, exactly on a boundary: the next record's number tells which.
            in_batch = in_batch if _continues(data, at, in_batch) else 0


def _decode_record(data: memoryview, at: int, offset_bytes: int, number: int) -> tuple[Record, int]:
    if len(data) - at < _RECORD.size:
        raise TruncatedRecordError("log record", offset_bytes, "the file ends inside a record header")
    crc, size, kind, found_number, found_offset, index, term, history, chain = _RECORD.unpack_from(data, at)
    # Until the checksum passes, the size is only a claim: bound it before anyone reads by it.
    if size > PAYLOAD_SIZE_MAX or kind not in (KIND_ENTRY, KIND_VOTE, KIND_SEAL) or found_offset != offset_bytes:
        raise CorruptRecordError("log record", offset_bytes, "no record header")
    if index > POSITION_MAX or term > POSITION_MAX:
        raise CorruptRecordError("log record", offset_bytes, f"index {index} and term {term}, at most {POSITION_MAX}")
    end = at + _RECORD.size + size
    if end > len(data):
        raise TruncatedRecordError("log record", offset_bytes, f"the file ends inside a payload of {size} bytes")
    if crc32c(data[at + _CRC.size : end]) != crc or found_number != number:
        raise CorruptRecordError("log record", offset_bytes, "bad checksum")
    if kind == KIND_VOTE:
        return Vote(term, chain), _RECORD.size
    if kind == KIND_SEAL:
        return Seal(term, index), _RECORD.size
    payload = bytes(data[at + _RECORD.size : end])
    return Entry(index, term, history, payload, chain), _RECORD.size + size + -size % 8


def _next_record_page(data: memoryview, at: int, start_bytes: int) -> int:
    at = _next_page(at)
    while at < len(data):
        try:
            _decode_record(data, at, start_bytes + at, 0)
        except (CorruptRecordError, TruncatedRecordError):
            at = _next_page(at)
        else:
            break
    return at


def _continues(data: memoryview, at: int, number: int) -> bool:
    return len(data) - at >= _RECORD.size and _RECORD.unpack_from(data, at)[3] == number


def _next_page(at: int) -> int:
    return (at // PAGE_SIZE + 1) * PAGE_SIZE


def _round_up(at: int) -> int:
    return -(-at // PAGE_SIZE) * PAGE_SIZE
