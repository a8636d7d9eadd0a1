"""`python -m benchmarks.planning`: how long a store of many blocks, or after many commits, takes to open and to plan.

Blocks are entries of the metadata; of their files only the first and last ones are made, which a writable opening looks
at, and these are empty but for their size. Planning looks at none. The same is measured for fewer blocks and fewer
commits in the same run, in turns. Times are medians of fresh openings, after imports, with the files in the page cache.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.figures import write_figures
from storage_core import Store
from storage_core.files import OS_FILES
from storage_core.metadata.commands import Append, AppendedBlocks
from storage_core.metadata.manifest import BLOCK_DTYPE, encode_blocks
from storage_core.store.reading.plan import ReadRequest
from storage_core.store.volume.block_store import BlockStore

BLOCKS = (1_000, 100_000)
COMMITS = (100, 10_000)
ROUNDS = 9
FILES_AT_EACH_END = 300  # block files that are made; more than an opening looks at
WANTED_BLOCKS, WANTED_COMMITS = 3.0, 1.5  # times as long as for few
WANTED_S = 1.0  # to open and plan many blocks
BLOCKS_PER_COMMIT = 1_000
GROUP = 50  # commits that are written in one round
STREAM = "MANY"
Taken = dict[str, tuple[float, float]]  # by step: elapsed and processor seconds


def make_store(volumes: list[Path], commits: int, blocks_per_commit: int) -> None:
    """Make a store whose stream has so many blocks, of one message each, by so many commits."""
    with Store.create(volumes) as store:
        stream = store.add_stream({"name": STREAM, "subjects": ["many.>"]})
        sets = tuple((f"many.{number}",) for number in range(7))
        for start in range(0, commits, GROUP):
            with store.metadata.session(60.0) as session:
                with session.group():
                    for number in range(start, min(start + GROUP, commits)):
                        rows = np.zeros(blocks_per_commit, BLOCK_DTYPE)
                        rows["block_id"] = ids(number, blocks_per_commit)
                        rows["first"] = np.arange(blocks_per_commit)
                        rows["span"] = rows["row_count"] = 1
                        rows["file_size"], rows["data_size"], rows["holders"] = 8192, 100, 2 ** len(volumes) - 1
                        sets_of = (np.arange(blocks_per_commit) % 7 + 1).astype("<i4").tobytes()
                        part = AppendedBlocks(stream.incarnation, encode_blocks(rows), sets, sets_of)
                        session.propose(Append((2**62 + number).to_bytes(8, "big") + bytes(8), (part,)))
                session.snapshot_if_due()
        make_files(volumes, store)


def ids(commit: int, count: int) -> np.ndarray:
    """Return block ids that nobody else has."""
    return np.frombuffer(np.random.default_rng(commit).bytes(16 * count), "V16")


def make_files(volumes: list[Path], store: Store) -> None:
    """Make the files of the first and last blocks, with their size and nothing in them."""
    stream = store.stream_state(STREAM)
    rows = stream.blocks.rows
    ends = rows if len(rows) <= 2 * FILES_AT_EACH_END else rows[np.r_[:FILES_AT_EACH_END, -FILES_AT_EACH_END:0]]
    for volume in volumes:
        blocks = BlockStore(OS_FILES, volume)
        for block_id, file_size in zip(ends["block_id"].tolist(), ends["file_size"].tolist(), strict=True):
            with open(blocks.path(stream.incarnation, block_id), "xb") as file:
                os.ftruncate(file.fileno(), file_size)


def times(work: Callable[[], object]) -> tuple[float, float]:
    """Return elapsed and processor seconds."""
    began, cpu_began = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - cpu_began


def once(volumes: list[Path]) -> Taken:
    """Open and plan once."""
    opened: list[Store] = []
    taken = {"open": times(lambda: opened.append(Store.open(volumes)))}
    taken["plan"] = times(partial(opened[0].plan, ReadRequest((STREAM,))))
    taken["open and plan"] = tuple(map(sum, zip(taken["open"], taken["plan"], strict=True)))  # type: ignore[assignment]
    taken["plan one subject"] = times(partial(opened[0].plan, ReadRequest((STREAM,), subject_filters=("many.3",))))
    taken["open read-only"] = times(partial(Store.open, volumes, read_only=True))
    return taken


def compare(
    unit: str, volume_count: int, sizes: tuple[int, int], shape: Callable[[int], tuple[int, int]], wanted: float
) -> list[dict[str, object]]:
    """Print the times of both sizes, and what the large one takes of the time of the small one; return the ratios."""
    with tempfile.TemporaryDirectory(prefix="jstream-bench-") as place:
        stores = {}
        for size in sizes:
            volumes = [Path(place) / f"{size}-volume-{number}" for number in range(volume_count)]
            make_store(volumes, *shape(size))
            stores[size] = volumes
        taken: dict[int, list[Taken]] = {size: [] for size in sizes}
        for number in range(ROUNDS + 1):
            for size, volumes in stores.items():
                measured = once(volumes)
                if number:
                    taken[size].append(measured)
    ratios: list[dict[str, object]] = []
    small, large = sizes
    for step in taken[small][0]:
        medians = {
            size: tuple(median(measured[step][at] for measured in taken[size]) for at in (0, 1)) for size in sizes
        }
        ratio, by_cpu = (medians[large][at] / medians[small][at] for at in (0, 1))
        for size in sizes:
            elapsed, cpu = medians[size]
            print(f"{volume_count} volumes  {size:>9,} {unit:<8} {step:<18} {elapsed:8.4f} s {cpu:8.4f} CPU s")
        goal = wanted if step == ("open and plan" if unit == "blocks" else "open") else None
        print(f"{'':32}{step:<18} ratio {ratio:.2f}, by CPU {by_cpu:.2f}{f', wanted <= {goal}' if goal else ''}")
        ratios.append(
            {
                "name": f"{step}: {large:,} {unit} / {small:,}",
                "ratio": round(ratio, 2),
                "by_cpu": round(by_cpu, 2),
                "at_most": goal,
                "seconds": round(medians[large][0], 4),
                "cpu_seconds": round(medians[large][1], 4),
            }
        )
    return ratios


def main(volume_count: int) -> int:
    """Measure, print, and write the ratios to benchmarks/results; returns an exit code."""
    ratios = compare(
        "blocks",
        volume_count,
        BLOCKS,
        lambda blocks: (max(1, blocks // BLOCKS_PER_COMMIT), min(blocks, BLOCKS_PER_COMMIT)),
        WANTED_BLOCKS,
    )
    both = next(ratio for ratio in ratios if str(ratio["name"]).startswith("open and plan"))
    many = {"ratio": both["seconds"], "by_cpu": both["cpu_seconds"], "at_most": WANTED_S}
    ratios.append({"name": f"open and plan {BLOCKS[1]:,} blocks, in seconds", **many})
    ratios += compare("commits", volume_count, COMMITS, lambda commits: (commits, 1), WANTED_COMMITS)
    command = f"python -m benchmarks.planning --volumes {volume_count}"
    write_figures("planning", command, {"ratios": ratios})
    return 0


def run_from_command_line() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=__doc__)
    parser.add_argument("--volumes", type=int, default=3, help="volumes of the store (3)")
    return main(parser.parse_args().volumes)


if __name__ == "__main__":
    sys.exit(run_from_command_line())
