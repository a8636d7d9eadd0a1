"""How many requests things cost, counted where the store asks its client: objects in memory."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from harness.objects.scheduler import Scheduler
from harness.objects.store import Odds, Service

from storage_core.deadlines import DeadlineFiles
from storage_core.files import OS_FILES
from storage_core.objects.files import ObjectFiles
from storage_core.objects.reached import AnyFiles
from storage_core.store.environment import REAL, Environment
from storage_core.store.reading.plan import ReadRequest
from storage_core.store.store import Store
from storage_core.store.writing import incoming
from storage_core.store.writing.staging import Stager

VERBS = {"create": "create", "put": "put", "get": "get", "get_ranges": "get", "size": "head", "children": "list",
         "names": "list", "delete": "delete"}  # fmt: skip


class Counting:
    """Clients of a service in memory, and what they are asked."""

    def __init__(self) -> None:
        random = Random(1)
        self._service = Service(Scheduler(random, 1), random, Odds())
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def connect(self, uri: str) -> Any:
        client = self._service.connect(uri)
        for method, verb in VERBS.items():
            setattr(client, method, self._counted(getattr(client, method), verb))
        return client

    def _counted(self, call: Any, verb: str) -> Any:
        def counted(*arguments: Any) -> Any:
            with self._lock:
                self.counts[verb] += 1
            return call(*arguments)

        return counted

    def process(self) -> Environment:
        return replace(REAL, files=DeadlineFiles(AnyFiles(OS_FILES, ObjectFiles(self.connect))))

    def record_count(self, bucket: str) -> int:
        return sum(name.endswith(".rec") for name in self._service.buckets[bucket].objects)

    @contextmanager
    def asking(self) -> Iterator[Counter[str]]:
        with self._lock:
            self.counts.clear()
        counted: Counter[str] = Counter()
        yield counted
        with self._lock:
            counted.update(self.counts)


@pytest.fixture
def counting() -> Counting:
    return Counting()


MESSAGES = pa.table({"subject": ["orders.new"], "data": ["x"]})


def made(counting: Counting, volume_count: int) -> list[str]:
    volumes = [f"s3://bucket{number}/shop" for number in range(volume_count)]
    store = Store.create(volumes, env=counting.process())
    store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    for _ in range(40):
        store.stream("ORDERS").append(MESSAGES)
    return volumes


@pytest.mark.parametrize("volume_count", [1, 3])
def test_requests_of_what_is_done_often(counting: Counting, volume_count: int) -> None:
    volumes = made(counting, volume_count)
    record_count = counting.record_count("s3://bucket0")
    assert record_count > 40
    with counting.asking() as counts:
        store = Store.open(volumes, env=counting.process())
    assert set(counts) == {"get", "list", "head"}, "it writes nothing"
    # Each record once, and little else; of several volumes also how the last blocks are.
    assert counts["get"] <= volume_count * (record_count + 5)
    assert counts["list"] <= (1 if volume_count == 1 else 2 * volume_count)
    store.state()
    with counting.asking() as counts:
        store.plan(ReadRequest(("ORDERS",)))
    assert counts == {"list": volume_count}, "with 40 blocks or with 10,000"
    with counting.asking() as counts:
        store.state()
    assert counts == {"list": volume_count}
    with counting.asking() as counts:
        store.state_in_turn()
    assert counts == {"list": 1}


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
    for _ in range(3):
        sequences = other.stream("ORDERS").append(MESSAGES)
        seen = waiting.state_in_turn()
        assert waiting.stream_state("ORDERS", seen).next_sequence == sequences.stop
        assert waiting.state_in_turn() is seen
