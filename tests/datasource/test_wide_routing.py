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
