"""One live query a consumer where there are no locks: real processes, and an observer whose clock the test moves."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from storage_core.errors import FencedError, StoreBusyError
from storage_core.metadata.reconcile import FAIL
from storage_core.store.consumers import leases
from storage_core.store.consumers.leases import EXPIRES_S, Leases
from storage_core.store.consumers.query import QueryReader, QueryStart, onward
from storage_core.store.environment import Environment, reaching
from storage_core.store.store import Store

ROOT = Path(__file__).resolve().parents[4]
STARTS = {"orders": QueryStart(1)}

# Reads as consumer `etl`, a message at each line that it gets, and says how far it is.
QUERY = """
import sys
from storage_core.store.consumers import leases
from storage_core.store.consumers.query import QueryReader, QueryStart, onward
from storage_core.store.store import Store
leases.RENEW_S = 0.1
store = Store.open(sys.argv[1].split(","))
reader = QueryReader(store, "etl")
at = reader.begin({"orders": QueryStart(1)})["orders"]
print(at.position.next_sequence, flush=True)
for line in sys.stdin:
    at = onward(store.stream_state("orders"), at, at.position.next_sequence + 1)
    reader.acknowledge({"orders": at.position})
    print(at.position.next_sequence, flush=True)
"""


class Clock:
    """Goes on while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.while_asleep: Callable[[float], None] = lambda now_s: None

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.while_asleep(self.now_s)


@pytest.fixture
def store(buckets: list[str], s3_options: dict[str, str]) -> Store:
    made = Store.create(buckets, storage_options=s3_options)
    made.add_stream({"name": "orders", "subjects": ["orders.>"]})
    made.stream("orders").append([{"subject": "orders.new", "data": b"%d" % number} for number in range(10)])
    return made


def host(options: dict[str, str], clock: Clock, name: str = "another boot") -> Environment:
    return replace(reaching(options), monotonic=lambda: clock.now_s, sleep=clock.sleep, lock_domain=lambda: name)


def never(seconds: float) -> NoReturn:
    raise AssertionError(f"it waits for {seconds} s")


def generation(store: Store) -> int:
    return store.view().state.streams["orders"].consumers["etl"].generation


def lease_names(s3_root: Path, bucket: str) -> list[str]:
    return sorted(path.name for path in (s3_root / bucket.split("/")[2] / "shop" / "owners").glob("*"))


def read_one(store: Store, reader: QueryReader, sequence: int) -> None:
    at = reader.reconcile({"orders": reader.at("orders", sequence)}, FAIL, "")["orders"]
    reader.acknowledge({"orders": onward(store.stream_state("orders"), at, sequence + 1).position})


@pytest.fixture
def query(store: Store, buckets: list[str], s3_options: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    settings = {key.upper(): value for key, value in s3_options.items()}
    command = [sys.executable, "-c", QUERY, ",".join(buckets)]
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_second_query_is_refused_until_the_first_is_killed(
    store: Store, buckets: list[str], s3_options: dict[str, str], s3_root: Path,
    query: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert query.stdin is not None and query.stdout is not None
    assert query.stdout.readline() == "1\n"
    monkeypatch.setattr(leases, "LOOK_S", 0.05)
    second = QueryReader(store, "etl")
    with pytest.raises(StoreBusyError, match=f"process {query.pid} on"):
        second.begin(STARTS)
    query.stdin.write("\n")
    query.stdin.flush()
    assert query.stdout.readline() == "2\n"
    query.send_signal(signal.SIGKILL)
    query.wait()

    at_once = Store.open(buckets, env=replace(reaching(s3_options), sleep=never))
    third = QueryReader(at_once, "etl")
    assert third.begin(STARTS)["orders"].position.next_sequence == 2
    assert (generation(store), store.view().state.events[-1].kind) == (1, "consumer_taken_over")
    third.close()
    fourth = QueryReader(at_once, "etl")
    assert fourth.begin(STARTS)["orders"].position.next_sequence == 2
    assert (generation(store), store.view().state.events[-1].kind) == (2, "consumer_taken_over"), (
        "what was closed is free"
    )
    fourth.close()
    assert [len(lease_names(s3_root, bucket)) for bucket in buckets] == [1, 1, 1], "no number is used again"
    store.maintain()
    assert len(lease_names(s3_root, buckets[0])) == 1
    store.stream("orders").consumer("etl").delete()
    store.maintain()
    assert [lease_names(s3_root, bucket) for bucket in buckets] == [[], [], []]


def test_owner_without_a_sign_of_life_is_taken_over_and_fenced(
    store: Store, buckets: list[str], s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEW_S", 1000.0)  # it sleeps
    asleep = QueryReader(store, "etl")
    asleep.begin(STARTS)
    clock = Clock()
    other = QueryReader(Store.open(buckets, env=host(s3_options, clock)), "etl")
    other.begin(STARTS)
    assert EXPIRES_S <= clock.now_s <= EXPIRES_S + 2 * leases.LOOK_S
    with pytest.raises(FencedError):
        read_one(store, asleep, 1)
    read_one(store, other, 1)


def test_one_of_two_that_wait_for_a_dead_owner_gives_way(
    store: Store, buckets: list[str], s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEW_S", 1000.0)
    QueryReader(store, "etl").begin(STARTS)
    clock = Clock()
    slow = QueryReader(Store.open(buckets, env=host(s3_options, clock)), "etl")
    faster = Store.open(buckets, env=host(s3_options, Clock()))
    fast = QueryReader(faster, "etl")

    def overtake(now_s: float) -> None:
        if now_s == EXPIRES_S:  # the next thing that the slow one does is to take over
            fast.begin(STARTS)

    clock.while_asleep = overtake
    with pytest.raises(StoreBusyError):
        slow.begin(STARTS)
    assert generation(store) == 1
    read_one(faster, fast, 1)


def test_take_over_by_option_does_not_wait(store: Store, buckets: list[str], s3_options: dict[str, str]) -> None:
    first = QueryReader(store, "etl")
    first.begin(STARTS)
    at_once = Store.open(buckets, env=replace(reaching(s3_options), sleep=never))
    second = QueryReader(at_once, "etl", take_over=True)
    second.begin(STARTS)
    with pytest.raises(FencedError):
        read_one(store, first, 1)
    read_one(at_once, second, 1)


def test_owner_whose_lease_was_removed_and_given_to_another_is_fenced(
    store: Store, buckets: list[str], s3_options: dict[str, str], s3_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEW_S", 1000.0)
    first = QueryReader(store, "etl")
    first.begin(STARTS)
    for bucket in buckets:
        (name,) = lease_names(s3_root, bucket)
        (s3_root / bucket.split("/")[2] / "shop" / "owners" / name).unlink()
    second = QueryReader(Store.open(buckets, env=host(s3_options, Clock())), "etl")
    second.begin(STARTS)
    renew(first)
    with pytest.raises(FencedError):
        read_one(store, first, 1)
    read_one(store, second, 1)


def test_lease_is_kept_by_a_majority(
    store: Store, buckets: list[str], s3_options: dict[str, str], s3_root: Path
) -> None:
    first = QueryReader(store, "etl")
    (s3_root / buckets[1].split("/")[2]).rename(s3_root / "elsewhere-for-a-while")
    first.begin(STARTS)
    (s3_root / "elsewhere-for-a-while").rename(s3_root / buckets[1].split("/")[2])
    clock = Clock()
    clock.while_asleep = lambda now_s: renew(first)
    with pytest.raises(StoreBusyError):
        QueryReader(Store.open(buckets, env=host(s3_options, clock)), "etl").begin(STARTS)
    assert clock.now_s == leases.LOOK_S
    assert len(lease_names(s3_root, buckets[1])) == 1, "it is created where it was missing"


def renew(reader: QueryReader) -> None:
    assert reader._ownership is not None and isinstance(reader._ownership._claims, Leases)
    for renewal in reader._ownership._claims.renewals:
        renewal.renew()


def test_one_process_watches_over_a_store(
    store: Store, buckets: list[str], s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    other = Store.open(buckets, env=host(s3_options, clock))
    monkeypatch.setattr(leases, "RENEW_S", 0.01)
    monkeypatch.setattr(leases, "LOOK_S", 0.05)
    real = Store.open(buckets, storage_options=s3_options)
    with store.watching(), pytest.raises(StoreBusyError), real.watching():
        pass
    with real.watching():
        pass
    monkeypatch.setattr(leases, "RENEW_S", 1000.0)
    with store.watching(), other.watching():
        assert clock.now_s >= EXPIRES_S


def test_no_lease_of_a_purpose_has_the_name_of_another_one(
    store: Store, buckets: list[str], s3_root: Path, s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion that arrives late takes away what nobody has any more; what was given back is waited for by nobody."""
    monkeypatch.setattr(leases, "RENEW_S", 0.01)
    monkeypatch.setattr(leases, "LOOK_S", 0.05)
    at_once = Store.open(buckets, env=replace(reaching(s3_options), sleep=never))
    had: list[str] = []
    for _ in range(3):
        with at_once.watching():
            (name,) = set(lease_names(s3_root, buckets[0])) - set(had[-1:])
            assert name not in had
            for bucket, former in itertools.product(buckets, had):
                (s3_root / bucket.split("/")[2] / "shop" / "owners" / former).unlink(missing_ok=True)
            had.append(name)
            with pytest.raises(StoreBusyError), store.watching():
                pass
        assert lease_names(s3_root, buckets[0]) == had[-1:], "the newest stays, so that its number is not used again"
