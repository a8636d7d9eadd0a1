"""What a user who knows Kafka, Delta or NATS types first: it works, or the error says what to type instead."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pyarrow as pa
import pytest

from pyspark_jstream import Consumer, ConsumerConfig, Message, Store, Stream, StreamConfig, errors
from storage_core.store.snapshot import ReadableStream

SUBJECTS = ["orders.>"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "shop") as made:
        yield made


@pytest.fixture
def orders(store: Store) -> Stream:
    stream = store.add_stream({"name": "ORDERS", "subjects": SUBJECTS})
    stream.append([{"subject": "orders.new", "data": str(number)} for number in range(1, 9)])
    return stream


@pytest.fixture
def consumer(orders: Stream) -> Consumer:
    return orders.add_consumer({"name": "billing"})


def test_exported_types_annotate_what_the_calls_return() -> None:
    def own(store: Store, stream: Stream, consumer: Consumer) -> tuple[StreamConfig, ConsumerConfig, Message]:
        return stream.config, consumer.config, stream.get(1)

    hints = get_type_hints(own)
    assert hints["consumer"] is Consumer and hints["stream"] is Stream
    for call, kind in ((Stream.get, Message), (Stream.consumer, Consumer)):
        assert inspect.signature(call).return_annotation in (kind, kind.__name__)


def test_a_snapshot_shows_the_store_as_it_was(store: Store, orders: Stream) -> None:
    orders.purge(end=3)
    with store.snapshot() as view:
        then = view.stream("ORDERS")
        orders.append([{"subject": "orders.paid", "data": "9"}])
        orders.remove([4, 5])
        orders.edit(max_msgs=100)
        store.add_stream(name="LATER")
        assert view.streams() == ["ORDERS"] and store.streams() == ["LATER", "ORDERS"]
        assert (then.first_sequence, then.last_sequence, then.config.max_msgs) == (3, 8, -1)
        assert then.read().read_all()["sequence"].to_pylist() == [3, 4, 5, 6, 7, 8]
        assert then.subjects() == {"orders.new": 6} and then.last("orders.>").sequence == 8 and then.gaps() == []
        assert then.info()["state"]["messages"] == 6 and then.get(4).data == b"4"
        with pytest.raises(errors.NotFoundError, match="LATER"):
            view.stream("LATER")
    with store.snapshot() as later:
        assert later.index > view.index
        assert later.stream("ORDERS").read().read_all()["sequence"].to_pylist() == [3, 6, 7, 8, 9]
    store.close()
    with pytest.raises(errors.StoreClosedError):
        then.read()


def test_a_snapshot_looks_at_the_volumes_once(store: Store, orders: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    view_of = type(store.metadata).view
    monkeypatch.setattr(type(store.metadata), "view", lambda self, wait: looks.append(wait) or view_of(self, wait))
    with store.snapshot() as view:
        then = view.stream("ORDERS")
        assert then.read().read_all().num_rows == then.last_sequence - then.first_sequence + 1 == 8
        assert then.subjects() == {"orders.new": 8} and view.streams() == ["ORDERS"]
    assert len(looks) == 1


# --- configurations


def test_a_configuration_is_an_object_a_dict_or_its_keys(store: Store) -> None:
    made = [
        store.add_stream(StreamConfig(name="A", max_msgs=9)),
        store.add_stream({"name": "B", "max_msgs": 9}),
        store.add_stream(name="C", max_msgs=9),
        store.add_stream({"name": "D"}, max_msgs=np.int64(9)),
    ]
    configs = [stream.config.to_json() | {"name": "", "subjects": []} for stream in made]
    assert configs == [configs[0]] * 4
    given = {"ack_wait": "1m", "max_deliver": np.int32(3)}
    consumers = [
        made[0].add_consumer(ConsumerConfig(name="a", ack_wait=60_000_000_000, max_deliver=3)),
        made[0].add_consumer({"name": "b", **given}),
        made[0].add_consumer(name="c", **given),
        made[0].add_consumer(ConsumerConfig(name="d", max_deliver=3), ack_wait="1m"),
    ]
    assert [consumer.config.to_json() | {"name": ""} for consumer in consumers] == [
        consumers[0].config.to_json() | {"name": ""}
    ] * 4


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda stream: stream.edit(), "a stream's configuration is a dict or StreamConfig, not NoneType"),
        (lambda stream: stream.edit("max_msgs"), "a stream's configuration is a dict or StreamConfig, not str"),
        (lambda stream: stream.edit({"max_msgs": 1}, max_msgs=2), "max_msgs: given twice"),
        (lambda stream: stream.edit(name="OTHER"), "name: a stream keeps its name, 'ORDERS'"),
        (lambda stream: stream.edit(max_mesgs=1), "unknown key of a stream: 'max_mesgs'; did you mean 'max_msgs'"),
        (lambda stream: stream.edit(max_age=3600), "max_age: 3600 is not 0 .* a number without a unit is nanoseconds"),
        (lambda stream: stream.add_consumer(), "a consumer's configuration is a dict or ConsumerConfig"),
        (lambda stream: stream.add_consumer(name="c", ack_wait=30), "ack_wait: 30 is not 100ms and more"),
    ],
)
def test_what_is_no_configuration_is_named(orders: Stream, call: Callable[[Stream], Any], text: str) -> None:
    before = orders.config
    with pytest.raises(ValueError, match=text):
        call(orders)
    assert orders.config == before and orders.consumers() == []


def test_a_stream_edits_and_deletes_itself(store: Store, orders: Stream) -> None:
    before = orders.config.to_json()
    excess = orders.excess(max_msgs=3)
    assert excess is not None and excess.message_count == 5
    orders.edit(max_msgs=3)
    orders.edit({"description": "of the shop", "name": "ORDERS"})
    orders.edit(StreamConfig(name="ORDERS", max_age=10**12))
    changes = {"max_msgs": 3, "description": "of the shop", "max_age": 10**12}
    assert orders.config.to_json() == {**before, **changes}
    assert orders.info()["state"]["messages"] == 3
    assert store.edit_stream({"name": "ORDERS", "max_msgs": 2}).config.max_msgs == 2
    orders.delete()
    assert store.streams() == []
    again = store.add_stream(name="ORDERS")
    for call in (orders.delete, lambda: orders.edit(max_msgs=1)):
        with pytest.raises(errors.StaleIncarnationError, match="'ORDERS' was deleted"):
            call()
    assert store.stream("ORDERS").config == again.config


# --- what was fetched or read, in the place of its sequences

FORMS: dict[str, Callable[[pa.Table], Any]] = {
    "table": lambda table: table,
    "batch": lambda table: table.to_batches()[0],
    "reader": lambda table: table.to_reader(),
    "pandas": lambda table: table.to_pandas(),
    "column": lambda table: table["sequence"],
    "column of pandas": lambda table: table.to_pandas()["sequence"],
    "rows": lambda table: table.to_pylist(),
    "numpy": lambda table: table["sequence"].to_numpy(),
    "scalars": lambda table: list(table["sequence"]),
    "numbers": lambda table: table["sequence"].to_pylist(),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_what_was_fetched_is_acknowledged_and_removed_in_every_form(consumer: Consumer, form: Any) -> None:
    stream = consumer._store.stream("ORDERS")  # type: ignore[attr-defined]
    assert consumer.ack(form(consumer.fetch(2))) == 2
    assert consumer.term(form(consumer.fetch(2))) == 2
    third = consumer.fetch(2)
    assert consumer.nak(form(third)) == 2
    assert consumer.fetch(2)["sequence"].to_pylist() == third["sequence"].to_pylist() == [5, 6]
    assert consumer.ack(form(third)) == 2
    assert stream.remove(form(third)) == 2
    assert stream.gaps() == [(5, 7)]


def test_messages_and_what_publish_returned_stand_for_their_sequences(orders: Stream, consumer: Consumer) -> None:
    consumer.fetch(8)
    assert consumer.ack(orders.get(3)) == 1
    assert consumer.ack([orders.get(4), orders.last("orders.new")]) == 2
    assert orders.remove(orders.publish("orders.new", b"by mistake")) == 1
    assert consumer.ack(consumer.fetch(1, timeout_s=0)) == 0, "an empty table"


def test_messages_of_another_stream_are_refused(store: Store, orders: Stream, consumer: Consumer) -> None:
    bills = store.add_stream(name="BILLS")
    bills.publish("BILLS", b"a bill")
    consumer.fetch(8)
    table = bills.read().read_all()
    for given in (table, pa.concat_tables([orders.read().read_all(), table]), bills.get(1), table.to_pylist()):
        for call in (consumer.ack, consumer.nak, consumer.term, orders.remove):
            with pytest.raises(ValueError, match="sequences: a message is of stream 'BILLS', and this is stream 'ORD"):
                call(given)
    with pytest.raises(ValueError, match="sequences: the table has no column 'sequence', only data"):
        consumer.ack(orders.read(columns=["data"]).read_all())
    assert consumer.info()["num_ack_pending"] == 8 and orders.info()["state"]["messages"] == 8


@pytest.mark.parametrize(
    "headers", [{"a": "1", "b": b"\xff", "c": None}, [("a", b"1"), ("b", b"\xff"), ("c", None)], {}.items(), iter(())]
)
def test_headers_are_a_dict_or_pairs(orders: Stream, headers: Any) -> None:
    published = orders.publish("orders.new", b"", headers=headers)
    expected = [("a", b"1"), ("b", b"\xff"), ("c", None)] if isinstance(headers, (dict, list)) else []
    assert orders.get(published.sequence).headers == expected
    if isinstance(headers, (dict, list)):
        orders.append([{"subject": "orders.new", "data": b"", "headers": headers}])
        assert orders.get(published.sequence + 1).headers == expected


# --- sequences

SEQUENCES: dict[str, Callable[[Stream, Any], Any]] = {
    "get": lambda stream, sequence: stream.get(sequence),
    "read first": lambda stream, sequence: stream.read(first=sequence).read_all(),
    "read end": lambda stream, sequence: stream.read(end=sequence).read_all(),
    "last_per_subject": lambda stream, sequence: stream.last_per_subject(end=sequence).read_all(),
    "reset": lambda stream, sequence: stream.consumer("billing").reset(sequence),
    "ack": lambda stream, sequence: stream.consumer("billing").ack(sequence),
    "remove": lambda stream, sequence: stream.remove(sequence),
    "purge": lambda stream, sequence: stream.purge(end=sequence),
    "purge_plan": lambda stream, sequence: stream.purge_plan(end=sequence),
    "start": lambda stream, sequence: stream.add_consumer(
        name="other", deliver_policy="by_start_sequence", opt_start_seq=sequence
    ),
}


@pytest.mark.parametrize("call", SEQUENCES.values(), ids=SEQUENCES)
def test_every_call_checks_sequences_alike(orders: Stream, consumer: Consumer, call: Callable[..., Any]) -> None:
    for wrong in (0, -1, True, 1.0, 2**63):
        with pytest.raises(ValueError, match=r"(sequence|first|end|sequences|opt_start_seq): .* is not a"):
            call(orders, wrong)
    assert orders.info()["state"]["messages"] == 8
    call(orders, np.int64(2))


def test_whole_numbers_of_numpy_are_taken_everywhere(store: Store, orders: Stream, consumer: Consumer) -> None:
    number = np.int64(8)
    assert orders.publish("orders.new", b"", expected_last_sequence=number).sequence == 9
    assert orders.append([], expected_last_sequence=np.uint8(9)) == range(10, 10)
    assert orders.first_at_time(np.int64(0)) == 1
    assert consumer.fetch(np.int32(2), timeout_s=np.float64(0), max_bytes=np.int64(1)).num_rows == 1
    assert orders.purge(keep=np.int64(1)) == 8
    assert len(store.events(limit=np.int64(1))) == 1
    config = store.add_key_value("config", history=np.int64(2), max_age=np.int64(10**12))
    assert config.update("a", b"1", revision=np.int64(0)) == 1
    assert config.get("a", revision=np.int64(1)).value == b"1"
    assert store.scrub(limit_bytes=np.int64(10**9))["ok"]


def test_appending_and_restoring_nothing_return_the_empty_range_at_the_end(orders: Stream) -> None:
    from storage_core.store.writing.appends import WriterBatch

    assert orders.append([]) == range(9, 9)
    assert orders.restore([], WriterBatch("mirror", "1")) == range(9, 9)
    assert (orders.append([]).start, orders.restore([], WriterBatch("mirror", "2")).start) == (9, 9)


def test_an_empty_stream_is_said_to_hold_nothing(orders: Stream) -> None:
    orders.purge()
    for sequence, why in ((8, "was removed"), (9, "was never stored")):
        with pytest.raises(
            errors.NotFoundError,
            match=f"message {sequence} {why}; the stream holds no messages, the next one gets sequence 9$",
        ):
            orders.get(sequence)


# --- a store that is closed

OF_STORE: dict[str, Callable[[Store], Any]] = {
    "snapshot": lambda store: store.snapshot(),
    "streams": lambda store: store.streams(),
    "stream": lambda store: store.stream("ORDERS"),
    "add_stream": lambda store: store.add_stream(name="B"),
    "edit_stream": lambda store: store.edit_stream(name="ORDERS", max_msgs=1),
    "delete_stream": lambda store: store.delete_stream("ORDERS"),
    "key_value": lambda store: store.key_value("config"),
    "add_key_value": lambda store: store.add_key_value("config"),
    "edit": lambda store: store.edit(max_streams=1),
    "info": lambda store: store.info(),
    "cluster_info": lambda store: store.cluster_info(),
    "report": lambda store: store.report(),
    "events": lambda store: store.events(),
    "verify": lambda store: store.verify(),
    "compare": lambda store: store.compare("ORDERS"),
    "repair": lambda store: store.repair(),
    "read_set_aside": lambda store: store.read_set_aside("ORDERS"),
    "scrub": lambda store: store.scrub(),
    "compact": lambda store: store.compact(),
    "compaction": lambda store: store.compaction(None),  # type: ignore[arg-type]
    "maintain": lambda store: store.maintain(),
    "watching": lambda store: store.watching().__enter__(),
    "add_volumes": lambda store: store.add_volumes(["a", "b"]),
    "remove_volumes": lambda store: store.remove_volumes(["a", "b"]),
    "replace_volume": lambda store: store.replace_volume("a", "b"),
    "step_down": lambda store: store.step_down(),
    "backup": lambda store: store.backup("saved"),
    "restore_streams": lambda store: store.restore_streams("saved"),
}
OF_STREAM: dict[str, Callable[[Stream], Any]] = {
    "state": lambda stream: stream.state(),
    "info": lambda stream: stream.info(),
    "edit": lambda stream: stream.edit(max_msgs=1),
    "excess": lambda stream: stream.excess(max_msgs=1),
    "delete": lambda stream: stream.delete(),
    "append": lambda stream: stream.append([{"subject": "orders.new", "data": "late"}]),
    "restore": lambda stream: stream.restore([], None),  # type: ignore[arg-type]
    "publish": lambda stream: stream.publish("orders.new", b"late"),
    "read": lambda stream: stream.read(),
    "to_polars": lambda stream: stream.to_polars(),
    "get": lambda stream: stream.get(1),
    "last": lambda stream: stream.last(">"),
    "last_per_subject": lambda stream: stream.last_per_subject(),
    "first_at_time": lambda stream: stream.first_at_time(0),
    "subjects": lambda stream: stream.subjects(),
    "gaps": lambda stream: stream.gaps(),
    "add_consumer": lambda stream: stream.add_consumer(name="late"),
    "consumer": lambda stream: stream.consumer("billing"),
    "consumers": lambda stream: stream.consumers(),
    "remove": lambda stream: stream.remove(1),
    "purge": lambda stream: stream.purge(),
    "purge_plan": lambda stream: stream.purge_plan(),
}
OF_CONSUMER: dict[str, Callable[[Consumer], Any]] = {
    "state": lambda consumer: consumer.state(),
    "info": lambda consumer: consumer.info(),
    "look": lambda consumer: consumer.look(),
    "fetch": lambda consumer: consumer.fetch(1, timeout_s=0),
    "ack": lambda consumer: consumer.ack(1),
    "nak": lambda consumer: consumer.nak(1),
    "term": lambda consumer: consumer.term(1),
    "reset": lambda consumer: consumer.reset(),
    "pause": lambda consumer: consumer.pause(1),
    "resume": lambda consumer: consumer.resume(),
    "delete": lambda consumer: consumer.delete(),
}


def public_calls(kind: type) -> set[str]:
    calls = inspect.getmembers(kind, inspect.isfunction)
    return {name for name, call in calls if not name.startswith("_") and name in vars(kind)}


def test_a_closed_store_and_its_handles_refuse_every_call(store: Store, orders: Stream, consumer: Consumer) -> None:
    assert public_calls(Store) - {"close"} <= OF_STORE.keys()
    assert public_calls(Stream) | public_calls(ReadableStream) == OF_STREAM.keys()
    assert public_calls(Consumer) <= OF_CONSUMER.keys()
    reader = orders.read()
    other = Store.open(store.paths)
    before, unrefused = other.view().index, []
    store.close()
    store.close()
    for calls, handle in ((OF_STORE, store), (OF_STREAM, orders), (OF_CONSUMER, consumer)):
        for name, call in calls.items():
            with pytest.raises(errors.StoreClosedError, match="shop: this Store was closed; open it again"):
                unrefused.append((name, call(handle)))  # type: ignore[operator]
    with pytest.raises(errors.StoreClosedError), store:
        pass
    assert unrefused == []
    assert repr(store).startswith("closed Store(") and "ORDERS" in repr(orders)
    assert reader.read_all().num_rows == 8, "a reader runs to its end"
    assert other.view().index == before
    assert other.stream("ORDERS").get(1).data == b"1"


def test_a_with_block_closes_its_store(tmp_path: Path) -> None:
    with Store.open_or_create(tmp_path / "shop") as store:
        stream = store.add_stream(name="S")
    with pytest.raises(errors.StoreClosedError) as caught:
        stream.publish("S", b"late")
    assert caught.value.fields == {"store": str(tmp_path / "shop")}
    with Store.open(tmp_path / "shop") as again:
        assert again.stream("S").info()["state"]["messages"] == 0
