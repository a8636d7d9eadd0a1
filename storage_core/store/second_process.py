"""A second process for a moment: whether a lock is one for it, too, nobody can find out alone."""

import subprocess
import sys
from pathlib import Path

SECOND_PROCESS_TIMEOUT_S = 30.0
_GOT, _BUSY = 0, 3
_TRY_LOCK = f"""
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit({_BUSY})
"""


def locks_in_another_process(path: Path) -> bool:
    """Return whether another process gets the lock on a file. Raises OSError if that cannot be known."""
    command = [sys.executable or "python3", "-I", "-S", "-c", _TRY_LOCK, str(path)]
    try:
        outcome = subprocess.run(command, capture_output=True, timeout=SECOND_PROCESS_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise OSError(None, f"a second process did not answer within {SECOND_PROCESS_TIMEOUT_S:g} s") from None
    if outcome.returncode not in (_GOT, _BUSY):
        last = outcome.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise OSError(None, "".join(last) or f"a second process ended with {outcome.returncode}")
    return outcome.returncode == _GOT
