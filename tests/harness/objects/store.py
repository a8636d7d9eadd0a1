"""Object stores in memory that behave as badly as object stores may.

    late      the caller gets no answer, and the call is carried out later, or never: also after the caller has ended
    mute      it is carried out, and the answer is lost
    twice     a creation is carried out, and once more on the way: the caller hears that the name is taken
    refused   a creation is refused as if the name were taken, and it is not (409)
    away      nothing is carried out for a while
    lost      everything is gone; older: it is as it was some time ago

What was answered is durable, and seen by whoever asks afterwards.
"""

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from random import Random
from typing import Any, NoReturn

from harness.objects.scheduler import Scheduler

from storage_core.os_errors import UnreachableError


def tag(data: bytes) -> str:
    """Return what distinguishes the content of an object from others."""
    return md5(data).hexdigest()


@dataclass
class Odds:
    """How likely each is, of one call."""

    late: float = 0.0
    mute: float = 0.0
    twice: float = 0.0
    refused: float = 0.0
    failed: float = 0.0  # without having been carried out
    sleep: float = 0.0  # the caller sleeps for long before or after it
    killed: float = 0.0


@dataclass
class Bucket:
    name: str
    objects: dict[str, bytes] = field(default_factory=dict)
    is_away: bool = False


class Service:
    """All buckets, and what is on its way to them."""

    def __init__(self, scheduler: Scheduler, random: Random, odds: Odds, delay_max: int = 400) -> None:
        self.scheduler, self.random, self.odds, self.delay_max = scheduler, random, odds, delay_max
        self.buckets: dict[str, Bucket] = {}
        self.late: list[tuple[int, Bucket, Callable[[], Any]]] = []
        self.call_counts: dict[str, int] = {}
        self.trace: Callable[[str], None] | None = None
        self.judge: Callable[[str, Bucket, str], None] | None = None  # of directed tests: may raise
        scheduler.before_step = self.carry_out_late

    def carry_out_late(self) -> None:
        if not self.late:
            return
        due = [one for one in self.late if one[0] <= self.scheduler.step]
        for one in due:
            self.late.remove(one)
            _, bucket, call = one
            if not bucket.is_away:
                try:
                    call()
                except OSError:
                    continue

    def connect(self, uri: str) -> "Client":
        return Client(self, self.buckets.setdefault(uri, Bucket(uri)))

    def note(self, text: str) -> None:
        if self.trace is not None:
            task = self.scheduler.current
            self.trace(f"{self.scheduler.step:5d} {task.name if task else '-'}: {text}")


class Parts:
    """An object that is put in parts: it is there when it is finished."""

    def __init__(self, client: "Client", name: str) -> None:
        self._client, self._name, self._data = client, name, bytearray()

    def write(self, data: bytes | memoryview) -> None:
        self._data += data

    def finish(self) -> None:
        self._client.put(self._name, bytes(self._data))


class Client:
    """One bucket, as one process sees it."""

    def __init__(self, service: Service, bucket: Bucket) -> None:
        self._service, self._bucket = service, bucket

    @property
    def uri(self) -> str:
        return self._bucket.name

    # --- what is done

    def create(self, name: str, data: bytes) -> None:
        def act() -> None:
            content = bytes(bytearray(data))  # one of its own, by which it is known again: threads may race
            if self._bucket.objects.setdefault(name, content) is not content:
                raise FileExistsError(errno.EEXIST, "there may be such an object", f"{self.uri}/{name}")

        self._call("create", name, act)

    def put(self, name: str, data: bytes | memoryview) -> None:
        self._call("put", name, lambda: self._bucket.objects.__setitem__(name, bytes(data)))

    def begin_put(self, name: str) -> "Parts":
        return Parts(self, name)

    def delete(self, name: str) -> None:
        self._call("delete", name, lambda: self._bucket.objects.pop(name, None))

    def get(self, name: str, size: int) -> tuple[bytes, int, str]:
        def act() -> tuple[bytes, int, str]:
            data = self._there(name)
            return data[:size], len(data), tag(data)

        return self._call("get", name, act)  # type: ignore[no-any-return]

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        return self._call(  # type: ignore[no-any-return]
            "get", name, lambda: [memoryview(self._there(name))[start:end] for start, end in ranges]
        )

    def size(self, name: str) -> int:
        return self._call("head", name, lambda: len(self._there(name)))  # type: ignore[no-any-return]

    def names(self, prefix: str, count_max: int | None = None) -> Iterator[tuple[str, int, str]]:
        def act() -> list[tuple[str, int, str]]:
            listed: list[tuple[str, int, str]] = []
            for half, is_last in zip(halves, (False, True), strict=True):  # a listing is not of one moment
                objects = list(self._bucket.objects.items())
                below = sorted((name, data) for name, data in objects if name.startswith(prefix))
                listed += [(name, len(data), tag(data)) for name, data in below if (name >= middle) == half]
                if not is_last:
                    self._pause()
                    if service.scheduler.current is None and service.judge is not None:
                        service.judge("listing", self._bucket, prefix)
            return sorted(listed)[:count_max]

        service = self._service
        below = sorted(name for name in list(self._bucket.objects) if name.startswith(prefix)) or [""]
        if service.scheduler.current is None:  # a directed test
            middle, halves = below[-1], [False, True]
        else:
            middle, halves = service.random.choice(below), service.random.sample((False, True), 2)

        yield from self._call("list", prefix, act)

    def children(self, prefix: str) -> list[str]:
        def act() -> list[str]:
            below = (name[len(prefix) :] for name in list(self._bucket.objects) if name.startswith(prefix))
            return sorted({name.partition("/")[0] for name in below})

        return self._call("list", prefix, act)  # type: ignore[no-any-return]

    def _there(self, name: str) -> bytes:
        if name not in self._bucket.objects:
            raise FileNotFoundError(errno.ENOENT, "no such object", f"{self.uri}/{name}")
        return self._bucket.objects[name]

    # --- how

    def _call(self, verb: str, name: str, act: Callable[[], Any]) -> Any:
        service, random, odds = self._service, self._service.random, self._service.odds
        service.call_counts[verb] = service.call_counts.get(verb, 0) + 1
        changes = verb in ("create", "put", "delete")
        self._pause()
        if service.scheduler.current is None:
            if service.judge is not None:
                service.judge(verb, self._bucket, name)
            elif self._bucket.is_away:
                self._give_up(verb, name)
            return act()
        dice, fate = random.random(), ""
        for what in ("late", "mute", "twice", "refused", "failed") if changes else ("failed",):
            chance = getattr(odds, what)
            if dice < chance and (verb == "create" or what not in ("twice", "refused")):
                fate = what
                break
            dice -= chance
        service.note(f"{verb} {self._bucket.name}/{name} {fate}{' away' if self._bucket.is_away else ''}")
        if self._bucket.is_away or fate == "failed":
            self._give_up(verb, name)
        if fate == "late":
            if random.random() < 0.8:
                due = service.scheduler.step + random.randint(1, random.choice((10, 60, service.delay_max)))
                service.late.append((due, self._bucket, act))
            self._give_up(verb, name)
        if fate == "refused":
            raise FileExistsError(errno.EEXIST, "there may be such an object", f"{self.uri}/{name}")
        result = act()
        self._pause()
        if fate == "mute":
            self._give_up(verb, name)
        if fate == "twice":
            raise FileExistsError(errno.EEXIST, "there may be such an object", f"{self.uri}/{name}")
        return result

    def _pause(self) -> None:
        service = self._service
        task = service.scheduler.current
        if task is not None and service.random.random() < service.odds.killed:
            task.is_killed = True
        is_long = service.random.random() < service.odds.sleep
        service.scheduler.pause(service.random.randint(20, service.delay_max) if is_long else 0)

    def _give_up(self, verb: str, name: str) -> NoReturn:
        raise UnreachableError(errno.EHOSTUNREACH, f"{verb}: no answer", f"{self.uri}/{name}")
