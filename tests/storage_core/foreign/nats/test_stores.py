"""Whole stores that real servers wrote, read through the public surface."""

import gzip
import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import CorruptionError, DataLossError
from storage_core.foreign import ForeignDamage, ForeignStore, open_foreign, read_foreign_slice
from storage_core.schema import READ_SCHEMA, read_schema

COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")
DATA = Path(__file__).parents[3] / "data"
HEALTHY = {  # case: what tells which messages are shown
    "compacted-gaps": "index.db",
    "consumers": "index.db",
    "deletes-all-single": "index.db",
    "deletes-erase": "index.db",
    "deletes-tail": "index.db",
    "empty-first-seq": "index.db",
    "empty-new": "index.db",
    "headers-empty-unicode": "index.db",
    "kill9": "blocks",
    "kill9-stale-index": "blocks",
    "kv-max1": "index.db",
    "limits-evicted": "index.db",
    "msg-schedule": "index.db",
    "msg-ttl": "index.db",
    "old-2-9-10": "N.idx",
    "old-2-9-10-kill9": "N.idx",
    "old-2-10-25": "index.db",
    "old-2-11-11": "index.db",
    "old-2-12-8": "index.db",
    "old-2-14-6": "index.db",
    "plain-multiblock": "index.db",
    "purge-all": "index.db",
    "purge-all-then-write": "index.db",
    "purge-keep": "index.db",
    "purge-seq": "index.db",
    "purge-subject": "index.db",
    "s2-compressed": "index.db",
    "workqueue": "index.db",
    "damaged-compacted-no-index": "blocks",  # without its index a store is not damaged
    "damaged-kv-no-index": "blocks",
    "damaged-limits-no-index": "blocks",
    "damaged-no-index": "blocks",
    "damaged-s2-no-index": "blocks",
}
# case: messages read, and what the loss is called
DAMAGED = {
    "damaged-bitflip-index-kept": (124, "the message with sequence 48 is lost"),
    "damaged-bitflip-no-index": (124, "the message with sequence 48 is lost"),
    "damaged-garbage-after-last": (30, "messages from sequence 31 on are lost"),
    "damaged-index-ahead": (94, "31 messages of the sequences 95 to 125 are lost"),
    "damaged-middle-block-gone": (105, "85 messages of the sequences 86 to 170 are lost"),
    "damaged-stuck-consumer": (0, "messages of the sequences 1 to 30 are lost"),
    "damaged-s2-bitflip-index-kept": (105, "the message with sequence 46 is lost"),
    "damaged-s2-bitflip-no-index": (105, "the message with sequence 46 is lost"),
    "damaged-truncated-last": (39, "messages from sequence 40 on are lost"),
}


def read(store: ForeignStore, stream: str, on_damage: Any = None, **asked: Any) -> list[dict[str, Any]]:
    rows = []
    for part in pickle.loads(pickle.dumps(store.plan(stream, COLUMNS, **asked))):
        for batch in read_foreign_slice(part, COLUMNS, on_damage):
            batch.validate(full=True)
            assert batch.schema == read_schema(COLUMNS)
            rows += batch.to_pylist()
    return rows


def digests(path: Path) -> dict[str, str]:
    files = (one for one in path.rglob("*") if one.is_file())
    return {str(one): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}


@pytest.mark.parametrize(("name", "source"), HEALTHY.items())
def test_healthy_store_reads_as_a_client_got_it(
    case: Callable[[str], Any], read_only_files: Any, name: str, source: str
) -> None:
    one = case(name)
    before = digests(one.path)
    store = open_foreign(one.store, files=read_only_files)
    assert store.streams() == [one.stream]
    assert read(store, one.stream) == one.expected()
    state = store.state(one.stream)  # type: ignore[attr-defined]
    assert state.source == source
    assert state.message_count == one.state["messages"]
    if one.state["last_seq"]:
        assert store.bounds(one.stream) == (one.state["first_seq"], one.state["last_seq"] + 1)
    assert digests(one.path) == before


@pytest.mark.parametrize("name", [name for name, source in HEALTHY.items() if source == "index.db"])
def test_without_its_index_a_store_reads_the_same(case: Callable[[str], Any], name: str, tmp_path: Path) -> None:
    """Limits, times to live and tombstones give the same messages."""
    one = case(name)
    for path in one.store.rglob("*"):
        if path.is_file() and path.name != "index.db":
            copy = tmp_path / path.relative_to(one.store)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    store = open_foreign(tmp_path)
    assert read(store, one.stream) == one.expected()


@pytest.mark.parametrize(("name", "count", "text"), [(name, *rest) for name, rest in DAMAGED.items()])
def test_damaged_store_gives_all_that_is_intact_and_tells_the_rest(
    case: Callable[[str], Any], name: str, count: int, text: str
) -> None:
    one = case(name)
    store = open_foreign(one.store)
    with pytest.raises(DataLossError, match=text) as raised:
        read(store, one.stream)
    assert f"stream {one.stream!r}" in str(raised.value)
    assert ".blk at offset_bytes" in str(raised.value)
    told: list[ForeignDamage] = []
    rows = read(store, one.stream, told.append)
    assert len(rows) == count
    assert any(text in damage.describe() for damage in told)
    served = {row["sequence"]: row for row in one.expected()}  # by the best server
    got = {row["sequence"]: row for row in rows}
    assert {sequence: got.get(sequence) for sequence in served} == served


@pytest.mark.parametrize("level", ["", "jetstream", "jetstream/$G", "jetstream/$G/streams/ORDERS"])
def test_a_stream_is_found_from_every_directory_above_it(case: Callable[[str], Any], level: str) -> None:
    store = open_foreign(case("plain-multiblock").store / level, "nats", "$G")
    assert store.streams() == ["ORDERS"]
    assert store.bounds("ORDERS") == (1, 261)


def test_replicas_are_read_one_at_a_time_and_as_one_stream(case: Callable[[str], Any]) -> None:
    one = case("r3-clean")
    for node in ("n1", "n2", "n3"):
        assert read(open_foreign(one.store / node), "R3") == one.expected()
    assert read(open_foreign(one.store), "R3") == one.expected()
    with pytest.raises(ValueError, match=r"path: 3 copies of stream 'R3', give the path of one: .*n1.*n2.*n3"):
        open_foreign(one.store).directory("R3")


def test_default_columns_are_the_read_schema(case: Callable[[str], Any]) -> None:
    store = open_foreign(case("consumers").store)
    (part,) = store.plan("CONS")
    (batch,) = read_foreign_slice(part, READ_SCHEMA.names)
    assert batch.schema == READ_SCHEMA
    row = batch.slice(0, 1).to_pylist()[0]
    assert (row["stream"], row["sequence"]) == ("CONS", 1)
    nanoseconds = next(read_foreign_slice(part, ["timestamp_ns"]))["timestamp_ns"][0].as_py()
    assert batch["timestamp"].cast("int64")[0].as_py() == nanoseconds // 1000


@pytest.mark.parametrize("columns", [["data"], ["subject", "stream"], ["headers", "sequence"], []])
def test_any_columns_can_be_asked_for(case: Callable[[str], Any], columns: list[str]) -> None:
    one = case("headers-empty-unicode")
    (part,) = open_foreign(one.store).plan(one.stream, columns)
    batches = list(read_foreign_slice(part, columns))
    assert [batch.schema.names for batch in batches] == [columns]
    assert sum(batch.num_rows for batch in batches) == 29


def test_ranges_of_sequences_take_only_the_blocks_that_hold_them(case: Callable[[str], Any]) -> None:
    one = case("plain-multiblock")
    store = open_foreign(one.store)
    expected = one.expected()
    for first, end in [(1, 2), (100, 120), (106, 214), (None, 50), (250, None), (261, None), (5, 5), (900, 1000)]:
        rows = [row for row in expected if (first or 0) <= row["sequence"] < (end or 1000)]
        assert read(store, "ORDERS", first=first, end=end) == rows
    assert [part.block_index for part in store.plan("ORDERS", first=100, end=120)] == [1, 2]
    assert store.plan("ORDERS", first=106, end=107)[0].row_count == 1


def test_times_and_subjects_filter_messages(case: Callable[[str], Any]) -> None:
    one = case("plain-multiblock")
    store = open_foreign(one.store)
    expected = one.expected()
    low, high = expected[40]["timestamp_ns"], expected[200]["timestamp_ns"]
    assert read(store, "ORDERS", time_first_ns=low, time_end_ns=high) == expected[40:200]
    for filters, taken in [(["orders.3"], {"orders.3"}), (["orders.*"], {f"orders.{n}" for n in range(7)})]:
        rows = read(store, "ORDERS", subject_filters=filters)
        assert rows == [row for row in expected if row["subject"] in taken]
    assert read(store, "ORDERS", subject_filters=["orders"]) == []


def test_damage_outside_the_range_does_not_fail_a_read(case: Callable[[str], Any]) -> None:
    for name in ("damaged-bitflip-index-kept", "damaged-bitflip-no-index"):
        store = open_foreign(case(name).store)
        assert len(read(store, "FLIP", first=49)) == 77
        assert len(read(store, "FLIP", end=48)) == 47
        with pytest.raises(DataLossError):
            read(store, "FLIP", first=48, end=49)


def test_the_demo_store_reads_as_a_client_got_it(read_only_files: Any) -> None:
    folder = DATA / "nats-orders"
    store = open_foreign(folder / "store", files=read_only_files)
    lines = gzip.decompress((folder / "expected.jsonl.gz").read_bytes()).decode().splitlines()
    expected = [json.loads(line) for line in lines]
    rows = read(store, "ORDERS")
    assert len(store.plan("ORDERS")) > 10
    assert len(rows) > 5_000
    assert [
        {
            "seq": row["sequence"],
            "subject": row["subject"],
            "time_ns": row["timestamp_ns"],
            "headers": [[pair["key"], pair["value"].decode()] for pair in row["headers"]],
            "data": row["data"].decode(),
        }
        for row in rows
    ] == expected


@pytest.mark.parametrize("kind", ["file", "link to itself", "empty directory"])
def test_what_lies_among_the_streams_and_is_none_is_a_stream_that_cannot_be_read(
    case: Callable[[str], Any], tmp_path: Path, kind: str
) -> None:
    shutil.copytree(case("consumers").store, tmp_path / "store")
    (top,) = (tmp_path / "store").rglob("streams")
    lost = top / "LOST"
    if kind == "file":
        lost.write_bytes(b"?")
    elif kind == "empty directory":
        lost.mkdir()
    else:
        lost.symlink_to("LOST")
    (top / ".GONE").mkdir()  # what a deletion leaves
    store = open_foreign(tmp_path / "store")
    assert store.streams() == ["CONS", "LOST"]
    with pytest.raises(CorruptionError, match=r"streams/LOST (is no directory|has no directory msgs)"):
        store.plan("LOST")
    (told,) = store.copies("LOST")
    assert told.problem and told.messages is None
    assert len(read(store, "CONS")) == 60
