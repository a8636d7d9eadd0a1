"""Batch writes, driven as Spark drives them: one writer, pickled to tasks and to the commit."""

import logging
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.block_places import block_count

from datasource.writer import StagedPartition, route
from storage_core import Store
from storage_core.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    FencedError,
    InvalidMessageError,
    StorageError,
    StreamNotFoundError,
)
from storage_core.schema import HEADERS_TYPE, READ_SCHEMA

Make = Callable[..., pa.Table]


def test_tasks_are_one_append_in_the_order_of_partitions(store: Store, driver: Any, orders: Make) -> None:
    writer = driver.writer(orders(1).schema, stream="ORDERS")
    parts = [writer.write(iter(orders(10, first).to_batches(max_chunksize=3))) for first in (10, 0, 20)]
    late, early, last = parts
    ordered = [
        StagedPartition(position, tuple(_moved(block, position) for block in part.blocks))
        for position, part in ((1, late), (0, early), (2, last))
    ]
    writer.commit(ordered)
    table = driver.read(stream="ORDERS")
    assert table["data"].to_pylist() == [f"order {number}".encode() for number in range(30)]
    assert table["sequence"].to_pylist() == list(range(1, 31))


def _moved(block: Any, partition: int) -> Any:
    from dataclasses import replace

    return replace(block, partition=partition)


def test_message_of_a_task_says_which_blocks_it_wrote(driver: Any, orders: Make) -> None:
    (message,) = driver.write(orders(3), stream="ORDERS")
    assert message.partition == 0
    assert len(message.blocks) == 1


def test_all_columns_come_back_as_they_were_written(driver: Any) -> None:
    times = [datetime(2026, 11, 21, 12, 0, 0, 7, tzinfo=timezone.utc), None]
    headers = [[("trace", b"1"), ("trace", None)], None]
    table = pa.table(
        {
            "timestamp": pa.array(times, pa.timestamp("us", "America/New_York")),
            "headers": pa.array(headers, HEADERS_TYPE),
            "subject": ["orders.a", "orders.b"],
            "data": pa.array([None, b"\xff"], pa.binary()),
        }
    )
    driver.write(table, stream="ORDERS")
    rows = driver.read(stream="ORDERS").to_pylist()
    assert [row["data"] for row in rows] == [None, b"\xff"]
    assert [row["subject"] for row in rows] == ["orders.a", "orders.b"]
    assert rows[0]["timestamp"] == times[0]
    assert rows[1]["timestamp"] > datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert rows[0]["headers"] == [{"key": "trace", "value": b"1"}, {"key": "trace", "value": None}]
    assert rows[1]["headers"] is None


def test_two_times_of_a_row_say_the_same_or_are_refused(driver: Any) -> None:
    exact = [1_700_000_000_123_456_789, None, 1_700_000_000_000_000_001, -1_500]
    coarse = pa.array([1_700_000_000_123_456, 1_600_000_000_000_000, None, -2], pa.timestamp("us", "UTC"))
    both = pa.table({"timestamp": coarse, "timestamp_ns": pa.array(exact, pa.int64()), "data": ["a", "b", "c", "d"]})
    driver.write(both, stream="LOGS")
    schema = pa.schema(
        [READ_SCHEMA.field("timestamp"), pa.field("timestamp_ns", pa.int64()), READ_SCHEMA.field("data")]
    )
    stored = driver.read(schema, stream="LOGS")
    assert stored["timestamp_ns"].to_pylist() == [exact[0], 1_600_000_000_000_000_000, exact[2], exact[3]]
    driver.write(stored, stream="LOGS")
    other = both.set_column(1, "timestamp_ns", pa.array([exact[0], None, None, -1_500 - 1_000], pa.int64()))
    with pytest.raises(InvalidMessageError, match="row 3 of the batch: timestamp_ns -2500"):
        driver.write(other, stream="LOGS")


def test_text_becomes_utf8(driver: Any) -> None:
    driver.write(pa.table({"data": ["grün", None, ""]}), stream="LOGS")
    assert driver.read(stream="LOGS")["data"].to_pylist() == ["grün".encode(), None, b""]


def test_what_was_read_can_be_written_and_gets_new_sequences(store: Store, driver: Any, orders: Make) -> None:
    store.stream("ORDERS").append(orders(5))
    store.stream("ORDERS").remove([1, 2])
    copy = driver.read(stream="ORDERS")
    driver.write(copy, stream="ORDERS")
    assert driver.sequences(stream="ORDERS") == [3, 4, 5, 6, 7, 8]


def test_rows_go_to_the_stream_that_they_name(store: Store, driver: Any) -> None:
    names = ["ORDERS", "LOGS", "ORDERS", "ORDERS_EU", "LOGS"]
    subjects = ["orders.a", None, "orders.b", "eu.a", "logs.line"]
    table = pa.table({"stream": names, "subject": subjects, "data": [str(at) for at in range(5)]})
    driver.write(table, table)
    before = store.view().index
    for name, data in (("ORDERS", "02"), ("LOGS", "14"), ("ORDERS_EU", "3")):
        assert driver.read(stream=name)["data"].to_pylist() == [one.encode() for one in data * 2]
    assert store.view().index == before


@pytest.mark.buckets
def test_several_streams_are_one_entry_of_the_log(store: Store, driver: Any) -> None:
    before = store.view().index
    driver.write(pa.table({"stream": ["LOGS", "ORDERS"], "subject": ["logs.line", "orders.a"], "data": ["1", "2"]}))
    assert store.view().index == before + 1


def test_column_stream_is_ignored_beside_the_option(driver: Any) -> None:
    driver.write(
        pa.table({"stream": ["LOGS", None], "subject": ["eu.a", "eu.b"], "data": ["1", "2"]}), stream="ORDERS_EU"
    )
    assert driver.sequences(stream="ORDERS_EU") == [1, 2]


def test_subject_falls_to_the_option_then_to_the_only_literal_subject(driver: Any) -> None:
    table = pa.table({"subject": ["orders.own", None], "data": ["1", "2"]})
    driver.write(table, stream="ORDERS", subject="orders.option")
    assert driver.read(stream="ORDERS")["subject"].to_pylist() == ["orders.own", "orders.option"]
    driver.write(pa.table({"data": ["1"]}), stream="LOGS")
    assert driver.read(stream="LOGS")["subject"].to_pylist() == ["logs.line"]


def test_msg_ids_seen_before_are_not_shown_again(driver: Any) -> None:
    table = pa.table({"subject": ["orders.a"] * 2, "data": ["1", "2"], "msg_id": ["a", "b"]})
    driver.write(table, stream="ORDERS")
    driver.write(table, stream="ORDERS")
    assert driver.sequences(stream="ORDERS") == [1, 2]


@pytest.mark.buckets
def test_overwrite_replaces_the_stream_in_one_step(store: Store, driver: Any, orders: Make) -> None:
    driver.write(orders(5), stream="ORDERS")
    before = store.view().index
    driver.write(orders(2, 100), overwrite=True, stream="ORDERS")
    assert store.view().index == before + 1
    table = driver.read(stream="ORDERS")
    assert table["data"].to_pylist() == [b"order 100", b"order 101"]
    assert table["sequence"].to_pylist() == [6, 7]


def test_overwrite_with_nothing_empties_the_stream(driver: Any, orders: Make) -> None:
    driver.write(orders(5), stream="ORDERS")
    driver.write(orders(0), overwrite=True, stream="ORDERS")
    assert driver.sequences(stream="ORDERS") == []


def test_overwrite_by_column_is_refused_with_the_reason(driver: Any, orders: Make) -> None:
    """A stream that got rows of the result before, and gets none of this one, would keep them."""
    driver.write(orders(5), stream="ORDERS")
    with pytest.raises(ValueError, match="option 'stream' is missing: overwrite .* would keep the ones from before"):
        driver.write(pa.table({"stream": ["ORDERS"], "subject": ["orders.x"], "data": ["new"]}), overwrite=True)
    assert len(driver.sequences(stream="ORDERS")) == 5


def test_rerun_of_a_named_batch_with_other_rows_is_refused_and_named(store: Store, driver: Any, orders: Make) -> None:
    same = {"stream": "ORDERS", "writerId": "nightly", "batchId": "2026-11-21"}
    driver.write(orders(3), orders(2, 3), **same)
    for other in (orders(4), orders(5, 1), orders(6), orders(0)):
        with pytest.raises(
            FencedError, match="batch '2026-11-21' of writer 'nightly' is in stream 'ORDERS' with other"
        ):
            driver.write(other, **same)
    assert store.events(kind="batch_again") == []
    driver.write(orders(1, 4), orders(4), **same)
    driver.write(orders(5), **same)
    (event,) = store.events(kind="batch_again")
    assert event["stream"] == "ORDERS"
    assert event["reason"] == "batch '2026-11-21' of writer 'nightly' came again: nothing was stored this time"
    driver.write(orders(7), **same, failOnChangedBatch=False)
    assert store.events(kind="batch_again")[-1]["reason"].endswith("with other content; what was stored first counts")
    assert driver.sequences(stream="ORDERS") == [1, 2, 3, 4, 5]


def test_write_is_refused_unless_the_last_sequence_is_the_expected_one(store: Store, driver: Any, orders: Make) -> None:
    driver.write(orders(3), orders(2, first=3), stream="ORDERS", expectedLastSequence="0")
    with pytest.raises(ConditionFailedError) as refused:
        driver.write(orders(1), stream="ORDERS", expectedLastSequence="4")
    assert (refused.value.expected, refused.value.actual, store.stream("ORDERS").last_sequence) == (4, 5, 5)
    driver.write(orders(1), stream="ORDERS", expectedLastSequence="5", writerId="nightly", batchId="1")
    driver.write(orders(1), stream="ORDERS", expectedLastSequence="5", writerId="nightly", batchId="1")
    assert store.stream("ORDERS").last_sequence == 6, "a batch that is stored is not asked what it expects"
    with pytest.raises(ValueError, match="'stream' is missing"):
        driver.write(orders(1), expectedLastSequence="6")
    with pytest.raises(ValueError, match="expectedLastSequence"):
        driver.write(orders(1), stream="ORDERS", expectedLastSequence="-1")


@pytest.mark.parametrize("overwrite", [False, True])
def test_rerun_of_a_named_batch_stores_nothing_and_says_so(
    overwrite: bool, driver: Any, orders: Make, caplog: pytest.LogCaptureFixture
) -> None:
    same = {"stream": "ORDERS", "writerId": "nightly", "batchId": "2026-11-21"}
    with caplog.at_level(logging.WARNING, "jstream"):
        driver.write(orders(5), overwrite=overwrite, **same)
        assert caplog.text == ""
        driver.write(orders(5), overwrite=overwrite, **same)
    assert "batch '2026-11-21' of writer 'nightly' is in the store already: nothing was written" in caplog.text
    assert driver.sequences(stream="ORDERS") == [1, 2, 3, 4, 5]
    driver.write(orders(5), **{**same, "batchId": "2026-11-22"})
    assert len(driver.sequences(stream="ORDERS")) == 10


def test_blocks_of_failed_and_repeated_tasks_are_not_shown(driver: Any, orders: Make) -> None:
    writer = driver.writer(orders(1).schema, stream="ORDERS")
    writer.write(iter(orders(5).to_batches()))  # an attempt whose message was lost
    winner = writer.write(iter(orders(5).to_batches()))
    writer.write(iter(orders(5).to_batches()))  # a speculative one that came too late
    writer.commit([winner, None])
    assert driver.sequences(stream="ORDERS") == [1, 2, 3, 4, 5]


@pytest.mark.buckets
def test_task_that_fails_leaves_nothing(store: Store, driver: Any, orders: Make) -> None:
    writer = driver.writer(orders(1).schema, stream="ORDERS")
    bad = pa.table({"subject": ["elsewhere.a"], "data": pa.array([b"x"], pa.binary())})
    with pytest.raises(InvalidMessageError, match="stream 'ORDERS'.*'elsewhere.a' is not taken"):
        writer.write(iter([*orders(5).to_batches(), *bad.to_batches()]))
    assert block_count(store) == 0


@pytest.mark.buckets
def test_abort_sweeps_what_was_not_committed(store: Store, driver: Any, orders: Make) -> None:
    writer = driver.writer(orders(1).schema, stream="ORDERS")
    message = writer.write(iter(orders(5).to_batches()))
    assert block_count(store) == 1
    writer.abort([message, None])
    writer.abort([message])
    assert block_count(store) == 0
    with pytest.raises(StorageError):
        writer.commit([message])
    assert driver.sequences(stream="ORDERS") == []


def test_abort_that_cannot_reach_the_store_does_not_hide_why_it_was_called(
    store: Store, driver: Any, orders: Make, caplog: pytest.LogCaptureFixture
) -> None:
    writer = driver.writer(orders(1).schema, stream="ORDERS")
    Path(store.paths[0], "jstream.volume").unlink()
    writer.abort([])
    assert "the blocks of the write that failed are still there" in caplog.text


def test_abort_after_a_commit_touches_nothing(driver: Any, orders: Make, caplog: pytest.LogCaptureFixture) -> None:
    writer = driver.writer(orders(1).schema, stream="ORDERS")
    message = writer.write(iter(orders(5).to_batches()))
    writer.commit([message])
    with caplog.at_level(logging.WARNING, "jstream"):
        writer.abort([message])
    assert "was committed" in caplog.text
    assert driver.sequences(stream="ORDERS") == [1, 2, 3, 4, 5]


@pytest.mark.buckets
def test_commit_that_is_repeated_stores_once(driver: Any, orders: Make) -> None:
    writer = driver.writer(orders(1).schema, stream="ORDERS")
    message = writer.write(iter(orders(5).to_batches()))
    writer.commit([message])
    with pytest.raises(AlreadyExistsError, match="was committed before"):
        writer.commit([message])
    assert driver.sequences(stream="ORDERS") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_compression_is_a_choice_of_the_write(codec: str, store: Store, driver: Any) -> None:
    driver.write(pa.table({"data": ["a" * 10_000] * 100}), stream="LOGS", compression=codec)
    size = sum(path.stat().st_size for path in Path(store.paths[0]).rglob("*.blk"))
    assert (size > 1_000_000) == (codec == "none")
    assert driver.read(stream="LOGS")["data"].to_pylist() == [b"a" * 10_000] * 100


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        (
            {"data": ["x"]},
            {"stream": "ORDERS"},
            "no subject: stream 'ORDERS' takes orders.>; give the option 'subject'",
        ),
        ({"data": ["x"]}, {"stream": "ORDERS", "subject": "eu.a"}, "stream 'ORDERS' takes orders.>, not 'eu.a'"),
        ({"data": ["x"]}, {}, "option 'stream' is missing, and no column 'stream'"),
        ({"subject": ["x"]}, {"stream": "ORDERS"}, "column 'data' is missing"),
        ({"data": ["x"], "key": ["x"]}, {"stream": "ORDERS"}, "unknown column 'key'"),
    ],
)
def test_wrong_writes_are_refused_on_the_driver(
    columns: dict[str, Any], options: dict[str, Any], says: str, driver: Any
) -> None:
    with pytest.raises(ValueError, match=says):
        driver.writer(pa.table(columns).schema, **options)


def test_unknown_stream_is_refused_with_the_nearest_and_not_made(store: Store, driver: Any) -> None:
    with pytest.raises(StreamNotFoundError) as raised:
        driver.writer(pa.table({"data": ["x"]}).schema, stream="ORDER")
    assert raised.value.fields == {"stream": "ORDER", "nearest": "ORDERS"}
    table = pa.table({"stream": ["LOG"], "subject": ["logs.line"], "data": ["x"]})
    with pytest.raises(
        InvalidMessageError, match=r"no stream 'LOG' in the store.*stream add.*; did you mean 'LOGS'\?$"
    ):
        driver.write(table)
    assert store.streams() == ["LOGS", "ORDERS", "ORDERS_EU"]


@pytest.mark.parametrize(
    ("subject", "says"),
    [
        ("", "not one that a message can carry"),
        ("orders..a", "not one that a message can carry"),
        ("orders.*", "not one that a message can carry"),
        ("eu.a", "is not taken; the stream takes orders.>"),
        (None, "subject is null"),
    ],
)
def test_rows_with_wrong_subjects_are_refused(subject: str | None, says: str, driver: Any) -> None:
    table = pa.table({"subject": pa.array(["orders.a", subject], pa.string()), "data": ["1", "2"]})
    with pytest.raises(InvalidMessageError, match=f"stream 'ORDERS', row 1 of the batch: .*{says}"):
        driver.write(table, stream="ORDERS")


def test_row_without_a_stream_is_refused(driver: Any) -> None:
    table = pa.table({"stream": ["LOGS", None], "data": ["1", "2"]})
    with pytest.raises(InvalidMessageError, match="row 1 of the batch: column 'stream' is null"):
        driver.write(table)


def test_stream_that_is_no_utf8_is_refused_by_its_row(driver: Any) -> None:
    names = pa.array([b"LOGS", b"LOGS", b"L\xff"], pa.binary()).view(pa.string())  # as `cast(X'4cff' AS STRING)`
    table = pa.table({"stream": names, "data": ["1", "2", "3"]})
    with pytest.raises(InvalidMessageError, match=r"row 2 of the batch: column 'stream': b'L\\xff' is not UTF-8"):
        driver.write(table)


def test_refusal_says_which_rows_of_the_partition_its_batch_is(driver: Any, orders: Make) -> None:
    writer = driver.writer(orders(1).schema, stream="ORDERS")
    bad = pa.table({"subject": ["orders.a", "eu.a"], "data": pa.array([b"x", b"x"], pa.binary())})
    with pytest.raises(
        InvalidMessageError, match=r"row 1 of .*the batch is rows 5 to 6 of partition 0, counted from 0\)"
    ):
        writer.write(iter([*orders(5).to_batches(), *bad.to_batches()]))


def test_refusal_of_a_routed_row_says_among_which_rows_it_counts(driver: Any) -> None:
    table = pa.table({"stream": ["LOGS", "LOGS", "ORDERS"], "subject": ["logs.line"] * 3, "data": ["1", "2", "3"]})
    says = r"stream 'ORDERS', row 0 .*the batch is those for stream 'ORDERS' among rows 0 to 2 of partition 0"
    with pytest.raises(InvalidMessageError, match=says):
        driver.write(table)


def test_time_that_nanoseconds_cannot_say_is_refused_with_the_bounds(driver: Any) -> None:
    times = pa.array([datetime(9999, 12, 31, tzinfo=timezone.utc)], pa.timestamp("us", "UTC"))
    with pytest.raises(InvalidMessageError, match="column 'timestamp'.* times from 1677-09-21 to 2262-04-11"):
        driver.write(pa.table({"data": ["x"], "timestamp": times}), stream="LOGS")


def test_message_that_is_too_large_is_refused(store: Store, driver: Any) -> None:
    store.edit_stream({"name": "LOGS", "max_msg_size": 100})
    with pytest.raises(InvalidMessageError, match="stream 'LOGS', row 1 .*max_msg_size is 100"):
        driver.write(pa.table({"data": ["x", "x" * 100]}), stream="LOGS")


def test_route_keeps_the_order_of_rows_within_a_stream() -> None:
    names = ["B", "A", "B", "C", "A", "B"]
    batch = pa.RecordBatch.from_pydict({"stream": names, "data": [str(at) for at in range(6)]})
    routed = {name: rows.column("data").to_pylist() for name, rows in route(batch, None)}
    assert routed == {"B": ["0", "2", "5"], "A": ["1", "4"], "C": ["3"]}
    assert [(name, rows.num_rows) for name, rows in route(batch, "X")] == [("X", 6)]
    assert route(batch.slice(0, 0), None) == []


def test_schema_of_a_read_writes_without_changes(driver: Any, orders: Make) -> None:
    driver.write(orders(4), stream="ORDERS")
    driver.write(driver.read(READ_SCHEMA, stream="ORDERS"))
    assert len(driver.sequences(stream="ORDERS")) == 8
