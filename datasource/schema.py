"""Spark's schemas and ours: what a read offers, which columns a user schema picks, what a write takes.

Spark does not prune columns for Python sources, so a user schema is how a read decodes and sends fewer. Spark
accepts any schema without a look, and checks the first batch at most: everything is checked here, on the driver.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from datasource.spark_versions import arrow_schema
from storage_core.suggestions import instead

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

MESSAGE_TYPES: dict[str, DataType] = {
    "stream": StringType(),
    "sequence": LongType(),
    "subject": StringType(),
    "timestamp": TimestampType(),
    "headers": _HEADERS,
    "data": BinaryType(),
}
BY_NAME_ONLY: dict[str, DataType] = {"timestamp_ns": LongType()}  # offered to those who name it
TEXT: dict[str, DataType] = {"data": StringType()}  # what columns may be declared as besides
NEVER_NULL = ("stream", "sequence", "subject", "timestamp", "timestamp_ns")

STREAM_TYPES: dict[str, DataType] = {
    "stream": StringType(),
    "subjects": ArrayType(StringType()),
    "messages": LongType(),
    "bytes": LongType(),
    "first_sequence": LongType(),
    "last_sequence": LongType(),
    "first_timestamp": TimestampType(),
    "last_timestamp": TimestampType(),
    "num_deleted": LongType(),
    "num_replicas": IntegerType(),
    "compression": StringType(),
    "incarnation": StringType(),
    "description": StringType(),
    "lost_ranges": ArrayType(StructType([StructField("first", LongType()), StructField("end", LongType())])),
    "replicas": ArrayType(
        StructType(
            [
                StructField("name", StringType()),
                StructField("state", StringType()),
                StructField("current", BooleanType()),
                StructField("lag", LongType()),
                StructField("damaged_blocks", LongType()),
                StructField("last_scrub", TimestampType()),
                StructField("path", StringType()),
            ]
        )
    ),
}

# The columns that a foreign store's consumers have as well mean the same there.
CONSUMER_TYPES: dict[str, DataType] = {
    "stream": StringType(),
    "consumer": StringType(),
    "delivered": LongType(),
    "ack_floor": LongType(),
    "num_ack_pending": LongType(),
    "num_redelivered": LongType(),
    "num_pending": LongType(),
    "num_skipped": LongType(),
    "lag_messages": LongType(),
    "lag_seconds": DoubleType(),
    "oldest_sequence": LongType(),
    "oldest_timestamp": TimestampType(),
    "paused": BooleanType(),
    "problem": StringType(),
    "pending": ArrayType(LongType()),
    "redelivered": ArrayType(StructType([StructField("sequence", LongType()), StructField("count", LongType())])),
    "created": TimestampType(),
    "incarnation": StringType(),
    "config": StringType(),
}

EVENT_TYPES: dict[str, DataType] = {
    "time": TimestampType(),
    "kind": StringType(),
    "stream": StringType(),
    "consumer": StringType(),
    "volume": StringType(),
    "before": StringType(),
    "after": StringType(),
    "reason": StringType(),
    "count": LongType(),
    "last_time": TimestampType(),
}

DAMAGE_TYPES: dict[str, DataType] = {
    "stream": StringType(),
    "volume": StringType(),
    "file": StringType(),
    "offset_bytes": LongType(),
    "first": LongType(),
    "end": LongType(),
    "reason": StringType(),
    "repaired": BooleanType(),
}

# Those of a store that another server wrote (storage_core/foreign/slices.py and consumers.py).
FOREIGN_STREAM_TYPES: dict[str, DataType] = {
    "stream": StringType(),
    "account": StringType(),
    "path": StringType(),
    "subjects": ArrayType(StringType()),
    "messages": LongType(),
    "bytes": LongType(),
    "blocks": LongType(),
    "first_sequence": LongType(),
    "last_sequence": LongType(),
    "consumers": LongType(),
    "compression": StringType(),
    "encrypted": BooleanType(),
    "source": StringType(),
    "problem": StringType(),
    "config": StringType(),
}
FOREIGN_CONSUMER_TYPES: dict[str, DataType] = {
    "stream": StringType(),
    "account": StringType(),
    "consumer": StringType(),
    "is_durable": BooleanType(),
    "delivered": LongType(),
    "ack_floor": LongType(),
    "num_ack_pending": LongType(),
    "num_redelivered": LongType(),
    "pending": ArrayType(LongType()),
    "redelivered": ArrayType(StructType([StructField("sequence", LongType()), StructField("count", LongType())])),
    "config": StringType(),
    "file": StringType(),
}
FOREIGN_DAMAGE_TYPES: dict[str, DataType] = {
    "stream": StringType(),
    "account": StringType(),
    "file": StringType(),
    "offset_bytes": LongType(),
    "end_bytes": LongType(),
    "first": LongType(),
    "end": LongType(),
    "lost_count": LongType(),
    "open": BooleanType(),
    "served": BooleanType(),
    "costs": BooleanType(),
    "reason": StringType(),
    "description": StringType(),
}

WRITE_TYPES: dict[str, tuple[DataType, ...]] = {
    "data": (BinaryType(), StringType()),
    "subject": (StringType(),),
    "headers": (_HEADERS,),
    "msg_id": (StringType(),),
    "timestamp": (TimestampType(),),
    "timestamp_ns": (LongType(),),
    "stream": (StringType(),),
    "sequence": (LongType(), IntegerType()),
}


def spark_schema(types: Mapping[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def pick_columns(columns: Sequence[str], types: Mapping[str, DataType]) -> StructType:
    """Return the schema of the columns that the option names; raises ValueError for one that is unknown."""
    for name in columns:
        if name not in types:
            raise ValueError(f"option 'columns': unknown column {name!r}{instead(name, types)}")
    return spark_schema({name: types[name] for name in columns})


def check_read_schema(
    schema: StructType,
    types: Mapping[str, DataType],
    extra: Mapping[str, DataType],
    others: Mapping[str, DataType] | None = None,
) -> pa.Schema:
    """Return the Arrow schema that batches must have, to the letter, for the columns that `schema` picks.

    `others`: types that columns may be declared with instead of their own.
    Raises ValueError naming a column that is unknown, given twice, or of another type than it has.
    """
    known = {**types, **extra}
    if not schema.fields:
        raise ValueError(f"schema: it picks no column; there are {', '.join(known)}")
    seen: set[str] = set()
    for field in schema.fields:
        if field.name not in known:
            raise ValueError(f"schema: unknown column {field.name!r}{instead(field.name, known)}")
        if field.name in seen:
            raise ValueError(f"schema: column {field.name!r} is given twice")
        seen.add(field.name)
        alternative = (others or {}).get(field.name)
        if field.dataType not in (known[field.name], alternative):
            nulls = ", with nulls allowed inside" if _same_type(field.dataType, known[field.name]) else ""
            kinds = f"{field.dataType.simpleString()}, messages have {_offered(known[field.name], alternative)}{nulls}"
            raise ValueError(f"schema: column {field.name!r} is {kinds}")
        if not field.nullable and field.name not in NEVER_NULL:
            raise ValueError(f"schema: column {field.name!r} can be null, declare it without NOT NULL")
    return arrow_schema(schema)


def check_write_schema(schema: StructType, routed: bool) -> None:
    """Check what a DataFrame brings to be written; `routed` is whether the column `stream` names each row's stream.

    Raises ValueError naming a column that is missing, unknown, given twice or of a type that is not taken.
    """
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        if field.name not in WRITE_TYPES:
            raise ValueError(f"unknown column {field.name!r}{instead(field.name, WRITE_TYPES)} (drop or rename it)")
        if names.count(field.name) > 1:
            raise ValueError(f"column {field.name!r} is given twice")
        taken = WRITE_TYPES[field.name]
        # A column of nothing but NULL (`lit(None)`) has a type of its own, and stands for the column left out.
        if not isinstance(field.dataType, NullType) and not any(
            _same_type(field.dataType, data_type) for data_type in taken
        ):
            kinds = " or ".join(data_type.simpleString() for data_type in taken)
            raise ValueError(f"column {field.name!r} is {field.dataType.simpleString()}, valid is {kinds}")
    if "data" not in names:
        raise ValueError("column 'data' is missing: the message, binary or string")
    if routed and "stream" not in names:
        raise ValueError("option 'stream' is missing, and no column 'stream' names the stream of each row")


def _same_type(data_type: DataType, other: DataType) -> bool:
    """Return whether the types are equal, whatever may be null inside them."""
    if isinstance(data_type, ArrayType) and isinstance(other, ArrayType):
        return _same_type(data_type.elementType, other.elementType)
    if isinstance(data_type, StructType) and isinstance(other, StructType):
        return data_type.names == other.names and all(
            _same_type(left.dataType, right.dataType)
            for left, right in zip(data_type.fields, other.fields, strict=True)
        )
    return data_type == other


def _offered(kind: DataType, alternative: DataType | None) -> str:
    return kind.simpleString() if alternative is None else f"{kind.simpleString()} or {alternative.simpleString()}"
