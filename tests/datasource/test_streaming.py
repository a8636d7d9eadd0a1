"""Streaming reads in a real session, as users write them: starts, limits, triggers, globs, restarts, losses.

What the source does in detail is tested without Spark (test_stream_source.py); here it is that Spark calls it as that
one expects, and that its words reach the user.
"""

import functools
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.stream_starts import STARTS, prepare, put, restarted
from harness.streaming_query import AVAILABLE_NOW, Query, Row, remove

from datasource.spark_versions import SAYS_LIMITS, SPARK
from storage_core import Store
from storage_core.store.recovery import adopt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
ORDERS = {"name": "ORDERS", "subjects": ["orders.new"]}
AT_ONCE = 6  # cases in one query


@pytest.fixture
def query(spark: "SparkSession", store: Store, storage: dict[str, str], tmp_path: Path) -> Callable[..., Query]:
    made: list[Query] = []

    def make(stream: str = "ORDERS", path: str | None = None, **options: Any) -> Query:
        given = {"stream": stream, "startingOffsets": "earliest", **storage, **options}
        made.append(Query(spark, path or store.paths[0], tmp_path / f"checkpoint {len(made)}", given))
        return made[-1]

    yield make
    for one in made:
        if one.running is not None:
            one.running.stop()


# --- where it starts


@pytest.mark.parametrize("at", range(0, len(STARTS), AT_ONCE))
def test_start_of_a_query_and_its_restart(at: int, spark: Any, tmp_path: Path) -> None:
    """One query reads a stream of each case: Spark starts one source after another, and plans them together."""
    cases = {name: (options, firsts) for name, options, firsts in STARTS[at : at + AT_ONCE]}
    stores = {name: Store.create(tmp_path / f"store {number}") for number, name in enumerate(cases)}
    for store in stores.values():
        store.add_stream(ORDERS)
        store.add_stream({"name": "ORDERS_EU", "subjects": ["eu.new"]})
        prepare(store)

    def run(change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[tuple[str, str], list[int]]:
        """Return the sequences by case and stream."""
        found: dict[tuple[str, str], list[int]] = {}

        def keep(frame: "DataFrame", number: int) -> None:
            for row in frame.collect():
                found.setdefault((row.name, row.stream), []).append(row.sequence)

        frames = []
        for name, (options, _) in cases.items():
            given = {key: one for key, one in change(options).items() if one is not None}
            reader = spark.readStream.format("jstream").schema("stream string, sequence long")
            frame = reader.options(stream="ORDERS,ORDERS_EU", **given).load(stores[name].paths[0])
            frames.append(frame.selectExpr(f"'{name}' as name", "stream", "sequence"))
        union = functools.reduce(lambda one, other: one.union(other), frames)
        writer = union.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
        made = Query(spark, "", tmp_path, {}, launch=writer.trigger(availableNow=True).start)
        made.running = made.launch()
        made.wait()
        return {key: sorted(found[key]) for key in sorted(found)}

    begun = run(lambda options: options)
    pairs = [(name, stream) for name in cases for stream in ("ORDERS", "ORDERS_EU")]
    assert begun == {
        (name, stream): list(range(first, 11))
        for name, (_, firsts) in sorted(cases.items()) for stream, first in sorted(firsts.items()) if first < 11
    }  # fmt: skip
    for name, stream in pairs:
        put(stores[name], stream, 5)
    assert run(restarted) == {pair: [11, 12, 13, 14, 15] for pair in sorted(pairs)}
    for name, stream in pairs:
        consumer = cases[name][0].get("consumer")
        if consumer is not None:
            info = stores[name].stream(stream).consumer(consumer).info()
            acknowledged = 15 if SAYS_LIMITS else 10  # up to the last batch but one
            assert (info["ack_floor"]["stream_seq"], info["num_pending"]) == (acknowledged, 15 - acknowledged)
            assert info["num_ack_pending"] == 0


# --- triggers and limits


def test_triggers_and_limits(query: Any, store: Store) -> None:
    put(store, "ORDERS", 60)
    put(store, "ORDERS_EU", 40)
    limited = query("ORDERS*", maxOffsetsPerTrigger=50)
    once = query("ORDERS*", maxOffsetsPerTrigger=50, minOffsetsPerTrigger=50).start({"once": True})
    limited.start(AVAILABLE_NOW).wait()
    once.wait()
    assert limited.counts() == ([50, 50] if SAYS_LIMITS else [100])
    (first,) = limited.batches[0]
    shares = [sum(stream == name for stream, _ in first) for name in ("ORDERS", "ORDERS_EU")]
    assert shares == ([30, 20] if SAYS_LIMITS else [60, 40])
    assert once.counts() == [100]
    put(store, "ORDERS", 7)
    limited.start({"processingTime": "0 seconds"}, maxOffsetsPerTrigger=5, subject="orders.>").caught_up()
    assert limited.counts() == [5, 2]
    put(store, "ORDERS", 3)
    put(store, "ORDERS_EU", 3)
    assert sum(limited.caught_up().stop().counts()) == 10  # of ORDERS_EU, which the filter leaves out, nothing
    progress = json.loads(limited.running.recentProgress[-1].json)["sources"][0]
    assert progress["endOffset"]["ORDERS"]["sequence"] == 71
    assert progress["latestOffset"]["ORDERS"]["sequence"] == 71


def test_few_messages_wait_and_streams_join_a_running_query(query: Any, store: Store) -> None:
    waiting = query("ORDERS*", minOffsetsPerTrigger=10, maxTriggerDelay="1h").start(None)
    impatient = query("PAY*,ORDERS", minOffsetsPerTrigger=10, maxTriggerDelay="0s", startingOffsets="latest").start(
        None
    )
    waiting.caught_up()
    impatient.caught_up()
    put(store, "ORDERS", 6)
    assert waiting.caught_up().sequences() == []
    assert impatient.caught_up().sequences() == [1, 2, 3, 4, 5, 6]
    put(store, "ORDERS_EU", 4)
    waiting.caught_up()
    assert (waiting.sequences(), waiting.sequences("ORDERS_EU")) == ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4])
    store.add_stream({"name": "PAYMENTS", "subjects": ["pay.>"]})
    store.stream("PAYMENTS").publish("pay.card", b"1")
    assert impatient.caught_up().sequences("PAYMENTS") == [1]
    waiting.stop()
    impatient.stop()


def test_glob_that_matches_nothing_waits(query: Any, store: Store) -> None:
    waiting = query("PAY*")
    assert waiting.run() == []
    store.add_stream({"name": "PAYMENTS", "subjects": ["pay.>"]})
    store.stream("PAYMENTS").publish("pay.card", b"1")
    assert waiting.start().wait().sequences("PAYMENTS") == [1]


# --- replays


@pytest.mark.buckets
def test_batches_are_replayed_as_they_were_planned(query: Any, store: Store) -> None:
    put(store, "ORDERS", 10)
    made = query(startingOffsets="latest")
    made.start(None).caught_up()
    put(store, "ORDERS", 5)
    assert made.caught_up().stop().sequences() == [11, 12, 13, 14, 15]
    made.forget_commit()
    put(store, "ORDERS", 5)
    replayed = made.start().wait()
    assert [rows for number in sorted(replayed.batches) for rows in replayed.batches[number]] == [
        [("ORDERS", sequence) for sequence in part] for part in (range(11, 16), range(16, 21))[: 1 + SAYS_LIMITS]
    ]
    # The first batch, of which nothing but its end is known.
    for kind in ("offsets", "commits"):
        for file in made.files(kind)[1 if kind == "offsets" else 0 :]:
            remove(file)
    replayed_first = made.run(startingOffsets="latest")
    assert replayed_first + ([] if SAYS_LIMITS else made.run()) == list(range(11, 21))


def test_sources_of_one_query_have_limits_of_their_own_and_a_batch_is_repeated_under_those_it_was_planned_with(
    spark: Any, store: Store, storage: dict[str, str], tmp_path: Path
) -> None:
    """ORDERS is read twice by the query, and each batch several times by its function."""
    put(store, "ORDERS", 20)
    put(store, "ORDERS_EU", 10)
    seen: list[tuple[int, list[Row]]] = []
    fails_at = {1 if SAYS_LIMITS else 0}

    def work(frame: "DataFrame", number: int) -> None:
        frame.persist()
        rows = sorted((row.stream, row.sequence) for row in frame.collect())
        assert (frame.count(), frame.isEmpty()) == (len(rows), False)
        seen.append((number, rows))
        if number in fails_at:
            fails_at.clear()
            raise RuntimeError("the batch failed")

    def run(limit: int) -> None:
        reader = spark.readStream.format("jstream").schema("stream string, sequence long").options(**storage)
        reader = reader.options(startingOffsets="earliest", trigger="availableNow")
        orders = reader.options(stream="ORDERS", maxOffsetsPerTrigger=limit).load(store.paths[0])
        europe = reader.options(stream="ORDERS_EU", maxOffsetsPerTrigger=4).load(store.paths[0])
        writer = orders.union(orders.where("sequence % 5 = 0")).union(europe).writeStream.foreachBatch(work)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        made = Query(spark, "", tmp_path, {}, launch=writer.start)
        made.running = made.launch()
        made.wait()

    def batch(first: int, end: int, europe_first: int, europe_end: int) -> list[Row]:
        orders = [*range(first, end), *(sequence for sequence in range(first, end) if sequence % 5 == 0)]
        return sorted(
            [("ORDERS", sequence) for sequence in orders]
            + [("ORDERS_EU", sequence) for sequence in range(europe_first, europe_end)]
        )

    with pytest.raises(Exception, match="the batch failed"):
        run(7)
    run(3)
    parts = [(1, 8, 1, 5), (8, 15, 5, 9), (8, 15, 5, 9), (15, 18, 9, 11), (18, 21, 11, 11)]
    if not SAYS_LIMITS:  # a batch takes all
        parts = [(1, 21, 1, 11)] * 2
    numbers = [0, 1, 1, 2, 3] if SAYS_LIMITS else [0, 0]
    assert seen == [(number, batch(*part)) for number, part in zip(numbers, parts, strict=True)]


def test_rows_repeat_within_a_batch_while_the_stream_is_purged(query: Any, store: Store) -> None:
    put(store, "ORDERS", 10)
    made = query()
    counts = []

    def count_twice(frame: "DataFrame", number: int) -> None:
        counts.append(frame.count())
        store.stream("ORDERS").purge()
        counts.append(frame.count())

    made.each = count_twice
    assert made.run() == list(range(1, 11))
    assert counts == [10, 10]


def test_queries_and_frames_beside_expiry_repeat_exactly_or_say_what_is_gone(
    spark: Any, query: Any, store: Store
) -> None:
    """1 to 6 go by max_age, 10 to 12 by their TTL; both while a batch is at work, and before it is repeated."""
    hour_ns = 3_600 * 10**9
    store.edit_stream({"name": "ORDERS", "allow_msg_ttl": True})
    stream = store.stream("ORDERS")
    for count, given in (
        (6, {"timestamp_ns": time.time_ns() - 2 * hour_ns}), (3, {}), (3, {"headers": [("Nats-TTL", b"1")]}), (3, {}),
    ):  # fmt: skip
        stream.append([{"subject": "orders.new", "data": b"x", **given}] * count)
    frame = spark.read.format("jstream").option("stream", "ORDERS").load(store.paths[0])
    assert frame.count() == 15
    counts = []

    def expire(frame_of_batch: "DataFrame", number: int) -> None:
        counts.append(frame_of_batch.count())
        until_s = time.monotonic() + 60
        while stream.state().message_count == 15 and time.monotonic() < until_s:  # for a second, by the messages' TTL
            store.maintain()
        counts.append(frame_of_batch.count())

    made = query()
    made.each = expire
    assert (made.run(), counts) == (list(range(1, 16)), [15, 15])
    made.each, left = lambda frame, number: None, [*range(1, 10), 13, 14, 15]
    plans_once = SPARK >= (4, 1)  # before, each use of a frame plans its read again
    made.forget_commit()
    assert (made.run(), frame.count()) == (left, 15 if plans_once else len(left))
    store.edit_stream({"name": "ORDERS", "max_age": hour_ns})
    assert [message["sequence"] for message in stream.read(columns=["sequence"]).read_all().to_pylist()] == left[6:]
    assert frame.count() == (15 if plans_once else len(left[6:]))
    made.forget_commit()
    refused(made, "sequences 1 to 6 were removed or lost before they were read")
    assert made.run(failOnDataLoss="false") == left[6:]
    shorter = [event["reason"].split(" messages")[0] for event in store.events(kind="batch_shortened")]
    assert shorter == ["3 of 15", "9 of 15"]

    # Nothing is kept any more: what was planned fails, and what is planned now shows what is there.
    store.edit(deleted_block_retention="0s")
    store.maintain()
    if plans_once:
        reason = "this read was planned before sequences .* were removed.*load a DataFrame again"
        with pytest.raises(Exception, match=reason):
            frame.count()
    else:
        assert frame.count() == len(left[6:])
    assert query().run() == left[6:]


# --- bad input reaches the user with its words


def rewrite(made: Query, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit the offsets of the last batch by hand."""
    file = made.files("offsets")[-1]
    *head, last = file.read_text().splitlines()
    offset = json.loads(last)
    change(offset)
    file.unlink()
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    file.write_text("\n".join([*head, json.dumps(offset)]))


def refused(made: Query, says: str, **changed: Any) -> None:
    with pytest.raises(Exception, match=says):
        made.start(**changed).wait()


def test_checkpoints_that_do_not_fit_are_refused(query: Any, store: Store, tmp_path: Path) -> None:
    put(store, "ORDERS", 5)
    made = query(consumer="etl")
    made.run()
    refused(made, "stream 'ORDERS', which option 'stream' does not pick", stream="LOGS")
    other = Store.create(tmp_path / "other")
    other.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    made.path, path = other.paths[0], made.path
    refused(made, f"is of store {store.id.hex()}.*is store {other.id.hex()}.*Give the path of that store")
    made.path = path
    rewrite(made, lambda offset: offset["ORDERS"].update(incarnation="0" * 32))
    refused(made, "stream 'ORDERS' was deleted and made again.*failOnDataLoss=false.*consumer reset ORDERS etl")
    rewrite(made, lambda offset: offset["ORDERS"].update(version=2))
    refused(made, "has version 2, this program reads 1")
    rewrite(made, lambda offset: offset["ORDERS"].update(version=1, sequence="6"))
    refused(made, "'sequence' of stream 'ORDERS' is .*6.*folder 'offsets' of the checkpoint")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"maxOffsetsPerTrigger": "0"}, "'maxOffsetsPerTrigger': '0' is not a whole number from 1 on"),
        ({"maxBytesPerTrigger": "many"}, "'maxBytesPerTrigger': 'many' is not a number of bytes"),
        ({"maxOffsetsPerTrigger": "5", "maxMessagesPerTrigger": "5"}, "mean the same: give one of them"),
        ({"consumer": "e t l"}, "option 'consumer': 'e t l' is not 1 to 128 of the characters"),
        ({"stream": "ORDER"}, "no stream 'ORDER' in the store; did you mean 'ORDERS'"),
        ({"endingOffsets": "latest", "maxFilesPerTrigger": "1"}, "'endingOffsets' is for batch reads only"),
    ],
)
def test_wrong_streaming_reads_are_refused_when_they_are_made(options: dict[str, str], says: str, query: Any) -> None:
    refused(query(), says, **options)


@pytest.mark.buckets
def test_second_live_query_of_a_consumer_is_refused_unless_it_takes_over(query: Any, store: Store) -> None:
    put(store, "ORDERS", 5)
    first = query(consumer="etl").start(None).caught_up()
    refused(query(consumer="etl"), "etl.*ORDERS.*consumerTakeover")
    taker = query(consumer="etl", consumerTakeover="true", startingOffsets=None).start(None).caught_up()
    put(store, "ORDERS", 5)
    assert taker.caught_up().sequences() == [6, 7, 8, 9, 10]
    with pytest.raises(Exception, match="FencedError"):
        first.wait()
    taker.stop()


# --- volumes that are lost, and mended, under a running query


def test_running_query_reads_each_message_once_while_volumes_are_lost_and_repaired(query: Any, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    store = Store.create(paths)
    store.add_stream({"name": "ORDERS", "subjects": ["orders.>"], "block_max_msgs": 50})
    running = query(path=",".join(store.paths), consumer="etl", maxOffsetsPerTrigger=70).start(None)
    for gone in (0, 1, 2):
        put(store, "ORDERS", 200)
        shutil.rmtree(paths[gone])
        for block in list(paths[(gone + 1) % 3].rglob("*.blk"))[:1]:
            content = bytearray(block.read_bytes())
            content[len(content) // 2] ^= 1
            block.write_bytes(content)
        running.caught_up()
        put(store, "ORDERS", 10)
        assert Store.open(store.paths).repair()["ok"]
        running.caught_up()
    assert running.stop().sequences() == list(range(1, 631))
    assert Store.open(store.paths).stream("ORDERS").consumer("etl").info()["num_pending"] <= 10


# --- the stuck consumer, as a query lives it

READ = 1844


def lose_blocks(store: Store) -> None:
    for path in store.paths:
        for file in [*Path(path).rglob("*.blk"), *Path(path).rglob("index.db")]:
            file.unlink()


def declared_lost(store: Store, older: Path) -> None:
    lose_blocks(store)
    Store.open(store.paths).repair()


def adopted(store: Store, older: Path) -> None:
    """The metadata is lost as well."""
    lose_blocks(store)
    for path in store.paths:
        shutil.rmtree(Path(path) / "meta")
    adopt.execute(adopt.plan([Path(path) for path in store.paths]))
    Store.open(store.paths).edit_stream(ORDERS)  # of its configuration the name is left


def made_again(store: Store, older: Path) -> None:
    store.delete_stream("ORDERS")
    store.add_stream(ORDERS)


def another_store(store: Store, older: Path) -> None:
    """Nothing is left: a store is made anew in its place."""
    for path in store.paths:
        shutil.rmtree(path)
    Store.create(store.paths).add_stream(ORDERS)


def older_copy(store: Store, older: Path) -> None:
    for path in store.paths:
        shutil.rmtree(path)
        shutil.copytree(older / Path(path).name, path)


@dataclass(frozen=True)
class Story:
    happens: Callable[[Store, Path], None]
    volume_count: int
    first: int  # of what is new to the query
    count: int
    told: str


STORIES = [
    Story(declared_lost, 1, 1845, 100, r"sequences 1 to 1844 are lost \(1844 messages\)"),
    Story(declared_lost, 3, 1845, 100, r"sequences 1 to 1844 are lost \(1844 messages\)"),
    Story(adopted, 1, 1845, 100, r"rebuilt from its blocks .*sequences 1 to 1844 are lost"),
    Story(made_again, 1, 1, 100, r"was deleted and made again since it was read up to sequence 1844"),
    Story(another_store, 1, 1, 100, r"the checkpoint is of another store"),
    Story(older_copy, 3, 11, 100, r"put back to an older copy .*sequences 11 to 1844, which were read, are gone"),
    Story(older_copy, 1, 11, 3000, r"put back to an older copy .*sequences 11 to 1844, which were read, are gone"),
]


@pytest.mark.parametrize("story", STORIES, ids=lambda one: f"{one.happens.__name__}-{one.volume_count}-{one.count}")
def test_query_that_lost_what_it_had_read_fails_once_and_then_reads_exactly_what_is_new(
    story: Story, query: Any, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    store = Store.create([tmp_path / "store" / str(number) for number in range(story.volume_count)])
    store.add_stream(ORDERS)
    path = ",".join(store.paths)
    kept, wiped = (query(path=path, consumer=name, startingOffsets=None) for name in ("kept", "wiped"))
    for count in (10, READ - 10):
        put(store, "ORDERS", count)
        for one in [kept.start(), wiped.start()]:
            assert len(one.wait().sequences()) == count
        for one in [] if SAYS_LIMITS else [kept.start(), wiped.start()]:  # acknowledges the batch of the run before
            assert one.wait().sequences() == []
        if not (tmp_path / "older").exists():
            shutil.copytree(tmp_path / "store", tmp_path / "older")
    story.happens(store, tmp_path / "older")
    put(Store.open(store.paths), "ORDERS", story.count)
    refused(kept, f"(?s){story.told}.*failOnDataLoss=false")
    new = list(range(story.first, story.first + story.count))
    shutil.rmtree(wiped.checkpoint)
    for one in [kept.start(failOnDataLoss="false"), wiped.start(failOnDataLoss="false")]:
        assert one.wait().sequences() == new
    put(Store.open(store.paths), "ORDERS", 1)
    for one in [kept.start(), wiped.start()]:
        assert one.wait().sequences() == [new[-1] + 1]
    stream = Store.open(store.paths).stream("ORDERS")
    pending = [stream.consumer(name).info()["num_pending"] for name in ("kept", "wiped")]
    assert max(pending) <= (0 if SAYS_LIMITS else 1)  # which is the last batch
