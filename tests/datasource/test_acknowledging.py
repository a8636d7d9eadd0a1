"""The listener that acknowledges batches when they are finished: what it does with progress, then in Spark."""

import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import datasource
from datasource import acknowledging, known_stores, stream_offsets
from datasource.acknowledging import Acknowledger
from datasource.stream_offsets import StreamOffset
from storage_core import Store
from storage_core.store.consumers.query import QueryReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Make = Callable[..., pa.Table]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of its own, in which nothing was noted."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setattr(known_stores, "_remembered", {})
    return place


@dataclass
class Heard:
    """A listener, and the events of queries that read ORDERS of one store."""

    store: Store
    listener: Acknowledger

    def offset(self, sequence: int, consumer: str | None) -> str:
        at = QueryReader(self.store).at("ORDERS", sequence)
        return json.dumps(stream_offsets.encode({"ORDERS": StreamOffset(self.store.id, at, None, consumer)}))

    def progress(self, *end_offsets: str | None) -> None:
        """Say that a batch is finished that ends there, source by source."""
        sources = [SimpleNamespace(endOffset=one) for one in end_offsets]
        self.listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(batchId=7, sources=sources)))  # type: ignore[arg-type]

    def low_watermark(self, consumer: str = "etl") -> int:
        found = self.store.stream("ORDERS").consumer(consumer).info()
        return int(found["ack_floor"]["stream_seq"])


@pytest.fixture
def heard(store: Store, orders: Make) -> Heard:
    store.stream("ORDERS").append(orders(100))
    for name in ("etl", "other"):
        store.stream("ORDERS").add_consumer({"name": name})
    known_stores.remember(store.id, store.paths)
    return Heard(store, Acknowledger())


def test_finished_batch_is_acknowledged_in_one_entry_and_once(heard: Heard) -> None:
    before = heard.store.view().index
    for _ in range(3):
        heard.progress(heard.offset(41, "etl"))
    assert heard.store.view().index == before + 1
    assert (heard.low_watermark("etl"), heard.low_watermark("other")) == (40, 0)


def test_offset_as_spark_connect_reports_it_before_4_2_is_acknowledged(heard: Heard) -> None:
    heard.progress(str(json.loads(heard.offset(41, "etl"))))
    assert heard.low_watermark() == 40


def test_late_progress_moves_no_consumer_back(heard: Heard) -> None:
    heard.progress(heard.offset(41, "etl"))
    heard.progress(heard.offset(11, "etl"))
    assert heard.low_watermark() == 40


def test_query_without_a_consumer_acknowledges_for_nobody(heard: Heard) -> None:
    heard.progress(heard.offset(41, None))
    assert (heard.low_watermark("etl"), heard.low_watermark("other")) == (0, 0)


def test_two_sources_of_one_query_have_consumers_of_their_own(heard: Heard) -> None:
    heard.progress(heard.offset(41, "etl"), None, heard.offset(21, "other"))
    assert (heard.low_watermark("etl"), heard.low_watermark("other")) == (40, 20)


@pytest.mark.parametrize(
    "offset",
    [None, "", "null", "7", "[]", "not json", '{"logOffset": 0}', '{"topic": {"0": 5}}', '{"A": {"store": "x"}}', "{}"],
)
def test_offsets_of_other_sources_are_none_of_its_business(
    heard: Heard, offset: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "jstream"):
        heard.progress(offset, heard.offset(41, "etl"))
    assert heard.low_watermark() == 40
    assert caplog.text == ""


def test_store_that_cannot_be_found_is_told_once_and_found_later(
    heard: Heard, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(folder / next(folder.iterdir()).name)
    with caplog.at_level(logging.WARNING, "jstream"):
        for sequence in (11, 21):
            heard.progress(heard.offset(sequence, "etl"))
    assert caplog.text.count("a finished batch is not acknowledged yet, the query does it with its next one") == 1
    assert f"nothing on this machine says where store {heard.store.id.hex()} is" in caplog.text
    known_stores._remembered.clear()
    known_stores.remember(heard.store.id, heard.store.paths)
    heard.progress(heard.offset(31, "etl"))
    assert heard.low_watermark() == 30


def test_another_store_at_the_path_is_left_alone(
    heard: Heard, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Store.create(tmp_path / "other")
    known_stores.remember(heard.store.id, other.paths)
    with caplog.at_level(logging.WARNING, "jstream"):
        heard.progress(heard.offset(41, "etl"))
    assert f"is store {other.id.hex()}, not {heard.store.id.hex()}" in caplog.text
    assert heard.low_watermark() == 0


def test_stream_that_is_gone_hurts_nobody(heard: Heard) -> None:
    end = heard.offset(41, "etl")
    heard.store.delete_stream("ORDERS")
    heard.progress(end)


def test_event_of_an_unknown_shape_is_logged_and_not_raised(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jstream"):
        heard.listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(batchId=7, sources=None)))  # type: ignore[arg-type]
    assert "batch 7 was not acknowledged when it was finished" in caplog.text


@pytest.mark.spark
def test_consumer_of_a_query_with_a_long_interval_hears_of_its_batch_at_once(
    spark: "SparkSession", store: Store, orders: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyspark_jstream

    assert pyspark_jstream.acknowledge is datasource.acknowledge
    monkeypatch.setattr(tempfile, "tempdir", None)  # as the source's process has it
    store.stream("ORDERS").append(orders(100))
    datasource.acknowledge(spark)
    installed = dict(acknowledging._installed)
    datasource.acknowledge(spark)
    assert acknowledging._installed == installed
    query = (
        spark.readStream.format("jstream").options(stream="ORDERS", consumer="etl").load(store.paths[0])
        .writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="1 hour").start()
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and query.exception() is None:
            consumers = store.view().state.stream("ORDERS").consumers  # type: ignore[union-attr]
            if "etl" in consumers and store.stream("ORDERS").consumer("etl").info()["ack_floor"]["stream_seq"] == 100:
                break
            query.awaitTermination(0.2)
        assert query.exception() is None
        assert store.stream("ORDERS").consumer("etl").info()["num_pending"] == 0
        assert store.stream("ORDERS").consumer("etl").info()["ack_floor"]["stream_seq"] == 100
    finally:
        query.stop()
