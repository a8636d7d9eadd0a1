"""How far consumers are behind, in messages and in time; and what reports, tables and notebooks show of them."""

import json
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from harness.processes import SECOND_NS, Machine

from storage_core.errors import NotFoundError
from storage_core.store.consumers.filtered import wanted_in
from storage_core.store.consumers.lag import consumer_report, time_of
from storage_core.store.store import Store
from storage_core.store.stream import Stream

BEGIN_NS = 1_700_000_000 * SECOND_NS


def put(stream: Stream, *minutes: int, subject: str = "orders.new") -> None:
    """Append messages whose times are so many minutes after BEGIN_NS, as one block."""
    times = [BEGIN_NS + minute * 60 * SECOND_NS for minute in minutes]
    data = [b"x"] * len(minutes)
    columns = {"subject": [subject] * len(minutes), "data": pa.array(data, pa.binary()), "timestamp_ns": times}
    stream.append(pa.table(columns))


SEEDS = count(7)  # each store has blocks of its own: what was read of a block is remembered in the process


@pytest.fixture
def machine() -> Machine:
    return Machine(next(SEEDS))


@pytest.fixture
def store(machine: Machine) -> Store:
    """A store with a stream of five messages, minutes 1, 2, 3 and 5, 6; an hour has passed since the first minute."""
    store = machine.create()
    stream = store.add_stream({"name": "orders", "subjects": ["orders.>"]})
    put(stream, 1, 2, 3)
    put(stream, 5, 6, subject="orders.paid")
    machine.clock.now = BEGIN_NS + 61 * 60 * SECOND_NS
    return store


def lag_of(store: Store, **config: Any) -> tuple[int, int | None, int]:
    """Return what a new consumer is behind by: messages, oldest sequence, whole minutes."""
    store.stream("orders").add_consumer({"name": "reader", **config})
    (found,) = consumer_report(store)
    lag = found["lag"]
    return lag["messages"], lag["oldest_seq"], round(lag["seconds"] / 60)


def test_a_new_consumer_is_behind_by_the_whole_stream(store: Store) -> None:
    assert lag_of(store) == (5, 1, 60)


def test_a_consumer_at_the_end_is_not_behind(store: Store) -> None:
    assert lag_of(store, deliver_policy="new") == (0, None, 0)


def test_time_is_that_of_a_message_within_its_block(store: Store) -> None:
    assert lag_of(store, deliver_policy="by_start_sequence", opt_start_seq=3) == (3, 3, 58)


def test_with_a_filter_the_oldest_message_is_one_that_the_filter_takes(store: Store) -> None:
    assert lag_of(store, filter_subjects=["orders.paid"]) == (2, 4, 56)


def test_with_a_filter_that_takes_nothing_there_is_no_lag(store: Store) -> None:
    assert lag_of(store, filter_subjects=["orders.none"]) == (0, None, 0)


def test_what_waits_for_its_acknowledgement_is_behind_and_what_was_removed_is_not(store: Store) -> None:
    stream = store.stream("orders")
    consumer = stream.add_consumer({"name": "reader"})
    consumer.ack(consumer.fetch(3, 0).column("sequence")[:1])
    stream.remove([2, 4])
    (found,) = consumer_report(store)
    assert (found["num_ack_pending"], found["num_pending"]) == (1, 1)
    assert found["lag"]["messages"] == 2
    assert found["lag"]["oldest_seq"] == 3
    assert found["lag"]["oldest_ts"] == "2023-11-14T22:16:20.000000000Z"


def test_a_message_from_the_future_is_no_negative_lag(store: Store) -> None:
    stream = store.stream("orders")
    put(stream, 999)
    assert lag_of(store, deliver_policy="last") == (1, 6, 0)


def test_damage_costs_no_more_than_the_exact_time(store: Store, machine: Machine) -> None:
    for path, _ in machine.disk.files():
        if path.suffix == ".blk":
            machine.disk.remove(path)
    stream = store.stream("orders").state()
    assert time_of(store, stream, 3) == BEGIN_NS + 60 * SECOND_NS
    assert time_of(store, stream, 6) is None
    assert lag_of(store, deliver_policy="by_start_sequence", opt_start_seq=3) == (3, 3, 60)


def test_what_a_consumer_wants_is_what_its_filter_takes(store: Store) -> None:
    stream = store.stream("orders")
    stream.remove([5])
    for name, filters, sequences in (("a", [], [2, 3, 4]), ("b", ["*.paid"], [4]), ("c", ["*.none"], [])):
        consumer = stream.add_consumer({"name": name, "filter_subjects": filters})
        found = wanted_in(store, stream.state(), consumer.state(), 2, stream.state().next_sequence)
        assert [one for first, end in found.ranges() for one in range(first, end)] == sequences


def test_a_report_is_of_all_streams_or_of_those_that_are_named(store: Store) -> None:
    other = store.add_stream({"name": "more", "subjects": ["more.>"]})
    for stream, name in ((other, "z"), (other, "A"), (store.stream("orders"), "m")):
        stream.add_consumer({"name": name})
    names = [(one["stream_name"], one["name"]) for one in consumer_report(store)]
    assert names == [("more", "A"), ("more", "z"), ("orders", "m")]
    assert [one["name"] for one in consumer_report(store, ["orders"])] == ["m"]
    with pytest.raises(NotFoundError, match="did you mean 'orders'"):
        consumer_report(store, ["order"])


@pytest.mark.buckets
def test_a_report_says_who_waits_for_a_decision_and_who_goes_on_and_writes_nothing(store: Store) -> None:
    stream = store.stream("orders")
    stream.add_consumer({"name": "goes-on"})
    stream.add_consumer({"name": "stops", "on_data_loss": "fail"})
    stream.purge(end=3)
    before = store.view().index
    looked = {consumer["name"]: consumer for consumer in consumer_report(store)}
    assert store.view().index == before
    assert (looked["goes-on"]["problem"], looked["goes-on"]["moves_to"]["next_seq"]) == (None, 3)
    assert "1 to 2" in looked["goes-on"]["moves_to"]["reason"] and looked["goes-on"]["num_skipped"] == 2
    assert "jstream consumer reset orders stops --execute" in looked["stops"]["problem"]
    assert looked["stops"]["moves_to"] is None
    assert [event["kind"] for event in looked["goes-on"]["events"]] == ["consumer_skipped"]
    moved = stream.consumer("goes-on").info()
    assert (moved["problem"], moved["moves_to"]) == (None, None)
    assert [event["kind"] for event in moved["events"]] == ["consumer_skipped", "consumer_reconciled"]


def test_notebooks_show_a_consumer_with_its_newest_events(store: Store) -> None:
    stream = store.stream("orders")
    consumer = stream.add_consumer({"name": "reader", "filter_subjects": ["orders.>"]})
    shown = consumer._repr_html_()
    assert "Consumer reader of stream orders" in shown and "Not delivered yet" in shown and "Events" not in shown
    consumer.pause(60)
    consumer.reset(2)
    shown = consumer._repr_html_()
    assert "Paused" in shown and "consumer_reset: reset by hand" in shown


def test_what_info_returns_shows_itself_and_is_json(store: Store) -> None:
    stream = store.stream("orders")
    consumer = stream.add_consumer({"name": "reader"})
    for one, title in ((store, "Store"), (stream, "Stream orders"), (consumer, "Consumer reader of stream orders")):
        info = one.info()
        assert f"<caption>{title}</caption>" in info._repr_html_()
        assert json.loads(json.dumps(info)) == info
    assert str(store.paths[0]) in store.info()._repr_html_()
