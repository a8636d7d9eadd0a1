"""Progress of streaming queries for people: their lag in the log, and beside the stores' metrics for Prometheus.

    log_lag(spark)                       a line a stream at each progress, in the log `jstream` at level INFO
    serve_metrics(spark, "/data/store")  the same and what metrics.py says of the stores, on a port

Lag is counted in sequences between the end of the newest batch and the end of the stream: removed messages and those
that a filter leaves out count as well. What a durable consumer lags, message by message and in time, is in the store.
"""

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from datasource.spark_versions import SAYS_LIMITS, reported_offset

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from pyspark.sql import SparkSession

    from spark_stream.metrics import MetricsServer

log = logging.getLogger("jstream")
QUERY_METRICS = {
    "jstream_query_sequence": (("query", "name", "stream", "consumer"), "Last sequence that the query has finished"),
    "jstream_query_lag_messages": (("query", "name", "stream", "consumer"), "Sequences that it has before it"),
    "jstream_query_batch": (("query", "name"), "Number of the newest batch"),
    "jstream_query_input_rows_per_second": (("query", "name"), "Rows that came, a second, all sources together"),
    "jstream_query_processed_rows_per_second": (("query", "name"), "Rows that were processed, a second"),
}


@dataclass(frozen=True, slots=True)
class StreamLag:
    """How far a query has come in one stream."""

    stream: str
    consumer: str  # empty: none
    sequence: int  # last one that is finished
    lag: int | None  # sequences that are left; None: not known


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """What a progress event says."""

    query: str
    name: str
    batch: int
    input_rows_per_second: float
    processed_rows_per_second: float
    streams: tuple[StreamLag, ...]


def progress_of(progress: Any) -> QueryProgress:
    """Return what a StreamingQueryProgress says of streams of jstream; other sources have none."""
    streams = tuple(lag for source in progress.sources for lag in _lags(source.endOffset, source.latestOffset))
    return QueryProgress(
        str(progress.id),
        progress.name or "",
        int(progress.batchId),
        float(progress.inputRowsPerSecond or 0),
        float(progress.processedRowsPerSecond or 0),
        streams,
    )


def _lags(end_offset: str | None, latest_offset: str | None) -> Iterator[StreamLag]:
    latest = _entries(latest_offset) if SAYS_LIMITS else {}  # Spark before 4.2 says the end of the batch
    for stream, entry in _entries(end_offset).items():
        newest = latest.get(stream)
        same = newest is not None and newest["incarnation"] == entry["incarnation"]
        lag = max(0, newest["sequence"] - entry["sequence"]) if newest is not None and same else None
        yield StreamLag(stream, entry.get("consumer", ""), entry["sequence"] - 1, lag)


def _entries(offset: str | None) -> dict[str, dict[str, Any]]:
    """Return the streams of an offset; none for one that is another source's."""
    entries = reported_offset(offset)
    ours = isinstance(entries, dict) and all(
        isinstance(entry, dict) and {"sequence", "incarnation", "store"} <= entry.keys() for entry in entries.values()
    )
    return entries if ours else {}


class LagListener(StreamingQueryListener):
    """Logs the lag of each stream at each progress, and keeps the newest progress of each query that runs."""

    def __init__(self) -> None:
        self._newest: dict[str, QueryProgress] = {}  # by the id of the run
        self._busy = threading.Lock()

    def newest(self) -> list[QueryProgress]:
        with self._busy:
            return list(self._newest.values())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """There is no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Log and keep it. Never raises: that would be an error in Spark's log, and nobody's in particular."""
        try:
            progress = progress_of(event.progress)
        except Exception as error:
            log.warning("the progress of a query cannot be read: %s", error)
            return
        with self._busy:
            self._newest[str(event.progress.runId)] = progress
        for stream in progress.streams:
            log.info(
                "query %s, batch %d: stream %s%s is at sequence %d, %s behind",
                progress.name or progress.query, progress.batch, stream.stream,
                f", consumer {stream.consumer}," if stream.consumer else "", stream.sequence,
                "an unknown number" if stream.lag is None else stream.lag,
            )  # fmt: skip

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """An idle query is where its last progress said."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """A query that has ended has no lag any more."""
        with self._busy:
            self._newest.pop(str(event.runId), None)


def log_lag(spark: "SparkSession") -> LagListener:
    """Log the lag of the session's queries at each progress; `spark.streams.removeListener` ends it."""
    listener = LagListener()
    spark.streams.addListener(listener)
    return listener


def serve_metrics(
    spark: "SparkSession",
    stores: str | Path | Iterable[str | Path | Sequence[str | Path]],
    port: int = 9464,
    address: str = "127.0.0.1",
) -> "MetricsServer":
    """Serve metrics of these stores and of the session's queries for Prometheus; `close()` of the result ends it.

    `stores`: the path of one store, or several, each with its path or paths. `port` 0 takes a free one. The stores are
    read whenever somebody asks. Raises ModuleNotFoundError without prometheus-client, OSError if the port is taken.
    """
    from prometheus_client.registry import Collector

    from spark_stream.metrics import Families, MetricsServer, StoreCollector

    listener = LagListener()

    class QueryCollector(Collector):
        def collect(self) -> "Iterable[Metric]":
            families = Families(QUERY_METRICS)
            for progress in listener.newest():
                for name, value, labels in _samples(progress):
                    families.add(name, value, *labels)
            return families

    server = MetricsServer(
        [StoreCollector([stores] if isinstance(stores, (str, Path)) else stores), QueryCollector()],
        port,
        address,
        on_close=lambda: spark.streams.removeListener(listener),
    )
    spark.streams.addListener(listener)
    return server


def _samples(progress: QueryProgress) -> Iterator[tuple[str, float, tuple[str, ...]]]:
    query = (progress.query, progress.name)
    yield "jstream_query_batch", progress.batch, query
    yield "jstream_query_input_rows_per_second", progress.input_rows_per_second, query
    yield "jstream_query_processed_rows_per_second", progress.processed_rows_per_second, query
    for stream in progress.streams:
        yield "jstream_query_sequence", stream.sequence, (*query, stream.stream, stream.consumer)
        if stream.lag is not None:
            yield "jstream_query_lag_messages", stream.lag, (*query, stream.stream, stream.consumer)
