"""HighwayHash-64 of many messages at once: by compiled code, or as numpy operations over their states side by side.

The first needs the extra `rescue`, and some megabytes to be worth its start (compiled_hash.py); the rest is about the
second.

The hash keeps four lanes of four 64-bit words and mixes in 32 bytes at a time, so one message is a chain that cannot
be cut. Many messages can advance together: they are sorted by their number of 32-byte packets, and step p advances
all those that have a packet p, a prefix of the sorted order. Tails (1 to 31 bytes) and the final rounds then run over
all of them.

Where few messages are left, a step costs as much as for a hundred. So what is left of all batches is put together
first, and long_chains.py mixes it in.

The only part that numpy has no operation for is the byte shuffle of the algorithm ("zipper merge"): byte-wise strided
copies are cheaper there than masks and shifts.

Source: "Fast keyed hash/pseudo-random function using SIMD multiply and permute" (Alakuijala, Cox, Wassenberg, 2016)
and the frozen reference implementation of google/highwayhash.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

import numpy as np

from storage_core.foreign.nats.long_chains import LANE_COUNT, PACKET_SIZE, ZIPPER, HashAll, compiled_for, mix_chains

Key = tuple[int, int, int, int]

PACKET_SHIFT = 5  # the logarithm of a packet's size: shifts take a tenth of the time of divisions
HEAD_SIZE = 16  # bytes of a message that may lie elsewhere
MESSAGE_SIZE_MIN = HEAD_SIZE + 4  # bytes of a message whose head lies elsewhere
GROUP_COUNT = 4096  # messages that advance together: seven arrays of 4 x 8 bytes each stay in a 1 MiB cache
FEW_COUNT = 8  # up to this many messages of a group are put together with what is left of other groups
LONG_COUNT = 512  # packets; up to LANE_COUNT messages are, if each of them has so many left
LONG_SIZE = LONG_COUNT << PACKET_SHIFT  # bytes of a message that is slow to hash without others beside it
_MASK64 = (1 << 64) - 1
_MASK32 = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ZIPPER_SHIFT = np.uint64(24)
_WORDS = Struct("<4Q")
_HEAD = np.dtype(f"V{HEAD_SIZE}")
_NO_KEY: Key = (0, 0, 0, 0)

_MUL0: Key = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_MUL1: Key = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)


def _tail_tables() -> tuple[np.ndarray, ...]:
    """Return, for tails of 0 to 31 bytes, how the packet that stands for one is made of the 32 bytes it begins.

    The whole 4-byte words stay: a mask of 32 bytes. What is left over becomes one more word, made of the four bytes
    from `place` on as `(bytes & kept) + (bytes & more) * factor`, and goes to word `target` of the packet: of a tail
    of 16 bytes and more its last four bytes to the end, of a shorter one the first, middle and last byte left over.
    """
    size = np.arange(PACKET_SIZE)
    masks = np.where(size < 4 * (size // 4)[:, None], 0xFF, 0).astype(np.uint8).view(f"V{PACKET_SIZE}")[:, 0]
    long = size >= 16
    kept = np.where(long, 0xFFFFFFFF, np.array([0, 0xFF, 0xFFFF, 0xFFFFFF])[size % 4]).astype(np.uint32)
    more = np.where(long, 0, np.array([0, 0xFF, 0xFF00, 0])[size % 4]).astype(np.uint32)
    factor = np.array([0, 0x010100, 0x0100, 0], np.uint32)[size % 4]
    return masks, np.where(long, size - 4, size // 4 * 4), kept, more, factor, np.where(long, 7, 4)


_TAIL_MASKS, _TAIL_PLACES, _TAIL_KEPT, _TAIL_MORE, _TAIL_FACTORS, _TAIL_TARGETS = _tail_tables()


def key_from_bytes(key: bytes) -> Key:
    """Return the four words of a 32-byte key."""
    assert len(key) == 32, len(key)
    a, b, c, d = _WORDS.unpack(key)
    return a, b, c, d


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages `buffer[starts[i] : starts[i] + sizes[i]]`, in any order, and the key that they are hashed under.

    `buffer` is uint8, one-dimensional, contiguous. `heads`, (n, 2) words, has the first HEAD_SIZE bytes of each message
    if they are not there: then something else has to stand in their place, and a message has at least MESSAGE_SIZE_MIN
    bytes.
    """

    buffer: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    key: Key
    heads: np.ndarray | None = None

    def check(self) -> None:
        starts, sizes = self.starts, self.sizes
        assert self.buffer.dtype == np.uint8 and self.buffer.flags.c_contiguous
        assert not len(starts) or (
            starts.min() >= 0 and sizes.min() >= 0 and int((starts + sizes).max()) <= len(self.buffer)
        )
        assert self.heads is None or not len(sizes) or sizes.min() >= MESSAGE_SIZE_MIN


def highwayhash64(buffer: np.ndarray, starts: np.ndarray, sizes: np.ndarray, key: Key) -> np.ndarray:
    """Return the uint64 hashes of the messages of one batch."""
    return hash_together([Batch(buffer, starts, sizes, key)])[0]


def hash_together(batches: Sequence[Batch]) -> list[np.ndarray]:
    """Return the uint64 hashes of the messages of each batch.

    About 40 ns a packet, plus four packets a message for the final rounds, on one core of 2026; compiled code takes
    half. Without it long messages of all batches advance together: 64 take 200 ns a packet, one alone 9 us.
    """
    hash_all = compiled_for(sum(int(batch.sizes.sum()) for batch in batches))
    if hash_all is not None:
        return [_compiled(hash_all, batch) for batch in batches]
    rests = _Rests()
    hashed = []
    for batch in batches:
        batch.check()
        order = _by_packet_count(batch.sizes >> PACKET_SHIFT)
        hashed.append((order, _hash_ordered(batch, order, rests)))
    rests.finish()
    for at, (order, hashes) in enumerate(hashed):
        if order is not None:
            hashed[at] = None, np.empty_like(hashes)
            hashed[at][1][order] = hashes
    return [hashes for _, hashes in hashed]


def _compiled(hash_all: HashAll, batch: Batch) -> np.ndarray:
    batch.check()
    hashes = np.empty(len(batch.starts), np.uint64)
    starts, sizes = (np.ascontiguousarray(column, np.int64) for column in (batch.starts, batch.sizes))
    heads = np.empty((0, 2), np.uint64) if batch.heads is None else np.ascontiguousarray(batch.heads, np.uint64)
    hash_all(_initial(batch.key).reshape(16), batch.buffer, starts, sizes, heads, hashes)
    return hashes


def _initial(key: Key) -> np.ndarray:
    """Return v0, v1, mul0, mul1 before the first packet, (4, 4 lanes) words."""
    rotated = [(word >> 32) | (word << 32 & _MASK64) for word in key]
    v0 = [m ^ k for m, k in zip(_MUL0, key, strict=True)]
    v1 = [m ^ k for m, k in zip(_MUL1, rotated, strict=True)]
    return np.array([v0, v1, _MUL0, _MUL1], np.uint64)


def _hash_ordered(batch: Batch, order: np.ndarray | None, rests: "_Rests") -> np.ndarray:
    """Return the hashes in the order given; what is left of long messages goes to `rests`, which fills theirs in."""
    count = len(batch.starts)
    hashes = np.empty(count, np.uint64)
    if not count:
        return hashes
    states = _States(min(count, GROUP_COUNT), batch.key)
    for first in range(0, count, GROUP_COUNT):
        group = slice(first, first + GROUP_COUNT) if order is None else order[first : first + GROUP_COUNT]
        heads = None if batch.heads is None else batch.heads[group]
        messages = _Messages(batch.buffer, batch.starts[group], batch.sizes[group], heads)
        _hash_group(states, messages, hashes[first : first + GROUP_COUNT], rests)
    return hashes


def _by_packet_count(counts: np.ndarray) -> np.ndarray | None:
    """Return the order in which messages are those with most packets first, or None if they are so already."""
    if (counts[1:] <= counts[:-1]).all():
        return None
    most = int(counts.max())
    # Of 16-bit numbers numpy makes a radix sort.
    return np.argsort((most - counts).astype(np.uint16 if most < 1 << 16 else np.int64), kind="stable")


def _hash_group(states: "_States", messages: "_Messages", hashes: np.ndarray, rests: "_Rests") -> None:
    """Hash up to GROUP_COUNT messages that are sorted by packet count, most packets first."""
    counts = messages.counts
    states.begin(len(counts))
    # active[p]: messages that have a packet p, always a prefix
    active = len(counts) - np.searchsorted(counts[::-1], np.arange(int(counts[0])), side="right")
    left = counts[active - 1] - np.arange(len(active))  # packets of the shortest of them
    few = (active <= FEW_COUNT) | ((active <= LANE_COUNT) & (left >= LONG_COUNT))
    few[:1] &= messages.heads is None  # what lies elsewhere is mixed in here
    step_count = int(np.argmax(few)) if few.any() else len(active)
    for step in range(step_count):
        states.update(messages.packets(step, int(active[step])).T)
    tails = _tail_packets(messages.last_packets(), messages.tails)
    rest_count = int(active[step_count]) if step_count < len(active) else 0
    if rest_count:
        chains = [messages.packets_of(row, step_count) for row in range(rest_count)]
        ends = tails[:rest_count], messages.tails[:rest_count]
        rests.add(states.words[:4, :, :rest_count], chains, *ends, hashes[:rest_count])
    if rest_count < len(counts):
        states.update_tails(tails.T, messages.tails)
        hashes[:] = states.finish()


class _Rests:
    """What is left of long messages of all groups: their states, packets and tails, and where their hashes go."""

    def __init__(self) -> None:
        self._states: list[np.ndarray] = []
        self._chains: list[np.ndarray] = []
        self._tails: list[np.ndarray] = []
        self._tail_sizes: list[np.ndarray] = []
        self._hashes: list[np.ndarray] = []

    def add(
        self,
        states: np.ndarray,
        chains: list[np.ndarray],
        tails: np.ndarray,
        tail_sizes: np.ndarray,
        hashes: np.ndarray,
    ) -> None:
        self._states.append(states.copy())
        self._chains += chains
        self._tails.append(tails)
        self._tail_sizes.append(tail_sizes)
        self._hashes.append(hashes)

    def finish(self) -> None:
        """Mix everything in, and put the hashes where they go."""
        if not self._states:
            return
        words = np.concatenate(self._states, axis=2)
        mix_chains(words.reshape(16, -1), self._chains)
        states, first = _States.of(words), 0
        states.update_tails(np.concatenate(self._tails).T, np.concatenate(self._tail_sizes))
        finished = states.finish()
        for hashes in self._hashes:
            hashes[:] = finished[first : first + len(hashes)]
            first += len(hashes)


class _Messages:
    """Where some messages lie: `tails` bytes behind `counts` packets each."""

    def __init__(self, buffer: np.ndarray, starts: np.ndarray, sizes: np.ndarray, heads: np.ndarray | None) -> None:
        self._buffer, self._starts, self.heads = buffer, starts, heads
        self._windows = _windows(buffer, PACKET_SIZE)
        self.counts, self.tails = sizes >> PACKET_SHIFT, sizes & (PACKET_SIZE - 1)

    def packets(self, step: int, count: int) -> np.ndarray:
        """Return packet `step` of the first `count` messages, (count, 4) words."""
        packets = self._windows[self._starts[:count] + step * PACKET_SIZE].view("<u8").reshape(count, 4)
        if step == 0 and self.heads is not None:
            packets.view(_HEAD)[:, 0] = self.heads[:count].view(_HEAD)[:, 0]
        return np.asarray(packets)

    def packets_of(self, row: int, step: int) -> np.ndarray:
        """Return the bytes of one message's packets from `step` on, not those whose head lies elsewhere."""
        at = int(self._starts[row])
        return np.asarray(self._buffer[at + step * PACKET_SIZE : at + int(self.counts[row]) * PACKET_SIZE])

    def last_packets(self) -> np.ndarray:
        """Return 32 bytes of each message from the tail on, (n, 4) words; what follows the tail may be anything."""
        packets = _windows_padded(self._buffer, self._starts + self.counts * PACKET_SIZE)
        if self.heads is not None:
            short = np.flatnonzero(self.counts == 0)
            packets[short, :2] = self.heads[short]
        return packets


def _windows(buffer: np.ndarray, size: int) -> np.ndarray:
    """Return every run of `size` bytes as one opaque element, without a copy: element i starts at byte i."""
    return np.ndarray((max(0, len(buffer) - size + 1),), f"V{size}", buffer.data, 0, (1,))


def _windows_padded(buffer: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the packets that begin at `places`, (n, 4) words; behind the end of the buffer there are zeros."""
    inside = places <= len(buffer) - PACKET_SIZE
    if inside.all():
        packets = _windows(buffer, PACKET_SIZE)[places]
    else:
        padded = np.zeros(2 * PACKET_SIZE, np.uint8)
        kept = min(len(buffer), PACKET_SIZE)
        padded[:kept] = buffer[len(buffer) - kept :]
        packets = np.empty(len(places), f"V{PACKET_SIZE}")
        packets[inside] = _windows(buffer, PACKET_SIZE)[places[inside]]
        packets[~inside] = _windows(padded, PACKET_SIZE)[places[~inside] - (len(buffer) - kept)]
    return np.asarray(packets.view("<u8").reshape(len(places), 4))


class _States:
    """The states of up to `capacity` messages side by side, made once and used for one group after another.

    v0, v1, mul0, mul1 are (4 lanes, count) uint64; what works on them makes no arrays.
    """

    def __init__(self, capacity: int, key: Key = _NO_KEY) -> None:
        self._initial = _initial(key)[:, :, None]
        self.words = np.empty((7, 4, capacity), np.uint64)
        self._narrowed = 0, 0
        self._active: tuple[np.ndarray, ...] = ()
        self._all_moves = [_moves(self.words[source], self.words[6]) for source in (0, 1)]

    @classmethod
    def of(cls, words: np.ndarray) -> "_States":
        """Return the states that some messages are in, (4, 4 lanes, count) words."""
        states = cls(words.shape[2])
        states.words[:4] = words
        states._narrow(words.shape[2])
        return states

    def begin(self, count: int) -> None:
        """Take up `count` messages."""
        self.words[:4, :, :count] = self._initial
        self._narrow(count)

    def _narrow(self, count: int, lane_count: int = 4) -> None:
        """Let what follows work on the first `count` messages, and on so many lanes of them."""
        if self._narrowed == (count, lane_count):
            return
        self._narrowed = count, lane_count
        self._active = tuple(self.words[:, :lane_count, :count])
        self._moves0, self._moves1 = (
            [(target[: lane_count // 2, :, :count], source[: lane_count // 2, :, :count]) for target, source in moves]
            for moves in self._all_moves
        )

    def update(self, packets: np.ndarray) -> None:
        """Mix one packet each, (lanes, count) words, into the first `count` messages."""
        self._narrow(packets.shape[1], packets.shape[0])
        v0, v1, mul0, mul1, scratch_a, scratch_b, zipped = self._active
        v1 += packets
        v1 += mul0
        np.bitwise_and(v1, _MASK32, out=scratch_a)
        np.right_shift(v0, _HALF, out=scratch_b)
        scratch_a *= scratch_b
        mul0 ^= scratch_a
        v0 += mul1
        np.bitwise_and(v0, _MASK32, out=scratch_a)
        np.right_shift(v1, _HALF, out=scratch_b)
        scratch_a *= scratch_b
        mul1 ^= scratch_a
        np.right_shift(v1, _ZIPPER_SHIFT, out=zipped)
        for target, source in self._moves1:
            target[...] = source
        v0 += zipped
        np.right_shift(v0, _ZIPPER_SHIFT, out=zipped)
        for target, source in self._moves0:
            target[...] = source
        v1 += zipped

    def update_tails(self, packets: np.ndarray, sizes: np.ndarray) -> None:
        """Mix in what stands for the last 0 to 31 bytes of every message; an empty tail changes nothing."""
        self._narrow(len(sizes))
        whole = np.flatnonzero(sizes == 0)
        if len(whole) == len(sizes):
            return
        states = self.words[:4, :, : len(sizes)]
        kept = states[:, :, whole]
        size = sizes.astype(np.uint64)
        size |= size << _HALF
        v0, v1, _, _, scratch_a, scratch_b, _ = self._active
        v0 += size
        halves, scratch_a, scratch_b, turn = (words.view("<u4") for words in (v1, scratch_a, scratch_b, size))
        np.left_shift(halves, turn, out=scratch_a)
        np.right_shift(halves, np.uint32(32) - turn, out=scratch_b)
        np.bitwise_or(scratch_a, scratch_b, out=halves)
        self.update(packets)
        states[:, :, whole] = kept

    def finish(self) -> np.ndarray:
        """Run the four final rounds, in which the state is its own packet, and return the sums of the first lanes."""
        for lane_count in (4, 4, 4, 2):  # the last round is for the first pair of lanes alone
            v0, _, _, _, scratch_a, scratch_b, _ = self._active
            crossed = v0.reshape(2, 2, -1)[::-1][: lane_count // 2]
            packets, low = scratch_a[:lane_count].reshape(crossed.shape), scratch_b[:lane_count].reshape(crossed.shape)
            np.right_shift(crossed, _HALF, out=packets)
            np.left_shift(crossed, _HALF, out=low)
            packets |= low
            self.update(scratch_a[:lane_count])
        v0, v1, mul0, mul1, *_ = self._active
        return np.asarray(v0[0] + v1[0] + mul0[0] + mul1[0])


def _moves(lanes: np.ndarray, zipped: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return pairs (target, source) of views, (2 pairs, 2 lanes, count) bytes, whose copies are the zipper merge."""
    row = lanes.shape[1] * 8  # bytes from a lane to the next
    shape = (2, 2, lanes.shape[1])
    moves = []
    for even, odd, own, byte in ZIPPER:
        target = np.ndarray(shape, np.uint8, zipped.data, even, (2 * row, row + odd - even, 8))
        if own:
            source = np.ndarray(shape, np.uint8, lanes.data, byte, (2 * row, row, 8))
        else:
            source = np.ndarray(shape, np.uint8, lanes.data, row + byte, (2 * row, -row, 8))
        moves.append((target, source))
    return moves


def _tail_packets(packets: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return (n, 4) words: the packets that stand for tails of 0 to 31 bytes, which `packets` begin with."""
    rows = np.arange(len(sizes)) * PACKET_SIZE  # bytes
    data = packets.reshape(-1).view(np.uint8)
    left = np.ndarray((max(0, len(data) - 3),), "<u4", data.data, 0, (1,))[rows + _TAIL_PLACES.take(sizes)]
    made = packets & _TAIL_MASKS.take(sizes).view("<u8").reshape(packets.shape)
    words = made.reshape(-1).view("<u4")
    words[rows // 4 + _TAIL_TARGETS.take(sizes)] = (left & _TAIL_KEPT.take(sizes)) + (
        left & _TAIL_MORE.take(sizes)
    ) * _TAIL_FACTORS.take(sizes)
    return np.asarray(made)
