"""What a batch holds, as one number: whatever the order of its messages, and however tasks and blocks divide them.

Each message is hashed over what its writer gave: stream, subject, headers, data, message id, and its time unless the
store chose that. The sum of the hashes, modulo 2**64, and the count of messages are kept with the (writer, batch) of
an append: by them a batch that is sent again is told from another one under the same number. This guards against
mistakes, not against messages that are made to collide.

Strings are hashed 64 bytes at a time, all rows at once. The last 64 bytes of a string overlap the ones before, so that
only strings of less than 64 bytes have to be padded. Within 64 bytes each word is folded, so that its high bytes reach
low bits, and multiplied by a key of its own.
Source: multilinear hashing (Lemire and Kaser, "Strongly universal string hashing is fast", 2014), without their proof,
since words and products have 64 bits here; the last mix is that of MurmurHash3 (block/hashing.py).
"""

from collections.abc import Iterable
from struct import Struct

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.store.writing.messages import Messages

CONTENT = Struct("<QQ")  # count of messages, sum of their hashes
_SUM_MODULUS = 2**64
_BLOCK_SIZE = 64  # bytes
# Rows, and their bytes, that are hashed together: the arrays stay in the processor's cache, and below the size from
# which memory is asked for anew each time.
_CHUNK_ROW_COUNT, _CHUNK_SIZE_MAX = 3000, 512 * 1024
_SAMPLE_COUNT = 256  # rows by which is judged whether values repeat
_HALF, _SHIFT = np.uint64(32), np.uint64(33)
_M1, _M2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mixed(values: np.ndarray) -> np.ndarray:
    values = values ^ (values >> _SHIFT)
    values *= _M1
    values ^= values >> _SHIFT
    values *= _M2
    values ^= values >> _SHIFT
    return values


_KEYS = _mixed(_GOLDEN * np.arange(1, 8, dtype=np.uint64)) | np.uint64(1)
_BLOCK_KEYS = _mixed(_GOLDEN * np.arange(8, 8 + _BLOCK_SIZE // 8, dtype=np.uint64)) | np.uint64(1)
_NULL = np.uint64(0x6A73747265616D2D)  # stands for the hash of a null
# Bytes of the first 16, 32 or 64 that belong to a string of fewer bytes.
_KEEP = {size: np.tril(np.full((size, size), 0xFF, np.uint8), -1).view("<u8") for size in (16, 32, _BLOCK_SIZE)}


def combined(parts: Iterable[tuple[int, int]]) -> bytes:
    """Return the content of a batch from (count, sum of hashes) of its parts."""
    count = total = 0
    for part_count, part_sum in parts:
        count, total = count + part_count, total + part_sum
    return CONTENT.pack(count, total % _SUM_MODULUS)


def message_hashes(messages: Messages, stream: str) -> np.ndarray:
    """Return the hash of each message, uint64."""
    subject, _, headers, data = messages.batch.columns
    (salt,) = string_hashes(buffers.of_texts([stream]))
    hashes = string_hashes(data) * _KEYS[0]
    hashes += salt
    hashes += _repeated_string_hashes(subject) * _KEYS[1]
    if headers.null_count < len(headers):
        hashes += _header_hashes(headers) * _KEYS[2]
    if messages.given_ns is not None:
        times_ns = buffers.numbers(messages.given_ns.fill_null(buffers.constant(0, pa.int64()))).view(np.uint64)
        hashes += _mixed(times_ns * _KEYS[3] + ~buffers.nulls(messages.given_ns))
    if messages.msg_ids is not None:
        hashes += messages.msg_ids[:, 0] * _KEYS[4]
    return _mixed(hashes)


def _repeated_string_hashes(column: pa.Array) -> np.ndarray:
    """Return the same as `string_hashes`, in half the time if there are few distinct values, as of subjects."""
    sample = column.slice(0, _SAMPLE_COUNT)
    if 2 * len(sample.unique()) > len(sample):
        return string_hashes(column)
    encoded = column.dictionary_encode()
    hashes: np.ndarray = string_hashes(encoded.dictionary)[buffers.numbers(encoded.indices)]
    return hashes


def string_hashes(column: pa.Array) -> np.ndarray:
    """Return the hash of each value of a string or binary column, uint64; that of a null is none of a string."""
    count = len(column)
    hashes = np.full(count, _NULL, np.uint64)
    if column.null_count == count:
        return hashes
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, count + 1, column.offset * 4).astype(np.int64)
    data = np.frombuffer(data_buffer if data_buffer is not None else b"", np.uint8)
    data = data[: offsets[-1]]
    first = 0
    while first < count:
        fitting = int(np.searchsorted(offsets, offsets[first] + _CHUNK_SIZE_MAX))
        end = min(max(fitting, first + 1), first + _CHUNK_ROW_COUNT, count)
        hashes[first:end] = _hashed(data, offsets[first : end + 1])
        first = end
    if column.null_count:
        hashes[buffers.nulls(column)] = _NULL
    return hashes


def _hashed(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the hash of each string: of its first 64 bytes, its last ones if it has more, and those between."""
    starts, ends = offsets[:-1], offsets[1:]
    lengths = ends - starts
    longest = int(lengths.max())
    width = next(size for size in (16, 32, _BLOCK_SIZE) if longest <= size or size == _BLOCK_SIZE)
    short = np.flatnonzero(lengths < width)
    hashes = _block_hashes(data, starts, width, short, lengths[short])
    hashes += lengths.view(np.uint64) * _GOLDEN
    if longest > _BLOCK_SIZE:
        longer = slice(None) if int(lengths.min()) > _BLOCK_SIZE else np.flatnonzero(lengths > _BLOCK_SIZE)
        hashes[longer] += _mixed(_block_hashes(data, ends[longer] - _BLOCK_SIZE))
    if longest > 2 * _BLOCK_SIZE:
        long = np.flatnonzero(lengths > 2 * _BLOCK_SIZE)
        counts = (lengths[long] - 1) // _BLOCK_SIZE - 1  # of the blocks between
        firsts = np.cumsum(counts) - counts
        numbers = np.arange(1, int(counts.sum()) + 1) - np.repeat(firsts, counts)
        blocks = _block_hashes(data, np.repeat(starts[long], counts) + numbers * _BLOCK_SIZE)
        blocks += numbers.view(np.uint64) * _GOLDEN
        hashes[long] += np.add.reduceat(_mixed(blocks), firsts)
    return _mixed(hashes)


def _block_hashes(
    data: np.ndarray,
    places: np.ndarray,
    width: int = _BLOCK_SIZE,
    short: np.ndarray | None = None,
    sizes: np.ndarray | None = None,
) -> np.ndarray:
    """Return the hashes of `width` bytes at each of these places, which ascend.

    Of those at the positions `short` only `sizes` bytes count, as if zeros followed, which add nothing to a hash.
    """
    if places[-1] + width > len(data):
        base = int(places[0])
        data, places = np.concatenate((data[base:], np.zeros(width, np.uint8))), places - base
    blocks = np.ndarray(len(data) - width + 1, f"V{width}", data, strides=(1,))
    words = blocks[places].view("<u8").reshape(-1, width // 8)
    if short is not None and len(short):
        everywhere = len(short) == len(words)
        words[slice(None) if everywhere else short] &= _KEEP[width][sizes]
    words ^= words >> _HALF
    hashes: np.ndarray = np.matmul(words, _BLOCK_KEYS[: width // 8])
    return hashes


def _header_hashes(headers: pa.Array) -> np.ndarray:
    """Return the hash of each row's headers, in their order; zero for a null, which is not as no headers."""
    count = len(headers)
    offsets = np.frombuffer(headers.buffers()[1], np.int32, count + 1, headers.offset * 4).astype(np.int64)
    pairs = headers.values.slice(offsets[0], offsets[-1] - offsets[0])
    offsets -= offsets[0]
    numbers = np.arange(len(pairs)) - np.repeat(offsets[:-1], np.diff(offsets))
    made = string_hashes(pairs.field(0)) * _KEYS[5] + string_hashes(pairs.field(1)) * _KEYS[6]
    made = _mixed(made + numbers.view(np.uint64) * _GOLDEN)
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(made, dtype=np.uint64)))
    hashes = _mixed(sums[offsets[1:]] - sums[offsets[:-1]] + _GOLDEN)
    if headers.null_count:
        hashes[buffers.nulls(headers)] = 0
    return hashes
