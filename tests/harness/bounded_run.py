"""A reading of hostile bytes in a process of its own: how long and how much memory it took, and that it ended."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS_MAX = 120  # after which a process hangs; the bounds are meant for a few
# Processors are slow at times: beside other machines, or all at work. So bounds are of seconds on one like those that
# they were chosen on, where counting to a million takes a fiftieth of one.
_CLOCK = """
import time
def counting_takes():
    began = time.process_time()
    sum(range(1_000_000))
    return time.process_time() - began
slowness_before = counting_takes() / 0.02
def seconds_since(began):
    return (time.process_time() - began) / max(slowness_before, counting_takes() / 0.02)
"""
_READ = """
import json, sys
began = time.process_time()
from storage_core.errors import StorageError
from storage_core.foreign import open_foreign, read_foreign_slice
damage, rows, error = [], 0, None
try:
    store = open_foreign(sys.argv[2:], sys.argv[1])
    for stream in store.streams():
        entries, slices = store.inspect(stream)
        damage += entries
        for part in slices:
            for batch in read_foreign_slice(part, ["sequence", "subject", "data"], damage.append):
                rows += len(batch)
except StorageError as caught:
    error = type(caught).__name__
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024
print(json.dumps({"rows": rows, "reasons": [entry.reason for entry in damage], "error": error, "peak_bytes": peak,
                  "seconds": seconds_since(began)}))
"""
# What becomes of each restore, in one process: each path is of a backup, and what it is restored onto lies beside it.
_RESTORE = """
import json, sys
from storage_core.errors import StorageError
from storage_core.store.store import Store
ended = []
for path in sys.argv[1:]:
    began, error, text = time.process_time(), None, ""
    try:
        store = Store.restore(path, path + "-restored")
        store.verify()
        for name in store.streams():
            store.stream(name).read().read_all().to_pylist()
    except StorageError as caught:
        error, text = type(caught).__name__, str(caught)
    ended.append({"error": error, "text": text, "seconds": seconds_since(began)})
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024
print(json.dumps({"ended": ended, "peak_bytes": peak}))
"""
# What verify and maintenance make of a store, and adoption of what is left without its metadata.
_VERIFY = """
import json, shutil, sys
from pathlib import Path
from storage_core.errors import StorageError
from storage_core.store.recovery import adopt
from storage_core.store.store import Store
ended = []
def act(action):
    began, error, text = time.process_time(), None, ""
    try:
        text = str(action())
    except StorageError as caught:
        error, text = type(caught).__name__, str(caught)
    ended.append({"error": error, "text": text, "seconds": seconds_since(began)})
def maintain():
    with Store.open([sys.argv[1]]) as store:
        for number in range(3):
            store.stream("notes").publish("notes", b"more")
        return store.maintain()
def rebuild():
    shutil.rmtree(Path(sys.argv[1], "meta"))
    return adopt.plan([Path(sys.argv[1])])
def verify():
    with Store.open([sys.argv[1]], read_only=True) as store:
        return json.dumps(store.verify())
for action in [verify, maintain, verify, rebuild] if sys.argv[2] == "all" else [rebuild]:
    act(action)
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024
print(json.dumps({"ended": ended, "peak_bytes": peak}))
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    rows: int
    reasons: list[str]  # of the damage that was reported
    error: str | None  # the StorageError that ended it
    peak_bytes: int
    seconds: float  # of CPU, as _CLOCK counts them


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of one case of several in a process."""

    error: str | None  # the StorageError that ended it
    text: str
    seconds: float  # as above


def read_foreign(layout: str, *paths: Path) -> Outcome:
    """Return what comes of reading a whole foreign store, of one copy or several.

    Raises AssertionError if the process hangs or crashes.
    """
    return Outcome(**_run(_READ, layout, *map(str, paths)))


def restore_all(backups: Sequence[Path]) -> tuple[list[Ended], int]:
    """Return what comes of restoring each backup and reading all of it, and how many bytes that took at most.

    Raises AssertionError if the process hangs or crashes, or ends with an error that is not ours.
    """
    found = _run(_RESTORE, *map(str, backups))
    return [Ended(**one) for one in found["ended"]], found["peak_bytes"]


def look_after(volume: Path, rebuild_only: bool = False) -> tuple[list[Ended], int]:
    """Return what comes of verifying a store of one volume, maintaining it, verifying it again and rebuilding its
    metadata, or of the last alone; and how many bytes that took at most. Raises AssertionError as restore_all does."""
    found = _run(_VERIFY, str(volume), "rebuild" if rebuild_only else "all")
    return [Ended(**one) for one in found["ended"]], found["peak_bytes"]


def _run(program: str, *arguments: str) -> dict[str, Any]:
    with subprocess.Popen(
        [sys.executable, "-c", _CLOCK + program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, err = process.communicate(timeout=SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"{arguments}: not done within {SECONDS_MAX} s") from None
    assert process.returncode == 0, err
    done: dict[str, Any] = json.loads(out)
    return done


def make_sparse(path: Path, size: int) -> None:
    """Make a file that holds nothing but its size."""
    with path.open("wb") as file:
        os.truncate(file.fileno(), size)
