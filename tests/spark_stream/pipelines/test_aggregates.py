"""Pipelines with windows and aggregates: results are those of a query over all messages, however runs end."""

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_stream.pipelines import run

LETTERS = '[dead_letters]\nstream = "DEAD"\n'

pytestmark = [pytest.mark.spark, pytest.mark.delta]

SUMS = """
checkpoint = "checkpoint"
[source]
store = "volume"
stream = "ORDERS"
max_messages = 4
[payload]
format = "json"
schema = "at TIMESTAMP, country STRING, amount BIGINT"
[transform]
sql = "{sql}"
{transform}
[sink]
{sink}
[spark]
"spark.sql.shuffle.partitions" = 2
"""
COLUMNS = "window.start AS start, country, sum(amount) AS amount"
WINDOWS = f"SELECT {COLUMNS} FROM messages GROUP BY window(at, '10 minutes'), country"
TOTALS = "SELECT country, sum(amount) AS amount FROM messages GROUP BY country"
WATERMARK = 'watermark = { at = "10 minutes" }'
UPSERT = 'kind = "delta"\npath = "table"\nmode = "upsert"\n'
APPEND = 'kind = "parquet"\npath = "table"\n'
UPDATE = f'{UPSERT}output_mode = "update"\nkey = '


def define(etl: Any, sink: str, sql: str = WINDOWS, transform: str = WATERMARK) -> None:
    etl.file.write_text(SUMS.format(sql=sql, sink=sink, transform=transform))


def order(etl: Any, minute: int, country: str | None, amount: int) -> None:
    at = f"2026-11-21T{minute // 60:02}:{minute % 60:02}:00Z"
    etl.say(json.dumps({"at": at, "country": country, "amount": amount}).encode())


def rows(frame: Any) -> list[tuple[str, str, int]]:
    return sorted((f"{row['start']:%H:%M}", row["country"], row["amount"]) for row in frame.collect())


@pytest.mark.parametrize("kind", ["parquet", "jstream"])
def test_a_window_is_stored_once_when_the_watermark_has_passed_it(kind, delta_etl, delta_spark: SparkSession) -> None:
    etl = delta_etl
    sink, sql = f'kind = "{kind}"\npath = "table"', WINDOWS
    if kind == "parquet":
        sink += "\n" + LETTERS
    if kind == "jstream":
        etl.store.add_stream({"name": "SUMS"})
        sink = 'kind = "jstream"\nstream = "SUMS"'
        sql = f"SELECT to_json(struct({COLUMNS})) AS data FROM messages GROUP BY window(at, '10 minutes'), country"
    define(etl, sink, sql)

    def stored() -> list[tuple[str, str, int]]:
        if kind == "jstream":
            found = [
                json.loads(data)
                for data in etl.store.stream("SUMS").read(columns=["data"]).read_all()["data"].to_pylist()
            ]
            return sorted((one["start"][11:16], one["country"], one["amount"]) for one in found)
        return rows(delta_spark.read.parquet(etl.table))

    for minute, country, amount in ((1, "DE", 1), (2, "FR", 2), (12, "DE", 4), (3, "DE", 8), (31, "DE", 16)):
        order(etl, minute, country, amount)
    if kind == "parquet":
        etl.say(b"nonsense")
    summary = etl.run()
    dead = int(kind == "parquet")
    counts = [summary[f"rows_{which}"] for which in ("in", "out", "dead", "late")]
    assert counts == [5 + dead, 3, dead, 0]
    first = [("00:00", "DE", 9), ("00:00", "FR", 2), ("00:10", "DE", 4)]
    assert stored() == first
    etl.forget_commit()  # as if killed when the batch was stored, before Spark noted that
    order(etl, 4, "DE", 32)  # too late: its window is stored
    order(etl, 33, "DE", 64)
    order(etl, 55, "DE", 128)
    summary = etl.run()
    assert (summary["rows_late"], stored()) == (1, [*first, ("00:30", "DE", 80)])
    assert [data for data, _ in etl.letters()] == [b"nonsense"] * dead


def totals(spark: SparkSession, etl: Any) -> list[tuple[str | None, int]]:
    return [tuple(row) for row in spark.read.format("delta").load(etl.table).orderBy("country").collect()]


def test_an_upsert_keeps_the_result_of_each_group(
    delta_etl, delta_spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    etl = delta_etl
    define(etl, f'{UPDATE}"country"', TOTALS, "")
    for country, amount in (("DE", 1), ("FR", 2), (None, 3), ("DE", 4), ("DE", -25), ("IT", 6)):  # a sum may fall
        order(etl, 1, country, amount)
    # The run fails when its batch is in the table; the next one brings the same batch, and more.
    plain = run.write_rows

    def failing(*arguments: Any, **named: Any) -> None:
        plain(*arguments, **named)
        raise OSError("the power failed")

    with monkeypatch.context() as patch:
        patch.setattr(run, "write_rows", failing)
        assert "the power failed" in etl.fail()
    summary = etl.run()
    assert (summary["rows_in"], summary["batches"]) == (6, 2)
    assert totals(delta_spark, etl) == [(None, 3), ("DE", -20), ("FR", 2), ("IT", 6)]
    etl.forget_commit()
    order(etl, 1, "FR", 100)
    etl.run()
    stored = [(None, 3), ("DE", -20), ("FR", 102), ("IT", 6)]
    assert totals(delta_spark, etl) == stored
    define(etl, f'{UPDATE}"country"', TOTALS.replace("FROM messages", "FROM messages WHERE amount > 0"), "")
    assert "[JSTREAM_CHECKPOINT] transform.sql has changed, and checkpoint" in etl.fail()
    define(etl, f'{UPDATE}"country"', "SELECT country, amount FROM messages", "")
    assert "output_mode" in etl.fail(code=2)
    define(etl, 'kind = "console"', "SELECT country, amount FROM messages", "")
    assert "the transformation has changed, and checkpoint" in etl.fail()
    define(etl, f'{UPDATE}"country"', TOTALS.replace(" FROM", "\\n  FROM"), "")
    assert etl.run()["batches"] == 0 and totals(delta_spark, etl) == stored


def test_complete_makes_the_table_equal_to_the_result(delta_etl, delta_spark: SparkSession) -> None:
    etl = delta_etl
    sink = f'{UPSERT}output_mode = "complete"\nkey = "country"'
    define(etl, sink, TOTALS + " HAVING sum(amount) > 5", "")
    for country, amount in (("DE", 10), ("FR", 20), ("IT", 3)):
        order(etl, 1, country, amount)
    etl.run()
    delta_spark.sql(f"INSERT INTO delta.`{etl.table}` VALUES ('XX', 1)")
    order(etl, 1, "DE", -10)
    order(etl, 1, "IT", 4)
    etl.run()
    assert totals(delta_spark, etl) == [("FR", 20), ("IT", 7)]
    order(etl, 1, "FR", -20)
    order(etl, 1, "IT", -7)
    etl.run()
    assert totals(delta_spark, etl) == []


def test_a_window_is_a_key_by_its_start_or_end(delta_etl, delta_spark: SparkSession) -> None:
    etl = delta_etl
    functions = etl.folder / "sums.py"
    functions.write_text(
        "from pyspark.sql import functions as F\n\n\ndef sums(messages):\n"
        '    groups = messages.groupBy(F.window("at", "10 minutes"), "country")\n'
        '    sums = groups.agg(F.sum("amount").alias("amount"))\n'
        '    return sums.select(F.col("window.end").alias("start"), "country", "amount")\n'
    )
    define(etl, f'{UPSERT}output_mode = "update"\nkey = ["start", "country"]')
    text = etl.file.read_text()
    etl.file.write_text(text.replace(f'sql = "{WINDOWS}"', 'python = "sums.py:sums"'))
    order(etl, 1, "DE", 1)
    order(etl, 2, "DE", 2)
    order(etl, 40, "DE", 4)
    assert etl.run()["ok"]
    order(etl, 41, "DE", 8)
    assert etl.run()["ok"]
    assert rows(delta_spark.read.format("delta").load(etl.table)) == [("00:10", "DE", 3), ("00:50", "DE", 12)]
    functions.write_text(functions.read_text().replace("10 minutes", "5 minutes"))
    assert "transform.python has changed" in etl.fail()


@pytest.mark.parametrize(
    ("sql", "transform", "sink", "told"),
    [
        (WINDOWS, 'watermark = { att = "1m" }', APPEND, "transform.watermark.att: no column 'att' is in the view"),
        (WINDOWS, 'watermark = { amount = "1m" }', APPEND, "transform.watermark.amount: 'amount' is BIGINT"),
        ("SELECT * FROM messages", WATERMARK, APPEND, "transform.watermark: means nothing: the transformation has no"),
        ("SELECT * FROM messages", "", f'{UPDATE}"country"', "sink.output_mode: 'update' is for aggregates"),
        (WINDOWS, "", APPEND, "has an aggregate, which is final only with a window and [transform] watermark"),
        (TOTALS, WATERMARK, APPEND, "has an aggregate, which is final only in a window: GROUP BY window(at"),
        ("SELECT DISTINCT country FROM messages", "", APPEND, "transform: has a DISTINCT"),
        ("SELECT *, row_number() OVER (ORDER BY at) AS n FROM messages", "", APPEND, "a window function"),
        ("SELECT a.* FROM messages a JOIN messages b USING (sequence)", "", UPDATE + '"x"', "sink.key: no column 'x'"),
        ("SELECT * FROM messages WHERE amount > (SELECT avg(amount) FROM messages)", "", APPEND, "subquery"),
        (WINDOWS, "", f'{UPDATE}"country"', "sink.key: lacks window: window.start, by which the aggregate is grouped"),
        (TOTALS, "", f'{UPDATE}["country", "amount"]', "sink.key: 'amount' is not what the aggregate is grouped by"),
        (TOTALS + " HAVING sum(amount) > 5", "", f'{UPDATE}"country"', "has a condition on its aggregate (HAVING)"),
    ],
)  # fmt: skip
def test_check_refuses_what_would_give_other_results(delta_etl, sql: str, transform: str, sink: str, told: str) -> None:
    define(delta_etl, sink, sql, transform)
    assert told in delta_etl.fail(verb="check", code=2)
