"""The data source `jstream`, as `pyspark_jstream.DefaultSource` delegates to it.

Everything here runs in Spark's planning worker on the driver's host, in a new object for each call. Each streaming
query has such a process of its own, so readers and writers are imported where they are made: no query waits for those
of other servers' stores, or for tables and writers that it does not use.
"""

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, DataSourceWriter
from pyspark.sql.types import DataType, StructType

from datasource.edge import checks_options, option_error
from datasource.options import is_of_streaming_only
from datasource.reader import (
    FilteringMessageReader,
    LastMessageReader,
    MessageReader,
    pick_streams,
    select_streams,
)
from datasource.schema import (
    BY_NAME_ONLY,
    CONSUMER_TYPES,
    DAMAGE_TYPES,
    EVENT_TYPES,
    FOREIGN_CONSUMER_TYPES,
    FOREIGN_DAMAGE_TYPES,
    FOREIGN_STREAM_TYPES,
    MESSAGE_TYPES,
    STREAM_TYPES,
    TEXT,
    check_read_schema,
    pick_columns,
    spark_schema,
)
from datasource.settings import (
    CONSUMERS,
    DAMAGE,
    EVENTS,
    FOREIGN,
    LAST,
    MESSAGES,
    OF_MESSAGES,
    STREAMS,
    ReadSettings,
    StreamReadSettings,
    WriteSettings,
)
from datasource.spark_versions import SAYS_LIMITS, keeps_filters_apart
from datasource.store_opening import open_for_reading, open_foreign_store
from storage_core import Store

if TYPE_CHECKING:
    from datasource.live_writer import LiveStreamWriter
    from datasource.stream_writer import StreamWriter

ParserOf = Callable[[Mapping[str, str]], ReadSettings | StreamReadSettings]

TABLE_TYPES = {
    MESSAGES: MESSAGE_TYPES,
    LAST: MESSAGE_TYPES,
    STREAMS: STREAM_TYPES,
    CONSUMERS: CONSUMER_TYPES,
    EVENTS: EVENT_TYPES,
    DAMAGE: DAMAGE_TYPES,
}
FOREIGN_TABLE_TYPES = {
    MESSAGES: MESSAGE_TYPES,
    STREAMS: FOREIGN_STREAM_TYPES,
    CONSUMERS: FOREIGN_CONSUMER_TYPES,
    DAMAGE: FOREIGN_DAMAGE_TYPES,
}
PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"  # the process in which Spark pushes filters
SINK_WORKER = "pyspark.sql.worker.python_streaming_sink_runner"  # in which it commits and aborts batches


@checks_options
def schema(options: Mapping[str, str]) -> StructType:
    """Return the columns of a read without a schema of the user's; checks the options and that the streams exist.

    Spark does not say whether the read is one in batches or a streaming one: what either could mean passes here.
    """
    if _is_catalogue_table(options):
        return spark_schema(MESSAGE_TYPES)
    settings = _read_settings(options)
    if settings.is_live:
        from datasource.live_reader import check_streams

        check_streams(settings)
        return _offered(settings)
    if isinstance(settings, StreamReadSettings):
        with open_for_reading(settings) as store:
            pick_streams(store.streams(), settings.streams)
        return _offered(settings)
    if settings.layout in FOREIGN:
        select_streams(open_foreign_store(settings).streams(), settings.streams)
    else:
        with open_for_reading(settings) as store:
            select = pick_streams if settings.table in OF_MESSAGES else select_streams
            select(_known_streams(store, settings), settings.streams)
    return _offered(settings)


def _offered(settings: ReadSettings | StreamReadSettings) -> StructType:
    """Return the columns that the option names, else all but those that only show when they are named."""
    if settings.columns is None:
        return spark_schema(_types(settings))
    return pick_columns(settings.columns, {**_types(settings), **_by_name_only(settings)})


def _declared(settings: ReadSettings | StreamReadSettings, schema: StructType) -> pa.Schema:
    """Return what Spark declares, checked."""
    if settings.columns is not None and list(settings.columns) != schema.names:
        raise ValueError(
            f"option 'columns' names {', '.join(settings.columns)}, the schema has {', '.join(schema.names)}: give one "
            "of the two"
        )
    extra = _by_name_only(settings)
    return check_read_schema(schema, _types(settings), extra, TEXT if extra else None)


def _by_name_only(settings: ReadSettings | StreamReadSettings) -> Mapping[str, DataType]:
    is_of_messages = isinstance(settings, StreamReadSettings) or settings.table in OF_MESSAGES
    return BY_NAME_ONLY if is_of_messages else {}


def _known_streams(store: Store, settings: ReadSettings) -> list[str]:
    if settings.table != EVENTS:
        return store.streams()
    from datasource.tables import event_streams

    return event_streams(store)


def _read_settings(options: Mapping[str, str]) -> ReadSettings | StreamReadSettings:
    """Return the settings of whichever read the options fit; if of neither, the refusal of the one they are nearer."""
    first: ParserOf = ReadSettings.parse
    second: ParserOf = StreamReadSettings.parse
    if is_of_streaming_only(options):
        first, second = second, first
    try:
        return first(options)
    except ValueError as error:
        refused = error
    try:
        return second(options)
    except ValueError:
        raise refused from None


@checks_options
def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return a batch reader of the columns in `schema`, which are the user's choice or those of `schema()`."""
    settings = ReadSettings.parse(options)
    columns = _declared(settings, schema)
    if settings.is_live:
        from datasource.live_reader import READERS as LIVE_READERS

        return LIVE_READERS[settings.table](settings, columns)
    if settings.layout in FOREIGN:
        from datasource.foreign_tables import READERS as FOREIGN_READERS

        return FOREIGN_READERS[settings.table](settings, columns)
    if settings.table == LAST:
        return LastMessageReader(settings, columns)
    if settings.table != MESSAGES:
        from datasource.tables import READERS

        return READERS[settings.table](settings, columns)
    if PUSHDOWN_WORKER in sys.modules and keeps_filters_apart():
        return FilteringMessageReader(settings, columns)
    return MessageReader(settings, columns)


@checks_options
def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return a batch writer; a new transaction begins with it."""
    settings = WriteSettings.parse(options)
    if settings.is_live:
        from datasource.live_writer import LiveBatchWriter

        return LiveBatchWriter(settings, schema, overwrite)
    from datasource.writer import BatchWriter

    return BatchWriter(settings, schema, overwrite)


@checks_options
def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Return the reader of a streaming query: one for the process of the source, another one for the tasks.

    What is wrong with the options is raised by the reader's first call.
    """
    try:
        settings = StreamReadSettings.parse(options)
        columns = _declared(settings, schema)
    except ValueError as error:
        from datasource.refused import RefusedStreamReader

        return RefusedStreamReader(option_error(error))
    if settings.is_live:
        from datasource.live_stream import EarlyLiveStreamReader, LiveStreamReader

        return (LiveStreamReader if SAYS_LIMITS else EarlyLiveStreamReader)(settings, columns)
    from datasource.stream_reader import EarlyStreamReader, MessageStreamReader

    return (MessageStreamReader if SAYS_LIMITS else EarlyStreamReader)(settings, columns)


@checks_options
def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> "StreamWriter | LiveStreamWriter":
    """Return a writer of one batch of a streaming query: for its tasks, or for its commit, which begins nothing."""
    made = _stream_writer(WriteSettings.parse_streaming(options), schema, overwrite)
    if SINK_WORKER not in sys.modules:
        made.begin()
    return made


def _stream_writer(settings: WriteSettings, schema: StructType, overwrite: bool) -> "StreamWriter | LiveStreamWriter":
    if settings.is_live:
        from datasource.live_writer import LiveStreamWriter

        return LiveStreamWriter(settings, schema, overwrite)
    from datasource.stream_writer import StreamWriter

    return StreamWriter(settings, schema, overwrite)


def _types(settings: ReadSettings | StreamReadSettings) -> Mapping[str, DataType]:
    if isinstance(settings, StreamReadSettings):
        return MESSAGE_TYPES
    is_foreign = settings.is_live or settings.layout in FOREIGN
    return (FOREIGN_TABLE_TYPES if is_foreign else TABLE_TYPES)[settings.table]


def _is_catalogue_table(options: Mapping[str, str]) -> bool:
    """Return whether Spark asks for the columns of a CREATE TABLE: it then passes the table's properties as options.

    Raises ValueError if the statement has OPTIONS: Spark drops them whenever the table is read or written.
    """
    if "provider" not in options or "owner" not in options:
        return False
    named = {key.removeprefix("option.") for key in options if key.startswith("option.")} | {"path"} & set(options)
    if named:
        raise ValueError(
            f"CREATE TABLE ... USING jstream with OPTIONS ({', '.join(sorted(named))}): Spark drops them whenever "
            "the table is used. Leave them out and give them with each use, as in SELECT * FROM t WITH "
            "(path='/data/store', stream='ORDERS') or spark.read.option('path', ...).table('t')"
        )
    return True
