"""Runs of the fuzzer: cases one after another in forked children with limits, and what came of them.

A case is the name of a store and a seed: both together always make the same mutation. A child that dies, or goes on
for too long, costs its case, which is a finding, and the next child goes on behind it.
"""

import json
import logging
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.fuzz.stores import (
    NATS,
    STAN,
    Mutation,
    Subject,
    adopted,
    backed_up,
    foreign,
    golden,
    mutate,
    single_files,
    three_volumes,
)

CPU_SECONDS_MAX = 10.0  # of one case: 5 are promised of a quiet machine
WALL_SECONDS_MAX = 180  # after which a case hangs, whatever else the machine does
MEMORY_MAX = 500 << 20  # bytes that a case takes beside what the process has
ADDRESS_SPACE_MAX = 6 << 30  # bytes beside that of the process: what gets there ends in MemoryError, not in the machine
FINDING_COUNT_MAX = 20  # after which a run ends


@dataclass
class Outcome:
    counts: Counter[str] = field(default_factory=Counter)  # cases by kind of file
    sealed: int = 0  # cases with checksums redone
    findings: list[str] = field(default_factory=list)

    @property
    def cases(self) -> int:
        return self.counts["cases"]

    def describe(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items()) if kind != "cases")
        return f"{self.cases} cases ({kinds}), {self.sealed} of them with checksums redone"


def subjects(folder: Path) -> dict[str, Subject]:
    """Return all stores by name; some are made in the folder."""
    listed = [foreign("nats", name) for name in NATS] + [foreign("stan", name) for name in STAN]
    three = three_volumes(folder)
    listed += [golden("v1-lived"), golden("v1-fresh"), three, adopted(three), backed_up(folder), single_files(folder)]
    return {subject.name: subject for subject in listed}


def cases(names: Iterable[str], seed: int) -> Iterator[tuple[str, int]]:
    """Yield cases without end, one store after another."""
    names = list(names)
    while True:
        yield from ((name, seed) for name in names)
        seed += 1


def run(
    stores: dict[str, Subject],
    todo: Iterator[tuple[str, int]],
    folder: Path,
    seconds: float,
    count_max: int | None = None,
) -> Outcome:
    """Try cases until the time is over or they are done. Ctrl-C or SIGTERM ends it: what was tried by then counts."""
    outcome = Outcome()
    end = time.monotonic() + seconds
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while time.monotonic() < end and len(outcome.findings) < FINDING_COUNT_MAX:
            left = None if count_max is None else count_max - outcome.cases
            batch = [case for _, case in zip(range(min(200, 200 if left is None else left)), todo, strict=False)]
            if not batch:
                break
            while batch:
                batch = _run_batch(stores, batch, folder, outcome, end)
    except KeyboardInterrupt:
        print(f"ended after {outcome.cases} cases")
    finally:
        signal.signal(signal.SIGTERM, before)
    return outcome


def _run_batch(
    stores: dict[str, Subject], batch: list[tuple[str, int]], folder: Path, outcome: Outcome, end: float
) -> list[tuple[str, int]]:
    """Try cases in a child; return those that are left when it died."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        status = 1
        try:
            _limit()
            with os.fdopen(writing, "w") as out:
                for at, (name, seed) in enumerate(batch):
                    if time.monotonic() > end:
                        break
                    print(json.dumps({"began": at}), file=out, flush=True)
                    print(json.dumps({"done": at, **_try(stores[name], seed, folder)}), file=out, flush=True)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    began, done = -1, -1
    try:
        with os.fdopen(reading) as lines:
            for line in lines:
                report = json.loads(line)
                began = report.get("began", began)
                if "done" in report:
                    done = report["done"]
                    outcome.counts.update(["cases", *report["kinds"]])
                    outcome.sealed += report["sealed"]
                    if report["wrong"]:
                        name, seed = batch[done]
                        outcome.findings.append(f"{name} seed={seed} {report['did']}: {report['wrong']}")
    except KeyboardInterrupt:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    _, status = os.waitpid(child, 0)
    if began > done or status:
        name, seed = batch[max(began, 0)]
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
        outcome.counts.update(["cases"])
        outcome.findings.append(f"{name} seed={seed}: the process ended by {how}")
        return batch[began + 1 :]
    return []


def _limit() -> None:
    logging.disable(logging.CRITICAL)
    sys.stdin.close()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESS_SPACE_MAX, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGPROF, signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _try(subject: Subject, seed: int, folder: Path) -> dict[str, object]:
    rng = random.Random(f"{subject.name}-{seed}")
    place = folder / f"case-{os.getpid()}"
    shutil.rmtree(place, ignore_errors=True)
    mutation, wrong = Mutation(), ""
    try:
        shutil.copytree(subject.place, place)
        mutation = mutate(place, subject, rng)
        signal.setitimer(signal.ITIMER_PROF, 3 * CPU_SECONDS_MAX)
        signal.alarm(WALL_SECONDS_MAX)
        before, began = _reset_peak(), time.process_time()
        shown, reports = subject.read(place, rng)
        took, peak = time.process_time() - began, _peak() - before
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        wrong = subject.check(subject, mutation, shown, reports)
        if took > CPU_SECONDS_MAX:
            wrong = f"took {took:.1f} s"
        if peak > MEMORY_MAX:
            wrong = f"took {peak >> 20} MiB"
    except BaseException:
        wrong = traceback.format_exc(limit=-6)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        shutil.rmtree(place, ignore_errors=True)
    return {"wrong": wrong, "kinds": mutation.kinds, "sealed": mutation.sealed, "did": "; ".join(mutation.done)}


def _reset_peak() -> int:
    """Begin to measure the peak anew; return what the process has now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) * 1024
