"""`python -m benchmarks.limits`: what limits cost: appends at one, and the removal of millions of messages.

Streams that stand at a limit are appended to in turns with one that has none, in processor time, so that other work of
the machine slows all of them alike. Two more begin with a message of each of many subjects, and get messages of some of
them: one keeps the newest of each subject, the other keeps all. At the end many messages go, by a purge and by a limit
that is lowered: in how many entries, and what memory the process takes for it beyond what it had (Linux).
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.figures import write_figures
from storage_core import Store

MESSAGES, ROUNDS, SUBJECTS, REMOVED = 100_000, 10, 1_000_000, 10_000_000
PAYLOAD_SIZE = 100  # bytes
FILLED = 4  # appends before the first that counts
WANTED, WANTED_PER_SUBJECT = 0.8, 0.3
SUBJECT = "s"
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def messages(count: int, generator: np.random.Generator, subjects: Any = SUBJECT) -> pa.Table:
    """Return messages whose data do not compress; `subjects`: the one of all, or of each a number."""
    data = pa.py_buffer(generator.bytes(count * PAYLOAD_SIZE))
    values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(PAYLOAD_SIZE), count, [None, data])
    names = pa.repeat(SUBJECT, count) if subjects is SUBJECT else pa.array(subjects).cast(pa.string())
    return pa.table({"subject": names, "data": values.cast(pa.binary())})


def made(place: Path, name: str, **config: Any) -> Any:
    """Return a stream in a store of its own."""
    return Store.create(place / name).add_stream({"name": "LIMITS", "subjects": [">"], **config})


def in_turns(works: dict[str, Callable[[int], object]], rounds: int) -> dict[str, float]:
    """Return the median of the processor seconds that each took."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds):
        for name, work in works.items():
            began = time.process_time()
            work(number)
            taken[name].append(time.process_time() - began)
    return {name: median(seconds) for name, seconds in taken.items()}


def show(taken: dict[str, float], base: str, wanted: float) -> list[dict[str, Any]]:
    """Print the speeds beside that of `base`, and return them as ratios."""
    ratios = []
    for name, seconds in taken.items():
        ratio = round(taken[base] / seconds, 2)
        print(f"{name:<52} {1000 * seconds:8.1f} ms of CPU, {ratio:.2f} of the speed")
        if name != base:
            ratios.append({"name": f"append: {name} / {base}", "ratio": ratio, "by_cpu": ratio, "wanted": wanted})
    return ratios


def at_limits(place: Path, count: int, rounds: int) -> list[dict[str, Any]]:
    """Measure appends to streams that stand at a limit within a block, and to those whose consumers decide."""
    generator = np.random.default_rng(1)
    tables = [messages(count, generator) for _ in range(FILLED)]
    kept = FILLED * count - count // 3
    streams = {
        "no limit": made(place, "none"),
        "max_msgs": made(place, "msgs", max_msgs=kept),
        "max_bytes": made(place, "bytes", max_bytes=kept * (PAYLOAD_SIZE + len(SUBJECT))),
        "retention=workqueue": made(place, "queue", retention="workqueue"),
        "retention=interest, a consumer that reads nothing": made(place, "interest", retention="interest"),
    }
    list(streams.values())[-1].add_consumer({"name": "c"})
    for stream in streams.values():
        for table in tables:
            stream.append(table)
    works = {
        name: lambda number, stream=stream: stream.append(tables[number % FILLED]) for name, stream in streams.items()
    }
    return show(in_turns(works, rounds), "no limit", WANTED)


def per_subject(place: Path, count: int, rounds: int, subject_count: int) -> list[dict[str, Any]]:
    """Measure appends to a stream that keeps one message of each of so many subjects."""
    generator = np.random.default_rng(2)
    tables = [messages(count, generator, generator.integers(0, subject_count, count)) for _ in range(FILLED)]
    streams = {
        "all of each subject": made(place, "all"),
        f"one of each of {subject_count:,} subjects": made(place, "one", max_msgs_per_subject=1),
    }
    for stream in streams.values():
        for first in range(0, subject_count, count):
            part = np.arange(first, min(first + count, subject_count))
            stream.append(messages(len(part), generator, part))
        stream.append(tables[0])
    works = {
        name: lambda number, stream=stream: stream.append(tables[number % FILLED]) for name, stream in streams.items()
    }
    return show(in_turns(works, rounds), "all of each subject", WANTED_PER_SUBJECT)


def removals(place: Path, count: int) -> list[dict[str, Any]]:
    """Remove all of many messages at once; return the memory that it took."""
    figures = []
    for name in ("purge", "max_msgs lowered to 1"):
        stream = made(place, f"removed-{name[:5]}")
        table = pa.table({"subject": pa.repeat(SUBJECT, 100_000), "data": pa.nulls(100_000, pa.binary())})
        for _ in range(count // 100_000):
            stream.append(table)
        store = Store.open(place / f"removed-{name[:5]}")
        before = store.view().index
        CLEAR.write_text("5")  # the peak begins anew
        start, began = _memory("VmRSS"), time.process_time()
        if name == "purge":
            store.stream("LIMITS").purge()
        else:
            store.edit_stream({"name": "LIMITS", "max_msgs": 1})
        seconds, size = time.process_time() - began, _memory("VmHWM") - start
        entries, left = store.view().index - before, store.stream_state("LIMITS").message_count
        print(f"{name}: {count:,} messages in {seconds:.2f} s of CPU, {entries} entries, {size >> 20} MiB; {left} left")
        figures.append({"name": name, "removed": count, "entries": entries, "memory_size": size})
    return figures


def _memory(field: str) -> int:
    """Return bytes of this process's memory, as the kernel counts them."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def main(count: int, rounds: int, subject_count: int, removed: int, directory: str | None) -> int:
    """Measure, print, and write the ratios to benchmarks/results; returns an exit code."""
    with tempfile.TemporaryDirectory(prefix="jstream-bench-", dir=directory) as name:
        place = Path(name)
        ratios = at_limits(place, count, rounds) + per_subject(place, count, rounds, subject_count)
        figures = removals(place, removed)
    command = f"python -m benchmarks.limits --messages {count} --rounds {rounds} --subjects {subject_count}"
    write_figures("limits", f"{command} --removed {removed}", {"ratios": ratios, "removals": figures})
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"of each append ({MESSAGES})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"counted appends to each stream ({ROUNDS})")
    parser.add_argument("--subjects", type=int, default=SUBJECTS, help=f"that have a message ({SUBJECTS})")
    parser.add_argument("--removed", type=int, default=REMOVED, help=f"messages that go at once ({REMOVED})")
    parser.add_argument("--directory", help="in which to measure (that of temporary files)")
    arguments = parser.parse_args()
    sys.exit(main(arguments.messages, arguments.rounds, arguments.subjects, arguments.removed, arguments.directory))
