"""HighwayHash over the packets of one message, compiled by numba: close to a gigabyte a second on one core.

numba keeps what it compiled beside this file, or in the user's cache where that folder cannot be written. Where neither
can, every process compiles anew, in two seconds.
"""

from typing import Any

import numba
import numpy as np

WORD = np.uint64
_PACKETS = numba.types.Array(numba.uint64, 1, "C", readonly=True, aligned=False)
_SIGNATURE = numba.void(numba.uint64[::1], _PACKETS)


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


def _mix(state: np.ndarray, packets: np.ndarray) -> None:
    """Mix packets, four words each, into v0, v1, mul0, mul1, four words each.

    The lanes have names, since an array of them would be loaded and stored at every step.
    """
    low, half = WORD(0xFFFFFFFF), WORD(32)
    a0, a1, a2, a3, b0, b1, b2, b3 = state[0], state[1], state[2], state[3], state[4], state[5], state[6], state[7]
    c0, c1, c2, c3 = state[8], state[9], state[10], state[11]
    d0, d1, d2, d3 = state[12], state[13], state[14], state[15]
    for at in range(0, len(packets), 4):
        b0 += packets[at] + c0
        b1 += packets[at + 1] + c1
        b2 += packets[at + 2] + c2
        b3 += packets[at + 3] + c3
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
    state[0], state[1], state[2], state[3], state[4], state[5], state[6], state[7] = a0, a1, a2, a3, b0, b1, b2, b3
    state[8], state[9], state[10], state[11] = c0, c1, c2, c3
    state[12], state[13], state[14], state[15] = d0, d1, d2, d3


def _compile() -> Any:
    try:
        return numba.njit(_SIGNATURE, cache=True, nogil=True)(_mix)
    except RuntimeError:  # no folder can be written that the code could be kept in
        return numba.njit(_SIGNATURE, nogil=True)(_mix)


mix = _compile()
