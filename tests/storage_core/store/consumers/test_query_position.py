"""What a query's position remembers of losses, against a slow version that joins neighbours one by one."""

from hypothesis import given
from hypothesis import strategies as st

from storage_core.sequences import SequenceSet
from storage_core.store.consumers.query_position import LOST_RANGES_KEPT, reported_kept

sets = st.sets(st.integers(1, 120), max_size=60).map(SequenceSet.from_sequences)


def unread(first: int, end: int, next_sequence: int) -> int:
    """Return how many messages of the gap are still to be read."""
    return max(0, end - max(first, next_sequence))


def joined(lost: SequenceSet, next_sequence: int) -> SequenceSet:
    ranges = list(lost.ranges())
    while len(ranges) > LOST_RANGES_KEPT:
        gaps = [
            (unread(left[1], right[0], next_sequence), right[0] - left[1], at)
            for at, (left, right) in enumerate(zip(ranges, ranges[1:], strict=False))
        ]
        *_, at = min(gaps)
        ranges[at : at + 2] = [(ranges[at][0], ranges[at + 1][1])]
    return SequenceSet.from_ranges(ranges)


@given(sets, st.integers(1, 121))
def test_all_losses_are_remembered_in_few_ranges_that_join_what_was_read_first(
    lost: SequenceSet, next_sequence: int
) -> None:
    kept = reported_kept(lost, next_sequence)
    assert not lost.difference(kept) and kept.run_count <= LOST_RANGES_KEPT
    if lost.run_count <= LOST_RANGES_KEPT:
        assert kept == lost
    assert kept == joined(lost, next_sequence)


def test_below_the_position_nothing_is_missed_by_joining() -> None:
    lost = SequenceSet.from_ranges([(10 * at, 10 * at + 1) for at in range(1, 21)])
    assert reported_kept(lost, 141).difference(lost).count_in(141, 300) == 0
