"""`python -m benchmarks.small_appends`: what many small appends still cost once holders have merged their blocks.

The same messages are stored twice: by many appends of a few messages, each with its maintenance as always, and by one
append. Planning and reading of both are measured in turns, as is opening; reading also through Spark with `--spark`.
Of the appends themselves the times of single ones are shown: maintenance runs after the ack, and it is waited for.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.figures import write_figures
from storage_core import Store
from storage_core.store.reading.plan import ReadRequest

APPENDS, EACH = 10_000, 10
PAYLOAD_SIZE = 100  # bytes
ROUNDS = 15
WANTED_PLANNING, WANTED_READING = 2.0, 0.8
STREAM = "MANY"
Taken = dict[str, tuple[float, float]]  # by step: elapsed and processor seconds


def messages(first: int, count: int) -> pa.Table:
    """Return messages that differ, on a handful of subjects."""
    return pa.table(
        {
            "subject": [f"many.{number % 7}" for number in range(first, first + count)],
            "data": [b"%016d" % number + bytes(PAYLOAD_SIZE - 16) for number in range(first, first + count)],
        }
    )


def fill(volumes: list[Path], appends: int, each: int) -> list[float]:
    """Make a store and append to it; return how long each append took, in seconds."""
    taken = []
    with Store.create(volumes) as store:
        stream = store.add_stream({"name": STREAM, "subjects": ["many.>"]})
        for number in range(appends):
            table = messages(number * each, each)
            began = time.perf_counter()
            stream.append(table)
            taken.append(time.perf_counter() - began)
            if number % 1000 == 999:
                print(f"{number + 1:>8,} appends, {len(stream.state().blocks)} blocks", flush=True)
    return taken


def times(work: Callable[[], object]) -> tuple[float, float]:
    """Return elapsed and processor seconds."""
    began, cpu_began = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - cpu_began


def once(volumes: list[Path], spark: Any) -> Taken:
    """Open, plan and read once."""
    opened: list[Store] = []
    taken = {"open": times(lambda: opened.append(Store.open(volumes)))}
    store = opened[0]
    taken["plan"] = times(partial(store.plan, ReadRequest((STREAM,))))
    taken["open and plan"] = tuple(map(sum, zip(taken["open"], taken["plan"], strict=True)))  # type: ignore[assignment]
    taken["read"] = times(lambda: store.stream(STREAM).read().read_all())
    if spark is not None:
        frame = spark.read.format("jstream").option("stream", STREAM).load(str(volumes[0]))
        taken["read by Spark"] = times(lambda: frame.write.format("noop").mode("overwrite").save())
    return taken


def ratios(small: list[Taken], large: list[Taken]) -> list[dict[str, Any]]:
    """Return what the small appends cost against one large: planning as times, reading as speeds."""
    made: list[dict[str, Any]] = []
    for step in small[0]:
        many, single = (
            [median(measured[step][at] for measured in listed) for at in (0, 1)] for listed in (small, large)
        )
        is_speed = step.startswith("read")
        over, under = (single, many) if is_speed else (many, single)
        goal = {"wanted": WANTED_READING} if is_speed else {"at_most": WANTED_PLANNING} if step == "plan" else {}
        ratio, by_cpu = (over[at] / max(under[at], 1e-9) for at in (0, 1))
        print(f"{step:<16} {many[0]:9.5f} s, of one append {single[0]:9.5f} s; ratio {ratio:.2f}, by CPU {by_cpu:.2f}")
        name = f"{step}: many small appends / one"
        made.append({"name": name, "ratio": round(ratio, 2), "by_cpu": round(by_cpu, 2), **goal})
    return made


def main(appends: int, each: int, volume_count: int, with_spark: bool) -> int:
    """Measure, print, and write the ratios to benchmarks/results; returns an exit code."""
    spark = None
    with tempfile.TemporaryDirectory(prefix="jstream-bench-") as place:
        if with_spark:
            from spark_stream.session import session

            spark = session("small appends", {"spark.sql.warehouse.dir": str(Path(place) / "warehouse")})
        many = [Path(place) / f"many-{number}" for number in range(volume_count)]
        single = [Path(place) / f"one-{number}" for number in range(volume_count)]
        taken = np.array(fill(many, appends, each))
        fill(single, 1, appends * each)
        shown = ", ".join(f"{label} {1000 * value:.1f} ms" for label, value in zip(
            ("median", "99 %", "99.9 %", "longest"), (*np.percentile(taken, [50, 99, 99.9]), taken.max()), strict=True
        ))  # fmt: skip
        print(f"an append of {each} messages: {shown}")
        measurements: tuple[list[Any], list[Any]] = ([], [])
        for number in range(ROUNDS + 1):
            for listed, volumes in zip(measurements, (many, single), strict=True):
                measured = once(volumes, spark)
                if number:
                    listed.append(measured)
        made = ratios(*measurements)
        if spark is not None:
            spark.stop()
    command = f"python -m benchmarks.small_appends --appends {appends} --messages {each} --volumes {volume_count}"
    write_figures("small_appends", command + " --spark" * with_spark, {"ratios": made})
    return 0


def run_from_command_line() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_appends", description=__doc__)
    parser.add_argument("--appends", type=int, default=APPENDS, help=f"how many ({APPENDS})")
    parser.add_argument("--messages", type=int, default=EACH, help=f"of each append ({EACH})")
    parser.add_argument("--volumes", type=int, default=1, help="volumes of the store (1)")
    parser.add_argument("--spark", action="store_true", help="read through Spark as well")
    arguments = parser.parse_args()
    return main(arguments.appends, arguments.messages, arguments.volumes, arguments.spark)


if __name__ == "__main__":
    sys.exit(run_from_command_line())
