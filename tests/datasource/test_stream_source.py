"""The streaming source as Spark calls it, without Spark: micro-batches over a checkpoint that may be cut off anywhere.

`Query` makes the calls of a run in the order in which Spark 4.2 was seen to make them, each run in a new object, with
the offsets as text in a log, as the checkpoint has them.
"""

import json
import logging
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.stream_starts import STARTS, prepare, restarted
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema

from datasource import source
from datasource.settings import StreamReadSettings
from datasource.spark_versions import ReadAllAvailable
from datasource.stream_reader import MessageStreamReader
from datasource.stream_source import StreamSource
from storage_core import Store
from storage_core.errors import DataLossError, FencedError, NotFoundError, StoreBusyError, UnavailableError
from storage_core.schema import READ_SCHEMA

Make = Callable[..., pa.Table]
Row = tuple[str, int]
SCHEMA = pa.schema([READ_SCHEMA.field("stream"), READ_SCHEMA.field("sequence")])


class Killed(Exception):
    """The driver, in the middle of a batch."""


@dataclass
class Query:
    """A query with its checkpoint: `offsets` as they were logged, of which the first `commits` batches are finished."""

    path: str
    options: dict[str, Any]
    offsets: list[str] = field(default_factory=list)
    commits: int = 0

    def reader(self, **changed: Any) -> MessageStreamReader:
        given = {"path": self.path, **self.options, **changed}
        texts = {name: str(value) for name, value in given.items() if value is not None}
        return source.stream_reader(CaseInsensitiveDict(texts), from_arrow_schema(SCHEMA))

    def run(
        self,
        available_now: bool = True,
        batch_count_max: int = 100,
        kill_in: int | None = None,
        between: Callable[[], object] = lambda: None,
        **changed: Any,
    ) -> list[list[Row]]:
        """Return the rows of each batch of a run that ends when nothing is left.

        `kill_in`: the batch in which the driver dies, when its offsets are logged. `between`: what happens after each.
        """
        reader = self.reader(**changed)
        try:
            return list(self._batches(reader, available_now, batch_count_max, kill_in, between))
        finally:
            reader.stop()

    def _batches(
        self,
        reader: MessageStreamReader,
        available_now: bool,
        batch_count_max: int,
        kill_in: int | None,
        between: Callable[[], object],
    ) -> Iterator[list[Row]]:
        if available_now:
            reader.prepareForTriggerAvailableNow()
        limit = reader.getDefaultReadLimit()
        is_first = True
        if len(self.offsets) > self.commits:
            start = json.loads(self.offsets[-2]) if self.commits else reader.initialOffset()
            yield self._read(reader, start, json.loads(self.offsets[-1]))
            self.commits, is_first = self.commits + 1, False
            between()
        for number in range(len(self.offsets), batch_count_max):
            start = json.loads(self.offsets[-1]) if self.offsets else reader.initialOffset()
            text = json.dumps(reader.latestOffset(start, limit))
            reader.reportLatestOffset()
            if self.offsets and text == self.offsets[-1]:
                return
            self.offsets.append(text)
            if number == kill_in:
                raise Killed
            if self.commits and not is_first:
                reader.commit(start)
            start = start if self.commits else reader.initialOffset()
            yield self._read(reader, start, json.loads(text))
            self.commits, is_first = self.commits + 1, False
            between()

    def _read(self, reader: MessageStreamReader, start: Any, end: Any) -> list[Row]:
        task = travel(reader)
        assert task._opened is None
        found: list[Row] = []
        for partition in travel(reader.partitions(start, end)):
            for batch in task.read(partition):
                assert batch.schema == SCHEMA
                found += zip(*batch.to_pydict().values(), strict=True)
        return found


def travel(value: Any) -> Any:
    """Return what arrives in another of Spark's processes."""
    return pickle.loads(pickle.dumps(value))


def sequences(batches: list[list[Row]], stream: str = "ORDERS") -> list[int]:
    return [sequence for batch in batches for name, sequence in batch if name == stream]


@pytest.fixture
def query(store: Store) -> Callable[..., Query]:
    def make(stream: str = "ORDERS", **options: Any) -> Query:
        return Query(store.paths[0], {"stream": stream, "startingOffsets": "earliest", **options})

    return make


@pytest.fixture
def put(store: Store, orders: Make) -> Callable[..., None]:
    def append(count: int, stream: str = "ORDERS") -> None:
        prefix = {"ORDERS": "orders.", "ORDERS_EU": "eu.", "ORDERS_US": "us."}[stream]
        store.stream(stream).append(orders(count, prefix=prefix))

    return append


# --- where a query starts


@pytest.mark.parametrize(("options", "firsts"), [case[1:] for case in STARTS], ids=[case[0] for case in STARTS])
def test_start_of_a_query_and_its_restart(
    options: dict[str, Any], firsts: dict[str, int], query: Any, put: Any, store: Store
) -> None:
    prepare(store)
    made = query("ORDERS,ORDERS_EU", **options)
    begun = made.run()
    for name, first in firsts.items():
        assert sequences(begun, name) == list(range(first, 11))
        put(5, name)
    # The checkpoint beats whatever the options say now.
    later = made.run(**restarted({}))
    for name in firsts:
        assert sequences(later, name) == [11, 12, 13, 14, 15]
    assert sequences(made.run(), "ORDERS") == []
    if "consumer" in options:
        infos = [store.stream(name).consumer(options["consumer"]).info() for name in firsts]
        assert [(one["ack_floor"]["stream_seq"], one["num_pending"], one["num_ack_pending"]) for one in infos] == [
            (15, 0, 0), (15, 0, 0),
        ]  # fmt: skip


def test_start_beyond_the_end_is_a_loss_or_the_end(query: Any, put: Any) -> None:
    put(3)
    made = query(startingOffsets='{"ORDERS": 9}')
    with pytest.raises(DataLossError, match="sequence 9 is beyond the end of stream 'ORDERS'"):
        made.run()
    assert made.run(failOnDataLoss="false") == [[]]
    put(2)
    assert sequences(made.run()) == [4, 5]


def test_start_of_a_stream_that_is_not_read_is_refused(query: Any) -> None:
    with pytest.raises(ValueError, match="stream 'LOGS' is not among those that are read"):
        query("ORDERS*", startingOffsets='{"LOGS": 1}').run()


def test_stream_that_does_not_exist_is_refused(query: Any) -> None:
    with pytest.raises(NotFoundError, match="no stream 'ORDER' in the store; did you mean 'ORDERS'"):
        query("ORDER").run()


# --- replays read the same


@pytest.mark.parametrize("starting", ["latest", "earliest", None])
@pytest.mark.parametrize("consumer", [None, "etl"])
def test_replay_of_the_first_batch_reads_the_same_though_everything_has_moved(
    starting: str | None, consumer: str | None, query: Any, put: Any, store: Store
) -> None:
    put(10)
    made = query(startingOffsets=starting, consumer=consumer)
    run = iter(made._batches(reader := made.reader(), False, 100, 0, lambda: None))
    begin = reader.initialOffset()
    put(5)
    with pytest.raises(Killed):
        next(run)
    reader.stop()
    put(5)
    (replayed, rest) = made.run()
    first = begin["ORDERS"]["sequence"]
    assert sequences([replayed]) == list(range(first, 16))
    assert sequences([rest]) == list(range(16, 21))


@pytest.mark.buckets
def test_replay_of_a_later_batch_ends_where_it_was_planned_to(query: Any, put: Any) -> None:
    put(10)
    made = query(maxOffsetsPerTrigger=4)
    with pytest.raises(Killed):
        made.run(kill_in=1)
    put(10)
    batches = made.run(maxOffsetsPerTrigger=None)
    assert [sequences([one]) for one in batches] == [[5, 6, 7, 8], list(range(9, 21))]


def test_replay_reads_the_same_after_a_restart_with_another_start(query: Any, put: Any) -> None:
    put(10)
    made = query(startingOffsets='{"ORDERS": 4}')
    with pytest.raises(Killed):
        made.run(kill_in=0)
    assert sequences(made.run(startingOffsets="earliest")) == list(range(4, 11))


# --- limits


@pytest.mark.buckets
def test_limits_cut_within_blocks_and_available_now_stops_where_it_began(query: Any, put: Any) -> None:
    put(100)
    made = query(maxOffsetsPerTrigger=30)
    batches = made.run(between=lambda: put(7))
    assert [len(one) for one in batches] == [30, 30, 30, 10]
    assert sequences(batches) == list(range(1, 101))
    assert sequences(made.run(maxOffsetsPerTrigger=None)) == list(range(101, 129))


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"maxMessagesPerTrigger": 40}, [40, 40, 20]),
        ({"maxFilesPerTrigger": 3}, [30, 30, 30, 10]),
        ({"maxBytesPerTrigger": "1"}, [1] * 100),
        ({"maxOffsetsPerTrigger": 70, "maxFilesPerTrigger": 5}, [50, 50]),
        ({"minOffsetsPerTrigger": 1000, "maxOffsetsPerTrigger": 1000}, [100]),
    ],
)
def test_every_limit_makes_progress(options: dict[str, Any], counts: list[int], query: Any, put: Any) -> None:
    for _ in range(10):
        put(10)
    batches = query(**options).run()
    assert [len(one) for one in batches] == counts
    assert sequences(batches) == list(range(1, 101))


def test_everything_is_read_if_the_trigger_says_so(query: Any, put: Any) -> None:
    put(100)
    reader = query(maxOffsetsPerTrigger=3, minOffsetsPerTrigger=2).reader()
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end["ORDERS"]["sequence"] == 101
    reader.stop()


class Clock:
    """Seconds that pass with each look at it."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s, self.step_s = 1_000.0, step_s
        self.on_look: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        self.now_s += self.step_s
        self.on_look()
        return self.now_s


def opened(made: Query, clock: Clock, **options: Any) -> StreamSource:
    texts = {name: str(value) for name, value in {"path": made.path, **made.options, **options}.items()}
    return StreamSource(StreamReadSettings.parse(texts), clock)


def test_few_messages_wait_for_more_or_for_the_delay(query: Any, put: Any) -> None:
    put(5)
    clock = Clock()
    asked = opened(made := query(), clock, minOffsetsPerTrigger=10, maxTriggerDelay="1m")
    limit = made.reader(minOffsetsPerTrigger=10).getDefaultReadLimit()
    begin = asked.initial()
    assert asked.latest(begin, limit) == begin
    clock.now_s += 59
    assert asked.latest(begin, limit) == begin
    clock.now_s += 1.5
    end = asked.latest(begin, limit)
    assert end["ORDERS"]["sequence"] == 6
    put(9)
    assert asked.latest(end, limit) == end
    put(1)
    assert asked.latest(end, limit)["ORDERS"]["sequence"] == 16
    asked.close()


def test_query_without_an_interval_waits_for_news_within_the_call(query: Any, put: Any) -> None:
    put(5)
    clock = Clock()
    asked = opened(query(), clock)
    end = asked.latest(asked.initial(), ReadAllAvailable())
    assert asked.latest(end, ReadAllAvailable()) is end
    looks = iter([lambda: None, lambda: None, lambda: put(1)])
    clock.on_look = lambda: next(looks, lambda: None)()
    clock.step_s = 0.001
    assert asked.latest(end, ReadAllAvailable())["ORDERS"]["sequence"] == 7
    asked.close()


def test_wait_for_news_ends_and_costs_no_plan(query: Any, put: Any) -> None:
    put(5)
    clock = Clock(step_s=0.04)
    asked = opened(query(), clock)
    end = asked.latest(asked.initial(), ReadAllAvailable())
    for _ in range(3):
        assert asked.latest(end, ReadAllAvailable()) is end
    assert asked.report()["ORDERS"]["sequence"] == 6
    asked.close()


# --- several streams


def test_stream_without_news_is_not_read_again_with_the_next_batch_of_another(query: Any, put: Any) -> None:
    made = query("ORDERS,ORDERS_EU")
    put(5)
    put(3, "ORDERS_EU")
    made.run()
    for first in (4, 6):
        put(2, "ORDERS_EU")
        with pytest.raises(Killed):
            made.run(kill_in=len(made.offsets))
        assert sorted(sum(made.run(), [])) == [("ORDERS_EU", first), ("ORDERS_EU", first + 1)]
    put(1)
    assert made.run() == [[("ORDERS", 6)]]
    assert made.run() == []


@pytest.mark.buckets
def test_streams_that_come_later_join_from_their_first_message(query: Any, put: Any, store: Store) -> None:
    put(3)

    def add() -> None:
        if "ORDERS_US" not in store.streams():
            store.add_stream({"name": "ORDERS_US", "subjects": ["us.>"]})
            put(4, "ORDERS_US")

    made = query("ORDERS*", startingOffsets="latest")
    assert made.run(between=add) == [[]]
    found = made.run(available_now=False, kill_in=None)
    assert sequences(found, "ORDERS_US") == [1, 2, 3, 4]
    assert sequences(found) == []


def test_batch_in_which_a_stream_joins_is_replayed_with_it(query: Any, put: Any, store: Store) -> None:
    made = query("ORDERS*")
    made.run()
    store.add_stream({"name": "ORDERS_US", "subjects": ["us.>"]})
    put(4, "ORDERS_US")
    with pytest.raises(Killed):
        made.run(kill_in=1)
    put(4, "ORDERS_US")
    assert [sequences([one], "ORDERS_US") for one in made.run()] == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_available_now_leaves_out_streams_that_come_while_it_runs(query: Any, put: Any, store: Store) -> None:
    put(2)
    made = query("ORDERS*", maxOffsetsPerTrigger=1)

    def make_again() -> None:
        store.delete_stream("ORDERS_EU")
        store.add_stream({"name": "ORDERS_EU", "subjects": ["eu.>"]})
        put(4, "ORDERS_EU")

    changes = iter([lambda: store.add_stream({"name": "ORDERS_US", "subjects": ["us.>"]}), lambda: put(5, "ORDERS_US")])
    made.run(between=lambda: next(changes, lambda: None)())
    assert set(json.loads(made.offsets[-1])) == {"ORDERS", "ORDERS_EU"}
    assert sequences(made.run(maxOffsetsPerTrigger=None), "ORDERS_US") == [1, 2, 3, 4, 5]
    put(2)
    changes = iter([make_again])
    run = made.run(failOnDataLoss="false", between=lambda: next(changes, lambda: None)())
    assert sequences(run, "ORDERS_EU") == []
    assert sequences(made.run(maxOffsetsPerTrigger=None), "ORDERS_EU") == [1, 2, 3, 4]


def test_glob_that_matches_nothing_waits_and_says_so_once(
    query: Any, put: Any, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    made = query("PAY*")
    reader = made.reader()
    with caplog.at_level(logging.WARNING, "jstream"):
        begin = reader.initialOffset()
        for _ in range(3):
            assert reader.latestOffset(begin, ReadAllAvailable()) == begin == {}
            assert reader.reportLatestOffset() == {}
    assert reader.partitions({}, {}) == []
    reader.stop()
    (said,) = caplog.messages
    assert said.endswith("matches 'PAY*' yet: the query waits for one")
    store.add_stream({"name": "PAYMENTS", "subjects": ["pay.>"]})
    store.stream("PAYMENTS").publish("pay.a", b"1")
    assert made.run() == [[("PAYMENTS", 1)]]


def test_checkpoint_of_a_stream_that_the_option_does_not_pick_is_refused(query: Any, put: Any) -> None:
    made = query()
    made.run()
    with pytest.raises(ValueError, match=r"stream 'ORDERS', which option 'stream' does not pick \(LOGS\)"):
        made.run(stream="LOGS")
    put(1, "ORDERS_EU")
    assert sequences(made.run(stream="ORDERS,ORDERS_EU"), "ORDERS_EU") == [1]


# --- subjects


def test_subject_filters_meet_those_of_the_consumer(query: Any, put: Any, store: Store) -> None:
    store.stream("ORDERS").add_consumer({"name": "some", "filter_subjects": ["orders.0.>", "orders.1.*"]})
    put(9)
    put(3, "ORDERS_EU")
    assert sequences(query(subject="orders.1.>").run()) == [2, 5, 8]
    as_some = {"consumer": "some", "startingOffsets": "earliest"}
    assert sequences(query(**as_some).run()) == [1, 2, 4, 5, 7, 8]
    assert sequences(query(subject="orders.1.new", **as_some).run()) == [2, 5, 8]
    assert sequences(query(subject="orders.2.new", **as_some).run()) == []
    both = query("ORDERS,ORDERS_EU", subject="*.0.>", **as_some).run()
    assert (sequences(both), sequences(both, "ORDERS_EU")) == ([1, 4, 7], [1])


@pytest.mark.parametrize("after", [{}, {"filter_subjects": ["orders.2.>"]}, None])
def test_replay_reads_by_the_filters_that_its_consumer_had(
    query: Any, put: Any, store: Store, after: dict[str, Any] | None
) -> None:
    """The consumer is removed in the meantime, and made again with others; None: the query goes on without one."""
    store.stream("ORDERS").add_consumer({"name": "some", "filter_subjects": ["orders.0.>"]})
    made = query(consumer="some")
    put(3)
    assert sequences(made.run()) == [1]
    put(6)
    with pytest.raises(Killed):
        made.run(kill_in=1)
    store.stream("ORDERS").consumer("some").delete()
    if after is not None:
        store.stream("ORDERS").add_consumer({"name": "some", "deliver_policy": "new", **after})
    put(3)
    replayed, rest, *_ = made.run(consumer="some" if after is not None else None)
    assert sequences([replayed]) == [4, 7]
    assert sequences([rest]) == ([12] if after else [10, 11, 12])


def test_limits_count_before_the_filter(query: Any, put: Any) -> None:
    put(9)
    batches = query(subject="orders.0.>", maxOffsetsPerTrigger=4).run()
    assert [sequences([one]) for one in batches] == [[1, 4], [7], []]


# --- the consumer


def test_paused_consumer_hands_nothing_until_it_is_resumed(query: Any, put: Any, store: Store) -> None:
    put(3)
    made = query(consumer="etl")
    assert sequences(made.run()) == [1, 2, 3]
    consumer = store.stream("ORDERS").consumer("etl")
    consumer.pause(3600)
    put(3)
    assert made.run() == []
    consumer.resume()
    assert sequences(made.run()) == [4, 5, 6]


def test_finished_batches_are_acknowledged_before_the_next_and_all_at_the_end(
    query: Any, put: Any, store: Store
) -> None:
    put(10)
    seen: list[int] = []

    def look() -> dict[str, Any]:
        info = store.stream("ORDERS").consumer("etl").info()
        seen.append(info["ack_floor"]["stream_seq"])
        return info

    query(consumer="etl", maxOffsetsPerTrigger=4).run(between=look)
    assert seen == [0, 4, 8]
    assert (look()["num_pending"], seen[-1]) == (0, 10)


def test_query_reads_on_while_the_consumer_cannot_be_told(tmp_path: Path, orders: Make, caplog: Any) -> None:
    store = Store.create([tmp_path / name for name in "abc"])
    store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    store.stream("ORDERS").append(orders(10))
    made = Query(",".join(store.paths), {"stream": "ORDERS", "consumer": "etl", "maxOffsetsPerTrigger": 6})
    away = [tmp_path / "b", tmp_path / "c"]

    def take_away() -> None:
        for one in away:
            if one.exists():
                one.rename(one.with_suffix(".away"))

    with caplog.at_level(logging.WARNING, "jstream"):
        assert [len(one) for one in made.run(between=take_away)] == [6, 4]
    assert any("consumer etl acknowledges later what was finished" in message for message in caplog.messages)
    for one in away:
        one.with_suffix(".away").rename(one)
    assert made.run() == []
    assert store.stream("ORDERS").consumer("etl").info()["num_pending"] == 0


class Away:
    """A store of three volumes with one replica of its stream, in two blocks of 5; and the volume that has it."""

    def __init__(self, directory: Path, orders: Make) -> None:
        self.paths = [directory / name for name in "abc"]
        self.store = Store.create(self.paths)
        stream = self.store.add_stream({"name": "ORDERS", "subjects": ["orders.>"], "num_replicas": 1})
        for _ in range(2):
            stream.append(orders(5))
        self.home = next(path for path in self.paths if any(path.rglob("*.blk")))

    def unmount(self) -> None:
        self.home.rename(self.home.with_suffix(".unmounted"))

    def mount(self) -> None:
        self.home.with_suffix(".unmounted").rename(self.home)

    def query(self, **options: Any) -> Query:
        return Query(",".join(map(str, self.paths)), {"stream": "ORDERS", "startingOffsets": "earliest", **options})


@pytest.fixture
def away(tmp_path: Path, orders: Make) -> Away:
    return Away(tmp_path, orders)


@pytest.mark.parametrize("consumer", [None, "etl"])
def test_query_that_goes_on_past_losses_waits_for_a_volume_that_is_away(
    consumer: str | None, away: Away, caplog: Any
) -> None:
    options = {"failOnDataLoss": "false", "maxFilesPerTrigger": 1, **({"consumer": consumer} if consumer else {})}
    made = away.query(**options)
    assert sequences(made.run(available_now=False, batch_count_max=1)) == [1, 2, 3, 4, 5]
    away.unmount()
    with caplog.at_level(logging.WARNING, "jstream"):
        assert made.run(available_now=False) == []
    assert any("waits before sequence 6" in message for message in caplog.messages)
    kinds = [one["kind"] for one in away.store.events() if one["stream"] == "ORDERS"]
    assert kinds == ["consumer_unreadable" if consumer else "query_unreadable"]
    away.mount()
    assert sequences(made.run(available_now=False)) == [6, 7, 8, 9, 10]


@pytest.mark.parametrize(("fails", "available_now"), [("true", False), ("true", True), ("false", True)])
def test_query_that_may_not_wait_fails_while_a_volume_is_away(fails: str, available_now: bool, away: Away) -> None:
    made = away.query(failOnDataLoss=fails)
    away.unmount()
    for _ in range(2):
        with pytest.raises(UnavailableError, match=str(away.home)):
            made.run(available_now)
    away.mount()
    assert sequences(made.run(available_now)) == list(range(1, 11))


@pytest.mark.parametrize("fails", ["true", "false"])
def test_batch_that_was_planned_before_its_volume_went_away_is_repeated(fails: str, away: Away) -> None:
    made = away.query(failOnDataLoss=fails)
    with pytest.raises(Killed):
        made.run(kill_in=0)
    away.unmount()
    with pytest.raises(UnavailableError):
        made.run()
    away.mount()
    assert sequences(made.run()) == list(range(1, 11))


def test_query_beyond_what_is_away_reads_on(away: Away, orders: Make) -> None:
    made = away.query(failOnDataLoss="true")
    made.run()
    first = next(path for path in away.home.rglob("*.blk"))
    first.unlink()
    away.store.stream("ORDERS").append(orders(3))
    assert sequences(made.run()) == [11, 12, 13]


@pytest.mark.buckets
def test_two_live_queries_on_one_consumer_are_one_too_many(query: Any, put: Any) -> None:
    put(3)
    first, second = query(consumer="etl").reader(), query(consumer="etl").reader()
    begin = first.initialOffset()
    with pytest.raises(StoreBusyError, match="etl.*ORDERS"):
        second.initialOffset()
    taker = query(consumer="etl", consumerTakeover="true").reader()
    taker.initialOffset()
    with pytest.raises(FencedError):
        first.latestOffset(begin, ReadAllAvailable())
    for one in (first, second, taker):
        one.stop()


@pytest.mark.buckets
def test_wiped_checkpoint_goes_on_where_the_consumer_stands(query: Any, put: Any) -> None:
    put(10)
    assert len(sequences(query(consumer="etl", startingOffsets=None).run())) == 10
    put(2)
    assert sequences(query(consumer="etl", startingOffsets=None).run()) == [11, 12]


def test_consumer_of_the_same_name_on_another_stream_is_another_one(query: Any, put: Any, store: Store) -> None:
    put(3, "ORDERS_EU")
    query("ORDERS_EU", consumer="etl").run()
    put(3)
    assert sequences(query(consumer="etl", startingOffsets=None).run()) == [1, 2, 3]
    assert store.stream("ORDERS_EU").consumer("etl").info()["ack_floor"]["stream_seq"] == 3


# --- checkpoints that do not fit


def change(made: Query, **fields: Any) -> None:
    offset = json.loads(made.offsets[-1])
    offset["ORDERS"].update(fields)
    made.offsets[-1] = json.dumps(offset)


def test_edited_checkpoint_is_refused_with_the_field(query: Any, put: Any) -> None:
    put(5)
    made = query()
    made.run()
    change(made, sequence="6")
    with pytest.raises(ValueError, match="'sequence' of stream 'ORDERS' is \"6\".*folder 'offsets' of the checkpoint"):
        made.run()
    change(made, sequence=60)
    with pytest.raises(DataLossError, match="sequences 6 to 59, which were read, are gone"):
        made.run()


def test_offsets_that_do_not_follow_one_another_are_refused(query: Any, put: Any) -> None:
    put(5)
    made = query(maxOffsetsPerTrigger=2)
    made.run()
    made.commits -= 1
    change(made, sequence=2)
    with pytest.raises(ValueError, match="offsets of stream 'ORDERS' do not follow one another"):
        made.run()


def test_checkpoint_of_another_store_is_refused_or_followed(query: Any, put: Any, tmp_path: Path, orders: Make) -> None:
    put(5)
    made = query()
    made.run()
    other = Store.create(tmp_path / "other")
    other.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    other.stream("ORDERS").append(orders(3))
    made.path = other.paths[0]
    with pytest.raises(ValueError, match="the checkpoint is of another store.*Give the path of that store"):
        made.run()
    assert sequences(made.run(failOnDataLoss="false")) == [1, 2, 3]
    assert made.run() == []


def test_newer_version_of_the_offset_is_refused(query: Any) -> None:
    made = query()
    made.run()
    change(made, version=2)
    with pytest.raises(Exception, match="has version 2, this program reads 1"):
        made.run()


# --- streams that became others


@pytest.mark.buckets
def test_stream_made_again_is_told_and_followed_from_its_first_message(query: Any, put: Any, store: Store) -> None:
    put(10)
    made = query(consumer="etl")
    made.run()
    store.delete_stream("ORDERS")
    store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    put(15)
    with pytest.raises(DataLossError, match=r"deleted and made again.*failOnDataLoss=false") as caught:
        made.run()
    assert "consumer reset" not in str(caught.value), "the consumer went with the stream"
    assert sequences(made.run(failOnDataLoss="false")) == list(range(1, 16))
    assert made.run() == []
    assert store.stream("ORDERS").consumer("etl").info()["num_pending"] == 0


def test_move_to_another_incarnation_is_replayed_the_same(query: Any, put: Any, store: Store) -> None:
    put(10)
    made = query()
    made.run()
    store.delete_stream("ORDERS")
    store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    put(4)
    with pytest.raises(Killed):
        made.run(kill_in=1, failOnDataLoss="false")
    put(4)
    assert [sequences([one]) for one in made.run()] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    told = [one for one in store.events() if "made again" in one["reason"]]
    assert len(told) == 1


def test_stream_that_is_gone_fails_the_query_or_is_left_out_until_it_is_back(
    query: Any, put: Any, store: Store
) -> None:
    put(3)
    put(3, "ORDERS_EU")
    made = query("ORDERS*")
    made.run()
    store.delete_stream("ORDERS")
    put(2, "ORDERS_EU")
    with pytest.raises(DataLossError, match="'ORDERS'"):
        made.run()
    assert sequences(made.run(failOnDataLoss="false"), "ORDERS_EU") == [4, 5]
    assert made.run() == []
    store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    put(2)
    assert sequences(made.run()) == [1, 2]


def test_head_that_was_removed_before_it_was_read_is_told(query: Any, put: Any, store: Store) -> None:
    put(10)
    made = query(maxOffsetsPerTrigger=2)
    made.run(batch_count_max=1)
    store.stream("ORDERS").purge(end=7)
    with pytest.raises(DataLossError, match="sequences 3 to 6 were removed or lost before they were read"):
        made.run()
    assert sequences(made.run(failOnDataLoss="false")) == [7, 8, 9, 10]


def test_what_a_limit_took_before_a_batch_was_repeated_is_told(query: Any, put: Any, store: Store) -> None:
    """The tasks of the first attempt read what was planned; a replay has a plan of its own, and says what it lacks."""
    put(10)
    made = query(maxOffsetsPerTrigger=5)
    with pytest.raises(Killed):
        made.run(kill_in=1)
    reader = made.reader()
    first_attempt = travel(reader.partitions(json.loads(made.offsets[0]), json.loads(made.offsets[1])))
    store.edit_stream({"name": "ORDERS", "max_msgs": 2})
    batches = [batch for one in first_attempt for batch in travel(reader).read(one)]
    assert [sequence for batch in batches for sequence in batch.column("sequence").to_pylist()] == [6, 7, 8, 9, 10]
    reader.stop()
    with pytest.raises(DataLossError, match="sequences 6 to 8 were removed or lost before they were read"):
        made.run()
    assert sequences(made.run(failOnDataLoss="false")) == [9, 10]


def test_a_batch_that_is_repeated_says_how_much_was_removed_in_the_middle(query: Any, put: Any, store: Store) -> None:
    put(10)
    made = query()
    with pytest.raises(Killed):
        made.run(kill_in=0)
    left = list(range(1, 11))
    for gone in ([4, 5], [6], []):
        store.stream("ORDERS").remove(gone)
        left = [sequence for sequence in left if sequence not in gone]
        made.commits = 0  # killed once more
        assert sequences(made.run(batch_count_max=1)) == left
    events = [(event["before"], event["reason"].split(" were")[0]) for event in store.events(kind="batch_shortened")]
    assert events == [("1 to 10", "2 of 10 messages"), ("1 to 10", "3 of 10 messages")]
    put(2)
    assert sequences(made.run()) == [11, 12]
    assert len(store.events(kind="batch_shortened")) == 2


def test_stream_put_back_to_an_older_copy_and_grown_past_is_recognised(
    query: Any, put: Any, store: Store, tmp_path: Path
) -> None:
    put(10)
    made = query()
    made.run()
    shutil.copytree(store.paths[0], tmp_path / "older")
    put(20)
    assert len(sequences(made.run())) == 20
    shutil.rmtree(store.paths[0])
    shutil.copytree(tmp_path / "older", store.paths[0])
    later = Store.open(store.paths[0])
    later.stream("ORDERS").append(pa.table({"subject": ["orders.a"] * 50, "data": [b"new"] * 50}))
    with pytest.raises(DataLossError, match="put back to an older copy and has grown since: sequences 11 to 30"):
        made.run()
    assert sequences(made.run(failOnDataLoss="false")) == list(range(11, 61))
    assert made.run() == []


def test_planned_batch_whose_end_is_gone_reads_what_is_left_of_it(
    query: Any, put: Any, store: Store, tmp_path: Path
) -> None:
    put(10)
    made = query(maxOffsetsPerTrigger=5)
    made.run(batch_count_max=1)
    shutil.copytree(store.paths[0], tmp_path / "older")
    put(20)
    with pytest.raises(Killed):
        made.run(kill_in=1, maxOffsetsPerTrigger=None)
    shutil.rmtree(store.paths[0])
    shutil.copytree(tmp_path / "older", store.paths[0])
    put_again = Store.open(store.paths[0])
    put_again.stream("ORDERS").append(pa.table({"subject": ["orders.a"] * 50, "data": [b"new"] * 50}))
    with pytest.raises(DataLossError, match="sequences 11 to 30"):
        made.run()
    batches = made.run(failOnDataLoss="false", maxOffsetsPerTrigger=None)
    assert [sequences([one]) for one in batches] == [[6, 7, 8, 9, 10], list(range(11, 61))]
