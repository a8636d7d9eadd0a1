"""What a streaming query does with the store: begin, reconcile, acknowledge; on 1 and 3 volumes."""

from pathlib import Path

import pytest
from harness.cases import REPORTS
from harness.faults import CHANGING, LOCKING, Call, FaultyFiles, Judge, end_at, let_everything_happen
from harness.life import to_table
from harness.model import Row
from harness.processes import Machine
from harness.simulated_disk import ProcessEnded

from storage_core.errors import DataLossError, NotFoundError, ReadOnlyError
from storage_core.metadata.consumer_state import ConsumerState
from storage_core.metadata.reconcile import CONTINUE, FAIL, Position
from storage_core.store.consumers.consumer import Consumer
from storage_core.store.consumers.query import QueryPosition, QueryReader, QueryStart, onward
from storage_core.store.recovery import adopt
from storage_core.store.store import Store
from storage_core.store.stream import Stream

ORDERS = {"name": "orders", "subjects": ["orders.>"], "block_max_msgs": 700}
REMEDY = "option failOnDataLoss=false goes on"
LATEST = "startingOffsets=latest"


def put(stream: Stream, count: int) -> None:
    stream.append(to_table([Row("orders.eu", b"%d" % number) for number in range(count)]))


@pytest.fixture(params=[1, 3])
def machine(request: pytest.FixtureRequest) -> Machine:
    made = Machine(7, request.param)
    put(made.create().add_stream(ORDERS), 10)
    return made


def consumer(machine: Machine, name: str = "etl") -> Consumer:
    return machine.open().stream("orders").consumer(name)


def state(machine: Machine) -> ConsumerState:
    """Return the consumer as it is: to open it would reconcile it."""
    return machine.open().view().state.streams["orders"].consumers["etl"]


def delivered(machine: Machine) -> int:
    return state(machine).next_sequence - 1


def older_copy(machine: Machine) -> Machine:
    """Return the machine as it is now, with luck of its own from here on."""
    made = machine.copy()
    made.environment().random_bytes(1)
    return made


def places(positions: dict[str, QueryPosition]) -> dict[str, int]:
    return {name: one.position.next_sequence for name, one in positions.items()}


def begin(machine: Machine, start: QueryStart, name: str = "etl") -> QueryPosition:
    """Begin as a process that ends then."""
    reader = QueryReader(machine.open(), name)
    (at,) = reader.begin({"orders": start}).values()
    reader.close()
    return at


def reconcile(machine: Machine, at: QueryPosition, policy: str, name: str | None = None) -> QueryPosition:
    reader = QueryReader(machine.open(), name)
    try:
        return reader.reconcile({"orders": at}, policy, REMEDY)["orders"]
    finally:
        reader.close()


def read_on(machine: Machine, at: QueryPosition, sequence: int) -> QueryPosition:
    """Return where a query stands that has read everything below `sequence`."""
    return onward(machine.open().stream_state("orders"), at, sequence)


def acknowledge(machine: Machine, at: QueryPosition) -> None:
    """Acknowledge as the listener does, which owns nothing."""
    QueryReader(machine.open(), "etl", own=False).acknowledge({"orders": at.position})


def lose_all(machine: Machine) -> None:
    for path, _ in machine.disk.files():
        if path.suffix == ".blk":
            machine.disk.remove(path)
    machine.open().repair()


def counting(machine: Machine, *operations: str) -> tuple[Store, list[Call]]:
    """Return the store opened by a new process, and the list of what that process asks of its files from now on."""
    files = machine.files()
    files.counted = operations
    return machine.open(files), files.calls


# --- where a query begins


def test_first_use_makes_the_consumer_where_the_query_begins(machine: Machine) -> None:
    assert begin(machine, QueryStart(4)).position.next_sequence == 4
    info = consumer(machine).info()
    assert (info["delivered"], info["config"]["ack_policy"]) == ({"stream_seq": 3}, "explicit")


def test_a_query_without_a_checkpoint_goes_on_where_its_consumer_stands(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    at = begin(machine, QueryStart(1))
    assert "resumes from consumer" not in caplog.text
    acknowledge(machine, read_on(machine, at, 8))
    assert begin(machine, QueryStart(1)).position.next_sequence == 8
    assert "stream orders: a query without a checkpoint resumes from consumer etl, at sequence 8" in caplog.text
    assert consumer(machine).info()["num_pending"] == 3


def test_it_begins_with_the_first_message_that_waits_for_its_acknowledgement(machine: Machine) -> None:
    made = machine.open().stream("orders").add_consumer({"name": "etl"})
    made.fetch(6, 0)
    made.ack([1, 2, 4])
    at = begin(machine, QueryStart(1))
    assert reconcile(machine, at, FAIL, "etl").position.next_sequence == 3
    machine.open().stream("orders").remove([3])
    assert begin(machine, QueryStart(1)).position.next_sequence == 5
    acknowledge(machine, read_on(machine, at, 6))
    info = consumer(machine).info()
    assert (info["ack_floor"], info["num_ack_pending"]) == ({"stream_seq": 5}, 1), "6 was handed out to somebody else"


def test_what_an_option_chose_stays_chosen_while_nothing_was_acknowledged(machine: Machine) -> None:
    """Spark asks again when it replays the first batch, and what `latest` means has moved."""
    assert begin(machine, QueryStart(11, LATEST)).position.next_sequence == 11
    put(machine.open().stream("orders"), 5)
    again = begin(machine, QueryStart(16, LATEST))
    assert (again.position.next_sequence, consumer(machine).info()["events"]) == (11, [])
    acknowledge(machine, read_on(machine, again, 13))
    assert begin(machine, QueryStart(16, LATEST)).position.next_sequence == 16
    (event,) = consumer(machine).info()["events"]
    assert (event["kind"], event["before"], event["after"]) == ("consumer_moved", "12", "15")
    assert LATEST in event["reason"]


def test_another_choice_moves_the_consumer_and_no_choice_does_not(machine: Machine) -> None:
    begin(machine, QueryStart(11, LATEST))
    assert begin(machine, QueryStart(1)).position.next_sequence == 11
    assert begin(machine, QueryStart(1, "startingOffsets=earliest")).position.next_sequence == 1
    assert [one["after"] for one in consumer(machine).info()["events"]] == ["0"]
    assert begin(machine, QueryStart(1, "startingTimestamp=0")).position.next_sequence == 1
    assert len(consumer(machine).info()["events"]) == 1, "it stands there"


def test_all_streams_of_a_query_take_one_round_of_fsyncs(machine: Machine) -> None:
    machine.open().add_stream({"name": "notes"}).append(to_table([Row("notes", b"x")] * 3))
    store, syncs = counting(machine, "sync")
    store.begin(["orders"])
    with store.session() as session:
        session.ensure_leadership()  # opens a term
    del syncs[:]
    reader = QueryReader(store, "etl")
    at = reader.begin({"orders": QueryStart(2), "notes": QueryStart(1)})
    assert (places(at), len(syncs)) == ({"orders": 2, "notes": 1}, len(machine.paths))
    index = store.view().index
    ends = {name: onward(store.stream_state(name), one, 4).position for name, one in at.items()}
    for _ in range(2):  # twice is the same as once
        reader.acknowledge(ends)
        assert (len(syncs), store.view().index) == (2 * len(machine.paths), index + 1)
    starts = {"orders": QueryStart(1), "notes": QueryStart(1)}
    assert places(QueryReader(machine.open(), "etl", own=False).begin(starts)) == {"orders": 4, "notes": 4}


def test_a_batch_reads_from_the_consumer_and_moves_it_nowhere(machine: Machine) -> None:
    begin(machine, QueryStart(4))
    batch = QueryReader(machine.open(), "etl", own=False)
    assert places(batch.begin({"orders": QueryStart(1)})) == {"orders": 4}
    assert places(batch.begin({"orders": QueryStart(1, "startingOffsets=earliest")})) == {"orders": 1}
    lose_all(machine)
    at = batch.begin({"orders": QueryStart(1)})
    for _ in range(2):
        assert places(QueryReader(machine.open(), "etl", own=False).reconcile(at, CONTINUE, "")) == {"orders": 11}
    assert delivered(machine) == 3
    assert [one.kind for one in state(machine).events] == ["consumer_skipped"]  # by the loss
    assert len(machine.open().events(kind="query_reconciled")) == 1


def test_streams_and_consumers_that_there_are_not_are_named(machine: Machine) -> None:
    with pytest.raises(NotFoundError, match="did you mean 'orders'"):
        QueryReader(machine.open(), "etl").begin({"order": QueryStart(1)})
    with pytest.raises(ValueError, match="name of a consumer: 'a b'"):
        QueryReader(machine.open(), "a b")
    machine.open().stream("orders").add_consumer({"name": "ETL"})
    with pytest.raises(ValueError, match="consumer 'etl' differs from consumer 'ETL' of stream 'orders' only in case"):
        QueryReader(machine.open(), "etl").begin({"orders": QueryStart(1)})


# --- what became of the streams


@pytest.mark.buckets
def test_without_news_reconciliation_is_free_of_locks_and_changes_nothing(machine: Machine) -> None:
    store, calls = counting(machine, *LOCKING, "sync", "write")
    reader = QueryReader(store, "etl")
    at = reader.begin({"orders": QueryStart(1)})
    assert reader.reconcile(at, FAIL, REMEDY) == at
    del calls[:]
    put(machine.open().stream("orders"), 5)
    for _ in range(3):
        assert reader.reconcile(at, FAIL, REMEDY) == at
    assert calls == []


def test_another_position_is_another_question_though_nothing_has_changed(machine: Machine) -> None:
    store = machine.open()
    at = {
        sequence: onward(store.stream_state("orders"), QueryReader(store).at("orders", 1), sequence)
        for sequence in (5, 11)
    }
    lose_all(machine)
    reader = QueryReader(machine.open())
    reconciled = reader.reconcile({"orders": at[11]}, CONTINUE, REMEDY)
    assert reader.reconcile(reconciled, FAIL, REMEDY) == reconciled
    with pytest.raises(DataLossError, match="sequences 5 to 10 were removed or lost before they were read"):
        reader.reconcile({"orders": at[5]}, FAIL, REMEDY)


def test_a_loss_is_told_once_however_often_it_is_asked_from_the_old_position(machine: Machine) -> None:
    lost = read_on(machine, begin(machine, QueryStart(1)), 11)
    lose_all(machine)
    put(machine.open().stream("orders"), 5)
    store = machine.open()
    reader = QueryReader(store, "etl")
    for _ in range(3):  # Spark has not taken note of the answer yet
        reconciled = reader.reconcile({"orders": lost}, CONTINUE, REMEDY)
        put(machine.open().stream("orders"), 1)
        assert reconciled["orders"].reported.ranges_head(2) == [(1, 11)]
    kinds = [one["kind"] for one in consumer(machine).info()["events"]]
    assert kinds == ["consumer_skipped", "consumer_reconciled"]
    reader.close()
    reconcile(machine, lost, CONTINUE, "etl")  # killed before Spark has taken note
    assert [one["kind"] for one in consumer(machine).info()["events"]] == kinds
    assert delivered(machine) == 10


def test_a_query_that_keeps_failing_while_its_stream_grows_is_written_down_once(machine: Machine) -> None:
    older = older_copy(machine)
    begin(older, QueryStart(1))
    put(machine.open().stream("orders"), 10)
    ahead = read_on(machine, QueryReader(machine.open()).at("orders", 1), 21)
    for count in (5, 20):
        put(older.open().stream("orders"), count)
        with pytest.raises(DataLossError, match="11 to 20, which were read, are gone"):
            reconcile(older, ahead, FAIL, "etl")
    assert len(state(older).events) == 1


def test_a_loss_that_is_declared_while_a_batch_runs_is_told_with_the_next(machine: Machine) -> None:
    planned = machine.open().stream_state("orders")
    at = reconcile(machine, QueryReader(machine.open()).at("orders", 1), FAIL)
    lose_all(machine)
    for stream in (planned, machine.open().stream_state("orders")):
        with pytest.raises(DataLossError, match="sequences 1 to 10 are lost"):
            reconcile(machine, onward(stream, at, 11), FAIL)


def test_a_head_that_is_removed_before_it_was_read_is_news_and_one_that_was_read_is_none(machine: Machine) -> None:
    at = begin(machine, QueryStart(1))
    machine.open().stream("orders").purge(end=6)
    with pytest.raises(
        DataLossError, match=rf"sequences 1 to 5 were removed or lost before they were read.*\. {REMEDY}"
    ):
        reconcile(machine, at, FAIL)
    reconciled = reconcile(machine, at, CONTINUE, "etl")
    assert (reconciled.position.next_sequence, delivered(machine)) == (6, 5)
    machine.open().stream("orders").purge(end=9)
    end = read_on(machine, reconciled, 11)
    assert reconcile(machine, end, FAIL, "etl") == end
    acknowledge(machine, end)
    kinds = [one["kind"] for one in consumer(machine).info()["events"]]
    assert kinds.count("consumer_reconciled") == 1, "it had read what was removed, and only had not said so yet"


@pytest.mark.buckets
def test_a_stream_that_is_gone_is_news_and_is_then_left_out(machine: Machine) -> None:
    reader = QueryReader(machine.open(), "etl")
    at = reader.begin({"orders": QueryStart(1)})
    machine.open().delete_stream("orders")
    with pytest.raises(DataLossError, match="stream 'orders' was deleted since it was read up to sequence 0"):
        reader.reconcile(at, FAIL, REMEDY)
    for _ in range(2):
        assert reader.reconcile(at, CONTINUE, REMEDY) == {}
    assert [one["kind"] for one in machine.open().events()] == ["consumer_failed", "consumer_reconciled"]
    put(machine.open().add_stream(ORDERS), 5)
    followed = reader.reconcile(at, CONTINUE, REMEDY)
    assert (places(followed), delivered(machine)) == ({"orders": 1}, 0)
    assert reader.reconcile(followed, FAIL, REMEDY) == followed


def test_what_waits_for_a_consumer_is_not_skipped_when_its_stream_was_rebuilt(tmp_path: Path) -> None:
    store = Store.create([tmp_path])
    stream = store.add_stream(ORDERS)
    made = stream.add_consumer({"name": "etl"})
    put(stream, 10)
    made.fetch(6, 0)
    made.ack([1, 2, 4])
    with store.session() as session:
        session.snapshot()
    for path in (tmp_path / "meta").glob("*.log"):
        path.unlink()
    adopt.execute(adopt.plan([tmp_path]))
    store = Store.open(tmp_path)
    reader = QueryReader(store, "etl")
    at = reader.begin({"orders": QueryStart(1)})
    assert places(at) == {"orders": 7}, "its own place, by which it is recognised"
    with pytest.raises(DataLossError, match="stream 'orders' was rebuilt from its blocks"):
        reader.reconcile(at, FAIL, REMEDY)
    reconciled = reader.reconcile(at, CONTINUE, REMEDY)
    assert places(reconciled) == {"orders": 3}
    reader.acknowledge({"orders": onward(store.stream_state("orders"), reconciled["orders"], 8).position})
    info = store.stream("orders").consumer("etl").info()
    assert (info["delivered"], info["num_ack_pending"]) == ({"stream_seq": 7}, 0)
    assert [one["kind"] for one in info["events"]] == ["consumer_failed", "consumer_reconciled"]


def test_a_store_that_cannot_be_written_is_judged_by_what_can_be_read(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    at = read_on(machine, QueryReader(machine.open()).at("orders", 1), 11)
    lose_all(machine)
    reader = QueryReader(machine.open(read_only=True))
    with pytest.raises(DataLossError, match="judged by what can be read: the store is not written from here"):
        reader.reconcile({"orders": at}, FAIL, REMEDY)
    reconciled = reader.reconcile({"orders": at}, CONTINUE, REMEDY)
    assert reconciled["orders"].reported.ranges_head(2) == [(1, 11)]
    assert "judged by what can be read" in caplog.text
    assert reader.reconcile(reconciled, FAIL, REMEDY) == reconciled
    with pytest.raises(ReadOnlyError):
        QueryReader(machine.open(read_only=True), "etl").begin({"orders": QueryStart(1)})


def test_the_consumer_of_a_query_with_a_checkpoint_is_made_where_that_stands(machine: Machine) -> None:
    at = read_on(machine, QueryReader(machine.open()).at("orders", 1), 7)
    assert reconcile(machine, at, FAIL, "etl") == at
    assert delivered(machine) == 6


# --- what was done


@pytest.mark.buckets
def test_an_acknowledgement_never_moves_a_consumer_back(machine: Machine) -> None:
    at = begin(machine, QueryStart(1))
    acknowledge(machine, read_on(machine, at, 9))
    acknowledge(machine, read_on(machine, at, 5))
    assert delivered(machine) == 8


@pytest.mark.parametrize("volume_count", [1, 3])
def test_killed_at_any_call_a_query_has_begun_or_said_it_for_all_its_streams_or_for_none(volume_count: int) -> None:
    machine = Machine(7, volume_count)
    store = machine.create()
    for name in ("orders", "notes"):
        store.add_stream({"name": name}).append(to_table([Row(name, b"x")] * 10))
    starts = {"orders": QueryStart(3, LATEST), "notes": QueryStart(3, LATEST)}

    def begin_and_acknowledge(machine: Machine, judge: Judge) -> FaultyFiles:
        files = machine.files(judge)
        files.counted = (*CHANGING, *LOCKING)
        store = machine.open(files)
        reader = QueryReader(store, "etl")
        try:
            at = reader.begin(starts)
            reader.acknowledge({one: onward(store.stream_state(one), at[one], 8).position for one in starts})
        except ProcessEnded:
            pass
        return files

    count = len(begin_and_acknowledge(machine.copy(), let_everything_happen).calls)
    seen = set()
    for number in range(count):
        tried = machine.copy()
        begin_and_acknowledge(tried, end_at(number)).end()
        tried.disk.lose_power()
        streams = tried.open().view().state.streams
        found = {one.next_sequence for name in starts for one in streams[name].consumers.values()}
        made = sum(len(streams[name].consumers) for name in starts)
        assert len(found) <= 1 and made in (0, 2), f"call {number}: {found}"
        seen |= found
        assert places(QueryReader(tried.open(), "etl").begin(starts)) == {"orders": 3, "notes": 3}
    assert seen == {3, 8}
    REPORTS.append(f"a query that begins and acknowledges on {volume_count} volumes, killed at {count} calls")


def test_what_was_said_of_another_lifetime_of_the_stream_is_passed_over(machine: Machine) -> None:
    at = begin(machine, QueryStart(1))
    older = older_copy(machine)
    put(machine.open().stream("orders"), 10)
    late = read_on(machine, at, 21)
    put(older.open().stream("orders"), 30)
    acknowledge(older, late)
    assert delivered(older) == 0
    of_another = QueryPosition(Position(b"another-lifetime", 5))
    acknowledge(machine, of_another)
    assert delivered(machine) == 0
    machine.open().stream("orders").consumer("etl").delete()
    acknowledge(machine, late)  # by the listener of a query whose consumer was deleted


def test_a_consumer_whose_stream_was_rebuilt_follows_its_query(tmp_path: Path) -> None:
    store = Store.create([tmp_path])
    put(store.add_stream(ORDERS), 10)
    reader = QueryReader(store, "etl")
    at = reader.begin({"orders": QueryStart(1)})
    reader.acknowledge({"orders": onward(store.stream_state("orders"), at["orders"], 4).position})
    reader.close()
    with store.session() as session:
        session.snapshot()
    for path in (tmp_path / "meta").glob("*.log"):
        path.unlink()
    adopt.execute(adopt.plan([tmp_path]))
    store = Store.open(tmp_path)
    begun_since = QueryReader(store).at("orders", 1)
    listener = QueryReader(store, "etl", own=False)
    listener.acknowledge({"orders": onward(store.stream_state("orders"), begun_since, 6).position})
    found = store.view().state.streams["orders"].consumers["etl"]
    assert (found.next_sequence, found.incarnation) == (6, store.stream("orders").incarnation)
    assert [one.kind for one in found.events] == ["consumer_reconciled"]


def test_a_paused_consumer_and_its_filters_are_seen(machine: Machine) -> None:
    machine.open().stream("orders").add_consumer({"name": "etl", "filter_subjects": "orders.eu,orders.us"})
    reader = QueryReader(machine.open(), "etl")
    assert (reader.filters("orders"), reader.is_paused("orders")) == (("orders.eu", "orders.us"), False)
    consumer(machine).pause(60)
    assert reader.is_paused("orders")
    machine.clock.now += 61_000_000_000
    assert not reader.is_paused("orders")
    years_ns = 4 * 365 * 86_400 * 1_000_000_000
    machine.clock.now += years_ns
    consumer(machine).pause(60)
    machine.clock.now -= years_ns
    assert reader.is_paused("orders")
    machine.clock.now += 61_000_000_000
    assert not reader.is_paused("orders")
    assert (reader.filters("notes"), QueryReader(machine.open()).filters("orders")) == ((), ())
