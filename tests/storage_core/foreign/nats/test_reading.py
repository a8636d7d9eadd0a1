"""Reading a slice: what is served, what is told, on streams made by hand."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, product
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from storage_core.errors import DataLossError
from storage_core.foreign import ForeignDamage, ForeignStore, open_foreign, read_foreign_slice
from storage_core.foreign.nats import reading
from storage_core.foreign.nats.index import highwayhash_of
from storage_core.sequences import SequenceSet

COLUMNS = ("sequence", "subject", "headers", "data")
HEADERS = b"NATS/1.0\r\nK: v\r\n\r\n"


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def index_of(stream: str, subjects: dict[str, int], blocks: dict[int, tuple[int, int]], last_hash: bytes) -> bytes:
    """Return an index.db, version 4, of blocks without removed messages: index -> (first, last)."""
    count = sum(last - first + 1 for first, last in blocks.values())
    first, last = min(one[0] for one in blocks.values()), max(one[1] for one in blocks.values())
    body = bytes([11, 4]) + b"".join(uvarint(one) for one in (count, 0, first, 0, last, 0, len(subjects)))
    for subject, messages in subjects.items():
        body += uvarint(len(subject)) + subject.encode() + uvarint(messages) + uvarint(1) + uvarint(max(blocks))
    body += uvarint(len(blocks))
    for block, (low, high) in blocks.items():
        body += b"".join(uvarint(one) for one in (block, 0, low, 0, high, 0, 0, 0, 0))
    body += uvarint(max(blocks)) + last_hash
    return body + pack("<Q", highwayhash_of(body, stream))


def read(store: ForeignStore, on_damage: Any = None, **asked: Any) -> list[tuple[int, str, bytes]]:
    rows = []
    for part in store.plan("S", COLUMNS, **asked):
        for batch in read_foreign_slice(part, COLUMNS, on_damage):
            rows += [(row["sequence"], row["subject"], row["data"]) for row in batch.to_pylist()]
    return rows


@pytest.fixture
def indexed(records: Any, make_stream: Callable[..., Path]) -> tuple[Path, bytes, list[tuple[int, str, bytes]]]:
    """Return a store of four messages with a current index, its block, and the messages."""
    encoder = records("S", 1)
    messages = [(n, f"S.{'abcd'[n % 4]}x", bytes([48 + n]) * (3 * n)) for n in range(1, 5)]
    parts = [encoder.message(n, subject, data, HEADERS if n == 2 else None) for n, subject, data in messages]
    block = b"".join(parts)
    store = make_stream("S", {1: block})
    path = store / "jetstream/$G/streams/S/msgs/index.db"
    path.write_bytes(index_of("S", {subject: 1 for _, subject, _ in messages}, {1: (1, 4)}, block[-8:]))
    return store, block, messages


def test_a_flipped_bit_in_any_byte_of_a_block_is_found_and_nothing_wrong_is_served(indexed: Any) -> None:
    store_path, block, messages = indexed
    (path,) = store_path.rglob("1.blk")
    for byte in range(len(block) - 8):  # the last 8 bytes tell that the index is current
        bit = 8 * byte + byte * 3 % 8  # test_scan.py flips all of them
        damaged = bytearray(block)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        store = open_foreign(store_path)
        told: list[ForeignDamage] = []
        rows = read(store, told.append)
        lost = [message for message in messages if message not in rows]
        assert [message for message in messages if message in rows] == rows, bit
        assert len(lost) == 1, bit
        assert [(one.first, one.lost_count) for one in told if one.first] == [(lost[0][0], 1)], bit
        with pytest.raises(DataLossError, match=f"the message with sequence {lost[0][0]} is lost"):
            read(store)


def test_every_truncation_of_a_block_is_found(indexed: Any) -> None:
    store_path, block, messages = indexed
    (path,) = store_path.rglob("1.blk")
    for size in range(len(block)):
        path.write_bytes(block[:size])
        store = open_foreign(store_path)
        told: list[ForeignDamage] = []
        rows = read(store, told.append)
        assert rows == messages[: len(rows)]
        assert len(told) == 1, size
        assert told[0].first == len(rows) + 1, size
        assert told[0].end in (5, None), size
        with pytest.raises(DataLossError):
            read(store)


def test_a_subject_size_that_moves_bytes_into_the_payload_is_found_by_the_index(indexed: Any) -> None:
    store_path, block, messages = indexed
    (path,) = store_path.rglob("1.blk")
    assert block[20] == 4
    path.write_bytes(block[:20] + b"\x03" + block[21:])
    with pytest.raises(DataLossError, match=r"sequence 1 is lost.*subject is none of the stream's"):
        read(open_foreign(store_path))
    assert read(open_foreign(store_path), lambda _: None) == messages[1:]


@pytest.mark.parametrize(
    ("subject", "config", "unproven"),
    [
        ("S.a", {"subjects": ["S.ab"]}, True),
        ("S.abd", {"subjects": ["S.ab", "T.>"]}, True),
        ("S.a d", {"subjects": ["S.*"]}, True),
        ("S.", {"subjects": []}, True),
        ("S.ab", {"subjects": ["S.ab"]}, False),
        ("S.a", {"subjects": ["S.*"]}, False),
        ("T.a", {"subjects": ["S.a"], "sources": [{"name": "T"}]}, False),
        ("T.a", {"subjects": None, "mirror": {"name": "T"}}, False),
        ("T.a", {"subjects": ["S.a"], "subject_transform": {"src": "S.>", "dest": "T.>"}}, False),
        ("T.a", {"subjects": ["S..a", 7]}, False),
    ],
)
def test_without_an_index_a_subject_that_is_none_of_the_streams_is_told_as_unproven(
    subject: str, config: dict[str, Any], unproven: bool, records: Any, make_stream: Callable[..., Path]
) -> None:
    encoder = records("S", 1)
    content = [encoder.message(n, subject, b"data") for n in (1, 2)] + [encoder.message(3, "U", b"", HEADERS)]
    store = open_foreign(make_stream("S", {1: content}, **config))
    told: list[ForeignDamage] = []
    assert [row[0] for row in read(store, told.append)] == [1, 2, 3]
    assert [(one.first, one.costs) for one in told] == [(None, False)] * unproven
    assert all("2 messages, the first with sequence 1," in one.reason for one in told)
    assert [row[0] for row in read(store)] == [1, 2, 3]


def test_a_flipped_bit_in_the_last_record_is_found_without_an_index(
    records: Any, make_stream: Callable[..., Path]
) -> None:
    encoder = records("S", 1)
    block = bytearray(b"".join(encoder.message(n, "S.a", b"data") for n in (1, 2, 3)))
    block[-10] ^= 1
    store = open_foreign(make_stream("S", {1: bytes(block)}))
    assert store.bounds("S") == (1, 4)
    with pytest.raises(DataLossError, match="messages from sequence 3 on are lost"):
        read(store)
    with pytest.raises(DataLossError, match="sequence 3 is lost"):
        read(store, end=store.bounds("S")[1])
    assert [row[0] for row in read(store, end=3)] == [1, 2]


def test_a_damaged_tombstone_is_unclear_without_an_index(records: Any, make_stream: Callable[..., Path]) -> None:
    encoder = records("S", 1)
    tombstone = bytearray(encoder.tombstone(1))
    tombstone[-1] ^= 1
    parts = [encoder.message(1, "S.a"), encoder.message(2, "S.a"), bytes(tombstone), encoder.message(3, "S.a")]
    store = open_foreign(make_stream("S", {1: b"".join(parts)}))
    with pytest.raises(DataLossError, match="removed messages may show again"):
        read(store)
    told: list[ForeignDamage] = []
    assert [row[0] for row in read(store, told.append)] == [1, 2, 3]
    assert [(one.first, one.unclear) for one in told] == [(None, True)]


def test_tombstones_remove_messages_of_earlier_blocks(records: Any, make_stream: Callable[..., Path]) -> None:
    first, second = records("S", 1), records("S", 5)
    blocks = {
        1: [first.message(1, "S.a"), first.message(2, "S.a"), first.erased(3, 12), first.message(4, "S.a")],
        5: [second.tombstone(2), second.message(5, "S.a"), second.tombstone(4), second.erased(6)],
    }
    store = open_foreign(make_stream("S", blocks))
    assert [row[0] for row in read(store)] == [1, 5]
    assert store.bounds("S") == (1, 7)


def test_a_block_in_which_nothing_is_true_tells_what_it_may_have_held(
    records: Any, make_stream: Callable[..., Path]
) -> None:
    first, third = records("S", 1), records("S", 3)
    blocks = {1: first.message(1, "S.a"), 2: b"\xff" * 300, 3: third.message(9, "S.a")}
    store = open_foreign(make_stream("S", blocks))
    with pytest.raises(DataLossError, match="messages of the sequences 2 to 8 are lost"):
        read(store)
    assert [row[0] for row in read(store, lambda _: None)] == [1, 9]


def test_sequences_in_two_blocks_are_served_once(records: Any, make_stream: Callable[..., Path]) -> None:
    first, second = records("S", 1), records("S", 2)
    blocks = {
        1: [first.message(n, "S.a", b"1") for n in (1, 2, 3)],
        2: [second.message(n, "S.a", b"2") for n in (2, 3, 4)],
    }
    rows = read(open_foreign(make_stream("S", blocks)))
    assert [(sequence, data) for sequence, _, data in rows] == [(1, b"1"), (2, b"1"), (3, b"1"), (4, b"2")]


def test_a_file_that_vanishes_after_the_plan_is_a_loss(records: Any, make_stream: Callable[..., Path]) -> None:
    path = make_stream("S", {1: records("S", 1).message(1, "S.a")})
    (part,) = open_foreign(path).plan("S")
    next(path.rglob("1.blk")).unlink()
    with pytest.raises(DataLossError, match="sequence 1 is lost.*the file is gone"):
        list(read_foreign_slice(part, COLUMNS))


def test_a_block_longer_than_any_can_be_is_read_up_to_the_bound(
    records: Any, make_stream: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = records("S", 1)
    good = b"".join(encoder.message(n, "S.a") for n in (1, 2, 3))
    path = make_stream("S", {1: good + b"\xff" * 1000})
    monkeypatch.setattr("storage_core.foreign.nats.block.BLOCK_SIZE_MAX", len(good))
    told: list[ForeignDamage] = []
    assert len(read(open_foreign(path), told.append)) == 3
    assert "longer than any block" in told[0].reason
    with pytest.raises(DataLossError):
        read(open_foreign(path))


def test_batches_stay_small_and_in_order(
    records: Any, make_stream: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = records("S", 1)
    path = make_stream("S", {1: [encoder.message(n, "S.a", bytes(n % 50)) for n in range(1, 301)]})
    monkeypatch.setattr(reading, "BATCH_SIZE", 2_000)
    monkeypatch.setattr(reading, "BATCH_ROW_COUNT", 20)
    (part,) = open_foreign(path).plan("S")
    batches = list(read_foreign_slice(part, COLUMNS))
    assert max(batch.num_rows for batch in batches) == 20
    assert [one for batch in batches for one in batch["sequence"].to_pylist()] == list(range(1, 301))


def test_subjects_that_are_no_utf8_are_shown_and_not_dropped(records: Any, make_stream: Callable[..., Path]) -> None:
    encoder = records("S", 1)
    block = encoder.record(1, 1, b"S.\xff", b"x") + encoder.message(2, "S.é", b"y")
    assert read(open_foreign(make_stream("S", {1: block}))) == [(1, "S.\\xff", b"x"), (2, "S.é", b"y")]


def test_numbers_and_times_of_full_width_survive(records: Any, make_stream: Callable[..., Path]) -> None:
    high, time = (1 << 62) - 2, -(1 << 63)
    store = open_foreign(make_stream("S", {1: records("S", 1).record(high, time, b"S.a", b"x")}))
    (part,) = store.plan("S")
    (batch,) = read_foreign_slice(part, ["sequence", "timestamp_ns", "timestamp"])
    assert batch["sequence"].to_pylist() == [high]
    assert batch["timestamp_ns"].to_pylist() == [time]


def test_damage_is_plain_values(indexed: Any) -> None:
    store_path, block, _ = indexed
    next(store_path.rglob("1.blk")).write_bytes(b"\0" + block[1:])
    told: list[ForeignDamage] = []
    read(open_foreign(store_path), told.append)
    shown = {name: getattr(told[0], name) for name in ForeignDamage.__slots__}
    assert json.loads(json.dumps(shown)) == shown
    assert (shown["first"], shown["end"], shown["offset_bytes"]) == (1, 2, 0)


def test_an_empty_file_between_blocks_is_lost_messages_and_not_a_hole(
    records: Any, make_stream: Callable[..., Path]
) -> None:
    blocks = {n: records("S", n).message(2 * n, "S.a", bytes([n])) for n in (1, 2, 3)}
    store = open_foreign(make_stream("S", {**blocks, 2: b""}))
    damage: list[ForeignDamage] = []
    assert [row[0] for row in read(store, damage.append)] == [2, 6]
    (only,) = damage
    assert (only.first, only.end, only.reason) == (3, 6, "the file is empty")
    with pytest.raises(DataLossError, match="the file is empty"):
        read(store)


def test_an_empty_last_file_is_a_block_that_was_begun(records: Any, make_stream: Callable[..., Path]) -> None:
    store = open_foreign(make_stream("S", {1: records("S", 1).message(1, "S.a", b"x"), 2: b""}))
    assert [row[0] for row in read(store)] == [1]
    assert store.bounds("S") == (1, 2)


def told_of(store: ForeignStore) -> tuple[list[int], SequenceSet, bool]:
    """Return what is shown, what is lost or open, and whether a strict read fails."""
    told: list[ForeignDamage] = []
    shown = [row[0] for row in read(store, told.append)]
    costly = [each for each in told if each.costs and each.first is not None]
    lost = SequenceSet.from_ranges((each.first or 0, each.end or 1 << 62) for each in costly)
    try:
        read(store)
    except DataLossError:
        return shown, lost, True
    return shown, lost, False


@pytest.mark.parametrize("index", ["index.db", "1.idx"])
@pytest.mark.parametrize("newer", [2, 5])  # messages behind those that the index lists
def test_an_index_of_before_is_not_current_where_damage_put_what_it_ends_with_at_the_end_of_the_block(
    records: Any, make_stream: Callable[..., Path], index: str, newer: int
) -> None:
    messages = [(n, "S.a", b"%02d" % n) for n in range(1, 9 + newer)]
    parts = [records("S", 1).message(*message) for message in messages]
    block, listed = b"".join(parts), b"".join(parts[:8])
    store = make_stream("S", {1: block})
    messages_path = store / "jetstream/$G/streams/S/msgs"
    old = bytes([22, 1]) + b"".join(map(uvarint, (8, len(listed), 1, 0, 8, 0, 0))) + listed[-8:]
    whole = index_of("S", {"S.a": 8}, {1: (1, 8)}, listed[-8:])
    (messages_path / index).write_bytes(whole if index == "index.db" else old)
    assert read(open_foreign(store, "nats")) == messages
    for start in range(len(block) - len(listed), len(block) - 8, 19):
        piece = listed[start - len(block) :]
        (messages_path / "1.blk").write_bytes(block[:start] + piece)
        shown, lost, fails = told_of(open_foreign(store, "nats"))
        assert all(n in lost for n, *_ in messages if n not in shown), start
        assert fails, start


def test_records_that_lie_over_others_hide_no_loss(records: Any, make_stream: Callable[..., Path]) -> None:
    """All records are true and follow each other: their numbers alone tell."""
    parts = [records("S", 1).message(n, "S.a", b"data") for n in range(1, 9)]
    store = make_stream("S", {1: b"".join(parts)})
    for count in (1, 2, 5):
        for start in range(9 - count):
            for place in range(9 - count):
                if start != place:
                    over = [*parts[:place], *parts[start : start + count], *parts[place + count :]]
                    (store / "jetstream/$G/streams/S/msgs/1.blk").write_bytes(b"".join(over))
                    shown, lost, fails = told_of(open_foreign(store, "nats"))
                    assert shown == [n for n in range(1, 9) if parts[n - 1] in over]
                    assert all(n in lost for n in range(1, 9) if n not in shown), (count, start, place)
                    assert fails, (count, start, place)


@pytest.mark.parametrize("cut", [1, 15, 29])
def test_a_tombstone_that_is_cut_at_the_end_of_a_block_in_front_of_others_is_unclear(
    records: Any, make_stream: Callable[..., Path], cut: int
) -> None:
    first = records("S", 1).message(1, "S.a") + records("S", 1).message(2, "S.a") + records("S", 1).tombstone(2)
    store = make_stream("S", {1: first[:-cut], 2: records("S", 2).message(3, "S.a")})
    with pytest.raises(DataLossError, match="removed messages may show again"):
        read(open_foreign(store, "nats"))


@pytest.mark.parametrize("place", [75, 101, 103])
def test_damage_from_a_removed_message_into_a_tombstone_is_unclear(
    records: Any, make_stream: Callable[..., Path], place: int
) -> None:
    """No message is missing: the third was removed by the last tombstone, and the other two come back."""
    block = [records("S", 1).message(n, "S.a", b"%02d" % n) for n in (1, 2, 3)]
    block += [*map(records("S", 1).tombstone, (1, 2)), records("S", 1).message(4, "S.a"), records("S", 1).tombstone(3)]
    whole = b"".join(block)
    damaged = whole[:place] + bytes(136 - place) + whole[136:]
    store = open_foreign(make_stream("S", {1: damaged, 2: records("S", 2).message(5, "S.a")}), "nats")
    for part in store.plan("S"):
        for first in range(part.first, part.end):
            if part.block_index == 1:
                with pytest.raises(DataLossError, match="removed messages may show again"):
                    list(read_foreign_slice(replace(part, first=first, end=first + 1), COLUMNS))


def test_a_damaged_message_that_was_removed_costs_nothing(records: Any, make_stream: Callable[..., Path]) -> None:
    block = [records("S", 1).message(n, "S.a", b"data") for n in (1, 2, 3)]
    damaged = b"".join([block[0], block[1][:-12] + b"else" + block[1][-8:], block[2], records("S", 1).tombstone(2)])
    store = open_foreign(make_stream("S", {1: damaged, 2: records("S", 2).message(4, "S.a")}), "nats")
    assert [row[0] for row in read(store)] == [1, 3, 4]


def test_a_tombstone_over_another_one_is_unclear(records: Any, make_stream: Callable[..., Path]) -> None:
    """All records are true, and no number falls: the first message comes back."""
    own = records("S", 1)
    block = [own.message(1, "S.a"), own.message(2, "S.a"), own.message(3, "S.a"), own.tombstone(1), own.tombstone(2)]
    store = make_stream("S", {1: b"".join(block), 2: records("S", 2).message(4, "S.a")})
    assert [row[0] for row in read(open_foreign(store, "nats"))] == [3, 4]
    block[3] = block[4]
    (store / "jetstream/$G/streams/S/msgs/1.blk").write_bytes(b"".join(block))
    with pytest.raises(DataLossError, match="a tombstone is there twice"):
        read(open_foreign(store, "nats"))


@pytest.mark.parametrize("index", ["index.db", "1.idx"])
def test_a_piece_moved_by_less_than_a_record_makes_no_index_current(
    records: Any, make_stream: Callable[..., Path], index: str
) -> None:
    """The index lists three messages, whose end is moved over the fourth: the piece covers its own source."""
    parts = [records("S", 1).message(n, "S.a", b"%02d" % n) for n in (1, 2, 3)] + [records("S", 1).message(4, "S")]
    block, listed = b"".join(parts), b"".join(parts[:3])
    store = make_stream("S", {1: block})
    messages_path = store / "jetstream/$G/streams/S/msgs"
    old = bytes([22, 1]) + b"".join(map(uvarint, (3, len(listed), 1, 0, 3, 0, 0))) + listed[-8:]
    whole = index_of("S", {"S.a": 3}, {1: (1, 3)}, listed[-8:])
    (messages_path / index).write_bytes(whole if index == "index.db" else old)
    assert [row[0] for row in read(open_foreign(store, "nats"))] == [1, 2, 3, 4]
    for start in range(len(listed)):
        piece = listed[start:]
        (messages_path / "1.blk").write_bytes(block[: len(block) - len(piece)] + piece)
        with pytest.raises(DataLossError):
            read(open_foreign(store, "nats"))


@pytest.mark.parametrize("layout", ["m1 m2 m3 t1 m4 t2 m5", "m1 m2 m3 t1 t2 t3 m4", "m1 t1 m2 m3 t2 m4 t3"])
def test_every_piece_of_whole_records_over_others_fails_a_strict_read(
    records: Any, make_stream: Callable[..., Path], layout: str
) -> None:
    """Pieces that cover a part of themselves as well, from the border of a record to the border of another."""
    own = records("S", 1)
    parts = [
        own.message(int(each[1:]), "S.a", b"data") if each[0] == "m" else own.tombstone(int(each[1:]))
        for each in layout.split()
    ]
    block = b"".join(parts)
    store = make_stream("S", {1: block, 2: records("S", 2).message(6, "S.a")})
    edges = [0, *accumulate(map(len, parts))]
    pieces = [(start, end) for start in edges for end in edges if start < end]
    for (start, end), place in product(pieces, edges):
        changed = block[:place] + block[start:end] + block[place + end - start :]
        if changed != block and len(changed) == len(block):
            (store / "jetstream/$G/streams/S/msgs/1.blk").write_bytes(changed)
            assert told_of(open_foreign(store, "nats"))[2], (start, end, place)
