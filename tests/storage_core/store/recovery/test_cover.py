"""Which blocks an adoption takes where several claim the same sequences: everything that can be had, nothing twice."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage_core.metadata.manifest import BLOCK_DTYPE
from storage_core.sequences import SequenceSet
from storage_core.store.recovery.cover import Cover
from storage_core.store.recovery.surviving import Copy

EVERYTHING = SequenceSet.from_ranges([(1, 101)])


def row(first: int, end: int) -> np.void:
    made = np.zeros(1, BLOCK_DTYPE)
    made["first"], made["span"], made["block_id"] = (
        first,
        end - first,
        first.to_bytes(8, "big") + end.to_bytes(8, "big"),
    )
    return made[0]


def cover(
    known: Sequence[tuple[int, int]],
    others: Sequence[tuple[int, int]],
    lost: Sequence[tuple[int, int]] = (),
    wanted: SequenceSet = EVERYTHING,
) -> Cover:
    """Return what is taken of blocks in the metadata and in the journals, if the files of some are lost."""
    made = Cover(wanted)
    made.take(
        [row(*one) for one in known],
        [row(*one) for one in others],
        lambda one: None if places([one])[0] in lost else Copy(one, b"", (0,), np.empty(0, np.int64)),
    )
    return made


def places(rows: Sequence[np.void]) -> list[tuple[int, int]]:
    return [(int(one["first"]), int(one["first"] + one["span"])) for one in rows]


def taken(made: Cover) -> list[tuple[int, int]]:
    return places([one.row for one in made.taken])


def test_without_metadata_the_merged_block_is_taken_and_the_old_ones_are_spared() -> None:
    made = cover([], [(1, 11), (11, 21), (21, 31), (1, 21)])
    assert taken(made) == [(1, 21), (21, 31)]
    assert places(made.spared) == [(1, 11), (11, 21)]


def test_the_old_blocks_are_taken_where_the_merged_one_is_lost() -> None:
    assert taken(cover([], [(1, 11), (11, 21), (1, 21)], lost=[(1, 21)])) == [(1, 11), (11, 21)]


def test_blocks_that_the_metadata_names_come_first() -> None:
    made = cover([(1, 11), (11, 21)], [(1, 21)])
    assert taken(made) == [(1, 11), (11, 21)]
    assert places(made.spared) == [(1, 21)]


def test_a_merged_block_takes_the_place_of_those_that_the_metadata_names_if_one_is_lost() -> None:
    made = cover([(1, 11), (11, 21), (21, 31)], [(1, 21)], lost=[(11, 21)])
    assert taken(made) == [(1, 21), (21, 31)]


def test_an_older_block_helps_where_the_merged_one_of_the_metadata_is_lost() -> None:
    made = cover([(1, 31)], [(1, 21), (1, 11), (21, 31)], lost=[(1, 31), (1, 21)])
    assert taken(made) == [(1, 11), (21, 31)]


def test_what_is_removed_asks_for_no_block() -> None:
    made = cover([(1, 11), (21, 31)], [(1, 31)], wanted=SequenceSet.from_ranges([(1, 11), (21, 31)]))
    assert taken(made) == [(1, 11), (21, 31)]


def test_blocks_that_overlap_and_do_not_contain_each_other_are_told() -> None:
    made = cover([], [(1, 21), (11, 31)])
    assert (taken(made), places(made.conflicts)) == ([(1, 21)], [(11, 31)])


@st.composite
def lineages(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the blocks that live at the end of a life of appends and merges, and all that there ever were."""
    live = [(at * 10 + 1, at * 10 + 11) for at in range(10)]
    ever = list(live)
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, max(0, len(live) - 2)))
        end = draw(st.integers(start + 2, max(start + 2, len(live))))
        if len(live) > 1:
            merged = (live[start][0], live[min(end, len(live)) - 1][1])
            live[start:end] = [merged]
            ever.append(merged)
    return live, ever


@given(lineages(), st.data())
def test_everything_is_covered_that_any_block_has(
    lineage: tuple[list[tuple[int, int]], list[tuple[int, int]]], data: st.DataObject
) -> None:
    live, ever = lineage
    lost = data.draw(st.lists(st.sampled_from(ever), unique=True))
    known = data.draw(st.sampled_from([live, ever[:10], []]))
    made = cover(known, [one for one in ever if one not in known], lost)
    here = taken(made)
    assert all(one[1] <= other[0] for one, other in zip(here, here[1:], strict=False)), "they do not overlap"
    had = {at for one in ever if one not in lost for at in range(*one)}
    assert {at for one in here for at in range(*one)} == had
    assert not made.conflicts
