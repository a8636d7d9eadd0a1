"""The stream side of a pipeline: options of the data source, and what the store says before Spark is started."""

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NoReturn

from pyspark.sql import DataFrame, SparkSession

from datasource.settings import LOCK_TIMEOUT_S, StreamReadSettings
from datasource.spark_versions import PROCESS_ALL, SAYS_LIMITS
from datasource.store_opening import open_store
from spark_stream.pipelines.config import JSTREAM, Pipeline, Source, is_glob
from spark_stream.pipelines.errors import DefinitionError
from spark_stream.pipelines.kafka import read_topics
from storage_core import Store
from storage_core.errors import NotAStoreError, NotFoundError
from storage_core.live.server import StreamInfo
from storage_core.metadata.state import StreamState
from storage_core.subjects import filters_overlap, is_literal, matches
from storage_core.suggestions import instead

_LIMITS = {
    "max_messages": "maxOffsetsPerTrigger",
    "max_bytes": "maxBytesPerTrigger",
    "max_blocks": "maxFilesPerTrigger",
}


def read_stream(spark: SparkSession, source: Source, ends: bool, starts: Mapping[str, int] | None = None) -> DataFrame:
    """Return the messages of the source as a streaming DataFrame.

    `ends`: the query is to end at what is there when it starts.
    `starts`: begin at these sequences, and without the consumer; for a second query beside the pipeline's own.
    """
    if source.is_kafka:
        return read_topics(spark, source)
    options = common_options(source)
    if not SAYS_LIMITS:
        options["trigger"] = PROCESS_ALL if ends else "processingTime"
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
    options = {"stream": json.dumps(source.streams), "failOnDataLoss": str(source.fails_on_data_loss).lower()}
    if source.subject:
        options["subject"] = source.subject
    if source.lock_timeout:
        options["lockTimeout"] = source.lock_timeout
    return options | source.options


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


def take_over_stores(pipeline: Pipeline) -> None:
    """Let this host write every store that the pipeline writes: that of its consumer, of its sink, of dead letters."""
    source, sink, letters = pipeline.source, pipeline.sink, pipeline.dead_letters
    written = [source.volumes] if source.consumer and source.is_store else []
    written += [sink.volumes] if sink.kind == JSTREAM else []
    written += [letters.volumes] if letters is not None else []
    for volumes in {tuple(paths): paths for paths in written}.values():
        open_store(volumes, LOCK_TIMEOUT_S, take_over=True).close()


def check_stores(pipeline: Pipeline) -> list[str]:
    """Look whether the stores have the streams that the file names; return what the source has now, for people.

    Raises DefinitionError and NotFoundError naming the key, and StorageError if a store cannot be opened.
    """
    source, sink, letters = pipeline.source, pipeline.sink, pipeline.dead_letters
    read = set[bytes]()  # incarnations: one store may be named by several paths
    if source.is_kafka:
        lines = [f"source: topics {', '.join(source.streams)} of {', '.join(source.volumes)}"]
    elif source.is_live:
        lines = [f"source: stream {info.name}, {info.message_count} messages" for info in live_streams(source)]
    else:
        read, lines = _look(pipeline)
    if letters is not None:
        if _check_target(pipeline, "dead_letters", letters.volumes, letters.stream, letters.subject, True) in read:
            again = f"{letters.stream!r} is read by the source: a bad message would come again"
            raise DefinitionError(pipeline.file, "dead_letters.stream", again)
    if sink.kind == JSTREAM and sink.stream:
        if _check_target(pipeline, "sink", sink.volumes, sink.stream, sink.subject, False) in read:
            raise DefinitionError(pipeline.file, "sink.stream", f"{sink.stream!r} is the source: it would never end")
    return lines or [f"source: no stream matches {', '.join(source.streams)} yet"]


def _look(pipeline: Pipeline) -> tuple[set[bytes], list[str]]:
    """Return the incarnations of the streams that the source reads, and what there is to say of them."""
    source = pipeline.source
    with _opened(pipeline, "source", source.volumes) as store:
        if source.consumer:
            store.check_host()
        names = matching(store, source)
        for name in source.streams:
            if name not in names and not is_glob(name):
                _refuse_stream(pipeline, "source.stream", name, store)
        read = {store.stream_state(name).incarnation for name in names}
        return read, [line for name in names for line in _described(store, name, source.subject)]


def live_streams(source: Source) -> list[StreamInfo]:
    """Return the streams of running servers that the source reads, as they are now."""
    from datasource.live_reader import infos_of, servers_of

    settings = StreamReadSettings.parse({"path": json.dumps(source.volumes), **common_options(source)})
    servers = servers_of(settings)
    servers.check()
    return list(servers.retrying(lambda connection: infos_of(connection, settings, must_match=False)).values())


def ends_of(source: Source, streams: Mapping[str, StreamState]) -> dict[str, int]:
    """Return the sequence that each stream of the source gives next; nothing for Kafka's topics.

    `streams`: what `streams_of` returned. Servers are asked.
    """
    if source.is_live:
        return {info.name: info.next_sequence for info in live_streams(source)}
    return {name: stream.next_sequence for name, stream in streams.items()}


def _opened(pipeline: Pipeline, place: str, volumes: list[str]) -> Store:
    try:
        return open_store(volumes, LOCK_TIMEOUT_S, read_only=True)
    except NotAStoreError as error:
        raise NotAStoreError(f"{pipeline.file}: {place}.store: {error}") from error


def _described(store: Store, name: str, subject: str) -> list[str]:
    stream = store.stream(name)
    count = stream.state().message_count
    lines = [f"source: stream {name}, {count} message{'' if count == 1 else 's'}"]
    taken = stream.config.subjects
    if subject and not any(filters_overlap(subject, pattern) for pattern in taken):
        lines.append(f"note: source.subject {subject!r} matches nothing that {name} takes, {', '.join(taken)}")
    return lines


def streams_of(source: Source) -> dict[str, StreamState]:
    """Return the streams of a store that the source reads, by name, as they are now."""
    if not source.is_store:
        return {}
    with open_store(source.volumes, LOCK_TIMEOUT_S, read_only=True) as store:
        return {name: store.stream_state(name) for name in matching(store, source)}


def matching(store: Store, source: Source) -> list[str]:
    """Return the streams of the store that the source reads."""
    return sorted(name for name in store.streams() if any(fnmatchcase(name, stream) for stream in source.streams))


def _check_target(
    pipeline: Pipeline, place: str, volumes: list[str], name: str, subject: str, needs_subject: bool
) -> bytes:
    """Return the incarnation of a stream that is there, and takes the subject that is given or needs none."""
    with _opened(pipeline, place, volumes) as store:
        store.check_host()
        if name not in store.streams():
            _refuse_stream(pipeline, f"{place}.stream", name, store)
        stream = store.stream_state(name)
    subjects = stream.config.subjects
    key, taken = f"{place}.subject", ", ".join(subjects)
    if subject and not any(matches(pattern, subject) for pattern in subjects):
        raise DefinitionError(pipeline.file, key, f"stream {name} takes {taken}, not {subject}")
    if needs_subject and not subject and not (len(subjects) == 1 and is_literal(subjects[0])):
        raise DefinitionError(pipeline.file, key, f"is missing: stream {name} takes {taken}")
    return stream.incarnation


def _refuse_stream(pipeline: Pipeline, key: str, name: str, store: Store) -> NoReturn:
    known = store.streams()
    near = instead(name, sorted(known))
    reason = f"no stream {name!r} in {store.label}, and a pipeline makes none (jstream apply does){near}"
    raise NotFoundError(f"{pipeline.file}: {key}: {reason}")
