"""Durable consumers from Python: handed out, acknowledged, handed out again, lost and told; on 1 and 3 volumes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness.faults import Call
from harness.life import to_table
from harness.model import Row
from harness.processes import SECOND_NS, Machine

from storage_core.errors import (
    AlreadyExistsError,
    DataLossError,
    NoQuorumError,
    NotFoundError,
    ReadOnlyError,
    StaleIncarnationError,
)
from storage_core.schema import READ_SCHEMA
from storage_core.sequences import SequenceSet
from storage_core.store.consumers.consumer import Consumer
from storage_core.store.store import Store
from storage_core.store.stream import Stream

ORDERS = {"name": "orders", "subjects": ["orders.>"], "block_max_msgs": 700}


def put(stream: Stream, count: int, subject: str = "orders.eu") -> None:
    stream.append(to_table([Row(subject, b"%d" % number) for number in range(count)]))


def fetched(consumer: Consumer, count: int, timeout_s: float = 0) -> list[int]:
    table = consumer.fetch(count, timeout_s)
    return table.column("sequence").to_pylist()  # type: ignore[no-any-return]


def deliveries(table: pa.Table) -> dict[int, int]:
    return dict(zip(table.column("sequence").to_pylist(), table.column("delivery_count").to_pylist(), strict=True))


def remove_block(machine: Machine, stream: Stream, place: int) -> None:
    """Take all copies of a block away, the one at this place of the stream's manifest."""
    name = bytes(stream.state().blocks.rows["block_id"][place]).hex()
    for path in [path for path, _ in machine.disk.files() if path.stem == name]:
        machine.disk.remove(path)


@pytest.fixture(params=[1, 3])
def machine(request: pytest.FixtureRequest) -> Machine:
    made = Machine(7, request.param)
    stream = made.create().add_stream(ORDERS)
    put(stream, 10)
    stream.add_consumer({"name": "reader"})
    return made


def reader(machine: Machine, **keys: Any) -> Consumer:
    """Return the consumer, opened by a new process."""
    return machine.open(**keys).stream("orders").consumer("reader")


# --- fetching and acknowledging


@pytest.mark.buckets
def test_messages_are_handed_out_once_and_acknowledged_for_good(machine: Machine) -> None:
    consumer = reader(machine)
    table = consumer.fetch(4, 0)
    assert table.schema.names == [*READ_SCHEMA.names, "delivery_count"]
    assert deliveries(table) == {1: 1, 2: 1, 3: 1, 4: 1}
    assert table.column("data").to_pylist() == [b"0", b"1", b"2", b"3"]
    assert consumer.ack(table.column("sequence")) == 4
    assert consumer.ack(table.column("sequence")) == 0
    machine.disk.lose_power()
    again = reader(machine)
    assert fetched(again, 100) == [5, 6, 7, 8, 9, 10]
    assert fetched(again, 100) == []
    assert again.ack(range(5, 11)) == 6
    info = again.info()
    assert (info["delivered"], info["ack_floor"]) == ({"stream_seq": 10}, {"stream_seq": 10})
    assert (info["num_ack_pending"], info["num_redelivered"], info["num_pending"]) == (0, 0, 0)


def test_what_is_not_acknowledged_in_time_comes_again_first(machine: Machine) -> None:
    consumer = reader(machine)
    assert fetched(consumer, 3) == [1, 2, 3]
    consumer.ack(2)
    assert fetched(consumer, 1) == [4]
    machine.clock.now += 31 * SECOND_NS
    table = consumer.fetch(4, 0)
    assert deliveries(table) == {1: 2, 3: 2, 4: 2, 5: 1}
    info = consumer.info()
    assert (info["ack_floor"]["stream_seq"], info["num_ack_pending"], info["num_redelivered"]) == (0, 4, 3)


def test_a_clock_that_is_set_back_lets_nothing_wait_for_longer_than_ack_wait(machine: Machine) -> None:
    years_ns = 4 * 365 * 86_400 * SECOND_NS
    machine.clock.now += years_ns
    consumer = reader(machine)
    assert fetched(consumer, 10) == list(range(1, 11))
    consumer.nak([9, 10], delay_s=100)
    machine.clock.now -= years_ns
    assert fetched(consumer, 10) == []
    machine.disk.lose_power()
    again = reader(machine)
    machine.clock.now += 31 * SECOND_NS
    assert fetched(again, 10) == list(range(1, 9))
    again.ack(range(1, 9))
    machine.clock.now += 70 * SECOND_NS
    assert fetched(again, 10) == [9, 10]


def test_what_is_asked_for_again_comes_first_though_the_clock_was_set_back(machine: Machine) -> None:
    consumer = reader(machine)
    assert fetched(consumer, 4) == [1, 2, 3, 4]
    consumer.nak([2, 3])
    machine.clock.now -= 3_000 * SECOND_NS
    assert fetched(consumer, 3) == [2, 3, 5]


def test_nak_asks_again_at_once_or_later_and_term_never(machine: Machine) -> None:
    consumer = reader(machine)
    assert fetched(consumer, 4) == [1, 2, 3, 4]
    assert (consumer.nak(1), consumer.nak([2], delay_s=5), consumer.term([3])) == (1, 1, 1)
    assert fetched(consumer, 2) == [1, 5]
    machine.clock.now += 6 * SECOND_NS
    assert fetched(consumer, 2) == [2, 6]
    machine.clock.now += 60 * SECOND_NS
    assert fetched(consumer, 100) == [1, 2, 4, 5, 6, 7, 8, 9, 10]


def test_a_message_is_handed_out_max_deliver_times_and_then_told() -> None:
    machine = Machine(7)
    stream = machine.create().add_stream(ORDERS)
    put(stream, 2)
    consumer = stream.add_consumer({"name": "reader", "max_deliver": 2})
    for _ in range(2):
        assert fetched(consumer, 5) == [1, 2]
        machine.clock.now += 31 * SECOND_NS
    assert fetched(consumer, 5) == []
    (event,) = consumer.info()["events"]
    assert (event["kind"], event["before"]) == ("consumer_exhausted", "1 to 2")
    assert consumer.info()["num_ack_pending"] == 0


def test_no_more_than_max_ack_pending_wait() -> None:
    stream = Machine(7).create().add_stream(ORDERS)
    put(stream, 10)
    consumer = stream.add_consumer({"name": "reader", "max_ack_pending": 3})
    assert (fetched(consumer, 100), fetched(consumer, 100)) == ([1, 2, 3], [])
    consumer.ack([1, 3])
    assert fetched(consumer, 100) == [4, 5]


def test_ack_policies() -> None:
    stream = Machine(7).create().add_stream(ORDERS)
    put(stream, 10)
    everything = stream.add_consumer({"name": "all", "ack_policy": "all"})
    assert fetched(everything, 6) == [1, 2, 3, 4, 5, 6]
    assert everything.ack(4) == 4
    assert everything.info()["ack_floor"]["stream_seq"] == 4
    none = stream.add_consumer({"name": "none", "ack_policy": "none", "max_ack_pending": 2})
    assert fetched(none, 6) == [1, 2, 3, 4, 5, 6]
    assert (none.ack(3), none.info()["num_ack_pending"]) == (0, 0)


def test_a_filter_hands_out_what_it_takes_and_passes_over_the_rest() -> None:
    machine = Machine(7)
    stream = machine.create().add_stream(ORDERS)
    for subject in ("orders.eu", "orders.us", "orders.eu", "orders.asia"):
        put(stream, 2, subject)
    consumer = stream.add_consumer({"name": "reader", "filter_subjects": ["orders.eu", "orders.asia"]})
    assert consumer.info()["num_pending"] == 6
    assert fetched(consumer, 3) == [1, 2, 5]
    assert fetched(consumer, 9) == [6, 7, 8]
    put(stream, 2, "orders.us")
    assert fetched(consumer, 9) == []
    assert consumer.info()["delivered"]["stream_seq"] == 10
    machine.clock.now += 31 * SECOND_NS
    put(stream, 1, "orders.eu")
    table = machine.open().stream("orders").consumer("reader").fetch(9, 0)
    assert deliveries(table) == {1: 2, 2: 2, 5: 2, 6: 2, 7: 2, 8: 2, 11: 1}
    assert set(table.column("subject").to_pylist()) == {"orders.eu", "orders.asia"}


@pytest.mark.parametrize(
    ("config", "first"),
    [
        ({}, 3), ({"deliver_policy": "new"}, None), ({"deliver_policy": "last"}, 10),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 7}, 7),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 1}, 3),
        ({"deliver_policy": "by_start_time", "opt_start_time": "1970-01-01T00:00:08Z"}, 8),
        ({"deliver_policy": "by_start_time", "opt_start_time": "1971-01-01T00:00:00Z"}, None),
    ],
)  # fmt: skip
def test_where_a_consumer_begins(config: dict[str, Any], first: int | None) -> None:
    stream = Machine(7).create().add_stream({"name": "orders"})
    stream.append(to_table([Row("orders", b"", timestamp_ns=second * SECOND_NS) for second in range(1, 11)]))
    stream.purge(end=3)
    consumer = stream.add_consumer({"name": "reader", **config})
    assert fetched(consumer, 1) == ([] if first is None else [first])
    put(stream, 1, "orders")
    if first is None:
        assert fetched(consumer, 1) == [11]
    assert consumer.info()["events"] == []


def test_removed_messages_are_not_waited_for(machine: Machine) -> None:
    consumer = reader(machine)
    assert fetched(consumer, 5) == [1, 2, 3, 4, 5]
    machine.open().stream("orders").remove([2, 3, 7])
    assert consumer.info()["num_ack_pending"] == 3
    assert fetched(consumer, 3) == [6, 8, 9]
    assert list(consumer.state().outstanding().ranges()) == [(1, 2), (4, 7), (8, 10)]


def test_a_paused_consumer_hands_out_nothing_until_it_is_resumed_or_time_is_up(machine: Machine) -> None:
    consumer = reader(machine)
    consumer.pause(60)
    assert (fetched(consumer, 1), consumer.info()["paused"]) == ([], True)
    consumer.resume()
    assert fetched(consumer, 1) == [1]
    consumer.pause(60)
    assert consumer.ack(1) == 1
    machine.clock.now += 61 * SECOND_NS
    assert (fetched(consumer, 1), consumer.info()["paused"]) == ([2], False)


def test_a_pause_lasts_no_longer_because_the_clock_was_ahead_when_it_began(machine: Machine) -> None:
    years_ns = 4 * 365 * 86_400 * SECOND_NS
    machine.clock.now += years_ns
    consumer = reader(machine)
    consumer.pause(60)
    machine.clock.now -= years_ns
    assert (fetched(consumer, 1), consumer.info()["paused"]) == ([], True)
    assert consumer.info()["pause_remaining"] <= 60 * SECOND_NS
    machine.disk.lose_power()
    machine.clock.now += 61 * SECOND_NS
    assert (fetched(reader(machine), 1), reader(machine).info()["paused"]) == ([1], False)


@pytest.mark.buckets
def test_a_fetch_that_waits_returns_what_another_process_appends(machine: Machine) -> None:
    consumer = reader(machine)
    assert len(fetched(consumer, 100)) == 10
    other, looks = machine.open().stream("orders"), []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        machine.clock.sleep(seconds)
        if len(looks) == 3:
            put(other, 2)

    object.__setattr__(consumer._store.environment, "sleep", sleep)
    assert fetched(consumer, 100, timeout_s=5) == [11, 12]
    assert fetched(consumer, 100, timeout_s=0.5) == []
    assert sum(looks[3:]) >= 0.5


def test_without_a_limit_a_million_may_wait() -> None:
    stream = Machine(7).create().add_stream({"name": "orders"})
    for _ in range(2):
        stream.append(pa.table({"data": pa.array([b""] * 600_000)}))
    consumer = stream.add_consumer({"name": "reader", "max_ack_pending": -1})
    assert consumer.config.max_ack_pending == -1
    assert [consumer.fetch(700_000, 0).num_rows for _ in range(3)] == [700_000, 300_000, 0]


@pytest.mark.buckets
def test_two_processes_share_the_messages(machine: Machine) -> None:
    one, two = reader(machine), reader(machine)
    got = [fetched(which, 2) for which in (one, two, one, two, two, one)]
    assert got == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], []]
    two.ack(range(1, 6))
    machine.clock.now += 31 * SECOND_NS
    assert (fetched(one, 3), fetched(two, 9)) == ([6, 7, 8], [9, 10])


@pytest.mark.buckets
def test_a_fetch_and_its_acknowledgement_cost_a_round_of_fsyncs_each(machine: Machine) -> None:
    rounds: list[Call] = []

    def count(call: Call) -> int:
        if call.operation == "sync":
            rounds.append(call)
        return 0

    files = machine.files()
    consumer = machine.open(files).stream("orders").consumer("reader")
    consumer.fetch(2, 0)  # opens a term
    files.judge = count
    assert fetched(consumer, 2) == [3, 4]
    assert len(rounds) == machine.volume_count
    assert consumer.ack([3, 4]) == 2
    assert len(rounds) == 2 * machine.volume_count
    assert (consumer.ack([3, 4]), len(fetched(consumer, 100)), fetched(consumer, 100)) == (0, 6, [])
    assert len(rounds) == 3 * machine.volume_count


def test_acknowledging_a_hundred_thousand_scattered_messages_is_one_entry() -> None:
    machine = Machine(7)
    stream = machine.create().add_stream({"name": "orders"})
    stream.append(pa.table({"data": pa.array([b""] * 100_000)}))
    consumer = stream.add_consumer({"name": "reader", "max_ack_pending": 100_000})
    sequences = consumer.fetch(100_000, 0).column("sequence").to_numpy()
    index = machine.open().view().index
    assert consumer.ack(sequences[::2]) == 50_000
    assert machine.open().view().index == index + 1
    assert consumer.info()["num_ack_pending"] == 50_000
    assert consumer.ack(np.arange(1, 100_001)) == 50_000
    assert consumer.info()["ack_floor"]["stream_seq"] == 100_000


# --- loss: told once, or until somebody decides


def lose_blocks(machine: Machine) -> Store:
    """Take all blocks away, on all volumes, and let repair find out."""
    for path, _ in machine.disk.files():
        if path.suffix == ".blk":
            machine.disk.remove(path)
    store = machine.open()
    store.repair()
    assert store.stream("orders").info()["state"]["lost_ranges"] == [[1, 1845]]
    return store


def story(machine: Machine, **config: Any) -> Consumer:
    """1,844 messages delivered and acknowledged, all of them lost, the metadata kept; then 100 new ones."""
    stream = machine.create().add_stream(ORDERS)
    put(stream, 1844)
    consumer = stream.add_consumer({"name": "reader", "max_ack_pending": 2000, **config})
    assert consumer.ack(consumer.fetch(2000, 0).column("sequence")) == 1844
    put(lose_blocks(machine).stream("orders"), 100)
    return consumer


@pytest.mark.parametrize("volume_count", [1, 3, 5])
def test_stuck_consumer_after_all_was_lost_new_messages_arrive_at_once_and_the_loss_is_told_once(
    volume_count: int,
) -> None:
    machine = Machine(7, volume_count)
    consumer = story(machine)
    assert fetched(consumer, 2000) == list(range(1845, 1945))
    assert fetched(reader(machine), 2000) == []
    (event,) = reader(machine).info()["events"]
    assert (event["kind"], event["before"], event["after"]) == ("consumer_reconciled", "1844", "1844")
    assert "sequences 1 to 1844 are lost (1844 messages)" in event["reason"]
    assert [one["kind"] for one in machine.open().events() if one["consumer"]] == ["consumer_reconciled"]


@pytest.mark.parametrize("volume_count", [1, 3])
def test_stuck_consumer_with_policy_fail_says_what_is_gone_until_it_is_reset(volume_count: int) -> None:
    machine = Machine(7, volume_count)
    consumer = story(machine, on_data_loss="fail")
    for _ in range(2):
        with pytest.raises(
            DataLossError, match=r"sequences 1 to 1844 are lost .*`jstream consumer reset orders reader --execute`"
        ):
            consumer.fetch(2000, 0)
    again = reader(machine)  # opens, and shows why
    (event,) = again.info()["events"]
    assert event["kind"] == "consumer_failed"
    assert again.reset() == 1845
    assert fetched(again, 2000) == list(range(1845, 1945))
    assert [one["kind"] for one in again.info()["events"]] == ["consumer_failed", "consumer_reset"]


@pytest.mark.buckets
def test_an_older_copy_of_the_store_that_grew_again_hands_out_what_is_new_in_it() -> None:
    machine = Machine(7)
    stream = machine.create().add_stream(ORDERS)
    put(stream, 10)
    consumer = stream.add_consumer({"name": "reader"})
    assert consumer.ack(fetched(consumer, 6)) == 6
    older = machine.copy()
    put(stream, 10)
    assert consumer.ack(fetched(consumer, 100)) == 14
    put(older.open().stream("orders"), 50, "orders.us")
    table = reader(older).fetch(100, 0)
    assert table.column("sequence").to_pylist() == list(range(7, 61))
    assert table.column("subject").to_pylist() == ["orders.eu"] * 4 + ["orders.us"] * 50


@pytest.mark.buckets
def test_a_stream_made_again_under_its_name_is_another_one_and_says_so(machine: Machine) -> None:
    consumer = reader(machine)
    store = machine.open()
    store.delete_stream("orders")
    made = store.add_stream(ORDERS)
    with pytest.raises(StaleIncarnationError, match="deleted and made again"):
        consumer.fetch(1, 0)
    with pytest.raises(NotFoundError, match="no consumer 'reader' of stream 'orders'; there are none"):
        made.consumer("reader")


def test_a_purge_ahead_of_the_consumer_is_told_and_passed_over(machine: Machine) -> None:
    consumer = reader(machine)
    assert fetched(consumer, 2) == [1, 2]
    machine.open().stream("orders").purge(end=6)
    assert fetched(consumer, 100) == [6, 7, 8, 9, 10]
    skipped, event = consumer.info()["events"]
    assert (skipped["kind"], skipped["before"]) == ("consumer_skipped", "1 to 5")
    assert "sequences 3 to 5 were removed or lost before they were read" in event["reason"]
    assert consumer.info()["num_ack_pending"] == 5


@pytest.mark.parametrize("subjects", [[], ["orders.>"]])
def test_messages_that_no_copy_has_wait_and_hold_nothing_up_until_declared_lost(
    subjects: list[str],
) -> None:
    machine = Machine(7)
    stream = machine.create().add_stream({**ORDERS, "block_max_msgs": 5})
    put(stream, 15)
    consumer = stream.add_consumer({"name": "reader", "filter_subjects": subjects})
    remove_block(machine, stream, 1)
    assert fetched(consumer, 100) == [1, 2, 3, 4, 5, 11, 12, 13, 14, 15]
    events = consumer.info()["events"]
    assert events and {one["kind"] for one in events} == {"consumer_unreadable"}
    assert events[0]["before"] == "6 to 10"
    consumer.ack([*range(1, 6), *range(11, 16)])
    info = consumer.info()
    assert (info["num_ack_pending"], info["num_pending"], info["ack_floor"]["stream_seq"]) == (0, 5, 5)
    assert (info["num_unreadable"], info["unreadable_ranges"]) == (5, [[6, 11]])
    assert fetched(consumer, 100) == []
    assert len(consumer.info()["events"]) == 1
    machine.open().repair()
    put(machine.open().stream("orders"), 1)
    assert fetched(reader(machine), 100) == [16]
    assert reader(machine).info()["num_unreadable"] == 0


@pytest.mark.parametrize("volume_count", [1, 3])
@pytest.mark.parametrize("subjects", [[], ["orders.eu"]])
def test_with_policy_fail_a_consumer_stops_right_before_what_no_copy_has(
    volume_count: int, subjects: list[str]
) -> None:
    machine = Machine(7, volume_count)
    stream = machine.create().add_stream({**ORDERS, "block_max_msgs": 5})
    put(stream, 15)
    keys = {"filter_subjects": subjects, "on_data_loss": "fail", "max_deliver": 2}
    consumer = stream.add_consumer({"name": "reader", **keys})
    remove_block(machine, stream, 1)
    for _ in range(3):
        assert fetched(consumer, 100) == [1, 2, 3, 4, 5]
        consumer.nak(range(3, 6))
        consumer.ack([1, 2])
        assert fetched(consumer, 100) == [3, 4, 5]
        consumer.ack(range(3, 6))
        for count in (100, 1, 3):
            with pytest.raises(
                DataLossError, match=r"consumer 'reader': .*sequence 6, which .*repair.*the file is miss"
            ) as raised:
                consumer.fetch(count, 0)
            assert (raised.value.stream, raised.value.consumer, raised.value.first) == ("orders", "reader", 6)
        info = consumer.info()
        assert (info["delivered"]["stream_seq"], info["num_ack_pending"]) == (5, 0)
        assert [one["kind"] for one in info["events"][-2:]].count("consumer_failed") == 1
        consumer.reset(1)
    consumer.fetch(5, 0)
    consumer.ack(range(1, 6))
    assert not machine.open().repair()["ok"]
    with pytest.raises(DataLossError, match="sequences 6 to 10 are lost"):
        consumer.fetch(100, 0)
    consumer.reset()
    assert fetched(consumer, 100) == [11, 12, 13, 14, 15]


def test_what_cannot_be_looked_at_is_told_once_however_little_may_wait() -> None:
    machine = Machine(7)
    stream = machine.create().add_stream({**ORDERS, "block_max_msgs": 5})
    put(stream, 15)
    keys = {"filter_subjects": ["orders.eu"], "max_ack_pending": 2}
    consumer = stream.add_consumer({"name": "reader", **keys})
    remove_block(machine, stream, 1)
    for expected in ([1, 2], [3, 4], [5, 11], [12, 13], [14, 15], []):
        got = fetched(consumer, 100)
        assert got == expected
        consumer.ack(got)
    events = consumer.info()["events"]
    assert [(one["kind"], one["before"]) for one in events] == [("consumer_unreadable", "6 to 10")]


def test_a_reset_passes_over_what_waited_and_is_lost(machine: Machine) -> None:
    stream = machine.open().stream("orders")
    put(stream, 10)
    consumer = reader(machine)
    fetched(consumer, 20)
    consumer.ack([*range(1, 4), *range(11, 21)])
    remove_block(machine, stream, 0)
    machine.open().repair()
    assert consumer.reset() == 21


# --- the consumer itself


def test_reset_goes_back_to_a_sequence_or_to_what_was_not_acknowledged(machine: Machine) -> None:
    consumer = reader(machine)
    assert fetched(consumer, 6) == [1, 2, 3, 4, 5, 6]
    consumer.ack([1, 2, 4])
    assert consumer.reset() == 3
    assert deliveries(consumer.fetch(2, 0)) == {3: 1, 4: 1}
    assert consumer.reset(9) == 9
    assert fetched(consumer, 100) == [9, 10]
    assert [one["kind"] for one in consumer.info()["events"]] == ["consumer_reset"] * 2


def test_the_shape_of_info(machine: Machine) -> None:
    consumer = reader(machine)
    info = consumer.info()
    assert list(info) == [
        "stream_name", "name", "created", "config", "delivered", "ack_floor", "num_ack_pending", "num_redelivered",
        "num_pending", "num_skipped", "num_unreadable", "unreadable_ranges", "paused", "pause_remaining", "incarnation",
        "problem", "moves_to", "events",
    ]  # fmt: skip
    assert (info["stream_name"], info["name"], info["num_pending"]) == ("orders", "reader", 10)
    assert info["incarnation"] == machine.open().stream("orders").incarnation.hex()
    consumer.reset(3)
    (event,) = consumer.info()["events"]
    shape = ["time", "kind", "stream", "consumer", "volume", "before", "after", "reason", "count", "last_time"]
    assert list(event) == shape
    assert (event["consumer"], event["before"], event["after"]) == ("reader", "0", "2")


def test_without_a_quorum_a_consumer_with_news_is_still_shown() -> None:
    machine = Machine(7, 3)
    stream = machine.create().add_stream(ORDERS)
    put(stream, 10)
    stream.add_consumer({"name": "reader"})
    stream.purge(end=5)
    for path in [path for path, _ in machine.disk.files() if not path.is_relative_to(machine.paths[0])]:
        machine.disk.remove(path)
    consumer = reader(machine)
    assert consumer.info()["num_pending"] == 6
    with pytest.raises(NoQuorumError):
        consumer.fetch(1, 0)


def test_consumers_are_listed_counted_and_deleted(machine: Machine) -> None:
    stream = machine.open().stream("orders")
    other = stream.add_consumer({"name": "Another"})
    assert (stream.consumers(), stream.info()["state"]["consumer_count"]) == (["Another", "reader"], 2)
    with pytest.raises(AlreadyExistsError, match="differs from consumer 'reader' only in case"):
        stream.add_consumer({"name": "READER"})
    with pytest.raises(NotFoundError, match="no consumer 'raeder' of stream 'orders'; did you mean 'reader'"):
        stream.consumer("raeder")
    other.delete()
    assert stream.consumers() == ["reader"]
    with pytest.raises(NotFoundError, match="no consumer 'Another'"):
        other.fetch(1, 0)


@pytest.mark.buckets
def test_a_store_opened_for_reading_shows_consumers_and_moves_none(machine: Machine) -> None:
    consumer = reader(machine, read_only=True)
    assert consumer.info()["num_pending"] == 10
    with pytest.raises(ReadOnlyError):
        consumer.fetch(1, 0)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda one: one.fetch(0), "max_messages: 0 is not 1 to"),
        (lambda one: one.fetch("many"), "max_messages: 'many' is not a whole number"),
        (lambda one: one.fetch(1, -1), "timeout_s: -1 is not a number of seconds"),
        (lambda one: one.ack("1"), "sequences: str is not a sequence"),
        (lambda one: one.ack([1, 0]), "sequences: 0 is not a sequence"),
        (lambda one: one.ack(range(0, 3)), "sequences: 0 is not a sequence"),
        (lambda one: one.ack(range(1, 2**70)), "sequences: 1180591620717411303423 is not a sequence"),
        (lambda one: one.ack(np.array([2**64 - 1], np.uint64)), "sequences: 18446744073709551615 is not a sequence"),
        (lambda one: one.ack([True]), "sequences: True is not a sequence"),
        (lambda one: one.ack(2**63), "sequences: 9223372036854775808 is not a sequence"),
        (lambda one: one.ack([pa.scalar(1.0)]), "sequences: 1.0 is not a sequence"),
        (lambda one: one.ack(np.array([1.5])), "sequences: an array of float64 holds no sequences"),
        (lambda one: one.ack(pa.array(["1"])), "sequences: a column of string holds no sequences"),
        (lambda one: one.fetch(1, "soon"), "timeout_s: 'soon' is not a number of seconds"),
        (lambda one: one.nak(1, delay_s=-2), "delay_s: -2 is not a number of seconds"),
        (lambda one: one.nak(1, delay_s=10**400), "delay_s: 1000* is not a number of seconds"),
        (lambda one: one.pause(0), "seconds: 0 is not a number of seconds above 0"),
        (lambda one: one.pause("long"), "seconds: 'long' is not a number of seconds"),
        (lambda one: one.reset(0), "sequence: 0 is not a sequence"),
    ],
)
def test_bad_input_is_named(call: Callable[[Consumer], object], why: str) -> None:
    stream = Machine(7).create().add_stream(ORDERS)
    with pytest.raises(ValueError, match=why):
        call(stream.add_consumer({"name": "reader"}))


def test_a_start_beyond_the_end_is_refused() -> None:
    stream = Machine(7).create().add_stream(ORDERS)
    with pytest.raises(ValueError, match="opt_start_seq: 5 lies beyond the next message of the stream, 1"):
        stream.add_consumer({"name": "reader", "deliver_policy": "by_start_sequence", "opt_start_seq": 5})


def test_what_acknowledging_takes(machine: Machine) -> None:
    consumer = reader(machine)
    table = consumer.fetch(10, 0)
    taken = [1, range(2, 4), [4], (5,), np.array([6]), pa.array([7]), table.column("sequence").slice(7, 1)]
    assert [consumer.ack(one) for one in taken] == [1, 2, 1, 1, 1, 1, 1]
    assert consumer.ack(SequenceSet.from_ranges([(9, 10)])) == 1
    assert consumer.ack(table.column("sequence")[9]) == 1
    assert [consumer.ack(one) for one in ([], np.array([]), pa.array([]), range(0))] == [0, 0, 0, 0]
    assert consumer.info()["num_ack_pending"] == 0
