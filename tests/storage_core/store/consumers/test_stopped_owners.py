"""Owners of leases that were stopped for too long: real processes that are stopped and go on, beside their successors.

Whatever is owned (the maintenance of a store, its archive commands, a consumer), the one that was stopped ends at its
next step, however often its successor has swept. Pipelines are in tests/spark_stream/pipelines/test_state.py.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import StoreBusyError
from storage_core.store.consumers import leases
from storage_core.store.consumers.claims import Claim
from storage_core.store.consumers.leases import EXPIRES_S, LeaseName, Leases
from storage_core.store.consumers.query import QueryReader, QueryStart
from storage_core.store.environment import Environment, reaching
from storage_core.store.store import Store

ROOT = Path(__file__).resolve().parents[4]
STARTS = {"orders": QueryStart(1)}
BLOCK_COUNT = 3 * 4  # three times as many as there are archive commands at once

# Each does one thing as an owner, then stops itself; what it prints when it goes on is what became of it.
OWNER = """
import os, signal, sys
from contextlib import closing
from storage_core.errors import StorageError
from storage_core.store.consumers import leases
from storage_core.store.consumers.query import QueryReader, QueryStart, onward
from storage_core.store.store import Store

leases.RENEW_S = 0.05
store = Store.open(sys.argv[2].split(","))

def stop():
    print("stops", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

def maintenance():
    with store.watching() as check:
        store.maintain(check=check)
        stop()
        store.maintain(check=check)

def archiving():
    store.maintain()  # its first command stops it

def consumer():
    with closing(QueryReader(store, "etl")) as reader:  # a renewal that was under way when it stopped is taken back
        at = reader.begin({"orders": QueryStart(1)})["orders"]
        stop()
        at = onward(store.stream_state("orders"), at, at.position.next_sequence + 1)
        reader.acknowledge({"orders": at.position})

try:
    globals()[sys.argv[1]]()
    print("ends", flush=True)
except StorageError as error:
    print(f"{error.code} {error}", flush=True)
"""
# Notes whose command it is; the first one stops the process that runs it, and says so in its place.
ARCHIVE = """
import os, signal, sys
log, stopped = sys.argv[1:3]
with open(log, "a") as file:
    file.write(f"{os.getppid()} {sys.argv[-2]}\\n")
try:
    os.close(os.open(stopped, os.O_CREAT | os.O_EXCL))
except FileExistsError:
    sys.exit()
os.kill(os.getppid(), signal.SIGSTOP)
"""


class Clock:
    """Goes on while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.while_asleep: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.while_asleep()


def on_another_host(options: dict[str, str], clock: Clock) -> Environment:
    return replace(
        reaching(options), monotonic=lambda: clock.now_s, sleep=clock.sleep, lock_domain=lambda: "another boot"
    )


@pytest.fixture
def store(buckets: list[str], s3_options: dict[str, str]) -> Store:
    made = Store.create(buckets, storage_options=s3_options, deleted_block_retention="0s")
    made.add_stream({"name": "orders", "subjects": ["orders.>"]})
    for number in range(BLOCK_COUNT):
        made.stream("orders").append([{"subject": "orders.new", "data": b"%d" % number}])
    return made


@pytest.fixture
def successor(store: Store, buckets: list[str], s3_options: dict[str, str]) -> Store:
    """The store as it is opened on another host, where EXPIRES_S are over at once."""
    return Store.open(buckets, env=on_another_host(s3_options, Clock()))


@pytest.fixture
def started(store: Store, buckets: list[str], s3_options: dict[str, str]) -> Iterator[Callable[[str], Any]]:
    settings = {key.upper(): value for key, value in s3_options.items()}
    with ExitStack() as stack:

        def start(kind: str) -> "subprocess.Popen[str]":
            command = [sys.executable, "-c", OWNER, kind, ",".join(buckets)]
            process = subprocess.Popen(command, cwd=ROOT, env=os.environ | settings, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def wait_until_stopped(process: "subprocess.Popen[str]") -> None:
    pid, status = os.waitpid(process.pid, os.WUNTRACED)
    assert pid == process.pid and os.WIFSTOPPED(status), status


def outcome(process: "subprocess.Popen[str]") -> str:
    """Let it go on to its end; return the last thing that it says."""
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=120)
    return output.splitlines()[-1]


def lease_names(s3_root: Path, bucket: str) -> list[str]:
    return sorted(path.name for path in (s3_root / bucket.split("/")[2] / "shop" / "owners").glob("*"))


def test_maintenance_that_was_stopped_ends_and_its_successor_goes_on(
    successor: Store, buckets: list[str], s3_root: Path, started: Callable[[str], Any]
) -> None:
    owner = started("maintenance")
    wait_until_stopped(owner)
    with successor.watching() as check:
        successor.maintain(check=check)
        said = outcome(owner)
        assert said.startswith("JSTREAM_LEASE_LOST") and f"process {os.getpid()} on " in said
        successor.maintain(check=check)
        assert lease_names(s3_root, buckets[0]) == ["maintain-2.lease"], "the successor's sweep is not undone"


def test_command_line_that_was_stopped_ends_with_the_name_of_its_successor(
    store: Store, successor: Store, buckets: list[str], s3_options: dict[str, str]
) -> None:
    settings = {key.upper(): value for key, value in s3_options.items()} | {"JSTREAM_STORE": ",".join(buckets)}
    command = [sys.executable, "-m", "spark_stream.cli", "maintain", "--watch", "--every", "10ms"]
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | settings, stderr=subprocess.PIPE, text=True) as watching:
        try:
            assert watching.stderr is not None and watching.stderr.readline() == "maintenance is done\n"
            watching.send_signal(signal.SIGSTOP)
            wait_until_stopped(watching)
            with successor.watching() as check:
                watching.send_signal(signal.SIGCONT)
                _, said = watching.communicate(timeout=120)
                check()
        finally:
            watching.kill()
    assert watching.returncode == 1
    assert "[JSTREAM_LEASE_LOST]" in said.splitlines()[-1] and f"process {os.getpid()} on " in said


def test_archive_commands_are_run_by_the_successor_of_a_process_that_was_stopped(
    store: Store, successor: Store, tmp_path: Path, started: Callable[[str], Any]
) -> None:
    log, stopped = tmp_path / "log", tmp_path / "stopped"
    command = [sys.executable, "-c", ARCHIVE, str(log), str(stopped)]
    store.edit_stream({"name": "orders", "archive_command": command})
    store.stream("orders").purge()
    owner = started("archiving")
    wait_until_stopped(owner)
    successor.maintain()
    assert outcome(owner) == "ends"
    runs = [line.split() for line in log.read_text().splitlines()]
    by_owner = {first for parent, first in runs if parent == str(owner.pid)}
    by_successor = {first for parent, first in runs if parent == str(os.getpid())}
    assert len(by_owner) <= 4, "it begins nothing when it goes on"
    assert len(by_successor) >= BLOCK_COUNT - 4 and len(by_owner | by_successor) == BLOCK_COUNT
    assert len(store.view().state.archives) == 0


def test_consumer_of_a_query_that_was_stopped_is_its_successors(
    store: Store, successor: Store, buckets: list[str], s3_root: Path, started: Callable[[str], Any]
) -> None:
    owner = started("consumer")
    wait_until_stopped(owner)
    with closing(QueryReader(successor, "etl")) as reader:
        reader.begin(STARTS)
        successor.maintain()
        said = outcome(owner)
        assert said.startswith("JSTREAM_FENCED") and f"process {os.getpid()} on " in said
        assert store.stream("orders").consumer("etl").info()["ack_floor"]["stream_seq"] == 0
        (name,) = lease_names(s3_root, buckets[0])
        assert name.endswith("-2.lease"), "the successor's sweep is not undone"


# --- an owner that wakes up at the worst moment


class _BeforeCreation:
    """The files of a host that does something before it creates an object of one name."""

    def __init__(self, files: Any, name: str, then: Callable[[], None]) -> None:
        self._files, self._name, self._then = files, name, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def create(self, path: Path) -> Any:
        if path.name == self._name:
            self._name = ""
            self._then()
        return self._files.create(path)


@pytest.mark.parametrize("looks_again", [True, False])
def test_an_owner_that_wakes_up_before_it_is_succeeded_is_waited_for(
    store: Store, s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch, looks_again: bool
) -> None:
    monkeypatch.setattr(leases, "RENEW_S", 1000.0)
    owner = Leases(store.volumes(), reaching(s3_options), 60.0)
    assert owner.claim(["work"]) == {"work": Claim(True)}
    clock = Clock()
    woken = on_another_host(s3_options, clock)
    seen: list[str] = []

    def wake_up() -> None:
        seen.append(owner.other_owner("work"))

    def look_again() -> None:
        if len(seen) == 1 and looks_again:
            seen.append(owner.other_owner("work"))
            owner.close()

    env = replace(woken, files=_BeforeCreation(woken.files, "work-2.lease", wake_up))
    clock.while_asleep = lambda: look_again() if seen else None
    next_owner = Leases(store.volumes(), env, 60.0)
    assert next_owner.claim(["work"])["work"].is_ours and next_owner.other_owner("work") == ""
    assert seen[0] == "", "it was still alone when it looked"
    if looks_again:
        assert f"process {os.getpid()} on " in seen[1], "it ends before its successor begins"
        assert EXPIRES_S < clock.now_s < 2 * EXPIRES_S
    else:
        assert clock.now_s >= 2 * EXPIRES_S, "it is waited for like any other"
        assert owner.other_owner("work") != ""


def test_a_number_that_was_swept_is_nobodys_again(store: Store, s3_options: dict[str, str], s3_root: Path) -> None:
    env = on_another_host(s3_options, Clock())
    late, owner = (Leases(store.volumes(), env, 60.0) for _ in range(2))
    assert owner.acquire(LeaseName("work", 5)) is None
    held = late.acquire(LeaseName("work", 4))
    assert held is not None and held.owner.pid == os.getpid()
    assert owner.other_owner("work") == ""


# --- for how long


def test_an_owner_is_waited_for_no_longer_than_the_lock_timeout(
    store: Store, buckets: list[str], s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEW_S", 1000.0)
    owner = QueryReader(store, "etl")
    owner.begin(STARTS)
    with store.watching():
        clock = Clock()
        hasty = Store.open(buckets, lock_timeout_s=7.0, env=on_another_host(s3_options, clock))
        with pytest.raises(StoreBusyError, match="silent for 7 s: it counts as ended after 30 s"):
            QueryReader(hasty, "etl").begin(STARTS)
        with pytest.raises(StoreBusyError, match="silent for 7 s"), hasty.watching():
            pass
        assert clock.now_s == 14.0


def test_leases_that_come_and_go_are_waited_for_no_longer_either(store: Store, s3_options: dict[str, str]) -> None:
    clock = Clock()
    env = on_another_host(s3_options, clock)

    def was_faster() -> None:
        raise FileExistsError

    class Contested(_BeforeCreation):
        def create(self, path: Path) -> Any:
            self._then()

    contested = Leases(store.volumes(), replace(env, files=Contested(env.files, "", was_faster)), 20.0)
    held = contested.acquire(LeaseName("work", 1))
    assert held is not None and clock.now_s >= 20.0
