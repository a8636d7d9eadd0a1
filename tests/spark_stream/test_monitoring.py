"""Progress of queries: the lag in the log, and their metrics beside those of the store."""

import json
import logging
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from datasource.spark_versions import SAYS_LIMITS
from spark_stream import monitoring
from spark_stream.monitoring import LagListener, StreamLag, progress_of, serve_metrics
from storage_core import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENTRY = {"incarnation": "00" * 16, "store": "11" * 16, "version": 1, "history": [], "lost": []}


def offset(sequence: int, consumer: str | None = None, incarnation: str = "00" * 16) -> str:
    named = {} if consumer is None else {"consumer": consumer}
    return json.dumps({"ORDERS": {**ENTRY, **named, "sequence": sequence, "incarnation": incarnation}})


def progress(*sources: tuple[str | None, str | None], **more: Any) -> Any:
    """Return a query's progress whose sources have these end and latest offsets."""
    made = [SimpleNamespace(endOffset=end, latestOffset=latest) for end, latest in sources]
    said = {"id": "query-1", "runId": "run-1", "name": None, "batchId": 3, "inputRowsPerSecond": float("nan")}
    return SimpleNamespace(sources=made, processedRowsPerSecond=2.0, **{**said, **more})


@pytest.fixture(autouse=True)
def says_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read what progress says as that of the newest Spark, whichever is installed."""
    monkeypatch.setattr(monitoring, "SAYS_LIMITS", True)


@pytest.mark.parametrize(
    ("end", "latest", "lag"),
    [
        (offset(11), offset(31), StreamLag("ORDERS", "", 10, 20)),
        (offset(31, "etl"), offset(31), StreamLag("ORDERS", "etl", 30, 0)),
        (offset(31), offset(11), StreamLag("ORDERS", "", 30, 0)),
        (offset(31), None, StreamLag("ORDERS", "", 30, None)),
        (offset(31), offset(40, incarnation="22" * 16), StreamLag("ORDERS", "", 30, None)),
    ],
)
def test_lag_is_what_lies_between_the_batch_and_the_end(end: str, latest: str | None, lag: StreamLag) -> None:
    assert progress_of(progress((end, latest))).streams == (lag,)


def test_lag_is_unknown_where_spark_reports_the_end_of_the_batch_as_that_of_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(monitoring, "SAYS_LIMITS", False)
    assert progress_of(progress((offset(11), offset(11)))).streams == (StreamLag("ORDERS", "", 10, None),)


@pytest.mark.parametrize("other", [None, "", "no json", "[]", "12", '{"logOffset": 5}', '{"topic": {"0": 5}}'])
def test_other_sources_have_no_lag_here(other: str | None) -> None:
    found = progress_of(progress((other, other), (offset(11), offset(31))))
    assert found.streams == (StreamLag("ORDERS", "", 10, 20),)


def test_each_progress_is_a_line_for_people(caplog: pytest.LogCaptureFixture) -> None:
    listener = LagListener()
    with caplog.at_level(logging.INFO, "jstream"):
        for said in (progress((offset(11, "etl"), offset(31))), progress((offset(31), None), name="nightly")):
            listener.onQueryProgress(SimpleNamespace(progress=said))  # type: ignore[arg-type]
    assert caplog.messages == [
        "query query-1, batch 3: stream ORDERS, consumer etl, is at sequence 10, 20 behind",
        "query nightly, batch 3: stream ORDERS is at sequence 30, an unknown number behind",
    ]


def test_progress_of_an_unknown_shape_is_logged_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jstream"):
        LagListener().onQueryProgress(SimpleNamespace(progress=SimpleNamespace(sources=None)))  # type: ignore[arg-type]
    assert "the progress of a query cannot be read" in caplog.text


def test_query_that_has_ended_is_forgotten() -> None:
    listener = LagListener()
    listener.onQueryProgress(SimpleNamespace(progress=progress((offset(11), offset(31)))))  # type: ignore[arg-type]
    assert [one.query for one in listener.newest()] == ["query-1"]
    listener.onQueryTerminated(SimpleNamespace(runId="run-1"))  # type: ignore[arg-type]
    assert listener.newest() == []


@pytest.mark.spark
def test_metrics_of_a_running_query_are_served_beside_its_stores(spark: "SparkSession", tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    store = Store.create(tmp_path / "store")
    store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    store.stream("ORDERS").append(pa.table({"subject": ["orders.new"] * 30, "data": ["x"] * 30}))
    server = serve_metrics(spark, store.paths[0], port=0)
    query = (
        spark.readStream.format("jstream")
        .options(stream="ORDERS", consumer="etl", maxOffsetsPerTrigger="10", trigger="processingTime")
        .load(store.paths[0]).writeStream.format("noop").queryName("copying")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(processingTime="1 hour").start()
    )  # fmt: skip
    labels = f'{{consumer="etl",name="copying",query="{query.id}",stream="ORDERS"}}'

    def metrics() -> str:
        with urllib.request.urlopen(server.url) as answer:
            return str(answer.read().decode())

    try:
        deadline = time.monotonic() + 120
        while "jstream_query_batch" not in (found := metrics()) and time.monotonic() < deadline:
            assert query.exception() is None
            query.awaitTermination(0.2)
        assert f"jstream_query_sequence{labels} 10.0" in found
        assert (f"jstream_query_lag_messages{labels} 20.0" in found) == SAYS_LIMITS
        assert "jstream_stream_last_sequence" in found
        query.stop()
        while "jstream_query_batch" in (found := metrics()) and time.monotonic() < deadline:
            query.awaitTermination(0.2)
        assert "jstream_query_batch" not in found
        assert "jstream_consumer_ack_floor" in found
    finally:
        query.stop()
        server.close()
