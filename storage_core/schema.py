"""Columns of messages: as stored in frames, as read, and as written.

Nested names and nullability are those that Spark gives an array of structs, so that a batch that was read from a
block goes to Spark as it is. All timestamps are UTC.
"""

import pyarrow as pa

from storage_core.suggestions import did_you_mean

HEADERS_TYPE = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")

# What a frame holds. Sequences are not stored a row: they follow from the block's runs and the commit.
FRAME_SCHEMA = pa.schema(
    [
        pa.field("subject", pa.string()),
        pa.field("timestamp_ns", pa.int64()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("data", pa.binary()),
    ]
)

# What readers get, in this order, unless they ask for other columns.
READ_SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("subject", pa.string()),
        pa.field("timestamp", TIMESTAMP_TYPE),
        pa.field("headers", HEADERS_TYPE),
        pa.field("data", pa.binary()),
    ]
)
TIMESTAMP_NS_FIELD = pa.field("timestamp_ns", pa.int64())  # offered to readers who name it
FILE_SCHEMA = READ_SCHEMA.append(TIMESTAMP_NS_FIELD)  # of a Parquet file, which gives a message back as it was

READ_FIELDS = {field.name: field for field in [*READ_SCHEMA, TIMESTAMP_NS_FIELD]}


def read_schema(columns: list[str] | tuple[str, ...] | None) -> pa.Schema:
    """Return the schema of a read that asks for `columns` in that order; None asks for READ_SCHEMA.

    Raises ValueError naming a column that messages do not have, or that is asked for twice.
    """
    if columns is None:
        return READ_SCHEMA
    for name in columns:
        if name not in READ_FIELDS:
            raise ValueError(
                f"column {name!r}: messages have {', '.join(READ_FIELDS)}{did_you_mean(str(name), READ_FIELDS)}"
            )
        if columns.count(name) > 1:
            raise ValueError(f"column {name!r} is asked for twice")
    return pa.schema([READ_FIELDS[name] for name in columns])
