"""A streaming read with wrong options is refused by its first call: Spark covers what is raised before."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from datasource import source
from datasource.spark_versions import ReadAllAvailable, SupportsTriggerAvailableNow

COLUMNS = StructType([StructField("sequence", LongType())])
CALLS: dict[str, Callable[[Any], object]] = {
    "getDefaultReadLimit": lambda reader: reader.getDefaultReadLimit(),
    "prepareForTriggerAvailableNow": lambda reader: reader.prepareForTriggerAvailableNow(),
    "initialOffset": lambda reader: reader.initialOffset(),
    "latestOffset": lambda reader: reader.latestOffset({}, ReadAllAvailable()),
    "reportLatestOffset": lambda reader: reader.reportLatestOffset(),
    "partitions": lambda reader: reader.partitions({}, {}),
    "read": lambda reader: reader.read(None),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_call_says_which_option_is_wrong(call: Callable[[Any], object]) -> None:
    reader = source.stream_reader({"path": "/shop", "stream": "ORDERS", "endingOffsets": "latest"}, COLUMNS)
    assert isinstance(reader, SupportsTriggerAvailableNow)
    with pytest.raises(ValueError, match="option 'endingOffsets' is for batch reads only"):
        call(reader)
    reader.stop()


def test_a_schema_that_is_not_offered_is_refused_likewise() -> None:
    wrong = StructType([StructField("data", LongType())])
    reader = source.stream_reader({"path": "/shop", "stream": "ORDERS"}, wrong)
    with pytest.raises(ValueError, match="schema: column 'data' is bigint, messages have binary"):
        reader.initialOffset()
