"""Pipelines into streams, Parquet and the console; and what is told before anything is read."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_stream.pipelines.errors import DefinitionError
from spark_stream.pipelines.session import check_catalogue

pytestmark = pytest.mark.spark

CONSOLE = 'kind = "console"\n'


@pytest.fixture
def active(etl: Any, spark: SparkSession, make_active: Callable[[SparkSession], None]) -> Any:
    make_active(spark)
    return etl


def test_rows_go_to_another_stream_once(active) -> None:
    etl = active
    etl.store.add_stream({"name": "PAID", "subjects": ["paid.>"]})
    etl.define('kind = "jstream"\nstream = "PAID"\nsubject = "paid.eu"\n', letters=True)
    text = etl.file.read_text().replace("SELECT sequence, id, amount", "SELECT id AS data, headers")
    etl.file.write_text(text)
    etl.publish(1, 2, 3)
    etl.say(b"nonsense")
    assert etl.run()["rows_out"] == 3
    etl.forget_commit()
    assert etl.run()["rows_in"] == 4
    stored = etl.store.stream("PAID").read(columns=["subject", "data"]).read_all().to_pylist()
    assert [one["data"] for one in stored] == [b"o1", b"o2", b"o3"] and stored[0]["subject"] == "paid.eu"
    assert len(etl.letters()) == 1


def test_a_batch_that_a_copy_of_the_checkpoint_cuts_elsewhere_stops_the_run(active) -> None:
    etl = active
    etl.store.add_stream({"name": "PAID"})
    etl.define('kind = "jstream"\nstream = "PAID"\n', letters=True)
    etl.file.write_text(etl.file.read_text().replace("SELECT sequence, id, amount", "SELECT id AS data"))
    etl.publish(1)
    etl.run()
    copy = etl.folder.with_name("copy")  # of all but the store: what another host has
    shutil.copytree(etl.folder, copy, ignore=shutil.ignore_patterns("volume"))
    etl.publish(2)
    etl.say(b"nonsense")
    etl.run()
    for path in [*etl.folder.iterdir()]:
        if path.name != "volume":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(copy, etl.folder, dirs_exist_ok=True)
    etl.publish(3)
    etl.say(b"more nonsense")
    assert "is in stream 'PAID' with other content: stored are 1 messages" in etl.fail()

    def stored() -> list[bytes]:
        return etl.store.stream("PAID").read(columns=["data"]).read_all()["data"].to_pylist()

    assert (stored(), [data for data, _ in etl.letters()]) == ([b"o1", b"o2"], [b"nonsense"])
    etl.file.write_text(etl.file.read_text().replace('"ORDERS"\n', '"ORDERS"\non_data_loss = "continue"\n', 1))
    etl.run()
    etl.publish(4)
    etl.run()
    assert (stored(), [data for data, _ in etl.letters()]) == ([b"o1", b"o2", b"o4"], [b"nonsense"])
    events = etl.store.events(kind="batch_again")
    assert [event["stream"] for event in events] == ["PAID", "DEAD"]


def test_parquet_is_written_by_sparks_file_sink_and_dead_letters_by_a_query_beside(active, spark: SparkSession) -> None:
    etl = active
    etl.define('kind = "parquet"\npath = "table"\n', 'start = 2\nconsumer = "files"', letters=True)
    etl.publish(1, 2, 3)
    etl.say(b"nonsense")
    summary = etl.run()
    assert (summary["rows_in"], summary["rows_out"], summary["rows_dead"]) == (3, 2, 1)
    etl.forget_commit()
    etl.say(b"more nonsense")
    etl.publish(5)
    assert etl.run()["to"] == {"ORDERS": 7}
    assert sorted(row["sequence"] for row in spark.read.parquet(etl.table).collect()) == [2, 3, 6]
    assert [data for data, _ in etl.letters()] == [b"nonsense", b"more nonsense"]
    assert "would not see what a backfill adds" in etl.fail("--from", 1, "--to", 2, verb="backfill")


def test_the_console_shows_rows_before_the_summary(active) -> None:
    active.define(CONSOLE + "rows = 2\n")
    active.publish(1, 2, 3)
    code, out, err = active.command("run", active.file)
    assert code == 0, err
    assert out.splitlines()[:3] == ["sequence  id  amount", "       1  o1       1", "       2  o2       2"]
    assert active.summary(out)["rows_out"] == 3


def test_check_prints_the_columns_and_changes_nothing(active) -> None:
    active.define(CONSOLE, letters=True)
    active.publish(1)
    code, out, err = active.command("check", active.file)
    assert (code, out.splitlines()) == (0, ["sequence bigint", "id string", "amount int"]), err
    assert "source: stream ORDERS, 1 message" in err and "orders: OK" in err
    assert not (active.folder / "checkpoint").exists() and not (active.folder / "checkpoint.etl").exists()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("FROM messages", "FROM mesages", "transform.sql: AnalysisException: [TABLE_OR_VIEW_NOT_FOUND]"),
        ("amount INT", "amount INTT", "payload.schema: is not DDL that Spark takes"),
        ('stream = "ORDERS"', 'stream = "ODERS"', "source.stream: no stream 'ODERS'"),
        ('stream = "DEAD"', 'stream = "DED"', "dead_letters.stream: no stream 'DED'"),
        (
            'stream = "DEAD"',
            'stream = "DEAD"\nsubject = "x.y"',
            "dead_letters.subject: stream DEAD takes dead.orders, not x.y",
        ),
        ('stream = "DEAD"', 'stream = "ORDERS"\nsubject = "orders.dead"', "'ORDERS' is read by the source"),
        ('kind = "console"', 'kind = "jstream"\nstream = "ORDERS"', "sink.stream: 'ORDERS' is the source"),
        ('kind = "console"', 'kind = "jstream"\nstream = "DEAD"', "transform: rows for a stream: unknown column 'id'"),
        ('kind = "console"', 'kind = "jstream"', "sink.stream: is missing, and rows have no column stream"),
        (
            'kind = "console"',
            'kind = "jstream"\nstream = "DEAD"\nsubject = "x.y"',
            "sink.subject: stream DEAD takes dead.orders, not x.y",
        ),
        ("amount INT", "amount MAP<INT, INT>", "payload.schema: cannot be parsed: DATATYPE_MISMATCH"),
    ],
)
def test_check_tells_what_would_not_run(active, before: str, after: str, told: str) -> None:
    active.define(CONSOLE, letters=True)
    text = active.file.read_text()
    assert before in text
    active.file.write_text(text.replace(before, after))
    err = active.fail(verb="check", code=1 if "no stream" in told else 2)
    assert f"{active.file}: " in err and told in err


def test_a_table_of_a_catalogue_that_ends_with_the_run_is_refused(spark: SparkSession, pipeline: Any) -> None:
    with pytest.raises(DefinitionError, match=r"sink\.table: 'orders' would be forgotten when this run ends"):
        check_catalogue(spark, pipeline('[sink]\nkind = "delta"\ntable = "orders"'))
    check_catalogue(spark, pipeline('[sink]\nkind = "delta"\ntable = "unity.shop.orders"'))


def test_a_second_run_says_who_holds_the_checkpoint(active) -> None:
    active.define(CONSOLE)
    hold = (
        "import sys\nfrom spark_stream.pipelines.state import PipelineState\n"
        "with PipelineState(sys.argv[1]).lock('etl run'):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", hold, str(active.folder / "checkpoint")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        err = active.fail()
        assert f"is held by etl run, process {process.pid} on {os.uname().nodename}, since 2" in err
        assert f"process {process.pid}" in active.status()["running"]
        process.kill()
    assert active.status()["running"] is None


def test_a_lost_range_stops_the_run_with_its_sequences_and_is_passed_when_told(active) -> None:
    etl = active
    etl.define(CONSOLE)
    etl.publish(1, 2)
    etl.run()
    etl.store.delete_stream("ORDERS")
    etl.store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    etl.publish(3)
    (stream,) = etl.status()["streams"]
    assert (stream["position"], stream["end"], stream["lag"]) == (None, 2, 1)
    told = etl.fail()
    assert "DataLossError" in told and 'with on_data_loss = "continue" below [source]' in told
    etl.define(CONSOLE, 'on_data_loss = "continue"')
    assert etl.run()["rows_in"] == 1


def test_a_row_that_names_the_source_as_its_stream_is_refused(active) -> None:
    etl = active
    etl.define('kind = "jstream"\n')
    etl.file.write_text(etl.file.read_text().replace("SELECT sequence, id, amount", "SELECT stream, id AS data"))
    etl.publish(1)
    code, out, err = etl.command("run", etl.file, "--metrics-textfile", etl.folder / "etl.prom")
    assert code == 1 and "the column stream of a row names ORDERS, the source: it would never end" in err
    assert etl.summary(out)["error"] in err and etl.store.stream("ORDERS").state().message_count == 1
    assert 'jstream_etl_last_run_success{pipeline="orders"} 0.0' in (etl.folder / "etl.prom").read_text()
