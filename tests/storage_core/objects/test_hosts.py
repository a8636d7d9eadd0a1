"""Four hosts write one store in buckets, behind proxies that delay, repeat and lose their requests; they die and sleep.

A host is a process with a machine identity and a proxy of its own; where the rights allow it, in the long test, also
with a network namespace of its own, out of which only the proxy leads. It appends batches, each until it is acked, and
tries to own a consumer by lease; a batch that was announced and not acked is sent again by its host's next life. A host
sleeps for longer than every timeout and then goes on.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from harness.objects import networks
from harness.objects.proxy import AWAY, CALM, NOISE, STORM, Proxy, before
from harness.objects.server import serving

from storage_core.store.consumers import leases
from storage_core.store.store import Store
from storage_core.store.writing.appends import WriterBatch

ROOT = Path(__file__).resolve().parents[3]
HOST_COUNT, ROW_COUNT = 4, 3
# Says what it is about to do, and what was acked, with the times at which it began and ended.
HOST = """
import json, random, socket, sys, threading, time
from dataclasses import replace
from storage_core.errors import FencedError, StorageError
from storage_core.store.consumers import leases
from storage_core.store.consumers.query import QueryReader, QueryStart, onward
from storage_core.store.environment import reaching
from storage_core.store.store import Store
from storage_core.store.writing.appends import WriterBatch

settings = json.loads(sys.argv[1])
host, volumes, number = settings["host"], settings["volumes"], settings["number"]
leases.RENEW_S, leases.EXPIRES_S, leases.LOOK_S = settings["lease"]
socket.gethostname = lambda: host
lock = threading.Lock()

def say(*words):
    with lock:
        print(json.dumps(words), flush=True)

def opened():
    env = replace(reaching(settings["options"]), lock_domain=lambda: f"{host}/{host}/{host}")
    return Store.open(volumes, env=env)

def own():
    store = reader = None
    while True:
        try:
            store = store or opened()
            if reader is None:
                reader = QueryReader(store, "shared")
                at = reader.begin({"ORDERS": QueryStart(1)})["ORDERS"]
                owned = time.monotonic()
            for _ in range(random.choice((2, 20))):
                stream = store.stream_state("ORDERS")
                generation = stream.consumers["shared"].generation
                following = min(at.position.next_sequence + 1, store.stream("ORDERS").last_sequence + 1)
                following = onward(stream, at, following)
                begun = time.monotonic()
                reader.acknowledge({"ORDERS": following.position})
                say("moved", generation, owned, begun, time.monotonic())
                at = following
                time.sleep(0.05)
            reader.close()
            reader = None
            time.sleep(random.random())
        except StorageError as error:
            say("lease", type(error).__name__)
            if reader is not None:
                reader.close()
            reader = None
            time.sleep(0.1)

threading.Thread(target=own, daemon=True).start()
store = None
while True:
    rows = [{"subject": "orders.new", "data": f"{host} {number} {row}".encode()} for row in range(settings["rows"])]
    say("try", number)
    while True:
        try:
            store = store or opened()
            got = store.stream("ORDERS").append(rows, WriterBatch(host, str(number)))
            break
        except StorageError as error:
            say("again", type(error).__name__)
            if random.random() < 0.2:
                store = None
            time.sleep(0.05)
    say("acked", number, got.start, got.stop)
    number += 1
"""


class Move(NamedTuple):
    """What an owner of the consumer did: under which generation, since when it has it, and when it did it."""

    generation: int
    owned_s: float
    begun_s: float
    ended_s: float
    who: str


class Host:
    """One host: its proxy, the process that lives there, and what it said."""

    def __init__(self, name: str, proxy: Proxy, settings: dict[str, Any], network: int | None) -> None:
        """`network`: the process that keeps its network namespace; None if it has none of its own."""
        self.name, self.proxy, self.settings = name, proxy, settings | {"host": name}
        self._entrance = [] if network is None else ["nsenter", f"--target={network}", "--net"]
        self.acked: dict[int, tuple[int, int]] = {}
        self.moved: list[Move] = []
        self.next_number = self.lives = self.pauses = self.acked_before = 0
        self.said: list[tuple[Any, ...]] = []
        self.process: subprocess.Popen[str] | None = None

    def live(self) -> None:
        self.lives, self.acked_before = self.lives + 1, len(self.acked)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        settings = json.dumps(self.settings | {"number": self.next_number})
        command = [*self._entrance, sys.executable, "-c", HOST, settings]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd="/", env=environment
        )
        self.listener = threading.Thread(target=self._listen, args=(self.process, f"{self.name}, {self.lives}"))
        self.listener.start()

    def _listen(self, process: "subprocess.Popen[str]", who: str) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.endswith("]\n"):
                continue
            verb, *words = json.loads(line)
            if verb == "acked":
                self.acked[words[0]] = (words[1], words[2])
                self.next_number = words[0] + 1
            elif verb == "moved":
                self.moved.append(Move(*words, who))
            else:
                self.said.append((verb, *words))

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.listener.join()

    def pause(self) -> None:
        self.pauses += 1
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)


@contextmanager
def weed(folder: Path) -> Iterator[dict[str, str]]:
    """Start SeaweedFS on loopback; yield what a client needs."""
    key = {"accessKey": "test", "secretKey": "testtest"}
    users = {"identities": [{"name": "test", "credentials": [key], "actions": ["Admin"]}]}
    (folder / "s3.json").write_text(json.dumps(users))
    (folder / "data").mkdir()
    words = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=1000", "-filer", "-s3", "-s3.port=8333", "-iam=false"]
    words += [f"-dir={folder / 'data'}", f"-s3.config={folder / 's3.json'}", "-master.volumeSizeLimitMB=64"]
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(["weed", "server", *words], stdout=log, stderr=log)
    try:
        yield {
            "aws_endpoint_url": "http://127.0.0.1:8333",
            "aws_region": "us-east-1",
            "aws_access_key_id": key["accessKey"],
            "aws_secret_access_key": key["secretKey"],
        }
    finally:
        process.kill()
        process.wait()


def make_bucket(name: str, options: Mapping[str, Any]) -> None:
    """Ask a server for a new bucket, until it is up."""
    import obstore
    from obstore.store import from_url

    store = from_url(f"s3://{name}", config=dict(options), client_options={"allow_http": True})  # type: ignore[call-overload]
    for _ in range(60):
        try:
            urlopen(Request(obstore.sign(store, "PUT", "", timedelta(minutes=1)), method="PUT", data=b"")).close()
            return
        except URLError:
            time.sleep(0.5)
    raise AssertionError("the server does not start")


def write_from_hosts(
    options: Mapping[str, str],
    buckets: list[str],
    seconds: float,
    lease_s: tuple[float, float, float],
    seed: int,
    with_networks: bool = False,
) -> None:
    volumes, random = [f"s3://{bucket}/shop" for bucket in buckets], Random(seed)
    with Store.create(volumes, storage_options=options) as store:
        store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    timeout_s = min(lease_s[0] * 4, 8.0)  # of a request
    settings = {"volumes": volumes, "lease": lease_s, "rows": ROW_COUNT}
    with ExitStack() as stack:
        hosts = []
        for number in range(HOST_COUNT):
            network = stack.enter_context(networks.network()) if with_networks else None
            entered = None if network is None else networks.inside(network)
            if network is not None:
                _assert_is_cut_off(network, options["aws_endpoint_url"])
            proxy, address = stack.enter_context(before(options["aws_endpoint_url"], seed + number, timeout_s, entered))
            reached = {**options, "aws_endpoint_url": address, "timeout": f"{timeout_s:g}s"}
            hosts.append(Host(f"host-{number}", proxy, settings | {"options": reached}, network))
        try:
            for host in hosts:
                host.live()
            _trouble(hosts, buckets, seconds, 1.5 * max(lease_s[1], 10.0 if lease_s[1] > 10 else 0.0), random)
        finally:
            for host in hosts:
                host.resume()
                host.kill()
        time.sleep(3 * timeout_s)  # for what lands late
    kind = "with networks of their own" if with_networks else "with machine identities of their own"
    print(f"\n{HOST_COUNT} hosts {kind}: {_check(hosts, volumes, options, seed)}")


def _assert_is_cut_off(network: int, server: str) -> None:
    """Check that the way to the server leads through the proxy."""
    address = urlsplit(server)
    with networks.inside(network), pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.hostname, address.port)).close()


def _trouble(hosts: list[Host], buckets: list[str], seconds: float, pause_s: float, random: Random) -> None:
    """Change the weather, kill hosts and let them sleep, until the time is over."""
    ends, asleep = time.monotonic() + seconds, dict[Host, float]()
    latest = ends + 120.0  # on a busy machine
    while time.monotonic() < ends or (time.monotonic() < latest and not _has_seen_enough(hosts)):
        for host in hosts:
            odds = {bucket: random.choice((CALM, CALM, NOISE)) for bucket in buckets}
            if random.random() < 0.3:
                odds[random.choice(buckets)] = random.choice((STORM, AWAY))
            host.proxy.odds = odds
        time.sleep(random.uniform(0.3, 0.1 * pause_s + 1.0))
        for host in [host for host, until in asleep.items() if until <= time.monotonic()]:
            host.resume()
            del asleep[host]
        host = random.choice(hosts)
        if host in asleep:
            continue
        if random.random() < 0.4 and len(host.acked) > host.acked_before:  # a life without an ack shows little
            host.kill()
            host.live()
        elif len(asleep) < HOST_COUNT // 2:
            host.pause()
            asleep[host] = time.monotonic() + pause_s


def _has_seen_enough(hosts: list[Host]) -> bool:
    return any(host.moved for host in hosts) and any(host.acked for host in hosts)


def _check(hosts: list[Host], volumes: list[str], options: Mapping[str, str], seed: int) -> str:
    """Check that the store says what the hosts do; return what was seen."""
    store = Store.open(volumes, storage_options=options)
    for host in hosts:  # the batch that was under way
        rows = [f"{host.name} {host.next_number} {row}".encode() for row in range(ROW_COUNT)]
        batch = WriterBatch(host.name, str(host.next_number))
        got = store.stream("ORDERS").append([{"subject": "orders.new", "data": row} for row in rows], batch)
        host.acked[host.next_number] = (got.start, got.stop)
    table = store.stream("ORDERS").read(columns=["sequence", "data"]).read_all()
    messages = dict(zip(table["sequence"].to_pylist(), table["data"].to_pylist(), strict=True))
    for host in hosts:
        assert sorted(host.acked) == list(range(host.next_number + 1)), (seed, host.name)
        for number, (start, stop) in host.acked.items():
            expected = [f"{host.name} {number} {row}".encode() for row in range(ROW_COUNT)]
            assert [messages.pop(sequence, b"") for sequence in range(start, stop)] == expected, (
                seed,
                host.name,
                number,
            )
        assert all(a[1] <= b[0] for a, b in pairwise(host.acked[number] for number in sorted(host.acked))), seed
    assert not messages, (seed, "nothing is there that nobody was acked for")
    moves = [move for host in hosts for move in host.moved]
    assert moves, (seed, [host.said[-5:] for host in hosts])
    owners = _check_owners(moves, seed)
    report = store.repair()
    assert report["ok"], (seed, report)
    fates = sum((host.proxy.fates for host in hosts), start=type(hosts[0].proxy.fates)())
    batch_count, kill_count = sum(len(host.acked) for host in hosts), sum(host.lives - 1 for host in hosts)
    return (
        f"seed={seed}: {batch_count} batches, once and in order on {len(volumes)} volumes, {kill_count} kills, "
        f"{sum(host.pauses for host in hosts)} pauses, {len(moves)} moves by {owners} owners of a consumer, "
        f"never two at once; requests: {dict(fates)}"
    )


def _check_owners(moves: list[Move], seed: int) -> int:
    """Check that nobody owned the consumer while another one did; return how many did one after the other.

    An owner that sleeps is not asked: the fencing token of the next one is higher, and no move of it comes behind.
    """
    ended: dict[tuple[int, float, str], float] = {}
    for move in moves:
        owner = (move.generation, move.owned_s, move.who)
        ended[owner] = max(move.ended_s, ended.get(owner, 0.0))
    for owner, (generation, owned_s, who) in pairwise(sorted(ended)):
        if owner[0] == generation:
            assert ended[owner] <= owned_s, (seed, f"{owner[2]} and {who} own generation {generation}")
    for move in moves:
        later = [later_move.ended_s for later_move in moves if later_move.generation > move.generation]
        assert move.begun_s <= min(later, default=move.begun_s), (seed, f"{move.who} moves behind a later owner")
    return len(ended)


def test_hosts_that_die_and_sleep_lose_nothing_that_was_acked(buckets: list[str], s3_root: Path) -> None:
    with serving(s3_root) as options:
        write_from_hosts(options, [bucket.split("/")[2] for bucket in buckets], 6.0, (0.3, 2.0, 0.2), seed=2)


@pytest.mark.soak
@pytest.mark.parametrize("volume_count", [1, 3])
def test_hosts_that_die_and_sleep_for_long(
    tmp_path: Path, s3_options: dict[str, str], s3_root: Path, volume_count: int, soak_seconds: float
) -> None:
    """With the timeouts as they are, before SeaweedFS where that is installed."""
    names = [f"long-{volume_count}-{number}" for number in range(volume_count)]
    with weed(tmp_path) if shutil.which("weed") else serving(s3_root) as options:
        for name in names:
            make_bucket(name, options)
        timeouts = (leases.RENEW_S, leases.EXPIRES_S, leases.LOOK_S)
        write_from_hosts(
            options, names, soak_seconds, timeouts, time.time_ns() % 1_000_000, with_networks=networks.are_allowed()
        )
