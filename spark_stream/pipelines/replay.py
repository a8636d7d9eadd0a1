"""Replays: dead letters that parse now go through the pipeline as it is now, into its sink, and are letters no more.

One part of them, at most PART_COUNT_MAX, after another:

    note     which letters, before anything is done with them: replay.json, `storing`
    store    their rows under an identity made of these letters; again, whoever was killed here, and it stores nothing
    note     that the rows are stored: `removing`
    remove   these letters, in one commit
    note     `done`

Whatever kills a replay, the next one finishes its part first. Until then the letters of the part must go the same way
as they did: to the same sink, and none of them back among the bad ones. Letters that do not parse stay as they are.

Refused are sinks that know no identity of a batch (Parquet, console), rows that depend on several messages, streams
that remove nothing, and a pipeline in the middle of a batch: its letters may be stored, and the batch be yet to come.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from datasource.settings import LOCK_TIMEOUT_S
from datasource.store_opening import open_store
from spark_stream.pipelines.beginnings import Beginnings
from spark_stream.pipelines.config import CONSOLE, JSTREAM, PARQUET, Pipeline, Sink
from spark_stream.pipelines.errors import CheckpointError, ReplayRefusedError, RunFailedError
from spark_stream.pipelines.failures import SPARK_ERRORS, code_of, in_words
from spark_stream.pipelines.identity import Identity
from spark_stream.pipelines.letters import KIND, LETTER, as_messages, is_whole, kept_letters, read_letters
from spark_stream.pipelines.payload import REASON
from spark_stream.pipelines.run import Prepared, Reporter, store_batch
from spark_stream.pipelines.state import BACKFILLS, REPLAY, PipelineState, now_text
from spark_stream.pipelines.summary import Summary
from storage_core.metadata.state import StreamState
from storage_core.sequences import SequenceSet
from storage_core.suggestions import instead

PART_COUNT_MAX = 100_000  # letters of one note, and of one batch in the sink
STORING, REMOVING, DONE = "storing", "removing", "done"


@dataclass(frozen=True, slots=True)
class Counted:
    """The letters of one kind of reason: how many parse now, and how many stay."""

    kind: str
    parse: int
    stay: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a replay would do: letters that parse now, of each kind of reason, and those of a replay that was killed."""

    sequences: SequenceSet
    kinds: list[Counted]
    unfinished: int

    @property
    def stay(self) -> int:
        return sum(kind.stay for kind in self.kinds)

    def to_json(self) -> dict[str, Any]:
        kinds = [{"kind": kind.kind, "parse": kind.parse, "stay": kind.stay} for kind in self.kinds]
        return {"parse": len(self.sequences), "stay": self.stay, "unfinished": self.unfinished, "kinds": kinds}


class _Note(msgspec.Struct, kw_only=True):
    """replay.json: the letters that a replay is at, or that the last one was."""

    letters: str  # the stream and where it is, as the pipeline's file named it
    incarnation: str
    sink: str
    ranges: list[tuple[int, int]]
    begun: str
    stage: str = STORING
    done: str = ""

    @property
    def sequences(self) -> SequenceSet:
        return SequenceSet.from_ranges(self.ranges)

    def identity(self, pipeline: str) -> Identity:
        digest = hashlib.sha256(json.dumps(self.ranges).encode()).hexdigest()[:32]
        return Identity(f"jstream-etl/{pipeline}/replay/{self.incarnation}/{digest}", 1)


def status_of_replay(state: PipelineState) -> dict[str, Any] | None:
    """Return the newest part of a replay in short, None if there was none. Raises CheckpointError."""
    note = _read_note(state)
    if note is None:
        return None
    return {"letters": len(note.sequences), "begun": note.begun, "done": note.done or None}


def _read_note(state: PipelineState) -> _Note | None:
    note = state.read(REPLAY)
    try:
        return note and msgspec.convert(note, _Note)
    except msgspec.ValidationError as error:
        file = str(state.folder / REPLAY)
        reason = f"{file} is damaged. Remove it, if letters of a replay that was killed may be stored twice: {error}"
        raise CheckpointError(reason, checkpoint=str(state.checkpoint), file=file) from error


def check_replay(pipeline: Pipeline) -> None:
    """Raise ReplayRefusedError, DefinitionError for what is known without Spark to be in the way of a replay."""
    letters, sink = kept_letters(pipeline), pipeline.sink
    if sink.kind in (PARQUET, CONSOLE):
        raise ReplayRefusedError(
            f"{pipeline.file}: sink.kind {sink.kind!r} does not store a batch once if it comes again, so a replay that "
            "is killed could store messages twice; replay into 'delta' or 'jstream'"
        )
    config = _letter_stream(pipeline).config
    denied = next((flag for flag in ("sealed", "deny_delete") if getattr(config, flag)), "")
    if denied:
        raise ReplayRefusedError(
            f"stream {letters.stream!r} has {denied} set: replayed letters could not be removed, and would come again",
            stream=letters.stream,
        )


def _letter_stream(pipeline: Pipeline) -> StreamState:
    letters = kept_letters(pipeline)
    with open_store(letters.volumes, LOCK_TIMEOUT_S, read_only=True) as store:
        return store.stream_state(letters.stream)


class Replay:
    """One replay of a prepared pipeline. The caller has called `check_replay`, and to execute holds the lock."""

    def __init__(self, prepared: Prepared, state: PipelineState) -> None:
        self._prepared, self._state, self._pipeline = prepared, state, prepared.pipeline
        self._target = kept_letters(self._pipeline)
        self._note = _read_note(state)

    def check(self) -> None:
        """Raise ReplayRefusedError, CheckpointError if a message could be stored twice, or become other rows."""
        Beginnings(self._state, self._pipeline).check(new_checkpoint=True)
        if not self._prepared.is_row_by_row:
            raise self._refusal(
                f"the transformation has {self._prepared.depends}, so its rows depend on several messages: the letters "
                "by themselves would give other rows than the stream does"
            )
        offsets = self._state.offsets()
        if offsets is not None and offsets.batch_planned > offsets.batch_done:
            raise self._refusal(
                f"batch {offsets.batch_planned} of the pipeline is not finished, and may yet store what is among the "
                "letters: run the pipeline first"
            )
        backfills = self._state.read(BACKFILLS) or []
        if any("done" not in backfill for backfill in backfills):
            raise self._refusal(
                "a backfill is not finished, and may yet store what is among the letters: run it again first"
            )
        if self._unfinished() is not None:
            self._check_unchanged()

    def plan(self, kind: str | None = None) -> Plan:
        """Return which letters parse now, of one kind or of all. Raises ReplayRefusedError, RunFailedError."""
        stream, unfinished = _letter_stream(self._pipeline), self._unfinished()
        shown = stream.shown()
        if unfinished is not None:
            shown = shown.difference(unfinished.sequences)
        table = self._parses(shown)
        if kind is not None:
            known = pc.unique(table["kind"]).to_pylist()
            if kind not in known:
                raise self._refusal(f"no letter is of the kind {kind!r}{instead(kind, known)}")
            table = table.filter(pc.equal(table["kind"], kind))
        counts = table.group_by("kind").aggregate([("parses", "sum"), ("parses", "count")]).to_pylist()
        kinds = [
            Counted(row["kind"], row["parses_sum"], row["parses_count"] - row["parses_sum"])
            for row in sorted(counts, key=lambda row: (-row["parses_count"], row["kind"]))
        ]
        parsing = SequenceSet.from_sequences(table.filter(table["parses"])["letter"].to_numpy())
        return Plan(parsing, kinds, len(unfinished.sequences) if unfinished is not None else 0)

    def execute(self, plan: Plan, summary: Summary, step: Reporter) -> None:
        """Replay what was planned, after what is left of a replay that was killed.

        Raises ReplayRefusedError, RunFailedError, CheckpointLostError, StorageError.
        """
        self._finish_last(summary, step)
        rest, incarnation = plan.sequences, _letter_stream(self._pipeline).incarnation.hex()
        while rest:
            part = rest.head(PART_COUNT_MAX)
            rest = rest.difference(part)
            self._keep(
                _Note(
                    letters=self._letters_text(),
                    incarnation=incarnation,
                    sink=_described(self._pipeline.sink),
                    ranges=list(part.ranges()),
                    begun=now_text(),
                )
            )
            self._finish(part, summary, step)
        summary.rows_dead = plan.stay
        summary.finish(True)

    # --- one part

    def _unfinished(self) -> _Note | None:
        """Return the part that a killed replay has left, None if there is none, or its letters are gone."""
        note = self._note
        if note is None or note.stage == DONE:
            return None
        is_gone = (
            note.letters == self._letters_text()
            and note.incarnation != _letter_stream(self._pipeline).incarnation.hex()
        )
        return None if is_gone else note

    def _letters_text(self) -> str:
        return f"{self._target.stream} in {', '.join(self._target.volumes)}"

    def _finish_last(self, summary: Summary, step: Reporter) -> None:
        note = self._unfinished()
        if note is None:
            return
        self._finish(_letter_stream(self._pipeline).shown().intersection(note.sequences), summary, step)

    def _finish(self, part: SequenceSet, summary: Summary, step: Reporter) -> None:
        """Store and remove the letters of the note that are still there."""
        note = self._note
        assert note is not None
        if part and note.stage == STORING:
            summary.add_batch(*self._store(part, note.identity(self._pipeline.name), step))
            name, (first, end) = self._target.stream, part.bounds
            summary.cover({name: first}, {name: end})
        note.stage = REMOVING
        self._keep(note)
        step(f"removing {len(part):,} letters")
        self._remove(part, note)
        note.stage, note.done = DONE, now_text()
        self._keep(note)

    def _store(self, part: SequenceSet, identity: Identity, step: Reporter) -> tuple[int, int, int]:
        def checked(text: str) -> None:
            self._state.check()
            step(text)

        try:
            parsed = self._parsed(part)
            messages = parsed.select([name for name in parsed.columns if name not in (LETTER, KIND)])
            return store_batch(self._first_counts(), messages, identity, False, checked)
        except SPARK_ERRORS as error:
            raise RunFailedError(in_words(error), code_of(error)) from error

    def _first_counts(self) -> Prepared:
        """Return the pipeline with a sink that takes a batch that comes again, with fewer rows by then, as stored."""
        sink = self._pipeline.sink
        if sink.kind != JSTREAM:
            return self._prepared
        options = {name: value for name, value in sink.options.items() if name.lower() != "failonchangedbatch"}
        sink = msgspec.structs.replace(sink, options={**options, "failOnChangedBatch": "false"})
        return replace(self._prepared, pipeline=msgspec.structs.replace(self._pipeline, sink=sink))

    def _remove(self, part: SequenceSet, note: _Note) -> None:
        with open_store(self._target.volumes, LOCK_TIMEOUT_S) as store:
            stream = store.stream(self._target.stream)
            if stream.incarnation.hex() != note.incarnation:
                raise self._refusal("the dead-letter stream was deleted and made again during the replay")
            stream.remove(part)

    def _keep(self, note: _Note) -> None:
        self._state.write(REPLAY, msgspec.to_builtins(note))
        self._note = note

    # --- letters

    def _parsed(self, letters: SequenceSet) -> DataFrame:
        """Return these letters of the pipeline as parsed messages, with LETTER and KIND."""
        first, end = letters.bounds
        spark = self._prepared.spark
        stored = read_letters(spark, self._pipeline, first, end)
        if len(letters) < end - first:
            wanted = pa.table({"sequence": np.concatenate([np.arange(*bounds) for bounds in letters.ranges()])})
            stored = stored.join(F.broadcast(spark.createDataFrame(wanted)), "sequence", "left_semi")
        return self._prepared.parsed(as_messages(stored, self._pipeline.name, self._pipeline.source))

    def _parses(self, letters: SequenceSet) -> pa.Table:
        """Return for each of the letters its sequence, its kind of reason, and whether it parses now."""
        if not letters:
            return pa.table({"letter": pa.array([], pa.int64()), "kind": pa.array([], pa.string()),
                             "parses": pa.array([], pa.bool_())})  # fmt: skip
        try:
            columns = [F.col(LETTER).alias("letter"), F.col(KIND).alias("kind")]
            return self._parsed(letters).select(
                *columns, (F.col(REASON).isNull() & is_whole()).alias("parses")
            ).toArrow()  # fmt: skip
        except SPARK_ERRORS as error:
            raise RunFailedError(in_words(error), code_of(error)) from error

    def _check_unchanged(self) -> None:
        """Raise ReplayRefusedError if the pipeline would do something else with the part that was left."""
        note = self._note
        assert note is not None
        begun = f"the replay of {len(note.sequences):,} letters that was begun at {note.begun} is not finished"
        otherwise = f"and replay once more; or remove {self._state.folder / REPLAY} if rows may be stored twice"
        stream, sink = _letter_stream(self._pipeline), _described(self._pipeline.sink)
        if note.incarnation != stream.incarnation.hex():
            raise self._refusal(
                f"{begun}, and its letters are in {note.letters}: name that stream in [dead_letters] {otherwise}"
            )
        if note.stage != STORING:
            return
        if note.sink != sink:
            raise self._refusal(
                f"{begun}, and its rows may be stored in {note.sink}, where the sink is {sink} now: change [sink] back "
                f"to what it was {otherwise}"
            )
        table = self._parses(stream.shown().intersection(note.sequences))
        bad = table.filter(pc.invert(table["parses"]))
        if len(bad):
            sequence = pc.min(bad["letter"]).as_py()
            raise self._refusal(
                f"{begun}, its rows may be stored, and {len(bad):,} of its letters do not parse any more, the first is "
                f"letter {sequence}: change [payload] back to what it was {otherwise}",
                sequence,
            )

    def _refusal(self, text: str, sequence: int | None = None) -> ReplayRefusedError:
        return ReplayRefusedError(f"{self._pipeline.file}: {text}", stream=self._target.stream, sequence=sequence)


def _described(sink: Sink) -> str:
    """Return where rows go, by an id where a store is: volumes may have moved."""
    if sink.kind == JSTREAM:
        with open_store(sink.volumes, LOCK_TIMEOUT_S, read_only=True) as store:
            return f"{f'stream {sink.stream}' if sink.stream else 'streams that rows name'} of store {store.id.hex()}"
    return sink.path or sink.table
