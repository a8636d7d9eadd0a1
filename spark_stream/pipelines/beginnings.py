"""Whose checkpoint it is, and at which sequence of each stream the pipeline began to read.

Spark keeps the offsets of the last hundred batches, and only those of the first say where it began. A backfill must
know: what lies before was never read, what lies behind is stored already, or will be.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_stream.pipelines.config import Pipeline
from spark_stream.pipelines.errors import CheckpointError
from spark_stream.pipelines.state import STATE, PipelineState, names_in, read_whole


class Beginnings:
    """The record `state.json` of one pipeline."""

    def __init__(self, state: PipelineState, pipeline: Pipeline) -> None:
        self._state, self._pipeline = state, pipeline
        record = state.read(STATE)
        self._record: dict[str, Any] = record if isinstance(record, dict) else {}
        self._looked: set[int] = set()

    def check(self, new_checkpoint: bool) -> None:
        """Raise CheckpointError if the checkpoint is another pipeline's, or is not the one that was there before."""
        owner = self._record.get("pipeline", self._pipeline.name)
        if owner != self._pipeline.name:
            raise CheckpointError(
                f"checkpoint {self._state.checkpoint} is that of pipeline {owner!r}, and this one is "
                f"{self._pipeline.name!r}: give each its own, or change the name back",
                checkpoint=str(self._state.checkpoint),
            )
        offsets = self._state.offsets()
        if offsets is not None and offsets.done and offsets.is_of_topics != self._pipeline.source.is_kafka:
            raise CheckpointError(
                f"checkpoint {self._state.checkpoint} is that of a query over "
                f"{'Kafka' if offsets.is_of_topics else 'streams'}, and source.store names "
                f"{', '.join(self._pipeline.source.volumes)}: give the pipeline another checkpoint, or its source back",
                checkpoint=str(self._state.checkpoint),
            )
        before, now = self._record.get("query"), offsets.query_id if offsets is not None else None
        stored = self._record.get("batch", -1)
        if offsets is not None and before == now and offsets.batch_planned < stored:
            raise CheckpointError(
                f"checkpoint {self._state.checkpoint} is an older copy: its newest batch is {offsets.batch_planned}, "
                f"and batch {stored} was stored. Other messages would come under numbers that are stored, and be left "
                "out. Put the newer copy back; or move this one away and start over with --new-checkpoint",
                checkpoint=str(self._state.checkpoint),
            )
        harmless = not self._pipeline.sink.appends and self._pipeline.dead_letters is None
        if before is None or before == now or new_checkpoint or harmless:
            return
        raise CheckpointError(
            f"checkpoint {self._state.checkpoint} is {'gone' if now is None else 'another one'}: query {before} had "
            "it. A new one would store what that query has stored once more. Put it back from a copy, or accept that "
            "with --new-checkpoint; source.start or the consumer say where a new one begins",
            checkpoint=str(self._state.checkpoint),
        )

    def check_state(self, definition: Mapping[str, Any]) -> None:
        """Raise CheckpointError if the checkpoint has the state of another definition; else keep this one.

        `definition` is empty if the transformation keeps no state.
        """
        offsets, known = self._state.offsets(), self._record.get("definition")
        has_batches = offsets is not None and offsets.batch_planned >= 0
        if has_batches and known is not None and known != definition:
            keys = sorted(key for key in {*known, *definition} if known.get(key) != definition.get(key))
            changed = " and ".join(keys) if known and definition else "the transformation"
            raise CheckpointError(
                f"{changed} has changed, and checkpoint {self._state.checkpoint} keeps the state of the aggregates as "
                "they were: old results would mix with new ones. Change it back; or give the pipeline another "
                'checkpoint and another table, with start = "earliest" below [source], to compute all results again',
                checkpoint=str(self._state.checkpoint),
            )
        if known != definition:
            self._record["definition"] = dict(definition)
            self._state.write(STATE, self._record)

    def note_query(self, query_id: str) -> None:
        """Keep whose checkpoint this is, from when the query has started."""
        if self._record.get("query") != query_id or self._record.get("pipeline") != self._pipeline.name:
            self._record |= {"pipeline": self._pipeline.name, "query": query_id, "batch": -1}
            self._state.write(STATE, self._record)

    def note_batch(self, batch: int) -> None:
        """Keep the number of the newest batch that is done."""
        if self._record.get("batch", -1) < batch:
            self._record["batch"] = batch
            self._state.write(STATE, self._record)

    def look(self) -> None:
        """Take from Spark's offsets where streams begin, and keep what is new."""
        begins = self._record.setdefault("begins", {})
        changed = False
        for stream, incarnation, sequence in self._new_begins():
            known = begins.get(stream)
            if known is None or known["incarnation"] != incarnation or sequence < known["sequence"]:
                begins[stream] = {"incarnation": incarnation, "sequence": sequence}
                changed = True
        if changed:
            self._state.write(STATE, self._record)

    def known(self) -> bool:
        return bool(self._record.get("begins"))

    def sequences(self) -> dict[str, int]:
        """Return for each stream the first sequence that the pipeline was to read."""
        return {stream: begin["sequence"] for stream, begin in self._record.get("begins", {}).items()}

    def incarnations(self) -> dict[str, str]:
        return {stream: begin["incarnation"] for stream, begin in self._record.get("begins", {}).items()}

    def _new_begins(self) -> list[tuple[str, str, int]]:
        """Return (stream, incarnation, sequence) of each beginning in offsets that were not looked at before."""
        folder = self._state.checkpoint / "offsets"
        numbers = {int(name) for name in names_in(folder) if name.isdigit()}
        begins = []
        for number in sorted(numbers - self._looked):
            self._looked.add(number)
            for stream, position in _offset(folder / str(number)).items():
                if "begin" in position:
                    begins.append(
                        (stream, str(position.get("incarnation", position.get("created", ""))), int(position["begin"]))
                    )
        return begins


def _offset(path: Path) -> Mapping[str, Any]:
    try:
        offset = json.loads(read_whole(path).decode().splitlines()[2])
    except (OSError, ValueError, IndexError):
        return {}  # purged a moment ago, or not written to its end
    return offset if isinstance(offset, dict) else {}
