"""Batch reads of running NATS servers: streams as of the moment of planning, in ranges that tasks read by themselves.

A plan names the incarnation of each stream by its time of creation, so that a stream that is made again in between
fails the read instead of giving it other messages.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from datasource.edge import show_codes
from datasource.offsets import Extent, resolve_ranges
from datasource.partitions import SlicePartition
from datasource.reader import is_glob, pick_streams, select_streams
from datasource.settings import CONSUMERS, MESSAGES, STREAMS, ReadSettings, StreamReadSettings, WriteSettings
from datasource.shape import Shape
from datasource.tables import TableReader
from datasource.workers import freeze_modules
from storage_core.errors import DataLossError
from storage_core.live import server
from storage_core.live.connection import Connection
from storage_core.live.login import parse_address
from storage_core.live.ranges import Range, read_range
from storage_core.live.server import Servers, StreamInfo, stream_info

log = logging.getLogger("jstream")
Settings = ReadSettings | StreamReadSettings

PARTITION_COUNT = 4  # of a stream, by default: each costs the server a processor while it is read
PARTITION_ROW_COUNT = 250_000  # below it another task is not worth its start


def servers_of(settings: Settings | WriteSettings) -> Servers:
    """Return the servers that the options name."""
    return Servers(tuple(parse_address(path, "option 'path'") for path in settings.paths), settings.login)


def check_streams(settings: Settings) -> None:
    """Raise StreamNotFoundError for a stream that is not there, and as connecting does."""
    is_streaming, servers = isinstance(settings, StreamReadSettings), servers_of(settings)
    servers.check()
    servers.retrying(lambda connection: infos_of(connection, settings, must_match=not is_streaming))


def infos_of(
    connection: Connection, settings: Settings, must_match: bool = True, with_deleted: bool = False
) -> dict[str, StreamInfo]:
    """Return the streams that the option `stream` picks. Without a glob nobody needs the permission to list streams."""
    wanted = settings.streams or ("*",)
    if any(map(is_glob, wanted)):
        known = connection.stream_names()
        names = select_streams(known, wanted) if must_match else pick_streams(known, wanted)
    else:
        names = sorted(set(wanted))
    return {name: stream_info(connection, name, with_deleted) for name in names}


@show_codes
class LiveReader(DataSourceReader):
    """Reads messages of streams of running servers."""

    def __init__(self, settings: ReadSettings, schema: pa.Schema) -> None:
        self.settings, self.schema = settings, schema

    def partitions(self) -> Sequence[InputPartition]:
        freeze_modules()
        return servers_of(self.settings).retrying(self._plan)

    def _plan(self, connection: Connection) -> list[InputPartition]:
        settings = self.settings
        infos = infos_of(connection, settings, with_deleted=True)
        extents = {name: Extent(info.first_sequence, info.next_sequence) for name, info in infos.items()}
        find = partial(first_at_time, connection, infos)
        ranges = resolve_ranges(extents, *settings.bounds(), find, settings.fail_on_data_loss)
        parts = [
            part
            for name, (first, end) in ranges.items()
            for part in parts_of(infos[name], max(first, infos[name].first_sequence), end, settings, self.schema)
        ]
        return [SlicePartition((part,)) for part in parts] or [SlicePartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from rows_of(partition, self.settings, self.schema)


def parts_of(info: StreamInfo, first: int, end: int, settings: Settings, schema: pa.Schema) -> list[Range]:
    """Return the ranges that tasks read of the sequences `[first, end)`."""
    count = max(0, end - first)
    most = settings.partition_rows_max or PARTITION_ROW_COUNT
    parts = -(-count // most)
    if settings.partition_rows_max is None:
        parts = min(parts, PARTITION_COUNT)
    parts = min(max(parts, settings.min_partitions or 1), count)
    edges = [first + count * part // max(1, parts) for part in range(parts + 1)]
    deleted = _runs(info.deleted)
    subjects = () if settings.subject is None else (settings.subject,)
    with_payload = bool({"data", "headers"} & set(schema.names))
    return [
        Range(info.name, info.created, start, stop, subjects, _inside(deleted, start, stop), with_payload)
        for start, stop in zip(edges, edges[1:], strict=False)
    ]


def _runs(sequences: Sequence[int]) -> np.ndarray:
    """Return ascending sequences as runs, `[first, end)`."""
    listed = np.array(sequences, np.int64)
    if not len(listed):
        return np.empty((0, 2), np.int64)
    breaks = np.flatnonzero(np.diff(listed) != 1)
    firsts, lasts = np.append(listed[:1], listed[breaks + 1]), np.append(listed[breaks], listed[-1:])
    return np.column_stack((firsts, lasts + 1))


def _inside(runs: np.ndarray, first: int, end: int) -> tuple[tuple[int, int], ...]:
    inside = runs[(runs[:, 1] > first) & (runs[:, 0] < end)]
    return tuple((int(start), int(stop)) for start, stop in inside)


def first_at_time(connection: Connection, infos: Mapping[str, StreamInfo], name: str, time_ns: int) -> int | None:
    """Return the first sequence whose message is not older, None beyond the end; looked for by halving."""
    info = infos[name]
    first, end = info.first_sequence, info.next_sequence
    while first < end:
        middle = (first + end) // 2
        message = server.next_message(connection, name, middle)
        if message is None or message[0] >= end or message[1] >= time_ns:
            end = middle
        else:
            first = message[0] + 1
    return first if first < info.next_sequence else None


def rows_of(partition: InputPartition, settings: Settings, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition in the declared shape."""
    assert isinstance(partition, SlicePartition), partition
    freeze_modules()
    shape = Shape.of(settings, schema)

    def on_loss(error: DataLossError) -> None:
        if settings.fail_on_data_loss:
            raise DataLossError(f"{error}. To read what is there, set failOnDataLoss=false", **error.fields)
        log.warning("failOnDataLoss=false, the read continues: %s", error)

    for part in partition.slices:
        for messages in read_range(servers_of(settings), part, on_loss):
            if len(messages):
                yield shape.conform(messages.batch(part.stream, shape.asked))


# --- tables


def _streams(settings: ReadSettings) -> list[dict[str, Any]]:
    infos = servers_of(settings).retrying(lambda connection: infos_of(connection, settings))
    return [
        {
            "stream": info.name,
            "path": ",".join(settings.paths),
            "subjects": list(info.config.get("subjects") or ()),
            "messages": info.message_count,
            "bytes": info.byte_count,
            "first_sequence": info.first_sequence,
            "last_sequence": info.next_sequence - 1,
            "consumers": info.state.get("consumer_count", 0),
            "compression": info.config.get("compression") or "none",
            "source": "server",
            "config": json.dumps(info.config, sort_keys=True),
        }
        for info in infos.values()
    ]


def _consumers(settings: ReadSettings) -> list[dict[str, Any]]:
    def listed(connection: Connection) -> list[dict[str, Any]]:
        return [
            consumer
            for name in infos_of(connection, settings)
            for consumer in sorted(server.consumers(connection, name), key=lambda consumer: str(consumer["name"]))
        ]

    return [
        {
            "stream": consumer["stream_name"],
            "consumer": consumer["name"],
            "is_durable": bool(consumer["config"].get("durable_name")),
            "delivered": consumer["delivered"]["stream_seq"],
            "ack_floor": consumer["ack_floor"]["stream_seq"],
            "num_ack_pending": consumer["num_ack_pending"],
            "num_redelivered": consumer["num_redelivered"],
            "config": json.dumps(consumer["config"], sort_keys=True),
        }
        for consumer in servers_of(settings).retrying(listed)
    ]


READERS: dict[str, Callable[[ReadSettings, pa.Schema], DataSourceReader]] = {
    MESSAGES: LiveReader,
    STREAMS: partial(TableReader, _streams),
    CONSUMERS: partial(TableReader, _consumers),
}
