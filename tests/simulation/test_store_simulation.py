"""The whole store in one seeded simulation: processes that take turns, disks that fail, a model that knows better.

A seed that fails is repeated by `python tests/simulation/replay_store.py SEED`.
"""

import sys
import time
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))

from harness.cases import REPORTS
from harness.whole.plan import Plan
from harness.whole.world import World
from mutants.store.store_mutants import MUTANTS, made

from storage_core.errors import StorageError

SEED_COUNT = 200
PARTS = 8
MERGING_SEED_COUNT = 24  # on top of those, with processes that merge blocks
SOAK_FIRST = 1_000_000
MUTANT_SEEDS = range(200)

# Seeds that found something, and what. They mean other lives when the harness changes, and are tried all the same.
KEPT_SEEDS = {
    62: "a volume whose fsync of a block failed, and that could not be read then, came back unretired, and was called "
    "current with a block that its disk did not have",
    226: "the name of a stream's directory, of which a sync had failed, was believed to be durable after the next one",
    360: "one volume of three could not be read while old snapshots were dropped, and the whole turn failed",
}

KEPT_MERGING_SEEDS: dict[int, str] = {}

# Where each mistake was found, so that it is found soon; if not there, then in the first seeds.
FOUND_AT = {
    "a_blank_volume_votes": 34,
    "counts_what_another_process_left_in_the_page_cache": 174,
    "cuts_the_log_at_its_first_bad_record": 55,
    "does_not_hear_what_was_said_of_a_volume": 26,
    "forgets_duplicates_among_messages_of_earlier_appends": 42,
    "goes_on_with_fewer_than_a_majority": 11,
    "moves_the_commit_record_before_the_fsync_of_the_quorum": 27,
    "moves_the_commit_record_of_volumes_that_were_not_fsynced": 789,
    "serves_frames_without_looking_at_their_checksums": 5,
    "stores_a_batch_that_came_again": 28,
    "swallows_a_failed_fsync_of_the_log": 63,
    "sweeps_staged_blocks_by_their_age": 31,
    "takes_the_last_sequence_as_proof_of_currency": 16,
    "tries_a_failed_fsync_again": 63,
}
FINDINGS = (AssertionError, StorageError, OSError, pa.ArrowException)  # not: a mistake that does not fit the code


def run(seed: int, merging: bool = False) -> World:
    world = World(seed, plan=Plan.of(Random(seed)).with_merging() if merging else None)
    try:
        world.run()
    except Exception as error:
        how = f"{seed}{' --merging' if merging else ''}"
        error.args = (f"python tests/simulation/replay_store.py {how}: {error}",)
        raise
    return world


def report(what: str, worlds: list[World]) -> None:
    steps, calls = sum(one.step_count for one in worlds), sum(one.call_count for one in worlds)
    probes = sum(one.invariants.probe_count for one in worlds)
    REPORTS.append(
        f"{what}: {len(worlds)} seeds, {steps} steps, {calls} file calls, {probes} power losses tried on a copy"
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_promises_hold_in_every_seed(part: int) -> None:
    report(f"whole store, part {part}", [run(seed) for seed in range(part, SEED_COUNT, PARTS)])


@pytest.mark.parametrize("seed", sorted(KEPT_SEEDS))
def test_a_kept_seed_holds(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize("part", range(2))
def test_promises_hold_in_every_seed_in_which_blocks_are_merged(part: int) -> None:
    worlds = [run(seed, merging=True) for seed in range(part, MERGING_SEED_COUNT, 2)]
    report(f"whole store with merging, part {part}", worlds)
    assert sum(one.merged_count for one in worlds) >= len(worlds) // 3


@pytest.mark.parametrize("seed", sorted(KEPT_MERGING_SEEDS))
def test_a_kept_seed_with_merging_holds(seed: int) -> None:
    run(seed, merging=True)


@pytest.mark.soak
def test_promises_hold_in_new_seeds(soak_seconds: float) -> None:
    end, worlds = time.monotonic() + soak_seconds, list[World]()
    while time.monotonic() < end:
        worlds.append(run(SOAK_FIRST + len(worlds), merging=len(worlds) % 3 == 2))
    report("whole store, soak", worlds)
    assert worlds


@pytest.mark.parametrize("mistake", sorted(MUTANTS))
def test_simulation_finds_a_known_mistake(mistake: str) -> None:
    for seed in [FOUND_AT.get(mistake, 0), *MUTANT_SEEDS]:
        try:
            with made(mistake):
                World(seed).run()
        except FINDINGS as error:
            REPORTS.append(f"the store {mistake.replace('_', ' ')}: seed {seed}: {_first_line(error)}")
            run(seed)  # without the mistake it holds
            return
    pytest.fail(f"{len(MUTANT_SEEDS)} seeds did not notice that the store {mistake.replace('_', ' ')}")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]
