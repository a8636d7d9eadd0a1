"""What happens once in a process that Spark forked, and never in one of the user's."""

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from datasource.spark_versions import SAYS_LIMITS
from datasource.workers import freeze_modules
from storage_core import Store
from storage_core.schema import HEADERS_TYPE

ROOT = Path(__file__).resolve().parents[2]
SETTLE = """
import gc, sys
from importlib.machinery import ModuleSpec
sys.modules["__main__"].__spec__ = ModuleSpec({name!r}, None)
from datasource.workers import freeze_modules
before = gc.get_freeze_count()  # Python 3.12 leaves out some by itself
freeze_modules()
first = gc.get_freeze_count() - before
kept = [[one] for one in range(1000)]
freeze_modules()
print(first, gc.get_freeze_count() - before)
"""


def frozen(name: str) -> tuple[int, int]:
    """Return how much the collector leaves out after the first and the second call, where `name` is the main module."""
    told = subprocess.run([sys.executable, "-c", SETTLE.format(name=name)], cwd=ROOT, capture_output=True, check=True)
    first, second = map(int, told.stdout.split())
    return first, second


def test_a_process_that_spark_forked_is_frozen_once() -> None:
    first, second = frozen("pyspark.daemon")
    assert first > 1000
    assert second <= first


@pytest.mark.parametrize("name", ["__main__", "pyspark.worker"])
def test_other_processes_are_left_alone(name: str) -> None:
    assert frozen(name) == (0, 0)
    count = gc.get_freeze_count()
    freeze_modules()
    assert gc.get_freeze_count() == count


PLAN = """
import json, pickle, sys
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema
from datasource.spark_versions import ReadAllAvailable
from datasource import source
from storage_core import Store
from storage_core.schema import HEADERS_TYPE
from storage_core.schema import READ_SCHEMA
opened, really_open = [], Store.open.__func__
def watched(cls, *args, **named):
    opened.append(args)
    return really_open(cls, *args, **named)
Store.open = classmethod(watched)
options = CaseInsensitiveDict({"path": sys.argv[1], "stream": "ORDERS", **json.loads(sys.argv[3])})
if sys.argv[2] == "batch":
    reader = source.reader(options, from_arrow_schema(READ_SCHEMA))
    partitions = reader.partitions()
else:
    reader = source.stream_reader(options, from_arrow_schema(READ_SCHEMA))
    start = reader.initialOffset()
    partitions = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    reader.reportLatestOffset()
print(len(opened), sum(map(sys.modules.__contains__, HEAVY)))
sys.stdout.flush()
sys.stdout.buffer.write(pickle.dumps((reader, partitions)))
"""
READ = """
import pickle, sys
sys.stdin.buffer.readline()
reader, partitions = pickle.load(sys.stdin.buffer)
print(sum(batch.num_rows for partition in partitions for batch in reader.read(partition)))
print(sum(map(sys.modules.__contains__, HEAVY)))
"""
WRITE = """
import json, pickle, sys
import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema
from datasource import source
if sys.argv[1] == "begin":
    options = CaseInsensitiveDict(json.loads(sys.argv[3]))
    columns = from_arrow_schema(pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(sys.argv[2]))))
    made = source.writer(options, columns, False)
elif sys.argv[1] == "task":
    writer = pickle.load(sys.stdin.buffer)
    made = writer, [writer.write(iter([pa.ipc.open_stream(bytes.fromhex(sys.argv[2])).read_next_batch()]))]
else:
    writer, messages = made = pickle.load(sys.stdin.buffer)
    writer.commit(messages)
sys.stdout.buffer.write(pickle.dumps(made))
sys.stdout.flush()
print(sum(map(sys.modules.__contains__, HEAVY)), file=sys.stderr)
"""
# pandas: pyarrow loads it for what is made of Python's values. The others serve what none of these processes does.
HEAVY = ("pandas", "storage_core.foreign", "storage_core.store.ingest", "spark_stream")


def run_in_process(code: str, *arguments: str, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    pytest.importorskip("pandas")
    command = [sys.executable, "-c", f"HEAVY = {HEAVY}\n{code}", *arguments]
    return subprocess.run(command, cwd=ROOT, input=given, capture_output=True, check=True)


SAYS_STARTS = pytest.mark.skipif(not SAYS_LIMITS, reason="Spark before 4.2 does not say where a batch starts")


@pytest.mark.parametrize(
    ("kind", "options", "count"),
    [
        ("batch", {"subject": "orders.1.*", "startingTimestamp": "1970-01-01"}, 32),
        pytest.param("stream", {"startingOffsets": "earliest"}, 98, marks=SAYS_STARTS),
        pytest.param(
            "stream", {"startingOffsets": "earliest", "consumer": "SHIPPING", "takeOver": "true"}, 98, marks=SAYS_STARTS
        ),
    ],
)
def test_reading_opens_the_store_once_and_loads_nothing_heavy(
    store: Store, orders: Callable[..., pa.Table], kind: str, options: dict[str, str], count: int
) -> None:
    store.stream("ORDERS").append(orders(100))
    store.stream("ORDERS").remove([3, 50])
    planned = run_in_process(PLAN, store.paths[0], kind, json.dumps(options))
    assert planned.stdout.splitlines()[0].split() == [b"1", b"0"]
    assert run_in_process(READ, given=planned.stdout).stdout.split() == [b"%d" % count, b"0"]


@pytest.mark.parametrize("options", [{"stream": "ORDERS"}, {"writerId": "shop", "batchId": "7"}])
def test_neither_a_writing_task_nor_its_commit_loads_anything_heavy(store: Store, options: dict[str, str]) -> None:
    headers = pa.array([[("trace", b"1")], None, []], HEADERS_TYPE)
    rows = {
        "stream": ["ORDERS", "ORDERS", "PAYMENTS"] if "stream" not in options else ["ORDERS"] * 3,
        "subject": ["orders.new", "orders.new", "payments.new"] if "stream" not in options else ["orders.new"] * 3,
        "headers": headers,
        "data": ["1", None, "3"],
        "msg_id": ["a", None, "b"],
        "timestamp": pa.array([1, None, 3], pa.timestamp("us", "UTC")),
    }
    store.add_stream({"name": "PAYMENTS", "subjects": ["payments.>"]})
    batch = pa.record_batch(rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    given = json.dumps({"path": store.paths[0], **options})
    done = run_in_process(WRITE, "begin", batch.schema.serialize().to_pybytes().hex(), given)
    task = run_in_process(WRITE, "task", sink.getvalue().to_pybytes().hex(), given=done.stdout)
    commit = run_in_process(WRITE, "commit", given=task.stdout)
    assert [one.stderr.split()[-1] for one in (done, task, commit)] == [b"0"] * 3
    with Store.open(store.paths[0]) as again:
        assert sum(again.stream_state(name).message_count for name in again.streams()) == 3
