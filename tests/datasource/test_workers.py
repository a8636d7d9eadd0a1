"""What happens once in a process that Spark forked, and never in one of the user's."""

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from datasource.workers import settle
from storage_core import Store

ROOT = Path(__file__).resolve().parents[2]
SETTLE = """
import gc, sys
from importlib.machinery import ModuleSpec
sys.modules["__main__"].__spec__ = ModuleSpec({name!r}, None)
from datasource.workers import settle
settle()
first = gc.get_freeze_count()
kept = [[one] for one in range(1000)]
settle()
print(first, gc.get_freeze_count())
"""


def frozen(name: str) -> tuple[int, int]:
    """Return how much the collector leaves out after the first and the second call, where `name` is the main module."""
    told = subprocess.run([sys.executable, "-c", SETTLE.format(name=name)], cwd=ROOT, capture_output=True, check=True)
    first, second = map(int, told.stdout.split())
    return first, second


def test_a_process_that_spark_forked_is_settled_once() -> None:
    first, second = frozen("pyspark.daemon")
    assert first > 1000
    assert second <= first


@pytest.mark.parametrize("name", ["__main__", "pyspark.worker"])
def test_other_processes_are_left_alone(name: str) -> None:
    assert frozen(name) == (0, 0)
    count = gc.get_freeze_count()
    settle()
    assert gc.get_freeze_count() == count


PLAN = """
import pickle, sys
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from datasource import source
from storage_core.schema import READ_SCHEMA
options = CaseInsensitiveDict({"path": sys.argv[1], "stream": "ORDERS", "startingOffsets": "earliest"})
if sys.argv[2] == "batch":
    reader = source.reader(options, from_arrow_schema(READ_SCHEMA))
    partitions = reader.partitions()
else:
    reader = source.stream_reader(options, from_arrow_schema(READ_SCHEMA))
    start = reader.initialOffset()
    partitions = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
assert "pandas" not in sys.modules
sys.stdout.buffer.write(pickle.dumps((reader, partitions)))
"""
READ = """
import pickle, sys
reader, partitions = pickle.load(sys.stdin.buffer)
print(sum(batch.num_rows for partition in partitions for batch in reader.read(partition)), "pandas" in sys.modules)
"""


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_neither_planning_nor_a_task_loads_pandas(store: Store, orders: Callable[..., pa.Table], kind: str) -> None:
    pytest.importorskip("pandas")  # pyarrow loads it for what is made of Python's values, where it is installed
    store.stream("ORDERS").append(orders(100))
    store.stream("ORDERS").remove([3, 50])
    plan = [sys.executable, "-c", PLAN, store.paths[0], kind]
    planned = subprocess.run(plan, cwd=ROOT, capture_output=True, check=True)
    read = subprocess.run([sys.executable, "-c", READ], cwd=ROOT, input=planned.stdout, capture_output=True, check=True)
    assert read.stdout.split() == [b"98", b"False"]
