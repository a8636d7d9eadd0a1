"""`jstream export`: messages to Parquet and JSON lines, whole or not at all."""

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from storage_core import Store
from storage_core.schema import FILE_SCHEMA


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_parquet_has_the_columns_and_messages_of_a_read(jstream, orders: Store, tmp_path: Path) -> None:
    outcome = jstream("export", "ORDERS", tmp_path / "out.parquet")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.startswith(f"exported 4 messages of stream ORDERS to {tmp_path}/out.parquet (")
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.schema.equals(FILE_SCHEMA)
    assert found.equals(orders.stream("ORDERS").read(columns=FILE_SCHEMA.names).read_all())
    assert "out.parquet" in names(tmp_path)
    assert not any(name.endswith(".unfinished") for name in names(tmp_path))


def test_json_lines_are_those_that_view_prints(jstream, orders: Store, tmp_path: Path) -> None:
    viewed = jstream.done("stream", "view", "ORDERS", "--json")
    jstream.done("export", "ORDERS", tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == viewed
    assert jstream.done("export", "ORDERS", "-", "--format", "jsonl") == viewed


def test_bounds_and_subject_choose_the_messages(jstream, orders: Store, tmp_path: Path) -> None:
    def exported(*words: object) -> list[int]:
        return [json.loads(line)["seq"] for line in jstream.done("export", "ORDERS", "-", *words).splitlines()]

    (fifth,) = (one for one in jstream.done("stream", "view", "ORDERS", "--json").splitlines() if '"seq": 5' in one)
    time = json.loads(fifth)["time"]
    assert exported("--id", 4) == [4, 5, 6]
    assert exported("--id", 2, "--end", 6) == [4, 5]
    assert exported("--subject", "orders.paid") == [5]
    assert exported("--since", time) == [5, 6]
    assert exported("--until", time) == [1, 4]
    assert exported("--since", "2100-01-01") == []


def test_a_directory_gets_a_file_named_by_stream_and_format(jstream, orders: Store, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    report = json.loads(jstream.done("export", "ORDERS", tmp_path / "out", "--json"))
    assert report == {
        "stream": "ORDERS", "format": "parquet", "path": str(tmp_path / "out" / "ORDERS.parquet"), "first_seq": 1,
        "last_seq": 6, "messages": 4, "bytes": os.path.getsize(tmp_path / "out" / "ORDERS.parquet"),
    }  # fmt: skip
    jstream.done("export", "ORDERS", tmp_path / "out", "--format", "jsonl")
    assert names(tmp_path / "out") == ["ORDERS.jsonl", "ORDERS.parquet"]


def test_a_file_that_is_there_is_kept_unless_forced(jstream, orders: Store, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("mine")
    outcome = jstream("export", "ORDERS", path)
    assert (outcome.code, path.read_text()) == (1, "mine")
    assert f"{path} exists: pass --force to write over it, or another name" in outcome.err
    jstream.done("export", "ORDERS", path, "--force")
    assert len(path.read_text().splitlines()) == 4


def test_an_empty_stream_becomes_an_empty_file_with_the_schema(jstream, store: Store, tmp_path: Path) -> None:
    store.add_stream({"name": "NONE"})
    jstream.done("export", "NONE", tmp_path / "none.parquet")
    assert pq.read_table(tmp_path / "none.parquet").equals(FILE_SCHEMA.empty_table())


def test_damage_leaves_no_file_behind_and_can_be_skipped(trio, replicated: Store, blocks_on, tmp_path: Path) -> None:
    for volume in (Path(path) for path in replicated.paths):
        block = blocks_on(volume)[1]
        data = bytearray(block.read_bytes())
        data[300] ^= 1
        block.write_bytes(data)
    outcome = trio("export", "ORDERS", tmp_path / "out.parquet")
    assert outcome.code == 1
    assert "ORDERS" in outcome.err
    assert [name for name in names(tmp_path) if name.startswith((".", "out"))] == []
    outcome = trio("export", "ORDERS", tmp_path / "out.parquet", "--on-data-loss", "continue")
    assert outcome.code == 0
    assert "skipped: " in outcome.err
    assert pq.read_table(tmp_path / "out.parquet")["sequence"].to_pylist() == [1, 3, 4]


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["ORDERS", "out"], 2, "out: which format? pass --format parquet or jsonl"),
        (["ORDERS", "out.parquet", "--format", "csv"], 2, "--format 'csv' is not one of parquet, jsonl"),
        (["ORDERS", "-", "--format", "parquet"], 2, "a Parquet file is not written to stdout"),
        (["ORDERS", "-", "--json"], 2, "--json is the report, and the messages go to stdout"),
        (["ORDERS", "-", "--id", "1", "--since", "1h"], 2, "pass one of them"),
        (["ORDERS", "-", "--id", "5", "--end", "2"], 2, "from 5 to 2 ends before it begins"),
        (["ORDRES", "-"], 1, "did you mean 'ORDERS'"),
        (["ORDERS", "/nowhere/at/all.jsonl"], 1, "/nowhere/at: no such directory"),
    ],
)
def test_what_makes_no_sense_is_refused(jstream, orders: Store, words: list[str], code: int, reason: str) -> None:
    outcome = jstream("export", *words)
    assert outcome.code == code
    assert reason in outcome.err


def test_what_is_no_file_is_never_replaced_by_one(jstream, orders: Store, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    outcome = jstream("export", "ORDERS", fifo, "--format", "jsonl", "--force")
    assert (outcome.code, outcome.err) == (1, f"error: {fifo} is no regular file, and stays; - writes to stdout\n")
    assert jstream("metrics", "--textfile", fifo).code == 1
    assert fifo.is_fifo()


def test_a_link_is_followed_to_the_file_that_is_written_over(jstream, orders: Store, tmp_path: Path) -> None:
    target, link = tmp_path / "real.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(target)
    assert jstream("export", "ORDERS", link).code == 1
    jstream.done("export", "ORDERS", link, "--force")
    assert link.is_symlink() and len(target.read_text().splitlines()) == 4


def test_text_is_text_and_base64_is_asked_for(jstream, orders: Store) -> None:
    orders.stream("ORDERS").append([{"subject": "orders.new", "data": b"\xff", "headers": {"k": "v"}}])
    exported = [json.loads(line) for line in jstream.done("export", "ORDERS", "-", "--id", 6).splitlines()]
    assert exported[-1].items() >= {"headers": [["k", "v"]], "data": "/w==", "base64": ["data"]}.items()
    assert not any("base64" in message for message in exported[:-1])
    encoded = [json.loads(line) for line in jstream.done("export", "ORDERS", "-", "--base64").splitlines()]
    assert all(message["base64"] == ["headers", "data"] for message in encoded)
    assert [json.loads(line) for line in jstream.done("stream", "view", "ORDERS", "--base64").splitlines()] == encoded
    assert json.loads(jstream.done("stream", "get", "ORDERS", 1, "--base64")) == encoded[0]
    assert jstream("export", "ORDERS", "out.parquet", "--base64").code == 2
