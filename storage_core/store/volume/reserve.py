"""The reserve of a volume: room on a full disk for the entries that removals need, since only they make room.

    VOLUME/reserve      docs/formats/volume.md

Maintenance fills it. A session gives it up piece by piece, and only for what frees room: a removal that was refused for
want of a few pages would leave a disk full for ever. Nothing in the file is ever read.
"""

import hashlib
import logging
from contextlib import closing
from pathlib import Path

from storage_core.files import File, Files
from storage_core.os_errors import FULL

logger = logging.getLogger(__name__)
FILE_NAME = "reserve"
SIZE = 1024 * 1024  # bytes
PIECE_SIZE = 64 * 1024  # bytes that are given up at a time: what is left over others may take


class Reserve:
    """The reserve of one volume; used under its lock."""

    def __init__(self, files: Files, volume: Path) -> None:
        self._files, self.path = files, volume / FILE_NAME

    def give_up(self, leave: int = 0) -> bool:
        """Give a piece back to the disk, and leave so many bytes; return whether there was one."""
        try:
            with closing(self._files.open(self.path, writable=True)) as file:
                size = file.size()
                if size > leave:
                    file.truncate(max(leave, size - PIECE_SIZE))
                    file.sync()  # some file systems give the room to nobody before
                return size > leave
        except FileNotFoundError:
            return False
        except OSError as error:
            logger.warning("%s could not be given up: %s", self.path, error)
            return False

    def fill(self) -> bool:
        """Make it as large as it is to be, as far as there is room; return whether it is. Raises OSError."""
        try:
            size = self._files.file_size(self.path)
        except FileNotFoundError:
            self._files.create(self.path).close()
            self._files.sync_directory(self.path.parent)
            size = 0
        if size >= SIZE:
            return True
        with closing(self._files.open(self.path, writable=True)) as file:
            return _extend(file, size)


def _extend(file: File, size: int) -> bool:
    """Write what is missing, or less where there is no room; return whether all is there."""
    step = SIZE - size
    while step:
        try:
            file.write_at(size, _content(size, step))
            file.sync()
        except OSError as error:
            file.truncate(size)
            if error.errno not in FULL:
                raise
            step = step // 2 // PIECE_SIZE * PIECE_SIZE
        else:
            size += step
            step = min(step, SIZE - size)
    return size >= SIZE


def _content(start: int, size: int) -> bytes:
    """Return bytes that take as much room on a disk that compresses."""
    return hashlib.shake_128(start.to_bytes(8, "little")).digest(size)
