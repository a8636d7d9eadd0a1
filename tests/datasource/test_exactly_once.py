"""Exactly once, from stream to stream (P8): whatever happens to the driver, its tasks, its commits and its checkpoint.

A query copies numbered messages. At the end the other stream has each of them once, in their order, and the query's
consumer waits for nothing.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness import cases
from harness.copying import Copying, dataset

from storage_core import Store

pytestmark = pytest.mark.spark


@pytest.fixture
def settings(spark_settings: dict[str, str]) -> dict[str, str]:
    return {**spark_settings, "spark.sql.streaming.minBatchesToRetain": "20"}


def copying(
    place: Path, settings: dict[str, str], count: int, batch_size: int, seed: int, replicas: int = 1, **more: Any
) -> Copying:
    source = Store.create(place / "source")
    source.add_stream({"name": "IN", "subjects": ["in.>"]})
    dataset(source, "IN", count, 7)
    sink = Store.create([place / f"sink-{number}" for number in range(replicas)])
    sink.add_stream({"name": "OUT", "subjects": ["in.>"]})
    return Copying(source, sink, place, settings, batch_size, seed, **more)


def run(copy: Copying, count: int, kills: int) -> None:
    """Kill the driver at moments spread over the whole of the work, then let it finish, and look at what it made."""
    for number in range(kills):
        copy.run_until_killed(count * number // (kills + 1))
        if copy.dice.random() < 0.5:
            copy.forget_commits()
        print(f"kill {number + 1} of {kills}: {copy.counts()}", flush=True)
    copy.run_to_the_end()
    check(copy, count)


def check(copy: Copying, count: int) -> None:
    data = copy.sink.stream("OUT").read(columns=["data"]).read_all()["data"]
    assert len(data) == count, copy.counts()
    expected = pa.array([str(number).encode() for number in range(count)], pa.binary())
    assert data.combine_chunks().equals(expected), "the order is another one"
    cases.REPORTS.append(f"exactly once, {count} messages, seed {copy.seed}: {copy.counts()}")
    if copy.consumer is None:
        return
    info = copy.source.stream("IN").consumer(copy.consumer).info()
    assert (info["num_pending"], info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (0, 0, count)


def test_each_message_is_copied_once_while_everything_fails_around_it(tmp_path: Path, settings: dict[str, str]) -> None:
    copy = copying(tmp_path, settings, 20_000, 5_000, 20261121)
    run(copy, 20_000, 2)
    assert sum(count for what, count in copy.done.items() if what.startswith("killed")) == 2


@pytest.mark.soak
def test_each_message_is_copied_once_through_many_kills(tmp_path: Path, settings: dict[str, str]) -> None:
    copy = copying(tmp_path, settings, 500_000, 10_000, 4711, replicas=3)
    run(copy, 500_000, 20)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_two_drivers_of_one_query_store_each_message_once(tmp_path: Path, settings: dict[str, str], seed: int) -> None:
    copy = copying(tmp_path, settings, 50_000, 2_000, seed, consumer=None, commit_trouble=0.02)
    copy.run_two_at_once(copy.dice.randrange(20_000))
    copy.run_to_the_end()
    check(copy, 50_000)
