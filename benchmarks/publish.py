"""`python -m benchmarks.publish`: publishing one message, against an append and fdatasync of as many bytes.

One message is one block, its name and one entry of the metadata log, durable on every volume when `publish` returns.
Beside it a plain program appends as many bytes to a file that is open and calls fdatasync. Each repetition does all of
them one after another, in an order that is drawn anew, so other work of the machine and the disk slows all of them
alike. Worth something on a real disk alone: `--directory` says on which; tmpfs syncs nothing.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.figures import write_figures
from storage_core import Store

REPETITIONS, WARM_UP = 300, 20
PAYLOAD_SIZE = 100  # bytes
ENTRY_SIZE = 4096  # bytes that one entry takes in the log
VOLUMES = (1, 3)
WANTED_MAX = 4.0
STREAM = "ONE"


def publisher(volumes: list[Path]) -> Callable[[], object]:
    """Return what publishes one message to a new store on these volumes."""
    stream = Store.create(volumes).add_stream({"name": STREAM, "num_replicas": len(volumes)})
    return lambda: stream.publish(STREAM, bytes(PAYLOAD_SIZE))


def block_size(volumes: list[Path]) -> int:
    """Return how many bytes the block of one message has."""
    return next(volumes[0].rglob("*.blk")).stat().st_size


def appender(path: Path, size: int) -> Callable[[], object]:
    """Return what appends so many bytes to one file, and has them on the disk when it returns."""
    descriptor, content = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), os.urandom(size)

    def append() -> None:
        os.write(descriptor, content)
        getattr(os, "fdatasync", os.fsync)(descriptor)

    return append


def measure(works: dict[str, Callable[[], object]], repetitions: int) -> dict[str, list[tuple[float, float]]]:
    """Return elapsed and processor seconds of every repetition, by work."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for number in range(WARM_UP + repetitions):
        for name in random.sample(list(works), len(works)):
            began, cpu_began = time.perf_counter(), time.process_time()
            works[name]()
            if number >= WARM_UP:
                taken[name].append((time.perf_counter() - began, time.process_time() - cpu_began))
    return taken


def main(repetitions: int, directory: str | None) -> int:
    """Measure, print, and write the ratios to benchmarks/results; returns an exit code."""
    with tempfile.TemporaryDirectory(prefix="jstream-bench-", dir=directory) as place:
        stores = {count: [Path(place) / f"{count}-{number}" for number in range(count)] for count in VOLUMES}
        works = {f"publish, {count} volumes": publisher(volumes) for count, volumes in stores.items()}
        works[f"publish, {VOLUMES[0]} volumes"]()
        size = block_size(stores[VOLUMES[0]]) + ENTRY_SIZE
        plain = f"append and fdatasync of {size} bytes"
        works[plain] = appender(Path(place) / "plain", size)
        taken = measure(works, repetitions)
    made = []
    for name, times in taken.items():
        elapsed_s, cpu_s = (median(pair[at] for pair in times) for at in (0, 1))
        print(f"{name:<40} median {1000 * elapsed_s:6.2f} ms, {1000 * cpu_s:5.2f} ms of CPU")
        if name != plain:
            ratio = round(median(ours[0] / theirs[0] for ours, theirs in zip(times, taken[plain], strict=True)), 2)
            made.append(
                {"name": f"{name} / append and fdatasync", "ratio": ratio, "by_cpu": 0.0, "at_most": WANTED_MAX}
            )
            print(f"{'':<40} median of pairs {ratio:.2f} times the append")
    command = f"python -m benchmarks.publish --repetitions {repetitions}"
    write_figures("publish", command, {"ratios": made})
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.publish", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help=f"counted ones ({REPETITIONS})")
    parser.add_argument("--directory", help="in which to measure (that of temporary files)")
    arguments = parser.parse_args()
    sys.exit(main(arguments.repetitions, arguments.directory))
