"""Payloads of real messages as columns, and the reason for each that cannot be parsed, in real Spark."""

import math
from datetime import datetime, timezone
from typing import Any

import msgpack
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_stream.pipelines.errors import DefinitionError
from spark_stream.pipelines.payload import bad, good, parse, payload_fields, refuse_bad

pytestmark = pytest.mark.spark

SCHEMA = """
[payload]
format = "{format}"
schema = '''
    id STRING NOT NULL, amount DOUBLE, count INT, at TIMESTAMP, photo BINARY,
    address STRUCT<street: STRING, city: STRING NOT NULL>, tags ARRAY<STRING>
'''
"""
ENVELOPE = (
    "stream string, sequence long, subject string, timestamp timestamp, headers array<struct<key:string,value:binary>>"
)


def messages(spark: SparkSession, payloads: list[bytes | None]) -> DataFrame:
    time = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
    rows = [("ORDERS", at, "orders.new", time, None, data) for at, data in enumerate(payloads, 1)]
    return spark.createDataFrame(rows, f"{ENVELOPE}, data binary")


def parsed(
    spark: SparkSession, pipeline: Any, payloads: list[bytes | None], table: str, columns: str = "*"
) -> tuple[list[Any], dict[int, str]]:
    """Return the good rows, or some columns of them, and the reason of each bad one by its sequence."""
    made = pipeline(table)
    fields = payload_fields(made)
    rows = parse(messages(spark, payloads), made.payload, fields)
    reasons = {row["sequence"]: row["__reason"] for row in bad(rows).collect()}
    return good(rows, fields).orderBy("sequence").selectExpr(*columns.split()).collect(), reasons


def test_json_becomes_columns_and_each_bad_message_says_why(spark: SparkSession, pipeline) -> None:
    payloads: list[bytes | None] = [
        b'{"id": "a", "amount": 1.5, "count": 2, "at": "2026-11-21T12:00:00.5Z", "photo": "AQI=", "tags": ["x"]}',
        b' {"id": "b", "address": {"city": "Bonn"}, "unknown": 1}\n',
        None,
        b"",
        b"nonsense",
        b'{"id": "c"',
        b"\xff\xfe",
        b'[{"id": "d"}]',
        b"5",
        b'{"id": "e"} {"id": "f"}',
        b'{"id": "g"}, {"id": "h"}',
        b'{"id": "i"} and more',
        b'{"id": "j", "count": "many"}',
        b'{"id": "k", "at": "yesterday"}',
        b'{"amount": 5}',
        b'{"id": null}',
        b'{"id": "l", "address": {"street": "Hof"}}',
        b'{"id": "m", "address": null}',
        b'{"id": "n"}], [{"id": "o"}',
        b'{"id": "p"}}, {"id": {"id": "q"}',
        b'{"id": "r", "amount": NaN}',
        b"{'id': 's'}",
        b'{"id": "t\t"}',
        b'{"id": "u", "tags": "v"}',
        b'{"id": "w", "amount": "NaN"}',
    ]
    rows, reasons = parsed(spark, pipeline, payloads, SCHEMA.format(format="json"))
    assert [row["id"] for row in rows] == ["a", "b", "m", "w"] and math.isnan(rows[3]["amount"])
    first = rows[0]
    assert (first["amount"], first["count"], first["tags"], bytes(first["photo"])) == (1.5, 2, ["x"], b"\x01\x02")
    assert rows[1]["address"]["city"] == "Bonn" and rows[1]["subject"] == "orders.new"
    assert rows[0].asDict().keys() == {
        "stream", "sequence", "subject", "timestamp", "headers",
        "id", "amount", "count", "at", "photo", "address", "tags",
    }  # fmt: skip
    assert reasons == {
        3: "message has no payload",
        4: "payload is not JSON",
        5: "payload is not JSON",
        6: "payload is not JSON",
        7: "payload is not UTF-8",
        8: "payload is JSON, but not an object",
        9: "payload is JSON, but not an object",
        10: "payload is more than one JSON value",
        11: "payload is more than one JSON value",
        12: "payload is more than one JSON value",
        13: "count: many is not INT",
        14: "at: yesterday is not TIMESTAMP",
        15: "id is null or missing",
        16: "id is null or missing",
        17: "address.city is null or missing",
        19: "payload is more than one JSON value",
        20: "payload is more than one JSON value",
        21: "payload is not JSON",
        22: "payload is not JSON",
        23: "payload is not JSON",
        24: "tags: v is not array<string>",
    }


def test_msgpack_becomes_the_same_columns(spark: SparkSession, pipeline) -> None:
    moment = datetime(2026, 11, 21, 12, 0, 0, 500_000, tzinfo=timezone.utc)
    order = {"id": "a", "amount": 1.5, "count": 2, "at": moment, "photo": b"\x01\x02", "tags": ["x"]}
    payloads: list[bytes | None] = [
        msgpack.packb(order, datetime=True),
        msgpack.packb({"id": "b", "address": {"city": "Bonn"}}),
        None,
        b"",
        b"\xc1",
        msgpack.packb(order, datetime=True)[:-3],
        msgpack.packb({"id": "c"}) + b"\x01",
        b"\xdd\xff\xff\xff\xff",  # a list that claims 2**32 - 1 elements
        b"\x91" * 5000,  # lists within lists
        msgpack.packb([1, 2]),
        msgpack.packb({"id": "d", "count": "many"}),
        msgpack.packb({"amount": 5}),
        msgpack.packb({"id": msgpack.ExtType(5, b"x")}),
        msgpack.packb({"id": "e", "amount": math.nan, "tags": [-math.inf]}),
        msgpack.packb({"id": "f", "amount": math.inf}, use_single_float=True),
    ]
    rows, reasons = parsed(spark, pipeline, payloads, SCHEMA.format(format="msgpack"))
    assert [row["id"] for row in rows] == ["a", "b", "e", "f"]
    assert math.isnan(rows[2]["amount"]) and (rows[2]["tags"], rows[3]["amount"]) == (["-Infinity"], math.inf)
    assert (rows[0]["count"], bytes(rows[0]["photo"]), rows[1]["address"]["city"]) == (2, b"\x01\x02", "Bonn")
    unreadable = "payload is not MessagePack that can be read as fields"
    assert reasons == {
        3: "message has no payload",
        4: unreadable,
        5: unreadable,
        6: unreadable,
        7: "payload is more than one MessagePack value",
        8: unreadable,
        9: unreadable,
        10: "payload is MessagePack, but not an object",
        11: "count: many is not INT",
        12: "id is null or missing",
        13: unreadable,
    }


BIG, INFINITE = b"9" * 400, b"1e999999999"
HELD = """
[payload]
format = "{format}"
schema = '''
    id STRING, amount DOUBLE, ratio FLOAT, small TINYINT, count BIGINT, at TIMESTAMP, price DECIMAL(10, 2), day DATE,
    any VARIANT, tags ARRAY<STRING>, sums MAP<STRING, DOUBLE>, parts ARRAY<STRUCT<b: TINYINT, t: TIMESTAMP, d: DOUBLE>>
'''
"""


def test_values_that_a_type_cannot_hold_make_a_message_bad(spark: SparkSession, pipeline) -> None:
    whole: list[bytes | None] = [
        b'{"id": "\\ud83d\\ude00 \\\\ud800 \\\\\\\\udc00 \\u00e9"}',
        b'{"id": "Infinity", "amount": "Infinity", "ratio": "-Infinity", "unknown": "1e999"}',
        b'{"amount": 1.7e308, "ratio": 3.4e38, "unknown": 1e999}',
        b'{"id": "1e999 \\" 1e999", "amount": "Infinity"}',
        b'{"small": -128, "parts": [{"b": 127}], "count": 9223372036854775807}',
        b'{"at": 9223372036854, "parts": [{"t": -9223372036854}, {"t": "2026-11-21T12:00:00Z"}]}',
        b'{"price": 4.005, "sums": {"a": 1, "A": 2}, "amount": 1e-999}',
        b'{"count": 10000000000000, "at": 1}',
        b'{"id": "' + b'\\"' * 200_000 + b'", "amount": "Infinity"}',
    ]
    altered = {
        b'{"id": "\\ud800"}': "payload holds half a surrogate pair, which is no character",
        b'{"id": "\\uDC00\\uD800"}': "payload holds half a surrogate pair, which is no character",
        b'{"id": "\\\\\\ud800"}': "payload holds half a surrogate pair, which is no character",
        b'{"id": "\\ud83d\\ude00\\ude00"}': "payload holds half a surrogate pair, which is no character",
        b'{"sums": {"\\udfff": 1}}': "payload holds half a surrogate pair, which is no character",
        b'{"amount": ' + INFINITE + b"}": "amount: holds what DOUBLE cannot hold",
        b'{"amount": -' + BIG + b"}": "amount: holds what DOUBLE cannot hold",
        b'{"ratio": 1e39}': "ratio: holds what FLOAT cannot hold",
        b'{"sums": {"a": 1e999}}': "sums: holds what map<string,double> cannot hold",
        b'{"parts": [{"d": 1E+400}]}': "parts: holds what array<struct<b:tinyint,t:timestamp,d:double>> cannot hold",
        b'{"id": ' + INFINITE + b"}": "id: holds what STRING cannot hold",
        b'{"tags": [{"x": 1e999}]}': "tags: holds what array<string> cannot hold",
        b'{"any": {"x": [1e999]}}': "any: holds what VARIANT cannot hold",
        b'{"small": 200}': "small: holds what TINYINT cannot hold",
        b'{"small": 256}': "small: 256 is not TINYINT",
        b'{"parts": [{"b": 1}, {"b": 128}]}': (
            "parts: holds what array<struct<b:tinyint,t:timestamp,d:double>> cannot hold"
        ),
        b'{"count": 9223372036854775808}': "count: 9223372036854775808 is not BIGINT",
        b'{"at": 10000000000000}': "at: holds what TIMESTAMP cannot hold",
        b'{"at": 18446744073709}': "at: holds what TIMESTAMP cannot hold",
        b'{"at": -9223372036855}': "at: holds what TIMESTAMP cannot hold",
        b'{"parts": [{"t": 9223372036855}]}': (
            "parts: holds what array<struct<b:tinyint,t:timestamp,d:double>> cannot hold"
        ),
        b'{"at": "+294248-01-01T00:00:00Z"}': "at: +294248-01-01T00:00:00Z is not TIMESTAMP",
        b'{"price": 123456789.99}': "price: 1.2345678999E8 is not DECIMAL(10,2)",
        b'{"day": "5"}': "day: 5 is not DATE",
        b'{"sums": {"a": 1, "a": 2}}': "sums: holds what map<string,double> cannot hold",
    }
    rows, reasons = parsed(spark, pipeline, [*whole, *altered], HELD.format(format="json"), "sequence id amount ratio")
    assert [row["sequence"] for row in rows] == list(range(1, len(whole) + 1))
    assert rows[0]["id"] == "😀 \\ud800 \\\\udc00 é"
    assert (rows[1]["amount"], rows[1]["ratio"]) == (math.inf, -math.inf)
    assert dict(zip(altered, reasons.values(), strict=True)) == altered

    unreadable = "payload is not MessagePack that can be read as fields"
    packed: dict[bytes, str] = {
        msgpack.packb({"ratio": 1e300}): "ratio: holds what FLOAT cannot hold",
        msgpack.packb({"small": 200}): "small: holds what TINYINT cannot hold",
        msgpack.packb({"at": 10_000_000_000_000}): "at: holds what TIMESTAMP cannot hold",
        msgpack.packb({"count": 2**64 - 1}): "count: 18446744073709551615 is not BIGINT",
        msgpack.packb({"amount": math.inf, "price": math.nan}): "price: NaN is not DECIMAL(10,2)",
        b"\x81\xa2id\xa3\xed\xa0\x80": unreadable,  # half a surrogate pair, as UTF-8 would have it
        b"\x81\xa2id\xa1\xff": unreadable,
        msgpack.packb({"sums": {1: 2.0}}): unreadable,
        msgpack.packb({"sums": {b"a": 2.0}}): unreadable,
        msgpack.packb({None: 1}): unreadable,
        msgpack.packb({"at": msgpack.Timestamp(2**60, 0)}): unreadable,
    }
    rows, reasons = parsed(
        spark, pipeline, [*packed, msgpack.packb({"id": "\\ud800"})], HELD.format(format="msgpack"), "id"
    )
    assert [row["id"] for row in rows] == ["\\ud800"]
    assert dict(zip(packed, reasons.values(), strict=True)) == packed


def test_text_must_be_utf8_and_bytes_are_what_they_are(spark: SparkSession, pipeline) -> None:
    payloads = ["grün".encode(), b"\xff", None]
    rows, reasons = parsed(spark, pipeline, payloads, '[payload]\nformat = "utf8"\ncolumn = "line"')
    assert [row["line"] for row in rows] == ["grün", None] and reasons == {2: "payload is not UTF-8"}
    rows, reasons = parsed(spark, pipeline, payloads, "")
    assert [row["data"] and bytes(row["data"]) for row in rows] == payloads and reasons == {}


def test_a_payload_may_be_one_column(spark: SparkSession, pipeline) -> None:
    table = '[payload]\nformat = "json"\nschema = "subject STRING, sequence INT"\ncolumn = "body"'
    rows, _ = parsed(spark, pipeline, [b'{"subject": "theirs", "sequence": 7}'], table)
    assert (rows[0]["subject"], rows[0]["body"]["subject"], rows[0]["body"]["sequence"]) == ("orders.new", "theirs", 7)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("a ARRAY<STRUCT<x: INT NOT NULL>>", "a.x is NOT NULL within a list or a map, which is not checked"),
        ("m MAP<STRING, STRUCT<y: STRUCT<z: INT NOT NULL>>>", "m.y.z is NOT NULL within a list or a map"),
        ("id STRIN", "payload.schema: is not DDL that Spark takes"),
        ("id STRING, Id INT", "payload.schema: names the field 'id' twice"),
        ("timestamp TIMESTAMP", "field 'timestamp' is a column of every message already; with payload.column = 'body'"),
    ],
)
def test_a_schema_that_cannot_work_is_told_before_anything_is_read(
    spark: SparkSession, pipeline, schema: str, told: str
) -> None:
    made = pipeline(f'[payload]\nformat = "json"\nschema = "{schema}"')
    with pytest.raises(DefinitionError, match="orders.toml") as raised:
        payload_fields(made)
    assert told in str(raised.value)


def test_without_dead_letters_a_bad_message_stops_whoever_reads_it(spark: SparkSession, pipeline) -> None:
    made = pipeline('[payload]\nformat = "json"\nschema = "id STRING"')
    fields = payload_fields(made)
    rows = good(refuse_bad(parse(messages(spark, [b"{}", b"oops"]), made.payload, fields)), fields)
    with pytest.raises(Exception, match=r"stream ORDERS, sequence 2: payload is not JSON \(with \[dead_letters\]"):
        rows.select("sequence").collect()
