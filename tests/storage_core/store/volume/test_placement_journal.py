"""The journal of placements: what was written comes back, and damage costs the record that it hits."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest
from harness.bounded_run import look_after

from storage_core.errors import UnsupportedVersionError
from storage_core.file_kinds import LOG_SEGMENT
from storage_core.files import OS_FILES
from storage_core.metadata.manifest import BLOCK_DTYPE
from storage_core.raft.log_format import BATCHES_OFFSET
from storage_core.store.store import Store
from storage_core.store.volume import placement_journal
from storage_core.store.volume.placement_journal import Placement, PlacementJournal


def placement(number: int, row_count: int = 1) -> Placement:
    rows = np.zeros(row_count, BLOCK_DTYPE)
    rows["first"] = np.arange(row_count) * 10 + 1
    rows["span"] = rows["row_count"] = 10
    rows["file_size"] = 1000
    rows["block_id"] = [number.to_bytes(8, "big") + row.to_bytes(8, "big") for row in range(row_count)]
    return Placement(number, b"incarnation %04d" % number, f"STREAM-{number}", rows)


def values(found: list[Placement]) -> list[tuple[int, bytes, str, bytes]]:
    return [(one.index, one.incarnation, one.stream, one.rows.tobytes()) for one in found]


@pytest.fixture
def journal(tmp_path: Path) -> PlacementJournal:
    return PlacementJournal(OS_FILES, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"incarnation": b"short"},
        {"stream": "../../x"},
        {"stream": "\x1b[2J"},
    ],
    ids=repr,
)
def test_a_record_that_no_store_writes_is_passed_over(journal: PlacementJournal, changes: dict[str, Any]) -> None:
    """An adoption names streams by what is in it. What it says of their blocks is judged there, and told."""
    journal.append([placement(1), replace(placement(2, 3), **changes), placement(3)])
    assert values(list(journal.read())) == values([placement(1), placement(3)])


def test_what_was_written_comes_back_in_order(journal: PlacementJournal) -> None:
    assert list(journal.read()) == []
    written = [placement(1), placement(2, 3), placement(3)]
    journal.append(written[:2])
    journal.append(written[2:])
    assert values(list(journal.read())) == values(written)


def test_many_blocks_are_split_into_records_of_bounded_size(journal: PlacementJournal) -> None:
    many = placement(1, 2 * placement_journal.ROWS_PER_RECORD_MAX + 1)
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
    newer = placement_journal._header(2, 0, 32) + journal.path.read_bytes()[32:]
    journal.path.write_bytes(newer)
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        list(journal.read())
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        journal.append([placement(2)])
    assert journal.path.read_bytes() == newer


def of_a_store(root: Path) -> Path:
    with Store.create([root / "volume"], snapshot_every=2) as store:
        stream = store.add_stream({"name": "notes", "subjects": ["notes"]})
        for number in range(5):
            stream.publish("notes", b"note %d" % number)
    return root / "volume"


def looks_like_records(path: Path) -> None:
    record = b"PLCE" + pack("<IIIQ", 0, placement_journal.RECORD_SIZE_MAX - 24, 0, 1)
    with path.open("ab") as file:
        file.write(record * 2_000_000)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a sparse terabyte": lambda path: os.truncate(path, 1 << 40),
    "what looks like two million records": looks_like_records,
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("rebuild_only", [False, True])
def test_a_journal_that_nobody_wrote_is_read_within_bounds_and_told(
    tmp_path: Path, kind: str, rebuild_only: bool
) -> None:
    volume = of_a_store(tmp_path)
    path = volume / placement_journal.FILE_NAME
    HOSTILE[kind](path)
    ended, peak_bytes = look_after(volume, rebuild_only)
    assert [one.error for one in ended] == [None] * len(ended), ended
    for one in ended:
        print(f"{kind}: {one.seconds:.2f} s, {peak_bytes >> 20} MiB")
        assert one.seconds < 5
    assert peak_bytes < 500 << 20
    if not rebuild_only:
        assert str(path) in ended[0].text and "offset_bytes" in ended[0].text
        assert json.loads(ended[2].text)["ok"], "maintenance has written it anew"
    assert f"stream notes: {5 if rebuild_only else 8} messages" in ended[-1].text


def test_a_log_segment_as_large_as_one_can_be_is_read_within_bounds(tmp_path: Path) -> None:
    """Full of records that belong to another place, so each of them is looked at."""
    volume = of_a_store(tmp_path)
    path = max(volume.glob("meta/*.log"))
    page = path.read_bytes()[BATCHES_OFFSET:][:4096]
    with path.open("ab") as file:
        for _ in range((LOG_SEGMENT.size_max - file.tell()) // (256 * len(page))):
            file.write(256 * page)
    ended, peak_bytes = look_after(volume)
    assert [one.error for one in ended[:3]] == [None] * 3, ended
    print(f"{[round(one.seconds, 2) for one in ended]} s, {peak_bytes >> 20} MiB")
    assert all(one.seconds < 5 for one in ended) and peak_bytes < 500 << 20
    assert "stream notes: 8 messages" in ended[-1].text


def test_pieces_of_a_journal_are_read_as_one(journal: PlacementJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    written = [placement(number, 1 + number % 5) for number in range(60)]
    journal.append(written)
    whole = values(list(journal.read()))
    assert len(whole) == 60
    for size in (1, 8, 100, 1000, 4096):
        monkeypatch.setattr(placement_journal, "PIECE_SIZE", size)
        assert values(list(journal.read())) == whole
