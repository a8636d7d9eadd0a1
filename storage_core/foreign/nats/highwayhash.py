"""HighwayHash-64 of many messages at once, as numpy operations over their states side by side.

The hash keeps four lanes of four 64-bit words and mixes in 32 bytes at a time, so one message is a chain that cannot
be cut. Many messages can advance together: they are sorted by their number of 32-byte packets, and step p advances
all those that have a packet p, a prefix of the sorted order. Tails (1 to 31 bytes) and the final rounds then run over
all of them. One step costs about 30 numpy calls, which pays from a handful of messages on; when fewer are left (long
messages) the same steps run on Python integers.

The only part that numpy has no operation for is the byte shuffle of the algorithm ("zipper merge"): byte-wise strided
copies are cheaper there than masks and shifts.

Source: "Fast keyed hash/pseudo-random function using SIMD multiply and permute" (Alakuijala, Cox, Wassenberg, 2016)
and the frozen reference implementation of google/highwayhash.
"""

from struct import Struct

import numpy as np

Key = tuple[int, int, int, int]
Lanes = list[int]

PACKET_SIZE = 32  # bytes
GROUP_COUNT = 4096  # messages that advance together: seven arrays of 4 x 8 bytes each stay in a 1 MiB cache
SCALAR_COUNT_MAX = 8  # up to this many messages, Python integers are faster than numpy calls
_MASK64 = (1 << 64) - 1
_MASK32 = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_WORDS = Struct("<4Q")

_MUL0: Key = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_MUL1: Key = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)

# Zipper merge of a pair of lanes (even, odd): the byte of the even lane's result, that of the odd lane's result, and
# which byte of the same (own) or of the neighbouring lane goes there.
_ZIPPER = (
    (0, 0, True, 3),
    (1, 1, False, 4),
    (2, 2, True, 2),
    (3, 3, True, 5),
    (4, 5, False, 6),
    (5, 4, True, 1),
    (6, 7, False, 7),
    (7, 6, True, 0),
)

# Row w keeps the first 4 * w bytes of a packet: the whole 4-byte words of a tail.
_TAIL_MASKS = np.where(np.arange(PACKET_SIZE) < 4 * np.arange(8)[:, None], 0xFF, 0).astype(np.uint8).view("<u8")


def key_from_bytes(key: bytes) -> Key:
    """Return the four words of a 32-byte key."""
    assert len(key) == 32, len(key)
    a, b, c, d = _WORDS.unpack(key)
    return a, b, c, d


def highwayhash64(buffer: np.ndarray, starts: np.ndarray, sizes: np.ndarray, key: Key) -> np.ndarray:
    """Return the uint64 hashes of the messages `buffer[starts[i] : starts[i] + sizes[i]]`.

    `buffer` is uint8, one-dimensional, contiguous; messages may lie anywhere in it, in any order. About 35 ns a
    packet, plus four packets a message for the final rounds, on one core of 2026.
    """
    assert buffer.dtype == np.uint8 and buffer.flags.c_contiguous
    assert not len(starts) or (starts.min() >= 0 and sizes.min() >= 0 and int((starts + sizes).max()) <= len(buffer))
    padded = np.empty(len(buffer) + PACKET_SIZE, np.uint8)  # a tail is fetched as a whole packet, then masked
    padded[: len(buffer)] = buffer
    padded[len(buffer) :] = 0
    order = np.argsort(-(sizes // PACKET_SIZE), kind="stable")
    hashes = np.empty(len(starts), np.uint64)
    for first in range(0, len(order), GROUP_COUNT):
        group = order[first : first + GROUP_COUNT]
        hashes[group] = _hash_group(padded, starts[group].astype(np.int64), sizes[group].astype(np.int64), key)
    return hashes


def _hash_group(padded: np.ndarray, starts: np.ndarray, sizes: np.ndarray, key: Key) -> np.ndarray:
    """Hash up to GROUP_COUNT messages that are sorted by packet count, most packets first."""
    packets = _windows(padded, PACKET_SIZE)
    counts = sizes // PACKET_SIZE
    state = _State(len(starts), key)
    # active[p]: messages that have a packet p, always a prefix
    active = len(counts) - np.searchsorted(counts[::-1], np.arange(int(counts[0])), side="right")
    step_count = int(np.count_nonzero(active > SCALAR_COUNT_MAX))
    for step in range(step_count):
        count = int(active[step])
        state.update(packets[starts[:count] + step * PACKET_SIZE].view("<u8").reshape(count, 4).T, count)
    for row in range(int(active[step_count]) if step_count < len(active) else 0):
        state.update_scalar(row, padded, int(starts[row]) + step_count * PACKET_SIZE, int(counts[row]) - step_count)
    state.update_tails(padded, starts + counts * PACKET_SIZE, sizes % PACKET_SIZE)
    return state.finish()


def _windows(padded: np.ndarray, size: int) -> np.ndarray:
    """Return every run of `size` bytes as one opaque element, without a copy: element i starts at byte i."""
    return np.ndarray((len(padded) - size + 1,), f"V{size}", padded.data, 0, (1,))


class _State:
    """The states of `count` messages: v0, v1, mul0, mul1, each (4 lanes, count) uint64."""

    def __init__(self, count: int, key: Key) -> None:
        rotated = [(word >> 32) | (word << 32 & _MASK64) for word in key]
        self.v0 = _filled([m ^ k for m, k in zip(_MUL0, key, strict=True)], count)
        self.v1 = _filled([m ^ k for m, k in zip(_MUL1, rotated, strict=True)], count)
        self.mul0, self.mul1 = _filled(_MUL0, count), _filled(_MUL1, count)
        self._one, self._two = np.empty((4, count), np.uint64), np.empty((4, count), np.uint64)
        self._zipped = np.empty((4, count), np.uint64)
        self._moves0, self._moves1 = _moves(self.v0, self._zipped), _moves(self.v1, self._zipped)

    def update(self, packet: np.ndarray, count: int) -> None:
        """Mix one packet, (4, count) words, into the first `count` messages."""
        v0, v1, mul0, mul1 = self.v0[:, :count], self.v1[:, :count], self.mul0[:, :count], self.mul1[:, :count]
        one, two = self._one[:, :count], self._two[:, :count]
        v1 += packet
        v1 += mul0
        np.bitwise_and(v1, _MASK32, out=one)
        np.right_shift(v0, _HALF, out=two)
        one *= two
        mul0 ^= one
        v0 += mul1
        np.bitwise_and(v0, _MASK32, out=one)
        np.right_shift(v1, _HALF, out=two)
        one *= two
        mul1 ^= one
        zipped = self._zipped[:, :count]
        for target, source in self._moves1:
            target[..., :count] = source[..., :count]
        v0 += zipped
        for target, source in self._moves0:
            target[..., :count] = source[..., :count]
        v1 += zipped

    def update_tails(self, padded: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> None:
        """Mix in the last 0 to 31 bytes of every message; an empty tail changes nothing."""
        whole = np.flatnonzero(sizes == 0)
        kept = [words[:, whole].copy() for words in (self.v0, self.v1, self.mul0, self.mul1)]
        size = sizes.astype(np.uint64)
        self.v0 += (size << _HALF) + size
        halves = self.v1.view("<u4")
        turn = np.repeat(sizes.astype(np.uint32), 2)
        halves[:] = (halves << turn) | (halves >> (np.uint32(32) - turn) % np.uint32(32))
        self.update(_tail_packets(padded, starts, sizes).T, len(sizes))
        for words, old in zip((self.v0, self.v1, self.mul0, self.mul1), kept, strict=True):
            words[:, whole] = old

    def finish(self) -> np.ndarray:
        """Run the four final rounds, in which the state is its own packet, and return the sums."""
        count = self.v0.shape[1]
        for _ in range(4):
            crossed = self.v0[[2, 3, 0, 1]]
            self.update((crossed >> _HALF) | (crossed << _HALF), count)
        return np.asarray(self.v0[0] + self.v1[0] + self.mul0[0] + self.mul1[0])

    def update_scalar(self, row: int, padded: np.ndarray, start: int, packet_count: int) -> None:
        """Mix consecutive packets into one message, on Python integers."""
        state = [self.v0, self.v1, self.mul0, self.mul1]
        v0, v1, mul0, mul1 = ([int(word) for word in words[:, row]] for words in state)
        data = padded[start : start + packet_count * PACKET_SIZE].data
        for packet in _WORDS.iter_unpack(data):
            for lane in range(4):
                b = v1[lane] = (v1[lane] + packet[lane] + mul0[lane]) & _MASK64
                mul0[lane] ^= (b & 0xFFFFFFFF) * (v0[lane] >> 32)
                a = v0[lane] = (v0[lane] + mul1[lane]) & _MASK64
                mul1[lane] ^= (a & 0xFFFFFFFF) * (b >> 32)
            _zipper_add(v0, v1)
            _zipper_add(v1, v0)
        for words, values in zip(state, (v0, v1, mul0, mul1), strict=True):
            words[:, row] = np.array(values, np.uint64)


def _moves(lanes: np.ndarray, zipped: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return pairs (target, source) of views, (2 pairs, 2 lanes, count) bytes, whose copies are the zipper merge."""
    row = lanes.shape[1] * 8  # bytes from a lane to the next
    shape = (2, 2, lanes.shape[1])
    moves = []
    for even, odd, own, byte in _ZIPPER:
        target = np.ndarray(shape, np.uint8, zipped.data, even, (2 * row, row + odd - even, 8))
        if own:
            source = np.ndarray(shape, np.uint8, lanes.data, byte, (2 * row, row, 8))
        else:
            source = np.ndarray(shape, np.uint8, lanes.data, row + byte, (2 * row, -row, 8))
        moves.append((target, source))
    return moves


def _filled(words: Key | Lanes, count: int) -> np.ndarray:
    return np.repeat(np.array(words, np.uint64)[:, None], count, axis=1)


def _tail_packets(padded: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return (n, 4) words: the packets that stand for tails of 0 to 31 bytes.

    The whole 4-byte words come first. Of what is left over, long tails (16 and more) put the last four bytes of the
    tail at the end of the packet; short ones put first, middle and last byte at 16 to 18.
    """
    packets = _windows(padded, PACKET_SIZE)[starts].view("<u8").reshape(-1, 4) & _TAIL_MASKS[sizes // 4]
    rest = sizes % 4
    left = starts + sizes - rest
    long = np.flatnonzero(sizes & 16)
    last_four = np.ndarray((len(padded) - 3,), "<u4", padded.data, 0, (1,))
    packets[long, 3] |= last_four[(starts + sizes)[long] - 4].astype(np.uint64) << _HALF
    short = np.flatnonzero((sizes & 16 == 0) & (rest > 0))
    at, some = left[short], rest[short]
    three = [padded[place].astype(np.uint64) for place in (at, at + (some >> 1), at + some - 1)]
    packets[short, 2] |= three[0] | three[1] << np.uint64(8) | three[2] << np.uint64(16)
    return np.asarray(packets)


def _zipper_add(target: Lanes, source: Lanes) -> None:
    """Add the zipper merge of `source` to `target`, both four words."""
    for even in (0, 2):
        a, b = source[even], source[even + 1]
        merged_even = (
            (a & 0xFF000000 | b & 0xFF00000000) >> 24
            | a & 0xFF0000
            | (a & 0xFF0000000000 | b & 0xFF000000000000) >> 16
            | (a & 0xFF00) << 32
            | (b & 0xFF00000000000000) >> 8
            | (a & 0xFF) << 56
        )
        merged_odd = (
            (b & 0xFF000000 | a & 0xFF00000000) >> 24
            | b & 0xFF0000
            | (b & 0xFF0000000000) >> 16
            | (b & 0xFF00) << 24
            | (a & 0xFF000000000000) >> 8
            | (b & 0xFF) << 48
            | a & 0xFF00000000000000
        )
        target[even] = (target[even] + merged_even) & _MASK64
        target[even + 1] = (target[even + 1] + merged_odd) & _MASK64
