"""Makes an archive of the classes that Spark loads, from which a JVM starts with a third less processor time.

    python tests/harness/class_archive.py FILE

A JVM takes from it what it would have loaded from the same JARs, and nothing if it is another JVM, or these are others.
"""

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = """
checkpoint = "checkpoint"
[source]
store = "volume"
stream = "ORDERS"
[payload]
format = "json"
schema = "id STRING NOT NULL, amount INT"
[transform]
sql = "SELECT sequence, id, amount FROM messages"
[sink]
kind = "{kind}"
path = "table"
[spark]
"spark.master" = "local[2]"
"spark.sql.shuffle.partitions" = 1
"""


def make(file: Path) -> None:
    """Run a pipeline whose JVM writes the archive when it ends; the file is there whole, or not at all."""
    from pyspark_jstream import Store, run_pipeline
    from spark_stream.session import delta_jars

    made = file.with_name(f".{os.getpid()}.jsa")
    options = f"-XX:ArchiveClassesAtExit={made} -Xlog:disable -Xlog:all=error:stderr"  # what is left out, thousands
    os.environ["SPARK_SUBMIT_OPTS"] = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {options}"
    with tempfile.TemporaryDirectory() as folder:
        definition = Path(folder, "orders.toml")
        definition.write_text(PIPELINE.format(kind="delta" if delta_jars() else "parquet"))
        with Store.create(Path(folder, "volume")) as store:
            stream = store.add_stream({"name": "ORDERS"})
            stream.append([{"subject": "ORDERS", "data": b'{"id": "o1", "amount": 1}'}])
        run_pipeline(definition)
    _wait_for_the_jvm(made)
    made.rename(file)


def _wait_for_the_jvm(made: Path) -> None:
    """End the gateway, which makes the JVM write the archive, and wait until it has ended."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(120)
    assert made.stat().st_size


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    make(Path(sys.argv[1]).absolute())
