"""`python -m benchmarks.pages`: how fast the pages of a large store answer, and what viewers cost who writes it.

A store of 1,000 streams and 10,000 blocks on three volumes is served by `jstream ui` in a process of its own. Each page
is loaded once, and then again and again. After that 50 viewers, in a process of their own too, load the first page
whenever the server tells them of a change, while messages are published: with viewers and without, in turns.
"""

import argparse
import http.client
import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median

from storage_core import Store

STREAMS, BLOCKS, CONSUMERS = 1_000, 10, 200  # blocks of each stream; consumers of all
ROUNDS, VIEWERS, TURNS, PUBLISHED = 20, 50, 3, 200  # loads of each page; messages that are published in each turn
ANSWER_MAX_S, SLOWER_MAX = 0.2, 1.15
PATHS = (
    "/", "/streams", "/streams/S0007/messages", "/streams/S0007/copies", "/streams/S0007/configuration", "/consumers",
    "/streams/S0007/consumers/reader", "/volumes", "/events",
)  # fmt: skip
RESULTS = Path(__file__).resolve().parent / "results" / "pages.json"


def make_store(volumes: list[str], stream_count: int) -> Store:
    store = Store.create(volumes)
    for number in range(stream_count):
        name = f"S{number:04d}"
        stream = store.add_stream({"name": name, "subjects": [f"s{number}.>"], "block_max_msgs": 1})
        stream.append([{"subject": f"s{number}.x", "data": b"x" * 100} for _ in range(BLOCKS)])
        if number < CONSUMERS:
            stream.add_consumer({"name": "reader"})
    return store


@contextmanager
def served(volumes: list[str]) -> Iterator[tuple[int, int]]:
    """Serve the store; yield the port, and the id of the process."""
    command = [sys.executable, "-m", "spark_stream.cli", "ui", "--port", "0", "--store", ",".join(volumes)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            found = re.search(r":(\d+)/", server.stderr.readline())
            assert found is not None
            yield int(found[1]), server.pid
        finally:
            server.terminate()


def load(port: int, path: str) -> float:
    """Load a page that must be there; return the seconds that it took."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 200, (path, answer.status)
    return time.perf_counter() - began


def view(port: int, count: int, ready: Event, done: Event) -> None:
    """Be so many viewers until `done`."""
    threads = [threading.Thread(target=_view, args=(port,), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    ready.set()
    done.wait()


def _view(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/live")
    lines = connection.getresponse()
    while line := lines.readline():
        if line.startswith(b"data:"):
            load(port, "/")


def publish(store: Store, count: int) -> list[float]:
    """Publish messages one by one, 20 a second, as programs do; return the seconds that each took."""
    stream, taken = store.stream("S0000"), []
    for _ in range(count):
        began = time.perf_counter()
        stream.publish("s0.x", b"x" * 100)
        taken.append(time.perf_counter() - began)
        time.sleep(max(0.0, 0.05 - taken[-1]))
    return taken


def memory_mib(process: int) -> float:
    """Return the most memory that a process had at a time."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def measure_viewers(store: Store, port: int) -> tuple[list[float], list[float]]:
    """Return what publishing took with viewers, and without."""
    context = multiprocessing.get_context("spawn")
    watched, alone = [], []
    publish(store, 20)
    for _ in range(TURNS):
        alone += publish(store, PUBLISHED)
        ready, done = context.Event(), context.Event()
        viewers = context.Process(target=view, args=(port, VIEWERS, ready, done), daemon=True)
        viewers.start()
        ready.wait()
        watched += publish(store, PUBLISHED)
        done.set()
        viewers.join()
    return watched, alone


def main(stream_count: int) -> int:
    """Measure, print, and write the ratios to RESULTS; returns an exit code."""
    with tempfile.TemporaryDirectory(prefix="jstream-bench-") as place:
        volumes = [str(Path(place) / f"volume-{number}") for number in range(3)]
        with make_store(volumes, stream_count) as store, served(volumes) as (port, process):
            print(f"{stream_count:,} streams, {stream_count * BLOCKS:,} blocks, 3 volumes")
            slowest = 0.0
            for path in PATHS:
                first = load(port, path)
                taken = [load(port, path) for _ in range(ROUNDS)]
                slowest = max(slowest, median(taken))
                print(f"{path:<34} first {1000 * first:6.0f} ms, then {1000 * median(taken):5.0f}, "
                      f"at most {1000 * max(taken):5.0f}")  # fmt: skip
            before = memory_mib(process)
            watched, alone = measure_viewers(store, port)
            after = memory_mib(process)
    slower = median(watched) / median(alone)
    with_them, without = (f"{1000 * median(taken):.2f} ms" for taken in (watched, alone))
    print(f"publish with {VIEWERS} viewers {with_them}, without {without}: {slower:.2f}")
    print(f"the server's memory was at most {before:.0f} MiB before them, {after:.0f} MiB in the end")
    ratios = [
        {"name": "slowest page of the store, seconds", "ratio": round(slowest, 3), "at_most": ANSWER_MAX_S},
        {"name": f"publishing beside {VIEWERS} viewers / without", "ratio": round(slower, 2), "at_most": SLOWER_MAX},
    ]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"command": "python -m benchmarks.pages", "ratios": ratios}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--streams", type=int, default=STREAMS, help=f"streams of {BLOCKS} blocks each ({STREAMS})")
    sys.exit(main(parser.parse_args().streams))
