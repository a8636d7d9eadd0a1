"""Streaming writes: driven as Spark drives them, a writer for the tasks, and another for the commit."""

import json
import logging
import multiprocessing
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from harness.block_places import block_count
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema

from datasource import source
from datasource.query_sources import CHECKPOINTS
from datasource.stream_offsets import StreamOffset, encode
from datasource.stream_writer import BATCH_ID, QUERY_ID, RUN_ID
from storage_core import Store
from storage_core.errors import (
    FencedError,
    InvalidMessageError,
    NotAStoreError,
    RequirementError,
    StaleIncarnationError,
    StoreBusyError,
    StreamNotFoundError,
    TransactionAbortedError,
)
from storage_core.store.consumers.query import QueryReader

Make = Callable[..., pa.Table]
QUERY = "6f9619ff-8b86-d011-b42d-00c04fc964ff"


@contextmanager
def task(partition: int, properties: dict[str, str]) -> Iterator[None]:
    """Be in the task of this partition, which Spark tells these properties."""
    context = TaskContext()
    context._partitionId, context._localProperties = partition, properties
    TaskContext._setTaskContext(context)
    try:
        yield
    finally:
        TaskContext._taskContext = None


@dataclass
class Query:
    """One run of a streaming query."""

    driver: Any
    run: str = "run-1"
    query: str = QUERY
    overwrite: bool = False
    options: dict[str, str] = field(default_factory=lambda: {"stream": "ORDERS"})
    properties: dict[str, str] = field(default_factory=dict)  # besides its own

    def writer(self, schema: pa.Schema) -> Any:
        return source.stream_writer(self.driver.options(self.options), from_arrow_schema(schema), self.overwrite)

    def stage(self, batch: int, *tasks: pa.Table) -> list[WriterCommitMessage]:
        """Return the messages of a batch whose tasks have written these tables."""
        with patch.dict(sys.modules):
            sys.modules.pop(source.SINK_WORKER, None)
            writer = self.writer(tasks[0].schema)
        properties = {QUERY_ID: self.query, BATCH_ID: str(batch), RUN_ID: self.run, **self.properties}
        messages = []
        for partition, table in enumerate(tasks):
            with task(partition, properties):
                messages.append(travel(travel(writer).write(iter(table.to_batches()))))
        return messages

    def commit(self, batch: int, messages: Sequence[WriterCommitMessage | None], schema: pa.Schema) -> None:
        self.writer(schema).commit(messages, batch)

    def abort(self, batch: int, messages: Sequence[WriterCommitMessage | None], schema: pa.Schema) -> None:
        self.writer(schema).abort(messages, batch)

    def store(self, batch: int, *tasks: pa.Table) -> None:
        """Write one batch from beginning to end."""
        self.commit(batch, self.stage(batch, *tasks), tasks[0].schema)


def travel(value: Any) -> Any:
    """Return what arrives in another of Spark's processes."""
    return pickle.loads(pickle.dumps(value))


@pytest.fixture
def query(driver: Any) -> Query:
    return Query(driver)


def data(store: Store, stream: str = "ORDERS") -> list[str]:
    return [one.decode() for one in store.stream(stream).read(columns=["data"]).read_all()["data"].to_pylist()]


def numbered(first: int, end: int) -> list[str]:
    return [f"order {number}" for number in range(first, end)]


def test_each_batch_is_one_append_in_the_order_of_partitions(store: Store, query: Query, orders: Make) -> None:
    before = store.view().index
    messages = query.stage(0, orders(3), orders(0), orders(4, 3))
    query.commit(0, list(reversed(messages)), orders(0).schema)
    assert store.view().index == before + 1
    assert data(store) == numbered(0, 7)
    query.store(1, orders(2, 7))
    assert data(store) == numbered(0, 9)


def test_empty_batch_says_whose_it_is_and_is_stored_as_one(store: Store, query: Query, orders: Make) -> None:
    (message,) = query.stage(4, orders(0))
    assert (message.blocks, message.query_id, message.run_id, message.batch_id) == ((), QUERY, "run-1", "4")
    query.commit(4, [message], orders(0).schema)
    assert store.view().state.stream("ORDERS").writers[QUERY].last_batch == 4
    assert data(store) == []


def test_batch_without_any_task_stores_nothing(store: Store, query: Query, orders: Make) -> None:
    before = store.view().index
    query.commit(0, [], orders(0).schema)
    query.abort(0, [None, None], orders(0).schema)
    assert store.view().index == before


@pytest.mark.buckets
def test_replayed_batch_is_skipped_and_logged(
    store: Store, query: Query, orders: Make, caplog: pytest.LogCaptureFixture
) -> None:
    query.store(0, orders(3))
    query.store(1, orders(3, 3))
    with caplog.at_level(logging.INFO, "jstream"):
        replace(query, run="run-2").store(1, orders(3, 3))
    assert data(store) == numbered(0, 6)
    assert block_count(store) == 2
    assert f"batch 1 of query {QUERY} is in the store already: this time nothing was written" in caplog.text
    replace(query, run="run-2").store(2, orders(3, 6))
    assert data(store) == numbered(0, 9)


@pytest.mark.buckets
def test_two_drivers_on_copies_of_a_checkpoint_lose_nothing(store: Store, query: Query, orders: Make) -> None:
    """Each plans its batches for itself: they have the same numbers and are cut elsewhere."""
    older, newer = query, replace(query, run="run-2")
    older.store(0, orders(3))
    with pytest.raises(FencedError, match="from a copy of its checkpoint") as caught:
        newer.store(0, orders(5))
    assert f"batch '0' of writer '{QUERY}' is in stream 'ORDERS' with other content" in str(caught.value)
    assert "stored are 3 messages, of which this stream has [1, 4), this time it has 5" in str(caught.value)
    with pytest.raises(FencedError):
        newer.store(0, orders(3, 1))  # as many, and not the same
    older.store(1, orders(2, 3))
    with pytest.raises(FencedError):
        newer.store(1, orders(2, 5))
    assert data(store) == numbered(0, 5)


def test_newer_run_that_finds_its_batch_stored_fences_the_older_one(store: Store, query: Query, orders: Make) -> None:
    older, newer = query, replace(query, run="run-2")
    older.store(0, orders(3))
    newer.store(0, orders(2), orders(1, 2))  # the same messages, in other tasks
    with Store.open(*store.paths) as another_process:
        assert another_process.view().state.stream("ORDERS").writers[QUERY].run == "run-2"
    with pytest.raises(FencedError, match="another driver runs the same query"):
        older.store(1, orders(2, 3))
    older.store(0, orders(3))  # it is there, whoever asks, and moves nobody back
    newer.store(1, orders(4, 3))
    assert data(store) == numbered(0, 7)


def test_changed_last_batch_is_taken_as_stored_where_that_was_asked_for(
    store: Store, query: Query, orders: Make, caplog: pytest.LogCaptureFixture
) -> None:
    for batch in range(2):
        query.store(batch, orders(3, 3 * batch))
    options = {"stream": "ORDERS", "failOnChangedBatch": "false"}
    with caplog.at_level(logging.WARNING, "jstream"):
        replace(query, run="run-2", options=options).store(1, orders(5, 3))
    assert f"batch 1 of query {QUERY} is in the store already" in caplog.text
    assert data(store) == numbered(0, 6)
    (event,) = store.events(kind="batch_again")
    assert (event["stream"], "with other content; what was stored first counts" in event["reason"]) == ("ORDERS", True)
    with pytest.raises(FencedError, match="batches up to 1 came after it"):
        replace(query, run="run-3", options=options).store(0, orders(5))


@pytest.mark.parametrize("later", [3, 30])
def test_older_copy_of_a_checkpoint_is_refused_before_it_loses_messages(
    store: Store, query: Query, orders: Make, later: int
) -> None:
    for batch in range(later):
        query.store(batch, orders(2, 2 * batch))
    with pytest.raises(FencedError, match=f"batches up to {later - 1} came after it"):
        replace(query, run="run-2").store(1, orders(2 * later))
    replace(query, run="run-2").store(1, orders(0) if later > 16 else orders(2, 2))
    assert data(store) == numbered(0, 2 * later)


def test_routed_batch_that_has_lost_a_stream_is_another_batch(store: Store, query: Query) -> None:
    routed = replace(query, options={})
    both = pa.table({"stream": ["LOGS", "ORDERS"], "subject": ["logs.line", "orders.a"], "data": ["1", "2"]})
    routed.store(0, both)
    for other in (both.slice(0, 1), both.set_column(0, "stream", pa.array(["ORDERS", "ORDERS"]))):
        with pytest.raises((FencedError, InvalidMessageError)):
            replace(routed, run="run-2").store(0, other)
    replace(routed, run="run-2").store(0, both.take([1, 0]))
    assert [data(store, name) for name in ("LOGS", "ORDERS")] == [["1"], ["2"]]


def test_times_that_the_store_chose_are_no_content(store: Store, query: Query, orders: Make) -> None:
    given = pa.array([7] * 3, pa.int64())
    query.store(0, orders(3))
    replace(query, run="run-2").store(0, orders(3))
    with pytest.raises(FencedError):
        replace(query, run="run-3").store(0, orders(3).append_column("timestamp_ns", given))
    assert data(store) == numbered(0, 3)


@pytest.mark.buckets
def test_commit_that_failed_before_its_effect_is_aborted_and_done_anew(
    store: Store, query: Query, orders: Make
) -> None:
    messages = query.stage(0, orders(3), orders(3, 3))
    query.abort(0, messages, orders(0).schema)
    assert block_count(store) == 0
    with pytest.raises(TransactionAbortedError):
        query.commit(0, messages, orders(0).schema)
    replace(query, run="run-2").store(0, orders(3), orders(3, 3))
    assert data(store) == numbered(0, 6)


def test_abort_after_a_commit_that_took_effect_touches_nothing(
    store: Store, query: Query, orders: Make, caplog: pytest.LogCaptureFixture
) -> None:
    messages = query.stage(0, orders(3), orders(3, 3))
    query.commit(0, messages, orders(0).schema)
    with caplog.at_level(logging.WARNING, "jstream"):
        query.abort(0, [messages[0], None, messages[1]], orders(0).schema)
    assert "was committed: its messages are in the store" in caplog.text
    assert data(store) == numbered(0, 6)
    replace(query, run="run-2").store(0, orders(3), orders(3, 3))
    assert data(store) == numbered(0, 6)


def test_abort_of_a_replay_leaves_what_was_stored_first(store: Store, query: Query, orders: Make) -> None:
    query.store(0, orders(3))
    again = replace(query, run="run-2")
    again.abort(0, again.stage(0, orders(3)), orders(0).schema)
    assert data(store) == numbered(0, 3)
    assert block_count(store) == 1


@pytest.fixture
def sink_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be the process in which Spark commits and aborts batches."""
    monkeypatch.setitem(sys.modules, source.SINK_WORKER, ModuleType(source.SINK_WORKER))


@pytest.mark.buckets
def test_abort_sweeps_the_blocks_of_a_stream_that_is_gone(
    store: Store, query: Query, orders: Make, sink_worker: None
) -> None:
    messages = query.stage(0, orders(3), orders(3, 3))
    store.delete_stream("ORDERS")
    query.abort(0, messages, orders(0).schema)
    assert block_count(store) == 0
    with pytest.raises(StaleIncarnationError):
        query.commit(0, messages, orders(0).schema)


def test_commit_and_abort_ask_nothing_of_the_store_before_they_need_it(
    store: Store, query: Query, orders: Make, sink_worker: None, caplog: pytest.LogCaptureFixture
) -> None:
    messages = query.stage(0, orders(3))
    Path(store.paths[0], "jstream.volume").unlink()
    writer = query.writer(orders(0).schema)
    writer.abort([], 0)
    writer.commit([], 0)
    with caplog.at_level(logging.WARNING, "jstream"):
        writer.abort(messages, 0)
    assert "the blocks of the write that failed are still there" in caplog.text
    with pytest.raises(NotAStoreError):
        writer.commit(messages, 0)


@pytest.mark.buckets
def test_abort_without_a_quorum_leaves_the_blocks_to_maintenance(
    tmp_path: Path, driver: Any, orders: Make, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [tmp_path / f"volume {number}" for number in range(3)]
    with Store.create(paths) as store:
        store.add_stream({"name": "ORDERS", "subjects": ["orders.>"], "num_replicas": 3})
    query = Query(replace(driver, path=json.dumps([str(path) for path in paths])))
    messages = query.stage(0, orders(3))
    writer = query.writer(orders(0).schema)
    for path in paths[1:]:
        path.rename(f"{path} away")
    with caplog.at_level(logging.WARNING, "jstream"):
        writer.abort(messages, 0)
    assert "the blocks of the write that failed are still there" in caplog.text
    for path in paths[1:]:
        Path(f"{path} away").rename(path)
    query.abort(0, messages, orders(0).schema)
    assert not list(tmp_path.rglob("*.blk"))


def test_tasks_of_two_batches_are_not_committed_as_one(store: Store, query: Query, orders: Make) -> None:
    same = query.stage(0, orders(3), orders(3, 3))
    for other in (
        query.stage(0, orders(3)),
        [replace(same[1], batch_id="1")],
        [replace(same[1], run_id="run-2")],
        [replace(same[1], query_id="another-query")],
    ):
        with pytest.raises(RequirementError):
            query.commit(0, [same[0], *other], orders(0).schema)
    with pytest.raises(RequirementError, match="commits batch 1 with tasks of another: they say query .* batch 0"):
        query.commit(1, same, orders(0).schema)
    query.abort(0, [same[0], *query.stage(0, orders(3))], orders(0).schema)
    assert data(store) == []
    assert block_count(store) == 1, "the first block of the two batches that were not aborted"


def test_writer_of_a_commit_writes_nothing(query: Query, orders: Make, sink_worker: None) -> None:
    with task(0, {}), pytest.raises(RequirementError, match="was made for a commit"):
        query.writer(orders(0).schema).write(iter(()))


def test_abort_never_raises(store: Store, driver: Any, orders: Make, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(driver, options={"stream": "ORDERS", "lockTimeout": "0s"})
    messages = query.stage(0, orders(3))
    writer = query.writer(orders(0).schema)
    with store.session(), caplog.at_level(logging.WARNING, "jstream"):
        in_another_process(writer.abort, messages, 0)
    assert data(store) == []


def in_another_process(call: Callable[..., Any], *arguments: Any) -> None:
    """Make the call in a forked child, which has none of this process's locks; raise what it raised."""
    context = multiprocessing.get_context("fork")
    outcomes = context.Queue()

    def run() -> None:
        try:
            outcomes.put(call(*arguments))
        except Exception as error:
            outcomes.put(error)

    child = context.Process(target=run)
    child.start()
    outcome = outcomes.get(timeout=60)
    child.join()
    if outcome is not None:
        raise outcome


def test_lock_timeout_bounds_the_wait_for_another_process(store: Store, driver: Any, orders: Make) -> None:
    query = Query(driver, options={"stream": "ORDERS", "lockTimeout": "0s"})
    messages = query.stage(0, orders(3))
    writer = query.writer(orders(0).schema)
    with store.session(), pytest.raises(StoreBusyError):
        in_another_process(writer.commit, messages, 0)
    query.commit(0, messages, orders(0).schema)
    assert data(store) == numbered(0, 3)


def test_an_abort_hardly_waits_for_the_process_that_holds_the_store(store: Store, driver: Any, orders: Make) -> None:
    query = Query(driver, options={"stream": "ORDERS", "lockTimeout": "10m"})
    messages = query.stage(0, orders(3))
    with store.session():
        in_another_process(query.writer(orders(0).schema).abort, messages, 0)  # waits for a minute at most
    assert data(store) == []


def test_losing_attempts_of_tasks_leave_nothing_that_is_shown(store: Store, query: Query, orders: Make) -> None:
    writer = query.writer(orders(0).schema)
    won = []
    for attempt in range(3):
        with task(0, {QUERY_ID: QUERY, BATCH_ID: "0", RUN_ID: "run-1"}):
            won = [travel(writer.write(iter(orders(3).to_batches())))]
        assert block_count(store) == attempt + 1
    query.commit(0, won, orders(0).schema)
    assert data(store) == numbered(0, 3)
    store.maintain()
    assert block_count(store) == 1
    assert data(store) == numbered(0, 3)


def test_task_that_fails_removes_what_it_wrote(store: Store, query: Query, orders: Make) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield from orders(3).to_batches()
        raise KeyError("the source failed")

    writer = query.writer(orders(0).schema)
    with task(0, {QUERY_ID: QUERY, BATCH_ID: "0", RUN_ID: "run-1"}), pytest.raises(KeyError):
        writer.write(rows())
    assert block_count(store) == 0


def test_run_that_was_superseded_is_fenced_and_told_why(store: Store, query: Query, orders: Make) -> None:
    newer = replace(query, run="run-2")
    query.store(0, orders(3))
    newer.store(1, orders(3, 3))
    query.store(1, orders(3, 3))  # the same batch: it is there, whoever asks
    messages = query.stage(2, orders(3, 6))
    with pytest.raises(FencedError, match="another driver runs the same query") as caught:
        query.commit(2, messages, orders(0).schema)
    assert "run run-1" in str(caught.value)
    assert "superseded by run run-2" in str(caught.value)
    query.abort(2, messages, orders(0).schema)
    newer.store(2, orders(3, 6))
    assert data(store) == numbered(0, 9)


def test_removed_checkpoint_is_noticed_by_the_writers_name(store: Store, query: Query, orders: Make) -> None:
    named = replace(query, options={"stream": "ORDERS", "writerId": "etl"})
    for batch in range(3):
        named.store(batch, orders(2, 2 * batch))
    other = replace(named, query="another-query", run="run-2")
    with pytest.raises(RequirementError) as caught:
        other.store(0, orders(6))
    said = str(caught.value)
    assert f"option 'writerId': 'etl' has written to stream 'ORDERS' as query {QUERY}, up to batch 2" in said
    assert "this is query another-query, at batch 0. Its checkpoint was removed" in said
    assert data(store) == numbered(0, 6)
    replace(other, options={"stream": "ORDERS", "writerId": "etl-2"}).store(0, orders(1, 6))
    named.store(3, orders(1, 7))
    assert data(store) == numbered(0, 8)


def test_writer_of_batch_jobs_is_not_taken_for_a_query(driver: Any, query: Query, orders: Make) -> None:
    driver.write(orders(1), stream="ORDERS", writerId="etl", batchId="0")
    with pytest.raises(RequirementError, match="as a batch job; this is query"):
        replace(query, options={"stream": "ORDERS", "writerId": "etl"}).store(0, orders(1))


def test_without_a_writers_name_each_query_is_a_writer(store: Store, query: Query, orders: Make) -> None:
    query.store(0, orders(3))
    replace(query, query="another-query").store(0, orders(3, 3))
    assert data(store) == numbered(0, 6)


@pytest.mark.buckets
def test_complete_mode_replaces_in_the_same_commit(store: Store, query: Query, orders: Make) -> None:
    complete = replace(query, overwrite=True)
    complete.store(0, orders(3), orders(3, 3))
    before = store.view().index
    complete.store(1, orders(2, 10))
    assert store.view().index == before + 1
    assert data(store) == numbered(10, 12)
    complete.store(1, orders(2, 10))
    assert data(store) == numbered(10, 12)
    complete.store(2, orders(0))
    assert data(store) == []


def checkpoint(folder: Path, batch: int, *sources: str, query: str = QUERY) -> str:
    """Make the checkpoint of a query that has planned a batch of these sources."""
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))
    (folder / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", *sources]))
    return str(folder)


def offset_of(store: Store, count: int, *names: str) -> str:
    """Return what the source says of these streams in a checkpoint."""
    reader = QueryReader(store)
    offsets = {name: StreamOffset(store.id, reader.at(name, 1), begin=1, count=count or None) for name in names}
    return json.dumps(encode(offsets))


@pytest.mark.parametrize(
    "sources",
    [
        pytest.param(lambda store: [offset_of(store, 3, "ORDERS")], id="the source"),
        pytest.param(lambda store: [offset_of(store, 3, "ORDERS_EU", "ORDERS")], id="one of several streams"),
        pytest.param(
            lambda store: ["-", '{"logOffset":0}', offset_of(store, 0, "ORDERS")], id="one of several sources"
        ),
        pytest.param(lambda store: [json.dumps({"named": offset_of(store, 3, "ORDERS")})], id="a source with a name"),
    ],
)
def test_complete_mode_never_replaces_what_the_query_reads(
    store: Store, query: Query, orders: Make, tmp_path: Path, sources: Callable[[Store], list[str]]
) -> None:
    query.store(0, orders(3))
    place = checkpoint(tmp_path / "checkpoint", 1, *sources(store))
    complete = replace(query, overwrite=True, options={"stream": "ORDERS", "checkpointLocation": f"file:{place}"})
    with pytest.raises(RequirementError, match=f"'ORDERS' would be replaced by query {QUERY}, which reads it"):
        complete.store(1, orders(1, 7))
    assert data(store) == numbered(0, 3) and store.events(kind="replaced") == []


@pytest.mark.parametrize("name", ["totals", ""])
def test_checkpoint_of_a_query_that_names_none_is_found_in_sparks_folder(
    store: Store, query: Query, orders: Make, tmp_path: Path, name: str
) -> None:
    checkpoint(tmp_path / "other", 0, offset_of(store, 3, "LOGS"), query="another query")
    checkpoint(tmp_path / (name or "5f0c"), 0, offset_of(store, 3, "ORDERS"))
    options = {"stream": "ORDERS"} | ({"queryName": name} if name else {})
    complete = replace(query, overwrite=True, options=options, properties={CHECKPOINTS: str(tmp_path)})
    with pytest.raises(RequirementError, match="which reads it"):
        complete.store(0, orders(1))
    assert data(store) == []


def test_complete_mode_into_another_stream_or_with_a_checkpoint_elsewhere_is_stored(
    store: Store, query: Query, orders: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = checkpoint(tmp_path / "checkpoint", 0, offset_of(store, 3, "LOGS", "ORDERS_EU"))
    replace(query, overwrite=True, options={"stream": "ORDERS", "checkpointLocation": place}).store(0, orders(2))
    assert data(store) == numbered(0, 2) and caplog.text == ""
    options = {"stream": "ORDERS", "checkpointLocation": "hdfs://namenode/check"}
    replace(query, overwrite=True, query="another", options=options).store(0, orders(1, 5))
    assert data(store) == numbered(5, 6)
    assert "it is unknown whether the query reads the stream that it replaces, ORDERS" in caplog.text


@pytest.mark.parametrize(("count", "left"), [(0, 3), (4, 0)])
def test_an_empty_result_replaces_only_if_the_query_has_read_something(
    store: Store, query: Query, orders: Make, tmp_path: Path, count: int, left: int
) -> None:
    replace(query, query="another").store(0, orders(3))
    place = checkpoint(tmp_path / "checkpoint", 0, offset_of(store, count, "LOGS"))
    complete = replace(query, overwrite=True, options={"stream": "ORDERS", "checkpointLocation": place})
    complete.store(0, orders(0))
    assert len(data(store)) == left
    assert len(store.events(kind="replaced")) == (left == 0)
    complete.store(1, orders(0))
    assert data(store) == [], "from its second batch on the query has read something"


def test_what_a_query_replaces_is_an_event_that_names_it(store: Store, query: Query, orders: Make) -> None:
    query.store(0, orders(4))
    complete = replace(query, overwrite=True, query="totals")
    for batch in range(4):
        complete.store(batch, orders(2, batch))
    complete.store(3, orders(2, 3))
    (foreign,), (own,) = store.events(kind="replaced"), store.events(kind="replaced_again")
    assert (foreign["stream"], foreign["before"]) == ("ORDERS", "4 messages, sequences 1 to 4")
    assert (foreign["after"], own["after"]) == ("query totals", "query totals")
    assert own["before"] == "its own result" and own["count"] == 3
    query.store(1, orders(1, 9))
    complete.store(4, orders(1))
    assert [event["before"] for event in store.events(kind="replaced")][1:] == ["3 messages, sequences 11 to 13"]


def test_complete_mode_needs_one_stream_whose_result_it_replaces(store: Store, query: Query) -> None:
    """A stream that got rows of the result before, and gets none of this one, would keep them."""
    routed = replace(query, options={}, overwrite=True)
    rows = pa.table({"stream": ["LOGS", "ORDERS"], "subject": ["logs.line", "orders.a"], "data": ["1", "2"]})
    with pytest.raises(ValueError, match="option 'stream' is missing.* would keep the ones from before"):
        routed.writer(rows.schema)


def test_rows_are_routed_and_their_batch_is_stored_once(store: Store, query: Query) -> None:
    routed = replace(query, options={})
    first = pa.table({"stream": ["LOGS", "ORDERS"], "subject": ["logs.line", "orders.a"], "data": ["1", "2"]})
    second = pa.table({"stream": ["ORDERS_EU"], "subject": ["eu.a"], "data": ["3"]})
    messages = routed.stage(0, first, second, first.slice(0, 0))
    assert [sorted(one.transaction.targets) for one in messages] == [["LOGS", "ORDERS"], ["ORDERS_EU"], []]
    for _ in range(2):
        routed.commit(0, routed.stage(0, first, second), first.schema)
    assert [data(store, name) for name in ("LOGS", "ORDERS", "ORDERS_EU")] == [["1"], ["2"], ["3"]]
    routed.commit(1, routed.stage(1, first.slice(0, 0)), first.schema)


def test_stream_made_again_since_the_tasks_wrote_takes_nothing_of_them(
    store: Store, query: Query, orders: Make
) -> None:
    messages = query.stage(0, orders(3))
    store.delete_stream("ORDERS")
    store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    with pytest.raises(StaleIncarnationError):
        query.commit(0, messages, orders(0).schema)
    query.abort(0, messages, orders(0).schema)
    assert data(store) == []
    replace(query, run="run-2").store(0, orders(3))
    assert data(store) == numbered(0, 3)


def test_stream_that_is_not_there_is_named(query: Query, orders: Make) -> None:
    with pytest.raises(StreamNotFoundError) as raised:
        replace(query, options={"stream": "ORDER"}).writer(orders(0).schema)
    assert raised.value.fields == {"stream": "ORDER", "nearest": "ORDERS"}


def test_outside_of_a_query_the_write_says_what_is_missing(query: Query, orders: Make) -> None:
    with task(0, {}), pytest.raises(RuntimeError, match=f"did not tell this task the property '{QUERY_ID}'"):
        query.writer(orders(0).schema).write(iter(()))


def test_batch_id_is_not_for_streaming(query: Query, orders: Make) -> None:
    with pytest.raises(ValueError, match="option 'batchId' is for batch writes only"):
        replace(query, options={"stream": "ORDERS", "batchId": "1"}).writer(orders(0).schema)
