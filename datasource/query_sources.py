"""What a streaming query reads, as its checkpoint says: a sink that replaces a stream must not be one of its sources.

Spark tells a sink nothing of the query's sources. Before each batch it writes how far each of them gets, in the words
of that source, to CHECKPOINT/offsets/BATCH. The words of this source name store and incarnation (stream_offsets.py). So
whatever the query reads is found there: several sources, lists and globs, and streams that have joined since.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from datasource.settings import WriteSettings
from storage_core.errors import RequirementError, StorageError
from storage_core.files import Files
from storage_core.paths import is_in_object_store, local_path, place
from storage_core.store.environment import reaching

logger = logging.getLogger("jstream")
FILE_SIZE_MAX = 64 << 20  # bytes; bounds what a damaged checkpoint can make us read
LABEL = "option 'checkpointLocation'"
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
CHECKPOINTS = "spark.sql.streaming.checkpointLocation"


@dataclass(frozen=True, slots=True)
class TaskQuery:
    """The streaming query that a task works for, as Spark tells the tasks of its batches and of its foreachBatch."""

    query_id: str
    batch: str
    default_folder: str  # where Spark puts the checkpoints of queries that name none; empty: nowhere

    @classmethod
    def current(cls) -> "TaskQuery | None":
        """Return that of the task in which this is called; None if it is none of a streaming query."""
        query_id, batch, folder = map(said_to_task, (QUERY_ID, BATCH_ID, CHECKPOINTS))
        return cls(query_id, batch, folder) if query_id else None


def said_to_task(name: str) -> str:
    """Return what Spark tells this task under a name; empty if it tells nothing."""
    context = TaskContext.get()
    return (context.getLocalProperty(name) if context is not None else None) or ""


@dataclass(frozen=True, slots=True)
class QuerySources:
    """The streams that a query reads in one batch."""

    streams: frozenset[tuple[str, str]]  # ids of store and incarnation, in hex
    message_count: int  # that the batch reads of them


def sources_of(settings: WriteSettings, query: TaskQuery) -> QuerySources | None:
    """Return what the query reads in this batch; None, with a log line, if its checkpoint cannot be read from here."""
    files = reaching(settings.storage).files
    try:
        text = _read(files, _checkpoint(settings, query, files) / "offsets" / query.batch).decode()
    except (OSError, ValueError, StorageError) as error:
        logger.warning(
            "batch %s of query %s: its checkpoint cannot be read, so it is unknown whether the query reads the stream "
            "that it replaces, %s: %s", query.batch, query.query_id, settings.stream, error,
        )  # fmt: skip
        return None
    streams, message_count = set(), 0
    for line in text.splitlines():
        for entry in _entries(line):
            streams.add((entry["store"], entry["incarnation"]))
            message_count += int(entry.get("count") or 0)
    return QuerySources(frozenset(streams), message_count)


def check_not_replaced(replaced_by: Mapping[str, str]) -> None:
    """Raise RequirementError in a task of the query that has replaced one of these streams, which it reads.

    For what the sink could not know: the checkpoint of a foreachBatch, and those that cannot be read from here.
    """
    query_id = said_to_task(QUERY_ID)
    for name, query in replaced_by.items():
        if query == query_id:
            raise RequirementError(
                f"stream {name!r} was replaced by query {query}, which reads it: it would read its own result, and "
                "replace that. Write to another stream, and begin with a new checkpoint"
            )


def _checkpoint(settings: WriteSettings, query: TaskQuery, files: Files) -> Path:
    """Return the folder of a query's checkpoint. Raises FileNotFoundError, ValueError for what is not reached here."""
    if settings.checkpoint:
        return _place(settings.checkpoint)
    if not query.default_folder:
        raise FileNotFoundError("neither the option checkpointLocation nor Spark's setting names it")
    folder = _place(query.default_folder)
    names = [settings.query_name] if settings.query_name else files.list_directory(folder)
    for name in names:
        try:
            if json.loads(_read(files, folder / name / "metadata"))["id"] == query.query_id:
                return folder / name
        except (OSError, ValueError, KeyError, TypeError):  # of another query, whatever it is
            continue
    raise FileNotFoundError(f"no checkpoint below {folder} is of this query")


def _place(text: str) -> Path:
    return place(text) if is_in_object_store(text) else Path(local_path(text, LABEL))


def _read(files: Files, path: Path) -> bytes:
    with closing(files.open(path)) as file:
        return file.read_at(0, FILE_SIZE_MAX)


def _entries(value: Any) -> Iterator[dict[str, Any]]:
    """Yield what this source says of a stream, wherever Spark has put it: as JSON, or as text that holds JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return
    if not isinstance(value, dict):
        return
    if isinstance(value.get("store"), str) and isinstance(value.get("incarnation"), str):
        yield value
        return
    for inner in value.values():
        yield from _entries(inner)
