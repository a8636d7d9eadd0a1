"""The disks that volumes are on."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiskSpace:
    free: int  # bytes that this user may still write
    size: int  # bytes of the whole file system


def space_of(path: str) -> DiskSpace | None:
    """Return the space of the disk that a path is on; None if it cannot be read."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    return DiskSpace(disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize)
