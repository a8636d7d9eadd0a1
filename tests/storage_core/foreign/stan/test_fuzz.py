"""Random damage to whole stores of a real server: no crash, no hang, nothing invented, the source untouched."""

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import StorageError
from storage_core.foreign import ForeignDamage
from storage_core.foreign.stan.store import StanStore

CASES = ["basic", "crc-castagnoli", "limits-archive", "subs-compacted"]
SEED_COUNT = int(os.environ.get("JSTREAM_FUZZ_SEEDS", "60"))
Read = Callable[..., list[dict[str, Any]]]
FORMAT = Path(__file__).parents[4] / "docs" / "formats" / "stan.md"


def damage(store: Path, seeded: random.Random) -> None:
    for _ in range(seeded.randrange(1, 4)):
        path = seeded.choice(sorted(one for one in store.rglob("*") if one.is_file()))
        data = bytearray(path.read_bytes())
        kind, place = seeded.randrange(7), seeded.randrange(len(data) + 1)
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
            path.write_bytes(data[:place] + data[other : other + end - place] + data[end:])


def content(store: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", CASES)
def test_random_damage_never_crashes_and_never_invents(
    case: Callable[[str], Any], read: Read, tmp_path: Path, name: str
) -> None:
    one = case(name)
    true = {channel: {row["sequence"]: row for row in read(one.store, channel)} for channel in one.info["channels"]}
    outcomes = {"read": 0, "refused": 0}
    for seed in range(SEED_COUNT // len(CASES) + 1):
        store = tmp_path / str(seed)
        shutil.copytree(one.store, store)
        damage(store, random.Random(f"{name}-{seed}"))
        before = content(store)
        for options in ({}, {"no_crc": True, "truncate_bad_eof": True}):
            try:
                for channel in StanStore([store]).streams():
                    told: list[ForeignDamage] = []
                    rows = read(store, channel, told.append, **options)
                    unchecked = {n for one in told if one.served for n in range(one.first or 0, one.end or 0)}
                    for row in rows:
                        known = row["sequence"] in unchecked or row == true[channel].get(row["sequence"])
                        assert known, f"seed={seed} {options} {row}"
                    assert [row["sequence"] for row in rows] == sorted({row["sequence"] for row in rows}), (
                        f"seed={seed}"
                    )
                    StanStore([store], **options).consumers(channel, lambda _: None)
            except StorageError:
                outcomes["refused"] += 1
                continue
            outcomes["read"] += 1
        assert content(store) == before, f"seed={seed}"
    assert outcomes["read"] > 0


def test_flipped_bits_of_a_slice_cost_their_records_only(
    case: Callable[[str], Any], read: Read, tmp_path: Path
) -> None:
    """With no_crc never fewer messages than lie outside the damaged records."""
    shutil.copytree(case("basic").store, tmp_path / "store")
    path = tmp_path / "store" / "foo" / "msgs.2.dat"
    whole = path.read_bytes()
    true = case("basic").rows()["foo"]
    borders = [4]
    while borders[-1] < len(whole):
        borders.append(borders[-1] + 8 + int.from_bytes(whole[borders[-1] : borders[-1] + 4], "little"))
    for seed in range(SEED_COUNT):
        seeded = random.Random(f"flips-{seed}")
        data = bytearray(whole)
        hit = set()
        for _ in range(seeded.randrange(1, 6)):
            at = seeded.randrange(4, len(data))
            data[at] ^= 1 << seeded.randrange(8)
            hit.add(21 + sum(border <= at for border in borders) - 1)
        path.write_bytes(data)
        rows = {row["sequence"]: row for row in read(tmp_path / "store", no_crc=True, on_damage=lambda _: None)}
        for row in true:
            assert row["sequence"] in hit or rows[row["sequence"]] == row, f"seed={seed}"
        assert set(rows) <= set(range(1, 71)), f"seed={seed}"


def test_the_record_in_the_format_document_is_right(read: Read, make_channel: Any) -> None:
    text = re.findall(r"```\n([0-9a-f ]{20,})\n```", FORMAT.read_text())
    (row,) = read(make_channel(msgs_1_dat=b"\x01\x00\x00\x00" + bytes.fromhex(text[0])))
    assert (row["sequence"], row["subject"], row["data"], row["timestamp_ns"]) == (1, "foo", b"a", 1)
