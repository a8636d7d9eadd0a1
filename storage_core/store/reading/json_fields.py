"""Fields of JSON payloads as Arrow columns, decoded by Arrow over whole batches.

A payload that is no JSON object, or has a field of another type than the schema says, has null in each column, as in
the permissive mode of Spark's `from_json`; the rows around it are not affected.
"""

import io

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

# Each payload gets this field with the number of its row, so that a payload that is half an object, or two of them,
# cannot move the rows behind it.
_ROW = "jstream row number"
_OBJECT = r"(?s)^\s*\{(?P<fields>.*)$"
_EMPTY = r"(?s)^\s*\{\s*\}\s*$"
_BLOCK_SIZE_MIN = 1 << 20  # bytes; Arrow wants an object to fit into a block


def check_fields(fields: pa.Schema, taken: pa.Schema) -> None:
    """Raise ValueError naming a field that cannot be decoded, or that has the name of a column in `taken`."""
    for field in fields:
        if field.name in taken.names or field.name == _ROW:
            raise ValueError(f"schema: {field.name!r} is a column of every message; rename it after the read")
        if fields.names.count(field.name) > 1:
            raise ValueError(f"schema: field {field.name!r} is given twice")
        try:
            _parsed(pa.array([b"{}"]), pa.schema([field]))
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise ValueError(f"schema: field {field.name!r} cannot be read from JSON as {field.type}") from error


def json_fields(payloads: pa.Array, fields: pa.Schema) -> list[pa.Array]:
    """Return one column for each field, in order and as long as `payloads`, an array of binary."""
    table = pa.Table.from_batches([], pa.schema([pa.field(_ROW, pa.int64()), *fields]))
    parts = pc.extract_regex(payloads, _OBJECT)
    is_wanted = pc.and_(parts.is_valid(), pc.invert(pc.fill_null(pc.match_substring_regex(payloads, _EMPTY), True)))
    rows = np.flatnonzero(is_wanted.to_numpy(zero_copy_only=False))
    if len(rows):
        prefixes = pc.binary_join_element_wise(f'{{"{_ROW}":', pc.cast(pa.array(rows), pa.string()), ",", "")
        objects = pc.binary_join_element_wise(
            pc.cast(prefixes, pa.binary()), pc.struct_field(parts.take(pa.array(rows)), [0]), b""
        )
        table = pa.concat_tables([table, *_decoded(objects, rows, table.schema)])
    place = np.full(len(payloads), -1, np.int64)
    place[table.column(0).to_numpy()] = np.arange(table.num_rows)
    indices = pa.array(place, mask=place < 0)
    return [column.combine_chunks().take(indices) for column in table.columns[1:]]


def _decoded(objects: pa.Array, rows: np.ndarray, schema: pa.Schema) -> list[pa.Table]:
    """Return the objects that can be decoded; a part that has others is halved until these are alone."""
    try:
        table = _parsed(objects, schema)
        if np.array_equal(table.column(0).to_numpy(), rows):
            return [table]
    except pa.ArrowInvalid:
        pass
    if len(rows) == 1:
        return []
    half = len(rows) // 2
    return [*_decoded(objects[:half], rows[:half], schema), *_decoded(objects[half:], rows[half:], schema)]


def _parsed(objects: pa.Array, schema: pa.Schema) -> pa.Table:
    """Return what Arrow reads from JSON objects; raises ArrowInvalid if it cannot read one of them."""
    lines = pc.binary_join(pa.ListArray.from_arrays([0, len(objects)], objects), b"\n")[0].as_buffer()
    table = json.read_json(
        io.BytesIO(lines),
        json.ReadOptions(use_threads=False, block_size=max(_BLOCK_SIZE_MIN, lines.size + 1)),
        json.ParseOptions(explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore"),
    )
    table.validate(full=True)  # text that is not UTF-8 comes as it is
    return table
