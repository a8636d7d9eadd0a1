"""Random damage to whole stores of real servers: no crash, no hang, nothing invented, the source untouched."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.errors import StorageError
from storage_core.foreign import open_foreign, read_foreign_slice
from storage_core.foreign.nats.block import read_block
from storage_core.foreign.nats.columns import build_batch
from storage_core.foreign.nats.record import block_key
from storage_core.foreign.nats.scan import scan_block

COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")
CASES = [
    "deletes-erase",
    "headers-empty-unicode",
    "kill9-stale-index",
    "kv-max1",
    "msg-ttl",
    "old-2-9-10",
    "old-2-12-8",
    "plain-multiblock",
    "s2-compressed",
]
SEED_COUNT = int(os.environ.get("JSTREAM_FUZZ_SEEDS", "60"))


def written(store: Path, stream: str) -> dict[int, dict[str, Any]]:
    """Return every message that the blocks hold, removed or not."""
    rows = {}
    for path in store.rglob("*.blk"):
        block: pa.Buffer = read_block(path).data
        scan = scan_block(block, block_key(stream, int(path.stem)))
        batch = build_batch(stream, block, scan.records.take(scan.messages), COLUMNS)
        rows |= {row["sequence"]: row for row in batch.to_pylist()}
    return rows


def damage(store: Path, seeded: random.Random) -> None:
    for _ in range(seeded.randrange(1, 4)):
        path = seeded.choice(sorted(one for one in store.rglob("*") if one.is_file() and one.name != "meta.sum"))
        data = bytearray(path.read_bytes())
        kind, place = seeded.randrange(6), seeded.randrange(len(data) + 1)
        end = min(len(data), place + seeded.choice([1, 8, 100, 4096]))
        if kind == 0:
            path.unlink()
        elif kind == 1:
            path.write_bytes(data[:place])
        elif kind == 2 and data:
            data[min(place, len(data) - 1)] ^= 1 << seeded.randrange(8)
            path.write_bytes(data)
        elif kind == 3:
            path.write_bytes(data[:place] + bytes(end - place) + data[end:])
        elif kind == 4:
            path.write_bytes(data[:place] + seeded.randbytes(end - place) + data[end:])
        else:
            path.write_bytes(data[:place] + data[end:])


def same(row: dict[str, Any], true: dict[str, Any]) -> bool:
    """Return whether it is the true message, but for the border between subject and payload (see record.py)."""
    moved = row["headers"] is None and row["subject"].encode() + row["data"] == true["subject"].encode() + true["data"]
    return row == true or (moved and row["timestamp_ns"] == true["timestamp_ns"])


@pytest.mark.parametrize("name", CASES)
def test_random_damage_never_crashes_and_never_invents(
    case: Callable[[str], Any], read_only_files: Any, tmp_path: Path, name: str
) -> None:
    one = case(name)
    true = written(one.store, one.stream)
    outcomes = {"read": 0, "refused": 0}
    for seed in range(SEED_COUNT // len(CASES) + 1):
        store = tmp_path / str(seed)
        shutil.copytree(one.store, store)
        damage(store, random.Random(f"{name}-{seed}"))
        try:
            parts = open_foreign(store, files=read_only_files).plan("*")
            rows = []
            for part in parts:
                for batch in read_foreign_slice(part, COLUMNS, lambda _: None, read_only_files):
                    batch.validate(full=True)
                    rows += batch.to_pylist()
        except StorageError:
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        assert all(same(row, true[row["sequence"]]) for row in rows), f"seed={seed}"
        assert [row["sequence"] for row in rows] == sorted({row["sequence"] for row in rows}), f"seed={seed}"
    assert outcomes["read"] > 0
    print(outcomes)
