"""What the data source answers before any row is read: its columns, and refusals."""

from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from datasource import source
from datasource.schema import EVENT_TYPES, MESSAGE_TYPES, STREAM_TYPES, spark_schema
from storage_core.errors import NotAStoreError, NotFoundError

# What Spark hands to `schema` for CREATE TABLE t USING jstream.
OF_A_TABLE = {"owner": "me", "provider": "jstream"}


def test_columns_of_messages_and_of_streams(driver: Any) -> None:
    assert source.schema(driver.options({"stream": "ORDERS"})) == spark_schema(MESSAGE_TYPES)
    assert source.schema(driver.options({"table": "streams"})) == spark_schema(STREAM_TYPES)
    assert source.schema(driver.options({"table": "events"})) == spark_schema(EVENT_TYPES)


def test_load_finds_out_about_paths_and_streams(driver: Any) -> None:
    with pytest.raises(NotFoundError, match="did you mean 'ORDERS'"):
        source.schema(driver.options({"stream": "ORDER"}))
    with pytest.raises(NotAStoreError):
        source.schema(driver.options({"stream": "ORDERS", "path": "/nowhere"}))


def test_user_schema_is_checked(driver: Any) -> None:
    picked = StructType([StructField("payload", BinaryType())])
    with pytest.raises(ValueError, match="unknown column 'payload'"):
        source.reader(driver.options({"stream": "ORDERS"}), picked)


def test_catalogue_table_without_options_can_be_made() -> None:
    assert source.schema(OF_A_TABLE) == spark_schema(MESSAGE_TYPES)


@pytest.mark.parametrize("more", [{"path": "file:/x", "location": "file:/x"}, {"option.stream": "S", "stream": "S"}])
def test_catalogue_table_with_options_is_refused_because_spark_drops_them(more: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"Spark drops them.*SELECT.*WITH \(path.*") as refused:
        source.schema({**OF_A_TABLE, **more})
    assert "VIEW" not in str(refused.value), "a view is planned once, and sees no news"


def test_catalogue_table_with_options_is_refused_with_all_of_them() -> None:
    options = {"path": "file:/x", "location": "file:/x", "option.stream": "S", "option.subject": ">"}
    with pytest.raises(ValueError, match=r"with OPTIONS \(path, stream, subject\)"):
        source.schema({**OF_A_TABLE, **options})


def test_catalogue_table_that_lost_its_options_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="'path' is missing.*Spark drops the OPTIONS"):
        source.reader({}, spark_schema(MESSAGE_TYPES))
    with pytest.raises(ValueError, match="'path' is missing.*Spark drops the OPTIONS"):
        source.writer({}, spark_schema(MESSAGE_TYPES), False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"maxOffsetsPerTrigger": "0"}, "'maxOffsetsPerTrigger': '0' is not a whole number from 1 on"),
        ({"maxOffsetsPerTrigger": "5", "startingOffsets": "soon"}, "neither 'earliest', 'latest', 'consumer' nor JSON"),
        ({"endingOffsets": "soon"}, "'endingOffsets': 'soon' is neither 'latest' nor JSON"),
        ({"maxOfsetsPerTrigger": "5"}, "did you mean 'maxOffsetsPerTrigger'"),
    ],
)
def test_load_refuses_what_neither_batch_nor_streaming_read_takes(options: Any, says: str, driver: Any) -> None:
    with pytest.raises(ValueError, match=says):
        source.schema(driver.options({"stream": "ORDERS", **options}))


def test_load_takes_what_only_streaming_reads_take(driver: Any) -> None:
    for options in ({"startingOffsets": "latest"}, {"maxFilesPerTrigger": "1"}, {"stream": "NOT_YET_*"}):
        assert source.schema(driver.options({"stream": "ORDERS", **options})) == spark_schema(MESSAGE_TYPES)
    with pytest.raises(NotFoundError, match="no stream 'NOT_YET'"):
        source.schema(driver.options({"stream": "NOT_YET", "maxFilesPerTrigger": "1"}))
