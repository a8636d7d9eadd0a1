"""HighwayHash-64 of messages one after another, compiled by numba: close to a gigabyte a second on one core.

numba keeps what it compiled beside this file, or in the user's cache where that folder cannot be written. Where neither
can, every process compiles anew, in a few seconds.
"""

from typing import Any

import numba
import numpy as np

WORD = np.uint64
_SIGNATURE = numba.void(
    numba.uint64[::1],
    numba.types.Array(numba.uint8, 1, "C", readonly=True),
    numba.types.Array(numba.int64, 1, "C", readonly=True),
    numba.types.Array(numba.int64, 1, "C", readonly=True),
    numba.types.Array(numba.uint64, 2, "C", readonly=True),
    numba.uint64[::1],
)


@numba.njit(inline="always")
def _zip_even(even: Any, odd: Any) -> Any:
    """Return what the zipper merge adds to the even lane of a pair."""
    return (
        (even & WORD(0xFF000000) | odd & WORD(0xFF00000000)) >> WORD(24)
        | (even & WORD(0xFF0000000000) | odd & WORD(0xFF000000000000)) >> WORD(16)
        | even & WORD(0xFF0000)
        | (even & WORD(0xFF00)) << WORD(32)
        | (odd & WORD(0xFF00000000000000)) >> WORD(8)
        | even << WORD(56)
    )


@numba.njit(inline="always")
def _zip_odd(even: Any, odd: Any) -> Any:
    """Return what it adds to the odd lane."""
    return (
        (odd & WORD(0xFF000000) | even & WORD(0xFF00000000)) >> WORD(24)
        | odd & WORD(0xFF0000)
        | (odd & WORD(0xFF0000000000)) >> WORD(16)
        | (odd & WORD(0xFF00)) << WORD(24)
        | (even & WORD(0xFF000000000000)) >> WORD(8)
        | (odd & WORD(0xFF)) << WORD(48)
        | even & WORD(0xFF00000000000000)
    )


@numba.njit(inline="always")
def _word(buffer: Any, at: Any) -> Any:
    """Return the little-endian word that begins there; compiled, this is one load."""
    return (
        WORD(buffer[at])
        | WORD(buffer[at + 1]) << WORD(8)
        | WORD(buffer[at + 2]) << WORD(16)
        | WORD(buffer[at + 3]) << WORD(24)
        | WORD(buffer[at + 4]) << WORD(32)
        | WORD(buffer[at + 5]) << WORD(40)
        | WORD(buffer[at + 6]) << WORD(48)
        | WORD(buffer[at + 7]) << WORD(56)
    )


@numba.njit(inline="always")
def _turned(word: Any, count: Any) -> Any:
    """Return the word with each half rotated left by 1 to 31 bits."""
    low, high = word & WORD(0xFFFFFFFF), word >> WORD(32)
    low = (low << count | low >> (WORD(32) - count)) & WORD(0xFFFFFFFF)
    high = (high << count | high >> (WORD(32) - count)) & WORD(0xFFFFFFFF)
    return high << WORD(32) | low


def _hash_all(
    initial: np.ndarray,
    buffer: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    heads: np.ndarray,
    hashes: np.ndarray,
) -> None:
    """Put the hash of each message `buffer[starts[i] : starts[i] + sizes[i]]` into `hashes`.

    `initial`: v0, v1, mul0, mul1, four words each. `heads`: the first two words of each message, or empty. The lanes
    have names, since an array of them would be loaded and stored at every step.
    """
    low, half = WORD(0xFFFFFFFF), WORD(32)
    tail = np.zeros(32, np.uint8)
    for row in range(len(starts)):
        a0, a1, a2, a3, b0, b1, b2, b3 = (
            initial[0], initial[1], initial[2], initial[3], initial[4], initial[5], initial[6], initial[7],
        )  # fmt: skip
        c0, c1, c2, c3 = initial[8], initial[9], initial[10], initial[11]
        d0, d1, d2, d3 = initial[12], initial[13], initial[14], initial[15]
        at, count, size = starts[row], sizes[row] >> 5, sizes[row] & 31
        for step in range(count + 5):
            if step < count:
                place = at + (step << 5)
                p0, p1 = _word(buffer, place), _word(buffer, place + 8)
                p2, p3 = _word(buffer, place + 16), _word(buffer, place + 24)
                if step == 0 and len(heads):
                    p0, p1 = heads[row, 0], heads[row, 1]
            elif step == count:
                if not size:
                    continue
                place, whole = at + (step << 5), size & ~3
                tail[:] = 0
                tail[:whole] = buffer[place : place + whole]
                if size & 16:
                    tail[28:] = buffer[place + size - 4 : place + size]
                elif size & 3:
                    tail[16] = buffer[place + whole]
                    tail[17] = buffer[place + whole + ((size & 3) >> 1)]
                    tail[18] = buffer[place + size - 1]
                p0, p1, p2, p3 = _word(tail, 0), _word(tail, 8), _word(tail, 16), _word(tail, 24)
                if step == 0 and len(heads):
                    p0, p1 = heads[row, 0], heads[row, 1]
                bits = WORD(size)
                both = bits << half | bits
                a0, a1, a2, a3 = a0 + both, a1 + both, a2 + both, a3 + both
                b0, b1, b2, b3 = _turned(b0, bits), _turned(b1, bits), _turned(b2, bits), _turned(b3, bits)
            else:
                p0, p1 = a2 >> half | a2 << half, a3 >> half | a3 << half
                p2, p3 = a0 >> half | a0 << half, a1 >> half | a1 << half
            b0 += p0 + c0
            b1 += p1 + c1
            b2 += p2 + c2
            b3 += p3 + c3
            c0 ^= (b0 & low) * (a0 >> half)
            c1 ^= (b1 & low) * (a1 >> half)
            c2 ^= (b2 & low) * (a2 >> half)
            c3 ^= (b3 & low) * (a3 >> half)
            a0 += d0
            a1 += d1
            a2 += d2
            a3 += d3
            d0 ^= (a0 & low) * (b0 >> half)
            d1 ^= (a1 & low) * (b1 >> half)
            d2 ^= (a2 & low) * (b2 >> half)
            d3 ^= (a3 & low) * (b3 >> half)
            a0 += _zip_even(b0, b1)
            a1 += _zip_odd(b0, b1)
            a2 += _zip_even(b2, b3)
            a3 += _zip_odd(b2, b3)
            b0 += _zip_even(a0, a1)
            b1 += _zip_odd(a0, a1)
            b2 += _zip_even(a2, a3)
            b3 += _zip_odd(a2, a3)
        hashes[row] = a0 + b0 + c0 + d0


def _compile() -> Any:
    try:
        return numba.njit(_SIGNATURE, cache=True, nogil=True)(_hash_all)
    except RuntimeError:  # no folder can be written that the code could be kept in
        return numba.njit(_SIGNATURE, nogil=True)(_hash_all)


hash_all = _compile()
