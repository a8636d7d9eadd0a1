"""The templates that `jstream init` writes, which are conf/: each of them is good for what it is for."""

from pathlib import Path

import pytest

from spark_stream.pipelines.config import load_pipeline
from spark_stream.pipelines.definitions import load_definitions

CONF = Path(__file__).resolve().parents[3] / "conf"


def test_the_pipeline_reads_a_stream_through_a_consumer_that_the_definitions_make(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JSTREAM_ETL", raising=False)
    pipeline = load_pipeline(CONF / "pipelines" / "orders.toml", "/data/disk-1")
    streams = load_definitions(CONF / "streams.toml").streams
    assert pipeline.source.consumer in streams[pipeline.source.streams[0]].consumers
    assert pipeline.dead_letters is not None and pipeline.dead_letters.stream in streams
    assert pipeline.checkpoint == str(CONF.parent / "build" / "etl" / "checkpoints" / "orders")


def test_settings_of_spark_have_a_name_and_a_value() -> None:
    for line in (CONF / "spark-defaults.conf").read_text().splitlines():
        if line and not line.startswith("#"):
            name, value = line.split(None, 1)
            assert name.startswith("spark.") and value
