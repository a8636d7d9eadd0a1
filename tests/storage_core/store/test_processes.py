"""Real processes on one real store: two that write at once, some that are killed, one that holds the lock and hangs.

FAULTS scenarios 10 and 27. Whoever is killed leaves no lock behind and nothing half done; the others go on.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.model import seen_in_store, seen_in_stream

from storage_core.errors import NotAStoreError, StoreBusyError
from storage_core.store.store import Store

ROOT = Path(__file__).resolve().parents[3]

# Appends two messages at a time, "<name>-<number>", and says after each ack what it got.
WRITER = """
import json, sys
from storage_core.store.store import Store
import pyarrow as pa
volume, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
stream = Store.open(volume).stream("orders")
for number in range(count):
    rows = [f"{name}-{number}-{half}".encode() for half in "ab"]
    got = stream.append(pa.record_batch({"data": rows}))
    print(json.dumps([number, got.start, got.stop]), flush=True)
"""

# Takes the store's lock and keeps it.
HOLDER = """
import sys, time
from storage_core.store.store import Store
with Store.open(sys.argv[1]).session():
    print("held", flush=True)
    time.sleep(600)
"""

MAKER = """
import sys
from storage_core.store.store import Store
print("go", flush=True)
Store.create(sys.argv[1])
"""


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    Store.create(tmp_path / "volume", snapshot_every=7).add_stream({"name": "orders", "block_max_msgs": 3})
    return tmp_path / "volume"


@pytest.fixture
def started() -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes that a test starts: those that still run at its end are killed."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def start(started: list["subprocess.Popen[str]"], script: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/", env=environment)
    started.append(process)
    return process


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def acked_by(process: "subprocess.Popen[str]", lines: list[str]) -> list[tuple[int, int, int]]:
    """Return what a writer was acked, with the lines that were read from it before."""
    rest = process.communicate()[0]
    return [tuple(json.loads(line)) for line in [*lines, *rest.splitlines()] if line.endswith(("]", "]\n"))]


def check_writers(volume: Path, acked: dict[str, list[tuple[int, int, int]]]) -> None:
    """Check that every acked append is there under its numbers, and every other one whole or not at all."""
    store = Store.open(volume)
    messages = {sequence: (row.data or b"").decode() for sequence, row in seen_in_store(store)["orders"].messages}
    assert sorted(messages) == list(range(1, len(messages) + 1))
    for name, batches in acked.items():
        for number, first, end in batches:
            assert [messages[one] for one in range(first, end)] == [f"{name}-{number}-a", f"{name}-{number}-b"]
    for sequence, data in messages.items():
        name, number, half = data.rsplit("-", 2)
        other = sequence + 1 if half == "a" else sequence - 1
        assert messages[other] == f"{name}-{number}-{'b' if half == 'a' else 'a'}"
    assert len(set(messages.values())) == len(messages)
    assert store.verify()["ok"]


def test_27_two_processes_write_at_once(volume: Path, started: list["subprocess.Popen[str]"]) -> None:
    writers = {name: start(started, WRITER, volume, name, 25) for name in ("left", "right")}
    acked = {name: acked_by(process, []) for name, process in writers.items()}
    assert {name: len(batches) for name, batches in acked.items()} == {"left": 25, "right": 25}
    check_writers(volume, acked)


def test_27_a_writer_is_killed_again_and_again_beside_one_that_goes_on(
    volume: Path, started: list["subprocess.Popen[str]"]
) -> None:
    chance = random.Random(27)
    steady = start(started, WRITER, volume, "steady", 40)
    acked: dict[str, list[tuple[int, int, int]]] = {}
    for life in range(6):
        victim = start(started, WRITER, volume, f"victim{life}", 10_000)
        lines = [line_of(victim) for _ in range(chance.randint(1, 6))]
        time.sleep(chance.random() * 0.02)  # somewhere in the next append
        victim.send_signal(signal.SIGKILL)
        acked[f"victim{life}"] = acked_by(victim, lines)
        assert len(acked[f"victim{life}"]) >= len(lines)
    acked["steady"] = acked_by(steady, [])
    assert len(acked["steady"]) == 40
    check_writers(volume, acked)


def test_27_a_holder_is_named_while_it_lives_and_gone_when_it_is_killed(
    volume: Path, started: list["subprocess.Popen[str]"]
) -> None:
    holder = start(started, HOLDER, volume)
    assert line_of(holder) == "held\n"
    store = Store.open(volume, lock_timeout_s=0.2)  # opening and reading wait for nobody
    assert seen_in_stream(store.stream("orders")).messages == ()
    with pytest.raises(StoreBusyError, match=f"process {holder.pid} "):
        store.stream("orders").publish("orders", b"one")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert store.stream("orders").publish("orders", b"one").sequence == 1


def test_10_a_process_is_killed_while_it_makes_a_store(tmp_path: Path, started: list["subprocess.Popen[str]"]) -> None:
    """Killed at any time, it leaves a volume that works or none."""
    chance = random.Random(10)
    for number in range(4):
        volume = tmp_path / str(number)
        process = start(started, MAKER, volume)
        assert line_of(process) == "go\n"
        time.sleep(chance.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        try:
            store = Store.open(volume)
        except NotAStoreError:
            continue
        assert store.add_stream({"name": "orders"}).last_sequence == 0
