"""Pipelines into real Delta tables: every message once, whatever is run again, and in whatever order."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors.exceptions.captured import SparkRuntimeException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_stream.pipelines.identity import Identity
from spark_stream.pipelines.tables import append_to_delta, newest, upsert

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for tests/mutants

from mutants.pipelines.pipeline_mutants import UPSERT_MUTANTS, made  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.delta]

APPEND = 'kind = "delta"\npath = "table"\n'
UPSERT = APPEND + 'mode = "upsert"\nkey = "id"\norder_by = "sequence"\n'


def rows(spark: SparkSession, etl: Any) -> list[tuple[Any, ...]]:
    table = spark.read.format("delta").load(etl.table)
    return sorted(tuple(row) for row in table.select("sequence", "id", "amount").collect())


def versions(etl: Any) -> int:
    return len(list((etl.folder / "table" / "_delta_log").glob("*.json")))


def test_messages_are_appended_once_and_bad_ones_are_dead_letters(delta_etl, delta_spark: SparkSession) -> None:
    etl = delta_etl
    etl.define(APPEND, 'consumer = "warehouse"', letters=True)
    etl.publish(1, 2)
    etl.say(b"nonsense")
    etl.publish(3)
    summary = etl.run("--metrics-textfile", etl.folder / "etl.prom")
    counts = {key: summary[key] for key in ("ok", "rows_in", "rows_out", "rows_dead", "from", "to", "error")}
    assert counts == {
        "ok": True, "rows_in": 4, "rows_out": 3, "rows_dead": 1, "from": {"ORDERS": 1}, "to": {"ORDERS": 5},
        "error": None,
    }  # fmt: skip
    assert rows(delta_spark, etl) == [(1, "o1", 1), (2, "o2", 2), (4, "o3", 3)]
    data, headers = etl.letters()[0]
    assert data == b"nonsense"
    assert headers["Jstream-Reason"] == "payload is not JSON"
    assert (headers["Jstream-Stream"], headers["Jstream-Sequence"], headers["Jstream-Subject"]) == (
        "ORDERS", "3", "orders.new",
    )  # fmt: skip
    assert 'jstream_etl_last_run_rows_dead{pipeline="orders"} 1.0' in (etl.folder / "etl.prom").read_text()
    (stream,) = etl.status()["streams"]
    assert stream == {
        "stream": "ORDERS", "position": 5, "end": 5, "lag": 0,
        "consumer": {"name": "warehouse", "ack_floor": 4, "num_pending": 0},
    }  # fmt: skip
    # Again with nothing new; then as if that run had been killed after it stored, before Spark noted that.
    assert etl.run()["batches"] == 0
    etl.forget_commit()
    etl.publish(4)
    etl.say(b"nonsense, too")
    before = versions(etl)
    again = etl.run()
    assert (again["from"], again["rows_in"], again["batches"]) == ({"ORDERS": 1}, 6, 2)
    assert [row[0] for row in rows(delta_spark, etl)] == [1, 2, 4, 5]
    assert (versions(etl), len(etl.letters())) == (before + 1, 2)


def test_without_dead_letters_deltas_own_sink_takes_the_rows_and_a_bad_message_stops_the_run(
    delta_etl, delta_spark: SparkSession
) -> None:
    etl = delta_etl
    etl.define(APPEND)
    etl.publish(1, 2, 3)
    assert etl.run()["rows_out"] == 3
    etl.forget_commit()
    summary = etl.run()
    # Delta has the batch, and does not even read it again.
    assert (summary["batches"], summary["rows_in"], len(rows(delta_spark, etl))) == (1, 0, 3)
    log = (etl.folder / "table" / "_delta_log" / f"{0:020}.json").read_text()
    assert summary["query"] in log  # the sink's own identity of the query
    # Given dead letters, the pipeline goes another way, and under that identity.
    etl.forget_commit()
    etl.define(APPEND, letters=True)
    assert (etl.run()["rows_in"], len(rows(delta_spark, etl))) == (3, 3)
    etl.define(APPEND)
    etl.say(b"nonsense")
    code, out, err = etl.command("run", etl.file)
    assert code == 1
    assert "error: [JSTREAM_RUN_FAILED] stream ORDERS, sequence 4: payload is not JSON" in err
    summary = etl.summary(out)
    assert (summary["ok"], summary["rows_out"]) == (False, 0) and "sequence 4" in summary["error"]
    assert len(rows(delta_spark, etl)) == 3 and etl.status()["last_run"]["ok"] is False
    # The pipeline is given dead letters, and goes on from where it stopped.
    etl.define(APPEND, letters=True)
    etl.publish(4)
    assert etl.run()["rows_dead"] == 1
    assert [row[0] for row in rows(delta_spark, etl)] == [1, 2, 3, 5]


def test_an_upsert_keeps_the_newest_row_of_each_key_whatever_order_rows_come_in(
    delta_etl, delta_spark: SparkSession
) -> None:
    etl = delta_etl
    etl.define(UPSERT, "max_messages = 6", letters=True)
    etl.publish(*range(10))
    etl.say(b"nonsense")
    summary = etl.run()
    assert (summary["rows_in"], summary["rows_out"], summary["rows_dead"]) == (11, 10, 1) and summary["batches"] > 1
    newest = [(6, "o0", 5), (7, "o1", 6), (8, "o2", 7), (9, "o3", 8), (10, "o4", 9)]
    assert rows(delta_spark, etl) == newest
    etl.forget_commit()
    before = versions(etl)
    etl.run()
    assert (rows(delta_spark, etl), versions(etl), len(etl.letters())) == (newest, before, 1)
    # A backfill of old rows, twice: they are older than what is there, and the bad message is known.
    for _ in range(2):
        summary = etl.run("--from", 1, "--to", 100, verb="backfill")
        assert (summary["mode"], summary["rows_in"], summary["to"]) == ("backfill", 10, {"ORDERS": 12})
    assert (rows(delta_spark, etl), len(etl.letters())) == (newest, 1)
    # A row that went missing from the table comes back by a backfill of another range.
    delta_spark.sql(f"DELETE FROM delta.`{etl.table}` WHERE id = 'o4'")
    etl.run("--from", 9, "--to", 11, verb="backfill")
    assert rows(delta_spark, etl) == newest


def test_a_key_that_is_null_stops_an_upsert_with_advice(pipeline: Any, delta_spark: SparkSession) -> None:
    batch = delta_spark.createDataFrame([(1, None, 1)], "sequence BIGINT, id STRING, amount INT")
    with pytest.raises(SparkRuntimeException, match="sink.key: id is null in a row: leave such rows out"):
        newest(batch, pipeline(f"[sink]\n{UPSERT}").sink).select("sequence").collect()


def test_a_table_of_the_catalogue_takes_appends_and_upserts(
    delta_etl, delta_spark: SparkSession, pipeline: Any
) -> None:
    etl = delta_etl
    etl.define('kind = "delta"\ntable = "etl_appended"\npartition_by = "id"\n')
    etl.publish(1, 1)
    etl.run()  # by Delta's own sink
    batch = delta_spark.createDataFrame([(3, "o1", 7), (4, "o2", 8)], "sequence BIGINT, id STRING, amount INT")
    append_to_delta(batch, pipeline('[sink]\nkind = "delta"\ntable = "etl_appended"').sink, Identity("test", 1))
    assert sorted(row["amount"] for row in delta_spark.table("etl_appended").collect()) == [1, 1, 7, 8]
    upserts = UPSERT.replace("path =", "table =").replace('"table"', '"etl_upserted"')
    sink = pipeline(f"[sink]\n{upserts}partition_by = 'id'\n").sink
    for number, amount in ((1, 8), (2, 9)):
        upsert(batch.withColumn("amount", F.lit(amount)), sink, Identity("test", number))
    assert [row["amount"] for row in delta_spark.table("etl_upserted").collect()] == [9, 9]
    assert delta_spark.sql("DESCRIBE DETAIL etl_upserted").first()["partitionColumns"] == ["id"]


def test_a_backfill_appends_what_lies_before_the_beginning_and_nothing_twice(
    delta_etl, delta_spark: SparkSession
) -> None:
    etl = delta_etl
    etl.define(APPEND, "start = 7", letters=True)
    etl.publish(*range(1, 6))
    etl.say(b"nonsense")
    etl.publish(*range(7, 11))
    assert "the pipeline has not begun to read ORDERS" in etl.fail("--from", 1, "--to", 5, verb="backfill")
    etl.define(UPSERT, letters=True)  # a bad message would be a dead letter twice
    assert "the pipeline has not begun to read ORDERS" in etl.fail("--from", 1, "--to", 9, verb="backfill")
    etl.define(APPEND, "start = 7", letters=True)
    assert "ends before it begins" in etl.fail("--from", 5, "--to", 5, verb="backfill")
    assert etl.run()["from"] == {"ORDERS": 7}
    assert "an append would store some twice. Take --to 7" in etl.fail("--from", 1, "--to", 9, verb="backfill")
    for _ in range(2):
        assert etl.run("--from", 1, "--to", 4, verb="backfill")["rows_in"] == 3
    overlapping = etl.fail("--from", 3, "--to", 7, verb="backfill")
    assert "ORDERS [1, 4) was backfilled" in overlapping and "would store some of it twice" in overlapping
    assert etl.run("--from", 4, "--to", 7, verb="backfill")["rows_dead"] == 1
    assert [row[0] for row in rows(delta_spark, etl)] == [1, 2, 3, 4, 5, 7, 8, 9, 10]
    assert len(etl.letters()) == 1 and len(etl.status()["backfills"]) == 2


def test_a_backfill_goes_by_time_and_is_refused_where_rows_depend_on_their_batch(delta_etl) -> None:
    etl = delta_etl
    etl.define(UPSERT)
    etl.publish(1, 2, 3)
    time = json.loads(json.dumps(etl.store.stream("ORDERS").get(2).to_json()))["time"]
    assert etl.run("--from", time, "--to", "0s", verb="backfill")["from"] == {"ORDERS": 2}
    assert "there are no messages in that range" in etl.fail("--from", 50, "--to", 60, verb="backfill")
    text = etl.file.read_text()
    etl.file.write_text(text.replace("id, amount FROM messages", "id, CAST(rand() AS INT) AS amount FROM messages"))
    assert "the transformation has something random" in etl.fail("--from", 1, "--to", 3, verb="backfill")


def test_a_checkpoint_that_was_lost_is_told_before_rows_are_stored_twice(delta_etl, delta_spark: SparkSession) -> None:
    import shutil

    etl = delta_etl
    etl.define(APPEND)
    etl.publish(1, 2)
    query = etl.run()["query"]
    shutil.rmtree(etl.folder / "checkpoint")
    told = etl.fail()
    assert f"is gone: query {query} had it" in told and "--new-checkpoint" in told
    assert len(rows(delta_spark, etl)) == 2
    assert etl.run("--new-checkpoint")["rows_in"] == 2
    # An older copy of the checkpoint: batch 0 has other messages then, and Delta would take it for stored.
    for name in ("commits", "offsets"):
        shutil.rmtree(etl.folder / "checkpoint" / name)
    assert "is an older copy: its newest batch is -1, and batch 0 was stored" in etl.fail()
    etl.file.rename(etl.folder / "others.toml")
    code, _, err = etl.command("run", etl.folder / "others.toml")
    assert code == 1 and "is that of pipeline 'orders', and this one is 'others'" in err


def test_columns_that_do_not_fit_the_table_are_told_before_anything_is_read(
    delta_etl, delta_spark: SparkSession
) -> None:
    etl = delta_etl
    delta_spark.sql(f"CREATE TABLE delta.`{etl.table}` (sequence BIGINT, id STRING, size INT) USING delta")
    etl.define(APPEND)
    etl.publish(1)
    text = etl.file.read_text()
    etl.file.write_text(text.replace("id, amount FROM", "id, CAST(amount AS STRING) AS size FROM"))
    assert "column 'size' is string, and int in the table: cast it" in etl.fail(verb="check", code=2)
    etl.file.write_text(text)
    assert "'amount' is no column of the table; with [sink.options] mergeSchema = true" in etl.fail(code=2)
    etl.define(UPSERT + "options = { mergeSchema = true }\n")
    delta_spark.sql(f"INSERT INTO delta.`{etl.table}` VALUES (0, 'o1', 7)")
    etl.run()
    found = delta_spark.read.format("delta").load(etl.table).collect()
    assert [row.asDict() for row in found] == [{"sequence": 1, "id": "o1", "size": 7, "amount": 1}]
    etl.define(UPSERT)
    assert "column 'size' of the table does not come out of the transformation" in etl.fail(code=2)


def check_upsert(pipeline: Any, delta_spark: SparkSession) -> None:
    """Upsert two batches: rows of one order, without any, and older ones than the table has."""
    sink = pipeline('[sink]\nkind = "delta"\npath = "table"\nmode = "upsert"\nkey = "id"\norder_by = "rank"\n').sink
    columns = "sequence BIGINT, id STRING, rank INT, m MAP<STRING, INT>"
    for number, batch in enumerate(
        [
            [(1, "a", 1, {}), (2, "b", 0, {}), (3, "a", 0, {}), (4, "b", 0, {}), (5, "c", None, {})],
            [(2, "b", 0, {}), (6, "c", None, {}), (7, "d", None, {})],  # an older row of the same order, and none
        ]
    ):
        upsert(delta_spark.createDataFrame(batch, columns), sink, Identity("test", number))
    table = delta_spark.read.format("delta").load(sink.path).collect()
    assert sorted((row["id"], row["sequence"]) for row in table) == [("a", 1), ("b", 4), ("c", 6), ("d", 7)]


def test_rows_of_one_order_are_told_apart_by_their_sequence_here_and_in_the_table(
    pipeline: Any, delta_spark: SparkSession
) -> None:
    check_upsert(pipeline, delta_spark)


@pytest.mark.parametrize("mistake", sorted(UPSERT_MUTANTS))
def test_a_known_mistake_of_an_upsert_is_noticed(mistake: str, pipeline: Any, delta_spark: SparkSession) -> None:
    with made(mistake), pytest.raises(AssertionError):
        check_upsert(pipeline, delta_spark)
