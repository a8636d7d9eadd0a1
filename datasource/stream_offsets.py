"""Offsets of a streaming query: what Spark keeps of it as JSON in the checkpoint, one entry a stream.

    {"ORDERS": {"begin": 1, "history": [["0123456789abcdef", 1]], "incarnation": "<32 hex>", "lost": [[1, 1845]],
                "sequence": 1945, "store": "<32 hex>", "version": 1}}

    sequence     the next one to read: end of the batch that ends here, start of the one that follows
    incarnation  of the stream, and
    history      its newest runs below `sequence`, (history id, first sequence): by these two a stream that was put back
                 or made again is recognised (docs/reconcile.md)
    lost         ranges [first, end) of lost messages that were reported to the query
    begin        where the batch that ends here begins; only if that is not where the one before it ended: in the first
                 batch of a stream, and where the query was moved. So a batch that is replayed reads the same, though
                 `latest`, times and the consumer have moved on since
    consumer     the durable consumer that the query reads as; only if it has one. By it a listener, which gets
                 offsets alone, acknowledges for the right one
    filters      subject filters of that consumer, by which the batch that ends here was read; only if it had some. A
                 replay reads by them, though the consumer was changed, or removed and made again, in the meantime
    count        messages of the batch that ends here, whatever their subjects; only if it has read something. By it a
                 replay knows how many were removed in the meantime
    store        id of the store
    version      of this layout

Spark compares offsets as text, so keys are sorted and nothing is there that changes by itself.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from datasource.values import COUNT_MAX
from storage_core.errors import UnsupportedVersionError
from storage_core.metadata.config import NAME_PATTERN, SUBJECT_COUNT_MAX
from storage_core.metadata.reconcile import HISTORY_RUNS_KEPT, Position, Runs
from storage_core.sequences import SequenceSet
from storage_core.store.consumers.query_position import LOST_RANGES_KEPT, QueryPosition
from storage_core.subjects import is_filter

VERSION = 1
KEYS = ("history", "incarnation", "lost", "sequence", "store", "version")
OPTIONAL_KEYS = ("begin", "consumer", "count", "filters")
Json = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a query has come in one stream of one store."""

    store_id: bytes
    at: QueryPosition
    begin: int | None = None  # of the batch that ends here, where that is not the end of the one before
    consumer: str | None = None  # that the query reads as
    filters: tuple[str, ...] = ()  # of the consumer, when the batch that ends here was planned
    count: int | None = None  # messages of that batch, then

    @property
    def sequence(self) -> int:
        return self.at.position.next_sequence

    def first_of_batch(self) -> QueryPosition | None:
        """Return where the batch that ends here begins, None if that is where the one before it ended."""
        if self.begin is None:
            return None
        position = self.at.position
        runs = tuple(run for run in position.history if run[1] < self.begin)
        return QueryPosition(Position(position.incarnation, self.begin, runs), self.at.reported)


Offsets = dict[str, StreamOffset]  # by name of the stream


def encode(offsets: Mapping[str, StreamOffset]) -> Json:
    """Return the JSON object; equal offsets give equal text."""
    return {name: _encoded(offsets[name]) for name in sorted(offsets)}


def _encoded(offset: StreamOffset) -> dict[str, Any]:
    position = offset.at.position
    made = {
        "begin": offset.begin,
        "consumer": offset.consumer,
        "count": offset.count,
        "filters": list(offset.filters) or None,
        "history": [[history.hex(), first] for history, first in position.history],
        "incarnation": position.incarnation.hex(),
        "lost": [[first, end] for first, end in offset.at.reported.ranges()],
        "sequence": position.next_sequence,
        "store": offset.store_id.hex(),
        "version": VERSION,
    }
    return {key: value for key, value in made.items() if value is not None}


def decode(offset: object) -> Offsets:
    """Return the offsets of a JSON object that Spark hands back.

    Raises ValueError naming stream, field and value of what cannot be one of ours, UnsupportedVersionError.
    """
    if not isinstance(offset, dict):
        _refuse("it", offset, "a JSON object with an entry for each stream", offset)
    return {name: _decoded(name, entry) for name, entry in offset.items()}


def _decoded(name: str, entry: object) -> StreamOffset:
    whose = f"stream {name!r}"
    if not isinstance(entry, dict):
        _refuse(whose, entry, f"an object with {', '.join(KEYS)}", entry)
    version = entry.get("version")
    if isinstance(version, int) and version > VERSION:
        raise UnsupportedVersionError(
            f"the checkpoint's offset of {whose} has version {version}, this program reads {VERSION}: a newer jstream "
            "wrote it. Use that one, or begin with a new checkpoint"
        )
    if type(version) is not int or version != VERSION:
        _refuse(f"'version' of {whose}", version, str(VERSION), entry)
    lacking = [key for key in KEYS if key not in entry]
    unknown = [key for key in entry if key not in (*KEYS, *OPTIONAL_KEYS)]
    if lacking or unknown:
        _refuse(whose, lacking or unknown, "all of its fields" if lacking else "no other fields", entry)
    sequence = entry["sequence"]
    if not _is_sequence(sequence):
        _refuse(f"'sequence' of {whose}", sequence, "a whole number from 1 on", entry)
    begin = entry.get("begin")
    if "begin" in entry and not (_is_sequence(begin) and begin <= sequence):
        _refuse(f"'begin' of {whose}", begin, f"a whole number from 1 to 'sequence', {sequence}", entry)
    consumer = entry.get("consumer")
    if "consumer" in entry and not (isinstance(consumer, str) and NAME_PATTERN.fullmatch(consumer)):
        _refuse(f"'consumer' of {whose}", consumer, "the name of a consumer", entry)
    filters = entry.get("filters", [])
    if "filters" in entry and not _are_filters(filters):
        _refuse(f"'filters' of {whose}", filters, "a list of subject filters", entry)
    count = entry.get("count")
    if "count" in entry and not (type(count) is int and 0 <= count <= sequence):
        _refuse(f"'count' of {whose}", count, f"a whole number from 0 to 'sequence', {sequence}", entry)
    position = Position(
        _hex(f"'incarnation' of {whose}", entry["incarnation"], 16, entry),
        sequence,
        _history(f"'history' of {whose}", entry["history"], sequence, entry),
    )
    lost = _lost(f"'lost' of {whose}", entry["lost"], entry)
    store_id = _hex(f"'store' of {whose}", entry["store"], 16, entry)
    return StreamOffset(store_id, QueryPosition(position, lost), begin, consumer, tuple(filters), count)


def _are_filters(value: object) -> bool:
    is_list = isinstance(value, list) and 1 <= len(value) <= SUBJECT_COUNT_MAX
    return is_list and all(isinstance(entry, str) and is_filter(entry) for entry in value)  # type: ignore[attr-defined]


def _history(field: str, value: object, sequence: int, entry: object) -> Runs:
    runs: list[tuple[bytes, int]] = []
    for pair in value if isinstance(value, list) else [None]:
        last = runs[-1][1] if runs else 0
        if not isinstance(pair, list) or len(pair) != 2 or not _is_sequence(pair[1]) or not last < pair[1] < sequence:
            _refuse(field, value, f"a list of [history id, first sequence], ascending, below {sequence}", entry)
        runs.append((_hex(field, pair[0], 8, entry), pair[1]))
    if len(runs) > HISTORY_RUNS_KEPT:
        _refuse(field, value, f"at most {HISTORY_RUNS_KEPT} runs", entry)
    return tuple(runs)


def _lost(field: str, value: object, entry: object) -> SequenceSet:
    ranges: list[tuple[int, int]] = []
    for pair in value if isinstance(value, list) else [None]:
        last = ranges[-1][1] if ranges else 0
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not all(map(_is_sequence, pair))
            or not last < pair[0] < pair[1]
        ):
            _refuse(field, value, "a list of ranges [first, end), ascending and apart", entry)
        ranges.append((pair[0], pair[1]))
    if len(ranges) > LOST_RANGES_KEPT:
        _refuse(field, value, f"at most {LOST_RANGES_KEPT} ranges", entry)
    return SequenceSet.from_ranges(ranges)


def _is_sequence(value: object) -> bool:
    return type(value) is int and 1 <= value <= COUNT_MAX


def _hex(field: str, value: object, size: int, entry: object) -> bytes:
    if not isinstance(value, str) or not re.fullmatch(f"[0-9a-f]{{{2 * size}}}", value):
        _refuse(field, value, f"{2 * size} hexadecimal digits", entry)
    return bytes.fromhex(value)


def _refuse(field: str, value: object, expected: str, entry: object) -> NoReturn:
    whole = json.dumps(entry, sort_keys=True)
    shown = whole if len(whole) <= 1_000 else f"{whole[:1_000]}..."
    raise ValueError(
        f"the checkpoint's offset is not one that jstream wrote: {field} is {json.dumps(value)}, expected {expected}; "
        f"the entry is {shown}. It was edited or is of another source: look at the newest file in the folder 'offsets' "
        "of the checkpoint, put it back from a copy, or begin with a new checkpoint"
    )
