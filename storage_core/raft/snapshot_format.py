"""Snapshot file: the state as of one index, with everything that Raft must not forget when the log before it goes.

    page 0       header, 4,096 bytes, CRC32C in the last four
    from page 1  payload: msgpack map of SnapshotBody; the configuration, who votes, is part of the state

The header names store, volume, (index, term, chain) and the payload's size and BLAKE2b-128 digest, so that a snapshot
that does not belong to its applied index, volume or store cannot pass.

Source: docs/formats/snapshot.md.
"""

from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct

import msgspec

from storage_core.bounded import decode as decode_struct
from storage_core.checksum import add_crc, crc_is_good
from storage_core.errors import CorruptionError, UnsupportedVersionError
from storage_core.file_kinds import SNAPSHOT
from storage_core.raft.entry import CHAIN_SIZE, POSITION_MAX, EntryId, Vote
from storage_core.raft.log_format import PAGE_SIZE

FORMAT_VERSION = 1
MAGIC = b"JSTRMSNP"
PAYLOAD_SIZE_MAX = SNAPSHOT.size_max - PAGE_SIZE  # bytes
STATE_SIZE_MAX = PAYLOAD_SIZE_MAX - (1 << 20)  # bytes; room for what else is in a snapshot
TRAIL_COUNT_MAX = 4096  # a log that ends no further below than this is told from one of another copy of the store
_HEADER = Struct("<8sHHI16s16s16sQQ16s8sQ16s")


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    store_id: bytes
    volume_id: bytes
    instance_id: bytes
    index: int  # the state is that after applying exactly this entry
    term: int
    chain: bytes
    history: bytes  # history id of the entry at `index`
    payload_size: int
    payload_digest: bytes

    @property
    def entry(self) -> EntryId:
        """The last entry of the log that it takes the place of."""
        return EntryId(self.index, self.term, self.chain)


class SnapshotBody(msgspec.Struct, frozen=True):
    """What a snapshot keeps beside its place: nothing here may be asked of the log that it replaces."""

    state: msgspec.Raw  # what the state machine encoded, itself one msgpack value
    vote_term: int  # the volume's last vote
    candidate: bytes
    durable: dict[bytes, int]  # volume id: highest index known durable there
    trail: bytes = b""  # chains of the newest entries up to the one at `index`, which is the last

    @property
    def vote(self) -> Vote:
        return Vote(self.vote_term, self.candidate)


def longer_trail(trail: bytes, chain: bytes) -> bytes:
    """Return the chains with that of the next entry."""
    return trail[max(0, len(trail) - (TRAIL_COUNT_MAX - 1) * CHAIN_SIZE) :] + chain


def trail_chain(trail: bytes, last: int, index: int) -> bytes | None:
    """Return the chain of the entry at `index`, None if it is not in `trail`, which ends with the entry at `last`."""
    at = len(trail) - (last - index + 1) * CHAIN_SIZE
    return trail[at : at + CHAIN_SIZE] if index <= last and at >= 0 else None


_BODY_DECODER = msgspec.msgpack.Decoder(SnapshotBody)


def encode(header: SnapshotHeader) -> bytes:
    """Return the header page."""
    fields = _HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        0,
        PAGE_SIZE,
        header.store_id,
        header.volume_id,
        header.instance_id,
        header.index,
        header.term,
        header.chain,
        header.history,
        header.payload_size,
        header.payload_digest,
    )
    return add_crc(fields, PAGE_SIZE)


def decode(page: bytes) -> SnapshotHeader:
    """Return the header; raises CorruptionError, UnsupportedVersionError."""
    if len(page) < PAGE_SIZE:
        raise CorruptionError(f"snapshot header has {len(page)} bytes instead of {PAGE_SIZE}")
    magic, version, _, _, *fields = _HEADER.unpack_from(page)
    if magic != MAGIC or not crc_is_good(page[:PAGE_SIZE]):
        raise CorruptionError("snapshot header has a bad magic or checksum")
    if version != FORMAT_VERSION:
        raise UnsupportedVersionError(f"snapshot of version {version}, this program reads {FORMAT_VERSION}")
    header = SnapshotHeader(*fields)
    if header.payload_size > PAYLOAD_SIZE_MAX:
        raise CorruptionError(f"snapshot declares {header.payload_size} bytes, at most {PAYLOAD_SIZE_MAX} are allowed")
    if max(header.index, header.term) > POSITION_MAX:
        place = f"index {header.index} and term {header.term}"
        raise CorruptionError(f"snapshot of {place}, at most {POSITION_MAX} are allowed")
    return header


def payload_digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=16, person=b"jstream-snapshot").digest()


def encode_body(body: SnapshotBody) -> bytes:
    return msgspec.msgpack.encode(body)


def decode_body(payload: bytes) -> SnapshotBody:
    """Return the body of a snapshot whose digest has passed; raises CorruptionError."""
    body = decode_struct(_BODY_DECODER, payload, "the payload of a snapshot")
    if not 0 <= body.vote_term <= POSITION_MAX or len(body.candidate) != CHAIN_SIZE or len(body.trail) % CHAIN_SIZE:
        sizes = f"a candidate of {len(body.candidate)} and chains of {len(body.trail)} bytes"
        raise CorruptionError(f"the payload of a snapshot has a vote of term {body.vote_term}, {sizes}")
    return body
