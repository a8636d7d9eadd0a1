"""Payloads as columns: each message parsed, and for each that cannot be, the reason.

A parsed DataFrame has the columns of the envelope, DATA (the payload as it came), BODY (the payload as a struct, null
where there is none) and REASON (null: the message is good). `good` makes of it what transformations see; `bad` what
dead letters are made of. MessagePack, Avro and Protobuf are decoded in Python; all else is Spark's own expressions,
evaluated in the JVM.

A field that the schema says is NOT NULL must be there; all others may be missing. Nothing is guessed: a value that is
not of its type, something behind the JSON object, a list where an object belongs all make a message bad. So does a
value that Spark's parser would take for another one: see `_altered`.
"""

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from datasource.spark_versions import HAS_ARROW_UDF, arrow_schema
from spark_stream.pipelines import records
from spark_stream.pipelines.config import BYTES, JSON, MSGPACK, UTF8, Payload, Pipeline
from spark_stream.pipelines.errors import DefinitionError

DATA, BODY, REASON = "__data", "__body", "__reason"
PLAIN_COLUMNS = {UTF8: "text", BYTES: "data"}  # what the only column is called unless `column` says
SHOWN_MAX = 60  # characters of a value that a reason shows
BYTE_MAX = 127
SECONDS_MAX = 9_223_372_036_854  # of a TIMESTAMP, before and after 1970: microseconds in 64 bits
# A reason with the value that it shows, for Java and RE2 alike; the kind of reason is `\\1: \\2`. See `_misfit`.
VALUE_IN_REASON = r"(?s)^(.*?): .* (is not .*)$"
_NOT_THE_SCHEMA = "does not fit the schema"
_STRICT = {"allowNonNumericNumbers": "false", "allowSingleQuotes": "false"}
# A float that is no number, or infinite: a type byte, then sign and exponent with all bits of the exponent set.
_NO_NUMBER = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]|\xca[\x7f\xff][\x80-\xff]")
_BINARY = re.compile(rb"[\xc4-\xc6]")  # the type bytes of binary values


@dataclass(frozen=True, slots=True)
class Fields:
    """The payload's columns as the view has them, and the struct that they are parsed into."""

    body: StructType
    shown: StructType
    column: str  # the struct as a whole under this name; empty: each field is a column
    schema_file: bytes = b""  # content of the payload's


def payload_fields(pipeline: Pipeline) -> Fields:
    """Return the columns of the payload, with a session there, whose parser of types it takes.

    Raises DefinitionError for a schema that is none, or hides the envelope.
    """
    payload = pipeline.payload
    if payload.format in PLAIN_COLUMNS:
        kind: DataType = StringType() if payload.format == UTF8 else BinaryType()
        body = StructType([StructField(payload.column or PLAIN_COLUMNS[payload.format], kind)])
        return Fields(body, body, "")
    schema_file = schema_file_of(pipeline)
    body = _record_type(pipeline, schema_file) if payload.has_schema_file else _parse_ddl(pipeline)
    shown = StructType([StructField(payload.column, body)]) if payload.column else body
    _check_names(pipeline, shown)
    for field in body.fields:
        _check_not_null(pipeline, field.name, field.dataType, False)
    return Fields(body, shown, payload.column, schema_file)


def schema_file_of(pipeline: Pipeline) -> bytes:
    """Return the content of the payload's schema file, nothing if it has none. Raises DefinitionError."""
    try:
        return Path(pipeline.payload.schema_file).read_bytes() if pipeline.payload.has_schema_file else b""
    except OSError as error:
        raise DefinitionError(pipeline.file, "payload.schema_file", f"cannot be read: {error}") from error


def _record_type(pipeline: Pipeline, content: bytes) -> StructType:
    """Return the columns that the schema file describes. Raises DefinitionError."""
    payload = pipeline.payload
    try:
        return records.record_type(payload.format, content, payload.message)
    except records.SchemaFileError as error:
        reason = f"{payload.schema_file}: {error}"
        raise DefinitionError(pipeline.file, "payload.schema_file", reason) from error
    except ImportError as error:
        reason = f"{payload.format!r} needs the package {error.name}: pip install 'pyspark-jstream[{payload.format}]'"
        raise DefinitionError(pipeline.file, "payload.format", reason) from error


def _parse_ddl(pipeline: Pipeline) -> StructType:
    try:
        schema = StructType.fromDDL(pipeline.payload.schema)
    except Exception as error:  # what Spark raises differs with what is wrong
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        raise DefinitionError(pipeline.file, "payload.schema", f"is not DDL that Spark takes: {lines[0]}") from error
    if not isinstance(schema, StructType) or not schema.fields:
        raise DefinitionError(pipeline.file, "payload.schema", "names no field")
    return schema


def _check_names(pipeline: Pipeline, shown: StructType) -> None:
    folded = [field.name.lower() for field in shown.fields]
    for name in folded:
        if name in pipeline.source.envelope:
            raise DefinitionError(
                pipeline.file,
                "payload.schema",
                f"field {name!r} is a column of every message already; with payload.column = 'body' the fields are "
                f"body.{name} and so on",
            )
        if folded.count(name) > 1:
            raise DefinitionError(pipeline.file, "payload.schema", f"names the field {name!r} twice")


def _check_not_null(pipeline: Pipeline, path: str, kind: DataType, within: bool) -> None:
    """Raise DefinitionError for a NOT NULL `within` a list or a map, where nobody would look."""
    if isinstance(kind, ArrayType):
        _check_not_null(pipeline, path, kind.elementType, True)
    elif isinstance(kind, MapType):
        _check_not_null(pipeline, path, kind.valueType, True)
    elif isinstance(kind, StructType):
        for field in kind.fields:
            inner = f"{path}.{field.name}"
            if within and not field.nullable:
                reason = f"{inner} is NOT NULL within a list or a map, which is not checked; leave it out"
                raise DefinitionError(pipeline.file, "payload.schema", reason)
            _check_not_null(pipeline, inner, field.dataType, within)


def parse(messages: DataFrame, payload: Payload, fields: Fields) -> DataFrame:
    """Return messages with their payload parsed; the columns are those of the module's first lines."""
    envelope = [F.col(name) for name in messages.columns if name != "data"]
    data = F.col("data")
    if payload.format in PLAIN_COLUMNS:
        value = data.cast("string") if payload.format == UTF8 else data
        body = F.struct(value.alias(fields.body.fields[0].name))
        bad = data.isNotNull() & ~F.call_function("is_valid_utf8", data)
        reason = F.when(bad, F.lit("payload is not UTF-8")) if payload.format == UTF8 else F.lit(None).cast("string")
        return messages.select(*envelope, data.alias(DATA), body.alias(BODY), reason.alias(REASON))
    if payload.has_schema_file:
        decoded = messages.select(*envelope, data.alias(DATA), _decoded(data, payload, fields).alias("__decoded"))
        body, reason = F.col("__decoded.body"), F.col("__decoded.problem")
        return decoded.select(*envelope, F.col(DATA), body.alias(BODY), reason.alias(REASON))
    if payload.format == MSGPACK:
        made = messages.select(*envelope, data.alias(DATA), _json_of_msgpack(data).alias("__json"))
        text, problem = F.col("__json.text"), F.col("__json.problem")
    else:
        made = messages.select(*envelope, data.alias(DATA))
        text = F.col(DATA).cast("string")
        problem = F.when(F.col(DATA).isNull(), F.lit("message has no payload")).when(
            ~F.call_function("is_valid_utf8", F.col(DATA)), F.lit("payload is not UTF-8")
        )
    corrupt = _unused_name(fields.body)
    parsed = made.withColumn("__parsed", _from_json(text, fields.body.fields, corrupt))
    reason = F.coalesce(
        problem,
        _reason(text, F.col("__parsed"), fields.body, corrupt, payload.format),
        _altered(text, F.col("__parsed"), fields.body, corrupt),
    )
    names = [F.col(f"__parsed.`{_escape(field.name)}`").alias(field.name) for field in fields.body.fields]
    return parsed.select(*envelope, F.col(DATA), F.struct(*names).alias(BODY), reason.alias(REASON))


def good(parsed: DataFrame, fields: Fields) -> DataFrame:
    """Return the messages that were understood, as transformations see them: envelope and payload's columns."""
    envelope = [F.col(name) for name in _envelope(parsed)]
    body = [F.col(BODY).alias(fields.column)] if fields.column else [F.col(f"{BODY}.*")]
    return parsed.where(F.col(REASON).isNull()).select(*envelope, *body)


def bad(parsed: DataFrame) -> DataFrame:
    """Return the messages that were not understood: the envelope, DATA and REASON."""
    return parsed.where(F.col(REASON).isNotNull()).select(*_envelope(parsed), DATA, REASON)


def _envelope(parsed: DataFrame) -> list[str]:
    return [name for name in parsed.columns if name not in (DATA, BODY, REASON)]


def refuse_bad(parsed: DataFrame) -> DataFrame:
    """Return the same messages; whoever evaluates a bad one fails with its stream, sequence and reason."""
    text = F.concat(
        F.lit("stream "), F.col("stream"), F.lit(", sequence "), F.col("sequence").cast("string"), F.lit(": "),
        F.col(REASON), F.lit(" (with [dead_letters] such messages go to a stream of their own)"),
    )  # fmt: skip
    return parsed.withColumn(REASON, F.when(F.col(REASON).isNotNull(), F.raise_error(text).cast("string")))


def _from_json(text: Column, fields: list[StructField], corrupt: str, strict: bool = False) -> Column:
    nullable = [StructField(field.name, field.dataType) for field in fields]
    schema = StructType([*nullable, StructField(corrupt, StringType())])
    options = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": corrupt,
        "allowSingleQuotes": "false",
        "enableDateTimeParsingFallback": "false",  # with it the text "5" is the sixth day of 1970
    }
    return F.from_json(text, schema, options | (_STRICT if strict else {}))


def _reason(text: Column, parsed: Column, body: StructType, corrupt: str, format: str) -> Column:
    """Return why the parsed payload is bad, null if it is not; `text` is its JSON."""
    label = "MessagePack" if format == MSGPACK else JSON.upper()
    is_none = F.lit(f"payload is not {label}")
    # Spark's parser stops behind the first value; what follows it would be lost without a word. As the only element
    # of a list and as the only value of an object: what closes the one too early does not close the other.
    value_count = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    key_count = F.size(F.json_object_keys(F.concat(F.lit('{"":'), text, F.lit("}"))))
    is_alone = F.coalesce((value_count == 1) & (key_count == 1), F.lit(False))
    # Without fields it is only looked at whether it is JSON: a NaN is none, a text "NaN" is, and becomes a DOUBLE.
    is_strict = _from_json(text, [], corrupt, strict=True).getField(corrupt).isNull()
    failed = parsed.isNull() | parsed.getField(corrupt).isNotNull()
    explained = (
        F.when(value_count.isNull() | (value_count == 0), is_none)
        .when(~F.ltrim(text).startswith("{"), F.lit(f"payload is {label}, but not an object"))
        .when(~is_strict, is_none)
        .otherwise(F.coalesce(*[_misfit(text, field, corrupt) for field in body.fields], F.lit(_NOT_THE_SCHEMA)))
    )
    more = F.when(is_strict, F.lit(f"payload is more than one {label} value")).otherwise(is_none)
    reason = F.when(failed, explained).when(~is_alone, more)
    for path in required_fields(body):
        steps = path.split("\0")
        value, holder = parsed, F.lit(True)
        for step in steps[:-1]:
            value = value.getField(step)
            holder = holder & value.isNotNull()
        absent = holder & value.getField(steps[-1]).isNull()
        reason = reason.when(absent, F.lit(f"{'.'.join(steps)} is null or missing"))
    return reason


def _altered(text: Column, parsed: Column, body: StructType, corrupt: str) -> Column:
    """Return which value of a payload Spark's parser has silently made another one of, null if it is none.

        half a surrogate pair       no character: the parser makes `?` of it, of whatever half
        1e999                       as DOUBLE or FLOAT, and within a STRING: infinite
        200                         as TINYINT: -56
        10000000000000              as TIMESTAMP, which are seconds: their microseconds overflow
        {"a": 1, "a": 2}            as MAP: with both

    Each test begins with what costs little and seldom holds.
    """
    no_escapes = F.regexp_replace(text, r"\\\\", "__")  # what is left of a backslash begins an escape
    no_pairs = F.regexp_replace(no_escapes, r"(?i)\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}", "_")
    is_half = (text.contains("\\ud") | text.contains("\\uD")) & no_pairs.rlike(r"(?i)\\ud[89a-f]")
    reasons = [F.when(is_half, F.lit("payload holds half a surrogate pair, which is no character"))]
    is_beyond = _has_number_beyond("float" if _has(body, FloatType) else "double", text)
    exact = _from_json(text, [StructField(field.name, _exact(field.dataType)) for field in body.fields], corrupt)
    for field in body.fields:
        value, exact_value = parsed.getField(field.name), exact.getField(field.name)
        name = field.dataType.simpleString()
        misfit = F.lit(f"{field.name}: holds what {name if '<' in name else name.upper()} cannot hold")
        for first, then in (
            (_any(value, field.dataType, _is_infinite), is_beyond),
            (_any(value, field.dataType, _is_negative_byte), _any(exact_value, field.dataType, _is_no_byte)),
            (
                text.rlike("[0-9]{13}") if _has(field.dataType, TimestampType) else None,
                _any(exact_value, field.dataType, _is_no_time),
            ),
            (_any(value, field.dataType, _repeats_a_key), F.lit(True)),
        ):
            if first is not None and then is not None:
                reasons.append(F.when(first & then, misfit))
    return F.coalesce(*reasons)


Test = Callable[[Column, DataType], Column | None]


def _any(value: Column, kind: DataType, test: Test) -> Column | None:
    """Return whether a test holds for a value or any within it; None if it is about none of these types."""
    outcome = test(value, kind)
    if isinstance(kind, StructType):
        inner = [_any(value.getField(field.name), field.dataType, test) for field in kind.fields]
    elif isinstance(kind, (ArrayType, MapType)):
        of_values, items = (kind.elementType, value) if isinstance(kind, ArrayType) else (
            kind.valueType, F.map_values(value)
        )  # fmt: skip
        is_meant = _any(F.lit(None), of_values, test) is not None
        inner = [F.exists(items, lambda item: _any(item, of_values, test)) if is_meant else None]  # type: ignore[arg-type, return-value]
    else:
        inner = []
    tests = [F.coalesce(column, F.lit(False)) for column in (outcome, *inner) if column is not None]
    return reduce(operator.or_, tests) if tests else None


def _has(kind: DataType, wanted: type[DataType]) -> bool:
    return _any(F.lit(None), kind, lambda value, inner: value if isinstance(inner, wanted) else None) is not None


def _is_infinite(value: Column, kind: DataType) -> Column | None:
    if isinstance(kind, (FloatType, DoubleType)):
        return F.abs(value) == F.lit(math.inf)
    if isinstance(kind, VariantType):
        value = F.to_json(value)
    elif not isinstance(kind, StringType):
        return None
    return value.contains("Infinity")


def _is_negative_byte(value: Column, kind: DataType) -> Column | None:
    return value < 0 if isinstance(kind, ByteType) else None


def _is_no_byte(value: Column, kind: DataType) -> Column | None:
    return value > BYTE_MAX if isinstance(kind, ByteType) else None


def _is_no_time(value: Column, kind: DataType) -> Column | None:
    return F.abs(value.try_cast("decimal(38, 0)")) > SECONDS_MAX if isinstance(kind, TimestampType) else None


def _repeats_a_key(value: Column, kind: DataType) -> Column | None:
    if not isinstance(kind, MapType):
        return None
    keys = F.map_keys(value)
    return F.size(F.array_distinct(keys)) < F.size(keys)


def _exact(kind: DataType) -> DataType:
    """Return a type into which the parser takes the values of a type as they are, as text or as a wider number."""
    if isinstance(kind, ByteType):
        return ShortType()
    if isinstance(kind, TimestampType):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(_exact(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _exact(kind.valueType))
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _exact(field.dataType)) for field in kind.fields])
    return kind


def _has_number_beyond(kind: str, text: Column) -> Column:
    """Return whether JSON has a number, outside of its strings, that is infinite as this type."""
    # In two steps: Java's expressions take a stack frame for each escape if one expression is to see a whole string.
    no_strings = F.regexp_replace(F.regexp_replace(text, r"(?s)\\.", "_"), '"[^"]*"', '""')
    numbers = F.regexp_extract_all(no_strings, F.lit("-?[0-9][-+.0-9eE]*"), F.lit(0))
    return F.exists(numbers, lambda number: F.abs(number.try_cast(kind)) == F.lit(math.inf))


def _misfit(text: Column, field: StructField, corrupt: str) -> Column:
    """Return what is wrong with one field, null if it is not that one: parsed alone, it is bad or not."""
    alone = _from_json(text, [field], corrupt)
    shown = F.substring(F.get_json_object(text, f"$['{field.name}']"), 1, SHOWN_MAX)
    name = field.dataType.simpleString()
    kind = F.lit(f"is not {name if '<' in name else name.upper()}")
    reason = F.concat(F.lit(f"{field.name}: "), F.coalesce(F.concat(shown, F.lit(" "), kind), kind))
    return F.when(alone.getField(corrupt).isNotNull(), reason)


def required_fields(struct: StructType, before: str = "") -> list[str]:
    """Return the paths of fields that must not be null, steps joined by NUL; inside lists and maps none."""
    paths = []
    for field in struct.fields:
        path = f"{before}{field.name}"
        if not field.nullable:
            paths.append(path)
        if isinstance(field.dataType, StructType):
            paths += required_fields(field.dataType, f"{path}\0")
    return paths


def _unused_name(body: StructType) -> str:
    name, taken = "_not_understood", {field.name.lower() for field in body.fields}
    while name in taken:
        name = f"_{name}"
    return name


def _escape(name: str) -> str:
    return name.replace("`", "``")


def _decoded(data: Column, payload: Payload, fields: Fields) -> Column:
    """Return a struct of body and problem, as `records` decodes each payload of Avro or Protobuf."""
    described, skip = (payload.format, fields.schema_file, payload.message), payload.skip_bytes
    body = StructType([StructField(field.name, field.dataType) for field in fields.body.fields])
    kind = StructType([StructField("body", body), StructField("problem", StringType())])
    if not HAS_ARROW_UDF:
        return F.udf(lambda record: records.decode_one(record, records.decoder(*described), skip), kind)(data)
    from pyspark.sql.pandas.functions import arrow_udf

    of_body = arrow_schema(kind).field("body").type

    def decode(payloads: pa.Array) -> pa.Array:
        return records.decode_all(payloads.to_pylist(), records.decoder(*described), skip, of_body)

    made: Column = arrow_udf(decode, kind)(data)  # type: ignore[call-overload]
    return made


def _json_of_msgpack(data: Column) -> Column:
    kind = "text STRING, problem STRING"
    if not HAS_ARROW_UDF:
        return F.udf(_payload_to_json, kind)(data)
    from pyspark.sql.pandas.functions import arrow_udf

    made: Column = arrow_udf(msgpack_to_json, kind)(data)  # type: ignore[call-overload]
    return made


def msgpack_to_json(payloads: pa.Array) -> pa.Array:
    """Return the MessagePack of each payload as JSON text, or the problem. Binary values become base64, as in Spark."""
    texts: list[str | None] = []
    problems: list[str | None] = []
    for payload in payloads:
        text, problem = _payload_to_json(payload.as_py())
        texts.append(text)
        problems.append(problem)
    return pa.StructArray.from_arrays(
        [pa.array(texts, pa.string()), pa.array(problems, pa.string())], names=["text", "problem"]
    )


def _payload_to_json(payload: bytes | None) -> tuple[str | None, str | None]:
    if payload is None:
        return None, "message has no payload"
    try:
        # Lengths are bounded by the payload's own size before anything is allocated for them.
        # Keys that are neither text nor binary are refused by default.
        hook = _refuse_binary_keys if _BINARY.search(payload) else None
        value = msgpack.unpackb(payload, raw=False, timestamp=3, ext_hook=_refuse_ext, object_hook=hook)
        if _NO_NUMBER.search(payload):
            value = _named(value)  # JSON has no such numbers, and they would become null
        return msgspec.json.encode(value).decode(), None
    except msgpack.ExtraData:
        return None, "payload is more than one MessagePack value"
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException, msgspec.MsgspecError):
        return None, "payload is not MessagePack that can be read as fields"


def _named(value: Any) -> Any:
    """Return the value with floats that JSON has no numbers for as texts that Spark takes for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_named(item) for item in value]
    if isinstance(value, dict):
        return {key: _named(item) for key, item in value.items()}
    return value


def _refuse_binary_keys(value: dict[Any, Any]) -> dict[Any, Any]:
    if not all(isinstance(key, str) for key in value):
        raise ValueError("a key is binary: fields have names")
    return value


def _refuse_ext(code: int, data: bytes) -> None:
    raise ValueError(f"extension type {code} means nothing to us")
