"""Columns of messages, gathered from the records of a block into Arrow arrays."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.foreign.arrays import gather, to_batch, to_strings
from storage_core.foreign.nats.headers import parse_headers
from storage_core.foreign.nats.record import HASH_SIZE, HEAD_SIZE, Records
from storage_core.schema import TIMESTAMP_TYPE, read_schema


def build_batch(
    stream: str, block: pa.Buffer, records: Records, columns: Sequence[str], subjects: pa.StringArray | None = None
) -> pa.RecordBatch:
    """Return the messages as a RecordBatch in schema.read_schema(columns). Only asked columns are gathered.

    `subjects` are those of the records, if they are known by now.
    """
    schema = read_schema(tuple(columns))
    known = {} if subjects is None else {"subject": subjects}
    arrays = [known[name] if name in known else _column(name, stream, block, records) for name in schema.names]
    return to_batch(arrays, schema, len(records))


def subjects_of(block: pa.Buffer, records: Records) -> pa.StringArray:
    return to_strings(gather(block, records.starts + HEAD_SIZE, records.subject_sizes))


def raw_headers(block: pa.Buffer, records: Records) -> pa.BinaryArray:
    """Return the header bytes as the client sent them, of those records that have headers."""
    with_headers = records.take(records.header_sizes >= 0)
    return gather(block, with_headers.header_starts, with_headers.header_sizes)


def _column(name: str, stream: str, block: pa.Buffer, records: Records) -> pa.Array:
    if name == "stream":
        return buffers.repeated(stream, len(records))
    if name == "sequence":
        return buffers.of_numbers(records.sequences)
    if name == "timestamp_ns":
        return buffers.of_numbers(records.times_ns)
    if name == "timestamp":
        return buffers.of_numbers(records.times_ns // 1000, TIMESTAMP_TYPE)
    if name == "subject":
        return subjects_of(block, records)
    if name == "headers":
        return parse_headers(raw_headers(block, records), records.header_sizes >= 0)
    starts = records.header_starts + np.maximum(records.header_sizes, 0)
    return gather(block, starts, records.ends - HASH_SIZE - starts)
