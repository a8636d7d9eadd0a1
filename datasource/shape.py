"""The batches that Spark gets: the declared columns to the letter, made of the columns that storage yields."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datasource.settings import NULL, ReadSettings, StreamReadSettings
from storage_core import buffers
from storage_core.errors import InvalidMessageError

PLACE = ("stream", "sequence")  # what an error about a message names


@dataclass(frozen=True, slots=True)
class Shape:
    """What a read declared, and what it wants of data that is to be text and is no UTF-8."""

    schema: pa.Schema
    invalid_is_null: bool

    @classmethod
    def of(cls, settings: ReadSettings | StreamReadSettings, schema: pa.Schema) -> "Shape":
        return cls(schema, settings.invalid_utf8 == NULL)

    @property
    def has_text(self) -> bool:
        """Return whether data was declared STRING."""
        return "data" in self.schema.names and pa.types.is_string(self.schema.field("data").type)

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the columns to ask storage for."""
        names = tuple(self.schema.names)
        return (*names, *(name for name in PLACE if name not in names)) if self.has_text else names

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch under exactly the declared schema: Spark reads the memory of a wrong one without a look.

        Only NOT NULL may differ, on columns that are never null. Raises InvalidMessageError for data that is no UTF-8
        and was declared STRING, unless null is to stand for it.
        """
        schema, changed = self.schema, {}
        if self.has_text:
            changed["data"] = self._text(batch)
        if "headers" in schema.names and batch.column("headers").null_count < batch.num_rows:
            changed["headers"] = _without_empty(batch.column("headers"))
        if changed:
            columns = [changed[name] if name in changed else batch.column(name) for name in schema.names]
            batch = pa.RecordBatch.from_arrays(columns, names=schema.names)
        if batch.schema.equals(schema):
            return batch
        if batch.schema.names != schema.names or batch.schema.types != schema.types:
            raise TypeError(f"storage returned columns {batch.schema} where {schema} was declared")
        for column, declared in zip(batch.columns, schema, strict=True):
            if not declared.nullable and column.null_count:
                raise TypeError(f"storage returned nulls in column {declared.name!r}, which is declared NOT NULL")
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    def _text(self, batch: pa.RecordBatch) -> pa.StringArray:
        """Return the data as text; the bytes are looked at, not copied."""
        data = batch.column("data")
        try:
            return data.cast(pa.string())
        except pa.ArrowInvalid:
            invalid = np.array([value is not None and not _is_utf8(value) for value in data.to_pylist()])
            if not invalid.any():
                raise
        if not self.invalid_is_null:
            row = int(invalid.argmax())
            stream, sequence = (batch.column(name)[row].as_py() for name in PLACE)
            raise InvalidMessageError(
                f"stream {stream!r}, sequence {sequence}: the data is no UTF-8, and the schema declares it STRING: "
                "declare it BINARY, or set option invalidUtf8=null",
                stream=stream,
                sequence=sequence,
            )
        nothing = pa.nulls(1, data.type)[0]
        return pc.if_else(buffers.of_bits(invalid), nothing, data).cast(pa.string())


def _without_empty(headers: pa.ListArray) -> pa.ListArray:
    """Return the headers with null for empty ones: Spark makes an array of each empty list, and nothing of a null."""
    ends = np.frombuffer(headers.buffers()[1], np.int32, len(headers) + 1, headers.offset * 4)
    none = buffers.nulls(headers) | (np.diff(ends) == 0)
    if int(none.sum()) == headers.null_count:
        return headers
    validity = pa.py_buffer(np.packbits(~none, bitorder="little"))
    parts = [validity, pa.py_buffer(np.ascontiguousarray(ends))]
    return pa.Array.from_buffers(headers.type, len(headers), parts, int(none.sum()), children=[headers.values])


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
