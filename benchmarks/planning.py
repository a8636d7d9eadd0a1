"""`python -m benchmarks.planning`: how long a store of many small blocks takes to open, to list and to plan.

Each block holds one message, made with one append. Times are medians of fresh openings, after imports, with the files
in the page cache.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa

from storage_core import Store
from storage_core.store.plan import ReadRequest

BLOCKS = 10_000
ROUNDS = 5
STREAM = "MANY"


def make_store(volume: Path, blocks: int) -> None:
    with Store.create(volume) as store:
        stream = store.add_stream({"name": STREAM, "subjects": ["many.>"], "block_max_msgs": 1})
        stream.append(pa.table({"subject": [f"many.{n % 7}" for n in range(blocks)], "data": ["x"] * blocks}))


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(volume: Path) -> dict[str, float]:
    """Return the median seconds of each step."""
    found: dict[str, list[float]] = {"open": [], "list": [], "plan": [], "plan one subject": []}
    one_subject = ReadRequest((STREAM,), subject_filters=("many.3",))
    for _ in range(ROUNDS):
        found["open"].append(seconds(lambda: Store.open(volume)))
        store = Store.open(volume)
        found["list"].append(seconds(store.streams))
        found["plan"].append(seconds(partial(store.plan, ReadRequest((STREAM,)))))
        found["plan one subject"].append(seconds(partial(store.plan, one_subject)))
    return {step: median(times) for step, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=__doc__)
    parser.add_argument("--blocks", type=int, default=BLOCKS, help=f"how many ({BLOCKS})")
    blocks = parser.parse_args().blocks
    with tempfile.TemporaryDirectory() as place:
        make_store(Path(place) / "store", blocks)
        for step, taken in measure(Path(place) / "store").items():
            print(f"{blocks:>9,} blocks  {step:<18} {taken:8.4f} s")


if __name__ == "__main__":
    main()
