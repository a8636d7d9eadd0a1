"""Rows of many streams in one task: a process at the usual limit of open files writes them all, in their order."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import pickle, resource, sys
import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema
from datasource import source
from storage_core import Store

root, streams, limit, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
store = Store.create([f"{root}/v{number}" for number in range(3)])
for number in range(streams):
    store.add_stream({"name": f"S{number}", "subjects": [f"s{number}"], "num_replicas": 3})
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
data = [b"%d" % row for row in range(rows)]
table = pa.table({"stream": [f"S{row * 7919 % streams}" for row in range(rows)], "data": pa.array(data, pa.binary())})
options = CaseInsensitiveDict({"path": ",".join(map(str, store.paths))})
writer = source.writer(options, from_arrow_schema(table.schema), False)
tasks = [table.slice(0, rows // 2), table.slice(rows // 2)]
messages = [pickle.loads(pickle.dumps(writer)).write(iter(one.to_batches(max_chunksize=1000))) for one in tasks]
assert not any(block.failures for message in messages for block in message.blocks)
blocks = [block.partition for message in messages for block in message.blocks]
assert len(blocks) == 2 * streams, len(blocks)
writer.commit(messages)
expected = {}
for row in range(rows):
    expected.setdefault(row * 7919 % streams, []).append(b"%d" % row)
for number in range(streams):
    got = store.stream(f"S{number}").read(columns=["data"]).read_all()["data"].to_pylist()
    assert got == expected[number], number
"""


@pytest.mark.parametrize(("streams", "limit", "rows"), [(120, 256, 20_000), (1_000, 1_024, 8_000)])
def test_a_task_writes_to_more_streams_than_it_may_open_files(
    tmp_path: Path, streams: int, limit: int, rows: int
) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(streams), str(limit), str(rows)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


EXHAUSTED = """
import os, resource, sys
import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema
from datasource import source
from storage_core import Store
from storage_core.errors import ProcessError

root, left = sys.argv[1], int(sys.argv[2])
store = Store.create([f"{root}/v{number}" for number in range(3)])
store.add_stream({"name": "S", "num_replicas": 3})
table = pa.table({"stream": ["S"] * 3, "data": [b"1", b"2", b"3"]})
options = CaseInsensitiveDict({"path": ",".join(map(str, store.paths))})
writer = source.writer(options, from_arrow_schema(table.schema), False)
writer.write(iter(table.to_batches()))  # what is imported late is imported now
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for descriptor in taken[:left]:
    os.close(descriptor)
try:
    writer.write(iter(table.to_batches()))
except ProcessError as error:
    assert "128 open files" in str(error), error
else:
    sys.exit("nothing was refused")
for descriptor in taken[left:]:
    os.close(descriptor)
message = writer.write(iter(table.to_batches()))
assert not any(block.failures for block in message.blocks)
writer.commit([message])
assert store.stream("S").last_sequence == 3
assert not [event for event in store.events() if event["kind"] in ("retired", "behind")]
"""


@pytest.mark.parametrize("left", [0, 1, 2])
def test_no_volume_is_blamed_for_a_limit_of_the_process(tmp_path: Path, left: int) -> None:
    command = [sys.executable, "-c", EXHAUSTED, str(tmp_path), str(left)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
