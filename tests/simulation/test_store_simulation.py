"""The whole store in one seeded simulation: processes that take turns, disks that fail, a model that knows better.

A seed that fails is repeated by `python tests/simulation/replay_store.py SEED`.
"""

import sys
import time
from functools import partial
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))

from harness.cases import REPORTS
from harness.mutants import maker_of
from harness.whole.kept import KEPT, Kept
from harness.whole.plan import Plan
from harness.whole.world import World
from mutants.store import answer_mutants, retention_mutants, store_mutants, time_mutants

from storage_core.errors import StorageError

SEED_COUNT = 120  # `make soak` goes on with others
PARTS = 6
MERGING_SEED_COUNT = 16  # on top of those, with processes that merge blocks
LIMITS_SEED_COUNT = 16  # with streams that keep few messages
RETENTION_SEED_COUNT = 12  # with limits of subjects, interest, work queues and messages that expire
TIME_SEED_COUNT = 24  # and with streams whose messages become too old, and leave delete markers
VARIED_SEED_COUNT = 32  # with rows of all kinds, questions of all kinds, and calls that are refused
COPIES_SEED_COUNT = 20  # and with volumes that are exchanged for those of a copy of the store
SOAK_FIRST = 1_000_000
SOAK_KINDS = ("", "copies", "merging", "limits", "retention", "time", "varied")
MUTANT_SEEDS = range(200)

WITH_COPIES = (
    "lets_the_best_log_outvote_the_majority",
    "reads_by_the_highest_commit_record_of_any_volume",
    "does_not_ask_which_volumes_a_commit_record_names",
)
WITH_LIMITS = ("removes_one_message_more_than_a_limit_asks_for",)
WITH_RETENTION = ("each_process_expires_by_its_own_clock", "removes_what_is_handed_out")
WITH_TIME = tuple(time_mutants.MUTANTS)
WITH_VARIETY = tuple(answer_mutants.MUTANTS)
MUTANTS = {
    **store_mutants.MUTANTS,
    **{name: retention_mutants.MUTANTS[name] for name in WITH_RETENTION},
    **time_mutants.MUTANTS,
    **answer_mutants.MUTANTS,
}
made = maker_of(MUTANTS)
FINDINGS = (AssertionError, StorageError, OSError, pa.ArrowException)  # not: a mistake that does not fit the code


def planned(seed: int, kind: str = "") -> World:
    plan = Plan.of(Random(seed))
    return World(seed, plan=plan.kinds()[kind]() if kind else None)


def run(seed: int, kind: str = "") -> World:
    world = planned(seed, kind)
    try:
        world.run()
    except Exception as error:
        how = f"{seed}{f' --{kind}' if kind else ''}"
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


@pytest.mark.parametrize("kept", [one for one in KEPT if not one.mutant], ids=lambda kept: kept.name)
def test_a_kept_plan_holds(kept: Kept) -> None:
    kept.world().run()


@pytest.mark.parametrize("part", range(2))
def test_promises_hold_in_every_seed_in_which_blocks_are_merged(part: int) -> None:
    worlds = [run(seed, "merging") for seed in range(part, MERGING_SEED_COUNT, 2)]
    report(f"whole store with merging, part {part}", worlds)
    assert sum(one.merged_count for one in worlds) >= len(worlds) // 3


@pytest.mark.parametrize("part", range(2))
def test_promises_hold_in_every_seed_in_which_volumes_are_those_of_a_copy(part: int) -> None:
    worlds = [run(seed, "copies") for seed in range(part, COPIES_SEED_COUNT, 2)]
    report(f"whole store with copies of it, part {part}", worlds)
    assert sum(one.volumes.exchange_count for one in worlds) >= len(worlds) // 4


@pytest.mark.parametrize("part", range(2))
def test_promises_hold_in_every_seed_in_which_rows_and_questions_are_of_all_kinds(part: int) -> None:
    worlds = [run(seed, "varied") for seed in range(part, VARIED_SEED_COUNT, 2)]
    report(f"whole store with rows and questions of all kinds, part {part}", worlds)
    assert sum(one.operations.question_count for one in worlds) >= 3 * len(worlds)
    assert sum(one.merged_count for one in worlds) >= len(worlds) // 8


@pytest.mark.parametrize("part", range(2))
def test_promises_hold_in_every_seed_in_which_streams_have_limits(part: int) -> None:
    worlds = [run(seed, "limits") for seed in range(part, LIMITS_SEED_COUNT, 2)]
    report(f"whole store with limits, part {part}", worlds)
    assert sum(one.expectation.limited_count for one in worlds) >= len(worlds)


@pytest.mark.parametrize("part", range(2))
def test_promises_hold_in_every_seed_in_which_streams_let_go_of_messages(part: int) -> None:
    worlds = [run(seed, "retention") for seed in range(part, RETENTION_SEED_COUNT, 2)]
    report(f"whole store with retention, part {part}", worlds)
    assert sum(one.expectation.limited_count for one in worlds) >= len(worlds)


def test_promises_hold_in_every_seed_in_which_time_takes_messages() -> None:
    worlds = [run(seed, "time") for seed in range(TIME_SEED_COUNT)]
    report("whole store with ages and delete markers", worlds)
    assert sum(one.expectation.limited_count for one in worlds) >= len(worlds)


@pytest.mark.soak
def test_promises_hold_in_new_seeds(soak_seconds: float) -> None:
    end, worlds = time.monotonic() + soak_seconds, list[World]()
    while time.monotonic() < end:
        worlds.append(run(SOAK_FIRST + len(worlds), SOAK_KINDS[len(worlds) % len(SOAK_KINDS)]))
    report("whole store, soak", worlds)
    assert worlds


@pytest.mark.parametrize("mistake", sorted(MUTANTS))
def test_simulation_finds_a_known_mistake(mistake: str) -> None:
    """Where it was found before, so that it is found soon; if not there, then in the first seeds."""
    kinds = {
        "copies": WITH_COPIES,
        "limits": WITH_LIMITS,
        "retention": WITH_RETENTION,
        "time": WITH_TIME,
        "varied": WITH_VARIETY,
    }
    kind = next((kind for kind, mistakes in kinds.items() if mistake in mistakes), "")
    kept = [partial(one.world, None) for one in KEPT if one.mutant == mistake]
    for world in (*kept, *(partial(planned, seed, kind) for seed in MUTANT_SEEDS)):
        try:
            with made(mistake):
                world().run()
        except FINDINGS as error:
            REPORTS.append(f"the store {mistake.replace('_', ' ')}: {_first_line(error)}")
            world().run()  # without the mistake it holds
            return
    pytest.fail(f"{len(MUTANT_SEEDS)} seeds did not notice that the store {mistake.replace('_', ' ')}")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]
