"""Ranges of an object that are fetched before they are asked for, several at a time.

Who reads an object frame by frame says beforehand which ranges it will want. Neighbours are fetched together; while
one piece is being used, the next ones are on their way, so many that their bytes are bounded.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

Range = tuple[int, int]  # [start, end), offsets in bytes
PIECE_SIZE = 9 << 20  # bytes fetched together, two large frames; a larger range is a piece of its own
GAP_SIZE_MAX = 64 << 10  # bytes that nobody wants, fetched rather than asked around
AHEAD_COUNT = 3  # pieces on their way beside the one in use: 27 MiB
THREAD_COUNT_MAX = 32  # of this process


class ReadAhead:
    """The pieces of one reading of an object. Nothing is fetched before the first of them is wanted."""

    def __init__(self, ranges: Iterable[Range], fetch: Callable[[int, int], memoryview]) -> None:
        self._fetch = fetch
        self._pieces = deque(coalesced(ranges))
        self._coming: deque[tuple[Range, Future[memoryview]]] = deque()
        self._mutex = threading.Lock()
        self._is_begun = False

    def read(self, start: int, end: int) -> memoryview | None:
        """Return these bytes, which lie in one piece; None if they were not expected now. Raises OSError."""
        with self._mutex:
            while self._coming and self._coming[0][0][1] <= start:
                self._coming.popleft()[1].cancel()
            while not self._coming and self._pieces and self._pieces[0][1] <= start:
                self._pieces.popleft()
            # Who asks for a second piece will want the others; the first may have been enough.
            self._begin(1 + AHEAD_COUNT if self._is_begun else 1)
            if not self._coming:
                return None
            (piece_start, piece_end), piece = self._coming[0]
            self._is_begun = True
        if not piece_start <= start <= end <= piece_end:
            return None
        return piece.result()[start - piece_start : end - piece_start]

    def _begin(self, count: int) -> None:
        while self._pieces and len(self._coming) < count:
            piece = self._pieces.popleft()
            self._coming.append((piece, _threads().submit(self._fetch, *piece)))

    def close(self) -> None:
        with self._mutex:
            self._pieces.clear()
            while self._coming:
                self._coming.popleft()[1].cancel()


def coalesced(ranges: Iterable[Range]) -> list[Range]:
    """Return ascending ranges with neighbours put together, up to PIECE_SIZE."""
    pieces: list[Range] = []
    for start, end in ranges:
        if pieces and start - pieces[-1][1] <= GAP_SIZE_MAX and end - pieces[-1][0] <= PIECE_SIZE:
            pieces[-1] = (pieces[-1][0], end)
        else:
            pieces.append((start, end))
    return pieces


@cache
def _threads() -> ThreadPoolExecutor:
    """The threads of this process; a forked child makes its own."""
    return ThreadPoolExecutor(THREAD_COUNT_MAX, "jstream-object")


os.register_at_fork(after_in_child=_threads.cache_clear)
