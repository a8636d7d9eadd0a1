"""Streaming writes: each batch of a query is one append, and is stored once.

Spark makes the writer twice a batch: for the tasks, and anew for the commit, which knows neither the transaction of the
first one nor which query it works for. Both travel in the messages of the tasks. The batch is identified by

    writer    the option writerId, else the query's id, which a restart from the same checkpoint keeps
    batch     Spark's number of the batch, from 0 in each checkpoint
    query     the query's id: with a writerId, another one is a checkpoint that was removed, or a second query
    run       the id of this run, new with every start: once a newer run has stored a batch, older ones are fenced

and the store decides under its lock. What Spark sends again (a commit that failed, before or after its effect; a batch
whose end the checkpoint did not see) is there already, and is skipped. What has the same number and holds something
else is refused: the store keeps what each batch held as one number (storage_core/store/writing/batch_content.py).
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from datasource.edge import show_codes
from datasource.query_sources import BATCH_ID, QUERY_ID, TaskQuery, said_to_task
from datasource.settings import WriteSettings
from datasource.spark_versions import DataSourceStreamArrowWriter
from datasource.store_opening import open_store_of
from datasource.writer import (
    StagedPartition,
    begin,
    check_overwrite,
    give_up,
    log_appended,
    partition_id,
    replaced_by_query,
    stage,
)
from storage_core import Store
from storage_core.errors import FencedError, RequirementError, StorageError
from storage_core.metadata.state import StoreState, StreamState
from storage_core.store.writing.appends import WriterBatch
from storage_core.store.writing.staging import Transaction

log = logging.getLogger("jstream")
RUN_ID = "spark.jobGroup.id"


@dataclass(frozen=True)
class StagedTask(StagedPartition):
    """What one task wrote, and for whom; also of a task without rows."""

    transaction: Transaction  # with the targets that this task's blocks, or the option `stream`, are for
    query_id: str
    run_id: str
    batch_id: str


@show_codes
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes one batch of a streaming query. Holds plain values only: Spark pickles it to its tasks."""

    def __init__(self, settings: WriteSettings, schema: StructType, overwrite: bool) -> None:
        """`begin` comes next if tasks are to write; commit and abort go by what the tasks say."""
        check_overwrite(settings, overwrite)
        self.settings, self.schema, self.overwrite = settings, schema, overwrite
        self.transaction: Transaction | None = None

    def begin(self) -> None:
        """Make the transaction of the tasks; raises as `writer.begin` does."""
        self.transaction = begin(self.settings, self.schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one partition; called on an executor, once for each attempt of its task."""
        if self.transaction is None:
            raise RequirementError("the writer of this task was made for a commit: nothing was begun that it may write")
        query_id, batch_id, run_id = (local_property(name) for name in (QUERY_ID, BATCH_ID, RUN_ID))
        partition = partition_id()
        blocks = stage(self.transaction, self.settings, partition, iterator, has_writer=True)
        used = {block.stream for block in blocks} if self.settings.stream is None else {self.settings.stream}
        targets = {name: self.transaction.targets[name] for name in used}
        transaction = replace(self.transaction, targets=targets)
        query = TaskQuery.current() if self.overwrite else None
        return StagedTask(partition, blocks, transaction, query_id, run_id, batch_id, query=query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Name all blocks in one append, unless the store has this batch.

        Raises FencedError: a newer run of the query has gone on, or other messages are stored under the batch's number;
        RequirementError: the writer is another query's, or the tasks are not of one batch, or it would replace the
        stream that it reads; what Store.commit raises.
        """
        tasks = [message for message in messages if isinstance(message, StagedTask)]
        if not tasks:
            log.info("batch %d had no tasks: there is nothing to store", batchId)
            return
        transaction, identity = _transaction(tasks), self._identity(tasks, batchId)
        blocks = [block for task in tasks for block in task.blocks]
        with open_store_of(self.settings) as store:
            if self.settings.take_over and not _has_begun(store, identity):
                open_store_of(self.settings, take_over=True).close()
            try:
                query = tasks[0].query
                replaced = (
                    replaced_by_query(store, self.settings, transaction, query, bool(blocks))
                    if query is not None
                    else ()
                )
                result = store.commit(transaction, blocks, identity, replaced)
            except StorageError as error:
                _explain(store, transaction, identity, error)
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
        tasks = [message for message in messages if isinstance(message, StagedTask)]
        for transaction_id in {task.transaction.id: task for task in tasks}:
            give_up(self.settings, _merged([task for task in tasks if task.transaction.id == transaction_id]))

    def _identity(self, tasks: Sequence[StagedTask], batch_id: int) -> WriterBatch:
        names = {(task.query_id, task.run_id, task.batch_id) for task in tasks}
        if len(names) > 1 or any(batch != str(batch_id) for _, _, batch in names):
            known = "; ".join(f"query {query}, run {run}, batch {batch}" for query, run, batch in sorted(names))
            raise RequirementError(f"Spark commits batch {batch_id} with tasks of another: they say {known}")
        ((query, run, batch),) = names
        any_content = not self.settings.fail_on_changed_batch
        return WriterBatch(self.settings.writer_id or query, batch, query, run, any_content)


def local_property(name: str) -> str:
    """Return what Spark tells a task of its query. Raises RuntimeError if that is nothing."""
    value = said_to_task(name)
    if not value:
        raise RuntimeError(
            f"Spark did not tell this task the property {name!r}, by which a streaming write is stored once; it does "
            "within a streaming query of Spark 4.0 to 4.3"
        )
    return value


def _transaction(tasks: Sequence[StagedTask]) -> Transaction:
    """Return the transaction of the batch, with the targets of all tasks; raises RequirementError if it is not one."""
    ids = sorted({task.transaction.id.hex() for task in tasks})
    if len(ids) > 1:
        raise RequirementError(f"the tasks of one batch wrote for {len(ids)} transactions: {', '.join(ids)}")
    return _merged(tasks)


def _merged(tasks: Sequence[StagedTask]) -> Transaction:
    """Return the transaction of these tasks, with the targets of all."""
    targets = {name: target for task in tasks for name, target in task.transaction.targets.items()}
    return replace(tasks[0].transaction, targets=targets)


def _has_begun(store: Store, identity: WriterBatch) -> bool:
    """Return whether this run has stored a batch: from then on it takes no store over any more."""
    state = store.view().state
    kept = (state.writers, *(stream.writers for stream in state.streams.values()))
    writers = (stored.get(identity.writer) for stored in kept)
    return any(writer is not None and identity.run in (writer.run, *writer.superseded) for writer in writers)


def _streams(state: StoreState, transaction: Transaction) -> Mapping[str, StreamState]:
    """Return the streams of the transaction that are still there."""
    streams = {name: state.by_incarnation(target.incarnation) for name, target in transaction.targets.items()}
    return {name: stream for name, stream in streams.items() if stream is not None}


def _explain(store: Store, transaction: Transaction, identity: WriterBatch, error: StorageError) -> NoReturn:
    """Raise what the store refused the batch with, and what to do about it."""
    if isinstance(error, FencedError):
        state = store.view().state
        kept = (state.writers, *(stream.writers for stream in _streams(state, transaction).values()))
        writers = [stored.get(identity.writer) for stored in kept]
        if any(stored is not None and identity.run in stored.superseded for stored in writers):
            raise FencedError(
                f"{error}: another driver runs the same query, from the same checkpoint or a copy of it, and has gone "
                f"on since; batch {identity.batch} of this run is not stored. Let only one of them run"
            ) from error
        raise FencedError(
            f"{error}. Nothing was written: skipping the batch would lose messages. Another driver runs the same query "
            "from a copy of its checkpoint: let only one of them run. Or the checkpoint is an older copy: put the "
            "newest one back, or start with a new one (and another writerId, if there is one) where the stored "
            "messages end. Or it is the query's last batch, whose rows are others each time (uuid(), rand(), messages "
            "that are gone): start it once with option failOnChangedBatch=false, and what was stored first counts"
        ) from error
    if isinstance(error, RequirementError):
        for name, stream in _streams(store.view().state, transaction).items():
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
