"""A stream as a lazy frame of polars, which DuckDB reads, too: only what a query needs is read.

polars hands over the columns, the number of rows and the filters of a query. Filters on sequence, time and subject
bound the read; polars itself evaluates all of them on the rows, so what is not understood here costs time alone.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from storage_core.schema import FILE_SCHEMA
from storage_core.store.reading.json_fields import check_fields, json_fields
from storage_core.store.reading.plan import ReadRequest
from storage_core.subjects import is_literal

Fields: TypeAlias = pl.Schema | Mapping[str, Any] | pa.Schema
# Reads the columns of what a request names.
Read = Callable[[ReadRequest, Sequence[str]], Iterator[pa.RecordBatch]]

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_SWAPPED = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq", "Eq": "Eq"}
_LARGE = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


def lazy_frame(read: Read, request: ReadRequest, fields: Fields | None) -> pl.LazyFrame:
    """Return the messages of a request, which names one stream, as a lazy frame; `fields`: of their JSON payloads.

    Columns are those of `schema.FILE_SCHEMA`, then the fields. Raises ValueError naming a field.
    """
    decoded = pa.schema([]) if fields is None else _arrow_schema(fields)
    check_fields(decoded, FILE_SCHEMA)

    def batches(
        columns: list[str] | None, predicate: pl.Expr | None, row_count: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        names = columns if columns is not None else [*FILE_SCHEMA.names, *decoded.names]
        used = {*names, *(predicate.meta.root_names() if predicate is not None else ())}
        wanted = pa.schema([field for field in decoded if field.name in used])
        stored = [name for name in FILE_SCHEMA.names if name in used or (name == "data" and len(wanted))]
        for batch in read(narrowed(request, predicate), stored or ["sequence"]):
            table = pa.Table.from_batches([batch])
            if len(wanted):
                for field, column in zip(wanted, json_fields(batch.column("data"), wanted), strict=True):
                    table = table.append_column(field, column)
            frame = pl.DataFrame(table)
            if predicate is not None:
                frame = frame.filter(predicate)
            frame = frame.select(names)
            if row_count is not None:
                frame = frame.head(row_count)
                row_count -= len(frame)
            yield frame
            if row_count == 0:
                return

    empty = pa.schema([*FILE_SCHEMA, *decoded]).empty_table()
    return register_io_source(batches, schema=pl.DataFrame(empty).schema)


def _arrow_schema(fields: Fields) -> pa.Schema:
    """Return the schema in Arrow's types. Raises ValueError for what polars takes for no schema."""
    if isinstance(fields, pa.Schema):
        return fields
    try:
        schema = pl.DataFrame(schema=dict(fields)).to_arrow(compat_level=pl.CompatLevel.oldest()).schema
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"schema: {fields!r} is no schema of polars or Arrow: {error}") from error
    return pa.schema([pa.field(field.name, _narrow(field.type)) for field in schema])


def _narrow(kind: pa.DataType) -> pa.DataType:
    """Return the type with 32-bit offsets, as Arrow reads lists and text from JSON."""
    if pa.types.is_large_list(kind):
        return pa.list_(_narrow(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _narrow(field.type)) for field in kind])
    return _LARGE.get(kind, kind)


# --- filters


def narrowed(request: ReadRequest, predicate: pl.Expr | None) -> ReadRequest:
    """Return a request that leaves out blocks and rows which the filter cannot let through."""
    if predicate is None:
        return request
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except (ValueError, pl.exceptions.PolarsError):  # a function of Python, or a format that polars does not write
        return request
    (stream,) = request.streams
    first, end = request.ranges[stream]
    sequences: list[int | None] = [first, end]
    times: list[int | None] = [None, None]
    subjects = request.subject_filters
    for column, operator, value in _comparisons(tree):
        if column == "subject" and operator == "Eq" and isinstance(value, str) and is_literal(value) and not subjects:
            subjects = (value,)
        elif column == "sequence" and type(value) is int:
            _bound(sequences, operator, value, 1)
        elif column in ("timestamp", "timestamp_ns") and type(value) is int:  # whole microseconds, cut off
            _bound(times, operator, value, 1000 if column == "timestamp" else 1)
    ranges = {stream: (sequences[0], sequences[1])}
    return ReadRequest(request.streams, ranges, times[0], times[1], subjects)


def _bound(bounds: list[int | None], operator: str, value: int, unit: int) -> None:
    """Narrow `[first, end)`, whose numbers are units of the column times `unit`."""
    first = (value + (operator == "Gt")) * unit if operator in ("Gt", "GtEq", "Eq") else None
    end = (value + (operator != "Lt")) * unit if operator in ("Lt", "LtEq", "Eq") else None
    if first is not None:
        bounds[0] = min(max(first, bounds[0] if bounds[0] is not None else INT64_MIN), INT64_MAX)
    if end is not None and end <= INT64_MAX:
        bounds[1] = max(min(end, bounds[1] if bounds[1] is not None else INT64_MAX), INT64_MIN)


def _comparisons(tree: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield (column, operator, value) for each comparison that every row of the result satisfies."""
    match tree:
        case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
            yield from _comparisons(left)
            yield from _comparisons(right)
        case {"BinaryExpr": {"left": {"Column": column}, "op": operator, "right": {"Literal": literal}}}:
            if operator in _SWAPPED:
                yield column, operator, _value(literal)
        case {"BinaryExpr": {"left": {"Literal": literal}, "op": operator, "right": {"Column": column}}}:
            if operator in _SWAPPED:
                yield column, _SWAPPED[operator], _value(literal)
        case {
            "Function": {
                "input": [{"Column": column}, {"Literal": low}, {"Literal": high}],
                "function": {"Boolean": {"IsBetween": {"closed": closed}}},
            }
        }:
            yield column, "GtEq" if closed in ("Both", "Left") else "Gt", _value(low)
            yield column, "LtEq" if closed in ("Both", "Right") else "Lt", _value(high)


def _value(literal: Any) -> int | str | None:
    """Return a whole number, text, or a time in microseconds; None for any other literal."""
    match literal:
        case {"Dyn": {"Int": int(value)}} | {"Scalar": {"Int64": int(value)}} | {"Scalar": {"String": str(value)}}:
            return value
        case {"Scalar": {"Datetime": [int(value), "Microseconds", {"inner": "UTC"}]}}:
            return value
    return None
