"""Messages of a stream, a page at a time, from anywhere in it; what is not there any more stands in its place.

A page reads what it shows: without a filter the blocks that hold its sequences; with one, parts of blocks backwards or
forwards from where it is, until there are enough, or the bounds of one request are reached; then it says how far it
looked, and the next page goes on there.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from shlex import quote
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_stream.look.search import MessageFilter
from spark_stream.look.terminal import show_size
from spark_stream.ui import payload
from spark_stream.ui.model.pages import stream_head
from spark_stream.ui.query import Query
from spark_stream.ui.site import Site
from storage_core.metadata.state import StreamState
from storage_core.quantities import rfc3339
from storage_core.store.contents import Message, first_at_time, slices
from storage_core.store.opened import OpenStore
from storage_core.store.reading.plan import ReadRequest
from storage_core.store.reading.reading import REPORT, ReadDamage, ReadOptions, read_slices

PAGE_COUNT = 50  # messages
PAGE_COUNT_MAX = 200
SEARCH_S = 1.0  # for one page of a search
SEARCH_ROW_COUNT = 500_000  # messages that one page of a search looks at
PART_ROW_COUNT = 4096  # sequences that a search takes at a time
GAP_COUNT_MAX = 200  # holes that one page names
HEADER_COUNT_MAX = 64  # headers of one message that are shown
HEADER_SIZE_MAX = 1024  # bytes of each of them
API_SIZE_MAX = 1 << 20  # bytes of one message's data as JSON
PARSED_SIZE_MAX = 1 << 20  # bytes of a message that is parsed for a field: its values may take 30 times as much
FILTERS = ("subject", "header", "field", "grep")  # of a query, as `MessageFilter.of` takes them
_CUT = ("sequence", "subject", "timestamp_ns", "headers", "data")


def filter_of(query: Query) -> MessageFilter:
    """Raises ValueError for a filter that is none."""
    wanted = MessageFilter.of(*(query.text(name) for name in FILTERS))
    return replace(wanted, parsed_size_max=PARSED_SIZE_MAX)


def messages_page(site: Site, query: Query, name: str) -> dict[str, Any]:
    """Return messages, newest first: the newest ones, those from `at` or `time` on, or those below `before`."""
    store, wanted = site.store(), filter_of(query)
    stream = store.stream_state(name)
    count = query.number("count", PAGE_COUNT, 1, PAGE_COUNT_MAX) or PAGE_COUNT
    first, end = stream.first_sequence, stream.next_sequence
    at, before = query.number("at"), query.number("before")
    time_ns = query.time_ns("time", store.environment.now_ns())
    note = ""
    if at is None and time_ns is not None:
        at = first_at_time(store, stream, time_ns, REPORT)
        if at is None:
            note = "no message is as new as that"
    if at is not None and not first <= at < end and stream.message_count:
        note = f"sequence {at} is not in the stream: it has {first} to {end - 1}"
    reading = _Reading(store, stream, wanted, count)
    if at is not None and note == "":
        rows, searched = reading.upwards(at)
    else:
        rows, searched = reading.downwards(min(end, before) if before is not None else end)
    lower, upper = searched
    if reading.unparsed_count:
        few = "1 message is" if reading.unparsed_count == 1 else f"{reading.unparsed_count:,} messages are"
        note = f"{few} larger than {show_size(PARSED_SIZE_MAX)} and not searched for the field; the command below does"
    shown = [*(_row(row) for row in rows), *_gaps(stream, lower, upper, reading.damage, wanted.is_all)]
    shown.sort(key=lambda row: -row["seq"])
    filters = {key: query.text(key) for key in FILTERS if query.text(key)}
    return {
        "stream": stream_head(site, site.scan(), stream),
        "rows": shown,
        "count": len(rows),
        "first_seq": first,
        "last_seq": end - 1,
        "searched": [lower, upper],  # half open
        "older": lower if lower > first else None,  # `before` of the next page
        "newer": upper if upper < end else None,  # `at` of the page above
        "is_live": upper >= end and wanted.is_all,  # a page of the newest messages follows the stream
        "is_partial": reading.is_partial,
        "unparsed": reading.unparsed_count,  # messages that may match, but are too large to be searched for a field
        "filters": filters,
        "note": note,
        "command": _command(site, name, lower, count, filters),
    }


def _command(site: Site, name: str, first: int, count: int, filters: dict[str, str]) -> str:
    more = "".join(f" --{key} {quote(value)}" for key, value in filters.items())
    return f"jstream stream view {quote(name)} {count} --id {first}{more} --store {site.command_store}"


class _Reading:
    """One page being read."""

    def __init__(self, store: OpenStore, stream: StreamState, wanted: MessageFilter, count: int) -> None:
        self._store, self._stream, self._wanted, self._count = store, stream, wanted, count
        self._until = time.monotonic() + SEARCH_S
        self._looked_at = 0
        self.unparsed_count = 0  # messages that are too large to be parsed for a field
        self.damage: list[ReadDamage] = []
        self.is_partial = False

    def downwards(self, end: int) -> tuple[list[dict[str, Any]], tuple[int, int]]:
        """Return the newest messages below `end`, and the sequences [first, end) that were looked at."""
        first = self._stream.first_sequence
        if self._wanted.is_all:
            newest = self._stream.shown(first, end).tail(self._count)
            lower = int(newest.starts[0]) if newest else 1
            return self._rows(lower, end, self._count), (lower, end)
        rows: list[dict[str, Any]] = []
        for lower, upper in self._parts(first, end, newest_first=True):
            rows = [*self._rows(lower, upper, PART_ROW_COUNT), *rows]
            if len(rows) >= self._count:
                rows = rows[-self._count :]
                return rows, (rows[0]["sequence"], end)
            if lower > first and self._is_over():
                return rows, (lower, end)
        return rows, (first, end)

    def upwards(self, first: int) -> tuple[list[dict[str, Any]], tuple[int, int]]:
        """Return the oldest messages from `first` on, and the sequences [first, end) that were looked at."""
        end = self._stream.next_sequence
        if self._wanted.is_all:
            head = self._stream.shown().clip(first, end).head(self._count)
            upper = int(head.ends[-1]) if len(head) == self._count else end
            return self._rows(first, upper, self._count), (first, upper)
        rows: list[dict[str, Any]] = []
        for lower, upper in self._parts(first, end, newest_first=False):
            rows = [*rows, *self._rows(lower, upper, PART_ROW_COUNT)]
            if len(rows) >= self._count:
                rows = rows[: self._count]
                return rows, (first, rows[-1]["sequence"] + 1)
            if upper < end and self._is_over():
                return rows, (first, upper)
        return rows, (first, end)

    def _parts(self, first: int, end: int, newest_first: bool) -> Iterator[tuple[int, int]]:
        """Yield ranges that may hold what is wanted, by the manifest alone."""
        request = ReadRequest(
            (self._stream.name,), {self._stream.name: (first, end)}, subject_filters=self._wanted.subjects
        )
        blocks = slices(self._store, self._stream, request)
        order: Callable[[Any], Any] = reversed if newest_first else iter
        for block in order(range(len(blocks))):
            for part in order(blocks[block].split(PART_ROW_COUNT)):
                yield part.first, part.end

    def _is_over(self) -> bool:
        self.is_partial = time.monotonic() > self._until or self._looked_at > SEARCH_ROW_COUNT
        return self.is_partial

    def _rows(self, first: int, end: int, count_max: int) -> list[dict[str, Any]]:
        """Return the wanted messages of [first, end), as many as asked for, with the beginning of their data."""
        if end <= first:
            return []
        filters = self._wanted.subjects
        request = ReadRequest((self._stream.name,), {self._stream.name: (first, end)}, subject_filters=filters)
        options = ReadOptions(_CUT, subject_filters=filters, on_data_loss=REPORT)
        rows: list[dict[str, Any]] = []
        self._looked_at += end - first
        block_slices = slices(self._store, self._stream, request)
        for batch in read_slices(block_slices, options, self._note_damage, self._store.environment):
            chosen, unparsed_count = self._wanted.searched(batch)
            self.unparsed_count += unparsed_count
            rows += _cut(chosen)
            if len(rows) > count_max:
                break
        return rows

    def _note_damage(self, damage: ReadDamage) -> None:
        if not damage.served and len(self.damage) < GAP_COUNT_MAX:
            self.damage.append(damage)


def _cut(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows with the size of their data, and only its beginning."""
    data = batch.column("data")
    sizes, heads = pc.binary_length(data), pc.binary_slice(data, 0, payload.PREVIEW_SIZE)
    names = ("sequence", "subject", "timestamp_ns")
    columns = [*(batch.column(name).to_pylist() for name in names), sizes.to_pylist(), heads.to_pylist()]
    counts = pc.list_value_length(batch.column("headers")).to_pylist()
    return [
        {"sequence": row[0], "subject": row[1], "time_ns": row[2], "size": row[3], "head": row[4], "headers": header}
        for *row, header in zip(*columns, counts, strict=True)
    ]


def _row(row: dict[str, Any]) -> dict[str, Any]:
    kind, text = payload.preview(row["head"])
    return {
        "kind": "message",
        "seq": row["sequence"],
        "time": rfc3339(row["time_ns"]),
        "subject": row["subject"],
        "size": row["size"],
        "headers": row["headers"] or 0,
        "format": kind,
        "preview": text,
    }


def _gaps(
    stream: StreamState, first: int, end: int, damage: list[ReadDamage], with_removed: bool
) -> list[dict[str, Any]]:
    """Return what of these sequences is no message any more, or cannot be read: `seq` to `end` - 1."""
    gaps = []
    low = max(first, stream.low_watermark)
    lost = stream.lost.clip(low, end)
    kinds = [("lost", lost, "no volume has them any more")]
    if with_removed:
        kinds.append(("removed", stream.removed.clip(low, end).difference(lost), "removed"))
    for kind, ranges, reason in kinds:
        for begin, stop in ranges.ranges_head(GAP_COUNT_MAX):
            gap = {"kind": kind, "seq": begin, "end": stop, "reason": reason, "file": None, "offset_bytes": None}
            gaps.append(gap)
    for unreadable in damage:
        gaps.append(
            {
                "kind": "unreadable",
                "seq": unreadable.first,
                "end": unreadable.end,
                "reason": unreadable.reason,
                "file": unreadable.file,
                "offset_bytes": unreadable.offset_bytes,
            }
        )
    return gaps


# --- one message


def message_page(site: Site, query: Query, name: str, sequence: int) -> dict[str, Any]:
    """Return one message, its headers, and its data as `as` says."""
    store = site.store()
    message = store.stream(name).get(sequence)
    stream = store.stream_state(name)
    wanted = query.choice("as", ("", *payload.FORMATS))
    headers = (message.headers or [])[:HEADER_COUNT_MAX]
    neighbours = stream.shown()
    before = neighbours.clip(stream.first_sequence, sequence)
    after = neighbours.clip(sequence + 1, stream.next_sequence)
    return {
        "stream": stream_head(site, site.scan(), stream),
        "seq": sequence,
        "subject": message.subject,
        "time": rfc3339(message.timestamp_ns),
        "headers": [[key, _header(value)] for key, value in headers],
        "headers_left_out": max(0, len(message.headers or ()) - HEADER_COUNT_MAX),
        "data": payload.shown(message.data, wanted),
        "as": wanted,
        "older": int(before.ends[-1]) - 1 if before else None,
        "newer": int(after.starts[0]) if after else None,
        "block": _block_of(stream, sequence),
        "batch": _batch_of(stream, sequence),
        "command": f"jstream stream get {quote(name)} {sequence} --store {site.command_store}",
    }


def _batch_of(stream: StreamState, sequence: int) -> dict[str, str] | None:
    """Return the writer that stored a message exactly once, and its batch; None if no name came, or it is forgotten."""
    for name, writer in stream.writers.items():
        for batch, stored in writer.batches.items():
            if stored.first <= sequence < stored.end:
                return {"writer": name, "batch": batch}
    return None


def message_json(site: Site, query: Query, name: str, sequence: int) -> dict[str, Any]:
    """Return one message in the shape of `stream get --json`, its data up to API_SIZE_MAX."""
    message = site.store().stream(name).get(sequence)
    size = len(message.data or b"")
    cut = Message(
        message.stream,
        message.sequence,
        message.subject,
        message.timestamp_ns,
        message.headers,
        _bounded(message.data),
    )
    return {**cut.to_json(), "size": size, "cut": size > API_SIZE_MAX}


def _bounded(data: bytes | None) -> bytes | None:
    """Return the first API_SIZE_MAX bytes; a character of UTF-8 is not cut in two, so that text stays text."""
    if data is None or len(data) <= API_SIZE_MAX:
        return data
    end = API_SIZE_MAX
    while end > API_SIZE_MAX - 3 and data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end]


def _header(value: bytes | None) -> str | None:
    return None if value is None else value[:HEADER_SIZE_MAX].decode("utf-8", "backslashreplace")


def _block_of(stream: StreamState, sequence: int) -> str | None:
    rows = stream.blocks.rows[stream.blocks_in(sequence, sequence + 1)]
    return bytes(rows["block_id"][0]).hex() if len(rows) else None
