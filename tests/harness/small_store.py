"""A real store on one volume with one stream, S, and a few messages."""

from pathlib import Path

from storage_core.store.store import Store


def make_store(volume: Path, message_count: int = 1) -> Store:
    store = Store.create(volume)
    store.add_stream({"name": "S"})
    publish(store, *(b"%d" % number for number in range(message_count)))
    return store


def publish(store: Store, *messages: bytes) -> None:
    for message in messages:
        store.stream("S").publish("S", message)
