"""Writes the golden stores beside it, and what they hold as JSON: `python tests/data/stores/generate.py`.

They belong to version 1 of all formats and never change while it is read: a store that exists is not written again. A
new version of a format gets stores of its own. Clock, randomness and machine are made up, so every run writes the same.

    v1-fresh        one stream, some messages, a log that begins at its first entry
    v1-lived        several streams, removals, purges, writers, a deleted and re-made stream, two snapshots and the log
                    since, another host that took over, a torn tail that was set aside
    v1-interrupted  an entry that was durable when its holder was killed, without a commit record, and half a page
"""

import json
import random
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage_core.metadata.commands import AddStream, Envelope, encode_envelope
from storage_core.metadata.config import StreamConfig
from storage_core.raft.entry import Vote, make_entry
from storage_core.store.environment import Environment
from storage_core.store.store import Store
from storage_core.store.writing.appends import WriterBatch
from storage_core.store.writing.staging import Stager

HERE = Path(__file__).parent
START_NS = 1_795_262_400_000_000_000  # 2026-11-21T12:00:00Z
SECOND_NS, HOUR_NS = 1_000_000_000, 3_600_000_000_000


class World:
    """A clock that moves a second with every look at it, random bytes from a seed, and a machine."""

    def __init__(self, seed: str) -> None:
        self._time_ns, self._random = START_NS, random.Random(seed)

    def pass_time(self, duration_ns: int) -> None:
        self._time_ns += duration_ns

    def now_ns(self) -> int:
        self._time_ns += SECOND_NS
        return self._time_ns

    def environment(self, machine: str = "golden machine") -> Environment:
        return Environment(now_ns=self.now_ns, random_bytes=self._random.randbytes, lock_domain=lambda: machine)


def messages(subjects: Sequence[str], first: int = 0, msg_ids: Sequence[str | None] | None = None) -> pa.Table:
    """Return a message for each subject, with headers and data of every kind."""
    numbers = range(first, first + len(subjects))
    data = [None if number % 5 == 3 else b"" if number % 5 == 4 else b"message %d" % number for number in numbers]
    headers = [[None, [], [("n", b"%d" % number), ("n", None), ("\u00fc", b"")]][number % 3] for number in numbers]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns: dict[str, Any] = {
        "subject": pa.array(list(subjects)),
        "data": pa.array(data, pa.binary()),
        "headers": pa.array(
            [None if one is None else [{"key": k, "value": v} for k, v in one] for one in headers], kind
        ),
        "timestamp_ns": pa.array([START_NS + number * 1_000_003 if number % 4 else None for number in numbers]),
    }
    if msg_ids is not None:
        columns["msg_id"] = pa.array(list(msg_ids), pa.string())
    return pa.table(columns)


def stage(store: Store, tables: dict[str, pa.Table]) -> tuple[Any, list[Any]]:
    """Return a transaction over several streams, and the blocks that are staged for it."""
    transaction, staged = store.begin(list(tables)), []
    for partition, (name, table) in enumerate(tables.items()):
        stager = Stager(transaction, transaction.targets[name], partition, env=store.environment)
        for batch in table.to_batches():
            stager.write(batch)
        staged.extend(stager.finish())
    return transaction, staged


def make_fresh(volume: Path) -> None:
    store = Store.create(volume, env=World("fresh").environment())
    orders = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    orders.append(messages(["orders.eu", "orders.us", "orders.eu.de", "orders.eu", "orders.jp"]))
    orders.publish("orders.eu", b"the last one", headers=[("trace", b"\x00\x01")], msg_id="a-1")
    assert orders.publish("orders.eu", b"again", msg_id="a-1").duplicate


def make_lived(volume: Path) -> None:
    world = World("lived")
    store = Store.create(volume, env=world.environment(), snapshot_every=8, deleted_block_retention="1h")
    orders = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"], "metadata": {"owner": "shop"}})
    events = store.add_stream({"name": "EVENTS", "subjects": ["events.*"], "compression": "lz4", "block_max_msgs": 10})
    audit = store.add_stream({"name": "AUDIT", "compression": "zstd", "deny_delete": True, "deny_purge": True})
    temp = store.add_stream({"name": "TEMP"})
    orders.append(
        messages([f"orders.{place}" for place in ("eu", "us", "jp") * 6], msg_ids=[f"m{n}" for n in range(17)] + [None])
    )
    orders.append(messages(["orders.eu"] * 4, 30, ["m3", "new", "m16", None]))
    events.append(messages([f"events.{number % 3}" for number in range(35)]))
    audit.append(messages(["AUDIT"] * 6), WriterBatch("nightly", "2026-11-20"))
    for batch in range(3):
        writer = WriterBatch("etl", str(batch), "query 1", "run 1" if batch < 2 else "run 2")
        audit.append(messages(["AUDIT"] * 2, 100 + 2 * batch), writer)
    temp.append(messages(["TEMP"] * 3))
    store.delete_stream("TEMP")
    store.add_stream({"name": "TEMP"}).append(messages(["TEMP"] * 2, 50))
    orders.remove([2, 3, 5, 18])
    events.purge(subject="events.1", keep=2)
    events.purge(end=4)
    transaction, _ = stage(store, {"ORDERS": messages(["orders.never"])})
    assert store.abort(transaction)
    world.pass_time(2 * HOUR_NS)
    store.maintain()
    leave_interrupted(store, "LOST-AND-FOUND", torn=b"half a page of something")
    store = Store.open(volume, env=world.environment())  # settles
    transaction, staged = stage(
        store, {"ORDERS": messages(["orders.uk"] * 3, 200), "EVENTS": messages(["events.9"] * 2, 210)}
    )
    store.commit(transaction, staged, overwrite=["EVENTS"])
    store = Store.open(volume, env=world.environment("second golden machine"), take_over=True)
    store.edit_stream({"name": "AUDIT", "sealed": True, "description": "closed"})
    for number in range(4):
        store.stream("ORDERS").publish("orders.eu", b"after %d" % number, msg_id=f"late {number}")
    store.stream("LOST-AND-FOUND").publish("LOST-AND-FOUND", b"found")
    store.verify()


def make_interrupted(volume: Path) -> None:
    make_fresh(volume)
    store = Store.open(volume, env=World("interrupted").environment())
    leave_interrupted(store, "ADDED", torn=bytes(range(256)) * 8)


def leave_interrupted(store: Store, stream: str, torn: bytes) -> None:
    """Do as a holder that is killed: make a stream, without a commit record, and write half of a next batch."""
    env, log = store.environment, store.volumes()[0].log
    evidence = log.read()
    index, _, chain = evidence.tip
    incarnation, term = env.new_id(), evidence.term + 1
    directory = Path(store.paths[0]) / "streams" / incarnation.hex()
    env.files.make_directory(directory)
    command = AddStream(incarnation, StreamConfig.from_mapping({"name": stream}), (store.volumes()[0].volume_id,))
    payload = encode_envelope(Envelope(env.now_ns(), command))
    entry = make_entry(chain, index + 1, term, env.random_bytes(8), payload)
    position = log.append(evidence.position, [Vote(term, env.new_id()), entry])
    with log.segment_path(position.segment).open("ab") as file:
        file.write(torn)


def contents(store: Store) -> dict[str, Any]:
    """Return what the store holds, as JSON has it; nothing that depends on where it lies."""
    info, streams = store.info(), {}
    for name in store.streams():
        stream = store.stream(name)
        about = stream.info()
        numbers = stream.read(columns=["sequence"]).read_all().column("sequence").to_pylist()
        streams[name] = {
            "config": about["config"],
            "created": about["created"],
            "state": about["state"],
            "subjects": stream.subjects(),
            "gaps": [list(one) for one in stream.gaps()],
            "messages": [stream.get(number).to_json() for number in numbers],
        }
    return {
        "store_id": info["store_id"],
        "created": info["created"],
        "settings": info["settings"],
        "host": info["host"],
        "streams": streams,
    }


STORES = {"v1-fresh": make_fresh, "v1-lived": make_lived, "v1-interrupted": make_interrupted}


def make(name: str, volume: Path) -> None:
    """Write the golden store of that name; the hostname of this machine is not part of it."""
    gethostname, socket.gethostname = socket.gethostname, lambda: "golden host"
    try:
        STORES[name](volume)
    finally:
        socket.gethostname = gethostname
    (volume / "lock").unlink()  # says which process wrote, and nothing is decided by it


def main() -> None:
    for name in STORES:
        if (HERE / name).exists():
            print(f"{name} is there already", file=sys.stderr)
            continue
        make(name, HERE / name)
        expected = contents(Store.open(HERE / name, read_only=True, env=Environment(sleep=lambda _: None)))
        (HERE / f"{name}.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
