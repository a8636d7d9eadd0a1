"""`python -m benchmarks.scrub`: reading and checking every copy, against only reading the same files.

Plain reading is what a copying tool does: each file from front to back, in pieces of 4 MiB, the volumes side by side in
threads as scrub has them, nothing looked at. It is done with the files in the page cache, where the processor is what
counts, and after they were dropped from it, where the disk is.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from benchmarks.block import messages
from benchmarks.figures import write_figures
from storage_core import Store
from storage_core.files import OS_FILES

MESSAGES = 1_500_000
ROUNDS = 5
VOLUMES = 3
BLOCK_SIZE = 32 << 20  # bytes of messages in a block
PIECE_SIZE = 4 << 20  # bytes
WANTED = 0.8


def make_store(volumes: list[Path], message_count: int) -> None:
    with Store.create(volumes) as store:
        store.add_stream({"name": "ORDERS", "subjects": ["orders.>"], "block_max_bytes": BLOCK_SIZE})
        stream = store.stream("ORDERS")
        batches = [message.select(["subject", "data"]) for message in messages(message_count)]
        for start in range(0, len(batches), 100):
            stream.append(batches[start : start + 100])


def block_files(volume: Path) -> list[Path]:
    return sorted(volume.glob("streams/*/*.blk"))


def read_plainly(volumes: list[Path]) -> None:
    with ThreadPoolExecutor(len(volumes)) as threads:
        list(threads.map(read_volume, volumes))


def read_volume(volume: Path) -> None:
    buffer = memoryview(bytearray(PIECE_SIZE))
    for path in block_files(volume):
        with OS_FILES.open(path) as file:
            at = 0
            while count := file.read_into(at, buffer):
                at += count


def drop(volumes: list[Path]) -> None:
    for volume in volumes:
        for path in block_files(volume):
            OS_FILES.drop_cache(path)


def times(work: Callable[[], object]) -> tuple[float, float]:
    """Return elapsed and processor seconds."""
    began, cpu_began = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - cpu_began


def compare(volumes: list[Path], rounds: int, size: int) -> list[dict[str, object]]:
    ratios = []
    store = Store.open(volumes)
    whole = store.verify()
    assert whole["ok"], whole

    for cached in (True, False):
        taken: dict[str, list[tuple[float, float]]] = {}
        for number in range(rounds + 1):
            for name, work in (
                ("read", lambda: read_plainly(volumes)),
                ("verify", store.verify),
                ("scrub", store.scrub),
            ):
                if not cached:
                    drop(volumes)
                once = times(work)
                if number:
                    taken.setdefault(name, []).append(once)
        where = "in the page cache" if cached else "from the disk"
        elapsed = {name: median(elapsed_s for elapsed_s, _ in listed) for name, listed in taken.items()}
        cpu = {name: median(cpu_s for _, cpu_s in listed) for name, listed in taken.items()}
        for name in elapsed:
            rate = size / elapsed[name] / 1e6
            print(f"{name:<8} {where:<18} {rate:8.0f} MB/s {elapsed[name]:8.3f} s {cpu[name]:8.3f} CPU s")
        for name in ("verify", "scrub"):
            ratio, by_cpu = elapsed["read"] / elapsed[name], cpu["read"] / cpu[name]
            print(f"{name} / read {where}: {ratio:.2f}, by CPU {by_cpu:.2f}, wanted >= {WANTED}")
            ratios.append(
                {"name": f"{name} / read, {where}", "ratio": round(ratio, 3), "by_cpu": round(by_cpu, 3),
                 "wanted": WANTED}
            )  # fmt: skip
    return ratios


def main(message_count: int, rounds: int) -> int:
    """Measure, print, and write the ratios to benchmarks/results; returns an exit code."""
    with tempfile.TemporaryDirectory(prefix="jstream-bench-") as folder:
        volumes = [Path(folder) / f"volume-{number}" for number in range(VOLUMES)]
        make_store(volumes, message_count)
        size = sum(path.stat().st_size for volume in volumes for path in block_files(volume))
        count = sum(len(block_files(volume)) for volume in volumes)
        print(f"{message_count} messages, {count} files, {size / 1e6:.0f} MB on {VOLUMES} volumes of one disk")
        ratios = compare(volumes, rounds, size)
    command = f"python -m benchmarks.scrub --messages {message_count} --rounds {rounds}"
    write_figures("scrub", command, {"bytes": size, "ratios": ratios})
    return 0


def run_from_command_line() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scrub", description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"how many ({MESSAGES})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"counted rounds after one of warm-up ({ROUNDS})")
    arguments = parser.parse_args()
    return main(arguments.messages, arguments.rounds)


if __name__ == "__main__":
    sys.exit(run_from_command_line())
