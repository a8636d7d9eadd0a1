"""`table=streams`: what there is, as rows."""

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from datasource.schema import STREAM_TYPES, spark_schema
from storage_core import Store
from storage_core.errors import NotFoundError

SCHEMA = to_arrow_schema(spark_schema(STREAM_TYPES), timezone="UTC")


def test_streams_are_rows_with_configuration_and_state(
    store: Store, driver: Any, orders: Callable[..., pa.Table]
) -> None:
    when = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
    store.stream("ORDERS").append(orders(3).append_column("timestamp", pa.array([when] * 3)))
    store.stream("ORDERS").remove([2])
    rows = {row["stream"]: row for row in driver.read(SCHEMA, table="streams").to_pylist()}
    assert sorted(rows) == ["LOGS", "ORDERS", "ORDERS_EU"]
    found = rows["ORDERS"]
    assert (found["messages"], found["first_sequence"], found["last_sequence"], found["num_deleted"]) == (2, 1, 3, 1)
    assert found["first_timestamp"] == found["last_timestamp"] == when
    assert found["subjects"] == ["orders.>"]
    assert found["incarnation"] == store.stream("ORDERS").incarnation.hex()
    assert rows["LOGS"]["messages"] == 0
    assert rows["LOGS"]["first_timestamp"] is None


def test_columns_and_streams_can_be_chosen(driver: Any) -> None:
    chosen = pa.schema([SCHEMA.field("last_sequence"), SCHEMA.field("stream")])
    table = driver.read(chosen, table="streams", stream="ORDERS*")
    assert table.to_pylist() == [
        {"last_sequence": 0, "stream": "ORDERS"},
        {"last_sequence": 0, "stream": "ORDERS_EU"},
    ]


def test_plan_keeps_its_answer(store: Store, driver: Any) -> None:
    reader, partitions = driver.plan(SCHEMA, table="streams")
    store.delete_stream("LOGS")
    assert [batch.num_rows for one in partitions for batch in reader.read(one)] == [3]


def test_store_without_streams_has_no_rows(tmp_path: Any, driver: Any) -> None:
    Store.create(tmp_path / "empty").close()
    assert driver.read(SCHEMA, table="streams", path=str(tmp_path / "empty")).num_rows == 0


def test_unknown_stream_is_refused(driver: Any) -> None:
    with pytest.raises(NotFoundError, match="did you mean 'LOGS'"):
        driver.read(SCHEMA, table="streams", stream="LOG")
