"""Neither writer nor reader holds more than a few frames, whatever the size of the block.

Measured in a process of its own: Arrow's pool and tracemalloc then know of nothing else, and both give exact peaks.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FRAME_SIZE = 4 << 20

SCRIPT = """
import json, sys, tracemalloc
from pathlib import Path
import numpy as np, pyarrow as pa
from storage_core.block.format import BlockIdentity
from storage_core.block.reader import BlockReader
from storage_core.block.request import FrameRequest
from storage_core.block.writer import BlockWriter
from storage_core.files import OS_FILES
from storage_core.schema import FRAME_SCHEMA, HEADERS_TYPE, READ_FIELDS

codec, data_size, dice, pool = sys.argv[2], int(sys.argv[5]), np.random.default_rng(1), pa.default_memory_pool()

def batch(first, rows):
    data = pa.array([bytes(row) for row in dice.integers(0, 64, (rows, data_size), np.uint8)], pa.binary())
    ids = dice.integers(1, 2**63, (rows, 2), np.uint64)
    columns = [pa.repeat(pa.scalar("a.subject"), rows), pa.array(np.arange(first, first + rows)),
               pa.nulls(rows, HEADERS_TYPE), data]
    return pa.RecordBatch.from_arrays(columns, schema=FRAME_SCHEMA), ids

def work(path, batch_count, batch_rows):
    peaks = {}
    with OS_FILES.create(path) as file:
        writer = BlockWriter(file, BlockIdentity(*(bytes(16),) * 4), codec)
        for number in range(batch_count):
            writer.write(*batch(number * batch_rows, batch_rows))
        summary = writer.finish()
        del writer
        peaks["write"] = pool.max_memory() + tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        reader = BlockReader.open(file)
        rows = sum(batch.num_rows for batch in reader.read(FrameRequest(tuple(READ_FIELDS))))
        assert rows == batch_count * batch_rows == summary.row_count
        assert sum(len(one.sequences) for one in reader.message_ids()) == rows
        assert not list(reader.verify())
        peaks["all"] = pool.max_memory() + tracemalloc.get_traced_memory()[1]
        return {"frames": len(reader.footer.frames.messages), "size": summary.file_size, "peaks": peaks}

work(Path(sys.argv[1] + ".first"), 1, 10)  # what is imported late is imported now
tracemalloc.start()
print(json.dumps(work(Path(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4]))))
"""


def run(path: Path, codec: str, batch_count: int, batch_rows: int, data_size: int) -> tuple[int, int, dict[str, int]]:
    """Return frames, file size, and the peaks in bytes while it was written and over all."""
    command = [sys.executable, "-c", SCRIPT, str(path), codec, str(batch_count), str(batch_rows), str(data_size)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    shown = json.loads(done.stdout)
    return shown["frames"], shown["size"], shown["peaks"]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_peak_memory_is_a_few_frames_whatever_the_block_size(tmp_path: Path, codec: str) -> None:
    few_frames, _, few = run(tmp_path / "few.blk", codec, 12, 1_000, 1_500)
    frames, size, many = run(tmp_path / "many.blk", codec, 40, 1_000, 1_500)
    print(f"{codec}: peak of {few_frames} frames {few}; of {frames} frames, {size >> 20} MiB: {many}")
    assert frames >= 3 * few_frames - 3 > 8
    for phase, peak in many.items():
        assert peak < 5 * FRAME_SIZE, phase
        assert peak < few[phase] + FRAME_SIZE // 4, f"{phase}: more frames need more"


def test_batches_of_one_row_need_no_more(tmp_path: Path) -> None:
    frames, _, peaks = run(tmp_path / "rows.blk", "none", 6_000, 1, 1_500)
    print(f"peak of {frames} frames of single rows: {peaks}")
    assert peaks["all"] < 5 * FRAME_SIZE
