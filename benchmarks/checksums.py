"""`python -m benchmarks.checksums`: how fast the checksums of JetStream's long messages are verified, on one core.

A nats-server of this machine (extra `nats`) is given a stream of messages of 1 MB, and one of 100 bytes. Each is read
in place, all columns, with its `index.db` and without: once with numba, and once in a process that has no numba. A
process reads twice, and its second reading counts. Speeds are those of processor time.
"""

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figures import write_figures
from benchmarks.rescue import connect, server

SIZES = {"1 MB": 1_000_000, "100 bytes": 100}
BYTES = 256_000_000
ROUNDS = 3
WINDOW = 64  # messages, then an acknowledgement


async def publish(address: str, stream: str, size: int, total: int) -> None:
    client = await connect(address)
    context = client.jetstream()
    await context.add_stream(name=stream, subjects=[stream])
    data = random.Random(1).randbytes(size)
    for number in range(total // size):
        payload = number.to_bytes(8, "little") + data[8:]
        if number % WINDOW == WINDOW - 1:
            await context.publish(stream, payload, timeout=30)
        else:
            await client.publish(stream, payload)
    await context.publish(stream, data, timeout=30)
    await client.close()


def read(path: str) -> dict[str, float]:
    """Read everything below the path; return bytes, seconds, and seconds of processor time."""
    from storage_core.foreign import open_foreign, open_foreign_slices
    from storage_core.schema import READ_SCHEMA

    size, start, cpu = 0, time.perf_counter(), time.process_time()
    for opened in open_foreign_slices(open_foreign(path).plan()):
        size += sum(batch.nbytes for batch in opened.read(tuple(READ_SCHEMA.names)))
    return {"bytes": size, "seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}


def read_in_process(path: Path, with_numba: bool) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.checksums", "--read", str(path)]
    done = subprocess.run(command + ([] if with_numba else ["--without-numba"]), check=True, stdout=subprocess.PIPE)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measure(total: int, rounds: int) -> list[dict[str, Any]]:
    speeds: dict[tuple[str, str, bool], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="jstream-bench-") as folder:
        stores: list[tuple[str, str, Path]] = []
        for name, size in SIZES.items():
            place = Path(folder) / name.replace(" ", "-")
            place.mkdir()
            with server(place) as address:
                asyncio.run(publish(address, "S", size, total if size > 100 else total // 8))
            shutil.copytree(place / "store", place / "bare")
            for index in (place / "bare").rglob("index.db"):
                index.unlink()
            stores += [(name, "index.db", place / "store"), (name, "no index.db", place / "bare")]
        for number in range(rounds):
            for name, index, path in stores:
                for with_numba in (True, False):
                    figures = read_in_process(path, with_numba)
                    speed = figures["bytes"] / figures["cpu_seconds"] / 1e6
                    speeds.setdefault((name, index, with_numba), []).append(speed)
            print(f"round {number + 1} of {rounds} done", flush=True)
    rows = []
    for name, index in dict.fromkeys((name, index) for name, index, _ in speeds):
        fast, slow = (median(speeds[name, index, with_numba]) for with_numba in (True, False))
        rows.append({"messages": name, "index": index, "numba_mb_s": fast, "without_mb_s": slow, "ratio": fast / slow})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checksums", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=BYTES // 1_000_000, help="of long messages (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds (%(default)s)")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parser.add_argument("--without-numba", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        if arguments.without_numba:
            sys.modules["numba"] = None  # type: ignore[assignment]
        read(arguments.read)
        print(json.dumps(read(arguments.read)))
        return 0
    rows = measure(arguments.megabytes * 1_000_000, arguments.rounds)
    for row in rows:
        print(
            f"messages of {row['messages']:<10}{row['index']:<14}{row['numba_mb_s']:8.0f} MB/s with numba"
            f"{row['without_mb_s']:8.0f} without   ratio {row['ratio']:.1f}"
        )
    command = f"python -m benchmarks.checksums --megabytes {arguments.megabytes} --rounds {arguments.rounds}"
    print(f"written to {write_figures('checksums', command, {'speeds': rows})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
