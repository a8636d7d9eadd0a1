"""`acknowledge(spark)`: durable consumers acknowledge each batch as soon as it is finished.

A query acknowledges by itself when Spark asks its source for the next batch. With a long trigger interval that is long
after the last one was stored, and a query that is stopped never gets there: its consumer looks as if it lagged. The
listener that is installed here gets every finished batch, with the offsets at its end, and acknowledges those.

It runs in the user's own process, to which the source's process says where the store is (known_stores.py). The offset
names store, stream and consumer; entries without a consumer are skipped. It owns nothing and moves no consumer
back, so it cannot get in the way of the query; what goes wrong here is logged, and left to the query.
"""

import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from datasource import known_stores, stream_offsets
from datasource.settings import LOCK_TIMEOUT_S
from datasource.spark_versions import reported_offset
from datasource.store_opening import open_store
from datasource.stream_offsets import Offsets
from storage_core.errors import NotAStoreError
from storage_core.store.consumers.query import QueryReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("jstream")
_installed: dict[str, "Acknowledger"] = {}  # by the id of the session
_installing = threading.Lock()


def acknowledge(spark: "SparkSession") -> None:
    """Have the durable consumers of this session's streaming queries acknowledge each batch when it is finished.

    Once for each session, before or after its queries are started; once more does nothing.
    """
    with _installing:
        session = _id_of(spark)
        if session not in _installed:
            listener = Acknowledger()
            spark.streams.addListener(listener)
            _installed[session] = listener


def _id_of(spark: "SparkSession") -> str:
    session: Any = getattr(spark, "_jsparkSession", None)
    if session is not None:
        return str(session.sessionUUID())
    return str(getattr(spark, "session_id", id(spark)))  # Spark Connect


class Acknowledger(StreamingQueryListener):
    """Acknowledges what progress events say is finished. Spark calls it from threads of its own."""

    def __init__(self) -> None:
        self._readers: dict[tuple[bytes, str], QueryReader] = {}  # by store and consumer
        self._troubles: dict[tuple[bytes, str], str] = {}  # what was logged last
        self._busy = threading.Lock()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is finished yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Acknowledge the end offsets of a batch. Never raises: Spark would log it as an error of its own."""
        try:
            for source in event.progress.sources:
                for consumer, offsets in _by_consumer(source.endOffset):
                    self._acknowledge(consumer, offsets)
        except Exception as error:
            log.warning("batch %s was not acknowledged when it was finished: %s", event.progress.batchId, error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: an idle query has finished no batch since its last progress."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """What it finished was acknowledged with its progress."""

    def _acknowledge(self, consumer: str, offsets: Offsets) -> None:
        by_store: dict[bytes, Offsets] = {}
        for name, offset in offsets.items():
            by_store.setdefault(offset.store_id, {})[name] = offset
        for store_id, ends in by_store.items():
            key = (store_id, consumer)
            try:
                with self._busy:
                    self._reader(key).acknowledge({name: end.at.position for name, end in ends.items()})
                self._troubles.pop(key, None)
            except Exception as error:
                self._readers.pop(key, None)
                if self._troubles.get(key) != str(error):
                    self._troubles[key] = str(error)
                    log.warning(
                        "consumer %s: a finished batch is not acknowledged yet, the query does it with its next one: "
                        "%s",
                        consumer, error,
                    )  # fmt: skip

    def _reader(self, key: tuple[bytes, str]) -> QueryReader:
        """Return a reader of the store on behalf of the consumer; raises NotAStoreError if it cannot be found."""
        store_id, consumer = key
        if key not in self._readers:
            paths = known_stores.find(store_id)
            if not paths:
                raise NotAStoreError(f"nothing on this machine says where store {store_id.hex()} is")
            store = open_store(paths, LOCK_TIMEOUT_S)
            if store.id != store_id:
                raise NotAStoreError(f"{store.label} is store {store.id.hex()}, not {store_id.hex()}")
            self._readers[key] = QueryReader(store, consumer, own=False)
        return self._readers[key]


def _by_consumer(end_offset: str | None) -> Iterator[tuple[str, Offsets]]:
    """Yield each consumer of an offset with its streams; nothing for offsets of other sources."""
    try:
        entries = reported_offset(end_offset)
        if not isinstance(entries, dict) or not all(
            isinstance(entry, dict) and "store" in entry for entry in entries.values()
        ):
            return
        offsets = stream_offsets.decode(entries)
    except ValueError:
        return
    for consumer in sorted({offset.consumer for offset in offsets.values() if offset.consumer is not None}):
        yield consumer, {name: offset for name, offset in offsets.items() if offset.consumer == consumer}
