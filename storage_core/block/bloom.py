"""Bloom filter over the subjects of a block that has too many of them to list.

While it is filled, the filter has its largest size, one byte a bit; `encode` folds it in half as long as no more than
half of its bits are set, so that a filter is about as large as its subjects ask for, which nobody knows beforehand.
Source: docs/formats/block.md, section 5.
"""

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.block.hashing import msg_id_hashes

BLOOM_SIZE_MAX = 512 << 10  # bytes
BLOOM_SIZE_MIN = 64
HASH_COUNT = 7  # the best choice where half of the bits are set, which is what folding aims at


class BloomBuilder:
    def __init__(self) -> None:
        self._bits = np.zeros(BLOOM_SIZE_MAX * 8, bool)

    def add(self, subjects: pa.StringArray) -> None:
        """Add the subjects, none of them null."""
        self._bits[_places(msg_id_hashes(subjects), len(self._bits))] = True

    def encode(self) -> bytes:
        bits = self._bits
        while len(bits) > BLOOM_SIZE_MIN * 8:
            folded = bits[: len(bits) // 2] | bits[len(bits) // 2 :]
            if 2 * np.count_nonzero(folded) > len(folded):
                break
            bits = folded
        return np.packbits(bits, bitorder="little").tobytes()


def might_contain(bloom: bytes, subject: str) -> bool:
    """Return whether the subject may be among those that the filter was filled with; False is certain."""
    places = _places(msg_id_hashes(buffers.of_texts([subject])), len(bloom) * 8)
    bits = np.frombuffer(bloom, np.uint8)
    return bool(((bits[places >> 3] >> (places & 7)) & 1).all())


def is_filter_size(size: int) -> bool:
    return BLOOM_SIZE_MIN <= size <= BLOOM_SIZE_MAX and size & (size - 1) == 0


def _places(hashes: np.ndarray, bit_count: int) -> np.ndarray:
    """Return the bits of each hash, int64, flat; `bit_count` is a power of two."""
    steps = np.arange(HASH_COUNT, dtype=np.uint64)
    places = hashes[:, :1] + hashes[:, 1:] * steps
    return (places & np.uint64(bit_count - 1)).astype(np.int64).ravel()
