"""Writes to streams of running NATS servers: tasks publish, and the commit has nothing left to do.

So a batch that fails shows part of its rows until it comes again. What keeps them from being stored twice then is
`exactlyOnce` (storage_core/live/publishing.py).
"""

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from datasource.edge import show_codes
from datasource.live_reader import servers_of
from datasource.query_sources import BATCH_ID, QUERY_ID
from datasource.schema import check_write_schema
from datasource.settings import WriteSettings
from datasource.spark_versions import DataSourceStreamArrowWriter
from datasource.stream_writer import local_property
from datasource.workers import freeze_modules
from datasource.writer import partition_id
from storage_core.live.connection import Connection
from storage_core.live.publishing import Mode, Published, Publisher, Target, WriterPart, choose
from storage_core.live.server import stream_info
from storage_core.store.writing.messages import Acceptance, check_messages
from storage_core.subjects import is_literal, matches

log = logging.getLogger("jstream")
COLUMNS = ("subject", "headers", "data")


@dataclass(frozen=True)
class PublishedPart(WriterCommitMessage):
    """What became of the rows of one task."""

    published: Published


@dataclass(frozen=True, slots=True)
class _Begun:
    """What the driver found out of the stream."""

    target: Target
    acceptance: Acceptance


def begin(settings: WriteSettings, schema: StructType, overwrite: bool, may_mark: bool) -> _Begun:
    """Return how the stream is written; raises as `publishing.choose`, and ValueError for what no row can have."""
    if overwrite:
        raise ValueError("overwrite and the output mode 'complete' replace what a stream holds, which servers cannot")
    if settings.stream is None:
        raise ValueError("option 'stream' is missing: the stream of the running servers that is written")
    check_write_schema(schema, routed=False)
    wanted = None if settings.exactly_once is None else Mode(settings.exactly_once)
    if wanted is None and "msg_id" in schema.names:
        wanted = Mode.MSGID

    def look(connection: Connection) -> _Begun:
        info = stream_info(connection, str(settings.stream))
        target = choose(info, connection.version, wanted, settings.marker_subject, may_mark)
        subjects = tuple(info.config.get("subjects") or ())
        only = subjects[0] if len(subjects) == 1 and is_literal(subjects[0]) else None
        default = settings.subject or only
        if default is not None and not any(matches(subject, default) for subject in subjects):
            raise ValueError(f"option 'subject': stream {info.name!r} takes {', '.join(subjects)}, not {default!r}")
        if default is None and "subject" not in schema.names:
            raise ValueError(
                f"no subject: stream {info.name!r} takes {', '.join(subjects)}; give the option 'subject' or a column "
                "'subject'"
            )
        size_max = int(info.config.get("max_msg_size", -1))
        return _Begun(target, Acceptance(info.name, subjects, size_max, default, obeys_headers=False))

    begun = servers_of(settings).retrying(look)
    log.info("stream %s is written with exactlyOnce=%s", settings.stream, begun.target.mode.value)
    return begun


def publish(
    settings: WriteSettings, begun: _Begun, part: WriterPart, batches: Iterator[pa.RecordBatch]
) -> PublishedPart:
    """Publish the rows of one partition; called on an executor, once for each attempt of its task."""
    freeze_modules()
    with Publisher(servers_of(settings), begun.target, part) as publisher:
        for batch in batches:
            checked = check_messages(batch, begun.acceptance, time.time_ns()).batch.select(COLUMNS)
            names = batch.schema.names
            ids = batch.column("msg_id").cast(pa.string()) if "msg_id" in names else pa.nulls(len(batch), pa.string())
            publisher.write(checked, ids)
        published = publisher.finish()
    log.info("%d messages stored, %d were there already", published.stored, published.duplicates)
    return PublishedPart(published)


def log_published(messages: Sequence[WriterCommitMessage | None], stream: str | None) -> None:
    parts = [message.published for message in messages if isinstance(message, PublishedPart)]
    duplicates = sum(published.duplicates for published in parts)
    if duplicates:
        log.warning("stream %s: %d messages were stored before, and are not stored again", stream, duplicates)


@show_codes
class LiveBatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame. Holds plain values only: Spark pickles it to its tasks."""

    def __init__(self, settings: WriteSettings, schema: StructType, overwrite: bool) -> None:
        self.settings = settings
        self.begun = begin(settings, schema, overwrite, may_mark=settings.writer_id is not None)
        self.writer = f"{settings.writer_id}/{settings.batch_id}" if settings.writer_id else uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return publish(self.settings, self.begun, WriterPart(self.writer, 0, partition_id()), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log_published(messages, self.settings.stream)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log.warning("a write to stream %s failed: some of its rows may be stored", self.settings.stream)


@show_codes
class LiveStreamWriter(DataSourceStreamArrowWriter):
    """Writes one batch of a streaming query. Spark makes it for the tasks, and anew for the commit."""

    def __init__(self, settings: WriteSettings, schema: StructType, overwrite: bool) -> None:
        self.settings, self.schema, self.overwrite = settings, schema, overwrite
        self.begun: _Begun | None = None

    def begin(self) -> None:
        """Look at the stream, for the tasks."""
        self.begun = begin(self.settings, self.schema, self.overwrite, may_mark=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        assert self.begun is not None, "the writer of a task was made for a commit"
        writer = self.settings.writer_id or local_property(QUERY_ID)
        part = WriterPart(writer, int(local_property(BATCH_ID)), partition_id())
        return publish(self.settings, self.begun, part, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        log_published(messages, self.settings.stream)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        log.warning("batch %d for stream %s failed: some of its rows may be stored", batchId, self.settings.stream)
