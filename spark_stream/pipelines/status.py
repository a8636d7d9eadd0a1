"""How a pipeline stands, without Spark: its checkpoint, how far the stream is ahead, what the last run did."""

from pathlib import Path
from typing import Any

from datasource.settings import LOCK_TIMEOUT_S
from datasource.store_opening import open_store
from spark_stream.pipelines.config import Pipeline, load_pipeline
from spark_stream.pipelines.replay import status_of_replay
from spark_stream.pipelines.source import live_streams, matching
from spark_stream.pipelines.state import BACKFILLS, PipelineState, QueryOffsets
from storage_core import Store
from storage_core.errors import StorageError
from storage_core.live.server import StreamInfo

_UNKNOWN = {"end": None, "lag": None, "consumer": None}


def status(pipeline: Pipeline) -> dict[str, Any]:
    """Return the status for programs and people; nothing is written.

    `position`: the next sequence, null if the pipeline has read none of the stream as it is now. `lag`: messages that
    are there from that one on.
    """
    state = PipelineState(pipeline.checkpoint)
    offsets = state.offsets()
    streams = _streams(pipeline, offsets)
    runs = state.runs()
    return {
        "pipeline": pipeline.name,
        "file": str(pipeline.file),
        "checkpoint": pipeline.checkpoint,
        "running": state.owner() or None,
        "query": offsets.query_id if offsets is not None else None,
        "batch_done": offsets.batch_done if offsets is not None and offsets.batch_done >= 0 else None,
        "batch_open": _open_batch(offsets.batch_planned, offsets.batch_done) if offsets is not None else None,
        "streams": streams,
        "last_run": runs[-1] if runs else None,
        "backfills": state.read(BACKFILLS) or [],
        "replay": status_of_replay(state),
    }


def short_status(file: Path, store: str) -> dict[str, Any]:
    """Return how the pipeline of a file stands, in short: `error` if it cannot be read. Never raises for that."""
    try:
        whole = status(load_pipeline(file, store))
    except (StorageError, OSError, ValueError) as error:
        return {"pipeline": file.stem, "file": str(file), "error": str(error)}
    lags = [stream["lag"] for stream in whole["streams"] if stream["lag"] is not None]
    kept = {key: whole[key] for key in ("pipeline", "file", "running", "last_run")}
    return {**kept, "lag": sum(lags) if lags else None, "error": None}


def messages_to_go(pipeline: Pipeline) -> int:
    """Return how many messages of all streams lie ahead of the pipeline."""
    return sum(stream["lag"] or 0 for stream in _streams(pipeline, PipelineState(pipeline.checkpoint).offsets()))


def _streams(pipeline: Pipeline, offsets: QueryOffsets | None) -> list[dict[str, Any]]:
    done = offsets.done if offsets is not None else {}
    known = offsets.incarnations if offsets is not None else {}
    if pipeline.source.is_kafka:  # where its topics end, Spark alone knows
        return [{"stream": name, "position": done[name], **_UNKNOWN} for name in sorted(done)]
    if pipeline.source.is_live:
        return [_live_stream(info, done.get(info.name)) for info in live_streams(pipeline.source)]
    with open_store(pipeline.source.volumes, LOCK_TIMEOUT_S, read_only=True) as store:
        names = sorted({*matching(store, pipeline.source), *done})
        return [_stream(store, name, done.get(name), known.get(name), pipeline.source.consumer) for name in names]


def _live_stream(info: StreamInfo, position: int | None) -> dict[str, Any]:
    lag = info.next_sequence - max(position or 0, info.first_sequence)
    return {"stream": info.name, "position": position, "end": info.next_sequence, "lag": max(0, lag), "consumer": None}


def _open_batch(planned: int, done: int) -> int | None:
    """Return the batch that is under way, or that the next run begins with."""
    return planned if planned > done else None


def _stream(store: Store, name: str, position: int | None, incarnation: str | None, consumer: str) -> dict[str, Any]:
    stream_status: dict[str, Any] = {"stream": name, "position": position, "end": None, "lag": None, "consumer": None}
    if name not in store.streams():
        return stream_status
    stream = store.stream(name)
    state = stream.state()
    if incarnation and incarnation != stream.incarnation.hex():
        position = stream_status["position"] = None  # it was deleted and made again
    stream_status["end"] = state.next_sequence
    stream_status["lag"] = len(state.shown(position or 0))
    if consumer and consumer in stream.consumers():
        info = stream.consumer(consumer).info()
        stream_status["consumer"] = {
            "name": consumer,
            "ack_floor": info["ack_floor"]["stream_seq"],
            "num_pending": info["num_pending"],
        }
    return stream_status
