"""Messages that are removed or lost before a consumer has acknowledged them: counted as skipped, exactly, and told."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.metadata.reconcile import CONTINUE
from storage_core.store.consumers.consumer import Consumer
from storage_core.store.consumers.query import QueryReader, QueryStart
from storage_core.store.store import Store
from storage_core.store.stream import Stream
from storage_core.store.writing.staging import Stager


def put(stream: Stream, count: int, subject: str = "orders.eu") -> None:
    stream.append(pa.table({"subject": [subject] * count, "data": [b"x"] * count}))


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    made = Store.create(tmp_path / "store").add_stream({"name": "orders", "subjects": ["orders.>"]})
    put(made, 10)
    return made


def made(stream: Stream, **keys: Any) -> Consumer:
    return stream.add_consumer({"name": "reader", **keys})


def skipped(consumer: Consumer) -> int:
    return consumer.info()["num_skipped"]  # type: ignore[no-any-return]


def told(consumer: Consumer) -> list[str]:
    return [one["before"] for one in consumer.info()["events"] if one["kind"] == "consumer_skipped"]


def test_a_purge_counts_what_waits_and_what_was_never_handed_out(stream: Stream) -> None:
    consumer = made(stream)
    consumer.fetch(6, 0)
    consumer.ack([1, 2, 5])
    stream.purge(end=8)
    info = consumer.info()
    assert (info["num_skipped"], info["num_ack_pending"], info["num_pending"]) == (4, 0, 3)
    assert told(consumer) == ["3 to 4, 6 to 7"]
    assert consumer.ack([3, 4, 6]) == 0
    assert consumer.fetch(10, 0).column("sequence").to_pylist() == [8, 9, 10]
    assert skipped(consumer) == 4
    assert [one["kind"] for one in stream._store.events()].count("consumer_skipped") == 1


def test_what_was_acknowledged_is_not_skipped(stream: Stream) -> None:
    consumer = made(stream)
    consumer.ack(consumer.fetch(10, 0).column("sequence"))
    stream.purge()
    assert (skipped(consumer), told(consumer)) == (0, [])


def test_without_acknowledgements_only_what_was_never_handed_out_counts(stream: Stream) -> None:
    consumer = made(stream, ack_policy="none")
    consumer.fetch(4, 0)
    stream.purge()
    assert skipped(consumer) == 6


def test_removals_in_the_middle_and_overwriting_count(stream: Stream) -> None:
    consumer = made(stream)
    stream.remove([3, 7])
    stream.remove([7])
    assert skipped(consumer) == 2
    store = stream._store
    transaction = store.begin(["orders"])
    stager = Stager(transaction, transaction.targets["orders"], 0)
    stager.write(pa.record_batch({"subject": ["orders.eu"] * 5, "data": [b"y"] * 5}))
    store.commit(transaction, stager.finish(), overwrite=["orders"])
    assert skipped(consumer) == 10
    assert consumer.fetch(100, 0).column("sequence").to_pylist() == [11, 12, 13, 14, 15]


def test_what_is_declared_lost_counts_once_though_it_was_withheld(stream: Stream, tmp_path: Path) -> None:
    consumer = made(stream)
    put(stream, 5)
    first = bytes(stream.state().blocks.rows["block_id"][0]).hex()
    next((tmp_path / "store").rglob(f"{first}.blk")).unlink()
    assert consumer.fetch(100, 0).column("sequence").to_pylist() == [11, 12, 13, 14, 15]
    assert (skipped(consumer), consumer.info()["num_unreadable"]) == (0, 10)
    stream._store.repair()
    assert (skipped(consumer), consumer.info()["num_unreadable"]) == (10, 0)
    consumer.fetch(100, 0)
    assert skipped(consumer) == 10


def test_with_a_filter_what_is_known_to_be_of_other_subjects_does_not_count(stream: Stream) -> None:
    put(stream, 5, "orders.us")
    consumer = made(stream, filter_subjects=["orders.us"])
    stream.purge(end=13)
    assert skipped(consumer) == 2


def test_many_removals_are_few_events(stream: Stream) -> None:
    put(stream, 90)
    consumer = made(stream)
    for sequence in range(1, 65):
        stream.remove([sequence])
    assert skipped(consumer) == 64
    assert len(told(consumer)) == 7


def test_a_query_s_consumer_counts_what_was_removed_before_its_batch_was_finished(stream: Stream) -> None:
    store = stream._store
    with_consumer = QueryReader(store, "reader")
    at = with_consumer.begin({"orders": QueryStart(1)})
    stream.purge(end=5)
    reconciled = with_consumer.reconcile(at, CONTINUE, "")
    assert reconciled["orders"].position.next_sequence == 5
    end = with_consumer.at("orders", 11)
    with_consumer.acknowledge({"orders": end.position})
    with_consumer.close()
    assert skipped(stream.consumer("reader")) == 4


def test_the_count_survives(stream: Stream, tmp_path: Path) -> None:
    made(stream)
    stream.purge(end=5)
    store = Store.open(tmp_path / "store")
    for _ in range(140):  # beyond a snapshot
        store.stream("orders").publish("orders.eu", b"y")
    assert skipped(Store.open(tmp_path / "store").stream("orders").consumer("reader")) == 4
