"""What Spark calls of a streaming reader in the process of its source, strictly in turn."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from datasource.edge import show_codes
from datasource.settings import StreamReadSettings
from datasource.spark_versions import ReadLimit, SupportsTriggerAvailableNow
from datasource.stream_offsets import Json


class QuerySource(Protocol):
    """One run of a query: what its process keeps."""

    def prepare_available_now(self) -> None: ...
    def initial(self) -> Json: ...
    def latest(self, start: Json, limit: ReadLimit) -> Json: ...
    def report(self) -> Json: ...
    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]: ...
    def acknowledge(self, end: Json) -> None: ...
    def close(self) -> None: ...


@show_codes
class QueryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that hands Spark's calls to its source.

    Spark makes one in the source's process, and another one that it pickles to the tasks, which call `read` alone. The
    source is opened by the first call that needs it; it never travels.
    """

    def __init__(self, settings: StreamReadSettings, schema: pa.Schema) -> None:
        self.settings, self.schema = settings, schema
        self._opened: QuerySource | None = None

    def __reduce__(self) -> tuple[type["QueryStreamReader"], tuple[StreamReadSettings, pa.Schema]]:
        return type(self), (self.settings, self.schema)

    @abstractmethod
    def _open(self) -> QuerySource: ...

    @property
    def _source(self) -> QuerySource:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

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
