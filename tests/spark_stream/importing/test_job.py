"""Imports on Spark: tasks write the parts, the driver brings the streams."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from spark_stream.cli.app import app
from spark_stream.importing import job
from storage_core import Store
from storage_core.errors import DataLossError
from storage_core.foreign import open_foreign, read_foreign_slice
from storage_core.store.ingest import server_streams
from storage_core.store.ingest.from_server import ImportRequest, import_streams

pytestmark = pytest.mark.spark
DATA = Path(__file__).resolve().parents[2] / "data"
COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")


def expected(source: Any, stream: str) -> list[dict[str, Any]]:
    return [
        row
        for part in source.plan(stream)
        for batch in read_foreign_slice(part, COLUMNS, lambda _: None)
        for row in batch.to_pylist()
    ]


def test_parts_are_written_by_tasks_and_come_in_order(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_streams, "PART_SIZE", 1)
    monkeypatch.setattr(job, "WAVE", 1)
    source = open_foreign(DATA / "nats" / "plain-multiblock" / "store")
    (name,) = source.streams()
    told: list[tuple[int, int]] = []
    with Store.create([tmp_path / volume for volume in "abc"]) as store:
        run = partial(job.run_parts, spark)
        report = import_streams(store, source, ImportRequest(), lambda done, total: told.append((done, total)), run)
        assert report["ok"]
        assert store.stream(name).read(columns=COLUMNS).read_all().to_pylist() == expected(source, name)
        assert store.verify()["ok"]
        assert len(store.stream_state(name).blocks) == len(source.plan(name)) == told[-1][0] == told[-1][1]


def test_what_a_task_fails_with_is_raised_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    source = open_foreign(DATA / "stan" / "damaged-truncated-msgs" / "store", "stan")
    with Store.create(tmp_path / "volume") as store:
        with pytest.raises(DataLossError, match=r"--truncate-bad-eof"):
            import_streams(store, source, ImportRequest(on_data_loss="fail"), run_parts=partial(job.run_parts, spark))
        assert store.streams() == []


def test_the_command_runs_on_the_session_that_there_is(spark: SparkSession, tmp_path: Path) -> None:
    Store.create(tmp_path / "volume").close()
    shutil.copytree(DATA / "nats" / "consumers" / "store", tmp_path / "source")
    words = ["import", "nats", str(tmp_path / "source"), "--spark", "--json"]
    done = CliRunner().invoke(app, words, env={"JSTREAM_STORE": str(tmp_path / "volume")})
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["streams"][0]["messages"] == 60
    assert spark.range(1).count() == 1, "it is still there"
