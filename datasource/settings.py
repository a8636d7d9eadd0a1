"""What a read and a write were asked to do: the options as values, checked against each other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from datasource.limits import Limits
from datasource.offsets import (
    CONSUMER,
    ENDING,
    STARTING,
    Bounds,
    Offsets,
    parse_offsets,
    parse_stream_offsets,
    parse_times,
)
from datasource.options import READ, STREAM_READ, STREAM_WRITE, WRITE, Given, check_options
from datasource.values import (
    parse_choice,
    parse_count,
    parse_duration_s,
    parse_flag,
    parse_names,
    parse_paths,
    parse_size,
    parse_time_ns,
)
from storage_core.metadata.config import check_name
from storage_core.subjects import is_filter, is_literal

T = TypeVar("T")
MESSAGES, STREAMS, EVENTS = "messages", "streams", "events"
CONSUMERS, DAMAGE = "consumers", "damage"
JSTREAM, NATS, STAN = "jstream", "nats", "stan"
FOREIGN = (NATS, STAN)
COMPRESSIONS = ("none", "lz4", "zstd")
LOCK_TIMEOUT_S = 60.0
TRIGGER_DELAY_MAX_S = 900.0
TEXT_SIZE_MAX = 1024  # characters of a writer's or batch's name: they are kept in every append's entry
TABLES = (MESSAGES, STREAMS, CONSUMERS, DAMAGE, EVENTS)

NO_PATH = (
    "option 'path' is missing: say where the store is, with load(PATH), save(PATH) or option('path', PATH). "
    "Spark drops the OPTIONS of a table made by CREATE TABLE ... USING jstream: give them with each read, as in "
    "SELECT * FROM t WITH (path='/data/store', stream='ORDERS') or spark.read.option('path', ...).table('t'), or make "
    "a CREATE TEMPORARY VIEW ... USING jstream OPTIONS (...), which keeps them"
)


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """A batch read. Times are nanoseconds since 1970; `None` means not given."""

    paths: tuple[str, ...]
    streams: tuple[str, ...] = ()  # names and globs
    subject: str | None = None
    starting: Offsets = Offsets()
    ending: Offsets = Offsets()
    starting_time_ns: int | None = None
    ending_time_ns: int | None = None
    starting_times_ns: Mapping[str, int] | None = None
    ending_times_ns: Mapping[str, int] | None = None
    consumer: str | None = None
    min_partitions: int | None = None
    partition_rows_max: int | None = None
    fail_on_data_loss: bool = True
    verify: bool = True
    layout: str = JSTREAM
    account: str | None = None
    encryption_key: str | None = field(default=None, repr=False)
    truncate_bad_eof: bool = False
    no_crc: bool = False
    table: str = MESSAGES
    take_over: bool = False
    lock_timeout_s: float = LOCK_TIMEOUT_S

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "ReadSettings":
        """Return the settings of a batch read; raises ValueError naming the option at fault."""
        given = check_options(options, READ)
        take = _Taker(given)
        paths = _paths(given)
        table = take("table", _table, MESSAGES)
        layout = take("layout", _layout, JSTREAM)
        _check_together(given, table, layout)
        _check_consumer(given)
        return cls(
            paths=paths,
            streams=take("stream", parse_names, ("*",) if layout in FOREIGN else ()),
            subject=take("subject", _subject_filter, None),
            starting=take("startingOffsets", parse_offsets, Offsets()),
            ending=take("endingOffsets", parse_offsets, Offsets()),
            starting_time_ns=take("startingTimestamp", parse_time_ns, None),
            ending_time_ns=take("endingTimestamp", parse_time_ns, None),
            starting_times_ns=take("startingOffsetsByTimestamp", parse_times, None),
            ending_times_ns=take("endingOffsetsByTimestamp", parse_times, None),
            consumer=take("consumer", _consumer_name, None),
            min_partitions=take("minPartitions", parse_count, None),
            partition_rows_max=take("maxRecordsPerPartition", parse_count, None),
            fail_on_data_loss=take("failOnDataLoss", parse_flag, True),
            verify=take("verify", _verify, True),
            layout=layout,
            account=take("account", _text, None),
            encryption_key=take("encryptionKey", _secret, None),
            truncate_bad_eof=take("truncateBadEof", parse_flag, False),
            no_crc=take("noCrc", parse_flag, False),
            table=table,
            take_over=take("takeOver", parse_flag, False),
            lock_timeout_s=take("lockTimeout", parse_duration_s, LOCK_TIMEOUT_S),
        )

    def bounds(self) -> tuple[Bounds, Bounds]:
        """Return where the read starts, and where it ends."""
        return (
            Bounds(STARTING, self.starting, self.starting_time_ns, self.starting_times_ns),
            Bounds(ENDING, self.ending, self.ending_time_ns, self.ending_times_ns),
        )


@dataclass(frozen=True, slots=True)
class StreamReadSettings:
    """A streaming read. Times are nanoseconds since 1970; `None` means not given."""

    paths: tuple[str, ...]
    streams: tuple[str, ...] = ()  # names and globs
    subject: str | None = None
    starting: Offsets = Offsets()
    starting_time_ns: int | None = None
    starting_times_ns: Mapping[str, int] | None = None
    consumer: str | None = None
    consumer_takeover: bool = False
    limits: Limits = Limits()
    trigger_delay_max_s: float = TRIGGER_DELAY_MAX_S
    min_partitions: int | None = None
    partition_rows_max: int | None = None
    fail_on_data_loss: bool = True
    verify: bool = True
    take_over: bool = False
    lock_timeout_s: float = LOCK_TIMEOUT_S

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "StreamReadSettings":
        """Return the settings of a streaming read; raises ValueError naming the option at fault."""
        given = check_options(options, STREAM_READ)
        take = _Taker(given)
        paths = _paths(given)
        _check_together(given, MESSAGES, JSTREAM)
        _check_consumer(given)
        return cls(
            paths=paths,
            streams=take("stream", parse_names, ()),
            subject=take("subject", _subject_filter, None),
            starting=take("startingOffsets", parse_stream_offsets, Offsets()),
            starting_time_ns=take("startingTimestamp", parse_time_ns, None),
            starting_times_ns=take("startingOffsetsByTimestamp", parse_times, None),
            consumer=take("consumer", _consumer_name, None),
            consumer_takeover=take("consumerTakeover", parse_flag, False),
            limits=_limits(take),
            trigger_delay_max_s=take("maxTriggerDelay", parse_duration_s, TRIGGER_DELAY_MAX_S),
            min_partitions=take("minPartitions", parse_count, None),
            partition_rows_max=take("maxRecordsPerPartition", parse_count, None),
            fail_on_data_loss=take("failOnDataLoss", parse_flag, True),
            verify=take("verify", _verify, True),
            take_over=take("takeOver", parse_flag, False),
            lock_timeout_s=take("lockTimeout", parse_duration_s, LOCK_TIMEOUT_S),
        )

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
    take_over: bool = False
    fail_on_changed_batch: bool = True
    lock_timeout_s: float = LOCK_TIMEOUT_S

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "WriteSettings":
        """Return the settings of a batch write; raises ValueError naming the option at fault."""
        given = check_options(options, WRITE)
        if ("writerId" in given) != ("batchId" in given):
            lacking = "batchId" if "writerId" in given else "writerId"
            raise ValueError(
                f"option {lacking!r} is missing: a batch write that may run twice needs both, 'writerId' and 'batchId'"
            )
        if "failOnChangedBatch" in given and "batchId" not in given:
            raise ValueError("option 'batchId' is missing: 'failOnChangedBatch' is about one that is stored already")
        return cls._taken(given)

    @classmethod
    def parse_streaming(cls, options: Mapping[str, str]) -> "WriteSettings":
        """Return the settings of a streaming write, whose batches Spark numbers; raises ValueError likewise."""
        return cls._taken(check_options(options, STREAM_WRITE))

    @classmethod
    def _taken(cls, given: Given) -> "WriteSettings":
        take = _Taker(given)
        return cls(
            paths=_paths(given),
            stream=take("stream", _one_stream, None),
            subject=take("subject", _literal_subject, None),
            compression=take("compression", _compression, None),
            writer_id=take("writerId", _text, None),
            batch_id=take("batchId", _text, None),
            take_over=take("takeOver", parse_flag, False),
            fail_on_changed_batch=take("failOnChangedBatch", parse_flag, True),
            lock_timeout_s=take("lockTimeout", parse_duration_s, LOCK_TIMEOUT_S),
        )


class _Taker:
    """Reads one option after another, each with the parser of its kind."""

    def __init__(self, given: Given) -> None:
        self._given = given

    def __call__(self, name: str, parse: Callable[[str, str], T], default: T) -> T:
        return parse(self._given.named[name], self._given[name]) if name in self._given else default


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    if not given.get("path", "").strip():
        raise ValueError(NO_PATH)
    return parse_paths("path", given["path"])


def _limits(take: _Taker) -> Limits:
    limits = Limits(
        take("maxOffsetsPerTrigger", parse_count, None),
        take("maxBytesPerTrigger", parse_size, None),
        take("maxFilesPerTrigger", parse_count, None),
        take("minOffsetsPerTrigger", parse_count, None),
    )
    least, most = limits.message_count_min, limits.message_count
    if least is not None and most is not None and least > most:
        raise ValueError(f"option 'minOffsetsPerTrigger': {least} is more than option 'maxOffsetsPerTrigger', {most}")
    return limits


def _check_consumer(given: Mapping[str, str]) -> None:
    if "consumer" in given:
        return
    if given.get("startingOffsets", "").strip().lower() == CONSUMER:
        raise ValueError(
            "option 'consumer' is missing: 'startingOffsets' is 'consumer', which is where that one stands"
        )
    if "takeOver" in given:
        raise ValueError("option 'consumer' is missing: a read without one writes nothing, so leave 'takeOver' out")
    if "consumerTakeover" in given:
        raise ValueError("option 'consumer' is missing: 'consumerTakeover' says how to take it")


def _check_together(given: Mapping[str, str], table: str, layout: str) -> None:
    if table != MESSAGES:
        allowed = ["path", "stream", "table", "layout", "account", "encryptionKey", "lockTimeout"]
        allowed += ["truncateBadEof", "noCrc"] if table in (CONSUMERS, DAMAGE) else []
        unfit = [name for name in given if name not in allowed]
        if unfit:
            raise ValueError(f"option {unfit[0]!r} is for reading messages; with table={table} leave it out")
    for name in ("account", "encryptionKey"):
        if layout != NATS and name in given:
            raise ValueError(f"option {name!r} is for layout=nats only")
    for name in ("truncateBadEof", "noCrc"):
        if layout != STAN and name in given:
            raise ValueError(f"option {name!r} is for layout=stan only")
    if layout in FOREIGN and table == EVENTS:
        raise ValueError(f"option 'table': {table!r} is for layout=jstream only")
    if layout in FOREIGN and given.get("verify", "crc").strip().lower() == "none":
        instead = "; 'noCrc' reads on past what fails" if layout == STAN else ""
        raise ValueError(f"option 'verify': layout={layout} checks every message; leave it out{instead}")
    if table == MESSAGES and layout == JSTREAM and not given.get("stream", "").strip():
        raise ValueError("option 'stream' is missing: the name of a stream, a list, or a glob; '*' reads all of them")


def _table(option: str, text: str) -> str:
    return parse_choice(option, text, TABLES)


def _layout(option: str, text: str) -> str:
    return parse_choice(option, text, (JSTREAM, *FOREIGN))


def _verify(option: str, text: str) -> bool:
    return parse_choice(option, text, ("crc", "none")) == "crc"


def _compression(option: str, text: str) -> str:
    return parse_choice(option, text, COMPRESSIONS)


def _text(option: str, text: str) -> str:
    if not text.strip() or len(text) > TEXT_SIZE_MAX or not text.isprintable():
        raise ValueError(f"option {option!r}: {text!r} is not 1 to {TEXT_SIZE_MAX} printable characters")
    return text


def _secret(option: str, text: str) -> str:
    if not text:
        raise ValueError(f"option {option!r} is empty")
    return text


def _one_stream(option: str, text: str) -> str:
    if not text.strip() or any(character in text for character in ",*?["):
        raise ValueError(
            f"option {option!r}: {text!r} is not the name of one stream; to write to several, leave the option out and "
            "name the stream of each row in the column 'stream'"
        )
    return text.strip()


def _consumer_name(option: str, text: str) -> str:
    return check_name(text.strip(), f"option {option!r}")


def _subject_filter(option: str, text: str) -> str:
    if not is_filter(text):
        raise ValueError(f"option {option!r}: {text!r} is not a subject filter such as orders.* or orders.>")
    return text


def _literal_subject(option: str, text: str) -> str:
    if not is_literal(text):
        raise ValueError(
            f"option {option!r}: {text!r} is not a subject that a message can carry: tokens joined by dots, without "
            "blanks and wildcards"
        )
    return text
