"""Staging: blocks written and made durable by tasks, before a commit names them.

A transaction is made on the driver and travels to the tasks; each task writes its rows through a Stager and sends
back StagedBlocks, plain values, for the commit. Until then nobody sees the blocks; after an abort they are swept.

A block goes to all volumes of its stream's placement at once. A volume that fails is left out of that block and named
in what is sent back; the task succeeds as long as a majority of the placement has each block, name and all.
"""

import logging
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from storage_core import access, buffers
from storage_core.block.format import BlockSummary
from storage_core.errors import DiskFullError, NotFoundError, ReadOnlyError, StorageError
from storage_core.os_errors import CLOSED, FULL, is_of_process, of_process, of_volume
from storage_core.raft.rules import majority
from storage_core.sequences import SequenceSet
from storage_core.store.environment import REAL, Environment
from storage_core.store.volume.block_store import VolumeHandle
from storage_core.store.writing.batch_content import message_hashes
from storage_core.store.writing.instructions import Condition
from storage_core.store.writing.messages import Acceptance, check_messages
from storage_core.store.writing.sink import BlockPlace, BlockSink, SealedBlock
from storage_core.subjects import is_literal

logger = logging.getLogger(__name__)


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
    allow_rollup: bool = False
    allow_ttl: bool = False
    max_age: int = 0

    @property
    def quorum(self) -> int:
        """The fewest volumes that must have a block."""
        return majority(self.replica_count)

    def acceptance(self, default_subject: str | None, obeys_headers: bool = True) -> Acceptance:
        """Return what the stream takes; without a default, rows fall back on its only literal subject."""
        only = self.subjects[0] if len(self.subjects) == 1 and is_literal(self.subjects[0]) else None
        return Acceptance(
            self.stream, self.subjects, self.max_msg_size, default_subject or only,
            self.allow_rollup, self.allow_ttl, self.max_age, obeys_headers,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Transaction:
    """One atomic append in the making."""

    id: bytes  # creation time in ns (8, big-endian), then 8 random bytes
    store_id: bytes
    targets: dict[str, WriteTarget]
    is_from_cache: bool = (
        False  # begun by what the process knew that makes the blocks: the commit asks whether that holds
    )
    is_routed: bool = False  # rows name their streams; `targets` may be those alone that got some
    open_files_max: int = -1  # as the store's settings say; -1: they say nothing


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
    hash_sum: int | None = None  # of its messages, as in batch_content.py; None: they were not hashed
    has_rollup: bool = False  # some message of its task takes the place of others
    expires_ns: int = 0  # when the first message of its task expires; 0: none does
    conditions: tuple[Condition, ...] = ()  # what its messages expect of the stream
    sequences: SequenceSet | None = None  # that its messages keep; None: they get the next ones
    sizes: np.ndarray | None = field(default=None, compare=False, repr=False)  # message bytes, of a local transaction


class Stager:
    """Writes one task's rows of one stream as blocks. Not thread-safe; `finish` or `discard` ends it."""

    def __init__(
        self, transaction: Transaction, target: WriteTarget, partition: int, codec: str | None = None,
        env: Environment = REAL, hashed: bool = True, restores: bool = False,
    ) -> None:  # fmt: skip
        """`hashed`: hash the messages, so that a commit recognises a batch that its writer sends again.

        `restores`: the messages were stored before. Instructions in their headers have no effect, and batches with a
        column `sequence` keep their sequences.
        """
        self._transaction, self._target, self._partition, self._env = transaction, target, partition, env
        self._hashed, self._has_rollup, self._expires_ns = hashed, False, 0
        self._restores, self._kept = restores, SequenceSet.empty()  # sequences that messages keep
        self._conditions: list[Condition] = []  # rows counted within the task
        self._row_count = 0
        place = BlockPlace(
            target.volumes, target.quorum, codec or target.compression, transaction.store_id, target.incarnation,
            transaction.id, target.block_max_msgs, target.block_max_bytes,
        )  # fmt: skip
        self._sink = BlockSink(place, env, keeps_sizes=transaction.is_from_cache)
        self.is_discarded = False

    @property
    def is_open(self) -> bool:
        """Return whether the block that is being written has open files, one on each volume."""
        return self._sink.is_open

    @property
    def held_size(self) -> int:
        """Return the bytes of rows in memory, that no file has yet."""
        return self._sink.held_size

    def write(self, batch: pa.RecordBatch, default_subject: str | None = None) -> None:
        """Check and write the rows of `batch`, in write columns.

        Raises InvalidMessageError before anything of the batch is written; DiskFullError, ReadOnlyError,
        VolumeFailedError, NotFoundError (no such directory on this host).
        """
        acceptance = self._target.acceptance(default_subject, obeys_headers=not self._restores)
        messages = check_messages(batch, acceptance, self._env.now_ns())
        sequences = None
        if self._restores and "sequence" in batch.schema.names:
            sequences = buffers.numbers(batch.column("sequence"))
            self._kept = self._kept.union(SequenceSet.from_sequences(sequences))
        self._has_rollup |= messages.has_rollup
        self._expires_ns = min(filter(None, (self._expires_ns, messages.expires_ns)), default=0)
        self._conditions += [replace(each, row=self._row_count + each.row) for each in messages.conditions]
        self._row_count += batch.num_rows
        hashes = message_hashes(messages, self._target.stream) if self._hashed else None
        with self._translated():
            self._sink.write(messages.batch, messages.sizes, sequences, messages.msg_ids, hashes)

    def seal(self) -> None:
        """End the block that is being written, if there is one: what follows goes to another."""
        with self._translated():
            self._sink.seal()

    def finish(self) -> list[StagedBlock]:
        """Make everything durable, names and all, and return the blocks in order."""
        self.seal()
        staged, first = [], 0
        for position, block in enumerate(self._sink.sealed):
            staged.append(self._staged(position, block, first))
            first += block.summary.row_count
        return staged

    def _staged(self, position: int, block: SealedBlock, first: int) -> StagedBlock:
        """`first`: rows of the task before those of the block."""
        target, held = self._target, block.file.holders
        return StagedBlock(
            target.stream,
            target.incarnation,
            self._transaction.id,
            self._partition,
            position,
            block.summary,
            tuple((volume.volume_id, volume.instance_id) for volume in target.volumes if volume.volume_id in held),
            _failures(block.file.failures),
            block.hash_sum if self._hashed else None,
            self._has_rollup,
            self._expires_ns,
            tuple(
                replace(each, row=each.row - first)
                for each in self._conditions
                if first <= each.row < first + block.summary.row_count
            ),
            self._kept.clip(block.first, block.first + block.summary.span) if self._kept else None,
            block.sizes,
        )

    def discard(self) -> None:
        """Take back what was written: the task failed, and nobody was told of these blocks."""
        self.is_discarded = True
        self._sink.discard()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise an error of the operating system as ours, naming the stream and every volume that failed."""
        try:
            yield
        except OSError as error:
            others = [failure for failure in self._sink.failures.values() if failure is not error]
            raise _refusal(self._target, error, others) from error


def _failures(failures: Mapping[bytes, OSError]) -> tuple[WriteFailure, ...]:
    return tuple(WriteFailure(volume_id, failure.errno or 0, str(failure)) for volume_id, failure in failures.items())


def _refusal(target: WriteTarget, error: OSError, others: list[OSError]) -> StorageError:
    """Return what a task fails with after the decisive `error`; too few volumes of the placement took a block."""
    where = f"stream {target.stream!r}, {error.filename or target.volumes[0].uri}"
    also = "".join(f"; also {other}" for other in others)
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
    return of_volume(error, f"{where}: {error}{also}")
