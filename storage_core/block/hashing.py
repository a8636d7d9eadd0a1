"""MurmurHash3 x64 128 over a whole column at once: identity of message ids, and places in bloom filters.

All strings advance together, 16 bytes a step, the longest first, so that those which are done drop off the end of
the arrays. Tails need no cases: a tail padded with zeros mixes to zero where the original skips it. The cost is one
round of numpy calls for each 16 bytes of the longest string, and a few nanoseconds a string and step.

Source: MurmurHash3.cpp by Austin Appleby (smhasher, public domain), function MurmurHash3_x64_128, seed 0.
"""

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.errors import InvalidMessageError

HASHED_SIZE_MAX = 4096  # bytes of one string; bounds the number of steps

_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_N1, _N2 = np.uint64(0x52DCE729), np.uint64(0x38495AB5)
_M1, _M2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_FIVE = np.uint64(5)
_BLOCK_SIZE = 16
_CHUNK_ROW_COUNT = 8192  # the arrays of a chunk stay in the processor's cache
# Bytes of a word that belong to a string of which 0 to 8 bytes are left.
_KEEP = np.array([(1 << (8 * count)) - 1 for count in range(9)], np.uint64)


def msg_id_hashes(array: pa.StringArray) -> np.ndarray:
    """Return the hash of each string, shape (len(array), 2), uint64; (0, 0) for a null or empty one: no message id.

    Raises InvalidMessageError for a string of more than HASHED_SIZE_MAX bytes.
    """
    count = len(array)
    hashes = np.zeros((count, 2), np.uint64)
    if not count or array.null_count == count:
        return hashes
    _, ends, text = array.buffers()
    offsets = np.frombuffer(ends, np.int32, count + 1, array.offset * 4).astype(np.int64)
    lengths = np.diff(offsets)
    if array.null_count:
        lengths[buffers.nulls(array)] = 0
    if lengths.max() > HASHED_SIZE_MAX:
        row = int(lengths.argmax())
        raise InvalidMessageError(f"row {row}: {lengths[row]} bytes are hashed, at most {HASHED_SIZE_MAX} are taken")
    if not lengths.max():
        return hashes  # of empty strings, and buffers may be missing
    data = np.frombuffer(text, np.uint8)
    for first in range(0, count, _CHUNK_ROW_COUNT):
        chunk = slice(first, min(first + _CHUNK_ROW_COUNT, count))
        base, end = offsets[chunk.start], offsets[chunk.stop]
        order = np.argsort(-lengths[chunk].astype(np.int16), kind="stable")
        starts = (offsets[chunk] - base)[order]
        hashes[chunk][order] = _murmur3(_words(data[base:end]), starts, lengths[chunk][order])
    return hashes


def _words(data: np.ndarray) -> np.ndarray:
    """Return a view of the little-endian u64 at every byte of `data`, with enough zeros behind the last one."""
    padded = np.zeros(len(data) + 2 * _BLOCK_SIZE, np.uint8)
    padded[: len(data)] = data
    return np.ndarray(len(data) + _BLOCK_SIZE, np.dtype("<u8"), padded.data, strides=(1,))


def _murmur3(words: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the hashes of the strings at `starts`, longest first. Unsigned arithmetic wraps, as it must."""
    h1, h2 = np.zeros(len(starts), np.uint64), np.zeros(len(starts), np.uint64)
    block_counts = lengths // _BLOCK_SIZE
    for step in range(int(block_counts[0])):
        active = slice(0, int(np.searchsorted(-block_counts, -step, side="left")))
        at = starts[active] + step * _BLOCK_SIZE
        a, b = h1[active], h2[active]
        a ^= _scramble_1(words[at])
        a[:] = (_rotate(a, 27) + b) * _FIVE + _N1
        b ^= _scramble_2(words[at + 8])
        b[:] = (_rotate(b, 31) + a) * _FIVE + _N2
    tail, left = starts + block_counts * _BLOCK_SIZE, lengths % _BLOCK_SIZE
    h1 ^= _scramble_1(words[tail] & _KEEP[np.minimum(left, 8)])
    h2 ^= _scramble_2(words[tail + 8] & _KEEP[np.maximum(left - 8, 0)])
    sizes = lengths.astype(np.uint64)
    h1, h2 = h1 ^ sizes, h2 ^ sizes
    h1 += h2
    h2 += h1
    h1, h2 = _finish(h1), _finish(h2)
    h1 += h2
    h2 += h1
    return np.stack((h1, h2), axis=1)


def _rotate(values: np.ndarray, bits: int) -> np.ndarray:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _scramble_1(words: np.ndarray) -> np.ndarray:
    return _rotate(words * _C1, 31) * _C2


def _scramble_2(words: np.ndarray) -> np.ndarray:
    return _rotate(words * _C2, 33) * _C1


def _finish(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(33))) * _M1
    values = (values ^ (values >> np.uint64(33))) * _M2
    values ^= values >> np.uint64(33)
    return values
