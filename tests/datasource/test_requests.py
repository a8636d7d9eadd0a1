"""What a micro-batch costs: requests on volumes in object stores, calls of the operating system on disks."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from harness.objects.counting import Counting
from harness.system_calls import counting_calls

from datasource import stream_source
from datasource.settings import StreamReadSettings
from datasource.spark_versions import ReadAllAvailable
from datasource.stream_source import StreamSource
from storage_core import Store

LIMIT = ReadAllAvailable()
MESSAGES = pa.table({"subject": ["orders.new"] * 10, "data": ["x"] * 10})
STARTING = {"startingOffsets": "earliest"}
VOLUMES = [f"s3://bucket{number}/shop" for number in range(3)]


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    made = Counting()
    monkeypatch.setattr(stream_source, "open_store_of", lambda *given: Store.open(VOLUMES, env=made.process()))
    return made


@pytest.fixture
def writer(counting: Counting) -> Store:
    """Another process, which appends."""
    store = Store.create(VOLUMES, env=counting.process())
    for name in ("ORDERS", "NOTES"):
        store.add_stream({"name": name, "subjects": [f"{name.lower()}.>"]})
        store.stream(name).append(MESSAGES.set_column(0, "subject", pa.array([f"{name.lower()}.new"] * 10)))
    return store


def begun(options: dict[str, str]) -> StreamSource:
    """Return a query that is asked every ten seconds."""
    settings = StreamReadSettings.parse({"path": ",".join(VOLUMES), "stream": "*", **STARTING, **options})
    return StreamSource(settings, clock=count(0, 10).__next__)


@pytest.fixture
def source(writer: Store) -> Iterator[StreamSource]:
    made = begun({})
    yield made
    made.close()


def test_micro_batch_looks_once(counting: Counting, writer: Store, source: StreamSource) -> None:
    start = source.initial()
    end = source.latest(start, LIMIT)
    source.partitions(start, end)
    for _ in range(2):
        start = end
        writer.stream("ORDERS").append(MESSAGES)
        # The listings; the new records, and a look at what they go on from; whether anything came since.
        with counting.rounds(3, 6, 1):
            end = source.latest(start, LIMIT)
            assert sum(len(partition.slices) for partition in source.partitions(start, end)) == 1
    start = end
    assert source.latest(start, LIMIT) == start
    with counting.asking() as counts:
        assert source.latest(start, LIMIT) == start
    assert counts == {"list": 1}


def test_micro_batch_of_a_consumer_asks_no_more_than_to_look_and_to_write(counting: Counting, writer: Store) -> None:
    source = begun({"consumer": "etl"})
    start = source.initial()
    end = source.latest(start, LIMIT)
    source.partitions(start, end)
    start = end
    writer.stream("ORDERS").append(MESSAGES)
    # The same; and the acknowledgement, by a process that did not lead last: a vote, then the entry.
    with counting.asking() as counts:
        end = source.latest(start, LIMIT)
        assert source.partitions(start, end)
    assert counts == {"list": 3 + 1, "get": 3, "head": 3 + 2 * 3, "create": 2 * 3}
    consumer = writer.stream("ORDERS").consumer("etl")
    assert consumer.info()["ack_floor"]["stream_seq"] == 10
    with counting.asking() as counts:
        assert source.latest(end, LIMIT) == end
    assert counts["create"] == 3, "it led last"
    with counting.asking() as counts:
        assert source.latest(end, LIMIT) == end
    assert counts == {"list": 1}
    source.close()


@pytest.mark.parametrize(("consumer", "count_max"), [({}, 70), ({"consumer": "etl"}, 124)])
def test_system_calls_of_a_micro_batch_on_disks(tmp_path: Path, consumer: dict[str, str], count_max: int) -> None:
    writer = Store.create([tmp_path / f"v{number}" for number in range(3)])
    stream = writer.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    stream.append(MESSAGES)
    source = StreamSource(
        StreamReadSettings.parse({"path": ",".join(writer.paths), "stream": "*", **STARTING, **consumer})
    )
    start = source.initial()
    end = source.latest(start, LIMIT)
    source.partitions(start, end)
    stream.append(MESSAGES)
    with counting_calls() as counts:
        following = source.latest(end, LIMIT)
        assert source.partitions(end, following)
    assert counts.total() <= count_max, counts  # with one listing of each volume's reports of damage, once a second
    source.close()
