"""What a read and a write were asked to do: the options as values, checked against each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from datasource.limits import Limits
from datasource.offsets import (
    CONSUMER,
    ENDING,
    STARTING,
    Bounds,
    Offsets,
)
from datasource.options import (
    CHECKPOINT_LOCATION,
    QUERY_NAME,
    READ,
    STORAGE_PREFIX,
    STREAM_READ,
    STREAM_WRITE,
    WRITE,
    CheckedOptions,
    Use,
    check_options,
    is_of_servers,
    parse_options,
)
from datasource.spark_versions import SAYS_LIMITS
from datasource.values import parse_paths
from storage_core.live.login import Login, is_live
from storage_core.paths import is_in_object_store

MESSAGES, LAST, STREAMS, EVENTS = "messages", "last", "streams", "events"
OF_MESSAGES = (MESSAGES, LAST)  # tables whose rows are messages
CONSUMERS, DAMAGE = "consumers", "damage"
FAIL, NULL = "fail", "null"
JSTREAM, NATS, STAN = "jstream", "nats", "stan"
FOREIGN = (NATS, STAN)
LOCK_TIMEOUT_S = 60.0
TRIGGER_DELAY_MAX_S = 900.0
POLL_INTERVAL_S = 1.0

# What means something for running NATS servers, besides how to log in.
_LIVE_READS = (
    *("path", "stream", "subject", "columns", "invalidUtf8", "startingOffsets", "startingTimestamp"),
    *("startingOffsetsByTimestamp", "minPartitions", "maxRecordsPerPartition", "failOnDataLoss"),
)
LIVE_OPTIONS = {
    READ: (*_LIVE_READS, "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "table"),
    STREAM_READ: (
        *(*_LIVE_READS, "consumer", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"),
        *("maxTriggerDelay", "pollInterval", "trigger"),
    ),
    WRITE: ("path", "stream", "subject", "writerId", "batchId"),
    STREAM_WRITE: ("path", "stream", "subject", "writerId"),
}

NO_PATH = (
    "option 'path' is missing: say where the store is, with load(PATH), save(PATH) or option('path', PATH). "
    "Spark drops the OPTIONS of a table made by CREATE TABLE ... USING jstream: give them with each read, as in "
    "SELECT * FROM t WITH (path='/data/store', stream='ORDERS') or spark.read.option('path', ...).table('t')"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AnyReadSettings:
    """What batch and streaming reads have in common. Times are nanoseconds since 1970; `None` means not given."""

    paths: tuple[str, ...]
    streams: tuple[str, ...] = ()  # names and globs
    columns: tuple[str, ...] | None = None
    invalid_utf8: str = FAIL
    subject: str | None = None
    starting: Offsets = Offsets()
    starting_time_ns: int | None = None
    starting_times_ns: Mapping[str, int] | None = None
    consumer: str | None = None
    min_partitions: int | None = None
    partition_rows_max: int | None = None
    fail_on_data_loss: bool = True
    verify: bool = True
    take_over: bool = False
    lock_timeout_s: float = LOCK_TIMEOUT_S
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets
    login: Login = Login()

    @property
    def is_live(self) -> bool:
        """Return whether running NATS servers are read."""
        return is_live(self.paths[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings(_AnyReadSettings):
    """A batch read."""

    ending: Offsets = Offsets()
    ending_time_ns: int | None = None
    ending_times_ns: Mapping[str, int] | None = None
    layout: str = JSTREAM
    account: str | None = None
    encryption_key: str | None = field(default=None, repr=False)
    truncate_bad_eof: bool = False
    no_crc: bool = False
    table: str = MESSAGES

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "ReadSettings":
        """Return the settings of a batch read; raises ValueError naming the option at fault."""
        checked = _checked(options, READ)
        instead = parse_options(checked, READ, ("table", "layout"))
        layout = instead.get("layout", JSTREAM)
        _check_together(checked, instead.get("table", MESSAGES), layout)
        _check_consumer(checked)
        values = parse_options(checked, READ)
        if layout in FOREIGN:
            values.setdefault("streams", ("*",))
        return cls(**values)

    def bounds(self) -> tuple[Bounds, Bounds]:
        """Return where the read starts, and where it ends."""
        return (
            Bounds(STARTING, self.starting, self.starting_time_ns, self.starting_times_ns),
            Bounds(ENDING, self.ending, self.ending_time_ns, self.ending_times_ns),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReadSettings(_AnyReadSettings):
    """A streaming read."""

    consumer_takeover: bool = False
    limits: Limits = Limits()
    trigger_delay_max_s: float = TRIGGER_DELAY_MAX_S
    poll_interval_s: float = POLL_INTERVAL_S
    trigger: str | None = None  # for a Spark that does not say it

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "StreamReadSettings":
        """Return the settings of a streaming read; raises ValueError naming the option at fault."""
        checked = _checked(options, STREAM_READ)
        _check_together(checked, MESSAGES, JSTREAM)
        _check_consumer(checked)
        values = parse_options(checked, STREAM_READ)
        limits = Limits(**{field.name: values.pop(field.name, None) for field in fields(Limits)})
        _check_limits(limits)
        if limits != Limits() and "trigger" not in values and not SAYS_LIMITS:
            raise ValueError(
                "option 'trigger' is missing: a limit per trigger is for streaming reads only, and Spark before 4.2 "
                "does not say which trigger a query has. With 'processingTime' and 'processAllAvailable' limits count; "
                "with 'availableNow' a run is one batch, without limits"
            )
        return cls(limits=limits, **values)

    def bounds(self) -> Bounds:
        """Return where a query without a checkpoint starts."""
        return Bounds(STARTING, self.starting, self.starting_time_ns, self.starting_times_ns)


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """A write, in batches or streaming. Without `stream` the column of that name routes the rows."""

    paths: tuple[str, ...]
    stream: str | None = None
    subject: str | None = None
    compression: str | None = None
    writer_id: str | None = None
    batch_id: str | None = None
    expected_last_sequence: int | None = None
    take_over: bool = False
    exactly_once: str | None = None
    marker_subject: str | None = None
    fail_on_changed_batch: bool = True
    lock_timeout_s: float = LOCK_TIMEOUT_S
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets
    login: Login = Login()
    checkpoint: str = ""  # of the streaming query, if an option names it
    query_name: str = ""

    @property
    def is_live(self) -> bool:
        """Return whether running NATS servers are written."""
        return is_live(self.paths[0])

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "WriteSettings":
        """Return the settings of a batch write; raises ValueError naming the option at fault."""
        checked = _checked(options, WRITE)
        if ("writerId" in checked) != ("batchId" in checked):
            lacking = "batchId" if "writerId" in checked else "writerId"
            raise ValueError(
                f"option {lacking!r} is missing: a batch write that may run twice needs both, 'writerId' and 'batchId'"
            )
        if "failOnChangedBatch" in checked and "batchId" not in checked:
            raise ValueError("option 'batchId' is missing: 'failOnChangedBatch' is about one that is stored already")
        if "expectedLastSequence" in checked and "stream" not in checked:
            raise ValueError("option 'stream' is missing: 'expectedLastSequence' is about one stream")
        return cls(**_of_a_write(parse_options(checked, WRITE)))

    @classmethod
    def parse_streaming(cls, options: Mapping[str, str]) -> "WriteSettings":
        """Return the settings of a streaming write, whose batches Spark numbers; raises ValueError likewise."""
        values = _of_a_write(parse_options(_checked(options, STREAM_WRITE), STREAM_WRITE))
        given = {key.lower(): text for key, text in options.items()}
        return cls(**values, checkpoint=given.get(CHECKPOINT_LOCATION, ""), query_name=given.get(QUERY_NAME, ""))


def _checked(options: Mapping[str, str], use: Use) -> CheckedOptions:
    """Return the options that are given, the path among them."""
    checked = check_options(options, use)
    if not checked.get("path", "").strip():
        raise ValueError(NO_PATH)
    _check_live(checked, use, is_live(parse_paths("path", checked["path"])[0]))
    if checked.storage and not all(map(is_in_object_store, parse_paths("path", checked["path"]))):
        option = f"{STORAGE_PREFIX}{min(checked.storage)}"
        raise ValueError(f"option {option!r} is for volumes in object stores, such as s3://bucket/shop: leave it out")
    return checked


def _check_live(checked: CheckedOptions, use: Use, has_servers: bool) -> None:
    """Raise ValueError for options of running servers where a store is meant, and the other way round."""
    for name in checked:
        if is_of_servers(name) and not has_servers:
            raise ValueError(f"option {checked.named[name]!r} is for running servers, such as nats://host:4222")
        if has_servers and not is_of_servers(name) and name not in LIVE_OPTIONS[use]:
            raise ValueError(f"option {checked.named[name]!r} is for stores; with {checked['path']} leave it out")


def _of_a_write(values: dict[str, Any]) -> dict[str, Any]:
    return {("stream" if name == "streams" else name): value for name, value in values.items()}


def _check_limits(limits: Limits) -> None:
    least, most = limits.message_count_min, limits.message_count
    if least is not None and most is not None and least > most:
        raise ValueError(f"option 'minOffsetsPerTrigger': {least} is more than option 'maxOffsetsPerTrigger', {most}")


def _check_consumer(checked: Mapping[str, str]) -> None:
    if checked.get("startingOffsets", "").strip().lower() == CONSUMER and is_live(checked["path"]):
        raise ValueError("option 'startingOffsets': consumers of running servers only show where a query is")
    if "consumer" in checked:
        return
    if checked.get("startingOffsets", "").strip().lower() == CONSUMER:
        raise ValueError("option 'consumer' is missing: 'startingOffsets' is 'consumer', the position of a consumer")
    if "takeOver" in checked:
        raise ValueError("option 'consumer' is missing: a read without one writes nothing, so leave 'takeOver' out")
    if "consumerTakeover" in checked:
        raise ValueError("option 'consumer' is missing: 'consumerTakeover' says how to take it")


def _check_together(checked: Mapping[str, str], table: str, layout: str) -> None:
    if table not in OF_MESSAGES:
        allowed = ["path", "stream", "columns", "table", "layout", "account", "encryptionKey", "lockTimeout"]
        allowed += ["truncateBadEof", "noCrc"] if table in (CONSUMERS, DAMAGE) else []
        unfit = [name for name in checked if name not in allowed and not is_of_servers(name)]
        if unfit:
            raise ValueError(f"option {unfit[0]!r} is for reading messages; with table={table} leave it out")
    if table == LAST and "consumer" in checked:
        raise ValueError(f"option 'consumer': it is handed out all messages; with table={table} leave it out")
    for name in ("account", "encryptionKey"):
        if layout != NATS and name in checked:
            raise ValueError(f"option {name!r} is for layout=nats only")
    for name in ("truncateBadEof", "noCrc"):
        if layout != STAN and name in checked:
            raise ValueError(f"option {name!r} is for layout=stan only")
    if is_live(parse_paths("path", checked["path"])[0]) and table not in (MESSAGES, STREAMS, CONSUMERS):
        raise ValueError(f"option 'table': {table!r} is for stores; running servers have messages, streams, consumers")
    if layout in FOREIGN and any(map(is_in_object_store, parse_paths("path", checked["path"]))):
        raise ValueError(
            f"option 'path': {checked['path']!r} is in an object store; layout={layout} reads local folders"
        )
    if layout in FOREIGN and table in (EVENTS, LAST):
        raise ValueError(f"option 'table': {table!r} is for layout=jstream only")
    if layout in FOREIGN and "consumer" in checked:
        raise ValueError("option 'consumer' is for layout=jstream only; table=consumers shows positions")
    if layout in FOREIGN and checked.get("verify", "crc").strip().lower() == "none":
        instead = "; 'noCrc' reads on past what fails" if layout == STAN else ""
        raise ValueError(f"option 'verify': layout={layout} checks every message; leave it out{instead}")
    if table in OF_MESSAGES and layout == JSTREAM and not checked.get("stream", "").strip():
        raise ValueError("option 'stream' is missing: the name of a stream, a list, or a glob; '*' reads all of them")
