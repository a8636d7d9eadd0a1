"""Random damage to whole stores of real servers: no crash, no hang, bounded memory, nothing invented, nothing that is
whole on disk left out, the source untouched.

A message is whole if its record is, to the last byte, in the block that it was written to; that is looked up in the
bytes, without the reader. `JSTREAM_FUZZ_SEEDS` says how many damages, `make soak` goes on as long as it is told.
"""

import os
import random
import shutil
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.errors import StorageError
from storage_core.foreign import ForeignDamage, open_foreign, read_foreign_slice
from storage_core.foreign.nats.block import read_block
from storage_core.foreign.nats.columns import build_batch
from storage_core.foreign.nats.record import block_key
from storage_core.foreign.nats.scan import scan_block

COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")
CASES = [
    "compacted-gaps",
    "consumers",
    "damaged-s2-bitflip-index-kept",
    "deletes-erase",
    "headers-empty-unicode",
    "kill9-stale-index",
    "kv-max1",
    "limits-evicted",
    "msg-ttl",
    "old-2-9-10",
    "old-2-12-8",
    "plain-multiblock",
    "s2-compressed",
    "workqueue",
]
SEED_COUNT = int(os.environ.get("JSTREAM_FUZZ_SEEDS", "500"))
MEMORY_MAX = 64 << 20  # bytes of Python objects and arrays while stores of some 100 KiB are read


@dataclass(frozen=True)
class Healthy:
    """A case before it is damaged."""

    written: dict[int, dict[str, Any]]  # every message that the blocks hold, removed or not
    places: dict[int, tuple[str, bytes]]  # of what a client got: file of the block, and the bytes of the record


@cache
def healthy(store: Path, stream: str) -> Healthy:
    written, places = {}, {}
    for path in sorted(store.rglob("*.blk")):
        block: pa.Buffer = read_block(path).data
        scan = scan_block(block, block_key(stream, int(path.stem)))
        shown = scan.records.take(scan.messages)
        for row in build_batch(stream, block, shown, COLUMNS).to_pylist():
            written[row["sequence"]] = row
        for sequence, start, end in zip(
            shown.sequences.tolist(), shown.starts.tolist(), shown.ends.tolist(), strict=True
        ):
            places[sequence] = path.name, bytes(block[start:end])
    got = {
        row["sequence"]
        for part in open_foreign(store).plan(stream)
        for batch in read_foreign_slice(part, ["sequence"], lambda _: None)
        for row in batch.to_pylist()
    }
    return Healthy(written, {sequence: place for sequence, place in places.items() if sequence in got})


def damage(store: Path, seeded: random.Random) -> None:
    for _ in range(seeded.randrange(1, 4)):
        paths = sorted(one for one in store.rglob("*") if one.is_file())
        if not paths:
            return
        path = seeded.choice(paths)
        data = bytearray(path.read_bytes())
        kind, place = seeded.randrange(8), seeded.randrange(len(data) + 1)
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
        elif kind == 5:
            path.write_bytes(data[:place] + data[end:])
        else:  # bytes of another place of the same file, with whole records maybe
            other = seeded.randrange(len(data) + 1)
            after = place if kind == 6 else end
            path.write_bytes(data[:place] + data[other : other + end - place] + data[after:])


def same(row: dict[str, Any], true: dict[str, Any]) -> bool:
    """Return whether it is the true message, but for the border between subject and payload (see record.py)."""
    moved = row["headers"] is None and row["subject"].encode() + row["data"] == true["subject"].encode() + true["data"]
    return row == true or (moved and row["timestamp_ns"] == true["timestamp_ns"])


def whole(store: Path, one: Healthy) -> set[int]:
    """Return the messages that a client got and whose record is in its block still."""
    blocks = {}
    for path in store.rglob("*.blk"):
        try:
            blocks[path.name] = read_block(path).data.to_pybytes()
        except StorageError:
            continue
    return {sequence for sequence, (name, record) in one.places.items() if record in blocks.get(name, b"")}


def content(store: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}


def check(store: Path, one: Healthy, files: Any, where: str) -> bool:
    """Read a damaged store and hold it against what it was; return whether it could be read."""
    before, provable = content(store), whole(store, one)
    told: list[ForeignDamage] = []
    rows: list[dict[str, Any]] = []
    try:
        opened = open_foreign(store, files=files)
        for name in opened.streams():
            notes, _ = opened.inspect(name)
            assert all(note.describe() for note in notes)
        for part in opened.plan("*"):
            for batch in read_foreign_slice(part, COLUMNS, told.append, files):
                batch.validate(full=True)
                rows += batch.to_pylist()
    except StorageError:
        assert not provable, f"{where}: refused, though {sorted(provable)[:5]} are whole"
        return False
    finally:
        assert content(store) == before, where
    assert all(same(row, one.written[row["sequence"]]) for row in rows), where
    sequences = [row["sequence"] for row in rows]
    assert sequences == sorted(set(sequences)), where
    assert provable <= set(sequences), f"{where}: {sorted(provable - set(sequences))[:5]} are whole, and not read"
    assert all(damage.describe() for damage in told), where
    return True


def attack(case: Callable[[str], Any], files: Any, folder: Path, name: str, seed: str) -> bool:
    one = case(name)
    truth = healthy(one.store, one.stream)
    store = folder / seed
    shutil.copytree(one.store, store)
    damage(store, random.Random(f"{name}-{seed}"))
    if name.startswith("old-2-9"):  # N.idx has no checksum: what a flipped bit in it removes, nobody can tell
        for path in store.rglob("*.idx"):
            origin = one.store / path.relative_to(store)
            path.write_bytes(origin.read_bytes())
    read = check(store, truth, files, f"case={name} seed={seed}")
    shutil.rmtree(store)
    return read


@pytest.mark.parametrize("name", CASES)
def test_random_damage_never_crashes_invents_or_hides(
    case: Callable[[str], Any], read_only_files: Any, tmp_path: Path, name: str
) -> None:
    outcomes = [
        attack(case, read_only_files, tmp_path, name, str(seed)) for seed in range(-(-SEED_COUNT // len(CASES)))
    ]
    assert outcomes.count(True) > len(outcomes) // 2


def test_damage_does_not_cost_memory(case: Callable[[str], Any], read_only_files: Any, tmp_path: Path) -> None:
    for name in CASES:
        healthy(case(name).store, case(name).stream)
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        for seed in range(2):
            for name in CASES:
                attack(case, read_only_files, tmp_path, name, f"memory-{seed}")
        assert tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - before < MEMORY_MAX
    finally:
        tracemalloc.stop()


@pytest.mark.soak
def test_random_damage_for_long(case: Callable[[str], Any], read_only_files: Any, tmp_path: Path) -> None:
    end = time.monotonic() + float(os.environ.get("JSTREAM_SOAK_SECONDS", "600"))
    seed = random.SystemRandom().randrange(1 << 40)
    count = 0
    while time.monotonic() < end:
        for name in CASES:
            attack(case, read_only_files, tmp_path, name, f"soak-{seed + count}")
            count += 1
    print(f"{count} damages from seed {seed}")
