"""Files that no server writes: read within bounds of memory and time, and what they hide is told."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness.bounded_run import make_sparse, read_foreign
from pyspark.sql.pandas.types import to_arrow_schema

from datasource.schema import FOREIGN_STREAM_TYPES, spark_schema
from storage_core.errors import DataLossError
from storage_core.foreign import ForeignDamage, open_foreign, read_foreign_slice, side_by_side
from storage_core.foreign.budget import PLACE_COUNT_MAX
from storage_core.foreign.nats.highwayhash import highwayhash64
from storage_core.foreign.nats.index import INDEX_MAGIC, SET_MAGIC, highwayhash_of
from storage_core.foreign.nats.record import SIZE_MIN, block_key
from storage_core.foreign.nats.scan import RECORD_COUNT_MAX
from storage_core.foreign.side_by_side import compare
from storage_core.store.ingest import from_server
from storage_core.store.ingest.from_server import ImportRequest, import_streams
from storage_core.store.store import Store

MEMORY_MAX = 500 << 20  # bytes, of a process that reads one of these
BOMB_SIZE = 64 << 20
SECONDS_MAX = 10.0  # of CPU: what is linear takes up to five beside other work, what is not takes minutes


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def messages_of(store: Path) -> Path:
    (found,) = store.rglob("msgs")
    return found


def dense_index(stream: str) -> bytes:
    """Return an index of a MiB with the right checksum, whose one block has eight million removed sequences."""
    node_count = 2000
    nodes = b"".join(pack("<Q", number * 4096) + b"\xff" * 512 + pack("<H", 1) for number in range(node_count))
    removed = bytes([SET_MAGIC, 1]) + pack("<II", node_count, node_count * 4096) + nodes
    numbers = [0, 0, 1, 0, 1 << 23, 0]  # messages, bytes, first, its time, last, its time
    block = [1, 0, 0, 0, 1 << 23, 0, node_count * 4096]
    body = bytes([INDEX_MAGIC, 1]) + b"".join(map(uvarint, [*numbers, 0, 1, *block])) + removed
    body += uvarint(1) + bytes(8)
    return body + pack("<Q", highwayhash_of(body, stream))


def s2_bomb(filling: bytes) -> bytes:
    return b"cmp\x01" + uvarint(BOMB_SIZE) + filling * (BOMB_SIZE // len(filling)) + bytes(8)


def smallest_records(count: int, seconds: int = 1_700_000_000) -> bytes:
    """Return records of empty messages without a subject, which no server takes, with the right checksums."""
    layout = np.dtype([("size", "<u4"), ("number", "<u8"), ("time", "<i8"), ("subject_size", "<u2"), ("hash", "<u8")])
    assert layout.itemsize == SIZE_MIN
    records = np.zeros(count, layout)
    records["size"], records["number"], records["time"] = SIZE_MIN, np.arange(1, count + 1), seconds * 10**9
    hashed = np.ascontiguousarray(records[["number", "time"]].astype([("number", "<u8"), ("time", "<i8")]))
    step, key = 16, block_key("S", 1)
    for first in range(0, count, 200_000):
        part = hashed[first : first + 200_000].view(np.uint8)
        places = np.arange(0, len(part), step)
        records["hash"][first : first + 200_000] = highwayhash64(part, places, np.full(len(places), step), key)
    return records.tobytes()


def copies_of_a_byte(chunk_count: int) -> bytes:
    """Return a compressed block of chunks that are a byte and then copies of it, one after the other."""
    body = bytes(4) + uvarint(4 << 20) + b"\x00x" + b"\x02\x01\x00" * ((4 << 20) - 1)
    chunk = bytes([0]) + len(body).to_bytes(3, "little") + body
    return b"cmp\x01" + uvarint(chunk_count * (4 << 20)) + chunk * chunk_count + bytes(8)


def index_of_many_subjects(stream: str, count: int) -> bytes:
    subject = uvarint(1) + b"a" + uvarint(1) + uvarint(1)
    body = bytes([INDEX_MAGIC, 1, *bytes(2), 1, *bytes(3)]) + uvarint(count) + subject * count
    body += uvarint(0) + uvarint(1) + bytes(8)
    return body + pack("<Q", highwayhash_of(body, stream))


HOSTILE: dict[str, Callable[[Path], object]] = {
    "an index of 16 MiB": lambda place: (place / "index.db").write_bytes(b"\x0b\x04" * (8 << 20)),
    "a sparse index of a terabyte": lambda place: make_sparse(place / "index.db", 1 << 40),
    "an old index of a terabyte": lambda place: make_sparse(place / "1.idx", 1 << 40),
    "a dense index": lambda place: (place / "index.db").write_bytes(dense_index("S")),
    "S2 chunks of no length": lambda place: (place / "1.blk").write_bytes(s2_bomb(bytes(4))),
    "S2 chunks of no known type": lambda place: (place / "1.blk").write_bytes(s2_bomb(bytes([2, 1, 0, 0, 0]))),
    "S2 chunks to be passed over": lambda place: (place / "1.blk").write_bytes(s2_bomb(bytes([0x80, 1, 0, 0, 0]))),
    "S2 chunks of a byte": lambda place: (place / "1.blk").write_bytes(s2_bomb(bytes([1, 5, 0, 0, 1, 2, 3, 4, 5]))),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_no_server_writes_is_read_within_bounds_and_told(
    make_stream: Callable[..., Path], records: Any, kind: str
) -> None:
    own = records("S", 1)
    store = make_stream("S", {1: [own.message(number, "S.a", b"x") for number in range(1, 4)]})
    HOSTILE[kind](messages_of(store))
    outcome = read_foreign("nats", store)
    assert outcome.error is None
    assert outcome.reasons and len(outcome.reasons) < 200
    assert outcome.rows == (0 if kind.startswith("S2") else 3)
    assert outcome.peak_bytes < MEMORY_MAX and outcome.seconds < SECONDS_MAX, outcome


LARGE: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "four million smallest records": (
        lambda place: (place / "1.blk").write_bytes(smallest_records(4_000_000)), RECORD_COUNT_MAX, "no server writes"
    ),
    "copies of a byte": (lambda place: (place / "1.blk").write_bytes(copies_of_a_byte(10)), 0, "1.blk"),
    "an index of a million subjects": (
        lambda place: (place / "index.db").write_bytes(index_of_many_subjects("S", 1_000_000)), 3, ""
    ),
    "an index of eight million subjects": (
        lambda place: (place / "index.db").write_bytes(b"\x0b\x01" + bytes(32 << 20)), 3, "nothing of it is read"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", LARGE)
def test_what_is_as_dense_as_can_be_is_read_within_bounds(
    make_stream: Callable[..., Path], records: Any, kind: str
) -> None:
    own = records("S", 1)
    store = make_stream("S", {1: [own.message(number, "S.a", b"x") for number in range(1, 4)]})
    make, row_count, reason = LARGE[kind]
    make(messages_of(store))
    outcome = read_foreign("nats", store)
    print(f"{kind}: {outcome.seconds:.1f} s of CPU, {outcome.peak_bytes >> 20} MiB, {outcome.rows} rows")
    assert (outcome.error, outcome.rows) == (None, row_count)
    assert len(outcome.reasons) < 200 and (reason == "1.blk" or reason in " ".join(outcome.reasons))
    assert bool(outcome.reasons) == bool(reason)
    assert outcome.peak_bytes < MEMORY_MAX and outcome.seconds < SECONDS_MAX, outcome


@pytest.mark.parametrize("gone", ["1.blk", "2.blk"])
@pytest.mark.parametrize("index", ["damaged", "gone"])
def test_a_block_that_is_gone_without_an_index_to_tell_is_told(
    case: Callable[[str], Any], tmp_path: Path, gone: str, index: str
) -> None:
    """Its messages may have been removed, so nobody can say that they are lost; nor that nothing is."""
    one = case("plain-multiblock")
    store = shutil.copytree(one.store, tmp_path / "store")
    place = messages_of(store)
    (place / gone).unlink()
    if index == "gone":
        (place / "index.db").unlink()
    else:
        content = bytearray((place / "index.db").read_bytes())
        content[20] ^= 1
        (place / "index.db").write_bytes(content)
    outcome = read_foreign("nats", store)
    assert 0 < outcome.rows < len(one.expected())
    assert any("index.db" in reason for reason in outcome.reasons) == (index == "damaged")
    told = " ".join(outcome.reasons)
    assert "no index tells" in told and gone in told


@pytest.mark.parametrize(
    ("deleted", "open_ranges"),
    [([], ["[1, 11)"]), ([3], ["[1, 3)", "[4, 11)"]), ([3, 9], ["[1, 3)", "[4, 9)", "[10, 11)"]), ([10], [])],
)
def test_a_deleted_message_does_not_explain_the_block_that_is_gone_with_it(
    make_stream: Callable[..., Path], records: Any, deleted: list[int], open_ranges: list[str]
) -> None:
    """A purge leaves the tombstone of the last message that it removes; one further below is of that message alone."""
    own = records("S", 2)
    content = [*map(own.tombstone, deleted), *(own.message(number, "S.a", b"x") for number in range(11, 14))]
    reasons = read_foreign("nats", make_stream("S", {2: content})).reasons
    unclear = [reason for reason in reasons if "no index tells what became of" in reason]
    assert [each.partition(" of ")[2].partition(":")[0] for each in unclear] == open_ranges, reasons


def test_an_index_that_is_only_older_than_the_blocks_is_nothing_to_tell(case: Callable[[str], Any]) -> None:
    outcome = read_foreign("nats", case("kill9-stale-index").store)
    assert outcome.reasons == []


@pytest.mark.parametrize("gone", [["1.blk"], ["2.blk"], ["1.blk", "1.idx"]])
def test_a_block_that_is_gone_is_told_where_each_block_has_its_own_index(
    case: Callable[[str], Any], tmp_path: Path, gone: list[str]
) -> None:
    """A server up to 2.9 removes both files of a block: an index alone is a loss, and without it nobody can say."""
    one = case("old-2-9-10")
    store = shutil.copytree(one.store, tmp_path / "store")
    for name in gone:
        (messages_of(store) / name).unlink()
    outcome = read_foreign("nats", store)
    assert 0 < outcome.rows < len(one.expected())
    expected = "no index tells what became of" if len(gone) > 1 else "the file is gone"
    assert any(expected in reason for reason in outcome.reasons), outcome.reasons


def test_a_configuration_that_is_no_unicode_is_told_and_its_messages_are_read(
    make_stream: Callable[..., Path], records: Any
) -> None:
    content = [records("S", 1).message(1, "S.a", b"x")]
    store = make_stream("S", {1: content}, subjects=["S.\ud800"])
    (copy,) = open_foreign(store).copies("S")
    assert copy.subjects == () and "meta.inf is not the JSON object of a stream" in copy.problem
    pa.RecordBatch.from_pylist([copy.row()], to_arrow_schema(spark_schema(FOREIGN_STREAM_TYPES)))
    assert read_foreign("nats", store).rows == 1


DENSE = 2 * PLACE_COUNT_MAX + 1000  # messages of which every second one is damaged


def rows_of(count: int) -> np.ndarray:
    return np.frombuffer(bytearray(smallest_records(count)), np.uint8).reshape(count, SIZE_MIN)


def every_second_damaged(count: int = DENSE) -> bytes:
    records = rows_of(count)
    records[1::2, -1] ^= 1
    return records.tobytes()


def all_read(store: Any, **changes: Any) -> tuple[list[int], list[ForeignDamage]]:
    told, slices = store.inspect("S")
    sequences: list[int] = []
    for part in slices:
        for batch in read_foreign_slice(replace(part, **changes), ["sequence"], told.append):
            sequences += batch["sequence"].to_pylist()
    return sequences, told


def test_damage_at_every_second_record_is_told_in_a_bounded_list(make_stream: Callable[..., Path]) -> None:
    store = open_foreign(make_stream("S", {1: every_second_damaged()}))
    sequences, told = all_read(store)
    assert sequences == list(range(1, DENSE, 2))
    places = [one.places for one in told if "subject" not in one.reason]
    assert places == [*[1] * PLACE_COUNT_MAX, DENSE // 2 - PLACE_COUNT_MAX]
    rest = told[PLACE_COUNT_MAX]
    assert rest.costs and (rest.first, rest.end) == (2 * PLACE_COUNT_MAX + 2, None)
    assert "more places of damage, not reported one by one; one of them: checksum mismatch" in rest.reason
    with pytest.raises(DataLossError):
        list(read_foreign_slice(store.plan("S")[0], ["sequence"]))


def test_a_million_damaged_records_are_read_within_bounds(make_stream: Callable[..., Path]) -> None:
    outcome = read_foreign("nats", make_stream("S", {1: every_second_damaged(1_000_000)}))
    assert (outcome.error, outcome.rows) == (None, 500_000)
    assert len(outcome.reasons) < PLACE_COUNT_MAX + 10
    assert outcome.peak_bytes < MEMORY_MAX and outcome.seconds < SECONDS_MAX, outcome


def test_long_records_that_are_none_are_given_up_on(make_stream: Callable[..., Path], records: Any) -> None:
    """Heads that each claim half of the block: hashing all that they claim would take minutes."""
    head = pack("<IQqHI", 1 << 20, 7, 1, 3, 0x61616161)
    block = records("S", 1).message(1, "S.a", b"x") + b"\xff" + (head + bytes(4096)) * 500
    outcome = read_foreign("nats", make_stream("S", {1: block}))
    assert (outcome.error, outcome.rows) == (None, 1)
    assert any("the search for records in it was given up" in reason for reason in outcome.reasons)
    assert outcome.seconds < 4 * SECONDS_MAX, outcome  # two MiB of one long message after the other, read twice


def test_subjects_that_are_none_of_the_streams_are_told_in_a_bounded_list(make_stream: Callable[..., Path]) -> None:
    store = open_foreign(make_stream("S", {1: smallest_records(DENSE)}))
    sequences, told = all_read(store, subjects=("S.a",), known=True)
    assert sequences == []
    assert len(told) == PLACE_COUNT_MAX + 1 and sum(one.places for one in told) == DENSE
    assert sum(one.lost_count or 0 for one in told) == DENSE


def test_copies_that_lack_every_second_message_are_told_in_a_bounded_list(make_stream: Callable[..., Path]) -> None:
    records = rows_of(DENSE)
    paths = [make_stream("S", {1: records[at::2].tobytes()}, root=root) for at, root in enumerate("ab")]
    store = open_foreign(paths)
    sequences, told = all_read(store)
    assert sequences == list(range(1, DENSE + 1))
    assert PLACE_COUNT_MAX < len(told) < 2 * (PLACE_COUNT_MAX + 10), "a bound for each copy"
    assert not any(one.costs for one in told)
    assert DENSE - 2 <= sum(one.places for one in told) <= DENSE


def test_a_million_messages_of_which_two_copies_lack_every_second_one_are_read_within_bounds(
    make_stream: Callable[..., Path],
) -> None:
    records = rows_of(1_000_000)
    paths = [make_stream("S", {1: records[at::2].tobytes()}, root=root) for at, root in enumerate("ab")]
    outcome = read_foreign("nats", *paths)
    assert (outcome.error, outcome.rows) == (None, 1_000_000)
    assert outcome.peak_bytes < MEMORY_MAX and outcome.seconds < SECONDS_MAX, outcome


def test_copies_with_other_content_in_every_second_message_are_told_in_a_bounded_list(
    make_stream: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    records, other = rows_of(DENSE), rows_of(DENSE)
    later = np.frombuffer(bytearray(smallest_records(DENSE, 1_800_000_000)), np.uint8).reshape(DENSE, SIZE_MIN)
    other[1::2] = later[1::2]
    paths = [
        make_stream("S", {1: content.tobytes()}, root=root)
        for content, root in zip((records, records, other), "abc", strict=True)
    ]
    store = open_foreign(paths)
    sequences, told = all_read(store)
    assert sequences == list(range(1, DENSE + 1))
    differing = [one for one in told if "content" in one.reason]
    assert len(differing) == PLACE_COUNT_MAX + 1 and not any(one.costs for one in differing)
    assert sum(one.places for one in differing) == DENSE // 2
    monkeypatch.setattr(side_by_side, "LISTED_COUNT_MAX", 100)
    drift = compare(store, "S")
    assert len(drift.conflicts) == 100
    assert f"{DENSE // 2 - 100} more differences between copies, not listed" in drift.notes


def test_an_import_lists_a_bounded_number_of_places(
    make_stream: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_foreign(make_stream("S", {1: every_second_damaged()}))
    monkeypatch.setattr(from_server, "DAMAGE_COUNT_MAX", 10)
    with Store.create(tmp_path / "volume") as store:
        report = import_streams(store, source, ImportRequest(on_data_loss="continue"))
        assert store.stream("S").state().message_count == DENSE // 2
    assert not report["ok"] and len(report["damage"]) == 11
    rest = report["damage"][-1]
    assert rest["left"] and rest["places"] >= DENSE // 2 - 10
    assert f"{rest['places']} more places of damage" in rest["description"]
