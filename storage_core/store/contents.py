"""Questions about what a stream holds: one message, the last of a subject, subjects with counts, times."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from storage_core.block.hashing import msg_id_hashes
from storage_core.errors import DataLossError, StaleIncarnationError, UnavailableError
from storage_core.message_json import message_fields
from storage_core.metadata.reconcile import FAIL
from storage_core.metadata.state import StreamState
from storage_core.quantities import rfc3339
from storage_core.store.ensemble.view import View
from storage_core.store.opened import OpenStore
from storage_core.store.reading.latest import last_sequence
from storage_core.store.reading.plan import ReadRequest, whole_blocks
from storage_core.store.reading.reading import ReadOptions, ask_block, read_slices
from storage_core.store.reading.slices import BlockSlice, BlockSlices
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing.duplicates import msg_ids
from storage_core.subject_columns import match_mask

_MESSAGE_COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it was stored."""

    stream: str
    sequence: int
    subject: str
    timestamp_ns: int
    headers: list[tuple[str, bytes | None]] | None
    data: bytes | None

    def to_json(self, base64: bool = False) -> dict[str, Any]:
        """Return the message in the JSON shape of the command line; `base64`: data and headers are never text."""
        time = rfc3339(self.timestamp_ns)
        return message_fields(self.subject, self.sequence, time, self.headers or (), self.data, base64)


def messages(
    store: OpenStore,
    stream: StreamState,
    first: int,
    end: int,
    subject_filters: tuple[str, ...] = (),
    view: View | None = None,
) -> Iterator[Message]:
    """Yield the messages of [first, end) as values; for people and single messages, not for data that flows."""
    request = ReadRequest((stream.name,), {stream.name: (first, end)}, subject_filters=subject_filters)
    options = ReadOptions(_MESSAGE_COLUMNS, subject_filters=subject_filters)
    for batch in read_slices(slices(store, stream, request, view), options, env=store.environment):
        for row in batch.to_pylist():
            headers = row["headers"]
            pairs = None if headers is None else [(header["key"], header["value"]) for header in headers]
            yield Message(stream.name, row["sequence"], row["subject"], row["timestamp_ns"], pairs, row["data"])


def last_sequence_of(
    store: OpenStore, stream: StreamState, subject_filter: str, view: View | None = None
) -> int | None:
    """Return the sequence of the newest message that the filter takes; None if there is none."""
    request = ReadRequest((stream.name,), subject_filters=(subject_filter,))
    return last_sequence(slices(store, stream, request, view), subject_filter, store.environment)


def first_at_time(
    store: OpenStore, stream: StreamState, time_ns: int, on_data_loss: str = FAIL, view: View | None = None
) -> int | None:
    """Return the first sequence whose time is not before `time_ns`, None if there is none."""
    request = ReadRequest((stream.name,), time_first_ns=time_ns)
    options = ReadOptions(("sequence",), time_first_ns=time_ns, on_data_loss=on_data_loss)
    for batch in read_slices(slices(store, stream, request, view), options, env=store.environment):
        if batch.num_rows:
            return int(batch.column("sequence")[0].as_py())
    return None


def subject_counts(
    store: OpenStore, stream: StreamState, filters: tuple[str, ...], view: View | None = None
) -> dict[str, int]:
    """Return the subjects of the messages that are shown, with their numbers, sorted.

    Blocks that are shown whole and carry counts are answered by their footers, others by their subject column.
    """
    counts: dict[str, int] = {}
    rows = {bytes(row["block_id"]): int(row["row_count"]) for row in stream.blocks.rows}
    for block in slices(store, stream, ReadRequest((stream.name,), subject_filters=filters), view):
        for subject, count in counts_in(store, block, rows[block.block_id]):
            counts[subject] = counts.get(subject, 0) + count
    if filters and counts:
        names = pa.array(list(counts), pa.string())
        taken = match_mask(filters, names).to_pylist()
        counts = {name: counts[name] for name, take in zip(names.to_pylist(), taken, strict=True) if take}
    return dict(sorted(counts.items()))


def counts_in(store: OpenStore, block: BlockSlice, row_count: int) -> list[tuple[str, int]]:
    """Return the subjects of the messages of a slice that are shown; `row_count`: messages of its whole block."""
    is_whole = block.row_count == row_count and not block.removed
    return (_footer_counts(store, block) if is_whole else None) or _column_counts(store, block)


def _footer_counts(store: OpenStore, block: BlockSlice) -> list[tuple[str, int]] | None:
    try:
        counted = ask_block(block, lambda reader: reader.footer.subjects.count_by_subject(), store.environment)
    except (
        DataLossError,
        UnavailableError,
    ):  # perhaps it was merged just now: reading it follows, or says what is wrong
        return None
    return None if counted is None else list(counted.items())


def _column_counts(store: OpenStore, block: BlockSlice) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for batch in read_slices([block], ReadOptions(("subject",)), env=store.environment):
        for pair in batch.column("subject").value_counts().to_pylist():
            counts[pair["values"]] = counts.get(pair["values"], 0) + pair["counts"]
    return list(counts.items())


def find_msg_id(store: OpenStore, view: View, stream: StreamState, msg_id: str) -> int | None:
    """Return the first sequence that carries this msg_id within the duplicate window, None if there is none."""
    wanted = msg_id_hashes(pa.array([msg_id], pa.string()))[0]
    state, rows = view.state, stream.blocks.rows
    rows = rows[rows["msg_id_count"] > 0]
    rows = rows[state.within(rows["committed_ns"], stream.config.duplicate_window, store.environment.now_ns())]
    for block in whole_blocks(state, stream, rows, store.volumes()):
        hashes = ask_block(block, msg_ids, store.environment)
        hits = hashes[(hashes[:, 0] == wanted[0]) & (hashes[:, 1] == wanted[1])]
        if len(hits):
            return block.block_first + int(hits[0, 2])
    return None


def slices(
    store: OpenStore,
    stream: StreamState,
    request: ReadRequest,
    view: View | None = None,
    volumes: Sequence[Volume] = (),
) -> BlockSlices:
    """Return the plan of a read of one stream; raises StaleIncarnationError if it was made again since `stream`.

    `view`, `volumes`: what the caller has just looked at; what is not given is looked at here.
    """
    plan = store.plan(request, view, volumes)
    if plan.ranges[0].incarnation != stream.incarnation:
        raise StaleIncarnationError(f"stream {stream.name!r} was deleted and made again", stream=stream.name)
    return plan.slices
