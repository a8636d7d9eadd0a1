"""An import that goes on: of a source that has only grown since it was imported, what is new is appended."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from storage_core.files import Files
from storage_core.foreign import ForeignDamage, ForeignStore, read_foreign_slice
from storage_core.metadata.state import StreamState
from storage_core.store.imports.assembly import PlannedStream
from storage_core.store.store import Store
from storage_core.store.writing.appends import WriterBatch

COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")
WRITER = "jstream import goes on"
_APPEND_SIZE = 64 << 20  # bytes of one append


def go_on(
    store: Store, source: ForeignStore, planned: PlannedStream, existing: StreamState, files: Files
) -> dict[str, Any] | None:
    """Append what the source has beyond the stream, and return a report; None if it is not the same source, grown.

    It is if the stream came from one of that name, nothing was removed of its end, and the source has its last message
    with the same time, subject and data.
    """
    metadata, first = existing.config.metadata, existing.next_sequence
    is_same = metadata.get("jstream.layout") == planned.layout and metadata.get("jstream.name") == planned.foreign
    shown = existing.shown()
    writer, source_id = existing.writers.get(WRITER), planned.source.hex()
    is_done = writer is not None and any(batch.startswith(source_id) for batch in writer.batches)
    if not is_same or not len(shown) or (planned.bounds[1] <= first and not is_done):
        return None
    last = int(shown.ends[-1]) - 1
    stream = store.stream(existing.name)
    ours = stream.read(last, last + 1, COLUMNS, on_data_loss="continue").read_all().to_pylist()
    theirs = [row for batch in _rows(source, planned, last, last + 1, files, []) for row in batch.to_pylist()]
    if not ours or _normal(ours) != _normal(theirs):
        return None
    damage: list[ForeignDamage] = []
    count = 0
    for batches in _gathered(_rows(source, planned, first, None, files, damage)):
        sequences = batches[0].column(0)[0].as_py(), batches[-1].column(0)[-1].as_py()
        stream.restore(batches, WriterBatch(WRITER, f"{source_id}-{sequences[0]}-{sequences[1]}"))
        count += sum(map(len, batches))
    state = stream.state()
    end = planned.bounds[1]
    return {
        "name": existing.name,
        "source": planned.foreign,
        "account": planned.account,
        "already": is_done and not count,
        "incarnation": existing.incarnation.hex(),
        "first_seq": first,
        "last_seq": state.next_sequence - 1,
        "read": count,
        "messages": count,
        "bytes": state.data_size - existing.data_size,
        "holes": state.next_sequence - first - count,
        "lost": 0,
        "lost_ranges": [],
        "damaged": sum(each.costs for each in damage),
        "blocks": len(state.blocks) - len(existing.blocks),
        "num_replicas": existing.config.num_replicas,
        "consumers": [],
        "notes": [
            f"it was imported before up to sequence {first - 1}: what came since was appended; consumers stay",
            *([f"{each.file}: {each.reason}" for each in damage]),
            *([f"the source ends at {end - 1}"] if end > state.next_sequence else []),
        ],
    }


def _rows(
    source: ForeignStore,
    planned: PlannedStream,
    first: int,
    end: int | None,
    files: Files,
    damage: list[ForeignDamage],
) -> Iterator[pa.RecordBatch]:
    for part in source.plan(planned.foreign, COLUMNS, first=first, end=end):
        for batch in read_foreign_slice(part, COLUMNS, damage.append, files):
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
