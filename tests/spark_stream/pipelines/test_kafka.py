"""Topics of Kafka as the source of a pipeline: what its file may say; docs/guide/from-kafka.md with a real broker."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import kafka
from spark_stream.pipelines.beginnings import Beginnings
from spark_stream.pipelines.config import Pipeline, load_pipeline
from spark_stream.pipelines.errors import CheckpointError, DefinitionError
from spark_stream.pipelines.kafka import CONNECTOR
from spark_stream.pipelines.run import prepare
from spark_stream.pipelines.state import PipelineState, sequences_of
from spark_stream.pipelines.status import status
from storage_core import Store

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "guide" / "from-kafka.md"
SOURCE = '[source]\nstore = "kafka://localhost:1"\nstream = "orders"\n'
CONSOLE = '[sink]\nkind = "console"\n'

# In one process of its own, since the connector has to be there when its session is made.
SCRIPT = """
import json, os, sys
sys.path.insert(0, os.environ["TESTS"])
from conftest import set_environment
set_environment()
from pyspark.sql import SparkSession
from spark_stream.pipelines.api import run_pipeline

address, jars, file, back = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.jars", jars).config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1").config("spark.sql.session.timeZone", "UTC").getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")

def send(first, end):
    rows = spark.range(first, end, 1, 1).selectExpr(
        "'orders' AS topic", "CAST(id % 2 AS INT) AS partition", "CAST(concat('k', id) AS BINARY) AS key",
        "IF(id % 3 = 0, NULL, CAST(CAST(id AS STRING) AS BINARY)) AS value",
        "IF(id % 5 = 0, NULL, array(named_struct('key', 'trace', 'value', "
        "CAST(CAST(id AS STRING) AS BINARY)))) AS headers",
    )
    writer = rows.write.format("kafka").option("kafka.bootstrap.servers", address)
    writer.option("includeHeaders", "true").save()

def show(summary):
    print(json.dumps(summary.to_json()))

send(0, 50)
show(run_pipeline(file))
send(50, 70)
show(run_pipeline(file))
show(run_pipeline(file))
exec(open(back).read())
topic = spark.read.format("kafka").option("kafka.bootstrap.servers", address).option("includeHeaders", "true")
texts = ("CAST(key AS STRING)", "CAST(value AS STRING)")
rows = topic.option("subscribe", "orders-again").load().selectExpr(*texts).collect()
print(json.dumps(sorted([row.key, row.value] for row in rows)))
"""


@pytest.mark.spark
@pytest.mark.skipif(not kafka.connector_jars(), reason="Kafka's JARs are not here: python scripts/kafka_jars.py")
def test_topic_becomes_a_stream_and_a_topic_again(tmp_path: Path) -> None:
    file, _, back = re.findall(r"^```\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    with Store.create(tmp_path / "warehouse") as store:
        store.add_stream({"name": "ORDERS", "subjects": ["orders.*"]})
    with kafka.broker(tmp_path / "kafka", 2) as address:
        text = file.replace("broker:9092", address).partition("[spark]")[0]
        (tmp_path / "kafka.toml").write_text(text)
        (tmp_path / "back.py").write_text(back.replace("broker:9092", address))
        jars = ",".join(map(str, kafka.connector_jars()))
        command = [sys.executable, "-c", SCRIPT, address, jars, str(tmp_path / "kafka.toml"), str(tmp_path / "back.py")]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TESTS": str(ROOT / "tests")}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
    assert done.returncode == 0, done.stderr[-3_000:]
    first, second, third, again = [json.loads(line) for line in done.stdout.splitlines() if line[:1] in "[{"]
    assert (first["from"], first["to"]) == ({"orders/0": 0, "orders/1": 0}, {"orders/0": 25, "orders/1": 25})
    assert (second["from"], second["to"]) == (first["to"], {"orders/0": 35, "orders/1": 35})
    assert (first["rows_in"], second["rows_in"], third["rows_in"], third["batches"]) == (50, 20, 0, 0)
    with Store.open(tmp_path / "warehouse", read_only=True) as store:
        rows = store.stream("ORDERS").read().read_all().to_pylist()
    places = {(number % 2, number // 2): number for number in range(70)}
    assert len(rows) == len(places)
    for row in rows:
        *own, key, place = [(header["key"], header["value"]) for header in row["headers"]]
        topic, partition, offset = place[1].decode().split("/")
        number = places.pop((int(partition), int(offset)))
        assert (topic, row["subject"], key) == ("orders", f"orders.{partition}", ("Kafka-Key", b"k%d" % number))
        assert own == ([] if number % 5 == 0 else [("trace", b"%d" % number)])
        assert row["data"] == (None if number % 3 == 0 else b"%d" % number)
    assert [key for key, _ in again] == sorted(f"k{number}" for number in range(70))
    loaded = load_pipeline(tmp_path / "kafka.toml")
    streams = {row["stream"]: (row["position"], row["lag"]) for row in status(loaded)["streams"]}
    assert streams == {"orders/0": (35, None), "orders/1": (35, None)}


def test_session_without_the_connector_is_refused_before_a_query_starts(
    spark: SparkSession, pipeline: Callable[..., Pipeline]
) -> None:
    with pytest.raises(DefinitionError, match=f"source.store.*lacks Spark's connector.*{CONNECTOR}:{spark.version}"):
        prepare(pipeline(SOURCE), spark)


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        (f"{SOURCE}lock_timeout = '5s'\n{CONSOLE}", "source.lock_timeout"),
        (f"{SOURCE}consumer = 'a'\n{CONSOLE}", "source.consumer"),
        (f"{SOURCE}subject = 'a'\n{CONSOLE}", "source.subject"),
        (f"{SOURCE}max_bytes = 5\n{CONSOLE}", "source.max_bytes"),
        (f"{SOURCE}start = 5\n{CONSOLE}", "an offset per partition"),
        (f"{SOURCE}[source.options]\nuser = 'a'\n{CONSOLE}", "source.options.user"),
        (f"{SOURCE}[source.options]\n'kafka.bootstrap.servers' = 'a'\n{CONSOLE}", "what source.store says"),
        (f"{SOURCE}[payload]\ncolumn = 'key'\n{CONSOLE}", "payload.column"),
        ('[source]\nstore = "kafka://a b"\nstream = "A"\n' + CONSOLE, "no address of a broker"),
        ('[source]\nstore = "kafka://a, b"\nstream = "A"\n' + CONSOLE, "each address begins with its scheme"),
        ('[source]\nstore = "kafka://a, nats://b"\nstream = "A"\n' + CONSOLE, "each address begins with its scheme"),
        ('[source]\nstore = "nats://a, b"\nstream = "A"\n' + CONSOLE, "each address begins with its scheme"),
        (f'{SOURCE}[sink]\nkind = "jstream"\nstore = "kafka://localhost:1"\nstream = "A"', "sink.store"),
        (
            f'{SOURCE}[sink]\nkind = "parquet"\npath = "table"\n[dead_letters]\nstream = "D"\nstore = "volume"',
            "dead_letters",
        ),
    ],
)
def test_keys_that_do_not_fit_kafka_are_refused(pipeline: Callable[..., Pipeline], tables: str, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        pipeline(tables)


def test_brokers_stand_in_place_of_volumes(pipeline: Callable[..., Pipeline]) -> None:
    made = pipeline('[source]\nstore = "kafka://a,kafka://[::1]:9093"\nstream = "A*"\n[source.options.kafka]\nx = 1')
    assert made.source.volumes == ["kafka://a:9092", "kafka://[::1]:9093"]
    assert made.source.options == {"kafka.x": "1"}


def test_checkpoint_of_a_query_over_another_kind_of_source_is_refused(
    tmp_path: Path, pipeline: Callable[..., Pipeline]
) -> None:
    for kind, offset in (("topics", {"orders": {"0": 5}}), ("streams", {"ORDERS": {"sequence": 5}})):
        for folder, text in (("offsets", f"v1\n{{}}\n{json.dumps(offset)}"), ("commits", "v1\n{}")):
            (tmp_path / kind / folder).mkdir(parents=True)
            (tmp_path / kind / folder / "0").write_text(text)
        (tmp_path / kind / "metadata").write_text('{"id": "query"}')
    of_kafka, of_a_store = pipeline(SOURCE, name="kafka"), pipeline(name="store")
    Beginnings(PipelineState(str(tmp_path / "topics")), of_kafka).check(False)
    Beginnings(PipelineState(str(tmp_path / "streams")), of_a_store).check(False)
    for checkpoint, wrong in (("topics", of_a_store), ("streams", of_kafka)):
        with pytest.raises(CheckpointError, match="give the pipeline another checkpoint"):
            Beginnings(PipelineState(str(tmp_path / checkpoint)), wrong).check(True)


def test_offsets_of_topics_are_positions_of_their_partitions() -> None:
    assert sequences_of({"orders": {"0": 5, "1": 0}, "ORDERS": {"sequence": 7}}) == {
        "orders/0": 5, "orders/1": 0, "ORDERS": 7,
    }  # fmt: skip
    for offset in ({"orders": {"x": 5}}, {"orders": 5}, {"orders": {"0": "x"}}, [1]):
        with pytest.raises(ValueError, match="is no offset"):
            sequences_of(offset)
