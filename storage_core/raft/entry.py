"""An entry of the Raft log: one command, its place, who proposed it, and what was known to be durable.

Entries form a hash chain: `chain` of an entry covers the chain of the one before and all of its own bytes, so two
logs that agree on (index, chain) agree on everything up to there, and a file of another store, an older copy or a
missing entry cannot pass. The chain before the first entry is CHAIN_START.
"""

from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

CHAIN_SIZE = 16
HISTORY_SIZE = 8
POSITION_MAX = (
    1 << 62
)  # of an index, term, generation or segment number: no log comes near it, and it can be counted on
CHAIN_START = bytes(CHAIN_SIZE)
_PLACE = Struct("<QQ")


class EntryId(NamedTuple):
    """One position of the log and what stands there: two logs that have it are the same up to there."""

    index: int  # type: ignore[assignment]  # of a tuple it is a method; 0: before the first entry
    term: int
    chain: bytes


START = EntryId(0, 0, CHAIN_START)


@dataclass(frozen=True, slots=True)
class Entry:
    index: int  # from 1
    term: int  # election period of the leader that proposed it
    history: bytes  # 8 bytes, new with every leader session
    payload: bytes  # encoded Envelope: time, durable indexes, command
    chain: bytes  # hash over the predecessor's chain and this entry

    @property
    def id(self) -> EntryId:
        return EntryId(self.index, self.term, self.chain)

    def follows(self, chain_before: bytes) -> bool:
        """Return whether this entry was made on top of the log that ends with `chain_before`."""
        return self.chain == chain_hash(chain_before, self.index, self.term, self.history, self.payload)


def chain_hash(chain_before: bytes, index: int, term: int, history: bytes, payload: bytes) -> bytes:
    digest = blake2b(chain_before, digest_size=CHAIN_SIZE, person=b"jstream-chain")
    digest.update(_PLACE.pack(index, term))
    digest.update(history)
    digest.update(payload)
    return digest.digest()


def make_entry(chain_before: bytes, index: int, term: int, history: bytes, payload: bytes) -> Entry:
    return Entry(index, term, history, payload, chain_hash(chain_before, index, term, history, payload))


@dataclass(frozen=True, slots=True)
class Vote:
    term: int
    candidate: bytes  # 16 bytes: the session that this voter voted for


@dataclass(frozen=True, slots=True)
class Seal:
    """Last record of a segment: if the next one is not there, it was lost."""

    term: int
    next_segment: int


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """What is known to be committed: written only after the quorum's fsync."""

    generation: int  # grows by one with every commit record of the store
    term: int
    index: int
    chain: bytes
    fsynced: tuple[bytes, ...] = ()  # the volumes on which everything up to `index` was fsynced when this was written

    @property
    def entry(self) -> EntryId:
        """The entry that it names."""
        return EntryId(self.index, self.term, self.chain)
