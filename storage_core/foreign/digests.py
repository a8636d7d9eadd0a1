"""Digests of messages: what tells, without their bytes, whether two copies of a stream have the same content."""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

DIGEST_KEY = (0x6A737472656D2D31, 0x636F6E74656E7473, 0x736964652D62792D, 0x736964652D313000)  # any four words would do
LONG_DIGEST_SIZE = 16 << 10  # bytes of a message from which on long_digest() costs less than many together
# Of splitmix64. Source: "Fast splittable pseudorandom number generators" (Steele, Lea, Flood, 2014).
_GOLDEN, _MIX_1, _MIX_2 = (np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class Digests:
    """Messages of one copy as parallel arrays, ascending by sequence."""

    sequences: np.ndarray  # int64
    times_ns: np.ndarray  # int64
    digests: np.ndarray  # uint64, over sequence, time, subject, headers and data

    def __len__(self) -> int:
        return len(self.sequences)


def join(parts: "list[Digests]") -> Digests:
    """Return the messages of all parts, ascending; of a sequence that two parts have, the first."""
    if not parts:
        return Digests(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64))
    sequences = np.concatenate([part.sequences for part in parts])
    times_ns = np.concatenate([part.times_ns for part in parts])
    digests = np.concatenate([part.digests for part in parts])
    if (sequences[1:] > sequences[:-1]).all():
        return Digests(sequences, times_ns, digests)
    sequences, rows = np.unique(sequences, return_index=True)
    return Digests(sequences, times_ns[rows], digests[rows])


def long_digest(pieces: Iterable[memoryview]) -> int:
    """Return a 64-bit hash of the pieces one after another."""
    digest = blake2b(digest_size=8)
    for piece in pieces:
        digest.update(piece)
    return int.from_bytes(digest.digest(), "little")


def mixed(hashes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return hashes, uint64, into which a value each, int64, was mixed; done twice, the order of the values matters."""
    with np.errstate(over="ignore"):
        mix = hashes + (values.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        mix = (mix ^ (mix >> np.uint64(30))) * _MIX_1
        mix = (mix ^ (mix >> np.uint64(27))) * _MIX_2
        return np.asarray(mix ^ (mix >> np.uint64(31)))
