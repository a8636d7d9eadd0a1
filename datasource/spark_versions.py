"""What differs between the versions of Spark: the names of the newest, with stand-ins where the installed one has none.

    Spark   what a Python source can do from there on
    4.0     be read and written, in batches and streaming
    4.1     take the rows of a streaming write as Arrow batches, and filters
    4.2     hear where a batch begins, how much it may take, and that the trigger is AvailableNow; say where streams end
    later   take filters that Spark keeps apart

Spark never uses a stand-in.
"""

import ast
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from datasource.edge import show_codes

__all__ = [
    "AVAILABLE_NOW", "HAS_ARROW_UDF", "PROCESS_ALL", "SAYS_LIMITS", "SPARK", "DataSourceStreamArrowWriter",
    "EarlyCalls", "EqualNullSafe", "EqualTo",
    "Filter", "GreaterThan", "GreaterThanOrEqual", "In", "IsNotNull", "IsNull", "LessThan", "LessThanOrEqual",
    "ReadAllAvailable", "ReadLimit", "ReadMaxBytes", "ReadMaxFiles", "ReadMaxRows", "ReadMinRows", "StringStartsWith",
    "SupportsTriggerAvailableNow", "arrow_schema", "keeps_filters_apart", "reported_offset",
]  # fmt: skip

SPARK = tuple(map(int, pyspark.__version__.split(".")[:2]))
if not (4, 0) <= SPARK < (4, 4):
    raise ImportError(
        f"jstream needs Spark 4.0 to 4.3, and this Python has PySpark {pyspark.__version__}", name="pyspark"
    )
SAYS_LIMITS = SPARK >= (4, 2)
HAS_ARROW_UDF = SPARK >= (4, 1)
AVAILABLE_NOW, PROCESS_ALL = "availablenow", "processallavailable"  # as the option `trigger` says it

if TYPE_CHECKING or SAYS_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxFiles,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """What a batch may take; made and met by jstream alone."""

    class SupportsTriggerAvailableNow:
        """A reader that could be told of the trigger."""

    @dataclass
    class ReadAllAvailable(ReadLimit):
        pass

    @dataclass
    class ReadMaxRows(ReadLimit):
        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):
        max_bytes: int

    @dataclass
    class ReadMaxFiles(ReadLimit):
        max_files: int

    @dataclass
    class ReadMinRows(ReadLimit):
        min_rows: int


if TYPE_CHECKING or SPARK >= (4, 1):
    from pyspark.sql.datasource import (
        DataSourceStreamArrowWriter,
        EqualNullSafe,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        IsNull,
        LessThan,
        LessThanOrEqual,
        StringStartsWith,
    )
else:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark 4.0 hands Arrow batches to whatever is a batch writer of Arrow, in streaming queries as well."""

    class Filter:
        """A condition that Spark could push down."""

    def _filter(name: str) -> Any:
        return type(name, (Filter,), {"__module__": __name__})

    EqualTo, EqualNullSafe, In = map(_filter, ("EqualTo", "EqualNullSafe", "In"))
    IsNull, IsNotNull, StringStartsWith = map(_filter, ("IsNull", "IsNotNull", "StringStartsWith"))
    GreaterThan, GreaterThanOrEqual = map(_filter, ("GreaterThan", "GreaterThanOrEqual"))
    LessThan, LessThanOrEqual = map(_filter, ("LessThan", "LessThanOrEqual"))


@show_codes
class EarlyCalls:
    """What Spark 4.0 and 4.1 call of a streaming reader: they say neither where a batch begins, nor limits or trigger.

    One process serves one run of a query, so a batch begins where the one before it ended. Spark's calls, in order:

        without a checkpoint      latestOffset, initialOffset, partitions(initial, end)
        with one                  partitions(x, x), where x is the newest offset in it; then latestOffset,
                                  partitions(x, end), or, if that batch was not finished, partitions(start, x)
        each further batch        latestOffset, partitions(start, end)

    A first latestOffset may still be that of a query with a checkpoint, whose consumer must not be moved: with
    spark.sql.streaming.triggerAvailableNowWrapper.enabled=true Spark calls it before partitions(x, x), and once more
    for its report, before the batch is planned.
    """

    settings: Any
    _source: Any  # the run's: a StreamSource or a LiveSource
    _at: Any = None  # where the next batch begins; None: not said yet
    _is_planned = True  # whether Spark has asked for the partitions of the batch that ends there
    _has_target = False  # whether the run is not to read what comes from now on

    def latestOffset(self) -> Any:
        if not self._is_planned and self._at is not None:
            self._is_planned = True
            return self._at
        source, start, trigger = self._source, self._at, self.settings.trigger
        limit = ReadAllAvailable() if trigger == AVAILABLE_NOW else self.settings.limits.read_limit()
        if trigger in (AVAILABLE_NOW, PROCESS_ALL) and not self._has_target:
            source.prepare_available_now()
            self._has_target = True
        self._at = source.first_end(limit) if start is None else source.latest(start, limit)
        self._is_planned = self._at == start
        return self._at

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        if start == end and self._at not in (None, end):
            raise RuntimeError(
                "Spark asked where a batch ends before it said where the query stands. Nothing was read: set "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled=false, which is Spark's default"
            )
        self._at, self._is_planned = end, True
        if start == end:
            return []
        parts: Sequence[InputPartition] = self._source.partitions(start, end)
        self._source.acknowledge(start)  # for a query's first run, in which no call of Spark's says so
        return parts


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of Spark's, with times in UTC."""
    zone: dict[str, Any] = {"timezone": "UTC"} if SAYS_LIMITS else {}  # UTC is what earlier versions take by themselves
    return to_arrow_schema(schema, **zone)


def reported_offset(text: str | None) -> Any:
    """Return the offset that a query's progress reports of a source; None if the text is no offset in JSON.

    Before Spark 4.2, a listener of a Spark Connect session gets Python's text of the offset in place of JSON.
    """
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError):
            return read(text or "null")
    return None


def keeps_filters_apart() -> bool:
    """Return whether Spark keeps the filters that it pushes into one scan from all others of the same table.

    Until 4.3 it notes the read that was planned with a scan's filters in the table, which all scans of a frame or view
    share: `frame.where("sequence < 7")` makes `frame` itself lose rows. The change that notes it in the scan is the
    one that gave readers `pushLimit`; the JVM and its Python workers have both halves of it, or do not understand each
    other. Source: apache/spark, SPARK-58551, PythonScanBuilder.scala.
    """
    return hasattr(DataSourceReader, "pushLimit")
