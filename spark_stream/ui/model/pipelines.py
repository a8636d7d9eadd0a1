"""Pipelines that the command line named: how far each is, its runs, and its dead letters by reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from spark_stream.ui.query import Query
from spark_stream.ui.site import READ_ERRORS, Site
from storage_core import Store
from storage_core.errors import NotFoundError

if TYPE_CHECKING:
    from spark_stream.pipelines.config import DeadLetters, Pipeline

LETTER_COUNT_MAX = 10_000  # newest dead letters that are looked at
REASON_COUNT_MAX = 50
REASON_SIZE_MAX = 500  # letters


def pipelines_page(site: Site, query: Query) -> dict[str, Any]:
    """Return each pipeline in short."""
    return {
        "pipelines": [{**short, "number": number} for number, short in enumerate(site.pipeline_statuses())],
        "command": f"jstream etl status FILE --store {site.command_store}",
    }


def pipeline_page(site: Site, query: Query, number: int) -> dict[str, Any]:
    """Return one pipeline: its streams, runs and dead letters. Raises NotFoundError."""
    from spark_stream.pipelines.state import PipelineState

    if number >= len(site.pipelines):
        raise NotFoundError(f"there is no pipeline {number}: --pipeline named {len(site.pipelines)}")
    file = site.pipelines[number]
    pipeline, status = _status(site, file)
    return {
        **status,
        "number": number,
        "description": pipeline.description,
        "sink": pipeline.sink.kind,
        "own_streams": sorted(site.store().streams()) if _is_shown(site, pipeline.source.volumes) else [],
        "runs": PipelineState(pipeline.checkpoint).runs()[::-1],
        "dead_letters": _dead_letters(site, pipeline),
        "command": f"jstream etl status {quote(str(file))} --store {site.command_store}",
    }


def _status(site: Site, file: Path) -> tuple["Pipeline", dict[str, Any]]:
    from spark_stream.pipelines.config import load_pipeline  # with Spark's Python: for those who have pipelines
    from spark_stream.pipelines.status import status

    pipeline = load_pipeline(file, ",".join(site.paths))
    return pipeline, status(pipeline)


def _is_shown(site: Site, volumes: list[str]) -> bool:
    """Return whether these volumes are of the store that is shown."""
    try:
        with Store.open(volumes, read_only=True) as store:
            return store.id == site.store().id
    except READ_ERRORS:
        return False


@dataclass(slots=True)
class _Reason:
    messages: int
    newest: int  # sequence of the newest letter
    stream: str  # of the message that it was
    sequence: int


def _dead_letters(site: Site, pipeline: "Pipeline") -> dict[str, Any] | None:
    """Return the newest dead letters by reason, those with the most first; None if the pipeline keeps none."""
    letters = pipeline.dead_letters
    if letters is None:
        return None
    summary: dict[str, Any] = {"stream": letters.stream, "looked_at": 0, "reasons": [], "left_out": 0, "error": None}
    summary["is_shown"] = _is_shown(site, letters.volumes)
    try:
        reasons, summary["looked_at"] = _by_reason(letters, pipeline.name)
    except READ_ERRORS as error:
        return {**summary, "error": str(error)}
    listed = sorted(reasons.items(), key=lambda pair: (-pair[1].messages, pair[0]))
    summary["reasons"] = [
        {
            "reason": text,
            "messages": reason.messages,
            "newest": reason.newest,
            "from_stream": reason.stream,
            "from_sequence": reason.sequence,
        }
        for text, reason in listed[:REASON_COUNT_MAX]
    ]
    summary["left_out"] = max(0, len(listed) - REASON_COUNT_MAX)
    return summary


def _by_reason(letters: "DeadLetters", pipeline: str) -> tuple[Mapping[str, _Reason], int]:
    from spark_stream.pipelines.sinks import HEADER_PREFIX

    reasons: dict[str, _Reason] = {}
    count = 0
    with Store.open(letters.volumes, read_only=True) as store:
        stream = store.stream(letters.stream)
        end = stream.last_sequence + 1
        first = max(stream.first_sequence, end - LETTER_COUNT_MAX)
        for batch in stream.read(first, end, columns=["sequence", "headers"], on_data_loss="continue"):
            for row in batch.to_pylist():
                headers = {
                    header["key"].removeprefix(HEADER_PREFIX): header["value"].decode("utf-8", "replace")
                    for header in row["headers"] or ()
                    if header["key"].startswith(HEADER_PREFIX)
                }
                if headers.get("Pipeline") != pipeline:
                    continue
                count += 1
                reason = reasons.setdefault(headers.get("Reason", "")[:REASON_SIZE_MAX], _Reason(0, 0, "", 0))
                reason.messages += 1
                reason.newest, reason.stream = row["sequence"], headers.get("Stream", "")
                sequence = headers.get("Sequence", "")
                reason.sequence = int(sequence) if sequence.isascii() and sequence.isdigit() else 0
    return reasons, count
