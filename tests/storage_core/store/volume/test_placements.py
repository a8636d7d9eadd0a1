"""The journal of placements: what was written comes back, and damage costs the record that it hits."""

import os
from pathlib import Path

import numpy as np
import pytest

from storage_core.errors import UnsupportedVersionError
from storage_core.files import OS_FILES
from storage_core.metadata.manifest import BLOCK_DTYPE
from storage_core.store.volume import placements
from storage_core.store.volume.placements import Placement, PlacementJournal


def placement(number: int, row_count: int = 1) -> Placement:
    rows = np.zeros(row_count, BLOCK_DTYPE)
    rows["first"] = np.arange(row_count) * 10 + 1
    rows["span"] = 10
    rows["block_id"] = [number.to_bytes(8, "big") + row.to_bytes(8, "big") for row in range(row_count)]
    return Placement(number, b"incarnation %04d" % number, f"STREAM-{number}", rows)


def values(found: list[Placement]) -> list[tuple[int, bytes, str, bytes]]:
    return [(one.index, one.incarnation, one.stream, one.rows.tobytes()) for one in found]


@pytest.fixture
def journal(tmp_path: Path) -> PlacementJournal:
    return PlacementJournal(OS_FILES, tmp_path)


def test_what_was_written_comes_back_in_order(journal: PlacementJournal) -> None:
    assert list(journal.read()) == []
    written = [placement(1), placement(2, 3), placement(3)]
    journal.append(written[:2])
    journal.append(written[2:])
    assert values(list(journal.read())) == values(written)


def test_many_blocks_are_split_into_records_of_bounded_size(journal: PlacementJournal) -> None:
    many = placement(1, 2 * placements.ROWS_PER_RECORD_MAX + 1)
    journal.append([many])
    found = list(journal.read())
    assert [len(one.rows) for one in found] == [4096, 4096, 1]
    assert b"".join(one.rows.tobytes() for one in found) == many.rows.tobytes()


def test_a_flip_of_any_bit_costs_at_most_the_record_that_it_hits(
    journal: PlacementJournal, capsys: pytest.CaptureFixture[str]
) -> None:
    written = [placement(1), placement(2, 2), placement(3)]
    journal.append(written)
    whole, expected = journal.path.read_bytes(), values(written)
    with journal.path.open("r+b", buffering=0) as file:
        for bit in range(len(whole) * 8):
            at = bit // 8
            os.pwrite(file.fileno(), bytes([whole[at] ^ 1 << bit % 8]), at)
            found = values(list(journal.read()))
            os.pwrite(file.fileno(), whole[at : at + 1], at)
            assert [one for one in expected if one in found] == found, f"bit {bit}: nothing but what was written"
            assert len(found) >= len(expected) - 1, f"bit {bit}"
    with capsys.disabled():
        print(f"\nplacements.journal: {len(whole) * 8} flipped bits", end="")


def test_a_journal_cut_at_any_length_keeps_what_stands_before_and_takes_more(journal: PlacementJournal) -> None:
    written, more = [placement(1), placement(2)], placement(9)
    journal.append(written)
    whole = journal.path.read_bytes()
    sizes = []
    for size in range(len(whole) + 1):
        journal.path.write_bytes(whole[:size])
        journal.append([more])
        found = values(list(journal.read()))
        assert found[:-1] == values(written)[: len(found) - 1], f"cut at {size}"
        assert found[-1:] == values([more]), f"cut at {size}"
        sizes.append(len(found) - 1)
    assert sizes == sorted(sizes)
    assert sizes[-1] == 2


def test_a_journal_of_a_newer_version_is_left_alone(journal: PlacementJournal) -> None:
    journal.append([placement(1)])
    newer = placements._header(2, 0, 32) + journal.path.read_bytes()[32:]
    journal.path.write_bytes(newer)
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        list(journal.read())
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        journal.append([placement(2)])
    assert journal.path.read_bytes() == newer
