"""A scripted life of a store: everything that changes one, once or twice, with small blocks and frequent snapshots.

Each step makes one commit at most, so after a fault in it a store shows what it did before the step or what it does
after it, and nothing else.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from harness.model import Content, ModelStore, ModelStream, Row
from harness.processes import VOLUME

from storage_core.schema import HEADERS_TYPE
from storage_core.store.environment import Environment
from storage_core.store.store import Store
from storage_core.store.writing.appends import WriterBatch
from storage_core.store.writing.staging import StagedBlock, Stager, Transaction

ORDERS = {"name": "orders", "subjects": ["orders.>"], "block_max_msgs": 2, "duplicate_window": "1h"}
NOTES = {"name": "notes", "block_max_msgs": 2}
SNAPSHOT_EVERY = 3  # entries
SETTINGS = {"snapshot_every": SNAPSHOT_EVERY, "deleted_block_retention": "0s"}
WRITER = WriterBatch("loader", "7")

FIRST = [Row("orders.eu", b"o1", (("key", b"value"), ("key", None))), Row("orders.us", None), Row("orders.eu", b"")]
KEYED = Row("orders.eu", b"o4", msg_id="a")
LOADED = [Row("orders.us", b"o6", ()), Row("orders.us", b"o7"), Row("orders.asia", b"o8")]
WRITTEN = [Row("notes", b"n%d" % number) for number in range(1, 6)]
BOTH = {"orders": [Row("orders.us", b"o9")], "notes": [Row("notes", b"n6"), Row("notes", b"n7"), Row("notes", b"n8")]}
REPLACING = [Row("notes", b"m%d" % number) for number in range(1, 4)]
LATER = [Row("notes", b"p%d" % number) for number in range(1, 4)]
LAST = [Row("orders.eu", b"q%d" % number) for number in range(1, 4)]


@dataclass(frozen=True, slots=True)
class Step:
    """Something that is done to a store, and what it should come to."""

    name: str
    act: Callable[[Store], object]
    expect: Callable[[ModelStore], object]


def to_table(rows: Iterable[Row]) -> pa.RecordBatch:
    """Return messages as columns to write."""
    listed = list(rows)
    headers = [
        None if row.headers is None else [{"key": key, "value": value} for key, value in row.headers] for row in listed
    ]
    columns: dict[str, pa.Array] = {
        "subject": pa.array([row.subject for row in listed], pa.string()),
        "headers": pa.array(headers, HEADERS_TYPE),
        "data": pa.array([row.data for row in listed], pa.binary()),
    }
    if any(row.msg_id is not None for row in listed):
        columns["msg_id"] = pa.array([row.msg_id for row in listed], pa.string())
    if any(row.timestamp_ns is not None for row in listed):
        columns["timestamp_ns"] = pa.array([row.timestamp_ns for row in listed], pa.int64())
    return pa.RecordBatch.from_pydict(columns)


def stage(store: Store, transaction: Transaction, rows: dict[str, list[Row]]) -> list[StagedBlock]:
    """Write rows as tasks would, one stream after another."""
    staged: list[StagedBlock] = []
    for name, listed in rows.items():
        stager = Stager(transaction, transaction.targets[name], 0, env=store.environment)
        try:
            stager.write(to_table(listed))
            staged.extend(stager.finish())
        except BaseException:
            stager.discard()
            raise
    return staged


def commit(store: Store, rows: dict[str, list[Row]], overwrite: tuple[str, ...] = ()) -> None:
    transaction = store.begin(list(rows))
    staged = stage(store, transaction, rows)
    store.commit(transaction, staged, overwrite=overwrite)


def abort(store: Store) -> None:
    transaction = store.begin(["orders", "notes"])
    stage(store, transaction, BOTH)
    assert store.abort(transaction)


def compact(store: Store) -> None:
    """Merge what fits together now that larger blocks are allowed."""
    for name in ("orders", "notes"):
        store.edit_stream({"name": name, "block_max_msgs": 9})
    store.compact(["orders", "notes"])  # what a fault keeps from being read stays as it is
    for name in ("orders", "notes"):
        store.edit_stream({"name": name, "block_max_msgs": 2})


def _add(name: str) -> Callable[[ModelStore], None]:
    def expect(model: ModelStore) -> None:
        model.streams[name] = ModelStream()

    return expect


def _append(name: str, rows: list[Row]) -> Callable[[ModelStore], object]:
    return lambda model: model.streams[name].append(rows)


def _nothing(_: ModelStore) -> None:
    return None


def _publish(store: Store) -> object:
    return store.stream("orders").publish(KEYED.subject, KEYED.data, msg_id=KEYED.msg_id)


def _both(model: ModelStore) -> None:
    for name, rows in BOTH.items():
        model.streams[name].append(rows)


STEPS = (
    Step("add a stream", lambda store: store.add_stream(ORDERS), _add("orders")),
    Step("append", lambda store: store.stream("orders").append(to_table(FIRST)), _append("orders", FIRST)),
    Step("publish with msg_id", _publish, _append("orders", [KEYED])),
    Step("publish the same msg_id", _publish, _append("orders", [KEYED])),
    Step(
        "append a batch of a writer",
        lambda store: store.stream("orders").append(to_table(LOADED), WRITER),
        _append("orders", LOADED),
    ),
    Step("append it again", lambda store: store.stream("orders").append(to_table(LOADED), WRITER), _nothing),
    Step("add another stream", lambda store: store.add_stream(NOTES), _add("notes")),
    Step("append five", lambda store: store.stream("notes").append(to_table(WRITTEN)), _append("notes", WRITTEN)),
    Step(
        "remove messages",
        lambda store: store.stream("orders").remove([2, 4]),
        lambda model: model.streams["orders"].remove([2, 4]),
    ),
    Step("append to both", lambda store: commit(store, BOTH), _both),
    Step(
        "purge a subject",
        lambda store: store.stream("orders").purge(subject="orders.us"),
        lambda model: model.streams["orders"].purge(subject="orders.us"),
    ),
    Step("maintain", lambda store: store.maintain(), _nothing),
    Step(
        "overwrite",
        lambda store: commit(store, {"notes": REPLACING}, overwrite=("notes",)),
        lambda model: model.streams["notes"].overwrite(REPLACING),
    ),
    Step("abort", abort, _nothing),
    Step(
        "purge but the newest",
        lambda store: store.stream("notes").purge(keep=1),
        lambda model: model.streams["notes"].purge(keep=1),
    ),
    Step("verify", lambda store: store.verify(), _nothing),
    Step("edit", lambda store: store.edit_stream({"name": "orders", "description": "all of them"}), _nothing),
    Step("delete", lambda store: store.delete_stream("notes"), lambda model: model.streams.pop("notes")),
    Step("make it again", lambda store: store.add_stream(NOTES), _add("notes")),
    Step("append to the new one", lambda store: store.stream("notes").append(to_table(LATER)), _append("notes", LATER)),
    Step(
        "purge everything",
        lambda store: store.stream("orders").purge(),
        lambda model: model.streams["orders"].purge(),
    ),
    Step(
        "append after the purge", lambda store: store.stream("orders").append(to_table(LAST)), _append("orders", LAST)
    ),
    Step("compact", compact, _nothing),
    Step("maintain at the end", lambda store: store.maintain(), _nothing),
)


@lru_cache(maxsize=1)
def contents() -> list[dict[str, Content]]:
    """Return what the store shows before each step, and at last what it shows after all of them."""
    model, found = ModelStore(), []
    for step in STEPS:
        found.append(model.content())
        step.expect(model)
    return [*found, model.content()]


def create(env: Environment) -> Store:
    return Store.create(VOLUME, env=env, **SETTINGS)
