"""Damage inside a block: nothing invented, and every record outside the damage is found."""

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage_core.foreign import budget
from storage_core.foreign.nats import scan as scan_module
from storage_core.foreign.nats.record import block_key
from storage_core.foreign.nats.scan import BlockScan, scan_block

KEY = block_key("S", 1)
BLOCK = Path(__file__).parents[3] / "data/nats/plain-multiblock/store/jetstream/$G/streams/ORDERS/msgs/1.blk"


def scan(block: bytes) -> BlockScan:
    return scan_block(pa.py_buffer(bytes(block)), KEY)


def parts_of(records: Any, count: int = 12) -> list[bytes]:
    encoder = records("S", 1)
    headers = b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n"
    return [
        encoder.message(at + 1, f"s.{at % 3}", bytes([65 + at]) * (at % 5), headers if at % 2 else None)
        for at in range(count)
    ]


def test_every_flipped_bit_costs_at_most_its_record_and_invents_nothing(records: Any) -> None:
    parts = parts_of(records, 4)
    block = b"".join(parts)
    starts = np.cumsum([0] + [len(part) for part in parts])
    for bit in range(len(block) * 8):
        damaged = bytearray(block)
        damaged[bit // 8] ^= 1 << bit % 8
        hit = int(np.searchsorted(starts, bit // 8, side="right")) - 1
        result = scan(damaged)
        found = {
            (int(start), bytes(damaged[start:end]))
            for start, end in zip(result.records.starts, result.records.ends, strict=True)
        }
        others = {(int(starts[at]), part) for at, part in enumerate(parts) if at != hit}
        assert others <= found, bit
        # The one field that no checksum covers: the size of a subject in front of a payload.
        in_subject_size = bit // 8 - starts[hit] in (20, 21) and hit % 2 == 0
        assert found == others or in_subject_size, bit


def test_every_truncation_keeps_the_whole_records(records: Any) -> None:
    parts = parts_of(records, 4)
    block = b"".join(parts)
    ends = np.cumsum([len(part) for part in parts])
    for size in range(len(block)):
        result = scan(block[:size])
        whole = int(np.count_nonzero(ends <= size))
        assert result.records.sequences.tolist() == list(range(1, whole + 1)), size
        assert bool(result.damage) == (size not in (0, *ends.tolist())), size


def test_a_size_that_skips_over_true_records_hides_none_of_them(records: Any) -> None:
    encoder = records("S", 1)
    parts = [encoder.message(at + 1, "same", b"same size") for at in range(6)]
    damaged = bytearray(b"".join(parts))
    damaged[len(parts[0])] *= 2  # the second record claims to reach to the fourth
    result = scan(damaged)
    assert result.records.sequences.tolist() == [1, 3, 4, 5, 6]
    assert [(one.after, one.before) for one in result.damage] == [(1, 3)]


def test_damage_names_the_gap_between_its_neighbours(records: Any) -> None:
    parts = parts_of(records)
    damaged = bytearray(b"".join(parts))
    third = len(parts[0]) + len(parts[1])
    damaged[third + 30 : third + 34] = b"\0\0\0\0"
    (damage,) = scan(damaged).damage
    assert (damage.offset_bytes, damage.end_bytes) == (third, third + len(parts[2]))
    assert (damage.after, damage.before) == (2, 4)


@pytest.mark.parametrize(
    ("filler", "reason"),
    [
        (bytes(64), "64 zero bytes"),
        (b"\xff" * 64, "declares 2147483647 bytes"),
        (b"x" * 12, "ends 12 bytes into a record"),
        (b"\x40\0\0\0" + b"\x01" * 60, "do not fit"),
    ],
)
def test_a_tail_that_is_no_record_is_told(records: Any, filler: bytes, reason: str) -> None:
    parts = parts_of(records)
    result = scan(b"".join(parts) + filler)
    assert len(result.records) == len(parts)
    assert reason in result.damage[0].reason
    assert result.damage[0].before is None


def test_garbage_between_true_records_is_stepped_over(records: Any) -> None:
    parts = parts_of(records)
    garbage = random.Random(3).randbytes(5_000)
    result = scan(b"".join(parts[:5]) + garbage + b"".join(parts[5:]))
    assert result.records.sequences.tolist() == list(range(1, len(parts) + 1))
    assert len(result.damage) == 1


def test_a_piece_of_the_block_at_a_wrong_place_does_not_bound_what_was_there(records: Any) -> None:
    """Its numbers are lower than those in front of it: the next message is the one behind it, if there is one."""
    parts = parts_of(records)
    piece = b"#" * 7 + b"".join(parts[2:5])
    middle = scan(b"".join(parts[:8]) + piece + b"".join(parts[10:]))
    assert [(damage.after, damage.before) for damage in middle.damage] == [(8, 11)]
    end = scan(b"".join(parts[:8]) + piece)
    assert [(damage.after, damage.before) for damage in end.damage] == [(8, None)]


def test_random_damage_to_a_real_block_leaves_all_other_records() -> None:
    block, key = BLOCK.read_bytes(), block_key("ORDERS", 1)
    whole = scan_block(pa.py_buffer(block), key).records
    seeded = random.Random(11)
    for _ in range(60):
        damaged = bytearray(block)
        hit = set()
        for _ in range(seeded.randrange(1, 5)):
            place, length = seeded.randrange(len(block)), seeded.choice([1, 1, 4, 700])
            end = min(len(block), place + length)
            damaged[place:end] = seeded.randbytes(end - place)
            hit |= {at for at in range(len(whole)) if whole.starts[at] < end and place < whole.ends[at]}
        found = set(scan_block(pa.py_buffer(bytes(damaged)), key).records.starts.tolist())
        assert {int(whole.starts[at]) for at in range(len(whole)) if at not in hit} <= found
        assert found <= set(whole.starts.tolist())


def test_a_block_made_to_look_like_records_everywhere_is_given_up_on(
    records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "SEARCH_SPARE_MAX", 100_000)
    monkeypatch.setattr(budget, "SEARCH_FACTOR", 0)
    # Every sixteenth byte begins a plausible head: a size of 16,448 bytes, small number and time, a subject of 65.
    pattern = bytes([0x40, 0x40, 0, 0, 0x41, 0]) + b"\x40" * 4 + b"\0\0" + b"\x40" * 4
    forged = pattern * 12_500
    begin = time.monotonic()
    result = scan(records("S", 1).message(1, "a") + forged)
    assert len(result.records) == 1
    assert "given up" in result.damage[0].reason
    assert time.monotonic() - begin < 30
