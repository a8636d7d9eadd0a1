"""`jstream import jsonl|csv|parquet`: what `export` wrote comes back, each file once, and bad rows are named."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_core import Store
from storage_core.errors import RequirementError
from storage_core.schema import HEADERS_TYPE
from storage_core.store.ingest import message_files

VALUES = st.none() | st.binary(max_size=9) | st.text(max_size=9).map(str.encode)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "subject": st.sampled_from(["orders.new", "orders.paid"]),
            "data": VALUES,
            "headers": st.none() | st.lists(st.tuples(st.text(max_size=3), VALUES), min_size=1, max_size=3),
            "timestamp_ns": st.integers(0, 2**62),
        }
    ),
    max_size=9,
)
COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")


def rows(store: Store, name: str) -> list[dict[str, Any]]:
    held: list[dict[str, Any]] = store.stream(name).read(columns=COLUMNS).read_all().to_pylist()
    return held


def texts(store: Store, name: str) -> list[tuple[int, bytes | None]]:
    return [(row["sequence"], row["data"]) for row in rows(store, name)]


@pytest.fixture
def again(orders: Store) -> Store:
    """The store with ORDERS, a stream AGAIN that takes the same subjects, and one for dead letters."""
    orders.add_stream({"name": "AGAIN", "subjects": ["orders.>"]}, allow_overlap=True)
    orders.add_stream({"name": "DEAD"})
    return orders


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    messages=MESSAGES,
    gaps=st.sets(st.integers(1, 9)),
    options=st.sampled_from([("jsonl",), ("jsonl", "--base64"), ("parquet",)]),
)
def test_a_stream_that_is_exported_and_imported_is_the_same(
    jstream, again: Store, tmp_path: Path, messages: list[dict[str, Any]], gaps: set[int], options: tuple[str, ...]
) -> None:
    for name in ("IN", "OUT"):
        if name in again.streams():
            again.delete_stream(name)
        again.add_stream({"name": name, "subjects": ["orders.>"]}, allow_overlap=True)
    kind, *more = options
    again.stream("IN").append(messages)
    again.stream("IN").remove([sequence for sequence in gaps if sequence <= len(messages)])
    file = tmp_path / f"in.{kind}"
    jstream.done("export", "IN", file, "--force", *more)
    jstream.done("import", kind, file, "--stream", "OUT")
    assert rows(again, "OUT") == rows(again, "IN")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_file_is_stored_once_under_whatever_name(jstream, again: Store, tmp_path: Path, kind: str) -> None:
    file, copy = tmp_path / f"AGAIN.{kind}", tmp_path / "copy"
    jstream.done("export", "ORDERS", file)
    outcome = jstream("import", kind, file)
    assert outcome.err == f"imported 4 messages of {file} into stream AGAIN\n"
    before = rows(again, "AGAIN")
    assert before == rows(again, "ORDERS") and [row["sequence"] for row in before] == [1, 4, 5, 6]
    shutil.copy(file, copy)
    outcome = jstream("import", kind, copy, "--stream", "AGAIN", "--json")
    assert outcome.err == f"{copy} was imported before: nothing was stored now\n"
    assert json.loads(outcome.out).items() >= {"already": True, "messages": 0, "first": 1, "end": 7}.items()
    assert rows(again, "AGAIN") == before


def test_sequences_that_were_given_are_not_given_again(jstream, again: Store, tmp_path: Path) -> None:
    file = tmp_path / "ORDERS.jsonl"
    jstream.done("export", "ORDERS", file)
    outcome = jstream("import", "jsonl", file)
    assert outcome.code == 1 and "begins with sequence 1" in outcome.err and "--new-sequences" in outcome.err
    jstream.done("import", "jsonl", file, "--new-sequences")
    assert [sequence for sequence, _ in texts(again, "ORDERS")] == [1, 4, 5, 6, 7, 8, 9, 10]


def test_lines_of_others_need_no_more_than_data(jstream, again: Store, tmp_path: Path) -> None:
    file = tmp_path / "AGAIN.jsonl"
    text = '{"data": "a"}\r\n\n {"data": null, "time": "2026-01-01", "msg_id": "m"}\n{"data": "c", "msg_id": "m"}'
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    outcome = jstream("import", "jsonl", file, "--subject", "orders.new", "--json")
    report = json.loads(outcome.out)
    assert (report["messages"], report["duplicates"], report["skipped"]) == (2, 1, 0)
    assert texts(again, "AGAIN") == [(1, b"a"), (2, None)]
    assert rows(again, "AGAIN")[1]["timestamp_ns"] == 1_767_225_600_000_000_000
    assert not again.stream("AGAIN").publish("orders.new", b"d", msg_id="other").duplicate
    assert again.stream("AGAIN").publish("orders.new", b"d", msg_id="m") == (2, True)


BAD_LINES = {
    '{"data": "a", "subjekt": "orders.new"}': "unknown field `subjekt`; the keys of a message are data, subject",
    '{"subject": "orders.new"}': "missing required field `data`",
    '{"data": "a", "subject": "orders.new"} {}': "JSON is malformed",
    '{"data": "a"': "truncated",
    "nothing": "JSON is malformed",
    '{"data": 3, "subject": "orders.new"}': "Expected `str | null`, got `int`",
    '{"data": "a", "subject": "other.new"}': "subject 'other.new' is not taken; the stream takes orders.>",
    '{"data": "a"}': "no subject",
    '{"data": "!", "subject": "orders.new", "base64": ["data"]}': "base64",
    '{"data": "a", "subject": "orders.new", "base64": ["time"]}': "Invalid enum value 'time'",
    '{"data": "a", "subject": "orders.new", "time": "noon"}': "time: 'noon' is not a time",
    '{"data": "a", "subject": "orders.new", "time": "9999-01-01"}': "",
    '{"data": "a", "subject": "orders.new", "seq": 5}': "a sequence, unlike the first message",
    '{"data": "a", "subject": "orders.new", "seq": 99999999999999999999}': "seq",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_named_and_nothing_is_stored_or_it_is_put_aside(
    jstream, again: Store, tmp_path: Path, line: str
) -> None:
    file, good = tmp_path / "AGAIN.jsonl", '{"data": "good", "subject": "orders.new"}\n'
    file.write_text(good * 40 + line + "\n" + good * 3)
    outcome = jstream("import", "jsonl", file)
    assert (outcome.code, len(outcome.err.splitlines())) == (1, 1), outcome
    assert f"{file}, line 41: " in outcome.err and BAD_LINES[line] in outcome.err
    assert outcome.err.endswith(". Nothing was stored\n")
    assert texts(again, "AGAIN") == []
    outcome = jstream("import", "jsonl", file, "--skip-bad", "DEAD")
    assert outcome.err == f"imported 43 messages of {file} into stream AGAIN, 1 bad row into stream DEAD\n"
    assert [data for _, data in texts(again, "AGAIN")] == [b"good"] * 43
    (letter,) = rows(again, "DEAD")
    headers = {header["key"]: header["value"].decode() for header in letter["headers"]}
    assert letter["data"] == line.encode()
    assert headers["Jstream-Line"] == "41" and BAD_LINES[line] in headers["Jstream-Reason"]
    jstream.done("import", "jsonl", file, "--skip-bad", "DEAD")
    assert len(rows(again, "DEAD")) == 1


def test_a_file_of_bad_lines_alone_is_put_aside_once(jstream, again: Store, tmp_path: Path) -> None:
    file = tmp_path / "AGAIN.jsonl"
    file.write_text("bad\n" * 100)
    for _ in range(2):
        jstream.done("import", "jsonl", file, "--skip-bad", "DEAD")
    assert (len(rows(again, "DEAD")), rows(again, "AGAIN")) == (100, [])
    outcome = jstream("import", "jsonl", file, "--stream", "DEAD", "--skip-bad", "DEAD")
    assert outcome.code == 1 and "cannot go to stream 'DEAD'" in outcome.err


def test_sequences_of_a_file_rise(jstream, again: Store, tmp_path: Path) -> None:
    file = tmp_path / "AGAIN.jsonl"
    file.write_text("".join(json.dumps({"data": str(n), "subject": "orders.new", "seq": n}) + "\n" for n in (3, 9, 9)))
    outcome = jstream("import", "jsonl", file)
    assert f"{file}, line 3: sequence 9 does not come after 9" in outcome.err
    jstream.done("import", "jsonl", file, "--skip-bad", "DEAD")
    assert texts(again, "AGAIN") == [(3, b"3"), (9, b"9")]


def test_a_line_that_no_message_has_is_refused_before_it_is_held(
    jstream, again: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_files, "LINE_SIZE_MAX", 1000)
    monkeypatch.setattr(message_files, "PART_SIZE", 100)
    file, good = tmp_path / "AGAIN.jsonl", '{"data": "good", "subject": "orders.new"}\n'
    file.write_text(good * 9 + json.dumps({"data": "x" * 1000}) + "\n")
    assert f"{file}, line 10 has more than 1000 bytes" in jstream("import", "jsonl", file).err
    file.write_text("data,subject\n" + "good,orders.new\n" * 9 + "x" * 1000 + ",orders.new\n")
    assert f"{file}, line 11 has more than 1000 bytes" in jstream("import", "csv", file).err
    file.write_text(good * 99 + json.dumps({"data": "x" * 900, "subject": "orders.new"}))
    jstream.done("import", "jsonl", file)
    assert [len(data or b"") for _, data in texts(again, "AGAIN")] == [4] * 99 + [900]


def test_csv_has_the_keys_of_a_line_as_columns(jstream, again: Store, tmp_path: Path) -> None:
    file = tmp_path / "AGAIN.csv"
    file.write_text(
        'subject,data,time,headers,seq,msg_id\norders.new,"two\nlines, ""quoted""",2026-01-01T00:00:00Z,'
        '"[[""k"", ""v""], [""n"", null]]",4,m\norders.paid,,,,7,\n'
    )
    jstream.done("import", "csv", file)
    first, second = rows(again, "AGAIN")
    assert first == {
        "sequence": 4,
        "subject": "orders.new",
        "timestamp_ns": 1_767_225_600_000_000_000,
        "headers": [{"key": "k", "value": b"v"}, {"key": "n", "value": None}],
        "data": b'two\nlines, "quoted"',
    }
    assert (second["sequence"], second["data"], second["headers"]) == (7, b"", None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("data,subjekt\na,b\n", "column 'subjekt' is none of a message; valid ones are data, subject, seq, time"),
        ("subject,time\na,b\n", "column 'data' is missing; the first row has subject, time"),
        ("data,data\na,b\n", "column 'data' is there 2 times"),
        ("", "column 'data' is missing"),
        ("data,subject\na,orders.new\nb\n", "line 3: 1 cells, and the first row has 2"),
        ('data,subject\n"a\n\n",orders.new\nb,x\n', "line 5: stream 'AGAIN': subject 'x' is not taken"),
        ('data,subject\na,orders.new\n"b"c,orders.new\n', "line 3: "),
        ('data,subject\na,orders.new\n"b,orders.new\n', "line 3: unexpected end of data"),
        ("data,subject,seq\na,orders.new,x\n", "line 2: seq: 'x' is no sequence"),
        ("data,subject,headers\na,orders.new,k=v\n", "line 2: JSON is malformed"),
    ],
)
def test_a_csv_file_that_is_not_understood_is_not_stored(
    jstream, again: Store, tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "AGAIN.csv"
    file.write_text(text)
    outcome = jstream("import", "csv", file)
    assert (outcome.code, len(outcome.err.splitlines())) == (1, 1), outcome
    assert reason in outcome.err
    assert texts(again, "AGAIN") == []


def test_parquet_files_have_write_columns(jstream, again: Store, tmp_path: Path) -> None:
    file = tmp_path / "AGAIN.parquet"
    pq.write_table(pa.table({"data": ["a", "b"], "customer": [1, 2]}), file)
    assert "column 'customer' cannot be written; valid columns are data" in jstream("import", "parquet", file).err
    pq.write_table(pa.table({"data": [1, 2]}), file)
    assert "column 'data' is int64; valid is binary" in jstream("import", "parquet", file).err
    file.write_text("text")
    assert "is no Parquet file" in jstream("import", "parquet", file).err
    pq.write_table(pa.table({"data": ["a", "b", "c"], "subject": ["orders.new", "x", None]}), file)
    assert f"{file}, row 2: stream 'AGAIN': subject 'x' is not taken" in jstream("import", "parquet", file).err
    jstream.done("import", "parquet", file, "--skip-bad", "DEAD", "--subject", "orders.paid")
    assert texts(again, "AGAIN") == [(1, b"a"), (2, b"c")] and texts(again, "DEAD") == [(1, b"b")]
    pq.write_table(pa.table({"data": pa.array(["z"]).dictionary_encode()}), file)
    jstream.done("import", "parquet", file, "--subject", "orders.paid")
    assert texts(again, "AGAIN")[-1] == (3, b"z")


def test_a_file_that_changes_while_it_is_read_is_not_stored(again: Store, tmp_path: Path) -> None:
    path, line = tmp_path / "AGAIN.jsonl", '{"data": "good", "subject": "orders.new"}\n'
    path.write_text(line)

    def change(done: int, total: int) -> None:
        path.write_text(line * 3)

    with path.open("rb") as file, pytest.raises(RequirementError, match="was changed while it was read"):
        message_files.import_file(again, "AGAIN", file, "jsonl", progress=change)
    assert rows(again, "AGAIN") == [] and again.verify()["ok"]


def test_what_is_no_file_or_no_stream_is_said(jstream, again: Store, tmp_path: Path) -> None:
    assert "no such file" in jstream("import", "jsonl", tmp_path / "none.jsonl").err
    assert "is no regular file" in jstream("import", "jsonl", tmp_path).err
    file = tmp_path / "AGAINN.jsonl"
    file.write_text("")
    assert "did you mean 'AGAIN'" in jstream("import", "jsonl", file).err
    outcome = jstream("import", "jsonl", file, "--stream", "AGAIN", "--skip-bad", "DEED")
    assert outcome.code == 1 and "did you mean 'DEAD'" in outcome.err
    jstream.done("import", "jsonl", file, "--stream", "AGAIN")


def test_an_import_that_was_killed_is_run_again(jstream, again: Store, tmp_path: Path) -> None:
    file, count = tmp_path / "AGAIN.parquet", 400_000
    lines = [f"line {number}" for number in range(count)]
    table = pa.table({"data": lines, "subject": ["orders.new"] * count, "headers": pa.nulls(count, HEADERS_TYPE)})
    pq.write_table(table, file, row_group_size=1000)
    again.edit_stream({"name": "AGAIN", "block_max_msgs": 20_000})
    before = len(list(jstream.volume.rglob("*")))
    with jstream.start("import", "parquet", file) as process:
        while process.poll() is None and len(list(jstream.volume.rglob("*"))) < before + 4:
            pass
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert rows(again, "AGAIN") == []
    for _ in range(2):
        jstream.done("import", "parquet", file)
    assert texts(again, "AGAIN") == [(at, line.encode()) for at, line in enumerate(lines, 1)]
    assert again.verify()["ok"]
