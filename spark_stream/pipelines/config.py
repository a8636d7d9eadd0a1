"""A pipeline as its file describes it: source, payload, transformation, sink, trigger, dead letters, checkpoint.

    name = "orders"                     # of the job; the file's name if it is left out
    checkpoint = "/data/checkpoints/orders"

    [source]                            # what is read: stream, consumer, subject, limits
    [payload]                           # what is in a message: format and schema
    [transform]                         # SQL over the view `messages`, or a Python function
    [sink]                              # where rows go: delta, jstream, parquet, console
    [dead_letters]                      # the stream that takes what is not understood
    [trigger]                           # how often, with `etl run --continuous`
    [spark]                             # settings of the session

Everything that can be known without Spark and without the store is checked here, before either is started.
"""

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from spark_stream.pipelines.errors import DefinitionError
from spark_stream.pipelines.toml import (
    check_keys,
    is_kafka,
    place_of,
    read_toml,
    substitute,
    to_struct,
    volume_of,
)
from storage_core.live.login import is_live
from storage_core.metadata.config import check_name
from storage_core.paths import is_in_object_store, place, volume_path
from storage_core.quantities import parse_duration_ns, parse_size
from storage_core.sequences import check_sequence
from storage_core.subjects import is_filter, is_literal
from storage_core.suggestions import did_you_mean

JSON, MSGPACK, UTF8, BYTES, AVRO, PROTOBUF = "json", "msgpack", "utf8", "bytes", "avro", "protobuf"
DELTA, JSTREAM, PARQUET, CONSOLE = "delta", "jstream", "parquet", "console"
APPEND, UPSERT = "append", "upsert"  # mode of a sink
UPDATE, COMPLETE = "update", "complete"  # output_mode of a sink; also append
AVAILABLE_NOW, CONTINUOUS = "available-now", "continuous"
STORE_VARIABLE = "JSTREAM_STORE"
ENVELOPE = ("stream", "sequence", "subject", "timestamp", "headers")  # columns of the view, besides the payload's
KAFKA_ENVELOPE = (*ENVELOPE, "key", "partition", "msg_id")  # of messages of Kafka
VERBATIM = ("transform.sql", "payload.schema")  # `${...}` means something else there, or nothing
CONSOLE_ROWS = 20
Count = Annotated[int, msgspec.Meta(ge=1)]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What is read."""

    stream: str | list[str]  # a name, names, or globs
    store: str | list[str] = ""  # volumes, or running servers: nats://host:4222, kafka://host:9092
    options: dict[str, str] = msgspec.field(default_factory=dict)  # how to log in to these: natsCreds and so on
    consumer: str = ""
    consumer_takeover: bool = False
    subject: str = ""
    start: str | int | dict[str, int] = ""  # earliest, latest, consumer, a time, a sequence, one per stream
    on_data_loss: Literal["fail", "continue"] = "fail"
    max_messages: Count | None = None  # a batch, at most
    max_bytes: Count | str | None = None  # text with a unit: 64MB
    max_blocks: Count | None = None
    lock_timeout: str = ""

    @property
    def fails_on_data_loss(self) -> bool:
        return self.on_data_loss == "fail"

    @property
    def volumes(self) -> list[str]:
        return [self.store] if isinstance(self.store, str) else self.store

    @property
    def is_live(self) -> bool:
        """Whether running NATS servers are read."""
        return any(map(is_live, self.volumes))

    @property
    def is_kafka(self) -> bool:
        """Whether topics of Kafka are read."""
        return any(map(is_kafka, self.volumes))

    @property
    def is_store(self) -> bool:
        """Whether a store of jstream is read."""
        return not self.is_live and not self.is_kafka

    @property
    def envelope(self) -> tuple[str, ...]:
        """The columns of every message, besides the payload's."""
        return KAFKA_ENVELOPE if self.is_kafka else ENVELOPE

    @property
    def streams(self) -> list[str]:
        return [self.stream] if isinstance(self.stream, str) else self.stream


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a message. With `column` the view has it there whole, else each field is a column."""

    format: Literal["json", "msgpack", "avro", "protobuf", "utf8", "bytes"] = "bytes"
    schema: str = ""  # DDL: `order_id STRING NOT NULL, amount DOUBLE`
    schema_file: str = ""  # Avro: the schema; Protobuf: a set of descriptors
    message: str = ""  # Protobuf: which message of the set
    skip_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0  # before each record, as a schema registry puts them there
    column: str = ""

    @property
    def has_schema_file(self) -> bool:
        return self.format in (AVRO, PROTOBUF)


class Transform(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the rows; without either they stay as they are."""

    sql: str = ""
    python: str = ""  # module:function or file.py:function
    watermark: dict[str, str] = msgspec.field(default_factory=dict)  # a column of time, and how late a message may be


class Sink(msgspec.Struct, frozen=True, kw_only=True):
    """Where the rows go."""

    kind: Literal["delta", "jstream", "parquet", "console"]
    mode: Literal["append", "upsert"] = "append"
    output_mode: Literal["append", "update", "complete"] = "append"  # of aggregates: which rows a batch hands over
    path: str = ""
    table: str = ""
    key: str | list[str] = ""  # upsert: the columns that say which row it is
    order_by: str = ""  # upsert of appended rows: the column whose highest value is the row as it is now
    partition_by: str | list[str] = ""
    store: str | list[str] = ""
    stream: str = ""
    subject: str = ""
    rows: Count = CONSOLE_ROWS  # console: shown of each batch
    options: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        return _listed(self.key)

    @property
    def appends(self) -> bool:
        """Whether rows that are written again stand there twice."""
        return self.mode != UPSERT and self.kind != CONSOLE

    @property
    def evolves(self) -> bool:
        """Whether the table gets the columns that rows have and it has not."""
        return any(key.lower() == "mergeschema" and value == "true" for key, value in self.options.items())

    @property
    def partitions(self) -> list[str]:
        return _listed(self.partition_by)

    @property
    def volumes(self) -> list[str]:
        return [self.store] if isinstance(self.store, str) else self.store


class DeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """The stream for messages that cannot be parsed."""

    stream: str
    store: str | list[str] = ""
    subject: str = ""

    @property
    def volumes(self) -> list[str]:
        return [self.store] if isinstance(self.store, str) else self.store


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """When batches begin."""

    mode: Literal["available-now", "continuous"] = "available-now"
    interval: str = "0s"  # continuous: between two batches' beginnings, at least


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline, checked; all its paths are absolute."""

    file: Path
    name: str
    checkpoint: str
    source: Source
    sink: Sink
    description: str = ""
    payload: Payload = msgspec.field(default_factory=Payload)
    transform: Transform = msgspec.field(default_factory=Transform)
    dead_letters: DeadLetters | None = None
    trigger: Trigger = msgspec.field(default_factory=Trigger)
    spark: dict[str, str] = msgspec.field(default_factory=dict)


class _Top(msgspec.Struct, frozen=True, kw_only=True):
    """The keys above the first table of a file."""

    checkpoint: str = ""
    name: str = ""
    description: str = ""


_TABLES = ("source", "payload", "transform", "sink", "dead_letters", "trigger", "spark")


def load_pipeline(file: Path, store: str | None = None) -> Pipeline:
    """Return the pipeline of a file. `store`: volumes for where the file names none, comma-separated.

    Raises DefinitionError naming file, key, what came and what is taken, and OSError.
    """
    file = Path(os.path.abspath(file))
    tables = substitute(file, read_toml(file), VERBATIM)
    top = {key: value for key, value in tables.items() if key not in _TABLES}
    known = list(_Top.__struct_fields__)
    check_keys(file, "", tables, [*known, *_TABLES])
    for table in ("source", "sink"):
        if table not in tables:
            raise DefinitionError(file, table, f"is missing: a pipeline has a table [{table}]")
    head = to_struct(file, "", top, _Top)
    dead = tables.get("dead_letters")
    made = Pipeline(
        file=file,
        name=head.name or file.stem,
        description=head.description,
        checkpoint=head.checkpoint,
        source=_source(file, tables["source"]),
        payload=to_struct(file, "payload", tables.get("payload", {}), Payload),
        transform=to_struct(file, "transform", tables.get("transform", {}), Transform),
        sink=_sink(file, tables["sink"]),
        dead_letters=None if dead is None else to_struct(file, "dead_letters", dead, DeadLetters),
        trigger=to_struct(file, "trigger", tables.get("trigger", {}), Trigger),
        spark=_settings(file, tables.get("spark", {})),
    )
    _check(made)
    return _resolved(made, store or os.environ.get(STORE_VARIABLE, ""))


def _source(file: Path, table: object) -> Source:
    """Return the table [source]; raises DefinitionError."""
    if isinstance(table, Mapping) and isinstance(table.get("options"), Mapping):
        table = {**table, "options": _texts(file, "source.options", table["options"])}
    source = to_struct(file, "source", table, Source)
    if isinstance(source.start, str) and source.start.isdecimal():  # a variable of the environment is always text
        source = msgspec.structs.replace(source, start=int(source.start))
    return source


def _sink(file: Path, table: object) -> Sink:
    """Return the table [sink]; raises DefinitionError, also for keys that mean nothing with its kind."""
    if isinstance(table, Mapping) and isinstance(table.get("options"), Mapping):
        table = {**table, "options": _texts(file, "sink.options", table["options"])}
    sink = to_struct(file, "sink", table, Sink)
    taken = _SINK_KEYS[sink.kind]
    assert isinstance(table, Mapping), table
    for key in table:
        if key not in ("kind", "mode", "output_mode", *taken):
            reason = f"means nothing with kind = {sink.kind!r}; valid keys are {', '.join(taken)}"
            raise DefinitionError(file, f"sink.{key}", reason)
    return sink


def _texts(file: Path, place: str, table: Mapping[str, Any]) -> dict[str, str]:
    """Return options or settings as Spark takes them; names with dots may be quoted or tables within tables."""
    texts: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            texts |= {f"{key}.{name}": text for name, text in _texts(file, f"{place}.{key}", value).items()}
        elif isinstance(value, (bool, int, float, str)):
            texts[key] = str(value).lower() if isinstance(value, bool) else str(value)
        else:
            raise DefinitionError(file, f"{place}.{key}", f"{value!r} is not text, a number, or true or false")
    return texts


def _settings(file: Path, table: object) -> dict[str, str]:
    """Return the settings of the session."""
    if not isinstance(table, Mapping):
        raise DefinitionError(file, "spark", f"{table!r} is not a table of settings")
    settings = _texts(file, "spark", table)
    for name in settings:
        if not name.startswith("spark."):
            raise DefinitionError(file, f"spark.{name}", 'settings of Spark begin with spark., as in "spark.master"')
    return settings


def _check(pipeline: Pipeline) -> None:
    file = pipeline.file
    try:
        check_name(pipeline.name, "name")
    except ValueError as error:
        advice = "; it is the file's, unless the file says name = ..." if pipeline.name == file.stem else ""
        raise DefinitionError(file, "", f"{error}{advice}") from error
    if not pipeline.checkpoint:
        raise DefinitionError(
            file, "checkpoint", "is missing: the folder in which Spark keeps how far the pipeline has come"
        )
    _check_source(file, pipeline.source)
    _check_payload(file, pipeline.payload, pipeline.source.envelope)
    _check_transform(file, pipeline.transform)
    _check_sink(file, pipeline.sink)
    if pipeline.dead_letters is not None:
        _check_name(file, "dead_letters.stream", pipeline.dead_letters.stream)
        _check_subject(file, "dead_letters.subject", pipeline.dead_letters.subject)
    _check_duration(file, "trigger.interval", pipeline.trigger.interval)


def _check_source(file: Path, source: Source) -> None:
    if not source.streams or not all(stream.strip() for stream in source.streams):
        raise DefinitionError(file, "source.stream", f"{source.stream!r} names no stream")
    if source.consumer:
        _check_name(file, "source.consumer", source.consumer)
    elif source.consumer_takeover:
        raise DefinitionError(file, "source.consumer_takeover", "needs source.consumer")
    if source.subject and not is_filter(source.subject):
        raise DefinitionError(
            file,
            "source.subject",
            f"{source.subject!r} is not a filter; tokens joined by dots, * for one, > for the rest",
        )
    if isinstance(source.max_bytes, str):
        _check_size(file, "source.max_bytes", source.max_bytes)
    if source.lock_timeout:
        _check_duration(file, "source.lock_timeout", source.lock_timeout)
    _check_start(file, source)


def _check_start(file: Path, source: Source) -> None:
    start = source.start
    if isinstance(start, dict):
        for name in start:
            if not any(fnmatchcase(name, stream) for stream in source.streams):
                near = did_you_mean(name, source.streams)
                reason = f"{name!r} is not read here: source.stream is {', '.join(source.streams)}{near}"
                raise DefinitionError(file, "source.start", reason)
    is_one_stream = len(source.streams) == 1 and not is_glob(source.streams[0])
    if isinstance(start, int) and not is_one_stream:
        raise DefinitionError(
            file,
            "source.start",
            f"{start} is a sequence, which several streams do not share; write {{ ORDERS = {start} }}",
        )
    sequences = [start] if isinstance(start, int) else list(start.values()) if isinstance(start, dict) else []
    for sequence in sequences:
        try:
            check_sequence("start", sequence)
        except ValueError as error:
            raise DefinitionError(file, "source.start", str(error).removeprefix("start: ")) from error
    if start == "consumer" and not source.consumer:
        raise DefinitionError(file, "source.start", "'consumer' needs source.consumer, the name of one")
    if isinstance(start, str) and start not in ("", "earliest", "latest", "consumer"):
        from datasource.values import parse_time_ns

        try:
            parse_time_ns("start", start)
        except ValueError as error:
            raise DefinitionError(
                file,
                "source.start",
                f"{start!r} is not earliest, latest, consumer, a sequence, or a time such as 2026-11-21T12:00:00Z"
                + did_you_mean(start, ("earliest", "latest", "consumer")),
            ) from error


def _check_payload(file: Path, payload: Payload, envelope: tuple[str, ...]) -> None:
    for key, is_wanted, example in (
        ("schema", payload.format in (JSON, MSGPACK), "'order_id STRING, amount DOUBLE'"),
        ("schema_file", payload.has_schema_file, "'order.avsc'" if payload.format == AVRO else "'orders.desc'"),
        ("message", payload.format == PROTOBUF, "'shop.Order'"),
        ("skip_bytes", payload.has_schema_file, ""),
    ):
        is_given = bool(str(getattr(payload, key) or "").strip())
        if is_wanted and example and not is_given:
            raise DefinitionError(
                file, f"payload.{key}", f"is missing: format {payload.format} needs one, such as {example}"
            )
        if is_given and not is_wanted:
            raise DefinitionError(file, f"payload.{key}", f"format {payload.format} has no {key}; leave it out")
    if payload.column.lower() in envelope:
        raise DefinitionError(
            file, "payload.column", f"{payload.column!r} is a column of every message already: {', '.join(envelope)}"
        )


def _check_transform(file: Path, transform: Transform) -> None:
    if transform.sql and transform.python:
        raise DefinitionError(file, "transform", "has sql and python; give one of them")
    if transform.python:
        place, _, function = transform.python.rpartition(":")
        if not place or not function.isidentifier():
            raise DefinitionError(
                file, "transform.python", f"{transform.python!r} is not module:function or file.py:function"
            )
        path = Path(place_of(file, "transform.python", place))
        if place.endswith(".py") and not path.is_file():
            raise DefinitionError(file, "transform.python", f"{path} is not a file")
    if len(transform.watermark) > 1:
        columns = ", ".join(transform.watermark)
        raise DefinitionError(file, "transform.watermark", f"names {columns}; a pipeline has a watermark on one column")
    for column, delay in transform.watermark.items():
        _check_duration(file, f"transform.watermark.{column}", delay)


# Options of Spark's connector for Kafka that say what no key of [source] says.
_KAFKA_OPTIONS = (
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "minPartitions",
)
# Which keys of [sink] mean something with which kind.
_SINK_KEYS = {
    DELTA: ("path", "table", "key", "order_by", "partition_by", "options"),
    JSTREAM: ("store", "stream", "subject", "options"),
    PARQUET: ("path", "partition_by", "options"),
    CONSOLE: ("rows",),
}


def _check_sink(file: Path, sink: Sink) -> None:
    if sink.mode == UPSERT and sink.kind != DELTA:
        raise DefinitionError(file, "sink.mode", f"'upsert' is for kind = 'delta'; {sink.kind} can only append")
    _check_output_mode(file, sink)
    if sink.mode == UPSERT:
        wanted = [("key", sink.keys, "the columns that say which row it is")]
        if sink.output_mode == APPEND:
            why = "the column whose highest value is the row as it is now, such as sequence"
            wanted.append(("order_by", [sink.order_by] if sink.order_by else [], why))
        for key, value, why in wanted:
            if not value:
                raise DefinitionError(file, f"sink.{key}", f"is missing: mode 'upsert' needs {why}")
        for name in sink.options:
            if name.lower() != "mergeschema":
                raise DefinitionError(
                    file, f"sink.options.{name}", "means nothing with mode = 'upsert'; taken is mergeSchema"
                )
    elif sink.key or sink.order_by:
        key = "key" if sink.key else "order_by"
        raise DefinitionError(file, f"sink.{key}", "is for mode = 'upsert'")
    if sink.kind == DELTA and bool(sink.path) == bool(sink.table):
        raise DefinitionError(
            file, "sink", "has path and table; give one of them" if sink.path else "needs path or table"
        )
    if sink.kind == PARQUET and not sink.path:
        raise DefinitionError(file, "sink.path", "is missing: the folder of the Parquet files")
    if sink.kind == JSTREAM:
        if sink.stream:
            _check_name(file, "sink.stream", sink.stream)
        _check_subject(file, "sink.subject", sink.subject)


def _check_output_mode(file: Path, sink: Sink) -> None:
    """Raise DefinitionError if rows of that output mode would stand in the sink more than once."""
    if sink.output_mode == APPEND or sink.kind == CONSOLE:
        return
    if sink.kind == JSTREAM and sink.output_mode == UPDATE:  # a message for each change
        return
    if sink.mode != UPSERT:
        ways = 'mode = "upsert" with key, or output_mode = "append" with a watermark'
        if sink.kind != DELTA:
            ways = 'kind = "delta" with mode = "upsert", or output_mode = "append" with a watermark'
        reason = (
            f"{sink.output_mode!r} hands a result over again when it changes, and an append keeps each: take {ways}"
        )
        raise DefinitionError(file, "sink.output_mode", reason)
    if sink.order_by:
        reason = f"means nothing with output_mode = {sink.output_mode!r}: the result of a later batch is the newer one"
        raise DefinitionError(file, "sink.order_by", reason)


def _check_name(file: Path, key: str, name: str) -> None:
    try:
        check_name(name, key)
    except ValueError as error:
        raise DefinitionError(file, "", str(error)) from error


def _check_subject(file: Path, key: str, subject: str) -> None:
    if subject and not is_literal(subject):
        raise DefinitionError(
            file, key, f"{subject!r} is not a subject that a message can carry: no blanks, no wildcards"
        )


def _check_size(file: Path, key: str, text: str) -> None:
    try:
        size = parse_size(text, key)
    except ValueError as error:
        raise DefinitionError(file, "", str(error)) from error
    if not size:
        raise DefinitionError(file, key, f"{text!r} is not a number of bytes from 1 on")


def _check_duration(file: Path, key: str, text: str) -> None:
    try:
        parse_duration_ns(text, key)
    except ValueError as error:
        raise DefinitionError(file, "", str(error)) from error


def _resolved(pipeline: Pipeline, store: str) -> Pipeline:
    """Return the pipeline with absolute paths; stores that the file does not name are `store`, from where we stand."""
    file, replace = pipeline.file, msgspec.structs.replace
    default = [volume_path(volume.strip(), "store") for volume in store.split(",") if volume.strip()]

    def volumes(key: str, text: str | list[str], otherwise: list[str]) -> list[str]:
        paths = [volume_of(file, key, volume) for volume in _listed(text)] or otherwise
        if not paths:
            raise DefinitionError(
                file, key, f"is missing: the volumes of the store; or pass --store, or set {STORE_VARIABLE}"
            )
        return paths

    source = replace(pipeline.source, store=volumes("source.store", pipeline.source.store, default))
    _check_servers(file, source)
    _check_kafka(pipeline, source)
    sink, dead = pipeline.sink, pipeline.dead_letters
    beside = source.volumes if source.is_store else default
    if sink.kind == JSTREAM:
        sink = replace(sink, store=_no_servers(file, "sink.store", volumes("sink.store", sink.store, beside)))
    if sink.path:
        sink = replace(sink, path=place_of(file, "sink.path", sink.path, remote=True))
    if dead is not None:
        dead = replace(
            dead, store=_no_servers(file, "dead_letters.store", volumes("dead_letters.store", dead.store, beside))
        )
    payload = pipeline.payload
    if payload.has_schema_file:
        payload = replace(payload, schema_file=place_of(file, "payload.schema_file", payload.schema_file))
        if not os.path.isfile(payload.schema_file):
            raise DefinitionError(file, "payload.schema_file", f"{payload.schema_file} is not a file")
    checkpoint = place_of(file, "checkpoint", pipeline.checkpoint, remote=True)
    if not os.path.isabs(checkpoint) and not is_in_object_store(checkpoint):
        raise DefinitionError(
            file,
            "checkpoint",
            f"{checkpoint!r} is no folder that this host sees, and in no object store: a lock beside it keeps two runs "
            "apart",
        )
    resolved = replace(pipeline, source=source, payload=payload, sink=sink, dead_letters=dead, checkpoint=checkpoint)
    _check_folders(resolved)
    return resolved


def _check_servers(file: Path, source: Source) -> None:
    """Raise DefinitionError for keys that mean nothing for running servers, or nothing for stores."""
    if source.is_store:
        if source.options:
            raise DefinitionError(
                file, "source.options", "say how to log in to nats:// or kafka:// servers, which store names none of"
            )
        return
    what = "Kafka" if source.is_kafka else "a NATS server"
    if not all(map(is_kafka if source.is_kafka else is_live, source.volumes)):
        reason = f"{', '.join(source.volumes)}: each address begins with its scheme, and all are of one kind"
        raise DefinitionError(file, "source.store", reason)
    for key in ("consumer_takeover", "max_blocks", "lock_timeout"):
        if getattr(source, key):
            raise DefinitionError(file, f"source.{key}", f"is for stores of jstream, and source.store is {what}")
    for name in () if source.is_kafka else source.options:
        if not name.lower().startswith("nats"):
            raise DefinitionError(
                file, f"source.options.{name}", "is none of natsCreds, natsContext, natsUser and so on"
            )


def _check_kafka(pipeline: Pipeline, source: Source) -> None:
    """Raise DefinitionError for what topics of Kafka do not have, and for options that other keys say."""
    file = pipeline.file
    if not source.is_kafka:
        return
    for key in ("consumer", "subject", "max_bytes"):
        if getattr(source, key):
            raise DefinitionError(file, f"source.{key}", "means nothing for topics of Kafka")
    if not isinstance(source.start, str):
        reason = f"{source.start!r}: a topic has an offset per partition; valid are earliest, latest and a time"
        raise DefinitionError(file, "source.start", reason)
    for name in source.options:
        if not name.startswith("kafka.") and name not in _KAFKA_OPTIONS:
            others = ", ".join(_KAFKA_OPTIONS)
            reason = f"is no setting of Kafka's client, such as kafka.security.protocol, and none of {others}"
            raise DefinitionError(file, f"source.options.{name}", reason)
        if name == "kafka.bootstrap.servers":
            raise DefinitionError(file, f"source.options.{name}", "is what source.store says")
    if pipeline.dead_letters is not None and pipeline.sink.kind == PARQUET:
        reason = "cannot be kept beside a Parquet sink that Kafka fills: write Delta, or to a stream"
        raise DefinitionError(file, "dead_letters", reason)


def _no_servers(file: Path, key: str, volumes: list[str]) -> list[str]:
    if any(is_live(volume) or is_kafka(volume) for volume in volumes):
        reason = f"{volumes[0]} is a server: a pipeline writes to a store. Spark writes to servers (see the guide)"
        raise DefinitionError(file, key, reason)
    return volumes


def _check_folders(pipeline: Pipeline) -> None:
    """Raise DefinitionError if two of the pipeline's folders are one, or a volume has another in it: none is shared."""
    volumes = {*pipeline.source.volumes}
    volumes |= {*pipeline.sink.volumes} if pipeline.sink.kind == JSTREAM else set()
    volumes |= {*pipeline.dead_letters.volumes} if pipeline.dead_letters is not None else set()
    for key, folder in [("checkpoint", pipeline.checkpoint), ("sink.path", pipeline.sink.path)]:
        folder = str(place(folder)) if is_in_object_store(folder) else folder  # by one name of its scheme
        for volume in volumes:
            if folder == volume or folder.startswith(f"{volume}/"):
                raise DefinitionError(pipeline.file, key, f"{folder} lies in {volume}, a volume of a store")
    if pipeline.checkpoint == pipeline.sink.path:
        raise DefinitionError(pipeline.file, "checkpoint", f"{pipeline.checkpoint} is sink.path as well")


def _listed(text: str | list[str]) -> list[str]:
    listed = text.split(",") if isinstance(text, str) else text
    return [volume.strip() for volume in listed if volume.strip()]


def is_glob(stream: str) -> bool:
    """Return whether the name stands for all streams that match it."""
    return any(mark in stream for mark in "*?[")


def delay_ms(delay: str) -> int:
    """Return how many milliseconds a watermark stays behind the newest time."""
    return parse_duration_ns(delay, "transform.watermark") // 1_000_000


def interval_s(pipeline: Pipeline) -> float:
    """Return how many seconds lie between two batches' beginnings, at least."""
    return parse_duration_ns(pipeline.trigger.interval, "trigger.interval") / 1e9
