"""`python -m benchmarks.viewers`: what 50 people who look at a store cost who writes it, and the memory of the pages.

A process appends batches of 100,000 messages to three volumes. Beside it `jstream ui` serves the store, and viewers, in
a process of their own, listen to its events and load a page each whenever it announces a change, as browsers do.
Appends with viewers and without are measured in turns. The viewers have the least share of the processor: they sit
elsewhere. Memory is what the server's process holds at the end of each turn; it must not grow with the turns.
"""

import argparse
import http.client
import multiprocessing
import os
import re
import sys
import tempfile
import threading
import time
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median

import pyarrow as pa

from benchmarks.figures import write_figures
from benchmarks.pages import load, served
from storage_core import Store

VIEWERS, MESSAGES, TURNS, TURN_S = 50, 100_000, 4, 12.0  # turns with viewers, and as many without
PAUSE_S = 0.25  # between two appends: nobody writes without a pause
SLOWER_MAX, GROWTH_MAX_MIB = 1.1, 50
PATHS = (
    "/",
    "/streams",
    "/streams/BENCH/messages",
    "/streams/BENCH/copies",
    "/streams/BENCH/consumers/reader",
    "/volumes",
)


def view(port: int, count: int, loaded: "Synchronized[int]", ready: Event, done: Event) -> None:
    """Be so many viewers until `done`; each has a page of its own."""
    os.nice(19)
    threads = [
        threading.Thread(target=_view, args=(port, PATHS[number % len(PATHS)], loaded), daemon=True)
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    ready.set()
    done.wait()
    os._exit(0)


def _view(port: int, path: str, loaded: "Synchronized[int]") -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/live")
    lines = connection.getresponse()
    while line := lines.readline():
        if line.startswith(b"data:"):
            load(port, path)
            with loaded.get_lock():
                loaded.value += 1


def append(store: Store, batch: pa.RecordBatch, turn_s: float) -> list[float]:
    """Return the seconds that each append of a turn took."""
    stream, taken, until = store.stream("BENCH"), [], time.monotonic() + turn_s
    while time.monotonic() < until or not taken:
        began = time.perf_counter()
        stream.append(batch)
        taken.append(time.perf_counter() - began)
        time.sleep(PAUSE_S)
    return taken


def memory_mib(process: int) -> float:
    """Return the memory that a process holds now."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def main(turns: int, turn_s: float) -> int:
    """Measure, print, and write the ratios to benchmarks/results; returns an exit code."""
    rows = [
        b'{"order": %d, "customer": %d, "total": 12.5}' % (number, number * 7919 % 10_007) for number in range(MESSAGES)
    ]
    batch = pa.RecordBatch.from_pydict({"subject": ["orders.new"] * MESSAGES, "data": rows})
    context = multiprocessing.get_context("spawn")
    watched: list[float] = []
    alone: list[float] = []
    memory: list[float] = []
    loaded = context.Value("q", 0)
    with tempfile.TemporaryDirectory(prefix="jstream-bench-") as place:
        volumes = [str(Path(place) / f"volume-{number}") for number in range(3)]
        with Store.create(volumes) as store:
            store.add_stream({"name": "BENCH", "subjects": ["orders.>"]}).add_consumer({"name": "reader"})
            append(store, batch, 1.0)
            with served(volumes) as (port, process):
                for path in PATHS:
                    load(port, path)
                for number in range(turns):
                    quiet = append(store, batch, turn_s)
                    ready, done = context.Event(), context.Event()
                    viewers = context.Process(target=view, args=(port, VIEWERS, loaded, ready, done), daemon=True)
                    viewers.start()
                    ready.wait()
                    looked_at = append(store, batch, turn_s)
                    done.set()
                    viewers.join()
                    memory.append(memory_mib(process))
                    alone, watched = alone + quiet, watched + looked_at
                    times = f"with viewers {1000 * median(looked_at):.0f} ms, without {1000 * median(quiet):.0f}"
                    pages = f"{loaded.value:,} pages so far, the server holds {memory[-1]:.0f} MiB"
                    print(f"turn {number + 1}: append {times}; {pages}", flush=True)
    slower, growth = median(watched) / median(alone), memory[-1] - memory[0]
    times = f"with {VIEWERS} viewers {1000 * median(watched):.0f} ms, without {1000 * median(alone):.0f}: {slower:.2f}"
    print(f"append of {MESSAGES:,} messages {times}; minima {min(watched) / min(alone):.2f}")
    print(f"memory from the first turn to the last: {growth:+.0f} MiB")
    ratios = [
        {"name": f"append beside {VIEWERS} viewers / without", "ratio": round(slower, 2), "at_most": SLOWER_MAX},
        {"name": "growth of the pages' memory, MiB", "ratio": round(growth), "at_most": GROWTH_MAX_MIB},
    ]
    write_figures("viewers", "python -m benchmarks.viewers", {"ratios": ratios})
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.viewers", description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS, help=f"with viewers, and as many without ({TURNS})")
    parser.add_argument("--seconds", type=float, default=TURN_S, help=f"of each turn ({TURN_S:.0f})")
    arguments = parser.parse_args()
    sys.exit(main(arguments.turns, arguments.seconds))
