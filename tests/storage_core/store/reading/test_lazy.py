"""A stream as a lazy frame of polars, which DuckDB reads, too."""

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from storage_core import Store
from storage_core.errors import DataLossError
from storage_core.schema import FILE_SCHEMA
from storage_core.store.reading import lazy
from storage_core.store.reading.json_fields import json_fields
from storage_core.store.reading.plan import ReadRequest
from storage_core.store.stream import Stream

COUNT, BLOCK = 60, 10


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stream]:
    with Store.create(tmp_path_factory.mktemp("shop") / "v") as store:
        stream = store.add_stream(name="ORDERS", subjects=["orders.>"], block_max_msgs=BLOCK)
        for start in range(0, COUNT, BLOCK):
            numbers = range(start, start + BLOCK)
            subjects = [f"orders.{'new' if number % 3 else 'paid'}" for number in numbers]
            data = [f'{{"total": {number}.5, "customer": {{"id": {number % 7}}}}}' for number in numbers]
            stream.append(pa.table({"subject": subjects, "data": data}))
        stream.remove([5, 6])
        yield stream


@pytest.fixture(scope="module")
def rows(orders: Stream) -> pl.DataFrame:
    return pl.DataFrame(orders.read(columns=FILE_SCHEMA.names).read_all())


FILTERS: list[Any] = [
    pl.col("sequence") == 7,
    pl.col("sequence") == 5,
    pl.col("sequence").is_between(9, 31),
    pl.col("sequence").is_between(9, 31, closed="none"),
    11 <= pl.col("sequence"),
    pl.col("sequence") > 54.5,
    (pl.col("sequence") > 30) & (pl.col("subject") == "orders.paid") & (pl.col("sequence") <= 45),
    (pl.col("sequence") < 3) | (pl.col("sequence") > 58),
    ~(pl.col("sequence") < 50),
    pl.col("sequence") < -(2**63) + 1,
    pl.col("sequence") >= 2**63 - 1,
    pl.col("sequence").is_in([1, 60, 61]),
    pl.col("subject") == "orders.*",
    pl.col("subject").str.starts_with("orders.p"),
    pl.col("data").bin.contains(b'"id": 3'),
    pl.col("timestamp") > datetime(2020, 1, 1, tzinfo=timezone.utc),
    pl.col("timestamp") < datetime(2020, 1, 1, tzinfo=timezone.utc),
    pl.col("timestamp_ns") <= 2**63 - 1,
    pl.col("headers").is_null() & (pl.col("sequence") < 9),
]


@pytest.mark.parametrize("number", range(len(FILTERS)))
def test_a_filter_gives_the_rows_that_it_gives_in_memory(orders: Stream, rows: pl.DataFrame, number: int) -> None:
    frame, wanted = orders.to_polars().filter(FILTERS[number]), rows.filter(FILTERS[number])
    assert_frame_equal(frame.collect(), wanted)
    assert_frame_equal(frame.select("sequence", "data").head(4).collect(), wanted.select("sequence", "data").head(4))
    assert frame.select(pl.len()).collect().item() == len(wanted)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_times_bound_a_read_exactly(orders: Stream, rows: pl.DataFrame, data: st.DataObject) -> None:
    near = timedelta(microseconds=data.draw(st.integers(-2, 2)))
    time = data.draw(st.sampled_from(rows["timestamp"].to_list())) + near
    column = pl.col("timestamp")
    chosen = data.draw(st.sampled_from([column == time, column < time, column <= time, column > time, time <= column]))
    assert_frame_equal(orders.to_polars().filter(chosen).collect(), rows.filter(chosen))


def requests_of(stream: Stream, query: Any, monkeypatch: pytest.MonkeyPatch) -> list[ReadRequest]:
    """Return what a query reads from the stream."""
    seen: list[ReadRequest] = []
    narrow = lazy.narrowed

    def narrowed(request: ReadRequest, predicate: pl.Expr | None) -> ReadRequest:
        seen.append(narrow(request, predicate))
        return seen[-1]

    monkeypatch.setattr(lazy, "narrowed", narrowed)
    query(stream.to_polars())
    return seen


def test_polars_and_duckdb_bound_the_read(orders: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_polars(frame: pl.LazyFrame) -> None:
        got = frame.filter(pl.col("sequence").is_between(21, 29), pl.col("subject") == "orders.paid").collect()
        assert got["sequence"].to_list() == [22, 25, 28]

    def by_duckdb(frame: pl.LazyFrame) -> None:
        query = "SELECT sequence FROM frame WHERE sequence BETWEEN 21 AND 29 AND subject = 'orders.paid' ORDER BY 1"
        assert duckdb.sql(query).fetchall() == [(22,), (25,), (28,)]

    for query in (by_polars, by_duckdb):
        (request,) = requests_of(orders, query, monkeypatch)
        assert (request.ranges, request.subject_filters) == ({"ORDERS": (21, 30)}, ("orders.paid",)), query


def test_fields_of_payloads_are_columns(orders: Stream) -> None:
    fields = {
        "total": pl.Float64,
        "customer": pl.Struct({"id": pl.Int64}),
        "note": pl.String,
        "tags": pl.List(pl.String),
    }
    frame = orders.to_polars(fields)
    assert frame.collect_schema()["customer"] == pl.Struct({"id": pl.Int64})
    spent = frame.filter(pl.col("customer").struct.field("id") == 3).select(pl.col("total").sum()).collect().item()
    wanted = [number + 0.5 for number in range(COUNT) if number % 7 == 3 and number + 1 not in (5, 6)]
    assert spent == sum(wanted)
    assert frame.select("note", "tags").collect().null_count().row(0) == (COUNT - 2, COUNT - 2)
    in_arrow = pa.schema([("total", pa.float64())])
    assert orders.to_polars(in_arrow, first=3, end=5, subject="orders.new").collect()["total"].to_list() == [2.5]
    with Store.open(orders._store.paths) as store, store.snapshot() as view:
        assert view.stream("ORDERS").to_polars(fields).select("total").collect()["total"].max() == COUNT - 0.5


PAYLOADS: list[tuple[bytes | None, int | None, str | None]] = [  # x and s
    (b'{"x": 1, "s": "a"}', 1, "a"),
    (b' \n{\n"s": "b",\n"other": [{}], "x": 2}\r\n', 2, "b"),
    (b"{}", None, None),
    (b" { } ", None, None),
    (b'{"x": null}', None, None),
    (None, None, None),
    (b"", None, None),
    (b"3", None, None),
    (b"[]", None, None),
    (b"no JSON", None, None),
    (b"\xff\xfe", None, None),
    (b'{"s": "\xff"}', None, None),
    (b'{"x": 1.5}', None, None),
    (b'{"x": "1"}', None, None),
    (b'{"s": 1}', None, None),
    (b'{"x": 1} {"x": 2}', None, None),
    (b'{"x": 1}\n{"x": 2}', None, None),
    (b'{"x": 1}, {"jstream row number": 7, "x": 2}', None, None),
    (b'{"x": 1', None, None),
    (b', "x": 2}', None, None),
    (b'{"s": "}', None, None),
    (b'{"', None, None),
    (b'{":"", "x": 5}', None, None),
    (b'{"x": 9223372036854775808}', None, None),
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PAYLOADS), max_size=12))
def test_a_payload_that_cannot_be_decoded_harms_no_other(
    payloads: list[tuple[bytes | None, int | None, str | None]],
) -> None:
    fields = pa.schema([("x", pa.int64()), ("s", pa.string())])
    x, s = json_fields(pa.array([data for data, _, _ in payloads], pa.binary()), fields)
    assert (x.to_pylist(), s.to_pylist()) == ([x for _, x, _ in payloads], [s for _, _, s in payloads])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"data": pl.String}, "schema: 'data' is a column of every message"),
        ({"x": pl.Duration}, "schema: field 'x' cannot be read from JSON as duration"),
        (pa.schema([("x", pa.int64()), ("x", pa.string())]), "schema: field 'x' is given twice"),
        ({"x": "number"}, "schema: .* is no schema of polars or Arrow"),
        (7, "schema: 7 is no schema of polars or Arrow"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(orders: Stream, schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        orders.to_polars(schema)


def test_a_frame_stays_as_the_stream_was_when_it_was_made(tmp_path: Path) -> None:
    with Store.create(tmp_path / "v") as store:
        stream = store.add_stream(name="S")
        stream.publish("S", b"1")
        frame = stream.to_polars()
        stream.publish("S", b"2")
        assert frame.select("data").collect()["data"].to_list() == [b"1"]
        assert stream.to_polars().join(frame, on="sequence", how="left").collect().height == 2


def test_what_is_lost_fails_a_query_or_is_left_out(tmp_path: Path) -> None:
    with Store.create(tmp_path / "v") as store:
        stream = store.add_stream(name="S")
        for number in range(3):
            stream.append([{"subject": "S", "data": bytes([number]) * 100}])
        for block in (tmp_path / "v").rglob("*.blk"):
            content = block.read_bytes()
            block.write_bytes(content.replace(bytes([1]) * 100, b"\0" * 100))
        with pytest.raises((DataLossError, pl.exceptions.ComputeError), match="DataLossError|stream 'S'"):
            stream.to_polars().collect()
        assert stream.to_polars(on_data_loss="continue").collect().height == 2
    with pytest.raises(ValueError, match="on_data_loss"):
        stream.to_polars(on_data_loss="perhaps")
