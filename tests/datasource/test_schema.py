"""Spark's schemas against ours: what a user schema may pick, and what a write may bring."""

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from datasource.schema import (
    BY_NAME_ONLY,
    MESSAGE_TYPES,
    STREAM_TYPES,
    check_read_schema,
    check_write_schema,
    spark_schema,
)
from storage_core.schema import READ_SCHEMA, read_schema

HEADERS = MESSAGE_TYPES["headers"]


def fields(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def read(schema: StructType) -> pa.Schema:
    return check_read_schema(schema, MESSAGE_TYPES, BY_NAME_ONLY)


def test_schema_of_a_read_is_the_one_that_storage_yields() -> None:
    assert read(spark_schema(MESSAGE_TYPES)).equals(READ_SCHEMA)


def test_user_schema_picks_columns_in_any_order() -> None:
    picked = read(fields(data=BinaryType(), timestamp_ns=LongType(), sequence=LongType()))
    assert picked.equals(read_schema(["data", "timestamp_ns", "sequence"]))


def test_not_null_is_kept_for_columns_that_never_are() -> None:
    picked = read(StructType([StructField("sequence", LongType(), nullable=False)]))
    assert not picked.field("sequence").nullable


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (fields(dat=BinaryType()), "unknown column 'dat'; did you mean 'data'"),
        (fields(payload=BinaryType()), "unknown column 'payload'; there are stream, sequence"),
        (fields(sequence=IntegerType()), "column 'sequence' is int, messages have bigint"),
        (fields(data=StringType()), "column 'data' is string, messages have binary"),
        (fields(timestamp=TimestampNTZType()), "column 'timestamp' is timestamp_ntz, messages have timestamp"),
        (fields(headers=MapType(StringType(), BinaryType())), "column 'headers' is map"),
        (fields(headers=ArrayType(HEADERS.elementType, False)), "with nulls allowed inside"),  # type: ignore[attr-defined]
        (StructType([StructField("data", BinaryType(), False)]), "'data' can be null"),
        (StructType([StructField("data", BinaryType()), StructField("data", BinaryType())]), "given twice"),
        (StructType([]), "picks no column"),
    ],
)
def test_wrong_user_schema_is_refused_with_the_column(schema: StructType, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(schema)


def test_table_of_streams_has_its_own_columns() -> None:
    with pytest.raises(ValueError, match="unknown column 'data'"):
        check_read_schema(fields(data=BinaryType()), STREAM_TYPES, {})


@pytest.mark.parametrize("data", [BinaryType(), StringType(), NullType()])
def test_write_takes_binary_and_text(data: DataType) -> None:
    check_write_schema(fields(data=data), routed=False)


def test_what_was_read_can_be_written() -> None:
    check_write_schema(spark_schema({**MESSAGE_TYPES, **BY_NAME_ONLY}), routed=True)


def test_write_takes_headers_whatever_may_be_null_in_them() -> None:
    pair = StructType([StructField("key", StringType(), False), StructField("value", BinaryType(), False)])
    check_write_schema(fields(data=BinaryType(), headers=ArrayType(pair, False)), routed=False)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (fields(subject=StringType()), "column 'data' is missing"),
        (
            fields(data=BinaryType(), subjet=StringType()),
            "unknown column 'subjet'; did you mean 'subject'.*drop or rename",
        ),
        (fields(data=LongType()), "column 'data' is bigint, valid is binary or string"),
        (fields(data=BinaryType(), msg_id=LongType()), "column 'msg_id' is bigint, valid is string"),
        (fields(data=BinaryType(), headers=ArrayType(StringType())), "column 'headers' is array<string>"),
        (fields(data=BinaryType(), timestamp=TimestampNTZType()), "is timestamp_ntz, valid is timestamp"),
        (StructType([StructField("data", BinaryType()), StructField("data", BinaryType())]), "given twice"),
    ],
)
def test_wrong_write_schema_is_refused_with_the_column(schema: StructType, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_write_schema(schema, routed=False)


def test_write_without_a_stream_needs_the_column() -> None:
    with pytest.raises(ValueError, match="option 'stream' is missing, and no column 'stream'"):
        check_write_schema(fields(data=BinaryType(), timestamp=TimestampType()), routed=True)
