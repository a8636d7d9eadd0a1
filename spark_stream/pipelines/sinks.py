"""Where a batch of rows goes. Each sink stores a batch once, however often it is handed over under one identity.

Delta keeps the identity in its own log (tables.py); jstream keeps it in the commit of the append (writerId, batchId).
The console forgets.
"""

import json
from fnmatch import translate
from functools import cache

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from datasource.settings import LOCK_TIMEOUT_S
from datasource.store_opening import open_store
from spark_stream.look.terminal import print_table
from spark_stream.pipelines.config import CONSOLE, DELTA, JSTREAM, UPSERT, Pipeline, Sink
from spark_stream.pipelines.errors import RunFailedError
from spark_stream.pipelines.identity import Identity
from spark_stream.pipelines.letters import as_letters
from spark_stream.pipelines.payload import DATA
from spark_stream.pipelines.tables import append_to_delta, upsert
from storage_core.store.writing.appends import WriterBatch

COLLECTED_COUNT_MAX = 10_000  # dead letters of a batch that come to the driver; what is more is written by tasks
COLLECTED_SIZE_MAX = 64 * 1024 * 1024  # bytes of their payloads


def write_rows(rows: DataFrame, pipeline: Pipeline, identity: Identity, is_made_on_stream: bool = False) -> None:
    """Store a batch of transformed rows in the pipeline's sink.

    `is_made_on_stream`: Spark hands over results of aggregates in another order if the batch comes again.
    """
    sink = pipeline.sink
    if sink.kind == CONSOLE:
        _print(rows, sink, identity)
    elif sink.kind == JSTREAM:
        rows = rows if sink.stream else _not_into_the_source(rows, pipeline)
        rows = rows.orderBy(*rows.columns) if is_made_on_stream else rows
        append_to_stream(
            rows, sink.volumes, sink.stream, sink.subject, identity, _changed_batches(pipeline) | sink.options
        )
    elif sink.kind == DELTA and sink.mode == UPSERT:
        upsert(rows, sink, identity)
    else:
        assert sink.kind == DELTA, sink
        append_to_delta(rows, sink, identity)


def _changed_batches(pipeline: Pipeline) -> dict[str, str]:
    """Return the option for batches that come again with other rows: who goes on without what is lost has such."""
    return {"failOnChangedBatch": str(pipeline.source.fails_on_data_loss).lower()}


@cache
def is_one_store(volumes: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Return whether both name the volumes of one store, which may have several paths."""
    if set(volumes) & set(others):
        return True
    ids = set()
    for paths in (volumes, others):
        with open_store(list(paths), LOCK_TIMEOUT_S, read_only=True) as store:
            ids.add(store.id)
    return len(ids) == 1


def _not_into_the_source(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Return rows that name their stream; whoever evaluates one that would come back to the pipeline fails."""
    if not pipeline.source.is_store or not is_one_store(tuple(pipeline.sink.volumes), tuple(pipeline.source.volumes)):
        return rows
    stream, is_read = F.col("stream"), F.lit(False)
    for name in pipeline.source.streams:
        is_read = is_read | stream.rlike(f"^{translate(name)}")
    reason = F.concat(F.lit("the column stream of a row names "), stream, F.lit(", the source: it would never end"))
    return rows.withColumn("stream", F.when(is_read, F.raise_error(reason)).otherwise(stream))


def append_to_stream(
    rows: DataFrame, volumes: list[str], stream: str, subject: str, identity: Identity, options: dict[str, str]
) -> None:
    """Append to a stream, or to the one that the column `stream` names."""
    writer = rows.write.format("jstream").mode("append").options(**options)
    writer = writer.option("writerId", identity.app).option("batchId", str(identity.number))
    if stream:
        writer = writer.option("stream", stream)
    if subject:
        writer = writer.option("subject", subject)
    writer.save(json.dumps(volumes))


def write_dead_letters(bad: DataFrame, pipeline: Pipeline, identity: Identity) -> None:
    """Append messages that could not be parsed to their own stream: as they came, with headers that say why.

    Few of them, as there mostly are, are appended from here: a job of Spark's would start several processes for them.
    The identity is the same either way.
    """
    letters = pipeline.dead_letters
    assert letters is not None, pipeline.name
    identity = identity.of_dead_letters()
    measured = bad.agg(F.count(F.lit(1)), F.sum(F.length(DATA))).first()
    assert measured is not None
    count, size = measured[0], measured[1] or 0
    if not count:
        return
    made = as_letters(bad, pipeline.name)
    if count > COLLECTED_COUNT_MAX or size > COLLECTED_SIZE_MAX:
        append_to_stream(made, letters.volumes, letters.stream, letters.subject, identity, _changed_batches(pipeline))
        return
    if letters.subject:
        made = made.withColumn("subject", F.lit(letters.subject))
    with open_store(letters.volumes, LOCK_TIMEOUT_S) as store:
        any_content = not pipeline.source.fails_on_data_loss
        writer = WriterBatch(identity.app, str(identity.number), any_content=any_content)
        store.stream(letters.stream).append(made.toArrow(), writer)


def check_same_letters(pipeline: Pipeline, identity: Identity, count: int) -> None:
    """Raise RunFailedError if a batch that comes again has put another number of messages among the dead letters.

    The pipeline parses otherwise since: what is a letter now may be a row then, and the other way round.
    """
    letters, identity = pipeline.dead_letters, identity.of_dead_letters()
    if letters is None or not pipeline.source.fails_on_data_loss:
        return
    with open_store(letters.volumes, LOCK_TIMEOUT_S, read_only=True) as store:
        writer = store.stream_state(letters.stream).writers.get(identity.app)
    batch = writer.find(str(identity.number)) if writer is not None else None
    stored = batch.end - batch.first if batch is not None else count
    if stored != count:
        raise RunFailedError(
            f"batch {identity.number} is not finished, and has stored {stored:,} dead letters, where it has {count:,} "
            "now: [payload] has changed since. Change it back, and run once more; then change it, and `jstream etl "
            "replay` takes the letters"
        )


def _print(rows: DataFrame, sink: Sink, identity: Identity) -> None:
    shown = rows.limit(sink.rows).collect()
    print_table(rows.columns, [list(row) for row in shown], f"batch {identity.number}")
