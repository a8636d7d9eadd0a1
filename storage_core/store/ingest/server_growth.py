"""An import of a source that has only grown since it was imported: what is new is appended."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from storage_core.files import Files
from storage_core.foreign import ForeignStore, open_foreign_slices
from storage_core.metadata.manifest import Table
from storage_core.metadata.reconcile import CONTINUE
from storage_core.metadata.shared_map import SharedMap
from storage_core.metadata.state import StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.ingest.assembly import Assembled
from storage_core.store.ingest.server_parts import COLUMNS, PartReading
from storage_core.store.ingest.server_streams import ServerStream
from storage_core.store.opened import OpenStore
from storage_core.store.stream import Stream
from storage_core.store.writing.appends import WriterBatch

WRITER = "jstream import goes on"
_APPEND_SIZE = 64 << 20  # bytes of one append


def append_growth(
    store: OpenStore, source: ForeignStore, planned: ServerStream, existing: StreamState, files: Files
) -> Assembled | None:
    """Append what the source has beyond the stream, and return that alone, without a record if it was done before.

    Return None if it is not the same source, grown. It is if the stream came from one of that name, nothing was removed
    of its end, and the source has its last message with the same time, subject and data. Raises DataLossError as an
    import does; what was appended before stays.
    """
    metadata, first = existing.config.metadata, existing.next_sequence
    is_same = metadata.get("jstream.layout") == planned.layout and metadata.get("jstream.name") == planned.foreign
    shown = existing.shown()
    writer, source_id = existing.writers.get(WRITER), planned.digest.hex()
    is_done = writer is not None and any(batch.startswith(source_id) for batch in writer.batches)
    if not is_same or not len(shown) or (planned.bounds[1] <= first and not is_done):
        return None
    last = int(shown.ends[-1]) - 1
    stream = Stream(store, existing.incarnation, existing.name)
    ours = stream.read(last, last + 1, COLUMNS, on_data_loss="continue").read_all().to_pylist()
    reading = PartReading(CONTINUE)
    theirs = [row for batch in _rows(source, planned, last, last + 1, files, reading) for row in batch.to_pylist()]
    if not ours or _normal(ours) != _normal(theirs):
        return None
    reading = PartReading(planned.on_data_loss)
    for batches in _gathered(_rows(source, planned, first, None, files, reading)):
        sequences = batches[0].column(0)[0].as_py(), batches[-1].column(0)[-1].as_py()
        stream.restore(batches, WriterBatch(WRITER, f"{source_id}-{sequences[0]}-{sequences[1]}"))
    record = reading.record(existing.incarnation, planned.digest, 0)
    state, end = stream.state(), planned.bounds[1]
    notes = [f"it was imported before up to sequence {first - 1}: what came since was appended; consumers stay"]
    if end > state.next_sequence:
        notes.append(f"the source ends at {end - 1}")
    grown = replace(
        state,
        low_watermark=first,
        message_count=reading.read_count,
        data_size=state.data_size - existing.data_size,
        lost=SequenceSet.decode(record.lost).clip(first, state.next_sequence),
        blocks=Table.of(state.blocks.rows[len(existing.blocks) :]),
        consumers=SharedMap({}),
    )
    return Assembled(grown, notes=tuple(notes), records=() if is_done and not reading.read_count else (record,))


def _rows(
    source: ForeignStore, planned: ServerStream, first: int, end: int | None, files: Files, reading: PartReading
) -> Iterator[pa.RecordBatch]:
    for part in open_foreign_slices(source.plan(planned.foreign, COLUMNS, first=first, end=end), files):
        for batch in reading.read(part, files):
            if len(batch):
                yield batch


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        gathered.append(batch)
        size += batch.nbytes
        if size >= _APPEND_SIZE:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


def _normal(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "headers": row["headers"] or [], "data": row["data"] or b""} for row in rows]
