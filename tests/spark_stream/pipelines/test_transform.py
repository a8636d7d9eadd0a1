"""Transformations: SQL and Python functions over real rows, and what is told when they cannot be."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_stream.pipelines.aggregates import dependence
from spark_stream.pipelines.errors import DefinitionError
from spark_stream.pipelines.transform import load_transform, transform

pytestmark = pytest.mark.spark

FUNCTIONS = """
from dataclasses import dataclass
from pyspark.sql import DataFrame, functions as F

@dataclass
class Price:
    net: float
    def gross(self) -> float:
        return self.net * 1.25

def clean(messages: DataFrame) -> DataFrame:
    gross = F.udf(lambda net: Price(net).gross(), "double")
    return messages.where("amount > 0").withColumn("gross", gross("amount"))

def nothing(messages): return None
def broken(messages): return messages.select("amuont")
"""
SINK = '[sink]\nkind = "delta"\npath = "t"\n'


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(1, "a", 4.0), (2, "b", 0.0)], "sequence long, id string, amount double")


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    return path


def run(made, rows: DataFrame) -> DataFrame:
    return transform(made, load_transform(made), rows)


def test_sql_sees_the_view_messages(pipeline, rows: DataFrame) -> None:
    made = pipeline('[transform]\nsql = "SELECT id, amount * 2 AS twice FROM messages WHERE amount > 0"')
    assert [tuple(row) for row in run(made, rows).collect()] == [("a", 8.0)]


def test_a_function_of_a_file_beside_the_pipeline_may_define_what_workers_run(
    pipeline, rows: DataFrame, functions: Path
) -> None:
    made = pipeline('[transform]\npython = "functions.py:clean"')
    assert [tuple(row) for row in run(made, rows).collect()] == [(1, "a", 4.0, 5.0)]


def test_a_function_of_a_module_is_imported(
    pipeline, rows: DataFrame, functions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions.rename(functions.with_name("jstream_test_functions.py"))
    monkeypatch.syspath_prepend(str(functions.parent))
    made = pipeline('[transform]\npython = "jstream_test_functions:nothing"')
    with pytest.raises(DefinitionError, match=r"transform\.python: returned NoneType, not a DataFrame"):
        run(made, rows)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ('[transform]\npython = "functions.py:cleen"', "has no function 'cleen'; did you mean 'clean'?"),
        ('[transform]\npython = "no_such_module_here:f"', "no_such_module_here: ModuleNotFoundError"),
        ('[transform]\npython = "functions.py:broken"', "transform.python: AnalysisException"),
        ('[transform]\nsql = "SELEC 1"', "transform.sql: ParseException"),
        ('[transform]\nsql = "SELECT * FROM mesages"', "transform.sql: AnalysisException"),
        (
            SINK + 'partition_by = "dya"',
            "sink.partition_by: no column 'dya' comes out of the transformation; there are",
        ),
        (SINK + 'mode = "upsert"\nkey = "idd"\norder_by = "sequence"', "sink.key: no column 'idd' comes out"),
        (SINK + 'mode = "upsert"\nkey = "id"\norder_by = "seqence"', "did you mean 'sequence'?"),
    ],
)
def test_what_cannot_work_names_its_key(pipeline, rows: DataFrame, functions: Path, table: str, told: str) -> None:
    made = pipeline(table)
    with pytest.raises(DefinitionError) as raised:
        run(made, rows)
    assert told in str(raised.value) and "Project [" not in str(raised.value)


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT upper(id) AS id FROM messages WHERE amount > 0", ""),
        ("SELECT explode(array(1, 2)) AS n, current_timestamp() AS t FROM messages", ""),
        ("SELECT id, sum(amount) FROM messages GROUP BY id", "an aggregate"),
        ("SELECT * FROM (SELECT id, row_number() OVER (ORDER BY sequence) AS n FROM messages)", "a window function"),
        ("SELECT DISTINCT id FROM messages", "a DISTINCT"),
        ("SELECT * FROM messages LIMIT 1", "a LIMIT"),
        ("SELECT a.* FROM messages a JOIN messages b USING (sequence)", "a join of messages with messages"),
        ("SELECT * FROM messages JOIN (SELECT max(id) AS id FROM range(3)) USING (id)", ""),
        ("SELECT *, uuid() AS u FROM messages", "something random"),
    ],
)
def test_what_depends_on_several_messages_or_on_chance_is_found(
    pipeline, spark: SparkSession, sql: str, found: str
) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value AS sequence", "'a' AS id", "1.0D AS amount")
    assert dependence(run(pipeline(f'[transform]\nsql = "{sql}"'), stream)) == found
