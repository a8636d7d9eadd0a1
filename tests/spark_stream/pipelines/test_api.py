"""A pipeline from Python: what `jstream etl run` does, with a value in place of output and errors in place of codes."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_jstream import run_pipeline
from spark_stream.pipelines import run
from spark_stream.pipelines.errors import CheckpointHeldError, CheckpointLostError, DefinitionError, RunFailedError
from spark_stream.pipelines.run import Progress
from spark_stream.pipelines.state import PipelineState
from storage_core import Store
from storage_core.errors import NotFoundError

PARQUET = 'kind = "parquet"\npath = "table"'


@pytest.mark.spark
def test_a_pipeline_runs_from_python_as_from_a_shell(etl: Any, spark: SparkSession) -> None:
    etl.define(PARQUET)
    etl.publish(1, 2, 3)
    batches: list[Progress] = []
    summary = run_pipeline(etl.file, watch=batches.append)
    assert (summary.ok, summary.rows_in, summary.rows_out, summary.end) == (True, 3, 3, {"ORDERS": 4})
    assert sum(batch.rows_in for batch in batches) == 3
    assert spark.read.parquet(etl.table).count() == 3
    assert etl.status()["last_run"] == summary.to_json()
    assert run_pipeline(str(etl.file)).rows_in == 0

    etl.say(b"no JSON")
    with pytest.raises(RunFailedError, match="sequence 4: payload is not JSON") as failed:
        run_pipeline(etl.file)
    assert (failed.value.code, failed.value.cause) == ("JSTREAM_RUN_FAILED", None)
    assert not etl.status()["last_run"]["ok"]


@pytest.mark.spark
@pytest.mark.parametrize("sink", [PARQUET, 'kind = "console"'])
def test_a_run_whose_checkpoint_is_taken_over_ends_and_leaves_the_records_alone(
    etl: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    def lost_with_the_first_batch(state: PipelineState) -> None:
        if (state.checkpoint / "offsets" / "0").exists():
            raise CheckpointLostError(state.checkpoint, "process 7 on another host")

    monkeypatch.setattr(PipelineState, "check", lost_with_the_first_batch)
    monkeypatch.setattr(run, "RENEW_S", 0.0)
    etl.define(sink)
    etl.publish(1, 2, 3)
    said = etl.fail("--if-running", "skip")
    assert "[JSTREAM_CHECKPOINT_LOST]" in said and "was taken over by process 7 on another host" in said
    assert spark.streams.active == []
    assert not (etl.folder / "checkpoint.etl" / "runs.json").exists()
    if sink != PARQUET:
        assert not (etl.folder / "checkpoint" / "commits" / "0").exists(), "the batch stores nothing"


@pytest.mark.spark
def test_what_is_to_go_counts_messages_and_not_those_that_were_removed(etl: Any, spark: SparkSession) -> None:
    etl.define(PARQUET, source="max_messages = 2")
    etl.publish(1, 2, 3, 4, 5, 6)
    etl.store.stream("ORDERS").remove([2, 5])
    assert etl.status()["streams"][0]["lag"] == 4
    batches: list[Progress] = []
    run_pipeline(etl.file, watch=batches.append)
    assert [(batch.rows_in, batch.lag) for batch in batches] == [(2, {"ORDERS": 2}), (2, {"ORDERS": 0})]


def test_a_pipeline_that_cannot_start_is_refused_before_spark_is(tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    text = 'checkpoint = "checkpoint"\n[source]\nstream = "ORDERS"\n[sink]\nkind = "console"\n'
    file.write_text(text.replace("console", "consol"))
    with pytest.raises(DefinitionError) as refused:
        run_pipeline(file, tmp_path / "shop")
    assert refused.value.code == "JSTREAM_DEFINITION"
    assert refused.value.fields == {"file": str(file), "key": "sink.kind"}
    file.write_text(text)
    with Store.create(tmp_path / "shop") as store:
        with pytest.raises(NotFoundError, match="ORDERS"):
            run_pipeline(file, [tmp_path / "shop"])
        store.add_stream({"name": "ORDERS"})
        state = PipelineState(str(tmp_path / "checkpoint"))
        with state.lock("a test"), pytest.raises(CheckpointHeldError) as held:
            run_pipeline(file, tmp_path / "shop")
        assert held.value.owner.startswith("a test, process ")
