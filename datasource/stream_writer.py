"""Streaming writes: each batch of a query is one append, and is stored once.

Spark makes the writer twice a batch: for the tasks, and anew for the commit, which knows neither the transaction of the
first one nor which query it works for. Both travel in the messages of the tasks. The batch is identified by

    writer    the option writerId, else the query's id, which a restart from the same checkpoint keeps
    batch     Spark's number of the batch, from 0 in each checkpoint
    query     the query's id: with a writerId, another one is a checkpoint that was removed, or a second query
    run       the id of this run, new with every start: once a newer run has stored a batch, older ones are fenced

and the store decides under its lock. What Spark sends again (a commit that failed, before or after its effect; a batch
whose end the checkpoint did not see) is there already, and is skipped. What only looks the same is refused: see
`_check_the_same`.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from datasource.places import take_over
from datasource.settings import WriteSettings
from datasource.writer import (
    StagedPartition,
    begin,
    give_up,
    log_appended,
    open_store,
    partition_id,
    replaced_streams,
    stage,
)
from storage_core import Store
from storage_core.errors import FencedError, RequirementError, StorageError
from storage_core.metadata.state import StreamState
from storage_core.store.writing.appends import Appended, WriterBatch
from storage_core.store.writing.staging import StagedBlock, Transaction

log = logging.getLogger("jstream")
QUERY_ID, BATCH_ID, RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


@dataclass(frozen=True)
class StagedTask(StagedPartition):
    """What one task wrote, and for whom; also of a task without rows."""

    transaction: Transaction  # with the targets that this task's blocks, or the option `stream`, are for
    query_id: str
    run_id: str
    batch_id: str


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes one batch of a streaming query. Holds plain values only: Spark pickles it to its tasks."""

    def __init__(self, settings: WriteSettings, schema: StructType, overwrite: bool) -> None:
        self.settings, self.overwrite = settings, overwrite
        self.transaction = begin(settings, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one partition; called on an executor, once for each attempt of its task."""
        query_id, batch_id, run_id = (_local_property(name) for name in (QUERY_ID, BATCH_ID, RUN_ID))
        partition = partition_id()
        blocks = stage(self.transaction, self.settings, partition, iterator)
        used = {block.stream for block in blocks} if self.settings.stream is None else {self.settings.stream}
        targets = {name: self.transaction.targets[name] for name in used}
        return StagedTask(partition, blocks, replace(self.transaction, targets=targets), query_id, run_id, batch_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Name all blocks in one append, unless the store has this batch.

        Raises FencedError: a newer run of the query has gone on; RequirementError: the writer is another query's, or
        the batch is not the one that was stored under its number; what Store.commit raises.
        """
        tasks = [one for one in messages if isinstance(one, StagedTask)]
        if not tasks:
            log.info("batch %d had no tasks: there is nothing to store", batchId)
            return
        transaction, identity = _transaction(tasks), self._identity(tasks, batchId)
        blocks = [block for task in tasks for block in task.blocks]
        replaced = replaced_streams(self.settings, blocks) if self.overwrite else ()
        with open_store(self.settings) as store:
            if self.settings.take_over and not _has_begun(store, identity):
                take_over(self.settings.paths, self.settings.lock_timeout_s)
            try:
                result = store.commit(transaction, blocks, identity, replaced)
            except StorageError as error:
                _explain(store, transaction, identity, error)
            if result.already:
                _check_the_same(store, transaction, identity, blocks, result.appended)
        if result.already:
            log.warning(
                "batch %d of query %s is in the store already: this time nothing was written", batchId, identity.query
            )
        else:
            log_appended(result)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Give the blocks up for sweeping; never raises.

        It follows a failed commit as well, with the same messages: the store is asked whether that took effect. Tasks
        that failed have removed their own; what killed ones left is swept by the store's maintenance.
        """
        tasks = [one for one in messages if isinstance(one, StagedTask)]
        if tasks:
            give_up(self.settings, _transaction(tasks))

    def _identity(self, tasks: Sequence[StagedTask], batch_id: int) -> WriterBatch:
        names = {(task.query_id, task.run_id, task.batch_id) for task in tasks}
        query, run, batch = names.pop()
        assert not names and batch == str(batch_id), (names, batch, batch_id)
        return WriterBatch(self.settings.writer_id or query, batch, query, run)


def _local_property(name: str) -> str:
    """Return what Spark tells a task of its query."""
    context = TaskContext.get()
    value = context.getLocalProperty(name) if context is not None else None
    if not value:
        raise RuntimeError(
            f"Spark did not tell this task the property {name!r}, by which a streaming write is stored once; it does "
            "within a streaming query of Spark 4.2 and 4.3"
        )
    return value


def _transaction(tasks: Sequence[StagedTask]) -> Transaction:
    """Return the transaction of the batch, with the targets of all tasks."""
    ids = {task.transaction.id for task in tasks}
    assert len(ids) == 1, "the tasks of one batch are of one writer"
    targets = {name: target for task in tasks for name, target in task.transaction.targets.items()}
    return replace(tasks[0].transaction, targets=targets)


def _has_begun(store: Store, identity: WriterBatch) -> bool:
    """Return whether this run has stored a batch: from then on it takes no store over any more."""
    writers = (stream.writers.get(identity.writer) for stream in store.state().streams.values())
    return any(one is not None and identity.run in (one.run, *one.superseded) for one in writers)


def _streams(store: Store, transaction: Transaction) -> Mapping[str, StreamState]:
    """Return the streams of the transaction that are still there."""
    state = store.state()
    found = {name: state.by_incarnation(target.incarnation) for name, target in transaction.targets.items()}
    return {name: stream for name, stream in found.items() if stream is not None}


def _explain(store: Store, transaction: Transaction, identity: WriterBatch, error: StorageError) -> NoReturn:
    """Raise what the store refused the batch with, and what to do about it."""
    if isinstance(error, FencedError):
        raise FencedError(
            f"{error}: another driver runs the same query, from the same checkpoint, and has stored batches since; "
            f"batch {identity.batch} of this run is not stored. Let only one of them run"
        ) from error
    if isinstance(error, RequirementError):
        for name, stream in _streams(store, transaction).items():
            writer = stream.writers.get(identity.writer)
            if writer is not None and writer.query != identity.query:
                theirs = f"query {writer.query}, up to batch {writer.last_batch}" if writer.query else "a batch job"
                raise RequirementError(
                    f"option 'writerId': {identity.writer!r} has written to stream {name!r} as {theirs}; this is query "
                    f"{identity.query}, at batch {identity.batch}. Its checkpoint was removed, or is another one: the "
                    "numbers of its batches begin again, and batches would be taken for those that are stored. Nothing "
                    "was written. Put the checkpoint back that the writer had; or give this query another writerId, "
                    "and let it start where the stored messages end"
                ) from error
    raise error


def _check_the_same(
    store: Store,
    transaction: Transaction,
    identity: WriterBatch,
    blocks: Sequence[StagedBlock],
    stored: Mapping[str, Appended],
) -> None:
    """Raise RequirementError if what is stored under this batch's number is another batch of an earlier time.

    A checkpoint that is an older copy numbers batches again that the store has, and cuts them elsewhere: skipping one
    would lose messages. Spark itself only repeats the last batch; that one is skipped, whatever it holds now, for what
    was stored first counts.
    """
    counts = dict.fromkeys(stored, 0)
    for block in blocks:
        counts[block.stream] += block.summary.span
    for name, stream in _streams(store, transaction).items():
        writer, before = stream.writers.get(identity.writer), stored[name]
        if counts[name] == before.end - before.first:
            continue
        known = f"{before.end - before.first} messages" if before.first else "another number of messages"
        said = (
            f"batch {identity.batch} of query {identity.query} is in stream {name!r} with {known}, this time it has "
            f"{counts[name]}"
        )
        if writer is None or int(identity.batch) >= writer.last_batch:
            log.warning("%s; what was stored first counts", said)
            continue
        raise RequirementError(
            f"{said}, and batches up to {writer.last_batch} came after it: the checkpoint is an older copy. Nothing "
            "was written. Put the newest checkpoint back; or start with a new one (and another writerId, if there is "
            "one) where the stored messages end"
        )
