"""Messages of a channel: their sequences where a checksum does not vouch for them, their columns, whether encrypted.

Sequences of a channel rise by one, inside a slice and across slices: where one is missing on arrival the server
writes a message without data in its place. So the place of a record between true ones tells its sequence.

Encryption covers the data only: one byte for the cipher (1 AES-GCM, 2 ChaCha20-Poly1305), a nonce of 4 random bytes
and a counter (u64, big-endian), the ciphertext, a tag of 16 bytes. The counter begins at the next sequence whenever
the server starts and rises by one for each message with data, so it is never above the message's sequence.

Source: nats-streaming-server, stores/filestore.go (`Store`, `fillGaps`), stores/cryptostore.go (`newEDStore`).
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.foreign.arrays import elements, gather, to_batch, to_strings
from storage_core.foreign.digests import DIGEST_KEY, LONG_DIGEST_SIZE, long_digest, mixed
from storage_core.foreign.nats.highwayhash import highwayhash64
from storage_core.foreign.stan.record import SEQUENCE_MAX, SUBJECT, Records
from storage_core.schema import HEADERS_TYPE, TIMESTAMP_TYPE, read_schema

ENCRYPTED_SIZE_MIN = 1 + 12 + 1 + 16  # bytes
ENCRYPTED_RUN_MIN = 3  # messages after each other whose nonces count up
SEQUENCE, DATA, TIME = 1, 4, 5  # numbers of fields


def strangers(records: Records, bounds: tuple[int, int]) -> np.ndarray:
    """Return which records are true, but of another channel, or with a sequence outside of `bounds`, half open."""
    sequences = records.fields[SEQUENCE].values
    inside = sequences - np.uint64(bounds[0]) < np.uint64(bounds[1] - bounds[0])  # below the first it wraps
    return np.asarray(records.good & ~(records.own & inside))


def place_sequences(records: Records, last: int | None, gap_before: bool, strange: np.ndarray) -> np.ndarray:
    """Return the sequence of each record, 0 for one that has none: its number is not above all before it, or cannot
    be told.

    `last` is the sequence of the record in front, None if these are the first of the file; `gap_before` says that
    bytes which are no record lie between. `strange` records have none, see strangers().
    """
    if strange.any():
        placed = np.zeros(len(records), np.int64)
        rest = records.take(~strange)
        placed[~strange] = place_sequences(rest, last, gap_before, np.zeros(len(rest), bool))
        return placed
    own = np.minimum(records.fields[SEQUENCE].values, SEQUENCE_MAX + 1).astype(np.int64)
    own[own > SEQUENCE_MAX] = 0
    placed = np.where(records.good, own, 0)
    highest = np.maximum.accumulate(np.concatenate(([last or 0], placed)))
    placed[placed <= highest[:-1]] = 0
    if records.good.all():
        return placed
    gaps = np.ones(len(records), bool)
    gaps[1:] = records.heads[1:] != records.ends[:-1]
    gaps[:1] = gap_before or bool(records.heads[0])
    true = np.flatnonzero(placed)
    row, low = -1, last  # of the last record that has a sequence
    for first, end in _runs(~records.good):
        after = int(np.searchsorted(true, first))
        if after and true[after - 1] > row:
            row = int(true[after - 1])
            low = int(placed[row])
        high = int(placed[true[after]]) if after < len(true) else None
        # A record without a sequence between is as good as a gap: it tells nothing about the messages there.
        apart_before, apart_behind = row != first - 1, high is not None and (true[after] != end or gaps[end])
        apart = np.append(gaps[first:end], apart_behind)
        apart[0] |= apart_before
        places = np.flatnonzero(apart)
        placed[first:end] = _place(own[first:end], places, low, high)
        numbered = np.flatnonzero(placed[first:end])
        if len(numbered):
            row = first + int(numbered[-1])
            low = int(placed[row])
    return placed


def _place(own: np.ndarray, gaps: np.ndarray, low: int | None, high: int | None) -> np.ndarray:
    """Return the sequences of records between two of sequence `low` and `high`, 0 where they cannot be known.

    `gaps` are the positions of records that do not follow the one in front of them at once.
    """
    count = len(own)
    if low is not None and high is not None and high - low - 1 == count:
        return np.arange(low + 1, high)
    placed = own.copy()
    if high is not None:
        back = int(gaps[-1]) if len(gaps) else 0
        placed[back:] = high - np.arange(count - back, 0, -1)
    if low is not None:
        front = int(gaps[0]) if len(gaps) else count
        placed[:front] = low + 1 + np.arange(min(front, count))
    highest = np.maximum.accumulate(np.concatenate(([low or 0], placed)))[:-1]
    placed[(placed <= highest) | (placed >= (SEQUENCE_MAX + 1 if high is None else high))] = 0
    return placed


def _runs(mask: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [(first, end) for first, end in edges.reshape(-1, 2).tolist()]


def times_of(records: Records) -> np.ndarray:
    """Return the times, int64 ns since 1970 UTC."""
    return records.fields[TIME].values.view(np.int64)


def subjects_of(buffer: pa.Buffer, records: Records) -> pa.StringArray:
    return to_strings(_bytes_of(buffer, records, SUBJECT))


def content_digests(buffer: pa.Buffer, records: Records, sequences: np.ndarray) -> np.ndarray:
    """Return a hash of sequence, time, subject and data of each message, uint64; the same in every copy."""
    subjects, data = records.fields[SUBJECT], records.fields[DATA]
    starts = np.stack((subjects.starts, data.starts), axis=1)
    sizes = np.stack((subjects.values.astype(np.int64), data.values.astype(np.int64)), axis=1)
    order = np.argsort(starts.ravel(), kind="stable")  # either field may come first
    hashes = np.empty(2 * len(records), np.uint64)
    view = np.frombuffer(buffer, np.uint8)
    flat_starts, flat_sizes = starts.ravel(), sizes.ravel()
    long = flat_sizes[order] >= LONG_DIGEST_SIZE
    for at in order[long].tolist():
        first = int(flat_starts[at])
        hashes[at] = long_digest([memoryview(buffer)[first : first + int(flat_sizes[at])]])
    rest = order[~long]
    hashes[rest] = highwayhash64(view, flat_starts[rest], flat_sizes[rest], DIGEST_KEY)
    digests = mixed(hashes[::2], hashes[1::2].view(np.int64))
    return mixed(mixed(digests, times_of(records)), sequences)


def build_batch(
    stream: str, buffer: pa.Buffer, records: Records, sequences: np.ndarray, columns: Sequence[str]
) -> pa.RecordBatch:
    """Return the messages as a RecordBatch in schema.read_schema(columns). Only asked columns are gathered."""
    schema = read_schema(tuple(columns))
    arrays = [_column(name, stream, buffer, records, sequences) for name in schema.names]
    return to_batch(arrays, schema, len(records))


def encrypted_at(buffer: pa.Buffer, records: Records) -> int | None:
    """Return the position of the first message whose data the server encrypted, None if there is none to be told.

    One message alone may look so by chance: most with data have to, or some after each other with rising counters.
    """
    data = records.fields[DATA]
    rows = np.flatnonzero(records.good & (data.values > 0))
    starts = data.starts[rows]
    view = np.frombuffer(buffer, np.uint8)
    long_enough = data.values[rows] >= ENCRYPTED_SIZE_MIN
    starts = np.where(long_enough, starts, 0)
    counters = elements(view, ">u8")[starts + 5].astype(np.uint64)
    prefixes = elements(view, "<u4")[starts + 1]
    known_cipher = (view[starts] == 1) | (view[starts] == 2)
    looks = long_enough & known_cipher & (counters >= 1) & (counters <= records.fields[SEQUENCE].values[rows])
    if not looks.any():
        return None
    next_one = looks[1:] & looks[:-1] & (prefixes[1:] == prefixes[:-1]) & (counters[1:] == counters[:-1] + np.uint64(1))
    longest = max((end - first + 1 for first, end in _runs(next_one)), default=1)
    if longest < ENCRYPTED_RUN_MIN and int(looks.sum()) * 2 <= len(rows):
        return None
    return int(rows[np.flatnonzero(looks)[0]])


def _column(name: str, stream: str, buffer: pa.Buffer, records: Records, sequences: np.ndarray) -> pa.Array:
    if name == "stream":
        return buffers.repeated(stream, len(records))
    if name == "sequence":
        return buffers.of_numbers(sequences)
    if name == "timestamp_ns":
        return buffers.of_numbers(times_of(records))
    if name == "timestamp":
        return buffers.of_numbers(times_of(records) // 1000, TIMESTAMP_TYPE)
    if name == "subject":
        return subjects_of(buffer, records)
    if name == "headers":
        return pa.nulls(len(records), HEADERS_TYPE)
    return _bytes_of(buffer, records, DATA)


def _bytes_of(buffer: pa.Buffer, records: Records, number: int) -> pa.BinaryArray:
    field = records.fields[number]
    return gather(buffer, field.starts, field.values.astype(np.int64))
