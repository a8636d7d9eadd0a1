"""How many requests a store asks of its client: objects in memory."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

from harness.objects.scheduler import Scheduler
from harness.objects.store import Odds, Service

from storage_core.deadlines import DeadlineFiles
from storage_core.files import OS_FILES
from storage_core.objects.files import ObjectFiles
from storage_core.objects.reached import AnyFiles
from storage_core.store.environment import REAL, Environment

VERBS = {"create": "create", "put": "put", "get": "get", "get_ranges": "get", "size": "head", "children": "list",
         "names": "list", "delete": "delete"}  # fmt: skip


class Counting:
    """Clients of a service in memory, and what they are asked."""

    def __init__(self) -> None:
        random = Random(1)
        self._service = Service(Scheduler(random, 1), random, Odds())
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.sizes: list[int] = []  # of what was asked for, in bytes
        self._asked = threading.Condition(self._lock)
        self._wait: Callable[[], None] = lambda: None
        self._asked_of_held, self._was_waited_for = 0, False
        self._held_back = ("", threading.Event())  # a bucket that gives no answer until then

    def connect(self, uri: str) -> Any:
        client = self._service.connect(uri)
        for method, verb in VERBS.items():
            setattr(client, method, self._counted(getattr(client, method), verb, uri))
        begin_put = client.begin_put

        def begin(name: str) -> Any:
            upload = begin_put(name)
            upload.write = self._counted(upload.write, "part", uri)
            return upload

        client.begin_put = begin
        return client

    def _counted(self, call: Any, verb: str, uri: str) -> Any:
        def counted(*arguments: Any) -> Any:
            with self._asked:
                self.counts[verb] += 1
                if isinstance(arguments[-1], list):
                    self.sizes += [end - start for start, end in arguments[-1]]
                self._asked.notify_all()
            self._wait()
            bucket, released = self._held_back
            if uri.startswith(bucket or "none"):
                self._asked_of_held += 1
                self._was_waited_for |= not released.wait(60.0)
            result = call(*arguments)
            if isinstance(result, tuple):
                self.sizes.append(len(result[0]))
            return result

        return counted

    def process(self) -> Environment:
        return replace(REAL, files=DeadlineFiles(AnyFiles(OS_FILES, ObjectFiles(self.connect))))

    @contextmanager
    def holding(self) -> Iterator[Callable[[int], bool]]:
        """Answer nothing meanwhile; yield what waits until so many ranges were asked for."""
        released = threading.Event()
        self._wait = lambda: released.wait(10.0) and None
        self.sizes.clear()

        def asked(count: int) -> bool:
            with self._asked:
                return self._asked.wait_for(lambda: len(self.sizes) >= count, 10.0)

        try:
            yield asked
        finally:
            self._wait = lambda: None
            released.set()

    @contextmanager
    def holding_back(self, bucket: str) -> Iterator[Callable[[], int]]:
        """Answer nothing that this bucket is asked meanwhile, which nobody may wait for; yield what counts that."""
        released = threading.Event()
        self._asked_of_held, self._was_waited_for, self._held_back = 0, False, (bucket, released)
        try:
            yield lambda: self._asked_of_held
        finally:
            self._held_back = ("", released)
            released.set()
        assert not self._was_waited_for

    def objects(self, bucket: str) -> dict[str, bytes]:
        return self._service.buckets[bucket].objects

    def record_count(self, bucket: str) -> int:
        return sum(name.endswith(".rec") for name in self._service.buckets[bucket].objects)

    @contextmanager
    def rounds(self, *sizes: int) -> Iterator[None]:
        """Answer none of a round's requests before so many were made, and allow no more than these rounds."""
        barriers = [threading.Barrier(size) for size in sizes]
        order = deque(barrier for barrier, size in zip(barriers, sizes, strict=True) for _ in range(size))

        def wait() -> None:
            with self._lock:
                assert order, f"more than {sizes} requests"
                barrier = order.popleft()
            barrier.wait(10.0)

        self._wait = wait
        try:
            yield
        finally:
            self._wait = lambda: None
        assert not order, f"fewer than {sizes} requests"

    @contextmanager
    def asking(self) -> Iterator[Counter[str]]:
        with self._lock:
            self.counts.clear()
            self.sizes.clear()
        counted: Counter[str] = Counter()
        yield counted
        with self._lock:
            counted.update(self.counts)
