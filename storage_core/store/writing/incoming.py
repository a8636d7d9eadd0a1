"""What `Stream.append` and `publish` are given, as record batches: tables of any library, or rows.

A table comes by Arrow's C stream interface (`__arrow_c_stream__`: pandas, polars, DuckDB, Arrow itself), batch by batch
and without a copy.
"""

import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from storage_core.errors import InvalidMessageError
from storage_core.schema import HEADERS_TYPE, TIMESTAMP_TYPE
from storage_core.store.writing.messages import check_write_schema

ROWS_MAX = 4096  # rows given as dicts that make one batch
ROW_TYPES = {
    "data": pa.binary(),
    "subject": pa.string(),
    "headers": HEADERS_TYPE,
    "msg_id": pa.string(),
    "timestamp": TIMESTAMP_TYPE,
    "timestamp_ns": pa.int64(),
    "stream": pa.string(),
    "sequence": pa.int64(),
}
_VALID = {  # values of a row, for messages
    "data": "bytes or text",
    "subject": "text",
    "headers": "a dict or a list of pairs; keys are text, values text or bytes",
    "msg_id": "text",
    "timestamp": "a datetime",
    "timestamp_ns": "a whole number of nanoseconds since 1970",
    "stream": "text",
    "sequence": "a whole number",
}
_INDEX_OF_PANDAS = re.compile(r"__index_level_\d+__")  # what pandas calls an index without a name


@runtime_checkable
class ArrowStream(Protocol):
    """Anything that gives its batches by Arrow's C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


Rows = Iterable[Mapping[str, Any]]
Given: TypeAlias = ArrowStream | pa.RecordBatch | Rows | Iterable[ArrowStream | pa.RecordBatch]


def batches(stream: str, given: object) -> Iterator[pa.RecordBatch]:
    """Yield what was given as record batches in write columns, without a column `stream`.

    Raises ValueError for what is no table, and for columns that messages do not have; InvalidMessageError for a row.
    """
    for batch in _batches(stream, given):
        check_write_schema(batch.schema, with_stream=False)
        # What was read of one stream can be written to another.
        yield batch.drop_columns(["stream"]) if "stream" in batch.schema.names else batch


def _batches(stream: str, given: object) -> Iterator[pa.RecordBatch]:
    if isinstance(given, pa.RecordBatch):
        yield _decoded(given)
    elif isinstance(given, ArrowStream):
        yield from _of_arrow(given)
    elif isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise ValueError(f"append: {type(given).__name__} is not {TAKEN}")
    else:
        parts = iter(given)
        for part in parts:
            if isinstance(part, Mapping):
                yield from _of_rows(stream, chain([part], parts))
            elif isinstance(part, (pa.RecordBatch, ArrowStream)):
                yield from _batches(stream, part)
            else:
                raise ValueError(f"append: {type(part).__name__} is not {TAKEN}")


TAKEN = (
    "a table (of pyarrow, pandas, polars, DuckDB, or anything else with __arrow_c_stream__), an iterable of tables, "
    "or an iterable of dicts"
)


def _of_arrow(table: ArrowStream) -> Iterator[pa.RecordBatch]:
    try:
        reader = pa.RecordBatchReader.from_stream(table)
        index = [name for name in reader.schema.names if _INDEX_OF_PANDAS.fullmatch(name)]
        kept = pa.schema([field for field in without_dictionaries(reader.schema) if field.name not in index])
        check_write_schema(kept, with_stream=False)
        for batch in reader:
            yield _decoded(batch.drop_columns(index) if index else batch)
    except pa.ArrowException as error:
        raise ValueError(f"append: {type(table).__name__} gives no table: {error}") from error


def without_dictionaries(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the type of the values for categories, as pandas, polars and DuckDB's enums have them."""
    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field for field in schema
    ]
    return pa.schema(fields)


def _decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    plain = without_dictionaries(batch.schema)
    return batch if plain.equals(batch.schema) else batch.cast(plain)


def _of_rows(stream: str, rows: Iterator[object]) -> Iterator[pa.RecordBatch]:
    """Yield batches of rows; `columns` of a batch are those that any of its rows has."""
    first = 0
    while part := list(islice(rows, ROWS_MAX)):
        for row in part:
            if not isinstance(row, Mapping):
                raise ValueError(f"append: {type(row).__name__} among rows that are dicts")
        yield batch_of_rows(stream, part, first)
        first += len(part)


def batch_of_rows(stream: str, rows: Sequence[Any], first: int = 0) -> pa.RecordBatch:
    """Return rows as a batch; raises InvalidMessageError naming row (they count from `first`) and column."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    check_write_schema(pa.schema([(str(name), ROW_TYPES.get(name, pa.null())) for name in names]), with_stream=False)
    columns = {}
    for name in names:
        try:
            values = [_value(name, row) for row in rows]
            columns[name] = pa.array(values, ROW_TYPES[name])
        except _ERRORS:
            for position, row in enumerate(rows):
                try:
                    pa.array([_value(name, row)], ROW_TYPES[name])
                except _ERRORS as error:
                    raise InvalidMessageError(
                        f"stream {stream!r}: message {first + position} cannot be stored: {name}: "
                        f"{_reason(name, row.get(name), error)}",
                        stream=stream,
                        row=first + position,
                    ) from error
            raise
    return pa.RecordBatch.from_pydict(columns)


_ERRORS = (pa.ArrowException, OverflowError, TypeError, ValueError)


def _reason(name: str, value: object, error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object!r} is not UTF-8"
    if not isinstance(error, (pa.ArrowException, OverflowError)):
        return str(error)
    json = "; json.dumps makes text of it" if name == "data" and isinstance(value, (Mapping, list)) else ""
    return f"{reprlib.repr(value)} is not {_VALID[name]}{json}"


def _value(name: str, row: Mapping[str, Any]) -> Any:
    if name == "data" and name not in row:
        raise ValueError("the row has none; None stores a message without data")
    value = row.get(name)
    return _pairs(value) if name == "headers" and value is not None else value


def _pairs(headers: Any) -> list[dict[str, Any]]:
    """Return headers as rows. Two letters would unpack as a pair as well."""
    if isinstance(headers, str | bytes) or not isinstance(headers, Iterable):
        raise TypeError(f"headers are a dict or a list of pairs (key, value), not {headers!r}")
    pairs = []
    for header in headers.items() if isinstance(headers, Mapping) else headers:
        if isinstance(header, Mapping) and set(header) == {"key", "value"}:  # as messages are read
            pairs.append({"key": header["key"], "value": header["value"]})
        elif isinstance(header, (tuple, list)) and len(header) == 2:
            pairs.append({"key": header[0], "value": header[1]})
        else:
            raise TypeError(f"headers are a dict or a list of pairs (key, value), not a list with {header!r}")
    return pairs
