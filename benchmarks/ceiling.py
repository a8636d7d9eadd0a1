"""What Spark allows a Python data source at best: sources of ready batches, and a sink that throws rows away.

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
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from datasource.schema import MESSAGE_TYPES, spark_schema
from storage_core.schema import READ_SCHEMA

BATCH_ROWS = 16_384  # about 3 MiB of messages, as a frame
DATA_SIZE = 130  # bytes, as in `messages.frame`


@lru_cache(maxsize=1)
def ready_batch(data_size: int = DATA_SIZE) -> pa.RecordBatch:
    """Return messages with data of so many bytes, in the columns of a read; made once in the life of a worker."""
    numbers = range(BATCH_ROWS)
    columns = {
        "stream": ["ORDERS"] * BATCH_ROWS,
        "sequence": list(numbers),
        "subject": [f"orders.region{number % 16}.created" for number in numbers],
        "timestamp": [1_795_262_400_000_000 + number for number in numbers],
        "headers": [None] * BATCH_ROWS,
        "data": [b"x" * data_size] * BATCH_ROWS,
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in READ_SCHEMA], schema=READ_SCHEMA
    )


@dataclass(frozen=True)
class Counted(WriterCommitMessage):
    row_count: int


def shares(row_count: int, partition_count: int) -> list[InputPartition]:
    """Return partitions of about as many rows each."""
    edges = [row_count * at // partition_count for at in range(partition_count + 1)]
    return [InputPartition(end - first) for first, end in zip(edges, edges[1:], strict=False)]


def ready_rows(row_count: int, data_size: int) -> Iterator[pa.RecordBatch]:
    while row_count > 0:
        batch = ready_batch(data_size)[:row_count]
        yield batch
        row_count -= batch.num_rows


class MemoryReader(DataSourceReader):
    def __init__(self, row_count: int, partition_count: int, data_size: int) -> None:
        self.row_count, self.partition_count, self.data_size = row_count, partition_count, data_size

    def partitions(self) -> Sequence[InputPartition]:
        return shares(self.row_count, self.partition_count)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return ready_rows(partition.value, self.data_size)


class MemoryStreamReader(DataSourceStreamReader):
    """The same in one micro-batch: what a query costs that has nothing to do for its rows."""

    def __init__(self, row_count: int, partition_count: int, data_size: int) -> None:
        self.row_count, self.partition_count, self.data_size = row_count, partition_count, data_size

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # as sources without admission control have it
        return {"rows": self.row_count}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return shares(end["rows"] - start["rows"], self.partition_count)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return ready_rows(partition.value, self.data_size)


class MemorySource(DataSource):
    """Option `rows`: how many; `partitions`: in how many tasks; `data_size`: bytes of data a row."""

    @classmethod
    def name(cls) -> str:
        return "ready_batches"

    def schema(self) -> StructType:
        return spark_schema(MESSAGE_TYPES)

    def _shape(self) -> tuple[int, int, int]:
        options = self.options
        return int(options["rows"]), int(options["partitions"]), int(options.get("data_size", DATA_SIZE))

    def reader(self, schema: StructType) -> DataSourceReader:
        return MemoryReader(*self._shape())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return MemoryStreamReader(*self._shape())


class DiscardWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return Counted(sum(batch.num_rows for batch in iterator))


class DiscardSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return DiscardWriter()
