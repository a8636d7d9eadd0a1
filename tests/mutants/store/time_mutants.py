"""Known mistakes in what time takes; `made(name)` makes one while its block runs."""

from collections.abc import Callable
from typing import Any

from harness.mutants import Replacement, maker_of

from storage_core.sequences import SequenceSet
from storage_core.store.writing import limits

HOUR_NS = 3_600 * 10**9


def takes_messages_an_hour_before_they_are_too_old() -> list[Replacement]:
    plain = limits._HeadScan.end_of_old

    def end_of_old(self: Any, until_ns: int) -> int:
        return plain(self, until_ns + HOUR_NS)

    return [(limits._HeadScan, "end_of_old", end_of_old)]


def lets_max_age_take_subjects_without_a_marker() -> list[Replacement]:
    return [(limits.Limits, "old", lambda *asked: SequenceSet.empty())]


MUTANTS: dict[str, Callable[[], list[Replacement]]] = {
    mutant.__name__: mutant
    for mutant in (takes_messages_an_hour_before_they_are_too_old, lets_max_age_take_subjects_without_a_marker)
}
made = maker_of(MUTANTS)
