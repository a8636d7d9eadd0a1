"""What an append returns: the sequences that it got, and how many of its messages were stored."""

from collections.abc import Sequence
from typing import overload


class AppendedRange(Sequence[int]):
    """Sequences of an append, which unpack, compare and hash as their `range` does.

    `stored` is the number of its messages that the stream took, `duplicates` that of messages whose msg_id it had.
    """

    __slots__ = ("_range", "duplicates", "stored")

    def __init__(self, sequences: range, stored: int, duplicates: int = 0) -> None:
        self._range, self.stored, self.duplicates = sequences, stored, duplicates

    @property
    def start(self) -> int:
        """The first sequence; for nothing, the one that comes next."""
        return self._range.start

    @property
    def stop(self) -> int:
        """One above the last sequence."""
        return self._range.stop

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[int]: ...
    def __getitem__(self, key: int | slice) -> "int | Sequence[int]":
        return self._range[key]

    def __len__(self) -> int:
        return len(self._range)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._range

    def __eq__(self, other: object) -> bool:
        """Return whether the sequences are the same, also those of a `range`."""
        if isinstance(other, AppendedRange):
            return self._range == other._range
        return self._range == other if isinstance(other, range) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._range)

    def __repr__(self) -> str:
        return f"AppendedRange({self._range!r}, stored={self.stored}, duplicates={self.duplicates})"
