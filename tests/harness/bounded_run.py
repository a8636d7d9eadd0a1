"""A reading of hostile bytes in a process of its own: how much memory it took, and that it came to an end."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SECONDS_MAX = 120  # after which a process hangs; the bounds are meant for a few
_READ = """
import json, sys
from storage_core.errors import StorageError
from storage_core.foreign import open_foreign, read_foreign_slice
damage, rows, error = [], 0, None
try:
    store = open_foreign(sys.argv[2], sys.argv[1])
    for stream in store.streams():
        told, slices = store.inspect(stream)
        damage += told
        for part in slices:
            for batch in read_foreign_slice(part, ["sequence", "subject", "data"], damage.append):
                rows += len(batch)
except StorageError as caught:
    error = type(caught).__name__
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024
print(json.dumps({"rows": rows, "reasons": [one.reason for one in damage], "error": error, "peak_bytes": peak}))
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    rows: int
    reasons: list[str]  # of the damage that was told
    error: str | None  # the StorageError that ended it
    peak_bytes: int


def read_foreign(layout: str, path: Path) -> Outcome:
    """Return what comes of reading a whole foreign store. Raises AssertionError if the process hangs or crashes."""
    with subprocess.Popen(
        [sys.executable, "-c", _READ, layout, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, err = process.communicate(timeout=SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"{path}: not read within {SECONDS_MAX} s") from None
    assert process.returncode == 0, err
    return Outcome(**json.loads(out))


def make_sparse(path: Path, size: int) -> None:
    """Make a file that holds nothing but its size."""
    with path.open("wb") as file:
        os.truncate(file.fileno(), size)
