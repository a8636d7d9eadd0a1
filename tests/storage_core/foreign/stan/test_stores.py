"""Whole stores that a real server wrote, read through the public surface."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import DataLossError, UnsupportedVersionError
from storage_core.foreign import ForeignDamage, open_foreign, read_foreign_slice
from storage_core.schema import READ_SCHEMA

HEALTHY = [
    "basic",
    "kill9",
    "crc-castagnoli",
    "subs-compacted",
    "damaged-no-index",  # the server loses nothing in these, nor do we
    "damaged-zero-tail",
    "damaged-truncated-subs",
]
FLIPPED = ["damaged-bitflip-index-kept", "damaged-bitflip-no-index"]
Read = Callable[..., list[dict[str, Any]]]


def digests(path: Path) -> dict[str, str]:
    files = (one for one in path.rglob("*") if one.is_file())
    return {str(one): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}


@pytest.mark.parametrize("name", HEALTHY)
def test_store_reads_as_a_client_got_it_and_stays_as_it_is(case: Callable[[str], Any], read: Read, name: str) -> None:
    one = case(name)
    before = digests(one.path)
    store = open_foreign(one.store, "stan")
    assert store.streams() == sorted(one.info["channels"])
    for channel, rows in one.rows().items():
        assert read(one.store, channel) == rows
        told = one.info["channels"][channel]
        assert store.bounds(channel) == (told["first_seq"], told["last_seq"] + 1)
    assert digests(one.path) == before


@pytest.mark.parametrize("name", [*HEALTHY, "limits-archive"])
def test_without_any_index_a_store_reads_the_same(
    case: Callable[[str], Any], read: Read, name: str, tmp_path: Path
) -> None:
    one = case(name)
    shutil.copytree(one.store, tmp_path / "store", ignore=shutil.ignore_patterns("*.idx"))
    for channel in one.rows():
        assert read(tmp_path / "store", channel) == read(one.store, channel)


def test_messages_that_limits_removed_are_read_until_their_slice_is_dropped(
    case: Callable[[str], Any], read: Read
) -> None:
    one = case("limits-archive")
    rows = read(one.store)
    assert [row["sequence"] for row in rows] == list(range(41, 76))
    assert rows[5:] == one.rows()["foo"]
    assert read(one.store, first=one.info["channels"]["foo"]["first_seq"]) == one.rows()["foo"]


@pytest.mark.parametrize("name", FLIPPED)
def test_flipped_bit_stops_the_read_and_is_shown(case: Callable[[str], Any], read: Read, name: str) -> None:
    one = case(name)
    for options in ({}, {"truncate_bad_eof": True}):
        with pytest.raises(DataLossError) as raised:
            read(one.store, **options)
        text = str(raised.value)
        assert "stream 'foo': the message with sequence 11 is lost: " in text
        assert "foo/msgs.1.dat at offset_bytes 894: checksum mismatch" in text
        assert "\n  head     39 00 00 00 " in text
        assert "type message, size 57, checksum 0x" in text
        assert '\n  payload  08 0b 12 03 66 6f 6f 22 26 31 37 20 31 37 20 77   ....foo"&17 17 w\n' in text
        assert "it would have been message 11 on 'foo' with data '17 17 wert versand" in text
        assert "noCrc (--no-crc) reads on past bad checksums" in text
    for channel in ("bar.baz", "leer"):
        assert read(one.store, channel) == one.rows("before")[channel]


@pytest.mark.parametrize("name", FLIPPED)
def test_flipped_bit_costs_its_message_only_and_with_no_crc_none(
    case: Callable[[str], Any], read: Read, name: str
) -> None:
    one = case(name)
    before = one.rows("before")["foo"]
    told: list[ForeignDamage] = []
    assert read(one.store, on_damage=told.append) == before[:10] + before[11:]
    assert [(damage.first, damage.end, damage.lost_count, damage.allowed) for damage in told] == [(11, 12, 1, False)]
    told.clear()
    rows = read(one.store, on_damage=told.append, no_crc=True)
    assert rows[:10] + rows[11:] == before[:10] + before[11:]
    # The flipped bit is one of the time: the row is given as it stands in the file.
    assert {**rows[10], "timestamp_ns": before[10]["timestamp_ns"]} == before[10]
    assert bin(rows[10]["timestamp_ns"] ^ before[10]["timestamp_ns"]).count("1") == 1
    (damage,) = told
    assert (damage.first, damage.end, damage.served, damage.allowed) == (11, 12, True, True)
    assert "the message with sequence 11 was read without a checksum that holds" in damage.describe()
    assert read(one.store, no_crc=True) == rows


def test_cut_record_stops_the_read_unless_an_option_reads_past_the_end(case: Callable[[str], Any], read: Read) -> None:
    one = case("damaged-truncated-msgs")
    for options in ({}, {"no_crc": True}):
        with pytest.raises(DataLossError) as raised:
            read(one.store, **options)
        text = str(raised.value)
        assert "the message with sequence 70 is lost: " in text
        assert "foo/msgs.4.dat at offset_bytes 654: the record declares 91 bytes, the file has 41 left" in text
        assert "it would have been message 70 on 'foo' with data 'messung" in text
        assert "truncateBadEof (--truncate-bad-eof) reads past an unexpected end" in text
    told: list[ForeignDamage] = []
    assert read(one.store, on_damage=told.append, truncate_bad_eof=True) == one.rows()["foo"]
    assert [(damage.first, damage.end, damage.allowed) for damage in told] == [(70, 71, True)]
    assert read(one.store, truncate_bad_eof=True) == one.rows()["foo"] == one.rows("before")["foo"][:-1]
    assert read(one.store, end=70) == one.rows()["foo"]


def test_encrypted_channel_is_refused_by_name(case: Callable[[str], Any], read: Read) -> None:
    store = open_foreign(case("encrypted").store, "stan")
    assert store.streams() == ["foo"]
    for options in ({}, {"no_crc": True}):
        with pytest.raises(UnsupportedVersionError, match=r"channel 'foo': its messages are encrypted .*msgs\.1\.dat"):
            read(case("encrypted").store, on_damage=lambda _: None, **options)


@pytest.mark.parametrize("columns", [["data"], ["subject", "stream"], ["headers", "sequence"], []])
def test_any_columns_can_be_asked_for(case: Callable[[str], Any], columns: list[str]) -> None:
    parts = open_foreign(case("basic").store, "stan").plan("foo", columns)
    batches = [batch for part in parts for batch in read_foreign_slice(part, columns)]
    assert {tuple(batch.schema.names) for batch in batches} == {tuple(columns)}
    assert sum(batch.num_rows for batch in batches) == 70


def test_default_columns_are_the_read_schema(case: Callable[[str], Any]) -> None:
    (part,) = open_foreign(case("basic").store, "stan").plan("leer")
    (batch,) = read_foreign_slice(part, READ_SCHEMA.names)
    assert batch.schema == READ_SCHEMA
    (row,) = batch.to_pylist()
    assert (row["stream"], row["sequence"], row["subject"], row["headers"], row["data"]) == (
        "leer",
        1,
        "leer",
        None,
        b"",
    )


def test_ranges_of_sequences_take_only_the_slices_that_hold_them(case: Callable[[str], Any], read: Read) -> None:
    one = case("basic")
    expected = one.rows()["foo"]
    for first, end in [(1, 2), (15, 25), (20, 41), (None, 50), (65, None), (71, None), (5, 5), (900, 1000)]:
        rows = [row for row in expected if (first or 0) <= row["sequence"] < (end or 1000)]
        assert read(one.store, first=first, end=end) == rows
    store = open_foreign(one.store, "stan")
    assert [part.block_index for part in store.plan("foo", first=15, end=25)] == [1, 2]
    assert [part.row_count for part in store.plan("foo", first=15, end=25)] == [6, 4]


def test_times_and_subjects_filter_messages(case: Callable[[str], Any], read: Read) -> None:
    one = case("basic")
    expected = one.rows()["foo"]
    low, high = expected[13]["timestamp_ns"], expected[60]["timestamp_ns"]
    assert read(one.store, time_first_ns=low, time_end_ns=high) == expected[13:60]
    assert read(one.store, subject_filters=["foo"]) == expected
    assert read(one.store, "*", subject_filters=["bar.*"]) == one.rows()["bar.baz"]
