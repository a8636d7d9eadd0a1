"""The part of HighwayHash that is a chain: packets of few long messages, mixed into their states side by side.

A step of all messages is 15 numpy calls, which take as long for one message as for thirty. So as many messages as can
be had advance together, in chunks of steps whose packets are laid out step by step. Compiled code needs none of this.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import numpy as np

LANE_COUNT = 128  # messages that advance together: their states and packets stay in a small cache
CHUNK_SIZE = 256 << 10  # bytes of packets that are laid out together
SIDE_BY_SIDE_SIZE = 64 << 20  # bytes of blocks that are read at a time, to have many long messages; an old block's size
COMPILED_TIMES = 3  # as fast as messages of 1 MB side by side, from file to rows: benchmarks/checksums.py
COMPILED_SIZE_MIN = 4 << 20  # bytes; numba takes half a second to start
COMPILED_MODULE = "storage_core.foreign.nats.compiled_hash"
PACKET_SIZE = 32  # bytes
_MASK32, _HALF, _ZIPPER_SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(24)

HashAll = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray], None]

# Zipper merge of a pair of lanes (even, odd): the byte of the even lane's result, that of the odd lane's result, and
# which byte of the same (own) or of the neighbouring lane goes there. Byte 0 is not listed: it is byte 3 of its own
# lane, and a shift of whole words puts it there sooner. What the shift puts elsewhere is overwritten.
ZIPPER = (
    (1, 1, False, 4),
    (2, 2, True, 2),
    (3, 3, True, 5),
    (4, 5, False, 6),
    (5, 4, True, 1),
    (6, 7, False, 7),
    (7, 6, True, 0),
)


def mix_chains(states: np.ndarray, chains: Sequence[np.ndarray]) -> None:
    """Mix whole packets, bytes each, into `states`, (16, count) words: v0, v1, mul0, mul1, four lanes each."""
    order = sorted(range(len(chains)), key=lambda row: -len(chains[row]))
    for first in range(0, len(order), LANE_COUNT):
        rows = order[first : first + LANE_COUNT]
        states[:, rows] = _mixed(states[:, rows], [chains[row] for row in rows])


def side_by_side_size() -> int:
    """Return how many bytes of blocks should be hashed together; 0: compiled code is as fast with each alone."""
    return 0 if find_spec("numba") else SIDE_BY_SIDE_SIZE


def compiled_for(size: int) -> HashAll | None:
    """Return what hashes so many bytes of messages, of any sizes, one after another; None where numpy is to do it."""
    return compiled() if size >= COMPILED_SIZE_MIN else None


@cache
def compiled() -> HashAll | None:
    """Return the compiled code; None without numba, of the extra `rescue`."""
    try:
        hash_all: HashAll = import_module(COMPILED_MODULE).hash_all
    except (ImportError, OSError):  # OSError: its library cannot be loaded
        return None
    return hash_all


def _mixed(states: np.ndarray, chains: Sequence[np.ndarray]) -> np.ndarray:
    """Return the states of at most LANE_COUNT messages, longest chain first, after all their packets."""
    ends = np.array([len(chain) // PACKET_SIZE for chain in chains])
    at = 0
    while at < ends[0]:
        count = int(np.count_nonzero(ends > at))
        step_count = min(int(ends[count - 1]) - at, max(1, CHUNK_SIZE // (PACKET_SIZE * count)))
        packets = np.empty((step_count, 4, count), np.uint64)
        for row in range(count):
            part = chains[row][at * PACKET_SIZE : (at + step_count) * PACKET_SIZE]
            packets[:, :, row] = part.view("<u8").reshape(step_count, 4)
        states[:, :count] = _advance(states[:, :count], packets)
        at += step_count
    return states


def _advance(states: np.ndarray, packets: np.ndarray) -> np.ndarray:
    """Return the states after some steps, each a packet a message."""
    words = np.array(states, order="C").reshape(4, 4, -1)
    v0, v1, mul0, mul1 = words
    product, high, zipped = np.empty_like(v0), np.empty_like(v0), np.empty_like(v0)
    bytes0, bytes1, zipped_bytes = (lanes.reshape(-1).view(np.uint8) for lanes in (v0, v1, zipped))
    zipper = _zipper(v0.shape[1])
    add, mask, shift, multiply, xor = np.add, np.bitwise_and, np.right_shift, np.multiply, np.bitwise_xor
    for packet in packets:
        add(v1, packet, v1)
        add(v1, mul0, v1)
        mask(v1, _MASK32, product)
        shift(v0, _HALF, high)
        multiply(product, high, product)
        xor(mul0, product, mul0)
        add(v0, mul1, v0)
        mask(v0, _MASK32, product)
        shift(v1, _HALF, high)
        multiply(product, high, product)
        xor(mul1, product, mul1)
        bytes1.take(zipper, out=zipped_bytes, mode="clip")
        add(v0, zipped, v0)
        bytes0.take(zipper, out=zipped_bytes, mode="clip")
        add(v1, zipped, v1)
    return words.reshape(16, -1)


@cache
def _zipper(count: int) -> np.ndarray:
    """Return, for each byte of the merged lanes of so many messages, which byte of the lanes it is."""
    places = np.arange(4 * count * 8).reshape(2, 2, count, 8)
    merged = np.empty_like(places)
    for even, odd, own, byte in ((0, 0, True, 3), *ZIPPER):
        source = places[..., byte] if own else places[:, ::-1, :, byte]
        merged[:, 0, :, even], merged[:, 1, :, odd] = source[:, 0], source[:, 1]
    return merged.ravel()
