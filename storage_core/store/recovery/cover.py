"""Cover: which blocks an adoption takes where several claim the same sequences.

Blocks that were merged stand in the journals beside those that they were made of, and files of both may lie there: the
old ones are kept for a while. The newest metadata that can be read may be older than the merge, and name blocks that
are not there any more. Any of them that is whole says the same of a sequence; so what counts is that everything is
covered that should be shown, by blocks that do not overlap:

    first    the blocks that the metadata names, as far as they are whole
    then     others, the largest first, wherever they have messages that nothing taken so far has; blocks that lie
             within such a one make room for it

A merged block spans exactly the blocks that it was made of, so of two that overlap one contains the other. Where that
does not hold a journal is wrong, and the block is left alone and reported.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from storage_core.sequences import SequenceSet
from storage_core.store.recovery.surviving import Copy


@dataclass(slots=True)
class Cover:
    """Blocks that were taken, and those that were not."""

    wanted: SequenceSet  # sequences that should be shown
    taken: list[Copy] = field(default_factory=list)  # Invariant: sorted by first, disjoint
    spared: list[np.void] = field(default_factory=list)  # rows of blocks that others make needless
    conflicts: list[np.void] = field(default_factory=list)  # rows of blocks that overlap others, and contain none

    def take(self, known: Iterable[np.void], others: Iterable[np.void], find: Callable[[np.void], Copy | None]) -> None:
        """Take what is needed. `find` returns a block as it was found, None if it is whole nowhere."""
        for row in sorted(known, key=_first):
            self._take(row, find)
        for row in sorted(others, key=lambda void: (-int(void["span"]), _first(void))):
            self._take(row, find)

    def _take(self, row: np.void, find: Callable[[np.void], Copy | None]) -> None:
        first, end = _first(row), _end(row)
        start = bisect_left(self.taken, first + 1, key=lambda copy: _end(copy.row))
        stop = bisect_left(self.taken, end, key=lambda copy: _first(copy.row))
        overlapping = self.taken[start:stop]
        covered = sum(
            self.wanted.count_in(max(first, _first(copy.row)), min(end, _end(copy.row))) for copy in overlapping
        )
        if overlapping and self.wanted.count_in(first, end) <= covered:
            self.spared.append(row)
            return
        if any(_first(copy.row) < first or _end(copy.row) > end for copy in overlapping):
            self.conflicts.append(row)
            return
        copy = find(row)
        if copy is None:
            return
        del self.taken[start:stop]
        self.spared.extend(copy.row for copy in overlapping)
        insort(self.taken, copy, key=lambda copy: _first(copy.row))


def _first(row: np.void) -> int:
    return int(row["first"])


def _end(row: np.void) -> int:
    return int(row["first"] + row["span"])
