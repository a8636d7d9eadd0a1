"""`python -m benchmarks.turns`: whether an append costs more when many have come before, and two processes take turns.

Two processes append to one stream, each in its turn, so each finds entries of the other: a new term, a new history run,
a batch of a named writer and msg_ids with every append. After most of the appends another store begins, and both are
appended to in turns: its first appends are held against the last ones of the old store, in processor time. So other
work of the machine slows both down alike.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import pyarrow as pa

from benchmarks.figures import write_figures
from storage_core import Store
from storage_core.store.writing.appends import WriterBatch

APPENDS, WARM_UP, COMPARED = 2_000, 20, 200
MESSAGES = 10  # of each append
WANTED_MAX = 1.2
STREAM = "TURNS"


def append_on_request(stores: list[list[Path]], pipe: Connection) -> None:
    """Append once for each (store, number) that comes, and answer with the processor seconds that it took."""
    streams = [Store.open(volumes).stream(STREAM) for volumes in stores]
    while (request := pipe.recv()) is not None:
        at, number = request
        began = time.process_time()
        messages = pa.table(
            {
                "data": [b"%016d" % message for message in range(MESSAGES)],
                "msg_id": [f"{number} {message}" for message in range(MESSAGES)],
            }
        )
        streams[at].append(messages, WriterBatch(f"writer {number % 2}", f"batch {number}"))
        pipe.send(time.process_time() - began)


def measure(stores: list[list[Path]], appends: int) -> tuple[list[float], list[float]]:
    """Return what the last appends to the first store and the first ones to the second took, in processor seconds."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(2):
        pipe, theirs = context.Pipe()
        process = context.Process(target=append_on_request, args=(stores, theirs))
        process.start()
        pipes.append(pipe)
        processes.append(process)

    def append(at: int, number: int) -> float:
        pipes[number % 2].send((at, number))
        seconds: float = pipes[number % 2].recv()
        return seconds

    for number in range(appends - COMPARED):
        append(0, number)
    for number in range(WARM_UP):
        append(1, number)
    last, first = [], []
    for number in range(COMPARED):
        last.append(append(0, appends - COMPARED + number))
        first.append(append(1, WARM_UP + number))
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(None)
        process.join()
    return last, first


def main(appends: int, volume_count: int) -> int:
    """Measure, print, and write the ratio to benchmarks/results; returns an exit code."""
    with tempfile.TemporaryDirectory(prefix="jstream-bench-") as place:
        stores = [[Path(place) / f"{label}-{n}" for n in range(volume_count)] for label in ("many", "few")]
        for volumes in stores:
            with Store.create(volumes) as store:
                store.add_stream({"name": STREAM})
        last, first = measure(stores, appends)
    ratio = round(sum(last) / sum(first), 2)
    for label, taken in ((f"the last {COMPARED} of {appends:,} appends", last), (f"the first {COMPARED}", first)):
        print(f"{label:<32} {1000 * sum(taken) / COMPARED:6.2f} ms of CPU each, median {1000 * median(taken):6.2f} ms")
    print(f"ratio {ratio:.2f}")
    made = {"name": f"CPU of an append after {appends:,} in turns / at first", "ratio": ratio, "by_cpu": ratio}
    command = f"python -m benchmarks.turns --appends {appends} --volumes {volume_count}"
    write_figures("turns", command, {"ratios": [{**made, "at_most": WANTED_MAX}]})
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turns", description=__doc__)
    parser.add_argument("--appends", type=int, default=APPENDS, help=f"how many ({APPENDS})")
    parser.add_argument("--volumes", type=int, default=1, help="volumes of the store (1)")
    arguments = parser.parse_args()
    sys.exit(main(arguments.appends, arguments.volumes))
