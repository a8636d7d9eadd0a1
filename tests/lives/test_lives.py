"""Random lives of real stores: nothing acked is lost, changed, there twice, or skipped in silence.

A life that fails is repeated by `python tests/lives/run.py --seed SEED`, as closely as real processes can be.
"""

import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))

from harness.cases import REPORTS
from lives.run import Lives

SEED_COUNT = 8  # `make soak` goes on with others
PARTS = 4
SOAK_FIRST = 1_000_000


@pytest.mark.parametrize("part", range(PARTS))
def test_promises_hold_in_every_life(part: int) -> None:
    with Lives() as lives:
        for seed in range(part, SEED_COUNT, PARTS):
            lives.live(seed)
    REPORTS.append(f"part {part}: {lives.describe()}")
    assert lives.counts["lives"] == SEED_COUNT // PARTS and lives.counts["messages"] > 0


@pytest.mark.soak
def test_promises_hold_in_new_lives(soak_seconds: float) -> None:
    end, seed = time.monotonic() + soak_seconds, SOAK_FIRST
    with Lives() as lives:
        while time.monotonic() < end:
            lives.live(seed)
            seed += 1
    REPORTS.append(f"seeds {SOAK_FIRST} to {seed - 1}: {lives.describe()}")
    assert lives.counts["lives"]
