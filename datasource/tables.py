"""`table=streams`: one row a stream, with its configuration and state, as of the moment of planning."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from datasource.reader import open_store, select_streams
from datasource.settings import ReadSettings
from datasource.values import parse_time_ns

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class RowsPartition(InputPartition):
    """Rows that were collected at planning: the table repeats exactly, as messages do."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__(None)
        self.rows = rows


class StreamTableReader(DataSourceReader):
    """Lists the streams of a store, or those that the option `stream` names."""

    def __init__(self, settings: ReadSettings, schema: pa.Schema) -> None:
        self.settings, self.schema = settings, schema

    def partitions(self) -> Sequence[InputPartition]:
        with open_store(self.settings) as store:
            names = select_streams(store.streams(), self.settings.streams or ("*",)) if store.streams() else []
            return [RowsPartition([stream_row(store.stream(name).info()) for name in names])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RowsPartition), partition
        yield pa.RecordBatch.from_pylist(partition.rows, schema=self.schema)


def stream_row(info: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of `schema.STREAM_TYPES` out of what `stream info --json` prints."""
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
    }


def _time(text: str | None) -> datetime | None:
    """Return the moment, cut to microseconds; None for the year 1 that stands for no message."""
    if not text or text.startswith("0001-"):
        return None
    return _EPOCH + timedelta(microseconds=parse_time_ns("timestamp", text) // 1_000)
