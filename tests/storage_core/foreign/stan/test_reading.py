"""Slices of a channel together: gaps, indexes that tell more or less than the data, encryption, what is told."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from crc32c import crc32c

from storage_core.errors import DataLossError, UnsupportedVersionError
from storage_core.files import OsFile, OsFiles
from storage_core.foreign import ForeignDamage, open_foreign, read_foreign_slice
from storage_core.foreign.stan import scan

Read = Callable[..., list[dict[str, Any]]]


def sequences(rows: list[dict[str, Any]]) -> list[int]:
    return [row["sequence"] for row in rows]


def test_slice_that_is_gone_is_lost_by_name(writer: Any, read: Read, make_channel: Any) -> None:
    store = make_channel(msgs_1_dat=writer.slice(1, 6), msgs_3_dat=writer.slice(11, 16), subs_dat=writer.version)
    with pytest.raises(DataLossError, match=r"5 messages of the sequences 6 to 10 are lost: .*msgs\.1\.dat"):
        read(store)
    with pytest.raises(DataLossError):
        read(store, no_crc=True)
    told: list[ForeignDamage] = []
    assert sequences(read(store, on_damage=told.append)) == [*range(1, 6), *range(11, 16)]
    assert [(one.first, one.end, one.lost_count) for one in told] == [(6, 11, 5)]
    assert sequences(read(store, first=11)) == list(range(11, 16))


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_in_place_of_a_slice_costs_that_slice_alone(
    make: Callable[[Path], None], writer: Any, read: Read, make_channel: Any
) -> None:
    store = make_channel(msgs_1_dat=writer.slice(1, 6), msgs_3_dat=writer.slice(11, 16))
    make(store / "foo" / "msgs.2.dat")
    with pytest.raises(DataLossError, match="5 messages of the sequences 6 to 10 are lost"):
        read(store)
    told: list[ForeignDamage] = []
    assert sequences(read(store, on_damage=told.append)) == [*range(1, 6), *range(11, 16)]
    assert [(one.first, one.end) for one in told] == [(6, 11)]


def test_first_slices_may_be_gone(writer: Any, read: Read, make_channel: Any) -> None:
    store = make_channel(msgs_7_dat=writer.slice(100, 105), msgs_8_dat=writer.slice(105, 107))
    assert sequences(read(store)) == list(range(100, 107))
    assert open_foreign(store, "stan").bounds("foo") == (100, 107)


def test_slices_are_read_by_sequence_not_by_the_text_of_their_number(
    writer: Any, read: Read, make_channel: Any
) -> None:
    contents = {f"msgs_{number}_dat": writer.slice(number, number + 1) for number in range(1, 13)}
    assert sequences(read(make_channel(**contents))) == list(range(1, 13))


@pytest.mark.parametrize("listed", [3, 5, 9])
def test_index_that_lists_more_than_the_data_tells_the_loss_and_one_that_lists_less_nothing(
    listed: int, writer: Any, read: Read, make_channel: Any
) -> None:
    store = make_channel(msgs_1_dat=writer.slice(1, 6), msgs_1_idx=writer.index(1, listed + 1))
    told: list[ForeignDamage] = []
    assert sequences(read(store, on_damage=told.append)) == [1, 2, 3, 4, 5]
    assert [(one.first, one.end) for one in told] == ([(6, 10)] if listed > 5 else [])
    if listed > 5:
        with pytest.raises(DataLossError, match="sequences 6 to 9 are lost: .*the file ends here"):
            read(store)


@pytest.mark.parametrize("content", ["", "version", None])
def test_data_file_that_is_empty_or_gone_is_what_its_index_lists(
    content: str | None, writer: Any, read: Read, make_channel: Any
) -> None:
    data = {} if content is None else {"msgs_2_dat": writer.version if content else b""}
    store = make_channel(msgs_1_dat=writer.slice(1, 6), msgs_2_idx=writer.index(6, 9), **data)
    if content is not None:  # the entries' places count from the beginning of that file
        assert open_foreign(store, "stan").bounds("foo") == (1, 9)
    told: list[ForeignDamage] = []
    assert sequences(read(store, on_damage=told.append)) == [1, 2, 3, 4, 5]
    assert [(one.first, one.end) for one in told] == [(6, 9)]
    assert ("the file is gone" in told[0].reason) == (content is None)
    with pytest.raises(DataLossError):
        read(store)


@pytest.mark.parametrize("number", [1, 2])
def test_empty_slice_that_another_one_follows_is_lost_messages(
    writer: Any, read: Read, make_channel: Any, number: int
) -> None:
    slices = {f"msgs_{at}_dat": writer.slice(5 * at - 4, 5 * at + 1) for at in (1, 2, 3)}
    store = make_channel(**{**slices, f"msgs_{number}_dat": b""})
    first = 5 * number - 4
    with pytest.raises(DataLossError, match=f"5 messages of the sequences {first} to {first + 4} are lost"):
        read(store)
    told: list[ForeignDamage] = []
    lost = range(first, first + 5)
    assert sequences(read(store, on_damage=told.append)) == [one for one in range(1, 16) if one not in lost]
    assert [(one.first, one.end) for one in told] == [(first, first + 5)]


def test_empty_last_slice_is_one_that_was_begun(writer: Any, read: Read, make_channel: Any) -> None:
    assert sequences(read(make_channel(msgs_1_dat=writer.slice(1, 6), msgs_2_dat=b""))) == list(range(1, 6))


def test_index_that_is_damaged_or_of_no_store_is_not_believed(writer: Any, read: Read, make_channel: Any) -> None:
    for index in (b"", b"\x01", bytes(400), b"\xff" * 4000, writer.version + b"\xa5" * 320, writer.index(1, 9)[:-1]):
        store = make_channel(msgs_1_dat=writer.slice(1, 6), msgs_1_idx=index)
        if index == writer.index(1, 9)[:-1]:
            assert sequences(read(store, on_damage=lambda _: None)) == [1, 2, 3, 4, 5]
        else:
            assert sequences(read(store)) == [1, 2, 3, 4, 5]


def test_damage_at_the_beginning_of_a_slice_goes_back_to_the_slice_in_front(
    writer: Any, read: Read, make_channel: Any
) -> None:
    damaged = bytearray(writer.slice(6, 11))
    damaged[4:90] = b"\xa5" * 86  # two records and some
    for indexes in ({}, {"msgs_1_idx": writer.index(1, 6), "msgs_2_idx": writer.index(6, 11)}):
        store = make_channel(msgs_1_dat=writer.slice(1, 6), msgs_2_dat=bytes(damaged), **indexes)
        told: list[ForeignDamage] = []
        assert sequences(read(store, on_damage=told.append)) == [1, 2, 3, 4, 5, 9, 10]
        assert [(one.first, one.end, Path(one.file).name) for one in told] == [(6, 9, "msgs.2.dat")]
        assert sequences(read(store, no_crc=True)) == [1, 2, 3, 4, 5, 9, 10]


def test_slice_of_nothing_but_damage_is_told_as_what_lies_between_its_neighbours(
    writer: Any, read: Read, make_channel: Any
) -> None:
    junk = writer.version + b"\xa5" * 500
    store = make_channel(msgs_1_dat=writer.slice(1, 6), msgs_2_dat=junk, msgs_3_dat=writer.slice(9, 11))
    told: list[ForeignDamage] = []
    assert sequences(read(store, on_damage=told.append)) == [1, 2, 3, 4, 5, 9, 10]
    assert [(one.first, one.end, Path(one.file).name) for one in told] == [(6, 9, "msgs.2.dat")]


def test_last_slice_of_nothing_but_damage_has_no_end(writer: Any, read: Read, make_channel: Any) -> None:
    store = make_channel(msgs_1_dat=writer.slice(1, 6), msgs_2_dat=writer.version + b"\xa5" * 500)
    told: list[ForeignDamage] = []
    assert sequences(read(store, on_damage=told.append)) == [1, 2, 3, 4, 5]
    assert [(one.first, one.end) for one in told] == [(6, None)]
    assert open_foreign(store, "stan").bounds("foo") == (1, 7)
    assert sequences(read(store, end=6)) == [1, 2, 3, 4, 5]


def test_damage_outside_the_range_does_not_fail_a_read(writer: Any, read: Read, make_channel: Any) -> None:
    content = bytearray(writer.slice(1, 11))
    content[4 + 3 * len(writer.message(1)) + 4] ^= 1
    store = make_channel(msgs_1_dat=bytes(content))
    assert sequences(read(store, first=5)) == [5, 6, 7, 8, 9, 10]
    assert sequences(read(store, end=4)) == [1, 2, 3]
    with pytest.raises(DataLossError, match="the message with sequence 4 is lost"):
        read(store, first=4, end=5)
    assert sequences(read(store, first=4, end=5, no_crc=True)) == [4]
    told: list[ForeignDamage] = []
    read(store, first=6, no_crc=True, on_damage=told.append)
    assert not told


def test_file_that_shrinks_or_goes_after_the_plan_is_told(writer: Any, make_channel: Any, read_only_files: Any) -> None:
    store = make_channel(msgs_1_dat=writer.slice(1, 11))
    path = store / "foo" / "msgs.1.dat"
    (part,) = open_foreign(store, "stan").plan("foo")
    path.write_bytes(writer.slice(1, 6))
    told: list[ForeignDamage] = []
    rows = [row for batch in read_foreign_slice(part, ["sequence"], told.append) for row in batch.to_pylist()]
    assert sequences(rows) == [1, 2, 3, 4, 5]
    assert [(one.first, one.end, one.lost_count) for one in told] == [(6, 11, 5)]
    path.unlink()
    with pytest.raises(DataLossError, match="10 messages of the sequences 1 to 10 are lost: .*: the file is gone"):
        list(read_foreign_slice(part, ["sequence"]))


def test_disk_that_fails_in_the_middle_of_a_file_loses_the_rest_of_it(
    writer: Any, make_channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "WINDOW_SIZE", 100)

    class FailingFile(OsFile):
        def read_into(self, offset_bytes: int, buffer: memoryview) -> int:
            if offset_bytes > 150:
                raise OSError(errno.EIO, "Input/output error", str(self.path))
            return super().read_into(offset_bytes, buffer)

    class FailingFiles(OsFiles):
        def open(self, path: Path, writable: bool = False, size: int | None = None) -> OsFile:
            return FailingFile(path, os.open(path, os.O_RDONLY))

    store = make_channel(msgs_1_dat=writer.slice(1, 11))
    (part,) = open_foreign(store, "stan").plan("foo")
    told: list[ForeignDamage] = []
    batches = read_foreign_slice(part, ["sequence"], told.append, FailingFiles())
    got = [row["sequence"] for batch in batches for row in batch.to_pylist()]
    assert got == list(range(1, len(got) + 1)) and 2 < len(got) < 10
    assert [(one.first, one.end, one.allowed) for one in told] == [(len(got) + 1, 11, False)]
    assert "the file cannot be read: Input/output error" in told[0].reason
    assert told[0].offset_bytes == len(writer.slice(1, len(got) + 1))


def test_file_that_grows_after_the_plan_gives_the_same_rows(writer: Any, make_channel: Any) -> None:
    store = make_channel(msgs_1_dat=writer.slice(1, 11))
    (part,) = open_foreign(store, "stan").plan("foo")
    (store / "foo" / "msgs.1.dat").write_bytes(writer.slice(1, 13) + b"\x40")
    assert sum(batch.num_rows for batch in read_foreign_slice(part, ["sequence"])) == 10


def encrypted(sequence: int, counter: int, prefix: bytes = b"\x2f\x75\x7c\xb5", code: int = 1) -> bytes:
    return bytes([code]) + prefix + pack(">Q", counter) + b"\x5a" * 24 + bytes([sequence])


def test_encrypted_messages_are_recognised_behind_plain_ones(writer: Any, read: Read, make_channel: Any) -> None:
    plain = [writer.message(sequence) for sequence in range(1, 4000)]
    hidden = [writer.message(4000 + at, data=encrypted(at, 4000 + at, code=2)) for at in range(3)]
    store = make_channel(msgs_1_dat=[writer.version, *plain, *hidden])
    with pytest.raises(UnsupportedVersionError, match="channel 'foo': its messages are encrypted"):
        read(store)


@pytest.mark.parametrize(
    "data",
    [
        [b"\x01" + b"binary, version 1 of something" + bytes([n]) for n in range(9)],
        [b"\x01short"] * 9,
        [b"\x02" + pack(">IQ", 7, 1 << 40) + b"x" * 30] * 9,
        [b"plain"] * 8 + [encrypted(1, 5)],
    ],
)
def test_plain_messages_that_begin_like_encrypted_ones_are_read(
    data: list[bytes], writer: Any, read: Read, make_channel: Any
) -> None:
    messages = [writer.message(sequence, data=one) for sequence, one in enumerate(data, 1)]
    assert [row["data"] for row in read(make_channel(msgs_1_dat=[writer.version, *messages]))] == data


def test_fill_messages_and_replies_are_read(writer: Any, read: Read, make_channel: Any) -> None:
    reply = writer.record(writer.proto(f1=2, f2="foo", f3="answer.here", f4=b"x", f5=7, f6=1, f7=3, f10=99))
    store = make_channel(msgs_1_dat=[writer.version, writer.message(1, data=b""), reply])
    rows = read(store)
    assert [(row["sequence"], row["data"], row["subject"]) for row in rows] == [(1, b"", "foo"), (2, b"x", "foo")]


def test_channel_of_the_other_polynomial_keeps_its_checksums(writers: Any, read: Read, make_channel: Any) -> None:
    other = writers(crc32c)
    content = bytearray(other.slice(1, 6))
    content[-1] ^= 1
    store = make_channel(msgs_1_dat=bytes(content), msgs_1_idx=other.index(1, 6))
    with pytest.raises(DataLossError, match=r"sequence 5 is lost: .*checksum mismatch: .*\(Castagnoli\)"):
        read(store)


def test_every_bit_of_an_index_may_flip(writer: Any, read: Read, make_channel: Any) -> None:
    index = writer.index(1, 4)
    for bit in range(0, 8 * len(index), 3):
        flipped = bytearray(index)
        flipped[bit // 8] ^= 1 << bit % 8
        assert sequences(read(make_channel(msgs_1_dat=writer.slice(1, 4), msgs_1_idx=bytes(flipped)))) == [1, 2, 3]
