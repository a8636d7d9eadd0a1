"""A program of a user, for the release check: it runs, and type checkers accept it, with nothing but the wheel."""

from collections.abc import Sequence

from pyspark_jstream import Consumer, ConsumerConfig, Message, Store, Stream, StreamConfig, errors


def publish(stream: Stream, orders: Sequence[str]) -> int:
    return stream.append([{"subject": "orders.new", "data": order.encode()} for order in orders]).stored


def last(stream: Stream, subject: str) -> bytes | None:
    message: Message = stream.last(subject)
    return message.data


with Store.open_or_create(["disk-1", "disk-2", "disk-3"]) as store:
    orders: Stream = store.add_stream(StreamConfig(name="ORDERS", subjects=("orders.>",), max_msgs=1_000))
    billing: Consumer = orders.add_consumer(ConsumerConfig(name="billing", max_ack_pending=100))
    assert publish(orders, ["a red bicycle", "two lamps"]) == 2
    assert last(orders, "orders.new") == b"two lamps"
    table = billing.fetch(10)
    billing.ack(table)
    try:
        orders.get(3)
    except errors.StorageError as error:
        print(error)
