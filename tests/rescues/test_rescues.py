"""Kept stores of other servers, damaged at random: strict reads are exact or raise, and all readers say the same.

What is done and what has to hold is in tests/harness/rescues.py. `JSTREAM_RESCUES=nats/consumers:17` repeats one case,
`JSTREAM_RESCUES_SEED` is where a long run begins.
"""

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.cases import REPORTS
from harness.rescues import Kept, Outcome, cases, kept, run

SECONDS, CASE_COUNT = 60.0, 300


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A directory in memory, where there is one: the disk is not what is tested."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def nats() -> dict[str, Kept]:
    return kept("nats")


def finish(outcome: Outcome, what: str) -> None:
    REPORTS.append(f"rescues, {what}: {outcome.describe()}")
    print(REPORTS[-1])
    assert not outcome.findings, "\n".join(outcome.findings)


def test_damaged_jetstream_stores_are_read_exactly_or_not_at_all(nats: dict[str, Kept], folder: Path) -> None:
    asked = os.environ.get("JSTREAM_RESCUES", "")
    listed = [(name, int(seed)) for name, _, seed in (one.rpartition(":") for one in asked.split(",") if one)]
    listed = [case for case in listed if case[0] in nats]
    finish(run(nats, iter(listed) if asked else cases(nats, 0), folder, SECONDS, CASE_COUNT), "JetStream")


@pytest.mark.soak
def test_damaged_jetstream_stores_for_long(nats: dict[str, Kept], folder: Path, soak_seconds: float) -> None:
    seed = int(os.environ.get("JSTREAM_RESCUES_SEED", random.SystemRandom().randrange(1 << 40)))
    print(f"rescues: from seed {seed}", flush=True)
    finish(run(nats, cases(nats, seed), folder, soak_seconds), f"JetStream from seed {seed}")
