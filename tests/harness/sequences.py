"""Sequence sets as plain lists."""

from storage_core.sequences import SequenceSet


def expand(sequences: SequenceSet) -> list[int]:
    """Return every sequence, ascending."""
    return [sequence for first, end in sequences.ranges() for sequence in range(first, end)]
