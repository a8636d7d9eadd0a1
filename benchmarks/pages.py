"""`python -m benchmarks.pages`: how fast the pages of a large store answer.

A store of 1,000 streams and 10,000 blocks on three volumes is served by `jstream ui` in a process of its own. Each page
is loaded once, and then again and again. The first load of the first page
opens the store and looks at all of it.
"""

import argparse
import http.client
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.figures import write_figures
from storage_core import Store

STREAMS, BLOCKS, CONSUMERS = 1_000, 10, 200  # blocks of each stream; consumers of all
ROUNDS = 20  # loads of each page
ANSWER_MAX_S = 0.2
PATHS = (
    "/", "/streams", "/streams/S0007/messages", "/streams/S0007/copies", "/streams/S0007/configuration", "/consumers",
    "/streams/S0007/consumers/reader", "/volumes", "/events",
)  # fmt: skip


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
            match = re.search(r":(\d+)/", server.stderr.readline())
            assert match is not None
            yield int(match[1]), server.pid
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


def main(stream_count: int) -> int:
    """Measure, print, and write the ratios to benchmarks/results; returns an exit code."""
    with tempfile.TemporaryDirectory(prefix="jstream-bench-") as place:
        volumes = [str(Path(place) / f"volume-{number}") for number in range(3)]
        with make_store(volumes, stream_count), served(volumes) as (port, _):
            print(f"{stream_count:,} streams, {stream_count * BLOCKS:,} blocks, 3 volumes")
            slowest = 0.0
            for path in PATHS:
                first = load(port, path)
                taken = [load(port, path) for _ in range(ROUNDS)]
                slowest = max(slowest, median(taken))
                print(f"{path:<34} first {1000 * first:6.0f} ms, then {1000 * median(taken):5.0f}, "
                      f"at most {1000 * max(taken):5.0f}")  # fmt: skip
    ratios = [
        {"name": "slowest page of the store, seconds", "ratio": round(slowest, 3), "at_most": ANSWER_MAX_S},
    ]
    write_figures("pages", "python -m benchmarks.pages", {"ratios": ratios})
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--streams", type=int, default=STREAMS, help=f"streams of {BLOCKS} blocks each ({STREAMS})")
    sys.exit(main(parser.parse_args().streams))
