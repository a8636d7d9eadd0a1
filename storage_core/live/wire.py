"""Frames of the NATS client protocol, found in chunks of bytes without a step per message.

    MSG <subject> <sid> [reply] <size> CR LF <payload> CR LF
    HMSG <subject> <sid> [reply] <header size> <size> CR LF <headers> <payload> CR LF
    INFO <JSON>, PING, PONG, +OK, -ERR '<text>', each ended by CR LF

Every frame ends with a line feed, so a frame can begin only at the start of a chunk or behind a line feed. For every
such line the finder computes where the next frame would begin if this line began a frame; the frames are then the chain
of lines from the first one on. A payload may hold whatever looks like frames: no line of it is in the chain.

Source: docs.nats.io, "NATS Client Protocol".
"""

from dataclasses import dataclass

import numpy as np

from storage_core.errors import ProtocolError
from storage_core.foreign.arrays import chain, elements

PAYLOAD_SIZE_MAX = 64 * 1024 * 1024  # bytes; what a server can be configured to take at most
LINE_SIZE_MAX = 1024 * 1024  # bytes of a control line; of INFO, which is the longest, servers send a few KiB
_MSG, _HMSG = np.frombuffer(b"MSG HMSG", "<u4")
_VERBS = (b"INFO ", b"PING", b"PONG", b"+OK", b"-ERR")
_LF, _CR, _SPACE = 10, 13, 32
_LOOK_SIZE = 4 << 20  # bytes
_LINE_SIZE_MIN = len(b"MSG s 1 0\r\n")
_DIGITS_MAX = 19
_NEIGHBOURS = [
    tuple(map(np.uint64, each))
    for each in ((10, 8, 0x00FF00FF00FF00FF), (100, 16, 0x0000FFFF0000FFFF), (10_000, 32, 0xFFFFFFFF))
]
_ZEROS, _TO_HIGH_BIT, _HIGH_BITS = (np.uint64(int(byte * 8, 16)) for byte in ("30", "76", "80"))


@dataclass(frozen=True, slots=True)
class Frames:
    """The whole frames of a chunk, in order. Places are offsets into it."""

    starts: np.ndarray  # of the control lines
    line_ends: np.ndarray  # of the control lines, before CR LF
    is_message: np.ndarray  # MSG or HMSG
    has_headers: np.ndarray  # HMSG
    payload_ends: np.ndarray  # before the last CR LF; of other frames the end of the control line
    end: int  # of the last whole frame
    wanted: int  # size that the chunk has to have before another frame is whole; 0: not known

    def __len__(self) -> int:
        return len(self.starts)

    def rows(self, rows: np.ndarray) -> "Frames":
        """Return some of the frames."""
        return Frames(
            self.starts[rows],
            self.line_ends[rows],
            self.is_message[rows],
            self.has_headers[rows],
            self.payload_ends[rows],
            self.end,
            self.wanted,
        )


def find_frames(block: np.ndarray) -> Frames:
    """Return the frames of a chunk that begins where a frame begins.

    Raises ProtocolError for a line that begins no frame, a size that is none, and a message without its end.
    """
    feeds = _feeds(block)
    starts = np.concatenate(([0], feeds[:-1] + 1)) if len(feeds) else feeds
    is_message, has_headers = _verbs(block, starts)
    candidates = np.flatnonzero(is_message)
    sizes, _ = numbers_before(block, feeds[candidates] - 1)
    sizes[block[feeds[candidates] - 1] != _CR] = -1
    nexts = feeds + 1
    nexts[candidates] += sizes + 2
    successors = np.arange(1, len(feeds) + 1)
    successors[candidates] = _lines_at(feeds, candidates, nexts[candidates], sizes)
    lines = candidates if _follow(candidates, successors) else chain(successors)
    refused = lines[is_message[lines]]
    place = np.searchsorted(candidates, refused)
    refused = refused[(sizes[place] < 0) | (sizes[place] > PAYLOAD_SIZE_MAX)]
    if len(refused):
        raise ProtocolError(f"no size at the end of {_line(block, starts[refused[0]], feeds[refused[0]])!r}")
    wanted = 0
    if len(lines) and nexts[lines[-1]] > len(block):
        wanted, lines = int(nexts[lines[-1]]), lines[:-1]
    ends = nexts[lines]
    _check_ends(block, starts[lines], feeds[lines], ends, is_message[lines])
    end = int(ends[-1]) if len(ends) else 0
    if not wanted and len(block) - end > LINE_SIZE_MAX:
        raise ProtocolError(f"a control line of more than {LINE_SIZE_MAX} bytes: {bytes(block[end : end + 80])!r}")
    return Frames(starts[lines], feeds[lines] - 1, is_message[lines], has_headers[lines], ends - 2, end, wanted)


def _feeds(block: np.ndarray) -> np.ndarray:
    """Return where the line feeds are; of a long message a piece at a time, for less memory."""
    if len(block) <= _LOOK_SIZE:
        return np.flatnonzero(block == _LF)
    pieces = (block[start : start + _LOOK_SIZE] for start in range(0, len(block), _LOOK_SIZE))
    return np.concatenate([np.flatnonzero(piece == _LF) + at * _LOOK_SIZE for at, piece in enumerate(pieces)])


def _verbs(block: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which lines begin as a message does, and which of these as one with headers."""
    words = elements(block, "<u4")
    fitting = starts[: np.searchsorted(starts, len(block) - _LINE_SIZE_MIN, side="right")]
    verbs = words[fitting]
    with_headers = (verbs == _HMSG) & (block[fitting + 4] == _SPACE)
    is_message, has_headers = np.zeros(len(starts), bool), np.zeros(len(starts), bool)
    is_message[: len(fitting)] = (verbs == _MSG) | with_headers
    has_headers[: len(fitting)] = with_headers
    return is_message, has_headers


def _lines_at(feeds: np.ndarray, lines: np.ndarray, nexts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return which line begins where the frame of each line ends; the number of lines where none does."""
    successors = lines + 2  # where the payload has no line feed
    near = np.minimum(lines + 1, len(feeds) - 1)
    others = np.flatnonzero(feeds[near] != nexts - 1)
    at = np.searchsorted(feeds, nexts[others] - 1)
    is_there = (at < len(feeds)) & (feeds[np.minimum(at, len(feeds) - 1)] == nexts[others] - 1)
    successors[others] = np.where(is_there & (sizes[others] >= 0), at + 1, len(feeds))
    return np.asarray(np.minimum(successors, len(feeds)))


def _follow(candidates: np.ndarray, successors: np.ndarray) -> bool:
    """Return whether the lines that begin as messages do are all there is, one behind the other."""
    if not len(candidates) or candidates[0] or successors[candidates[-1]] < len(successors):
        return False
    return bool((successors[candidates[:-1]] == candidates[1:]).all())


def _check_ends(
    block: np.ndarray, starts: np.ndarray, feeds: np.ndarray, ends: np.ndarray, is_message: np.ndarray
) -> None:
    """Raise ProtocolError for a frame of no known kind, and for one that does not end with CR LF."""
    broken = np.flatnonzero((block[ends - 2] != _CR) | (block[ends - 1] != _LF))
    if len(broken):
        at = broken[0]
        raise ProtocolError(f"no CR LF at the end of the frame {_line(block, starts[at], feeds[at])!r}")
    for at in np.flatnonzero(~is_message):
        line = _line(block, starts[at], feeds[at])
        if not line.upper().startswith(_VERBS):
            raise ProtocolError(f"the line {line!r} is none of the NATS protocol")


def _line(block: np.ndarray, start: int, feed: int) -> bytes:
    return block[start : min(feed + 1, start + 200)].tobytes()


def numbers_before(block: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the whole numbers whose digits end before each place, and where their digits begin; -1: no number.

    Eight digits at a time: of a word of eight bytes the digits are the bytes behind the last one that is none, and
    three multiplications add them up, pairs first. Numbers of one length, as nearly all are, need no look at each.
    """
    if not len(ends):
        return np.empty(0, np.int64), ends
    digits, digit_counts = _digits_before(block, ends)
    values = _value_of(digits)
    is_longer, scale = digit_counts == 8, 10**8
    while scale < 10**_DIGITS_MAX and is_longer.any():
        rows = slice(None) if is_longer.all() else is_longer
        more, counts = _digits_before(block, (ends - digit_counts)[rows])
        values[rows] += _value_of(more) * scale
        digit_counts[rows] += counts
        is_longer[rows] = counts == 8
        scale *= 10**8
    wrong = (digit_counts == 0) | (digit_counts > _DIGITS_MAX) | (values < 0)
    values[wrong] = -1
    return values, ends - digit_counts


def _digits_before(block: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return up to eight digits before each place, a byte each, zeros in front; and how many they are."""
    digits = elements(block, "<u8")[np.maximum(ends - 8, 0)] ^ _ZEROS
    others = ((digits + _TO_HIGH_BIT) | digits) & _HIGH_BITS
    if int(ends.min()) < 8:  # nothing that is a control line is so short
        others[ends < 8] = _HIGH_BITS
    first = 8 - (int(others[0]).bit_length() >> 3)
    shift = np.uint64(64 - 8 * first)
    counts: np.ndarray
    if first == 8 and not others.any():
        counts = np.full(len(ends), 8)
    elif 0 < first < 8 and bool(((others >> (shift - np.uint64(8))) == 0x80).all()):
        counts = np.full(len(ends), first)
        digits = digits >> shift << shift
    else:
        # The exponent of a float is the highest bit: bit 63 is the last byte, which leaves no digits.
        counts = (64 - np.frexp(others.astype(np.float64))[1].astype(np.int64)) >> 3
        shifts = ((8 - counts) << 3).astype(np.uint64)
        digits = np.where(counts > 0, digits >> shifts << shifts, np.uint64(0))
    return digits, counts


def _value_of(digits: np.ndarray) -> np.ndarray:
    """Return the numbers that eight digits are, a byte each: neighbours are added up three times."""
    for base, shift, mask in _NEIGHBOURS:
        lower = digits >> shift
        digits *= base
        digits += lower
        digits &= mask
    return digits.view(np.int64)


def starts_before(block: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return where the digits begin that end before each place, or 24 of them: of numbers that nobody needs."""
    starts, rows = ends.copy(), np.arange(len(ends))
    for _ in range(_DIGITS_MAX // 8 + 1):
        if not len(rows):
            break
        _, counts = _digits_before(block, starts[rows])
        starts[rows] -= counts
        rows = rows[counts == 8]
    return starts
