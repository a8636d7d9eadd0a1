"""Files of every kind that we or a foreign server write, mutated, mostly with their checksums redone: no crash, no
hang, no exception of anybody else's, no message that was not there, and losses are told.

What is done and what has to hold is in tests/harness/fuzz. `JSTREAM_FUZZ_CASES=name:seed` repeats one case,
`JSTREAM_FUZZ_SEED` is where a long run begins; one that is ended early (SIGTERM) says what it tried by then.
"""

import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.cases import REPORTS
from harness.fuzz.run import Outcome, cases, run, subjects
from harness.fuzz.stores import Subject

KEPT = Path(__file__).parents[1] / "data" / "fuzz" / "kept.json"
SECONDS = 60.0
CASE_COUNT = 520  # of the fixed ones, as far as a minute goes; `make soak` goes on with others


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A directory in memory, where there is one: the disk is not what is tested."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def stores(folder: Path) -> dict[str, Subject]:
    return subjects(folder)


def finish(outcome: Outcome, what: str) -> None:
    REPORTS.append(f"fuzzer, {what}: {outcome.describe()}")
    print(REPORTS[-1])
    assert not outcome.findings, "\n\n".join([*outcome.findings, f"{len(outcome.findings)} findings"])


def test_kept_cases_stay_mended(stores: dict[str, Subject], folder: Path) -> None:
    listed = [(one["store"], one["seed"]) for one in json.loads(KEPT.read_text())]
    asked = os.environ.get("JSTREAM_FUZZ_CASES")
    if asked:
        listed = [(name, int(seed)) for name, seed in (one.rsplit(":", 1) for one in asked.split(","))]
    finish(run(stores, iter(listed), folder, 600), "kept cases")


def test_fixed_cases(stores: dict[str, Subject], folder: Path) -> None:
    outcome = run(stores, cases(stores, 0), folder, SECONDS, CASE_COUNT)
    finish(outcome, "fixed cases from seed 0")
    assert outcome.cases > len(stores)


@pytest.mark.soak
def test_new_cases_for_long(stores: dict[str, Subject], folder: Path, soak_seconds: float) -> None:
    seed = int(os.environ.get("JSTREAM_FUZZ_SEED", random.SystemRandom().randrange(1 << 40)))
    print(f"fuzzer: from seed {seed}", flush=True)
    finish(run(stores, cases(stores, seed), folder, soak_seconds), f"from seed {seed}")
