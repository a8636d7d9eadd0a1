"""A batch of a pipeline is known by its identity and by its rows; what notices every known mistake with them."""

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_stream.pipelines import sinks
from spark_stream.pipelines.backfill import Wanted
from spark_stream.pipelines.identity import Identity
from spark_stream.pipelines.payload import DATA, REASON
from spark_stream.pipelines.run import no_messages
from storage_core import Store

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for tests/mutants

from mutants.pipelines.pipeline_mutants import MUTANTS, made  # noqa: E402

pytestmark = pytest.mark.spark
COLUMNS = "stream string, sequence long, data string"


def check(spark: SparkSession, pipeline: Any, folder: Path) -> None:
    """Hand two batches over, the first of them twice, and other rows under its number; rows and dead letters alike."""
    store = Store.create(folder / "volume")
    store.add_stream({"name": "PAID"})
    to_paid = '[sink]\nkind = "jstream"\nstore = "volume"\nstream = "PAID"\n[dead_letters]\nstream = "PAID"\n'
    orders = pipeline('[source]\nstore = "volume"\nstream = "ORDERS"', to_paid)

    def rows(*numbers: int) -> DataFrame:
        return spark.createDataFrame([(str(number),) for number in numbers], "data string")

    def letters(*numbers: int) -> DataFrame:
        bad = no_messages(spark, orders.source).union(
            spark.createDataFrame(
                [("ORDERS", one, "a") for one in numbers], "stream string, sequence long, data string"
            )
            .withColumns({"subject": F.lit("a"), "timestamp": F.lit(0).cast("timestamp"), "headers": F.lit(None)})
            .selectExpr("stream", "sequence", "subject", "timestamp", "headers", "cast(data as binary)")
        )
        return bad.withColumns({REASON: F.lit("why"), DATA: F.col("data")})

    def stored() -> list[str]:
        table = store.stream("PAID").read(columns=["data"]).read_all()
        return sorted(one.decode() for one in table["data"].to_pylist())

    first, second = Identity("app", 1, "query"), Identity("app", 2, "query")
    sinks.write_rows(rows(1, 2, 3).repartition(2), orders, first)
    sinks.write_rows(rows(3, 1, 2).repartition(1), orders, first)
    with pytest.raises(Exception, match="with other content"):
        sinks.write_rows(rows(1, 2, 4), orders, first)
    sinks.write_rows(rows(4), orders, second)
    assert stored() == ["1", "2", "3", "4"]
    sinks.write_dead_letters(letters(7), orders, first)
    sinks.write_dead_letters(letters(7), orders, first)
    with pytest.raises(Exception, match="with other content"):
        sinks.write_dead_letters(letters(7, 8), orders, first)
    assert stored() == ["1", "2", "3", "4", "a"]
    ranges = [Wanted({"ORDERS": one}, {"ORDERS": "00"}) for one in ((1, 5), (1, 6), (5, 9))]
    assert len({one.identity("orders").app for one in ranges}) == len(ranges)


def test_a_batch_is_stored_once_and_another_under_its_number_is_refused(
    spark: SparkSession, pipeline: Any, tmp_path: Path
) -> None:
    check(spark, pipeline, tmp_path)


@pytest.mark.parametrize("mistake", sorted(MUTANTS))
def test_a_known_mistake_is_noticed(mistake: str, spark: SparkSession, pipeline: Any, tmp_path: Path) -> None:
    try:
        with made(mistake):
            check(spark, pipeline, tmp_path)
    except (Exception, pytest.fail.Exception):
        return
    pytest.fail(f"a pipeline {mistake.replace('_', ' ')}, and nothing noticed")
