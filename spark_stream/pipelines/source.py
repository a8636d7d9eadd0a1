"""The stream side of a pipeline: options of the data source, and what the store says before Spark is started."""

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NoReturn

from pyspark.sql import DataFrame, SparkSession

from datasource.places import open_store
from spark_stream.pipelines.config import JSTREAM, DeadLetters, Pipeline, Source
from spark_stream.pipelines.sinks import check_dead_letters
from spark_stream.pipelines.toml import DefinitionError, nearest
from storage_core import Store
from storage_core.errors import NotFoundError

LOCK_TIMEOUT_S = 60.0
_LIMITS = {
    "max_messages": "maxOffsetsPerTrigger",
    "max_bytes": "maxBytesPerTrigger",
    "max_blocks": "maxFilesPerTrigger",
}


def read_stream(spark: SparkSession, source: Source, starts: Mapping[str, int] | None = None) -> DataFrame:
    """Return the messages of the source as a streaming DataFrame.

    `starts`: begin at these sequences, and without the consumer; for a second query beside the pipeline's own.
    """
    options = common_options(source)
    for key, option in _LIMITS.items():
        value = getattr(source, key)
        if value is not None:
            options[option] = str(value)
    if starts is not None:
        options["startingOffsets"] = json.dumps(dict(starts))
    else:
        options |= start_options(source)
        if source.consumer:
            options["consumer"] = source.consumer
        if source.consumer_takeover:
            options["consumerTakeover"] = "true"
    return spark.readStream.format("jstream").options(**options).load(json.dumps(source.volumes))


def read_range(spark: SparkSession, source: Source, ranges: Mapping[str, tuple[int, int]]) -> DataFrame:
    """Return the messages of ranges [first, end) as a batch."""
    options = common_options(source) | {
        "stream": json.dumps(sorted(ranges)),
        "startingOffsets": json.dumps({name: first for name, (first, _) in ranges.items()}),
        "endingOffsets": json.dumps({name: end for name, (_, end) in ranges.items()}),
    }
    if source.consumer:
        options["consumer"] = source.consumer  # for its filter; a batch does not move it
    return spark.read.format("jstream").options(**options).load(json.dumps(source.volumes))


def common_options(source: Source) -> dict[str, str]:
    options = {"stream": json.dumps(source.streams), "failOnDataLoss": str(source.fail_on_data_loss).lower()}
    if source.subject:
        options["subject"] = source.subject
    if source.lock_timeout:
        options["lockTimeout"] = source.lock_timeout
    return options


def start_options(source: Source) -> dict[str, str]:
    """Return where a query without a checkpoint begins: earliest, unless the file or the consumer says otherwise."""
    start = source.start
    if isinstance(start, int):
        return {"startingOffsets": json.dumps({source.streams[0]: start})}
    if isinstance(start, dict):
        return {"startingOffsets": json.dumps(start)}
    if not start:
        return {} if source.consumer else {"startingOffsets": "earliest"}
    word = start in ("earliest", "latest", "consumer")
    return {"startingOffsets" if word else "startingTimestamp": start}


def check_stores(pipeline: Pipeline) -> dict[str, Any]:
    """Look whether the stores have the streams that the file names; return what the source has now, for people.

    Raises DefinitionError and NotFoundError naming the key, and StorageError if a store cannot be opened.
    """
    with open_store(pipeline.source.volumes, LOCK_TIMEOUT_S) as store:
        names = matching(store, pipeline.source)
        globs = [one for one in pipeline.source.streams if any(mark in one for mark in "*?[")]
        for name in pipeline.source.streams:
            if name not in globs and name not in names:
                _refuse_stream(pipeline, "source.stream", name, store)
        counts = {name: store.stream(name).state().message_count for name in names}
    if pipeline.dead_letters is not None:
        _check_letters(pipeline, pipeline.dead_letters, names)
    sink = pipeline.sink
    if sink.kind == JSTREAM and sink.stream:
        with open_store(sink.volumes, LOCK_TIMEOUT_S) as store:
            if sink.stream not in store.streams():
                _refuse_stream(pipeline, "sink.stream", sink.stream, store)
        if sink.stream in names and set(sink.volumes) & set(pipeline.source.volumes):
            raise DefinitionError(pipeline.file, "sink.stream", f"{sink.stream!r} is the source: it would never end")
    return {"streams": counts}


def matching(store: Store, source: Source) -> list[str]:
    """Return the streams of the store that the source reads."""
    return [name for name in store.streams() if any(fnmatchcase(name, one) for one in source.streams)]


def _check_letters(pipeline: Pipeline, letters: DeadLetters, sources: list[str]) -> None:
    with open_store(letters.volumes, LOCK_TIMEOUT_S) as store:
        if letters.stream not in store.streams():
            _refuse_stream(pipeline, "dead_letters.stream", letters.stream, store)
        problem = check_dead_letters(letters, store.stream(letters.stream).config.subjects)
    if problem:
        raise DefinitionError(pipeline.file, "", problem)
    if letters.stream in sources and set(letters.volumes) & set(pipeline.source.volumes):
        raise DefinitionError(
            pipeline.file,
            "dead_letters.stream",
            f"{letters.stream!r} is read by the source: a bad message would come again",
        )


def _refuse_stream(pipeline: Pipeline, key: str, name: str, store: Store) -> NoReturn:
    known = store.streams()
    near = nearest(name, known) or f"; there are {', '.join(sorted(known)[:20]) or 'none'}"
    told = f"no stream {name!r} in {store.label}, and a pipeline makes none (jstream apply does){near}"
    raise NotFoundError(f"{pipeline.file}: {key}: {told}")
