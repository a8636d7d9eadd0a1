"""Random damage to a channel's slices: a strict read gives exactly what was there, or raises."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import DataLossError
from storage_core.foreign import ForeignDamage
from storage_core.foreign.stan.record import FILE_HEADER_SIZE

CASE_COUNT = 120
Read = Callable[..., list[dict[str, Any]]]


def damage(chance: random.Random, content: bytes, writer: Any, count: int) -> bytes:
    """Return a slice with a flipped bit, strange bytes, or records of this run or of another once more at its end."""
    at = chance.randrange(FILE_HEADER_SIZE, len(content))
    first = chance.randrange(1, count + 1)
    again = range(first, min(count, first + chance.randrange(8)) + 1)
    return {
        "flip": content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :],
        "insert": content[:at] + chance.randbytes(chance.randrange(1, 40)) + content[at:],
        "append": content + chance.randbytes(chance.randrange(1, 60)),
        "zeros": content[:at] + bytes(len(content[at : at + 30])) + content[at + 30 :],
        "copies": content + b"".join(writer.message(number) for number in again),
        "others": content + b"".join(writer.message(number, data=b"other %d" % number) for number in again),
    }[chance.choice(["flip", "insert", "append", "zeros", "copies", "others"])]


@pytest.mark.parametrize("with_index", [False, True])
def test_a_strict_read_is_exact_or_raises(writer: Any, read: Read, make_channel: Any, with_index: bool) -> None:
    outcomes = {"exact": 0, "cut": 0, "raises": 0}
    for seed in range(CASE_COUNT):
        chance = random.Random(f"{seed} {with_index}")
        count, size = chance.randrange(8, 40), chance.randrange(4, 20)
        slices = {at: (first, min(first + size, count + 1)) for at, first in enumerate(range(1, count + 1, size), 1)}
        contents = {f"msgs_{at}_dat": writer.slice(*span) for at, span in slices.items()}
        if with_index:
            contents |= {f"msgs_{at}_idx": writer.index(*span) for at, span in slices.items()}
        store: Path = make_channel(root=str(seed), subs_dat=writer.version, **contents)
        for _ in range(chance.randrange(1, 3)):
            path = store / "foo" / f"msgs.{chance.choice(list(slices))}.dat"
            path.write_bytes(damage(chance, path.read_bytes(), writer, count))
        whole = [b"data %d" % number for number in range(1, count + 1)]
        told: list[ForeignDamage] = []
        loose = [row["sequence"] for row in read(store, on_damage=told.append)]
        assert loose == sorted(set(loose)), f"seed={seed}"
        try:
            got = [row["data"] for row in read(store)]
        except DataLossError:
            assert any(place.costs for place in told), f"seed={seed}"
            outcomes["raises"] += 1
            continue
        # Zero bytes up to the end are padding, as they are to the server, where no index lists more.
        is_cut = not with_index and got == whole[: len(got)] and path_ends_with_zeros(store, max(slices))
        assert got == whole or is_cut, f"seed={seed}: {len(got)} of {count}"
        outcomes["cut" if got != whole else "exact"] += 1
    assert outcomes["exact"] > 5 and outcomes["raises"] > 40 and outcomes["cut"] < 5, outcomes


def path_ends_with_zeros(store: Path, number: int) -> bool:
    return (store / "foo" / f"msgs.{number}.dat").read_bytes().endswith(bytes(4))


@pytest.mark.parametrize("with_index", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_slice_of_zero_bytes_is_a_loss(
    writer: Any, read: Read, make_channel: Any, number: int, with_index: bool
) -> None:
    """Servers refuse a file that does not begin with its version."""
    spans = {1: (1, 6), 2: (6, 11), 3: (11, 14)}
    contents = {f"msgs_{at}_dat": writer.slice(*span) for at, span in spans.items()}
    if with_index:
        contents |= {f"msgs_{at}_idx": writer.index(*span) for at, span in spans.items()}
    store: Path = make_channel(subs_dat=writer.version, **contents)
    path = store / "foo" / f"msgs.{number}.dat"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DataLossError, match="zero bytes where a file has its version"):
        read(store)
    told: list[ForeignDamage] = []
    kept = [row["sequence"] for row in read(store, on_damage=told.append)]
    first, end = spans[number]
    assert kept == [sequence for sequence in range(1, 14) if not first <= sequence < end]
    assert [place.first for place in told if place.costs] == [first]
