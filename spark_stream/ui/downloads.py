"""Messages as a file: Parquet or JSON lines, of a range of sequences, with bounds. The rest is `jstream export`."""

import io
from collections.abc import Iterator

import pyarrow as pa
from pyarrow.parquet import ParquetWriter
from starlette.responses import Response, StreamingResponse

from spark_stream.look.messages import PRINTED_COLUMNS, json_lines
from spark_stream.ui.query import Query
from spark_stream.ui.site import Site
from storage_core.schema import READ_SCHEMA
from storage_core.store.contents import slices
from storage_core.store.reading.plan import ReadRequest
from storage_core.store.reading.reading import SKIP, ReadOptions, read_slices
from storage_core.store.stream import check_filters

FORMATS = ("jsonl", "parquet")
MESSAGE_COUNT_MAX = 100_000
SIZE_MAX = 64 << 20  # bytes of messages


def download(site: Site, query: Query, name: str) -> Response:
    """Return messages [first, end), by default the newest, up to the bounds; what is lost is left out.

    Raises NotFoundError, ValueError.
    """
    store, kind = site.store(), query.choice("format", FORMATS)
    stream = store.stream_state(name)
    end = min(query.number("end", stream.next_sequence) or stream.next_sequence, stream.next_sequence)
    first = max(query.number("first", stream.first_sequence) or 1, end - MESSAGE_COUNT_MAX)
    filters = check_filters(query.text("subject") or None)
    columns = PRINTED_COLUMNS if kind == "jsonl" else tuple(READ_SCHEMA.names)
    request = ReadRequest((name,), {name: (first, max(first, end))}, subject_filters=filters)
    options = ReadOptions(columns, subject_filters=filters, on_loss=SKIP)
    found = read_slices(slices(store, stream, request), options, env=store.environment)
    batches = _bounded(found)
    file_name = f"{first}-{max(first, end) - 1}.{kind}"
    headers = {"Content-Disposition": f'attachment; filename="messages-{file_name}"'}
    if kind == "jsonl":
        lines = (json_lines(part).encode() for batch in batches for part in _parts(batch))
        return StreamingResponse(lines, headers=headers, media_type="application/x-ndjson")
    file = io.BytesIO()
    with ParquetWriter(file, READ_SCHEMA, compression="zstd") as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_batches([batch], READ_SCHEMA))
    return Response(file.getvalue(), headers=headers, media_type="application/vnd.apache.parquet")


def _bounded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    size = 0
    for batch in batches:
        yield batch
        size += batch.nbytes
        if size > SIZE_MAX:
            return


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for at in range(0, batch.num_rows, 1000):
        yield batch.slice(at, 1000)
