"""Delete markers: what a stream with `subject_delete_marker_ttl` gets where time took the last message of a subject.

A marker is a message of that subject, without data, that says so in its headers and has a time to live itself. It
comes in the entry that removes the message in whose place it is: no crash leaves one without the other, or two. The
session that expires messages works that out, by one look at the clock and before anything else of them goes.

A subject gets one if none of its messages is left, whatever their order; but none after a marker, or what says to be
one.

Source: nats-server 2.15, whose streams do the same; ADR-43 of NATS.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.block.hashing import msg_id_hashes
from storage_core.metadata.config import StreamConfig
from storage_core.metadata.state import StoreState, StreamState
from storage_core.schema import HEADERS_TYPE
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.session import Session
from storage_core.store.reading.plan import ReadRequest, plan_stream
from storage_core.store.reading.reading import ReadOptions, read_slices
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing import expiry, instructions
from storage_core.store.writing.limits import Limits
from storage_core.store.writing.per_subject import FILTERS_MAX, SubjectIndex

MARKERS_AT_ONCE_MAX = 1 << 16  # of one entry
REASON = "Nats-Marker-Reason"
KV_OPERATION, KV_PURGE = "KV-Operation", b"PURGE"
_ROWS_WAITING_MIN = 1 << 16
_SCHEMA = pa.schema([("subject", pa.string()), ("count", pa.int64()), ("place", pa.int64())])


def due(session: Session, stream: StreamState, limits: Limits, subjects: SubjectIndex, now_ns: int) -> pa.Table:
    """Return the messages that markers are to take the place of, in order: columns `subject` and `sequence`.

    Raises DataLossError, UnavailableError if a block cannot be read: what is over then waits.
    """
    state, volumes = session.state, session.volumes
    over = limits.old(state, stream, volumes, now_ns)
    expired = expiry.command(state, stream, volumes, limits, now_ns)
    if expired is not None:
        over = over.union(SequenceSet.decode(expired.sequences))
    last = _last_of_subjects(state, stream, volumes, limits, over)
    last = last.filter(buffers.of_bits(_numbers(last, "place") % 2 == 0))
    if not len(last):
        return _table(last)
    names = last["subject"].combine_chunks()
    filters = names.to_pylist() if len(names) <= FILTERS_MAX else None
    shown = subjects.counts(session, stream, msg_id_hashes(names), filters)
    return _table(last.filter(buffers.of_bits(_numbers(last, "count") == shown)))


def _table(last: pa.Table) -> pa.Table:
    sequences = _numbers(last, "place") // 2
    order = np.argsort(sequences)
    subjects = last["subject"].take(buffers.of_numbers(order))
    return pa.table({"subject": subjects, "sequence": buffers.of_numbers(sequences[order])})


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    return buffers.numbers(table[name].combine_chunks())


def _last_of_subjects(
    state: StoreState, stream: StreamState, volumes: Sequence[Volume], limits: Limits, sequences: SequenceSet
) -> pa.Table:
    """Return of each subject of these messages how many they are (`count`) and the last one's `place`.

    That is twice its sequence, and one more if nothing is to take its place. Memory follows the number of subjects.
    """
    kept = _SCHEMA.empty_table()
    if not sequences:
        return kept
    bounds = {stream.name: sequences.bounds}
    slices, _ = plan_stream(state, stream, volumes, ReadRequest((stream.name,), bounds))
    touched = [block for block in slices if sequences.count_in(block.first, block.end)]
    waiting: list[pa.Table] = []
    for batch in read_slices(touched, ReadOptions(("sequence", "subject", "headers")), env=limits.env):
        numbers = buffers.numbers(batch.column("sequence"))
        places = 2 * numbers + _are_markers(batch.column("headers"))
        columns = [
            batch.column("subject"),
            buffers.of_numbers(np.ones(len(numbers), np.int64)),
            buffers.of_numbers(places),
        ]
        part = pa.Table.from_arrays(columns, schema=_SCHEMA)
        waiting.append(part.filter(buffers.of_bits(sequences.mask(numbers))))
        if sum(map(len, waiting)) > max(_ROWS_WAITING_MIN, len(kept)):
            kept, waiting = _joined([kept, *waiting]), []
    return _joined([kept, *waiting])


def _joined(parts: Sequence[pa.Table]) -> pa.Table:
    grouped = pa.concat_tables(parts).group_by("subject", use_threads=False)
    return grouped.aggregate([("count", "sum"), ("place", "max")]).rename_columns(_SCHEMA.names)


def _are_markers(headers: pa.Array) -> np.ndarray:
    """Return 1 for each message that is a marker of a server, or of a client, and 0 for the others."""
    marks = np.zeros(len(headers), np.int64)
    if headers.null_count < len(headers):
        marks[instructions.values_of(headers, REASON)[0]] = 1
        rows, values = instructions.values_of(headers, KV_OPERATION)
        coded = values.dictionary_encode()
        purges = np.array([value == KV_PURGE for value in [*coded.dictionary.to_pylist(), None]])
        codes = buffers.numbers(coded.indices.fill_null(buffers.constant(len(purges) - 1, coded.indices.type)))
        marks[rows[purges[codes]]] = 1
    return marks


def messages(config: StreamConfig, subjects: pa.ChunkedArray, now_ns: int) -> pa.RecordBatch:
    """Return the markers of these subjects, in write columns."""
    minutes, seconds = divmod(config.marker_ttl_s, 60)
    hours, minutes = divmod(minutes, 60)
    ttl = f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
    pairs = (
        (REASON, b"MaxAge"),
        (instructions.TTL, ttl.encode()),
        (instructions.ROLLUP, instructions.SUBJECT.encode()),
    )
    headers = pa.scalar([{"key": key, "value": value} for key, value in pairs], HEADERS_TYPE)
    count = len(subjects)
    return pa.RecordBatch.from_pydict(
        {
            "subject": subjects.combine_chunks(),
            "headers": pa.repeat(headers, count),
            "data": pa.repeat(pa.scalar(b"", pa.binary()), count),
            "timestamp_ns": buffers.of_numbers(np.full(count, now_ns, np.int64)),
        }
    )
