"""Backfills: a range of the stream once more, or for the first time, through the same transformation to the same sink.

A backfill stores under an identity of its own, made of its ranges: the same one again stores nothing. What could store
a message twice is refused, and the refusal says why:

    upsert        any range: a row that is older than the table's is left out. Dead letters of messages that the
                  pipeline has read, or another backfill, are there already and are not stored again
    append        only what lies before the pipeline began to read, and no range that overlaps another backfill's
    dead letters  not before the pipeline has begun to read: it would store them itself, once more
    Parquet       never: readers of the folder go by the log of Spark's file sink, which a batch is not in
    any           not if rows depend on the batch that they are in, or on chance
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from datasource.settings import LOCK_TIMEOUT_S
from datasource.store_opening import open_store
from spark_stream.pipelines.beginnings import Beginnings
from spark_stream.pipelines.config import DELTA, PARQUET, Pipeline
from spark_stream.pipelines.errors import BackfillRefusedError, RunFailedError
from spark_stream.pipelines.failures import SPARK_ERRORS, code_of, in_words
from spark_stream.pipelines.identity import Identity
from spark_stream.pipelines.payload import REASON
from spark_stream.pipelines.run import Prepared, store_batch
from spark_stream.pipelines.source import matching, read_range
from spark_stream.pipelines.state import BACKFILLS, PipelineState, now_text
from spark_stream.pipelines.summary import Summary
from storage_core import Store

Ranges = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be read: for each stream its incarnation (hex) and the sequences [first, end)."""

    ranges: Ranges
    incarnations: dict[str, str]

    def identity(self, pipeline: str) -> Identity:
        parts = [
            f"{name}:{self.incarnations[name]}:{first}-{end}" for name, (first, end) in sorted(self.ranges.items())
        ]
        return Identity(f"jstream-etl/{pipeline}/backfill/{','.join(parts)}", 1)

    def to_json(self) -> dict[str, Any]:
        return {
            name: {"incarnation": self.incarnations[name], "first": first, "end": end}
            for name, (first, end) in self.ranges.items()
        }


def resolve(
    pipeline: Pipeline, first: int | None, end: int | None, since_ns: int | None, until_ns: int | None
) -> Wanted:
    """Return the ranges of all source streams between two sequences or times, cut to what is there.

    Raises BackfillRefusedError for sequences over several streams, which they do not share, and an empty range.
    """
    if (first or 0) >= (end or 2**63) or (since_ns or 0) >= (until_ns or 2**63):
        raise BackfillRefusedError(
            "the range ends before it begins; --from is its first message, --to the first behind"
        )
    if not pipeline.source.is_store:
        raise BackfillRefusedError(
            "the source is a running server: a backfill reads a store, such as a mirror, or what a pipeline has stored"
        )
    with open_store(pipeline.source.volumes, LOCK_TIMEOUT_S) as store:
        names = matching(store, pipeline.source)
        if len(names) > 1 and (first is not None or end is not None):
            raise BackfillRefusedError(f"{', '.join(names)} do not share their sequences: give times")
        ranges = {name: _range(store, name, first, end, since_ns, until_ns) for name in names}
        incarnations = {name: store.stream(name).incarnation.hex() for name in names}
    ranges = {name: bounds for name, bounds in ranges.items() if bounds[0] < bounds[1]}
    if not ranges:
        raise BackfillRefusedError("there are no messages in that range")
    return Wanted(ranges, {name: incarnations[name] for name in ranges})


def _range(
    store: Store, name: str, first: int | None, end: int | None, since_ns: int | None, until_ns: int | None
) -> tuple[int, int]:
    stream = store.stream(name)
    state = stream.state()
    if since_ns is not None:
        first = stream.first_at_time(since_ns)
        first = state.next_sequence if first is None else first
    if until_ns is not None:
        end = stream.first_at_time(until_ns)
    first = state.first_sequence if first is None else max(first, state.first_sequence)
    end = state.next_sequence if end is None else min(end, state.next_sequence)
    return first, end


class Backfill:
    """One backfill of a prepared pipeline. The caller holds the checkpoint's lock."""

    def __init__(self, prepared: Prepared, state: PipelineState, wanted: Wanted, summary: Summary) -> None:
        self._prepared, self._state, self._wanted = prepared, state, wanted
        self._pipeline = prepared.pipeline
        self._beginnings = Beginnings(state, self._pipeline)
        self._beginnings.look()
        backfills = state.read(BACKFILLS)
        self._before: list[dict[str, Any]] = backfills if isinstance(backfills, list) else []
        self.summary = summary

    def check(self) -> None:
        """Raise BackfillRefusedError if a message could be stored twice, or another result come of it."""
        self._beginnings.check(new_checkpoint=True)
        if self._pipeline.sink.kind == PARQUET:
            raise BackfillRefusedError(
                "readers of a folder that Spark's file sink has written go by its log, and would not see what a "
                "backfill adds; write Delta, or read the range with a pipeline into another folder"
            )
        if self._prepared.depends:
            raise BackfillRefusedError(
                f"the transformation has {self._prepared.depends}, so its rows depend on other messages, or on chance: "
                "the range by itself would give other rows than the pipeline does"
            )
        if self._pipeline.sink.appends or self._pipeline.dead_letters is not None:
            self._check_begun()
        if self._pipeline.sink.appends:
            self._check_append()

    def _check_begun(self) -> None:
        begins, incarnations = self._beginnings.sequences(), self._beginnings.incarnations()
        for name, incarnation in self._wanted.incarnations.items():
            if name not in begins or incarnations[name] != incarnation:
                raise BackfillRefusedError(
                    f"the pipeline has not begun to read {name}, so it is not known what it will store itself: run it "
                    "once before",
                    stream=name,
                )

    def _check_append(self) -> None:
        begins = self._beginnings.sequences()
        for name, (first, end) in self._wanted.ranges.items():
            if end > begins[name]:
                ways = [f"--to {begins[name]}"] if first < begins[name] else []
                ways += ["mode 'upsert'"] if self._pipeline.sink.kind == DELTA else []
                raise BackfillRefusedError(
                    f"the pipeline began to read {name} at {begins[name]} and stores what follows itself: of "
                    f"[{first}, {end}) an append would store some twice{'. Take ' if ways else ''}{' or '.join(ways)}",
                    stream=name,
                    first=first,
                    end=end,
                )
            for other_first, other_end, when in self._other_backfills(name, "begun"):
                if first < other_end and other_first < end:
                    raise BackfillRefusedError(
                        f"{name} [{other_first}, {other_end}) was backfilled, begun {when}: an append of "
                        f"[{first}, {end}) would store some of it twice. "
                        "The same range again is safe, and so is what it does not overlap",
                        stream=name,
                        first=other_first,
                        end=other_end,
                    )

    def _other_backfills(self, name: str, stage: str) -> Iterable[tuple[int, int, str]]:
        """Yield the ranges of this stream that other backfills have begun or done, with the time."""
        for backfill in self._before:
            known = backfill["ranges"].get(name)
            if known is None or stage not in backfill or backfill["ranges"] == self._wanted.to_json():
                continue
            if known["incarnation"] == self._wanted.incarnations[name]:
                yield known["first"], known["end"], backfill[stage]

    def execute(self) -> None:
        """Store the range. Call `check` before. Raises RunFailedError, CheckpointLostError."""
        self._note("begun")
        try:
            self._store()
        except SPARK_ERRORS as error:
            raise RunFailedError(in_words(error), code_of(error)) from error
        self._note("done")
        self.summary.finish(True)

    def _store(self) -> None:
        source = self._pipeline.source
        parsed = self._prepared.parsed(read_range(self._prepared.spark, source, self._wanted.ranges))
        with_letters = self._pipeline.dead_letters is not None
        if with_letters:
            parsed = self._without_known_letters(parsed)
        identity = self._wanted.identity(self._pipeline.name)
        comes_again = any("done" not in before for before in self._before if before["ranges"] == self._wanted.to_json())
        counts = store_batch(
            self._prepared, parsed, identity, with_letters, lambda text: self._state.check(), comes_again
        )
        self.summary.add_batch(*counts)
        first = {name: bounds[0] for name, bounds in self._wanted.ranges.items()}
        self.summary.cover(first, {name: bounds[1] for name, bounds in self._wanted.ranges.items()})

    def _without_known_letters(self, parsed: DataFrame) -> DataFrame:
        """Leave out bad messages that an earlier reader has put among the dead letters."""
        known = F.lit(False)
        begins, incarnations = self._beginnings.sequences(), self._beginnings.incarnations()
        for name in self._wanted.ranges:
            is_it = F.col("stream") == name
            if incarnations.get(name) == self._wanted.incarnations[name]:
                known = known | (is_it & (F.col("sequence") >= begins[name]))
            for first, end, _ in self._other_backfills(name, "done"):
                known = known | (is_it & (F.col("sequence") >= first) & (F.col("sequence") < end))
        return parsed.where(F.col(REASON).isNull() | ~known)

    def _note(self, stage: str) -> None:
        """Keep that this backfill has begun, before it stores anything, or that it is done."""
        ranges = self._wanted.to_json()
        entry: dict[str, Any] = next(
            (backfill for backfill in self._before if backfill["ranges"] == ranges), {"ranges": ranges}
        )
        if entry not in self._before:
            self._before.append(entry)
        if stage == "done" or "begun" not in entry:
            entry[stage] = now_text()
        self._state.write(BACKFILLS, self._before)


def covered(ranges: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} [{first}, {end})" for name, (first, end) in sorted(ranges.items()))
