"""Files that no server writes: read within bounds of memory and time, and what they hide is told."""

import shutil
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any

import pyarrow as pa
import pytest
from harness.bounded_run import make_sparse, read_foreign

from storage_core.foreign import open_foreign
from storage_core.foreign.nats.index import INDEX_MAGIC, SET_MAGIC, highwayhash_of
from storage_core.foreign.slices import STREAMS_SCHEMA

MEMORY_MAX = 500 << 20  # bytes, of a process that reads one of these
BOMB_SIZE = 64 << 20


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def messages_of(store: Path) -> Path:
    (found,) = store.rglob("msgs")
    return found


def dense_index(stream: str) -> bytes:
    """Return an index of a MiB with the right checksum, whose one block has eight million removed sequences."""
    node_count = 2000
    nodes = b"".join(pack("<Q", number * 4096) + b"\xff" * 512 + pack("<H", 1) for number in range(node_count))
    removed = bytes([SET_MAGIC, 1]) + pack("<II", node_count, node_count * 4096) + nodes
    numbers = [0, 0, 1, 0, 1 << 23, 0]  # messages, bytes, first, its time, last, its time
    block = [1, 0, 0, 0, 1 << 23, 0, node_count * 4096]
    body = bytes([INDEX_MAGIC, 1]) + b"".join(map(uvarint, [*numbers, 0, 1, *block])) + removed
    body += uvarint(1) + bytes(8)
    return body + pack("<Q", highwayhash_of(body, stream))


def s2_bomb(filling: bytes) -> bytes:
    return b"cmp\x01" + uvarint(BOMB_SIZE) + filling * (BOMB_SIZE // len(filling)) + bytes(8)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "an index of 16 MiB": lambda place: (place / "index.db").write_bytes(b"\x0b\x04" * (8 << 20)),
    "a sparse index of a terabyte": lambda place: make_sparse(place / "index.db", 1 << 40),
    "an old index of a terabyte": lambda place: make_sparse(place / "1.idx", 1 << 40),
    "a dense index": lambda place: (place / "index.db").write_bytes(dense_index("S")),
    "S2 chunks of no length": lambda place: (place / "1.blk").write_bytes(s2_bomb(bytes(4))),
    "S2 chunks of no known type": lambda place: (place / "1.blk").write_bytes(s2_bomb(bytes([2, 1, 0, 0, 0]))),
    "S2 chunks to be passed over": lambda place: (place / "1.blk").write_bytes(s2_bomb(bytes([0x80, 1, 0, 0, 0]))),
    "S2 chunks of a byte": lambda place: (place / "1.blk").write_bytes(s2_bomb(bytes([1, 5, 0, 0, 1, 2, 3, 4, 5]))),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_no_server_writes_is_read_within_bounds_and_told(
    make_stream: Callable[..., Path], records: Any, kind: str
) -> None:
    own = records("S", 1)
    store = make_stream("S", {1: [own.message(number, "S.a", b"x") for number in range(1, 4)]})
    HOSTILE[kind](messages_of(store))
    outcome = read_foreign("nats", store)
    assert outcome.error is None
    assert outcome.reasons and len(outcome.reasons) < 200
    assert outcome.rows == (0 if kind.startswith("S2") else 3)
    assert outcome.peak_bytes < MEMORY_MAX


@pytest.mark.parametrize("gone", ["1.blk", "2.blk"])
@pytest.mark.parametrize("index", ["damaged", "gone"])
def test_a_block_that_is_gone_without_an_index_to_tell_is_told(
    case: Callable[[str], Any], tmp_path: Path, gone: str, index: str
) -> None:
    """Its messages may have been removed, so nobody can say that they are lost; nor that nothing is."""
    one = case("plain-multiblock")
    store = shutil.copytree(one.store, tmp_path / "store")
    place = messages_of(store)
    (place / gone).unlink()
    if index == "gone":
        (place / "index.db").unlink()
    else:
        content = bytearray((place / "index.db").read_bytes())
        content[20] ^= 1
        (place / "index.db").write_bytes(content)
    outcome = read_foreign("nats", store)
    assert 0 < outcome.rows < len(one.expected())
    assert any("index.db" in reason for reason in outcome.reasons) == (index == "damaged")
    told = " ".join(outcome.reasons)
    assert "no index tells" in told and (gone in told) == (gone != "1.blk")


def test_an_index_that_is_only_older_than_the_blocks_is_nothing_to_tell(case: Callable[[str], Any]) -> None:
    outcome = read_foreign("nats", case("kill9-stale-index").store)
    assert outcome.reasons == []


@pytest.mark.parametrize("gone", [["1.blk"], ["2.blk"], ["1.blk", "1.idx"]])
def test_a_block_that_is_gone_is_told_where_each_block_has_its_own_index(
    case: Callable[[str], Any], tmp_path: Path, gone: list[str]
) -> None:
    """A server up to 2.9 removes both files of a block: an index alone is a loss, and without it nobody can say."""
    one = case("old-2-9-10")
    store = shutil.copytree(one.store, tmp_path / "store")
    for name in gone:
        (messages_of(store) / name).unlink()
    outcome = read_foreign("nats", store)
    assert 0 < outcome.rows < len(one.expected())
    expected = "no index tells what became of" if len(gone) > 1 else "the file is gone"
    assert any(expected in reason for reason in outcome.reasons), outcome.reasons


def test_a_configuration_that_is_no_unicode_is_told_and_its_messages_are_read(
    make_stream: Callable[..., Path], records: Any
) -> None:
    content = [records("S", 1).message(1, "S.a", b"x")]
    store = make_stream("S", {1: content}, subjects=["S.\ud800"])
    (copy,) = open_foreign(store).copies("S")
    assert copy.subjects == () and "meta.inf is not the JSON object of a stream" in copy.problem
    pa.RecordBatch.from_pylist([copy.row()], STREAMS_SCHEMA)
    assert read_foreign("nats", store).rows == 1
