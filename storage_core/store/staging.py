"""Staging: blocks written and made durable by tasks, before a commit names them.

A transaction is made on the driver and travels to the tasks; each task writes its rows through a Stager and sends
back StagedBlocks, plain values, for the commit. Until then nobody sees the blocks; after an abort they are swept.
"""

import errno
import logging
import socket
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage_core.block.format import BLOCK_SIZE_MAX, FRAME_ROW_COUNT_MAX, BlockIdentity, BlockSummary
from storage_core.block.writer import BlockWriter
from storage_core.errors import DiskFullError, NotFoundError, ReadOnlyError, VolumeFailedError
from storage_core.files import File
from storage_core.store.environment import REAL, Environment
from storage_core.store.messages import Acceptance, Messages, check_messages
from storage_core.subjects import is_literal

logger = logging.getLogger(__name__)
BLOCK_SUFFIX = ".blk"
FILE_SIZE_TARGET_MAX = BLOCK_SIZE_MAX // 2  # bytes; tiny headers take many times their message bytes in a file


@dataclass(frozen=True, slots=True)
class BlockDirectory:
    """Where one volume keeps the blocks of a stream."""

    volume_id: bytes
    instance_id: bytes
    path: str  # absolute; the same on every executor


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """A stream as a task needs it."""

    stream: str
    incarnation: bytes
    subjects: tuple[str, ...]
    max_msg_size: int
    compression: str
    block_max_msgs: int
    block_max_bytes: int
    directories: tuple[BlockDirectory, ...]

    def acceptance(self, default_subject: str | None) -> Acceptance:
        """Return what the stream takes; without a default, rows fall back on its only literal subject."""
        only = self.subjects[0] if len(self.subjects) == 1 and is_literal(self.subjects[0]) else None
        return Acceptance(self.stream, self.subjects, self.max_msg_size, default_subject or only)


@dataclass(frozen=True, slots=True)
class Transaction:
    """One atomic append in the making."""

    id: bytes  # creation time in ns (8, big-endian), then 8 random bytes
    store_id: bytes
    targets: dict[str, WriteTarget]


@dataclass(frozen=True, slots=True)
class StagedBlock:
    """A durable block that waits for its commit."""

    stream: str
    incarnation: bytes
    transaction_id: bytes
    partition: int  # blocks are ordered by partition, then by position
    position: int
    summary: BlockSummary
    holders: tuple[tuple[bytes, bytes], ...]  # (volume, instance) that fsynced it


def block_path(directory: str, block_id: bytes) -> Path:
    return Path(directory) / (block_id.hex() + BLOCK_SUFFIX)


def block_id_of(name: str) -> bytes | None:
    """Return the block id that a file is named by, None if it is no block's name."""
    stem = name[: -len(BLOCK_SUFFIX)]
    if not name.endswith(BLOCK_SUFFIX) or len(stem) != 32 or stem != stem.lower():
        return None
    try:
        return bytes.fromhex(stem)
    except ValueError:
        return None


class Stager:
    """Writes one task's rows of one stream as blocks. Not thread-safe; `finish` or `discard` ends it."""

    def __init__(
        self, transaction: Transaction, target: WriteTarget, partition: int, codec: str | None = None,
        env: Environment = REAL,
    ) -> None:  # fmt: skip
        self._transaction, self._target, self._partition, self._env = transaction, target, partition, env
        self._codec = codec or target.compression
        self._staged: list[StagedBlock] = []
        self._file: File | None = None
        self._writer: BlockWriter | None = None
        self._paths: list[Path] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch, default_subject: str | None = None) -> None:
        """Check and write the rows of `batch`, in write columns.

        Raises InvalidMessageError before anything of the batch is written; DiskFullError, ReadOnlyError,
        VolumeFailedError, NotFoundError (no such directory on this host).
        """
        messages = check_messages(batch, self._target.acceptance(default_subject), self._env.now_ns())
        start = 0
        while start < messages.batch.num_rows:
            start += self._write_some(messages, start)

    def _write_some(self, messages: Messages, start: int) -> int:
        """Write rows from `start` as far as they fit the current block; return how many."""
        sizes = messages.sizes[start:]
        room = self._target.block_max_bytes - self._bytes
        fit = int(np.searchsorted(np.cumsum(sizes), room, side="right"))
        fit = min(fit, self._target.block_max_msgs - self._rows, len(sizes), FRAME_ROW_COUNT_MAX)
        if fit == 0 and self._rows:
            self._seal()
            return 0
        fit = max(fit, 1)
        if self._writer is None:
            self._open()
        assert self._writer is not None
        hashes = messages.msg_ids[start : start + fit] if messages.msg_ids is not None else None
        with self._errors():
            self._writer.write(messages.batch.slice(start, fit), msg_id_hashes=hashes)
        self._rows += fit
        self._bytes += int(sizes[:fit].sum())
        if self._writer.size >= FILE_SIZE_TARGET_MAX:
            self._seal()
        return fit

    def _open(self) -> None:
        block_id = self._env.new_id()
        identity = BlockIdentity(self._transaction.store_id, self._target.incarnation, block_id, self._transaction.id)
        path = block_path(self._target.directories[0].path, block_id)
        with self._errors():
            self._file = self._env.files.create(path)
            self._paths.append(path)
            self._writer = BlockWriter(self._file, identity, self._codec)
        self._rows = self._bytes = 0

    def _seal(self) -> None:
        assert self._writer is not None and self._file is not None
        with self._errors():
            summary = self._writer.finish()
            self._file.close()
        holders = tuple((one.volume_id, one.instance_id) for one in self._target.directories)
        target = self._target
        self._staged.append(
            StagedBlock(
                target.stream, target.incarnation, self._transaction.id, self._partition, len(self._staged), summary,
                holders,
            )
        )  # fmt: skip
        self._file = self._writer = None
        self._rows = self._bytes = 0

    def finish(self) -> list[StagedBlock]:
        """Make everything durable, names and all, and return the blocks in order."""
        if self._writer is not None:
            self._seal()
        if self._staged:
            with self._errors():
                for directory in self._target.directories:
                    self._env.files.sync_directory(Path(directory.path))
        return self._staged

    def discard(self) -> None:
        """Take back what was written: the task failed, and nobody was told of these blocks."""
        if self._file is not None:
            self._file.close()
        self._file = self._writer = None
        for path in self._paths:
            try:
                self._env.files.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:  # what led here is told; a block that nobody names harms nobody
                logger.warning("%s could not be removed: %s", path, error)
        self._paths, self._staged = [], []

    def _errors(self) -> "_DiskErrors":
        return _DiskErrors(self._target)


class _DiskErrors:
    """Errors of the operating system become ours, naming stream and directory."""

    def __init__(self, target: WriteTarget) -> None:
        self._target = target

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: type | None, error: BaseException | None, _: object) -> None:
        if not isinstance(error, OSError):
            return
        where = f"stream {self._target.stream!r}, {self._target.directories[0].path}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(f"{where}: {error.strerror}; nothing was stored") from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise ReadOnlyError(f"{where} cannot be written: {error.strerror}") from error
        if isinstance(error, FileNotFoundError):
            raise NotFoundError(
                f"{where} does not exist on {socket.gethostname()}: the stream was deleted, or this executor does not "
                "see the store's volume at the same path"
            ) from error
        raise VolumeFailedError(f"{where}: {error}") from error
