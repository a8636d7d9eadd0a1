"""conf/spark-pipeline.yml, run twice by Spark's own `spark-pipelines` over a real stream."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pyarrow.dataset as dataset
import pyspark
import pytest

from datasource.spark_versions import SPARK
from storage_core import Store

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(SPARK < (4, 1), reason="Spark 4.0 has no Declarative Pipelines"),
]

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"


def run(place: Path) -> None:
    environment = {
        **os.environ,
        "JSTREAM_STORE": str(place / "shop"),
        "PYTHONPATH": str(ROOT),
        "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.catalogImplementation=hive pyspark-shell",
        "SPARK_CONF_DIR": str(place / "conf"),
    }
    command = [str(PROGRAM), "run", "--spec", "conf/spark-pipeline.yml"]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Run is COMPLETED" in done.stdout + done.stderr


def stored(place: Path, table: str) -> list[dict[str, object]]:
    return dataset.dataset(place / "spark-warehouse" / table, format="parquet").to_table().to_pylist()


def order(number: int, event: str) -> bytes:
    return b'{"order_id": "o%d", "event": "%s", "amount": 10.5, "currency": "EUR"}' % (number, event.encode())


@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="needs pip install 'pyspark-jstream[pipelines]'")
def test_a_declarative_pipeline_reads_what_is_new_each_time_it_is_run(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "conf", tmp_path / "conf", ignore=shutil.ignore_patterns("__pycache__"))
    spec = tmp_path / "conf" / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///var/tmp/jstream/pipelines/orders", (tmp_path / "state").as_uri()))
    with Store.create(tmp_path / "shop") as store:
        stream = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
        for number in range(3):
            stream.publish("orders.paid.eu", order(number, "paid"))
        stream.publish("orders.paid.eu", b"not an order")
        run(tmp_path)
        assert sorted(row["sequence"] for row in stored(tmp_path, "orders")) == [1, 2, 3]
        stream.publish("orders.paid.us", order(9, "paid"))
        run(tmp_path)
    assert sorted(row["sequence"] for row in stored(tmp_path, "orders")) == [1, 2, 3, 5]
    paid = {(row["region"], row["currency"]): row["orders"] for row in stored(tmp_path, "paid_by_region")}
    assert paid == {("eu", "EUR"): 3, ("us", "EUR"): 1}
