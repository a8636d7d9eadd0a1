"""MirroredFile: one block that is written to several volumes at once, each of which may fail on its own.

The writer of a block sees a single file. Every write goes to all volumes in parallel, from the same buffer, and returns
when the slowest is done, in object stores without one that is much slower than most; small pieces wait for the next
large one, so that a frame costs one round. The files are made with the first round: a block whose rows still fit into
memory has none open. A volume that fails is left out from then on, and what it has of the file is taken away again;
when fewer than `needed` are left, the decisive error comes out.

The disks begin to write while the block is still being made, so that the fsync at its end finds little left to do: of
three replicas on one disk that is most of what they cost in time.
"""

import errno
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from storage_core.deadlines import DeadlineFile, VolumeCall
from storage_core.files import PAGE_SIZE, File, OsFile
from storage_core.os_errors import CLOSED, FULL, LIMITS, raise_if_limit
from storage_core.raft.rules import majority
from storage_core.store.environment import Environment
from storage_core.store.volume.block_store import BlockStore, VolumeHandle

T = TypeVar("T")
logger = logging.getLogger(__name__)
BROKEN_DISK = (errno.EIO, errno.ENXIO, errno.ENODEV, errno.EUCLEAN, errno.ETIMEDOUT)
GATHERED_SIZE_MAX = 64 << 10  # bytes of small writes that wait for company
STARTED_SIZE_MIN = 8 << 20  # bytes that the disk is told to begin with at a time


class MirroredFile:
    """A new block on several volumes. Not thread-safe; written front to back.

    Raises OSError when too few volumes are left.
    """

    opened_size, tag = 0, ""

    def __init__(
        self,
        volumes: Sequence[VolumeHandle],
        incarnation: bytes,
        block_id: bytes,
        needed: int,
        env: Environment,
    ) -> None:
        self.failures: dict[bytes, OSError] = {}  # by volume
        self._needed, self._env = needed, env
        self._incarnation, self._block_id = incarnation, block_id
        self._blocks = {volume.volume_id: volume.blocks(env.files) for volume in volumes}
        self.path = self._path(volumes[0].volume_id)
        self._files: dict[bytes, File] = {}  # empty until the first round
        self.is_made = False  # whether there are files, which take a descriptor each until they are closed
        self._start = 0  # where the gathered bytes go
        self._gathered = bytearray()
        self._started = 0  # Invariant: a page boundary; the disks were told to begin with all before it

    @property
    def holders(self) -> tuple[bytes, ...]:
        """Return the volumes that have all that was written."""
        return tuple(self._files)

    def _path(self, volume_id: bytes) -> Path:
        return self._blocks[volume_id].path(self._incarnation, self._block_id)

    def write_at(self, offset_bytes: int, data: bytes | memoryview) -> None:
        end = self._start + len(self._gathered)
        if offset_bytes == end and len(self._gathered) + len(data) <= GATHERED_SIZE_MAX:
            self._gathered += data
            return
        start, gathered, started = self._start, bytes(self._gathered), self._started
        full = (offset_bytes + len(data)) // PAGE_SIZE * PAGE_SIZE  # a page on its way to the disk is slow to write to
        is_due = full - started >= STARTED_SIZE_MIN

        def write(file: File) -> None:
            if gathered:
                file.write_at(start, gathered)
            file.write_at(offset_bytes, data)
            if is_due and isinstance(file, (OsFile, DeadlineFile)):
                file.start_writing(started, full - started)

        self._everywhere(write)
        self._start = offset_bytes + len(data)
        self._started = full if is_due else started
        self._gathered.clear()

    def sync(self) -> None:
        """Sync the file and its directory on every volume that is left, both side by side.

        No entry refers to the file before both are durable, so their order does not matter. A volume on which either
        fails is left out.
        """
        start, gathered = self._start, bytes(self._gathered)
        if gathered or not self.is_made:
            self._everywhere(lambda file: file.write_at(start, gathered))
        self._start += len(gathered)
        self._gathered.clear()
        volume_ids = list(self._files)
        calls = [self._on(volume_id, self._files[volume_id].sync) for volume_id in volume_ids]
        calls += [
            self._on(volume_id, partial(self._blocks[volume_id].sync, self._incarnation)) for volume_id in volume_ids
        ]
        outcomes = self._env.parallel(calls)
        for at, of_name in enumerate(outcomes[len(volume_ids) :]):
            if not isinstance(outcomes[at], BaseException):
                outcomes[at] = of_name
        self._note_failures(volume_ids, outcomes[: len(volume_ids)])

    def read_at(self, offset_bytes: int, size: int) -> bytes:
        return self._any().read_at(offset_bytes, size)

    def read_into(self, offset_bytes: int, buffer: memoryview) -> int:
        return self._any().read_into(offset_bytes, buffer)

    def truncate(self, size: int) -> None:
        self._everywhere(lambda file: file.truncate(size))

    def size(self) -> int:
        return self._any().size() + len(self._gathered)

    def close(self) -> None:
        for file in self._files.values():
            _close(file)

    def discard(self) -> None:
        """Close, if it is open, and remove every copy: nobody was told of this block."""
        for volume_id in list(self._files):
            self._abandon(volume_id)

    def _any(self) -> File:
        if not self.is_made:
            self._everywhere(lambda file: None)
        return next(iter(self._files.values()))

    def _everywhere(self, call: Callable[[File], None]) -> None:
        """Do it with every file; the first call creates them."""
        if self.is_made:
            volume_ids = list(self._files)
            outcomes = self._env.parallel(
                [self._on(volume_id, partial(call, self._files[volume_id])) for volume_id in volume_ids]
            )
        else:
            self.is_made = True
            volume_ids = list(self._blocks)
            outcomes = self._env.parallel(
                [self._on(volume_id, partial(self._create, self._blocks[volume_id], call)) for volume_id in volume_ids]
            )
            for volume_id, outcome in zip(volume_ids, outcomes, strict=True):
                if not isinstance(outcome, BaseException):
                    self._files[volume_id] = outcome
        self._note_failures(volume_ids, outcomes)

    def _on(self, volume_id: bytes, call: Callable[[], T]) -> VolumeCall[T]:
        """Return work on a volume, which is not waited for if it is slow and enough others are not."""
        return self._blocks[volume_id].on_volume(call, majority_suffices=self._needed <= majority(len(self._blocks)))

    def _create(self, blocks: BlockStore, call: Callable[[File], None]) -> File:
        """Return a new file with which `call` was done; if that fails, there is none."""
        file = blocks.create(self._incarnation, self._block_id)
        try:
            call(file)
        except BaseException:
            _close(file)
            blocks.discard(self._incarnation, self._block_id)
            raise
        return file

    def _note_failures(self, volume_ids: Sequence[bytes], outcomes: Sequence[object]) -> None:
        """Leave out the volumes that failed; raises OSError if the others are too few.

        Raises ProcessError where this process ran into a limit, which is no reason to leave out any.
        """
        for volume_id, outcome in zip(volume_ids, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                raise_if_limit(outcome, self._path(volume_id))
        for volume_id, outcome in zip(volume_ids, outcomes, strict=True):
            if isinstance(outcome, OSError):
                outcome.filename = outcome.filename or str(self._path(volume_id))  # calls on open files name none
                self.failures[volume_id] = outcome
                self._abandon(volume_id)
            elif isinstance(outcome, BaseException):
                raise outcome
        if len(self._files) < self._needed:
            raise primary_error(list(self.failures.values()))

    def _abandon(self, volume_id: bytes) -> None:
        """Take back the copy of a volume that failed: its space may be what the others need."""
        file = self._files.pop(volume_id, None)
        if file is None:  # never made
            return
        _close(file)
        self._blocks[volume_id].discard(self._incarnation, self._block_id)


def is_disk_failure(error: OSError) -> bool:
    """Return whether the error is that of a broken disk: a full one, or a missing directory, proves nothing."""
    return error.errno in BROKEN_DISK


def _close(file: File) -> None:
    try:
        file.close()
    except OSError as error:  # what counts was synced before
        logger.warning("%s: close: %s", file.path, error)


def primary_error(failures: Sequence[OSError]) -> OSError:
    """Return the error to tell of several: first those that the user can do something about."""

    def rank(error: OSError) -> int:
        for position, codes in enumerate((FULL, CLOSED, LIMITS)):
            if error.errno in codes:
                return position
        return 4 if isinstance(error, FileNotFoundError) else 3

    return min(failures, key=rank)
