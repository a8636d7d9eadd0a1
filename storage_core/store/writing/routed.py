"""RoutedStager: one task's rows of any number of streams, within a bounded number of open files and bytes.

A block has no files until its first frame is complete (mirrored_file.py): rows of a stream that gets few of them wait
in memory until the end of the task, and become one block then. Two bounds end blocks early, so that a task which
routes to thousands of streams takes no more than one which routes to ten:

    open blocks    the one that was written to least recently is sealed; open_files_max of the store's settings bounds
                   their files, but a block is written on all its volumes at once, whatever that says
    held bytes     the blocks with the most rows in memory are sealed, until half of the bound is left

Which blocks there are follows from that; the order of a stream's rows never does: a stream has one block under way.
"""

import logging

import pyarrow as pa

from storage_core.store.environment import REAL, Environment
from storage_core.store.writing.staging import StagedBlock, Stager, Transaction, WriteTarget

logger = logging.getLogger(__name__)
OPEN_BLOCK_COUNT_MAX = 32  # on five volumes 160 files; the usual limits of a process are 256 and 1,024
HELD_SIZE_MAX = 128 << 20  # bytes; as many as OPEN_BLOCK_COUNT_MAX frames of their usual size


class RoutedStager:
    """Writes one task's rows, stream by stream. Not thread-safe; `finish` or `discard` ends it."""

    def __init__(
        self, transaction: Transaction, partition: int, codec: str | None = None, env: Environment = REAL,
        hashed: bool = True,
    ) -> None:  # fmt: skip
        self._hashed = hashed  # as for Stager
        self._transaction, self._partition, self._codec, self._env = transaction, partition, codec, env
        self._stagers: dict[str, Stager] = {}
        self._open: dict[str, Stager] = {}  # those whose block has files, the least recently written to first
        self._held_size = 0  # of all of them
        self._open_max = OPEN_BLOCK_COUNT_MAX
        if transaction.open_files_max > 0:
            files = max((len(target.volumes) for target in transaction.targets.values()), default=1)  # of one block
            # One more is open for a moment, before another one is sealed for it.
            self._open_max = max(1, min(self._open_max, transaction.open_files_max // files - 1))
            if transaction.open_files_max < 2 * files:
                logger.warning(
                    "open_files_max is %d; blocks on %d volumes may take %d open files, and so many are opened",
                    transaction.open_files_max, files, 2 * files,
                )  # fmt: skip

    def write(self, target: WriteTarget, batch: pa.RecordBatch, default_subject: str | None = None) -> None:
        """Check and write rows of one stream, in write columns; raises as `Stager.write` does.

        The rows may wait in memory for long: a slice of something large keeps all of it there.
        """
        stream = target.stream
        stager = self._stagers.get(stream)
        if stager is None:
            stager = self._stagers[stream] = Stager(
                self._transaction, target, self._partition, self._codec, self._env, self._hashed
            )  # fmt: skip
        before = stager.held_size
        stager.write(batch, default_subject)
        self._held_size += stager.held_size - before
        self._open.pop(stream, None)
        if stager.is_open:
            self._open[stream] = stager
        while len(self._open) > self._open_max:
            self._seal(next(iter(self._open)))
        if self._held_size > HELD_SIZE_MAX:
            for name in sorted(self._stagers, key=lambda name: self._stagers[name].held_size, reverse=True):
                self._seal(name)
                if self._held_size <= HELD_SIZE_MAX // 2:
                    break

    def _seal(self, stream: str) -> None:
        stager = self._stagers[stream]
        self._held_size -= stager.held_size
        stager.seal()
        self._open.pop(stream, None)

    def finish(self) -> tuple[StagedBlock, ...]:
        """Make everything durable, names and all, and return the blocks, those of a stream in order."""
        for stager in self._stagers.values():
            stager.seal()
        return tuple(block for stager in self._stagers.values() for block in stager.finish())

    def discard(self) -> None:
        """Take back what was written: the task failed, and nobody was told of these blocks."""
        for stager in self._stagers.values():
            stager.discard()
