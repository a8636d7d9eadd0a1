"""Records: boundaries, heads, checksums, one by one against the vectorised reader."""

import re
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.foreign.arrays import gather, runs_by_size
from storage_core.foreign.nats.block import read_block
from storage_core.foreign.nats.columns import build_batch
from storage_core.foreign.nats.record import SIZE_MIN, block_key, read_heads, verify, walk
from storage_core.foreign.nats.scan import scan_block

HEADERS = b"NATS/1.0\r\nA: 1\r\n\r\n"
DATA = Path(__file__).parents[3] / "data"
FORMAT = Path(__file__).parents[4] / "docs" / "formats" / "nats.md"

messages = st.lists(
    st.tuples(
        st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=20),
        st.binary(max_size=200),
        st.one_of(st.none(), st.just(HEADERS)),
    ),
    max_size=30,
)


@given(written=messages)
@settings(max_examples=60, deadline=None)
def test_what_is_encoded_one_by_one_is_read_back(records: Any, written: list[tuple[str, bytes, bytes | None]]) -> None:
    encoder = records("S", 3)
    block = b"".join(encoder.message(at + 1, *message) for at, message in enumerate(written))
    scan = scan_block(pa.py_buffer(block), block_key("S", 3))
    assert not scan.damage
    columns = ["sequence", "subject", "headers", "data"]
    rows = build_batch("S", pa.py_buffer(block), scan.records.take(scan.messages), columns).to_pylist()
    pairs = [{"key": "A", "value": b"1"}]
    assert rows == [
        {"sequence": at + 1, "subject": subject, "headers": pairs if headers else None, "data": data}
        for at, (subject, data, headers) in enumerate(written)
    ]


def test_every_record_of_every_undamaged_store_has_its_checksum() -> None:
    count = 0
    for path in sorted(DATA.glob("nats*/**/streams/*/msgs/*.blk")):
        name = str(path.relative_to(DATA))
        if "damaged" in name or "encrypted" in name or name.startswith("nats-field/") or not path.stat().st_size:
            continue
        if name.startswith("nats-orders/store/n2/"):  # the node of the demo's broken cluster with bad bytes
            continue
        block = read_block(path).data
        view = np.frombuffer(block, np.uint8)
        starts, end = walk(memoryview(block), 0, len(view))
        heads, possible = read_heads(view, starts, len(view))
        assert end == len(view), name
        assert possible.all(), name
        assert verify(block, heads, block_key(path.parents[1].name, int(path.stem))).all(), name
        count += len(starts)
    assert count > 8_500


def test_the_same_block_under_another_name_or_number_has_no_true_record(records: Any) -> None:
    block = pa.py_buffer(records("S", 1).message(1, "a", b"x"))
    assert len(scan_block(block, block_key("S", 1)).records) == 1
    assert len(scan_block(block, block_key("S", 2)).records) == 0
    assert len(scan_block(block, block_key("T", 1)).records) == 0


def test_kinds_of_records_are_told_apart(records: Any) -> None:
    encoder = records("S", 1)
    parts = [
        encoder.message(1, "a"),
        encoder.erased(2, 40),
        encoder.tombstone(1),
        encoder.message(3, "b"),
        encoder.erased(9),
        encoder.record(0, 0, b"", b"old way"),
    ]
    scan = scan_block(pa.py_buffer(b"".join(parts)), block_key("S", 1))
    assert scan.messages.tolist() == [0, 3]
    assert scan.tombstones.tolist() == [1]
    assert scan.records.sequences.tolist() == [1, 2, 1, 3, 9, 0]


def test_pieces_at_other_places_are_put_in_order_and_counted_once(records: Any) -> None:
    encoder = records("S", 1)
    numbers = [5, 9, 6, 6, 2, 7, 9]
    parts = [encoder.message(number, f"a.{number}", b"data %d" % number) for number in numbers]
    parts.append(encoder.erased(7))
    block = pa.py_buffer(b"".join(parts))
    scan = scan_block(block, block_key("S", 1))
    rows = build_batch("S", block, scan.records.take(scan.messages), ("sequence", "subject", "data")).to_pylist()
    assert [row["sequence"] for row in rows] == [2, 5, 6, 9]
    assert [row["subject"] for row in rows] == ["a.2", "a.5", "a.6", "a.9"]
    assert [row["data"] for row in rows] == [b"data 2", b"data 5", b"data 6", b"data 9"]


def test_headers_that_end_elsewhere_than_their_size_says_are_damage(records: Any) -> None:
    encoder = records("S", 1)
    true = encoder.message(1, "a", b"payload", HEADERS)
    longer = bytearray(true)
    longer[23] += 2  # two bytes of payload become headers; the checksum covers the same bytes
    scan = scan_block(pa.py_buffer(bytes(longer)), block_key("S", 1))
    assert len(scan.records) == 0
    assert "do not end where their size says" in scan.damage[0].reason


def test_headers_of_another_form_are_kept(records: Any) -> None:
    block = records("S", 1).message(1, "a", b"payload", b"anything at all")
    assert len(scan_block(pa.py_buffer(block), block_key("S", 1)).records) == 1


def test_walk_stops_at_a_size_that_cannot_be(records: Any) -> None:
    block = records("S", 1).message(1, "a") + bytes(64)
    starts, end = walk(memoryview(block), 0, len(block))
    assert (starts.tolist(), end) == ([0], len(block) - 64)


def chain_one_by_one(block: bytes) -> tuple[list[int], int]:
    starts, at = [], 0
    while at <= len(block) - SIZE_MIN:
        size = int.from_bytes(block[at : at + 4], "little") & 0x7FFFFFFF
        if size < SIZE_MIN:
            break
        starts.append(at)
        at += size
    return starts, at


TIME_NS = 1_780_000_000_000_000_000
TIME_BYTE = TIME_NS >> 56


@settings(max_examples=200)
@given(data=st.data())
def test_the_chain_is_the_same_as_when_it_is_followed_one_by_one(data: st.DataObject) -> None:
    """Records as they are, with times of other years, flags, payloads full of the byte that the guess goes by; cut
    anywhere, with bytes changed: sizes lead the chain astray and back.
    """
    parts = []
    for number in range(data.draw(st.integers(0, 60))):
        payload = data.draw(st.sampled_from([b"", b"x" * 9, bytes([TIME_BYTE]) * 70, bytes(50)]))
        time_ns = data.draw(st.sampled_from([TIME_NS] * 6 + [0, 1, -1, TIME_NS - (1 << 56)]))
        flags = data.draw(st.sampled_from([0] * 6 + [1 << 62, 1 << 63]))
        size = SIZE_MIN + len(payload) + data.draw(st.sampled_from([0] * 20 + [-1, 30, 1 << 31]))
        parts.append(pack("<IQqH", size, number + 1 | flags, time_ns, 0) + payload + bytes(8))
    block = bytearray(b"".join(parts))
    for _ in range(data.draw(st.integers(0, 3)) if block else 0):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.sampled_from([0, 30, TIME_BYTE, 255]))
    block = block[: data.draw(st.integers(0, len(block)))] if data.draw(st.booleans()) else block
    starts, end = walk(memoryview(block), 0, len(block))
    assert (starts.tolist(), end) == chain_one_by_one(bytes(block))


@given(sizes=st.lists(st.integers(1, 50), max_size=40), size_max=st.integers(1, 100))
def test_runs_cover_everything_once_and_stay_below_the_bound(sizes: list[int], size_max: int) -> None:
    runs = runs_by_size(np.array(sizes, np.int64), size_max)
    assert [place for first, end in runs for place in range(first, end)] == list(range(len(sizes)))
    assert all(sum(sizes[first:end]) <= size_max or end == first + 1 for first, end in runs)


@given(
    lengths=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=30),
    block=st.just(bytes(range(256)) * 2),
)
def test_gather_copies_ranges(lengths: list[tuple[int, int]], block: bytes) -> None:
    edges, at = [], 0
    for gap, size in lengths:
        edges.append((at + gap, size))
        at += gap + size
    starts, sizes = (np.array([edge[place] for edge in edges], np.int64) for place in (0, 1))
    taken = gather(pa.py_buffer(block), starts, sizes).to_pylist()
    assert taken == [block[start : start + size] for start, size in edges]


def test_the_smallest_record_is_a_tombstone(records: Any) -> None:
    assert len(records("S", 1).tombstone(1)) == SIZE_MIN


def test_the_record_in_the_format_document_is_right() -> None:
    text = re.findall(r"```\n([0-9a-f ]{20,})\n```", FORMAT.read_text())
    scan = scan_block(pa.py_buffer(bytes.fromhex(text[0])), block_key("S", 1))
    assert (scan.tombstones.tolist(), scan.records.times_ns.tolist(), scan.damage) == ([3], [1], ())
