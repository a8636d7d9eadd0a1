"""Every kind of damage to one small slice: nothing invented, nothing lost but the damaged record."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from crc32c import crc32c

from storage_core.errors import DataLossError
from storage_core.foreign import ForeignDamage
from storage_core.foreign.stan import scan
from storage_core.foreign.stan.record import MESSAGES, PAYLOAD_SIZE_MIN
from storage_core.foreign.stan.scan import Cause, join, scan_file

Read = Callable[..., list[dict[str, Any]]]
SUBJECT = "foo"
COUNT = 4


@pytest.fixture
def slice_content(writer: Any) -> bytes:
    return bytes(writer.slice(1, COUNT + 1))


@pytest.fixture
def rows(read: Read, make_channel: Any, slice_content: bytes) -> list[dict[str, Any]]:
    return read(make_channel(root="whole", msgs_1_dat=slice_content))


def edges(writer: Any) -> list[int]:
    """Return where the records of the slice begin, and its end."""
    found = [4]
    for sequence in range(1, COUNT + 1):
        found.append(found[-1] + len(writer.message(sequence)))
    return found


@pytest.mark.parametrize("index", [False, True])
def test_cut_at_every_length_keeps_every_whole_record(
    index: bool, writer: Any, read: Read, make_channel: Any, slice_content: bytes, rows: list[dict[str, Any]]
) -> None:
    borders = edges(writer)
    listed = {"msgs_1_idx": writer.index(1, COUNT + 1)} if index else {}
    for size in range(len(slice_content)):
        store = make_channel(msgs_1_dat=slice_content[:size], **listed)
        whole = sum(end <= size for end in borders[1:])
        told: list[ForeignDamage] = []
        assert read(store, truncate_bad_eof=True, on_damage=told.append) == rows[:whole], size
        if size in (0, *borders) and not index:
            assert read(store) == rows[:whole]  # nothing tells that there was more
            assert not told
            continue
        assert read(store, truncate_bad_eof=True) == rows[:whole], size
        (damage,) = told
        assert damage.first == whole + 1
        assert damage.end == (COUNT + 1 if index else None)
        assert damage.allowed
        with pytest.raises(DataLossError, match=f"from sequence {whole + 1} on|sequence {whole + 1}|{whole + 1} to"):
            read(store, no_crc=True)


@pytest.mark.parametrize("index", [False, True])
def test_every_flipped_bit_costs_its_record_at_most(
    index: bool, writer: Any, read: Read, make_channel: Any, slice_content: bytes, rows: list[dict[str, Any]]
) -> None:
    count = 3  # one in front, one in the middle, one at the end
    borders, rows = edges(writer)[: count + 1], rows[:count]
    slice_content = slice_content[: borders[-1]]
    listed = {"msgs_1_idx": writer.index(1, count + 1)} if index else {}
    for bit in range(0, 8 * len(slice_content), 7 if index else 3):
        place = bit // 8
        content = bytearray(slice_content)
        content[place] ^= 1 << bit % 8
        store = make_channel(msgs_1_dat=bytes(content), **listed)
        hit = sum(border <= place for border in borders) - 1  # position of the damaged record, -1: the version
        in_size = hit < 0 or place - borders[hit] < 4
        told: list[ForeignDamage] = []
        found = read(store, on_damage=told.append)
        assert found == (rows if in_size else rows[:hit] + rows[hit + 1 :]), bit
        # Without an index nothing tells that the damaged end of the file is one message only.
        ends = {hit + 2} if index or hit < count - 1 else {hit + 2, None}
        assert len(told) == 1 and told[0].first == (None if in_size else hit + 1), bit
        assert in_size or told[0].end in ends, bit
        told.clear()
        found = read(store, on_damage=told.append, no_crc=True)
        kept = [row for row in found if row["sequence"] != hit + 1]
        assert kept == rows[: max(hit, 0)] + rows[hit + 1 :], bit
        assert [row["sequence"] for row in found] == sorted({row["sequence"] for row in found}), bit
        assert {row["sequence"] for row in found} <= set(range(1, count + 1)), bit
        if not in_size:
            (damage,) = told  # whether it was served or could not be read
            assert damage.first == hit + 1 and damage.end in ends and damage.allowed, bit
            assert damage.served == (len(found) == count), bit
            if not bit % 8:
                with pytest.raises(DataLossError, match=f"sequence {hit + 1} "):
                    read(store)


@pytest.mark.parametrize(
    "size", [0, 1, PAYLOAD_SIZE_MIN, 27, 70, 1 << 20, (64 << 20) + (1 << 16), (64 << 20) + (1 << 17), 2**31, 2**32 - 1]
)
@pytest.mark.parametrize("position", [0, 2, COUNT - 1])
def test_sizes_that_lie_cost_nothing_while_the_payload_is_whole(
    size: int,
    position: int,
    writer: Any,
    read: Read,
    make_channel: Any,
    slice_content: bytes,
    rows: list[dict[str, Any]],
) -> None:
    at = edges(writer)[position]
    content = slice_content[:at] + pack("<I", size) + slice_content[at + 4 :]
    told: list[ForeignDamage] = []
    assert read(make_channel(msgs_1_dat=content), on_damage=told.append) == rows
    assert [one.first for one in told] == [None]


def test_size_and_checksum_damaged_together_cost_their_record(
    writer: Any, read: Read, make_channel: Any, slice_content: bytes, rows: list[dict[str, Any]]
) -> None:
    at = edges(writer)[2]
    content = slice_content[:at] + b"\xff" * 8 + slice_content[at + 8 :]
    store = make_channel(msgs_1_dat=content)
    assert read(store, on_damage=lambda _: None) == rows[:2] + rows[3:]
    assert read(store, no_crc=True) == rows  # its fields can still be read, up to the next record


@pytest.mark.parametrize("filler", [b"\x00", b"\xff", b"\x08", b"\x20\x00\x00\x00\x08\x03\x12\x03"])
@pytest.mark.parametrize("size", [1, 7, 8, 9, 40, 3000])
def test_foreign_bytes_between_records_cost_nothing(
    filler: bytes,
    size: int,
    writer: Any,
    read: Read,
    make_channel: Any,
    slice_content: bytes,
    rows: list[dict[str, Any]],
) -> None:
    at = edges(writer)[3]
    junk = (filler * size)[:size]
    told: list[ForeignDamage] = []
    assert read(make_channel(msgs_1_dat=slice_content[:at] + junk + slice_content[at:]), on_damage=told.append) == rows
    assert [(one.offset_bytes, one.end_bytes, one.first) for one in told] == [(at, at + size, None)]


def test_bytes_of_several_records_lost_are_one_range(
    writer: Any, read: Read, make_channel: Any, slice_content: bytes, rows: list[dict[str, Any]]
) -> None:
    borders = edges(writer)
    for filler in (b"\x00", b"\xa5"):
        content = slice_content[: borders[1]] + filler * (borders[3] - borders[1]) + slice_content[borders[3] :]
        store = make_channel(msgs_1_dat=content)
        told: list[ForeignDamage] = []
        assert read(store, on_damage=told.append) == rows[:1] + rows[3:]
        (damage,) = told
        assert (damage.first, damage.end, damage.lost_count) == (2, 4, 2)
        assert (damage.offset_bytes, damage.end_bytes) == (borders[1], borders[3])
        assert "messages of the sequences 2 to 3 are lost" in damage.describe()
        with pytest.raises(DataLossError):
            read(store, truncate_bad_eof=True)
        assert read(store, no_crc=True) == rows[:1] + rows[3:]


def test_damaged_neighbours_are_told_as_one_range(
    writer: Any, read: Read, make_channel: Any, slice_content: bytes, rows: list[dict[str, Any]]
) -> None:
    content = bytearray(slice_content)
    for position in (0, 1, 3):
        content[edges(writer)[position] + 4] ^= 0xFF  # the checksum
    store = make_channel(msgs_1_dat=bytes(content))
    for no_crc, expected in ((False, [rows[2]]), (True, rows)):
        told: list[ForeignDamage] = []
        assert read(store, on_damage=told.append, no_crc=no_crc) == expected
        assert [(one.first, one.end, one.served) for one in told] == [(1, 3, no_crc), (4, 5, no_crc)]
        assert [one.first for one in told if one.costs] == ([] if no_crc else [1, 4])


def test_sequence_of_a_damaged_record_is_that_of_its_place(
    writer: Any, read: Read, make_channel: Any, slice_content: bytes, rows: list[dict[str, Any]]
) -> None:
    for position in range(COUNT):
        content = bytearray(slice_content)
        at = edges(writer)[position] + 9  # the number behind the first tag
        assert content[at] == position + 1
        content[at] ^= 0x7F
        assert read(make_channel(msgs_1_dat=bytes(content)), no_crc=True) == rows


def test_unknown_polynomial_makes_every_record_bad_and_no_crc_reads_them(
    writers: Any, read: Read, make_channel: Any, rows: list[dict[str, Any]]
) -> None:
    strange = writers(lambda payload: crc32c(payload) ^ 1)
    store = make_channel(msgs_1_dat=strange.slice(1, COUNT + 1))
    with pytest.raises(DataLossError, match=r"checksum mismatch: .*IEEE.*Castagnoli"):
        read(store)
    told: list[ForeignDamage] = []
    assert read(store, on_damage=told.append, no_crc=True) == rows
    assert [(one.first, one.end, one.served) for one in told] == [(1, COUNT + 1, True)]


def test_polynomial_may_change_inside_a_slice(writer: Any, writers: Any, read: Read, make_channel: Any) -> None:
    other = writers(crc32c)
    content = writer.slice(1, 4) + b"".join(other.message(sequence) for sequence in range(4, 9)) + writer.message(9)
    assert [row["sequence"] for row in read(make_channel(msgs_1_dat=content))] == list(range(1, 10))


def test_records_inside_data_are_data(writer: Any, read: Read, make_channel: Any) -> None:
    inner = writer.message(2) + writer.message(3) + writer.message(7)
    content = [writer.version, writer.message(1), writer.message(2, data=inner), writer.message(3), writer.message(4)]
    assert [row["sequence"] for row in read(make_channel(msgs_1_dat=content))] == [1, 2, 3, 4]
    damaged = bytearray(b"".join(content))
    damaged[len(writer.version) + len(writer.message(1)) + 4] ^= 1  # the checksum of the message around them
    content[2] = writer.message(2, data=writer.message(5) + writer.message(9, "bar") + writer.message(3, "other"))
    for other in (bytes(damaged), b"".join(content)):
        flipped = bytearray(other)
        flipped[len(writer.version) + len(writer.message(1)) + 4] ^= 1
        rows = read(make_channel(msgs_1_dat=bytes(flipped)), on_damage=lambda _: None)
        assert [row["sequence"] for row in rows if row["sequence"] != 2] == [1, 3, 4]


@pytest.mark.parametrize(("data", "first", "reason"), [(None, None, "same content"), (b"again", 2, "other content")])
def test_copy_of_a_record_is_passed_over_and_compared(
    writer: Any, read: Read, make_channel: Any, data: bytes | None, first: int | None, reason: str
) -> None:
    content = [writer.slice(1, 4), writer.message(2, data=data), writer.message(4)]
    told: list[ForeignDamage] = []
    rows = read(make_channel(msgs_1_dat=content), on_damage=told.append)
    assert [row["data"] for row in rows] == [b"data 1", b"data 2", b"data 3", b"data 4"]
    assert [(one.first, one.costs, reason in one.reason) for one in told] == [(first, first is not None, True)]


def test_windows_of_any_size_give_what_one_gives(writer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = replace(MESSAGES, payload_size_max=400)
    content = bytearray(writer.version)
    for sequence in range(1, 60):
        content += writer.message(sequence, data=bytes([sequence]) * (sequence * 37 % 300))
    path = tmp_path / "msgs.1.dat"
    for damage in (None, 700, 1500, 4000, len(content) - 20):
        damaged = bytearray(content)
        if damage is not None:
            damaged[damage : damage + 700] = b"\x21" * 700
        path.write_bytes(damaged)
        results = []
        for size in (1 << 20, 10_000, 977, 250, 30, 11):
            monkeypatch.setattr(scan, "WINDOW_SIZE", size)
            windows = list(scan_file(path, kind, SUBJECT))
            assert all(len(window.buffer) <= 400 + 8 + size + 16 for window in windows)
            good = [
                (window.offset_bytes + int(start), int(sequence))
                for window in windows
                for start, sequence, true in zip(
                    window.records.starts, window.records.fields[1].values, window.records.good, strict=True
                )
                if true
            ]
            assert all(window.records.good.all() for window in windows)
            stretches = join([stretch for window in windows for stretch in window.stretches])
            assert all(one.cause is not Cause.HARMLESS for one in stretches)
            results.append((good, [(one.offset_bytes, one.end_bytes) for one in stretches]))
        assert all(one == results[0] for one in results), damage
        assert len(results[0][0]) >= (59 if damage is None else 40)


def test_zero_bytes_without_end_are_passed_in_windows(
    writer: Any, read: Read, make_channel: Any, monkeypatch: pytest.MonkeyPatch, slice_content: bytes
) -> None:
    monkeypatch.setattr(scan, "WINDOW_SIZE", 1000)
    store = make_channel(msgs_1_dat=slice_content + bytes(100_000))
    assert len(read(store)) == COUNT
    store = make_channel(msgs_1_dat=slice_content + bytes(100_000) + writer.message(COUNT + 2))
    told: list[ForeignDamage] = []
    assert [row["sequence"] for row in read(store, on_damage=told.append)] == [*range(1, COUNT + 1), COUNT + 2]
    assert {(one.first, one.end) for one in told} == {(COUNT + 1, COUNT + 2)}


def test_slice_made_to_look_like_records_everywhere_is_given_up_on(
    writer: Any, read: Read, make_channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "SEARCH_SPARE_MAX", 100_000)
    decoy = (pack("<II", 5_000, 0) + b"\x08\x05\x12") * 4_000
    store = make_channel(msgs_1_dat=[writer.version, writer.message(1), decoy, writer.message(5)])
    told: list[ForeignDamage] = []
    rows = read(store, on_damage=told.append)
    assert rows[0]["sequence"] == 1
    assert any("the search for records was given up" in one.reason for one in told)


def test_damaged_record_in_front_of_a_copy_takes_no_sequence_twice(writer: Any, read: Read, make_channel: Any) -> None:
    bad = bytearray(writer.message(3))
    bad[4] ^= 1
    content = [writer.slice(1, 3), bytes(bad), writer.message(2), writer.message(3), writer.message(4)]
    rows = read(make_channel(msgs_1_dat=content), no_crc=True, on_damage=lambda _: None)
    assert [row["sequence"] for row in rows] == [1, 2, 3, 4]


def test_every_second_record_damaged_is_read_in_reasonable_time(writer: Any, read: Read, make_channel: Any) -> None:
    content = bytearray(writer.version)
    for sequence in range(1, 2_001):
        record = bytearray(writer.message(sequence))
        record[4] ^= sequence & 1
        content += record
    store = make_channel(msgs_1_dat=bytes(content))
    assert [row["sequence"] for row in read(store, no_crc=True)] == list(range(1, 2_001))
    assert [row["sequence"] for row in read(store, on_damage=lambda _: None)] == list(range(2, 2_001, 2))
