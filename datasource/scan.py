"""`scan(spark, path, ...)`: a batch read whose rows reach Spark by `mapInArrow` instead of through a data source.

A scan plans, checks and reads with the very reader of `spark.read.format("jstream")`; only the way into the JVM is
another. Spark copies each row of a Python data source twice, the second time in a projection that it puts above every
source of rows, and asks a process for the plan; both are spared. Spark cannot see into such a read, though: no filter
is pushed into it, and all its columns are always sent.

Its tasks are those of a tiny plan, a range of numbers of which a filter leaves one for each partition. The range has
about as many numbers as there are messages, and a column beside them, because Spark estimates the size of the result
by what goes in, filters aside, at 58 bytes a number then. By a number for each partition it would take terabytes for a
few rows, and broadcast them in a join.
"""

import json
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from pyspark.sql.utils import to_str

from datasource import source
from datasource.offsets import ENDING, STARTING
from datasource.partitions import SlicePartition
from datasource.reader import is_glob
from datasource.values import parse_names
from storage_core.quantities import whole_number
from storage_core.store.opened import names_of
from storage_core.store.reading.slices import BlockSlices

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Place = int | datetime | str | Mapping[str, int | str]
SERIALIZER: Any = CPickleSerializer()  # with which Spark itself sends partitions of data sources
ROW_SIZE = 64  # bytes, about what Spark takes a number for; larger messages count as several


def scan(
    spark: "SparkSession",
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    stream: str | Sequence[str] | None = None,
    columns: str | Sequence[str] | None = None,
    start: Place | None = None,
    end: Place | None = None,
    subject: str | None = None,
    schema: StructType | str | None = None,
    **options: Any,
) -> "DataFrame":
    """Return the rows that `spark.read.format("jstream")` reads with the same options, which reach Spark in less time.

    `start` (inclusive) and `end` (exclusive) are a sequence, a time, sequences by stream, or what `startingOffsets`
    and `endingOffsets` take. `schema` picks columns as `columns` does, and may declare `data STRING`. Other options of
    a batch read go by their names. What to leave out is said here: Spark pushes nothing of a later `where` or `select`
    down. The read is planned at once, in this process, which must see the store; each use gives the same rows.

    Raises ValueError for an option that cannot be, and what opening and planning raise, both as they are.
    """
    arguments: dict[str, Any] = {
        "path": path if isinstance(path, str) else json.dumps(_listed(path)),
        "stream": _joined("stream", stream),
        "columns": _joined("columns", columns),
        "subject": subject,
        **_bound(STARTING, "start", start, stream),
        **_bound(ENDING, "end", end, stream),
    }
    chosen: dict[str, Any] = {name.lower(): to_str(value) for name, value in arguments.items() if value is not None}
    for name, value in options.items():
        if name.lower() in chosen:
            raise ValueError(f"option {name!r} is given twice: an argument of scan says the same")
        if value is not None:
            chosen[name.lower()] = to_str(value)
    if schema is None:
        schema = source.schema(chosen)
    declared: Any = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    reader = source.reader(chosen, declared)
    partitions = reader.partitions()
    share = -(-max(1, sum(map(_row_count, partitions))) // len(partitions))
    rows = ScannedRows(reader, tuple(map(SERIALIZER.dumps, partitions)), share)
    numbers = spark.range(0, share * len(partitions), 1, len(partitions))
    wide = numbers.where(numbers["id"] % share == 0).selectExpr("id", "CAST(NULL AS BINARY) AS width")
    return wide.mapInArrow(rows.read, declared)


@dataclass(frozen=True)
class ScannedRows:
    """What the tasks of a scan get: Spark sends it whole to each, so partitions stay packed until they are read."""

    reader: DataSourceReader
    partitions: tuple[bytes, ...]
    share: int  # numbers of the range that stand for one partition

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the partitions whose numbers come; called on an executor, once for each attempt."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                partition: InputPartition = SERIALIZER.loads(self.partitions[number // self.share])
                yield from self.reader.read(partition)


def _listed(path: "os.PathLike[str] | Sequence[str | os.PathLike[str]]") -> list[str]:
    return [os.fspath(path)] if isinstance(path, os.PathLike) else [os.fspath(part) for part in path]


def _joined(argument: str, names: str | Sequence[str] | None) -> str | None:
    """Return names as an option takes them. Raises ValueError for what are no names."""
    listed = names_of(names, argument)
    return None if listed is None else ",".join(listed)


def _bound(side: str, argument: str, place: Place | None, stream: str | Sequence[str] | None) -> dict[str, str]:
    """Return the option that says where the read starts or ends."""
    if isinstance(place, datetime):
        return {f"{side}Timestamp": place.isoformat()}
    sequence = whole_number(place)
    if sequence is not None:
        names = parse_names("stream", _joined("stream", stream) or "")
        if any(map(is_glob, names)):
            raise ValueError(
                f"{argument}={sequence}, stream={stream!r}: say it stream by stream, as in {{'ORDERS': 1}}"
            )
        place = dict.fromkeys(names, sequence)
    if isinstance(place, Mapping):
        return {f"{side}Offsets": json.dumps(dict(place), default=operator.index)}  # of numpy's integers
    return {} if place is None else {f"{side}Offsets": str(place)}


def _row_count(partition: InputPartition) -> int:
    """Return about how many rows the partition has."""
    slices = partition.slices if isinstance(partition, SlicePartition) else ()
    if isinstance(slices, BlockSlices):
        return int(np.maximum(slices.row_counts, slices.byte_sizes // ROW_SIZE).sum())
    return sum(max(piece.row_count, piece.byte_size // ROW_SIZE) for piece in slices)
