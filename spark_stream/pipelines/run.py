"""Running a pipeline: one streaming query, and a second one for dead letters where the first leaves them no room.

    append to Delta, nothing for dead letters    Delta's own streaming sink, unless the table is yet to get a column
    Parquet                                      Spark's file sink
    everything else                              foreachBatch: each batch is stored under (pipeline, query, batch)

Rows that depend on several messages (aggregates.py) are made on the stream, where Spark keeps their state; all others
where the batch is stored, beside its dead letters. Parquet and rows made on the stream have a second query for these.

Whatever kills a run between two steps, the next one begins with the batch that was not finished: the same rows under
the same identity, and what is stored already is not stored again.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from datasource.schema import check_write_schema
from datasource.spark_versions import SAYS_LIMITS
from spark_stream.pipelines import kafka
from spark_stream.pipelines.aggregates import (
    CHANCE,
    check_state,
    check_watermark,
    definition_of_state,
    dependence,
    with_watermark,
)
from spark_stream.pipelines.beginnings import Beginnings
from spark_stream.pipelines.config import (
    APPEND,
    COMPLETE,
    CONTINUOUS,
    DELTA,
    JSTREAM,
    PARQUET,
    Pipeline,
    Source,
    interval_s,
)
from spark_stream.pipelines.errors import CheckpointLostError, DefinitionError, RunFailedError
from spark_stream.pipelines.failures import SPARK_ERRORS, code_of, explain, in_words
from spark_stream.pipelines.identity import Identity
from spark_stream.pipelines.payload import REASON, Fields, bad, good, parse, payload_fields, refuse_bad
from spark_stream.pipelines.sinks import check_same_letters, write_dead_letters, write_rows
from spark_stream.pipelines.source import ends_of, read_stream, streams_of
from spark_stream.pipelines.state import PipelineState, first_offsets, read_checkpoint, sequences_of
from spark_stream.pipelines.summary import Summary
from spark_stream.pipelines.tables import has_delta, make_table, misfit
from spark_stream.pipelines.transform import Function, load_transform, transform
from storage_core.errors import VolumeFailedError
from storage_core.metadata.state import StreamState
from storage_core.paths import place
from storage_core.store.consumers.leases import EXPIRES_S, RENEW_S

POLL_S = 0.25  # how often progress and wishes to stop are looked at
GRACE_S = 120.0  # how long a batch may take to its end once a stop was asked for
OBSERVED, MADE = "jstream_parsed", "jstream_made"


@dataclass(slots=True)
class Stop:
    """A wish that the run ends after the batch that it is in. Set by a signal's handler or another thread."""

    reason: str = ""
    asked: threading.Event = field(default_factory=threading.Event)

    def ask(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.asked.set()


@dataclass(frozen=True, slots=True)
class Progress:
    """One finished batch, for whoever watches.

    `lag`: for each stream, messages between here and its end; of those that came since the run began, sequences.
    """

    batch: int
    rows_in: int
    rows_dead: int
    rows_per_s: float
    lag: dict[str, int]


Watcher = Callable[[Progress], None]
Reporter = Callable[[str], None]  # of what the run does now, in a few words


@dataclass(slots=True)
class Prepared:
    """A pipeline that was found good in a session."""

    pipeline: Pipeline
    spark: SparkSession
    fields: Fields
    function: Function
    schema: StructType  # of the rows that come out
    depends: str  # what makes rows depend on several messages, or on chance; empty if nothing does

    @property
    def is_row_by_row(self) -> bool:
        return self.depends in ("", CHANCE)

    @property
    def state_definition(self) -> dict[str, Any]:
        """What the state in the checkpoint is made by; empty if there is no state."""
        return {} if self.is_row_by_row else definition_of_state(self.pipeline, self.function)

    def parsed(self, messages: DataFrame) -> DataFrame:
        return parse(messages, self.pipeline.payload, self.fields)

    def rows(self, parsed: DataFrame) -> DataFrame:
        messages = with_watermark(good(parsed, self.fields), self.pipeline)
        return transform(self.pipeline, self.function, messages)


def prepare(pipeline: Pipeline, spark: SparkSession) -> Prepared:
    """Check what takes a session to check: schema, transformation, sink. Raises DefinitionError; reads no message."""
    sink = pipeline.sink
    if sink.kind == DELTA and not has_delta(spark):
        raise DefinitionError(
            pipeline.file,
            "sink.kind",
            "'delta' needs Delta's JARs in the session, and this session was made without them: give it those that "
            "`jstream etl fetch-jars DIR` fetches, as spark.jars",
        )
    if pipeline.source.is_kafka:
        try:
            kafka.read_topics(spark, pipeline.source)
        except kafka.ConnectorMissingError as error:
            raise DefinitionError(pipeline.file, "source.store", str(error)) from error
    made = Prepared(pipeline, spark, payload_fields(pipeline), load_transform(pipeline), StructType(), "")
    try:
        parsed = made.parsed(_no_stream(spark, pipeline.source))
    except PySparkException as error:  # a type of the schema that the format has not
        raise DefinitionError(pipeline.file, "payload.schema", f"cannot be parsed: {explain(error)}") from error
    # Over no messages: whatever is wrong with the transformation is reported before the query starts.
    check_watermark(pipeline, good(parsed, made.fields).schema)
    rows = made.rows(parsed)
    made.schema, made.depends = rows.schema, dependence(rows)
    check_state(pipeline, rows, made.depends)
    _check_rows(made)
    return made


def _check_rows(prepared: Prepared) -> None:
    """Raise DefinitionError if the sink does not take the rows that come out of the transformation."""
    file, sink, schema = prepared.pipeline.file, prepared.pipeline.sink, prepared.schema
    if sink.kind == JSTREAM:
        if not sink.stream and "stream" not in schema.names:
            raise DefinitionError(file, "sink.stream", "is missing, and rows have no column stream that names it")
        try:
            check_write_schema(schema, routed=not sink.stream)
        except ValueError as error:
            raise DefinitionError(file, "transform", f"rows for a stream: {error}") from error
    elif sink.kind == DELTA and (problem := misfit(prepared.spark, sink, schema)):
        raise DefinitionError(file, "sink", f"{sink.path or sink.table}: {problem}")


_MESSAGE_SCHEMA = (
    "stream STRING, sequence BIGINT, subject STRING, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, data BINARY"
)


def no_messages(spark: SparkSession, source: Source) -> DataFrame:
    """Return a DataFrame like that of the source, with no rows."""
    return spark.createDataFrame([], f"{_MESSAGE_SCHEMA}, {kafka.SCHEMA}" if source.is_kafka else _MESSAGE_SCHEMA)


def _no_stream(spark: SparkSession, source: Source) -> DataFrame:
    """Return a streaming DataFrame like that of the source, to be analysed and not to be run."""
    schema = no_messages(spark, source).schema
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema]
    return spark.readStream.format("rate").load().select(*columns)


class Run:
    """One run of a prepared pipeline, to its end. The caller holds the checkpoint's lock."""

    def __init__(self, prepared: Prepared, state: PipelineState, summary: Summary) -> None:
        self._prepared, self._state, self._mode = prepared, state, summary.mode
        self.summary = summary
        self._counts: dict[int, tuple[int, int, int]] = {}  # of batches that foreachBatch has handled
        self._failure: Exception | None = None  # what foreachBatch raised, before Spark wrapped it
        self._seen = -1
        self._beginnings = Beginnings(state, prepared.pipeline)
        self._report: Reporter = lambda text: None
        self._streams: dict[str, StreamState] = {}  # of the source, when the run began
        offsets = state.offsets()
        self._open_batch = offsets.batch_planned if offsets is not None else -1  # the newest, if it is not finished

    def execute(self, stop: Stop, watch: Watcher = lambda progress: None, report: Reporter = lambda text: None) -> None:
        """Run until everything is read (available-now), or until `stop`. Raises RunFailedError, CheckpointLostError."""
        from datasource.acknowledging import acknowledge

        acknowledge(self._prepared.spark)
        self._report = report
        self._streams = streams_of(self._prepared.pipeline.source)
        self._beginnings.check_state(self._prepared.state_definition)
        report("starting the query")
        try:
            main = self._start_main()
            self.summary.query = str(main.id)
            self._beginnings.note_query(str(main.id))
            letters = self._start_letters_beside(main, stop)
            self._attend([main] if letters is None else [main, letters], stop, watch)
            if self._needs_letter_query() and letters is None and not stop.asked.is_set():
                letters = self._start_letters()
                if letters is not None:
                    self._attend([letters], stop)
        except SPARK_ERRORS as error:
            failure = self._failure or error
            if isinstance(failure, CheckpointLostError):
                raise failure from None
            option, key = "with option failOnDataLoss=false", 'with on_data_loss = "continue" below [source]'
            raise RunFailedError(in_words(failure).replace(option, key), code_of(failure)) from error
        finished = not stop.asked.is_set() or self._mode == CONTINUOUS
        self.summary.finish(finished, stopped=stop.reason)

    # --- the queries

    def _start_main(self) -> StreamingQuery:
        pipeline = self._prepared.pipeline
        messages = read_stream(self._prepared.spark, pipeline.source, self._mode != CONTINUOUS)
        if self._goes_through_batches() and self._prepared.is_row_by_row:
            return self._start(
                messages.writeStream.foreachBatch(self._handle_batch), pipeline.checkpoint, pipeline.name
            )
        rows = self._stream_rows(messages)
        sink = pipeline.sink
        if self._goes_through_batches():
            writer = rows.writeStream.outputMode(sink.output_mode).foreachBatch(self._handle_rows)
            return self._start(writer, pipeline.checkpoint, pipeline.name)
        writer = rows.writeStream.format(sink.kind).outputMode("append").options(**sink.options)
        if sink.partitions:
            writer = writer.partitionBy(*sink.partitions)
        if sink.table:
            make_table(self._prepared.spark.createDataFrame([], rows.schema), sink)
        return self._start(writer, pipeline.checkpoint, pipeline.name, sink.path, sink.table)

    def _goes_through_batches(self) -> bool:
        sink = self._prepared.pipeline.sink
        if sink.kind == DELTA and sink.mode == APPEND:
            letters_beside = self._prepared.pipeline.dead_letters is None or not self._prepared.is_row_by_row
            # Delta's sink casts what does not fit its table in a plan of its own, which counts nothing.
            return not letters_beside or sink.evolves
        return sink.kind != PARQUET

    def _needs_letter_query(self) -> bool:
        has_no_room = not self._goes_through_batches() or not self._prepared.is_row_by_row
        return self._prepared.pipeline.dead_letters is not None and has_no_room

    def _stream_rows(self, messages: DataFrame) -> DataFrame:
        """Return the rows that are made on the stream, counted on their way."""
        parsed = self._prepared.parsed(messages)
        parsed = parsed.observe(OBSERVED, F.count(F.lit(1)).alias("rows"), F.count(REASON).alias("dead"))
        if self._prepared.pipeline.dead_letters is None:
            parsed = refuse_bad(parsed)
        return self._prepared.rows(parsed).observe(MADE, F.count(F.lit(1)).alias("rows"))

    def _start_letters_beside(self, main: StreamingQuery, stop: Stop) -> StreamingQuery | None:
        """Start the query for dead letters of a run that goes on, as soon as it is known where the pipeline began."""
        if not self._needs_letter_query() or self._mode != CONTINUOUS:
            return None
        while main.isActive and not self._beginnings.known() and not stop.asked.is_set():
            time.sleep(POLL_S)
            self._beginnings.look()
        return self._start_letters() if main.isActive else None

    def _start_letters(self) -> StreamingQuery | None:
        """Start the query that reads the same messages and keeps the bad ones; None if nothing was ever read."""
        self._beginnings.look()
        starts = self._beginnings.sequences()
        if not starts:
            return None
        pipeline = self._prepared.pipeline
        messages = read_stream(self._prepared.spark, pipeline.source, self._mode != CONTINUOUS, starts)
        writer = messages.writeStream.foreachBatch(self._handle_letters)
        return self._start(writer, self._state.dead_letter_checkpoint, f"{pipeline.name} dead letters")

    def _start(
        self, writer: DataStreamWriter, checkpoint: str, name: str, path: str = "", table: str = ""
    ) -> StreamingQuery:
        writer = writer.option("checkpointLocation", checkpoint).queryName(name)
        pipeline = self._prepared.pipeline
        # Before Spark 4.2, Trigger.AvailableNow is one batch for a Python source, and none for final windows.
        needs_end = self._mode != CONTINUOUS and not SAYS_LIMITS and not pipeline.source.is_kafka
        if self._mode == CONTINUOUS:
            writer = writer.trigger(processingTime=f"{int(interval_s(pipeline) * 1000)} milliseconds")
        else:
            writer = writer.trigger(processingTime="0 seconds") if needs_end else writer.trigger(availableNow=True)
        query = writer.toTable(table) if table else writer.start(path) if path else writer.start()
        if needs_end:
            threading.Thread(target=_end_at_target, args=(query,), daemon=True).start()
        return query

    # --- batches, called by Spark one after another

    def _handle_batch(self, batch: DataFrame, number: int) -> None:
        try:
            identity = self._identity(self._prepared.pipeline.checkpoint, number)
            with_letters = self._prepared.pipeline.dead_letters is not None
            parsed = self._prepared.parsed(batch)

            def step(text: str) -> None:
                self._state.check()
                self._report(f"batch {number}: {text}")

            comes_again = number == self._open_batch
            self._counts[number] = store_batch(self._prepared, parsed, identity, with_letters, step, comes_again)
        except Exception as error:
            self._failure = error
            raise

    def _handle_rows(self, rows: DataFrame, number: int) -> None:
        """Store rows that were made on the stream. All of them are evaluated, so that Spark keeps their state."""
        try:
            rows = rows.persist()
            try:
                self._state.check()
                self._report(f"batch {number}: reading and aggregating")
                row_count = rows.count()
                if row_count or self._prepared.pipeline.sink.output_mode == COMPLETE:
                    self._state.check()
                    self._report(f"batch {number}: writing {row_count:,} rows to {self._prepared.pipeline.sink.kind}")
                    identity = self._identity(self._prepared.pipeline.checkpoint, number)
                    write_rows(rows, self._prepared.pipeline, identity, is_made_on_stream=True)
            finally:
                rows.unpersist()
        except Exception as error:
            self._failure = error
            raise

    def _handle_letters(self, batch: DataFrame, number: int) -> None:
        try:
            letters = bad(self._prepared.parsed(batch)).persist()
            try:
                identity = self._identity(self._state.dead_letter_checkpoint, number)
                self._state.check()
                write_dead_letters(letters, self._prepared.pipeline, identity)
            finally:
                letters.unpersist()
        except Exception as error:
            self._failure = error
            raise

    def _identity(self, checkpoint: str, number: int) -> Identity:
        offsets = read_checkpoint(place(checkpoint))
        assert offsets is not None, checkpoint  # Spark writes it before the first batch
        return Identity(f"jstream-etl/{self._prepared.pipeline.name}/{offsets.query_id}", number, offsets.query_id)

    # --- attending

    def _attend(self, queries: list[StreamingQuery], stop: Stop, watch: Watcher | None = None) -> None:
        """Wait for the end of all queries, or stop them between two batches; `watch` hears of batches of the first.

        Raises StreamingQueryException if one failed; the others are stopped then.
        """
        try:
            self._wait_for(queries, stop, watch)
        except CheckpointLostError:
            _stop(queries)
            raise
        _stop(queries)
        if watch is not None:
            self._follow(queries[0], watch)
        failed = [error for error in (query.exception() for query in queries) if error is not None]
        if failed:
            raise failed[0]

    def _wait_for(self, queries: list[StreamingQuery], stop: Stop, watch: Watcher | None) -> None:
        """Wait until all queries have ended, or one has failed, or is to be stopped. Raises CheckpointLostError."""
        asked_s: float | None = None
        done_when_asked = -1
        checked_s = time.monotonic()
        while any(query.isActive for query in queries):
            time.sleep(POLL_S)
            checked_s = self._check_after_pause(checked_s)
            if watch is not None:
                self._follow(queries[0], watch)
                self._report_state(queries[0])
            if any(not query.isActive and query.exception() is not None for query in queries):
                return
            if stop.asked.is_set():
                if asked_s is None:
                    asked_s, done_when_asked = time.monotonic(), self._batch_done()
                is_between = not queries[0].status["isTriggerActive"] or self._batch_done() > done_when_asked
                if is_between or time.monotonic() - asked_s > GRACE_S:
                    return

    def _check_after_pause(self, checked_s: float) -> float:
        """Look every RENEW_S whether the checkpoint is lost; return when that was known last.

        The sinks of Spark take steps that are not seen here. An object store that gives no answer is asked again.
        """
        now_s = time.monotonic()
        if now_s - checked_s < RENEW_S:
            return checked_s
        try:
            self._state.check()
        except VolumeFailedError:
            if now_s - checked_s > EXPIRES_S:
                raise
            return checked_s
        return now_s

    def _batch_done(self) -> int:
        offsets = self._state.offsets()
        return -1 if offsets is None else offsets.batch_done

    def _follow(self, query: StreamingQuery, watch: Watcher) -> None:
        """Count the batches that were finished since the last look."""
        last = query.lastProgress
        if (
            last is None
            or last["batchId"] <= self._seen
            or (last["batchId"] == self._seen + 1 and not _has_batch(last))
        ):
            return
        for progress in (json.loads(update.json) for update in query.recentProgress):
            batch = progress["batchId"]
            if batch <= self._seen or not _has_batch(progress):
                continue
            self._seen = batch
            self._beginnings.look()
            self._beginnings.note_batch(batch)
            counts = self._counts.pop(batch, None) or _observed(progress)
            self.summary.add_batch(*counts, rows_late=_late(progress))
            source = progress["sources"][0]
            end = sequences_of(source["endOffset"])
            self.summary.cover(self._first_of(source), end)
            rate = progress.get("processedRowsPerSecond") or 0.0
            watch(Progress(batch, counts[0], counts[2], rate, self._lag(source, end)))

    def _lag(self, source: Mapping[str, Any], end: Mapping[str, int]) -> dict[str, int]:
        lag = {}
        latests = sequences_of(source.get("latestOffset"))
        if not SAYS_LIMITS:
            read = self._prepared.pipeline.source
            latests = ends_of(read, streams_of(read))
        for name, latest in latests.items():
            here, stream = end.get(name, 1), self._streams.get(name)
            known = len(stream.shown(here, latest)) if stream is not None else 0
            lag[name] = known + max(latest - max(here, stream.next_sequence if stream is not None else 0), 0)
        return lag

    def _report_state(self, query: StreamingQuery) -> None:
        """Report what a query does whose batches do not go through this process."""
        if not self._goes_through_batches() and query.status["isTriggerActive"]:
            self._report(f"batch {self._seen + 1}: reading and writing")

    def _first_of(self, source: Mapping[str, Any]) -> dict[str, int]:
        """Return where a batch began: where the one before it ended, and where streams joined."""
        begins = {
            name: position["begin"] for name, position in (source["endOffset"] or {}).items() if "begin" in position
        }
        first = sequences_of(source["startOffset"])
        if not first and self._prepared.pipeline.source.is_kafka:
            first = first_offsets(place(self._prepared.pipeline.checkpoint))
        return first | begins


def store_batch(
    prepared: Prepared,
    parsed: DataFrame,
    identity: Identity,
    with_letters: bool,
    step: Reporter = lambda text: None,
    comes_again: bool = False,
) -> tuple[int, int, int]:
    """Store parsed messages and their dead letters under one identity; return the counts of in, out and dead.

    `comes_again`: a run may have been killed within this batch. `step` hears of each step before it is made, and ends
    the batch with what it raises.
    """
    pipeline = prepared.pipeline
    parsed = (parsed if with_letters else refuse_bad(parsed)).persist()  # used several times, and read once
    try:
        step("reading and parsing")
        counted = parsed.agg(F.count(F.lit(1)), F.count(REASON)).first()
        assert counted is not None
        if with_letters and comes_again:
            check_same_letters(pipeline, identity, counted[1])
        step(f"transforming {counted[0]:,} messages")
        rows = prepared.rows(parsed)
        row_count = rows.count()
        if row_count:
            step(f"writing {row_count:,} rows to {pipeline.sink.kind}")
            write_rows(rows, pipeline, identity)
        if counted[1]:
            step(f"writing {counted[1]:,} dead {'letter' if counted[1] == 1 else 'letters'}")
            write_dead_letters(bad(parsed), pipeline, identity)
    finally:
        parsed.unpersist()
    return counted[0], row_count, counted[1]


def _end_at_target(query: StreamingQuery) -> None:
    """Stop a query whose source has a target, once all is read up to it and no batch is due, also none by watermark."""
    with suppress(*SPARK_ERRORS):  # whoever attends to the query asks it for its failure
        query.processAllAvailable()
        query.stop()


def _stop(queries: list[StreamingQuery]) -> None:
    for query in queries:
        if query.isActive:
            query.stop()


def _has_batch(progress: Mapping[str, Any]) -> bool:
    """Return whether the progress is of a batch that was run, and not of a trigger that found nothing."""
    return "addBatch" in progress.get("durationMs", {})


def _late(progress: Mapping[str, Any]) -> int:
    """Return how many rows the watermark has left out, after those of one group within a task were put together."""
    return sum(int(operator.get("numRowsDroppedByWatermark", 0)) for operator in progress.get("stateOperators", []))


def _observed(progress: Mapping[str, Any]) -> tuple[int, int, int]:
    metrics = progress.get("observedMetrics", {})
    parsed, made = metrics.get(OBSERVED, {}), metrics.get(MADE, {})
    return int(parsed.get("rows", 0)), int(made.get("rows", 0)), int(parsed.get("dead", 0))
