"""Pipelines that the command line named: how far each is, its runs, and its dead letters by kind of reason."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from spark_stream.ui.query import Query
from spark_stream.ui.site import READ_ERRORS, Site
from storage_core import Store
from storage_core.errors import NotFoundError

if TYPE_CHECKING:
    from spark_stream.pipelines.config import Pipeline

LETTER_COUNT_MAX = 10_000  # newest dead letters that are looked at
KIND_COUNT_MAX = 50


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


def _dead_letters(site: Site, pipeline: "Pipeline") -> dict[str, Any] | None:
    """Return the newest dead letters by kind of reason, those with the most first; None if the pipeline keeps none."""
    from spark_stream.pipelines.letters import kinds_of, to_json

    letters = pipeline.dead_letters
    if letters is None:
        return None
    summary: dict[str, Any] = {"stream": letters.stream, "looked_at": 0, "kinds": [], "left_out": 0, "error": None}
    summary["is_shown"] = _is_shown(site, letters.volumes)
    try:
        kinds, summary["looked_at"] = kinds_of(pipeline, LETTER_COUNT_MAX)
    except READ_ERRORS as error:
        return {**summary, "error": str(error)}
    shown = kinds[:KIND_COUNT_MAX]
    return {**summary, "kinds": to_json(shown), "left_out": len(kinds) - len(shown)}
