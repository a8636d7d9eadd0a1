"""What damaged bytes may cost beyond being read once, and how much of them is reported one by one.

Healthy bytes cost their reading. Damage is searched for records behind it, and every place of it is reported; whoever
makes a file can make both as dense as he likes. So the search may hash a multiple of the file's bytes, and places
beyond a number are reported together, with how many they are and which messages they cost. Then a scan takes time and
memory by its bytes, into however many tasks it is cut: nothing has to be counted across them.

Work is counted in bytes and never in seconds: another attempt at the same bytes has to serve the same messages.
"""

from collections.abc import Sequence
from dataclasses import replace

from storage_core.foreign.slices import ForeignDamage

PLACE_COUNT_MAX = 1024  # places of damage that are reported one by one: of a block, of a window of STAN, of a part
SEARCH_FACTOR = 6  # bytes that may be hashed for each byte: a whole block of smallest records must be findable
SPARE_FACTOR = 64  # and for each byte of the first ones, up to a bound: small files may take more of their size
CANDIDATE_COST = 128  # bytes added for each place that is hashed
LONG_FACTOR = 2  # bytes for each byte, counting of what is hashed together the longest: long ones are hashed slowly


class SearchBudget:
    """Bytes that may be hashed in search of lost records; they grow with what is read of the file."""

    def __init__(self, spare_max: int) -> None:
        self._left, self._spare = 0, spare_max
        self._long_left = 0

    def grant(self, size: int) -> None:
        """Add what is due for `size` bytes more of the file."""
        spare = min(self._spare, SPARE_FACTOR * size)
        self._spare -= spare
        self._left += SEARCH_FACTOR * size + spare
        self._long_left += LONG_FACTOR * size + spare // SPARE_FACTOR

    def spend(self, size: int, count: int = 1, longest: int = 0) -> bool:
        """Take off what `count` candidates of so many bytes together cost; return whether that was left."""
        self._left -= size + CANDIDATE_COST * count
        self._long_left -= longest
        return not self.is_spent

    @property
    def is_spent(self) -> bool:
        return self._left < 0 or self._long_left < 0


def fold_damage(places: Sequence[ForeignDamage]) -> list[ForeignDamage]:
    """Return the first places as they are, and what comes after them as one more of each kind and stream."""
    kinds: dict[tuple[object, ...], list[ForeignDamage]] = {}
    for damage in places[PLACE_COUNT_MAX:]:
        served = (damage.served, damage.elsewhere, damage.disputed, damage.allowed, damage.gone)
        kinds.setdefault((damage.account, damage.stream, damage.costs, damage.unclear, *served), []).append(damage)
    return [*places[:PLACE_COUNT_MAX], *(some[0] if len(some) == 1 else _folded(some) for some in kinds.values())]


def _folded(some: Sequence[ForeignDamage]) -> ForeignDamage:
    places = sum(damage.places for damage in some)
    ranges = [(damage.first, damage.end) for damage in some if damage.first is not None]
    ends = [end for _, end in ranges if end is not None]
    counts = [damage.lost_count for damage in some if damage.first is not None]
    return replace(
        some[0],
        end_bytes=max(damage.end_bytes for damage in some if damage.file == some[0].file),
        first=min((first for first, _ in ranges if first is not None), default=None),
        end=max(ends) if ranges and len(ends) == len(ranges) else None,
        lost_count=None if None in counts else sum(count or 0 for count in counts),
        reason=together(places, some[0].reason),
        record="",
        places=places,
    )


def together(count: int, reason: str) -> str:
    """Return the reason of so many places, which is that of one of them."""
    return reason if count == 1 else f"{count} more places of damage, not reported one by one; one of them: {reason}"
