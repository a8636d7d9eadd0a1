"""The ranges in which several copies are read: nothing is left out, nothing is read twice, nothing grows too large."""

import pickle

from harness.sequences import expand
from hypothesis import given
from hypothesis import strategies as st

from storage_core.foreign.slices import ForeignSlice
from storage_core.foreign.union import RANGE_SIZE_MAX, StreamCopy, clip, plan_union
from storage_core.sequences import SequenceSet

# Block files of one copy: (sequences that no block answers for, sequences of the block, bytes).
BLOCKS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30), st.integers(1, RANGE_SIZE_MAX // 2)), max_size=8)


def stream_copy(label: str, blocks: list[tuple[int, int, int]], removed: set[int]) -> StreamCopy:
    slices, at = [], 1
    for index, (gap, length, size) in enumerate(blocks):
        first, end = at + gap, at + gap + length
        gone = SequenceSet.from_sequences([one for one in removed if first <= one < end])
        slices.append(
            ForeignSlice(
                layout="nats",
                account="$G",
                stream="S",
                path=f"/{label}/{index}.blk",
                block_index=index,
                file_size=size,
                first=first,
                end=end,
                removed=gone.encode(),
                known=True,
                row_count=length - len(gone),
                byte_size=size,
            )
        )
        at = end
    return StreamCopy(label, f"/{label}", tuple(slices), SequenceSet.from_sequences(list(removed)))


COPIES = st.lists(st.tuples(BLOCKS, st.sets(st.integers(1, 200), max_size=9)), min_size=1, max_size=4)


@given(COPIES)
def test_ranges_take_in_everything_once(drawn: list[tuple[list[tuple[int, int, int]], set[int]]]) -> None:
    copies = [stream_copy(f"n{at}", *one) for at, one in enumerate(drawn)]
    ranges = plan_union(copies)
    assert all(one.end <= two.first for one, two in zip(ranges, ranges[1:], strict=False))
    for at, copy in enumerate(copies):
        for part in copy.slices:
            inside = [one for one in ranges if part.first < one.end and part.end > one.first]
            assert sum(min(one.end, part.end) - max(one.first, part.first) for one in inside) == part.end - part.first
            assert all(part in one.copies[at].slices for one in inside)
            assert not any(part in one.copies[at].slices for one in ranges if one not in inside)
    for one in ranges:
        assert pickle.loads(pickle.dumps(one)) == one
        for own, copy in zip(one.copies, copies, strict=True):
            assert own.label == copy.label
            assert SequenceSet.decode(own.removed) == copy.removed.clip(one.first, one.end)
            # Beside one block that began before, what begins in a range is bounded, or is one block.
            begun = [part.file_size for part in own.slices if part.first >= one.first]
            assert sum(begun) <= RANGE_SIZE_MAX or len(begun) == 1


@given(COPIES)
def test_ranges_know_what_no_copy_has_and_how_much_there_is_at_most(
    drawn: list[tuple[list[tuple[int, int, int]], set[int]]],
) -> None:
    copies = [stream_copy(f"n{at}", *one) for at, one in enumerate(drawn)]
    for one in plan_union(copies):
        shown = [
            {at for part in own.slices for at in range(max(part.first, one.first), min(part.end, one.end))}
            - set(expand(SequenceSet.decode(own.removed)))
            for own in one.copies
        ]
        assert set(range(one.first, one.end)) - set().union(*shown) == set(expand(SequenceSet.decode(one.removed)))
        assert one.row_count == max(map(len, shown))


def test_a_range_can_be_cut_anywhere() -> None:
    copies = [stream_copy("n0", [(0, 10, 100), (0, 10, 100)], {3}), stream_copy("n1", [(5, 10, 100)], set())]
    first, second = plan_union(copies)
    assert [(part.first, part.end) for part in (first, second)] == [(1, 11), (11, 21)]
    left, right = clip(first, 1, 4), clip(first, 4, 11)
    assert [len(own.slices) for own in left.copies] == [1, 0]
    assert [len(own.slices) for own in right.copies] == [1, 1]
    assert (left.row_count, right.row_count) == (2, 7)


def test_copies_without_blocks_have_no_ranges() -> None:
    assert plan_union([stream_copy("n0", [], set()), stream_copy("n1", [], {4})]) == []
