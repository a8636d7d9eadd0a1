"""Writes: tasks put sealed blocks on the volumes, the driver names them all in one commit.

The transaction is made with the writer, which Spark hands to the tasks and to the commit alike. A task that fails, is
tried again or runs twice leaves blocks that nobody names; they are swept. Rows of several streams are one append.
Streaming writes (stream_writer.py) share all of it but how the commit learns of the transaction.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from datasource.edge import show_codes
from datasource.query_sources import TaskQuery, sources_of
from datasource.schema import check_write_schema
from datasource.settings import WriteSettings
from datasource.store_opening import open_store_of
from datasource.workers import freeze_modules
from storage_core import Store, buffers
from storage_core.errors import FencedError, InvalidMessageError, RequirementError, StreamNotFoundError
from storage_core.store.environment import reaching
from storage_core.store.writing.appends import CommitResult, WriterBatch
from storage_core.store.writing.instructions import LAST_SEQUENCE, Condition
from storage_core.store.writing.routed import RoutedStager
from storage_core.store.writing.staging import StagedBlock, Transaction, WriteTarget
from storage_core.subjects import is_literal, matches
from storage_core.suggestions import instead

log = logging.getLogger("jstream")
CLEAN_UP_WAIT_S = 1.0  # for other processes that hold the store, at the end of a write that failed
GATHERED_ROW_COUNT, GATHERED_SIZE = 1 << 17, 16 << 20  # rows and bytes that are routed together


@dataclass(frozen=True)
class StagedPartition(WriterCommitMessage):
    """What one task wrote."""

    partition: int
    blocks: tuple[StagedBlock, ...]
    query: TaskQuery | None = field(default=None, kw_only=True)  # of a write that replaces, the query it is for


@show_codes
class BatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame. Holds plain values only: Spark pickles it to its tasks and to the commit."""

    def __init__(self, settings: WriteSettings, schema: StructType, overwrite: bool) -> None:
        check_overwrite(settings, overwrite)
        self.settings, self.overwrite = settings, overwrite
        self.transaction = begin(settings, schema, settings.take_over)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one partition; called on an executor, once for each attempt of its task."""
        partition = partition_id()
        has_writer = self.settings.writer_id is not None
        blocks = stage(self.transaction, self.settings, partition, iterator, has_writer)
        return StagedPartition(partition, blocks, query=TaskQuery.current() if self.overwrite else None)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Name all blocks in one append, unless the store has this batch of a writer.

        Raises FencedError if what is stored as that batch is something else; what `replaced_by_query` and Store.commit
        raise.
        """
        tasks = [message for message in messages if isinstance(message, StagedPartition)]
        blocks = [block for task in tasks for block in task.blocks]
        replaced, query = replaced_streams(self.settings, self.overwrite), tasks[0].query if tasks else None
        by, expected = query.query_id if query is not None else "", self._expected()
        with open_store_of(self.settings) as store:
            if query is not None:
                replaced = replaced_by_query(store, self.settings, self.transaction, query, bool(blocks))
            try:
                result = store.commit(self.transaction, blocks, self._writer_batch(), replaced, by, expected=expected)
            except FencedError as error:
                raise FencedError(
                    f"{error}. Nothing was written. Give other rows another batchId; or, if these rows are others each "
                    "time (uuid(), rand(), the time), set option failOnChangedBatch=false: what was stored first counts"
                ) from error
        if result.already:
            log.warning(
                "batch %r of writer %r is in the store already: nothing was written this time",
                self.settings.batch_id,
                self.settings.writer_id,
            )
        log_appended(result)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Give the blocks up for sweeping, unless the commit that failed took effect after all; never raises."""
        give_up(self.settings, self.transaction)

    def _expected(self) -> tuple[Condition, ...]:
        sequence = self.settings.expected_last_sequence
        return () if sequence is None else (Condition(0, LAST_SEQUENCE, sequence),)

    def _writer_batch(self) -> WriterBatch | None:
        settings = self.settings
        if settings.writer_id is None or settings.batch_id is None:
            return None
        return WriterBatch(settings.writer_id, settings.batch_id, any_content=not settings.fail_on_changed_batch)


def begin(settings: WriteSettings, schema: StructType, take_over: bool = False) -> Transaction:
    """Return a transaction over the option's stream, or over all, for rows with these columns.

    `take_over`: as `open_store` has it.

    Raises NotFoundError naming the nearest stream, ValueError for columns that cannot be written or a subject that the
    stream does not take.
    """
    check_write_schema(schema, routed=settings.stream is None)
    with open_store_of(settings, take_over) as store:
        if settings.stream is None:
            return store.begin(None)
        known = store.streams()
        if settings.stream not in known:
            raise StreamNotFoundError(settings.stream, "the store", known)
        transaction = store.begin([settings.stream])
    _check_subject(transaction.targets[settings.stream], settings.subject, "subject" in schema.names)
    return transaction


def partition_id() -> int:
    """Return the number of the partition that this task writes."""
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def check_overwrite(settings: WriteSettings, overwrite: bool) -> None:
    """Raise ValueError for a write that is to replace what is there in streams that only its rows name.

    A stream that got rows of the result before, and gets none of this one, would keep them.
    """
    if overwrite and settings.stream is None:
        raise ValueError(
            "option 'stream' is missing: overwrite and the output mode 'complete' replace all that one stream holds. "
            "With rows that name their streams, a stream that gets none this time would keep the ones from before: "
            "write each stream by itself, or append"
        )


def replaced_streams(settings: WriteSettings, overwrite: bool) -> tuple[str, ...]:
    """Return the streams that the write empties."""
    return (settings.stream,) if overwrite and settings.stream is not None else ()


def replaced_by_query(
    store: Store, settings: WriteSettings, transaction: Transaction, query: TaskQuery, has_rows: bool
) -> tuple[str, ...]:
    """Return the streams that a batch of a streaming query empties: none if it is empty and nothing was read yet.

    Spark runs the first batch of a query even if its sources have nothing. Raises RequirementError if the query reads
    one of the streams, as far as its checkpoint can be read.
    """
    sources = sources_of(settings, query)
    replaced = replaced_streams(settings, True)
    for name in replaced:
        if sources and (store.id.hex(), transaction.targets[name].incarnation.hex()) in sources.streams:
            raise RequirementError(
                f"stream {name!r} would be replaced by query {query.query_id}, which reads it: the first result would "
                "remove its source. Nothing was written; write to another stream"
            )
    has_read = query.batch != "0" or (sources is not None and sources.message_count > 0)
    if has_rows or has_read:
        return replaced
    log.info("batch 0 of query %s has read nothing: stream %s stays as it is", query.query_id, settings.stream)
    return ()


def log_appended(result: CommitResult) -> None:
    for stream, appended in result.appended.items():
        again = (
            f", {appended.duplicate_count} of them not shown: their msg_id came before"
            if appended.duplicate_count
            else ""
        )
        log.info("stream %s: appended sequences [%d, %d)%s", stream, appended.first, appended.end, again)


def give_up(settings: WriteSettings, transaction: Transaction) -> None:
    """Give the blocks of a transaction up for sweeping, unless it is committed: the store is asked first.

    Never raises: Spark would hide the error that led here below this one. What cannot be swept now is swept by the
    store's maintenance; so a store that others hold, for which the commit has waited already, is hardly waited for.
    """
    try:
        with open_store_of(replace(settings, lock_timeout_s=min(settings.lock_timeout_s, CLEAN_UP_WAIT_S))) as store:
            if not store.abort(transaction):
                log.warning("the append that reported an error was committed: its messages are in the store")
    except Exception as error:
        log.warning("the blocks of the write that failed are still there: %s", error)


def stage(
    transaction: Transaction,
    settings: WriteSettings,
    partition: int,
    batches: Iterator[pa.RecordBatch],
    has_writer: bool,
) -> tuple[StagedBlock, ...]:
    """Write the rows as blocks and return these; with an error nothing of this task is left behind."""
    freeze_modules()
    env = reaching(settings.storage)
    stager = RoutedStager(transaction, partition, settings.compression, env, has_writer)
    row_count = 0
    try:
        for batch in batches if settings.stream is not None else gathered(batches):
            place = f"rows {row_count} to {row_count + batch.num_rows - 1} of partition {partition}, counted from 0"
            with _naming(f"the batch is {place}"):
                routed = route(batch, settings.stream)
            for stream, rows in routed:
                target = _target(transaction, stream)
                part = "" if settings.stream is not None else f"those for stream {stream!r} among "
                with _naming(f"the batch is {part}{place}"):
                    stager.write(target, rows, settings.subject)
            row_count += batch.num_rows
        return stager.finish()
    except BaseException:
        stager.discard()
        raise


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in larger batches: checking a few rows of each of many streams costs as much as many."""
    waiting: list[pa.RecordBatch] = []
    row_count = size = 0
    for batch in batches:
        if waiting and (row_count + batch.num_rows > GATHERED_ROW_COUNT or size + batch.nbytes > GATHERED_SIZE):
            yield pa.concat_batches(waiting)
            waiting, row_count, size = [], 0, 0
        waiting.append(batch)
        row_count, size = row_count + batch.num_rows, size + batch.nbytes
    if waiting:
        yield pa.concat_batches(waiting)


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Let a refusal, which counts rows from the beginning of an Arrow batch, say where that batch is."""
    try:
        yield
    except InvalidMessageError as error:
        raise InvalidMessageError(f"{error} ({place})") from error


def route(batch: pa.RecordBatch, stream: str | None) -> list[tuple[str, pa.RecordBatch]]:
    """Return the rows of each stream in their order.

    With `stream` all rows go there. Raises InvalidMessageError for a row whose stream is null or no UTF-8.
    """
    if not batch.num_rows:
        return []
    if stream is not None:
        return [(stream, batch)]
    names = batch.column("stream")
    if names.null_count:
        row = int(np.flatnonzero(buffers.nulls(names))[0])
        raise InvalidMessageError(f"row {row} of the batch: column 'stream' is null, and no option 'stream' is given")
    encoded = names.cast(pa.string()).dictionary_encode()
    _check_utf8(encoded)
    if len(encoded.dictionary) == 1:
        return [(encoded.dictionary[0].as_py(), batch)]
    codes = buffers.numbers(encoded.indices)
    order = buffers.of_numbers(np.argsort(codes, kind="stable"))
    counts = np.bincount(codes, minlength=len(encoded.dictionary))
    firsts = (np.cumsum(counts) - counts).tolist()
    rows = batch.drop_columns(["stream"])
    # Each stream's rows are a copy of their own: a slice would keep all rows in memory, as long as a few of them wait.
    return [
        (name, rows.take(order.slice(first, count)))
        for name, first, count in zip(encoded.dictionary.to_pylist(), firsts, counts.tolist(), strict=True)
    ]


def _check_utf8(encoded: pa.DictionaryArray) -> None:
    """Raise InvalidMessageError for a name that is not UTF-8: strings of Spark hold any bytes."""
    for code, name in enumerate(encoded.dictionary.cast(pa.binary()).to_pylist()):
        try:
            name.decode()
        except UnicodeDecodeError as error:
            row = int(np.flatnonzero(buffers.numbers(encoded.indices) == code)[0])
            raise InvalidMessageError(f"row {row} of the batch: column 'stream': {name!r} is not UTF-8") from error


def default_subject(target: WriteTarget, subject: str | None) -> str | None:
    """Return the subject of rows without one: the option's, else the stream's only subject if it is literal."""
    if subject is not None:
        return subject
    only = target.subjects[0] if len(target.subjects) == 1 else ""
    return only if only and is_literal(only) else None


def _check_subject(target: WriteTarget, subject: str | None, has_column: bool) -> None:
    """Raise ValueError if the stream does not take the option's subject, or no row can have one."""
    taken = ", ".join(target.subjects)
    if subject is not None and not any(matches(subject_filter, subject) for subject_filter in target.subjects):
        raise ValueError(f"option 'subject': stream {target.stream!r} takes {taken}, not {subject!r}")
    if not has_column and default_subject(target, subject) is None:
        raise ValueError(
            f"no subject: stream {target.stream!r} takes {taken}; give the option 'subject' or a column 'subject'"
        )


def _target(transaction: Transaction, stream: str) -> WriteTarget:
    target = transaction.targets.get(stream)
    if target is None:
        raise InvalidMessageError(
            f"column 'stream': no stream {stream!r} in the store, and writing makes none (jstream stream add does)"
            f"{instead(stream, sorted(transaction.targets))}"
        )
    return target
