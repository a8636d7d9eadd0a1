"""How many requests things cost, counted where the store asks its client: objects in memory."""

import threading

import numpy as np
import pyarrow as pa
import pytest
from harness.objects import store as memory
from harness.objects.counting import Counting

from storage_core.block.format import FRAME_SIZE_TARGET
from storage_core.deadlines import VARIABLE
from storage_core.errors import CorruptionError, UnsuitableFileSystemError
from storage_core.metadata.commands import Append, AppendedBlocks
from storage_core.metadata.manifest import BLOCK_DTYPE, encode_blocks
from storage_core.objects.files import FIRST_READ_SIZE
from storage_core.objects.reading_ahead import AHEAD_COUNT, PIECE_SIZE
from storage_core.raft import object_log_format
from storage_core.store import environment
from storage_core.store.reading.plan import ReadRequest
from storage_core.store.store import Store
from storage_core.store.volume import object_log
from storage_core.store.writing import incoming
from storage_core.store.writing.staging import Stager


@pytest.fixture
def counting() -> Counting:
    return Counting()


MESSAGES = pa.table({"subject": ["orders.new"], "data": ["x"]})


def made(counting: Counting, volume_count: int, message_count: int = 40) -> list[str]:
    volumes = [f"s3://bucket{number}/shop" for number in range(volume_count)]
    store = Store.create(volumes, env=counting.process())
    store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    for _ in range(message_count):
        store.stream("ORDERS").append(MESSAGES)
    return volumes


@pytest.mark.parametrize("volume_count", [1, 3])
def test_requests_of_what_is_done_often(counting: Counting, volume_count: int) -> None:
    volumes = made(counting, volume_count, 60)
    assert counting.record_count("s3://bucket0") > 60
    with counting.asking() as counts:
        store = Store.open(volumes, env=counting.process())
    # Identity, snapshot, and the newest record, which repeats those before it.
    assert counts == {"list": volume_count, "get": volume_count * 3}
    with counting.asking() as counts:
        store.plan(ReadRequest(("ORDERS",)))
    assert counts == {"list": volume_count}
    view = store.known
    with counting.asking() as counts:
        assert store.newer(view) is view
    assert counts == {"list": 1}


def test_records_before_what_the_newest_repeats_are_read_as_well(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_log, "RECENT_SIZE_MAX", 2000)
    volumes = made(counting, 1, 40)
    repeated = [
        object_log_format.decode(data, name).first_number
        for name, data in sorted(counting.objects("s3://bucket0").items())
        if name.endswith(".rec")
    ]
    assert 4 < len(set(repeated)) < len(repeated) / 3, "each begins anew after so many bytes"
    with counting.asking() as counts:
        store = Store.open(volumes, env=counting.process())
    assert counts == {"list": 1, "get": 2 + len(set(repeated))}
    assert store.stream("ORDERS").last_sequence == 40


@pytest.mark.parametrize("hurt", ["missing", "damaged"])
def test_record_that_a_later_one_repeats_is_not_missed(counting: Counting, hurt: str) -> None:
    volumes = made(counting, 1, 10)
    objects = counting.objects("s3://bucket0")
    *_, last_but_one, last = sorted(name for name in objects if name.endswith(".rec"))
    if hurt == "missing":
        del objects[last_but_one]
    else:
        objects[last_but_one] = b"damaged"
    assert Store.open(volumes, env=counting.process()).stream("ORDERS").last_sequence == 10
    objects[last] = b"damaged"
    with pytest.raises(CorruptionError):
        Store.open(volumes, env=counting.process()).streams()


@pytest.mark.parametrize("volume_count", [1, 3])
def test_open_and_plan_take_two_rounds_with_ten_thousand_blocks(counting: Counting, volume_count: int) -> None:
    volumes = [f"s3://bucket{number}/shop" for number in range(volume_count)]
    writer = Store.create(volumes, env=counting.process())
    incarnation = writer.add_stream({"name": "ORDERS", "subjects": ["orders.>"]}).incarnation
    for number in range(2):
        add_blocks(writer, incarnation, number, 5_000)
    add_blocks(writer, incarnation, 2, 1)
    snapshot_size = max(len(data) for name, data in counting.objects("s3://bucket0").items() if name.endswith(".snap"))
    assert snapshot_size > FIRST_READ_SIZE, "it does not come with a first read of other objects"
    # One volume: identity and listing; the snapshot, and the record behind it.
    with counting.rounds(2 * volume_count, 2 * volume_count):
        store = Store.open(volumes, env=counting.process())
    with counting.rounds(volume_count):
        assert len(store.plan(ReadRequest(("ORDERS",))).slices) == 10_001
    add_blocks(writer, incarnation, 3, 1)
    # What others wrote meanwhile: the listing; the new record, and the look at what it goes on from.
    with counting.rounds(volume_count, 2 * volume_count):
        assert len(store.plan(ReadRequest(("ORDERS",))).slices) == 10_002


def test_without_tags_the_witness_is_looked_at_once_more(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "tag", lambda data: "")
    volumes = made(counting, 1)
    with counting.asking() as counts:
        Store.open(volumes, env=counting.process())
    assert counts["head"] == 1


def test_store_whose_tags_tell_nothing_is_refused(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "tag", lambda data: "the same")
    with pytest.raises(UnsuitableFileSystemError, match="ETags"):
        Store.create("s3://bucket0/shop", env=counting.process())


def add_blocks(store: Store, incarnation: bytes, commit: int, count: int) -> None:
    """Name blocks of one message each that nobody wrote: a plan looks at none."""
    rows = np.zeros(count, BLOCK_DTYPE)
    rows["block_id"] = np.frombuffer(np.random.default_rng(commit).bytes(16 * count), "V16")
    rows["first"] = np.arange(count)
    rows["span"] = rows["row_count"] = 1
    rows["file_size"], rows["data_size"], rows["holders"] = 8192, 100, 1
    sets_of = np.ones(count, "<i4").tobytes()
    part = AppendedBlocks(incarnation, encode_blocks(rows), (("orders.new",),), sets_of)
    with store.metadata.session(60.0) as session:
        session.propose(Append((2**62 + commit).to_bytes(8, "big") + bytes(8), (part,)))
        if count > 1:
            session.snapshot()


@pytest.mark.parametrize("volume_count", [1, 3])
def test_commit_of_staged_blocks_takes_two_requests_one_after_the_other(counting: Counting, volume_count: int) -> None:
    volumes = made(counting, volume_count)
    store = Store.open(volumes, env=counting.process())
    stream = store.stream("ORDERS")
    stream.append(MESSAGES)
    transaction = store.begin(["ORDERS"])
    stager = Stager(transaction, transaction.targets["ORDERS"], 0, env=store.environment)
    stager.write(next(incoming.batches("ORDERS", MESSAGES)))
    staged = stager.finish()
    with counting.asking() as counts:
        store.commit(transaction, staged)
    assert counts == {"create": volume_count, "head": volume_count}, "the record, and the look at what it goes on from"
    with counting.asking() as counts:
        stream.append(MESSAGES)
    assert counts == {"put": volume_count, "create": volume_count, "head": volume_count}


def test_query_that_waits_sees_what_others_append(counting: Counting) -> None:
    volumes = made(counting, 3)
    waiting, other = (Store.open(volumes, env=counting.process()) for _ in range(2))
    view = waiting.view()
    for _ in range(3):
        sequences = other.stream("ORDERS").append(MESSAGES)
        view = waiting.newer(view)
        assert waiting.stream_state("ORDERS", view.state).next_sequence == sequences.stop
        assert waiting.newer(view) is view


def incompressible(frame_count: int) -> pa.Table:
    """Return messages of random bytes that fill so many frames."""
    random, row_count = np.random.default_rng(1), frame_count * FRAME_SIZE_TARGET // 4096
    data = [random.bytes(4096) for _ in range(row_count)]
    return pa.table({"subject": pa.array(["orders.new"] * row_count), "data": pa.array(data)})


def with_large_block(counting: Counting, volume_count: int = 1) -> Store:
    """Return a store with a block of ten frames, and of another subject a small one."""
    volumes = [f"s3://bucket{number}/shop" for number in range(volume_count)]
    store = Store.create(volumes, env=counting.process())
    stream = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    stream.append(incompressible(10))
    stream.append([{"subject": "orders.old", "data": b"x"}])
    return store


def test_reads_ask_for_no_more_than_their_plan_leaves(counting: Counting) -> None:
    stream = with_large_block(counting).stream("ORDERS")
    size, last = max(map(len, counting.objects("s3://bucket0").values())), stream.state().next_sequence
    opening, frame = FIRST_READ_SIZE + (16 << 10), FRAME_SIZE_TARGET + (256 << 10)
    for wanted, expected, size_max in (
        ({}, last - 1, size + 2 * opening),
        ({"first": last - 2, "end": last}, 2, 2 * opening + frame),
        ({"first": 1, "end": 11}, 10, opening + frame),
        ({"subject": "orders.old"}, 1, opening),
        ({"subject": "orders.none"}, 0, 0),
    ):
        with counting.asking():
            assert sum(batch.num_rows for batch in stream.read(**wanted)) == expected
        assert sum(counting.sizes) <= size_max, wanted
    with counting.asking():
        next(iter(stream.read()))
    assert sum(counting.sizes) <= opening + PIECE_SIZE, "nobody has asked for a second piece"


def test_small_blocks_are_read_by_one_request_each(counting: Counting) -> None:
    store = Store.create("s3://bucket0/shop", env=counting.process())
    stream = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    messages = incompressible(1).slice(0, 512)
    assert messages.nbytes > FIRST_READ_SIZE
    for _ in range(3):
        stream.append(messages)
    stream.read().read_all()  # what was committed last is known from now on
    with counting.asking() as counts:
        assert sum(batch.num_rows for batch in stream.read(columns=["data"])) == 3 * len(messages)
    assert counts["get"] == 3


def test_frames_are_fetched_together_and_ahead_and_no_further(counting: Counting) -> None:
    batches = iter(with_large_block(counting).stream("ORDERS").read(columns=["data"]))
    next(batches)
    with counting.holding() as asked:
        taker = threading.Thread(target=lambda: [next(batches) for _ in range(2)])  # comes to the second piece
        taker.start()
        assert asked(1 + AHEAD_COUNT)
    taker.join(10.0)
    assert len(counting.sizes) == 1 + AHEAD_COUNT
    assert FRAME_SIZE_TARGET < min(counting.sizes) and max(counting.sizes) <= PIECE_SIZE


def test_large_block_is_put_in_parts_and_is_nowhere_before_it_is_whole(counting: Counting) -> None:
    store = with_large_block(counting, 3)
    transaction, messages = store.begin(["ORDERS"]), incompressible(5)
    before = dict(counting.objects("s3://bucket0"))
    stager = Stager(transaction, transaction.targets["ORDERS"], 0, env=store.environment)
    with counting.asking() as counts:
        for batch in incoming.batches("ORDERS", messages):
            stager.write(batch)
        assert counting.objects("s3://bucket0") == before
        stager.discard()
    assert counts["part"] >= 3 * 3
    assert counting.objects("s3://bucket0") == before
    with counting.asking() as counts:
        store.stream("ORDERS").append(messages)
    assert (counts["create"], counts["put"], counts["get"]) == (3, 3, 0), "the record, and the block once it is whole"
    assert (
        store.stream("ORDERS").read(columns=["data"]).read_all()["data"].slice(len(incompressible(10)) + 1)
        == messages["data"]
    )


@pytest.mark.parametrize("volume_count", [1, 3])
def test_readers_and_writers_that_take_turns_ask_for_what_is_new(counting: Counting, volume_count: int) -> None:
    volumes = made(counting, volume_count, 1)
    first, second, reader = (Store.open(volumes, env=counting.process()) for _ in range(3))
    for _ in range(2):
        first.stream("ORDERS").append(MESSAGES)
        second.stream("ORDERS").append(MESSAGES)
    with counting.asking() as counts:
        first.stream("ORDERS").append(MESSAGES)
    assert (counts["get"], counts["put"], counts["create"]) == (volume_count, volume_count, 2 * volume_count)
    assert reader.stream("ORDERS").last_sequence == 6
    for last_sequence in (7, 8):
        first.stream("ORDERS").append(MESSAGES)
        with counting.asking() as counts:
            assert reader.stream("ORDERS").last_sequence == last_sequence
        assert counts["get"] == volume_count, "the new record of each volume"


def test_record_that_is_listed_as_it_was_is_not_fetched_again(counting: Counting) -> None:
    metadata = Store.open(made(counting, 1), env=counting.process()).metadata
    (before,) = metadata.cache.read_all(metadata.known_volumes)
    with counting.asking() as counts:
        (log,) = metadata.cache.read_all(metadata.known_volumes)
    assert log.contents is not None and before.contents is not None
    assert log.contents.entries == before.contents.entries
    assert counts == {"list": 1, "get": 1}, "the snapshot, which is the witness, always is"
    name = max(name for name in counting.objects("s3://bucket0") if name.endswith(".rec"))
    counting.objects("s3://bucket0")[name] = b"damaged"
    (log,) = metadata.cache.read_all(metadata.known_volumes)
    assert log.contents is not None and log.contents.bad is not None, "another tag"


def test_append_waits_for_no_bucket_that_is_slower_than_most(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "600")  # seconds: no deadline ends the wait
    volumes = made(counting, 3)
    stream = Store.open(volumes, env=counting.process()).stream("ORDERS")
    stream.append(MESSAGES)
    monkeypatch.setattr(environment, "SLOW_S", 0.0)  # from here on: opening leaves out who is slow, too
    with counting.holding_back("s3://bucket1") as held:
        for _ in range(3):
            stream.append(MESSAGES)
        assert stream.last_sequence == 44
        assert held(), "what it was asked has no answer yet"
    stream.append(MESSAGES)
    assert stream.read(columns=["sequence"]).read_all().num_rows == 45
