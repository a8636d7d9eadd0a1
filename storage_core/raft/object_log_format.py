"""Record of the metadata log of a volume in an object store: one object, created once, never changed.

    offset  size  field          type  meaning (integers little-endian)
    0       8     magic          8 B   JSTRMREC
    8       2     version        u16   2
    10      2     zero           u16
    12      4     record_count   u32   of the records behind this header
    16      16    store_id       16 B
    32      16    volume_id      16 B
    48      16    instance_id    16 B
    64      8     number         u64   of this object, from 1
    72      16    put_id         16 B  random: tells a put of one's own from another one
    88      8     term           u64   in which it was written
    96      16    candidate      16 B  whom this record votes for in that term; zeros: it is of who has the vote
    112     8     base_index     u64   the log is its entries up to here ...
    120     8     base_term      u64
    128     16    base_chain     16 B
    144     16    snapshot_id    16 B  ... which this snapshot takes the place of; zeros: none, they are here
    160     8     commit_index   u64   known to be committed when this was written; 0: nothing
    168     8     commit_term    u64
    176     16    commit_chain   16 B
    192     8     first_number   u64   of the first record whose entries are among these; at most `number`
    200           records              ... followed by these entries; each as in log.md, 8-byte aligned
    end - 4 4     crc32c         u32   of all before

Source: docs/formats/object-log.md.
"""

from dataclasses import dataclass
from struct import Struct

from storage_core.checksum import CRC_SIZE, add_crc, crc_is_good
from storage_core.errors import CorruptRecordError, TruncatedRecordError, UnsupportedVersionError
from storage_core.raft import log_format
from storage_core.raft.entry import POSITION_MAX, CommitRecord, Entry, EntryId, Vote
from storage_core.raft.log_format import BadRecord

FORMAT_VERSION = 2
MAGIC = b"JSTRMREC"
NO_ID = bytes(16)
_HEADER = Struct("<8sHHI16s16s16sQ16sQ16sQQ16s16sQQ16sQ")
assert _HEADER.size == 200


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One append to the log of one volume."""

    store_id: bytes
    volume_id: bytes
    instance_id: bytes
    number: int
    put_id: bytes
    vote: Vote  # the term it was written in; without a candidate it is of who has the vote
    base: EntryId  # the last entry that stays
    snapshot_id: bytes  # of the snapshot that ends with `base` and takes the place of what was here; NO_ID: none
    commit: CommitRecord | None
    entries: tuple[Entry, ...]  # after `base`
    first_number: int  # of the first record that this one repeats: what it and those after it say is said here again

    @property
    def tip(self) -> EntryId:
        """The last entry of the log after it."""
        return self.entries[-1].id if self.entries else self.base

    def encode(self) -> bytes:
        commit = (self.commit.index, self.commit.term, self.commit.chain) if self.commit is not None else (0, 0, NO_ID)
        header = _HEADER.pack(
            MAGIC, FORMAT_VERSION, 0, len(self.entries), self.store_id, self.volume_id, self.instance_id, self.number,
            self.put_id, self.vote.term, self.vote.candidate, *self.base, self.snapshot_id, *commit,
            self.first_number,
        )  # fmt: skip
        content = header + log_format.encode_records(self.entries, _HEADER.size)
        return add_crc(content)


def decode(data: bytes, where: object) -> LogRecord:
    """Return the record; raises TruncatedRecordError, CorruptRecordError, UnsupportedVersionError naming the object."""
    if len(data) < _HEADER.size + CRC_SIZE:
        raise TruncatedRecordError(f"{where}", 0, _HEADER.size + CRC_SIZE, len(data))
    content = data[:-CRC_SIZE]
    if data[: len(MAGIC)] != MAGIC or not crc_is_good(data):
        raise CorruptRecordError(f"{where}", 0, "bad magic or checksum")
    (_, version, _, count, store_id, volume_id, instance_id, number, put_id, term, candidate, *rest) = (
        _HEADER.unpack_from(content)
    )
    if version != FORMAT_VERSION:
        raise UnsupportedVersionError(f"{where} has version {version}, this program reads {FORMAT_VERSION}")
    index, base_term, chain, snapshot_id, commit_index, commit_term, commit_chain, first_number = rest
    highest = max(number, term, index, base_term, commit_index, commit_term)
    if highest > POSITION_MAX:
        raise CorruptRecordError(f"{where}", 0, f"position {highest}, at most {POSITION_MAX} are allowed")
    if not 1 <= first_number <= number:
        raise CorruptRecordError(f"{where}", 0, f"record {number} repeats those from {first_number} on")
    commit = CommitRecord(commit_index, commit_term, commit_index, commit_chain) if commit_index else None
    base = EntryId(index, base_term, chain)
    entries = _entries(memoryview(content)[_HEADER.size :], base, where)
    if len(entries) != count:
        raise CorruptRecordError(f"{where}", 0, f"{len(entries)} entries of {count}")
    return LogRecord(
        store_id, volume_id, instance_id, number, put_id, Vote(term, candidate), base, snapshot_id, commit, entries,
        first_number,
    )  # fmt: skip


def _entries(data: memoryview, base: EntryId, where: object) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    chain, index = base.chain, base.index
    for record, _ in log_format.scan(data, _HEADER.size):
        if isinstance(record, BadRecord) or not isinstance(record, Entry):
            raise CorruptRecordError(f"{where}", _HEADER.size, "no entry")
        if record.index != index + 1 or not record.follows(chain):
            raise CorruptRecordError(f"{where}", _HEADER.size, f"entry {record.index} does not follow {index}")
        entries.append(record)
        index, chain = record.index, record.chain
    return tuple(entries)
