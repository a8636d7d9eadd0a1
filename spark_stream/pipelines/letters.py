"""Dead letters: messages that a pipeline could not parse, as they came, with headers that say why and from where.

A letter has the message's own headers, and behind them Jstream-Reason, -Stream, -Sequence, -Subject, -Timestamp and
-Pipeline; of Kafka also -Partition and -Key, the latter unless the key is null. The last Jstream-Reason is where the
added ones begin: a message may itself be a letter of another pipeline.
"""

import json
import operator
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from datasource.settings import LOCK_TIMEOUT_S
from datasource.store_opening import open_store
from spark_stream.pipelines.config import DeadLetters, Pipeline, Source
from spark_stream.pipelines.errors import DefinitionError
from spark_stream.pipelines.payload import DATA, REASON, VALUE_IN_REASON
from storage_core.quantities import rfc3339
from storage_core.sequences import SEQUENCE_MAX

RFC_3339 = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
HEADER_PREFIX = "Jstream-"
REASON_HEADER = f"{HEADER_PREFIX}Reason"
LETTER, KIND = "__letter", "__kind"  # columns of messages made of letters: the letter's sequence, its kind of reason


def kept_letters(pipeline: Pipeline) -> DeadLetters:
    """Return where the pipeline keeps its dead letters. Raises DefinitionError if it keeps none."""
    if pipeline.dead_letters is None:
        reason = "is missing: without it a pipeline stops at a bad message, and keeps no dead letters"
        raise DefinitionError(pipeline.file, "dead_letters", reason)
    return pipeline.dead_letters


def as_letters(bad: DataFrame, name: str) -> DataFrame:
    """Return messages that could not be parsed as dead letters of the pipeline `name`: `headers` and `data`."""
    values: list[tuple[str, Column]] = [
        ("Reason", F.col(REASON)),
        ("Stream", F.col("stream")),
        ("Sequence", F.col("sequence").cast("string")),
        ("Subject", F.col("subject")),
        ("Timestamp", F.date_format(F.to_utc_timestamp("timestamp", F.current_timezone()), RFC_3339)),
        ("Pipeline", F.lit(name)),
    ]
    if "partition" in bad.columns:  # of Kafka
        values += [("Partition", F.col("partition").cast("string")), ("Key", F.col("key"))]
    added = [
        F.struct(F.lit(f"{HEADER_PREFIX}{key}").alias("key"), value.cast("binary").alias("value"))
        for key, value in values
    ]
    present = F.filter(F.array(*added), lambda header: header.value.isNotNull())
    own = F.coalesce(F.col("headers"), F.array().cast(bad.schema["headers"].dataType))
    ordered = bad.orderBy("stream", "sequence")
    return ordered.select(F.concat(own, present).alias("headers"), F.col(DATA).alias("data"))


def read_letters(spark: SparkSession, pipeline: Pipeline, first: int, end: int) -> DataFrame:
    """Return the messages of the dead-letter stream with sequences [first, end) as a batch."""
    letters = kept_letters(pipeline)
    options = {
        "stream": json.dumps([letters.stream]),
        "startingOffsets": json.dumps({letters.stream: first}),
        "endingOffsets": json.dumps({letters.stream: end}),
        "failOnDataLoss": str(pipeline.source.fails_on_data_loss).lower(),
    }
    return spark.read.format("jstream").options(**options).load(json.dumps(letters.volumes))


def as_messages(letters: DataFrame, name: str, source: Source) -> DataFrame:
    """Return the messages that the letters of the pipeline `name` were, as its source has them, with LETTER and KIND.

    Columns of the message are null where whoever wrote the letter left a header out.
    """
    keys = F.transform("headers", lambda header: header.key)
    own_count = F.size("headers") - F.array_position(F.reverse(keys), REASON_HEADER)
    split = letters.where(F.array_contains(keys, REASON_HEADER)).select(
        F.col("sequence").alias(LETTER),
        F.slice("headers", 1, own_count).alias("own"),
        F.slice("headers", own_count + 1, F.size("headers")).alias("added"),
        "data",
    )

    def bytes_of(key: str) -> Column:
        name = f"{HEADER_PREFIX}{key}"
        return F.try_element_at(F.filter("added", lambda header: header.key == name), F.lit(-1)).getField("value")

    def text_of(key: str) -> Column:
        return bytes_of(key).cast("string")

    sequence = text_of("Sequence").try_cast("bigint")
    columns = [
        text_of("Stream").alias("stream"),
        sequence.alias("sequence"),
        text_of("Subject").alias("subject"),
        text_of("Timestamp").try_cast("timestamp").alias("timestamp"),
        F.when(F.size("own") > 0, F.col("own")).alias("headers"),
    ]
    if source.is_kafka:
        partition = text_of("Partition").try_cast("int")
        columns += [
            bytes_of("Key").alias("key"),
            partition.alias("partition"),
            F.concat_ws("/", text_of("Stream"), partition.cast("string"), sequence.cast("string")).alias("msg_id"),
        ]
    kind = F.regexp_replace(text_of("Reason"), VALUE_IN_REASON, "$1: $2")
    return split.where(text_of("Pipeline") == name).select(LETTER, kind.alias(KIND), *columns, "data")


def is_whole() -> Column:
    """Return whether a message that was made of a letter has all that a message has."""
    return reduce(operator.and_, [F.col(name).isNotNull() for name in ("stream", "sequence", "subject", "timestamp")])


@dataclass(slots=True)
class LetterKind:
    """The dead letters of one kind of reason."""

    kind: str
    letters: int
    first: str  # when the oldest was stored, RFC 3339
    last: str
    letter: int  # the sequence of the newest letter, and the message that it was
    reason: str
    stream: str
    sequence: int  # 0: the letter does not say


def kinds_of(pipeline: Pipeline, count_max: int | None = None) -> tuple[list[LetterKind], int]:
    """Return the pipeline's newest `count_max` dead letters by kind, largest first, and how many were looked at.

    Raises StorageError.
    """
    target = kept_letters(pipeline)
    with open_store(target.volumes, LOCK_TIMEOUT_S, read_only=True) as store:
        stream = store.stream(target.stream)
        end = stream.last_sequence + 1
        first = stream.first_sequence if count_max is None else max(stream.first_sequence, end - count_max)
        batches = stream.read(first, end, columns=["sequence", "timestamp_ns", "headers"], on_data_loss="continue")
        table = pa.Table.from_batches([_described(batch, pipeline.name) for batch in batches], _DESCRIBED)
    return _grouped(table), len(table)


def to_json(kinds: Iterable[LetterKind]) -> list[dict[str, Any]]:
    return [asdict(kind) for kind in kinds]


_DESCRIBED = pa.schema(
    {"letter": pa.int64(), "time_ns": pa.int64(), "kind": pa.binary(), "reason": pa.binary(), "stream": pa.binary(),
     "sequence": pa.binary()}
)  # fmt: skip


def _described(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """Return the letters of the pipeline `name` among messages, with what their headers say."""
    headers = batch.column("headers")
    reason = _last_values(headers, "Reason")
    columns = [
        batch.column("sequence"),
        batch.column("timestamp_ns"),
        pc.replace_substring_regex(reason, VALUE_IN_REASON, rb"\1: \2"),
        reason,
        _last_values(headers, "Stream"),
        _last_values(headers, "Sequence"),
    ]
    is_own = pc.and_(pc.equal(_last_values(headers, "Pipeline"), name.encode()), pc.is_valid(reason))
    return pa.RecordBatch.from_arrays(columns, schema=_DESCRIBED).filter(is_own)


def _last_values(headers: pa.ListArray, key: str) -> pa.BinaryArray:
    """Return for each message the value of its last header of that name."""
    pairs, rows = headers.flatten(), pc.list_parent_indices(headers).to_numpy()
    chosen = np.flatnonzero(pc.equal(pairs.field("key"), f"{HEADER_PREFIX}{key}").to_numpy(zero_copy_only=False))
    at = np.full(len(headers), -1)
    at[rows[chosen]] = chosen
    return pairs.field("value").take(pa.array(at, mask=at < 0)).cast(pa.binary())


def _grouped(table: pa.Table) -> list[LetterKind]:
    counts = [("letter", "count"), ("time_ns", "min"), ("time_ns", "max"), ("letter", "max")]
    groups = table.group_by("kind").aggregate(counts)
    at = pc.index_in(groups["letter_max"], table["letter"])
    examples = table.select(["reason", "stream", "sequence"]).take(at).to_pylist()
    kinds = [
        LetterKind(
            _text(group["kind"]),
            group["letter_count"],
            rfc3339(group["time_ns_min"]),
            rfc3339(group["time_ns_max"]),
            group["letter_max"],
            _text(example["reason"]),
            _text(example["stream"]),
            _sequence(example["sequence"] or b""),
        )
        for group, example in zip(groups.to_pylist(), examples, strict=True)
    ]
    return sorted(kinds, key=lambda kind: (-kind.letters, kind.kind))


def _sequence(value: bytes) -> int:
    return int(value) if value.isdigit() and len(value) <= len(str(SEQUENCE_MAX)) else 0


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
