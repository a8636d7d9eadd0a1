"""Staging: blocks written and made durable by tasks, before a commit names them.

A transaction is made on the driver and travels to the tasks; each task writes its rows through a Stager and sends
back StagedBlocks, plain values, for the commit. Until then nobody sees the blocks; after an abort they are swept.

A block goes to all volumes of its stream's placement at once. A volume that fails is left out of that block and named
in what is sent back; the task succeeds as long as a majority of the placement has each block, name and all.
"""

import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage_core import access
from storage_core.block.format import BLOCK_SIZE_MAX, FRAME_ROW_COUNT_MAX, BlockIdentity, BlockSummary
from storage_core.block.writer import BlockWriter
from storage_core.errors import DiskFullError, NotFoundError, ReadOnlyError, StorageError, VolumeFailedError
from storage_core.os_errors import CLOSED, FULL, is_of_process, of_process
from storage_core.raft.rules import majority
from storage_core.store.environment import REAL, Environment
from storage_core.store.volume.block_store import VolumeHandle
from storage_core.store.writing.content import message_hashes
from storage_core.store.writing.messages import Acceptance, Messages, check_messages
from storage_core.store.writing.mirrored_file import MirroredFile
from storage_core.subjects import is_literal

logger = logging.getLogger(__name__)
FILE_SIZE_TARGET_MAX = BLOCK_SIZE_MAX // 2  # bytes; tiny headers take many times their message bytes in a file


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
    volumes: tuple[VolumeHandle, ...]  # that take blocks now, in the order of the placement
    replica_count: int  # volumes in the placement, those that take no blocks now included

    @property
    def quorum(self) -> int:
        """The fewest volumes that must have a block."""
        return majority(self.replica_count)

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
    is_local: bool = False  # begun by what the process knew that makes the blocks: the commit asks whether that holds
    is_routed: bool = False  # rows name their streams; `targets` may be those alone that got some


@dataclass(frozen=True, slots=True)
class WriteFailure:
    """A volume that did not take a block, and why."""

    volume_id: bytes
    errno: int  # of the operating system; 0: unknown
    reason: str  # names the file


@dataclass(frozen=True, slots=True)
class StagedBlock:
    """A durable block that waits for its commit."""

    stream: str
    incarnation: bytes
    transaction_id: bytes
    partition: int  # blocks are ordered by partition, then by position
    position: int
    summary: BlockSummary
    holders: tuple[tuple[bytes, bytes], ...]  # (volume, instance) that fsynced it, in the order of the placement
    failures: tuple[WriteFailure, ...] = ()  # volumes that should have
    hash_sum: int | None = None  # of its messages, as in content.py; None: they were not hashed


class Stager:
    """Writes one task's rows of one stream as blocks. Not thread-safe; `finish` or `discard` ends it."""

    def __init__(
        self, transaction: Transaction, target: WriteTarget, partition: int, codec: str | None = None,
        env: Environment = REAL, hashed: bool = True,
    ) -> None:  # fmt: skip
        """`hashed`: the append has a writer, who may send it again; without one nobody asks what it holds."""
        self._transaction, self._target, self._partition, self._env = transaction, target, partition, env
        self._hash_sum = 0 if hashed else None
        self._codec = codec or target.compression
        self._staged: list[StagedBlock] = []
        self._file: MirroredFile | None = None
        self._writer: BlockWriter | None = None
        self._sealed: list[MirroredFile] = []
        self._rows = self._bytes = 0

    @property
    def is_open(self) -> bool:
        """Return whether the block that is being written has open files, one on each volume."""
        return self._file is not None and self._file.is_made

    @property
    def held_size(self) -> int:
        """Return the bytes of rows in memory, that no file has yet."""
        return self._writer.held_size if self._writer is not None else 0

    def write(self, batch: pa.RecordBatch, default_subject: str | None = None) -> None:
        """Check and write the rows of `batch`, in write columns.

        Raises InvalidMessageError before anything of the batch is written; DiskFullError, ReadOnlyError,
        VolumeFailedError, NotFoundError (no such directory on this host).
        """
        messages = check_messages(batch, self._target.acceptance(default_subject), self._env.now_ns())
        hashes = message_hashes(messages, self._target.stream) if self._hash_sum is not None else None
        start = 0
        while start < messages.batch.num_rows:
            start += self._write_some(messages, hashes, start)

    def _write_some(self, messages: Messages, hashes: np.ndarray | None, start: int) -> int:
        """Write rows from `start` as far as they fit the current block; return how many."""
        sizes = messages.sizes[start:]
        room = self._target.block_max_bytes - self._bytes
        fit = int(np.searchsorted(np.cumsum(sizes), room, side="right"))
        fit = min(fit, self._target.block_max_msgs - self._rows, len(sizes), FRAME_ROW_COUNT_MAX)
        if fit == 0 and self._rows:
            self.seal()
            return 0
        fit = max(fit, 1)
        if self._writer is None:
            self._open()
        assert self._writer is not None
        msg_ids = messages.msg_ids[start : start + fit] if messages.msg_ids is not None else None
        try:
            self._writer.write(messages.batch.slice(start, fit), msg_id_hashes=msg_ids)
        except OSError as error:
            raise self._refused(error) from error
        if self._hash_sum is not None and hashes is not None:
            self._hash_sum += int(hashes[start : start + fit].sum())
        self._rows += fit
        self._bytes += int(sizes[:fit].sum())
        if self._writer.size >= FILE_SIZE_TARGET_MAX:
            self.seal()
        return fit

    def _open(self) -> None:
        target, block_id = self._target, self._env.new_id()
        identity = BlockIdentity(self._transaction.store_id, target.incarnation, block_id, self._transaction.id)
        self._file = MirroredFile(target.volumes, target.incarnation, block_id, target.quorum, self._env, named=True)
        self._writer = BlockWriter(self._file, identity, self._codec)
        self._rows = self._bytes = 0

    def seal(self) -> None:
        """End the block that is being written, if there is one: what follows goes to another."""
        if self._writer is None:
            return
        assert self._file is not None
        try:
            summary = self._writer.finish()
        except OSError as error:
            raise self._refused(error) from error
        self._file.close()
        self._sealed.append(self._file)
        target, held = self._target, self._file.holders
        holders = tuple((one.volume_id, one.instance_id) for one in target.volumes if one.volume_id in held)
        self._staged.append(
            StagedBlock(
                target.stream, target.incarnation, self._transaction.id, self._partition, len(self._staged), summary,
                holders, _failures(self._file.failures), self._hash_sum,
            )
        )  # fmt: skip
        self._file = self._writer = None
        self._rows = self._bytes = 0
        self._hash_sum = None if self._hash_sum is None else 0

    def finish(self) -> list[StagedBlock]:
        """Make everything durable, names and all, and return the blocks in order."""
        self.seal()
        return self._staged

    def discard(self) -> None:
        """Take back what was written: the task failed, and nobody was told of these blocks."""
        if self._file is not None:
            self._file.discard()
        self._file = self._writer = None
        for file in self._sealed:
            file.discard()
        self._sealed, self._staged = [], []

    def _refused(self, error: OSError) -> StorageError:
        """Return an error of the operating system as ours, naming the stream and every volume that failed."""
        failures = {} if self._file is None else self._file.failures
        return _refusal(self._target, error, [one for one in failures.values() if one is not error])


def _failures(failures: Mapping[bytes, OSError]) -> tuple[WriteFailure, ...]:
    return tuple(WriteFailure(volume_id, one.errno or 0, str(one)) for volume_id, one in failures.items())


def _refusal(target: WriteTarget, error: OSError, others: list[OSError]) -> StorageError:
    """Return what a task fails with after the decisive `error`; too few volumes of the placement took a block."""
    where = f"stream {target.stream!r}, {error.filename or target.volumes[0].uri}"
    also = "".join(f"; also {one}" for one in others)
    if target.replica_count > 1:
        also += f"; {target.quorum} of {target.replica_count} volumes must take a block"
    if error.errno in FULL:
        return DiskFullError(f"{where}: {error.strerror}; nothing was stored{also}")
    if error.errno in CLOSED:
        return ReadOnlyError(f"{where} cannot be written: {access.in_words(error, writing=True)}{also}")
    if isinstance(error, FileNotFoundError):
        return NotFoundError(
            f"{where} does not exist on {socket.gethostname()}: the stream was deleted, or this executor does not "
            f"see the store's volume at the same path{also}"
        )
    if is_of_process(error):
        return of_process(error, where)
    return VolumeFailedError(f"{where}: {error}{also}")
