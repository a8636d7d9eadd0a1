"""Avro and Protobuf: schema files as Spark's types, good payloads as rows, bad ones as reasons, in real Spark."""

import io
import json
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2, wrappers_pb2
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from spark_stream.pipelines import records
from spark_stream.pipelines.config import Pipeline
from spark_stream.pipelines.errors import DefinitionError
from spark_stream.pipelines.payload import bad, good, parse, payload_fields

from .test_payload import messages

pytestmark = pytest.mark.spark
AT = datetime(2026, 11, 21, 12, 0, 0, 250_000, tzinfo=timezone.utc)
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "count", "type": ["null", "int"], "default": None},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "wait", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "was", "type": ["null", "State"]},
        {"name": "tags", "type": {"type": "array", "items": ["string", "null"]}},
        {"name": "sizes", "type": {"type": "map", "values": ["int", "long"]}},
        {"name": "to", "type": {"type": "record", "name": "To", "fields": [{"name": "city", "type": "string"}]}},
        {"name": "photo", "type": {"type": "fixed", "name": "Photo", "size": 2}},
    ],
}
ROW = {
    "id": "a", "count": 2, "amount": Decimal("12.50"), "at": AT, "day": date(2026, 11, 21), "wait": 7, "state": "PAID",
    "was": None, "tags": ["x", None], "sizes": {"s": 1}, "to": {"city": "Bonn"}, "photo": b"\x01\x02",
}  # fmt: skip


def avro(row: dict[str, Any], schema: Any = ORDER) -> bytes:
    data = io.BytesIO()
    plain = records._plain(schema)  # the time of day is a number there, as in the row
    fastavro.schemaless_writer(data, fastavro.parse_schema(plain), row)
    return data.getvalue()


def field(
    name: str, number: int, kind: str, label: str = "OPTIONAL", of: str = ""
) -> descriptor_pb2.FieldDescriptorProto:
    made = descriptor_pb2.FieldDescriptorProto(name=name, number=number)
    if of:
        made.type_name = of
    made.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind}")
    made.label = descriptor_pb2.FieldDescriptorProto.Label.Value(f"LABEL_{label}")
    return made


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    """As `protoc --include_imports` makes them of a message with a field of each kind."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    state = file.enum_type.add(name="State")
    for number, name in enumerate(("NEW", "PAID")):
        state.value.add(name=name, number=number)
    order = file.message_type.add(name="Order")
    order.nested_type.add(name="To").field.append(field("city", 1, "STRING"))
    sizes = order.nested_type.add(name="SizesEntry")
    sizes.options.map_entry = True
    sizes.field.extend([field("key", 1, "STRING"), field("value", 2, "INT64")])
    order.field.extend([
        field("id", 1, "STRING"),
        field("count", 2, "UINT64"),
        field("at", 3, "MESSAGE", of=".google.protobuf.Timestamp"),
        field("state", 4, "ENUM", of=".shop.State"),
        field("tags", 5, "STRING", "REPEATED"),
        field("sizes", 6, "MESSAGE", "REPEATED", of=".shop.Order.SizesEntry"),
        field("to", 7, "MESSAGE", of=".shop.Order.To"),
        field("photo", 8, "BYTES"),
        field("rate", 9, "MESSAGE", of=".google.protobuf.DoubleValue"),
        field("small", 10, "UINT32"),
    ])  # fmt: skip
    node = file.message_type.add(name="Node")
    node.field.append(field("next", 1, "MESSAGE", of=".shop.Node"))
    found = descriptor_pb2.FileDescriptorSet()
    for imported in (timestamp_pb2, wrappers_pb2):
        imported.DESCRIPTOR.CopyToProto(found.file.add())
    found.file.append(file)
    return found


def order_message() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptors().file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


@pytest.fixture
def described(tmp_path: Path, pipeline: Callable[..., Pipeline]) -> Callable[..., Pipeline]:
    """Makes a pipeline whose payload has a schema file beside it."""

    def make(content: bytes, format: str = "avro", more: str = "") -> Pipeline:
        (tmp_path / "file").write_bytes(content)
        return pipeline(f'[payload]\nformat = "{format}"\nschema_file = "file"\n{more}')

    return make


def parsed(spark: SparkSession, made: Pipeline, payloads: list[bytes | None]) -> tuple[list[Any], dict[int, str]]:
    fields = payload_fields(made)
    rows = parse(messages(spark, payloads), made.payload, fields)
    reasons = {row["sequence"]: row["__reason"] for row in bad(rows).collect()}
    return good(rows, fields).orderBy("sequence").collect(), reasons


def test_avro_becomes_columns_and_each_bad_message_says_why(spark: SparkSession, described) -> None:
    made = described(json.dumps(ORDER).encode(), more="skip_bytes = 5")
    whole = b"\0\0\0\0\7" + avro(ROW)
    day_beyond = ROW | {"day": 2**31 - 1}  # years that Python's dates do not reach
    payloads = [
        whole, None, b"", b"\0\0", whole[:-1], whole + b"\0", b"\0\0\0\0\7\xff\xff", b"\0\0\0\0\7" + avro(day_beyond),
        b"\0\0\0\0\7" + avro(ROW | {"id": "b"}).replace(b"b", b"\xff"), b"\0\0\0\0\7" + avro(ROW | {"was": "NEW"}),
    ]  # fmt: skip
    rows, reasons = parsed(spark, made, payloads)
    assert [name for name in rows[0].asDict() if name in ROW] == list(ROW)
    local = {"at": rows[0]["at"].astimezone(timezone.utc)}
    assert {name: rows[0].asDict(recursive=True)[name] for name in ROW} | local == ROW
    assert [row["was"] for row in rows] == [None, "NEW"]
    assert reasons == {
        2: "message has no payload",
        3: "payload is shorter than the 5 bytes before the record",
        4: "payload is shorter than the 5 bytes before the record",
        5: "payload is not Avro of the schema",
        6: "payload is longer than one Avro record",
        7: "payload is not Avro of the schema",
        8: "payload is not Avro of the schema",
        9: "payload is not Avro of the schema",
    }


def test_protobuf_becomes_columns_and_each_bad_message_says_why(spark: SparkSession, described) -> None:
    made = described(descriptors().SerializeToString(), "protobuf", 'message = "shop.Order"')
    order = order_message()(id="a", count=2**64 - 1, state=1, tags=["x"], sizes={"s": -1}, photo=b"\1", small=2**32 - 1)
    order.at.FromDatetime(AT)
    order.to.city, order.rate.value = "Bonn", 0.0
    later = order_message()(id="l")
    later.at.seconds = 2**40
    payloads = [order.SerializeToString(), b"", None, b"\xff", b"\x0a\x01\xff", later.SerializeToString(), b"\x20\x09"]
    rows, reasons = parsed(spark, made, payloads)
    first = rows[0].asDict(recursive=True)
    assert (first["id"], first["count"], first["small"]) == ("a", Decimal(2**64 - 1), 2**32 - 1)
    assert (first["state"], first["tags"], first["sizes"], first["to"]) == ("PAID", ["x"], {"s": -1}, {"city": "Bonn"})
    assert (first["at"].astimezone(timezone.utc), bytes(first["photo"]), first["rate"]) == (AT, b"\1", 0.0)
    empty = rows[1].asDict(recursive=True)
    assert (empty["id"], empty["count"], empty["tags"], empty["sizes"]) == ("", 0, [], {})
    assert (empty["to"], empty["at"], empty["rate"]) == (None, None, None), "what is not there is null"
    assert rows[2]["state"] == "9", "a value of a later version of the enum"
    assert reasons == {
        3: "message has no payload",
        4: "payload is not Protobuf of the message",
        5: "payload is not Protobuf of the message",
        6: "payload holds what its type cannot hold",
    }


@given(st.binary(max_size=80))
def test_any_bytes_are_a_record_or_have_a_reason(data: bytes) -> None:
    for format, content in (("avro", json.dumps(ORDER).encode()), ("protobuf", descriptors().SerializeToString())):
        decode = records.decoder(format, content, "shop.Order")
        body, problem = records.decode_one(data, decode, 0)
        assert (body is None) != (problem is None)
        if body is not None and format == "avro":
            assert records.decode_one(data + b"\0", decode, 0)[1] == "payload is longer than one Avro record"


REFUSED = {
    "a union": ({"type": "record", "name": "A", "fields": [{"name": "x", "type": ["int", "string"]}]}, "x is a union"),
    "not a record": ("int", "describes int, not a record"),
    "no JSON": (None, "is no schema of Avro"),
    "an unknown type": ({"type": "record", "name": "A", "fields": [{"name": "x", "type": "uint"}]}, "uint"),
    "holds itself": (
        {"type": "record", "name": "A", "fields": [{"name": "next", "type": ["null", "A"]}]},
        "next holds itself: A",
    ),
    "no content": (
        {"type": "record", "name": "A", "fields": [{"name": "x", "type": {"type": "array", "items": "null"}}]},
        r"x\[\] is 'null'",
    ),
    "long decimal": (
        {"type": "record", "name": "A", "fields": [
            {"name": "x", "type": {"type": "bytes", "logicalType": "decimal", "precision": 39}}]},
        "39 digits",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_schema_that_spark_has_no_type_for_is_refused_by_field(described, case: str) -> None:
    schema, expected = REFUSED[case]
    content = b"{" if schema is None else json.dumps(schema).encode()
    with pytest.raises(DefinitionError, match=expected):
        payload_fields(described(content))


def test_descriptors_without_the_message_are_refused_with_those_that_are_there(described) -> None:
    whole = descriptors()
    for content, message, expected in (
        (whole.SerializeToString(), "shop.Ordr", "has no message 'shop.Ordr'; did you mean 'shop.Order'"),
        (whole.SerializeToString(), "shop.Node", "shop.Node holds itself"),
        (b"\xff", "shop.Order", "is no whole set of descriptors"),
        (b"", "shop.Order", "or an empty one"),
        (descriptor_pb2.FileDescriptorSet(file=whole.file[2:]).SerializeToString(), "shop.Order", "include_imports"),
    ):
        with pytest.raises(DefinitionError, match=expected):
            payload_fields(described(content, "protobuf", f'message = "{message}"'))
