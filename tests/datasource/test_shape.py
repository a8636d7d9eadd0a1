"""Which columns a read gives and as what: by the option, by a schema, and with data as text."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from datasource import source
from datasource.schema import MESSAGE_TYPES, spark_schema
from datasource.spark_versions import ReadAllAvailable
from storage_core import Store
from storage_core.errors import InvalidMessageError
from storage_core.schema import READ_SCHEMA, read_schema

Make = Callable[..., pa.Table]
TEXT = pa.schema([pa.field("data", pa.string())])
BROKEN = b"no \xff UTF-8"


def stream_rows(driver: Any, schema: StructType, **options: Any) -> pa.Table:
    """Return what a streaming read of everything hands on."""
    reader = source.stream_reader(driver.options({"startingOffsets": "earliest", **options}), schema)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())  # type: ignore[call-arg]
    return pa.Table.from_batches([batch for one in reader.partitions(start, end) for batch in reader.read(one)])


@pytest.mark.parametrize("columns", ["data", "subject, data", "timestamp_ns,stream,headers"])
def test_the_option_picks_columns_in_its_order(columns: str, store: Store, driver: Any, orders: Make) -> None:
    store.stream("ORDERS").append(orders(5))
    names = [name.strip() for name in columns.split(",")]
    declared = source.schema(driver.options({"stream": "ORDERS", "columns": columns}))
    assert declared.names == names
    options = {"stream": "ORDERS", "columns": columns}
    expected = driver.read(read_schema(names), stream="ORDERS")
    assert driver.read(read_schema(names), **options).equals(expected)
    assert stream_rows(driver, declared, **options).equals(expected)


def test_the_option_picks_columns_of_a_table(driver: Any) -> None:
    options = {"table": "streams", "columns": "messages,stream"}
    declared = source.schema(driver.options(options))
    assert declared.names == ["messages", "stream"]
    (partition,) = (reader := source.reader(driver.options(options), declared)).partitions()
    assert next(reader.read(partition)).column("stream").to_pylist() == ["LOGS", "ORDERS", "ORDERS_EU"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"columns": "subjct"}, "option 'columns': unknown column 'subjct'; did you mean 'subject'"),
        ({"columns": "subject,,data"}, "option 'columns': 'subject,,data' holds an empty name"),
        ({"table": "streams", "columns": "timestamp_ns"}, "option 'columns': unknown column 'timestamp_ns'"),
        ({"table": "streams", "invalidUtf8": "null"}, "'invalidUtf8' is for reading messages"),
        ({"invalidUtf8": "drop"}, "'drop' is not one of fail, null"),
    ],
)
def test_what_cannot_be_picked_is_refused(options: dict[str, str], says: str, driver: Any) -> None:
    with pytest.raises(ValueError, match=says):
        source.schema(driver.options({"stream": "ORDERS", **options}))


def test_the_option_and_another_schema_are_refused_together(driver: Any) -> None:
    with pytest.raises(ValueError, match="option 'columns' names data, the schema has stream, sequence"):
        driver.plan(stream="ORDERS", columns="data")
    reader = source.stream_reader(driver.options({"stream": "ORDERS", "columns": "data"}), spark_schema(MESSAGE_TYPES))
    with pytest.raises(ValueError, match="give one of the two"):
        reader.initialOffset()


@pytest.mark.parametrize("names", [["data"], ["sequence", "data"], ["data", "timestamp", "stream", "subject"]])
def test_data_is_text_where_the_schema_says_so(names: list[str], store: Store, driver: Any) -> None:
    values = ["", None, "größer", "\U0001f6b2 bicycle"]
    store.stream("ORDERS").append(pa.table({"subject": ["orders.a"] * 4, "data": values}))
    fields = {**{field.name: field for field in READ_SCHEMA}, "data": TEXT.field("data")}
    schema = pa.schema([fields[name] for name in names])
    table = driver.read(schema, stream="ORDERS")
    assert table["data"].to_pylist() == values
    assert table.drop_columns(["data"]).equals(driver.read(read_schema(names), stream="ORDERS").drop_columns(["data"]))
    assert stream_rows(driver, from_arrow_schema(schema), stream="ORDERS").equals(table)


def test_data_that_is_no_utf8_fails_with_its_sequence(store: Store, driver: Any) -> None:
    data = pa.array([b"a", None, b"c", BROKEN, b"e"], pa.binary())
    store.stream("ORDERS").append(pa.table({"subject": ["orders.a"] * 5, "data": data}))
    store.stream("ORDERS").remove([1])
    with pytest.raises(InvalidMessageError) as caught:
        driver.read(TEXT, stream="ORDERS")
    assert caught.value.fields == {"stream": "ORDERS", "sequence": 4}
    with pytest.raises(InvalidMessageError) as caught:
        stream_rows(driver, from_arrow_schema(TEXT), stream="ORDERS")
    assert caught.value.fields == {"stream": "ORDERS", "sequence": 4}
    before = driver.read(TEXT, stream="ORDERS", endingOffsets='{"ORDERS": 4}')  # what is not asked for is not looked at
    assert before["data"].to_pylist() == [None, "c"]


def test_data_that_is_no_utf8_is_null_where_the_option_says_so(store: Store, driver: Any) -> None:
    # Surrogates, overlong forms and cut sequences are no UTF-8 either.
    data = pa.array([b"a", BROKEN, None, b"\xed\xa0\x80", b"\xc0\xaf", "ß".encode()[:1], "ß".encode()], pa.binary())
    store.stream("ORDERS").append(pa.table({"subject": ["orders.a"] * 7, "data": data}))
    options = {"stream": "ORDERS", "invalidUtf8": "null"}
    assert driver.read(TEXT, **options)["data"].to_pylist() == ["a", None, None, None, None, None, "ß"]
    assert stream_rows(driver, from_arrow_schema(TEXT), **options).equals(driver.read(TEXT, **options))


def test_empty_headers_are_no_headers(store: Store, driver: Any) -> None:
    kind = READ_SCHEMA.field("headers").type
    headers = pa.array([[], [{"key": "a", "value": b"1"}], None, [], [{"key": "b", "value": None}] * 2], kind)
    rows = pa.table({"subject": ["orders.a"] * 5, "data": ["1"] * 5, "headers": headers})
    for part in (rows, rows.slice(3), rows.slice(0, 1), rows.slice(2, 1)):
        store.stream("ORDERS").append(part)
    whole = [one or None for one in headers.to_pylist()]
    assert driver.read(stream="ORDERS")["headers"].to_pylist() == [*whole, *whole[3:], None, None]
    assert driver.read(stream="ORDERS", startingOffsets='{"ORDERS": 4}')["headers"].to_pylist()[:2] == whole[3:]
    assert store.stream("ORDERS").read().read_all()["headers"].to_pylist()[:5] == headers.to_pylist()
