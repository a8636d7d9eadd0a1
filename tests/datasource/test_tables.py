"""`table=last`, `streams`, `consumers` and `events`: what there is and what happened, as rows."""

import json
import shutil
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader

from datasource.schema import (
    CONSUMER_TYPES,
    EVENT_TYPES,
    FOREIGN_CONSUMER_TYPES,
    MESSAGE_TYPES,
    STREAM_TYPES,
    spark_schema,
)
from datasource.spark_versions import arrow_schema
from storage_core import Store
from storage_core.errors import NotFoundError
from storage_core.metadata.commands import Event, RecordEvents

SCHEMA = arrow_schema(spark_schema(STREAM_TYPES))
CONSUMERS = arrow_schema(spark_schema(CONSUMER_TYPES))
EVENTS = arrow_schema(spark_schema(EVENT_TYPES))


MESSAGES = arrow_schema(spark_schema(MESSAGE_TYPES))


def test_the_last_message_of_each_subject_is_a_row(store: Store, driver: Any, orders: Callable[..., pa.Table]) -> None:
    for _ in range(2):
        store.stream("ORDERS").append(orders(7))  # orders.0.new to orders.2.new in turn
    store.stream("ORDERS_EU").append(orders(2, prefix="eu."))

    def last(**options: str) -> list[tuple[str, int]]:
        table = driver.read(MESSAGES, table="last", **options)
        return sorted(zip(table.column("stream").to_pylist(), table.column("sequence").to_pylist(), strict=True))

    eu = [("ORDERS_EU", 1), ("ORDERS_EU", 2)]
    assert last(stream="ORDERS*") == [("ORDERS", 12), ("ORDERS", 13), ("ORDERS", 14), *eu]
    assert last(stream="ORDERS", subject="orders.1.*") == [("ORDERS", 12)]
    assert last(stream="ORDERS", endingOffsets='{"ORDERS": 6}') == [("ORDERS", 3), ("ORDERS", 4), ("ORDERS", 5)]
    assert last(stream="LOGS") == []


def test_no_filter_is_pushed_below_the_choice_of_last_messages(driver: Any) -> None:
    reader, _ = driver.plan(MESSAGES, table="last", stream="ORDERS")
    pushes, all_others = (getattr(kind, "pushFilters", None) for kind in (type(reader), DataSourceReader))
    assert pushes is all_others  # None in Spark 4.0, which has no filters for Python sources


@pytest.mark.buckets
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


@pytest.mark.buckets
def test_streams_say_which_of_their_replicas_are_current(tmp_path: Any, driver: Any) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    store = Store.create(paths)
    store.add_stream({"name": "S"}).publish("S", b"x")
    shutil.rmtree(paths[1])
    (row,) = driver.read(SCHEMA, table="streams", path=str(paths[0])).to_pylist()
    assert [one["state"] for one in row["replicas"]] == ["current", "missing", "current"]
    assert [one["current"] for one in row["replicas"]] == [True, False, True]
    assert [one["path"] for one in row["replicas"]] == [str(path) for path in paths]
    assert row["lost_ranges"] == []


def test_consumers_are_rows_with_their_positions_and_what_they_are_behind_by(
    store: Store, driver: Any, orders: Callable[..., pa.Table]
) -> None:
    when = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
    stream = store.stream("ORDERS")
    stream.append(orders(6).append_column("timestamp", pa.array([when] * 6)))
    billing = stream.add_consumer({"name": "billing", "on_data_loss": "fail"})
    store.stream("LOGS").add_consumer({"name": "idle", "description": "nothing yet"})
    billing.ack(billing.fetch(4, 0).column("sequence")[:1])
    billing.nak([2, 3])
    billing.fetch(2, 0)
    stream.remove([3])
    idle, found = driver.read(CONSUMERS, table="consumers").to_pylist()
    assert (idle["stream"], idle["consumer"], idle["lag_messages"], idle["lag_seconds"]) == ("LOGS", "idle", 0, 0.0)
    assert (idle["oldest_sequence"], idle["oldest_timestamp"]) == (None, None)
    assert (idle["pending"], idle["redelivered"]) == ([], [])
    assert (found["stream"], found["consumer"], found["delivered"], found["ack_floor"]) == ("ORDERS", "billing", 4, 1)
    assert (found["num_ack_pending"], found["num_redelivered"], found["num_pending"]) == (2, 1, 2)
    assert (found["pending"], found["redelivered"]) == ([2, 4], [{"sequence": 2, "count": 1}])
    assert (found["lag_messages"], found["oldest_sequence"], found["oldest_timestamp"]) == (4, 2, when)
    assert (found["paused"], found["problem"]) == (False, None)
    assert found["incarnation"] == stream.incarnation.hex()
    assert json.loads(found["config"])["on_data_loss"] == "fail"


def test_looking_at_consumers_moves_none_and_shows_who_waits_for_a_decision(
    store: Store, driver: Any, orders: Callable[..., pa.Table]
) -> None:
    stream = store.stream("ORDERS")
    stream.append(orders(3))
    consumer = stream.add_consumer({"name": "billing"})
    stream.add_consumer({"name": "strict", "on_data_loss": "fail"})
    stream.purge(end=3)
    index = store.view().index
    goes_on, waits = driver.read(CONSUMERS, table="consumers", stream="ORDERS").to_pylist()
    assert goes_on["problem"] is None and "1 to 2" in waits["problem"]
    assert (store.view().index, [one["kind"] for one in consumer.info()["events"]]) == (index, ["consumer_skipped"])


def test_consumers_of_chosen_streams_and_of_a_store_without_any(store: Store, driver: Any) -> None:
    store.stream("ORDERS").add_consumer({"name": "billing"})
    chosen = pa.schema([CONSUMERS.field("consumer")])
    assert driver.read(chosen, table="consumers", stream="ORDERS*").to_pylist() == [{"consumer": "billing"}]
    assert driver.read(chosen, table="consumers", stream="LOGS").num_rows == 0
    with pytest.raises(NotFoundError, match="did you mean 'LOGS'"):
        driver.read(chosen, table="consumers", stream="LOG")


def test_columns_of_consumers_that_a_foreign_store_has_too_are_of_the_same_type() -> None:
    shared = CONSUMER_TYPES.keys() & FOREIGN_CONSUMER_TYPES.keys()
    assert shared >= {"stream", "consumer", "delivered", "ack_floor", "num_ack_pending", "pending", "redelivered"}
    assert all(CONSUMER_TYPES[name] == FOREIGN_CONSUMER_TYPES[name] for name in shared)


def record(store: Store, *events: Event) -> None:
    with store.session() as session:
        session.propose(RecordEvents(events))


@pytest.mark.buckets
def test_events_are_rows_oldest_first_with_nothing_for_what_they_are_not_about(store: Store, driver: Any) -> None:
    record(store, Event("scrub", time_ns=1_000_000_001), Event("lost", "ORDERS", after="3 messages", reason="gone"))
    scrub, lost = driver.read(EVENTS, table="events").to_pylist()
    assert scrub["time"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
    assert {key: value for key, value in scrub.items() if value is not None and key != "time"} == {"kind": "scrub"}
    assert (lost["kind"], lost["stream"], lost["after"], lost["reason"]) == ("lost", "ORDERS", "3 messages", "gone")
    assert lost["time"] > scrub["time"]


def test_events_of_a_stream_can_be_chosen_also_when_it_is_gone(store: Store, driver: Any) -> None:
    record(store, Event("lost", "LOGS"), Event("scrub"), Event("lost", "ORDERS"))
    store.delete_stream("LOGS")
    chosen = pa.schema([EVENTS.field("stream")])
    assert driver.read(chosen, table="events", stream="L*").to_pylist() == [{"stream": "LOGS"}]
    assert driver.read(chosen, table="events", stream="ORDERS_EU").num_rows == 0
    assert driver.read(chosen, table="events").num_rows == 3
    with pytest.raises(NotFoundError, match="no stream 'NONE'"):
        driver.read(chosen, table="events", stream="NONE")


def test_a_store_to_which_nothing_happened_has_no_events(driver: Any) -> None:
    assert driver.read(EVENTS, table="events").num_rows == 0
