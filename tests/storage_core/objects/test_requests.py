"""How many requests things cost, counted where the store asks its client: objects in memory."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

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


def made(counting: Counting, volume_count: int) -> list[str]:
    volumes = [f"s3://bucket{number}/shop" for number in range(volume_count)]
    store = Store.create(volumes, env=counting.process())
    store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    for number in range(40):
        store.stream("ORDERS").append([{"subject": "orders.new", "data": b"%d" % number}])
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
    with counting.asking() as counts:
        store.plan(ReadRequest(("ORDERS",)))
    assert sum(counts.values()) <= 3 * volume_count, "with 40 blocks or with 10,000"
    with counting.asking() as counts:
        store.state()
    assert counts == {"list": volume_count, "get": volume_count}
    store.stream("ORDERS").append([{"subject": "orders.new", "data": b"x"}])
    with counting.asking() as counts:
        store.stream("ORDERS").append([{"subject": "orders.new", "data": b"x"}])
    assert (counts["create"], counts["put"]) == (volume_count, volume_count), "a record and a block"
