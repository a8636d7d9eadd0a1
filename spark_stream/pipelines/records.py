"""Avro and Protobuf: payloads that a schema file describes, as Python values and as a type of Spark.

fastavro and protobuf decode, message by message, as msgpack does: no JAR is needed, and every version of Spark decodes
alike. A schema file is read once, where the pipeline is loaded; its content travels with the query.
"""

import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from storage_core.suggestions import instead

Record = dict[str, Any]
Decode = Callable[[bytes], Record]
AVRO, PROTOBUF = "avro", "protobuf"
EXTRAS = {AVRO: "fastavro", PROTOBUF: "google.protobuf"}  # what the extra of the format's name installs
_PRECISION_MAX = 38  # of Spark's DECIMAL


class SchemaFileError(ValueError):
    """A schema file that is none, or describes what Spark has no type for; the text says which part."""


class NotARecordError(ValueError):
    """A payload that is no record of the schema; the text says why."""


def record_type(format: str, content: bytes, message: str) -> StructType:
    """Return the columns of the records that a schema file describes. Raises SchemaFileError, ImportError."""
    return _avro_type(content) if format == AVRO else _protobuf_type(content, message)


@lru_cache(maxsize=16)
def decoder(format: str, content: bytes, message: str) -> Decode:
    """Return what makes a record of a payload, or raises NotARecordError."""
    return _avro_decoder(content) if format == AVRO else _protobuf_decoder(content, message)


def decode_all(payloads: list[bytes | None], decode: Decode, skip: int, kind: pa.StructType) -> pa.StructArray:
    """Return for each payload a struct of body (null for a bad payload) and problem (null for a good one).

    `skip`: bytes before each record. `kind`: the type of the body.
    """
    decoded = [decode_one(payload, decode, skip) for payload in payloads]
    bodies, problems = [body for body, _ in decoded], [problem for _, problem in decoded]
    try:
        array = pa.array(bodies, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):  # one of them: which, each alone tells
        for at, body in enumerate(bodies):
            try:
                pa.array([body], kind)
            except (pa.ArrowException, ValueError, TypeError, OverflowError):
                bodies[at], problems[at] = None, "payload holds what its type cannot hold"
        array = pa.array(bodies, kind)
    return pa.StructArray.from_arrays([array, pa.array(problems, pa.string())], names=["body", "problem"])


def decode_one(payload: bytes | None, decode: Decode, skip: int) -> tuple[Record | None, str | None]:
    """Return body and problem of one payload."""
    if payload is None:
        return None, "message has no payload"
    if len(payload) < skip:
        return None, f"payload is shorter than the {skip} bytes before the record"
    try:
        return decode(payload[skip:]), None
    except NotARecordError as error:
        return None, str(error)


# --- Avro

_AVRO_TYPES: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}
_AVRO_LOGICAL: dict[tuple[str, str], DataType] = {  # others mean nothing to Spark: the plain type is taken
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
    ("long", "local-timestamp-millis"): TimestampNTZType(),
    ("long", "local-timestamp-micros"): TimestampNTZType(),
}


def _avro_type(content: bytes) -> StructType:
    return _AvroTypes(_avro_schema(content)).columns()


def _avro_schema(content: bytes) -> Any:
    """Return the schema as fastavro has it: names whole, and no logical type that Spark has none for."""
    from fastavro import parse_schema
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        return parse_schema(_plain(json.loads(content)))
    except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError, RecursionError) as error:
        raise SchemaFileError(f"is no schema of Avro: {type(error).__name__}: {error}") from error


def _plain(schema: Any) -> Any:
    """Return a schema without the logical types that Spark has no type for."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value if key == "default" else _plain(value) for key, value in schema.items()}
    logical, of = kept.get("logicalType"), kept.get("type")
    if isinstance(of, str) and logical is not None and logical != "decimal" and (of, logical) not in _AVRO_LOGICAL:
        del kept["logicalType"]
    return kept


class _AvroTypes:
    """Spark's types of the parts of a schema; a part is named by its path from the top."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._named: dict[str, Any] = {}
        self._within: list[str] = []  # records around the part

    def columns(self) -> StructType:
        kind = self._type(self._schema, "the schema")[0]
        if not isinstance(kind, StructType):
            raise SchemaFileError(f"describes {kind.simpleString()}, not a record")
        return kind

    def _type(self, schema: Any, path: str) -> tuple[DataType, bool]:
        """Return a type and whether null is among its values."""
        if isinstance(schema, list):
            return self._union(schema, path)
        if isinstance(schema, str):
            if schema in _AVRO_TYPES:
                return _AVRO_TYPES[schema], False
            if schema not in self._named:
                raise SchemaFileError(f"{path} is {schema!r}, which Spark has no type for")
            schema = self._named[schema]
        of = schema["type"]
        if isinstance(of, (dict, list)):
            return self._type(of, path)
        if "name" in schema:
            self._named[schema["name"]] = schema
        if schema.get("logicalType") == "decimal":
            return self._decimal(schema, path), False
        if (of, schema.get("logicalType", "")) in _AVRO_LOGICAL:
            return _AVRO_LOGICAL[of, schema["logicalType"]], False
        if of == "array":
            return ArrayType(*self._type(schema["items"], f"{path}[]")), False
        if of == "map":
            return MapType(StringType(), *self._type(schema["values"], f"{path}[]")), False
        if of == "enum":
            return StringType(), False
        if of == "fixed" and schema["size"]:
            return BinaryType(), False
        if of in ("record", "error") and schema["fields"]:
            return self._record(schema, path), False
        if of in _AVRO_TYPES:
            return _AVRO_TYPES[of], False
        raise SchemaFileError(f"{path} is {of!r} without content, which Spark has no type for")

    def _record(self, schema: Any, path: str) -> StructType:
        if schema["name"] in self._within:
            raise SchemaFileError(f"{path} holds itself: {schema['name']}, and no type of Spark does")
        self._within.append(schema["name"])
        fields = []
        for field in schema["fields"]:
            name = field["name"] if path == "the schema" else f"{path}.{field['name']}"
            fields.append(StructField(field["name"], *self._type(field["type"], name)))
        self._within.pop()
        return StructType(fields)

    def _union(self, parts: list[Any], path: str) -> tuple[DataType, bool]:
        others = [part for part in parts if part != "null"]
        is_nullable = len(others) < len(parts)
        kinds = [self._type(part, path)[0] for part in others]
        for widest, taken in ((LongType(), (IntegerType, LongType)), (DoubleType(), (FloatType, DoubleType))):
            if len(kinds) > 1 and all(isinstance(kind, taken) for kind in kinds):
                return widest, is_nullable
        if len(kinds) != 1:
            names = ", ".join(kind.simpleString() for kind in kinds) or "nothing"
            advice = "take format = 'bytes' and from_avro of Spark's Avro package in [transform] python"
            raise SchemaFileError(f"{path} is a union of {names}, which Spark has no type for: {advice}")
        return kinds[0], is_nullable

    def _decimal(self, schema: Any, path: str) -> DecimalType:
        precision, scale = schema["precision"], schema.get("scale", 0)
        if precision > _PRECISION_MAX:
            raise SchemaFileError(f"{path} is a decimal of {precision} digits; Spark has {_PRECISION_MAX} at most")
        return DecimalType(precision, scale)


def _avro_decoder(content: bytes) -> Decode:
    from fastavro import schemaless_reader

    schema = _avro_schema(content)

    def decode(payload: bytes) -> Record:
        data = io.BytesIO(payload)
        try:
            record = schemaless_reader(data, schema, None)
        except Exception as error:  # of a codec's own kinds: what it raises differs with what is wrong
            raise NotARecordError("payload is not Avro of the schema") from error
        if data.tell() != len(payload):
            raise NotARecordError("payload is longer than one Avro record")
        return record  # type: ignore[return-value]

    return decode


# --- Protobuf

_WRAPPERS = "google.protobuf."
_ORIGIN = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _protobuf_type(content: bytes, message: str) -> StructType:
    kind = _struct_of(_descriptor(content, message), ())
    if not kind.fields:
        raise SchemaFileError(f"message {message} has no field")
    return kind


def _descriptor(content: bytes, message: str) -> Any:
    """Return the descriptor of a message in a set of descriptors as `protoc --include_imports` writes it."""
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.message import DecodeError

    pool = descriptor_pool.DescriptorPool()
    made = "`protoc --include_imports --descriptor_set_out=FILE orders.proto` makes one"
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(content).file
        for file in files:
            pool.Add(file)
        messages = [name for file in files for name in _names(file.message_type, file.package)]
        if message in messages:
            return pool.FindMessageTypeByName(message)
    except (DecodeError, TypeError, ValueError, KeyError) as error:
        raise SchemaFileError(f"is no whole set of descriptors of Protobuf ({made}): {error}") from error
    if not messages:
        raise SchemaFileError(f"is no set of descriptors of Protobuf, or an empty one: {made}")
    raise SchemaFileError(f"has no message {message!r}{instead(message, messages)}")


def _names(messages: Any, package: str) -> Iterator[str]:
    for message in messages:
        name = f"{package}.{message.name}".lstrip(".")
        yield name
        yield from _names(message.nested_type, name)


def _struct_of(descriptor: Any, within: tuple[str, ...]) -> StructType:
    if descriptor.full_name in within:
        raise SchemaFileError(f"message {descriptor.full_name} holds itself, and no type of Spark does")
    inner = (*within, descriptor.full_name)
    return StructType([StructField(field.name, _field_type(field, inner), True) for field in descriptor.fields])


def _field_type(field: Any, within: tuple[str, ...]) -> DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return MapType(_one_type(key, within), _one_type(value, within))
    kind = _one_type(field, within)
    return ArrayType(kind) if field.is_repeated else kind


def _one_type(field: Any, within: tuple[str, ...]) -> DataType:
    """Return the type of one value of a field."""
    if field.cpp_type == field.CPPTYPE_MESSAGE:
        name = field.message_type.full_name
        if name == f"{_WRAPPERS}Timestamp":
            return TimestampType()
        if _is_wrapper(field.message_type):
            return _one_type(field.message_type.fields_by_name["value"], within)
        return StringType() if name in _AS_JSON else _struct_of(field.message_type, within)
    if field.type == field.TYPE_BYTES:
        return BinaryType()
    return {
        field.CPPTYPE_INT32: IntegerType(),
        field.CPPTYPE_UINT32: LongType(),
        field.CPPTYPE_INT64: LongType(),
        field.CPPTYPE_UINT64: DecimalType(20, 0),
        field.CPPTYPE_FLOAT: FloatType(),
        field.CPPTYPE_DOUBLE: DoubleType(),
        field.CPPTYPE_BOOL: BooleanType(),
        field.CPPTYPE_STRING: StringType(),
        field.CPPTYPE_ENUM: StringType(),
    }[field.cpp_type]


# Shown as JSON: what is within has no type until it is read.
_AS_JSON = {f"{_WRAPPERS}{name}" for name in ("Any", "Duration", "FieldMask", "ListValue", "Struct", "Value")}


def _is_wrapper(descriptor: Any) -> bool:
    name = descriptor.full_name
    return bool(name.startswith(_WRAPPERS) and name.endswith("Value") and name not in _AS_JSON)


def _is_map(field: Any) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _protobuf_decoder(content: bytes, name: str) -> Decode:
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    descriptor = _descriptor(content, name)
    kind, record = GetMessageClass(descriptor), _record_of(descriptor)

    def decode(payload: bytes) -> Record:
        message = kind()
        try:
            message.ParseFromString(payload)
        except (DecodeError, RecursionError) as error:
            raise NotARecordError("payload is not Protobuf of the message") from error
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())
            raise NotARecordError(f"payload lacks required fields: {missing}")
        try:
            return record(message)
        except (OverflowError, ValueError) as error:
            raise NotARecordError("payload holds what its type cannot hold") from error

    return decode


def _record_of(descriptor: Any) -> Callable[[Any], Record]:
    """Return what makes a dict of a message: fields that are not there are null, or have their default."""
    readers = [(field.name, field.has_presence, _field_reader(field)) for field in descriptor.fields]

    def record(message: Any) -> Record:
        return {
            name: None if has_presence and not message.HasField(name) else read(getattr(message, name))
            for name, has_presence, read in readers
        }

    return record


def _field_reader(field: Any) -> Callable[[Any], Any]:
    if _is_map(field):
        key, value = (_one_reader(field.message_type.fields_by_name[name]) for name in ("key", "value"))
        return lambda entries: {key(name): value(entries[name]) for name in entries}
    reader = _one_reader(field)
    return (lambda values: [reader(value) for value in values]) if field.is_repeated else reader


def _one_reader(field: Any) -> Callable[[Any], Any]:
    from google.protobuf.json_format import MessageToJson

    if field.cpp_type == field.CPPTYPE_MESSAGE:
        name = field.message_type.full_name
        if name == f"{_WRAPPERS}Timestamp":
            return _microseconds
        if _is_wrapper(field.message_type):
            return lambda wrapped: wrapped.value
        return (lambda value: MessageToJson(value, indent=None)) if name in _AS_JSON else _record_of(field.message_type)
    if field.cpp_type == field.CPPTYPE_ENUM:
        names: Mapping[int, Any] = field.enum_type.values_by_number
        return lambda number: names[number].name if number in names else str(number)
    if field.cpp_type == field.CPPTYPE_UINT64:
        return Decimal
    return lambda value: value


def _microseconds(timestamp: Any) -> datetime:
    return _ORIGIN + timedelta(seconds=timestamp.seconds, microseconds=math.floor(timestamp.nanos / 1000))
