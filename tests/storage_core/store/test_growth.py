"""What a command costs does not depend on how much the store has: streams, consumers, messages that wait."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from harness.work import ONE_THREAD, Work, work_of

from storage_core import Store
from storage_core.store.writing.appends import WriterBatch

FIRST, LAST = range(128, 384), range(900, 1_200)  # streams or consumers, in which snapshots are written


def check_no_growth(first: Work, last: Work) -> None:
    assert last.function_calls <= 1.2 * first.function_calls
    assert last.memory_size <= 1.5 * first.memory_size


def add_stream(store: Store, number: int) -> None:
    store.add_stream({"name": f"S{number}", "subjects": [f"s{number}.>"]})


def add_consumer(store: Store, number: int) -> None:
    store.stream("ALL").add_consumer({"name": f"c{number}"})


@pytest.mark.parametrize("add", [add_stream, add_consumer])
def test_the_last_of_many_streams_or_consumers_costs_what_the_first_ones_did(
    add: Callable[[Store, int], None], tmp_path: Path
) -> None:
    store = Store.create(tmp_path / "volume", env=ONE_THREAD)
    store.add_stream({"name": "ALL"})
    measured = []
    for before, numbers in ((range(FIRST.start), FIRST), (range(FIRST.stop, LAST.start), LAST)):
        for number in before:
            add(store, number)
        measured.append(work_of(lambda number: add(store, number), numbers))
    check_no_growth(*measured)


def test_an_acknowledgement_among_500000_messages_that_wait_costs_what_it_touches(tmp_path: Path) -> None:
    measured = []
    for waiting in (10_000, 500_000):
        store = Store.create(tmp_path / str(waiting), env=ONE_THREAD)
        stream = store.add_stream({"name": "S"})
        consumer = stream.add_consumer({"name": "c", "ack_wait": "1h", "max_ack_pending": -1})
        for _ in range(2):
            stream.append(pa.table({"data": pa.nulls(waiting, pa.binary())}))
            assert consumer.fetch(waiting).num_rows == waiting
        consumer.ack(list(range(2, 2 * waiting + 1, 2)))  # each of those that are left is a run of its own
        assert consumer.info()["num_ack_pending"] == waiting
        measured.append(work_of(lambda number, consumer=consumer: consumer.ack([number]), range(8_001, 8_401, 2)))
        assert consumer.info()["num_ack_pending"] == waiting - 200
    check_no_growth(*measured)


def test_one_more_removal_and_a_fetch_among_200000_scattered_removals_cost_what_they_touch(tmp_path: Path) -> None:
    removals, fetches = [], []
    for count in (20_000, 200_000):
        store = Store.create(tmp_path / str(count), env=ONE_THREAD)
        stream = store.add_stream({"name": "S"})
        for _ in range(0, 2 * count, 20_000):  # blocks of one size: what is touched has to be read
            stream.append(pa.table({"data": pa.nulls(20_000, pa.binary())}))
        consumer = stream.add_consumer({"name": "c", "ack_wait": "1h", "max_ack_pending": -1})
        assert stream.remove(range(2, 2 * count + 1, 2)) == count
        consumer.fetch(1)  # one message that waits lies before all that was removed
        removals.append(work_of(lambda number, stream=stream: stream.remove([number]), range(10_001, 10_081, 2)))
        fetches.append(work_of(lambda _, consumer=consumer: consumer.fetch(5), range(20)))
        assert stream.state().message_count == count - 40
    check_no_growth(*removals)
    check_no_growth(*fetches)


def test_an_append_in_turns_with_another_process_costs_what_it_did_many_turns_ago(tmp_path: Path) -> None:
    """Each finds entries of the other: a new term, a new run of the history, a batch of a writer and a msg_id."""
    with Store.create(tmp_path / "volume", env=ONE_THREAD, snapshot_every=64) as store:
        store.add_stream({"name": "S"})
    streams = [Store.open(tmp_path / "volume", env=ONE_THREAD).stream("S") for _ in range(2)]

    def append(number: int) -> None:
        row = pa.table({"data": [b"x"], "msg_id": [f"{number}"]})
        streams[number % 2].append(row, WriterBatch(f"writer {number % 2}", f"batch {number}"))

    measured = []
    for before, numbers in ((range(64), range(64, 128)), (range(128, 448), range(448, 512))):
        for number in before:
            append(number)
        measured.append(work_of(append, numbers))
    check_no_growth(*measured)
