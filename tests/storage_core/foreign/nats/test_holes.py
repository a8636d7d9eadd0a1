"""Numbers that no block has: removed by proof, lost, or open."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import DataLossError
from storage_core.foreign import ForeignDamage, open_foreign, read_foreign_slice
from storage_core.foreign.nats.holes import Span, find_holes
from storage_core.sequences import SequenceSet

NOTHING = SequenceSet.empty()
LIMITS_ONLY: dict[str, Any] = {"retention": "limits", "compression": "none"}


def ranges_of(holes: list[Any]) -> list[tuple[int, int, bool]]:
    return [(hole.first, hole.end, hole.open) for hole in holes]


@pytest.mark.parametrize(
    ("spans", "removed", "silent", "holes"),
    [
        ([Span(1, 1, 5), Span(2, 5, 9)], NOTHING, False, []),
        ([Span(2, 5, 9)], NOTHING, False, [(1, 5, False)]),
        ([Span(2, 5, 9)], NOTHING, True, [(1, 5, True)]),
        ([Span(2, 5, 9)], SequenceSet.from_ranges([(1, 5)]), False, []),
        ([Span(2, 5, 9)], SequenceSet.from_ranges([(2, 4)]), False, [(1, 2, False), (4, 5, False)]),
        ([Span(1, 1, 4), Span(2, 6, 9)], NOTHING, False, [(4, 6, True)]),  # compacted away, or cut off
        ([Span(1, 1, 4), Span(2, 0, 0), Span(3, 6, 9)], NOTHING, False, [(4, 6, True)]),
        ([Span(1, 1, 4), Span(3, 6, 9)], NOTHING, False, [(4, 6, False)]),
        ([Span(1, 1, 4), Span(3, 4, 9)], NOTHING, False, []),
        ([Span(1, 1, 6)], NOTHING, False, [(6, 9, False)]),  # something says that the stream went on
        ([], NOTHING, False, [(1, 9, False)]),
    ],
)
def test_what_no_block_accounts_for(
    spans: list[Span], removed: SequenceSet, silent: bool, holes: list[tuple[int, int, bool]]
) -> None:
    assert ranges_of(find_holes(spans, removed, 1, 9, NOTHING, silent)) == holes


@pytest.fixture
def said(
    records: Any, make_stream: Callable[..., Path]
) -> Callable[..., tuple[list[int], list[tuple[int, Any, bool]]]]:
    """Return a function that lays out blocks of messages, tombstones being negative, and reads them: what is shown,
    and what is lost or open."""

    def read(blocks: dict[int, list[int]], **config: Any) -> tuple[list[int], list[Any]]:
        content = {
            index: b"".join(
                records("S", index).message(each, "S.a") if each > 0 else records("S", index).tombstone(-each)
                for each in entries
            )
            for index, entries in blocks.items()
        }
        store = open_foreign(make_stream("S", content, **{**LIMITS_ONLY, **config}))
        damage: list[ForeignDamage] = []
        parts = store.plan("S")
        batches = [batch for part in parts for batch in read_foreign_slice(part, ["sequence"], damage.append)]
        shown = [sequence for batch in batches for sequence in batch.column(0).to_pylist()]
        costly = [(each.first, each.end, each.open) for each in damage if each.costs]
        if costly:
            with pytest.raises(DataLossError):
                [list(read_foreign_slice(part, ["sequence"])) for part in parts]
        return shown, costly

    return read


@pytest.mark.parametrize(
    ("blocks", "config", "shown", "costly"),
    [
        ({1: [3, 4], 2: [5]}, {}, [3, 4, 5], []),  # the first block there ever was: compacted
        ({2: [3, 4]}, {}, [3, 4], [(1, 3, False)]),
        ({2: [3, 4]}, {"first_seq": 3}, [3, 4], []),
        ({2: [3, 4]}, {"retention": "workqueue"}, [3, 4], [(1, 3, True)]),
        ({2: [3, 4]}, {"max_age": 10**9}, [3, 4], [(1, 3, True)]),
        ({2: [3, 4]}, {"max_msgs": 2}, [3, 4], []),  # full: the limit removed what was in front
        ({2: [3, 4]}, {"max_msgs": 3}, [3, 4], [(1, 3, False)]),
        ({2: [3, 4]}, {"max_msgs": 2, "discard": "new"}, [3, 4], [(1, 3, False)]),
        ({2: [3, 4, -3]}, {"max_msgs": 2}, [4], []),  # it was full once
        ({2: [-2, 3, 4]}, {}, [3, 4], []),  # purged
        ({2: [-9]}, {}, [], []),
        ({2: [3, 4, 5], 3: [6, -3, -4]}, {}, [5, 6], []),  # purged up to 4, the tombstones in one run
        ({2: [3, 4, 5], 3: [-4, 6, -3]}, {}, [5, 6], [(1, 3, False)]),  # deleted one by one
        ({2: [3, 4], 3: [5, -3]}, {}, [4, 5], [(1, 3, False)]),  # deleted, or purged up to 3
        ({1: [1, 2], 3: [5, -3, -4]}, {}, [1, 2, 5], []),
        ({1: [1, 2], 3: [5, -3]}, {}, [1, 2, 5], [(4, 5, False)]),
        ({1: [1, 2], 2: [5]}, {}, [1, 2, 5], [(3, 5, True)]),
        ({1: [1, 2, -5]}, {}, [1, 2], [(3, 5, False)]),  # the stream went up to 5
    ],
)
def test_every_reader_meets_them(
    said: Any, blocks: dict[int, list[int]], config: dict[str, Any], shown: list[int], costly: list[Any]
) -> None:
    assert said(blocks, **config) == (shown, costly)
