"""Tables about a store, as of the moment of planning: `table=streams`, `consumers`, `events` and `damage`."""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from datasource.edge import show_codes
from datasource.reader import select_streams
from datasource.settings import CONSUMERS, DAMAGE, EVENTS, STREAMS, ReadSettings
from datasource.store_opening import open_for_reading
from datasource.values import parse_time_ns
from storage_core import Store
from storage_core.store.consumers.lag import consumer_report

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class RowsPartition(InputPartition):
    """Rows that were collected at planning: the table repeats exactly, as messages do."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__(None)
        self.rows = rows


@show_codes
class TableReader(DataSourceReader):
    """Lists what `collect` finds of a store, or of the streams that the option `stream` names."""

    def __init__(
        self, collect: Callable[[ReadSettings], list[dict[str, Any]]], settings: ReadSettings, schema: pa.Schema
    ) -> None:
        self.collect, self.settings, self.schema = collect, settings, schema

    def partitions(self) -> Sequence[InputPartition]:
        return [RowsPartition(self.collect(self.settings))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield table_batch(partition, self.schema)


def _streams(settings: ReadSettings) -> list[dict[str, Any]]:
    with open_for_reading(settings) as store:
        names = select_streams(store.streams(), settings.streams or ("*",)) if store.streams() else []
        return [stream_row(info) for info in store.report(names, exact_times=True)]


def _consumers(settings: ReadSettings) -> list[dict[str, Any]]:
    """Return the rows of consumers; it moves none of them."""
    with open_for_reading(settings) as store:
        return consumer_rows(store, _chosen(store, settings))


def _events(settings: ReadSettings) -> list[dict[str, Any]]:
    """Return what happened to the store and its volumes."""
    with open_for_reading(settings) as store:
        events = store.events()
        if settings.streams:
            names = set(select_streams(event_streams(store), settings.streams))
            events = [event for event in events if event["stream"] in names]
        return [{**event, "time": _time(event["time"]), "last_time": _time(event["last_time"])} for event in events]


def _damage(settings: ReadSettings) -> list[dict[str, Any]]:
    """Check every block, and return what is damaged."""
    with open_for_reading(settings) as store:
        damage: list[dict[str, Any]] = store.verify(streams=_chosen(store, settings))["damage"]
        return damage


def _chosen(store: Store, settings: ReadSettings) -> list[str] | None:
    return select_streams(store.streams(), settings.streams) if settings.streams else None


def event_streams(store: Store) -> list[str]:
    """Return the streams that events are about, also those that were deleted, and those that there are."""
    return sorted({*store.streams(), *(event["stream"] for event in store.events() if event["stream"])})


def table_batch(partition: InputPartition, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a RowsPartition, in the columns of `schema`."""
    assert isinstance(partition, RowsPartition), partition
    return pa.RecordBatch.from_pylist(partition.rows, schema=schema)


def stream_row(info: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of `schema.STREAM_TYPES`, and some more, out of what `stream info --json` prints."""
    config, state = info["config"], info["state"]
    return {
        "stream": config["name"],
        "subjects": list(config["subjects"]),
        "messages": state["messages"],
        "bytes": state["bytes"],
        "first_sequence": state["first_seq"],
        "last_sequence": state["last_seq"],
        "first_timestamp": _time(state["first_ts"]),
        "last_timestamp": _time(state["last_ts"]),
        "num_deleted": state["num_deleted"],
        "num_replicas": config["num_replicas"],
        "compression": config["compression"],
        "incarnation": state["incarnation"],
        "description": config.get("description", ""),
        "lost_ranges": [{"first": first, "end": end} for first, end in state["lost_ranges"]],
        "replicas": [
            {**replica, "last_scrub": _time(replica["last_scrub"])} for replica in info["cluster"]["replicas"]
        ],
    }


def consumer_rows(store: Store, streams: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return the columns of `schema.CONSUMER_TYPES` for each consumer of these streams; None: of all."""
    state, rows = store.view().state, []
    for info in consumer_report(store, streams):
        stream = state.stream(info["stream_name"])
        consumer = stream.consumers.get(info["name"].casefold()) if stream is not None else None
        if stream is None or consumer is None:
            continue  # made or deleted since we looked
        rows.append(_consumer_row(info, consumer.pending.within(stream.shown())))
    return rows


def _consumer_row(info: dict[str, Any], pending: np.ndarray) -> dict[str, Any]:
    """Return one row; `pending`: the runs of messages that wait for their acknowledgement."""
    lag = info["lag"]
    again = pending[pending["deliveries"] > 1]
    counts = np.repeat(again["deliveries"] - 1, again["end"] - again["first"]).tolist()
    return {
        "stream": info["stream_name"],
        "consumer": info["name"],
        "delivered": info["delivered"]["stream_seq"],
        "ack_floor": info["ack_floor"]["stream_seq"],
        "num_ack_pending": info["num_ack_pending"],
        "num_redelivered": info["num_redelivered"],
        "num_pending": info["num_pending"],
        "num_skipped": info["num_skipped"],
        "lag_messages": lag["messages"],
        "lag_seconds": lag["seconds"],
        "oldest_sequence": lag["oldest_seq"],
        "oldest_timestamp": _time(lag["oldest_ts"]),
        "paused": info["paused"],
        "problem": info["problem"],
        "pending": _sequences(pending).tolist(),
        "redelivered": [
            {"sequence": sequence, "count": count}
            for sequence, count in zip(_sequences(again).tolist(), counts, strict=True)
        ],
        "created": _time(info["created"]),
        "incarnation": info["incarnation"],
        "config": json.dumps(info["config"], sort_keys=True),
    }


def _sequences(runs: np.ndarray) -> np.ndarray:
    """Return all sequences of the runs."""
    sizes = runs["end"] - runs["first"]
    sequences: np.ndarray = np.arange(int(sizes.sum())) + np.repeat(runs["first"] - (np.cumsum(sizes) - sizes), sizes)
    return sequences


def _time(text: str | None) -> datetime | None:
    """Return the moment, cut to microseconds; None for the year 1 that stands for no message."""
    if not text or text.startswith("0001-"):
        return None
    return _EPOCH + timedelta(microseconds=parse_time_ns("timestamp", text) // 1_000)


READERS: dict[str, Callable[[ReadSettings, pa.Schema], DataSourceReader]] = {
    STREAMS: partial(TableReader, _streams),
    CONSUMERS: partial(TableReader, _consumers),
    EVENTS: partial(TableReader, _events),
    DAMAGE: partial(TableReader, _damage),
}
