"""A streaming read that is refused. Spark 4.2 stops the reader that it was not given, when making one fails, and shows
that error of its own last: so a refusal is raised by the first call instead, whichever it is.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from datasource.edge import show_codes
from datasource.spark_versions import ReadLimit, SupportsTriggerAvailableNow


@show_codes
class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises why the read is refused, from whatever it is asked."""

    def __init__(self, reason: Exception) -> None:
        self.reason = reason

    def _refuse(self) -> NoReturn:
        raise self.reason

    def getDefaultReadLimit(self) -> ReadLimit:
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:
        self._refuse()

    def initialOffset(self) -> Any:
        self._refuse()

    def latestOffset(self, start: Any = None, limit: ReadLimit | None = None) -> Any:  # without, before Spark 4.2
        self._refuse()

    def reportLatestOffset(self) -> Any:
        self._refuse()

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        self._refuse()
