"""Real processes and threads that fetch from one consumer of a real store: they share the messages."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.store.store import Store

ROOT = Path(__file__).resolve().parents[4]
COUNT = 300

# Fetches and acknowledges until nothing is left, and says what it was handed.
READER = """
import json, sys
from storage_core.store.store import Store
consumer = Store.open(sys.argv[1].split(",")).stream("orders").consumer("reader")
print("go", flush=True)
sys.stdin.readline()
while (table := consumer.fetch(7, 0)).num_rows:
    sequences = table.column("sequence").to_pylist()
    assert table.column("delivery_count").to_pylist() == [1] * len(sequences)
    print(json.dumps(sequences), flush=True)
    consumer.ack(sequences)
"""


def volumes(tmp_path: Path, count: int) -> list[str]:
    paths = [str(tmp_path / f"volume-{number}") for number in range(count)]
    stream = Store.create(paths).add_stream({"name": "orders", "block_max_msgs": 50})
    stream.append(pa.table({"data": pa.array([b"x"] * COUNT)}))
    stream.add_consumer({"name": "reader", "ack_wait": "1h"})
    return paths


def start(paths: list[str]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", READER, ",".join(paths)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("volume_count", [1, 3])
def test_processes_share_the_messages_and_none_is_handed_out_twice(tmp_path: Path, volume_count: int) -> None:
    paths = volumes(tmp_path, volume_count)
    readers = [start(paths) for _ in range(2)]
    for one in readers:
        assert one.stdout is not None and one.stdout.readline() == "go\n"
    outputs = [one.communicate("\n", timeout=120)[0] for one in _together(readers)]
    assert [one.returncode for one in readers] == [0, 0]
    handed = [sequence for output in outputs for line in output.splitlines() for sequence in json.loads(line)]
    assert sorted(handed) == list(range(1, COUNT + 1))
    info = Store.open(paths).stream("orders").consumer("reader").info()
    assert (info["num_ack_pending"], info["num_pending"], info["ack_floor"]["stream_seq"]) == (0, 0, COUNT)


def _together(readers: "list[subprocess.Popen[str]]") -> "list[subprocess.Popen[str]]":
    """Let all of them go before the first one is waited for."""
    for one in readers[1:]:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    return readers


def test_what_a_killed_process_did_not_acknowledge_is_handed_out_again_after_a_reset(tmp_path: Path) -> None:
    paths = volumes(tmp_path, 1)
    reader = start(paths)
    assert reader.stdin is not None and reader.stdout is not None
    reader.stdin.write("\n")
    reader.stdin.flush()
    lines = [reader.stdout.readline() for _ in range(4)]  # "go", and three fetches
    reader.send_signal(signal.SIGKILL)
    reader.wait()
    reader.stdin.close()
    rest = reader.stdout.read().splitlines()
    reader.stdout.close()
    handed = [sequence for line in [*lines[1:], *rest] for sequence in json.loads(line)]
    consumer = Store.open(paths).stream("orders").consumer("reader")
    low_watermark = consumer.info()["ack_floor"]["stream_seq"]
    assert 14 <= low_watermark <= len(handed), "the first two were acknowledged before the third was asked for"
    assert consumer.reset() == low_watermark + 1
    assert consumer.fetch(COUNT, 0).column("sequence").to_pylist() == list(range(low_watermark + 1, COUNT + 1))


def test_threads_of_one_store_share_the_messages(tmp_path: Path) -> None:
    consumer = Store.open(volumes(tmp_path, 1)).stream("orders").consumer("reader")
    handed: list[int] = []

    def read() -> None:
        while (table := consumer.fetch(7, 0)).num_rows:
            sequences = table.column("sequence").to_pylist()
            consumer.ack(sequences)
            handed.extend(sequences)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(handed) == list(range(1, COUNT + 1))
