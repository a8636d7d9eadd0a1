"""Files that this process has open."""

import os
from pathlib import Path


def open_files(folder: Path) -> int:
    """Return how many files below a folder are open. Other files may be closed at any time, as garbage is collected."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += Path(os.readlink(f"/proc/self/fd/{name}")).is_relative_to(folder)
        except FileNotFoundError:
            continue  # that of the listing itself
    return count
