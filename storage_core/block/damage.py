"""What is wrong with a block, and where: the values inside errors and damage reports.

Errors of this package carry one `Defect` as their only argument, so `error.args[0]` has the numbers and `str(error)`
the sentence.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Defect:
    """One disagreement between bytes and what they should be."""

    file: str
    offset_bytes: int
    what: str  # the thing that was looked at: "header checksum", "footer digest"
    expected: str
    found: str

    @property
    def reason(self) -> str:
        """The sentence without the place."""
        return f"{self.what}: expected {self.expected}, found {self.found}"

    def __str__(self) -> str:
        return f"{self.file}: offset_bytes {self.offset_bytes}: {self.reason}"


@dataclass(frozen=True, slots=True)
class FrameDamage:
    """Damage that a read or a scrub found after the block was opened."""

    file: str
    offset_bytes: int  # of the frame, or of the part of the file that is damaged
    frame: int  # position of the frame in the block; -1: header, footer or trailer
    first: int  # sequences [first, end) that cannot be read because of it; empty if no message is lost
    end: int
    row_count: int  # messages among them, fewer than end - first if the block has holes
    reason: str

    def __str__(self) -> str:
        lost = f"; sequences {self.first} to {self.end - 1} are lost here" if self.row_count else ""
        return f"{self.file}: offset_bytes {self.offset_bytes}: {self.reason}{lost}"
