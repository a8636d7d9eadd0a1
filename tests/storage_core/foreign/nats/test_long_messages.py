"""Long messages, whose checksums are verified side by side or by compiled code: the same either way."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage_core.errors import DataLossError
from storage_core.foreign import ForeignDamage, open_foreign, open_foreign_slices
from storage_core.foreign.nats import long_chains
from storage_core.foreign.nats.record import block_key
from storage_core.foreign.nats.scan import scan_block, scan_blocks

DATA = Path(__file__).parents[3] / "data"
COLUMNS = ("sequence", "subject", "headers", "data")
# A process on its own, because numba can be imported, or not, only once.
READ = """
import json, sys
if {hidden}:
    sys.modules["numba"] = None
from storage_core.foreign import open_foreign, open_foreign_slices
from storage_core.foreign.nats import long_chains
long_chains.COMPILED_SIZE_MIN = 0
store = open_foreign({store!r})
rows = [
    [row["sequence"], len(row["data"])]
    for opened in open_foreign_slices(store.plan())
    for batch in opened.read(("sequence", "data"))
    for row in batch.to_pylist()
]
print(json.dumps([rows, long_chains.compiled() is not None, store.advice()]))
"""


@pytest.fixture(params=["side by side", "compiled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Verify in one of both ways, however little there is to verify."""
    compiled = request.param == "compiled"
    monkeypatch.setattr(long_chains, "COMPILED_SIZE_MIN", 0 if compiled else 1 << 62)
    monkeypatch.setattr(long_chains, "find_spec", lambda name: name if compiled else None)
    assert not compiled or long_chains.compiled() is not None
    return str(request.param)


def real_block() -> bytes:
    return gzip.decompress((DATA / "nats-long" / "1.blk.gz").read_bytes())


def read(store: Path, on_damage: Callable[[ForeignDamage], None] | None = None) -> list[dict[str, Any]]:
    return [
        row
        for opened in open_foreign_slices(open_foreign(store).plan())
        for batch in opened.read(COLUMNS, on_damage)
        for row in batch.to_pylist()
    ]


def long_store(make_stream: Callable[..., Path], records: Any, block_count: int = 5) -> Path:
    """A stream without an index, in blocks of three messages of 40 to 60 KB."""
    blocks = {}
    for block in range(1, block_count + 1):
        own, first = records("S", block), 3 * block - 2
        blocks[block] = [
            own.message(number, "S.a", bytes([number]) * (40_000 + 1_001 * number), b"NATS/1.0\r\nA: b\r\n\r\n")
            if number % 4 == 0
            else own.message(number, "S.a", bytes([number]) * (40_000 + 1_001 * number))
            for number in range(first, first + 3)
        ]
    return make_stream("S", blocks)


def test_a_block_of_a_real_server_is_whole(way: str) -> None:
    scan = scan_block(pa.py_buffer(real_block()), block_key("LONG", 1))
    assert scan.damage == ()
    assert scan.records.sequences.tolist() == list(range(1, 13))
    assert (scan.records.header_sizes >= 0).sum() == 4


def test_a_flipped_bit_costs_its_message_wherever_it_is(way: str) -> None:
    block, key = real_block(), block_key("LONG", 1)
    records = scan_block(pa.py_buffer(block), key).records
    random = np.random.default_rng(5)
    damaged = []
    for row in range(len(records)):
        for at in (records.starts[row] + 5, records.ends[row] - 9, records.ends[row] - 1, random.integers(400, 15_000)):
            copy = bytearray(block)
            copy[at if at < 400 or at >= 15_000 else at + int(records.starts[row])] ^= 1 << int(random.integers(8))
            damaged.append((pa.py_buffer(bytes(copy)), key))
    for number, scan in enumerate(scan_blocks(damaged)):
        assert set(range(1, 13)) - set(scan.records.sequences.tolist()) == {number // 4 + 1}


def test_every_message_is_read_whatever_blocks_are_read_together(
    make_stream: Callable[..., Path], records: Any, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = long_store(make_stream, records)
    for size in (1, 400_000, 64 << 20):
        monkeypatch.setattr(long_chains, "SIDE_BY_SIDE_SIZE", size)
        rows = read(store)
        assert [(row["sequence"], row["data"][:1], len(row["data"])) for row in rows] == [
            (number, bytes([number]), 40_000 + 1_001 * number) for number in range(1, 16)
        ]
        assert [row["sequence"] for row in rows if row["headers"]] == [4, 8, 12]


def test_damage_is_told_for_the_block_that_it_is_in(make_stream: Callable[..., Path], records: Any, way: str) -> None:
    store = long_store(make_stream, records)
    for block in (2, 4):
        (path,) = store.rglob(f"{block}.blk")
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    damage: list[ForeignDamage] = []
    assert [row["sequence"] for row in read(store, damage.append)] == [1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 15]
    assert [(Path(place.file).name, place.first, place.end) for place in damage] == [("2.blk", 5, 6), ("4.blk", 11, 12)]
    with pytest.raises(DataLossError, match=r"sequence 5 .*2\.blk"):
        read(store)


def test_a_block_that_changes_after_it_was_planned_is_verified_again(
    make_stream: Callable[..., Path], records: Any, way: str
) -> None:
    store = long_store(make_stream, records, 2)
    parts = open_foreign(store).plan()
    assert all(part.sound_crc32c is not None for part in parts)  # what was verified to plan is not verified twice
    (path,) = store.rglob("2.blk")
    data = bytearray(path.read_bytes())
    data[-20_000] ^= 1
    path.write_bytes(data)
    damage: list[ForeignDamage] = []
    rows = [
        row["sequence"]
        for opened in open_foreign_slices(parts)
        for batch in opened.read(COLUMNS, damage.append)
        for row in batch.to_pylist()
    ]
    assert rows == [1, 2, 3, 4, 5]
    assert [(place.first, place.end) for place in damage] == [(6, 7)]


def test_blocks_in_which_something_is_damaged_are_not_taken_for_sound(
    make_stream: Callable[..., Path], records: Any, way: str
) -> None:
    store = long_store(make_stream, records, 2)
    (path,) = store.rglob("1.blk")
    path.write_bytes(path.read_bytes()[:-10])
    assert [part.sound_crc32c is None for part in open_foreign(store).plan()] == [True, False]


@pytest.fixture
def answers(make_stream: Callable[..., Path], records: Any) -> Callable[..., Any]:
    """Return a function that reads a store in a process that has numba, or has not."""
    store = long_store(make_stream, records)

    def answer(hidden: bool, **variables: str) -> Any:
        command = [sys.executable, "-c", READ.format(hidden=hidden, store=str(store))]
        environment = {"PATH": "", "PYTHONPATH": str(DATA.parents[1]), **variables}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
        return json.loads(done.stdout)

    return answer


def test_without_numba_the_same_is_read_and_the_advice_names_it(answers: Callable[..., Any]) -> None:
    rows, has_compiled, advice = answers(hidden=False)
    assert has_compiled and not advice
    assert [sequence for sequence, _ in rows] == list(range(1, 16))
    same, has_compiled, advice = answers(hidden=True)
    assert not has_compiled and "pyspark-jstream[rescue]" in advice
    assert same == rows


def test_compiled_code_that_can_be_kept_nowhere_is_compiled_all_the_same(answers: Callable[..., Any]) -> None:
    # No class of numba's that looks for a folder finds one.
    rows, has_compiled, _ = answers(hidden=False, NUMBA_CACHE_LOCATOR_CLASSES="ZipCacheLocator")
    assert has_compiled and len(rows) == 15


def test_short_messages_get_no_advice(make_stream: Callable[..., Path], records: Any, way: str) -> None:
    own = records("S", 1)
    store = make_stream("S", {1: [own.message(number, "S.a", b"x" * 900) for number in range(1, 90)]})
    assert open_foreign(store).advice() == ""
