"""Slices of another channel, or of another store's same channel, in place of one's own: not served, and told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.bounded_run import read_foreign

from storage_core.errors import DataLossError
from storage_core.foreign import ForeignDamage, open_foreign
from storage_core.foreign.budget import PLACE_COUNT_MAX

Read = Callable[..., list[dict[str, Any]]]
MEMORY_MAX = 500 << 20  # bytes


def sequences(rows: list[dict[str, Any]]) -> list[int]:
    return [row["sequence"] for row in rows]


def slices(writer: Any) -> dict[str, bytes]:
    return {f"msgs_{at}_dat": writer.slice(20 * at - 19, 20 * at + 1) for at in (1, 2, 3)}


def all_told(store: Path, read: Read, **options: Any) -> tuple[list[int], list[ForeignDamage]]:
    told, _ = open_foreign(store, "stan").inspect("foo")
    return sequences(read(store, on_damage=told.append, **options)), told


@pytest.mark.parametrize("with_index", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_slice_of_another_channel_is_not_served(
    writer: Any, read: Read, make_channel: Any, number: int, with_index: bool
) -> None:
    first, end = 20 * number - 19, 20 * number + 1
    contents = {**slices(writer), f"msgs_{number}_dat": writer.slice(first, end, "bar")}
    if with_index:
        contents[f"msgs_{number}_idx"] = writer.index(first, end, "bar")
    store = make_channel(**contents)
    got, told = all_told(store, read, no_crc=True, truncate_bad_eof=True)
    assert got == [one for one in range(1, 61) if not first <= one < end]
    lost = next(one for one in told if one.first is not None)
    assert lost.first == first and lost.end in (end, None) and not lost.allowed
    assert "of channel 'bar'" in lost.reason
    with pytest.raises(DataLossError, match="of channel 'bar'"):
        read(store, no_crc=True, truncate_bad_eof=True)


def test_records_of_another_channel_between_ones_own_are_told(writer: Any, read: Read, make_channel: Any) -> None:
    content = [writer.version, writer.message(1), writer.message(2, "a-channel-with-a-long-name"), writer.message(3)]
    store = make_channel(msgs_1_dat=content)
    got, told = all_told(store, read)
    assert got == [1, 3]
    assert [(one.first, one.end) for one in told] == [(2, 3)]


@pytest.mark.parametrize("name", ["f", "fo", "fop", "fooo", "foo.bar.and.more", ""])
def test_names_that_only_begin_alike_are_other_channels(writer: Any, read: Read, make_channel: Any, name: str) -> None:
    content = [writer.version, writer.message(1), writer.message(2, name), writer.message(3)]
    assert all_told(make_channel(msgs_1_dat=content), read)[0] == [1, 3]


@pytest.mark.parametrize(
    ("number", "first", "end", "served", "told_reason"),
    [
        (1, 16, 36, [*range(16, 61)], "no place in this file"),  # ends above the next slice's first
        (2, 16, 31, [*range(1, 31), *range(41, 61)], "the file continues to sequence 20"),
        (2, 26, 46, [*range(1, 21), *range(26, 61)], "the file continues to sequence 45"),
        (2, 5, 10, [*range(1, 10), *range(41, 61)], "the file continues to sequence 20"),
        (3, 6, 11, [*range(1, 41)], "no place in this file"),
        (3, 30, 45, [*range(1, 45)], "the file continues to sequence 40"),
        (3, 1, 21, [*range(1, 41)], "no place in this file"),
        (1, 1000, 2000, [*range(21, 61)], "no place in this file"),
    ],
)
@pytest.mark.parametrize("with_index", [False, True])
def test_a_slice_of_another_store_is_told(
    writer: Any,
    read: Read,
    make_channel: Any,
    number: int,
    first: int,
    end: int,
    served: list[int],
    told_reason: str,
    with_index: bool,
) -> None:
    contents = {**slices(writer), f"msgs_{number}_dat": writer.slice(first, end)}
    if with_index:
        contents[f"msgs_{number}_idx"] = writer.index(first, end)
    store = make_channel(**contents)
    got, told = all_told(store, read)
    assert got == served
    assert any(told_reason in one.reason for one in told), [one.reason for one in told]
    with pytest.raises(DataLossError):
        read(store)
    lost = {at for one in told if one.first is not None for at in range(one.first, one.end or 61)}
    # Nothing tells how far the last slice went.
    assert set(range(1, served[-1])) - set(served) <= lost


def test_a_slice_that_was_copied_under_a_higher_number_hides_nothing(
    writer: Any, read: Read, make_channel: Any
) -> None:
    contents = {**slices(writer), "msgs_4_dat": writer.slice(81, 101), "msgs_3_dat": writer.slice(1, 21)}
    contents["msgs_5_dat"] = writer.slice(101, 121)
    got, told = all_told(make_channel(**contents), read)
    assert got == [*range(1, 41), *range(81, 121)]
    assert [(one.first, one.end) for one in told if one.costs] == [(41, 81)]


def test_a_channel_that_begins_late_is_told(writer: Any, read: Read, make_channel: Any) -> None:
    store = make_channel(msgs_2_dat=writer.slice(21, 41))
    got, told = all_told(store, read)
    assert got == list(range(21, 41))
    assert [one.costs for one in told] == [False] and "[1, 21)" in told[0].reason
    assert open_foreign(store, "stan").notes("foo") == [told[0].reason]


@pytest.mark.parametrize("kind", ["behind", "between", "all"])
def test_sparse_files_are_read_by_what_they_hold(writer: Any, make_channel: Any, kind: str) -> None:
    store = make_channel(msgs_1_dat=writer.slice(1, 6), subs_dat=writer.version)
    path = store / "foo" / "msgs.1.dat"
    size = 1 << 40
    with path.open("r+b") as file:
        if kind == "all":
            file.truncate(0)
        if kind == "between":
            file.seek(size - 4 - 5 * len(writer.message(6)))
            file.write(b"".join(writer.message(at) for at in range(6, 11)))
        else:
            file.truncate(size)
    with (store / "foo" / "subs.dat").open("r+b") as file:
        file.truncate(size)
    outcome = read_foreign("stan", store)
    assert outcome.error is None
    assert outcome.rows == {"behind": 5, "between": 10, "all": 0}[kind]
    assert outcome.peak_bytes < MEMORY_MAX
    assert any("zero bytes" in reason for reason in outcome.reasons) == (kind != "behind")


DENSE = 2 * PLACE_COUNT_MAX + 500


@pytest.mark.parametrize("kind", ["gone", "damaged", "of another channel"])
def test_trouble_at_every_second_message_is_told_in_a_bounded_list(
    writer: Any, read: Read, make_channel: Any, kind: str
) -> None:
    content = [writer.message(number) for number in range(1, DENSE + 1)]
    for at in range(1, DENSE, 2):
        record = content[at]
        damaged = record[:4] + bytes([record[4] ^ 1]) + record[5:]
        content[at] = {"gone": b"", "damaged": damaged}.get(kind, writer.message(at + 1, "bar"))
    store = make_channel(msgs_1_dat=[writer.version, *content, writer.message(DENSE + 1)])
    got, told = all_told(store, read)
    assert got == [*range(1, DENSE + 1, 2), DENSE + 1]
    assert PLACE_COUNT_MAX < len(told) < PLACE_COUNT_MAX + 10
    assert sum(one.places for one in told) == DENSE // 2
    assert sum(one.lost_count or 0 for one in told) == DENSE // 2
    rest = told[-1]
    assert rest.costs and not rest.allowed and rest.end == DENSE + 1 and "not reported one by one" in rest.reason
    with pytest.raises(DataLossError):
        read(store)
    served, told = all_told(store, read, no_crc=True)
    assert len(told) < PLACE_COUNT_MAX + 10
    assert served == (list(range(1, DENSE + 2)) if kind == "damaged" else got)
    assert all(one.served for one in told) == (kind == "damaged")
