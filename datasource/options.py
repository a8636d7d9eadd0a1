"""The options of the data source: one table, from which they are checked and parsed, and their documentation is made.

Spark hands options over as text under lower-case names. What is unknown is refused with the nearest name; what means
something elsewhere only (streaming, writing) is refused by name.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from datasource.offsets import parse_offsets, parse_stream_offsets, parse_times
from datasource.values import (
    parse_choice,
    parse_consumer,
    parse_count,
    parse_duration_s,
    parse_flag,
    parse_last_sequence,
    parse_names,
    parse_one_stream,
    parse_paths,
    parse_secret,
    parse_size,
    parse_subject,
    parse_subject_filter,
    parse_text,
    parse_time_ns,
    parse_verify,
)
from storage_core.live.login import PORT, Login
from storage_core.suggestions import did_you_mean

Parser = Callable[[str, str], Any]  # of the option's name as it was given, and its text


class Use(Enum):
    """What a user does with the data source; the value is how messages call it."""

    READ = "batch reads"
    STREAM_READ = "streaming reads"
    WRITE = "batch writes"
    STREAM_WRITE = "streaming writes"


READ, STREAM_READ, WRITE, STREAM_WRITE = Use.READ, Use.STREAM_READ, Use.WRITE, Use.STREAM_WRITE
READS, WRITES = (READ, STREAM_READ), (WRITE, STREAM_WRITE)
EVERYWHERE = (*READS, *WRITES)
STORAGE_PREFIX = "storage."  # of settings of object stores
# What Spark hides in plans and logs is named so (spark.redaction.regex); of the rest, what is no secret.
_HIDDEN_BY_SPARK = re.compile("secret|password|token|access[.]?key", re.IGNORECASE)
_SECRET = re.compile("key|secret|password|token|sas|signature|service_account$", re.IGNORECASE)
_PASSWORD_IN_ADDRESS = re.compile(r"://[^/\s]*:[^/\s]*@")  # of a proxy, say
_NO_SECRETS = ("aws_access_key_id", "access_key_id", "azure_storage_use_emulator")
CHECKPOINT_LOCATION, QUERY_NAME = "checkpointlocation", "queryname"
SPARKS_OWN = (CHECKPOINT_LOCATION, QUERY_NAME)  # what Spark passes on of a streaming write, and reads itself


class Kind(NamedTuple):
    """What options take: in words, and how it is parsed."""

    words: str
    parse: Parser


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `uses` is where it means something, `default` is for people.

    `setting` is the field of the settings (or limits) for its value, which its kind makes of its name and text;
    `parse_for` has the parsers of uses that take something else.
    """

    name: str
    uses: tuple[Use, ...]
    setting: str
    kind: Kind
    default: str
    meaning: str
    alias: str = ""
    parse_for: Mapping[Use, Parser] = field(default_factory=dict)


PATHS = Kind("paths", parse_paths)
STREAMS = Kind("names", parse_names)
FILTER = Kind("subject", parse_subject_filter)
OFFSETS = Kind("offsets", parse_offsets)
TIME = Kind("time", parse_time_ns)
TIMES = Kind("JSON of times", parse_times)
CONSUMER = Kind("name", parse_consumer)
FLAG = Kind("flag", parse_flag)
COUNT = Kind("count", parse_count)
LAST_SEQUENCE = Kind("sequence", parse_last_sequence)
SIZE = Kind("size", parse_size)
DURATION = Kind("duration", parse_duration_s)
TEXT = Kind("text", parse_text)
NAME = Kind("name", parse_text)
SECRET = Kind("text", parse_secret)
CHECKS = Kind("`crc`, `none`", parse_verify)


def choice_of(*choices: str) -> Kind:
    """Return the kind of an option that takes one of the words."""
    words = ", ".join(f"`{choice}`" for choice in choices)
    return Kind(words, lambda option, text: parse_choice(option, text, choices))


OPTIONS: tuple[Option, ...] = (
    Option(
        "path",
        EVERYWHERE,
        "paths",
        PATHS,
        "required",
        "Volumes of the store, comma-separated, or a JSON list if a path has a comma: any leads to the rest. "
        "Relative paths start at the driver's folder. Set by `load(p)` and `save(p)`. Or running NATS servers: "
        "`nats://host:4222`, `tls://host:4222`.",
    ),
    Option("paths", EVERYWHERE, "", PATHS, "", "The same as a list; set by `load([p, q])`.", alias="path"),
    Option(
        "stream",
        EVERYWHERE,
        "streams",
        STREAMS,
        "reading: required (layout=nats and stan: all); writing: the column `stream`",
        "The stream; for reading also a list, or globs (`ORDERS_*`).",
        parse_for={WRITE: parse_one_stream, STREAM_WRITE: parse_one_stream},
    ),
    Option(
        "subject",
        EVERYWHERE,
        "subject",
        FILTER,
        "reading: every subject; writing: the stream's only literal subject",
        "Reading: a filter with `*` (one token) and `>` (the rest). Writing: of rows without a subject.",
        parse_for={WRITE: parse_subject, STREAM_WRITE: parse_subject},
    ),
    Option(
        "columns",
        READS,
        "columns",
        STREAMS,
        "all of them",
        "Columns to read, in this order. A schema of your own does the same, and can declare `data STRING`.",
    ),
    Option(
        "invalidUtf8",
        READS,
        "invalid_utf8",
        choice_of("fail", "null"),
        "`fail`",
        "Data that is no UTF-8, declared as `data STRING`: fail with its sequence, or give null.",
    ),
    Option(
        "startingOffsets",
        READS,
        "starting",
        OFFSETS,
        "`earliest` (batch), `latest` (streaming)",
        '`earliest`, `latest` (streaming), `consumer`, or JSON with first sequences, inclusive: `{"ORDERS": 1001}`; '
        "other streams start at the default. A checkpoint takes precedence; streams that join a query start at their "
        "first message.",
        parse_for={STREAM_READ: parse_stream_offsets},
    ),
    Option(
        "endingOffsets",
        (READ,),
        "ending",
        OFFSETS,
        "`latest`",
        '`latest`, or JSON with ends, exclusive: `{"ORDERS": 2001}`.',
    ),
    Option(
        "startingTimestamp",
        READS,
        "starting_time_ns",
        TIME,
        "",
        "The first message of that time or later: ISO 8601 (UTC by default) or milliseconds since 1970. Beyond "
        "the end: latest, with a log line. Takes precedence over all other start options.",
    ),
    Option(
        "endingTimestamp",
        (READ,),
        "ending_time_ns",
        TIME,
        "",
        "End before the first message of that time or later.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        READS,
        "starting_times_ns",
        TIMES,
        "",
        'By stream: `{"ORDERS": "2026-11-21T12:00:00Z"}`. Takes precedence over `startingOffsets`.',
    ),
    Option(
        "endingOffsetsByTimestamp",
        (READ,),
        "ending_times_ns",
        TIMES,
        "",
        "Ends by stream, exclusive.",
    ),
    Option(
        "consumer",
        READS,
        "consumer",
        CONSUMER,
        "",
        "[Durable consumer](streaming.md#a-durable-consumer): where to start, if nothing else says so. First use makes "
        "it, there or at the first message. A batch read never moves it.",
    ),
    Option(
        "consumerTakeover",
        (STREAM_READ,),
        "consumer_takeover",
        FLAG,
        "`false`",
        "`true`: take the consumer from another live query, which fails. `false`: be refused.",
    ),
    Option(
        "maxOffsetsPerTrigger",
        (STREAM_READ,),
        "message_count",
        COUNT,
        "no limit",
        "Messages per batch, at most, before the filter `subject`. The smallest of this and the next limits wins; "
        "it is divided among streams in proportion to their backlog, with at least one message each. "
        "`Trigger.AvailableNow` obeys it, `Trigger.Once` does not.",
    ),
    Option("maxMessagesPerTrigger", (STREAM_READ,), "", COUNT, "", "", alias="maxOffsetsPerTrigger"),
    Option(
        "maxBytesPerTrigger",
        (STREAM_READ,),
        "byte_size",
        SIZE,
        "no limit",
        "Bytes of subjects, headers and data per batch, about.",
    ),
    Option(
        "maxFilesPerTrigger",
        (STREAM_READ,),
        "block_count",
        COUNT,
        "no limit",
        "Blocks per batch, at most.",
    ),
    Option(
        "minOffsetsPerTrigger",
        (STREAM_READ,),
        "message_count_min",
        COUNT,
        "1",
        "Wait for so many new messages, or `maxTriggerDelay`; not with `Trigger.AvailableNow`.",
    ),
    Option(
        "maxTriggerDelay",
        (STREAM_READ,),
        "trigger_delay_max_s",
        DURATION,
        "`15m`",
        "How long `minOffsetsPerTrigger` waits, from the last batch or the start.",
    ),
    Option(
        "trigger",
        (STREAM_READ,),
        "trigger",
        choice_of("processingtime", "processallavailable", "availablenow"),
        "",
        "The query's trigger, which [Spark before 4.2](where-it-runs.md#what-a-version-of-spark-lacks) does not say: "
        "needed there beside a limit. With `processAllAvailable` a query reads nothing that comes after its start. "
        "With `availableNow` a run is one batch, without limits.",
    ),
    Option(
        "pollInterval",
        (STREAM_READ,),
        "poll_interval_s",
        DURATION,
        "`1s`",
        "How often an idle query looks into an object store, by a request.",
    ),
    Option(
        "minPartitions",
        READS,
        "min_partitions",
        COUNT,
        "",
        "Split blocks into so many partitions. By default a block is a partition, and small ones share.",
    ),
    Option(
        "maxRecordsPerPartition",
        READS,
        "partition_rows_max",
        COUNT,
        "",
        "Split blocks into partitions of so many messages at most.",
    ),
    Option(
        "failOnDataLoss",
        READS,
        "fail_on_data_loss",
        FLAG,
        "`true`",
        "Lost or damaged messages, and offsets beyond the end: `true` fails with their sequences, `false` reads the "
        "rest and logs it. While a volume is away, a streaming query with `false` waits; other reads fail.",
    ),
    Option(
        "verify",
        READS,
        "verify",
        CHECKS,
        "`crc`",
        "`none` skips checksums of message data.",
    ),
    Option(
        "layout",
        (READ,),
        "layout",
        choice_of("jstream", "nats", "stan"),
        "`jstream`",
        "Read the directory of a NATS JetStream (`nats`) or NATS Streaming (`stan`) server in place, writing nothing.",
    ),
    Option(
        "account",
        (READ,),
        "account",
        NAME,
        "`$G`",
        "NATS account; only with `layout=nats`.",
    ),
    Option(
        "encryptionKey",
        (READ,),
        "encryption_key",
        SECRET,
        "",
        "Key of the NATS server's configuration, and former ones, one per line; never logged. Only with "
        "`layout=nats` and `pip install 'pyspark-jstream[encryption]'`.",
    ),
    Option(
        "truncateBadEof",
        (READ,),
        "truncate_bad_eof",
        FLAG,
        "`false`",
        "Read past an unexpected end of a file, and log the loss; only with `layout=stan`.",
    ),
    Option(
        "noCrc",
        (READ,),
        "no_crc",
        FLAG,
        "`false`",
        "Read past bad checksums, and log each; only with `layout=stan`.",
    ),
    Option(
        "table",
        (READ,),
        "table",
        choice_of("messages", "last", "streams", "consumers", "damage", "events"),
        "`messages`",
        "Instead of messages [other tables](spark.md#reading); `last` and `events` only of our layout.",
    ),
    Option(
        "compression",
        WRITES,
        "compression",
        choice_of("none", "lz4", "zstd"),
        "the stream's",
        "Of the blocks written.",
    ),
    Option(
        "writerId",
        WRITES,
        "writer_id",
        TEXT,
        "streaming: the query's id",
        "With `batchId`, a rerun stores nothing twice, and says so. A streaming query that has one fails when its "
        "checkpoint was removed.",
    ),
    Option("batchId", (WRITE,), "batch_id", TEXT, "", "Batch of `writerId`."),
    Option(
        "exactlyOnce",
        WRITES,
        "exactly_once",
        choice_of("marker", "atomic", "msgid", "none"),
        "the first that server and stream can do",
        "What keeps rows from being stored twice in a [running server](live-nats.md#writing).",
    ),
    Option(
        "markerSubject",
        WRITES,
        "marker_subject",
        Kind("subject", parse_subject),
        "`jstream.marker` below the stream's shortest subject with `>`",
        "Where `exactlyOnce=marker` says how far each writer has come.",
    ),
    Option(
        "expectedLastSequence",
        (WRITE,),
        "expected_last_sequence",
        LAST_SEQUENCE,
        "any",
        "The write fails with `ConditionFailedError`, and stores nothing, unless this is the stream's last sequence; "
        "`0`: it never had a message. Only with `stream`.",
    ),
    Option(
        "takeOver",
        EVERYWHERE,
        "take_over",
        FLAG,
        "`false`",
        "`true`: this host writes the store from now on, and the former one is refused. Reads write only with a "
        "`consumer`. [When it is safe](operations.md#which-host-writes).",
    ),
    Option(
        "failOnChangedBatch",
        WRITES,
        "fail_on_changed_batch",
        FLAG,
        "`true`",
        "A stored batch comes again with other messages: `true` fails. `false`: the first one counts, with an "
        "event; in streaming for the last batch only.",
    ),
    Option(
        "storage.KEY",
        EVERYWHERE,
        "storage",
        Kind("text", parse_text),
        "the environment of driver and executors",
        "Settings of the [object store](object-stores.md), such as `storage.aws_region`. Never stored or logged; "
        "leave secrets to the environment or a role.",
    ),
    Option(
        "lockTimeout",
        EVERYWHERE,
        "lock_timeout_s",
        DURATION,
        "`60s`",
        "How long to wait for another process that holds the store, or, in buckets, for a consumer's former query: at "
        "least 30 s.",
    ),
)

LOGIN = "login"  # the setting of all options that say how to log in to NATS servers; each is a field of it
_LIVE = "[live NATS](live-nats.md)"
OPTIONS += tuple(
    Option(name, EVERYWHERE, LOGIN, kind, default, meaning)
    for name, kind, default, meaning in (
        ("natsContext", NAME, "`NATS_CONTEXT`", f"Name or file of a context of the `nats` command, for {_LIVE}."),
        ("natsCreds", TEXT, "`NATS_CREDS`", "File of credentials (JWT and seed), at the same path on every executor."),
        ("natsNkey", TEXT, "`NATS_NKEY`", "File with the seed of an nkey, at the same path on every executor."),
        ("natsUser", SECRET, "`NATS_USER`", "User."),
        ("natsPassword", SECRET, "`NATS_PASSWORD`", "Password of the user; the environment is the better place."),
        ("natsToken", SECRET, "`NATS_TOKEN`", "Token, in place of a user; the environment is the better place."),
        ("natsCert", TEXT, "`NATS_CERT`", "File of the client's certificate."),
        ("natsKey", TEXT, "`NATS_KEY`", "File of the certificate's key."),
        ("natsCa", TEXT, "`NATS_CA`", "File of the authorities that the server's certificate is checked against."),
        ("natsTlsFirst", FLAG, "`false`", "TLS before the server says anything."),
        ("natsInboxPrefix", TEXT, "`_INBOX`", "Beginning of the subjects that answers come on."),
        ("natsDomain", TEXT, "", "JetStream domain."),
        ("natsApiPrefix", TEXT, "`$JS.API`", "Beginning of the subjects of JetStream's API, in place of a domain."),
    )
)
OPTIONS += (
    Option("nats.host", EVERYWHERE, "", TEXT, "", "With `nats.port`: the server.", alias="path"),
    Option("nats.stream.name", EVERYWHERE, "", TEXT, "", "", alias="stream"),
    Option("nats.credential.file", EVERYWHERE, "", TEXT, "", "", alias="natsCreds"),
)
_HOST, _PORT = "nats.host", "nats.port"

_BY_NAME = {option.name.lower(): option for option in OPTIONS}
NAMES = {option.name for option in OPTIONS}


class CheckedOptions(dict[str, str]):
    """Options by their names of the table, aliases resolved. `named`: under which name each was given."""

    def __init__(self) -> None:
        super().__init__()
        self.named: dict[str, str] = {}
        self.storage: dict[str, str] = {}  # settings of the object store


def check_options(options: Mapping[str, str], use: Use) -> CheckedOptions:
    """Return the options that are given.

    Raises ValueError for a name that is unknown or means nothing for `use`, and for an option that is given twice, by
    its name and by its alias.
    """
    checked = CheckedOptions()
    ports = [text for key, text in options.items() if key.lower() == _PORT]
    for key, text in options.items():
        if key.lower() == _PORT and any(other.lower() == _HOST for other in options):
            continue
        if use is STREAM_WRITE and key.lower() in SPARKS_OWN:
            continue
        if key.lower().startswith(STORAGE_PREFIX):
            checked.storage[_storage_key(key, text)] = text
            continue
        option = _BY_NAME.get(key.lower())
        if option is None:
            raise ValueError(f"unknown option {key!r} of jstream{did_you_mean(key, NAMES) or _known(use)}")
        _check_use(option, use)
        name = option.alias or option.name
        if name in checked:
            raise ValueError(f"options {checked.named[name]!r} and {option.name!r} mean the same: give one of them")
        if option.name == _HOST:
            text = f"nats://{text.strip()}:{ports[0].strip() if ports else PORT}"
        checked[name], checked.named[name] = text, option.name
    return checked


def parse_options(checked: CheckedOptions, use: Use, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the values of the options (those of `names`) by the fields of settings.

    Raises ValueError naming the option at fault.
    """
    values: dict[str, Any] = {}
    login = {}
    for name in checked if names is None else checked.keys() & set(names):
        option = _BY_NAME[name.lower()]
        value = option.parse_for.get(use, option.kind.parse)(checked.named[name], checked[name])
        if option.setting == LOGIN:
            login[_login_field(name)] = value
        else:
            values[option.setting] = value
    if names is None:
        values["storage"], values[LOGIN] = checked.storage, Login(**login)
    return values


def is_of_servers(name: str) -> bool:
    """Return whether an option is for running NATS servers alone."""
    return _BY_NAME[name.lower()].setting in (LOGIN, "exactly_once", "marker_subject")


def _login_field(name: str) -> str:
    """Return `tls_first` for `natsTlsFirst`."""
    return re.sub("([A-Z])", r"_\1", name.removeprefix("nats")).lower().strip("_")


def _storage_key(option: str, text: str) -> str:
    """Return which setting of an object store an option is. Raises ValueError for a secret that Spark would show."""
    key = option.lower().removeprefix(STORAGE_PREFIX)
    if not key or key == "key":
        raise ValueError(f"option {option!r} names no setting; write storage.aws_region, for instance")
    is_secret = (_SECRET.search(key) and key not in _NO_SECRETS) or _PASSWORD_IN_ADDRESS.search(text)
    if is_secret and not _HIDDEN_BY_SPARK.search(key):
        variable = "HTTPS_PROXY" if key == "proxy_url" else key.upper()
        raise ValueError(
            f"option {option!r}: Spark would show it in its plans and logs; set {variable} in the environment of "
            "driver and executors, or use an instance's role"
        )
    return key


def is_of_streaming_only(options: Mapping[str, str]) -> bool:
    """Return whether one of the options means something in streaming reads, and nothing in batch reads."""
    known = [_BY_NAME.get(key.lower()) for key in options]
    return any(option is not None and STREAM_READ in option.uses and READ not in option.uses for option in known)


def _check_use(option: Option, use: Use) -> None:
    if use in option.uses:
        return
    where = " and ".join(allowed.value for allowed in option.uses)
    raise ValueError(f"option {option.name!r} is for {where} only; this is one of the {use.value}")


def _known(use: Use) -> str:
    names = [option.name for option in OPTIONS if use in option.uses]
    if use is not READ:
        return f"; {use.value} take {', '.join(names)}"
    # Spark asks for the columns of a streaming read as for those of one in batches.
    others = [option.name for option in OPTIONS if STREAM_READ in option.uses and option.name not in names]
    return f"; {use.value} take {', '.join(names)}; {STREAM_READ.value} also {', '.join(others)}"
