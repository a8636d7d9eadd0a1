"""`python -m benchmarks.planning`: how long a store of many blocks, or after many commits, takes to open and to plan.

Blocks are entries of the metadata only, made without their files: neither opening nor planning looks at those. The same
is measured for fewer blocks and fewer commits in the same run. Times are medians of fresh openings, after imports, with
the files in the page cache.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from storage_core import Store
from storage_core.metadata.commands import Append, AppendedBlocks
from storage_core.metadata.manifest import BLOCK_DTYPE
from storage_core.store.plan import ReadRequest

BLOCKS = (1_000, 100_000)
COMMITS = (100, 10_000)
ROUNDS = 7
BLOCKS_PER_COMMIT = 1_000
GROUP = 50  # commits that are written in one round
STREAM = "MANY"


def make_store(volumes: list[Path], commits: int, blocks_per_commit: int) -> None:
    """Make a store whose stream has so many blocks, of one message each, by so many commits."""
    with Store.create(volumes) as store:
        stream = store.add_stream({"name": STREAM, "subjects": ["many.>"]})
        sets = tuple((f"many.{number}",) for number in range(7))
        for start in range(0, commits, GROUP):
            with store.metadata.turn(60.0) as turn:
                with turn.group():
                    for number in range(start, min(start + GROUP, commits)):
                        rows = np.zeros(blocks_per_commit, BLOCK_DTYPE)
                        rows["block_id"] = np.random.default_rng(number).bytes(16)
                        rows["first"] = np.arange(blocks_per_commit)
                        rows["span"] = rows["row_count"] = 1
                        rows["file_size"], rows["data_size"], rows["holders"] = 8192, 100, 2 ** len(volumes) - 1
                        sets_of = (np.arange(blocks_per_commit) % 7 + 1).astype("<i4").tobytes()
                        part = AppendedBlocks(stream.incarnation, rows.tobytes(), sets, sets_of)
                        turn.propose(Append((2**62 + number).to_bytes(8, "big") + bytes(8), (part,)))
                turn.snapshot_if_due()


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(volumes: list[Path]) -> dict[str, float]:
    """Return the median seconds of each step."""
    found: dict[str, list[float]] = {"open": [], "plan": [], "plan one subject": []}
    one_subject = ReadRequest((STREAM,), subject_filters=("many.3",))
    for _ in range(ROUNDS):
        found["open"].append(seconds(lambda: Store.open(volumes)))
        store = Store.open(volumes)
        found["plan"].append(seconds(partial(store.plan, ReadRequest((STREAM,)))))
        found["plan one subject"].append(seconds(partial(store.plan, one_subject)))
    return {step: median(times) for step, times in found.items()}


def compare(what: str, volume_count: int, sizes: tuple[int, ...], shape: Callable[[int], tuple[int, int]]) -> None:
    """Print the times of each size, and what the largest takes of the time of the smallest."""
    results = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as place:
            volumes = [Path(place) / f"volume-{number}" for number in range(volume_count)]
            make_store(volumes, *shape(size))
            results.append(measure(volumes))
        for step, taken in results[-1].items():
            print(f"{volume_count} volumes  {size:>9,} {what:<8} {step:<18} {taken:8.4f} s")
    for step in results[0]:
        print(f"{volume_count} volumes  {what:<8} {step:<18} ratio {results[-1][step] / results[0][step]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=__doc__)
    parser.add_argument("--volumes", type=int, default=3, help="volumes of the store (3)")
    count = parser.parse_args().volumes
    compare(
        "blocks", count, BLOCKS, lambda blocks: (max(1, blocks // BLOCKS_PER_COMMIT), min(blocks, BLOCKS_PER_COMMIT))
    )
    compare("commits", count, COMMITS, lambda commits: (commits, 1))


if __name__ == "__main__":
    main()
