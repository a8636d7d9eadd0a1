"""Damage reports: left on another volume, found again, bounded in size and number, and never believed when damaged."""

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
from harness.copies import Scattered
from harness.faults import FaultyFiles
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptionError
from storage_core.files import OS_FILES, Files
from storage_core.store.volume import reports
from storage_core.store.volume.reports import Report, ReportFile, Reports, decode_report

DOCUMENT = Path(__file__).parents[4] / "docs" / "formats" / "report.md"
EXAMPLE = Report(
    b"INCARNATION-----", b"BLOCK-ID--------", b"VOLUME-ID-------", 101, 201, 128, "the file is missing",
    1_700_000_000_000_000_009,
)  # fmt: skip
ids = st.binary(min_size=16, max_size=16)
numbers = st.integers(0, 2**63 - 1)


@pytest.fixture
def volumes(tmp_path: Path) -> list[Path]:
    return [one.path for one in Scattered.make(tmp_path, 3).volumes]


def report(number: int, reason: str = "a bad checksum") -> Report:
    return Report(b"I" * 16, b"%016d" % number, b"V" * 16, 1, 10, 64, reason, 7)


def leave(volumes: Sequence[Path], left: Report, files: Files = OS_FILES) -> Path | None:
    return reports.leave([Reports(files, volume) for volume in volumes], left)


def content(volume: Path) -> list[Report]:
    return [one for _, one in Reports(OS_FILES, volume).read()]


@given(st.builds(Report, ids, ids, ids, numbers, numbers, numbers, st.text(max_size=300), numbers))
def test_what_is_written_is_read(made: Report) -> None:
    assert decode_report(made.encode(), "file") == made


def test_a_reason_is_cut_to_what_a_report_may_hold() -> None:
    for letter in ("x", "ü", "\N{GRINNING FACE}"):
        encoded = report(1, letter * 10_000).encode()
        assert len(encoded) <= reports.HEADER.size + reports.PAYLOAD_SIZE_MAX
        found = decode_report(encoded, "file").reason
        assert set(found) == {letter} and reports.REASON_SIZE_MAX - 4 < len(found.encode()) <= reports.REASON_SIZE_MAX


def test_a_flip_of_any_bit_and_a_cut_anywhere_make_it_no_report() -> None:
    whole = EXAMPLE.encode()
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError, match="the-file"):
            decode_report(bytes(damaged), "the-file")
    for size in range(len(whole)):
        with pytest.raises(CorruptionError):
            decode_report(whole[:size], "the-file")


def test_the_example_of_the_document_is_what_is_written() -> None:
    dump = DOCUMENT.read_text().split("## Worked example")[1].split("```")[1].strip().splitlines()
    encoded = b"".join(bytes.fromhex(line[8:].split("|")[0]) for line in dump[:-1])
    assert int(dump[-1], 16) == len(encoded)
    assert encoded == EXAMPLE.encode()
    assert decode_report(encoded, "example") == EXAMPLE
    assert EXAMPLE.name in DOCUMENT.read_text()


def test_a_report_lands_on_the_first_volume_that_takes_it(volumes: list[Path]) -> None:
    path = leave(volumes, report(1))
    assert path is not None and path.parent == volumes[0] / "reports"
    files = FaultyFiles(OS_FILES, lambda call: errno.EROFS if volumes[0] in call.path.parents else 0)
    path = leave(volumes, report(2), files)
    assert path is not None and path.parent == volumes[1] / "reports"
    assert [len(content(one)) for one in volumes] == [1, 1, 0]


def test_a_directory_without_a_volume_in_it_takes_none(tmp_path: Path, volumes: list[Path]) -> None:
    empty = tmp_path / "not-mounted"
    empty.mkdir()
    assert leave([empty, tmp_path / "nowhere"], report(1)) is None
    assert list(empty.iterdir()) == []
    assert Reports(OS_FILES, tmp_path / "nowhere").read() == []


def test_nothing_is_raised_whatever_call_fails(volumes: list[Path]) -> None:
    counting = FaultyFiles(OS_FILES)
    leave(volumes[:1], report(1), counting)
    assert len(counting.calls) >= 3
    for number in range(len(counting.calls)):
        files = FaultyFiles(OS_FILES, lambda call, at=number: errno.EIO if call.number == at else 0)  # type: ignore[misc]
        leave(volumes[1:2], report(number), files)
    assert all(one.reason == "a bad checksum" for one in content(volumes[1]))


def test_one_copy_has_one_report_and_the_first_one_stays(volumes: list[Path]) -> None:
    first = leave(volumes, report(1, "first"))
    assert leave(volumes, report(1, "second")) == first
    assert [one.reason for one in content(volumes[0])] == ["first"]


def test_a_report_that_was_cut_off_is_written_anew(volumes: list[Path]) -> None:
    path = leave(volumes, report(1))
    assert path is not None
    for left in (b"", path.read_bytes()[:30], path.read_bytes() + b"more"):
        path.write_bytes(left)
        assert content(volumes[0]) == []
        assert Reports(OS_FILES, volumes[0]).unreadable() == [ReportFile(path, OS_FILES)]
        assert leave(volumes, report(1)) == path
        assert content(volumes[0]) == [report(1)]


def test_a_volume_keeps_a_bounded_number_and_the_next_volume_takes_more(volumes: list[Path]) -> None:
    for number in range(reports.REPORT_COUNT_MAX + 3):
        leave(volumes, report(number))
    assert [len(content(one)) for one in volumes] == [reports.REPORT_COUNT_MAX, 3, 0]
    again = leave(volumes, report(0))
    assert again is not None and again.parent == volumes[0] / "reports"


def test_reports_that_were_dealt_with_are_removed(volumes: list[Path]) -> None:
    for number in range(3):
        leave(volumes, report(number))
    for file, one in Reports(OS_FILES, volumes[0]).read():
        if one.block_id != b"%016d" % 1:
            file.remove()
            file.remove()
    assert content(volumes[0]) == [report(1)]


def test_other_files_are_not_looked_at_and_links_are_not_followed(volumes: list[Path]) -> None:
    path = leave(volumes, report(1))
    assert path is not None
    (path.parent / "notes.txt").write_text("mine")
    (path.parent / "0000000000000000.report").symlink_to(path)
    (path.parent / "1111111111111111.report").mkdir()
    assert content(volumes[0]) == [report(1)]
    assert len(Reports(OS_FILES, volumes[0]).unreadable()) == 2
