"""Streaming reads of messages: their source, and what a task reads on an executor, once for each attempt."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from datasource.edge import show_codes
from datasource.partitions import SlicePartition
from datasource.query_sources import check_not_replaced
from datasource.reader import rows_of
from datasource.shape import Shape
from datasource.spark_versions import EarlyCalls
from datasource.stream_calls import QueryStreamReader
from datasource.stream_source import StreamSource
from storage_core.metadata.reconcile import CONTINUE, FAIL
from storage_core.store.reading.reading import ReadOptions


@show_codes
class MessageStreamReader(QueryStreamReader):
    """Reads messages of the streams that the options name, batch by batch."""

    def _open(self) -> StreamSource:
        return StreamSource(self.settings)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlicePartition), partition
        check_not_replaced(partition.replaced_by)
        shape = Shape.of(self.settings, self.schema)
        options = ReadOptions(
            columns=shape.asked,
            subject_filters=() if self.settings.subject is None else (self.settings.subject,),
            verify=self.settings.verify,
            on_data_loss=FAIL if self.settings.fail_on_data_loss else CONTINUE,
        )
        yield from rows_of(partition, options, self.settings, shape)


class EarlyStreamReader(EarlyCalls, MessageStreamReader):  # type: ignore[misc]
    """The same for Spark 4.0 and 4.1."""
