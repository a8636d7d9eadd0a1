"""What is lost of a stream: the one answer of reads, imports, comparisons and pages.

Damage claims sequences: bytes that should hold them are damaged, or their file is gone, or nothing tells what became
of them. What was read all the same, and what is known to have been removed, is none of it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from storage_core.foreign.slices import ForeignDamage
from storage_core.sequences import SequenceSet


@dataclass(frozen=True, slots=True)
class Losses:
    """Sequences that had a message which nobody can read, and those of which nothing tells what became of them."""

    lost: SequenceSet
    open: SequenceSet


@dataclass(frozen=True, slots=True)
class Claims:
    """What the damage of one copy claims, before anything is known of what was read."""

    damaged: SequenceSet
    gone_ranges: SequenceSet  # nothing is there, rather than something wrong
    open: SequenceSet


def claims(damage: Iterable[ForeignDamage], first: int, end: int, end_of: Callable[[ForeignDamage], int]) -> Claims:
    """Return what damage claims of the sequences `[first, end)`; `end_of` ends damage that has no end of its own."""
    damaged: list[tuple[int, int]] = []
    gone_ranges: list[tuple[int, int]] = []
    unexplained: list[tuple[int, int]] = []
    for each in damage:
        if each.first is None or each.served or each.elsewhere:
            continue
        ranges = unexplained if each.open else gone_ranges if each.gone else damaged
        stop = end_of(each) if each.end is None else each.end
        ranges.append((max(each.first, first), min(stop, end)))
    return Claims(*(SequenceSet.from_ranges(ranges) for ranges in (damaged, gone_ranges, unexplained)))


def losses(claimed: Sequence[Claims], shown: SequenceSet, removed: SequenceSet) -> Losses:
    """Return what is left of the claims of all copies beside what was shown, and what any copy knows as removed."""
    lost = openly = SequenceSet.empty()
    for each in claimed:
        lost = lost.union(each.damaged).union(each.gone_ranges)
        openly = openly.union(each.open)
    if lost:
        lost = lost.difference(shown).difference(removed)
    if openly:
        openly = openly.difference(shown).difference(removed).difference(lost)
    return Losses(lost, openly)
