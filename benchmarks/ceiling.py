"""What Spark allows a Python data source at best: a source of ready batches, and a sink that throws rows away.

Spark's workers import this module by name, so the project's root must be on their path.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from datasource.schema import MESSAGE_TYPES, spark_schema
from storage_core.schema import READ_SCHEMA

BATCH_ROWS = 16_384  # about 3 MiB of messages, as a frame


@lru_cache(maxsize=1)
def ready_batch() -> pa.RecordBatch:
    """Return messages like those of `messages.frame`, in the columns of a read; made once in the life of a worker."""
    numbers = range(BATCH_ROWS)
    columns = {
        "stream": ["ORDERS"] * BATCH_ROWS,
        "sequence": list(numbers),
        "subject": [f"orders.region{number % 16}.created" for number in numbers],
        "timestamp": [1_795_262_400_000_000 + number for number in numbers],
        "headers": [None] * BATCH_ROWS,
        "data": [b"x" * 130] * BATCH_ROWS,
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in READ_SCHEMA], schema=READ_SCHEMA
    )


@dataclass(frozen=True)
class Counted(WriterCommitMessage):
    row_count: int


class MemoryReader(DataSourceReader):
    def __init__(self, row_count: int, partition_count: int) -> None:
        self.row_count, self.partition_count = row_count, partition_count

    def partitions(self) -> Sequence[InputPartition]:
        edges = [self.row_count * at // self.partition_count for at in range(self.partition_count + 1)]
        return [InputPartition(end - first) for first, end in zip(edges, edges[1:], strict=False)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = partition.value
        while left > 0:
            batch = ready_batch()[:left]
            yield batch
            left -= batch.num_rows


class MemorySource(DataSource):
    """Option `rows`: how many; `partitions`: in how many tasks."""

    @classmethod
    def name(cls) -> str:
        return "ready_batches"

    def schema(self) -> StructType:
        return spark_schema(MESSAGE_TYPES)

    def reader(self, schema: StructType) -> DataSourceReader:
        return MemoryReader(int(self.options["rows"]), int(self.options["partitions"]))


class DiscardWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return Counted(sum(batch.num_rows for batch in iterator))


class DiscardSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return DiscardWriter()
