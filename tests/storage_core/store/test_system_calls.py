"""How many calls of the operating system things cost on local disks."""

from pathlib import Path

import pyarrow as pa
import pytest
from harness.system_calls import counting_calls

from storage_core.store.store import Store

MESSAGES = pa.table({"subject": ["orders.new"] * 100, "data": [b"x" * 100] * 100})


def made(tmp_path: Path, volume_count: int) -> Store:
    """Return a store in which a few things have been done before."""
    store = Store.create([tmp_path / f"v{number}" for number in range(volume_count)])
    stream = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    for _ in range(4):
        stream.append(MESSAGES)
    return store


@pytest.mark.parametrize(("volume_count", "count_max"), [(1, 21), (3, 63)])
def test_append(tmp_path: Path, volume_count: int, count_max: int) -> None:
    count_max += volume_count  # each volume's reports of damage are listed once a second
    stream = made(tmp_path, volume_count).stream("ORDERS")
    with counting_calls() as counts:
        stream.append(MESSAGES)
    assert counts.total() <= count_max, counts
    assert (counts["flock"], counts["fdatasync"], counts["fsync"]) == (volume_count, 2 * volume_count, volume_count)


def test_fetch_and_acknowledgement(tmp_path: Path) -> None:
    consumer = made(tmp_path, 3).stream("ORDERS").add_consumer({"name": "etl"})
    for _ in range(2):
        with counting_calls() as counts:
            messages = consumer.fetch(10)
        assert counts.total() <= 45, counts
        with counting_calls() as counts:
            assert consumer.ack(messages["sequence"]) == 10
        assert counts.total() <= 36, counts


def test_read_looks_once(tmp_path: Path) -> None:
    stream = made(tmp_path, 3).stream("ORDERS")
    with counting_calls() as counts:
        assert stream.get(7).sequence == 7
    assert counts.total() <= 45, counts


def test_opening(tmp_path: Path) -> None:
    paths = made(tmp_path, 5).paths
    with counting_calls() as counts:
        Store.open(paths)
    assert counts.total() <= 150, counts


def test_properties_look_at_no_volume(tmp_path: Path) -> None:
    store = made(tmp_path, 3)
    stream = store.stream("ORDERS")
    consumer = stream.add_consumer({"name": "etl"})
    other = Store.open(store.paths).stream("ORDERS")
    other.append(MESSAGES)
    with counting_calls() as counts:
        assert (stream.first_sequence, stream.last_sequence) == (1, 400)
        assert (stream.config.name, consumer.config.name) == ("ORDERS", "etl")
    assert counts.total() == 0, counts
    assert stream.info()["state"]["last_seq"] == stream.last_sequence == 500
    stream.append(MESSAGES)
    with counting_calls() as counts:
        assert stream.last_sequence == 600
    assert counts.total() == 0, counts
