"""What a store takes of its disks: live blocks, what will be unlinked, and what is free."""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from storage_core.errors import StorageError
from storage_core.store.replicas.replicas import Survey


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Bytes on one volume."""

    blocks: int  # of all block files
    live: int  # of those that the metadata names
    free: int | None  # on its file system; None: nobody knows
    total: int | None

    @property
    def to_be_freed(self) -> int:
        return max(0, self.blocks - self.live)


def disk_use(survey: Survey) -> Mapping[str, DiskUse]:
    """Return the use of each volume by its name; lists every directory of blocks once."""
    live: dict[bytes, int] = {}
    for stream in survey.view.state.streams.values():
        for replica in survey.replicas(stream):
            live[replica.volume_id] = live.get(replica.volume_id, 0) + replica.size
    found = {}
    for volume in survey.volumes:
        blocks = 0
        with suppress(OSError, StorageError):  # what it is like is told by its state
            if volume.is_there:
                for incarnation in volume.blocks.incarnations():
                    blocks += sum(volume.blocks.sizes(incarnation).values())
        free: int | None = None
        total: int | None = None
        with suppress(OSError):
            total, _, free = shutil.disk_usage(volume.path)
        found[volume.name] = DiskUse(blocks, live.get(volume.volume_id, 0), free, total)
    return found
