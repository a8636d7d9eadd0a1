"""Streaming reads of messages: what Spark calls, in the process of the source and on the executors."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from datasource.edge import show_codes
from datasource.partitions import SlicePartition
from datasource.query_sources import check_not_replaced
from datasource.reader import rows_of
from datasource.settings import StreamReadSettings
from datasource.shape import Shape
from datasource.spark_versions import EarlyCalls, ReadLimit, SupportsTriggerAvailableNow
from datasource.stream_offsets import Json
from datasource.stream_source import StreamSource
from storage_core.store.reading.reading import ReadOptions


@show_codes
class MessageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads messages of the streams that the options name, batch by batch.

    Spark makes one in the source's process, and another one that it pickles to the tasks, which call `read` alone. The
    store is opened in the source's process, by the first call that needs it; it never travels.
    """

    def __init__(self, settings: StreamReadSettings, schema: pa.Schema) -> None:
        self.settings, self.schema = settings, schema
        self._opened: StreamSource | None = None

    def __reduce__(self) -> tuple[type["MessageStreamReader"], tuple[StreamReadSettings, pa.Schema]]:
        return type(self), (self.settings, self.schema)

    @property
    def _source(self) -> StreamSource:
        if self._opened is None:
            self._opened = StreamSource(self.settings)
        return self._opened

    # --- in the source's process, strictly in turn

    def getDefaultReadLimit(self) -> ReadLimit:
        return self.settings.limits.read_limit()

    def prepareForTriggerAvailableNow(self) -> None:
        self._source.prepare_available_now()

    def initialOffset(self) -> Json:
        return self._source.initial()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        return self._source.latest(start, limit)

    def reportLatestOffset(self) -> Json:
        return self._source.report()

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        return self._source.partitions(start, end)

    def commit(self, end: Json) -> None:
        self._source.acknowledge(end)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    # --- on the executors, once for each attempt of a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlicePartition), partition
        check_not_replaced(partition.replaced_by)
        shape = Shape.of(self.settings, self.schema)
        options = ReadOptions(
            columns=shape.asked,
            subject_filters=() if self.settings.subject is None else (self.settings.subject,),
            verify=self.settings.verify,
            on_loss="raise" if self.settings.fail_on_data_loss else "skip",
        )
        yield from rows_of(partition, options, self.settings, shape)


@show_codes
class EarlyStreamReader(EarlyCalls, MessageStreamReader):  # type: ignore[misc]
    """The same for Spark 4.0 and 4.1."""
